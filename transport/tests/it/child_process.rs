//! Tests of stdio children: their input and output, their environment, and that no process of them
//! stays.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use bytes::Bytes;
use transport::{Child, ChildLimits, ChildSpec, INHERITED_ENV, ReadError, SpawnError, spawn};

use crate::{DEADLINE, soon, until};

/// Ignores the closed input and SIGTERM, as do the two processes it forks.
const STUBBORN: &str = "trap '' TERM; sleep 1000 & (sleep 1000 & sleep 1000) & echo ready; while :; do sleep 1000; done";

fn shell(script: &str) -> ChildSpec {
    ChildSpec { args: vec!["-c".to_owned(), script.to_owned()], ..ChildSpec::new("sh") }
}

fn quick() -> ChildLimits {
    ChildLimits {
        stdin_close: Duration::from_millis(30),
        term: Duration::from_millis(30),
        ..ChildLimits::default()
    }
}

async fn ready(spec: &ChildSpec, limits: &ChildLimits) -> Child {
    let mut child = spawn(spec, limits).unwrap();
    assert_eq!(next(&mut child).await.as_deref(), Some("ready"));
    child
}

async fn next(child: &mut Child) -> Option<String> {
    let line = soon("a line of the child", child.reader.next()).await.unwrap();
    line.map(|line| String::from_utf8_lossy(&line).into_owned())
}

/// Counts the members of the process group, from /proc. Zombies count only if this process has to
/// wait for them.
fn members(group: u32) -> usize {
    let ours = std::process::id().to_string();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let stats = processes.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    let in_group = stats.filter(|stat| {
        // pid (name) state parent group …, where the name may contain any character.
        let fields: Vec<&str> =
            stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().collect();
        fields.len() > 2
            && fields[2] == group.to_string()
            && (fields[0] != "Z" || fields[1] == ours)
    });
    in_group.count()
}

#[tokio::test]
async fn frames_pass_through_a_child_and_its_end_is_detected() {
    let mut child = spawn(&ChildSpec::new("cat"), &ChildLimits::default()).unwrap();
    let mut frames: Vec<Bytes> = (0..500).map(|n| Bytes::from(format!("{{\"id\":{n}}}"))).collect();
    child.writer.send_all(&mut frames).await.unwrap();
    for n in 0..500 {
        assert_eq!(next(&mut child).await.unwrap(), format!("{{\"id\":{n}}}"));
    }
    drop(child.writer);
    assert!(soon("the end of the output", child.reader.next()).await.unwrap().is_none());
    assert!(soon("the end of the child", child.process.wait()).await.success());
    assert!(soon("the same answer again", child.process.wait()).await.success());
    soon("the close", child.process.close()).await;
}

#[tokio::test]
async fn a_polite_child_gets_the_time_to_finish_and_no_signal() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let script = format!(
        "trap 'exit 9' TERM; echo ready; cat >/dev/null; echo clean >{}",
        file.path().display()
    );
    let limits = ChildLimits { stdin_close: DEADLINE, ..ChildLimits::default() };
    let child = ready(&shell(&script), &limits).await;
    drop(child.writer);
    soon("the close", child.process.close()).await;
    assert_eq!(fs::read_to_string(file.path()).unwrap(), "clean\n");
}

#[tokio::test]
async fn sigterm_comes_before_sigkill() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let script = format!(
        "trap 'echo term >{}; exit 0' TERM; echo ready; while :; do sleep 0.01; done",
        file.path().display()
    );
    let child = ready(&shell(&script), &ChildLimits { term: DEADLINE, ..quick() }).await;
    drop(child.writer);
    soon("the close", child.process.close()).await;
    assert_eq!(fs::read_to_string(file.path()).unwrap(), "term\n");
}

#[tokio::test]
async fn close_ends_a_stubborn_child_and_its_grandchildren() {
    let child = ready(&shell(STUBBORN), &quick()).await;
    let group = child.process.pid();
    until("the forks of the script", || members(group) >= 5).await;
    drop(child.writer);
    soon("the close", child.process.close()).await;
    assert_eq!(members(group), 0);
}

#[tokio::test]
async fn grandchildren_are_ended_after_their_parent_has_ended() {
    let mut child =
        ready(&shell("sleep 1000 & (trap '' TERM; sleep 1000) & echo ready; exit 3"), &quick())
            .await;
    let group = child.process.pid();
    assert_eq!(soon("the end of the leader", child.process.wait()).await.code(), Some(3));
    assert!(members(group) >= 2, "what it forked is still there");
    drop(child.writer);
    soon("the close", child.process.close()).await;
    assert_eq!(members(group), 0);
}

#[tokio::test]
async fn dropping_a_child_kills_its_group_at_once() {
    let child = ready(&shell(STUBBORN), &ChildLimits::default()).await;
    let group = child.process.pid();
    drop(child);
    until("the end of the group", || members(group) == 0).await;
}

