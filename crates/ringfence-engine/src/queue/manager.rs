//! The processes of an installation: which are meant to run, which do, and how the two are brought together.
//!
//! Whoever wants a process started or stopped writes that into the store, by [`ask_start`] and [`ask_stop`]; the daemon's
//! manager reads it there. So the command line, the API and the pages cannot differ, and a wish outlives a crash.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use ringfence_core::mode::ExecutionEnvironment;
use ringfence_store::{ProcessRow, ProcessStatus, Store, StoreError};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::process::{ProcessLocks, ProcessName};
use super::waiting::{Alarm, DRAIN, Order, has_ended, wait};
use crate::causes::causes;
use crate::clock::Clock;

/// The answer to who wants a resident where each task has a sandbox of its own.
pub const RESIDENT_SKIPPED: &str =
    "skipped: in the execution environment `sandbox` each task runs in a sandbox of its own";

/// The waits before a process that failed is started again, doubling.
const FIRST_WAIT: Duration = Duration::from_secs(2);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// A process that has lived so long has done well.
const LIVED: Duration = Duration::from_secs(300);
/// How long a process gets to end once it was asked to.
const GRACE: Duration = Duration::from_secs(30);
const AGAIN: Duration = Duration::from_secs(1);

/// Starts a process of ours.
pub trait ProcessCommand {
    /// Its standard input is a pipe, by which it is told to end; it ends as well when the pipe does.
    fn start(&self, name: ProcessName) -> io::Result<Child>;
    /// The execution environment, as the settings have it now.
    fn environment(&self) -> Result<ExecutionEnvironment, String>;
}

/// What became of the wish to start a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Startable {
    /// It will be started.
    Asked,
    /// It runs.
    Running,
    /// It is not started in this environment.
    Skipped,
}

/// Wishes for a process. In `sandbox` no resident is started, whoever asks.
pub fn ask_start(
    store: &dyn Store,
    locks: &ProcessLocks,
    name: ProcessName,
    environment: ExecutionEnvironment,
    clock: &Clock,
) -> Result<Startable, StoreError> {
    if matches!(name, ProcessName::Resident(..)) && environment == ExecutionEnvironment::Sandbox {
        return Ok(Startable::Skipped);
    }
    let name = name.to_string();
    let wanted = store.processes()?.iter().any(|row| row.name == name && row.wanted);
    if wanted && locks.holder(&name).is_some() {
        return Ok(Startable::Running);
    }
    store.want_process(&name, true, clock.now())?;
    Ok(Startable::Asked)
}

/// Wishes for the end of a process. Of one that never was there is nothing to wish.
pub fn ask_stop(store: &dyn Store, name: ProcessName, clock: &Clock) -> Result<(), StoreError> {
    let name = name.to_string();
    if store.processes()?.iter().any(|row| row.name == name) {
        store.want_process(&name, false, clock.now())?;
    }
    Ok(())
}

fn row_of(store: &dyn Store, name: ProcessName) -> Result<ProcessRow, StoreError> {
    let name = name.to_string();
    let found = store.processes()?.into_iter().find(|row| row.name == name);
    Ok(found.unwrap_or_else(|| ProcessRow::idle(&name)))
}

/// Why the manager ended.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// It cannot hear anything.
    #[error("nothing can be waited for")]
    Deaf(#[source] io::Error),
    /// Somebody has taken the store away, or put another in its place.
    #[error("the store is not where it was, so the daemon ends")]
    Gone,
}

/// Brings together what is meant to run and what runs.
pub struct Manager<'a> {
    /// Where the wishes are.
    pub store: &'a dyn Store,
    /// Where everything is.
    pub state: &'a Path,
    /// How processes are started.
    pub command: &'a dyn ProcessCommand,
    /// By when.
    pub clock: Clock,
}

struct Managed {
    name: ProcessName,
    process: OwnedFd,
    /// If it was started here.
    child: Option<Child>,
    since: Instant,
    /// What it was told, and when.
    asked: Option<(Instant, Order)>,
}

