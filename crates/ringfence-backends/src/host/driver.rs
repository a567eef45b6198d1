//! The host's side of the gate: start it, read its pipes, pass on the wish to end.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ringfence_core::backend::{
    Backend, Exit, ExitStatus, Happening, LaunchError, Limit, Sandbox, Stop, Stopper,
};
use ringfence_core::capability::Capabilities;
use ringfence_core::event::Stream;
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::mode::Mode;
use ringfence_core::plan::Plan;
use ringfence_gate::{
    Order, Report, Signal, StartProblem, Status, WireError, read_frame, send_start, write_frame,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::ioctl_fionbio;
use rustix::process::{Pid, PidfdFlags, kill_process, pidfd_open};

use super::{caps, plan};
use crate::GateProgram;

/// How long to wait for the rest of the output of a run that has ended. Only a stranger who was handed the pipe can
/// make it last.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How long a gate gets to end everything once its socket is closed, and how long the host then goes on by itself.
const GATE_PATIENCE: Duration = Duration::from_secs(6);
const SWEEP_PATIENCE: Duration = Duration::from_secs(5);

/// The gates that this process has started and not yet buried.
static GATES: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

fn gates() -> MutexGuard<'static, BTreeSet<u32>> {
    GATES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs agents as processes of the machine.
pub struct Host {
    gate: GateProgram,
}

impl Host {
    /// By this gate.
    pub fn new(gate: GateProgram) -> Self {
        Self { gate }
    }
}

impl Backend for Host {
    fn mode(&self) -> Mode {
        Mode::Host
    }

    fn capabilities(&self) -> Capabilities {
        caps::capabilities()
    }

    fn versions(&self) -> Vec<(String, String)> {
        let system = rustix::system::uname();
        vec![("kernel".into(), system.release().to_string_lossy().into_owned())]
    }

    fn launch(&self, plan: &Plan) -> Result<Box<dyn Sandbox>, LaunchError> {
        let spec = plan::spec(plan)?;
        let program = plan.request.argv.first().cloned().unwrap_or_default();
        // What a killed gate leaves behind has to come to us, or nobody could find it.
        ringfence_gate::adopt().map_err(|error| broken("adopt orphans", &error))?;
        let (control, theirs) = UnixStream::pair().map_err(|error| broken("open a socket", &error))?;
        let mut gate = Command::new(&self.gate.program)
            .args(&self.gate.args)
            .env_clear()
            .envs(&plan.request.env)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| broken("start the gate", &error))?;
        gates().insert(gate.id());
        let (Some(stdout), Some(stderr)) = (gate.stdout.take(), gate.stderr.take()) else {
            return Err(broken("open its pipes", &ErrorKind::BrokenPipe.into()));
        };
        let mut run =
            Run { gate, control: Arc::new(control), stdout: Some(stdout), stderr: Some(stderr), end: None };
        let stdin = io::stdin();
        let input = spec.stdin.then(|| stdin.as_fd());
        send_start(&*run.control, spec, input).map_err(|error| wire(&error))?;
        run.confirm(&program)?;
        Ok(Box::new(run))
    }
}

fn broken(what: &str, error: &io::Error) -> LaunchError {
    LaunchError::Runtime(Failure::new(FailureClass::Unknown, format!("could not {what}: {error}")))
}

fn wire(error: &WireError) -> LaunchError {
    LaunchError::Runtime(Failure::new(FailureClass::Unknown, format!("lost the gate: {error}")))
}

struct Run {
    gate: Child,
    control: Arc<UnixStream>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    /// The gate's last word, and until when to wait for the rest of the output.
    end: Option<(Exit, Instant)>,
}

impl Run {
    /// Waits for the gate's word that the program runs.
    fn confirm(&mut self, program: &str) -> Result<(), LaunchError> {
        match read_frame(&*self.control).map_err(|error| wire(&error))? {
            Some(Report::Started { .. }) => {}
            Some(Report::CannotStart { problem, message }) => {
                return Err(match problem {
                    // The program is there, for it was found; what it begins with names something that is not.
                    StartProblem::NotFound => LaunchError::NotExecutable {
                        program: program.to_owned(),
                        why: "the interpreter that it names is not there".to_owned(),
                    },
                    StartProblem::NotExecutable => {
                        LaunchError::NotExecutable { program: program.to_owned(), why: message }
                    }
                    StartProblem::Other => LaunchError::Runtime(Failure::new(
                        FailureClass::Unknown,
                        format!("{program} could not be started: {message}"),
                    )),
                });
            }
            Some(Report::Ended { .. }) | None => {
                return Err(broken("start the gate", &ErrorKind::BrokenPipe.into()));
            }
        }
        let pipes = [self.stdout.as_ref().map(AsFd::as_fd), self.stderr.as_ref().map(AsFd::as_fd)];
        for pipe in pipes.into_iter().flatten() {
            ioctl_fionbio(pipe, true).map_err(|error| broken("read its pipes", &error.into()))?;
        }
        Ok(())
    }

