//! A run as people see it: the agent's words on standard output, everything about the run on standard error.

use std::io::{self, IsTerminal};

use anstyle::{AnsiColor, Style};
use ringfence_core::event::{Attachment, Event, RunResult, RunStatus, Stream, Usage};
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::text::{PlainText, escaped};
use ringfence_engine::Observer;
use serde_json::Value;

use crate::terminal::{self, about, indented};

const DIM: Style = Style::new().dimmed();
const BOLD: Style = Style::new().bold();
const GREEN: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Green)));
const YELLOW: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Yellow)));
const RED: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Red)));
const CYAN: Style = Style::new().fg_color(Some(anstyle::Color::Ansi(AnsiColor::Cyan)));

/// The most of a tool's answer that is worth a person's screen.
const SHOWN_LINES: usize = 6;
const SHOWN_WIDTH: usize = 160;

/// Tells people.
pub(crate) struct Human;

impl Observer for Human {
    fn event(&mut self, event: &Event) -> io::Result<()> {
        match event {
            Event::Started { run, cli, mode, policy } => {
                about(format!(
                    "{BOLD}{cli}{BOLD:#} in {BOLD}{mode}{BOLD:#}, policy {policy} {DIM}· run {run}{DIM:#}"
                ));
            }
            Event::Text { text } | Event::Output { stream: Stream::Stdout, text } => {
                return terminal::try_line(text);
            }
            Event::ToolUse { tool, input } => {
                about(format!("{CYAN}→ {tool}{CYAN:#} {}", gist(input)));
            }
            Event::ToolResult { output, is_error, .. } => answer(output, *is_error),
            Event::Notice { message } => indented(format!("{YELLOW}!{YELLOW:#} {message}")),
            Event::Output { stream: Stream::Stderr, text } => {
                about(format!("{DIM}{text}{DIM:#}"));
            }
            Event::Result(result) => end(result),
            Event::Session { .. } | Event::Usage { .. } => {}
        }
        Ok(())
    }

    fn raw(&mut self, _: Stream, _: &[u8]) -> io::Result<()> {
        Ok(())
    }
}

/// The one field of a tool's input that says what it is about.
fn gist(input: &Value) -> String {
    let fields =
        ["command", "file_path", "filePath", "path", "pattern", "query", "url", "description", "forbidden"];
    let text = fields.iter().find_map(|field| input.get(field)?.as_str().map(str::to_owned));
    clip(&text.unwrap_or_else(|| if input.is_null() { String::new() } else { input.to_string() }))
}

fn clip(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let short: String = line.chars().take(SHOWN_WIDTH).collect();
    if short.len() < text.len() { format!("{short} …") } else { short }
}

fn answer(output: &str, is_error: bool) {
    let style = if is_error { RED } else { DIM };
    let lines: Vec<&str> = output.trim_end().lines().collect();
    for line in lines.iter().take(SHOWN_LINES) {
        about(format!("  {style}{}{style:#}", clip(line)));
    }
    if lines.len() > SHOWN_LINES {
        about(format!("  {DIM}… {} more lines{DIM:#}", lines.len() - SHOWN_LINES));
    }
}

/// The files of the last word, and those that it named in vain.
fn attached(result: &RunResult) {
    for Attachment { path, size, media_type, copy, .. } in &result.attachments {
        let copy = copy.as_ref().map(|copy| format!(" → {}", copy.display())).unwrap_or_default();
        let path = escaped(&path.display().to_string());
        about(format!("{DIM}attached {path} ({media_type}, {size} bytes){copy}{DIM:#}"));
    }
    if let Some(at) = result.text.find(Attachment::WARNING) {
        about(&result.text[at..]);
    }
}

fn end(result: &RunResult) {
    attached(result);
    let seconds = result.duration_ms as f64 / 1000.0;
    let usage = spent(&result.usage);
    let session = result.session.as_ref().map(|id| format!(" · session {id}")).unwrap_or_default();
    let left = match result.leftover_processes {
        0 => String::new(),
        1 => " · ended 1 process that was left".to_owned(),
        count => format!(" · ended {count} processes that were left"),
    };
    let alive = match result.surviving_processes {
        0 => String::new(),
        count => format!(" · {count} could not be ended"),
    };
    let facts = format!("{DIM}{seconds:.1} s{usage}{session}{left}{alive}{DIM:#}");
    match (&result.failure, result.status) {
        (None, _) => about(format!("{GREEN}✓ done{GREEN:#} {facts}")),
        (Some(_), RunStatus::Cancelled) => about(format!("{YELLOW}✗ cancelled{YELLOW:#} {facts}")),
        (Some(failure), _) => {
            indented(format!("{RED}✗ {}{RED:#} {} {facts}", failure.class, failure.message));
            if let Some(remedy) = failure.remedy.as_ref().filter(|remedy| !remedy.is_empty()) {
                indented(format!("  {remedy}"));
            }
            if let Some(wait) = failure.retry_after_seconds {
                about(format!("  the provider says to come back in {wait}"));
            }
        }
    }
}

