//! A person at the terminal of a run: their own terminal is raw while it lasts, and as it was afterwards.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use ringfence_core::backend::Terminal;
use ringfence_core::event::{Event, Stream};
use ringfence_core::plan::TerminalSize;
use ringfence_engine::Observer;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::stdio::{stdin, stdout};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use signal_hook::consts::{SIGCONT, SIGTSTP, SIGWINCH};

use crate::render::Through;
use crate::terminal;

/// How large the person's terminal is.
pub(crate) fn size() -> TerminalSize {
    tcgetwinsize(stdout()).map_or(TerminalSize { rows: 24, columns: 80 }, |size| TerminalSize {
        rows: size.ws_row,
        columns: size.ws_col,
    })
}

/// Whether standard input is closed or `/dev/null`.
pub(crate) fn is_nothing() -> bool {
    let Ok(data) = rustix::fs::fstat(stdin()) else { return true };
    let is_device = rustix::fs::FileType::from_raw_mode(data.st_mode).is_char_device();
    is_device && rustix::fs::stat("/dev/null").is_ok_and(|null| null.st_rdev == data.st_rdev)
}

/// From now on standard input is a pipe into which goes what is read or typed. A run gets no descriptor of the caller: it could
/// write to a pipe that a shell reads its commands from, connect a socket elsewhere, or change the permissions of a file.
pub(crate) fn relay() -> io::Result<()> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let mut keyboard = std::fs::File::from(rustix::io::fcntl_dupfd_cloexec(stdin(), 3)?);
    rustix::stdio::dup2_stdin(&read)?;
    let mut write = std::fs::File::from(write);
    std::thread::Builder::new().name("typing".into()).spawn(move || pass_on(&mut keyboard, &mut write))?;
    Ok(())
}

/// Copies until there is no more. [`io::copy`] would have the kernel do it, which keeps the pipe locked while it waits: whoever
/// opens `/dev/stdin` inside would wait too.
fn pass_on(from: &mut impl Read, to: &mut impl Write) {
    let mut buffer = [0; 16 << 10];
    loop {
        match from.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(count) if count > 0 && to.write_all(&buffer[..count]).is_ok() => {}
            _ => return,
        }
    }
}

/// The person's terminal, and how it was.
struct Own {
    before: Termios,
    raw: Mutex<bool>,
}

impl Own {
    fn new() -> io::Result<Self> {
        Ok(Self { before: tcgetattr(stdin())?, raw: Mutex::new(false) })
    }

    /// Every key goes to the run, also Ctrl-C.
    fn set_raw(&self) {
        let mut raw = self.raw.lock().unwrap_or_else(PoisonError::into_inner);
        let mut settings = self.before.clone();
        settings.make_raw();
        *raw = tcsetattr(stdin(), OptionalActions::Now, &settings).is_ok();
        terminal::set_raw(*raw);
    }

    fn restore(&self) {
        let mut raw = self.raw.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut *raw) {
            // What was typed and not read is not for the shell.
            let _ = tcsetattr(stdin(), OptionalActions::Flush, &self.before);
            terminal::set_raw(false);
        }
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.restore();
    }
}

/// Shows a run on the person's terminal and types what they type.
pub(crate) struct AtTerminal {
    own: Arc<Own>,
}

impl AtTerminal {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { own: Arc::new(Own::new()?) })
    }
}

/// A run that ends without a result leaves its terminal as it was, too. The thread that types goes on until this process ends.
impl Drop for AtTerminal {
    fn drop(&mut self) {
        self.own.restore();
    }
}

impl Observer for AtTerminal {
    fn event(&mut self, event: &Event) -> io::Result<()> {
        if let Event::Result(_) = event {
            self.own.restore();
        }
        Through::default().event(event)
    }

    fn warning(&mut self, message: &str) {
        Through::default().warning(message);
    }

    fn raw(&mut self, _: Stream, bytes: &[u8]) -> io::Result<()> {
        terminal::pass_on(Stream::Stdout, bytes)
    }

    fn terminal(&mut self, run: Box<dyn Terminal>) {
        let own = self.own.clone();
        let hands = signals().and_then(|signals| {
            own.set_raw();
            let hands = Hands { own: own.clone(), run, signals };
            std::thread::Builder::new().name("typing".into()).spawn(|| hands.work())
        });
        if let Err(error) = hands {
            own.restore();
            terminal::about(format!("ringfence: nothing can be typed: {error}"));
        }
    }
}

/// Wakes at what happens to the window and to this process. The byte that is written is no matter: all is looked at.
fn signals() -> io::Result<Signals> {
    let pipe = |signal| {
        let (read, write) = UnixStream::pair()?;
        signal_hook::low_level::pipe::register(signal, write)?;
        io::Result::Ok(read)
    };
    Ok(Signals { window: pipe(SIGWINCH)?, stop: pipe(SIGTSTP)?, go_on: pipe(SIGCONT)? })
}

struct Signals {
    window: UnixStream,
    stop: UnixStream,
    go_on: UnixStream,
}

struct Hands {
    own: Arc<Own>,
    run: Box<dyn Terminal>,
    signals: Signals,
}

impl Hands {
    /// Until nothing can be typed any more.
    fn work(mut self) {
        let _ = self.run.resize(size());
        let mut keys = [0; 4096];
        loop {
            let mut watched = [
                PollFd::from_borrowed_fd(stdin(), PollFlags::IN),
                PollFd::new(&self.signals.window, PollFlags::IN),
                PollFd::new(&self.signals.stop, PollFlags::IN),
                PollFd::new(&self.signals.go_on, PollFlags::IN),
            ];
            match poll(&mut watched, None) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return,
                Ok(_) => {}
            }
            let [typed, window, stop, go_on] = watched.map(|entry| !entry.revents().is_empty());
            if stop {
                heard(&mut self.signals.stop);
                self.own.restore();
                let _ = signal_hook::low_level::emulate_default_handler(SIGTSTP);
            }
            if go_on {
                heard(&mut self.signals.go_on);
                self.own.set_raw();
            }
            if window || go_on {
                if window {
                    heard(&mut self.signals.window);
                }
                let _ = self.run.resize(size());
            }
            if typed {
                // Past the buffer of the standard library, which could keep what the next look does not see.
                match rustix::io::read(stdin(), &mut keys) {
                    Ok(count) if count > 0 && self.run.type_in(&keys[..count]).is_ok() => {}
                    _ => return,
                }
            }
        }
    }
}

fn heard(pipe: &mut UnixStream) {
    let _ = pipe.read(&mut [0; 64]);
}
