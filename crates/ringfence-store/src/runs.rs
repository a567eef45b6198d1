//! Runs: one directory each, with the record, the log and the result.
//!
//! ```text
//! runs/<id>/record.json   written whole before anything starts
//!           log.jsonl     one event a line, as it happens; locked while the run lives
//!           result.json   written whole at the end
//!           layer/        what it wrote in its workspace, if that went to a layer; until it is applied or discarded
//!           tmp/          the run's temporary files, if it has any here; gone at the end
//! ```
//! A directory without a whole result whose log is not locked is a run that was lost.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringfence_core::event::{Event, RunResult, RunStatus};
use ringfence_core::ids::RunId;
use ringfence_core::paths::DISCARDED;
use ringfence_core::record::Record;
use ringfence_workspace::{Directory, remove_tree, remove_tree_until};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::active::{self, ActiveRun, LostRun};
use crate::atomic::{self, WriteError};

/// So much of the log of a run stays when it is trimmed.
pub const TRIMMED_LOG_BYTES: u64 = 64 << 10;

/// Most bytes that a discarded entry takes in its directory.
const LONGEST_ENTRY_BYTES: u64 = 64;

/// All runs of an installation.
#[derive(Debug, Clone)]
pub struct Runs {
    root: PathBuf,
    /// Where private git directories are.
    git: PathBuf,
    /// What is to be removed.
    discarded: PathBuf,
    /// Where it is noted which runs are going on.
    active: PathBuf,
}

/// Why the store could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum RunsError {
    /// The disk refused.
    #[error("{path} cannot be used")]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file was not written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A document cannot be read.
    #[error("{path} is damaged")]
    Damaged {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// Nobody knows the run.
    #[error("there is no run `{0}`; `ringfence runs list` shows all")]
    Unknown(String),
    /// More than one run begins so.
    #[error("more than one run begins with `{0}`: {1}")]
    Ambiguous(String, String),
}

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogLine {
    /// Milliseconds since the epoch.
    pub at_ms: u64,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// How far a run has come.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    /// It lives.
    Running,
    /// It ended.
    Ended(Box<RunResult>),
    /// Its process ended without a result.
    Lost,
}

impl Progress {
    /// What a person reads.
    pub fn name(&self) -> &'static str {
        match self {
            Progress::Running => "running",
            Progress::Lost => "lost",
            Progress::Ended(result) => match result.status {
                RunStatus::Success => "success",
                RunStatus::Failed => "failed",
                RunStatus::Cancelled => "cancelled",
            },
        }
    }
}

impl Runs {
    /// Below this directory, which need not exist yet.
    pub fn new(state_directory: &Path) -> Self {
        let below = |name| state_directory.join(name);
        Self { root: below("runs"), git: below("git"), discarded: below(DISCARDED), active: below("running") }
    }

    /// Makes the place of a run.
    pub fn open(&self, run: &RunId) -> Result<OpenRun, RunsError> {
        let directory = self.directory(run);
        let io = |source| RunsError::Io { path: directory.clone(), source };
        atomic::private_dir(&self.root).map_err(io)?;
        // Fails if it is there: two runs never share a directory.
        fs::create_dir(&directory).map_err(io)?;
        let log = OpenOptions::new()
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(directory.join("log.jsonl"))
            .map_err(io)?;
        flock(&log, FlockOperation::NonBlockingLockExclusive).map_err(|error| io(error.into()))?;
        Ok(OpenRun {
            directory,
            log,
            logged: 0,
            max_log_bytes: u64::MAX,
            truncated: false,
            held_back: Vec::new(),
        })
    }

    /// Where all runs are.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where a run keeps everything.
    pub fn directory(&self, run: &RunId) -> PathBuf {
        self.root.join(run.as_str())
    }

    /// Where a run keeps the files that its agent named.
    pub fn attachments(&self, run: &RunId) -> PathBuf {
        self.directory(run).join("attachments")
    }

