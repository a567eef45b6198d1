//! Tasks: adding, reading, and what happens to them with all that follows.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;

use ringfence_core::event::{RunResult, RunStatus, Usage};
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::ids::{RunId, TaskId};
use ringfence_core::paths::DirectoryId;
use ringfence_core::task::{Incident, Life, RetryRule, Role, State, StateName, TaskSpec, Time};
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::claim::{take, worth_it};
use super::{Done, Fault, Sound, Sqlite, int, uint};
use crate::error::StoreError;
use crate::events::Happened;
use crate::tasks::{
    Added, AgentRow, Attempt, Change, Changed, Claim, Counts, Filter, Lease, NewTask, Now, Rules, Span, Task,
    Tasks,
};

/// All that a row of a task says.
pub(super) const COLUMNS: &str =
    "seq, spec, lane, life, created, changed, result, waits, leaving IS NOT NULL, workspace";

/// A row of a task.
pub(super) struct Kept {
    pub(super) seq: i64,
    pub(super) spec: TaskSpec,
    pub(super) lane: String,
    pub(super) life: Life,
    pub(super) created: i64,
    pub(super) changed: i64,
    pub(super) result: Option<String>,
    pub(super) waits: i64,
    /// Whether something of its last run may be left.
    pub(super) leaving: bool,
    /// Device and inode of its directory.
    pub(super) workspace: Option<String>,
}

impl Kept {
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            seq: row.get(0)?,
            spec: parsed(row, 1)?,
            lane: row.get(2)?,
            life: parsed(row, 3)?,
            created: row.get(4)?,
            changed: row.get(5)?,
            result: row.get(6)?,
            waits: row.get(7)?,
            leaving: row.get(8)?,
            workspace: row.get(9)?,
        })
    }

    pub(super) fn of(connection: &Connection, seq: i64) -> Done<Option<Self>> {
        let mut query = connection.prepare_cached(&format!("SELECT {COLUMNS} FROM tasks WHERE seq = ?1"))?;
        Ok(query.query_row([seq], Self::read).optional()?)
    }

    pub(super) fn into_task(self, connection: &Connection) -> Done<Task> {
        let waits_for = if self.waits > 0 { undone_befores(connection, self.seq)? } else { Vec::new() };
        Ok(Task {
            id: id_of(self.seq)?,
            spec: self.spec,
            lane: self.lane,
            // One that cannot be read is as none: the task is not run.
            workspace: self.workspace.and_then(|text| serde_json::from_str(&text).ok()),
            life: self.life,
            waits_for,
            created_ms: uint(self.created),
            changed_ms: uint(self.changed),
            // One of an older form is left out rather than hiding the task.
            result: self.result.and_then(|text| serde_json::from_str(&text).ok()),
        })
    }
}

