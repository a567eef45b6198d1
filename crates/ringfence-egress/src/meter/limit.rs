//! Whether an answer of a model's server says that a limit of its user is reached. Only the server's own words count: the
//! status, a header, and the error of a stream, never a text of the model.

use http::StatusCode;
use http::header::HeaderMap;
use serde_json::Value;

/// The status by which some servers say that they are overloaded.
const OVERLOADED: u16 = 529;
/// The header by which Anthropic tells the state of a subscription's limits.
const UNIFIED_STATUS: &str = "anthropic-ratelimit-unified-status";
/// Types and codes of errors that speak of a limit.
const LIMIT_ERRORS: [&str; 6] = [
    "rate_limit_error",
    "rate_limit_exceeded",
    "insufficient_quota",
    "usage_limit_reached",
    "billing_error",
    "overloaded_error",
];

/// Whether the head of an answer says so. An upgraded connection cannot be read, so it may.
pub(crate) fn is_limit(status: StatusCode, headers: &HeaderMap) -> bool {
    let by_status = matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::PAYMENT_REQUIRED | StatusCode::SWITCHING_PROTOCOLS
    );
    let rejected = headers.get(UNIFIED_STATUS).is_some_and(|state| state.as_bytes() == b"rejected");
    by_status || status.as_u16() == OVERLOADED || rejected
}

/// Whether a document of a stream may be about a limit, before it is parsed.
pub(super) fn mentions_limit(document: &[u8]) -> bool {
    let has = |text: &str| memchr::memmem::find(document, text.as_bytes()).is_some();
    has("error") && LIMIT_ERRORS.iter().any(|name| has(name))
}

/// Whether a document of a stream is an error about a limit.
pub(super) fn is_limit_error(document: &Value) -> bool {
    let errors = [&document["error"], &document["response"]["error"]];
    let names = errors.into_iter().flat_map(|error| [&error["type"], &error["code"]]);
    names.filter_map(Value::as_str).any(|name| LIMIT_ERRORS.contains(&name))
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use http::header::{HeaderMap, HeaderValue};
    use serde_json::json;

    use super::{is_limit, is_limit_error, mentions_limit};

    #[test]
    fn limits_are_told_by_status_header_and_error() {
        let plain = HeaderMap::new();
        for (status, expected) in
            [(429, true), (402, true), (529, true), (101, true), (200, false), (503, false)]
        {
            assert_eq!(is_limit(StatusCode::from_u16(status).unwrap(), &plain), expected, "{status}");
        }
        let header = |value| {
            HeaderMap::from_iter([(super::UNIFIED_STATUS.parse().unwrap(), HeaderValue::from_static(value))])
        };
        assert!(
            is_limit(StatusCode::OK, &header("rejected")) && !is_limit(StatusCode::OK, &header("allowed"))
        );
        assert!(is_limit_error(&json!({ "type": "error", "error": { "type": "rate_limit_error" } })));
        assert!(is_limit_error(&json!({ "response": { "error": { "code": "rate_limit_exceeded" } } })));
    }

    #[test]
    fn a_text_of_the_model_is_no_limit() {
        let text = json!({ "type": "content_block_delta", "delta": { "text": "{\"error\":{\"type\":\"rate_limit_error\"}}" } });
        assert!(mentions_limit(text.to_string().as_bytes()));
        assert!(!is_limit_error(&text));
    }
}
