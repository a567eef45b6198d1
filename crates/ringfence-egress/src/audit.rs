//! What left a run and what did not: a line each, never a body, never a query.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A longer file is put aside, and another begun.
const MAX_FILE_BYTES: u64 = 8 << 20;
/// The most that is written for one run. From then on nothing is served: what cannot be recorded is not done.
const MAX_BYTES: u64 = 32 << 20;
/// The most of it for requests that were not served. From then on those are only counted, by host and reason.
const MAX_DENIED_BYTES: u64 = 8 << 20;
/// What is kept free for requests that were served before it was full, and for the counts.
const RESERVED_BYTES: u64 = 4 << 20;
/// So many kinds of refused requests are counted apart; all others together.
const MAX_COUNTED_KINDS: usize = 1024;
/// So many requests that are not understood are recorded one by one; all others are one entry together.
const MAX_MALFORMED: u64 = 100;
/// The rule by which something is refused that is not understood.
pub(crate) const MALFORMED: &str = "malformed";
/// No more files than these are read.
const MAX_FILES: u32 = 8;
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
    /// For how many requests it stands, where the audit only counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
}

/// Writes entries, on a thread of its own: whoever is served does not wait for the disk. All that was noted is written
/// when this is dropped.
pub(crate) struct Audit {
    lines: Option<Sender<Vec<u8>>>,
    /// Bytes that were handed to the thread: all of them, and those of requests that were not served.
    written: AtomicU64,
    denied: AtomicU64,
    malformed: AtomicU64,
    /// Requests that are only counted.
    counted: Mutex<BTreeMap<Kind, Entry>>,
    /// Whether the disk takes nothing more.
    failed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What refused requests have in common that are counted together.
type Kind = (String, String, u16);

impl Audit {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let failed = Arc::new(AtomicBool::new(false));
        let mut files = Files {
            path: path.to_owned(),
            file: open(path)?,
            length: 0,
            aside: 0,
            failed: Arc::clone(&failed),
        };
        let (lines, written) = channel::<Vec<u8>>();
        let thread = std::thread::Builder::new().name("audit".into()).spawn(move || {
            while let Ok(mut lines) = written.recv() {
                // As many as come soon, in one go: waking this thread for each would cost more than all the rest.
                std::thread::park_timeout(SOON);
                written.try_iter().for_each(|line| lines.extend(line));
                files.write(&lines);
            }
        })?;
        Ok(Self {
            lines: Some(lines),
            written: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            malformed: AtomicU64::new(0),
            counted: Mutex::default(),
            failed,
            thread: Some(thread),
        })
    }

    /// Whether nothing more is to be served, because it could not be recorded.
    pub(crate) fn is_full(&self) -> bool {
        let written = self.written.load(Ordering::Relaxed);
        self.failed.load(Ordering::Relaxed) || written > MAX_BYTES - RESERVED_BYTES
    }

    pub(crate) fn write(&self, entry: &Entry) {
        if entry.rule == MALFORMED && self.malformed.fetch_add(1, Ordering::Relaxed) >= MAX_MALFORMED {
            return self.count(entry);
        }
        let Some(line) = encode(entry) else { return };
        let length = line.len() as u64;
        if entry.decision != Outcome::Allow {
            let denied = self.denied.fetch_add(length, Ordering::Relaxed);
            if denied + length > MAX_DENIED_BYTES || self.is_full() {
                return self.count(entry);
            }
        }
        if self.written.fetch_add(length, Ordering::Relaxed) + length > MAX_BYTES {
            return self.count(entry);
        }
        self.send(line);
    }

    fn send(&self, line: Vec<u8>) {
        if let Some(lines) = &self.lines {
            let _ = lines.send(line);
        }
    }

    /// Only counts it, together with others of its kind.
    fn count(&self, entry: &Entry) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let kind = (entry.rule.clone(), entry.host.clone(), entry.port);
        let full = counted.len() >= MAX_COUNTED_KINDS && !counted.contains_key(&kind);
        let kind = if full { (entry.rule.clone(), "others".to_owned(), 0) } else { kind };
        let fresh = || Entry {
            host: kind.1.clone(),
            port: kind.2,
            method: None,
            path: None,
            status: None,
            sent: 0,
            received: 0,
            duration_ms: 0,
            credential: None,
            count: Some(0),
            ..entry.clone()
        };
        let sum = counted.entry(kind.clone()).or_insert_with(fresh);
        sum.at_ms = entry.at_ms;
        sum.count = sum.count.map(|count| count + 1);
        sum.sent = sum.sent.saturating_add(entry.sent);
        sum.received = sum.received.saturating_add(entry.received);
    }
}

