//! What left a run and what did not: a line each, never a body, never a query.
//!
//! What a host may hear of is recorded twice: when it begins, before anything is sent, and when it has ended. The space of the second
//! line is reserved on disk with the first one, so a full disk cannot keep it out. Where the first line cannot be written nothing is
//! sent.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
/// Space is reserved on disk in steps of so many bytes, ahead of what is written.
const RESERVE_STEP: u64 = 1 << 20;
/// So much longer than the line of its begin may the line of a request's end be.
const MAX_END_EXTRA: u64 = 1024;
/// How often, and after how long, lines are tried again at the end that the disk does not take.
const LAST_TRIES: u32 = 10;
const LAST_PAUSE: Duration = Duration::from_millis(50);
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
    /// Names of headers that were removed from the request, each once for a run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed_headers: Vec<String>,
    /// For how many requests it stands, where the audit only counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// A number that the lines of one request's begin and end share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<u64>,
    /// Whether it has begun and its end is not recorded: the host may have heard of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub begun: bool,
}

/// A request whose begin is recorded, until its end is.
#[derive(Debug)]
pub(crate) struct Begun {
    number: u64,
    /// Bytes that are reserved for its end.
    promised: u64,
}

/// Writes entries. Whoever is served waits for the line of its begin alone; all others are written on a thread of its own, at the latest
/// when this is dropped.
pub(crate) struct Audit {
    lines: Option<Sender<Vec<u8>>>,
    files: Arc<Mutex<Files>>,
    /// Bytes that were written or handed to the thread: all of them, and those of requests that were not served.
    written: AtomicU64,
    denied: AtomicU64,
    malformed: AtomicU64,
    /// The number of the next request.
    next: AtomicU64,
    /// Requests that are only counted.
    counted: Mutex<BTreeMap<Kind, Entry>>,
    state: Arc<AuditState>,
    thread: Option<JoinHandle<()>>,
}

/// What is known of an audit, also when it is closed.
#[derive(Debug, Default)]
pub(crate) struct AuditState {
    /// Whether the disk takes nothing more.
    failed: AtomicBool,
    /// Whether lines were lost.
    incomplete: AtomicBool,
}

impl AuditState {
    /// Whether lines of an audit that is closed were lost.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.incomplete.load(Ordering::Relaxed)
    }
}

/// What refused requests have in common that are counted together.
type Kind = (String, String, u16);

impl Audit {
    #[cfg(test)]
    fn create(path: &Path) -> io::Result<Self> {
        Self::create_with(path, Arc::default())
    }

    pub(crate) fn create_with(path: &Path, state: Arc<AuditState>) -> io::Result<Self> {
        let files = Arc::new(Mutex::new(Files::create(path, Arc::clone(&state))?));
        let (lines, written) = channel::<Vec<u8>>();
        let of_thread = Arc::clone(&files);
        let thread = std::thread::Builder::new().name("audit".into()).spawn(move || {
            while let Ok(mut lines) = written.recv() {
                // As many as come soon, in one go: waking this thread for each would cost more than all the rest.
                std::thread::park_timeout(SOON);
                written.try_iter().for_each(|line| lines.extend(line));
                lock(&of_thread).write(&lines);
            }
        })?;
        Ok(Self {
            lines: Some(lines),
            files,
            written: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            malformed: AtomicU64::new(0),
            // Other than those of an earlier audit in the same file.
            next: AtomicU64::new(now_ms() << 10),
            counted: Mutex::default(),
            state,
            thread: Some(thread),
        })
    }

    /// Whether nothing more is to be served, because it could not be recorded.
    pub(crate) fn is_full(&self) -> bool {
        let written = self.written.load(Ordering::Relaxed);
        self.state.failed.load(Ordering::Relaxed) || written > MAX_BYTES - RESERVED_BYTES
    }

