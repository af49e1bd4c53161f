//! Tests of forwarding between two brokers in this process, and from a broker to a faulty peer. A
//! hot store that the test fills contains the locations of sessions.

mod fake_peer;
mod searches;

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bytes::Bytes;
use config::spec::TenantSpec;
use futures_util::{StreamExt, stream};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use protocol::ids::{SessionId, TenantId};
use records::{NodeName, SessionKey};
use rules::limits::RELAYED_WHOLE_BYTES_MAX;
use serde_json::{Value, json};
use storage::{HotStore, OwnerHint, Wakeup};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::broadcast,
};
use tokio_util::sync::CancellationToken;
use transport::{PeerBody, PeerClient, PeerIdentity, PeerServer, peer::STREAM_WINDOW_BYTES};

use self::fake_peer::{Chunks, FakePeer, empty};
use super::serve;
use crate::{
    admission::outbox_budget::UnreadOwner,
    auth::{Caller, Keyring, Keys},
    broker::{Broker, BrokerParts},
    listeners::{self, replicas::relayed_source::TunnelBytes},
    metrics::Metrics,
    persistence::Stores,
};

const DEADLINE: Duration = Duration::from_secs(20);
/// As long as the broker's own ids.
const SESSION: &str = "0123456789abcdef0123456789abcdef";

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future)
        .await
        .unwrap_or_else(|_| panic!("{what} did not happen in {DEADLINE:?}"))
}

async fn until(what: &str, mut state: impl FnMut() -> bool) {
    let wait = async {
        while !state() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(what, wait).await;
}

/// A hot store with the locations that the test wrote.
struct Hints {
    owners: Mutex<HashMap<SessionKey, OwnerHint>>,
    wakes: broadcast::Sender<Wakeup>,
}

#[async_trait]
impl HotStore for Hints {
    fn engine(&self) -> &'static str {
        "memory"
    }

    async fn owner_hint(&self, session: &SessionKey) -> Option<OwnerHint> {
        self.owners.lock().get(session).cloned()
    }

    async fn put_owner_hint(&self, session: &SessionKey, owner: &OwnerHint, _ttl: Duration) {
        self.owners.lock().insert(*session, owner.clone());
    }

    async fn remove_owner_hint(&self, session: &SessionKey) {
        self.owners.lock().remove(session);
    }

    fn publish(&self, _wake: Wakeup) {}

    fn subscribe(&self) -> broadcast::Receiver<Wakeup> {
        self.wakes.subscribe()
    }

    async fn take_from_budgets(
        &self,
        _: &[storage::hot::BudgetRequest],
    ) -> Option<Vec<storage::hot::BudgetGrant>> {
        None
    }

    async fn settle_permits(
        &self,
        _: storage::hot::PermitsLifetime,
        _: &[storage::hot::PermitsRequest],
    ) -> Option<storage::hot::PermitsAnswer> {
        None
    }

    fn is_connected(&self) -> bool {
        true
    }

    async fn close(&self) {}
}

/// A broker with both listeners.
struct Replica {
    broker: Arc<Broker>,
    hints: Arc<Hints>,
    public: String,
    internal: String,
    _stop: tokio_util::sync::DropGuard,
}

impl Replica {
    async fn start() -> Self {
        let config = Arc::new(config::load_from("", []).unwrap());
        let keys = Keys::from_root(b"the same for all");
        let metrics = Arc::new(Metrics::new(false));
        let hints = Arc::new(Hints { owners: Mutex::default(), wakes: broadcast::Sender::new(1) });
        let stores = Stores { hot: hints.clone(), ..Stores::in_memory().await };
        let keyring = Arc::new(Keyring::new(keys.api_key.clone()));
        let broker = Broker::new(BrokerParts { config, metrics, keys, keyring, stores }).unwrap();
        broker.put_tenant(&TenantId::parse("default").unwrap(), TenantSpec::default(), 0);
        let stop = CancellationToken::new();
        let (public, internal) = (
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
        );
        let addresses =
            (public.local_addr().unwrap().to_string(), internal.local_addr().unwrap().to_string());
        let tls_acceptor = listeners::tls_acceptor::TlsAcceptor::plain(&broker.shared.config);
        tokio::spawn(listeners::http::serve(
            broker.clone(),
            listeners::handoff_listener::HandoffListener::new(public),
            tls_acceptor,
            stop.clone(),
        ));
        tokio::spawn(serve(broker.clone(), internal, stop.clone()));
        Self { broker, hints, public: addresses.0, internal: addresses.1, _stop: stop.drop_guard() }
    }

