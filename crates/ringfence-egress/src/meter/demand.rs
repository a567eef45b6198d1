//! What a request to a model asks for at most, read off its body; and the body as it goes on, so that its answer tells its usage.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::{Map, Value, json};

use super::{Api, Used};

/// A longer body is refused to a run with a budget. The providers take no more either.
pub(crate) const MAX_BODY_BYTES: usize = 32 << 20;

/// The most that a model reads or writes, where a request does not say: no known model does more.
const MAX_CONTEXT_TOKENS: u64 = 2_000_000;
const MAX_OUTPUT_TOKENS: u64 = 128_000;

/// The most that one request can use.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Demand {
    /// The model, as the request names it.
    pub(crate) model: String,
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
}

impl Demand {
    pub(crate) fn used(&self) -> Used {
        // What is written to the cache costs most of what is read.
        Used {
            model: self.model.clone(),
            cache_write: self.input_tokens,
            output: self.output_tokens,
            ..Used::default()
        }
    }
}

/// Why a request is not sent to a model under a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DemandError {
    #[error("the run has a budget, and the body of this request is compressed, so that it cannot be read")]
    Compressed,
    #[error("the run has a budget, and the body of this request is longer than {} MiB", MAX_BODY_BYTES >> 20)]
    TooLong,
    #[error("the run has a budget, and the body of this request is no JSON object with distinct names")]
    NotJson,
    #[error("the run has a budget, and this request names no model")]
    NoModel,
    #[error("the run has a budget, and an answer in the background does not say what it uses")]
    Background,
    #[error("`stream_options` of the request is no object")]
    StreamOptions,
}

/// Reads the body of a request, and returns the most that it can use and the body to send in its place, if that is another.
pub(crate) fn demand(api: Api, body: &[u8]) -> Result<(Demand, Option<Vec<u8>>), DemandError> {
    let Fields(mut request) = serde_json::from_slice(body).map_err(|_| DemandError::NotJson)?;
    if request.get("background").is_some_and(|value| !matches!(value, Value::Null | Value::Bool(false))) {
        return Err(DemandError::Background);
    }
    let model = request.get("model").and_then(Value::as_str).ok_or(DemandError::NoModel)?;
    let demand = Demand {
        model: model.chars().take(super::reading::LONGEST_NAME).collect(),
        input_tokens: max_input(&request, body),
        output_tokens: max_output(&request),
    };
    let changed = api == Api::Chat && ask_for_usage(&mut request)?;
    let new = changed.then(|| serde_json::to_vec(&request).map_err(|_| DemandError::NotJson)).transpose()?;
    Ok((demand, new))
}

