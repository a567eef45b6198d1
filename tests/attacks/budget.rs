//! A run that tries to use more of a model than its budget: usage that is not told, work in the background, answers too long to
//! read, ways that are not counted, many requests at once. The provider here charges 200,000 tokens for each request, and tells its
//! usage only where OpenAI's API does.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use scripted_model::Front;
use serde_json::Value;

use crate::site::{SETTINGS, Site};
use crate::support::{Place, Ran};

const HOST: &str = "api.openai.com";
const ANTHROPIC: &str = "api.anthropic.com";
const USAGE: &str = r#""usage":{"prompt_tokens":100000,"completion_tokens":100000,"input_tokens":100000,"output_tokens":100000}"#;

/// A provider that keeps what it was asked.
struct Provider {
    front: Front,
    requests: Arc<Mutex<Vec<(String, Value)>>>,
    /// The head of each request.
    heads: Arc<Mutex<Vec<String>>>,
}

impl Provider {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let requests = Arc::<Mutex<Vec<_>>>::default();
        let heads = Arc::<Mutex<Vec<_>>>::default();
        let (seen, seen_heads) = (Arc::clone(&requests), Arc::clone(&heads));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, heads) = (Arc::clone(&seen), Arc::clone(&seen_heads));
                std::thread::spawn(move || while answer(&stream, &seen, &heads).is_some() {});
            }
        });
        Self { front: Front::start(address, &[HOST, ANTHROPIC]).unwrap(), requests, heads }
    }

    fn place(&self, limits: &str) -> Place {
        let place = Place::new();
        let root = place.home().join("root.pem");
        fs::write(&root, self.front.root()).unwrap();
        fs::write(
            place.home().join("policy.json"),
            format!(r#"{{"extends": "standard", "limits": {limits}}}"#),
        )
        .unwrap();
        place
            .env("RINGFENCE_CONNECT_TO", format!("{HOST}:443={0},{ANTHROPIC}:443={0}", self.front.address()))
            .env("RINGFENCE_CA_FILE", root.display().to_string())
    }

    fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    fn last_body(&self) -> Value {
        self.requests.lock().unwrap().last().unwrap().1.clone()
    }
}

/// Answers a request as the real API does; nothing if there is none.
fn answer(stream: &TcpStream, seen: &Mutex<Vec<(String, Value)>>, heads: &Mutex<Vec<String>>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        (reader.read_line(&mut head).ok()? > 0).then_some(())?;
    }
    let length = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    let request: Value = serde_json::from_slice(&body).unwrap_or_default();
    let line = head.lines().next()?.to_owned();
    seen.lock().unwrap().push((line.clone(), request.clone()));
    heads.lock().unwrap().push(head.to_ascii_lowercase());
    let (kind, text) = reply(&line, &request);
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n", text.len());
    let mut writer = stream;
    writer.write_all(head.as_bytes()).ok()?;
    writer.write_all(text.as_bytes()).ok()
}

