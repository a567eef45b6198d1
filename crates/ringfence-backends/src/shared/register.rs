//! The register of active runs: which trees each of them sees, and what it covers in those that it can write.
//!
//! A run cannot rename what is covered, but it can rename the directories above it. A scan that reads one directory after the
//! other may then miss it. So each run writes down what it covers before it starts, and a scan that misses something of it is
//! repeated (`other_runs.rs`).
//!
//! Each entry is in a file that is used again and again: making and removing one would take longer than all the rest.
//! A scan holds a shared lock on the directory of the register, and entries are cleared under an exclusive one. So after a
//! scan the register has the entry of every run that was active at any time during the scan.
#![expect(
    clippy::disallowed_methods,
    reason = "the register is in the state directory; names are only looked at"
)]

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ringfence_core::ids::RunId;
use ringfence_core::paths::DirectoryId;
use ringfence_workspace::Directory;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

/// The directory of the register, in the state directory.
const REGISTER: &str = "active";
/// No entry of the register is longer, in bytes.
const MAX_ENTRY_BYTES: u32 = 16 << 20;
/// Most runs at once.
const MAX_RUNS: usize = 4096;
/// How often an entry is read that is written at the same time.
const MAX_READS: usize = 100;

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

/// A stub file or directory of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StubPath {
    #[serde(with = "ringfence_linux::path_bytes")]
    pub(crate) path: PathBuf,
}

/// What the register says of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) trees: Vec<Tree>,
    /// What the run covers below the trees that it can write.
    pub(crate) covers: Vec<CoveredPath>,
    /// The names that it reserves there. They go with the run, so they have no identity.
    #[serde(default)]
    pub(crate) stubs: Vec<StubPath>,
    /// The directories that it hides in trees that it only reads, or writes to a layer above.
    #[serde(default)]
    pub(crate) hidden: Vec<DirectoryId>,
}

impl Entry {
    /// Whether the run sees a directory, given what is at it and at those above it.
    fn shows(&self, directory: &Path, ids: &[DirectoryId]) -> bool {
        let is_above = |tree: &Tree| directory.starts_with(&tree.path) || ids.contains(&tree.id);
        let covers = self.covers.iter().filter(|cover| cover.kind == CoverKind::HiddenDirectory);
        let mut hidden = covers.map(|cover| cover.id).chain(self.hidden.iter().copied());
        self.trees.iter().any(is_above) && !hidden.any(|id| ids.contains(&id))
    }
}

/// The id of an active run that sees a directory which is there or is to be made, among the runs of installations. A state directory is
/// hidden in the runs that begin when it is there.
pub fn active_run_that_sees(directory: &Path, states: &[PathBuf]) -> io::Result<Option<String>> {
    let existing = directory.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    let Some((above, real)) = existing else { return Ok(None) };
    let missing = directory.strip_prefix(above).unwrap_or(Path::new(""));
    let ids: Vec<DirectoryId> = real.ancestors().filter_map(|above| id_of(above).ok()).collect();
    let directory = real.join(missing);
    for state in states {
        for number in 0..MAX_RUNS {
            let Some(file) = open(&state.join(REGISTER).join(number.to_string()))? else { break };
            let is_active = flock(&file, FlockOperation::NonBlockingLockExclusive).is_err();
            let Some(text) = read(&file)?.filter(|_| is_active) else { continue };
            let Written { run, entry } = serde_json::from_slice(&text)?;
            if entry.shows(&directory, &ids) {
                return Ok(Some(run));
            }
        }
    }
    Ok(None)
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
    own: Option<Own>,
    /// Runs that had ended before the current scan.
    ended: BTreeSet<String>,
}

