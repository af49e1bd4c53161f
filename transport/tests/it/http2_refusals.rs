//! Tests of HTTP/2 servers that refuse a request, or end before its answer.

use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use transport::{EgressPolicy, HttpClient, HttpClientConfig, SendError};

use crate::{http_server::Authority, soon};

const PREFACE_BYTES: usize = 24;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const NO_ERROR: u32 = 0;
const INTERNAL_ERROR: u32 = 2;
const REFUSED_STREAM: u32 = 7;

fn frame(kind: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, 0], &stream.to_be_bytes(), payload].concat()
}

fn reset(code: u32) -> Vec<u8> {
    frame(RST_STREAM, 1, &code.to_be_bytes())
}

fn go_away(last_stream: u32, code: u32) -> Vec<u8> {
    frame(GOAWAY, 0, &[last_stream.to_be_bytes(), code.to_be_bytes()].concat())
}

/// Waits for the head of the first request, which is on stream 1.
async fn read_head(stream: &mut TlsStream<TcpStream>) {
    stream.read_exact(&mut [0; PREFACE_BYTES]).await.unwrap();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut payload).await.unwrap();
        if head[3] == HEADERS {
            return;
        }
    }
}

/// Returns the error of a request whose server answers with these bytes, and then closes the
/// connection if `closes`.
async fn error_after(answer: Vec<u8>, closes: bool) -> SendError {
    let authority = Authority::new();
    let acceptor = TlsAcceptor::from(Arc::new(authority.server(&["127.0.0.1"])));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        let mut stream = acceptor.accept(socket).await.unwrap();
        stream.write_all(&frame(SETTINGS, 0, &[])).await.unwrap();
        read_head(&mut stream).await;
        stream.write_all(&answer).await.unwrap();
        stream.flush().await.unwrap();
        if !closes {
            std::future::pending::<()>().await;
        }
    });
    let client = HttpClient::new(HttpClientConfig {
        extra_roots: vec![authority.certificate.clone()],
        egress: Arc::new(EgressPolicy { loopback: true, ..EgressPolicy::default() }),
        ..HttpClientConfig::default()
    })
    .unwrap();
    let request = Request::post(url).body(Full::new(Bytes::from("ping"))).unwrap();
    let error = soon("an error", client.send(request)).await.unwrap_err();
    server.abort();
    error
}

#[tokio::test]
async fn a_request_that_the_server_did_not_process_is_safe_to_retry() {
    for answer in [reset(REFUSED_STREAM), go_away(0, NO_ERROR)] {
        let error = error_after(answer.clone(), false).await;
        assert!(matches!(error, SendError::NotSent { .. }), "{answer:?}: {error}");
        assert!(error.is_safe_to_retry(), "{answer:?}");
    }
}

#[tokio::test]
async fn a_request_that_the_server_may_have_processed_has_an_unknown_outcome() {
    let answers = [
        (reset(INTERNAL_ERROR), false),
        (go_away(0, INTERNAL_ERROR), false),
        (go_away(1, NO_ERROR), true),
        (Vec::new(), true),
    ];
    for (answer, closes) in answers {
        let error = error_after(answer.clone(), closes).await;
        assert!(matches!(error, SendError::Aborted { .. }), "{answer:?}: {error}");
        assert!(!error.is_safe_to_retry(), "{answer:?}");
    }
}
