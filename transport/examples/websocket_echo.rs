//! Serves this project's WebSocket layer as a plain echo, for public test suites (`make autobahn`).
//!
//! `cargo run --release --example websocket_echo -- 127.0.0.1:0` prints its address first.

use std::{convert::Infallible, error::Error, io::Write, time::Duration};

use http::{Request, Response};
use http_body_util::Empty;
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use transport::{
    socket_options,
    tcp::Stream,
    websocket::{self, Limits},
};

/// Largest message accepted. The largest message of the test suites has 16 MiB.
const MESSAGE_BYTES_MAX: usize = 32 * 1024 * 1024;
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = TcpListener::bind(address).await?;
    let mut output = std::io::stdout();
    writeln!(output, "{}", listener.local_addr()?)?;
    output.flush()?;
    loop {
        let (socket, _) = listener.accept().await?;
        socket_options::tune(&socket);
        tokio::spawn(serve(Stream::Plain(socket)));
    }
}

async fn serve(stream: Stream) {
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service_fn(answer))
        .with_upgrades()
        .await;
    if let Err(error) = served {
        eprintln!("a connection failed before its upgrade: {error}");
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Empty<Bytes>>, Infallible> {
    let response = websocket::accept(&request).unwrap_or_else(websocket::UpgradeError::response);
    if response.status() == http::StatusCode::SWITCHING_PROTOCOLS {
        tokio::spawn(echo(request));
    }
    Ok(response.map(|()| Empty::new()))
}

async fn echo(request: Request<Incoming>) {
    let Ok(upgraded) = hyper::upgrade::on(request).await else { return };
    let Ok(parts) = upgraded.downcast::<TokioIo<Stream>>() else { return };
    let limits = Limits { message_bytes_max: MESSAGE_BYTES_MAX, ..Limits::default() };
    if let Err(error) = websocket::echo(parts.io.into_inner(), parts.read_buf, &limits).await {
        eprintln!("a connection ended: {error}");
    }
}
