//! One-time login codes: `ringfence open` gets one over the Unix socket, a browser redeems it for a session.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::access::{same, sha};
use crate::app::lock;
use crate::dashboard_name::DashboardName;
use crate::owner_token::random_hex;
use crate::revocation::Epoch;

/// How long a code can be redeemed.
pub(crate) const LIFETIME: Duration = Duration::from_secs(300);
/// Codes that are kept at once; the oldest is dropped first.
const MAX_CODES: usize = 1000;

/// Who may redeem a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bearer {
    /// Any browser that presents it.
    Anybody,
    /// Any browser of another machine, and on this one a connection of the daemon's owner.
    OwnerOrElsewhere,
    /// Only a connection of the daemon's owner from this machine: other users can see the command line of a browser.
    Owner,
}

/// What holds for a code.
#[derive(Clone)]
pub(crate) struct Terms {
    pub(crate) bearer: Bearer,
    /// The host name of the session that it opens on this machine.
    pub(crate) name: DashboardName,
    /// That of the credential for which the code was issued.
    pub(crate) epoch: Epoch,
}

/// A code that was issued.
pub(crate) struct Issued {
    pub(crate) code: String,
    pub(crate) name: DashboardName,
}

impl Issued {
    /// The path that redeems the code.
    pub(crate) fn path(&self) -> String {
        path(&self.code)
    }
}

/// The path that redeems a code.
pub(crate) fn path(code: &str) -> String {
    format!("/ui/login?code={code}")
}

struct Code {
    digest: [u8; 32],
    issued: Instant,
    terms: Terms,
}

/// The codes that nobody has redeemed yet. Only digests are kept.
#[derive(Default)]
pub(crate) struct LoginCodes(Mutex<VecDeque<Code>>);

impl LoginCodes {
    /// Issues a code for a credential of an epoch. `None` if the system gives no random bytes.
    pub(crate) fn issue(&self, bearer: Bearer, epoch: Epoch) -> Option<Issued> {
        let (code, name) = (random_hex()?, DashboardName::random()?);
        let mut codes = lock(&self.0);
        if codes.len() >= MAX_CODES {
            codes.pop_front();
        }
        let terms = Terms { bearer, name: name.clone(), epoch };
        codes.push_back(Code { digest: sha(&code), issued: Instant::now(), terms });
        Some(Issued { code, name })
    }

    /// What holds for a code, if it is one.
    pub(crate) fn terms(&self, text: &str) -> Option<Terms> {
        let given = sha(text);
        let codes = lock(&self.0);
        let valid = codes.iter().filter(|code| code.issued.elapsed() < LIFETIME);
        let found =
            valid.fold(None, |found, code| if same(&code.digest, &given) { Some(code) } else { found });
        found.map(|code| code.terms.clone())
    }

    /// Takes a code out, so that it is never taken again, and returns what holds for it.
    pub(crate) fn take(&self, text: &str) -> Option<Terms> {
        self.take_at(text, Instant::now())
    }

    fn take_at(&self, text: &str, now: Instant) -> Option<Terms> {
        let given = sha(text);
        let mut codes = lock(&self.0);
        codes.retain(|code| now.saturating_duration_since(code.issued) < LIFETIME);
        // All are compared, so that the time does not depend on which one matches.
        let found = codes
            .iter()
            .enumerate()
            .fold(None, |found, (index, code)| if same(&code.digest, &given) { Some(index) } else { found });
        codes.remove(found?).map(|code| code.terms)
    }

    /// Makes all codes of earlier epochs worthless. One that is issued for such a credential later opens no session.
    pub(crate) fn clear(&self, epoch: Epoch) {
        lock(&self.0).retain(|code| code.terms.epoch >= epoch);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::{Bearer, Epoch, Issued, LIFETIME, LoginCodes, MAX_CODES};

    #[test]
    fn code_is_redeemed_once_and_only_in_time() {
        let codes = LoginCodes::default();
        let Issued { code, name } = codes.issue(Bearer::Owner, Epoch::default()).unwrap();
        assert!(codes.take(&code[1..]).is_none());
        assert!(codes.take("").is_none());
        assert!(codes.terms(&code).unwrap().name == name);
        assert_eq!(codes.take(&code).unwrap().bearer, Bearer::Owner);
        assert!(codes.take(&code).is_none(), "a second time");
        let late = codes.issue(Bearer::Anybody, Epoch::default()).unwrap().code;
        assert!(codes.take_at(&late, Instant::now() + LIFETIME).is_none());
        assert!(codes.take(&late).is_none(), "an expired code is gone");
        let cleared = codes.issue(Bearer::Anybody, Epoch::default()).unwrap().code;
        codes.clear(Epoch(1));
        assert!(codes.take(&cleared).is_none());
    }

    #[test]
    fn oldest_code_is_dropped_when_there_are_too_many() {
        let codes = LoginCodes::default();
        let all: Vec<_> =
            (0..=MAX_CODES).map(|_| codes.issue(Bearer::Anybody, Epoch::default()).unwrap().code).collect();
        assert!(codes.take(&all[0]).is_none());
        assert!(codes.take(&all[1]).is_some());
    }
}
