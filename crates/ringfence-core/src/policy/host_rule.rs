//! `host[:port]` and `*.host`: how a policy names what can be reached.
//!
//! One canonical form, made when the rule is read, so that what is compared later is what was written here.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::host::{Host, InvalidHost, split_port};

/// A host, or all hosts below one, at one port or at the ordinary ones.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostRule {
    below: bool,
    host: Host,
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
        let host: Host = host.parse().map_err(|InvalidHost { why }| bad(why))?;
        if below && matches!(host, Host::Address(_)) {
            return Err(bad("an address has nothing below it"));
        }
        Ok(Self { below, host, port })
    }
}

impl HostRule {
    /// The ports of a rule that names none.
    pub const ORDINARY_PORTS: [u16; 2] = [80, 443];

    /// Whether it means this host at this port.
    pub fn matches(&self, host: &Host, port: u16) -> bool {
        let port = self.port.map_or(Self::ORDINARY_PORTS.contains(&port), |named| named.get() == port);
        port && self.matches_host(host)
    }

    /// Whether it means this host, at whichever ports.
    pub fn matches_host(&self, host: &Host) -> bool {
        match (self.below, host, &self.host) {
            (false, host, named) => host == named,
            (true, Host::Name(name), Host::Name(above)) => {
                name.strip_suffix(above.as_str()).is_some_and(|rest| rest.ends_with('.'))
            }
            (true, ..) => false,
        }
    }

    /// Whether it forbids this host at this port. One that names no port forbids all of them.
    pub fn forbids(&self, host: &Host, port: u16) -> bool {
        self.matches(host, self.port.map_or(443, |_| port))
    }

    /// Whether it names a port.
    pub fn names_port(&self) -> bool {
        self.port.is_some()
    }
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
