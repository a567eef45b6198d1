//! The flags that `run`, `exec` and `demo` have in common.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser, ValueParser};
use ringfence_core::config::WorkspaceKind;
use ringfence_core::mode::Mode;
use ringfence_core::paths::DirectoryId;
use ringfence_core::policy::HostRule;
use ringfence_core::task::TaskSpec;
use ringfence_core::units::{Cpus, MemorySize, Seconds};

use crate::installation::{Installation, read_governing_text};

/// Where and under which policy.
#[derive(Args, Debug, Default)]
pub(crate) struct Options {
    /// Where to run
    #[arg(long, value_parser = mode_parser(), help_heading = "Isolation")]
    pub(crate) mode: Option<Mode>,
    /// What it may do: a preset (open, standard, locked) or a policy file
    #[arg(long, value_name = "PRESET|FILE", help_heading = "Isolation")]
    pub(crate) policy: Option<String>,
    /// Allow a host: example.com, example.com:8443, *.example.com (repeatable)
    #[arg(long, value_name = "HOST", help_heading = "Isolation")]
    pub(crate) allow: Vec<HostRule>,
    /// Let it reach a port of this machine's own loopback, at the same port inside (repeatable)
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Isolation")]
    pub(crate) allow_local: Vec<u16>,
    /// Ask for hosts that are not allowed, at this terminal
    #[arg(long, help_heading = "Isolation")]
    pub(crate) ask: bool,
    /// Let it reach everything, through the broker
    #[arg(skip)]
    pub(crate) learn: bool,
    /// Pass a variable, or set it (repeatable)
    #[arg(short, long, value_name = "KEY[=VALUE]", help_heading = "Isolation")]
    pub(crate) env: Vec<String>,
    /// Read variables from a file of KEY=VALUE lines
    #[arg(long, value_name = "FILE", help_heading = "Isolation")]
    pub(crate) env_file: Vec<PathBuf>,
    /// Let it read a path outside of the workspace (repeatable)
    #[arg(long, value_name = "PATH", help_heading = "Isolation")]
    pub(crate) read: Vec<PathBuf>,
    /// Let it write a path outside of the workspace (repeatable)
    #[arg(long, value_name = "PATH", help_heading = "Isolation")]
    pub(crate) write: Vec<PathBuf>,
    /// What the workspace is made of
    #[arg(long, value_name = "KIND", value_parser = workspace_parser(), help_heading = "Isolation")]
    pub(crate) workspace: Option<WorkspaceKind>,
    /// Where to work, instead of the current directory
    #[arg(short = 'C', long, value_name = "DIR", help_heading = "Isolation")]
    pub(crate) cwd: Option<PathBuf>,
    /// Accept your home directory, one above it, or one of its directories of programs, as the workspace
    #[arg(long, help_heading = "Isolation")]
    pub(crate) home_workspace: bool,
    /// The directory that `cwd` named when the work was accepted
    #[arg(skip)]
    pub(crate) workspace_id: Option<DirectoryId>,
    /// End it after this time: 90s, 10m, 2h
    #[arg(long, value_name = "TIME", help_heading = "Limits")]
    pub(crate) timeout: Option<Seconds>,
    /// Memory: 512m, 2g
    #[arg(long, value_name = "SIZE", value_parser = MemorySize::parse_limit, help_heading = "Limits")]
    pub(crate) memory: Option<MemorySize>,
    /// Processors: 0.5, 2
    #[arg(long, value_name = "COUNT", help_heading = "Limits")]
    pub(crate) cpus: Option<Cpus>,
    /// Processes
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Limits")]
    pub(crate) pids: Option<u32>,
    /// Where to copy the files to that the agent names in its last word
    #[arg(skip)]
    pub(crate) attachments: Option<PathBuf>,
    /// Print one event a line as JSON, and the result last
    #[arg(long)]
    pub(crate) json: bool,
}

/// Modes by name, so that help, completion and errors list them.
pub(crate) fn mode_parser() -> ValueParser {
    PossibleValuesParser::new(Mode::NAMES).try_map(|name| name.parse::<Mode>()).into()
}

pub(crate) fn workspace_parser() -> ValueParser {
    let named = |name: String| WorkspaceKind::ALL.into_iter().find(|(known, _)| *known == name);
    PossibleValuesParser::new(WorkspaceKind::ALL.map(|(name, _)| name))
        .try_map(move |name| named(name).map(|(_, kind)| kind).ok_or("there is no such kind"))
        .into()
}

impl Options {
    /// What a task says of where and under which policy.
    pub(crate) fn of_task(spec: &TaskSpec) -> Self {
        Self {
            mode: spec.mode,
            policy: spec.policy.clone(),
            allow: spec.allow.clone(),
            allow_local: spec.allow_local.clone(),
            env: spec.env.clone(),
            workspace: spec.workspace,
            cwd: spec.directory.clone(),
            timeout: spec.timeout,
            memory: spec.memory,
            cpus: spec.cpus,
            pids: spec.pids,
            ..Self::default()
        }
    }

    /// The files of variables, as they are checked and read.
    pub(crate) fn env_files(&self, installation: &Installation) -> impl Iterator<Item = PathBuf> {
        self.env_file.iter().map(|file| installation.expand(file))
    }

    /// The variables that the flags name, files first.
    pub(crate) fn variables(&self, installation: &Installation) -> anyhow::Result<BTreeMap<String, String>> {
        let mut variables = BTreeMap::new();
        for file in self.env_files(installation) {
            let text =
                read_governing_text(&file)?.with_context(|| format!("{} is not there", file.display()))?;
            for (number, line) in text.lines().enumerate() {
                let line = line.trim();
                if line.is_empty() || line.starts_with('#') {
                    continue;
                }
                let place = format!("{}:{}", file.display(), number + 1);
                let (name, value) = variable(line, installation).with_context(|| place)?;
                variables.extend(value.map(|value| (name, value)));
            }
        }
        for text in &self.env {
            let (name, value) = variable(text, installation).context("--env")?;
            variables.extend(value.map(|value| (name, value)));
        }
        Ok(variables)
    }
}

/// `KEY=VALUE`, or `KEY` for the value that it has here; one that has none here is not passed.
fn variable(text: &str, installation: &Installation) -> anyhow::Result<(String, Option<String>)> {
    let text = text.strip_prefix("export ").unwrap_or(text);
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(unquoted(value).to_owned())),
        None => (text, installation.env.get(text).cloned()),
    };
    let valid = !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if !valid {
        // The value may be a secret, so only the name is shown.
        bail!("`{name}` is not the name of a variable; write KEY or KEY=VALUE");
    }
    if value.as_deref().is_some_and(|value| value.contains('\0')) {
        bail!("the value of `{name}` contains a NUL character");
    }
    Ok((name.to_owned(), value))
}

/// An address of the web.
pub(crate) fn url(text: &str) -> Result<String, String> {
    if ringfence_core::config::is_url(text) {
        return Ok(text.to_owned());
    }
    Err("write an address that starts with http:// or https://".to_owned())
}

fn unquoted(value: &str) -> &str {
    ['"', '\''].iter().find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote)).unwrap_or(value)
}
