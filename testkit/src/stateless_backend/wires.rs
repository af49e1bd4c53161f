//! The two wires of a stateless backend: a POST for each request, or lines over TCP that many
//! requests share.

use std::{collections::HashMap, convert::Infallible, sync::Arc};

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use super::{ResponsePart, StatelessShared, answers};
use crate::{
    RecordedRequest,
    judge::{JudgedExchange, Recipient, Revision},
};

type Body = BoxBody<Bytes, std::io::Error>;

/// Messages that a handler may send ahead of its reader.
const PIECES: usize = 64;

fn record(shared: &StatelessShared, http: &str, headers: &http::HeaderMap, body: &Bytes) -> Value {
    let message: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let mut hearing = JudgedExchange::new(&shared.judge, Recipient::Backend);
    // A backend that changed its revision receives the old form until the broker notices.
    let is_legacy = shared.lock().legacy || answers::names_other_version(headers);
    hearing.named = Some(if is_legacy { Revision::V2025_11_25 } else { Revision::V2026_07_28 });
    let opens =
        message["method"] == "initialize" || message["method"] == "notifications/initialized";
    if !body.is_empty() && (!opens || shared.lock().legacy) {
        hearing.check_broker_message(body);
    }
    let seen = RecordedRequest {
        http: http.to_owned(),
        headers: headers.clone(),
        body: body.clone(),
        message: message.clone(),
    };
    shared.lock().seen.push(seen);
    shared.touch();
    message
}

pub(super) async fn serve_http(shared: Arc<StatelessShared>, listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        let to_service = shared.clone();
        let service = service_fn(move |request| post(to_service.clone(), request));
        let connection = tokio::spawn(async move {
            let _ = auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
        shared.lock().connections.push(connection.abort_handle());
    }
}

async fn post(
    shared: Arc<StatelessShared>,
    request: Request<Incoming>,
) -> Result<Response<Body>, std::io::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
    let message = record(&shared, parts.method.as_str(), &parts.headers, &body);
    if parts.method != "POST" {
        return Ok(whole(405, Bytes::new()));
    }
    if message.get("id").is_none() || message.get("method").is_none() {
        let is_refused =
            message["method"] == "notifications/initialized" && shared.lock().breaks_off_sessions;
        return Ok(whole(if is_refused { 400 } else { 202 }, Bytes::new()));
    }
    let (out, mut pieces) = mpsc::channel(PIECES);
    tokio::spawn(answers::answer(
        shared,
        message,
        Some(parts.headers),
        out,
        CancellationToken::new(),
    ));
    match pieces.recv().await {
        Some(ResponsePart::Answer(status, answer)) => Ok(whole(status, Bytes::from(answer))),
        Some(first) => Ok(events(first, pieces)),
        None => Err(std::io::Error::other("no answer")),
    }
}

fn whole(status: u16, body: Bytes) -> Response<Body> {
    let body = Full::new(body).map_err(|never: Infallible| match never {}).boxed();
    Response::builder()
        .status(status)
        .header("content-type", "application/json")
        .body(body)
        .expect("a valid response")
}

fn events(first: ResponsePart, pieces: mpsc::Receiver<ResponsePart>) -> Response<Body> {
    let frames =
        stream::unfold((Some(first), pieces, false), |(first, mut pieces, ended)| async move {
            if ended {
                return None;
            }
            let piece = match first {
                Some(first) => first,
                None => pieces.recv().await?,
            };
            let (message, last) = match piece {
                ResponsePart::Event(message) => (message.to_string(), false),
                ResponsePart::Answer(_, message) => (message, true),
            };
            let text = format!("event: message\ndata: {message}\n\n");
            Some((Ok(Frame::data(Bytes::from(text))), (None, pieces, last)))
        });
    let body = StreamBody::new(frames).boxed();
    Response::builder()
        .status(200)
        .header("content-type", "text/event-stream")
        .body(body)
        .expect("a valid response")
}

pub(super) async fn serve_pipe(shared: Arc<StatelessShared>, listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        let connection = tokio::spawn(lines(shared.clone(), stream));
        shared.lock().connections.push(connection.abort_handle());
    }
}

async fn lines(shared: Arc<StatelessShared>, stream: TcpStream) {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    let (line_out, mut line_in) = mpsc::channel::<String>(PIECES);
    let writing = tokio::spawn(async move {
        while let Some(message) = line_in.recv().await {
            if write.write_all(format!("{message}\n").as_bytes()).await.is_err() {
                return;
            }
        }
    });
    let _writer = crate::abort_on_drop::AbortOnDrop(writing);
    let mut open: HashMap<String, CancellationToken> = HashMap::new();
    while let Ok(Some(line)) = lines.next_line().await {
        let message = record(&shared, "LINE", &http::HeaderMap::new(), &Bytes::from(line));
        if message["method"] == "notifications/cancelled" {
            if let Some(cancelled) = open.remove(&message["params"]["requestId"].to_string()) {
                cancelled.cancel();
            }
            continue;
        }
        if message.get("id").is_none() || message.get("method").is_none() {
            continue;
        }
        let cancelled = CancellationToken::new();
        open.insert(message["id"].to_string(), cancelled.clone());
        let (out, mut pieces) = mpsc::channel(PIECES);
        tokio::spawn(answers::answer(shared.clone(), message, None, out, cancelled.clone()));
        let line_out = line_out.clone();
        tokio::spawn(async move {
            loop {
                let piece = tokio::select! {
                    piece = pieces.recv() => piece,
                    () = cancelled.cancelled() => return,
                };
                match piece {
                    Some(ResponsePart::Event(message)) => {
                        drop(line_out.send(message.to_string()).await)
                    }
                    Some(ResponsePart::Answer(_, message)) => {
                        return drop(line_out.send(message).await);
                    }
                    None => return,
                }
            }
        });
    }
    open.values().for_each(CancellationToken::cancel);
}
