//! Removes a directory with everything below it, whatever a run has built there.
//!
//! No depth, name or permission stops it: a directory that is found below the top is moved up into the top directory under
//! a new name, and emptied from there. So three descriptors suffice, no path is longer than one name, and nothing recurses.

use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::path::Path;
use std::time::Instant;

use rustix::fs::{
    AtFlags, Mode, OFlags, RawDir, RenameFlags, chmodat, openat, renameat_with, seek, unlinkat,
};
use rustix::io::Errno;

use crate::directory::{Directory, LISTABLE, NAMES_BYTES};

/// The name of a directory that was moved up is this and a number.
const MOVED: &str = ".ringfence-remove-";

/// Removes the directory `name` of `parent` and everything below it. No run may have access to it any more: permissions are
/// changed by name.
pub fn remove_tree(parent: &Directory, name: &OsStr) -> io::Result<()> {
    remove_until(parent, name, None)
}

/// The same until `deadline`: what is left then can be removed by a later call, and the error is of the kind `TimedOut`.
pub fn remove_tree_until(parent: &Directory, name: &OsStr, deadline: Instant) -> io::Result<()> {
    remove_until(parent, name, Some(deadline))
}

fn remove_until(parent: &Directory, name: &OsStr, deadline: Option<Instant>) -> io::Result<()> {
    let in_time = || match deadline.is_some_and(|deadline| Instant::now() >= deadline) {
        true => Err(io::Error::from(io::ErrorKind::TimedOut)),
        false => Ok(()),
    };
    let top = match open(parent, name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    let mut moved = 0;
    // Each pass removes everything that it finds; what it moves up is found by a later pass.
    while pass(&top, &mut |name, is_directory| {
        in_time()?;
        if !is_directory {
            return remove_file(&top, name);
        }
        if remove_directory(&top, name)? {
            return Ok(());
        }
        let inner = open(&top, name)?;
        while pass(&inner, &mut |name, is_directory| {
            in_time()?;
            match is_directory {
                true => remove_or_move(&inner, name, &top, &mut moved),
                false => remove_file(&inner, name),
            }
        })? {}
        remove_directory(&top, name).map(drop)
    })? {}
    drop(top);
    parent.remove_directory(Path::new(name))
}

/// Opens a directory for listing, and makes it accessible if it is not.
fn open(parent: &Directory, name: &OsStr) -> io::Result<Directory> {
    let flags = LISTABLE | OFlags::NOFOLLOW;
    let opened = match openat(parent, name, flags, Mode::empty()) {
        Err(Errno::ACCESS) => {
            unlock(parent, name)?;
            openat(parent, name, flags, Mode::empty())?
        }
        other => other?,
    };
    rustix::fs::fchmod(&opened, Mode::RWXU)?;
    Ok(Directory::of(opened))
}

fn unlock(parent: &Directory, name: &OsStr) -> io::Result<()> {
    Ok(chmodat(parent, name, Mode::RWXU, AtFlags::empty())?)
}

/// Calls `visit` for each name of a directory, and returns whether there was one.
fn pass(directory: &Directory, visit: &mut dyn FnMut(&OsStr, bool) -> io::Result<()>) -> io::Result<bool> {
    use std::os::unix::ffi::OsStrExt;
    seek(directory, rustix::fs::SeekFrom::Start(0))?;
    let mut buffer = [MaybeUninit::uninit(); NAMES_BYTES];
    let mut names = RawDir::new(directory, &mut buffer);
    let mut any = false;
    while let Some(entry) = names.next() {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        any = true;
        let is_directory = match entry.file_type() {
            rustix::fs::FileType::Unknown => {
                let data = directory.metadata(Path::new(OsStr::from_bytes(name.to_bytes())))?;
                data.kind() == crate::EntryKind::Directory
            }
            kind => kind == rustix::fs::FileType::Directory,
        };
        visit(OsStr::from_bytes(name.to_bytes()), is_directory)?;
    }
    Ok(any)
}

fn remove_file(directory: &Directory, name: &OsStr) -> io::Result<()> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        other => Ok(other?),
    }
}

