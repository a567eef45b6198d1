//! Tasks: adding, reading and changing them, with the consequences for their dependents.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;

use ringfence_core::event::{RunResult, RunStatus, Usage};
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::ids::{RunId, TaskId};
use ringfence_core::paths::DirectoryId;
use ringfence_core::task::{Lifecycle, RetryRule, Role, State, TaskEvent, TaskSpec, TaskStatus, UnixSeconds};
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::claim::{claim_tasks, has_claimable};
use super::{Notify, SqlError, SqlResult, Sqlite, int, uint};
use crate::error::StoreError;
use crate::events::NewEvent;
use crate::tasks::{
    Added, AgentRow, Change, Changed, Claim, Counts, Filter, Lease, NewTask, Now, Span, Task, TaskPolicy,
    TaskRun, Tasks,
};

/// Columns of a `TaskRow`.
pub(super) const COLUMNS: &str = "seq, spec, lane, state_json, created, changed, result, open_dependencies, cleanup_run IS NOT NULL, workspace";

/// A row of `tasks`.
pub(super) struct TaskRow {
    pub(super) seq: i64,
    pub(super) spec: TaskSpec,
    pub(super) lane: String,
    pub(super) lifecycle: Lifecycle,
    pub(super) created: i64,
    pub(super) changed: i64,
    pub(super) result: Option<String>,
    pub(super) open_dependencies: i64,
    /// Whether the sandbox of its last run may still exist.
    pub(super) cleanup_pending: bool,
    /// Device and inode of its directory, as JSON.
    pub(super) workspace: Option<String>,
}

impl TaskRow {
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            seq: row.get(0)?,
            spec: parsed(row, 1)?,
            lane: row.get(2)?,
            lifecycle: parsed(row, 3)?,
            created: row.get(4)?,
            changed: row.get(5)?,
            result: row.get(6)?,
            open_dependencies: row.get(7)?,
            cleanup_pending: row.get(8)?,
            workspace: row.get(9)?,
        })
    }

    pub(super) fn of(connection: &Connection, seq: i64) -> SqlResult<Option<Self>> {
        let mut query = connection.prepare_cached(&format!("SELECT {COLUMNS} FROM tasks WHERE seq = ?1"))?;
        Ok(query.query_row([seq], Self::read).optional()?)
    }

    pub(super) fn into_task(self, connection: &Connection) -> SqlResult<Task> {
        let waits_for =
            if self.open_dependencies > 0 { open_dependencies_of(connection, self.seq)? } else { Vec::new() };
        Ok(Task {
            id: id_of(self.seq)?,
            spec: self.spec,
            lane: self.lane,
            // An unreadable value counts as none: the task is not run.
            workspace: self.workspace.and_then(|text| serde_json::from_str(&text).ok()),
            lifecycle: self.lifecycle,
            waits_for,
            created_ms: uint(self.created),
            changed_ms: uint(self.changed),
            // A result that cannot be parsed is left out, so that the task stays readable.
            result: self.result.and_then(|text| serde_json::from_str(&text).ok()),
        })
    }
}

fn open_dependencies_of(connection: &Connection, seq: i64) -> SqlResult<Vec<TaskId>> {
    let mut query = connection.prepare_cached(
        "SELECT b.depends_on FROM task_dependencies b JOIN tasks t ON t.seq = b.depends_on
         WHERE b.task = ?1 AND t.state <> 'done' ORDER BY b.depends_on",
    )?;
    let rows = query.query_map([seq], |row| id_of(row.get(0)?))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(super) fn id_of(seq: i64) -> rusqlite::Result<TaskId> {
    seq.to_string().parse().map_err(|error| wrong(0, error))
}

/// Returns the row id of a task id.
pub(super) fn seq_of(id: &TaskId) -> Result<i64, StoreError> {
    id.as_str().parse().map_err(|_| StoreError::NoTask(id.to_string()))
}

fn wrong(column: usize, error: impl std::error::Error + Send + Sync + 'static) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error))
}

pub(super) fn parsed<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    serde_json::from_str(&text).map_err(|error| wrong(column, error))
}

