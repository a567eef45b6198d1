//! Writing for users and for pipes. A reader that has closed its end is no error; a full disk is.
//!
//! Text of a run is cleaned where it becomes a failure, an event or a result (`ringfence_core::text`). Everything that is printed
//! here is cleaned once more: only colours pass, so names and messages from elsewhere cannot steer the terminal either. Output of a
//! program that the user asked for as it is goes through [`raw`].

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::Instant;

use anstream::{AutoStream, ColorChoice, adapter::strip_str};
use ringfence_core::text::{PlainText, for_terminal, json_for_terminal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

/// The first reason for which something could not be printed.
static UNPRINTED: OnceLock<String> = OnceLock::new();

/// Until when to wait for a reader. Who shows a run does not outlast it.
static DEADLINE: OnceLock<Instant> = OnceLock::new();

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
    let mut out = io::stdout().lock();
    let text = format!("{text}\n");
    let text = for_terminal(&text);
    if AutoStream::choice(&out) == ColorChoice::Never {
        return raw(&mut out, strip_str(&text).to_string().as_bytes());
    }
    raw(&mut out, text.as_bytes())
}

/// Prints a line on standard error. There is nobody to tell if that fails.
pub(crate) fn about(text: impl std::fmt::Display) {
    let text = text.to_string();
    let _ = writeln!(anstream::stderr(), "{}", for_terminal(&text));
}

/// Standard error for programs that write whole messages by themselves. They are cleaned as all others.
pub(crate) struct Messages;

impl Write for Messages {
    fn write(&mut self, message: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(message);
        io::stderr().lock().write_all(for_terminal(&text).as_bytes())?;
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
    raw(io::stdout().lock(), format!("{}\n", json_for_terminal(json)).as_bytes())
}

/// What a pipe takes at once if it takes anything.
const PIECE: usize = 4096;

/// Copies bytes as they are, waiting for the reader until the deadline.
pub(crate) fn raw(mut out: impl Write + AsFd, bytes: &[u8]) -> io::Result<()> {
    noted(bytes.chunks(PIECE).try_for_each(|piece| {
        wait_for_room(&out)?;
        out.write_all(piece).and_then(|()| out.flush())
    }))
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
