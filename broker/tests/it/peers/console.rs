//! The operators' console in a real browser: Chromium of the distribution, driven by playwright-core,
//! judged by axe-core. The scripts are in `peers/clients/console`. With `UPDATE_DOCS=1` they write
//! the pictures of the documentation.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use serde_json::{Value, json};
use testkit::{AdminClient, BrokerBuilder, FakeBackend, Reply, TestBroker, eventually_within};
use tokio::process::Command;

use super::{
    install::Peers,
    process::{Ended, Server, run},
};
use crate::{
    approvals::{bank, change_definition, list},
    audit_chain,
    tokens::reload::reload,
};

const ADMIN: &str = "operator-of-tests";
const RUN_WITHIN: Duration = Duration::from_secs(300);

fn builder() -> BrokerBuilder {
    BrokerBuilder::new(env!("CARGO_BIN_EXE_mcp-broker")).single_process().admin_token(ADMIN)
}

fn origin(broker: &TestBroker) -> String {
    format!("http://{}", broker.admin_address())
}

/// Runs a script that prints `ok` for each of its checks.
async fn passes(script: &str, arguments: &[&str], checks: usize, log: impl Fn() -> String) {
    let peers = Peers::installed();
    let mut command = Command::new(peers.node());
    command.arg(Peers::ours("peers/clients/console").join(script)).args(arguments);
    let Ended { status, stdout, stderr } = run(command, RUN_WITHIN).await;
    let lines: Vec<&str> = stdout.lines().collect();
    let are_ok = lines.len() == checks && lines.iter().all(|line| line.starts_with("ok "));
    assert!(status.success() && are_ok, "{status}\n{stdout}\n{stderr}\n{}", log());
}

/// Returns the folder of the documentation's pictures, if they are to be written.
fn pictures() -> Option<String> {
    std::env::var_os("UPDATE_DOCS")
        .map(|_| Peers::ours("docs/images").to_string_lossy().into_owned())
}

async fn operator(admin: &AdminClient, name: &str, role: &str) -> String {
    let (status, made) =
        admin.post("/admin/v1/operators", &json!({"name": name, "role": role})).await;
    assert_eq!(status, 201, "{made}");
    made["token"].as_str().unwrap().to_owned()
}

async fn put_toolset(admin: &AdminClient, tools: &str) {
    let toolset = json!({"include": {"tools": [tools]}, "published": true});
    let path = "/admin/v1/tenants/default/toolsets/research";
    let (status, made) = admin.put(path, &toolset).await;
    assert_eq!(status, 201, "{made}");
}

#[tokio::test]
async fn every_view_of_the_console_is_accessible() {
    let peers = Peers::installed();
    let broker = builder().tenant("acme").start().await;
    let admin = broker.admin();
    let everything = json!({"transport": peers.everything_over_stdio()});
    admin.put_ready_backend("default", "everything", &everything).await;
    let down = json!({"transport": {"type": "http", "url": "http://127.0.0.1:9/mcp"}});
    assert_eq!(admin.put_backend("acme", "crm", &down).await.0, 201);
    let policy = json!({"rules": [
        {"id": "no-environment-for-guests", "effect": "deny", "subjects": {"groups": ["guests"]}, "objects": {"tools": ["everything/get-env"]}, "reason": "it shows secrets"},
        {"id": "watch-writes", "effect": "deny", "mode": "shadow", "objects": {"classes": ["write"]}},
    ]});
    assert_eq!(admin.put("/admin/v1/tenants/default/policy", &policy).await.0, 201);
    let key = json!({"name": "build server", "principal": "ci", "groups": ["guests"]});
    let (_, key) = admin.post("/admin/v1/tenants/default/keys", &key).await;
    operator(&admin, "vera", "viewer").await;
    put_toolset(&admin, "everything/*").await;
    let client = broker.client("/mcp").bearer(key["key"].as_str().unwrap());
    let client = client.connected(json!({})).await;
    for tool in ["everything__get-env", "everything__no-such-tool"] {
        client.request("tools/call", json!({"name": tool, "arguments": {}})).await;
    }
    let origin = origin(&broker);
    let images = pictures();
    let arguments: Vec<&str> =
        [origin.as_str(), ADMIN].into_iter().chain(images.as_deref()).collect();
    passes("pages.mjs", &arguments, 7, || broker.log()).await;
}

