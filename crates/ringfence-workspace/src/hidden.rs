//! What a run must not read, by identity: a name can be changed by the run, device and inode cannot.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use ringfence_core::paths::DirectoryId;

use crate::directory::{Directory, EntryKind, MAX_PATH_BYTES, Metadata};

/// Files and directories that a run must not read, as they were when it began.
#[derive(Debug, Default, Clone)]
pub struct HiddenFiles {
    ids: HashSet<DirectoryId>,
    incomplete: bool,
}

impl HiddenFiles {
    /// Adds one. A directory stands for everything below it.
    pub fn add(&mut self, id: DirectoryId) {
        self.ids.insert(id);
    }

    /// Adds the file or directory at a path of the host, if there is one. Nothing is opened, and a link at its end is not followed.
    pub fn add_path(&mut self, path: &Path) {
        let found = rustix::fs::lstat(path).map(|data| Metadata::from(data).id());
        self.ids.extend(found);
    }

    /// Whether this file or directory is one of them.
    pub fn contains(&self, id: DirectoryId) -> bool {
        self.ids.contains(&id)
    }

    /// Whether there may be more than were found, because the workspace has too many entries.
    pub fn is_incomplete(&self) -> bool {
        self.incomplete
    }

    /// Searches a workspace for what `denied` says of a path below it. Files in a denied directory are added one by one as
    /// well, because they may have a second name elsewhere. What a denied link leads to is not added: its own name decides.
    /// A directory that cannot be searched is hidden as a whole. At most `limit` entries are looked at.
    pub fn search(&mut self, root: &Directory, denied: &dyn Fn(&Path) -> bool, limit: usize) {
        let mut search =
            Search { hidden: self, denied, left: limit, directories: vec![(PathBuf::new(), false)] };
        while let Some((path, inherited)) = search.directories.pop() {
            search.directory(root, &path, inherited);
        }
    }
}

struct Search<'a> {
    hidden: &'a mut HiddenFiles,
    denied: &'a dyn Fn(&Path) -> bool,
    left: usize,
    /// Directories that are still to be listed, and whether everything in them is denied.
    directories: Vec<(PathBuf, bool)>,
}

impl Search<'_> {
    fn directory(&mut self, root: &Directory, path: &Path, inherited: bool) {
        let Ok(directory) = root.directory(path) else { return self.hide(root, path) };
        let listed = directory.each(&mut |name, kind, _| {
            if self.left == 0 {
                self.hidden.incomplete = true;
                return false;
            }
            self.left -= 1;
            let inner = path.join(name);
            let denied = inherited || (self.denied)(&inner);
            if denied {
                self.hidden.ids.extend(directory.metadata(Path::new(name)).map(|data| data.id()));
            }
            if kind == EntryKind::Directory {
                match inner.as_os_str().len() < MAX_PATH_BYTES {
                    true => self.directories.push((inner, denied)),
                    false => {
                        self.hidden.ids.extend(directory.metadata(Path::new(name)).map(|data| data.id()));
                    }
                }
            }
            true
        });
        if listed.is_err() {
            self.hide(root, path);
        }
    }

    /// What cannot be searched could hold anything.
    fn hide(&mut self, root: &Directory, path: &Path) {
        match root.metadata(path) {
            Ok(data) => self.hidden.add(data.id()),
            // It has gone meanwhile, with what was in it.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(_) => self.hidden.incomplete = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::HiddenFiles;
    use crate::Directory;

    fn workspace() -> (tempfile::TempDir, Directory) {
        let place = tempfile::tempdir().unwrap();
        let root = Directory::open(&place.path().canonicalize().unwrap()).unwrap();
        root.create_directory(Path::new("secrets"), 0o700).unwrap();
        for file in ["secrets/key", "open.txt", "target"] {
            root.create_file(Path::new(file), 0o600).unwrap();
        }
        std::fs::hard_link(place.path().join("secrets/key"), place.path().join("alias")).unwrap();
        root.create_link(Path::new("x.pem"), Path::new("target")).unwrap();
        (place, root)
    }

    fn search(root: &Directory, limit: usize) -> HiddenFiles {
        let mut hidden = HiddenFiles::default();
        let denied =
            |path: &Path| path == Path::new("secrets") || path.extension().is_some_and(|it| it == "pem");
        hidden.search(root, &denied, limit);
        hidden
    }

    #[test]
    fn denied_files_are_known_by_every_name() {
        let (_place, root) = workspace();
        let hidden = search(&root, 1000);
        let is_hidden = |path: &str| hidden.contains(root.metadata(Path::new(path)).unwrap().id());
        for path in ["secrets", "secrets/key", "alias", "x.pem"] {
            assert!(is_hidden(path), "{path}");
        }
        assert!(!is_hidden("target"), "a link must not hide what it leads to");
        assert!(!is_hidden("open.txt") && !is_hidden("") && !hidden.is_incomplete());
    }

    #[test]
    fn a_search_that_is_cut_off_says_so() {
        let (_place, root) = workspace();
        assert!(search(&root, 3).is_incomplete());
    }
}
