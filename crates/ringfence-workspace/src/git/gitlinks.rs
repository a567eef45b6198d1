//! Submodules (gitlinks) and hidden files that a run committed or staged.
//!
//! Where an index has a gitlink, `git status` starts another git in that directory, which executes what the configuration of the
//! repository there names. A run can make that repository. So what adds a gitlink is taken over only where no repository is in its
//! directory, and where later starts protect that directory: they look at the index of working trees that have a `.gitmodules`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::GitError;
use super::committed::EMPTY_TREE;
use super::hidden_files::{AddedFiles, HiddenFiles};
use super::program::{Git, Input};
use crate::{Directory, EntryKind};

/// Most bytes of differences that are read.
const MAX_BYTES: u64 = 256 << 20;
/// Most gitlinks that one ref may add, and that the index may have with those that are added.
const MAX_GITLINKS: usize = 1024;
/// Most refs that are named with denied files that they add.
const MAX_FILE_NOTICES: usize = 8;
/// Longest path of one that is added, in bytes.
const MAX_PATH_BYTES: usize = 1024;
/// The file that lists the submodules of a working tree.
const GITMODULES: &str = ".gitmodules";

/// A ref, the object that it named before, and the one that it names now.
pub(super) type Changed<'a> = (&'a str, Option<&'a str>, &'a str);

/// Directories of submodules that were added, from the working tree, by the ref or the index that has them.
#[derive(Debug, Default)]
pub(super) struct Gitlinks {
    added: BTreeMap<String, BTreeSet<PathBuf>>,
    /// Files that the run could not read, likewise.
    files: BTreeMap<String, AddedFiles>,
    /// Why each of them is not taken over.
    refused: BTreeMap<String, String>,
}

