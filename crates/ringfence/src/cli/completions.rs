//! `ringfence completions`: for every shell that clap knows.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;
use ringfence_core::event::Stream;

/// Print completions for a shell.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

pub(crate) fn completions(args: &Args) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::Cli::command(), "ringfence", &mut script);
    // A reader who has left is not an error.
    let _ = crate::terminal::raw(Stream::Stdout, &script);
    Ok(ExitCode::SUCCESS)
}
