//! The script: what the model is to do, as plain data, and which step a request gets.
//!
//! The choice depends on the request's own conversation, not on how many requests came
//! before, so that a CLI's retries and parallel side calls cannot shift it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

/// What is wrong with a script.
#[derive(Debug, Error)]
pub enum ScriptError {
    /// The text is not a script in JSON.
    #[error("the script is not valid: {0}")]
    Parse(#[from] serde_json::Error),
}

/// The whole of what the model does for one prompt. A new prompt starts it again.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// The steps; each tool step is one request of the CLI.
    #[serde(default)]
    pub steps: Vec<Step>,
    /// The token counts told with every reply.
    #[serde(default)]
    pub usage: Usage,
}

/// Token counts of one reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Usage {
    /// Tokens read.
    pub input_tokens: u64,
    /// Tokens written.
    pub output_tokens: u64,
}

impl Default for Usage {
    fn default() -> Self {
        Self { input_tokens: 100, output_tokens: 20 }
    }
}

/// One answer of the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// Have the CLI write a file; a relative path is meant from the CLI's working directory.
    ///
    /// Claude's own tool refuses to overwrite a file it has not read; use `Shell` for that.
    Write {
        /// Where.
        path: String,
        /// What.
        content: String,
    },
    /// Have the CLI run a shell command.
    Shell {
        /// The command line.
        command: String,
    },
    /// The final answer; ends the turn.
    Text {
        /// The answer.
        text: String,
    },
    /// Answer with an HTTP error.
    Fail {
        /// The HTTP status.
        status: u16,
        /// The value of `retry-after`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after: Option<String>,
        /// More headers.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        headers: BTreeMap<String, String>,
        /// The body; by default the API's own error shape for the status.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        body: Option<Value>,
        /// How many main requests fail before the next step takes its place; `None`: all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        times: Option<u32>,
    },
    /// Accept the request and never answer.
    Hang,
    /// Close the connection without an answer.
    Drop,
    /// Start the stream, send some text, close the connection.
    DropMidStream,
    /// The final answer in pieces, one word each.
    Slow {
        /// The pause before each piece.
        delay_ms: u64,
        /// The answer.
        text: String,
    },
}

impl Step {
    /// A `Fail` that always answers with the status and nothing special.
    #[must_use]
    pub fn fail(status: u16) -> Self {
        Self::Fail { status, retry_after: None, headers: BTreeMap::new(), body: None, times: None }
    }

    /// Whether the step breaks a request rather than answering it: such a step also
    /// meets the CLI's side calls, as a broken server would.
    pub(crate) fn breaks(&self) -> bool {
        matches!(self, Self::Fail { .. } | Self::Hang | Self::Drop | Self::DropMidStream)
    }
}

/// How often each limited `Fail` (by position in the script) has answered.
pub(crate) type Spent = BTreeMap<usize, u32>;

impl Script {
    /// A script of these steps with the usual token counts.
    #[must_use]
    pub fn new(steps: Vec<Step>) -> Self {
        Self { steps, usage: Usage::default() }
    }

    /// Read a script from JSON.
    ///
    /// # Errors
    /// When the text is not JSON or not a script.
    pub fn from_json(text: &str) -> Result<Self, ScriptError> {
        Ok(serde_json::from_str(text)?)
    }

    /// The step for a request after `results` tool results, with its position.
    ///
    /// A used-up `Fail` counts as not there: it brought no tool result, so leaving it in
    /// would shift every step behind it by one. Past the end the model has nothing more
    /// to do and gives its last text again.
    pub(crate) fn choose(&self, results: usize, spent: &Spent) -> (Option<usize>, Step) {
        let left = |position: &usize, step: &Step| match step {
            Step::Fail { times: Some(times), .. } => spent.get(position).copied().unwrap_or(0) < *times,
            _ => true,
        };
        let found = self.steps.iter().enumerate().filter(|(at, step)| left(at, step)).nth(results);
        if let Some((at, step)) = found {
            return (Some(at), step.clone());
        }
        let last = self.steps.iter().rev().find(|step| matches!(step, Step::Text { .. }));
        (None, last.cloned().unwrap_or_else(|| Step::Text { text: "done".to_owned() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Step {
        Step::Text { text: text.to_owned() }
    }

    fn shell(command: &str) -> Step {
        Step::Shell { command: command.to_owned() }
    }

    fn fail_times(times: u32) -> Step {
        Step::Fail {
            status: 500,
            retry_after: None,
            headers: BTreeMap::new(),
            body: None,
            times: Some(times),
        }
    }

    #[test]
    fn steps_follow_tool_results() {
        let script = Script::new(vec![shell("a"), shell("b"), text("end")]);
        let none = Spent::new();
        assert_eq!(script.choose(0, &none).1, shell("a"));
        assert_eq!(script.choose(1, &none).1, shell("b"));
        assert_eq!(script.choose(2, &none).1, text("end"));
    }

    #[test]
    fn past_the_end_the_last_text_or_done() {
        let none = Spent::new();
        let script = Script::new(vec![text("first"), shell("a")]);
        assert_eq!(script.choose(7, &none), (None, text("first")));
        assert_eq!(Script::default().choose(0, &none), (None, text("done")));
    }

    #[test]
    fn a_spent_failure_makes_room_without_shifting() {
        let script = Script::new(vec![shell("a"), fail_times(2), shell("b"), text("end")]);
        let mut spent = Spent::new();
        assert_eq!(script.choose(1, &spent).0, Some(1));
        spent.insert(1, 1);
        assert_eq!(script.choose(1, &spent).0, Some(1));
        spent.insert(1, 2);
        assert_eq!(script.choose(0, &spent).1, shell("a"));
        assert_eq!(script.choose(1, &spent).1, shell("b"));
        assert_eq!(script.choose(2, &spent).1, text("end"));
    }

    #[test]
    fn a_failure_without_times_stays() {
        let script = Script::new(vec![Step::fail(429), text("end")]);
        let spent = Spent::from([(0, 99)]);
        assert_eq!(script.choose(0, &spent).0, Some(0));
    }

    #[test]
    fn json_form() {
        let script = Script::from_json(
            r#"{"steps":[{"do":"write","path":"a","content":"b"},{"do":"fail","status":429,"retry_after":"2","times":1},
                {"do":"hang"},{"do":"drop"},{"do":"drop_mid_stream"},{"do":"slow","delay_ms":5,"text":"x"},{"do":"text","text":"t"}]}"#,
        )
        .unwrap();
        assert_eq!(script.steps.len(), 7);
        assert_eq!(script.usage, Usage { input_tokens: 100, output_tokens: 20 });
        let again = serde_json::to_string(&script).unwrap();
        assert_eq!(Script::from_json(&again).unwrap(), script);
        assert!(Script::from_json(r#"{"steps":[{"do":"dance"}]}"#).is_err());
        assert!(Script::from_json(r#"{"stebs":[]}"#).is_err());
    }
}
