//! The real binary as a child process: its own folder, free ports, a restart on the same data.
//!
//! A [`BrokerBuilder`] writes a configuration file (JSON is YAML), starts the binary, waits for its `ready` line, and
//! registers tenants and backends through the admin API. Dropping a [`TestBroker`] kills the process; a failing test
//! prints the end of its log. What the broker said to the clients made here and to stdio
//! backends is judged by then (see [`crate::judge`]).

use std::{
    io::{BufRead, BufReader, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc as blocking,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    admin::AdminClient,
    client::TestClient,
    deadline::eventually_within,
    judge::{Judge, Verdict},
};

/// How long a debug binary may take to say it is ready.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// How long a process may take to end after it was asked to.
const EXIT_WITHIN: Duration = Duration::from_secs(30);
/// Where stdio backends, which start in the broker's folder, note what they hear and say.
const TRAFFIC: &str = "traffic";
/// How much of the log a failing test shows.
const LOG_LINES_SHOWN: usize = 80;

/// What to start.
#[derive(Debug, Clone)]
pub struct BrokerBuilder {
    binary: PathBuf,
    config: Value,
    backends: Vec<(String, String, Value)>,
    tenants: Vec<String>,
    admin_token: Option<String>,
    env: Vec<(String, String)>,
}

impl BrokerBuilder {
    /// `binary`: the path cargo gives tests of the broker crate as `CARGO_BIN_EXE_mcp-broker`; the variable
    /// `MCP_BROKER_BIN` wins over it.
    pub fn new(binary: impl Into<PathBuf>) -> Self {
        let binary = std::env::var_os("MCP_BROKER_BIN").map_or_else(|| binary.into(), PathBuf::from);
        let config = json!({
            "listen": {"http": "127.0.0.1:0", "admin": "127.0.0.1:0"},
            "egress": {"allow": ["127.0.0.0/8"]},
        });
        Self { binary, config, backends: Vec::new(), tenants: Vec::new(), admin_token: None, env: Vec::new() }
    }

    /// Merged into the configuration, member by member.
    pub fn config(mut self, fragment: Value) -> Self {
        merge(&mut self.config, fragment);
        self
    }

    /// Registered through the admin API once the broker is ready; `start` waits until the backend is ready too.
    pub fn backend(mut self, tenant: &str, name: &str, spec: Value) -> Self {
        self.backends.push((tenant.to_owned(), name.to_owned(), spec));
        self
    }

    pub fn tenant(mut self, tenant: &str) -> Self {
        self.tenants.push(tenant.to_owned());
        self
    }

    pub fn auth_required(self) -> Self {
        self.config(json!({"auth": {"required": true}}))
    }

    pub fn admin_token(mut self, token: &str) -> Self {
        self.admin_token = Some(token.to_owned());
        self.config(json!({"auth": {"admin_token": token}}))
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts and registers; panics when anything of it fails.
    pub async fn start(self) -> TestBroker {
        let folder = tempfile::Builder::new().prefix("mcp-broker-test-").tempdir().expect("a temporary folder");
        let mut config = json!({"storage": {"url": format!("sqlite:{}", folder.path().join("broker.db").display())}});
        merge(&mut config, self.config.clone());
        std::fs::create_dir(folder.path().join(TRAFFIC)).expect("the temporary folder is writable");
        std::fs::write(folder.path().join("config.yaml"), config.to_string()).expect("the temporary folder is writable");
        let running = Running::start(&self, folder.path()).await;
        let broker = TestBroker { folder, builder: self, running, verdict: Verdict(Judge::default()) };
        for tenant in broker.builder.tenants.clone() {
            broker.admin().put_tenant(&tenant, json!({})).await;
        }
        for (tenant, name, spec) in broker.builder.backends.clone() {
            broker.admin().ready_backend(&tenant, &name, &spec).await;
        }
        broker
    }

    /// Runs the binary with these arguments to its end, for what is refused at start and for the command line.
    pub async fn run(&self, folder: &Path, arguments: &[&str]) -> Finished {
        let mut command = Command::new(&self.binary);
        command.args(arguments).current_dir(folder).env_remove("MCP_BROKER_ADMIN_URL").env_remove("MCP_BROKER_ADMIN_TOKEN");
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null());
        let output = tokio::task::spawn_blocking(move || command.output());
        let output = tokio::time::timeout(EXIT_WITHIN, output).await.expect("the command ends in time");
        let output =
            output.expect("the waiting thread does not panic").unwrap_or_else(|error| panic!("{}: {error}", self.binary.display()));
        Finished {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// How a command ended.
#[derive(Debug, Clone)]
pub struct Finished {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// One life of the process.
struct Running {
    child: Child,
    http: SocketAddr,
    admin: SocketAddr,
}

impl Running {
    async fn start(builder: &BrokerBuilder, folder: &Path) -> Self {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("stderr.log")).expect("a log file");
        let mut command = Command::new(&builder.binary);
        command.arg("serve").arg("--config").arg(folder.join("config.yaml")).current_dir(folder);
        command.envs(builder.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("start {}: {error}", builder.binary.display()));
        let stdout = child.stdout.take().expect("stdout is piped");
        let (tell, first_line) = blocking::channel();
        std::thread::spawn(move || {
            let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
            let _ = tell.send(lines.next().unwrap_or_default());
            lines.for_each(drop);
        });
        let line = tokio::task::spawn_blocking(move || first_line.recv_timeout(READY_WITHIN)).await.expect("the waiting thread lives");
        let addresses = line.as_deref().ok().and_then(parse_ready);
        let Some((http, admin)) = addresses else {
            let _ = child.kill();
            let status = child.wait();
            panic!("no ready line ({line:?}, {status:?}); log:\n{}", log_tail(folder));
        };
        Self { child, http, admin }
    }
}

fn parse_ready(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let mut words = line.split_whitespace();
    (words.next()? == "ready").then_some(())?;
    let pairs: Vec<(&str, &str)> = words.filter_map(|word| word.split_once('=')).collect();
    let address = |name: &str| pairs.iter().find(|(key, _)| *key == name).and_then(|(_, value)| value.parse().ok());
    Some((address("http")?, address("admin")?))
}

fn log_tail(folder: &Path) -> String {
    let log = std::fs::read(folder.join("stderr.log")).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
}

/// A running broker.
pub struct TestBroker {
    folder: TempDir,
    builder: BrokerBuilder,
    running: Running,
    verdict: Verdict,
}

impl TestBroker {
    pub fn http_address(&self) -> SocketAddr {
        self.running.http
    }

    pub fn admin_address(&self) -> SocketAddr {
        self.running.admin
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.running.http)
    }

    pub fn admin(&self) -> AdminClient {
        AdminClient::new(self.running.admin, self.builder.admin_token.as_deref())
    }

    /// A client of a data-plane path, without a session yet.
    pub fn client(&self, path: &str) -> TestClient {
        TestClient::new(self.running.http, path).judged_by(&self.verdict.0)
    }

    /// A client of the aggregated endpoint with a session of the newest version.
    pub async fn connected(&self, capabilities: Value) -> TestClient {
        self.client("/mcp").connected(capabilities).await
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn pid(&self) -> u32 {
        self.running.child.id()
    }

    /// Everything logged so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.folder.path().join("stderr.log")).unwrap_or_default()).into_owned()
    }

    /// The whole command line tool against this broker's admin API.
    pub async fn cli(&self, arguments: &[&str]) -> Finished {
        let mut builder = self.builder.clone().env("MCP_BROKER_ADMIN_URL", &format!("http://{}", self.running.admin));
        if let Some(token) = &self.builder.admin_token {
            builder = builder.env("MCP_BROKER_ADMIN_TOKEN", token);
        }
        // `run` clears the two variables first, so that the caller's environment cannot leak in.
        builder.run(self.folder.path(), arguments).await
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid().cast_signed()).expect("a child's pid is positive");
        kill_process(pid, signal).expect("the broker can be signalled");
    }

    /// SIGTERM, without waiting.
    pub fn ask_to_end(&self) {
        self.signal(Signal::TERM);
    }

    /// Waits until the process is gone.
    pub async fn exited(&mut self) -> ExitStatus {
        let child = std::cell::RefCell::new(&mut self.running.child);
        eventually_within(EXIT_WITHIN, "the broker's exit", || async {
            child.borrow_mut().try_wait().expect("a child can be waited for").ok_or("still running")
        })
        .await
    }

    /// SIGTERM, and the exit status.
    pub async fn terminate(&mut self) -> ExitStatus {
        self.ask_to_end();
        self.exited().await
    }

    /// SIGKILL.
    pub async fn kill(&mut self) {
        let _ = self.running.child.kill();
        self.exited().await;
    }

    /// Starts the binary again on the same folder (after [`Self::terminate`] or [`Self::kill`]); ports may change.
    pub async fn start_again(&mut self) {
        assert!(matches!(self.running.child.try_wait(), Ok(Some(_))), "the previous process must have ended");
        self.running = Running::start(&self.builder, self.folder.path()).await;
    }
}

impl Drop for TestBroker {
    fn drop(&mut self) {
        let _ = self.running.child.kill();
        let _ = self.running.child.wait();
        for record in std::fs::read_dir(self.folder.path().join(TRAFFIC)).into_iter().flatten().flatten() {
            self.verdict.0.replay(&std::fs::read(record.path()).unwrap_or_default());
        }
        if std::thread::panicking() {
            let mut out = std::io::stderr().lock();
            let _ = writeln!(out, "---- the broker's log ({}) ----\n{}\n----", self.folder.path().display(), log_tail(self.folder.path()));
        }
    }
}

impl std::fmt::Debug for TestBroker {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "TestBroker(pid {}, http {}, admin {})", self.pid(), self.running.http, self.running.admin)
    }
}
