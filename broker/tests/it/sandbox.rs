//! A child process gets nothing of the broker, of its operators and of other tenants. This holds at
//! every level of its sandbox, for every user that runs the broker.
//!
//! The child of each attack is the scripted backend, which runs another program on request. `off`
//! is the positive control: there the same child succeeds.

use std::{
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{BrokerBuilder, TestBroker, TestClient, eventually, stdio::processes_with};

use crate::{binary, builder, stdio, text_of};

/// A user other than root, who owns nothing.
const NOBODY_ELSE: u32 = 54_321;
const TOKEN: &str = "a-token-that-no-child-may-read";

/// A broker with two tenants, each with the backend `s`.
struct Topology {
    broker: TestBroker,
    token_file: PathBuf,
    _folder: TempDir,
}

/// Returns whether the half of a test that needs root can run.
fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("not run: only root starts a broker whose children have users of their own");
    }
    is_root
}

/// Starts the broker as this user. `None`: as the user of the test, who may be root.
async fn topology(mode: &str, user: Option<u32>) -> Topology {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let token_file = folder.path().join("admin-token");
    std::fs::write(&token_file, TOKEN).unwrap();
    std::fs::set_permissions(&token_file, std::fs::Permissions::from_mode(0o600)).unwrap();
    chown(&token_file, user, user).unwrap();
    let config = json!({"stdio": {"sandbox": mode}, "auth": {"admin_token": null, "admin_token_file": token_file}});
    let spec = stdio().spec();
    let builder = builder()
        .single_process()
        .on(testkit::Topology::Sqlite)
        .admin_token(TOKEN)
        .config(config)
        .tenant("other");
    let builder = builder.backend("default", "s", spec.clone()).backend("other", "s", spec);
    let broker = by(builder, user).start().await;
    Topology { broker, token_file, _folder: folder }
}

fn by(builder: BrokerBuilder, user: Option<u32>) -> BrokerBuilder {
    match user {
        Some(user) => builder.as_user(user),
        None => builder,
    }
}

impl Topology {
    async fn client(&self) -> TestClient {
        self.broker.client("/mcp/s").connected(json!({})).await
    }

    /// Returns the homes of the two tenants.
    fn homes(&self, level: &str) -> [PathBuf; 2] {
        let suffix = if level.contains("uid") { "" } else { ".landlock" };
        ["default", "other"]
            .map(|tenant| self.broker.folder().join("homes").join(format!("{tenant}{suffix}")))
    }

    async fn level(&self) -> Value {
        self.broker.admin().backend("default", "s").await["sandbox"].clone()
    }

    /// Returns the attacks of the child, by name. Each exits with success only if it gets what it
    /// wants.
    fn attacks(&self, foreign_home: &Path) -> Vec<(String, Vec<String>)> {
        let (broker, pid) = (&self.broker, self.broker.pid());
        let folder = broker.folder().display();
        let mut attacks: Vec<(String, Vec<String>)> = Vec::new();
        let mut add = |name: &str, command: &[&str]| {
            attacks.push((
                name.to_owned(),
                command.iter().map(|argument| (*argument).to_owned()).collect(),
            ))
        };
        for file in ["secret.key", "broker.db", "broker.db-wal", "config.yaml"] {
            add(file, &["cat", &format!("{folder}/{file}")]);
        }
        add("admin token", &["cat", &self.token_file.display().to_string()]);
        add("home of another tenant", &["cat", &foreign_home.join("secret").display().to_string()]);
        add("list of another home", &["ls", &foreign_home.display().to_string()]);
        for file in ["environ", "maps", "mem"] {
            add(file, &["sh", "-c", &format!("exec 3</proc/{pid}/{file}")]);
        }
        add("signal", &["sh", "-c", &format!("kill -0 {pid}")]);
        add(
            "limits",
            &[
                "python",
                &format!("import resource; resource.prlimit({pid}, resource.RLIMIT_NOFILE)"),
            ],
        );
        // PTRACE_SEIZE does not stop the broker if it succeeds.
        add(
            "ptrace",
            &[
                "python",
                &format!(
                    "import ctypes, sys; sys.exit(ctypes.CDLL(None).ptrace(0x4206, {pid}, 0, 0) != 0)"
                ),
            ],
        );
        let admin = broker.admin_address().port();
        let ask = "s.sendall(b'GET /healthz HTTP/1.0\\r\\nhost: localhost\\r\\n\\r\\n'); assert s.recv(9)";
        add(
            "admin port",
            &[
                "python",
                &format!(
                    "import socket; s = socket.create_connection(('127.0.0.1', {admin}), 5); {ask}"
                ),
            ],
        );
        let by_mptcp = format!(
            "import socket; s = socket.socket(2, 1, 262); s.settimeout(5); s.connect(('127.0.0.1', {admin})); {ask}"
        );
        add("admin port by MPTCP", &["python", &by_mptcp]);
        let fast_open = format!(
            "import socket; s = socket.socket(); s.settimeout(5); s.sendto(b'GET /healthz HTTP/1.0\\r\\nhost: localhost\\r\\n\\r\\n', 0x20000000, ('127.0.0.1', {admin})); assert s.recv(9)"
        );
        add("admin port by fast open", &["python", &fast_open]);
        attacks
    }
}

