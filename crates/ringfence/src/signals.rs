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

/// Whoever watches a run, and hears signals once it runs: a thread takes time that the start of a run has not.
pub(crate) struct Hearing<'a> {
    pub(crate) observer: &'a mut dyn Observer,
    pub(crate) signals: Option<Signals>,
    pub(crate) cancel: &'a Cancel,
}

impl Observer for Hearing<'_> {
    fn started(&mut self) -> io::Result<()> {
        if let Some(signals) = self.signals.take() {
            cancel_on(signals, self.cancel.clone())?;
        }
        self.observer.started()
    }

    fn event(&mut self, event: &Event) -> io::Result<()> {
        if let Event::Result(_) = event {
            terminal::end_questions();
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
        self.observer.raw(stream, bytes)
    }

    fn terminal(&mut self, terminal: Box<dyn Terminal>) {
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
