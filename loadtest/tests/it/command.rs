//! Tests of the program: its exit codes, its output, and its error message when it cannot do its
//! work.

use std::{path::PathBuf, process::Output, time::Duration};

use loadtest::{
    backend::{Backend, BackendOptions},
    report::Report,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    net::TcpStream,
    process::Command,
};

use super::fault_server::{Fault, FaultServer, refusing_address};

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mcp-loadtest"));
    command.kill_on_drop(true);
    command
}

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let profile = "{loop: closed, sessions: 2, in_flight: 2, phases: [{for: 300ms}], mix: [{method: tools/call}]}";
        std::fs::write(folder.path().join("p.yaml"), profile).unwrap();
        Self(folder)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    async fn run(&self, arguments: &[&str]) -> Output {
        program().current_dir(self.0.path()).args(arguments).output().await.unwrap()
    }
}

#[tokio::test]
async fn a_good_target_exits_0_with_results_as_json_and_as_a_page() {
    let backend = Backend::tcp("127.0.0.1:0", &BackendOptions::default()).await.unwrap();
    let (folder, target, pid) =
        (Folder::new(), format!("tcp://{}", backend.address()), std::process::id().to_string());
    let ran = folder
        .run(&[
            "run", &target, "-p", "p.yaml", "--json", "r.json", "--html", "r.html", "--pid", &pid,
        ])
        .await;
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    assert!(String::from_utf8_lossy(&ran.stdout).contains("calls in 0.3 s"), "{ran:?}");
    let report: Report =
        serde_json::from_slice(&std::fs::read(folder.file("r.json")).unwrap()).unwrap();
    assert!(report.calls > 0 && report.cpu_us_per_call.is_some() && !report.usage.is_empty());
    assert!(std::fs::read_to_string(folder.file("r.html")).unwrap().contains("<svg"));

    std::fs::copy(folder.file("r.json"), folder.file("other.json")).unwrap();
    let together = folder.run(&["report", "r.json", "other.json", "--html", "both.html"]).await;
    assert_eq!(together.status.code(), Some(0), "{together:?}");
    let page = std::fs::read_to_string(folder.file("both.html")).unwrap();
    assert!(
        page.contains("<h2>r ") && page.contains("<h2>other "),
        "runs are named after their files"
    );
}

#[tokio::test]
async fn a_wrong_answer_exits_1_and_is_reported() {
    let server = FaultServer::tcp(Fault::Swaps).await;
    let ran =
        Folder::new().run(&["run", &format!("tcp://{}", server.address()), "-p", "p.yaml"]).await;
    let output = String::from_utf8_lossy(&ran.stdout);
    assert_eq!(ran.status.code(), Some(1), "{output}");
    assert!(
        output.contains("answers were swapped") && output.contains("swapped: tools/call, request"),
        "{output}"
    );
}

#[tokio::test]
async fn an_impossible_task_exits_64_with_a_message() {
    let folder = Folder::new();
    std::fs::write(
        folder.file("bad.yaml"),
        "{phases: [{for: 1s, rate: 1}], mix: [{method: pong}], sessions: 0}",
    )
    .unwrap();
    let refusing = format!("tcp://{}", refusing_address().await);
    for (arguments, wanted) in [
        (["run", &refusing, "-p", "p.yaml"], "no session at tcp://"),
        (["run", &refusing, "-p", "bad.yaml"], "sessions: 0; 1 to 100000 is allowed"),
        (["run", &refusing, "-p", "bad.yaml"], "mix[0].method: \"pong\" is not one of tools/call"),
        (["run", &refusing, "-p", "none.yaml"], "cannot read none.yaml"),
    ] {
        let ran = folder.run(&arguments).await;
        let output = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(64), "{output}");
        assert!(output.contains(wanted), "{wanted:?} is not in {output}");
    }
}

#[tokio::test]
async fn a_load_with_more_connections_than_descriptors_does_not_start() {
    const DESCRIPTORS: usize = 64;
    let (folder, target) = (Folder::new(), format!("http://{}/", refusing_address().await));
    std::fs::write(
        folder.file("wide.yaml"),
        "{sessions: 10, in_flight: 8, phases: [{for: 1s, rate: 1}], mix: [{method: ping}]}",
    )
    .unwrap();
    let limited = format!("ulimit -n {DESCRIPTORS}; exec \"$0\" \"$@\"");
    let ran = Command::new("sh")
        .args(["-c", &limited, env!("CARGO_BIN_EXE_mcp-loadtest"), "run", &target, "-p"])
        .arg(folder.file("wide.yaml"))
        .output()
        .await
        .unwrap();
    let output = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(64), "{output}");
    assert!(
        output.contains("up to 90 connections") && output.contains("64 open files"),
        "{output}"
    );
}

#[tokio::test]
async fn a_soft_limit_of_descriptors_does_not_bound_a_load() {
    const SOFT: usize = 32;
    let backend = Backend::http("127.0.0.1:0", &BackendOptions::default()).await.unwrap();
    let (folder, target) = (Folder::new(), format!("http://{}/", backend.address()));
    std::fs::write(
        folder.file("wide.yaml"),
        "{sessions: 8, in_flight: 8, phases: [{for: 500ms, rate: 400}], mix: [{method: ping}]}",
    )
    .unwrap();
    let limited = format!("ulimit -Sn {SOFT}; exec \"$0\" \"$@\"");
    let ran = Command::new("sh")
        .args(["-c", &limited, env!("CARGO_BIN_EXE_mcp-loadtest"), "run", &target, "-p"])
        .arg(folder.file("wide.yaml"))
        .output()
        .await
        .unwrap();
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
}

