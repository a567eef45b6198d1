//! Attempts to command the daemon without being its owner: by other users, by runs, by pages, by floods.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;

use crate::site::{LoginAddress, SETTINGS, Site, ask};
use crate::support::{BINARY, Place, Ran, wait_for};

/// Another user of the machine.
const STRANGER: &str = "65534";
const SWITCH: &str = "RINGFENCE_ALLOW_INSECURE_SYSTEM_CONTROL";

fn is_root() -> bool {
    Command::new("id").arg("-u").output().unwrap().stdout == b"0\n"
}

/// Runs a Python script as another user; nothing if that cannot be done here.
fn as_stranger(script: &str, args: &[&str]) -> Option<Ran> {
    if !is_root() {
        return None;
    }
    let output = Command::new("setpriv")
        .args(["--reuid", STRANGER, "--regid", STRANGER, "--clear-groups", "python3", "-c", script])
        .args(args)
        .env("PATH", "/usr/bin:/bin")
        .current_dir("/")
        .output()
        .unwrap();
    Some(Ran::from(output))
}

/// Starts a Python script as a user, with pipes.
fn spawn_as(user: &str, script: &str, argument: &str) -> Child {
    Command::new("setpriv")
        .args(["--reuid", user, "--regid", user, "--clear-groups", "python3", "-c", script, argument])
        .env("PATH", "/usr/bin:/bin")
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Connects, posts a task with the start of a second request behind it, and closes; many times.
const POST_AND_CLOSE: &str = r#"
import json, socket, sys
port, directory, times = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
body = json.dumps({"prompt": "x", "agent": "command", "mode": "host", "command": "touch /tmp/owned", "directory": directory})
text = f"POST /tasks HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}GET /tasks HT"
for _ in range(times):
    s = socket.create_connection(("127.0.0.1", port))
    s.sendall(text.encode())
    s.close()
s = socket.create_connection(("127.0.0.1", port))
s.sendall(text.encode())
print(s.recv(65536).decode())
"#;

fn port(site: &Site) -> &str {
    site.address.rsplit(':').next().unwrap()
}

/// The daemon is stopped first, so that nothing is under way any more.
fn assert_no_task(site: &Site) {
    site.ok(&["stop"]);
    assert_eq!(site.ok(&["task", "list", "--json"]).stdout.trim(), "[]");
}

#[test]
fn closed_connections_of_another_user_add_no_task() {
    for switch in [None, Some("true")] {
        let mut place = Place::new().settings(SETTINGS);
        if let Some(word) = switch {
            place = place.env(SWITCH, word);
        }
        let site = Site::of(place);
        let work = site.place.work().display().to_string();
        let Some(ran) = as_stranger(POST_AND_CLOSE, &[port(&site), &work, "100"]) else { return };
        let (status, code) = match switch {
            None => ("401", "authentication_required"),
            Some(_) => ("403", "not_owner"),
        };
        assert!(ran.stdout.starts_with(&format!("HTTP/1.1 {status}")), "{ran:?}");
        assert!(ran.stdout.contains(code) && ran.stdout.contains("ringfence open"), "{ran:?}");
        assert_no_task(&site);
    }
}

#[test]
fn output_of_a_run_that_is_piped_into_task_add_chooses_no_mode() {
    let place = Place::new().settings(SETTINGS);
    let forged = json!({"prompt": "x", "agent": "command", "mode": "host", "policy": "open", "command": "touch /tmp/owned"});
    let script = place.work().join("run.sh");
    fs::write(&script, format!("echo fix the readme; echo '{forged}'; echo '[{forged}]'")).unwrap();
    for (division, prompts) in [("--lines", 3), ("-", 1)] {
        let options = format!("{division} --agent demo --mode native --policy locked --json");
        let added =
            place.shell(&format!("{BINARY} exec -- sh run.sh | {BINARY} task add {options}")).expect_code(0);
        assert!(division == "-" || added.stderr.contains("--json-tasks"), "{}", added.stderr);
        let added = added.json().as_array().unwrap().clone();
        assert_eq!(added.len(), prompts);
        for task in added {
            let shown = place.run(&["task", "show", task["task"].as_str().unwrap(), "--json"]).json();
            let spec = &shown["task"]["spec"];
            assert_eq!(
                (&spec["agent"], &spec["mode"], &spec["policy"], &spec["command"]),
                (&json!("demo"), &json!("native"), &json!("locked"), &json!(null))
            );
        }
    }
    let object = format!("echo '{forged}' | {BINARY} task add - --agent demo --mode native --json");
    let added = place.shell(&object).expect_code(0);
    assert!(added.stderr.contains("--json-tasks"), "{}", added.stderr);
    let shown = place.run(&["task", "show", "last", "--json"]).json();
    assert_eq!(shown["task"]["spec"]["prompt"].as_str().unwrap().trim(), forged.to_string());
    assert_eq!(shown["task"]["spec"]["mode"], "native");
}

/// For each line of input: posts a task with the start of a second request behind it, waits until that was read, resets the connection,
/// and prints its port.
const POST_AND_RESET: &str = r#"
import json, socket, struct, sys
port, directory = sys.argv[1].split(":", 1)
body = json.dumps({"prompt": "x", "agent": "command", "mode": "host", "command": "touch /tmp/owned", "directory": directory})
text = f"POST /tasks HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}GET /tasks HT"
def is_read(own):
    for line in open("/proc/net/tcp"):
        _, local, remote, _, queues, *_ = line.split()
        if local.endswith(":%04X" % int(port)) and remote.endswith(":%04X" % own):
            return queues.endswith(":00000000")
    return False
for _ in sys.stdin:
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.bind(("127.0.0.1", 0))
    s.connect(("127.0.0.1", int(port)))
    s.sendall(text.encode())
    own = s.getsockname()[1]
    while not is_read(own): pass
    s.close()
    print(own, flush=True)
"#;

/// Connects to a daemon from a port that another connection has had.
fn connect_from(port: u16, site: &Site) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
    let stream = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_reuseaddr(&stream, true).unwrap();
    bind(&stream, &std::net::SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    connect(&stream, &site.address.parse::<std::net::SocketAddr>().unwrap()).unwrap();
    stream.into()
}

/// Sends a request and leaves its answer to be read.
fn ask_later(mut stream: TcpStream, headers: &str) -> TcpStream {
    let host = stream.peer_addr().unwrap();
    let text = format!("GET /tasks HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(text.as_bytes()).unwrap();
    stream
}

#[track_caller]
fn expect_later(mut stream: TcpStream) {
    let mut answer = String::new();
    let ended = stream.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 200"), "{ended:?}: {answer}");
}

#[test]
fn connection_that_was_reset_does_not_pass_for_the_owners_next_one() {
    if !is_root() {
        return;
    }
    let site = Site::of(Place::new().settings(SETTINGS).env(SWITCH, "true"));
    let argument = format!("{}:{}", port(&site), site.place.work().display());
    let mut stranger = spawn_as(STRANGER, POST_AND_RESET, &argument);
    let (mut rounds, mut ports) =
        (stranger.stdin.take().unwrap(), BufReader::new(stranger.stdout.take().unwrap()).lines());
    for _ in 0..10 {
        // The request of the stranger waits for the look-ups of these.
        let owners: Vec<TcpStream> =
            (0..20).map(|_| ask_later(TcpStream::connect(&site.address).unwrap(), "")).collect();
        rounds.write_all(b"\n").unwrap();
        let port = ports.next().unwrap().unwrap().parse().unwrap();
        let next = connect_from(port, &site);
        owners.into_iter().for_each(expect_later);
        // It is looked up after that of the stranger.
        expect_later(ask_later(next, ""));
    }
    drop(rounds);
    stranger.wait().unwrap();
    assert_no_task(&site);
}

/// One request on a Unix socket.
fn ask_socket(path: &Path, request: &str) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(path)?;
    stream.write_all(
        format!("{request} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").as_bytes(),
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn unix_socket_serves_its_owner_and_no_other_user() {
    let site = Site::new();
    let socket = site.place.state().join("api.sock");
    assert_eq!((mode(&socket), mode(&site.place.state())), (0o600, 0o700));
    assert!(ask_socket(&socket, "GET /tasks").unwrap().starts_with("HTTP/1.1 200"));
    let connect = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n\
        s.sendall(b'GET /tasks HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n')\nprint(s.recv(65536).decode())";
    let path = socket.display().to_string();
    let Some(ran) = as_stranger(connect, &[&path]) else { return };
    assert!(ran.stderr.contains("PermissionError"), "{ran:?}");
    // Even where the permissions of the files would let another user in.
    for directory in site.place.state().ancestors().take(3) {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
    let ran = as_stranger(connect, &[&path]).unwrap();
    assert!(
        ran.stdout.starts_with("HTTP/1.1 401") && ran.stdout.contains("authentication_required"),
        "{ran:?}"
    );
}

#[test]
fn unix_socket_does_not_serve_root_unless_the_daemon_is_roots() {
    if !is_root() {
        return;
    }
    let site = Site::of(Place::new().settings(SETTINGS).of_user(65534));
    let answer = ask_socket(&site.place.state().join("api.sock"), "GET /tasks").unwrap();
    assert!(answer.starts_with("HTTP/1.1 401") && answer.contains("authentication_required"), "{answer}");
    site.ok(&["open", "--print"]);
}

#[test]
fn login_code_is_worth_nothing_twice_guessed_or_unredeemed() {
    let site = Site::new();
    let login = site.login_address();
    // A program that only looks does not use the code up, and neither does one under another name.
    ask(&site.address, "HEAD", &login.path, &[("host", &login.host)], "");
    let plain = site.get_anonymously(&login.path).expect(303);
    assert_eq!(plain.header("location"), Some(&*format!("http://{}{}", login.host, login.path)));
    let entered = site.open(&login).expect(303);
    assert_eq!(entered.header("location"), Some("/ui"));
    let cookie = entered.header("set-cookie").unwrap().to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap();
    let with = |cookie: &str, path: &str| {
        ask(&site.address, "GET", path, &[("host", &login.host), ("cookie", cookie)], "")
    };
    with(cookie, "/tasks").expect(200);
    let again = site.open(&login).expect(403);
    assert!(again.body.contains("was used") && again.body.contains("ringfence open"), "{again:?}");
    // The same browser is logged in already.
    let known = with(cookie, &login.path).expect(303);
    assert_eq!((known.header("location"), known.header("set-cookie")), (Some("/ui"), None));
    let unused = site.login_address().path;
    for wrong in ["", "0", &"0".repeat(64), &unused[..unused.len() - 1], "%00"] {
        let code = wrong.rsplit('=').next().unwrap();
        let answer = site.get_anonymously(&format!("/ui/login?code={code}")).expect(403);
        let set = answer.header("set-cookie").unwrap_or_default().split(';').next().unwrap();
        with(set, "/tasks").expect(401);
    }
    let (name, value) = cookie.split_once('=').unwrap();
    for forged in [value[1..].to_owned(), "0".repeat(64), value.to_uppercase() + "0", String::new()] {
        with(&format!("{name}={forged}"), "/tasks").expect(401);
    }
}

/// Opens a login address under the plain address and under its name, and prints both answers.
const REDEEM: &str = r#"
import sys, urllib.request, urllib.error
class No(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *a): return None
def get(headers):
    try: return urllib.request.build_opener(No).open(urllib.request.Request(sys.argv[1], headers=headers)).status
    except urllib.error.HTTPError as e: return e.code
print(get({}), get({'host': sys.argv[2]}))
"#;

/// What a login address that a command has printed is worth to another user.
fn redeem_as_stranger(site: &Site, login: &LoginAddress) -> Option<String> {
    let url = format!("http://127.0.0.1:{}{}", port(site), login.path);
    as_stranger(REDEEM, &[&url, &login.host]).map(|ran| ran.stdout.trim().to_owned())
}

/// The login address in what a command has printed.
#[track_caller]
fn printed_address(ran: &Ran) -> LoginAddress {
    let url = ran.stdout.split(['"', ' ', '\n']).find(|word| word.contains("/ui/login?code="));
    let url = url.unwrap_or_else(|| panic!("{ran:?}")).strip_prefix("http://").unwrap();
    let (host, path) = url.split_once('/').unwrap();
    LoginAddress { host: host.to_owned(), path: format!("/{path}") }
}

/// A click on an address, or a script, puts it on a command line, which every user can read.
#[test]
fn printed_login_addresses_are_worth_nothing_to_another_user() {
    for listen in ["127.0.0.1:0", "0.0.0.0:0"] {
        let mut site = Site::listening(Place::new().settings(SETTINGS).env("API_KEYS", "k"), listen);
        // Where it is no terminal, their output may be kept for others to read.
        for command in ["restart", "status"] {
            let ran = site.ok(&[command]);
            let (said, plain) = (ran.stdout.to_lowercase(), "(`ringfence open`)");
            assert!(said.contains("dashboard: http://") && said.contains(plain), "{ran:?}");
            assert!(!said.contains("code="), "{ran:?}");
        }
        let commands = [&["status", "--json"][..], &["open"], &["open", "--print"], &["open", "--json"]];
        for command in commands {
            let ran = site.ok(command);
            let status = site.ok(&["status", "--json"]).json();
            site.address = status["daemon"]["address"].as_str().unwrap().to_owned();
            let login = printed_address(&ran);
            // Under the plain address, too, another user learns nothing, not even the name.
            let Some(answers) = redeem_as_stranger(&site, &login) else { return };
            assert_eq!(answers, "403 403", "{command:?}");
            // And it was not used up.
            site.open(&login).expect(303);
        }
        let code = site.ask("POST", "/system/login-codes", &[], "").expect(200).json();
        let text = |key: &str| code[key].as_str().unwrap();
        let host = format!("{}:{}", text("host"), port(&site));
        let login = LoginAddress { host, path: text("path").to_owned() };
        assert_eq!(redeem_as_stranger(&site, &login).unwrap(), "403 403");
        let anyone = printed_address(&site.ok(&["open", "--for-anyone"]));
        assert_eq!(redeem_as_stranger(&site, &anyone).unwrap(), "303 303");
    }
}

/// A daemon that browsers of other machines reach: on this machine its addresses are the owner's all the same.
#[test]
fn login_addresses_for_other_machines_are_worth_nothing_to_another_user_of_this_one() {
    let Some(own) = own_address() else { return };
    let key = "0123456789abcdef0123456789abcdef";
    let place = Place::new().settings(SETTINGS).env("API_KEYS", key);
    let site = Site::listening(place, &format!("{own}:0"));
    let redeem = |login: &LoginAddress| {
        as_stranger(REDEEM, &[&format!("http://{}{}", site.address, login.path), &site.address])
    };
    for command in [&["status", "--json"][..], &["open", "--print"], &["open", "--json"]] {
        let login = printed_address(&site.ok(command));
        assert_eq!(login.host, site.address, "{command:?}");
        if let Some(ran) = redeem(&login) {
            assert_eq!(ran.stdout.trim(), "403 403", "{command:?}");
        }
        site.open(&login).expect(303);
    }
    let code = site.ask("POST", "/system/login-codes?ownerOnly=false", &[], "").expect(200).json();
    let path = code["path"].as_str().unwrap().to_owned();
    let login = LoginAddress { host: site.address.clone(), path };
    let proxied = [("host", &*login.host), ("x-forwarded-for", "198.51.100.7")];
    if let Some(ran) = redeem(&login) {
        assert_eq!(ran.stdout.trim(), "403 403");
        let anyone = printed_address(&site.ok(&["open", "--for-anyone"]));
        assert_eq!(redeem(&anyone).unwrap().stdout.trim(), "303 403", "once");
    }
    ask(&site.address, "GET", &login.path, &proxied, "").expect(303);
}

/// The daemon listens on loopback, and RINGFENCE_URL names it by a name that says nothing of that.
#[test]
fn login_address_by_another_name_of_loopback_is_worth_nothing_to_another_user() {
    let site = Site::new();
    let code = site.ask("POST", "/system/login-codes?ownerOnly=false", &[], "").expect(200).json();
    let host = format!("box.example:{}", port(&site));
    let login = LoginAddress { host, path: code["path"].as_str().unwrap().to_owned() };
    let Some(answers) = redeem_as_stranger(&site, &login) else { return };
    assert_eq!(answers, "403 403");
    site.open(&login).expect(303);
}

/// Browsers send a cookie to every port of a host, so another user who serves a page there gets to see it.
#[test]
fn cookie_of_the_owners_session_is_worth_nothing_to_another_user() {
    let site = Site::new();
    let session = site.log_in();
    let get = "import sys, urllib.request, urllib.error\n\
        request = urllib.request.Request(sys.argv[1], headers=dict(h.split('=', 1) for h in sys.argv[2:]))\n\
        try: print(urllib.request.urlopen(request).status)\n\
        except urllib.error.HTTPError as e: print(e.code)";
    site.ask("GET", "/tasks", &session.headers(), "").expect(200);
    let url = format!("http://{}/tasks", site.address);
    let (cookie, host) = (format!("cookie={}", session.cookie), format!("host={}", session.host));
    for extra in ["accept=*/*", "x-forwarded-for=192.0.2.1", "sec-fetch-site=same-origin"] {
        let Some(ran) = as_stranger(get, &[&url, &cookie, &host, extra]) else { return };
        assert_eq!(ran.stdout.trim(), "403", "{extra}: {ran:?}");
    }
}

/// A policy that leaves the network open, outside of the workspace.
fn open_policy(place: &Place) -> String {
    let file = place.home().join("open.json");
    fs::write(&file, r#"{"extends": "standard", "network": {"mode": "open"}}"#).unwrap();
    file.display().to_string()
}

/// What a run posts, and how it prints the answer.
fn posting(site: &Site, host: &str) -> String {
    format!(
        "curl -s -m 20 --noproxy '' -w ' %{{http_code}} %header{{x-ringfence-denied}}' -H 'content-type: application/json' \
         -d '{{\"prompt\":\"x\",\"agent\":\"command\",\"mode\":\"host\",\"command\":\"touch owned\",\"directory\":\"{}\"}}' \
         http://{host}:{}/tasks; echo \" curl $?\"",
        site.place.work().display(),
        port(site)
    )
}

#[test]
fn run_with_an_open_network_does_not_command_the_daemon() {
    for (switch, status) in [(None, " 401 "), (Some("true"), " 403 "), (Some("false"), " 401 ")] {
        let mut place = Place::new().settings(SETTINGS);
        if let Some(word) = switch {
            place = place.env(SWITCH, word);
        }
        let site = Site::of(place);
        let policy = open_policy(&site.place);
        let script =
            format!("unset http_proxy HTTP_PROXY all_proxy ALL_PROXY; {}", posting(&site, "127.0.0.1"));
        let ran = site.place.run(&["exec", "--policy", &policy, "--", "sh", "-c", &script]);
        assert!(ran.stdout.contains(status) && ran.stdout.contains("curl 0"), "{switch:?}: {ran:?}");
        // A run without a boundary is recognised by the gate above it.
        if switch == Some("true") {
            let host = site.place.run(&["exec", "--mode", "host", "--", "sh", "-c", &script]);
            assert!(host.stdout.contains(" 403 ") && host.stdout.contains("not_owner"), "{host:?}");
            let own =
                site.place.shell(&format!("curl -s -w ' %{{http_code}}' http://{}/tasks", site.address));
            assert!(own.stdout.ends_with(" 200"), "{own:?}");
            let proxied = [("x-forwarded-for", "192.0.2.7")];
            ask(&site.address, "GET", "/tasks", &proxied, "").expect(401);
        }
        assert_no_task(&site);
    }
}

/// Presents a login address and a session, and prints both answers. With a fourth argument it keeps its descriptors from being listed.
const LOG_IN: &str = r#"
import ctypes, http.client, sys
address, login, session = sys.argv[1], sys.argv[2].split(" "), sys.argv[3].split(" ")
if len(sys.argv) > 4: ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
def ask(path, headers):
    c = http.client.HTTPConnection(address, timeout=20)
    c.request("GET", path, headers=headers)
    return c.getresponse().status
print(ask(login[1], {"host": login[0]}), ask("/tasks", {"host": session[0], "cookie": session[1]}))
"#;

/// A run may read a login address in a log of its workspace, or see a cookie: with an open network it has its owner's loopback.
#[test]
fn login_address_and_session_are_worth_nothing_to_a_run() {
    let users = if is_root() { vec![None, Some(65534)] } else { vec![None] };
    for user in users {
        let place = Place::new().settings(SETTINGS).env("PATH", "/usr/bin:/bin");
        let site = Site::of(user.into_iter().fold(place, Place::of_user));
        let policy = open_policy(&site.place);
        let login = printed_address(&site.ok(&["open", "--json"]));
        let code = format!("{} {}", login.host, login.path);
        let as_owner = |script: &str, args: &[&str]| match user {
            Some(_) => as_stranger(script, args).unwrap(),
            None => Ran::from(Command::new("python3").args(["-c", script]).args(args).output().unwrap()),
        };
        let take = "import http.client, sys\n\
            c = http.client.HTTPConnection(sys.argv[1])\n\
            c.request('GET', sys.argv[3], headers={'host': sys.argv[2]})\n\
            print(c.getresponse().headers['set-cookie'].split(';')[0])";
        let own = printed_address(&site.ok(&["open", "--json"]));
        let cookie = as_owner(take, &[&site.address, &own.host, &own.path]).stdout.trim().to_owned();
        let session = format!("{} {cookie}", own.host);
        for more in [["--policy", &policy], ["--mode", "host"]] {
            for hides in [&[][..], &["hides"]] {
                let script =
                    [&["--", "python3", "-c", LOG_IN, &site.address, &code, &session], hides].concat();
                let ran = site.place.run(&[&["exec"][..], &more, &script].concat());
                assert_eq!(ran.stdout.trim(), "403 403", "{user:?} {more:?} {hides:?}: {ran:?}");
            }
        }
        // The owner's own programs can use both, also one that keeps its descriptors from being listed, as sshd does.
        let args = [site.address.as_str(), &code, &session, "hides"];
        assert_eq!(as_owner(LOG_IN, &args).stdout.trim(), "303 200", "{user:?}");
    }
}

/// Sends the request of a login address so that no process holds the socket while the daemon looks for its holders: the data waits in a
/// corked socket until that is on its way in a message.
const LOG_IN_UNHELD: &str = r#"
import array, os, socket, sys, time
address, port = sys.argv[1].rsplit(":", 1)
host, path = sys.argv[2].split(" ")
near, far = socket.socketpair()
s = socket.create_connection((address, int(port)), 20)
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
s.sendall(f"GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n".encode())
near.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [s.fileno()]))])
s.close()
# The kernel sends what is corked after 200 ms.
time.sleep(2)
_, ancillary, _, _ = far.recvmsg(1, socket.CMSG_SPACE(4))
s = socket.socket(fileno=array.array("i", ancillary[0][2])[0])
s.settimeout(20)
print(s.recv(4096).split(b" ")[1].decode())
"#;

#[test]
fn login_address_is_worth_nothing_from_a_socket_that_no_process_holds() {
    let site = Site::of(Place::new().settings(SETTINGS).env("PATH", "/usr/bin:/bin"));
    let policy = open_policy(&site.place);
    for more in [["--policy", &policy], ["--mode", "host"]] {
        let login = printed_address(&site.ok(&["open", "--json"]));
        let code = format!("{} {}", login.host, login.path);
        let script = ["--", "python3", "-c", LOG_IN_UNHELD, &site.address, &code];
        let ran = site.place.run(&[&["exec"][..], &more, &script].concat());
        assert_eq!(ran.stdout.trim(), "403", "{more:?}: {ran:?}");
        // It is unused: the owner's program, which holds its socket, can use it.
        let url = format!("http://{}{}", site.address, login.path);
        let own = Command::new("curl")
            .args(["-s", "-m", "20", "-o", "/dev/null", "-w", "%{http_code}", "-H"])
            .args([&format!("host: {}", login.host), &url])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&own.stdout), "303", "{more:?}: {own:?}");
    }
}

