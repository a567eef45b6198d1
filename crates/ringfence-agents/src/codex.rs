//! Codex: `codex exec --json`.
//!
//! Learned from it: it never ends by itself when its server cannot be reached; it counts the tokens of a whole thread;
//! it reads its key from `CODEX_API_KEY` alone and its address from its configuration alone; without the program
//! `codex-code-mode-host` beside it every tool call fails and the run still ends with code 0.

use ringfence_core::backend::ExitStatus;
use ringfence_core::event::{Event, Stream, Usage};
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::ids::SessionId;
use ringfence_core::text::PlainText;
use serde_json::{Value, json};

use crate::reading::{
    LastWords, at, document, mentions, no_result, notice, number_at, plain, status_in, text_at,
};
use crate::{
    AgentCli, CommandLine, Facts, Invocation, InvocationError, Login, Outcome, Package, Reader,
    checked_prompt,
};

pub(crate) struct Codex;

const FACTS: Facts = Facts {
    name: "codex",
    program: Some("codex"),
    install: "npm install -g @openai/codex",
    hosts: &["api.openai.com", "chatgpt.com", "auth.openai.com"],
    env: &["CODEX_HOME", "OPENAI_BASE_URL", "OPENAI_ORGANIZATION", "OPENAI_PROJECT"],
    login: Login {
        env: &["CODEX_API_KEY", "OPENAI_API_KEY"],
        paths: &[".codex/auth.json"],
        providers: &["openai", "chatgpt"],
        remedy: "run `codex login`, or set CODEX_API_KEY or OPENAI_API_KEY",
        question: &["login", "status"],
        ignores_keys: true,
        answer: |code, text| match code {
            0 => Some(true),
            _ if text.contains("Not logged in") => Some(false),
            _ => None,
        },
    },
    package: Some(Package {
        name: "@openai/codex",
        version: "0.166.0",
        programs: &[
            ("x86_64", "@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex"),
            ("aarch64", "@openai/codex-linux-arm64/vendor/aarch64-unknown-linux-musl/bin/codex"),
        ],
    }),
};

impl AgentCli for Codex {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn command(&self, invocation: &Invocation<'_>) -> Result<CommandLine, InvocationError> {
        let prompt = checked_prompt(invocation)?;
        let mut line = CommandLine::new(["codex"]);
        let headless: &[&str] = if invocation.interactive { &[] } else { &["exec"] };
        let resume: &[&str] = if invocation.session.is_some() { &["resume"] } else { &[] };
        let unattended: &[&str] =
            if invocation.interactive { &[] } else { &["--json", "--skip-git-repo-check"] };
        for arg in headless.iter().chain(resume).chain(unattended) {
            line = line.arg(*arg);
        }
        line = line.arg("--dangerously-bypass-approvals-and-sandbox");
        for setting in [
            "features.plugins=false",
            "analytics.enabled=false",
            // The broker reads what is sent to a model: for a budget, and for placeholders that do not belong there.
            "features.enable_request_compression=false",
            // The model's own shell has no business with keys.
            "shell_environment_policy.ignore_default_excludes=false",
        ] {
            line = line.arg("-c").arg(setting);
        }
        // It ignores the variable of this name, which people set for every other program of the provider.
        let base_url =
            invocation.base_url.or_else(|| invocation.env.get("OPENAI_BASE_URL").map(String::as_str));
        if let Some(url) = base_url {
            line = line.arg("-c").arg(format!("openai_base_url={}", Value::from(url)));
        }
        line = line
            .option("--model", invocation.model)
            .operands(invocation.session.map(SessionId::as_str).into_iter().chain(prompt));
        if let (None, Some(key)) = (invocation.env.get("CODEX_API_KEY"), invocation.env.get("OPENAI_API_KEY"))
        {
            line = line.env("CODEX_API_KEY", key);
        }
        Ok(line)
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(CodexReader::default())
    }
}

#[derive(Default)]
struct CodexReader {
    session: Option<SessionId>,
    text: PlainText,
    usage: Option<Usage>,
    stalled: Option<Failure>,
    failure: Option<Failure>,
    last_words: LastWords,
}

