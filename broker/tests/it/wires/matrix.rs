//! Every wire in front of every wire behind, from one table ([`FRONTS`], [`BACKS`]), with every
//! feature.
//!
//! The table in `docs/transports.md` is written from the same one.

use std::net::SocketAddr;

use serde_json::{Value, json};
use testkit::{
    Authority, BrokerBuilder, DuplexClient, FakeBackend, HttpSseBackend, PipeBackend, QuicPeer,
    Reply, StdioScript, TestBroker,
    duplex::{Wire, socket},
    quic_streams::StreamOptions,
};

use super::{answering, everything, features, listening, over_each};
use crate::stdio as script;

/// Wires of clients, each with its name in the documentation.
pub(crate) const FRONTS: [(&str, &str); 7] = [
    ("http", "Streamable HTTP"),
    ("sse", "HTTP+SSE (2024-11-05)"),
    ("websocket", "WebSocket"),
    ("tcp", "TCP"),
    ("tls", "TCP with TLS"),
    ("quic", "QUIC, all on the control stream"),
    ("quic_streams", "QUIC, a stream for each request"),
];
/// Wires of backends.
pub(super) const BACKS: [&str; 8] =
    ["stdio", "http", "sse", "tcp", "tls", "websocket", "quic", "quic_streams"];

/// State that is kept for as long as a client exists.
pub(crate) struct Client {
    pub(crate) client: DuplexClient,
    pub(crate) peer: Option<QuicPeer>,
}

/// Addresses of the listeners.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Doors {
    pub(crate) http: SocketAddr,
    pub(crate) tcp: SocketAddr,
    pub(crate) quic: SocketAddr,
}

impl Doors {
    pub(crate) fn of(broker: &TestBroker) -> Self {
        Self { http: broker.http_address(), tcp: broker.tcp_address(), quic: broker.quic_address() }
    }
}

/// Opens a new connection without any message on it.
pub(super) async fn wire(
    front: &str,
    doors: Doors,
    authority: &Authority,
) -> (Wire, Option<QuicPeer>) {
    let wire = match front {
        "http" => Wire::streamable_http(doors.http, "/mcp"),
        "sse" => Wire::http_sse(doors.http, "/sse", &[]).await.unwrap(),
        "websocket" => {
            Wire::websocket(socket(doors.http).await, &doors.http.to_string(), "/ws", &[])
                .await
                .unwrap()
                .0
        }
        "tcp" => Wire::lines(socket(doors.tcp).await),
        "tls" => Wire::lines(authority.connect(doors.tcp.port(), None, &["mcp"]).await.unwrap()),
        "quic" | "quic_streams" => {
            let peer = QuicPeer::connect(doors.quic, authority, None, "mcp").await.unwrap();
            let wire = if front == "quic" { peer.control().await } else { peer.streams().await };
            return (wire, Some(peer));
        }
        other => panic!("no front {other}"),
    };
    (wire, None)
}

pub(crate) async fn client(
    front: &str,
    broker: &TestBroker,
    doors: Doors,
    authority: &Authority,
) -> Client {
    let (wire, peer) = wire(front, doors, authority).await;
    Client { client: answering(broker.duplex()).over(wire).connected(everything()).await, peer }
}

/// A backend, which ends when it is dropped.
pub(super) enum Behind {
    Child(StdioScript),
    Http(FakeBackend),
    Sse(HttpSseBackend),
    Socket(PipeBackend),
}

impl Behind {
    pub(super) async fn new(back: &str, script: StdioScript, authority: &Authority) -> Self {
        let tls = || authority.server("backend").server_config();
        Self::Socket(match back {
            "stdio" => return Self::Child(script),
            "http" => return Self::Http(scripted_over_http().await),
            "sse" => return Self::Sse(HttpSseBackend::start(&script).await),
            "tcp" => PipeBackend::tcp(&script).await,
            "tls" => PipeBackend::tls(&script, tls()).await,
            "websocket" => PipeBackend::websocket(&script).await,
            "quic" => PipeBackend::quic(&script, tls()).await,
            "quic_streams" => {
                PipeBackend::quic_streams(&script, tls(), StreamOptions::default()).await
            }
            other => panic!("no back {other}"),
        })
    }

