//! What a hostile program says to the broker, and what it is answered. Nothing of it may reach a host.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ringfence_core::backend::Door;
use ringfence_core::policy::{Host, Network, NetworkMode};
use ringfence_egress::{
    Answer, Ask, Broker, Budget, Entry, HostPrograms, Outcome, Prices, Reply, Resolve, Session, Setup,
    Sources, find, read_entries,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use scripted_model::{Front, Script, Server, Step};

/// A resolver that plays a script.
struct Scripted;

impl Resolve for Scripted {
    fn resolve<'a>(&'a self, name: &'a str) -> Answer<'a> {
        let address = match name {
            "rebind.wild.test" => "127.0.0.1",
            "metadata.wild.test" => "169.254.169.254",
            "inside.wild.test" => "10.0.0.1",
            "mapped.wild.test" => "::ffff:127.0.0.1",
            "six.wild.test" => "fd00::1",
            _ => return Box::pin(async { Err(std::io::ErrorKind::NotFound.into()) }),
        };
        let address: IpAddr = address.parse().unwrap();
        Box::pin(async move { Ok(vec![address]) })
    }
}

struct Scene {
    server: Server,
    front: Front,
    broker: Option<Broker>,
    door: SocketAddr,
    directory: tempfile::TempDir,
    placeholder: String,
    /// What a run would trust.
    trusted: String,
}

const ALLOWED: [&str; 5] =
    ["good.test", "*.wild.test", "db.test:5432", "api.anthropic.com", "plain.test:8080"];

/// A person who says yes to one host, and counts the questions.
#[derive(Default)]
struct Person(AtomicUsize);

impl Ask for Person {
    fn ask(&self, host: &Host, _: u16) -> Reply {
        self.0.fetch_add(1, Ordering::Relaxed);
        if host.to_string() == "plain.test" { Reply::Yes } else { Reply::No }
    }

    fn ask_no_more(&self, _: &Host, _: u16) {}
}

impl Scene {
    fn new() -> Self {
        Self::with(None)
    }

    fn with(ask: Option<Arc<dyn Ask>>) -> Self {
        let server = Server::start(Script::new(vec![Step::Text { text: "hi".into() }])).unwrap();
        let front = Front::start(server.address(), &["good.test", "api.anthropic.com"]).unwrap();
        Self::before(server, front, ask)
    }

    /// With another host behind TLS.
    fn before(server: Server, front: Front, ask: Option<Arc<dyn Ask>>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let env = BTreeMap::from([("ANTHROPIC_API_KEY".to_owned(), "sk-ant-api03-REAL".to_owned())]);
        let sources = Sources {
            env: &env,
            moved: &[],
            home: directory.path(),
            state: directory.path(),
            programs: &HostPrograms::none(),
            keychain: None,
            base_url: None,
            login_gateways: &[],
        };
        let credentials = find(&["anthropic"], sources).unwrap();
        let placeholder = credentials[0].inside().env["ANTHROPIC_API_KEY"].clone();
        let plain = server.address();
        let tls = front.address();
        let to = format!(
            "good.test:443={tls},api.anthropic.com:443={tls},good.test:80={plain},plain.test:8080={plain},plain.test:80={plain}"
        );
        let setup = Setup {
            network: Network {
                mode: NetworkMode::Allow,
                allow: ALLOWED.iter().map(|rule| rule.parse().unwrap()).collect(),
                deny: vec!["evil.wild.test".parse().unwrap()],
                ask: false,
                local: Vec::new(),
            },
            credentials,
            connect_to: to.parse().unwrap(),
            roots: vec![front.root().to_owned()],
            prices: Prices::built_in().unwrap(),
            budget: Budget::default(),
            ask,
            resolver: Some(Arc::new(Scripted)),
            daemon: None,
            model_headers: Vec::new(),
        };
        let session = Session::new(setup).unwrap();
        let trusted = session.bundle("");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let door = listener.local_addr().unwrap();
        let broker =
            Broker::open(Door::Tcp(listener), Vec::new(), session, &directory.path().join("network.jsonl"))
                .unwrap();
        Self { server, front, broker: Some(broker), door, directory, placeholder, trusted }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.door).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
        stream
    }

    fn say(&self, bytes: &[u8]) -> String {
        self.say_and_wait(bytes, Duration::from_secs(2))
    }

    /// The answer, or what there is of one when nothing more comes for so long.
    fn say_and_wait(&self, bytes: &[u8], patience: Duration) -> String {
        let mut stream = self.connect();
        stream.set_read_timeout(Some(patience)).unwrap();
        // Whoever is refused early cannot always say all.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let mut part = [0; 4096];
        while !whole(&answer) {
            match stream.read(&mut part) {
                Ok(count) if count > 0 => answer.extend(&part[..count]),
                _ => break,
            }
        }
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn status(&self, bytes: &[u8]) -> u16 {
        let answer = self.say(bytes);
        answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
    }

    fn reached(&self) -> usize {
        self.server.requests().len()
    }

    /// A tunnel that is open.
    fn tunnel(&self, to: &str) -> TcpStream {
        let mut stream = self.connect();
        stream.write_all(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").as_bytes()).unwrap();
        let mut answer = [0; 256];
        let count = stream.read(&mut answer).unwrap();
        assert!(answer[..count].starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
        stream
    }

    /// A client that trusts what a run trusts.
    fn client(&self, protocol: &[u8]) -> rustls::ClientConfig {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(self.trusted.as_bytes()) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.to_vec()];
        config
    }

    /// TLS over a tunnel, with a name of one's own.
    fn tls(&self, tunnel: TcpStream, name: &str, protocol: &[u8]) -> std::io::Result<Tls> {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let connection = rustls::ClientConnection::new(Arc::new(self.client(protocol)), name).unwrap();
        let mut stream = rustls::StreamOwned::new(connection, tunnel);
        stream.conn.complete_io(&mut stream.sock)?;
        Ok(stream)
    }

    /// The status and the headers of the answer to a request without a body to the host with a credential.
    fn ask(
        &self,
        protocol: &'static [u8],
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> (u16, http::HeaderMap) {
        let tunnel = self.tunnel("api.anthropic.com:443");
        let config = Arc::new(self.client(protocol));
        let uri = format!("https://api.anthropic.com{path}");
        let mut request = http::Request::builder().method(method).uri(uri);
        if protocol != b"h2" {
            request = request.header("host", "api.anthropic.com").uri(path);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(String::new()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            tunnel.set_nonblocking(true).unwrap();
            let tunnel = tokio::net::TcpStream::from_std(tunnel).unwrap();
            let name = ServerName::try_from("api.anthropic.com").unwrap();
            let tls = tokio_rustls::TlsConnector::from(config).connect(name, tunnel).await.unwrap();
            let io = hyper_util::rt::TokioIo::new(tls);
            let answer = if protocol == b"h2" {
                let executor = hyper_util::rt::TokioExecutor::new();
                let (mut sender, connection) =
                    hyper::client::conn::http2::handshake(executor, io).await.unwrap();
                tokio::spawn(connection);
                sender.send_request(request).await.unwrap()
            } else {
                let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
                tokio::spawn(connection);
                sender.send_request(request).await.unwrap()
            };
            (answer.status().as_u16(), answer.headers().clone())
        })
    }

    /// What was written down, once the broker has ended.
    fn entries(&mut self) -> Vec<Entry> {
        self.broker = None;
        read_entries(&self.directory.path().join("network.jsonl")).unwrap()
    }
}

/// Whether an answer has come whole.
fn whole(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let tunnel = head.starts_with("HTTP/1.1 200")
        && length.is_none()
        && !head.to_ascii_lowercase().contains("chunked");
    tunnel || length.is_some_and(|length: usize| body.len() >= length) || body.ends_with("0\r\n\r\n")
}

type Tls = rustls::StreamOwned<rustls::ClientConnection, TcpStream>;

/// Names that are no names, addresses in every disguise, hosts that nobody allowed.
const HOSTS: [(&str, u16); 37] = [
    ("other.test", 403),
    ("sub.good.test", 403),
    ("good.test.evil.test", 403),
    ("xgood.test", 403),
    ("wild.test", 403),
    ("evil.wild.test", 403),
    ("xn--good-9za.test", 403),
    ("127.0.0.1", 403),
    ("8.8.8.8", 403),
    ("169.254.169.254", 403),
    ("[::1]", 403),
    ("[::ffff:127.0.0.1]", 403),
    ("[::ffff:169.254.169.254]", 403),
    ("[fd00:ec2::254]", 403),
    ("localhost", 403),
    ("rebind.wild.test", 403),
    ("metadata.wild.test", 403),
    ("inside.wild.test", 403),
    ("mapped.wild.test", 403),
    ("six.wild.test", 403),
    ("good.test.", 400),
    ("good..test", 400),
    (".good.test", 400),
    ("-good.test", 400),
    ("good_.test", 400),
    ("0177.0.0.1", 400),
    ("0x7f.0.0.1", 400),
    ("0x7f000001", 400),
    ("2130706433", 400),
    ("017700000001", 400),
    ("127.1", 400),
    ("127.0.0.01", 400),
    ("good.test%00.evil.test", 400),
    ("good.test%2eevil.test", 400),
    ("user@good.test", 400),
    ("user:pass@good.test", 400),
    ("*.wild.test", 400),
];

#[test]
fn hosts_are_read_in_one_way_by_all_doors() {
    let scene = Scene::new();
    for (host, expected) in HOSTS {
        let connect = format!("CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n");
        assert_eq!(scene.status(connect.as_bytes()), expected, "CONNECT {host}");
        let absolute = format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\n\r\n");
        assert_eq!(scene.status(absolute.as_bytes()), expected, "GET {host}");
        // SOCKS: not allowed, or no such kind of address.
        let name = host.trim_matches(['[', ']']);
        let expected = if expected == 403 && !name.contains("::") { 2 } else { 8 };
        assert_eq!(socks(&scene, name.as_bytes(), 443), expected, "SOCKS {host}");
    }
    for raw in [&b"good.test\0.evil.test"[..], b"good.test\0", b"g\xc3\xb6od.test", b"good.test\r\nx: y", b""]
    {
        assert_eq!(socks(&scene, raw, 443), 8, "{raw:?}");
    }
    assert_eq!(scene.reached(), 0);
}

/// The answer to a wish by name.
fn socks(scene: &Scene, name: &[u8], port: u16) -> u8 {
    let mut stream = scene.connect();
    let mut wish = vec![5, 1, 0, 5, 1, 0, 3, u8::try_from(name.len()).unwrap()];
    wish.extend(name);
    wish.extend(port.to_be_bytes());
    stream.write_all(&wish).unwrap();
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).unwrap();
    answer[3]
}

#[test]
fn ports_are_as_named() {
    let scene = Scene::new();
    for (authority, expected) in [
        ("good.test:22", 403),
        ("good.test:8443", 403),
        ("db.test:443", 403),
        ("good.test:0", 400),
        ("good.test:65536", 400),
        ("good.test:+443", 400),
        ("good.test:", 400),
        ("good.test", 400),
        ("good.test:443:80", 400),
        ("db.test:5432", 502),
    ] {
        let connect = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
        assert_eq!(scene.status(connect.as_bytes()), expected, "{authority}");
    }
    assert_eq!(socks(&scene, b"good.test", 22), 2);
    assert_eq!(socks(&scene, b"good.test", 0), 8);
    assert_eq!(scene.reached(), 0);
}

#[test]
fn requests_that_could_be_read_in_two_ways_are_refused() {
    let scene = Scene::new();
    let long = "a".repeat(100 << 10);
    let cases: Vec<(&str, String, &[u16])> = vec![
        ("another host", "GET http://good.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n".into(), &[421]),
        ("another port", "GET http://good.test/ HTTP/1.1\r\nHost: good.test:81\r\n\r\n".into(), &[421]),
        ("two hosts", "GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\nHost: other.test\r\n\r\n".into(), &[400]),
        ("the same host twice", "GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\nHost: good.test\r\n\r\n".into(), &[400]),
        ("tunnel with another host", "CONNECT good.test:443 HTTP/1.1\r\nHost: other.test:443\r\n\r\n".into(), &[400]),
        ("a path", "GET / HTTP/1.1\r\nHost: good.test\r\n\r\n".into(), &[400]),
        ("an asterisk", "OPTIONS * HTTP/1.1\r\nHost: good.test\r\n\r\n".into(), &[400]),
        ("another scheme", "GET ftp://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n".into(), &[400]),
        ("a file", "GET file:///etc/passwd HTTP/1.1\r\nHost: good.test\r\n\r\n".into(), &[400]),
        ("trace", "TRACE http://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n".into(), &[400]),
        (
            "two lengths",
            "POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello".into(),
            &[400],
        ),
        (
            "chunks in disguise",
            "POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n".into(),
            &[400],
        ),
        (
            "a chunk too long",
            "POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n".into(),
            &[400, 502, 0],
        ),
        ("a folded header", "GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\nX: a\r\n b\r\n\r\n".into(), &[400]),
        ("a space before the colon", "GET http://good.test/ HTTP/1.1\r\nHost : good.test\r\n\r\n".into(), &[400]),
        ("a NUL in a header", "GET http://good.test/ HTTP/1.1\r\nHost: good.test\0\r\n\r\n".into(), &[400]),
        ("a NUL in the address", "GET http://good.test/\0 HTTP/1.1\r\nHost: good.test\r\n\r\n".into(), &[400]),
        ("long headers", format!("GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\nX: {long}\r\n\r\n"), &[431, 400, 0]),
        ("a long address", format!("GET http://good.test/{long} HTTP/1.1\r\nHost: good.test\r\n\r\n"), &[414, 400, 431, 0]),
        ("HTTP/2 in the clear", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(), &[400, 0]),
        ("HTTP/0.9", "GET http://good.test/\r\n\r\n".into(), &[400]),
        ("nonsense", "\u{1}\u{2}\u{3}\r\n\r\n".into(), &[400]),
        ("SOCKS 4", "\u{4}\u{1}\0P\u{7f}\0\0\u{1}\0".into(), &[400, 0]),
        (
            "a websocket to nobody",
            "GET http://other.test/ HTTP/1.1\r\nHost: other.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n".into(),
            &[403],
        ),
    ];
    for (what, request, expected) in cases {
        let status = scene.status(request.as_bytes());
        assert!(expected.contains(&status), "{what}: {status}");
    }
    let reached = scene.server.requests();
    assert!(reached.is_empty(), "{reached:?}");
}

#[test]
fn a_length_beside_chunks_does_not_get_through() {
    let scene = Scene::new();
    let smuggled = "0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: good.test\r\n\r\n";
    let request = format!(
        "POST http://good.test/a HTTP/1.1\r\nHost: good.test\r\nContent-Length: {}\r\nTransfer-Encoding: chunked\r\n\r\n{smuggled}",
        smuggled.len()
    );
    scene.say(request.as_bytes());
    let reached = scene.server.requests();
    assert!(reached.len() <= 1 && reached.iter().all(|one| one.path == "/a"), "{reached:?}");
    assert!(
        reached
            .iter()
            .all(|one| !one.headers.contains_key("content-length") || one.headers["content-length"] == "0"),
        "{reached:?}"
    );
}

#[test]
fn what_is_said_in_a_tunnel_decides_what_becomes_of_it() {
    let mut scene = Scene::new();
    // Not TLS at all.
    for words in [
        &b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n"[..],
        b"SSH-2.0-x\r\n",
        b"\x16\x03\x01\x00\x00",
        b"\x80\x2e\x01",
    ] {
        let mut tunnel = scene.tunnel("good.test:443");
        tunnel.write_all(words).unwrap();
        let mut rest = Vec::new();
        let _ = tunnel.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{words:?}");
    }
    // Another name, or none.
    for name in ["other.test", "sub.good.test", "1.2.3.4"] {
        assert!(scene.tls(scene.tunnel("good.test:443"), name, b"http/1.1").is_err(), "{name}");
        assert!(scene.tls(scene.tunnel("api.anthropic.com:443"), name, b"http/1.1").is_err(), "{name}");
    }
    assert_eq!(scene.reached(), 0);
    // The same name is passed on, however it is written.
    for name in ["good.test", "GOOD.test"] {
        let mut tls = scene.tls(scene.tunnel("good.test:443"), name, b"http/1.1").unwrap();
        tls.write_all(b"GET /in HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        let _ = tls.read_to_end(&mut answer);
        assert!(answer.starts_with(b"HTTP/1.1 404"), "{}", String::from_utf8_lossy(&answer));
    }
    assert_eq!(scene.reached(), 2);
    let rules: Vec<String> = scene.entries().into_iter().map(|entry| entry.rule).collect();
    for rule in ["not-tls", "sni-mismatch", "good.test"] {
        assert!(rules.iter().any(|seen| seen == rule), "{rule}: {rules:?}");
    }
    assert!(!scene.front.root().is_empty());
}

/// A first message that asks for a name in secret as well.
#[test]
fn a_name_that_is_asked_for_in_secret_is_not_passed_on() {
    let scene = Scene::new();
    let mut tunnel = scene.tunnel("good.test:443");
    tunnel.write_all(&hello_with_secret_name("good.test")).unwrap();
    let mut answer = [0; 5];
    // The broker answers itself: a handshake or an alert of its own, and the host hears nothing.
    tunnel.read_exact(&mut answer).unwrap();
    assert!([21, 22].contains(&answer[0]), "{answer:?}");
    assert_eq!(scene.reached(), 0);
}

fn hello(name: &str) -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut connection = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut bytes = Vec::new();
    connection.write_tls(&mut bytes).unwrap();
    bytes
}

fn hello_with_secret_name(name: &str) -> Vec<u8> {
    let mut bytes = hello(name);
    // One more extension at the end, and all lengths around it.
    let extension = [0xfe, 0x0d, 0, 4, 0, 0, 0, 0];
    let session = usize::from(bytes[43]);
    let ciphers_at = 44 + session;
    let ciphers = usize::from(u16::from_be_bytes([bytes[ciphers_at], bytes[ciphers_at + 1]]));
    let compressions_at = ciphers_at + 2 + ciphers;
    let extensions_at = compressions_at + 1 + usize::from(bytes[compressions_at]);
    bytes.extend(extension);
    let grow = |bytes: &mut Vec<u8>, at: usize| {
        let length = u16::from_be_bytes([bytes[at], bytes[at + 1]]) + 8;
        bytes[at..at + 2].copy_from_slice(&length.to_be_bytes());
    };
    for at in [3, 7, extensions_at] {
        grow(&mut bytes, at);
    }
    bytes
}

#[test]
fn requests_that_are_looked_at_are_for_the_host_of_their_tunnel() {
    let scene = Scene::new();
    let ask = |host: &str, more: &str| {
        let mut tls =
            scene.tls(scene.tunnel("api.anthropic.com:443"), "api.anthropic.com", b"http/1.1").unwrap();
        let request = format!("GET /v1/me HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n");
        tls.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let _ = tls.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    };
    for host in
        ["other.test", "good.test", "api.anthropic.com.", "api.anthropic.com:80", "evil@api.anthropic.com"]
    {
        let answer = ask(host, "");
        assert!(answer.starts_with("HTTP/1.1 421") || answer.starts_with("HTTP/1.1 400"), "{host}: {answer}");
    }
    assert_eq!(scene.reached(), 0);
    let key = format!("x-api-key: {}\r\n", scene.placeholder);
    assert!(ask("api.anthropic.com", &key).starts_with("HTTP/1.1 404"));
    assert_eq!(scene.server.requests()[0].headers["x-api-key"], "sk-ant-api03-REAL");
    // Only where it says who one is: a host may repeat what it finds elsewhere.
    let placeholder = &scene.placeholder;
    for header in [
        format!("anthropic-beta: {placeholder}"),
        format!("origin: {placeholder}"),
        format!("authorization: Bearer {placeholder}, x"),
        format!("x-api-key: a{placeholder}"),
        format!("{placeholder}: 1"),
    ] {
        let answer = ask("api.anthropic.com", &format!("{header}\r\n"));
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("placeholder"), "{header}: {answer}");
    }
    assert_eq!(scene.reached(), 1);
}

#[test]
fn a_placeholder_goes_to_its_own_host_and_nowhere_else() {
    use base64::Engine;
    let mut scene = Scene::new();
    let placeholder = &scene.placeholder.clone();
    let basic = base64::engine::general_purpose::STANDARD.encode(format!("me:{placeholder}"));
    let part = &placeholder["sk-ant-api03-".len()..];
    let upper = part.to_uppercase();
    let length = placeholder.len();
    for (what, request) in [
        (
            "its own host in the clear",
            format!(
                "GET http://api.anthropic.com/ HTTP/1.1\r\nHost: api.anthropic.com\r\nX-Api-Key: {placeholder}\r\n\r\n"
            ),
        ),
        (
            "its own host in the clear at the port of TLS",
            format!(
                "GET http://api.anthropic.com:443/ HTTP/1.1\r\nHost: api.anthropic.com:443\r\nX-Api-Key: {placeholder}\r\n\r\n"
            ),
        ),
        (
            "the name of a header",
            format!("GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\n{placeholder}: 1\r\n\r\n"),
        ),
        (
            "a header",
            format!("GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\nX: {placeholder}\r\n\r\n"),
        ),
        (
            "basic authentication",
            format!(
                "GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\nAuthorization: Basic {basic}\r\n\r\n"
            ),
        ),
        ("a part of it", format!("GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\nX: {part}\r\n\r\n")),
        ("in capitals", format!("GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\nX: {upper}\r\n\r\n")),
        ("a path", format!("GET http://good.test/{placeholder} HTTP/1.1\r\nHost: good.test\r\n\r\n")),
        ("a query", format!("GET http://good.test/?k={placeholder} HTTP/1.1\r\nHost: good.test\r\n\r\n")),
        (
            "an escaped query",
            format!(
                "GET http://good.test/?k={}%{:02x} HTTP/1.1\r\nHost: good.test\r\n\r\n",
                &placeholder[..length - 1],
                placeholder.as_bytes()[length - 1]
            ),
        ),
        (
            "a body",
            format!(
                "POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nContent-Length: {length}\r\n\r\n{placeholder}"
            ),
        ),
        (
            "a body in pieces",
            format!(
                "POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n14\r\n{}\r\n{:x}\r\n{}\r\n0\r\n\r\n",
                &placeholder[..20],
                length - 20,
                &placeholder[20..]
            ),
        ),
    ] {
        let answer = scene.say(request.as_bytes());
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("placeholder"), "{what}: {answer}");
    }
    let seen = scene.server.requests();
    assert!(!format!("{seen:?}").contains(part), "{seen:?}");
    let entries = scene.entries();
    assert_eq!(
        entries
            .iter()
            .filter(|entry| entry.decision == Outcome::Block && entry.rule == "placeholder")
            .count(),
        12
    );
    let written = std::fs::read_to_string(scene.directory.path().join("network.jsonl")).unwrap();
    assert!(!written.contains("?k="), "{written}");
}

