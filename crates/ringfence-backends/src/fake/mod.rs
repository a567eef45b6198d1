//! A backend that plays a script: for tests, demos and docs, without a process or a runtime.
//!
//! It stands for any mode. It keeps what it is told to keep, records the plans that it was given, and answers a wish
//! to end as its script says.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ringfence_core::backend::{
    Backend, Door, Exit, ExitStatus, Happening, LaunchError, Sandbox, Staged, Stop, Stopper,
};
use ringfence_core::capability::Capabilities;
use ringfence_core::event::Stream;
use ringfence_core::failure::Failure;
use ringfence_core::mode::Mode;
use ringfence_core::plan::Plan;

/// One thing that the fake does.
#[derive(Debug, Clone)]
pub enum Act {
    /// Prints.
    Print(Stream, Vec<u8>),
    /// Does nothing for so long.
    Wait(Duration),
    /// Does nothing until it is stopped.
    Hang,
    /// Ends.
    End(Exit),
    /// Fails as a mode can.
    Break(Failure),
}

/// A backend that plays a script.
pub struct Fake {
    mode: Mode,
    capabilities: Capabilities,
    script: Vec<Act>,
    launch: Option<LaunchError>,
    plans: Arc<Mutex<Vec<Plan>>>,
    stops: Arc<Mutex<Vec<Stop>>>,
}

impl Fake {
    /// Stands for a mode that keeps these promises.
    pub fn new(mode: Mode, capabilities: Capabilities, script: Vec<Act>) -> Self {
        Self { mode, capabilities, script, launch: None, plans: Arc::default(), stops: Arc::default() }
    }

    /// The same, which never starts.
    pub fn failing(mut self, error: LaunchError) -> Self {
        self.launch = Some(error);
        self
    }

    /// The plans that it was given, in order.
    pub fn plans(&self) -> Vec<Plan> {
        locked(&self.plans).clone()
    }

    /// The wishes to end its runs, in order.
    pub fn stops(&self) -> Vec<Stop> {
        locked(&self.stops).clone()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Backend for Fake {
    fn mode(&self) -> Mode {
        self.mode
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    fn versions(&self) -> Vec<(String, String)> {
        vec![("fake".into(), "1".into())]
    }

    fn stage(&self, plan: &Plan) -> Result<Box<dyn Staged>, LaunchError> {
        locked(&self.plans).push(plan.clone());
        match &self.launch {
            Some(error) => Err(error.clone()),
            None => Ok(Box::new(Play {
                acts: self.script.iter().cloned().collect(),
                stop: Arc::new(StopSign { heard: Arc::clone(&self.stops), ..StopSign::default() }),
                since: None,
                door: plan.request.door,
            })),
        }
    }
}

#[derive(Default)]
struct StopSign {
    /// Where wishes are written down.
    heard: Arc<Mutex<Vec<Stop>>>,
    asked: Mutex<Option<Stop>>,
    changed: Condvar,
}

impl Stopper for StopSign {
    fn stop(&self, how: Stop) {
        locked(&self.heard).push(how);
        *locked(&self.asked) = Some(how);
        self.changed.notify_all();
    }
}

struct Play {
    acts: VecDeque<Act>,
    stop: Arc<StopSign>,
    /// When the present wait began.
    since: Option<Instant>,
    /// The port of its door, through which nobody comes.
    door: Option<u16>,
}

impl Staged for Play {
    fn start(self: Box<Self>) -> Result<Box<dyn Sandbox>, LaunchError> {
        Ok(self)
    }
}

impl Play {
    /// Waits for a wish to end, until the given time.
    fn stopped_by(&self, until: Instant) -> Option<Stop> {
        let rest = until.saturating_duration_since(Instant::now());
        let guard = locked(&self.stop.asked);
        let (guard, _) = self
            .stop
            .changed
            .wait_timeout_while(guard, rest, |asked| asked.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        *guard
    }
}

fn ended_by(how: Stop) -> Happening {
    let signal = match how {
        Stop::Interrupt => 2,
        Stop::Terminate => 15,
        Stop::Kill => 9,
    };
    Happening::Ended(Exit::plain(ExitStatus::Signal(signal)))
}

impl Sandbox for Play {
    fn next(&mut self, until: Instant) -> Result<Happening, Failure> {
        let silence = match self.acts.front() {
            Some(Act::Print(..) | Act::End(_) | Act::Break(_)) => None,
            Some(Act::Wait(time)) => Some(*self.since.get_or_insert_with(Instant::now) + *time),
            Some(Act::Hang) | None => Some(until),
        };
        if let Some(how) = self.stopped_by(silence.map_or_else(Instant::now, |end| end.min(until))) {
            return Ok(ended_by(how));
        }
        if let Some(end) = silence {
            if Instant::now() >= end && end < until {
                self.acts.pop_front();
                self.since = None;
                return self.next(until);
            }
            return Ok(Happening::Nothing);
        }
        match self.acts.pop_front() {
            Some(Act::Print(stream, bytes)) => Ok(Happening::Output(stream, bytes)),
            Some(Act::End(exit)) => Ok(Happening::Ended(exit)),
            Some(Act::Break(failure)) => Err(failure),
            Some(Act::Wait(_) | Act::Hang) | None => Ok(Happening::Nothing),
        }
    }

    fn doors(&mut self) -> Vec<(u16, Door)> {
        let listener =
            self.door.and_then(|port| Some((port, TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok()?)));
        listener.map(|(port, listener)| (port, Door::Tcp(listener))).into_iter().collect()
    }

    fn stopper(&self) -> Arc<dyn Stopper> {
        self.stop.clone()
    }
}
