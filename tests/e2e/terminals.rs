//! A person at a terminal: a shell, a conversation, a program that wants to know.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{BINARY, Place};

/// Runs a command line of the binary at a terminal, typing each line once the words before it were seen. Returns all
/// that was seen and the exit code.
fn at_terminal(place: &Place, command: &str, typed: &[(&str, &str)]) -> (String, i32) {
    at_terminal_after(place, command, typed, Duration::ZERO)
}

/// The same for somebody who takes this time before each line.
fn at_terminal_after(place: &Place, command: &str, typed: &[(&str, &str)], delay: Duration) -> (String, i32) {
    let mut child = Command::new("script")
        .args(["-qfec", command, "/dev/null"])
        .env_clear()
        .env("HOME", place.home())
        .env("PATH", std::env::var("PATH").unwrap())
        .env("TERM", "xterm")
        .env("SHELL", "/bin/sh")
        .current_dir(place.work())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut keyboard, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (mut seen, mut from) = (String::new(), 0);
    let mut bytes = [0; 4096];
    let mut read = |seen: &mut String| {
        let count = screen.read(&mut bytes).unwrap_or(0);
        seen.push_str(&String::from_utf8_lossy(&bytes[..count]));
        count
    };
    for (expected, line) in typed {
        while !seen[from..].contains(expected) {
            assert_ne!(read(&mut seen), 0, "it ended before `{expected}`: {seen}");
        }
        from += seen[from..].find(expected).unwrap_or(0) + expected.len();
        std::thread::sleep(delay);
        keyboard.write_all(line.as_bytes()).unwrap();
    }
    while read(&mut seen) > 0 {}
    drop(keyboard);
    (seen, child.wait().unwrap().code().unwrap_or(-1))
}

#[test]
fn a_shell_has_a_terminal_of_its_own_with_job_control() {
    let root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    let prompt = if root { "# " } else { "$ " };
    for mode in ["native", "host"] {
        let place = Place::new();
        let (seen, code) = at_terminal(
            &place,
            &format!("{BINARY} shell --mode {mode}"),
            &[(prompt, "tty; echo flags-$-; exit 7\n")],
        );
        assert!(seen.contains("/dev/pts/"), "{mode}: {seen}");
        // A shell whose terminal is not its own turns job control off, and says so.
        let flags = seen.lines().find_map(|line| line.trim().strip_prefix("flags-"));
        assert!(flags.is_some_and(|flags| flags.contains('m')), "{mode}: {seen}");
        assert_eq!(code, 7, "{mode}: {seen}");
    }
}

#[test]
fn the_terminal_is_as_it_was_afterwards() {
    let place = Place::new();
    let command = format!(
        "stty -a > before; {BINARY} exec -- true; {BINARY} exec -- sh -c 'stty raw -echo'; stty -a > after"
    );
    at_terminal(&place, &command, &[]);
    assert_eq!(place.read("before"), place.read("after"));
    let place = Place::new();
    // A shell that is just starting something else hears Ctrl-C only by a trap.
    let wait = "trap 'exit 0' INT; echo ready; while :; do sleep 0.05; done";
    std::fs::write(place.work().join("wait.sh"), wait).unwrap();
    let command = format!("stty -a > before; {BINARY} exec -- sh wait.sh; stty -a > after");
    at_terminal(&place, &command, &[("ready", "\x03")]);
    assert_eq!(place.read("before"), place.read("after"), "after Ctrl-C");
}

#[test]
fn a_window_that_changes_its_size_is_followed() {
    let place = Place::new();
    let wait = "stty size; until [ \"$(stty size)\" = '33 111' ]; do sleep 0.02; done; echo seen-$((1+1))";
    std::fs::write(place.work().join("wait.sh"), wait).unwrap();
    let command = format!(
        "stty rows 20 cols 60; (sleep 0.5; stty rows 33 cols 111 < /dev/tty) & {BINARY} exec -- sh wait.sh"
    );
    let (seen, code) = at_terminal(&place, &command, &[]);
    assert!(seen.contains("20 60") && seen.contains("seen-2"), "{seen}");
    assert_eq!(code, 0);
}

#[test]
fn programs_see_a_terminal_only_where_there_is_one() {
    let place = Place::new();
    let look = "sh -c 'test -t 0 && echo in; test -t 1 && echo out; true'";
    let (seen, _) = at_terminal(&place, &format!("{BINARY} exec -- {look}"), &[]);
    assert!(seen.contains("in") && seen.contains("out"), "{seen}");
    // With a pipe behind it, the program gets a pipe; what is typed still arrives.
    let (seen, _) = at_terminal(
        &place,
        &format!("{BINARY} exec -- sh -c 'test -t 0 || echo no-terminal; read line; echo got-$line' | cat"),
        &[("no-terminal", "words\n")],
    );
    assert!(seen.contains("got-words"), "{seen}");
}