fn reply(line: &str, request: &Value) -> (&'static str, String) {
    let long =
        format!("\"logprobs\":\"{}\"", "x".repeat(if request["logprobs"] == true { 5 << 20 } else { 0 }));
    if request["background"] == true {
        return ("application/json", r#"{"id":"resp_1","status":"queued","usage":null}"#.to_owned());
    }
    if line.starts_with("GET") {
        return ("application/json", "{\"status\":\"completed\",\"output\":\"done\"}".to_owned());
    }
    if request["stream"] == true {
        let told = request["stream_options"]["include_usage"] == true;
        let usage = if told { format!("data: {{\"choices\":[],{USAGE}}}\n\n") } else { String::new() };
        return ("text/event-stream", format!("data: {{\"choices\":[1],{long}}}\n\n{usage}data: [DONE]\n\n"));
    }
    // The name of the model that answers, where the test asks for another.
    let model = request["metadata"]["answers"].as_str().or(request["model"].as_str()).unwrap_or_default();
    match request["metadata"]["silent"] == true {
        true => ("application/json", format!("{{{long}}}")),
        false => ("application/json", format!("{{\"model\":\"{model}\",{long},{USAGE}}}")),
    }
}

/// A run that sends a request again and again, at most ten times, and prints the status and body of each answer.
fn run(place: &Place, request: &str) -> Ran {
    let script = format!(
        "for i in 1 2 3 4 5 6 7 8 9 10; do curl -sS --max-time 30 -w '\\nSTATUS %{{http_code}}\\n' {request}; done"
    );
    sh(place, &script)
}

/// A run of a script under the policy of the place.
fn sh(place: &Place, script: &str) -> Ran {
    let policy = place.home().join("policy.json").display().to_string();
    let hosts = ["--allow", HOST, "--allow", ANTHROPIC];
    let words = ["exec", "--mode", "native", "--policy", &policy];
    place.run(&[&words[..], &hosts, &["--", "sh", "-c", script]].concat())
}

/// A run that sends a request many times at once.
fn run_at_once(place: &Place, times: u32, request: &str) -> Ran {
    sh(place, &format!("for i in $(seq {times}); do curl -sS --max-time 30 {request} & done; wait"))
}

fn post(path: &str, body: &str) -> String {
    let host = if path.ends_with("/messages") { ANTHROPIC } else { HOST };
    format!("-o /dev/null -d '{body}' https://{host}{path}")
}

/// Every one of these was counted as nothing: ten of ten passed.
#[test]
fn usage_that_is_hidden_ends_the_run_after_one_answer() {
    for (path, body) in [
        ("/v1/chat/completions", r#"{"model":"gpt-5","stream":true}"#),
        (
            "/v1/chat/completions",
            r#"{"model":"gpt-5","stream":true,"stream_options":{"include_usage":false}}"#,
        ),
        ("/v1/chat/completions", r#"{"model":"gpt-5","stream":true,"logprobs":true}"#),
        ("/v1/chat/completions", r#"{"model":"gpt-5","logprobs":true}"#),
        ("/v1/chat/completions", r#"{"model":"gpt-5","metadata":{"silent":true}}"#),
        ("/v1/responses", r#"{"model":"gpt-5","metadata":{"silent":true}}"#),
        ("/v1/messages", r#"{"model":"claude-sonnet-4-5","max_tokens":100000,"metadata":{"silent":true}}"#),
    ] {
        for limits in [r#"{"tokens": 1000}"#, r#"{"cost_usd": 0.01}"#] {
            let provider = Provider::start();
            let place = provider.place(limits);
            let ran = run(&place, &post(path, body));
            assert_eq!(provider.count(), 1, "{path} {body} {limits}: {ran:?}");
            assert!(ran.stderr.contains("the budget was passed"), "{path} {body} {limits}: {ran:?}");
        }
    }
}

#[test]
fn hosts_that_a_budget_does_not_count_are_named_on_stderr() {
    let place = Provider::start().place(r#"{"tokens": 1000}"#);
    let policy = place.home().join("policy.json").display().to_string();
    let args = ["exec", "--mode", "native", "--policy", &policy, "--allow", "other.test", "--", "true"];
    let ran = place.run(&args).expect_code(0);
    assert!(ran.stderr.replace('\n', " ").contains("other.test, are used for is not counted"), "{ran:?}");
}

/// A host that reads a body by its type must read what was counted.
#[test]
fn body_of_any_type_is_counted_and_sent_as_what_was_read() {
    const URL: &str = "https://api.openai.com/v1/chat/completions";
    let body = r#"{"model":"gpt-5","user":"&model=gpt-4o&stream=true&"}"#;
    for headers in [
        "",
        "-H 'content-type:'",
        "-H 'content-type: text/plain'",
        "-H 'content-type: application/json; charset=utf-16'",
        "-H 'content-type: application/json' -H 'content-type: application/x-www-form-urlencoded'",
    ] {
        for version in ["--http1.1", "--http2"] {
            let provider = Provider::start();
            let place = provider.place(r#"{"tokens": 1000}"#);
            let ran = run(&place, &format!("-o /dev/null {version} {headers} -d '{body}' {URL}"));
            assert_eq!(provider.count(), 1, "{headers}: {ran:?}");
            let head = provider.heads.lock().unwrap()[0].clone();
            let types: Vec<_> = head.lines().filter(|line| line.starts_with("content-type")).collect();
            assert_eq!(types, ["content-type: application/json"], "{headers} {version}: {head}");
        }
    }
}

/// The same usage, however the request is written on the wire.
#[test]
fn request_on_any_wire_is_counted_once() {
    let body = r#"{"model":"gpt-5"}"#;
    let head = format!("POST /v1/chat/completions HTTP/1.1\r\nHost: {HOST}\r\n");
    let plain = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
    let chunks = format!("{:x}\r\n{body}\r\n0\r\n", body.len());
    let chunked = format!(
        "{head}Transfer-Encoding: chunked\r\nTrailer: X\r\n\r\n{chunks}X: 1\r\nContent-Length: 9\r\n\r\n"
    );
    let waiting = format!("{head}Expect: 100-continue\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let upgrading =
        format!("{head}Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    for request in [&plain, &chunked, &waiting, &upgrading] {
        // Several of them at once, none of which waits for the answer to another.
        let provider = Provider::start();
        let place = provider.place(r#"{"tokens": 1000}"#);
        let script = r#"
import os, socket, ssl, urllib.parse
proxy = urllib.parse.urlsplit(os.environ['HTTPS_PROXY'])
raw = socket.create_connection((proxy.hostname, proxy.port), 20)
raw.sendall(b'CONNECT api.openai.com:443 HTTP/1.1\r\nHost: api.openai.com:443\r\n\r\n')
while not raw.recv(4096).endswith(b'\r\n\r\n'): pass
tls = ssl.create_default_context().wrap_socket(raw, server_hostname='api.openai.com')
tls.sendall(open('request', 'rb').read() * 5)
while tls.recv(4096): pass
"#;
        fs::write(place.work().join("pipelined.py"), script).unwrap();
        fs::write(place.work().join("request"), request).unwrap();
        let ran = sh(&place, "python3 pipelined.py");
        assert_eq!(provider.count(), 1, "{request}: {ran:?}");
        assert!(ran.stderr.contains("the budget was passed"), "{request}: {ran:?}");
    }
    // One that is longer than what is read.
    let provider = Provider::start();
    let place = provider.place(r#"{"tokens": 100000000}"#);
    let long = "head -c 34000000 /dev/zero | tr '\\0' x > long; (printf '{\"model\":\"gpt-5\",\"user\":\"'; cat long; printf '\"}') > body";
    let url = format!("https://{HOST}/v1/chat/completions");
    for wire in ["", "-H 'transfer-encoding: chunked'", "-H 'expect: 100-continue'", "--http2"] {
        let ran = sh(&place, &format!("{long}; curl -sS --max-time 60 {wire} --data-binary @body {url}"));
        assert!(ran.stdout.contains("longer than 32 MiB"), "{wire}: {ran:?}");
    }
    assert_eq!(provider.count(), 0);
}

#[test]
fn a_stream_is_asked_for_its_usage_and_stays_what_the_client_asked_for() {
    let provider = Provider::start();
    let place = provider.place(r#"{"tokens": 1000000}"#);
    let body = r#"{"model":"gpt-5","stream":true,"messages":[{"role":"user","content":"grün \u00e9"}],"seed":12345678901}"#;
    run(&place, &post("/v1/chat/completions", body)).expect_code(125);
    let mut expected: Value = serde_json::from_str(body).unwrap();
    expected["stream_options"] = serde_json::json!({"include_usage": true});
    assert_eq!(provider.last_body(), expected);
}

/// Ways in which a model works without its usage being seen never reach the provider.
#[test]
fn what_cannot_be_counted_is_refused_with_a_reason() {
    let provider = Provider::start();
    let place = provider.place(r#"{"tokens": 1000}"#);
    let gzip = format!(
        "-H 'content-encoding: gzip' -d '{{\"model\":\"gpt-5\"}}' https://{HOST}/v1/chat/completions"
    );
    for (request, reason) in [
        (
            format!("-d '{{\"model\":\"gpt-5\",\"background\":true}}' https://{HOST}/v1/responses"),
            "background",
        ),
        (format!("https://{HOST}/v1/responses/resp_1"), "not known to be counted"),
        (format!("-d {0}{{}}{0} https://{HOST}/v1/chat/completions?Mo%64el=o3-pro", "'"), "names a model"),
        (format!("-d '{{}}' https://{HOST}/v1/batches"), "not known to be counted"),
        (format!("-d '{{}}' https://{HOST}/v1/messages/batches"), "not known to be counted"),
        (format!("-d '{{}}' https://{HOST}/v1/threads/t/messages"), "not known to be counted"),
        (format!("-d '{{}}' https://{HOST}/v1/anything/count_tokens"), "not known to be counted"),
        (format!("-d '{{}}' https://{HOST}/backend-api/wham/tasks"), "not known to be counted"),
        (format!("-d '{{}}' https://{HOST}/v1/x/settings"), "not known to be counted"),
        (format!("-d '{{}}' https://{HOST}/v1/%63hat/completions"), "not known to be counted"),
        (format!("https://{HOST}/v1/x/models"), "not known to be counted"),
        (format!("-d '{{}}' https://{HOST}/v1/threads/runs"), "not known to be counted"),
        (format!("-d '{{}}' https://{HOST}/v1/embeddings"), "not known to be counted"),
        (format!("-d '{{}}' https://{HOST}/v1/files"), "not known to be counted"),
        (format!("https://{HOST}/v1/files/f/content"), "not known to be counted"),
        (format!("--path-as-is -d '{{}}' https://{HOST}/v1/batches/../messages"), "not known to be counted"),
        (
            format!(
                "--http1.1 -H 'connection: upgrade' -H 'upgrade: websocket' -H 'sec-websocket-version: 13' -H 'sec-websocket-key: AAAA' https://{HOST}/v1/realtime"
            ),
            "websocket",
        ),
        (gzip, "compressed"),
        (format!("-d 'no json' https://{HOST}/v1/chat/completions"), "no JSON object"),
        (format!("-d '{{\"messages\":[]}}' https://{HOST}/v1/chat/completions"), "names no model"),
    ] {
        let ran = run(&place, &request).expect_code(0);
        assert_eq!(provider.count(), 0, "{request}: {ran:?}");
        let first = ran.stdout.lines().next().unwrap();
        let answer: Value = serde_json::from_str(first).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
        assert!(answer["message"].as_str().unwrap().contains(reason), "{request}: {answer}");
        assert!(answer["rule"].as_str().unwrap().starts_with("budget-"), "{request}: {answer}");
        assert!(answer["remedy"].as_str().unwrap().len() > 10);
    }
}

/// Each of these has a provider read or write more than the bound that was reckoned for the request, or use another price.
#[test]
fn request_that_could_pass_its_bound_is_refused_by_name() {
    let chat = "/v1/chat/completions";
    let cases: [(&str, &str, &str); 17] = [
        (chat, r#"{"model":"gpt-5","Max_Tokens":1000000}"#, "`Max_Tokens`"),
        (chat, r#"{"model":"gpt-5","max_tokens":1,"MAX_TOKENS":1000000}"#, "`MAX_TOKENS`"),
        (chat, r#"{"model":"gpt-5","max_tokens":1,"max_tokens":1000000}"#, "distinct names"),
        (chat, r#"{"model":"gpt-5","max_tokens":1,"max\u005ftokens":1000000}"#, "distinct names"),
        (chat, r#"{"model":"gpt-5","n":2.0}"#, "`n`"),
        (chat, r#"{"model":"gpt-5","n":2e0}"#, "`n`"),
        (chat, r#"{"model":"gpt-5","n":"9"}"#, "`n`"),
        (chat, r#"{"model":"gpt-5","models":["o3-pro"]}"#, "`models`"),
        (chat, r#"{"model":"gpt-5","plugins":[{"id":"web"}]}"#, "`plugins`"),
        (chat, r#"{"model":"gpt-5","service_tier":"priority"}"#, "`service_tier`"),
        ("/v1/responses", r#"{"model":"gpt-5","prompt":{"id":"p"}}"#, "`prompt`"),
        ("/v1/responses", r#"{"model":"gpt-5","tools":[{"type":"mcp"}]}"#, "`mcp`"),
        ("/v1/responses", r#"{"model":"gpt-5","tools":[{"type":"m\u0063p"}]}"#, "`mcp`"),
        ("/v1/responses", r#"{"model":"gpt-5","tools":[{"type":"function","Type":"mcp"}]}"#, "`Type`"),
        ("/v1/responses", r#"{"model":"gpt-5","Background":true}"#, "`Background`"),
        ("/v1/messages", r#"{"model":"claude-sonnet-4-5","mcp_servers":[{"url":"x"}]}"#, "`mcp_servers`"),
        ("/v1/messages", r#"{"model":"claude-sonnet-4-5","speed":"fast"}"#, "`speed`"),
    ];
    let provider = Provider::start();
    let place = provider.place(r#"{"tokens": 1000}"#);
    let requests: String = cases
        .iter()
        .map(|(path, body, _)| {
            let host = if *path == "/v1/messages" { ANTHROPIC } else { HOST };
            format!("curl -sS --max-time 30 -d '{body}' https://{host}{path}\n")
        })
        .collect();
    let ran = sh(&place, &requests).expect_code(0);
    let answers: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((answers.len(), provider.count()), (cases.len(), 0), "{ran:?}");
    for (answer, (path, body, word)) in answers.iter().zip(cases) {
        assert!(answer["message"].as_str().unwrap().contains(word), "{path} {body}: {answer}");
        assert!(answer["remedy"].as_str().unwrap().contains("without a budget"), "{answer}");
    }
}

/// What is read by reference has no bound that is known, so such requests are sent one after another.
#[test]
fn requests_that_refer_to_something_are_sent_one_after_another() {
    for body in [
        r#"{"model":"gpt-5","max_output_tokens":9,"input":[{"type":"item_reference","id":"i"}]}"#,
        r#"{"model":"gpt-5","max_output_tokens":9,"tools":[{"type":"web\u005fsearch"}]}"#,
        r#"{"model":"gpt-5","max_output_tokens":9,"input":[{"type":"reasoning","id":"r","summary":[]}]}"#,
    ] {
        let provider = Provider::start();
        let place = provider.place(r#"{"tokens": 300000}"#);
        let ran = run_at_once(&place, 20, &post("/v1/responses", body));
        assert_eq!(provider.count(), 2, "{body}: {ran:?}");
    }
}

/// A model whose name begins like that of a known one has no price, in a request and in an answer.
#[test]
fn price_is_that_of_the_exact_model_in_request_and_answer() {
    let provider = Provider::start();
    let request = post("/v1/chat/completions", r#"{"model":"gpt-5-ultra"}"#);
    run(&provider.place(r#"{"cost_usd": 100}"#), &request).expect_code(0);
    assert_eq!(provider.count(), 0);
    let body = r#"{"model":"gpt-5","metadata":{"answers":"gpt-5-ultra"}}"#;
    let ran = run(
        &provider.place(r#"{"cost_usd": 1000}"#),
        &format!("-d '{body}' https://{HOST}/v1/chat/completions"),
    );
    assert_eq!(provider.count(), 1, "{ran:?}");
    assert!(ran.stdout.contains("the price of the model `gpt-5-ultra` is not known"), "{ran:?}");
    let dated = r#"{"model":"gpt-5","metadata":{"answers":"gpt-5-2025-08-07"}}"#;
    run(&provider.place(r#"{"cost_usd": 1000}"#), &post("/v1/chat/completions", dated)).expect_code(0);
    assert_eq!(provider.count(), 11);
}

#[test]
fn a_model_without_a_price_is_refused_under_a_budget_of_dollars() {
    let provider = Provider::start();
    let request = format!("-d '{{\"model\":\"unheard-of\"}}' https://{HOST}/v1/chat/completions");
    let ran = run(&provider.place(r#"{"cost_usd": 100}"#), &request).expect_code(0);
    assert_eq!(provider.count(), 0, "{ran:?}");
    assert!(ran.stdout.contains("the price of the model `unheard-of` is not known"), "{ran:?}");
    assert!(ran.stdout.contains("broker.prices_file"), "{ran:?}");
    // A budget of tokens needs no price.
    run(&provider.place(r#"{"tokens": 1000}"#), &request);
    assert_eq!(provider.count(), 1);
}

/// Without a budget nothing of this applies.
#[test]
fn a_run_without_a_budget_is_not_hindered() {
    let provider = Provider::start();
    let place = provider.place("{}");
    run(&place, &post("/v1/batches", "{}")).expect_code(0);
    assert_eq!(provider.count(), 10);
}

/// A task that fails and is tried again does not begin with a new budget.
#[test]
fn attempts_at_a_task_share_its_budget() {
    let provider = Provider::start();
    let site = Site::of(provider.place(r#"{"tokens": 500000}"#).settings(SETTINGS));
    let policy = site.place.home().join("policy.json").display().to_string();
    fs::write(site.place.work().join("request.json"), r#"{"model":"gpt-5","max_tokens":1}"#).unwrap();
    let url = format!("https://{HOST}/v1/chat/completions");
    let command = format!("sh -c 'curl -sS --max-time 30 -d @request.json {url}; exit 1'");
    let words = ["task", "add", "--json", "--max-attempts", "9", "--policy", &policy, "--allow", HOST];
    let added = site.ok(&[&words[..], &["--command", &command]].concat()).json();
    let id = added[0]["task"].as_str().unwrap();
    site.place.run(&["task", "wait", id, "--timeout", "120"]);
    let task = site.ok(&["task", "show", id, "--json"]).json();
    // Each attempt uses 200,000 tokens: the third one passes the budget.
    assert_eq!((task["runs"].as_array().unwrap().len(), provider.count()), (3, 3), "{task}");
    assert_eq!(task["runs"][2]["class"], "budget_exceeded", "{task}");
    assert_eq!(task["task"]["state"], "dead", "{task}");
}

/// A hundred requests at once are not all sent before the first is counted.
#[test]
fn requests_at_once_pass_the_budget_by_one_answer_at_most() {
    for version in ["--http1.1", "--http2"] {
        let provider = Provider::start();
        let place = provider.place(r#"{"tokens": 1000}"#);
        let request = post("/v1/chat/completions", r#"{"model":"gpt-5","max_tokens":2000}"#);
        let ran = run_at_once(&place, 60, &format!("{version} {request}"));
        assert_eq!(provider.count(), 1, "{version}: {ran:?}");
    }
}

/// A host that does not take long bodies until it is told to.
#[derive(Default)]
struct SlowHost {
    /// How many long requests have begun, and whether their bodies are taken.
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl SlowHost {
    fn start() -> (Arc<Self>, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let slow = Arc::new(Self::default());
        let served = Arc::clone(&slow);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let slow = Arc::clone(&served);
                std::thread::spawn(move || while slow.serve(&stream).is_some() {});
            }
        });
        (slow, address)
    }

    fn serve(&self, mut stream: &TcpStream) -> Option<()> {
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).ok()?;
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).ok()?.to_ascii_lowercase();
        let length =
            head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok())?;
        if length > LONG_BYTES {
            let mut state = self.state.lock().unwrap();
            state.0 += 1;
            self.changed.notify_all();
            drop(self.changed.wait_while(state, |(_, taken)| !*taken).unwrap());
        }
        std::io::copy(&mut stream.take(length), &mut std::io::sink()).ok()?;
        let text = format!("{{\"model\":\"gpt-5\",{USAGE}}}");
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length:";
        stream.write_all(format!("{head} {}\r\n\r\n{text}", text.len()).as_bytes()).ok()
    }

    /// How many long requests have begun, once there are so many or this time is over.
    fn begun(&self, expected: usize, limit: Duration) -> usize {
        let state = self.state.lock().unwrap();
        let (state, _) =
            self.changed.wait_timeout_while(state, limit, |(begun, _)| *begun < expected).unwrap();
        state.0
    }

    fn take_bodies(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_all();
    }
}

/// Longer bodies are long ones; those of the test are longer than what the kernel holds of a connection.
const LONG_BYTES: u64 = 4 << 20;
const BODY_BYTES: usize = 31 << 20;

/// Bodies that a host takes slowly fill the memory of the host's process no further than so many bytes in all.
#[test]
fn long_bodies_wait_for_memory_while_others_are_sent() {
    const UPLOADS: usize = 5;
    for version in ["--http1.1", "--http2"] {
        let (slow, address) = SlowHost::start();
        let provider =
            Provider { front: Front::start(address, &[HOST, ANTHROPIC]).unwrap(), ..Provider::start() };
        let place = provider.place(r#"{"tokens": 1000000000000}"#);
        for (file, length) in [("long", BODY_BYTES), ("ordinary", 1 << 20), ("short", 10)] {
            let body =
                format!("{{\"model\":\"gpt-5\",\"max_tokens\":1,\"user\":\"{}\"}}", "x".repeat(length));
            fs::write(place.work().join(file), body).unwrap();
        }
        let curl = format!("curl -sS --max-time 100 -o /dev/null -w '%{{http_code}} ' -X POST {version}");
        let url = format!("https://{HOST}/v1/chat/completions");
        let script = format!(
            "for i in $(seq {UPLOADS}); do {curl} -T long {url} & done
            while [ ! -e go ]; do sleep 0.05; done
            {curl} -T short {url} > others; {curl} -T ordinary {url} >> others; {curl} -T - {url} < ordinary >> others
            mv others answered; wait"
        );
        let policy = place.home().join("policy.json").display().to_string();
        let words =
            ["exec", "--mode", "native", "--policy", &policy, "--allow", HOST, "--", "sh", "-c", &script];
        let child = place.spawn(&words);
        // No more than two of them have room. Others would come soon.
        slow.begun(2, Duration::from_secs(60));
        let begun = slow.begun(UPLOADS, Duration::from_secs(2));
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let memory = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let kilobytes: usize = memory.split_whitespace().next().unwrap().parse().unwrap();
        fs::write(place.work().join("go"), "").unwrap();
        let answered = crate::support::wait_for("the other answers", || {
            fs::read_to_string(place.work().join("answered")).ok()
        });
        slow.take_bodies();
        let ran = Ran::from(child.wait_with_output().unwrap());
        assert_eq!(answered, "200 200 200 ", "{version}: {ran:?}");
        assert_eq!(begun, 2, "{version}");
        assert!(kilobytes < 300 << 10, "{version}: {kilobytes} kB");
        // None is lost, and none waits for ever.
        assert_eq!(ran.stdout, "200 ".repeat(UPLOADS), "{version}: {ran:?}");
    }
}
