//! Sessions of browsers, and the tokens by which a page's forms are known to be the page's own.

use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;
use std::time::Duration;

use ring::hmac;
use ring::rand::SystemRandom;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::app::lock;
use crate::owner_token::random_hex;
use crate::revocation::Epoch;

/// The cookie that tells one browser from another.
pub(crate) const COOKIE: &str = "ringfence";
/// How long a session lasts without a request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(12 * 3600);
/// Open sessions at once; the least recently used is closed first.
const MAX_SESSIONS: usize = 1000;

/// Who is logged in. A restart of the daemon ends them all.
pub(crate) struct Sessions {
    key: hmac::Key,
    open: Mutex<Open>,
    /// What the next page of a browser says.
    said: Mutex<BTreeMap<String, String>>,
}

/// The sessions that are open.
#[derive(Default)]
struct Open {
    by_name: BTreeMap<String, Session>,
    /// A session whose credential is of an earlier epoch is not opened.
    epoch: Epoch,
}

/// A browser that is logged in.
struct Session {
    /// The time of its last request.
    used: Instant,
    origin: SessionOrigin,
    /// Dropped with the session, which ends the responses that are still being sent to it.
    open: watch::Sender<()>,
}

/// Where a session was opened. It is valid there and nowhere else.
pub(crate) struct SessionOrigin {
    /// The `Host` header. Browsers send a cookie to every port of a host, so a program that serves a page under 127.0.0.1 may have
    /// received it; it does not know the name of the dashboard.
    pub(crate) host: String,
    /// Whether a process of the daemon's owner on this machine opened it. Then no other user may use it.
    pub(crate) of_owner: bool,
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

    /// Opens a session for a browser, whose credential is of an epoch. Not if the credential was revoked meanwhile.
    #[must_use]
    pub(crate) fn open(&self, name: &str, origin: SessionOrigin, epoch: Epoch) -> bool {
        let mut all = lock(&self.open);
        if epoch < all.epoch {
            return false;
        }
        let open = &mut all.by_name;
        open.retain(|_, session| session.used.elapsed() < IDLE_TIMEOUT);
        if open.len() >= MAX_SESSIONS
            && let Some(oldest) =
                open.iter().min_by_key(|(_, session)| session.used).map(|(name, _)| name.clone())
        {
            open.remove(&oldest);
        }
        let session = Session { used: Instant::now(), origin, open: watch::Sender::new(()) };
        open.insert(name.to_owned(), session);
        true
    }

    /// Whether only processes of the daemon's owner may use it.
    pub(crate) fn is_of_owner(&self, name: &str) -> bool {
        lock(&self.open).by_name.get(name).is_some_and(|session| session.origin.of_owner)
    }

    /// Closes a session.
    pub(crate) fn close(&self, name: &str) {
        lock(&self.open).by_name.remove(name);
    }

    /// Closes all sessions, and those that are being opened with credentials of an earlier epoch.
    pub(crate) fn close_all(&self, epoch: Epoch) {
        let mut all = lock(&self.open);
        all.epoch = all.epoch.max(epoch);
        all.by_name.clear();
    }

    /// Whether a browser has a session under a `Host` header.
    pub(crate) fn is_open(&self, name: &str, host: &str) -> bool {
        let mut open = lock(&self.open);
        match open.by_name.get_mut(name) {
            Some(session) if session.used.elapsed() < IDLE_TIMEOUT && session.origin.host == host => {
                session.used = Instant::now();
                true
            }
            _ => false,
        }
    }

    /// Whether a session is closed or has been idle for too long.
    pub(crate) fn is_closed(&self, name: &str) -> bool {
        self.expiry(name).is_none()
    }

    /// Waits until a session is closed or has been idle for too long. Returns at once if there is none.
    pub(crate) async fn closed(&self, name: &str) {
        loop {
            let Some((mut open, expires)) = self.expiry(name) else { return };
            tokio::select! {
                // Nothing is ever sent: an answer is the end of the sender.
                _ = open.changed() => {}
                () = tokio::time::sleep_until(expires) => {}
            }
        }
    }

