//! Tests of the egress policy: address blocks, the default, and the order of the lists.

use std::net::IpAddr;

use transport::{Cidr, CidrError, EgressPolicy};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|_| panic!("{text} is not an address"))
}

fn blocks(texts: &[&str]) -> Vec<Cidr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[test]
fn address_blocks_are_parsed_printed_and_matched() {
    for text in ["10.0.0.0/8", "0.0.0.0/0", "192.0.2.7/32", "fd00::/8", "::/0", "::1/128"] {
        assert_eq!(text.parse::<Cidr>().unwrap().to_string(), text);
    }
    assert_eq!("192.0.2.7".parse::<Cidr>().unwrap().to_string(), "192.0.2.7/32");
    assert_eq!("::1".parse::<Cidr>().unwrap().to_string(), "::1/128");
    let cases = [
        ("10.0.0.0/8", "10.255.255.255", true),
        ("10.0.0.0/8", "11.0.0.0", false),
        ("0.0.0.0/0", "203.0.113.9", true),
        ("0.0.0.0/0", "::1", false),
        ("172.16.0.0/12", "172.31.255.255", true),
        ("172.16.0.0/12", "172.32.0.0", false),
        ("192.0.2.7", "192.0.2.7", true),
        ("192.0.2.7", "192.0.2.6", false),
        ("2001:db8::/33", "2001:db8:7fff::", true),
        ("2001:db8::/33", "2001:db8:8000::", false),
        ("::/0", "10.0.0.1", false),
    ];
    for (block, address, inside) in cases {
        assert_eq!(
            block.parse::<Cidr>().unwrap().contains(ip(address)),
            inside,
            "{address} in {block}"
        );
    }
}

#[test]
fn bad_blocks_are_refused_with_the_reason() {
    for text in ["", "10.0.0/8", "host/8", "10.0.0.0.0/8", " 10.0.0.0/8", "[::1]/128"] {
        assert!(matches!(text.parse::<Cidr>(), Err(CidrError::Address { .. })), "{text:?}");
    }
    for text in [
        "10.0.0.0/33",
        "10.0.0.0/",
        "10.0.0.0/+8",
        "10.0.0.0/-1",
        "10.0.0.0/8/8",
        "::/129",
        "::/999",
    ] {
        assert!(matches!(text.parse::<Cidr>(), Err(CidrError::Prefix { .. })), "{text:?}");
    }
    let error = "10.1.2.3/8".parse::<Cidr>().unwrap_err();
    assert_eq!(
        error.to_string(),
        "\"10.1.2.3/8\" has bits set after its prefix, probably 10.0.0.0/8 is intended"
    );
}

/// Addresses that are refused by default. The tests write each in every form an attacker may
/// choose.
const NOT_PUBLIC: &[&str] = &[
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "100.127.255.255",
    "100.100.100.200",
    "169.254.1.1",
    "169.254.169.254",
    "168.63.129.16",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
];
const NOT_PUBLIC_V6: &[&str] = &[
    "::",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "febf::1",
    "fec0::1",
    "ff02::1",
    "2001:db8::1",
    "3fff::1",
    "3fff:fff::1",
    "2001::1",
    "2001:2::1",
    "64:ff9b:1::1",
    "100::1",
    "5f00::1",
    "4000::1",
];
const PUBLIC: &[&str] = &[
    "1.1.1.1",
    "100.63.255.255",
    "100.128.0.0",
    "172.15.0.1",
    "172.32.0.1",
    "192.0.1.1",
    "198.17.0.1",
    "223.255.255.255",
];
const PUBLIC_V6: &[&str] = &[
    "2606:4700::1111",
    "2a00:1450::1",
    "2001:4860:4860::8888",
    "3fff:1000::1",
    "64:ff9b::101:101",
    "2002:101:101::1",
    "::ffff:1.1.1.1",
];

