//! What governs runs: policies, files of variables, settings and what they name, the state directory, this program itself.
//!
//! A run must not write any of it, also not what only another run uses: the other one may have more rights. What the settings name
//! is protected in every run that could write it. A file that only a flag names is not known to the runs before, so it must not
//! lie where one could write, unless in the directory `.ringfence` of a workspace's root, which is reserved in every run. Below the
//! root, and in what is given besides, a run can make such a directory.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use ringfence_core::config::{Document, Kind, Layers};
use ringfence_core::policy::{Files, WorkspaceAccess};
use ringfence_store::atomic;
use ringfence_workspace::git::{Located, locate};
use ringfence_workspace::{RunTrees, missing_trees};
use serde_json::Value;

use crate::grants;
use crate::installation::{DIRECTORY, Installation, SETTINGS, read_project_text, read_text};
use crate::report::advise;
use crate::trusted;

/// Settings that name a file which runs depend on.
const FILES: [&str; 2] = ["broker.ca_file", "broker.prices_file"];
/// Settings that name a file or a directory with a secret.
const SECRETS: [&str; 4] =
    ["queue.webhook_secret_file", "broker.claude_dir", "broker.claude_config_dir", "broker.codex_dir"];

/// The file of the state directory that names the program of the daemon.
const DAEMON_PROGRAM: &str = "daemon.program";

/// What settings name, as it is written there.
#[derive(Default)]
pub(crate) struct Named {
    /// What no run may write.
    files: Vec<PathBuf>,
    /// What no run may read either.
    secrets: Vec<PathBuf>,
}

impl Named {
    /// What the lasting layers name, of all trusted projects too. Variables and flags are of one command alone.
    ///
    /// A run can keep the settings of a trusted project from being read while another run starts. So what they named when they were
    /// trusted counts as well.
    pub(crate) fn by(layers: &Layers, installation: &Installation) -> anyhow::Result<Self> {
        let mut named = Self::default();
        for (path, value) in layers.lasting() {
            named.add(path, layers.keys().find(path).map(|key| key.kind), value);
        }
        for project in trusted_projects(layers) {
            let directory = installation.expand(&project).join(DIRECTORY);
            let present = read_project_text(&directory.join(SETTINGS)).ok().flatten();
            let trusted = trusted::texts(&installation.state, directory.parent(), present.as_deref())?;
            for text in trusted.iter().chain(&present) {
                // One that cannot be parsed is reported where it is used.
                let document = Document::parse(text, SETTINGS, layers.keys());
                for (path, located) in document.iter().flat_map(Document::iter) {
                    named.add(path, layers.keys().find(path).map(|key| key.kind), &located.value);
                }
            }
            named.files.push(directory);
        }
        let absolute = |paths: Vec<PathBuf>| paths.iter().map(|path| installation.expand(path)).collect();
        Ok(Self { files: absolute(named.files), secrets: absolute(named.secrets) })
    }

    fn add(&mut self, path: &str, kind: Option<Kind>, value: &Value) {
        let text = value.as_str();
        match kind {
            Some(Kind::PolicyChoice) => {
                self.files.extend(text.filter(|text| text.contains('/')).map(PathBuf::from));
            }
            _ if FILES.contains(&path) => self.files.extend(text.map(PathBuf::from)),
            _ if SECRETS.contains(&path) => self.secrets.extend(text.map(PathBuf::from)),
            _ if path == "broker.credentials" => {
                self.secrets.extend(texts(value).flat_map(credential_files).map(PathBuf::from));
            }
            _ => {}
        }
    }

    /// The secrets, as a policy names them.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = String> + '_ {
        self.secrets.iter().filter_map(|path| path.to_str()).map(str::to_owned)
    }

    fn names(&self, file: &Path) -> bool {
        self.files.iter().any(|named| named == file || locate(named).is_ok_and(|named| named.end == file))
    }
}

/// The projects whose settings may also loosen.
fn trusted_projects(layers: &Layers) -> Vec<PathBuf> {
    let all = layers.lasting().filter(|(path, _)| *path == "trusted_projects");
    all.flat_map(|(_, value)| texts(value)).map(PathBuf::from).collect()
}

fn texts(value: &Value) -> impl Iterator<Item = &str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// The files in a credential of the settings: `{file:PATH}`.
fn credential_files(text: &str) -> impl Iterator<Item = &str> {
    text.split("{file:").skip(1).filter_map(|rest| Some(rest.split_once('}')?.0))
}

/// A file that a run is started with.
pub(crate) struct Chosen {
    pub(crate) path: PathBuf,
    /// Whether it is a file of variables.
    pub(crate) is_env: bool,
}

