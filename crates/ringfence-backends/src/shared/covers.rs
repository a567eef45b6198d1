//! What of the host is seen inside, and what of that is held or hidden. Pure.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use ringfence_core::paths::DirectoryId;
use ringfence_core::plan::Request;
use ringfence_core::policy::WorkspaceAccess;

use super::crowding::is_within;
use super::survey::Survey;

/// A part of the host that is seen inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shown {
    /// Where it is.
    pub(crate) source: PathBuf,
    /// Where it is seen.
    pub(crate) target: PathBuf,
    /// Whether it may be written.
    pub(crate) write: bool,
    /// What has to be at the source.
    pub(crate) id: Option<DirectoryId>,
    /// What the target covers below the workspace: its path and what has to be there.
    pub(crate) over: Option<(PathBuf, DirectoryId)>,
}

impl Shown {
    /// A part that no run can have replaced, or that is checked in another way.
    pub(crate) fn new(source: PathBuf, target: PathBuf, write: bool) -> Self {
        Self { source, target, write, id: None, over: None }
    }
}

/// Something over a path that is seen inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cover {
    /// What is there already, held in its place.
    Hold { source: PathBuf, target: PathBuf, write: bool },
    /// Nothing in the place of a file or a directory.
    Hide { source: PathBuf, target: PathBuf, directory: bool },
}

/// What is seen besides the system, the workspace last.
pub(crate) fn shown(request: &Request, survey: &Survey) -> Vec<Shown> {
    let git = survey.submodule.iter();
    let git = git.map(|(source, target, write)| Shown::new(source.clone(), target.clone(), *write));
    let named = survey.shown.iter().map(|(path, write)| Shown {
        id: survey.granted.get(path).copied(),
        ..Shown::new(path.clone(), path.clone(), *write)
    });
    let workspace = Shown::new(
        request.workspace.host().as_path().to_owned(),
        request.workspace.guest().as_path().to_owned(),
        request.policy.files.workspace == WorkspaceAccess::ReadWrite,
    );
    git.chain(named).chain([workspace]).collect()
}

/// What is protected or hidden, over everything that is shown, wherever it is seen, however far the policy reaches: Ringfence's own
/// state is among it. Paths that the run does not see need no cover.
pub(crate) fn covers(survey: &Survey, seen: &[Shown]) -> Vec<Cover> {
    let mut covers = Vec::new();
    let anchors = survey.anchors.iter().map(|path| (path, true));
    let protected = survey.protected.iter().map(|path| (path, false));
    for (path, write) in anchors.chain(protected) {
        let held = |target| Cover::Hold { source: path.clone(), target, write };
        covers.extend(places(seen, path, true).into_iter().map(held));
    }
    covers.extend(survey.hidden.iter().flat_map(|(path, directory)| hidden(seen, path, *directory)));
    let whole = covers.iter().filter(|cover| matches!(cover, Cover::Hide { directory: true, .. }));
    let whole: BTreeSet<PathBuf> = whole.map(|cover| cover.target().to_owned()).collect();
    // Below a directory that is hidden there is nothing to cover.
    covers.retain(|cover| !is_within(cover.target(), &whole));
    // A part of the system that a policy names is seen twice at one place, and one cover is enough.
    // What is only held in its place and what is read-only are two: the second goes over the first.
    let mut known = HashSet::new();
    covers.retain(|cover| known.insert((cover.target().to_owned(), cover.is_hidden(), cover.is_writable())));
    covers
}

impl Cover {
    fn is_hidden(&self) -> bool {
        matches!(self, Cover::Hide { .. })
    }

    fn is_writable(&self) -> bool {
        matches!(self, Cover::Hold { write: true, .. })
    }

    pub(crate) fn target(&self) -> &Path {
        match self {
            Cover::Hold { target, .. } | Cover::Hide { target, .. } => target,
        }
    }

    /// What is covered, on the host.
    pub(crate) fn source(&self) -> &Path {
        match self {
            Cover::Hold { source, .. } | Cover::Hide { source, .. } => source,
        }
    }
}

/// Where stub files of other runs are seen and could be written.
pub(crate) fn stubs_of_others(survey: &Survey, seen: &[Shown]) -> Vec<PathBuf> {
    survey.stubs_of_others.iter().flat_map(|path| places(seen, path, true)).collect()
}

/// Nothing, wherever a path is seen.
pub(crate) fn hidden(seen: &[Shown], path: &Path, directory: bool) -> Vec<Cover> {
    places(seen, path, false)
        .into_iter()
        .map(|target| Cover::Hide { source: path.to_owned(), target, directory })
        .collect()
}

/// All the places where a path of the host is seen, or only those where it may be written.
fn places(seen: &[Shown], path: &Path, writable: bool) -> Vec<PathBuf> {
    let at = |shown: &Shown| {
        let rest = path.strip_prefix(&shown.source).ok().filter(|_| shown.write || !writable)?;
        Some(shown.target.join(rest).components().collect())
    };
    seen.iter().filter_map(at).collect()
}
