//! The time, and names made from it.

use std::hash::{BuildHasher, Hasher, RandomState};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use ringfence_core::ids::{BadName, RunId};

/// Milliseconds since the epoch.
pub(crate) fn now_ms() -> u64 {
    u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0)
}

/// The time as RFC 3339.
pub(crate) fn now_text() -> String {
    format!("{:.3}", Timestamp::now())
}

/// A name that sorts by time and that people can read: date, time, milliseconds and four letters against accidents.
pub(crate) fn new_run_id() -> Result<RunId, BadName> {
    let now = Timestamp::now().to_zoned(TimeZone::UTC).strftime("%Y%m%d-%H%M%S-%3f").to_string();
    // Every hasher of the standard library starts from fresh random keys.
    let mut random = RandomState::new().build_hasher().finish();
    let letters: String = std::iter::repeat_with(|| {
        let letter = b"abcdefghijkmnpqrstuvwxyz23456789"[(random % 32) as usize];
        random /= 32;
        char::from(letter)
    })
    .take(4)
    .collect();
    format!("{now}{letters}").parse()
}
