//! Files of `include.folder`, which the broker follows without a signal: a change is in force soon,
//! a fault of one file leaves the others alone.

use std::{os::unix::fs::symlink, path::Path};

use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{FakeBackend, TestBroker, eventually};

use crate::{builder, tokens::reload::reload};

/// Writes a file as an editor or a deployment does: complete under another name first.
fn write(folder: &Path, name: &str, content: &Value) {
    let unfinished = folder.join(format!(".{name}"));
    std::fs::write(&unfinished, content.to_string()).unwrap(); // JSON is YAML
    std::fs::rename(unfinished, folder.join(name)).unwrap();
}

async fn start(folder: &Path) -> TestBroker {
    builder()
        .single_process()
        .config(json!({"include": {"folder": folder, "interval": "100ms"}}))
        .start()
        .await
}

async fn view(broker: &TestBroker) -> Value {
    broker.admin().get("/admin/v1/configuration").await.1
}

/// Waits for the states of all files, `name=state` in the order of their names.
async fn wait_for_states(broker: &TestBroker, wanted: &[&str]) -> Value {
    eventually("the states of the files", || async {
        let view = view(broker).await;
        let none = Vec::new();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let files = view["files"].as_array().unwrap_or(&none).iter();
        let states: Vec<String> =
            files.map(|file| format!("{}={}", text(&file["name"]), text(&file["state"]))).collect();
        if states == wanted { Ok(view) } else { Err(view) }
    })
    .await
}

fn faults(view: &Value, file: usize) -> String {
    view["files"][file]["faults"].to_string()
}

async fn echoed(broker: &TestBroker, backend: &str) -> bool {
    let client = broker.connected(json!({})).await;
    let answer = client
        .request(
            "tools/call",
            json!({"name": format!("{backend}__echo"), "arguments": {"text": "hi"}}),
        )
        .await;
    answer.get("result").is_some()
}

async fn wait_ready(broker: &TestBroker, tenant: &str, backend: &str) {
    broker.admin().wait_backend_state(tenant, backend, "ready").await;
}

#[tokio::test]
async fn entries_of_files_are_added_changed_and_removed_without_a_signal() {
    let (one, two) = (FakeBackend::echo().await, FakeBackend::echo().await);
    let folder = TempDir::new().unwrap();
    write(folder.path(), "a.yaml", &json!({"backends": {"first": one.spec()}}));
    let broker = start(folder.path()).await;
    wait_for_states(&broker, &["a.yaml=applied"]).await;
    wait_ready(&broker, "default", "first").await;
    assert!(echoed(&broker, "first").await);

    write(
        folder.path(),
        "b.yaml",
        &json!({"tenants": {"acme": {}}, "backends": {"acme/second": two.spec(), "second": two.spec()}}),
    );
    let after = wait_for_states(&broker, &["a.yaml=applied", "b.yaml=applied"]).await;
    assert_eq!(after["generation"], 3, "the first reading and this one: {after}");
    wait_ready(&broker, "acme", "second").await;
    wait_ready(&broker, "default", "second").await;
    assert!(echoed(&broker, "second").await && echoed(&broker, "first").await);
    assert_eq!(broker.admin().metric("mcp_config_files", &[("state", "applied")]).await, Some(2.0));

    std::fs::remove_file(folder.path().join("a.yaml")).unwrap();
    wait_for_states(&broker, &["b.yaml=applied"]).await;
    assert_eq!(broker.admin().get("/admin/v1/tenants/default/backends/first").await.0, 404);
    assert!(!echoed(&broker, "first").await && echoed(&broker, "second").await);
}

