//! Watching a sandbox to its end: time, output, patience, cancellation.

use std::time::{Duration, Instant};

use ringfence_agents::Reader;
use ringfence_core::backend::{Exit, Happening, Limit, Sandbox, Stop};
use ringfence_core::event::{Event, Stream};
use ringfence_core::failure::{Disposition, Failure, FailureClass};
use ringfence_core::policy::Limits;
use ringfence_core::units::{MemorySize, Seconds};

use crate::cancel::Cancel;
use crate::growth::{Exceeded, Growth};
use crate::lines::Lines;
use crate::redact::Redactor;

/// What a run may need that takes time to prepare is prepared when it lasts longer than this.
const SHORT_RUN: Duration = Duration::from_millis(50);
/// How long a run gets to end by itself once it was asked to.
const GRACE: Duration = Duration::from_secs(5);
/// How long a mode gets to end a run that was to be killed.
const LAST_GRACE: Duration = Duration::from_secs(8);

/// Who is told of what happens while it happens.
pub(crate) trait Audience {
    fn event(&mut self, event: Event) -> Result<(), Failure>;
    fn raw(&mut self, stream: Stream, bytes: &[u8]) -> Result<(), Failure>;
    /// The run has lasted for [`SHORT_RUN`].
    fn goes_on(&mut self) -> Result<(), Failure>;
}

/// The end of a watched run.
pub(crate) struct Watched {
    /// How it ended.
    pub(crate) exit: Exit,
    /// Why the engine ended it, if it did.
    pub(crate) ended_for: Option<Failure>,
}

pub(crate) struct Watch<'a> {
    pub(crate) limits: &'a Limits,
    /// How much more the disk may be filled, if that is bounded.
    pub(crate) growth: Option<Growth>,
    pub(crate) patience: Seconds,
    /// Whether a person sits there: what they see is shown, not kept and not counted.
    pub(crate) at_terminal: bool,
    pub(crate) redactor: &'a Redactor,
    pub(crate) reader: &'a mut dyn Reader,
    pub(crate) audience: &'a mut dyn Audience,
    pub(crate) cancel: &'a Cancel,
}

/// What the watch keeps in mind.
struct State {
    lines: Lines,
    printed: u64,
    deadline: Instant,
    /// When it is no short run any more, as long as it is one.
    short_until: Option<Instant>,
    stalled_since: Option<Instant>,
    /// Why the run was asked to end, and when it is ended without asking.
    ending: Option<(Failure, Instant)>,
    /// Whether it has been asked yet.
    asked: bool,
    killed: bool,
}

