//! Files in the commits of a run that programs execute once they are checked out.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::GitError;
use super::bare::{Candidates, MAX_PATH_BYTES};
use super::gitlinks::Gitlinks;
use super::import::{RefChange, STASH};
use super::program::{Git, Input};
use crate::executed::{ExecutedBy, executed_by, reported_as};

/// Most refs that are compared with what they were before.
const MAX_COMPARED_REFS: usize = 32;
/// Most bytes of paths that are read of one comparison.
const MAX_PATHS_BYTES: u64 = 16 << 20;
/// Most bytes of paths that are read of one tree.
const MAX_TREE_BYTES: u64 = 64 << 20;
/// Most files that are reported of one repository.
const MAX_REPORTED: usize = 50;
/// How long all comparisons may take, and how many bytes of address space each has: a run can commit trees without end.
const TIMEOUT: Duration = Duration::from_secs(5);
const MAX_MEMORY_BYTES: u64 = 1 << 30;
/// What the index has of that at least.
const INDEX_TIMEOUT: Duration = Duration::from_secs(1);
/// Most notices about single refs that were not all searched.
const MAX_NOT_SEARCHED: usize = 8;
/// Why refs are left out.
const TOO_LATE: &str = "the time was over";
/// Commits of which a stash is made: of what it was made on, of the index, of untracked files.
const STASH_PARENTS: usize = 3;
/// Most gitlinks that are reported.
const MAX_GITLINKS: usize = 10;
/// Most refs that are named of one file besides the first one.
const MAX_MORE_REFS: usize = 8;
/// What stands for the index in the place of a ref.
pub const INDEX: &str = "index";
/// Refs whose files have no names of the user's.
const NOTES: &str = "refs/notes/";
/// The tree without files, which git knows without its object.
pub(super) const EMPTY_TREE: [&str; 2] = [
    "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
];

/// A file in the commits of a run that a program executes once it is checked out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The ref that leads to it, or [`INDEX`].
    pub git_ref: String,
    /// Other refs that lead to it too, eight at most.
    pub more_refs: Vec<String>,
    /// Its path, from the working tree.
    pub path: PathBuf,
    /// What executes it.
    pub by: ExecutedBy,
}

/// What was found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) files: Vec<Committed>,
    /// What was not compared, and why.
    pub(super) notices: Vec<String>,
}

/// Paths, from the working tree, that the repository's configuration and its hooks lead to.
#[derive(Debug, Default)]
pub(super) struct Configured {
    /// Files and directories. What is below them is executed, and what replaces a part of their paths leads elsewhere.
    pub(super) ends: Vec<PathBuf>,
    /// Directories that a `..` leaves again: only what replaces a part of their paths matters.
    pub(super) passed: Vec<PathBuf>,
}

/// Paths of the working tree that the run could not write, and directories that it could not move.
#[derive(Debug, Default)]
pub(super) struct Protected {
    pub(super) paths: BTreeSet<PathBuf>,
    pub(super) held: BTreeSet<PathBuf>,
}

impl Protected {
    /// Whether a path is one of them, lies below one, or takes the place of a directory above one.
    fn covers(&self, path: &Path) -> bool {
        let is_above = |set: &BTreeSet<PathBuf>| {
            // Paths are in the order of their parts, so what is below one follows it.
            let mut later = set.range::<Path, _>((Bound::Included(path), Bound::Unbounded));
            later.next().is_some_and(|next| next.starts_with(path))
        };
        path.as_os_str().len() <= MAX_PATH_BYTES
            && (path.ancestors().any(|above| self.paths.contains(above))
                || is_above(&self.paths)
                || is_above(&self.held))
    }
}

impl Configured {
    fn leads_to(&self, path: &Path) -> bool {
        self.ends.iter().any(|end| path.starts_with(end))
            || self.ends.iter().chain(&self.passed).any(|end| end.starts_with(path))
    }
}

/// What is looked for.
pub(super) struct Search<'a> {
    /// Refs that the run changed.
    pub(super) refs: &'a [RefChange],
    /// Names of the refs that are compared first.
    pub(super) first: &'a [String],
    /// What new refs are compared with; `None` is a repository without commits.
    pub(super) base: Option<&'a str>,
    pub(super) sha256: bool,
    pub(super) configured: &'a Configured,
    pub(super) protected: &'a Protected,
    /// What the run changed of the index.
    pub(super) staged: &'a Staged,
    /// Submodules that refs and the index add.
    pub(super) gitlinks: &'a Gitlinks,
}

/// An index that was taken over.
#[derive(Debug, Default)]
pub(super) struct Staged {
    /// Paths whose entries the run added or changed.
    pub(super) new: Vec<PathBuf>,
    /// All paths.
    pub(super) all: Vec<PathBuf>,
}

