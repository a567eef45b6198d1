//! The gate's one loop: orders from the host, ends of children, until nothing is left.
//!
//! ```text
//!   waiting for Build, Start ──▶ running ──(program ended)──▶ ending: TERM, a grace, KILL ──▶ Ended
//!                                   │ host gone, KILL asked for, time or memory used up  ▲
//!                                   └────────────────────────────────────────────────────┘ without the grace
//! ```

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    DumpableBehavior, Pid, Signal as Unix, getpid, set_child_subreaper, set_dumpable_behavior,
    set_parent_process_death_signal, setsid,
};

use crate::family::{Census, Reaped, reap};
use crate::spawn::{Spawned, Spawner, StartFailure};
use crate::wire::{
    Limit, Order, Report, Signal, Spec, Status, Stream, WireError, read_frame, receive, send, write_frame,
};

/// How long those who are left behind get to end by themselves.
const GRACE: Duration = Duration::from_secs(1);
/// How often to look again for processes that were born while others were being ended.
const AGAIN: Duration = Duration::from_millis(20);
/// How long to go on killing before those who cannot be killed are reported. Only a process with more rights than
/// the gate, or one stuck in the kernel, lasts so long.
const KILLING: Duration = Duration::from_secs(5);
/// How long to wait for the rest of a message.
const WIRE_PATIENCE: Duration = Duration::from_secs(1);
/// How often memory and processes are looked at, if they are bounded.
const LOOK: Duration = Duration::from_millis(100);
/// How often the gate looks whether a run has passed a limit that it has by default.
const WATCH_INTERVAL: Duration = Duration::from_millis(500);

