//! A backend written in Go, whose `encoding/json` matches member names without regard to case and
//! takes the last of several. Its ledger holds the calls it carried out. These must be exactly the
//! tools and resources that the broker checked and wrote into the audit log.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::Stdio,
};

use protocol::error::ErrorKind;
use serde_json::{Value, json};
use testkit::{Authority, BrokerBuilder, FakeBackend, Reply, TestBroker, eventually};
use tokio::{io::AsyncWriteExt, process::Command};

use super::install::Peers;
use crate::{
    builder, kind,
    stateless::{Modern, meta},
    text_of,
    wires::matrix::{Client, Doors, FRONTS, client, listening_everywhere},
};

struct GoServer {
    program: PathBuf,
    folder: tempfile::TempDir,
}

impl GoServer {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The server writes its ledger with a user of its own if the sandbox can give it one.
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
        Self { program: Peers::installed().go_server(), folder }
    }

    fn ledger(&self) -> PathBuf {
        self.folder.path().join("ledger")
    }

    /// Returns the backend's body with every policy that decides by the content of a request.
    fn spec(&self) -> Value {
        json!({
            "transport": {"type": "stdio", "command": self.program, "args": [self.ledger()]},
            "sandbox": {"write": [self.folder.path()]},
            "links": "shared",
            "tools": {"validate_arguments": true},
            "resources": {"roots": ["file:///srv/files"]},
        })
    }

    /// Returns the names and locations of the calls it carried out, in order.
    fn executed(&self) -> Vec<Vec<String>> {
        let text = fs::read_to_string(self.ledger()).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).expect("a line of the ledger")).collect()
    }

    /// Checks that no call was carried out that the broker would refuse in plain form.
    #[track_caller]
    fn assert_nothing_forbidden(&self) {
        for done in self.executed() {
            let allowed = match done[0].as_str() {
                "tools/call" => done[1] == "read_file" && done[2].starts_with("/srv/"),
                "resources/read" => done[1].starts_with("file:///srv/files/"),
                _ => false,
            };
            assert!(allowed, "carried out: {done:?}");
        }
    }
}

fn with_audit(builder: BrokerBuilder) -> BrokerBuilder {
    builder.config(json!({"audit": {"calls": "arguments"}}))
}

/// Messages that an exact reader finds harmless, and Go does not.
const HOSTILE: [&str; 12] = [
    r#"{"jsonrpc":"2.0","id":901,"method":"tools/call","params":{"name":"go__read_file","Name":"delete_all","arguments":{"path":"/srv/a"}}}"#,
    r#"{"jsonrpc":"2.0","id":902,"method":"tools/call","params":{"name":"go__read_file","arguments":{"path":"/srv/a"},"Arguments":{"path":"/etc/passwd"}}}"#,
    r#"{"jsonrpc":"2.0","id":903,"method":"tools/call","params":{"name":"go__read_file","arguments":{"path":"/srv/a"},"argument\u017f":{"path":"/etc/passwd"}}}"#,
    r#"{"jsonrpc":"2.0","id":904,"method":"tools/call","params":{"name":"go__read_file","arguments":{"path":"/srv/a"}},"Params":{"name":"delete_all"}}"#,
    r#"{"jsonrpc":"2.0","id":905,"method":"tools/call","params":{"name":"go__read_file"},"\u0050arams":{"name":"delete_all"}}"#,
    r#"{"jsonrpc":"2.0","id":906,"method":"tools/call","params":{"name":"go__read_file"},"PARAMſ":{"name":"delete_all"}}"#,
    r#"{"jsonrpc":"2.0","id":907,"method":"ping","Method":"tools/call","params":{"name":"delete_all"}}"#,
    r#"{"jsonrpc":"2.0","id":908,"method":"resources/read","params":{"uri":"go+file:///srv/files/a","URI":"file:///etc/passwd"}}"#,
    r#"{"jsonrpc":"2.0","id":909,"method":"resources/read","params":{"uri":"go+file:///srv/files/a","u\u0052i":"file:///etc/passwd"}}"#,
    r#"{"jsonrpc":"2.0","id":910,"method":"tools/call","params":{"name":"go__read_file","_meta":{"progressToken":1,"progressTo\u212aen":2}}}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/progress","Method":"tools/call","ID":5,"Params":{"name":"delete_all"}}"#,
    r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed","METHOD":"resources/read","Id":6,"params":{"URI":"file:///etc/passwd"}}"#,
];