pub(super) fn json_of(document: &impl Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(document).map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

/// What the indexes have to know of a lifecycle.
struct Derived {
    not_before: i64,
    ready: bool,
    /// Whether other tasks of the lane wait for this one.
    blocks_lane: bool,
    run: Option<String>,
    lease_until: i64,
}

fn derive(lifecycle: &Lifecycle, open_dependencies: i64, cleanup_pending: bool, now: Now) -> Derived {
    let nothing = Derived { not_before: 0, ready: false, blocks_lane: false, run: None, lease_until: 0 };
    match &lifecycle.state {
        State::Queued { not_before } => {
            let ready = open_dependencies == 0 && !cleanup_pending && *not_before <= now.seconds();
            Derived {
                not_before: int(*not_before),
                ready,
                blocks_lane: !ready && lifecycle.attempts > 0,
                ..nothing
            }
        }
        State::Blocked { until } => Derived { not_before: int(*until), blocks_lane: true, ..nothing },
        State::Running { run, lease_until } => {
            Derived { run: Some(run.to_string()), lease_until: int(*lease_until), ..nothing }
        }
        State::Done | State::Failed | State::Dead | State::Cancelled => nothing,
    }
}

/// Writes what a lifecycle has become.
pub(super) fn put_life(
    connection: &Connection,
    row: &TaskRow,
    lifecycle: &Lifecycle,
    owner: Option<&str>,
    now: Now,
) -> SqlResult<()> {
    let Derived { not_before, ready, blocks_lane, run, lease_until } =
        derive(lifecycle, row.open_dependencies, row.cleanup_pending, now);
    let mut update = connection.prepare_cached(
        "UPDATE tasks SET state_json = ?2, state = ?3, not_before = ?4, ready = ?5, blocks_lane = ?6, open_dependencies = ?7, run = ?8,
             fence = ?9, lease_until = ?10, owner = coalesce(?11, owner), changed = ?12 WHERE seq = ?1",
    )?;
    update.execute(params![
        row.seq,
        json_of(lifecycle)?,
        lifecycle.state.name().as_str(),
        not_before,
        ready,
        blocks_lane,
        row.open_dependencies,
        run,
        int(lifecycle.fence),
        lease_until,
        owner,
        int(now.ms)
    ])?;
    Ok(())
}

/// Updates the next task of a lane, and its last served event if it was served.
pub(super) fn refresh_lane(connection: &Connection, lane: &str, served: Option<i64>) -> SqlResult<()> {
    let mut first = connection.prepare_cached(
        "SELECT priority, role FROM tasks WHERE lane = ?1 AND ready = 1 ORDER BY priority DESC, seq LIMIT 1",
    )?;
    let best: Option<(i64, String)> =
        first.query_row([lane], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let (best, role) = best.unzip();
    let mut update = connection.prepare_cached(
        "INSERT INTO lanes(name, free, best, role, last_served_event)
         VALUES (?1, NOT EXISTS (SELECT 1 FROM tasks WHERE lane = ?1 AND state = 'running')
                 AND NOT EXISTS (SELECT 1 FROM tasks WHERE lane = ?1 AND cleanup_run IS NOT NULL)
                 AND NOT EXISTS (SELECT 1 FROM tasks WHERE lane = ?1 AND blocks_lane = 1), ?2, ?3,
                 -- A new lane is served after all others.
                 (SELECT coalesce(max(id), 0) FROM events))
         ON CONFLICT(name) DO UPDATE SET free = excluded.free, best = excluded.best, role = excluded.role,
             last_served_event = coalesce(?4, last_served_event)",
    )?;
    update.execute(params![lane, best, role, served])?;
    Ok(())
}

pub(super) fn note(connection: &Connection, happened: &NewEvent, now: Now) -> SqlResult<i64> {
    let data = (!happened.data.is_null()).then(|| happened.data.to_string());
    let mut insert = connection
        .prepare_cached("INSERT INTO events(at, kind, task, run, data) VALUES (?1, ?2, ?3, ?4, ?5)")?;
    insert.execute(params![int(now.ms), happened.kind, happened.task, happened.run, data])?;
    Ok(connection.last_insert_rowid())
}

pub(super) fn task_event(kind: &str, seq: i64, run: Option<&str>, data: Value) -> NewEvent {
    NewEvent { kind: format!("task.{kind}"), task: Some(seq.to_string()), run: run.map(str::to_owned), data }
}

/// Adds a task, unless one with its idempotency key exists.
fn add_one(
    connection: &Connection,
    NewTask { spec, lane, workspace }: &NewTask,
    now: Now,
) -> SqlResult<Added> {
    if let Some(task) = added_before(connection, spec)? {
        return Ok(Added { task, existed: true });
    }
    let open_dependencies = int(count_open(connection, &spec.after)? as u64);
    let lifecycle = Lifecycle::accepted(spec.not_before.unwrap_or(0));
    let Derived { not_before, ready, blocks_lane, .. } = derive(&lifecycle, open_dependencies, false, now);
    let mut insert = connection.prepare_cached(
        "INSERT INTO tasks(agent, role, lane, priority, key, spec, state_json, state, not_before, ready, blocks_lane, open_dependencies,
             fence, lease_until, created, changed, workspace)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'queued', ?8, ?9, ?10, ?11, 0, 0, ?12, ?12, ?13)",
    )?;
    insert.execute(params![
        spec.agent,
        spec.role.as_str(),
        lane,
        spec.priority,
        spec.key,
        json_of(spec)?,
        json_of(&lifecycle)?,
        not_before,
        ready,
        blocks_lane,
        open_dependencies,
        int(now.ms),
        json_of(workspace)?
    ])?;
    let seq = connection.last_insert_rowid();
    let mut before = connection
        .prepare_cached("INSERT OR IGNORE INTO task_dependencies(depends_on, task) VALUES (?1, ?2)")?;
    for needs in &spec.after {
        before.execute(params![seq_of(needs)?, seq])?;
    }
    if ready {
        refresh_lane(connection, lane, None)?;
    }
    let data = json!({ "agent": spec.agent, "role": spec.role, "priority": spec.priority, "lane": lane });
    note(connection, &task_event("added", seq, None, data), now)?;
    Ok(Added { task: id_of(seq)?, existed: false })
}