#[test]
fn whoever_says_nothing_is_shown_out() {
    let scene = Scene::new();
    let mut waiting: Vec<TcpStream> = Vec::new();
    for words in [&b""[..], b"\x05", b"\x05\x01\x00\x05\x01"] {
        let mut stream = scene.connect();
        stream.write_all(words).unwrap();
        waiting.push(stream);
    }
    let mut tunnel = scene.tunnel("good.test:443");
    tunnel.write_all(b"\x16\x03\x01\x02").unwrap();
    waiting.push(tunnel);
    // Meanwhile everybody else is served.
    assert_eq!(
        scene.status(b"GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\nConnection: close\r\n\r\n"),
        200
    );
    for mut stream in waiting {
        let mut rest = Vec::new();
        let ended = stream.read_to_end(&mut rest);
        assert!(ended.is_ok() || ended.unwrap_err().kind() == std::io::ErrorKind::ConnectionReset);
    }
}

#[test]
fn whatever_leaves_is_written_down_however_it_ends() {
    let mut scene = Scene::new();
    // A tunnel that is still open when the run ends, with what went through it.
    let mut open = scene.tunnel("plain.test:8080");
    open.write_all(b"POST /never HTTP/1.1\r\nHost: x\r\nContent-Length: 999999\r\n\r\n").unwrap();
    open.write_all(&[b'x'; 5000]).unwrap();
    // One that is closed in a hurry.
    let mut tls = scene.tls(scene.tunnel("good.test:443"), "good.test", b"http/1.1").unwrap();
    tls.write_all(b"GET /hurry HTTP/1.1\r\nHost: good.test\r\n\r\n").unwrap();
    let mut part = [0; 100];
    let _ = tls.read(&mut part).unwrap();
    drop(tls);
    // A request whose answer nobody waits for.
    let mut stream = scene.connect();
    let length = 3000;
    stream
        .write_all(
            format!(
                "POST http://good.test/left HTTP/1.1\r\nHost: good.test\r\nContent-Length: 99999\r\n\r\n{}",
                "y".repeat(length)
            )
            .as_bytes(),
        )
        .unwrap();
    wait_until(|| scene.server.requests().iter().any(|one| one.path == "/hurry"));
    // The flood that would push it all out is cut short.
    scene.say(format!("GET http://{}/ HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(60_000)).as_bytes());
    std::thread::park_timeout(Duration::from_millis(300));
    drop((stream, open));
    let entries = scene.entries();
    let sent = |host: &str, port: u16| -> u64 {
        entries.iter().filter(|one| (one.host.as_str(), one.port) == (host, port)).map(|one| one.sent).sum()
    };
    assert!(sent("plain.test", 8080) > 5000, "{entries:?}");
    assert!(
        sent("good.test", 443) > 100 && entries.iter().any(|one| one.port == 443 && one.received > 500),
        "{entries:?}"
    );
    assert!(sent("good.test", 80) >= length as u64, "{entries:?}");
    assert!(entries.iter().all(|one| one.host.len() <= 512));
}

/// Waits for something that comes soon.
fn wait_until(mut there: impl FnMut() -> bool) {
    for _ in 0..200 {
        if there() {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
    panic!("it does not come");
}

#[test]
fn a_named_port_is_checked_however_long_the_client_waits() {
    let scene = Scene::new();
    let wrong = hello("other.test");
    for pause in [0, 500] {
        let mut tunnel = scene.tunnel("plain.test:8080");
        std::thread::park_timeout(Duration::from_millis(pause));
        tunnel.write_all(&wrong[..100]).unwrap();
        std::thread::park_timeout(Duration::from_millis(pause));
        tunnel.write_all(&wrong[100..]).unwrap();
        let mut rest = Vec::new();
        let _ = tunnel.read_to_end(&mut rest);
        assert!(rest.is_empty(), "after {pause} ms");
    }
    assert_eq!(scene.reached(), 0);
}

/// A host that repeats all that it hears: in its reason, in headers, in its body.
fn parrot() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count > 0) {
                head.push(byte[0]);
            }
            let head = String::from_utf8_lossy(&head).into_owned();
            let key = head.lines().filter(|line| line.contains("REAL")).collect::<String>();
            let name = key.split(' ').next_back().unwrap_or_default().to_ascii_lowercase();
            let packed = if head.contains("/packed") { "Content-Encoding: gzip\r\n" } else { "" };
            let answer = format!(
                "HTTP/1.1 400 {key}\r\nX-Echo: {key}\r\n{name}: 1\r\n{packed}Content-Length: {}\r\nConnection: close\r\n\r\n{head}",
                head.len()
            );
            // In small pieces.
            answer.as_bytes().chunks(5).for_each(|piece| drop(stream.write_all(piece)));
        }
    });
    address
}

