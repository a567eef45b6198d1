//! Visits everything below a directory, within bounds: a run can leave trees that are deep, unreadable or endless.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use crate::{Directory, EntryKind};

/// How much is visited.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Longest path of a directory that is entered, in bytes, from the root.
    pub path_bytes: usize,
    /// Most names that are visited.
    pub entries: usize,
}

/// One name that is visited.
#[derive(Debug)]
pub struct Visit<'a> {
    /// Its path, from the root.
    pub path: &'a Path,
    /// Its last part.
    pub name: &'a OsStr,
    /// What it names. Not the target of a link.
    pub kind: EntryKind,
    /// The number of its inode.
    pub inode: u64,
    /// The directory that it is in.
    pub parent: &'a Directory,
}

/// What to do after a visit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Enter it, if it is a directory.
    Enter,
    /// Pass over what is below it.
    PassOver,
}

/// What was not visited.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unvisited {
    /// Directories that cannot be read or whose paths are too long.
    pub directories: Vec<PathBuf>,
    /// Whether there were more names than the bounds allow.
    pub more: bool,
}

/// Visits everything below a directory, which itself has to be readable. Links are visited and not followed.
pub fn walk(
    root: &Directory,
    bounds: Bounds,
    visit: &mut dyn FnMut(&Visit<'_>) -> Next,
) -> io::Result<Unvisited> {
    let mut unvisited = Unvisited::default();
    let mut count = 0;
    let mut waiting: Vec<PathBuf> = Vec::new();
    let mut visit_one = |directory: &Directory, at: &Path, waiting: &mut Vec<PathBuf>| {
        let mut path = at.to_owned();
        let read = directory.each(&mut |name, kind, inode| {
            count += 1;
            path.push(name);
            let next = visit(&Visit { path: &path, name, kind, inode, parent: directory });
            if next == Next::Enter && kind == EntryKind::Directory {
                waiting.push(path.clone());
            }
            path.pop();
            count < bounds.entries
        });
        (read, count >= bounds.entries)
    };
    let (read, more) = visit_one(root, Path::new(""), &mut waiting);
    read?;
    unvisited.more = more;
    while let Some(path) = waiting.pop().filter(|_| !unvisited.more) {
        if path.as_os_str().len() > bounds.path_bytes {
            unvisited.directories.push(path);
            continue;
        }
        let read = match root.directory(&path) {
            Ok(directory) => {
                let (read, more) = visit_one(&directory, &path, &mut waiting);
                unvisited.more |= more;
                read
            }
            Err(error) => Err(error),
        };
        match read {
            // Gone meanwhile, or another kind of file by now: there is nothing to enter.
            Err(error) if is_gone(&error) => {}
            Err(_) => unvisited.directories.push(path),
            Ok(()) => {}
        }
    }
    Ok(unvisited)
}

fn is_gone(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let gone = [Errno::NOENT, Errno::NOTDIR, Errno::LOOP];
    error.raw_os_error().is_some_and(|code| gone.iter().any(|errno| errno.raw_os_error() == code))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    use super::{Bounds, Next, walk};
    use crate::Directory;

    const BOUNDS: Bounds = Bounds { path_bytes: 500, entries: 1000 };

    #[test]
    fn links_are_not_followed_and_long_paths_are_reported() {
        let root = tempfile::tempdir().unwrap();
        let long = "d".repeat(200);
        fs::create_dir_all(root.path().join(&long).join(&long).join(&long)).unwrap();
        symlink("/", root.path().join("all")).unwrap();
        let directory = Directory::open(&root.path().canonicalize().unwrap()).unwrap();
        let mut seen = BTreeSet::new();
        let unvisited = walk(&directory, BOUNDS, &mut |visit| {
            seen.insert(visit.path.to_owned());
            Next::Enter
        })
        .unwrap();
        assert!(seen.contains(&PathBuf::from("all")) && !seen.contains(&PathBuf::from("all/usr")));
        assert_eq!(unvisited.directories, [PathBuf::from(&long).join(&long).join(&long)]);
    }

    #[test]
    fn a_directory_that_cannot_be_read_is_reported() {
        // Root reads every directory.
        if rustix::process::geteuid().is_root() {
            return;
        }
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("shut")).unwrap();
        fs::set_permissions(root.path().join("shut"), Permissions::from_mode(0o000)).unwrap();
        let directory = Directory::open(&root.path().canonicalize().unwrap()).unwrap();
        let unvisited = walk(&directory, BOUNDS, &mut |_| Next::Enter).unwrap();
        assert_eq!(unvisited.directories, [PathBuf::from("shut")]);
    }

    #[test]
    fn a_walk_ends_at_its_bound() {
        let root = tempfile::tempdir().unwrap();
        for number in 0..20 {
            fs::create_dir(root.path().join(number.to_string())).unwrap();
        }
        let directory = Directory::open(&root.path().canonicalize().unwrap()).unwrap();
        let mut count = 0;
        let unvisited = walk(&directory, Bounds { entries: 10, ..BOUNDS }, &mut |_| {
            count += 1;
            Next::Enter
        });
        assert!(unvisited.unwrap().more);
        assert_eq!(count, 10);
    }
}
