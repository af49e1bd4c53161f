//! Limits, descriptors and environment of child processes. They end with the broker.

use std::{path::Path, process::Command, time::Duration};

use serde_json::{Value, json};
use testkit::{
    TestBroker, TestClient, deadline::eventually_within, eventually, stdio::processes_with,
};

use crate::{binary, builder, kind, stdio, text_of};

fn spec(limits: Value) -> Value {
    let mut spec = stdio().spec();
    spec["transport"]["limits"] = limits;
    spec
}

async fn broker_with(spec: Value, config: Value) -> TestBroker {
    builder().single_process().config(config).backend("default", "s", spec).start().await
}

/// Opens a session with the backend's own names: the tools of this kind are not listed.
async fn session(broker: &TestBroker) -> TestClient {
    broker.client("/mcp/s").connected(json!({})).await
}

async fn call_tool(client: &TestClient, tool: &str, arguments: Value) -> Value {
    let answer = client.request("tools/call", json!({"name": tool, "arguments": arguments})).await;
    assert!(answer["result"].is_object(), "{tool}: {answer}");
    serde_json::from_str(text_of(&answer["result"])).unwrap()
}

#[tokio::test]
async fn a_35_a_child_gets_three_pipes_its_own_environment_and_no_privileges() {
    let folder = tempfile::tempdir().unwrap();
    let mut spec = stdio().env("CHILD_SETTING", "given").spec();
    spec["transport"]["cwd"] = json!(folder.path());
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    let broker = builder()
        .single_process()
        .env("BROKER_SECRET", "leak")
        .config(json!({"stdio": {"open_files": 100}}))
        .backend("default", "s", spec);
    let broker = broker.start().await;
    let client = session(&broker).await;
    // Sockets and files of the broker, and pipes of another child, are open by now.
    broker.connected(json!({"roots": {}})).await;
    let state = call_tool(&client, "state", json!({})).await;
    let descriptors = state["descriptors"].as_object().unwrap();
    let foreign: Vec<_> = descriptors
        .iter()
        .filter(|(number, to)| {
            let to = to.as_str().unwrap();
            let own =
                ["anon_inode:", "socket:", "/dev/null"].iter().any(|kind| to.starts_with(kind))
                    || to.contains("/proc/");
            !["0", "1", "2"].contains(&number.as_str()) && (!own || to.contains("broker.db"))
        })
        .filter(|(_, to)| !to.as_str().unwrap().starts_with("pipe:"))
        .collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    for number in ["0", "1", "2"] {
        assert!(descriptors[number].as_str().unwrap().starts_with("pipe:"), "{descriptors:?}");
    }
    let environment = state["environment"].as_object().unwrap();
    assert_eq!(environment["CHILD_SETTING"], "given");
    assert!(
        !state["environment"].to_string().contains("leak")
            && !environment.keys().any(|name| name.starts_with("MCP_BROKER")),
        "{environment:?}"
    );
    assert_eq!(state["no_new_privs"], "1");
    assert_eq!(state["folder"], json!(folder.path().canonicalize().unwrap()));
    assert_eq!(
        (&state["limits"]["Max open files"], &state["limits"]["Max core file size"]),
        (&json!("100"), &json!("0"))
    );
    assert_eq!(state["limits"]["Max data size"], json!((4_u64 << 30).to_string()), "the default");
    let arguments = state["arguments"].as_array().unwrap();
    assert!(
        !arguments.iter().any(|argument| argument == "exec-child"),
        "nothing of the launcher is left: {arguments:?}"
    );
}

#[tokio::test]
async fn a_child_cannot_exceed_its_limits_of_memory_and_descriptors() {
    let broker =
        broker_with(spec(json!({"memory": "128MiB", "open_files": 40, "cpu": "1h"})), json!({}))
            .await;
    let client = session(&broker).await;
    assert_eq!(call_tool(&client, "hog", json!({"bytes": 1_u64 << 30})).await, "refused");
    assert_eq!(call_tool(&client, "hog", json!({"bytes": 16 << 20})).await, "got");
    let opened = call_tool(&client, "open", json!({"count": 1_000})).await.as_u64().unwrap();
    assert!((1..40).contains(&opened), "{opened}");
    assert_eq!(call_tool(&client, "state", json!({})).await["limits"]["Max cpu time"], "3600");
    let view = broker.admin().backend("default", "s").await;
    assert_eq!(
        view["settings"]["transport"]["limits"],
        json!({"memory": "128MiB", "open_files": 40, "cpu": "1h"}),
        "{view}"
    );
}

