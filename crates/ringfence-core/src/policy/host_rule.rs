//! `host[:port]` and `*.host`: how a policy names what can be reached.
//!
//! One canonical form, made when the rule is read, so that what is compared later is what was written here.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A host, or all hosts below one, at one port or at the ordinary ones.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostRule {
    below: bool,
    host: String,
    port: Option<NonZeroU16>,
}

/// Why a text names no host.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{text}` names no host: {why}; write `example.com`, `example.com:8443` or `*.example.com`")]
pub struct BadHostRule {
    text: String,
    why: &'static str,
}

impl FromStr for HostRule {
    type Err = BadHostRule;
    fn from_str(text: &str) -> Result<Self, BadHostRule> {
        let bad = |why| BadHostRule { text: text.escape_default().to_string(), why };
        if text.contains("://") || text.contains('/') {
            return Err(bad("it is an address with a scheme or a path"));
        }
        let (below, rest) = match text.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (host, port) = split_port(rest).ok_or_else(|| bad("the port is not a number from 1 to 65535"))?;
        let host = host.to_ascii_lowercase();
        let (host, is_address) = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(address) => {
                let address: Ipv6Addr = address.parse().map_err(|_| bad("it is not an IPv6 address"))?;
                (format!("[{address}]"), true)
            }
            None if !is_name(&host) => {
                return Err(bad("a host is made of letters, digits, `-` and single dots"));
            }
            // What ends in a number is an address to some readers, in forms that others do not know.
            None if ends_in_number(&host) => {
                let address: Ipv4Addr = host.parse().map_err(|_| bad("it is not an IPv4 address"))?;
                (address.to_string(), true)
            }
            None => (host, false),
        };
        if below && is_address {
            return Err(bad("an address has nothing below it"));
        }
        Ok(Self { below, host, port })
    }
}

fn split_port(text: &str) -> Option<(&str, Option<NonZeroU16>)> {
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
    last.bytes().all(|b| b.is_ascii_digit()) || last.starts_with("0x")
}

impl fmt::Display for HostRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.below { "*." } else { "" }, self.host)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl TryFrom<String> for HostRule {
    type Error = BadHostRule;
    fn try_from(text: String) -> Result<Self, BadHostRule> {
        text.parse()
    }
}

impl From<HostRule> for String {
    fn from(rule: HostRule) -> String {
        rule.to_string()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::HostRule;

    #[test]
    fn rules_have_one_spelling() {
        for (text, canonical) in [
            ("API.Example.com", "api.example.com"),
            ("*.example.com:8443", "*.example.com:8443"),
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("[0:0::1]:443", "[::1]:443"),
        ] {
            assert_eq!(text.parse::<HostRule>().unwrap().to_string(), canonical);
        }
    }

    #[test]
    fn what_two_readers_could_read_differently_is_refused() {
        for text in [
            "",
            "*",
            "*.",
            ".",
            "a.",
            ".a",
            "a..b",
            "evil\0.example.com",
            "https://a.b",
            "a/b",
            "a b",
            "a:0",
            "a:99999",
            "a:",
            "*.127.0.0.1",
            "*.[::1]",
            "[zz]",
            "-a.b",
            "exämple.com",
            "a.*.b",
            "a:+80",
            "2130706433",
            "0x7f.1",
            "010.0.0.1",
            "1.2.3",
            "127.1",
        ] {
            assert!(text.parse::<HostRule>().is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn a_printed_rule_reads_back(text in "[a-z*.:0-9\\[\\]-]{0,30}") {
            if let Ok(rule) = text.parse::<HostRule>() {
                prop_assert_eq!(rule.to_string().parse::<HostRule>().unwrap(), rule);
            }
        }
    }
}