/// The file of this run.
#[derive(Debug)]
struct Own {
    number: usize,
    /// Its lock says that the run goes on. The gate has one too.
    file: File,
    /// How often it was written.
    writes: u32,
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
        Ok(Self { directory, opened, run: run.clone(), own: None, ended: BTreeSet::new() })
    }

    /// Says that there is no further scan.
    pub(crate) fn end_scan(&self) -> io::Result<()> {
        Ok(flock(&self.opened, FlockOperation::Unlock)?)
    }

    /// The file of the entry.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        self.own.as_ref().map(|own| self.file(own.number))
    }

    fn file(&self, number: usize) -> PathBuf {
        self.directory.join(number.to_string())
    }

    /// Writes the entry, or replaces it.
    pub(crate) fn write(&mut self, entry: &Entry) -> io::Result<()> {
        let text = serde_json::to_vec(&Written { run: self.run.to_string(), entry: Cow::Borrowed(entry) })?;
        let length = u32::try_from(text.len()).ok().filter(|length| *length <= MAX_ENTRY_BYTES);
        let length = length.ok_or_else(|| {
            let length = text.len();
            io::Error::other(format!(
                "the paths that have to be covered take {length} bytes, more than {MAX_ENTRY_BYTES}"
            ))
        })?;
        let mut own = self.own.take().map_or_else(|| self.claim(), Ok)?;
        own.writes = own.writes.wrapping_add(1);
        // Nobody reads it while it is written.
        Header { writes: own.writes, length: 0 }.write(&own.file)?;
        own.file.write_all_at(&text, Header::BYTES)?;
        Header { writes: own.writes, length }.write(&own.file)?;
        self.own = Some(own);
        Ok(())
    }

    /// A file that no run uses.
    fn claim(&self) -> io::Result<Own> {
        for number in 0..MAX_RUNS {
            let mut open = OpenOptions::new();
            let file = open.read(true).write(true).create(true).truncate(false).mode(0o600);
            let file = file.open(self.file(number))?;
            let is_free = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
            let header = if is_free { Header::read(&file)? } else { continue };
            // Another run may take it before the lock is a shared one.
            if header.length == 0 && flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
                return Ok(Own { number, file, writes: header.writes });
            }
        }
        Err(io::Error::other(format!("more than {MAX_RUNS} runs are active")))
    }

    /// The other runs that were active during the scan. Entries of runs that were killed are removed.
    pub(crate) fn others(&mut self) -> io::Result<Vec<OtherRun>> {
        let mut runs = Vec::new();
        let mut has_remains = false;
        for number in self.numbers() {
            let Some(file) = open(&self.file(number))? else { break };
            let is_active = flock(&file, FlockOperation::NonBlockingLockExclusive).is_err();
            let Some(text) = read(&file)? else { continue };
            has_remains |= !is_active;
            let (run, entry) = match serde_json::from_slice::<Written>(&text) {
                Ok(Written { run, entry }) => (run, entry.into_owned()),
                Err(error) if is_active => return Err(error.into()),
                // The machine stopped before it was on the disk.
                Err(_) => (String::new(), Entry::default()),
            };
            // What had ended before the scan moved nothing during it.
            if is_active || self.ended.insert(run.clone()) {
                runs.push(OtherRun { run, is_active, entry });
            }
        }
        if has_remains {
            self.remove_remains()?;
        }
        Ok(runs)
    }

    /// The numbers of the files but the run's own. The first that does not exist is the end of them.
    fn numbers(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.own.as_ref().map(|own| own.number);
        (0..MAX_RUNS).filter(move |number| Some(*number) != own)
    }

    /// Clears entries of runs that were killed, unless another run scans and may need them. The lock is held again afterwards.
    fn remove_remains(&self) -> io::Result<()> {
        if flock(&self.opened, FlockOperation::NonBlockingLockExclusive).is_ok() {
            for number in self.numbers() {
                let Some(file) = open(&self.file(number))? else { break };
                if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                    Header::clear(&file)?;
                }
            }
        }
        Ok(flock(&self.opened, FlockOperation::LockShared)?)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Another run that scans just now has to know what this one could move: a later run clears the entry then.
        let is_alone = || flock(&self.opened, FlockOperation::NonBlockingLockExclusive).is_ok();
        if let Some(own) = self.own.as_ref().filter(|_| is_alone()) {
            let _ = Header::clear(&own.file);
        }
    }
}

/// An entry as it is in its file, after the header.
#[derive(Serialize, Deserialize)]
struct Written<'a> {
    run: String,
    #[serde(flatten)]
    entry: Cow<'a, Entry>,
}

/// What a file begins with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Header {
    /// How often the file was written, so that a reader knows whether it was in between.
    writes: u32,
    /// The length of what follows: nothing in a file that no run uses.
    length: u32,
}

impl Header {
    const BYTES: u64 = 8;

    fn read(file: &File) -> io::Result<Self> {
        let mut bytes = [0; 8];
        let read = file.read_at(&mut bytes, 0)?;
        let [a, b, c, d, length @ ..] = bytes;
        let whole = Self { writes: u32::from_le_bytes([a, b, c, d]), length: u32::from_le_bytes(length) };
        Ok(if read == bytes.len() { whole } else { Self::default() })
    }