#[tokio::test]
async fn a_faulty_file_keeps_its_accepted_entries_and_affects_no_other_file() {
    let backend = FakeBackend::echo().await;
    let folder = TempDir::new().unwrap();
    let good = |name: &str| json!({"backends": {name: backend.spec()}});
    write(folder.path(), "a.yaml", &good("a"));
    write(
        folder.path(),
        "b.yaml",
        &json!({"backends": {"b": {"transport": {"type": "quic"}}}, "auth": {}}),
    );
    let broker = start(folder.path()).await;
    let view = wait_for_states(&broker, &["a.yaml=applied", "b.yaml=refused"]).await;
    assert!(
        faults(&view, 1).contains("auth: is not allowed in a file of include.folder"),
        "{view}"
    );
    wait_ready(&broker, "default", "a").await;

    // Both change at once: one for the better, one for the worse.
    write(folder.path(), "a.yaml", &json!({"backends": {"a": {"transport": {"type": "http"}}}}));
    write(folder.path(), "b.yaml", &good("b"));
    let view = wait_for_states(&broker, &["a.yaml=outdated", "b.yaml=applied"]).await;
    assert!(faults(&view, 0).contains("backends.default/a.transport.url: is missing"), "{view}");
    wait_ready(&broker, "default", "b").await;
    assert!(echoed(&broker, "a").await && echoed(&broker, "b").await);
    assert_eq!(
        broker.admin().metric("mcp_config_files", &[("state", "outdated")]).await,
        Some(1.0)
    );
    broker.wait_for_log("a file of include.folder is not applied").await;

    write(folder.path(), "a.yaml", &good("a"));
    wait_for_states(&broker, &["a.yaml=applied", "b.yaml=applied"]).await;
    assert!(echoed(&broker, "a").await);
}

#[tokio::test]
async fn an_entry_is_declared_in_one_file_and_its_tenant_may_be_in_another() {
    let backend = FakeBackend::echo().await;
    let folder = TempDir::new().unwrap();
    let broker = start(folder.path()).await;
    broker.admin().put_ready_backend("default", "stored", &backend.spec()).await;
    // The backend's file comes before the file of its tenant.
    write(folder.path(), "a.yaml", &json!({"backends": {"acme/x": backend.spec()}}));
    write(folder.path(), "z.yaml", &json!({"tenants": {"acme": {}}}));
    wait_for_states(&broker, &["a.yaml=applied", "z.yaml=applied"]).await;
    wait_ready(&broker, "acme", "x").await;

    write(folder.path(), "b.yaml", &json!({"backends": {"stored": backend.spec()}}));
    write(folder.path(), "c.yaml", &json!({"backends": {"acme/x": backend.spec()}}));
    write(folder.path(), "d.yaml", &json!({"backends": {"ghost/x": backend.spec()}}));
    write(folder.path(), "e.yaml", &json!({"backends": {"fine": backend.spec()}}));
    let states = [
        "a.yaml=applied",
        "b.yaml=refused",
        "c.yaml=refused",
        "d.yaml=refused",
        "e.yaml=applied",
        "z.yaml=applied",
    ];
    let view = wait_for_states(&broker, &states).await;
    assert!(faults(&view, 1).contains("both stored and declared"), "{view}");
    assert!(faults(&view, 2).contains("backends.acme/x: is declared twice"), "{view}");
    assert!(faults(&view, 3).contains("tenant ghost does not exist"), "{view}");
    wait_ready(&broker, "default", "fine").await;

    // The tenant cannot go before its backend.
    std::fs::remove_file(folder.path().join("z.yaml")).unwrap();
    broker.wait_for_log("include.folder is not applied").await;
    wait_ready(&broker, "acme", "x").await;
    for name in ["a.yaml", "b.yaml", "c.yaml", "d.yaml"] {
        std::fs::remove_file(folder.path().join(name)).unwrap();
    }
    wait_for_states(&broker, &["e.yaml=applied"]).await;
    assert_eq!(broker.admin().get("/admin/v1/tenants/acme/backends/x").await.0, 404);
}

