//! HTTP/2 to the broker from inside of a sandbox: requests that the HTTP/1.1 to the host would mean in another way.
//!
//! The frames are written byte by byte, because no honest client sends them. The server behind the one allowed name keeps what it
//! receives: nothing of it may be the second request, the other host or the header that was smuggled.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use scripted_model::Front;

use crate::broker::Upstream;
use crate::support::Place;

/// Sends each case on a connection of its own and prints its name and what came of it: the first byte of the answer's headers
/// (`88` is status 200), `reset`, `goaway` or `end`.
const SCRIPT: &str = r#"
import os, socket, ssl, struct
proxy = os.environ["HTTPS_PROXY"].removeprefix("http://").rstrip("/")
host, port = proxy.rsplit(":", 1)
HEADERS, DATA, END, END_HEADERS = 1, 0, 1, 4
SMUGGLED = b"GET /evil HTTP/1.1\r\nhost: good.test\r\n\r\n"

def frame(kind, flags, payload, stream=1):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload

def block(fields):
    # Literals without indexing, with new names, not compressed.
    return b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in fields)

def start(method=b"GET", path=b"/ok", authority=b"good.test", scheme=b"https"):
    fields = [(b":method", method), (b":scheme", scheme), (b":path", path), (b":authority", authority)]
    return [field for field in fields if field[1] is not None]

def head(fields):
    return frame(HEADERS, END_HEADERS | END, block(fields))

def with_body(fields, *bodies):
    frames = [frame(DATA, END if body is bodies[-1] else 0, body) for body in bodies]
    return frame(HEADERS, END_HEADERS, block(fields)) + b"".join(frames)

post = lambda *more: start(method=b"POST") + list(more)
CASES = {
    "fine": head(start()),
    "fine-body": with_body(post((b"content-length", b"5")), b"hello"),
    "late-length-too-short": with_body(post((b"content-length", b"5")), b"hello" + SMUGGLED),
    "late-length-too-short-in-frames": with_body(post((b"content-length", b"5")), b"hello", SMUGGLED),
    "length-zero": with_body(post((b"content-length", b"0")), SMUGGLED),
    "late-length-too-long": with_body(post((b"content-length", b"50")), b"hello"),
    "two-lengths": with_body(post((b"content-length", b"5"), (b"content-length", b"50")), b"hello", SMUGGLED),
    "length-list": with_body(post((b"content-length", b"5, 50")), b"hello", SMUGGLED),
    "length-signed": with_body(post((b"content-length", b"+5")), b"hello", SMUGGLED),
    "chunked": with_body(post((b"transfer-encoding", b"chunked")), b"0\r\n\r\n" + SMUGGLED),
    "chunked-and-length": with_body(post((b"transfer-encoding", b"chunked"), (b"content-length", b"5")), b"0\r\n\r\n" + SMUGGLED),
    "other-authority": head(start(authority=b"bad.test", path=b"/evil")),
    "other-host": head(start(path=b"/evil") + [(b"host", b"bad.test")]),
    "host-alone": head(start(path=b"/evil", authority=None) + [(b"host", b"bad.test")]),
    "no-host": head(start(path=b"/evil", authority=None)),
    "two-authorities": head([(b":authority", b"bad.test")] + start(path=b"/evil")),
    "user-in-authority": head(start(path=b"/evil", authority=b"good.test@bad.test")),
    "other-port": head(start(path=b"/evil", authority=b"good.test:8443")),
    "connect": frame(HEADERS, END_HEADERS, block([(b":method", b"CONNECT"), (b":authority", b"bad.test:443")])) + frame(DATA, 0, SMUGGLED),
    "connect-own": frame(HEADERS, END_HEADERS, block([(b":method", b"CONNECT"), (b":authority", b"good.test:443")])) + frame(DATA, 0, SMUGGLED),
    "connect-websocket": frame(HEADERS, END_HEADERS, block(start(method=b"CONNECT", path=b"/evil") + [(b":protocol", b"websocket")])),
    "upgrade-websocket": head(start(path=b"/evil") + [(b"connection", b"upgrade"), (b"upgrade", b"websocket")]),
    "upgrade-alone": head(start(path=b"/evil") + [(b"upgrade", b"websocket")]),
    "upgrade-h2c": head(start(path=b"/evil") + [(b"upgrade", b"h2c"), (b"http2-settings", b"AAMAAABk")]),
    "line-in-value": head(start() + [(b"x", b"a\r\nx-evil: /evil")]),
    "nul-in-value": head(start() + [(b"x", b"a\0/evil")]),
    "line-in-name": head(start() + [(b"x: a\r\nevil", b"/evil")]),
    "colon-in-name": head(start() + [(b"x:/evil", b"a")]),
    "upper-case-name": head(start() + [(b"X-Evil", b"/evil")]),
    "line-in-path": head(start(path=b"/ok HTTP/1.1\r\nx: /evil")),
    "space-in-path": head(start(path=b"/ok /evil")),
    "absolute-path": head(start(path=b"http://bad.test/evil")),
    "path-without-slash": head(start(path=b"evil@bad.test/evil")),
    "empty-path": head(start(path=b"") + [(b"x", b"/evil")]),
    "line-in-method": head(start(method=b"GET /evil HTTP/1.1\r\nx: ")),
    "trace": head(start(method=b"TRACE", path=b"/evil")),
    "late-pseudo-header": head([(b"x", b"/evil")] + start()),
    "unknown-pseudo-header": head(start() + [(b":evil", b"/evil")]),
    "late-path-in-trailers": frame(HEADERS, END_HEADERS, block(post())) + frame(DATA, 0, b"x") + head([(b":path", b"/evil")]),
    "late-host-in-trailers": frame(HEADERS, END_HEADERS, block(post())) + frame(DATA, 0, b"x") + head([(b"host", b"bad.test")]),
    "data-before-headers": frame(DATA, 0, SMUGGLED) + head(start()),
    "late-data-after-end": head(start(method=b"POST")) + frame(DATA, END, SMUGGLED),
    "http1-after-preface": SMUGGLED,
}