    /// Stores the address of the session in the hot store of this replica.
    async fn store_owner_hint(&self, session: &str, node: &str, address: &str) {
        let key = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, session.as_bytes());
        let owner = OwnerHint { node: node.to_owned(), address: address.to_owned() };
        self.hints
            .put_owner_hint(&SessionKey::from_slice(key.as_ref()).unwrap(), &owner, Duration::MAX)
            .await;
    }

    async fn request(
        &self,
        method: Method,
        session: Option<&str>,
        body: impl Into<Bytes>,
    ) -> Response<Incoming> {
        self.request_with(method, session, body, &[]).await
    }

    async fn request_with(
        &self,
        method: Method,
        session: Option<&str>,
        body: impl Into<Bytes>,
        headers: &[(&'static str, &str)],
    ) -> Response<Incoming> {
        let socket = TcpStream::connect(&self.public).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.unwrap();
        tokio::spawn(connection);
        let mut request = Request::builder()
            .method(method)
            .uri("/mcp")
            .header("host", "localhost")
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(session) = session {
            request = request.header("mcp-session-id", session);
        }
        let request = request.body(Full::new(body.into())).unwrap();
        soon("a response", sender.send_request(request)).await.unwrap()
    }

    async fn open_session(&self) -> String {
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let response = self.request(Method::POST, None, call(1, "initialize", params)).await;
        assert_eq!(response.status(), StatusCode::OK);
        let session = response.headers()["mcp-session-id"].to_str().unwrap().to_owned();
        let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string();
        assert_eq!(
            self.request(Method::POST, Some(&session), ready).await.status(),
            StatusCode::ACCEPTED
        );
        session
    }

    fn counted(&self, outcome: &str) -> u64 {
        let series = format!("mcp_forwarded_requests_total{{outcome=\"{outcome}\"}} ");
        let text = self.broker.shared.metrics.render();
        text.lines()
            .find_map(|line| line.strip_prefix(&series))
            .map_or(0, |count| count.parse().unwrap())
    }
}

fn call(id: u64, method: &str, params: Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

async fn json_of(response: Response<Incoming>) -> Value {
    let body = soon("the body", response.into_body().collect()).await.unwrap().to_bytes();
    serde_json::from_slice(&body).unwrap()
}

#[tokio::test]
async fn a_session_is_served_through_another_replica() {
    let (edge, owner) = (Replica::start().await, Replica::start().await);
    let session = owner.open_session().await;
    edge.store_owner_hint(&session, "owner", &owner.internal).await;

    let response = edge.request(Method::POST, Some(&session), call(7, "ping", json!({}))).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["mcp-protocol-version"], "2025-11-25");
    assert_eq!(response.headers()["content-type"], "application/json");
    assert_eq!(json_of(response).await, json!({"jsonrpc": "2.0", "id": 7, "result": {}}));

    let refused = edge
        .request(Method::POST, Some(&session), call(8, "tools/call", json!({"name": "none"})))
        .await;
    assert_eq!(json_of(refused).await["error"]["data"]["kind"], "tool_not_found");
    let malformed = edge.request(Method::POST, Some(&session), "{").await;
    assert_eq!(malformed.status(), StatusCode::BAD_REQUEST);

    assert_eq!(
        edge.request(Method::DELETE, Some(&session), "").await.status(),
        StatusCode::NO_CONTENT
    );
    assert!(owner.broker.sessions(None).is_empty(), "it ended where it was");
    assert_eq!(
        edge.request(Method::POST, Some(&session), call(9, "ping", json!({}))).await.status(),
        StatusCode::NOT_FOUND
    );
    assert!(edge.broker.sessions(None).is_empty());
    assert_eq!(edge.counted("answered"), 4, "a frame that is not a message is refused at the edge");
}

#[tokio::test]
async fn an_event_stream_passes_through_until_its_client_hangs_up() {
    let (edge, owner) = (Replica::start().await, Replica::start().await);
    let session = owner.open_session().await;
    edge.store_owner_hint(&session, "owner", &owner.internal).await;
    let mut response = edge.request(Method::GET, Some(&session), "").await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let frame = soon("the priming event", response.body_mut().frame())
        .await
        .unwrap()
        .unwrap()
        .into_data()
        .unwrap();
    assert!(frame.starts_with(b"id: ") || frame.starts_with(b"id:"), "{frame:?}");
    let streams = || owner.broker.sessions(None)[0].streams;
    assert_eq!(streams(), Some(1));
    drop(response);
    until("the owner learns that no client reads", || streams() == Some(0)).await;
    assert_eq!(owner.broker.sessions(None).len(), 1, "the session stays");
}

#[tokio::test]
async fn a_09_a_client_cannot_impersonate_a_replica() {
    let (edge, owner) = (Replica::start().await, Replica::start().await);
    let acme = TenantId::parse("acme").unwrap();
    owner.broker.put_tenant(&acme, TenantSpec::default(), 0);
    let session = owner.open_session().await;
    // `YW5vbnltb3Vz` is `anonymous`, the principal of the session.
    let spoofed =
        [("x-mcp-broker-caller-tenant", "acme"), ("x-mcp-broker-caller-principal", "YW5vbnltb3Vz")];
    edge.store_owner_hint(&session, "owner", &owner.internal).await;
    for replica in [&edge, &owner] {
        let response = replica
            .request_with(Method::POST, Some(&session), call(1, "ping", json!({})), &spoofed)
            .await;
        assert_eq!(response.status(), StatusCode::OK, "the caller is who it was");
    }
    // The owner distinguishes callers as if they had connected to it.
    let stranger = Caller { tenant: acme, ..Caller::anonymous() };
    let known = owner.broker.local_session(
        &SessionId::new(session.as_str()),
        &stranger,
        &rules::endpoint::Endpoint::Aggregated,
    );
    assert!(known.is_err());
}

#[tokio::test]
async fn a_draining_replica_takes_no_session_from_other_replicas() {
    let (edge, owner) = (Replica::start().await, Replica::start().await);
    edge.store_owner_hint(SESSION, "owner", &owner.internal).await;
    owner.broker.drain();
    let response = edge.request(Method::POST, Some(SESSION), call(1, "ping", json!({}))).await;
    assert_eq!(response.status(), StatusCode::NOT_FOUND, "the record knows nothing of it");
    assert_eq!(edge.counted("not_there"), 1);
}

#[tokio::test]
async fn a_draining_replica_still_forwards_requests() {
    let (edge, owner) = (Replica::start().await, Replica::start().await);
    let session = owner.open_session().await;
    edge.store_owner_hint(&session, "owner", &owner.internal).await;
    edge.broker.drain();
    let response = edge.request(Method::POST, Some(&session), call(1, "ping", json!({}))).await;
    assert_eq!(response.status(), StatusCode::OK);
    let response = edge.request(Method::POST, Some(SESSION), call(1, "ping", json!({}))).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE, "no other replica can take it");
}

