//! A real `redis-server` of one test: nothing on disk, a free port of 127.0.0.1. It ends with its
//! handle.
//!
//! Each command of a test uses a connection of its own, so that it works whatever the test did to
//! the others.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

use crate::deadline::within;

const LOG: &str = "redis.log";
const SENTINEL_FILE: &str = "sentinel.conf";
/// Tries of a start if another process took the port.
const START_TRIES: usize = 5;
/// Interval at which a starting server is polled.
const ASK_EVERY: Duration = Duration::from_millis(10);

/// A running, stopped or frozen server.
#[derive(Debug)]
pub struct RedisServer {
    folder: TempDir,
    address: SocketAddr,
    kind: ServerKind,
    password: Option<String>,
    child: Mutex<Option<Child>>,
}

/// What the process is to be.
#[derive(Debug, Clone)]
enum ServerKind {
    /// A server with more arguments of the command line.
    Data(Vec<String>),
    /// A sentinel with this configuration.
    Sentinel(String),
}

/// Answer of the server to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisReply {
    Nil,
    Number(i64),
    Text(String),
    List(Vec<RedisReply>),
    Error(String),
}

impl RedisServer {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// `options`: more arguments of the command line, such as `--maxmemory 4mb`.
    pub async fn start_with(options: &[&str]) -> Self {
        Self::launched(ServerKind::data(options), None).await
    }

    /// Starts a server that requires this password, also of its replicas.
    pub async fn start_with_password(password: &str, options: &[&str]) -> Self {
        Self::launched(ServerKind::data_with(password, options), Some(password)).await
    }

    /// Starts a node of a cluster, which requires this password. Returns the port of its bus, too.
    pub(super) async fn start_node(password: &str, options: &[&str]) -> (Self, String) {
        let folder = server_folder();
        for _ in 0..START_TRIES {
            let bus = free_address().port().to_string();
            let options = [options, &["--cluster-port", &bus]].concat();
            let kind = ServerKind::data_with(password, &options);
            if let Some((address, child)) =
                launch_anywhere(folder.path(), &kind, Some(password)).await
            {
                return (Self::running(folder, address, kind, Some(password), child), bus);
            }
        }
        panic!("redis-server does not start; its log:\n{}", log_of(folder.path()));
    }

    /// Starts a sentinel that requires this password. `configuration`: its lines about masters.
    pub(super) async fn start_sentinel(password: &str, configuration: &str) -> Self {
        let configuration = format!("requirepass {password}\n{configuration}");
        Self::launched(ServerKind::Sentinel(configuration), Some(password)).await
    }

    async fn launched(kind: ServerKind, password: Option<&str>) -> Self {
        let folder = server_folder();
        for _ in 0..START_TRIES {
            if let Some((address, child)) = launch_anywhere(folder.path(), &kind, password).await {
                return Self::running(folder, address, kind, password, child);
            }
        }
        panic!("redis-server does not start; its log:\n{}", log_of(folder.path()));
    }

