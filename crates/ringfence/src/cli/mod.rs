//! The command line: one file a verb. A verb sees resolved settings only.

mod agents;
mod auth;
mod bait;
mod build_image;
mod compare;
mod completions;
mod config;
mod dead_letter;
mod demo;
mod doctor;
mod events;
mod exec;
mod job;
mod kept;
mod layer;
mod open;
mod options;
mod policy;
mod probe;
mod process;
mod prune;
mod run;
mod runs;
mod sandbox;
mod serve;
mod shell;
mod task;
mod task_input;
mod token;
mod usage;
mod version;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::anyhow;
use clap::builder::styling::{AnsiColor, Styles};
use clap::{Parser, Subcommand};
use ringfence_core::event::{RunStatus, Usage};
use ringfence_core::mode::Mode;
use ringfence_core::text::escaped;

use crate::installation::Installation;
use crate::{gate, report, terminal};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Runs coding agents in the isolation you choose.
#[derive(Parser)]
#[command(
    name = "ringfence",
    version,
    styles = STYLES,
    propagate_version = true,
    after_help = "First steps:\n  \
        ringfence demo                              see what it does, without an account\n  \
        ringfence sandbox doctor                    what works on this machine\n  \
        ringfence run --agent claude \"fix the tests\"\n\n\
        Exit codes: the agent's own; 124 timeout, 125 refused or ringfence itself failed,\n\
        126 cannot be executed, 127 not found, 130 cancelled, 128+N ended by signal N\n\
        (141: nobody reads the output), 2 wrong usage."
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Let an agent work on a prompt, and watch
    Run(run::Args),
    /// Run any command under the same policy, limits and record
    Exec(exec::Args),
    /// Open a shell where an agent would run
    Shell(shell::Args),
    /// Watch a built-in agent work and try three forbidden things
    Demo(demo::Args),
    /// Try to break each promise of a mode, and show what held
    Probe(probe::Args),
    /// How long the modes that work here take for nothing at all
    Compare(compare::Args),
    /// Work that is done in its turn: add, list, show, cancel, retry, logs, wait
    #[command(subcommand)]
    Task(task::Verb),
    /// The agents of your settings and of the queue: what each is doing
    Agents(agents::Args),
    /// Tasks that ended without being done: list, show, retry, discard
    #[command(subcommand)]
    DeadLetter(dead_letter::Verb),
    /// What happened to tasks, processes and settings
    Events(events::Args),
    /// Run the daemon here, in front of you
    Serve(serve::ServeArgs),
    /// Start the daemon
    Start,
    /// Stop the daemon
    Stop(serve::StopArgs),
    /// Stop and start the daemon
    Restart(serve::StopArgs),
    /// Show the daemon, its processes and the queue
    Status(serve::StatusArgs),
    /// Open the dashboard in a browser, logged in
    Open(open::Args),
    /// The dispatcher, workers, testers and docsers: list, start, stop, logs
    #[command(subcommand)]
    Process(process::Verb),
    /// Take away what is old: tasks, runs, sandboxes that nobody waits for
    Prune(prune::Args),
    /// Look at past and present runs
    #[command(subcommand)]
    Runs(runs::Verb),
    /// Show what a run wrote in a workspace of kind `overlay`
    Diff(layer::DiffArgs),
    /// Put what a run wrote into the workspace
    Apply(layer::ApplyArgs),
    /// Throw away what a run wrote
    Discard(layer::DiscardArgs),
    /// Where agents run: show, choose, check
    #[command(subcommand)]
    Sandbox(sandbox::Verb),
    /// What runs have used: tokens and cost, by day, agent, model, task or run
    Usage(usage::Args),
    /// Whether agent CLIs have a login where they run: check
    #[command(subcommand)]
    Auth(auth::Verb),
    /// The logins that the broker uses, and the daemon's own token: show, refresh, rotate
    #[command(subcommand)]
    Token(token::Verb),
    /// What agents may do: show, check, why, learn
    #[command(subcommand)]
    Policy(policy::Verb),
    /// Settings: list, get, set, explain
    #[command(subcommand)]
    Config(config::Verb),
    /// Print completions for a shell
    Completions(completions::Args),
}

/// Whether a command line looks like one that starts a run with a gate of ours outside, and then whether the run is likely
/// to want namespaces. A guess, for speed alone: whatever it says, the run is as was asked for.
fn foreseen(mut words: impl Iterator<Item = OsString>) -> Option<bool> {
    let verb = words.nth(1)?;
    if !["run", "exec", "shell", "demo"].iter().any(|name| verb == **name) {
        return None;
    }
    let named = words.take_while(|word| word != "--").find_map(|word| {
        let word = word.to_str()?;
        word.strip_prefix("--mode=").unwrap_or(word).parse::<Mode>().ok()
    });
    match named {
        Some(mode) => mode.shares_system().then(|| mode.isolates()),
        None => Some(true),
    }
}

