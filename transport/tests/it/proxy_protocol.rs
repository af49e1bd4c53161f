//! Tests of PROXY protocol headers: their content, their end, and that no other bytes are taken for
//! one.

use std::{net::SocketAddr, time::Duration};

use proptest::prelude::*;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use transport::proxy_protocol::{
    ProxyHeader, ProxyHeaderError, V2_BYTES_MAX, parse, read_header, starts_with_header,
};

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Returns a version 2 header with `more` after the addresses.
fn v2(command: u8, family: u8, addresses: &[u8], more: &[u8]) -> Vec<u8> {
    let length = u16::try_from(addresses.len() + more.len()).unwrap().to_be_bytes();
    [SIGNATURE, &[command, family], &length, addresses, more].concat()
}

fn v2_of(source: SocketAddr, more: &[u8]) -> Vec<u8> {
    let port = source.port().to_be_bytes();
    match source {
        SocketAddr::V4(source) => v2(
            0x21,
            0x11,
            &[&source.ip().octets()[..], &[127, 0, 0, 1], &port, &[0, 80]].concat(),
            more,
        ),
        SocketAddr::V6(source) => {
            v2(0x21, 0x21, &[&source.ip().octets()[..], &[0; 16], &port, &[0, 80]].concat(), more)
        }
    }
}

fn v1_of(source: SocketAddr) -> Vec<u8> {
    let (family, destination) =
        if source.is_ipv4() { ("TCP4", "127.0.0.1") } else { ("TCP6", "::1") };
    format!("PROXY {family} {} {destination} {} 80\r\n", source.ip(), source.port()).into_bytes()
}

#[test]
fn s16_invalid_proxy_headers_are_refused() {
    for text in [
        &b"GET / HTTP/1.1\r\n"[..],
        b"proxy TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2 3\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1 65536\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 +1 2\r\n",
        b"PROXY TCP4  192.0.2.1 192.0.2.2 1 2\r\n",
        b"PROXY TCP4 2001:db8::1 192.0.2.2 1 2\r\n",
        b"PROXY TCP6 192.0.2.1 ::1 1 2\r\n",
        b"PROXY UDP4 192.0.2.1 192.0.2.2 1 2\r\n",
        b"PROXY \xff\r\n",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2 and far more than the one hundred and seven bytes that such a line may have in all, without its end",
        b"\r\n\r\n\0\r\nQUIX\n",
    ] {
        assert!(parse(text).is_err(), "{}", text.escape_ascii());
    }
    for header in [
        v2(0x11, 0x11, &[0; 12], b""),
        v2(0x22, 0x11, &[0; 12], b""),
        v2(0x21, 0x12, &[0; 12], b""),
        v2(0x21, 0x11, &[0; 11], b""),
        v2(0x21, 0x21, &[0; 35], b""),
        v2(0x21, 0x11, &[0; 12], &[0; V2_BYTES_MAX]),
    ] {
        assert!(
            matches!(parse(&header), Err(ProxyHeaderError::Malformed(_))),
            "{}",
            header.escape_ascii()
        );
    }
    for header in [
        &b"PROXY UNKNOWN\r\n"[..],
        b"PROXY UNKNOWN ::1 ::1 1 2\r\n",
        &v2(0x20, 0x11, &[9; 12], b""),
        &v2(0x21, 0, b"", b""),
    ] {
        assert_eq!(
            parse(header).unwrap(),
            Some((ProxyHeader::Local, header.len())),
            "{}",
            header.escape_ascii()
        );
    }
}

proptest! {
    #[test]
    fn s16_a_partial_proxy_header_is_never_misread(source in any::<SocketAddr>(), more in prop::collection::vec(any::<u8>(), 0..64), rest in any::<[u8; 8]>()) {
        let source = SocketAddr::new(source.ip(), source.port());
        for header in [v1_of(source), v2_of(source, &more)] {
            for end in 0..header.len() {
                prop_assert!(matches!(parse(&header[..end]), Ok(None)), "{end} bytes of {}", header.escape_ascii());
            }
            let followed = [&header[..], &rest].concat();
            prop_assert_eq!(parse(&followed).unwrap(), Some((ProxyHeader::Client(source), header.len())));
        }
    }

    #[test]
    fn s16_no_bytes_make_the_parser_panic(kind in 0_usize..3, bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let begun: &[u8] = [b"PROXY TCP4 ", SIGNATURE, b""][kind];
        let bytes = [begun, &bytes].concat();
        if let Ok(Some((_, length))) = parse(&bytes) {
            prop_assert!(length <= bytes.len() && length <= V2_BYTES_MAX);
        }
    }
}

#[tokio::test]
async fn s16_exactly_the_bytes_of_a_proxy_header_are_consumed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let source: SocketAddr = "192.0.2.7:4711".parse().unwrap();
    for header in [v1_of(source), v2_of(source, &[7; 3000])] {
        for at_once in [1, 7, header.len() + 4] {
            let sent = [&header[..], b"rest"].concat();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            client.set_nodelay(true).unwrap();
            let writing = async {
                for piece in sent.chunks(at_once) {
                    client.write_all(piece).await.unwrap();
                    tokio::task::yield_now().await;
                }
                client.shutdown().await.unwrap();
            };
            let reading = async {
                let (mut socket, _) = listener.accept().await.unwrap();
                let header = read_header(&mut socket, Duration::from_secs(30)).await.unwrap();
                let mut rest = String::new();
                socket.read_to_string(&mut rest).await.unwrap();
                (header, rest)
            };
            let ((), read) = tokio::join!(writing, reading);
            assert_eq!(read, (ProxyHeader::Client(source), "rest".to_owned()), "{at_once} at once");
        }
    }
    // The reader waits for a missing header until the deadline. A header that ends early is not
    // valid.
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (mut socket, _) = listener.accept().await.unwrap();
    client.write_all(b"PROXY ").await.unwrap();
    assert!(matches!(
        read_header(&mut socket, Duration::from_millis(20)).await,
        Err(ProxyHeaderError::Timeout(_))
    ));
    drop(client);
    assert!(matches!(
        read_header(&mut socket, Duration::from_secs(30)).await,
        Err(ProxyHeaderError::Missing)
    ));
    for (sent, begins) in [
        (v1_of(source), true),
        (v2_of(source, b""), true),
        (b"POST / HTTP/1.1".to_vec(), false),
        (b"\r\n\r\n".to_vec(), false),
    ] {
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.write_all(&sent).await.unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        assert_eq!(starts_with_header(&socket).await.unwrap(), begins, "{}", sent.escape_ascii());
    }
}
