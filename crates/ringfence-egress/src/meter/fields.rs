//! The fields of a request to a model, for each of the three APIs, and what each means for a budget.
//!
//! A field that is not listed is refused under a budget: it could bring in input that is not in the request, have the model
//! answer several times, or choose another price. A field that a new version of an agent CLI sends is added here.

use super::Api;
use super::dates::without_date;

/// What a field of a request means for a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    /// Changes neither how much is read or written nor its price.
    Harmless,
    /// Messages, items or blocks for the model to read.
    Content,
    /// Tools that the model may use.
    Tools,
    /// The most tokens that one answer has.
    MaxOutput,
    /// An object whose member of this name is a number of tokens that are written besides the answer.
    Thinking(&'static str),
    /// The number of answers.
    Choices,
    /// Brings in what is not in the request: nothing bounds what the model reads.
    Unbounded,
    /// Nothing but edits that take something out of the context before the model reads it: others have the model answer twice.
    ContextEdits,
    /// Nothing but one of these texts, or a list of them: others have another price.
    OneOf(&'static [&'static str]),
    /// Nothing but `null`, `false` or an empty list.
    Absent,
}

/// The field of this name in requests of an API, and what it means; nothing if it is not known.
pub(super) fn field(api: Api, name: &str) -> Option<(&'static str, Field)> {
    let own = match api {
        Api::Messages => MESSAGES,
        Api::Responses => RESPONSES,
        Api::Chat => CHAT,
    };
    COMMON.iter().chain(own).find(|(known, _)| *known == name).copied()
}

const TIERS: Field = Field::OneOf(&["auto", "default", "standard", "standard_only", "flex"]);

const COMMON: &[(&str, Field)] = &[
    ("model", Field::Harmless),
    ("metadata", Field::Harmless),
    ("service_tier", TIERS),
    ("stream", Field::Harmless),
    ("temperature", Field::Harmless),
    ("tool_choice", Field::Harmless),
    ("tools", Field::Tools),
    ("top_p", Field::Harmless),
];

const MESSAGES: &[(&str, Field)] = &[
    ("cache_control", Field::Harmless),
    ("container", Field::Unbounded),
    ("context_management", Field::ContextEdits),
    ("inference_geo", Field::OneOf(&["global", "not_available"])),
    ("max_tokens", Field::MaxOutput),
    ("mcp_servers", Field::Absent),
    ("messages", Field::Content),
    ("output_config", Field::Harmless),
    ("output_format", Field::Harmless),
    ("speed", Field::OneOf(&["standard"])),
    ("stop_sequences", Field::Harmless),
    ("system", Field::Content),
    ("thinking", Field::Thinking("budget_tokens")),
    ("top_k", Field::Harmless),
];

const RESPONSES: &[(&str, Field)] = &[
    ("background", Field::Absent),
    ("client_metadata", Field::Harmless),
    ("context_management", Field::Absent),
    ("conversation", Field::Unbounded),
    ("include", Field::Harmless),
    ("input", Field::Content),
    ("instructions", Field::Content),
    ("max_output_tokens", Field::MaxOutput),
    ("max_tool_calls", Field::Harmless),
    ("parallel_tool_calls", Field::Harmless),
    ("previous_response_id", Field::Unbounded),
    // A stored prompt may choose the model and the tools.
    ("prompt", Field::Absent),
    ("prompt_cache_key", Field::Harmless),
    ("prompt_cache_retention", Field::Harmless),
    ("reasoning", Field::Thinking("max_tokens")),
    ("safety_identifier", Field::Harmless),
    ("store", Field::Harmless),
    ("stream_options", Field::Harmless),
    ("text", Field::Harmless),
    ("top_logprobs", Field::Harmless),
    ("truncation", Field::Harmless),
    ("user", Field::Harmless),
];

const CHAT: &[(&str, Field)] = &[
    ("audio", Field::Absent),
    ("frequency_penalty", Field::Harmless),
    ("function_call", Field::Harmless),
    ("functions", Field::Harmless),
    ("include_reasoning", Field::Harmless),
    ("logit_bias", Field::Harmless),
    ("logprobs", Field::Harmless),
    ("max_completion_tokens", Field::MaxOutput),
    ("max_tokens", Field::MaxOutput),
    ("messages", Field::Content),
    ("min_p", Field::Harmless),
    ("modalities", Field::OneOf(&["text"])),
    ("n", Field::Choices),
    ("parallel_tool_calls", Field::Harmless),
    ("presence_penalty", Field::Harmless),
    ("prompt_cache_key", Field::Harmless),
    ("prompt_cache_retention", Field::Harmless),
    ("reasoning", Field::Thinking("max_tokens")),
    ("reasoning_effort", Field::Harmless),
    ("repetition_penalty", Field::Harmless),
    ("response_format", Field::Harmless),
    ("safety_identifier", Field::Harmless),
    ("seed", Field::Harmless),
    ("stop", Field::Harmless),
    ("store", Field::Harmless),
    ("stream_options", Field::Harmless),
    ("thinking", Field::Thinking("budget_tokens")),
    ("top_a", Field::Harmless),
    ("top_k", Field::Harmless),
    ("top_logprobs", Field::Harmless),
    // OpenRouter: whether the answer says what it used.
    ("usage", Field::Harmless),
    ("user", Field::Harmless),
    ("verbosity", Field::Harmless),
    ("web_search_options", Field::Unbounded),
];

