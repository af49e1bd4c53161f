//! Serves a listener's HTTP connections with a function that answers each request, for simple
//! peers.

use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::net::TcpListener;

/// Serves until it is dropped; open connections continue afterwards.
pub(crate) async fn serve<Answering>(
    listener: TcpListener,
    answer: impl Fn(Request<Incoming>) -> Answering + Clone + Send + 'static,
) where
    Answering: Future<Output = Result<Response<Full<Bytes>>, Infallible>> + Send + 'static,
{
    while let Ok((stream, _)) = listener.accept().await {
        let service = service_fn(answer.clone());
        tokio::spawn(async move {
            let _ = auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}
