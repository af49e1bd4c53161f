//! The measured processes: nginx and brokers in front of one fast backend, each on the processor of
//! proxies.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use benches::load::{CallLoad, CallTarget};
use loadtest::{
    backend::{Backend, BackendOptions},
    era::Era,
    run::Load,
};
use rustix::{
    process::{Pid, Signal, kill_process},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{BrokerBuilder, ClusterBuilder, TestBroker, TestCluster};

/// Processors that a process may use.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cores {
    Proxies,
    Load,
    Both,
}

impl Cores {
    fn numbers(self) -> &'static [usize] {
        match self {
            Self::Proxies => &[0],
            Self::Load => &[1],
            Self::Both => &[0, 1],
        }
    }
}

/// Pins this thread, and everything it starts from now on, to processors. It does nothing on a
/// machine with one processor, and under a test runner, where other tests need capacity.
pub(crate) fn pin_to(cores: Cores) {
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let mut set = CpuSet::new();
    cores.numbers().iter().for_each(|number| set.set(*number));
    let _there_is_one = sched_setaffinity(None, &set);
}

/// Starts a process on the processors of proxies. This thread keeps its own.
async fn on_cores<T>(cores: Cores, start: impl Future<Output = T>) -> T {
    let own = sched_getaffinity(None);
    pin_to(cores);
    let started = start.await;
    if let Ok(own) = own {
        let _as_before = sched_setaffinity(None, &own);
    }
    started
}

/// Proxy that calls are sent through, or none.
#[derive(Debug, Clone)]
pub(crate) struct ProxyPath {
    pub(crate) name: &'static str,
    pub(crate) target: String,
    pub(crate) key: Option<String>,
    pub(crate) pids: Vec<u32>,
}

pub(crate) struct TestBed {
    pub(crate) backend: Backend,
    pub(crate) nginx: Nginx,
    pub(crate) broker: TestBroker,
    pub(crate) key: String,
}

impl TestBed {
    /// Starts nginx and the broker on these processors.
    pub(crate) async fn start(proxies: Cores) -> anyhow::Result<Self> {
        let backend = Backend::http("127.0.0.1:0", &BackendOptions::default()).await?;
        let nginx = Nginx::start(backend.address(), proxies).await?;
        let broker = on_cores(proxies, builder()?.start()).await;
        broker.admin().put_ready_backend("default", "fast", &behind(&backend)).await;
        let key = broker.admin().create_key("default").await;
        Ok(Self { backend, nginx, broker, key })
    }

    pub(crate) fn paths(&self) -> anyhow::Result<[ProxyPath; 3]> {
        let direct = ProxyPath {
            name: "direct",
            target: format!("http://{}/mcp", self.backend.address()),
            key: None,
            pids: Vec::new(),
        };
        let nginx = ProxyPath {
            name: "nginx",
            target: format!("http://{}/mcp", self.nginx.address),
            key: None,
            pids: self.nginx.pids()?,
        };
        Ok([direct, nginx, of_broker("broker", &self.broker, &self.key)])
    }
}

pub(crate) fn of_broker(name: &'static str, broker: &TestBroker, key: &str) -> ProxyPath {
    let target = format!("http://{}/mcp/fast", broker.http_address());
    ProxyPath { name, target, key: Some(key.to_owned()), pids: vec![broker.pid()] }
}

/// Returns a backend's body for the admin API.
pub(crate) fn behind(backend: &Backend) -> Value {
    json!({"transport": {"type": "http", "url": format!("http://{}/mcp", backend.address())}})
}

/// Starts a broker on the processor of proxies.
pub(crate) async fn broker(config: Value) -> anyhow::Result<TestBroker> {
    Ok(start(builder()?.config(config)).await)
}

/// Starts this broker on the processor of proxies.
pub(crate) async fn start(builder: BrokerBuilder) -> TestBroker {
    on_cores(Cores::Proxies, builder.start()).await
}

/// Starts this broker again on the processor of proxies.
pub(crate) async fn restart(broker: &mut TestBroker) {
    on_cores(Cores::Proxies, broker.restart()).await;
}

