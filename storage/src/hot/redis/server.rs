//! The connection for commands to one server. Every call returns within its time limit, even if
//! Redis or the network hangs. After a call without an answer, calls fail at once for [`BACKOFF`],
//! so that an unreachable Redis does not slow down each caller.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use parking_lot::{Mutex, MutexGuard};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, Pipeline, RedisError, ScriptInvocation,
    ServerErrorKind, Value, aio::MultiplexedConnection,
};

use tokio::time::timeout;

use super::sentinel::Sentinels;
use crate::StoreError;

pub(super) const RESPONSE_MAX: Duration = Duration::from_millis(500);
pub(super) const CONNECT_MAX: Duration = Duration::from_secs(1);
/// Time limit for connecting and answering together.
pub(super) const CALL_MAX: Duration = Duration::from_secs(1);
const BACKOFF: Duration = Duration::from_millis(500);

pub(super) enum Request<'a> {
    Command(&'a Cmd),
    Pipeline(&'a Pipeline),
    Script(&'a ScriptInvocation<'a>),
}

/// Reason for a missing answer.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum RedisConnectionError {
    #[error("this connection was closed")]
    Closed,
    #[error("Redis did not answer a moment ago")]
    BackingOff,
    #[error("Redis did not answer in time")]
    TimedOut,
    #[error("no connection to Redis: {0}")]
    Unreachable(RedisError),
    #[error("Redis: {0}")]
    Redis(RedisError),
}

/// How a server is found.
pub(super) enum Opener {
    Client(Client),
    /// A node of a cluster.
    Node(Client),
    /// The master at the time of opening.
    Sentinels(Sentinels),
}

/// One server, or whichever server is the master of a service.
pub(super) struct Server {
    opener: Arc<Opener>,
    state: Mutex<ServerState>,
}

/// A connection that is being opened or is open. All callers wait for the same one.
type Opening = Shared<BoxFuture<'static, Result<MultiplexedConnection, RedisError>>>;

struct ServerState {
    opening: Option<Opening>,
    /// Counts connections.
    generation: u64,
    closed: bool,
    backoff_until: Option<Instant>,
}

impl Server {
    pub(super) fn new(opener: Opener) -> Self {
        let state =
            ServerState { opening: None, generation: 0, closed: false, backoff_until: None };
        Self { opener: Arc::new(opener), state: Mutex::new(state) }
    }

    pub(super) fn opener(&self) -> &Opener {
        &self.opener
    }

    /// Sends a request and waits for its answer. Tries once more over a new connection if the old
    /// one was lost.
    pub(super) async fn execute(
        &self,
        request: &Request<'_>,
        limit: Duration,
    ) -> Result<Value, RedisConnectionError> {
        self.execute_as(request, false, limit).await
    }

    /// Does the same with a request for a slot that this node is about to get.
    pub(super) async fn execute_asking(
        &self,
        request: &Request<'_>,
        limit: Duration,
    ) -> Result<Value, RedisConnectionError> {
        self.execute_as(request, true, limit).await
    }

    async fn execute_as(
        &self,
        request: &Request<'_>,
        asking: bool,
        limit: Duration,
    ) -> Result<Value, RedisConnectionError> {
        let mut life = 0;
        let answer = match timeout(limit, self.try_twice(request, asking, &mut life)).await {
            Ok(answer) => answer,
            Err(_) => Err(RedisConnectionError::TimedOut),
        };
        let is_node = matches!(*self.opener, Opener::Node(_));
        match &answer {
            Err(RedisConnectionError::TimedOut | RedisConnectionError::Unreachable(_)) => {
                self.discard(life, true)
            }
            Err(RedisConnectionError::Redis(error)) if error.is_io_error() => {
                self.discard(life, true)
            }
            // A name or a proxy may point to another server now, which may accept writes.
            Err(RedisConnectionError::Redis(error)) if !is_node && is_of_another_server(error) => {
                self.discard(life, false)
            }
            Ok(_) | Err(_) => {}
        }
        answer
    }

    /// A call finds out that a connection was lost while idle, so it gets a second try.
    async fn try_twice(
        &self,
        request: &Request<'_>,
        asking: bool,
        life: &mut u64,
    ) -> Result<Value, RedisConnectionError> {
        match self.try_once(request, asking, life).await {
            Err(RedisConnectionError::Redis(error))
                if error.is_io_error() && !error.is_timeout() =>
            {
                self.discard(*life, false);
                self.try_once(request, asking, life).await
            }
            answer => answer,
        }
    }

