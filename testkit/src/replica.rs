//! One process of the real binary with its folder: started, stopped, killed, frozen, and started
//! again on the same data.
//!
//! [`crate::TestBroker`] has one of them, [`crate::TestCluster`] several. Dropping it kills the
//! process.

use std::{
    fs::Permissions,
    io::{BufRead, BufReader, Write},
    net::SocketAddr,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc as blocking,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    deadline::{eventually_within, logged},
    judge::Judge,
    programs::executable_by_all,
};

/// Longest time until a debug binary reports that it is ready.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// Longest time until a process ends after SIGTERM.
pub(crate) const EXIT_WITHIN: Duration = Duration::from_secs(30);
const FOLDER_PREFIX: &str = "mcp-broker-test-";
/// Folder in which stdio backends note their traffic. It is in the broker's folder, or in the home
/// of the backend.
const TRAFFIC: &str = "traffic";
/// Lines of the log that a failing test shows.
const LOG_LINES_SHOWN: usize = 80;

/// Settings that are the same for every life of the process.
#[derive(Debug, Clone)]
pub(crate) struct LaunchSpec {
    pub(crate) binary: PathBuf,
    pub(crate) env: Vec<(String, String)>,
    /// User other than that of the test, which is root then.
    pub(crate) user: Option<u32>,
}

/// A broker process, or its folder until it is started again.
#[derive(Debug)]
pub struct Replica {
    folder: TempDir,
    launch: LaunchSpec,
    running: ReplicaProcess,
}

/// One life of the process.
#[derive(Debug)]
struct ReplicaProcess {
    child: Child,
    addresses: Addresses,
}

/// The addresses of the `ready` line.
#[derive(Debug, Clone, Copy)]
struct Addresses {
    http: SocketAddr,
    admin: SocketAddr,
    tcp: Option<SocketAddr>,
    quic: Option<SocketAddr>,
    internal: Option<SocketAddr>,
}

impl Replica {
    /// Starts with this configuration, or fails the test. If `env` ends the first life early, the
    /// next one starts without it. If the configuration names no storage, it is SQLite.
    pub(crate) async fn start(
        launch: &LaunchSpec,
        config: &Value,
        env: &[(String, String)],
    ) -> Self {
        // Children with users of their own pass through to their homes.
        let passable = Permissions::from_mode(0o711);
        let folder = tempfile::Builder::new()
            .prefix(FOLDER_PREFIX)
            .permissions(passable)
            .tempdir()
            .expect("a temporary folder");
        let mut config = config.clone();
        if config["storage"]["url"].is_null() {
            config["storage"]["url"] =
                json!(format!("sqlite:{}", folder.path().join("broker.db").display()));
        }
        if config["storage"]["url"].as_str().is_none_or(|url| !url.starts_with("sqlite:"))
            && config["stdio"]["homes"].is_null()
        {
            config["stdio"]["homes"] = json!(folder.path().join("homes"));
        }
        let (traffic, file) = (folder.path().join(TRAFFIC), folder.path().join("config.yaml"));
        std::fs::create_dir(&traffic).expect("the temporary folder is writable");
        std::fs::write(&file, config.to_string()).expect("the temporary folder is writable");
        std::fs::set_permissions(&file, Permissions::from_mode(0o600))
            .expect("the test owns what it made");
        for path in [folder.path(), &traffic, &file] {
            chown(path, launch.user, launch.user)
                .expect("the test needs root to start a broker as another user");
        }
        let mut running = ReplicaProcess::start(launch, env, folder.path()).await;
        if running.is_err() && !env.is_empty() {
            running = ReplicaProcess::start(launch, &[], folder.path()).await;
        }
        let running = running.unwrap_or_else(|died| panic!("{died}"));
        Self { folder, launch: launch.clone(), running }
    }

    pub fn http_address(&self) -> SocketAddr {
        self.running.addresses.http
    }

    pub fn admin_address(&self) -> SocketAddr {
        self.running.addresses.admin
    }

