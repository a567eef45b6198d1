//! opencode: `opencode run --format json`.
//!
//! Learned from it: there is no final event, so the last step's reason decides; a permission that asks is denied in
//! silence and the run still ends with code 0; while it retries, for more than a minute, it says nothing.

use ringfence_core::backend::ExitStatus;
use ringfence_core::event::{Event, Stream, Usage};
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::ids::SessionId;
use ringfence_core::text::PlainText;
use ringfence_core::units::Seconds;
use serde_json::{Value, json};

use crate::reading::{LastWords, at, document, mentions, no_result, number_at, plain, text_at};
use crate::{
    AgentCli, CommandLine, Facts, Invocation, InvocationError, Login, Outcome, Package, Reader,
    checked_prompt,
};

pub(crate) struct Opencode;

const FACTS: Facts = Facts {
    name: "opencode",
    program: Some("opencode"),
    install: "npm install -g opencode-ai",
    hosts: &["api.anthropic.com", "api.openai.com", "opencode.ai", "models.opencode.ai"],
    env: &[
        "OPENCODE_CONFIG",
        "OPENCODE_CONFIG_CONTENT",
        "OPENCODE_CONFIG_DIR",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
    ],
    login: Login {
        env: &[
            "ANTHROPIC_API_KEY",
            "OPENAI_API_KEY",
            "OPENROUTER_API_KEY",
            "GEMINI_API_KEY",
            "OPENCODE_API_KEY",
        ],
        paths: &[".local/share/opencode/auth.json"],
        providers: &["opencode"],
        remedy: "run `opencode auth login`, or set the provider's key",
        question: &["auth", "list"],
        ignores_keys: false,
        // It says `N credentials`, and `N environment variables` if there are some.
        answer: |code, text| {
            let words: Vec<&str> = text.split_whitespace().collect();
            let count = |what: &str| {
                let pairs = words.windows(2).filter(|pair| pair[1].starts_with(what));
                pairs.filter_map(|pair| pair[0].parse::<u32>().ok()).next_back()
            };
            let (kept, given) = (count("credential"), count("environment"));
            (code == 0 && (kept.is_some() || given.is_some()))
                .then(|| kept.unwrap_or(0) + given.unwrap_or(0) > 0)
        },
    },
    package: Some(Package {
        name: "opencode-ai",
        version: "1.18.33",
        // The one that runs on older processors too.
        programs: &[
            ("x86_64", "opencode-linux-x64-baseline/bin/opencode"),
            ("aarch64", "opencode-linux-arm64/bin/opencode"),
        ],
    }),
};

impl AgentCli for Opencode {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn command(&self, invocation: &Invocation<'_>) -> Result<CommandLine, InvocationError> {
        let prompt = checked_prompt(invocation)?;
        let headless: &[&str] =
            if invocation.interactive { &[] } else { &["run", "--format", "json", "--auto"] };
        let line = CommandLine::new(["opencode"].into_iter().chain(headless.iter().copied()))
            .option("--model", invocation.model)
            .option("--session", invocation.session.map(SessionId::as_str));
        // Without `run` what stands alone is a directory.
        let line =
            if invocation.interactive { line.option("--prompt", prompt) } else { line.operands(prompt) };
        let mut line = line.env("OPENCODE_DISABLE_AUTOUPDATE", "1");
        if let Some(url) = invocation.base_url {
            line = line.force_env("OPENCODE_CONFIG_CONTENT", provider_config(url, invocation.model)?);
        }
        Ok(line)
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(OpencodeReader::default())
    }
}

/// A provider at an address of its own. The key is named, not written.
fn provider_config(url: &str, model: Option<&str>) -> Result<String, InvocationError> {
    let model = model.unwrap_or_default();
    let (provider, name) =
        model.split_once('/').ok_or_else(|| InvocationError::ModelWithoutProvider(model.to_owned()))?;
    let config = json!({
        "small_model": model,
        "provider": { provider: {
            "npm": "@ai-sdk/openai-compatible",
            "options": { "baseURL": url, "apiKey": "{env:OPENAI_API_KEY}" },
            "models": { name: {} },
        }},
    });
    Ok(config.to_string())
}

#[derive(Default)]
struct OpencodeReader {
    session: Option<SessionId>,
    text: PlainText,
    usage: Usage,
    /// Why the last step ended.
    reason: Option<String>,
    failure: Option<Failure>,
    last_words: LastWords,
}

