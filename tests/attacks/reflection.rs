//! A host that repeats the credential which the broker has added, in every place of an answer: the run must not read it.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};

use scripted_model::Front;

use crate::support::Place;

const SECRET: &str = "sk-test-REAL-0123456789abcdef";
const PLAIN: &str = "content-type: text/plain\r\n";

/// A name, and what the host writes for a secret: each piece is a write of its own.
type Way = (&'static str, fn(&str) -> Vec<String>);

/// The ways in which the host repeats the secret.
const WAYS: [Way; 26] = [
    ("body", |secret| whole(PLAIN, &format!("your key is {secret}.\n"))),
    ("body-end", |secret| whole(PLAIN, secret)),
    ("body-many", |secret| whole(PLAIN, &secret.repeat(1000))),
    ("body-after-its-beginning", |secret| whole(PLAIN, &format!("{}{secret}", &secret[..9]))),
    ("json", |secret| whole("content-type: application/json\r\n", &format!("{{\"key\":\"{secret}\"}}"))),
    ("html", |secret| whole("content-type: text/html\r\n", &format!("<p title=\"{secret}\">{secret}</p>"))),
    ("binary", |secret| whole("content-type: application/octet-stream\r\n", &format!("\0\u{1}{secret}\0"))),
    ("sse", |secret| whole("content-type: text/event-stream\r\n", &format!("data: a\n\ndata: {secret}\n\n"))),
    ("until-close", |secret| vec![format!("HTTP/1.1 200 OK\r\n{PLAIN}connection: close\r\n\r\n{secret}")]),
    ("writes", |secret| bytes_apart(&whole(PLAIN, secret).concat())),
    ("chunk", |secret| chunked("", &[secret], "")),
    ("chunk-borders", |secret| chunked("", &letters(secret), "")),
    ("chunks-in-halves", |secret| chunked("", &[&secret[..7], &secret[7..]], "")),
    ("sse-in-chunks", |secret| {
        chunked("content-type: text/event-stream\r\n", &["data: ", &secret[..3], &secret[3..], "\n\n"], "")
    }),
    ("header", |secret| whole(&format!("x-echo: {secret}\r\n"), "ok")),
    ("header-twice", |secret| whole(&format!("x-echo: a {secret} b {secret}\r\n"), "ok")),
    ("header-name", |secret| whole(&format!("{secret}: 1\r\n"), "ok")),
    ("cookie", |secret| whole(&format!("set-cookie: key={secret}; Path=/\r\n"), "ok")),
    ("etag", |secret| whole(&format!("etag: \"{secret}\"\r\n"), "ok")),
    ("link", |secret| whole(&format!("link: </{secret}>; rel=preload\r\n"), "ok")),
    ("challenge", |secret| {
        status("401 Unauthorized", &format!("www-authenticate: Bearer realm=\"{secret}\"\r\n"), "no")
    }),
    ("error", |secret| status("500 Internal Server Error", PLAIN, &format!("trace: x-key={secret}"))),
    ("not-found", |secret| status("404 Not Found", PLAIN, &format!("no route for {secret}"))),
    ("range", |secret| status("206 Partial Content", "content-range: bytes 0-9/10\r\n", secret)),
    ("reason", |secret| status(&format!("200 {secret}"), "", "ok")),
    ("redirect", |secret| status("302 Found", &format!("location: /landed?key={secret}\r\n"), "")),
];

/// The same, in ways that no program but one that looks for them reads.
const HIDDEN: [Way; 5] = [
    ("chunk-extension", |secret| {
        vec![format!(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2;key={secret}\r\nok\r\n0\r\n\r\n"
        )]
    }),
    ("trailer", |secret| chunked("trailer: x-echo\r\n", &["ok"], &format!("x-echo: {secret}\r\n"))),
    ("early-hints", |secret| {
        let early = format!("HTTP/1.1 103 Early Hints\r\nlink: </{secret}>\r\n\r\n");
        vec![early, status("200 OK", "", "ok").concat()]
    }),
    ("said-twice", |secret| {
        vec![format!("{}HTTP/1.1 200 OK\r\nx-echo: {secret}\r\n\r\n", status("200 OK", "", "ok").concat())]
    }),
    ("folded-header", |secret| {
        vec![format!("HTTP/1.1 200 OK\r\nx-echo: a\r\n {secret}\r\ncontent-length: 2\r\n\r\nok")]
    }),
];

/// Encodings that the broker cannot look into: such an answer is refused, though the request asked for none of them.
const ENCODED: [&str; 4] = ["gzip", "br", "deflate", "gzip, identity"];

/// The same by the encoding of the transfer.
const TRANSFERRED: [(&str, &str); 3] = [
    ("transfer-gzip", "transfer-encoding: gzip, chunked\r\n"),
    ("transfer-two", "transfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n"),
    ("transfer-deflate", "transfer-encoding: deflate, chunked\r\n"),
];

fn status(status: &str, headers: &str, body: &str) -> Vec<String> {
    vec![format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())]
}

