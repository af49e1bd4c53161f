//! Tests with two replicas on loopback, and with strangers that try to connect to one.

use std::{
    convert::Infallible,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{
    ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot},
    task::JoinSet,
};
use transport::{
    PeerBody, PeerClient, PeerIdentity, PeerServer, SendError, peer::STREAM_WINDOW_BYTES,
};

use crate::{soon, until};

const SECRET: [u8; 32] = [7; 32];
const OTHER_SECRET: [u8; 32] = [8; 32];
const CHUNK: usize = 1024;

type Body = UnsyncBoxBody<Bytes, Infallible>;

#[derive(Default)]
struct Seen {
    requests: AtomicUsize,
    ended_streams: AtomicUsize,
    chunks: AtomicUsize,
}

/// A replica that serves until its `stop` channel fires or its runtime is dropped.
struct Replica {
    address: String,
    seen: Arc<Seen>,
    stop: Option<oneshot::Sender<()>>,
    stopped: oneshot::Receiver<()>,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Replica {
    fn start(secret: [u8; 32]) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let seen = Arc::<Seen>::default();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (stop, asked) = oneshot::channel::<()>();
        let (done, stopped) = oneshot::channel();
        let recorded = Arc::clone(&seen);
        runtime.spawn(async move {
            let server = PeerServer::new(&PeerIdentity::from_secret(&secret).unwrap());
            let listener = TcpListener::from_std(listener).unwrap();
            let stop = async { drop(asked.await) };
            server
                .serve(listener, stop, move |request| answer(Arc::clone(&recorded), request))
                .await;
            let _ = done.send(());
        });
        Self { address, seen, stop: Some(stop), stopped, runtime: Some(runtime) }
    }

    fn requests(&self) -> usize {
        self.seen.requests.load(Ordering::SeqCst)
    }

    fn kill(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// `/echo` returns the body, `/silent` neither reads nor answers, `/events` sends chunks with pauses,
/// `/flood` sends chunks as fast as they are taken, `/bytes` sends more than a window of single bytes.
async fn answer(seen: Arc<Seen>, request: Request<PeerBody>) -> Response<Body> {
    seen.requests.fetch_add(1, Ordering::SeqCst);
    match request.uri().path() {
        "/silent" => std::future::pending().await,
        "/flood" => Response::new(chunks(seen, Duration::ZERO)),
        "/events" => Response::new(chunks(seen, Duration::from_millis(1))),
        "/bytes" => Response::new(StreamBody::new(single_bytes()).boxed_unsync()),
        _ => {
            let method = request.method().to_string();
            let marked = request.headers().get("x-mark").cloned();
            let body =
                request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            let mut response = Response::new(Full::new(body).boxed_unsync());
            *response.status_mut() = StatusCode::ACCEPTED;
            response.headers_mut().insert("x-method", method.parse().unwrap());
            marked.map(|mark| response.headers_mut().insert("x-mark", mark));
            response
        }
    }
}

/// Returns more bytes than a window has, each in a frame of its own.
fn single_bytes<E>() -> impl Stream<Item = Result<Frame<Bytes>, E>> {
    let bytes = (0..STREAM_WINDOW_BYTES + 999).map(|number| number.to_le_bytes());
    stream::iter(bytes.map(|bytes| Ok(Frame::data(Bytes::copy_from_slice(&bytes[..1])))))
}

/// Returns a body of chunks that never ends, and counts the chunks taken.
fn chunks(seen: Arc<Seen>, pause: Duration) -> Body {
    let (sender, receiver) = mpsc::channel(1);
    let recorded = Arc::clone(&seen);
    tokio::spawn(async move {
        while sender.send(Bytes::from_static(&[b'x'; CHUNK])).await.is_ok() {
            recorded.chunks.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(pause).await;
        }
    });
    Chunks { receiver, seen }.boxed_unsync()
}

struct Chunks {
    receiver: mpsc::Receiver<Bytes>,
    seen: Arc<Seen>,
}

impl hyper::body::Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.receiver.poll_recv(context).map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        self.seen.ended_streams.fetch_add(1, Ordering::SeqCst);
    }
}

fn client(secret: [u8; 32]) -> PeerClient {
    PeerClient::new(&PeerIdentity::from_secret(&secret).unwrap())
}

fn post(path: &str, body: impl Into<Bytes>) -> Request<Bytes> {
    Request::post(path).body(body.into()).unwrap()
}

async fn body_of(response: Response<PeerBody>) -> Bytes {
    response.into_body().collect().await.unwrap().to_bytes()
}