fn undone_befores(connection: &Connection, seq: i64) -> Done<Vec<TaskId>> {
    let mut query = connection.prepare_cached(
        "SELECT b.needs FROM befores b JOIN tasks t ON t.seq = b.needs
         WHERE b.task = ?1 AND t.state <> 'done' ORDER BY b.needs",
    )?;
    let rows = query.query_map([seq], |row| id_of(row.get(0)?))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(super) fn id_of(seq: i64) -> rusqlite::Result<TaskId> {
    seq.to_string().parse().map_err(|error| wrong(0, error))
}

/// The row of an id, if it can be one.
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

/// What the indexes have to know of a life.
struct Derived {
    due: i64,
    ready: bool,
    /// Whether the others of its lane wait for it.
    holds: bool,
    run: Option<String>,
    lease_until: i64,
}

fn derive(life: &Life, waits: i64, leaving: bool, now: Now) -> Derived {
    let nothing = Derived { due: 0, ready: false, holds: false, run: None, lease_until: 0 };
    match &life.state {
        State::Queued { not_before } => {
            let ready = waits == 0 && !leaving && *not_before <= now.seconds();
            Derived { due: int(*not_before), ready, holds: !ready && life.attempts > 0, ..nothing }
        }
        State::Blocked { until } => Derived { due: int(*until), holds: true, ..nothing },
        State::Running { run, lease_until } => {
            Derived { run: Some(run.to_string()), lease_until: int(*lease_until), ..nothing }
        }
        State::Done | State::Failed | State::Dead | State::Cancelled => nothing,
    }
}

/// Writes what a life has become.
pub(super) fn put_life(
    connection: &Connection,
    kept: &Kept,
    life: &Life,
    owner: Option<&str>,
    now: Now,
) -> Done<()> {
    let Derived { due, ready, holds, run, lease_until } = derive(life, kept.waits, kept.leaving, now);
    let mut update = connection.prepare_cached(
        "UPDATE tasks SET life = ?2, state = ?3, due = ?4, ready = ?5, holds = ?6, waits = ?7, run = ?8,
             fence = ?9, lease_until = ?10, owner = coalesce(?11, owner), changed = ?12 WHERE seq = ?1",
    )?;
    update.execute(params![
        kept.seq,
        json_of(life)?,
        life.state.name().as_str(),
        due,
        ready,
        holds,
        kept.waits,
        run,
        int(life.fence),
        lease_until,
        owner,
        int(now.ms)
    ])?;
    Ok(())
}

/// Looks again whose turn it is in a lane, and notes when it was served, if it was.
pub(super) fn refresh_lane(connection: &Connection, lane: &str, served: Option<i64>) -> Done<()> {
    let mut first = connection.prepare_cached(
        "SELECT priority, role FROM tasks WHERE lane = ?1 AND ready = 1 ORDER BY priority DESC, seq LIMIT 1",
    )?;
    let best: Option<(i64, String)> =
        first.query_row([lane], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
    let (best, role) = best.unzip();
    let mut update = connection.prepare_cached(
        "INSERT INTO lanes(name, free, best, role, served)
         VALUES (?1, NOT EXISTS (SELECT 1 FROM tasks WHERE lane = ?1 AND state = 'running')
                 AND NOT EXISTS (SELECT 1 FROM tasks WHERE lane = ?1 AND leaving IS NOT NULL)
                 AND NOT EXISTS (SELECT 1 FROM tasks WHERE lane = ?1 AND holds = 1), ?2, ?3,
                 -- Who comes anew stands last in the line.
                 (SELECT coalesce(max(id), 0) FROM events))
         ON CONFLICT(name) DO UPDATE SET free = excluded.free, best = excluded.best, role = excluded.role,
             served = coalesce(?4, served)",
    )?;
    update.execute(params![lane, best, role, served])?;
    Ok(())
}

pub(super) fn note(connection: &Connection, happened: &Happened, now: Now) -> Done<i64> {
    let data = (!happened.data.is_null()).then(|| happened.data.to_string());
    let mut insert = connection
        .prepare_cached("INSERT INTO events(at, kind, task, run, data) VALUES (?1, ?2, ?3, ?4, ?5)")?;
    insert.execute(params![int(now.ms), happened.kind, happened.task, happened.run, data])?;
    Ok(connection.last_insert_rowid())
}

pub(super) fn happened(kind: &str, seq: i64, run: Option<&str>, data: Value) -> Happened {
    Happened { kind: format!("task.{kind}"), task: Some(seq.to_string()), run: run.map(str::to_owned), data }
}

/// Adds a task, unless it was added before.
fn add_one(connection: &Connection, NewTask { spec, lane, workspace }: &NewTask, now: Now) -> Done<Added> {
    if let Some(task) = added_before(connection, spec)? {
        return Ok(Added { task, existed: true });
    }
    let waits = int(undone(connection, &spec.after)? as u64);
    let life = Life::accepted(spec.not_before.unwrap_or(0));
    let Derived { due, ready, holds, .. } = derive(&life, waits, false, now);
    let mut insert = connection.prepare_cached(
        "INSERT INTO tasks(agent, role, lane, priority, key, spec, life, state, due, ready, holds, waits,
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
        json_of(&life)?,
        due,
        ready,
        holds,
        waits,
        int(now.ms),
        json_of(workspace)?
    ])?;
    let seq = connection.last_insert_rowid();
    let mut before =
        connection.prepare_cached("INSERT OR IGNORE INTO befores(needs, task) VALUES (?1, ?2)")?;
    for needs in &spec.after {
        before.execute(params![seq_of(needs)?, seq])?;
    }
    if ready {
        refresh_lane(connection, lane, None)?;
    }
    let data = json!({ "agent": spec.agent, "role": spec.role, "priority": spec.priority, "lane": lane });
    note(connection, &happened("added", seq, None, data), now)?;
    Ok(Added { task: id_of(seq)?, existed: false })
}

/// The task of the same key, if it asks for the same.
fn added_before(connection: &Connection, spec: &TaskSpec) -> Done<Option<TaskId>> {
    let Some(key) = &spec.key else { return Ok(None) };
    let mut query = connection.prepare_cached("SELECT seq, spec FROM tasks WHERE key = ?1")?;
    let found = query.query_row([key], |row| Ok((id_of(row.get(0)?)?, parsed::<TaskSpec>(row, 1)?)));
    let Some((task, other)) = found.optional()? else { return Ok(None) };
    // The time is left aside: who says "in an hour" again means the same hour.
    if (TaskSpec { not_before: spec.not_before, ..other }) == *spec {
        return Ok(Some(task));
    }
    Err(StoreError::KeyTaken { key: key.clone(), task }.into())
}

/// How many of these are not done yet. One that never will be is an error.
fn undone(connection: &Connection, after: &[TaskId]) -> Done<usize> {
    let mut waits = BTreeSet::new();
    for needs in after {
        let missing = || StoreError::NoSuchBefore(needs.clone());
        let seq = seq_of(needs).map_err(|_| missing())?;
        let mut query = connection.prepare_cached("SELECT state FROM tasks WHERE seq = ?1")?;
        let state: Option<String> = query.query_row([seq], |row| row.get(0)).optional()?;
        match state.as_deref().map(StateName::parse) {
            None => return Err(missing().into()),
            Some(Some(StateName::Done)) => {}
            Some(Some(state @ (StateName::Dead | StateName::Cancelled))) => {
                return Err(StoreError::NeverDone { task: needs.clone(), state }.into());
            }
            Some(_) => drop(waits.insert(seq)),
        }
    }
    Ok(waits.len())
}

fn existing(connection: &Connection, task: &TaskId) -> Done<Kept> {
    let kept = Kept::of(connection, seq_of(task)?)?;
    Ok(kept.ok_or_else(|| StoreError::NoTask(task.to_string()))?)
}

/// Lets something happen to a task, and to those that wait for it.
fn change_one(
    connection: &Connection,
    task: &TaskId,
    incident: &Incident,
    by: &By,
    now: Now,
) -> Done<Changed> {
    let mut kept = existing(connection, task)?;
    if *incident == Incident::Retry {
        // What was done and forgotten since was done.
        kept.waits = int(undone(connection, &known(connection, &kept.spec.after)?)? as u64);
    }
    let before = kept.life.clone();
    let mut died = Vec::new();
    let next = step(connection, &kept, incident, by, now)?;
    if let Some(workspace) = &by.workspace {
        let text = json_of(workspace)?;
        connection.execute("UPDATE tasks SET workspace = ?2 WHERE seq = ?1", params![kept.seq, text])?;
        kept.workspace = Some(text);
    }
    died.extend((next.state == State::Dead).then(|| task.clone()));
    let mut work = followers(connection, kept.seq, &next, now)?;
    let result = by.result.as_ref().map(json_of).transpose()?.or(kept.result.take());
    let result = result.filter(|_| *incident != Incident::Retry);
    let changed = Kept { life: next, result, changed: int(now.ms), ..kept }.into_task(connection)?;
    // What a run of one task brought about is nobody else's.
    let by = &By { rules: by.rules.clone(), jitter: by.jitter, result: None, workspace: None };
    while let Some((kept, incident)) = work.pop() {
        let next = step(connection, &kept, &incident, by, now)?;
        died.push(id_of(kept.seq)?);
        work.extend(followers(connection, kept.seq, &next, now)?);
    }
    Ok(Changed { task: changed, before, died })
}

/// Those of the tasks that are still there.
fn known(connection: &Connection, tasks: &[TaskId]) -> Done<Vec<TaskId>> {
    let mut known = Vec::new();
    for task in tasks {
        let mut query = connection.prepare_cached("SELECT 1 FROM tasks WHERE seq = ?1")?;
        if query.exists([seq_of(task)?])? {
            known.push(task.clone());
        }
    }
    Ok(known)
}

/// One task, one incident, all that belongs to it.
fn step(connection: &Connection, kept: &Kept, incident: &Incident, by: &By, now: Now) -> Done<Life> {
    let retry = by.rules.retry;
    let rule = RetryRule { max_attempts: kept.spec.max_attempts.unwrap_or(retry.max_attempts), ..retry };
    let stepped = |life: &Life, incident, jitter| {
        let next = life.step(incident, now.seconds(), jitter, &rule);
        next.map_err(|error| match id_of(kept.seq) {
            Ok(task) => Fault::Store(StoreError::Step { task, error }),
            Err(error) => Fault::Sql(error),
        })
    };
    let mut next = stepped(&kept.life, incident.clone(), by.jitter)?;
    if let Incident::Heartbeat { .. } = incident {
        put_life(connection, kept, &next, None, now)?;
        return Ok(next);
    }
    let run = match &kept.life.state {
        State::Running { run, .. } => Some(run.as_str()),
        _ => None,
    };
    if let Some(run) = run {
        end_run(connection, run, incident, by.result.as_ref(), now)?;
    }
    tell(connection, kept, incident, &next, run, now)?;
    if next.state == State::Failed {
        // The letter is in the same transaction, so the task is buried at once.
        next = stepped(&next, Incident::Buried, 0)?;
        let mut bury =
            connection.prepare_cached("INSERT OR REPLACE INTO dead_letters(task, at) VALUES (?1, ?2)")?;
        bury.execute(params![kept.seq, int(now.ms)])?;
        tell(connection, kept, &Incident::Buried, &next, None, now)?;
    }
    if let (Incident::Cancel, Some(run)) = (incident, run) {
        connection.execute("UPDATE tasks SET leaving = ?2 WHERE seq = ?1", params![kept.seq, run])?;
    }
    if *incident == Incident::Retry {
        connection.execute("DELETE FROM dead_letters WHERE task = ?1", [kept.seq])?;
        connection.execute("UPDATE tasks SET result = NULL WHERE seq = ?1", [kept.seq])?;
    }
    put_life(connection, kept, &next, None, now)?;
    if let Some(result) = &by.result {
        let mut keep = connection.prepare_cached("UPDATE tasks SET result = ?2 WHERE seq = ?1")?;
        keep.execute(params![kept.seq, json_of(result)?])?;
    }
    refresh_lane(connection, &kept.lane, None)?;
    if next.state.name().is_final() {
        deliver(connection, kept, &next, by, now)?;
    }
    Ok(next)
}

/// What an incident is brought about with.
struct By {
    rules: Rules,
    jitter: u8,
    result: Option<RunResult>,
    /// The directory that a retry has accepted.
    workspace: Option<DirectoryId>,
}

fn end_run(
    connection: &Connection,
    run: &str,
    incident: &Incident,
    result: Option<&RunResult>,
    now: Now,
) -> Done<()> {
    // One that was never started, or is still to be ended, has no result of its own.
    let (status, class) = match (incident, result) {
        (_, Some(result)) => (Some(result.status), result.failure.as_ref().map(|failure| failure.class)),
        (Incident::Failed { failure, .. }, None) => (Some(RunStatus::Failed), Some(failure.class)),
        (Incident::Cancel, None) => (Some(RunStatus::Cancelled), None),
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

/// The one word that a value is written as.
fn json_word(value: &impl Serialize) -> rusqlite::Result<String> {
    Ok(json_of(value)?.trim_matches('"').to_owned())
}

fn tell(
    connection: &Connection,
    kept: &Kept,
    incident: &Incident,
    next: &Life,
    run: Option<&str>,
    now: Now,
) -> Done<()> {
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
    let (kind, data) = match (incident, &next.state) {
        (Incident::Buried, _) => ("dead", reason()),
        (Incident::Retry, _) => ("retried", json!({ "times": next.retries })),
        (Incident::Cancel, _) => ("cancelled", Value::Null),
        (Incident::Vanished { fence }, _) => ("vanished", json!({ "fence": fence, "times": next.vanished })),
        (Incident::HandedBack { fence }, _) => ("handed_back", json!({ "fence": fence })),
        (Incident::Unblocked, _) => ("unblocked", Value::Null),
        (Incident::Forsaken { .. }, _) => ("forsaken", reason()),
        (Incident::Succeeded { fence }, _) => ("done", json!({ "fence": fence })),
        (Incident::Failed { fence, .. }, State::Blocked { until }) => {
            let mut data = with(with(reason(), "until", *until), "fence", *fence);
            data["reason"] = "quota_wait".into();
            ("blocked", data)
        }
        (Incident::Failed { fence, .. }, State::Queued { not_before }) => {
            ("retrying", with(with(reason(), "not_before", *not_before), "fence", *fence))
        }
        (Incident::Failed { fence, .. }, _) => ("failed", with(reason(), "fence", *fence)),
        (Incident::Rescheduled { at }, _) => ("rescheduled", json!({ "at": at })),
        // Told where they happen, or not worth telling.
        (Incident::Lease { .. } | Incident::Heartbeat { .. }, _) => return Ok(()),
    };
    note(connection, &happened(kind, kept.seq, run, data), now)?;
    Ok(())
}

/// What the end of a task means for those who wait for it.
fn followers(connection: &Connection, seq: i64, life: &Life, now: Now) -> Done<Vec<(Kept, Incident)>> {
    let name = life.state.name();
    if !name.is_final() {
        return Ok(Vec::new());
    }
    let mut query = connection.prepare_cached("SELECT task FROM befores WHERE needs = ?1")?;
    let waiting: Vec<i64> = query.query_map([seq], |row| row.get(0))?.collect::<Result<_, _>>()?;
    let mut forsaken = Vec::new();
    for follower in waiting {
        let Some(mut kept) = Kept::of(connection, follower)? else { continue };
        if kept.life.state.name() != StateName::Queued || kept.waits == 0 {
            continue;
        }
        if name == StateName::Done {
            kept.waits -= 1;
            put_life(connection, &kept, &kept.life, None, now)?;
            refresh_lane(connection, &kept.lane, None)?;
        } else {
            let message = format!("task {seq}, which it waits for, ended as {name}");
            let failure = Failure::new(FailureClass::Refused, message)
                .with_remedy(format!("retry task {seq} first, then this one"));
            forsaken.push((kept, Incident::Forsaken { failure }));
        }
    }
    Ok(forsaken)
}

/// Leaves a note for each who wants to be told of the end.
fn deliver(connection: &Connection, kept: &Kept, life: &Life, by: &By, now: Now) -> Done<()> {
    for url in [kept.spec.webhook.as_deref(), by.rules.webhook.as_deref()].into_iter().flatten() {
        let body = json!({
            "event": format!("task.{}", life.state.name()),
            "task": kept.seq.to_string(),
            "state": life.state.name(),
            "at_ms": now.ms,
            "agent": kept.spec.agent,
            "role": kept.spec.role,
            "prompt": kept.spec.prompt,
            "attempts": life.fence,
            "failure": if life.state == State::Done { None } else { life.failures.last() },
            "result": by.result,
        });
        connection.execute(
            "INSERT INTO deliveries(task, url, body, state, attempts, due) VALUES (?1, ?2, ?3, 'waiting', 0, ?4)",
            params![kept.seq, url, body.to_string(), int(now.seconds())],
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
        let states: Vec<StateName> =
            if filter.states.is_empty() { StateName::ALL.to_vec() } else { filter.states.clone() };
        // Names of ours, so nothing of the outside gets into the words.
        let list = states.iter().map(|state| format!("'{state}'")).collect::<Vec<_>>().join(", ");
        let list = if states.len() == StateName::ALL.len() {
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
            let rows = query.query_map(params![before, role, filter.agent, limit], Kept::read)?;
            rows.map(|kept| kept?.into_task(connection)).collect()
        })
    }

    fn counts(&self) -> Result<Counts, StoreError> {
        self.read(|connection| {
            let mut query = connection.prepare_cached("SELECT state, count(*) FROM tasks GROUP BY state")?;
            let rows = query.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?)))?;
            let mut counts: Counts = StateName::ALL.into_iter().map(|state| (state, 0)).collect();
            for row in rows {
                let (state, count) = row?;
                counts.extend(StateName::parse(&state).map(|state| (state, uint(count))));
            }
            Ok(counts)
        })
    }

    fn attempts(&self, id: &TaskId) -> Result<Vec<Attempt>, StoreError> {
        let seq = seq_of(id)?;
        self.read(|connection| attempts_of(connection, seq))
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
                row.tasks.extend(StateName::parse(&state).map(|state| (state, uint(count))));
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
        // Looking costs nothing, and disturbs nobody who writes.
        if !self.read(|connection| worth_it(connection, now))? {
            return Ok(Vec::new());
        }
        let claimed = self.write_alone(|connection| take(connection, claim, now))?;
        if !claimed.is_empty() {
            self.bell.ring();
        }
        Ok(claimed)
    }

    fn change(&self, change: &Change<'_>, now: Now) -> Result<Changed, StoreError> {
        let sound =
            if matches!(change.incident, Incident::Heartbeat { .. }) { Sound::Silent } else { Sound::Ring };
        let by = By {
            rules: change.rules.clone(),
            jitter: change.jitter,
            result: change.result.cloned(),
            workspace: change.workspace,
        };
        let (task, incident) = (change.task.clone(), change.incident.clone());
        self.write_so(sound, move |connection| change_one(connection, &task, &incident, &by, now))
    }

    fn leaving(&self) -> Result<Vec<(TaskId, RunId)>, StoreError> {
        self.read(|connection| {
            let mut query = connection.prepare_cached(
                "SELECT seq, leaving FROM tasks INDEXED BY tasks_leaving WHERE leaving IS NOT NULL",
            )?;
            let rows = query.query_map([], |row| {
                let run = row.get::<_, String>(1)?.parse().map_err(|error| wrong(1, error))?;
                Ok((id_of(row.get(0)?)?, run))
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    fn release(&self, task: &TaskId, run: &RunId, now: Now) -> Result<(), StoreError> {
        let (seq, run) = (seq_of(task)?, run.to_string());
        self.write(move |connection| {
            let gone = connection.execute(
                "UPDATE tasks SET leaving = NULL WHERE seq = ?1 AND leaving = ?2",
                params![seq, run],
            )?;
            if gone > 0
                && let Some(kept) = Kept::of(connection, seq)?
            {
                put_life(connection, &kept, &kept.life, None, now)?;
                refresh_lane(connection, &kept.lane, None)?;
            }
            Ok(())
        })
    }

    fn is_there(&self) -> bool {
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

    fn next_due(&self) -> Result<Option<Time>, StoreError> {
        self.read(|connection| {
            let read =
                connection.query_row(&format!("SELECT min(due) {}", super::claim::WAITING), [], |row| {
                    row.get::<_, Option<i64>>(0)
                });
            Ok(read?.map(uint))
        })
    }

    fn delete(&self, id: &TaskId, now: Now) -> Result<(), StoreError> {
        let id = id.clone();
        self.write(move |connection| {
            let kept = existing(connection, &id)?;
            let seq = kept.seq;
            let free: bool = connection
                .prepare_cached(
                    "SELECT state IN ('done', 'dead', 'cancelled') AND leaving IS NULL
                     AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.task = ?1 AND d.state = 'waiting')
                     AND NOT EXISTS (SELECT 1 FROM befores b JOIN tasks t ON t.seq = b.task
                                     WHERE b.needs = ?1 AND t.state IN ('queued', 'running', 'blocked'))
                     FROM tasks WHERE seq = ?1",
                )?
                .query_row([seq], |row| row.get(0))?;
            if !free {
                return Err(StoreError::Awaited(id).into());
            }
            connection.prepare_cached("DELETE FROM dead_letters WHERE task = ?1")?.execute([seq])?;
            forget_one(connection, seq, &kept.lane)?;
            note(connection, &happened("deleted", seq, None, Value::Null), now)?;
            Ok(())
        })
    }

    fn spans(&self, length_ms: u64, count: usize, now: Now) -> Result<Vec<Span>, StoreError> {
        let length = length_ms.max(1);
        // The last one is the one that now belongs to.
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
                // What is from the future, because the clock went back, is of now.
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

    fn forget(&self, before_ms: u64, really: bool) -> Result<u64, StoreError> {
        // One that somebody still waits for is kept, and one whose letter nobody has read.
        const OLD: &str = "FROM tasks INDEXED BY tasks_ended
            WHERE state IN ('done', 'dead', 'cancelled') AND changed < ?1 AND leaving IS NULL
            AND NOT EXISTS (SELECT 1 FROM dead_letters d WHERE d.task = tasks.seq)
            AND NOT EXISTS (SELECT 1 FROM deliveries d WHERE d.task = tasks.seq AND d.state = 'waiting')
            AND NOT EXISTS (SELECT 1 FROM befores b JOIN tasks t ON t.seq = b.task
                            WHERE b.needs = tasks.seq AND t.state IN ('queued', 'running', 'blocked'))";
        let before = int(before_ms);
        if !really {
            return self.read(|connection| {
                let count =
                    connection.query_row(&format!("SELECT count(*) {OLD}"), [before], |row| row.get(0));
                Ok(uint(count?))
            });
        }
        // In turns with everybody else, the oldest first.
        let old = format!("SELECT seq, lane {OLD} ORDER BY changed LIMIT {FORGOTTEN_AT_ONCE}");
        let mut forgotten = 0;
        loop {
            let count = self.write_alone(|connection| {
                let mut query = connection.prepare_cached(&old)?;
                let rows = query.query_map([before], |row| Ok((row.get(0)?, row.get(1)?)))?;
                let rows: Vec<(i64, String)> = rows.collect::<Result<_, _>>()?;
                rows.iter().try_for_each(|(seq, lane)| forget_one(connection, *seq, lane))?;
                Ok(rows.len())
            })?;
            forgotten += count as u64;
            if count < FORGOTTEN_AT_ONCE {
                break;
            }
        }
        self.write_alone(|connection| Ok(connection.execute("DELETE FROM events WHERE at < ?1", [before])?))?;
        Ok(forgotten)
    }
}

/// The sums of what runs have used. A sum of integers fails when it overflows, and rows may hold what an agent CLI has forged: each
/// number is bounded as [`Usage::bounded`] does.
const USAGE_SUMS: &str = "sum(min(r.input_tokens, 1 << 40)), sum(min(r.output_tokens, 1 << 40)),
    sum(min(r.cached_tokens, 1 << 40)), sum(CASE WHEN r.cost_usd BETWEEN 0 AND 1e9 THEN r.cost_usd END)";

/// How many tasks are forgotten in one go.
const FORGOTTEN_AT_ONCE: usize = 500;

fn forget_one(connection: &Connection, seq: i64, lane: &str) -> Done<()> {
    for table in ["runs", "deliveries", "befores"] {
        connection.prepare_cached(&format!("DELETE FROM {table} WHERE task = ?1"))?.execute([seq])?;
    }
    connection.prepare_cached("DELETE FROM befores WHERE needs = ?1")?.execute([seq])?;
    connection.prepare_cached("DELETE FROM tasks WHERE seq = ?1")?.execute([seq])?;
    let empty = "DELETE FROM lanes WHERE name = ?1 AND NOT EXISTS (SELECT 1 FROM tasks WHERE lane = ?1)";
    connection.prepare_cached(empty)?.execute([lane])?;
    Ok(())
}

pub(super) fn attempts_of(connection: &Connection, seq: i64) -> Done<Vec<Attempt>> {
    let mut query = connection.prepare_cached(
        "SELECT run, fence, owner, started, ended, status, class, input_tokens, output_tokens, cached_tokens, cost_usd
         FROM runs WHERE task = ?1 ORDER BY fence",
    )?;
    let rows = query.query_map([seq], |row| {
        let word = |column: usize| -> rusqlite::Result<Option<Value>> {
            Ok(row.get::<_, Option<String>>(column)?.map(Value::String))
        };
        Ok(Attempt {
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
