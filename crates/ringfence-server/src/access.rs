//! Who may do what. Pure: a request as it is seen, and the answer.
//!
//! - A key or the bearer token that is right lets in from anywhere; one that is wrong lets in nowhere, not even from here.
//! - Without either, only what is local is let in, and only while no key and no token is set: from this machine's loopback,
//!   under a name of loopback, and not on behalf of a page from elsewhere. So neither a page that somebody visits nor a name
//!   that was bent to 127.0.0.1 reaches anything.
//! - Control of the system needs a key or the token as soon as the switch for local control is off.
//! - Who is on the Unix socket could as well read the files behind it: the kernel has let in nobody else.

use ring::digest::{SHA256, digest};
use subtle::ConstantTimeEq;

/// What a route asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Nothing: it tells nothing that is anybody's business.
    Nothing,
    /// To look at tasks and runs.
    Read,
    /// To change tasks.
    Change,
    /// To look at or change the system itself.
    Control,
}

/// Where a request comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// The Unix socket.
    Socket,
    /// This machine's loopback.
    Loopback,
    /// Anywhere else.
    Elsewhere,
}

/// What a request carries to be let in.
#[derive(Debug, Clone, Copy, Default)]
pub struct Carried<'a> {
    /// `X-API-Key`.
    pub key: Option<&'a str>,
    /// What stands after `Bearer` in `Authorization`; all of it, if it stands after another word.
    pub bearer: Option<&'a str>,
    /// Whether a browser brings a session that somebody began with a key or the token.
    pub session: bool,
}

/// A request as it is seen.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// Where it comes from.
    pub peer: Peer,
    /// The `Host` header.
    pub host: Option<&'a str>,
    /// The `Origin` header.
    pub origin: Option<&'a str>,
    /// The `Sec-Fetch-Site` header.
    pub fetch_site: Option<&'a str>,
    /// Whether somebody followed a link to a page.
    pub navigates: bool,
    /// What it carries.
    pub carried: Carried<'a>,
}

/// As whom a request was let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// Nobody in particular.
    Anybody,
    /// With a key: the first digits of its digest, so that one can tell them apart.
    Key([u8; 4]),
    /// With the token.
    Bearer,
    /// A browser with a session.
    Session,
    /// From this machine.
    Local,
    /// By the Unix socket.
    Socket,
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Who::Anybody => f.write_str("anybody"),
            Who::Key(digits) => {
                write!(f, "api-key {}", digits.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
            }
            Who::Bearer => f.write_str("bearer"),
            Who::Session => f.write_str("session"),
            Who::Local => f.write_str("local"),
            Who::Socket => f.write_str("socket"),
        }
    }
}

/// Why a request was not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// The key is wrong.
    #[error("Invalid API key")]
    WrongKey,
    /// The token is wrong.
    #[error("Invalid token")]
    WrongToken,
    /// There is none.
    #[error("Authentication required")]
    Nothing,
    /// Only local requests are let in without one.
    #[error("only requests from this machine itself are let in without a key")]
    NotLocal,
    /// It comes from a page of somebody else.
    #[error("a page from elsewhere may not do this")]
    CrossSite,
    /// The system is controlled with a key or the token only.
    #[error("Admin access required")]
    NoControl,
}

impl Denial {
    /// Whether a right key or token would have helped where none was given.
    pub fn is_unauthenticated(self) -> bool {
        matches!(self, Denial::WrongKey | Denial::WrongToken | Denial::Nothing)
    }

    /// A word for programs.
    pub fn code(self) -> &'static str {
        match self {
            Denial::WrongKey => "invalid_api_key",
            Denial::WrongToken => "invalid_token",
            Denial::Nothing => "authentication_required",
            Denial::NotLocal => "not_local",
            Denial::CrossSite => "cross_site",
            Denial::NoControl => "admin_access_required",
        }
    }

    /// What to do about it.
    pub fn remedy(self) -> &'static str {
        match self {
            Denial::WrongKey => "send one of the keys of API_KEYS as X-API-Key",
            Denial::WrongToken => "send what API_SECRET holds as `Authorization: Bearer …`",
            Denial::Nothing => "send a key as X-API-Key, or the token as `Authorization: Bearer …`",
            Denial::NotLocal => {
                "set API_SECRET or API_KEYS where the daemon is started and send it, or ask 127.0.0.1 from this machine"
            }
            Denial::CrossSite => "open the page at its own address",
            Denial::NoControl => {
                "send a key or the token; without one, the system is controlled only while RINGFENCE_ALLOW_INSECURE_SYSTEM_CONTROL is not false"
            }
        }
    }
}

