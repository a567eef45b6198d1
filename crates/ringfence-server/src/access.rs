//! Who may do what. Pure: a request as it is seen, and the answer.
//!
//! - The daemon's own token, a key or the bearer token that is right lets in from anywhere; one that is wrong lets in
//!   nowhere, not even from here.
//! - The Unix socket lets in without one: the server has checked that its peer is the daemon's owner, outside of runs.
//! - A process of a run is let in by nothing, whatever it carries (`loopback_peer` tells of TCP connections).
//! - Over TCP nothing else lets in, unless the switch for insecure local control is set and no key is: then a request from
//!   loopback, under a name of loopback and not on behalf of a page from elsewhere, is let in as `Local`. The caller has to
//!   check that the connection is the owner's (`loopback_peer`).
//! - A session of a browser counts only under the host that it was opened for, and only for pages of the daemon itself.
//! - A request that changes something on behalf of a page from elsewhere is refused whatever it carries: a proxy may have added
//!   the key.

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
    /// The Unix socket, but a process of a run has connected, or what cannot be told from one.
    Run,
    /// This machine's loopback, whose every user can connect.
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
    /// Whether a browser brings a session that was opened under the host of this request.
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
    /// Whether its method changes something: it is neither GET nor HEAD.
    pub changes: bool,
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
    /// With the daemon's own token.
    Owner,
    /// With the token of API_SECRET.
    Bearer,
    /// A browser with a session.
    Session,
    /// From a process of the owner on this machine, without a credential.
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
            Who::Owner => f.write_str("owner"),
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
    /// Without a credential only a name of loopback is served.
    #[error("without a token, requests are served only under a name of this machine's loopback")]
    NotLocal,
    /// Runs are not served, and without a credential only the owner's own processes are.
    #[error("the connection does not come from a process of the daemon's owner outside of runs")]
    NotOwner,
    /// It comes from a page of another site.
    #[error("a page from elsewhere may not do this")]
    CrossSite,
    /// Only the Unix socket serves it.
    #[error("only the daemon's Unix socket serves this request")]
    SocketOnly,
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
            Denial::NotOwner => "not_owner",
            Denial::CrossSite => "cross_site",
            Denial::SocketOnly => "socket_only",
        }
    }

    /// What to do about it.
    pub fn remedy(self) -> &'static str {
        match self {
            Denial::WrongKey => "send one of the keys of API_KEYS as X-API-Key",
            Denial::WrongToken => {
                "send the daemon's token, or what API_SECRET holds, as `Authorization: Bearer …`"
            }
            Denial::NotOwner => {
                "ask from a program outside of runs that waits for the answer, over the daemon's Unix socket or with its token; for the dashboard, run `ringfence open`"
            }
            Denial::Nothing | Denial::NotLocal => {
                "send the daemon's token (api.token in its state directory) as `Authorization: Bearer …`; for the dashboard, run `ringfence open`"
            }
            Denial::CrossSite => {
                "open the page at its own address; a proxy before the daemon has to pass the `Host` header on"
            }
            Denial::SocketOnly => "run the command on the daemon's machine, as its owner",
        }
    }
}

/// A key or token that the owner has chosen. Only its digest is kept.
#[derive(Clone, Copy)]
struct Secret {
    digest: [u8; 32],
    /// Whether it is so short that it could be found by trying.
    guessable: bool,
}

/// A key or token of fewer characters could be found by trying.
const UNGUESSABLE_LENGTH: usize = 32;

impl Secret {
    fn new(text: &str) -> Self {
        Self { digest: sha(text), guessable: text.chars().count() < UNGUESSABLE_LENGTH }
    }
}

/// What a request carries, once it is known to be right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Who carries it.
    pub who: Who,
    /// Whether another could have found it by trying.
    pub guessable: bool,
}

/// The rule, as the environment of the daemon has set it. Of tokens and keys only digests are kept.
#[derive(Clone, Default)]
pub struct Access {
    owner: Option<[u8; 32]>,
    keys: Vec<Secret>,
    secret: Option<Secret>,
    local: bool,
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access")
            .field("keys", &self.keys.len())
            .field("secret", &self.secret.is_some())
            .field("local", &self.local)
            .finish_non_exhaustive()
    }
}

impl Access {
    /// With the daemon's own token, these keys, separated by commas, this token of API_SECRET, and the switch for insecure
    /// local control, which is off if it is absent, empty or `false`, and without effect where a key is set.
    pub fn new(
        owner: Option<&str>,
        keys: Option<&str>,
        secret: Option<&str>,
        local_control: Option<&str>,
    ) -> Self {
        let keys = keys.unwrap_or_default().split(',').map(str::trim).filter(|key| !key.is_empty());
        let secret = secret.map(str::trim).filter(|secret| !secret.is_empty());
        let switch = local_control.map(str::trim).filter(|word| !word.is_empty());
        let on = switch.is_some_and(|word| !word.eq_ignore_ascii_case("false"));
        let mut access = Self {
            owner: owner.map(sha),
            keys: keys.map(Secret::new).collect(),
            secret: secret.map(Secret::new),
            local: false,
        };
        access.local = on && !access.has_keys();
        access
    }