/// The interpreter of the system: one that every user can run.
const PYTHON: &str = "/usr/bin/python3";

async fn run(client: &TestClient, command: &[String]) -> Value {
    let mut fields = command.to_vec();
    if fields[0] == "python" {
        fields.splice(0..1, [PYTHON.to_owned(), "-c".to_owned()]);
    }
    let answer = client
        .request("tools/call", json!({"name": "run", "arguments": {"command": fields}}))
        .await;
    assert!(answer["result"].is_object(), "{command:?}: {answer}");
    serde_json::from_str(text_of(&answer["result"])).unwrap()
}

async fn shell(client: &TestClient, script: &str) -> Value {
    run(client, &["sh", "-c", script].map(str::to_owned)).await
}

/// Checks that every attack fails, and that the operations a server needs work.
async fn assert_confined(mode: &str, user: Option<u32>, level: &str) {
    let topology = topology(mode, user).await;
    assert_eq!(topology.level().await, level, "{mode}");
    let client = topology.client().await;
    let [own, foreign] = topology.homes(level);
    let secret = foreign.join("secret");
    std::fs::write(&secret, "of another tenant").unwrap();
    let owner = std::fs::metadata(&foreign).unwrap().uid();
    chown(&secret, Some(owner), Some(owner)).unwrap();
    for (name, command) in topology.attacks(&foreign) {
        let ended = run(&client, &command).await;
        assert!(ended["status"] != 0 && ended["out"] == "", "{mode} as {user:?}: {name}: {ended}");
        // The attempt failed, and not the program.
        let output = ended["err"].as_str().unwrap().to_lowercase();
        let denied = [
            "denied",
            "not permitted",
            "permission",
            "not supported",
            "reset",
            "broken pipe",
            "assertionerror",
        ]
        .iter()
        .any(|text| output.contains(text));
        assert!(denied || name == "ptrace", "{mode} as {user:?}: {name}: {ended}");
    }
    assert_eq!(topology.broker.admin().backend("default", "s").await["state"], "ready");
    let at_home = "test \"$PWD\" = \"$HOME\" && echo kept > \"$HOME/file\" && cat file && test -w \"$TMPDIR\" && cat /etc/hosts > /dev/null";
    let ended = shell(&client, at_home).await;
    assert_eq!((&ended["status"], &ended["out"]), (&json!(0), &json!("kept\n")), "{mode}: {ended}");
    assert_eq!(std::fs::metadata(&own).unwrap().mode() & 0o777, 0o700);
    let data = topology.broker.http_address().port();
    let connect = format!("import socket; socket.create_connection(('127.0.0.1', {data}), 5)");
    assert_eq!(
        run(&client, &["python".to_owned(), connect]).await["status"],
        0,
        "{mode}: other ports are open"
    );
}

#[tokio::test]
async fn s03_a_hostile_child_is_confined_with_a_user_and_landlock() {
    if is_root() {
        assert_confined("auto", None, "uid+landlock").await;
    }
}

#[tokio::test]
async fn s03_a_hostile_child_is_confined_with_a_user_of_its_own_alone() {
    if is_root() {
        assert_confined("uid", None, "uid").await;
    }
}

#[tokio::test]
async fn s03_a_hostile_child_is_confined_with_landlock_alone() {
    assert_confined("landlock", None, "landlock").await;
}

#[tokio::test]
async fn s03_a_hostile_child_is_confined_by_a_broker_that_is_not_root() {
    let user = rustix::process::geteuid().is_root().then_some(NOBODY_ELSE);
    for mode in ["auto", "landlock"] {
        assert_confined(mode, user, "landlock").await;
    }
}

