//! The whole way of a task that does nothing, beside SQLite alone and BullMQ on a Redis that waits for the disk.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ringfence_store::sqlite::Sqlite;
use ringfence_store::{FileWatcher, Task, Tasks};
use rusqlite::{Connection, params};

use crate::grouped::Grouped;
use crate::store::{NOW, claim, done, new_task};

const CLIENTS: usize = 64;
const EACH: usize = 30;
const ROUNDS: usize = 5;
const PORT: &str = "41999";
/// How long to wait for a bell that nobody rings.
pub(crate) const PATIENCE: Duration = Duration::from_millis(10);

pub(crate) fn throughput(disk: &Path, peers: &Path) -> anyhow::Result<()> {
    let redis = Redis::start(disk);
    let tasks = CLIENTS * EACH;
    println!(
        "A task that does nothing, added, claimed and done, each step on the disk: {tasks} tasks by {CLIENTS} clients"
    );
    println!("(tasks per second, median of {ROUNDS} rounds in turns):");
    let mut rates: Vec<(String, Vec<f64>)> = Vec::new();
    let mut note = |name: &str, rate: f64| match rates.iter_mut().find(|(known, _)| known == name) {
        Some((_, all)) => all.push(rate),
        None => rates.push((name.to_owned(), vec![rate])),
    };
    for round in 0..ROUNDS {
        note("ringfence", rate(&Ours::open(&disk.join(format!("ours{round}")))?)?);
        note(
            "SQLite, barest table, group commit",
            rate(&Grouped::open(&disk.join(format!("group{round}.db")))?)?,
        );
        note("SQLite, one row a commit", sqlite(&disk.join(format!("one{round}.db")), 600, 1)?);
        note(
            &format!("SQLite, nobody waits, {CLIENTS} tasks a commit"),
            sqlite(&disk.join(format!("many{round}.db")), tasks, CLIENTS)?,
        );
        if let Ok(redis) = &redis {
            note("BullMQ, Redis with appendfsync always", redis.bullmq(peers, tasks)?);
        }
    }
    let middle = |all: &[f64]| {
        let mut all = all.to_vec();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let ours = middle(&rates[0].1);
    for (name, all) in &rates {
        println!("  {name:<50} {:>9.0}   ringfence is {:.2} ×", middle(all), ours / middle(all));
    }
    match redis {
        Ok(redis) => println!("  ({}; bullmq {})", redis.version()?, bullmq_version(peers)?),
        Err(error) => println!("  (no Redis: {error:#})"),
    }
    println!();
    Ok(())
}

/// Where tasks are added, claimed and done, each step on the disk when it returns.
pub(crate) trait Queue: Sync {
    type Task: Send;
    fn add(&self, number: usize) -> anyhow::Result<()>;
    fn claim(&self, most: usize) -> anyhow::Result<Vec<Self::Task>>;
    fn done(&self, task: &Self::Task) -> anyhow::Result<()>;
    /// Until there may be something to claim.
    fn wait(&self) -> anyhow::Result<()>;
}

struct Ours {
    store: Sqlite,
    bell: FileWatcher,
}

impl Ours {
    fn open(state: &Path) -> anyhow::Result<Self> {
        let store = Sqlite::open(state)?;
        Ok(Self { bell: store.notifier().listen()?, store })
    }
}

impl Queue for Ours {
    type Task = Task;

    fn add(&self, number: usize) -> anyhow::Result<()> {
        Ok(self.store.add(&[new_task(number)], NOW).map(|_| ())?)
    }

    fn claim(&self, most: usize) -> anyhow::Result<Vec<Task>> {
        claim(&self.store, most)
    }

    fn done(&self, task: &Task) -> anyhow::Result<()> {
        done(&self.store, task)
    }

    fn wait(&self) -> anyhow::Result<()> {
        self.bell.wait(Some(PATIENCE))?;
        Ok(())
    }
}

/// So many clients add, one takes, and as many hands end, all at once: tasks per second.
fn rate(queue: &impl Queue) -> anyhow::Result<f64> {
    let (give, hands) = mpsc::channel();
    let hands = &Mutex::new(hands);
    let start = Instant::now();
    std::thread::scope(|scope| {
        let adders = (0..CLIENTS).map(|client| {
            scope.spawn(move || (0..EACH).try_for_each(|number| queue.add(client * EACH + number)))
        });
        let enders = (0..CLIENTS).map(|_| {
            scope.spawn(move || -> anyhow::Result<()> {
                let next = || hands.lock().ok()?.recv().ok();
                while let Some(task) = next() {
                    queue.done(&task)?;
                }
                Ok(())
            })
        });
        let all: Vec<_> = adders.chain(enders).collect();
        let mut taken = 0;
        while taken < CLIENTS * EACH {
            let tasks = queue.claim(CLIENTS)?;
            taken += tasks.len();
            if tasks.is_empty() {
                queue.wait()?;
            }
            for task in tasks {
                give.send(task).map_err(|_| anyhow::anyhow!("nobody ends tasks any more"))?;
            }
        }
        drop(give);
        all.into_iter().try_for_each(|one| one.join().map_err(|_| anyhow::anyhow!("a client broke"))?)
    })?;
    Ok((CLIENTS * EACH) as f64 / start.elapsed().as_secs_f64())
}

/// A database as durable as ours, with the barest table.
pub(crate) fn barest(file: &Path) -> anyhow::Result<Connection> {
    let connection = Connection::open(file)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.execute("CREATE TABLE t(id INTEGER PRIMARY KEY, state TEXT, spec TEXT)", [])?;
    Ok(connection)
}

pub(crate) fn spec() -> anyhow::Result<String> {
    Ok(serde_json::to_string(&ringfence_core::task::TaskSpec::new("measure"))?)
}

/// The same database with the barest table: one row a commit, or the three writes of a task, many tasks a commit.
fn sqlite(file: &Path, tasks: usize, at_once: usize) -> anyhow::Result<f64> {
    let connection = barest(file)?;
    let spec = spec()?;
    let start = Instant::now();
    let commit = |write: &dyn Fn() -> anyhow::Result<()>| -> anyhow::Result<()> {
        connection.execute_batch("BEGIN IMMEDIATE")?;
        write()?;
        Ok(connection.execute_batch("COMMIT")?)
    };
    for first in (0..tasks).step_by(at_once) {
        let ids = first..tasks.min(first + at_once);
        commit(&|| {
            for id in ids.clone() {
                connection
                    .prepare_cached("INSERT INTO t VALUES (?1, 'queued', ?2)")?
                    .execute(params![id as i64, spec])?;
            }
            Ok(())
        })?;
        for state in if at_once > 1 { &["running", "done"][..] } else { &[] } {
            commit(&|| {
                for id in ids.clone() {
                    connection
                        .prepare_cached("UPDATE t SET state = ?2 WHERE id = ?1")?
                        .execute(params![id as i64, state])?;
                }
                Ok(())
            })?;
        }
    }
    Ok(tasks as f64 / start.elapsed().as_secs_f64())
}

/// A Redis of its own that waits for the disk.
struct Redis(Child);

impl Redis {
    fn start(disk: &Path) -> anyhow::Result<Self> {
        let child = Command::new("redis-server")
            .args(["--port", PORT, "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"])
            .args(["--appendfsync", "always", "--maxmemory-policy", "noeviction", "--dir"])
            .arg(disk)
            .stdout(Stdio::null())
            .spawn()
            .context("redis-server cannot be started")?;
        let redis = Self(child);
        for _ in 0..100 {
            if redis.ask(&["ping"]).is_ok() {
                return Ok(redis);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("redis-server does not answer")
    }

    fn ask(&self, words: &[&str]) -> anyhow::Result<String> {
        let output = Command::new("redis-cli").args(["-p", PORT]).args(words).output()?;
        anyhow::ensure!(output.status.success(), "redis-cli failed");
        Ok(String::from_utf8(output.stdout)?)
    }

    fn version(&self) -> anyhow::Result<String> {
        let info = self.ask(&["info", "server"])?;
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
        Ok(format!("Redis {}", version.unwrap_or("of no known version").trim()))
    }

    fn bullmq(&self, peers: &Path, tasks: usize) -> anyhow::Result<f64> {
        self.ask(&["flushall"])?;
        let script = peers.join("bullmq.mjs");
        std::fs::write(&script, BULLMQ)?;
        let output = Command::new("node")
            .arg(&script)
            .args([PORT, &tasks.to_string(), &CLIENTS.to_string()])
            .current_dir(peers)
            .output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        said.trim().parse().with_context(|| format!("{said}{}", String::from_utf8_lossy(&output.stderr)))
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn bullmq_version(peers: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(peers.join("node_modules/bullmq/package.json"))?;
    let package: serde_json::Value = serde_json::from_str(&text)?;
    Ok(package["version"].as_str().unwrap_or("of no known version").to_owned())
}

/// So many clients add, a worker with as many hands ends; prints tasks per second.
const BULLMQ: &str = r#"
import { Queue, Worker } from "bullmq";
const [port, tasks, clients] = process.argv.slice(2).map(Number);
const connection = { host: "127.0.0.1", port };
const queue = new Queue("bench", { connection });
await queue.waitUntilReady();
let ended = 0;
let all;
const over = new Promise((resolve) => { all = resolve; });
const worker = new Worker("bench", async () => {}, { connection, concurrency: clients, maxStalledCount: 0 });
worker.on("completed", () => { if (++ended === tasks) all(); });
await worker.waitUntilReady();
const start = process.hrtime.bigint();
const client = async (number) => {
  for (let i = number; i < tasks; i += clients) await queue.add("task", { prompt: "measure" });
};
await Promise.all(Array.from({ length: clients }, (_, number) => client(number)));
await over;
console.log(tasks / (Number(process.hrtime.bigint() - start) / 1e9));
await worker.close();
await queue.close();
process.exit(0);
"#;