#[tokio::test]
async fn an_operator_adds_the_first_backend_in_the_console() {
    let peers = Peers::installed();
    let broker = builder().start().await;
    let transport = peers.everything_over_stdio();
    let program = transport["command"].as_str().unwrap();
    let script = transport["args"][0].as_str().unwrap();
    let bank = bank().await;
    let (origin, images) = (origin(&broker), pictures());
    let (mcp, url) =
        (broker.url("/mcp"), bank.spec()["transport"]["url"].as_str().unwrap().to_owned());
    let arguments: Vec<&str> = [origin.as_str(), ADMIN, program, script, &mcp, &url]
        .into_iter()
        .chain(images.as_deref())
        .collect();
    let change = async {
        let admin = broker.admin();
        let is_to_zoe = |approval: &Value| approval["arguments"]["to"] == "zoe";
        eventually_within(RUN_WITHIN, "a call to zoe", || async {
            let waits = list(&admin, "pending").await;
            if waits.iter().any(is_to_zoe) { Ok(()) } else { Err(waits) }
        })
        .await;
        change_definition(&bank).await;
    };
    let ((), ()) = tokio::join!(passes("day.mjs", &arguments, 14, || broker.log()), change);
    let sent = bank.recorded_of("tools/call");
    let to: Vec<&Value> =
        sent.iter().map(|call| &call.message["params"]["arguments"]["to"]).collect();
    assert_eq!(to, ["ann"], "one approved call was executed, once");
}

#[tokio::test]
async fn the_console_verifies_every_chain_of_the_audit_log() {
    let folder = tempfile::tempdir().unwrap();
    let broker = audit_chain::on(folder.path(), json!({"checkpoint_interval": "24h"}))
        .admin_token(ADMIN)
        .start()
        .await;
    let numbers = audit_chain::changed(&broker, 3).await;
    let tampered = numbers[1];
    let edit = format!(
        "UPDATE audit SET body = replace(body, '\"ok\"', '\"no\"') WHERE number = {tampered}"
    );
    audit_chain::edit(folder.path(), &format!("{}{edit}", audit_chain::UNGUARDED));
    let arguments = [&origin(&broker), ADMIN, &tampered.to_string()];
    passes("audit.mjs", &arguments, 3, || broker.log()).await;
}

#[tokio::test]
async fn toolsets_are_made_and_shown_for_a_subject() {
    let backend = FakeBackend::start().await;
    for name in ["echo", "wipe"] {
        backend.tool(name, |_| async { Reply::text("done") });
    }
    backend.list("tools", ["echo", "wipe"].map(testkit::backend::tool).to_vec());
    let broker = builder().backend("default", "b", backend.spec()).start().await;
    let admin = broker.admin();
    admin.wait_backend_state("default", "b", "ready").await;
    let policy = json!({"rules": [
        {"id": "no-wipe", "effect": "deny", "subjects": {"groups": ["guests"]}, "objects": {"tools": ["b/wipe"]}},
    ]});
    assert_eq!(admin.put("/admin/v1/tenants/default/policy", &policy).await.0, 201);
    passes("toolsets.mjs", &[&origin(&broker), ADMIN], 4, || broker.log()).await;
}

#[tokio::test]
async fn the_console_shows_two_people_only_permitted_actions() {
    let backend = FakeBackend::echo().await;
    let broker = builder().backend("default", "b", backend.spec()).start().await;
    let admin = broker.admin();
    admin.wait_backend_state("default", "b", "ready").await;
    admin.create_key("default").await;
    let _session = broker.connected(json!({})).await;
    let viewer = operator(&admin, "vera", "viewer").await;
    put_toolset(&admin, "b/*").await;
    passes("roles.mjs", &[&origin(&broker), ADMIN, &viewer], 3, || broker.log()).await;
}

