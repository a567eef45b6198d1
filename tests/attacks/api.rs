//! The HTTP API: paths that lead out, foreign pages, forms, sizes, depth, numbers, and keys that are not to be set.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::site::{Site, ask};

const JSON: (&str, &str) = ("content-type", "application/json");

fn tasks(site: &Site) -> Value {
    site.get("/tasks").expect(200).json()["tasks"].clone()
}

#[test]
fn paths_that_lead_out() {
    let site = Site::new();
    let marker = "words-of-the-host";
    std::fs::write(site.place.home().join("private"), marker).unwrap();
    for name in [
        "..",
        "../..",
        "%2e%2e",
        "%2e%2e%2f%2e%2e%2fprivate",
        "..%2f..%2fprivate",
        "..%5c..%5cprivate",
        "%252e%252e%252fprivate",
        "....//....//private",
        "%00",
        "x%00/../../private",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "file:%2f%2f%2fetc%2fpasswd",
        "%ff%fe",
        "a%0d%0aset-cookie:%20x=y",
    ] {
        for route in [
            "/runs/{}",
            "/runs/{}/log",
            "/runs/{}/record",
            "/runs/{}/diff",
            "/runs/{}/net",
            "/tasks/{}",
            "/ui/runs/{}",
            "/assets/{}",
        ] {
            let path = route.replace("{}", name);
            let answer = site.ask("GET", &path, &[], "");
            assert!([400, 404, 405, 409, 422].contains(&answer.status), "{path}: {answer:?}");
            assert!(!answer.body.contains(marker) && !answer.body.contains("root:x:"), "{path}: {answer:?}");
            assert!(!answer.head.to_ascii_lowercase().contains("set-cookie: x="), "{path}: {answer:?}");
        }
    }
}

/// What a page of somebody else can make a browser send.
#[test]
fn requests_of_foreign_pages() {
    let site = Site::new();
    let task = json!({"prompt": "x", "agent": "demo", "directory": site.place.work()}).to_string();
    let port = site.address.rsplit(':').next().unwrap();
    let foreign: [&[(&str, &str)]; 12] = [
        &[JSON, ("host", "evil.example")],
        &[JSON, ("host", "evil.example:80"), ("origin", "http://evil.example")],
        &[JSON, ("origin", "http://evil.example")],
        &[JSON, ("origin", "null")],
        &[JSON, ("origin", "https://127.0.0.1.evil.example")],
        &[JSON, ("origin", "http://127.0.0.1:1")],
        &[JSON, ("sec-fetch-site", "cross-site")],
        &[JSON, ("sec-fetch-site", "same-site")],
        &[JSON, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")],
        &[JSON, ("x-forwarded-for", "192.0.2.1")],
        &[JSON, ("host", "localhost.evil.example")],
        &[JSON, ("host", "[::1].evil.example")],
    ];
    // A page does not have the token, and a browser's cookie does not help it.
    let session = site.log_in();
    for headers in foreign {
        let answer = ask(&site.address, "POST", "/tasks", headers, &task);
        assert!([400, 401, 403, 421].contains(&answer.status), "{headers:?}: {answer:?}");
        if headers.iter().any(|(name, _)| ["origin", "sec-fetch-site"].contains(name)) {
            let headers = [headers, &session.headers()[..]].concat();
            let answer = ask(&site.address, "POST", "/tasks", &headers, &task);
            assert!([400, 401, 403, 421].contains(&answer.status), "{headers:?}: {answer:?}");
        }
    }
    // What a form can send without being asked first.
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""] {
        let answer = site.ask("POST", "/tasks", &[("content-type", kind)], &task);
        assert!([400, 401, 403, 415].contains(&answer.status), "{kind}: {answer:?}");
    }
    let rebound = format!("evil.example:{port}");
    for path in ["/tasks", "/runs", "/config", "/ui", "/events"] {
        let answer = ask(&site.address, "GET", path, &[("host", &rebound)], "");
        let to_login = path == "/ui" && answer.header("location") == Some("/ui/login");
        assert!(to_login || [400, 401, 403, 421].contains(&answer.status), "{path}: {answer:?}");
        assert!(answer.header("access-control-allow-origin").is_none(), "{path}: {answer:?}");
    }
    assert_eq!(tasks(&site), json!([]), "something was added");
}

#[test]
fn forms_without_their_token() {
    let site = Site::new();
    let form = ("content-type", "application/x-www-form-urlencoded");
    let task = format!("prompt=x&agent=demo&directory={}", site.place.work().display());
    for (headers, body) in [
        (vec![form], task.clone()),
        (vec![form], format!("token=&{task}")),
        (vec![form, ("cookie", "session=")], format!("token=x&{task}")),
        (vec![form, ("cookie", "session=x; session=y")], format!("token=x&token=y&{task}")),
        (vec![form, ("origin", "http://evil.example")], format!("token=x&{task}")),
    ] {
        let answer = site.ask("POST", "/ui/tasks", &headers, &body);
        assert!([303, 400, 401, 403].contains(&answer.status), "{headers:?}: {answer:?}");
    }
    assert_eq!(tasks(&site), json!([]), "something was added");
}