/// Two trees to compare.
struct Comparison {
    from: String,
    to: String,
}

/// Lists the files that refs of a run and its index bring, compared with what each named before.
pub(super) fn find(git: &Git<'_>, search: &Search<'_>) -> Found {
    let git = Git {
        max_output_bytes: MAX_PATHS_BYTES,
        max_memory_bytes: MAX_MEMORY_BYTES,
        deadline: git.deadline.min(Instant::now() + TIMEOUT),
        ..git.clone()
    };
    let mut notices = Vec::new();
    let mut files =
        Files { configured: search.configured, protected: search.protected, known: BTreeMap::new() };
    let mut moved: Vec<(&RefChange, &str)> =
        search.refs.iter().filter_map(|change| Some((change, change.to.as_deref()?))).collect();
    moved.retain(|(change, _)| !change.name.starts_with(NOTES));
    let place = |name: &String| search.first.iter().position(|first| first == name);
    // Those that were kept aside must not use up the places of those that moved.
    moved.sort_by_key(|(change, _)| (place(&change.name).unwrap_or(usize::MAX), change.kept_as.is_some()));
    for (change, to) in moved.iter().take(MAX_COMPARED_REFS) {
        if Instant::now() >= git.deadline {
            notices.push(not_searched("later refs", TOO_LATE));
            break;
        }
        search.compare(&git, change, to, (&mut files, &mut notices));
    }
    if let Some(more) = notices.len().checked_sub(MAX_NOT_SEARCHED).filter(|more| *more > 0) {
        notices.truncate(MAX_NOT_SEARCHED);
        notices.push(format!("{more} more refs or parts of them were not all searched either"));
    }
    for (git_ref, path) in search.gitlinks.all().take(MAX_GITLINKS) {
        if !files.add_ref(path, git_ref) {
            files.insert(path, git_ref, (false, ExecutedBy::Repository));
        }
    }
    if let Some(more) = search.gitlinks.all().count().checked_sub(MAX_GITLINKS).filter(|more| *more > 0) {
        notices.push(format!("{more} more submodules in commits are not listed"));
    }
    if let Some(more) = moved.len().checked_sub(MAX_COMPARED_REFS).filter(|more| *more > 0) {
        notices.push(not_searched(&format!("{more} more refs"), "the run changed too many"));
    }
    if !files.add_index(search.staged, git.deadline.max(Instant::now() + INDEX_TIMEOUT)) {
        notices.push("the index was not all searched for files that programs execute later".to_owned());
    }
    let mut found: Vec<(bool, Committed)> = files.known.into_values().collect();
    found.sort_by(|(a_named, a), (b_named, b)| (!a_named, a.by, &a.path).cmp(&(!b_named, b.by, &b.path)));
    if let Some(more) = found.len().checked_sub(MAX_REPORTED).filter(|more| *more > 0) {
        notices.push(format!("{more} more files in commits that programs execute later are not listed"));
    }
    Found { files: found.into_iter().take(MAX_REPORTED).map(|(_, file)| file).collect(), notices }
}

impl Search<'_> {
    /// Adds the files that a ref brings, and the git directories among the directories that it leads to.
    fn compare(
        &self,
        git: &Git<'_>,
        change: &RefChange,
        to: &str,
        (files, notices): (&mut Files<'_>, &mut Vec<String>),
    ) {
        let git_ref = change.name.as_str();
        let mut candidates = Candidates::new(git.deadline);
        let comparisons = self.comparisons(git, change, to);
        for Comparison { from, to } in &comparisons {
            match changed_paths(git, from, to) {
                Err(error) => notices.push(not_searched(git_ref, &error.to_string())),
                Ok(paths) => {
                    if paths.len() as u64 >= MAX_PATHS_BYTES {
                        notices.push(not_searched(git_ref, "they change too many files"));
                    }
                    for path in paths.split(|byte| *byte == 0).map(|path| Path::new(OsStr::from_bytes(path)))
                    {
                        files.add(path, git_ref);
                        candidates.note(path);
                    }
                }
            }
        }
        let trees = comparisons.iter().filter(|_| !candidates.is_empty()).map(|one| one.to.as_str());
        let git = Git { max_output_bytes: MAX_TREE_BYTES, ..git.clone() };
        for tree in trees.collect::<Vec<_>>() {
            match candidates.add_tree(&git, self.empty_tree(), tree) {
                Ok(true) => {}
                Ok(false) => notices.push(not_searched(git_ref, "they have too many files")),
                Err(error) => notices.push(not_searched(git_ref, &error.to_string())),
            }
        }
        if candidates.is_late() {
            notices.push(not_searched(git_ref, TOO_LATE));
        }
        files.add_heads(candidates, git_ref);
    }

    fn empty_tree(&self) -> &'static str {
        EMPTY_TREE[usize::from(self.sha256)]
    }

    /// What to compare for a ref: a stash holds the index and untracked files in commits of their own.
    fn comparisons(&self, git: &Git<'_>, change: &RefChange, to: &str) -> Vec<Comparison> {
        let base = self.base.unwrap_or(self.empty_tree());
        let from = change.from.as_deref().unwrap_or(base).to_owned();
        let mut all = vec![Comparison { from, to: to.to_owned() }];
        if change.name == STASH {
            let listed = git.run(&["rev-list", "--parents", "--max-count=1", to], Input::Nothing);
            let listed = String::from_utf8_lossy(&listed.unwrap_or_default()).into_owned();
            let parents = listed.split_whitespace().skip(1).take(STASH_PARENTS);
            all.extend(parents.map(|to| Comparison { from: base.to_owned(), to: to.to_owned() }));
        }
        all
    }
}

