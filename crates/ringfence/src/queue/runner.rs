//! One run of one task, as a process of its own. It needs nobody: it says that it lives, and ends its task itself.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ringfence_core::backend::Stop;
use ringfence_core::event::RunResult;
use ringfence_core::ids::{RunId, TaskId};
use ringfence_core::mode::Mode;
use ringfence_core::task::{Incident, State, TaskSpec};
use ringfence_engine::Cancel;
use ringfence_engine::queue::{RunLocks, finish, incident_of, keep_alive};
use ringfence_store::{Store, StoreError};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::office::Office;
use crate::cli::{Options, Wish};
use crate::installation::Installation;
use crate::{gate, report};

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
    let gate = match likely.parse::<Mode>() {
        Ok(mode) if mode.shares_system() => gate::ahead(mode.isolates()),
        _ => None,
    };
    RunLocks::sign(&lock)?;
    let installation = Installation::discover(gate)?;
    let (task, run): (TaskId, RunId) = (task.parse()?, run.parse()?);
    let runner = Runner {
        store: Arc::new(installation.store()?),
        installation: &installation,
        fence: fence.parse()?,
        task,
        run,
    };
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
}

impl Runner<'_> {
    fn work(&self) -> anyhow::Result<()> {
        let task = self.store.task(&self.task)?;
        match &task.life.state {
            State::Running { run, .. } if *run == self.run && task.life.fence == self.fence => {}
            // It was cancelled before it began.
            _ => return Ok(()),
        }
        let cancel = Cancel::default();
        cancel_on_signals(cancel.clone())?;
        let clock = self.installation.clock();
        keep_alive(Arc::clone(&self.store), self.task.clone(), self.fence, clock, cancel.clone())?;
        let (incident, result) = self.attempt(&task.spec, &cancel);
        self.end(&incident, result.as_ref())
    }

    /// Runs it. What could not even be started is a failure like others.
    fn attempt(&self, spec: &TaskSpec, cancel: &Cancel) -> (Incident, Option<RunResult>) {
        let fence = self.fence;
        let options = Options {
            attachments: Some(self.installation.runs().attachments(&self.run)),
            ..Options::of_task(spec)
        };
        let wish = Wish {
            agent: spec.agent.as_deref(),
            role: Some(spec.role),
            prompt: &spec.prompt,
            model: spec.model.as_deref(),
            base_url: spec.base_url.as_deref(),
            command: spec.command.as_deref(),
            options: &options,
        };
        let done =
            wish.fulfil(self.installation, |asked, work| asked.attempt(work, self.run.clone(), cancel));
        match done {
            Ok(Ok(result)) => (incident_of(&result, fence), Some(result)),
            Ok(Err(failure)) => (Incident::Failed { fence, failure }, None),
            Err(error) => (Incident::Failed { fence, failure: report::as_failure(&error) }, None),
        }
    }

    /// Writes the end down. A disk that is full now may not be later.
    fn end(&self, incident: &Incident, result: Option<&RunResult>) -> anyhow::Result<()> {
        let clock = self.installation.clock();
        let office = Office { installation: self.installation, logs_to_files: false };
        let begun = Instant::now();
        let (_kept, never) = channel::<()>();
        loop {
            let settings = office.resolved();
            let written = match &settings {
                Ok(settings) => {
                    let (rules, now) = (Office::rules(settings), clock.now());
                    let state = &self.installation.state;
                    finish(&*self.store, state, &self.task, incident.clone(), result, &rules, now)
                }
                Err(error) => Err(StoreError::Other(format!("{error:#}"))),
            };
            match written {
                Err(error) if error.is_passing() && begun.elapsed() < STUBBORN => {
                    let _ = never.recv_timeout(AGAIN);
                }
                Err(error) => return Err(error.into()),
                Ok(_) => return Ok(()),
            }
        }
    }
}

/// Whoever sends a signal wants the run to end; whoever sends two wants it at once.
fn cancel_on_signals(cancel: Cancel) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for (count, _) in signals.forever().enumerate() {
            cancel.request(if count == 0 { Stop::Interrupt } else { Stop::Kill });
        }
    })?;
    Ok(())
}
