//! A run below a gate: read its pipes, and believe nothing about its end before the gate is buried, unless nobody but the
//! gate can have said it.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence_core::backend::{
    Door, Exit, ExitStatus, Happening, LaunchError, Limit, Sandbox, Staged, Stopper, Terminal,
};
use ringfence_core::event::Stream;
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::locations::Locations;
use ringfence_core::plan::{Request, Stdin, TerminalSize};
use ringfence_gate::{Order, Report, Spec, StartProblem, Status, WireError};
use ringfence_linux::{Preparation, StandIn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{ioctl_fionbio, ioctl_fionread};
use rustix::termios::{Winsize, tcsetwinsize};

use super::gate::Gate;
use super::hidden_notice;
use super::survey::{Survey, writes};
use crate::GateProgram;

/// How long a gate may take to start a program.
const START_PATIENCE: Duration = Duration::from_secs(15);
/// How long to wait for the rest of the output of a run that has ended. Only a stranger who was handed the pipe can
/// make it last.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// As much as is read at once.
const CHUNK: usize = 64 << 10;

/// Seconds after the timeout at which the gate ends a run whose host does not: enough for the host's own way.
const LAST_RESORT: u64 = 7;

/// What the gate is told of a request: the program where it is found, the directory where it is seen, and what to build
/// around it.
pub(crate) fn spec(request: &Request, program: &Path, cwd: &Path, sandbox: Option<Vec<u8>>) -> Spec {
    let limits = &request.policy.limits;
    let mut argv = request.argv.clone();
    if let Some(first) = argv.first_mut() {
        *first = program.display().to_string();
    }
    Spec {
        argv,
        env: request.env.clone(),
        cwd: cwd.to_owned(),
        memory_limit: limits.memory.map(|size| size.bytes()),
        process_limit: None,
        watched_memory: None,
        watched_processes: None,
        terminal: match request.stdin {
            Stdin::Terminal(TerminalSize { rows, columns }) => Some((rows, columns)),
            Stdin::Empty | Stdin::Inherit => None,
        },
        lifetime_ms: Some((limits.timeout_seconds.count() + LAST_RESORT) * 1000),
        sandbox,
    }
}

/// The ports at which a run comes to the broker. Without the broker nobody would serve the others either.
pub(crate) fn doors(request: &Request) -> Vec<u16> {
    request
        .door
        .iter()
        .flat_map(|door| [*door].into_iter().chain(request.policy.network.local.clone()))
        .collect()
}

/// A gate that waits for what to start.
pub(crate) struct Idle {
    gate: Gate,
    stdout: File,
    stderr: File,
    /// Whether the host has found the program where it is to be started.
    found: bool,
    /// Whether the program cannot reach the gate.
    out_of_reach: bool,
}

impl Idle {
    /// Starts a gate.
    pub(crate) fn new(gate: &GateProgram) -> Result<Self, LaunchError> {
        let started = Gate::start(gate);
        let (gate, stdout, stderr) = started.map_err(|error| broken("start the gate", &error))?;
        Ok(Self { found: true, ..Self::elsewhere(gate, stdout, stderr)? })
    }

    /// A gate in a root of its own, which prints there.
    pub(crate) fn elsewhere(gate: Gate, stdout: OwnedFd, stderr: OwnedFd) -> Result<Self, LaunchError> {
        for pipe in [&stdout, &stderr] {
            ioctl_fionbio(pipe, true).map_err(|error| broken("read its pipes", &error.into()))?;
        }
        Ok(Self { gate, stdout: stdout.into(), stderr: stderr.into(), found: false, out_of_reach: false })
    }

    /// The program will have no way to its gate, so that the gate's word can be believed before it has ended in order.
    pub(crate) fn out_of_reach(self) -> Self {
        Self { out_of_reach: true, ..self }
    }

    /// Tells it to make ready what does not depend on what is started.
    pub(crate) fn prepare(&self, preparation: &Preparation) -> Result<(), LaunchError> {
        let preparation = told(preparation)?;
        self.gate.send(&Order::Prepare(preparation), None).map_err(|error| lost(&error))
    }

    /// Tells it what is to be started, so that it makes all ready for it.
    pub(crate) fn build(self, spec: Spec, request: &Request) -> Result<Built, LaunchError> {
        let input = io::stdin();
        let input = (request.stdin == Stdin::Inherit).then(|| input.as_fd());
        self.gate.send(&Order::Build(spec), input).map_err(|error| lost(&error))?;
        let name = request.argv.first().cloned().unwrap_or_default();
        Ok(Built {
            idle: self,
            name,
            notices: Vec::new(),
            warnings: Vec::new(),
            locations: Vec::new(),
            hidden: BTreeSet::new(),
            stubs: Vec::new(),
            programs: Vec::new(),
        })
    }
}

/// A gate that needs but a word to start.
pub(crate) struct Built {
    idle: Idle,
    /// What people call the program.
    name: String,
    /// What a user should know of the workspace.
    notices: Vec<String>,
    /// Those of it that are said on standard error also where that is no terminal.
    warnings: Vec<String>,
    /// Where directories are in the trees that were scanned.
    locations: Vec<(PathBuf, Locations)>,
    /// What is hidden, and whether it is a directory.
    hidden: BTreeSet<(PathBuf, bool)>,
    /// The names that are reserved in the workspace.
    stubs: Vec<(PathBuf, Option<String>)>,
    /// Files that commands of git's configuration may lead to.
    programs: Vec<PathBuf>,
}

impl Built {
    /// The same, with what the scan of the workspace has found.
    pub(crate) fn with_survey(self, mut survey: Survey, request: &Request) -> Self {
        let locations = std::mem::take(&mut survey.locations);
        let is_reserved = writes(request) && request.layer.is_none();
        let missing = std::mem::take(&mut survey.missing).into_iter().filter(|_| is_reserved);
        let stubs = missing.map(|(path, kind)| match kind {
            StandIn::Directory => (path, None),
            StandIn::File(text) => (path, Some(text)),
        });
        let stubs = stubs.collect();
        let warnings = std::mem::take(&mut survey.warnings);
        let programs = std::mem::take(&mut survey.user_git.programs);
        let (notices, hidden) = hidden_notice::notices(survey, request);
        Self { notices, warnings, locations, hidden, stubs, programs, ..self }
    }
}

impl Staged for Built {
    fn notices(&self) -> Vec<String> {
        self.notices.clone()
    }

    fn warnings(&self) -> Vec<String> {
        self.warnings.clone()
    }

    fn locations(&mut self) -> Vec<(PathBuf, Locations)> {
        std::mem::take(&mut self.locations)
    }

    fn hidden(&mut self) -> Vec<PathBuf> {
        std::mem::take(&mut self.hidden).into_iter().map(|(path, _)| path).collect()
    }

    fn stubs(&mut self) -> Vec<(PathBuf, Option<String>)> {
        std::mem::take(&mut self.stubs)
    }

    fn programs(&mut self) -> Vec<PathBuf> {
        std::mem::take(&mut self.programs)
    }

    fn start(self: Box<Self>) -> Result<Box<dyn Sandbox>, LaunchError> {
        let Self { idle: Idle { gate, stdout, stderr, found, out_of_reach }, name, .. } = *self;
        gate.send(&Order::Start, None).map_err(|error| lost(&error))?;
        let mut report = gate.first_report(START_PATIENCE).map_err(|error| lost(&error))?;
        let mut doors = Vec::new();
        while let Some((Report::Door(port), listener)) = report {
            doors.extend(listener.map(|listener| (port, Door::Tcp(listener.into()))));
            report = gate.first_report(START_PATIENCE).map_err(|error| lost(&error))?;
        }
        let terminal = confirm(report, &name, found)?.map(File::from);
        let outer = terminal.as_ref().map(File::try_clone).transpose();
        let outer = outer.map_err(|error| broken("use its terminal", &error))?;
        if let Some(terminal) = &terminal {
            ioctl_fionbio(terminal, true).map_err(|error| broken("use its terminal", &error.into()))?;
        }
        // With a terminal nothing but the gate itself can write on the pipes.
        let (stdout, stderr) = (Some(terminal.unwrap_or(stdout)), Some(stderr));
        let at_terminal = outer.is_some();
        let turn = Stream::Stdout;
        Ok(Box::new(Run { gate, stdout, stderr, outer, at_terminal, out_of_reach, doors, end: None, turn }))
    }
}

/// Encodes what the gate passes on to the builder.
pub(crate) fn told(what: &impl serde::Serialize) -> Result<Vec<u8>, LaunchError> {
    ringfence_gate::encode(what).map_err(|error| {
        let message = format!("the sandbox cannot be told: {error}");
        LaunchError::Runtime(Failure::new(FailureClass::Unknown, message))
    })
}

fn broken(what: &str, error: &io::Error) -> LaunchError {
    LaunchError::Runtime(Failure::new(FailureClass::Unknown, format!("could not {what}: {error}")))
}

fn lost(error: &WireError) -> LaunchError {
    LaunchError::Runtime(Failure::new(FailureClass::Unknown, format!("lost the gate at the start: {error}")))
}

/// The outer end of the terminal, if the gate's first word is that the program runs.
fn confirm(
    report: Option<(Report, Option<OwnedFd>)>,
    program: &str,
    found: bool,
) -> Result<Option<OwnedFd>, LaunchError> {
    let (problem, message) = match report {
        Some((Report::Started { .. }, terminal)) => return Ok(terminal),
        Some((Report::CannotStart { problem, message }, _)) => (problem, message),
        Some((Report::Ended { .. } | Report::Door(_), _)) | None => {
            return Err(broken("start the gate", &ErrorKind::BrokenPipe.into()));
        }
    };
    let program = program.to_owned();
    Err(match problem {
        StartProblem::NotFound if !found => LaunchError::NotFound { program },
        // The program is there; what it begins with names something that is not.
        StartProblem::NotFound => LaunchError::NotExecutable {
            program,
            why: "the interpreter that it names is not there".to_owned(),
        },
        StartProblem::NotExecutable => LaunchError::NotExecutable { program, why: message },
        StartProblem::Other => LaunchError::Runtime(Failure::new(
            FailureClass::Unknown,
            format!("{program} could not be started: {message}"),
        )),
    })
}

struct Run {
    gate: Gate,
    stdout: Option<File>,
    stderr: Option<File>,
    /// The outer end of its terminal, to type on.
    outer: Option<File>,
    at_terminal: bool,
    /// Whether the gate's word needs no proof.
    out_of_reach: bool,
    /// Where it comes to the broker.
    doors: Vec<(u16, Door)>,
    end: Option<End>,
    /// Which stream is read first: each in turn, so that a loud one does not silence the other.
    turn: Stream,
}

/// The gate's last word.
#[derive(Clone, Copy)]
struct End {
    exit: Exit,
    rest: Rest,
}

/// What a run has printed and nobody has read yet.
#[derive(Clone, Copy)]
enum Rest {
    /// So many bytes on each pipe, however long it takes to read them: nobody is left who could print more.
    Known { stdout: usize, stderr: usize },
    /// What comes until then.
    Until(Instant),
}

/// What can be read.
struct Ready {
    stdout: bool,
    stderr: bool,
    report: bool,
    wish: bool,
}

impl Run {
    /// What can be read, until the given time.
    fn wait(&self, until: Instant) -> Ready {
        let timeout = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
        let watched = [
            self.stdout.as_ref().map(AsFd::as_fd),
            self.stderr.as_ref().map(AsFd::as_fd),
            self.end.is_none().then(|| self.gate.control()),
            self.end.is_none().then(|| self.gate.woken()),
        ];
        let mut entries: Vec<_> = watched
            .iter()
            .flatten()
            .map(|descriptor| PollFd::from_borrowed_fd(*descriptor, PollFlags::IN))
            .collect();
        // Interrupted or timed out: nothing is ready, and the caller looks at the clock.
        let polled = poll(&mut entries, timeout.as_ref()).is_ok();
        let mut ready = entries.iter().map(|entry| polled && !entry.revents().is_empty());
        let [stdout, stderr, report, wish] =
            watched.map(|descriptor| descriptor.is_some() && ready.next().unwrap_or(false));
        Ready { stdout, stderr, report, wish }
    }

    fn read_report(&mut self) -> Result<(), Failure> {
        match self.gate.report() {
            Ok(Some(Report::Ended { status, leftovers, survivors, limit })) => {
                let status = match status {
                    Status::Code(code) => ExitStatus::Code(code),
                    Status::Signal(signal) => ExitStatus::Signal(signal),
                };
                let limit = limit.map(|limit| match limit {
                    ringfence_gate::Limit::Time => Limit::Time,
                    ringfence_gate::Limit::Memory => Limit::Memory,
                    ringfence_gate::Limit::Processes => Limit::Processes,
                });
                let exit = Exit { status, leftovers, survivors, limit };
                self.end = Some(End { exit, rest: self.rest(survivors) });
                Ok(())
            }
            Ok(Some(_)) => Ok(()),
            // A run without its gate is over, and what is left of it is ended by the host.
            Ok(None) => {
                Err(self.gate.bury(false).fault.unwrap_or_else(|| nonsense("it went without a word")))
            }
            Err(error) => {
                self.gate.bury(false);
                Err(nonsense(&error.to_string()))
            }
        }
    }

    /// What a terminal has got it passes on in its own time; what is in a pipe is there.
    fn rest(&self, survivors: u32) -> Rest {
        let waiting = |pipe: &Option<File>| pipe.as_ref().map_or(Ok(0), ioctl_fionread);
        match (waiting(&self.stdout), waiting(&self.stderr)) {
            (Ok(stdout), Ok(stderr)) if survivors == 0 && !self.at_terminal => {
                Rest::Known { stdout: whole(stdout), stderr: whole(stderr) }
            }
            _ => Rest::Until(Instant::now() + LAST_WORDS),
        }
    }

    /// The end, once the gate is buried: one that did not end in order has not said its last word. Where nobody could have
    /// put words into its mouth the end may be written down meanwhile; who lets go of this run waits for the rest.
    fn conclude(&mut self, exit: Exit) -> Result<Happening, Failure> {
        if self.out_of_reach && exit.survivors == 0 {
            return Ok(Happening::Ended(exit));
        }
        let burial = self.gate.bury(true);
        if let Some(fault) = burial.fault {
            return Err(fault);
        }
        // Those whom the gate could not end have come to the host, or are nobody's.
        Ok(Happening::Ended(Exit { survivors: exit.survivors.min(burial.survivors), ..exit }))
    }

    /// What was printed before the end, of which there is so much on each pipe.
    fn read_rest(&mut self, mut stdout: usize, mut stderr: usize) -> Option<Happening> {
        let read = [
            (Stream::Stdout, &mut self.stdout, &mut stdout),
            (Stream::Stderr, &mut self.stderr, &mut stderr),
        ]
        .into_iter()
        .find_map(|(stream, pipe, rest)| {
            let bytes = if *rest > 0 { read_pipe(pipe, *rest) } else { None };
            *rest = bytes.as_ref().map_or(0, |bytes| *rest - bytes.len());
            Some(Happening::Output(stream, bytes?))
        });
        if let Some(end) = &mut self.end {
            end.rest = Rest::Known { stdout, stderr };
        }
        read
    }

    fn read(&mut self, ready: &Ready) -> Option<Happening> {
        for stream in [self.turn, other(self.turn)] {
            let bytes = match stream {
                Stream::Stdout if ready.stdout => read_pipe(&mut self.stdout, CHUNK),
                Stream::Stderr if ready.stderr => read_pipe(&mut self.stderr, CHUNK),
                _ => None,
            };
            if let Some(bytes) = bytes {
                self.turn = other(stream);
                return Some(Happening::Output(stream, bytes));
            }
        }
        None
    }
}

fn nonsense(why: &str) -> Failure {
    Failure::new(FailureClass::Unknown, format!("the gate speaks nonsense: {why}"))
}

fn other(stream: Stream) -> Stream {
    match stream {
        Stream::Stdout => Stream::Stderr,
        Stream::Stderr => Stream::Stdout,
    }
}

fn whole(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

/// Some output, or `None` at its end or when there is none yet; at the end the pipe is closed.
fn read_pipe(pipe: &mut Option<File>, most: usize) -> Option<Vec<u8>> {
    let mut buffer = vec![0; most.min(CHUNK)];
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
                Some(End { exit, rest: Rest::Known { stdout, stderr } }) => {
                    return match self.read_rest(stdout, stderr) {
                        Some(output) => Ok(output),
                        None => self.conclude(exit),
                    };
                }
                Some(End { exit, rest: Rest::Until(last_words) }) => {
                    let silent = self.stdout.is_none() && self.stderr.is_none();
                    if silent || Instant::now() >= last_words {
                        return self.conclude(exit);
                    }
                    last_words
                }
                None => until,
            };
            let ready = self.wait(until);
            if ready.report {
                self.read_report()?;
            }
            if let Some(output) = self.read(&ready) {
                return Ok(output);
            }
            if ready.wish {
                self.gate.hear();
                return Ok(Happening::Nothing);
            }
            if self.end.is_none() && Instant::now() >= until {
                return Ok(Happening::Nothing);
            }
        }
    }

    fn clear(&mut self) -> Option<Failure> {
        self.gate.bury(true).fault
    }

    fn stopper(&self) -> Arc<dyn Stopper> {
        self.gate.stopper()
    }

    fn doors(&mut self) -> Vec<(u16, Door)> {
        std::mem::take(&mut self.doors)
    }

    fn terminal(&mut self) -> Option<Box<dyn Terminal>> {
        self.outer.take().map(|outer| Box::new(Outer(outer)) as Box<dyn Terminal>)
    }
}

