//! HTTP/1.1 through the broker, between a client that says exactly this and a host that says exactly that.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use ringfence_core::backend::Door;
use ringfence_core::policy::{Network, NetworkMode};
use ringfence_egress::{Broker, Budget, Entry, Outcome, Prices, Session, Setup, read_entries};

const PATIENCE: Duration = Duration::from_secs(10);

/// A broker before one host.
struct Scene {
    broker: Option<Broker>,
    door: SocketAddr,
    directory: tempfile::TempDir,
}

impl Scene {
    fn before(host: SocketAddr) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let session = Session::new(Setup {
            network: Network {
                mode: NetworkMode::Allow,
                allow: vec!["host.test".parse().unwrap()],
                deny: Vec::new(),
                ask: false,
                local: Vec::new(),
            },
            credentials: Vec::new(),
            connect_to: format!("host.test:80={host}").parse().unwrap(),
            roots: Vec::new(),
            prices: Prices::built_in().unwrap(),
            budget: Budget::default(),
            ask: None,
            resolver: None,
            daemon: None,
            model_headers: Vec::new(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let door = listener.local_addr().unwrap();
        let audit = directory.path().join("network.jsonl");
        let broker = Broker::open(Door::Tcp(listener), Vec::new(), session.unwrap(), &audit).unwrap();
        Self { broker: Some(broker), door, directory }
    }

    /// A tunnel to the host, in which requests are made.
    fn tunnel(&self) -> TcpStream {
        let mut stream = TcpStream::connect(self.door).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"CONNECT host.test:80 HTTP/1.1\r\nHost: host.test\r\n\r\n").unwrap();
        assert!(read_head(&mut stream).starts_with("HTTP/1.1 200"));
        stream
    }

    fn entries(&mut self) -> Vec<Entry> {
        self.broker = None;
        read_entries(&self.directory.path().join("network.jsonl")).unwrap()
    }
}

/// A host that does this with each connection.
fn host(serve: impl Fn(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            serve(stream);
        }
    });
    address
}

/// A host that does this with each connection, and tells what came of it.
fn telling<T: Send + 'static>(serve: impl Fn(TcpStream) -> T + Send + 'static) -> (SocketAddr, Receiver<T>) {
    let (told, hears) = channel();
    (host(move |stream| drop(told.send(serve(stream)))), hears)
}

fn read_head(stream: &mut TcpStream) -> String {
    read_until(stream, b"\r\n\r\n")
}

fn read_until(stream: &mut TcpStream, end: &[u8]) -> String {
    let (mut read, mut byte) = (Vec::new(), [0]);
    while !read.ends_with(end) && stream.read(&mut byte).is_ok_and(|count| count > 0) {
        read.push(byte[0]);
    }
    String::from_utf8(read).unwrap()
}

fn read_exactly(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

fn read_rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    rest
}

const GET: &[u8] = b"GET /a HTTP/1.1\r\nHost: host.test\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[test]
fn requests_follow_each_other_on_one_connection_to_the_host() {
    let (address, heads) = telling(|mut stream| {
        let mut heads = Vec::new();
        loop {
            match read_head(&mut stream) {
                head if head.is_empty() => return heads,
                head => heads.push(head),
            }
            stream.write_all(OK).unwrap();
        }
    });
    let scene = Scene::before(address);
    let mut client = scene.tunnel();
    // Two at once, a third later, and the last.
    client.write_all(&[GET, GET].concat()).unwrap();
    for another in [true, false, false] {
        assert!(read_head(&mut client).contains("content-length: 2\r\n"));
        assert_eq!(read_exactly(&mut client, 2), b"ok");
        if another {
            client.write_all(GET).unwrap();
        }
    }
    client.write_all(b"GET /b HTTP/1.1\r\nHost: host.test\r\nConnection: close\r\n\r\n").unwrap();
    let rest = String::from_utf8(read_rest(&mut client)).unwrap();
    assert!(rest.contains("connection: close") && rest.ends_with("ok"), "{rest}");
    let heads = heads.recv_timeout(PATIENCE).unwrap();
    assert_eq!(heads.len(), 4, "{heads:?}");
}

