//! Secrets that a session has put on the wire. A host may repeat one in any later answer, also in one that is under way.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::secret::Secret;

/// Secrets that were sent, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct SentSecrets {
    secrets: Mutex<Vec<Secret>>,
    /// How many there are, to be read for each piece of an answer.
    count: AtomicUsize,
}

impl SentSecrets {
    /// Notes secrets that are about to be sent.
    pub(crate) fn add(&self, new: &[Secret]) {
        let mut secrets = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        for secret in new {
            if !secrets.iter().any(|known| known.reveal() == secret.reveal()) {
                secrets.push(secret.clone());
            }
        }
        self.count.store(secrets.len(), Ordering::Release);
    }

    /// Returns the secrets beyond the first `known` ones.
    pub(crate) fn after(&self, known: usize) -> Vec<Secret> {
        if self.count.load(Ordering::Acquire) <= known {
            return Vec::new();
        }
        let secrets = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        secrets.get(known..).unwrap_or_default().to_vec()
    }
}
