//! `ringfence policy`: what agents may do.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use ringfence_core::config::{PolicyChoice, Settings};
use ringfence_core::mode::Mode;
use ringfence_core::policy::{Denial, Host, HostRule, Policy, Verdict, parse_authority};
use ringfence_egress::{Entry, Outcome, read_entries};
use serde_json::{Value, json};

use super::exec;
use super::job::{Asked, backend, read_policy};
use super::options::{Options, mode_parser};
use super::sandbox::default_limits;
use crate::installation::Installation;
use crate::terminal;

/// What agents may do: show, check, why, learn.
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
    /// Say whether a host can be reached, and by which rule
    Why {
        /// example.com or example.com:8443
        host: String,
        /// An agent CLI whose own hosts count too: claude, codex, opencode
        #[arg(short, long, value_name = "AGENT")]
        agent: Option<String>,
        /// A preset (open, standard, locked) or a policy file; the one in force if not given
        #[arg(long, value_name = "PRESET|FILE")]
        policy: Option<String>,
        /// Hosts that are allowed besides (repeatable)
        #[arg(long, value_name = "HOST")]
        allow: Vec<HostRule>,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Run a command that may reach everything, and print the hosts that it needs
    Learn {
        #[command(flatten)]
        options: Box<Options>,
        /// The command and its arguments
        #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
        command: Vec<String>,
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
            // Standard output is the policy alone: it can be saved and edited.
            let settings = installation.settings()?;
            let mode = settings.sandbox.mode;
            for row in default_limits(installation, &settings, mode, &policy.limits) {
                terminal::about(format!("mode {mode}, {}", row.join(": ")));
            }
            Ok(ExitCode::SUCCESS)
        }
        Verb::Check { policy, mode, json } => {
            check(&Options { policy, mode, ..Options::default() }, json, installation)
        }
        Verb::Why { host, agent, policy, allow, json } => {
            let mut policy = in_force(&Options { policy, allow, ..Options::default() }, installation)?.policy;
            if let Some(agent) = agent {
                let cli = ringfence_agents::find(&agent)
                    .with_context(|| format!("there is no agent CLI `{agent}`"))?;
                for host in cli.facts().hosts {
                    policy.network.allow.push(host.parse()?);
                }
            }
            why(&host, &policy, json)
        }
        Verb::Learn { options, command } => {
            learn(&Options { learn: true, ..*options }, command, installation)
        }
    }
}

fn why(text: &str, policy: &Policy, json: bool) -> anyhow::Result<ExitCode> {
    let (host, port) = parse_authority(text).map_err(|error| anyhow!("`{text}` is no host: {error}"))?;
    let port = port.unwrap_or(443);
    let verdict = policy.network.judge(&host, port);
    let (allowed, rule, sentence) = match &verdict {
        Verdict::Allowed { rule, .. } => {
            (true, rule.clone(), format!("{host}:{port} is allowed by `{rule}`."))
        }
        Verdict::Denied(denial) => (false, denial.rule().to_owned(), format!("{denial}.")),
    };
    if json {
        terminal::json(
            &json!({ "host": host.to_string(), "port": port, "allowed": allowed, "rule": rule, "message": sentence }),
        )?;
    } else {
        terminal::line(sentence);
        match verdict {
            Verdict::Denied(Denial::Unlisted { .. }) => {
                terminal::line(
                    "Allow it with `--allow`, `network.allow` of the policy, or `broker.allow` of the settings.",
                );
            }
            Verdict::Allowed { .. } if !matches!(host, Host::Address(_)) => {
                terminal::line("If it turns out to be at a private address, that has to be named too.");
            }
            _ => {}
        }
    }
    Ok(if allowed { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn learn(options: &Options, command: Vec<String>, installation: &Installation) -> anyhow::Result<ExitCode> {
    let result = exec::perform(options, command, installation)?;
    let entries = read_entries(&installation.runs().network(&result.run))?;
    let rule = |entry: &Entry| match entry.port {
        80 | 443 => entry.host.clone(),
        port => format!("{}:{port}", entry.host),
    };
    let reached: BTreeSet<String> =
        entries.iter().filter(|entry| entry.decision == Outcome::Allow).map(rule).collect();
    let refused: BTreeSet<String> =
        entries.iter().filter(|entry| entry.decision == Outcome::Deny).map(rule).collect();
    if options.json {
        terminal::json(&json!({ "network": { "mode": "allow", "allow": reached } }))?;
    } else if reached.is_empty() {
        terminal::about("\nIt reached no host.");
    } else {
        terminal::about("\nThese would have sufficed, in a policy or with `--allow`:");
        terminal::json(&json!({ "network": { "mode": "allow", "allow": reached } }))?;
    }
    for host in refused {
        terminal::about(format!(
            "{host} was not reached: it is at a private address, which has to be named."
        ));
    }
    Ok(ExitCode::from(result.exit_code))
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
    let (agent, workspace) = (None, None);
    let asked =
        Asked { installation, layers: &layers, settings: &settings, options, agent, name: "", workspace };
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