#[tokio::test]
async fn a_refused_file_is_applied_when_its_conflict_ends() {
    let (backend, other) = (FakeBackend::echo().await, FakeBackend::echo().await);
    let folder = TempDir::new().unwrap();
    let broker = start(folder.path()).await;
    let admin = broker.admin();
    let of = |names: &[&str]| {
        let entries = names.iter().map(|name| ((*name).to_owned(), backend.spec()));
        json!({"backends": entries.collect::<serde_json::Map<_, _>>()})
    };
    admin.put_ready_backend("default", "stored", &other.spec()).await;
    write(folder.path(), "a.yaml", &of(&["x", "kept"]));
    wait_for_states(&broker, &["a.yaml=applied"]).await;
    wait_ready(&broker, "default", "x").await;
    write(folder.path(), "b.yaml", &of(&["x"]));
    write(folder.path(), "c.yaml", &of(&["stored"]));
    write(folder.path(), "d.yaml", &of(&["acme/y"]));
    let states = ["a.yaml=applied", "b.yaml=refused", "c.yaml=refused", "d.yaml=refused"];
    let before = wait_for_states(&broker, &states).await;

    // The entry moves to the file that was refused: it never ends.
    write(folder.path(), "a.yaml", &of(&["kept"]));
    let states = ["a.yaml=applied", "b.yaml=applied", "c.yaml=refused", "d.yaml=refused"];
    let after = wait_for_states(&broker, &states).await;
    assert_eq!(after["generation"], before["generation"], "nothing changed: {after}");
    assert_eq!(after["files"][1]["read_at"], before["files"][1]["read_at"]);
    assert!(echoed(&broker, "x").await);

    write(folder.path(), "z.yaml", &json!({"tenants": {"acme": {}}}));
    let states = ["a.yaml=applied", "b.yaml=applied", "c.yaml=refused", "d.yaml=applied"];
    wait_for_states(&broker, &[&states[..], &["z.yaml=applied"]].concat()).await;
    wait_ready(&broker, "acme", "y").await;

    // The tenant moves too, while a file stays refused.
    std::fs::remove_file(folder.path().join("z.yaml")).unwrap();
    write(folder.path(), "e.yaml", &json!({"tenants": {"acme": {}}}));
    wait_for_states(&broker, &[&states[..], &["e.yaml=applied"]].concat()).await;
    assert_eq!(admin.get("/admin/v1/tenants/acme/backends/y").await.0, 200);

    // No file changes.
    let (status, _) = admin.delete("/admin/v1/tenants/default/backends/stored").await;
    assert_eq!(status, 204);
    let states = ["a.yaml=applied", "b.yaml=applied", "c.yaml=applied", "d.yaml=applied"];
    wait_for_states(&broker, &[&states[..], &["e.yaml=applied"]].concat()).await;
    wait_ready(&broker, "default", "stored").await;
    let log = broker.log();
    let logged =
        log.lines().filter(|line| line.contains("a file of include.folder is not applied"));
    assert_eq!(logged.count(), 3, "each fault once: {log}");
}

#[tokio::test]
async fn a_reload_tries_refused_files_again_at_once() {
    let backend = FakeBackend::echo().await;
    let folder = TempDir::new().unwrap();
    write(folder.path(), "a.yaml", &json!({"backends": {"main": backend.spec()}}));
    let broker = builder()
        .single_process()
        .config(json!({
            "backends": {"main": backend.spec()},
            "include": {"folder": folder.path(), "interval": "1h"},
        }))
        .start()
        .await;
    let view = wait_for_states(&broker, &["a.yaml=refused"]).await;
    assert!(faults(&view, 0).contains("is declared twice"), "{view}");
    reload(&broker, |config| {
        config["backends"].as_object_mut().unwrap().clear();
    })
    .await;
    wait_for_states(&broker, &["a.yaml=applied"]).await;
    wait_ready(&broker, "default", "main").await;
    // The entry moved to the file that was refused: it never ended.
    let audit = broker.admin().get("/admin/v1/audit?kind=admin&limit=1000").await.1;
    let records = audit["records"].as_array().unwrap().iter();
    let reloads: Vec<&Value> =
        records.filter(|one| one["action"] == "reload").map(|one| &one["target"]).collect();
    assert_eq!(reloads, ["0 tenants, 0 backends, 0 issuers, 0 documents"], "{audit}");
}

/// A check of a file can wait for another file for ever, such as for a pipe in place of a key.
#[tokio::test]
async fn a_stop_ends_a_check_that_hangs() {
    let (folder, pipes) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let pipe = pipes.path().join("cert");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut broker = start(folder.path()).await;
    let transport = json!({"type": "http", "url": "https://127.0.0.1:9/mcp"});
    let body = json!({
        "transport": transport,
        "tls": {"client_cert": pipe, "client_key": pipes.path().join("key")},
    });
    write(folder.path(), "a.yaml", &json!({"backends": {"b": body}}));
    let _unread = eventually("a check that reads the pipe", || async {
        tokio::net::unix::pipe::OpenOptions::new().open_sender(&pipe)
    })
    .await;
    broker.request_shutdown();
    assert_eq!(broker.wait_for_exit().await.code(), Some(0));
}

