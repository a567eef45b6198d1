//! `ringfence demo`: the built-in agent, with bait laid out for it.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use ringfence_agents::demo::{BAIT_FILE, BAIT_PORT, BAIT_SECRET, Demo};
use ringfence_core::capability::Promise;
use ringfence_core::config::WorkspaceKind;
use ringfence_core::event::RunResult;
use ringfence_core::mode::Mode;
use ringfence_engine::Work;
use ringfence_store::atomic;

use super::job::{Asked, Face, backend};
use super::options::{Options, mode_parser};
use super::{layer, runs};
use crate::installation::Installation;
use crate::terminal;

/// Watch a built-in agent work and try three forbidden things.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to run; the strongest mode that works if not given
    #[arg(long, value_parser = mode_parser())]
    mode: Option<Mode>,
    /// Print one event a line as JSON, and the result last
    #[arg(long)]
    json: bool,
}

pub(crate) fn demo(args: &Args, installation: &Installation) -> anyhow::Result<ExitCode> {
    let layers = installation.layers()?;
    let settings = layers.resolve()?;
    let bait = installation.state.join("demo").join("secret.txt");
    atomic::private_dir(&installation.state.join("demo")).context("the bait cannot be laid out")?;
    atomic::write(&bait, b"this is bait\n")?;
    let service = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("the bait cannot be laid out")?;
    service.set_nonblocking(true)?;
    let port = service.local_addr()?.port();
    let workspace = tempfile::Builder::new().prefix("ringfence-demo-").tempdir()?.keep();

    let mode = args.mode.unwrap_or_else(strongest);
    let can = backend(mode, &installation.surroundings(), &settings)?.capabilities();
    let apart = can.mechanism(Promise::WorkspaceUntouched).is_some();
    let options = Options {
        mode: Some(mode),
        workspace: apart.then_some(WorkspaceKind::Overlay),
        cwd: Some(workspace.clone()),
        json: args.json,
        ..Options::default()
    };
    let mut around = installation.clone();
    around.env.insert(BAIT_FILE.into(), bait.display().to_string());
    around.env.insert(BAIT_PORT.into(), port.to_string());
    around.env.insert(BAIT_SECRET.into(), "this is bait".into());
    let asked = Asked {
        installation: &around,
        layers: &layers,
        settings: &settings,
        options: &options,
        agent: None,
        name: "demo",
        workspace: None,
    };
    let own_program = installation.program.display().to_string();
    let work = Work::Agent {
        cli: &Demo,
        prompt: "",
        model: None,
        base_url: None,
        session: None,
        command: None,
        own_program: &own_program,
    };
    let result = asked.perform(work, &Face::Human)?;
    if !args.json {
        // What the agent tells of its attempts is its own word; this is seen from outside of the run.
        terminal::line(match service.accept() {
            Ok(_) => "\nSeen from the host: the service was reached.",
            Err(_) => "\nSeen from the host: nothing has reached the service.",
        });
        show_work(&result, apart, &workspace, installation)?;
    }
    Ok(ExitCode::from(result.exit_code))
}

/// What it has changed, and what was promised meanwhile.
fn show_work(
    result: &RunResult,
    apart: bool,
    workspace: &Path,
    installation: &Installation,
) -> anyhow::Result<()> {
    if apart {
        terminal::line("\nWhat it wrote went to a layer over its workspace:\n");
        layer::show_changes(&result.run, installation)?;
    } else {
        terminal::line(format!("\nThe agent's work is in {}.", workspace.display()));
    }
    terminal::line("");
    runs::show_promises(&installation.runs().record(&result.run)?);
    terminal::line("\nMore of it:");
    if apart {
        terminal::line(
            "  ringfence apply last             put the work into the workspace (or `discard` it)",
        );
    }
    terminal::line("  ringfence runs show last --log   all that was asked, in force, and happened");
    terminal::line("  ringfence probe                  try to break each of the promises yourself");
    Ok(())
}

/// The first mode with a boundary that this version can run, or the one without.
fn strongest() -> Mode {
    let usable =
        || ringfence_backends::ALL.iter().filter(|entry| entry.backend.is_some()).map(|entry| entry.mode);
    usable().find(|mode| mode.isolates()).or_else(|| usable().next()).unwrap_or(Mode::ALL[0])
}
