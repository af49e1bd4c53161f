//! The scripted stdio backend behind a socket: each connection is a process of its own, and bytes
//! are passed on as they are.

use std::{
    net::SocketAddr,
    pin::pin,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures_util::future::select;
use parking_lot::Mutex;
use quinn::crypto::rustls::QuicServerConfig;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    process::{ChildStdin, ChildStdout, Command},
    task::AbortHandle,
};
use tokio_rustls::TlsAcceptor;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::handshake::server::{ErrorResponse, Request, Response},
};

use crate::{
    StdioScript,
    abort_on_drop::AbortOnDrop,
    duplex::Wire,
    quic_streams::{self, StreamCounters, StreamOptions},
};

/// A backend on a port of 127.0.0.1; gone when dropped.
#[derive(Debug)]
pub struct PipeBackend {
    address: SocketAddr,
    kind: PipeKind,
    accepted: Arc<AtomicUsize>,
    connections: Arc<Mutex<Vec<AbortHandle>>>,
    streams: Arc<StreamCounters>,
    _server: AbortOnDrop,
}

impl PipeBackend {
    /// Starts a backend with messages as lines over TCP.
    pub async fn tcp(script: &StdioScript) -> Self {
        Self::start(script.clone(), PipeKind::Tcp).await
    }

    /// Starts a backend with messages as lines over TLS.
    pub async fn tls(script: &StdioScript, config: rustls::ServerConfig) -> Self {
        Self::start(script.clone(), PipeKind::Tls(TlsAcceptor::from(Arc::new(config)))).await
    }

    /// Starts a backend with a message per text frame of a WebSocket.
    pub async fn websocket(script: &StdioScript) -> Self {
        Self::start(script.clone(), PipeKind::WebSocket).await
    }

    /// Starts a backend with lines on the first stream of each QUIC connection.
    pub async fn quic(script: &StdioScript, config: rustls::ServerConfig) -> Self {
        Self::over_quic(script, config, None).await
    }

    /// Starts a QUIC backend with requests on streams of their own.
    pub async fn quic_streams(
        script: &StdioScript,
        config: rustls::ServerConfig,
        mode: StreamOptions,
    ) -> Self {
        Self::over_quic(script, config, Some(mode)).await
    }

    async fn over_quic(
        script: &StdioScript,
        config: rustls::ServerConfig,
        mode: Option<StreamOptions>,
    ) -> Self {
        let mut config = config;
        config.alpn_protocols = vec![b"mcp".to_vec()];
        let crypto = QuicServerConfig::try_from(config).expect("TLS 1.3 is among the versions");
        let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
        if let Some(mode) = mode {
            let mut transport = quinn::TransportConfig::default();
            transport.max_concurrent_bidi_streams(mode.streams_max.into());
            config.transport_config(Arc::new(transport));
        }
        let endpoint =
            quinn::Endpoint::server(config, ([127, 0, 0, 1], 0).into()).expect("a free port");
        let address = endpoint.local_addr().expect("a bound socket has an address");
        let (accepted, connections) =
            (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (counted, kept, script, streams) = (
            accepted.clone(),
            connections.clone(),
            script.clone(),
            Arc::new(StreamCounters::default()),
        );
        let seen = streams.clone();
        let server = tokio::spawn(async move {
            while let Some(incoming) = endpoint.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                let (command, seen) = (script.command(), seen.clone());
                let serving = tokio::spawn(async move {
                    match mode {
                        None => serve_quic(incoming, command).await,
                        Some(mode) => {
                            if let Ok(connection) = incoming.await {
                                quic_streams::serve(connection, command, mode, seen).await;
                            }
                        }
                    }
                });
                kept.lock().push(serving.abort_handle());
            }
        });
        Self {
            address,
            kind: PipeKind::Quic,
            accepted,
            connections,
            streams,
            _server: AbortOnDrop(server),
        }
    }

