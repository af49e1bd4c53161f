//! Policy decides by every possible reading of a URI, not by the correct one. A query, a fragment
//! or another spelling leads no reader out of the roots, through whichever method the URI goes to a
//! backend.

use std::path::{Component, Path, PathBuf};

use serde_json::{Value, json};
use testkit::{FakeBackend, Reply, TestBroker, eventually};

use crate::{builder, configured_alone, kind, stateless::Modern};

const SECRET: &str = "canary-outside-of-the-roots";

/// A folder `files` that is a root, and a secret next to it.
struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("files")).unwrap();
        std::fs::write(folder.path().join("files/a"), "inside").unwrap();
        std::fs::write(folder.path().join("secret"), SECRET).unwrap();
        Self { folder }
    }

    fn root(&self) -> String {
        format!("file://{}/files", self.folder.path().display())
    }
}

/// Returns the file that a careless reader finds: everything behind `file://` is a path.
fn naively_read(uri: &str) -> Option<String> {
    let mut path = PathBuf::new();
    for component in Path::new(uri.strip_prefix("file://")?).components() {
        match component {
            Component::ParentDir => drop(path.pop()),
            other => path.push(other),
        }
    }
    std::fs::read_to_string(path).ok()
}

async fn careless_backend() -> FakeBackend {
    let backend = FakeBackend::echo().await;
    backend.capabilities(json!({"tools": {}, "resources": {"subscribe": true}, "completions": {}}));
    backend.on("resources/read", |call| async move {
        let uri = call.params()["uri"].as_str().unwrap().to_owned();
        let text = naively_read(&uri).unwrap_or_default();
        Reply::Result(json!({"contents": [{"uri": uri, "text": text}]}))
    });
    for method in ["resources/subscribe", "resources/unsubscribe"] {
        backend.on(method, |_| async { Reply::Result(json!({})) });
    }
    backend.on("completion/complete", |_| async {
        Reply::Result(json!({"completion": {"values": []}}))
    });
    backend
}

fn with_root(backend: &FakeBackend, root: &str) -> Value {
    let mut spec = backend.spec();
    spec["resources"] = json!({"roots": [root]});
    spec
}

/// Returns URIs that lead some reader to the secret.
fn leading_out(root: &str) -> Vec<String> {
    let spellings = [
        "/a?/../../secret",
        "/a#/../../secret",
        "/a?x=1/../../../secret",
        "/?/../../secret",
        "/a%3f/%2e%2e/../secret",
        "/a;x/..?/../secret",
    ];
    spellings.iter().map(|rest| format!("{root}{rest}")).collect()
}