#[test]
fn what_a_host_repeats_is_not_read_inside() {
    let server = Server::start(Script::new(Vec::new())).unwrap();
    let front = Front::start(parrot(), &["good.test", "api.anthropic.com"]).unwrap();
    let scene = Scene::before(server, front, None);
    let ask = |path: &str, header: String| {
        let mut tls =
            scene.tls(scene.tunnel("api.anthropic.com:443"), "api.anthropic.com", b"http/1.1").unwrap();
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: api.anthropic.com\r\nRange: bytes=0-9\r\nAccept-Encoding: gzip\r\nConnection: close\r\n{header}\r\n\r\n"
        );
        tls.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        let _ = tls.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    };
    let placeholder = &scene.placeholder;
    // The first one as if another run had sent the key before: this one has not.
    for header in [
        "x-note: a sk-ant-api03-REAL".to_owned(),
        format!("x-api-key: {placeholder}"),
        format!("authorization: Bearer {placeholder}"),
    ] {
        let answer = ask("/v1/models/x", header);
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("*****"), "{answer}");
        assert!(!answer.to_ascii_lowercase().contains("sk-ant-api03-real"), "{answer}");
        assert!(
            !answer.contains("ange: bytes")
                && answer.to_ascii_lowercase().contains("accept-encoding: identity"),
            "{answer}"
        );
    }
    assert!(ask("/v1/models/packed", format!("x-api-key: {placeholder}")).starts_with("HTTP/1.1 502"));
    use base64::Engine;
    let basic = base64::engine::general_purpose::STANDARD.encode(format!("a:{placeholder}"));
    assert!(ask("/v1/models/x", format!("authorization: Basic {basic}")).starts_with("HTTP/1.1 403"));
}

