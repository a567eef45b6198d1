//! Claiming tasks: by priority, then by the lane that was served longest ago, then by age.

use ringfence_core::task::{RetryRule, State, TaskEvent, TaskStatus};
use rusqlite::{Connection, OptionalExtension, params};
use serde_json::{Value, json};

use super::tasks::{COLUMNS, TaskRow, note, put_life, refresh_lane, task_event};
use super::{SqlResult, int, uint};
use crate::error::StoreError;
use crate::tasks::{Claim, Now, Task};

/// Maximum number of tasks that become ready in one transaction.
const PROMOTE_BATCH: i64 = 1000;
/// Lanes that are read in addition to the wanted ones, because the claiming process may not accept their tasks.
const SPARE_LANES: usize = 256;

/// Tasks that wait for a time. The index is named because the planner would scan all queued tasks.
pub(super) const WAITING: &str = "FROM tasks INDEXED BY tasks_not_before WHERE ready = 0 AND open_dependencies = 0 AND state IN ('queued', 'blocked')";
/// Tasks that were changed in the future, because the clock went back.
const FUTURE: &str = "FROM tasks INDEXED BY tasks_future
    WHERE ready = 0 AND open_dependencies = 0 AND state IN ('queued', 'blocked') AND changed > ?1";
/// Difference of clocks that is tolerated, in milliseconds.
const CLOCK_TOLERANCE_MS: u64 = 60_000;
/// Lanes with a ready task and no running one.
const OPEN: &str = "FROM lanes INDEXED BY lanes_open WHERE free = 1 AND best IS NOT NULL";

/// Returns whether a task is ready, or would be after `promote`.
pub(super) fn has_claimable(connection: &Connection, now: Now) -> SqlResult<bool> {
    let mut query = connection.prepare_cached(&format!(
        "SELECT EXISTS (SELECT 1 {OPEN}) OR EXISTS (SELECT 1 {WAITING} AND not_before <= ?2) OR EXISTS (SELECT 1 {FUTURE})"
    ))?;
    Ok(query.query_row([int(now.ms + CLOCK_TOLERANCE_MS), int(now.seconds())], |row| row.get(0))?)
}

/// Leases ready tasks.
pub(super) fn claim_tasks(connection: &Connection, claim: &Claim<'_>, now: Now) -> SqlResult<Vec<Task>> {
    promote(connection, now)?;
    let most = match claim.max_concurrency {
        0 => claim.max_tasks,
        bound => {
            let mut query =
                connection.prepare_cached("SELECT count(*) FROM tasks WHERE state = 'running'")?;
            let running = usize::try_from(query.query_row([], |row| row.get::<_, i64>(0))?).unwrap_or(0);
            claim.max_tasks.min((bound as usize).saturating_sub(running))
        }
    };
    let mut taken = Vec::new();
    let mut passed = 0;
    while taken.len() < most {
        // Lanes of leased tasks are no longer open; lanes of tasks that were not accepted still are.
        let page = open_lanes(connection, claim, most - taken.len() + SPARE_LANES, passed)?;
        let last = page.len() < SPARE_LANES;
        for lane in page {
            if taken.len() >= most {
                break;
            }
            let mut first = connection.prepare_cached(&format!(
                "SELECT {COLUMNS} FROM tasks WHERE lane = ?1 AND ready = 1 ORDER BY priority DESC, seq LIMIT 1"
            ))?;
            let Some(row) = first.query_row([&lane], TaskRow::read).optional()? else { continue };
            if (claim.accepts)(&row.spec) {
                let Some(task) = lease(connection, claim, row, now)? else { return Ok(taken) };
                taken.push(task);
            } else {
                passed += 1;
            }
        }
        if last {
            break;
        }
    }
    Ok(taken)
}