    fn expiry(&self, name: &str) -> Option<(watch::Receiver<()>, Instant)> {
        let open = lock(&self.open);
        let session = open.by_name.get(name).filter(|session| session.used.elapsed() < IDLE_TIMEOUT)?;
        Some((session.open.subscribe(), session.used + IDLE_TIMEOUT))
    }

    /// Says something on the next page of a browser.
    pub(crate) fn tell(&self, name: &str, text: String) {
        if text.is_empty() {
            return;
        }
        let mut said = lock(&self.said);
        if said.len() >= MAX_SESSIONS {
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
    use futures_util::FutureExt;

    use super::{Epoch, IDLE_TIMEOUT, MAX_SESSIONS, SessionOrigin, Sessions};

    const HOST: &str = "abc.localhost:4301";

    fn origin() -> SessionOrigin {
        SessionOrigin { host: HOST.to_owned(), of_owner: false }
    }

    #[test]
    fn form_is_known_by_its_token() {
        let sessions = Sessions::new().unwrap();
        let token = sessions.token("me");
        assert!(sessions.is_own("me", &token));
        assert!(!sessions.is_own("you", &token));
        for wrong in ["", "00", "zz", &token[2..], "é"] {
            assert!(!sessions.is_own("me", wrong), "{wrong}");
        }
        assert!(!Sessions::new().unwrap().is_own("me", &token), "another daemon");
    }

    #[test]
    fn session_is_valid_under_its_own_host_alone() {
        let sessions = Sessions::new().unwrap();
        assert!(!sessions.is_open("me", HOST));
        assert!(sessions.open("me", origin(), Epoch::default()));
        assert!(sessions.is_open("me", HOST));
        for other in ["127.0.0.1:4301", "localhost:4301", "abc.localhost", "abc.localhost:4302", ""] {
            assert!(!sessions.is_open("me", other), "{other}");
        }
        sessions.close("me");
        assert!(!sessions.is_open("me", HOST));
        for number in 0..=MAX_SESSIONS {
            assert!(sessions.open(&number.to_string(), origin(), Epoch::default()));
        }
        assert!(sessions.is_open(&MAX_SESSIONS.to_string(), HOST) && !sessions.is_open("0", HOST));
    }

    #[test]
    fn session_of_a_revoked_credential_is_not_opened() {
        let sessions = Sessions::new().unwrap();
        // The credential was checked, then the token is replaced, then the session is opened.
        let before = Epoch(0);
        sessions.close_all(Epoch(1));
        assert!(!sessions.open("late", origin(), before) && !sessions.is_open("late", HOST));
        assert!(sessions.open("new", origin(), Epoch(1)) && sessions.is_open("new", HOST));
    }

    #[test]
    fn end_of_a_session_is_noticed_when_it_is_closed_or_idle() {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let sessions = Sessions::new().unwrap();
            sessions.closed("me").await;
            for close in [
                |sessions: &Sessions| sessions.close("me"),
                |sessions: &Sessions| sessions.close_all(Epoch::default()),
            ] {
                assert!(sessions.open("me", origin(), Epoch::default()));
                assert!(sessions.open("you", origin(), Epoch::default()));
                let wait = sessions.closed("me");
                tokio::pin!(wait);
                assert!(wait.as_mut().now_or_never().is_none());
                close(&sessions);
                assert!(wait.now_or_never().is_some());
            }
            assert!(sessions.open("me", origin(), Epoch::default()));
            let begun = tokio::time::Instant::now();
            let request = async {
                tokio::time::sleep(IDLE_TIMEOUT / 2).await;
                assert!(sessions.is_open("me", HOST));
            };
            tokio::join!(sessions.closed("me"), request);
            assert_eq!(begun.elapsed(), IDLE_TIMEOUT + IDLE_TIMEOUT / 2);
        });
    }
}
