//! Schema and migrations.

use std::path::Path;

use rusqlite::{Connection, TransactionBehavior};

use super::{SqlResult, explain};
use crate::error::StoreError;

/// The current schema, for new stores.
const SCHEMA: &str = "
CREATE TABLE tasks(
    seq               INTEGER PRIMARY KEY AUTOINCREMENT,
    agent             TEXT,
    role              TEXT NOT NULL,
    lane              TEXT NOT NULL,
    priority          INTEGER NOT NULL,
    key               TEXT UNIQUE,
    spec              TEXT NOT NULL,
    -- Device and inode of the task's directory when the task was accepted, as JSON.
    workspace         TEXT,
    -- The lifecycle of the task. The columns up to `lease_until` are derived from it, for the indexes.
    state_json        TEXT NOT NULL,
    state             TEXT NOT NULL,
    not_before        INTEGER NOT NULL,
    ready             INTEGER NOT NULL,
    blocks_lane       INTEGER NOT NULL,
    open_dependencies INTEGER NOT NULL,
    run               TEXT,
    fence             INTEGER NOT NULL,
    lease_until       INTEGER NOT NULL,
    owner             TEXT,
    -- The run in which the task was cancelled, until its sandbox is removed.
    cleanup_run       TEXT,
    result            TEXT,
    created           INTEGER NOT NULL,
    changed           INTEGER NOT NULL
) STRICT;
CREATE INDEX tasks_ready ON tasks(lane, priority DESC, seq) WHERE ready = 1;
CREATE INDEX tasks_blocking_lane ON tasks(lane) WHERE blocks_lane = 1;
CREATE INDEX tasks_not_before ON tasks(not_before)
    WHERE ready = 0 AND open_dependencies = 0 AND state IN ('queued', 'blocked');
-- Finds tasks with a time in the future after the clock went back.
CREATE INDEX tasks_future ON tasks(changed)
    WHERE ready = 0 AND open_dependencies = 0 AND state IN ('queued', 'blocked');
CREATE INDEX tasks_running ON tasks(lane) WHERE state = 'running';
CREATE INDEX tasks_cleanup ON tasks(lane) WHERE cleanup_run IS NOT NULL;
CREATE INDEX tasks_lane ON tasks(lane);
CREATE INDEX tasks_state ON tasks(state, seq);
CREATE INDEX tasks_ended ON tasks(changed) WHERE state IN ('done', 'dead', 'cancelled');

CREATE TABLE task_dependencies(
    depends_on INTEGER NOT NULL,
    task       INTEGER NOT NULL,
    PRIMARY KEY(depends_on, task)
) STRICT, WITHOUT ROWID;
CREATE INDEX task_dependencies_task ON task_dependencies(task);

