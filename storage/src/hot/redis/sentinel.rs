//! Finds the master of a service by Redis Sentinel. The sentinels are asked in turn, the last one
//! that answered first. A server that a sentinel names must also say that it is the master, because
//! a sentinel may be late.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use redis::{
    Client, Cmd, ConnectionInfo, ErrorKind, RedisError, Value, aio::MultiplexedConnection,
};
use tokio::time::timeout;

use super::{
    address::{SentinelAddress, at},
    server,
};

/// Time limit of one sentinel, so that a dead one leaves time for the others.
const SENTINEL_MAX: Duration = Duration::from_millis(400);

pub(super) struct Sentinels {
    clients: Vec<Client>,
    service: String,
    master: ConnectionInfo,
    /// The sentinel to ask first.
    first: AtomicUsize,
}

impl Sentinels {
    pub(super) fn new(address: SentinelAddress) -> Result<Self, RedisError> {
        let clients: Result<Vec<Client>, RedisError> =
            address.sentinels.into_iter().map(Client::open).collect();
        Ok(Self {
            clients: clients?,
            service: address.service,
            master: address.master,
            first: AtomicUsize::new(0),
        })
    }

    /// Connects to the master. Tries each server that a sentinel names, once.
    pub(super) async fn open(&self) -> Result<(Client, MultiplexedConnection), RedisError> {
        let mut tried: Vec<(String, u16)> = Vec::new();
        let mut why = RedisError::from((ErrorKind::Io, "no sentinel answers"));
        for sentinel in self.order() {
            let named = match self.master_address(sentinel).await {
                Ok(named) => named,
                Err(error) => {
                    // A dead sentinel must not hide that a master refuses the login.
                    if tried.is_empty() {
                        why = error;
                    }
                    continue;
                }
            };
            if tried.contains(&named) {
                continue;
            }
            let client = Client::open(at(&self.master, &named.0, named.1))?;
            match open_master(&client).await {
                Ok(connection) => return Ok((client, connection)),
                Err(error) => why = error,
            }
            tried.push(named);
        }
        Err(why)
    }

    /// Returns whether a sentinel names another master than the server of this client.
    pub(super) async fn name_another_than(&self, client: &Client) -> bool {
        for sentinel in self.order() {
            if let Ok((host, port)) = self.master_address(sentinel).await {
                let named = at(&self.master, &host, port);
                return named.addr() != client.get_connection_info().addr();
            }
        }
        false
    }

    fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, count) = (self.first.load(Ordering::Relaxed), self.clients.len());
        (0..count).map(move |index| (first + index) % count)
    }

    /// Asks one sentinel for the address of the master. One that does not answer is the last to be
    /// asked from then on.
    async fn master_address(&self, sentinel: usize) -> Result<(String, u16), RedisError> {
        let answer = self.answer_of(sentinel).await;
        let first = if answer.is_ok() { sentinel } else { (sentinel + 1) % self.clients.len() };
        self.first.store(first, Ordering::Relaxed);
        answer
    }

    async fn answer_of(&self, sentinel: usize) -> Result<(String, u16), RedisError> {
        let answer = async {
            let mut connection = server::connect(&self.clients[sentinel]).await?;
            let mut command = Cmd::new();
            command.arg("SENTINEL").arg("get-master-addr-by-name").arg(&self.service);
            command.query_async::<Option<(String, u16)>>(&mut connection).await
        };
        let unknown =
            (ErrorKind::MasterNameNotFoundBySentinel, "a sentinel does not know the service");
        match timeout(SENTINEL_MAX, answer).await {
            Ok(answer) => answer?.ok_or_else(|| unknown.into()),
            Err(_) => Err((ErrorKind::Io, "a sentinel does not answer").into()),
        }
    }
}

/// Connects to a server that must be a master.
async fn open_master(client: &Client) -> Result<MultiplexedConnection, RedisError> {
    let mut connection = server::connect(client).await?;
    let mut role = Cmd::new();
    role.arg("ROLE");
    let role: Vec<Value> = role.query_async(&mut connection).await?;
    match role.first() {
        Some(Value::BulkString(role)) if role == b"master" => Ok(connection),
        _ => Err((ErrorKind::Io, "the server that a sentinel names is not a master").into()),
    }
}
