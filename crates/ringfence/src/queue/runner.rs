//! One run of one task, as a process of its own. It needs nobody: it says that it lives, and ends its task itself.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ringfence_core::backend::Stop;
use ringfence_core::event::{RunResult, Usage};
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::ids::{RunId, TaskId};
use ringfence_core::mode::Mode;
use ringfence_core::task::{State, TaskEvent};
use ringfence_engine::Cancel;
use ringfence_engine::queue::{RunLocks, finish, incident_of, keep_alive};
use ringfence_store::runs::Progress;
use ringfence_store::{Store, StoreError, Task, TaskPolicy, TaskRun};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::{Options, Wish};
use crate::installation::{Installation, rules};
use crate::{gate, report};

/// What attempts have used, as the broker has metered it. What the agent CLI tells does not count: any process of a run can print
/// it. Of a run that is removed, its row is left.
fn metered(attempts: &[TaskRun], result_of: impl Fn(&RunId) -> Option<RunResult>) -> Usage {
    let of = |attempt: &TaskRun| {
        result_of(&attempt.run).map_or(attempt.usage, |result| result.metered_total()).bounded()
    };
    attempts.iter().fold(Usage::default(), |sum, attempt| sum.plus(of(attempt)))
}

/// The hidden argument that makes the binary a runner.
pub(crate) const ARGUMENT: &str = "__task";

/// How long an end that cannot be written down is tried to be.
const STUBBORN: Duration = Duration::from_secs(3600);
const AGAIN: Duration = Duration::from_secs(1);

/// Does a task. The lock of the run is its standard input.
pub(crate) fn run(args: &[String]) -> anyhow::Result<()> {
    let [task, run, fence, likely] = args else { bail!("a runner is started by ringfence alone") };
    let lock = held_lock().context("the lock of the run is not there")?;
    // Before the second thread, so that it holds the lock as well: it ends when all is over that it started.
    let gate_mode = likely.parse::<Mode>().ok().filter(|mode| mode.shares_system());
    let gate = gate_mode.and_then(|mode| gate::ahead(mode.isolates()));
    RunLocks::sign(&lock)?;
    let installation = Installation::discover(gate)?;
    let (task, run): (TaskId, RunId) = (task.parse()?, run.parse()?);
    let store: Arc<dyn Store> = installation.store()?;
    // Kept for the end, should the settings not be readable then.
    let rules = installation.rules()?;
    let runner =
        Runner { store, rules, gate_mode, installation: &installation, fence: fence.parse()?, task, run };
    runner.work()?;
    RunLocks::new(&installation.state).forget(&runner.run);
    drop(lock);
    Ok(())
}

/// Takes the lock from standard input, which reads nothing from now on.
fn held_lock() -> anyhow::Result<File> {
    let lock: OwnedFd = rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 3)?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(lock.into())
}

struct Runner<'a> {
    installation: &'a Installation,
    store: Arc<dyn Store>,
    task: TaskId,
    run: RunId,
    fence: u64,
    rules: TaskPolicy,
    /// What the gate was made for, which holds the lock as well.
    gate_mode: Option<Mode>,
}

impl Runner<'_> {
    fn work(&self) -> anyhow::Result<()> {
        let task = self.store.task(&self.task)?;
        match &task.lifecycle.state {
            State::Running { run, .. } if *run == self.run && task.lifecycle.fence == self.fence => {}
            // It was cancelled before it began.
            _ => return Ok(()),
        }
        let cancel = Cancel::default();
        let told = cancel_on_signals(cancel.clone(), Arc::clone(&self.installation.interrupted))?;
        let clock = self.installation.clock();
        keep_alive(Arc::clone(&self.store), self.task.clone(), self.fence, clock, cancel.clone())?;
        let (event, result) = self.attempt(&task, &cancel);
        self.end(&event, result.as_ref(), &told)
    }

    /// Runs it. What could not even be started is a failure like others.
    fn attempt(&self, task: &Task, cancel: &Cancel) -> (TaskEvent, Option<RunResult>) {
        let (fence, spec) = (self.fence, &task.spec);
        if task.workspace.is_none() {
            return (TaskEvent::Failed { fence, failure: unknown_directory(task) }, None);
        }
        let options = Options {
            workspace_id: task.workspace,
            attachments: Some(self.installation.runs().attachments(&self.run)),
            ..Options::of_task(spec)
        };
        let done = Wish::of_task(spec, &options).fulfil(self.installation, |asked, work| {
            let mode = asked.mode();
            if mode.shares_system() && self.gate_mode.is_none() {
                // The settings have changed since: without a gate that holds the lock nobody would know when all is over.
                return Ok(None);
            }
            // The attempts at a task share its budget.
            let spent = self.spent()?;
            asked.attempt(work, self.run.clone(), spent, cancel).map(Some)
        });
        match done {
            Ok(Some(Ok(result))) => (incident_of(&result, fence), Some(result)),
            Ok(Some(Err(failure))) => (TaskEvent::Failed { fence, failure }, None),
            Ok(None) => (TaskEvent::Released { fence }, None),
            // Somebody is just changing the settings: nothing is taken until they can be read again.
            Err(_) if self.installation.settings().is_err() => (TaskEvent::Released { fence }, None),
            Err(error) => (TaskEvent::Failed { fence, failure: unstarted(&error) }, None),
        }
    }

    /// What earlier attempts have used.
    fn spent(&self) -> anyhow::Result<Usage> {
        let runs = self.installation.runs();
        let result_of = |run: &RunId| match runs.progress(run) {
            Ok(Progress::Ended(result)) => Some(*result),
            _ => None,
        };
        Ok(metered(&self.store.runs_of_task(&self.task)?, result_of))
    }

    /// Writes the end down. A disk that is full now may not be later; whoever is told to end leaves it to others.
    fn end(&self, event: &TaskEvent, result: Option<&RunResult>, told: &Receiver<()>) -> anyhow::Result<()> {
        let clock = self.installation.clock();
        let begun = Instant::now();
        loop {
            let settings = self.installation.settings();
            let rules = settings.map_or_else(|_| self.rules.clone(), |settings| rules(&settings));
            let (state, now) = (&self.installation.state, clock.now());
            match finish(&*self.store, state, &self.task, event.clone(), result, &rules, now) {
                Err(error) if error.is_passing() && begun.elapsed() < STUBBORN => {
                    if told.recv_timeout(AGAIN).is_ok() {
                        return Err(error.into());
                    }
                }
                Err(error) => return Err(error.into()),
                Ok(_) => return Ok(()),
            }
        }
    }
}