    async fn try_once(
        &self,
        request: &Request<'_>,
        asking: bool,
        life: &mut u64,
    ) -> Result<Value, RedisConnectionError> {
        let opening = self.connection(life)?;
        let mut connection = opening.await.map_err(RedisConnectionError::Unreachable)?;
        let answer = if asking {
            request.send_asking(&mut connection).await
        } else {
            request.send(&mut connection).await
        };
        answer.map_err(RedisConnectionError::Redis)
    }

    /// Returns the connection, or begins to open one.
    fn connection(&self, life: &mut u64) -> Result<Opening, RedisConnectionError> {
        let mut state = self.lock();
        if state.closed {
            return Err(RedisConnectionError::Closed);
        }
        if state.backoff_until.is_some_and(|until| until > Instant::now()) {
            return Err(RedisConnectionError::BackingOff);
        }
        state.backoff_until = None;
        let opening = match &state.opening {
            Some(opening) => opening.clone(),
            None => {
                state.generation += 1;
                let opener = self.opener.clone();
                let opening: Opening = async move { opener.open().await }.boxed().shared();
                state.opening = Some(opening.clone());
                opening
            }
        };
        *life = state.generation;
        Ok(opening)
    }

    /// Drops the connection with this number, because the other end may have lost it.
    fn discard(&self, life: u64, rest: bool) {
        let mut state = self.lock();
        if state.generation == life {
            state.opening = None;
            state.backoff_until = rest.then(|| Instant::now() + BACKOFF);
        }
    }

    /// Returns whether the sentinels name another master than the server of this client. Drops the
    /// connection then.
    pub(super) async fn drop_if_replaced(&self, client: &Client) -> bool {
        let Opener::Sentinels(sentinels) = &*self.opener else { return false };
        let is_another = sentinels.name_another_than(client).await;
        if is_another {
            self.lock().opening = None;
        }
        is_another
    }

    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.opening = None;
    }

    fn lock(&self) -> MutexGuard<'_, ServerState> {
        self.state.lock()
    }
}

impl Request<'_> {
    async fn send(&self, connection: &mut MultiplexedConnection) -> Result<Value, RedisError> {
        match self {
            Self::Command(command) => command.query_async(connection).await,
            Self::Pipeline(pipeline) => pipeline.query_async(connection).await,
            Self::Script(script) => script.invoke_async(connection).await,
        }
    }

    /// Sends `ASKING` directly before each command.
    async fn send_asking(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<Value, RedisError> {
        let mut pipeline = Pipeline::new();
        match self {
            Self::Command(command) => {
                pipeline.cmd("ASKING").ignore().add_command((*command).clone());
            }
            Self::Pipeline(commands) => {
                for command in commands.cmd_iter() {
                    pipeline.cmd("ASKING").ignore().add_command(command.clone()).ignore();
                }
            }
            Self::Script(script) => {
                script.load_async(connection).await?;
                pipeline.cmd("ASKING").ignore().invoke_script(script);
            }
        }
        let mut answers: Vec<Value> = pipeline.query_async(connection).await?;
        Ok(answers.pop().unwrap_or(Value::Nil))
    }
}

impl Opener {
    /// Returns how to connect to the server for messages.
    pub(super) async fn client(&self) -> Result<Client, RedisError> {
        match self {
            Self::Client(client) | Self::Node(client) => Ok(client.clone()),
            Self::Sentinels(sentinels) => Ok(sentinels.open().await?.0),
        }
    }

    async fn open(&self) -> Result<MultiplexedConnection, RedisError> {
        match self {
            Self::Client(client) | Self::Node(client) => connect(client).await,
            Self::Sentinels(sentinels) => Ok(sentinels.open().await?.1),
        }
    }
}

/// Connects once: a waiting caller must not wait for retries.
pub(super) async fn connect(client: &Client) -> Result<MultiplexedConnection, RedisError> {
    let config = AsyncConnectionConfig::new()
        .set_response_timeout(Some(RESPONSE_MAX))
        .set_connection_timeout(Some(CONNECT_MAX));
    client.get_multiplexed_async_connection_with_config(&config).await
}

fn is_of_another_server(error: &RedisError) -> bool {
    use ServerErrorKind::{Ask, ClusterDown, MasterDown, Moved, ReadOnly};
    matches!(error.kind(), ErrorKind::Server(Moved | Ask | ReadOnly | MasterDown | ClusterDown))
}

impl From<RedisConnectionError> for StoreError {
    fn from(error: RedisConnectionError) -> Self {
        match error {
            RedisConnectionError::Redis(error) if error.code() == Some("OOM") => Self::Full,
            other => Self::Unavailable { detail: other.to_string() },
        }
    }
}
