//! Puts changes into the workspace. Nothing is applied over what has been changed there since the run began.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ringfence_workspace::{Directory, EntryKind, Existing, Metadata};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::{CHANGED_MEANWHILE, Change, Changes, DELETED_MEANWHILE, Layer, LayerError, PERMISSIONS, What};

/// Most files that are copied before they get their names: each holds two descriptors.
const MAX_BATCH: usize = 128;
/// Most files that are written to the disk one by one.
const MAX_SYNCED_ALONE: usize = 4;

/// What came of applying.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Paths that are in the workspace now.
    pub applied: Vec<PathBuf>,
    /// Paths that are not, and why.
    pub conflicts: Vec<(PathBuf, String)>,
}

impl Layer {
    /// Applies those of the changes whose path `is_wanted`. What is applied leaves the overlay, and an overlay of which all
    /// was applied is removed.
    pub fn apply(self, changes: &Changes, is_wanted: &dyn Fn(&Path) -> bool) -> Result<Applied, LayerError> {
        let chosen = chosen(&changes.list, is_wanted);
        let mut done = Applied::default();
        let is_removal = |change: &&&Change| matches!(change.what, What::Removed { .. });
        // What has to go first, the innermost first; then what comes, the outermost first.
        let gone = chosen.iter().rev().filter(is_removal);
        let come = chosen.iter().filter(|change| !is_removal(change));
        for (change, put) in self.put_all(gone.chain(come).copied()) {
            match put {
                Ok(()) => done.applied.push(change.path.clone()),
                Err(why) => done.conflicts.push((change.path.clone(), why)),
            }
        }
        let failed: HashSet<&PathBuf> = done.conflicts.iter().map(|(path, _)| path).collect();
        // Only now: a directory without the right to write in it could not be filled.
        let made = chosen.iter().rev().filter(|change| change.directory && change.what == What::ADDED);
        let unfinished: Vec<(PathBuf, String)> = made
            .filter(|change| !failed.contains(&change.path))
            .filter_map(|change| {
                Some((change.path.clone(), explain(&self.finish_directory(&change.path).err()?)))
            })
            .collect();
        done.conflicts.extend(unfinished);
        if done.conflicts.is_empty() && !changes.is_truncated && chosen.len() == changes.list.len() {
            self.discard()?;
        }
        Ok(done)
    }