    /// Where a run keeps its log.
    pub fn log_file(&self, run: &RunId) -> PathBuf {
        self.directory(run).join("log.jsonl")
    }

    /// Where a run keeps its temporary files.
    pub fn tmp(&self, run: &RunId) -> PathBuf {
        self.directory(run).join("tmp")
    }

    /// Where a run keeps what it reached and what it was denied.
    pub fn network(&self, run: &RunId) -> PathBuf {
        self.directory(run).join("network.jsonl")
    }

    /// Where a run keeps what it wrote in its workspace, if that did not go into the workspace itself.
    pub fn layer(&self, run: &RunId) -> PathBuf {
        self.directory(run).join("layer")
    }

    /// Where a run keeps its private git directories until they are imported.
    pub fn git(&self, run: &RunId) -> PathBuf {
        self.git.join(run.as_str())
    }

    /// Runs whose private git directories are not imported yet.
    pub fn git_pending(&self) -> Vec<RunId> {
        let entries = fs::read_dir(&self.git).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    /// Puts the private git directories of a run aside, to be removed by [`Self::remove_discarded`]: moving them takes one call,
    /// removing them one for each file.
    pub fn discard_git(&self, run: &RunId) -> io::Result<()> {
        let (from, to) = (self.git(run), self.discarded.join(run.as_str()));
        match fs::rename(&from, &to) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && from.exists() => {
                atomic::private_dir(&self.discarded)?;
                fs::rename(&from, &to)
            }
            other => other,
        }
    }

    /// Removes what was put aside, if it is more than `at_most` entries, for as long as `time` allows. What is left, and what
    /// cannot be removed, is tried again with the next run.
    pub fn remove_discarded(&self, at_most: u64, time: Duration) {
        let Ok(data) = fs::metadata(&self.discarded) else {
            return drop(atomic::private_dir(&self.discarded));
        };
        if entries_at_least(&data) <= at_most {
            return;
        }
        let Ok(place) = fs::canonicalize(&self.discarded) else { return };
        let (Ok(entries), Ok(place)) = (fs::read_dir(&place), Directory::open(&place)) else { return };
        let deadline = Instant::now() + time;
        for name in entries.flatten().map(|entry| entry.file_name()) {
            if Instant::now() >= deadline {
                return;
            }
            let is_git = name.to_str().is_some_and(is_run);
            // Anything else was a stub directory. One that is not empty holds a file that is not ours to remove.
            let _ = match is_git {
                true => remove_tree_until(&place, &name, deadline),
                false => place.remove_directory(Path::new(&name)),
            };
        }
    }

    /// Removes all that a run has left, however deep and inaccessible it is.
    pub fn remove(&self, run: &RunId) -> Result<(), RunsError> {
        if self.git(run).exists() {
            remove_directory(&self.git(run))?;
        }
        remove_directory(&self.directory(run))
    }

