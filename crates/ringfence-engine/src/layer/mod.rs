//! An overlay: what a run wrote in a workspace that stays untouched, shown, applied or discarded file by file.
//!
//! The upper directory is the kernel's: a file that was written is there as a whole, a deleted file is a character device
//! with the number 0, and a directory that hides what is below it carries an attribute. The agent made all of it, and other
//! runs may have changed the workspace since. So both sides are opened beneath a descriptor, the workspace only if it is the
//! directory that the run had, and no symbolic link is followed.
//!
//! All work is bounded: no function recurses, and the number of files, the bytes of their paths and the bytes that are
//! compared are limited. What is beyond a limit is reported, never left out in silence.

mod apply;
mod changes;
mod executed;
mod renames;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use ringfence_core::paths::DirectoryId;
use ringfence_workspace::executed::ExecutedBy;
use ringfence_workspace::{Directory, DirectoryError, Existing, Metadata, ReadError, StubList, remove_tree};
use serde::{Serialize, Serializer};

pub use apply::Applied;
pub use changes::{Changes, Limits};

/// The file of an overlay with the inodes of workspace files that lie below changed ones.
const KNOWN: &str = "below.json";
/// The same file has no more bytes.
const MAX_KNOWN_BYTES: u64 = 512 << 20;
/// The name of an overlay that is being removed.
const DISCARDED: &str = "layer-discarded";

/// The overlay of a run over its workspace.
#[derive(Debug)]
pub struct Layer {
    /// The directory of the run, and the name of the overlay in it.
    run: Directory,
    name: PathBuf,
    overlay: Directory,
    upper: Directory,
    workspace: Directory,
    /// A workspace file with a later change time was changed by someone else.
    began: (i64, i64),
    /// Inodes of workspace files that lay below changed ones when the run was over.
    known: BTreeMap<PathBuf, u64>,
    /// What the user is told if that cannot be read.
    unknown_below: Option<String>,
    stubs: StubList,
}

/// Why an overlay cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// A file or directory of it cannot be used.
    #[error("failed to use {}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of it cannot be read.
    #[error("failed to read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ReadError,
    },
    /// The workspace, or the directory of the run, cannot be opened.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> LayerError + use<> {
    let path = path.to_owned();
    move |source| LayerError::Io { path, source }
}

/// One file or directory that the run changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Path below the workspace.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// What was changed.
    #[serde(flatten)]
    pub what: What,
    /// Whether it is a directory.
    pub directory: bool,
    /// Why it cannot be applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conflict: Option<String>,
    /// What executes it later, if it stays and a program does.
    #[serde(skip)]
    pub executed_by: Option<ExecutedBy>,
    /// Permissions that it gets when it is applied: of what was added, and of what was modified where they differ from before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// Length of a regular file that was added or removed.
    #[serde(skip)]
    length: Option<u64>,
    /// Whether a directory above hides what is below it.
    #[serde(skip)]
    is_covered: bool,
}

/// What was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "change")]
pub enum What {
    /// It was not there. It may be a file that was renamed.
    Added {
        /// Its former name.
        #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_text_if_any")]
        renamed_from: Option<PathBuf>,
    },
    /// It is gone. It may be there under another name.
    Removed {
        /// Its new name.
        #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_text_if_any")]
        renamed_to: Option<PathBuf>,
    },
    /// Its content differs.
    Modified,
    /// Only its permissions differ.
    Permissions {
        /// Before.
        from: u32,
        /// After.
        to: u32,
    },
}

impl What {
    const ADDED: What = What::Added { renamed_from: None };
    const REMOVED: What = What::Removed { renamed_to: None };
}

/// Names need not be text; what is not is replaced.
fn as_text<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

fn as_text_if_any<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    path.as_ref().map(|path| path.display().to_string()).serialize(serializer)
}

/// The directory of an overlay that has what the run wrote.
const UPPER: &str = "upper";
const CHANGED_MEANWHILE: &str = "it was changed in the workspace since the run began";
const DELETED_MEANWHILE: &str = "it was deleted in the workspace since the run began";
/// The permissions that are applied. To be another user is not among them.
const PERMISSIONS: u32 = 0o777;

impl Layer {
    /// Opens the overlay of a run that is over. `marker` is a file that was written as the run began; the workspace has to be
    /// the directory that the run had.
    pub fn open(
        directory: &Path,
        workspace: &Path,
        id: DirectoryId,
        marker: &Path,
    ) -> Result<Self, LayerError> {
        let (run, name) = own_parent(directory)?;
        let overlay = run.directory(&name).map_err(failed(directory))?;
        let upper = open_upper(&overlay).map_err(failed(directory))?;
        let (marked, marker_name) = own_parent(marker)?;
        let began = marked.metadata(&marker_name).map_err(failed(marker))?;
        let read = |source| LayerError::Read { path: directory.to_owned(), source };
        let (known, unknown_below) = known(&overlay);
        Ok(Self {
            known,
            unknown_below,
            stubs: StubList::read(&overlay).map_err(read)?,
            workspace: Directory::open_known(workspace, id)?,
            began: began.modified(),
            run,
            name,
            overlay,
            upper,
        })
    }

