//! A real reverse proxy of one test in front of the broker: nginx or HAProxy, on a free port of
//! 127.0.0.1. It ends with its handle.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::deadline::within;

const LOG: &str = "proxy.log";
const CONFIG: &str = "proxy.conf";
/// Tries of a start if another process took the port.
const START_TRIES: usize = 5;

/// A running proxy. It keeps its connections to the broker open, and uses them for the requests of any client.
#[derive(Debug)]
pub struct FrontProxy {
    folder: TempDir,
    address: SocketAddr,
    child: Child,
}

impl FrontProxy {
    /// Starts nginx for HTTP. `location`: more directives for proxied requests.
    pub async fn nginx(target: SocketAddr, location: &str) -> Self {
        let config = |folder: &Path, address: SocketAddr| {
            let folder = folder.display();
            format!(
                "daemon off; master_process off; pid {folder}/pid; error_log {folder}/{LOG};\n\
                 events {{ worker_connections 128; }}\n\
                 http {{ access_log off; client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;\n\
                 uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;\n\
                 upstream broker {{ server {target}; keepalive 1; }}\n\
                 server {{ listen {address}; location / {{ proxy_pass http://broker; proxy_http_version 1.1;\n\
                 proxy_set_header Connection \"\"; proxy_set_header Host localhost; proxy_buffering off; proxy_request_buffering off; proxy_ignore_client_abort on;\n\
                 {location} }} }} }}\n"
            )
        };
        Self::start("nginx", &["-c"], config).await
    }

    /// Starts HAProxy for HTTP (`mode http`) or bytes (`mode tcp`). `server`: more words for the
    /// line of the server, such as `send-proxy`. `option`: one more line for the defaults.
    pub async fn haproxy(target: SocketAddr, mode: &str, server: &str, option: &str) -> Self {
        let reuse =
            if mode == "http" { "option http-keep-alive\n http-reuse always\n" } else { "" };
        let config = |_: &Path, address: SocketAddr| {
            format!(
                "global\n maxconn 128\n\
                 defaults\n mode {mode}\n timeout connect 5s\n timeout client 30s\n timeout server 30s\n {reuse} {option}\n\
                 frontend clients\n bind {address}\n default_backend broker\n\
                 backend broker\n server broker {target} {server}\n"
            )
        };
        Self::start("haproxy", &["-db", "-f"], config).await
    }

    /// Returns the address that clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn log(&self) -> String {
        log_of(self.folder.path())
    }

    async fn start(
        program: &str,
        arguments: &[&str],
        config: impl Fn(&Path, SocketAddr) -> String,
    ) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("mcp-broker-front-")
            .tempdir()
            .expect("a temporary folder");
        for _ in 0..START_TRIES {
            let listener =
                std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
            let address = listener.local_addr().expect("a bound socket has an address");
            drop(listener);
            std::fs::write(folder.path().join(CONFIG), config(folder.path(), address))
                .expect("the temporary folder is writable");
            let mut child = spawn(program, arguments, folder.path());
            if within(program, listening(&mut child, address)).await {
                return Self { folder, address, child };
            }
        }
        panic!("{program} does not start; its log:\n{}", log_of(folder.path()));
    }
}

impl Drop for FrontProxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn log_of(folder: &Path) -> String {
    std::fs::read_to_string(folder.join(LOG)).unwrap_or_default()
}

/// Returns false if the proxy ended, most likely because another process has the port.
async fn listening(child: &mut Child, address: SocketAddr) -> bool {
    loop {
        if child.try_wait().expect("a child can be looked at").is_some() {
            return false;
        }
        if TcpStream::connect(address).await.is_ok() {
            return true;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

/// Starts the proxy so that it dies with the thread that starts it, however that ends, if
/// util-linux can arrange it.
fn spawn(program: &str, arguments: &[&str], folder: &Path) -> Child {
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(folder.join(LOG))
        .expect("the temporary folder is writable");
    // Packages put servers in folders that are not in every user's path.
    let path = format!("{}:/usr/sbin:/usr/local/sbin", std::env::var("PATH").unwrap_or_default());
    let configure = |command: &mut Command| {
        command
            .args(arguments)
            .arg(folder.join(CONFIG))
            .current_dir(folder)
            .env("PATH", &path)
            .stdin(Stdio::null());
        command
            .stdout(log.try_clone().expect("a file can be opened twice"))
            .stderr(log.try_clone().expect("a file can be opened twice"));
        command.spawn()
    };
    let mut bound_to_us = Command::new("setpriv");
    bound_to_us.args(["--pdeathsig", "KILL", program]);
    let mut plain = Command::new(program);
    configure(&mut bound_to_us)
        .or_else(|_| configure(&mut plain))
        .unwrap_or_else(|error| panic!("{program}: {error}; run: apt-get install {program}"))
}
