//! How much a run may add to the disk of its workspace.
//!
//! Nothing bounds a directory without privileges, so the free space of the file system is looked at while the run goes on. Other
//! programs that write there count too: when the disk fills up, the run is what can be ended.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringfence_core::units::MemorySize;

/// How often it is looked at. A disk takes some gigabytes in that time, which the default leaves free.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// The free space that a run may take.
pub(crate) struct Growth {
    path: PathBuf,
    free_at_start: u64,
    most: MemorySize,
    pub(crate) next_check: Instant,
}

impl Growth {
    /// The default: three quarters of what is free.
    pub(crate) fn default_limit(path: &Path) -> Option<MemorySize> {
        let most = (free_bytes(path)? / 4 * 3) & !((1 << 20) - 1);
        (most > 0).then(|| MemorySize::from_bytes(most))
    }

    /// Looks at the file system of this path from now on. Nothing if its free space cannot be read.
    pub(crate) fn begin(path: &Path, most: MemorySize) -> Option<Self> {
        let next_check = Instant::now() + CHECK_INTERVAL;
        Some(Self { path: path.to_owned(), free_at_start: free_bytes(path)?, most, next_check })
    }

    /// The limit, if more than that was taken by now.
    pub(crate) fn exceeded(&mut self, now: Instant) -> Option<MemorySize> {
        if now < self.next_check {
            return None;
        }
        self.next_check = now + CHECK_INTERVAL;
        let taken = self.free_at_start.saturating_sub(free_bytes(&self.path)?);
        (taken > self.most.bytes()).then_some(self.most)
    }
}

fn free_bytes(path: &Path) -> Option<u64> {
    let space = rustix::fs::statvfs(path).ok()?;
    space.f_bavail.checked_mul(space.f_frsize)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use ringfence_core::units::MemorySize;

    use super::{CHECK_INTERVAL, Growth, free_bytes};

    #[test]
    fn what_was_taken_is_compared_at_intervals() {
        let directory = tempfile::tempdir().unwrap();
        let mut growth = Growth::begin(directory.path(), MemorySize::from_bytes(1 << 30)).unwrap();
        let later = Instant::now() + CHECK_INTERVAL + Duration::from_secs(1);
        assert_eq!(growth.exceeded(later), None);
        growth.free_at_start += 10 << 30;
        assert_eq!(growth.exceeded(later), None, "it was looked at just now");
        assert_eq!(growth.exceeded(later + CHECK_INTERVAL), Some(MemorySize::from_bytes(1 << 30)));
    }

    #[test]
    fn the_default_leaves_a_quarter_free() {
        let directory = tempfile::tempdir().unwrap();
        let most = Growth::default_limit(directory.path()).unwrap().bytes();
        assert!(most < free_bytes(directory.path()).unwrap());
        assert_eq!(Growth::default_limit(std::path::Path::new("/nonexistent")), None);
    }
}
