//! What was found out about the agent CLIs the hard way, each as a test. Those that every run has to get right are in
//! `real`: an open standard input, processes in sessions of their own, servers that refuse or fall silent, and results
//! that say success and mean an error.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use scripted_model::Step;

use crate::real::{Cli, Stage, serve};

fn done() -> Step {
    Step::Text { text: "done".into() }
}

/// claude ends with code 0 and says nothing when it cannot write to its temporary directory.
#[test]
fn silence_with_code_0_is_a_failure() {
    let server = serve(vec![done()]);
    let stage = Stage::new(Cli::Claude, &server.url());
    let ran = stage.run(&["--env", "TMPDIR=/proc/no-such-directory"], "p").expect_code(1);
    let failure = ran.result()["failure"].clone();
    assert_eq!(failure["class"], "agent_error");
    assert!(failure["remedy"].as_str().unwrap().contains("TMPDIR"), "{failure}");
}

/// Whatever TMPDIR is outside, the run has one that works, and that goes with it.
#[test]
fn a_broken_temporary_directory_outside_does_not_matter() {
    let server = serve(vec![done()]);
    let mut stage = Stage::new(Cli::Claude, &server.url());
    stage.place = stage.place.env("TMPDIR", "/proc/no-such-directory");
    stage.run(&[], "p").expect_code(0);
}

/// claude can reach its model over a Unix socket, with no network at all.
#[test]
fn claude_works_over_a_unix_socket() {
    let server = serve(vec![Step::Write { path: "a.txt".into(), content: "x".into() }, done()]);
    let stage = Stage::new(Cli::Claude, "http://model.invalid");
    let socket = stage.place.home().join("model.sock");
    relay(&socket, server.url().trim_start_matches("http://").to_owned());
    let variable = format!("ANTHROPIC_UNIX_SOCKET={}", socket.display());
    let result = stage.run(&["--env", &variable], "p").expect_code(0).result();
    assert_eq!(stage.place.read("a.txt"), "x");
    assert_eq!(result["usage"]["output_tokens"], 40, "the ends of the streams got through: {result}");
}

fn relay(socket: &Path, target: String) {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = std::net::TcpStream::connect(&target).unwrap();
            let (mut to, mut from) = (server.try_clone().unwrap(), server);
            let (mut read, mut write): (UnixStream, UnixStream) = (client.try_clone().unwrap(), client);
            std::thread::spawn(move || std::io::copy(&mut read, &mut to));
            std::thread::spawn(move || std::io::copy(&mut from, &mut write));
        }
    });
}

/// Nothing is sent to anyone but the model's server: a proxy that everything else would go through sees nothing.
fn speaks_only_to_its_server(cli: Cli) {
    let server = serve(vec![done()]);
    let mut stage = Stage::new(cli, &server.url());
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", proxy.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    std::thread::spawn(move || {
        for mut client in proxy.incoming().flatten() {
            counter.fetch_add(1, Ordering::SeqCst);
            let mut request = [0; 1024];
            let _ = client.read(&mut request);
            let _ = client.write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n");
        }
    });
    for name in ["HTTPS_PROXY", "https_proxy"] {
        stage.place = stage.place.env(name, &address);
    }
    stage.place = stage.place.env("NO_PROXY", "127.0.0.1");
    stage.run(&[], "p").expect_code(0);
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}

#[test]
fn claude_speaks_only_to_its_server() {
    speaks_only_to_its_server(Cli::Claude);
}

#[test]
fn codex_speaks_only_to_its_server() {
    speaks_only_to_its_server(Cli::Codex);
}

/// The shell that codex gives the model does not see the key.
#[test]
fn codex_keeps_its_key_from_its_tools() {
    let server = serve(vec![Step::Shell { command: "env > env.txt".into() }, done()]);
    let stage = Stage::new(Cli::Codex, &server.url());
    stage.run(&[], "p").expect_code(0);
    let env = stage.place.read("env.txt");
    assert!(env.contains("PATH=") && !env.contains("sk-dummy"), "{env}");
}

/// The shell that claude gives the model does see it: that is a limit of handing keys over, and neither the log nor
/// the screen repeats it.
#[test]
fn a_key_that_claudes_tool_prints_is_not_repeated() {
    let server = serve(vec![Step::Shell { command: "echo key=$ANTHROPIC_API_KEY".into() }, done()]);
    let stage = Stage::new(Cli::Claude, &server.url());
    let ran = stage.run(&[], "p").expect_code(0);
    assert!(ran.stdout.contains("key=[REDACTED]") && !ran.stdout.contains("sk-ant-dummy"), "{}", ran.stdout);
}

/// Without its helper every tool call of codex fails, and codex calls the run a success.
#[test]
fn codex_without_its_helper_is_a_failure() {
    let server = serve(vec![Step::Shell { command: "echo x > x".into() }, done()]);
    let mut stage = Stage::new(Cli::Codex, &server.url());
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/node_modules/@openai");
    let whole =
        walk(&tools).into_iter().find(|path| path.ends_with("bin/codex")).expect("codex's own binary");
    let bin = stage.place.home().join("bin");
    fs::create_dir(&bin).unwrap();
    let alone = bin.join("codex");
    if fs::hard_link(&whole, &alone).is_err() {
        fs::copy(&whole, &alone).unwrap();
    }
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    stage.place = stage.place.env("PATH", path);
    let ran = stage.run(&[], "p").expect_code(125);
    assert_eq!(ran.result()["failure"]["class"], "cli_missing");
}

fn walk(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() {
            found.extend(walk(&path));
        } else {
            found.push(path);
        }
    }
    found
}
