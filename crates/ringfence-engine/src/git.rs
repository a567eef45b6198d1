//! Imports what runs committed in their private git directories.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringfence_core::event::{ExecutedLater, GitRef};
use ringfence_core::ids::RunId;
use ringfence_store::runs::{Progress, Runs};
use ringfence_workspace::git::{self, Import, Imported};
use ringfence_workspace::{Directory, HostPrograms};
use rustix::fs::{FlockOperation, flock};

use crate::executed::{self, ExecutedFile};

/// The file that says that the import of a lost run was tried.
const TRIED: &str = "tried";
/// Most refs that notices name.
const MAX_NAMED: usize = 5;
/// How long an import may take.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(120);

/// What came of an import.
#[derive(Debug, Default)]
pub struct ImportedRefs {
    /// Refs that the run changed.
    pub refs: Vec<GitRef>,
    /// Files in its commits that programs execute later.
    pub executed: Vec<ExecutedFile>,
    /// What a user should know.
    pub notices: Vec<String>,
}

/// Imports what a run committed, and removes its private git directories if all of it was imported. `memory_limit` is that of the
/// run, in bytes.
pub fn import(
    runs: &Runs,
    run: &RunId,
    (programs, workspace): (&HostPrograms, &Path),
    memory_limit: Option<u64>,
) -> ImportedRefs {
    let mut all = ImportedRefs::default();
    let place = runs.git(run);
    let Ok(directory) = Directory::open(&place) else { return all };
    // Another process may have found it too.
    if flock(directory.as_fd(), FlockOperation::NonBlockingLockExclusive).is_err() {
        return all;
    }
    let find = || git::find_git(programs, workspace);
    let deadline = Instant::now() + IMPORT_TIMEOUT;
    let mut failed = false;
    for one in places(&place, &directory) {
        let import = Import { place: &one, run: run.as_str(), find_git: &find, deadline, memory_limit };
        match git::import(import) {
            Ok(imported) => all.add(imported, &one, workspace),
            Err(error) => {
                failed = true;
                all.notices.push(format!(
                    "commits of run {run} were not imported: {error}; they are kept, and `ringfence apply {run}` tries again"
                ));
            }
        }
    }
    if !failed {
        // What cannot be put aside is found again.
        let _ = runs.discard_git(run);
    }
    all
}

/// Whether commits of a run wait to be imported.
pub fn has_commits(runs: &Runs, run: &RunId) -> bool {
    let place = runs.git(run);
    let Ok(directory) = Directory::open(&place) else { return false };
    places(&place, &directory).any(|one| git::has_commits(&one).unwrap_or(false))
}

/// The private git directories of a run: of the workspace, and of repositories below it.
fn places<'a>(place: &'a Path, directory: &'a Directory) -> impl Iterator<Item = PathBuf> + 'a {
    let others = (1u32..).map(|number| number.to_string());
    let others = others.take_while(|name| directory.metadata(Path::new(name)).is_ok());
    std::iter::once(place.to_owned()).chain(others.map(|name| place.join(name)))
}

impl ImportedRefs {
    fn add(&mut self, imported: Imported, place: &Path, workspace: &Path) {
        if imported == Imported::default() {
            return;
        }
        let repository = git::repository_of(place).unwrap_or_default();
        let of = |change: git::RefChange| GitRef {
            repository: repository.clone(),
            name: change.name,
            from: change.from,
            to: change.to,
            kept_as: change.kept_as,
            from_kept_as: change.from_kept_as,
        };
        // A linked worktree has its git directory elsewhere; its own directory is the workspace.
        let tree = repository.parent().and_then(|tree| tree.strip_prefix(workspace).ok());
        let tree = tree.unwrap_or(Path::new(""));
        let executed = imported.executed_later.into_iter().map(|file| ExecutedFile {
            by: file.by,
            path: tree.join(file.path),
            git_ref: Some(file.git_ref),
            more_git_refs: file.more_refs,
        });
        self.executed.extend(executed);
        self.refs.extend(imported.refs.into_iter().map(of));
        self.notices.extend(imported.notices);
    }

    /// Files in its commits that programs execute later, the most dangerous first.
    pub fn executed_later(&self) -> Vec<ExecutedLater> {
        executed::merge(self.executed.clone(), Vec::new()).0
    }

    /// What a user is told of these files.
    pub fn executed_notice(&self) -> Option<String> {
        executed::notice(&self.executed_later())
    }

    /// What a user is told of refs that the run deleted or moved back.
    pub(crate) fn kept_notices(&self) -> Vec<String> {
        let kept = self.refs.iter().filter_map(|git_ref| Some((git_ref, git_ref.from_kept_as.as_ref()?)));
        let told = kept.take(MAX_NAMED).map(|(GitRef { name, to, .. }, kept)| {
            let what = if to.is_some() { "moved to other commits" } else { "deleted" };
            format!("{name} was {what}; what it named before is kept as {kept}")
        });
        told.collect()
    }
}

/// Removes the refs that name what refs of the user named before a run. Part of removing the run; a repository that is not
/// there any more has none.
pub fn forget(runs: &Runs, run: &RunId, programs: &HostPrograms) {
    let Ok(Progress::Ended(result)) = runs.progress(run) else { return };
    let mut kept: BTreeMap<PathBuf, Vec<String>> = BTreeMap::new();
    for git_ref in result.git_refs {
        if let Some(name) = git_ref.from_kept_as {
            kept.entry(git_ref.repository).or_default().push(name);
        }
    }
    let place = runs.git(run);
    // One that exists holds commits that are not imported.
    let is_made = Directory::open(&place).is_err();
    if kept.is_empty() || DirBuilder::new().recursive(true).mode(0o700).create(&place).is_err() {
        return;
    }
    for (repository, names) in kept {
        let tree = repository.parent().unwrap_or(Path::new("/"));
        let Some(program) = git::find_git(programs, tree) else { break };
        // What cannot be removed is named after the run, for the user to remove.
        let _ = git::forget(&repository, run.as_str(), &names, (&program, &place));
    }
    if is_made {
        let _ = runs.discard_git(run);
    }
}

/// Imports what runs committed that were lost before they could: killed, or ended by a power failure.
#[expect(clippy::disallowed_methods, reason = "the mark is in the state directory, which no run sees")]
pub(crate) fn import_lost(
    runs: &Runs,
    this: &RunId,
    programs: &HostPrograms,
    workspace: &Path,
) -> Vec<String> {
    let mut notices = Vec::new();
    for run in runs.git_pending().into_iter().filter(|run| run != this) {
        let lost = matches!(runs.progress(&run), Ok(Progress::Lost) | Err(_));
        let layered = runs.record(&run).is_ok_and(|record| record.layer);
        if !lost || layered {
            continue;
        }
        // One that failed is tried again when the user asks for it.
        let mark = runs.git(&run).join(TRIED);
        if mark.exists() {
            continue;
        }
        let _ = std::fs::File::create(&mark);
        let imported = import(runs, &run, (programs, workspace), None);
        if !imported.refs.is_empty() {
            let names: Vec<&str> = imported.refs.iter().map(|git_ref| git_ref.name.as_str()).collect();
            notices
                .push(format!("commits of run {run}, which was lost, were imported: {}", names.join(", ")));
        }
        notices.extend(imported.kept_notices());
        notices.extend(imported.executed_notice());
        notices.extend(imported.notices);
    }
    notices
}

/// Gives up the private git directories of a run without importing them.
pub fn discard(runs: &Runs, run: &RunId) -> std::io::Result<()> {
    match runs.discard_git(run) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