    /// Which of stdout, stderr and the gate have something, until the given time.
    fn wait(&self, until: Instant) -> [bool; 3] {
        let wait_for = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(wait_for).ok();
        let watched = [
            self.stdout.as_ref().map(AsFd::as_fd),
            self.stderr.as_ref().map(AsFd::as_fd),
            self.end.is_none().then(|| self.control.as_fd()),
        ];
        let mut entries: Vec<_> = watched
            .iter()
            .flatten()
            .map(|descriptor| PollFd::from_borrowed_fd(*descriptor, PollFlags::IN))
            .collect();
        // Interrupted or timed out: nothing is ready, and the caller looks at the clock.
        if poll(&mut entries, timeout.as_ref()).is_err() {
            return [false; 3];
        }
        let mut ready = entries.iter().map(|entry| !entry.revents().is_empty());
        watched.map(|descriptor| descriptor.is_some() && ready.next().unwrap_or(false))
    }

    fn read_report(&mut self) -> Result<(), Failure> {
        let lost = |why: String| {
            Failure::new(FailureClass::Unknown, format!("the gate was killed or broke{why}"))
                .with_remedy("all that it had started is ended; if the agent did not do it, try again")
        };
        match read_frame(&*self.control) {
            Ok(Some(Report::Ended { status, leftovers, survivors, limit })) => {
                let status = match status {
                    Status::Code(code) => ExitStatus::Code(code),
                    Status::Signal(signal) => ExitStatus::Signal(signal),
                };
                let limit = limit.map(|limit| match limit {
                    ringfence_gate::Limit::Time => Limit::Time,
                    ringfence_gate::Limit::Memory => Limit::Memory,
                });
                let exit = Exit { status, leftovers, survivors, limit };
                self.end = Some((exit, Instant::now() + LAST_WORDS));
                Ok(())
            }
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(lost(String::new())),
            Err(error) => Err(lost(format!(": {error}"))),
        }
    }
}

/// Some output, or `None` at its end or when there is none yet; at the end the pipe is closed.
fn read_pipe<P: Read>(pipe: &mut Option<P>) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 64 << 10];
    match pipe.as_mut()?.read(&mut buffer) {
        Ok(0) => *pipe = None,
        Ok(count) => {
            buffer.truncate(count);
            return Some(buffer);
        }
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
        Err(_) => *pipe = None,
    }
    None
}

impl Sandbox for Run {
    fn next(&mut self, until: Instant) -> Result<Happening, Failure> {
        loop {
            let until = match self.end {
                Some((exit, last_words)) => {
                    let silent = self.stdout.is_none() && self.stderr.is_none();
                    if silent || Instant::now() >= last_words {
                        return Ok(Happening::Ended(exit));
                    }
                    last_words
                }
                None => until,
            };
            let [stdout, stderr, report] = self.wait(until);
            if stdout && let Some(bytes) = read_pipe(&mut self.stdout) {
                return Ok(Happening::Output(Stream::Stdout, bytes));
            }
            if stderr && let Some(bytes) = read_pipe(&mut self.stderr) {
                return Ok(Happening::Output(Stream::Stderr, bytes));
            }
            if report {
                self.read_report()?;
            }
            if self.end.is_none() && Instant::now() >= until {
                return Ok(Happening::Nothing);
            }
        }
    }

    fn stopper(&self) -> Arc<dyn Stopper> {
        Arc::new(Wish(Arc::clone(&self.control)))
    }
}

impl Run {
    /// Whether the gate ends in time.
    fn gate_ends(&self, patience: Duration) -> bool {
        let pid = i32::try_from(self.gate.id()).ok().and_then(Pid::from_raw);
        // A gate that cannot be opened has ended.
        let Some(handle) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else { return true };
        let until = Instant::now() + patience;
        loop {
            let timeout = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
            let mut watched = [PollFd::new(&handle, PollFlags::IN)];
            match poll(&mut watched, timeout.as_ref()) {
                Err(rustix::io::Errno::INTR) => {}
                result => return result.is_ok_and(|ready| ready > 0),
            }
        }
    }
}

impl Drop for Run {
    /// Closing the socket ends all that belongs to the run. A gate that was stopped or killed is no excuse: the host
    /// then does its work.
    fn drop(&mut self) {
        let _ = self.control.shutdown(Shutdown::Both);
        let in_order = self.end.is_some() || self.gate_ends(GATE_PATIENCE);
        let id = self.gate.id();
        let swept = |others: &BTreeSet<u32>| ringfence_gate::sweep(id, others, SWEEP_PATIENCE);
        if !in_order && let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) {
            let _ = swept(&gates());
            let _ = kill_process(pid, rustix::process::Signal::KILL);
        }
        let _ = self.gate.wait();
        gates().remove(&id);
        if self.end.is_none() {
            let _ = swept(&gates());
        }
    }
}

struct Wish(Arc<UnixStream>);

impl Stopper for Wish {
    fn stop(&self, how: Stop) {
        let signal = match how {
            Stop::Interrupt => Signal::Interrupt,
            Stop::Terminate => Signal::Terminate,
            Stop::Kill => Signal::Kill,
        };
        // A gate that is gone has ended everything already.
        let _ = write_frame(&*self.0, &Order::Signal(signal));
    }
}