def exactly(stream, count):
    data = b""
    while len(data) < count:
        more = stream.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data

def outcome(stream):
    while True:
        length, kind, flags, number = struct.unpack(">IBBI", b"\0" + exactly(stream, 9))
        payload = exactly(stream, length)
        if kind == HEADERS and number == 1:
            return payload[:1].hex()
        if kind in (3, 7):
            return "reset" if kind == 3 else "goaway"

def ask(frames):
    tunnel = socket.create_connection((host, int(port)), timeout=10)
    tunnel.sendall(b"CONNECT good.test:443 HTTP/1.1\r\nhost: good.test:443\r\n\r\n")
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += exactly(tunnel, 1)
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2"])
    stream = context.wrap_socket(tunnel, server_hostname="good.test")
    assert stream.selected_alpn_protocol() == "h2"
    try:
        stream.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, b"", 0) + frames)
        return outcome(stream)
    except (EOFError, OSError):
        return "end"

for name, frames in CASES.items():
    print(name, ask(frames), flush=True)
"#;

/// Opens many streams on several connections, and reads none of their answers.
const FLOOD: &str = r#"
import time
streams = []
for _ in range(4):
    tunnel = socket.create_connection((host, int(port)), timeout=10)
    tunnel.sendall(b"CONNECT good.test:443 HTTP/1.1\r\nhost: good.test:443\r\n\r\n")
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += exactly(tunnel, 1)
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2"])
    stream = context.wrap_socket(tunnel, server_hostname="good.test")
    # Windows for streams of 2 GiB, and for the connection.
    settings = frame(4, 0, struct.pack(">HI", 4, (1 << 31) - 1), 0) + frame(8, 0, struct.pack(">I", (1 << 30)), 0)
    stream.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings)
    for number in range(100):
        stream.sendall(frame(HEADERS, END_HEADERS | END, block(start(path=b"/flood")), 2 * number + 1))
    streams.append(stream)
