//! The broker from inside of a sandbox: requests that could be read in two ways, hosts in disguise, other protocols.
//!
//! Whatever is said, the server behind the one allowed name receives nothing but what was allowed.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use crate::sandbox::Sandbox;

/// A server that keeps what it receives, and answers every request alike.
pub(crate) struct Upstream {
    pub(crate) address: std::net::SocketAddr,
    received: Arc<Mutex<Vec<String>>>,
}

impl Upstream {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, received) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
        let keep = Arc::clone(&received);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let keep = Arc::clone(&keep);
                std::thread::spawn(move || {
                    let mut part = [0; 64 << 10];
                    while let Ok(count @ 1..) = stream.read(&mut part) {
                        keep.lock().unwrap().push(String::from_utf8_lossy(&part[..count]).into_owned());
                        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
                    }
                });
            }
        });
        Self { address, received }
    }

    /// A sandbox from which `good.test` leads here, by HTTP and as an opaque tunnel.
    fn before(&self, sandbox: &Sandbox) -> Sandbox {
        let to = self.address;
        sandbox.another().with(|place| {
            place.env(
                "RINGFENCE_CONNECT_TO",
                format!("good.test:80={to},good.test:443={to},bad.test:80={to},bad.test:443={to}"),
            )
        })
    }

    pub(crate) fn received(&self) -> String {
        self.received.lock().unwrap().concat()
    }
}

