//! `ringfence serve`, `start`, `stop`, `restart`, `status`: the daemon.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, IsTerminal};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use ringfence_engine::queue::{Identity, ProcessLocks, pause};
use ringfence_server::{OwnerToken, ServerError};
use ringfence_store::atomic;
use rustix::process::{Signal, pidfd_send_signal};
use serde_json::json;

use super::open::{LoginAddress, login_address, usual_bearer};
use super::{process, task};
use crate::desk::told;
use crate::installation::Installation;
use crate::queue::{Serving, insecurity, log_directory, serve as run_daemon, server_address, socket};
use crate::report::advise;
use crate::terminal;

/// Run the daemon here, in front of you.
#[derive(clap::Args)]
pub(crate) struct ServeArgs {
    /// Where to answer: an address with a port, or `none`; otherwise `server.listen` of the settings
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
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
    daemon(installation).is_some()
}

pub(crate) fn daemon(installation: &Installation) -> Option<Identity> {
    ProcessLocks::new(&installation.state).holder(ProcessLocks::DAEMON)
}

pub(crate) fn serve(args: &ServeArgs, installation: &Installation) -> anyhow::Result<ExitCode> {
    if args.print_unit {
        terminal::line(unit(installation));
        return Ok(ExitCode::SUCCESS);
    }
    let serving = if args.background { Serving::Background } else { Serving::Foreground };
    if serving == Serving::Background {
        let _ = rustix::thread::set_name(crate::PROCESS_NAME);
        // A terminal that closes is no reason to end.
        let _ = rustix::process::setsid();
    }
    run_daemon(installation, serving, args.listen.as_deref(), |address| {
        if serving == Serving::Background {
            terminal::line(READY);
            return;
        }
        terminal::about("The daemon runs. Ctrl-C ends it and puts running tasks back into the queue.");
        if let Some(address) = address {
            let address = address.to_string();
            let shown = dashboard(installation, &address, std::io::stderr().is_terminal());
            terminal::about(format!("Dashboard: {shown}"));
        } else if args.listen.is_none() {
            terminal::about(without_address(installation));
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// What a daemon in the background says when it does its work.
const READY: &str = "ready";

/// How long a daemon may take to be ready, and to end.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn start(installation: &Installation) -> anyhow::Result<ExitCode> {
    if told_running(installation) {
        return Ok(ExitCode::SUCCESS);
    }
    installation.refuse_visible_state()?;
    let logs = log_directory(&installation.state);
    atomic::private_dir(&logs).with_context(|| format!("{} cannot be made", logs.display()))?;
    let complaints = logs.join("daemon.err");
    let errors = OpenOptions::new().append(true).create(true).mode(0o600).open(&complaints);
    let errors = errors.with_context(|| format!("{} cannot be written", complaints.display()))?;
    let before = errors.metadata().map_or(0, |data| data.len());
    let mut child = installation
        .own_command()
        .args(["serve", "--background"])
        .current_dir("/")
        // The daemon no longer knows where the command was given, where `PATH` may lead into a workspace.
        .env("PATH", installation.programs(None).path())
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
        child.wait()?;
        // Somebody else was faster, which is as good.
        if told_running(installation) {
            return Ok(ExitCode::SUCCESS);
        }
        let why = fs::read(&complaints).unwrap_or_default();
        let why = why.get(usize::try_from(before).unwrap_or(0)..).unwrap_or_default();
        let why = String::from_utf8_lossy(why).trim().trim_start_matches("error: ").to_owned();
        bail!(
            "the daemon did not start: {}",
            if why.is_empty() { "it said nothing; is the disk full?".to_owned() } else { why }
        );
    }
    if let Some(warning) = insecurity(installation) {
        terminal::about(format!("warning: {warning}"));
    }
    terminal::line(format!("The daemon runs (process {}).", child.id()));
    match server_address(&installation.state) {
        Some(address) => {
            let shown = dashboard(installation, &address, std::io::stdout().is_terminal());
            terminal::line(format!("Dashboard: {shown}"));
        }
        None => {
            terminal::about(without_address(installation));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Why a daemon has no address, and what to do about it.
fn without_address(installation: &Installation) -> String {
    let settings = installation.layers().ok().and_then(|layers| layers.resolve().ok());
    let wanted = settings.and_then(|settings| settings.server.listen.parse::<SocketAddr>().ok());
    let is_taken = |address: &SocketAddr| {
        TcpListener::bind(address).is_err_and(|error| error.kind() == std::io::ErrorKind::AddrInUse)
    };
    match wanted.filter(is_taken) {
        Some(address) => {
            let taken = ServerError::Taken { address };
            let remedy = taken.remedy().unwrap_or_default();
            format!("There is no dashboard: {taken}. To have one, {remedy}, then `ringfence restart`.")
        }
        None => "It answers on its Unix socket alone: `ringfence process logs daemon` says why.".to_owned(),
    }
}

fn told_running(installation: &Installation) -> bool {
    let running = daemon(installation);
    if let Some(Identity { pid, .. }) = running {
        terminal::line(format!("The daemon runs already (process {pid})."));
    }
    running.is_some()
}

pub(crate) fn stop(args: &StopArgs, installation: &Installation) -> anyhow::Result<ExitCode> {
    let Some(daemon) = daemon(installation) else {
        terminal::line("The daemon does not run.");
        return Ok(ExitCode::SUCCESS);
    };
    if let Some(process) = daemon.open() {
        let signal = if args.drain { Signal::USR1 } else { Signal::TERM };
        pidfd_send_signal(&process, signal).context("the daemon cannot be told")?;
    }
    let begun = Instant::now();
    while is_running(installation) {
        if !args.drain && begun.elapsed() > PATIENCE {
            return Err(advise(
                anyhow!("the daemon does not end"),
                format!("end it by hand: `kill -9 {}`", daemon.pid),
            ));
        }
        pause(Duration::from_millis(20));
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
    let status = installation.desk()?.status().map_err(told)?;
    let code = if status.daemon.is_some() { ExitCode::SUCCESS } else { ExitCode::from(3) };
    if args.json {
        let login =
            status.address.as_ref().and_then(|address| usual_login_address(installation, address).ok());
        let here = !installation.is_remote();
        terminal::json(&json!({
            "daemon": {
                "running": status.daemon.is_some(),
                "pid": status.daemon,
                "address": status.address,
                "login_url": login.as_ref().map(|login| &login.url),
                "login_expires_in_seconds": login.as_ref().map(|login| login.expires_in_seconds),
                "socket": here.then(|| socket(&installation.state)),
                "token_file": here.then(|| OwnerToken::file(&installation.state)),
            },
            "execution_environment": status.execution_environment,
            "mode": status.mode,
            "settings_error": status.settings_error,
            "tasks": status.tasks,
            "processes": status.processes,
        }))?;
        return Ok(code);
    }
    match status.daemon {
        Some(pid) => terminal::line(format!("daemon: runs (process {pid})")),
        None => terminal::line("daemon: does not run (`ringfence start`)"),
    }
    if let Some(address) = &status.address {
        let shown = dashboard(installation, address, std::io::stdout().is_terminal());
        terminal::line(format!("dashboard: {shown}"));
    }
    if let (Some(environment), Some(mode)) = (status.execution_environment, status.mode) {
        terminal::line(format!("environment: {} (mode {mode})", environment.as_str()));
    }
    if let Some(error) = &status.settings_error {
        terminal::line(format!("settings: cannot be read, so nothing is taken: {error}"));
    }
    terminal::line(format!("tasks: {}", task::summary(&status.tasks)));
    if !status.processes.is_empty() {
        terminal::line("");
        terminal::table(&process::table(&status.processes));
    }
    Ok(code)
}

fn usual_login_address(installation: &Installation, address: &str) -> anyhow::Result<LoginAddress> {
    login_address(installation, address, usual_bearer(installation, address))
}

/// The address of the dashboard. At a terminal it logs in once, if the daemon issues such an address. Elsewhere it may be kept in a
/// log that others or runs can read, so it is the plain one.
fn dashboard(installation: &Installation, address: &str, at_terminal: bool) -> String {
    if !at_terminal {
        return format!("{}/ (`ringfence open`)", installation.browser_address(address));
    }
    match usual_login_address(installation, address) {
        Ok(login) => login.url,
        Err(_) => format!("{}/", installation.browser_address(address)),
    }
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
