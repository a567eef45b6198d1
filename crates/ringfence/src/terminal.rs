//! Writing for people and for pipes. A reader who has left is no error of ours; a disk that is full is.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::Instant;

use anstream::{AutoStream, ColorChoice, adapter::strip_str};
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
    if AutoStream::choice(&out) == ColorChoice::Never {
        return raw(&mut out, strip_str(&text).to_string().as_bytes());
    }
    raw(&mut out, text.as_bytes())
}

/// Prints a line on standard error. There is nobody to tell if that fails.
pub(crate) fn about(text: impl std::fmt::Display) {
    let _ = writeln!(anstream::stderr(), "{text}");
}

/// Prints a document.
pub(crate) fn json(document: &impl Serialize) -> anyhow::Result<()> {
    line(serde_json::to_string_pretty(document)?);
    Ok(())
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

/// Rows in columns, as wide as they need to be. The last column is not padded.
pub(crate) fn table(rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let cells: Vec<String> = row
            .iter()
            .enumerate()
            .map(|(column, cell)| match widths.get(column) {
                Some(width) if column + 1 < row.len() => format!("{cell:<width$}"),
                _ => cell.clone(),
            })
            .collect();
        line(cells.join("  ").trim_end());
    }
}

/// Text of somebody else without what would steer the terminal.
pub(crate) fn harmless(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}

#[cfg(test)]
mod tests {
    use super::harmless;

    #[test]
    fn nothing_steers_the_terminal() {
        assert_eq!(harmless("a\u{1b}]2;title\u{7}b\tc\nd\r\u{9b}31m"), "a]2;titleb\tc\nd31m");
    }
}
