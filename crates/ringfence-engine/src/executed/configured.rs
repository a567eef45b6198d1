//! Files that git executes by way of its configuration, as far as a run could write them: included files, and hooks.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ringfence_workspace::executed::BeginTime;
use ringfence_workspace::git::{self, Budget, Configuration, Followed, Located};
use ringfence_workspace::{Directory, EntryKind};

use super::{GitAccessOfTree, Tree};

/// What all configurations of a run may take together.
const TOTAL: Budget = Budget { files: 2048, bytes: 32 << 20, values: 4096, hooks: 50_000, links: 1024 };
/// Most files of a directory of hooks that are looked at.
const MAX_HOOKS: usize = 256;

/// A file that changed: its tree, and its path from the root of it.
pub(super) type ChangedIn<'t> = (&'t Tree, PathBuf);

/// Follows configurations to what changed since a run began.
pub(super) struct ConfiguredSearch<'t> {
    trees: &'t [Tree],
    home: &'t Path,
    since: BeginTime,
    budget: Budget,
    /// Whether there is more than may be followed.
    pub(super) is_cut: bool,
    paths: BTreeSet<PathBuf>,
    /// Files that words of commands may lead to.
    programs: BTreeSet<PathBuf>,
}

impl<'t> ConfiguredSearch<'t> {
    pub(super) fn new(trees: &'t [Tree], home: &'t Path, since: BeginTime) -> Self {
        Self {
            trees,
            home,
            since,
            budget: TOTAL,
            is_cut: false,
            paths: BTreeSet::new(),
            programs: BTreeSet::new(),
        }
    }

    /// Follows the configuration of the user, of these git directories, and of repositories above what the run could write.
    pub(super) fn changed(&mut self, git_directories: &[PathBuf]) -> Vec<ChangedIn<'t>> {
        let roots: Vec<&Path> = self.writable_git().map(|tree| tree.root.as_path()).collect();
        for root in &roots {
            self.follow_trusted(&Configuration::files_of_user(self.home), root);
        }
        let above = roots.iter().flat_map(|root| root.ancestors().skip(1));
        let is_written = |above: &Path| self.trees.iter().any(|tree| above.starts_with(&tree.root));
        let above: BTreeSet<&Path> = above.filter(|above| !is_written(above)).collect();
        for tree in above {
            let everywhere = git::Reach { home: self.home, within: None };
            self.follow_trusted(&Configuration::files_of(tree, everywhere), tree);
        }
        let within: Vec<PathBuf> = self.trees.iter().map(|tree| tree.root.clone()).collect();
        for directory in git_directories {
            // A run may have written the configuration, so nothing else is read for it.
            let reach = git::Reach { home: self.home, within: Some(&within) };
            let granted = self.budget.at_most(Budget::OF_USER);
            let mut left = granted;
            let followed = git::configured_in(directory, reach, &mut left);
            self.add(followed, granted, left);
        }
        let paths = std::mem::take(&mut self.paths);
        let programs: Vec<PathBuf> = std::mem::take(&mut self.programs).into_iter().collect();
        paths.iter().flat_map(|path| self.changed_at(path)).chain(self.changed_programs(&programs)).collect()
    }

    /// Those of these files that changed. What is a directory is no program.
    pub(super) fn changed_programs(&self, programs: &[PathBuf]) -> Vec<ChangedIn<'t>> {
        let is_program = |(tree, path): &ChangedIn<'t>| {
            let opened = Directory::open(&tree.root).ok();
            opened.is_some_and(|root| {
                let is_file =
                    |path: &Path| root.metadata(path).is_ok_and(|data| data.kind() != EntryKind::Directory);
                is_file(path) && self.is_changed(tree, &root, path)
            })
        };
        let placed = programs.iter().filter_map(|path| self.place(path));
        let mut found: Vec<ChangedIn<'t>> = placed.filter(is_program).collect();
        found.sort_by(|(_, a), (_, b)| a.cmp(b));
        found.dedup_by(|(_, a), (_, b)| a == b);
        found
    }

    /// The innermost tree that a path is in, and its path from there.
    fn place(&self, path: &Path) -> Option<ChangedIn<'t>> {
        // An overlay has the paths of the workspace that it is over.
        let seen_at = |tree: &'t Tree| tree.lower.as_ref().unwrap_or(&tree.root);
        let of = |tree: &'t Tree| Some((tree, path.strip_prefix(seen_at(tree)).ok()?.to_owned()));
        let inner = self.trees.iter().filter_map(of).max_by_key(|(tree, _)| tree.root.as_os_str().len());
        inner.filter(|(_, below)| !below.as_os_str().is_empty())
    }

    fn writable_git(&self) -> impl Iterator<Item = &'t Tree> + use<'t> {
        self.trees.iter().filter(|tree| tree.git == GitAccessOfTree::Writable)
    }

    /// Follows configuration that no run writes, from a working tree.
    fn follow_trusted(&mut self, files: &[PathBuf], tree: &Path) {
        let reach = git::Reach { home: self.home, within: None };
        let granted = self.budget.at_most(Budget::OF_USER);
        let mut left = granted;
        let followed = git::configured(files.iter().cloned(), None, tree, reach, &mut left);
        self.add(followed, granted, left);
    }

    fn add(&mut self, followed: Followed, granted: Budget, left: Budget) {
        self.budget = self.budget.without(granted, left);
        self.is_cut |= followed.is_cut;
        for Located { links, end, .. } in followed.programs {
            self.programs.extend(links.into_iter().chain([end]));
        }
        for Located { links, end, .. } in followed.located {
            self.paths.extend(links.into_iter().chain([end]));
        }
    }

    /// What changed at a path: the file, or files in a directory of hooks.
    fn changed_at(&self, path: &Path) -> Vec<ChangedIn<'t>> {
        let of = |tree: &'t Tree| Some((tree, path.strip_prefix(&tree.root).ok()?));
        let inner = self.trees.iter().filter_map(of).max_by_key(|(tree, _)| tree.root.as_os_str().len());
        let Some((tree, below)) = inner.filter(|(_, below)| !below.as_os_str().is_empty()) else {
            return Vec::new();
        };
        let Ok(root) = Directory::open(&tree.root) else { return Vec::new() };
        let paths = match root.directory(below) {
            Ok(hooks) => {
                let entries = hooks.entries(MAX_HOOKS).unwrap_or_default().into_iter();
                let is_hook = |name: &Path| name.extension().is_none_or(|end| end != "sample");
                let entries = entries.filter(|entry| entry.kind != EntryKind::Directory);
                let entries = entries.filter(|entry| is_hook(Path::new(&entry.name)));
                entries.map(|entry| below.join(entry.name)).collect()
            }
            Err(_) => vec![below.to_owned()],
        };
        let changed = paths.into_iter().filter(|path| self.is_changed(tree, &root, path));
        changed.map(|path| (tree, path)).collect()
    }

    /// Whether a file changed, or a directory above it is where it was not.
    fn is_changed(&self, tree: &Tree, root: &Directory, path: &Path) -> bool {
        let is_moved = |above: &Path| {
            let (Some(locations), Ok(data)) = (&tree.locations, root.metadata(above)) else { return false };
            data.kind() == EntryKind::Directory && !locations.contains(above, data.inode())
        };
        let mut above = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty());
        let changes = tree.changes(self.since);
        root.metadata(path).is_ok_and(|data| changes.include(root, path, &data) || above.any(is_moved))
    }
}
