//! Trusted projects: their settings may also loosen, as long as they are those that were trusted.
//!
//! A path says little: a checkout, or a run in a directory above, can bring other settings there. So the text is kept when the
//! project is trusted, by `ringfence config trust` or with the first run after the user's settings name it, wherever that runs. Another text
//! may only tighten, until it is trusted too.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use ringfence_store::atomic;

use crate::installation::read_text;

/// The name of the list in the state directory.
const FILE: &str = "trusted_projects.json";

/// The settings of each project, as they were trusted: `None` if it had none.
type Texts = BTreeMap<PathBuf, Option<String>>;

fn read(state: &Path) -> anyhow::Result<Texts> {
    let file = state.join(FILE);
    let text = read_text(&file)?.unwrap_or_else(|| "{}".into());
    serde_json::from_str(&text).with_context(|| format!("{} cannot be read", file.display()))
}

/// The settings of a project as they were trusted. Those that are there now are, if it is not known yet.
///
/// A project whose path cannot be resolved may be any of those that are known.
pub(crate) fn texts(
    state: &Path,
    project: Option<&Path>,
    present: Option<&str>,
) -> anyhow::Result<Vec<String>> {
    let known = read(state)?;
    let Some(project) = project.and_then(|project| fs::canonicalize(project).ok()) else {
        return Ok(known.into_values().flatten().collect());
    };
    match (known.get(&project), present) {
        (Some(text), _) => Ok(text.iter().cloned().collect()),
        (None, Some(text)) => trust(state, &project, Some(text)).map(|()| Vec::new()),
        (None, None) => Ok(Vec::new()),
    }
}

/// Whether these are the settings of a project that were trusted. If none are known, they are.
pub(crate) fn is_trusted(state: &Path, project: &Path, text: &str) -> anyhow::Result<bool> {
    match read(state)?.get(project) {
        Some(trusted) => Ok(trusted.as_deref() == Some(text)),
        None => trust(state, project, Some(text)).map(|()| true),
    }
}

/// Trusts the settings of a project as they are.
pub(crate) fn trust(state: &Path, project: &Path, text: Option<&str>) -> anyhow::Result<()> {
    atomic::private_dir(state).with_context(|| format!("{} cannot be made", state.display()))?;
    let _turn = atomic::lock(&state.join("trusted_projects.lock"))?;
    let mut texts = read(state)?;
    texts.insert(project.to_owned(), text.map(str::to_owned));
    Ok(atomic::write(&state.join(FILE), &serde_json::to_vec_pretty(&texts)?)?)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{is_trusted, trust};

    #[test]
    fn other_settings_of_a_trusted_project_are_not_trusted() {
        let state = tempfile::tempdir().unwrap();
        let (state, project) = (state.path(), Path::new("/project"));
        assert!(is_trusted(state, project, "{}").unwrap());
        assert!(is_trusted(state, project, "{}").unwrap());
        assert!(!is_trusted(state, project, "{ }").unwrap());
        assert!(is_trusted(state, Path::new("/other"), "{ }").unwrap());
        trust(state, project, Some("{ }")).unwrap();
        assert!(is_trusted(state, project, "{ }").unwrap() && !is_trusted(state, project, "{}").unwrap());
        trust(state, project, None).unwrap();
        assert!(!is_trusted(state, project, "{ }").unwrap());
    }
}