/// Connects to a socket file or a port, and prints the answer to a request that adds a task.
const POST_FROM_RUN: &str = r#"
import json, os, socket, sys, time
where, token, directory = sys.argv[1:4]
open("ready", "w").close()
while not os.path.exists("go"): time.sleep(0.05)
if where.isdigit():
    s = socket.create_connection(("127.0.0.1", int(where)), 20)
else:
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(20)
    s.connect(where)
body = json.dumps({"prompt": "x", "agent": "command", "mode": "host", "command": "touch owned", "directory": directory})
more = f"authorization: Bearer {open(token).read().strip()}\r\n" if token else ""
head = f"POST /tasks HTTP/1.1\r\nhost: 127.0.0.1\r\n{more}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
s.sendall((head + body).encode())
print(s.recv(65536).decode())
"#;

/// A state directory that was made, or moved, while the run goes on: the run sees its socket and its token.
#[test]
fn daemon_whose_socket_and_token_a_run_sees_does_not_serve_it() {
    let site = Site::of(Place::new().settings(SETTINGS).env("PATH", "/usr/bin:/bin"));
    let (work, policy) = (site.place.work(), open_policy(&site.place));
    let directory = work.display().to_string();
    for more in [&[][..], &["--policy", &policy], &["--mode", "host"]] {
        for (where_to, token) in [("api.sock", ""), ("api.sock", "api.token"), (port(&site), "api.token")] {
            // Without an open network there is no other end.
            if more.is_empty() && where_to != "api.sock" {
                continue;
            }
            let script = ["--", "python3", "-c", POST_FROM_RUN, where_to, token, &directory];
            let run = site.place.spawn(&[&["exec"][..], more, &script].concat());
            wait_for("the run", || work.join("ready").exists().then_some(()));
            fs::hard_link(site.place.state().join("api.sock"), work.join("api.sock")).unwrap();
            fs::copy(site.place.state().join("api.token"), work.join("api.token")).unwrap();
            fs::write(work.join("go"), "").unwrap();
            let ran = Ran::from(run.wait_with_output().unwrap());
            assert!(
                ran.stdout.starts_with("HTTP/1.1 403") && ran.stdout.contains("not_owner"),
                "{more:?} {where_to} {token}: {ran:?}"
            );
            for file in ["ready", "go", "api.sock", "api.token"] {
                fs::remove_file(work.join(file)).unwrap();
            }
        }
    }
    // The owner's programs are served by both.
    assert!(
        ask_socket(&site.place.state().join("api.sock"), "GET /tasks").unwrap().starts_with("HTTP/1.1 200")
    );
    site.get("/tasks").expect(200);
    assert_no_task(&site);
}

