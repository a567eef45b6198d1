//! This machine, this person, these settings: read once, here and nowhere else.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use ringfence_backends::{GateProgram, Surroundings, settings_keys};
use ringfence_core::config::{Document, Layer, Layers, Settings, Source, environment_layer};
use ringfence_store::runs::Runs;

use crate::GATE_ARGUMENT;

/// The name of the settings file in its directory.
const SETTINGS: &str = "settings.json";
/// The directory of a person's or a project's settings.
const DIRECTORY: &str = ".ringfence";

/// Where everything is, before any setting is read.
#[derive(Clone)]
pub(crate) struct Installation {
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) home: PathBuf,
    /// Settings, runs, everything that lasts.
    pub(crate) state: PathBuf,
    pub(crate) cwd: PathBuf,
    pub(crate) program: PathBuf,
}

impl Installation {
    /// Reads the environment.
    pub(crate) fn discover() -> anyhow::Result<Self> {
        let env: BTreeMap<String, String> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let home = env.get("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
        let state = env.get("RINGFENCE_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
        let (home, state) = match (home, state) {
            (Some(home), Some(state)) => (home, state),
            (Some(home), None) => (home.clone(), home.join(DIRECTORY)),
            (None, Some(state)) => (state.clone(), state),
            (None, None) => {
                bail!("neither HOME nor RINGFENCE_HOME is set, so there is no place for settings")
            }
        };
        if !state.is_absolute() {
            bail!("RINGFENCE_HOME is `{}`, which is not an absolute path", state.display());
        }
        Ok(Self {
            env,
            home,
            state,
            cwd: std::env::current_dir().context("the current directory is gone")?,
            program: std::env::current_exe().context("the path of this program cannot be found")?,
        })
    }

    /// The person's settings file.
    pub(crate) fn user_settings(&self) -> PathBuf {
        self.state.join(SETTINGS)
    }

    /// The settings file of the project that the current directory belongs to.
    pub(crate) fn project_settings(&self) -> Option<PathBuf> {
        self.cwd.ancestors().map(|directory| directory.join(DIRECTORY).join(SETTINGS)).find(|file| {
            file.is_file() && *file != self.user_settings() && !file.starts_with(self.home.join(DIRECTORY))
        })
    }

    /// All layers of settings, without flags.
    pub(crate) fn layers(&self) -> anyhow::Result<Layers> {
        let keys = settings_keys();
        let mut layers = Layers::built_in(keys.clone());
        if let Some(document) = self.read(&self.user_settings(), &keys)? {
            layers.push(Layer { source: Source::User, document })?;
        }
        if let Some(file) = self.project_settings()
            && let Some(document) = self.read(&file, &keys)?
        {
            let layer = Layer { source: Source::Project, document };
            if self.trusts(&layers.resolve()?, &file) {
                layers.push_trusted(layer);
            } else {
                layers.push(layer)?;
            }
        }
        let environment = environment_layer(&layers, &|name| self.env.get(name).cloned())?;
        layers.push(environment)?;
        Ok(layers)
    }

    fn read(&self, file: &Path, keys: &ringfence_core::config::Keys) -> anyhow::Result<Option<Document>> {
        match fs::read_to_string(file) {
            Ok(text) => Ok(Some(Document::parse(&text, &file.display().to_string(), keys)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("{} cannot be read", file.display())),
        }
    }

    /// Whether the person named the project's directory, links resolved on both sides.
    fn trusts(&self, settings: &Settings, file: &Path) -> bool {
        let project = file.parent().and_then(Path::parent).and_then(|path| fs::canonicalize(path).ok());
        project.is_some_and(|project| {
            settings
                .trusted_projects
                .iter()
                .any(|trusted| fs::canonicalize(self.expand(trusted)).is_ok_and(|trusted| trusted == project))
        })
    }

    /// A path with `~/` at its beginning, made absolute.
    pub(crate) fn expand(&self, path: &Path) -> PathBuf {
        match path.strip_prefix("~") {
            Ok(rest) => self.home.join(rest),
            Err(_) => self.cwd.join(path),
        }
    }

    /// What backends may know.
    pub(crate) fn surroundings(&self) -> Surroundings {
        let path = self.env.get("PATH").map(String::as_str).unwrap_or_default();
        Surroundings {
            path: std::env::split_paths(path).collect(),
            home: self.home.clone(),
            gate: GateProgram { program: self.program.clone(), args: vec![GATE_ARGUMENT.into()] },
        }
    }

    /// The runs of this installation.
    pub(crate) fn runs(&self) -> Runs {
        Runs::new(&self.state)
    }
}
