//! `ringfence serve`, `start`, `stop`, `restart`, `status`: the daemon.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use ringfence_core::mode::ExecutionEnvironment;
use ringfence_engine::queue::ProcessLocks;
use ringfence_store::{Tasks, atomic};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::json;

use super::{process, task};
use crate::installation::Installation;
use crate::queue::{Office, Serving, log_directory, serve as run_daemon};
use crate::report::{advise, unstored};
use crate::terminal;

/// Run the daemon here, in front of you.
#[derive(clap::Args)]
pub(crate) struct ServeArgs {
    /// Print a unit for systemd and do nothing else
    #[arg(long)]
    print_unit: bool,
    /// Apart from who started it
    #[arg(long, hide = true)]
    background: bool,
}

/// Stop the daemon.
#[derive(clap::Args)]
pub(crate) struct StopArgs {
    /// Let running tasks end first, and take no more; else they go back into the queue
    #[arg(long)]
    drain: bool,
}

/// Show the daemon, its processes and the queue.
#[derive(clap::Args)]
pub(crate) struct StatusArgs {
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Whether a daemon runs.
pub(crate) fn is_running(installation: &Installation) -> bool {
    pid(installation).is_some()
}

fn pid(installation: &Installation) -> Option<Pid> {
    ProcessLocks::new(&installation.state).holder(ProcessLocks::DAEMON)
}

pub(crate) fn serve(args: &ServeArgs, installation: &Installation) -> anyhow::Result<ExitCode> {
    if args.print_unit {
        terminal::line(unit(installation));
        return Ok(ExitCode::SUCCESS);
    }
    let serving = if args.background { Serving::Background } else { Serving::Foreground };
    if serving == Serving::Background {
        // A terminal that closes is no reason to end.
        let _ = rustix::process::setsid();
    }
    run_daemon(installation, serving, || {
        if serving == Serving::Background {
            terminal::line(READY);
        } else {
            terminal::about("The daemon runs. Ctrl-C ends it and puts running tasks back into the queue.");
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// What a daemon in the background says when it does its work.
const READY: &str = "ready";

/// How long a daemon may take to be ready, and to end.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn start(installation: &Installation) -> anyhow::Result<ExitCode> {
    if let Some(pid) = pid(installation) {
        terminal::line(format!("The daemon runs already (process {pid})."));
        return Ok(ExitCode::SUCCESS);
    }
    let logs = log_directory(&installation.state);
    atomic::private_dir(&logs).with_context(|| format!("{} cannot be made", logs.display()))?;
    let complaints = logs.join("daemon.err");
    let errors = OpenOptions::new().write(true).create(true).truncate(true).open(&complaints);
    let errors = errors.with_context(|| format!("{} cannot be written", complaints.display()))?;
    let mut child = Command::new(&installation.program)
        .args(["serve", "--background"])
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(errors)
        .spawn()
        .context("the daemon cannot be started")?;
    let mut said = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut said)?;
    }
    if said.trim() != READY {
        let why = fs::read_to_string(&complaints).unwrap_or_default();
        let why = why.trim().trim_start_matches("error: ").to_owned();
        bail!(
            "the daemon did not start: {}",
            if why.is_empty() { "it said nothing".to_owned() } else { why }
        );
    }
    terminal::line(format!("The daemon runs (process {}).", child.id()));
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn stop(args: &StopArgs, installation: &Installation) -> anyhow::Result<ExitCode> {
    let Some(pid) = pid(installation) else {
        terminal::line("The daemon does not run.");
        return Ok(ExitCode::SUCCESS);
    };
    let process = pidfd_open(pid, PidfdFlags::empty()).context("the daemon cannot be reached")?;
    if is_running(installation) {
        let signal = if args.drain { Signal::USR1 } else { Signal::TERM };
        pidfd_send_signal(&process, signal).context("the daemon cannot be told")?;
    }
    let begun = Instant::now();
    let (_kept, never) = std::sync::mpsc::channel::<()>();
    while is_running(installation) {
        if !args.drain && begun.elapsed() > PATIENCE {
            return Err(advise(
                anyhow!("the daemon does not end"),
                format!("end it by hand: `kill -9 {pid}`"),
            ));
        }
        let _ = never.recv_timeout(Duration::from_millis(20));
    }
    terminal::line("The daemon is stopped.");
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn restart(args: &StopArgs, installation: &Installation) -> anyhow::Result<ExitCode> {
    if is_running(installation) {
        stop(args, installation)?;
    }
    start(installation)
}

pub(crate) fn status(args: &StatusArgs, installation: &Installation) -> anyhow::Result<ExitCode> {
    let pid = pid(installation);
    let store = installation.store()?;
    let counts = store.counts().map_err(unstored)?;
    let processes = process::rows(installation)?;
    let settings = Office { installation, logs_to_files: false }.resolved()?;
    let environment = ExecutionEnvironment::of(settings.sandbox.mode);
    let code = if pid.is_some() { ExitCode::SUCCESS } else { ExitCode::from(3) };
    if args.json {
        terminal::json(&json!({
            "daemon": { "running": pid.is_some(), "pid": pid.map(|pid| pid.as_raw_nonzero().get()) },
            "execution_environment": environment,
            "mode": settings.sandbox.mode,
            "tasks": counts,
            "processes": processes,
        }))?;
        return Ok(code);
    }
    match pid {
        Some(pid) => terminal::line(format!("daemon: runs (process {pid})")),
        None => terminal::line("daemon: does not run (`ringfence start`)"),
    }
    terminal::line(format!("environment: {} (mode {})", environment.as_str(), settings.sandbox.mode));
    terminal::line(format!("tasks: {}", task::summary(&counts)));
    if !processes.is_empty() {
        terminal::line("");
        terminal::table(&process::table(&processes));
    }
    Ok(code)
}

/// A unit for systemd.
fn unit(installation: &Installation) -> String {
    format!(
        "[Unit]\nDescription=ringfence: runs coding agents in isolation\nAfter=network.target\n\n\
         [Service]\nType=exec\nExecStart={program} serve\nEnvironment=RINGFENCE_HOME={state}\n\
         KillMode=mixed\nKillSignal=SIGTERM\nTimeoutStopSec=90\nRestart=on-failure\nRestartSec=2\n\n\
         [Install]\nWantedBy=default.target",
        program = installation.program.display(),
        state = installation.state.display(),
    )
}