fn whole(headers: &str, body: &str) -> Vec<String> {
    status("200 OK", headers, body)
}

fn chunked(headers: &str, pieces: &[&str], trailers: &str) -> Vec<String> {
    let head = format!("HTTP/1.1 200 OK\r\n{headers}transfer-encoding: chunked\r\n\r\n");
    let chunks = pieces.iter().map(|piece| format!("{:x}\r\n{piece}\r\n", piece.len()));
    std::iter::once(head).chain(chunks).chain([format!("0\r\n{trailers}\r\n")]).collect()
}

fn letters(text: &str) -> Vec<&str> {
    (0..text.len()).map(|at| &text[at..=at]).collect()
}

fn bytes_apart(text: &str) -> Vec<String> {
    text.chars().map(String::from).collect()
}

/// A host that answers a request for `/WAY` in that way, with the value of the header `x-key` that it was sent.
fn reflecting_host() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || reflect(stream));
        }
    });
    address
}

fn reflect(mut stream: TcpStream) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).ok()?;
    let secret = head.lines().find_map(|line| line.strip_prefix("x-key: ")).unwrap_or_default().to_owned();
    let path = head.split(' ').nth(1)?.trim_start_matches('/').to_owned();
    let known = WAYS.iter().chain(&HIDDEN).find(|(name, _)| *name == path);
    let pieces = match (known, path.strip_prefix("encoded-")) {
        (Some((_, pieces)), _) => pieces(&secret),
        // The reader is told of chunks, and gets the other encoding with them.
        (None, _) if path.starts_with("transfer-") => {
            let (_, coding) = TRANSFERRED.iter().find(|(name, _)| *name == path)?;
            let head = format!("HTTP/1.1 200 OK\r\n{coding}\r\n");
            vec![head, format!("{:x}\r\n{secret}\r\n0\r\n\r\n", secret.len())]
        }
        (None, Some(number)) => {
            let encoding = ENCODED[number.parse::<usize>().ok()?];
            whole(&format!("content-encoding: {encoding}\r\n"), &secret)
        }
        (None, None) => whole("", &format!("landed at {path}")),
    };
    pieces.iter().try_for_each(|piece| stream.write_all(piece.as_bytes())).ok()
}

/// A script that asks for each of these and prints a line with its name before each answer, headers and trailers included.
fn script(names: &[&str], options: &str, url: &str) -> String {
    let names = names.join(" ");
    format!(
        "for way in {names}; do echo; echo \"WAY $way\"; curl -sS -L -i --max-time 20 {options} {url}/$way 2>&1; done; true"
    )
}

/// The answers of a script, by name.
fn answers(printed: &str) -> Vec<(&str, &str)> {
    printed.split("\nWAY ").skip(1).filter_map(|answer| answer.split_once('\n')).collect()
}

struct Reflecting {
    place: Place,
    _front: Front,
}

