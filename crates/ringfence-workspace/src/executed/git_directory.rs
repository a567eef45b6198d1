//! Files in git directories that name or are what git executes, those that changed since a run began.

use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};

use crate::git::{INDEX_BUDGET_BYTES, IndexedPath, indexed_paths};
use crate::{Directory, EntryKind};

use super::Search;

/// Most hooks of one repository that are looked at.
const MAX_HOOKS: usize = 256;
/// Most git directories of submodules and linked worktrees of one repository that are looked at, with the directories between
/// them. The first one of more is reported.
const MAX_GIT_DIRECTORIES: usize = 1024;
/// Where git has directories of its own. Those of submodules are elsewhere, unless the name of a submodule has such a part.
const OWN_DIRECTORIES: [&str; 12] = [
    "annex",
    "branches",
    "hooks",
    "info",
    "lfs",
    "logs",
    "objects",
    "rebase-apply",
    "rebase-merge",
    "refs",
    "rr-cache",
    "sequencer",
];
/// Directories with what a rebase or a series of picks goes on with, commands among it.
const BEGUN: [&str; 3] = ["rebase-apply", "rebase-merge", "sequencer"];
/// Directories with remotes, which may name programs.
const REMOTES: [&str; 2] = ["branches", "remotes"];
/// Files directly in a git directory of which git executes nothing.
const HARMLESS: [&str; 22] = [
    "AUTO_MERGE",
    "CHERRY_PICK_HEAD",
    "COMMIT_EDITMSG",
    "FETCH_HEAD",
    "HEAD",
    "MERGE_AUTOSTASH",
    "MERGE_HEAD",
    "MERGE_MODE",
    "MERGE_MSG",
    "MERGE_RR",
    "NOTES_EDITMSG",
    "ORIG_HEAD",
    "REBASE_HEAD",
    "REVERT_HEAD",
    "SQUASH_MSG",
    "TAG_EDITMSG",
    "description",
    "gc.log",
    "gc.pid",
    "locked",
    "packed-refs",
    "shallow",
];
/// More unknown files in a git directory than this, and the directory is reported in their place.
const MAX_UNKNOWN: usize = 4;
/// Most names of a git directory that are looked at.
const MAX_FILES: usize = 4096;
/// Where git has the git directories of submodules and linked worktrees.
const INNER: [&str; 2] = ["modules", "worktrees"];

/// What was found in a git directory. Paths are from the same directory as its own.
#[derive(Debug, Default)]
pub(super) struct GitParts {
    /// What changed.
    pub(super) changed: Vec<PathBuf>,
    /// The git directory, and those of its submodules, of their submodules and of linked worktrees.
    pub(super) directories: Vec<PathBuf>,
}

/// A directory that is to be searched.
struct Waiting {
    path: PathBuf,
    /// The git directory that it is in, where git itself makes none.
    outer: Option<PathBuf>,
}

/// Searches one git directory.
pub(super) struct GitSearch<'a> {
    pub(super) search: &'a Search<'a>,
    /// What paths are from, and its own path from the root of what is searched.
    pub(super) from: &'a Directory,
    pub(super) at: &'a Path,
}

