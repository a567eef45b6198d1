//! Credentials `mount`: a run finds the logins of its agent CLI where the CLI keeps them, as copies of its own.
//!
//! The person's files are not shown themselves: a CLI wants to write there, and one that refreshes a login makes the
//! person's own worthless. So the copies lack what a login is refreshed by, and the run has what the host has now.
#![expect(clippy::disallowed_methods, reason = "logins are in the user's home, which no run writes")]

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use ringfence_agents::AgentCli;
use ringfence_egress::Sources;
use serde_json::Value;

/// Longer files are no logins.
const LONGEST: u64 = 1 << 20;
/// No directory of logins has more files.
const MOST: usize = 64;
/// By what a login is refreshed, wherever it stands.
const REFRESH: [&str; 3] = ["refreshToken", "refresh_token", "refresh"];

/// Files of the person's home as a run may have them, and the secrets in them.
#[derive(Default)]
pub(crate) struct Copies {
    pub(crate) files: Vec<(PathBuf, String)>,
    pub(crate) secrets: Vec<String>,
}

/// Copies of the logins of an agent CLI.
pub(crate) fn copies(cli: &dyn AgentCli, sources: Sources<'_>) -> Copies {
    let mut copies = Copies::default();
    for path in cli.facts().login.paths {
        let place = sources.place(path);
        if place.is_dir() {
            for name in names(&place) {
                copies.add(&place.join(&name), &Path::new(path).join(name));
            }
        } else {
            copies.add(&place, Path::new(path));
        }
    }
    copies
}

fn names(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.take(MOST).map(|entry| PathBuf::from(entry.file_name())).collect()
}

impl Copies {
    fn add(&mut self, file: &Path, inside: &Path) {
        let Some(text) = read(file) else { return };
        let text = match serde_json::from_str::<Value>(&text) {
            Ok(mut document) => {
                self.strip(&mut document);
                document.to_string()
            }
            // What cannot be read cannot be made harmless.
            Err(_) => return,
        };
        self.files.push((inside.to_owned(), text));
    }

    /// Takes out what a login is refreshed by, and learns what must not be shown.
    fn strip(&mut self, value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    match value {
                        Value::String(text) if REFRESH.contains(&name.as_str()) => text.clear(),
                        Value::String(text) => self.secrets.push(text.clone()),
                        other => self.strip(other),
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.strip(item)),
            _ => {}
        }
    }
}

/// A text that is no longer than a login.
fn read(file: &Path) -> Option<String> {
    let data = fs::metadata(file).ok().filter(fs::Metadata::is_file)?;
    let mut text = String::new();
    File::open(file).ok()?.take(LONGEST).read_to_string(&mut text).ok()?;
    (data.len() <= LONGEST).then_some(text)
}