fn encode(entry: &Entry) -> Option<Vec<u8>> {
    let mut line = serde_json::to_vec(entry).ok()?;
    line.push(b'\n');
    Some(line)
}

impl Drop for Audit {
    fn drop(&mut self) {
        let counted = std::mem::take(&mut *self.counted.lock().unwrap_or_else(PoisonError::into_inner));
        counted.values().filter_map(encode).for_each(|line| self.send(line));
        drop(self.lines.take());
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// The file that is written, and how long it has become.
struct Files {
    path: PathBuf,
    file: File,
    length: u64,
    aside: u32,
    failed: Arc<AtomicBool>,
}

impl Files {
    fn write(&mut self, lines: &[u8]) {
        // A disk that takes nothing more is as good as full.
        if self.length > MAX_FILE_BYTES && self.put_aside().is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        if self.file.write_all(lines).is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        self.length += lines.len() as u64;
    }

    fn put_aside(&mut self) -> io::Result<()> {
        std::fs::rename(&self.path, numbered(&self.path, self.aside + 1))?;
        self.aside += 1;
        (self.file, self.length) = (open(&self.path)?, 0);
        Ok(())
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
    for path in (1..=MAX_FILES).map(|number| numbered(path, number)).chain([path.to_owned()]) {
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
    use std::path::Path;

    use super::{Audit, Entry, MALFORMED, MAX_BYTES, MAX_FILES, MAX_MALFORMED, Outcome, kept, read_entries};

    fn entry(decision: Outcome, host: &str) -> Entry {
        Entry {
            at_ms: 0,
            decision,
            rule: "rule".into(),
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
            count: None,
        }
    }

    /// How many files a directory has, and of how many bytes together.
    fn sizes(directory: &Path) -> (usize, u64) {
        let files: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap()).collect();
        (files.len(), files.iter().map(|file| file.metadata().unwrap().len()).sum())
    }

    #[test]
    fn allowed_requests_fill_it_and_none_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("network.jsonl");
        let audit = Audit::create(&path).unwrap();
        audit.write(&entry(Outcome::Allow, "first"));
        let mut written = 1;
        while !audit.is_full() {
            audit.write(&entry(Outcome::Allow, "later"));
            written += 1;
        }
        // What was served before it was full is still recorded.
        audit.write(&entry(Outcome::Allow, "last"));
        drop(audit);
        let entries = read_entries(&path).unwrap();
        assert_eq!((entries[0].host.as_str(), entries.len()), ("first", written + 1));
        assert_eq!(entries.last().unwrap().host, "last");
    }

    #[test]
    fn a_flood_of_denied_requests_is_counted_and_fills_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("network.jsonl");
        let audit = Audit::create(&path).unwrap();
        const FLOOD: u64 = 100_000;
        for number in 0..FLOOD {
            audit.write(&entry(Outcome::Deny, &format!("host-{}.test", number % 2000)));
        }
        assert!(!audit.is_full(), "denied requests do not keep allowed ones from being served");
        audit.write(&entry(Outcome::Allow, "served"));
        drop(audit);
        let entries = read_entries(&path).unwrap();
        let counted: u64 = entries.iter().map(|entry| entry.count.unwrap_or(1)).sum();
        assert_eq!(counted, FLOOD + 1);
        assert!(entries.iter().any(|entry| entry.host == "served"));
        let (files, bytes) = sizes(directory.path());
        assert!(bytes < MAX_BYTES && files <= MAX_FILES as usize, "{files} files of {bytes} bytes");
    }

    #[test]
    fn malformed_requests_beyond_some_are_one_entry() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("network.jsonl");
        let audit = Audit::create(&path).unwrap();
        for _ in 0..1000 {
            audit.write(&Entry { rule: MALFORMED.into(), ..entry(Outcome::Block, "-") });
        }
        audit.write(&entry(Outcome::Deny, "other"));
        drop(audit);
        let entries = read_entries(&path).unwrap();
        assert_eq!(entries.len() as u64, MAX_MALFORMED + 2);
        assert_eq!(entries.iter().map(|entry| entry.count.unwrap_or(1)).sum::<u64>(), 1001);
    }

    #[test]
    fn what_is_kept_is_plain() {
        assert_eq!(kept("/a\u{9b}31m\u{202e}b\n".into()), "/a?31m?b?");
        assert_eq!(kept("x".repeat(9999)).len(), 512);
    }
}
