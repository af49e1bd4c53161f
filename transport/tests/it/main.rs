//! Tests of the transport crate from outside: real pipes, real child processes, real sockets on
//! loopback.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod certificates;
mod child_process;
mod conformance;
mod connection_watch;
mod egress;
mod framing;
mod http1_client;
mod http1_server;
mod http2_refusals;
mod http_client;
mod http_server;
mod lines;
mod peer;
mod proxy_protocol;
mod quic;
mod stall;
mod tcp;
mod tls;
mod url;
mod websocket;

use std::future::Future;
use std::time::Duration;

/// Time limit of any single wait of a test. Only a failing test reaches it.
const DEADLINE: Duration = Duration::from_secs(20);

/// Returns the future's result. Fails the test if the future hangs.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future)
        .await
        .unwrap_or_else(|_| panic!("{what} did not happen in {DEADLINE:?}"))
}

/// Waits until the state holds.
async fn until(what: &str, mut state: impl FnMut() -> bool) {
    let wait = async {
        while !state() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(what, wait).await;
}
