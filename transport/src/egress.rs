//! Egress policy: decides for one resolved address whether the broker may connect to it.
//!
//! The HTTP client's connector checks every address at every connect, so the policy also covers a
//! name that resolves differently later. The order is deny list, allow list, then the default. The
//! default refuses every address that is not ordinary public unicast. The policy judges an IPv6
//! address that stands for an IPv4 address by the IPv4 address.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;

/// A block of addresses, such as `10.0.0.0/8` or `fd00::/8`. A bare address is a block of one. All
/// bits after the prefix are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cidr(IpNet);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CidrError {
    #[error("{text:?} is not an address block, expected for example 10.0.0.0/8 or fd00::/8")]
    Address { text: String },
    #[error("the prefix length in {text:?} is not valid, expected 0 to {max}")]
    Prefix { text: String, max: u8 },
    #[error("{text:?} has bits set after its prefix, probably {meant} is intended")]
    HostBits { text: String, meant: Cidr },
}

impl Cidr {
    /// Returns true when the address lies in this block. Families never match each other.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }
}

/// Parses a block. Stricter than the parser of `ipnet`, which accepts host bits and leading zeros,
/// and refuses a bare address.
impl FromStr for Cidr {
    type Err = CidrError;

    fn from_str(text: &str) -> Result<Self, CidrError> {
        let (address, prefix) =
            text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: IpAddr =
            address.parse().map_err(|_| CidrError::Address { text: text.to_owned() })?;
        let whole = IpNet::from(address);
        let block = match prefix {
            None => Some(whole),
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().ok().and_then(|prefix| IpNet::new(address, prefix).ok())
            }
            Some(_) => None,
        };
        let block = block.ok_or_else(|| CidrError::Prefix {
            text: text.to_owned(),
            max: whole.max_prefix_len(),
        })?;
        if block.trunc() != block {
            return Err(CidrError::HostBits { text: text.to_owned(), meant: Self(block.trunc()) });
        }
        Ok(Self(block))
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The configured lists. The default value refuses loopback and everything else that is not public.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EgressPolicy {
    pub allow: Vec<Cidr>,
    pub deny: Vec<Cidr>,
    /// True if loopback is allowed when no list contains it.
    pub loopback: bool,
}

/// A refused address and the reason. The text is for operators and names the key to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("connecting to {address} is not allowed: {reason}")]
pub struct Denied {
    pub address: IpAddr,
    pub reason: DeniedReason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeniedReason {
    /// The deny list of the operator contains this block.
    DenyList(Cidr),
    /// Refused by default. The text names the kind of address.
    Default(&'static str),
}

impl fmt::Display for DeniedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DenyList(block) => {
                write!(f, "{block} is listed in egress.deny, which egress.allow does not override")
            }
            Self::Default(kind) => write!(f, "it is {kind}, which must be listed in egress.allow"),
        }
    }
}

impl EgressPolicy {
    /// Returns an error unless the broker may connect to this address.
    pub fn check(&self, address: IpAddr) -> Result<(), Denied> {
        let judged = embedded_v4(address).map_or(address, IpAddr::V4);
        if let Some(block) =
            self.deny.iter().find(|block| block.contains(judged) || block.contains(address))
        {
            return Err(Denied { address, reason: DeniedReason::DenyList(*block) });
        }
        if self.allow.iter().any(|block| block.contains(judged)) {
            return Ok(());
        }
        let kind = match judged {
            IpAddr::V4(v4) if v4.is_loopback() && self.loopback => None,
            IpAddr::V6(v6) if v6.is_loopback() && self.loopback => None,
            IpAddr::V4(v4) => special_v4(v4),
            IpAddr::V6(v6) => special_v6(v6),
        };
        kind.map_or(Ok(()), |kind| Err(Denied { address, reason: DeniedReason::Default(kind) }))
    }
}

/// Returns the IPv4 address that an IPv6 address stands for: mapped, compatible, NAT64 (RFC 6052)
/// and 6to4 (RFC 3056).
fn embedded_v4(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(v6) = address else { return None };
    let low = Ipv4Addr::from_bits((v6.to_bits() & u128::from(u32::MAX)) as u32);
    match v6.segments() {
        [0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => Some(low),
        // `::` and `::1` are the unspecified and the loopback address, not 0.0.0.0 and 0.0.0.1.
        [0, 0, 0, 0, 0, 0, ..] if v6.to_bits() > 1 => Some(low),
        [0x2002, ..] => {
            Some(Ipv4Addr::from_bits(((v6.to_bits() >> 80) & u128::from(u32::MAX)) as u32))
        }
        _ => None,
    }
}

/// Names the kind of a non-public IPv4 address (IANA special-purpose registry). Returns `None` for
/// public unicast.
fn special_v4(v4: Ipv4Addr) -> Option<&'static str> {
    Some(match v4.octets() {
        // The two well-known metadata services. The second address is in public address space.
        [169, 254, 169, 254] | [168, 63, 129, 16] => "a cloud metadata address",
        [0, 0, 0, 0] => "the unspecified address",
        [0, ..] => "in the reserved range 0.0.0.0/8",
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => "a private address (RFC 1918)",
        [100, 64..=127, ..] => "a carrier-grade NAT address (100.64.0.0/10)",
        [127, ..] => "a loopback address",
        [169, 254, ..] => "a link-local address",
        [192, 0, 0, _] | [192, 88, 99, _] => "in a protocol assignment range",
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => "a documentation address",
        [198, 18..=19, ..] => "a benchmarking address (198.18.0.0/15)",
        [224..=239, ..] => "a multicast address",
        [255, 255, 255, 255] => "the broadcast address",
        [240..=255, ..] => "in the reserved range 240.0.0.0/4",
        _ => return None,
    })
}

/// Names the kind of a non-public IPv6 address. No address outside 2000::/3 is public unicast, and
/// some blocks inside it are not public either.
fn special_v6(v6: Ipv6Addr) -> Option<&'static str> {
    if v6.is_unspecified() {
        return Some("the unspecified address");
    }
    if v6.is_loopback() {
        return Some("a loopback address");
    }
    Some(match v6.segments() {
        [0xfc00..=0xfdff, ..] => "a unique local address (fc00::/7)",
        [0xfe80..=0xfebf, ..] => "a link-local address",
        [0xfec0..=0xfeff, ..] => "a site-local address (fec0::/10)",
        [0xff00..=0xffff, ..] => "a multicast address",
        [0x64, 0xff9b, 1, ..] => "a local NAT64 address (64:ff9b:1::/48)",
        [0x2001, 0, ..] => "a Teredo address (2001::/32)",
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0x0fff, ..] => "a documentation address",
        [0x2001, 2, 0, ..] => "a benchmarking address (2001:2::/48)",
        [0x2000..=0x3fff, ..] => return None,
        _ => "outside the public unicast range 2000::/3",
    })
}
