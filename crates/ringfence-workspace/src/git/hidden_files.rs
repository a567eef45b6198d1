//! Files that a run must not read, and that it could have git track.
//!
//! A run sees nothing of a hidden file, but its commits and its index can have an entry of that path. Then the next `git commit -a`
//! or `git stash` of the user would put what the file holds into a commit, which later runs read. So what adds such an entry is
//! kept aside.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use globset::{Glob, GlobSet, GlobSetBuilder};

use super::private::Start;

/// Longest path that is shown, in characters.
const MAX_SHOWN: usize = 100;

/// Files of a working tree that the run could not read.
#[derive(Debug, Default)]
pub(super) struct HiddenFiles {
    /// Those that were there, files and directories, from the working tree.
    paths: BTreeSet<PathBuf>,
    /// What the policy denies, from the workspace.
    denied: GlobSet,
    /// The working tree, from the workspace.
    tree: PathBuf,
}

/// Paths that a ref or the index adds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct AddedFiles {
    /// Those of hidden files.
    pub(super) hidden: BTreeSet<PathBuf>,
    /// Those that the policy denies where the run saw none.
    pub(super) denied: BTreeSet<PathBuf>,
}

impl HiddenFiles {
    pub(super) fn of(start: &Start) -> Self {
        // They were valid when the run began.
        let mut denied = GlobSetBuilder::new();
        for glob in start.denied.iter().filter_map(|glob| Glob::new(glob).ok()) {
            denied.add(glob);
        }
        Self {
            paths: start.hidden.iter().map(PathBuf::from).collect(),
            denied: denied.build().unwrap_or_default(),
            tree: PathBuf::from(&start.tree),
        }
    }

    /// These paths alone.
    #[cfg(test)]
    pub(super) fn at(paths: &[&str]) -> Self {
        Self { paths: paths.iter().map(PathBuf::from).collect(), ..Self::default() }
    }

    /// Notes a path that is added, if the run could not read a file there.
    pub(super) fn note(&self, path: &Path, added: &mut AddedFiles) {
        if path.ancestors().any(|above| self.paths.contains(above)) {
            added.hidden.insert(path.to_owned());
        } else if self.denied.is_match(self.tree.join(path)) {
            added.denied.insert(path.to_owned());
        }
    }
}

impl AddedFiles {
    /// Why what adds them is not taken over, if it is not.
    pub(super) fn refused(&self) -> Option<String> {
        let path = self.hidden.first()?;
        let more = match self.hidden.len() - 1 {
            0 => String::new(),
            more => format!(" (and {more} more)"),
        };
        Some(format!(
            "git would then take {}{more}, which is hidden from runs, into your next commit or stash, where later runs can read it",
            shown(path)
        ))
    }

    /// What is said of those that are taken over.
    pub(super) fn notice(&self, name: &str) -> Option<String> {
        let path = self.denied.first()?;
        let more = match self.denied.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Some(format!(
            "{name} adds {}{more}, which the policy denies: what you write there and commit can be read by later runs",
            shown(path)
        ))
    }
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().chars().filter(|char| !char.is_control()).take(MAX_SHOWN).collect()
}
