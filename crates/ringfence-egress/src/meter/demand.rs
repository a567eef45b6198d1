//! The most that a request to a model can use, read off its body; and the body that goes on, so that its answer tells its usage.

use ringfence_core::json::JsonError;
use serde_json::{Map, Value, json};

use super::document::{fold_case, parse_object};
use super::fields::{Field, ToolKind, field, is_known_member, is_whole, tool_kind};
use super::{Api, Used};

/// A longer body is refused to a run with a budget. The providers accept no more either.
pub(crate) const MAX_BODY_BYTES: usize = 32 << 20;

/// The most that a model reads, where the request does not bound it, and writes, where it does not say: no known model does more.
const MAX_CONTEXT_TOKENS: u64 = 2_000_000;
const MAX_OUTPUT_TOKENS: u64 = 272_000;
/// The most that models write whose names begin so, unless they are those that think longest.
const MAX_USUAL_OUTPUT_TOKENS: u64 = 128_000;
const USUAL_MODELS: [&str; 4] = ["claude-", "gpt-4", "gpt-5", "codex-"];
const LONG_MODEL: &str = "-pro";
/// What a provider adds to a request: its own instructions, and those for each tool.
const REQUEST_OVERHEAD_TOKENS: u64 = 4096;
const TOOL_OVERHEAD_TOKENS: u64 = 1024;
/// Longer names are cut in error messages.
const MAX_NAME_CHARS: usize = 64;
/// Names that decide what an item or a tool is. Another case of one could be read as the name itself.
const DECIDING_NAMES: [&str; 8] =
    ["type", "role", "content", "output", "source", "tools", "audio", "encrypted_content"];

/// Parts of the names of models that search or choose another model by themselves, and so read what is not in the request. After a
/// colon, OpenRouter takes what else is to be done.
const SEARCHING_MODELS: [&str; 5] = [":", "search", "sonar", "research", "/auto"];
/// How OpenRouter names what the account has stored for requests: another model, a prompt, limits and tools of its own.
const STORED_SETTINGS: &str = "@preset";