/// The directories that runs could write.
pub(crate) struct Writable {
    /// Those of the run itself.
    own: Vec<PathBuf>,
    /// Those of the runs before.
    earlier: Vec<PathBuf>,
    /// Those of the run itself that are not its workspace.
    granted: Vec<PathBuf>,
    trees: RunTrees,
    /// The state directory, which no run sees.
    state: PathBuf,
    home: PathBuf,
}

impl Writable {
    /// What a run could write in this workspace, and what others could before it. A run without a boundary is not bounded by
    /// directories: none are its own.
    /// What is named for reading and writing is resolved here, before anything is concluded from it.
    pub(crate) fn of(
        installation: &Installation,
        workspace: &Path,
        files: &mut Files,
        isolates: bool,
    ) -> anyhow::Result<Self> {
        let mut writable = Self::earlier(installation)?;
        if isolates {
            let writes = files.workspace == WorkspaceAccess::ReadWrite;
            writable.own.extend(writes.then(|| workspace.to_owned()));
            grants::settle(files, &mut writable, installation)?;
        }
        Ok(writable)
    }

    /// What the runs before could write.
    pub(crate) fn earlier(installation: &Installation) -> anyhow::Result<Self> {
        let trees = RunTrees::of(&installation.state);
        let earlier =
            trees.list().context("failed to read the list of directories where runs have worked")?;
        let (state, home) = (installation.state.clone(), installation.home.clone());
        Ok(Self { own: Vec::new(), earlier, granted: Vec::new(), trees, state, home })
    }

    /// Adds directories that the run may write.
    pub(crate) fn extend(&mut self, granted: Vec<PathBuf>) {
        // What lies in the workspace is protected with it.
        let besides = granted.iter().filter(|path| !self.is_own(path)).cloned();
        self.granted = besides.collect();
        self.own.extend(granted);
    }

    /// Adds the run's own directories to those of the runs before.
    pub(crate) fn note(&self) -> anyhow::Result<()> {
        let failed = || format!("failed to write to {}", self.state.display());
        self.note_granted().with_context(failed)?;
        if missing_trees(&self.earlier, &self.own, &self.home).is_empty() {
            return Ok(());
        }
        let noted = atomic::private_dir(&self.state).and_then(|()| self.trees.add(&self.own, &self.home));
        noted.with_context(failed)
    }

    /// Adds what is given besides the workspace to what was given to the runs before.
    fn note_granted(&self) -> io::Result<()> {
        if self.granted.is_empty() {
            return Ok(());
        }
        atomic::private_dir(&self.state)?;
        RunTrees::granted(&self.state).add(&self.granted, &self.home)
    }

    /// Whether a directory was ever given to a run without being its workspace.
    fn was_granted(&self, tree: &Path) -> bool {
        // What cannot be read may name it.
        let before = RunTrees::granted(&self.state).list();
        self.granted.iter().any(|known| known == tree)
            || before.map_or(true, |known| known.iter().any(|known| known == tree))
    }

    /// Adds a directory where attachments are copied to, whose contents an agent chooses. The state directory is known to be no
    /// place of the user's.
    pub(crate) fn note_copies(&self, directory: &Path) -> anyhow::Result<()> {
        if locate(&self.state).is_ok_and(|state| directory.starts_with(state.end)) {
            return Ok(());
        }
        let noted = atomic::private_dir(&self.state)
            .and_then(|()| self.trees.add(&[directory.to_owned()], &self.home));
        noted.with_context(|| format!("failed to write to {}", self.state.display()))
    }

    /// The outermost directory that a run could write and that holds a path.
    pub(crate) fn holding(&self, path: &Path) -> Option<&Path> {
        let all = self.own.iter().chain(&self.earlier).map(PathBuf::as_path);
        all.filter(|tree| path.starts_with(tree)).min_by_key(|tree| tree.as_os_str().len())
    }