#[test]
fn a_shell_needs_a_terminal_and_a_conversation_an_agent_that_talks() {
    let place = Place::new();
    let ran = place.run(&["shell"]).expect_code(125);
    assert!(
        ran.stderr.contains("needs a terminal") && ran.stderr.contains("ringfence exec"),
        "{}",
        ran.stderr
    );
    let ran = place.run(&["run", "--mode", "host", "--agent", "claude"]).expect_code(125);
    assert!(ran.stderr.contains("there is no prompt"), "{}", ran.stderr);
    let (seen, code) = at_terminal(&place, &format!("{BINARY} run --agent demo"), &[]);
    assert!(seen.contains("cannot be talked to") && code == 125, "{code}: {seen}");
}

#[test]
fn an_agent_can_be_talked_to() {
    let place = Place::new();
    let command =
        format!("{BINARY} run --agent command --command 'sh -c \"printf name?; read n; echo hello $n\"'");
    let (seen, code) = at_terminal(&place, &command, &[("name?", "you\n")]);
    assert!(seen.contains("hello you"), "{seen}");
    assert_eq!(code, 0);
    let record = place.run(&["runs", "show", "last", "--json"]).json();
    assert_eq!(record["record"]["mode"], "native");
    assert_eq!(record["result"]["status"], "success");
}

/// What `--ask` prints after a question.
const ASKED: &str = "[no in 60 s] ";

/// A run that prints a question of its own, then noise without end, and asks for two hosts meanwhile.
const NOISY: &str = "printf 'FAKE (o)nce? \\033[8m\\033[2J\\033[6n'; sleep 1
while :; do echo NOISE; sleep 0.01; done & noise=$!
for host in first second; do curl -s -o /dev/null --max-time 30 http://$host.test/; done
kill $noise; echo THE-END";

#[test]
fn question_is_not_covered_imitated_or_answered_by_the_run() {
    let place = Place::new();
    std::fs::write(place.work().join("noisy.sh"), NOISY).unwrap();
    let connect_to = "RINGFENCE_CONNECT_TO=second.test:80=127.0.0.1:9";
    let command = format!("{connect_to} {BINARY} exec --ask --mode native -- sh noisy.sh");
    let typed = [("FAKE", "a\n"), (ASKED, "n\n"), (ASKED, "o\n")];
    let (seen, _) = at_terminal_after(&place, &command, &typed, Duration::from_millis(400));
    for (host, outcome) in [("first", "is denied"), ("second", "is allowed for this run")] {
        let question = format!("the run wants to reach {host}.test:80.");
        let (_, after) = seen.split_once(&question).unwrap_or_else(|| panic!("{question} {seen}"));
        let outcome = format!("ringfence: {host}.test:80 {outcome}");
        let (between, _) = after.split_once(&outcome).unwrap_or_else(|| panic!("{outcome} {seen}"));
        assert!(!between.contains("NOISE"), "{between}");
    }
    assert!(seen.contains("NOISE") && seen.contains("THE-END"), "{seen}");
    for steering in ["\u{1b}[8m", "\u{1b}[2J", "\u{1b}[6n"] {
        assert!(!seen.contains(steering), "{seen:?}");
    }
    let settings = std::fs::read_to_string(place.state().join("settings.json")).unwrap_or_default();
    assert!(!settings.contains("first.test"), "what was typed before is no answer: {settings}");
}

#[test]
fn question_is_void_when_the_run_is_cancelled() {
    let place = Place::new();
    let command = format!("{BINARY} exec --ask --mode native -- curl -s http://first.test/");
    let (seen, code) = at_terminal(&place, &command, &[(ASKED, "\x03")]);
    assert!(seen.contains("the question needs no answer"), "{seen}");
    assert!(code != 0 && !seen.contains("is allowed"), "{seen}");
}

#[test]
fn last_lines_after_a_program_begin_at_the_margin() {
    let place = Place::new();
    // A file that programs execute later is reported after the program, while its terminal was raw.
    let command = format!("{BINARY} exec --mode native -- sh -c 'mkdir d; echo x > d/.envrc'");
    let (seen, _) = at_terminal(&place, &command, &[]);
    let notice = seen.find("look before you use it").unwrap_or_else(|| panic!("no notice: {seen:?}"));
    let staircase =
        seen[notice..].split_inclusive('\n').find(|line| line.ends_with('\n') && !line.ends_with("\r\n"));
    assert_eq!(staircase, None, "{seen:?}");
}

#[test]
fn hidden_files_are_named_at_the_start_of_a_run() {
    let place = Place::new();
    for name in [".env", "a/.env", "b/.env", "c/.env", "d/.env"] {
        let file = place.work().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, "SECRET=1\n").unwrap();
    }
    let (seen, _) = at_terminal(&place, &format!("{BINARY} exec --mode native -- true"), &[]);
    assert!(seen.contains("hidden from the run: .env, a/.env, b/.env and 2 more"), "{seen}");
    assert_eq!(seen.matches("hidden from the run").count(), 1, "{seen}");
    let shown = place.run(&["runs", "show", "last", "--json"]).expect_code(0).json();
    assert!(shown["record"]["notices"].to_string().contains("hidden from the run: .env"), "{shown}");
    // A script has not asked for notices.
    let ran = place.run(&["exec", "--mode", "native", "--", "true"]).expect_code(0);
    assert!(!ran.stderr.contains("hidden from the run"), "{}", ran.stderr);
}