#[test]
fn a_host_that_leaves_between_requests_is_called_again() {
    let scene = Scene::before(host(|mut stream| {
        read_head(&mut stream);
        stream.write_all(OK).unwrap();
    }));
    let mut client = scene.tunnel();
    for _ in 0..5 {
        client.write_all(GET).unwrap();
        assert!(read_head(&mut client).starts_with("HTTP/1.1 200"));
        read_exactly(&mut client, 2);
    }
}

#[test]
fn both_may_speak_at_once() {
    // More than all buffers on the way hold: whoever finishes the one before the other never ends.
    const LENGTH: usize = 24 << 20;
    let scene = Scene::before(host(|mut stream| {
        read_head(&mut stream);
        stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n").as_bytes()).unwrap();
        let (mut left, mut piece) = (LENGTH, vec![0; 64 << 10]);
        while left > 0 {
            let count = stream.read(&mut piece).unwrap();
            stream.write_all(&piece[..count]).unwrap();
            left -= count;
        }
    }));
    let mut client = scene.tunnel();
    let mut writer = client.try_clone().unwrap();
    let sent: Vec<u8> = (0..LENGTH).map(|at| (at / 251) as u8).collect();
    let expected = sent.clone();
    let thread = std::thread::spawn(move || {
        let head = format!("POST / HTTP/1.1\r\nHost: host.test\r\nContent-Length: {LENGTH}\r\n\r\n");
        writer.write_all(head.as_bytes()).unwrap();
        writer.write_all(&sent).unwrap();
    });
    assert!(read_head(&mut client).starts_with("HTTP/1.1 200"));
    assert!(read_exactly(&mut client, LENGTH) == expected);
    thread.join().unwrap();
}

#[test]
fn an_answer_that_comes_early_is_heard() {
    let scene = Scene::before(host(|mut stream| {
        read_head(&mut stream);
        stream.write_all(b"HTTP/1.1 413 No\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno").unwrap();
    }));
    let mut client = scene.tunnel();
    let mut writer = client.try_clone().unwrap();
    let thread = std::thread::spawn(move || {
        let _ = writer.write_all(b"POST / HTTP/1.1\r\nHost: host.test\r\nContent-Length: 99999999\r\n\r\n");
        while writer.write_all(&[b'x'; 8192]).is_ok() {}
    });
    let head = read_head(&mut client);
    assert!(head.starts_with("HTTP/1.1 413") && head.contains("connection: close"), "{head}");
    assert_eq!(read_exactly(&mut client, 2), b"no");
    thread.join().unwrap();
}

#[test]
fn a_client_that_leaves_takes_its_request_along() {
    // While the host thinks, and while it speaks.
    for spoken in [&b""[..], b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n"] {
        let (address, left) = telling(move |mut stream| {
            read_head(&mut stream);
            stream.write_all(spoken).unwrap();
            read_rest(&mut stream)
        });
        let scene = Scene::before(address);
        let mut client = scene.tunnel();
        client.write_all(GET).unwrap();
        if !spoken.is_empty() {
            assert!(read_head(&mut client).contains("transfer-encoding: chunked"));
        }
        drop(client);
        assert_eq!(left.recv_timeout(PATIENCE).unwrap(), b"");
    }
}

#[test]
fn pieces_are_heard_when_they_are_said() {
    let (go, goes) = channel::<()>();
    let goes = std::sync::Mutex::new(goes);
    let scene = Scene::before(host(move |mut stream| {
        read_head(&mut stream);
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
        for piece in ["3\r\none\r\n", "3\r\ntwo\r\n", "0\r\n\r\n"] {
            stream.write_all(piece.as_bytes()).unwrap();
            // The next one only when this one was heard.
            goes.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        }
    }));
    let mut client = scene.tunnel();
    client.write_all(GET).unwrap();
    assert!(read_head(&mut client).contains("transfer-encoding: chunked"));
    for piece in ["3\r\none\r\n", "3\r\ntwo\r\n", "0\r\n\r\n"] {
        assert_eq!(read_exactly(&mut client, piece.len()), piece.as_bytes());
        go.send(()).unwrap();
    }
}

