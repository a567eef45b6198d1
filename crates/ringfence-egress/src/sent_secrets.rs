//! Secrets that a session has put on the wire. A host may repeat one in any later answer, also in one that is under way.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::secret::Secret;

/// More secrets are not remembered, the oldest first: a login has another token every hour or so.
const MAX_REMEMBERED: usize = 256;

/// Secrets that were sent, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct SentSecrets {
    secrets: Mutex<VecDeque<Secret>>,
    /// How many there were, to be read for each piece of an answer.
    count: AtomicUsize,
}

impl SentSecrets {
    /// Notes secrets that are about to be sent.
    pub(crate) fn add(&self, new: &[Secret]) {
        let mut secrets = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        for secret in new {
            if !secrets.iter().any(|known| known.reveal() == secret.reveal()) {
                secrets.push_back(secret.clone());
                self.count.fetch_add(1, Ordering::Release);
            }
        }
        let forgotten = secrets.len().saturating_sub(MAX_REMEMBERED);
        secrets.drain(..forgotten);
    }

    /// Returns the secrets that were added after the first `known` ones, and counts them as known.
    pub(crate) fn after(&self, known: &mut usize) -> Vec<Secret> {
        if self.count.load(Ordering::Acquire) <= *known {
            return Vec::new();
        }
        let secrets = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        let count = self.count.load(Ordering::Acquire);
        let new = count.saturating_sub(*known).min(secrets.len());
        *known = count;
        secrets.iter().skip(secrets.len() - new).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_REMEMBERED, SentSecrets};
    use crate::secret::Secret;

    #[test]
    fn remembered_secrets_are_bounded_and_told_once() {
        let sent = SentSecrets::default();
        let mut known = 0;
        sent.add(&[Secret::new("a".into()), Secret::new("a".into())]);
        assert_eq!(sent.after(&mut known).len(), 1);
        (0..1000).for_each(|number| sent.add(&[Secret::new(format!("secret-{number}"))]));
        let new = sent.after(&mut known);
        assert_eq!((new.len(), new.last().unwrap().reveal()), (MAX_REMEMBERED, "secret-999"));
        assert!(sent.after(&mut known).is_empty());
    }
}
