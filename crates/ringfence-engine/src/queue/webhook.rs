//! Telling who wants to know of an end: signed, again and again until it is heard, and given up in the end.

use std::collections::BTreeMap;
use std::time::Duration;

use ring::hmac;
use ringfence_core::task::UnixSeconds;
use ringfence_egress::{PostError, Poster};
use ringfence_store::{Delivery, DeliveryState, Store, StoreError};

use crate::causes::causes;
use crate::clock::Clock;
use crate::outside::Outside;

/// Holds `sha256=` and the signature of the body in hexadecimal digits.
pub const SIGNATURE_HEADER: &str = "x-ringfence-signature";
/// How long somebody gets to answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often somebody is told.
const MAX_ATTEMPTS: u32 = 8;
/// The waits between, doubling.
const FIRST_WAIT: u64 = 5;
const LONGEST_WAIT: u64 = 3600;

/// How many are delivered in one go, and to how many hosts at once.
const AT_ONCE: usize = 64;
const HOSTS_AT_ONCE: usize = 8;

/// Delivers what is to be delivered.
pub struct Deliverer<'a> {
    /// From where.
    pub store: &'a dyn Store,
    /// By when.
    pub clock: Clock,
    /// With what.
    pub outside: &'a Outside,
    /// Signs it, if there is one.
    pub secret: Option<&'a str>,
}

impl Deliverer<'_> {
    /// Delivers all that is due, and tells when the next is. One host does not wait for another.
    pub fn deliver(&self) -> Result<Option<UnixSeconds>, StoreError> {
        loop {
            let now = self.clock.now().seconds();
            // A clock that went back must not put anything off for longer than any wait is.
            let is_due = |delivery: &Delivery| delivery.due <= now || delivery.due > now + 2 * LONGEST_WAIT;
            let next = self.store.next_deliveries(AT_ONCE)?;
            let mut hosts: BTreeMap<String, Vec<Delivery>> = BTreeMap::new();
            let waiting = next.iter().find(|delivery| !is_due(delivery)).map(|delivery| delivery.due);
            for delivery in next.into_iter().filter(is_due) {
                hosts.entry(host_of(&delivery.url).to_owned()).or_default().push(delivery);
            }
            if hosts.is_empty() {
                return Ok(waiting);
            }
            let groups: Vec<Vec<Delivery>> = hosts.into_values().take(HOSTS_AT_ONCE).collect();
            std::thread::scope(|scope| {
                let senders: Vec<_> =
                    groups.iter().map(|group| scope.spawn(|| self.deliver_all(group))).collect();
                senders.into_iter().try_for_each(|sender| {
                    sender.join().unwrap_or_else(|_| Err(StoreError::Other("a webhook broke".into())))
                })
            })?;
        }
    }

    /// Delivers to one host, until it does not answer.
    fn deliver_all(&self, group: &[Delivery]) -> Result<(), StoreError> {
        let poster = Poster::new(&self.outside.connect_to, &self.outside.roots);
        let poster = poster.map_err(|error| StoreError::Other(causes(&error)))?;
        for delivery in group {
            if !self.attempt(&poster, delivery)? {
                break;
            }
        }
        Ok(())
    }

    /// Whether somebody answered.
    fn attempt(&self, poster: &Poster, delivery: &Delivery) -> Result<bool, StoreError> {
        let id = delivery.id.to_string();
        let signature = self.secret.map(|secret| sign(secret, &delivery.body));
        let mut headers = vec![("x-ringfence-delivery", id.as_str())];
        headers.extend(signature.as_deref().map(|signature| (SIGNATURE_HEADER, signature)));
        let sent = poster.post(&delivery.url, &headers, &delivery.body, PATIENCE);
        let now = self.clock.now();
        let (state, due, error) = match sent {
            Ok(()) => (DeliveryState::Delivered, 0, None),
            Err(error) => {
                let attempts = delivery.attempts + 1;
                let hopeless = attempts >= MAX_ATTEMPTS || is_final(&error);
                let wait = FIRST_WAIT.saturating_mul(1 << delivery.attempts.min(20)).min(LONGEST_WAIT);
                let state = if hopeless { DeliveryState::Dead } else { DeliveryState::Waiting };
                (state, now.seconds() + wait, Some(causes(&error)))
            }
        };
        if let Some(why) = &error {
            tracing::warn!(task = %delivery.task, delivery = delivery.id, why, "a webhook was not delivered");
        }
        self.store.record_attempt(delivery.id, state, due, error.as_deref(), now)?;
        Ok(state != DeliveryState::Waiting)
    }
}

/// Whom an address belongs to.
fn host_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?', '#']).next().unwrap_or(rest)
}

/// Whether telling them again would change nothing.
fn is_final(error: &PostError) -> bool {
    match error {
        PostError::Address(_) => true,
        PostError::Status(status) => status.is_client_error() && !matches!(status.as_u16(), 408 | 425 | 429),
        PostError::Unready(_) | PostError::Unreachable(_) | PostError::Timeout(_) => false,
    }
}

/// The signature of a body.
pub fn sign(secret: &str, body: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let tag = hmac::sign(&key, body.as_bytes());
    let digits: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256={digits}")
}

#[cfg(test)]
mod tests {
    use super::sign;

    /// The second test of RFC 4231.
    #[test]
    fn a_signature_is_what_everybody_else_computes() {
        let expected = "sha256=5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(sign("Jefe", "what do ya want for nothing?"), expected);
    }
}