#[test]
fn state_directory_that_an_active_run_sees_gets_no_daemon() {
    let place = Place::new().settings(SETTINGS);
    let inside = place.work().join("st");
    let wait = "touch ready; until [ -e go ]; do sleep 0.05; done; ls -A st 2>&1; true";
    let above = place.work().display().to_string();
    let elsewhere = place.home().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let elsewhere = elsewhere.display().to_string();
    let ready = |directory: &Path| wait_for("the run", || directory.join("ready").exists().then_some(()));
    let start = |verb: &str| {
        let ran = place.command(&[verb]).env("RINGFENCE_HOME", &inside).output().map(Ran::from).unwrap();
        let said = ran.stderr.contains("would be seen by run") && ran.stderr.contains("set RINGFENCE_HOME");
        assert!(ran.code() == 125 && said, "{ran:?}");
        assert!(!inside.join("api.token").exists() && !inside.join("api.sock").exists());
    };
    let (workspace, reader) = (&["-C", &above][..], &["-C", &elsewhere, "--read", &above][..]);
    for (named, directory) in [(workspace, &above), (reader, &elsewhere)] {
        for exists in [false, true] {
            if exists {
                fs::create_dir(&inside).unwrap();
            }
            let run = place.spawn(&[&["exec"][..], named, &["--", "sh", "-c", wait]].concat());
            ready(Path::new(directory));
            if exists {
                // One in its place is another one.
                fs::remove_dir_all(&inside).unwrap();
                fs::create_dir(&inside).unwrap();
            }
            start("start");
            start("serve");
            fs::write(Path::new(directory).join("go"), "").unwrap();
            let ran = Ran::from(run.wait_with_output().unwrap()).expect_code(0);
            assert!(!ran.stdout.contains("api.token"), "{ran:?}");
            for file in ["ready", "go"] {
                fs::remove_file(Path::new(directory).join(file)).unwrap();
            }
            let _ = fs::remove_dir_all(&inside);
        }
    }
    // The own one, which was there when the run began, is hidden in it.
    let run = place.spawn(&["exec", "--", "sh", "-c", wait]);
    ready(&place.work());
    for verb in ["start", "stop"] {
        place.run(&[verb]).expect_code(0);
    }
    fs::write(place.work().join("go"), "").unwrap();
    Ran::from(run.wait_with_output().unwrap()).expect_code(0);
}

/// Sends a request in a corked socket, which the kernel keeps for 200 ms, and passes the socket on.
const SEND_AND_PASS: &str = r#"
import array, os, socket, sys, time
address, port = sys.argv[1].rsplit(":", 1)
host, cookie = sys.argv[2].split(" ")
far = socket.socket(socket.AF_UNIX)
open("ready", "w").close()
# Sockets that are there when a run begins are hidden in it.
while True:
    try:
        far.connect("park")
        break
    except OSError: time.sleep(0.01)
s = socket.create_connection((address, int(port)), 20)
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
s.sendall(f"GET /tasks HTTP/1.1\r\nhost: {host}\r\ncookie: {cookie}\r\nconnection: close\r\n\r\n".encode())
far.sendmsg([f"{s.getsockname()[1]:04X} ".encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [s.fileno()]))])
os._exit(0)
"#;

/// Accepts a connection, looks at the port in its message, and takes the socket out of it once there is an answer to read.
const TAKE_WHEN_ANSWERED: &str = r#"
import array, os, socket, sys, time
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
server.listen(1)
c, _ = server.accept()
port = c.recv(5, socket.MSG_PEEK).decode().strip()
def answered(line):
    columns = line.split()
    return columns[1].endswith(":" + port) and not columns[4].endswith(":00000000")
while not any(answered(line) for line in open("/proc/net/tcp").readlines()[1:]): time.sleep(0.01)
_, ancillary, _, _ = c.recvmsg(5, socket.CMSG_SPACE(4))
s = socket.socket(fileno=array.array("i", ancillary[0][2])[0])
print(s.recv(4096).split(b" ")[1].decode())
"#;

/// The run has ended, and its socket is in a message that a program outside of runs has not read.
#[test]
fn session_is_worth_nothing_from_a_socket_of_a_run_that_has_ended() {
    let site = Site::of(Place::new().settings(SETTINGS).env("PATH", "/usr/bin:/bin"));
    let session = site.log_in();
    let carried = format!("{} {}", session.host, session.cookie);
    let policy = open_policy(&site.place);
    for more in [["--policy", &policy], ["--mode", "host"]] {
        let script = ["--", "python3", "-c", SEND_AND_PASS, &site.address, &carried];
        let run = site.place.spawn(&[&["exec"][..], &more, &script].concat());
        wait_for("the run", || site.place.work().join("ready").exists().then_some(()));
        let socket = site.place.work().join("park");
        let outside = Command::new("python3")
            .args(["-c", TAKE_WHEN_ANSWERED, socket.to_str().unwrap()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Ran::from(run.wait_with_output().unwrap()).expect_code(0);
        let taken = outside.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&taken.stdout).trim(), "403", "{more:?}");
        for file in ["ready", "park"] {
            fs::remove_file(site.place.work().join(file)).unwrap();
        }
    }
    site.ask("GET", "/tasks", &session.headers(), "").expect(200);
}

