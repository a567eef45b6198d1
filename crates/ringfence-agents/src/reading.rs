//! What the readers of all CLIs have in common.

use ringfence_core::backend::ExitStatus;
use ringfence_core::event::{Event, Stream};
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::text::PlainText;
use serde_json::Value;

/// The text at a path of names.
pub(crate) fn text_at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a str> {
    at(value, path)?.as_str()
}

/// The number at a path of names.
pub(crate) fn number_at(value: &Value, path: &[&str]) -> u64 {
    at(value, path).and_then(Value::as_u64).unwrap_or(0)
}

/// The value at a path of names.
pub(crate) fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, name| value.get(name))
}

/// A longer line is plain output: parsed, it would take many times its length.
const MAX_PROTOCOL_LINE_BYTES: usize = 1 << 20;

/// The JSON document of a line, if it is one of the CLI's protocol: any process of a run can print lines.
pub(crate) fn document(line: &str) -> Option<Value> {
    (line.len() <= MAX_PROTOCOL_LINE_BYTES).then(|| ringfence_core::json::parse(line.as_bytes()).ok())?
}

/// A line that is no part of the CLI's protocol.
pub(crate) fn plain(stream: Stream, line: &str) -> Vec<Event> {
    vec![Event::Output { stream, text: line.into() }]
}

pub(crate) fn notice(message: impl Into<PlainText>) -> Vec<Event> {
    vec![Event::Notice { message: message.into() }]
}

/// The last lines of standard error, for a CLI that fails without a word on standard output.
#[derive(Debug, Default)]
pub(crate) struct LastWords(Vec<String>);

impl LastWords {
    const MOST: usize = 5;

    pub(crate) fn hear(&mut self, line: &str) {
        if line.trim().is_empty() {
            return;
        }
        if self.0.len() == Self::MOST {
            self.0.remove(0);
        }
        self.0.push(line.trim().to_owned());
    }

    pub(crate) fn text(&self) -> String {
        self.0.join("; ")
    }
}

/// The failure of a CLI that ended without its own account of the end.
pub(crate) fn no_result(cli: &str, exit: ExitStatus, words: &LastWords) -> Failure {
    ended(cli, exit, " and without a result", words)
}

/// The failure of a program whose exit code is its only account.
pub(crate) fn bad_exit(program: &str, exit: ExitStatus, words: &LastWords) -> Failure {
    ended(program, exit, "", words)
}

fn ended(who: &str, exit: ExitStatus, how: &str, words: &LastWords) -> Failure {
    let said = words.text();
    let said = if said.is_empty() { String::new() } else { format!(": {said}") };
    let message = match exit {
        ExitStatus::Code(code) => format!("{who} ended with code {code}{how}{said}"),
        ExitStatus::Signal(signal) => format!("{who} was killed by signal {signal}{said}"),
    };
    Failure::new(FailureClass::AgentError, message)
}

/// The HTTP status that a sentence names, as in `unexpected status 401 Unauthorized`.
pub(crate) fn status_in(text: &str) -> Option<u16> {
    let mut words = text.split_whitespace();
    while let Some(word) = words.next() {
        if word.trim_end_matches(':').eq_ignore_ascii_case("status") {
            let number = words.next()?.trim_matches(|c: char| !c.is_ascii_digit());
            if let Ok(status @ 100..=599) = number.parse() {
                return Some(status);
            }
        }
    }
    None
}

/// Whether the text holds one of these, in any case.
pub(crate) fn mentions(text: &str, any: &[&str]) -> bool {
    let text = text.to_lowercase();
    any.iter().any(|part| text.contains(part))
}

#[cfg(test)]
mod tests {
    use super::{document, status_in};

    #[test]
    fn long_lines_and_lines_of_too_many_values_are_plain_output() {
        let text = |length: usize| format!("{{\"type\":\"{}\"}}", "x".repeat(length));
        assert!(document(&text(1000)).is_some() && document(&text(1 << 20)).is_none());
        let values = |count: usize| format!("[{}0]", "0,".repeat(count));
        assert!(document(&values(1000)).is_some() && document(&values(300_000)).is_none());
    }

    #[test]
    fn a_status_is_found_where_it_is_named_and_nowhere_else() {
        assert_eq!(status_in("unexpected status 401 Unauthorized: x"), Some(401));
        assert_eq!(status_in("exceeded retry limit, last status: 429 Too Many Requests"), Some(429));
        assert_eq!(status_in("listening on port 443 with status green"), None);
        assert_eq!(status_in("404 files changed"), None);
    }
}
