//! Connections of the admin listener over HTTP/2, which clients negotiate in the TLS handshake.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use axum::{
    BoxError, Error, Router,
    body::{Body, HttpBody},
    extract::{Request, State},
    middleware::{self, Next},
    response::Response,
};
use bytes::Bytes;
use hyper::{
    body::{Frame, SizeHint},
    server::conn::http2,
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use rules::limits::HTTP2_PIECE_BYTES;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::{HEAD_BYTES_MAX, HEAD_TIMEOUT};
use crate::listeners::{
    http2_requests::{RunningRequests, drive},
    http2_stall::StreamExecutor,
};

const STREAMS_MAX: u32 = 32;

/// Serves a connection to its end, or until it has had no request for [`HEAD_TIMEOUT`].
pub(super) async fn serve(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    router: Router,
    stop: &CancellationToken,
) -> Result<(), BoxError> {
    let requests = Arc::<RunningRequests>::default();
    let router = router.layer(middleware::from_fn_with_state(requests.clone(), counted));
    let connection =
        settings().serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    drive(connection, http2::Connection::graceful_shutdown, &requests, HEAD_TIMEOUT, stop).await
}

fn settings() -> http2::Builder<StreamExecutor> {
    let mut builder = http2::Builder::new(StreamExecutor);
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(HEAD_TIMEOUT))
        .keep_alive_timeout(HEAD_TIMEOUT);
    builder.max_concurrent_streams(STREAMS_MAX).max_header_list_size(HEAD_BYTES_MAX as u32);
    builder
}

/// Middleware around every route. Counts a request until its answer is over.
async fn counted(
    State(requests): State<Arc<RunningRequests>>,
    request: Request,
    next: Next,
) -> Response {
    let running = requests.begin();
    let response = next.run(request).await;
    response.map(|body| {
        let body = requests.stalls.watch(PiecewiseBody { body, rest: Bytes::new() });
        Body::new(running.end_with(body))
    })
}

/// Body of an answer, in pieces. The library asks for a piece when the client has a window for it.
#[derive(Debug)]
struct PiecewiseBody {
    body: Body,
    rest: Bytes,
}

impl HttpBody for PiecewiseBody {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if self.rest.is_empty() {
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                ended => return Poll::Ready(ended),
            };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        let length = self.rest.len().min(HTTP2_PIECE_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, of_body) = (self.rest.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        if let Some(upper) = of_body.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(of_body.lower() + rest);
        hint
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use http_body_util::{BodyExt, StreamBody};
    use hyper::client::conn::http2::{Builder, SendRequest};
    use hyper_util::rt::TokioExecutor;
    use rules::limits::CLIENT_WRITE_STALL_MAX;
    use tokio::{sync::mpsc, task::JoinHandle, time::timeout};

    use super::*;

    /// Returns a client with a small window, its connection, and the served connection.
    async fn connected(
        router: Router,
    ) -> (SendRequest<Body>, JoinHandle<hyper::Result<()>>, JoinHandle<Result<(), BoxError>>) {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let served =
            tokio::spawn(async move { serve(far, router, &CancellationToken::new()).await });
        let mut client = Builder::new(TokioExecutor::new());
        client.timer(TokioTimer::new()).initial_stream_window_size(1_024);
        let (sender, connection) = client.handshake(TokioIo::new(near)).await.unwrap();
        (sender, tokio::spawn(connection), served)
    }

    fn request() -> Request {
        Request::builder().uri("http://localhost/").body(Body::empty()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_only_answers_pings_is_disconnected() {
        let router = || Router::new().route("/", get(async || "x".repeat(100_000)));
        let (_sender, connection, _served) = connected(router()).await;
        timeout(HEAD_TIMEOUT * 3, connection)
            .await
            .expect("it never sent a request")
            .unwrap()
            .unwrap();
        let (mut sender, connection, _served) = connected(router()).await;
        for _ in 0..3 {
            let answer = sender.send_request(request()).await.unwrap();
            assert_eq!(answer.collect().await.unwrap().to_bytes().len(), 100_000);
            tokio::time::sleep(HEAD_TIMEOUT / 2).await;
            assert!(!connection.is_finished());
        }
        timeout(HEAD_TIMEOUT * 3, connection).await.expect("it has no request").unwrap().unwrap();
    }

    /// Returns a router whose answer at `/` is an event stream, and the sender of its events.
    fn event_stream() -> (mpsc::Sender<Result<Frame<Bytes>, Error>>, Router) {
        let (events, receiver) = mpsc::channel::<Result<Frame<Bytes>, Error>>(1);
        let receiver = Arc::new(parking_lot::Mutex::new(Some(receiver)));
        let answer = move || async move {
            let mut receiver = receiver.lock().take().unwrap();
            let stream = futures_util::stream::poll_fn(move |context| receiver.poll_recv(context));
            Body::new(StreamBody::new(stream))
        };
        (events, Router::new().route("/", get(answer)))
    }

    #[tokio::test(start_paused = true)]
    async fn a_running_event_stream_keeps_its_connection() {
        let (events, router) = event_stream();
        let (mut sender, connection, _served) = connected(router).await;
        let mut answer = sender.send_request(request()).await.unwrap();
        tokio::time::sleep(CLIENT_WRITE_STALL_MAX * 2).await;
        events.send(Ok(Frame::data(Bytes::from_static(b"event")))).await.unwrap();
        assert!(answer.frame().await.is_some_and(|frame| frame.is_ok()));
        assert!(!connection.is_finished());
        drop(events);
        timeout(HEAD_TIMEOUT * 3, connection).await.expect("the stream is over").unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_none_of_its_answers_is_disconnected() {
        let router = Router::new().route("/", get(async || "x".repeat(1_000_000)));
        let (mut sender, _connection, served) = connected(router).await;
        let _answer = sender.send_request(request()).await.unwrap();
        let ended = timeout(CLIENT_WRITE_STALL_MAX * 2, served).await.expect("it has stalled");
        assert!(ended.is_ok());
    }

    /// The clients of a gateway share its connection.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_taken_ends_without_the_others() {
        let (events, router) = event_stream();
        let router = router.route("/large", get(async || "x".repeat(1_000_000)));
        let (mut sender, connection, _served) = connected(router).await;
        let mut listening = sender.send_request(request()).await.unwrap();
        let large = Request::builder().uri("http://localhost/large").body(Body::empty()).unwrap();
        let stalled = sender.send_request(large).await.unwrap();
        tokio::time::sleep(CLIENT_WRITE_STALL_MAX * 2).await;
        events.send(Ok(Frame::data(Bytes::from_static(b"event")))).await.unwrap();
        assert!(listening.frame().await.is_some_and(|frame| frame.is_ok()));
        let taken = stalled.collect().await.map_or(0, |answer| answer.to_bytes().len());
        assert!(taken < 1_000_000, "{taken} bytes of the stalled answer");
        assert!(!connection.is_finished());
    }
}
