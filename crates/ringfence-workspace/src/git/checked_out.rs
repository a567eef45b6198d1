//! Branches that working trees of a repository have checked out, read without git.
//!
//! An import that moved or deleted the branch of another working tree would leave that one with an index and files of other
//! commits than its `HEAD` names, and its next commit would undo the difference.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::refs::{self, RefValue};
use crate::{Directory, EntryKind};

/// Most linked worktrees that are looked at. With more, every branch counts as checked out.
const MAX_WORKTREES: usize = 4096;
/// Longest file that names a branch.
const MAX_BYTES: u64 = 4096;
/// Most symbolic refs that lead from one to another.
const MAX_STEPS: usize = 5;
/// Files that name the branch of a working tree: the second and the third while a rebase lasts.
const NAMING: [&str; 3] = ["HEAD", "rebase-merge/head-name", "rebase-apply/head-name"];

/// Branches that other working trees than the run's have checked out.
#[derive(Debug, Default)]
pub(super) struct CheckedOut {
    branches: BTreeSet<String>,
    /// What the run's own working tree has checked out now.
    own: Option<String>,
    /// Whether there are more working trees than are looked at.
    is_cut: bool,
}

impl CheckedOut {
    /// Reads them. `own` is the linked worktree of the run, if it is one, and `head` what its `HEAD` held when the run began:
    /// a branch that the user has checked out there since then counts too.
    pub(super) fn read(
        common: &Directory,
        own: Option<&str>,
        head: &str,
        symbolic: &[(String, String)],
    ) -> Self {
        let mut found = Self::default();
        let is_own = |name: Option<&str>| name == own;
        let mut trees: Vec<Option<String>> = vec![None];
        if let Ok(worktrees) = common.directory(Path::new("worktrees")) {
            let listed = worktrees.each(&mut |name, kind, _| {
                found.is_cut = trees.len() > MAX_WORKTREES;
                if let Some(name) = name.to_str().filter(|_| kind == EntryKind::Directory) {
                    trees.push(Some(name.to_owned()));
                }
                !found.is_cut
            });
            found.is_cut |= listed.is_err();
        }
        for tree in trees {
            let prefix = tree.as_ref().map_or_else(PathBuf::new, |name| Path::new("worktrees").join(name));
            let named = NAMING.iter().filter_map(|file| branch(common, &prefix.join(file)));
            let named = named.map(|name| resolved(name, symbolic));
            match is_own(tree.as_deref()) {
                false => found.branches.extend(named),
                true => found.own = branch(common, &prefix.join("HEAD")),
            }
        }
        let before = refs::parse_value(head);
        let switched = found.own.clone().filter(|now| before != Some(RefValue::Symbolic(now.clone())));
        found.branches.extend(switched.map(|name| resolved(name, symbolic)));
        found
    }

    /// Why a branch must not be moved, deleted or checked out by the run, if it must not. `is_own` is for the branch that
    /// the run's own working tree had checked out when the run began.
    pub(super) fn why_not(&self, name: &str, is_own: bool) -> Option<&'static str> {
        let is_still_own = is_own && self.own.as_deref() == Some(name);
        if is_still_own || !name.starts_with("refs/heads/") {
            return None;
        }
        if self.is_cut && !is_own {
            return Some(
                "the repository has too many working trees to tell whether one of them has it checked out",
            );
        }
        self.branches
            .contains(name)
            .then_some("another working tree, or the user meanwhile, has it checked out")
    }
}

/// The branch that a file of a working tree names. Older versions of git made `HEAD` a link.
fn branch(common: &Directory, path: &Path) -> Option<String> {
    if let Ok(target) = common.read_link(path) {
        return target.to_str().filter(|name| refs::is_ref_name(name)).map(str::to_owned);
    }
    let text = common.read_text(path, MAX_BYTES).ok()?;
    match refs::parse_value(&text) {
        Some(RefValue::Symbolic(name)) => Some(name),
        Some(RefValue::Object(_)) => None,
        None => Some(text.trim().to_owned()).filter(|name| refs::is_ref_name(name)),
    }
}

/// The ref that symbolic refs lead to.
fn resolved(mut name: String, symbolic: &[(String, String)]) -> String {
    for _ in 0..MAX_STEPS {
        let Some((_, to)) = symbolic.iter().find(|(from, _)| *from == name) else { break };
        name.clone_from(to);
    }
    name
}