fn about(uri: &str) -> [(&'static str, Value); 4] {
    let reference = json!({"ref": {"type": "ref/resource", "uri": uri}, "argument": {"name": "a", "value": ""}});
    [
        ("resources/read", json!({"uri": uri})),
        ("resources/subscribe", json!({"uri": uri})),
        ("resources/unsubscribe", json!({"uri": uri})),
        ("completion/complete", reference),
    ]
}

/// Checks that none of these URIs reached the backend.
fn assert_not_received(backend: &FakeBackend, uris: &[String]) {
    for seen in backend.recorded() {
        let body = seen.message["params"].to_string();
        assert!(!uris.iter().any(|uri| body.contains(uri.as_str())), "{body}");
    }
}

#[tokio::test]
async fn s06_a_query_cannot_hide_a_path_out_of_the_roots_in_any_method() {
    let (files, backend) = (Files::new(), careless_backend().await);
    let uris = leading_out(&files.root());
    assert!(naively_read(&uris[0]).is_some_and(|text| text == SECRET), "the reader is careless");
    for roots in [true, false] {
        let spec = if roots { with_root(&backend, &files.root()) } else { backend.spec() };
        let broker = builder().backend("default", "b", spec).start().await;
        for (path, prefix) in [("/mcp", "b+"), ("/mcp/b", "")] {
            let client = broker.client(path).connected(json!({})).await;
            for uri in &uris {
                for (method, params) in about(&format!("{prefix}{uri}")) {
                    let error = client.error(method, params).await;
                    assert_eq!(
                        (error["code"].as_i64(), kind(&error)),
                        (Some(-32602), "path_traversal"),
                        "{path} {method} {uri}"
                    );
                }
            }
            let read = client
                .result("resources/read", json!({"uri": format!("{prefix}{}/a", files.root())}))
                .await;
            assert_eq!(read["contents"][0]["text"], "inside");
        }
    }
    assert_not_received(&backend, &uris);
}

#[tokio::test]
async fn s06_stateless_requests_are_limited_to_the_roots_for_every_reader() {
    let (files, backend) = (Files::new(), careless_backend().await);
    let mut uris = leading_out(&files.root());
    let broker =
        builder().backend("default", "b", with_root(&backend, &files.root())).start().await;
    let client = Modern::of(&broker, "/mcp");
    for uri in &uris {
        let error = client.error("resources/read", json!({"uri": format!("b+{uri}")})).await;
        assert_eq!(kind(&error), "path_traversal", "{uri}");
    }
    let aside = format!("{}?x", files.root());
    assert_eq!(
        kind(&client.error("resources/read", json!({"uri": format!("b+{aside}")})).await),
        "outside_roots"
    );
    uris.push(aside);
    let inside = format!("b+{}/a", files.root());
    let arguments: Vec<String> =
        uris.iter().map(|uri| format!("b+{uri}")).chain([inside.clone()]).collect();
    let arguments = json!({"notifications": {"resourceSubscriptions": arguments}});
    let mut events =
        client.post(json!("listening"), "subscriptions/listen", arguments).await.events();
    let acknowledged = events.next_message().await.expect("the stream is open").1;
    assert_eq!(acknowledged["params"]["notifications"], json!({"resourceSubscriptions": [inside]}));
    assert_not_received(&backend, &uris);
    assert_eq!(backend.count(|seen| seen.is("resources/subscribe")), 1);
}

#[tokio::test]
async fn s06_a_template_value_cannot_lead_out_of_the_roots() {
    let (files, backend) = (Files::new(), careless_backend().await);
    let broker =
        builder().backend("default", "b", with_root(&backend, &files.root())).start().await;
    let client = broker.connected(json!({})).await;
    let template =
        json!({"type": "ref/resource", "uri": format!("b+{}/{{folder}}/{{name}}", files.root())});
    let request = |value: &str, folder: &str| json!({"ref": template, "argument": {"name": "name", "value": value}, "context": {"arguments": {"folder": folder}}});
    for (value, folder) in
        [("../../secret", ""), ("", "../.."), ("/etc/", "x"), ("%2e%2e/x", "x"), ("a", "..?")]
    {
        let error = client.error("completion/complete", request(value, folder)).await;
        assert_eq!(
            (error["code"].as_i64(), kind(&error)),
            (Some(-32602), "path_traversal"),
            "{value} {folder}"
        );
    }
    assert_eq!(backend.count(|seen| seen.is("completion/complete")), 0);
    client.result("completion/complete", request("read", "notes/old")).await;
    assert_eq!(backend.count(|seen| seen.is("completion/complete")), 1);
}

async fn targets(broker: &TestBroker, wanted: usize) -> Vec<Value> {
    eventually("the requests in the audit log", || async {
        let (_, answer) = broker.admin().get("/admin/v1/audit?limit=1000&kind=call").await;
        let found: Vec<Value> = answer["records"]
            .as_array()
            .unwrap()
            .iter()
            .map(|record| record["target"].clone())
            .collect();
        if found.len() >= wanted { Ok(found) } else { Err(found) }
    })
    .await
}

#[tokio::test]
async fn s06_the_audit_log_shows_every_possible_path_of_a_uri() {
    let backend = careless_backend().await;
    let broker = configured_alone(json!({"audit": {"calls": "metadata"}}), backend.spec()).await;
    let client = broker.connected(json!({})).await;
    for uri in [
        "b+file:///srv/a?/../../etc/passwd",
        "b+notes://a#/../b",
        "b+https://example.com/a?token=canary",
    ] {
        client.request("resources/read", json!({"uri": uri})).await;
    }
    client.request("completion/complete", about("b+file:///srv/a?b")[3].1.clone()).await;
    let shown = [
        "b+file:///srv/a?/../../etc/passwd",
        "b+notes://a#/../b",
        "b+https://example.com/a?[redacted]",
        "b+file:///srv/a?b",
    ];
    assert_eq!(targets(&broker, shown.len()).await, shown);
}

#[tokio::test]
async fn s06_subscriptions_are_limited_to_the_current_roots_of_the_backend() {
    let (files, backend) = (Files::new(), careless_backend().await);
    let broker = builder().single_process().backend("default", "b", backend.spec()).start().await;
    let client = broker.connected(json!({})).await;
    let (inside, outside) = (format!("{}/a", files.root()), "file:///elsewhere/a".to_owned());
    for uri in [&inside, &outside] {
        client.result("resources/subscribe", json!({"uri": format!("b+{uri}")})).await;
    }
    let was_received = |uri: &str| {
        backend.count(|seen| seen.is("resources/subscribe") && seen.message["params"]["uri"] == uri)
    };
    assert_eq!((was_received(&inside), was_received(&outside)), (1, 1));
    broker.admin().put_ready_backend("default", "b", &with_root(&backend, &files.root())).await;
    backend
        .wait_count("the subscription to be put back", 2, |seen| {
            seen.is("resources/subscribe") && seen.message["params"]["uri"] == inside
        })
        .await;
    // A later request of the session finds that the others left no trace.
    let error = client.error("resources/subscribe", json!({"uri": format!("b+{outside}")})).await;
    assert_eq!(kind(&error), "outside_roots");
    assert_eq!((was_received(&inside), was_received(&outside)), (2, 1));
    let subscribed =
        broker.admin().wait_metric("mcp_subscriptions", &[], |count| count == 1.0).await;
    assert_eq!(subscribed, 1.0);
}
