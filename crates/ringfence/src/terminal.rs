//! Writing for users and for pipes. A reader that has closed its end is no error; a full disk is.
//!
//! Text of a run is cleaned where it becomes a failure, an event or a result (`ringfence_core::text`). Everything that is printed
//! here is cleaned once more: only colours pass, so names and messages from elsewhere cannot steer the terminal either. Output of a
//! program that the user asked for as it is goes through [`raw`].

use std::cell::LazyCell;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

use anstream::{AutoStream, ColorChoice, adapter::strip_str};
use ringfence_core::event::Stream;
use ringfence_core::text::{PlainText, for_terminal, json_for_terminal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use crate::screen;

/// The first reason for which something could not be printed.
static UNPRINTED: OnceLock<String> = OnceLock::new();

/// Until when to wait for a reader. Who shows a run does not outlast it.
static DEADLINE: OnceLock<Instant> = OnceLock::new();

/// Whether the user's terminal is raw, since a program has one of its own.
static IS_RAW: AtomicBool = AtomicBool::new(false);

/// How output of a program that was passed on may have left the terminal.
static LEFT: Mutex<Left> = Mutex::new(Left::Plain);

/// How a terminal may be after output that was passed on to it as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Left {
    Plain,
    /// In other colours, perhaps in none that can be seen.
    Coloured,
    /// In another state: with margins, in the middle of a sequence, with other characters.
    Steered,
}

/// Ends what colours text.
const RESET_COLOURS: &[u8] = b"\x1b[0m";
/// Ends a sequence that was begun, gives colours, characters, margins and modes back, and goes to a new line at the bottom.
const RESET_TERMINAL: &[u8] =
    b"\x18\x1b\\\x0f\x1b(B\x1b]104\x1b\\\x1b]110\x1b\\\x1b]111\x1b\\\x1b[!p\x1b[?5;6;69l\x1b[4l\x1b[?7;25h\
\x1b[r\x1b[0m\x1b[999;1H\r\n";

impl Left {
    /// How bytes that are passed on leave a terminal. A sequence that ends in later bytes counts as one that steers.
    fn by(bytes: &[u8]) -> Self {
        let mut left = Left::Plain;
        let mut rest = bytes;
        let is_text = LazyCell::new(|| is_text_without_c1(bytes));
        // C1 controls as UTF-8 are two bytes, and some terminals take them as one.
        let steers = |byte: &u8| matches!(byte, 0x0e | 0x0f | 0x1b | 0x80..=0x9f);
        while let Some(at) = rest.iter().position(steers) {
            let sequence = &rest[at..];
            match (sequence.strip_prefix(b"\x1b["), sequence[0] >= 0x80 && *is_text) {
                (_, true) => rest = &sequence[1..],
                (None, false) => return Left::Steered,
                (Some(parameters), false) => {
                    let is_parameter = |byte: &u8| byte.is_ascii_digit() || matches!(byte, b';' | b':');
                    let length = parameters.iter().take_while(|byte| is_parameter(byte)).count();
                    if parameters.get(length) != Some(&b'm') {
                        return Left::Steered;
                    }
                    left = Left::Coloured;
                    rest = &parameters[length + 1..];
                }
            }
        }
        left
    }

    /// What has to be written before text that is to be seen.
    fn reset(self) -> &'static [u8] {
        match self {
            Left::Plain => b"",
            Left::Coloured => RESET_COLOURS,
            Left::Steered => RESET_TERMINAL,
        }
    }
}

/// Whether bytes are UTF-8 without C1 controls. A character may be cut off at the end.
fn is_text_without_c1(bytes: &[u8]) -> bool {
    let whole = match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => &bytes[..error.valid_up_to()],
        _ => bytes,
    };
    std::str::from_utf8(whole).is_ok_and(|text| !text.contains(is_c1))
}

fn is_c1(char: char) -> bool {
    ('\u{80}'..='\u{9f}').contains(&char)
}

