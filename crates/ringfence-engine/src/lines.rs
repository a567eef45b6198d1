//! Bytes → lines, for each stream on its own.

use ringfence_core::event::Stream;

/// A longer line is cut into pieces, so that output without line ends cannot take all memory.
const LONGEST: usize = 16 << 20;

/// What has come of each stream and is not a whole line yet.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Lines {
    fn of(&mut self, stream: Stream) -> &mut Vec<u8> {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }

    /// The lines that are whole now.
    pub(crate) fn feed(&mut self, stream: Stream, bytes: &[u8]) -> Vec<String> {
        let rest = self.of(stream);
        let mut lines = Vec::new();
        let mut after = bytes;
        // What came before has no line end: it is not searched again, however small the pieces are.
        while let Some(end) = after.iter().position(|byte| *byte == b'\n') {
            rest.extend_from_slice(&after[..end]);
            lines.push(text(rest));
            rest.clear();
            after = &after[end + 1..];
        }
        rest.extend_from_slice(after);
        if rest.len() > LONGEST {
            lines.push(text(&std::mem::take(rest)));
        }
        lines
    }

    /// What is left at the end.
    pub(crate) fn rest(&mut self) -> Vec<(Stream, String)> {
        [Stream::Stdout, Stream::Stderr]
            .into_iter()
            .filter_map(|stream| {
                let rest = std::mem::take(self.of(stream));
                (!rest.is_empty()).then(|| (stream, text(&rest)))
            })
            .collect()
    }
}

fn text(line: &[u8]) -> String {
    String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned()
}

#[cfg(test)]
mod tests {
    use ringfence_core::event::Stream;

    use super::Lines;

    #[test]
    fn lines_are_whole_however_the_bytes_come() {
        let mut lines = Lines::default();
        assert!(lines.feed(Stream::Stdout, "grü".as_bytes()[..3].as_ref()).is_empty());
        lines.feed(Stream::Stderr, b"other\n");
        assert_eq!(lines.feed(Stream::Stdout, &"grü".as_bytes()[3..]), Vec::<String>::new());
        assert_eq!(lines.feed(Stream::Stdout, b"n\r\nb\nc"), ["grün", "b"]);
        assert_eq!(lines.rest(), [(Stream::Stdout, "c".to_owned())]);
    }

    /// With a search from the start for each piece this would take minutes.
    #[test]
    fn long_line_in_small_pieces_takes_time_by_its_length() {
        let begun = std::time::Instant::now();
        let mut lines = Lines::default();
        for _ in 0..4 << 20 {
            assert!(lines.feed(Stream::Stdout, b"x").is_empty());
        }
        assert_eq!(lines.feed(Stream::Stdout, b"\n")[0].len(), 4 << 20);
        assert!(begun.elapsed() < std::time::Duration::from_secs(30), "{:?}", begun.elapsed());
    }
}
