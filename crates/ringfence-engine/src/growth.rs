//! How much a run may add to the disks that it writes on, in bytes and in files.
//!
//! Nothing bounds a directory without privileges, so the free space of the file system, and its files, are looked at while the run goes on. Other
//! programs that write there count too: when the disk fills up, the run is what can be ended.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringfence_core::units::MemorySize;
use rustix::fs::StatVfs;

/// How often it is looked at. A disk takes some gigabytes in that time, which the default leaves free.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// What a run may take of the file systems that it writes on.
pub(crate) struct Growth {
    systems: Vec<FileSystem>,
    pub(crate) next_check: Instant,
}

struct FileSystem {
    path: PathBuf,
    /// What it is the file system of, for the user.
    name: String,
    device: u64,
    free_at_start: u64,
    most: MemorySize,
    /// Absent where a file system does not count its files.
    files: Option<Files>,
}

/// The files of a file system. Empty files fill it up too: it has a fixed number of inodes.
struct Files {
    at_start: u64,
    most: u64,
}

/// What was taken more of than may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Exceeded {
    /// More than this of the free space, and of which file system.
    Space(MemorySize, String),
    /// More than so many files, and of which file system.
    Files(u64, String),
}

impl Growth {
    /// The default: three quarters of what is free.
    pub(crate) fn default_limit(path: &Path) -> Option<MemorySize> {
        let most = (free_bytes(path)? / 4 * 3) & !((1 << 20) - 1);
        (most > 0).then(|| MemorySize::from_bytes(most))
    }

    /// Looks at the file systems of these paths from now on, of each once, as far as their free space can be read. The limit is that
    /// of the first; of others, and of the files that each has room for, a run may take three quarters of what is free.
    pub(crate) fn begin<'a>(paths: impl Iterator<Item = &'a Path>, most: MemorySize) -> Option<Self> {
        let mut systems: Vec<FileSystem> = Vec::new();
        for (number, path) in paths.enumerate() {
            let Some(mut system) = FileSystem::look(path, most) else { continue };
            if systems.iter().any(|known| known.device == system.device) {
                continue;
            }
            if number > 0 {
                system.name = path.display().to_string();
                system.most = MemorySize::from_bytes(most.bytes().min(system.free_at_start / 4 * 3));
            }
            systems.push(system);
        }
        (!systems.is_empty()).then(|| Self { systems, next_check: Instant::now() + CHECK_INTERVAL })
    }

    /// The limit, if more than that was taken by now.
    pub(crate) fn exceeded(&mut self, now: Instant) -> Option<Exceeded> {
        if now < self.next_check {
            return None;
        }
        self.next_check = now + CHECK_INTERVAL;
        self.exceeded_now()
    }

    /// The same at any time, as at the end of the run.
    pub(crate) fn exceeded_now(&self) -> Option<Exceeded> {
        self.systems.iter().find_map(FileSystem::exceeded)
    }
}

impl FileSystem {
    #[expect(clippy::disallowed_methods, reason = "only which file system it is; nothing is opened")]
    fn look(path: &Path, most: MemorySize) -> Option<Self> {
        let space = rustix::fs::statvfs(path).ok()?;
        let files =
            (space.f_files > 0).then(|| Files { at_start: files(&space), most: space.f_ffree / 4 * 3 });
        let device = std::fs::metadata(path).ok()?.dev();
        let (path, name) = (path.to_owned(), "the workspace".to_owned());
        Some(Self { path, name, device, free_at_start: free(&space)?, most, files })
    }

    fn exceeded(&self) -> Option<Exceeded> {
        let space = rustix::fs::statvfs(&self.path).ok()?;
        if self.free_at_start.saturating_sub(free(&space)?) > self.most.bytes() {
            return Some(Exceeded::Space(self.most, self.name.clone()));
        }
        let made = |from: &&Files| files(&space).saturating_sub(from.at_start);
        let exceeded = self.files.as_ref().filter(|from| made(from) > from.most)?;
        Some(Exceeded::Files(exceeded.most, self.name.clone()))
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
        let mut growth =
            Growth::begin([directory.path()].into_iter(), MemorySize::from_bytes(1 << 30)).unwrap();
        let later = Instant::now() + CHECK_INTERVAL + Duration::from_secs(1);
        assert_eq!(growth.exceeded(later), None);
        growth.systems[0].free_at_start += 10 << 30;
        assert_eq!(growth.exceeded(later), None, "it was looked at just now");
        let most = MemorySize::from_bytes(1 << 30);
        assert_eq!(
            growth.exceeded(later + CHECK_INTERVAL),
            Some(Exceeded::Space(most, "the workspace".into()))
        );
    }

    #[test]
    fn every_file_system_is_looked_at_once_with_a_limit_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let most = MemorySize::from_bytes(u64::MAX);
        let paths = [directory.path(), directory.path(), std::path::Path::new("/dev/shm")];
        let growth = Growth::begin(paths.into_iter(), most).unwrap();
        assert!(growth.systems.len() <= 2 && growth.systems[0].most == most);
        let other = growth.systems.get(1);
        assert!(other.is_none_or(|other| other.most.bytes() <= other.free_at_start / 4 * 3));
    }

    #[test]
    fn files_are_counted_besides_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let mut growth =
            Growth::begin([directory.path()].into_iter(), MemorySize::from_bytes(1 << 40)).unwrap();
        let later = Instant::now() + CHECK_INTERVAL + Duration::from_secs(1);
        assert_eq!(growth.exceeded(later), None);
        // Where inodes are not counted, there is nothing to compare.
        let Some(Files { most, .. }) = growth.systems[0].files else { return };
        growth.systems[0].files = Some(Files { at_start: 0, most: 0 });
        assert_eq!(growth.exceeded(later + CHECK_INTERVAL), Some(Exceeded::Files(0, "the workspace".into())));
        growth.systems[0].files = None;
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
