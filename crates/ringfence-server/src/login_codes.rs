//! One-time login codes: `ringfence open` gets one over the Unix socket, a browser redeems it for a session.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::access::{same, sha};
use crate::app::lock;
use crate::owner_token::random_hex;

/// How long a code can be redeemed.
pub(crate) const LIFETIME: Duration = Duration::from_secs(300);
/// Codes that are kept at once; the oldest is dropped first.
const MAX_CODES: usize = 1000;

/// Who may redeem a code on loopback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bearer {
    /// Any browser that presents it.
    Anybody,
    /// Only a connection of the daemon's owner: the code was on a command line, which other users can see.
    Owner,
}

struct Code {
    digest: [u8; 32],
    issued: Instant,
    bearer: Bearer,
}

/// The codes that nobody has redeemed yet. Only digests are kept.
#[derive(Default)]
pub(crate) struct LoginCodes(Mutex<VecDeque<Code>>);

impl LoginCodes {
    /// Issues a code. `None` if the system gives no random bytes.
    pub(crate) fn issue(&self, bearer: Bearer) -> Option<String> {
        let text = random_hex()?;
        let mut codes = lock(&self.0);
        if codes.len() >= MAX_CODES {
            codes.pop_front();
        }
        codes.push_back(Code { digest: sha(&text), issued: Instant::now(), bearer });
        Some(text)
    }

    /// Who may redeem a code, if it is one.
    pub(crate) fn bearer(&self, text: &str) -> Option<Bearer> {
        let given = sha(text);
        let codes = lock(&self.0);
        let valid = codes.iter().filter(|code| code.issued.elapsed() < LIFETIME);
        valid.fold(None, |found, code| if same(&code.digest, &given) { Some(code.bearer) } else { found })
    }

    /// Takes a code out, so that it is never taken again, and returns who may redeem it.
    pub(crate) fn take(&self, text: &str) -> Option<Bearer> {
        self.take_at(text, Instant::now())
    }

    fn take_at(&self, text: &str, now: Instant) -> Option<Bearer> {
        let given = sha(text);
        let mut codes = lock(&self.0);
        codes.retain(|code| now.saturating_duration_since(code.issued) < LIFETIME);
        // All are compared, so that the time does not depend on which one matches.
        let found = codes
            .iter()
            .enumerate()
            .fold(None, |found, (index, code)| if same(&code.digest, &given) { Some(index) } else { found });
        codes.remove(found?).map(|code| code.bearer)
    }

    /// Makes all codes worthless.
    pub(crate) fn clear(&self) {
        lock(&self.0).clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::{Bearer, LIFETIME, LoginCodes, MAX_CODES};

    #[test]
    fn code_is_redeemed_once_and_only_in_time() {
        let codes = LoginCodes::default();
        let code = codes.issue(Bearer::Owner).unwrap();
        assert_eq!(codes.take(&code[1..]), None);
        assert_eq!(codes.take(""), None);
        assert_eq!(codes.take(&code), Some(Bearer::Owner));
        assert_eq!(codes.take(&code), None, "a second time");
        let late = codes.issue(Bearer::Anybody).unwrap();
        assert_eq!(codes.take_at(&late, Instant::now() + LIFETIME), None);
        assert_eq!(codes.take(&late), None, "an expired code is gone");
        let cleared = codes.issue(Bearer::Anybody).unwrap();
        codes.clear();
        assert_eq!(codes.take(&cleared), None);
    }

    #[test]
    fn oldest_code_is_dropped_when_there_are_too_many() {
        let codes = LoginCodes::default();
        let all: Vec<_> = (0..=MAX_CODES).map(|_| codes.issue(Bearer::Anybody).unwrap()).collect();
        assert_eq!(codes.take(&all[0]), None);
        assert_eq!(codes.take(&all[1]), Some(Bearer::Anybody));
    }
}