impl Reader for OpencodeReader {
    fn line(&mut self, stream: Stream, line: &str) -> Vec<Event> {
        let value = match document(line) {
            Some(value) if stream == Stream::Stdout => value,
            _ => {
                self.last_words.hear(line);
                return plain(stream, line);
            }
        };
        let mut events = Vec::new();
        if self.session.is_none()
            && let Some(session) = text_at(&value, &["sessionID"]).and_then(|id| id.parse::<SessionId>().ok())
        {
            self.session = Some(session.clone());
            events.push(Event::Session { session });
        }
        match text_at(&value, &["type"]) {
            Some("text") => {
                let text = PlainText::from(text_at(&value, &["part", "text"]).unwrap_or_default());
                self.text.clone_from(&text);
                events.push(Event::Text { text });
            }
            Some("tool_use") => events.extend(tool(&value)),
            Some("step_finish") => {
                self.usage = self.usage.plus(step_usage(&value)).bounded();
                self.reason = text_at(&value, &["part", "reason"]).map(str::to_owned);
                events.push(Event::Usage { usage: self.usage });
            }
            Some("error") => self.failure = value.get("error").map(classify),
            _ => {}
        }
        events
    }

    /// It tells of no retries.
    fn stalled(&self) -> Option<&Failure> {
        None
    }

    fn finish(&mut self, exit: ExitStatus, _: u64) -> Outcome {
        let failure = match (self.failure.take(), exit, self.reason.as_deref()) {
            (Some(failure), ..) => Some(failure),
            (None, ExitStatus::Code(0), Some("stop")) => None,
            (None, ExitStatus::Code(0), Some(reason)) => Some(
                Failure::new(
                    FailureClass::AgentError,
                    format!("opencode stopped in the middle of its work ({reason}) and gave no answer"),
                )
                .with_remedy(
                    "a permission that asks is denied in a headless run; set it to `allow` or `deny`",
                ),
            ),
            _ => Some(self.silent(exit)),
        };
        Outcome {
            text: std::mem::take(&mut self.text),
            session: self.session.clone(),
            usage: self.usage,
            usage_of_session: false,
            failure,
        }
    }
}

impl OpencodeReader {
    fn silent(&self, exit: ExitStatus) -> Failure {
        let failure = no_result("opencode", exit, &self.last_words);
        if mentions(&failure.message, &["session not found"]) {
            return failure.with_remedy("continue with an id that `ringfence runs show` prints");
        }
        failure
    }
}

fn tool(value: &Value) -> Vec<Event> {
    let Some(state) = at(value, &["part", "state"]) else { return Vec::new() };
    let tool = text_at(value, &["part", "tool"]).unwrap_or("tool");
    let failed = text_at(state, &["status"]) == Some("error");
    let exit = at(state, &["metadata", "exit"]).and_then(Value::as_i64);
    let output = text_at(state, &["output"]).or_else(|| text_at(state, &["error"])).unwrap_or_default();
    vec![
        Event::ToolUse { tool: tool.into(), input: state.get("input").cloned().unwrap_or_default().into() },
        Event::ToolResult {
            tool: Some(tool.into()),
            output: output.into(),
            is_error: failed || exit.is_some_and(|code| code != 0),
        },
    ]
}

fn step_usage(value: &Value) -> Usage {
    Usage {
        input_tokens: number_at(value, &["part", "tokens", "input"])
            .saturating_add(number_at(value, &["part", "tokens", "cache", "write"])),
        output_tokens: number_at(value, &["part", "tokens", "output"])
            .saturating_add(number_at(value, &["part", "tokens", "reasoning"])),
        cached_tokens: number_at(value, &["part", "tokens", "cache", "read"]),
        cost_usd: at(value, &["part", "cost"]).and_then(Value::as_f64),
    }
    .bounded()
}

fn classify(error: &Value) -> Failure {
    let name = text_at(error, &["name"]).unwrap_or("error");
    let message = text_at(error, &["data", "message"]).unwrap_or(name);
    let status =
        at(error, &["data", "statusCode"]).and_then(Value::as_u64).and_then(|s| u16::try_from(s).ok());
    let retryable = at(error, &["data", "isRetryable"]).and_then(Value::as_bool).unwrap_or(false);
    let class = match (name, status) {
        (_, Some(status)) => FailureClass::of_http_status(status),
        ("ProviderAuthError", None) => FailureClass::AuthRequired,
        ("APIError", None) if retryable => FailureClass::Network,
        _ if mentions(message, &["cannot connect", "connection reset", "unable to connect"]) => {
            FailureClass::Network
        }
        _ => FailureClass::AgentError,
    };
    let retry_after = text_at(error, &["data", "responseHeaders", "retry-after"])
        .and_then(|text| text.trim().parse().ok())
        .and_then(Seconds::new);
    let failure = Failure::new(class, message);
    match class {
        FailureClass::AuthRequired => failure.with_remedy(FACTS.login.remedy),
        FailureClass::Quota => failure.with_retry_after(retry_after),
        FailureClass::AgentError if name == "UnknownError" => {
            failure.with_remedy("check the model's name and the provider's login")
        }
        _ => failure,
    }
}

#[cfg(test)]
#[path = "opencode_tests.rs"]
mod tests;