/// Returns the task with the same idempotency key and specification.
fn added_before(connection: &Connection, spec: &TaskSpec) -> SqlResult<Option<TaskId>> {
    let Some(key) = &spec.key else { return Ok(None) };
    let mut query = connection.prepare_cached("SELECT seq, spec FROM tasks WHERE key = ?1")?;
    let found = query.query_row([key], |row| Ok((id_of(row.get(0)?)?, parsed::<TaskSpec>(row, 1)?)));
    let Some((task, other)) = found.optional()? else { return Ok(None) };
    // `not_before` is not compared: "in an hour" is a later time in a repeated request.
    if (TaskSpec { not_before: spec.not_before, ..other }) == *spec {
        return Ok(Some(task));
    }
    Err(StoreError::KeyTaken { key: key.clone(), task }.into())
}

/// Counts dependencies that are not done yet. A dependency that ended without success is an error.
fn count_open(connection: &Connection, after: &[TaskId]) -> SqlResult<usize> {
    let mut open = BTreeSet::new();
    for needs in after {
        let missing = || StoreError::NoSuchDependency(needs.clone());
        let seq = seq_of(needs).map_err(|_| missing())?;
        let mut query = connection.prepare_cached("SELECT state FROM tasks WHERE seq = ?1")?;
        let state: Option<String> = query.query_row([seq], |row| row.get(0)).optional()?;
        match state.as_deref().map(TaskStatus::parse) {
            None => return Err(missing().into()),
            Some(Some(TaskStatus::Done)) => {}
            Some(Some(state @ (TaskStatus::Dead | TaskStatus::Cancelled))) => {
                return Err(StoreError::DependencyEnded { task: needs.clone(), state }.into());
            }
            Some(_) => drop(open.insert(seq)),
        }
    }
    Ok(open.len())
}

fn existing(connection: &Connection, task: &TaskId) -> SqlResult<TaskRow> {
    let row = TaskRow::of(connection, seq_of(task)?)?;
    Ok(row.ok_or_else(|| StoreError::NoTask(task.to_string()))?)
}

/// Applies an event to a task and its consequences to dependents.
fn change_one(
    connection: &Connection,
    task: &TaskId,
    event: &TaskEvent,
    by: &ChangeContext,
    now: Now,
) -> SqlResult<Changed> {
    let mut row = existing(connection, task)?;
    if *event == TaskEvent::Retry {
        // A dependency that was deleted was done.
        row.open_dependencies = int(count_open(connection, &known(connection, &row.spec.after)?)? as u64);
    }
    let before = row.lifecycle.clone();
    let mut died = Vec::new();
    let next = step(connection, &row, event, by, now)?;
    if let Some(workspace) = &by.workspace {
        let text = json_of(workspace)?;
        connection.execute("UPDATE tasks SET workspace = ?2 WHERE seq = ?1", params![row.seq, text])?;
        row.workspace = Some(text);
    }
    died.extend((next.state == State::Dead).then(|| task.clone()));
    let mut work = followers(connection, row.seq, &next, now)?;
    let result = by.result.as_ref().map(json_of).transpose()?.or(row.result.take());
    let result = result.filter(|_| *event != TaskEvent::Retry);
    let changed = TaskRow { lifecycle: next, result, changed: int(now.ms), ..row }.into_task(connection)?;
    // The result and the workspace belong to the first task alone.
    let by = &ChangeContext { rules: by.rules.clone(), jitter: by.jitter, result: None, workspace: None };
    while let Some((row, event)) = work.pop() {
        let next = step(connection, &row, &event, by, now)?;
        died.push(id_of(row.seq)?);
        work.extend(followers(connection, row.seq, &next, now)?);
    }
    Ok(Changed { task: changed, before, died })
}

/// Returns the tasks that still exist.
fn known(connection: &Connection, tasks: &[TaskId]) -> SqlResult<Vec<TaskId>> {
    let mut known = Vec::new();
    for task in tasks {
        let mut query = connection.prepare_cached("SELECT 1 FROM tasks WHERE seq = ?1")?;
        if query.exists([seq_of(task)?])? {
            known.push(task.clone());
        }
    }
    Ok(known)
}

