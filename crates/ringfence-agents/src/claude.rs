//! Claude Code: `claude -p`, stream-json.
//!
//! Learned from it: a result says `subtype: success` also for API errors, so `is_error` and the exit code decide; with
//! a temporary directory that cannot be written it ends with code 0 and says nothing at all; it retries a wrong key
//! ten times; as root it refuses to skip permissions unless it is told that it is in a sandbox.

use std::collections::BTreeMap;

use ringfence_core::backend::ExitStatus;
use ringfence_core::event::{Event, Stream, Usage};
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::ids::SessionId;
use ringfence_core::text::PlainText;
use ringfence_core::units::Seconds;
use serde_json::Value;

use crate::reading::{LastWords, at, document, mentions, no_result, notice, number_at, plain, text_at};
use crate::{
    AgentCli, CommandLine, Facts, Invocation, InvocationError, Login, Outcome, Package, Reader,
    checked_prompt,
};

pub(crate) struct Claude;

const FACTS: Facts = Facts {
    name: "claude",
    program: Some("claude"),
    install: "npm install -g @anthropic-ai/claude-code",
    hosts: &["api.anthropic.com"],
    env: &[
        "ANTHROPIC_BASE_URL",
        "ANTHROPIC_MODEL",
        "CLAUDE_CONFIG_DIR",
        "CLAUDE_CODE_MAX_RETRIES",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS",
        "API_TIMEOUT_MS",
    ],
    login: Login {
        env: &["ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"],
        paths: &[".claude/.credentials.json", ".config/claude"],
        providers: &["anthropic", "claude"],
        remedy: "run `claude /login`, or set ANTHROPIC_API_KEY or CLAUDE_CODE_OAUTH_TOKEN",
        question: &["auth", "status"],
        ignores_keys: false,
        answer: |_, text| {
            let from = text.find('{')?;
            let mut documents = serde_json::Deserializer::from_str(&text[from..]).into_iter::<Value>();
            documents.next()?.ok()?.get("loggedIn")?.as_bool()
        },
    },
    package: Some(Package {
        name: "@anthropic-ai/claude-code",
        version: "2.1.197",
        programs: &[
            ("x86_64", "@anthropic-ai/claude-code-linux-x64/claude"),
            ("aarch64", "@anthropic-ai/claude-code-linux-arm64/claude"),
        ],
    }),
};

impl AgentCli for Claude {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn command(&self, invocation: &Invocation<'_>) -> Result<CommandLine, InvocationError> {
        let prompt = checked_prompt(invocation)?;
        let headless: &[&str] = match invocation.interactive {
            true => &[],
            false => &["-p", "--output-format", "stream-json", "--verbose"],
        };
        let mut line = CommandLine::new(
            ["claude", "--dangerously-skip-permissions"].into_iter().chain(headless.iter().copied()),
        )
        .option("--model", invocation.model)
        .option("--resume", invocation.session.map(SessionId::as_str))
        .operands(prompt)
        // Telemetry carries the key to the provider's own host, whatever the base URL is.
        .env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
        // Retrying is the queue's work: it knows of quotas and other runs, and does not hold a sandbox meanwhile.
        .env("CLAUDE_CODE_MAX_RETRIES", "2");
        if invocation.is_root {
            line = line.env("IS_SANDBOX", "1").notice(
                "claude refuses to skip permissions as root, so it is told that it is in a sandbox (IS_SANDBOX=1)",
            );
        }
        if let Some(url) = invocation.base_url {
            line = line.force_env("ANTHROPIC_BASE_URL", url);
        }
        Ok(line)
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(ClaudeReader::default())
    }
}

#[derive(Default)]
struct ClaudeReader {
    session: Option<SessionId>,
    tools: BTreeMap<String, PlainText>,
    /// The last `error` of an assistant's message.
    error: Option<String>,
    /// When a rejected limit resets, in seconds since the epoch.
    resets_at: Option<u64>,
    stalled: Option<Failure>,
    result: Option<Value>,
    last_words: LastWords,
}

