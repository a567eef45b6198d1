//! Writing for people and for pipes. A reader who has left is not an error of ours.

use std::io::{self, Write};

use serde::Serialize;

/// Prints a line; a closed pipe is no reason to complain.
pub(crate) fn line(text: impl std::fmt::Display) {
    let _ = writeln!(anstream::stdout(), "{text}");
}

/// Prints a document.
pub(crate) fn json(document: &impl Serialize) -> anyhow::Result<()> {
    line(serde_json::to_string_pretty(document)?);
    Ok(())
}

/// Rows in columns, as wide as they need to be. The last column is not padded.
pub(crate) fn table(rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
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

/// Copies bytes as they are.
pub(crate) fn raw(mut out: impl Write, bytes: &[u8]) -> io::Result<()> {
    out.write_all(bytes)?;
    out.flush()
}
