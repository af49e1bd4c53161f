//! The command line: exit codes, output, and the admin API from a shell.

use serde_json::{Value, json};
use testkit::{FakeBackend, Topology, broker::CommandOutput, eventually};

use crate::{alone_with, builder};

async fn run(arguments: &[&str]) -> CommandOutput {
    let folder = tempfile::tempdir().unwrap();
    builder().run(folder.path(), arguments).await
}

async fn run_with_config(command: &[&str], config: &str) -> CommandOutput {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("c.yaml");
    std::fs::write(&file, config).unwrap();
    let mut arguments = command.to_vec();
    let path = file.to_str().unwrap().to_owned();
    arguments.push(&path);
    builder().run(folder.path(), &arguments).await
}

#[tokio::test]
async fn bad_usage_exits_64() {
    for arguments in
        [&["nonsense"][..], &[], &["serve", "--nonsense"], &["check-config"], &["backend", "dance"]]
    {
        let finished = run(arguments).await;
        assert_eq!(finished.code, Some(64), "{arguments:?}: {finished:?}");
        assert!(!finished.stderr.is_empty(), "{arguments:?}");
    }
    for arguments in [&["help", "serv"][..], &["help", "backend", "lst"]] {
        let finished = run(arguments).await;
        assert_eq!(finished.code, Some(64), "{arguments:?}: {finished:?}");
        assert!(finished.stderr.contains("tip: a similar subcommand exists"), "{finished:?}");
    }
    let command = run(&["backend", "add", "files", "npx", "-y", "server"]).await;
    assert_eq!(command.code, Some(64), "{command:?}");
    assert!(command.stderr.contains("-- <COMMAND>..."), "a program needs `--`: {command:?}");
    for arguments in [&["--help"][..], &["--version"], &["serve", "--help"]] {
        let finished = run(arguments).await;
        assert_eq!(finished.code, Some(0), "{arguments:?}: {finished:?}");
        assert!(finished.stdout.contains("mcp-broker"), "{arguments:?}");
    }
}

#[tokio::test]
async fn check_config_names_every_fault_on_its_own_line() {
    let good = run_with_config(&["check-config"], "listen: {http: '127.0.0.1:0'}\n").await;
    assert_eq!(good.code, Some(0), "{good:?}");
    let faulty = "listen: {http: nowhere}\nbreaker: {failures: 0}\ncompat: {x: 1}\nerrors: {x: 1}\nlimits: {burst: -1, brust: 2}\ntimeouts: {call: soon}\ncolour: red\n";
    let finished = run_with_config(&["check-config"], faulty).await;
    assert_eq!(finished.code, Some(64), "{finished:?}");
    let output = format!("{}{}", finished.stdout, finished.stderr);
    for path in [
        "listen.http",
        "breaker.failures",
        "compat.x",
        "errors.x",
        "limits.burst",
        "limits.brust",
        "timeouts.call",
        "colour",
    ] {
        assert!(output.lines().any(|line| line.contains(path)), "{path} in {output}");
    }
    assert!(output.contains("not available in this build"), "{output}");
    for (text, output) in [
        ("tenants: {a: {foo: 1}}\n", "timeouts, policy, toolsets, prompts"),
        (
            "tenants: {a: {toolsets: {Set: {include: {tools: ['b/x']}}}}}\n",
            "is not a name for a toolset; allowed: 1 to 32 characters of a-z 0-9 and -",
        ),
        (
            "tenants: {a: {prompts: {a__b: {messages: []}}}}\n",
            "is not a name for a prompt; allowed: 1 to 64 letters, digits, '-' and '_', without '__'",
        ),
        ("limits: {}\nlimits: {}\n", "document: is not YAML: duplicate mapping key `limits`"),
        ("a: 1\n---\nb: 2\n", "document: is not YAML: only single YAML document expected"),
    ] {
        let checked = run_with_config(&["check-config"], text).await;
        assert!(checked.stdout.contains(output), "{checked:?}");
        assert!(!checked.stdout.contains("Options"), "words of a library: {checked:?}");
    }
    let size = run_with_config(&["check-config"], "limits: {message_bytes: 5}\n").await;
    assert_eq!(size.stdout.matches("limits.message_bytes").count(), 1, "{size:?}");
    assert_eq!(run(&["check-config", "/no/such/file"]).await.code, Some(64));
}

