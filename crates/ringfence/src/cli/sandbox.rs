//! `ringfence sandbox`: where agents run.

use std::process::ExitCode;

use ringfence_backends::settings_keys;
use ringfence_core::capability::Promise;
use ringfence_core::config::{self, Settings};
use ringfence_core::mode::{ExecutionEnvironment, Mode};
use ringfence_core::policy::{Limits, Preset};
use ringfence_server::desk::ModeView;

use super::options::mode_parser;
use super::{build_image, config as config_verb, doctor, kept};
use crate::installation::Installation;
use crate::terminal;

/// Where agents run: show, choose, check.
#[derive(clap::Subcommand)]
pub(crate) enum Verb {
    /// Show the mode and its settings
    Show {
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Choose the mode for all agents
    Set {
        /// The mode
        #[arg(value_parser = mode_parser())]
        mode: Mode,
    },
    /// Check every mode and every agent CLI, and say what to do
    Doctor {
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// List the modes: what each keeps an agent from on this machine, and by what
    Modes {
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    BuildImage(build_image::Args),
    /// List the sandboxes that are there, with those that nobody waits for
    List {
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Take sandboxes away, running or not
    Rm(kept::Which),
}

pub(crate) fn sandbox(verb: &Verb, installation: &Installation) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::Show { json } => show(installation, *json),
        Verb::Set { mode } => set(installation, *mode),
        Verb::Doctor { json } => doctor::doctor(installation, *json),
        Verb::Modes { json } => modes(installation, *json),
        Verb::BuildImage(args) => build_image::build_image(args, installation),
        Verb::List { json } => kept::list(installation, *json),
        Verb::Rm(which) => kept::remove(installation, which),
    }
}

fn show(installation: &Installation, json: bool) -> anyhow::Result<ExitCode> {
    let layers = installation.layers()?;
    let settings = layers.resolve()?;
    if json {
        terminal::json(&layers.merged()["sandbox"])?;
        return Ok(ExitCode::SUCCESS);
    }
    let mode = settings.sandbox.mode;
    let entry = ringfence_backends::entry(mode);
    let policy =
        settings.sandbox.policy.clone().map_or_else(|| Preset::default_of(mode).to_string(), String::from);
    terminal::line("Sandbox Configuration");
    let mut rows = vec![
        vec!["mode".into(), mode.to_string()],
        vec!["boundary".into(), entry.boundary.into()],
        vec!["execution environment".into(), ExecutionEnvironment::of(mode).as_str().into()],
        vec!["policy".into(), policy],
    ];
    for path in layers.paths() {
        let section = path.strip_prefix("sandbox.").filter(|name| !matches!(*name, "mode" | "policy"));
        let other_mode = |name: &str| {
            name.split_once('.')
                .is_some_and(|(section, _)| section.parse::<Mode>().is_ok_and(|other| other != mode))
        };
        if let (Some(name), Some(located)) = (section.filter(|name| !other_mode(name)), layers.get(path)) {
            let value = located.value.as_str().map_or_else(|| located.value.to_string(), str::to_owned);
            rows.push(vec![name.to_owned(), value]);
        }
    }
    let limits = Preset::default_of(mode).policy().limits;
    rows.extend(default_limits(installation, &settings, mode, &limits));
    for (id, agent) in &settings.agents {
        if let Some(mode) = agent.sandbox_mode {
            rows.push(vec![format!("agent {id}"), format!("mode {mode}")]);
        }
    }
    terminal::table(&rows);
    Ok(ExitCode::SUCCESS)
}

/// The limits that a mode adds to those of a policy, and those that cannot be had here.
pub(super) fn default_limits(
    installation: &Installation,
    settings: &Settings,
    mode: Mode,
    asked: &Limits,
) -> Vec<Vec<String>> {
    let Some(make) = ringfence_backends::entry(mode).backend else { return Vec::new() };
    let backend = make(&installation.surroundings(), settings);
    let mut limits = asked.clone();
    backend.bound(&mut limits);
    let growth = mode.isolates() && asked.growth.is_none();
    let chosen = [
        ("memory", limits.memory.filter(|_| asked.memory.is_none()).map(|size| size.to_string())),
        ("cpus", limits.cpus.filter(|_| asked.cpus.is_none()).map(|cpus| cpus.to_string())),
        ("processes", limits.pids.filter(|_| asked.pids.is_none()).map(|count| count.to_string())),
        ("disk of the workspace", growth.then(|| "three quarters of what is free".to_owned())),
        ("files on that disk", mode.isolates().then(|| "three quarters of the free inodes".to_owned())),
    ];
    let chosen = chosen.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let rows = chosen.map(|(name, value)| vec![format!("default limit: {name}"), value]);
    let missing = backend.not_enforced(&limits).into_iter();
    rows.chain(missing.map(|why| vec!["no default limit".to_owned(), why])).collect()
}

fn modes(installation: &Installation, json: bool) -> anyhow::Result<ExitCode> {
    let settings = installation.layers()?.resolve()?;
    let used = doctor::modes_in_use(&settings);
    let around = installation.surroundings();
    let views: Vec<ModeView> = ringfence_backends::ALL
        .iter()
        .map(|entry| {
            let can = entry.backend.map(|make| make(&around, &settings).capabilities());
            let keeps = |promise: Promise| {
                let mechanism = can.as_ref()?.mechanism(promise)?;
                Some((promise.describe().to_owned(), mechanism.to_string()))
            };
            ModeView {
                mode: entry.mode,
                boundary: entry.boundary.to_owned(),
                needs: entry.needs.to_owned(),
                available: entry.backend.is_some(),
                in_use: used.contains(&entry.mode),
                promises: Promise::ALL.into_iter().filter_map(keeps).collect(),
                hint: can.as_ref().and_then(|can| can.hint().map(str::to_owned)),
            }
        })
        .collect();
    if json {
        terminal::json(&views)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = vec![["MODE", "", "BOUNDARY", "NEEDS"].map(str::to_owned).to_vec()];
    table.extend(views.into_iter().map(|view| {
        let state = match (view.in_use, view.available) {
            (true, _) => "in use",
            (false, true) => "",
            (false, false) => "not yet",
        };
        vec![view.mode.to_string(), state.to_owned(), view.boundary, view.needs]
    }));
    terminal::table(&table);
    Ok(ExitCode::SUCCESS)
}

fn set(installation: &Installation, mode: Mode) -> anyhow::Result<ExitCode> {
    config_verb::change(installation, |text, file| {
        config::set(text, file, &settings_keys(), "sandbox.mode", mode.as_str())
    })?;
    terminal::line(format!("✓ Sandbox mode set to: {mode}"));
    let in_force = installation.layers()?.resolve()?.sandbox.mode;
    if in_force != mode {
        terminal::line(format!(
            "! {in_force} stays in force: `ringfence config explain sandbox.mode` says why"
        ));
    }
    if mode.isolates() {
        terminal::line("Check it with: ringfence sandbox doctor");
    }
    Ok(ExitCode::SUCCESS)
}
