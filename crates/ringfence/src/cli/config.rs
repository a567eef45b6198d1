//! `ringfence config`: the settings, and where each comes from.

use std::fs;
use std::io;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use ringfence_backends::settings_keys;
use ringfence_core::config::{self, Layers};
use ringfence_store::atomic;
use serde_json::{Value, json};

use crate::installation::Installation;
use crate::report::advise;
use crate::terminal;

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
    },
    /// Remove one value from your own settings
    Unset {
        /// Such as sandbox.mode
        key: String,
    },
    /// Say what a key is for and which layer won
    Explain {
        /// Such as sandbox.mode
        key: String,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the JSON Schema of the settings
    Schema,
    /// Say where the settings files are
    Path,
}

pub(crate) fn config(verb: Verb, installation: &Installation) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::List { json } => list(&installation.layers()?, json)?,
        Verb::Get { key } => get(&installation.layers()?, &key)?,
        Verb::Set { key, value } => {
            change(installation, |text, file| config::set(text, file, &settings_keys(), &key, &value))?;
        }
        Verb::Unset { key } => {
            change(installation, |text, file| config::unset(text, file, &settings_keys(), &key))?;
        }
        Verb::Explain { key, json } => explain(&installation.layers()?, &key, json)?,
        Verb::Schema => terminal::json(&config::schema(&settings_keys(), "ringfence settings"))?,
        Verb::Path => {
            terminal::line(installation.user_settings().display());
            if let Some(project) = installation.project_settings() {
                terminal::line(project.display());
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Rewrites the person's settings file, whole or not at all.
pub(crate) fn change(
    installation: &Installation,
    edit: impl FnOnce(&str, &str) -> Result<String, config::EditError>,
) -> anyhow::Result<()> {
    let file = installation.user_settings();
    let text = match fs::read_to_string(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        other => other.with_context(|| format!("{} cannot be read", file.display()))?,
    };
    let edited = edit(&text, &file.display().to_string())?;
    atomic::private_dir(&installation.state)
        .with_context(|| format!("{} cannot be made", installation.state.display()))?;
    Ok(atomic::write(&file, edited.as_bytes())?)
}

fn known(layers: &Layers, key: &str) -> anyhow::Result<&'static config::Key> {
    layers.keys().find(key).ok_or_else(|| {
        advise(anyhow!("{key}: {}", layers.keys().unknown(key)), "`ringfence config list` shows all keys")
    })
}

fn list(layers: &Layers, json: bool) -> anyhow::Result<()> {
    if json {
        return terminal::json(&layers.merged());
    }
    let rows: Vec<Vec<String>> = layers
        .paths()
        .into_iter()
        .filter_map(|path| {
            let winner = layers.explain(path).into_iter().find(|said| said.wins)?;
            Some(vec![
                path.to_owned(),
                plain(&winner.located.value),
                format!("({})", winner.source.describe()),
            ])
        })
        .collect();
    terminal::table(&rows);
    Ok(())
}

fn get(layers: &Layers, key: &str) -> anyhow::Result<()> {
    known(layers, key)?;
    if let Some(located) = layers.get(key) {
        terminal::line(plain(&located.value));
    }
    Ok(())
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
                    "value": said.located.value,
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
            vec![mark.to_owned(), plain(&said.located.value), said.source.describe().to_owned(), place]
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