/// Runs the launcher itself, as a user of its own if possible. The limit of processes counts by
/// user, and does not bind root.
#[test]
fn a_fork_bomb_is_bounded() {
    use std::os::unix::fs::PermissionsExt as _;
    let bomb = "n=0; while [ $n -lt 60 ]; do sleep 2 & n=$((n+1)); done; wait; echo all";
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let launcher = folder.path().join("mcp-broker");
    std::fs::copy(binary(), &launcher).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    let launch = |limit: &str| {
        let mut command = if is_root { Command::new("setpriv") } else { Command::new(&launcher) };
        if is_root {
            command.args(["--reuid", "54321", "--regid", "54321", "--clear-groups"]).arg(&launcher);
        }
        command
            .args(["exec-child", limit, "--", "sh", "-c", bomb])
            .current_dir("/")
            .output()
            .unwrap()
    };
    let free = launch("--processes=50000");
    assert!(String::from_utf8_lossy(&free.stdout).contains("all"), "{free:?}");
    let bounded = launch("--processes=20");
    let stderr = String::from_utf8_lossy(&bounded.stderr).to_lowercase();
    assert!(
        !String::from_utf8_lossy(&bounded.stdout).contains("all") && stderr.contains("fork"),
        "{bounded:?}"
    );
}

/// The child of another user too: the file belongs to root after the change of the user.
#[test]
fn the_kernel_ends_a_child_before_the_broker_if_memory_runs_out() {
    const FILE: &str = "/proc/self/oom_score_adj";
    let own: i32 = std::fs::read_to_string(FILE).unwrap().trim().parse().unwrap();
    let is_root = rustix::process::geteuid().is_root();
    let users = [None, is_root.then_some("--user=54321")];
    for user in users {
        let output = Command::new(binary())
            .arg("exec-child")
            .args(user)
            .args(["--", "cat", FILE])
            .current_dir("/")
            .output()
            .unwrap();
        let expected = format!("{}\n", (own + 500).min(1_000));
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{user:?}: {output:?}");
    }
}

#[test]
fn a_launcher_that_is_used_wrongly_starts_nothing() {
    for arguments in [
        &[][..],
        &["--"],
        &["sh"],
        &["--memory=x", "--", "true"],
        &["--parent=1", "--", "true"],
        &["--what=1", "--", "true"],
    ] {
        let output = Command::new(binary()).arg("exec-child").args(arguments).output().unwrap();
        assert_eq!(
            (output.status.code(), output.stdout.is_empty()),
            (Some(126), true),
            "{arguments:?}: {output:?}"
        );
    }
    let output =
        Command::new(binary()).args(["exec-child", "--", "/no/such/program"]).output().unwrap();
    assert_eq!(output.status.code(), Some(127), "{output:?}");
    let output =
        Command::new(binary()).args(["exec-child", "--", "sh", "-c", "exit 7"]).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{output:?}");
}

#[tokio::test]
async fn children_end_with_a_broker_that_is_killed() {
    let marker = format!("it-orphans-{}", std::process::id());
    let script = stdio().ignore_sigterm().ignore_stdin_close().marker(&marker);
    let mut broker = broker_with(script.spec(), json!({})).await;
    let clients =
        [session(&broker).await, broker.client("/mcp/s").connected(json!({"roots": {}})).await];
    for client in &clients {
        client.call("echo", json!({})).await;
    }
    assert!(processes_with(&marker).len() >= 2);
    broker.kill().await;
    eventually("the children to be gone", || async {
        let left = processes_with(&marker);
        if left.is_empty() { Ok(()) } else { Err(left) }
    })
    .await;
}

