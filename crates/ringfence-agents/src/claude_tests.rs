//! What claude says, and what we make of it. The lines are shortened from what the program printed.

use ringfence_core::backend::ExitStatus;
use ringfence_core::event::{Event, Stream};
use ringfence_core::failure::FailureClass;

use super::{Claude, ClaudeReader};
use crate::{AgentCli, Outcome, Reader};

const INIT: &str = r#"{"type":"system","subtype":"init","session_id":"a98c0b15"}"#;

fn read(lines: &[&str], exit: ExitStatus) -> (Vec<Event>, Outcome) {
    let mut reader = ClaudeReader::default();
    let events = lines.iter().flat_map(|line| reader.line(Stream::Stdout, line)).collect();
    (events, reader.finish(exit, 1_000))
}

fn class(lines: &[&str], exit: u8) -> FailureClass {
    read(lines, ExitStatus::Code(exit)).1.failure.expect("a failure").class
}

#[test]
fn a_run_becomes_events_and_a_result() {
    let (events, outcome) = read(
        &[
            INIT,
            r#"{"type":"assistant","message":{"content":[{"type":"tool_use","id":"t1","name":"Write","input":{"file_path":"/w/a"}}]}}"#,
            r#"{"type":"user","message":{"content":[{"type":"tool_result","tool_use_id":"t1","content":"File created"}]}}"#,
            r#"{"type":"assistant","message":{"content":[{"type":"text","text":"Done."}]}}"#,
            r#"{"type":"result","subtype":"success","is_error":false,"result":"Done.","total_cost_usd":0.003,"modelUsage":{"m":{"inputTokens":300,"outputTokens":60,"cacheReadInputTokens":5,"cacheCreationInputTokens":1}}}"#,
        ],
        ExitStatus::Code(0),
    );
    assert!(matches!(&events[0], Event::Session { session } if session.as_str() == "a98c0b15"));
    assert!(matches!(&events[1], Event::ToolUse { tool, .. } if tool == "Write"));
    assert!(
        matches!(&events[2], Event::ToolResult { tool: Some(tool), output, is_error: false } if tool == "Write" && output == "File created")
    );
    assert!(matches!(&events[3], Event::Text { text } if text == "Done."));
    assert_eq!((outcome.text.as_str(), outcome.failure), ("Done.", None));
    assert_eq!(
        (outcome.usage.input_tokens, outcome.usage.output_tokens, outcome.usage.cached_tokens),
        (301, 60, 5)
    );
    assert_eq!(outcome.usage.cost_usd, Some(0.003));
}

#[test]
fn success_in_name_is_not_success() {
    let result = r#"{"type":"result","subtype":"success","is_error":true,"api_error_status":401,"result":"Invalid API key"}"#;
    assert_eq!(class(&[INIT, result], 1), FailureClass::AuthRequired);
}

#[test]
fn code_0_without_a_result_is_a_failure() {
    let (_, outcome) = read(&[], ExitStatus::Code(0));
    let failure = outcome.failure.unwrap();
    assert_eq!(failure.class, FailureClass::AgentError);
    assert!(failure.remedy.unwrap().contains("TMPDIR"));
}

#[test]
fn api_errors_become_classes() {
    let result = |status: &str, text: &str| {
        format!(
            r#"{{"type":"result","subtype":"success","is_error":true,"api_error_status":{status},"result":"{text}"}}"#
        )
    };
    let error = |kind: &str| format!(r#"{{"type":"assistant","error":"{kind}","message":{{"content":[]}}}}"#);
    for (kind, status, text, expected) in [
        ("rate_limit", "429", "API Error: Request rejected (429)", FailureClass::Quota),
        ("server_error", "529", "API Error: 529 Overloaded", FailureClass::ModelOverloaded),
        ("server_error", "500", "API Error: 500", FailureClass::ModelOverloaded),
        (
            "server_error",
            "null",
            "API Error: Unable to connect to API (ConnectionRefused)",
            FailureClass::Network,
        ),
        ("server_error", "null", "Connection to the API was lost (ECONNRESET)", FailureClass::Network),
        ("authentication_failed", "null", "Not logged in · Please run /login", FailureClass::AuthRequired),
        (
            "authentication_failed",
            "403",
            "Failed to authenticate. API Error: 403",
            FailureClass::AuthRequired,
        ),
        ("billing_error", "null", "Credit balance is too low", FailureClass::Quota),
        ("rate_limit", "null", "You've hit your session limit · resets 7:56pm (UTC)", FailureClass::Quota),
        ("model_not_found", "404", "There's an issue with the selected model", FailureClass::AgentError),
    ] {
        assert_eq!(class(&[INIT, &error(kind), &result(status, text)], 1), expected, "{text}");
    }
}

#[test]
fn a_quota_carries_the_providers_reset() {
    let lines = [
        INIT,
        r#"{"type":"rate_limit_event","rate_limit_info":{"status":"rejected","resetsAt":4600,"rateLimitType":"five_hour"}}"#,
        r#"{"type":"assistant","error":"rate_limit","message":{"content":[]}}"#,
        r#"{"type":"result","subtype":"success","is_error":true,"api_error_status":429,"result":"limit"}"#,
    ];
    let failure = read(&lines, ExitStatus::Code(1)).1.failure.unwrap();
    assert_eq!(failure.retry_after_seconds.unwrap().count(), 3600);
}

#[test]
fn a_retry_shows_as_a_stall_until_there_is_progress() {
    let mut reader = ClaudeReader::default();
    let retry = r#"{"type":"system","subtype":"api_retry","attempt":1,"max_retries":2,"retry_delay_ms":571.1,"error_status":401,"error":"authentication_failed"}"#;
    reader.line(Stream::Stdout, retry);
    assert_eq!(reader.stalled().unwrap().class, FailureClass::AuthRequired);
    reader
        .line(Stream::Stdout, r#"{"type":"assistant","message":{"content":[{"type":"text","text":"hi"}]}}"#);
    assert_eq!(reader.stalled(), None);
}

#[test]
fn only_root_is_told_that_it_is_in_a_sandbox() {
    for is_root in [true, false] {
        let line = Claude
            .command(&crate::Invocation {
                prompt: "-x",
                model: Some("m"),
                base_url: None,
                session: Some(&"s1".parse().unwrap()),
                command: None,
                own_program: "",
                env: &Default::default(),
                is_root,
                interactive: false,
            })
            .unwrap();
        assert_eq!(line.env.contains_key("IS_SANDBOX"), is_root);
        assert!(line.argv.ends_with(&["--model", "m", "--resume", "s1", "--", "-x"].map(String::from)));
    }
}

#[test]
fn forged_numbers_are_bounded_or_dropped() {
    for (cost, expected) in [("-5.5", None), ("1e308", Some(1e9)), ("0.25", Some(0.25))] {
        let line =
        r#"{"type":"result","subtype":"success","is_error":false,"result":"x","total_cost_usd":COST,"modelUsage":{"a":{"inputTokens":18446744073709551615,"cacheCreationInputTokens":18446744073709551615,"outputTokens":18446744073709551615},"b":{"inputTokens":1}}}"#
                .replace("COST", cost);
        let usage = read(&[&line], ExitStatus::Code(0)).1.usage;
        assert_eq!((usage.input_tokens, usage.output_tokens), (1 << 40, 1 << 40), "{cost}");
        assert_eq!(usage.cost_usd, expected, "{cost}");
    }
}
