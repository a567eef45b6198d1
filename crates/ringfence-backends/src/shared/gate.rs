//! The gate as the host holds it: started, told, watched, and buried for certain.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ringfence_core::backend::{Stop, Stopper};
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_gate::{Order, Report, Signal, Started, WireError, read_frame, receive, send, write_frame};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal as Unix, WaitOptions, pidfd_open, pidfd_send_signal, waitpid};

use crate::GateProgram;

/// How long a gate gets to end everything once its socket is closed, and how long the host then goes on by itself.
const GATE_PATIENCE: Duration = Duration::from_secs(6);
const SWEEP_PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait for the rest of a message, or for room for one.
const WIRE_PATIENCE: Duration = Duration::from_secs(1);

/// The gates that this process has started and not yet buried.
static GATES: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

fn gates() -> MutexGuard<'static, BTreeSet<u32>> {
    GATES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A gate that was started.
pub(crate) struct Gate {
    body: Box<dyn Body>,
    line: Arc<Line>,
    /// Wakes whoever waits for the run when somebody wants it to end.
    woken: UnixStream,
    buried: Option<Burial>,
}

/// What a gate is, and what has to be ended with it.
pub(crate) trait Body: Send {
    /// Lets a gate go on that somebody has stopped.
    fn wake(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    /// Ends it and everything below it, and looks. Its socket is closed already. Once. `said_all` is whether it has told
    /// how the run ended.
    fn bury(&mut self, said_all: bool) -> Burial;
}

/// The connection to a gate. It outlives the gate without harm.
struct Line {
    control: UnixStream,
    /// Pins the process, so that a signal never goes to somebody who got its number.
    process: Option<Arc<OwnedFd>>,
    wake: UnixStream,
}

/// What was found when the gate was buried.
#[derive(Debug, Clone)]
pub(crate) struct Burial {
    /// Why it did not end by itself and in order, if it did not.
    pub(crate) fault: Option<Failure>,
    /// Processes of the run that live all the same.
    pub(crate) survivors: u32,
}

impl Gate {
    /// Starts a gate, or takes the one that waits. With it come the pipes of the run.
    pub(crate) fn start(program: &GateProgram) -> io::Result<(Self, OwnedFd, OwnedFd)> {
        let Started { pid, control, stdout, stderr } = program.start()?;
        gates().insert(number(pid));
        let process = Arc::new(pidfd_open(pid, PidfdFlags::empty())?);
        Ok((Self::new(control, Box::new(Process { pid, process }))?, stdout, stderr))
    }

    /// The gate at the other end of this.
    pub(crate) fn new(control: UnixStream, body: Box<dyn Body>) -> io::Result<Self> {
        control.set_read_timeout(Some(WIRE_PATIENCE))?;
        control.set_write_timeout(Some(WIRE_PATIENCE))?;
        let (woken, wake) = UnixStream::pair()?;
        for end in [&woken, &wake] {
            end.set_nonblocking(true)?;
        }
        let line = Arc::new(Line { control, process: body.wake(), wake });
        Ok(Self { body, line, woken, buried: None })
    }

    /// Tells it something, and hands over a descriptor.
    pub(crate) fn send(&self, order: &Order, descriptor: Option<BorrowedFd<'_>>) -> Result<(), WireError> {
        send(&self.line.control, order, descriptor)
    }

    /// Its next report; `None` if it is gone.
    pub(crate) fn report(&self) -> Result<Option<Report>, WireError> {
        read_frame(&self.line.control)
    }

    /// Its first report, waiting so long for it to come, and the descriptor that comes with it.
    pub(crate) fn first_report(
        &self,
        patience: Duration,
    ) -> Result<Option<(Report, Option<OwnedFd>)>, WireError> {
        if wait_for(self.line.control.as_fd(), patience) {
            return receive(&self.line.control);
        }
        Err(WireError::Io(io::ErrorKind::TimedOut.into()))
    }