    /// The ids of all runs, the newest first.
    pub fn list(&self) -> Result<Vec<RunId>, RunsError> {
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(|source| RunsError::Io { path: self.root.clone(), source })?,
        };
        let mut ids: Vec<RunId> =
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        ids.sort_unstable_by(|a, b| b.cmp(a));
        Ok(ids)
    }

    /// The run that a person means: `last`, an id, or how exactly one id begins or ends.
    pub fn find(&self, text: &str) -> Result<RunId, RunsError> {
        let unknown = || RunsError::Unknown(text.to_owned());
        // Mostly it is named whole.
        if let Some(id) = text.parse().ok().filter(|id| self.directory(id).is_dir()) {
            return Ok(id);
        }
        let ids = self.list()?;
        if text == "last" {
            return ids.into_iter().next().ok_or_else(unknown);
        }
        let fits =
            |id: &&RunId| !text.is_empty() && (id.as_str().starts_with(text) || id.as_str().ends_with(text));
        let found: Vec<&RunId> = ids.iter().filter(fits).collect();
        match found[..] {
            [] => Err(unknown()),
            [id] => Ok(id.clone()),
            _ => {
                let some: Vec<_> = found.iter().take(5).map(|id| id.as_str()).collect();
                Err(RunsError::Ambiguous(text.to_owned(), some.join(", ")))
            }
        }
    }

    /// The file of a run's record, written as the run began.
    pub fn record_file(&self, run: &RunId) -> PathBuf {
        self.directory(run).join("record.json")
    }

    /// The record of a run.
    pub fn record(&self, run: &RunId) -> Result<Record, RunsError> {
        read_json(&self.record_file(run))
    }

    /// How far a run has come.
    pub fn progress(&self, run: &RunId) -> Result<Progress, RunsError> {
        let directory = self.directory(run);
        let locked = File::open(directory.join("log.jsonl"))
            .is_ok_and(|log| flock(&log, FlockOperation::NonBlockingLockShared).is_err());
        if locked {
            return Ok(Progress::Running);
        }
        match read_json(&directory.join("result.json")) {
            Ok(result) => Ok(Progress::Ended(Box::new(result))),
            Err(RunsError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Ok(Progress::Lost)
            }
            // Cut off while it was written.
            Err(RunsError::Damaged { source, .. }) if source.is_eof() => Ok(Progress::Lost),
            Err(error) => Err(error),
        }
    }

    /// Notes that a run is going on, until the first of these is dropped. The others are runs that were lost before.
    pub fn note_active(&self, run: &RunId) -> Result<(ActiveRun, Vec<LostRun>), RunsError> {
        active::begin(&self.active, run).map_err(|source| RunsError::Io { path: self.active.clone(), source })
    }

    /// Takes the bulk of a run that is over: its log, but for the beginning, and the files that its agent named. What it was asked,
    /// what was in force, what it reached and how it ended stays. Returns how many bytes that was, or would be.
    pub fn trim(&self, run: &RunId, dry: bool) -> Result<u64, RunsError> {
        let io = |source| RunsError::Io { path: self.directory(run), source };
        let before = self.bulk(run);
        if dry {
            return Ok(before.saturating_sub(TRIMMED_LOG_BYTES));
        }
        let _ = fs::remove_dir_all(self.attachments(run));
        let path = self.log_file(run);
        let mut text = Vec::new();
        if let Ok(log) = File::open(&path) {
            log.take(TRIMMED_LOG_BYTES).read_to_end(&mut text).map_err(io)?;
        }
        // Whole lines.
        text.truncate(text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1));
        let message = "the rest of the log was removed to keep within `queue.keep_size`".into();
        let line = LogLine { at_ms: 0, event: Event::Notice { message } };
        text.extend(
            serde_json::to_vec(&line).map_err(|source| RunsError::Damaged { path: path.clone(), source })?,
        );
        text.push(b'\n');
        atomic::write(&path, &text)?;
        Ok(before.saturating_sub(self.bulk(run)))
    }

    /// The bytes of a run that can be taken without its evidence.
    pub fn bulk(&self, run: &RunId) -> u64 {
        let attachments = fs::read_dir(self.attachments(run)).into_iter().flatten().flatten();
        let sizes = attachments.filter_map(|entry| entry.metadata().ok()).map(|data| on_disk(&data));
        let log = fs::metadata(self.log_file(run)).map_or(0, |data| on_disk(&data));
        sizes.fold(log, u64::saturating_add)
    }

    /// The log of a run. A last line that was cut off by a crash is left out.
    pub fn log(&self, run: &RunId) -> Result<Vec<LogLine>, RunsError> {
        let path = self.log_file(run);
        let file = File::open(&path).map_err(|source| RunsError::Io { path: path.clone(), source })?;
        let lines = BufReader::new(file).lines().map_while(Result::ok);
        Ok(lines.filter_map(|line| serde_json::from_str(&line).ok()).collect())
    }
}