#[tokio::test]
async fn the_console_stores_and_sends_what_was_entered() {
    let backend = FakeBackend::start().await;
    backend.tool("count", |_| async {
        Reply::Result(
            json!({"content": [], "structuredContent": {"next": 9_007_199_254_740_995_i64}}),
        )
    });
    let schema = json!({"type": "object", "properties": {
        "n": {"type": "integer", "maximum": 9_007_199_254_740_993_i64},
        "x": {"type": "number"},
    }});
    backend.tool("both", |call| async move {
        let question = |which: &str| {
            json!({"message": format!("Who is {which}?"), "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}})
        };
        let (_, first) = call.start_question("elicitation/create", question("first")).await;
        let (_, second) = call.start_question("elicitation/create", question("second")).await;
        let (first, second) = (first.await.unwrap(), second.await.unwrap());
        let name = |answer: &Value| answer["result"]["content"]["name"].as_str().unwrap().to_owned();
        Reply::text(&format!("{} and {}", name(&first), name(&second)))
    });
    backend.list(
        "tools",
        vec![
            json!({"name": "count", "inputSchema": schema}),
            json!({"name": "both", "inputSchema": {"type": "object"}}),
        ],
    );
    let broker = builder().start().await;
    let admin = broker.admin();
    let args = json!(["-c", "two\nlines", "", "--last"]);
    let odd = json!({"transport": {"type": "stdio", "command": "/bin/false", "args": args}});
    assert_eq!(admin.put_backend("default", "odd", &odd).await.0, 201);
    let mut kept = backend.spec();
    kept["auth"] = json!({
        "type": "enterprise", "client_id": "console", "client_secret": "secret-of-the-client",
        "provider": {
            "issuer": "https://idp.example", "client_id": "console-at-idp",
            "client_secret": "secret-at-the-provider",
        },
    });
    assert_eq!(admin.put_backend("default", "kept", &kept).await.0, 201);
    let mut guarded = backend.spec();
    guarded["credentials"] = json!({"bearer": "a-token", "headers": {"x-team": "acme"}});
    for name in ["guarded", "open"] {
        assert_eq!(admin.put_backend("default", name, &guarded).await.0, 201);
    }
    let url = backend.spec()["transport"]["url"].as_str().unwrap().to_owned();
    passes("forms.mjs", &[&origin(&broker), ADMIN, &url], 8, || broker.log()).await;
    let (_, stored) = admin.get("/admin/v1/tenants/default/backends/guarded").await;
    let shown = json!({"bearer": true, "headers": ["x-team"]});
    assert_eq!(stored["settings"]["credentials"], shown, "{stored}");
    let (_, stored) = admin.get("/admin/v1/tenants/default/backends/open").await;
    assert_eq!(stored["settings"]["credentials"], Value::Null, "{stored}");
    let (_, stored) = admin.get("/admin/v1/tenants/default/backends/kept").await;
    let auth = &stored["settings"]["auth"];
    assert_eq!([&auth["client_secret"], &auth["provider"]["client_secret"]], ["***", "***"]);
    let (_, stored) = admin.get("/admin/v1/tenants/default/backends/odd").await;
    assert_eq!(stored["settings"]["transport"]["args"], args, "{stored}");
    let mut calls = backend.recorded_of("tools/call");
    calls.retain(|call| call.calls("count"));
    let sent: Vec<&Value> = calls.iter().map(|call| &call.message["params"]["arguments"]).collect();
    let exact = json!({"n": 9_007_199_254_740_993_i64, "x": 0.5});
    assert_eq!(sent, [&exact, &exact]);
}

#[tokio::test]
async fn names_and_descriptions_of_backends_are_shown_as_text() {
    let backend = FakeBackend::start().await;
    let attack = "<img src=x onerror=owned=1><script>owned=1</script>";
    backend.server_info(json!({"name": attack, "version": "\u{202e}1"}), None);
    backend.content_is_invalid_on_purpose("its answer has members that are not seen");
    backend.tool("hidden", |_| async {
        Reply::Result(
            json!({"content": [{"type": "text", "text": "<script>owned=1</script>\u{200b}"}]}),
        )
    });
    let schema = json!({"type": "object", "properties": {
        "<b>bold</b>": {"type": "string", "description": attack},
        "side": {"type": "string", "enum": ["left", "\u{202e}right"]},
    }});
    backend.list("tools", vec![
        json!({"name": "hidden", "description": "safe\u{200b}\u{202e}text\u{e0041}", "inputSchema": schema}),
        json!({"name": "loud", "description": attack, "inputSchema": {"type": "object"}}),
        malformed_tool(),
    ]);
    backend.list("prompts", vec![json!({"name": "ask\u{200b}me"})]);
    let broker = builder().backend("default", "b", backend.spec()).start().await;
    broker.admin().wait_backend_state("default", "b", "ready").await;
    let client = json!({"name": "<img src=x onerror=owned=1>", "version": "1"});
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
    broker.client("/mcp").request("initialize", params).await;
    passes("hostile.mjs", &[&origin(&broker), ADMIN], 6, || broker.log()).await;
}

/// Returns a tool whose schema has members of wrong types, and whose title hides a character.
fn malformed_tool() -> Value {
    let properties = json!({
        "list": {"type": "array", "items": {"type": "string"}, "default": "x"},
        "choice": {"type": "string", "oneOf": [null]},
        "name": {"type": "string", "title": {"a": 1}, "default": {"a": 1}},
        "nothing": null,
    });
    let schema = json!({"type": "object", "required": true, "properties": properties});
    json!({"name": "malformed", "title": "safe\u{200b}title", "annotations": null, "inputSchema": schema, "outputSchema": {"type": "object", "properties": "x"}})
}

#[tokio::test]
async fn the_console_shows_and_sends_nothing_outdated() {
    let backend = FakeBackend::start().await;
    backend.tool("hang", |_| async { std::future::pending::<Reply>().await });
    let schema = json!({"type": "object", "properties": {"note": {"type": "string"}}});
    backend.list("tools", vec![json!({"name": "hang", "inputSchema": schema})]);
    let broker = builder().backend("default", "b", backend.spec()).start().await;
    broker.admin().wait_backend_state("default", "b", "ready").await;
    passes("stale.mjs", &[&origin(&broker), ADMIN], 3, || broker.log()).await;
    // The call may be stopped before it is sent.
    for call in backend.recorded_of("tools/call") {
        assert_eq!(call.message["params"]["arguments"], json!({"note": "by hand"}));
    }
}

#[tokio::test]
async fn the_console_says_what_went_wrong_and_keeps_what_was_entered() {
    let backend = FakeBackend::start().await;
    backend.content_is_invalid_on_purpose("the name of its prompt has a member that is not seen");
    backend.tool("send", |_| async { Reply::text("sent") });
    backend.list("tools", ["read", "send"].map(testkit::backend::tool).to_vec());
    backend.list("prompts", vec![json!({"name": "ask\u{200b}me"})]);
    let mut held = backend.spec();
    held["pins"] = json!("hold_all");
    let broker = builder().backend("default", "b", held).start().await;
    broker.admin().wait_backend_state("default", "b", "ready").await;
    passes("faults.mjs", &[&origin(&broker), ADMIN], 8, || broker.log()).await;
}

#[tokio::test]
async fn long_lists_scroll_without_a_pause() {
    let backend = FakeBackend::start().await;
    let tool = |number: usize| json!({"name": format!("tool-{number:05}"), "description": format!("does thing {number}"), "inputSchema": {"type": "object"}});
    backend.list("tools", (0..5_000).map(tool).collect());
    let broker = builder().backend("default", "b", backend.spec()).start().await;
    broker.admin().wait_backend_state("default", "b", "ready").await;
    passes("scale.mjs", &[&origin(&broker), ADMIN], 4, || broker.log()).await;
}

#[tokio::test]
async fn a_console_stays_open_while_a_replica_dies() {
    let backend = FakeBackend::echo().await;
    let cluster = BrokerBuilder::new(env!("CARGO_BIN_EXE_mcp-broker"))
        .admin_token(ADMIN)
        .backend("default", "b", backend.spec())
        .cluster(2)
        .start()
        .await;
    for replica in [0, 1] {
        cluster.admin(replica).wait_backend_state("default", "b", "ready").await;
    }
    let pid = cluster.replicas()[0].pid().to_string();
    let admins = [0, 1].map(|replica| cluster.admin(replica).address().to_string());
    let arguments = [ADMIN, &pid, &admins[0], &admins[1]];
    passes("failover.mjs", &arguments, 2, String::new).await;
}

#[tokio::test]
async fn an_operator_logs_in_at_an_issuer() {
    let peers = Peers::installed();
    let mut command = Command::new(peers.node());
    command
        .arg(Peers::ours("peers/servers/oidc.mjs"))
        .args(["--pages", "--redirect-uri", "http://127.0.0.1/console/callback"])
        .args(["--logout-uri", "http://127.0.0.1/console/"])
        .args(["--groups", r#"{"ann": ["auditors"]}"#])
        .env("NODE_MODULES", peers.node_folder().join("node_modules"));
    let server =
        Server::start(command, |line| line.strip_prefix("oidc listening on ").map(str::to_owned))
            .await;
    let broker = builder().start().await;
    reload(&broker, |config| {
        config["auth"]["resource"] = json!(broker.url("").trim_end_matches('/'));
        config["auth"]["issuers"] = json!([{
            "issuer": server.url, "tenant": "default",
            "admin": {
                "claim": "groups",
                "map": [{"value": "auditors", "role": "auditor"}],
                "login": {"client_id": "login", "scopes": ["openid", "mcp:read"]},
            },
        }]);
    })
    .await;
    let name = format!("{} ann", server.url);
    let origin = origin(&broker);
    let arguments = [&origin, &server.url, &name].map(String::as_str);
    passes("issuer.mjs", &arguments, 4, || broker.log()).await;
}

/// Returns the files below a folder with their contents, by their paths.
fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap().map(Result::unwrap) {
            let path = entry.path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let name = path.strip_prefix(folder).unwrap().to_owned();
                    found.push((name, fs::read(&path).unwrap()));
                }
            }
        }
    }
    found.sort();
    found
}

