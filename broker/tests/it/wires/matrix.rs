//! Every wire in front of every wire behind, from one table ([`FRONTS`], [`BACKS`]), with every feature.
//!
//! The table in `docs/transports.md` is written from the same one.

use std::any::Any;

use serde_json::{Value, json};
use testkit::{
    Authority, BrokerBuilder, DuplexClient, FakeBackend, PipeBackend, QuicPeer, Reply, TestBroker, duplex::Wire, quic_streams::StreamsMode,
};

use super::{answering, everything, features, listening};
use crate::stdio as script;

/// How clients come, with what a reader of the documentation calls it.
const FRONTS: [(&str, &str); 6] = [
    ("http", "Streamable HTTP"),
    ("sse", "HTTP+SSE (2024-11-05)"),
    ("websocket", "WebSocket"),
    ("tcp", "TCP"),
    ("tls", "TCP with TLS"),
    ("quic", "QUIC"),
];
/// Where backends are.
const BACKS: [&str; 7] = ["stdio", "http", "tcp", "tls", "websocket", "quic", "quic_streams"];

/// What is kept for as long as a client lives.
struct Client {
    client: DuplexClient,
    _peer: Option<QuicPeer>,
}

async fn client(front: &str, broker: &TestBroker, authority: &Authority) -> Client {
    let builder = answering(broker.duplex());
    let (client, peer) = match front {
        "http" => (builder.over(Wire::streamable_http(broker.http_address(), "/mcp")), None),
        "sse" => (builder.over(Wire::legacy(broker.http_address(), "/sse", &[]).await.unwrap()), None),
        "websocket" => (builder.websocket(broker.http_address(), "/ws", &[]).await.unwrap().0, None),
        "tcp" => (builder.tcp(broker.tcp_address()).await, None),
        "tls" => (builder.over(Wire::lines(authority.connect(broker.tcp_address().port(), None, &["mcp"]).await.unwrap())), None),
        "quic" => {
            let peer = QuicPeer::connect(broker.quic_address(), authority, None, "mcp").await.unwrap();
            (builder.over(peer.control().await), Some(peer))
        }
        other => panic!("no front {other}"),
    };
    Client { client: client.connected(everything()).await, _peer: peer }
}

/// The admin API's body, and what is kept for as long as the backend lives.
async fn backend(back: &str, authority: &Authority) -> (Value, Box<dyn Any>) {
    let backend = match back {
        "stdio" => return (script().spec(), Box::new(())),
        "http" => {
            let backend = scripted_over_http().await;
            return (backend.spec(), Box::new(backend));
        }
        "tcp" => PipeBackend::tcp(&script()).await,
        "tls" => PipeBackend::tls(&script(), authority.server("backend").server_config()).await,
        "websocket" => PipeBackend::websocket(&script()).await,
        "quic" => PipeBackend::quic(&script(), authority.server("backend").server_config()).await,
        "quic_streams" => PipeBackend::quic_streams(&script(), authority.server("backend").server_config(), StreamsMode::default()).await,
        other => panic!("no back {other}"),
    };
    (backend.spec(), Box::new(backend))
}

/// What the features need of the scripted backend, over Streamable HTTP.
async fn scripted_over_http() -> FakeBackend {
    let backend = FakeBackend::with_tool("echo", |call| async move { Reply::text(&call.arguments().to_string()) }).await;
    backend.sessions();
    backend.capabilities(json!({"tools": {"listChanged": true}, "logging": {}, "resources": {"subscribe": true}}));
    backend.list("resources", vec![json!({"uri": "test://one", "name": "one"})]);
    for method in ["logging/setLevel", "resources/subscribe", "resources/unsubscribe"] {
        backend.on(method, |_| async { Reply::Result(json!({})) });
    }
    backend.on("resources/read", |call| async move { Reply::Result(json!({"contents": [{"uri": call.params()["uri"], "text": "one"}]})) });
    backend.tool("progress", |call| async move {
        for step in 1..=3 {
            call.progress(f64::from(step), 3.0).await;
        }
        Reply::text("done")
    });
    backend.tool("log", |call| async move {
        call.notify("notifications/message", json!({"level": call.arguments()["level"], "data": call.arguments()["data"]})).await;
        Reply::text("logged")
    });
    backend.tool("sample", |call| async move {
        let messages = json!([{"role": "user", "content": {"type": "text", "text": call.arguments()["prompt"]}}]);
        Reply::text(&call.ask("sampling/createMessage", json!({"messages": messages, "maxTokens": 10})).await.to_string())
    });
    backend.tool("elicit", |call| async move {
        let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
        let params = json!({"message": call.arguments()["message"], "requestedSchema": schema});
        Reply::text(&call.ask("elicitation/create", params).await.to_string())
    });
    backend.tool("roots", |call| async move { Reply::text(&call.ask("roots/list", json!({})).await.to_string()) });
    backend.tool("touch", |call| async move {
        call.notify("notifications/resources/updated", json!({"uri": "test://one"})).await;
        Reply::text("touched")
    });
    backend.tool("hang", |call| async move {
        call.gone().await;
        Reply::text("too late")
    });
    backend
}

fn listening_everywhere(authority: &Authority) -> BrokerBuilder {
    let server = authority.server("server");
    let tls = json!({"cert_file": server.cert, "key_file": server.key});
    listening().config(json!({"listen": {"quic": "127.0.0.1:0"}, "tls": tls})).env("SSL_CERT_FILE", authority.ca().to_str().unwrap())
}

async fn passes(back: &str) {
    let authority = Authority::new();
    let (spec, _backend) = backend(back, &authority).await;
    let broker = listening_everywhere(&authority).backend("default", "b", spec).start().await;
    for (front, _) in FRONTS {
        println!("{front} in front of {back}");
        let client = client(front, &broker, &authority).await;
        features::every_one(&client.client).await;
    }
}

macro_rules! over_each_back {
    ($($name:ident),*) => {
        $(#[tokio::test]
        async fn $name() {
            passes(stringify!($name)).await;
        })*

        #[test]
        fn every_back_is_tried() {
            assert_eq!(BACKS.as_slice(), [$(stringify!($name)),*].as_slice());
        }
    };
}

over_each_back!(stdio, http, tcp, tls, websocket, quic, quic_streams);

/// The part of `docs/transports.md` between two comments. Run with `UPDATE_DOCS=1` to write it anew.
#[test]
fn the_documented_matrix_is_the_tested_one() {
    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/transports.md");
    const BEGIN: &str = "<!-- matrix -->\n";
    const END: &str = "<!-- end of matrix -->";
    let mut table = format!("| client \\ backend | {} |\n|---|{}\n", BACKS.join(" | "), "---|".repeat(BACKS.len()));
    for (_, name) in FRONTS {
        table.push_str(&format!("| {name} |{}\n", " all |".repeat(BACKS.len())));
    }
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let written = format!("{before}{BEGIN}{table}{END}{after}");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(PAGE, &written).unwrap();
    }
    assert!(page == written || std::env::var_os("UPDATE_DOCS").is_some(), "docs/transports.md: run this test with UPDATE_DOCS=1");
}
