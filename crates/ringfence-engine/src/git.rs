//! Imports what runs committed in their private git directories.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use ringfence_core::event::GitRef;
use ringfence_core::ids::RunId;
use ringfence_store::runs::{Progress, Runs};
use ringfence_workspace::Directory;
use ringfence_workspace::git::{self, Import, Imported};
use rustix::fs::{FlockOperation, flock};

/// The file that says that the import of a lost run was tried.
const TRIED: &str = "tried";
/// How long an import may take.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(120);

/// What came of an import.
#[derive(Debug, Default)]
pub struct ImportedRefs {
    /// Refs that the run changed.
    pub refs: Vec<GitRef>,
    /// What a user should know.
    pub notices: Vec<String>,
}

/// Imports what a run committed, and removes its private git directories if all of it was imported.
pub fn import(runs: &Runs, run: &RunId, path: &str, workspace: &Path) -> ImportedRefs {
    let mut all = ImportedRefs::default();
    let place = runs.git(run);
    let Ok(directory) = Directory::open(&place) else { return all };
    // Another process may have found it too.
    if flock(directory.as_fd(), FlockOperation::NonBlockingLockExclusive).is_err() {
        return all;
    }
    let program = git::find_git(path, workspace);
    let deadline = Instant::now() + IMPORT_TIMEOUT;
    let mut failed = false;
    let others = (1u32..).map(|number| number.to_string());
    let others = others.take_while(|name| directory.metadata(Path::new(name)).is_ok());
    for one in std::iter::once(place.clone()).chain(others.map(|name| place.join(name))) {
        let import = Import { place: &one, run: run.as_str(), git: program.as_deref(), deadline };
        match git::import(import) {
            Ok(imported) => all.add(imported, &one),
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

impl ImportedRefs {
    fn add(&mut self, imported: Imported, place: &Path) {
        let repository = git::repository_of(place).unwrap_or_default();
        let of = |change: git::RefChange| GitRef {
            repository: repository.clone(),
            name: change.name,
            from: change.from,
            to: change.to,
            kept_as: change.kept_as,
        };
        self.refs.extend(imported.refs.into_iter().map(of));
        self.notices.extend(imported.notices);
    }
}

/// Imports what runs committed that were lost before they could: killed, or ended by a power failure.
#[expect(clippy::disallowed_methods, reason = "the mark is in the state directory, which no run sees")]
pub(crate) fn import_lost(runs: &Runs, this: &RunId, path: &str, workspace: &Path) -> Vec<String> {
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
        let imported = import(runs, &run, path, workspace);
        if !imported.refs.is_empty() {
            let names: Vec<&str> = imported.refs.iter().map(|git_ref| git_ref.name.as_str()).collect();
            notices
                .push(format!("commits of run {run}, which was lost, were imported: {}", names.join(", ")));
        }
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
