//! Takes secrets out of what is logged and shown.

use ringfence_core::event::Event;
use ringfence_core::failure::Failure;
use ringfence_core::text::{PlainJson, PlainText};
use serde_json::Value;

/// The values that must not be seen.
#[derive(Debug, Default)]
pub(crate) struct Redactor(Vec<String>);

/// Shorter values are no secrets, and taking them out would make a log unreadable.
const SHORTEST: usize = 8;

impl Redactor {
    /// Knows each value, each line of it, the password of an address, and all of them as JSON writes them.
    pub(crate) fn new<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Self {
        let mut values: Vec<String> = Vec::new();
        for secret in secrets {
            let parts = secret.lines().chain([secret]).chain(password(secret));
            for part in parts.map(str::trim).filter(|part| part.len() >= SHORTEST) {
                let escaped = Value::from(part).to_string();
                values.extend([part.to_owned(), escaped.trim_matches('"').to_owned()]);
            }
        }
        // A secret that is part of another must not spoil the longer one.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        values.dedup();
        Self(values)
    }

    pub(crate) fn clean(&self, text: String) -> String {
        self.0.iter().fold(text, |text, secret| {
            if text.contains(secret.as_str()) { text.replace(secret.as_str(), "[REDACTED]") } else { text }
        })
    }

    pub(crate) fn clean_text(&self, text: PlainText) -> PlainText {
        if self.0.is_empty() { text } else { self.clean(text.into_string()).into() }
    }

    /// An event without secrets. The CLI's protocol has been read by then, so nothing is lost but the secret.
    pub(crate) fn clean_event(&self, event: Event) -> Event {
        if self.0.is_empty() {
            return event;
        }
        match event {
            Event::Text { text } => Event::Text { text: self.clean_text(text) },
            Event::ToolUse { tool, input } => {
                Event::ToolUse { tool, input: PlainJson::from(self.clean_value(input.into())) }
            }
            Event::ToolResult { tool, output, is_error } => {
                Event::ToolResult { tool, output: self.clean_text(output), is_error }
            }
            Event::Notice { message } => Event::Notice { message: self.clean_text(message) },
            Event::Output { stream, text } => Event::Output { stream, text: self.clean_text(text) },
            other => other,
        }
    }

    pub(crate) fn clean_failure(&self, failure: Failure) -> Failure {
        Failure { message: self.clean_text(failure.message), ..failure }
    }

    fn clean_value(&self, value: Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.clean(text)),
            Value::Array(items) => items.into_iter().map(|item| self.clean_value(item)).collect(),
            Value::Object(map) => {
                map.into_iter().map(|(name, value)| (name, self.clean_value(value))).collect()
            }
            other => other,
        }
    }
}

/// The password in `scheme://user:password@host`.
fn password(text: &str) -> Option<&str> {
    let (user, _) = text.split_once("://")?.1.split_once('@')?;
    user.split_once(':').map(|(_, password)| password)
}

#[cfg(test)]
mod tests {
    use super::Redactor;

    #[test]
    fn secrets_vanish_and_everything_else_stays() {
        let redactor = Redactor::new(["sk-12345678", "sk-12345678-long", "1"]);
        assert_eq!(
            redactor.clean("a sk-12345678-long b sk-12345678 c 1".into()),
            "a [REDACTED] b [REDACTED] c 1"
        );
    }

    #[test]
    fn lines_passwords_and_escaped_forms_vanish_too() {
        let redactor = Redactor::new([
            "-----BEGIN-----\nAAAABBBBCCCC\n",
            "http://me:hunter2-hunter2@proxy",
            "quo\"ted-secret",
        ]);
        for text in ["AAAABBBBCCCC", "hunter2-hunter2", r#"quo\"ted-secret"#, "quo\"ted-secret"] {
            assert_eq!(redactor.clean(format!("<{text}>")), "<[REDACTED]>");
        }
    }
}
