//! What a run may reach, host by host and address by address. Pure: whoever resolves and dials asks here first, and dials
//! nothing but what was checked.

use std::net::IpAddr;

use super::host::{Host, is_public};
use super::{HostRule, Network, NetworkMode};

/// The answer to a wish to reach a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It may be reached.
    Allowed {
        /// By this rule, as it is written.
        rule: String,
        /// Whether the rule names the port.
        port_named: bool,
    },
    /// It may not.
    Denied(Denial),
}

/// Why something may not be reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// It is denied by name.
    #[error("{0} is denied by the policy")]
    Named(HostRule),
    /// Nothing allows it.
    #[error("nothing in the policy allows {host}:{port}")]
    Unlisted {
        /// The host.
        host: Host,
        /// The port.
        port: u16,
    },
    /// It is a private address, and not named.
    #[error("{host} is at {address}, which is not a public address and is not named in the policy")]
    Private {
        /// The host.
        host: Host,
        /// Where it is.
        address: IpAddr,
    },
}

impl Denial {
    /// A stable name for programs.
    pub fn rule(&self) -> &'static str {
        match self {
            Denial::Named(_) => "denied",
            Denial::Unlisted { .. } => "unlisted",
            Denial::Private { .. } => "private-address",
        }
    }
}

impl Network {
    /// Whether a host may be reached at a port, before its address is known.
    pub fn judge(&self, host: &Host, port: u16) -> Verdict {
        if let Some(rule) = self.deny.iter().find(|rule| rule.forbids(host, port)) {
            return Verdict::Denied(Denial::Named(rule.clone()));
        }
        let found = match self.mode {
            NetworkMode::None => None,
            NetworkMode::Allow => self.allow.iter().find(|rule| rule.matches(host, port)),
            NetworkMode::Open => return Verdict::Allowed { rule: "open".into(), port_named: true },
        };
        match found {
            Some(rule) => Verdict::Allowed { rule: rule.to_string(), port_named: rule.names_port() },
            None => Verdict::Denied(Denial::Unlisted { host: host.clone(), port }),
        }
    }

    /// Whether an address of an allowed host may be dialled. What a name leads to is nobody's promise, so an address that is
    /// not public has to be named itself.
    pub fn judge_address(&self, host: &Host, address: IpAddr, port: u16) -> Result<(), Denial> {
        let address = address.to_canonical();
        let itself = Host::Address(address);
        if let Some(rule) = self.deny.iter().find(|rule| rule.forbids(&itself, port)) {
            return Err(Denial::Named(rule.clone()));
        }
        if is_public(address) || self.allow.iter().any(|rule| rule.matches(&itself, port)) {
            return Ok(());
        }
        Err(Denial::Private { host: host.clone(), address })
    }
}

#[cfg(test)]
mod tests {
    use super::{Denial, Verdict};
    use crate::policy::{Network, NetworkMode};

    fn network(allow: &[&str], deny: &[&str]) -> Network {
        let rules = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        Network {
            mode: NetworkMode::Allow,
            allow: rules(allow),
            deny: rules(deny),
            ask: false,
            local: Vec::new(),
        }
    }

    fn allowed(network: &Network, host: &str, port: u16) -> bool {
        matches!(network.judge(&host.parse().unwrap(), port), Verdict::Allowed { .. })
    }

    #[test]
    fn an_empty_list_allows_nothing() {
        assert!(!allowed(&network(&[], &[]), "example.com", 443));
    }

    #[test]
    fn a_rule_means_its_host_its_ports_and_nothing_else() {
        let network = network(&["example.com", "db.example.com:5432", "*.deep.org"], &[]);
        for (host, port, expected) in [
            ("example.com", 443, true),
            ("EXAMPLE.com", 80, true),
            ("example.com", 22, false),
            ("www.example.com", 443, false),
            ("notexample.com", 443, false),
            ("db.example.com", 5432, true),
            ("db.example.com", 443, false),
            ("a.deep.org", 443, true),
            ("a.b.deep.org", 443, true),
            ("deep.org", 443, false),
            ("xdeep.org", 443, false),
        ] {
            assert_eq!(allowed(&network, host, port), expected, "{host}:{port}");
        }
    }

    #[test]
    fn what_is_denied_stays_denied() {
        let network = network(&["*.example.com"], &["evil.example.com", "*.bad.example.com"]);
        assert!(allowed(&network, "good.example.com", 443));
        assert!(!allowed(&network, "evil.example.com", 443));
        assert!(!allowed(&network, "x.bad.example.com", 443));
        let network = self::network(&["*.example.com:8443"], &["evil.example.com"]);
        assert!(!allowed(&network, "evil.example.com", 8443), "a rule without a port denies all ports");
    }

    #[test]
    fn a_private_address_has_to_be_named_itself() {
        let host = "example.com".parse().unwrap();
        let network = network(&["example.com", "10.0.0.5"], &["8.8.8.8"]);
        let judge = |address: &str| network.judge_address(&host, address.parse().unwrap(), 443);
        assert_eq!(judge("93.184.216.34"), Ok(()));
        assert_eq!(judge("10.0.0.5"), Ok(()));
        assert_eq!(judge("::ffff:10.0.0.5"), Ok(()));
        assert!(matches!(judge("10.0.0.6"), Err(Denial::Private { .. })));
        assert!(matches!(judge("169.254.169.254"), Err(Denial::Private { .. })));
        assert!(matches!(judge("8.8.8.8"), Err(Denial::Named(_))));
    }
}
