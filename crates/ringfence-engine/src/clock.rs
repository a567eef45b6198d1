//! The time, and names made from it.
#![expect(clippy::disallowed_methods, reason = "the user names the file, in builds for tests alone")]

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use ringfence_core::ids::{InvalidId, RunId};
use ringfence_store::Now;

/// The clock that the queue goes by.
#[derive(Debug, Clone, Default)]
pub struct Clock {
    /// A file with seconds to be added, so that a test can let the clock jump.
    shift: Option<PathBuf>,
}

impl Clock {
    /// A clock that jumps as a file says.
    pub fn shifted_by(file: PathBuf) -> Self {
        Self { shift: Some(file) }
    }

    /// The time.
    pub fn now(&self) -> Now {
        let shift = self.shift.as_ref().and_then(|file| std::fs::read_to_string(file).ok());
        let shift: i64 = shift.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        Now { ms: now_ms().saturating_add_signed(shift.saturating_mul(1000)) }
    }
}

/// Milliseconds since the epoch.
pub(crate) fn now_ms() -> u64 {
    u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0)
}

/// The time as RFC 3339.
pub(crate) fn now_text() -> String {
    format!("{:.3}", Timestamp::now())
}

/// A name that sorts by time and that people can read: date, time, milliseconds and four letters against accidents.
pub(crate) fn new_run_id() -> Result<RunId, InvalidId> {
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