impl GitSearch<'_> {
    /// What changed in the git directory at `git`, and in those of its submodules, of their submodules and of linked worktrees.
    /// What only looks like one has others below it: a run may have made it so.
    pub(super) fn parts(&self, git: &Path) -> GitParts {
        let mut found = GitParts::default();
        let (mut waiting, mut seen) = (vec![Waiting { path: git.to_owned(), outer: None }], 0);
        while let Some(Waiting { path, outer }) = waiting.pop() {
            seen += 1;
            if seen > MAX_GIT_DIRECTORIES {
                found.changed.push(path);
                break;
            }
            let Ok(directory) = self.from.directory(&path) else { continue };
            // The name of a submodule may have several parts.
            if path != git && !is_git_directory(&directory) {
                let below = directories_in(&directory, &path).into_iter();
                waiting.extend(below.map(|path| Waiting { path, outer: outer.clone() }));
                continue;
            }
            found
                .changed
                .extend(outer.filter(|outer| self.is_new_shape(outer)).map(|outer| outer.join("HEAD")));
            let parts = self.changed_parts(&path);
            if parts.is_empty() && path != git && self.is_new(&path) {
                found.changed.push(path.clone());
            }
            found.changed.extend(parts);
            waiting.extend(self.inner(&path, &mut found.changed));
            if path != git {
                waiting.extend(self.others(&directory, &path));
            }
            found.directories.push(path);
        }
        found
    }

    /// Where git has other git directories in one.
    fn inner(&self, path: &Path, changed: &mut Vec<PathBuf>) -> Vec<Waiting> {
        let mut waiting = Vec::new();
        for part in INNER.map(|name| path.join(name)) {
            match self.from.directory(&part) {
                Ok(below) => waiting.extend(directories_in(&below, &part)),
                // A link leads elsewhere.
                Err(_) => changed.extend(Some(part).filter(|part| self.is_changed(part))),
            }
        }
        waiting.into_iter().map(|path| Waiting { path, outer: None }).collect()
    }

    /// Other directories in a git directory that git directories of submodules could be in. Those of git itself are among them
    /// only if the run made it a git directory.
    fn others(&self, directory: &Directory, path: &Path) -> Vec<Waiting> {
        let all = directories_in(directory, path);
        let named = |path: &Path, names: &[&str]| {
            path.file_name().is_some_and(|own| names.iter().any(|name| own == *name))
        };
        let all: Vec<PathBuf> = all.into_iter().filter(|path| !named(path, &INNER)).collect();
        let is_known = all.iter().any(|path| named(path, &OWN_DIRECTORIES));
        let all_count = is_known && self.is_new_shape(path);
        let mut others = Vec::new();
        for path in all {
            match (named(&path, &OWN_DIRECTORIES), all_count, named(&path, &["objects"])) {
                (true, false, _) => {}
                (true, true, true) => {
                    let below = self.from.directory(&path).map(|below| directories_in(&below, &path));
                    let below = below.unwrap_or_default().into_iter();
                    others.extend(below.filter(|path| !path.file_name().is_some_and(is_of_objects)));
                }
                _ => others.push(path),
            }
        }
        others.into_iter().map(|other| Waiting { path: other, outer: Some(path.to_owned()) }).collect()
    }

    /// Whether a git directory was none before, as far as it can be told.
    fn is_new_shape(&self, path: &Path) -> bool {
        let made = |name: &str| match self.search.locations {
            Some(_) => self.is_new(&path.join(name)),
            None => self.is_changed(&path.join(name)),
        };
        self.is_changed(&path.join("commondir")) || ["objects", "refs"].into_iter().any(made)
    }

    /// Whether something is known not to be a directory that was there before.
    fn is_new(&self, path: &Path) -> bool {
        let Some(locations) = self.search.locations else { return false };
        let inode = self.from.metadata(path).map(|data| data.inode());
        inode.is_ok_and(|inode| !locations.contains(&plain(&self.at.join(path)), inode))
    }

    fn is_changed(&self, path: &Path) -> bool {
        self.search.is_changed(self.from, path)
    }

    /// Files of a git directory that name or are what git executes, those that changed.
    pub(super) fn changed_parts(&self, directory: &Path) -> Vec<PathBuf> {
        let hooks = directory.join("hooks");
        let each = names_in(self.from, &hooks).into_iter().map(|name| hooks.join(name));
        let each = each.filter(|path| path.extension().is_none_or(|end| end != "sample"));
        let parts = ["config", "config.worktree", "commondir"].map(|name| directory.join(name));
        let all = parts.into_iter().chain(each).chain([hooks.clone()]);
        let mut changed: Vec<PathBuf> = all.filter(|path| self.is_changed(path)).collect();
        if self.search.writes_git {
            changed.extend(self.changed_state(directory));
            changed.extend(self.changed_files(directory));
        }
        changed
    }

    /// What a run leaves for commands that the user goes on with, or that name remotes and attributes.
    fn changed_state(&self, directory: &Path) -> Vec<PathBuf> {
        let within = |name: &str| {
            let path = directory.join(name);
            let names = names_in(self.from, &path);
            names.into_iter().map(move |name| path.join(name)).filter(|path| self.is_changed(path))
        };
        let begun = BEGUN.iter().chain(&REMOTES).filter(|name| within(name).next().is_some());
        let begun = begun.map(|name| directory.join(name));
        let attributes = Some(directory.join("info/attributes")).filter(|path| self.is_changed(path));
        let index = directory.join("index");
        let index = (self.is_changed(&index) && !self.is_sound_index(directory)).then_some(index);
        begun.chain(attributes).chain(index).collect()
    }

    /// Other files directly in a git directory: those that are not known to do no harm.
    fn changed_files(&self, directory: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let Ok(opened) = self.from.directory(directory) else { return found };
        let (mut left, named) = (MAX_FILES, ["config", "config.worktree", "commondir", "hooks", "index"]);
        let listed = opened.each(&mut |name, kind, _| {
            left -= 1;
            let is_known = name.to_str().is_some_and(|name| named.contains(&name) || is_harmless_file(name));
            let path = directory.join(name);
            if kind != EntryKind::Directory && !is_known && self.is_changed(&path) {
                found.push(path);
            }
            left > 0
        });
        if listed.is_err() || left == 0 || found.len() > MAX_UNKNOWN {
            found = vec![directory.to_owned()];
        }
        found
    }

    /// Whether a checkout of the index writes below the working tree alone, and into no git directory.
    fn is_sound_index(&self, directory: &Path) -> bool {
        // That of a linked worktree is two directories below the common one.
        let has_config = self.from.metadata(&directory.join("config")).is_ok();
        let common = if has_config { Some(directory) } else { directory.parent().and_then(Path::parent) };
        let open = |path: &Path| {
            self.from.directory(if path.as_os_str().is_empty() { Path::new(".") } else { path }).ok()
        };
        let opened = open(directory).zip(common.and_then(open));
        let entries =
            opened.and_then(|(own, common)| indexed_paths(&own, &common, &mut INDEX_BUDGET_BYTES.clone()));
        entries.is_some_and(|entries| entries.iter().all(IndexedPath::is_sound))
    }
}