    fn write(self, file: &File) -> io::Result<()> {
        let bytes = [self.writes.to_le_bytes(), self.length.to_le_bytes()].concat();
        file.write_all_at(&bytes, 0)
    }

    fn clear(file: &File) -> io::Result<()> {
        Self { length: 0, ..Self::read(file)? }.write(file)
    }
}

/// What is in a file, if anything.
fn read(file: &File) -> io::Result<Option<Vec<u8>>> {
    for _ in 0..MAX_READS {
        let header = Header::read(file)?;
        if header.length == 0 {
            return Ok(None);
        }
        let mut text = vec![0; usize::try_from(header.length.min(MAX_ENTRY_BYTES)).unwrap_or(0)];
        let whole = file.read_exact_at(&mut text, Header::BYTES);
        if Header::read(file)? == header {
            // One that is cut off is no entry, and whoever reads it says so.
            return Ok(Some(if whole.is_ok() { text } else { Vec::new() }));
        }
    }
    Err(io::Error::other("an entry was changed again and again while it was read"))
}

fn open(path: &Path) -> io::Result<Option<File>> {
    match OpenOptions::new().read(true).write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use ringfence_core::ids::RunId;

    use super::{CoverKind, CoveredPath, Entry, Header, MAX_ENTRY_BYTES, Registration, id_of, read};

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
        let entry = Entry { covers: vec![covered(&state.path().join(".env"))], ..Entry::default() };
        let register = state.path().join("active");
        (state, register, entry)
    }

    /// How many entries there are.
    fn entries(register: &Path) -> usize {
        let files = fs::read_dir(register).unwrap().map(|file| fs::File::open(file.unwrap().path()).unwrap());
        files.filter(|file| read(file).unwrap().is_some()).count()
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
        first.end_scan().unwrap();
        second.end_scan().unwrap();
        drop((first, second));
        assert_eq!(entries(&register), 0);
        drop(registered(state.path(), 3, &entry));
        assert_eq!(fs::read_dir(register).unwrap().count(), 2, "the files are used again");
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
        assert_eq!(entries(&register), 0);
    }

    #[test]
    fn entries_of_killed_runs_are_cleared() {
        let (state, register, entry) = place();
        drop(registered(state.path(), 1, &entry));
        let file = fs::OpenOptions::new().read(true).write(true).open(register.join("0")).unwrap();
        let length = u32::try_from(fs::metadata(register.join("0")).unwrap().len() - Header::BYTES).unwrap();
        // As a process that was killed: the lock goes, the entry stays.
        Header { length, ..Header::read(&file).unwrap() }.write(&file).unwrap();
        // As a machine that stopped before the entry was on the disk.
        fs::write(register.join("1"), b"\x01\0\0\0\x09\0\0\0{").unwrap();
        fs::write(register.join("2"), b"\x01").unwrap();
        drop(file);
        let mut second = Registration::begin(state.path(), &run(2)).unwrap();
        let others = second.others().unwrap();
        assert_eq!(others.iter().map(|other| &other.entry).collect::<Vec<_>>(), [&entry, &Entry::default()]);
        assert_eq!(entries(&register), 0);
    }

    #[test]
    fn an_entry_that_is_being_written_is_not_read() {
        let (state, register, entry) = place();
        let first = registered(state.path(), 1, &entry);
        first.end_scan().unwrap();
        Header::clear(&first.own.as_ref().unwrap().file).unwrap();
        let mut second = registered(state.path(), 2, &entry);
        assert_eq!(second.others().unwrap(), []);
        assert_eq!(fs::read_dir(register).unwrap().count(), 2, "a file that is locked is not used");
    }

    #[test]
    fn an_entry_that_others_could_not_read_is_not_written() {
        let (state, register, entry) = place();
        let mut long = entry.covers[0].clone();
        long.path = PathBuf::from("x".repeat(usize::try_from(MAX_ENTRY_BYTES).unwrap()));
        let mut first = Registration::begin(state.path(), &run(1)).unwrap();
        let error = first.write(&Entry { covers: vec![long], ..Entry::default() }).unwrap_err();
        assert!(error.to_string().contains("more than"), "{error}");
        drop(first);
        assert_eq!(entries(&register), 0);
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