/// Takes a socket, and has it on its way to itself while the daemon looks for its holders.
const TAKE_AND_PARK: &str = r#"
import array, os, socket, sys, time
near, far = socket.socketpair()
server = socket.socket(socket.AF_UNIX)
server.bind("park")
server.listen(1)
c, _ = server.accept()
_, ancillary, _, _ = c.recvmsg(5, socket.CMSG_SPACE(4))
taken = array.array("i", ancillary[0][2])
near.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, taken)])
os.close(taken[0])
# The kernel sends what is corked after 200 ms.
time.sleep(2)
_, ancillary, _, _ = far.recvmsg(1, socket.CMSG_SPACE(4))
s = socket.socket(fileno=array.array("i", ancillary[0][2])[0])
s.settimeout(20)
print(s.recv(4096).split(b" ")[1].decode())
"#;

/// A run with an open network gives its socket to one that has none, and ends.
#[test]
fn session_is_worth_nothing_from_a_socket_that_runs_passed_on() {
    let site = Site::of(Place::new().settings(SETTINGS).env("PATH", "/usr/bin:/bin"));
    let session = site.log_in();
    let carried = format!("{} {}", session.host, session.cookie);
    let policy = open_policy(&site.place);
    let script = ["exec", "--policy", &policy, "--", "python3", "-c", SEND_AND_PASS, &site.address, &carried];
    let sender = site.place.spawn(&script);
    wait_for("the run", || site.place.work().join("ready").exists().then_some(()));
    let taker = site.place.spawn(&["exec", "--", "python3", "-c", TAKE_AND_PARK]);
    Ran::from(sender.wait_with_output().unwrap()).expect_code(0);
    let ran = Ran::from(taker.wait_with_output().unwrap());
    assert_eq!(ran.stdout.trim(), "403", "{ran:?}");
    site.ask("GET", "/tasks", &session.headers(), "").expect(200);
}

/// A normal user cannot look into gates, so they are known by their name.
#[test]
fn switch_lets_in_a_normal_users_programs_but_none_of_its_runs() {
    if !is_root() {
        return;
    }
    let site = Site::of(Place::new().settings(SETTINGS).env(SWITCH, "true").of_user(65534));
    let get = format!("curl -s -w ' %{{http_code}}' --noproxy '*' http://{}/tasks", site.address);
    let own = Command::new("setpriv")
        .args(["--reuid", STRANGER, "--regid", STRANGER, "--clear-groups", "sh", "-c", &get])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&own.stdout).ends_with(" 200"), "{own:?}");
    let policy = open_policy(&site.place);
    for more in [["--mode", "host"], ["--policy", &policy]] {
        let ran = site.place.run(&[&["exec"][..], &more, &["--", "sh", "-c", &get]].concat());
        assert!(ran.stdout.contains("not_owner") && ran.stdout.ends_with(" 403"), "{more:?}: {ran:?}");
    }
    // Root is not the owner either.
    site.get_anonymously("/tasks").expect(403);
}

/// Lists tasks by the Unix socket and by TCP, where `/proc` shows a user its own processes alone.
const ASK_WITH_HIDDEN_PROCESSES: &str = r#"
mount -t proc -o hidepid=2 proc /proc
exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -c '
"$0" start > /dev/null
"$0" task list --json
curl -s -o /dev/null -w "%{http_code} " --noproxy "*" -H "authorization: Bearer $(cat "$HOME/.ringfence/api.token")" "$1/tasks"
"$0" exec --policy "$2" -- curl -s -o /dev/null -w "%{http_code}" --noproxy "*" -H "authorization: Bearer $(cat "$HOME/.ringfence/api.token")" "$1/tasks"
"$0" stop > /dev/null
' "$0" "$@"
"#;

#[test]
fn owner_is_served_and_a_run_is_not_where_processes_of_others_are_hidden() {
    if !is_root() {
        return;
    }
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let place = Place::new().settings(SETTINGS).env("PATH", "/usr/bin:/bin").of_user(65534);
    let place = place.env("RINGFENCE_LISTEN", format!("127.0.0.1:{port}"));
    let policy = open_policy(&place);
    place.run(&["exec", "--", "true"]).expect_code(0);
    let own = place.command(&[]);
    let environment = own.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
    let program = place.home().parent().unwrap().join("ringfence");
    let output = Command::new("unshare")
        .args(["--mount", "--", "sh", "-c", ASK_WITH_HIDDEN_PROCESSES])
        .arg(program)
        .args([&format!("http://127.0.0.1:{port}"), &policy])
        .env_clear()
        .envs(environment)
        .current_dir(place.work())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said.split_whitespace().collect::<Vec<_>>(), ["[]", "200", "403"], "{output:?}");
}

#[test]
fn broker_never_dials_the_daemon() {
    for listen in ["127.0.0.1:0", "0.0.0.0:0"] {
        let place = Place::new().settings(SETTINGS).env("API_KEYS", "k").env(SWITCH, "true");
        let site = Site::listening(place, listen);
        let port = port(&site);
        for host in ["127.0.0.1", "127.8.8.8", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "localhost"]
        {
            let allow = format!("{host}:{port}");
            let more = format!("127.0.0.1:{port}");
            let script = posting(&site, host);
            let args = ["exec", "--allow", &allow, "--allow", &more, "--", "sh", "-c", &script];
            let ran = site.place.run(&args);
            // A name may also be one that the broker's resolver does not know.
            let refused =
                ran.stdout.contains(" 403 daemon") || (host == "localhost" && ran.stdout.contains(" 502 "));
            assert!(refused && !ran.stdout.contains("authentication_required"), "{host}: {ran:?}");
        }
        let forwarded = site.place.run(&["exec", "--allow-local", port, "--", "true"]);
        assert!(forwarded.code() == 125 && forwarded.stderr.contains("own daemon"), "{forwarded:?}");
        assert_no_task(&site);
    }
}

/// The daemon of another installation cannot tell this program's broker from a program of its owner if its own program has another
/// name.
#[test]
fn broker_never_dials_the_daemon_of_another_installation() {
    let place = Place::new();
    let other = Place::new().settings(SETTINGS).env(SWITCH, "true").env("RINGFENCE_LISTEN", "127.0.0.1:0");
    let program = other.home().join("innocent");
    fs::copy(BINARY, &program).unwrap();
    let program = program.display();
    let started = other.shell(&format!("{program} start"));
    assert_eq!(started.code(), 0, "{started:?}");
    let address = fs::read_to_string(other.state().join("api.address")).unwrap();
    let port = address.rsplit(':').next().unwrap();
    // A program of the owner is served there without a token.
    let by_hand =
        other.shell(&format!("curl -s -m 20 -o /dev/null -w '%{{http_code}}' http://{address}/tasks"));
    let script = format!(
        "curl -s -m 20 --noproxy '*' http://127.0.0.1:{port}/tasks; echo \" local $?\"; \
         curl -s -m 20 --noproxy '' -w ' %header{{x-ringfence-denied}}' http://127.0.0.1:{port}/tasks"
    );
    let allow = format!("127.0.0.1:{port}");
    let ran = place.run(&["exec", "--allow-local", port, "--allow", &allow, "--", "sh", "-c", &script]);
    let stopped = other.shell(&format!("{program} stop"));
    assert_eq!((by_hand.stdout.as_str(), stopped.code()), ("200", 0), "{by_hand:?} {stopped:?}");
    assert!(!ran.stdout.contains(" local 0") && ran.stdout.ends_with(" daemon"), "{ran:?}");
}

#[test]
fn broker_does_not_dial_a_daemon_that_was_started_during_the_run() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    let port = free.local_addr().unwrap().port().to_string();
    let place = Place::new().settings(SETTINGS).env("RINGFENCE_LISTEN", address.clone());
    let script = format!(
        "touch ready; until [ -e go ]; do sleep 0.05; done; \
         curl -s -m 20 --noproxy '*' http://127.0.0.1:{port}/health; echo \" local $?\"; \
         curl -s -m 20 --noproxy '' -w '%header{{x-ringfence-denied}}' -o /dev/null http://127.0.0.1:{port}/health"
    );
    let allow = format!("127.0.0.1:{port}");
    let child = place.spawn(&["exec", "--allow-local", &port, "--allow", &allow, "--", "sh", "-c", &script]);
    wait_for("the run", || place.work().join("ready").exists().then_some(()));
    drop(free);
    place.run(&["start"]).expect_code(0);
    let site = Site { place, address };
    site.get("/health").expect(200);
    fs::write(site.place.work().join("go"), "").unwrap();
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert!(!ran.stdout.contains(" local 0") && ran.stdout.ends_with("daemon"), "{ran:?}");
    assert!(!ran.stdout.contains("timestamp"), "{ran:?}");
}

