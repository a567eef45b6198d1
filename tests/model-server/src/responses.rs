//! `OpenAI` Responses: what codex speaks, with its classic tools or in code mode.

use serde_json::{Value, json};

use crate::chat::{self, BAD_KEY};
use crate::dialect::{
    Asked, Dialect, Event, Reply, Tool, Turn, is_prompt, list, pieces, texts, write_command,
};

/// The Responses API.
pub(crate) struct Responses;

/// How long codex waits for a command before it hands back a session instead of a result.
const PATIENCE_MS: u64 = 30_000;

/// The same for a code-mode program; above `PATIENCE_MS`, so that the program's own loop
/// does the waiting.
const SCRIPT_PATIENCE_MS: u64 = 600_000;

impl Dialect for Responses {
    fn read(&self, body: &Value) -> Asked {
        let mut results = 0;
        let mut first = None;
        for item in list(&body["input"]) {
            match item["type"].as_str() {
                Some("function_call_output" | "custom_tool_call_output") => {
                    first = still_running(&item["output"]);
                    results += usize::from(first.is_none());
                }
                // The short form of a message has a role and no type.
                Some("message") | None
                    if item["role"] == "user" && texts(&item["content"]).into_iter().any(is_prompt) =>
                {
                    (results, first) = (0, None);
                }
                _ => {}
            }
        }
        Asked { tools: !list(&body["tools"]).is_empty() || code_mode(body), results, first }
    }

    fn write(&self, body: &Value, path: &str, content: &str) -> Tool {
        self.shell(body, &write_command(path, content))
    }

    fn shell(&self, body: &Value, command: &str) -> Tool {
        if code_mode(body) {
            return Tool::Custom { namespace: "functions", name: "exec", input: program(command) };
        }
        let input = json!({"cmd": command, "yield_time_ms": PATIENCE_MS});
        Tool::Function { namespace: None, name: "exec_command", input }
    }

    fn events(&self, turn: &Turn, reply: &Reply) -> Vec<Event> {
        let item = item(turn, reply);
        let started = envelope(turn, "in_progress");
        let mut events = vec![
            json!({"type": "response.created", "response": started}),
            json!({"type": "response.in_progress", "response": started}),
            json!({"type": "response.output_item.added", "output_index": 0, "item": unfilled(&item)}),
        ];
        events.extend(filling(&item));
        events.push(json!({"type": "response.output_item.done", "output_index": 0, "item": item}));
        events.push(json!({"type": "response.completed", "response": completed(turn, &item)}));
        events.into_iter().enumerate().map(|(number, event)| numbered(number, event)).collect()
    }

    fn whole(&self, turn: &Turn, reply: &Reply) -> Value {
        completed(turn, &item(turn, reply))
    }

    fn bad_key(&self) -> &'static str {
        BAD_KEY
    }

    fn error(&self, status: u16, message: &str) -> Value {
        chat::error(status, message)
    }
}

/// The list of models. Codex knows its own models and only needs an answer here.
pub(crate) fn models() -> Value {
    json!({"object": "list", "data": [
        {"id": "fake-model", "object": "model", "created": 1_700_000_000, "owned_by": "script"},
    ]})
}

/// In code mode the tools come as an input item, and the one that counts runs programs.
fn code_mode(body: &Value) -> bool {
    let given = list(&body["input"])
        .iter()
        .filter(|item| item["type"] == "additional_tools")
        .flat_map(|item| list(&item["tools"]));
    list(&body["tools"])
        .iter()
        .chain(given)
        .flat_map(|tool| std::iter::once(tool).chain(list(&tool["tools"])))
        .any(|tool| tool["type"] == "custom" && tool["name"] == "exec")
}

/// The code-mode program that runs a command to its end.
fn program(command: &str) -> String {
    let command = Value::from(command);
    format!(
        "// @exec: {{\"yield_time_ms\": {SCRIPT_PATIENCE_MS}}}\n\
         let r = await tools.exec_command({{cmd: {command}, yield_time_ms: {PATIENCE_MS}}});\n\
         let out = r.output;\n\
         while (r.session_id !== undefined && r.session_id !== null) {{\n\
         \x20 r = await tools.write_stdin({{session_id: r.session_id, chars: \"\", yield_time_ms: {PATIENCE_MS}}});\n\
         \x20 out += r.output;\n\
         }}\n\
         text(out);"
    )
}

/// The call that waits on, if a tool's output says that its work still runs: going on
/// with the script then would let steps overlap that are meant to follow each other.
fn still_running(output: &Value) -> Option<Tool> {
    texts(output).into_iter().find_map(|text| {
        // Only the head is codex's own; what follows is the command's.
        let text = text.split("Output:").next()?;
        if let Some(id) = word_after(text, "Process running with session ID ") {
            let id: u64 = id.parse().ok()?;
            let input = json!({"session_id": id, "chars": "", "yield_time_ms": PATIENCE_MS});
            return Some(Tool::Function { namespace: None, name: "write_stdin", input });
        }
        let id = word_after(text, "Script running with cell ID ")?;
        let input = json!({"cell_id": id, "yield_time_ms": PATIENCE_MS});
        Some(Tool::Function { namespace: Some("functions"), name: "wait", input })
    })
}

fn word_after<'a>(text: &'a str, mark: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(mark)?;
    rest.split_whitespace().next()
}

