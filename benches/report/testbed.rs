//! The measured processes: nginx and brokers in front of one fast backend, each on the processor of
//! proxies.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use benches::{
    Scale,
    load::{CallLoad, CallTarget},
};
use loadtest::{
    backend::{Backend, BackendOptions},
    era::Era,
    run::Load,
};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{BrokerBuilder, TestBroker};

/// One of two processors.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Core {
    Proxies = 0,
    Load = 1,
}

/// Pins this thread, and everything it starts from now on, to a processor. It does nothing on a
/// machine with one processor, and under a test runner, where other tests need capacity.
pub(crate) fn pin_to(core: Core) {
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let mut set = CpuSet::new();
    set.set(core as usize);
    let _there_is_one = sched_setaffinity(None, &set);
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
    pub(crate) async fn start(_scale: Scale) -> anyhow::Result<Self> {
        let backend = Backend::http("127.0.0.1:0", &BackendOptions::default()).await?;
        let nginx = Nginx::start(backend.address()).await?;
        let broker = broker(json!({})).await?;
        broker.admin().put_ready_backend("default", "fast", &behind(&backend)).await;
        let key = broker.admin().create_key("default").await;
        Ok(Self { backend, nginx, broker, key })
    }

    pub(crate) fn paths(&self) -> [ProxyPath; 3] {
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
            pids: vec![self.nginx.pid()],
        };
        [direct, nginx, of_broker("broker", &self.broker, &self.key)]
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

/// Starts the broker of the same build as this bench, with limits that are checked and never
/// reached.
pub(crate) async fn broker(config: Value) -> anyhow::Result<TestBroker> {
    let limits = json!({"limits": {
        "requests_per_second": 1_000_000, "burst": 1_000_000, "connections": 100_000, "connections_per_address": 100_000,
        "connections_per_second_per_address": 0, "sessions_per_tenant": 100_000, "sessions_per_principal": 100_000,
    }});
    pin_to(Core::Proxies);
    let broker = BrokerBuilder::new(benches::broker_binary()?)
        .config(limits)
        .config(config)
        .single_process();
    let broker = broker.with_system_roots().start().await;
    pin_to(Core::Load);
    Ok(broker)
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
    async fn start(upstream: SocketAddr) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        std::fs::write(
            folder.path().join("nginx.conf"),
            configuration(address, upstream, folder.path().to_str().context("a path")?),
        )?;
        pin_to(Core::Proxies);
        let mut command = Command::new("nginx");
        command
            .arg("-p")
            .arg(folder.path())
            .args(["-c", "nginx.conf", "-e", "error.log"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let spawned = command.spawn();
        pin_to(Core::Load);
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

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sets the bytes of every answer to a POST of `/list`.
    pub(crate) fn serve_list(&self, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(std::fs::write(self.folder.path().join("list.json"), bytes)?)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _status = self.child.wait();
    }
}

/// Returns the configuration: one process, no log, connections to the backend kept, bodies in
/// memory.
fn configuration(address: SocketAddr, upstream: SocketAddr, folder: &str) -> String {
    format!(
        "daemon off; master_process off; pid nginx.pid; error_log error.log;
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
