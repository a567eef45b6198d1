//! `ringfence exec`: any command, under the same policy and record.

use std::process::ExitCode;

use ringfence_engine::Work;

use super::job::{Asked, Face};
use super::options::Options;
use crate::installation::Installation;

/// Run any command under the same policy, limits and record.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) options: Options,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<String>,
}

pub(crate) fn exec(args: Args, installation: &Installation) -> anyhow::Result<ExitCode> {
    let settings = installation.layers()?.resolve()?;
    let asked =
        Asked { installation, settings: &settings, options: &args.options, agent: None, name: "exec" };
    asked.perform(Work::Program(args.command), &Face::Through)
}