pub(crate) fn spent(usage: &Usage) -> String {
    if *usage == Usage::default() {
        return String::new();
    }
    let cost =
        usage.cost_usd.filter(|cost| *cost > 0.0).map(|cost| format!(", ${cost:.4}")).unwrap_or_default();
    format!(
        " · {} tokens in, {} out{cost}",
        usage.input_tokens.saturating_add(usage.cached_tokens),
        usage.output_tokens
    )
}

/// Tells programs: one event a line.
pub(crate) struct Json;

impl Observer for Json {
    fn event(&mut self, event: &Event) -> io::Result<()> {
        terminal::json_line(event)
    }

    fn raw(&mut self, _: Stream, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn unkept(&mut self, failure: &Failure) {
        crate::report::print(&failure.message, failure.remedy.as_deref());
    }
}

/// Tells nobody: what happens is in the log.
pub(crate) struct Nobody;

impl Observer for Nobody {
    fn event(&mut self, _: &Event) -> io::Result<()> {
        Ok(())
    }

    fn raw(&mut self, _: Stream, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn unkept(&mut self, failure: &Failure) {
        crate::report::print(&failure.message, failure.remedy.as_deref());
    }
}

/// Passes a program's output through untouched, and speaks only of failures that are not the program's own.
#[derive(Default)]
pub(crate) struct Through {
    /// Present if the user is asked for hosts at the terminal: then the program must not steer it.
    plain: Option<[Unfinished; 2]>,
}

impl Through {
    /// Passes output to a terminal as plain text, without anything that steers it.
    pub(crate) fn plain_at_terminal() -> Self {
        Self { plain: Some(Default::default()) }
    }
}

/// The bytes of a character that has not come as a whole.
#[derive(Default)]
struct Unfinished(Vec<u8>);

impl Unfinished {
    /// All whole characters, as plain text.
    fn plain(&mut self, bytes: &[u8]) -> PlainText {
        self.0.extend_from_slice(bytes);
        let end = match std::str::from_utf8(&self.0) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            // In the middle of other bytes that are no text, the beginning of a character may be lost.
            _ => self.0.len(),
        };
        let rest = self.0.split_off(end);
        PlainText::from_bytes(&std::mem::replace(&mut self.0, rest))
    }
}

impl Observer for Through {
    fn event(&mut self, event: &Event) -> io::Result<()> {
        match event {
            // A script that looks at standard error has not asked for this; a person has.
            Event::Notice { message } if io::stderr().is_terminal() => {
                indented(format!("{YELLOW}!{YELLOW:#} {message}"));
            }
            Event::Result(result) => {
                // A user at a terminal has read the notice of the same words.
                if !io::stderr().is_terminal()
                    && let Some(message) = ringfence_engine::executed_notice(&result.executed_later)
                {
                    indented(format!("{YELLOW}!{YELLOW:#} {message}"));
                }
                // A failure of the program's own has its exit code to speak for it.
                if let Some(failure) = &result.failure
                    && (failure.class != FailureClass::AgentError || failure.remedy.is_some())
                {
                    crate::report::print(&failure.message, failure.remedy.as_deref());
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn warning(&mut self, message: &str) {
        // A user at a terminal reads the notice of the same words.
        if !io::stderr().is_terminal() {
            indented(format!("{YELLOW}!{YELLOW:#} {message}"));
        }
    }

    fn raw(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        let (is_terminal, index) = match stream {
            Stream::Stdout => (io::stdout().is_terminal(), 0),
            Stream::Stderr => (io::stderr().is_terminal(), 1),
        };
        match &mut self.plain {
            Some(streams) if is_terminal => {
                terminal::raw(stream, streams[index].plain(bytes).as_str().as_bytes())
            }
            _ => terminal::pass_on(stream, bytes),
        }
    }
}

/// How long ago something happened.
pub(crate) fn ago(at_ms: u64) -> String {
    let now = std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs());
    let seconds = now.saturating_sub(at_ms / 1000);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86400),
    }
}

/// A time as people read it.
pub(crate) fn clock(at_ms: u64) -> String {
    let time = i64::try_from(at_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    time.map(|time| format!("{time:.3}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::Unfinished;

    #[test]
    fn characters_in_pieces_are_whole_and_steer_nothing() {
        let mut unfinished = Unfinished::default();
        let text = "gr\u{fc}n\u{1b}[2J \u{1f600}".as_bytes();
        let shown: String = text.iter().map(|byte| unfinished.plain(&[*byte]).into_string()).collect();
        assert!(shown.starts_with("gr\u{fc}n") && shown.ends_with('\u{1f600}'), "{shown}");
        assert!(!shown.contains('\u{1b}'), "{shown:?}");
        assert_eq!(unfinished.plain(b"\xff\xfeok").as_str(), "\u{fffd}\u{fffd}ok");
    }
}
