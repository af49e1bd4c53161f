//! Tests of TCP connects: the address, the time limit, and the socket options.

use std::time::Duration;

use socket2::SockRef;
use tokio::{io::AsyncReadExt, net::TcpListener};
use transport::{
    ConnectError, EgressPolicy,
    socket_options::DEAD_AFTER,
    tcp::{Stream, connect},
};

use crate::{DEADLINE, certificates::Authority, conformance::wires::egress, soon};

#[tokio::test]
async fn connections_need_a_permitted_address_that_answers() {
    let at = |address: &'static str| async move {
        connect(address, &egress(), None, DEADLINE).await.unwrap_err()
    };
    assert!(matches!(at("169.254.169.254:80").await, ConnectError::Denied(_)));
    assert!(matches!(
        connect("127.0.0.1:1", &EgressPolicy::default(), None, DEADLINE).await,
        Err(ConnectError::Denied(_))
    ));
    for nonsense in [
        "",
        "localhost",
        "127.0.0.1:",
        ":80",
        "127.0.0.1:http",
        "::1:80",
        "127.0.0.1:65536",
        "[::1]80",
    ] {
        let refusal = connect(nonsense, &egress(), None, DEADLINE).await.unwrap_err();
        assert!(
            matches!(&refusal, ConnectError::Unreachable { reason } if reason.contains("host:port")),
            "{nonsense}: {refusal}"
        );
    }
    assert!(matches!(at("127.0.0.1:1").await, ConnectError::Unreachable { .. }));
    assert!(matches!(at("[::1]:1").await, ConnectError::Unreachable { .. }));
}

#[tokio::test]
async fn a_server_that_never_completes_the_handshake_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (egress, tls) = (egress(), Authority::new().client());
    let connecting = connect(&address, &egress, Some(&tls), Duration::from_millis(100));
    let (accepted, connected) = tokio::join!(listener.accept(), connecting);
    assert_eq!(connected.unwrap_err(), ConnectError::Timeout);
    let mut hello = Vec::new();
    soon("the end", accepted.unwrap().0.read_to_end(&mut hello)).await.unwrap();
    assert_eq!(hello.first(), Some(&22), "a handshake had begun");
}

#[tokio::test]
async fn f_12_a_dead_peer_is_detected_by_the_kernel() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = connect(&listener.local_addr().unwrap().to_string(), &egress(), None, DEADLINE)
        .await
        .unwrap();
    assert!(matches!(stream, Stream::Plain(_)));
    let socket = SockRef::from(stream.socket());
    assert!(socket.tcp_nodelay().unwrap());
    // The limit must hold with and without data on its way.
    assert_eq!(socket.tcp_user_timeout().unwrap(), Some(DEAD_AFTER));
    assert!(socket.keepalive().unwrap());
    let probes = socket.tcp_keepalive_interval().unwrap() * socket.tcp_keepalive_retries().unwrap();
    assert!(socket.tcp_keepalive_time().unwrap() + probes <= DEAD_AFTER);
}