    /// Records that something begins, and reserves the space of its end. Nothing may be sent if that fails.
    pub(crate) fn begin(&self, mut entry: Entry) -> Option<Begun> {
        if self.is_full() {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        (entry.request, entry.begun) = (Some(number), true);
        let line = encode(&entry)?;
        let length = line.len() as u64;
        let promised = length + MAX_END_EXTRA;
        lock(&self.files).begin(&line, promised).ok()?;
        self.written.fetch_add(length + promised, Ordering::Relaxed);
        Some(Begun { number, promised })
    }

    /// Records the end of something whose begin is recorded.
    pub(crate) fn end(&self, begun: &Begun, mut entry: Entry) {
        entry.request = Some(begun.number);
        let line = encode(&entry).unwrap_or_default();
        self.written.fetch_sub(begun.promised.saturating_sub(line.len() as u64), Ordering::Relaxed);
        lock(&self.files).end(&line, begun.promised);
        // The thread writes it soon, or the next that begins does.
        self.send(Vec::new());
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
            removed_headers: Vec::new(),
            count: Some(0),
            request: None,
            begun: false,
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
        lock(&self.files).close();
    }
}

fn lock(files: &Mutex<Files>) -> MutexGuard<'_, Files> {
    files.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The file that is written, and how long it has become.
struct Files {
    path: PathBuf,
    file: File,
    length: u64,
    aside: u32,
    /// How much of the file has space on disk.
    allocated: u64,
    /// Lines, or the rest of one, that are not written yet and have space.
    pending: Vec<u8>,
    /// Lines that have no space.
    unreserved: Vec<u8>,
    /// Bytes for the ends of requests that go on.
    promised: u64,
    state: Arc<AuditState>,
}

impl Files {
    fn create(path: &Path, state: Arc<AuditState>) -> io::Result<Self> {
        let file = open(path)?;
        let length = file.metadata()?.len();
        Ok(Self {
            path: path.to_owned(),
            file,
            length,
            aside: 0,
            allocated: 0,
            pending: Vec::new(),
            unreserved: Vec::new(),
            promised: 0,
            state,
        })
    }

    /// Makes sure that so many bytes, and all that was promised, have space.
    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        let wanted = self.length + self.pending.len() as u64 + self.promised + bytes;
        if wanted <= self.allocated {
            return Ok(());
        }
        let end = wanted.next_multiple_of(RESERVE_STEP);
        allocate(&self.file, end).inspect_err(|_| self.fail())?;
        self.allocated = end;
        Ok(())
    }

    fn fail(&self) {
        self.state.failed.store(true, Ordering::Relaxed);
    }

    /// Writes the begin of a request, and reserves space for its end.
    fn begin(&mut self, line: &[u8], promised: u64) -> io::Result<()> {
        self.reserve(line.len() as u64 + promised)?;
        self.pending.extend_from_slice(line);
        let written = self.flush();
        if written.is_err() && self.pending.len() >= line.len() {
            self.pending.truncate(self.pending.len() - line.len());
        }
        written.inspect(|()| self.promised += promised)
    }

    /// Takes the end of a request, for which this was promised.
    fn end(&mut self, line: &[u8], promised: u64) {
        self.promised = self.promised.saturating_sub(promised);
        self.pending.extend_from_slice(line);
    }

    /// Writes what is there, and lines for which nothing is reserved. Those that the disk does not take are kept.
    fn write(&mut self, lines: &[u8]) {
        self.unreserved.extend_from_slice(lines);
        let unreserved = self.unreserved.len() as u64;
        if unreserved > 0 && self.reserve(unreserved).is_ok() {
            self.pending.append(&mut self.unreserved);
        }
        let _ = self.flush();
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_pending().inspect_err(|_| self.fail())?;
        if self.length > MAX_FILE_BYTES {
            // Where that cannot be done the file goes on: it has space.
            let _ = self.put_aside();
        }
        Ok(())
    }