/// Passes on what a program prints, as it is. What is printed after it on a terminal is seen all the same.
pub(crate) fn pass_on(stream: Stream, bytes: &[u8]) -> io::Result<()> {
    let is_terminal = match stream {
        Stream::Stdout => io::stdout().is_terminal(),
        Stream::Stderr => io::stderr().is_terminal(),
    };
    if is_terminal {
        let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
        *left = (*left).max(Left::by(bytes));
    }
    raw(stream, bytes)
}

/// What has to be written to standard error before a message, once.
fn reset_before_message() -> &'static [u8] {
    if !io::stderr().is_terminal() {
        return b"";
    }
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::replace(&mut *left, Left::Plain).reset()
}

/// From this time on nobody waits for a reader.
pub(crate) fn wait_for_readers_until(deadline: Instant) {
    let _ = DEADLINE.set(deadline);
}

/// Prints a line on standard output.
pub(crate) fn line(text: impl std::fmt::Display) {
    let _ = try_line(text);
}

/// The same, for those who go on only while somebody reads.
pub(crate) fn try_line(text: impl std::fmt::Display) -> io::Result<()> {
    let plain = AutoStream::choice(&io::stdout()) == ColorChoice::Never;
    raw(Stream::Stdout, styled(text, plain).as_bytes())
}

/// A line without anything that steers a terminal, and without colours if it is to be plain.
fn styled(text: impl std::fmt::Display, plain: bool) -> String {
    let text = format!("{text}\n");
    let text = for_terminal(&text);
    if plain { strip_str(&text).to_string() } else { text.into_owned() }
}

/// Prints a line on standard error. There is nobody to tell if that fails.
pub(crate) fn about(text: impl std::fmt::Display) {
    let plain = AutoStream::choice(&io::stderr()) == ColorChoice::Never;
    let _ = write_about(styled(text, plain).as_bytes());
}

fn write_about(bytes: &[u8]) -> io::Result<()> {
    let bytes = [reset_before_message(), bytes].concat();
    screen::print(Stream::Stderr, &bytes, DEADLINE.get().copied(), |_, bytes| {
        if IS_RAW.load(Ordering::Relaxed) && io::stderr().is_terminal() {
            return io::stderr().lock().write_all(&with_carriage_returns(bytes));
        }
        io::stderr().lock().write_all(bytes)
    })
}

/// Says whether the user's terminal is raw. Then a line break does not return to the margin.
pub(crate) fn set_raw(is_raw: bool) {
    IS_RAW.store(is_raw, Ordering::Relaxed);
}

fn with_carriage_returns(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + 8);
    for byte in bytes {
        if *byte == b'\n' {
            out.push(b'\r');
        }
        out.push(*byte);
    }
    out
}

/// Standard error for programs that write whole messages by themselves. They are cleaned as all others.
pub(crate) struct Messages;

