//! What other active runs mean for one that starts: what they cover has to be covered in this run too, wherever they have
//! moved it, and no run may move what is hidden from it into a tree that another run sees.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use globset::GlobSet;
use ringfence_core::backend::LaunchError;
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::paths::DirectoryId;
use ringfence_core::plan::Request;
use ringfence_core::policy::{Files, GitAccess};

use super::register::{CoverKind, CoveredPath, Entry, OtherRun, StubPath, Tree, id_of};
use super::survey::{Survey, short, writes};

/// What a scan looks for in any directory, for other runs cover it. A run can rename the directories above it, but not what
/// is covered itself; so another name with the same inode is a new file.
#[derive(Debug, Default)]
pub(super) struct Known(HashMap<DirectoryId, BTreeMap<OsString, CoverKind>>);

impl Known {
    /// Whether other runs cover nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How other runs cover what has this id and name.
    pub(super) fn kind(&self, id: DirectoryId, name: &OsStr) -> Option<CoverKind> {
        self.0.get(&id)?.get(name).copied()
    }

    /// Adds a path, and returns whether it was not looked for before.
    fn add(&mut self, cover: &CoveredPath) -> bool {
        let name = cover.path.file_name().unwrap_or_default();
        let is_new = self.kind(cover.id, name).is_none_or(|known| rank(known) < rank(cover.kind));
        if is_new {
            self.0.entry(cover.id).or_default().insert(name.to_owned(), cover.kind);
        }
        is_new
    }
}

/// How much a cover keeps from a run: its moves, its writes, its reads.
fn rank(kind: CoverKind) -> u8 {
    match kind {
        CoverKind::Anchor => 0,
        CoverKind::Protected | CoverKind::GitDirectory => 1,
        CoverKind::HiddenFile | CoverKind::HiddenDirectory => 2,
    }
}

/// The same for what lies below a cover.
fn rank_below(kind: CoverKind) -> u8 {
    match kind {
        CoverKind::GitDirectory => 2,
        other => rank(other),
    }
}

/// Paths that a run covers, and how.
type Covers<'a> = BTreeMap<&'a Path, CoverKind>;

/// What the scan found to cover where a run may write.
fn covers(survey: &Survey) -> Covers<'_> {
    let anchors = survey.anchors.iter().map(|path| (path.as_path(), CoverKind::Anchor));
    let protected = survey.protected.iter().map(|path| (path.as_path(), CoverKind::Protected));
    let git = survey.git.iter();
    let git = git.map(|mount| (mount.repository.common.as_path(), CoverKind::GitDirectory));
    let hidden = survey.hidden.iter().map(|(path, directory)| {
        let kind = if *directory { CoverKind::HiddenDirectory } else { CoverKind::HiddenFile };
        (path.as_path(), kind)
    });
    // The last one counts if a path has several.
    let all = anchors.chain(protected).chain(git).chain(hidden);
    all.filter(|(path, _)| survey.ids.contains_key(*path)).collect()
}

/// The trees that a run sees.
fn trees(request: &Request, survey: &Survey) -> Vec<Tree> {
    let write = writes(request) && request.layer.is_none();
    let workspace =
        Tree { path: request.workspace.host().as_path().to_owned(), id: request.workspace_id, write };
    let git = survey.submodule.iter().map(|(path, _, write)| (path, *write));
    let named = survey.shown.iter().map(|(path, write)| (path, *write)).chain(git);
    let tree =
        |(path, write): (&PathBuf, bool)| Some(Tree { path: path.clone(), id: id_of(path).ok()?, write });
    [workspace].into_iter().chain(named.filter_map(tree)).collect()
}

/// What the register is to say of a run.
pub(super) fn entry(request: &Request, survey: &Survey) -> Entry {
    let trees = trees(request, survey);
    let mut parents: BTreeMap<&Path, Option<DirectoryId>> =
        trees.iter().map(|tree| (tree.path.as_path(), Some(tree.id))).collect();
    let names = Names::new(request, survey);
    let mut covered = Vec::new();
    for (path, kind) in covers(survey) {
        let is_below = |tree: &Tree| tree.write && is_strictly_below(path, &tree.path);
        if !trees.iter().any(is_below) {
            continue;
        }
        let (Some(id), Some(above)) = (survey.ids.get(path), path.parent()) else { continue };
        let Some(parent) = *parents.entry(above).or_insert_with(|| id_of(above).ok()) else { continue };
        let named = names.include(kind, path, &[]);
        covered.push(CoveredPath { kind, named, path: path.to_owned(), id: *id, parent });
    }
    let is_written = |path: &Path| trees.iter().any(|tree| tree.write && is_strictly_below(path, &tree.path));
    let stubs = survey.missing.iter().filter(|(path, _)| is_written(path));
    let stubs = stubs.map(|(path, _)| StubPath { path: path.clone() }).collect();
    let is_hidden = |(path, is_directory): &(PathBuf, bool)| *is_directory && !is_written(path);
    let hidden = survey.hidden.iter().filter(|hidden| is_hidden(hidden));
    let hidden = hidden.filter_map(|(path, _)| survey.ids.get(path).copied()).collect();
    Entry { trees, covers: covered, stubs, hidden }
}