/// The bytes that a file takes on disk.
fn on_disk(data: &fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(data).saturating_mul(512)
}

/// A run that is being written.
#[derive(Debug)]
pub struct OpenRun {
    directory: PathBuf,
    log: File,
    /// Bytes of the log, and how many there may be of what the run itself causes.
    logged: u64,
    max_log_bytes: u64,
    truncated: bool,
    /// Lines that the disk did not take, in their order; written by [`Self::end`].
    held_back: Vec<LogLine>,
}

/// Whether a line is in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// It is.
    Written,
    /// It is not: the log is as large as it may be, and says so in its last line.
    Truncated,
}

impl OpenRun {
    /// Begins it: its record is on the disk when this returns.
    pub fn begin(&self, record: &Record) -> Result<(), RunsError> {
        let path = self.directory.join("record.json");
        Ok(atomic::create_durably(&path, &json(&path, record)?)?)
    }

    /// Makes the place for temporary files.
    pub fn make_tmp(&self) -> Result<(), RunsError> {
        let path = self.directory.join("tmp");
        atomic::private_dir(&path).map_err(|source| RunsError::Io { path, source })
    }

    /// Makes the place for what is written in the workspace.
    pub fn make_layer(&self) -> Result<(), RunsError> {
        let path = self.directory.join("layer");
        let made = ["upper", "work"].iter().try_for_each(|part| atomic::private_dir(&path.join(part)));
        made.map_err(|source| RunsError::Io { path, source })
    }

    /// Bounds the log: bytes as they are written, not as the run printed them.
    pub fn bound_log(&mut self, max_bytes: u64) {
        self.max_log_bytes = max_bytes;
    }

    /// Adds a line to the log. When it would become larger than it may be, a line that says so takes its place, and nothing but
    /// the result follows.
    pub fn append(&mut self, line: &LogLine) -> Result<Appended, RunsError> {
        let text = self.encode(line)?;
        let ends = matches!(line.event, Event::Result(_));
        if ends || (!self.truncated && self.logged.saturating_add(text.len() as u64) <= self.max_log_bytes) {
            self.write(&text)?;
            return Ok(Appended::Written);
        }
        if !self.truncated {
            self.truncated = true;
            let message = format!("the log ends here: it may have {} bytes", self.max_log_bytes);
            let event = Event::Notice { message: message.into() };
            let text = self.encode(&LogLine { at_ms: line.at_ms, event })?;
            self.write(&text)?;
        }
        Ok(Appended::Truncated)
    }

    /// The same at the end of the run. A line that the disk does not take is held back until the result is written.
    pub fn append_or_hold_back(&mut self, line: &LogLine) {
        if !self.held_back.is_empty() || self.append(line).is_err() {
            self.held_back.push(line.clone());
        }
    }

    fn encode(&self, line: &LogLine) -> Result<Vec<u8>, RunsError> {
        let path = || self.directory.join("log.jsonl");
        let mut text =
            serde_json::to_vec(line).map_err(|source| RunsError::Damaged { path: path(), source })?;
        text.push(b'\n');
        Ok(text)
    }

    /// Writes a line whole, or not at all.
    fn write(&mut self, text: &[u8]) -> Result<(), RunsError> {
        if let Err(source) = self.log.write_all(text) {
            // A line that follows half a line could not be read either.
            let _ = self.log.set_len(self.logged);
            return Err(RunsError::Io { path: self.directory.join("log.jsonl"), source });
        }
        self.logged += text.len() as u64;
        Ok(())
    }

