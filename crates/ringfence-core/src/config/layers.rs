//! Layers of settings: built-in < user file < project files (tighten only) < running system < environment. Flags come
//! after them all.

use serde::Deserialize;
use serde_json::Value;

use super::document::{Document, Located, nest};
use super::error::{DocumentError, Place, Problem};
use super::key::{Key, Keys, Kind, ProjectRule};
use super::nested::Nested;
use super::settings::{Settings, SettingsError};
use crate::units::MemorySize;

/// Where a layer comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Source {
    BuiltIn,
    User,
    Project,
    System,
    Environment,
}

impl Source {
    /// What a person reads.
    pub fn describe(self) -> &'static str {
        match self {
            Source::BuiltIn => "built-in default",
            Source::User => "user settings",
            Source::Project => "project settings",
            Source::System => "running system",
            Source::Environment => "environment",
        }
    }
}

/// Settings from one source.
#[derive(Debug, Clone)]
pub struct Layer {
    /// Where it comes from.
    pub source: Source,
    /// What it says.
    pub document: Document,
}

/// All layers, the weakest first.
#[derive(Debug, Clone)]
pub struct Layers {
    keys: Keys,
    layers: Vec<Layer>,
}

/// What one layer says of a key.
#[derive(Debug, Clone, PartialEq)]
pub struct Explained<'a> {
    /// The layer.
    pub source: Source,
    /// Its value.
    pub located: &'a Located,
    /// Whether this one is in force.
    pub wins: bool,
}

impl Layers {
    /// The defaults of a table.
    pub fn built_in(keys: Keys) -> Self {
        let mut document = Document::default();
        for key in keys.iter() {
            // A default that is no JSON would be a mistake in the table; a test reads every one of them.
            if let Some(Ok(value)) = key.default.map(serde_json::from_str) {
                document.insert(key.path, value, Place::BuiltIn);
            }
        }
        Self { keys, layers: vec![Layer { source: Source::BuiltIn, document }] }
    }

    /// The table that the layers are read by.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Adds a stronger layer. A project's layer that does not tighten is an error.
    pub fn push(&mut self, layer: Layer) -> Result<(), DocumentError> {
        if layer.source == Source::Project {
            for (path, located) in layer.document.iter() {
                let key = self.keys.find(path);
                if !key.is_some_and(|key| tightens(key, self.get(path), &located.value)) {
                    return Err(DocumentError {
                        place: located.place.clone(),
                        key: path.to_owned(),
                        problem: Problem::NotTighter,
                    });
                }
            }
        }
        self.layers.push(layer);
        Ok(())
    }

    /// Adds a project's layer whose directory the person trusts.
    pub fn push_trusted(&mut self, layer: Layer) {
        self.layers.push(layer);
    }

    /// The value in force.
    pub fn get(&self, path: &str) -> Option<&Located> {
        self.layers.iter().rev().find_map(|layer| layer.document.get(path))
    }

    /// The strongest value that somebody gave, leaving the defaults aside.
    pub fn given(&self, path: &str) -> Option<&Located> {
        self.layers.iter().skip(1).rev().find_map(|layer| layer.document.get(path))
    }

    /// Every path that has a value, each once, sorted.
    pub fn paths(&self) -> Vec<&str> {
        let mut paths: Vec<&str> =
            self.layers.iter().flat_map(|layer| layer.document.iter()).map(|(path, _)| path).collect();
        paths.sort_unstable();
        paths.dedup();
        paths
    }

    /// What the layers say that last beyond one command: those of the user, of projects and of the running system. Not only what
    /// is in force here.
    pub fn lasting(&self) -> impl Iterator<Item = (&str, &Value)> {
        let lasts = |layer: &&Layer| matches!(layer.source, Source::User | Source::Project | Source::System);
        let values = self.layers.iter().filter(lasts).flat_map(|layer| layer.document.iter());
        values.map(|(path, located)| (path, &located.value))
    }

    /// What each layer says of a key, the weakest first.
    pub fn explain(&self, path: &str) -> Vec<Explained<'_>> {
        let mut said: Vec<_> = self
            .layers
            .iter()
            .filter_map(|layer| layer.document.get(path).map(|located| (layer.source, located)))
            .map(|(source, located)| Explained { source, located, wins: false })
            .collect();
        if let Some(last) = said.last_mut() {
            last.wins = true;
        }
        said
    }

    /// All values in force, as nested objects.
    pub fn merged(&self) -> Value {
        nest(self.paths().into_iter().filter_map(|path| Some((path, self.get(path)?.value.clone()))))
    }

    /// The settings.
    pub fn resolve(&self) -> Result<Settings, SettingsError> {
        let values = self.paths().into_iter().filter_map(|path| Some((path, &self.get(path)?.value)));
        let values: Vec<(&str, &Value)> = values.collect();
        Ok(Settings::deserialize(Nested::root(&values))?)
    }
}

fn tightens(key: &Key, below: Option<&Located>, value: &Value) -> bool {
    let below = below.map(|located| &located.value);
    match key.project {
        ProjectRule::Never => false,
        ProjectRule::Lower => below.is_none_or(|below| at_most(key.kind, value, below)),
        ProjectRule::Subset => match (value.as_array(), below.and_then(Value::as_array)) {
            (Some(part), Some(whole)) => part.iter().all(|item| whole.contains(item)),
            _ => false,
        },
        ProjectRule::LeaveFirst => {
            let place = |value: &Value| place_of(key.kind, value);
            below.is_some_and(|below| below == value || (place(below) == Some(0) && place(value) != Some(0)))
        }
        ProjectRule::Later => match below {
            None => place_of(key.kind, value).is_some_and(|place| place > 0),
            Some(below) => {
                matches!((place_of(key.kind, value), place_of(key.kind, below)), (Some(new), Some(old)) if new >= old)
            }
        },
    }
}

fn at_most(kind: Kind, value: &Value, below: &Value) -> bool {
    match kind {
        Kind::Memory => {
            let size = |value: &Value| value.as_str().and_then(|text| text.parse::<MemorySize>().ok());
            matches!((size(value), size(below)), (Some(new), Some(old)) if new <= old)
        }
        _ => matches!((value.as_u64(), below.as_u64()), (Some(new), Some(old)) if new <= old),
    }
}

fn place_of(kind: Kind, value: &Value) -> Option<usize> {
    let valid: &[&str] = match kind {
        Kind::Choice(valid) => valid,
        Kind::PolicyChoice => &crate::policy::Preset::NAMES,
        _ => &[],
    };
    value.as_str().and_then(|text| valid.iter().position(|name| *name == text))
}
