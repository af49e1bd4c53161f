//! A real PgBouncer of one test between the broker and PostgreSQL, on a free port of 127.0.0.1. It
//! gives each transaction any of a few connections to the server. It ends with its handle.

use std::{
    fs::File,
    io,
    net::{Ipv4Addr, SocketAddr},
    os::unix::{fs::chown, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::postgres::{PostgresServer, runs_as};
use crate::deadline::eventually;

const LOG: &str = "log";
/// Connections to the server, fewer than one broker has to the pooler.
const SERVER_CONNECTIONS: u32 = 5;

/// A running pooler of transactions.
#[derive(Debug)]
pub struct PgBouncer {
    folder: TempDir,
    address: SocketAddr,
    child: Child,
}

impl PgBouncer {
    /// Starts a pooler in front of a server. `settings`: more lines for its configuration.
    pub async fn start(server: &PostgresServer, settings: &str) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("mcp-broker-pgbouncer-")
            .tempdir()
            .expect("a temporary folder");
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        drop(listener);
        let config = format!(
            "[databases]\n* = host=127.0.0.1 port={} user=postgres\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = transaction\ndefault_pool_size = {SERVER_CONNECTIONS}\nmax_client_conn = 200\n{settings}\n",
            server.port(),
            address.port()
        );
        let file = folder.path().join("pgbouncer.ini");
        std::fs::write(&file, config).expect("the temporary folder is writable");
        if let Some((user, group)) = runs_as() {
            chown(folder.path(), Some(user), Some(group)).expect("the folder is ours");
        }
        let child = launch(folder.path(), &file);
        let mut pooler = Self { folder, address, child };
        pooler.wait_ready().await;
        pooler
    }

    /// Ends the process at once, and starts another one at the same address.
    pub async fn restart(&mut self) {
        self.end();
        self.child = launch(self.folder.path(), &self.folder.path().join("pgbouncer.ini"));
        self.wait_ready().await;
    }

    /// Returns the URL of a database of the server, by way of the pooler.
    pub fn url(&self, database_url: &str) -> String {
        let (_, database) = database_url.rsplit_once('/').expect("a URL with a database");
        format!("postgres://postgres@{}/{database}", self.address)
    }

    async fn wait_ready(&mut self) {
        let (address, folder) = (self.address, self.folder.path());
        let child = parking_lot::Mutex::new(&mut self.child);
        eventually("PgBouncer to be ready", || async {
            let log = || std::fs::read_to_string(folder.join(LOG)).unwrap_or_default();
            if let Ok(Some(status)) = child.lock().try_wait() {
                panic!("PgBouncer ended with {status} while it was starting:\n{}", log());
            }
            speaks_postgres(address).await.map_err(|error| format!("{error}: {}", log()))
        })
        .await;
    }

    fn end(&mut self) {
        let _gone_already = self.child.kill();
        let _status = self.child.wait();
    }
}

/// Asks for TLS, as clients do first. A mere connection could be one to itself: the kernel may choose
/// the port that it connects to as its own.
async fn speaks_postgres(address: SocketAddr) -> io::Result<()> {
    let mut socket = TcpStream::connect(address).await?;
    socket.write_all(&[0, 0, 0, 8, 4, 210, 22, 47]).await?;
    match socket.read_u8().await? {
        b'N' | b'S' => Ok(()),
        other => Err(io::Error::other(format!("the answer is {other}"))),
    }
}

fn launch(folder: &Path, config: &Path) -> Child {
    let log = File::options()
        .create(true)
        .append(true)
        .open(folder.join(LOG))
        .expect("the temporary folder is writable");
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program()).arg("-q").arg(config);
    // PgBouncer does not run as root.
    if let Some((user, group)) = runs_as() {
        command.uid(user).gid(group);
    }
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.spawn().expect("PgBouncer starts")
}

fn program() -> PathBuf {
    let packaged = PathBuf::from("/usr/sbin/pgbouncer");
    assert!(packaged.exists(), "PgBouncer is missing: apt-get install pgbouncer");
    packaged
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        self.end();
    }
}
