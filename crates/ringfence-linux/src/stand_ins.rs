//! What stands in a workspace for protected paths that do not exist, while a run lasts.
//!
//! Each is marked, so that it is never taken for a user's file or the other way round, and several runs in one workspace
//! share them: the last run removes them, as a lock on the workspace tells. Each is made new and deleted afterwards: a run in
//! a directory above could have kept a descriptor of it, so none is ever moved to another workspace.

use std::cell::Cell;
use std::ffi::{CStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use ringfence_core::paths::{DirectoryId, STAND_IN_MARK};
use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, RenameFlags, ResolveFlags, Stat, XattrFlags,
    fchmod, flock, fsetxattr, fstat, linkat, mkdirat, openat, openat2, removexattr, renameat_with, setxattr,
    statat, unlinkat,
};
use rustix::io::Errno;

use crate::layout::{Placeholder, StandIn, Stubs};

/// How long others may hold on to a workspace while they take stand-ins away.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// How often to ask again.
const LOCK_AGAIN: Duration = Duration::from_millis(2);
/// The access control lists that a directory takes over from the one above. What is made in it later would take them over too, without
/// regard to the umask.
const INHERITED_LISTS: [&CStr; 2] = [c"system.posix_acl_default", c"system.posix_acl_access"];
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
    /// Whether somebody else takes them away, as far as it lives.
    entrusted: Cell<bool>,
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
                    return Ok(Self {
                        wanted: Vec::new(),
                        placed: 0,
                        workspace,
                        path,
                        entrusted: Cell::new(false),
                    });
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

    /// Gives up the share: somebody else has one of its own, and takes them away if it can.
    pub fn entrust(&self) {
        let _ = flock(&self.workspace, FlockOperation::Unlock);
        self.entrusted.set(true);
    }

    /// Whether somebody else has taken them away, as far as the first that is taken away tells, and the last.
    fn are_gone(&self) -> bool {
        let is_gone = |stub: &Placeholder| {
            self.hold(&stub.path).is_ok_and(|held| matches!(held.stat(), Err(Errno::NOENT)))
        };
        self.wanted.first().is_none_or(is_gone) && self.wanted.last().is_none_or(is_gone)
    }

    /// Makes those that are not there yet. Each comes with its mark: it is made aside and then put in its place, so that no
    /// other run ever takes it for a user's file. Files with the same text are names of one new file: making a file costs ten
    /// times as much as giving it another name.
    pub fn place(&mut self) -> io::Result<()> {
        let mut files: Vec<(&str, Aside<'_>)> = Vec::new();
        for (index, placeholder) in self.wanted.iter().enumerate().skip(self.placed) {
            let held = self.hold(&placeholder.path)?;
            let placed = match &placeholder.kind {
                StandIn::Directory if held.is_there() => continue,
                StandIn::Directory => {
                    Aside::directory(self.hold(&placeholder.path)?.aside(index))?.put(&held)
                }
                StandIn::File(text) => match files.iter().find(|(made, _)| made == text) {
                    Some((_, aside)) => aside.name_again(&held),
                    None if held.is_there() => continue,
                    None => {
                        let aside = Aside::file(self.hold(&placeholder.path)?.aside(index), text)?;
                        let placed = aside.name_again(&held);
                        files.push((text, aside));
                        placed
                    }
                },
            };
            match placed {
                // It was there, or another run was faster.
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        drop(files);
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

/// A name in a directory that is held open: it leads there whatever is renamed.
struct Held<'a> {
    directory: MaybeOwned<'a>,
    name: OsString,
}

/// A directory that is opened for one name in it, or that is open anyway.
enum MaybeOwned<'a> {
    Owned(OwnedFd),
    Borrowed(BorrowedFd<'a>),
}

impl AsFd for MaybeOwned<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Owned(descriptor) => descriptor.as_fd(),
            Self::Borrowed(descriptor) => *descriptor,
        }
    }
}

/// Which file it is: device and inode.
type FileId = (u64, u64);

impl<'a> Held<'a> {
    /// The same directory, and a name in it that no run can have taken beforehand.
    fn aside(self, index: usize) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let name = format!(".ringfence-{}-{index}-{:x}", std::process::id(), now.as_nanos());
        Held { name: name.into(), ..self }
    }

    /// For the calls that take no descriptor of a directory.
    fn path(&self) -> PathBuf {
        let descriptor = self.directory.as_fd().as_raw_fd().to_string();
        Path::new("/proc/self/fd").join(descriptor).join(&self.name)
    }

    fn stat(&self) -> Result<Stat, Errno> {
        statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn is_there(&self) -> bool {
        self.stat().is_ok()
    }

    /// Removes it in its place, a directory only if it is empty. A directory is never moved: a run above may have it open, and could
    /// put something in it afterwards. One that is removed takes nothing more.
    fn remove(&self, kind: &StandIn) {
        let flags = match kind {
            StandIn::Directory => AtFlags::REMOVEDIR,
            StandIn::File(_) => AtFlags::empty(),
        };
        let _ = unlinkat(&self.directory, &self.name, flags);
    }
}