/// The outer end of a terminal.
struct Outer(File);

impl Terminal for Outer {
    fn type_in(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.0.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                // It is full until the program reads.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    poll(&mut [PollFd::new(&self.0, PollFlags::OUT)], None)?;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn resize(&mut self, TerminalSize { rows, columns }: TerminalSize) -> io::Result<()> {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(tcsetwinsize(&self.0, size)?)
    }
}

/// Why a workspace cannot be locked. Another run may have taken the user's rights to one below its own, or have put another
/// directory in its place, and any process that can read one can lock it.
pub(crate) fn not_locked(workspace: &Path, error: &io::Error) -> LaunchError {
    let path = workspace.display();
    let cannot = |class| Failure::new(class, format!("{path} cannot be locked: {error}"));
    LaunchError::Runtime(match error.kind() {
        io::ErrorKind::InvalidInput => {
            let message = format!("{path} is not the directory that it was when the work was accepted");
            Failure::new(FailureClass::Refused, message)
        }
        io::ErrorKind::PermissionDenied => cannot(FailureClass::Refused)
            .with_remedy("give yourself the rights to it: `chmod u+rwx` on that directory"),
        io::ErrorKind::WouldBlock => cannot(FailureClass::Unknown)
            .with_remedy("end that process, or keep other users out: `chmod o-rx` on that directory"),
        _ => cannot(FailureClass::Unknown),
    })
}