#[tokio::test]
async fn check_config_reads_the_certificates_that_serve_needs() {
    for keys in [
        "cert_file: /no/cert.pem, key_file: /no/key.pem",
        "self_signed: true, client_auth: required, client_ca_file: /no/ca.pem",
    ] {
        let text = format!("tls: {{{keys}}}\n");
        let checked = run_with_config(&["check-config"], &text).await;
        assert_eq!(checked.code, Some(64), "{checked:?}");
        let output = checked.stdout;
        assert!(output.starts_with("tls: /no/") && output.contains("cannot be read"), "{output}");
    }
}

#[tokio::test]
async fn check_config_names_tenants_that_are_not_declared() {
    let text = "backends: {acme/files: {transport: {type: http, url: 'http://127.0.0.1:9/'}}}\n";
    let checked = run_with_config(&["check-config"], text).await;
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert!(checked.stdout.contains("does not declare the tenant acme"), "{checked:?}");
    let declared = format!("tenants: {{acme: {{}}}}\n{text}");
    let checked = run_with_config(&["check-config"], &declared).await;
    assert!(!checked.stdout.contains("note:"), "{checked:?}");
    let operators = "auth: {operators: [
        {name: a, role: viewer, tenants: [acme, amce, default], token: aaaaaaaaaaaaaaaa},
        {name: b, role: backend_owner, backends: [acme/files, acme/fles], token: bbbbbbbbbbbbbbbb}]}\n";
    let checked = run_with_config(&["check-config"], &format!("{declared}{operators}")).await;
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let notes: Vec<&str> =
        checked.stdout.lines().filter(|line| line.starts_with("note:")).collect();
    assert_eq!(notes.len(), 2, "{checked:?}");
    for (note, missing) in notes.into_iter().zip([
        "auth.operators[0]: the file does not declare the tenant amce;",
        "auth.operators[1]: the file does not declare the backend acme/fles;",
    ]) {
        assert!(note.contains(missing), "{checked:?}");
    }
}

#[tokio::test]
async fn a_variable_with_one_underscore_is_named_with_the_one_that_was_meant() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("c.yaml");
    std::fs::write(&file, "").unwrap();
    let file = file.to_str().unwrap();
    let expected = "the variable MCP_BROKER_LIMITS_BURST has no effect, perhaps MCP_BROKER__LIMITS__BURST was meant";
    let with_mistake =
        || builder().env("MCP_BROKER_LIMITS_BURST", "9").env("MCP_BROKER_ADMIN_URL", "x");
    let checked = with_mistake().run(folder.path(), &["check-config", file]).await;
    assert_eq!(checked.code, Some(0), "{checked:?}");
    assert_eq!(checked.stdout.matches("has no effect").count(), 1, "{checked:?}");
    assert!(checked.stdout.contains(&format!("note: {expected}\n")), "{checked:?}");
    let migrated = with_mistake().run(folder.path(), &["migrate"]).await;
    assert!(migrated.stderr.contains(expected), "{migrated:?}");
    let broker = builder().env("MCP_BROKER_LIMITS_BURST", "9").single_process().start().await;
    broker.wait_for_log(expected).await;
}

#[tokio::test]
async fn check_config_names_backends_that_rules_name_and_the_file_does_not_declare() {
    let text = "tenants: {acme: {policy: {rules: [{id: a, effect: deny, objects: {tools: ['fles/*']}}]}, toolsets: {t: {include: {tools: ['fles/*']}}}}}\n";
    let checked = run_with_config(&["check-config"], text).await;
    assert!(!checked.stdout.contains("note:"), "the database has the backends: {checked:?}");
    let backend = |name: &str| {
        format!(
            "{text}backends: {{acme/{name}: {{transport: {{type: http, url: 'http://127.0.0.1:9/'}}}}}}\n"
        )
    };
    let checked = run_with_config(&["check-config"], &backend("files")).await;
    assert_eq!(checked.code, Some(0), "{checked:?}");
    for path in ["tenants.acme.policy.rules[0].objects.tools[0]", "tenants.acme.toolsets.t."] {
        let note = format!("note: {path}");
        let line = checked.stdout.lines().find(|line| line.starts_with(&note));
        assert!(line.is_some_and(|line| line.contains("the tenant has: files")), "{checked:?}");
    }
    let checked = run_with_config(&["check-config"], &backend("fles")).await;
    assert!(!checked.stdout.contains("note:"), "{checked:?}");
}