/// The positive control: each attack works where nothing confines the child.
#[tokio::test]
async fn s03_a_hostile_child_succeeds_with_off_and_the_log_warns() {
    let topology = topology("off", None).await;
    let client = topology.client().await;
    assert_eq!(topology.level().await, "off");
    topology.broker.wait_for_log("stdio.sandbox is off").await;
    let foreign = topology.broker.folder().join("homes/other");
    std::fs::create_dir_all(&foreign).unwrap();
    std::fs::write(foreign.join("secret"), "of another tenant").unwrap();
    for (name, command) in topology.attacks(&foreign) {
        // Memory and environment are closed to processes of the same user, unless that is root.
        if !rustix::process::geteuid().is_root()
            && ["environ", "maps", "mem", "ptrace", "limits"].contains(&name.as_str())
        {
            continue;
        }
        // Kernels may lack these two ways, or be configured not to offer them.
        if name.contains("MPTCP") || name.contains("fast open") {
            continue;
        }
        let ended = run(&client, &command).await;
        assert_eq!(ended["status"], 0, "{name}: {ended}");
    }
}

#[tokio::test]
async fn s03_tenants_have_their_own_permanent_users() {
    if !is_root() {
        return;
    }
    let mut topology = topology("auto", None).await;
    let owners = |topology: &Topology| {
        topology.homes("uid").map(|home| std::fs::metadata(home).unwrap().uid())
    };
    let [one, other] = owners(&topology);
    assert!(
        one != other && [one, other].iter().all(|user| (200_000..=265_535).contains(user)),
        "{one} {other}"
    );
    let ended =
        shell(&topology.client().await, "id -u; id -g; id -G; grep ^Cap /proc/self/status").await;
    let output: Vec<&str> = ended["out"].as_str().unwrap().lines().collect();
    assert_eq!(output[..3], [one.to_string(), one.to_string(), one.to_string()], "{ended}");
    assert!(
        output[3..]
            .iter()
            .filter(|line| !line.starts_with("CapBnd"))
            .all(|line| line.ends_with("\t0000000000000000")),
        "{ended}"
    );
    assert!(topology.broker.terminate().await.success());
    topology.broker.restart().await;
    topology.client().await.call("echo", json!({})).await;
    assert_eq!(owners(&topology), [one, other]);
}

/// A child with a user of its own still ends with the broker and with its session.
#[tokio::test]
async fn s03_children_with_other_users_and_their_processes_end_with_the_broker() {
    if !is_root() {
        return;
    }
    let marker = format!("it-other-users-{}", std::process::id());
    let gone = |what: &'static str| {
        let marker = marker.clone();
        eventually(what, move || {
            let left = processes_with(&marker);
            async move { if left.is_empty() { Ok(()) } else { Err(left) } }
        })
    };
    for mode in ["uid", "auto"] {
        let script = stdio().grandchildren(2).ignore_sigterm().ignore_stdin_close().marker(&marker);
        let builder = builder()
            .single_process()
            .config(json!({"stdio": {"sandbox": mode}}))
            .backend("default", "s", script.spec());
        let mut broker = builder.start().await;
        let processes = processes_with(&marker);
        assert!(processes.len() >= 3, "{processes:?}");
        for pid in processes {
            assert!(std::fs::metadata(format!("/proc/{pid}")).unwrap().uid() >= 200_000);
        }
        broker.kill().await;
        gone("the end of all that were started").await;
        broker.restart().await;
        broker.admin().wait_backend_state("default", "s", "ready").await;
        assert!(processes_with(&marker).len() >= 3);
        broker.admin().delete("/admin/v1/tenants/default/backends/s").await;
        gone("the end of a removed backend").await;
    }
}