time.sleep(3)
print("flooded", flush=True)
"#;

/// Sends heads and beginnings of bodies on many connections, and ends no request. Prints how many connections spoke HTTP/2, and
/// whether another one is served after all.
const HOARD: &str = r#"
import time
def connect(protocols):
    tunnel = socket.create_connection((host, int(port)), timeout=10)
    tunnel.sendall(b"CONNECT good.test:443 HTTP/1.1\r\nhost: good.test:443\r\n\r\n")
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += exactly(tunnel, 1)
    context = ssl.create_default_context()
    context.set_alpn_protocols(protocols)
    return context.wrap_socket(tunnel, server_hostname="good.test")
def long_head(number):
    def text(value):
        length, more = len(value) - 127, b""
        while length >= 128:
            more, length = more + bytes([length & 127 | 128]), length >> 7
        return bytes([127]) + more + bytes([length]) + value
    payload = block(start(method=b"POST")) + b"".join(
        b"\0" + bytes([2]) + b"x%d" % n + text(b"a" * 7000) for n in range(4))
    first, second = payload[:16000], payload[16000:]
    return frame(HEADERS, 0, first, number) + frame(9, END_HEADERS, second, number)
streams, spoken = [], 0
for _ in range(60):
    stream = connect(["h2", "http/1.1"])
    streams.append(stream)
    if stream.selected_alpn_protocol() != "h2":
        continue
    spoken += 1
    try:
        stream.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, b"", 0))
        for number in range(100):
            stream.sendall(long_head(2 * number + 1) + frame(DATA, 0, b"x" * 600, 2 * number + 1))
    except OSError:
        pass
last = connect(["h2", "http/1.1"])
last.sendall(b"GET /last HTTP/1.1\r\nhost: good.test\r\n\r\n")
last.settimeout(20)
print("spoken", spoken, "last", last.recv(12), flush=True)
time.sleep(1)
"#;

/// A server that has begun so many answers, and never ends one.
fn endless() -> (std::net::SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, asked) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&asked);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let counter = Arc::clone(&counter);
            std::thread::spawn(move || {
                let mut part = [0; 4096];
                if let Ok(1..) = stream.read(&mut part) {
                    counter.fetch_add(1, Ordering::Relaxed);
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
                    while stream.write_all(&[b'x'; 4096]).is_ok() {}
                }
            });
        }
    });
    (address, asked)
}

/// Answers that nobody reads are held for so many requests of a run, whatever the number of its connections.
#[test]
fn streams_that_are_not_read_are_bounded_for_a_run() {
    let (address, asked) = endless();
    let front = Front::start(address, &["good.test"]).unwrap();
    let place = Place::new().settings(r#"{"broker": {"credentials": ["good.test x-key: {env:KEY}"]}}"#);
    let root = place.home().join("root.pem");
    fs::write(&root, front.root()).unwrap();
    let (functions, _) = SCRIPT.split_once("for name, frames in CASES").unwrap();
    fs::write(place.work().join("flood.py"), format!("{functions}{FLOOD}")).unwrap();
    let place = place
        .env("KEY", "key-of-the-host")
        .env("RINGFENCE_CA_FILE", root.display().to_string())
        .env("RINGFENCE_CONNECT_TO", format!("good.test:443={}", front.address()));
    let args = ["exec", "--mode", "native", "--allow", "good.test", "--", "/usr/bin/python3", "flood.py"];
    let mut child = place.spawn(&args);
    let memory = || -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default().to_owned();
        line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0)
    };
    let mut most = 0;
    for _ in 0..60 {
        most = most.max(memory());
        std::thread::sleep(Duration::from_millis(50));
    }
    let status = child.wait().unwrap();
    let asked = asked.load(Ordering::Relaxed);
    assert!(status.success() && (100..=256).contains(&asked), "{status} {asked}");
    assert!(most < 300 << 10, "{most} kB");
}

