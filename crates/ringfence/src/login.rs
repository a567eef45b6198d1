//! Whether an agent CLI has a login where tasks run. The CLI is asked there, as a run, with the credentials that a task would
//! get; no model is asked. What it says it has is looked at on the host, where the real thing is.

use std::io;

use anyhow::Context;
use ringfence_agents::{AgentCli, Login};
use ringfence_core::event::{Event, RunResult, Stream};
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::mode::{ExecutionEnvironment, Mode};
use ringfence_core::policy::Credentials;
use ringfence_core::text::PlainText;
use ringfence_core::units::Seconds;
use ringfence_egress::{LoginError, LoginReport, LoginTool, ProviderError};
use ringfence_engine::{Observer, Outside, Work};
use ringfence_server::desk::{LoginCheck, LoginClass};
use ringfence_store::runs::Runs;

use crate::cli::{Asked, Options};
use crate::installation::Installation;

/// How long a CLI may take to answer, where a container may have to be started first.
const PATIENCE: Option<Seconds> = Seconds::new(45);
/// No answer is longer.
const LONGEST: usize = 64 << 10;

/// What was found, before it is told.
struct Found {
    class: LoginClass,
    message: String,
    remedy: Option<String>,
    /// Whether the CLI could be run at all.
    ran: bool,
}

impl Found {
    fn new(class: LoginClass, message: impl Into<String>) -> Self {
        let ran = matches!(class, LoginClass::Ok | LoginClass::LoginRequired | LoginClass::Expired);
        Self { class, message: message.into(), remedy: None, ran }
    }

    fn with_remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}

/// Looks in an environment; in the current one, if none is named.
pub(crate) fn check(
    installation: &Installation,
    cli: &'static dyn AgentCli,
    environment: Option<ExecutionEnvironment>,
) -> anyhow::Result<LoginCheck> {
    // Ringfence asks by itself, on the host too.
    let installation = &installation.with_host_programs();
    let workspace = tempfile::tempdir().context("there is no place to look from")?;
    let layers = installation.layers_for(workspace.path())?;
    let settings = layers.resolve()?;
    let mode = match environment {
        None => settings.sandbox.mode,
        Some(environment) => environment.mode(Some(settings.sandbox.mode)),
    };
    let options = Options {
        mode: Some(mode),
        cwd: Some(workspace.path().to_owned()),
        timeout: PATIENCE,
        ..Options::default()
    };
    let name = cli.facts().name;
    let (options, workspace) = (&options, None);
    let asked =
        Asked { installation, layers: &layers, settings: &settings, options, agent: None, name, workspace };
    let image = layers.get(&format!("sandbox.{mode}.image")).and_then(|located| located.value.as_str());
    let found = match image.map(ringfence_backends::check_image_name) {
        Some(Err(why)) => Found::new(LoginClass::InvalidImageName, why).with_remedy(format!(
            "set another: `ringfence config set sandbox.{mode}.image ringfence/agent:latest`"
        )),
        _ => look(&asked, cli, mode)?,
    };
    let authenticated = found.class == LoginClass::Ok;
    Ok(LoginCheck {
        cli: name.to_owned(),
        available: found.ran,
        authenticated,
        class: found.class,
        checked_at: jiff::Timestamp::now().to_string(),
        execution_environment: ExecutionEnvironment::of(mode),
        mode,
        message: found.message,
        remedy: found.remedy.filter(|_| !authenticated),
    })
}

/// Asks the CLI where it would run.
fn look(asked: &Asked<'_>, cli: &'static dyn AgentCli, mode: Mode) -> anyhow::Result<Found> {
    let facts = cli.facts();
    let program = facts.program.unwrap_or(facts.name);
    let argv =
        std::iter::once(program).chain(facts.login.question.iter().copied()).map(str::to_owned).collect();
    // Nobody wants to see it among the runs.
    let kept = tempfile::tempdir().context("there is no place to look from")?;
    let runs = Runs::new(kept.path());
    let mut heard = Heard::default();
    let policy = asked.policy(mode)?.0;
    let result = match asked.question(Work::Question { cli, argv }, &runs, &mut heard)? {
        Ok(result) => result,
        Err(failure) => return Ok(failed(cli, mode, failure)),
    };
    if let Some(failure) = result.failure.clone().filter(|failure| is_ours(failure.class)) {
        return Ok(failed(cli, mode, failure));
    }
    let names = runs.record(&result.run).map(|record| record.env_names).unwrap_or_default();
    // A variable may be there and hold nothing; one that the broker has put there stands for something.
    let outside = asked.installation.outside(&asked.settings.broker)?;
    let sources = outside.sources(&asked.installation.env);
    let mut tools = facts.login.providers.iter().map(|provider| LoginTool::find(provider, sources));
    let tool = tools.find_map(Result::transpose);
    let known = matches!(tool, Some(Ok(_)));
    let set =
        |name: &str| known || asked.installation.env.get(name).is_some_and(|value| !value.trim().is_empty());
    let key =
        facts.login.env.iter().find(|name| names.iter().any(|seen| seen == *name) && set(name)).copied();
    let answer = answered(&facts.login, &result, &heard);
    Ok(match (answer, key) {
        (Some(true), _) => valid(cli, tool, &outside, policy.credentials, key),
        (Some(false), Some(_)) if facts.login.ignores_keys => {
            valid(cli, tool, &outside, policy.credentials, key)
        }
        (Some(false), _) => {
            Found::new(LoginClass::LoginRequired, format!("{} has no login {}", facts.name, place(mode)))
                .with_remedy(facts.login.remedy)
        }
        (None, _) => {
            let question = facts.login.question.join(" ");
            let said = heard.first_line();
            let found = Found::new(
                LoginClass::Unknown,
                format!("`{program} {question}` said nothing that is known: {said}"),
            );
            Found { ran: true, ..found.with_remedy(format!("ask it yourself: `{program} {question}`")) }
        }
    })
}

