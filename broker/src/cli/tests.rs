//! Tests of the operator's commands against a real admin listener, from arguments to output.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::control::tests::Rig;

struct Broker {
    client: AdminClient,
    address: SocketAddr,
    stop: CancellationToken,
    _folder: tempfile::TempDir,
}

impl Broker {
    async fn start(yaml: &str, token: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let control = Rig::start(folder.path(), yaml).await.control;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let tls_acceptor = listeners::tls_acceptor::TlsAcceptor::plain(&control.config);
        tokio::spawn(listeners::admin::serve(
            control,
            listeners::handoff_listener::HandoffListener::new(listener),
            tls_acceptor,
            stop.clone(),
        ));
        let client = AdminClient::new(&format!("http://{address}/"), token).unwrap();
        Self { client, address, stop, _folder: folder }
    }

    async fn run(&self, line: &str) -> Result<String, ClientError> {
        run_with(&self.client, line).await
    }
}

async fn run_with(client: &AdminClient, line: &str) -> Result<String, ClientError> {
    match Cli::try_parse_from(format!("mcp-broker {line}").split(' ')).unwrap().command {
        Command::Admin(command) => admin::run(client, command).await.map(|output| output.out),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_commands_of_an_operator_work_end_to_end() {
    let broker = Broker::start("", None).await;
    broker.run("tenant add acme --weight 3").await.unwrap();
    let tenants = broker.run("tenant list").await.unwrap();
    assert!(
        tenants.starts_with("tenant ")
            && tenants.contains("\nacme ")
            && tenants.contains("\ndefault "),
        "{tenants}"
    );
    let key: Value = serde_json::from_str(
        &broker.run("key create --tenant acme --principal ann --json").await.unwrap(),
    )
    .unwrap();
    let id = key["id"].as_str().unwrap();
    let expiring = "key create --tenant default --group dev --scope read --expires-in 720h";
    let created = broker.run(expiring).await.unwrap();
    for shown in ["groups     dev\n", "scopes     read\n", "expires    20"] {
        assert!(created.contains(shown), "{created}");
    }
    assert!(broker.run("key list --tenant acme").await.unwrap().contains("ann"));
    assert_eq!(
        broker.run(&format!("key revoke --tenant acme {id}")).await.unwrap(),
        format!("removed {id}\n")
    );
    assert_eq!(broker.run("key list --tenant acme").await.unwrap(), "none\n");
    let added =
        broker.run("backend add one --tenant acme --no-wait --url http://127.0.0.1:9/mcp?k=canary --header X-Key:canary").await.unwrap();
    assert!(
        added.contains("http://127.0.0.1:9/mcp?k=***")
            && added.contains("X-Key")
            && !added.contains("canary"),
        "{added}"
    );
    broker.run("backend add two --tenant acme --no-wait --links shared -- no-such-program --token canary").await.unwrap();
    let shown = broker.run("backend show two --tenant acme").await.unwrap();
    assert!(shown.contains("--token ***") && shown.contains("shared"), "{shown}");
    let listed = broker.run("backend list --tenant acme").await.unwrap();
    assert_eq!(listed.lines().count(), 3, "{listed}");
    broker.run("backend remove one --tenant acme").await.unwrap();
    assert_eq!(broker.run("session list").await.unwrap(), "none\n");
    assert_eq!(broker.run("task list --tenant acme --status working").await.unwrap(), "none\n");
    assert_eq!(broker.run("subscription list --tenant acme").await.unwrap(), "none\n");
    assert_eq!(
        broker.run("node list --json").await.unwrap(),
        "{\n  \"nodes\": []\n}\n",
        "this one did not join"
    );
    assert_eq!(
        broker.run("tenant remove acme --json").await.unwrap(),
        "{\n  \"removed\": \"acme\"\n}\n"
    );
    assert_eq!(broker.run("drain").await.unwrap(), "draining\n");
}

#[tokio::test]
async fn an_entry_that_exists_is_replaced_only_on_request() {
    let broker = Broker::start("", None).await;
    broker.run("tenant add acme --weight 3").await.unwrap();
    broker.run("backend add one --no-wait --url http://127.0.0.1:9/a").await.unwrap();
    let weight = async || {
        let tenant = broker.run("tenant show acme --json").await.unwrap();
        serde_json::from_str::<Value>(&tenant).unwrap()["weight"].clone()
    };
    for (line, expected) in [
        (
            "tenant add acme",
            "tenant acme exists already; `tenant set acme` changes some of its settings, and --replace replaces all",
        ),
        (
            "backend add one --no-wait --url http://127.0.0.1:9/b",
            "backend one exists already; --replace replaces it",
        ),
    ] {
        let error = broker.run(line).await.unwrap_err();
        assert_eq!((error.to_string(), error.exit_code()), (expected.to_owned(), EXIT_REFUSED));
    }
    assert_eq!(weight().await, 3);
    assert!(broker.run("backend show one").await.unwrap().contains("http://127.0.0.1:9/a"));
    broker.run("tenant add acme --replace").await.unwrap();
    assert_eq!(weight().await, 1);
    let replaced = "backend add one --replace --no-wait --url http://127.0.0.1:9/b";
    assert!(broker.run(replaced).await.unwrap().contains("http://127.0.0.1:9/b"));
}

#[tokio::test]
async fn a_registry_that_does_not_answer_is_not_wrong_usage() {
    let broker = Broker::start("", None).await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let line = format!("backend add one --registry a/b --registry-url http://{closed}");
    let error = broker.run(&line).await.unwrap_err();
    assert_eq!(error.exit_code(), EXIT_UNREACHABLE, "{error}");
    assert!(error.to_string().contains("could not connect"), "{error}");
    let error =
        broker.run("backend add one --registry a/b --registry-url nowhere").await.unwrap_err();
    assert_eq!(error.exit_code(), EXIT_USAGE, "{error}");
    let tls = AdminClient::new(&format!("https://{}", broker.address), None).unwrap();
    let error = run_with(&tls, "tenant list").await.unwrap_err();
    assert_eq!(error.exit_code(), EXIT_UNREACHABLE, "{error}");
    assert!(error.to_string().contains("does not speak TLS"), "{error}");
}

#[tokio::test]
async fn a_refusal_is_printed_with_the_text_of_the_broker() {
    let broker = Broker::start("", None).await;
    for (line, expected) in [
        ("backend show nine", "backend nine does not exist"),
        ("backend list --tenant ghost", "tenant ghost does not exist"),
        (
            "tenant remove default",
            "tenant default always exists; `tenant set default --disabled` disables it",
        ),
        ("session end ../x%3F", "session ../x%3F does not exist"),
        ("session show none", "session none does not exist"),
        ("task show none", "task none does not exist"),
        ("task cancel none", "task none does not exist"),
        ("task list --status lost", "\"lost\" is not a task status"),
        ("tenant add acme --weight 0", "weight is 0"),
        ("backend add one --url http://10.0.0.1/", "transport.url points to a refused address"),
    ] {
        let error = broker.run(line).await.unwrap_err();
        assert!(error.to_string().starts_with(expected), "{line}: {error}");
        assert_eq!(error.exit_code(), EXIT_REFUSED, "{line}");
    }
}

#[tokio::test]
async fn the_admin_token_is_sent() {
    let yaml = r#"{"auth": {"admin_token": "correct-horse-battery-staple"}}"#;
    let broker = Broker::start(yaml, Some("correct-horse-battery-staple\n")).await;
    broker.run("tenant list").await.unwrap();
    let stranger = AdminClient::new(&format!("http://{}", broker.address), None).unwrap();
    assert_eq!(run_with(&stranger, "tenant list").await.unwrap_err().exit_code(), EXIT_REFUSED);
}

#[tokio::test]
async fn an_unreachable_broker_has_its_own_exit_code() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let client = AdminClient::new(&format!("http://{address}"), None).unwrap();
    let error = run_with(&client, "tenant list").await.unwrap_err();
    assert_eq!(error.exit_code(), EXIT_UNREACHABLE, "{error}");
    for url in ["", "127.0.0.1:9090", "ftp://127.0.0.1", "http://user@127.0.0.1"] {
        assert_eq!(AdminClient::new(url, None).err().unwrap().exit_code(), EXIT_USAGE, "{url}");
    }
}

#[tokio::test]
async fn a_server_that_is_not_a_broker_is_detected() {
    let router =
        axum::Router::new().fallback(|| async { (axum::http::StatusCode::NOT_FOUND, "<html>") });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    let client = AdminClient::new(&format!("http://{address}"), None).unwrap();
    let error = run_with(&client, "tenant list").await.unwrap_err();
    assert!(matches!(error, ClientError::Foreign { status: 404, .. }), "{error}");
}

#[tokio::test]
async fn a_list_of_approvals_has_every_page() {
    let pages = |uri: http::Uri| async move {
        let query = uri.query().unwrap_or_default().to_owned();
        let answer = match query.as_str() {
            "state=pending&limit=500" => {
                serde_json::json!({"approvals": [{"id": "apr_new"}], "next": "12/apr_new"})
            }
            "state=pending&after=12%2Fapr_new&limit=500" => {
                serde_json::json!({"approvals": [{"id": "apr_old"}]})
            }
            _ => serde_json::json!({ "unexpected": query }),
        };
        axum::Json(answer)
    };
    let router =
        axum::Router::new().route("/admin/v1/tenants/acme/approvals", axum::routing::get(pages));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    let client = AdminClient::new(&format!("http://{address}"), None).unwrap();
    let listed = run_with(&client, "approval list --tenant acme --state pending").await.unwrap();
    assert!(listed.find("apr_new") < listed.find("apr_old"), "{listed}");
    let json = run_with(&client, "approval list --tenant acme --state pending --json").await;
    let json: Value = serde_json::from_str(&json.unwrap()).unwrap();
    let wanted = serde_json::json!({"approvals": [{"id": "apr_new"}, {"id": "apr_old"}]});
    assert_eq!(json, wanted, "the list is whole, so nothing is next");
}

#[tokio::test]
async fn a_stopped_broker_does_not_answer() {
    let broker = Broker::start("", None).await;
    broker.run("tenant list").await.unwrap();
    broker.stop.cancel();
    // The open connection may still carry an answer or two while the listener closes.
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(10);
    while broker.run("tenant list").await.is_ok() {
        assert!(tokio::time::Instant::now() < deadline, "the listener is still there");
    }
}

#[tokio::test]
async fn a_document_can_be_stored_as_it_was_printed() {
    let broker = Broker::start("", None).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt.json");
    let put = format!("prompt put review {}", file.display());
    let document = r#"{"messages": [{"role": "user", "text": "Review this."}]}"#;
    std::fs::write(&file, document).unwrap();
    broker.run(&put).await.unwrap();
    let printed = broker.run("prompt get review").await.unwrap();
    assert!(printed.contains("\"source\""), "{printed}");
    std::fs::write(&file, printed).unwrap();
    broker.run(&put).await.unwrap();
    std::fs::write(&file, r#"{"name": "review", "messages": []}"#).unwrap();
    let refused = broker.run(&put).await.unwrap_err().to_string();
    assert!(refused.contains("name"), "only a printed document may have a name: {refused}");
}
