//! Pins from a shell: list, diff, approve, block, the lock file, and `check-config --locked`.

use serde_json::{Value, json};
use testkit::TestBroker;

use super::{backend_of_each_kind, broker_with, described, pinned, show_tools, wait_state};
use crate::builder;

async fn ok(broker: &TestBroker, arguments: &[&str]) -> String {
    let finished = broker.cli(arguments).await;
    assert_eq!(finished.code, Some(0), "{arguments:?}: {finished:?}");
    finished.stdout
}

#[tokio::test]
async fn definitions_are_listed_and_approved_from_a_shell() {
    let backend = backend_of_each_kind().await;
    let broker = broker_with(&backend, json!("hold_changed")).await;
    let (admin, client) = (broker.admin(), broker.connected(json!({})).await);
    show_tools(&backend, vec![described("read", "Reads\u{202e} all."), described("write", "W.")])
        .await;
    wait_state(&admin, "tool", "read", "changed").await;
    let listed = ok(&broker, &["pins", "list", "b", "--state", "changed"]).await;
    assert_eq!(listed.lines().count(), 3, "{listed}");
    assert!(listed.contains("read") && listed.contains("hidden-direction"), "{listed}");
    let diff = ok(&broker, &["pins", "diff", "b/read"]).await;
    assert!(diff.contains("/description") && diff.contains("Reads<U+202E> all."), "{diff}");
    assert!(!diff.contains('\u{202e}'), "{diff}");
    let diff: Value =
        serde_json::from_str(&ok(&broker, &["pins", "diff", "b/tool/read", "--json"]).await)
            .unwrap();
    let old = format!("v1:{}", "0".repeat(64));
    let moved = broker.cli(&["pins", "approve", "b/read", "--hash", &old]).await;
    assert_eq!(moved.code, Some(1), "{moved:?}");
    assert!(moved.stderr.contains("has changed and now has the hash"), "{moved:?}");
    let hash = diff["hash"].as_str().unwrap();
    ok(&broker, &["pins", "approve", "b/read", "--hash", hash]).await;
    client.wait_tools(&["b__read"]).await;
    ok(&broker, &["pins", "block", "b/tool/read"]).await;
    client.wait_tools(&[]).await;
    ok(&broker, &["pins", "approve", "b/read"]).await;
    ok(&broker, &["pins", "approve", "--all", "--backend", "b"]).await;
    client.wait_tools(&["b__read", "b__write"]).await;
    for wrong in [&["pins", "approve"][..], &["pins", "approve", "--all"], &["pins", "diff", "b"]] {
        assert_eq!(broker.cli(wrong).await.code, Some(64), "{wrong:?}");
    }
}

#[tokio::test]
async fn a_lock_file_contains_accepted_definitions_and_reports_differences() {
    let backend = backend_of_each_kind().await;
    let broker = broker_with(&backend, json!("hold_all")).await;
    let admin = broker.admin();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mcp-broker.lock");
    let path = file.to_str().unwrap();
    let exported = ok(&broker, &["pins", "export"]).await;
    assert_eq!(ok(&broker, &["pins", "export", "--backend", "b"]).await, exported, "equal bytes");
    std::fs::write(&file, &exported).unwrap();
    assert!(ok(&broker, &["pins", "verify", path]).await.contains("ok: 6 definitions"));
    // What the file holds is approved, as a reviewed change of a repository is.
    ok(&broker, &["pins", "approve", "--locked", path]).await;
    let client = broker.connected(json!({})).await;
    client.wait_tools(&["b__read", "b__write"]).await;
    show_tools(&backend, vec![described("read", "Other."), described("new", "New.")]).await;
    wait_state(&admin, "tool", "write", "gone").await;
    let differs = broker.cli(&["pins", "verify", path]).await;
    assert_eq!(differs.code, Some(1), "{differs:?}");
    assert_eq!(
        differs.stdout,
        "b/tool/read: has another definition\nb/tool/write: is not listed any more\nb/tool/new: is not in the lock file\n"
    );
    let moved = broker.cli(&["pins", "approve", "--locked", path]).await;
    assert_eq!(moved.code, Some(1), "{moved:?}");
    assert!(moved.stderr.contains("\n  b/tool/read: has another definition\n"), "{moved:?}");
    std::fs::write(&file, exported.replace("\"version\": 1", "\"version\": one")).unwrap();
    let broken = broker.cli(&["pins", "verify", path]).await;
    assert_eq!(broken.code, Some(64), "{broken:?}");
    assert!(broken.stderr.contains("line 2 column"), "{broken:?}");
}

