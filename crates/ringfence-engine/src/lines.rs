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
        rest.extend_from_slice(bytes);
        let mut lines = Vec::new();
        let mut start = 0;
        while let Some(end) = rest[start..].iter().position(|byte| *byte == b'\n') {
            lines.push(text(&rest[start..start + end]));
            start += end + 1;
        }
        rest.drain(..start);
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
}