#[tokio::test]
async fn a_draining_replica_forwards_new_and_released_sessions_to_another() {
    let (edge, other) = (Replica::start().await, Replica::start().await);
    let session = other.open_session().await;
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let store = &edge.broker.shared.persistence.store;
    for (node, address) in
        [("gone", Some(&*gone)), ("other", Some(&*other.internal)), ("nowhere", None)]
    {
        store.join(&NodeName::new(node), address, Duration::from_secs(60)).await.unwrap();
    }
    edge.broker.drain();
    let handed_over = edge.open_session().await;
    assert!(edge.broker.sessions(None).is_empty());
    assert_eq!(other.broker.sessions(None).len(), 2);
    for session in [session, handed_over] {
        assert_eq!(
            edge.request(Method::POST, Some(&session), call(1, "ping", json!({}))).await.status(),
            StatusCode::OK
        );
    }
    // The other replica drains too, so none is left.
    other.broker.drain();
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let response = edge.request(Method::POST, None, call(1, "initialize", params)).await;
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(json_of(response).await["error"]["data"]["kind"], "draining");
}

#[tokio::test]
async fn a_request_is_forwarded_unchanged_with_its_caller() {
    let (edge, peer) =
        (Replica::start().await, FakePeer::start(|_| Some(empty(StatusCode::ACCEPTED))));
    edge.store_owner_hint(SESSION, "peer", &peer.address).await;
    let body = "{ \"jsonrpc\" : \"2.0\", \"method\":\"notifications/cancelled\",\"x\":1 }";
    let sent = [
        ("authorization", "Bearer unknown"),
        ("x-mcp-broker-caller-tenant", "victim"),
        ("x-mcp-broker-caller-key", "a2V5"),
        ("x-mcp-broker-client-address", "192.0.2.1"),
        ("mcp-protocol-version", "2025-11-25"),
        ("traceparent", "00-1-2-00"),
    ];
    let refused = edge.request_with(Method::POST, Some(SESSION), body, &sent).await;
    assert_eq!(
        refused.status(),
        StatusCode::UNAUTHORIZED,
        "the key is checked where the client is"
    );
    assert_eq!(peer.requests(), 0);
    let response = edge.request_with(Method::POST, Some(SESSION), body, &sent[1..]).await;
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    let requests = peer.seen.requests.lock();
    let (method, uri, headers, received) = &requests[0];
    assert_eq!((method, &received[..]), (&Method::POST, body.as_bytes()));
    assert!(uri.ends_with("/mcp"), "{uri}");
    assert_eq!(headers["x-mcp-broker-caller-tenant"], "default");
    assert_eq!(headers["x-mcp-broker-caller-principal"], "YW5vbnltb3Vz");
    assert!(!headers.contains_key("x-mcp-broker-caller-key") && !headers.contains_key("host"));
    assert_eq!(headers["x-mcp-broker-client-address"], "127.0.0.1");
    assert_eq!(headers["traceparent"], "00-1-2-00");
    assert_eq!(headers["mcp-session-id"], SESSION);
}

