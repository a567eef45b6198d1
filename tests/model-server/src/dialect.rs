//! What the three APIs have in common: the questions the server asks of each of them,
//! and the small helpers for reading requests and writing streams.

use serde_json::Value;

use crate::script::Usage;

/// What a request tells about its place in the conversation.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Asked {
    /// Whether the model may call tools; without them it is a side call (a title, say).
    pub tools: bool,
    /// Tool results since the last real prompt.
    pub results: usize,
    /// A call that must come before the next step, for instance to wait for a command
    /// that is still running.
    pub first: Option<Tool>,
}

/// A tool the model calls, with its input in the form the API wants.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Tool {
    /// Called with a JSON object.
    Function {
        /// The namespace the tool is in, if it is in one.
        namespace: Option<&'static str>,
        /// The tool's name.
        name: &'static str,
        /// The arguments.
        input: Value,
    },
    /// Called with free text (codex code mode).
    Custom {
        /// The namespace the tool is in.
        namespace: &'static str,
        /// The tool's name.
        name: &'static str,
        /// The text.
        input: String,
    },
}

/// What the model says.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Reply {
    /// Words; the end of the turn.
    Text(String),
    /// A tool call.
    Call(Tool),
}

/// What every reply carries besides its content.
#[derive(Debug, Clone)]
pub(crate) struct Turn {
    /// Unique per reply, also across servers: a resumed session may meet both.
    pub id: String,
    /// The model the request named.
    pub model: String,
    /// Token counts.
    pub usage: Usage,
    /// Whether a stream is to end with token counts (chat completions only tell on demand).
    pub tell_usage: bool,
}

/// One event of a stream.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Event {
    /// The bytes on the wire.
    pub wire: String,
    /// Whether it carries a piece of the answer's text: pauses and cuts go there.
    pub text: bool,
}

impl Event {
    /// An event with a name, as Anthropic and Responses send them.
    pub(crate) fn named(name: &str, data: &Value) -> Self {
        Self { wire: format!("event: {name}\ndata: {data}\n\n"), text: false }
    }

    /// An event that is data only, as chat completions send them.
    pub(crate) fn data(data: &Value) -> Self {
        Self { wire: format!("data: {data}\n\n"), text: false }
    }

    /// The same event, marked as a piece of text.
    pub(crate) fn into_text(mut self) -> Self {
        self.text = true;
        self
    }
}

/// One of the three APIs.
pub(crate) trait Dialect: Sync {
    /// Where in the conversation the request stands.
    fn read(&self, body: &Value) -> Asked;
    /// The call that writes a file.
    fn write(&self, body: &Value, path: &str, content: &str) -> Tool;
    /// The call that runs a command.
    fn shell(&self, body: &Value, command: &str) -> Tool;
    /// The reply as a stream.
    fn events(&self, turn: &Turn, reply: &Reply) -> Vec<Event>;
    /// The reply in one piece.
    fn whole(&self, turn: &Turn, reply: &Reply) -> Value;
    /// What the API says to a wrong key; claude reads the words, not only the status.
    fn bad_key(&self) -> &'static str;
    /// The error body for a status.
    fn error(&self, status: u16, message: &str) -> Value;
}

/// What the CLIs put into the user's mouth. Such a message may stand between a prompt and
/// its tool results, and counting from there would start the script again.
const AMBIENT: [&str; 8] = [
    "[Request interrupted",
    "<system-reminder>",
    "<environment_context>",
    "<user_instructions>",
    "<turn_aborted>",
    "<permissions instructions>",
    "<skills_instructions>",
    "# AGENTS.md instructions",
];

/// Whether a text is a person's prompt.
pub(crate) fn is_prompt(text: &str) -> bool {
    let text = text.trim_start();
    !text.is_empty() && !AMBIENT.iter().any(|mark| text.starts_with(mark))
}

/// The texts of a content that is either a string or a list of parts.
pub(crate) fn texts(content: &Value) -> Vec<&str> {
    match content {
        Value::String(text) => vec![text],
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => Vec::new(),
    }
}

/// The items of a list, or none.
pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// What follows `mark` on its line, in the first text under `value` that has it.
pub(crate) fn line_after<'a>(value: &'a Value, mark: &str) -> Option<&'a str> {
    match value {
        Value::String(text) => {
            let (_, rest) = text.split_once(mark)?;
            rest.lines().next().map(str::trim).filter(|line| !line.is_empty())
        }
        Value::Array(items) => items.iter().find_map(|item| line_after(item, mark)),
        Value::Object(fields) => fields.values().find_map(|field| line_after(field, mark)),
        _ => None,
    }
}

/// A path made absolute, if the working directory is known.
pub(crate) fn absolute(cwd: Option<&str>, path: &str) -> String {
    match cwd {
        Some(cwd) if !path.starts_with('/') => format!("{}/{path}", cwd.trim_end_matches('/')),
        _ => path.to_owned(),
    }
}

/// A text in the pieces it is streamed in; always at least one, so that there is a place
/// for pauses and cuts.
pub(crate) fn pieces(text: &str) -> Vec<&str> {
    if text.is_empty() { vec![""] } else { text.split_inclusive(' ').collect() }
}

/// A shell command that writes a file, for CLIs without a tool for it.
pub(crate) fn write_command(path: &str, content: &str) -> String {
    let write = format!("printf '%s' {} > {}", quoted(content), quoted(path));
    match path.rsplit_once('/') {
        Some((folder, _)) if !folder.is_empty() => {
            format!("mkdir -p {} && {write}", quoted(folder))
        }
        _ => write,
    }
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn quoting_survives_the_shell() {
        let folder = std::env::temp_dir().join(format!("scripted model {}", std::process::id()));
        let path = folder.join("a'b/c.txt");
        let content = "it's 100% \"$HOME\" \\n\nline\n";
        let command = write_command(path.to_str().unwrap(), content);
        let done = std::process::Command::new("sh").arg("-c").arg(command).status().unwrap();
        assert!(done.success());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn line_after_finds_nested_text() {
        let body = json!({"system": [{"text": "x"}, {"text": "a\n - Primary working directory: /w/x\nb"}]});
        assert_eq!(line_after(&body, "Primary working directory:"), Some("/w/x"));
        assert_eq!(line_after(&body, "nowhere"), None);
    }

    #[test]
    fn pieces_make_the_text_again() {
        assert_eq!(pieces("a bc  d").concat(), "a bc  d");
        assert_eq!(pieces(""), [""]);
    }
}