impl Gitlinks {
    /// Compares the trees of refs with those before. What cannot be compared is not taken over.
    pub(super) fn find(
        git: &Git<'_>,
        changed: &[Changed<'_>],
        hidden: &HiddenFiles,
        (base, sha256): (Option<&str>, bool),
    ) -> Self {
        let mut found = Self::default();
        if changed.is_empty() {
            return found;
        }
        let empty = EMPTY_TREE[usize::from(sha256)];
        match compared(&Git { max_output_bytes: MAX_BYTES, ..git.clone() }, changed, hidden, (base, empty)) {
            Ok(added) => {
                for (name, Added { gitlinks, files }) in added {
                    found.add_files(&name, files);
                    found.add(&name, gitlinks);
                }
            }
            Err(error) => {
                let why = format!("its submodules and hidden files could not be listed: {error}");
                found.refused = changed.iter().map(|(name, ..)| ((*name).to_owned(), why.clone())).collect();
            }
        }
        found
    }

    pub(super) fn add(&mut self, name: &str, paths: BTreeSet<PathBuf>) {
        if !paths.is_empty() {
            self.added.insert(name.to_owned(), paths);
        }
    }

    /// Notes files that the run could not read, and refuses what has git track hidden ones.
    pub(super) fn add_files(&mut self, name: &str, files: AddedFiles) {
        if let Some(why) = files.refused() {
            self.refused.insert(name.to_owned(), why);
        }
        if files != AddedFiles::default() {
            self.files.insert(name.to_owned(), files);
        }
    }

    /// Refuses a ref or the index for another reason.
    pub(super) fn refuse(&mut self, name: &str, why: String) {
        self.refused.entry(name.to_owned()).or_insert(why);
    }

    /// What is said of denied files that are taken over.
    pub(super) fn notices(&self) -> impl Iterator<Item = String> {
        let taken = self.files.iter().filter(|(name, _)| !self.refused.contains_key(*name));
        taken.filter_map(|(name, files)| files.notice(name)).take(MAX_FILE_NOTICES)
    }

    /// Refuses the index if it has too many of them by what is added.
    pub(super) fn limit(&mut self, name: &str, total: usize) {
        if total > MAX_GITLINKS && self.added.contains_key(name) {
            self.refused.insert(name.to_owned(), "it adds too many submodules".to_owned());
        }
    }

    /// Whether a ref adds submodules.
    pub(super) fn adds_to(&self, name: &str) -> bool {
        self.added.contains_key(name)
    }

    /// Refuses the branch of `HEAD` if it adds submodules that the index lacks: later starts would not know them.
    pub(super) fn require_indexed(&mut self, name: &str, indexed: &BTreeSet<PathBuf>) {
        let missing =
            self.added.get(name).and_then(|paths| paths.iter().find(|path| !indexed.contains(*path)));
        if let Some(path) = missing {
            let why = format!("it adds the submodule {}, which the index lacks", shown(path));
            self.refused.entry(name.to_owned()).or_insert(why);
        }
    }

    /// Judges what was added by what is in the working tree.
    pub(super) fn judge(&mut self, tree: &Path) {
        if self.added.is_empty() {
            return;
        }
        let tree = Directory::open(tree).ok();
        let listed = tree.as_ref().is_some_and(|tree| {
            let data = tree.metadata(Path::new(GITMODULES));
            data.is_ok_and(|data| data.kind() == EntryKind::File && data.length() > 0)
        });
        for (name, paths) in &self.added {
            let mut met = paths.iter().filter(|path| tree.as_ref().is_none_or(|tree| has_git(tree, path)));
            let why = match (met.next(), paths.first()) {
                (Some(path), _) => format!(
                    "it adds the submodule {} where a repository is, whose configuration `git status` executes; look at it before you merge",
                    shown(path)
                ),
                (None, Some(path)) if !listed => {
                    format!("it adds the submodule {}, and the working tree has no {GITMODULES}", shown(path))
                }
                (None, _) if paths.len() > MAX_GITLINKS => "it adds too many submodules".to_owned(),
                (None, _) => match paths.iter().find(|path| !is_protectable(path)) {
                    Some(path) => format!(
                        "it adds the submodule {}, whose name is too long or no plain text, so that its directory cannot be protected in later runs",
                        shown(path)
                    ),
                    None => continue,
                },
            };
            self.refused.entry(name.clone()).or_insert(why);
        }
    }

    /// Why a ref or the index is not taken over, if it is not.
    pub(super) fn refused(&self, name: &str) -> Option<String> {
        self.refused.get(name).cloned()
    }

    /// All that were added, with the ref or the index that has each.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &Path)> {
        self.added
            .iter()
            .flat_map(|(name, paths)| paths.iter().map(move |path| (name.as_str(), path.as_path())))
    }
}

/// Whether later runs in all modes can protect a directory of this name: engines of containers take paths as text.
fn is_protectable(path: &Path) -> bool {
    let is_plain = |text: &str| !text.chars().any(|char| char.is_control() || matches!(char, ',' | '"'));
    path.as_os_str().len() <= MAX_PATH_BYTES && path.to_str().is_some_and(is_plain)
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().chars().filter(|char| !char.is_control()).take(100).collect()
}

/// Whether there is a `.git` in a directory of a working tree, or it cannot be told.
fn has_git(tree: &Directory, path: &Path) -> bool {
    match tree.metadata(&path.join(".git")) {
        Ok(_) => true,
        Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
    }
}

/// What a ref adds.
#[derive(Debug, Clone, Default)]
struct Added {
    gitlinks: BTreeSet<PathBuf>,
    files: AddedFiles,
}

