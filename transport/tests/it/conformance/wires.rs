//! Connected ends, with one function for each wire. The server's end comes first.

use std::{convert::Infallible, future::Future, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::Empty;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, unix::pipe},
    sync::oneshot,
};
use transport::{
    Child, ChildLimits, ChildSpec, ClientAuth, ClientTls, EgressPolicy, FrameSink, FrameSource,
    LineReader, LineWriter, ListenerKind, StallGuard,
    quic::{self, QuicClient, QuicConnection, QuicListener, QuicSink, QuicSource, RequestStream},
    socket_options, spawn,
    tcp::{self, ReadHalf, Stream, WriteHalf},
    websocket::{self, ConnectOptions, WsSink, WsSource},
};

use super::{End, Setup};
use crate::{DEADLINE, certificates::Authority, soon, until};

pub(crate) fn egress() -> EgressPolicy {
    EgressPolicy { loopback: true, ..EgressPolicy::default() }
}

/// Returns a listener and the address to connect to. The address is that of the listener, or of a
/// proxy that forwards all bytes in small pieces.
pub(crate) async fn listen(setup: Setup) -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let Some(slice_bytes) = setup.slice_bytes else { return (listener, address) };
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy_address = proxy.local_addr().unwrap();
    tokio::spawn(async move {
        let (near, _) = proxy.accept().await.unwrap();
        let far = TcpStream::connect(address).await.unwrap();
        near.set_nodelay(true).unwrap();
        far.set_nodelay(true).unwrap();
        let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
        tokio::join!(slice(near_in, far_out, slice_bytes), slice(far_in, near_out, slice_bytes));
    });
    (listener, proxy_address)
}

async fn slice(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    bytes: usize,
) {
    let mut piece = vec![0; bytes];
    while let Ok(count @ 1..) = from.read(&mut piece).await {
        if to.write_all(&piece[..count]).await.is_err() {
            return;
        }
        tokio::task::yield_now().await;
    }
    let _ = to.shutdown().await;
}

fn lines(stream: Stream, setup: Setup) -> End<impl FrameSource, impl FrameSink> {
    End::new(stream.into_lines(setup.frame_bytes_max, Duration::from_secs(60)))
}

/// Returns two connected streams without TLS.
pub(crate) async fn tcp_streams(setup: Setup) -> (Stream, Stream) {
    let (listener, address) = listen(setup).await;
    let address = address.to_string();
    let egress = egress();
    let (accepted, connected) =
        tokio::join!(listener.accept(), tcp::connect(&address, &egress, None, DEADLINE));
    let accepted = accepted.unwrap().0;
    socket_options::tune(&accepted);
    (Stream::Plain(accepted), connected.unwrap())
}

/// Returns two connected streams with TLS.
pub(crate) async fn tls_streams(setup: Setup, kind: ListenerKind) -> (Stream, Stream) {
    let authority = Authority::new();
    let (server, client) = (authority.server(ClientAuth::None), authority.client());
    let (listener, address) = listen(setup).await;
    let address = address.to_string();
    let egress = egress();
    let accepting =
        async { server.accept(listener.accept().await.unwrap().0, kind, DEADLINE).await };
    let (accepted, connected) =
        tokio::join!(accepting, tcp::connect(&address, &egress, Some(&client), DEADLINE));
    (accepted.unwrap(), connected.unwrap())
}

/// Shell script of a child that copies its standard input to the pipe `out`, and the pipe `in` to
/// its standard output. `$1` is the folder of the pipes, `$2` the copy command.
const PASSES_ON: &str =
    "exec 3>\"$1/out\" 4<\"$1/in\"; echo ready; $2 <&4 3>&- & exec $2 >&3 3>&- 4<&-";

/// Connects the pipes of a child process with the other ends of its two named pipes.
pub(super) async fn stdio(
    setup: Setup,
) -> (End<impl FrameSource, impl FrameSink>, End<impl FrameSource, impl FrameSink>) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    assert!(
        std::process::Command::new("mkfifo")
            .args([path("in"), path("out")])
            .status()
            .unwrap()
            .success()
    );
    let copies =
        setup.slice_bytes.map_or("cat".to_owned(), |bytes| format!("dd bs={bytes} status=none"));
    let args = ["-c", PASSES_ON, "sh", folder.path().to_str().unwrap(), &copies]
        .map(str::to_owned)
        .to_vec();
    let from_child = pipe::OpenOptions::new().open_receiver(path("out")).unwrap();
    let limits = ChildLimits { line_bytes_max: setup.frame_bytes_max, ..ChildLimits::default() };
    let Child { mut reader, writer, process } =
        spawn(&ChildSpec { args, ..ChildSpec::new("sh") }, &limits).unwrap();
    let mut to_child = None;
    until("the child opens its side", || {
        to_child = pipe::OpenOptions::new().open_sender(path("in")).ok();
        to_child.is_some()
    })
    .await;
    assert_eq!(soon("a word", reader.next()).await.unwrap().unwrap(), "ready");
    // The process has to live as long as the test.
    tokio::spawn(async move {
        let _kept = process;
        std::future::pending::<()>().await;
    });
    let far =
        (LineReader::new(from_child, setup.frame_bytes_max), LineWriter::new(to_child.unwrap()));
    (End::new((reader, writer)), End::new(far))
}

pub(super) async fn tcp(
    setup: Setup,
) -> (End<impl FrameSource, impl FrameSink>, End<impl FrameSource, impl FrameSink>) {
    let (server, client) = tcp_streams(setup).await;
    (lines(server, setup), lines(client, setup))
}

pub(super) async fn tls(
    setup: Setup,
) -> (End<impl FrameSource, impl FrameSink>, End<impl FrameSource, impl FrameSink>) {
    let (server, client) = tls_streams(setup, ListenerKind::Tcp).await;
    (lines(server, setup), lines(client, setup))
}