#[tokio::test]
async fn many_files_with_conflicts_need_few_checks() {
    const FILES: usize = 60;
    let backend = FakeBackend::echo().await;
    let folder = TempDir::new().unwrap();
    let broker = builder()
        .single_process()
        .config(json!({"include": {"folder": folder.path(), "interval": "1h"}}))
        .start()
        .await;
    let mut states = Vec::new();
    for number in 0..FILES {
        let entry = |name: String| json!({"backends": {name: backend.spec()}});
        for (kind, entry, state) in [
            ("a-first", entry(format!("b{number}")), "applied"),
            ("b-again", entry(format!("b{number}")), "refused"),
            ("c-lost", entry(format!("ghost/b{number}")), "refused"),
        ] {
            let name = format!("{kind}-{number:02}.yaml");
            write(folder.path(), &name, &entry);
            states.push(format!("{name}={state}"));
        }
    }
    states.sort();
    let checks = async || {
        let labels = [("operation", "list_operators")];
        broker.admin().metric("mcp_store_seconds_count", &labels).await.unwrap_or_default()
    };
    let before = checks().await;
    reload(&broker, |_| {}).await;
    let states: Vec<&str> = states.iter().map(String::as_str).collect();
    let view = wait_for_states(&broker, &states).await;
    let made = checks().await - before;
    assert!(made < 20.0, "{made} checks");
    assert!(faults(&view, FILES + 7).contains("backends.default/b7: is declared twice"), "{view}");
    assert!(faults(&view, FILES + 7).contains("also in a-first-07.yaml"), "{view}");
    assert!(faults(&view, 2 * FILES + 7).contains("backends.ghost/b7"), "{view}");
}

#[tokio::test]
async fn a_change_of_a_policy_alone_is_a_generation_with_a_record() {
    let folder = TempDir::new().unwrap();
    let policy = |policy: Value| json!({"tenants": {"acme": {"policy": policy}}});
    write(folder.path(), "a.yaml", &policy(json!({})));
    let broker = start(folder.path()).await;
    let before = wait_for_states(&broker, &["a.yaml=applied"]).await["generation"].clone();
    assert_eq!(before, 2, "the first reading");
    write(folder.path(), "a.yaml", &policy(json!({"default": "deny"})));
    eventually("the next generation", || async {
        let view = view(&broker).await;
        if view["generation"] == 3 { Ok(()) } else { Err(view) }
    })
    .await;
    eventually("the record of the reload", || async {
        let records = broker.admin().get("/admin/v1/audit?kind=admin&limit=1000").await.1;
        let is_it = |record: &Value| {
            record["action"] == "reload"
                && record["target"] == "0 tenants, 0 backends, 0 issuers, 1 documents"
        };
        let found = records["records"].as_array().is_some_and(|all| all.iter().any(is_it));
        if found { Ok(()) } else { Err(records) }
    })
    .await;
}

/// Such as a copy of a file that replaces it.
#[tokio::test]
async fn a_refused_file_leaves_its_entries_to_another_one() {
    let backend = FakeBackend::echo().await;
    let folder = TempDir::new().unwrap();
    let lost = json!({"backends": {"one": backend.spec(), "ghost/lost": backend.spec()}});
    write(folder.path(), "a.yaml", &lost);
    write(folder.path(), "b.yaml", &json!({"backends": {"one": backend.spec()}}));
    let broker = start(folder.path()).await;
    let view = wait_for_states(&broker, &["a.yaml=refused", "b.yaml=applied"]).await;
    // Its tenant is missing too. The last attempt was made when the other file was in force.
    let expected = "backends.default/one: is declared twice, also in b.yaml";
    assert!(faults(&view, 0).contains(expected), "{view}");
    assert!(echoed(&broker, "one").await);
}