/// Returns open lanes in order, without the first `passed`.
fn open_lanes(
    connection: &Connection,
    claim: &Claim<'_>,
    most: usize,
    passed: usize,
) -> SqlResult<Vec<String>> {
    let mut lanes: Vec<(i64, i64, String)> = Vec::new();
    let mut query = connection.prepare_cached(&format!(
        "SELECT -best, last_served_event, name {OPEN} AND role = ?1 ORDER BY best DESC, last_served_event LIMIT ?2"
    ))?;
    for role in claim.roles {
        let rows = query.query_map(params![role.as_str(), int((most + passed) as u64)], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?;
        for row in rows {
            lanes.push(row?);
        }
    }
    lanes.sort_unstable();
    Ok(lanes.into_iter().skip(passed).take(most).map(|(.., name)| name).collect())
}

fn lease(connection: &Connection, claim: &Claim<'_>, row: TaskRow, now: Now) -> SqlResult<Option<Task>> {
    let Some(run) = (claim.new_run_id)() else { return Ok(None) };
    let event = TaskEvent::Lease { run: run.clone(), until: claim.until };
    // A task that was ready stays ready if the clock went back.
    let at = match &row.lifecycle.state {
        State::Queued { not_before } => now.seconds().max(*not_before),
        _ => now.seconds(),
    };
    let lifecycle = match row.lifecycle.step(event, at, 0, &RetryRule::DEFAULT) {
        Ok(lifecycle) => lifecycle,
        Err(error) => {
            return Err(StoreError::Step { task: super::tasks::id_of(row.seq)?, error }.into());
        }
    };
    put_life(connection, &row, &lifecycle, Some(claim.owner), now)?;
    connection
        .prepare_cached("INSERT INTO runs(run, task, fence, owner, started) VALUES (?1, ?2, ?3, ?4, ?5)")?
        .execute(params![run.as_str(), row.seq, int(lifecycle.fence), claim.owner, int(now.ms)])?;
    let data = json!({ "fence": lifecycle.fence, "owner": claim.owner, "attempt": lifecycle.attempts });
    let event_id = note(connection, &task_event("leased", row.seq, Some(run.as_str()), data), now)?;
    refresh_lane(connection, &row.lane, Some(event_id))?;
    Ok(Some(TaskRow { lifecycle, ..row }.into_task(connection)?))
}

/// Makes tasks ready whose time has come.
fn promote(connection: &Connection, now: Now) -> SqlResult<()> {
    let mut query = connection.prepare_cached(&format!("SELECT {COLUMNS} {FUTURE} LIMIT {PROMOTE_BATCH}"))?;
    let future =
        query.query_map([int(now.ms + CLOCK_TOLERANCE_MS)], TaskRow::read)?.collect::<Result<Vec<_>, _>>()?;
    for row in &future {
        bring_back(connection, row, now)?;
    }
    let due =
        format!("SELECT {COLUMNS} {WAITING} AND not_before <= ?1 ORDER BY not_before LIMIT {PROMOTE_BATCH}");
    let mut query = connection.prepare_cached(&due)?;
    let due = query.query_map([int(now.seconds())], TaskRow::read)?.collect::<Result<Vec<_>, _>>()?;
    for row in due {
        let lifecycle = if row.lifecycle.state.name() == TaskStatus::Blocked {
            let unblocked = row.lifecycle.step(TaskEvent::Unblocked, now.seconds(), 0, &RetryRule::DEFAULT);
            let Ok(lifecycle) = unblocked else { continue };
            note(connection, &task_event("unblocked", row.seq, None, Value::Null), now)?;
            lifecycle
        } else {
            row.lifecycle.clone()
        };
        put_life(connection, &row, &lifecycle, None, now)?;
        refresh_lane(connection, &row.lane, None)?;
    }
    Ok(())
}

/// Reschedules a task after the clock went back, so that its remaining wait stays the same.
fn bring_back(connection: &Connection, row: &TaskRow, now: Now) -> SqlResult<()> {
    let (State::Queued { not_before: due } | State::Blocked { until: due }) = &row.lifecycle.state else {
        return Ok(());
    };
    let at = now.seconds() + due.saturating_sub(uint(row.changed) / 1000);
    let event = TaskEvent::Rescheduled { at };
    let Ok(lifecycle) = row.lifecycle.step(event, now.seconds(), 0, &RetryRule::DEFAULT) else {
        return Ok(());
    };
    put_life(connection, row, &lifecycle, None, now)?;
    refresh_lane(connection, &row.lane, None)?;
    note(connection, &task_event("rescheduled", row.seq, None, json!({ "at": at })), now)?;
    Ok(())
}