/// Shows that the first two would do harm if they were forwarded: only then is the rest of this
/// module worth something.
#[tokio::test]
async fn s01_the_go_server_itself_accepts_other_spellings_of_members() {
    let server = GoServer::new();
    let mut child = Command::new(&server.program)
        .arg(server.ledger())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    for text in HOSTILE {
        input.write_all(format!("{text}\n").as_bytes()).await.unwrap();
    }
    drop(input);
    assert!(child.wait().await.unwrap().success());
    let done = server.executed();
    assert!(
        done.iter().filter(|done| done.contains(&"delete_all".to_owned())).count() >= 4,
        "{done:?}"
    );
    assert!(
        done.iter().filter(|done| done.contains(&"/etc/passwd".to_owned())).count() >= 2,
        "{done:?}"
    );
    assert!(
        done.iter().filter(|done| done.contains(&"file:///etc/passwd".to_owned())).count() >= 2,
        "{done:?}"
    );
}

async fn refused(client: &Client, text: &str) {
    client.client.send(text).await;
    let id = serde_json::from_str::<Value>(text).unwrap()["id"].clone();
    if id.is_number() {
        let answer =
            client.client.wait_for_message("the refusal", |message| message["id"] == id).await;
        assert_eq!(answer["error"]["code"], -32600, "{text}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s01_no_wire_forwards_a_message_that_a_go_server_reads_differently() {
    let (server, authority) = (GoServer::new(), Authority::new());
    let broker = with_audit(listening_everywhere(&authority))
        .backend("default", "go", server.spec())
        .start()
        .await;
    for (round, (front, _)) in FRONTS.iter().enumerate() {
        println!("{front}");
        let client = client(front, &broker, Doors::of(&broker), &authority).await;
        for text in HOSTILE {
            refused(&client, text).await;
        }
        let messages = (HOSTILE.len() * (round + 1)) as f64;
        broker
            .admin()
            .wait_metric("mcp_errors_total", &[("code", "-32600")], |count| count >= messages)
            .await;
        let marker = format!("/srv/{front}");
        client.client.call("go__read_file", json!({"path": marker})).await;
        eventually("the call in the ledger", || async {
            let done = server.executed();
            done.iter().any(|done| done.get(2) == Some(&marker)).then_some(()).ok_or(done)
        })
        .await;
        server.assert_nothing_forbidden();
    }
    // The audit log holds exactly the calls that were carried out.
    let executed = server.executed();
    assert_eq!(executed.len(), FRONTS.len(), "{executed:?}");
    eventually("the calls in the audit log", || async {
        let (_, page) = broker.admin().get("/admin/v1/audit?limit=1000&kind=call").await;
        let done =
            page["records"].as_array().unwrap().iter().filter(|row| row["outcome"] == "ok").count();
        (done == executed.len()).then_some(()).ok_or(page)
    })
    .await;
}

#[tokio::test]
async fn s01_batches_and_stateless_requests_follow_the_same_rules() {
    let server = GoServer::new();
    let broker = with_audit(builder().single_process())
        .backend("default", "go", server.spec())
        .start()
        .await;
    let client = broker.client("/mcp");
    client.initialize("2025-03-26", json!({})).await;
    let response = client.post(format!("[{}]", HOSTILE.join(","))).await;
    let answer = if response.is_event_stream() {
        let events = response.events().rest().await;
        events.iter().filter_map(testkit::Event::message).collect()
    } else {
        vec![response.json().await]
    };
    let answers: Vec<Value> = answer
        .into_iter()
        .flat_map(|one| one.as_array().cloned().unwrap_or_else(|| vec![one]))
        .collect();
    assert_eq!(
        answers.iter().filter(|answer| answer["error"]["code"] == -32600).count(),
        HOSTILE.len(),
        "{answers:?}"
    );

    let alone = Modern::of(&broker, "/mcp");
    for (method, params) in [
        ("tools/call", r#""name":"go__read_file","Name":"delete_all""#),
        (
            "tools/call",
            r#""name":"go__read_file","arguments":{"path":"/srv/a"},"ARGUMENTS":{"path":"/etc/passwd"}"#,
        ),
        ("resources/read", r#""uri":"go+file:///srv/files/a","Uri":"file:///etc/passwd""#),
    ] {
        let named: Value = serde_json::from_str(&format!("{{{params}}}")).unwrap();
        let headers = alone.headers(method, &named);
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{{params},"_meta":{}}}}}"#,
            meta(json!({}))
        );
        let (status, error) = crate::refused(alone.send(&headers, body).await).await;
        assert_eq!((status, error["code"].as_i64()), (400, Some(-32600)), "{params}");
    }
    assert_eq!(
        alone.call("go__read_file", json!({"path": "/srv/fence"})).await["isError"],
        Value::Null
    );
    server.assert_nothing_forbidden();
}