#[tokio::test]
async fn a_config_map_changes_by_its_link_and_a_missing_folder_changes_nothing() {
    let backend = FakeBackend::echo().await;
    let root = TempDir::new().unwrap();
    let folder = root.path().join("config.d");
    let version = |number: u32, name: &str| {
        let data = folder.join(format!("..{number}"));
        std::fs::create_dir_all(&data).unwrap();
        write(&data, "team.yaml", &json!({"backends": {name: backend.spec()}}));
        let link = folder.join("..new");
        symlink(format!("..{number}"), &link).unwrap();
        std::fs::rename(link, folder.join("..data")).unwrap();
    };
    version(1, "one");
    symlink("..data/team.yaml", folder.join("team.yaml")).unwrap();
    let broker = start(&folder).await;
    wait_ready(&broker, "default", "one").await;
    version(2, "two");
    wait_ready(&broker, "default", "two").await;
    assert_eq!(broker.admin().get("/admin/v1/tenants/default/backends/one").await.0, 404);

    let away = root.path().join("away");
    std::fs::rename(&folder, &away).unwrap();
    broker.wait_for_log("include.folder is not applied").await;
    assert!(view(&broker).await["refused"]["faults"].to_string().contains("cannot be read"));
    let refused = async |count: f64| {
        let labels = [("state", "refused")];
        broker.admin().wait_metric("mcp_config_files", &labels, |now| now == count).await;
    };
    refused(1.0).await;
    assert!(echoed(&broker, "two").await);
    std::fs::rename(&away, &folder).unwrap();
    eventually("the folder is read again", || async {
        let view = view(&broker).await;
        if view.get("refused").is_none() { Ok(()) } else { Err(view) }
    })
    .await;
    wait_for_states(&broker, &["team.yaml=applied"]).await;
    refused(0.0).await;
}

#[tokio::test]
async fn a_start_warns_of_settings_without_an_effect_and_of_no_others() {
    let backend = FakeBackend::echo().await;
    let folder = TempDir::new().unwrap();
    let file = json!({"tenants": {"search": {}}, "backends": {"search/docs": backend.spec()}});
    write(folder.path(), "search.yaml", &file);
    let mut broker = start(folder.path()).await;
    let tenant = "/admin/v1/tenants/search";
    let deny =
        json!({"rules": [{"id": "a", "effect": "deny", "objects": {"tools": ["docs/delete"]}}]});
    let tools = json!({"include": {"tools": ["docs/echo"]}});
    for (path, document) in [("policy", deny), ("toolsets/read", tools)] {
        let (status, answer) = broker.admin().put(&format!("{tenant}/{path}"), &document).await;
        assert!([200, 201].contains(&status), "{status} {answer}");
    }
    let warnings = [
        "a rule of the policy cannot",
        "a selector of the toolset cannot",
        "the configuration file does not declare this tenant now: the broker keeps the tenant disabled",
    ];
    assert!(broker.terminate().await.success());
    broker.restart().await;
    wait_for_states(&broker, &["search.yaml=applied"]).await;
    for warning in warnings {
        assert!(!broker.log().contains(warning), "{warning}: {}", broker.log());
    }

    assert!(broker.terminate().await.success());
    std::fs::remove_file(folder.path().join("search.yaml")).unwrap();
    broker.restart().await;
    for warning in warnings {
        broker.wait_for_log(warning).await;
    }
}