    /// Where an overlay has what the run wrote.
    pub(crate) fn upper_of(directory: &Path) -> PathBuf {
        directory.join(UPPER)
    }

    /// What the run wrote.
    pub fn upper(&self) -> &Directory {
        &self.upper
    }

    /// The workspace below it.
    pub fn workspace(&self) -> &Directory {
        &self.workspace
    }

    /// Notes which workspace files lie below changed ones now that the run is over, so that one that is deleted or replaced
    /// later is noticed. Returns a notice if that took too long, until `deadline` or until `is_cancelled`.
    pub fn note(
        &self,
        deadline: Instant,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Option<String>, LayerError> {
        let (known, is_complete) = changes::below(self, deadline, is_cancelled);
        let file = Path::new(KNOWN);
        let written = serde_json::to_vec(&known).map_err(io::Error::from).and_then(|text| {
            let _ = self.overlay.remove_file(file);
            self.overlay.create_file(file, 0o600)?.write_all(&text)
        });
        if written.is_err() {
            // A part of it could be taken for the whole.
            let _ = self.overlay.remove_file(file);
        }
        written.map_err(failed(file))?;
        Ok((!is_complete).then(|| {
            "the run changed more files than could be looked at: of some, only the time tells whether they were changed \
             in the workspace since"
                .to_owned()
        }))
    }

    /// Whether a workspace file was touched since the run began, as far as the clock of the file system can tell.
    fn is_newer(&self, data: &Metadata) -> bool {
        data.changed() >= self.began
    }

    /// Removes the overlay, whatever the run has built in it.
    pub fn discard(self) -> Result<(), LayerError> {
        let Self { run, name, overlay, upper, workspace, .. } = self;
        drop((overlay, upper, workspace));
        remove(&run, &name)
    }

    /// The same without a look at the workspace, which may be another directory now.
    pub fn discard_at(directory: &Path) -> Result<(), LayerError> {
        let (run, name) = own_parent(directory)?;
        remove(&run, &name)
    }
}

/// Opens what a run wrote. Its root is made accessible again if the run took the user's own right to it; the permissions of the
/// workspace's root are not applied.
fn open_upper(overlay: &Directory) -> io::Result<Directory> {
    let name = Path::new(UPPER);
    if overlay.metadata(name)?.permissions() & 0o700 != 0o700 {
        overlay.unlock_directory(name)?;
    }
    overlay.directory(name)
}

/// A half-removed overlay must not be taken for a whole one, so it gets another name first.
fn remove(run: &Directory, name: &Path) -> Result<(), LayerError> {
    let discarded = Path::new(DISCARDED);
    remove_tree(run, OsStr::new(DISCARDED)).map_err(failed(discarded))?;
    run.rename(name, discarded, Existing::Keep).map_err(failed(name))?;
    remove_tree(run, OsStr::new(DISCARDED)).map_err(failed(discarded))
}

/// The directory that a path of the state directory is in, and the last name.
fn own_parent(path: &Path) -> Result<(Directory, PathBuf), LayerError> {
    let invalid = || failed(path)(io::ErrorKind::InvalidInput.into());
    let (parent, name) = path.parent().zip(path.file_name()).ok_or_else(invalid)?;
    #[expect(
        clippy::disallowed_methods,
        reason = "no run writes in the state directory, and the path to it may be a link"
    )]
    let parent = std::fs::canonicalize(parent).map_err(failed(parent))?;
    Ok((Directory::open(&parent)?, PathBuf::from(name)))
}

/// What lay below changed files when the run was over. Where that cannot be read, it is as if the run had been killed before it was
/// written, and the user is told.
fn known(overlay: &Directory) -> (BTreeMap<PathBuf, u64>, Option<String>) {
    let read = match overlay.read(Path::new(KNOWN), MAX_KNOWN_BYTES) {
        Ok(text) => serde_json::from_slice(&text).map_err(|error| error.to_string()),
        Err(error) if error.is_missing() => Ok(BTreeMap::new()),
        Err(error) => Err(error.to_string()),
    };
    match read {
        Ok(known) => (known, None),
        Err(why) => {
            let notice = format!(
                "what lay below the changes is not known ({why}): only the time tells whether a file was changed in the workspace since"
            );
            (BTreeMap::new(), Some(notice))
        }
    }
}

#[cfg(test)]
mod tests;
