//! Changes that programs execute later: by their names, or as parts of a repository without a working tree.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ringfence_workspace::executed::{ExecutedBy, executed_by, is_git_directory_in_overlay};

use super::{Change, Layer, What};

/// Files in a git directory that make it one, or that name what git executes.
const FILES_OF_GIT: [&str; 4] = ["HEAD", "commondir", "config", "config.worktree"];
/// Directories that make one.
const DIRECTORIES_OF_GIT: [&str; 2] = ["objects", "refs"];

/// Marks the changes that programs execute later.
pub(super) fn mark(layer: &Layer, list: &mut [Change]) {
    let mut bare = BareRepositories { layer, known: BTreeMap::new() };
    let stays = |change: &Change| !matches!(change.what, What::Removed { .. });
    let mut marked = BTreeSet::new();
    for change in list.iter_mut().filter(|change| stays(change) && !change.directory) {
        change.executed_by = executed_by(&change.path).or_else(|| {
            marked.insert(bare.executes(&change.path)?);
            Some(ExecutedBy::Git)
        });
    }
    // One that became a repository by other directories than before has nothing else that shows it.
    for change in list.iter_mut().filter(|change| stays(change) && change.executed_by.is_none()) {
        if let Some(repository) = bare.becomes(&change.path)
            && marked.insert(repository)
        {
            change.executed_by = Some(ExecutedBy::Git);
        }
    }
}

/// Directories that git takes for repositories, once the changes are applied.
struct BareRepositories<'a> {
    layer: &'a Layer,
    known: BTreeMap<PathBuf, bool>,
}

impl BareRepositories<'_> {
    fn is_one(&mut self, path: &Path) -> bool {
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

    /// The repository that a path is in the objects or refs of.
    fn becomes(&mut self, path: &Path) -> Option<PathBuf> {
        let is_part = |path: &&Path| DIRECTORIES_OF_GIT.iter().any(|name| path.ends_with(name));
        let repositories = path.ancestors().filter(is_part).filter_map(Path::parent);
        repositories.into_iter().find(|repository| self.is_one(repository)).map(Path::to_owned)
    }
}
