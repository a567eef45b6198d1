//! Sessions of browsers, and the tokens by which a page's forms are known to be the page's own.

use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ring::hmac;
use ring::rand::SystemRandom;

use crate::app::lock;
use crate::owner_token::random_hex;

/// The cookie that tells one browser from another.
pub(crate) const COOKIE: &str = "ringfence";
/// How long a session lasts that nobody uses.
const LASTS: Duration = Duration::from_secs(12 * 3600);
/// So many at once.
const MOST: usize = 1000;

/// Who is logged in. A restart of the daemon ends them all.
pub(crate) struct Sessions {
    key: hmac::Key,
    open: Mutex<BTreeMap<String, Session>>,
    /// What the next page of a browser says.
    said: Mutex<BTreeMap<String, String>>,
}

/// A browser that is logged in.
struct Session {
    /// When it was last used.
    used: Instant,
    /// Whether it was opened by a process of the daemon's owner on this machine. Then only such processes may use it: browsers
    /// send a cookie to every port of a host, so other users who serve a page there get to see it.
    of_owner: bool,
}

impl Sessions {
    pub(crate) fn new() -> io::Result<Self> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())
            .map_err(|_| io::Error::other("there is no randomness"))?;
        Ok(Self { key, open: Mutex::default(), said: Mutex::default() })
    }

    /// A name for a browser that has none.
    pub(crate) fn name() -> Option<String> {
        random_hex()
    }

    /// From now on this browser is let in.
    pub(crate) fn open(&self, name: &str, of_owner: bool) {
        let mut open = lock(&self.open);
        open.retain(|_, session| session.used.elapsed() < LASTS);
        if open.len() >= MOST
            && let Some(oldest) =
                open.iter().min_by_key(|(_, session)| session.used).map(|(name, _)| name.clone())
        {
            open.remove(&oldest);
        }
        open.insert(name.to_owned(), Session { used: Instant::now(), of_owner });
    }

    /// Whether only processes of the daemon's owner may use it.
    pub(crate) fn is_of_owner(&self, name: &str) -> bool {
        lock(&self.open).get(name).is_some_and(|session| session.of_owner)
    }

    /// No longer.
    pub(crate) fn close(&self, name: &str) {
        lock(&self.open).remove(name);
    }

    /// Ends all sessions.
    pub(crate) fn close_all(&self) {
        lock(&self.open).clear();
    }

    /// Whether it is let in.
    pub(crate) fn is_open(&self, name: &str) -> bool {
        let mut open = lock(&self.open);
        match open.get_mut(name) {
            Some(session) if session.used.elapsed() < LASTS => {
                session.used = Instant::now();
                true
            }
            _ => false,
        }
    }

    /// Says something on the next page of a browser.
    pub(crate) fn tell(&self, name: &str, text: String) {
        if text.is_empty() {
            return;
        }
        let mut said = lock(&self.said);
        if said.len() >= MOST {
            said.clear();
        }
        said.insert(name.to_owned(), text);
    }

    /// What was to be said, once.
    pub(crate) fn told(&self, name: &str) -> Option<String> {
        lock(&self.said).remove(name)
    }

    /// What the forms of this browser carry. Nobody else can make it.
    pub(crate) fn token(&self, name: &str) -> String {
        hex(hmac::sign(&self.key, name.as_bytes()).as_ref())
    }

    /// Whether a form is one of this browser's.
    pub(crate) fn is_own(&self, name: &str, token: &str) -> bool {
        unhex(token).is_some_and(|tag| hmac::verify(&self.key, name.as_bytes(), &tag).is_ok())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::Sessions;

    #[test]
    fn a_form_is_known_by_its_token_and_a_session_by_its_name() {
        let sessions = Sessions::new().unwrap();
        let token = sessions.token("me");
        assert!(sessions.is_own("me", &token));
        assert!(!sessions.is_own("you", &token));
        for wrong in ["", "00", "zz", &token[2..], "é"] {
            assert!(!sessions.is_own("me", wrong), "{wrong}");
        }
        assert!(!Sessions::new().unwrap().is_own("me", &token), "another daemon");
        assert!(!sessions.is_open("me"));
        sessions.open("me", false);
        assert!(sessions.is_open("me"));
        sessions.close("me");
        assert!(!sessions.is_open("me"));
        for number in 0..1100 {
            sessions.open(&number.to_string(), false);
        }
        assert!(sessions.is_open("1099") && !sessions.is_open("0"));
    }
}