    fn write_pending(&mut self) -> io::Result<()> {
        let mut written = 0;
        let result = loop {
            let rest = &self.pending[written..];
            if rest.is_empty() {
                break Ok(());
            }
            match self.file.write(rest) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        self.pending.drain(..written);
        self.length += written as u64;
        result
    }

    /// Begins another file, once it has space for all that was promised.
    fn put_aside(&mut self) -> io::Result<()> {
        let next = self.path.with_extension("next");
        let file = open(&next)?;
        let end = (self.promised + 1).next_multiple_of(RESERVE_STEP);
        let made = allocate(&file, end)
            .and_then(|()| std::fs::rename(&self.path, numbered(&self.path, self.aside + 1)))
            .and_then(|()| std::fs::rename(&next, &self.path));
        if let Err(error) = made {
            let _ = std::fs::remove_file(&next);
            return Err(error);
        }
        let _ = self.file.set_len(self.length);
        self.aside += 1;
        (self.file, self.length, self.allocated) = (file, 0, end);
        Ok(())
    }

    /// Writes what is left, and gives back space that is not needed.
    fn close(&mut self) {
        for _ in 0..LAST_TRIES {
            self.write(&[]);
            if self.pending.is_empty() && self.unreserved.is_empty() {
                if self.allocated > self.length {
                    let _ = self.file.set_len(self.length);
                }
                return;
            }
            std::thread::park_timeout(LAST_PAUSE);
        }
        self.state.incomplete.store(true, Ordering::Relaxed);
    }
}

/// Gives a file space on disk to this length. Its length stays as it is. On file systems that cannot do so nothing is reserved.
#[cfg(target_os = "linux")]
fn allocate(file: &File, end: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    use rustix::io::Errno;
    match fallocate(file, FallocateFlags::KEEP_SIZE, 0, end) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::NODEV) | Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn allocate(_: &File, _: u64) -> io::Result<()> {
    Ok(())
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    path.with_extension(format!("{number}.jsonl"))
}

/// The entries of a run, the oldest first. A line that was cut off is left out. Of a request that has ended the end is told; those that
/// have not come last.
pub fn read_entries(path: &Path) -> io::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut begun = BTreeMap::new();
    for path in (1..=MAX_FILES).map(|number| numbered(path, number)).chain([path.to_owned()]) {
        let file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        let lines = BufReader::new(file).lines().map_while(Result::ok);
        for entry in lines.filter_map(|line| serde_json::from_str::<Entry>(&line).ok()) {
            match entry.request {
                Some(number) if entry.begun => {
                    begun.insert(number, entry);
                }
                number => {
                    number.map(|number| begun.remove(&number));
                    entries.push(entry);
                }
            }
        }
    }
    entries.extend(begun.into_values());
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
            removed_headers: Vec::new(),
            count: None,
            request: None,
            begun: false,
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
    fn request_is_recorded_when_it_begins_and_told_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("network.jsonl");
        let audit = Audit::create(&path).unwrap();
        let first = audit.begin(entry(Outcome::Allow, "first")).unwrap();
        let _second = audit.begin(entry(Outcome::Allow, "second")).unwrap();
        let told = |path: &Path| -> Vec<(String, bool)> {
            read_entries(path).unwrap().into_iter().map(|entry| (entry.host, entry.begun)).collect()
        };
        let before = [("first".to_owned(), true), ("second".to_owned(), true)];
        assert_eq!(told(&path), before, "before anything was sent");
        audit.end(&first, entry(Outcome::Error, "first"));
        drop(audit);
        assert_eq!(told(&path), [("first".to_owned(), false), ("second".to_owned(), true)]);
        let data = std::fs::metadata(&path).unwrap();
        assert!(
            std::os::unix::fs::MetadataExt::blocks(&data) < 1024,
            "space that is not needed is given back"
        );
    }

    /// Ends of requests have space, however full the disk becomes.
    #[test]
    fn long_ends_of_many_requests_stay_in_reserved_space() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("network.jsonl");
        let audit = Audit::create(&path).unwrap();
        let begun: Vec<_> = (0..3000).map(|_| audit.begin(entry(Outcome::Allow, "many")).unwrap()).collect();
        let files = super::lock(&audit.files);
        assert!(files.allocated >= files.length + 3000 * (super::MAX_END_EXTRA + 500));
        drop(files);
        for one in &begun {
            audit.end(one, entry(Outcome::Block, &"h".repeat(500)));
        }
        let files = super::lock(&audit.files);
        assert!(files.length + files.pending.len() as u64 <= files.allocated && files.promised == 0);
        drop(files);
        drop(audit);
        assert_eq!(read_entries(&path).unwrap().len(), 3000);
    }

    #[test]
    fn nothing_begins_once_the_disk_takes_nothing_more() {
        let audit = Audit::create(Path::new("/dev/full")).unwrap();
        let state = std::sync::Arc::clone(&audit.state);
        assert!(audit.begin(entry(Outcome::Allow, "first")).is_none());
        assert!(audit.is_full() && audit.begin(entry(Outcome::Allow, "second")).is_none());
        audit.write(&entry(Outcome::Deny, "refused"));
        drop(audit);
        assert!(state.is_incomplete(), "of refused requests not even the count was written");
    }

    #[test]
    fn what_is_kept_is_plain() {
        assert_eq!(kept("/a\u{9b}31m\u{202e}b\n".into()), "/a?31m?b?");
        assert_eq!(kept("x".repeat(9999)).len(), 512);
    }
}
