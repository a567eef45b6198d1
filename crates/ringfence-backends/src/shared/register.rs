//! The register of active runs: which trees each of them sees, and what it covers in those that it can write.
//!
//! A run cannot rename what is covered, but it can rename the directories above it. A scan that reads one directory after the
//! other may then miss it. So each run writes down what it covers before it starts, and a scan that misses something of it is
//! repeated (`other_runs.rs`).
//!
//! A scan holds a shared lock on the directory of the register, and entries are removed under an exclusive one. So after a
//! scan the register has the entry of every run that was active at any time during the scan.
#![expect(
    clippy::disallowed_methods,
    reason = "the register is in the state directory; names are only looked at"
)]

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ringfence_core::ids::RunId;
use ringfence_core::paths::DirectoryId;
use ringfence_workspace::Directory;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

/// The directory of the register, in the state directory.
const REGISTER: &str = "active";
/// Ends the name of an entry that is being written.
const DRAFT: &str = "new";
/// No entry of the register is longer, in bytes.
const MAX_ENTRY_BYTES: u64 = 16 << 20;

/// How a run covers a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CoverKind {
    /// A directory that is held in place and can be written.
    Anchor,
    /// A path that is read-only.
    Protected,
    /// A git directory that a private one is mounted on.
    GitDirectory,
    /// A file that is hidden.
    HiddenFile,
    /// A directory that is hidden whole.
    HiddenDirectory,
}

impl CoverKind {
    /// Whether nothing of it can be read.
    pub(crate) fn is_hidden(self) -> bool {
        matches!(self, CoverKind::HiddenFile | CoverKind::HiddenDirectory)
    }
}

/// A path that a run covers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CoveredPath {
    pub(crate) kind: CoverKind,
    /// Whether the policy of the run names it, as a denied glob or a protected path. Runs with other policies need not cover it.
    pub(crate) named: bool,
    /// Where it was.
    #[serde(with = "ringfence_linux::path_bytes")]
    pub(crate) path: PathBuf,
    /// What was there.
    pub(crate) id: DirectoryId,
    /// The directory that it was in.
    pub(crate) parent: DirectoryId,
}

impl CoveredPath {
    /// Whether a run may have moved it: it is elsewhere together with its directory. A run cannot delete or replace what it
    /// covers, so what is gone from its directory was deleted or replaced on the host.
    pub(crate) fn may_be_moved(&self) -> bool {
        let (Some(parent), Some(name)) = (self.path.parent(), self.path.file_name()) else { return true };
        // One descriptor for both looks: the name may lead to another directory in between.
        let Ok(parent) = Directory::open_known(parent, self.parent) else { return true };
        parent.metadata(Path::new(name)).is_ok_and(|data| data.id() == self.id)
    }
}

/// A part of the host that a run sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tree {
    /// Where it was.
    #[serde(with = "ringfence_linux::path_bytes")]
    pub(crate) path: PathBuf,
    /// What was there.
    pub(crate) id: DirectoryId,
    /// Whether the run writes to it, and not only to a layer above it.
    pub(crate) write: bool,
}

/// What the register says of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) trees: Vec<Tree>,
    /// What the run covers below the trees that it can write.
    pub(crate) covers: Vec<CoveredPath>,
}

/// Another run in the register.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OtherRun {
    pub(crate) run: String,
    /// Whether it goes on. One that does not may have been active during the last scan.
    pub(crate) is_active: bool,
    pub(crate) entry: Entry,
}

/// Device and inode of what is at a path, links not followed.
pub(crate) fn id_of(path: &Path) -> io::Result<DirectoryId> {
    let data = fs::symlink_metadata(path)?;
    Ok(DirectoryId { device: data.dev(), inode: data.ino() })
}

/// A run's place in the register. Its entry goes with this.
#[derive(Debug)]
pub(crate) struct Registration {
    /// The directory of the register.
    directory: PathBuf,
    /// The same, for its lock.
    opened: File,
    run: RunId,
    /// The lock of the entry says that the run goes on. The gate has one too.
    entry: Option<File>,
    /// Entries of runs that had ended before the current scan.
    ended: BTreeSet<OsString>,
}

