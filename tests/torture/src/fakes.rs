//! Workers of another kind on the same store: they take tasks of one role and play them, and some of them drop dead, or
//! come back after they were given up.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::ids::RunId;
use ringfence_core::task::{RetryRule, Role, State, TaskEvent};
use ringfence_engine::queue::{ProcessLocks, RunLocks, finish};
use ringfence_store::sqlite::Sqlite;
use ringfence_store::{Claim, Now, StoreError, Task, TaskPolicy, Tasks};

use crate::chaos::Dice;
use crate::house::House;

/// Works until everything is over.
pub(crate) fn work(house: &House, number: u16, _: &AtomicBool) -> anyhow::Result<()> {
    let name = format!("docser-{number}");
    let _alive = ProcessLocks::new(&house.state()).take(&name)?;
    let store = Sqlite::open(&house.state())?;
    let fake = Fake { house, store, name, rules: rules(), locks: RunLocks::new(&house.state()) };
    let mut dice = Dice(u64::from(number));
    let mut run = 0;
    while !house.over.load(Ordering::Relaxed) {
        let taken = fake.take(&mut run).unwrap_or_default();
        if taken.is_empty() {
            std::thread::sleep(Duration::from_millis(20));
        }
        for (task, lock) in taken {
            fake.play(&task, lock, &mut dice);
        }
    }
    Ok(())
}

fn rules() -> TaskPolicy {
    let first_wait = Duration::from_secs(1);
    let retry = RetryRule { first_wait, longest_wait: Duration::from_secs(2), ..RetryRule::DEFAULT };
    TaskPolicy { retry, webhook: None }
}

struct Fake<'a> {
    house: &'a House,
    store: Sqlite,
    name: String,
    rules: TaskPolicy,
    locks: RunLocks,
}

impl Fake<'_> {
    fn now(&self) -> Now {
        Now { ms: self.house.now_ms() }
    }

    fn take(&self, run: &mut u64) -> Result<Vec<(Task, File)>, StoreError> {
        let held: RefCell<BTreeMap<RunId, File>> = RefCell::default();
        let run = RefCell::new(run);
        let name = || {
            **run.borrow_mut() += 1;
            let id: RunId =
                format!("fake-{}-{}-{}", self.name, std::process::id(), run.borrow()).parse().ok()?;
            let lock = self.locks.take(&id).ok()?;
            held.borrow_mut().insert(id.clone(), lock);
            Some(id)
        };
        let now = self.now();
        let claim = Claim {
            owner: &self.name,
            roles: &[Role::Docser],
            max_tasks: 8,
            max_concurrency: 0,
            until: now.seconds() + 60,
            accepts: &|_| true,
            new_run_id: &name,
        };
        let claimed = self.store.claim(&claim, now);
        let mut held = held.into_inner();
        let tasks = claimed.inspect_err(|_| held.keys().for_each(|run| self.locks.forget(run)))?;
        let with_lock = tasks.into_iter().filter_map(|task| {
            let State::Running { run, .. } = &task.lifecycle.state else { return None };
            let lock = held.remove(run)?;
            Some((task, lock))
        });
        Ok(with_lock.collect())
    }

    fn play(&self, task: &Task, lock: File, dice: &mut Dice) {
        let State::Running { run, .. } = &task.lifecycle.state else { return };
        std::thread::sleep(Duration::from_millis(dice.below(4) as u64));
        let fence = task.lifecycle.fence;
        let event = match dice.below(20) {
            // Drops dead.
            0 => return,
            // Is given up, and speaks all the same: it must not be heard.
            1 => {
                drop(lock);
                std::thread::sleep(Duration::from_millis(500));
                let _ = self.end(task, TaskEvent::Succeeded { fence });
                self.locks.forget(run);
                return;
            }
            2 => TaskEvent::Failed { fence, failure: Failure::new(FailureClass::Network, "the wire is cut") },
            3 => TaskEvent::Failed { fence, failure: Failure::new(FailureClass::Refused, "it must not") },
            _ => TaskEvent::Succeeded { fence },
        };
        // A disk that is full now may not be later.
        while self.end(task, event.clone()).is_err_and(|error| error.is_passing()) {
            std::thread::sleep(Duration::from_millis(200));
        }
        self.locks.forget(run);
        drop(lock);
    }

    fn end(&self, task: &Task, event: TaskEvent) -> Result<(), StoreError> {
        let state = self.house.state();
        finish(&self.store, &state, &task.id, event, None, &self.rules, self.now()).map(|_| ())
    }
}
