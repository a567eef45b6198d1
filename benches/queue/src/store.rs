//! The store alone.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ringfence_core::ids::RunId;
use ringfence_core::paths::DirectoryId;
use ringfence_core::task::{RetryRule, Role, TaskEvent, TaskSpec};
use ringfence_store::sqlite::Sqlite;
use ringfence_store::{Change, Claim, Filter, NewTask, Now, Task, TaskPolicy, Tasks};

use crate::{median_and_p99, micros};

pub(crate) const NOW: Now = Now { ms: 1_800_000_000_000 };
static RUNS: AtomicU64 = AtomicU64::new(0);

const WORKSPACE: DirectoryId = DirectoryId { device: 1, inode: 2 };

pub(crate) fn new_task(number: usize) -> NewTask {
    NewTask { spec: TaskSpec::new("measure"), lane: format!("lane {}", number % 5000), workspace: WORKSPACE }
}

pub(crate) fn claim(store: &Sqlite, most: usize) -> anyhow::Result<Vec<Task>> {
    let name = || format!("r{}", RUNS.fetch_add(1, Ordering::Relaxed)).parse::<RunId>().ok();
    let claim = Claim {
        owner: "bench",
        roles: &Role::ALL,
        max_tasks: most,
        max_concurrency: 0,
        until: NOW.seconds() + 60,
        accepts: &|_| true,
        new_run_id: &name,
    };
    Ok(store.claim(&claim, NOW)?)
}

pub(crate) fn done(store: &Sqlite, task: &Task) -> anyhow::Result<()> {
    let rules = TaskPolicy { retry: RetryRule::DEFAULT, webhook: None };
    let event = TaskEvent::Succeeded { fence: task.lifecycle.fence };
    store.change(
        &Change { task: &task.id, event, rules: &rules, jitter: 0, result: None, workspace: None },
        NOW,
    )?;
    Ok(())
}

/// Each operation with more and more tasks waiting.
pub(crate) fn curve(disk: &Path) -> anyhow::Result<()> {
    println!(
        "One operation, while so many tasks wait (µs, median and p99 of 200, each on the disk when it returns):"
    );
    println!("  {:>8} {:>20} {:>20} {:>20} {:>20}", "waiting", "add", "list 20", "claim", "done");
    let state = disk.join("curve");
    let store = Sqlite::open(&state)?;
    let mut waiting = 0;
    for goal in [0, 1_000, 10_000, 100_000] {
        while waiting < goal {
            let batch: Vec<NewTask> = (waiting..goal.min(waiting + 1000)).map(new_task).collect();
            store.add(&batch, NOW)?;
            waiting += batch.len();
        }
        let (mut adds, mut lists, mut claims, mut dones) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for round in 0..200 {
            adds.push(timed(|| Ok(store.add(&[new_task(round)], NOW).map(|_| ())?))?);
            let filter = Filter { limit: 20, ..Filter::default() };
            lists.push(timed(|| Ok(store.tasks(&filter).map(|_| ())?))?);
            let mut taken = Vec::new();
            claims.push(timed(|| {
                taken = claim(&store, 1)?;
                Ok(())
            })?);
            for task in &taken {
                dones.push(timed(|| done(&store, task))?);
            }
        }
        let cell = |times: &mut Vec<Duration>| {
            let (median, p99) = median_and_p99(times);
            format!("{:>9.0} {:>9.0}", micros(median), micros(p99))
        };
        println!(
            "  {goal:>8} {:>20} {:>20} {:>20} {:>20}",
            cell(&mut adds),
            cell(&mut lists),
            cell(&mut claims),
            cell(&mut dones)
        );
    }
    println!();
    Ok(())
}

fn timed(act: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Duration> {
    let start = Instant::now();
    act()?;
    Ok(start.elapsed())
}
