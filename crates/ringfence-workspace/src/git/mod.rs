//! Git without trusting a run: a private git directory for it, and the import of its commits afterwards.
//!
//! A run never writes the real git directory. Git executes what a configuration, a hook or an attribute names, so nothing of
//! these comes back: only verified objects, refs, `HEAD` and the index do, each only if the real one did not change meanwhile.

mod bare;
mod checked_out;
mod commands;
mod committed;
mod config;
mod confine;
mod gitlinks;
mod hidden_files;
mod import;
mod index;
mod indirect;
mod linked;
mod private;
mod program;
mod refs;
mod repository;
mod words;

use std::io;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use commands::{CommandKind, ConfiguredCommand};
pub use committed::{Committed, INDEX};
pub use import::{Import, Imported, RefChange, forget, has_commits, import, repository_of};
pub use index::{INDEX_BUDGET_BYTES, IndexedPath, indexed_paths, submodule_paths};
pub use indirect::{
    Budget, Configuration, Followed, LinkedHooks, Located, Reach, configured, configured_in, linked_hooks,
    locate, locate_within,
};
pub use private::{MAX_INDEX_BYTES, MODULES, Made, Making, SharedPart, make, make_empty, shared_parts};
pub use program::find as find_git;
pub use refs::{RefsBudget, RefsError};
pub use repository::{Found, Kind, Repository, lexical};

use crate::{DirectoryError, Metadata, ReadError};

/// What a run sees as its git directory.
pub const PRIVATE: &str = "private";
/// What the real git directory was like at the start.
const START: &str = "start.json";
/// Its refs at the start.
const START_REFS: &str = "packed-refs";

/// Why a private git directory cannot be made or imported.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// A directory cannot be opened.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The user committed, reset or checked out something meanwhile.
    #[error("HEAD or its branch moved in the repository since the run began, so the index there is kept")]
    HeadMoved,
    /// Refs cannot be read.
    #[error(transparent)]
    Refs(#[from] RefsError),
    /// `HEAD` cannot be read.
    #[error("failed to read HEAD: {0}")]
    Head(#[source] ReadError),
    /// The private git directory cannot be written.
    #[error("failed to write {}: {source}", path.display())]
    Make {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// What was noted at the start cannot be read.
    #[error("failed to read what was noted of the repository")]
    Start(#[from] serde_json::Error),
    /// More refs changed, or exist, than are handled.
    #[error("it has too many refs, or the run changed too many")]
    TooManyRefs,
    /// The index is too large to be copied.
    #[error("its index has {bytes} bytes, more than the {limit} that are copied for a run")]
    IndexTooLarge {
        /// Its length.
        bytes: u64,
        /// What is left of the bound.
        limit: u64,
    },
    /// The index exists and cannot be copied. A commit without it would delete every file.
    #[error("its index is denied, no regular file or cannot be read")]
    IndexNotCopied,
    /// The run left more objects than can be linked in time.
    #[error("it took too long to link the objects of the run")]
    ObjectsTooSlow,
    /// Objects are more files than are looked at.
    #[error("its objects are too many files; `git gc` packs them")]
    TooManyObjects,
    /// Git would write or read through a link, or wait for what is no file.
    #[error("its git directory has a symbolic link, or what is no file, at {}", .0.display())]
    Link(PathBuf),
    /// The git program is missing.
    #[error("git is not installed on this machine")]
    NoGit,
    /// The kernel cannot keep git from executing what a run may have made.
    #[error(
        "the kernel does not let git be confined with Landlock ({0}): use a kernel of Linux 5.13 or newer that has it enabled"
    )]
    NotConfined(io::Error),
    /// A git command failed.
    #[error("git {command} failed: {message}")]
    Git {
        /// Its first word.
        command: String,
        /// What it printed.
        message: String,
    },
    /// A git command took too long.
    #[error("git {command} took too long")]
    TooSlow {
        /// Its first word.
        command: String,
    },
}

/// A file as it was: enough to notice that it was replaced or changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    inode: u64,
    length: u64,
    /// Seconds and nanoseconds.
    modified: (i64, i64),
    /// Seconds and nanoseconds.
    changed: (i64, i64),
}

impl Stamp {
    fn of(data: &Metadata) -> Self {
        Self {
            inode: data.inode(),
            length: data.length(),
            modified: data.modified(),
            changed: data.changed(),
        }
    }
}
