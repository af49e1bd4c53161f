//! The life of the process from outside: settings it refuses to start with, exit codes, signals,
//! the reload.

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use testkit::{AdminClient, TestClient, eventually_within, within};

use crate::BINARY;

const DEADLINE: Duration = Duration::from_secs(20);

fn command(folder: &Path) -> Command {
    let mut command =
        Command::new(std::env::var("MCP_BROKER_BIN").unwrap_or_else(|_| BINARY.to_owned()));
    command.current_dir(folder).stdin(Stdio::null());
    command
}

fn run(folder: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    command(folder).args(arguments).envs(environment.iter().copied()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A broker and its log.
struct Broker {
    child: Child,
    ready: String,
    log: Receiver<String>,
}

impl Broker {
    fn start(folder: &Path, yaml: &str) -> Self {
        let fixed = "listen: {http: '127.0.0.1:0', admin: '127.0.0.1:0'}\nstorage: {url: 'sqlite:data/b.db'}\n";
        std::fs::write(folder.join("b.yaml"), format!("{fixed}{yaml}")).unwrap();
        let mut command = command(folder);
        let mut child = command
            .args(["serve", "--config", "b.yaml"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, log) = channel();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        std::thread::spawn(move || {
            lines.map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        Self { child, ready, log }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Returns the first log line from here on that holds the text.
    fn logged(&self, wanted: &str) -> String {
        let until = Instant::now() + DEADLINE;
        let mut seen = String::new();
        loop {
            match self.log.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) if line.contains(wanted) => return line,
                Ok(line) => seen = seen + &line + "\n",
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    panic!("no log line holds {wanted:?}:\n{seen}")
                }
            }
        }
    }

    fn ended(mut self) -> ExitStatus {
        // Standard error closes with the process.
        while self.log.recv_timeout(DEADLINE).is_ok() {}
        self.child.wait().unwrap()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_bad_configuration_exits_64_with_every_fault() {
    let folder = tempfile::tempdir().unwrap();
    let bad = "limits: {burst: 0, brust: 1}\nlisten: {http: '0.0.0.0:0', tcp: nowhere}\nstorage: {url: 'mysql://u:hush@h/d'}\n";
    std::fs::write(folder.path().join("bad.yaml"), bad).unwrap();
    let checked = run(folder.path(), &["check-config", "bad.yaml"], &[]);
    assert_eq!(checked.status.code(), Some(64));
    let faults = text(&checked.stdout);
    for start in [
        "limits.burst: is 0; allowed: ",
        "limits.brust: is not a known key",
        "listen.http: 0.0.0.0:0 is reachable from outside",
        "listen.tcp: is \"nowhere\"; allowed: ",
        "storage.url: is neither an sqlite: nor a postgres: URL",
    ] {
        assert!(faults.lines().any(|line| line.starts_with(start)), "{start}: {faults}");
    }
    assert_eq!(faults.lines().count(), 5, "{faults}");
    assert!(!faults.contains("hush"));
    let served = run(folder.path(), &["serve", "--config", "bad.yaml"], &[]);
    assert_eq!((served.status.code(), text(&served.stdout)), (Some(64), String::new()));
    assert!(
        faults.lines().all(|fault| text(&served.stderr).contains(fault)),
        "{}",
        text(&served.stderr)
    );
}

#[test]
fn the_printed_example_is_a_good_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let example = run(folder.path(), &["config-example"], &[]);
    assert!(example.status.success());
    std::fs::write(folder.path().join("example.yaml"), example.stdout).unwrap();
    let checked = run(folder.path(), &["check-config", "example.yaml"], &[]);
    assert_eq!(checked.status.code(), Some(0), "{}", text(&checked.stdout));
}

#[test]
fn a_fault_of_the_environment_is_reported_as_a_configuration_fault() {
    let folder = tempfile::tempdir().unwrap();
    for variable in [
        ("MCP_BROKER__LIMITS__BURST", "lots"),
        ("MCP_BROKER__LIMITS__BRUST", "1"),
        ("MCP_BROKER__LISTEN__TCP", "nowhere"),
    ] {
        let served = run(folder.path(), &["serve"], &[variable]);
        assert_eq!(served.status.code(), Some(64), "{variable:?}");
        assert!(text(&served.stderr).contains(variable.0), "{}", text(&served.stderr));
    }
}

#[test]
fn a_missing_resource_at_start_exits_69() {
    let folder = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let database = ("MCP_BROKER__STORAGE__URL", "sqlite:data/a.db");
    let (admin, http) = (
        ("MCP_BROKER__LISTEN__ADMIN", "127.0.0.1:0"),
        ("MCP_BROKER__LISTEN__HTTP", address.as_str()),
    );
    let served = run(folder.path(), &["serve"], &[database, admin, http]);
    assert_eq!(served.status.code(), Some(69));
    assert!(
        text(&served.stderr).contains(&format!("listen.http: cannot listen on {address}")),
        "{}",
        text(&served.stderr)
    );

    std::fs::write(folder.path().join("no-folder"), "").unwrap();
    let served =
        run(folder.path(), &["serve"], &[("MCP_BROKER__STORAGE__URL", "sqlite:no-folder/b.db")]);
    assert_eq!((served.status.code(), text(&served.stdout)), (Some(69), String::new()));

    let broker = Broker::start(folder.path(), "");
    let second = run(folder.path(), &["serve", "--config", "b.yaml"], &[]);
    assert_eq!(second.status.code(), Some(69));
    assert!(text(&second.stderr).contains("in use by another broker"), "{}", text(&second.stderr));
    drop(broker);
}

#[test]
fn s16_a_start_warns_of_an_unverified_database_and_names_the_setting() {
    /// Returns the log lines about `sslmode` of a broker that finds no database. `mode`:
    /// `PGSSLMODE`.
    fn start_warnings(url: &str, mode: Option<&str>) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let mut environment = vec![
            ("MCP_BROKER__STORAGE__URL", url),
            ("MCP_BROKER__NODE__SECRET", "0123456789abcdef"),
        ];
        environment.extend([
            ("MCP_BROKER__LISTEN__HTTP", "127.0.0.1:0"),
            ("MCP_BROKER__LISTEN__ADMIN", "127.0.0.1:0"),
        ]);
        environment.extend(mode.map(|mode| ("PGSSLMODE", mode)));
        let ended = run(folder.path(), &["serve"], &environment);
        let stderr = text(&ended.stderr);
        assert_eq!(ended.status.code(), Some(69), "the database is missing: {stderr}");
        assert!(!stderr.contains("hush"), "{stderr}");
        stderr
            .lines()
            .filter(|line| line.contains("sslmode=verify-full"))
            .map(str::to_owned)
            .collect()
    }
    // No name below `invalid` has an address. Each is given some seconds, so all run at once.
    let unverified =
        ["postgres://u:hush@db.invalid/d", "postgres://u:hush@db.invalid/d?sslmode=require"];
    let well = [
        ("postgres://u:hush@db.invalid/d?sslmode=verify-full", None),
        ("postgres://u:hush@127.0.0.1:1/d", None),
        ("postgres://u:hush@db.invalid/d", Some("verify-full")), // as the chart says it
    ];
    std::thread::scope(|scope| {
        for url in unverified {
            scope.spawn(move || {
                let lines = start_warnings(url, None);
                assert!(
                    lines.len() == 1
                        && lines[0].contains("WARN")
                        && lines[0].contains("sslrootcert="),
                    "{url}: {lines:?}"
                );
            });
        }
        for (url, mode) in well {
            scope.spawn(move || {
                assert_eq!(start_warnings(url, mode), Vec::<String>::new(), "{url} {mode:?}")
            });
        }
    });
}

#[test]
fn a_missing_or_wrong_secret_ends_the_start() {
    let folder = tempfile::tempdir().unwrap();
    for key in ["NODE__SECRET_FILE", "AUTH__ADMIN_TOKEN_FILE", "STORAGE__URL_FILE"] {
        let served =
            run(folder.path(), &["serve"], &[(&format!("MCP_BROKER__{key}"), "nowhere/secret")]);
        assert_eq!(served.status.code(), Some(64), "{key}");
        assert!(
            text(&served.stderr).contains(key) && text(&served.stderr).contains("nowhere/secret"),
            "{}",
            text(&served.stderr)
        );
    }
    let shared = run(
        folder.path(),
        &["serve"],
        &[("MCP_BROKER__STORAGE__URL", "postgres://u:hush@127.0.0.1:1/d")],
    );
    assert_eq!(shared.status.code(), Some(64));
    assert!(
        text(&shared.stderr).contains("node.secret") && !text(&shared.stderr).contains("hush"),
        "{}",
        text(&shared.stderr)
    );

    let broker = Broker::start(folder.path(), "");
    let admin = broker
        .ready
        .split_whitespace()
        .find_map(|pair| pair.strip_prefix("admin="))
        .unwrap()
        .to_owned();
    let add = ["backend", "add", "nobody", "--url", "http://127.0.0.1:9/"];
    let added = run(folder.path(), &add, &[("MCP_BROKER_ADMIN_URL", &format!("http://{admin}"))]);
    assert!(added.status.success(), "{}", text(&added.stderr));
    broker.signal(Signal::TERM);
    assert_eq!(broker.ended().code(), Some(0));
    let secret = folder.path().join("data/secret.key");
    let kept = std::fs::read(&secret).unwrap();
    std::fs::remove_file(&secret).unwrap();
    let lost = run(folder.path(), &["serve", "--config", "b.yaml"], &[]);
    assert_eq!((lost.status.code(), text(&lost.stdout)), (Some(70), String::new()));
    assert!(
        text(&lost.stderr).contains("restore it next to the database"),
        "{}",
        text(&lost.stderr)
    );
    std::fs::write(&secret, kept).unwrap();
    let other = run(
        folder.path(),
        &["serve", "--config", "b.yaml"],
        &[("MCP_BROKER__NODE__SECRET", "another-secret-of-a-node")],
    );
    assert_eq!(other.status.code(), Some(70));
    let sentence = text(&other.stderr);
    assert!(sentence.contains("no root secret opens the root key of the database"), "{sentence}");
}

#[test]
fn a_database_file_of_another_build_ends_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let database = ("MCP_BROKER__STORAGE__URL", "sqlite:data/b.db");
    let early = run(
        folder.path(),
        &["serve"],
        &[database, ("MCP_BROKER__STORAGE__MIGRATE_ON_START", "false")],
    );
    assert_eq!((early.status.code(), text(&early.stdout)), (Some(69), String::new()));
    assert!(text(&early.stderr).contains("mcp-broker migrate"), "{}", text(&early.stderr));
    assert_eq!(run(folder.path(), &["migrate"], &[database]).status.code(), Some(0));
    let newer = "import sqlite3; d = sqlite3.connect('data/b.db'); \
        d.execute('UPDATE _sqlx_migrations SET version = 999 WHERE version = (SELECT max(version) FROM _sqlx_migrations)'); d.commit()";
    assert!(
        std::process::Command::new("python3")
            .args(["-c", newer])
            .current_dir(folder.path())
            .status()
            .unwrap()
            .success()
    );
    for command in ["serve", "migrate"] {
        let refused = run(folder.path(), &[command], &[database]);
        assert_eq!(
            (refused.status.code(), text(&refused.stdout)),
            (Some(69), String::new()),
            "{command}"
        );
        let sentence = text(&refused.stderr);
        assert!(sentence.contains("999") && sentence.contains("newer"), "{command}: {sentence}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_restore_needs_the_secret_and_a_database_without_a_broker() {
    let folder = tempfile::tempdir().unwrap();
    let address = |broker: &Broker| -> std::net::SocketAddr {
        let mut fields = broker.ready.split_whitespace();
        fields.find_map(|pair| pair.strip_prefix("http=")).unwrap().parse().unwrap()
    };
    let after_restore = || {
        let ended = run(folder.path(), &["after-restore", "--config", "b.yaml"], &[]);
        (ended.status.code(), text(&ended.stdout), text(&ended.stderr))
    };
    let broker = Broker::start(folder.path(), "");
    let client = TestClient::new(address(&broker), "/mcp").connected(json!({})).await;
    let (code, _, sentence) = after_restore();
    assert_eq!(code, Some(69), "{sentence}");
    assert!(sentence.contains("in use by another broker"), "{sentence}");
    broker.signal(Signal::TERM);
    assert_eq!(broker.ended().code(), Some(0));

    let elsewhere = ("MCP_BROKER__STORAGE__URL", "sqlite:elsewhere/b.db");
    let missing = run(folder.path(), &["after-restore", "--config", "b.yaml"], &[elsewhere]);
    assert_eq!(missing.status.code(), Some(69), "{}", text(&missing.stderr));
    assert!(text(&missing.stderr).contains("restore the copy into it"), "it says what to do");
    assert!(!folder.path().join("elsewhere").exists(), "it creates no database");

    let secret = folder.path().join("data/secret.key");
    let kept = std::fs::read(&secret).unwrap();
    std::fs::remove_file(&secret).unwrap();
    let (code, _, sentence) = after_restore();
    assert_eq!(code, Some(70), "{sentence}");
    assert!(!secret.exists(), "the next start must find it missing too");
    std::fs::write(&secret, kept).unwrap();
    for sessions in [1, 0] {
        let line = format!(
            "ended sessions: {sessions}, approvals: 0; unfinished tasks that count as sent: 0\n"
        );
        let (code, printed, sentence) = after_restore();
        assert_eq!((code, printed), (Some(0), line), "{sentence}");
    }
    let broker = Broker::start(folder.path(), "");
    let ping = r#"{"jsonrpc":"2.0","id":9,"method":"ping"}"#;
    assert_eq!(client.to(address(&broker)).post(ping).await.status, 404);
    broker.signal(Signal::TERM);
    assert_eq!(broker.ended().code(), Some(0));
}

#[test]
fn the_first_line_has_the_addresses_and_both_signals_stop_the_broker() {
    let folder = tempfile::tempdir().unwrap();
    for signal in [Signal::TERM, Signal::INT] {
        let broker = Broker::start(folder.path(), "");
        let mut fields = broker.ready.split_whitespace();
        assert_eq!(fields.next(), Some("ready"), "{}", broker.ready);
        for (field, name) in fields.zip(["http=", "admin="]) {
            let address: std::net::SocketAddr = field.strip_prefix(name).unwrap().parse().unwrap();
            assert_ne!(address.port(), 0);
            std::net::TcpStream::connect(address).unwrap();
        }
        broker.signal(signal);
        assert_eq!(broker.ended().code(), Some(0));
    }
}

#[test]
fn a_reload_follows_the_file_and_a_bad_one_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Broker::start(folder.path(), "telemetry: {log_format: json}\n");
    let good = std::fs::read_to_string(folder.path().join("b.yaml")).unwrap();
    let rewrite = |more: &str| {
        std::fs::write(folder.path().join("b.yaml"), format!("{good}{more}")).unwrap();
        broker.signal(Signal::HUP);
    };
    rewrite("tenants: {acme: {}}\nlimits: {burst: 5}\n");
    assert!(broker.logged("which needs a restart").contains("\"section\":\"limits\""));
    assert!(broker.logged("configuration reloaded").contains("\"tenants\":1"));
    rewrite("tenants: {acme: {weight: 0}}\n");
    assert!(
        broker.logged("the configuration was not reloaded").contains("tenants.acme.weight: is 0")
    );
    rewrite("tenants: {acme: {}}\n");
    assert!(
        broker.logged("configuration reloaded").contains("\"tenants\":0"),
        "what was in force before the bad file still is"
    );
    broker.signal(Signal::TERM);
    assert_eq!(broker.ended().code(), Some(0));
}

#[test]
fn the_demo_prints_commands_to_type() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = command(folder.path())
        .arg("demo")
        .envs([
            ("MCP_BROKER__LISTEN__HTTP", "127.0.0.1:0"),
            ("MCP_BROKER__LISTEN__ADMIN", "127.0.0.1:0"),
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut errors = child.stderr.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        errors.read_to_string(&mut text).map(|_| text)
    });
    let mut ready = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let bound = |listener: &str| {
        let mut fields = ready.split_whitespace();
        fields.find_map(|field| field.strip_prefix(listener)).unwrap().to_owned()
    };
    let (address, admin) = (bound("http="), format!("http://{}", bound("admin=")));
    let environment = [("MCP_BROKER_ADMIN_URL", admin.as_str())];
    let listed = text(&run(folder.path(), &["backend", "list"], &environment).stdout);
    assert!(
        listed.lines().any(|line| line.starts_with("demo ") && line.contains("  demo")),
        "{listed}"
    );
    let removed = run(folder.path(), &["backend", "remove", "demo"], &environment);
    assert_eq!(removed.status.code(), Some(1), "{removed:?}");
    assert!(text(&removed.stderr).contains("belongs to `mcp-broker demo`"), "{removed:?}");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let output = reader.join().unwrap().unwrap();
    assert!(
        output.contains(&format!("curl -sS http://{address}/mcp"))
            && output.contains("\"method\":\"tools/call\""),
        "{output}"
    );
    let of_admin: Vec<&str> =
        output.lines().filter(|line| line.contains("auth.admin_token")).collect();
    let [line] = &of_admin[..] else { panic!("{of_admin:#?}") };
    let listen = format!("listen={}", admin.trim_start_matches("http://"));
    assert!(line.contains(" WARN ") && line.contains(&listen), "{line}");
}

/// The process that started the broker has stopped reading its log, which is at the most verbose
/// level.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o_08_an_unread_log_does_not_delay_the_broker() {
    let folder = tempfile::tempdir().unwrap();
    let config = "listen: {http: '127.0.0.1:0', admin: '127.0.0.1:0'}\nstorage: {url: 'sqlite:b.db'}\ntelemetry: {log: trace}\n";
    std::fs::write(folder.path().join("b.yaml"), config).unwrap();
    let mut command = command(folder.path());
    let mut child = command
        .args(["serve", "--config", "b.yaml"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut ready, mut stderr) = (String::new(), BufReader::new(child.stderr.take().unwrap()));
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
    let broker = Broker { child, ready, log: channel().1 };
    let address = |name: &str| {
        broker
            .ready
            .split_whitespace()
            .find_map(|field| field.strip_prefix(name))
            .unwrap()
            .parse()
            .unwrap()
    };
    let (client, admin) =
        (TestClient::new(address("http="), "/mcp"), AdminClient::new(address("admin="), None));
    within("a session", client.initialize("2025-03-26", json!({}))).await;
    // Each request is a line. A pipe holds 64 KiB, the queue some thousands of lines.
    let unknown = |id: usize| json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "unknown"}});
    let batch = json!((0..90).map(unknown).collect::<Vec<_>>()).to_string();
    eventually_within(DEADLINE, "lines to be dropped", || async {
        for _ in 0..10 {
            within("an answer though nobody reads", client.post(batch.clone()))
                .await
                .expect_status(200, "a batch")
                .await
                .text()
                .await;
        }
        admin
            .metric("mcp_log_lines_dropped_total", &[])
            .await
            .filter(|lines| *lines > 0.0)
            .ok_or("none yet")
    })
    .await;
    // A reader that continues gets a line about the missing ones, and the end does not wait for a
    // reader.
    let output = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        while !line.contains("lines of the log are missing") {
            line.clear();
            assert!(stderr.read_line(&mut line).unwrap() > 0, "the log ended");
        }
        stderr
    });
    let stderr = within("what is missing", output).await.unwrap();
    broker.signal(Signal::TERM);
    assert!(
        within("the end", tokio::task::spawn_blocking(move || broker.ended()))
            .await
            .unwrap()
            .success()
    );
    drop(stderr);
}