#[tokio::test]
async fn f_13_a_call_that_was_sent_and_not_answered_has_an_unknown_outcome() {
    let (edge, mut peer) = (Arc::new(Replica::start().await), FakePeer::start(|_| None));
    edge.store_owner_hint(SESSION, "peer", &peer.address).await;
    let batch =
        format!("[{},{}]", call(1, "ping", json!({})), call(2, "tools/call", json!({"name": "x"})));
    let bodies = [
        call(42, "tools/call", json!({"name": "x"})),
        call(43, "ping", json!({})),
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
            .to_string(),
        batch,
    ];
    let waiting = bodies.map(|body| {
        let edge = edge.clone();
        tokio::spawn(async move { edge.request(Method::POST, Some(SESSION), body).await })
    });
    until("the requests are there", || peer.requests() == 4).await;
    peer.kill();
    let [tool, ping, notification, batch] = waiting;
    let tool = soon("an answer", tool).await.unwrap();
    assert_eq!(tool.status(), StatusCode::OK);
    let tool = json_of(tool).await;
    assert_eq!(
        (&tool["id"], &tool["error"]["data"]["kind"]),
        (&json!(42), &json!("outcome_unknown"))
    );
    assert_eq!(tool["error"]["data"]["retryable"], false);
    let batch = json_of(soon("an answer", batch).await.unwrap()).await;
    let kinds: Vec<_> = batch
        .as_array()
        .unwrap()
        .iter()
        .map(|answer| (&answer["id"], &answer["error"]["data"]["kind"]))
        .collect();
    assert_eq!(
        kinds,
        [(&json!(1), &json!("outcome_unknown")), (&json!(2), &json!("outcome_unknown"))]
    );
    // These were looked up again, and the database has no such session.
    assert_eq!(soon("an answer", ping).await.unwrap().status(), StatusCode::NOT_FOUND);
    assert_eq!(soon("an answer", notification).await.unwrap().status(), StatusCode::NOT_FOUND);
    let counted = (edge.counted("broken"), edge.counted("answered"));
    assert_eq!(counted, (4, 0), "also those that got the broker's answer instead");
}