impl Registration {
    /// Opens the register for a run, which has no entry yet, and locks it for the scan.
    pub(crate) fn begin(state: &Path, run: &RunId) -> io::Result<Self> {
        let directory = state.join(REGISTER);
        let opened = File::open(&directory).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
                File::open(&directory)
            }
            _ => Err(error),
        })?;
        flock(&opened, FlockOperation::LockShared)?;
        Ok(Self { directory, opened, run: run.clone(), entry: None, ended: BTreeSet::new() })
    }

    /// Says that there is no further scan.
    pub(crate) fn end_scan(&self) -> io::Result<()> {
        Ok(flock(&self.opened, FlockOperation::Unlock)?)
    }

    /// The entry.
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.join(self.run.as_str())
    }

    /// Writes the entry, or replaces it.
    pub(crate) fn write(&mut self, entry: &Entry) -> io::Result<()> {
        let text = serde_json::to_vec(entry)?;
        if text.len() as u64 > MAX_ENTRY_BYTES {
            let message = format!(
                "the paths that have to be covered take {} bytes, more than {MAX_ENTRY_BYTES}",
                text.len()
            );
            return Err(io::Error::other(message));
        }
        // Under another name until it is locked and whole, so that no other run reads it before.
        let draft = self.directory.join(format!("{}.{DRAFT}", self.run));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        let written = flock(&file, FlockOperation::NonBlockingLockShared)
            .map_err(io::Error::from)
            .and_then(|()| file.write_all(&text))
            .and_then(|()| fs::rename(&draft, self.path()));
        if let Err(error) = written {
            let _ = fs::remove_file(&draft);
            return Err(error);
        }
        self.entry = Some(file);
        Ok(())
    }

    /// The other runs that were active during the scan. Entries of runs that were killed are removed.
    pub(crate) fn others(&mut self) -> io::Result<Vec<OtherRun>> {
        let mut runs = Vec::new();
        let mut has_remains = false;
        for name in self.names()? {
            if is_draft(&name) {
                has_remains = true;
                continue;
            }
            let Some(run) = self.read(&name)? else { continue };
            has_remains |= !run.is_active;
            // What had ended before the scan moved nothing during it.
            if run.is_active || self.ended.insert(name) {
                runs.push(run);
            }
        }
        if has_remains {
            self.remove_remains()?;
        }
        Ok(runs)
    }

    /// The names in the register but the run's own.
    fn names(&self) -> io::Result<Vec<OsString>> {
        let names = fs::read_dir(&self.directory)?.map(|entry| Ok(entry?.file_name()));
        names.filter(|name| !name.as_ref().is_ok_and(|name| *name == *self.run.as_str())).collect()
    }

    fn read(&self, name: &OsStr) -> io::Result<Option<OtherRun>> {
        let Some(file) = open(&self.directory.join(name))? else { return Ok(None) };
        let is_active = flock(&file, FlockOperation::NonBlockingLockExclusive).is_err();
        let text = ringfence_workspace::read_bounded(file, MAX_ENTRY_BYTES).map_err(io::Error::other)?;
        match serde_json::from_slice(&text) {
            Ok(entry) => Ok(Some(OtherRun { run: name.to_string_lossy().into_owned(), is_active, entry })),
            Err(error) if is_active => Err(error.into()),
            // The machine stopped before it was on the disk.
            Err(_) => Ok(Some(OtherRun { run: String::new(), is_active, entry: Entry::default() })),
        }
    }

    /// Removes entries and drafts of runs that were killed, unless another run scans and may need them. The lock is held
    /// again afterwards.
    fn remove_remains(&self) -> io::Result<()> {
        if flock(&self.opened, FlockOperation::NonBlockingLockExclusive).is_ok() {
            for name in self.names()? {
                let path = self.directory.join(&name);
                let Some(file) = open(&path)? else { continue };
                if is_draft(&name) || flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                    let _ = fs::remove_file(&path);
                }
            }
        }
        Ok(flock(&self.opened, FlockOperation::LockShared)?)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Another run that scans just now has to know what this one could move: a later run removes the entry then.
        let is_alone = || flock(&self.opened, FlockOperation::NonBlockingLockExclusive).is_ok();
        if self.entry.is_some() && is_alone() {
            let _ = fs::remove_file(self.path());
        }
    }
}

fn is_draft(name: &OsStr) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == DRAFT)
}