/// Holds what active runs have reserved where this run can write, or it could fill or replace their stub directories. A run that
/// was active before is not held off by this: what it changes is reported (`engine/src/executed.rs`).
fn hold_stubs(survey: &mut Survey, own: &Entry, others: &[OtherRun]) {
    let stubs = others.iter().filter(|other| other.is_active).flat_map(|other| &other.entry.stubs);
    for StubPath { path } in stubs {
        let is_written = own.trees.iter().any(|tree| tree.write && is_strictly_below(path, &tree.path));
        let is_own = survey.missing.iter().any(|(own, _)| own == path);
        if is_written && !is_own {
            survey.stubs_of_others.insert(path.clone());
        }
    }
}

/// The paths that a policy names to hide or to protect.
struct Names<'a> {
    files: &'a Files,
    /// What the run sees, and whether it may write there, if only to a layer.
    roots: Vec<(&'a Path, bool)>,
    /// Made when it is needed, which is rare.
    denied: OnceCell<GlobSet>,
}

impl<'a> Names<'a> {
    fn new(request: &'a Request, survey: &'a Survey) -> Self {
        let shown = survey.shown.iter().map(|(path, write)| (path.as_path(), *write));
        let roots =
            [(request.workspace.host().as_path(), writes(request))].into_iter().chain(shown).collect();
        Self { files: &request.policy.files, roots, denied: OnceCell::new() }
    }

    /// Whether they include a path in the run's own trees or in others.
    fn include(&self, kind: CoverKind, path: &Path, others: &[Tree]) -> bool {
        match kind {
            CoverKind::HiddenFile | CoverKind::HiddenDirectory => {
                let denied =
                    self.denied.get_or_init(|| self.files.denied().unwrap_or_else(|_| GlobSet::empty()));
                let roots = self.roots.iter().map(|(root, _)| *root);
                let mut roots = roots.chain(others.iter().map(|tree| tree.path.as_path()));
                roots.any(|root| path.strip_prefix(root).is_ok_and(|below| denied.is_match(below)))
            }
            CoverKind::Protected => {
                let names = self.files.protect.iter();
                let mut names = names.map(|name| name.strip_prefix("~/").unwrap_or(name));
                names.any(|name| path.ends_with(name))
            }
            CoverKind::Anchor | CoverKind::GitDirectory => false,
        }
    }
}

/// A path that another run covers, that this one has to cover too, and that the scan missed. What was not looked for by its
/// identity is, in the next scan.
pub(super) fn missed(
    request: &Request,
    survey: &Survey,
    (own, others): (&Entry, &[OtherRun]),
    known: &mut Known,
) -> Option<CoveredPath> {
    let above = if others.is_empty() { BTreeSet::new() } else { above(&own.trees) };
    let overlapping = others.iter().filter(|other| {
        let writable = || other.entry.trees.iter().filter(|tree| tree.write);
        writable()
            .any(|theirs| own.trees.iter().any(|tree| overlap(theirs, tree)) || above.contains(&theirs.id))
    });
    let mut scan = None;
    let mut missed = None;
    for other in overlapping {
        let scan = scan.get_or_insert_with(|| Scan::new(request, survey));
        let theirs = other.entry.covers.iter().map(|cover| (cover.path.as_path(), cover.kind)).collect();
        for cover in &other.entry.covers {
            if !scan.wants(cover, &other.entry.trees) || scan.covers(cover, &theirs) {
                continue;
            }
            if known.add(cover) || (scan.reaches(cover) && cover.may_be_moved()) {
                missed.get_or_insert_with(|| cover.clone());
            }
        }
    }
    missed
}

fn overlap(one: &Tree, other: &Tree) -> bool {
    one.id == other.id || one.path.starts_with(&other.path) || other.path.starts_with(&one.path)
}

/// The directories above trees.
fn above(trees: &[Tree]) -> BTreeSet<DirectoryId> {
    let paths: BTreeSet<&Path> = trees.iter().flat_map(|tree| tree.path.ancestors().skip(1)).collect();
    paths.into_iter().filter_map(|path| id_of(path).ok()).collect()
}

/// A scan, to compare it with what other runs cover.
struct Scan<'a> {
    names: Names<'a>,
    paths: Covers<'a>,
    ids: HashMap<DirectoryId, CoverKind>,
}

