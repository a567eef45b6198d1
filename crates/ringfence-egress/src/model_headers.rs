//! The request headers that go along with the credential of an agent CLI's model.
//!
//! Gateways take another host, another account or a whole configuration from headers of their own, and new ones come with each release.
//! So a request with such a credential carries the headers that the agent CLIs and their SDKs send, and those that the user has named;
//! all others are removed.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use http::HeaderMap;
use http::header::HeaderName;

/// Names of headers that HTTP itself, the agent CLIs and their SDKs send.
const NAMES: [&str; 56] = [
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "anthropic-beta",
    "anthropic-dangerous-direct-browser-access",
    "anthropic-version",
    "baggage",
    "cache-control",
    "chatgpt-account-id",
    "connection",
    "content-encoding",
    "content-language",
    "content-length",
    "content-type",
    "conversation-id",
    "conversation_id",
    "date",
    "host",
    "http-referer",
    "idempotency-key",
    "if-modified-since",
    "if-none-match",
    "last-event-id",
    "mcp-protocol-version",
    "mcp-session-id",
    "openai-beta",
    "originator",
    "pragma",
    "priority",
    "prompt_cache_key",
    "sec-fetch-mode",
    "sec-websocket-extensions",
    "sec-websocket-key",
    "sec-websocket-version",
    "session-id",
    "session_id",
    "te",
    "thread-id",
    "thread_id",
    "traceparent",
    "tracestate",
    "upgrade",
    "user-agent",
    "version",
    "x-anthropic-additional-protection",
    "x-app",
    "x-client-request-id",
    "x-goog-api-client",
    "x-oai-attestation",
    "x-openai-memgen-request",
    "x-openai-subagent",
    "x-request-id",
    "x-responsesapi-include-timing-metrics",
    "x-session-affinity",
    "x-title",
];

/// How names of families of such headers begin.
const PREFIXES: [&str; 6] =
    ["anthropic-client-", "x-claude-", "x-codex-", "x-opencode-", "x-openai-internal-codex-", "x-stainless-"];

/// Names of removed headers that are recorded for one run, and bytes of each.
const MAX_RECORDED: usize = 64;
const MAX_NAME_BYTES: usize = 64;
/// Of one request.
const MAX_RECORDED_AT_ONCE: usize = 16;

/// Which headers go along.
#[derive(Debug, Default)]
pub(crate) struct ModelHeaders {
    /// Those that the user has named besides; the text before `*` if a family is meant.
    named: Vec<NamedHeader>,
    /// Names of headers that were removed and recorded.
    recorded: Mutex<BTreeSet<String>>,
}

/// An entry of `broker.model_headers`.
#[derive(Debug, PartialEq, Eq)]
enum NamedHeader {
    Name(String),
    Prefix(String),
}

impl ModelHeaders {
    /// With those that the user has named. `Err` holds a text that is not a name.
    pub(crate) fn with_named(texts: Vec<String>) -> Result<Self, String> {
        let named = texts.into_iter().map(|text| parse(&text).ok_or(text)).collect::<Result<_, _>>()?;
        Ok(Self { named, recorded: Mutex::default() })
    }

    /// Removes the headers that do not go along, but none that holds a secret. Returns the names that are to be recorded: each once for
    /// a run.
    pub(crate) fn remove_others(&self, headers: &mut HeaderMap, swapped: &[HeaderName]) -> Vec<String> {
        let removed: Vec<HeaderName> = headers
            .keys()
            .filter(|name| !self.goes_along(name.as_str()) && !swapped.contains(name))
            .cloned()
            .collect();
        for name in &removed {
            headers.remove(name);
        }
        if removed.is_empty() { Vec::new() } else { self.record(&removed) }
    }

    fn goes_along(&self, name: &str) -> bool {
        let is_named = |named: &NamedHeader| match named {
            NamedHeader::Name(text) => text == name,
            NamedHeader::Prefix(text) => name.starts_with(text.as_str()),
        };
        NAMES.binary_search(&name).is_ok()
            || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            || self.named.iter().any(is_named)
    }