/// Files that are executed, by their paths, and whether the configuration leads to them or they are protected.
struct Files<'a> {
    configured: &'a Configured,
    protected: &'a Protected,
    known: BTreeMap<PathBuf, (bool, Committed)>,
}

impl Files<'_> {
    fn add(&mut self, path: &Path, git_ref: &str) {
        if path.as_os_str().is_empty() || self.add_ref(path, git_ref) {
            return;
        }
        let is_configured = self.configured.leads_to(path);
        let is_protected = self.protected.covers(path);
        let by = is_configured.then_some(ExecutedBy::Git).or_else(|| executed_by(path));
        let by = if is_protected && by == Some(ExecutedBy::Unknown) { None } else { by };
        let Some(by) = by.or(is_protected.then_some(ExecutedBy::Protected)) else { return };
        // Unknown directories are reported as one.
        let (path, by) = match by {
            ExecutedBy::Unknown => reported_as(path, by),
            _ => (path.to_owned(), by),
        };
        if !self.add_ref(&path, git_ref) {
            self.insert(&path, git_ref, (is_configured || is_protected, by));
        }
    }

    /// Adds what is staged, and the git directories among it. Returns whether there was time for all of it.
    fn add_index(&mut self, staged: &Staged, deadline: Instant) -> bool {
        let mut candidates = Candidates::new(deadline);
        for path in &staged.new {
            self.add(path, INDEX);
            candidates.note(path);
        }
        if !candidates.is_empty() {
            staged.all.iter().for_each(|path| candidates.add(path));
        }
        let is_whole = !candidates.is_late();
        self.add_heads(candidates, INDEX);
        is_whole
    }

    /// Adds git directories, each by its `HEAD`, as the search of files does.
    fn add_heads(&mut self, candidates: Candidates, git_ref: &str) {
        for head in candidates.heads() {
            if !self.add_ref(&head, git_ref) {
                self.insert(&head, git_ref, (false, ExecutedBy::Repository));
            }
        }
    }

    fn insert(&mut self, path: &Path, git_ref: &str, (named, by): (bool, ExecutedBy)) {
        let (git_ref, path) = (git_ref.to_owned(), path.to_owned());
        let file = Committed { git_ref, more_refs: Vec::new(), path, by };
        self.known.insert(file.path.clone(), (named, file));
    }

    /// Notes that another ref brings a file too. Returns whether the file is known.
    fn add_ref(&mut self, path: &Path, git_ref: &str) -> bool {
        let Some((_, file)) = self.known.get_mut(path) else { return false };
        let is_known = file.git_ref == git_ref || file.more_refs.iter().any(|known| known == git_ref);
        // The index mostly holds what was committed from it.
        if !is_known && git_ref != INDEX && file.more_refs.len() < MAX_MORE_REFS {
            file.more_refs.push(git_ref.to_owned());
        }
        true
    }
}

fn not_searched(name: &str, why: &str) -> String {
    format!("commits of {name} were not all searched for files that programs execute later: {why}")
}

/// Paths that differ between two commits, each ended by NUL. Deleted ones are left out.
fn changed_paths(git: &Git<'_>, from: &str, to: &str) -> Result<Vec<u8>, GitError> {
    // Parts of packs that fit into the address space, which whole packs may not.
    let small = ["-c", "core.packedGitWindowSize=32m", "-c", "core.packedGitLimit=256m"];
    let words = ["diff-tree", "-r", "-z", "--name-only", "--no-renames", "--diff-filter=d", from, to];
    git.run(&[&small[..], &words[..]].concat(), Input::Nothing)
}
