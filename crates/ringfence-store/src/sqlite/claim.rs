//! Whose turn it is: the highest priority first, then the lane that was served longest ago, then the oldest task.

use ringfence_core::task::{Incident, RetryRule, StateName};
use rusqlite::{Connection, OptionalExtension, params};
use serde_json::json;

use super::tasks::{COLUMNS, Kept, happened, note, put_life, refresh_lane};
use super::{Done, int, uint};
use crate::error::StoreError;
use crate::tasks::{Claim, Now, Task};

/// How many tasks become ready in one go; the rest in the next.
const AT_ONCE: i64 = 1000;
/// How many lanes are looked at beyond those that are wanted, where tasks are not for who asks.
const SPARE_LANES: usize = 256;

const DUE: &str = "FROM tasks WHERE ready = 0 AND waits = 0 AND state IN ('queued', 'blocked') AND due <= ?1";

/// Whether there is anything to take, or anything that has its time.
pub(super) fn worth_it(connection: &Connection, now: Now) -> Done<bool> {
    let mut query = connection.prepare_cached(&format!(
        "SELECT EXISTS (SELECT 1 FROM lanes WHERE free = 1 AND best IS NOT NULL) OR EXISTS (SELECT 1 {DUE})"
    ))?;
    Ok(query.query_row([int(now.seconds())], |row| row.get(0))?)
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
    for lane in open_lanes(connection, claim, most)? {
        if taken.len() >= most {
            break;
        }
        let mut first = connection.prepare_cached(&format!(
            "SELECT {COLUMNS} FROM tasks WHERE lane = ?1 AND ready = 1 ORDER BY priority DESC, seq LIMIT 1"
        ))?;
        let Some(kept) = first.query_row([&lane], Kept::read).optional()? else { continue };
        if (claim.fits)(&kept.spec) {
            let Some(task) = lease(connection, claim, kept, now)? else { break };
            taken.push(task);
        }
    }
    Ok(taken)
}

/// The lanes in which somebody may work, in their order.
fn open_lanes(connection: &Connection, claim: &Claim<'_>, most: usize) -> Done<Vec<String>> {
    let mut lanes: Vec<(i64, i64, String)> = Vec::new();
    let mut query = connection.prepare_cached(
        "SELECT -best, served, name FROM lanes WHERE free = 1 AND best IS NOT NULL AND role = ?1
         ORDER BY best DESC, served LIMIT ?2",
    )?;
    if most == 0 {
        return Ok(Vec::new());
    }
    for role in claim.roles {
        let limit = int((most + SPARE_LANES) as u64);
        let rows = query
            .query_map(params![role.as_str(), limit], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        for row in rows {
            lanes.push(row?);
        }
    }
    lanes.sort_unstable();
    Ok(lanes.into_iter().map(|(.., name)| name).collect())
}

fn lease(connection: &Connection, claim: &Claim<'_>, kept: Kept, now: Now) -> Done<Option<Task>> {
    let Some(run) = (claim.name)() else { return Ok(None) };
    let incident = Incident::Lease { run: run.clone(), until: claim.until };
    // A task that is ready by the table is so by its life, unless a clock went back meanwhile: then it is still its turn.
    let at = now.seconds().max(uint(due_of(connection, kept.seq)?));
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
    refresh_lane(connection, &kept.lane)?;
    connection
        .prepare_cached("UPDATE lanes SET served = ?2 WHERE name = ?1")?
        .execute(params![kept.lane, event])?;
    Ok(Some(Kept { life, ..kept }.into_task(connection)?))
}

fn due_of(connection: &Connection, seq: i64) -> Done<i64> {
    let mut query = connection.prepare_cached("SELECT due FROM tasks WHERE seq = ?1")?;
    Ok(query.query_row([seq], |row| row.get(0))?)
}

/// Makes ready whose time has come.
fn promote(connection: &Connection, now: Now) -> Done<()> {
    let mut query =
        connection.prepare_cached(&format!("SELECT {COLUMNS} {DUE} ORDER BY due LIMIT {AT_ONCE}"))?;
    let due: Vec<Kept> = query.query_map([int(now.seconds())], Kept::read)?.collect::<Result<_, _>>()?;
    for kept in due {
        let life = if kept.life.state.name() == StateName::Blocked {
            let unblocked = kept.life.step(Incident::Unblocked, now.seconds(), 0, &RetryRule::DEFAULT);
            let Ok(life) = unblocked else { continue };
            note(connection, &happened("unblocked", kept.seq, None, serde_json::Value::Null), now)?;
            life
        } else {
            kept.life.clone()
        };
        put_life(connection, &kept, &life, None, now)?;
        refresh_lane(connection, &kept.lane)?;
    }
    Ok(())
}
