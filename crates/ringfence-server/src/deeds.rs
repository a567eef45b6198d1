//! All that changes something, for the API and for the pages alike. Each is noted with who did it.

use axum::http::StatusCode;
use ringfence_core::ids::TaskId;
use ringfence_core::mode::Mode;
use ringfence_core::task::TaskSpec;
use ringfence_store::{Added, Task};
use serde_json::{Value, json};

use crate::access::Who;
use crate::app::{App, Noted, lock};
use crate::desk::{Answer, House, ProcessAnswer, Refusal, RefusalKind, StoppedAll};
use crate::problem::Problem;

/// So many tasks are added at once.
const MOST_AT_ONCE: usize = 10_000;

/// Settings that are read once, when a process starts.
const READ_ONCE: [&str; 3] = ["queue.dispatcher", "queue.log_days", "queue.log_format"];

/// What became of a change of settings.
pub(crate) struct Settled {
    pub(crate) requires_restart: bool,
    pub(crate) warnings: Vec<String>,
}

impl App {
    /// Adds tasks, all or none.
    pub(crate) async fn add_tasks(&self, who: Who, specs: Vec<TaskSpec>) -> Result<Vec<Added>, Problem> {
        if specs.len() > MOST_AT_ONCE {
            let detail = format!("{} tasks are too many at once: {MOST_AT_ONCE} are taken", specs.len());
            return Err(Problem::invalid(detail));
        }
        self.change(who, "task.add", move |house| {
            let added = house.add(specs)?;
            let new: Vec<&str> =
                added.iter().filter(|added| !added.existed).map(|added| added.task.as_str()).collect();
            let subject = match new[..] {
                [] => return Ok((added, Vec::new())),
                [one] => one.to_owned(),
                [first, .., last] => format!("{} tasks from {first} to {last}", new.len()),
            };
            Ok((added, vec![Noted::new(subject, Value::Null, "queued")]))
        })
        .await
    }

    /// Takes a task out of the queue, and ends its run.
    pub(crate) async fn cancel_task(&self, who: Who, id: TaskId) -> Result<Task, Problem> {
        self.change(who, "task.cancel", move |house| with_task(house, &id, |house| house.cancel(&id))).await
    }

    /// Puts a task into the queue again.
    pub(crate) async fn retry_task(&self, who: Who, id: TaskId) -> Result<Task, Problem> {
        self.change(who, "task.retry", move |house| with_task(house, &id, |house| house.retry(&id))).await
    }

    /// Forgets a task that has ended.
    pub(crate) async fn delete_task(&self, who: Who, id: TaskId) -> Result<TaskId, Problem> {
        self.change(who, "task.delete", move |house| {
            let before = house.task(&id)?.lifecycle.state.name();
            house.forget(&id)?;
            let noted = Noted::new(&id, json!(before), Value::Null);
            Ok((id, vec![noted]))
        })
        .await
    }

    /// Puts the task of a dead letter into the queue again.
    pub(crate) async fn retry_letter(&self, who: Who, id: TaskId) -> Result<Task, Problem> {
        self.change(who, "dead-letter.retry", move |house| {
            house.dead_letter(&id)?;
            with_task(house, &id, |house| house.retry(&id))
        })
        .await
    }

    /// Throws a dead letter away.
    pub(crate) async fn discard_letter(&self, who: Who, id: TaskId) -> Result<TaskId, Problem> {
        self.change(who, "dead-letter.discard", move |house| {
            house.discard(&id)?;
            let noted = Noted::new(&id, "dead", Value::Null);
            Ok((id, vec![noted]))
        })
        .await
    }

    /// Starts a process.
    pub(crate) async fn start_process(&self, who: Who, name: String) -> Result<ProcessAnswer, Problem> {
        self.change(who, "process.start", move |house| {
            let answer = house.start_process(&name)?;
            let before = if answer.already_running { "running" } else { "not running" };
            let after = answer.skipped.clone().unwrap_or_else(|| "running".to_owned());
            Ok((answer, vec![Noted::new(name, before, after)]))
        })
        .await
    }

    /// Stops a process.
    pub(crate) async fn stop_process(&self, who: Who, name: String) -> Result<ProcessAnswer, Problem> {
        self.change(who, "process.stop", move |house| {
            let ran = house.processes()?.iter().any(|row| row.name == name && row.pid.is_some());
            let answer = house.stop_process(&name)?;
            let before = if ran { "running" } else { "not running" };
            Ok((answer, vec![Noted::new(name, before, "not running")]))
        })
        .await
    }

