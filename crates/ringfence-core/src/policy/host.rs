//! A host in its one canonical form. What is compared, resolved and dialled is always this, never the text that came.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;
use std::str::FromStr;

/// A name or an address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// Lower case, in ASCII, without a trailing dot.
    Name(String),
    /// An IPv4 address that came as an IPv6 one is an IPv4 address.
    Address(IpAddr),
}

/// Why a text is no host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct InvalidHost {
    pub(super) why: &'static str,
}

impl FromStr for Host {
    type Err = InvalidHost;
    fn from_str(text: &str) -> Result<Self, InvalidHost> {
        let bad = |why| InvalidHost { why };
        if let Some(address) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
            let address: Ipv6Addr = address.parse().map_err(|_| bad("it is not an IPv6 address"))?;
            return Ok(Host::Address(IpAddr::V6(address).to_canonical()));
        }
        if !is_name(text) {
            return Err(bad("a host is made of letters, digits, `-` and single dots"));
        }
        // What ends in a number is an address to some readers, in forms that others do not know.
        if ends_in_number(text) {
            let address: Ipv4Addr = text.parse().map_err(|_| bad("it is not an IPv4 address"))?;
            return Ok(Host::Address(address.into()));
        }
        Ok(Host::Name(text.to_ascii_lowercase()))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Name(name) => f.write_str(name),
            Host::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Host::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

/// `host[:port]`, as in the first line of a request.
pub fn parse_authority(text: &str) -> Result<(Host, Option<u16>), InvalidHost> {
    let (host, port) =
        split_port(text).ok_or(InvalidHost { why: "the port is not a number from 1 to 65535" })?;
    Ok((host.parse()?, port.map(NonZeroU16::get)))
}

pub(super) fn split_port(text: &str) -> Option<(&str, Option<NonZeroU16>)> {
    let host_end = text.rfind(']').map_or(0, |end| end + 1);
    match text[host_end..].rfind(':') {
        None => Some((text, None)),
        Some(colon) => {
            let port = &text[host_end + colon + 1..];
            let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
            digits.then(|| port.parse().ok()).flatten().map(|port| (&text[..host_end + colon], Some(port)))
        }
    }
}

/// DNS labels only: no NUL, no trailing dot, no empty label, nothing that two readers could read differently.
fn is_name(host: &str) -> bool {
    host.len() <= 253
        && host.split('.').all(|label| {
            (1..=63).contains(&label.len())
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        })
}

fn ends_in_number(host: &str) -> bool {
    let last = host.rsplit('.').next().unwrap_or_default();
    last.bytes().all(|b| b.is_ascii_digit())
        || last.get(..2).is_some_and(|start| start.eq_ignore_ascii_case("0x"))
}

/// Whether an address belongs to everybody: not this machine, its neighbours, the machine's metadata, or nobody.
pub fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

/// Where Azure's machines find their agent and their metadata, in the midst of public addresses.
const AZURE_PLATFORM: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let shared = a == 100 && (64..128).contains(&b);
    let protocols = (a, b, c) == (192, 0, 0);
    let benchmark = a == 198 && (18..20).contains(&b);
    let relay = (a, b, c) == (192, 88, 99);
    !(a == 0
        || a >= 224
        || address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation()
        || shared
        || protocols
        || benchmark
        || relay
        || address == AZURE_PLATFORM)
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    let embedded = match segments {
        // NAT64 and 6to4 lead to an IPv4 address.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => Some((high, low)),
        _ => None,
    };
    if let Some((high, low)) = embedded {
        let [[a, b], [c, d]] = [high.to_be_bytes(), low.to_be_bytes()];
        return is_public_v4(Ipv4Addr::new(a, b, c, d));
    }
    // Of all addresses only these are given to anybody; of them Teredo, documentation and others are not.
    let global = segments[0] & 0xe000 == 0x2000;
    global && !matches!(segments, [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Host, is_public, parse_authority};

    #[test]
    fn hosts_have_one_spelling() {
        for (text, canonical) in [
            ("API.Example.com", "api.example.com"),
            ("xn--mnchen-3ya.de", "xn--mnchen-3ya.de"),
            ("[::FFFF:127.0.0.1]", "127.0.0.1"),
            ("[2001:DB8:0:0::1]", "[2001:db8::1]"),
            ("1.2.3.4", "1.2.3.4"),
        ] {
            assert_eq!(text.parse::<Host>().unwrap().to_string(), canonical);
        }
    }

    #[test]
    fn what_two_readers_could_read_differently_is_no_host() {
        for text in [
            "",
            ".",
            "a.",
            "a..b",
            "a\0.b",
            "a b",
            "a%00b",
            "münchen.de",
            "a_b.c",
            "user@a.b",
            "0x7f.0.0.1",
            "0X7F000001",
            "017700000001",
            "2130706433",
            "127.1",
            "127.0.0.01",
            "1.2.3.4.",
            "::1",
            "[::1",
            "[fe80::1%eth0]",
            "[1.2.3.4]",
            "a.b/c",
            "a.b#c",
            "a.b?c",
            "a.b\\c",
            "*.a.b",
        ] {
            assert!(text.parse::<Host>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn only_everybodys_addresses_are_public() {
        for address in ["8.8.8.8", "2606:4700::1111", "64:ff9b::808:808"] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
        for address in [
            "0.0.0.0",
            "10.1.2.3",
            "127.0.0.1",
            "127.255.0.1",
            "169.254.169.254",
            "168.63.129.16",
            "172.16.0.1",
            "192.168.1.1",
            "100.64.0.1",
            "100.100.100.200",
            "192.0.0.192",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:10.0.0.1",
            "fe80::1",
            "fc00::1",
            "fd00:ec2::254",
            "ff02::1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:db8::1",
            "2001::1",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
    }

    proptest! {
        #[test]
        fn a_host_reads_back_as_it_is_printed(text in "\\PC{0,40}") {
            if let Ok(host) = text.parse::<Host>() {
                prop_assert_eq!(host.to_string().parse::<Host>().unwrap(), host);
            }
        }

        #[test]
        fn a_host_is_plain(text in "[a-zA-Z0-9.:%@\\[\\]\\\\/\\x00-]{0,40}") {
            if let Ok((host, _)) = parse_authority(&text) {
                let printed = host.to_string();
                prop_assert!(printed.bytes().all(|b| b.is_ascii_graphic() && !b"@%/\\".contains(&b)), "{}", printed);
                prop_assert_eq!(printed.to_ascii_lowercase(), printed);
            }
        }
    }
}