/// When a process that failed is started again.
struct Patience {
    failures: u32,
    until: Instant,
}

#[derive(Default)]
struct Mind {
    managed: Vec<Managed>,
    patience: BTreeMap<ProcessName, Patience>,
    ending: Option<Order>,
    alarm: Alarm,
}

impl Manager<'_> {
    /// Works until a byte comes on `orders`: [`super::DRAIN`] lets everything end what it does, any other makes it give
    /// that back.
    pub fn work(&self, orders: BorrowedFd<'_>, wakers: &[BorrowedFd<'_>]) -> Result<(), ManagerError> {
        let mut mind = Mind::default();
        loop {
            mind.alarm = Alarm::default();
            if !self.store.is_current() {
                return Err(ManagerError::Gone);
            }
            if let Err(error) = self.round(&mut mind) {
                tracing::warn!(why = causes(&error), "the processes cannot be looked after");
                mind.alarm.within(AGAIN);
            }
            if mind.ending.is_some() && mind.managed.is_empty() {
                return Ok(());
            }
            let processes = mind.managed.iter().map(|managed| managed.process.as_fd());
            if let Some(order) = wait(&mind.alarm, orders, wakers, processes).map_err(ManagerError::Deaf)? {
                mind.ending = Some(order);
            }
        }
    }

    fn round(&self, mind: &mut Mind) -> Result<(), StoreError> {
        self.bury(mind)?;
        let environment = self.command.environment();
        let mut wanted: BTreeMap<ProcessName, bool> = BTreeMap::from([(ProcessName::FIRST_DISPATCHER, true)]);
        for row in self.store.processes()? {
            if let Ok(name) = row.name.parse() {
                wanted.insert(name, row.wanted);
            }
        }
        for (name, wanted) in wanted {
            let fits = match (name, &environment) {
                (ProcessName::Dispatcher(_), _) => true,
                (ProcessName::Resident(..), Ok(environment)) => *environment == ExecutionEnvironment::Host,
                // Settings that cannot be read change nothing.
                (ProcessName::Resident(..), Err(_)) => self.runs(mind, name),
            };
            if wanted && fits && mind.ending.is_none() {
                self.see_that_it_runs(mind, name)?;
            } else {
                // What was started for another environment ends what it does.
                let otherwise = if wanted { Order::Drain } else { Order::HandBack };
                see_that_it_ends(mind, name, mind.ending.unwrap_or(otherwise));
            }
        }
        Ok(())
    }

    fn runs(&self, mind: &Mind, name: ProcessName) -> bool {
        mind.managed.iter().any(|managed| managed.name == name)
    }

    fn see_that_it_runs(&self, mind: &mut Mind, name: ProcessName) -> Result<(), StoreError> {
        if self.runs(mind, name) {
            return Ok(());
        }
        if let Some(left) =
            mind.patience.get(&name).map(|patience| patience.until.saturating_duration_since(Instant::now()))
            && !left.is_zero()
        {
            mind.alarm.within(left);
            return Ok(());
        }
        let locks = ProcessLocks::new(self.state);
        let (pid, child) = match locks.holder(&name.to_string()) {
            // Of a daemon before this one, and about to end: it is waited for.
            Some(who) => (who.open().map(|_| who.pid), None),
            None => match self.command.start(name) {
                Ok(child) => (i32::try_from(child.id()).ok().and_then(Pid::from_raw), Some(child)),
                Err(error) => {
                    self.wait_longer(mind, name);
                    let mut row = row_of(self.store, name)?;
                    (row.status, row.message) =
                        (ProcessStatus::Failed, Some(format!("cannot be started: {error}")));
                    return self.store.put_process(&row, self.clock.now());
                }
            },
        };
        let process = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let (Some(pid), Some(process)) = (pid, process) else {
            mind.alarm.within(AGAIN);
            return Ok(());
        };
        let row = ProcessRow {
            wanted: true,
            status: ProcessStatus::Running,
            pid: Some(pid.as_raw_nonzero().get().unsigned_abs()),
            started_ms: Some(self.clock.now().ms),
            ..ProcessRow::idle(&name.to_string())
        };
        mind.managed.push(Managed { name, process, child, since: Instant::now(), asked: None });
        tracing::info!(%name, %pid, "a process runs");
        self.store.put_process(&row, self.clock.now())
    }

    /// Notes who has ended. All are waited for before anything can go wrong.
    fn bury(&self, mind: &mut Mind) -> Result<(), StoreError> {
        let (ended, living): (Vec<Managed>, Vec<Managed>) =
            std::mem::take(&mut mind.managed).into_iter().partition(|managed| has_ended(&managed.process));
        mind.managed = living;
        let mut noted = Ok(());
        for mut managed in ended {
            let status = managed.child.as_mut().and_then(|child| child.wait().ok());
            if managed.since.elapsed() >= LIVED {
                mind.patience.remove(&managed.name);
            }
            let wait = managed.asked.is_none().then(|| self.wait_longer(mind, managed.name));
            noted = noted.and(self.note_end(&managed, status, wait));
        }
        noted
    }

    fn note_end(
        &self,
        managed: &Managed,
        status: Option<ExitStatus>,
        wait: Option<Duration>,
    ) -> Result<(), StoreError> {
        let mut row = row_of(self.store, managed.name)?;
        row.status = match (wait, status) {
            (None, _) => ProcessStatus::Stopped,
            (Some(_), Some(status)) if status.success() => ProcessStatus::Completed,
            (Some(_), _) => ProcessStatus::Failed,
        };
        row.exit_code = status.as_ref().and_then(ExitStatus::code);
        row.signal = status.as_ref().and_then(ExitStatusExt::signal);
        row.pid = None;
        row.finished_ms = Some(self.clock.now().ms);
        if let Some(wait) = wait {
            row.message = Some(format!("it ended by itself; started again in {} s", wait.as_secs()));
            tracing::warn!(name = %managed.name, ?status, "a process ended by itself");
        }
        self.store.put_process(&row, self.clock.now())
    }

    fn wait_longer(&self, mind: &mut Mind, name: ProcessName) -> Duration {
        let failures = mind.patience.get(&name).map_or(0, |patience| patience.failures) + 1;
        let wait = FIRST_WAIT.saturating_mul(1 << (failures - 1).min(10)).min(LONGEST_WAIT);
        mind.patience.insert(name, Patience { failures, until: Instant::now() + wait });
        mind.alarm.within(wait);
        wait
    }
}

/// Tells a process to end, and sees to it that it does. One of a daemon before this one was told by that one's end.
fn see_that_it_ends(mind: &mut Mind, name: ProcessName, order: Order) {
    let Some(managed) = mind.managed.iter_mut().find(|managed| managed.name == name) else { return };
    let again = match managed.asked {
        // Who drains may be told to hurry.
        Some((asked, before)) if before == order || order == Order::Drain => match before {
            // Who drains takes as long as its task.
            Order::Drain => return,
            _ if asked.elapsed() >= GRACE => {
                let _ = pidfd_send_signal(&managed.process, Signal::KILL);
                AGAIN
            }
            _ => GRACE.saturating_sub(asked.elapsed()),
        },
        _ => {
            let orders = managed.child.as_mut().and_then(|child| child.stdin.as_mut());
            let byte = if order == Order::Drain { DRAIN } else { b'b' };
            if let Some(Err(error)) = orders.map(|orders| orders.write_all(&[byte])) {
                tracing::warn!(%name, why = %error, "a process cannot be told to end");
            }
            managed.asked = Some((Instant::now(), order));
            GRACE
        }
    };
    mind.alarm.within(again);
}