#[tokio::test]
async fn serve_refuses_a_bad_configuration_with_64() {
    for config in [
        "colour: red\n",
        "listen: [\n",
        "listen: {http: '0.0.0.0:0'}\n",
        "storage: {url: 'postgres://x/y'}\n",
        "tls: {require_https: true}\n",
        "include: {folder: /no/such/folder}\n",
    ] {
        let finished = run_with_config(&["serve", "--config"], config).await;
        assert_eq!(finished.code, Some(64), "{config:?}: {finished:?}");
        assert!(!finished.stdout.contains("ready"), "{finished:?}");
        assert!(!finished.stderr.is_empty());
    }
    assert_eq!(run(&["serve", "--config", "/no/such/file"]).await.code, Some(64));
}

#[tokio::test]
async fn serve_reports_a_missing_requirement_with_69() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let config = format!("listen: {{http: '{address}', admin: '127.0.0.1:0'}}\n");
    let finished = run_with_config(&["serve", "--config"], &config).await;
    assert_eq!(finished.code, Some(69), "{finished:?}");
    assert!(finished.stderr.contains(&address.to_string()), "{finished:?}");
    let config = "listen: {http: '127.0.0.1:0', admin: '127.0.0.1:0'}\nstorage: {url: 'sqlite:/proc/nowhere/x.db'}\n";
    let finished = run_with_config(&["serve", "--config"], config).await;
    assert_eq!(finished.code, Some(69), "{finished:?}");
    assert!(finished.stderr.contains("/proc/nowhere"), "{finished:?}");
}

#[tokio::test]
async fn f_42_a_second_broker_on_the_same_file_is_refused() {
    let backend = FakeBackend::echo().await;
    let broker =
        builder().on(Topology::Sqlite).backend("default", "b", backend.spec()).start().await;
    let config = broker.folder().join("config.yaml");
    let finished =
        builder().run(broker.folder(), &["serve", "--config", config.to_str().unwrap()]).await;
    assert_eq!(finished.code, Some(69), "{finished:?}");
    assert_eq!(broker.connected(json!({})).await.tool_names().await, ["b__echo"]);
}

#[tokio::test]
async fn http_04_the_embedded_defaults_are_loopback_and_the_example_is_valid() {
    let example = run(&["config-example"]).await;
    assert_eq!(example.code, Some(0));
    assert!(
        example.stdout.contains("127.0.0.1:8080") && example.stdout.contains("127.0.0.1:9090"),
        "{}",
        example.stdout
    );
    let checked = run_with_config(&["check-config"], &example.stdout).await;
    assert_eq!(checked.code, Some(0), "{checked:?}");
}

#[tokio::test]
async fn migrate_creates_the_schema_and_openapi_is_a_document() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("c.yaml");
    std::fs::write(
        &file,
        format!("storage: {{url: 'sqlite:{}'}}\n", folder.path().join("deep/x.db").display()),
    )
    .unwrap();
    let finished =
        builder().run(folder.path(), &["migrate", "--config", file.to_str().unwrap()]).await;
    assert_eq!(finished.code, Some(0), "{finished:?}");
    assert!(folder.path().join("deep/x.db").exists());
    let document: Value = serde_json::from_str(&run(&["openapi"]).await.stdout).unwrap();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
}

#[tokio::test]
async fn the_environment_overrides_the_file() {
    let backend = FakeBackend::echo().await;
    let broker = builder()
        .env("MCP_BROKER__LIMITS__SESSIONS_PER_TENANT", "1")
        .backend("default", "b", backend.spec())
        .start()
        .await;
    let _one = broker.connected(json!({})).await;
    assert_eq!(broker.client("/mcp").post(crate::initialize_body("2025-11-25")).await.status, 429);
    let folder = tempfile::tempdir().unwrap();
    let finished =
        builder().env("MCP_BROKER__LIMITS__BRUST", "1").run(folder.path(), &["serve"]).await;
    assert_eq!(finished.code, Some(64), "{finished:?}");
    assert!(finished.stderr.contains("MCP_BROKER__LIMITS__BRUST"), "{finished:?}");
}