async fn key_of(broker: &TestBroker, principal: &str) -> String {
    let (status, made) = broker
        .admin()
        .post("/admin/v1/tenants/default/keys", &json!({"principal": principal}))
        .await;
    assert_eq!(status, 201, "{made}");
    made["key"].as_str().unwrap().to_owned()
}

/// All of a tenant's calls go over one pipe: a server that takes `ID` for the id answers a call of
/// another principal.
#[tokio::test]
async fn s01_the_id_of_another_principals_call_reaches_no_server_on_a_shared_link() {
    let server = GoServer::new();
    let broker = builder()
        .single_process()
        .auth_required()
        .backend("default", "go", server.spec())
        .start()
        .await;
    let ann =
        broker.client("/mcp").bearer(&key_of(&broker, "ann").await).connected(json!({})).await;
    let mallory =
        broker.client("/mcp").bearer(&key_of(&broker, "mallory").await).connected(json!({})).await;
    let call = ann.start_call("go__wait", json!({}));
    eventually("the call in the ledger", || async {
        server.executed().first().cloned().ok_or("it is not there yet")
    })
    .await;
    for number in 1..=40 {
        for member in ["ID", "iD", r"\u0049D"] {
            let params = r#"{"name":"go__read_file","arguments":{"path":"/srv/forged"}}"#;
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":7,"{member}":{number},"method":"tools/call","params":{params}}}"#
            );
            assert_eq!(mallory.post(text).await.status, 400);
        }
    }
    mallory.call("go__release", json!({})).await;
    assert_eq!(text_of(&call.result().await), "waited");
    assert_eq!(server.executed().len(), 2, "{:?}", server.executed());
}

#[tokio::test]
async fn s01_an_answer_that_a_client_would_read_differently_fails_its_call() {
    let backend = FakeBackend::with_tool("say", |call| async move {
        let member = call.arguments()["member"].as_str().unwrap().to_owned();
        let id = call.message["id"].clone();
        Reply::Message(format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{{"content":[]}},{member}}}"#
        ))
    })
    .await;
    let mut spec = backend.spec();
    spec["breaker"] = json!({"failures": 100});
    let broker = builder().backend("default", "b", spec).start().await;
    let client = broker.connected(json!({})).await;
    let members = [
        r#""Result":{"content":[{"type":"text","text":"forged"}]}"#,
        r#""ID":77"#,
        r#""\u0045rror":{"code":1,"message":"m"}"#,
        r#""params":{"_meta":{}}"#,
        r#""Method":"notifications/x""#,
    ];
    for member in members {
        let error = client
            .error("tools/call", json!({"name": "b__say", "arguments": {"member": member}}))
            .await;
        assert_eq!(kind(&error), "backend_protocol_error", "{member}: {error}");
    }
    let code = ErrorKind::BackendProtocolError.code().to_string();
    broker
        .admin()
        .wait_metric("mcp_errors_total", &[("code", &code)], |count| count >= members.len() as f64)
        .await;
}