impl<'a> Scan<'a> {
    fn new(request: &'a Request, survey: &'a Survey) -> Self {
        let paths = covers(survey);
        let mut ids = HashMap::new();
        for (path, kind) in &paths {
            let Some(id) = survey.ids.get(*path) else { continue };
            let known = ids.entry(*id).or_insert(*kind);
            if rank(*known) < rank(*kind) {
                *known = *kind;
            }
        }
        Self { names: Names::new(request, survey), paths, ids }
    }

    /// Whether this run has to cover what another run covers in its trees.
    fn wants(&self, cover: &CoveredPath, trees: &[Tree]) -> bool {
        let is_direct = self.names.files.git == GitAccess::Direct;
        match cover.kind {
            CoverKind::GitDirectory if is_direct => false,
            kind if cover.named && !self.names.include(kind, &cover.path, trees) => false,
            kind => kind.is_hidden() || self.names.roots.iter().any(|(_, write)| *write),
        }
    }

    /// Whether a path was in a tree where it has to be covered.
    fn reaches(&self, cover: &CoveredPath) -> bool {
        let concerned = self.names.roots.iter().filter(|(_, write)| *write || cover.kind.is_hidden());
        concerned.into_iter().any(|(root, _)| cover.path.starts_with(root))
    }

    /// Whether this run covers what another run covers, by itself or with a directory above it that the other cannot take it
    /// out of.
    fn covers(&self, cover: &CoveredPath, theirs: &Covers<'_>) -> bool {
        if self.ids.get(&cover.id).is_some_and(|kind| rank(*kind) >= rank(cover.kind)) {
            return true;
        }
        let whole = |above: &&Path| {
            let kind = self.paths.get(above).filter(|kind| **kind != CoverKind::Anchor);
            kind.is_some_and(|kind| rank_below(*kind) >= rank(cover.kind))
                && movable(&cover.path, above, theirs).next().is_none()
        };
        cover.path.ancestors().skip(1).any(|above| whole(&above)) && id_of(&cover.path).ok() == Some(cover.id)
    }
}

/// The directories above a path and below `root` that a run with these covers can rename: it covers none of them, and nothing
/// above them is read-only or hidden.
fn movable<'p>(path: &'p Path, root: &Path, covers: &Covers<'_>) -> impl Iterator<Item = &'p Path> {
    let mut above: Vec<&Path> = path.ancestors().skip(1).take_while(|above| *above != root).collect();
    above.reverse();
    let is_fixed = |path: &Path| covers.get(path).is_some_and(|kind| *kind != CoverKind::Anchor);
    let fixed = above.iter().position(|above| is_fixed(above)).unwrap_or(above.len());
    above.truncate(fixed);
    above.retain(|above| !covers.contains_key(above));
    above.into_iter()
}

/// The mount that a path is on in a run with these covers, by its path; nothing is the mount of the root.
fn mount_of<'p>(path: &'p Path, root: &Path, covers: &Covers<'_>) -> Option<&'p Path> {
    path.ancestors().take_while(|above| *above != root).find(|above| covers.contains_key(above))
}

/// A hidden path that a run with these covers can move from its tree `outer` into another one below it, together with a
/// directory: nothing is moved from one mount to another.
fn can_enter<'p>(covers: &Covers<'p>, outer: &Path, inner: &Path) -> Option<&'p Path> {
    let target = mount_of(inner, outer, covers);
    let enters = |path: &&Path| {
        let mut directories = movable(path, outer, covers);
        directories.any(|directory| mount_of(directory, outer, covers) == target)
    };
    let hidden = covers.iter().filter(|(_, kind)| kind.is_hidden()).map(|(path, _)| *path);
    hidden.filter(|path| path.starts_with(outer) && !path.starts_with(inner)).find(enters)
}

/// Keeps runs apart of which one has a tree below another one's: this run cannot move anything into the tree of a run below.
/// If a run above could move a hidden file into a tree of this run, this one is refused. Returns whether there is more to
/// cover.
pub(super) fn keep_apart(survey: &mut Survey, own: &Entry, others: &[OtherRun]) -> Result<bool, LaunchError> {
    let mut is_changed = false;
    hold_stubs(survey, own, others);
    let active = || others.iter().filter(|other| other.is_active);
    for tree in active().flat_map(|other| &other.entry.trees) {
        let is_below = |outer: &Tree| outer.write && is_strictly_below(&tree.path, &outer.path);
        if own.trees.iter().any(is_below) && hold(survey, tree) {
            is_changed = true;
        }
    }
    let ours = covers(survey);
    for other in active() {
        let theirs = other.entry.covers.iter().map(|cover| (cover.path.as_path(), cover.kind)).collect();
        for (outer, inner) in pairs(&other.entry.trees, &own.trees) {
            if let Some(path) = can_enter(&theirs, &outer.path, &inner.path) {
                return Err(refused_above(other, outer, path));
            }
        }
        for (outer, inner) in pairs(&own.trees, &other.entry.trees) {
            if let Some(path) = can_enter(&ours, &outer.path, &inner.path) {
                return Err(refused_below(other, inner, path));
            }
        }
    }
    Ok(is_changed)
}

