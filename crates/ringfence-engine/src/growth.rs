//! How much a run may add to the disk of its workspace, in bytes and in files.
//!
//! Nothing bounds a directory without privileges, so the free space of the file system, and its files, are looked at while the run goes on. Other
//! programs that write there count too: when the disk fills up, the run is what can be ended.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringfence_core::units::MemorySize;
use rustix::fs::StatVfs;

/// How often it is looked at. A disk takes some gigabytes in that time, which the default leaves free.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// What a run may take of a file system.
pub(crate) struct Growth {
    path: PathBuf,
    free_at_start: u64,
    most: MemorySize,
    /// Absent where a file system does not count its files.
    files: Option<Files>,
    pub(crate) next_check: Instant,
}

/// The files of a file system. Empty files fill it up too: it has a fixed number of inodes.
struct Files {
    at_start: u64,
    most: u64,
}

/// What was taken more of than may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exceeded {
    /// More than this of the free space.
    Space(MemorySize),
    /// More than so many files.
    Files(u64),
}

impl Growth {
    /// The default: three quarters of what is free.
    pub(crate) fn default_limit(path: &Path) -> Option<MemorySize> {
        let most = (free_bytes(path)? / 4 * 3) & !((1 << 20) - 1);
        (most > 0).then(|| MemorySize::from_bytes(most))
    }

    /// Looks at the file system of this path from now on. Nothing if its free space cannot be read. Of the files that it has room
    /// for, a run may make three quarters.
    pub(crate) fn begin(path: &Path, most: MemorySize) -> Option<Self> {
        let next_check = Instant::now() + CHECK_INTERVAL;
        let space = rustix::fs::statvfs(path).ok()?;
        let files =
            (space.f_files > 0).then(|| Files { at_start: files(&space), most: space.f_ffree / 4 * 3 });
        Some(Self { path: path.to_owned(), free_at_start: free(&space)?, most, files, next_check })
    }

    /// The limit, if more than that was taken by now.
    pub(crate) fn exceeded(&mut self, now: Instant) -> Option<Exceeded> {
        if now < self.next_check {
            return None;
        }
        self.next_check = now + CHECK_INTERVAL;
        let space = rustix::fs::statvfs(&self.path).ok()?;
        if self.free_at_start.saturating_sub(free(&space)?) > self.most.bytes() {
            return Some(Exceeded::Space(self.most));
        }
        let made = |from: &&Files| files(&space).saturating_sub(from.at_start);
        let exceeded = self.files.as_ref().filter(|from| made(from) > from.most)?;
        Some(Exceeded::Files(exceeded.most))
    }
}

fn free_bytes(path: &Path) -> Option<u64> {
    free(&rustix::fs::statvfs(path).ok()?)
}

fn free(space: &StatVfs) -> Option<u64> {
    space.f_bavail.checked_mul(space.f_frsize)
}

/// The files that there are. Where inodes are made as they are needed, the number of free ones falls with the free space.
fn files(space: &StatVfs) -> u64 {
    space.f_files.saturating_sub(space.f_ffree)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use ringfence_core::units::MemorySize;

    use super::{CHECK_INTERVAL, Exceeded, Files, Growth, free_bytes};

    #[test]
    fn what_was_taken_is_compared_at_intervals() {
        let directory = tempfile::tempdir().unwrap();
        let mut growth = Growth::begin(directory.path(), MemorySize::from_bytes(1 << 30)).unwrap();
        let later = Instant::now() + CHECK_INTERVAL + Duration::from_secs(1);
        assert_eq!(growth.exceeded(later), None);
        growth.free_at_start += 10 << 30;
        assert_eq!(growth.exceeded(later), None, "it was looked at just now");
        let most = MemorySize::from_bytes(1 << 30);
        assert_eq!(growth.exceeded(later + CHECK_INTERVAL), Some(Exceeded::Space(most)));
    }

    #[test]
    fn files_are_counted_besides_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let mut growth = Growth::begin(directory.path(), MemorySize::from_bytes(1 << 40)).unwrap();
        let later = Instant::now() + CHECK_INTERVAL + Duration::from_secs(1);
        assert_eq!(growth.exceeded(later), None);
        // Where inodes are not counted, there is nothing to compare.
        let Some(Files { most, .. }) = growth.files else { return };
        growth.files = Some(Files { at_start: 0, most: 0 });
        assert_eq!(growth.exceeded(later + CHECK_INTERVAL), Some(Exceeded::Files(0)));
        growth.files = None;
        assert!(growth.exceeded(later + 2 * CHECK_INTERVAL).is_none() && most > 0);
    }

    #[test]
    fn the_default_leaves_a_quarter_free() {
        let directory = tempfile::tempdir().unwrap();
        let most = Growth::default_limit(directory.path()).unwrap().bytes();
        assert!(most < free_bytes(directory.path()).unwrap());
        assert_eq!(Growth::default_limit(std::path::Path::new("/nonexistent")), None);
    }
}
