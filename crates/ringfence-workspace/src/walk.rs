//! Visits everything below a directory, within bounds: a run can leave trees that are deep, unreadable or endless.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::{Directory, EntryKind, Metadata};

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

impl Visit<'_> {
    /// Whether it is a character device with the number 0, by which overlayfs marks a deleted file.
    pub fn is_whiteout(&self) -> bool {
        self.parent.metadata(Path::new(self.name)).is_ok_and(|data| data.is_whiteout())
    }
}

/// What a walk comes to.
#[derive(Debug)]
pub enum Step<'a> {
    /// A directory that is entered, the root too, before the names in it: its path from the root, and what the kernel says of it.
    Directory(&'a Path, Metadata),
    /// One name.
    Name(Visit<'a>),
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
    /// Directories that cannot be read or searched, whose paths are too long, or that hold too much of that or too many directories.
    pub directories: Vec<PathBuf>,
    /// Whether there were more names than the bounds allow.
    pub more: bool,
}

/// Most directories on the way down that are held open. Those above are opened again when the walk is back.
const MAX_OPEN: usize = 64;
/// Most bytes of the names of directories that wait to be entered.
const MAX_WAITING_BYTES: usize = 16 << 20;
/// More directories than this in one that cannot be visited, and it is not visited as a whole.
const MAX_UNVISITED_BELOW: usize = 64;
/// Most directories in all that are reported as not visited.
const MAX_UNVISITED: usize = 1 << 16;

/// Visits everything below a directory, which itself has to be readable and searchable. Links are visited and not followed. What it takes of memory
/// and of open files is bounded, however deep and wide the directory is.
pub fn walk(
    root: &Directory,
    bounds: Bounds,
    visit: &mut dyn FnMut(&Visit<'_>) -> Next,
) -> io::Result<Unvisited> {
    walk_with_directories(root, bounds, &mut |step| match step {
        Step::Directory(..) => Next::Enter,
        Step::Name(visited) => visit(&visited),
    })
}

/// The same, and describes each directory that is entered. What is returned for a directory itself does not matter.
pub fn walk_with_directories(
    root: &Directory,
    bounds: Bounds,
    step: &mut dyn FnMut(Step<'_>) -> Next,
) -> io::Result<Unvisited> {
    let mut walk = Walk {
        root,
        bounds,
        step,
        count: 0,
        path: PathBuf::new(),
        levels: Vec::new(),
        waiting: Vec::new(),
        unvisited: Unvisited::default(),
    };
    walk.list(None)?;
    while !walk.levels.is_empty() && !walk.unvisited.more {
        walk.step();
    }
    Ok(walk.unvisited)
}

/// A directory whose names were visited, and of which some are still to be entered.
struct Level {
    /// It, unless it is the root or too many others are open.
    directory: Option<Directory>,
    /// Where the names in `waiting` begin that are in it.
    first_waiting: usize,
    /// How many directories were not visited before it was listed.
    first_unvisited: usize,
}

struct Walk<'a, 'v> {
    root: &'a Directory,
    bounds: Bounds,
    step: &'v mut dyn FnMut(Step<'_>) -> Next,
    /// Names that were visited.
    count: usize,
    /// The path of the last level.
    path: PathBuf,
    /// The directories from the root down to where the walk is.
    levels: Vec<Level>,
    /// The names of directories that are still to be entered, those of the last level at the end, each with a zero behind it.
    waiting: Vec<u8>,
    unvisited: Unvisited,
}

impl Walk<'_, '_> {
    /// Visits the names in a directory at the current path, or in the root, and makes it the last level.
    fn list(&mut self, directory: Option<Directory>) -> io::Result<()> {
        let level = Level {
            first_waiting: self.waiting.len(),
            first_unvisited: self.unvisited.directories.len(),
            directory,
        };
        let listed = level.directory.as_ref().unwrap_or(self.root);
        // Names can be read without that right, but nothing that they name can be looked at.
        let data = listed.describe_searchable()?;
        let Self { bounds, step, count, path, waiting, .. } = self;
        step(Step::Directory(path, data));
        let read = listed.each(&mut |name, kind, inode| {
            *count += 1;
            path.push(name);
            let next = step(Step::Name(Visit { path, name, kind, inode, parent: listed }));
            path.pop();
            if next == Next::Enter && kind == EntryKind::Directory {
                waiting.extend_from_slice(name.as_bytes());
                waiting.push(0);
            }
            *count < bounds.entries && waiting.len() <= MAX_WAITING_BYTES
        });
        self.unvisited.more |= self.count >= self.bounds.entries;
        if read.is_err() {
            self.waiting.truncate(level.first_waiting);
            return read;
        }
        self.levels.push(level);
        if let Some(above) =
            self.levels.len().checked_sub(MAX_OPEN + 1).and_then(|at| self.levels.get_mut(at))
        {
            above.directory = None;
        }
        if self.waiting.len() > MAX_WAITING_BYTES {
            self.give_up();
        }
        Ok(())
    }

    /// Enters the next directory of the last level, or goes up.
    fn step(&mut self) {
        let Some(level) = self.levels.last() else { return };
        if self.unvisited.directories.len() - level.first_unvisited > MAX_UNVISITED_BELOW
            && self.levels.len() > 1
        {
            return self.give_up();
        }
        self.unvisited.more |= self.unvisited.directories.len() > MAX_UNVISITED;
        let Some(name) = self.next_name() else {
            self.levels.pop();
            self.path.pop();
            return;
        };
        self.path.push(&name);
        let entered = match self.path.as_os_str().len() > self.bounds.path_bytes {
            true => Err(io::ErrorKind::InvalidFilename.into()),
            false => self.open(&name).and_then(|directory| self.list(Some(directory))),
        };
        let Err(error) = entered else { return };
        // Gone meanwhile, or another kind of file by now: there is nothing to enter.
        if !is_gone(&error) {
            self.unvisited.directories.push(self.path.clone());
        }
        self.path.pop();
    }

    /// Takes a name of the last level from those that wait.
    fn next_name(&mut self) -> Option<OsString> {
        let first = self.levels.last()?.first_waiting;
        let waiting = self.waiting.get(first..)?;
        let names = waiting.strip_suffix(&[0])?;
        let start = names.iter().rposition(|byte| *byte == 0).map_or(0, |zero| zero + 1);
        let name = OsStr::from_bytes(names.get(start..)?).to_owned();
        self.waiting.truncate(first + start);
        Some(name)
    }

    /// Opens a directory of the last level, whose name ends the current path.
    fn open(&mut self, name: &OsStr) -> io::Result<Directory> {
        let is_root = self.levels.len() == 1;
        let Some(level) = self.levels.last_mut() else { return Err(io::ErrorKind::NotFound.into()) };
        if !is_root && level.directory.is_none() {
            let above = self.path.parent().unwrap_or(Path::new(""));
            level.directory = Some(self.root.directory(above)?);
        }
        level.directory.as_ref().unwrap_or(self.root).directory(Path::new(name))
    }

    /// Reports the last level as not visited, in the place of what is below it. The root cannot be.
    fn give_up(&mut self) {
        let Some(level) = self.levels.pop() else { return };
        self.waiting.truncate(level.first_waiting);
        if self.levels.is_empty() {
            self.unvisited.more = true;
            return;
        }
        self.unvisited.directories.truncate(level.first_unvisited);
        self.unvisited.directories.push(self.path.clone());
        self.path.pop();
    }
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

    use super::{Bounds, Next, Unvisited, walk};
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
    fn directories_that_cannot_be_read_or_searched_are_reported() {
        // Root reads every directory.
        if rustix::process::geteuid().is_root() {
            return;
        }
        for mode in [0o000, 0o111, 0o444, 0o644] {
            let root = tempfile::tempdir().unwrap();
            fs::create_dir_all(root.path().join("shut/below")).unwrap();
            fs::set_permissions(root.path().join("shut"), Permissions::from_mode(mode)).unwrap();
            let directory = Directory::open(&root.path().canonicalize().unwrap()).unwrap();
            let unvisited = walk(&directory, BOUNDS, &mut |_| Next::Enter).unwrap();
            assert_eq!(unvisited.directories, [PathBuf::from("shut")], "{mode:o}");
            fs::set_permissions(root.path().join("shut"), Permissions::from_mode(0o700)).unwrap();
        }
    }

    /// `count` directories in one, with a name of `length` bytes each.
    fn fill(directory: &std::path::Path, count: usize, length: usize) {
        fs::create_dir_all(directory).unwrap();
        (0..count).for_each(|number| fs::create_dir(directory.join(format!("{number:0length$}"))).unwrap());
    }

    #[test]
    fn directory_with_more_than_may_wait_is_not_visited() {
        let root = tempfile::tempdir().unwrap();
        fill(&root.path().join("a/wide"), super::MAX_WAITING_BYTES / 200 + 1, 200);
        fill(&root.path().join("b/c"), 2, 3);
        let directory = Directory::open(&root.path().canonicalize().unwrap()).unwrap();
        let mut seen = BTreeSet::new();
        let unvisited = walk(&directory, Bounds { entries: 1_000_000, ..BOUNDS }, &mut |visit| {
            seen.insert(visit.path.to_owned());
            Next::Enter
        });
        let expected = Unvisited { directories: vec!["a/wide".into()], more: false };
        assert_eq!(unvisited.unwrap(), expected);
        assert!(seen.contains(&PathBuf::from("b/c/001")));
    }

    #[test]
    fn directory_with_many_that_are_too_deep_is_reported_in_their_place() {
        let root = tempfile::tempdir().unwrap();
        let (few, many) = ("f".repeat(200), "m".repeat(200));
        fill(&root.path().join(&few).join(&few), super::MAX_UNVISITED_BELOW, 200);
        fill(&root.path().join(&many).join(&many), super::MAX_UNVISITED_BELOW + 1, 200);
        let directory = Directory::open(&root.path().canonicalize().unwrap()).unwrap();
        let unvisited = walk(&directory, BOUNDS, &mut |_| Next::Enter).unwrap().directories;
        assert_eq!(unvisited.len(), super::MAX_UNVISITED_BELOW + 1);
        assert!(unvisited.contains(&PathBuf::from(&many).join(&many)));
    }

    #[test]
    fn every_directory_is_visited_once_below_more_levels_than_are_open() {
        let root = tempfile::tempdir().unwrap();
        let mut deep = root.path().to_owned();
        let mut expected = BTreeSet::new();
        for _ in 0..super::MAX_OPEN * 3 {
            deep.push("d");
            fs::create_dir_all(deep.join("e")).unwrap();
            let below = deep.strip_prefix(root.path()).unwrap().to_owned();
            expected.extend([below.join("e"), below]);
        }
        let directory = Directory::open(&root.path().canonicalize().unwrap()).unwrap();
        let mut seen = Vec::new();
        let unvisited = walk(&directory, BOUNDS, &mut |visit| {
            seen.push(visit.path.to_owned());
            Next::Enter
        });
        assert_eq!(unvisited.unwrap(), Unvisited::default());
        assert_eq!((seen.len(), seen.into_iter().collect()), (expected.len(), expected));
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
