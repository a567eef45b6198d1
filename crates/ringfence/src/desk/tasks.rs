//! Tasks, as they are asked for.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use ringfence_core::config::PolicyChoice;
use ringfence_core::ids::{AgentId, RunId, TaskId};
use ringfence_core::task::{State, TaskEvent, TaskSpec, TaskStatus};
use ringfence_engine::queue::{Holder, Premises, RunLocks, pause, write_letters};
use ringfence_server::desk::{Agent, AgentStatus, Answer, Refusal, RefusalKind};
use ringfence_store::{Added, AgentRow, Change, DeadLetter, NewTask, Task, Tasks};
use rustix::process::{Signal, pidfd_send_signal};

use super::{Refuse, internal};
use crate::cli::{Options, Wish, is_running};
use crate::governing::Named;
use crate::installation::Installation;
use crate::queue::Office;
use crate::report::unstored;
use crate::workspace::Workspace;

/// Where tasks work, by all that says so: many tasks of one batch say the same.
type Seen = BTreeMap<String, (Option<AgentId>, Workspace)>;

/// Accepts tasks, all or none.
pub(super) fn add(installation: &Installation, specs: Vec<TaskSpec>) -> Answer<Vec<Added>> {
    let mut seen = Seen::default();
    let new: Vec<NewTask> =
        specs.into_iter().map(|spec| accepted(spec, installation, &mut seen)).collect::<Result<_, _>>()?;
    Ok(installation.store().map_err(internal)?.add(&new, installation.clock().now())?)
}

/// A task that can be done as far as one can tell now: its agent is known, its directory is there.
fn accepted(mut spec: TaskSpec, installation: &Installation, seen: &mut Seen) -> Answer<NewTask> {
    let invalid = |why: String| Refusal::new(RefusalKind::Invalid, why);
    spec.check().map_err(|why| invalid(why.to_string()))?;
    if let Some(command) = &spec.command
        && shlex::split(command).is_none_or(|words| words.is_empty())
    {
        return Err(invalid(format!("`{command}` is not a command in the shell's words")));
    }
    // The daemon stands elsewhere.
    if let Some(Ok(PolicyChoice::File(file))) = spec.policy.clone().map(PolicyChoice::try_from) {
        let path = installation.settled(&file);
        if !path.is_absolute() {
            return Err(invalid(format!("policy: `{}` is no absolute path", file.display())));
        }
        spec.policy = Some(path.display().to_string());
    }
    let options = Options::of_task(&spec);
    let key = format!("{:?}", (&spec.agent, spec.role, &spec.directory, spec.mode, &spec.policy));
    let (agent, workspace) = match seen.get(&key) {
        Some(known) => known.clone(),
        None => {
            let found = Wish::of_task(&spec, &options).fulfil(installation, |asked, _| {
                let (mode, workspace) = (asked.mode(), asked.workspace()?);
                let (mut policy, _) = asked.policy(mode)?;
                let named = Named::by(asked.layers, installation)?;
                asked.check_governing(mode, &mut policy, &workspace, &named)?;
                let agent = asked.name.parse().ok().filter(|id| asked.settings.agents.contains_key(id));
                Ok((agent, workspace))
            });
            seen.entry(key).or_insert(found.refuse()?).clone()
        }
    };
    let Workspace { path, id } = workspace;
    let lane = lane(spec.lane.as_deref(), agent.as_ref(), path.as_path());
    // The daemon stands elsewhere.
    spec.directory = Some(path.into());
    Ok(NewTask { spec, lane, workspace: id })
}

/// Who has to wait for whom: an agent's tasks for each other, and where no agent of the settings is named those of one
/// directory, for two agents in one directory are in each other's way.
fn lane(named: Option<&str>, agent: Option<&AgentId>, directory: &Path) -> String {
    match (named, agent) {
        (Some(lane), _) => format!("lane {lane}"),
        (None, Some(agent)) => format!("agent {agent}"),
        (None, None) => format!("directory {}", directory.display()),
    }
}

/// How long a run gets to end by itself.
const GRACE: Duration = Duration::from_secs(15);

/// Takes a task out of the queue, and ends its run.
pub(super) fn cancel(installation: &Installation, task: &TaskId) -> Answer<Task> {
    let store = installation.store().map_err(internal)?;
    let rules = installation.rules().map_err(internal)?;
    let change =
        Change { task, event: TaskEvent::Cancel, rules: &rules, jitter: 0, result: None, workspace: None };
    let changed = store.change(&change, installation.clock().now())?;
    write_letters(&*store, &installation.state, &changed.died);
    if let State::Running { run, .. } = &changed.before.state {
        let office = Office { installation, logs_to_files: false };
        end_run(installation, &office, run).refuse()?;
        store.cleanup_done(task, run, installation.clock().now())?;
    }
    Ok(store.task(task)?)
}

/// Ends a run, whoever started it, and waits until nothing of it is left.
fn end_run(installation: &Installation, office: &Office<'_>, run: &RunId) -> anyhow::Result<()> {
    let locks = RunLocks::new(&installation.state);
    let begun = Instant::now();
    let mut asked = false;
    loop {
        match locks.holder(run)? {
            Holder::Nobody(_lock) => {
                office.clear(run).map_err(crate::report::failed)?;
                locks.forget(run);
                return Ok(());
            }
            Holder::Runner(who) => {
                let late = begun.elapsed() >= GRACE;
                if (late || !asked)
                    && let Some(process) = who.open()
                {
                    let _ = pidfd_send_signal(&process, if late { Signal::KILL } else { Signal::TERM });
                    asked = true;
                }
            }
            Holder::Unnamed => {}
        }
        if begun.elapsed() >= GRACE * 2 {
            bail!("the run {run} does not end; `ps` shows its processes");
        }
        pause(Duration::from_millis(20));
    }
}

/// Puts a task into the queue again, in the directory that has its path now.
pub(super) fn retry(installation: &Installation, task: &TaskId) -> Answer<Task> {
    let store = installation.store().map_err(internal)?;
    let rules = installation.rules().map_err(internal)?;
    // A person asks for it, so the directory that is there now is the one that is meant.
    let directory = store.task(task)?.spec.directory;
    let workspace = directory.map(|path| Workspace::at(&path)).transpose().refuse()?.map(|found| found.id);
    let change = Change { task, event: TaskEvent::Retry, rules: &rules, jitter: 0, result: None, workspace };
    let changed = store.change(&change, installation.clock().now())?;
    DeadLetter::remove(&installation.state, task);
    Ok(changed.task)
}

/// The agents of the settings, whether or not they have had a task, and all others that had one.
pub(super) fn agents(installation: &Installation) -> anyhow::Result<Vec<Agent>> {
    let settings = installation.settings()?;
    let mut known = installation.store()?.agents().map_err(unstored)?;
    for id in settings.agents.keys().map(|id| id.as_str()) {
        if !known.iter().any(|row| row.agent == id) {
            known.push(AgentRow { agent: id.to_owned(), ..AgentRow::default() });
        }
    }
    known.sort_by(|a, b| a.agent.cmp(&b.agent));
    let online = is_running(installation);
    let agents = known.into_iter().map(|row| {
        let running = row.tasks.get(&TaskStatus::Running).is_some_and(|count| *count > 0);
        let status = match (running, online) {
            (true, _) => AgentStatus::Busy,
            (false, true) => AgentStatus::Idle,
            (false, false) => AgentStatus::Offline,
        };
        let agent = row.agent.parse().ok().and_then(|id| settings.agents.get(&id));
        Agent { status, name: agent.and_then(|agent| agent.name.clone()), row }
    });
    Ok(agents.collect())
}
