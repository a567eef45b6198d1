//! The server seen from the wire: a raw TCP client, so that framing and cut connections
//! are checked as a CLI meets them and not as a forgiving HTTP library smooths them.
#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use scripted_model::{Script, Server, Step};
use serde_json::{Value, json};

struct Heard {
    status: u16,
    headers: BTreeMap<String, String>,
    body: String,
    /// Whether the framing says that the body is all there.
    complete: bool,
}

impl Heard {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    /// The stream's JSON events.
    fn events(&self) -> Vec<Value> {
        let lines = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        lines.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
    }
}

fn raw(server: &Server, request: &str, patience: Duration) -> (Vec<u8>, bool) {
    let mut stream = TcpStream::connect(server.url().strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(patience)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut all = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return (all, true),
            Ok(length) => all.extend(&piece[..length]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return (all, true),
            Err(_) => return (all, false),
        }
    }
}

fn request(method: &str, path: &str, body: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn unchunk(mut rest: &str) -> (String, bool) {
    let mut whole = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return (whole, true);
        }
        let Some(piece) = after.get(..size) else { break };
        whole.push_str(piece);
        rest = after.get(size + 2..).unwrap_or_default();
    }
    (whole, false)
}

fn parse(all: &[u8]) -> Heard {
    let text = String::from_utf8(all.to_vec()).unwrap();
    let (head, rest) = text.split_once("\r\n\r\n").unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers: BTreeMap<String, String> = lines
        .map(|line| line.split_once(": ").unwrap())
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let (body, complete) = if let Some(length) = headers.get("content-length") {
        (rest.to_owned(), rest.len() == length.parse::<usize>().unwrap())
    } else {
        assert_eq!(headers["transfer-encoding"], "chunked", "never EOF-delimited");
        unchunk(rest)
    };
    Heard { status, headers, body, complete }
}

fn post(server: &Server, path: &str, body: &Value) -> Heard {
    let (all, closed) = raw(server, &request("POST", path, &body.to_string()), Duration::from_secs(10));
    assert!(closed);
    parse(&all)
}

fn text(text: &str) -> Step {
    Step::Text { text: text.to_owned() }
}

fn work() -> Script {
    Script::new(vec![
        Step::Write { path: "a.txt".to_owned(), content: "x".to_owned() },
        Step::Shell { command: "ls".to_owned() },
        text("all is done"),
    ])
}

fn start(steps: Vec<Step>) -> Server {
    Server::start(Script::new(steps)).unwrap()
}

/// A request of claude after so many tool results.
fn claude(results: usize, stream: bool) -> Value {
    let mut messages = vec![json!({"role": "user", "content": "go"})];
    for _ in 0..results {
        messages.push(json!({"role": "assistant", "content": [{"type": "tool_use"}]}));
        messages.push(json!({"role": "user", "content": [{"type": "tool_result"}]}));
    }
    json!({"model": "m", "stream": stream, "messages": messages,
        "system": [{"type": "text", "text": " - Primary working directory: /w"}],
        "tools": [{"name": "Write"}, {"name": "Bash"}]})
}

fn codex(results: usize, stream: bool, code_mode: bool) -> Value {
    let mut input =
        vec![json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]})];
    for _ in 0..results {
        input.push(json!({"type": "function_call_output", "output": "ok"}));
    }
    let mut body = json!({"model": "m", "stream": stream});
    if code_mode {
        let exec = json!({"type": "custom", "name": "exec"});
        let tools = json!([{"type": "namespace", "name": "functions", "tools": [exec]}]);
        input.insert(0, json!({"type": "additional_tools", "tools": tools}));
    } else {
        body["tools"] = json!([{"type": "function", "name": "exec_command"}]);
    }
    body["input"] = Value::from(input);
    body
}

fn opencode(results: usize, stream: bool) -> Value {
    let mut messages = vec![
        json!({"role": "system", "content": "<env>\n  Working directory: /o\n</env>"}),
        json!({"role": "user", "content": "go"}),
    ];
    for _ in 0..results {
        messages.push(json!({"role": "tool", "content": "ok"}));
    }
    json!({"model": "m", "stream": stream, "stream_options": {"include_usage": true},
        "messages": messages,
        "tools": [{"type": "function", "function": {"name": "write"}},
            {"type": "function", "function": {"name": "bash"}}]})
}

const APIS: [&str; 3] = ["/v1/messages?beta=true", "/v1/responses", "/v1/chat/completions"];

fn ask(server: &Server, path: &str, results: usize, stream: bool) -> Heard {
    let body = match path {
        "/v1/responses" => codex(results, stream, false),
        "/v1/chat/completions" => opencode(results, stream),
        _ => claude(results, stream),
    };
    post(server, path, &body)
}

