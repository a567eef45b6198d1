//! `ringfence run`: an agent on a prompt, in the foreground.

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use ringfence_agents::AgentCli;
use ringfence_core::config::{AgentSettings, Settings};
use ringfence_core::ids::{AgentId, SessionId};
use ringfence_core::nearest;
use ringfence_core::task::{Role, TaskSpec};
use ringfence_engine::Work;
use ringfence_store::runs::Progress;

use super::job::{Asked, Face, at_terminal};
use super::options::{Options, url};
use crate::installation::Installation;
use crate::report::advise;
use crate::workspace::Workspace;

/// Let an agent work on a prompt, and watch.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to do; `-` reads it from standard input. Without it, at a terminal, you talk to the agent yourself
    prompt: Option<String>,
    /// An agent of your settings, or an agent CLI: claude, codex, opencode, demo, command
    #[arg(short, long, value_name = "AGENT")]
    agent: Option<String>,
    /// Which model, instead of the agent's
    #[arg(short, long)]
    model: Option<String>,
    /// Another address of the model's server
    #[arg(long, value_name = "URL", value_parser = url)]
    base_url: Option<String>,
    /// With `--agent command`: what to run; `{prompt}` as a word stands for the prompt
    #[arg(long, value_name = "WORDS")]
    command: Option<String>,
    /// Continue the conversation with this id
    #[arg(long, value_name = "SESSION", conflicts_with = "continue_last")]
    resume: Option<SessionId>,
    /// Continue the last conversation of this agent in this workspace
    #[arg(short, long = "continue")]
    continue_last: bool,
    /// Copy the files to DIR that the agent names as `[send_file: PATH]` in its last word
    #[arg(long, value_name = "DIR")]
    attachments: Option<PathBuf>,
    #[command(flatten)]
    pub(super) options: Options,
}

pub(crate) fn run(mut args: Args, installation: &Installation) -> anyhow::Result<ExitCode> {
    args.options.attachments = args.attachments.take();
    let face = match &args.prompt {
        None if at_terminal() && !args.options.json => Face::Conversation,
        _ => Face::Human,
    };
    let prompt = match args.prompt.as_deref() {
        Some("-") => read_prompt()?,
        other => other.unwrap_or_default().to_owned(),
    };
    let wish = Wish {
        agent: args.agent.as_deref(),
        role: None,
        prompt: &prompt,
        model: args.model.as_deref(),
        base_url: args.base_url.as_deref(),
        command: args.command.as_deref(),
        options: &args.options,
    };
    let (resume, continue_last) = (args.resume.take(), args.continue_last);
    let result = wish.fulfil(installation, |asked, mut work| {
        if let Work::Agent { session, .. } = &mut work {
            *session = match resume {
                Some(session) => Some(session),
                None if continue_last => Some(last_session(asked)?),
                None => None,
            };
        }
        asked.perform(work, &face)
    })?;
    Ok(ExitCode::from(result.exit_code))
}

/// What an agent is wanted for.
pub(crate) struct Wish<'a> {
    pub(crate) agent: Option<&'a str>,
    /// Whose agent CLI it is where no agent is named.
    pub(crate) role: Option<Role>,
    pub(crate) prompt: &'a str,
    pub(crate) model: Option<&'a str>,
    pub(crate) base_url: Option<&'a str>,
    pub(crate) command: Option<&'a str>,
    pub(crate) options: &'a Options,
}

impl<'a> Wish<'a> {
    /// What a task is about.
    pub(crate) fn of_task(spec: &'a TaskSpec, options: &'a Options) -> Self {
        Self {
            agent: spec.agent.as_deref(),
            role: Some(spec.role),
            prompt: &spec.prompt,
            model: spec.model.as_deref(),
            base_url: spec.base_url.as_deref(),
            command: spec.command.as_deref(),
            options,
        }
    }