#[tokio::test]
async fn tenants_keys_backends_and_sessions_are_managed_from_a_shell() {
    let backend = FakeBackend::echo().await;
    let broker = builder().auth_required().admin_token("operator-of-tests").start().await;
    let ok = async |arguments: &[&str]| {
        let finished = broker.cli(arguments).await;
        assert_eq!(finished.code, Some(0), "{arguments:?}: {finished:?}");
        finished.stdout
    };
    ok(&["tenant", "add", "acme"]).await;
    assert!(ok(&["tenant", "list"]).await.contains("acme"));
    let tenants: Value = serde_json::from_str(&ok(&["tenant", "list", "--json"]).await).unwrap();
    assert!(tenants.to_string().contains("acme"), "{tenants}");
    ok(&["tenant", "set", "acme", "--weight", "3", "--limit", "burst_per_tool=2"]).await;
    ok(&["tenant", "set", "acme", "--burst", "9", "--disabled"]).await;
    ok(&["tenant", "set", "acme", "--enabled"]).await;
    let acme: Value =
        serde_json::from_str(&ok(&["tenant", "show", "acme", "--json"]).await).unwrap();
    let kept = (&acme["weight"], &acme["enabled"], &acme["limits"]);
    assert_eq!(kept, (&json!(3), &json!(true), &json!({"burst_per_tool": 2, "burst": 9})));
    let absent = broker.cli(&["tenant", "set", "nope", "--burst", "9"]).await;
    assert_eq!(absent.code, Some(1), "{absent:?}");
    let records = broker.cli(&["audit", "list", "--limit", "2"]).await;
    assert!(records.stderr.contains("there are more records; --after "), "{records:?}");
    let first = |listed: String| -> Value {
        serde_json::from_str::<Value>(&listed).unwrap()["records"][0]["number"].clone()
    };
    let by_order = async |order: &str| {
        first(ok(&["audit", "list", "--limit", "2", "--json", "--order", order]).await)
    };
    let (oldest, newest) = (by_order("oldest").await, by_order("newest").await);
    assert!(oldest.as_i64() < newest.as_i64(), "{oldest} {newest}");
    let report = broker.cli(&["policy", "report", "--tenant", "acme", "--since", "48h"]).await;
    assert_eq!(report.code, Some(1), "{report:?}");
    assert!(report.stderr.contains("; allowed: 24h ago at most"), "{report:?}");
    ok(&["policy", "report", "--tenant", "acme", "--since", "24h"]).await;
    let absent = broker.cli(&["connection", "link", "ann", "nix", "--tenant", "acme"]).await;
    assert!(absent.stderr.contains("backend nix does not exist"), "{absent:?}");
    let unknown = broker.cli(&["audit", "list", "--order", "desc"]).await;
    assert_eq!(unknown.code, Some(64), "{unknown:?}");
    assert!(unknown.stderr.contains("[possible values: oldest, newest]"), "{unknown:?}");
    let key: Value =
        serde_json::from_str(&ok(&["key", "create", "--tenant", "acme", "--json"]).await).unwrap();
    ok(&["backend", "add", "b", "--tenant", "acme", "--url", &backend.url()]).await;
    assert!(ok(&["backend", "list", "--tenant", "acme"]).await.contains("ready"));
    let everywhere = ok(&["backend", "list", "--all", "--state", "ready"]).await;
    assert!(everywhere.lines().any(|line| line.starts_with("acme ")), "{everywhere}");
    assert_eq!(ok(&["backend", "list", "--all", "--state", "failed"]).await, "none\n");
    assert!(ok(&["backend", "show", "b", "--tenant", "acme"]).await.contains("2025-11-25"));
    let client =
        broker.client("/mcp").bearer(key["key"].as_str().unwrap()).connected(json!({})).await;
    assert_eq!(client.tool_names().await, ["b__echo"]);
    let sessions = ok(&["session", "list", "--json"]).await;
    assert!(sessions.contains("testkit"), "{sessions}");
    ok(&["task", "list"]).await;
    assert!(ok(&["key", "list", "--tenant", "acme"]).await.contains(key["id"].as_str().unwrap()));
    ok(&["key", "revoke", key["id"].as_str().unwrap(), "--tenant", "acme"]).await;
    // Another replica may have the session's end before the key's.
    eventually("the end of the key", async || {
        match client.post(crate::request(1, "ping", json!({}))).await.status {
            401 => Ok(()),
            status => Err(status),
        }
    })
    .await;
    let root = ["b", "file:///srv/a", "--tenant", "acme"];
    let added = ok(&[&["backend", "root", "add"], &root[..], &["--name", "A"]].concat()).await;
    assert!(added.contains("file:///srv/a") && added.contains('A'), "{added}");
    let removed = ok(&[&["backend", "root", "remove"], &root[..]].concat()).await;
    assert!(removed.contains("file:///srv/a"), "{removed}");
    ok(&["operator", "create", "ann", "--role", "viewer"]).await;
    assert_eq!(broker.cli(&["operator", "create", "ann", "--role", "viewer"]).await.code, Some(1));
    let labels = [("operation", "put_operator"), ("store", "sqlite")];
    let failed = broker.admin().metric("mcp_store_errors_total", &labels).await;
    assert_eq!(failed.unwrap_or_default(), 0.0, "a taken name does not count as a failure");
    let link = broker.cli(&["connection", "link", "ann", "b", "--tenant", "acme"]).await;
    assert!(link.stderr.contains("connect no accounts at the backend b"), "{link:?}");
    ok(&["backend", "remove", "b", "--tenant", "acme"]).await;
    let mut ids = Vec::new();
    for name in ["olga", "otto"] {
        let create = ["operator", "create", name, "--role", "viewer", "--tenant", "acme", "--json"];
        let made: Value = serde_json::from_str(&ok(&create).await).unwrap();
        ids.push(made["id"].as_str().unwrap().to_owned());
    }
    let absent = ["operator", "create", "nina", "--role", "viewer", "--tenant", "amce"];
    let absent = broker.cli(&absent).await;
    assert!(absent.stderr.contains("tenants[0] is \"amce\", which does not exist"), "{absent:?}");
    let named = broker.cli(&["tenant", "remove", "acme"]).await;
    assert!(named.stderr.contains(": olga, otto; revoke them first"), "{named:?}");
    for id in ids {
        ok(&["operator", "revoke", &id]).await;
    }
    ok(&["tenant", "remove", "acme"]).await;
    assert_ne!(
        broker.cli(&["tenant", "remove", "acme"]).await.code,
        Some(0),
        "what is not there cannot be removed"
    );
}