#[tokio::test]
async fn a_dead_replica_is_detected_before_anything_is_sent() {
    let (edge, mut peer) = (Replica::start().await, FakePeer::start(|_| None));
    peer.kill();
    edge.store_owner_hint(SESSION, "peer", &peer.address).await;
    let started = Instant::now();
    let response = edge
        .request(Method::POST, Some(SESSION), call(1, "tools/call", json!({"name": "x"})))
        .await;
    assert_eq!(response.status(), StatusCode::NOT_FOUND, "the record was asked");
    assert_eq!(edge.counted("unreachable"), 1);
    assert!(started.elapsed() < Duration::from_secs(3));
}

#[tokio::test]
async fn a_redirect_to_the_real_owner_is_followed() {
    let there = FakePeer::start(|_| Some(empty(StatusCode::ACCEPTED)));
    let address = there.address.clone();
    let asked_first = FakePeer::start(move |_| {
        let mut response = empty(StatusCode::MISDIRECTED_REQUEST);
        for (name, value) in [("", "elsewhere"), ("-node", "there"), ("-address", &address)] {
            let name = http::HeaderName::try_from(format!("x-mcp-broker-owner{name}")).unwrap();
            response.headers_mut().insert(name, value.parse().unwrap());
        }
        Some(response)
    });
    let edge = Replica::start().await;
    edge.store_owner_hint(SESSION, "first", &asked_first.address).await;
    for _ in 0..3 {
        let response = edge
            .request(Method::POST, Some(SESSION), call(1, "tools/call", json!({"name": "x"})))
            .await;
        assert_eq!(response.status(), StatusCode::ACCEPTED);
        assert!(!response.headers().keys().any(|name| name.as_str().starts_with("x-mcp-broker")));
    }
    assert_eq!((asked_first.requests(), there.requests()), (1, 3), "what was learnt is remembered");
}

#[tokio::test]
async fn a_broken_event_stream_ends_and_a_broken_document_is_an_error() {
    let event = Bytes::from_static(b"id: 1-1\ndata: {}\n\n");
    let edge = Replica::start().await;
    let mut peer = FakePeer::start(move |seen| {
        Some(Chunks::response(seen, "text/event-stream", event.clone(), 3, None))
    });
    edge.store_owner_hint(SESSION, "peer", &peer.address).await;
    let mut response = edge
        .request(Method::POST, Some(SESSION), call(1, "tools/call", json!({"name": "x"})))
        .await;
    soon("an event", response.body_mut().frame()).await.unwrap().unwrap();
    peer.kill();
    soon("its end", response.into_body().collect()).await.expect("the stream ends as streams do");

    // Large enough to be relayed in pieces.
    let size = RELAYED_WHOLE_BYTES_MAX + 1;
    let piece = Bytes::from(vec![b' '; 1024]);
    let mut peer = FakePeer::start(move |seen| {
        Some(Chunks::response(seen, "application/json", piece.clone(), 10, Some(size)))
    });
    edge.store_owner_hint("1".repeat(32).as_str(), "peer", &peer.address).await;
    let response = edge
        .request(Method::POST, Some(&"1".repeat(32)), call(1, "tools/call", json!({"name": "x"})))
        .await;
    assert_eq!(response.headers()["content-length"], size.to_string().as_str());
    until("a piece is on its way", || peer.seen.bytes.load(Ordering::SeqCst) > 0).await;
    peer.kill();
    assert!(
        soon("its end", response.into_body().collect()).await.is_err(),
        "half a document is none"
    );

    // A small body arrives complete or as an error.
    let mut peer = FakePeer::start(move |seen| {
        Some(Chunks::response(seen, "application/json", Bytes::from_static(b"{"), 1, Some(100)))
    });
    edge.store_owner_hint("2".repeat(32).as_str(), "peer", &peer.address).await;
    let response = async {
        edge.request(
            Method::POST,
            Some(&"2".repeat(32)),
            call(5, "tools/call", json!({"name": "x"})),
        )
        .await
    };
    let kill = async {
        until("it has begun", || peer.seen.bytes.load(Ordering::SeqCst) > 0).await;
        peer.kill();
    };
    let (response, ()) = tokio::join!(response, kill);
    let answer = json_of(response).await;
    assert_eq!(
        (&answer["id"], &answer["error"]["data"]["kind"]),
        (&json!(5), &json!("outcome_unknown"))
    );
    let counted = (edge.counted("broken"), edge.counted("answered"));
    assert_eq!(counted, (3, 0), "an answer that breaks off is none");
}