/// Something that was made under a name of its own.
struct Aside<'a> {
    held: Held<'a>,
    /// The file, whose own name goes with this.
    file: Option<FileId>,
}

impl<'a> Aside<'a> {
    fn directory(held: Held<'a>) -> io::Result<Self> {
        // Other users never write in it, whatever the umask and the lists of the directory above: these are bounded by the mode.
        mkdirat(&held.directory, &held.name, Mode::from_raw_mode(0o755))?;
        for list in INHERITED_LISTS {
            let _ = removexattr(held.path(), list);
        }
        let marked = setxattr(held.path(), STAND_IN_MARK, b"1", XattrFlags::empty());
        if let Err(error) = marked {
            held.remove(&StandIn::Directory);
            return Err(unmarked(error));
        }
        Ok(Self { held, file: None })
    }

    fn file(held: Held<'a>, text: &str) -> io::Result<Self> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(&held.directory, &held.name, flags, Mode::RUSR | Mode::WUSR)?;
        let mut file = File::from(file);
        let data = fstat(&file)?;
        let aside = Self { held, file: Some((data.st_dev, data.st_ino)) };
        file.write_all(text.as_bytes())?;
        fsetxattr(&file, STAND_IN_MARK, b"1", XattrFlags::empty()).map_err(unmarked)?;
        // It gets several names: what a user writes to one of them would be in all of them, and stay there. Only now, for
        // a file that cannot be written cannot be marked.
        fchmod(&file, Mode::RUSR | Mode::RGRP | Mode::ROTH)?;
        Ok(aside)
    }

    /// Moves it to where nothing is. What cannot be moved is removed.
    fn put(self, to: &Held<'_>) -> Result<(), Errno> {
        let (from, flags) = (&self.held, RenameFlags::NOREPLACE);
        let put = renameat_with(&from.directory, &from.name, &to.directory, &to.name, flags);
        if put.is_err() {
            from.remove(&StandIn::Directory);
        }
        put
    }

    /// Gives it another name, where nothing is.
    fn name_again(&self, to: &Held<'_>) -> Result<(), Errno> {
        let from = &self.held;
        linkat(&from.directory, &from.name, &to.directory, &to.name, AtFlags::empty())
    }
}

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        let is_it = |file: FileId| self.held.stat().is_ok_and(|data| (data.st_dev, data.st_ino) == file);
        if self.file.is_some_and(is_it) {
            let _ = unlinkat(&self.held.directory, &self.held.name, AtFlags::empty());
        }
    }
}

fn unmarked(error: Errno) -> io::Error {
    io::Error::other(format!("this file system has no marks for files (user.*): {error}"))
}

impl StandIns {
    /// Opens the directory that a path is in, beneath the workspace if it is there, and through no link.
    fn hold(&self, path: &Path) -> io::Result<Held<'_>> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let none = ResolveFlags::NO_SYMLINKS;
        let beneath = none | ResolveFlags::BENEATH;
        let directory = match parent.strip_prefix(&self.path) {
            Ok(below) if below.as_os_str().is_empty() => MaybeOwned::Borrowed(self.workspace.as_fd()),
            Ok(below) => MaybeOwned::Owned(openat2(&self.workspace, below, flags, Mode::empty(), beneath)?),
            Err(_) => MaybeOwned::Owned(openat2(CWD, parent, flags, Mode::empty(), none)?),
        };
        Ok(Held { directory, name: name.to_owned() })
    }

    /// Takes one away if it is as it was made. `known` are files that were looked at, with
    /// their text: they have several names.
    fn take_away<'a>(&'a self, index: usize, known: &mut Vec<(FileId, &'a str)>) {
        let Placeholder { path, kind } = &self.wanted[index];
        let Ok(held) = self.hold(path) else { return };
        let Ok(data) = held.stat() else { return };
        let id = (data.st_dev, data.st_ino);
        let is_stub = match kind {
            StandIn::Directory => is_marked(&held.path()),
            StandIn::File(text) if known.contains(&(id, text)) => true,
            StandIn::File(text) => is_marked(&held.path()) && is_file_of(&held.path(), &data, text),
        };
        if is_stub {
            held.remove(kind);
        }
        if let (true, StandIn::File(text)) = (is_stub, kind) {
            known.push((id, text));
        }
    }
}

