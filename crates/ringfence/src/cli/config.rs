//! `ringfence config`: the settings, and where each comes from.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use ringfence_backends::settings_keys;
use ringfence_core::config::{self, Document, Layers};
use ringfence_store::atomic;
use serde_json::{Value, json};

use crate::desk::told;
use crate::installation::{DIRECTORY, Installation, SETTINGS, read_project_text, read_text};
use crate::other_writers::refuse_open_to_others;
use crate::report::advise;
use crate::workspace::Workspace;
use crate::{terminal, trusted};

/// Settings: list, get, set, explain.
#[derive(clap::Subcommand)]
pub(crate) enum Verb {
    /// Show every setting with its value and where it comes from
    List {
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one value
    Get {
        /// Such as sandbox.mode
        key: String,
    },
    /// Change one value in your own settings
    Set {
        /// Such as sandbox.mode
        key: String,
        /// The value; a list as a,b,c or as JSON
        value: String,
        /// For the running system, in force from the next task; names of variables such as EXECUTION_ENVIRONMENT work too
        #[arg(long)]
        system: bool,
    },
    /// Remove one value from your own settings
    Unset {
        /// Such as sandbox.mode
        key: String,
        /// From the running system
        #[arg(long)]
        system: bool,
    },
    /// Say what a key is for and which layer won
    Explain {
        /// Such as sandbox.mode
        key: String,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Let the settings of a project also loosen, as they are now
    Trust {
        /// The project's directory, instead of the current one
        #[arg(value_name = "DIR")]
        directory: Option<PathBuf>,
    },
    /// Print the JSON Schema of the settings
    Schema,
    /// Say where the settings files are
    Path,
}

pub(crate) fn config(verb: Verb, installation: &Installation) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::List { json } => list(&installation.layers()?, json)?,
        Verb::Get { key } => return get(&installation.layers()?, &key),
        Verb::Set { key, value, system: true } => set_system(installation, &key, Some(&value))?,
        Verb::Unset { key, system: true } => set_system(installation, &key, None)?,
        Verb::Set { key, value, .. } => {
            change(installation, |text, file| config::set(text, file, &settings_keys(), &key, &value))?;
        }
        Verb::Unset { key, .. } => {
            change(installation, |text, file| config::unset(text, file, &settings_keys(), &key))?;
        }
        Verb::Explain { key, json } => explain(&installation.layers()?, &key, json)?,
        Verb::Trust { directory } => trust(installation, directory.as_deref())?,
        Verb::Schema => return schema(),
        Verb::Path => {
            terminal::line(installation.user_settings().display());
            for project in installation.project_settings(installation.cwd()?) {
                terminal::line(project.display());
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Changes a setting of the running system.
fn set_system(installation: &Installation, name: &str, value: Option<&str>) -> anyhow::Result<()> {
    let change = (name.to_owned(), value.map(str::to_owned));
    let changed = installation.desk()?.change_settings(&[change]).map_err(told)?;
    changed.warnings.iter().for_each(|warning| terminal::about(format!("! {warning}")));
    Ok(())
}

/// Names a project in `trusted_projects`, and keeps its settings as those that are trusted.
fn trust(installation: &Installation, directory: Option<&Path>) -> anyhow::Result<()> {
    const KEY: &str = "trusted_projects";
    let keys = settings_keys();
    let named = installation.expand(directory.unwrap_or(Path::new(".")));
    let cannot = || format!("{} cannot be trusted", named.display());
    let project = Workspace::named(installation, &named).with_context(cannot)?.path;
    let file = project.as_path().join(DIRECTORY).join(SETTINGS);
    refuse_open_to_others(&file)?;
    let text = read_project_text(&file)?;
    if let Some(text) = &text {
        Document::parse(text, &file.display().to_string(), &keys)?;
    }
    let own = read_text(&installation.user_settings())?.unwrap_or_default();
    let own = Document::parse(&own, &installation.user_settings().display().to_string(), &keys)?;
    let known = own.get(KEY).and_then(|located| located.value.as_array().cloned()).unwrap_or_default();
    let is_project = |path: &Value| {
        let path = path.as_str().map(|path| installation.expand(Path::new(path)));
        path.and_then(|path| path.canonicalize().ok()).is_some_and(|path| path == project.as_path())
    };
    if !known.iter().any(is_project) {
        let all: Vec<Value> = known.into_iter().chain([project.to_string().into()]).collect();
        let all = Value::from(all).to_string();
        change(installation, |text, file| config::set(text, file, &keys, KEY, &all))?;
    }
    trusted::trust(&installation.state, project.as_path(), text.as_deref())?;
    terminal::line(match text {
        Some(_) => format!("{} is trusted as it is now", file.display()),
        None => format!("{project} is trusted; it has no settings yet"),
    });
    Ok(())
}

/// Rewrites the person's settings file, whole or not at all.
pub(crate) fn change(
    installation: &Installation,
    edit: impl Fn(&str, &str) -> Result<String, config::EditError>,
) -> anyhow::Result<()> {
    let file = installation.user_settings();
    let name = file.display().to_string();
    // A wrong key or value is refused before anything is made.
    edit(&read_text(&file)?.unwrap_or_default(), &name)?;
    atomic::private_dir(&installation.state)
        .with_context(|| format!("{} cannot be made", installation.state.display()))?;
    installation.list_state();
    // Two at once take turns, so that neither undoes the other.
    let _turn = atomic::lock(&installation.state.join("settings.lock"))?;
    let text = read_text(&file)?.unwrap_or_default();
    let edited = edit(&text, &name)?;
    Ok(atomic::write(&file, edited.as_bytes())?)
}

fn known(layers: &Layers, key: &str) -> anyhow::Result<&'static config::Key> {
    layers.keys().find(key).ok_or_else(|| {
        advise(anyhow!("{key}: {}", layers.keys().unknown(key)), "`ringfence config list` shows all keys")
    })
}

fn list(layers: &Layers, json: bool) -> anyhow::Result<()> {
    if json {
        return terminal::json(&config::shown_section(&layers.merged()));
    }
    let rows: Vec<Vec<String>> = layers
        .paths()
        .into_iter()
        .filter_map(|path| {
            let winner = layers.explain(path).into_iter().find(|said| said.wins)?;
            Some(vec![
                path.to_owned(),
                plain(&config::shown(path, &winner.located.value)),
                format!("({})", winner.source.describe()),
            ])
        })
        .collect();
    terminal::table(&rows);
    Ok(())
}

/// Prints the JSON Schema of the settings. Needs no settings.
pub(crate) fn schema() -> anyhow::Result<ExitCode> {
    terminal::json(&config::schema(&settings_keys(), "ringfence settings"))?;
    Ok(ExitCode::SUCCESS)
}

/// One value, or all below a key. A key that has none ends with 1.
fn get(layers: &Layers, key: &str) -> anyhow::Result<ExitCode> {
    if !layers.keys().below(key).is_empty() {
        let merged = config::shown_section(&layers.merged());
        let pointer = format!("/{}", key.replace('.', "/"));
        return match merged.pointer(&pointer) {
            Some(section) => terminal::json(section).map(|()| ExitCode::SUCCESS),
            None => Ok(ExitCode::from(1)),
        };
    }
    known(layers, key)?;
    match layers.get(key) {
        Some(located) => {
            terminal::line(plain(&config::shown(key, &located.value)));
            Ok(ExitCode::SUCCESS)
        }
        None => Ok(ExitCode::from(1)),
    }
}

fn explain(layers: &Layers, key: &str, json: bool) -> anyhow::Result<()> {
    let row = known(layers, key)?;
    let said = layers.explain(key);
    if json {
        let layers: Vec<Value> = said
            .iter()
            .map(|said| {
                json!({
                    "layer": said.source.describe(),
                    "place": said.located.place.to_string(),
                    "value": config::shown(key, &said.located.value),
                    "wins": said.wins,
                })
            })
            .collect();
        return terminal::json(
            &json!({ "key": key, "doc": row.doc, "expects": row.kind.expected(), "layers": layers }),
        );
    }
    terminal::line(format!("{key}: {}", row.doc));
    terminal::line(format!("expects {}", row.kind.expected()));
    if !row.env.is_empty() {
        terminal::line(format!("set by {}", row.env.join(", ")));
    }
    let rows: Vec<Vec<String>> = said
        .iter()
        .map(|said| {
            let mark = if said.wins { "→" } else { " " };
            let place = said.located.place.to_string();
            let value = plain(&config::shown(key, &said.located.value));
            vec![mark.to_owned(), value, said.source.describe().to_owned(), place]
        })
        .collect();
    if rows.is_empty() {
        terminal::line("nobody gives it a value");
    }
    terminal::table(&rows);
    Ok(())
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