fn place(mode: Mode) -> String {
    if mode.isolates() { format!("in mode {mode}") } else { "on the host".to_owned() }
}

fn answered(login: &Login, result: &RunResult, heard: &Heard) -> Option<bool> {
    (login.answer)(i32::from(result.exit_code), &heard.text())
}

/// Whether a failure says something of where the CLI runs, and not of what it answered.
fn is_ours(class: FailureClass) -> bool {
    !matches!(class, FailureClass::AgentError | FailureClass::AuthRequired)
}

/// A failure to ask, as people read it.
fn failed(cli: &dyn AgentCli, mode: Mode, failure: Failure) -> Found {
    let class = match failure.class {
        FailureClass::DaemonDown | FailureClass::RuntimeMissing => LoginClass::DaemonUnavailable,
        FailureClass::ImageMissing => LoginClass::ImageMissing,
        FailureClass::CliMissing => LoginClass::CliMissing,
        FailureClass::AuthRequired => LoginClass::LoginRequired,
        FailureClass::Timeout => LoginClass::Timeout,
        _ => LoginClass::Unknown,
    };
    let own = match class {
        LoginClass::CliMissing if mode.shares_system() => Some(cli.facts().install.to_owned()),
        LoginClass::CliMissing => {
            Some(format!("put it into the image: `ringfence sandbox build-image --mode {mode}`"))
        }
        LoginClass::Timeout => Some("try again; `ringfence sandbox doctor` shows what is slow".to_owned()),
        LoginClass::LoginRequired => Some(cli.facts().login.remedy.to_owned()),
        _ => None,
    };
    Found { remedy: own.or(failure.remedy.map(String::from)), ..Found::new(class, failure.message) }
}

/// What the CLI says it has, looked at where the real thing is. A login that has run out is refreshed, as the first task
/// would do it: only so one knows whether it still can be.
fn valid(
    cli: &dyn AgentCli,
    tool: Option<Result<LoginTool, ProviderError>>,
    outside: &Outside,
    credentials: Credentials,
    key: Option<&str>,
) -> Found {
    let name = cli.facts().name;
    let tool = match tool {
        Some(Ok(tool)) => tool,
        Some(Err(error)) => {
            return Found::new(LoginClass::LoginRequired, error.to_string())
                .with_remedy(cli.facts().login.remedy);
        }
        None => return Found::new(LoginClass::Ok, by_key(name, key)),
    };
    let report = tool.report();
    match (report.expired, report.refreshable) {
        (false, _) => Found::new(LoginClass::Ok, good(name, key, &report)),
        (true, false) => expired(cli, &report),
        // In a mode that has copies nobody inside can refresh, and on the host the CLI would: it is the same login.
        (true, true) if credentials != Credentials::None => {
            match tool.refresh(&outside.connect_to, &outside.roots) {
                Ok(report) => Found::new(LoginClass::Ok, good(name, key, &report)),
                // Who cannot be reached has not said no.
                Err(error @ LoginError::Unreachable { .. }) => Found {
                    ran: true,
                    ..Found::new(
                        LoginClass::Unknown,
                        format!("the login of {name} has to be refreshed: {error}"),
                    )
                    .with_remedy("check the network, and look again")
                },
                Err(error) => {
                    let found = expired(cli, &report);
                    Found { message: format!("{} and cannot be refreshed: {error}", found.message), ..found }
                }
            }
        }
        (true, true) => expired(cli, &report),
    }
}

fn by_key(name: &str, key: Option<&str>) -> String {
    match key {
        Some(key) => {
            format!("{name} has a key ({key}); whether its provider takes it is known when it is used")
        }
        None => format!("{name} says that it has a login"),
    }
}

fn good(name: &str, key: Option<&str>, report: &LoginReport) -> String {
    match (&report.expires_at, report.refreshable) {
        (Some(time), true) => {
            format!("{name} has a login ({}), good until {time} and refreshable", report.source)
        }
        (Some(time), false) => format!("{name} has a login ({}), good until {time}", report.source),
        (None, _) => by_key(name, key),
    }
}

fn expired(cli: &dyn AgentCli, report: &LoginReport) -> Found {
    let when = report.expires_at.as_deref().unwrap_or("some time ago");
    let message = format!("the login of {} ({}) has run out {when}", cli.facts().name, report.source);
    Found::new(LoginClass::Expired, message).with_remedy(cli.facts().login.remedy)
}

/// Takes down what the CLI prints.
#[derive(Default)]
struct Heard(Vec<u8>);

impl Heard {
    /// As text, without colours.
    fn text(&self) -> String {
        PlainText::from_bytes(&self.0).into_string()
    }

    fn first_line(&self) -> String {
        let text = self.text();
        let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("nothing");
        line.chars().take(200).collect()
    }
}

impl Observer for Heard {
    fn event(&mut self, _: &Event) -> io::Result<()> {
        Ok(())
    }

    fn raw(&mut self, _: Stream, bytes: &[u8]) -> io::Result<()> {
        if self.0.len() < LONGEST {
            self.0.extend(bytes);
        }
        Ok(())
    }
}
