//! `OpenAI` chat completions: what opencode speaks with an openai-compatible provider.

use serde_json::{Value, json};

use crate::dialect::{
    Asked, Dialect, Event, Reply, Tool, Turn, absolute, is_prompt, line_after, list, pieces, texts,
    write_command,
};

/// The chat completions API.
pub(crate) struct Chat;

impl Dialect for Chat {
    fn read(&self, body: &Value) -> Asked {
        let mut results = 0;
        for message in list(&body["messages"]) {
            match message["role"].as_str() {
                Some("tool") => results += 1,
                Some("user") if texts(&message["content"]).into_iter().any(is_prompt) => {
                    results = 0;
                }
                _ => {}
            }
        }
        Asked { tools: !list(&body["tools"]).is_empty(), results, first: None }
    }

    fn write(&self, body: &Value, path: &str, content: &str) -> Tool {
        let has_write = list(&body["tools"]).iter().any(|tool| tool["function"]["name"] == "write");
        if !has_write {
            return self.shell(body, &write_command(path, content));
        }
        let path = absolute(line_after(body, "Working directory:"), path);
        Tool::Function {
            namespace: None,
            name: "write",
            input: json!({"filePath": path, "content": content}),
        }
    }

    fn shell(&self, _body: &Value, command: &str) -> Tool {
        let input = json!({"command": command, "description": "Scripted command"});
        Tool::Function { namespace: None, name: "bash", input }
    }

    fn events(&self, turn: &Turn, reply: &Reply) -> Vec<Event> {
        let mut events = vec![chunk(turn, &json!({"role": "assistant", "content": ""}), None)];
        match reply {
            Reply::Text(text) => events.extend(
                pieces(text)
                    .into_iter()
                    .map(|piece| chunk(turn, &json!({"content": piece}), None).into_text()),
            ),
            Reply::Call(tool) => {
                let mut call = call(turn, tool);
                call["index"] = json!(0);
                events.push(chunk(turn, &json!({"tool_calls": [call]}), None));
            }
        }
        events.push(chunk(turn, &json!({}), Some(reason(reply))));
        if turn.tell_usage {
            let mut last = envelope(turn, "chat.completion.chunk");
            last["choices"] = json!([]);
            last["usage"] = usage(turn);
            events.push(Event::data(&last));
        }
        events.push(Event { wire: "data: [DONE]\n\n".to_owned(), text: false });
        events
    }

    fn whole(&self, turn: &Turn, reply: &Reply) -> Value {
        let message = match reply {
            Reply::Text(text) => json!({"role": "assistant", "content": text}),
            Reply::Call(tool) => {
                json!({"role": "assistant", "content": null, "tool_calls": [call(turn, tool)]})
            }
        };
        let mut whole = envelope(turn, "chat.completion");
        whole["choices"] = json!([{"index": 0, "message": message, "finish_reason": reason(reply)}]);
        whole["usage"] = usage(turn);
        whole
    }

    fn bad_key(&self) -> &'static str {
        BAD_KEY
    }

    fn error(&self, status: u16, message: &str) -> Value {
        error(status, message)
    }
}

/// What `OpenAI`'s APIs say to a wrong key.
pub(crate) const BAD_KEY: &str = "Incorrect API key provided";

/// The error shape all of `OpenAI`'s APIs share.
pub(crate) fn error(status: u16, message: &str) -> Value {
    let (kind, code) = match status {
        401 => ("invalid_request_error", json!("invalid_api_key")),
        403 => ("permission_error", json!("permission_denied")),
        404 => ("invalid_request_error", json!("not_found")),
        429 => ("requests", json!("rate_limit_exceeded")),
        529 => ("overloaded_error", json!("overloaded")),
        500.. => ("server_error", Value::Null),
        _ => ("invalid_request_error", Value::Null),
    };
    json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
}

fn envelope(turn: &Turn, object: &str) -> Value {
    json!({"id": format!("chatcmpl-{}", turn.id), "object": object, "created": 1_700_000_000, "model": turn.model})
}

fn chunk(turn: &Turn, delta: &Value, finish: Option<&str>) -> Event {
    let mut chunk = envelope(turn, "chat.completion.chunk");
    chunk["choices"] = json!([{"index": 0, "delta": delta, "finish_reason": finish}]);
    Event::data(&chunk)
}

fn call(turn: &Turn, tool: &Tool) -> Value {
    let (name, arguments) = match tool {
        Tool::Function { name, input, .. } => (name, input.to_string()),
        Tool::Custom { name, input, .. } => (name, json!({"input": input}).to_string()),
    };
    json!({
        "id": format!("call_{}", turn.id),
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    })
}

fn reason(reply: &Reply) -> &'static str {
    match reply {
        Reply::Text(_) => "stop",
        Reply::Call(_) => "tool_calls",
    }
}

fn usage(turn: &Turn) -> Value {
    json!({
        "prompt_tokens": turn.usage.input_tokens,
        "completion_tokens": turn.usage.output_tokens,
        "total_tokens": turn.usage.input_tokens + turn.usage.output_tokens,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_results_since_the_last_prompt() {
        let messages = json!([
            {"role": "system", "content": "s"},
            {"role": "user", "content": "go"},
            {"role": "assistant", "tool_calls": []},
            {"role": "tool", "content": "ok"},
            {"role": "user", "content": [{"type": "text", "text": "again"}]},
            {"role": "tool", "content": "ok"},
            {"role": "user", "content": "<system-reminder>x</system-reminder>"},
            {"role": "tool", "content": "ok"},
        ]);
        let asked = Chat.read(&json!({"messages": messages, "tools": [{}]}));
        assert_eq!(asked, Asked { tools: true, results: 2, first: None });
        assert!(!Chat.read(&json!({"messages": messages})).tools);
    }

    #[test]
    fn writes_by_shell_where_there_is_no_write_tool() {
        let body = json!({"tools": [{"function": {"name": "bash"}}]});
        assert!(matches!(Chat.write(&body, "a", "c"), Tool::Function { name: "bash", .. }));
        let body = json!({"tools": [{"function": {"name": "write"}}],
            "messages": [{"role": "system", "content": "  Working directory: /o"}]});
        assert_eq!(
            Chat.write(&body, "a", "c"),
            Tool::Function {
                namespace: None,
                name: "write",
                input: json!({"filePath": "/o/a", "content": "c"})
            }
        );
    }
}
