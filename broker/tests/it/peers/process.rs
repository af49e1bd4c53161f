//! Peer processes: servers that announce their address, and programs that run to their end. Each is
//! killed when it is dropped, and its output is shown when a test fails.

use std::{
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    sync::oneshot,
    time::timeout,
};

/// Longest time until a server prints its address; an interpreter on a busy machine needs a while
/// to load.
const LISTENS_WITHIN: Duration = Duration::from_secs(60);
/// Lines of a server's output that are kept for a failing test.
const LINES_KEPT: usize = 60;

/// A running server.
pub(super) struct Server {
    _child: Child,
    pub(super) url: String,
    output: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Starts the server and waits for the line of its standard error that holds its URL.
    pub(super) async fn start(
        mut command: Command,
        url_of_line: impl Fn(&str) -> Option<String> + Send + 'static,
    ) -> Self {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child =
            command.spawn().unwrap_or_else(|error| panic!("start {command:?}: {error}"));
        let mut lines = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
        let output = Arc::new(Mutex::new(Vec::new()));
        let (sender, receiver) = oneshot::channel();
        tokio::spawn({
            let output = Arc::clone(&output);
            let mut sender = Some(sender);
            async move {
                while let Ok(Some(line)) = lines.next_line().await {
                    if let Some(url) = url_of_line(&line)
                        && let Some(sender) = sender.take()
                    {
                        let _ = sender.send(url);
                    }
                    let mut kept = output.lock();
                    kept.push(line);
                    if kept.len() > LINES_KEPT {
                        kept.remove(0);
                    }
                }
            }
        });
        match timeout(LISTENS_WITHIN, receiver).await {
            Ok(Ok(url)) => Self { _child: child, url, output },
            outcome => panic!(
                "{command:?} did not say where it listens ({outcome:?}):\n{}",
                joined(&output)
            ),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("---- the peer at {} ----\n{}\n----", self.url, joined(&self.output));
        }
    }
}

fn joined(lines: &Mutex<Vec<String>>) -> String {
    lines.lock().join("\n")
}

/// Exit status and output of a program.
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

/// Runs a program to its end, which must come within `deadline`.
pub(super) async fn run(mut command: Command, deadline: Duration) -> Ended {
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(deadline, command.output()).await;
    let output = output.unwrap_or_else(|_| panic!("{command:?} took longer than {deadline:?}"));
    let output = output.unwrap_or_else(|error| panic!("start {command:?}: {error}"));
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ended { status: output.status, stdout: text(output.stdout), stderr: text(output.stderr) }
}