/// What each ref adds. One process resolves all trees and another compares them, however many there are.
fn compared(
    git: &Git<'_>,
    changed: &[Changed<'_>],
    hidden: &HiddenFiles,
    (base, empty): (Option<&str>, &str),
) -> Result<BTreeMap<String, Added>, GitError> {
    let before = |from: Option<&str>| from.or(base).unwrap_or(empty).to_owned();
    let ids: BTreeSet<String> =
        changed.iter().flat_map(|(_, from, to)| [before(*from), (*to).to_owned()]).collect();
    let asked: String = ids.iter().map(|id| format!("{id}^{{tree}}\n")).collect();
    let answers = git.run(&["cat-file", "--batch-check=%(objectname)"], Input::Text(asked.into_bytes()))?;
    let answers = String::from_utf8_lossy(&answers);
    // What has no tree is a blob, or the tree without files, which needs no object.
    let trees = ids.into_iter().zip(answers.lines());
    let trees: BTreeMap<String, String> = trees
        .map(|(id, answer)| (id, if answer.contains(' ') { empty } else { answer }.to_owned()))
        .collect();
    let tree = |id: &str| trees.get(id).map_or(empty, String::as_str);
    let pairs: BTreeSet<String> =
        changed.iter().map(|(_, from, to)| format!("{} {}\n", tree(&before(*from)), tree(to))).collect();
    let words = ["diff-tree", "--stdin", "-r", "-z", "--raw", "--no-renames", "--diff-filter=d"];
    let printed = git.run(&words, Input::Text(pairs.into_iter().collect::<String>().into_bytes()))?;
    if printed.len() as u64 >= MAX_BYTES {
        let message = "they change too many files".to_owned();
        return Err(GitError::Git { command: "diff-tree".to_owned(), message });
    }
    let added = parsed(&printed, hidden);
    let of = |(name, from, to): &Changed<'_>| {
        let pair = format!("{} {}", tree(&before(*from)), tree(to));
        Some(((*name).to_owned(), added.get(&pair)?.clone()))
    };
    let mut all: BTreeMap<String, Added> = BTreeMap::new();
    for (name, Added { gitlinks, files }) in changed.iter().filter_map(of) {
        let known = all.entry(name).or_default();
        known.gitlinks.extend(gitlinks);
        known.files.hidden.extend(files.hidden);
        known.files.denied.extend(files.denied);
    }
    Ok(all)
}

/// Parses what `diff-tree --stdin -z --raw` prints: lines that name two trees, and what differs between them.
fn parsed(printed: &[u8], hidden: &HiddenFiles) -> BTreeMap<String, Added> {
    let mut added: BTreeMap<String, Added> = BTreeMap::new();
    let (mut pair, mut is_gitlink, mut is_new, mut is_path) = (String::new(), false, false, false);
    for mut part in printed.split(|byte| *byte == 0) {
        if is_path {
            is_path = false;
            let path = Path::new(OsStr::from_bytes(part));
            if is_gitlink || is_new {
                let known = added.entry(pair.clone()).or_default();
                // Git tracks a gitlink too, and takes a file in its place into the next commit.
                hidden.note(path, &mut known.files);
                if is_gitlink {
                    known.gitlinks.insert(path.to_owned());
                }
            }
            continue;
        }
        while let Some(end) = part.iter().position(|byte| *byte == b'\n') {
            pair = String::from_utf8_lossy(&part[..end]).into_owned();
            part = &part[end + 1..];
        }
        is_path = part.starts_with(b":");
        is_new = part.starts_with(b":000000 ");
        is_gitlink =
            !part.starts_with(b":160000 ") && part.get(7..).is_some_and(|rest| rest.starts_with(b" 160000 "));
    }
    added
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::parsed;
    use crate::git::hidden_files::HiddenFiles;

    #[test]
    fn gitlinks_at_hidden_paths_are_noted_as_files_too() {
        let lines = [
            ("000000 160000", "A", "server.pem"),
            ("100644 160000", "T", "hidden/known"),
            ("000000 100644", "A", "hidden/new"),
            ("000000 160000", "A", "sub"),
            ("160000 160000", "M", "hidden/sub"),
            ("100644 100644", "M", "hidden/file"),
        ];
        let printed: String =
            lines.map(|(modes, kind, path)| format!(":{modes} 1 2 {kind}\0{path}\0")).concat();
        let hidden = HiddenFiles::at(&["server.pem", "hidden"]);
        let added = parsed(format!("a b\n{printed}").as_bytes(), &hidden);
        let added = &added["a b"];
        let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect();
        assert_eq!(added.gitlinks, paths(&["hidden/known", "server.pem", "sub"]));
        assert_eq!(added.files.hidden, paths(&["hidden/known", "hidden/new", "server.pem"]));
        assert!(!added.files.hidden.contains(Path::new("sub")) && added.files.denied.is_empty());
    }
}