#[tokio::test]
async fn the_shell_drains_a_broker_and_exits_69_if_there_is_none() {
    let backend = FakeBackend::echo().await;
    let mut broker = alone_with(&backend).await;
    let unknown = broker.cli(&["drain", "--node", "other"]).await;
    assert_eq!(unknown.code, Some(1), "{unknown:?}");
    let (_, nodes) = broker.admin().get("/admin/v1/nodes").await;
    let name = nodes["nodes"][0]["node"].as_str().unwrap();
    let drained = broker.cli(&["drain", "--node", name]).await;
    assert_eq!(drained.code, Some(0), "{drained:?}");
    assert_eq!(broker.wait_for_exit().await.code(), Some(0));
    let finished = broker.cli(&["tenant", "list"]).await;
    assert_eq!(finished.code, Some(69), "{finished:?}");
}

/// A key is shown once, so a command whose output is lost has failed.
#[test]
fn output_that_cannot_be_written_is_an_error() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let ended = std::process::Command::new(crate::binary())
        .arg("config-example")
        .stdout(full)
        .output()
        .unwrap();
    let complaint = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success(), "{complaint}");
    assert!(complaint.contains("the answer could not be written"), "{complaint}");
}

/// An archive of the audit log must be whole. A reader such as `head` may have enough of it.
#[tokio::test]
async fn an_export_of_the_audit_log_fails_on_a_full_disk_and_ends_with_its_reader() {
    let broker = builder().single_process().start().await;
    assert_eq!(broker.cli(&["tenant", "add", "acme"]).await.code, Some(0));
    eventually("a record", || async {
        let (_, log) = broker.admin().get("/admin/v1/audit").await;
        if log["records"].as_array().is_some_and(|all| !all.is_empty()) { Ok(()) } else { Err(log) }
    })
    .await;
    let export = async |stdout: std::process::Stdio| {
        let mut command = std::process::Command::new(crate::binary());
        command
            .args(["audit", "export"])
            .current_dir(broker.folder())
            .env("MCP_BROKER_ADMIN_URL", format!("http://{}", broker.admin_address()))
            .env_remove("MCP_BROKER_ADMIN_TOKEN")
            .stdout(stdout)
            .stderr(std::process::Stdio::piped());
        let ended = tokio::task::spawn_blocking(move || {
            command.spawn().and_then(std::process::Child::wait_with_output)
        });
        let ended = ended.await.unwrap().unwrap();
        (ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned())
    };
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let (code, complaint) = export(full.into()).await;
    assert_eq!(code, Some(70), "{complaint}");
    assert!(complaint.contains("the answer could not be written"), "{complaint}");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(export(writer.into()).await, (Some(0), String::new()));
}