/// `kill -9` of the broker: it sends no signal to processes that a child has started itself.
#[tokio::test]
async fn b_23_processes_started_by_children_end_when_the_broker_is_killed() {
    let marker = format!("it-grandchildren-{}", std::process::id());
    let own = stdio().spec();
    let (program, arguments) = (
        own["transport"]["command"].as_str().unwrap(),
        own["transport"]["args"].as_array().unwrap(),
    );
    let quoted: Vec<String> =
        arguments.iter().map(|argument| format!("'{}'", argument.as_str().unwrap())).collect();
    // The grandchild holds none of the pipes, and handles signals that can be caught as it likes.
    let grandchild = format!(
        "sh -c 'trap \"\" TERM HUP INT PIPE; while :; do sleep 1; done' {marker} </dev/null >/dev/null 2>&1 &"
    );
    let script = format!("{grandchild} exec '{program}' {}", quoted.join(" "));
    let spec = json!({"transport": {"type": "stdio", "command": "sh", "args": ["-c", script]}, "sandbox": {"read": [program]}});
    let mut broker = broker_with(spec, json!({})).await;
    session(&broker).await.call("echo", json!({})).await;
    let gone = |what: &'static str| {
        let marker = marker.clone();
        eventually(what, move || {
            let left = processes_with(&marker);
            async move { if left.is_empty() { Ok(()) } else { Err(left) } }
        })
    };
    assert!(!processes_with(&marker).is_empty());
    broker.kill().await;
    gone("the grandchildren to be gone").await;

    // The process that watches for that may die itself: the next child's start brings another.
    broker.restart().await;
    session(&broker).await.call("echo", json!({})).await;
    let watching = testkit::stdio::processes_with("guard-children");
    let watching = watching.into_iter().filter(|pid| parent_of(*pid) == Some(broker.pid()));
    let watching: Vec<u32> = watching.collect();
    assert_eq!(watching.len(), 1, "one for all children");
    Command::new("kill").args(["-9", &watching[0].to_string()]).status().unwrap();
    broker.client("/mcp/s").connected(json!({"roots": {}})).await.call("echo", json!({})).await;
    broker.kill().await;
    gone("the grandchildren of both").await;
}

fn parent_of(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

#[tokio::test]
async fn a_34_a_command_is_not_executed_by_a_shell() {
    let folder = tempfile::tempdir().unwrap();
    let witness = folder.path().join("witness");
    let broker = builder().single_process().start().await;
    let admin = broker.admin();
    let touch = format!("touch {}", witness.display());
    for (name, transport) in [
        ("line", json!({"type": "stdio", "command": touch})),
        ("semicolon", json!({"type": "stdio", "command": format!("true; {touch}")})),
        ("subshell", json!({"type": "stdio", "command": format!("$({touch})")})),
        (
            "backtick",
            json!({"type": "stdio", "command": "true", "args": [format!("`{touch}`"), format!("; {touch}"), format!("| {touch}")]}),
        ),
        (
            "flag",
            json!({"type": "stdio", "command": "--help", "args": ["exec-child", "--", "touch", witness]}),
        ),
    ] {
        admin.put_backend("default", name, &json!({"transport": transport})).await;
        admin.wait_backend_state("default", name, "failed").await;
    }
    assert!(!witness.exists(), "nothing of it was read by a shell");
}

#[tokio::test]
async fn a_34_only_commands_the_operator_listed_are_registered_and_started() {
    let program = stdio().spec()["transport"]["command"].as_str().unwrap().to_owned();
    let folder = format!("{}/", Path::new(&program).parent().unwrap().display());
    let mut broker = builder()
        .single_process()
        .config(json!({"stdio": {"commands": [folder]}}))
        .backend("default", "s", stdio().spec())
        .start()
        .await;
    let admin = broker.admin();
    for (transport, field) in [
        (json!({"type": "stdio", "command": "sh", "args": ["-c", "true"]}), "transport.command"),
        (json!({"type": "stdio", "command": format!("{folder}../sh")}), "transport.command"),
        (
            json!({"type": "stdio", "command": program, "env": {"LD_PRELOAD": "/tmp/x.so"}}),
            "transport.env.LD_PRELOAD",
        ),
        (
            json!({"type": "stdio", "command": program, "env": {"NODE_OPTIONS": "--require /tmp/x.js"}}),
            "transport.env.NODE_OPTIONS",
        ),
    ] {
        let answer = admin
            .send(
                "PUT",
                "/admin/v1/tenants/default/backends/x",
                Some(&json!({"transport": transport})),
            )
            .await;
        assert!([400, 422].contains(&answer.status), "{transport}");
        let text = answer.text().await;
        assert!(text.contains(field), "{transport}: {text}");
    }
    // A backend that was stored before the list became shorter is not started any more.
    let config = broker.folder().join("config.yaml");
    let text = std::fs::read_to_string(&config).unwrap().replace(&folder, "/nowhere/");
    std::fs::write(&config, text).unwrap();
    assert!(broker.terminate().await.success());
    broker.restart().await;
    let view = broker.admin().wait_backend_state("default", "s", "failed").await;
    assert!(view["last_error"].as_str().unwrap().contains("stdio.commands"), "{view}");
}

#[tokio::test]
async fn a_tenant_cannot_exceed_its_limit_of_children() {
    // One of the children is the catalog's.
    let broker = broker_with(stdio().spec(), json!({"stdio": {"children_per_tenant": 3}})).await;
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let client = broker.client("/mcp/s").connected(json!({"roots": {}})).await;
        client.call("echo", json!({})).await;
        sessions.push(client);
    }
    let third = broker.client("/mcp/s").connected(json!({"roots": {}})).await;
    let error = third.error("tools/call", json!({"name": "echo", "arguments": {}})).await;
    assert_eq!(
        (kind(&error), &error["data"]["retryable"]),
        ("overloaded", &json!(true)),
        "{error}"
    );
    let view = broker.admin().backend("default", "s").await;
    assert!(view["last_error"].as_str().unwrap().contains("stdio.children_per_tenant"), "{view}");
    sessions.pop().unwrap().delete_session().await;
    eventually("room for another child", || async {
        let answer = third.request("tools/call", json!({"name": "echo", "arguments": {}})).await;
        if answer["result"].is_object() { Ok(()) } else { Err(answer) }
    })
    .await;
}

