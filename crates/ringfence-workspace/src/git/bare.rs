//! Directories in a tree or an index that git takes for git directories once they are checked out.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::GitError;
use super::program::{Git, Input};

/// Names in a git directory. A change of one can make a directory a git directory, or change what git executes there.
const PARTS: [&str; 7] = ["HEAD", "objects", "refs", "commondir", "config", "config.worktree", "hooks"];
/// Those by which git knows one.
const SHAPE: [&str; 4] = ["HEAD", "objects", "refs", "commondir"];
/// Most directories whose parts are asked for by name, and most bytes of their names; of more the whole tree is listed.
const MAX_ASKED: usize = 100;
const MAX_ASKED_BYTES: usize = 64 << 10;

/// Longest path that can be checked out.
pub(super) const MAX_PATH_BYTES: usize = 4096;

/// What is known of the directories of which a run changed a part.
#[derive(Debug)]
pub(super) struct Candidates {
    /// By their folded paths.
    directories: BTreeMap<PathBuf, Shape>,
    /// A run can commit paths that cost much: nothing is added later.
    deadline: Instant,
    /// Whether something was left out for that.
    is_late: bool,
}

#[derive(Debug, Default)]
struct Shape {
    /// The directory as a changed path spells it.
    directory: PathBuf,
    head: Option<PathBuf>,
    objects: bool,
    refs: bool,
    commondir: bool,
}

/// A path as file systems compare it that do not distinguish case.
fn folded(path: &Path) -> PathBuf {
    match path.to_str() {
        Some(text) => text.to_lowercase().into(),
        None => OsStr::from_bytes(&path.as_os_str().as_bytes().to_ascii_lowercase()).into(),
    }
}

fn is_part(path: &Path, parts: &[&str]) -> bool {
    path.file_name().is_some_and(|name| parts.iter().any(|part| name.eq_ignore_ascii_case(part)))
}

impl Candidates {
    pub(super) fn new(deadline: Instant) -> Self {
        Self { directories: BTreeMap::new(), deadline, is_late: false }
    }

    /// Notes the directories that a changed path may make git directories.
    pub(super) fn note(&mut self, changed: &Path) {
        if !self.is_looked_at(changed) {
            return;
        }
        for part in changed.ancestors().filter(|part| is_part(part, &PARTS)) {
            if let Some(directory) = part.parent() {
                let shape = self.directories.entry(folded(directory)).or_default();
                shape.directory = directory.to_owned();
            }
        }
    }

    fn is_looked_at(&mut self, path: &Path) -> bool {
        self.is_late = self.is_late || Instant::now() >= self.deadline;
        !self.is_late && path.as_os_str().len() <= MAX_PATH_BYTES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.directories.is_empty()
    }

    pub(super) fn is_late(&self) -> bool {
        self.is_late
    }

    /// Adds a path of the tree or the index that results.
    pub(super) fn add(&mut self, path: &Path) {
        if !self.is_looked_at(path) {
            return;
        }
        for part in path.ancestors().filter(|part| is_part(part, &SHAPE)) {
            let Some((directory, name)) = part.parent().zip(part.file_name()) else { continue };
            let Some(shape) = self.directories.get_mut(&folded(directory)) else { continue };
            match name.to_ascii_lowercase().as_bytes() {
                b"head" if part == path => shape.head = Some(part.to_owned()),
                b"objects" => shape.objects = true,
                b"refs" => shape.refs = true,
                b"commondir" => shape.commondir = true,
                _ => {}
            }
        }
    }

    /// Adds what a tree has of these directories. Returns whether all of it was read.
    pub(super) fn add_tree(&mut self, git: &Git<'_>, empty: &str, tree: &str) -> Result<bool, GitError> {
        let asked = self.asked().unwrap_or_default();
        let words = ["diff-tree", "-r", "-z", "--name-only", "--no-renames", empty, tree, "--"];
        let words: Vec<&str> = words.into_iter().chain(asked.iter().map(String::as_str)).collect();
        let listed = git.run(&words, Input::Nothing)?;
        let paths = listed.split(|byte| *byte == 0).filter(|path| !path.is_empty());
        paths.for_each(|path| self.add(Path::new(OsStr::from_bytes(path))));
        Ok((listed.len() as u64) < git.max_output_bytes)
    }

    /// What is asked for, if that is little and text.
    fn asked(&self) -> Option<Vec<String>> {
        let mut all = Vec::new();
        for shape in self.directories.values().take(MAX_ASKED + 1) {
            for part in SHAPE {
                all.push(format!(":(top,icase,literal){}", shape.directory.join(part).to_str()?));
            }
        }
        let bytes: usize = all.iter().map(String::len).sum();
        (self.directories.len() <= MAX_ASKED && bytes <= MAX_ASKED_BYTES).then_some(all)
    }

    /// The `HEAD` of each that git takes for a git directory.
    pub(super) fn heads(self) -> impl Iterator<Item = PathBuf> {
        let is_whole = |shape: &Shape| shape.commondir || (shape.objects && shape.refs);
        self.directories.into_values().filter(is_whole).filter_map(|shape| shape.head)
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::time::{Duration, Instant};

    use super::Candidates;

    fn heads(changed: &[&str], result: &[&str]) -> Vec<PathBuf> {
        let mut candidates = Candidates::new(Instant::now() + Duration::from_secs(60));
        changed.iter().for_each(|path| candidates.note(Path::new(path)));
        result.iter().for_each(|path| candidates.add(Path::new(path)));
        candidates.heads().collect()
    }

    #[test]
    fn git_directory_whose_part_changed_is_found() {
        let whole = ["t/HEAD", "t/config", "t/objects/k", "t/refs/k", "t/hooks/x", "u/file"];
        for changed in whole.iter().take(5) {
            assert_eq!(heads(&[changed], &whole), [Path::new("t/HEAD")], "{changed}");
        }
        assert!(heads(&["u/file", "t/description"], &whole).is_empty());
        assert_eq!(heads(&["HEAD"], &["HEAD", "objects/a/b", "refs"]), [Path::new("HEAD")]);
        assert_eq!(heads(&["t/HEAD"], &["t/HEAD", "t/commondir"]), [Path::new("t/HEAD")]);
    }

    #[test]
    fn git_directory_in_other_case_is_found() {
        let spread = ["T/head", "t/Objects/k", "t/REFS/k"];
        assert_eq!(heads(&["t/REFS/k"], &spread), [Path::new("T/head")]);
    }

    #[test]
    fn directory_without_all_parts_is_not_found() {
        for result in
            [&["t/HEAD", "t/objects/k"][..], &["t/objects/k", "t/refs/k"], &["t/HEAD/x", "t/commondir"]]
        {
            assert!(heads(&["t/HEAD"], result).is_empty(), "{result:?}");
        }
    }
}
