//! What can be asked of this installation, for the command line and for the daemon's API alike.

mod asking;
mod processes;
mod runs;
mod settings;
mod tasks;

pub(crate) use asking::NOT_PASSED;
pub(crate) use processes::log_file as process_log_file;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use ringfence_core::config::shown_url;
use ringfence_core::event::Attachment;
use ringfence_core::ids::{RunId, TaskId};
use ringfence_core::mode::{ExecutionEnvironment, Mode};
use ringfence_core::task::TaskSpec;
use ringfence_egress::Entry as AuditEntry;
use ringfence_server::desk::{
    Agent, Answer, Desk, DoctorReport, FileChange, Hear, House, Letters, LoginCheck, LoginClass, ModeTiming,
    ModeView, ProcessAnswer, Refusal, RefusalKind, RunRow, RunView, Setting, SettingsChanged, Status,
    StoppedAll, Tell, Used, UsedBy,
};
use ringfence_store::runs::Progress;
use ringfence_store::{
    Added, Counts, DeadLetter, DeadLetters, Deliveries, DeliveryState, Events, Filter, NewEvent, ProcessRow,
    Span, StoredEvent, Task, TaskRun, Tasks,
};
use serde_json::Value;

use crate::installation::Installation;
use crate::report::{Advised, advise};

/// This installation, asked directly.
pub(crate) struct Local {
    pub(crate) installation: Installation,
}

/// An error of ours as a refusal. What is not said to be another kind cannot be done as things are.
pub(crate) fn refused(error: &anyhow::Error) -> Refusal {
    if let Some(refusal) = error.downcast_ref::<Refusal>() {
        return refusal.clone();
    }
    let (message, remedy) = match error.downcast_ref::<Advised>() {
        Some(advised) => (advised.to_string(), Some(advised.remedy.clone())),
        None => (format!("{error:#}"), None),
    };
    Refusal::new(RefusalKind::Conflict, message).with_remedy(remedy)
}

/// A refusal as an error of the command line.
pub(crate) fn told(refusal: Refusal) -> anyhow::Error {
    match refusal.remedy.clone() {
        Some(remedy) => advise(refusal, remedy),
        None => refusal.into(),
    }
}

/// Makes errors of ours refusals.
trait Refuse<T> {
    fn refuse(self) -> Answer<T>;
}

impl<T> Refuse<T> for anyhow::Result<T> {
    fn refuse(self) -> Answer<T> {
        self.map_err(|error| refused(&error))
    }
}

/// The same where something is wrong on this machine, and not with what was asked for.
fn internal(error: impl Into<anyhow::Error>) -> Refusal {
    Refusal { kind: RefusalKind::Internal, ..refused(&error.into()) }
}

/// A task without what stands in its addresses besides their hosts.
fn shown(task: Task) -> Task {
    Task { spec: task.spec.shown(), ..task }
}

fn shown_letter(letter: DeadLetter) -> DeadLetter {
    DeadLetter { task: shown(letter.task), ..letter }
}

impl Desk for Local {
    fn add(&self, specs: Vec<TaskSpec>) -> Answer<Vec<Added>> {
        tasks::add(&self.installation, specs)
    }

    fn tasks(&self, filter: &Filter) -> Answer<Vec<Task>> {
        Ok(self.store()?.tasks(filter)?.into_iter().map(shown).collect())
    }

    fn task(&self, id: &TaskId) -> Answer<Task> {
        Ok(shown(self.store()?.task(id)?))
    }

    fn counts(&self) -> Answer<Counts> {
        Ok(self.store()?.counts()?)
    }

    fn runs_of_task(&self, id: &TaskId) -> Answer<Vec<TaskRun>> {
        Ok(self.store()?.runs_of_task(id)?)
    }

    fn cancel(&self, id: &TaskId) -> Answer<Task> {
        tasks::cancel(&self.installation, id).map(shown)
    }

    fn retry(&self, id: &TaskId) -> Answer<Task> {
        tasks::retry(&self.installation, id).map(shown)
    }

