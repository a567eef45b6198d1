//! Whether a file changed since a run began.
//!
//! The time of change that the kernel keeps tells it in most file systems. In tmpfs a program that has mapped a file writes it
//! without a new time, and some file systems take that time from programs or from a server: there the content is compared too.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::AsFd;
use std::path::Path;

use ringfence_core::paths::DirectoryId;

use crate::{Directory, EntryKind, Metadata};

/// Granularity of the coarsest file system's times, in seconds: FAT.
const COARSEST_SECONDS: i64 = 2;
/// Most bytes of one file, and of all together, whose content is noted. What is not noted counts as changed.
const MAX_FILE_BYTES: u64 = 16 << 20;
const MAX_NOTED_BYTES: u64 = 256 << 20;

/// The time at which a run began, by the clock of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BeginTime {
    /// Seconds and nanoseconds.
    pub time: (i64, i64),
    /// The device of the file system.
    pub device: u64,
}

impl BeginTime {
    /// Now, as the file system of a directory tells it: that of a new file, which is removed at once. `None` if none can be made.
    pub fn now(directory: &Directory) -> Option<Self> {
        let data = match directory.create_unnamed_file(0o600).ok()? {
            Some(file) => Metadata::of(file).ok()?,
            None => {
                let name = format!(".ringfence-begin-{:x}", RandomState::new().hash_one(0));
                let file = directory.create_file(Path::new(&name), 0o600).ok()?;
                let data = Metadata::of(file);
                directory.remove_file(Path::new(&name)).ok()?;
                data.ok()?
            }
        };
        Some(Self { time: data.changed(), device: data.id().device })
    }

    /// Whether a file changed since then, as far as its time tells. Files of other file systems may have coarser times.
    pub(super) fn is_before(self, data: &Metadata) -> bool {
        let (seconds, nanoseconds) = self.time;
        let time = match data.id().device == self.device {
            true => (seconds, nanoseconds),
            false => (seconds.saturating_sub(COARSEST_SECONDS), 0),
        };
        data.changed() >= time
    }
}

/// Content of files before a run, where times do not tell that they changed.
#[derive(Debug, Default)]
pub struct Contents {
    /// Hashes of inodes and content. The key is random, so that no run can make two hashes equal.
    known: RefCell<HashSet<u64>>,
    key: RandomState,
    /// Whether content is noted rather than compared.
    is_noting: Cell<bool>,
    noted_bytes: Cell<u64>,
    /// Devices that were looked at, and whether the times of their file systems tell every change.
    devices: RefCell<HashMap<u64, bool>>,
}

impl Contents {
    /// Notes what is looked at from now on, until [`Self::end_noting`].
    pub fn begin_noting(&self) {
        self.is_noting.set(true);
    }

    /// Compares what is looked at from now on.
    pub fn end_noting(&self) {
        self.is_noting.set(false);
    }

    /// Whether content is being noted.
    pub fn is_noting(&self) -> bool {
        self.is_noting.get()
    }

    /// Notes what a file contains, if its time does not tell that it changes.
    fn note(&self, directory: &Directory, name: &Path, data: &Metadata) {
        if !self.is_told_by_time(directory, name, data)
            && let Some(hash) = self.hash(directory, name, data)
        {
            self.known.borrow_mut().insert(hash);
        }
    }

    /// Whether a file, whose time may not tell that it changed, does not contain what was noted.
    fn is_unknown(&self, directory: &Directory, name: &Path, data: &Metadata) -> bool {
        let is_known = |hash| self.known.borrow().contains(&hash);
        !self.is_told_by_time(directory, name, data)
            && !self.hash(directory, name, data).is_some_and(is_known)
    }

    fn is_told_by_time(&self, directory: &Directory, name: &Path, data: &Metadata) -> bool {
        if !matches!(data.kind(), EntryKind::File | EntryKind::Link) {
            return true;
        }
        let DirectoryId { device, .. } = data.id();
        let known = self.devices.borrow().get(&device).copied();
        known.unwrap_or_else(|| {
            let is_told = directory.handle(name).is_ok_and(times_tell_changes);
            self.devices.borrow_mut().insert(device, is_told);
            is_told
        })
    }

    /// `None` for what is too long or cannot be read.
    fn hash(&self, directory: &Directory, name: &Path, data: &Metadata) -> Option<u64> {
        if data.kind() == EntryKind::Link {
            let target = directory.read_link(name).ok()?;
            return Some(self.key.hash_one((data.inode(), target)));
        }
        if self.is_noting() {
            let noted = self.noted_bytes.get().saturating_add(data.length());
            self.noted_bytes.set(noted);
            if noted > MAX_NOTED_BYTES {
                return None;
            }
        }
        let content = directory.read(name, MAX_FILE_BYTES).ok()?;
        Some(self.key.hash_one((data.inode(), content)))
    }
}

/// What tells that a file changed.
#[derive(Debug, Clone, Copy)]
pub struct Changes<'a> {
    /// When the run began.
    pub since: BeginTime,
    /// Content of files before it.
    pub contents: &'a Contents,
}

impl Changes<'_> {
    /// Whether a file in a directory, which has this metadata, changed.
    pub fn include(&self, directory: &Directory, name: &Path, data: &Metadata) -> bool {
        if self.contents.is_noting() {
            self.contents.note(directory, name, data);
            return false;
        }
        self.since.is_before(data) || self.contents.is_unknown(directory, name, data)
    }
}

/// Whether the time of change of a file tells every change of its content, and no program can set it.
#[cfg(target_os = "linux")]
pub fn times_tell_changes(file: impl AsFd) -> bool {
    // ext2 to ext4, xfs, btrfs, f2fs, bcachefs, ZFS, JFS, NILFS, NFS, Ceph.
    const TELLING: [u64; 10] = [
        0xef53,
        0x5846_5342,
        0x9123_683e,
        0xf2f5_2010,
        0xca45_1a4e,
        0x2fc1_2fc1,
        0x3153_464a,
        0x3434,
        0x6969,
        0x00c3_6400,
    ];
    #[allow(clippy::cast_sign_loss, clippy::unnecessary_cast, reason = "the type differs between platforms")]
    rustix::fs::fstatfs(file).is_ok_and(|data| TELLING.contains(&(data.f_type as u32 as u64)))
}

/// The same elsewhere: APFS.
#[cfg(not(target_os = "linux"))]
pub fn times_tell_changes(_: impl AsFd) -> bool {
    true
}
