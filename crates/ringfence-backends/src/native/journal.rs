//! Which stand-ins runs have put into workspaces: written before they are, so that none is taken for a person's file,
//! and none stays when everything was killed.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ringfence_core::ids::RunId;
use ringfence_linux::Placeholder;
use serde::{Deserialize, Serialize};

/// The notes of all runs.
pub(super) struct Journal {
    directory: PathBuf,
}

/// One run's note. It goes when this is dropped.
#[derive(Debug)]
pub(super) struct Note(Option<PathBuf>);

#[derive(Serialize, Deserialize)]
struct Page {
    workspace: PathBuf,
    placed: Vec<Placeholder>,
}

impl Journal {
    /// Below the state directory.
    pub(super) fn new(state: &Path) -> Self {
        Self { directory: state.join("held") }
    }

    /// The paths that runs hold in a workspace. If nobody else runs there, those are left of runs that were killed, and
    /// are taken away.
    pub(super) fn held(&self, workspace: &Path, alone: bool) -> BTreeSet<PathBuf> {
        let mut held = BTreeSet::new();
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let prefix = prefix(workspace);
        for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)) {
            let page =
                fs::read(entry.path()).ok().and_then(|text| serde_json::from_slice::<Page>(&text).ok());
            let Some(page) = page.filter(|page| page.workspace == workspace) else { continue };
            if alone {
                ringfence_linux::clear(&page.placed);
                let _ = fs::remove_file(entry.path());
            } else {
                held.extend(page.placed.into_iter().map(|placeholder| placeholder.path));
            }
        }
        held
    }

    /// Notes what a run is about to put into a workspace.
    pub(super) fn note(&self, run: &RunId, workspace: &Path, placed: &[Placeholder]) -> io::Result<Note> {
        if placed.is_empty() {
            return Ok(Note(None));
        }
        let page = Page { workspace: workspace.to_owned(), placed: placed.to_vec() };
        let path = self.directory.join(format!("{}{run}.json", prefix(workspace)));
        let create = || fs::OpenOptions::new().write(true).create_new(true).open(&path);
        let mut file = create().or_else(|_| {
            fs::create_dir_all(&self.directory)?;
            create()
        })?;
        let note = Note(Some(path.clone()));
        file.write_all(&serde_json::to_vec(&page)?)?;
        Ok(note)
    }
}

/// Tells the notes of one workspace from others without reading them.
fn prefix(workspace: &Path) -> String {
    let mut hasher = DefaultHasher::new();
    workspace.hash(&mut hasher);
    format!("{:016x}-", hasher.finish())
}

impl Drop for Note {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}
