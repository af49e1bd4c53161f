//! Bytes that the broker sends over UDP to an address that is not validated: fewer than came from
//! it, in each case.

use std::net::SocketAddr;

use serde_json::json;
use testkit::{Authority, QuicPeer, within};
use tokio::net::UdpSocket;

use crate::builder;

/// The first byte of a Retry packet of QUIC 1 (RFC 9000, 17.2.5), without its unused bits.
const RETRY: u8 = 0b1111_0000;

/// Sends from an address of its own. Returns the number of bytes sent, and the answers that came
/// until a whole handshake of another client was over.
async fn answers(
    address: SocketAddr,
    authority: &Authority,
    datagrams: &[Vec<u8>],
    is_answered: bool,
) -> (usize, Vec<Vec<u8>>) {
    let victim = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for datagram in datagrams {
        victim.send_to(datagram, address).await.unwrap();
    }
    let (mut answers, mut answer) = (Vec::new(), vec![0; 65_536]);
    if is_answered {
        let count = within("an answer", victim.recv(&mut answer)).await.unwrap();
        answers.push(answer[..count].to_vec());
    }
    // Immediate answers are sent before the handshake of a later client is over.
    QuicPeer::connect(address, authority, None, "mcp").await.unwrap();
    while let Ok(count) = victim.try_recv(&mut answer) {
        answers.push(answer[..count].to_vec());
    }
    (datagrams.iter().map(Vec::len).sum(), answers)
}

#[tokio::test]
async fn quic_amplification_an_unvalidated_address_never_gets_more_than_it_sent() {
    let authority = Authority::new();
    let server = authority.server("server");
    let config = json!({"listen": {"quic": "127.0.0.1:0"}, "tls": {"cert_file": server.cert, "key_file": server.key}});
    let broker = builder().single_process().config(config).start().await;
    let address = broker.quic_address();
    let hello = QuicPeer::hello(&authority, "mcp", None).await;
    let again = [&hello[..], &hello[..], &hello[..]].concat();
    let foreign = QuicPeer::hello(&authority, "h3", None).await;
    let forged =
        QuicPeer::hello(&authority, "mcp", Some(b"a token that the broker has not made")).await;
    let garbage =
        vec![vec![0x55; 1200], vec![0x41; 40], vec![0xff; 1200], vec![0; 1200], Vec::new()];
    let mut unknown_version = hello.clone();
    unknown_version.iter_mut().for_each(|datagram| datagram[1..5].copy_from_slice(&[0xba; 4]));
    let cases = [
        ("a hello", &hello[..1], true),
        ("a hello of two datagrams", &hello, true),
        ("a hello again and again", &again, true),
        ("a hello for another protocol", &foreign, true),
        ("a hello with a forged proof", &forged, true),
        ("a hello in an unknown version", &unknown_version, true),
        ("garbage", &garbage, false),
    ];
    for (name, datagrams, is_answered) in cases {
        for port in 0..8 {
            let (sent, answers) = answers(address, &authority, datagrams, is_answered).await;
            let got: usize = answers.iter().map(Vec::len).sum();
            assert!(got <= sent, "{name}, {port}: {got} bytes for {sent}");
            if name.starts_with("a hello") && !name.contains("version") {
                // No handshake is begun, so that nothing is sent again later either.
                let kinds: Vec<u8> = answers.iter().map(|answer| answer[0] & RETRY).collect();
                assert!(kinds.iter().all(|kind| *kind == RETRY), "{name}, {port}: {kinds:x?}");
            }
        }
    }
}
