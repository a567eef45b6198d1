//! An agent that tries to steer the user's terminal: clipboard, title, screen, direction of text, overwritten lines. Whatever it
//! prints, replies or names, no command of `ringfence` may pass it on.

use std::fs;

use crate::support::{Place, Ran, wait_for};

/// What an agent prints, each with a mark before it that has to be seen.
const PAYLOADS: [&str; 8] = [
    "MARK1\u{1b}]52;c;cm0gLXJmIH4=\u{7}",
    "MARK2\u{1b}]0;title\u{1b}\\",
    "MARK3\u{1b}[2J\u{1b}[1;1H",
    "MARK4\u{9b}2J",
    "MARK5\u{9d}0;title\u{9c}",
    "MARK6\u{202e}txt.exe\u{2066}",
    "MARK7\u{1b}P1$r0m\u{1b}\\\u{1b}c",
    "MARK8 harmless\rMARK9 overwritten\u{200b}\u{e0041}",
];

/// Whether a terminal that gets this is steered by more than colours of the product's own.
fn steers(text: &str) -> Option<char> {
    let without_colours = {
        let mut rest = text;
        let mut out = String::new();
        while let Some(at) = rest.find("\u{1b}[") {
            let end = rest[at + 2..].find(|c: char| !c.is_ascii_digit() && c != ';');
            out.push_str(&rest[..at]);
            match end {
                Some(end) if rest[at + 2 + end..].starts_with('m') => rest = &rest[at + 3 + end..],
                _ => {
                    out.push('\u{1b}');
                    rest = &rest[at + 2..];
                }
            }
        }
        out + rest
    };
    let hidden = |c: char| matches!(c, '\u{200b}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{e0000}'..='\u{e007f}');
    without_colours.chars().find(|c| (c.is_control() && !matches!(c, '\n' | '\t')) || hidden(*c))
}

#[track_caller]
fn check(what: &str, ran: &Ran, mark: &str) {
    let all = format!("{}{}", ran.stdout, ran.stderr);
    assert!(all.contains(mark), "{what} does not show {mark}: {all:?}");
    assert_eq!(steers(&all), None, "{what}: {all:?}");
}

/// A place where colours are always printed, so that nothing is taken out because there is no terminal.
fn place() -> Place {
    let place = Place::new().env("CLICOLOR_FORCE", "1").settings(
        r#"{"sandbox": {"mode": "host", "policy": "open"}, "queue": {"retry_seconds": 1, "retry_max_seconds": 1}}"#,
    );
    fs::write(place.work().join("payload"), PAYLOADS.join("\n") + "\n").unwrap();
    place
}

#[test]
fn the_test_itself_sees_what_steers() {
    assert!(PAYLOADS.iter().all(|payload| steers(payload).is_some()));
    assert_eq!(steers("\u{1b}[1;31merror\u{1b}[0m: plain\n"), None);
}

#[test]
fn a_failing_agent_steers_no_terminal() {
    let place = place();
    let command = "sh -c 'cat payload; tail -n 3 payload >&2; exit 7'";
    let args = ["run", "--agent", "command", "--command", command, "go"];
    check("run", &place.run(&args), "MARK1");
    check("run", &place.run(&args), "agent_error");
    check("run --json", &place.run(&[&args[..], &["--json"]].concat()), "MARK8");
    for show in [
        &["runs", "list"][..],
        &["runs", "show", "last"],
        &["runs", "show", "last", "--json"],
        &["runs", "show", "last", "--log"],
        &["runs", "show", "last", "--log", "--json"],
    ] {
        let mark = if show.len() > 2 { "MARK8" } else { "agent_error" };
        let ran = place.run(show).expect_code(0);
        check(&show.join(" "), &ran, mark);
        if show.contains(&"--json") {
            ran.json();
        }
    }
}

/// A failure message has several lines: none of them may look like a line of its own.
#[test]
fn a_message_cannot_forge_another_line() {
    let place = place();
    let ran = place.run(&["run", "--agent", "command", "--command", "sh -c 'cat payload >&2; exit 7'", "go"]);
    let failure = ran.stderr.lines().skip_while(|line| !line.contains("agent_error"));
    let forged: Vec<_> = failure.skip(1).filter(|line| line.starts_with("MARK")).collect();
    assert_eq!(forged, Vec::<&str>::new(), "{ran:?}");
}

/// A daemon that ends with the test.
struct Daemon<'a>(&'a Place);

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        self.0.run(&["stop"]);
    }
}

#[test]
fn a_task_steers_no_terminal() {
    let place = place();
    place.run(&["start"]).expect_code(0);
    let _daemon = Daemon(&place);
    let add = |command: &str| {
        let args = ["task", "add", "--json", "--max-attempts", "1", "--command", command];
        place.run(&args).expect_code(0).json()[0]["task"].as_str().unwrap().to_owned()
    };
    let (dead, done) = (add("sh -c 'cat payload; cat payload >&2; exit 7'"), add("cat payload"));
    for task in [&dead, &done] {
        check("task wait", &place.run(&["task", "wait", task, "--timeout", "60"]), "MARK8");
    }
    wait_for("the dead letter", || place.run(&["dead-letter", "list"]).stdout.contains(&dead).then_some(()));
    for (show, mark) in [
        (&["task", "list"][..], "agent_error"),
        (&["task", "show", &dead], "MARK8"),
        (&["task", "show", &dead, "--json"], "MARK8"),
        (&["task", "show", &done], "MARK8"),
        (&["task", "logs", &dead], "MARK1"),
        (&["task", "logs", &dead, "--json"], "MARK1"),
        (&["dead-letter", "list"], "MARK8"),
        (&["dead-letter", "show", &dead], "MARK8"),
        (&["events"], "MARK8"),
        (&["events", "--json"], "MARK8"),
    ] {
        check(&show.join(" "), &place.run(show).expect_code(0), mark);
    }
}

/// In a diff nothing is left out: what would steer or hide is written as an escape, so that the user judges what is there.
#[test]
fn names_and_contents_of_a_layer_are_shown_whole() {
    let place = Place::new().env("CLICOLOR_FORCE", "1");
    let script = "printf 'MARK1\\033]52;c;QQ==\\007hidden\\342\\200\\256\\n' > \"$(printf 'name\\033[2J\\302\\2332J')\"";
    place
        .run(&["exec", "--mode", "native", "--workspace", "overlay", "--", "sh", "-c", script])
        .expect_code(0);
    let diff = place.run(&["diff", "last"]);
    check("diff", &diff, "MARK1\\u{1b}]52;c;QQ==\\u{7}hidden\\u{202e}");
    check("diff", &diff, "name\\u{1b}[2J\\u{9b}2J");
    check("diff --json", &place.run(&["diff", "last", "--json"]), "name");
    check("apply", &place.run(&["apply", "last"]), "name");
}

#[test]
fn a_path_in_an_error_steers_no_terminal() {
    let place = Place::new().env("CLICOLOR_FORCE", "1");
    let ran =
        place.run(&["exec", "--mode", "host", "--cwd", "/nowhere/MARK\u{1b}]0;t\u{7}\u{9b}2J", "--", "true"]);
    assert_ne!(ran.code(), 0);
    check("an error", &ran, "MARK");
}