async fn node(peers: &Peers, folder: &Path, arguments: &[&str]) {
    let mut command = Command::new(peers.node());
    command.current_dir(folder).args(arguments);
    let Ended { status, stdout, stderr } = run(command, RUN_WITHIN).await;
    assert!(status.success(), "node {arguments:?}: {stdout}\n{stderr}");
}

/// `UPDATE_DOCS=1` writes the types and builds the committed files.
#[tokio::test]
async fn the_committed_console_equals_the_build_of_its_sources() {
    let peers = Peers::installed();
    let sources = Peers::ours("console");
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("console");
    let is_source = |path: &Path| !path.starts_with("dist") && !path.starts_with("node_modules");
    for (name, bytes) in contents(&sources).into_iter().filter(|(name, _)| is_source(name)) {
        let path = copy.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    fs::create_dir_all(folder.path().join("docs")).unwrap();
    fs::copy(Peers::ours("docs/openapi.json"), folder.path().join("docs/openapi.json")).unwrap();
    std::os::unix::fs::symlink(peers.packages_of_console(), copy.join("node_modules")).unwrap();

    let is_update = std::env::var_os("UPDATE_DOCS").is_some();
    let generate: &[&str] = if is_update { &[] } else { &["--check"] };
    node(&peers, &copy, &[&["scripts/generate.mjs"], generate].concat()).await;
    if is_update {
        for name in ["src/api/schema.ts", "src/api/operations.ts"] {
            fs::copy(copy.join(name), sources.join(name)).unwrap();
        }
    }
    node(&peers, &copy, &["node_modules/typescript/bin/tsc", "--noEmit"]).await;
    node(&peers, &copy, &["node_modules/vite/bin/vite.js", "build", "--logLevel", "warn"]).await;
    node(&peers, &copy, &["scripts/compress.mjs"]).await;
    let (built, committed) = (contents(&copy.join("dist")), sources.join("dist"));
    if is_update {
        fs::remove_dir_all(&committed).unwrap();
        for (name, bytes) in &built {
            let path = committed.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
    }
    let names = |files: &[(PathBuf, Vec<u8>)]| -> Vec<PathBuf> {
        files.iter().map(|(name, _)| name.clone()).collect()
    };
    let committed = contents(&committed);
    assert_eq!(names(&built), names(&committed), "console/dist is out of date: npm run build");
    for ((name, one), (_, other)) in built.iter().zip(&committed) {
        assert!(one == other, "{} is out of date: npm run build", name.display());
    }
}

#[test]
fn the_console_form_keeps_all_settings_of_a_backend() {
    // The form of the console sends what it knows, and the rest as it was read.
    let form = fs::read_to_string(Peers::ours("console/src/views/backend-form.tsx")).unwrap();
    let document: Value =
        serde_json::from_str(&fs::read_to_string(Peers::ours("docs/openapi.json")).unwrap())
            .unwrap();
    let kinds = &document["components"]["schemas"]["TransportSpec"]["discriminator"]["mapping"];
    let kinds: Vec<_> = kinds.as_object().unwrap().keys().collect();
    assert_eq!(kinds.len(), 6, "{kinds:?}");
    for kind in kinds {
        assert!(form.contains(&format!("['{kind}',")), "the form does not offer {kind}");
    }
}