#[test]
fn messages_stream() {
    let server = Server::start(work()).unwrap();
    let heard = post(&server, APIS[0], &claude(0, true));
    assert_eq!(heard.status, 200);
    assert!(heard.complete && heard.headers["content-type"].starts_with("text/event-stream"));
    let events = heard.events();
    let kinds: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(
        kinds,
        [
            "message_start",
            "content_block_start",
            "ping",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    assert_eq!(events[0]["message"]["usage"]["input_tokens"], 100);
    assert_eq!(events[1]["content_block"]["name"], "Write");
    let input = events[3]["delta"]["partial_json"].as_str().unwrap();
    let input: Value = serde_json::from_str(input).unwrap();
    assert_eq!(input, json!({"file_path": "/w/a.txt", "content": "x"}));
    assert_eq!(events[5]["delta"]["stop_reason"], "tool_use");
    assert_eq!(events[5]["usage"]["output_tokens"], 20);

    let events = post(&server, APIS[0], &claude(2, true)).events();
    let said: String = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(said, "all is done");
}

#[test]
fn messages_whole() {
    let server = Server::start(work()).unwrap();
    let whole = post(&server, APIS[0], &claude(1, false)).json();
    assert_eq!(whole["content"][0]["name"], "Bash");
    assert_eq!(whole["content"][0]["input"]["command"], "ls");
    assert_eq!(whole["stop_reason"], "tool_use");
    let whole = post(&server, APIS[0], &claude(9, false)).json();
    assert_eq!(whole["content"][0]["text"], "all is done");
    let count = post(&server, "/v1/messages/count_tokens", &claude(0, false)).json();
    assert_eq!(count, json!({"input_tokens": 100}));
}

#[test]
fn responses_stream_with_classic_tools() {
    let server = Server::start(work()).unwrap();
    let heard = post(&server, APIS[1], &codex(0, true, false));
    assert!(heard.complete);
    let events = heard.events();
    assert_eq!(events[0]["type"], "response.created");
    let done = events.iter().find(|event| event["type"] == "response.output_item.done").unwrap();
    assert_eq!(done["item"]["name"], "exec_command");
    let arguments: Value = serde_json::from_str(done["item"]["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments["cmd"], "printf '%s' 'x' > 'a.txt'");
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    assert_eq!(last["response"]["usage"]["total_tokens"], 120);

    let events = post(&server, APIS[1], &codex(2, true, false)).events();
    let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    let said: String = deltas.filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(said, "all is done");
    let whole = post(&server, APIS[1], &codex(2, false, false)).json();
    assert_eq!(whole["output"][0]["content"][0]["text"], "all is done");
}

#[test]
fn responses_stream_in_code_mode() {
    let server = Server::start(work()).unwrap();
    let events = post(&server, APIS[1], &codex(1, true, true)).events();
    let done = events.iter().find(|event| event["type"] == "response.output_item.done").unwrap();
    assert_eq!(done["item"]["type"], "custom_tool_call");
    assert_eq!(done["item"]["namespace"], "functions");
    assert!(done["item"]["input"].as_str().unwrap().contains(r#"tools.exec_command({cmd: "ls""#));
    assert!(server.requests()[0].tools);
}

#[test]
fn chat_stream_and_whole() {
    let server = Server::start(work()).unwrap();
    let heard = post(&server, APIS[2], &opencode(0, true));
    assert!(heard.complete && heard.body.ends_with("data: [DONE]\n\n"));
    let events = heard.events();
    let call = &events[1]["choices"][0]["delta"]["tool_calls"][0];
    assert_eq!(call["function"]["name"], "write");
    assert!(call["function"]["arguments"].as_str().unwrap().contains("/o/a.txt"));
    assert_eq!(events[2]["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(events[3]["usage"]["prompt_tokens"], 100);

    let events = post(&server, APIS[2], &opencode(2, true)).events();
    let said = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    assert_eq!(said.collect::<String>(), "all is done");
    let whole = post(&server, APIS[2], &opencode(1, false)).json();
    assert_eq!(whole["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "bash");
}

#[test]
fn side_calls_get_a_text_and_do_not_count() {
    let failing =
        Step::Fail { status: 500, retry_after: None, headers: BTreeMap::new(), body: None, times: Some(1) };
    let server = start(vec![failing, text("end")]);
    let mut side = claude(0, false);
    side["tools"] = json!([]);
    assert_eq!(post(&server, APIS[0], &side).status, 500);
    assert_eq!(post(&server, APIS[0], &claude(0, false)).status, 500);
    assert_eq!(post(&server, APIS[0], &claude(0, false)).json()["content"][0]["text"], "end");
    assert_eq!(post(&server, APIS[0], &side).json()["content"][0]["text"], "Scripted");
    let tools: Vec<bool> = server.requests().iter().map(|request| request.tools).collect();
    assert_eq!(tools, [false, true, true, false]);
}

#[test]
fn failures_speak_the_api() {
    let server = start(vec![Step::fail(529)]);
    assert_eq!(ask(&server, APIS[0], 0, true).json()["error"]["type"], "overloaded_error");
    server.set_script(Script::new(vec![Step::Fail {
        status: 429,
        retry_after: Some("7".to_owned()),
        headers: BTreeMap::from([("x-should-retry".to_owned(), "false".to_owned())]),
        body: None,
        times: None,
    }]));
    let heard = ask(&server, APIS[0], 0, true);
    assert_eq!((heard.status, heard.complete), (429, true));
    assert_eq!(heard.headers["retry-after"], "7");
    assert_eq!(heard.headers["x-should-retry"], "false");
    assert_eq!(heard.json()["error"]["type"], "rate_limit_error");
    for path in &APIS[1..] {
        assert_eq!(ask(&server, path, 0, true).json()["error"]["code"], "rate_limit_exceeded");
    }
    server.set_script(Script::new(vec![Step::Fail {
        status: 400,
        retry_after: None,
        headers: BTreeMap::from([("not a name".to_owned(), String::new())]),
        body: Some(json!({"own": 1})),
        times: None,
    }]));
    let heard = ask(&server, APIS[0], 0, true);
    assert_eq!(heard.status, 500, "a header that cannot be sent is told, not left out");
    assert!(heard.body.contains("The script is wrong"));
}

#[test]
fn hang_and_drop() {
    for path in APIS {
        let server = start(vec![Step::Hang]);
        let body = claude(0, true).to_string();
        let patience = Duration::from_millis(300);
        let (all, closed) = raw(&server, &request("POST", path, &body), patience);
        assert!(all.is_empty() && !closed);
        server.set_script(Script::new(vec![Step::Drop]));
        let (all, closed) = raw(&server, &request("POST", path, &body), Duration::from_secs(10));
        assert!(all.is_empty() && closed);
    }
}

#[test]
fn a_stream_is_cut_after_some_text() {
    let server = start(vec![Step::DropMidStream]);
    for path in APIS {
        for stream in [true, false] {
            let heard = ask(&server, path, 0, stream);
            assert_eq!((heard.status, heard.complete), (200, false));
            assert!(!stream || heard.body.contains("This "), "{}", heard.body);
        }
    }
}

#[test]
fn slow_text_takes_its_time() {
    let server = start(vec![Step::Slow { delay_ms: 60, text: "a b c".to_owned() }]);
    for path in APIS {
        let began = Instant::now();
        let heard = ask(&server, path, 0, true);
        assert!(heard.complete);
        assert!(began.elapsed() >= Duration::from_millis(180));
    }
    assert_eq!(ask(&server, APIS[0], 0, false).json()["content"][0]["text"], "a b c");
}

#[test]
fn other_paths() {
    let server = Server::start(Script::default()).unwrap();
    let patience = Duration::from_secs(5);
    let get = |request: &str| parse(&raw(&server, request, patience).0);
    let upgrade =
        "GET /v1/responses HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n";
    let (all, _) = raw(&server, upgrade, Duration::from_secs(2));
    assert_eq!(parse(&all).status, 426);
    assert_eq!(get(&request("GET", "/v1/models", "")).json()["object"], "list");
    assert_eq!(get(&request("GET", "/nowhere", "")).status, 404);
    assert_eq!(get(&request("GET", "/v1/messages", "")).status, 405);
    assert_eq!(get(&request("POST", "/v1/messages", "no json")).status, 400);
    let (all, _) = raw(&server, &request("HEAD", "/", ""), patience);
    assert!(all.starts_with(b"HTTP/1.1 200"));
}

#[test]
fn records_and_stops() {
    let server = start(vec![Step::Hang]);
    let url = server.url();
    let address = url.strip_prefix("http://").unwrap().to_owned();
    let body = claude(0, true);
    raw(&server, &request("POST", APIS[0], &body.to_string()), Duration::from_secs(1));
    let seen = server.requests();
    assert_eq!(seen.len(), 1);
    assert_eq!((seen[0].method.as_str(), seen[0].path.as_str()), ("POST", APIS[0]));
    assert_eq!(seen[0].headers["content-type"], "application/json");
    assert_eq!(seen[0].body, body);
    drop(server);
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn refused_is_refused() {
    let url = Server::refused_url().unwrap();
    assert_eq!(url, Server::refused_url().unwrap());
    let refused = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}