    /// Returns the address for clients over TCP.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.running.addresses.tcp
    }

    /// Returns the address for clients over QUIC.
    pub fn quic_address(&self) -> Option<SocketAddr> {
        self.running.addresses.quic
    }

    /// Returns the address for other replicas.
    pub fn internal_address(&self) -> Option<SocketAddr> {
        self.running.addresses.internal
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn pid(&self) -> u32 {
        self.running.child.id()
    }

    /// Returns everything logged so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(
            &std::fs::read(self.folder.path().join("stderr.log")).unwrap_or_default(),
        )
        .into_owned()
    }

    /// Waits until this text was logged.
    pub async fn wait_for_log(&self, text: &str) {
        logged(text, || self.log()).await;
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid().cast_signed()).expect("a child's pid is positive");
        kill_process(pid, signal).expect("the broker can be signalled");
    }

    /// Stops the process with SIGSTOP, and returns once no thread of it runs.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.pid());
        let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = task.and_then(|task| std::fs::read_to_string(task.path().join("stat")));
            // The state follows the name, which is in parentheses (proc(5)).
            stat.is_ok_and(|stat| {
                stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
            })
        };
        let until = std::time::Instant::now() + EXIT_WITHIN;
        while !std::fs::read_dir(&tasks).expect("the process runs").all(is_stopped) {
            assert!(std::time::Instant::now() < until, "the process does not stop");
            std::thread::yield_now();
        }
    }

    /// Returns its exit status, if it has ended.
    pub fn try_exit_status(&mut self) -> Option<ExitStatus> {
        self.running.child.try_wait().expect("a child can be waited for")
    }

    /// Waits until the process is gone.
    pub async fn wait_for_exit(&mut self) -> ExitStatus {
        self.wait_for_exit_within(EXIT_WITHIN).await
    }

    pub async fn wait_for_exit_within(&mut self, deadline: Duration) -> ExitStatus {
        let child = std::cell::RefCell::new(&mut self.running.child);
        eventually_within(deadline, "the broker's exit", || {
            let ended = child.borrow_mut().try_wait().expect("a child can be waited for");
            std::future::ready(ended.ok_or("still running"))
        })
        .await
    }

    /// Kills the process with SIGKILL, which also ends a frozen process.
    pub async fn kill(&mut self) {
        let _ = self.running.child.kill();
        self.wait_for_exit().await;
    }

    /// Starts the binary again on the same folder; ports change.
    pub async fn restart(&mut self) {
        self.try_restart(&[]).await.unwrap_or_else(|died| panic!("{died}"));
    }

    /// Starts the binary with these variables for this life only. `Err`: its output, if it ended
    /// before it was ready.
    pub async fn try_restart(&mut self, env: &[(String, String)]) -> Result<(), String> {
        assert!(self.try_exit_status().is_some(), "the previous process must have ended");
        self.running = ReplicaProcess::start(&self.launch, env, self.folder.path()).await?;
        Ok(())
    }

    /// Returns the files with the traffic of stdio backends, one for each of their processes.
    pub(crate) fn traffic(&self) -> Vec<PathBuf> {
        let entries = |folder: PathBuf| {
            std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path())
        };
        let homes = ["homes", "data/homes"]
            .into_iter()
            .flat_map(|homes| entries(self.folder.path().join(homes)));
        homes
            .chain([self.folder.path().to_owned()])
            .flat_map(|folder| entries(folder.join(TRAFFIC)))
            .collect()
    }

    /// Judges the traffic that stdio backends noted.
    pub(crate) fn replay_traffic(&self, judge: &Judge) {
        for record in self.traffic() {
            judge.replay(&std::fs::read(record).unwrap_or_default());
        }
    }

    /// Kills the process, and shows the log if the test fails.
    pub(crate) fn finish(&mut self) {
        let _ = self.running.child.kill();
        let _ = self.running.child.wait();
        if std::thread::panicking() {
            let mut out = std::io::stderr().lock();
            let _ = writeln!(
                out,
                "---- the broker's log ({}) ----\n{}\n----",
                self.folder.path().display(),
                log_tail(self.folder.path())
            );
        }
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.running.child.kill();
        let _ = self.running.child.wait();
    }
}

impl ReplicaProcess {
    async fn start(
        launch: &LaunchSpec,
        env: &[(String, String)],
        folder: &Path,
    ) -> Result<Self, String> {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(folder.join("stderr.log"))
            .expect("a log file");
        let mut command = match launch.user {
            None => Command::new(&launch.binary),
            Some(user) => {
                let mut command = Command::new("setpriv");
                command.args([
                    format!("--reuid={user}"),
                    format!("--regid={user}"),
                    "--clear-groups".to_owned(),
                ]);
                command.arg(executable_by_all(&launch.binary));
                command
            }
        };
        command.arg("serve").arg("--config").arg(folder.join("config.yaml")).current_dir(folder);
        command.envs(launch.env.iter().chain(env).map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("start {}: {error}", launch.binary.display()));
        let stdout = child.stdout.take().expect("stdout is piped");
        let (sender, first_line) = blocking::channel();
        std::thread::spawn(move || {
            let mut lines = BufReader::new(stdout).lines().map_while(Result::ok);
            let _ = sender.send(lines.next().unwrap_or_default());
            lines.for_each(drop);
        });
        let line = tokio::task::spawn_blocking(move || first_line.recv_timeout(READY_WITHIN))
            .await
            .expect("the waiting thread lives");
        let Some(addresses) = line.as_deref().ok().and_then(Addresses::parse) else {
            let _ = child.kill();
            let status = child.wait();
            return Err(format!(
                "no ready line ({line:?}, {status:?}); log:\n{}",
                log_tail(folder)
            ));
        };
        Ok(Self { child, addresses })
    }
}

impl Addresses {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_whitespace();
        (fields.next()? == "ready").then_some(())?;
        let pairs: Vec<(&str, &str)> = fields.filter_map(|field| field.split_once('=')).collect();
        let address = |name: &str| {
            pairs.iter().find(|(key, _)| *key == name).and_then(|(_, value)| value.parse().ok())
        };
        Some(Self {
            http: address("http")?,
            admin: address("admin")?,
            tcp: address("tcp"),
            quic: address("quic"),
            internal: address("internal"),
        })
    }
}

fn log_tail(folder: &Path) -> String {
    let log = std::fs::read(folder.join("stderr.log")).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
}