/// Returns what a client gets of a call after this event, at which its replica is lost.
async fn rest_after(event: &'static [u8]) -> Result<Bytes, hyper::Error> {
    let edge = Replica::start().await;
    let mut peer = FakePeer::start(move |seen| {
        Some(Chunks::response(seen, "text/event-stream", Bytes::from_static(event), 1, None))
    });
    edge.store_owner_hint(SESSION, "peer", &peer.address).await;
    let mut response = edge
        .request(Method::POST, Some(SESSION), call(6, "tools/call", json!({"name": "x"})))
        .await;
    let first = soon("an event", response.body_mut().frame()).await.unwrap().unwrap();
    assert_eq!(first.into_data().unwrap(), event);
    peer.kill();
    soon("its end", response.into_body().collect()).await.map(|rest| rest.to_bytes())
}

/// A client can resume a stream only after an event with an id. Otherwise no other replica answers it.
#[tokio::test]
async fn f_13_a_stream_that_cannot_be_resumed_ends_with_an_answer_when_its_replica_is_lost() {
    let rest = rest_after(b": keepalive\n\n").await.unwrap();
    let text = std::str::from_utf8(&rest).unwrap();
    let data = text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
    let answer: Value = serde_json::from_str(data).unwrap();
    assert_eq!(
        (&answer["id"], &answer["error"]["data"]["kind"]),
        (&json!(6), &json!("outcome_unknown"))
    );
    assert_eq!(text.matches("data:").count(), 1, "{text}");
    // The event may have been the answer.
    assert!(rest_after(b"data: {}\n\n").await.is_err());
    assert!(rest_after(b"id: 1-1\ndata: {}\n\n").await.unwrap().is_empty());
}

/// Returns a peer whose answer is an event stream of a gigabyte.
fn endless_peer() -> FakePeer {
    let event = Bytes::from([&b"data: "[..], &[b'x'; 1000], b"\n\n"].concat());
    FakePeer::start(move |seen| {
        Some(Chunks::response(seen, "text/event-stream", event.clone(), 1_000_000, None))
    })
}

/// Returns a replica and its answer to a call of a session of the peer.
async fn called_through(peer: &FakePeer) -> (Replica, Response<Incoming>) {
    let edge = Replica::start().await;
    edge.store_owner_hint(SESSION, "peer", &peer.address).await;
    let tool_call = call(1, "tools/call", json!({"name": "x"}));
    let response = edge.request(Method::POST, Some(SESSION), tool_call).await;
    (edge, response)
}