    /// Returns the admin API's body.
    pub(super) fn spec(&self) -> Value {
        match self {
            Self::Child(script) => script.spec(),
            Self::Http(backend) => backend.spec(),
            Self::Sse(backend) => backend.spec(),
            Self::Socket(backend) => backend.spec(),
        }
    }
}

/// Starts a backend over Streamable HTTP with the tools of the scripted one.
async fn scripted_over_http() -> FakeBackend {
    let backend =
        FakeBackend::with_tool(
            "echo",
            |call| async move { Reply::text(&call.arguments().to_string()) },
        )
        .await;
    backend.sessions();
    backend.capabilities(
        json!({"tools": {"listChanged": true}, "logging": {}, "resources": {"subscribe": true}}),
    );
    backend.list("resources", vec![json!({"uri": "test://one", "name": "one"})]);
    for method in ["logging/setLevel", "resources/subscribe", "resources/unsubscribe"] {
        backend.on(method, |_| async { Reply::Result(json!({})) });
    }
    backend.on("resources/read", |call| async move {
        Reply::Result(json!({"contents": [{"uri": call.params()["uri"], "text": "one"}]}))
    });
    backend.tool("progress", |call| async move {
        for step in 1..=3 {
            call.progress(f64::from(step), 3.0).await;
        }
        Reply::text("done")
    });
    backend.tool("log", |call| async move {
        call.notify(
            "notifications/message",
            json!({"level": call.arguments()["level"], "data": call.arguments()["data"]}),
        )
        .await;
        Reply::text("logged")
    });
    backend.tool("sample", |call| async move {
        let messages = json!([{"role": "user", "content": {"type": "text", "text": call.arguments()["prompt"]}}]);
        Reply::text(&call.request("sampling/createMessage", json!({"messages": messages, "maxTokens": 10})).await.to_string())
    });
    backend.tool("elicit", |call| async move {
        let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
        let params = json!({"message": call.arguments()["message"], "requestedSchema": schema});
        Reply::text(&call.request("elicitation/create", params).await.to_string())
    });
    backend.tool("roots", |call| async move {
        Reply::text(&call.request("roots/list", json!({})).await.to_string())
    });
    backend.tool("touch", |call| async move {
        call.notify("notifications/resources/updated", json!({"uri": "test://one"})).await;
        Reply::text("touched")
    });
    backend.tool("hang", |call| async move {
        call.client_disconnected().await;
        Reply::text("too late")
    });
    backend
}

pub(crate) fn listening_everywhere(authority: &Authority) -> BrokerBuilder {
    let server = authority.server("server");
    let tls = json!({"cert_file": server.cert, "key_file": server.key});
    listening()
        .config(json!({"listen": {"quic": "127.0.0.1:0"}, "tls": tls}))
        .env("SSL_CERT_FILE", authority.ca().to_str().unwrap())
}

async fn passes(back: &str) {
    let authority = Authority::new();
    let backend = Behind::new(back, script(), &authority).await;
    let broker =
        listening_everywhere(&authority).backend("default", "b", backend.spec()).start().await;
    for (front, _) in FRONTS {
        println!("{front} in front of {back}");
        let client = client(front, &broker, Doors::of(&broker), &authority).await;
        features::every_one(&client.client).await;
        assert_eq!(broker.admin().sessions("default").await.len(), 1);
        if front == "sse" {
            client.client.disconnect(); // its stream is its session
        }
        drop(client);
        broker.admin().wait_sessions("default", 0).await;
    }
}

over_each!(BACKS, passes: stdio, http, sse, tcp, tls, websocket, quic, quic_streams);

/// Checks the part of `docs/transports.md` between two comments. Run with `UPDATE_DOCS=1` to
/// replace it.
#[test]
fn the_documented_matrix_equals_the_tested_one() {
    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/transports.md");
    const BEGIN: &str = "<!-- matrix -->\n";
    const END: &str = "<!-- end of matrix -->";
    let mut table = format!(
        "| client \\ backend | {} |\n|---|{}\n",
        BACKS.join(" | "),
        "---|".repeat(BACKS.len())
    );
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
    assert!(
        page == written || std::env::var_os("UPDATE_DOCS").is_some(),
        "docs/transports.md: run this test with UPDATE_DOCS=1"
    );
}
