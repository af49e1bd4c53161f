//! A real PostgreSQL server for one test, on a free port of 127.0.0.1: a proxy may stand in front
//! of it. It starts from a copy of an initialised folder, and ends with the test, however that
//! ends.
//!
//! PostgreSQL refuses to run as root; then its processes run as the user `postgres`. A small shell
//! process holds the end of a pipe whose other end is the test's. When the pipe closes, it kills
//! the rest of the server and removes its folder, so that a killed test leaves nothing behind.

use std::{
    fs::{self, File},
    io,
    net::TcpListener,
    os::unix::{
        fs::{PermissionsExt, chown},
        process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{LazyLock, atomic::AtomicU32},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tokio::sync::OnceCell;

use crate::{authority::CertificateFiles, deadline::eventually_within};

mod databases;
mod standby;

/// Longest time for the server to start, recovery after a crash included, and to stop.
const CHANGES_WITHIN: Duration = Duration::from_secs(30);
/// Ports below those that connections get, so that the port stays free while the server is down.
const PORTS: std::ops::Range<u16> = 20_000..30_000;
/// Part of the template's name: changes with the arguments of `initdb`.
const TEMPLATE_FORMAT: u32 = 1;
const LOG_LINES_SHOWN: usize = 40;

/// Script that ends the server of the folder `$1` when the test's end of the pipe closes. It kills
/// the postmaster first, so that no child is restarted, then its children, which the kernel may
/// hold stopped. A segment of shared memory marks the folder as used. The system has a few thousand
/// of them, and they outlive killed processes.
const KEEPER: &str = r#"
read -r _
main=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null)
segment=$(sed -n '7s/^ *[0-9]* *//p' "$1/data/postmaster.pid" 2>/dev/null)
if [ -n "$main" ]; then
  children=$(cat "/proc/$main/task/$main/children" 2>/dev/null || pgrep -P "$main")
  kill -KILL $main $children 2>/dev/null
fi
[ -z "$segment" ] || ipcrm -m "$segment" 2>/dev/null
rm -rf "$1"
"#;

/// Folder of the programs, and the user who runs them.
struct Installation {
    programs: PathBuf,
    /// Version, such as `15.14`.
    version: String,
    /// User and group of the server's processes, if they cannot be ours.
    runs_as: Option<(u32, u32)>,
}

static INSTALLATION: LazyLock<Installation> = LazyLock::new(Installation::find);

impl Installation {
    fn find() -> Self {
        let major = |folder: &PathBuf| folder.parent()?.file_name()?.to_str()?.parse::<f32>().ok();
        let packaged = fs::read_dir("/usr/lib/postgresql")
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path().join("bin"));
        let mut packaged: Vec<PathBuf> =
            packaged.filter(|folder| folder.join("initdb").exists()).collect();
        packaged.sort_by(|one, other| {
            major(other).partial_cmp(&major(one)).unwrap_or(std::cmp::Ordering::Equal)
        });
        let path = std::env::var_os("PATH").unwrap_or_default();
        let programs = packaged
            .into_iter()
            .chain(std::env::split_paths(&path))
            .find(|folder| folder.join("initdb").exists());
        let programs =
            programs.expect("these tests need a PostgreSQL server: apt-get install postgresql");
        let version = Command::new(programs.join("postgres"))
            .arg("--version")
            .output()
            .expect("postgres tells its version");
        let version = String::from_utf8_lossy(&version.stdout)
            .split_whitespace()
            .nth(2)
            .unwrap_or("unknown")
            .to_owned();
        let runs_as = rustix::process::geteuid().is_root().then(|| user("postgres"));
        Self { programs, version, runs_as }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        if let Some((user, group)) = self.runs_as {
            command.uid(user).gid(group);
        }
        for name in ["PGDATA", "PGHOST", "PGPORT", "PGUSER", "PGDATABASE", "PGOPTIONS"] {
            command.env_remove(name);
        }
        command.current_dir("/").env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
        command
    }

    fn own(&self, path: &Path) -> io::Result<()> {
        self.runs_as.map_or(Ok(()), |(user, group)| chown(path, Some(user), Some(group)))
    }

    /// Returns the folder that every server starts as a copy of. The first server makes it.
    fn template(&self) -> io::Result<PathBuf> {
        let home = || {
            PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/tmp".into()))
                .join(".cache/mcp-broker")
        };
        let cache = std::env::var_os("MCP_BROKER_CACHE").map_or_else(home, PathBuf::from);
        fs::create_dir_all(&cache)?;
        let ready = cache.join(format!("postgres-template-{}-{TEMPLATE_FORMAT}", self.version));
        if ready.exists() {
            return Ok(ready);
        }
        let lock = File::create(cache.join("postgres-template.lock"))?;
        lock.lock()?;
        if !ready.exists() {
            let work = tempfile::Builder::new().prefix("mcp-broker-initdb-").tempdir()?;
            self.own(work.path())?;
            // Not byte order: a server that sorts as people do reveals queries that need byte
            // order.
            let people = ["--locale-provider=icu", "--icu-locale=en-US"];
            if !self.initdb(&work.path().join("data"), &people)?
                && !self.initdb(&work.path().join("data"), &[])?
            {
                return Err(io::Error::other("initdb failed"));
            }
            let unfinished =
                cache.join(format!("postgres-template-unfinished-{}", std::process::id()));
            copy_folder(&work.path().join("data"), &unfinished, &|_| Ok(()))?;
            fs::rename(&unfinished, &ready)?;
        }
        Ok(ready)
    }

    fn initdb(&self, data: &Path, locale: &[&str]) -> io::Result<bool> {
        let mut command = self.command("initdb");
        command
            .args(["-A", "trust", "-N", "-U", "postgres", "-E", "UTF8", "--wal-segsize=1"])
            .args(locale)
            .arg("-D")
            .arg(data);
        Ok(command.stdout(Stdio::null()).stderr(Stdio::null()).status()?.success())
    }
}

