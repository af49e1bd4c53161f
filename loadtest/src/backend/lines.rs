//! The server over connections that are sessions, and over standard input and output.

use std::{sync::Arc, time::Duration};

use anyhow::ensure;
use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::mpsc,
};
use transport::{
    frame::{CloseReason, FrameSink, FrameSource},
    lines::{LineReader, LineWriter},
    quic::QuicIncoming,
    tcp::Stream,
    websocket,
};

use super::{BackendOptions, responder::Responder};

const MESSAGE_BYTES_MAX: usize = 128 * 1024 * 1024;
const HEAD_BYTES_MAX: usize = 16 * 1024;
const PATIENCE: Duration = Duration::from_secs(30);
/// Delayed answers that wait for the writer.
const DELAYED_MAX: usize = 1024;

pub(super) async fn serve_tcp(socket: TcpStream, answers: Arc<Responder>) -> anyhow::Result<()> {
    let (source, sink) = Stream::Plain(socket).into_lines(MESSAGE_BYTES_MAX, PATIENCE);
    serve(source, sink, answers).await
}

/// Serves standard input to its end.
pub async fn serve_stdio(offer: &BackendOptions) -> anyhow::Result<()> {
    let source = LineReader::new(tokio::io::stdin(), MESSAGE_BYTES_MAX);
    serve(source, LineWriter::new(tokio::io::stdout()), Arc::new(Responder::new(offer))).await
}

pub(super) async fn serve_quic(
    incoming: QuicIncoming,
    answers: Arc<Responder>,
) -> anyhow::Result<()> {
    let (connection, source, sink) = incoming.establish(PATIENCE).await?;
    let requests = connection.clone();
    let of_requests = answers.clone();
    tokio::spawn(async move {
        while let Some(stream) = requests.accept_request().await {
            tokio::spawn(serve(stream.source, stream.sink, of_requests.clone()));
        }
    });
    serve(source, sink, answers).await
}

/// Makes the server's half of the upgrade. Accepts any path.
pub(super) async fn serve_websocket(
    mut socket: TcpStream,
    answers: Arc<Responder>,
) -> anyhow::Result<()> {
    let mut head = BytesMut::new();
    let request = loop {
        ensure!(socket.read_buf(&mut head).await? > 0 && head.len() < HEAD_BYTES_MAX, "no upgrade");
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut request = httparse::Request::new(&mut headers);
        if request.parse(&head)?.is_complete() {
            let built = ::http::Request::get("/");
            break request
                .headers
                .iter()
                .fold(built, |built, header| built.header(header.name, header.value))
                .body(())?;
        }
    };
    let response = websocket::accept(&request)?;
    let mut lines = b"HTTP/1.1 101 Switching Protocols\r\n".to_vec();
    for (name, value) in response.headers() {
        lines.extend_from_slice(
            &[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat(),
        );
    }
    lines.extend_from_slice(b"\r\n");
    socket.write_all(&lines).await?;
    let limits =
        websocket::Limits { message_bytes_max: MESSAGE_BYTES_MAX, ..websocket::Limits::default() };
    let (source, sink) = websocket::server(Stream::Plain(socket), Bytes::new(), &limits);
    serve(source, sink, answers).await
}

async fn serve(
    mut source: impl FrameSource,
    mut sink: impl FrameSink,
    answers: Arc<Responder>,
) -> anyhow::Result<()> {
    let (delayed, mut due) = mpsc::channel::<Bytes>(DELAYED_MAX);
    let mut out = Vec::new();
    loop {
        tokio::select! {
            frame = source.next() => {
                let Some(frame) = frame? else {
                    sink.close(CloseReason::Done).await;
                    return Ok(());
                };
                take(&answers, &frame, &delayed, &mut out);
                // All requests that have arrived are answered with one system call.
                while let Some(Some(frame)) = source.next().now_or_never().transpose()? {
                    take(&answers, &frame, &delayed, &mut out);
                }
            }
            answer = due.recv() => out.extend(answer),
        }
        sink.send_all(&mut out).await?;
    }
}

fn take(
    answers: &Arc<Responder>,
    frame: &[u8],
    delayed: &mpsc::Sender<Bytes>,
    out: &mut Vec<Bytes>,
) {
    let response = answers.respond(frame);
    if response.is_call && !answers.delay().is_zero() {
        let (delay, delayed) = (answers.delay(), delayed.clone());
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            if let Some(answer) = response.answer {
                let _nobody_there = delayed.send(answer).await;
            }
        });
        return;
    }
    out.extend(response.answer);
    out.extend(response.update);
}