    async fn start(script: StdioScript, kind: PipeKind) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let (accepted, connections) =
            (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
        let (counted, kept, served) = (accepted.clone(), connections.clone(), kind.clone());
        let server = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                let serving = tokio::spawn(serve(socket, script.command(), kind.clone()));
                kept.lock().push(serving.abort_handle());
            }
        });
        Self {
            address,
            kind: served,
            accepted,
            connections,
            streams: Arc::default(),
            _server: AbortOnDrop(server),
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the admin API's body for this backend.
    pub fn spec(&self) -> Value {
        match self.kind {
            PipeKind::Tcp => {
                json!({"transport": {"type": "tcp", "address": self.address.to_string()}})
            }
            PipeKind::Tls(_) => {
                json!({"transport": {"type": "tcp", "address": self.address.to_string(), "tls": true}})
            }
            PipeKind::Quic => {
                json!({"transport": {"type": "quic", "address": self.address.to_string()}})
            }
            PipeKind::WebSocket => {
                json!({"transport": {"type": "websocket", "url": format!("ws://{}/mcp", self.address)}})
            }
        }
    }

    /// Returns the counters of the streams of single requests.
    pub fn streams(&self) -> &StreamCounters {
        &self.streams
    }

    /// Returns the number of connections accepted so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// Returns the number of connections that have not ended.
    pub fn open(&self) -> usize {
        let connections = self.connections.lock();
        connections.iter().filter(|connection| !connection.is_finished()).count()
    }

    /// Ends every open connection.
    pub fn cut(&self) {
        self.connections.lock().drain(..).for_each(|connection| connection.abort());
    }
}

impl Drop for PipeBackend {
    fn drop(&mut self) {
        self.cut();
    }
}

/// Protocol on the socket.
#[derive(Clone)]
enum PipeKind {
    Tcp,
    Tls(TlsAcceptor),
    WebSocket,
    Quic,
}

impl std::fmt::Debug for PipeKind {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::Tcp => "tcp",
            Self::Tls(_) => "tls",
            Self::WebSocket => "websocket",
            Self::Quic => "quic",
        })
    }
}

/// Serves one connection until either side ends.
async fn serve(socket: TcpStream, mut command: Command, kind: PipeKind) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().expect("the scripted backend starts");
    let (mut input, mut output) =
        (child.stdin.take().expect("it is piped"), child.stdout.take().expect("it is piped"));
    match kind {
        PipeKind::Quic => unreachable!("no TCP connection is one of QUIC"),
        PipeKind::Tcp => copy(socket, &mut input, &mut output).await,
        PipeKind::Tls(acceptor) => {
            if let Ok(stream) = acceptor.accept(socket).await {
                copy(stream, &mut input, &mut output).await;
            }
        }
        PipeKind::WebSocket => {
            if let Ok(socket) = tokio_tungstenite::accept_hdr_async(socket, choose_mcp).await {
                frames(socket, &mut input, &mut output).await;
            }
        }
    }
}

async fn serve_quic(incoming: quinn::Incoming, mut command: Command) {
    let Ok(connection) = incoming.await else { return };
    let Ok((writer, reader)) = connection.accept_bi().await else { return };
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().expect("the scripted backend starts");
    let (mut input, mut output) =
        (child.stdin.take().expect("it is piped"), child.stdout.take().expect("it is piped"));
    copy(tokio::io::join(reader, writer), &mut input, &mut output).await;
}

/// Copies to the end of the input: a child that has finished writing ends one half only.
async fn copy(
    stream: impl AsyncRead + AsyncWrite,
    input: &mut ChildStdin,
    output: &mut ChildStdout,
) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let to_child = tokio::io::copy(&mut reader, input);
    let from_child = async {
        let _ended = tokio::io::copy(output, &mut writer).await;
        let _gone = writer.shutdown().await;
        std::future::pending::<()>().await;
    };
    select(pin!(to_child), pin!(from_child)).await;
}

/// Sends lines of the child as frames, and frames as lines.
async fn frames(
    socket: WebSocketStream<TcpStream>,
    input: &mut ChildStdin,
    output: &mut ChildStdout,
) {
    let Wire { out, mut incoming, .. } = Wire::frames(socket);
    let to_child = async {
        while let Some(Ok(mut text)) = incoming.recv().await {
            text.push('\n');
            if input.write_all(text.as_bytes()).await.is_err() {
                return;
            }
        }
    };
    let from_child = async move {
        let mut lines = BufReader::new(output).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let _gone = out.send(line).await;
        }
        drop(out); // which says goodbye
        std::future::pending::<()>().await;
    };
    select(pin!(to_child), pin!(from_child)).await;
}

#[expect(clippy::result_large_err, reason = "the library's own error, which is never made here")]
fn choose_mcp(request: &Request, mut response: Response) -> Result<Response, ErrorResponse> {
    assert_eq!(
        request.headers().get("sec-websocket-protocol").map(|value| value.as_bytes()),
        Some(&b"mcp"[..])
    );
    response.headers_mut().insert("sec-websocket-protocol", http::HeaderValue::from_static("mcp"));
    Ok(response)
}
