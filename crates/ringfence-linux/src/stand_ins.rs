//! What stands in a workspace for protected paths that do not exist, while a run lasts.
//!
//! Each is marked, so that it is never taken for a user's file or the other way round, and several runs in one workspace
//! share them: the last run removes them, as a lock on the workspace tells. Each is made new and deleted afterwards: a run in
//! a directory above could have kept a descriptor of it, so none is ever moved to another workspace.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use ringfence_core::paths::{DirectoryId, STAND_IN_MARK};
use rustix::fs::{
    CWD, FlockOperation, Mode, OFlags, RenameFlags, ResolveFlags, XattrFlags, flock, openat2, renameat_with,
};
use rustix::io::Errno;

use crate::layout::{Placeholder, StandIn, Stubs};

/// How long others may hold on to a workspace while they take stand-ins away.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// How often to ask again.
const LOCK_AGAIN: Duration = Duration::from_millis(2);
/// No stand-in is longer.
const LONGEST: u64 = 16;

/// Stand-ins of one run, and its share of the workspace. Dropping it takes them away if no other run stands on them.
#[derive(Debug)]
pub struct StandIns {
    wanted: Vec<Placeholder>,
    /// How many of them, from the first on, are in their places.
    placed: usize,
    workspace: File,
    /// The path by which it was opened.
    path: PathBuf,
    /// Directories go there, under this name and a number.
    discarded: Option<PathBuf>,
}