/// The headers that the host with a credential receives with a request, by HTTP/1.1 and by HTTP/2; nothing if it is refused.
fn received(query: &str, headers: &[(&str, &str)]) -> [Option<String>; 2] {
    [&b"http/1.1"[..], b"h2"].map(|protocol| {
        let scene = Scene::new();
        let key = ("x-api-key", scene.placeholder.as_str());
        let all = [&[key], headers].concat();
        scene.ask(protocol, "GET", &format!("/v1/models{query}"), &all);
        let requests = scene.server.requests();
        requests.first().map(|request| format!("{:?}", request.headers).to_ascii_lowercase())
    })
}

#[test]
fn credential_of_the_run_does_not_stay_beside_a_swapped_one() {
    for name in [
        "authorization",
        "x-api-key",
        "x_api_key",
        "api-key",
        "x-goog-api-key",
        "private-token",
        "ocp-apim-subscription-key",
        "x-auth-token",
        "cookie",
    ] {
        for headers in received("", &[(name, "own-credential")]) {
            let headers = headers.unwrap_or_else(|| panic!("{name} has the request refused"));
            assert!(
                headers.contains("sk-ant-api03-real") && !headers.contains("own-cred"),
                "{name}: {headers}"
            );
        }
    }
    for query in
        ["?key=own", "?a=1&api_key=own", "?%61pi-Key=own", "?access_token", "?a;key=own", "?_method=DELETE"]
    {
        assert_eq!(received(query, &[]), [None, None], "{query}");
    }
    assert!(received("?limit=1&monkey=2", &[]).iter().all(Option::is_some));
}

