//! `ringfence exec`: any command, under the same policy and record.

use std::process::ExitCode;

use ringfence_core::event::RunResult;
use ringfence_engine::Work;

use super::job::{Asked, Face};
use super::options::Options;
use crate::installation::Installation;
use crate::workspace::Workspace;

/// Run any command under the same policy, limits and record.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) options: Options,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<String>,
}

pub(crate) fn exec(args: Args, installation: &Installation) -> anyhow::Result<ExitCode> {
    Ok(ExitCode::from(perform(&args.options, args.command, installation)?.exit_code))
}

/// Runs a command to its end.
pub(super) fn perform(
    options: &Options,
    command: Vec<String>,
    installation: &Installation,
) -> anyhow::Result<RunResult> {
    let workspace = Workspace::of(installation, options, None)?;
    let layers = installation.layers_for(workspace.path.as_path())?;
    let settings = layers.resolve()?;
    let (agent, workspace) = (None, Some(workspace));
    let asked =
        Asked { installation, layers: &layers, settings: &settings, options, agent, name: "exec", workspace };
    asked.perform(Work::Program(command), &Face::Through)
}