impl Reflecting {
    fn before(host: SocketAddr) -> Self {
        let front = Front::start(host, &["good.test"]).unwrap();
        let place = Place::new().settings(r#"{"broker": {"credentials": ["good.test x-key: {env:KEY}"]}}"#);
        let root = place.home().join("root.pem");
        fs::write(&root, front.root()).unwrap();
        let place = place
            .env("KEY", SECRET)
            .env("RINGFENCE_CA_FILE", root.display().to_string())
            .env("RINGFENCE_CONNECT_TO", format!("good.test:443={}", front.address()));
        Self { place, _front: front }
    }

    /// What a run reads of the answers.
    fn read(&self, names: &[&str], options: &str) -> String {
        let script = script(names, options, "https://good.test");
        let args = ["exec", "--mode", "native", "--allow", "good.test", "--", "sh", "-c", &script];
        self.place.run(&args).expect_code(0).stdout
    }
}

#[test]
fn secret_that_a_host_repeats_is_not_read_inside() {
    let host = reflecting_host();
    let names: Vec<&str> = WAYS.iter().map(|(name, _)| *name).collect();
    // Without the broker each of these shows it.
    let direct = script(&names, &format!("--http1.1 -H 'x-key: {SECRET}'"), &format!("http://{host}"));
    let direct = Command::new("sh").args(["-c", &direct]).output().unwrap();
    let direct = String::from_utf8_lossy(&direct.stdout).into_owned();
    for (name, answer) in answers(&direct) {
        assert!(answer.contains(SECRET), "{name}: {answer}");
    }
    assert_eq!(answers(&direct).len(), WAYS.len());
    let reflecting = Reflecting::before(host);
    for version in ["--http1.1", "--http2"] {
        let printed = reflecting.read(&names, version);
        assert_eq!(answers(&printed).len(), WAYS.len(), "{printed}");
        for (name, answer) in answers(&printed) {
            assert!(answer.contains("HTTP/"), "{version} {name}: {answer}");
            let lower = answer.to_ascii_lowercase();
            assert!(!lower.contains(&SECRET.to_ascii_lowercase()), "{version} {name}: {answer}");
        }
        // It is overwritten, and all else of the answer is there.
        let stars = "*".repeat(SECRET.len());
        assert!(printed.contains(&format!("your key is {stars}.")), "{printed}");
        assert!(printed.contains(&format!("landed at landed?key={stars}")), "{printed}");
    }
}

#[test]
fn secret_in_odd_places_of_an_answer_is_not_read_inside() {
    let reflecting = Reflecting::before(reflecting_host());
    let names: Vec<&str> = HIDDEN.iter().map(|(name, _)| *name).collect();
    for version in ["--http1.1", "--http2"] {
        for raw in ["", "--raw"] {
            let printed = reflecting.read(&names, &format!("{version} {raw}"));
            assert_eq!(answers(&printed).len(), HIDDEN.len(), "{printed}");
            assert!(!printed.contains(SECRET), "{version} {raw}: {printed}");
        }
    }
}

#[test]
fn encoded_answer_to_a_request_with_a_credential_is_refused() {
    let reflecting = Reflecting::before(reflecting_host());
    let names: Vec<String> = (0..ENCODED.len()).map(|number| format!("encoded-{number}")).collect();
    let names = names.iter().map(String::as_str).chain(TRANSFERRED.iter().map(|(name, _)| *name));
    let names: Vec<&str> = names.collect();
    for version in ["--http1.1", "--http2"] {
        let printed = reflecting.read(&names, version);
        let refused = answers(&printed).into_iter().filter(|(_, answer)| answer.contains(" 502"));
        assert_eq!(refused.count(), names.len(), "{version}: {printed}");
        assert!(!printed.contains(SECRET), "{printed}");
    }
}

const GITHUB_SECRET: &str = "ghp_REAL0123456789abcdefghijklmnopqrstu";

/// A host that keeps what it hears, in the clear and by TLS, and tells all of it to whoever asks for `/log`.
fn remembering_host() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let log = Arc::<Mutex<String>>::default();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let log = Arc::clone(&log);
            std::thread::spawn(move || remember(stream, &log));
        }
    });
    address
}

fn remember(mut stream: TcpStream, log: &Mutex<String>) -> Option<()> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).ok()?;
    log.lock().unwrap().push_str(&head);
    let told = if head.starts_with("GET /log ") { log.lock().unwrap().clone() } else { "heard".to_owned() };
    stream.write_all(whole(PLAIN, &told).concat().as_bytes()).ok()
}