/// Returns a request whose body consists of the pieces that are sent to the channel.
fn streamed(path: &str) -> (mpsc::Sender<Bytes>, Request<UnsyncBoxBody<Bytes, std::io::Error>>) {
    let (pieces, receiver) = mpsc::channel(1);
    let body = Chunks { receiver, seen: Arc::default() };
    let body = body.map_err(|never| match never {}).boxed_unsync();
    (pieces, Request::post(path).body(body).unwrap())
}

#[tokio::test]
async fn a_streamed_body_reaches_the_replica_in_pieces_of_any_size() {
    let (replica, client) = (Replica::start(SECRET), client(SECRET));
    let (pieces, request) = streamed("/echo");
    let sending = tokio::spawn(async move {
        for size in [1, 0, 200_000, 17] {
            pieces.send(Bytes::from(vec![b'a'; size])).await.unwrap();
        }
    });
    let response =
        soon("the answer", client.send_streaming(&replica.address, request)).await.unwrap();
    assert_eq!(soon("the body", body_of(response)).await, vec![b'a'; 200_018]);
    sending.await.unwrap();
}

#[tokio::test]
async fn a_dropped_response_ends_the_streamed_body_and_the_stream() {
    let (replica, client) = (Replica::start(SECRET), client(SECRET));
    let (pieces, request) = streamed("/events");
    let response =
        soon("the head", client.send_streaming(&replica.address, request)).await.unwrap();
    drop(response);
    soon("the end of the body", pieces.closed()).await;
    until("the end of the stream", || replica.seen.ended_streams.load(Ordering::SeqCst) == 1).await;
}

#[tokio::test]
async fn a_request_reaches_the_peer_and_its_answer_returns() {
    let (replica, client) = (Replica::start(SECRET), client(SECRET));
    let mut request = post("/echo?x=1", vec![b'a'; 1_000_000]);
    request.headers_mut().insert("x-mark", "yes".parse().unwrap());
    let response = soon("the answer", client.send(&replica.address, &request)).await.unwrap();
    assert_eq!(response.status(), StatusCode::ACCEPTED);
    assert_eq!(response.headers()["x-mark"], "yes");
    assert_eq!(response.headers()["x-method"], "POST");
    assert_eq!(soon("the body", body_of(response)).await.len(), 1_000_000);
    let request = Request::delete("/echo").body(Bytes::new()).unwrap();
    let response = soon("the answer", client.send(&replica.address, &request)).await.unwrap();
    assert_eq!(response.headers()["x-method"], "DELETE");
}

#[tokio::test]
async fn a_stream_arrives_in_pieces_and_ends_when_its_reader_is_dropped() {
    let (replica, client) = (Replica::start(SECRET), client(SECRET));
    let mut response =
        soon("the head", client.send(&replica.address, &post("/events", ""))).await.unwrap();
    for _ in 0..10 {
        let frame = soon("a frame", response.body_mut().frame()).await.unwrap().unwrap();
        assert!(!frame.into_data().unwrap().is_empty());
    }
    drop(response);
    until("the peer hears that nobody reads", || {
        replica.seen.ended_streams.load(Ordering::SeqCst) == 1
    })
    .await;
}

#[tokio::test]
async fn a_peer_without_the_secret_can_neither_call_nor_serve() {
    let (replica, stranger) = (Replica::start(SECRET), client(OTHER_SECRET));
    let error =
        soon("the refusal", stranger.send(&replica.address, &post("/echo", ""))).await.unwrap_err();
    assert!(matches!(error, SendError::Tls { .. }), "{error}");
    assert!(error.is_safe_to_retry());
    assert_eq!(replica.requests(), 0);

    let (impostor, client) = (Replica::start(OTHER_SECRET), client(SECRET));
    let error =
        soon("the refusal", client.send(&impostor.address, &post("/echo", ""))).await.unwrap_err();
    assert!(matches!(error, SendError::Tls { .. }), "{error}");
    assert_eq!(impostor.requests(), 0);
}

/// A certificate verifier that accepts every server.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::aws_lc_rs::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

fn stranger_builder() -> rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert> {
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
}

/// Returns a stranger's result for a request. The stranger may learn only after the handshake that
/// its certificate is refused.
async fn stranger_asks(mut config: ClientConfig, address: &str) -> Result<StatusCode, String> {
    config.alpn_protocols = vec![b"h2".to_vec()];
    let socket = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from("replica.mcp-broker.internal").unwrap();
    let stream = connector.connect(name, socket).await.map_err(|error| error.to_string())?;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
    tokio::spawn(connection);
    let request = Request::post("https://replica.mcp-broker.internal/echo")
        .body(Full::<Bytes>::default())
        .unwrap();
    sender
        .send_request(request)
        .await
        .map(|response| response.status())
        .map_err(|error| error.to_string())
}