/// A run cannot fill the host's memory with requests that it does not end.
#[test]
fn unended_requests_by_http2_are_bounded_for_a_run() {
    let upstream = Upstream::start();
    let front = Front::start(upstream.address, &["good.test"]).unwrap();
    let place = Place::new().settings(r#"{"broker": {"credentials": ["good.test x-key: {env:KEY}"]}}"#);
    let root = place.home().join("root.pem");
    fs::write(&root, front.root()).unwrap();
    let (functions, _) = SCRIPT.split_once("for name, frames in CASES").unwrap();
    fs::write(place.work().join("hoard.py"), format!("{functions}{HOARD}")).unwrap();
    let place = place
        .env("KEY", "key-of-the-host")
        .env("RINGFENCE_CA_FILE", root.display().to_string())
        .env("RINGFENCE_CONNECT_TO", format!("good.test:443={}", front.address()));
    let args = ["exec", "--mode", "native", "--allow", "good.test", "--", "/usr/bin/python3", "hoard.py"];
    let child = place.spawn(&args);
    let (id, most) = (child.id(), Arc::new(AtomicUsize::new(0)));
    let highest = Arc::clone(&most);
    let watcher = std::thread::spawn(move || {
        while let Ok(status) = fs::read_to_string(format!("/proc/{id}/status")) {
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let Some(kilobytes) = line.and_then(|line| line.split_whitespace().next()?.parse().ok()) else {
                return;
            };
            highest.fetch_max(kilobytes, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let ran = crate::support::Ran::from(child.wait_with_output().unwrap());
    watcher.join().unwrap();
    assert_eq!(ran.stdout.trim(), "spoken 8 last b'HTTP/1.1 200'", "{ran:?}");
    let most = most.load(Ordering::Relaxed);
    assert!(most > 0 && most < 120 << 10, "{most} kB");
}

/// Cases that reach the host as what they are.
const HARMLESS: [&str; 2] = ["fine", "fine-body"];
/// How the names of those begin whose fault comes after an honest head, which the host may have answered by then.
const LATE: &str = "late-";

#[test]
fn nothing_is_smuggled_to_the_host() {
    let upstream = Upstream::start();
    let front = Front::start(upstream.address, &["good.test"]).unwrap();
    // A credential of the host, so that the broker reads the requests.
    let place = Place::new().settings(r#"{"broker": {"credentials": ["good.test x-key: {env:KEY}"]}}"#);
    let root = place.home().join("root.pem");
    fs::write(&root, front.root()).unwrap();
    fs::write(place.work().join("http2.py"), SCRIPT).unwrap();
    let place = place
        .env("KEY", "key-of-the-host")
        .env("RINGFENCE_CA_FILE", root.display().to_string())
        .env("RINGFENCE_CONNECT_TO", format!("good.test:443={0},bad.test:443={0}", front.address()));
    let ran = place.run(&[
        "exec",
        "--mode",
        "native",
        "--allow",
        "good.test",
        "--",
        "/usr/bin/python3",
        "http2.py",
    ]);
    let outcomes: Vec<(&str, &str)> = ran.stdout.lines().filter_map(|line| line.split_once(' ')).collect();
    assert_eq!((ran.code(), outcomes.len()), (0, 43), "{ran:?}");
    for (name, outcome) in outcomes.into_iter().filter(|(name, _)| !name.starts_with(LATE)) {
        assert_eq!(outcome == "88", HARMLESS.contains(&name), "{name}: {outcome}");
    }
    let received = upstream.received();
    assert!(received.contains("/ok") && received.contains("x-key: key-of-the-host"), "{received}");
    for word in ["evil", "bad.test", "HTTP/1.1\r\nx:"] {
        assert!(!received.contains(word), "{word}: {received}");
    }
}