#[test]
fn a_body_that_waits_to_be_asked_for_is() {
    let (address, heard) = telling(|mut stream| {
        let head = read_head(&mut stream);
        let body = read_exactly(&mut stream, "5\r\nhello\r\n0\r\n\r\n".len());
        // What comes before the answer is not for the client.
        stream.write_all(b"HTTP/1.1 103 Early\r\nX: y\r\n\r\n").unwrap();
        stream.write_all(OK).unwrap();
        (head, body)
    });
    let scene = Scene::before(address);
    let mut client = scene.tunnel();
    let asks =
        b"POST / HTTP/1.1\r\nHost: host.test\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n";
    client.write_all(asks).unwrap();
    assert_eq!(read_head(&mut client), "HTTP/1.1 100 Continue\r\n\r\n");
    client.write_all(b"5;ext\r\nhello\r\n0\r\nTrailer: x\r\n\r\n").unwrap();
    assert!(read_head(&mut client).starts_with("HTTP/1.1 200"));
    let (head, body) = heard.recv_timeout(PATIENCE).unwrap();
    assert!(!head.to_ascii_lowercase().contains("expect"), "{head}");
    assert_eq!(body, b"5\r\nhello\r\n0\r\n\r\n");
}

#[test]
fn an_answer_that_is_cut_off_does_not_look_whole() {
    for (answer, whole) in [
        (&b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"[..], false),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhalf", false),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", false),
        (b"HTTP/1.1 200 OK\r\n\r\nhalf", true),
    ] {
        let scene = Scene::before(host(move |mut stream| {
            read_head(&mut stream);
            stream.write_all(answer).unwrap();
        }));
        let mut client = scene.tunnel();
        client.write_all(GET).unwrap();
        let head = read_head(&mut client);
        let body = read_until(&mut client, b"0\r\n\r\n");
        assert!(body.contains("half"), "{head}{body}");
        assert_eq!(body.ends_with("0\r\n\r\n"), whole, "{head}{body}");
    }
}

#[test]
fn answers_that_could_be_read_in_two_ways_are_not_passed_on() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\n\r\nok",
        "HTTP/9.9 200 OK\r\n\r\n",
        "nonsense\r\n\r\n",
        "",
    ] {
        let scene = Scene::before(host(move |mut stream| {
            read_head(&mut stream);
            stream.write_all(answer.as_bytes()).unwrap();
        }));
        let mut client = scene.tunnel();
        client.write_all(GET).unwrap();
        let head = read_head(&mut client);
        assert!(head.starts_with("HTTP/1.1 502"), "{answer}: {head}");
    }
}

