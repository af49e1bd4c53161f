//! Addresses that count as one client, for everything that is counted by address.

use std::net::IpAddr;

/// The address itself; of IPv6 its /64, as a site mostly has a whole one (RFC 6177).
pub fn client_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & !u128::from(u64::MAX)).into()),
        address => address,
    }
}
