//! What runs: one file per agent CLI, and one table.
//!
//! Each file knows one CLI's headless command line, what it needs, how its output becomes events and how its words
//! become failure classes. Nothing here starts a process, and nothing outside of here knows a CLI's words. Adding an
//! agent CLI is one file and one line.

mod claude;
mod codex;
mod command;
pub mod demo;
mod opencode;
mod reading;

use std::collections::BTreeMap;

use ringfence_core::backend::ExitStatus;
use ringfence_core::event::{Event, Stream, Usage};
use ringfence_core::failure::Failure;
use ringfence_core::ids::SessionId;
use ringfence_core::text::PlainText;

/// A program that works on a prompt.
pub trait AgentCli: Sync {
    /// What is known of it.
    fn facts(&self) -> &'static Facts;

    /// The command line for a prompt.
    fn command(&self, invocation: &Invocation<'_>) -> Result<CommandLine, InvocationError>;

    /// A reader of its output.
    fn reader(&self) -> Box<dyn Reader>;
}

/// What is known of an agent CLI.
#[derive(Debug)]
pub struct Facts {
    /// Its name in the settings.
    pub name: &'static str,
    /// The program that has to be in the path, if it is one that people install.
    pub program: Option<&'static str>,
    /// How to get it.
    pub install: &'static str,
    /// The hosts without which it cannot work.
    pub hosts: &'static [&'static str],
    /// Variables that configure it and are no secret.
    pub env: &'static [&'static str],
    /// Where its credentials come from.
    pub login: Login,
    /// What images are made with.
    pub package: Option<Package>,
}

/// The npm package of an agent CLI. Images take the program itself out of it: no script of a package is run.
#[derive(Debug, Clone, Copy)]
pub struct Package {
    /// Its name.
    pub name: &'static str,
    /// The version that is known to work.
    pub version: &'static str,
    /// Where the program is below `node_modules`, for each processor.
    pub programs: &'static [(&'static str, &'static str)],
}

impl Package {
    /// Where the program is for a processor, in the words of Rust.
    pub fn program(&self, processor: &str) -> Option<&'static str> {
        self.programs.iter().find(|(name, _)| *name == processor).map(|(_, path)| *path)
    }
}

/// Where an agent CLI's credentials come from.
#[derive(Debug)]
pub struct Login {
    /// Variables that hold one, the strongest first.
    pub env: &'static [&'static str],
    /// Files and directories below the home that hold one.
    pub paths: &'static [&'static str],
    /// The broker's providers that know them, the strongest first.
    pub providers: &'static [&'static str],
    /// How to log in.
    pub remedy: &'static str,
    /// What to ask the CLI to hear whether it has one, without asking a model.
    pub question: &'static [&'static str],
    /// Whether its answer says nothing of keys in its environment.
    pub ignores_keys: bool,
    /// What its answer means, by its exit code and what it printed; `None` if nobody knows.
    pub answer: fn(i32, &str) -> Option<bool>,
}

impl Login {
    /// Of a program that needs none.
    const NONE: Login = Login {
        env: &[],
        paths: &[],
        providers: &[],
        remedy: "",
        question: &[],
        ignores_keys: false,
        answer: |_, _| None,
    };
}

/// What is asked of an agent CLI.
#[derive(Debug)]
pub struct Invocation<'a> {
    /// What to do.
    pub prompt: &'a str,
    /// With which model.
    pub model: Option<&'a str>,
    /// At which address.
    pub base_url: Option<&'a str>,
    /// In which conversation.
    pub session: Option<&'a SessionId>,
    /// With `command`: the words of the command.
    pub command: Option<&'a str>,
    /// The `ringfence` binary, which carries `demo`.
    pub own_program: &'a str,
    /// The variables that it will see.
    pub env: &'a BTreeMap<String, String>,
    /// Whether it runs as root.
    pub is_root: bool,
    /// Whether a person sits at its terminal. Then it needs no prompt, and nobody reads what it prints.
    pub interactive: bool,
}

/// What to start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandLine {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Variables to set where the environment does not.
    pub env: BTreeMap<String, String>,
    /// Variables to set whatever the environment says; only what was given explicitly wins.
    pub forced_env: BTreeMap<String, String>,
    /// What a person should know of it.
    pub notices: Vec<String>,
}

impl CommandLine {
    fn new(argv: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { argv: argv.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    fn arg(mut self, arg: impl Into<String>) -> Self {
        self.argv.push(arg.into());
        self
    }

    fn option(self, name: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.arg(name).arg(value),
            None => self,
        }
    }

    /// What comes after everything that could be an option.
    fn operands<'a>(self, operands: impl IntoIterator<Item = &'a str>) -> Self {
        let mut operands = operands.into_iter().peekable();
        let line = if operands.peek().is_some() { self.arg("--") } else { self };
        operands.fold(line, Self::arg)
    }

    fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.insert(name.to_owned(), value.into());
        self
    }

    fn force_env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.forced_env.insert(name.to_owned(), value.into());
        self
    }

    fn notice(mut self, message: &str) -> Self {
        self.notices.push(message.to_owned());
        self
    }
}

/// Why there is no command line.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvocationError {
    /// Nothing to do.
    #[error("there is no prompt; give one as an argument, or `-` to read it from standard input")]
    NoPrompt,
    /// More than an argument can hold.
    #[error(
        "the prompt has {length} bytes and at most {most} fit on a command line; put it into a file of the workspace and name the file"
    )]
    PromptTooLong {
        /// Its length.
        length: usize,
        /// The most that fit.
        most: usize,
    },
    /// The prompt cannot be an argument.
    #[error("the prompt contains a NUL character")]
    NulInPrompt,
    /// There is no command.
    #[error("the agent CLI `command` needs a command; give one with --command 'sh -c …'")]
    NoCommand,
    /// The command's quotes do not close.
    #[error("the command `{0}` cannot be read: a quote is not closed")]
    BadCommand(String),
    /// Nobody can talk to it.
    #[error("`{0}` cannot be talked to; give it a prompt")]
    NotInteractive(&'static str),
    /// The CLI has no conversations.
    #[error("`{0}` has no sessions to continue")]
    NoSessions(&'static str),
    /// The model's name has to say whose it is.
    #[error("opencode needs a model as `provider/model`, and `{0}` is not")]
    ModelWithoutProvider(String),
}

/// The kernel takes arguments and variables of up to 128 KiB; some room is left for a name and the terminator.
pub const LONGEST_PROMPT: usize = ringfence_core::task::TaskSpec::LONGEST_PROMPT;

/// Checks what every CLI takes as an argument. Only a person at the terminal needs to give none.
fn checked_prompt<'a>(invocation: &Invocation<'a>) -> Result<Option<&'a str>, InvocationError> {
    match invocation.prompt.trim().is_empty() {
        true if invocation.interactive => Ok(None),
        true => Err(InvocationError::NoPrompt),
        false => fitting_prompt(invocation).map(Some),
    }
}

/// Checks what can be an argument at all.
fn fitting_prompt<'a>(invocation: &Invocation<'a>) -> Result<&'a str, InvocationError> {
    let prompt = invocation.prompt;
    if prompt.len() > LONGEST_PROMPT {
        return Err(InvocationError::PromptTooLong { length: prompt.len(), most: LONGEST_PROMPT });
    }
    if prompt.contains('\0') {
        return Err(InvocationError::NulInPrompt);
    }
    Ok(prompt)
}

/// Reads one run's output, line by line.
pub trait Reader: Send {
    /// The events of a line.
    fn line(&mut self, stream: Stream, line: &str) -> Vec<Event>;

    /// Why the CLI is trying again just now, if it says so. Cleared by progress.
    fn stalled(&self) -> Option<&Failure>;

    /// What came of it. `now` is in seconds since the epoch.
    fn finish(&mut self, exit: ExitStatus, now: u64) -> Outcome;
}

/// What came of a run, as the agent CLI tells it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// Its last word.
    pub text: PlainText,
    /// The conversation.
    pub session: Option<SessionId>,
    /// Tokens and cost.
    pub usage: Usage,
    /// Whether the usage counts the whole conversation and not this run alone.
    pub usage_of_session: bool,
    /// Why it failed.
    pub failure: Option<Failure>,
}

/// All agent CLIs.
pub const ALL: [&dyn AgentCli; 5] =
    [&claude::Claude, &codex::Codex, &opencode::Opencode, &demo::Demo, &command::Command];

/// The agent CLI of a name.
pub fn find(name: &str) -> Option<&'static dyn AgentCli> {
    ALL.into_iter().find(|cli| cli.facts().name == name)
}

/// Their names, in the order of the table.
pub fn names<'a>() -> impl Iterator<Item = &'a str> {
    ALL.into_iter().map(|cli| cli.facts().name)
}

/// A reader for a program that is no agent.
pub fn program_reader() -> Box<dyn Reader> {
    command::Command.reader()
}

#[cfg(test)]
mod tests {
    use super::{ALL, Invocation, InvocationError};

    #[test]
    fn who_is_talked_to_needs_no_prompt_and_prints_for_people() {
        for cli in ALL {
            let line = cli.command(&Invocation {
                prompt: "",
                model: Some("p/m"),
                base_url: None,
                session: None,
                command: Some("sh"),
                own_program: "",
                env: &Default::default(),
                is_root: false,
                interactive: true,
            });
            if cli.facts().name == "demo" {
                assert_eq!(line, Err(InvocationError::NotInteractive("demo")));
                continue;
            }
            let argv = line.unwrap().argv;
            let headless = ["exec", "run", "-p", "--json", "--"];
            assert!(!argv.iter().any(|word| headless.contains(&word.as_str())), "{argv:?}");
        }
    }
}