    /// Looks up all that it means, and has it done.
    pub(crate) fn fulfil<T>(
        &self,
        installation: &Installation,
        act: impl FnOnce(&Asked<'_>, Work<'_>) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        // The agent says where it works, and where it works may say more: the second look is the one that counts.
        let settings = installation.layers()?.resolve()?;
        let chosen = choose(self.agent, self.role, &settings)?;
        let workspace = Workspace::of(installation, self.options, chosen.settings)?;
        let layers = installation.layers_for(workspace.path.as_path())?;
        let settings = layers.resolve()?;
        let chosen = choose(Some(&chosen.name), None, &settings)?;
        let fallback = AgentSettings::default();
        let agent = chosen.settings.unwrap_or(&fallback);
        let asked = Asked {
            installation,
            layers: &layers,
            settings: &settings,
            options: self.options,
            agent: chosen.settings,
            name: &chosen.name,
            workspace: None,
        };
        let own_program = installation.program.display().to_string();
        let work = Work::Agent {
            cli: chosen.cli,
            prompt: self.prompt,
            model: self.model.or(agent.model.as_deref()),
            base_url: self.base_url.or(agent.base_url.as_deref()),
            session: None,
            command: self.command.or(agent.command.as_deref()),
            own_program: &own_program,
        };
        act(&asked, work)
    }
}

fn read_prompt() -> anyhow::Result<String> {
    let mut prompt = String::new();
    // One byte more than fits, so that too long a prompt is noticed and an endless one ends.
    let most = ringfence_agents::LONGEST_PROMPT as u64 + 1;
    let read = std::io::stdin().take(most).read_to_string(&mut prompt);
    read.context("the prompt cannot be read from standard input")?;
    Ok(prompt)
}

struct Chosen<'a> {
    name: String,
    cli: &'static dyn AgentCli,
    settings: Option<&'a AgentSettings>,
}

/// An agent of the settings wins over an agent CLI of the same name.
fn choose<'a>(name: Option<&str>, role: Option<Role>, settings: &'a Settings) -> anyhow::Result<Chosen<'a>> {
    let ids: Vec<&AgentId> = settings.agents.keys().collect();
    let name = name.or_else(|| settings.executor.of(role?));
    let name = match (name, &ids[..]) {
        (Some(name), _) => name,
        (None, [only]) => only.as_str(),
        (None, _) => {
            return Err(advise(
                anyhow!("no agent is named"),
                format!("name one with --agent: {}", known(settings)),
            ));
        }
    };
    let configured = name.parse::<AgentId>().ok().and_then(|id| settings.agents.get(&id));
    let unknown = || {
        let candidates = ids.iter().map(|id| id.as_str()).chain(ringfence_agents::names());
        let hint =
            nearest(name, candidates).map(|near| format!("did you mean `{near}`? ")).unwrap_or_default();
        advise(anyhow!("there is no agent `{name}`"), format!("{hint}known are {}", known(settings)))
    };
    let cli_name = configured.and_then(AgentSettings::cli_name).unwrap_or(name);
    let cli = ringfence_agents::find(cli_name).ok_or_else(|| match configured {
        Some(_) => advise(
            anyhow!("the agent `{name}` of the settings says neither `cli` nor `provider`"),
            format!("set one: `ringfence config set agents.{name}.cli claude`"),
        ),
        None => unknown(),
    })?;
    Ok(Chosen { name: name.to_owned(), cli, settings: configured })
}

fn known(settings: &Settings) -> String {
    let agents = settings.agents.keys().map(AgentId::as_str);
    agents.chain(ringfence_agents::names()).collect::<Vec<_>>().join(", ")
}

/// The conversation of the newest run of this agent in this workspace that has one.
fn last_session(asked: &Asked<'_>) -> anyhow::Result<SessionId> {
    let runs = asked.installation.runs();
    let workspace = asked.workspace()?.path;
    for id in runs.list()? {
        let Ok(record) = runs.record(&id) else { continue };
        if record.agent == asked.name
            && record.workspace.host() == &workspace
            && let Ok(Progress::Ended(result)) = runs.progress(&id)
            && let Some(session) = result.session
        {
            return Ok(session);
        }
    }
    Err(advise(
        anyhow!("there is no conversation of `{}` in {workspace} to continue", asked.name),
        "start one without --continue",
    ))
}
