//! Text from outside Ringfence, made safe to show.
//!
//! What an agent prints, replies or names may hold sequences that a terminal obeys (clipboard, title, clear screen), controls
//! that reorder or hide text, or bytes that are no text at all. [`PlainText`] is the only type in which such text becomes a
//! failure, an event or a result, and it is made only by removing all of that.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// Longer texts are cut, with a note of how much is missing.
const MAX_TEXT_BYTES: usize = 4 << 20;

/// A control string that does not end within so many bytes is not one: only its introducer is removed.
const MAX_STRING_BYTES: usize = 1 << 20;

/// Text without anything that steers a terminal or hides what it says. Of the control characters it holds newline and tab.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct PlainText(String);

impl PlainText {
    /// Reads bytes that should be UTF-8. What is not becomes U+FFFD.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        String::from_utf8_lossy(bytes).into_owned().into()
    }

    /// The same text, at most this many bytes long; what is cut off is counted in a note at the end.
    #[must_use]
    pub fn truncated(self, max_bytes: usize) -> Self {
        if self.0.len() <= max_bytes {
            return self;
        }
        let end = self.0.floor_char_boundary(max_bytes);
        let left_out = self.0.len() - end;
        let mut text = self.0;
        text.truncate(end);
        text.push_str(&format!("\n[{left_out} more bytes]"));
        Self(text)
    }

    /// Appends another text.
    pub fn push(&mut self, more: &PlainText) {
        self.0.push_str(&more.0);
    }

    /// Appends a line break.
    pub fn push_line_break(&mut self) {
        self.0.push('\n');
    }

    /// The text on one line: line breaks and tabs become spaces.
    pub fn one_line(&self) -> String {
        self.0.replace(['\n', '\t'], " ")
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text, owned.
    pub fn into_string(self) -> String {
        self.0
    }
}

impl From<String> for PlainText {
    fn from(text: String) -> Self {
        let plain = if is_plain(&text) { text } else { cleaned(&text, Styling::Removed) };
        PlainText(plain).truncated(MAX_TEXT_BYTES)
    }
}

impl From<&str> for PlainText {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<&String> for PlainText {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

impl From<Cow<'_, str>> for PlainText {
    fn from(text: Cow<'_, str>) -> Self {
        text.into_owned().into()
    }
}

impl From<&PlainText> for PlainText {
    fn from(text: &PlainText) -> Self {
        text.clone()
    }
}

impl From<PlainText> for String {
    fn from(text: PlainText) -> Self {
        text.0
    }
}

impl Deref for PlainText {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for PlainText {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl PartialEq<str> for PlainText {
    fn eq(&self, other: &str) -> bool {
        self.0 == other
    }
}

impl PartialEq<&str> for PlainText {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

impl fmt::Display for PlainText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Stored and received documents are cleaned as well: an older version may have written them.
impl<'de> Deserialize<'de> for PlainText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

/// A JSON document from outside whose strings and names are all plain text.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct PlainJson(Value);

impl From<Value> for PlainJson {
    fn from(value: Value) -> Self {
        Self(plain_value(value))
    }
}

impl From<PlainJson> for Value {
    fn from(value: PlainJson) -> Self {
        value.0
    }
}

impl Deref for PlainJson {
    type Target = Value;
    fn deref(&self) -> &Value {
        &self.0
    }
}

impl<'de> Deserialize<'de> for PlainJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Self::from)
    }
}

fn plain_value(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(PlainText::from(text).0),
        Value::Array(items) => items.into_iter().map(plain_value).collect(),
        Value::Object(map) => {
            map.into_iter().map(|(name, value)| (PlainText::from(name).0, plain_value(value))).collect()
        }
        other => other,
    }
}

/// Whether colours and weights of text are kept: those of Ringfence's own output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Styling {
    Kept,
    Removed,
}

/// A line of Ringfence's own, ready for a terminal: colours stay, everything else that a terminal would obey goes.
pub fn for_terminal(text: &str) -> Cow<'_, str> {
    if is_plain(text) { Cow::Borrowed(text) } else { Cow::Owned(cleaned(text, Styling::Kept)) }
}

/// A text in which every character that a terminal would obey, or that hides text, is written as an escape. For file names and
/// contents that a user judges: nothing in them may be invisible. Tabs stay, line breaks do not.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '\n' | '\r' => out.extend(char.escape_default()),
            // These show nothing by themselves.
            '\u{200c}' | '\u{200d}' | '\u{fe00}'..='\u{fe0f}' => out.extend(char.escape_unicode()),
            char if is_shown(char) => out.push(char),
            char => out.extend(char.escape_unicode()),
        }
    }
    out
}

