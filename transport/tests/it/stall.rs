//! Tests that a peer that does not read loses its connection, and that a slow reader keeps it.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use transport::StallGuard;

#[tokio::test]
async fn a_peer_that_does_not_read_is_cut() {
    let (near, _far) = tokio::io::duplex(64);
    let mut guarded = StallGuard::new(near, Duration::from_millis(50));
    let error = guarded.write_all(&[0; 1024]).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
}

#[tokio::test]
async fn a_slow_reader_is_not() {
    let (near, mut far) = tokio::io::duplex(64);
    let mut guarded = StallGuard::new(near, Duration::from_secs(10));
    let reading = tokio::spawn(async move {
        let mut all = 0;
        let mut part = [0; 3];
        while all < 1024 {
            tokio::task::yield_now().await;
            all += far.read(&mut part).await.unwrap();
        }
        all
    });
    guarded.write_all(&[0; 1024]).await.unwrap();
    assert_eq!(reading.await.unwrap(), 1024);
}
