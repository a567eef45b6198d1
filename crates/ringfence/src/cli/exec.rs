//! `ringfence exec`: any command, under the same policy and record.

use std::process::ExitCode;

use ringfence_engine::Work;

use super::job::{Asked, Face, workspace_path};
use super::options::Options;
use crate::installation::Installation;

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
    let options = &args.options;
    let workspace = workspace_path(installation, options, None)?;
    let layers = installation.layers_for(workspace.as_path())?;
    let settings = layers.resolve()?;
    let asked =
        Asked { installation, layers: &layers, settings: &settings, options, agent: None, name: "exec" };
    let result = asked.perform(Work::Program(args.command), &Face::Through)?;
    Ok(ExitCode::from(result.exit_code))
}