#[test]
fn requests_that_could_be_read_in_two_ways_reach_nobody() {
    let long = "a".repeat(100 << 10);
    let many = "X: y\r\n".repeat(101);
    let head = "POST / HTTP/1.1\r\nHost: host.test\r\n";
    let cases: [(String, &[u16]); 22] = [
        (format!("{head}Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello"), &[400]),
        (format!("{head}Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"), &[400]),
        (format!("{head}Content-Length: 5, 5\r\n\r\nhello"), &[400]),
        (format!("{head}Content-Length: +5\r\n\r\nhello"), &[400]),
        (format!("{head}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), &[400]),
        (format!("{head}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"), &[400]),
        (format!("{head}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"), &[400]),
        (format!("{head}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), &[400]),
        (format!("{head}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"), &[400]),
        ("POST / HTTP/1.0\r\nHost: host.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".into(), &[400]),
        ("GET / HTTP/1.1\r\nHost: host.test\r\nHost: host.test\r\n\r\n".into(), &[400]),
        ("GET / HTTP/1.1\r\nHost: other.test\r\n\r\n".into(), &[421]),
        ("GET / HTTP/1.1\r\n\r\n".into(), &[400]),
        ("GET http://other.test/ HTTP/1.1\r\nHost: host.test\r\n\r\n".into(), &[421]),
        ("CONNECT host.test:80 HTTP/1.1\r\nHost: host.test\r\n\r\n".into(), &[400, 421]),
        ("TRACE / HTTP/1.1\r\nHost: host.test\r\n\r\n".into(), &[400]),
        ("GET / HTTP/1.1\r\nHost: host.test\r\nX: a\r\n b\r\n\r\n".into(), &[400]),
        ("GET / HTTP/1.1\r\nHost: host.test\r\nX: a\0\r\n\r\n".into(), &[400]),
        (format!("GET / HTTP/1.1\r\nHost: host.test\r\nX: {long}\r\n\r\n"), &[431]),
        (format!("GET / HTTP/1.1\r\nHost: host.test\r\n{many}\r\n"), &[431]),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(), &[400]),
        ("GET /\r\n\r\n".into(), &[400]),
    ];
    let (address, heads) = telling(|mut stream| read_head(&mut stream));
    let mut scene = Scene::before(address);
    for (request, expected) in &cases {
        let mut client = scene.tunnel();
        let _ = client.write_all(request.as_bytes());
        let head = read_head(&mut client);
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        assert!(expected.contains(&status), "{request:.120}: {head}");
    }
    assert!(heads.try_recv().is_err());
    let entries: Vec<Entry> = scene.entries().into_iter().filter(|entry| entry.way == "http").collect();
    assert_eq!(entries.len(), cases.len(), "{entries:#?}");
    assert!(entries.iter().all(|entry| entry.decision == Outcome::Block), "{entries:?}");
}

#[test]
fn a_body_that_breaks_its_word_is_not_finished() {
    let (address, bodies) = telling(|mut stream| {
        read_head(&mut stream);
        read_rest(&mut stream)
    });
    let scene = Scene::before(address);
    for wrong in ["5\r\nhello!", "x\r\n", "5\r\nhello\r\n\r\n", "5\nhello"] {
        let mut client = scene.tunnel();
        let head = "POST / HTTP/1.1\r\nHost: host.test\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n";
        client.write_all(format!("{head}{wrong}").as_bytes()).unwrap();
        assert!(read_head(&mut client).starts_with("HTTP/1.1 400"), "{wrong}");
        let body = bodies.recv_timeout(PATIENCE).unwrap();
        assert!(!body.ends_with(b"0\r\n\r\n"), "{wrong}: {body:?}");
    }
}

#[test]
fn an_old_client_is_served_and_then_left() {
    let scene = Scene::before(host(|mut stream| {
        read_head(&mut stream);
        stream
            .write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")
            .unwrap();
        read_rest(&mut stream);
    }));
    let mut client = scene.tunnel();
    client.write_all(b"GET / HTTP/1.0\r\nHost: host.test\r\n\r\n").unwrap();
    let answer = String::from_utf8(read_rest(&mut client)).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\nok"), "{answer}");
}

#[test]
fn a_websocket_is_let_through_with_all_that_was_said_already() {
    let scene = Scene::before(host(|mut stream| {
        assert!(read_head(&mut stream).contains("upgrade: websocket"));
        let head = b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nfirst";
        stream.write_all(head).unwrap();
        let heard = read_exactly(&mut stream, 5);
        stream.write_all(&heard).unwrap();
    }));
    let mut client = scene.tunnel();
    let head = "GET / HTTP/1.1\r\nHost: host.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello";
    client.write_all(head.as_bytes()).unwrap();
    assert!(read_head(&mut client).starts_with("HTTP/1.1 101"));
    assert_eq!(read_rest(&mut client), b"firsthello");
}

#[test]
fn nothing_but_a_websocket_is_switched_to() {
    // Somebody who wants two things is heard as if it wanted none.
    let (address, heads) = telling(|mut stream| {
        let head = read_head(&mut stream);
        stream.write_all(OK).unwrap();
        head
    });
    let scene = Scene::before(address);
    for wish in ["Upgrade: websocket\r\nUpgrade: h2c\r\n", "Upgrade: h2c\r\n", "Upgrade: websocket, h2c\r\n"]
    {
        let mut client = scene.tunnel();
        let head = format!("GET / HTTP/1.1\r\nHost: host.test\r\nConnection: Upgrade\r\n{wish}\r\n");
        client.write_all(head.as_bytes()).unwrap();
        assert!(read_head(&mut client).starts_with("HTTP/1.1 200"));
        let head = heads.recv_timeout(PATIENCE).unwrap().to_ascii_lowercase();
        assert!(!head.contains("upgrade"), "{head}");
    }
    // Nor does a host have its way.
    let scene = Scene::before(host(|mut stream| {
        read_head(&mut stream);
        stream.write_all(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n").unwrap();
    }));
    let mut client = scene.tunnel();
    let head = "GET / HTTP/1.1\r\nHost: host.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    client.write_all(head.as_bytes()).unwrap();
    assert!(read_head(&mut client).starts_with("HTTP/1.1 502"));
}