async fn refusal(config: Value, spec: Value, user: Option<u32>) -> String {
    let broker = by(builder().single_process().on(testkit::Topology::Sqlite).config(config), user)
        .start()
        .await;
    broker.admin().put_backend("default", "s", &spec).await;
    let view = broker.admin().wait_backend_state("default", "s", "failed").await;
    view["last_error"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn s03_an_unavailable_sandbox_level_refuses_the_backend_with_a_reason() {
    let user = rustix::process::geteuid().is_root().then_some(NOBODY_ELSE);
    let output = refusal(json!({"stdio": {"sandbox": "uid"}}), stdio().spec(), user).await;
    assert!(
        output.contains("cannot confine a child on this host") && output.contains("CAP_SETUID"),
        "{output}"
    );
}

#[tokio::test]
async fn s03_a_sandbox_path_above_files_of_the_broker_refuses_the_backend() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, TOKEN).unwrap();
    let config = json!({"stdio": {"sandbox": "landlock"}, "auth": {"admin_token_file": token}});
    for access in ["read", "write"] {
        let mut spec = stdio().spec();
        spec["sandbox"] = json!({access: [folder.path()]});
        let builder = builder().single_process().on(testkit::Topology::Sqlite).admin_token(TOKEN);
        let broker = builder
            .config(json!({"auth": {"admin_token": null}}))
            .config(config.clone())
            .start()
            .await;
        broker.admin().put_backend("default", "s", &spec).await;
        let view = broker.admin().wait_backend_state("default", "s", "failed").await;
        let output = view["last_error"].as_str().unwrap();
        assert!(
            output.contains(&token.display().to_string())
                && output.contains("this child could access"),
            "{output}"
        );
        // The folder of all homes may not be named.
        spec["sandbox"] = json!({access: [broker.folder().join("homes")]});
        std::fs::create_dir_all(broker.folder().join("homes")).unwrap();
        broker.admin().put_backend("default", "s", &spec).await;
        eventually("the refusal for the homes", || async {
            let output = broker.admin().backend("default", "s").await["last_error"].to_string();
            if output.contains("homes, because it may use") { Ok(()) } else { Err(output) }
        })
        .await;
    }
}

/// The broker learns of these files after its start, and protects them from then on.
#[tokio::test]
async fn s03_secret_files_that_included_files_name_are_closed_to_children() {
    let (included, secrets) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let declare = |name: &str| {
        let token = secrets.path().join(name).join("token");
        std::fs::create_dir(token.parent().unwrap()).unwrap();
        std::fs::write(&token, TOKEN).unwrap();
        let transport = json!({"type": "http", "url": "http://127.0.0.1:9/mcp"});
        let body = json!({"transport": transport, "credentials": {"bearer_file": token}});
        let file = included.path().join(format!("{name}.yaml"));
        std::fs::write(file, json!({"backends": {name: body}}).to_string()).unwrap();
    };
    declare("early");
    let broker = builder()
        .single_process()
        .on(testkit::Topology::Sqlite)
        .config(json!({"stdio": {"sandbox": "landlock"}}))
        .config(json!({"include": {"folder": included.path(), "interval": "100ms"}}))
        .start()
        .await;
    declare("late");
    for name in ["early", "late"] {
        broker.admin().wait_backend_state("default", name, "failed").await;
        let mut spec = stdio().spec();
        spec["sandbox"] = json!({"read": [secrets.path().join(name)]});
        let reader = format!("reader-{name}");
        broker.admin().put_backend("default", &reader, &spec).await;
        let view = broker.admin().wait_backend_state("default", &reader, "failed").await;
        let output = view["last_error"].as_str().unwrap();
        assert!(output.contains("token, because it may use"), "{output}");
    }
}

/// Without Landlock, only file modes protect against a child.
#[tokio::test]
async fn s03_a_world_readable_configuration_refuses_children_without_landlock() {
    if !is_root() {
        return;
    }
    let broker = builder()
        .single_process()
        .on(testkit::Topology::Sqlite)
        .config(json!({"stdio": {"sandbox": "uid"}}))
        .start()
        .await;
    let file = broker.folder().join("config.yaml");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    broker.admin().put_backend("default", "s", &stdio().spec()).await;
    let view = broker.admin().wait_backend_state("default", "s", "failed").await;
    let output = view["last_error"].as_str().unwrap();
    assert!(output.contains("can read "), "{output}");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    broker.admin().put_ready_backend("default", "t", &stdio().spec()).await;
}

