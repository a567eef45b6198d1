//! Where work happens: the directory that a command or a task names, with its identity.
//!
//! A path says little: a run in a directory above may have put another directory or a link in its place. So the path is
//! resolved once, when the work is accepted, and from then on only the directory that was found then is used.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Once;

use anyhow::{Context, anyhow, bail};
use ringfence_core::config::AgentSettings;
use ringfence_core::paths::{DirectoryId, HostPath};
use ringfence_workspace::executed::is_git_directory;
use ringfence_workspace::git::lexical;
use ringfence_workspace::{Directory, DirectoryError};

use crate::cli::Options;
use crate::grants;
use crate::installation::Installation;
use crate::report::advise;
use crate::terminal;

/// A directory to work in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Workspace {
    pub(crate) path: HostPath,
    pub(crate) id: DirectoryId,
}

impl Workspace {
    /// The directory to work in: a flag's, the agent's, or the current one. One that was accepted before is looked at again,
    /// and refused if it is another one now.
    pub(crate) fn of(
        installation: &Installation,
        options: &Options,
        agent: Option<&AgentSettings>,
    ) -> anyhow::Result<Self> {
        if let (Some(id), Some(path)) = (options.workspace_id, &options.cwd) {
            Directory::open_known(path, id).map_err(refused)?;
            return Ok(Self { path: HostPath::new(path)?, id });
        }
        let chosen = options.cwd.as_deref().or_else(|| agent?.working_directory.as_deref());
        refuse_way_to(chosen, installation)?;
        match chosen {
            Some(path) => {
                let workspace = Self::named(installation, path)?;
                report_links(&installation.expand(path), workspace.path.as_path());
                Ok(workspace)
            }
            None => Self::named(
                installation,
                installation.cwd().map_err(|error| advise(error, "name a directory"))?,
            ),
        }
    }

    /// The directory that the user names, as it is now.
    pub(crate) fn named(installation: &Installation, path: &Path) -> anyhow::Result<Self> {
        let path = installation.expand(path);
        let unusable = || format!("the workspace {} cannot be used", path.display());
        let real = grants::follow_workspace(&path, installation).with_context(unusable)?;
        if !std::fs::symlink_metadata(&real).with_context(unusable)?.is_dir() {
            bail!("the workspace {} is not a directory", path.display());
        }
        refuse_state(&real, &installation.state)?;
        refuse_git_directory(&real)?;
        Self::at(&real).with_context(unusable)
    }

    /// The directory at a path that has been resolved before: a part that is a link now is refused.
    pub(crate) fn at(path: &Path) -> anyhow::Result<Self> {
        let id = Directory::open(path).map_err(refused)?.id();
        Ok(Self { path: HostPath::new(path)?, id })
    }
}

/// Refuses a workspace that is the current directory, or named from there, if the shell came there over a link that a run could have made: the kernel tells only where it led.
pub(crate) fn refuse_way_to(chosen: Option<&Path>, installation: &Installation) -> anyhow::Result<()> {
    if chosen.is_some_and(|path| path.is_absolute() || path.starts_with("~")) {
        return Ok(());
    }
    let Some(way) = installation.env.get("PWD").map(Path::new).filter(|way| way.is_absolute()) else {
        return Ok(());
    };
    let Ok(here) = installation.cwd() else { return Ok(()) };
    // The variable may be left from elsewhere.
    if way == here || std::fs::canonicalize(way).ok().as_deref() != Some(here) {
        return Ok(());
    }
    grants::follow_workspace(way, installation).map(drop)
}

/// Prints where a named directory is, if its path leads through a symbolic link: a run in a directory above may have made
/// it. Once, however often the name is resolved.
fn report_links(named: &Path, real: &Path) {
    static REPORT: Once = Once::new();
    if lexical(named) != real {
        REPORT.call_once(|| {
            let (named, real) = (named.display(), real.display());
            terminal::about(format!("the workspace is {real}: {named} leads there through a symbolic link"));
        });
    }
}

/// Refuses a workspace in the state directory: a run there could read the daemon's token, and change settings and records of others.
fn refuse_state(workspace: &Path, state: &Path) -> anyhow::Result<()> {
    match std::fs::canonicalize(state) {
        Ok(real) if workspace.starts_with(&real) => Err(advise(
            anyhow!("the workspace {} is in the state directory {}", workspace.display(), state.display()),
            "name a directory outside of it, or set RINGFENCE_HOME to another state directory",
        )),
        _ => Ok(()),
    }
}

/// Refuses a directory that a run may write besides its workspace if it is in a git directory.
pub(crate) fn refuse_grant_in_git_directory(directory: &Path) -> anyhow::Result<()> {
    refuse_within_git("the directory", directory)
}

/// Refuses a workspace in a git directory, where a run could write hooks and configuration that git executes. A working tree within
/// one, as beside a bare repository, has a `.git` of its own; and a bare repository itself is protected where it is the workspace.
fn refuse_git_directory(workspace: &Path) -> anyhow::Result<()> {
    refuse_within_git("the workspace", workspace)
}

fn refuse_within_git(what: &str, workspace: &Path) -> anyhow::Result<()> {
    // In `/tmp`, say, every user can make such names, and git takes no repository of another one.
    let own = rustix::process::geteuid().as_raw();
    let is_own = |path: &Path| path.symlink_metadata().is_ok_and(|data| data.uid() == own || data.uid() == 0);
    for directory in workspace.ancestors() {
        if is_own(&directory.join(".git")) {
            return Ok(());
        }
        let is_named = directory.file_name().is_some_and(|name| name == ".git");
        let is_git = || {
            Directory::open(directory).is_ok_and(|opened| is_git_directory(&opened))
                && is_own(&directory.join("HEAD"))
        };
        if is_named || (directory != workspace && is_git()) {
            return Err(advise(
                anyhow!("{what} {} is in the git directory {}", workspace.display(), directory.display()),
                "name a working tree; git executes what a run could write there",
            ));
        }
    }
    Ok(())
}

/// A directory that cannot be used, with what to do about it.
pub(crate) fn refused(error: DirectoryError) -> anyhow::Error {
    let remedy = error.remedy();
    match remedy {
        Some(remedy) => advise(error, remedy),
        None => error.into(),
    }
}
