//! The tables, and how older ones become them.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use super::{Done, explain};
use crate::error::StoreError;

/// What takes a store from one version to the next. Never changed once released, only added to.
const STEPS: &[&str] = &["
CREATE TABLE tasks(
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    agent       TEXT,
    role        TEXT NOT NULL,
    lane        TEXT NOT NULL,
    priority    INTEGER NOT NULL,
    key         TEXT UNIQUE,
    spec        TEXT NOT NULL,
    life        TEXT NOT NULL,
    -- What follows is read off the life, for the sake of the indexes.
    state       TEXT NOT NULL,
    due         INTEGER NOT NULL,
    ready       INTEGER NOT NULL,
    holds       INTEGER NOT NULL,
    waits       INTEGER NOT NULL,
    run         TEXT,
    fence       INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    owner       TEXT,
    -- The run that it was cancelled in, until nothing of it is left.
    leaving     TEXT,
    result      TEXT,
    created     INTEGER NOT NULL,
    changed     INTEGER NOT NULL
) STRICT;
CREATE INDEX tasks_ready ON tasks(lane, priority DESC, seq) WHERE ready = 1;
CREATE INDEX tasks_holding ON tasks(lane) WHERE holds = 1;
CREATE INDEX tasks_due ON tasks(due) WHERE ready = 0 AND waits = 0 AND state IN ('queued', 'blocked');
-- Those that are from the future, because the clock went back.
CREATE INDEX tasks_future ON tasks(changed) WHERE ready = 0 AND waits = 0 AND state IN ('queued', 'blocked');
CREATE INDEX tasks_running ON tasks(lane) WHERE state = 'running';
CREATE INDEX tasks_leaving ON tasks(lane) WHERE leaving IS NOT NULL;
CREATE INDEX tasks_lane ON tasks(lane);
CREATE INDEX tasks_state ON tasks(state, seq);
CREATE INDEX tasks_ended ON tasks(changed) WHERE state IN ('done', 'dead', 'cancelled');

-- Which task waits for which.
CREATE TABLE befores(
    needs INTEGER NOT NULL,
    task  INTEGER NOT NULL,
    PRIMARY KEY(needs, task)
) STRICT, WITHOUT ROWID;
CREATE INDEX befores_task ON befores(task);

-- One task at a time each. `best` and `role` are those of the first task whose turn it is, null if there is none.
CREATE TABLE lanes(
    name   TEXT PRIMARY KEY,
    free   INTEGER NOT NULL,
    best   INTEGER,
    role   TEXT,
    served INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX lanes_open ON lanes(role, best DESC, served) WHERE free = 1 AND best IS NOT NULL;

CREATE TABLE runs(
    run           TEXT PRIMARY KEY,
    task          INTEGER NOT NULL,
    fence         INTEGER NOT NULL,
    owner         TEXT NOT NULL,
    started       INTEGER NOT NULL,
    ended         INTEGER,
    status        TEXT,
    class         TEXT,
    input_tokens  INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    cached_tokens INTEGER NOT NULL DEFAULT 0,
    cost_usd      REAL
) STRICT, WITHOUT ROWID;
CREATE INDEX runs_task ON runs(task, fence);

CREATE TABLE events(
    id   INTEGER PRIMARY KEY AUTOINCREMENT,
    at   INTEGER NOT NULL,
    kind TEXT NOT NULL,
    task TEXT,
    run  TEXT,
    data TEXT
) STRICT;

CREATE TABLE dead_letters(
    task INTEGER PRIMARY KEY,
    at   INTEGER NOT NULL
) STRICT;

CREATE TABLE deliveries(
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    task     INTEGER NOT NULL,
    url      TEXT NOT NULL,
    body     TEXT NOT NULL,
    state    TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    due      INTEGER NOT NULL,
    error    TEXT
) STRICT;
CREATE INDEX deliveries_due ON deliveries(state, due);
CREATE INDEX deliveries_task ON deliveries(task);

CREATE TABLE processes(
    name   TEXT PRIMARY KEY,
    wanted INTEGER NOT NULL,
    row    TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE system_config(
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
", "CREATE INDEX runs_ended ON runs(ended);", "
-- Device and inode of the task's directory when it was accepted, as JSON.
ALTER TABLE tasks ADD COLUMN workspace TEXT;"];

/// Makes the tables, or brings them up to date. A store of a later version is left alone.
pub(super) fn prepare(connection: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let known = u32::try_from(STEPS.len()).unwrap_or(u32::MAX);
    let prepared = (|| -> Done<_> {
        // Every commit waits for the disk, but only for the log that the other setting makes.
        connection.pragma_update(None, "synchronous", "FULL")?;
        let found = version(connection)?;
        if found < known {
            connection.pragma_update(None, "journal_mode", "WAL")?;
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            // Somebody else may have been faster, and know more.
            let found = version(&transaction)?;
            for step in STEPS.iter().skip(found as usize) {
                transaction.execute_batch(step)?;
            }
            if found < known {
                transaction.pragma_update(None, "user_version", known)?;
            }
            transaction.commit()?;
        }
        Ok(found)
    })();
    let found = prepared.map_err(|fault| explain(path, fault))?;
    if found > known {
        return Err(StoreError::Newer { path: path.to_owned(), found, known });
    }
    Ok(())
}

fn version(connection: &Connection) -> rusqlite::Result<u32> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}