/// A place with credentials for two hosts, both of which are the one that remembers, at three ports.
fn remembering() -> (Place, Front, SocketAddr) {
    let host = remembering_host();
    let front = Front::start(host, &["api.github.com", "echo.test"]).unwrap();
    let place = Place::new()
        .settings(r#"{"broker": {"credentials": ["github", "echo.test/team x-key: {env:TEAM_KEY}"]}}"#);
    let root = place.home().join("root.pem");
    fs::write(&root, front.root()).unwrap();
    let to = ["api.github.com", "echo.test"].map(|name| {
        let tls = front.address();
        format!("{name}:443={tls},{name}:8443={tls},{name}:9000={host}")
    });
    let place = place
        .env("GH_TOKEN", GITHUB_SECRET)
        .env("TEAM_KEY", SECRET)
        .env("RINGFENCE_CA_FILE", root.display().to_string())
        .env("RINGFENCE_CONNECT_TO", to.join(","));
    (place, front, host)
}

/// What a run of this script prints.
fn told(place: &Place, script: &str) -> String {
    let mut args = vec!["exec", "--mode", "native"];
    let hosts = ["api.github.com", "echo.test"]
        .map(|name| [name.to_owned(), format!("{name}:8443"), format!("{name}:9000")]);
    hosts.as_flattened().iter().for_each(|host| args.extend(["--allow", host]));
    args.extend(["--", "sh", "-c", script]);
    place.run(&args).expect_code(0).stdout
}

/// The host repeats it to a run that has not sent it: nothing in that run says which bytes are a secret.
#[test]
fn secret_that_only_another_run_has_sent_is_not_read_inside() {
    let (place, _front, host) = remembering();
    let said = told(
        &place,
        "curl -sS https://echo.test/team/a; curl -sS -H \"authorization: token $GH_TOKEN\" https://api.github.com/user;
        for user in '' a ab x-access-token; do curl -sS -u $user:$GH_TOKEN https://api.github.com/; done",
    );
    assert_eq!(said, "heard".repeat(6));
    let direct = Command::new("curl").args(["-sS", &format!("http://{host}/log")]).output().unwrap();
    let direct = String::from_utf8(direct.stdout).unwrap();
    // Four users, and the ends of the encoded token that it alone determines.
    assert!(direct.contains(SECRET) && direct.contains(GITHUB_SECRET), "{direct}");
    let encoded: Vec<&str> =
        direct.lines().filter_map(|line| line.split_once("asic ")).map(|(_, value)| value).collect();
    assert_eq!(encoded.len(), 4, "{direct}");
    for version in ["--http1.1", "--http2"] {
        for name in ["echo.test", "api.github.com"] {
            // Each host tells what was said to it and to the other one. Only what belongs to it is its to hide.
            let secrets: Vec<&str> = if name == "echo.test" { vec![SECRET] } else { vec![GITHUB_SECRET] };
            for url in [
                format!("https://{name}/log"),
                format!("https://{name}:8443/log"),
                format!("http://{name}:9000/log"),
            ] {
                let log = told(&place, &format!("curl -sS {version} {url}"));
                assert!(log.contains("GET /team/a"), "{version} {url}: {log}");
                for secret in &secrets {
                    assert!(!log.contains(secret), "{version} {url}: {log}");
                }
                if name == "api.github.com" {
                    // But for the characters that the encoding shares with what stands beside it.
                    assert!(encoded.iter().all(|value| !log.contains(value)), "{version} {url}: {log}");
                    assert!(!log.contains(&encoded[0][8..40]), "{version} {url}: {log}");
                }
            }
        }
    }
}

/// What is not looked into does not pass to another port of such a host.
#[test]
fn opaque_tunnel_to_another_port_of_a_host_with_a_credential_is_refused() {
    let (place, _front, _) = remembering();
    let script = "curl -sS -H \"authorization: token $GH_TOKEN\" https://api.github.com/user;
        curl -sS --max-time 20 -p http://api.github.com:9000/log; echo; echo ended";
    let log = told(&place, script);
    assert!(log.starts_with("heard") && log.contains("ended"), "{log}");
    assert!(!log.contains("GET /user") && !log.contains(GITHUB_SECRET), "{log}");
}
