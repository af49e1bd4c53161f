//! Whose process is at the other end of a TCP connection from this host, as the kernel's tables of sockets tell.
//!
//! Used by the admin listener: children that have users of their own do not come in. Invariant: a connection from this host
//! whose owner is not known is taken for that of a child.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
};

use super::Confinement;

const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

impl Confinement {
    /// Whether this connection is one of a child, or may be. Reads the whole table of sockets, so it may block for a moment.
    pub fn is_from_child(&self, peer: SocketAddr, local: SocketAddr) -> bool {
        if !self.may_have_users() || !is_of_this_host(peer.ip().to_canonical()) {
            return false;
        }
        let tables: Vec<String> = TABLES.iter().filter_map(|path| fs::read_to_string(path).ok()).collect();
        match owner(&tables, peer, local) {
            Some(user) => self.range.contains(&user),
            // Without a table there is nothing to tell users apart by; a socket that was given up has no owner any more.
            None => !tables.is_empty(),
        }
    }
}

/// Whether this host has the address.
fn is_of_this_host(address: IpAddr) -> bool {
    address.is_loopback() || UdpSocket::bind((address, 0)).is_ok()
}

/// Who owns the socket at that end.
fn owner(tables: &[String], peer: SocketAddr, local: SocketAddr) -> Option<u32> {
    let canonical = |address: SocketAddr| (address.ip().to_canonical(), address.port());
    let wanted = (canonical(peer), canonical(local));
    tables.iter().flat_map(|table| table.lines().skip(1)).find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().take(10).collect();
        let ends = (address(fields.get(1)?)?, address(fields.get(2)?)?);
        // A socket without an inode belongs to no process any more.
        let has_owner = fields.get(9)?.parse::<u64>().ok()? != 0;
        let user = fields.get(7)?.parse().ok()?;
        (ends == wanted && has_owner).then_some(user)
    })
}

/// An address as the tables have it: words of 32 bits in the byte order of the machine, and the port.
fn address(text: &str) -> Option<(IpAddr, u16)> {
    let (host, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| u32::from_str_radix(host.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    match host.len() {
        8 => Some((IpAddr::V4(Ipv4Addr::from(word(0)?)), port)),
        32 => {
            let mut octets = [0; 16];
            for (index, part) in octets.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(index * 8)?);
            }
            Some((IpAddr::V6(Ipv6Addr::from(octets)).to_canonical(), port))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn s03_the_owner_of_a_connection_of_this_host_is_found() {
        let own = rustix::process::geteuid().as_raw();
        for bind in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(bind) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, peer) = listener.accept().unwrap();
            let tables: Vec<String> = TABLES.iter().filter_map(|path| fs::read_to_string(path).ok()).collect();
            assert_eq!(owner(&tables, peer, server.local_addr().unwrap()), Some(own), "{bind}");
            // Given up, it is in the table still, and nobody's.
            drop(client);
            let tables: Vec<String> = TABLES.iter().filter_map(|path| fs::read_to_string(path).ok()).collect();
            assert_eq!(owner(&tables, peer, server.local_addr().unwrap()), None, "{bind}");
        }
        assert!(is_of_this_host(IpAddr::V4(Ipv4Addr::LOCALHOST)) && !is_of_this_host("192.0.2.1".parse().unwrap()));
    }
}