/// Removes a directory, and returns whether it is gone: one that is not empty stays.
fn remove_directory(directory: &Directory, name: &OsStr) -> io::Result<bool> {
    match unlinkat(directory, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn remove_or_move(from: &Directory, name: &OsStr, to: &Directory, moved: &mut u64) -> io::Result<()> {
    if remove_directory(from, name)? {
        return Ok(());
    }
    // A directory whose parent changes has to be writable itself.
    unlock(from, name)?;
    loop {
        *moved += 1;
        match renameat_with(from, name, to, format!("{MOVED}{moved}"), RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            other => return Ok(other?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use std::time::{Duration, Instant};

    use super::{remove_tree, remove_tree_until};
    use crate::Directory;

    /// Builds nested directories, each with a file, deeper than any path can be.
    fn nest(top: &Path, depth: usize, name: &OsStr) {
        let mut inner = Directory::open(top).unwrap();
        for _ in 0..depth {
            inner.create_file(Path::new("file"), 0o400).unwrap();
            inner.create_directory(Path::new(name), 0o700).unwrap();
            inner = inner.directory(Path::new(name)).unwrap();
        }
    }

    #[test]
    fn trees_deeper_than_any_path_are_removed() {
        let place = tempfile::tempdir().unwrap();
        let parent = Directory::open(&place.path().canonicalize().unwrap()).unwrap();
        parent.create_directory(Path::new("tree"), 0o700).unwrap();
        nest(&place.path().join("tree"), 6_000, OsStr::from_bytes(&[b'n'; 255]));
        remove_tree(&parent, OsStr::new("tree")).unwrap();
        assert_eq!(parent.entries(10).unwrap(), []);
    }

    #[test]
    fn inaccessible_directories_links_and_taken_names_are_removed() {
        let place = tempfile::tempdir().unwrap();
        let parent = Directory::open(&place.path().canonicalize().unwrap()).unwrap();
        for path in ["keep", "tree", "tree/a", "tree/a/b", "tree/a/b/c", "tree/.ringfence-remove-1"] {
            parent.create_directory(Path::new(path), 0o700).unwrap();
        }
        parent.create_file(Path::new("keep/file"), 0o600).unwrap();
        parent.create_file(Path::new("tree/a/b/c/file"), 0o000).unwrap();
        parent.create_link(Path::new("tree/a/link"), Path::new("../../keep")).unwrap();
        parent.create_link(Path::new("tree/link"), Path::new("../keep")).unwrap();
        for path in ["tree/a/b/c", "tree/a/b", "tree/a", "tree"] {
            // From the inside out: each is still reached by its path.
            parent.set_permissions(Path::new(path), 0o000).unwrap();
        }
        remove_tree(&parent, OsStr::new("tree")).unwrap();
        assert!(parent.metadata(Path::new("tree")).is_err());
        assert!(parent.metadata(Path::new("keep/file")).is_ok(), "no link is followed");
        remove_tree(&parent, OsStr::new("tree")).unwrap();
    }

    #[test]
    fn a_removal_that_takes_too_long_goes_on_with_a_later_call() {
        let place = tempfile::tempdir().unwrap();
        let parent = Directory::open(&place.path().canonicalize().unwrap()).unwrap();
        parent.create_directory(Path::new("tree"), 0o700).unwrap();
        nest(&place.path().join("tree"), 50, OsStr::new("n"));
        let over = remove_tree_until(&parent, OsStr::new("tree"), Instant::now());
        assert_eq!(over.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
        assert!(parent.metadata(Path::new("tree/file")).is_ok());
        let later = Instant::now() + Duration::from_secs(60);
        remove_tree_until(&parent, OsStr::new("tree"), later).unwrap();
        assert_eq!(parent.entries(10).unwrap(), []);
    }
}
