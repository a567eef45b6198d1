//! The host name of the dashboard: `<label>.localhost`, with a random label for each login.
//!
//! Browsers send a cookie to every port of its host. Under 127.0.0.1 each program of the machine that serves a page, a run with an
//! open network too, would receive the session of the dashboard. Browsers resolve every name below `localhost` to loopback by
//! themselves, so a name that only the daemon and the logged-in browser know gives the dashboard a host of its own. A session is
//! valid under the host that it was opened for and under no other.

use std::net::IpAddr;

use ring::rand::{SecureRandom, SystemRandom};

/// Random bytes of a label: 160 bits.
const LABEL_BYTES: usize = 20;
/// The digits of a label: base32 in lower case.
const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// The domain whose names browsers resolve to loopback.
const DOMAIN: &str = "localhost";

/// A host name that only the daemon and one browser know.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct DashboardName(String);

impl DashboardName {
    /// A new name. `None` if the system gives no random bytes.
    pub(crate) fn random() -> Option<Self> {
        let mut bytes = [0; LABEL_BYTES];
        SystemRandom::new().fill(&mut bytes).ok()?;
        Some(Self(format!("{}.{DOMAIN}", base32(&bytes))))
    }

    /// The name, without a port.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a `Host` header has this name, with any port: a tunnel may end at another one.
    pub(crate) fn is_host(&self, host: &str) -> bool {
        split(host).is_some_and(|(name, _)| name.eq_ignore_ascii_case(&self.0))
    }

    /// The address of a path under this name, at the port of a `Host` header.
    pub(crate) fn address(&self, host: &str, path: &str) -> String {
        let port = split(host).and_then(|(_, port)| port);
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        format!("http://{}{port}{path}", self.0)
    }
}

fn base32(bytes: &[u8]) -> String {
    let bit = |index: usize| bytes.get(index / 8).is_some_and(|byte| byte >> (7 - index % 8) & 1 == 1);
    let digit =
        |start: usize| (start..start + 5).fold(0, |digit, index| digit << 1 | usize::from(bit(index)));
    (0..bytes.len() * 8).step_by(5).map(|start| char::from(DIGITS[digit(start)])).collect()
}

/// Whether a `Host` header has a name under which other programs of this machine serve pages too: an address of loopback,
/// `localhost`, or a name below it. What cannot be read is one. Other names may lead to loopback as well: the connection tells
/// (`guard::From::is_direct_on_loopback`).
pub(crate) fn is_shared_with_this_machine(host: &str) -> bool {
    let Some((name, _)) = split(host) else { return true };
    let name = name.trim_end_matches('.');
    if let Ok(address) = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        let address = address.to_canonical();
        return address.is_loopback() || address.is_unspecified();
    }
    let last = name.rsplit('.').next().unwrap_or_default();
    // Browsers read shortened numbers as addresses: 127.1, 0x7f.0.0.1, 2130706433.
    let is_number = last.starts_with(|digit: char| digit.is_ascii_digit());
    name.is_empty() || is_number || last.eq_ignore_ascii_case(DOMAIN)
}

/// The name and the port of a `Host` header; an IPv6 address stays in its brackets.
fn split(host: &str) -> Option<(&str, Option<u16>)> {
    let end = if host.starts_with('[') { host.find(']')? + 1 } else { host.find(':').unwrap_or(host.len()) };
    let (name, rest) = host.split_at(end);
    match rest.strip_prefix(':') {
        Some(port) => Some((name, Some(port.parse().ok()?))),
        None => rest.is_empty().then_some((name, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::{DashboardName, base32, is_shared_with_this_machine};

    #[test]
    fn name_is_random_and_a_valid_label() {
        let (one, other) = (DashboardName::random().unwrap(), DashboardName::random().unwrap());
        assert!(one != other);
        let label = one.as_str().strip_suffix(".localhost").unwrap();
        assert_eq!(label.len(), 32);
        assert!(label.bytes().all(|byte| byte.is_ascii_lowercase() || (b'2'..=b'7').contains(&byte)));
        assert_eq!(base32(b"foobar"), "mzxw6ytboi");
        assert_eq!(base32(&[0xff; 5]), "77777777");
    }

    #[test]
    fn name_is_compared_without_its_port() {
        let name = DashboardName("abc.localhost".to_owned());
        for host in ["abc.localhost", "ABC.localhost:4301", "abc.localhost:1"] {
            assert!(name.is_host(host), "{host}");
        }
        for host in
            ["", "localhost:4301", "x.abc.localhost", "abc.localhost:x", "abc.localhost.", "[::1]:4301"]
        {
            assert!(!name.is_host(host), "{host}");
        }
        assert_eq!(name.address("127.0.0.1:4301", "/ui"), "http://abc.localhost:4301/ui");
        assert_eq!(name.address("[::1]:8080", "/ui"), "http://abc.localhost:8080/ui");
        assert_eq!(name.address("localhost", "/ui"), "http://abc.localhost/ui");
    }

    #[test]
    fn names_that_lead_to_loopback_are_shared() {
        for host in [
            "",
            ":4301",
            "127.0.0.1:4301",
            "127.1:4301",
            "2130706433",
            "0x7f.0.0.1",
            "0.0.0.0:4301",
            "[::1]:4301",
            "[::]:4301",
            "[::ffff:127.0.0.1]:4301",
            "localhost:4301",
            "localhost.:4301",
            "abc.LOCALHOST:4301",
            "box.example:port",
            "[::1",
        ] {
            assert!(is_shared_with_this_machine(host), "{host}");
        }
        for host in ["box.example:4301", "box", "10.0.0.7:4301", "[2001:db8::7]:4301", "localhost.example"] {
            assert!(!is_shared_with_this_machine(host), "{host}");
        }
    }
}
