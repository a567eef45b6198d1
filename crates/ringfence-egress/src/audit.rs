//! What left a run and what did not: a line each, never a body, never a query.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A longer file is put aside.
const LONGEST: usize = 16 << 20;
/// So many are put aside. When all are full the broker serves nobody any more: what cannot be shown is not done.
const ASIDE: u32 = 7;
/// How long a line waits for others.
const SOON: Duration = Duration::from_millis(5);
/// Longer texts are cut.
const LONGEST_TEXT: usize = 512;

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

/// Writes entries, on a thread of its own: whoever is served does not wait for the disk. All that was noted is written
/// when this is dropped.
pub(crate) struct Audit {
    lines: Option<Sender<Vec<u8>>>,
    full: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Audit {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let full = Arc::new(AtomicBool::new(false));
        let mut pages =
            Pages { path: path.to_owned(), file: open(path)?, length: 0, aside: 0, full: Arc::clone(&full) };
        let (lines, written) = channel::<Vec<u8>>();
        let thread = std::thread::Builder::new().name("audit".into()).spawn(move || {
            while let Ok(mut lines) = written.recv() {
                // As many as come soon, in one go: waking this thread for each would cost more than all the rest.
                std::thread::park_timeout(SOON);
                written.try_iter().for_each(|line| lines.extend(line));
                pages.write(&lines);
            }
        })?;
        Ok(Self { lines: Some(lines), full, thread: Some(thread) })
    }

    /// Whether nothing more can be kept.
    pub(crate) fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    pub(crate) fn write(&self, entry: &Entry) {
        let Ok(mut line) = serde_json::to_vec(entry) else { return };
        line.push(b'\n');
        if let Some(lines) = &self.lines {
            let _ = lines.send(line);
        }
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        drop(self.lines.take());
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// The file, and how long it has become.
struct Pages {
    path: PathBuf,
    file: File,
    length: usize,
    aside: u32,
    full: Arc<AtomicBool>,
}

impl Pages {
    fn write(&mut self, lines: &[u8]) {
        // A disk that takes nothing more is as good as full.
        if self.file.write_all(lines).is_err() {
            self.full.store(true, Ordering::Relaxed);
        }
        self.length += lines.len();
        if self.length <= LONGEST {
            return;
        }
        self.aside += 1;
        let moved =
            std::fs::rename(&self.path, numbered(&self.path, self.aside)).and_then(|()| open(&self.path));
        match moved {
            Ok(new) if self.aside <= ASIDE => (self.file, self.length) = (new, 0),
            _ => self.full.store(true, Ordering::Relaxed),
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    path.with_extension(format!("{number}.jsonl"))
}

/// The entries of a run, the oldest first. A line that was cut off is left out.
pub fn read_entries(path: &Path) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for path in (1..=ASIDE + 1).map(|number| numbered(path, number)).chain([path.to_owned()]) {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        let lines = BufReader::new(file).lines().map_while(Result::ok);
        entries.extend(lines.filter_map(|line| serde_json::from_str::<Entry>(&line).ok()));
    }
    Ok(entries)
}

/// A text as it is kept: short, and nothing that a terminal would obey.
pub(crate) fn kept(text: String) -> String {
    if text.len() <= LONGEST_TEXT && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return text;
    }
    let plain = text.chars().map(|char| if char.is_ascii_graphic() { char } else { '?' });
    plain.take(LONGEST_TEXT).collect()
}

pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::{ASIDE, Audit, Entry, LONGEST, Outcome, kept, read_entries};

    #[test]
    fn nothing_that_was_noted_is_pushed_out_by_what_comes_later() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("network.jsonl");
        let audit = Audit::create(&path).unwrap();
        let entry = |host: &str| Entry {
            at_ms: 0,
            decision: Outcome::Allow,
            rule: String::new(),
            host: host.into(),
            port: 443,
            way: "tunnel".into(),
            method: None,
            path: Some("p".repeat(500)),
            status: None,
            sent: 0,
            received: 0,
            duration_ms: 0,
            credential: None,
        };
        audit.write(&entry("first"));
        let mut count = 0;
        while !audit.is_full() {
            audit.write(&entry("later"));
            count += 1;
        }
        drop(audit);
        assert!(count * 600 > LONGEST * ASIDE as usize / 2);
        assert_eq!(read_entries(&path).unwrap()[0].host, "first");
    }

    #[test]
    fn what_is_kept_is_plain() {
        assert_eq!(kept("/a\u{9b}31m\u{202e}b\n".into()), "/a?31m?b?");
        assert_eq!(kept("x".repeat(9999)).len(), 512);
    }
}
