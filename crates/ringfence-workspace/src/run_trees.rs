//! The directories that runs of an installation could write: workspaces, and what policies let them write besides.
//!
//! What lies below one of them may be a run's, long after that run: such a file is no policy, and no program of it is started
//! on the host. The list is a file of the state directory, which no run sees.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::file::{ReadError, read_bounded};
use crate::host_programs::Breadth;

/// Most directories in the list. Beyond that, those that are gone are left out, then the oldest.
const MAX_TREES: usize = 4096;
/// No list is longer, in bytes.
const MAX_LIST_BYTES: u64 = 32 << 20;

/// The list of one installation.
#[derive(Debug, Clone)]
pub struct RunTrees {
    file: PathBuf,
}

impl RunTrees {
    /// The name of the list. Every state directory with runs has it, so it also tells what a state directory is.
    pub const FILE_NAME: &str = "ringfence.trees";

    /// The list in a state directory.
    pub fn of(state: &Path) -> Self {
        Self { file: state.join(Self::FILE_NAME) }
    }

    /// The list of those that were no workspace, but given besides: nothing is reserved in their roots.
    pub fn granted(state: &Path) -> Self {
        Self { file: state.join("ringfence.grants") }
    }

    /// The directories, links resolved as they were when a run began there.
    pub fn list(&self) -> io::Result<Vec<PathBuf>> {
        let file = match File::open(&self.file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            opened => opened?,
        };
        let text = match read_bounded(file, MAX_LIST_BYTES) {
            Err(ReadError::Io(error)) => return Err(error),
            read => read.map_err(io::Error::other)?,
        };
        let text = String::from_utf8(text).map_err(io::Error::other)?;
        Ok(text.split_terminator('\0').map(PathBuf::from).collect())
    }

    /// Adds directories, unless they are in the list or below one that is. Below one that holds the home or the system's programs
    /// they are added too: programs are started from there, so it alone excludes none.
    pub fn add(&self, trees: &[PathBuf], home: &Path) -> io::Result<()> {
        if missing(&self.list()?, trees, home).is_empty() {
            return Ok(());
        }
        let lock = self.file.with_extension("trees.lock");
        let lock = OpenOptions::new().create(true).append(true).mode(0o600).open(lock)?;
        flock(&lock, FlockOperation::LockExclusive)?;
        let known = self.list()?;
        let new = missing(&known, trees, home);
        if known.len() + new.len() > MAX_TREES {
            return self.replace(known.into_iter().chain(new).collect());
        }
        let mut file = OpenOptions::new().create(true).append(true).mode(0o600).open(&self.file)?;
        file.write_all(&encoded(&new))
    }

    /// Writes a list anew that has grown too long.
    fn replace(&self, mut trees: Vec<PathBuf>) -> io::Result<()> {
        trees.retain(|tree| tree.symlink_metadata().is_ok());
        // Half of it, so that not every new directory has it written again.
        let surplus = trees.len().saturating_sub(MAX_TREES / 2);
        let new = self.file.with_extension("trees.new");
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&encoded(&trees[surplus..]))?;
        fs::rename(new, &self.file)
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

/// Paths that are no UTF-8 are refused before a run begins.
fn encoded(trees: &[PathBuf]) -> Vec<u8> {
    trees.iter().filter_map(|tree| tree.to_str()).fold(Vec::new(), |mut text, tree| {
        text.extend_from_slice(tree.as_bytes());
        text.push(0);
        text
    })
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