/// The fields of a request. One that names a field twice is no request: the host might read the other value.
struct Fields(Map<String, Value>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object without repeated names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Fields, A::Error> {
                let mut fields = Map::new();
                while let Some((name, value)) = access.next_entry::<String, Value>()? {
                    if fields.insert(name, value).is_some() {
                        return Err(A::Error::custom("a name is repeated"));
                    }
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// A token stands for at least one byte, so a request has no more tokens than bytes; unless it names what is elsewhere.
fn max_input(request: &Map<String, Value>, body: &[u8]) -> u64 {
    let elsewhere = ["previous_response_id", "conversation", "prompt", "container", "mcp_servers"];
    let named = elsewhere.iter().any(|name| request.get(*name).is_some_and(|value| !value.is_null()));
    let linked = [&b"\"file_id\""[..], b"_url\"", b"\"url\"", b"\"web_search", b"\"file_search", b"\"mcp\""];
    let linked = linked.iter().any(|name| memchr::memmem::find(body, name).is_some());
    if named || linked { MAX_CONTEXT_TOKENS } else { body.len() as u64 }
}

fn max_output(request: &Map<String, Value>) -> u64 {
    let number = |name: &str| request.get(name).and_then(Value::as_u64);
    let most = ["max_tokens", "max_completion_tokens", "max_output_tokens"]
        .iter()
        .filter_map(|name| number(name))
        .max();
    most.unwrap_or(MAX_OUTPUT_TOKENS).saturating_mul(number("n").unwrap_or(1).max(1))
}

/// A stream of chat completions tells its usage only if it is asked to. The extra chunk has no choices, as clients know it.
fn ask_for_usage(request: &mut Map<String, Value>) -> Result<bool, DemandError> {
    if request.get("stream") != Some(&Value::Bool(true)) {
        return Ok(false);
    }
    let options = request.entry("stream_options").or_insert(Value::Null);
    if options.is_null() {
        *options = json!({});
    }
    let Value::Object(options) = options else { return Err(DemandError::StreamOptions) };
    Ok(options.insert("include_usage".into(), Value::Bool(true)) != Some(Value::Bool(true)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Api, DemandError, MAX_CONTEXT_TOKENS, MAX_OUTPUT_TOKENS, demand};

    fn read(api: Api, request: &Value) -> Result<(u64, u64, Option<Value>), DemandError> {
        let (demand, new) = demand(api, request.to_string().as_bytes())?;
        let new = new.map(|body| serde_json::from_slice(&body).unwrap());
        Ok((demand.input_tokens, demand.output_tokens, new))
    }

    #[test]
    fn a_stream_is_asked_for_its_usage_and_nothing_else_changes() {
        let asked = json!({"model": "m", "stream": true, "stream_options": {"include_usage": true}});
        for request in [
            json!({"model": "m", "stream": true}),
            json!({"model": "m", "stream": true, "stream_options": null}),
            json!({"model": "m", "stream": true, "stream_options": {"include_usage": false}}),
        ] {
            assert_eq!(read(Api::Chat, &request).unwrap().2, Some(asked.clone()), "{request}");
        }
        assert_eq!(read(Api::Chat, &asked).unwrap().2, None);
        assert_eq!(read(Api::Chat, &json!({"model": "m"})).unwrap().2, None);
        assert_eq!(read(Api::Messages, &json!({"model": "m", "stream": true})).unwrap().2, None);
        let wrong = json!({"model": "m", "stream": true, "stream_options": 1});
        assert_eq!(read(Api::Chat, &wrong), Err(DemandError::StreamOptions));
    }

    #[test]
    fn what_cannot_be_bounded_is_refused() {
        assert_eq!(
            read(Api::Responses, &json!({"model": "m", "background": true})),
            Err(DemandError::Background)
        );
        assert_eq!(
            read(Api::Responses, &json!({"model": "m", "background": "yes"})),
            Err(DemandError::Background)
        );
        assert!(read(Api::Responses, &json!({"model": "m", "background": false})).is_ok());
        assert_eq!(read(Api::Chat, &json!({"messages": []})), Err(DemandError::NoModel));
        assert_eq!(read(Api::Chat, &json!([1])), Err(DemandError::NotJson));
        let twice = br#"{"model": "m", "max_tokens": 1000000, "max_tokens": 1}"#;
        assert_eq!(demand(Api::Chat, twice).unwrap_err(), DemandError::NotJson);
        assert_eq!(demand(Api::Chat, b"\x1f\x8b").unwrap_err(), DemandError::NotJson);
    }

    #[test]
    fn a_request_is_bounded_by_what_it_says_and_by_its_length() {
        let request = json!({"model": "m", "max_tokens": 5, "n": 3, "messages": "long enough"});
        assert_eq!(read(Api::Chat, &request).unwrap().0, request.to_string().len() as u64);
        assert_eq!(read(Api::Chat, &request).unwrap().1, 15);
        assert_eq!(read(Api::Chat, &json!({"model": "m"})).unwrap().1, MAX_OUTPUT_TOKENS);
        for request in [
            json!({"model": "m", "previous_response_id": "resp_1"}),
            json!({"model": "m", "input": [{"type": "input_file", "file_id": "f"}]}),
            json!({"model": "m", "input": [{"type": "input_image", "image_url": "https://x"}]}),
            json!({"model": "m", "tools": [{"type": "web_search_20250305"}]}),
        ] {
            assert_eq!(read(Api::Responses, &request).unwrap().0, MAX_CONTEXT_TOKENS, "{request}");
        }
    }
}
