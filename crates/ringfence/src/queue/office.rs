//! What the engine's dispatcher and manager need of this installation.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context;
use ringfence_backends::entry;
use ringfence_core::event::RunResult;
use ringfence_core::failure::Failure;
use ringfence_core::ids::RunId;
use ringfence_core::mode::{ExecutionEnvironment, Mode};
use ringfence_core::record::Record;
use ringfence_core::task::TaskSpec;
use ringfence_engine::queue::{Premises, ProcessCommand, ProcessName, QueueSettings};
use ringfence_store::Task;
use ringfence_store::runs::Progress;

use super::{PROCESS_ARGUMENT, TASK_ARGUMENT};
use crate::cli::{Options, Wish};
use crate::desk::NOT_PASSED;
use crate::installation::{Installation, rules};

/// This installation, as the queue sees it.
pub(crate) struct Office<'a> {
    pub(crate) installation: &'a Installation,
    /// Whether processes write their logs to files.
    pub(crate) logs_to_files: bool,
}

impl Office<'_> {
    /// Where a task would run, found out as the runner does.
    fn mode(&self, spec: &TaskSpec) -> anyhow::Result<Mode> {
        match spec.mode {
            Some(mode) => Ok(mode),
            None => Wish::of_task(spec, &Options::of_task(spec))
                .fulfil(self.installation, |asked, _| Ok(asked.mode())),
        }
    }

    fn own(&self) -> Command {
        let mut command = self.installation.own_command();
        // A Ctrl-C at the terminal of the daemon is for the daemon alone.
        command.process_group(0).stdout(Stdio::null());
        NOT_PASSED.iter().for_each(|name| {
            command.env_remove(name);
        });
        command
    }
}

impl Premises for Office<'_> {
    fn settings(&self) -> Result<QueueSettings, String> {
        let settings = self.installation.settings().map_err(|error| format!("{error:#}"))?;
        let rules = rules(&settings);
        Ok(QueueSettings { max_concurrency: settings.sandbox.max_concurrency, rules })
    }

    fn mode_of(&self, spec: &TaskSpec) -> Option<Mode> {
        self.mode(spec).ok()
    }

    fn launch(&self, task: &Task, run: &RunId, lock: File) -> io::Result<Child> {
        let likely = self.mode_of(&task.spec).map_or("", Mode::as_str);
        let fence = task.lifecycle.fence.to_string();
        self.own().args([TASK_ARGUMENT, task.id.as_str(), run.as_str(), &fence, likely]).stdin(lock).spawn()
    }

    fn clear(&self, run: &RunId) -> Result<(), Failure> {
        let record = match self.installation.runs().record(run) {
            Ok(record) if !record.mode.shares_system() => record,
            // Its lock was held by all that ran of it; without a record nothing ever ran.
            _ => return Ok(()),
        };
        let Some(keeper) = entry(record.mode).keeper else { return Ok(()) };
        let remove = || {
            let keeper = keeper(&self.installation.surroundings())?;
            let mut left = keeper.list()?.into_iter().filter(|kept| kept.run == run.as_str());
            left.try_for_each(|kept| keeper.remove(&kept.name))
        };
        match remove() {
            // Its gate ends it by itself when its time is over, whether or not the engine answers.
            Err(_) if is_over(&record) => Ok(()),
            other => other,
        }
    }

    fn result_of(&self, run: &RunId) -> Option<RunResult> {
        match self.installation.runs().progress(run) {
            Ok(Progress::Ended(result)) => Some(*result),
            _ => None,
        }
    }
}

impl ProcessCommand for Office<'_> {
    fn start(&self, name: ProcessName) -> io::Result<Child> {
        let logs = if self.logs_to_files { "files" } else { "stderr" };
        self.own().args([PROCESS_ARGUMENT, &name.to_string(), logs]).stdin(Stdio::piped()).spawn()
    }

    fn environment(&self) -> Result<ExecutionEnvironment, String> {
        let settings = self.installation.settings().context("the settings cannot be read");
        settings
            .map(|settings| ExecutionEnvironment::of(settings.sandbox.mode))
            .map_err(|error| format!("{error:#}"))
    }
}

/// How long after its time a run may need to end by itself.
const LAST_MOMENTS: Duration = Duration::from_secs(120);

/// Whether the time of a run is over.
fn is_over(record: &Record) -> bool {
    let began = record.started_at.parse::<jiff::Timestamp>().ok().map(std::time::SystemTime::from);
    let since = began.and_then(|began| began.elapsed().ok());
    since.is_some_and(|since| since > record.effective.limits.timeout_seconds.duration() + LAST_MOMENTS)
}
