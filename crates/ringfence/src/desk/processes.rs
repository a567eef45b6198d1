//! The daemon and its processes, as they are asked for.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ringfence_core::mode::ExecutionEnvironment;
use ringfence_engine::queue::{
    ProcessCommand, ProcessLocks, ProcessName, RESIDENT_SKIPPED, Startable, ask_start, ask_stop, pause,
};
use ringfence_server::desk::{Answer, ProcessAnswer, Refusal, RefusalKind, Status, StoppedAll};
use ringfence_store::sqlite::Sqlite;
use ringfence_store::{ProcessRow, ProcessStatus, Processes, Tasks};

use super::internal;
use crate::cli::daemon;
use crate::installation::Installation;
use crate::queue::{Office, log_directory, server_address};

/// How long a process may take to start or stop.
const PATIENCE: Duration = Duration::from_secs(40);
/// How long a process may take until it begins its log.
const BEGINNING: Duration = Duration::from_secs(3);
/// So much of a log is looked at.
const LONGEST_LOG: u64 = 1 << 20;

/// All processes, with whether they live. The first dispatcher is always one of them.
pub(super) fn rows(installation: &Installation) -> Answer<Vec<ProcessRow>> {
    let locks = ProcessLocks::new(&installation.state);
    let mut rows = installation.store().map_err(internal)?.processes()?;
    let first = ProcessName::FIRST_DISPATCHER.to_string();
    if !rows.iter().any(|row| row.name == first) {
        rows.insert(0, ProcessRow::idle(&first));
    }
    for row in &mut rows {
        row.pid = locks.holder(&row.name).map(|who| who.pid.as_raw_nonzero().get().unsigned_abs());
        row.status = match (row.pid, row.status) {
            // Whoever started it may not have noted so yet.
            (Some(_), _) => ProcessStatus::Running,
            (None, ProcessStatus::Running) => ProcessStatus::Failed,
            (None, status) => status,
        };
    }
    Ok(rows)
}

fn row(installation: &Installation, name: ProcessName) -> Answer<ProcessRow> {
    let name = name.to_string();
    let found = rows(installation)?.into_iter().find(|row| row.name == name);
    Ok(found.unwrap_or_else(|| ProcessRow::idle(&name)))
}

fn named(text: &str) -> Answer<ProcessName> {
    text.parse().map_err(|why| Refusal::new(RefusalKind::NotFound, format!("Process not found: {why}")))
}

/// Starts one, and waits until it runs.
pub(super) fn start(installation: &Installation, name: &str) -> Answer<ProcessAnswer> {
    let name = named(name)?;
    let office = Office { installation, logs_to_files: true };
    let store = installation.store().map_err(internal)?;
    let locks = ProcessLocks::new(&installation.state);
    let environment = office.environment().map_err(|why| Refusal::new(RefusalKind::Conflict, why))?;
    if daemon(installation).is_none() {
        return Err(Refusal::new(RefusalKind::Conflict, "the daemon does not run")
            .with_remedy(Some("start it: `ringfence start`")));
    }
    let asked = ask_start(&*store, &locks, name, environment, &installation.clock())?;
    if asked == Startable::Asked {
        reach(&store, &locks, name, true)?;
    }
    Ok(ProcessAnswer {
        process: row(installation, name)?,
        already_running: asked == Startable::Running,
        skipped: (asked == Startable::Skipped).then(|| RESIDENT_SKIPPED.to_owned()),
    })
}

/// Stops one, and waits until it is gone.
pub(super) fn stop(installation: &Installation, name: &str) -> Answer<ProcessAnswer> {
    let name = named(name)?;
    let store = installation.store().map_err(internal)?;
    let locks = ProcessLocks::new(&installation.state);
    ask_stop(&*store, name, &installation.clock())?;
    if daemon(installation).is_some() {
        reach(&store, &locks, name, false)?;
    }
    Ok(ProcessAnswer { process: row(installation, name)?, already_running: false, skipped: None })
}