/// Applies one event to one task.
fn step(
    connection: &Connection,
    row: &TaskRow,
    event: &TaskEvent,
    by: &ChangeContext,
    now: Now,
) -> SqlResult<Lifecycle> {
    let retry = by.rules.retry;
    let rule = RetryRule { max_attempts: row.spec.max_attempts.unwrap_or(retry.max_attempts), ..retry };
    let stepped = |lifecycle: &Lifecycle, event, jitter| {
        let next = lifecycle.step(event, now.seconds(), jitter, &rule);
        next.map_err(|error| match id_of(row.seq) {
            Ok(task) => SqlError::Store(StoreError::Step { task, error }),
            Err(error) => SqlError::Sql(error),
        })
    };
    let mut next = stepped(&row.lifecycle, event.clone(), by.jitter)?;
    if let TaskEvent::Heartbeat { .. } = event {
        put_life(connection, row, &next, None, now)?;
        return Ok(next);
    }
    let run = match &row.lifecycle.state {
        State::Running { run, .. } => Some(run.as_str()),
        _ => None,
    };
    if let Some(run) = run {
        end_run(connection, run, event, by.result.as_ref(), now)?;
    }
    record_event(connection, row, event, &next, run, now)?;
    if next.state == State::Failed {
        // The dead letter is written in the same transaction.
        next = stepped(&next, TaskEvent::DeadLettered, 0)?;
        let mut bury =
            connection.prepare_cached("INSERT OR REPLACE INTO dead_letters(task, at) VALUES (?1, ?2)")?;
        bury.execute(params![row.seq, int(now.ms)])?;
        record_event(connection, row, &TaskEvent::DeadLettered, &next, None, now)?;
    }
    if let (TaskEvent::Cancel, Some(run)) = (event, run) {
        connection.execute("UPDATE tasks SET cleanup_run = ?2 WHERE seq = ?1", params![row.seq, run])?;
    }
    if *event == TaskEvent::Retry {
        connection.execute("DELETE FROM dead_letters WHERE task = ?1", [row.seq])?;
        connection.execute("UPDATE tasks SET result = NULL WHERE seq = ?1", [row.seq])?;
    }
    put_life(connection, row, &next, None, now)?;
    if let Some(result) = &by.result {
        let mut keep = connection.prepare_cached("UPDATE tasks SET result = ?2 WHERE seq = ?1")?;
        keep.execute(params![row.seq, json_of(result)?])?;
    }
    refresh_lane(connection, &row.lane, None)?;
    if next.state.name().is_final() {
        deliver(connection, row, &next, by, now)?;
    }
    Ok(next)
}

/// Parameters of a change.
struct ChangeContext {
    rules: TaskPolicy,
    jitter: u8,
    result: Option<RunResult>,
    /// Device and inode of the directory that a retry accepted.
    workspace: Option<DirectoryId>,
}

fn end_run(
    connection: &Connection,
    run: &str,
    event: &TaskEvent,
    result: Option<&RunResult>,
    now: Now,
) -> SqlResult<()> {
    // A run that never started, or is still to be ended, has no result.
    let (status, class) = match (event, result) {
        (_, Some(result)) => (Some(result.status), result.failure.as_ref().map(|failure| failure.class)),
        (TaskEvent::Failed { failure, .. }, None) => (Some(RunStatus::Failed), Some(failure.class)),
        (TaskEvent::Cancel, None) => (Some(RunStatus::Cancelled), None),
        (_, None) => (None, None),
    };
    let status = status.map(|status| json_word(&status)).transpose()?;
    let class = class.map(|class| class.to_string());
    let used = result.map_or_else(Usage::default, |result| match result.metered_total() {
        none if none == Usage::default() => result.usage,
        metered => metered,
    });
    let used = used.bounded();
    let mut update = connection.prepare_cached(
        "UPDATE runs SET ended = ?2, status = ?3, class = ?4, input_tokens = ?5, output_tokens = ?6,
             cached_tokens = ?7, cost_usd = ?8 WHERE run = ?1",
    )?;
    update.execute(params![
        run,
        int(now.ms),
        status,
        class,
        int(used.input_tokens),
        int(used.output_tokens),
        int(used.cached_tokens),
        used.cost_usd
    ])?;
    Ok(())
}

/// Returns the JSON string of a value without its quotes.
fn json_word(value: &impl Serialize) -> rusqlite::Result<String> {
    Ok(json_of(value)?.trim_matches('"').to_owned())
}