#[tokio::test]
async fn dropping_the_group_of_a_dead_leader_kills_it_too() {
    let mut child = ready(&shell("sleep 1000 & echo ready"), &ChildLimits::default()).await;
    let group = child.process.pid();
    soon("the end of the leader", child.process.wait()).await;
    assert_eq!(members(group), 1);
    drop(child);
    until("the end of the group", || members(group) == 0).await;
}

#[tokio::test]
async fn dropping_a_close_half_way_kills_the_group() {
    let child =
        ready(&shell(STUBBORN), &ChildLimits { stdin_close: DEADLINE, ..ChildLimits::default() })
            .await;
    let group = child.process.pid();
    drop(child.writer);
    assert!(tokio::time::timeout(Duration::from_millis(10), child.process.close()).await.is_err());
    until("the end of the group", || members(group) == 0).await;
}

#[test]
fn a_child_that_outlives_its_runtime_is_killed() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let child = runtime.block_on(ready(&shell(STUBBORN), &ChildLimits::default()));
    let group = child.process.pid();
    drop(runtime);
    drop(child);
    let started = Instant::now();
    // No runtime is left to wait for the leader, so a zombie leader is allowed here.
    while members(group) > 1 && started.elapsed() < DEADLINE {
        std::thread::yield_now();
    }
    assert!(members(group) <= 1);
}

#[tokio::test]
async fn fifty_stubborn_children_at_once_leave_no_process() {
    let mut closing = tokio::task::JoinSet::new();
    for n in 0..50 {
        closing.spawn(async move {
            let child = ready(&shell(STUBBORN), &quick()).await;
            let group = child.process.pid();
            if n % 2 == 0 {
                drop(child.writer);
                child.process.close().await;
            }
            group
        });
    }
    let groups = soon("every close", closing.join_all()).await;
    for group in groups {
        until("the end of the group", || members(group) == 0).await;
    }
}

#[tokio::test]
async fn wait_is_cancel_safe() {
    let mut child = ready(&shell("echo ready; read line; exit 5"), &ChildLimits::default()).await;
    for _ in 0..10 {
        assert!(
            tokio::time::timeout(Duration::from_millis(1), child.process.wait()).await.is_err()
        );
    }
    child.writer.send_all(&mut vec![Bytes::from_static(b"go")]).await.unwrap();
    assert_eq!(soon("the end", child.process.wait()).await.code(), Some(5));
}

#[tokio::test]
async fn a_write_to_a_child_that_reads_nothing_fails() {
    let limits =
        ChildLimits { write_stall_max: Duration::from_millis(50), ..ChildLimits::default() };
    let mut child = ready(&shell("echo ready; exec sleep 1000"), &limits).await;
    // The pipe takes some of it.
    let mut frames = vec![Bytes::from(vec![b'x'; 1024 * 1024])];
    let written = soon("the failure", child.writer.send_all(&mut frames)).await;
    let error = written.unwrap_err().to_string();
    assert!(error.contains("does not read"), "{error}");
    soon("the close", child.process.close()).await;
}

#[tokio::test]
async fn a_flood_on_stderr_neither_blocks_the_child_nor_fills_memory() {
    let script = "head -c 5000000 /dev/zero | tr '\\0' x >&2; printf '\\033[1;31mlast\\033[0m\\twords\\r\\n\\007\\302\\233end' >&2; echo ready";
    let mut child =
        ready(&shell(script), &ChildLimits { stderr_bytes_max: 1000, ..ChildLimits::default() })
            .await;
    soon("the end", child.process.wait()).await;
    let tail = child.process.stderr_tail();
    assert!(tail.ends_with("xlast\twords\n\u{fffd}\u{fffd}end"), "{tail:?}");
    assert!(tail.chars().count() <= 1000);
}

#[tokio::test]
async fn the_stderr_tail_starts_at_a_whole_character() {
    for bytes_max in 1..8 {
        let script =
            "printf '\\342\\202\\254\\342\\202\\254\\342\\202\\254\\342\\202\\254' >&2; echo ready";
        let mut child = ready(
            &shell(script),
            &ChildLimits { stderr_bytes_max: bytes_max, ..ChildLimits::default() },
        )
        .await;
        soon("the end", child.process.wait()).await;
        assert_eq!(
            child.process.stderr_tail(),
            "\u{20ac}".repeat(bytes_max / 3),
            "of {bytes_max} bytes"
        );
    }
}

#[tokio::test]
async fn the_stderr_of_a_failed_child_is_complete_after_its_end() {
    let mut child =
        spawn(&shell("echo 'no such option' >&2; exit 2"), &ChildLimits::default()).unwrap();
    assert_eq!(soon("the end", child.process.wait()).await.code(), Some(2));
    assert_eq!(child.process.stderr_tail(), "no such option\n");
}

