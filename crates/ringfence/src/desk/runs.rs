//! Runs, as they are asked for.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ringfence_core::event::Usage;
use ringfence_core::ids::RunId;
use ringfence_egress::{Entry as AuditEntry, read_entries};
use ringfence_server::desk::{Answer, Refusal, RefusalKind, RunRow, RunView, Tell, Used, UsedBy};
use ringfence_store::runs::{LogLine, Progress, Runs, RunsError};
use ringfence_store::sqlite::Sqlite;
use ringfence_store::{FileWatcher, Tasks};
use rustix::event::{PollFd, PollFlags, poll};

use super::internal;
use crate::installation::Installation;

fn unknown(error: RunsError) -> Refusal {
    let kind = match &error {
        RunsError::Unknown(_) => RefusalKind::NotFound,
        RunsError::Ambiguous(..) => RefusalKind::Conflict,
        // What is damaged is not what was asked for.
        RunsError::Damaged { .. } => RefusalKind::Conflict,
        RunsError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            RefusalKind::NotFound
        }
        RunsError::Io { .. } | RunsError::Write(_) => RefusalKind::Internal,
    };
    Refusal { kind, ..super::refused(&error.into()) }
}

/// Runs, the newest first.
pub(super) fn list(runs: &Runs, before: Option<&RunId>, limit: usize) -> Answer<Vec<RunRow>> {
    let ids = runs.list().map_err(internal)?.into_iter();
    let older = ids.filter(|id| before.is_none_or(|before| id < before));
    Ok(older.take(limit).map(|id| row(runs, id)).collect())
}

/// A run whose files are damaged is still listed: hiding it would be worse.
fn row(runs: &Runs, id: RunId) -> RunRow {
    let record = runs.record(&id).ok();
    let progress = runs.progress(&id);
    let (duration_ms, failure) = match &progress {
        Ok(Progress::Ended(result)) => {
            (Some(result.duration_ms), result.failure.as_ref().map(|failure| failure.class.to_string()))
        }
        _ => (None, None),
    };
    RunRow {
        status: progress.as_ref().map_or("damaged", Progress::name).to_owned(),
        agent: record.as_ref().map(|record| record.agent.clone()),
        mode: record.as_ref().map(|record| record.mode.to_string()),
        duration_ms,
        failure,
        run: id,
    }
}

/// One run.
pub(super) fn view(installation: &Installation, text: &str) -> Answer<RunView> {
    let runs = installation.runs();
    let id = runs.find(text).map_err(unknown)?;
    let record = runs.record(&id).map_err(unknown)?;
    let progress = runs.progress(&id).map_err(unknown)?;
    let status = progress.name().to_owned();
    let result = match progress {
        Progress::Ended(result) => Some(*result),
        Progress::Running | Progress::Lost => None,
    };
    let task = queue(installation).and_then(|store| store.task_of(&id).ok().flatten());
    Ok(RunView { status, record, result, task })
}

/// The queue, if there is one. A run needs none, and one that cannot be read hides no run.
fn queue(installation: &Installation) -> Option<Arc<Sqlite>> {
    Sqlite::file(&installation.state).exists().then(|| installation.store().ok()).flatten()
}

/// What it reached.
pub(super) fn net(runs: &Runs, id: &RunId) -> Answer<Vec<AuditEntry>> {
    let path = runs.network(id);
    read_entries(&path).map_err(|error| {
        Refusal::new(RefusalKind::Conflict, format!("{} cannot be read: {error}", path.display()))
    })
}

/// Whether nothing more will be written to the log of a run.
pub(super) fn is_over(installation: &Installation, run: &RunId) -> bool {
    let attempt = queue(installation).and_then(|store| {
        let task = store.task_of(run).ok()??;
        store.runs_of_task(&task).ok()?.into_iter().find(|attempt| attempt.run == *run)
    });
    // One that was just claimed has written nothing yet; one that was just cancelled still writes.
    let claimed = attempt.is_some_and(|attempt| attempt.ended_ms.is_none());
    !claimed && !matches!(installation.runs().progress(run), Ok(Progress::Running))
}

