//! The least that a durable queue in SQLite can be: one table, one index, no rules. One thread writes for all who wait, and one
//! wait for the disk serves them all.

use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use anyhow::Context;
use rusqlite::{Connection, params};

use crate::peers::{PATIENCE, Queue, barest, spec};

/// One step, and whom to tell which tasks it was of.
struct Order {
    step: Step,
    told: SyncSender<Vec<i64>>,
}

enum Step {
    Add(i64),
    Claim(i64),
    Done(i64),
}

impl Step {
    fn take(&self, connection: &Connection, spec: &str) -> rusqlite::Result<Vec<i64>> {
        match self {
            Step::Add(id) => {
                let mut add = connection.prepare_cached("INSERT INTO t VALUES (?1, 'queued', ?2)")?;
                add.execute(params![id, spec])?;
                Ok(Vec::new())
            }
            Step::Claim(most) => {
                let mut claim = connection.prepare_cached(
                    "UPDATE t SET state = 'running' WHERE id IN
                     (SELECT id FROM t WHERE state = 'queued' ORDER BY id LIMIT ?1) RETURNING id",
                )?;
                claim.query_map([most], |row| row.get(0))?.collect()
            }
            Step::Done(id) => {
                connection.prepare_cached("UPDATE t SET state = 'done' WHERE id = ?1")?.execute([id])?;
                Ok(Vec::new())
            }
        }
    }
}

pub(crate) struct Grouped {
    orders: Option<Sender<Order>>,
    bell: Mutex<Receiver<()>>,
    writer: Option<JoinHandle<rusqlite::Result<()>>>,
}

impl Grouped {
    pub(crate) fn open(file: &Path) -> anyhow::Result<Self> {
        let connection = barest(file)?;
        connection.execute("CREATE INDEX queued ON t(id) WHERE state = 'queued'", [])?;
        let (orders, taken) = channel();
        let (ring, bell) = sync_channel(1);
        let spec = spec()?;
        let writer = std::thread::spawn(move || write(&connection, &taken, &ring, &spec));
        Ok(Self { orders: Some(orders), bell: Mutex::new(bell), writer: Some(writer) })
    }

    fn ask(&self, step: Step) -> anyhow::Result<Vec<i64>> {
        let (told, hears) = sync_channel(1);
        let orders = self.orders.as_ref().context("it is closed")?;
        orders.send(Order { step, told }).map_err(|_| anyhow::anyhow!("the writer has ended"))?;
        Ok(hears.recv()?)
    }
}

fn write(
    connection: &Connection,
    orders: &Receiver<Order>,
    ring: &SyncSender<()>,
    spec: &str,
) -> rusqlite::Result<()> {
    while let Ok(first) = orders.recv() {
        let mut answers = Vec::new();
        connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        for Order { step, told } in std::iter::once(first).chain(orders.try_iter()) {
            answers.push((step.take(connection, spec)?, told));
        }
        connection.prepare_cached("COMMIT")?.execute([])?;
        for (answer, told) in answers {
            let _ = told.send(answer);
        }
        // One that rings already need not be rung.
        let _ = ring.try_send(());
    }
    Ok(())
}

impl Queue for Grouped {
    type Task = i64;

    fn add(&self, number: usize) -> anyhow::Result<()> {
        self.ask(Step::Add(i64::try_from(number)?)).map(|_| ())
    }

    fn claim(&self, most: usize) -> anyhow::Result<Vec<i64>> {
        self.ask(Step::Claim(i64::try_from(most)?))
    }

    fn done(&self, task: &i64) -> anyhow::Result<()> {
        self.ask(Step::Done(*task)).map(|_| ())
    }

    fn wait(&self) -> anyhow::Result<()> {
        let bell = self.bell.lock().map_err(|_| anyhow::anyhow!("somebody broke it"))?;
        let _ = bell.recv_timeout(PATIENCE);
        Ok(())
    }
}

impl Drop for Grouped {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}
