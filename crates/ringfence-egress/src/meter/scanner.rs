//! Finds what an answer says of its usage, and of an error, in a JSON text of any length, as it comes, without keeping the text.

use serde_json::{Map, Value};

/// A longer value of those that are looked for is not kept: then the answer says nothing of its usage.
const MAX_VALUE_BYTES: usize = 64 << 10;
/// No name that is looked for is longer.
const MAX_NAME_BYTES: usize = 16;

/// The values that are looked for in the document itself.
const OUTER: [&[u8]; 4] = [b"type", b"model", b"usage", b"error"];
/// The objects in which some are looked for too, and which ones.
const WRAPPERS: [&[u8]; 2] = [b"message", b"response"];
const INNER: [&[u8]; 3] = [b"model", b"usage", b"error"];

/// Reads one JSON document.
#[derive(Debug, Default)]
pub(super) struct Scanner {
    /// Containers that are open.
    depth: usize,
    /// Whether a string is open, and whether its next character is escaped.
    in_string: bool,
    escaped: bool,
    /// The last string of the two outer levels, or its beginning.
    last_string: Vec<u8>,
    /// The name at each of the two outer levels.
    names: [Vec<u8>; 2],
    /// A value that is looked for: at which level it is, and what has come of it.
    value: Option<(usize, Vec<u8>)>,
    found: Map<String, Value>,
}

impl Scanner {
    /// Reads some more.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some((byte, after)) = rest.split_first() {
            if self.in_string && !self.escaped {
                let plain = memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
                if plain > 0 {
                    self.keep(&rest[..plain]);
                    rest = &rest[plain..];
                    continue;
                }
            }
            self.step(*byte);
            rest = after;
        }
    }

    /// What was found, as a document that has nothing else.
    pub(super) fn finish(self) -> Value {
        Value::Object(self.found)
    }

    /// A part of a string.
    fn keep(&mut self, bytes: &[u8]) {
        if let Some((_, value)) = &mut self.value {
            let room = (MAX_VALUE_BYTES + 1).saturating_sub(value.len());
            value.extend_from_slice(&bytes[..bytes.len().min(room)]);
        } else if self.depth <= 2 {
            let room = (MAX_NAME_BYTES + 1).saturating_sub(self.last_string.len());
            self.last_string.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
    }

    /// A byte outside of strings, or a quote: nothing of a name.
    fn keep_in_value(&mut self, byte: u8) {
        if self.value.is_some() {
            self.keep(&[byte]);
        }
    }

    fn step(&mut self, byte: u8) {
        if self.in_string {
            match byte {
                b'"' if !self.escaped => {
                    self.in_string = false;
                    self.keep_in_value(byte);
                }
                _ => {
                    self.escaped = !self.escaped && byte == b'\\';
                    self.keep(&[byte]);
                }
            }
            return;
        }
        match byte {
            b'"' => {
                self.in_string = true;
                self.last_string.clear();
                self.keep_in_value(byte);
            }
            b'{' | b'[' => {
                self.keep_in_value(byte);
                self.depth += 1;
            }
            b'}' | b']' => {
                self.end_value();
                self.depth = self.depth.saturating_sub(1);
                self.keep_in_value(byte);
            }
            b',' => {
                self.end_value();
                self.keep_in_value(byte);
            }
            b':' if self.value.is_none() => self.begin_value(),
            byte => self.keep_in_value(byte),
        }
    }

    /// The last string was a name, and its value follows.
    fn begin_value(&mut self) {
        let Some(level) = self.depth.checked_sub(1).filter(|level| *level < 2) else { return };
        self.names[level].clone_from(&self.last_string);
        let sought = match level {
            0 => OUTER.contains(&&*self.names[0]),
            _ => WRAPPERS.contains(&&*self.names[0]) && INNER.contains(&&*self.names[1]),
        };
        self.value = sought.then(|| (level, Vec::new()));
    }

    /// A comma or the end of a container: of the value, if it stands at the value's own level.
    fn end_value(&mut self) {
        let Some((level, value)) = self.value.take_if(|(level, _)| *level + 1 == self.depth) else { return };
        let parsed = (value.len() <= MAX_VALUE_BYTES).then(|| serde_json::from_slice::<Value>(&value).ok());
        let (Some(Some(parsed)), Ok(outer)) = (parsed, std::str::from_utf8(&self.names[0])) else { return };
        if level == 0 {
            self.found.insert(outer.to_owned(), parsed);
        } else if let Ok(inner) = std::str::from_utf8(&self.names[1]) {
            let wrapper = self.found.entry(outer).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(wrapper) = wrapper {
                wrapper.insert(inner.to_owned(), parsed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::Scanner;

    fn scan(text: &str, piece: usize) -> Value {
        let mut scanner = Scanner::default();
        text.as_bytes().chunks(piece).for_each(|piece| scanner.feed(piece));
        scanner.finish()
    }

    #[test]
    fn what_is_looked_for_is_found_however_the_text_comes() {
        let text = json!({
            "id": "x", "type": "response.completed",
            "content": [{"usage": {"input_tokens": 9}, "text": "\"usage\": {\"input_tokens\": 8} \\\\\" }"}],
            "model": "m\"1", "usage": {"input_tokens": 1, "details": {"cached": [1, {"a": 2}]}},
            "response": {"model": "m2", "output": [{"usage": 7, "model": "no"}], "usage": {"output_tokens": 3}},
            "other": {"usage": 5}, "choices": [],
        });
        let expected = json!({
            "type": "response.completed", "model": "m\"1",
            "usage": {"input_tokens": 1, "details": {"cached": [1, {"a": 2}]}},
            "response": {"model": "m2", "usage": {"output_tokens": 3}},
        });
        for text in [text.to_string(), serde_json::to_string_pretty(&text).unwrap()] {
            for piece in [1, 2, 3, 7, 1000] {
                assert_eq!(scan(&text, piece), expected, "{piece}");
            }
        }
    }

    #[test]
    fn an_answer_of_any_length_is_read() {
        let text = json!({"a": "x\"".repeat(4 << 20), "usage": {"input_tokens": 1}}).to_string();
        assert_eq!(scan(&text, 8192), json!({"usage": {"input_tokens": 1}}));
    }

    #[test]
    fn nonsense_finds_nothing() {
        for text in
            ["", "[", "]]}}", "{\"usage\"", "{\"usage\":{\"a\":1", "\"usage\":1", "[{\"usage\":{\"a\":1}}]"]
        {
            assert_eq!(scan(text, 1), json!({}), "{text}");
        }
        let long = format!("{{\"usage\":{{\"a\":\"{}\"}},\"model\":\"m\"}}", "x".repeat(100_000));
        assert_eq!(scan(&long, 4096), json!({"model": "m"}));
    }
}