/// Returns a folder for a server, and the process that removes it when the test is gone.
fn kept_folder(parent: &Path) -> (PathBuf, Child) {
    let folder = tempfile::Builder::new()
        .prefix("mcp-broker-postgres-")
        .tempdir_in(parent)
        .expect("a temporary folder")
        .keep();
    let keeper = Command::new("sh")
        .args(["-c", KEEPER, "keeper"])
        .arg(&folder)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0) // it has work to do when the test's group was killed
        .spawn()
        .expect("a shell");
    INSTALLATION.own(&folder).expect("the folder is ours");
    (folder, keeper)
}

/// Returns the user and group of processes that refuse to run as root, if they cannot be ours.
pub(super) fn runs_as() -> Option<(u32, u32)> {
    INSTALLATION.runs_as
}

fn user(name: &str) -> (u32, u32) {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let of_line = |line: &str| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.first() == Some(&name))
            .then(|| Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?)))?
    };
    users.lines().find_map(of_line).expect("PostgreSQL does not run as root, and the user postgres does not exist: apt-get install postgresql")
}

fn copy_folder(from: &Path, to: &Path, each: &dyn Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    fs::create_dir(to)?;
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    each(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            copy_folder(&source, &target, each)?;
        } else {
            fs::copy(&source, &target)?;
            each(&target)?;
        }
    }
    Ok(())
}

/// A server and its data.
#[derive(Debug)]
pub struct PostgresServer {
    folder: PathBuf,
    port: u16,
    settings: Vec<(String, String)>,
    running: Option<Child>,
    keeper: Child,
    databases: AtomicU32,
    /// Database that others are copies of.
    original: OnceCell<String>,
}

impl PostgresServer {
    /// Starts a server that keeps acknowledged writes, whatever happens to its processes.
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts a server that does not wait for the disk, for tests of something else.
    pub async fn fast() -> Self {
        Self::fast_with(&[]).await
    }

    /// Starts a server that does not wait for the disk, with these settings in addition.
    pub async fn fast_with(settings: &[(&str, &str)]) -> Self {
        let memory = PathBuf::from("/dev/shm");
        let folder = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let fast = [("fsync", "off"), ("full_page_writes", "off")];
        Self::start_in(&folder, &[&fast, settings].concat(), &[]).await
    }