/// Whether the provider runs a tool itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ToolKind {
    /// The client runs it, and its definition is in the request.
    Client,
    /// A list of tools.
    Group,
    /// The provider runs it, and the model reads what it finds.
    Provider,
}

/// The kind of a tool by its `type`; nothing if it is not known. Types of Anthropic's tools end with a date.
pub(super) fn tool_kind(api: Api, name: Option<&str>) -> Option<ToolKind> {
    let known: &[(&str, ToolKind)] = match api {
        Api::Messages => &[
            ("custom", ToolKind::Client),
            ("bash", ToolKind::Client),
            ("text_editor", ToolKind::Client),
            ("computer", ToolKind::Client),
            ("memory", ToolKind::Client),
            ("web_search", ToolKind::Provider),
            ("web_fetch", ToolKind::Provider),
            ("tool_search_tool_regex", ToolKind::Provider),
            ("tool_search_tool_bm25", ToolKind::Provider),
        ],
        Api::Responses => &[
            ("function", ToolKind::Client),
            ("custom", ToolKind::Client),
            ("local_shell", ToolKind::Client),
            ("apply_patch", ToolKind::Client),
            ("namespace", ToolKind::Group),
            ("web_search", ToolKind::Provider),
            ("web_search_preview", ToolKind::Provider),
            ("file_search", ToolKind::Provider),
            ("tool_search", ToolKind::Provider),
        ],
        Api::Chat => &[("function", ToolKind::Client), ("custom", ToolKind::Client)],
    };
    let name = match name {
        Some(name) => without_date(name, '_').unwrap_or(name),
        None if api == Api::Messages => "custom",
        None => return None,
    };
    known.iter().find(|(one, _)| *one == name).map(|(_, kind)| *kind)
}

/// Types of messages, items and blocks that are in the request with all that the model reads of them.
pub(super) fn is_whole(api: Api, name: &str) -> bool {
    let known: &[&str] = match api {
        Api::Messages => &["text", "thinking", "redacted_thinking", "tool_use", "tool_result"],
        Api::Responses => &[
            "message",
            "input_text",
            "output_text",
            "refusal",
            "function_call",
            "function_call_output",
            "custom_tool_call",
            "custom_tool_call_output",
            "local_shell_call",
            "local_shell_call_output",
            "apply_patch_call",
            "apply_patch_call_output",
            "additional_tools",
        ],
        Api::Chat => &["text", "refusal"],
    };
    known.contains(&name)
}

/// Members of messages, items and blocks that are known to bring in nothing that is not in the request.
pub(super) fn is_known_member(name: &str) -> bool {
    const KNOWN: [&str; 38] = [
        "action",
        "annotations",
        "arguments",
        "cache_control",
        "call_id",
        "caller",
        "citations",
        "content",
        "data",
        "encrypted_content",
        "function_call",
        "id",
        "input",
        "is_error",
        "logprobs",
        "max_output_length",
        "name",
        "namespace",
        "operation",
        "output",
        "phase",
        "reasoning",
        "reasoning_content",
        "reasoning_details",
        "refusal",
        "role",
        "signature",
        "source",
        "status",
        "summary",
        "text",
        "thinking",
        "tool_call_id",
        "tool_calls",
        "tool_use_id",
        "tools",
        "type",
        "internal_chat_message_metadata_passthrough",
    ];
    KNOWN.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::{Api, Field, ToolKind, field, is_whole, tool_kind};

    #[test]
    fn fields_are_known_by_their_exact_name() {
        assert_eq!(field(Api::Chat, "n"), Some(("n", Field::Choices)));
        assert_eq!(field(Api::Messages, "n"), None);
        for name in ["Max_Tokens", "max_tokens ", "models", "plugins", "provider", "prediction", ""] {
            assert_eq!(field(Api::Chat, name), None, "{name}");
        }
    }

    #[test]
    fn tools_are_known_by_their_type_with_or_without_a_date() {
        for (api, name, kind) in [
            (Api::Messages, None, Some(ToolKind::Client)),
            (Api::Messages, Some("bash_20250124"), Some(ToolKind::Client)),
            (Api::Messages, Some("web_search_20250305"), Some(ToolKind::Provider)),
            (Api::Messages, Some("web_search_2025030"), None),
            (Api::Messages, Some("mcp_toolset"), None),
            (Api::Messages, Some("code_execution_20250825"), None),
            (Api::Responses, Some("web_search_preview_2025_03_11"), Some(ToolKind::Provider)),
            (Api::Responses, Some("namespace"), Some(ToolKind::Group)),
            (Api::Responses, Some("mcp"), None),
            (Api::Responses, Some("image_generation"), None),
            (Api::Responses, None, None),
            (Api::Chat, Some("web_search"), None),
        ] {
            assert_eq!(tool_kind(api, name), kind, "{api:?} {name:?}");
        }
        assert!(!is_whole(Api::Responses, "item_reference") && !is_whole(Api::Messages, "image"));
    }
}