/// The finished output item of a reply.
fn item(turn: &Turn, reply: &Reply) -> Value {
    let call_id = format!("call_{}", turn.id);
    match reply {
        Reply::Text(text) => json!({
            "type": "message",
            "id": format!("msg_{}", turn.id),
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "annotations": [], "text": text}],
        }),
        Reply::Call(Tool::Function { namespace, name, input }) => {
            let mut item = json!({
                "type": "function_call",
                "id": format!("fc_{}", turn.id),
                "status": "completed",
                "call_id": call_id,
                "name": name,
                "arguments": input.to_string(),
            });
            if let Some(namespace) = namespace {
                item["namespace"] = json!(namespace);
            }
            item
        }
        Reply::Call(Tool::Custom { namespace, name, input }) => json!({
            "type": "custom_tool_call",
            "id": format!("ctc_{}", turn.id),
            "status": "completed",
            "call_id": call_id,
            "namespace": namespace,
            "name": name,
            "input": input,
        }),
    }
}

/// The item as it stands before its content arrives.
fn unfilled(item: &Value) -> Value {
    let mut item = item.clone();
    item["status"] = json!("in_progress");
    for (field, empty) in [("content", json!([])), ("arguments", json!("")), ("input", json!(""))] {
        if let Some(value) = item.get_mut(field) {
            *value = empty;
        }
    }
    item
}

/// The events that bring an item's content.
fn filling(item: &Value) -> Vec<Value> {
    let id = &item["id"];
    let event = |kind: &str| json!({"type": kind, "item_id": id, "output_index": 0});
    let with = |kind: &str, field: &str, value: &Value| {
        let mut event = event(kind);
        event[field] = value.clone();
        event
    };
    let tool = match item["type"].as_str() {
        Some("function_call") => Some(("response.function_call_arguments", "arguments")),
        Some("custom_tool_call") => Some(("response.custom_tool_call_input", "input")),
        _ => None,
    };
    if let Some((kind, field)) = tool {
        return vec![
            with(&format!("{kind}.delta"), "delta", &item[field]),
            with(&format!("{kind}.done"), field, &item[field]),
        ];
    }
    let part = &item["content"][0];
    let mut empty = part.clone();
    empty["text"] = json!("");
    let mut events = vec![with("response.content_part.added", "part", &empty)];
    for piece in pieces(part["text"].as_str().unwrap_or_default()) {
        events.push(with("response.output_text.delta", "delta", &json!(piece)));
    }
    events.push(with("response.output_text.done", "text", &part["text"]));
    events.push(with("response.content_part.done", "part", part));
    for event in &mut events {
        event["content_index"] = json!(0);
    }
    events
}

fn numbered(number: usize, mut event: Value) -> Event {
    event["sequence_number"] = json!(number);
    let kind = event["type"].as_str().unwrap_or_default();
    let wire = Event::named(kind, &event);
    if kind == "response.output_text.delta" { wire.into_text() } else { wire }
}

fn envelope(turn: &Turn, status: &str) -> Value {
    json!({
        "id": format!("resp_{}", turn.id),
        "object": "response",
        "created_at": 1_700_000_000,
        "status": status,
        "model": turn.model,
        "output": [],
        "error": null,
        "incomplete_details": null,
        "usage": null,
    })
}

fn completed(turn: &Turn, item: &Value) -> Value {
    let mut response = envelope(turn, "completed");
    response["output"] = json!([item]);
    response["usage"] = json!({
        "input_tokens": turn.usage.input_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": turn.usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": turn.usage.input_tokens + turn.usage.output_tokens,
    });
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(text: &str) -> Value {
        json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})
    }

    fn output(text: &str) -> Value {
        json!({"type": "function_call_output", "call_id": "c", "output": text})
    }

    #[test]
    fn counts_results_since_the_last_prompt() {
        let custom = json!({"type": "custom_tool_call_output", "call_id": "c",
            "output": [{"type": "input_text", "text": "ok"}]});
        let mut input = vec![
            user("<environment_context>x</environment_context>"),
            user("go"),
            output("ok"),
            user("<environment_context>y</environment_context>"),
            custom,
        ];
        let read = |input: &[Value]| Responses.read(&json!({"input": input, "tools": [{}]}));
        assert_eq!(read(&input), Asked { tools: true, results: 2, first: None });
        input.push(user("again"));
        assert_eq!(read(&input).results, 0);
    }

    #[test]
    fn waits_for_a_running_command() {
        let running = "Chunk ID: 1\nProcess running with session ID 7\nOutput:\n";
        let body = json!({"input": [user("go"), output(running)]});
        let asked = Responses.read(&body);
        assert_eq!(asked.results, 0);
        assert!(matches!(asked.first, Some(Tool::Function { name: "write_stdin", .. })));
        let body = json!({"input": [user("go"), output(running), output("Process exited with code 0")]});
        assert_eq!(Responses.read(&body), Asked { tools: false, results: 1, first: None });
    }

    #[test]
    fn finds_code_mode() {
        let classic = json!({"input": [], "tools": [{"type": "function", "name": "exec_command"}]});
        assert!(matches!(Responses.shell(&classic, "ls"), Tool::Function { name: "exec_command", .. }));
        let code = json!({"input": [{"type": "additional_tools", "role": "developer", "tools": [
            {"type": "namespace", "name": "functions", "tools": [{"type": "custom", "name": "exec"}]},
        ]}]});
        assert!(Responses.read(&code).tools);
        let Tool::Custom { name: "exec", input, .. } = Responses.shell(&code, "echo \"a\"\n") else {
            panic!("no code-mode call");
        };
        assert!(input.contains(r#"cmd: "echo \"a\"\n""#), "{input}");
    }
}