#[tokio::test]
async fn a_grandchild_that_keeps_stderr_open_does_not_block_wait() {
    let mut child = ready(&shell("sleep 1000 & echo oops >&2; echo ready; exit 1"), &quick()).await;
    assert_eq!(soon("the end", child.process.wait()).await.code(), Some(1));
    assert_eq!(child.process.stderr_tail(), "oops\n");
}

#[tokio::test]
async fn noise_on_stdout_is_passed_on_and_an_endless_line_is_refused() {
    let script = "printf 'Server starting\\n\\377\\376\\000\\n\\n{}\\n'; head -c 100000 /dev/zero | tr '\\0' x; sleep 1000";
    let mut child =
        spawn(&shell(script), &ChildLimits { line_bytes_max: 1000, ..quick() }).unwrap();
    assert_eq!(next(&mut child).await.unwrap(), "Server starting");
    assert_eq!(soon("the noise", child.reader.next()).await.unwrap().unwrap(), &b"\xff\xfe\0"[..]);
    assert_eq!(next(&mut child).await.unwrap(), "{}");
    assert!(matches!(
        soon("the refusal", child.reader.next()).await,
        Err(ReadError::TooLong { limit: 1000 })
    ));
    drop(child.writer);
    soon("the close", child.process.close()).await;
}

#[tokio::test]
async fn only_listed_variables_reach_the_child() {
    let mut spec = ChildSpec::new("env");
    spec.env = [("API_KEY", "secret"), ("LANG", "xx_XX")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    let mut child = spawn(&spec, &ChildLimits::default()).unwrap();
    let mut names = Vec::new();
    let mut lines = Vec::new();
    while let Some(line) = next(&mut child).await {
        names.push(line.split('=').next().unwrap().to_owned());
        lines.push(line);
    }
    assert!(
        std::env::var_os("CARGO_MANIFEST_DIR").is_some(),
        "the test runner's own environment has more"
    );
    assert!(
        names.iter().all(|name| name == "API_KEY" || INHERITED_ENV.contains(&name.as_str())),
        "{names:?}"
    );
    assert!(names.contains(&"PATH".to_owned()));
    assert!(lines.contains(&"API_KEY=secret".to_owned()));
    assert!(lines.contains(&"LANG=xx_XX".to_owned()), "the specification wins");

    let bare = ChildSpec {
        command: "/usr/bin/env".to_owned(),
        inherit_env: Vec::new(),
        ..ChildSpec::default()
    };
    let mut child = spawn(&bare, &ChildLimits::default()).unwrap();
    assert_eq!(next(&mut child).await, None);
}

#[tokio::test]
async fn the_child_runs_in_its_directory_and_leads_its_group() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().canonicalize().unwrap();
    let mut spec = shell("pwd -P; echo ready; read line");
    spec.cwd = Some(path.clone());
    let mut child = spawn(&spec, &ChildLimits::default()).unwrap();
    assert_eq!(next(&mut child).await.unwrap(), path.display().to_string());
    assert_eq!(next(&mut child).await.unwrap(), "ready");
    assert_eq!(members(child.process.pid()), 1);
}

#[tokio::test]
async fn a_failed_start_returns_its_reason() {
    let refusal = |spec: &ChildSpec| spawn(spec, &ChildLimits::default()).map(|_| ()).unwrap_err();
    let missing = refusal(&ChildSpec::new("no-such-command-anywhere"));
    assert_eq!(
        missing.to_string(),
        "command \"no-such-command-anywhere\" not found (or the interpreter it names)"
    );
    assert!(matches!(refusal(&ChildSpec::default()), SpawnError::NotFound { .. }));

    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("script");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    let script_spec = ChildSpec::new(script.to_str().unwrap());
    assert!(matches!(refusal(&script_spec), SpawnError::NotExecutable { .. }));
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(matches!(refusal(&script_spec), SpawnError::NotFound { .. }));

    let nowhere =
        ChildSpec { cwd: Some(directory.path().join("nowhere")), ..ChildSpec::new("cat") };
    assert!(matches!(refusal(&nowhere), SpawnError::WorkingDirectory { .. }));
    let on_a_file = ChildSpec { cwd: Some(script), ..ChildSpec::new("cat") };
    assert!(matches!(refusal(&on_a_file), SpawnError::WorkingDirectory { .. }));
    assert!(matches!(refusal(&ChildSpec::new("a\0b")), SpawnError::System { .. }));
}

#[test]
fn secrets_are_not_printed() {
    let mut spec =
        ChildSpec { args: vec!["--token=hunter2".to_owned()], ..ChildSpec::new("server") };
    spec.env.insert("TOKEN".to_owned(), "hunter2".to_owned());
    let printed = format!("{spec:?}");
    assert!(printed.contains("TOKEN") && !printed.contains("hunter2"), "{printed}");
}