#[test]
fn headers_that_lead_a_gateway_elsewhere_do_not_reach_a_host_with_a_credential() {
    for name in [
        "forwarded",
        "x-forwarded-host",
        "x-forwarded-prefix",
        "x_forwarded_host",
        "x-host",
        "x-original-url",
        "x-original-method",
        "x-rewrite-url",
        "x-http-method-override",
        "x-http-method",
        "x-method-override",
        "x-envoy-original-path",
        "x-portkey-custom-host",
        "helicone-target-url",
        "proxy",
        "proxy-x",
        "a-im",
    ] {
        for headers in received("", &[(name, "elsewhere")]) {
            let headers = headers.unwrap_or_else(|| panic!("{name} has the request refused"));
            assert!(!headers.contains("elsewhere") && headers.contains("real"), "{name}: {headers}");
        }
    }
    let named = [("connection", "x-hop, content-length, host"), ("x-hop", "elsewhere")];
    let [first, _] = received("", &named);
    assert!(
        first.is_some_and(|headers| !headers.contains("elsewhere") && headers.contains("api.anthropic.com"))
    );
}

#[test]
fn login_is_added_at_listed_endpoints_alone() {
    let mut scene = Scene::new();
    for protocol in [&b"http/1.1"[..], b"h2"] {
        for (method, path) in [
            ("POST", "/api/oauth/claude_cli/create_api_key"),
            ("GET", "/v1/organizations/api_keys"),
            ("DELETE", "/v1/organizations/users/u"),
            ("GET", "/v1/files"),
            ("DELETE", "/v1/files/file_1"),
            ("POST", "/v1/messages/batches"),
            ("POST", "/v1/files/%2e%2e/organizations/api_keys"),
        ] {
            let key = [("x-api-key", scene.placeholder.as_str())];
            let (status, headers) = scene.ask(protocol, method, path, &key);
            assert_eq!(status, 403, "{method} {path}");
            assert_eq!(headers["x-ringfence-denied"], "credential-path", "{method} {path}");
        }
    }
    assert_eq!(scene.reached(), 0);
    // Without a placeholder it is a request like others, and none is added.
    let (status, _) = scene.ask(b"http/1.1", "GET", "/v1/organizations/api_keys", &[]);
    assert_eq!((status, scene.reached()), (404, 1));
    let received = scene.server.requests();
    assert!(!received[0].headers.values().any(|value| value.contains("REAL")), "{received:?}");
    let denied: Vec<_> =
        scene.entries().into_iter().filter(|entry| entry.rule == "credential-path").collect();
    assert_eq!(denied.len(), 14);
    assert!(denied.iter().all(|entry| entry.decision == Outcome::Deny && entry.status == Some(403)));
}