#[test]
fn no_run_sees_the_token_or_the_socket() {
    let default = Place::new().settings(SETTINGS);
    let inside = Place::new().settings(SETTINGS);
    let in_workspace = inside.work().join("state").display().to_string();
    fs::create_dir(inside.work().join("state")).unwrap();
    let inside = inside.env("RINGFENCE_HOME", in_workspace);
    for (place, state) in [(default, None), (inside, Some("state"))] {
        let state = state.map_or_else(|| place.state(), |name| place.work().join(name));
        let place = place.env("RINGFENCE_LISTEN", "127.0.0.1:0");
        place.run(&["start"]).expect_code(0);
        assert_eq!(mode(&state.join("api.token")), 0o600);
        let above = state.parent().unwrap().display().to_string();
        let state = state.display().to_string();
        // By its path, and where the workspace is seen.
        let script = format!(
            "for state in {state} state; do ls -A $state 2>&1; cat $state/api.token 2>&1; \
             python3 -c 'import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1] + \"/api.sock\"); print(\"connected\")' $state 2>&1; done; true"
        );
        let wide = place.home().join("wide.json");
        fs::write(&wide, r#"{"extends": "standard", "files": {"reach": "host"}}"#).unwrap();
        let wide = wide.display().to_string();
        let token = fs::read_to_string(format!("{state}/api.token")).unwrap();
        let ways = [
            &[][..],
            &["--policy", "open"],
            &["--policy", "open", "--read", &above],
            &["--policy", &wide, "--read", &above],
            &["--read", &state],
            &["--write", &state],
        ];
        for more in ways {
            let args = [&["exec"][..], more, &["--", "sh", "-c", &script]].concat();
            let ran = place.run(&args);
            let refused = ran.code() == 125 && ran.stderr.contains("is a secret");
            assert!(
                refused || ran.stdout.contains("No such file") || ran.stdout.contains("denied"),
                "{ran:?}"
            );
            assert!(!ran.stdout.contains(token.trim()), "{more:?}: {ran:?}");
            assert!(!ran.stdout.contains("connected"), "{more:?}: {ran:?}");
            assert!(!ran.stdout.contains("api.token\n"), "{more:?}: {ran:?}");
        }
        let _ = place.command(&["stop"]).output();
    }
}

#[test]
fn idle_connections_do_not_take_the_owners_place() {
    let place = Place::new().settings(SETTINGS).env("RINGFENCE_LISTEN", "127.0.0.1:0");
    // So few descriptors that the connections of strangers would take all of them.
    let start = place.shell(&format!("ulimit -n 400; exec {BINARY} start"));
    assert_eq!(start.code(), 0, "{start:?}");
    let address = place.run(&["status", "--json"]).json()["daemon"]["address"].as_str().unwrap().to_owned();
    let site = Site { place, address };
    let idle: Vec<TcpStream> = (0..768).map(|_| TcpStream::connect(&site.address).unwrap()).collect();
    for number in 0..20 {
        site.get("/tasks").expect(200);
        ask_socket(&site.place.state().join("api.sock"), "GET /tasks").unwrap();
        // And while others send half a request.
        let _ = (&idle[idle.len() - 1 - number]).write_all(b"GET /tasks HTTP/1.1\r\nhost: ");
    }
    let session = site.log_in();
    site.ask("GET", "/ui", &session.headers(), "").expect(200);
    drop(idle);
}

#[test]
fn flood_of_strangers_does_not_lock_the_owner_out() {
    let settings = SETTINGS.replace("\"rate_limit\": 0", "\"rate_limit\": 100");
    let site = Site::of(Place::new().settings(&settings));
    let session = site.log_in();
    let login = site.login_address();
    let mut last = 0;
    for number in 0..150 {
        let wrong = format!("Bearer {number:064x}");
        last = ask(&site.address, "GET", "/tasks", &[("authorization", &wrong)], "").status;
        site.get_anonymously("/tasks");
    }
    assert_eq!(last, 429, "strangers are bounded");
    site.get_anonymously("/openapi.json").expect(429);
    // What anybody may read is counted apart for the owner, and health for nobody.
    for path in ["/openapi.json", "/ui/login"] {
        site.get(path).expect(200);
    }
    (0..200).for_each(|_| drop(site.get_anonymously("/health/ready").expect(200)));
    for _ in 0..20 {
        site.get("/tasks").expect(200);
        site.ask("GET", "/ui", &session.headers(), "").expect(200);
        site.ask("GET", "/assets/style.css", &session.headers(), "").expect(200);
    }
    site.open(&login).expect(303);
    site.ok(&["open", "--print"]);
}

/// Whether the daemon has read all that was sent to it.
fn has_read_all(site: &Site, streams: &[TcpStream]) -> bool {
    let list = fs::read_to_string("/proc/net/tcp").unwrap();
    let own = format!(":{:04X}", port(site).parse::<u16>().unwrap());
    let ends: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().collect()).collect();
    streams.iter().all(|stream| {
        let remote = format!(":{:04X}", stream.local_addr().unwrap().port());
        let of_stream =
            |end: &&Vec<&str>| end[1].ends_with(&own) && end[2].ends_with(&remote) && end[3] == "01";
        ends.iter().find(of_stream).is_none_or(|end| end[4].ends_with(":00000000"))
    })
}

#[test]
fn flood_of_connections_evicts_none_that_waits_for_its_look_up() {
    let site = Site::new();
    let token = format!("authorization: {}\r\n", site.bearer());
    let ask = || ask_later(TcpStream::connect(&site.address).unwrap(), &token);
    let waiting: Vec<TcpStream> = (0..50).map(|_| ask()).collect();
    wait_for("the requests", || has_read_all(&site, &waiting).then_some(()));
    let socket = site.place.state().join("api.sock");
    let flood: Vec<TcpStream> = (0..300)
        .map(|number| {
            // No more than wait to be accepted at once: others would be tried again after a second.
            if number % 60 == 0 {
                ask_socket(&socket, "GET /health").unwrap();
            }
            TcpStream::connect(&site.address).unwrap()
        })
        .collect();
    waiting.into_iter().for_each(expect_later);
    drop(flood);
}

#[test]
fn page_of_another_site_does_nothing() {
    let site = Site::new();
    let session = site.log_in();
    let body = json!({ "prompt": "x", "agent": "demo", "directory": site.place.work() }).to_string();
    for kind in ["application/json", "text/plain", "application/x-www-form-urlencoded"] {
        for (cookie, status) in [("", 401), (session.cookie.as_str(), 403)] {
            for foreign in
                [&[("origin", "http://evil.example")][..], &[("sec-fetch-site", "cross-site")], &[]]
            {
                let own = [("host", session.host.as_str()), ("content-type", kind), ("cookie", cookie)];
                site.ask("POST", "/tasks", &[&own[..], foreign].concat(), &body).expect(status);
            }
        }
    }
    // A name that was bent to loopback has another cookie, and so none.
    site.ask("GET", "/tasks", &[("host", "evil.example"), ("cookie", &session.cookie)], "").expect(401);
    assert_no_task(&site);
}

#[test]
fn token_file_that_others_could_have_read_or_made_refuses_the_start() {
    let place = Place::new().settings(SETTINGS).env("RINGFENCE_LISTEN", "127.0.0.1:0");
    place.run(&["start"]).expect_code(0);
    place.run(&["stop"]).expect_code(0);
    let file = place.state().join("api.token");
    let refuses = |sentence: &str| {
        let refused = place.run(&["start"]);
        assert_eq!(refused.code(), 125, "{refused:?}");
        assert!(refused.stderr.contains(sentence) && refused.stderr.contains("token rotate"), "{refused:?}");
        place.run(&["token", "rotate"]).expect_code(0);
        assert_eq!(mode(&file), 0o600);
        place.run(&["start"]).expect_code(0);
        place.run(&["stop"]).expect_code(0);
    };
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    refuses("accessible to other users");
    let known = place.home().join("known");
    fs::write(&known, "0".repeat(64)).unwrap();
    fs::remove_file(&file).unwrap();
    symlink(&known, &file).unwrap();
    refuses("not a regular file");
    assert_eq!(fs::read_to_string(&known).unwrap(), "0".repeat(64));
    fs::write(&file, "short").unwrap();
    refuses("does not hold a token");
    if is_root() {
        std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
        refuses("belongs to user 65534");
    }
}

#[test]
fn token_outlives_the_daemon_and_sessions_do_not() {
    let mut site = Site::new();
    let (token, session) = (site.bearer(), site.log_in());
    let status = site.ok(&["status", "--json"]).json();
    let pid = status["daemon"]["pid"].as_u64().unwrap();
    crate::support::signal(u32::try_from(pid).unwrap(), "-9");
    wait_for("its end", || (site.place.run(&["status"]).code() == 3).then_some(()));
    site.ok(&["start"]);
    let address = site.ok(&["status", "--json"]).json()["daemon"]["address"].as_str().unwrap().to_owned();
    site.address = address;
    assert_eq!(site.bearer(), token);
    site.get("/tasks").expect(200);
    site.ask("GET", "/tasks", &session.headers(), "").expect(401);
}

#[test]
fn rotated_token_ends_the_old_one_sessions_and_codes() {
    let site = Site::new();
    let (old, session, login) = (site.bearer(), site.log_in(), site.login_address());
    // Only the Unix socket does it.
    site.ask("POST", "/system/token/rotate", &[], "").expect(403);
    assert_eq!(site.bearer(), old);
    let rotated = site.ok(&["token", "rotate", "--json"]).json();
    assert_eq!(rotated["token_file"], json!(site.place.state().join("api.token")));
    assert_ne!(site.bearer(), old);
    site.get("/tasks").expect(200);
    ask(&site.address, "GET", "/tasks", &[("authorization", &old)], "").expect(401);
    site.ask("GET", "/tasks", &session.headers(), "").expect(401);
    site.open(&login).expect(403);
    assert_eq!(mode(&site.place.state().join("api.token")), 0o600);
    let events = site.get("/events?after=0&limit=1000").json().to_string();
    assert!(events.contains("token.rotate") && events.contains("\"who\":\"socket\""), "{events}");
    for secret in [&old, &site.bearer()] {
        assert!(!events.contains(secret.trim_start_matches("Bearer ")));
    }
}

/// Shorter than the pause between signs of lifecycle on a stream, so that a stream that goes on is noticed.
const STREAM_TIMEOUT: Duration = Duration::from_secs(12);

/// Begins a stream, and returns when its first bytes are there.
fn begin_stream(site: &Site, path: &str, headers: &[(&str, &str)]) -> TcpStream {
    let mut stream = TcpStream::connect(&site.address).unwrap();
    stream.set_read_timeout(Some(STREAM_TIMEOUT)).unwrap();
    let named = headers.iter().any(|(name, _)| *name == "host");
    let host = if named { String::new() } else { format!("host: {}\r\n", site.address) };
    let more: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head =
        format!("GET {path} HTTP/1.1\r\n{host}{more}accept: text/event-stream\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut first = [0; 12];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200", "{path}");
    stream
}

/// Every stream of the API and the pages, begun with these headers. One run goes on meanwhile.
fn begin_streams(site: &Site, headers: &[(&str, &str)]) -> Vec<(String, TcpStream)> {
    let run = wait_for("the run", || {
        let runs = site.get("/runs").json();
        Some(runs["runs"][0]["run"].as_str()?.to_owned())
    });
    let paths = [
        "/events".to_owned(),
        "/ui/live".to_owned(),
        format!("/runs/{run}/log?follow=true"),
        format!("/ui/runs/{run}/stream"),
    ];
    paths.into_iter().map(|path| (path.clone(), begin_stream(site, &path, headers))).collect()
}

/// Reads each stream to its end.
#[track_caller]
fn assert_ended(streams: Vec<(String, TcpStream)>) {
    for (path, mut stream) in streams {
        let ended = stream.read_to_end(&mut Vec::new());
        assert!(ended.is_ok(), "{path} goes on: {ended:?}");
    }
}