/// The log, line by line.
pub(super) fn log(
    installation: &Installation,
    run: &RunId,
    follow: bool,
    tell: &mut Tell<'_>,
) -> anyhow::Result<()> {
    let mut tail = Tail { file: installation.runs().log_file(run), place: 0 };
    if !follow {
        tail.read_on(tell)?;
        return Ok(());
    }
    let changes = installation.store()?.notifier().listen()?;
    loop {
        let over = is_over(installation, run);
        let written = FileWatcher::file(&tail.file);
        if !tail.read_on(tell)? || over {
            return Ok(());
        }
        match written {
            Ok(written) => wait_for_either(&written, &changes)?,
            // It has not begun yet.
            Err(_) => changes.wait(Some(Duration::from_millis(100)))?,
        }
    }
}

/// Waits for whichever comes first.
fn wait_for_either(one: &FileWatcher, other: &FileWatcher) -> anyhow::Result<()> {
    let mut fds = [PollFd::new(one, PollFlags::IN), PollFd::new(other, PollFlags::IN)];
    match poll(&mut fds, None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    other.clear();
    Ok(())
}

/// A longer line of a log is not read: texts of events are shorter.
const MAX_LOG_LINE_BYTES: u64 = 32 << 20;

/// A log that is read as it grows.
struct Tail {
    file: PathBuf,
    place: u64,
}

impl Tail {
    /// Tells the whole lines that have come since the last time, one after another: a log may be larger than the memory. Whether
    /// more are wanted.
    fn read_on(&mut self, tell: &mut Tell<'_>) -> anyhow::Result<bool> {
        let Ok(mut file) = std::fs::File::open(&self.file) else { return Ok(true) };
        file.seek(SeekFrom::Start(self.place))?;
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        while reader.by_ref().take(MAX_LOG_LINE_BYTES).read_until(b'\n', &mut line)? > 0 {
            // The rest is still to come, unless it is longer than any line.
            if !line.ends_with(b"\n") && (line.len() as u64) < MAX_LOG_LINE_BYTES {
                break;
            }
            self.place += line.len() as u64;
            if let Some(line) = log_line(&line)
                && !tell(line)
            {
                return Ok(false);
            }
            line.clear();
        }
        Ok(true)
    }
}

/// A line of a log. One with too many values, which an agent CLI may have printed, is left out.
fn log_line(line: &[u8]) -> Option<LogLine> {
    serde_json::from_value(ringfence_core::json::parse(line).ok()?).ok()
}

/// What runs have used, summed.
pub(super) fn usage(installation: &Installation, by: UsedBy) -> Answer<Vec<Used>> {
    let mut sums: BTreeMap<String, Usage> = BTreeMap::new();
    let runs = installation.runs();
    // Only who asks for tasks needs the queue.
    let tasks = match by {
        UsedBy::Task => installation.store().map_err(internal)?.tasks_of_runs()?,
        _ => BTreeMap::new(),
    };
    for id in runs.list().map_err(internal)? {
        // A run that is damaged or goes on has no sum yet.
        let (Ok(record), Ok(Progress::Ended(result))) = (runs.record(&id), runs.progress(&id)) else {
            continue;
        };
        // What was seen on the wire is worth more than what a CLI tells.
        let told = BTreeMap::from([(record.cli.as_str().into(), result.usage)]);
        let used = if result.metered.is_empty() { told } else { result.metered.clone() };
        for (model, usage) in used.into_iter().filter(|(_, usage)| *usage != Usage::default()) {
            let key = match by {
                UsedBy::Agent => record.agent.clone(),
                UsedBy::Model => model.into(),
                UsedBy::Run => id.to_string(),
                UsedBy::Task => tasks.get(&id).map_or_else(|| "none".to_owned(), ToString::to_string),
                UsedBy::Day => record.started_at.chars().take(10).collect(),
            };
            let sum = sums.entry(key).or_default();
            *sum = sum.plus(usage.bounded());
        }
    }
    Ok(sums.into_iter().map(|(key, usage)| Used { key, usage }).collect())
}