#[tokio::test]
async fn a_refusal_lasts_until_its_own_source_is_applied() {
    let backend = FakeBackend::echo().await;
    let root = TempDir::new().unwrap();
    let (folder, away) = (root.path().join("config.d"), root.path().join("away"));
    let file = |name: &str| json!({"backends": {name: backend.spec()}});
    std::fs::create_dir(&folder).unwrap();
    write(&folder, "a.yaml", &file("a"));
    let broker = start(&folder).await;
    wait_for_states(&broker, &["a.yaml=applied"]).await;
    let refused = async |wanted: Option<&str>| {
        eventually("the refusal", || async {
            let view = view(&broker).await;
            let faults = view.get("refused").map(|refused| refused["faults"].to_string());
            let is_wanted = match (wanted, &faults) {
                (Some(wanted), Some(faults)) => faults.contains(wanted),
                (None, None) => true,
                _ => false,
            };
            if is_wanted { Ok(()) } else { Err(view) }
        })
        .await;
    };
    let misspell = |config: &mut Value| config["timeouts"] = json!({"call": "soon"});
    let correct = |config: &mut Value| config["timeouts"] = json!({"call": "9s"});

    // The folder fails and recovers while the main file stays refused.
    reload(&broker, misspell).await;
    refused(Some("timeouts.call")).await;
    std::fs::rename(&folder, &away).unwrap();
    broker.wait_for_log("include.folder is not applied").await;
    refused(Some("timeouts.call")).await;
    write(&away, "b.yaml", &file("b"));
    std::fs::rename(&away, &folder).unwrap();
    wait_for_states(&broker, &["a.yaml=applied", "b.yaml=applied"]).await;
    refused(Some("timeouts.call")).await;
    reload(&broker, correct).await;
    refused(None).await;

    // The main file fails and recovers while the folder stays refused.
    std::fs::rename(&folder, &away).unwrap();
    refused(Some("cannot be read")).await;
    reload(&broker, misspell).await;
    refused(Some("timeouts.call")).await;
    reload(&broker, correct).await;
    refused(Some("cannot be read")).await;
    std::fs::rename(&away, &folder).unwrap();
    refused(None).await;
}

#[tokio::test]
async fn check_config_names_the_file_of_each_fault() {
    let folder = TempDir::new().unwrap();
    let broker = builder().single_process().start().await;
    std::fs::create_dir(folder.path().join("config.d")).unwrap();
    let file = folder.path().join("mcp-broker.yaml");
    std::fs::write(&file, "include: {folder: config.d}\n").unwrap();
    let check = async || broker.cli(&["check-config", file.to_str().unwrap()]).await;
    write(&folder.path().join("config.d"), "a.yaml", &json!({"tenants": {"acme": {}}}));
    let good = check().await;
    assert!(good.code == Some(0) && good.stdout.contains("1 included file"), "{}", good.stdout);
    write(
        &folder.path().join("config.d"),
        "b.yaml",
        &json!({"limits": {}, "tenants": {"acme": {"weight": 0}}}),
    );
    write(&folder.path().join("config.d"), "c.yaml", &json!({"tenants": {"acme": {}, "Bad": {}}}));
    let bad = check().await;
    assert_eq!(bad.code, Some(64), "{}", bad.stdout);
    for start in [
        "b.yaml: limits: is not allowed",
        "c.yaml: tenants.acme: is declared twice",
        "c.yaml: tenants.Bad: is not a name",
    ] {
        assert!(bad.stdout.contains(start), "{start}: {}", bad.stdout);
    }
}

/// The author of a file chooses the address that gets the secret.
#[tokio::test]
async fn a_file_cannot_make_the_broker_send_its_own_secrets() {
    let backend = FakeBackend::echo().await;
    let (folder, secrets) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (own, link) = (secrets.path().join("admin"), secrets.path().join("link"));
    std::fs::write(&own, "sixteen-characters-at-least").unwrap();
    symlink(&own, &link).unwrap();
    let team = secrets.path().join("team");
    std::fs::write(&team, "of-the-team").unwrap();
    let with_bearer = |file: &Path| {
        let mut body = backend.spec();
        body["credentials"] = json!({"bearer_file": file});
        json!({"backends": {"b": body}})
    };
    write(folder.path(), "a.yaml", &with_bearer(&link));
    let broker = builder()
        .single_process()
        .admin_token("sixteen-characters-at-least")
        .config(json!({"auth": {"admin_token": null, "admin_token_file": own}}))
        .config(json!({"include": {"folder": folder.path(), "interval": "100ms"}}))
        .start()
        .await;
    let refused = wait_for_states(&broker, &["a.yaml=refused"]).await;
    let wanted =
        "backends.default/b.credentials.bearer_file: names a file with a secret of the broker";
    assert!(faults(&refused, 0).contains(wanted), "{refused}");
    assert_eq!(backend.recorded().len(), 0, "no request of the broker has the secret");
    write(folder.path(), "a.yaml", &with_bearer(&team));
    wait_for_states(&broker, &["a.yaml=applied"]).await;
    wait_ready(&broker, "default", "b").await;
}