    fn record(&self, removed: &[HeaderName]) -> Vec<String> {
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        let mut new = Vec::new();
        for name in removed {
            if recorded.len() >= MAX_RECORDED || new.len() >= MAX_RECORDED_AT_ONCE {
                break;
            }
            let name: String = name.as_str().chars().take(MAX_NAME_BYTES).collect();
            if recorded.insert(name.clone()) {
                new.push(name);
            }
        }
        new
    }
}

fn parse(text: &str) -> Option<NamedHeader> {
    let lower = text.trim().to_ascii_lowercase();
    let (stem, is_prefix) = lower.strip_suffix('*').map_or((lower.as_str(), false), |stem| (stem, true));
    HeaderName::from_bytes(stem.as_bytes()).ok().filter(|_| !stem.contains('*'))?;
    let stem = stem.to_owned();
    Some(if is_prefix { NamedHeader::Prefix(stem) } else { NamedHeader::Name(stem) })
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use http::header::{HeaderName, HeaderValue};

    use super::{MAX_RECORDED, MAX_RECORDED_AT_ONCE, ModelHeaders, NAMES};

    fn headers(names: &[&str]) -> HeaderMap {
        let header =
            |name: &&str| (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_static("x"));
        names.iter().map(header).collect()
    }

    #[test]
    fn listed_names_are_sorted() {
        assert!(NAMES.is_sorted());
    }

    #[test]
    fn headers_of_agent_clis_go_along_and_others_do_not() {
        let of_clis = [
            "anthropic-beta",
            "anthropic-version",
            "x-stainless-retry-count",
            "x-app",
            "x-claude-code-session-id",
            "openai-beta",
            "originator",
            "session_id",
            "x-codex-turn-metadata",
            "chatgpt-account-id",
            "x-opencode-session",
            "http-referer",
            "sec-websocket-key",
            "traceparent",
        ];
        let foreign = [
            "x-portkey-config",
            "x-portkey-api-key",
            "x_portkey_config",
            "helicone-fallbacks",
            "helicone-auth",
            "x-litellm-api-key",
            "cf-aig-authorization",
            "openai-organization",
            "x-goog-user-project",
            "sec-websocket-protocol",
            "range",
            "x-ms-range",
            "authorization",
            "cookie",
            "x-forwarded-host",
            "x-of-tomorrow",
        ];
        let mut given = headers(&[&of_clis[..], &foreign[..], &["x-api-key"]].concat());
        let known = ModelHeaders::default();
        let removed = known.remove_others(&mut given, &[HeaderName::from_static("x-api-key")]);
        assert_eq!(given, headers(&[&of_clis[..], &["x-api-key"]].concat()));
        assert_eq!(removed.len(), foreign.len());
        assert_eq!(known.remove_others(&mut headers(&foreign), &[]), Vec::<String>::new(), "named once");
    }

    #[test]
    fn headers_that_the_user_names_go_along() {
        let texts = ["X-Portkey-Config".to_owned(), "helicone-*".to_owned()];
        let known = ModelHeaders::with_named(texts.into()).unwrap();
        let mut given = headers(&["x-portkey-config", "x-portkey-api-key", "helicone-cache-enabled"]);
        assert_eq!(known.remove_others(&mut given, &[]), ["x-portkey-api-key"]);
        for text in ["", "*", "a b", "x-*-y", "x: y"] {
            assert_eq!(ModelHeaders::with_named(vec![text.into()]).unwrap_err(), text);
        }
    }

    #[test]
    fn recorded_names_are_bounded() {
        let known = ModelHeaders::default();
        let recorded = (0..100).map(|first| {
            let names: Vec<String> = (0..50).map(|number| format!("x-{first}-{number}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            known.remove_others(&mut headers(&names), &[]).len()
        });
        let recorded: Vec<usize> = recorded.collect();
        assert!(recorded.iter().all(|count| *count <= MAX_RECORDED_AT_ONCE));
        assert_eq!(recorded.iter().sum::<usize>(), MAX_RECORDED);
    }
}
