//! Ctrl-C and its kin: the first asks the whole run to end, the second ends it.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use ringfence_core::backend::{Stop, Terminal};
use ringfence_core::event::{Event, Stream};
use ringfence_core::failure::Failure;
use ringfence_engine::{Cancel, Observer};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::terminal;

/// Signals that have come since it was made.
pub(crate) struct Signals(UnixStream);

impl Signals {
    /// From now on signals are kept. `interrupted` is set at once, for work that does not wait for anything.
    pub(crate) fn catch(interrupted: &Arc<AtomicBool>) -> io::Result<Self> {
        let (wait, wake) = UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(interrupted))?;
            signal_hook::low_level::pipe::register(signal, wake.try_clone()?)?;
        }
        Ok(Self(wait))
    }
}

/// Watches a run for another observer, and hears signals as soon as the run prints something or goes on for a while: a thread takes
/// time that a short run has not. A signal that comes before is kept until then.
pub(crate) struct Hearing<'a> {
    observer: &'a mut dyn Observer,
    signals: Option<Signals>,
    cancel: &'a Cancel,
    /// Whether the program was started.
    runs: bool,
}

impl<'a> Hearing<'a> {
    /// Hears these signals for a run.
    pub(crate) fn new(observer: &'a mut dyn Observer, signals: Signals, cancel: &'a Cancel) -> Self {
        Self { observer, signals: Some(signals), cancel, runs: false }
    }

    /// From now on signals cancel the run.
    fn listen(&mut self) -> io::Result<()> {
        match self.signals.take() {
            Some(signals) => cancel_on(signals, self.cancel.clone()),
            None => Ok(()),
        }
    }
}

impl Observer for Hearing<'_> {
    fn started(&mut self) -> io::Result<()> {
        self.runs = true;
        self.observer.started()
    }

    fn goes_on(&mut self) -> io::Result<()> {
        self.listen()?;
        self.observer.goes_on()
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        match event {
            Event::Result(_) => terminal::end_questions(),
            // Whoever reads the events may make this one wait.
            _ if self.runs => self.listen()?,
            _ => {}
        }
        self.observer.event(event)
    }

    fn warning(&mut self, message: &str) {
        self.observer.warning(message);
    }

    fn unkept(&mut self, failure: &Failure) {
        self.observer.unkept(failure);
    }

    fn raw(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        self.listen()?;
        self.observer.raw(stream, bytes)
    }

    fn terminal(&mut self, terminal: Box<dyn Terminal>) {
        // Without a thread the signals are heard when the run has lasted for a while.
        let _ = self.listen();
        self.observer.terminal(terminal);
    }
}

/// Any signal cancels the run.
fn cancel_on(Signals(mut wait): Signals, cancel: Cancel) -> io::Result<()> {
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let mut byte = [0];
        if wait.read_exact(&mut byte).is_ok() {
            cancel.request(Stop::Interrupt);
            terminal::end_questions();
            // Saying so comes second, and may fail: the terminal may be what has gone.
            terminal::about("\nringfence: ending the run and all that it started (again to kill it at once)");
            // The engine waits only so long; a second signal does not wait at all.
            while wait.read_exact(&mut byte).is_ok() {
                cancel.request(Stop::Kill);
            }
        }
    })?;
    Ok(())
}
