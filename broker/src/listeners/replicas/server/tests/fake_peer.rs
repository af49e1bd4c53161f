//! A replica with a scripted behavior, which can be killed.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use parking_lot::Mutex;
use tokio::{net::TcpListener, sync::mpsc};
use transport::{PeerIdentity, PeerServer};

use crate::auth::Keys;

pub(super) type PeerBody = UnsyncBoxBody<Bytes, Infallible>;

/// A replica with a scripted behavior, which can be killed.
pub(super) struct FakePeer {
    pub(super) address: String,
    pub(super) seen: Arc<Seen>,
    runtime: Option<tokio::runtime::Runtime>,
}

#[derive(Default)]
pub(super) struct Seen {
    pub(super) requests: Mutex<Vec<(Method, String, HeaderMap, Bytes)>>,
    pub(super) bytes: AtomicUsize,
    pub(super) ended: AtomicBool,
}

impl FakePeer {
    pub(super) fn start(
        answer: impl Fn(&Arc<Seen>) -> Option<Response<PeerBody>> + Clone + Send + Sync + 'static,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let (address, seen) = (listener.local_addr().unwrap().to_string(), Arc::<Seen>::default());
        let recorded = seen.clone();
        let handler = move |request: Request<transport::PeerBody>| {
            let (answer, seen) = (answer.clone(), recorded.clone());
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                seen.requests.lock().push((head.method, head.uri.to_string(), head.headers, body));
                match answer(&seen) {
                    Some(response) => response,
                    None => std::future::pending().await,
                }
            }
        };
        runtime.spawn(async move {
            let server = PeerServer::new(
                &PeerIdentity::from_secret(&Keys::from_root(b"the same for all").peer).unwrap(),
            );
            server
                .serve(TcpListener::from_std(listener).unwrap(), std::future::pending(), handler)
                .await;
        });
        Self { address, seen, runtime: Some(runtime) }
    }

    pub(super) fn kill(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }

    pub(super) fn requests(&self) -> usize {
        self.seen.requests.lock().len()
    }
}

impl Drop for FakePeer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

pub(super) fn empty(status: StatusCode) -> Response<PeerBody> {
    let mut response = Response::new(Full::default().boxed_unsync());
    *response.status_mut() = status;
    response
}

/// A body of chunks that never ends by itself.
pub(super) struct Chunks {
    chunks: mpsc::Receiver<Bytes>,
    seen: Arc<Seen>,
    announced: Option<u64>,
}

impl Chunks {
    pub(super) fn response(
        seen: &Arc<Seen>,
        kind: &str,
        chunk: Bytes,
        times: usize,
        announced: Option<u64>,
    ) -> Response<PeerBody> {
        let (sender, chunks) = mpsc::channel(1);
        let recorded = seen.clone();
        tokio::spawn(async move {
            for _ in 0..times {
                if sender.send(chunk.clone()).await.is_err() {
                    return;
                }
                recorded.bytes.fetch_add(chunk.len(), Ordering::SeqCst);
            }
            sender.closed().await;
        });
        let mut response =
            Response::new(Chunks { chunks, seen: seen.clone(), announced }.boxed_unsync());
        response.headers_mut().insert("content-type", kind.parse().unwrap());
        response
    }
}

impl hyper::body::Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.chunks.poll_recv(context).map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.announced
            .map_or_else(hyper::body::SizeHint::default, hyper::body::SizeHint::with_exact)
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        self.seen.ended.store(true, Ordering::SeqCst);
    }
}