/// The most that one request can use.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Demand {
    /// The model, as the request names it.
    pub(crate) model: String,
    pub(crate) input_tokens: u64,
    pub(crate) output_tokens: u64,
    /// How many answers it asks for beyond the first (`n` of chat completions).
    pub(crate) more_choices: u64,
    /// Whether the request refers to what is elsewhere, so that its length does not bound it: then no other request is on its
    /// way at the same time.
    pub(crate) unbounded: bool,
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
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DemandError {
    #[error("the run has a budget, and the body of this request is compressed, so that it cannot be read")]
    Compressed,
    #[error("the run has a budget, and the body of this request is longer than {} MiB", MAX_BODY_BYTES >> 20)]
    TooLong,
    #[error("the run has a budget, and the body of this request is no JSON object with distinct names")]
    NotJson,
    #[error("the run has a budget, and the body of this request has too many JSON values")]
    TooManyValues,
    #[error("the run has a budget, and this request names no model")]
    NoModel,
    #[error("the run has a budget, and the field `{0}` of this request is not known to be counted")]
    UnknownField(String),
    #[error("the run has a budget, and the name `{0}` in this request can be read in two ways")]
    Case(String),
    #[error("the run has a budget, and the field `{0}` of this request has a value that cannot be counted")]
    Value(&'static str),
    #[error("the run has a budget, and the tool type `{0}` of this request is not known to be counted")]
    UnknownTool(String),
}

impl From<JsonError> for DemandError {
    fn from(error: JsonError) -> Self {
        match error {
            JsonError::Malformed => DemandError::NotJson,
            JsonError::TooManyValues => DemandError::TooManyValues,
        }
    }
}

/// Reads the body of a request, and returns the most that it can use and the body to send in its place, if that is another.
pub(crate) fn demand(api: Api, body: &[u8]) -> Result<(Demand, Option<Vec<u8>>), DemandError> {
    let mut request = parse_object(body)?;
    let mut bound = Bound::new(api);
    for (name, value) in &request {
        bound.add_field(name, value)?;
    }
    let model = request.get("model").and_then(Value::as_str).ok_or(DemandError::NoModel)?;
    if model.to_ascii_lowercase().contains(STORED_SETTINGS) {
        return Err(DemandError::Value("model"));
    }
    let demand = bound.finish(model, body.len());
    let changed = api == Api::Chat && ask_for_usage(&mut request)?;
    let new = changed.then(|| serde_json::to_vec(&request).map_err(|_| DemandError::NotJson)).transpose()?;
    Ok((demand, new))
}

/// What the fields of a request say of its bounds.
struct Bound {
    api: Api,
    unbounded: bool,
    tools: u64,
    max_output: Option<u64>,
    /// Whether a bound stands there that some providers read as none.
    zero_output: bool,
    thinking: u64,
    choices: u64,
}

impl Bound {
    fn new(api: Api) -> Self {
        Self {
            api,
            unbounded: false,
            tools: 0,
            max_output: None,
            zero_output: false,
            thinking: 0,
            choices: 1,
        }
    }

    fn add_field(&mut self, name: &str, value: &Value) -> Result<(), DemandError> {
        let (known, kind) = field(self.api, name).ok_or_else(|| DemandError::UnknownField(shown(name)))?;
        let wrong = Err(DemandError::Value(known));
        match kind {
            _ if value.is_null() => {}
            Field::Harmless => {}
            Field::Content => self.add_content(value)?,
            Field::Tools => self.add_tools(value)?,
            Field::MaxOutput => match value.as_u64() {
                Some(0) => self.zero_output = true,
                Some(tokens) => self.max_output = self.max_output.max(Some(tokens)),
                None => return wrong,
            },
            Field::Thinking(member) => {
                check_names(value, &[member])?;
                match value.get(member).filter(|tokens| !tokens.is_null()).map(Value::as_u64) {
                    None => {}
                    Some(Some(tokens)) => self.thinking = self.thinking.saturating_add(tokens),
                    Some(None) => return wrong,
                }
            }
            Field::Choices => match value.as_u64() {
                Some(count) => self.choices = count.max(1),
                None => return wrong,
            },
            Field::Unbounded => self.unbounded = true,
            Field::ContextEdits if only_clears(value) => {}
            Field::OneOf(texts) if is_one_of(value, texts) => {}
            Field::Absent if is_absent(value) => {}
            Field::ContextEdits | Field::OneOf(_) | Field::Absent => return wrong,
        }
        Ok(())
    }

    /// Looks at messages, items and blocks: those that are not known to be whole refer to something, or are no text.
    fn add_content(&mut self, value: &Value) -> Result<(), DemandError> {
        match value {
            Value::Array(items) => items.iter().try_for_each(|item| self.add_content(item)),
            Value::Object(item) => self.add_item(item),
            _ => Ok(()),
        }
    }

    fn add_item(&mut self, item: &Map<String, Value>) -> Result<(), DemandError> {
        check_deciding_names(item)?;
        let kind = match item.get("type") {
            Some(Value::String(kind)) => Some(kind.as_str()),
            None => None,
            Some(_) => Some(""),
        };
        let whole = match kind {
            // A message.
            None => item.contains_key("role"),
            // The provider keeps what was reasoned, unless the client brings it along.
            Some("reasoning") => item.get("encrypted_content").is_some_and(Value::is_string),
            Some(kind) => is_whole(self.api, kind),
        };
        // Another member, like the audio of an earlier answer, could refer to what is elsewhere.
        self.unbounded |= !whole || !item.keys().all(|name| is_known_member(name));
        let inner = ["content", "output"].into_iter().filter_map(|name| item.get(name));
        inner.into_iter().try_for_each(|content| self.add_content(content))?;
        item.get("tools").map_or(Ok(()), |tools| self.add_tools(tools))
    }

    fn add_tools(&mut self, value: &Value) -> Result<(), DemandError> {
        let Value::Array(tools) = value else { return Err(DemandError::Value("tools")) };
        for tool in tools {
            let Value::Object(tool) = tool else { return Err(DemandError::Value("tools")) };
            check_deciding_names(tool)?;
            self.tools = self.tools.saturating_add(1);
            let kind = match tool.get("type") {
                None | Some(Value::Null) => None,
                Some(Value::String(kind)) => Some(kind.as_str()),
                Some(_) => return Err(DemandError::Value("tools")),
            };
            match tool_kind(self.api, kind) {
                Some(ToolKind::Client) => {}
                Some(ToolKind::Provider) => self.unbounded = true,
                Some(ToolKind::Group) => self.add_tools(tool.get("tools").unwrap_or(&Value::Null))?,
                None => return Err(DemandError::UnknownTool(shown(kind.unwrap_or_default()))),
            }
        }
        Ok(())
    }

    /// A token stands for at least one byte, so a request that is whole has no more tokens than bytes.
    fn finish(self, model: &str, body_bytes: usize) -> Demand {
        let unbounded = self.unbounded || SEARCHING_MODELS.iter().any(|part| model.contains(part));
        let overhead =
            REQUEST_OVERHEAD_TOKENS.saturating_add(self.tools.saturating_mul(TOOL_OVERHEAD_TOKENS));
        let unsaid = self.max_output.is_none() || self.zero_output;
        let output = self.max_output.max(unsaid.then(|| max_output_of(model))).unwrap_or_default();
        let output = output.saturating_add(self.thinking);
        Demand {
            model: model.chars().take(super::reading::LONGEST_NAME).collect(),
            input_tokens: match unbounded {
                true => MAX_CONTEXT_TOKENS,
                false => (body_bytes as u64).saturating_add(overhead),
            },
            output_tokens: output.saturating_mul(self.choices),
            more_choices: self.choices.saturating_sub(1),
            unbounded,
        }
    }
}

/// The most that a model writes if a request does not say.
fn max_output_of(model: &str) -> u64 {
    let bare = model.rsplit_once('/').map_or(model, |(_, bare)| bare);
    let usual =
        USUAL_MODELS.iter().any(|beginning| bare.starts_with(beginning)) && !bare.contains(LONG_MODEL);
    if usual { MAX_USUAL_OUTPUT_TOKENS } else { MAX_OUTPUT_TOKENS }
}

/// Refuses an object in which one of these names stands in another case: some providers read it as the name itself.
fn check_names(value: &Value, names: &[&str]) -> Result<(), DemandError> {
    value.as_object().map_or(Ok(()), |object| check_names_of(object, names))
}

fn check_names_of(object: &Map<String, Value>, names: &[&str]) -> Result<(), DemandError> {
    let ambiguous =
        |name: &&String| !names.contains(&name.as_str()) && names.contains(&fold_case(name).as_str());
    object.keys().find(ambiguous).map_or(Ok(()), |name| Err(DemandError::Case(shown(name))))
}

fn check_deciding_names(object: &Map<String, Value>) -> Result<(), DemandError> {
    check_names_of(object, &DECIDING_NAMES)
}

/// Whether edits of the context only take something out of it.
fn only_clears(value: &Value) -> bool {
    let clears = |edit: &Value| {
        check_names(edit, &["type"]).is_ok()
            && edit["type"].as_str().is_some_and(|kind| kind.starts_with("clear_"))
    };
    let members = value.as_object().is_some_and(|members| members.keys().all(|name| name == "edits"));
    members && value["edits"].as_array().is_some_and(|edits| edits.iter().all(clears))
}

fn is_one_of(value: &Value, texts: &[&str]) -> bool {
    let allowed = |text: &Value| text.as_str().is_some_and(|text| texts.contains(&text));
    value.as_array().map_or_else(|| allowed(value), |list| list.iter().all(allowed))
}

fn is_absent(value: &Value) -> bool {
    matches!(value, Value::Null | Value::Bool(false)) || value.as_array().is_some_and(Vec::is_empty)
}

/// A name of the request, as it stands in an error message.
fn shown(name: &str) -> String {
    name.chars().take(MAX_NAME_CHARS).collect::<String>().escape_debug().to_string()
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
    let Value::Object(options) = options else { return Err(DemandError::Value("stream_options")) };
    Ok(options.insert("include_usage".into(), Value::Bool(true)) != Some(Value::Bool(true)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{
        Api, Demand, DemandError, MAX_CONTEXT_TOKENS, MAX_OUTPUT_TOKENS, MAX_USUAL_OUTPUT_TOKENS,
        REQUEST_OVERHEAD_TOKENS, TOOL_OVERHEAD_TOKENS, demand,
    };

    fn read(api: Api, request: &Value) -> Result<Demand, DemandError> {
        demand(api, request.to_string().as_bytes()).map(|(demand, _)| demand)
    }

    #[test]
    fn request_without_a_limit_may_write_as_much_as_its_model() {
        for (model, most) in [
            ("gpt-5-pro", MAX_OUTPUT_TOKENS),
            ("gpt-5-pro-2025-10-06", MAX_OUTPUT_TOKENS),
            ("openai/gpt-5-pro", MAX_OUTPUT_TOKENS),
            ("unheard", MAX_OUTPUT_TOKENS),
            ("gpt-5", MAX_USUAL_OUTPUT_TOKENS),
            ("anthropic/claude-opus-4-5", MAX_USUAL_OUTPUT_TOKENS),
        ] {
            let output = |request| read(Api::Responses, &request).unwrap().output_tokens;
            assert_eq!(output(json!({"model": model})), most, "{model}");
            assert_eq!(output(json!({"model": model, "max_output_tokens": 0})), most, "{model}");
            assert_eq!(output(json!({"model": model, "max_output_tokens": 5})), 5, "{model}");
        }
    }

    fn sent(api: Api, request: &Value) -> Option<Value> {
        let (_, new) = demand(api, request.to_string().as_bytes()).unwrap();
        new.map(|body| serde_json::from_slice(&body).unwrap())
    }

    #[test]
    fn a_stream_is_asked_for_its_usage_and_nothing_else_changes() {
        let asked = json!({"model": "m", "stream": true, "stream_options": {"include_usage": true}});
        for request in [
            json!({"model": "m", "stream": true}),
            json!({"model": "m", "stream": true, "stream_options": null}),
            json!({"model": "m", "stream": true, "stream_options": {"include_usage": false}}),
        ] {
            assert_eq!(sent(Api::Chat, &request), Some(asked.clone()), "{request}");
        }
        assert_eq!(sent(Api::Chat, &asked), None);
        assert_eq!(sent(Api::Chat, &json!({"model": "m"})), None);
        assert_eq!(sent(Api::Messages, &json!({"model": "m", "stream": true})), None);
        let wrong = json!({"model": "m", "stream": true, "stream_options": 1});
        assert_eq!(read(Api::Chat, &wrong), Err(DemandError::Value("stream_options")));
    }

    #[test]
    fn field_that_is_not_known_is_refused_with_its_name() {
        for (api, name) in [
            (Api::Chat, "Max_Tokens"),
            (Api::Chat, "N"),
            (Api::Chat, "models"),
            (Api::Chat, "plugins"),
            (Api::Chat, "provider"),
            (Api::Chat, "prediction"),
            (Api::Chat, "max_output_tokens"),
            (Api::Messages, "n"),
            (Api::Messages, "fallbacks"),
            (Api::Responses, "Previous_Response_Id"),
            (Api::Responses, "max_tokens"),
        ] {
            let refused = DemandError::UnknownField(name.to_owned());
            assert_eq!(read(api, &json!({"model": "m", name: 1})), Err(refused), "{api:?} {name}");
        }
        let escape = json!({"model": "m", "\u{1b}[2J": 1});
        assert!(!read(Api::Chat, &escape).unwrap_err().to_string().contains('\u{1b}'));
    }

    #[test]
    fn value_that_cannot_be_counted_is_refused() {
        for (api, name, value) in [
            (Api::Chat, "n", json!(2.0)),
            (Api::Chat, "n", json!("2")),
            (Api::Chat, "n", json!(-1)),
            (Api::Chat, "max_tokens", json!(5.5)),
            (Api::Chat, "max_completion_tokens", json!("9")),
            (Api::Messages, "thinking", json!({"budget_tokens": 1.0})),
            (Api::Responses, "background", json!(true)),
            (Api::Responses, "background", json!("yes")),
            (Api::Responses, "prompt", json!({"id": "p"})),
            (Api::Messages, "mcp_servers", json!([{"url": "https://x"}])),
            (Api::Messages, "speed", json!("fast")),
            (Api::Chat, "service_tier", json!("priority")),
            (Api::Chat, "modalities", json!(["text", "audio"])),
            (Api::Chat, "tools", json!({"type": "function"})),
            // The usage of a compaction is told apart from that of the answer.
            (Api::Messages, "context_management", json!({"edits": [{"type": "compact_20260112"}]})),
            (Api::Messages, "context_management", json!({"edits": [], "other": 1})),
            (Api::Responses, "context_management", json!([{"type": "compaction"}])),
            (Api::Responses, "context_management", json!({"edits": [{"type": "clear_x"}]})),
        ] {
            let request = json!({"model": "m", name: value});
            assert_eq!(read(api, &request), Err(DemandError::Value(name)), "{request}");
            assert!(read(api, &json!({"model": "m", name: null})).is_ok(), "{name}");
        }
        let exponent = br#"{"model": "m", "n": 2e0}"#;
        assert_eq!(demand(Api::Chat, exponent).unwrap_err(), DemandError::Value("n"));
        assert!(read(Api::Responses, &json!({"model": "m", "background": false})).is_ok());
        for model in ["@preset/mine", "vendor/m@preset/mine", "vendor/m@PRESET/mine"] {
            assert_eq!(
                read(Api::Chat, &json!({"model": model})),
                Err(DemandError::Value("model")),
                "{model}"
            );
        }
        assert!(read(Api::Messages, &json!({"model": "claude-opus-4@20250514"})).is_ok());
    }

    #[test]
    fn body_that_can_be_read_in_two_ways_is_refused() {
        for body in [
            &br#"{"model": "m", "max_tokens": 1000000, "max_tokens": 1}"#[..],
            br#"{"model": "m", "max_tokens": 1, "max_\u0074okens": 1000000}"#,
            br#"{"model": "m", "tools": [{"type": "function", "type": "web_search"}]}"#,
            b"\x1f\x8b",
            b"[1]",
        ] {
            assert_eq!(demand(Api::Chat, body).unwrap_err(), DemandError::NotJson);
        }
        for item in [
            json!({"type": "text", "Type": "document"}),
            json!({"type": "text", "SOURCE": {"url": "x"}}),
            json!({"type": "tool_result", "Content": []}),
            json!({"type": "text", "\u{17f}ource": 1}),
        ] {
            let request = json!({"model": "m", "messages": [{"role": "user", "content": [item]}]});
            assert!(matches!(read(Api::Messages, &request), Err(DemandError::Case(_))), "{request}");
        }
        let thinks = json!({"model": "m", "thinking": {"budget_tokens": 1, "Budget_Tokens": 9}});
        assert_eq!(read(Api::Messages, &thinks), Err(DemandError::Case("Budget_Tokens".into())));
        // Within the definition and the input of a tool there may be any name.
        let free = json!({"model": "m", "tools": [{"name": "t", "input_schema": {"Type": 1}}],
            "messages": [{"role": "assistant", "content": [{"type": "tool_use", "input": {"Content": 1}}]}]});
        assert!(!read(Api::Messages, &free).unwrap().unbounded);
        assert_eq!(read(Api::Chat, &json!({"messages": []})), Err(DemandError::NoModel));
    }

    #[test]
    fn tool_of_a_provider_is_unbounded_or_refused() {
        let tools = |tools: Value| json!({"model": "m", "tools": tools});
        assert!(read(Api::Messages, &tools(json!([{"type": "web_search_20250305"}]))).unwrap().unbounded);
        let escaped = br#"{"model": "m", "tools": [{"type": "web\u005fsearch"}]}"#;
        assert!(demand(Api::Responses, escaped).unwrap().0.unbounded);
        let group = tools(json!([{"type": "namespace", "tools": [{"type": "web_search"}]}]));
        assert!(read(Api::Responses, &group).unwrap().unbounded);
        for request in [
            tools(json!([{"type": "mcp", "server_url": "https://x"}])),
            tools(json!([{"type": "namespace", "tools": [{"type": "mcp"}]}])),
            json!({"model": "m", "input": [{"type": "additional_tools", "tools": [{"type": "mcp"}]}]}),
        ] {
            let refused = DemandError::UnknownTool("mcp".into());
            assert_eq!(read(Api::Responses, &request), Err(refused), "{request}");
        }
    }

    #[test]
    fn request_that_is_whole_is_bounded_by_its_length_and_its_limits() {
        let request =
            json!({"model": "m", "max_tokens": 5, "n": 3, "messages": [{"role": "user", "content": "x"}]});
        let bound = read(Api::Chat, &request).unwrap();
        assert_eq!(bound.input_tokens, request.to_string().len() as u64 + REQUEST_OVERHEAD_TOKENS);
        assert_eq!((bound.output_tokens, bound.unbounded), (15, false));
        assert_eq!(read(Api::Chat, &json!({"model": "m"})).unwrap().output_tokens, MAX_OUTPUT_TOKENS);
        for zero in [
            json!({"model": "m", "max_tokens": 0}),
            json!({"model": "m", "max_tokens": 0, "max_completion_tokens": 9}),
        ] {
            assert_eq!(read(Api::Chat, &zero).unwrap().output_tokens, MAX_OUTPUT_TOKENS, "{zero}");
        }
        let both = json!({"model": "m", "max_tokens": 5, "max_completion_tokens": 9});
        assert_eq!(read(Api::Chat, &both).unwrap().output_tokens, 9);
        let thinks = json!({"model": "m", "max_tokens": 5, "thinking": {"budget_tokens": 7}});
        assert_eq!(read(Api::Messages, &thinks).unwrap().output_tokens, 12);
        let tools = json!({"model": "m", "tools": [{"name": "a"}, {"type": "bash_20250124"}]});
        let overhead = REQUEST_OVERHEAD_TOKENS + 2 * TOOL_OVERHEAD_TOKENS;
        assert_eq!(
            read(Api::Messages, &tools).unwrap().input_tokens,
            tools.to_string().len() as u64 + overhead
        );
    }

    #[test]
    fn request_that_refers_to_something_is_unbounded() {
        let inner = |block: Value| json!({"model": "m", "messages": [{"role": "user", "content": [block]}]});
        for (api, request) in [
            (Api::Responses, json!({"model": "m", "previous_response_id": "resp_1"})),
            (Api::Responses, json!({"model": "m", "conversation": "c"})),
            (Api::Responses, json!({"model": "m", "input": [{"type": "item_reference", "id": "i"}]})),
            (Api::Responses, json!({"model": "m", "input": [{"id": "i"}]})),
            (
                Api::Responses,
                json!({"model": "m", "input": [{"type": "reasoning", "id": "r", "summary": []}]}),
            ),
            (Api::Responses, json!({"model": "m", "input": [{"type": "input_file", "file_id": "f"}]})),
            (
                Api::Responses,
                json!({"model": "m", "input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
            ),
            (
                Api::Responses,
                json!({"model": "m", "input": [{"type": "function_call_output", "output": [{"type": "input_file"}]}]}),
            ),
            (Api::Messages, inner(json!({"type": "image", "source": {"type": "base64", "data": "x"}}))),
            (Api::Messages, inner(json!({"type": "document", "source": {"type": "url", "url": "x"}}))),
            (Api::Messages, inner(json!({"type": "tool_result", "content": [{"type": "document"}]}))),
            (Api::Messages, json!({"model": "m", "container": "c"})),
            (Api::Chat, inner(json!({"type": "image_url", "image_url": {"url": "x"}}))),
            (Api::Chat, json!({"model": "m", "messages": [{"role": "assistant", "audio": {"id": "a"}}]})),
            (
                Api::Chat,
                json!({"model": "m", "messages": [{"role": "user", "content": "x", "file_id": "f"}]}),
            ),
            (Api::Messages, inner(json!({"type": "text", "text": "x", "file": {"file_id": "f"}}))),
            (Api::Responses, json!({"model": "m", "input": [{"role": "user", "content": "x", "new": "n"}]})),
            (Api::Chat, json!({"model": "m", "web_search_options": {}})),
            (Api::Chat, json!({"model": "vendor/m:online"})),
            (Api::Chat, json!({"model": "gpt-4o-search-preview"})),
            (Api::Chat, json!({"model": "openrouter/auto"})),
        ] {
            let bound = read(api, &request).unwrap();
            assert_eq!((bound.input_tokens, bound.unbounded), (MAX_CONTEXT_TOKENS, true), "{request}");
        }
    }

    /// What the agent CLIs send, shortened.
    #[test]
    fn requests_of_the_agent_clis_are_accepted() {
        let claude = json!({"model": "claude-opus-4-8", "max_tokens": 64000, "stream": true, "metadata": {"user_id": "u"},
            "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
            "tools": [{"name": "Bash", "input_schema": {}}],
            "messages": [{"role": "user", "content": "x"},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "Bash", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "ok"}]}]});
        assert!(!read(Api::Messages, &claude).unwrap().unbounded);
        let codex = json!({"model": "gpt-6.1-sol", "stream": true, "store": false, "tool_choice": "auto",
            "parallel_tool_calls": false, "reasoning": {"effort": "low", "context": "all_turns"},
            "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "text": {"verbosity": "low"},
            "client_metadata": {"session_id": "s"},
            "input": [
                {"type": "additional_tools", "role": "developer", "tools": [
                    {"type": "namespace", "name": "functions", "tools": [{"type": "custom"}, {"type": "function"}]}]},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
                {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "e"},
                {"type": "custom_tool_call", "call_id": "c", "input": "x"},
                {"type": "custom_tool_call_output", "call_id": "c", "output": "x"}]});
        assert!(!read(Api::Responses, &codex).unwrap().unbounded);
        let opencode = json!({"model": "m", "max_tokens": 8192, "stream": true, "stream_options": {"include_usage": true},
            "tool_choice": "auto", "tools": [{"type": "function", "function": {}}],
            "messages": [{"role": "assistant", "content": "", "tool_calls": []},
                {"role": "tool", "tool_call_id": "t", "content": "x"}]});
        assert!(!read(Api::Chat, &opencode).unwrap().unbounded);
    }
}