impl StandIns {
    /// Takes a share of a workspace, before it is scanned. Another directory in its place is an error, if its identity is known.
    pub fn share(path: &Path, id: Option<DirectoryId>) -> io::Result<Self> {
        let workspace = open_known(path, id)?;
        let deadline = Instant::now() + LOCK_PATIENCE;
        loop {
            match flock(&workspace, FlockOperation::NonBlockingLockShared) {
                Ok(()) => {
                    let path = path.to_owned();
                    return Ok(Self { wanted: Vec::new(), placed: 0, workspace, path, discarded: None });
                }
                Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                    let pause = rustix::event::Timespec::try_from(LOCK_AGAIN).ok();
                    let _ = rustix::event::poll(&mut [], pause.as_ref());
                }
                Err(Errno::WOULDBLOCK) => {
                    let message =
                        "another process holds an exclusive lock on it; `lslocks` names processes with locks";
                    return Err(io::Error::new(io::ErrorKind::WouldBlock, message));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Makes stub files in the root of a workspace before it is known which others there will be, and whether these are needed.
    /// An error is no refusal: those that are needed are made again with the others.
    pub fn place_early(stubs: Stubs) -> io::Result<Self> {
        let mut stand_ins = Self::share(&stubs.workspace, Some(stubs.id))?;
        stand_ins.answer_for(stubs.placeholders);
        stand_ins.place()?;
        Ok(stand_ins)
    }

    /// From now on these are taken away at the end too, the outer ones of them first.
    pub fn answer_for(&mut self, wanted: Vec<Placeholder>) {
        // By their bytes: comparing paths part by part takes longer than all the rest.
        let is_same = |one: &Placeholder, other: &Placeholder| {
            one.path.as_os_str() == other.path.as_os_str() && one.kind == other.kind
        };
        let is_new = |placeholder: &Placeholder| !self.wanted.iter().any(|known| is_same(known, placeholder));
        let new: Vec<Placeholder> = wanted.into_iter().filter(is_new).collect();
        self.wanted.extend(new);
    }

    /// Directories are moved there instead of being removed: on some file systems removing one waits for the disk.
    pub fn discard_to(&mut self, path: Option<PathBuf>) {
        self.discarded = path;
    }

    /// Gives up the share: somebody else has one of its own, and takes them away if it can.
    pub fn entrust(&self) {
        let _ = flock(&self.workspace, FlockOperation::Unlock);
    }

    /// Makes those that are not there yet. Each comes with its mark: it is made aside and then put in its place, so that no
    /// other run ever takes it for a user's file. Files with the same text are names of one new file: making a file costs ten
    /// times as much as giving it another name.
    pub fn place(&mut self) -> io::Result<()> {
        let mut made: Vec<(&StandIn, Aside)> = Vec::new();
        for (index, placeholder) in self.wanted.iter().enumerate().skip(self.placed) {
            let held = self.hold(placeholder)?;
            let (kind, placeholder) = (&placeholder.kind, &held.placeholder);
            if fs::symlink_metadata(&placeholder.path).is_ok() {
                continue;
            }
            let placed = match (kind, made.iter().find(|(made, _)| *made == kind)) {
                (StandIn::File(_), Some((_, aside))) => {
                    name_again(&aside.0.placeholder.path, &placeholder.path)
                }
                _ => {
                    let aside = Aside(self.hold(&Placeholder {
                        path: self.wanted[index].path.with_file_name(name_aside(index)),
                        kind: kind.clone(),
                    })?);
                    make(&aside.0.placeholder)?;
                    let placed = match placeholder.kind {
                        StandIn::Directory => put(&aside.0.placeholder.path, &placeholder.path),
                        StandIn::File(_) => name_again(&aside.0.placeholder.path, &placeholder.path),
                    };
                    made.push((kind, aside));
                    placed
                }
            };
            match placed {
                // Another run was faster.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.placed = self.wanted.len();
        Ok(())
    }
}

/// Opens a directory, over no symbolic link if its identity is known. Another one in its place is an invalid input.
fn open_known(path: &Path, id: Option<DirectoryId>) -> io::Result<File> {
    let Some(id) = id else { return File::open(path) };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = File::from(openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?);
    let data = opened.metadata()?;
    match (DirectoryId { device: data.dev(), inode: data.ino() }) == id {
        true => Ok(opened),
        false => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// A placeholder in a directory that is held open: its path is by the descriptor, so it leads there whatever is renamed.
struct Held {
    placeholder: Placeholder,
    /// The directory, unless it is the workspace itself.
    _parent: Option<OwnedFd>,
}

/// Something that was made under a name of its own, which goes with this.
struct Aside(Held);

impl Drop for Aside {
    fn drop(&mut self) {
        take_away(&self.0.placeholder);
    }
}

/// A name that no run can have taken beforehand.
fn name_aside(index: usize) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!(".ringfence-{}-{index}-{:x}", std::process::id(), now.as_nanos())
}

/// Gives a file another name, where nothing is.
fn name_again(file: &Path, name: &Path) -> Result<(), Errno> {
    rustix::fs::linkat(CWD, file, CWD, name, rustix::fs::AtFlags::empty())
}

impl StandIns {
    /// Opens the directory that a placeholder is in, beneath the workspace if it is there, and through no link.
    fn hold(&self, placeholder: &Placeholder) -> io::Result<Held> {
        let path = &placeholder.path;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let none = ResolveFlags::NO_SYMLINKS;
        let opened = match parent.strip_prefix(&self.path) {
            Ok(below) if below.as_os_str().is_empty() => None,
            Ok(below) => {
                Some(openat2(&self.workspace, below, flags, Mode::empty(), none | ResolveFlags::BENEATH)?)
            }
            Err(_) => Some(openat2(CWD, parent, flags, Mode::empty(), none)?),
        };
        let descriptor = opened.as_ref().map_or(self.workspace.as_raw_fd(), AsRawFd::as_raw_fd);
        let path = Path::new("/proc/self/fd").join(descriptor.to_string()).join(name);
        Ok(Held { placeholder: Placeholder { path, kind: placeholder.kind.clone() }, _parent: opened })
    }

    /// Moves an empty directory away, and returns whether it is gone. One that turns out not to be empty comes back.
    fn discard(&self, placeholder: &Placeholder, index: usize) -> bool {
        let Some(name) = self.discarded.as_ref().filter(|_| placeholder.kind == StandIn::Directory) else {
            return false;
        };
        let mut away = name.clone().into_os_string();
        away.push(format!("-{index}"));
        let away = PathBuf::from(away);
        // One that is not empty is not moved at all, as far as it can be known.
        if !is_empty(&placeholder.path) || put(&placeholder.path, &away).is_err() {
            return false;
        }
        is_empty(&away) || put(&away, &placeholder.path).is_err()
    }
}

impl Drop for StandIns {
    fn drop(&mut self) {
        if flock(&self.workspace, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // The innermost first.
            for (index, placeholder) in self.wanted.iter().enumerate().rev() {
                let Ok(Held { placeholder, _parent }) = self.hold(placeholder) else { continue };
                if is_marked(&placeholder.path) && !self.discard(&placeholder, index) {
                    take_away(&placeholder);
                }
            }
        }
    }
}

/// Whether something stands in for a path, whoever has made it and whenever. A person's own file has no mark, however
/// empty it is; and what has a mark and is not as a stand-in is made was marked by somebody else.
pub fn is_stand_in(path: &Path) -> bool {
    let small = |data: fs::Metadata| match data.is_dir() {
        true => is_empty(path),
        false => data.is_file() && data.len() <= LONGEST,
    };
    is_marked(path) && fs::symlink_metadata(path).is_ok_and(small)
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).is_ok_and(|mut inside| inside.next().is_none())
}

fn is_marked(path: &Path) -> bool {
    rustix::fs::lgetxattr(path, STAND_IN_MARK, &mut [0u8; 8]).is_ok()
}

/// Moves something to where nothing is.
fn put(from: &Path, to: &Path) -> Result<(), Errno> {
    renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)
}

/// Makes a stand-in and marks it.
fn make(placeholder: &Placeholder) -> io::Result<()> {
    let unmarked =
        |error: Errno| io::Error::other(format!("this file system has no marks for files (user.*): {error}"));
    match &placeholder.kind {
        StandIn::Directory => {
            fs::create_dir(&placeholder.path)?;
            rustix::fs::setxattr(&placeholder.path, STAND_IN_MARK, b"1", XattrFlags::empty())
                .map_err(unmarked)
        }
        StandIn::File(text) => {
            let mut file = fs::OpenOptions::new().write(true).create_new(true).open(&placeholder.path)?;
            file.write_all(text.as_bytes())?;
            rustix::fs::fsetxattr(&file, STAND_IN_MARK, b"1", XattrFlags::empty()).map_err(unmarked)?;
            // It gets several names: what a user writes to one of them would be in all of them, and stay there. Only now, for
            // a file that cannot be written cannot be marked.
            Ok(rustix::fs::fchmod(&file, Mode::RUSR | Mode::RGRP | Mode::ROTH)?)
        }
    }
}

/// Takes something away that is as a stand-in is made.
fn take_away(placeholder: &Placeholder) {
    let _ = match &placeholder.kind {
        StandIn::Directory => fs::remove_dir(&placeholder.path),
        StandIn::File(_) if as_made(placeholder) => fs::remove_file(&placeholder.path),
        StandIn::File(_) => Ok(()),
    };
}

/// Whether something is just what a stand-in is.
fn as_made(placeholder: &Placeholder) -> bool {
    let path = &placeholder.path;
    let Ok(data) = fs::symlink_metadata(path) else { return false };
    match &placeholder.kind {
        StandIn::Directory => data.is_dir() && is_empty(path),
        StandIn::File(text) => {
            let like_it = data.is_file() && data.len() == text.len() as u64;
            like_it && (text.is_empty() || fs::read(path).is_ok_and(|bytes| bytes == text.as_bytes()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use ringfence_core::paths::DirectoryId;

    use super::StandIns;
    use crate::layout::{Placeholder, StandIn, Stubs};

    /// Places a stub directory and a stub file, lets something happen, and ends the run.
    fn run(workspace: &Path, discarded: &Path, meanwhile: impl FnOnce()) {
        let mut stand_ins = StandIns::share(workspace, None).unwrap();
        stand_ins.answer_for(vec![
            Placeholder { path: workspace.join(".claude"), kind: StandIn::Directory },
            Placeholder { path: workspace.join(".envrc"), kind: StandIn::File(String::new()) },
        ]);
        stand_ins.discard_to(Some(discarded.join("run")));
        stand_ins.place().unwrap();
        assert!(workspace.join(".claude").is_dir() && workspace.join(".envrc").is_file());
        meanwhile();
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn stub_directories_are_moved_away_and_never_used_again() {
        let place = tempfile::tempdir().unwrap();
        let (workspace, discarded) = (place.path().join("w"), place.path().join("d"));
        fs::create_dir(&workspace).unwrap();
        fs::create_dir(&discarded).unwrap();
        run(&workspace, &discarded, || {});
        assert_eq!(names(&workspace), [""; 0]);
        assert_eq!(names(&discarded), ["run-0"]);
        // The name is taken, so the next one is removed instead.
        run(&workspace, &discarded, || {});
        assert_eq!((names(&workspace), names(&discarded)), (vec![], vec!["run-0".to_owned()]));
    }

    #[test]
    fn a_directory_in_which_a_file_was_made_stays_in_the_workspace() {
        let place = tempfile::tempdir().unwrap();
        let (workspace, discarded) = (place.path().join("w"), place.path().join("d"));
        fs::create_dir(&workspace).unwrap();
        fs::create_dir(&discarded).unwrap();
        run(&workspace, &discarded, || {
            drop(fs::File::create(workspace.join(".claude/settings.json")).unwrap())
        });
        assert_eq!(names(&workspace.join(".claude")), ["settings.json"]);
        assert_eq!(names(&discarded), [""; 0]);
    }

    #[test]
    fn stub_files_are_made_in_no_directory_that_was_put_in_the_workspaces_place() {
        use std::os::unix::fs::MetadataExt;
        let place = tempfile::tempdir().unwrap();
        let place = fs::canonicalize(place.path()).unwrap();
        let (workspace, other) = (place.join("w"), place.join("o"));
        fs::create_dir(&workspace).unwrap();
        fs::create_dir(&other).unwrap();
        let data = fs::metadata(&workspace).unwrap();
        let id = DirectoryId { device: data.dev(), inode: data.ino() };
        drop(StandIns::share(&workspace, Some(id)).unwrap());
        let stubs = || Stubs {
            workspace: workspace.clone(),
            id,
            placeholders: vec![Placeholder { path: workspace.join(".claude"), kind: StandIn::Directory }],
        };
        fs::rename(&workspace, place.join("moved")).unwrap();
        std::os::unix::fs::symlink(&other, &workspace).unwrap();
        assert!(StandIns::place_early(stubs()).is_err(), "a link");
        fs::remove_file(&workspace).unwrap();
        fs::create_dir(&workspace).unwrap();
        assert!(StandIns::place_early(stubs()).is_err(), "another directory");
        assert_eq!((names(&workspace), names(&other)), (vec![], vec![]));
    }

    #[test]
    fn stub_files_that_share_an_inode_cannot_be_written() {
        use std::io::Write;
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir().unwrap();
        run(place.path(), &place.path().join("missing"), || {
            let data = fs::metadata(place.path().join(".envrc")).unwrap();
            assert_eq!(data.permissions().mode() & 0o777, 0o444);
            // As editors do: another file in its place.
            let mut new = fs::File::create(place.path().join("new")).unwrap();
            new.write_all(b"mine").unwrap();
            fs::rename(place.path().join("new"), place.path().join(".envrc")).unwrap();
        });
        assert_eq!(fs::read_to_string(place.path().join(".envrc")).unwrap(), "mine");
    }

    #[test]
    fn without_a_place_to_move_them_to_they_are_removed() {
        let place = tempfile::tempdir().unwrap();
        let workspace = place.path().join("w");
        fs::create_dir(&workspace).unwrap();
        run(&workspace, &place.path().join("missing"), || {});
        assert_eq!(names(&workspace), [""; 0]);
    }
}