#[test]
fn a_thousand_connections_are_served_at_once() {
    let scene = Scene::new();
    let mut all: Vec<TcpStream> = (0..1000).map(|_| scene.connect()).collect();
    for stream in &mut all {
        stream
            .write_all(
                b"GET http://plain.test:8080/ HTTP/1.1\r\nHost: plain.test:8080\r\nConnection: close\r\n\r\n",
            )
            .unwrap();
    }
    for stream in &mut all {
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200"));
    }
    assert_eq!(scene.reached(), 1000);
}

#[test]
fn a_person_is_asked_once_for_each_host_and_never_for_a_denied_one() {
    let person = Arc::new(Person::default());
    let scene = Scene::with(Some(Arc::clone(&person) as Arc<dyn Ask>));
    let ask = |host: &str| {
        scene.status(
            format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").as_bytes(),
        )
    };
    assert_eq!(
        [ask("plain.test"), ask("plain.test"), ask("other.test"), ask("other.test")],
        [200, 200, 403, 403]
    );
    assert_eq!(person.0.load(Ordering::Relaxed), 2);
    assert_eq!((ask("evil.wild.test"), ask("good.test")), (403, 200));
    assert_eq!(person.0.load(Ordering::Relaxed), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_2_is_spoken_and_its_authority_is_the_host_of_the_tunnel() {
    let scene = Scene::new();
    let tunnel = scene.tunnel("api.anthropic.com:443");
    tunnel.set_read_timeout(None).unwrap();
    tunnel.set_nonblocking(true).unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(scene.client(b"h2")));
    let name = ServerName::try_from("api.anthropic.com").unwrap();
    let stream = connector.connect(name, tokio::net::TcpStream::from_std(tunnel).unwrap()).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let io = hyper_util::rt::TokioIo::new(stream);
    let executor = hyper_util::rt::TokioExecutor::new();
    let (mut sender, driver) = hyper::client::conn::http2::handshake(executor, io).await.unwrap();
    tokio::spawn(driver);
    for (authority, expected) in
        [("api.anthropic.com", 404), ("other.test", 421), ("good.test", 421), ("api.anthropic.com:444", 421)]
    {
        let request = http::Request::builder()
            .uri(format!("https://{authority}/h2"))
            .body(http_body_util::Empty::<bytes::Bytes>::new())
            .unwrap();
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.status(), expected, "{authority}");
    }
    let reached: Vec<String> = scene.server.requests().into_iter().map(|one| one.path).collect();
    assert_eq!(reached, ["/h2"]);
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config { cases: cases(), failure_persistence: None, ..proptest::test_runner::Config::default() })]

    /// Pieces of requests in any order: only what is allowed is ever reached.
    #[test]
    fn whatever_is_said_only_allowed_hosts_are_reached(
        pieces in proptest::collection::vec(proptest::sample::select(PIECES.to_vec()), 1..14),
    ) {
        let scene = shared();
        scene.say_and_wait(pieces.concat().as_bytes(), Duration::from_millis(20));
        for request in scene.server.take_requests() {
            let host = &request.headers["host"];
            proptest::prop_assert!(["good.test", "plain.test:8080"].contains(&host.as_str()), "{:?} reached {}", pieces, host);
        }
    }
}

