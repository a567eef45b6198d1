//! What opencode says, and what we make of it. The lines are shortened from what the program printed.

use ringfence_core::backend::ExitStatus;
use ringfence_core::event::{Event, Stream};
use ringfence_core::failure::FailureClass;

use super::OpencodeReader;
use crate::{Outcome, Reader};

fn read(lines: &[&str], exit: ExitStatus) -> (Vec<Event>, Outcome) {
    let mut reader = OpencodeReader::default();
    let events = lines.iter().flat_map(|line| reader.line(Stream::Stdout, line)).collect();
    (events, reader.finish(exit, 0))
}

fn step(reason: &str) -> String {
    format!(
        r#"{{"type":"step_finish","sessionID":"ses_1","part":{{"reason":"{reason}","tokens":{{"input":100,"output":20,"reasoning":1,"cache":{{"read":7,"write":2}}}},"cost":0.5}}}}"#
    )
}

const TEXT: &str = r#"{"type":"text","sessionID":"ses_1","part":{"text":"Done."}}"#;

#[test]
fn steps_add_up_to_a_result() {
    let tool = r#"{"type":"tool_use","sessionID":"ses_1","part":{"tool":"bash","state":{"status":"completed","input":{"command":"ls"},"output":"a\n","metadata":{"exit":0}}}}"#;
    let (events, outcome) = read(&[tool, &step("tool-calls"), TEXT, &step("stop")], ExitStatus::Code(0));
    assert!(matches!(&events[0], Event::Session { session } if session.as_str() == "ses_1"));
    assert!(matches!(&events[1], Event::ToolUse { tool, .. } if tool == "bash"));
    assert!(matches!(&events[2], Event::ToolResult { is_error: false, .. }));
    assert_eq!((outcome.text.as_str(), outcome.failure), ("Done.", None));
    assert_eq!(
        (outcome.usage.input_tokens, outcome.usage.output_tokens, outcome.usage.cached_tokens),
        (204, 42, 14)
    );
    assert_eq!(outcome.usage.cost_usd, Some(1.0));
}

#[test]
fn a_denied_permission_is_a_failure_although_opencode_says_0() {
    let failure = read(&[&step("tool-calls")], ExitStatus::Code(0)).1.failure.unwrap();
    assert!(failure.remedy.unwrap().contains("permission"));
}

#[test]
fn an_end_without_a_step_is_a_failure() {
    for exit in [ExitStatus::Code(0), ExitStatus::Code(1), ExitStatus::Signal(9)] {
        assert!(read(&[], exit).1.failure.is_some(), "{exit:?}");
    }
}

#[test]
fn errors_become_classes() {
    for (error, expected, wait) in [
        (
            r#"{"name":"APIError","data":{"message":"m","statusCode":401,"isRetryable":false}}"#,
            FailureClass::AuthRequired,
            None,
        ),
        (
            r#"{"name":"APIError","data":{"message":"m","statusCode":429,"isRetryable":true,"responseHeaders":{"retry-after":"7"}}}"#,
            FailureClass::Quota,
            Some(7),
        ),
        (
            r#"{"name":"APIError","data":{"message":"m","statusCode":429,"isRetryable":true}}"#,
            FailureClass::Quota,
            None,
        ),
        (
            r#"{"name":"APIError","data":{"message":"m","statusCode":529,"isRetryable":true}}"#,
            FailureClass::ModelOverloaded,
            None,
        ),
        (
            r#"{"name":"APIError","data":{"message":"Cannot connect to API","isRetryable":true}}"#,
            FailureClass::Network,
            None,
        ),
        (
            r#"{"name":"UnknownError","data":{"message":"Unexpected server error. Check server logs for details."}}"#,
            FailureClass::AgentError,
            None,
        ),
    ] {
        let line = format!(r#"{{"type":"error","sessionID":"ses_1","error":{error}}}"#);
        let failure = read(&[&line], ExitStatus::Code(1)).1.failure.unwrap();
        assert_eq!(failure.class, expected, "{error}");
        assert_eq!(failure.retry_after_seconds.map(|seconds| seconds.count()), wait);
    }
}

#[test]
fn forged_numbers_are_bounded_or_dropped() {
    for (cost, expected) in [("-5.5", None), ("1e308", Some(1e9)), ("0.25", Some(0.25))] {
        let line =
        r#"{"type":"step_finish","part":{"reason":"stop","cost":COST,"tokens":{"input":18446744073709551615,"output":18446744073709551615,"reasoning":1,"cache":{"write":1,"read":1}}}}"#
                .replace("COST", cost);
        let usage = read(&[&line], ExitStatus::Code(0)).1.usage;
        assert_eq!((usage.input_tokens, usage.output_tokens), (1 << 40, 1 << 40), "{cost}");
        assert_eq!(usage.cost_usd, expected, "{cost}");
    }
}