/// Starts these replicas on the processor of proxies, and their stores too.
pub(crate) async fn start_cluster(builder: ClusterBuilder) -> TestCluster {
    on_cores(Cores::Proxies, builder.start()).await
}

/// Returns the broker of the same build as this bench, with limits that are checked and never
/// reached.
pub(crate) fn builder() -> anyhow::Result<BrokerBuilder> {
    let limits = json!({"limits": {
        "requests_per_second": 1_000_000, "burst": 1_000_000, "connections": 100_000, "connections_per_address": 100_000,
        "connections_per_second_per_address": 0, "sessions_per_tenant": 100_000, "sessions_per_principal": 100_000,
    }});
    let builder = BrokerBuilder::new(benches::broker_binary()?);
    Ok(builder.config(limits).single_process().with_system_roots())
}

/// Returns a closed loop of calls with payloads of this size.
pub(crate) fn load(
    way: &ProxyPath,
    connections: usize,
    bytes: usize,
    time: Duration,
) -> anyhow::Result<Load> {
    let calls =
        CallLoad { connections, in_flight: 1, bytes, per_second: None, era: Era::default() };
    let to = CallTarget {
        target: way.target.clone(),
        keys: way.key.iter().cloned().collect(),
        pids: way.pids.clone(),
    };
    calls.into_load(to, time)
}

/// nginx, as a reverse proxy and with files.
pub(crate) struct Nginx {
    pub(crate) address: SocketAddr,
    child: Child,
    folder: TempDir,
}

impl Nginx {
    /// Starts a worker for each of these processors.
    async fn start(upstream: SocketAddr, cores: Cores) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let path = folder.path().to_str().context("a path")?;
        std::fs::write(
            folder.path().join("nginx.conf"),
            configuration(address, upstream, path, cores.numbers().len()),
        )?;
        let mut command = Command::new("nginx");
        command
            .arg("-p")
            .arg(folder.path())
            .args(["-c", "nginx.conf", "-e", "error.log"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let spawned = on_cores(cores, async { command.spawn() }).await;
        let mut nginx = Self {
            address,
            child: spawned
                .context("nginx is not installed (scripts/install-servers.sh does it)")?,
            folder,
        };
        nginx.ready().await?;
        Ok(nginx)
    }

    async fn ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(self.address).is_err() {
            let log =
                std::fs::read_to_string(self.folder.path().join("error.log")).unwrap_or_default();
            ensure!(
                self.child.try_wait()?.is_none() && Instant::now() < deadline,
                "nginx does not start: {log}"
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Returns the processes that serve requests.
    pub(crate) fn pids(&self) -> anyhow::Result<Vec<u32>> {
        let pid = self.child.id();
        let workers = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
        let workers: Vec<u32> = workers.split_whitespace().flat_map(str::parse).collect();
        Ok(if workers.is_empty() { vec![pid] } else { workers })
    }

    /// Sets the bytes of every answer to a POST of `/list`.
    pub(crate) fn serve_list(&self, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(std::fs::write(self.folder.path().join("list.json"), bytes)?)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGKILL would leave its workers behind.
        let _ended_already = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let _status = self.child.wait();
    }
}

/// Returns the configuration: a process for each worker, no log, connections to the backend kept,
/// bodies in memory.
fn configuration(
    address: SocketAddr,
    upstream: SocketAddr,
    folder: &str,
    workers: usize,
) -> String {
    let master = if workers > 1 { "on" } else { "off" };
    format!(
        "user root; daemon off; master_process {master}; worker_processes {workers}; pid nginx.pid; error_log error.log;
events {{ worker_connections 4096; }}
http {{
    access_log off; default_type application/json;
    keepalive_requests 1000000000; client_body_buffer_size 256k; client_max_body_size 16m;
    client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    open_file_cache max=16; sendfile on; tcp_nopush on;
    upstream backend {{ server {upstream}; keepalive 256; keepalive_requests 1000000000; }}
    server {{
        listen {address}; root {folder};
        location / {{
            proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection \"\";
            proxy_buffers 8 256k; proxy_buffer_size 256k; proxy_busy_buffers_size 512k;
        }}
        location = /list {{ error_page 405 =200 /list.json; try_files /list.json =404; }}
        location = /list.json {{ }}
    }}
}}
"
    )
}