/// A JSON text in which every character that a terminal would obey, or that hides text, is escaped. It means the same.
pub fn json_for_terminal(json: &str) -> Cow<'_, str> {
    if is_plain(json) {
        return Cow::Borrowed(json);
    }
    let mut out = String::with_capacity(json.len());
    for char in json.chars() {
        if is_shown(char) {
            out.push(char);
        } else {
            let mut units = [0; 2];
            out.extend(char.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    Cow::Owned(out)
}

fn is_plain(text: &str) -> bool {
    let ordinary = |byte: u8| matches!(byte, b' '..=b'~' | b'\n' | b'\t');
    text.bytes().all(ordinary) || text.chars().all(is_shown)
}

/// Whether a character shows something and steers nothing. The joiners of scripts and emoji are kept.
fn is_shown(char: char) -> bool {
    match char {
        '\n' | '\t' | ' '..='~' => true,
        // C0, delete, C1.
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' => false,
        // Bidirectional controls.
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => false,
        // Other line breaks, which forge lines.
        '\u{2028}' | '\u{2029}' => false,
        // Characters that show nothing: soft hyphen, fillers, zero width, invisible operators, deprecated format controls,
        // byte order mark, annotations, tags.
        '\u{ad}'
        | '\u{34f}'
        | '\u{115f}'
        | '\u{1160}'
        | '\u{17b4}'
        | '\u{17b5}'
        | '\u{180e}'
        | '\u{200b}'
        | '\u{2060}'..='\u{2065}'
        | '\u{206a}'..='\u{206f}'
        | '\u{3164}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}' => false,
        // Noncharacters.
        '\u{fdd0}'..='\u{fdef}' => false,
        _ => (char as u32) & 0xfffe != 0xfffe,
    }
}

fn cleaned(text: &str, styling: Styling) -> String {
    let mut out = String::with_capacity(text.len());
    let mut strings = Strings::new(text);
    let mut rest = text;
    while let Some(char) = rest.chars().next() {
        let after = &rest[char.len_utf8()..];
        rest = match char {
            '\u{1b}' => {
                let length = escape_length(after, &mut strings);
                let sequence = &after[..length];
                if styling == Styling::Kept && is_style(sequence) {
                    out.push(char);
                    out.push_str(sequence);
                }
                &after[length..]
            }
            // The same sequences with their one-character introducers.
            '\u{9b}' => &after[csi_length(after)..],
            '\u{90}' | '\u{98}' | '\u{9d}' | '\u{9e}' | '\u{9f}' => &after[strings.length(after)..],
            // A lone carriage return lets what follows overwrite the line.
            '\r' if after.starts_with('\n') => after,
            '\r' => {
                out.push('\n');
                after
            }
            char => {
                if is_shown(char) {
                    out.push(char);
                }
                after
            }
        };
    }
    out
}

/// Whether this is, after the escape, a sequence that sets colours and weights.
fn is_style(sequence: &str) -> bool {
    let parameters = sequence.strip_prefix('[').and_then(|rest| rest.strip_suffix('m'));
    parameters.is_some_and(|text| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b';'))
}

/// How long a sequence is, after its escape.
fn escape_length(after: &str, strings: &mut Strings<'_>) -> usize {
    match after.chars().next() {
        Some('[') => 1 + csi_length(&after[1..]),
        Some(']' | 'P' | 'X' | '^' | '_') => 1 + strings.length(&after[1..]),
        // Intermediate bytes, then a final one.
        Some(' '..='/') => {
            let intermediates = after.bytes().take_while(|byte| (b' '..=b'/').contains(byte)).count();
            let ends = after.as_bytes().get(intermediates).is_some_and(|byte| (b'0'..=b'~').contains(byte));
            intermediates + usize::from(ends)
        }
        Some('0'..='~') => 1,
        _ => 0,
    }
}

/// The length of a control sequence after its introducer: parameters, intermediates, a final byte.
fn csi_length(after: &str) -> usize {
    let inner = after.bytes().take_while(|byte| (b' '..=b'?').contains(byte)).count();
    let ends = after.as_bytes().get(inner).is_some_and(|byte| (b'@'..=b'~').contains(byte));
    inner + usize::from(ends)
}

/// The control strings of a text. Each part of it is searched once, however many introducers without an end it holds.
struct Strings<'a> {
    text: &'a str,
    /// The next end that was found: where it begins, and where the string is over. A line break and the end of the text end a string
    /// without terminating it.
    end: Option<(usize, Option<usize>)>,
}