impl Reader for CodexReader {
    fn line(&mut self, stream: Stream, line: &str) -> Vec<Event> {
        if stream == Stream::Stderr {
            // Said at every start, whatever standard input is.
            if !line.starts_with("Reading additional input from stdin") {
                self.last_words.hear(line);
            }
            return plain(stream, line);
        }
        let Some(value) = document(line) else { return plain(stream, line) };
        match text_at(&value, &["type"]) {
            Some("thread.started") => {
                self.session = text_at(&value, &["thread_id"]).and_then(|id| id.parse().ok());
                self.session.iter().map(|session| Event::Session { session: session.clone() }).collect()
            }
            Some(kind @ ("item.started" | "item.completed")) => match value.get("item") {
                Some(item) => self.item(item, kind == "item.completed"),
                None => Vec::new(),
            },
            Some("error") => self.error(text_at(&value, &["message"]).unwrap_or_default()),
            Some("turn.completed") => {
                self.stalled = None;
                self.usage = Some(usage(&value));
                Vec::new()
            }
            Some("turn.failed") => {
                let message = text_at(&value, &["error", "message"]).unwrap_or("the turn failed");
                self.failure = Some(classify(message));
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn stalled(&self) -> Option<&Failure> {
        self.stalled.as_ref()
    }

    fn finish(&mut self, exit: ExitStatus, _: u64) -> Outcome {
        let failure = match (self.failure.take(), exit, self.usage) {
            (Some(failure), ..) => Some(failure),
            (None, ExitStatus::Code(0), Some(_)) => None,
            _ => Some(self.silent(exit)),
        };
        Outcome {
            text: std::mem::take(&mut self.text),
            session: self.session.clone(),
            usage: self.usage.unwrap_or_default(),
            usage_of_session: true,
            failure,
        }
    }
}

impl CodexReader {
    fn item(&mut self, item: &Value, completed: bool) -> Vec<Event> {
        let kind = text_at(item, &["type"]).unwrap_or_default();
        if kind == "error" {
            return self.warning(text_at(item, &["message"]).unwrap_or_default());
        }
        self.stalled = None;
        match (kind, completed) {
            ("agent_message", true) => {
                let text = PlainText::from(text_at(item, &["text"]).unwrap_or_default());
                self.text.clone_from(&text);
                vec![Event::Text { text }]
            }
            ("command_execution", false) => {
                let command = text_at(item, &["command"]).unwrap_or_default();
                vec![Event::ToolUse { tool: "shell".into(), input: json!({ "command": command }).into() }]
            }
            ("command_execution", true) => vec![Event::ToolResult {
                tool: Some("shell".into()),
                output: text_at(item, &["aggregated_output"]).unwrap_or_default().into(),
                is_error: at(item, &["exit_code"]).and_then(Value::as_i64) != Some(0),
            }],
            ("reasoning" | "agent_message", _) | (_, false) => Vec::new(),
            (tool, true) => vec![Event::ToolUse { tool: tool.into(), input: item.clone().into() }],
        }
    }

    fn warning(&mut self, message: &str) -> Vec<Event> {
        if mentions(message, &["code mode is unavailable"]) {
            let failure = Failure::new(FailureClass::CliMissing, message)
                .with_remedy("install codex whole: `codex-code-mode-host` belongs beside `codex`");
            // Every tool call would fail from here on, and the run would call itself a success.
            self.stalled = Some(failure.clone());
            self.failure = Some(failure);
        }
        notice(message)
    }

    fn error(&mut self, message: &str) -> Vec<Event> {
        if let Some(why) = message.strip_prefix("Reconnecting... ") {
            self.stalled = Some(classify(why));
        }
        notice(message)
    }

    fn silent(&self, exit: ExitStatus) -> Failure {
        let words = self.last_words.text();
        if mentions(&words, &["missing optional dependency"]) {
            return Failure::new(FailureClass::CliMissing, words).with_remedy(FACTS.install);
        }
        let failure = no_result("codex", exit, &self.last_words);
        match classify(&words) {
            Failure { class: FailureClass::AgentError, .. } => failure,
            told => Failure { message: failure.message, ..told },
        }
    }
}

/// codex tells its reasons in sentences only.
fn classify(message: &str) -> Failure {
    let class = if let Some(status) = status_in(message) {
        FailureClass::of_http_status(status)
    } else if mentions(message, &["quota exceeded", "usage limit", "rate limit"]) {
        FailureClass::Quota
    } else if mentions(message, &["high demand", "overloaded"]) {
        FailureClass::ModelOverloaded
    } else if mentions(
        message,
        &["not logged in", "missing environment variable", "refresh token", "codex login"],
    ) {
        FailureClass::AuthRequired
    } else if mentions(
        message,
        &[
            "waiting for network",
            "connection failed",
            "connection refused",
            "stream disconnected",
            "error sending",
        ],
    ) {
        FailureClass::Network
    } else {
        FailureClass::AgentError
    };
    let failure = Failure::new(class, message);
    if class == FailureClass::AuthRequired { failure.with_remedy(FACTS.login.remedy) } else { failure }
}

fn usage(value: &Value) -> Usage {
    let cached = number_at(value, &["usage", "cached_input_tokens"]);
    Usage {
        input_tokens: number_at(value, &["usage", "input_tokens"]).saturating_sub(cached),
        output_tokens: number_at(value, &["usage", "output_tokens"]),
        cached_tokens: cached,
        cost_usd: None,
    }
    .bounded()
}

#[cfg(test)]
#[path = "codex_tests.rs"]
mod tests;
