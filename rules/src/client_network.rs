//! Addresses that count as one client, for all counts by address.

use std::net::IpAddr;

/// Returns an IPv4 address itself, and the /64 network of an IPv6 address, because a site mostly
/// has a whole one (RFC 6177).
pub fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & !u128::from(u64::MAX)).into()),
        address => address,
    }
}
