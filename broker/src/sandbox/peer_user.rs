//! Finds the user of the process at the other end of a TCP connection from this host, from the
//! kernel.
//!
//! The admin listener uses it to refuse children with users of their own. A query for the single
//! socket comes first (sock_diag, netlink). If the kernel does not support it, the tables of all
//! sockets are read, which takes longer. Invariant: once this process has children with users of
//! their own, a connection from this host with an unknown owner counts as that of a child.

use std::{
    fs,
    io::{self, Read as _},
    net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket},
    time::Duration,
};

use memchr::memmem;
use socket2::{Domain, Protocol, Socket, Type};

use super::Confinement;

const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

// linux/netlink.h, linux/sock_diag.h and linux/inet_diag.h
const AF_NETLINK: i32 = 16;
const NETLINK_SOCK_DIAG: i32 = 4;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const IPPROTO_TCP: u8 = 6;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// Sizes of a message header, and of the identity of one socket.
const HEADER_BYTES: usize = 16;
const SOCKET_BYTES: usize = 48;
const ENOENT: i32 = 2;
/// Time limit for the kernel's answer, which usually comes at once.
const ANSWER_WAIT: Duration = Duration::from_secs(1);

impl Confinement {
    /// Returns whether this connection is one of a child, or may be. May block briefly.
    pub fn is_from_child(&self, peer: SocketAddr, local: SocketAddr) -> bool {
        if !self.may_have_users() || !is_of_this_host(peer) {
            return false;
        }
        match owner(peer, local) {
            Some(user) => self.range.contains(&user),
            // A closed socket has no owner. A host that shows none may be without children.
            None => self.has_users(),
        }
    }
}

/// Returns whether this host has the address.
fn is_of_this_host(peer: SocketAddr) -> bool {
    let address = peer.ip().to_canonical();
    // A link-local address can be bound only together with its interface.
    let bound = match address {
        IpAddr::V4(ip) => SocketAddr::from((ip, 0)),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, 0, 0, scope(peer)).into(),
    };
    address.is_loopback() || UdpSocket::bind(bound).is_ok()
}

/// Returns the index of the interface of a link-local address. Other addresses have 0.
fn scope(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(address) => address.scope_id(),
    }
}

/// Returns the user that owns the socket at that end.
fn owner(peer: SocketAddr, local: SocketAddr) -> Option<u32> {
    query_kernel(peer, local).unwrap_or_else(|_| look_up(peer, local))
}

/// Queries the kernel for the single socket. Returns an error if the kernel does not support the
/// query.
fn query_kernel(peer: SocketAddr, local: SocketAddr) -> io::Result<Option<u32>> {
    let mut socket = Socket::new(
        Domain::from(AF_NETLINK),
        Type::DGRAM,
        Some(Protocol::from(NETLINK_SOCK_DIAG)),
    )?;
    socket.set_read_timeout(Some(ANSWER_WAIT))?;
    socket.send(&question(peer, local))?;
    let mut answer = [0; 1_024];
    let count = socket.read(&mut answer)?;
    let answer = &answer[..count];
    let number = |at: usize| -> io::Result<u32> {
        let bytes = answer.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes
            .map(u32::from_ne_bytes)
            .ok_or_else(|| io::Error::other("the answer of the kernel is too short"))
    };
    let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
    match kind {
        // After the socket: a time, two queues, the user, the inode. A socket without an inode
        // belongs to no process.
        Some(SOCK_DIAG_BY_FAMILY) => {
            let user_at = HEADER_BYTES + 4 + SOCKET_BYTES + 12;
            let (user, inode) = (number(user_at)?, number(user_at + 4)?);
            Ok((inode != 0).then_some(user))
        }
        Some(NLMSG_ERROR) if number(HEADER_BYTES)?.cast_signed() == -ENOENT => Ok(None),
        _ => Err(io::Error::other("the kernel sent an unexpected answer")),
    }
}

/// Returns an `inet_diag_req_v2` for the socket with these two ends, in any state.
fn question(peer: SocketAddr, local: SocketAddr) -> Vec<u8> {
    let octets = |address: SocketAddr| -> (u8, [u8; 16]) {
        let mut octets = [0; 16];
        match address.ip().to_canonical() {
            IpAddr::V4(ip) => {
                octets[..4].copy_from_slice(&ip.octets());
                (AF_INET, octets)
            }
            IpAddr::V6(ip) => (AF_INET6, ip.octets()),
        }
    };
    let ((family, source), (_, destination)) = (octets(peer), octets(local));
    let mut message = Vec::with_capacity(HEADER_BYTES + 8 + SOCKET_BYTES);
    message.extend(((HEADER_BYTES + 8 + SOCKET_BYTES) as u32).to_ne_bytes());
    message.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    message.extend([0; 8]); // sequence and sender
    message.extend([family, IPPROTO_TCP, 0, 0]);
    message.extend(u32::MAX.to_ne_bytes()); // every state
    message.extend(peer.port().to_be_bytes());
    message.extend(local.port().to_be_bytes());
    message.extend(source);
    message.extend(destination);
    // The kernel finds a socket with a link-local end only by its interface. 0 is any interface.
    message.extend(scope(peer).max(scope(local)).to_ne_bytes());
    message.extend([0xff; 8]); // any cookie
    message
}