/// Reads the command line. What starts a run is read without all the other verbs, for describing them takes a good part of the
/// time that a sandbox does. Whatever is wrong or wants help there is for the whole.
fn read() -> Result<Verb, ExitCode> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let quick = match words.get(1).and_then(|verb| verb.to_str()) {
        Some("run") => read_alone(&words).map(Verb::Run),
        Some("exec") => read_alone(&words).map(Verb::Exec),
        _ => None,
    };
    match quick {
        Some(verb) => Ok(verb),
        None => Cli::try_parse_from(&words).map(|cli| cli.verb).map_err(|error| refuse(error, &words)),
    }
}

/// Prints why a command line cannot be used, or the help that it asks for. An argument may come from a run, so whatever a terminal
/// would obey in it is shown as an escape.
fn refuse(error: clap::Error, words: &[OsString]) -> ExitCode {
    let words = words.iter().map(|word| escaped(&word.to_string_lossy()));
    let error = Cli::try_parse_from(words).err().unwrap_or(error);
    let text = error.render().ansi().to_string();
    match error.use_stderr() {
        true => terminal::about(text.trim_end()),
        false => terminal::line(text.trim_end()),
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(report::RUNTIME_FAILURE))
}

fn read_alone<A: clap::Args>(words: &[OsString]) -> Option<A> {
    let command = A::augment_args(clap::Command::new("ringfence"));
    A::from_arg_matches(&command.try_get_matches_from(&words[1..]).ok()?).ok()
}

pub(crate) use config::change as change_settings;
pub(crate) use job::Asked;
pub(crate) use kept::{bury, keep_warm};
pub(crate) use layer::file_changes;
pub(crate) use options::Options;
pub(crate) use probe::{ARGUMENT as PROBE_ARGUMENT, act as probe};
pub(crate) use run::Wish;
pub(crate) use serve::{daemon, is_running};

/// Reads the command line and does what it says.
pub(crate) fn main() -> ExitCode {
    // Before all else: it is made ready while the rest is read. For a command line that says nothing of a run, or is
    // wrong, it ends with this process.
    let gate = foreseen(std::env::args_os()).and_then(gate::ahead);
    let verb = match read() {
        Ok(verb) => verb,
        Err(code) => return code,
    };
    let done = match verb {
        Verb::Completions(args) => completions::completions(&args),
        Verb::Config(config::Verb::Schema) => config::schema(),
        verb => Installation::discover(gate).and_then(|installation| {
            let done = at_home(verb, &installation);
            // It may be new.
            installation.list_state();
            done
        }),
    };
    match (done, terminal::unprinted()) {
        (Err(error), _) => report::failure(&error),
        (Ok(_), Some(why)) => report::failure(&anyhow!("the output cannot be written: {why}")),
        (Ok(code), None) => code,
    }
}

/// The verbs that need settings or state.
fn at_home(verb: Verb, installation: &Installation) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::Run(args) => told(args.options.json, run::run(args, installation)),
        Verb::Exec(args) => told(args.options.json, exec::exec(args, installation)),
        Verb::Shell(args) => shell::shell(&args, installation),
        Verb::Demo(args) => demo::demo(&args, installation),
        Verb::Probe(args) => probe::probe(&args, installation),
        Verb::Compare(args) => compare::compare(&args, installation),
        Verb::Task(verb) => task::task(verb, installation),
        Verb::Agents(args) => agents::agents(&args, installation),
        Verb::DeadLetter(verb) => dead_letter::dead_letter(&verb, installation),
        Verb::Events(args) => events::events(&args, installation),
        Verb::Serve(args) => installation.here("serve").and_then(|()| serve::serve(&args, installation)),
        Verb::Start => installation.here("start").and_then(|()| serve::start(installation)),
        Verb::Stop(args) => installation.here("stop").and_then(|()| serve::stop(&args, installation)),
        Verb::Restart(args) => {
            installation.here("restart").and_then(|()| serve::restart(&args, installation))
        }
        Verb::Status(args) => serve::status(&args, installation),
        Verb::Open(args) => open::open(&args, installation),
        Verb::Process(verb) => process::process(&verb, installation),
        Verb::Prune(args) => installation.here("prune").and_then(|()| prune::prune(&args, installation)),
        Verb::Runs(verb) => runs::runs(verb, installation),
        Verb::Diff(args) => layer::diff(&args, installation),
        Verb::Apply(args) => layer::apply(&args, installation),
        Verb::Discard(args) => layer::discard(&args, installation),
        Verb::Sandbox(verb) => sandbox::sandbox(&verb, installation),
        Verb::Usage(args) => usage::usage(&args, installation),
        Verb::Auth(verb) => auth::auth(&verb, installation),
        Verb::Token(verb) => token::token(verb, installation),
        Verb::Policy(verb) => policy::policy(verb, installation),
        Verb::Config(verb) => config::config(verb, installation),
        Verb::Completions(args) => completions::completions(&args),
    }
}

/// A program that reads events gets a result also where nothing was started; a person reads the error either way.
fn told(json: bool, done: anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
    if let (true, Err(error)) = (json, &done) {
        terminal::line(serde_json::json!({
            "type": "result",
            "run": null,
            "status": RunStatus::Failed,
            "exit_code": report::RUNTIME_FAILURE,
            "text": "",
            "usage": Usage::default(),
            "duration_ms": 0,
            "leftover_processes": 0,
            "surviving_processes": 0,
            "failure": report::as_failure(error),
        }));
    }
    done
}