/// More with `PROPTEST_CASES`.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|count| count.parse().ok()).unwrap_or(200)
}

fn shared() -> &'static Scene {
    static SCENE: std::sync::OnceLock<Scene> = std::sync::OnceLock::new();
    SCENE.get_or_init(Scene::new)
}

const PIECES: [&str; 40] = [
    "GET ",
    "POST ",
    "CONNECT ",
    "OPTIONS ",
    "http://",
    "https://",
    "good.test",
    "other.test",
    "evil.wild.test",
    "plain.test:8080",
    "user@",
    "@",
    ":443",
    ":80",
    ":0",
    "/",
    "/x?y",
    "#",
    "%00",
    "%2e",
    ".",
    " HTTP/1.1\r\n",
    " HTTP/1.0\r\n",
    "Host: ",
    "host:",
    "\r\n",
    "\n",
    "\r",
    " ",
    "\t",
    "\0",
    "Content-Length: 5\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Connection: upgrade\r\n",
    "Upgrade: websocket\r\n",
    "hello",
    "5\r\nhello\r\n0\r\n\r\n",
    "\u{5}\u{1}\0",
    "\u{16}\u{3}\u{1}",
    "X: y\r\n\r\n",
];

#[test]
fn the_authority_of_a_run_signs_for_nobody_else() {
    let scene = Scene::new();
    assert!(scene.trusted.contains("BEGIN CERTIFICATE") && !scene.trusted.contains("PRIVATE KEY"));
    assert!(!Path::new(&scene.directory.path().join("key")).exists());
}