/// Trees that are written, each with one strictly below it.
fn pairs<'a>(outer: &'a [Tree], inner: &'a [Tree]) -> impl Iterator<Item = (&'a Tree, &'a Tree)> {
    let below = |outer: &'a Tree| {
        inner
            .iter()
            .filter(|inner| is_strictly_below(&inner.path, &outer.path))
            .map(move |inner| (outer, inner))
    };
    outer.iter().filter(|tree| tree.write).flat_map(below)
}

fn is_strictly_below(path: &Path, above: &Path) -> bool {
    path != above && path.starts_with(above)
}

/// Holds the tree of another run as a mount of its own. Returns whether it was not held before.
fn hold(survey: &mut Survey, tree: &Tree) -> bool {
    let covers = covers(survey);
    let is_covered = covers.contains_key(tree.path.as_path());
    let is_fixed = |above: &Path| covers.get(above).is_some_and(|kind| *kind != CoverKind::Anchor);
    if is_covered || tree.path.ancestors().any(is_fixed) || id_of(&tree.path).ok() != Some(tree.id) {
        return false;
    }
    survey.ids.insert(tree.path.clone(), tree.id);
    survey.anchors.push(tree.path.clone());
    true
}

fn refused_above(other: &OtherRun, outer: &Tree, path: &Path) -> LaunchError {
    let (run, directory) = (&other.run, outer.path.display());
    let message = format!(
        "run {run} is active in {directory}, from which it could move {}, which is hidden, into the directories of this run",
        short(path)
    );
    let failure = Failure::new(FailureClass::Unknown, message);
    let remedy = format!("wait until that run has ended, or start this one in {directory} too");
    LaunchError::Runtime(failure.with_remedy(remedy))
}

fn refused_below(other: &OtherRun, inner: &Tree, path: &Path) -> LaunchError {
    let (run, directory) = (&other.run, inner.path.display());
    let message = format!(
        "run {run} is active in {directory}, where this run could move {}, which is hidden",
        short(path)
    );
    let failure = Failure::new(FailureClass::Unknown, message);
    LaunchError::Runtime(failure.with_remedy("wait until that run has ended"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{CoverKind, Covers, can_enter, movable};

    fn covers<'a>(covers: &[(&'a str, CoverKind)]) -> Covers<'a> {
        covers.iter().map(|(path, kind)| (Path::new(*path), *kind)).collect()
    }

    fn enters(list: &[(&'static str, CoverKind)], inner: &str) -> bool {
        can_enter(&covers(list), Path::new("/w"), Path::new(inner)).is_some()
    }

    #[test]
    fn directories_that_are_held_or_read_only_are_not_moved() {
        let held = covers(&[("/w/a", CoverKind::Anchor), ("/w/a/b/c", CoverKind::Protected)]);
        let movable = |path| movable(Path::new(path), Path::new("/w"), &held).count();
        assert_eq!(movable("/w/.env"), 0);
        assert_eq!(movable("/w/x/.env"), 1);
        assert_eq!(movable("/w/a/.env"), 0);
        assert_eq!(movable("/w/a/b/c/d/.env"), 1, "only with b");
    }

    #[test]
    fn hidden_files_enter_a_tree_below_with_their_directory() {
        let (hidden, anchor) = (CoverKind::HiddenFile, CoverKind::Anchor);
        assert!(enters(&[("/w/a/.env", hidden)], "/w/sub"));
        assert!(enters(&[("/w/a/keys", CoverKind::HiddenDirectory)], "/w/sub"));
        assert!(!enters(&[("/w/.env", hidden)], "/w/sub"), "it stays in the root");
        assert!(!enters(&[("/w/sub/a/.env", hidden)], "/w/sub"), "it is there already");
        assert!(!enters(&[("/w/a/.envrc", CoverKind::Protected)], "/w/sub"));
        assert!(!enters(&[("/w/a/.env", hidden), ("/w/a", anchor)], "/w/sub"));
        assert!(!enters(&[("/w/a/.env", hidden), ("/w/sub", anchor)], "/w/sub"), "it is another mount");
        assert!(!enters(&[("/w/a/.env", hidden), ("/w/.x", anchor)], "/w/.x/trees/one"));
        assert!(enters(&[("/w/.x/b/.env", hidden), ("/w/.x", anchor)], "/w/.x/trees/one"));
    }
}