/// The rule, as whoever started the daemon has set it. Of keys and the token only digests are kept.
#[derive(Clone, Default)]
pub struct Access {
    keys: Vec<[u8; 32]>,
    secret: Option<[u8; 32]>,
    local_control: bool,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access")
            .field("keys", &self.keys.len())
            .field("secret", &self.secret.is_some())
            .finish()
    }
}

impl Access {
    /// With these keys, separated by commas, this token, and this word on local control, which is on unless it is `false`.
    pub fn new(keys: Option<&str>, secret: Option<&str>, local_control: Option<&str>) -> Self {
        let keys = keys.unwrap_or_default().split(',').map(str::trim).filter(|key| !key.is_empty());
        let secret = secret.map(str::trim).filter(|secret| !secret.is_empty());
        let off = local_control.is_some_and(|word| word.trim().eq_ignore_ascii_case("false"));
        Self { keys: keys.map(sha).collect(), secret: secret.map(sha), local_control: !off }
    }

    /// Whether there is a key or a token.
    pub fn is_guarded(&self) -> bool {
        !self.keys.is_empty() || self.secret.is_some()
    }

    /// Lets a request in, or says why not.
    pub fn decide(&self, need: Need, seen: &Seen<'_>) -> Result<Who, Denial> {
        if need == Need::Nothing {
            return Ok(Who::Anybody);
        }
        if let Some(who) = self.known(seen.carried)? {
            // Keys are sent on purpose; a session is sent by the browser whoever asks for it.
            return if who == Who::Session { same_site(seen).map(|()| who) } else { Ok(who) };
        }
        match seen.peer {
            Peer::Socket => return Ok(Who::Socket),
            _ if self.is_guarded() => return Err(Denial::Nothing),
            Peer::Elsewhere => return Err(Denial::NotLocal),
            Peer::Loopback => {}
        }
        if !seen.host.is_some_and(is_loopback_name) {
            return Err(Denial::NotLocal);
        }
        same_site(seen)?;
        if need == Need::Control && !self.local_control {
            return Err(Denial::NoControl);
        }
        Ok(Who::Local)
    }

    /// Whether a text is a key or the token.
    pub fn recognises(&self, text: &str) -> bool {
        let carried = [
            Carried { key: Some(text), ..Carried::default() },
            Carried { bearer: Some(text), ..Carried::default() },
        ];
        carried.into_iter().any(|carried| self.known(carried).is_ok_and(|who| who.is_some()))
    }

    fn known(&self, carried: Carried<'_>) -> Result<Option<Who>, Denial> {
        if let Some(key) = carried.key {
            let given = sha(key);
            // All are looked at, so that the time does not tell which was near.
            let matches = self.keys.iter().fold(false, |found, key| found | same(key, &given));
            let [a, b, c, d, ..] = given;
            return if matches { Ok(Some(Who::Key([a, b, c, d]))) } else { Err(Denial::WrongKey) };
        }
        if let Some(token) = carried.bearer {
            let right = self.secret.is_some_and(|secret| same(&secret, &sha(token)));
            return if right { Ok(Some(Who::Bearer)) } else { Err(Denial::WrongToken) };
        }
        Ok(carried.session.then_some(Who::Session))
    }
}

fn sha(text: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
    bytes
}

fn same(one: &[u8; 32], other: &[u8; 32]) -> bool {
    one.ct_eq(other).into()
}

/// Whether a request is on behalf of a page of ours, or of no page.
fn same_site(seen: &Seen<'_>) -> Result<(), Denial> {
    if let Some(origin) = seen.origin {
        let (scheme, authority) = origin.split_once("://").unwrap_or_default();
        let own = ["http", "https"].contains(&scheme) && seen.host == Some(authority);
        return if own { Ok(()) } else { Err(Denial::CrossSite) };
    }
    match seen.fetch_site {
        None | Some("same-origin" | "none") => Ok(()),
        // A link may lead to a page; nothing on it does anything by itself.
        Some(_) if seen.navigates => Ok(()),
        Some(_) => Err(Denial::CrossSite),
    }
}

/// Whether a `Host` header names this machine's loopback and nothing else.
fn is_loopback_name(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, "")) => address,
            Some((address, port)) if is_port(port) => address,
            _ => return false,
        },
        None => match host.split_once(':') {
            Some((name, port)) if is_port(&format!(":{port}")) => name,
            Some(_) => return false,
            None => host,
        },
    };
    let loopback = name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    loopback || name.eq_ignore_ascii_case("localhost")
}

fn is_port(text: &str) -> bool {
    text.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
}

#[cfg(test)]
#[path = "access_tests.rs"]
mod tests;
