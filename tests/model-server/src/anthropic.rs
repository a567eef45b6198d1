//! Anthropic Messages: what claude speaks, and opencode with its anthropic provider.

use serde_json::{Value, json};

use crate::dialect::{
    Asked, Dialect, Event, Reply, Tool, Turn, absolute, is_prompt, line_after, list, pieces, write_command,
};

/// The Messages API.
pub(crate) struct Anthropic;

impl Dialect for Anthropic {
    fn read(&self, body: &Value) -> Asked {
        let mut results = 0;
        for message in list(&body["messages"]).iter().filter(|message| message["role"] == "user") {
            if message["content"].as_str().is_some_and(is_prompt) {
                results = 0;
            }
            // Block by block: after a broken turn claude sends the last tool result and
            // the new prompt in one message.
            for block in list(&message["content"]) {
                match block["type"].as_str() {
                    Some("tool_result") => results += 1,
                    Some("text") if block["text"].as_str().is_some_and(is_prompt) => results = 0,
                    _ => {}
                }
            }
        }
        Asked { tools: !list(&body["tools"]).is_empty(), results, first: None }
    }

    fn write(&self, body: &Value, path: &str, content: &str) -> Tool {
        if has_tool(body, "Write") {
            let path = absolute(line_after(body, "Primary working directory:"), path);
            return function("Write", json!({"file_path": path, "content": content}));
        }
        if has_tool(body, "write") {
            let path = absolute(line_after(body, "Working directory:"), path);
            return function("write", json!({"filePath": path, "content": content}));
        }
        self.shell(body, &write_command(path, content))
    }

    fn shell(&self, body: &Value, command: &str) -> Tool {
        let name = if has_tool(body, "bash") { "bash" } else { "Bash" };
        function(name, json!({"command": command, "description": "Scripted command"}))
    }

    fn events(&self, turn: &Turn, reply: &Reply) -> Vec<Event> {
        let (block, stop) = block(turn, reply);
        let mut start = envelope(turn);
        start["usage"] = usage(turn, 1);
        // A block starts empty and is filled by its deltas.
        let (empty, deltas) = match reply {
            Reply::Text(text) => (
                json!({"type": "text", "text": ""}),
                pieces(text)
                    .into_iter()
                    .map(|piece| delta(&json!({"type": "text_delta", "text": piece})).into_text())
                    .collect(),
            ),
            Reply::Call(_) => {
                let mut empty = block.clone();
                empty["input"] = json!({});
                let input = block["input"].to_string();
                (empty, vec![delta(&json!({"type": "input_json_delta", "partial_json": input}))])
            }
        };
        let mut events = vec![
            event(&json!({"type": "message_start", "message": start})),
            event(&json!({"type": "content_block_start", "index": 0, "content_block": empty})),
            event(&json!({"type": "ping"})),
        ];
        events.extend::<Vec<Event>>(deltas);
        events.extend([
            event(&json!({"type": "content_block_stop", "index": 0})),
            event(&json!({
                "type": "message_delta",
                "delta": {"stop_reason": stop, "stop_sequence": null},
                "usage": {"output_tokens": turn.usage.output_tokens},
            })),
            event(&json!({"type": "message_stop"})),
        ]);
        events
    }

    fn whole(&self, turn: &Turn, reply: &Reply) -> Value {
        let (block, stop) = block(turn, reply);
        let mut message = envelope(turn);
        message["content"] = json!([block]);
        message["stop_reason"] = json!(stop);
        message["usage"] = usage(turn, turn.usage.output_tokens);
        message
    }

    fn bad_key(&self) -> &'static str {
        "invalid x-api-key"
    }

    fn error(&self, status: u16, message: &str) -> Value {
        let kind = match status {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            529 => "overloaded_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        };
        json!({"type": "error", "error": {"type": kind, "message": message}})
    }
}

/// The answer to `count_tokens`.
pub(crate) fn token_count(turn: &Turn) -> Value {
    json!({"input_tokens": turn.usage.input_tokens})
}