fn is_harmless_file(name: &str) -> bool {
    // Where a linked worktree is, what a bisection remembers, and a part of an index; locks are what a killed git leaves.
    HARMLESS.contains(&name)
        || name == "gitdir"
        || name.starts_with("BISECT_")
        || name.starts_with("sharedindex.")
        || name.strip_suffix(".lock").is_some_and(|name| HARMLESS.contains(&name) || name == "index")
}

/// A path without a `.` that begins it.
pub(super) fn plain(path: &Path) -> PathBuf {
    path.components().filter(|part| *part != Component::CurDir).collect()
}

/// Whether a directory in `objects` is git's own.
fn is_of_objects(name: &OsStr) -> bool {
    let is_fan_out = |name: &str| name.len() == 2 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    name.to_str().is_some_and(|name| is_fan_out(name) || matches!(name, "pack" | "info"))
}

/// The directories in a directory at `path`, one more than are looked at.
fn directories_in(directory: &Directory, path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    // What cannot be read holds nothing.
    let _ = directory.each(&mut |name, kind, _| {
        if kind == EntryKind::Directory {
            found.push(path.join(name));
        }
        found.len() <= MAX_GIT_DIRECTORIES
    });
    found
}

/// The first names in a directory, none if there is no such directory.
fn names_in(from: &Directory, path: &Path) -> Vec<OsString> {
    let mut names = Vec::new();
    if let Ok(directory) = from.directory(path) {
        // What cannot be read names nothing.
        let _ = directory.each(&mut |name, _, _| {
            names.push(name.to_owned());
            names.len() < MAX_HOOKS
        });
    }
    names
}

/// Whether git takes a directory for a git directory: `HEAD`, and either objects and refs or a pointer to them.
pub fn is_git_directory(directory: &Directory) -> bool {
    has_shape(&|name| directory.metadata(name).is_ok())
}

/// The same for a directory that is an overlay of two: `upper`, and the one at a path below `lower`.
pub fn is_git_directory_in_overlay(upper: &Directory, (lower, path): (&Directory, &Path)) -> bool {
    has_shape(&|name| match upper.metadata(name) {
        Ok(data) => !data.is_whiteout(),
        Err(_) => lower.metadata(&path.join(name)).is_ok(),
    })
}

fn has_shape(exists: &dyn Fn(&Path) -> bool) -> bool {
    let exists = |name: &str| exists(Path::new(name));
    exists("HEAD") && (exists("commondir") || (exists("objects") && exists("refs")))
}