impl<'a> Strings<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, end: None }
    }

    /// The length of a control string with its terminator, or nothing if it is not terminated: then its text is shown. `after` is
    /// what follows its introducer, to the end of the text.
    fn length(&mut self, after: &str) -> usize {
        let from = self.text.len() - after.len();
        let (_, over) = match self.end {
            Some(end) if from <= end.0 => end,
            _ => *self.end.insert(self.search(from)),
        };
        over.map(|over| over - from).filter(|length| *length <= MAX_STRING_BYTES).unwrap_or(0)
    }

    fn search(&self, from: usize) -> (usize, Option<usize>) {
        let rest = &self.text[from..];
        for (at, char) in rest.char_indices() {
            let begin = from + at;
            match char {
                '\u{7}' | '\u{9c}' => return (begin, Some(begin + char.len_utf8())),
                '\u{1b}' if rest[at..].starts_with("\u{1b}\\") => return (begin, Some(begin + 2)),
                '\n' => return (begin, None),
                _ => {}
            }
        }
        (self.text.len(), None)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{PlainJson, PlainText, escaped, for_terminal, json_for_terminal};

    #[test]
    fn control_sequences_and_hidden_characters_are_removed() {
        for (given, plain) in [
            ("a\u{1b}]52;c;cm0gLXJmIH4=\u{7}b", "ab"),
            ("a\u{1b}]0;title\u{1b}\\b", "ab"),
            ("a\u{9d}0;title\u{9c}b", "ab"),
            ("a\u{1b}[2J\u{1b}[31mred\u{1b}[0mb", "aredb"),
            ("a\u{9b}2Jb", "ab"),
            ("a\u{1b}P1$qm\u{1b}\\b", "ab"),
            ("a\u{1b}cb\u{1b}(0c\u{1b}#8d", "abcd"),
            ("never ended \u{1b}]52;c;text\nnext", "never ended 52;c;text\nnext"),
            ("\u{1b}[31", ""),
            ("\u{1b}", ""),
            ("safe\rEVIL", "safe\nEVIL"),
            ("line\r\nnext\r", "line\nnext\n"),
            ("a\u{8}\u{7f}\0b", "ab"),
            ("user\u{202e}txt.exe\u{2066}", "usertxt.exe"),
            ("in\u{200b}vis\u{ad}ible\u{e0041}", "invisible"),
            ("two\u{2028}lines", "twolines"),
            ("\u{fdd0}\u{ffff}\u{1fffe}x", "x"),
            ("tab\tand\nline", "tab\tand\nline"),
            ("grün 日本 👩\u{200d}💻 é", "grün 日本 👩\u{200d}💻 é"),
        ] {
            assert_eq!(PlainText::from(given), plain, "{given:?}");
        }
    }

    /// An hour, were each introducer to search the rest of the text.
    #[test]
    fn introducers_without_an_end_take_linear_time() {
        for introducer in ["\u{1b}]", "\u{1b}P", "\u{9d}", "\u{1b}_x"] {
            let begun = std::time::Instant::now();
            let text = introducer.repeat(1 << 20);
            let shown = PlainText::from(text.as_str());
            assert_eq!(shown.len(), introducer.matches('x').count() << 20);
            assert!(PlainText::from(format!("{text}\u{7}y")).ends_with('y'));
            assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{introducer:?}");
        }
    }

    /// Taking a sequence out must not put another one together.
    #[test]
    fn what_is_left_is_clean_however_sequences_are_nested() {
        let pieces =
            ["\u{1b}", "[", "]", "\u{9b}", "\u{9d}", "2J", "\u{7}", "\\", "\u{202e}", "m", "\r", "é"];
        let count = pieces.len();
        for number in 0..count.pow(5) {
            let text: String = (0..5).map(|digit| pieces[number / count.pow(digit) % count]).collect();
            let plain = PlainText::from(text.as_str());
            assert!(plain.chars().all(super::is_shown), "{text:?}");
            assert_eq!(PlainText::from(plain.as_str()), plain);
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_replaced() {
        assert_eq!(PlainText::from_bytes(b"a\xff\x9bb"), "a\u{fffd}\u{fffd}b");
    }

    #[test]
    fn a_long_text_is_cut_between_characters_and_says_so() {
        let text = PlainText::from("é".repeat(10)).truncated(5);
        assert_eq!(text, "éé\n[16 more bytes]");
    }

    #[test]
    fn a_document_is_plain_in_names_and_values() {
        let value = PlainJson::from(json!({"na\u{1b}[2Jme": ["\u{9b}2Jx", {"a": "\u{202e}b"}], "n": 1}));
        assert_eq!(*value, json!({"name": ["x", {"a": "b"}], "n": 1}));
    }

    #[test]
    fn stored_text_is_cleaned_when_it_is_read() {
        let text: PlainText = serde_json::from_str(r#""a\u001b[2Jb""#).unwrap();
        assert_eq!(text, "ab");
    }

    #[test]
    fn a_terminal_gets_colours_and_nothing_else() {
        let text = "\u{1b}[1;31merror\u{1b}[0m: \u{1b}]0;t\u{7}\u{1b}[2Jname\u{9b}5n";
        assert_eq!(for_terminal(text), "\u{1b}[1;31merror\u{1b}[0m: name");
    }

    #[test]
    fn nothing_is_invisible_in_an_escaped_text() {
        assert_eq!(
            escaped("a\u{1b}[2J\u{202e}b\u{200b}\r\nc\té"),
            "a\\u{1b}[2J\\u{202e}b\\u{200b}\\r\\nc\té"
        );
    }

    #[test]
    fn escaped_json_means_the_same() {
        let value = json!({"text": "a\u{9b}2J\u{202e}\u{e0041}\u{7f}é\u{1b}"});
        let escaped = json_for_terminal(&value.to_string()).into_owned();
        assert!(escaped.chars().all(super::is_shown), "{escaped}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
    }
}
