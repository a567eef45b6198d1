//! The directories that runs of an installation could write: workspaces, and what policies let them write besides.
//!
//! What lies below one of them may be a run's, long after that run: such a file is no policy, and no program of it is started
//! on the host. The list is a file of the state directory, which no run sees.

use std::io;
use std::path::{Path, PathBuf};

use crate::host_programs::Breadth;
use crate::path_list::PathList;

/// Most directories in the list. Beyond that, those that are gone are left out, then the oldest.
const MAX_TREES: usize = 4096;
/// No list is longer, in bytes.
const MAX_LIST_BYTES: u64 = 32 << 20;

/// The list of one installation.
#[derive(Debug, Clone)]
pub struct RunTrees(PathList);

impl RunTrees {
    /// The name of the list. Every state directory with runs has it, so it also tells what a state directory is.
    pub const FILE_NAME: &str = "ringfence.trees";

    /// The list in a state directory.
    pub fn of(state: &Path) -> Self {
        Self::at(state.join(Self::FILE_NAME))
    }

    /// The list of those that were no workspace, but given besides: nothing is reserved in their roots.
    pub fn granted(state: &Path) -> Self {
        Self::at(state.join("ringfence.grants"))
    }

    fn at(file: PathBuf) -> Self {
        let (max_bytes, max_paths) = (MAX_LIST_BYTES, MAX_TREES);
        // Half of it, so that not every new directory has those that are gone looked for.
        Self(PathList { file, max_bytes, max_paths, kept_paths: MAX_TREES / 2, waits: true })
    }

    /// The directories, links resolved as they were when a run began there.
    pub fn list(&self) -> io::Result<Vec<PathBuf>> {
        self.0.read()
    }

    /// The same without those that hold the home or the system's programs.
    pub fn narrow(&self, home: &Path) -> io::Result<Vec<PathBuf>> {
        let breadth = Breadth::new(Some(home));
        Ok(self.list()?.into_iter().filter(|tree| breadth.is_narrow(tree)).collect())
    }

    /// Adds directories, unless they are in the list or below one that is. Below one that holds the home or the system's programs
    /// they are added too: programs are started from there, so it alone excludes none.
    pub fn add(&self, trees: &[PathBuf], home: &Path) -> io::Result<()> {
        self.0.add(|known| missing(known, trees, home))
    }
}

/// Those that are neither in a list nor below one of its directories that excludes programs.
pub fn missing(known: &[PathBuf], trees: &[PathBuf], home: &Path) -> Vec<PathBuf> {
    // Mostly they are in the list, and nothing has to be resolved.
    let unlisted: Vec<&PathBuf> = trees.iter().filter(|tree| !known.contains(tree)).collect();
    if unlisted.is_empty() {
        return Vec::new();
    }
    let breadth = Breadth::new(Some(home));
    let narrow: Vec<&PathBuf> = known.iter().filter(|tree| breadth.is_narrow(tree)).collect();
    let is_known = |tree: &Path| narrow.iter().any(|known| tree.starts_with(known));
    unlisted.into_iter().filter(|tree| !is_known(tree)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::{MAX_TREES, RunTrees};

    #[test]
    fn directories_are_kept_once_and_only_the_outermost_is_added() {
        let state = tempfile::tempdir().unwrap();
        let trees = RunTrees::of(state.path());
        assert_eq!(trees.list().unwrap(), Vec::<PathBuf>::new());
        for tree in ["/a/b", "/a/b", "/a/b/c", "/a/bc", "/a\nb"] {
            trees.add(&[tree.into()], Path::new("/home")).unwrap();
        }
        assert_eq!(trees.list().unwrap(), ["/a/b", "/a/bc", "/a\nb"].map(PathBuf::from));
    }

    #[test]
    fn directories_below_one_that_holds_the_home_or_the_system_are_added() {
        let state = tempfile::tempdir().unwrap();
        let home = state.path().canonicalize().unwrap();
        let trees = RunTrees::of(state.path());
        let at = |name: &str| home.join(name);
        for tree in [home.clone(), at("a"), at("a/b"), at("a"), "/usr".into(), "/usr/src".into()] {
            trees.add(&[tree], &home).unwrap();
        }
        assert_eq!(trees.list().unwrap(), [home.clone(), at("a"), "/usr".into(), "/usr/src".into()]);
    }

    #[test]
    fn long_list_keeps_what_exists() {
        let state = tempfile::tempdir().unwrap();
        let trees = RunTrees::of(state.path());
        let gone: Vec<PathBuf> = (0..MAX_TREES - 1).map(|n| format!("/nowhere/{n}").into()).collect();
        let home = Path::new("/nowhere/home");
        trees.add(&[state.path().to_owned()], home).unwrap();
        trees.add(&gone, home).unwrap();
        assert_eq!(trees.list().unwrap().len(), MAX_TREES);
        trees.add(&["/usr".into()], home).unwrap();
        assert_eq!(trees.list().unwrap(), [state.path().to_owned(), "/usr".into()]);
    }
}
