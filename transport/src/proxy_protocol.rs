//! Parses the header of the PROXY protocol, versions 1 and 2, in which a proxy names the address of
//! the client.
//!
//! Used by the listeners for connections of trusted proxies, before TLS. The parser reads exactly
//! the header. The header is untrusted input: its length is bounded, and the caller sets a
//! deadline.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use tokio::{io::AsyncReadExt as _, net::TcpStream, time::timeout};

/// First bytes of every version 2 header. No other header begins with them.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
const V1_PREFIX: &[u8; 6] = b"PROXY ";
/// Longest header of version 1, in bytes.
const V1_BYTES_MAX: usize = 107;
/// Longest header of version 2, in bytes, including the fields after the addresses.
pub const V2_BYTES_MAX: usize = 4096;

/// Owner of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyHeader {
    Client(SocketAddr),
    /// The connection belongs to the proxy itself, such as a health check, or the proxy does not
    /// know its client.
    Local,
}

/// Reason why a connection has no usable header.
#[derive(Debug, thiserror::Error)]
pub enum ProxyHeaderError {
    #[error("it does not begin with a PROXY protocol header of version 1 or 2")]
    Missing,
    #[error("its PROXY protocol header is malformed: {0}")]
    Malformed(&'static str),
    #[error("its PROXY protocol header did not come within {0:?}")]
    Timeout(Duration),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reads the header from a new connection.
pub async fn read_header(
    socket: &mut TcpStream,
    limit: Duration,
) -> Result<ProxyHeader, ProxyHeaderError> {
    timeout(limit, read(socket)).await.unwrap_or(Err(ProxyHeaderError::Timeout(limit)))
}

async fn read(socket: &mut TcpStream) -> Result<ProxyHeader, ProxyHeaderError> {
    let (mut header, mut seen) = (Vec::new(), vec![0; V2_BYTES_MAX]);
    loop {
        let count = socket.peek(&mut seen).await?;
        if count == 0 {
            return Err(ProxyHeaderError::Missing);
        }
        let taken = header.len();
        header.extend_from_slice(&seen[..count]);
        let parsed = parse(&header)?;
        // While the header is incomplete, all bytes seen belong to it.
        let header_bytes = parsed.map_or(count, |(_, bytes)| bytes - taken);
        socket.read_exact(&mut seen[..header_bytes]).await?;
        if let Some((header, _)) = parsed {
            return Ok(header);
        }
    }
}

/// Returns whether the first bytes of a connection look like a header. The bytes stay on the
/// connection.
pub async fn starts_with_header(socket: &TcpStream) -> io::Result<bool> {
    let mut first = [0; SIGNATURE.len()];
    let count = socket.peek(&mut first).await?;
    let is_v2 = count >= 5 && SIGNATURE.starts_with(&first[..count]);
    Ok(is_v2 || first[..count].starts_with(V1_PREFIX))
}

/// Parses the header at the start of `bytes` and returns it with its length. Returns `None` while
/// the header is incomplete.
pub fn parse(bytes: &[u8]) -> Result<Option<(ProxyHeader, usize)>, ProxyHeaderError> {
    let starts_with =
        |prefix: &[u8]| bytes.iter().zip(prefix).all(|(byte, expected)| byte == expected);
    if starts_with(SIGNATURE) {
        return parse_v2(bytes);
    }
    if starts_with(V1_PREFIX) {
        return parse_v1(bytes);
    }
    Err(ProxyHeaderError::Missing)
}

fn parse_v1(bytes: &[u8]) -> Result<Option<(ProxyHeader, usize)>, ProxyHeaderError> {
    let malformed = ProxyHeaderError::Malformed;
    let Some(end) = memchr::memchr(b'\n', &bytes[..bytes.len().min(V1_BYTES_MAX)]) else {
        return if bytes.len() < V1_BYTES_MAX {
            Ok(None)
        } else {
            Err(malformed("its line is too long"))
        };
    };
    let line = bytes[..end]
        .strip_suffix(b"\r")
        .ok_or_else(|| malformed("its line does not end with CR LF"))?;
    let line = std::str::from_utf8(line).map_err(|_| malformed("its line is not text"))?;
    let mut fields = line.split(' ').skip(1);
    let family = fields.next();
    if family == Some("UNKNOWN") {
        return Ok(Some((ProxyHeader::Local, end + 1)));
    }
    let (Some(source), Some(destination)) = (fields.next(), fields.next()) else {
        return Err(malformed("addresses are missing"));
    };
    let (Some(port), Some(_), None) =
        (fields.next(), fields.next().filter(|port| is_port(port)), fields.next())
    else {
        return Err(malformed("it does not have two addresses and two ports"));
    };
    let address = |text: &str| match family {
        Some("TCP4") => text.parse().map(IpAddr::V4).ok(),
        Some("TCP6") => text.parse().map(IpAddr::V6).ok(),
        _ => None,
    };
    let source = address(source).zip(address(destination)).map(|(source, _)| source);
    let source =
        source.ok_or_else(|| malformed("its addresses are not of its family, TCP4 or TCP6"))?;
    let port = Some(port).filter(|port| is_port(port)).and_then(|port| port.parse().ok());
    let port = port.ok_or_else(|| malformed("a port is not a number up to 65535"))?;
    Ok(Some((ProxyHeader::Client(SocketAddr::new(source, port)), end + 1)))
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

fn parse_v2(bytes: &[u8]) -> Result<Option<(ProxyHeader, usize)>, ProxyHeaderError> {
    let malformed = ProxyHeaderError::Malformed;
    let Some([command, family, high, low]) = bytes.get(12..16) else { return Ok(None) };
    let length = usize::from(u16::from_be_bytes([*high, *low]));
    if 16 + length > V2_BYTES_MAX {
        return Err(malformed("it is too long"));
    }
    if !matches!(command, 0x20 | 0x21) {
        return Err(malformed("its version or command is not known"));
    }
    let Some(rest) = bytes.get(16..16 + length) else { return Ok(None) };
    let header = match (command, family) {
        (0x20, _) => ProxyHeader::Local,
        (_, 0x11) => {
            let (address, port) = rest
                .first_chunk::<4>()
                .zip(port_at(rest, 8))
                .filter(|_| length >= 12)
                .ok_or_else(|| malformed("its addresses are cut off"))?;
            ProxyHeader::Client(SocketAddr::new(Ipv4Addr::from(*address).into(), port))
        }
        (_, 0x21) => {
            let (address, port) = rest
                .first_chunk::<16>()
                .zip(port_at(rest, 32))
                .filter(|_| length >= 36)
                .ok_or_else(|| malformed("its addresses are cut off"))?;
            ProxyHeader::Client(SocketAddr::new(Ipv6Addr::from(*address).into(), port))
        }
        // An unspecified family or a Unix socket has no IP address.
        (_, 0x00 | 0x31) => ProxyHeader::Local,
        _ => return Err(malformed("its addresses are not TCP addresses")),
    };
    Ok(Some((header, 16 + length)))
}

fn port_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|port| u16::from_be_bytes(*port))
}