    /// Applies changes in their order, files in batches: the data of a batch is on the disk before the first of its files gets its
    /// name. Waiting for the disk once for each file took most of the time.
    fn put_all<'c>(
        &self,
        changes: impl Iterator<Item = &'c Change>,
    ) -> Vec<(&'c Change, Result<(), String>)> {
        let mut results: Vec<(&Change, Result<(), String>)> = Vec::new();
        let mut batch: Vec<(usize, Copied)> = Vec::new();
        for change in changes {
            let number = results.len();
            let put = match &change.conflict {
                Some(conflict) => Err(conflict.clone()),
                None if self.is_file(change) => {
                    self.copy_aside(change, number).map_err(|error| explain(&error)).map(|copied| {
                        batch.push((number, copied));
                    })
                }
                None => self.put(change).map_err(|error| explain(&error)),
            };
            results.push((change, put));
            if batch.len() >= MAX_BATCH {
                self.name_batch(&mut batch, &mut results);
            }
        }
        self.name_batch(&mut batch, &mut results);
        results
    }

    /// Gives the files of a batch their names.
    fn name_batch(&self, batch: &mut Vec<(usize, Copied)>, results: &mut [(&Change, Result<(), String>)]) {
        let synced = sync(batch.iter().map(|(_, copied)| &copied.file));
        for (number, mut copied) in batch.drain(..) {
            let Some((change, result)) = results.get_mut(number) else { continue };
            let put = match &synced {
                Ok(()) => self.name(change, &mut copied).and_then(|()| self.forget(change)),
                Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
            };
            *result = put.map_err(|error| explain(&error));
        }
    }

    /// Whether a change brings a regular file.
    fn is_file(&self, change: &Change) -> bool {
        let comes = matches!(change.what, What::Added { .. } | What::Modified);
        comes && self.upper.metadata(&change.path).is_ok_and(|data| data.kind() == EntryKind::File)
    }

    /// Copies a file into the directory of its own name: without any name, so that nothing is left of it if this process is killed,
    /// or by a temporary one where the file system has no such files.
    fn copy_aside(&self, change: &Change, number: usize) -> io::Result<Copied> {
        let data = self.upper.metadata(&change.path)?;
        let (parent, _) = self.workspace.parent(&change.path)?;
        let temporary = PathBuf::from(format!(".ringfence-apply-{}-{number}", std::process::id()));
        let (file, is_named) = match parent.create_unnamed_file(0o600)? {
            Some(file) => (file, false),
            None => {
                let _ = parent.remove_file(&temporary);
                (parent.create_file(&temporary, 0o600)?, true)
            }
        };
        let copied = Copied { parent, temporary, is_named, file };
        self.copy(&change.path, &data, &copied.file)?;
        Ok(copied)
    }

    /// Gives a file that was copied its own name. What it replaces can only be replaced by another name.
    fn name(&self, change: &Change, copied: &mut Copied) -> io::Result<()> {
        let existing = self.existing(change)?;
        let name = Path::new(change.path.file_name().ok_or(io::ErrorKind::InvalidInput)?);
        if !copied.is_named && existing == Existing::Keep {
            return copied.parent.name_file(&copied.file, name);
        }
        if !copied.is_named {
            let _ = copied.parent.remove_file(&copied.temporary);
            copied.parent.name_file(&copied.file, &copied.temporary)?;
            copied.is_named = true;
        }
        copied.parent.rename(&copied.temporary, name, existing)?;
        copied.is_named = false;
        Ok(())
    }

    /// What is done with a file that has the name of a change. One that was changed since the run began stays.
    fn existing(&self, change: &Change) -> io::Result<Existing> {
        match change.what {
            What::Modified if self.is_newer(&self.workspace.metadata(&change.path)?) => {
                Err(io::Error::other(CHANGED_MEANWHILE))
            }
            What::Modified => Ok(Existing::Replace),
            _ => Ok(Existing::Keep),
        }
    }

    fn put(&self, change: &Change) -> io::Result<()> {
        let path = &change.path;
        match &change.what {
            What::Removed { .. } if change.directory => self.workspace.remove_directory(path),
            What::Removed { .. } => self.workspace.remove_file(path),
            What::Permissions { to, .. } => {
                self.workspace.set_permissions(path, *to)?;
                self.forget(change)
            }
            What::Added { .. } | What::Modified => {
                self.place(change)?;
                self.forget(change)
            }
        }
    }

    /// Puts a directory or a symbolic link into the workspace.
    fn place(&self, change: &Change) -> io::Result<()> {
        let (path, workspace) = (&change.path, &self.workspace);
        match self.upper.metadata(path)?.kind() {
            EntryKind::Directory => return workspace.create_directory(path, 0o700),
            EntryKind::Link => {}
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        }
        let existing = self.existing(change)?;
        let (parent, name) = workspace.parent(path)?;
        if existing == Existing::Keep {
            return parent.create_link(Path::new(name), &self.upper.read_link(path)?);
        }
        let temporary = PathBuf::from(format!(".ringfence-apply-{}", std::process::id()));
        let _ = parent.remove_file(&temporary);
        let made = parent.create_link(&temporary, &self.upper.read_link(path)?);
        let put = made.and_then(|()| parent.rename(&temporary, Path::new(name), existing));
        if put.is_err() {
            let _ = parent.remove_file(&temporary);
        }
        put
    }

    fn copy(&self, path: &Path, data: &Metadata, mut to: &File) -> io::Result<()> {
        copy_data(&mut self.upper.file(path)?, &mut to, data.length())?;
        rustix::fs::fchmod(to, rustix::fs::Mode::from_raw_mode(data.permissions() & PERMISSIONS))?;
        if let Some(modified) = time(data.modified()) {
            to.set_modified(modified)?;
        }
        Ok(())
    }

    /// Gives a directory that was applied the permissions that it has in the overlay.
    fn finish_directory(&self, path: &Path) -> io::Result<()> {
        self.workspace.set_permissions(path, self.upper.metadata(path)?.permissions() & PERMISSIONS)
    }

    /// Takes what was applied out of the overlay. A directory stays, for what is in it; and a file stays in a directory that
    /// hides what is below it, or it would count as removed. The same above and below is no change.
    fn forget(&self, change: &Change) -> io::Result<()> {
        if change.directory || change.is_covered {
            return Ok(());
        }
        self.upper.remove_file(&change.path)
    }
}

