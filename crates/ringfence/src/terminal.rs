//! Writing for people and for pipes. A reader who has left is no error of ours; a disk that is full is.

use std::io::{self, Write};
use std::sync::OnceLock;

use serde::Serialize;

/// The first reason for which something could not be printed.
static UNPRINTED: OnceLock<String> = OnceLock::new();

/// Prints a line on standard output.
pub(crate) fn line(text: impl std::fmt::Display) {
    let _ = try_line(text);
}

/// The same, for those who go on only while somebody reads.
pub(crate) fn try_line(text: impl std::fmt::Display) -> io::Result<()> {
    noted(writeln!(anstream::stdout(), "{text}"))
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

/// Copies bytes as they are.
pub(crate) fn raw(mut out: impl Write, bytes: &[u8]) -> io::Result<()> {
    noted(out.write_all(bytes).and_then(|()| out.flush()))
}

/// Why something could not be printed, if it was not that nobody reads.
pub(crate) fn unprinted() -> Option<&'static str> {
    UNPRINTED.get().map(String::as_str)
}

fn noted(written: io::Result<()>) -> io::Result<()> {
    if let Err(error) = &written
        && error.kind() != io::ErrorKind::BrokenPipe
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
