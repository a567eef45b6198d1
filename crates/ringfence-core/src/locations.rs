//! Where the directories of a tree were when a run began: a directory that is elsewhere afterwards was moved by the run, and
//! with it everything below.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;

/// Where the directories of a tree were.
#[derive(Debug, Clone)]
pub struct Locations {
    /// Hashes of the paths and inodes: a tree can have hundreds of thousands.
    known: HashSet<u64>,
    /// Those of directories in which every user could write.
    open: HashSet<u64>,
    key: RandomState,
}

impl Locations {
    /// Without any directory yet. The key has to be random, so that no run can make two hashes equal.
    pub fn new(key: RandomState) -> Self {
        Self { known: HashSet::new(), open: HashSet::new(), key }
    }

    /// Notes a directory by its path, from the root of the tree, and the number of its inode.
    pub fn note(&mut self, path: &Path, inode: u64) {
        self.known.insert(self.key.hash_one((path, inode)));
    }

    /// Notes a directory in which every user can write.
    pub fn note_open(&mut self, path: &Path, inode: u64) {
        self.open.insert(self.key.hash_one((path, inode)));
    }

    /// Whether every user could write in the directory.
    pub fn was_open(&self, path: &Path, inode: u64) -> bool {
        self.open.contains(&self.key.hash_one((path, inode)))
    }

    /// Whether the directory was there.
    pub fn contains(&self, path: &Path, inode: u64) -> bool {
        self.known.contains(&self.key.hash_one((path, inode)))
    }
}