impl Write for Messages {
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(message);
        write_about(for_terminal(&text).as_bytes())?;
        Ok(message.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Prints a message on standard error. Only its first line begins at the margin: no text from outside can look like another
/// message.
pub(crate) fn indented(text: impl std::fmt::Display) {
    about(text.to_string().trim_end_matches('\n').replace('\n', "\n  "));
}

/// Prints a document.
pub(crate) fn json(document: &impl Serialize) -> anyhow::Result<()> {
    print_json(&serde_json::to_string_pretty(document)?)?;
    Ok(())
}

/// Prints a document on one line.
pub(crate) fn json_line(document: &impl Serialize) -> io::Result<()> {
    print_json(&serde_json::to_string(document)?)
}

/// Prints a JSON text, or a part of one.
pub(crate) fn print_json(json: &str) -> io::Result<()> {
    raw(Stream::Stdout, format!("{}\n", json_for_terminal(json)).as_bytes())
}

/// What a pipe takes at once if it takes anything.
const PIECE: usize = 4096;

/// Copies bytes as they are, waiting for the reader until the deadline.
pub(crate) fn raw(stream: Stream, bytes: &[u8]) -> io::Result<()> {
    noted(screen::print(stream, bytes, DEADLINE.get().copied(), write))
}

/// Writes to a stream whatever is asked meanwhile. For [`screen`] alone.
pub(crate) fn write(stream: Stream, bytes: &[u8]) -> io::Result<()> {
    match stream {
        Stream::Stdout => write_pieces(io::stdout().lock(), bytes),
        Stream::Stderr => write_pieces(io::stderr().lock(), bytes),
    }
}

fn write_pieces(mut out: impl Write + AsFd, bytes: &[u8]) -> io::Result<()> {
    bytes.chunks(PIECE).try_for_each(|piece| {
        wait_for_room(&out)?;
        out.write_all(piece).and_then(|()| out.flush())
    })
}

/// Ends all questions: the run is over. What was held is printed.
pub(crate) fn end_questions() {
    if screen::end_questions(write) {
        about("ringfence: the run is over, so the question needs no answer");
    }
}

fn wait_for_room(out: &impl AsFd) -> io::Result<()> {
    let Some(deadline) = DEADLINE.get() else { return Ok(()) };
    loop {
        let rest = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok();
        match poll(&mut [PollFd::new(out, PollFlags::OUT)], rest.as_ref()) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Err(rustix::io::Errno::INTR) => {}
            _ => return Ok(()),
        }
    }
}

/// Why something could not be printed, if it was not that nobody reads.
pub(crate) fn unprinted() -> Option<&'static str> {
    UNPRINTED.get().map(String::as_str)
}

fn noted(written: io::Result<()>) -> io::Result<()> {
    if let Err(error) = &written
        && !matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::TimedOut)
    {
        UNPRINTED.get_or_init(|| error.to_string());
    }
    written
}

/// Rows in columns, as wide as they need to be. The last column is not padded; further lines of it stay in its column.
pub(crate) fn table(rows: &[Vec<String>]) {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| PlainText::from(cell).into_string()).collect()).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in &rows {
        let cells: Vec<String> = row
            .iter()
            .enumerate()
            .map(|(column, cell)| match widths.get(column) {
                Some(width) if column + 1 < row.len() => format!("{:<width$}", one_line(cell)),
                _ => continued(cell, widths.iter().take(column).map(|width| width + 2).sum()),
            })
            .collect();
        line(cells.join("  ").trim_end());
    }
}

fn one_line(cell: &str) -> String {
    cell.replace(['\n', '\t'], " ")
}

fn continued(cell: &str, column: usize) -> String {
    cell.trim_end().replace('\n', &format!("\n{:column$}", ""))
}

#[cfg(test)]
mod tests {
    use super::{Left, with_carriage_returns};

    #[test]
    fn output_that_steers_is_told_from_text_and_colours() {
        for (bytes, expected) in [
            (&b"plain\r\n\tgr\xc3\xbcn \xe2\x80\x99\n"[..], Left::Plain),
            (b"\x1b[1;38:5:1mred\x1b[m", Left::Coloured),
            (b"\x1b[1;2r\x1b[1;1H", Left::Steered),
            (b"\x1b[8mhidden\x1b]0;title\x07", Left::Steered),
            (b"\x1b[3", Left::Steered),
            (b"\x1b", Left::Steered),
            (b"\xc2\x9b1;2r", Left::Steered),
            (b"\x9b1;2r", Left::Steered),
            (b"\x0e", Left::Steered),
            ("\u{442}\u{435}\u{43a}\u{441}\u{442}".as_bytes(), Left::Plain),
            (&"\u{2019}\u{2019}".as_bytes()[..5], Left::Plain),
            (&"\u{2019}\u{2019}".as_bytes()[1..], Left::Steered),
        ] {
            assert_eq!(Left::by(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn lines_on_a_raw_terminal_begin_at_the_margin() {
        assert_eq!(with_carriage_returns(b"one\n  two\n"), b"one\r\n  two\r\n");
    }
}