    /// Stops all processes.
    pub(crate) async fn stop_all(&self, who: Who) -> Result<StoppedAll, Problem> {
        self.change(who, "process.stop-all", |house| {
            let done = house.stop_all()?;
            let noted = Noted::new("all", json!(done.stopped), "not running");
            Ok((done, vec![noted]))
        })
        .await
    }

    /// Changes settings of the running system, all or none.
    pub(crate) async fn change_settings(
        &self,
        who: Who,
        updates: Vec<(String, Option<String>)>,
    ) -> Result<Settled, Problem> {
        let changed = self.change(who, "config.change", move |house| {
            let known = house.setting_keys(&updates)?;
            if let Some((name, _)) = known.iter().find(|(_, key)| !is_changeable(key)) {
                return Err(Refusal::new(RefusalKind::Forbidden, format!("Key not allowed: {name}")));
            }
            let changed = house.change_settings(&updates)?;
            let notes = changed.changes.iter();
            let notes =
                notes.map(|change| Noted::new(&change.key, change.before.clone(), change.after.clone()));
            let requires_restart = known.iter().any(|(_, key)| READ_ONCE.contains(&key.as_str()));
            Ok((Settled { requires_restart, warnings: changed.warnings.clone() }, notes.collect()))
        });
        changed.await.map_err(|problem| match problem.status() {
            // As the documents have it.
            StatusCode::FORBIDDEN => {
                Problem::new(StatusCode::BAD_REQUEST, "key_not_allowed", problem.detail()).with_remedy(
                    "`GET /config` says which keys are changeable; the others are changed on the machine",
                )
            }
            _ => problem,
        })
    }

    /// Tries to break each promise of a mode.
    pub(crate) async fn probe(&self, who: Who, mode: Option<Mode>) -> Result<Value, Problem> {
        let report = self.attempt("probe", move |house, hear| house.probe(mode, hear)).await?;
        let noted = Noted::new(&report["mode"], Value::Null, report["broken_claims"].clone());
        self.change(who, "system.probe", move |_| Ok((report, vec![noted]))).await
    }

    /// Measures the modes. What was found is kept, also if nobody waits for it any more.
    pub(crate) async fn measure(&self, who: Who) -> Result<usize, Problem> {
        let app = self.clone();
        let measured = tokio::spawn(async move {
            let timings = app.attempt("compare", |house, hear| house.compare(hear)).await?;
            let count = timings.iter().filter(|timing| timing.median_ms.is_some()).count();
            *lock(&app.timings) = timings;
            let noted = Noted::new("modes", Value::Null, count);
            app.change(who, "system.compare", move |_| Ok((count, vec![noted]))).await
        });
        let ended =
            |_| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the measuring ended early");
        measured.await.map_err(ended)?
    }
}

/// Does something to a task, and notes from which state it came into which.
fn with_task(
    house: &dyn House,
    id: &TaskId,
    act: impl FnOnce(&dyn House) -> Answer<Task>,
) -> Answer<(Task, Vec<Noted>)> {
    let before = house.task(id)?.lifecycle.state.name();
    let task = act(house)?;
    let noted = Noted::new(id, json!(before), json!(task.lifecycle.state.name()));
    Ok((task, vec![noted]))
}

/// Whether a setting can be changed from elsewhere. Which programs the host runs, whom it trusts, what agents may see of it
/// and where its secrets are is changed on the machine.
pub(crate) fn is_changeable(key: &str) -> bool {
    let parts: Vec<&str> = key.split('.').collect();
    match parts[..] {
        ["EXECUTION_ENVIRONMENT"] => true,
        ["sandbox", name] => {
            let open = [
                "mode",
                "policy",
                "timeout_seconds",
                "patience_seconds",
                "max_attempts",
                "max_concurrency",
                "path_mapping_mode",
                "workspace",
                "warm",
            ];
            open.contains(&name)
        }
        ["sandbox", _, name] => ["image", "network", "memory", "cpus", "pids_limit"].contains(&name),
        ["queue", name] => name != "webhook_secret_file",
        ["executor", _] => true,
        ["agents", _, name] => {
            ["name", "provider", "cli", "model", "base_url", "sandbox_mode", "policy"].contains(&name)
        }
        _ => false,
    }
}