fn has_tool(body: &Value, name: &str) -> bool {
    list(&body["tools"]).iter().any(|tool| tool["name"] == name)
}

fn function(name: &'static str, input: Value) -> Tool {
    Tool::Function { namespace: None, name, input }
}

fn envelope(turn: &Turn) -> Value {
    json!({
        "id": format!("msg_{}", turn.id),
        "type": "message",
        "role": "assistant",
        "model": turn.model,
        "content": [],
        "stop_reason": null,
        "stop_sequence": null,
    })
}

fn usage(turn: &Turn, output: u64) -> Value {
    json!({
        "input_tokens": turn.usage.input_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": output,
    })
}

/// The content block of a reply and why the model stopped after it.
fn block(turn: &Turn, reply: &Reply) -> (Value, &'static str) {
    let (name, input) = match reply {
        Reply::Text(text) => return (json!({"type": "text", "text": text}), "end_turn"),
        Reply::Call(Tool::Function { name, input, .. }) => (name, input.clone()),
        Reply::Call(Tool::Custom { name, input, .. }) => (name, json!({"input": input})),
    };
    let id = format!("toolu_{}", turn.id);
    (json!({"type": "tool_use", "id": id, "name": name, "input": input}), "tool_use")
}

fn event(data: &Value) -> Event {
    Event::named(data["type"].as_str().unwrap_or_default(), data)
}

fn delta(delta: &Value) -> Event {
    event(&json!({"type": "content_block_delta", "index": 0, "delta": delta}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result() -> Value {
        json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "x", "content": "ok"},
            {"type": "text", "text": "<system-reminder>by the way</system-reminder>"},
        ]})
    }

    #[test]
    fn counts_results_since_the_last_prompt() {
        let prompt = json!({"role": "user", "content": [
            {"type": "text", "text": "<system-reminder>x</system-reminder>"},
            {"type": "text", "text": "do it"},
        ]});
        let reminder = json!({"role": "user", "content": "<system-reminder>y</system-reminder>"});
        let said = json!({"role": "assistant", "content": [{"type": "tool_use"}]});
        let mut messages = vec![prompt, said.clone(), result(), reminder, said, result()];
        let read =
            |messages: &[Value]| Anthropic.read(&json!({"messages": messages, "tools": [{"name": "Bash"}]}));
        assert_eq!(read(&messages), Asked { tools: true, results: 2, first: None });
        messages.push(json!({"role": "user", "content": "more"}));
        assert_eq!(read(&messages).results, 0);
        messages.push(result());
        assert_eq!(read(&messages).results, 1);
        messages.push(json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "x", "content": "broken off"},
            {"type": "text", "text": "once more"},
        ]}));
        assert_eq!(read(&messages).results, 0);
    }

    #[test]
    fn no_tools_is_a_side_call() {
        assert!(!Anthropic.read(&json!({"messages": [], "tools": []})).tools);
        assert!(!Anthropic.read(&json!({"messages": []})).tools);
    }

    #[test]
    fn tools_fit_the_client() {
        let claude = json!({"tools": [{"name": "Write"}, {"name": "Bash"}],
            "system": [{"text": "\n - Primary working directory: /w\n"}]});
        assert_eq!(
            Anthropic.write(&claude, "a/b", "c"),
            function("Write", json!({"file_path": "/w/a/b", "content": "c"}))
        );
        let opencode = json!({"tools": [{"name": "write"}, {"name": "bash"}],
            "system": "<env>\n  Working directory: /o\n"});
        assert_eq!(
            Anthropic.write(&opencode, "/abs", "c"),
            function("write", json!({"filePath": "/abs", "content": "c"}))
        );
        let bare = json!({"tools": [{"name": "Bash"}]});
        assert!(matches!(Anthropic.write(&bare, "a", "c"), Tool::Function { name: "Bash", .. }));
    }
}
