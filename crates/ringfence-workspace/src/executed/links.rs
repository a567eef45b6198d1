//! What links with listed names lead to: a file that a program finds as `.vscode/tasks.json` is executed whatever its own name is.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};
use std::time::Instant;

use super::{CONTENTS, Executed, ExecutedBy, Finds, PAIRS, Search, executed_by, is_harmless};
use crate::{Bounds, Directory, EntryKind, Next, walk};

/// Most links that are followed, and most that lead from one to the next.
pub(super) const MAX_FOLLOWED_LINKS: usize = 1024;
const MAX_LINKS_ON_WAY: usize = 16;
/// How much of the directories that they lead to is searched.
const BOUNDS: Bounds = Bounds { path_bytes: 2048, entries: 20_000 };
/// Directories, besides those that are listed, in which programs find what they execute.
const MORE_DIRECTORIES: [&str; 5] = [".config", "mise", ".mise", "tools", ".cargo"];

/// Whether a link of this path may lead to what programs execute.
pub(super) fn is_followed(path: &Path) -> bool {
    let Some(name) = path.file_name() else { return false };
    let outer = PAIRS.iter().map(|(outer, ..)| outer);
    let directories = outer.chain(CONTENTS).chain(&MORE_DIRECTORIES);
    executed_by(path).is_some_and(|by| by != ExecutedBy::Unknown)
        || directories.into_iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Where a link leads below the root.
struct Target {
    path: PathBuf,
    /// Whether a link on the way changed since the run began.
    is_led_elsewhere: bool,
}

/// A link that is to be followed.
struct Followed {
    /// Where it is.
    link: PathBuf,
    /// What programs know it as.
    name: PathBuf,
}

/// Follows the links of a tree.
pub(super) struct LinkSearch<'a> {
    pub(super) root: &'a Directory,
    pub(super) search: &'a Search<'a>,
}

impl LinkSearch<'_> {
    /// Adds what the links lead to, if it changed, and says whether all of them were followed.
    pub(super) fn add_targets(&self, finds: &mut Finds) -> bool {
        let links = std::mem::take(&mut finds.links);
        let mut is_complete = links.len() <= MAX_FOLLOWED_LINKS;
        let waiting = links.into_iter().map(|link| Followed { name: link.clone(), link });
        let mut waiting: VecDeque<Followed> = waiting.take(MAX_FOLLOWED_LINKS).collect();
        let mut known: HashSet<PathBuf> = finds.files.iter().map(|file| file.path.clone()).collect();
        let (mut seen, mut left) = (BTreeSet::new(), BOUNDS.entries);
        let mut followed = 0;
        while let Some(next) = waiting.pop_front() {
            followed += 1;
            if followed > MAX_FOLLOWED_LINKS || left == 0 || Instant::now() > self.search.deadline {
                return false;
            }
            let Some(target) = self.resolve(&next.link) else { continue };
            if !seen.insert((target.path.clone(), executed_by(&next.name))) {
                continue;
            }
            let mut note = |path: PathBuf, by: ExecutedBy| {
                if known.insert(path.clone()) {
                    finds.files.push(Executed { path, by });
                }
            };
            if target.is_led_elsewhere
                && let Some(by) = executed_by(&next.name)
            {
                note(target.path.clone(), by);
            }
            if let Some(by) = self.changed_file(&target.path, &next.name, &finds.moved) {
                note(target.path, by);
            } else if let Ok(directory) = self.root.directory(&target.path) {
                let mut inside = Inside { links: &mut waiting, left: &mut left, note: &mut note };
                is_complete &=
                    self.directory((&directory, &target.path), &next.name, &finds.moved, &mut inside);
            }
        }
        is_complete
    }

    /// What executes a file that changed, by the name that programs know it by.
    fn changed_file(&self, path: &Path, name: &Path, moved: &HashSet<PathBuf>) -> Option<ExecutedBy> {
        let by = executed_by(name)?;
        let (parent, own) = self.root.parent(path).ok()?;
        let data = parent.metadata(Path::new(own)).ok()?;
        let is_changed = self.search.changes.include(&parent, Path::new(own), &data)
            || moved.contains(path.parent().unwrap_or(Path::new("")));
        let is_file = data.kind() == EntryKind::File;
        (is_file && is_changed && !is_harmless(&parent, own, data)).then_some(by)
    }

    /// Looks at a directory that a link leads to, and says whether all of it was seen.
    fn directory(
        &self,
        (directory, at): (&Directory, &Path),
        name: &Path,
        moved: &HashSet<PathBuf>,
        inside: &mut Inside<'_>,
    ) -> bool {
        let bounds = Bounds { entries: *inside.left, ..BOUNDS };
        let mut visits = 0;
        let unvisited = walk(directory, bounds, &mut |visit| {
            visits += 1;
            let (path, name) = (at.join(visit.path), name.join(visit.path));
            match visit.kind {
                EntryKind::Directory if visit.name == ".git" => return Next::PassOver,
                EntryKind::Link if is_followed(&name) => {
                    inside.links.push_back(Followed { link: path, name });
                }
                EntryKind::File => {
                    if let Some(by) = self.changed_file(&path, &name, moved) {
                        (inside.note)(path, by);
                    }
                }
                _ => {}
            }
            Next::Enter
        });
        *inside.left = inside.left.saturating_sub(visits);
        unvisited.is_ok_and(|unvisited| !unvisited.more)
    }

    /// Follows a link as the kernel does, as far as it stays below the root.
    fn resolve(&self, link: &Path) -> Option<Target> {
        let parts = |path: &Path| -> Vec<OsString> { path.iter().rev().map(OsString::from).collect() };
        let mut waiting = parts(link);
        let mut target = Target { path: PathBuf::new(), is_led_elsewhere: false };
        let mut links = 0;
        while let Some(part) = waiting.pop() {
            match Path::new(&part).components().next() {
                Some(Component::Normal(name)) => target.path.push(name),
                Some(Component::ParentDir) => {
                    if !target.path.pop() {
                        return None;
                    }
                    continue;
                }
                _ => continue,
            }
            let Ok(leads_to) = self.root.read_link(&target.path) else { continue };
            if links == MAX_LINKS_ON_WAY {
                return None;
            }
            // The first one is listed by its own name.
            target.is_led_elsewhere |= links > 0 && self.search.is_changed(self.root, &target.path);
            links += 1;
            target.path.pop();
            if leads_to.is_absolute() {
                waiting.extend(parts(leads_to.strip_prefix(self.search.root).ok()?));
                target.path.clear();
            } else {
                waiting.extend(parts(&leads_to));
            }
        }
        Some(target)
    }
}

/// What a look at a directory adds to.
struct Inside<'a> {
    links: &'a mut VecDeque<Followed>,
    left: &'a mut usize,
    note: &'a mut dyn FnMut(PathBuf, ExecutedBy),
}