impl Reader for ClaudeReader {
    fn line(&mut self, stream: Stream, line: &str) -> Vec<Event> {
        if stream == Stream::Stderr {
            self.last_words.hear(line);
            return plain(stream, line);
        }
        let Some(value) = document(line) else {
            self.last_words.hear(line);
            return plain(stream, line);
        };
        match text_at(&value, &["type"]) {
            Some("system") => self.system(&value),
            Some("assistant") => self.assistant(&value),
            Some("user") => self.user(&value),
            Some("rate_limit_event") => {
                if text_at(&value, &["rate_limit_info", "status"]) == Some("rejected") {
                    self.resets_at = at(&value, &["rate_limit_info", "resetsAt"]).and_then(Value::as_u64);
                }
                Vec::new()
            }
            Some("result") => {
                self.stalled = None;
                self.result = Some(value);
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn stalled(&self) -> Option<&Failure> {
        self.stalled.as_ref()
    }

    fn finish(&mut self, exit: ExitStatus, now: u64) -> Outcome {
        let mut outcome = Outcome { session: self.session.clone(), ..Outcome::default() };
        let Some(result) = self.result.take() else {
            outcome.failure = Some(self.silent(exit));
            return outcome;
        };
        outcome.text = text_at(&result, &["result"]).unwrap_or_default().into();
        outcome.usage = usage(&result);
        let is_error = result.get("is_error").and_then(Value::as_bool).unwrap_or(true);
        if is_error || exit != ExitStatus::Code(0) {
            outcome.failure = Some(self.failure(&result, &outcome.text, now));
        }
        outcome
    }
}

impl ClaudeReader {
    fn system(&mut self, value: &Value) -> Vec<Event> {
        match text_at(value, &["subtype"]) {
            Some("init") => {
                self.session = text_at(value, &["session_id"]).and_then(|id| id.parse().ok());
                self.session.iter().map(|session| Event::Session { session: session.clone() }).collect()
            }
            Some("api_retry") => {
                let status = at(value, &["error_status"]).and_then(Value::as_u64);
                let error = text_at(value, &["error"]).unwrap_or("unknown");
                let class = match status.and_then(|status| u16::try_from(status).ok()) {
                    Some(status) => FailureClass::of_http_status(status),
                    None => FailureClass::Network,
                };
                let what = status.map_or_else(|| "no answer".to_owned(), |status| format!("status {status}"));
                let message = format!(
                    "claude tries again ({}/{}): {what}, {error}",
                    number_at(value, &["attempt"]),
                    number_at(value, &["max_retries"]),
                );
                let failure =
                    Failure::new(class, format!("the model's server does not serve: {what}, {error}"));
                self.stalled = Some(failure.with_remedy_of(class));
                notice(message)
            }
            _ => Vec::new(),
        }
    }

    fn assistant(&mut self, value: &Value) -> Vec<Event> {
        let blocks =
            at(value, &["message", "content"]).and_then(Value::as_array).cloned().unwrap_or_default();
        if let Some(error) = text_at(value, &["error"]) {
            // The text is claude's own account of an error, not the model's word.
            self.error = Some(error.to_owned());
            return blocks.iter().filter_map(|block| text_at(block, &["text"])).flat_map(notice).collect();
        }
        self.stalled = None;
        blocks.iter().filter_map(|block| self.block(block)).collect()
    }

    fn block(&mut self, block: &Value) -> Option<Event> {
        match text_at(block, &["type"])? {
            "text" => Some(Event::Text { text: text_at(block, &["text"])?.into() }),
            "tool_use" => {
                let tool = PlainText::from(text_at(block, &["name"])?);
                self.tools.insert(text_at(block, &["id"])?.to_owned(), tool.clone());
                Some(Event::ToolUse { tool, input: block.get("input").cloned().unwrap_or_default().into() })
            }
            _ => None,
        }
    }

    fn user(&mut self, value: &Value) -> Vec<Event> {
        let blocks = at(value, &["message", "content"]).and_then(Value::as_array);
        blocks
            .into_iter()
            .flatten()
            .filter(|block| text_at(block, &["type"]) == Some("tool_result"))
            .map(|block| Event::ToolResult {
                tool: text_at(block, &["tool_use_id"]).and_then(|id| self.tools.remove(id)),
                output: content_text(block.get("content")).into(),
                is_error: block.get("is_error").and_then(Value::as_bool).unwrap_or(false),
            })
            .collect()
    }

    fn silent(&self, exit: ExitStatus) -> Failure {
        let words = self.last_words.text();
        if mentions(&words, &["native binary not installed"]) {
            return Failure::new(FailureClass::CliMissing, words)
                .with_remedy("run the package's install script: `npm rebuild @anthropic-ai/claude-code`");
        }
        let failure = no_result("claude", exit, &self.last_words);
        match exit {
            ExitStatus::Code(0) => {
                failure.with_remedy("claude says nothing when TMPDIR cannot be written; check that it can")
            }
            _ if mentions(&words, &["no conversation found"]) => {
                failure.with_remedy("sessions belong to a directory; continue from where it began")
            }
            _ => failure,
        }
    }

    fn failure(&self, result: &Value, text: &str, now: u64) -> Failure {
        let subtype = text_at(result, &["subtype"]).unwrap_or_default();
        let class = match at(result, &["api_error_status"]).and_then(Value::as_u64) {
            Some(status) => u16::try_from(status).map_or(FailureClass::Unknown, FailureClass::of_http_status),
            None if matches!(subtype, "error_max_turns" | "error_max_budget_usd") => {
                FailureClass::BudgetExceeded
            }
            None => self.class_of_words(text),
        };
        let message = if text.is_empty() { errors(result, subtype) } else { text.to_owned() };
        let reset = self.resets_at.and_then(|at| Seconds::new(at.saturating_sub(now)));
        Failure::new(class, message).with_remedy_of(class).with_retry_after(reset)
    }

    fn class_of_words(&self, text: &str) -> FailureClass {
        match self.error.as_deref() {
            Some("authentication_failed") => FailureClass::AuthRequired,
            Some("billing_error" | "rate_limit") => FailureClass::Quota,
            Some("invalid_request" | "model_not_found") => FailureClass::AgentError,
            _ if mentions(text, &["not logged in", "/login", "oauth session expired"]) => {
                FailureClass::AuthRequired
            }
            _ if mentions(text, &["session limit", "usage limit"]) => FailureClass::Quota,
            _ if mentions(text, &["unable to connect", "timed out", "was lost", "econnreset"]) => {
                FailureClass::Network
            }
            Some("server_error" | "overloaded") => FailureClass::ModelOverloaded,
            _ => FailureClass::AgentError,
        }
    }
}

fn errors(result: &Value, subtype: &str) -> String {
    let errors = result.get("errors").and_then(Value::as_array).into_iter().flatten();
    let errors: Vec<_> = errors.filter_map(Value::as_str).collect();
    if errors.is_empty() { format!("claude ended with {subtype}") } else { errors.join("; ") }
}

fn content_text(content: Option<&Value>) -> String {
    match content {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(blocks)) => {
            let texts: Vec<_> = blocks.iter().filter_map(|block| text_at(block, &["text"])).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}

/// `modelUsage` counts every call; `usage` leaves the side calls out.
fn usage(result: &Value) -> Usage {
    let models = result.get("modelUsage").and_then(Value::as_object).into_iter().flatten();
    let mut sum =
        Usage { cost_usd: result.get("total_cost_usd").and_then(Value::as_f64), ..Usage::default() };
    for (_, model) in models {
        sum = sum.plus(Usage {
            input_tokens: number_at(model, &["inputTokens"])
                .saturating_add(number_at(model, &["cacheCreationInputTokens"])),
            output_tokens: number_at(model, &["outputTokens"]),
            cached_tokens: number_at(model, &["cacheReadInputTokens"]),
            cost_usd: None,
        });
    }
    sum.bounded()
}

trait WithRemedy {
    fn with_remedy_of(self, class: FailureClass) -> Self;
}

impl WithRemedy for Failure {
    fn with_remedy_of(self, class: FailureClass) -> Self {
        if class == FailureClass::AuthRequired { self.with_remedy(FACTS.login.remedy) } else { self }
    }
}

#[cfg(test)]
#[path = "claude_tests.rs"]
mod tests;
