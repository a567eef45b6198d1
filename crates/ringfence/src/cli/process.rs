//! `ringfence process`: the dispatcher and the residents.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use ringfence_engine::queue::{
    ProcessCommand, ProcessLocks, ProcessName, RESIDENT_SKIPPED, Startable, ask_start, ask_stop,
};
use ringfence_store::{Listener, ProcessRow, ProcessStatus, Processes};

use super::serve::is_running;
use crate::installation::Installation;
use crate::queue::{Office, log_directory};
use crate::render::ago;
use crate::report::{advise, unstored};
use crate::terminal;

/// The dispatcher and the residents.
#[derive(clap::Subcommand)]
pub(crate) enum Verb {
    /// List them
    List {
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Start one: dispatcher, worker-N, tester-N, docser-N
    Start {
        /// Such as worker-1
        name: ProcessName,
    },
    /// Stop one; the task that it does goes back into the queue
    Stop {
        /// Such as worker-1
        name: ProcessName,
    },
    /// Stop and start one
    Restart {
        /// Such as worker-1
        name: ProcessName,
    },
    /// Stop all; the tasks that they do go back into the queue
    StopAll,
    /// Show what one says
    Logs {
        /// Such as worker-1, or daemon
        name: String,
        /// Go on as it says more
        #[arg(short, long)]
        follow: bool,
    },
}

/// How long a process may take to start or stop.
const PATIENCE: Duration = Duration::from_secs(40);

pub(crate) fn process(verb: &Verb, installation: &Installation) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::List { json } => list(installation, *json)?,
        Verb::Start { name } => start(installation, *name)?,
        Verb::Stop { name } => stop(installation, *name)?,
        Verb::Restart { name } => {
            stop(installation, *name)?;
            start(installation, *name)?;
        }
        Verb::StopAll => stop_all(installation)?,
        Verb::Logs { name, follow } => logs(installation, name, *follow)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// All processes, with whether they live.
pub(crate) fn rows(installation: &Installation) -> anyhow::Result<Vec<ProcessRow>> {
    let locks = ProcessLocks::new(&installation.state);
    let mut rows = installation.store()?.processes().map_err(unstored)?;
    for row in &mut rows {
        row.pid = locks.holder(&row.name).map(|who| who.pid.as_raw_nonzero().get().unsigned_abs());
        if row.pid.is_none() && row.status == ProcessStatus::Running {
            row.status = ProcessStatus::Failed;
        }
    }
    Ok(rows)
}

fn list(installation: &Installation, json: bool) -> anyhow::Result<()> {
    let rows = rows(installation)?;
    if json {
        return terminal::json(&rows);
    }
    if rows.is_empty() {
        terminal::line(
            "No process was ever started: `ringfence start` starts the daemon and its dispatcher.",
        );
        return Ok(());
    }
    terminal::table(&table(&rows));
    Ok(())
}

pub(crate) fn table(rows: &[ProcessRow]) -> Vec<Vec<String>> {
    let mut table = vec![["PROCESS", "STATUS", "PID", "SINCE", ""].map(str::to_owned).to_vec()];
    table.extend(rows.iter().map(|row| {
        let since = if row.pid.is_some() { row.started_ms } else { row.finished_ms };
        let status = serde_json::to_value(row.status).ok().and_then(|word| word.as_str().map(str::to_owned));
        vec![
            row.name.clone(),
            status.unwrap_or_default(),
            row.pid.map(|pid| pid.to_string()).unwrap_or_default(),
            since.map(ago).unwrap_or_default(),
            row.message.clone().unwrap_or_default(),
        ]
    }));
    table
}

fn start(installation: &Installation, name: ProcessName) -> anyhow::Result<()> {
    let office = Office { installation, logs_to_files: true };
    let store = installation.store()?;
    let locks = ProcessLocks::new(&installation.state);
    let environment = office.environment().map_err(|why| anyhow!(why))?;
    if !is_running(installation) {
        return Err(advise(anyhow!("the daemon does not run"), "start it: `ringfence start`"));
    }
    let asked = ask_start(&*store, &locks, name, environment, &installation.clock()).map_err(unstored)?;
    match asked {
        Startable::Skipped => terminal::line(format!("{name} {RESIDENT_SKIPPED}")),
        Startable::Running => terminal::line(format!("{name} runs already")),
        Startable::Asked => {
            until(&store, || locks.holder(&name.to_string()).is_some()).with_context(|| {
                format!("{name} did not start; `ringfence process logs daemon` may tell why")
            })?;
            terminal::line(format!("{name} runs"));
        }
    }
    Ok(())
}

fn stop(installation: &Installation, name: ProcessName) -> anyhow::Result<()> {
    let store = installation.store()?;
    let locks = ProcessLocks::new(&installation.state);
    ask_stop(&*store, name, &installation.clock()).map_err(unstored)?;
    if is_running(installation) {
        until(&store, || locks.holder(&name.to_string()).is_none())
            .with_context(|| format!("{name} did not stop"))?;
    }
    terminal::line(format!("{name} is stopped"));
    Ok(())
}

fn stop_all(installation: &Installation) -> anyhow::Result<()> {
    let rows = rows(installation)?;
    let names = rows.iter().filter(|row| row.wanted || row.pid.is_some());
    let names: Vec<ProcessName> = names.filter_map(|row| row.name.parse().ok()).collect();
    let store = installation.store()?;
    for name in &names {
        ask_stop(&*store, *name, &installation.clock()).map_err(unstored)?;
    }
    for name in &names {
        stop(installation, *name)?;
    }
    terminal::line(format!("Stopped {} process(es)", names.len()));
    Ok(())
}

/// Waits for something that the daemon does.
fn until(store: &ringfence_store::sqlite::Sqlite, done: impl Fn() -> bool) -> anyhow::Result<()> {
    let bell = store.bell().listen()?;
    let begun = Instant::now();
    while !done() {
        if begun.elapsed() > PATIENCE {
            bail!("nothing happened for {} seconds", PATIENCE.as_secs());
        }
        bell.wait(Some(Duration::from_millis(100)))?;
    }
    Ok(())
}

fn logs(installation: &Installation, name: &str, follow: bool) -> anyhow::Result<()> {
    if name != ProcessLocks::DAEMON {
        name.parse::<ProcessName>()?;
    }
    let newest = || -> Option<PathBuf> {
        let entries = fs::read_dir(log_directory(&installation.state)).ok()?;
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        files.retain(|path| {
            let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
            file.starts_with(&format!("{name}.")) && file.ends_with(".log")
        });
        files.sort();
        files.pop()
    };
    let missing = || format!("{name} has no log; one in the foreground says everything there");
    let file = newest().with_context(missing)?;
    let mut shown = 0;
    loop {
        let written = Listener::file(&file)?;
        let text = fs::read(&file)?;
        terminal::raw(std::io::stdout().lock(), text.get(shown..).unwrap_or_default())?;
        shown = text.len();
        if !follow {
            return Ok(());
        }
        written.wait(None)?;
    }
}
