//! Who takes tasks: the dispatcher, and the residents, which are dispatchers with one pair of hands.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use ringfence_core::event::RunResult;
use ringfence_core::failure::Failure;
use ringfence_core::ids::RunId;
use ringfence_core::mode::Mode;
use ringfence_core::task::{Role, State, TaskEvent, TaskSpec};
use ringfence_store::{Claim, Lease, NewEvent, Store, StoreError, Task, TaskPolicy};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::end::{finish, incident_of};
use super::held::{Holder, RunLocks};
use super::lease::LEASE;
use super::process::ProcessLocks;
use super::waiting::{Alarm, Order, has_ended, wait};
use crate::causes::causes;
use crate::clock::{self, Clock};

/// How many tasks are taken in one go.
const AT_ONCE: usize = 64;
/// How long to wait before trying again what went wrong.
const AGAIN: Duration = Duration::from_secs(1);
/// How long nothing is taken once nothing can be started.
const REST: Duration = Duration::from_secs(5);
/// How long to sleep at most while something waits for its time: clocks jump.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// How long a runner gets to end its run once it was asked to.
const GRACE: Duration = Duration::from_secs(20);
/// How soon to look again for somebody who is about to be gone.
const SOON: Duration = Duration::from_millis(100);

/// The settings of the queue, as they are now.
#[derive(Debug, Clone)]
pub struct QueueSettings {
    /// How many runs at once; 0 is no bound.
    pub max_concurrency: u32,
    /// How tasks go on.
    pub rules: TaskPolicy,
}

/// What a dispatcher needs of the world.
pub trait Premises {
    /// The settings now. While they cannot be read nothing is taken.
    fn settings(&self) -> Result<QueueSettings, String>;
    /// Where a task would run now; `None` if that cannot be told before it is tried.
    fn mode_of(&self, spec: &TaskSpec) -> Option<Mode>;
    /// Starts the runner of a task. It holds the lock.
    fn launch(&self, task: &Task, run: &RunId, lock: File) -> io::Result<Child>;
    /// Removes the sandbox of a lost run. An error holds its task.
    fn clear(&self, run: &RunId) -> Result<(), Failure>;
    /// The result of a run that ended.
    fn result_of(&self, run: &RunId) -> Option<RunResult>;
}

/// What a dispatcher takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Post {
    /// Whatever no resident takes.
    Dispatcher,
    /// Tasks of a role that run on the host, one at a time.
    Resident(Role),
}

/// Why a dispatcher ended.
#[derive(Debug, thiserror::Error)]
pub enum DispatcherError {
    /// It cannot hear anything.
    #[error("nothing can be waited for")]
    Deaf(#[source] io::Error),
    /// Somebody has taken the store away, or put another in its place.
    #[error("the store is not where it was")]
    Gone,
}

/// A runner that is watched.
struct Watched {
    lease: Lease,
    process: OwnedFd,
    /// If it was started here.
    child: Option<Child>,
    /// When its last heartbeat was seen.
    heard: Instant,
    /// When it was asked to end.
    asked: Option<Instant>,
    /// Whether it was found to be silent.
    silent: bool,
}

/// Takes tasks and sees to it that each has an end.
pub struct Dispatcher<'a> {
    /// Whose name stands in the leases.
    pub name: String,
    /// What it takes.
    pub post: Post,
    /// From where.
    pub store: &'a dyn Store,
    /// Where everything is.
    pub state: &'a Path,
    /// With what.
    pub premises: &'a dyn Premises,
    /// By when.
    pub clock: Clock,
}

/// Which tasks run without a boundary, by all that says so.
type Modes = RefCell<BTreeMap<(Option<Mode>, Option<String>, Role, Option<PathBuf>), bool>>;

/// What a dispatcher keeps in mind.
#[derive(Default)]
struct Mind {
    watched: Vec<Watched>,
    ending: Option<Order>,
    /// Until when nothing is taken, because nothing can be started.
    resting: Option<Instant>,
    alarm: Alarm,
}

