//! Files in the commits of a run that programs execute once they are checked out.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::GitError;
use super::import::RefChange;
use super::program::{Git, Input};
use crate::executed::{ExecutedBy, executed_by};

/// Most refs that are compared with what they were before.
const MAX_COMPARED_REFS: usize = 32;
/// Most bytes of paths that are read of one comparison.
const MAX_PATHS_BYTES: u64 = 16 << 20;
/// Most files that are reported of one repository.
const MAX_REPORTED: usize = 50;
/// How long all comparisons may take, and how many bytes of address space each has: a run can commit trees without end.
const TIMEOUT: Duration = Duration::from_secs(5);
const MAX_MEMORY_BYTES: u64 = 1 << 30;
/// Refs whose files have no names of the user's.
const NOTES: &str = "refs/notes/";
/// The tree without files, which git knows without its object.
const EMPTY_TREE: [&str; 2] = [
    "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
];

/// A file in the commits of a run that a program executes once it is checked out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The ref that leads to it.
    pub git_ref: String,
    /// Its path, from the working tree.
    pub path: PathBuf,
    /// What executes it.
    pub by: ExecutedBy,
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) files: Vec<Committed>,
    /// What was not compared, and why.
    pub(super) notices: Vec<String>,
}

/// What is looked for.
pub(super) struct Search<'a> {
    /// Refs that the run changed.
    pub(super) refs: &'a [RefChange],
    /// What new refs are compared with; `None` is a repository without commits.
    pub(super) base: Option<&'a str>,
    pub(super) sha256: bool,
    /// Files and directories, from the working tree, that the repository's configuration names.
    pub(super) configured: &'a [PathBuf],
}

/// Lists the files that refs of a run bring, compared with what each named before.
pub(super) fn find(git: &Git<'_>, search: &Search<'_>) -> Found {
    let Search { refs, base, sha256, configured } = *search;
    let git = Git {
        max_output_bytes: MAX_PATHS_BYTES,
        max_memory_bytes: MAX_MEMORY_BYTES,
        deadline: git.deadline.min(Instant::now() + TIMEOUT),
        ..git.clone()
    };
    let mut found = Found::default();
    let mut known = BTreeSet::new();
    let base = base.unwrap_or(EMPTY_TREE[usize::from(sha256)]);
    let moved = refs.iter().filter(|change| !change.name.starts_with(NOTES));
    let moved: Vec<_> = moved.filter_map(|change| Some((change, change.to.as_deref()?))).collect();
    for (change, to) in moved.iter().take(MAX_COMPARED_REFS) {
        let from = change.from.as_deref().unwrap_or(base);
        match changed_paths(&git, from, to) {
            Err(error) => {
                found.notices.push(not_searched(&change.name, &error.to_string()));
                if Instant::now() >= git.deadline {
                    found.notices.push(not_searched("later refs", "the time was over"));
                    break;
                }
            }
            Ok(paths) => {
                if paths.len() as u64 >= MAX_PATHS_BYTES {
                    found.notices.push(not_searched(&change.name, "they change too many files"));
                }
                add(&paths, &change.name, configured, &mut known, &mut found.files);
            }
        }
    }
    if let Some(more) = moved.len().checked_sub(MAX_COMPARED_REFS).filter(|more| *more > 0) {
        found.notices.push(not_searched(&format!("{more} more refs"), "the run changed too many"));
    }
    found.files.sort_by(|a, b| (a.by, &a.path).cmp(&(b.by, &b.path)));
    found.files.truncate(MAX_REPORTED);
    found
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

fn add(
    paths: &[u8],
    name: &str,
    configured: &[PathBuf],
    known: &mut BTreeSet<PathBuf>,
    files: &mut Vec<Committed>,
) {
    let paths = paths.split(|byte| *byte == 0).map(|path| Path::new(OsStr::from_bytes(path)));
    let by_configuration =
        |path: &Path| configured.iter().any(|named| path.starts_with(named)).then_some(ExecutedBy::Git);
    for path in paths {
        if let Some(by) = by_configuration(path).or_else(|| executed_by(path))
            && known.insert(path.to_owned())
        {
            files.push(Committed { git_ref: name.to_owned(), path: path.to_owned(), by });
        }
    }
}
