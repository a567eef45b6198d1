//! Changes that programs execute later: by their names, or as parts of a repository without a working tree.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use ringfence_workspace::executed::{ExecutedBy, executed_by, is_git_directory_in_overlay};

use super::{Change, Layer, What};

/// Files in a git directory that make it one, or that name what git executes.
const FILES_OF_GIT: [&str; 4] = ["HEAD", "commondir", "config", "config.worktree"];
/// Directories that make one.
const DIRECTORIES_OF_GIT: [&str; 2] = ["objects", "refs"];

/// What came of marking.
pub(super) struct Marked {
    /// Whether all changes were looked at by the deadline.
    pub(super) is_complete: bool,
    /// Number of times that a directory was asked for as a repository.
    pub(super) lookups: usize,
}

/// Marks the changes that programs execute later.
pub(super) fn mark(layer: &Layer, list: &mut [Change], deadline: Option<Instant>) -> Marked {
    let mut bare = BareRepositories { layer, known: HashMap::new(), parts_of: HashMap::new(), lookups: 0 };
    let is_complete = bare.mark(list, deadline);
    Marked { is_complete, lookups: bare.lookups }
}

/// Directories that git takes for repositories, once the changes are applied.
struct BareRepositories<'a> {
    layer: &'a Layer,
    known: HashMap<PathBuf, bool>,
    /// The innermost repository of which a directory is in the objects or refs.
    parts_of: HashMap<PathBuf, Option<PathBuf>>,
    lookups: usize,
}

impl BareRepositories<'_> {
    fn mark(&mut self, list: &mut [Change], deadline: Option<Instant>) -> bool {
        let stays = |change: &Change| !matches!(change.what, What::Removed { .. });
        let is_late = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        let mut marked = HashSet::new();
        for change in list.iter_mut().filter(|change| stays(change) && !change.directory) {
            if is_late() {
                return false;
            }
            change.executed_by = executed_by(&change.path).or_else(|| {
                marked.insert(self.executes(&change.path)?);
                Some(ExecutedBy::Git)
            });
        }
        // One that became a repository by other directories than before has nothing else that shows it.
        for change in list.iter_mut().filter(|change| stays(change) && change.executed_by.is_none()) {
            if is_late() {
                return false;
            }
            if let Some(repository) = self.becomes(&change.path)
                && marked.insert(repository)
            {
                change.executed_by = Some(ExecutedBy::Git);
            }
        }
        true
    }

    fn is_one(&mut self, path: &Path) -> bool {
        self.lookups += 1;
        if let Some(known) = self.known.get(path) {
            return *known;
        }
        let at = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let upper = self.layer.upper().directory(at);
        let is_one =
            upper.is_ok_and(|upper| is_git_directory_in_overlay(&upper, (self.layer.workspace(), path)));
        self.known.insert(path.to_owned(), is_one);
        is_one
    }

    /// The repository that a file makes one, configures or is a hook of.
    fn executes(&mut self, path: &Path) -> Option<PathBuf> {
        let (name, parent) = (path.file_name()?, path.parent()?);
        let repository = match FILES_OF_GIT.iter().any(|known| name == *known) {
            true => parent,
            false if parent.ends_with("hooks") => parent.parent()?,
            false => return None,
        };
        self.is_one(repository).then(|| repository.to_owned())
    }

    /// The innermost repository that a path is in the objects or refs of. Decided once for each directory: a run can make as many of
    /// these names, one in another, as a path is long.
    fn becomes(&mut self, path: &Path) -> Option<PathBuf> {
        let mut undecided = Vec::new();
        let mut found = None;
        for at in path.ancestors() {
            if let Some(known) = self.parts_of.get(at) {
                found.clone_from(known);
                break;
            }
            undecided.push(at);
            let is_part =
                DIRECTORIES_OF_GIT.iter().any(|name| at.file_name().is_some_and(|own| own == *name));
            if let Some(repository) = at.parent().filter(|_| is_part).filter(|above| self.is_one(above)) {
                found = Some(repository.to_owned());
                break;
            }
        }
        // A file is asked for once; what is remembered are the directories above it.
        let directories = undecided.into_iter().filter(|at| *at != path);
        self.parts_of.extend(directories.map(|at| (at.to_owned(), found.clone())));
        found
    }
}