/// Why a task is not run of which it is not known which directory was meant.
fn unknown_directory(task: &Task) -> Failure {
    let message = format!("the directory of task {} was not identified when it was added", task.id);
    let remedy = format!("accept the one that is there now with `ringfence task retry {}`", task.id);
    Failure::new(FailureClass::Refused, message).with_remedy(remedy)
}

/// Why nothing was started. What a busy or full store said is not the task's fault.
fn unstarted(error: &anyhow::Error) -> Failure {
    let failure = report::as_failure(error);
    let error = error.downcast_ref::<report::Advised>().map_or(error, |advised| &advised.error);
    let passing =
        error.chain().any(|cause| cause.downcast_ref::<StoreError>().is_some_and(StoreError::is_passing));
    if passing { Failure { class: FailureClass::Unknown, ..failure } } else { failure }
}

/// A second signal counts only after a while: more than one may tell the same.
const INSIST: Duration = Duration::from_secs(5);

/// Whoever sends a signal wants the run to end; whoever sends one again wants it at once. Each is passed on.
fn cancel_on_signals(cancel: Cancel, interrupted: Arc<AtomicBool>) -> anyhow::Result<Receiver<()>> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let (tell, told) = channel();
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let mut first = None;
        for _ in signals.forever() {
            interrupted.store(true, Ordering::Relaxed);
            let first = *first.get_or_insert_with(Instant::now);
            cancel.request(if first.elapsed() < INSIST { Stop::Interrupt } else { Stop::Kill });
            let _ = tell.send(());
        }
    })?;
    Ok(told)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ringfence_core::event::{RunResult, RunStatus, Usage};
    use ringfence_store::TaskRun;

    use super::metered;

    #[test]
    fn only_what_was_metered_counts_against_the_budget_of_later_attempts() {
        let forged = Usage { input_tokens: u64::MAX, cost_usd: Some(-1e300), ..Usage::default() };
        let seen = Usage { input_tokens: 5, cost_usd: Some(2.0), ..Usage::default() };
        let run: ringfence_core::ids::RunId = "RUN".parse().unwrap();
        let attempt = TaskRun {
            run: run.clone(),
            task: "t1".parse().unwrap(),
            fence: 1,
            owner: String::new(),
            started_ms: 0,
            ended_ms: None,
            status: None,
            class: None,
            usage: forged,
        };
        let result = |metered: BTreeMap<_, Usage>| RunResult {
            run: run.clone(),
            status: RunStatus::Failed,
            exit_code: 1,
            text: "".into(),
            attachments: Vec::new(),
            session: None,
            usage: forged,
            session_usage: None,
            metered,
            duration_ms: 0,
            leftover_processes: 0,
            surviving_processes: 0,
            git_refs: Vec::new(),
            executed_later: Vec::new(),
            failure: None,
        };
        let attempts = [attempt.clone(), attempt];
        let twice = Usage { input_tokens: 10, cost_usd: Some(4.0), ..Usage::default() };
        assert_eq!(metered(&attempts, |_| Some(result([("m".into(), seen)].into()))), twice);
        assert_eq!(metered(&attempts, |_| Some(result(BTreeMap::new()))), Usage::default());
        assert_eq!(metered(&attempts, |_| None).cost_usd, None);
    }
}