    /// Whether the owner has set a key or a token besides the daemon's own.
    pub fn has_keys(&self) -> bool {
        !self.keys.is_empty() || self.secret.is_some()
    }

    /// Whether the owner's processes are let in on loopback without a credential.
    pub fn allows_local(&self) -> bool {
        self.local
    }

    /// From now on this is the daemon's own token.
    pub fn set_owner(&mut self, token: &str) {
        self.owner = Some(sha(token));
    }

    /// Lets a request in, or says why not. `Who::Local` is for the caller to verify.
    pub fn decide(&self, need: Need, seen: &Seen<'_>) -> Result<Who, Denial> {
        if need == Need::Nothing {
            // Neither a key nor a token is looked at: the answer to one that is right would not be counted as a try.
            return Ok(if seen.carried.session { Who::Session } else { Who::Anybody });
        }
        if seen.peer == Peer::Run {
            return Err(Denial::NotOwner);
        }
        if let Some(Identity { who, .. }) = self.identify(seen.carried)? {
            // A session is sent by the browser for any page that asks, and a key may be added by a proxy.
            return match who {
                Who::Session => of_own_page(seen),
                _ => of_no_foreign_page(seen),
            }
            .map(|()| who);
        }
        match seen.peer {
            Peer::Socket => return of_no_foreign_page(seen).map(|()| Who::Socket),
            Peer::Loopback if self.local => {}
            Peer::Loopback | Peer::Elsewhere | Peer::Run => return Err(Denial::Nothing),
        }
        if !seen.host.is_some_and(is_loopback_name) {
            return Err(Denial::NotLocal);
        }
        same_site(seen)?;
        Ok(Who::Local)
    }

    /// Who carries this, if it cannot have been found by trying. So the answer tells nothing where no key is asked for.
    pub fn unguessable(&self, carried: Carried<'_>) -> Option<Who> {
        let identity = self.identify(carried).ok().flatten();
        identity.filter(|identity| !identity.guessable).map(|identity| identity.who)
    }

    /// Whether a text is a key or a token.
    pub fn recognises(&self, text: &str) -> Option<Identity> {
        let carried = [
            Carried { key: Some(text), ..Carried::default() },
            Carried { bearer: Some(text), ..Carried::default() },
        ];
        let found = carried.map(|carried| self.identify(carried).ok().flatten());
        found.into_iter().flatten().next()
    }

    /// Who carries this: nobody in particular if it is nothing, an error if it is wrong.
    pub fn identify(&self, carried: Carried<'_>) -> Result<Option<Identity>, Denial> {
        if let Some(key) = carried.key {
            let given = sha(key);
            // All are compared, so that the time does not tell which was near.
            let found = self.keys.iter().fold(None, |found, key| match same(&key.digest, &given) {
                true => Some(*key),
                false => found,
            });
            let [a, b, c, d, ..] = given;
            let who = Who::Key([a, b, c, d]);
            let found = found.map(|key| Identity { who, guessable: key.guessable });
            return found.map(Some).ok_or(Denial::WrongKey);
        }
        if let Some(token) = carried.bearer {
            let given = sha(token);
            let owner = self.owner.is_some_and(|owner| same(&owner, &given));
            let secret = self.secret.filter(|secret| same(&secret.digest, &given));
            return match (owner, secret) {
                (true, _) => Ok(Some(Identity { who: Who::Owner, guessable: false })),
                (false, Some(secret)) => Ok(Some(Identity { who: Who::Bearer, guessable: secret.guessable })),
                (false, None) => Err(Denial::WrongToken),
            };
        }
        Ok(carried.session.then_some(Identity { who: Who::Session, guessable: false }))
    }
}

/// The digest by which secrets are kept and compared.
pub(crate) fn sha(text: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
    bytes
}

/// Compares digests in constant time.
pub(crate) fn same(one: &[u8; 32], other: &[u8; 32]) -> bool {
    one.ct_eq(other).into()
}

/// Whether a browser sends a session for a page of the dashboard. Browsers name the origin of every request that changes something.
fn of_own_page(seen: &Seen<'_>) -> Result<(), Denial> {
    match seen.changes && seen.origin.is_none() {
        true => Err(Denial::CrossSite),
        false => same_site(seen),
    }
}

/// Whether a request changes nothing, or is on behalf of a page of ours or of no page.
fn of_no_foreign_page(seen: &Seen<'_>) -> Result<(), Denial> {
    if seen.changes { same_site(seen) } else { Ok(()) }
}

/// Whether a request is on behalf of a page of ours, or of no page.
fn same_site(seen: &Seen<'_>) -> Result<(), Denial> {
    if let Some(origin) = seen.origin {
        let (scheme, authority) = origin.split_once("://").unwrap_or_default();
        let own = ["http", "https"].contains(&scheme) && seen.host == Some(authority);
        if !own {
            return Err(Denial::CrossSite);
        }
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
