//! Tests that a peer that does not read loses its connection, and that a slow reader keeps it.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::interval,
};
use transport::{StallGuard, socket_options};

#[tokio::test]
async fn a_peer_that_does_not_read_is_cut() {
    let (near, _far) = tokio::io::duplex(64);
    let mut guarded = StallGuard::new(near, Duration::from_millis(50));
    let error = guarded.write_all(&[0; 1024]).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
}

#[tokio::test]
async fn a_slow_reader_is_not_cut() {
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

/// A peer that reads some hundred kilobytes a second makes progress all the time, however much the
/// kernel could keep for it.
#[tokio::test]
async fn a_peer_that_reads_slowly_is_not_treated_as_stalled() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (near, _) = listener.accept().await.unwrap();
    socket_options::tune(&near);
    let reading = tokio::spawn(async move {
        let (mut pace, mut piece) = (interval(Duration::from_millis(20)), vec![0; 8 * 1024]);
        loop {
            pace.tick().await;
            far.read_exact(&mut piece).await.unwrap();
        }
    });
    let mut guarded = StallGuard::new(near, Duration::from_secs(1));
    let piece = vec![0; 64 * 1024];
    let writing = async {
        loop {
            if let Err(error) = guarded.write_all(&piece).await {
                return error;
            }
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(4), writing).await;
    reading.abort();
    assert!(ended.is_err(), "{ended:?}");
}
