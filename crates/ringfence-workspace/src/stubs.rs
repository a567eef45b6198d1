//! The stub files that a backend has put into an overlay, as a list that the run cannot reach.
//!
//! A stub file that a killed run has left is no change of the agent's. Only this list says which they are: a mark on the
//! file itself could be made by the agent.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::directory::{Directory, EntryKind, Metadata};
use crate::file::ReadError;

/// The name of the list in the directory of an overlay.
const FILE_NAME: &str = "stubs.json";
/// No list is longer, in bytes.
const MAX_LIST_BYTES: u64 = 16 << 20;

/// Content of a stub file, or `None` for a directory.
pub type StubContent = Option<String>;

/// The stub files of one overlay, by their path in the workspace.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StubList(BTreeMap<PathBuf, StubContent>);

impl StubList {
    /// A list of these.
    pub fn new(stubs: impl IntoIterator<Item = (PathBuf, StubContent)>) -> Self {
        Self(stubs.into_iter().collect())
    }

    /// Writes the list next to the upper directory of an overlay, before any stub file is made.
    pub fn write(&self, overlay: &Directory) -> io::Result<()> {
        let text = serde_json::to_vec(self)?;
        overlay.create_file(Path::new(FILE_NAME), 0o600)?.write_all(&text)
    }

    /// Reads the list. An overlay without one has no stub files.
    pub fn read(overlay: &Directory) -> Result<Self, ReadError> {
        match overlay.read(Path::new(FILE_NAME), MAX_LIST_BYTES) {
            Err(error) if error.is_missing() => Ok(Self::default()),
            Err(error) => Err(error),
            Ok(text) => serde_json::from_slice(&text).map_err(|error| ReadError::Io(error.into())),
        }
    }

    /// Those below a directory that are there and are not as they were made.
    pub fn changed(&self, root: &Directory) -> Vec<PathBuf> {
        let look = |path: &PathBuf| match root.metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            other => Some(other.ok()),
        };
        let is_changed = |(path, content): &(&PathBuf, &StubContent)| {
            look(path).is_some_and(|data| !is_as_made(root, path, content, data))
        };
        // One that went in between is none.
        let changed = self.0.iter().filter(is_changed).filter(|(path, _)| look(path).is_some());
        changed.map(|(path, _)| path.clone()).collect()
    }

    /// Whether a path of the upper directory is a stub file that is still as it was made.
    pub fn is_untouched(&self, upper: &Directory, path: &Path) -> bool {
        let content = self.0.get(path);
        content.is_some_and(|content| is_as_made(upper, path, content, upper.metadata(path).ok()))
    }
}

/// Whether something is as a stub is made. A file is read only if its length does not say so already.
fn is_as_made(root: &Directory, path: &Path, content: &StubContent, data: Option<Metadata>) -> bool {
    match content {
        None => root.directory(path).and_then(|inside| inside.entries(1)).is_ok_and(|names| names.is_empty()),
        Some(content) => {
            let length = content.len() as u64;
            data.is_some_and(|data| data.kind() == EntryKind::File && data.length() == length)
                && (content.is_empty()
                    || root.read(path, length).is_ok_and(|text| text == content.as_bytes()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::Path;

    use super::StubList;
    use crate::Directory;

    #[test]
    fn only_listed_stubs_that_nothing_has_touched_are_stubs() {
        let place = tempfile::tempdir().unwrap();
        let overlay = Directory::open(&place.path().canonicalize().unwrap()).unwrap();
        assert_eq!(StubList::read(&overlay).unwrap(), StubList::default());
        let listed = StubList::new([
            ("hooks".into(), None),
            ("full".into(), None),
            ("empty".into(), Some(String::new())),
            ("json".into(), Some("{}\n".into())),
            ("changed".into(), Some(String::new())),
            ("link".into(), Some(String::new())),
        ]);
        listed.write(&overlay).unwrap();
        overlay.create_directory(Path::new("upper"), 0o700).unwrap();
        let upper = overlay.directory(Path::new("upper")).unwrap();
        for name in ["hooks", "full", "full/x", "unlisted"] {
            upper.create_directory(Path::new(name), 0o700).unwrap();
        }
        for (name, text) in [("empty", ""), ("json", "{}\n"), ("changed", "x")] {
            upper.create_file(Path::new(name), 0o600).unwrap().write_all(text.as_bytes()).unwrap();
        }
        upper.create_link(Path::new("link"), Path::new("empty")).unwrap();
        let read = StubList::read(&overlay).unwrap();
        assert_eq!(read, listed);
        let stubs = ["hooks", "empty", "json", "full", "unlisted", "changed", "link", "missing"]
            .map(|name| read.is_untouched(&upper, Path::new(name)));
        assert_eq!(stubs, [true, true, true, false, false, false, false, false]);
        assert_eq!(read.changed(&upper), ["changed", "full", "link"].map(std::path::PathBuf::from));
    }
}
