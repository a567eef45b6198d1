//! `ringfence process`: the dispatcher and the residents.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::ExitCode;

use ringfence_core::text::PlainText;
use ringfence_engine::queue::ProcessName;
use ringfence_server::desk::Desk;
use ringfence_store::{FileWatcher, ProcessRow};

use crate::desk::{process_log_file, told};
use crate::installation::Installation;
use crate::render::ago;
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

/// So many lines of a log that is on another machine.
const LINES: usize = 1000;

pub(crate) fn process(verb: &Verb, installation: &Installation) -> anyhow::Result<ExitCode> {
    let desk = &*installation.desk()?;
    match verb {
        Verb::List { json } => list(desk, *json)?,
        Verb::Start { name } => start(desk, *name)?,
        Verb::Stop { name } => stop(desk, *name)?,
        Verb::Restart { name } => {
            stop(desk, *name)?;
            start(desk, *name)?;
        }
        Verb::StopAll => {
            let stopped = desk.stop_all().map_err(told)?.stopped;
            terminal::line(format!("Stopped {} process(es)", stopped.len()));
        }
        Verb::Logs { follow: true, .. } if installation.is_remote() => {
            installation.here("process logs --follow")?;
        }
        Verb::Logs { name, .. } if installation.is_remote() => {
            terminal::line(desk.process_log(name, LINES).map_err(told)?);
        }
        Verb::Logs { name, follow } => logs(installation, name, *follow)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn list(desk: &dyn Desk, json: bool) -> anyhow::Result<()> {
    let rows = desk.processes().map_err(told)?;
    if json {
        return terminal::json(&rows);
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

fn start(desk: &dyn Desk, name: ProcessName) -> anyhow::Result<()> {
    let answer = desk.start_process(&name.to_string()).map_err(told)?;
    terminal::line(match answer.skipped {
        Some(why) => format!("{name} {why}"),
        None if answer.already_running => format!("{name} runs already"),
        None => format!("{name} runs"),
    });
    Ok(())
}

fn stop(desk: &dyn Desk, name: ProcessName) -> anyhow::Result<()> {
    desk.stop_process(&name.to_string()).map_err(told)?;
    terminal::line(format!("{name} is stopped"));
    Ok(())
}

/// A longer line of a log is printed in pieces.
const MAX_LINE_BYTES: u64 = 64 << 10;

fn logs(installation: &Installation, name: &str, follow: bool) -> anyhow::Result<()> {
    let path = process_log_file(installation, name).map_err(told)?;
    let mut file = BufReader::new(fs::File::open(&path)?);
    loop {
        let written = FileWatcher::file(&path)?;
        // From where the last look ended, line by line: the log may be large.
        let mut line = Vec::new();
        while file.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)? > 0 {
            let text = PlainText::from_bytes(&line);
            terminal::try_line(text.trim_end_matches('\n'))?;
            line.clear();
        }
        if !follow {
            return Ok(());
        }
        written.wait(None)?;
    }
}
