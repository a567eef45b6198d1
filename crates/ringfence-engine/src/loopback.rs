//! Variables that name a service of the host by its loopback, where the run's own loopback is another.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// Variables whose values are addresses also without a scheme.
const KNOWN: [&str; 2] = ["DATABASE_URL", "REDIS_URL"];

/// A variable that names a port of the host's loopback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Local {
    pub(crate) name: String,
    pub(crate) port: Option<u16>,
}

/// Puts the host's name in the place of every loopback address, in all variables that hold addresses.
pub(crate) fn rewrite(env: &mut BTreeMap<String, String>, more: &[String], host: &str) {
    for (name, value) in env.iter_mut().filter(|(name, _)| holds_addresses(name, more)) {
        if let Some(address) = Address::parse(value, is_known(name, more)) {
            *value = address.with(host);
        }
    }
}

/// The variables that name the host's loopback, and which of its ports.
pub(crate) fn locals(env: &BTreeMap<String, String>, more: &[String]) -> Vec<Local> {
    let mut found = Vec::new();
    for (name, value) in env.iter().filter(|(name, _)| holds_addresses(name, more)) {
        let hosts =
            Address::parse(value, is_known(name, more)).map(|address| address.hosts).unwrap_or_default();
        for host in hosts.iter().filter(|host| host.is_local()) {
            found.push(Local { name: name.clone(), port: host.port.and_then(|port| port.parse().ok()) });
        }
    }
    found
}

fn holds_addresses(name: &str, more: &[String]) -> bool {
    is_known(name, more) || name.ends_with("_URL") || name.ends_with("_URI")
}

fn is_known(name: &str, more: &[String]) -> bool {
    KNOWN.contains(&name) || more.iter().any(|known| known == name)
}

/// A value in parts: `before` and `after` are kept as they are, the hosts are joined by commas.
struct Address<'a> {
    before: &'a str,
    hosts: Vec<Host<'a>>,
    after: &'a str,
}

struct Host<'a> {
    /// With its brackets, if it has some.
    name: &'a str,
    port: Option<&'a str>,
}

impl<'a> Address<'a> {
    /// `scheme://user:password@host:port,host:port/rest`, or the same without its beginning where that is allowed.
    fn parse(value: &'a str, without_scheme: bool) -> Option<Self> {
        let begin = match value.find("://") {
            Some(at) => at + 3,
            None if without_scheme => 0,
            None => return None,
        };
        let rest = &value[begin..];
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let authority = &rest[..end];
        // A password may contain an `@` that nobody has escaped.
        let host = authority.rfind('@').map_or(0, |at| at + 1);
        let hosts = authority[host..].split(',').map(Host::parse).collect();
        Some(Self { before: &value[..begin + host], hosts, after: &rest[end..] })
    }

    /// The same with another name for the loopback.
    fn with(&self, name: &str) -> String {
        let hosts = self.hosts.iter().map(|host| host.with(host.is_local().then_some(name)));
        let hosts: Vec<String> = hosts.collect();
        format!("{}{}{}", self.before, hosts.join(","), self.after)
    }
}

impl<'a> Host<'a> {
    fn parse(text: &'a str) -> Self {
        // In brackets, or with more than one colon: the newer protocol.
        let after_bracket = text.find(']').map_or(0, |at| at + 1);
        let bare = !text.starts_with('[') && text.matches(':').count() > 1;
        match text[after_bracket..].rfind(':') {
            Some(at) if !bare => {
                let at = after_bracket + at;
                Self { name: &text[..at], port: Some(&text[at + 1..]) }
            }
            _ => Self { name: text, port: None },
        }
    }

    fn is_local(&self) -> bool {
        let name = self.name.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
        if name.eq_ignore_ascii_case("localhost") || name.to_ascii_lowercase().ends_with(".localhost") {
            return true;
        }
        match name.parse::<IpAddr>().map(|address| address.to_canonical()) {
            Ok(address) => address.is_loopback() || address.is_unspecified(),
            Err(_) => false,
        }
    }

    fn with(&self, name: Option<&str>) -> String {
        let name = name.unwrap_or(self.name);
        self.port.map_or_else(|| name.to_owned(), |port| format!("{name}:{port}"))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Local, locals, rewrite};

    fn rewritten(name: &str, value: &str) -> String {
        let mut env = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        rewrite(&mut env, &["BROKER".to_owned()], "outside.test");
        env.remove(name).unwrap()
    }

    #[test]
    fn every_way_to_write_the_loopback_is_understood() {
        for (value, wanted) in [
            ("postgres://localhost/db", "postgres://outside.test/db"),
            (
                "postgres://u:p@localhost:5432/db?x=localhost",
                "postgres://u:p@outside.test:5432/db?x=localhost",
            ),
            ("postgres://u:p@ss@127.0.0.1:5432/db", "postgres://u:p@ss@outside.test:5432/db"),
            ("redis://[::1]:6379", "redis://outside.test:6379"),
            ("redis://[::1]", "redis://outside.test"),
            ("redis://LOCALHOST:6379/0", "redis://outside.test:6379/0"),
            ("http://127.0.0.2:80/", "http://outside.test:80/"),
            ("http://0.0.0.0:8080", "http://outside.test:8080"),
            ("http://[::]:8080", "http://outside.test:8080"),
            ("http://[::ffff:127.0.0.1]:8080", "http://outside.test:8080"),
            ("http://localhost.:8080", "http://outside.test:8080"),
            ("http://app.localhost:8080", "http://outside.test:8080"),
            ("mongodb://a:1,localhost:2,[::1]:3/db", "mongodb://a:1,outside.test:2,outside.test:3/db"),
            ("localhost:6379", "outside.test:6379"),
            ("user:pass@127.0.0.1:5432/db", "user:pass@outside.test:5432/db"),
            ("::1", "outside.test"),
        ] {
            assert_eq!(rewritten("DATABASE_URL", value), wanted, "{value}");
        }
    }

    #[test]
    fn everything_else_stays_as_it_is() {
        for value in [
            "postgres://db.example.com/localhost",
            "postgres://localhost@db.example.com/x",
            "postgres:///db?host=/var/run/postgresql",
            "http://10.0.0.1:80",
            "http://localhost.example.com",
            "http://1270.0.1",
            "sqlite:///tmp/x.db",
            "",
            "@",
            "://",
        ] {
            assert_eq!(rewritten("DATABASE_URL", value), value);
        }
        assert_eq!(rewritten("GREETING", "http://localhost"), "http://localhost");
        assert_eq!(
            rewritten("MODEL_BASE_URL", "localhost:1"),
            "localhost:1",
            "only known ones have no scheme"
        );
        assert_eq!(rewritten("MODEL_BASE_URL", "http://localhost:1"), "http://outside.test:1");
        assert_eq!(rewritten("BROKER", "localhost:1"), "outside.test:1");
    }

    #[test]
    fn ports_of_the_host_are_found() {
        let env = BTreeMap::from([("REDIS_URL".to_owned(), "localhost:6379,10.0.0.1:1".to_owned())]);
        assert_eq!(locals(&env, &[]), [Local { name: "REDIS_URL".into(), port: Some(6379) }]);
    }
}