    /// Starts a server that also supports TLS, with this certificate.
    pub async fn with_tls(identity: &CertificateFiles) -> Self {
        let settings = [
            ("fsync", "off"),
            ("ssl", "on"),
            ("ssl_cert_file", "server.crt"),
            ("ssl_key_file", "server.key"),
        ];
        let files =
            [(identity.cert.as_path(), "server.crt"), (identity.key.as_path(), "server.key")];
        Self::start_in(&std::env::temp_dir(), &settings, &files).await
    }

    /// Starts a server with these settings in addition.
    pub async fn start_with(settings: &[(&str, &str)]) -> Self {
        Self::start_in(&std::env::temp_dir(), settings, &[]).await
    }

    /// Starts a server below `parent`. `files` are copied into its folder, under these names.
    async fn start_in(parent: &Path, settings: &[(&str, &str)], files: &[(&Path, &str)]) -> Self {
        let installation = &*INSTALLATION;
        let (folder, keeper) = kept_folder(parent);
        let template = installation.template().expect("a template of a cluster");
        copy_folder(&template, &folder.join("data"), &|path| installation.own(path))
            .expect("a copy of the template");
        for (from, name) in files {
            let to = folder.join("data").join(name);
            fs::copy(from, &to).expect("a copy of the file");
            // The server takes no key that others can read.
            fs::set_permissions(&to, fs::Permissions::from_mode(0o600)).expect("the file is ours");
            installation.own(&to).expect("the file is ours");
        }
        let settings = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let mut server = Self {
            folder,
            port: free_port(),
            settings,
            running: None,
            keeper,
            databases: AtomicU32::new(0),
            original: OnceCell::new(),
        };
        server.start_again().await;
        server
    }

    /// Starts a server that was stopped or killed, on the port it had.
    pub async fn start_again(&mut self) {
        assert!(self.running.is_none(), "the server runs already");
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.folder.join("log"))
            .expect("a log file");
        let mut command = INSTALLATION.command("postgres");
        command.arg("-D").arg(self.folder.join("data"));
        let socket = self.folder.display().to_string();
        let port = self.port.to_string();
        let own = [
            ("listen_addresses", "127.0.0.1"),
            ("port", &port),
            ("unix_socket_directories", &socket),
            ("max_connections", "100"),
            ("shared_buffers", "16MB"),
            ("max_wal_size", "256MB"),
            // Shared memory is in files of its own folder: in /dev/shm it would stay after a kill.
            ("dynamic_shared_memory_type", "mmap"),
        ];
        let settings = self.settings.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in own.into_iter().chain(settings) {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        command.stdout(log.try_clone().expect("a log file")).stderr(log).process_group(0);
        self.running = Some(command.spawn().expect("postgres starts"));
        eventually_within(CHANGES_WITHIN, "PostgreSQL to be ready", || {
            std::future::ready(self.is_ready())
        })
        .await;
    }

    /// Reads from the server's pid file whether it is ready.
    fn is_ready(&mut self) -> Result<(), String> {
        let running = self.running.as_mut().expect("it was started");
        if let Ok(Some(status)) = running.try_wait() {
            panic!("PostgreSQL ended with {status} while it was starting:\n{}", self.log_tail());
        }
        let own = running.id().to_string();
        let pid_file =
            fs::read_to_string(self.folder.join("data/postmaster.pid")).unwrap_or_default();
        let lines: Vec<&str> = pid_file.lines().map(str::trim).collect();
        if lines.first() == Some(&own.as_str()) && lines.get(7) == Some(&"ready") {
            Ok(())
        } else {
            Err(self.log_tail())
        }
    }