    /// Refuses a file that a run could have written, or a link to it that one could replace.
    pub(crate) fn check(&self, chosen: &Chosen, files: &Files, named: &Named) -> anyhow::Result<()> {
        // One that cannot be followed is reported where it is read.
        let Ok(Located { links, end, .. }) = locate(&chosen.path) else { return Ok(()) };
        let shown = chosen.path.display();
        if let Some(link) = links.iter().find(|link| self.holding(link).is_some()) {
            return Err(advise(
                anyhow!("{shown} governs the run, and the run could replace the link {}", link.display()),
                "name the file itself, or keep it outside of the workspace",
            ));
        }
        let Some(tree) = self.holding(&end) else { return Ok(()) };
        let below = end.strip_prefix(tree).unwrap_or(&end);
        let is_reserved = below.starts_with(DIRECTORY) && below != Path::new(DIRECTORY);
        let is_granted = is_reserved && self.was_granted(tree);
        let is_protected =
            (is_reserved && !is_granted) || locate(&self.state).is_ok_and(|state| end.starts_with(state.end));
        // Hidden files cannot be changed. Below the root, a directory above one could be replaced.
        let is_hidden = chosen.is_env
            && below.parent() == Some(Path::new(""))
            && files.denied().is_ok_and(|denied| denied.is_match(below));
        if is_protected || is_hidden || named.names(&end) {
            return Ok(());
        }
        let name = end.file_name().unwrap_or_default();
        let moved = tree.join(DIRECTORY).join(name);
        let remedy = match is_granted {
            true => "keep it outside of all directories where runs can write, or name it in the settings"
                .to_owned(),
            false => format!("move it to {}, which no run can write, and name it there", moved.display()),
        };
        Err(advise(
            anyhow!("{shown} governs the run, and lies in {}, where runs can write", tree.display()),
            remedy,
        ))
    }

    /// Everything that governs runs and that this one could write, by a second name too, with the links that lead there.
    pub(crate) fn governing(
        &self,
        installation: &Installation,
        chosen: &[Chosen],
        named: &Named,
        in_force: &[PathBuf],
    ) -> Vec<PathBuf> {
        if self.own.is_empty() {
            return Vec::new();
        }
        let settings = installation.user_settings();
        let named = named.files.iter().chain(&named.secrets).chain(in_force).chain([&settings]);
        let mut governing: Vec<PathBuf> = named.flat_map(|file| way(file)).collect();
        // What leads to those of this run was checked.
        governing.extend(chosen.iter().filter_map(|chosen| Some(locate(&chosen.path).ok()?.end)));
        // The state directory itself is hidden, but a run could make a link on its way lead elsewhere.
        let states = installation.other_states().iter().chain([&self.state]);
        governing.extend(states.filter_map(|state| locate(state).ok()).flat_map(|located| located.links));
        let programs = [installation.program_file(), daemon_program(&self.state)];
        for program in programs.into_iter().flatten() {
            // One that is not there needs no stub file.
            let may_be_there = || program.try_exists().unwrap_or(true);
            match self.is_own(&program) {
                true if may_be_there() => governing.extend(way(&program)),
                false if has_other_names(&program) => governing.push(program),
                _ => {}
            }
        }
        governing.retain(|path| self.is_own(path) || has_other_names(path));
        governing
    }

    fn is_own(&self, path: &Path) -> bool {
        self.own.iter().any(|tree| path.starts_with(tree))
    }
}

/// Writes down the program of the daemon where this user could replace it, so that runs of other programs protect it too: the
/// user or the service manager starts it again by its path.
pub(crate) fn note_daemon_program(installation: &Installation) -> anyhow::Result<()> {
    let note = installation.state.join(DAEMON_PROGRAM);
    let program = installation.program_file().filter(|program| is_replaceable(program));
    let written = match program.as_ref().and_then(|program| program.to_str()) {
        Some(program) => atomic::write(&note, program.as_bytes()).map_err(anyhow::Error::from),
        None => match fs::remove_file(&note) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        },
    };
    written.with_context(|| format!("failed to write {}", note.display()))
}

/// Whether this user may write a program or its directory.
fn is_replaceable(program: &Path) -> bool {
    let may_write = |path: &Path| rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
    may_write(program) || program.parent().is_some_and(may_write)
}

/// The program of the daemon, if it was noted.
fn daemon_program(state: &Path) -> Option<PathBuf> {
    read_text(&state.join(DAEMON_PROGRAM)).ok().flatten().map(PathBuf::from)
}

/// Whether a file has several names, of which one may be where a run can write.
fn has_other_names(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|data| data.is_file() && data.nlink() > 1)
}

/// A path without links, after the links and directories that lead there. Of one that cannot be followed, as below a directory that a
/// run has made unsearchable, the part that can be.
fn way(path: &Path) -> Vec<PathBuf> {
    let located = path.ancestors().find_map(|part| locate(part).ok());
    let parts = |Located { links, passed, end }| links.into_iter().chain(passed).chain([end]).collect();
    located.map(parts).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::credential_files;

    #[test]
    fn files_of_a_credential_are_found() {
        let files = |text| credential_files(text).collect::<Vec<_>>();
        assert_eq!(files("a.example x-key: {file:~/f}"), ["~/f"]);
        assert_eq!(files("a.example x: {env:A} {file:/a b} and {file:/c}"), ["/a b", "/c"]);
        assert!(files("a.example x: {file:/a").is_empty() && files("github").is_empty());
    }
}
