//! Events, dead letters, deliveries, processes and the settings of the running system.

use ringfence_core::config::shown;
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::ids::TaskId;
use ringfence_core::task::UnixSeconds;
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::{Value, json};

use super::tasks::{TaskRow, id_of, json_of, note, parsed, runs_of, seq_of};
use super::{SqlResult, Sqlite, int, uint};
use crate::config::SystemConfig;
use crate::dead_letters::{DeadLetter, DeadLetters};
use crate::deliveries::{Deliveries, Delivery, DeliveryState};
use crate::error::StoreError;
use crate::events::{Events, NewEvent, StoredEvent};
use crate::processes::{ProcessRow, Processes};
use crate::tasks::Now;

impl Events for Sqlite {
    fn note(&self, happened: &NewEvent, now: Now) -> Result<(), StoreError> {
        let happened = happened.clone();
        self.write(move |connection| note(connection, &happened, now).map(|_| ()))
    }

    fn events_after(&self, id: u64, limit: usize) -> Result<Vec<StoredEvent>, StoreError> {
        self.read(|connection| {
            let mut query = connection.prepare_cached(
                "SELECT id, at, kind, task, run, data FROM events WHERE id > ?1 ORDER BY id LIMIT ?2",
            )?;
            let rows = query.query_map(params![int(id), int(limit as u64)], |row| {
                let data: Option<String> = row.get(5)?;
                Ok(StoredEvent {
                    id: uint(row.get(0)?),
                    at_ms: uint(row.get(1)?),
                    event: NewEvent {
                        kind: row.get(2)?,
                        task: row.get(3)?,
                        run: row.get(4)?,
                        data: data.and_then(|data| serde_json::from_str(&data).ok()).unwrap_or_default(),
                    },
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    fn last_event(&self) -> Result<u64, StoreError> {
        self.read(|connection| {
            let last: Option<i64> =
                connection.query_row("SELECT max(id) FROM events", [], |row| row.get(0))?;
            Ok(uint(last.unwrap_or(0)))
        })
    }
}

fn dead_letter_of(connection: &Connection, seq: i64, at: i64) -> SqlResult<DeadLetter> {
    let row = TaskRow::of(connection, seq)?.ok_or_else(|| StoreError::NoDeadLetter(seq.to_string()))?;
    let task = row.into_task(connection)?;
    let unknown = || Failure::new(FailureClass::Unknown, "the cause is unknown");
    Ok(DeadLetter {
        failure: task.lifecycle.failures.last().cloned().unwrap_or_else(unknown),
        at_ms: uint(at),
        runs: runs_of(connection, seq)?,
        task,
    })
}

impl DeadLetters for Sqlite {
    fn dead_letters(&self, before: Option<&TaskId>, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        let before = before.map(seq_of).transpose()?.unwrap_or(i64::MAX);
        self.read(|connection| {
            let mut query = connection.prepare_cached(
                "SELECT task, at FROM dead_letters WHERE task < ?1 ORDER BY task DESC LIMIT ?2",
            )?;
            let limit = int(limit as u64);
            let rows = query.query_map(params![before, limit], |row| Ok((row.get(0)?, row.get(1)?)))?;
            rows.map(|row| {
                let (seq, at) = row?;
                dead_letter_of(connection, seq, at)
            })
            .collect()
        })
    }

    fn dead_letter(&self, task: &TaskId) -> Result<DeadLetter, StoreError> {
        let missing = || StoreError::NoDeadLetter(task.to_string());
        let seq = seq_of(task).map_err(|_| missing())?;
        self.read(|connection| {
            let mut query = connection.prepare_cached("SELECT at FROM dead_letters WHERE task = ?1")?;
            let at: Option<i64> = query.query_row([seq], |row| row.get(0)).optional()?;
            dead_letter_of(connection, seq, at.ok_or_else(missing)?)
        })
    }

    fn discard(&self, task: &TaskId) -> Result<(), StoreError> {
        let missing = StoreError::NoDeadLetter(task.to_string());
        let Ok(seq) = seq_of(task) else { return Err(missing) };
        let gone = self.write(move |connection| {
            Ok(connection.execute("DELETE FROM dead_letters WHERE task = ?1", [seq])?)
        })?;
        if gone == 0 { Err(missing) } else { Ok(()) }
    }
}

const DELIVERY: &str = "SELECT id, task, url, body, state, attempts, due, error FROM deliveries";

fn delivery(row: &Row<'_>) -> rusqlite::Result<Delivery> {
    let state: String = row.get(4)?;
    Ok(Delivery {
        id: uint(row.get(0)?),
        task: id_of(row.get(1)?)?,
        url: row.get(2)?,
        body: row.get(3)?,
        state: DeliveryState::parse(&state),
        attempts: row.get(5)?,
        due: uint(row.get(6)?),
        error: row.get(7)?,
    })
}

impl Deliveries for Sqlite {
    fn next_deliveries(&self, limit: usize) -> Result<Vec<Delivery>, StoreError> {
        self.read(|connection| {
            let mut query = connection
                .prepare_cached(&format!("{DELIVERY} WHERE state = 'waiting' ORDER BY due, id LIMIT ?1"))?;
            Ok(query.query_map([int(limit as u64)], delivery)?.collect::<Result<_, _>>()?)
        })
    }

    fn record_attempt(
        &self,
        id: u64,
        state: DeliveryState,
        due: UnixSeconds,
        error: Option<&str>,
        now: Now,
    ) -> Result<(), StoreError> {
        let error = error.map(str::to_owned);
        self.write(move |connection| {
            let tried: Option<(i64, String)> = connection
                .query_row(
                    "UPDATE deliveries SET state = ?2, due = ?3, error = ?4, attempts = attempts + 1
                     WHERE id = ?1 AND state = 'waiting' RETURNING task, url",
                    params![int(id), state.as_str(), int(due), error],
                    |row| Ok((row.get(0)?, row.get(1)?)),
                )
                .optional()?;
            let Some((task, url)) = tried else { return Ok(()) };
            if state == DeliveryState::Waiting {
                // Other deliveries to the same URL would fail too.
                connection.execute(
                    "UPDATE deliveries SET due = max(due, ?2) WHERE state = 'waiting' AND url = ?1",
                    params![url, int(due)],
                )?;
            }
            let happened = NewEvent {
                kind: match state {
                    DeliveryState::Waiting => "webhook.retrying".into(),
                    DeliveryState::Delivered => "webhook.delivered".into(),
                    DeliveryState::Dead => "webhook.dead".into(),
                },
                task: Some(task.to_string()),
                run: None,
                data: json!({ "delivery": id, "error": error }),
            };
            note(connection, &happened, now).map(|_| ())
        })
    }

    fn deliveries(&self, state: DeliveryState) -> Result<Vec<Delivery>, StoreError> {
        self.read(|connection| {
            let mut query =
                connection.prepare_cached(&format!("{DELIVERY} WHERE state = ?1 ORDER BY id DESC"))?;
            Ok(query.query_map([state.as_str()], delivery)?.collect::<Result<_, _>>()?)
        })
    }
}

impl Processes for Sqlite {
    fn processes(&self) -> Result<Vec<ProcessRow>, StoreError> {
        self.read(|connection| {
            let mut query = connection.prepare_cached("SELECT row, wanted FROM processes ORDER BY name")?;
            let rows =
                query.query_map([], |row| Ok(ProcessRow { wanted: row.get(1)?, ..parsed(row, 0)? }))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    fn want_process(&self, name: &str, wanted: bool, now: Now) -> Result<(), StoreError> {
        let name = name.to_owned();
        self.write(move |connection| {
            connection.execute(
                "INSERT INTO processes(name, wanted, row) VALUES (?1, ?2, ?3)
                 ON CONFLICT(name) DO UPDATE SET wanted = excluded.wanted",
                params![name, wanted, json_of(&ProcessRow::idle(&name))?],
            )?;
            let happened = NewEvent {
                kind: "process.desired_state_changed".into(),
                task: None,
                run: None,
                data: json!({ "name": name, "wanted": wanted }),
            };
            note(connection, &happened, now).map(|_| ())
        })
    }

    fn put_process(&self, row: &ProcessRow, now: Now) -> Result<(), StoreError> {
        let row = row.clone();
        self.write(move |connection| {
            connection.execute(
                "INSERT INTO processes(name, wanted, row) VALUES (?1, ?2, ?3)
                 ON CONFLICT(name) DO UPDATE SET row = excluded.row",
                params![row.name, row.wanted, json_of(&row)?],
            )?;
            let happened = NewEvent {
                kind: "process.changed".into(),
                task: None,
                run: None,
                data: json!({ "name": row.name, "status": row.status, "pid": row.pid, "message": row.message }),
            };
            note(connection, &happened, now).map(|_| ())
        })
    }
}

impl SystemConfig for Sqlite {
    fn system_config(&self) -> Result<Vec<(String, Value)>, StoreError> {
        self.read(|connection| {
            let mut query = connection.prepare_cached("SELECT key, value FROM system_config ORDER BY key")?;
            let rows = query.query_map([], |row| Ok((row.get(0)?, parsed(row, 1)?)))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }

    fn set_system_config(&self, changes: &[(String, Option<Value>)], now: Now) -> Result<(), StoreError> {
        let marker = Self::system_marker(&self.state);
        if changes.iter().any(|(_, value)| value.is_some()) {
            // The marker exists before the value, so that no reader misses the value.
            let made = crate::atomic::write(&marker, b"");
            made.map_err(|error| StoreError::Place { path: marker.clone(), why: error.to_string() })?;
        }
        let changes = changes.to_vec();
        self.write(move |connection| {
            changes.iter().try_for_each(|(key, value)| set_one(connection, key, value.as_ref(), now))
        })
    }
}

fn set_one(connection: &Connection, key: &str, value: Option<&Value>, now: Now) -> SqlResult<()> {
    let mut query = connection.prepare_cached("SELECT value FROM system_config WHERE key = ?1")?;
    let before: Option<Value> = query.query_row([key], |row| parsed(row, 0)).optional()?;
    match value {
        Some(value) => connection.execute(
            "INSERT INTO system_config(key, value) VALUES (?1, ?2)
             ON CONFLICT(key) DO UPDATE SET value = excluded.value",
            params![key, value.to_string()],
        )?,
        None => connection.execute("DELETE FROM system_config WHERE key = ?1", [key])?,
    };
    let happened = NewEvent {
        kind: "config.changed".into(),
        task: None,
        run: None,
        data: json!({
            "key": key,
            "before": before.map(|value| shown(key, &value)),
            "after": value.map(|value| shown(key, value)),
        }),
    };
    note(connection, &happened, now).map(|_| ())
}