#[test]
fn streams_end_with_the_session_or_the_token_that_began_them() {
    let site = Site::new();
    site.add("echo begun; until [ -e go ]; do sleep 0.1; done");
    let (left, rotated) = (site.log_in(), site.log_in());
    let of_left = begin_streams(&site, &left.headers());
    let of_rotated = begin_streams(&site, &rotated.headers());
    let bearer = site.bearer();
    let of_token = begin_streams(&site, &[("authorization", &bearer)]);
    let page = site.ask("GET", "/ui", &left.headers(), "").expect(200).body;
    let token = page.split("name=\"token\" value=\"").nth(1).unwrap().split('"').next().unwrap();
    site.ask("POST", "/ui/logout", &left.form_headers(), &format!("token={token}")).expect(303);
    assert_ended(of_left);
    // Those of other credentials go on.
    for (path, stream) in of_rotated.iter().chain(&of_token) {
        stream.set_nonblocking(true).unwrap();
        let mut rest = [0; 64 << 10];
        while let Ok(read) = (&*stream).read(&mut rest) {
            assert_ne!(read, 0, "{path} has ended");
        }
        stream.set_nonblocking(false).unwrap();
    }
    let waiting = begin_request(&site, "/events?after=999999&wait=50", &bearer);
    site.ok(&["token", "rotate"]);
    assert_ended(of_rotated);
    assert_ended(of_token);
    let mut answer = String::new();
    (&waiting).read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    fs::write(site.place.work().join("go"), "").unwrap();
}

/// Sends a request and does not wait for its answer.
fn begin_request(site: &Site, path: &str, bearer: &str) -> TcpStream {
    let mut stream = TcpStream::connect(&site.address).unwrap();
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: {}\r\nauthorization: {bearer}\r\nconnection: close\r\n\r\n",
        site.address
    );
    stream.write_all(head.as_bytes()).unwrap();
    site.get("/tasks").expect(200);
    stream
}

/// A browser resolves the dashboard's name to 127.0.0.1 and to ::1.
#[test]
fn no_other_program_takes_the_daemons_port_at_the_other_loopback_address() {
    let site = Site::new();
    let port: u16 = port(&site).parse().unwrap();
    // A machine may have no IPv6.
    let Ok(other) = TcpListener::bind("[::1]:0") else { return };
    for address in ["[::1]", "[::]", "0.0.0.0", "127.0.0.1"] {
        let taken = TcpListener::bind(format!("{address}:{port}"));
        assert!(taken.is_err(), "{address}");
    }
    ask(&format!("[::1]:{port}"), "GET", "/health", &[], "").expect(200);
    // A daemon whose name another program would answer for does not start.
    let taken = other.local_addr().unwrap();
    let place =
        Place::new().settings(SETTINGS).env("RINGFENCE_LISTEN", format!("127.0.0.1:{}", taken.port()));
    let refused = place.run(&["start"]);
    assert_eq!(refused.code(), 125, "{refused:?}");
    assert!(
        refused.stderr.contains(&taken.to_string()) && refused.stderr.contains("choose another"),
        "{refused:?}"
    );
}

/// A run whose page the user has visited under 127.0.0.1 knows every cookie of that name, and has the owner's uid.
#[test]
fn run_with_a_stolen_cookie_does_not_command_the_daemon() {
    let site = Site::new();
    let session = site.log_in();
    let policy = open_policy(&site.place);
    let port = port(&site);
    for host in ["127.0.0.1", "localhost", "[::1]", "guess.localhost", "0.0.0.0"] {
        let script = format!(
            "unset http_proxy HTTP_PROXY all_proxy ALL_PROXY; curl -s -m 20 --noproxy '*' -w ' %{{http_code}}' \
             -H 'cookie: {}' -H 'host: {host}:{port}' -H 'origin: http://{host}:{port}' http://127.0.0.1:{port}/tasks",
            session.cookie
        );
        let ran = site.place.run(&["exec", "--policy", &policy, "--", "sh", "-c", &script]);
        assert!(ran.stdout.ends_with(" 401"), "{host}: {ran:?}");
    }
    site.ask("GET", "/tasks", &session.headers(), "").expect(200);
}

/// Another name of 127.0.0.1, as /etc/hosts has for the machine: runs that serve pages there would be sent the session.
#[test]
fn no_session_is_opened_under_another_name_of_loopback() {
    let site = Site::new();
    for name in ["box", "box.example"] {
        let host = format!("{name}:{}", port(&site));
        let page = ask(&site.address, "GET", "/ui/login", &[("host", &host)], "").expect(200);
        assert!(page.body.contains("Other programs of the daemon") && page.body.contains("ringfence open"));
        let login = site.login_address();
        let answer = ask(&site.address, "GET", &login.path, &[("host", &host)], "").expect(303);
        assert_eq!(answer.header("location"), Some(&*format!("http://{}{}", login.host, login.path)));
        // A redirect gives the browser a name that is no session.
        let cookie = answer.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
        site.ask("GET", "/tasks", &[("host", &host), ("cookie", &cookie)], "").expect(401);
        site.open(&login).expect(303);
        site.ask("GET", "/tasks", &[("host", &host), ("cookie", &cookie)], "").expect(401);
    }
    let usual = site.get_anonymously("/ui/login").expect(200);
    assert!(!usual.body.contains("Other programs of the daemon"));
}

#[test]
fn two_daemons_have_two_tokens() {
    let (one, other) = (Site::new(), Site::new());
    assert_ne!(one.bearer(), other.bearer());
    one.ask("GET", "/tasks", &[("authorization", &other.bearer())], "").expect(401);
    one.ask("GET", "/tasks", &other.log_in().headers(), "").expect(401);
    one.open(&other.login_address()).expect(403);
    let second = one.place.run(&["serve"]);
    assert!(second.code() == 125 && second.stderr.contains("runs already"), "{second:?}");
    one.get("/tasks").expect(200);
}

#[test]
fn login_address_is_not_written_to_the_log_of_a_supervisor() {
    let place = Place::new().settings(SETTINGS).env("RINGFENCE_LISTEN", "127.0.0.1:0");
    let child = place.spawn(&["serve"]);
    wait_for("the daemon", || (place.run(&["status"]).code() == 0).then_some(()));
    place.run(&["stop"]).expect_code(0);
    let said = Ran::from(child.wait_with_output().unwrap());
    assert!(said.stderr.contains("Dashboard: http://") && !said.stderr.contains("code="), "{said:?}");
}

#[test]
fn switch_is_warned_about_at_every_start() {
    let site = Site::of(Place::new().settings(SETTINGS).env(SWITCH, "1"));
    for _ in 0..2 {
        let restarted = site.ok(&["restart"]);
        assert!(restarted.stderr.contains(SWITCH), "{restarted:?}");
    }
    for quiet in ["false", ""] {
        let site = Site::of(Place::new().settings(SETTINGS).env(SWITCH, quiet));
        assert!(!site.ok(&["restart"]).stderr.contains(SWITCH));
    }
}

#[test]
fn commands_that_need_the_daemon_say_how_to_start_it() {
    let place = Place::new().settings(SETTINGS);
    for args in [&["open"][..], &["open", "--print"], &["open", "--json"], &["process", "start", "worker-1"]]
    {
        let ran = place.run(args).expect_code(125);
        assert!(ran.stderr.contains("does not run") && ran.stderr.contains("ringfence start"), "{ran:?}");
    }
    let status = place.run(&["status"]).expect_code(3);
    assert!(status.stdout.contains("does not run (`ringfence start`)"), "{status:?}");
}

