//! A run that tries to use more of a model than its budget: usage that is not told, work in the background, answers too long to
//! read, ways that are not counted, many requests at once. The provider here charges 200,000 tokens for each request, and tells its
//! usage only where OpenAI's API does.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use scripted_model::Front;
use serde_json::Value;

use crate::support::{Place, Ran};

const HOST: &str = "api.openai.com";
const USAGE: &str = r#""usage":{"prompt_tokens":100000,"completion_tokens":100000,"input_tokens":100000,"output_tokens":100000}"#;

/// A provider that keeps what it was asked.
struct Provider {
    front: Front,
    requests: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Provider {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        let requests = Arc::<Mutex<Vec<_>>>::default();
        let seen = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let seen = Arc::clone(&seen);
                std::thread::spawn(move || while answer(&stream, &seen).is_some() {});
            }
        });
        Self { front: Front::start(address, &[HOST]).unwrap(), requests }
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
            .env("RINGFENCE_CONNECT_TO", format!("{HOST}:443={}", self.front.address()))
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
fn answer(stream: &TcpStream, seen: &Mutex<Vec<(String, Value)>>) -> Option<()> {
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
    match request["silent"] == true {
        true => ("application/json", format!("{{{long}}}")),
        false => ("application/json", format!("{{{long},{USAGE}}}")),
    }
}

/// A run that sends a request again and again, at most ten times, and prints the status and body of each answer.
fn run(place: &Place, request: &str) -> Ran {
    let script = format!(
        "for i in 1 2 3 4 5 6 7 8 9 10; do curl -sS --max-time 30 -w '\\nSTATUS %{{http_code}}\\n' {request}; done"
    );
    let policy = place.home().join("policy.json").display().to_string();
    place.run(&["exec", "--mode", "native", "--policy", &policy, "--allow", HOST, "--", "sh", "-c", &script])
}

fn post(path: &str, body: &str) -> String {
    format!("-o /dev/null -d '{body}' https://{HOST}{path}")
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
        ("/v1/chat/completions", r#"{"model":"gpt-5","silent":true}"#),
        ("/v1/responses", r#"{"model":"gpt-5","silent":true}"#),
        ("/v1/messages", r#"{"model":"claude-sonnet-4-5","max_tokens":100000,"silent":true}"#),
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
        (format!("-d '{{}}' https://{HOST}/v1/batches"), "not known to be counted"),
        (format!("-d '{{}}' https://{HOST}/v1/messages/batches"), "not known to be counted"),
        (format!("-d '{{}}' https://{HOST}/v1/threads/t/messages"), "not known to be counted"),
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
        assert_eq!(answer["rule"], "budget-request");
        assert!(answer["remedy"].as_str().unwrap().len() > 10);
    }
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

/// A hundred requests at once are not all sent before the first is counted.
#[test]
fn requests_at_once_pass_the_budget_by_one_answer_at_most() {
    for version in ["--http1.1", "--http2"] {
        let provider = Provider::start();
        let place = provider.place(r#"{"tokens": 1000}"#);
        let script = format!(
            "for i in $(seq 60); do curl {version} -sS --max-time 30 -o /dev/null -d '{{\"model\":\"gpt-5\",\"max_tokens\":2000}}' https://{HOST}/v1/chat/completions & done; wait"
        );
        let policy = place.home().join("policy.json").display().to_string();
        let ran = place.run(&[
            "exec", "--mode", "native", "--policy", &policy, "--allow", HOST, "--", "sh", "-c", &script,
        ]);
        assert_eq!(provider.count(), 1, "{version}: {ran:?}");
    }
}