impl Watch<'_> {
    pub(crate) fn follow(&mut self, sandbox: &mut dyn Sandbox) -> Result<Watched, Failure> {
        let now = Instant::now();
        let mut state = State {
            lines: Lines::default(),
            printed: 0,
            deadline: now + self.limits.timeout_seconds.duration(),
            short_until: Some(now + SHORT_RUN),
            stalled_since: None,
            ending: None,
            asked: false,
            killed: false,
        };
        loop {
            match sandbox.next(self.next_look(&state))? {
                Happening::Output(stream, bytes) => self.output(&mut state, stream, &bytes),
                Happening::Ended(exit) => {
                    let rest = state.lines.rest();
                    self.lines(&mut state, &rest);
                    self.name_the_limit(&mut state, exit);
                    if let Some(exceeded) = self.growth.as_ref().and_then(Growth::exceeded_now) {
                        end(&mut state, || too_much_growth(exceeded));
                    }
                    return Ok(Watched { exit, ended_for: state.ending.map(|(failure, _)| failure) });
                }
                Happening::Nothing => {}
            }
            if state.short_until.take_if(|end| Instant::now() >= *end).is_some()
                && let Err(failure) = self.audience.goes_on()
            {
                end(&mut state, || failure);
            }
            if let Some(failure) = self.enforce(&mut state, sandbox) {
                return Err(failure);
            }
        }
    }

    /// When there is something to do even if nothing happens.
    fn next_look(&self, state: &State) -> Instant {
        match &state.ending {
            Some((_, kill_at)) if state.killed => *kill_at + LAST_GRACE,
            Some((_, kill_at)) => *kill_at,
            None => {
                let patience = state.stalled_since.map(|since| since + self.patience.duration());
                let growth = self.growth.as_ref().map(|growth| growth.next_check);
                [patience, growth, state.short_until].into_iter().flatten().fold(state.deadline, Instant::min)
            }
        }
    }

    fn output(&mut self, state: &mut State, stream: Stream, bytes: &[u8]) {
        // What a run has printed when it is killed may take longer to read than it had time.
        if state.killed || is_over(state, Instant::now()) {
            return;
        }
        if self.at_terminal {
            if let Err(failure) = self.audience.raw(stream, bytes) {
                end(state, || failure);
            }
            return;
        }
        state.printed += bytes.len() as u64;
        let most = self.limits.output;
        if state.printed > most.bytes() {
            end(state, || too_much_output(most));
            return;
        }
        if let Err(failure) = self.audience.raw(stream, bytes) {
            end(state, || failure);
        }
        let lines: Vec<_> = state.lines.feed(stream, bytes).into_iter().map(|line| (stream, line)).collect();
        self.lines(state, &lines);
    }

    fn lines(&mut self, state: &mut State, lines: &[(Stream, String)]) {
        let events = lines.iter().flat_map(|(stream, line)| self.reader.line(*stream, line)).collect();
        for event in joined(events) {
            if let Err(failure) = self.audience.event(self.redactor.clean_event(event)) {
                end(state, || failure);
            }
        }
    }

    /// A limit that the mode itself enforced is the reason, unless there was one before.
    fn name_the_limit(&self, state: &mut State, exit: Exit) {
        match exit.limit {
            Some(Limit::Time) => end(state, || self.too_long()),
            Some(Limit::Memory) => end(state, || {
                Failure::new(FailureClass::OutOfMemory, "the run took more memory than it may")
                    .with_remedy("give it more with --memory")
            }),
            Some(Limit::Processes) => end(state, || {
                Failure::new(FailureClass::OutOfProcesses, "the run started more processes than it may")
                    .with_remedy("give it more with --pids")
            }),
            None => {}
        }
    }

    fn too_long(&self) -> Failure {
        let limit = self.limits.timeout_seconds;
        Failure::new(FailureClass::Timeout, format!("the run took longer than {limit}"))
            .with_remedy("give it more time with --timeout, or make the task smaller")
    }

    /// Ends what has to end. A failure means that even killing does not.
    fn enforce(&mut self, state: &mut State, sandbox: &dyn Sandbox) -> Option<Failure> {
        let now = Instant::now();
        if self.cancel.requested() {
            // Whoever cancels has asked the run already; what is left to do here is not to wait for ever.
            state.asked = true;
            end(state, || Failure::new(FailureClass::Cancelled, "the run was cancelled"));
            // Who asks again does not wait.
            if let Some((_, kill_at)) = state.ending.as_mut().filter(|_| self.cancel.kills()) {
                *kill_at = now.min(*kill_at);
            }
        }
        self.look_at_stall(state, now);
        if now >= state.deadline {
            end(state, || self.too_long());
        }
        if let Some(exceeded) = self.growth.as_mut().and_then(|growth| growth.exceeded(now)) {
            // Nothing is asked of a run that fills the disk.
            state.ending.get_or_insert((too_much_growth(exceeded), now));
            state.asked = true;
        }
        match &state.ending {
            Some(_) if !state.asked => {
                state.asked = true;
                sandbox.stopper().stop(Stop::Terminate);
            }
            Some((_, kill_at)) if now >= *kill_at && !state.killed => {
                state.killed = true;
                sandbox.stopper().stop(Stop::Kill);
            }
            Some((failure, kill_at)) if state.killed && now >= *kill_at + LAST_GRACE => {
                return Some(failure.clone());
            }
            _ => {}
        }
        None
    }

    /// A CLI that retries what cannot help, or for longer than anyone should wait, is ended for its own reason.
    fn look_at_stall(&mut self, state: &mut State, now: Instant) {
        let Some(failure) = self.reader.stalled() else {
            state.stalled_since = None;
            return;
        };
        let since = *state.stalled_since.get_or_insert(now);
        let hopeless = failure.class.disposition() == Disposition::Terminal;
        if hopeless || now >= since + self.patience.duration() {
            end(state, || failure.clone());
        }
    }
}

/// Why a run ends that printed, or whose log has, more than it may.
pub(crate) fn too_much_output(most: MemorySize) -> Failure {
    Failure::new(FailureClass::AgentError, format!("the run printed more than {most}, as its log keeps it"))
        .with_remedy("raise `limits.output` in the policy, or make it print less")
}

fn too_much_growth(exceeded: Exceeded) -> Failure {
    let (message, remedy) = match exceeded {
        Exceeded::Space(most, place) => (
            format!("the file system of {place} filled up by more than {most} during the run"),
            "free some space, or raise `limits.growth` in the policy",
        ),
        Exceeded::Files(most, place) => (
            format!("more than {most} files were made on the file system of {place} during the run"),
            "remove files that are not needed: a run may use three quarters of the free inodes (`df -i`)",
        ),
    };
    Failure::new(FailureClass::AgentError, message).with_remedy(remedy)
}

/// The first reason counts.
fn end(state: &mut State, why: impl FnOnce() -> Failure) {
    if state.ending.is_none() {
        state.ending = Some((why(), Instant::now() + GRACE));
    }
}

/// Whether a run that was asked to end has had its time for that.
fn is_over(state: &State, now: Instant) -> bool {
    let asked = state.ending.as_ref().is_some_and(|(_, kill_at)| now >= *kill_at);
    asked || now >= state.deadline + GRACE
}

/// Lines of plain output that came together are one event: a log line for each would be many times their size.
fn joined(events: Vec<Event>) -> Vec<Event> {
    let mut joined: Vec<Event> = Vec::with_capacity(events.len());
    for event in events {
        match (joined.last_mut(), event) {
            (Some(Event::Output { stream, text }), Event::Output { stream: of, text: more })
                if *stream == of =>
            {
                text.push_line_break();
                text.push(&more);
            }
            (_, event) => joined.push(event),
        }
    }
    joined
}