    fn forget(&self, id: &TaskId) -> Answer<()> {
        self.store()?.delete(id, self.installation.clock().now())?;
        DeadLetter::remove(&self.installation.state, id);
        Ok(())
    }

    fn dead_letters(&self, before: Option<&TaskId>, limit: usize) -> Answer<Letters> {
        let store = self.store()?;
        let tasks = store.dead_letters(before, limit)?.into_iter().map(shown_letter).collect();
        let mut webhooks = store.deliveries(DeliveryState::Dead)?;
        webhooks.iter_mut().for_each(|webhook| webhook.url = shown_url(&webhook.url));
        Ok(Letters { tasks, webhooks })
    }

    fn dead_letter(&self, id: &TaskId) -> Answer<DeadLetter> {
        Ok(shown_letter(self.store()?.dead_letter(id)?))
    }

    fn discard(&self, id: &TaskId) -> Answer<()> {
        self.store()?.discard(id)?;
        DeadLetter::remove(&self.installation.state, id);
        if DeadLetter::file(&self.installation.state, id).exists() {
            return Err(Refusal::new(
                RefusalKind::Internal,
                format!("the file of task {id} cannot be removed"),
            ));
        }
        Ok(())
    }

    fn events(&self, after: u64, limit: usize, wait: Duration) -> Answer<Vec<StoredEvent>> {
        let store = self.store()?;
        if wait.is_zero() {
            return Ok(store.events_after(after, limit)?);
        }
        let changes = store.notifier().listen().map_err(internal)?;
        let begun = Instant::now();
        loop {
            let entries = store.events_after(after, limit)?;
            let left = wait.saturating_sub(begun.elapsed());
            if !entries.is_empty() || left.is_zero() {
                return Ok(entries);
            }
            changes.wait(Some(left)).map_err(internal)?;
        }
    }

    fn last_event(&self) -> Answer<u64> {
        Ok(self.store()?.last_event()?)
    }

    fn runs(&self, before: Option<&RunId>, limit: usize) -> Answer<Vec<RunRow>> {
        runs::list(&self.installation.runs(), before, limit)
    }

    fn run(&self, id: &str) -> Answer<RunView> {
        runs::view(&self.installation, id)
    }

    fn net(&self, id: &RunId) -> Answer<Vec<AuditEntry>> {
        runs::net(&self.installation.runs(), id)
    }

    fn log(&self, id: &RunId, follow: bool, tell: &mut Tell<'_>) -> Answer<()> {
        runs::log(&self.installation, id, follow, tell).refuse()
    }

    fn agents(&self) -> Answer<Vec<Agent>> {
        tasks::agents(&self.installation).refuse()
    }

    fn usage(&self, by: UsedBy) -> Answer<Vec<Used>> {
        runs::usage(&self.installation, by)
    }

    fn status(&self) -> Answer<Status> {
        processes::status(&self.installation)
    }

    fn change_settings(&self, changes: &[(String, Option<String>)]) -> Answer<SettingsChanged> {
        settings::change(&self.installation, changes)
    }

    fn processes(&self) -> Answer<Vec<ProcessRow>> {
        processes::rows(&self.installation)
    }

    fn start_process(&self, name: &str) -> Answer<ProcessAnswer> {
        processes::start(&self.installation, name)
    }

    fn stop_process(&self, name: &str) -> Answer<ProcessAnswer> {
        processes::stop(&self.installation, name)
    }

    fn stop_all(&self) -> Answer<StoppedAll> {
        processes::stop_all(&self.installation)
    }

    fn process_log(&self, name: &str, lines: usize) -> Answer<String> {
        processes::log(&self.installation, name, lines)
    }

