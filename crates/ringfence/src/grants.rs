//! Paths that a run is given besides its workspace: what policies and flags name for reading and writing, and where attachments
//! are put.
//!
//! A run may have put a symbolic link where the user named a directory, in an earlier run or while another one goes on. So a name is
//! resolved at every start, it must not lead over a link that a run could have made, and from there on only what was found is used.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use ringfence_core::policy::Files;
use ringfence_workspace::git::{Located, locate};

use crate::governing::Writable;
use crate::installation::Installation;
use crate::report::advise;

/// Resolves what is named for reading and writing.
pub(crate) fn settle(
    files: &mut Files,
    writable: &Writable,
    installation: &Installation,
) -> anyhow::Result<()> {
    for name in files.read.iter_mut().chain(&mut files.write) {
        let real = follow(&installation.expand(Path::new(name)), writable)?;
        if let Some(real) = real.to_str() {
            *name = real.to_owned();
        }
    }
    Ok(())
}

/// Where a path leads. Over a link that a run could have made, it leads nowhere.
pub(crate) fn follow(path: &Path, writable: &Writable) -> anyhow::Result<PathBuf> {
    // One that cannot be followed is reported where it is used.
    let Ok(Located { links, end, .. }) = locate(path) else { return Ok(path.to_owned()) };
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

/// Refuses to let a run write the home, or a directory above it: what programs execute at login is there.
pub(crate) fn refuse_home(files: &Files, home: &Path) -> anyhow::Result<()> {
    let Some(path) = files.write.iter().find(|path| home.starts_with(path)) else { return Ok(()) };
    let what = if Path::new(path) == home { "your home directory" } else { "above your home directory" };
    Err(advise(
        anyhow!("{path}, named for writing, is {what}, where programs execute files at login"),
        "name directories below it, or pass --home-workspace if you mean it",
    ))
}