/// A file that was copied and has not its own name yet.
struct Copied {
    parent: Directory,
    temporary: PathBuf,
    /// Whether it has the temporary name.
    is_named: bool,
    file: File,
}

impl Drop for Copied {
    fn drop(&mut self) {
        if self.is_named {
            let _ = self.parent.remove_file(&self.temporary);
        }
    }
}

/// Waits until the data of files is on the disk: for few files one by one, for many with all else of their file systems, for
/// waiting takes much longer than writing.
fn sync<'f>(files: impl Iterator<Item = &'f File>) -> io::Result<()> {
    let files: Vec<&File> = files.collect();
    if files.len() <= MAX_SYNCED_ALONE {
        return files.into_iter().try_for_each(File::sync_all);
    }
    let mut devices = HashSet::new();
    for file in files {
        if devices.insert(Metadata::of(file)?.id().device) {
            rustix::fs::syncfs(file)?;
        }
    }
    Ok(())
}

/// The changes whose path is wanted, and the new directories that they are in.
fn chosen<'c>(all: &'c [Change], is_wanted: &dyn Fn(&Path) -> bool) -> Vec<&'c Change> {
    let mut chosen = Vec::new();
    // In the order of paths, what is in a directory follows it at once.
    let mut next: Option<&Path> = None;
    for change in all.iter().rev() {
        let is_needed = change.directory
            && change.what == What::ADDED
            && next.is_some_and(|next| next.starts_with(&change.path));
        if is_wanted(&change.path) || is_needed {
            next = Some(&change.path);
            chosen.push(change);
        }
    }
    chosen.reverse();
    chosen
}

fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AlreadyExists => CHANGED_MEANWHILE.to_owned(),
        io::ErrorKind::NotFound => DELETED_MEANWHILE.to_owned(),
        io::ErrorKind::DirectoryNotEmpty => "something else is in it".to_owned(),
        _ => error.to_string(),
    }
}

fn time((seconds, nanoseconds): (i64, i64)) -> Option<SystemTime> {
    let (seconds, nanoseconds) = (u64::try_from(seconds).ok()?, u32::try_from(nanoseconds).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds))
}

/// Copies the data of a file and leaves holes as they are.
fn copy_data(from: &mut File, to: &mut &File, length: u64) -> io::Result<()> {
    to.set_len(length)?;
    let mut at = 0;
    while at < length {
        let begin = match rustix::fs::seek(&*from, SeekFrom::Data(at)) {
            Ok(begin) => begin,
            // There is no more.
            Err(Errno::NXIO) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(&*from, SeekFrom::Hole(begin))?;
        from.seek(io::SeekFrom::Start(begin))?;
        to.seek(io::SeekFrom::Start(begin))?;
        let copied = io::copy(&mut Read::take(&mut *from, end - begin), to)?;
        if copied == 0 {
            return Ok(());
        }
        at = end;
    }
    to.flush()
}
