//! Who has made the state directory that `RINGFENCE_HOME` names: one that a run could have made, or can change, governs nothing.
//!
//! The user's programs list each state directory at its first use, and runs that begin later see none that is listed. So only what is not
//! known yet is looked at. The default state directory is hidden by its path.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use ringfence_workspace::git::locate;
use ringfence_workspace::{RunTrees, StateDirectories};

use crate::report::advise;

/// What to do about a state directory that is refused.
const REMEDY: &str = "set RINGFENCE_HOME to a directory where no run can write; one that you have made yourself can be moved there";

/// Refuses a state directory that runs of any installation could have made or led to, unless it is known, and lists it.
pub(crate) fn adopt(states: &StateDirectories, state: &Path) -> anyhow::Result<()> {
    if states.is_known(state) {
        return Ok(());
    }
    let mut others = states.list();
    others.retain(|other| other != state);
    refuse_visible(state, &others)?;
    // Nothing is read of one that is empty, or is still to be made.
    let is_empty = match fs::read_dir(state) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    };
    if !is_empty {
        refuse_made_by_runs(state, &others)?;
    }
    if state.is_dir() {
        // Where nothing can be written at the default place, other installations do not know of this one.
        let _ = states.add(state);
    }
    Ok(())
}

/// Refuses a state directory that an active run sees: it hides those that were there when it began.
pub(crate) fn refuse_visible(state: &Path, installations: &[PathBuf]) -> anyhow::Result<()> {
    let run = ringfence_backends::active_run_that_sees(state, installations);
    let run = run.context("the register of active runs cannot be read")?;
    run.map_or(Ok(()), |run| {
        Err(advise(
            anyhow!("the state directory {} would be seen by run {run}, which goes on", state.display()),
            "wait for the end of the run, or set RINGFENCE_HOME to a directory that no run sees",
        ))
    })
}

/// Refuses a state directory in a tree where runs could write, and one behind a link there.
fn refuse_made_by_runs(state: &Path, installations: &[PathBuf]) -> anyhow::Result<()> {
    let shown = state.display();
    let located = locate(state).with_context(|| format!("{shown} cannot be resolved"))?;
    let way: Vec<&PathBuf> = located.links.iter().chain(&located.passed).chain([&located.end]).collect();
    for installation in installations {
        let trees = RunTrees::of(installation).list();
        let trees = trees.context("failed to read the list of directories where runs have worked")?;
        if let Some(tree) = trees.iter().find(|tree| way.iter().any(|part| part.starts_with(tree))) {
            return Err(advise(
                anyhow!("the state directory {shown} could have been made by a run in {}", tree.display()),
                REMEDY,
            ));
        }
    }
    Ok(())
}
