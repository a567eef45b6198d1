//! Lines of a log, as people read them.

use maud::{Markup, html};
use ringfence_core::event::{Event, Stream};
use ringfence_store::runs::LogLine;
use serde_json::Value;

use super::view::{duration, money, tokens};

/// A longer text is folded.
const LONG: usize = 1200;

/// All whole lines of a piece of a log.
pub(super) fn lines(text: &[u8]) -> Markup {
    let parsed = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let parsed = parsed.filter_map(|line| serde_json::from_slice::<LogLine>(line).ok());
    html! { @for line in parsed { (one(&line)) } }
}

fn one(line: &LogLine) -> Markup {
    match &line.event {
        Event::Started { cli, mode, policy, .. } => {
            entry(line, "note", "began", &html! { (cli) " in " (mode) ", policy " (policy) })
        }
        Event::Session { session } => entry(line, "note", "session", &html! { (session) }),
        Event::Text { text } => entry(line, "text", "says", &folded(text)),
        Event::ToolUse { tool, input } => entry(line, "tool", tool, &html! { code { (argument(input)) } }),
        Event::ToolResult { output, is_error, .. } => entry(
            line,
            if *is_error { "wrong" } else { "result" },
            if *is_error { "failed" } else { "answer" },
            &folded(output),
        ),
        Event::Usage { usage } => {
            entry(line, "note", "used", &html! { (tokens(usage)) " · " (money(usage)) })
        }
        Event::Notice { message } => entry(line, "note", "notice", &html! { (message) }),
        Event::Output { stream, text } => {
            let kind = if *stream == Stream::Stderr { "stderr" } else { "stdout" };
            entry(line, kind, kind, &folded(text))
        }
        Event::Result(result) => {
            let kind = if result.failure.is_some() { "wrong" } else { "end" };
            entry(
                line,
                kind,
                "ended",
                &html! {
                    "after " (duration(result.duration_ms)) ", code " (result.exit_code)
                    @if let Some(failure) = &result.failure { ": " strong { (failure.class) } " " (failure.message) }
                },
            )
        }
    }
}

fn entry(line: &LogLine, kind: &str, name: &str, body: &Markup) -> Markup {
    let exact = crate::wire::time(line.at_ms);
    let clock = exact.get(11..19).unwrap_or_default().to_owned();
    html! { div class={ "entry " (kind) } { time datetime=(exact) { (clock) } b { (name) } div { (body) } } }
}

/// A text as it is; a long one behind its beginning.
fn folded(text: &str) -> Markup {
    match text.char_indices().nth(LONG) {
        None => html! { pre { (text) } },
        Some((end, _)) => html! {
            details { summary { pre { (&text[..end]) "…" } span.more { "all of it (" (text.len()) " bytes)" } } pre { (text) } }
        },
    }
}

/// What a tool is used for: the one word that says most.
fn argument(input: &Value) -> String {
    let known = ["command", "file_path", "path", "pattern", "url", "query", "description"];
    let text = known.iter().find_map(|name| input.get(name)?.as_str());
    let text = text.map_or_else(|| input.to_string(), str::to_owned);
    super::view::line(&text, 400)
}