/// What is not understood at the proxy is recorded, and many of it are one entry.
#[test]
fn malformed_requests_are_recorded() {
    let mut scene = Scene::new();
    let garbage: [&[u8]; 8] = [
        b"\x00\x01\x02 garbage\r\n\r\n",
        b"GET\r\n\r\n",
        b"CONNECT / HTTP/1.1\r\n\r\n",
        b"CONNECT good.test:99999 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT good.test HTTP/1.1\r\nHost: good.test\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"\x05\x01\x02",
        b"\x05\x01\x00\x04\x01\x00\x01",
    ];
    for bytes in garbage {
        scene.say_and_wait(bytes, Duration::from_millis(300));
    }
    let mut tunnel = scene.tunnel("good.test:443");
    tunnel.write_all(b"\x16\x03\x01\x00\x04\x09\x00\x00\x00").unwrap();
    let _ = tunnel.read(&mut [0; 16]);
    let blocked: Vec<_> =
        scene.entries().into_iter().filter(|entry| entry.decision == Outcome::Block).collect();
    assert_eq!(blocked.len(), garbage.len() + 1, "{blocked:#?}");
    assert!(blocked.iter().any(|entry| entry.rule == "malformed-tls" && entry.host == "good.test"));
    assert!(blocked.iter().filter(|entry| entry.rule == "malformed" && entry.host == "-").count() >= 4);
}

/// A gateway takes another host, account or configuration from headers of its own.
#[test]
fn headers_of_gateways_do_not_go_with_a_model_credential() {
    let mut scene = Scene::new();
    let placeholder = scene.placeholder.clone();
    let foreign = [
        ("x-portkey-config", r#"{"custom_host":"https://evil.test"}"#),
        ("x_portkey_custom_host", "https://evil.test"),
        ("helicone-fallbacks", r#"[{"target-url":"https://evil.test"}]"#),
        ("helicone-auth", "Bearer evil"),
        ("x-litellm-api-key", "evil"),
        ("cf-aig-authorization", "Bearer evil"),
        ("openai-organization", "evil"),
        ("sec-websocket-protocol", "realtime, openai-insecure-api-key.evil"),
        ("request-range", "bytes=0-evil"),
        ("x-ms-range", "bytes=0-evil"),
        ("x-of-tomorrow", "evil"),
    ];
    let own = [("anthropic-beta", "b"), ("x-stainless-lang", "js"), ("x-claude-code-session-id", "s")];
    for protocol in [&b"http/1.1"[..], b"h2"] {
        let key = [("x-api-key", placeholder.as_str())];
        let headers = [&foreign[..], &own, &key].concat();
        assert_eq!(scene.ask(protocol, "GET", "/v1/models", &headers).0, 200);
        let request = scene.server.requests().pop().unwrap();
        let values: Vec<&String> = request.headers.values().collect();
        assert!(!format!("{values:?}").contains("evil"), "{request:?}");
        assert_eq!(request.headers["x-api-key"], "sk-ant-api03-REAL");
        assert!(own.iter().all(|(name, value)| request.headers[*name] == *value), "{request:?}");
    }
    let removed: Vec<String> = scene.entries().into_iter().flat_map(|entry| entry.removed_headers).collect();
    assert_eq!(removed.len(), foreign.len(), "each once: {removed:?}");
    assert!(foreign.iter().all(|(name, _)| removed.iter().any(|one| one == name)), "{removed:?}");
}
