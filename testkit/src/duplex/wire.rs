//! Sockets as channels of texts.

use futures_util::{SinkExt, StreamExt};
use http::{HeaderMap, Request};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader},
    sync::mpsc,
    task::AbortHandle,
};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{self, Message, handshake::client::generate_key},
};

/// Texts that may wait in a test's client: enough for all requests that a test sends at once.
pub(crate) const QUEUE: usize = 100_000;

/// Channels of whole messages in both directions. An `Err` is the reason why it ended.
#[derive(Debug)]
pub struct Wire {
    pub out: mpsc::Sender<String>,
    pub incoming: mpsc::Receiver<Result<String, String>>,
    /// Tasks of the socket. Aborting them closes it without a closing handshake.
    pub tasks: Vec<AbortHandle>,
}

impl Wire {
    /// Sends a message per line. The sending half of the stream is closed when that of the wire is
    /// dropped.
    pub fn lines(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Self::halves(reader, writer)
    }

    pub fn halves(
        reader: impl AsyncRead + Unpin + Send + 'static,
        mut writer: impl AsyncWrite + Unpin + Send + 'static,
    ) -> Self {
        let (out, mut outgoing) = mpsc::channel::<String>(QUEUE);
        let (sender, incoming) = mpsc::channel(QUEUE);
        let writing = tokio::spawn(async move {
            while let Some(mut text) = outgoing.recv().await {
                text.push('\n');
                if writer.write_all(text.as_bytes()).await.is_err() || writer.flush().await.is_err()
                {
                    return;
                }
            }
            let _gone = writer.shutdown().await;
        });
        let reading = tokio::spawn(async move {
            let mut lines = BufReader::new(reader).lines();
            let why = loop {
                match lines.next_line().await {
                    Ok(Some(line)) => {
                        if sender.send(Ok(line)).await.is_err() {
                            return;
                        }
                    }
                    Ok(None) => break "the end".to_owned(),
                    Err(error) => break error.to_string(),
                }
            };
            let _gone = sender.send(Err(why)).await;
        });
        Self { out, incoming, tasks: vec![writing.abort_handle(), reading.abort_handle()] }
    }

    /// Opens the client's side of a WebSocket; returns it with the headers of the 101. `Err`: the
    /// status, if it is another one.
    pub async fn websocket<S>(
        stream: S,
        host: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Result<(Self, HeaderMap), u16>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut request = Request::builder()
            .uri(format!("ws://{host}{path}"))
            .header("host", host)
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-protocol", "mcp")
            .header("sec-websocket-key", generate_key());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        match client_async(request.body(()).expect("a request"), stream).await {
            Ok((socket, response)) => Ok((Self::frames(socket), response.headers().clone())),
            Err(tungstenite::Error::Http(response)) => Err(response.status().as_u16()),
            Err(error) => panic!("the handshake of a WebSocket failed: {error}"),
        }
    }

    /// Sends a message per text frame, on either side of a WebSocket. It is closed when the sending
    /// half of the wire is dropped.
    pub fn frames<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        socket: WebSocketStream<S>,
    ) -> Self {
        let (out, mut outgoing) = mpsc::channel::<String>(QUEUE);
        let (sender, incoming) = mpsc::channel(QUEUE);
        let (mut sink, mut source) = socket.split();
        let writing = tokio::spawn(async move {
            while let Some(text) = outgoing.recv().await {
                if sink.send(Message::text(text)).await.is_err() {
                    return;
                }
            }
            let _gone = sink.send(Message::Close(None)).await;
        });
        let reading = tokio::spawn(async move {
            let why = loop {
                match source.next().await {
                    Some(Ok(Message::Text(text))) => {
                        if sender.send(Ok(text.to_string())).await.is_err() {
                            return;
                        }
                    }
                    Some(Ok(Message::Close(Some(frame)))) => {
                        break format!("{} {}", u16::from(frame.code), frame.reason);
                    }
                    Some(Ok(Message::Close(None))) | None => break "the end".to_owned(),
                    Some(Ok(_)) => {}
                    Some(Err(error)) => break error.to_string(),
                }
            };
            let _gone = sender.send(Err(why)).await;
        });
        Self { out, incoming, tasks: vec![writing.abort_handle(), reading.abort_handle()] }
    }
}