#[tokio::test]
async fn clients_without_a_trusted_certificate_are_refused() {
    let replica = Replica::start(SECRET);
    let without = stranger_builder().with_no_client_auth();
    assert!(soon("the refusal", stranger_asks(without, &replica.address)).await.is_err());

    let key = rcgen::KeyPair::generate().unwrap();
    let mut params =
        rcgen::CertificateParams::new(vec!["replica.mcp-broker.internal".to_owned()]).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, "mcp-broker replicas");
    let own = params.self_signed(&key).unwrap().der().clone();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(key.serialize_der());
    let own = stranger_builder().with_client_auth_cert(vec![own], key.into()).unwrap();
    assert!(soon("the refusal", stranger_asks(own, &replica.address)).await.is_err());
    assert_eq!(replica.requests(), 0);
}

#[tokio::test]
async fn h_25_a_plain_tcp_client_gets_no_answer() {
    let replica = Replica::start(SECRET);
    for hello in [
        &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"[..],
        b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n",
        b"",
    ] {
        let mut socket = TcpStream::connect(&replica.address).await.unwrap();
        socket.write_all(hello).await.unwrap();
        let mut answer = Vec::new();
        // The server sends at most a TLS alert, and cuts off a silent peer.
        let _reset = soon("the end of the connection", socket.read_to_end(&mut answer)).await;
        assert!(answer.len() <= 7, "{answer:?}");
    }
    assert_eq!(replica.requests(), 0);
    let response = soon("the canary", client(SECRET).send(&replica.address, &post("/echo", "x")))
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::ACCEPTED);
}