-- At most one task of a lane runs at a time. `best` and `role` are the priority and role of the next task, null if there is none.
CREATE TABLE lanes(
    name              TEXT PRIMARY KEY,
    free              INTEGER NOT NULL,
    best              INTEGER,
    role              TEXT,
    last_served_event INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX lanes_open ON lanes(role, best DESC, last_served_event) WHERE free = 1 AND best IS NOT NULL;

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
CREATE INDEX runs_ended ON runs(ended);

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
";

/// Migrations of existing stores: the first leads from version 1 to version 2. A released migration is never changed.
const MIGRATIONS: &[&str] = &[
    "CREATE INDEX runs_ended ON runs(ended);",
    "ALTER TABLE tasks ADD COLUMN workspace TEXT;",
    "
ALTER TABLE tasks RENAME COLUMN life TO state_json;
ALTER TABLE tasks RENAME COLUMN due TO not_before;
ALTER TABLE tasks RENAME COLUMN holds TO blocks_lane;
ALTER TABLE tasks RENAME COLUMN waits TO open_dependencies;
ALTER TABLE tasks RENAME COLUMN leaving TO cleanup_run;
ALTER TABLE lanes RENAME COLUMN served TO last_served_event;
ALTER TABLE befores RENAME TO task_dependencies;
ALTER TABLE task_dependencies RENAME COLUMN needs TO depends_on;
DROP INDEX tasks_holding;
DROP INDEX tasks_due;
DROP INDEX tasks_leaving;
DROP INDEX befores_task;
CREATE INDEX tasks_blocking_lane ON tasks(lane) WHERE blocks_lane = 1;
CREATE INDEX tasks_not_before ON tasks(not_before)
    WHERE ready = 0 AND open_dependencies = 0 AND state IN ('queued', 'blocked');
CREATE INDEX tasks_cleanup ON tasks(lane) WHERE cleanup_run IS NOT NULL;
CREATE INDEX task_dependencies_task ON task_dependencies(task);
UPDATE tasks SET state_json = json_set(json_remove(state_json, '$.vanished'), '$.runner_losses',
    json_extract(state_json, '$.vanished')) WHERE json_extract(state_json, '$.vanished') IS NOT NULL;
UPDATE events SET kind = 'task.dependency_failed' WHERE kind = 'task.forsaken';
UPDATE events SET kind = 'task.runner_lost' WHERE kind = 'task.vanished';
UPDATE events SET kind = 'task.released' WHERE kind = 'task.handed_back';
UPDATE events SET kind = 'run.unresponsive' WHERE kind = 'run.silent';
UPDATE events SET kind = 'process.desired_state_changed' WHERE kind = 'process.wanted';
",
];

/// Creates or migrates the schema. A store with a newer schema is not changed.
pub(super) fn prepare(connection: &mut Connection, path: &Path) -> Result<(), StoreError> {
    let known = u32::try_from(MIGRATIONS.len() + 1).unwrap_or(u32::MAX);
    let prepared = (|| -> SqlResult<_> {
        // Every commit flushes the write-ahead log.
        connection.pragma_update(None, "synchronous", "FULL")?;
        let found = version(connection)?;
        if found < known {
            connection.pragma_update(None, "journal_mode", "WAL")?;
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            // Another process may have migrated it meanwhile.
            let found = version(&transaction)?;
            match found.checked_sub(1) {
                None => transaction.execute_batch(SCHEMA)?,
                Some(done) => {
                    let missing = MIGRATIONS.iter().skip(done as usize);
                    missing.into_iter().try_for_each(|migration| transaction.execute_batch(migration))?;
                }
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rusqlite::Connection;

    use super::prepare;

    /// Version 1 of the schema.
    const FIRST: &str = "
CREATE TABLE tasks(
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    agent       TEXT,
    role        TEXT NOT NULL,
    lane        TEXT NOT NULL,
    priority    INTEGER NOT NULL,
    key         TEXT UNIQUE,
    spec        TEXT NOT NULL,
    life        TEXT NOT NULL,
    state       TEXT NOT NULL,
    due         INTEGER NOT NULL,
    ready       INTEGER NOT NULL,
    holds       INTEGER NOT NULL,
    waits       INTEGER NOT NULL,
    run         TEXT,
    fence       INTEGER NOT NULL,
    lease_until INTEGER NOT NULL,
    owner       TEXT,
    leaving     TEXT,
    result      TEXT,
    created     INTEGER NOT NULL,
    changed     INTEGER NOT NULL
) STRICT;
CREATE INDEX tasks_ready ON tasks(lane, priority DESC, seq) WHERE ready = 1;
CREATE INDEX tasks_holding ON tasks(lane) WHERE holds = 1;
CREATE INDEX tasks_due ON tasks(due) WHERE ready = 0 AND waits = 0 AND state IN ('queued', 'blocked');
CREATE INDEX tasks_future ON tasks(changed) WHERE ready = 0 AND waits = 0 AND state IN ('queued', 'blocked');
CREATE INDEX tasks_running ON tasks(lane) WHERE state = 'running';
CREATE INDEX tasks_leaving ON tasks(lane) WHERE leaving IS NOT NULL;
CREATE INDEX tasks_lane ON tasks(lane);
CREATE INDEX tasks_state ON tasks(state, seq);
CREATE INDEX tasks_ended ON tasks(changed) WHERE state IN ('done', 'dead', 'cancelled');
CREATE TABLE befores(
    needs INTEGER NOT NULL,
    task  INTEGER NOT NULL,
    PRIMARY KEY(needs, task)
) STRICT, WITHOUT ROWID;
CREATE INDEX befores_task ON befores(task);
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
";

    /// Columns and indexes, sorted.
    fn structure(connection: &Connection) -> Vec<String> {
        let mut query = connection
            .prepare(
                "SELECT m.name || '.' || c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'
                 UNION SELECT name FROM sqlite_master WHERE type = 'index' ORDER BY 1",
            )
            .unwrap();
        query.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn migrated_store_has_the_current_schema_and_keeps_its_tasks() {
        let mut new = Connection::open_in_memory().unwrap();
        prepare(&mut new, Path::new("new")).unwrap();
        let mut old = Connection::open_in_memory().unwrap();
        old.execute_batch(FIRST).unwrap();
        old.pragma_update(None, "user_version", 1).unwrap();
        old.execute_batch(
            "INSERT INTO tasks(role, lane, priority, spec, life, state, due, ready, holds, waits, fence, lease_until,
                 created, changed)
             VALUES ('worker', 'l', 0, '{}', '{\"state\":\"done\",\"vanished\":2}', 'done', 7, 0, 0, 0, 1, 0, 1, 1);
             INSERT INTO befores(needs, task) VALUES (1, 2);
             INSERT INTO events(at, kind) VALUES (1, 'task.vanished');",
        )
        .unwrap();
        prepare(&mut old, Path::new("old")).unwrap();
        assert_eq!(structure(&old), structure(&new));
        let read = |query: &str| old.query_row(query, [], |row| row.get::<_, String>(0)).unwrap();
        assert_eq!(
            read("SELECT state_json FROM tasks WHERE not_before = 7"),
            r#"{"state":"done","runner_losses":2}"#
        );
        assert_eq!(read("SELECT depends_on || '-' || task FROM task_dependencies"), "1-2");
        assert_eq!(read("SELECT kind FROM events"), "task.runner_lost");
    }
}