    /// Ends the run: when this returns, its result and the lines that were held back are written, its temporary files are gone. If
    /// that fails, the run has no result, and this can be tried again.
    pub fn end(&mut self, result: &RunResult, at_ms: u64) -> Result<(), RunsError> {
        // A power failure right now makes it a run that was lost, which it says; waiting for the disk is not worth it.
        let path = self.directory.join("result.json");
        let written = self.write_held_back().and_then(|()| {
            atomic::create(&path, &json(&path, result)?)?;
            self.append(&LogLine { at_ms, event: Event::Result(result.clone()) })
        });
        if let Err(error) = written {
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        self.remove_tmp();
        Ok(())
    }

    fn write_held_back(&mut self) -> Result<(), RunsError> {
        while let Some(line) = self.held_back.first().cloned() {
            self.append(&line)?;
            self.held_back.remove(0);
        }
        Ok(())
    }

    /// Removes the temporary files of the run. Left-over ones are a nuisance, not a loss.
    pub fn remove_tmp(&self) {
        let tmp = self.directory.join("tmp");
        if tmp.exists() {
            let _ = remove_directory(&tmp);
        }
    }
}

/// Fewest directories in a directory, as its metadata tells: listing them takes longer than all else that a short run removes.
/// Most file systems count a link for each of them; for others it is the size of the directory, which holds their names.
fn entries_at_least(data: &fs::Metadata) -> u64 {
    match data.nlink() {
        0..=2 => data.len() / LONGEST_ENTRY_BYTES,
        links => links - 2,
    }
}

fn is_run(name: &str) -> bool {
    name.parse::<RunId>().is_ok()
}

/// Removes a directory that a run has filled.
fn remove_directory(path: &Path) -> Result<(), RunsError> {
    let io = |source| RunsError::Io { path: path.to_owned(), source };
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io(io::ErrorKind::InvalidInput.into()));
    };
    // The path to the state directory may be a link; no run writes in it.
    let parent = fs::canonicalize(parent).map_err(io)?;
    let parent = Directory::open(&parent).map_err(|error| io(io::Error::other(error)))?;
    remove_tree(&parent, name).map_err(io)
}

fn json(path: &Path, document: &impl Serialize) -> Result<Vec<u8>, RunsError> {
    serde_json::to_vec_pretty(document).map_err(|source| RunsError::Damaged { path: path.to_owned(), source })
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, RunsError> {
    let text = fs::read(path).map_err(|source| RunsError::Io { path: path.to_owned(), source })?;
    serde_json::from_slice(&text).map_err(|source| RunsError::Damaged { path: path.to_owned(), source })
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the files are the test's own")]
mod tests {
    use std::fs;

    use std::time::Duration;

    use super::Runs;

    #[test]
    fn what_is_discarded_is_removed_when_there_is_enough_of_it() {
        let state = tempfile::tempdir().unwrap();
        let runs = Runs::new(state.path());
        let run = "20260101-000000-aaaaaaa".parse().unwrap();
        fs::create_dir_all(runs.git(&run).join("private/objects")).unwrap();
        fs::write(runs.git(&run).join("private/HEAD"), "x").unwrap();
        assert_eq!(runs.git_pending(), std::slice::from_ref(&run));
        runs.discard_git(&run).unwrap();
        assert_eq!(runs.git_pending(), []);
        assert!(runs.discard_git(&run).is_err(), "it is gone");
        let discarded = state.path().join("discarded");
        for name in ["20260101-000000-bbbbbbb.stub-3", "kept.stub-1"] {
            fs::create_dir(discarded.join(name)).unwrap();
        }
        fs::write(discarded.join("kept.stub-1/file"), "of somebody").unwrap();
        runs.remove_discarded(3, Duration::from_secs(60));
        assert_eq!(fs::read_dir(&discarded).unwrap().count(), 3);
        runs.remove_discarded(2, Duration::ZERO);
        assert_eq!(fs::read_dir(&discarded).unwrap().count(), 3, "no time, no removal");
        runs.remove_discarded(2, Duration::from_secs(60));
        let left: Vec<_> =
            fs::read_dir(&discarded).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["kept.stub-1"], "a directory that is not empty and no run's stays");
    }
}