type WsEnd = End<WsSource<ReadHalf, StallGuard<WriteHalf>>, WsSink<StallGuard<WriteHalf>>>;

/// Serves the one upgrade request that arrives on the stream, as a listener does.
pub(crate) async fn upgraded(stream: Stream) -> (Stream, Bytes) {
    let (sender, receiver) = oneshot::channel();
    let sender = Arc::new(Mutex::new(Some(sender)));
    let service = service_fn(move |request: Request<Incoming>| {
        let response =
            websocket::accept(&request).unwrap_or_else(websocket::UpgradeError::response);
        if let (StatusCode::SWITCHING_PROTOCOLS, Some(sender)) =
            (response.status(), sender.lock().take())
        {
            tokio::spawn(async move {
                sender.send(hyper::upgrade::on(request).await.unwrap()).unwrap()
            });
        }
        std::future::ready(Ok::<_, Infallible>(response.map(|()| Empty::<Bytes>::new())))
    });
    tokio::spawn(
        http1::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades(),
    );
    let parts = receiver.await.expect("an upgrade").downcast::<TokioIo<Stream>>().unwrap();
    (parts.io.into_inner(), parts.read_buf)
}

pub(crate) fn ws_limits(setup: Setup) -> websocket::Limits {
    websocket::Limits { message_bytes_max: setup.frame_bytes_max, ..websocket::Limits::default() }
}

pub(super) async fn websocket(setup: Setup) -> (WsEnd, WsEnd) {
    let (listener, address) = listen(setup).await;
    let accepting = async { Stream::Plain(listener.accept().await.unwrap().0) };
    websocket_ends(setup, accepting, &format!("ws://{address}/ws"), &Authority::new().client())
        .await
}

pub(super) async fn websocket_tls(setup: Setup) -> (WsEnd, WsEnd) {
    let authority = Authority::new();
    let server = authority.server(ClientAuth::None);
    let (listener, address) = listen(setup).await;
    let accepting = async {
        server
            .accept(listener.accept().await.unwrap().0, ListenerKind::Http, DEADLINE)
            .await
            .unwrap()
    };
    websocket_ends(setup, accepting, &format!("wss://{address}/ws"), &authority.client()).await
}

async fn websocket_ends(
    setup: Setup,
    accepting: impl Future<Output = Stream>,
    url: &str,
    tls: &ClientTls,
) -> (WsEnd, WsEnd) {
    let (limits, egress) = (ws_limits(setup), egress());
    let url = url.parse().unwrap();
    let options = ConnectOptions {
        url: &url,
        headers: HeaderMap::new(),
        egress: &egress,
        tls,
        limits: &limits,
        timeout: DEADLINE,
    };
    let accepting = async { upgraded(accepting.await).await };
    let ((stream, begun), connected) = tokio::join!(accepting, websocket::connect(options));
    (End::new(websocket::server(stream, begun, &limits)), End::new(connected.unwrap()))
}

pub(crate) fn quic_limits(setup: Setup) -> quic::Limits {
    quic::Limits { message_bytes_max: setup.frame_bytes_max, ..quic::Limits::default() }
}

/// Returns a listener, and the TLS settings with which a client can connect to it.
pub(crate) fn quic_listener(limits: quic::Limits) -> (QuicListener, ClientTls) {
    let authority = Authority::new();
    let tls = Arc::new(authority.server(ClientAuth::None));
    (
        QuicListener::bind("127.0.0.1:0".parse().unwrap(), tls, limits, None).unwrap(),
        authority.client(),
    )
}

pub(crate) type QuicEnd = End<QuicSource, QuicSink>;

/// Returns both sides of a new connection, each with its control stream.
pub(crate) async fn quic_connection(
    listener: &QuicListener,
    tls: &ClientTls,
    limits: &quic::Limits,
) -> ((QuicConnection, QuicEnd), (QuicClient, QuicEnd)) {
    let (address, egress) = (listener.local_addr().unwrap().to_string(), egress());
    let connecting = async {
        let options = quic::ConnectOptions {
            address: &address,
            egress: &egress,
            tls,
            limits,
            timeout: DEADLINE,
        };
        let (client, source, mut sink) = quic::connect(options).await.unwrap();
        // The server sees a stream only after bytes were sent on it. An empty line is not a
        // message.
        sink.send_all(&mut vec![Bytes::new()]).await.unwrap();
        (client, End { source, sink })
    };
    let accepting = async {
        let (connection, source, sink) =
            listener.accept().await.unwrap().establish(DEADLINE).await.unwrap();
        (connection, End { source, sink })
    };
    soon("a connection", async { tokio::join!(accepting, connecting) }).await
}

pub(super) async fn quic_control(setup: Setup) -> (QuicEnd, QuicEnd) {
    let limits = quic_limits(setup);
    let (listener, tls) = quic_listener(limits.clone());
    let ((_, server), (_, client)) = quic_connection(&listener, &tls, &limits).await;
    (server, client)
}

/// Opens a request stream next to the control stream.
pub(super) async fn quic_stream(setup: Setup) -> (QuicEnd, QuicEnd) {
    let limits = quic_limits(setup);
    let (listener, tls) = quic_listener(limits.clone());
    let ((connection, _), (client, _)) = quic_connection(&listener, &tls, &limits).await;
    let opening = async {
        let mut stream = client.open_stream().await.unwrap();
        stream.sink.send_all(&mut vec![Bytes::new()]).await.unwrap();
        stream
    };
    let (accepted, opened) =
        soon("a stream", async { tokio::join!(connection.accept_request(), opening) }).await;
    let end = |RequestStream { source, sink }| End { source, sink };
    (end(accepted.unwrap()), end(opened))
}
