//! The register of files that active runs hide, so that none of them can move a file away while another run is looking for
//! what it has to hide.
//!
//! A run cannot rename a file that is hidden from it, but it can rename the directories above it. A scan that reads one directory
//! after the other may then miss the file. So each run writes down what it hides before it starts, and a scan that misses one
//! of these files is repeated.
#![expect(
    clippy::disallowed_methods,
    reason = "the register is in the state directory; names are only looked at"
)]

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
const REGISTER: &str = "hidden";
/// No entry of the register is longer, in bytes.
const MAX_ENTRY_BYTES: u64 = 16 << 20;

/// A file that a run hides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HiddenFile {
    /// Where it was.
    #[serde(with = "ringfence_linux::path_bytes")]
    pub(crate) path: PathBuf,
    /// The file itself.
    pub(crate) id: DirectoryId,
    /// The directory that it was in.
    parent: DirectoryId,
}

impl HiddenFile {
    /// Describes a file that was identified.
    pub(crate) fn of(path: &Path, id: DirectoryId) -> Option<Self> {
        Some(Self { id, parent: id_of(path.parent()?)?, path: path.to_owned() })
    }

    /// Whether a run may have moved it: it is elsewhere together with its directory. A run cannot delete or replace the file
    /// itself, so a file that is gone from its directory was deleted or replaced on the host.
    pub(crate) fn may_be_moved(&self) -> bool {
        let (Some(parent), Some(name)) = (self.path.parent(), self.path.file_name()) else { return true };
        // One descriptor for both looks: the name may lead to another directory in between.
        let Ok(parent) = Directory::open_known(parent, self.parent) else { return true };
        parent.metadata(Path::new(name)).is_ok_and(|data| data.id() == self.id)
    }
}

/// Device and inode of what is at a path, links not followed.
pub(crate) fn id_of(path: &Path) -> Option<DirectoryId> {
    let data = fs::symlink_metadata(path).ok()?;
    Some(DirectoryId { device: data.dev(), inode: data.ino() })
}

/// The entry of a run that is going on. It goes with this.
#[derive(Debug)]
pub(crate) struct Registered {
    path: PathBuf,
    /// Its lock says that the run is going on. The gate has one too.
    _lock: File,
}

impl Registered {
    /// The entry.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Writes down what a run hides. A run that hides nothing has no entry.
pub(crate) fn register(state: &Path, run: &RunId, files: &[HiddenFile]) -> io::Result<Option<Registered>> {
    if files.is_empty() {
        return Ok(None);
    }
    let directory = state.join(REGISTER);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
    let path = directory.join(run.as_str());
    // Under another name until it is locked and whole, so that no other run reads or removes it before.
    let draft = directory.join(format!("{run}.new"));
    let mut lock = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    let written = flock(&lock, FlockOperation::NonBlockingLockShared)
        .map_err(io::Error::from)
        .and_then(|()| Ok(serde_json::to_vec(files)?))
        .and_then(|text| lock.write_all(&text))
        .and_then(|()| fs::rename(&draft, &path));
    if let Err(error) = written {
        let _ = fs::remove_file(&draft);
        return Err(error);
    }
    Ok(Some(Registered { path, _lock: lock }))
}

/// What the other runs hide that are going on. Entries of runs that were killed are removed.
pub(crate) fn others(state: &Path, this: &RunId) -> io::Result<Vec<HiddenFile>> {
    let entries = match fs::read_dir(state.join(REGISTER)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let is_run =
            path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name != this.as_str());
        if is_run && path.extension().is_none() {
            files.extend(read(&path)?);
        }
    }
    Ok(files)
}

fn read(path: &Path) -> io::Result<Vec<HiddenFile>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
        // Its run is over.
        let _ = fs::remove_file(path);
        return Ok(Vec::new());
    }
    let text = ringfence_workspace::read_bounded(file, MAX_ENTRY_BYTES).map_err(io::Error::other)?;
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{HiddenFile, id_of, others, register};

    fn described(path: &Path) -> HiddenFile {
        HiddenFile::of(path, id_of(path).unwrap()).unwrap()
    }

    #[test]
    fn what_living_runs_hide_is_read_and_what_dead_ones_hid_is_removed() {
        let state = tempfile::tempdir().unwrap();
        let tree = tempfile::tempdir().unwrap();
        fs::write(tree.path().join(".env"), "x").unwrap();
        let file = described(&tree.path().join(".env"));
        let (first, second) =
            ("20260101-000000-aaaaaaa".parse().unwrap(), "20260101-000000-bbbbbbb".parse().unwrap());
        let entry = register(state.path(), &first, std::slice::from_ref(&file)).unwrap();
        assert_eq!(others(state.path(), &second).unwrap(), [file]);
        assert_eq!(others(state.path(), &first).unwrap(), []);
        // As a process that was killed: the lock goes, the entry stays.
        let kept = fs::read(state.path().join("hidden").join(first.as_str())).unwrap();
        drop(entry);
        fs::write(state.path().join("hidden").join(first.as_str()), kept).unwrap();
        assert_eq!(others(state.path(), &second).unwrap(), []);
        assert_eq!(fs::read_dir(state.path().join("hidden")).unwrap().count(), 0);
    }

    #[test]
    fn a_file_is_moved_with_its_directory_and_deleted_or_replaced_without_it() {
        let tree = tempfile::tempdir().unwrap();
        let directory = tree.path().join("conf");
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join(".env"), "x").unwrap();
        let file = described(&directory.join(".env"));
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
