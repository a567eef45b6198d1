//! `ringfence auth`: whether agent CLIs have a login where they run.

use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser, ValueParser};
use ringfence_core::mode::ExecutionEnvironment;
use ringfence_server::desk::LoginCheck;

use crate::desk::told;
use crate::installation::Installation;
use crate::progress::Progress;
use crate::{login, terminal};

/// Whether agent CLIs have a login where they run.
#[derive(clap::Subcommand)]
pub(crate) enum Verb {
    /// Look for logins; fails if one is missing
    Check {
        /// Whose; of all if none is named
        #[arg(value_parser = ["claude", "codex", "opencode"])]
        cli: Option<String>,
        /// Where: on the host, or in the mode that gives each task a sandbox; the current one if not said
        #[arg(long, value_parser = environment_parser())]
        environment: Option<ExecutionEnvironment>,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
}

fn environment_parser() -> ValueParser {
    let parse = |name: String| match name.as_str() {
        "host" => Ok::<_, String>(ExecutionEnvironment::Host),
        _ => Ok(ExecutionEnvironment::Sandbox),
    };
    PossibleValuesParser::new(ExecutionEnvironment::NAMES).try_map(parse).into()
}

pub(crate) fn auth(verb: &Verb, installation: &Installation) -> anyhow::Result<ExitCode> {
    let Verb::Check { cli, environment, json } = verb;
    let asked = ringfence_agents::ALL.into_iter().filter(|known| {
        !known.facts().login.question.is_empty() && cli.as_ref().is_none_or(|name| name == known.facts().name)
    });
    let asked: Vec<_> = asked.collect();
    let progress = Progress::new(installation);
    let mut checks = Vec::new();
    for known in &asked {
        progress.at(checks.len(), asked.len(), known.facts().name);
        checks.push(match installation.is_remote() {
            true => installation.desk()?.login(known.facts().name, *environment).map_err(told)?,
            false => login::check(installation, *known, *environment)?,
        });
    }
    drop(progress);
    match (&checks[..], json) {
        // Who asks for one gets one.
        ([check], true) if cli.is_some() => terminal::json(check)?,
        (checks, true) => terminal::json(&checks)?,
        (checks, false) => checks.iter().for_each(show),
    }
    let good = checks.iter().all(|check| check.authenticated);
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn show(check: &LoginCheck) {
    let mark = if check.authenticated { "✓" } else { "✗" };
    terminal::line(format!("{mark} {} ({}): {}", check.cli, check.mode, check.message));
    if let Some(remedy) = &check.remedy {
        terminal::line(format!("  → {remedy}"));
    }
}