/// Returns the owner from the tables of all sockets.
fn look_up(peer: SocketAddr, local: SocketAddr) -> Option<u32> {
    let (peer, local) = (SocketEnds::of(peer), SocketEnds::of(local));
    // An IPv4 address is in the table of IPv6 if its socket is an IPv6 socket.
    let short = [TABLES[0]]
        .into_iter()
        .filter_map(|table| Some((table, peer.short.as_deref()?, local.short.as_deref()?)));
    short.chain([(TABLES[1], peer.long.as_str(), local.long.as_str())]).find_map(
        |(table, peer, local)| {
            let rows = fs::read(table).ok()?;
            owner_in(&rows, &format!(" {peer} {local} "))
        },
    )
}

/// Returns the owner from a table. Columns after the two ends: state, queues, timer, retransmits,
/// user, timeout, inode.
fn owner_in(rows: &[u8], ends: &str) -> Option<u32> {
    let rest = &rows[memmem::find(rows, ends.as_bytes())? + ends.len()..];
    let row = rest.split(|byte| *byte == b'\n').next()?;
    let mut fields = std::str::from_utf8(row).ok()?.split_ascii_whitespace().skip(4);
    let user = fields.next()?.parse().ok()?;
    // A socket without an inode belongs to no process.
    let has_owner = fields.nth(1)?.parse::<u64>().ok()? != 0;
    has_owner.then_some(user)
}

/// One end of a connection in the format of the tables: 32-bit words in the byte order of the
/// machine, and the port.
struct SocketEnds {
    /// The address in IPv4 format, if it is an IPv4 address.
    short: Option<String>,
    long: String,
}

impl SocketEnds {
    fn of(address: SocketAddr) -> Self {
        let hex_words = |octets: &[u8]| -> String {
            let hex_word = |part: &[u8]| {
                format!("{:08X}", u32::from_ne_bytes([part[0], part[1], part[2], part[3]]))
            };
            octets.chunks_exact(4).map(hex_word).collect()
        };
        let port = address.port();
        let (short, long) = match address.ip().to_canonical() {
            IpAddr::V4(ip) => {
                (Some(hex_words(&ip.octets())), hex_words(&ip.to_ipv6_mapped().octets()))
            }
            IpAddr::V6(ip) => (None, hex_words(&ip.octets())),
        };
        Self {
            short: short.map(|short| format!("{short}:{port:04X}")),
            long: format!("{long}:{port:04X}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv6Addr, TcpListener, TcpStream};

    use super::*;

    /// Returns a link-local address of this machine with its interface.
    fn link_local() -> Option<SocketAddr> {
        let table = fs::read_to_string("/proc/net/if_inet6").ok()?;
        // Columns: address, index of the interface, prefix, scope, flags, name.
        let rows = table.lines().map(|row| row.split_ascii_whitespace().collect::<Vec<_>>());
        rows.filter(|row| row.get(3) == Some(&"20")).find_map(|row| {
            let address = Ipv6Addr::from_bits(u128::from_str_radix(row[0], 16).ok()?);
            let interface = u32::from_str_radix(row[1], 16).ok()?;
            Some(SocketAddrV6::new(address, 0, 0, interface).into())
        })
    }

    #[test]
    fn s03_the_owner_of_a_connection_of_this_host_is_found() {
        let own = rustix::process::geteuid().as_raw();
        let mut binds: Vec<SocketAddr> =
            ["127.0.0.1:0", "[::1]:0", "[::]:0"].map(|bind| bind.parse().unwrap()).into();
        match link_local() {
            Some(address) => binds.push(address),
            None => eprintln!("skipped: this machine has no IPv6 link-local address"),
        }
        for bind in binds {
            let Ok(listener) = TcpListener::bind(bind) else { continue };
            let address = listener.local_addr().unwrap();
            // The last one is an IPv4 address at an IPv6 socket.
            let to = if address.ip().is_unspecified() {
                SocketAddr::from(([127, 0, 0, 1], address.port()))
            } else {
                address
            };
            let client = TcpStream::connect(to).unwrap();
            let (server, peer) = listener.accept().unwrap();
            let local = server.local_addr().unwrap();
            assert!(is_of_this_host(peer), "{bind}");
            assert_eq!(
                (owner(peer, local), look_up(peer, local)),
                (Some(own), Some(own)),
                "{bind}"
            );
            assert!(
                query_kernel(peer, local).is_ok_and(|found| found == Some(own)),
                "{bind}: this kernel has no sock_diag"
            );
            // After the close it is still in the table, but without an owner.
            drop(client);
            assert_eq!((owner(peer, local), look_up(peer, local)), (None, None), "{bind}");
        }
        for (address, is_here) in [
            ("127.0.0.1:9", true),
            ("[::ffff:127.0.0.1]:9", true),
            ("192.0.2.1:9", false),
            ("[2001:db8::1]:9", false),
            ("[fe80::1%4000000]:9", false),
        ] {
            assert_eq!(is_of_this_host(address.parse().unwrap()), is_here, "{address}");
        }
    }
}