#[tokio::test]
async fn idle_and_old_children_are_replaced_by_new_ones() {
    for limits in [json!({"idle": "1s"}), json!({"lifetime": "1s"})] {
        let broker = broker_with(spec(limits.clone()), json!({})).await;
        let client = session(&broker).await;
        let pid = call_tool(&client, "pid", json!({})).await;
        eventually_within(Duration::from_secs(15), "another child", || async {
            // The view is read only once the first child is gone: a request keeps it from being
            // idle.
            if Path::new(&format!("/proc/{pid}")).exists() {
                return Err("still there");
            }
            Ok(())
        })
        .await;
        let next = call_tool(&client, "pid", json!({})).await;
        assert_ne!(pid, next, "{limits}");
        broker.wait_for_log("child process started tenant=default backend=s").await;
        broker.wait_for_log("the next request starts another one tenant=default backend=s").await;
    }
}

#[tokio::test]
async fn a_child_with_subscribers_is_not_idle() {
    let broker = broker_with(spec(json!({"idle": "1s"})), json!({})).await;
    let client = session(&broker).await;
    client.result("resources/subscribe", json!({"uri": "test://one"})).await;
    let pid = call_tool(&client, "pid", json!({})).await;
    // Children without subscribers end meanwhile, which were used later.
    for _ in 0..2 {
        let other = broker.client("/mcp/s").connected(json!({"roots": {}})).await;
        let other = call_tool(&other, "pid", json!({})).await;
        assert_ne!(other, pid);
        eventually_within(Duration::from_secs(15), "the end of an idle child", || async {
            let is_there = Path::new(&format!("/proc/{other}")).exists();
            if is_there { Err("still there") } else { Ok(()) }
        })
        .await;
    }
    assert_eq!(call_tool(&client, "pid", json!({})).await, pid);
    // Without its subscriber, it is.
    client.result("resources/unsubscribe", json!({"uri": "test://one"})).await;
    eventually_within(Duration::from_secs(15), "the end of the child", || async {
        let is_there = Path::new(&format!("/proc/{pid}")).exists();
        if is_there { Err("still there") } else { Ok(()) }
    })
    .await;
}
