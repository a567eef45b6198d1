//! How often somebody may ask, and how often they may be wrong.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use governor::clock::{Clock, DefaultClock};
use governor::state::keyed::HashMapStateStore;
use governor::{Quota, RateLimiter};

use crate::app::lock;

/// So many wrong keys in so long, and then none is looked at any more for as long.
const WRONG: u32 = 20;
const WRONG_WITHIN: Duration = Duration::from_secs(60);
/// So many clients are remembered.
const CLIENTS: usize = 10_000;

/// Counts for each client.
pub(crate) struct Rates {
    requests: Option<RateLimiter<String, HashMapStateStore<String>, DefaultClock>>,
    wrong: Mutex<BTreeMap<String, (Instant, u32)>>,
    clock: DefaultClock,
}

impl Rates {
    /// So many requests a minute; 0 is no bound, for wrong keys neither.
    pub(crate) fn new(requests: u32) -> Self {
        let limiter = |count| RateLimiter::hashmap(Quota::per_minute(count));
        Self {
            requests: NonZeroU32::new(requests).map(limiter),
            wrong: Mutex::default(),
            clock: DefaultClock::default(),
        }
    }

    /// Counts a request, or says how long to wait.
    pub(crate) fn request(&self, client: &str) -> Result<(), Duration> {
        let Some(limiter) = &self.requests else { return Ok(()) };
        if limiter.len() > CLIENTS {
            limiter.retain_recent();
        }
        limiter.check_key(&client.to_owned()).map_err(|not_yet| not_yet.wait_time_from(self.clock.now()))
    }

    /// Whether this client's keys are looked at, or how long not.
    pub(crate) fn may_try(&self, client: &str) -> Result<(), Duration> {
        match lock(&self.wrong).get(client) {
            Some((since, count)) if *count >= WRONG && self.requests.is_some() => {
                let left = WRONG_WITHIN.saturating_sub(since.elapsed());
                if left.is_zero() { Ok(()) } else { Err(left) }
            }
            _ => Ok(()),
        }
    }

    /// Counts a wrong key.
    pub(crate) fn wrong(&self, client: &str) {
        let mut wrong = lock(&self.wrong);
        wrong.retain(|_, (since, _)| since.elapsed() < WRONG_WITHIN);
        if wrong.len() >= CLIENTS {
            wrong.clear();
        }
        wrong.entry(client.to_owned()).or_insert_with(|| (Instant::now(), 0)).1 += 1;
    }
}

/// By what clients are told apart: an IPv6 network is one client, and so is loopback, whose every address any user can use.
pub(crate) fn client(address: IpAddr) -> String {
    match address.to_canonical() {
        address if address.is_loopback() => "loopback".to_owned(),
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}::/64")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Rates, client};

    #[test]
    fn who_is_wrong_too_often_is_not_listened_to_any_more() {
        let rates = Rates::new(1000);
        for _ in 0..20 {
            assert!(rates.may_try("a").is_ok());
            rates.wrong("a");
        }
        assert!(rates.may_try("a").is_err(), "not even if it is right now");
        assert!(rates.may_try("b").is_ok());
        assert!(Rates::new(0).may_try("a").is_ok());
    }

    #[test]
    fn a_network_of_its_own_is_one_client() {
        let of = |text: &str| client(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8:0:1::1"), of("2001:db8:0:2::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_eq!(of("127.0.0.1"), of("127.9.8.7"));
        assert_eq!(of("127.0.0.1"), of("::1"));
    }
}