impl Drop for StandIns {
    fn drop(&mut self) {
        if self.entrusted.get() && self.are_gone() {
            return;
        }
        if flock(&self.workspace, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let mut known = Vec::new();
            // The innermost first.
            (0..self.wanted.len()).rev().for_each(|index| self.take_away(index, &mut known));
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

fn size(text: &str) -> i64 {
    i64::try_from(text.len()).unwrap_or(i64::MAX)
}

/// Whether it is a file with just this text.
fn is_file_of(path: &Path, data: &Stat, text: &str) -> bool {
    let is_alike = FileType::from_raw_mode(data.st_mode).is_file() && data.st_size == size(text);
    is_alike && (text.is_empty() || fs::read(path).is_ok_and(|bytes| bytes == text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use ringfence_core::paths::DirectoryId;

    use super::StandIns;
    use crate::layout::{Placeholder, StandIn, Stubs};

    /// Places a stub directory and a stub file, lets something happen, and ends the run.
    fn run(workspace: &Path, meanwhile: impl FnOnce()) {
        let mut stand_ins = StandIns::share(workspace, None).unwrap();
        stand_ins.answer_for(vec![
            Placeholder { path: workspace.join(".claude"), kind: StandIn::Directory },
            Placeholder { path: workspace.join(".envrc"), kind: StandIn::File(String::new()) },
        ]);
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
    fn stub_directory_is_removed_where_it_is_and_takes_nothing_more() {
        let place = tempfile::tempdir().unwrap();
        let (workspace, nested) = (place.path().join("w"), place.path().join("nested"));
        fs::create_dir(&workspace).unwrap();
        fs::create_dir(&nested).unwrap();
        let mut held = None;
        run(&workspace, || held = Some(fs::File::open(workspace.join(".claude")).unwrap()));
        assert_eq!(names(&workspace), [""; 0]);
        // A run above has the directory open.
        let moved = rustix::fs::renameat(rustix::fs::CWD, &nested, held.unwrap(), "nested");
        assert_eq!(moved, Err(rustix::io::Errno::NOENT));
        assert_eq!(names(place.path()), ["nested", "w"]);
    }

    #[test]
    fn stub_directory_with_a_file_stays_in_the_workspace() {
        let place = tempfile::tempdir().unwrap();
        let workspace = place.path().join("w");
        fs::create_dir(&workspace).unwrap();
        run(&workspace, || drop(fs::File::create(workspace.join(".claude/settings.json")).unwrap()));
        assert_eq!(names(&workspace.join(".claude")), ["settings.json"]);
    }

    #[test]
    fn stub_directory_is_writable_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        const LIST: &std::ffi::CStr = c"system.posix_acl_default";
        let place = tempfile::tempdir().unwrap();
        // Owner, a user, group, mask and others, all with all rights.
        let entries = [(1_u16, u32::MAX), (2, 31_337), (4, u32::MAX), (16, u32::MAX), (32, u32::MAX)];
        let bytes = |(tag, id): (u16, u32)| {
            [&tag.to_le_bytes()[..], &7_u16.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        let list = [vec![2, 0, 0, 0], entries.into_iter().flat_map(bytes).collect()].concat();
        let flags = rustix::fs::XattrFlags::empty();
        let has_lists = rustix::fs::setxattr(place.path(), LIST, &list, flags).is_ok();
        run(place.path(), || {
            let stub = place.path().join(".claude");
            let mode = fs::metadata(&stub).unwrap().permissions().mode();
            assert_eq!(mode & 0o022, 0, "{mode:o}");
            for list in super::INHERITED_LISTS.iter().filter(|_| has_lists) {
                let found = rustix::fs::getxattr(&stub, *list, &mut [0u8; 64]);
                assert_eq!(found, Err(rustix::io::Errno::NODATA), "{list:?}");
            }
        });
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
        run(place.path(), || {
            let data = fs::metadata(place.path().join(".envrc")).unwrap();
            assert_eq!(data.permissions().mode() & 0o777, 0o444);
            // As editors do: another file in its place.
            let mut new = fs::File::create(place.path().join("new")).unwrap();
            new.write_all(b"mine").unwrap();
            fs::rename(place.path().join("new"), place.path().join(".envrc")).unwrap();
        });
        assert_eq!(fs::read_to_string(place.path().join(".envrc")).unwrap(), "mine");
    }
}