    fn running(
        folder: TempDir,
        address: SocketAddr,
        kind: ServerKind,
        password: Option<&str>,
        child: Child,
    ) -> Self {
        let (password, child) = (password.map(str::to_owned), Mutex::new(Some(child)));
        Self { folder, address, kind, password, child }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    pub async fn flush_all(&self) {
        self.command(&["FLUSHALL"]).await;
    }

    /// Returns its dump, in which texts stand as they are.
    pub async fn dump(&self) -> Vec<u8> {
        self.command(&["CONFIG", "SET", "rdbcompression", "no"]).await;
        self.command(&["SAVE"]).await;
        std::fs::read(self.folder.path().join("dump.rdb")).expect("a dump after SAVE")
    }

    /// Shuts it down in an orderly way. Waits until it is gone.
    pub async fn stop(&self) {
        self.end(Signal::TERM).await;
    }

    /// Ends it with SIGKILL. Waits until it is gone.
    pub async fn kill(&self) {
        self.end(Signal::KILL).await;
    }

    /// Returns whether its process was started and not ended by the test.
    pub fn is_started(&self) -> bool {
        self.lock().is_some()
    }

    /// Starts an empty server at the same address, after [`RedisServer::stop`] or
    /// [`RedisServer::kill`].
    pub async fn start_again(&self) {
        assert!(self.lock().is_none(), "the server runs");
        let child =
            launch(self.folder.path(), self.address, &self.kind, self.password.as_deref()).await;
        let child = child.unwrap_or_else(|| {
            panic!("redis-server does not start again; its log:\n{}", log_of(self.folder.path()))
        });
        *self.lock() = Some(child);
    }

    /// Stops its process: it answers nothing, while connections to it stay open and new ones are
    /// taken.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Runs a command and panics if the server refuses it.
    pub async fn command(&self, arguments: &[impl AsRef<[u8]>]) -> RedisReply {
        match self.try_command(arguments).await {
            RedisReply::Error(error) => {
                panic!("redis-server refuses a command of the test: {error}")
            }
            reply => reply,
        }
    }

    /// Runs a command.
    pub async fn try_command(&self, arguments: &[impl AsRef<[u8]>]) -> RedisReply {
        let reply = try_command(self.address, self.password.as_deref(), arguments);
        let reply = within("an answer of redis-server", reply).await;
        reply.unwrap_or_else(|error| {
            panic!(
                "redis-server does not answer: {error}; its log:\n{}",
                log_of(self.folder.path())
            )
        })
    }

    /// Returns whether its `ROLE` has this word: its role, or the state of its replication. A server
    /// that changes its role closes connections, so a missing answer is an error like another role.
    pub(super) async fn has_role(&self, role: &str) -> Result<(), String> {
        match try_command(self.address, self.password.as_deref(), &["ROLE"]).await {
            Ok(RedisReply::List(parts)) if parts.contains(&RedisReply::Text(role.into())) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    }

    async fn end(&self, signal: Signal) {
        let Some(mut child) = self.lock().take() else { return };
        let pid = pid(&child);
        let _ = kill_process(pid, Signal::CONT); // a frozen one would not hear the other signal
        let _ = kill_process(pid, signal);
        let ended = tokio::task::spawn_blocking(move || child.wait());
        within("redis-server to end", ended)
            .await
            .expect("the waiting thread lives")
            .expect("a child can be waited for");
    }

    fn signal(&self, signal: Signal) {
        let child = self.lock();
        let child = child.as_ref().expect("the server was stopped");
        kill_process(pid(child), signal).expect("the server is our child");
    }

    fn lock(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock()
    }
}

impl ServerKind {
    fn data(options: &[&str]) -> Self {
        Self::Data(options.iter().map(|&option| option.to_owned()).collect())
    }

    /// Returns a server that requires this password, also of its replicas.
    fn data_with(password: &str, options: &[&str]) -> Self {
        Self::data(&[&["--requirepass", password, "--masterauth", password], options].concat())
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        if let Some(mut child) = self.lock().take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl RedisReply {
    /// Returns the number of the answer. Panics if it is something else.
    pub fn number(&self) -> i64 {
        match self {
            Self::Number(number) => *number,
            other => panic!("{other:?} is not a number"),
        }
    }

    /// Returns the text of the answer. Panics if it is something else.
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            other => panic!("{other:?} is not a text"),
        }
    }

    /// Returns the texts of a list. Panics if the answer is something else.
    pub fn texts(&self) -> Vec<&str> {
        match self {
            Self::List(list) => list.iter().map(Self::text).collect(),
            other => panic!("{other:?} is not a list"),
        }
    }
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

pub(super) fn free_address() -> SocketAddr {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("a bound socket has an address")
}

fn server_folder() -> TempDir {
    tempfile::Builder::new().prefix("mcp-broker-redis-").tempdir().expect("a temporary folder")
}

fn log_of(folder: &Path) -> String {
    std::fs::read_to_string(folder.join(LOG)).unwrap_or_default()
}

/// Starts the process at a free address. `None`: as for [`launch`].
async fn launch_anywhere(
    folder: &Path,
    kind: &ServerKind,
    password: Option<&str>,
) -> Option<(SocketAddr, Child)> {
    let address = free_address();
    launch(folder, address, kind, password).await.map(|child| (address, child))
}

/// Starts the process. `None`: it ended, most likely because another process has the port.
async fn launch(
    folder: &Path,
    address: SocketAddr,
    kind: &ServerKind,
    password: Option<&str>,
) -> Option<Child> {
    let mut child = spawn(folder, address, kind);
    let reply = async {
        loop {
            if child.try_wait().expect("a child can be looked at").is_some() {
                return false;
            }
            // The answer may come from another process that took the port in between.
            let ours = format!("process_id:{}\r", child.id());
            match try_command(address, password, &["INFO", "server"]).await {
                Ok(RedisReply::Text(text)) if text.contains(&ours) => return true,
                _ => tokio::time::sleep(ASK_EVERY).await,
            }
        }
    };
    let ready = within("redis-server to be ready", reply).await;
    ready.then_some(child)
}

/// Starts the server so that it dies with the thread that starts it, however that ends, if
/// util-linux can arrange it.
fn spawn(folder: &Path, address: SocketAddr, kind: &ServerKind) -> Child {
    let log = std::fs::File::create(folder.join(LOG)).expect("the temporary folder is writable");
    let port = address.port().to_string();
    let mut arguments: Vec<&str> = Vec::new();
    if let ServerKind::Sentinel(configuration) = kind {
        std::fs::write(folder.join(SENTINEL_FILE), configuration)
            .expect("the temporary folder is writable");
        arguments.extend([SENTINEL_FILE, "--sentinel"]);
    }
    arguments.extend(["--bind", "127.0.0.1", "--port", &port, "--daemonize", "no"]);
    if let ServerKind::Data(options) = kind {
        arguments.extend(["--save", "", "--appendonly", "no", "--maxclients", "200"]);
        arguments.extend(options.iter().map(String::as_str));
    }
    let configure = |command: &mut Command| {
        command.args(&arguments).current_dir(folder);
        command
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .stdout(log.try_clone().expect("a file can be opened twice"));
        command.spawn()
    };
    let mut bound_to_us = Command::new("setpriv");
    bound_to_us.args(["--pdeathsig", "KILL", "redis-server"]);
    let mut plain = Command::new("redis-server");
    let there =
        Command::new("redis-server").arg("--version").stdout(Stdio::null()).status().is_ok();
    assert!(there, "redis-server is missing: apt-get install redis-server");
    configure(&mut bound_to_us).or_else(|_| configure(&mut plain)).expect("redis-server starts")
}

async fn try_command(
    address: SocketAddr,
    password: Option<&str>,
    arguments: &[impl AsRef<[u8]>],
) -> std::io::Result<RedisReply> {
    let mut stream = BufReader::new(TcpStream::connect(address).await?);
    if let Some(password) = password {
        exchange(&mut stream, &["AUTH", password]).await?;
    }
    exchange(&mut stream, arguments).await
}

async fn exchange(
    stream: &mut BufReader<TcpStream>,
    arguments: &[impl AsRef<[u8]>],
) -> std::io::Result<RedisReply> {
    let mut request = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        let argument = argument.as_ref();
        request.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        request.extend_from_slice(argument);
        request.extend_from_slice(b"\r\n");
    }
    stream.write_all(&request).await?;
    Box::pin(read_reply(stream)).await
}

async fn read_reply(stream: &mut BufReader<TcpStream>) -> std::io::Result<RedisReply> {
    let mut line = String::new();
    stream.read_line(&mut line).await?;
    let line = line.trim_end();
    let odd = || std::io::Error::other(format!("an odd reply: {line:?}"));
    let (kind, rest) = line.split_at_checked(1).ok_or_else(odd)?;
    let number = || rest.parse::<i64>().map_err(|_| odd());
    Ok(match kind {
        "+" => RedisReply::Text(rest.to_owned()),
        "-" => RedisReply::Error(rest.to_owned()),
        ":" => RedisReply::Number(number()?),
        "$" | "*" if number()? < 0 => RedisReply::Nil,
        "$" => {
            let mut bytes = vec![0; number()? as usize + 2];
            stream.read_exact(&mut bytes).await?;
            bytes.truncate(bytes.len() - 2);
            RedisReply::Text(String::from_utf8_lossy(&bytes).into_owned())
        }
        "*" => {
            let mut list = Vec::new();
            for _ in 0..number()? {
                list.push(Box::pin(read_reply(stream)).await?);
            }
            RedisReply::List(list)
        }
        _ => return Err(odd()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_test_has_its_own_redis_that_restarts_empty() {
        let server = RedisServer::start().await;
        server.command(&["SET", "a", "b"]).await;
        assert_eq!(server.command(&["GET", "a"]).await.text(), "b");
        assert!(matches!(server.try_command(&["LPUSH", "a", "c"]).await, RedisReply::Error(_)));
        assert_eq!(server.command(&["KEYS", "*"]).await.texts(), ["a"]);
        server.kill().await;
        assert!(TcpStream::connect(server.address()).await.is_err());
        server.start_again().await;
        assert_eq!(server.command(&["DBSIZE"]).await.number(), 0);
        server.freeze();
        assert!(
            tokio::time::timeout(
                Duration::from_millis(50),
                try_command(server.address(), None, &["PING"])
            )
            .await
            .is_err()
        );
        server.thaw();
        server.flush_all().await;
        server.stop().await;
        assert!(TcpStream::connect(server.address()).await.is_err());
    }

    #[tokio::test]
    async fn no_server_outlives_its_handle() {
        let server = RedisServer::start().await;
        let address = server.address();
        server.freeze();
        drop(server);
        assert!(TcpStream::connect(address).await.is_err());
    }
}
