//! The real binary as a child process: its own folder, free ports, a restart on the same data.
//!
//! A [`BrokerBuilder`] writes a configuration file (JSON is YAML), starts the binary and waits for
//! its `ready` line. Then it registers tenants and backends through the admin API. Dropping a
//! [`TestBroker`] kills the process; a failing test prints the end of its log. By then everything
//! that the broker sent to the clients made here and to stdio backends has been judged (see
//! [`crate::judge`]).
//!
//! The variable `MCP_BROKER_TEST_ON` lets every test that does not choose its storage run on
//! another store than SQLite, see [`crate::topology`]. On a cluster a `TestBroker` is two replicas.
//! Its clients connect through a balancer without memory, and its operator uses the first replica.
//! A start or an end concerns both.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
};

use futures_util::{StreamExt as _, stream};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    admin::AdminClient,
    balancer::Balancer,
    client::TestClient,
    cluster::{ClusterBuilder, SECRET, replica_config},
    deadline::logged,
    duplex::{DuplexBuilder, DuplexClient},
    judge::{Judge, JudgeGuard},
    replica::{EXIT_WITHIN, LaunchSpec, Replica},
    servers::{PostgresServer, RedisServer},
    topology::{self, Topology},
};

/// Number of replicas that form one broker on [`Topology::Cluster`].
const REPLICAS_OF_ONE: usize = 2;
/// Variable with the file of authorities that a process trusts.
const TRUSTED_FILE: &str = "SSL_CERT_FILE";
/// Variable with the folders of authorities that a process trusts.
const TRUSTED_FOLDERS: &str = "SSL_CERT_DIR";

/// Settings of the broker to start.
#[derive(Debug, Clone)]
pub struct BrokerBuilder {
    binary: PathBuf,
    config: Value,
    backends: Vec<(String, String, Value)>,
    tenants: Vec<String>,
    admin_token: Option<String>,
    env: Vec<(String, String)>,
    ground: Option<Topology>,
    alone: bool,
    user: Option<u32>,
}