/// Why the gate gave up. The host is told by the end of the socket, and ends what is left.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// The system refused something that the gate cannot work without.
    #[error("the gate could not {0}")]
    System(&'static str, #[source] io::Error),
    /// The host does not speak the gate's language.
    #[error("the gate was started by something else than ringfence")]
    Wire(#[from] WireError),
    /// The kernel does not let the first process of a sandbox go.
    #[error("the first process of the sandbox does not end")]
    Stuck,
    /// The host has left, or believes that it has heard the end: nothing that came from the gate. Everything is ended.
    #[error("nobody hears how the run has ended")]
    Unheard,
    /// Somebody sent the gate a signal to end. Everything is ended.
    #[error("the gate was told to end by somebody else than ringfence")]
    Told,
}

/// Runs the gate on its standard input. Returns when nothing of the run is left.
pub fn run(spawner: &mut dyn Spawner) -> Result<(), GateError> {
    let input = io::stdin().as_fd().try_clone_to_owned();
    let host = UnixStream::from(input.map_err(|error| GateError::System("read its input", error))?);
    serve(host, spawner)
}

/// The same for a gate that somebody else has started, as the first process of a container: the host listens there.
pub fn run_at(socket: &Path, spawner: &mut dyn Spawner) -> Result<(), GateError> {
    let host = UnixStream::connect(socket);
    serve(host.map_err(|error| GateError::System("reach the host", error))?, spawner)
}

fn serve(host: UnixStream, spawner: &mut dyn Spawner) -> Result<(), GateError> {
    let system = |what| move |error: rustix::io::Errno| GateError::System(what, error.into());
    // Processes of runs are known by the name above them, so every gate has it, however it was started.
    rustix::thread::set_name(c"ringfence-gate").map_err(system("take its name"))?;
    // Nobody of the same user may take the gate's descriptors or memory.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(system("shut itself off"))?;
    // A gate that was stopped goes on when the host dies, and finds its socket closed.
    set_parent_process_death_signal(Some(Unix::CONT)).map_err(system("follow the host"))?;
    // Already leading a session is fine: that is all that is wanted.
    let _ = setsid();
    let Some((spec, stdin)) = receive_spec(&host, spawner)? else { return Ok(()) };
    let (lifetime_ms, memory, processes) = (spec.lifetime_ms, spec.memory_limit, spec.process_limit);
    let watched = (spec.watched_memory, spec.watched_processes);
    spawner.build(spec, stdin);
    set_child_subreaper(Some(getpid())).map_err(system("adopt orphans"))?;
    let deaths = signal_pipe(&[signal_hook::consts::SIGCHLD])?;
    let ends = signal_pipe(&[
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGHUP,
    ])?;
    if !matches!(receive(&host)?, Some((Order::Start, _))) {
        return Ok(());
    }
    // A message comes whole or the other side has lost its way; nobody waits for the rest of one.
    let patience = host.set_read_timeout(Some(WIRE_PATIENCE));
    patience.map_err(|error| GateError::System("set up its socket", error))?;
    match spawner.start() {
        Err(StartFailure { problem, message }) => {
            write_frame(&host, &Report::CannotStart { problem, message })?;
            Ok(())
        }
        Ok(Spawned { pid: program, terminal, doors }) => {
            // A host that is gone cannot be told; the loop notices by itself.
            for (port, door) in doors {
                let _ = send(&host, &Report::Door(port), Some(door.as_fd()));
            }
            let started = Report::Started { pid: program.as_raw_nonzero().get().unsigned_abs() };
            let _ = send(&host, &started, terminal.as_ref().map(AsFd::as_fd));
            drop(terminal);
            let deadline = lifetime_ms.map(|ms| Instant::now() + Duration::from_millis(ms));
            let watch = Watch {
                silent: spawner.line().is_none(),
                spawner,
                host,
                deaths,
                ends,
                program,
                deadline,
                memory,
                processes,
                watched,
                full: false,
                status: None,
            };
            watch.until_nothing_is_left()
        }
    }
}

fn signal_pipe(signals: &[i32]) -> Result<UnixStream, GateError> {
    let system = |error| GateError::System("listen to signals", error);
    let (read, write) = UnixStream::pair().map_err(system)?;
    read.set_nonblocking(true).map_err(system)?;
    for signal in signals {
        let end = write.try_clone().map_err(system)?;
        signal_hook::low_level::pipe::register(*signal, end).map_err(system)?;
    }
    Ok(read)
}

/// What is to be started, and what it reads. A host that is gone or says anything else wants nothing started.
fn receive_spec(
    host: &UnixStream,
    spawner: &mut dyn Spawner,
) -> Result<Option<(Spec, Option<OwnedFd>)>, GateError> {
    loop {
        match receive(host)? {
            Some((Order::Print(stream), Some(there))) => {
                print_to(stream, &there).map_err(|error| GateError::System("print", error.into()))?;
            }
            Some((Order::Prepare(what), _)) => spawner.prepare(&what),
            Some((Order::Build(spec), stdin)) => return Ok(Some((spec, stdin))),
            Some((Order::Signal(_) | Order::Start | Order::Print(_), _)) | None => return Ok(None),
        }
    }
}

fn print_to(stream: Stream, there: &OwnedFd) -> rustix::io::Result<()> {
    match stream {
        Stream::Stdout => rustix::stdio::dup2_stdout(there),
        Stream::Stderr => rustix::stdio::dup2_stderr(there),
    }
}

struct Watch<'a> {
    spawner: &'a mut dyn Spawner,
    host: UnixStream,
    deaths: UnixStream,
    ends: UnixStream,
    program: Pid,
    /// When the run is over, whatever the host does meanwhile.
    deadline: Option<Instant>,
    /// Bytes that all processes together may hold.
    memory: Option<u64>,
    /// Threads that there may be, and whether there were so many. The kernel refuses more and does not tell.
    processes: Option<u32>,
    /// Bytes and threads after which the gate ends the run.
    watched: (Option<u64>, Option<u32>),
    full: bool,
    /// Whether the program has said its last word.
    silent: bool,
    status: Option<Status>,
}

enum Wake {
    /// The first process has said how the program ended, and goes.
    LastWord,
    Death,
    HostSpoke,
    AskedToEnd,
    Time,
}

