//! `ringfence sandbox doctor`: every mode, every agent CLI, and what to do about each finding.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::ExitCode;

use anstyle::{AnsiColor, Color, Style};
use anyhow::Context;
use ringfence_agents::AgentCli;
use ringfence_core::backend::{Finding, FindingState};
use ringfence_core::config::{AgentSettings, Settings};
use ringfence_core::mode::Mode;
use ringfence_core::paths::GUEST_HOME;
use ringfence_server::desk::{DoctorReport, FindingGroup};

use super::{job, version};
use crate::installation::Installation;
use crate::progress::Progress;
use crate::terminal;

/// Why a program of the host is not asked.
const NOT_FOUND: &str = "not found in PATH, outside of the current directory";

pub(crate) fn doctor(installation: &Installation, json: bool) -> anyhow::Result<ExitCode> {
    let settings = installation.layers()?.resolve()?;
    let progress = Progress::new(installation);
    let clis: Vec<_> = ringfence_agents::ALL.iter().filter(|cli| cli.facts().program.is_some()).collect();
    let steps = ringfence_backends::ALL.len() + clis.len();
    let modes: Vec<FindingGroup> = ringfence_backends::ALL
        .iter()
        .enumerate()
        .map(|(done, entry)| {
            progress.at(done, steps, entry.mode.as_str());
            let mut findings = (entry.probe)(&installation.surroundings(), &settings);
            let used = modes_in_use(&settings).contains(&entry.mode);
            let works = findings.iter().all(|finding| finding.state == FindingState::Ok);
            if used && works && !entry.mode.shares_system() {
                findings.extend(clis_inside(entry.mode, installation, &settings));
            }
            group(entry.mode.as_str(), used, findings)
        })
        .collect();
    let agent_clis: Vec<FindingGroup> = clis
        .into_iter()
        .enumerate()
        .map(|(done, cli)| {
            let name = cli.facts().name;
            progress.at(modes.len() + done, steps, name);
            group(name, clis_in_use(&settings).contains(name), look_at(*cli, installation, &settings))
        })
        .collect();
    drop(progress);
    let broken = modes.iter().chain(&agent_clis).flat_map(|group| &group.findings);
    let broken = broken.filter(|finding| finding.state == FindingState::Broken).count();
    let report = DoctorReport { passed: broken == 0, mode: settings.sandbox.mode, modes, agent_clis };
    if json {
        terminal::json(&report)?;
    } else {
        print(&report, broken);
    }
    Ok(if report.passed { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn group(name: &str, required: bool, findings: Vec<Finding>) -> FindingGroup {
    let findings = if required { findings.into_iter().map(Finding::required).collect() } else { findings };
    FindingGroup { name: name.to_owned(), required, findings }
}

pub(super) fn modes_in_use(settings: &Settings) -> BTreeSet<Mode> {
    let agents = settings.agents.values().filter_map(|agent| agent.sandbox_mode);
    agents.chain([settings.sandbox.mode]).collect()
}

fn clis_in_use(settings: &Settings) -> BTreeSet<&str> {
    settings.agents.values().filter_map(AgentSettings::cli_name).collect()
}

/// The agent CLIs in use, asked in a mode with a system of its own.
fn clis_inside(mode: Mode, installation: &Installation, settings: &Settings) -> Vec<Finding> {
    let mut once = settings.clone();
    once.sandbox.warm = 0;
    let Ok(backend) = job::backend(mode, &installation.surroundings(), &once) else { return Vec::new() };
    let Ok(workspace) = tempfile::tempdir() else { return Vec::new() };
    let used = ringfence_agents::ALL.iter().filter(|cli| clis_in_use(settings).contains(cli.facts().name));
    let programs = used.filter_map(|cli| cli.facts().program);
    let env = BTreeMap::from([("HOME".to_owned(), GUEST_HOME.to_owned())]);
    programs
        .map(|program| {
            let subject = format!("{program} inside");
            match version::ask(&*backend, program, &env, workspace.path()) {
                Ok(version) => Finding::ok(subject, version),
                Err(why) => Finding::absent(
                    subject,
                    format!("{why:#}"),
                    format!("put it into the image: `ringfence sandbox build-image --mode {mode}`"),
                ),
            }
        })
        .collect()
}

fn look_at(cli: &dyn AgentCli, installation: &Installation, settings: &Settings) -> Vec<Finding> {
    let program = cli.facts().program.unwrap_or_default();
    let Some(path) = installation.surroundings().find(program) else {
        return vec![Finding::absent(program, NOT_FOUND, cli.facts().install)];
    };
    let version = match version(&path, installation, settings) {
        Ok(version) => Finding::ok(program, format!("{version} at {}", path.display())),
        Err(why) => Finding::absent(
            program,
            format!("{} does not work: {why:#}", path.display()),
            cli.facts().install,
        ),
    };
    vec![version, login(cli, installation)]
}

/// A login that is there may still be expired; only the provider knows.
fn login(cli: &dyn AgentCli, installation: &Installation) -> Finding {
    let login = &cli.facts().login;
    let variable =
        login.env.iter().find(|name| installation.env.get(**name).is_some_and(|value| !value.is_empty()));
    let file = login.paths.iter().map(|path| installation.home.join(path)).find(|path| path.exists());
    match (variable, file) {
        (Some(name), _) => Finding::ok("login", format!("{name} is set")),
        (None, Some(path)) => Finding::ok("login", format!("{} is there", path.display())),
        (None, None) => Finding::absent("login", "no key and no login found", login.remedy),
    }
}

/// Asks a program for its version without a boundary.
fn version(program: &Path, installation: &Installation, settings: &Settings) -> anyhow::Result<String> {
    let entry = ringfence_backends::ALL.iter().find(|entry| !entry.mode.isolates());
    let make = entry.and_then(|entry| entry.backend).context("no mode to run it in")?;
    let backend = make(&installation.surroundings(), settings);
    let program = program.display().to_string();
    version::ask(&*backend, &program, &installation.with_host_programs().env, &installation.home)
}

fn print(report: &DoctorReport, broken: usize) {
    terminal::line("Sandbox Doctor");
    terminal::line(format!("Mode: {}", report.mode));
    for (title, groups) in [("\nModes", &report.modes), ("\nAgent CLIs", &report.agent_clis)] {
        terminal::line(title);
        for group in groups {
            print_group(group);
        }
    }
    match broken {
        0 => terminal::line("\nSandbox doctor passed."),
        count => terminal::line(format!("\nSandbox doctor found {count} issue(s).")),
    }
}

fn print_group(group: &FindingGroup) {
    let used = if group.required { " (in use)" } else { "" };
    terminal::line(format!("  {}{used}", group.name));
    for finding in &group.findings {
        let (mark, color) = match finding.state {
            FindingState::Ok => ("✓", AnsiColor::Green),
            FindingState::Absent => ("·", AnsiColor::Yellow),
            FindingState::Broken => ("✗", AnsiColor::Red),
        };
        let style = Style::new().fg_color(Some(Color::Ansi(color)));
        terminal::line(format!("    {style}{mark}{style:#} {}: {}", finding.subject, finding.detail));
        if let Some(remedy) = &finding.remedy {
            terminal::line(format!("      → {remedy}"));
        }
    }
}
