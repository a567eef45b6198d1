//! A daemon that answers, and somebody who asks it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

use crate::support::{Place, Ran};

/// A place whose daemon answers at an address of its own. It ends with it.
pub(crate) struct Site {
    pub(crate) place: Place,
    pub(crate) address: String,
}

/// An address that logs a browser in, once.
pub(crate) struct LoginAddress {
    /// The host name with its port, which only this browser knows.
    pub(crate) host: String,
    pub(crate) path: String,
}

/// A browser that is logged in.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    pub(crate) host: String,
    pub(crate) cookie: String,
    origin: String,
}

impl Session {
    /// What the browser sends with every request.
    pub(crate) fn headers(&self) -> [(&str, &str); 2] {
        [("host", &self.host), ("cookie", &self.cookie)]
    }

    /// What the browser sends with a form of the dashboard.
    pub(crate) fn form_headers(&self) -> [(&str, &str); 4] {
        let [host, cookie] = self.headers();
        [host, cookie, ("origin", &self.origin), ("content-type", "application/x-www-form-urlencoded")]
    }
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(given, _)| given.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

/// Settings of a queue whose retries do not take long, with no bound on requests.
pub(crate) const SETTINGS: &str = r#"{"sandbox": {"mode": "native"}, "server": {"rate_limit": 0},
    "queue": {"retry_seconds": 1, "retry_max_seconds": 1}}"#;

impl Site {
    pub(crate) fn new() -> Self {
        Self::of(Place::new().settings(SETTINGS))
    }

    /// Starts the daemon of a place.
    #[track_caller]
    pub(crate) fn of(place: Place) -> Self {
        Self::listening(place, "127.0.0.1:0")
    }

    #[track_caller]
    pub(crate) fn listening(place: Place, address: &str) -> Self {
        let place = place.env("RINGFENCE_LISTEN", address);
        place.run(&["start"]).expect_code(0);
        let status = place.run(&["status", "--json"]).json();
        let address = status["daemon"]["address"].as_str().unwrap_or_else(|| panic!("{status}")).to_owned();
        Self { place, address }
    }

    #[track_caller]
    pub(crate) fn ok(&self, args: &[&str]) -> Ran {
        self.place.run(args).expect_code(0)
    }

    /// The daemon's own token, as a header has it.
    pub(crate) fn bearer(&self) -> String {
        let token = std::fs::read_to_string(self.place.state().join("api.token")).unwrap();
        format!("Bearer {}", token.trim())
    }

    /// Sends a request as the daemon's owner, unless the headers hold another credential.
    #[track_caller]
    pub(crate) fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let bearer = self.bearer();
        let mut headers = headers.to_vec();
        if !headers.iter().any(|(name, _)| ["authorization", "x-api-key", "cookie"].contains(name)) {
            headers.push(("authorization", &bearer));
        }
        ask(&self.address, method, path, &headers, body)
    }

    /// Sends a GET request without a credential.
    #[track_caller]
    pub(crate) fn get_anonymously(&self, path: &str) -> Answer {
        ask(&self.address, "GET", path, &[], "")
    }

    /// A one-time login address.
    #[track_caller]
    pub(crate) fn login_address(&self) -> LoginAddress {
        let url = self.ok(&["open", "--json"]).json()["login_url"].as_str().unwrap().to_owned();
        let (host, path) = url.strip_prefix("http://").and_then(|rest| rest.split_once('/')).unwrap();
        LoginAddress { host: host.to_owned(), path: format!("/{path}") }
    }

    /// Opens a login address as a browser does.
    #[track_caller]
    pub(crate) fn open(&self, login: &LoginAddress) -> Answer {
        ask(&self.address, "GET", &login.path, &[("host", &login.host)], "")
    }

    /// Logs a browser in.
    #[track_caller]
    pub(crate) fn log_in(&self) -> Session {
        let login = self.login_address();
        let answer = self.open(&login).expect(303);
        let cookie = answer.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
        Session { cookie, origin: format!("http://{}", login.host), host: login.host }
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], "")
    }

    #[track_caller]
    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, &[("content-type", "application/json")], &body.to_string())
    }

    /// Adds a task that runs a script, and tells its number.
    #[track_caller]
    pub(crate) fn add(&self, script: &str) -> String {
        let spec = serde_json::json!({
            "prompt": "do it", "agent": "command", "command": format!("sh -c '{script}'"),
            "directory": self.place.work(),
        });
        self.post("/tasks", &spec).expect(201).json()["task"]["id"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    pub(crate) fn wait(&self, id: &str) -> Value {
        self.place.run(&["task", "wait", id, "--timeout", "60"]);
        self.get(&format!("/tasks/{id}")).expect(200).json()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = self.place.command(&["stop"]).output();
    }
}

/// One request, one answer.
#[track_caller]
pub(crate) fn ask(address: &str, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let named = headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host"));
    let host = if named { String::new() } else { format!("host: {address}\r\n") };
    let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\n{host}{more}connection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    // Who is turned away may be so before all was said.
    let _ = stream.write_all(body.as_bytes());
    let mut bytes = Vec::new();
    let mut part = [0; 64 << 10];
    while !is_whole(&bytes) {
        match stream.read(&mut part) {
            Ok(0) | Err(_) => break,
            Ok(read) => bytes.extend(&part[..read]),
        }
    }
    parse(&bytes)
}

/// Whether all was said, for those who do not hang up then.
fn is_whole(bytes: &[u8]) -> bool {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    length.is_some_and(|length| bytes.len() >= end + 4 + length)
}

fn parse(bytes: &[u8]) -> Answer {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no answer: {}", String::from_utf8_lossy(bytes)));
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap();
    let rest = &bytes[end + 4..];
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if chunked { unchunked(rest) } else { rest.to_vec() };
    Answer { status, head, body: String::from_utf8_lossy(&body).into_owned() }
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|window| window == b"\r\n") {
        let size = usize::from_str_radix(String::from_utf8_lossy(&rest[..end]).trim(), 16).unwrap_or(0);
        if size == 0 || rest.len() < end + 2 + size {
            break;
        }
        body.extend(&rest[end + 2..end + 2 + size]);
        rest = &rest[(end + 4 + size).min(rest.len())..];
    }
    body
}
