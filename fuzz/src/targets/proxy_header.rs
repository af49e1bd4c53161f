//! The header of the PROXY protocol, against its round trip and its own prefixes.

use std::net::SocketAddr;

use transport::proxy_protocol::{ProxyHeader, parse};

use crate::{Outcome, Target};

pub(super) const TARGET: Target = Target {
    name: "proxy_header",
    tokens: &[
        "PROXY ",
        "TCP4",
        "TCP6",
        "UNKNOWN",
        "1.2.3.4",
        "::1",
        " ",
        "65535",
        "0",
        "\r\n",
        "\r\n\r\n\0\r\nQUIT\n",
        "\x21\x11\x00\x0c",
        "\x21\x21\x00\x24",
        "\x20\x00\x00\x00",
    ],
    bytes_max: 512,
    check,
};

const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

fn check(input: &[u8]) -> Outcome {
    let verdict = |bytes: &[u8]| parse(bytes).map_err(|error| error.to_string());
    let whole = verdict(input);
    // What is refused is refused however much more arrives, and no header is found too early.
    let mut before = verdict(b"");
    for end in 1..=input.len() {
        let now = verdict(&input[..end]);
        match (&before, &now) {
            (Err(_), later) => assert!(later.is_err(), "refused, then not"),
            (Ok(Some(found)), later) => {
                assert_eq!(later.as_ref(), Ok(&Some(*found)), "found, then not")
            }
            (Ok(None), _) => {}
        }
        if let Ok(Some((_, bytes))) = now {
            assert!(bytes <= end, "a header ends within its bytes");
        }
        before = now;
    }
    match whole {
        Ok(Some((ProxyHeader::Client(address), bytes))) => {
            for header in [version_1(address), version_2(address)] {
                let again =
                    parse(&header).expect("a written header is one").expect("it is complete");
                assert_eq!(again, (ProxyHeader::Client(address), header.len()), "the round trip");
            }
            Outcome::of(&("client", address.is_ipv6(), Outcome::magnitude(bytes)))
        }
        Ok(Some((ProxyHeader::Local, bytes))) => Outcome::of(&("local", Outcome::magnitude(bytes))),
        Ok(None) => Outcome::of(&"incomplete"),
        Err(error) => Outcome::of(&error),
    }
}

fn version_1(address: SocketAddr) -> Vec<u8> {
    let (family, other) = if address.is_ipv6() { ("TCP6", "::1") } else { ("TCP4", "127.0.0.1") };
    format!("PROXY {family} {} {other} {} 443\r\n", address.ip(), address.port()).into_bytes()
}

fn version_2(address: SocketAddr) -> Vec<u8> {
    let (family, source): (u8, Vec<u8>) = match address {
        SocketAddr::V4(address) => (0x11, address.ip().octets().to_vec()),
        SocketAddr::V6(address) => (0x21, address.ip().octets().to_vec()),
    };
    let ports = [address.port().to_be_bytes(), 443_u16.to_be_bytes()].concat();
    let rest = [source.clone(), source, ports].concat();
    let length = u16::try_from(rest.len()).expect("it is short").to_be_bytes();
    [SIGNATURE, &[0x21, family], &length, &rest].concat()
}