#[tokio::test]
async fn a_lock_file_is_approved_at_all_backends_or_none() {
    let backend = backend_of_each_kind().await;
    let broker = broker_with(&backend, json!("hold_all")).await;
    let spec = pinned(&backend, json!("hold_all")).to_string();
    let file = broker.folder().join("spec.json");
    std::fs::write(&file, spec).unwrap();
    ok(&broker, &["backend", "add", "z", "--spec", file.to_str().unwrap()]).await;
    let exported = ok(&broker, &["pins", "export"]).await;
    let mut lock: Value = serde_json::from_str(&exported).unwrap();
    lock["backends"]["z"]["tool"]["read"] = format!("v1:{}", "0".repeat(64)).into();
    let file = broker.folder().join("mcp-broker.lock");
    std::fs::write(&file, lock.to_string()).unwrap();
    let path = file.to_str().unwrap();
    let refused = broker.cli(&["pins", "approve", "--locked", path]).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("nothing is approved"), "{refused:?}");
    assert!(refused.stderr.ends_with("\n  z/tool/read: has another definition\n"), "{refused:?}");
    let pending = ok(&broker, &["pins", "list", "b", "--state", "trusted"]).await;
    assert_eq!(pending, "none\n", "the other backend has no approval either");
    ok(&broker, &["pins", "approve", "--locked", path, "--backend", "b"]).await;
    let trusted = ok(&broker, &["pins", "list", "b", "--state", "trusted"]).await;
    assert!(trusted.contains("read"), "{trusted}");
    let absent = broker.cli(&["pins", "diff", "b/nothing"]).await;
    assert!(absent.stderr.contains("pin b/tool/nothing does not exist"), "{absent:?}");
}

#[tokio::test]
async fn a_configuration_is_compared_with_a_lock_file() {
    let folder = tempfile::tempdir().unwrap();
    let (config, lock) = (folder.path().join("c.yaml"), folder.path().join("mcp-broker.lock"));
    let backend = backend_of_each_kind().await;
    let declared = |pins: &str| pinned(&backend, json!(pins));
    let yaml = json!({"backends": {"files": declared("hold_all"), "extra": declared("hold_all"), "free": declared("off")}});
    std::fs::write(&config, yaml.to_string()).unwrap();
    let hash = format!("v1:{}", "0".repeat(64));
    let tools = json!({"tool": {"read": hash}});
    let check = |locked: Value| {
        std::fs::write(&lock, locked.to_string()).unwrap();
        let arguments =
            ["check-config", config.to_str().unwrap(), "--locked", lock.to_str().unwrap()]
                .map(str::to_owned);
        let folder = folder.path().to_owned();
        async move {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            builder().run(&folder, &arguments).await
        }
    };
    let good =
        json!({"version": 1, "tenant": "default", "backends": {"files": tools, "extra": tools}});
    let finished = check(good).await;
    assert_eq!(finished.code, Some(0), "{finished:?}");
    let bad = json!({"version": 1, "tenant": "default", "backends": {"files": tools, "free": tools, "gone": tools}});
    let finished = check(bad).await;
    assert_eq!(finished.code, Some(64), "{finished:?}");
    for fault in [
        "backends.gone: the configuration has no such backend",
        "backends.free: has pins: off",
        "backends.extra: is missing",
    ] {
        assert!(finished.stdout.contains(fault), "{fault} in {finished:?}");
    }
    let finished = check(json!({"version": 1, "tenant": "default", "backends": {"files": {"tool": {"read": "abc"}}}})).await;
    assert_eq!(finished.code, Some(64));
    assert!(finished.stdout.contains("backends.files.tool.read: is not a hash"), "{finished:?}");
}