/// Where a right key were answered otherwise than a wrong one, it could be found by trying there.
#[test]
fn open_routes_are_counted_for_everybody_and_look_at_no_key() {
    const LIMIT: usize = 30;
    let settings = format!(r#"{{"sandbox": {{"mode": "native"}}, "server": {{"rate_limit": {LIMIT}}}}}"#);
    for path in ["/openapi.json", "/ui/login", "/ui/login?x=1", "/ui/login?code=a&code=b"] {
        let site = Site::of(Place::new().settings(&settings).env("RINGFENCE_API_KEYS", "short"));
        let answers = |headers: &[(&str, &str)]| ask(&site.address, "GET", path, headers, "").status;
        let refused = (0..2 * LIMIT).filter(|_| answers(&[]) == 429).count();
        assert!(refused > 0, "{path} is not counted");
        let wrong = (0..5).filter(|_| answers(&[("x-api-key", "wrong")]) == 429).count();
        let right = (0..5).filter(|_| answers(&[("x-api-key", "short")]) == 429).count();
        assert!(wrong > 0 && right > 0, "{path}: {wrong} wrong, {right} right");
    }
}

/// The daemon asks for the body after it has let the request in.
#[test]
fn token_that_is_revoked_while_a_request_comes_commands_nothing() {
    let site = Site::new();
    let session = site.log_in();
    let task = json!({"prompt": "x", "agent": "demo", "directory": site.place.work()}).to_string();
    let (bearer, length) = (site.bearer(), task.len());
    let [host, cookie, origin, _] = session.form_headers();
    let heads = [
        format!("host: {}\r\nauthorization: {bearer}\r\n", site.address),
        format!("host: {}\r\ncookie: {}\r\norigin: {}\r\n", host.1, cookie.1, origin.1),
    ];
    let post = |head: &str| {
        let mut stream = TcpStream::connect(&site.address).unwrap();
        let head = format!(
            "POST /tasks HTTP/1.1\r\n{head}content-type: application/json\r\ncontent-length: {length}\r\n\
             connection: close\r\nexpect: 100-continue\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = [0; 25];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 100 Continue\r\n\r\n");
        stream
    };
    let finish = |mut stream: TcpStream| {
        stream.write_all(task.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    for head in &heads {
        let answer = finish(post(head));
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    }
    let streams = heads.map(|head| post(&head));
    site.ok(&["token", "rotate"]);
    for stream in streams {
        let answer = finish(stream);
        assert!(answer.starts_with("HTTP/1.1 401") && answer.contains("authentication_required"), "{answer}");
    }
    let tasks = site.get("/tasks").expect(200).json();
    assert_eq!(tasks["tasks"].as_array().unwrap().len(), 2, "{tasks}");
}

/// A listener at all addresses of both families, which also announces itself as a daemon and keeps what it is sent.
const LISTEN: &str = r#"
import os, select, socket, sys
four = socket.create_server(("0.0.0.0", 0))
port = four.getsockname()[1]
servers = [four]
try: servers.append(socket.create_server(("::", port), family=socket.AF_INET6))
except OSError: pass
name = socket.socket(socket.AF_UNIX)
name.bind(f"\0ringfence-daemon:{port}:0")
name.listen(100)
if sys.argv[1]:
    open("port.new", "w").write(str(port))
    os.rename("port.new", "port")
else:
    print(port, flush=True)
while True:
    for server in select.select(servers, [], [])[0]:
        c, _ = server.accept()
        c.settimeout(20)
        sent = c.recv(65536).decode()
        if sent: print("SENT", sent, flush=True)
        c.close()
"#;

/// Names and addresses of this machine. Any program can listen there while the daemon is stopped.
const OWN_HOSTS: [&str; 8] = [
    "127.0.0.1",
    "127.8.8.8",
    "localhost",
    "[::1]",
    "[::ffff:127.0.0.1]",
    "0.0.0.0",
    "[::]",
    "[::ffff:0.0.0.0]",
];

/// An address of this machine besides loopback.
fn own_address() -> Option<String> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("192.0.2.7:9").ok()?;
    Some(socket.local_addr().unwrap().ip().to_string())
}

/// Runs a command with a credential at a port of every address of this machine.
#[track_caller]
fn assert_no_credential_is_sent(port: u16) {
    let hosts = OWN_HOSTS.into_iter().map(str::to_owned).chain(own_address());
    for host in hosts {
        for variable in ["RINGFENCE_TOKEN", "RINGFENCE_API_KEY"] {
            let place = Place::new().env("RINGFENCE_URL", format!("http://{host}:{port}"));
            let ran = place.env(variable, "secret-token").run(&["task", "list"]).expect_code(125);
            // A machine may have no IPv6.
            let refused =
                ran.stderr.contains("no daemon of yours") && ran.stderr.contains("unset RINGFENCE_URL");
            assert!(
                refused || host.starts_with("[::") && ran.stderr.contains("does not answer"),
                "{host}: {ran:?}"
            );
        }
    }
}

#[test]
fn token_is_sent_to_no_other_program_of_this_machine() {
    // One's own program, which has announced nothing, or does not accept.
    let own = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = own.local_addr().unwrap().port();
    let far = Place::new().env("RINGFENCE_URL", format!("http://127.0.0.1:{port}"));
    let ran = far.env("RINGFENCE_TOKEN", "secret-token").run(&["task", "list"]).expect_code(125);
    assert!(ran.stderr.contains("no daemon of yours") && ran.stderr.contains("unix://"), "{ran:?}");
    let mut sent = String::new();
    own.accept().unwrap().0.read_to_string(&mut sent).unwrap();
    assert_eq!(sent, "");
    if !is_root() {
        return;
    }
    let mut stranger = spawn_as(STRANGER, LISTEN, "");
    let mut lines = BufReader::new(stranger.stdout.take().unwrap()).lines();
    let port = lines.next().unwrap().unwrap().parse().unwrap();
    // Even where a daemon of one's own has announced the port.
    let address = SocketAddr::from_abstract_name(format!("ringfence-daemon:{port}:1"));
    let _announcement = UnixListener::bind_addr(&address.unwrap()).unwrap();
    assert_no_credential_is_sent(port);
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    assert_eq!(lines.map(Result::unwrap).collect::<String>(), "", "the token was sent");
}

/// A run with an open network has the owner's uid, and can listen and announce itself.
#[test]
fn token_is_sent_to_no_run() {
    let place = Place::new().settings(SETTINGS).env("PATH", "/usr/bin:/bin");
    let policy = open_policy(&place);
    for more in [["--policy", &policy], ["--mode", "host"]] {
        let args =
            [&["exec", "--timeout", "5m"][..], &more, &["--", "python3", "-c", LISTEN, "file"]].concat();
        let run = place.spawn(&args);
        let file = place.work().join("port");
        let port = wait_for("the run", || fs::read_to_string(&file).ok()).parse().unwrap();
        fs::remove_file(&file).unwrap();
        assert_no_credential_is_sent(port);
        crate::support::signal(run.id(), "-TERM");
        let ran = Ran::from(run.wait_with_output().unwrap());
        assert!(!ran.stdout.contains("SENT"), "{more:?}: {ran:?}");
    }
}

/// A listener on a Unix socket, which keeps what it is sent. With a second argument, another process than the one that listens accepts too.
const LISTEN_ON_SOCKET: &str = r#"
import os, socket, sys
path = sys.argv[1]
server = socket.socket(socket.AF_UNIX)
server.bind(path + ".new")
os.chmod(path + ".new", 0o666)
server.listen(100)
os.rename(path + ".new", path)
if len(sys.argv) > 2: os.fork()
print("listens", flush=True)
while True:
    c, _ = server.accept()
    c.settimeout(20)
    sent = c.recv(65536).decode()
    if sent: print("SENT", sent, flush=True)
    c.close()
"#;

/// Runs a command with a credential at a Unix socket.
#[track_caller]
fn assert_no_credential_is_sent_to(socket: &Path) {
    for variable in ["RINGFENCE_TOKEN", "RINGFENCE_API_KEY"] {
        let place = Place::new().env("RINGFENCE_URL", format!("unix://{}", socket.display()));
        let ran = place.env(variable, "secret-token").run(&["task", "list"]).expect_code(125);
        assert!(ran.stderr.contains("no daemon of yours") && ran.stderr.contains("unset"), "{ran:?}");
    }
}

#[test]
fn token_is_sent_to_no_unix_socket_of_another_user() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let socket = directory.path().join("far.sock");
    let mut stranger = spawn_as(STRANGER, LISTEN_ON_SOCKET, &socket.display().to_string());
    wait_for("the listener", || socket.exists().then_some(()));
    assert_no_credential_is_sent_to(&socket);
    let mut sent = [0; 4096];
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    let length = stranger.stdout.take().unwrap().read(&mut sent).unwrap();
    let said = String::from_utf8_lossy(&sent[..length]);
    assert!(said.starts_with("listens") && !said.contains("SENT"), "{said}");
}

#[test]
fn token_is_sent_to_no_unix_socket_of_a_run() {
    let place = Place::new().settings(SETTINGS).env("PATH", "/usr/bin:/bin");
    for mode in ["native", "host"] {
        let socket = place.work().join(mode);
        let args = [
            "exec",
            "--timeout",
            "5m",
            "--mode",
            mode,
            "--",
            "python3",
            "-c",
            LISTEN_ON_SOCKET,
            mode,
            "fork",
        ];
        let run = place.spawn(&args);
        wait_for("the run", || socket.exists().then_some(()));
        assert_no_credential_is_sent_to(&socket);
        crate::support::signal(run.id(), "-TERM");
        let ran = Ran::from(run.wait_with_output().unwrap());
        assert!(ran.stdout.contains("listens") && !ran.stdout.contains("SENT"), "{mode}: {ran:?}");
    }
}

/// The own daemon gets the token at every address, as root and as a normal user, also one that runs in the foreground.
#[test]
fn token_is_sent_to_the_own_daemon() {
    let users = if is_root() { vec![None, Some(65534)] } else { vec![None] };
    for user in users {
        let place = Place::new().settings(SETTINGS).env("API_KEYS", "key-of-a-remote-client");
        let place = user.into_iter().fold(place, Place::of_user);
        let site = Site::listening(place, "0.0.0.0:0");
        let token = site.bearer().trim_start_matches("Bearer ").to_owned();
        for host in ["127.0.0.1", "localhost", "0.0.0.0", "[::ffff:127.0.0.1]"]
            .map(str::to_owned)
            .into_iter()
            .chain(own_address())
        {
            let url = format!("http://{host}:{}", port(&site));
            let far = user.into_iter().fold(Place::new().env("RINGFENCE_URL", url), Place::of_user);
            far.env("RINGFENCE_TOKEN", token.clone()).run(&["task", "list"]).expect_code(0);
        }
        let url = format!("unix://{}", site.place.state().join("api.sock").display());
        let far = site
            .place
            .command(&["task", "list"])
            .env("RINGFENCE_URL", url)
            .env("RINGFENCE_TOKEN", &token)
            .output();
        Ran::from(far.unwrap()).expect_code(0);
    }
}

/// Fills the queue of a socket with the name of an announcement.
const FULL_ANNOUNCEMENT: &str = r#"
import socket, sys, time
name = f"\0ringfence-daemon:{sys.argv[1]}:0"
s = socket.socket(socket.AF_UNIX)
s.bind(name)
s.listen(0)
waiting = []
try:
    while True:
        c = socket.socket(socket.AF_UNIX)
        c.setblocking(False)
        c.connect(name)
        waiting.append(c)
except BlockingIOError:
    print("full", flush=True)
time.sleep(600)
"#;

/// Binds thousands of names of announcements.
const MANY_ANNOUNCEMENTS: &str = r#"
import resource, socket, sys, time
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
names = []
for number in range(min(hard - 20, 4000)):
    s = socket.socket(socket.AF_UNIX)
    s.bind(f"\0ringfence-daemon:{sys.argv[1]}:{number}")
    s.listen(1)
    names.append(s)
print(len(names), flush=True)
time.sleep(600)
"#;

/// Serves `local` to every request, and returns its port on loopback.
fn local_server() -> String {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port().to_string();
    std::thread::spawn(move || {
        for stream in server.incoming() {
            let _ = stream
                .unwrap()
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nlocal");
        }
    });
    port
}

#[test]
fn full_announcement_of_another_user_refuses_no_port() {
    if !is_root() {
        return;
    }
    let place = Place::new().settings(SETTINGS).of_user(65533);
    let port = local_server();
    let mut stranger = spawn_as(STRANGER, FULL_ANNOUNCEMENT, &port);
    let mut said = String::new();
    BufReader::new(stranger.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "full\n");
    let script = format!("curl -s -m 20 --noproxy '*' http://127.0.0.1:{port}/");
    let ran = place.run(&["exec", "--allow-local", &port, "--", "sh", "-c", &script]);
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    assert_eq!((ran.code(), ran.stdout.as_str()), (0, "local"), "{ran:?}");
}

/// A run with an open network shares the abstract names of the host.
#[test]
fn announcement_of_a_run_refuses_no_port() {
    let place = Place::new().settings(SETTINGS).env("PATH", "/usr/bin:/bin");
    let policy = open_policy(&place);
    let port = local_server();
    let args =
        ["exec", "--timeout", "5m", "--policy", &policy, "--", "python3", "-c", FULL_ANNOUNCEMENT, &port];
    let mut run = place.spawn(&args);
    let mut said = String::new();
    BufReader::new(run.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "full\n");
    let script = format!("curl -s -m 20 --noproxy '*' http://127.0.0.1:{port}/");
    let dial =
        || Place::new().settings(SETTINGS).run(&["exec", "--allow-local", &port, "--", "sh", "-c", &script]);
    let beside_run = dial();
    // A daemon's own announcement counts all the same.
    let name = SocketAddr::from_abstract_name(format!("ringfence-daemon:{port}:1")).unwrap();
    let announcement = UnixListener::bind_addr(&name).unwrap();
    let beside_daemon = dial();
    drop(announcement);
    crate::support::signal(run.id(), "-TERM");
    run.wait().unwrap();
    assert_eq!((beside_run.code(), beside_run.stdout.as_str()), (0, "local"), "{beside_run:?}");
    assert!(!beside_daemon.stdout.contains("local"), "{beside_daemon:?}");
}

/// Looking at them would keep the broker of another run busy past its end.
#[test]
fn many_announcements_of_a_run_hold_up_no_other_run() {
    let place = Place::new().settings(SETTINGS).env("PATH", "/usr/bin:/bin");
    let policy = open_policy(&place);
    let port = local_server();
    let args =
        ["exec", "--timeout", "5m", "--policy", &policy, "--", "python3", "-c", MANY_ANNOUNCEMENTS, &port];
    let mut run = place.spawn(&args);
    let mut said = String::new();
    BufReader::new(run.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert!(said.trim().parse::<u32>().is_ok_and(|names| names >= 1000), "{said}");
    let script = format!("curl -s -m 10 --noproxy '*' http://127.0.0.1:{port}/");
    let ran =
        Place::new().settings(SETTINGS).run(&["exec", "--allow-local", &port, "--", "sh", "-c", &script]);
    crate::support::signal(run.id(), "-TERM");
    run.wait().unwrap();
    assert_eq!((ran.code(), ran.stdout.as_str()), (0, "local"), "{ran:?}");
}

/// A proxy that lets users in by itself adds the key to whatever a browser sends.
#[test]
fn page_of_another_site_does_nothing_with_a_key_that_a_proxy_adds() {
    let place = Place::new().settings(SETTINGS).env("API_KEYS", "the-key").env("API_SECRET", "the-token");
    let site = Site::of(place);
    let task = json!({ "prompt": "x", "agent": "demo", "directory": site.place.work() }).to_string();
    let owner = site.bearer();
    let credentials =
        [("x-api-key", "the-key"), ("authorization", "Bearer the-token"), ("authorization", owner.as_str())];
    let foreign: [&[(&str, &str)]; 4] = [
        &[("origin", "https://evil.example"), ("sec-fetch-site", "cross-site")],
        &[("origin", "https://evil.example")],
        &[("origin", "null")],
        &[("sec-fetch-site", "cross-site")],
    ];
    let changes = ["/tasks", "/system/processes/stop-all", "/system/login-codes", "/tasks/1/retry"];
    for credential in credentials {
        for (headers, path) in foreign.iter().flat_map(|headers| changes.map(|path| (headers, path))) {
            for kind in ["application/json", "application/x-www-form-urlencoded"] {
                let headers = [&[credential, ("content-type", kind)][..], headers].concat();
                let answer = ask(&site.address, "POST", path, &headers, &task).expect(403);
                assert!(answer.body.contains("cross_site"), "{path}: {answer:?}");
            }
        }
        // Programs name no origin, and a page of the proxy's own name its own.
        let own = [
            credential,
            ("host", "box.example"),
            ("origin", "https://box.example"),
            ("sec-fetch-site", "same-origin"),
        ];
        ask(&site.address, "POST", "/system/login-codes", &own, "").expect(200);
        ask(&site.address, "POST", "/system/login-codes", &[credential], "").expect(200);
    }
    assert_no_task(&site);
}

#[test]
fn settings_of_a_state_directory_that_others_can_write_are_not_read() {
    let place = Place::new().settings(SETTINGS);
    let state = place.state();
    let exec = || place.run(&["exec", "--", "true"]);
    exec().expect_code(0);
    for open in [0o775, 0o757, 0o777] {
        fs::set_permissions(&state, fs::Permissions::from_mode(open)).unwrap();
        let ran = exec().expect_code(125);
        assert!(
            ran.stderr.contains("can be written by other users") && ran.stderr.contains("chmod go-w"),
            "{ran:?}"
        );
    }
    // One that others can read becomes private, before a daemon starts.
    fs::set_permissions(&state, fs::Permissions::from_mode(0o755)).unwrap();
    exec().expect_code(0);
    assert_eq!(mode(&state), 0o700);
    if is_root() {
        std::os::unix::fs::chown(&state, Some(65534), None).unwrap();
        let ran = exec().expect_code(125);
        assert!(
            ran.stderr.contains("belongs to user 65534") && ran.stderr.contains("RINGFENCE_HOME"),
            "{ran:?}"
        );
    }
}

/// As root with another user's home, as `su` without `-` leaves it.
#[test]
fn links_in_a_state_directory_of_another_user_are_not_followed() {
    if !is_root() {
        return;
    }
    let place = Place::new().settings(SETTINGS);
    let (state, victim) = (place.state(), tempfile::NamedTempFile::new().unwrap());
    fs::create_dir_all(state.join("logs")).unwrap();
    fs::remove_file(state.join("settings.json")).unwrap();
    symlink(victim.path(), state.join("logs/daemon.err")).unwrap();
    symlink(victim.path(), state.join("settings.json")).unwrap();
    std::os::unix::fs::chown(&state, Some(65534), None).unwrap();
    for args in [&["start"][..], &["config", "set", "sandbox.mode", "native"], &["task", "list"]] {
        let ran = place.run(args).expect_code(125);
        assert!(ran.stderr.contains("belongs to user 65534"), "{ran:?}");
    }
    assert_eq!(fs::read_to_string(victim.path()).unwrap(), "");
}

/// Gives others access to a directory by its access control list, where the file system has such.
fn check_access_control_lists(above: &Path, list: impl Fn(&Path) -> Ran) {
    const NAME: &str = "system.posix_acl_access";
    let own = rustix::process::geteuid().as_raw();
    let (user, group) = (2_u16, 8_u16);
    // Tag and id of the entry, its permissions, the mask, and what comes of it.
    for (tag, id, permissions, mask, code) in [
        (user, 65533, 7, 7, 125),
        (group, 65533, 7, 7, 125),
        (user, 65533, 5, 7, 0),
        (user, 65533, 7, 5, 0),
        (user, own, 7, 7, 0),
    ] {
        let mut value = vec![2, 0, 0, 0];
        let unnamed = u32::MAX;
        for (tag, permissions, id) in
            [(1, 7, unnamed), (tag, permissions, id), (4, 5, unnamed), (16, mask, unnamed), (32, 5, unnamed)]
        {
            value.extend([u16::to_le_bytes(tag), u16::to_le_bytes(permissions)].concat());
            value.extend(u32::to_le_bytes(id));
        }
        // The group's own entry stands before named groups.
        if tag == group {
            let (named, owning) = (value[12..20].to_vec(), value[20..28].to_vec());
            value.splice(12..28, [owning, named].concat());
        }
        if rustix::fs::setxattr(above, NAME, &value, rustix::fs::XattrFlags::empty()).is_err() {
            return;
        }
        let ran = list(&above.join("state")).expect_code(code);
        assert_eq!(
            ran.stderr.contains("other users can write"),
            code != 0,
            "{tag} {permissions} {mask}: {ran:?}"
        );
    }
    rustix::fs::removexattr(above, NAME).unwrap();
    fs::set_permissions(above, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn state_directory_that_others_could_replace_is_refused() {
    let place = Place::new();
    let above = place.home().join("above");
    fs::create_dir_all(above.join("state")).unwrap();
    fs::set_permissions(above.join("state"), fs::Permissions::from_mode(0o700)).unwrap();
    let link = place.home().join("link");
    symlink(&above, &link).unwrap();
    let list = |state: &Path| {
        place.command(&["task", "list"]).env("RINGFENCE_HOME", state).output().map(Ran::from).unwrap()
    };
    for (mode, code) in [(0o755, 0), (0o777, 125), (0o757, 125), (0o1777, 0)] {
        fs::set_permissions(&above, fs::Permissions::from_mode(mode)).unwrap();
        for state in [above.join("state"), link.join("state"), above.join(format!("new{mode:o}"))] {
            let ran = list(&state).expect_code(code);
            assert_eq!(ran.stderr.contains("chmod go-w"), code != 0, "{mode:o}: {ran:?}");
        }
    }
    fs::set_permissions(&above, fs::Permissions::from_mode(0o755)).unwrap();
    check_access_control_lists(&above, list);
    if is_root() {
        std::os::unix::fs::lchown(&link, Some(65534), None).unwrap();
        list(&above.join("state")).expect_code(0);
        assert!(list(&link.join("state")).expect_code(125).stderr.contains("belongs to user 65534"));
        std::os::unix::fs::chown(&above, Some(65534), None).unwrap();
        assert!(list(&above.join("state")).expect_code(125).stderr.contains("belongs to user 65534"));
    }
}

/// Services put their token into the address.
#[test]
fn addresses_with_secrets_are_shown_with_their_hosts_alone() {
    let place = Place::new()
        .settings(r#"{"queue": {"webhook": "https://hooks.example/T/all?token=canary"}, "sandbox": {"mode": "native"}}"#);
    let site = Site::of(place);
    site.ok(&["process", "stop", "dispatcher"]);
    let add =
        ["task", "add", "--agent", "demo", "--webhook", "https://127.0.0.1:1/x?token=canary", "x", "--json"];
    let id = site.ok(&add).json()[0]["task"].as_str().unwrap().to_owned();
    let commands = [
        &["task", "show", &id][..],
        &["task", "show", &id, "--json"],
        &["task", "list", "--json"],
        &["task", "cancel", &id, "--json"],
        &["task", "retry", &id],
        &["config", "list"],
        &["config", "list", "--json"],
        &["config", "explain", "queue.webhook"],
        &["config", "explain", "queue.webhook", "--json"],
        &["config", "get", "queue.webhook"],
        &["config", "get", "queue"],
    ];
    for command in commands {
        let ran = site.place.run(command);
        assert!(!ran.stdout.contains("canary") && !ran.stderr.contains("canary"), "{command:?}: {ran:?}");
    }
    for path in [&format!("/tasks/{id}"), "/tasks", "/config"] {
        let answer = site.get(path).expect(200).body;
        assert!(!answer.contains("canary") && answer.contains("https://"), "{path}: {answer}");
    }
}
