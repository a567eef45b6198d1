//! How often somebody may ask.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};

type Limiter = RateLimiter<String, HashMapStateStore<String>, DefaultClock>;

/// So many wrong keys a minute, and then none is looked at any more.
const WRONG: NonZeroU32 = NonZeroU32::new(20).unwrap();
/// So many clients are remembered.
const CLIENTS: usize = 10_000;

/// Counts for each client.
pub(crate) struct Rates {
    requests: Option<Limiter>,
    wrong: Option<Limiter>,
    clock: DefaultClock,
}

impl Rates {
    /// So many requests a minute; 0 is no bound, for wrong keys neither.
    pub(crate) fn new(requests: u32) -> Self {
        let limiter = |count| RateLimiter::hashmap(Quota::per_minute(count));
        Self {
            requests: NonZeroU32::new(requests).map(limiter),
            wrong: (requests > 0).then(|| limiter(WRONG)),
            clock: DefaultClock::default(),
        }
    }

    /// Counts a request, or says how long to wait.
    pub(crate) fn request(&self, client: &str) -> Result<(), Duration> {
        self.requests.as_ref().map_or(Ok(()), |limiter| self.count(limiter, client))
    }

    /// Counts a wrong key, or says how long to wait before the next one is looked at.
    pub(crate) fn wrong(&self, client: &str) -> Result<(), Duration> {
        self.wrong.as_ref().map_or(Ok(()), |limiter| self.count(limiter, client))
    }

    fn count(&self, limiter: &Limiter, client: &str) -> Result<(), Duration> {
        if limiter.len() > CLIENTS {
            limiter.retain_recent();
        }
        limiter.check_key(&client.to_owned()).map_err(|not_yet| not_yet.wait_time_from(self.clock.now()))
    }
}