#[test]
fn sizes_depth_and_numbers() {
    let site = Site::new();
    let work = site.place.work().display().to_string();
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let cases = [
        ("depth", deep.clone()),
        ("depth in a field", format!(r#"{{"prompt": {deep}}}"#)),
        (
            "a large number",
            format!(
                r#"{{"prompt":"x","agent":"demo","directory":"{work}","priority":99999999999999999999}}"#
            ),
        ),
        (
            "a negative number",
            format!(r#"{{"prompt":"x","agent":"demo","directory":"{work}","max_attempts":-1}}"#),
        ),
        (
            "a number that is none",
            format!(r#"{{"prompt":"x","agent":"demo","directory":"{work}","priority":1e999}}"#),
        ),
        ("a name twice", format!(r#"{{"prompt":"x","prompt":"y","agent":"demo","directory":"{work}"}}"#)),
        ("a directory with a zero", r#"{"prompt":"x","agent":"demo","directory":"/tmp\u0000/x"}"#.to_owned()),
        ("a directory that leads up", r#"{"prompt":"x","agent":"demo","directory":"../.."}"#.to_owned()),
        ("no text", "{\"prompt\":\"\u{fffe}".to_owned()),
    ];
    for (what, body) in cases {
        let answer = site.ask("POST", "/tasks", &[JSON], &body);
        assert!([400, 409, 413, 422].contains(&answer.status), "{what}: {answer:?}");
    }
    for path in [
        "/tasks?limit=99999999999999999999",
        "/tasks?limit=-1",
        "/tasks?after=x",
        "/events?after=-1",
        "/runs?limit=0",
    ] {
        let answer = site.get(path);
        assert!([400, 422].contains(&answer.status), "{path}: {answer:?}");
    }
    assert_eq!(tasks(&site), json!([]), "something was added");
    site.get("/health/ready").expect(200);
}

/// Words that are no requests, or two at once.
#[test]
fn requests_that_could_be_read_in_two_ways() {
    let site = Site::new();
    let host = format!("Host: {}\r\n", site.address);
    let long = "a".repeat(1 << 20);
    for (what, words) in [
        (
            "two lengths",
            format!("POST /tasks HTTP/1.1\r\n{host}Content-Length: 2\r\nContent-Length: 3\r\n\r\n{{}}"),
        ),
        (
            "length and chunks",
            format!(
                "POST /tasks HTTP/1.1\r\n{host}Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
            ),
        ),
        (
            "another coding",
            format!("POST /tasks HTTP/1.1\r\n{host}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
        ),
        ("no host", "GET /tasks HTTP/1.1\r\n\r\n".to_owned()),
        ("two hosts", format!("GET /tasks HTTP/1.1\r\n{host}Host: evil.example\r\n\r\n")),
        ("a foreign address", format!("GET http://evil.example/tasks HTTP/1.1\r\n{host}\r\n")),
        ("a tunnel", format!("CONNECT evil.example:443 HTTP/1.1\r\n{host}\r\n")),
        ("a long line", format!("GET /{long} HTTP/1.1\r\n{host}\r\n")),
        ("long headers", format!("GET /tasks HTTP/1.1\r\n{host}X: {long}\r\n\r\n")),
        ("a folded header", format!("GET /tasks HTTP/1.1\r\n{host}X: a\r\n b\r\n\r\n")),
        ("nonsense", "\0\u{1}\u{2}\r\n\r\n".to_owned()),
    ] {
        let mut stream = TcpStream::connect(&site.address).unwrap();
        let _ = stream.write_all(words.as_bytes());
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(!answer.starts_with("HTTP/1.1 2"), "{what}: {answer}");
        assert!(answer.matches("HTTP/1.1 ").count() <= 1, "{what}: {answer}");
    }
    site.get("/health/ready").expect(200);
}

#[test]
fn keys_that_are_not_to_be_set() {
    let site = Site::new();
    for (key, value) in [
        ("trusted_projects", json!(["/"])),
        ("sandbox.env_allowlist", json!(["HOME"])),
        ("sandbox.apple.runtime_command", json!("/tmp/x")),
        ("agents.x.command", json!("sh")),
        ("broker.credentials", json!({})),
        ("server.listen", json!("0.0.0.0:1")),
        ("API_KEYS", json!("mine")),
        ("API_SECRET", json!("mine")),
        ("OPENTIGER_ALLOW_INSECURE_SYSTEM_CONTROL", json!("true")),
        ("PATH", json!("/tmp")),
        ("__proto__", json!({"x": 1})),
        ("", json!("x")),
    ] {
        let answer = site.ask("PATCH", "/config", &[JSON], &json!({"updates": {key: value}}).to_string());
        assert!([400, 403, 422].contains(&answer.status), "{key}: {answer:?}");
    }
}