fn open(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use ringfence_core::ids::RunId;

    use super::{CoverKind, CoveredPath, Entry, MAX_ENTRY_BYTES, Registration, id_of};

    fn covered(path: &Path) -> CoveredPath {
        CoveredPath {
            kind: CoverKind::HiddenFile,
            named: true,
            path: path.to_owned(),
            id: id_of(path).unwrap(),
            parent: id_of(path.parent().unwrap()).unwrap(),
        }
    }

    fn run(number: u8) -> RunId {
        format!("20260101-000000-aaaaaa{number}").parse().unwrap()
    }

    /// The register of a state directory, and an entry.
    fn place() -> (tempfile::TempDir, PathBuf, Entry) {
        let state = tempfile::tempdir().unwrap();
        fs::write(state.path().join(".env"), "x").unwrap();
        let entry = Entry { trees: Vec::new(), covers: vec![covered(&state.path().join(".env"))] };
        let register = state.path().join("active");
        (state, register, entry)
    }

    fn registered(state: &Path, number: u8, entry: &Entry) -> Registration {
        let mut registration = Registration::begin(state, &run(number)).unwrap();
        registration.write(entry).unwrap();
        registration
    }

    #[test]
    fn entries_of_active_runs_are_read_and_go_with_them() {
        let (state, register, entry) = place();
        let mut first = registered(state.path(), 1, &entry);
        first.end_scan().unwrap();
        let mut second = registered(state.path(), 2, &Entry::default());
        let others = second.others().unwrap();
        assert_eq!(others.len(), 1);
        assert!(others[0].is_active && others[0].entry == entry && others[0].run == run(1).as_str());
        assert_eq!(first.others().unwrap().len(), 1);
        drop((first, second));
        assert_eq!(fs::read_dir(register).unwrap().count(), 0);
    }

    #[test]
    fn a_run_that_ends_during_a_scan_is_known_after_it() {
        let (state, register, entry) = place();
        let first = registered(state.path(), 1, &entry);
        first.end_scan().unwrap();
        let mut second = Registration::begin(state.path(), &run(2)).unwrap();
        drop(first);
        let others = second.others().unwrap();
        assert!(others.len() == 1 && !others[0].is_active && others[0].entry == entry);
        assert_eq!(second.others().unwrap(), [], "it had ended before the next scan");
        assert_eq!(fs::read_dir(register).unwrap().count(), 0);
    }

    #[test]
    fn entries_and_drafts_of_killed_runs_are_removed() {
        let (state, register, entry) = place();
        drop(registered(state.path(), 1, &entry));
        fs::write(register.join(run(1).as_str()), serde_json::to_vec(&entry).unwrap()).unwrap();
        fs::write(register.join(run(3).as_str()), "").unwrap();
        fs::write(register.join(format!("{}.new", run(4))), "{").unwrap();
        let mut second = Registration::begin(state.path(), &run(2)).unwrap();
        assert_eq!(second.others().unwrap().len(), 2);
        assert_eq!(fs::read_dir(register).unwrap().count(), 0);
    }

    #[test]
    fn drafts_of_runs_that_start_are_left() {
        let (state, register, _) = place();
        let _starting = Registration::begin(state.path(), &run(1)).unwrap();
        fs::write(register.join(format!("{}.new", run(1))), "{").unwrap();
        let mut second = Registration::begin(state.path(), &run(2)).unwrap();
        assert_eq!(second.others().unwrap(), []);
        assert_eq!(fs::read_dir(register).unwrap().count(), 1);
    }

    #[test]
    fn an_entry_that_others_could_not_read_is_not_written() {
        let (state, register, entry) = place();
        let mut long = entry.covers[0].clone();
        long.path = PathBuf::from("x".repeat(usize::try_from(MAX_ENTRY_BYTES).unwrap()));
        let mut first = Registration::begin(state.path(), &run(1)).unwrap();
        let error = first.write(&Entry { trees: Vec::new(), covers: vec![long] }).unwrap_err();
        assert!(error.to_string().contains("more than"), "{error}");
        drop(first);
        assert_eq!(fs::read_dir(register).unwrap().count(), 0);
    }

    #[test]
    fn a_file_is_moved_with_its_directory_and_deleted_or_replaced_without_it() {
        let tree = tempfile::tempdir().unwrap();
        let directory = tree.path().join("conf");
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join(".env"), "x").unwrap();
        let file = covered(&directory.join(".env"));
        assert!(file.may_be_moved(), "it is where it was, and the scan did not see it");
        fs::rename(&directory, tree.path().join("moved")).unwrap();
        assert!(file.may_be_moved());
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join(".env"), "decoy").unwrap();
        assert!(file.may_be_moved());
        fs::remove_dir_all(&directory).unwrap();
        fs::rename(tree.path().join("moved"), &directory).unwrap();
        fs::write(directory.join("new"), "y").unwrap();
        fs::rename(directory.join("new"), directory.join(".env")).unwrap();
        assert!(!file.may_be_moved(), "replaced by an editor");
        fs::remove_file(directory.join(".env")).unwrap();
        assert!(!file.may_be_moved(), "deleted");
    }
}
