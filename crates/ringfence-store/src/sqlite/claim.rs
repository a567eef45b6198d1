//! Whose turn it is: the highest priority first, then the lane that was served longest ago, then the oldest task.

use ringfence_core::task::{Incident, RetryRule, State, StateName};
use rusqlite::{Connection, OptionalExtension, params};
use serde_json::{Value, json};

use super::tasks::{COLUMNS, Kept, happened, note, put_life, refresh_lane};
use super::{Done, int, uint};
use crate::error::StoreError;
use crate::tasks::{Claim, Now, Task};

/// How many tasks become ready in one go; the rest in the next.
const AT_ONCE: i64 = 1000;
/// How many lanes are looked at beyond those that are wanted, where tasks are not for who asks.
const SPARE_LANES: usize = 256;

/// Those that wait for their time. The index is named, for the planner would rather look at all that are queued.
pub(super) const WAITING: &str =
    "FROM tasks INDEXED BY tasks_due WHERE ready = 0 AND waits = 0 AND state IN ('queued', 'blocked')";
/// Those that were put there by a clock that has gone back since.
const FUTURE: &str = "FROM tasks INDEXED BY tasks_future
    WHERE ready = 0 AND waits = 0 AND state IN ('queued', 'blocked') AND changed > ?1";
/// Clocks differ by so much, in milliseconds, without having gone back.
const BACK: u64 = 60_000;
/// The lanes in which somebody may work.
const OPEN: &str = "FROM lanes INDEXED BY lanes_open WHERE free = 1 AND best IS NOT NULL";

/// Whether there is anything to take, or anything that has its time.
pub(super) fn worth_it(connection: &Connection, now: Now) -> Done<bool> {
    let mut query = connection.prepare_cached(&format!(
        "SELECT EXISTS (SELECT 1 {OPEN}) OR EXISTS (SELECT 1 {WAITING} AND due <= ?2) OR EXISTS (SELECT 1 {FUTURE})"
    ))?;
    Ok(query.query_row([int(now.ms + BACK), int(now.seconds())], |row| row.get(0))?)
}

/// Takes what there is to take.
pub(super) fn take(connection: &Connection, claim: &Claim<'_>, now: Now) -> Done<Vec<Task>> {
    promote(connection, now)?;
    let most = match claim.max_concurrency {
        0 => claim.most,
        bound => {
            let mut query =
                connection.prepare_cached("SELECT count(*) FROM tasks WHERE state = 'running'")?;
            let running = usize::try_from(query.query_row([], |row| row.get::<_, i64>(0))?).unwrap_or(0);
            claim.most.min((bound as usize).saturating_sub(running))
        }
    };
    let mut taken = Vec::new();
    let mut passed = 0;
    while taken.len() < most {
        // Lanes that were taken are open no more; those that were passed over still are.
        let page = open_lanes(connection, claim, most - taken.len() + SPARE_LANES, passed)?;
        let last = page.len() < SPARE_LANES;
        for lane in page {
            if taken.len() >= most {
                break;
            }
            let mut first = connection.prepare_cached(&format!(
                "SELECT {COLUMNS} FROM tasks WHERE lane = ?1 AND ready = 1 ORDER BY priority DESC, seq LIMIT 1"
            ))?;
            let Some(kept) = first.query_row([&lane], Kept::read).optional()? else { continue };
            if (claim.fits)(&kept.spec) {
                let Some(task) = lease(connection, claim, kept, now)? else { return Ok(taken) };
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

/// The lanes in which somebody may work, in their order, without the first so many.
fn open_lanes(connection: &Connection, claim: &Claim<'_>, most: usize, passed: usize) -> Done<Vec<String>> {
    let mut lanes: Vec<(i64, i64, String)> = Vec::new();
    let mut query = connection.prepare_cached(&format!(
        "SELECT -best, served, name {OPEN} AND role = ?1 ORDER BY best DESC, served LIMIT ?2"
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

fn lease(connection: &Connection, claim: &Claim<'_>, kept: Kept, now: Now) -> Done<Option<Task>> {
    let Some(run) = (claim.name)() else { return Ok(None) };
    let incident = Incident::Lease { run: run.clone(), until: claim.until };
    // What was ready by the clock as it was is still ready, should the clock have gone back meanwhile.
    let at = match &kept.life.state {
        State::Queued { not_before } => now.seconds().max(*not_before),
        _ => now.seconds(),
    };
    let life = match kept.life.step(incident, at, 0, &RetryRule::DEFAULT) {
        Ok(life) => life,
        Err(error) => {
            return Err(StoreError::Step { task: super::tasks::id_of(kept.seq)?, error }.into());
        }
    };
    put_life(connection, &kept, &life, Some(claim.owner), now)?;
    connection
        .prepare_cached("INSERT INTO runs(run, task, fence, owner, started) VALUES (?1, ?2, ?3, ?4, ?5)")?
        .execute(params![run.as_str(), kept.seq, int(life.fence), claim.owner, int(now.ms)])?;
    let data = json!({ "fence": life.fence, "owner": claim.owner, "attempt": life.attempts });
    let event = note(connection, &happened("leased", kept.seq, Some(run.as_str()), data), now)?;
    refresh_lane(connection, &kept.lane, Some(event))?;
    Ok(Some(Kept { life, ..kept }.into_task(connection)?))
}

/// Makes ready whose time has come.
fn promote(connection: &Connection, now: Now) -> Done<()> {
    let mut query = connection.prepare_cached(&format!("SELECT {COLUMNS} {FUTURE} LIMIT {AT_ONCE}"))?;
    let future = query.query_map([int(now.ms + BACK)], Kept::read)?.collect::<Result<Vec<_>, _>>()?;
    for kept in &future {
        bring_back(connection, kept, now)?;
    }
    let due = format!("SELECT {COLUMNS} {WAITING} AND due <= ?1 ORDER BY due LIMIT {AT_ONCE}");
    let mut query = connection.prepare_cached(&due)?;
    let due = query.query_map([int(now.seconds())], Kept::read)?.collect::<Result<Vec<_>, _>>()?;
    for kept in due {
        let life = if kept.life.state.name() == StateName::Blocked {
            let unblocked = kept.life.step(Incident::Unblocked, now.seconds(), 0, &RetryRule::DEFAULT);
            let Ok(life) = unblocked else { continue };
            note(connection, &happened("unblocked", kept.seq, None, Value::Null), now)?;
            life
        } else {
            kept.life.clone()
        };
        put_life(connection, &kept, &life, None, now)?;
        refresh_lane(connection, &kept.lane, None)?;
    }
    Ok(())
}

/// Lets a task wait as long as it was to wait when the clock was still ahead.
fn bring_back(connection: &Connection, kept: &Kept, now: Now) -> Done<()> {
    let (State::Queued { not_before: due } | State::Blocked { until: due }) = &kept.life.state else {
        return Ok(());
    };
    let at = now.seconds() + due.saturating_sub(uint(kept.changed) / 1000);
    let incident = Incident::Rescheduled { at };
    let Ok(life) = kept.life.step(incident, now.seconds(), 0, &RetryRule::DEFAULT) else { return Ok(()) };
    put_life(connection, kept, &life, None, now)?;
    refresh_lane(connection, &kept.lane, None)?;
    note(connection, &happened("rescheduled", kept.seq, None, json!({ "at": at })), now)?;
    Ok(())
}
