//! `ringfence policy`: what agents may do.

use std::path::Path;
use std::process::ExitCode;

use ringfence_core::config::PolicyChoice;
use ringfence_core::mode::Mode;
use ringfence_core::policy::{Policy, Preset};
use serde_json::{Value, json};

use super::job::{backend, read_policy};
use super::options::mode_parser;
use crate::installation::Installation;
use crate::terminal;

/// What agents may do: show, check.
#[derive(clap::Subcommand)]
pub(crate) enum Verb {
    /// Print a policy: a preset, or a file with everything filled in
    Show {
        /// A preset (open, standard, locked) or a policy file; the one in force if not given
        policy: Option<String>,
    },
    /// Say whether a mode can keep a policy here, promise by promise
    Check {
        /// A preset (open, standard, locked) or a policy file; the one in force if not given
        policy: Option<String>,
        /// The mode; the one in force if not given
        #[arg(long, value_parser = mode_parser())]
        mode: Option<Mode>,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
}

pub(crate) fn policy(verb: Verb, installation: &Installation) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::Show { policy } => {
            let (policy, _) = find(policy, None, installation)?;
            terminal::json(&policy)?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::Check { policy, mode, json } => check(policy, mode, json, installation),
    }
}

fn find(
    given: Option<String>,
    mode: Option<Mode>,
    installation: &Installation,
) -> anyhow::Result<(Policy, String)> {
    let settings = installation.layers()?.resolve()?;
    let choice = match given.map(PolicyChoice::try_from).transpose()? {
        Some(choice) => choice,
        None => settings.sandbox.policy.unwrap_or_else(|| {
            PolicyChoice::Preset(Preset::default_of(mode.unwrap_or(settings.sandbox.mode)))
        }),
    };
    let policy = match &choice {
        PolicyChoice::Preset(preset) => preset.policy(),
        PolicyChoice::File(file) => read_policy(&installation.expand(Path::new(file)))?,
    };
    Ok((policy, choice.into()))
}

fn check(
    given: Option<String>,
    mode: Option<Mode>,
    json: bool,
    installation: &Installation,
) -> anyhow::Result<ExitCode> {
    let settings = installation.layers()?.resolve()?;
    let mode = mode.unwrap_or(settings.sandbox.mode);
    let (policy, name) = find(given, Some(mode), installation)?;
    let capabilities = backend(mode, &installation.surroundings(), &settings)?.capabilities();
    let promises: Vec<_> =
        policy.promises().into_iter().map(|promise| (promise, capabilities.mechanism(promise))).collect();
    let holds = promises.iter().all(|(_, mechanism)| mechanism.is_some());
    if json {
        let promises: Vec<Value> = promises
            .iter()
            .map(|(promise, mechanism)| json!({ "promise": promise, "mechanism": mechanism }))
            .collect();
        terminal::json(&json!({ "policy": name, "mode": mode, "holds": holds, "promises": promises }))?;
    } else {
        for (promise, mechanism) in &promises {
            match mechanism {
                Some(mechanism) => terminal::line(format!("✓ {} ({mechanism})", promise.describe())),
                None => terminal::line(format!("✗ {}: nothing here can keep it", promise.describe())),
            }
        }
        let verdict = if holds { "holds" } else { "does not hold, and a run with it is refused" };
        terminal::line(format!("\nPolicy {name} in mode {mode} {verdict}."));
    }
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