fn record_event(
    connection: &Connection,
    row: &TaskRow,
    event: &TaskEvent,
    next: &Lifecycle,
    run: Option<&str>,
    now: Now,
) -> SqlResult<()> {
    let reason = || match next.failures.last() {
        Some(Failure { class, message, .. }) => json!({ "class": class, "message": message }),
        None => Value::Null,
    };
    let with = |mut data: Value, name: &str, value: u64| {
        if let Value::Object(fields) = &mut data {
            fields.insert(name.to_owned(), value.into());
        }
        data
    };
    let (kind, data) = match (event, &next.state) {
        (TaskEvent::DeadLettered, _) => ("dead", reason()),
        (TaskEvent::Retry, _) => ("retried", json!({ "times": next.retries })),
        (TaskEvent::Cancel, _) => ("cancelled", Value::Null),
        (TaskEvent::RunnerLost { fence }, _) => {
            ("runner_lost", json!({ "fence": fence, "times": next.runner_losses }))
        }
        (TaskEvent::Released { fence }, _) => ("released", json!({ "fence": fence })),
        (TaskEvent::Unblocked, _) => ("unblocked", Value::Null),
        (TaskEvent::DependencyFailed { .. }, _) => ("dependency_failed", reason()),
        (TaskEvent::Succeeded { fence }, _) => ("done", json!({ "fence": fence })),
        (TaskEvent::Failed { fence, .. }, State::Blocked { until }) => {
            let mut data = with(with(reason(), "until", *until), "fence", *fence);
            data["reason"] = "quota_wait".into();
            ("blocked", data)
        }
        (TaskEvent::Failed { fence, .. }, State::Queued { not_before }) => {
            ("retrying", with(with(reason(), "not_before", *not_before), "fence", *fence))
        }
        (TaskEvent::Failed { fence, .. }, _) => ("failed", with(reason(), "fence", *fence)),
        (TaskEvent::Rescheduled { at }, _) => ("rescheduled", json!({ "at": at })),
        // Told where they happen, or not worth telling.
        (TaskEvent::Lease { .. } | TaskEvent::Heartbeat { .. }, _) => return Ok(()),
    };
    note(connection, &task_event(kind, row.seq, run, data), now)?;
    Ok(())
}

/// What the end of a task means for those who wait for it.
fn followers(
    connection: &Connection,
    seq: i64,
    lifecycle: &Lifecycle,
    now: Now,
) -> SqlResult<Vec<(TaskRow, TaskEvent)>> {
    let name = lifecycle.state.name();
    if !name.is_final() {
        return Ok(Vec::new());
    }
    let mut query = connection.prepare_cached("SELECT task FROM task_dependencies WHERE depends_on = ?1")?;
    let waiting: Vec<i64> = query.query_map([seq], |row| row.get(0))?.collect::<Result<_, _>>()?;
    let mut failed = Vec::new();
    for follower in waiting {
        let Some(mut row) = TaskRow::of(connection, follower)? else { continue };
        if row.lifecycle.state.name() != TaskStatus::Queued || row.open_dependencies == 0 {
            continue;
        }
        if name == TaskStatus::Done {
            row.open_dependencies -= 1;
            put_life(connection, &row, &row.lifecycle, None, now)?;
            refresh_lane(connection, &row.lane, None)?;
        } else {
            let message = format!("task {seq}, which it waits for, ended as {name}");
            let failure = Failure::new(FailureClass::Refused, message)
                .with_remedy(format!("retry task {seq} first, then this one"));
            failed.push((row, TaskEvent::DependencyFailed { failure }));
        }
    }
    Ok(failed)
}

/// Leaves a note for each who wants to be told of the end.
fn deliver(
    connection: &Connection,
    row: &TaskRow,
    lifecycle: &Lifecycle,
    by: &ChangeContext,
    now: Now,
) -> SqlResult<()> {
    for url in [row.spec.webhook.as_deref(), by.rules.webhook.as_deref()].into_iter().flatten() {
        let body = json!({
            "event": format!("task.{}", lifecycle.state.name()),
            "task": row.seq.to_string(),
            "state": lifecycle.state.name(),
            "at_ms": now.ms,
            "agent": row.spec.agent,
            "role": row.spec.role,
            "prompt": row.spec.prompt,
            "attempts": lifecycle.fence,
            "failure": if lifecycle.state == State::Done { None } else { lifecycle.failures.last() },
            "result": by.result,
        });
        connection.execute(
            "INSERT INTO deliveries(task, url, body, state, attempts, due) VALUES (?1, ?2, ?3, 'waiting', 0, ?4)",
            params![row.seq, url, body.to_string(), int(now.seconds())],
        )?;
    }
    Ok(())
}

impl Tasks for Sqlite {
    fn add(&self, new: &[NewTask], now: Now) -> Result<Vec<Added>, StoreError> {
        new.iter().try_for_each(|new| new.spec.check())?;
        let new = new.to_vec();
        self.write(move |connection| new.iter().map(|new| add_one(connection, new, now)).collect())
    }

    fn task(&self, id: &TaskId) -> Result<Task, StoreError> {
        self.read(|connection| existing(connection, id)?.into_task(connection))
    }