#[tokio::test]
async fn s03_paths_of_a_backend_give_access_only_to_themselves() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    for name in ["read", "write", "neither"] {
        let path = folder.path().join(name);
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("file"), name).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
        std::fs::set_permissions(path.join("file"), std::fs::Permissions::from_mode(0o666))
            .unwrap();
    }
    let at = |name: &str| folder.path().join(name).display().to_string();
    let mut spec = stdio().spec();
    spec["sandbox"] = json!({"read": [at("read")], "write": [at("write")]});
    let builder = builder()
        .single_process()
        .config(json!({"stdio": {"sandbox": "landlock"}}))
        .backend("default", "s", spec);
    let broker = builder.start().await;
    let client = broker.client("/mcp/s").connected(json!({})).await;
    for (script, works) in [
        (format!("cat {}/file", at("read")), true),
        (format!("echo x >> {}/file", at("read")), false),
        (
            format!(
                "cat {0}/file && echo x > {0}/new && mv {0}/new {0}/newer && rm {0}/newer",
                at("write")
            ),
            true,
        ),
        (format!("cat {}/file", at("neither")), false),
        (format!("echo x > {}/new", at("neither")), false),
        ("cat /etc/shadow".to_owned(), false),
        ("echo x > /tmp/it-sandbox-witness".to_owned(), false),
    ] {
        let ended = shell(&client, &script).await;
        assert_eq!(ended["status"] == 0, works, "{script}: {ended}");
    }
    let shown = broker.cli(&["backend", "show", "s", "--tenant", "default"]).await;
    assert!(shown.stdout.contains("sandbox") && shown.stdout.contains("landlock"), "{shown:?}");
}

#[tokio::test]
async fn the_end_of_a_child_names_the_paths_that_its_user_cannot_reach() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let broker = builder().single_process().on(testkit::Topology::Sqlite).start().await;
    let spec = json!({
        "transport": {"type": "stdio", "command": "sh", "args": ["-c", "echo 'Error: no access' >&2; exit 1"]},
        "sandbox": {"write": [folder.path()]},
    });
    broker.admin().put_backend("default", "closed", &spec).await;
    let view = broker.admin().wait_backend_state("default", "closed", "failed").await;
    let error = view["last_error"].as_str().unwrap();
    let path = folder.path().display();
    let hint = format!("Error: no access; {path} is not writable by the user ");
    assert!(error.contains(&hint), "{view}");
    let unreachable = view["sandbox_unreachable"][0].as_str().unwrap();
    assert!(
        unreachable.ends_with("(mode 0700, owner 0)") && error.ends_with(unreachable),
        "{view}"
    );
}

#[tokio::test]
async fn a_permitted_path_that_the_user_of_a_child_cannot_write_is_a_warning() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let mode = |mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
    mode(0o755).unwrap();
    let broker = builder().single_process().on(testkit::Topology::Sqlite).start().await;
    let add = async |name: &str| {
        let add = ["backend", "add", name, "--write", path, "--", "sh", "-c", "exit 1"];
        broker.cli(&add).await
    };
    let added = add("d").await;
    assert_eq!(added.code, Some(0), "{added:?}");
    let warning = format!("warning: {path} is not writable by the user ");
    assert!(added.stderr.contains(&warning), "{added:?}");
    assert!(broker.cli(&["backend", "show", "d"]).await.stdout.contains("out of reach"));
    mode(0o1777).unwrap();
    let added = add("e").await;
    assert_eq!(added.code, Some(0), "{added:?}");
    assert!(!added.stderr.contains("not writable"), "{added:?}");
}

#[tokio::test]
async fn s03_without_network_a_child_opens_no_socket_of_the_internet() {
    let modes = if rustix::process::geteuid().is_root() {
        &["auto", "uid", "landlock"][..]
    } else {
        &["landlock"]
    };
    for mode in modes {
        let mut spec = stdio().spec();
        spec["sandbox"] = json!({"network": false});
        let builder = builder()
            .single_process()
            .config(json!({"stdio": {"sandbox": mode}}))
            .backend("default", "s", spec);
        let broker = builder.start().await;
        let client = broker.client("/mcp/s").connected(json!({})).await;
        let port = broker.http_address().port();
        for attempt in [
            format!("import socket; socket.create_connection(('127.0.0.1', {port}), 5)"),
            "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)".to_owned(),
            "import socket; socket.socket(socket.AF_INET6, socket.SOCK_STREAM)".to_owned(),
        ] {
            let ended = run(&client, &["python".to_owned(), attempt.clone()]).await;
            assert!(
                ended["status"] == 1 && ended["err"].as_str().unwrap().contains("not supported"),
                "{mode}: {attempt}: {ended}"
            );
        }
    }
}

