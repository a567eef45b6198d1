//! Files of a workspace, opened so that a run cannot redirect the host: beneath a directory descriptor, without following
//! symbolic links, regular files only, bounded in size, never blocking.
//!
//! A run writes in its workspace, and a later run may have the same workspace or one below it. So no name below a workspace
//! can be trusted. What must not be here: a function that takes an absolute path, other than [`Directory::open`] and, for programs that are
//! in no workspace, [`HostPrograms`] and [`RunTrees`].

mod directory;
mod edit;
pub mod executed;
mod file;
pub mod git;
mod hidden;
mod host_programs;
mod path_list;
mod permissions;
mod remove;
mod run_trees;
mod state_directories;
mod stubs;
mod walk;

pub use directory::{Directory, DirectoryError, Entry, EntryKind, MAX_PATH_BYTES, Metadata};
pub use edit::Existing;
pub use file::{ReadError, read_bounded};
pub use hidden::HiddenFiles;
pub use host_programs::{HostPrograms, is_executable};
pub use permissions::keeps_permissions;
pub use remove::{remove_tree, remove_tree_until};
pub use run_trees::{RunTrees, missing as missing_trees};
pub use state_directories::StateDirectories;
pub use stubs::{StubContent, StubList};
pub use walk::{Bounds, Next, Step, Unvisited, Visit, walk, walk_with_directories};