    fn tasks(&self, filter: &Filter) -> Result<Vec<Task>, StoreError> {
        let before = filter.before.as_ref().map(seq_of).transpose()?.unwrap_or(i64::MAX);
        let states: Vec<TaskStatus> =
            if filter.states.is_empty() { TaskStatus::ALL.to_vec() } else { filter.states.clone() };
        // The names are constants, so the statement has no foreign text.
        let list = states.iter().map(|state| format!("'{state}'")).collect::<Vec<_>>().join(", ");
        let list = if states.len() == TaskStatus::ALL.len() {
            String::new()
        } else {
            format!("AND state IN ({list})")
        };
        let query = format!(
            "SELECT {COLUMNS} FROM tasks WHERE seq < ?1 {list} AND (?2 IS NULL OR role = ?2)
             AND (?3 IS NULL OR coalesce(agent, role) = ?3) ORDER BY seq DESC LIMIT ?4"
        );
        let role = filter.role.map(Role::as_str);
        let limit = int(filter.limit as u64);
        self.read(|connection| {
            let mut query = connection.prepare_cached(&query)?;
            let rows = query.query_map(params![before, role, filter.agent, limit], TaskRow::read)?;
            rows.map(|row| row?.into_task(connection)).collect()
        })
    }

    fn counts(&self) -> Result<Counts, StoreError> {
        self.read(|connection| {
            let mut query = connection.prepare_cached("SELECT state, count(*) FROM tasks GROUP BY state")?;
            let rows = query.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))?;
            let mut counts: Counts = TaskStatus::ALL.into_iter().map(|state| (state, 0)).collect();
            for row in rows {
                let (state, count) = row?;
                counts.extend(TaskStatus::parse(&state).map(|state| (state, uint(count))));
            }
            Ok(counts)
        })
    }

    fn runs_of_task(&self, id: &TaskId) -> Result<Vec<TaskRun>, StoreError> {
        let seq = seq_of(id)?;
        self.read(|connection| runs_of(connection, seq))
    }

    fn agents(&self) -> Result<Vec<AgentRow>, StoreError> {
        self.read(|connection| {
            let mut rows: BTreeMap<String, AgentRow> = BTreeMap::new();
            let mut query = connection.prepare_cached(
                "SELECT coalesce(agent, role), state, count(*), max(changed) FROM tasks GROUP BY 1, 2",
            )?;
            let counted = query.query_map([], |row| {
                Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get(2)?, row.get(3)?))
            })?;
            for one in counted {
                let (agent, state, count, changed): (String, String, i64, i64) = one?;
                let row = rows.entry(agent.clone()).or_insert_with(|| AgentRow { agent, ..AgentRow::default() });
                row.tasks.extend(TaskStatus::parse(&state).map(|state| (state, uint(count))));
                row.changed_ms = row.changed_ms.max(uint(changed));
            }
            let mut query = connection.prepare_cached(&format!(
                "SELECT coalesce(t.agent, t.role), {USAGE_SUMS} FROM runs r JOIN tasks t ON t.seq = r.task GROUP BY 1"
            ))?;
            let used = query.query_map([], |row| {
                let usage = Usage {
                    input_tokens: uint(row.get(1)?),
                    output_tokens: uint(row.get(2)?),
                    cached_tokens: uint(row.get(3)?),
                    cost_usd: row.get(4)?,
                };
                Ok((row.get::<_, String>(0)?, usage))
            })?;
            for one in used {
                let (agent, usage) = one?;
                if let Some(row) = rows.get_mut(&agent) {
                    row.usage = usage;
                }
            }
            Ok(rows.into_values().collect())
        })
    }

    fn tasks_of_runs(&self) -> Result<BTreeMap<RunId, TaskId>, StoreError> {
        self.read(|connection| {
            let mut query = connection.prepare_cached("SELECT run, task FROM runs")?;
            let rows = query.query_map([], |row| {
                let run = row.get::<_, String>(0)?.parse().map_err(|error| wrong(0, error))?;
                Ok((run, id_of(row.get(1)?)?))
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    fn claim(&self, claim: &Claim<'_>, now: Now) -> Result<Vec<Task>, StoreError> {
        // Reading does not take the write lock.
        if !self.read(|connection| has_claimable(connection, now))? {
            return Ok(Vec::new());
        }
        let claimed = self.write_alone(|connection| claim_tasks(connection, claim, now))?;
        if !claimed.is_empty() {
            self.notifier.notify();
        }
        Ok(claimed)
    }

    fn change(&self, change: &Change<'_>, now: Now) -> Result<Changed, StoreError> {
        let notify = if matches!(change.event, TaskEvent::Heartbeat { .. }) {
            Notify::Nobody
        } else {
            Notify::Watchers
        };
        let by = ChangeContext {
            rules: change.rules.clone(),
            jitter: change.jitter,
            result: change.result.cloned(),
            workspace: change.workspace,
        };
        let (task, event) = (change.task.clone(), change.event.clone());
        self.write_so(notify, move |connection| change_one(connection, &task, &event, &by, now))
    }

    fn pending_cleanup(&self) -> Result<Vec<(TaskId, RunId)>, StoreError> {
        self.read(|connection| {
            let mut query = connection.prepare_cached(
                "SELECT seq, cleanup_run FROM tasks INDEXED BY tasks_cleanup WHERE cleanup_run IS NOT NULL",
            )?;
            let rows = query.query_map([], |row| {
                let run = row.get::<_, String>(1)?.parse().map_err(|error| wrong(1, error))?;
                Ok((id_of(row.get(0)?)?, run))
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    fn cleanup_done(&self, task: &TaskId, run: &RunId, now: Now) -> Result<(), StoreError> {
        let (seq, run) = (seq_of(task)?, run.to_string());
        self.write(move |connection| {
            let gone = connection.execute(
                "UPDATE tasks SET cleanup_run = NULL WHERE seq = ?1 AND cleanup_run = ?2",
                params![seq, run],
            )?;
            if gone > 0
                && let Some(row) = TaskRow::of(connection, seq)?
            {
                put_life(connection, &row, &row.lifecycle, None, now)?;
                refresh_lane(connection, &row.lane, None)?;
            }
            Ok(())
        })
    }

    fn is_current(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|data| (data.dev(), data.ino()) == self.identity)
    }

    fn leases(&self) -> Result<Vec<Lease>, StoreError> {
        self.read(|connection| {
            let mut query = connection.prepare_cached(
                "SELECT seq, run, fence, lease_until, coalesce(owner, '') FROM tasks
                     WHERE state = 'running'",
            )?;
            let rows = query.query_map([], |row| {
                Ok(Lease {
                    task: id_of(row.get(0)?)?,
                    run: row.get::<_, String>(1)?.parse().map_err(|error| wrong(1, error))?,
                    fence: uint(row.get(2)?),
                    until: uint(row.get(3)?),
                    owner: row.get(4)?,
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    fn next_due(&self) -> Result<Option<UnixSeconds>, StoreError> {
        self.read(|connection| {
            let read = connection.query_row(
                &format!("SELECT min(not_before) {}", super::claim::WAITING),
                [],
                |row| row.get::<_, Option<i64>>(0),
            );
            Ok(read?.map(uint))
        })
    }

    fn delete(&self, id: &TaskId, now: Now) -> Result<(), StoreError> {
        let id = id.clone();
        self.write(move |connection| {
            let row = existing(connection, &id)?;
            let seq = row.seq;
            let free: bool = connection
                .prepare_cached(
                    "SELECT state IN ('done', 'dead', 'cancelled') AND cleanup_run IS NULL
                     AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.task = ?1 AND d.state = 'waiting')
                     AND NOT EXISTS (SELECT 1 FROM task_dependencies b JOIN tasks t ON t.seq = b.task
                                     WHERE b.depends_on = ?1 AND t.state IN ('queued', 'running', 'blocked'))
                     FROM tasks WHERE seq = ?1",
                )?
                .query_row([seq], |row| row.get(0))?;
            if !free {
                return Err(StoreError::Awaited(id).into());
            }
            connection.prepare_cached("DELETE FROM dead_letters WHERE task = ?1")?.execute([seq])?;
            purge_one(connection, seq, &row.lane)?;
            note(connection, &task_event("deleted", seq, None, Value::Null), now)?;
            Ok(())
        })
    }

    fn spans(&self, length_ms: u64, count: usize, now: Now) -> Result<Vec<Span>, StoreError> {
        let length = length_ms.max(1);
        // The last interval contains `now`.
        let last = now.ms - now.ms % length;
        let first = last.saturating_sub(length.saturating_mul(count.saturating_sub(1) as u64));
        let mut spans: Vec<Span> = (0..count as u64)
            .map(|place| Span {
                from_ms: first.saturating_add(place.saturating_mul(length)),
                ..Span::default()
            })
            .collect();
        self.read(|connection| {
            let mut query = connection.prepare_cached(&format!(
                "SELECT (ended - ?1) / ?2, status, count(*), {USAGE_SUMS} FROM runs r
                     WHERE ended >= ?1 AND status IS NOT NULL GROUP BY 1, 2"
            ))?;
            let rows = query.query_map(params![int(first), int(length)], |row| {
                let usage = Usage {
                    input_tokens: uint(row.get(3)?),
                    output_tokens: uint(row.get(4)?),
                    cached_tokens: uint(row.get(5)?),
                    cost_usd: row.get(6)?,
                };
                Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?, uint(row.get(2)?), usage))
            })?;
            for row in rows {
                let (place, status, number, usage) = row?;
                // Runs that ended in the future, because the clock went back, count for the last interval.
                let place = usize::try_from(place).unwrap_or(usize::MAX).min(count.saturating_sub(1));
                let Some(span) = spans.get_mut(place) else { continue };
                span.usage = span.usage.plus(usage);
                match status.as_str() {
                    "success" => span.succeeded += number,
                    "cancelled" => span.cancelled += number,
                    _ => span.failed += number,
                }
            }
            Ok(())
        })?;
        Ok(spans)
    }

    fn task_of(&self, run: &RunId) -> Result<Option<TaskId>, StoreError> {
        self.read(|connection| {
            let mut query = connection.prepare_cached("SELECT task FROM runs WHERE run = ?1")?;
            let mut rows = query.query([run.as_str()])?;
            Ok(rows.next()?.map(|row| id_of(row.get(0)?)).transpose()?)
        })
    }

    fn purge(&self, before_ms: u64, dry_run: bool) -> Result<u64, StoreError> {
        // Tasks with open dependents, undelivered webhooks or a dead letter are kept.
        const OLD: &str = "FROM tasks INDEXED BY tasks_ended
            WHERE state IN ('done', 'dead', 'cancelled') AND changed < ?1 AND cleanup_run IS NULL
            AND NOT EXISTS (SELECT 1 FROM dead_letters d WHERE d.task = tasks.seq)
            AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.task = tasks.seq AND d.state = 'waiting')
            AND NOT EXISTS (SELECT 1 FROM task_dependencies b JOIN tasks t ON t.seq = b.task
                            WHERE b.depends_on = tasks.seq AND t.state IN ('queued', 'running', 'blocked'))";
        let before = int(before_ms);
        if dry_run {
            return self.read(|connection| {
                let count =
                    connection.query_row(&format!("SELECT count(*) {OLD}"), [before], |row| row.get(0));
                Ok(uint(count?))
            });
        }
        // In batches, so that other processes can write in between; oldest first.
        let old = format!("SELECT seq, lane {OLD} ORDER BY changed LIMIT {PURGE_BATCH}");
        let mut forgotten = 0;
        loop {
            let count = self.write_alone(|connection| {
                let mut query = connection.prepare_cached(&old)?;
                let rows = query.query_map([before], |row| Ok((row.get(0)?, row.get(1)?)))?;
                let rows: Vec<(i64, String)> = rows.collect::<Result<_, _>>()?;
                rows.iter().try_for_each(|(seq, lane)| purge_one(connection, *seq, lane))?;
                Ok(rows.len())
            })?;
            forgotten += count as u64;
            if count < PURGE_BATCH {
                break;
            }
        }
        self.write_alone(|connection| Ok(connection.execute("DELETE FROM events WHERE at < ?1", [before])?))?;
        Ok(forgotten)
    }
}

/// Sums of the usage of runs. SQLite fails when a sum of integers overflows, and an agent CLI can report any numbers: each is bounded
/// as by [`Usage::bounded`].
const USAGE_SUMS: &str = "sum(min(r.input_tokens, 1 << 40)), sum(min(r.output_tokens, 1 << 40)),
    sum(min(r.cached_tokens, 1 << 40)), sum(CASE WHEN r.cost_usd BETWEEN 0 AND 1e9 THEN r.cost_usd END)";

/// Tasks that are deleted in one transaction.
const PURGE_BATCH: usize = 500;

fn purge_one(connection: &Connection, seq: i64, lane: &str) -> SqlResult<()> {
    for table in ["runs", "deliveries", "task_dependencies"] {
        connection.prepare_cached(&format!("DELETE FROM {table} WHERE task = ?1"))?.execute([seq])?;
    }
    connection.prepare_cached("DELETE FROM task_dependencies WHERE depends_on = ?1")?.execute([seq])?;
    connection.prepare_cached("DELETE FROM tasks WHERE seq = ?1")?.execute([seq])?;
    let empty = "DELETE FROM lanes WHERE name = ?1 AND NOT EXISTS (SELECT 1 FROM tasks WHERE lane = ?1)";
    connection.prepare_cached(empty)?.execute([lane])?;
    Ok(())
}

pub(super) fn runs_of(connection: &Connection, seq: i64) -> SqlResult<Vec<TaskRun>> {
    let mut query = connection.prepare_cached(
        "SELECT run, fence, owner, started, ended, status, class, input_tokens, output_tokens, cached_tokens, cost_usd
         FROM runs WHERE task = ?1 ORDER BY fence",
    )?;
    let rows = query.query_map([seq], |row| {
        let word = |column: usize| -> rusqlite::Result<Option<Value>> {
            Ok(row.get::<_, Option<String>>(column)?.map(Value::String))
        };
        Ok(TaskRun {
            run: row.get::<_, String>(0)?.parse().map_err(|error| wrong(0, error))?,
            task: id_of(seq)?,
            fence: uint(row.get(1)?),
            owner: row.get(2)?,
            started_ms: uint(row.get(3)?),
            ended_ms: row.get::<_, Option<i64>>(4)?.map(uint),
            status: word(5)?.map(serde_json::from_value).transpose().map_err(|error| wrong(5, error))?,
            class: word(6)?.map(serde_json::from_value).transpose().map_err(|error| wrong(6, error))?,
            usage: Usage {
                input_tokens: uint(row.get(7)?),
                output_tokens: uint(row.get(8)?),
                cached_tokens: uint(row.get(9)?),
                cost_usd: row.get(10)?,
            }
            .bounded(),
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}