/// Runs a script of Python below the launcher, which becomes it.
fn launched(options: &[&str], script: &str) -> String {
    let output = Command::new(binary())
        .arg("exec-child")
        .args(options)
        .args(["--", PYTHON, "-c", script])
        .current_dir("/")
        .output()
        .unwrap();
    assert!(output.status.success(), "{options:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn s03_system_calls_that_could_escape_a_sandbox_are_refused() {
    if std::env::consts::ARCH != "x86_64" {
        eprintln!("not run: the numbers of system calls below are those of x86-64");
        return;
    }
    let script = "
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    ctypes.set_errno(0)
    return ctypes.get_errno() if libc.syscall(*map(ctypes.c_long, arguments)) < 0 else 0
for number in (101, 310, 311, 165, 166, 321, 250, 246, 272, 308, 298, 155, 161, 323, 438, 429):
    print(call(number, 0, 0, 0, 0, 0))
print('namespaces', *[call(56, flag | 17, 0, 0, 0, 0) for flag in (0x20000, 0x10000000, 0x20000000, 0x40000000)])
print('missing', call(435, 0, 0), call(425, 1, 0), call(0x40000000 | 101, 0, 0, 0, 0))
print('typing', call(16, 0, 0x5412, 0))
";
    let output = launched(&["--sandbox=1"], script);
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[..16], ["1"; 16], "EPERM for each: {output}");
    assert_eq!(lines[16], "namespaces 1 1 1 1");
    assert_eq!(lines[17], "missing 38 38 38", "ENOSYS for each");
    assert_eq!(lines[18], "typing 1");
    // Processes, threads and programs still start.
    let works = "import subprocess, threading; t = threading.Thread(target=lambda: print('thread')); t.start(); t.join(); print(subprocess.run(['true']).returncode)";
    assert_eq!(launched(&["--sandbox=1"], works), "thread\n0\n");
}

/// Simulates a Landlock that does not know signals yet.
#[test]
fn s03_without_kernel_scopes_a_child_can_signal_only_its_own_group() {
    let script = "
import os, signal, subprocess, fcntl
def attempt(what):
    try: what(); return 'sent'
    except PermissionError: return 'refused'
own = os.getpid()
other = subprocess.Popen(['sleep', '60'])
print(attempt(lambda: os.kill(os.getppid(), 0)), attempt(lambda: os.kill(-1, 0)), attempt(lambda: os.kill(other.pid, 0)))
print(attempt(lambda: os.kill(own, 0)), attempt(lambda: os.kill(0, 0)), attempt(lambda: signal.pthread_kill(__import__('threading').get_ident(), 0)))
read, write = os.pipe()
print(attempt(lambda: fcntl.fcntl(read, fcntl.F_SETOWN, os.getppid())))
print(attempt(lambda: signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 0)))
signal.signal(signal.SIGTERM, signal.SIG_IGN); os.killpg(0, signal.SIGTERM); other.wait()
";
    let mut command = Command::new(binary());
    command.args(["exec-child", "--own-signals=1", "--", PYTHON, "-c", script]);
    let output =
        std::os::unix::process::CommandExt::process_group(&mut command, 0).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text, "refused refused refused\nsent sent sent\nrefused\nrefused\n", "{output:?}");
}

#[tokio::test]
async fn s04_variables_that_are_not_named_for_a_command_are_refused() {
    let program = stdio().spec()["transport"]["command"].as_str().unwrap().to_owned();
    let commands = json!([{"command": program, "env": ["LOG_LEVEL"]}, "npx"]);
    let broker =
        builder().single_process().config(json!({"stdio": {"commands": commands}})).start().await;
    let admin = broker.admin();
    for name in [
        "PYTHONWARNINGS",
        "BROWSER",
        "BASH_FUNC_x%%",
        "HOME",
        "NODE_EXTRA_CA_CERTS",
        "JDK_JAVA_OPTIONS",
        "GIT_SSH_COMMAND",
        "LD_PRELOAD",
    ] {
        for (command, allowed) in
            [(program.as_str(), "LOG_LEVEL"), ("npx", "no variables for this command")]
        {
            let body =
                json!({"transport": {"type": "stdio", "command": command, "env": {name: "x"}}});
            let answer =
                admin.send("PUT", "/admin/v1/tenants/default/backends/x", Some(&body)).await;
            assert!([400, 422].contains(&answer.status), "{name}");
            let text = answer.text().await;
            assert!(
                text.contains(&format!("transport.env.{name}")) && text.contains(allowed),
                "{name}: {text}"
            );
        }
    }
    admin.put_ready_backend("default", "s", &stdio().env("LOG_LEVEL", "debug").spec()).await;
}
