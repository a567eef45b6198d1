//! What left a run and what did not: a line each, never a body, never a query.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A longer file is put aside, once.
const LONGEST: u64 = 16 << 20;

/// What came of a wish.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It was done.
    Allow,
    /// The policy does not allow it.
    Deny,
    /// It carried a placeholder where none belongs, or was no honest request.
    Block,
    /// It was allowed and went wrong.
    Error,
}

/// One wish.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Milliseconds since the epoch, at its end.
    pub at_ms: u64,
    /// What came of it.
    pub decision: Outcome,
    /// The rule that decided.
    pub rule: String,
    /// The host, or what was given for one.
    pub host: String,
    /// The port.
    pub port: u16,
    /// By what way: `tunnel`, `tls`, `http`.
    pub way: String,
    /// The method, where requests are seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// The path without its query, where requests are seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The answer, where requests are seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Bytes that left.
    pub sent: u64,
    /// Bytes that came.
    pub received: u64,
    /// How long it took.
    pub duration_ms: u64,
    /// The credential that was used, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
}

/// Writes entries.
pub(crate) struct Audit {
    path: PathBuf,
    file: Mutex<File>,
}

impl Audit {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), file: Mutex::new(open(path)?) })
    }

    /// A broker that cannot write down what it does goes on: the wish was decided already, and the next one may be
    /// written.
    pub(crate) fn write(&self, entry: &Entry) {
        let Ok(mut line) = serde_json::to_vec(entry) else { return };
        line.push(b'\n');
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = file.write_all(&line);
        if file.metadata().is_ok_and(|data| data.len() > LONGEST) {
            let _ = std::fs::rename(&self.path, older(&self.path));
            if let Ok(new) = open(&self.path) {
                *file = new;
            }
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

fn older(path: &Path) -> PathBuf {
    path.with_extension("1.jsonl")
}

/// The entries of a run, the oldest first. A line that was cut off is left out.
pub fn read_entries(path: &Path) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for path in [&older(path), path] {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        let lines = BufReader::new(file).lines().map_while(Result::ok);
        entries.extend(lines.filter_map(|line| serde_json::from_str::<Entry>(&line).ok()));
    }
    Ok(entries)
}

pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
