//! Paths that a run is given: its workspace, what policies and flags name for reading and writing, and where attachments are put.
//!
//! A run may have put a symbolic link where the user named a directory, in an earlier run or while another one goes on. So a name is
//! resolved at every start, it must not lead over a link that a run could have made, and from there on only what was found is used.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use ringfence_core::policy::home::directory_of;
use ringfence_core::policy::{Files, GitAccess, Preset};
use ringfence_workspace::executed::{ExecutedBy, executed_by};
use ringfence_workspace::git::{Located, locate};

use crate::governing::Writable;
use crate::installation::Installation;
use crate::report::advise;
use crate::workspace::refuse_grant_in_git_directory;

/// Resolves what is named for reading and writing, and adds the latter to what the run may write.
pub(crate) fn settle(
    files: &mut Files,
    writable: &mut Writable,
    installation: &Installation,
) -> anyhow::Result<()> {
    for name in files.read.iter_mut().chain(&mut files.write) {
        let path = installation.expand(Path::new(name));
        if !path.is_absolute() {
            return Err(advise(
                anyhow!("the path {name} of a policy is not absolute"),
                "begin it with / or ~/",
            ));
        }
        *name = text(path)?;
    }
    let ends = files.write.iter().map(|name| Ok(located(Path::new(name))?.end));
    writable.extend(ends.collect::<anyhow::Result<_>>()?);
    for name in files.read.iter_mut().chain(&mut files.write) {
        *name = text(follow(Path::new(name), writable)?)?;
    }
    if files.git != GitAccess::Direct {
        files.write.iter().try_for_each(|name| refuse_grant_in_git_directory(Path::new(name)))?;
    }
    Ok(())
}

fn text(path: PathBuf) -> anyhow::Result<String> {
    path.into_os_string().into_string().map_err(|path| anyhow!("{} is no UTF-8", path.display()))
}

/// Where a path leads, and how. One that does not exist is refused when the run is staged.
fn located(path: &Path) -> anyhow::Result<Located> {
    locate(path).with_context(|| format!("{} cannot be resolved", path.display()))
}

/// Where a path leads. Over a link that a run could have made, it leads nowhere.
pub(crate) fn follow(path: &Path, writable: &Writable) -> anyhow::Result<PathBuf> {
    follow_located(path, located(path)?, writable)
}

/// Where a workspace leads. What earlier runs could write is only looked up if its path leads over a link.
pub(crate) fn follow_workspace(path: &Path, installation: &Installation) -> anyhow::Result<PathBuf> {
    let located = located(path)?;
    if located.links.is_empty() {
        return Ok(located.end);
    }
    follow_located(path, located, &Writable::earlier(installation)?)
}

fn follow_located(path: &Path, located: Located, writable: &Writable) -> anyhow::Result<PathBuf> {
    let Located { links, end, .. } = located;
    match links.iter().find(|link| writable.holding(link).is_some()) {
        None => Ok(end),
        Some(link) => Err(advise(
            anyhow!(
                "{} leads over the symbolic link {}, which a run could have made",
                path.display(),
                link.display()
            ),
            format!("name {} if that is what you mean, or remove the link", end.display()),
        )),
    }
}

/// Refuses to let a run write the home, a directory above it, or one of those in it whose files programs execute.
pub(crate) fn refuse_home(files: &Files, home: &Path) -> anyhow::Result<()> {
    let mut named = files.write.iter().filter_map(|path| Some((path, part_of_home(Path::new(path), home)?)));
    let Some((path, what)) = named.next() else { return Ok(()) };
    Err(advise(
        anyhow!("{path}, named for writing, is {what}"),
        "name other directories, or pass --home-workspace if you mean it",
    ))
}

/// Whether a directory is the home or above it, where programs execute files at login, or is in one of its directories of programs
/// and configuration.
pub(crate) fn part_of_home(path: &Path, home: &Path) -> Option<String> {
    if path == home {
        Some("your home directory, where programs execute files at login".to_owned())
    } else if home.starts_with(path) {
        Some("above your home directory, where programs execute files at login".to_owned())
    } else {
        let name = directory_of(path.strip_prefix(home).ok()?)?;
        Some(format!("in ~/{}, whose files programs execute", name.trim_end_matches('/')))
    }
}

/// Refuses to copy attachments, whose names the agent chooses, to where programs look for files: the home, a directory above
/// it, a secret, or a directory whose files are executed.
pub(crate) fn refuse_copies(directory: &Path, files: &Files, home: &Path) -> anyhow::Result<()> {
    let usual = Preset::Standard.policy().files;
    let mut secrets = files.secret_paths(home).chain(usual.secret_paths(home));
    let is_in = |secret: PathBuf| {
        directory.starts_with(&secret)
            || locate(&secret).is_ok_and(|secret| directory.starts_with(secret.end))
    };
    let what = if home.starts_with(directory) {
        "your home directory or above it"
    } else if secrets.any(is_in) {
        "a directory of secrets"
    } else if executed_by(&directory.join("file")).is_some_and(|by| by != ExecutedBy::Unknown) {
        "a directory whose files are executed"
    } else {
        return Ok(());
    };
    Err(advise(
        anyhow!("{}, named for attachments, is {what}", directory.display()),
        "name a directory for them alone",
    ))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ringfence_core::policy::Preset;

    use super::refuse_copies;

    #[test]
    fn attachments_are_not_copied_to_where_programs_look_for_files() {
        let mut files = Preset::Open.policy().files;
        files.secrets.push("/vault".into());
        let refused =
            |directory: &str| refuse_copies(Path::new(directory), &files, Path::new("/h/me")).is_err();
        for directory in
            ["/", "/h", "/h/me", "/h/me/.ssh", "/h/me/.ssh/x", "/vault/x", "/h/me/p/.git/hooks", "/p/.vscode"]
        {
            assert!(refused(directory), "{directory}");
        }
        for directory in ["/h/me/out", "/h/me2", "/tmp/x", "/h/me/.cache/out", "/h/me/.own/out"] {
            assert!(!refused(directory), "{directory}");
        }
    }
}