    /// What to watch for reports.
    pub(crate) fn control(&self) -> BorrowedFd<'_> {
        self.line.control.as_fd()
    }

    /// What to watch for somebody's wish.
    pub(crate) fn woken(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }

    /// Takes note of the wish.
    pub(crate) fn hear(&mut self) {
        let mut bytes = [0; 16];
        while matches!(self.woken.read(&mut bytes), Ok(count) if count > 0) {}
    }

    pub(crate) fn stopper(&self) -> Arc<dyn Stopper> {
        self.line.clone()
    }

    /// Ends the gate and everything below it, and looks. `said_all` is whether it has told how the run ended.
    pub(crate) fn bury(&mut self, said_all: bool) -> Burial {
        if let Some(burial) = &self.buried {
            return burial.clone();
        }
        let _ = self.line.control.shutdown(Shutdown::Both);
        self.line.cont();
        let burial = self.body.bury(said_all);
        self.buried = Some(burial.clone());
        burial
    }
}

/// A gate that is a child of this process.
struct Process {
    pid: Pid,
    process: Arc<OwnedFd>,
}

impl Body for Process {
    fn wake(&self) -> Option<Arc<OwnedFd>> {
        Some(self.process.clone())
    }

    /// A gate that was stopped or killed is no excuse: the host then does its work.
    fn bury(&mut self, _: bool) -> Burial {
        let id = number(self.pid);
        if !wait_for(self.process.as_fd(), GATE_PATIENCE) {
            let _ = ringfence_gate::sweep(id, &gates(), SWEEP_PATIENCE);
            // One that has ended needs no signal.
            let _ = pidfd_send_signal(&self.process, Unix::KILL);
        }
        let in_order = wait(self.pid).is_some_and(|code| code == 0);
        let others = {
            let mut gates = gates();
            gates.remove(&id);
            gates.clone()
        };
        // Whoever cannot be looked for may well be there.
        let survivors = ringfence_gate::sweep(id, &others, SWEEP_PATIENCE).unwrap_or(1);
        let fault = (!in_order).then(|| killed(survivors));
        Burial { fault, survivors }
    }
}

fn killed(survivors: u32) -> Failure {
    let rest = match survivors {
        0 => "all that it had started was ended".to_owned(),
        count => format!("of what it had started, {count} could not be ended"),
    };
    Failure::new(FailureClass::Unknown, format!("the gate was killed or broke; {rest}"))
        .with_remedy("if the agent did not do it on purpose, try again")
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.bury(true);
    }
}

impl Line {
    /// Lets it go on, if somebody has stopped it.
    fn cont(&self) {
        if let Some(process) = &self.process {
            // One that has ended needs no signal.
            let _ = pidfd_send_signal(process, Unix::CONT);
        }
    }
}

impl Stopper for Line {
    fn stop(&self, how: Stop) {
        let signal = match how {
            Stop::Interrupt => Signal::Interrupt,
            Stop::Terminate => Signal::Terminate,
            Stop::Kill => Signal::Kill,
        };
        // A gate that somebody stopped could not hear it; one that is gone has ended everything already.
        self.cont();
        let _ = write_frame(&self.control, &Order::Signal(signal));
        let _ = (&self.wake).write(&[0]);
    }
}

fn number(pid: Pid) -> u32 {
    pid.as_raw_nonzero().get().unsigned_abs()
}

/// Waits for a child. Returns the code with which it ended, if it did by itself.
fn wait(pid: Pid) -> Option<i32> {
    loop {
        match waitpid(Some(pid), WaitOptions::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            other => return other.ok()??.1.exit_status(),
        }
    }
}

/// Whether a descriptor has something to read in time.
fn wait_for(descriptor: BorrowedFd<'_>, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    loop {
        let timeout = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
        match poll(&mut [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)], timeout.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            result => return result.is_ok_and(|ready| ready > 0),
        }
    }
}
