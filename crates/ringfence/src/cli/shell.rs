//! `ringfence shell`: look around where agents run.

use std::path::Path;
use std::process::ExitCode;

use anyhow::anyhow;
use ringfence_engine::Work;

use super::job::{Asked, Face, at_terminal};
use super::options::Options;
use crate::installation::Installation;
use crate::report::advise;
use crate::terminal;
use crate::workspace::Workspace;

/// Open a shell where an agent would run, under the same policy and record.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) options: Options,
}

/// The shell of every system.
const PLAIN: &str = "/bin/sh";

pub(crate) fn shell(args: &Args, installation: &Installation) -> anyhow::Result<ExitCode> {
    let options = &args.options;
    if !at_terminal() || options.json {
        return Err(advise(
            anyhow!("a shell needs a terminal to talk at"),
            "use `ringfence exec -- sh -c '…'` for scripts",
        ));
    }
    let workspace = Workspace::of(installation, options, None)?;
    let layers = installation.layers_for(workspace.path.as_path())?;
    let settings = layers.resolve()?;
    let (agent, workspace) = (None, Some(workspace));
    let asked = Asked {
        installation,
        layers: &layers,
        settings: &settings,
        options,
        agent,
        name: "shell",
        workspace,
    };
    let mode = asked.mode();
    let (_, policy) = asked.policy(mode)?;
    terminal::about(format!(
        "ringfence: a shell in mode {mode}, policy {policy}; `exit` or Ctrl-D leaves it"
    ));
    let result = asked.perform(Work::Program(vec![chosen(installation)]), &Face::Conversation)?;
    Ok(ExitCode::from(result.exit_code))
}

/// The person's shell if it belongs to the system, which every mode shows.
fn chosen(installation: &Installation) -> String {
    let own = installation.env.get("SHELL").filter(|shell| {
        ["/bin/", "/usr/bin/"].iter().any(|place| shell.starts_with(place)) && Path::new(shell).exists()
    });
    own.map_or(PLAIN, String::as_str).to_owned()
}
