//! Standard output and standard error while the user is asked something.
//!
//! Everything that is printed goes through [`print`]. While a question is open it is held, so that nothing that a run prints can
//! cover the question, or stand between it and its answer.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ringfence_core::event::Stream;

/// Output that is held at once. Who prints more waits for the answer.
const MAX_HELD_BYTES: usize = 1 << 20;

static SCREEN: Screen = Screen::new();

/// Writes bytes to a stream, or holds them while a question is open. Who has to wait for the answer waits until `deadline`.
pub(crate) fn print(
    stream: Stream,
    bytes: &[u8],
    deadline: Option<Instant>,
    write: impl FnMut(Stream, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    SCREEN.print(stream, bytes, deadline, write)
}

/// Holds what is printed from now on. `None` if the run is over, so there is nothing to ask any more.
pub(crate) fn open_question() -> Option<Question> {
    SCREEN.open().then_some(Question { screen: &SCREEN })
}

/// The run is over: a question that is still open is void, and none is opened after it. Returns whether one was open.
pub(crate) fn end_questions(write: impl FnMut(Stream, &[u8]) -> io::Result<()>) -> bool {
    SCREEN.end(write)
}

/// A question that is open.
pub(crate) struct Question {
    screen: &'static Screen,
}

impl Question {
    /// Closes it: calls `conclude` unless the question is void, and then prints what was held.
    pub(crate) fn close(self, conclude: impl FnOnce(), write: impl FnMut(Stream, &[u8]) -> io::Result<()>) {
        self.screen.close(conclude, write);
    }
}

struct Screen {
    state: Mutex<State>,
    answered: Condvar,
}

struct State {
    is_asking: bool,
    is_over: bool,
    held: Vec<(Stream, Vec<u8>)>,
    held_bytes: usize,
}

impl Screen {
    const fn new() -> Self {
        let state = State { is_asking: false, is_over: false, held: Vec::new(), held_bytes: 0 };
        Self { state: Mutex::new(state), answered: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn print(
        &self,
        stream: Stream,
        bytes: &[u8],
        deadline: Option<Instant>,
        mut write: impl FnMut(Stream, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut state = self.state();
        while state.is_asking {
            if state.held_bytes + bytes.len() <= MAX_HELD_BYTES {
                state.hold(stream, bytes);
                return Ok(());
            }
            let left = deadline.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            state = self.answered.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        // Under the lock: a question does not begin in the middle of a message.
        write(stream, bytes)
    }

    fn open(&self) -> bool {
        let mut state = self.state();
        state.is_asking = !state.is_over;
        state.is_asking
    }

    fn close(&self, conclude: impl FnOnce(), write: impl FnMut(Stream, &[u8]) -> io::Result<()>) {
        let mut state = self.state();
        if state.is_asking {
            conclude();
            self.release(&mut state, write);
        }
    }

    fn end(&self, write: impl FnMut(Stream, &[u8]) -> io::Result<()>) -> bool {
        let mut state = self.state();
        state.is_over = true;
        let was_asking = state.is_asking;
        self.release(&mut state, write);
        was_asking
    }

    fn release(&self, state: &mut State, mut write: impl FnMut(Stream, &[u8]) -> io::Result<()>) {
        for (stream, bytes) in std::mem::take(&mut state.held) {
            // A reader that is gone is noticed by the next who prints.
            let _ = write(stream, &bytes);
        }
        (state.held_bytes, state.is_asking) = (0, false);
        self.answered.notify_all();
    }
}

impl State {
    fn hold(&mut self, stream: Stream, bytes: &[u8]) {
        self.held_bytes += bytes.len();
        match self.held.last_mut() {
            Some((last, held)) if *last == stream => held.extend_from_slice(bytes),
            _ => self.held.push((stream, bytes.to_vec())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::{Duration, Instant};

    use ringfence_core::event::Stream;

    use super::{MAX_HELD_BYTES, Screen};

    /// Prints on a screen whose text is kept.
    fn print(screen: &Screen, shown: &Mutex<String>, text: &str) -> std::io::Result<()> {
        let deadline = Some(Instant::now() + Duration::from_millis(50));
        screen.print(Stream::Stdout, text.as_bytes(), deadline, |_, bytes| {
            shown.lock().unwrap().push_str(&String::from_utf8_lossy(bytes));
            Ok(())
        })
    }

    fn close(screen: &Screen, shown: &Mutex<String>) {
        let show = |text: &str| shown.lock().unwrap().push_str(text);
        screen.close(
            || show("answer "),
            |_, bytes| {
                show(&String::from_utf8_lossy(bytes));
                Ok(())
            },
        );
    }

    #[test]
    fn output_during_a_question_follows_its_answer() {
        let (screen, shown) = (Screen::new(), Mutex::default());
        print(&screen, &shown, "before ").unwrap();
        assert!(screen.open());
        print(&screen, &shown, "during ").unwrap();
        assert_eq!(*shown.lock().unwrap(), "before ");
        close(&screen, &shown);
        print(&screen, &shown, "after").unwrap();
        assert_eq!(*shown.lock().unwrap(), "before answer during after");
    }

    #[test]
    fn more_than_is_held_waits_for_the_answer() {
        let (screen, shown) = (Screen::new(), Mutex::default());
        let much = "x".repeat(MAX_HELD_BYTES);
        assert!(screen.open());
        print(&screen, &shown, &much).unwrap();
        assert_eq!(print(&screen, &shown, "y").unwrap_err().kind(), std::io::ErrorKind::TimedOut);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                screen.print(Stream::Stdout, b"z", None, |_, _| {
                    shown.lock().unwrap().push('z');
                    Ok(())
                })
            });
            close(&screen, &shown);
            waits.join().unwrap().unwrap();
        });
        assert_eq!(*shown.lock().unwrap(), format!("answer {much}z"));
    }

    #[test]
    fn question_is_void_once_the_run_is_over() {
        let (screen, shown) = (Screen::new(), Mutex::default());
        assert!(screen.open());
        print(&screen, &shown, "held").unwrap();
        let end = |screen: &Screen| {
            screen.end(|_, bytes| {
                shown.lock().unwrap().push_str(&String::from_utf8_lossy(bytes));
                Ok(())
            })
        };
        assert!(end(&screen));
        close(&screen, &shown);
        assert_eq!(*shown.lock().unwrap(), "held", "an answer that is too late says nothing");
        assert!(!screen.open() && !end(&screen));
    }
}