    fn login(&self, cli: &str, environment: Option<ExecutionEnvironment>) -> Answer<LoginCheck> {
        let mut words = vec!["auth", "check", cli, "--json"];
        words.extend(environment.iter().flat_map(|environment| ["--environment", environment.as_str()]));
        let checked = asking::ask(&self.installation, &words);
        // What cannot be found out is unknown, and that is an answer.
        checked.or_else(|why: Refusal| {
            let settings = self.installation.settings().or_else(|_| Installation::default_settings());
            let mode = settings.refuse()?.sandbox.mode;
            let environment = environment.unwrap_or(ExecutionEnvironment::of(mode));
            Ok(LoginCheck {
                cli: cli.to_owned(),
                available: false,
                authenticated: false,
                class: match why.kind {
                    RefusalKind::Unavailable => LoginClass::Timeout,
                    _ => LoginClass::Unknown,
                },
                checked_at: jiff::Timestamp::now().to_string(),
                execution_environment: environment,
                mode: environment.mode(Some(mode)),
                message: why.message,
                remedy: why.remedy,
            })
        })
    }
}

impl House for Local {
    fn environment(&self) -> Answer<ExecutionEnvironment> {
        Ok(ExecutionEnvironment::of(self.installation.settings().refuse()?.sandbox.mode))
    }

    fn note(&self, happened: &NewEvent) -> Answer<()> {
        Ok(self.store()?.note(happened, self.installation.clock().now())?)
    }

    fn log_file(&self, run: &RunId) -> PathBuf {
        self.installation.runs().log_file(run)
    }

    fn is_over(&self, run: &RunId) -> bool {
        runs::is_over(&self.installation, run)
    }

    fn attachment(&self, run: &RunId, number: usize) -> Answer<(PathBuf, Attachment)> {
        let unknown = || Refusal::new(RefusalKind::NotFound, "there is no such attachment");
        let Ok(Progress::Ended(result)) = self.installation.runs().progress(run) else {
            return Err(unknown());
        };
        let attachment = result.attachments.into_iter().nth(number).ok_or_else(unknown)?;
        let copy = attachment.copy.clone().ok_or_else(unknown)?;
        // Only what was copied for keeping is given out.
        if copy.parent() != Some(self.installation.runs().attachments(run).as_path()) {
            return Err(unknown());
        }
        Ok((copy, attachment))
    }

    fn diff(&self, id: &RunId, is_wanted: &dyn Fn() -> bool) -> Answer<Vec<FileChange>> {
        crate::cli::file_changes(id, &self.installation, is_wanted).refuse()
    }

    fn spans(&self, length_ms: u64, count: usize) -> Answer<Vec<Span>> {
        Ok(self.store()?.spans(length_ms, count, self.installation.clock().now())?)
    }

    fn settings(&self) -> Answer<Vec<Setting>> {
        settings::list(&self.installation).refuse()
    }

    fn modes(&self) -> Answer<Vec<ModeView>> {
        asking::ask(&self.installation, &["sandbox", "modes", "--json"])
    }

    fn doctor(&self, hear: Hear<'_>) -> Answer<DoctorReport> {
        asking::follow(&self.installation, &["sandbox", "doctor", "--json"], hear)
    }

    fn compare(&self, hear: Hear<'_>) -> Answer<Vec<ModeTiming>> {
        asking::follow(&self.installation, &["compare", "--json"], hear)
    }

    fn probe(&self, mode: Option<Mode>, hear: Hear<'_>) -> Answer<Value> {
        let mut words = vec!["probe", "--json"];
        words.extend(mode.iter().flat_map(|mode| ["--mode", mode.as_str()]));
        asking::follow(&self.installation, &words, hear)
    }

    fn setting_keys(&self, changes: &[(String, Option<String>)]) -> Answer<Vec<(String, String)>> {
        settings::keys(changes)
    }

    fn is_ready(&self) -> Answer<()> {
        let store = self.store()?;
        store.counts()?;
        match store.is_current() {
            true => Ok(()),
            false => Err(Refusal::new(RefusalKind::Internal, "the store is not where it was")),
        }
    }
}

impl Local {
    fn store(&self) -> Answer<std::sync::Arc<ringfence_store::sqlite::Sqlite>> {
        self.installation.store().map_err(internal)
    }
}