/// How a run was brought to its end.
#[derive(Default)]
struct Ending {
    leftovers: u32,
    limit: Option<Limit>,
}

impl Watch<'_> {
    fn until_nothing_is_left(mut self) -> Result<(), GateError> {
        let mut left = self.reap()?;
        while self.status.is_none() {
            match self.wait(self.next_look())? {
                Wake::LastWord => return self.see_out(),
                Wake::Death => left = self.reap()?,
                Wake::HostSpoke => match read_frame::<Order>(&self.host) {
                    Ok(Some(Order::Signal(Signal::Interrupt))) => drop(self.signal(Unix::INT)?),
                    Ok(Some(Order::Signal(Signal::Terminate))) => drop(self.signal(Unix::TERM)?),
                    // Killed, gone, or out of order.
                    Ok(_) | Err(_) => return self.kill_all(Ending::default()),
                },
                Wake::AskedToEnd => {
                    self.kill()?;
                    return Err(GateError::Told);
                }
                Wake::Time => {
                    if let Some(limit) = self.used_up()? {
                        return self.kill_all(Ending { leftovers: 0, limit: Some(limit) });
                    }
                }
            }
        }
        match left {
            Reaped::NoneLeft => self.conclude(&Ending::default(), 0),
            Reaped::SomeLeft => self.end_leftovers(),
        }
    }

    /// How long to wait if nothing happens; without limits, for ever.
    fn next_look(&self) -> Option<Duration> {
        let time = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let bounded = self.memory.is_some() || self.processes.is_some();
        let watched = self.watched != (None, None);
        time.into_iter().chain(bounded.then_some(LOOK)).chain(watched.then_some(WATCH_INTERVAL)).min()
    }

    /// The limit that was passed, if one was.
    fn used_up(&mut self) -> Result<Option<Limit>, GateError> {
        if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Ok(Some(Limit::Time));
        }
        if self.memory.is_none() && self.processes.is_none() && self.watched == (None, None) {
            return Ok(None);
        }
        let census = take_census()?;
        let family = census.below(me());
        self.full |= self.processes.is_some_and(|most| census.threads(&family) >= most);
        let (memory, processes) = self.watched;
        if processes.is_some_and(|most| census.threads(&family) > most) {
            return Ok(Some(Limit::Processes));
        }
        let memory = self.memory.into_iter().chain(memory).min();
        Ok(memory.is_some_and(|most| census.memory(&family) > most).then_some(Limit::Memory))
    }

    /// Tells the host before the last of all ends, which takes the kernel a while: the host has something to do meanwhile.
    ///
    /// Stub files are removed after it: while the sandbox has mounts on them, the kernel waits for all its readers of mounts with
    /// each one that is removed.
    fn see_out(mut self) -> Result<(), GateError> {
        let heard = self.report(&Ending::default(), 0);
        let deadline = Instant::now() + KILLING;
        while let Some(rest) = deadline.checked_duration_since(Instant::now()) {
            if let Reaped::NoneLeft = self.reap()? {
                self.spawner.clear();
                return heard;
            }
            self.wait_for_deaths(rest)?;
        }
        match self.kill()? {
            0 => heard,
            _ => Err(GateError::Stuck),
        }
    }

    fn end_leftovers(mut self) -> Result<(), GateError> {
        let ending = Ending { leftovers: self.signal(Unix::TERM)?, limit: None };
        let deadline = Instant::now() + GRACE;
        while let Some(rest) = deadline.checked_duration_since(Instant::now()) {
            if let Reaped::NoneLeft = self.reap()? {
                return self.conclude(&ending, 0);
            }
            match self.wait(Some(rest))? {
                Wake::Death | Wake::Time | Wake::LastWord => {}
                Wake::HostSpoke | Wake::AskedToEnd => break,
            }
        }
        self.kill_all(ending)
    }

    fn kill_all(mut self, ending: Ending) -> Result<(), GateError> {
        let survivors = self.kill()?;
        self.conclude(&ending, survivors)
    }

    /// Kills until nothing is left, or those who are left cannot be killed: so many.
    fn kill(&mut self) -> Result<u32, GateError> {
        let deadline = Instant::now() + KILLING;
        loop {
            let living = self.signal(Unix::KILL)?;
            if let Reaped::NoneLeft = self.reap()? {
                return Ok(0);
            }
            if Instant::now() >= deadline {
                return Ok(living.max(1));
            }
            self.wait_for_deaths(AGAIN)?;
        }
    }

    /// Only deaths matter at the end; the host's socket may be closed and would wake every wait.
    fn wait_for_deaths(&mut self, most: Duration) -> Result<(), GateError> {
        poll_until(&mut [PollFd::from_borrowed_fd(self.deaths.as_fd(), PollFlags::IN)], Some(most))?;
        drain(&mut self.deaths);
        Ok(())
    }

    /// When the host hears of the end nothing of the run stands in anybody's way.
    fn conclude(&mut self, ending: &Ending, survivors: u32) -> Result<(), GateError> {
        self.spawner.clear();
        self.report(ending, survivors)
    }

    /// The host may be gone, or have believed somebody else; then this is no end in order.
    fn report(&mut self, ending: &Ending, survivors: u32) -> Result<(), GateError> {
        let status = self.spawner.last_word().or(self.status).unwrap_or(Status::Signal(9));
        let Ending { leftovers, limit } = *ending;
        // A run that got over what it was refused has nothing to complain of.
        let in_vain = || self.spawner.exhausted().or_else(|| self.full.then_some(Limit::Processes));
        let limit = limit.or_else(|| in_vain().filter(|_| status != Status::Code(0)));
        let ended = Report::Ended { status, leftovers, survivors, limit };
        write_frame(&self.host, &ended).map_err(|_| GateError::Unheard)
    }

    fn signal(&self, signal: Unix) -> Result<u32, GateError> {
        let census = take_census()?;
        Ok(census.signal(&census.below(me()), me(), signal))
    }

    fn reap(&mut self) -> Result<Reaped, GateError> {
        let program = self.program;
        let status = &mut self.status;
        reap(|pid, ended| {
            if pid == program {
                *status = Some(ended);
            }
        })
        .map_err(|error| GateError::System("wait for its children", error))
    }

    fn wait(&mut self, most: Option<Duration>) -> Result<Wake, GateError> {
        let ready = {
            let last = self.spawner.line().filter(|_| !self.silent).unwrap_or(self.deaths.as_fd());
            let mut watched = [self.deaths.as_fd(), self.ends.as_fd(), self.host.as_fd(), last]
                .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN));
            poll_until(&mut watched, most)?;
            watched.map(|entry| !entry.revents().is_empty())
        };
        if let [.., true] = ready
            && !self.silent
        {
            self.silent = true;
            if self.spawner.last_word().is_some() && self.spawner.ends_all() {
                return Ok(Wake::LastWord);
            }
        }
        Ok(match ready {
            [true, ..] => {
                drain(&mut self.deaths);
                Wake::Death
            }
            [_, true, ..] => {
                drain(&mut self.ends);
                Wake::AskedToEnd
            }
            [_, _, true, _] => Wake::HostSpoke,
            _ => Wake::Time,
        })
    }
}

fn me() -> i32 {
    getpid().as_raw_nonzero().get()
}

fn take_census() -> Result<Census, GateError> {
    Census::take().map_err(|error| GateError::System("look for its processes", error))
}

fn poll_until(watched: &mut [PollFd<'_>], most: Option<Duration>) -> Result<(), GateError> {
    let most = most.and_then(|most| Timespec::try_from(most).ok());
    match poll(watched, most.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(GateError::System("wait", error.into())),
    }
}

/// The pipe only wakes; how often it was written does not matter.
fn drain(pipe: &mut UnixStream) {
    let mut bytes = [0; 64];
    while matches!(pipe.read(&mut bytes), Ok(count) if count > 0) {}
}