#[tokio::test]
async fn f_19_the_broker_does_not_read_ahead_for_a_slow_client() {
    let peer = endless_peer();
    let edge = Replica::start().await;
    edge.store_owner_hint(SESSION, "peer", &peer.address).await;
    let response = edge.request(Method::GET, Some(SESSION), "").await;
    let taken = || peer.seen.bytes.load(Ordering::SeqCst);
    let mut before = 0;
    let rests = async {
        while before == 0 || before != taken() {
            before = taken();
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    };
    soon("nothing more is taken", rests).await;
    // Most of it is in the kernel's socket buffers.
    assert!(taken() < 32 * 1024 * 1024, "{} bytes were read ahead", taken());
    drop(response);
    until("the peer learns that no client reads", || peer.seen.ended.load(Ordering::SeqCst)).await;
}

#[tokio::test]
async fn f_19_an_unread_answer_of_another_replica_can_be_cut() {
    let peer = endless_peer();
    let (edge, response) = called_through(&peer).await;
    let streams = &edge.broker.shared.relayed_streams;
    assert_eq!(streams.cut_beyond(usize::MAX), 0);
    until("the unread answer is cut", || streams.cut_beyond(0) == 1).await;
    until("the stream at the peer ends", || peer.seen.ended.load(Ordering::SeqCst)).await;
    let rest = soon("the end of the answer", response.into_body().collect()).await;
    assert!(rest.is_err(), "it is not complete");
    assert_eq!(streams.cut_beyond(0), 0);
}

#[tokio::test]
async fn a_client_that_takes_nothing_of_a_relayed_answer_does_not_delay_a_drain() {
    let peer = endless_peer();
    let (edge, response) = called_through(&peer).await;
    let shared = &edge.broker.shared;
    assert!(!shared.forwarded.is_empty(), "a drain waits for the answer");
    tokio::select! {
        never = shared.relayed_streams.cut_resting(Duration::from_millis(50)) => match never {},
        () = until("the drain waits no longer", || shared.forwarded.is_empty()) => {}
    }
    until("the stream at the peer ends", || peer.seen.ended.load(Ordering::SeqCst)).await;
    drop(response);
}

/// The client of the tunnel sends single bytes, which use much more memory than they count.
#[tokio::test]
async fn f_19_an_unread_tunnel_from_another_replica_can_be_cut_and_others_pass() {
    const WINDOW: usize = STREAM_WINDOW_BYTES as usize;
    let owner = Replica::start().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let identity = PeerIdentity::from_secret(&Keys::from_root(b"the same for all").peer).unwrap();
    let uploads = Arc::<Mutex<Vec<TunnelBytes>>>::default();
    let (held, shared) = (uploads.clone(), owner.broker.shared.clone());
    let handler = move |request: Request<PeerBody>| {
        held.lock().push(TunnelBytes::new(&shared, UnreadOwner::default(), request.into_body()));
        let unanswered = stream::pending::<Result<Frame<Bytes>, Infallible>>();
        async move { Response::new(StreamBody::new(unanswered)) }
    };
    tokio::spawn(PeerServer::new(&identity).serve(listener, std::future::pending(), handler));
    let byte = || Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(b"x")));
    let bytes = StreamBody::new(stream::repeat_with(byte).take(2 * WINDOW));
    let request = Request::post("/").body(bytes).unwrap();
    let client = PeerClient::new(&identity);
    let tunnel = soon("the head", client.send_streaming(&address, request)).await.unwrap();
    let streams = &owner.broker.shared.relayed_streams;
    until("a full window is cut", || streams.cut_beyond(WINDOW - 1) == 1).await;
    let upload = uploads.lock().pop().unwrap();
    assert!(soon("its end", upload.collect()).await.is_err(), "it is not complete");
    let bytes = StreamBody::new(stream::repeat_with(byte).take(0));
    let other = Request::post("/").body(bytes).unwrap();
    let other = soon("another head", client.send_streaming(&address, other)).await.unwrap();
    assert_eq!(other.status(), StatusCode::OK);
    assert_eq!(streams.cut_beyond(0), 0, "nothing is unread");
    drop((tunnel, other));
}

#[tokio::test]
async fn s08_a_peer_that_is_not_a_replica_is_counted_as_a_failed_sign_in() {
    let replica = Replica::start().await;
    let stranger = PeerClient::new(
        &PeerIdentity::from_secret(&Keys::from_root(b"another secret").peer).unwrap(),
    );
    let request = Request::builder().uri("/mcp").body(Bytes::new()).unwrap();
    assert!(soon("a refusal", stranger.send(&replica.internal, &request)).await.is_err());
    let counted = r#"mcp_auth_failures_total{plane="internal",reason="peer_certificate"} "#;
    until("the failure is counted", || replica.broker.shared.metrics.render().contains(counted))
        .await;
}