impl Dispatcher<'_> {
    /// Works until it is told to end: [`super::DRAIN`] on `orders` lets end what runs, any other byte gives it back, and the
    /// end of `orders` leaves it at once to itself: it goes on alone. `wakers` are what to look up for.
    pub fn work(&self, orders: BorrowedFd<'_>, wakers: &[BorrowedFd<'_>]) -> Result<(), DispatcherError> {
        let mut mind = Mind::default();
        self.sweep();
        loop {
            mind.alarm = Alarm::default();
            if !self.store.is_current() {
                return Err(DispatcherError::Gone);
            }
            if let Err(error) = self.round(&mut mind) {
                tracing::warn!(why = causes(&error), "the queue cannot be looked at");
                mind.alarm.within(AGAIN);
            }
            if mind.ending.is_some() && !mind.watched.iter().any(|watched| self.is_mine(watched)) {
                return Ok(());
            }
            let processes = mind.watched.iter().map(|watched| watched.process.as_fd());
            match wait(&mind.alarm, orders, wakers, processes).map_err(DispatcherError::Deaf)? {
                Some(Order::Gone) => return Ok(()),
                // Who gives back does not wait any more.
                Some(_) if mind.ending == Some(Order::HandBack) => {}
                Some(order) => mind.ending = Some(order),
                None => {}
            }
        }
    }

    /// What those have left who were killed between the end of a task and their own.
    fn sweep(&self) {
        if let Ok(leases) = self.store.leases() {
            self.locks().sweep(&leases.iter().map(|lease| &lease.run).collect::<Vec<_>>());
        }
    }

    fn is_mine(&self, watched: &Watched) -> bool {
        watched.child.is_some() || watched.lease.owner == self.name
    }

    fn locks(&self) -> RunLocks {
        RunLocks::new(self.state)
    }

    fn round(&self, mind: &mut Mind) -> Result<(), StoreError> {
        let leases = self.store.leases()?;
        self.look_after(mind, &leases);
        self.find_lost(mind, &leases)?;
        self.see_off(mind)?;
        if mind.ending.is_none()
            && self.take(mind)?
            && let Some(due) = self.store.next_due()?
        {
            let wait = due.saturating_mul(1000).saturating_sub(self.clock.now().ms);
            mind.alarm.within(Duration::from_millis(wait.max(1)).min(LONGEST_SLEEP));
        }
        Ok(())
    }

    /// Ends runners that have no lease any more, that are silent, or that are to be given back.
    fn look_after(&self, mind: &mut Mind, leases: &[Lease]) {
        let mut watched = std::mem::take(&mut mind.watched);
        watched.retain_mut(|watched| {
            let lives = match &mut watched.child {
                Some(child) => child.try_wait().is_ok_and(|status| status.is_none()),
                None => !has_ended(&watched.process),
            };
            if !lives {
                tracing::info!(task = %watched.lease.task, run = %watched.lease.run, "its runner has ended");
            }
            lives
        });
        for one in &mut watched {
            let lease = leases.iter().find(|lease| lease.run == one.lease.run);
            if let Some(lease) = lease.filter(|lease| lease.until != one.lease.until) {
                (one.heard, one.silent) = (Instant::now(), false);
                one.lease = lease.clone();
            }
            let given_back = mind.ending == Some(Order::HandBack) && self.is_mine(one);
            match one.asked {
                Some(asked) if asked.elapsed() >= GRACE => signal(one, Signal::KILL),
                Some(asked) => mind.alarm.within(GRACE.saturating_sub(asked.elapsed())),
                None if lease.is_none() || given_back => {
                    signal(one, Signal::TERM);
                    one.asked = Some(Instant::now());
                    mind.alarm.within(GRACE);
                }
                None if one.heard.elapsed() >= LEASE => self.give_up(one),
                None => mind.alarm.within(LEASE.saturating_sub(one.heard.elapsed())),
            }
        }
        mind.watched = watched;
    }

    /// Kills a runner that says nothing. If nobody could say anything, as on a full disk, it gets time for another word.
    fn give_up(&self, watched: &mut Watched) {
        let Lease { task, run, .. } = &watched.lease;
        if watched.silent {
            tracing::warn!(%task, %run, "a runner is silent and is killed");
            signal(watched, Signal::KILL);
        }
        let told = NewEvent {
            kind: "run.unresponsive".into(),
            task: Some(task.to_string()),
            run: Some(run.to_string()),
            data: serde_json::Value::Null,
        };
        if self.store.note(&told, self.clock.now()).is_ok() {
            watched.silent = true;
        }
        watched.heard = Instant::now();
    }

    /// Finds runners that nobody watches, and leases that nobody holds.
    fn find_lost(&self, mind: &mut Mind, leases: &[Lease]) -> Result<(), StoreError> {
        for lease in leases {
            if mind.watched.iter().any(|watched| watched.lease.run == lease.run) {
                continue;
            }
            match self.locks().holder(&lease.run) {
                Ok(Holder::Nobody(lock)) => self.settle(mind, lease, lock)?,
                Ok(Holder::Runner(who)) => match who.open() {
                    Some(process) => mind.watched.push(watch(process, lease)),
                    // What it started is about to be gone as well.
                    None => mind.alarm.within(SOON),
                },
                Ok(Holder::Unnamed) => mind.alarm.within(SOON),
                Err(error) => {
                    tracing::warn!(run = %lease.run, why = %error, "the lock of a run cannot be looked at");
                    mind.alarm.within(AGAIN);
                }
            }
        }
        Ok(())
    }

    /// Sees to the end of what cancelled tasks have left, and lets their lanes go on.
    fn see_off(&self, mind: &mut Mind) -> Result<(), StoreError> {
        for (task, run) in self.store.pending_cleanup()? {
            match self.locks().holder(&run) {
                Ok(Holder::Nobody(lock)) => {
                    if let Err(failure) = self.premises.clear(&run) {
                        tracing::warn!(%run, why = %failure.message, "what a run has left cannot be cleared away");
                        mind.alarm.within(AGAIN);
                        continue;
                    }
                    self.store.cleanup_done(&task, &run, self.clock.now())?;
                    self.locks().forget(&run);
                    drop(lock);
                }
                Ok(Holder::Runner(who)) if !mind.watched.iter().any(|watched| watched.lease.run == run) => {
                    let lease = Lease { task, run, fence: 0, until: 0, owner: String::new() };
                    mind.watched.extend(who.open().map(|process| watch(process, &lease)));
                    mind.alarm.within(SOON);
                }
                _ => mind.alarm.within(AGAIN),
            }
        }
        Ok(())
    }

    /// Ends what a runner has left: by its result if it had one, else its task waits for its turn again.
    fn settle(&self, mind: &mut Mind, lease: &Lease, lock: Option<File>) -> Result<(), StoreError> {
        if let Err(failure) = self.premises.clear(&lease.run) {
            tracing::warn!(run = %lease.run, why = %failure.message, "what a run has left cannot be cleared away");
            mind.alarm.within(AGAIN);
            return Ok(());
        }
        let Ok(settings) = self.premises.settings() else {
            mind.alarm.within(AGAIN);
            return Ok(());
        };
        let result = self.premises.result_of(&lease.run);
        let event = match &result {
            Some(result) => incident_of(result, lease.fence),
            None => TaskEvent::RunnerLost { fence: lease.fence },
        };
        tracing::info!(task = %lease.task, run = %lease.run, found = result.is_some(), "a run without a runner is settled");
        let now = self.clock.now();
        finish(self.store, self.state, &lease.task, event, result.as_ref(), &settings.rules, now)?;
        self.locks().forget(&lease.run);
        drop(lock);
        Ok(())
    }

    /// Takes what there is to take, and starts it. Says whether it could.
    fn take(&self, mind: &mut Mind) -> Result<bool, StoreError> {
        if let Some(left) = mind.resting.map(|until| until.saturating_duration_since(Instant::now()))
            && !left.is_zero()
        {
            mind.alarm.within(left);
            return Ok(false);
        }
        mind.resting = None;
        let settings = match self.premises.settings() {
            Ok(settings) => settings,
            Err(why) => {
                tracing::warn!(why, "nothing is taken while the settings cannot be read");
                return Ok(false);
            }
        };
        let locks: RefCell<BTreeMap<RunId, File>> = RefCell::default();
        let name = || {
            let run = clock::new_run_id().ok()?;
            let lock = self.locks().take(&run).ok()?;
            locks.borrow_mut().insert(run.clone(), lock);
            Some(run)
        };
        let (roles, most) = match self.post {
            Post::Dispatcher => (Role::ALL.to_vec(), AT_ONCE),
            Post::Resident(_) if mind.watched.iter().any(|watched| self.is_mine(watched)) => {
                return Ok(false);
            }
            Post::Resident(role) => (vec![role], 1),
        };
        let residents = ProcessLocks::new(self.state).residents();
        let modes = Modes::default();
        let fits = |spec: &TaskSpec| {
            let resident = residents.contains(&spec.role) && self.runs_without_boundary(spec, &modes);
            resident == matches!(self.post, Post::Resident(_))
        };
        let now = self.clock.now();
        let claim = Claim {
            owner: &self.name,
            roles: &roles,
            max_tasks: most,
            max_concurrency: settings.max_concurrency,
            until: now.seconds() + LEASE.as_secs(),
            accepts: &fits,
            new_run_id: &name,
        };
        let claimed = self.store.claim(&claim, now);
        let mut locks = locks.into_inner();
        for task in claimed.as_deref().unwrap_or_default() {
            self.start(mind, task, &mut locks, &settings.rules);
        }
        // Names of a claim that came to nothing.
        locks.keys().for_each(|run| self.locks().forget(run));
        if claimed?.len() == AT_ONCE {
            mind.alarm.within(Duration::ZERO);
        }
        Ok(true)
    }

    /// Whether a task is for residents. Settings are looked at once for tasks that say the same.
    fn runs_without_boundary(&self, spec: &TaskSpec, modes: &Modes) -> bool {
        let key = (spec.mode, spec.agent.clone(), spec.role, spec.directory.clone());
        let known = modes.borrow().get(&key).copied();
        known.unwrap_or_else(|| {
            let without = self.premises.mode_of(spec).is_some_and(|mode| !mode.isolates());
            modes.borrow_mut().insert(key, without);
            without
        })
    }

    fn start(&self, mind: &mut Mind, task: &Task, locks: &mut BTreeMap<RunId, File>, rules: &TaskPolicy) {
        let State::Running { run, lease_until } = &task.lifecycle.state else { return };
        let Some(lock) = locks.remove(run) else { return };
        let lease = Lease {
            task: task.id.clone(),
            run: run.clone(),
            fence: task.lifecycle.fence,
            until: *lease_until,
            owner: self.name.clone(),
        };
        match self.premises.launch(task, run, lock) {
            Ok(child) => {
                tracing::info!(task = %task.id, %run, attempt = task.lifecycle.attempts, "a task runs");
                // A child that was not waited for keeps its number.
                let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
                match pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) {
                    Some(process) => {
                        mind.watched.push(Watched { child: Some(child), ..watch(process, &lease) });
                    }
                    None => mind.alarm.within(SOON),
                }
            }
            Err(error) => {
                tracing::warn!(task = %task.id, why = %error, "a runner cannot be started");
                let event = TaskEvent::Released { fence: task.lifecycle.fence };
                let now = self.clock.now();
                let back = finish(self.store, self.state, &task.id, event, None, rules, now);
                if let Err(error) = back {
                    tracing::warn!(task = %task.id, why = causes(&error), "a task cannot be given back yet");
                }
                self.locks().forget(run);
                mind.resting = Some(Instant::now() + REST);
                mind.alarm.within(REST);
            }
        }
    }
}

/// Watches a process that holds the lock of a lease.
fn watch(process: OwnedFd, lease: &Lease) -> Watched {
    Watched { lease: lease.clone(), process, child: None, heard: Instant::now(), asked: None, silent: false }
}

fn signal(watched: &Watched, signal: Signal) {
    // One that is gone needs no signal.
    let _ = pidfd_send_signal(&watched.process, signal);
}