/// Stops all, and tells what came of it.
pub(super) fn stop_all(installation: &Installation) -> Answer<StoppedAll> {
    let (running, idle): (Vec<_>, Vec<_>) =
        rows(installation)?.into_iter().partition(|row| row.wanted || row.pid.is_some());
    let names = |rows: Vec<ProcessRow>| rows.into_iter().map(|row| row.name).collect::<Vec<_>>();
    let (stopped, skipped) = (names(running), names(idle));
    let store = installation.store().map_err(internal)?;
    let leases = store.leases()?;
    for name in &stopped {
        ask_stop(&*store, named(name)?, &installation.clock())?;
    }
    for name in &stopped {
        stop(installation, name)?;
    }
    let left = store.leases()?;
    let ended = leases.iter().filter(|lease| !left.iter().any(|other| other.run == lease.run)).count() as u64;
    Ok(StoppedAll { stopped, skipped, cancelled_runs: ended, requeued_tasks: ended })
}

/// Waits until a process runs, or does not, as was wished; or until somebody wishes otherwise.
fn reach(store: &Sqlite, locks: &ProcessLocks, name: ProcessName, runs: bool) -> Answer<()> {
    let text = name.to_string();
    let changes = store.notifier().listen().map_err(internal)?;
    let begun = Instant::now();
    while locks.holder(&text).is_some() != runs {
        let wanted = store.processes()?.iter().any(|row| row.name == text && row.wanted);
        if wanted != runs {
            let done = if runs { "stopped" } else { "started" };
            return Err(Refusal::new(
                RefusalKind::Conflict,
                format!("somebody else has {done} {name} meanwhile"),
            ));
        }
        if begun.elapsed() > PATIENCE {
            let not = if runs { "start" } else { "stop" };
            return Err(Refusal::new(RefusalKind::Unavailable, format!("{name} did not {not}"))
                .with_remedy(Some("`ringfence process logs daemon` may tell why")));
        }
        changes.wait(Some(Duration::from_millis(100))).map_err(internal)?;
    }
    Ok(())
}

/// The newest log of a process. One that is just being started has none yet, and is waited for.
pub(crate) fn log_file(installation: &Installation, name: &str) -> Answer<PathBuf> {
    let process = if name == ProcessLocks::DAEMON { None } else { Some(named(name)?) };
    let begun = Instant::now();
    loop {
        if let Some(file) = newest_log(installation, name) {
            return Ok(file);
        }
        let known = process.map(|process| row(installation, process)).transpose()?;
        let comes = known.is_some_and(|row| is_beginning(&row, installation.clock().now().ms))
            && daemon(installation).is_some();
        if !comes || begun.elapsed() > BEGINNING {
            return Err(Refusal::new(
                RefusalKind::NotFound,
                format!("{name} has no log; one in the foreground says everything there"),
            ));
        }
        pause(Duration::from_millis(20));
    }
}

/// Whether a process is meant to run and has only just been started, or not yet.
fn is_beginning(row: &ProcessRow, now_ms: u64) -> bool {
    let since = |started: u64| Duration::from_millis(now_ms.saturating_sub(started));
    row.wanted && row.started_ms.is_none_or(|started| since(started) < BEGINNING)
}

fn newest_log(installation: &Installation, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(log_directory(&installation.state)).into_iter().flatten().flatten();
    let files = entries.map(|entry| entry.path()).filter(|path| {
        let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
        file.starts_with(&format!("{name}.")) && file.ends_with(".log")
    });
    files.max()
}

/// The end of what a process has said.
pub(super) fn log(installation: &Installation, name: &str, lines: usize) -> Answer<String> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = fs::File::open(log_file(installation, name)?).map_err(internal)?;
    let length = file.metadata().map_err(internal)?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LONGEST_LOG))).map_err(internal)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(internal)?;
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    Ok(all[all.len().saturating_sub(lines)..].join("\n"))
}

/// The daemon, the queue and where tasks run.
pub(super) fn status(installation: &Installation) -> Answer<Status> {
    let daemon = daemon(installation).map(|daemon| daemon.pid.as_raw_nonzero().get().unsigned_abs());
    let tasks = installation.store().map_err(internal)?.counts()?;
    // A mistake in the settings does not keep anybody from seeing the rest.
    let settings = installation.settings();
    let mode = settings.as_ref().ok().map(|settings| settings.sandbox.mode);
    Ok(Status {
        daemon,
        address: daemon.and_then(|_| server_address(&installation.state)),
        execution_environment: mode.map(ExecutionEnvironment::of),
        mode,
        settings_error: settings.err().map(|error| format!("{error:#}")),
        tasks,
        processes: rows(installation)?,
    })
}