/// Says each line of the file `said` (escapes as `printf %b` has them) to the proxy, one connection each, and prints the
/// first line of each answer.
const SAY: &str = "trap '' PIPE
proxy=${http_proxy:-$HTTP_PROXY}; proxy=${proxy#http://}; proxy=${proxy%/}
while IFS= read -r line; do
    exec 3<>/dev/tcp/${proxy%:*}/${proxy##*:}
    printf '%b' \"$line\" >&3 2>/dev/null
    IFS= read -r -t 3 answer <&3 || answer=none
    printf '%s\\n' \"${answer%$'\\r'}\" | tr -cd '[:print:]\\n'
    exec 3>&-
done < said";

/// Says these and returns the answers.
#[track_caller]
fn say(sandbox: &Sandbox, lines: &[String]) -> Vec<String> {
    sandbox.put("said", lines.join("\n") + "\n");
    let ran = sandbox.exec(&["--allow", "good.test"], &["bash", "-c", SAY]);
    let answers: Vec<String> = ran.stdout.lines().map(str::to_owned).collect();
    assert_eq!(answers.len(), lines.len(), "{ran:?}");
    answers
}

/// Requests that would carry a second one past the broker, or mean another host to another reader.
const SMUGGLED: [&str; 27] = [
    r"POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nContent-Length: 5\r\nContent-Length: 50\r\n\r\nhelloGET /evil HTTP/1.1\r\nHost: good.test\r\n\r\n",
    r"POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nContent-Length: 5, 5\r\n\r\nhelloGET /evil HTTP/1.1\r\n\r\n",
    r"POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nContent-Length: +5\r\n\r\nhelloGET /evil HTTP/1.1\r\n\r\n",
    r"POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nContent-Length: 0x5\r\n\r\nhelloGET /evil HTTP/1.1\r\n\r\n",
    r"POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /evil HTTP/1.1\r\n\r\n",
    r"POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\nGET /evil HTTP/1.1\r\n\r\n",
    r"POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\nGET /evil HTTP/1.1\r\n\r\n",
    r"POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\nGET /evil HTTP/1.1\r\n\r\n",
    r"POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\nGET /evil HTTP/1.1\r\n\r\n",
    r"POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\nGET /evil HTTP/1.1\r\n\r\n",
    r"POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\nGET /evil HTTP/1.1\r\n\r\n",
    r"POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: cow\r\n\r\n0\r\n\r\nGET /evil HTTP/1.1\r\n\r\n",
    r"POST http://good.test/ HTTP/1.0\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /evil HTTP/1.1\r\n\r\n",
    r"POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff1\r\nGET /evil HTTP/1.1\r\n\r\n",
    r"POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nGET /evil HTTP/1.1\r\n\r\n",
    r"POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab0\r\n\r\nGET /evil HTTP/1.1\r\n\r\n",
    r"GET http://good.test/ HTTP/1.1\r\nHost: bad.test\r\nX: /evil\r\n\r\n",
    r"GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\nHost: bad.test\r\nX: /evil\r\n\r\n",
    r"GET http://bad.test/evil HTTP/1.1\r\nHost: good.test\r\n\r\n",
    r"GET http://good.test@bad.test/evil HTTP/1.1\r\nHost: good.test\r\n\r\n",
    r"GET http://bad.test#good.test/evil HTTP/1.1\r\nHost: good.test\r\n\r\n",
    r"GET http://good.test:80@bad.test:80/evil HTTP/1.1\r\nHost: good.test\r\n\r\n",
    r"GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\nX: a\r\n /evil\r\n\r\n",
    r"GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\nX: a\0/evil\r\n\r\n",
    r"GET http://good.test/\x20HTTP/1.1\r\nX: /evil HTTP/1.1\r\nHost: bad.test\r\n\r\n",
    r"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n/evil",
    r"TRACE http://good.test/evil HTTP/1.1\r\nHost: good.test\r\n\r\n",
];

/// Names of other hosts, and of the allowed one as only some would read it.
const DISGUISED: [&str; 30] = [
    "bad.test",
    "sub.good.test",
    "good.test.bad.test",
    "xgood.test",
    "good.test.",
    ".good.test",
    "good..test",
    "good.test%00.bad.test",
    "good.test%2ebad.test",
    "user@good.test",
    "good.test@bad.test",
    "*.test",
    "127.0.0.1",
    "127.1",
    "0",
    "0.0.0.0",
    "0177.0.0.1",
    "0x7f.0.0.1",
    "0x7f000001",
    "2130706433",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[fe80::1%25lo]",
    "169.254.169.254",
    "metadata.google.internal",
    "localhost",
    "good.test\\x09",
    "",
];

in_every_sandbox! {
    fn requests_that_could_be_read_in_two_ways(sandbox: &Sandbox) {
        let upstream = Upstream::start();
        let sandbox = upstream.before(sandbox);
        let lines: Vec<String> = SMUGGLED.iter().map(|line| (*line).to_owned()).collect();
        say(&sandbox, &lines);
        let received = upstream.received();
        assert!(!received.contains("/evil"), "{received}");
        // The same way leads to the server when nothing is wrong.
        let answers = say(&sandbox, &[r"GET http://good.test/fine HTTP/1.1\r\nHost: good.test\r\n\r\n".into()]);
        assert!(answers[0].contains("200") && upstream.received().contains("/fine"), "{answers:?}");
    }

    fn hosts_in_disguise(sandbox: &Sandbox) {
        let upstream = Upstream::start();
        let sandbox = upstream.before(sandbox);
        let absolute = DISGUISED.iter().map(|host| format!(r"GET http://{host}/evil HTTP/1.1\r\nHost: {host}\r\n\r\n"));
        let tunnels = DISGUISED.iter().map(|host| format!(r"CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n"));
        let lines: Vec<String> = absolute.chain(tunnels).collect();
        let answers = say(&sandbox, &lines);
        let passed: Vec<_> = answers.iter().zip(&lines).filter(|(answer, _)| answer.contains(" 200")).collect();
        assert!(passed.is_empty(), "{passed:?}");
        assert_eq!(upstream.received(), "");
    }

    /// Names, numbers and kinds of addresses by SOCKS, versions 4 and 5.
    fn socks(sandbox: &Sandbox) {
        let upstream = Upstream::start();
        let sandbox = upstream.before(sandbox);
        let hosts = ["bad.test", "127.0.0.1", "good.test.", "localhost", "0x7f000001"];
        let port = r"\x00\x50";
        let mut lines: Vec<String> = hosts
            .iter()
            .map(|host| format!(r"\x05\x01\x00\x05\x01\x00\x03\x{:02x}{host}{port}GET /evil HTTP/1.1\r\n\r\n", host.len()))
            .collect();
        lines.extend([
            format!(r"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01{port}GET /evil HTTP/1.1\r\n\r\n"),
            format!(r"\x05\x01\x00\x05\x02\x00\x03\x09good.test{port}GET /evil HTTP/1.1\r\n\r\n"),
            format!(r"\x05\x01\x00\x05\x03\x00\x03\x09good.test{port}GET /evil HTTP/1.1\r\n\r\n"),
            r"\x04\x01\x00\x50\x7f\x00\x00\x01\x00GET /evil HTTP/1.1\r\n\r\n".to_owned(),
            r"\x04\x01\x00\x50\x00\x00\x00\x01\x00bad.test\x00GET /evil HTTP/1.1\r\n\r\n".to_owned(),
            r"\x05\x01\x02\x01\x01a\x01bGET /evil HTTP/1.1\r\n\r\n".to_owned(),
        ]);
        say(&sandbox, &lines);
        assert_eq!(upstream.received(), "");
    }

    /// In a tunnel to the allowed host: TLS for another host, a hidden one, plain HTTP, another protocol.
    fn what_is_said_in_a_tunnel(sandbox: &Sandbox) {
        let upstream = Upstream::start();
        let sandbox = upstream.before(sandbox);
        let open = r"CONNECT good.test:443 HTTP/1.1\r\nHost: good.test:443\r\n\r\n";
        let hello = |name: &str| {
            let name_length = name.len();
            let (list, extension) = (name_length + 3, name_length + 5);
            let (extensions, body) = (extension + 4, extension + 4 + 2 + 2 + 32 + 1 + 4 + 2);
            let zeros = r"\x00".repeat(32);
            format!(
                r"\x16\x03\x01\x00\x{:02x}\x01\x00\x00\x{body:02x}\x03\x03{zeros}\x00\x00\x02\x13\x01\x01\x00\x00\x{extensions:02x}\x00\x00\x00\x{extension:02x}\x00\x{list:02x}\x00\x00\x{name_length:02x}{name}",
                body + 4
            )
        };
        let lines: Vec<String> = ["bad.test", "good.test.", "127.0.0.1", "evil"].iter().map(|name| format!("{open}{}", hello(name))).collect();
        say(&sandbox, &lines);
        let plain = [r"GET /evil HTTP/1.1\r\nHost: bad.test\r\n\r\n", r"SSH-2.0-evil\r\n", r"\x00\x00\x00\x01evil"];
        say(&sandbox, &plain.map(|words| format!("{open}{words}")));
        let received = upstream.received();
        for word in ["bad.test", "evil", "127.0.0.1"] {
            assert!(!received.contains(word), "{word}: {received:?}");
        }
    }
}

/// The login of a subscription opens an account: a gateway gets it only if the settings name that.
#[test]
fn login_is_not_sent_to_a_gateway_that_the_settings_do_not_name() {
    let place = crate::support::Place::new();
    std::fs::create_dir(place.home().join(".claude")).unwrap();
    let login = r#"{"claudeAiOauth":{"accessToken":"sk-ant-oat01-REAL","refreshToken":"sk-ant-ort01-REAL","expiresAt":4102444800000,"scopes":["user:inference"]}}"#;
    std::fs::write(place.home().join(".claude/.credentials.json"), login).unwrap();
    let args = ["run", "--mode", "native", "--agent", "claude", "--base-url", "https://gw.test", "hi"];
    let refused = place.run(&args);
    assert!(refused.code() != 0, "{refused:?}");
    let told = refused.stderr.replace('\n', " ");
    assert!(told.contains("is not sent to gw.test:443") && told.contains("broker.login_gateways"), "{told}");
    assert!(!told.contains("REAL"), "{told}");
}

/// It would be sent in the place of the key, and stand in the records of the run.
#[test]
fn password_in_the_address_of_the_model_is_refused_and_not_told() {
    let place = crate::support::Place::new().env("ANTHROPIC_API_KEY", "sk-ant-api03-REAL");
    for url in [
        "https://user:PASSWORD@gw.test/v1",
        "https://PASSWORD@gw.test/v1",
        "https://user:PASS/WORD@gw.test/v1",
    ] {
        let args = ["run", "--mode", "native", "--agent", "claude", "--base-url", url, "hi"];
        let refused = place.run(&args);
        assert!(refused.code() != 0, "{url}: {refused:?}");
        let told = refused.stderr.replace('\n', " ");
        assert!(told.contains("gw.test holds a user name or a password"), "{url}: {told}");
        assert!(!format!("{refused:?}").contains("PASS"), "{url}: {refused:?}");
    }
}