#[tokio::test]
async fn results_that_cannot_be_written_stop_a_load_before_it_begins() {
    let (folder, target) = (Folder::new(), format!("tcp://{}", refusing_address().await));
    for option in ["--json", "--html"] {
        let ran = folder.run(&["run", &target, "-p", "p.yaml", option, "absent/r"]).await;
        let output = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(ran.status.code(), Some(64), "{output}");
        assert!(output.contains("cannot write absent/r"), "{output}");
    }
    let ran = folder.run(&["run", &target, "-p", "p.yaml", "--json", "r.json"]).await;
    assert!(String::from_utf8_lossy(&ran.stderr).contains("no session at"), "{ran:?}");
    assert!(!folder.file("r.json").exists(), "a load that did not begin leaves no file");
}

#[tokio::test]
async fn two_targets_are_compared_in_turns() {
    let (fast, slow) = (
        BackendOptions::default(),
        BackendOptions { delay: Duration::from_millis(5), ..BackendOptions::default() },
    );
    let a = Backend::http("127.0.0.1:0", &fast).await.unwrap();
    let b = Backend::http("127.0.0.1:0", &slow).await.unwrap();
    let targets = [a, b].map(|backend| (format!("http://{}/", backend.address()), backend));
    let ran = Folder::new()
        .run(&["compare", &targets[0].0, &targets[1].0, "-p", "p.yaml", "--rounds", "2"])
        .await;
    let output = String::from_utf8_lossy(&ran.stdout);
    assert_eq!(ran.status.code(), Some(0), "{output}");
    let row = |name: &str| -> f64 {
        let row = output
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_else(|| panic!("no {name} in {output}"));
        row.split_whitespace().last().unwrap().parse().unwrap()
    };
    assert!(row("calls/s") < 1.0 && row("p50") > 1.0, "{output}");
}

#[tokio::test]
async fn a_comparison_needs_a_round() {
    const TARGET: &str = "tcp://127.0.0.1:1";
    let ran =
        Folder::new().run(&["compare", TARGET, TARGET, "-p", "p.yaml", "--rounds", "0"]).await;
    let output = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(2), "{output}");
    assert!(
        output.contains("invalid value '0' for '--rounds") && output.contains("1.."),
        "{output}"
    );
}

#[tokio::test]
async fn the_backend_serves_again_after_it_had_no_descriptors() {
    const WITHIN: Duration = Duration::from_secs(20);
    const DESCRIPTORS: usize = 40;
    for wire in ["http", "tcp", "websocket"] {
        let limited = format!("ulimit -n {DESCRIPTORS}; exec \"$0\" \"$@\"");
        let mut child = Command::new("sh")
            .args(["-c", &limited, env!("CARGO_BIN_EXE_mcp-loadtest")])
            .args(["backend", &format!("--{wire}"), "127.0.0.1:0"])
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.next_line().await.unwrap().unwrap();
        let address = line.strip_prefix(&format!("{wire} ")).unwrap_or_else(|| panic!("{line}"));
        let mut crowd = Vec::new();
        for _ in 0..DESCRIPTORS {
            crowd.push(TcpStream::connect(address).await.unwrap());
        }
        let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
        let error = tokio::time::timeout(WITHIN, errors.next_line()).await;
        let error = error.expect("the backend reports the fault").unwrap().unwrap();
        assert!(error.contains("cannot accept a connection"), "{error}");
        drop(crowd);
        let scheme = if wire == "websocket" { "ws" } else { wire };
        let report = super::report(
            &format!("{scheme}://{address}/"),
            "{phases: [{for: 200ms, rate: 100}], mix: [{method: tools/call}]}",
        )
        .await;
        assert!(report.is_good() && report.calls == 20, "{}", report.summary());
    }
}

#[tokio::test]
async fn the_backend_prints_its_addresses_and_answers_over_stdio() {
    let mut child = program()
        .args(["backend", "--http", "127.0.0.1:0", "--tcp", "127.0.0.1:0"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for (wire, target) in [("http", "http"), ("tcp", "tcp")] {
        let line = lines.next_line().await.unwrap().unwrap();
        let address = line.strip_prefix(&format!("{wire} ")).unwrap_or_else(|| panic!("{line}"));
        let report = super::report(
            &format!("{target}://{address}"),
            "{phases: [{for: 200ms, rate: 100}], mix: [{method: tools/call}]}",
        )
        .await;
        assert!(report.is_good() && report.calls == 20, "{}", report.summary());
    }

    use tokio::io::AsyncWriteExt as _;
    let mut child = program()
        .args(["backend", "--stdio"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n")
        .await
        .unwrap();
    let ended = child.wait_with_output().await.unwrap();
    assert_eq!(
        String::from_utf8_lossy(&ended.stdout),
        "{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n"
    );
}