impl BrokerBuilder {
    /// `binary`: the path that cargo gives tests of the broker crate as `CARGO_BIN_EXE_mcp-broker`.
    /// The variable `MCP_BROKER_BIN` overrides it.
    pub fn new(binary: impl Into<PathBuf>) -> Self {
        let binary =
            std::env::var_os("MCP_BROKER_BIN").map_or_else(|| binary.into(), PathBuf::from);
        let config = json!({
            "listen": {"http": "127.0.0.1:0", "admin": "127.0.0.1:0"},
            "egress": {"allow": ["127.0.0.0/8"]},
            // A probe is one more connection to each backend. Tests of probes turn them on.
            "compat": {"capability_probe": false},
        });
        // The broker trusts only authorities that a test names: reading all that the system trusts
        // takes longer than the rest of a start. A machine may name a file, a folder, or both.
        let env = [(TRUSTED_FILE, "/dev/null"), (TRUSTED_FOLDERS, "")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .to_vec();
        Self {
            binary,
            config,
            backends: Vec::new(),
            tenants: Vec::new(),
            admin_token: None,
            env,
            ground: None,
            alone: false,
            user: None,
        }
    }

    /// Starts the broker through this program, which then becomes the broker.
    pub fn program(mut self, program: impl Into<PathBuf>) -> Self {
        self.binary = program.into();
        self
    }

    /// Merges a fragment into the configuration, member by member.
    pub fn config(mut self, fragment: Value) -> Self {
        merge(&mut self.config, fragment);
        self
    }

    /// Registers a backend through the admin API once the broker is ready; `start` waits until the
    /// backend is ready too.
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

    /// Trusts the authorities of the system, as outside of tests, so that a start costs as much as
    /// there.
    pub fn with_system_roots(mut self) -> Self {
        self.env.retain(|(name, _)| name != TRUSTED_FILE && name != TRUSTED_FOLDERS);
        self
    }

    /// Runs the broker as this user, who is not root. Only tests that run as root can use it.
    pub fn as_user(mut self, user: u32) -> Self {
        self.user = Some(user);
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Chooses the topology, whatever the environment sets.
    pub fn on(mut self, topology: Topology) -> Self {
        self.ground = Some(topology);
        self
    }

    /// Runs one process without a balancer, on the stores of the topology. For tests of state that
    /// each process has for itself, such as limits, links, signals and files.
    pub fn single_process(mut self) -> Self {
        self.alone = true;
        self
    }

    /// Puts the broker on a new database of this server.
    pub async fn on_postgres(self, server: &PostgresServer) -> Self {
        let url = server.database().await;
        self.config(json!({"storage": {"url": url}, "node": {"secret": SECRET}}))
    }

    pub fn with_redis(self, server: &RedisServer) -> Self {
        self.config(json!({"storage": {"redis_url": server.url()}}))
    }

    /// Returns a builder of several replicas of this broker.
    pub fn cluster(self, replicas: usize) -> ClusterBuilder {
        ClusterBuilder::new(self, replicas)
    }

    /// Starts the broker and registers everything; panics if anything fails.
    pub async fn start(self) -> TestBroker {
        let topology = if self.config["storage"]["url"].is_null() {
            self.ground.unwrap_or_else(topology::topology_from_env)
        } else {
            Topology::Sqlite
        };
        let topology = if self.alone { topology.single_process() } else { topology };
        let mut stores = json!({});
        let mut redis = None;
        if matches!(topology, Topology::Postgres | Topology::Cluster) {
            let own = RedisServer::start().await;
            let url = topology::shared_postgres().await.database().await;
            stores = json!({"storage": {"url": url, "redis_url": own.url()}, "node": {"secret": SECRET}});
            redis = Some(own);
        }
        let count = if topology == Topology::Cluster { REPLICAS_OF_ONE } else { 1 };
        let mut replicas = Vec::new();
        for number in 1..=count {
            let mut config = if count > 1 { replica_config(number) } else { json!({}) };
            for fragment in [&stores, &self.config] {
                merge(&mut config, fragment.clone());
            }
            replicas.push(Replica::start(&self.launch(), &config, &[]).await);
        }
        let balancer = match topology {
            Topology::Sqlite | Topology::Postgres => None,
            Topology::Balancer | Topology::Cluster => {
                Some(Balancer::start(replicas.iter().map(Replica::http_address).collect()).await)
            }
        };
        let broker = TestBroker {
            builder: self,
            replicas,
            balancer,
            verdict: JudgeGuard(Judge::default()),
            _redis: redis,
        };
        broker.builder.register(&broker.admin()).await;
        broker
    }

    pub(crate) fn launch(&self) -> LaunchSpec {
        LaunchSpec { binary: self.binary.clone(), env: self.env.clone(), user: self.user }
    }

    pub(crate) fn configuration(&self) -> &Value {
        &self.config
    }

    /// Returns tenant, name and body of each backend.
    pub(crate) fn backends(&self) -> &[(String, String, Value)] {
        &self.backends
    }

    pub(crate) fn admin_of(&self, replicas: &[&Replica]) -> AdminClient {
        let others =
            replicas[1..].iter().map(|replica| (replica.admin_address(), replica.http_address()));
        AdminClient::new(replicas[0].admin_address(), self.admin_token.as_deref())
            .with_replicas(others.collect())
    }

    /// Registers the tenants, then the backends.
    pub(crate) async fn register(&self, admin: &AdminClient) {
        // Several run at a time: each waits until its change is known everywhere.
        stream::iter(&self.tenants)
            .for_each_concurrent(8, |tenant| admin.put_tenant(tenant, json!({})))
            .await;
        let ready = |(tenant, name, spec): &(String, String, Value)| {
            let (tenant, name, spec) = (tenant.clone(), name.clone(), spec.clone());
            async move {
                admin.put_ready_backend(&tenant, &name, &spec).await;
            }
        };
        stream::iter(&self.backends).for_each_concurrent(8, ready).await;
    }

    /// Runs the binary with these arguments to its end, for refused starts and for the command
    /// line.
    pub async fn run(&self, folder: &Path, arguments: &[&str]) -> CommandOutput {
        let mut command = Command::new(&self.binary);
        command
            .args(arguments)
            .current_dir(folder)
            .env_remove("MCP_BROKER_ADMIN_URL")
            .env_remove("MCP_BROKER_ADMIN_TOKEN");
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null());
        let output = tokio::task::spawn_blocking(move || command.output());
        let output =
            tokio::time::timeout(EXIT_WITHIN, output).await.expect("the command ends in time");
        let output = output
            .expect("the waiting thread does not panic")
            .unwrap_or_else(|error| panic!("{}: {error}", self.binary.display()));
        CommandOutput {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Exit status and output of a command.
#[derive(Debug, Clone)]
pub struct CommandOutput {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

pub(crate) fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

/// A running broker.
pub struct TestBroker {
    builder: BrokerBuilder,
    replicas: Vec<Replica>,
    balancer: Option<Balancer>,
    verdict: JudgeGuard,
    _redis: Option<RedisServer>,
}

impl TestBroker {
    fn first(&self) -> &Replica {
        &self.replicas[0]
    }

    /// Returns the address of the (first) process itself, for requests that must not pass a
    /// balancer.
    pub fn http_address(&self) -> SocketAddr {
        self.first().http_address()
    }

    /// Returns the TCP address of the (first) process.
    pub fn tcp_address(&self) -> SocketAddr {
        self.first().tcp_address().expect("the test configured listen.tcp")
    }

    /// Returns the QUIC address of the (first) process.
    pub fn quic_address(&self) -> SocketAddr {
        self.first().quic_address().expect("the test configured listen.quic")
    }

    /// Returns a client of the TCP listener, to be connected.
    pub fn duplex(&self) -> DuplexBuilder {
        DuplexClient::builder().judged_by(&self.verdict.0)
    }

    pub fn admin_address(&self) -> SocketAddr {
        self.first().admin_address()
    }

    /// Returns the admin address of every process.
    pub fn admin_addresses(&self) -> Vec<SocketAddr> {
        self.replicas.iter().map(Replica::admin_address).collect()
    }

    /// Returns the address that clients connect to.
    fn front(&self) -> SocketAddr {
        self.balancer.as_ref().map_or_else(|| self.http_address(), Balancer::address)
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.front())
    }

    pub fn admin(&self) -> AdminClient {
        self.builder.admin_of(&self.replicas.iter().collect::<Vec<_>>())
    }

    /// Returns a client of a data-plane path, without a session yet.
    pub fn client(&self, path: &str) -> TestClient {
        TestClient::new(self.front(), path).judged_by(&self.verdict.0)
    }

    /// Returns a client of the aggregated endpoint with a session of the newest version.
    pub async fn connected(&self, capabilities: Value) -> TestClient {
        self.client("/mcp").connected(capabilities).await
    }

    pub fn folder(&self) -> &Path {
        self.first().folder()
    }

    /// Returns the files with the traffic of stdio backends, one for each of their processes.
    pub fn traffic(&self) -> Vec<PathBuf> {
        self.replicas.iter().flat_map(Replica::traffic).collect()
    }

    pub fn pid(&self) -> u32 {
        self.first().pid()
    }

    /// Returns everything logged so far.
    pub fn log(&self) -> String {
        self.replicas.iter().map(Replica::log).collect()
    }

    /// Waits until this text was logged.
    pub async fn wait_for_log(&self, text: &str) {
        logged(text, || self.log()).await;
    }

    /// Runs the command line tool against this broker's admin API.
    pub async fn cli(&self, arguments: &[&str]) -> CommandOutput {
        let mut builder = self
            .builder
            .clone()
            .env("MCP_BROKER_ADMIN_URL", &format!("http://{}", self.admin_address()));
        if let Some(token) = &self.builder.admin_token {
            builder = builder.env("MCP_BROKER_ADMIN_TOKEN", token);
        }
        // `run` clears the two variables first, so that the caller's environment cannot leak in.
        builder.run(self.folder(), arguments).await
    }

    pub fn signal(&self, signal: Signal) {
        self.replicas.iter().for_each(|replica| replica.signal(signal));
    }

    /// Sends SIGTERM, without waiting.
    pub fn request_shutdown(&self) {
        self.signal(Signal::TERM);
    }

    /// Waits until the process is gone.
    pub async fn wait_for_exit(&mut self) -> ExitStatus {
        for replica in &mut self.replicas[1..] {
            replica.wait_for_exit().await;
        }
        self.replicas[0].wait_for_exit().await
    }

    /// Sends SIGTERM; returns the exit status.
    pub async fn terminate(&mut self) -> ExitStatus {
        self.request_shutdown();
        self.wait_for_exit().await
    }

    /// Kills the process with SIGKILL.
    pub async fn kill(&mut self) {
        for replica in &mut self.replicas {
            replica.kill().await;
        }
    }

    /// Starts the binary of a single process again with these variables for this life only. `Err`:
    /// its output, if it ended before it was ready.
    pub async fn try_restart(&mut self, env: &[(String, String)]) -> Result<(), String> {
        let [replica] = self.replicas.as_mut_slice() else { panic!("there is one process") };
        replica.try_restart(env).await
    }

    /// Starts the binary again on the same folder (after [`Self::terminate`] or [`Self::kill`]); ports may change.
    pub async fn restart(&mut self) {
        for replica in &mut self.replicas {
            replica.restart().await;
        }
        if let Some(balancer) = &self.balancer {
            balancer.set_replicas(self.replicas.iter().map(Replica::http_address).collect());
        }
    }
}

impl Drop for TestBroker {
    fn drop(&mut self) {
        for replica in &mut self.replicas {
            replica.finish();
            replica.replay_traffic(&self.verdict.0);
        }
    }
}

impl std::fmt::Debug for TestBroker {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "TestBroker(pid {}, http {}, admin {})",
            self.pid(),
            self.http_address(),
            self.admin_address()
        )
    }
}
