//! What codex says, and what we make of it. The lines are shortened from what the program printed.

use std::collections::BTreeMap;

use ringfence_core::backend::ExitStatus;
use ringfence_core::event::{Event, Stream};
use ringfence_core::failure::FailureClass;

use super::{Codex, CodexReader, classify};
use crate::{AgentCli, Invocation, Outcome, Reader};

fn read(lines: &[&str], exit: ExitStatus) -> (Vec<Event>, Outcome) {
    let mut reader = CodexReader::default();
    let events = lines.iter().flat_map(|line| reader.line(Stream::Stdout, line)).collect();
    (events, reader.finish(exit, 0))
}

const STARTED: &str = r#"{"type":"thread.started","thread_id":"01a1"}"#;
const COMPLETED: &str =
    r#"{"type":"turn.completed","usage":{"input_tokens":300,"cached_input_tokens":100,"output_tokens":60}}"#;

#[test]
fn a_run_becomes_events_and_a_result() {
    let (events, outcome) = read(
        &[
            STARTED,
            r#"{"type":"item.started","item":{"type":"command_execution","command":"ls"}}"#,
            r#"{"type":"item.completed","item":{"type":"command_execution","command":"ls","aggregated_output":"a\n","exit_code":1}}"#,
            r#"{"type":"item.completed","item":{"type":"agent_message","text":"Done."}}"#,
            COMPLETED,
        ],
        ExitStatus::Code(0),
    );
    assert!(matches!(&events[0], Event::Session { session } if session.as_str() == "01a1"));
    assert!(
        matches!(&events[1], Event::ToolUse { tool, input } if tool == "shell" && input["command"] == "ls")
    );
    assert!(matches!(&events[2], Event::ToolResult { output, is_error: true, .. } if output == "a\n"));
    assert_eq!((outcome.text.as_str(), outcome.failure.as_ref()), ("Done.", None));
    assert_eq!(
        (outcome.usage.input_tokens, outcome.usage.cached_tokens, outcome.usage.output_tokens),
        (200, 100, 60)
    );
    assert!(outcome.usage_of_session, "codex counts the whole thread");
}

#[test]
fn an_end_without_a_completed_turn_is_a_failure() {
    for exit in [ExitStatus::Code(0), ExitStatus::Code(1), ExitStatus::Signal(9)] {
        assert!(read(&[STARTED], exit).1.failure.is_some(), "{exit:?}");
    }
}

#[test]
fn sentences_become_classes() {
    for (message, expected) in [
        (
            "unexpected status 401 Unauthorized: Incorrect API key, url: http://x/v1/responses",
            FailureClass::AuthRequired,
        ),
        ("exceeded retry limit, last status: 429 Too Many Requests", FailureClass::Quota),
        ("Quota exceeded. Check your plan and billing details.", FailureClass::Quota),
        ("unexpected status 529 <unknown status code>: Overloaded", FailureClass::ModelOverloaded),
        (
            "We’re currently experiencing high demand, which may cause temporary errors.",
            FailureClass::ModelOverloaded,
        ),
        ("stream disconnected before completion: error sending request", FailureClass::Network),
        ("waiting for network (Connection failed: error sending request)", FailureClass::Network),
        ("Missing environment variable: `X`.", FailureClass::AuthRequired),
        ("Failed to refresh token: nope", FailureClass::AuthRequired),
        ("something else", FailureClass::AgentError),
    ] {
        assert_eq!(classify(message).class, expected, "{message}");
    }
}

#[test]
fn reconnecting_without_end_shows_as_a_stall() {
    let mut reader = CodexReader::default();
    let line = r#"{"type":"error","message":"Reconnecting... waiting for network (Connection failed: error sending request)"}"#;
    reader.line(Stream::Stdout, line);
    assert_eq!(reader.stalled().unwrap().class, FailureClass::Network);
    reader.line(Stream::Stdout, r#"{"type":"item.completed","item":{"type":"agent_message","text":"hi"}}"#);
    assert_eq!(reader.stalled(), None);
}

#[test]
fn a_missing_code_mode_host_is_a_failure_although_codex_says_0() {
    let warning = r#"{"type":"item.completed","item":{"type":"error","message":"Code Mode is unavailable because failed to spawn code-mode host"}}"#;
    let failure = read(&[STARTED, warning, COMPLETED], ExitStatus::Code(0)).1.failure.unwrap();
    assert_eq!(failure.class, FailureClass::CliMissing);
}

#[test]
fn a_warning_about_a_model_is_not_a_failure() {
    let warning =
        r#"{"type":"item.completed","item":{"type":"error","message":"Model metadata for `m` not found."}}"#;
    assert_eq!(read(&[STARTED, warning, COMPLETED], ExitStatus::Code(0)).1.failure, None);
}

#[test]
fn what_codex_ignores_reaches_it_another_way() {
    let env = BTreeMap::from([
        ("OPENAI_API_KEY".to_owned(), "k".to_owned()),
        ("OPENAI_BASE_URL".to_owned(), "http://127.0.0.1:1/v1".to_owned()),
    ]);
    let session = "01a1".parse().unwrap();
    let line = Codex
        .command(&Invocation {
            prompt: "-go",
            model: None,
            base_url: None,
            session: Some(&session),
            command: None,
            own_program: "",
            env: &env,
            is_root: false,
            interactive: false,
        })
        .unwrap();
    assert_eq!(line.env["CODEX_API_KEY"], "k");
    assert!(line.argv.contains(&"openai_base_url=\"http://127.0.0.1:1/v1\"".to_owned()));
    assert_eq!(line.argv[..3], ["codex", "exec", "resume"].map(String::from));
    assert!(line.argv.ends_with(&["--", "01a1", "-go"].map(String::from)));
}