#[tokio::test]
async fn silent_unknown_clients_do_not_use_permits_of_replicas() {
    let replica = Replica::start(SECRET);
    let mut strangers = Vec::new();
    for _ in 0..300 {
        strangers.push(TcpStream::connect(&replica.address).await.unwrap());
    }
    let client = client(SECRET);
    let answered = async {
        while client.send(&replica.address, &post("/echo", "x")).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon("an answer in spite of them", answered).await;
}

#[tokio::test]
async fn the_error_of_a_killed_peer_shows_if_a_retry_is_safe() {
    let (mut replica, client) = (Replica::start(SECRET), client(SECRET));
    let waiting = {
        let (client, address) = (client.clone(), replica.address.clone());
        tokio::spawn(async move { client.send(&address, &post("/silent", "x")).await })
    };
    until("the request is there", || replica.requests() == 1).await;
    replica.kill();
    let error = soon("the loss", waiting).await.unwrap().unwrap_err();
    assert!(matches!(error, SendError::Aborted { .. }), "{error}");
    assert!(!error.is_safe_to_retry());
    let error =
        soon("the refusal", client.send(&replica.address, &post("/echo", "x"))).await.unwrap_err();
    assert!(error.is_safe_to_retry(), "{error}");
}

#[tokio::test]
async fn a_response_ends_with_an_error_when_its_peer_is_killed() {
    let (mut replica, client) = (Replica::start(SECRET), client(SECRET));
    let mut response =
        soon("the head", client.send(&replica.address, &post("/events", ""))).await.unwrap();
    soon("a frame", response.body_mut().frame()).await.unwrap().unwrap();
    replica.kill();
    let broken = async { while let Some(Ok(_)) = response.body_mut().frame().await {} };
    soon("the end", broken).await;
}

#[tokio::test]
async fn many_streams_share_the_connections() {
    let (replica, client) = (Replica::start(SECRET), client(SECRET));
    let mut streams = JoinSet::new();
    for _ in 0..1_500 {
        let (client, address) = (client.clone(), replica.address.clone());
        streams.spawn(async move {
            let mut response = client.send(&address, &post("/events", "")).await.unwrap();
            response.body_mut().frame().await.unwrap().unwrap();
            response
        });
    }
    let open = soon("all streams", streams.join_all()).await;
    assert_eq!(replica.requests(), 1_500);
    // All readers leave at once while chunks are on their way. Other requests must not fail.
    let waiting = {
        let (client, address) = (client.clone(), replica.address.clone());
        tokio::spawn(async move { client.send(&address, &post("/silent", "x")).await })
    };
    until("the request is there", || replica.requests() == 1_501).await;
    drop(open);
    until("the streams ended", || replica.seen.ended_streams.load(Ordering::SeqCst) == 1_500).await;
    for _ in 0..4 {
        let response =
            soon("an answer", client.send(&replica.address, &post("/echo", "x"))).await.unwrap();
        assert_eq!(body_of(response).await, "x");
    }
    assert!(!waiting.is_finished(), "its connection is still there");
    waiting.abort();
}

#[tokio::test]
async fn f_19_slow_readers_use_only_their_window_and_do_not_delay_others() {
    let (replica, client) = (Replica::start(SECRET), client(SECRET));
    let mut slow = Vec::new();
    for _ in 0..50 {
        slow.push(
            soon("the head", client.send(&replica.address, &post("/flood", ""))).await.unwrap(),
        );
    }
    let chunks = || replica.seen.chunks.load(Ordering::SeqCst);
    let mut before = usize::MAX;
    while before != chunks() {
        before = chunks();
        let response =
            soon("an answer", client.send(&replica.address, &post("/echo", vec![b'a'; 200_000])))
                .await
                .unwrap();
        assert_eq!(soon("its body", body_of(response)).await.len(), 200_000);
    }
    // The allowance covers the window of each stream, and the buffers of the HTTP library and the
    // channel.
    assert!(chunks() * CHUNK <= 50 * (64 + 16) * 1024, "{} bytes were taken", chunks() * CHUNK);
}

#[tokio::test]
async fn f_19_unread_small_pieces_are_merged() {
    let (replica, client) = (Replica::start(SECRET), client(SECRET));
    let response = soon("the head", client.send(&replica.address, &post("/bytes", ""))).await;
    let (mut body, window) = (response.unwrap().into_body(), STREAM_WINDOW_BYTES as usize);
    until("its window is full", || body.unread_bytes() == window).await;
    body.merge_unread();
    assert_eq!(body.unread_bytes(), window, "the bytes use their window until they are taken");
    let first = soon("the merged piece", body.frame()).await.unwrap().unwrap();
    let first = first.into_data().unwrap();
    assert_eq!(first.len(), window);
    let rest = soon("the rest", body.collect()).await.unwrap().to_bytes();
    let all = (0..STREAM_WINDOW_BYTES + 999).map(|number| number.to_le_bytes()[0]);
    assert!(all.eq(first.into_iter().chain(rest)));
}

/// The HTTP/2 library ends a connection that got more than 100 empty frames.
#[tokio::test]
async fn f_19_empty_pieces_do_not_end_the_connection() {
    let (replica, client) = (Replica::start(SECRET), client(SECRET));
    let (other, address) = (client.clone(), replica.address.clone());
    let waiting =
        tokio::spawn(async move { other.send(&address, &post("/silent", "")).await.map(drop) });
    until("the other request arrives", || replica.requests() == 1).await;
    let (pieces, request) = streamed("/echo");
    let sending = tokio::spawn(async move {
        for size in std::iter::repeat_n(0, 200).chain([3]) {
            pieces.send(Bytes::from(vec![b'a'; size])).await.unwrap();
        }
    });
    let response =
        soon("the answer", client.send_streaming(&replica.address, request)).await.unwrap();
    assert_eq!(soon("the body", body_of(response)).await, "aaa");
    sending.await.unwrap();
    assert!(!waiting.is_finished(), "its connection is still there");
    waiting.abort();
}

#[tokio::test]
async fn f_19_uploads_of_small_pieces_that_are_not_read_do_not_delay_others() {
    let (replica, client) = (Replica::start(SECRET), client(SECRET));
    let taken = Arc::<AtomicUsize>::default();
    for _ in 0..2 {
        let (client, address, taken) = (client.clone(), replica.address.clone(), taken.clone());
        let counted = move |_: &_| {
            taken.fetch_add(1, Ordering::SeqCst);
        };
        let body = StreamBody::new(single_bytes::<std::io::Error>().inspect(counted));
        let request = Request::post("/silent").body(body).unwrap();
        tokio::spawn(async move { client.send_streaming(&address, request).await.map(drop) });
    }
    // One byte more than its window waits in each upload.
    let all = 2 * (STREAM_WINDOW_BYTES as usize + 1);
    until("both windows are full", || taken.load(Ordering::SeqCst) == all).await;
    let response =
        soon("an answer", client.send(&replica.address, &post("/echo", vec![b'a'; 200_000])))
            .await
            .unwrap();
    assert_eq!(soon("its body", body_of(response)).await.len(), 200_000);
    assert_eq!(taken.load(Ordering::SeqCst), all, "nothing more is sent");
}

/// So many that they would fill a window of 128 MiB.
#[tokio::test]
async fn f_19_thousands_of_slow_readers_leave_the_connection_to_others() {
    const SLOW: usize = 2_100;
    let (replica, client) = (Replica::start(SECRET), client(SECRET));
    let mut slow = Vec::new();
    for _ in 0..SLOW {
        let response = soon("the head", client.send(&replica.address, &post("/flood", ""))).await;
        slow.push(response.unwrap().into_body());
    }
    for body in &mut slow {
        until("its window is full", || body.unread_bytes() == STREAM_WINDOW_BYTES as usize).await;
    }
    let response =
        soon("an answer", client.send(&replica.address, &post("/echo", vec![b'a'; 200_000])))
            .await
            .unwrap();
    assert_eq!(soon("its body", body_of(response)).await.len(), 200_000);
}

#[tokio::test]
async fn a_graceful_end_loses_no_request() {
    let (mut replica, client) = (Replica::start(SECRET), client(SECRET));
    let stopping = Arc::new(AtomicBool::new(false));
    let mut callers = JoinSet::new();
    for _ in 0..20 {
        let (client, address, stopping) =
            (client.clone(), replica.address.clone(), Arc::clone(&stopping));
        callers.spawn(async move {
            loop {
                match client.send(&address, &post("/echo", "x")).await {
                    Ok(response) => assert_eq!(body_of(response).await, "x"),
                    Err(error) => {
                        assert!(stopping.load(Ordering::SeqCst), "{error}");
                        assert!(error.is_safe_to_retry(), "{error}");
                        return;
                    }
                }
            }
        });
    }
    until("calls are under way", || replica.requests() > 200).await;
    stopping.store(true, Ordering::SeqCst);
    replica.stop.take().unwrap().send(()).unwrap();
    soon("the replica stops", &mut replica.stopped).await.unwrap();
    soon("all callers", callers.join_all()).await;
}

/// A proxy that forwards bytes until its flag is set. After that it discards them.
async fn hole(to: String) -> (SocketAddr, Arc<AtomicBool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let open = Arc::new(AtomicBool::new(false));
    let swallow = Arc::clone(&open);
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(&to).await.unwrap();
            let ((near_read, near_write), (far_read, far_write)) =
                (near.into_split(), far.into_split());
            tokio::spawn(pass(near_read, far_write, Arc::clone(&swallow)));
            tokio::spawn(pass(far_read, near_write, Arc::clone(&swallow)));
        }
    });
    (address, open)
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    swallow: Arc<AtomicBool>,
) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if !swallow.load(Ordering::SeqCst) && to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn f_12_a_vanished_peer_is_detected_within_seconds() {
    let (replica, client) = (Replica::start(SECRET), client(SECRET));
    let (address, vanish) = hole(replica.address.clone()).await;
    let address = address.to_string();
    let mut events = soon("the head", client.send(&address, &post("/events", ""))).await.unwrap();
    let waiting = tokio::spawn(async move { client.send(&address, &post("/silent", "x")).await });
    until("the request is there", || replica.requests() == 2).await;
    vanish.store(true, Ordering::SeqCst);
    let since = Instant::now();
    let error = soon("the loss", waiting).await.unwrap().unwrap_err();
    assert!(!error.is_safe_to_retry(), "{error}");
    soon("the end of the stream", async {
        while let Some(Ok(_)) = events.body_mut().frame().await {}
    })
    .await;
    assert!(since.elapsed() < Duration::from_secs(7), "{:?}", since.elapsed());
    until("the peer found out as well", || replica.seen.ended_streams.load(Ordering::SeqCst) == 1)
        .await;
}

#[tokio::test]
async fn all_callers_share_one_connection_attempt_to_a_dead_peer() {
    // This listener accepts connections and never sends a byte.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, client) = (listener.local_addr().unwrap().to_string(), client(SECRET));
    let since = Instant::now();
    let mut callers = JoinSet::new();
    for _ in 0..100 {
        let (client, address) = (client.clone(), address.clone());
        callers.spawn(async move { client.send(&address, &post("/echo", "x")).await.unwrap_err() });
    }
    for error in soon("all refusals", callers.join_all()).await {
        assert_eq!(error, SendError::ConnectTimeout);
    }
    assert!(since.elapsed() < Duration::from_secs(3), "{:?}", since.elapsed());
}
