//! `ringfence policy`: what agents may do.

use std::process::ExitCode;

use ringfence_core::config::{PolicyChoice, Settings};
use ringfence_core::mode::Mode;
use ringfence_core::policy::Policy;
use serde_json::{Value, json};

use super::job::{Asked, backend, read_policy};
use super::options::{Options, mode_parser};
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
            let policy = match policy.map(PolicyChoice::try_from).transpose()? {
                Some(PolicyChoice::Preset(preset)) => preset.policy(),
                Some(PolicyChoice::File(file)) => read_policy(&installation.expand(&file))?,
                None => in_force(&Options::default(), installation)?.policy,
            };
            terminal::json(&policy)?;
            Ok(ExitCode::SUCCESS)
        }
        Verb::Check { policy, mode, json } => {
            check(&Options { policy, mode, ..Options::default() }, json, installation)
        }
    }
}

/// What a run with these flags would have, here.
struct InForce {
    policy: Policy,
    name: String,
    mode: Mode,
    settings: Settings,
}

fn in_force(options: &Options, installation: &Installation) -> anyhow::Result<InForce> {
    let layers = installation.layers()?;
    let settings = layers.resolve()?;
    let asked = Asked { installation, layers: &layers, settings: &settings, options, agent: None, name: "" };
    let mode = asked.mode();
    let (policy, name) = asked.policy(mode)?;
    Ok(InForce { policy, name, mode, settings })
}

fn check(options: &Options, json: bool, installation: &Installation) -> anyhow::Result<ExitCode> {
    let InForce { policy, name, mode, settings } = in_force(options, installation)?;
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