    pub fn log_tail(&self) -> String {
        let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the URL of the database that every server has.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    fn url_of(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// Runs statements in another session than the broker's; returns the rows as text, columns
    /// parted by `|`.
    pub async fn sql(&self, url: &str, statements: &str) -> String {
        let mut command = INSTALLATION.command("psql");
        command.args([
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-d",
            url,
            "-c",
            statements,
        ]);
        let output = tokio::process::Command::from(command)
            .kill_on_drop(true)
            .output()
            .await
            .expect("psql runs");
        assert!(
            output.status.success(),
            "{statements}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    /// Returns what `pg_dump` writes about a database, as text.
    pub async fn dump(&self, url: &str) -> Vec<u8> {
        let mut command = INSTALLATION.command("pg_dump");
        command.args(["--inserts", "-d", url]);
        let output = tokio::process::Command::from(command)
            .kill_on_drop(true)
            .output()
            .await
            .expect("pg_dump runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// Ends connections, keeps all data, and is down when this returns.
    pub async fn stop_fast(&mut self) {
        self.stop(Signal::INT).await;
    }

    /// Ends without a checkpoint (`pg_ctl stop -m immediate`): the next start recovers.
    pub async fn stop_immediate(&mut self) {
        self.stop(Signal::QUIT).await;
    }

    /// Kills all its processes.
    pub async fn kill(&mut self) {
        self.stop(Signal::KILL).await;
    }

    async fn stop(&mut self, signal: Signal) {
        let Some(mut running) = self.running.take() else { return };
        let processes = self.processes(&running);
        if signal == Signal::KILL {
            each(&processes, signal);
        } else {
            each(&processes[..1], signal);
        }
        // The children too: while one is alive, the next server finds its shared memory in use.
        eventually_within(CHANGES_WITHIN, "PostgreSQL to end", || {
            let ended = matches!(running.try_wait(), Ok(Some(_)));
            let alive =
                processes[1..].iter().filter(|pid| test_kill_process(**pid).is_ok()).count();
            std::future::ready(if ended && alive == 0 { Ok(()) } else { Err(alive) })
        })
        .await;
    }

    /// Stops all its processes with SIGSTOP: connections stay, and no request is answered.
    pub fn freeze(&self) {
        each(&self.processes_now(), Signal::STOP);
    }

    /// Continues frozen processes.
    pub fn thaw(&self) {
        each(&self.processes_now(), Signal::CONT);
    }

    fn processes_now(&self) -> Vec<Pid> {
        self.processes(self.running.as_ref().expect("the server runs"))
    }

    /// Returns the postmaster, then its children.
    fn processes(&self, postmaster: &Child) -> Vec<Pid> {
        let parent = postmaster.id();
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let children = pids.filter(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // The name before the parenthesis may hold spaces; state and parent follow it.
            stat.rsplit(')').next().and_then(|fields| fields.split_whitespace().nth(1))
                == Some(parent.to_string().as_str())
        });
        std::iter::once(parent)
            .chain(children)
            .filter_map(|pid| Pid::from_raw(pid.try_into().ok()?))
            .collect()
    }
}

fn each(processes: &[Pid], signal: Signal) {
    for process in processes {
        let _gone_already = kill_process(*process, signal);
    }
}

fn free_port() -> u16 {
    let mut tries = std::iter::repeat_with(|| rand::random_range(PORTS)).take(1_000);
    tries.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a free port")
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        if let Some(mut running) = self.running.take() {
            each(&self.processes(&running), Signal::KILL);
            let _status = running.wait();
        }
        drop(self.keeper.stdin.take());
        let _status = self.keeper.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_server_keeps_data_through_a_crash_and_is_silent_while_frozen() {
        let mut server = PostgresServer::start().await;
        let url = server.database().await;
        server.sql(&url, "CREATE TABLE kept AS SELECT 1 AS one").await;
        server.kill().await;
        server.start_again().await;
        assert_eq!(server.sql(&url, "SELECT one FROM kept").await, "1");
        server.stop_immediate().await;
        server.start_again().await;
        server.freeze();
        let answer = tokio::time::timeout(
            Duration::from_millis(300),
            server.sql(&url, "SELECT one FROM kept"),
        )
        .await;
        assert!(answer.is_err(), "{answer:?}");
        server.thaw();
        assert_eq!(server.sql(&url, "SELECT one FROM kept").await, "1");
        server.stop_fast().await;
        server.start_again().await;
        let folder = server.folder.clone();
        drop(server);
        assert!(!folder.exists());
    }
}