/// Returns the IPv6 addresses that stand for the IPv4 address: mapped, compatible, NAT64, 6to4.
fn disguises(v4: &str) -> Vec<IpAddr> {
    let IpAddr::V4(v4) = ip(v4) else { panic!("{v4} is not IPv4") };
    let bits = u128::from(v4.to_bits());
    let mut forms = vec![v4.to_ipv6_mapped().into(), ip(&format!("64:ff9b::{v4}"))];
    // `::0.0.0.0` and `::0.0.0.1` are independent IPv6 addresses.
    if bits > 1 {
        forms.push(IpAddr::V6(bits.into()));
    }
    forms.push(IpAddr::V6(((0x2002_u128 << 112) | (bits << 80) | 1).into()));
    forms
}

#[test]
fn only_public_addresses_are_permitted_by_default_in_every_spelling() {
    for loopback in [false, true] {
        let policy = EgressPolicy { loopback, ..EgressPolicy::default() };
        for text in NOT_PUBLIC {
            for address in disguises(text).into_iter().chain([ip(text)]) {
                assert!(policy.check(address).is_err(), "{address} for {text}");
            }
        }
        for text in NOT_PUBLIC_V6 {
            assert!(policy.check(ip(text)).is_err(), "{text}");
        }
        for text in PUBLIC {
            for address in disguises(text).into_iter().chain([ip(text)]) {
                assert_eq!(policy.check(address), Ok(()), "{address} for {text}");
            }
        }
        for text in PUBLIC_V6 {
            assert_eq!(policy.check(ip(text)), Ok(()), "{text}");
        }
    }
}

#[test]
fn loopback_follows_only_its_own_setting() {
    let closed = EgressPolicy::default();
    let open = EgressPolicy { loopback: true, ..EgressPolicy::default() };
    for address in disguises("127.0.0.1").into_iter().chain([
        ip("127.0.0.1"),
        ip("127.255.255.254"),
        ip("::1"),
    ]) {
        assert!(closed.check(address).is_err(), "{address}");
        assert_eq!(open.check(address), Ok(()), "{address}");
    }
}

#[test]
fn deny_wins_over_allow_and_allow_over_the_default() {
    let policy = EgressPolicy {
        allow: blocks(&["10.0.0.0/8", "169.254.169.254", "fd00::/8", "::1"]),
        deny: blocks(&[
            "10.9.0.0/16",
            "1.1.1.0/24",
            "127.0.0.0/8",
            "2606:4700::/32",
            "64:ff9b::/96",
        ]),
        loopback: true,
    };
    for allowed in ["10.0.0.1", "::ffff:10.0.0.1", "169.254.169.254", "fd12::1", "::1", "8.8.8.8"] {
        assert_eq!(policy.check(ip(allowed)), Ok(()), "{allowed}");
    }
    for denied in [
        "10.9.1.1",
        "::ffff:10.9.1.1",
        "1.1.1.1",
        "127.0.0.1",
        "2606:4700::1",
        "64:ff9b::8.8.8.8",
        "169.254.169.253",
        "192.168.0.1",
    ] {
        assert!(policy.check(ip(denied)).is_err(), "{denied}");
    }
}

#[test]
fn allowing_all_of_ipv6_does_not_permit_mapped_ipv4_addresses() {
    let policy = EgressPolicy { allow: blocks(&["::/0"]), ..EgressPolicy::default() };
    assert_eq!(policy.check(ip("fd00::1")), Ok(()));
    for address in disguises("169.254.169.254") {
        assert!(policy.check(address).is_err(), "{address}");
    }
}

#[test]
fn a_refusal_names_the_key_to_change() {
    let policy = EgressPolicy { deny: blocks(&["1.1.1.0/24"]), ..EgressPolicy::default() };
    assert_eq!(
        policy.check(ip("10.0.0.1")).unwrap_err().to_string(),
        "connecting to 10.0.0.1 is not allowed: it is a private address (RFC 1918), which must be listed in egress.allow"
    );
    assert_eq!(
        policy.check(ip("1.1.1.1")).unwrap_err().to_string(),
        "connecting to 1.1.1.1 is not allowed: 1.1.1.0/24 is listed in egress.deny, which egress.allow does not override"
    );
}
