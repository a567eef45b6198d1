//! An agent that tries to steer the user's terminal: clipboard, title, screen, direction of text, overwritten lines. Whatever it
//! prints, replies or names, no command of `ringfence` may pass it on.

use std::fs;

use crate::site::Site;
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

/// Characters that a terminal would obey or hide, each after a mark.
const HIDDEN: &str = "MARK\u{9b}2J\u{202e}\u{1b}]0;t\u{7}\u{200b}";

#[test]
fn an_argument_in_a_usage_error_is_shown_as_an_escape() {
    let place = Place::new().env("CLICOLOR_FORCE", "1");
    let flag = format!("--{HIDDEN}");
    for args in [
        &[HIDDEN][..],
        &[&flag],
        &["run", &flag],
        &["exec", "--mode", HIDDEN, "--", "true"],
        &["task", "list", "--state", HIDDEN],
        &["task", "add", "--priority", HIDDEN, "x"],
        &["token", "show", HIDDEN],
    ] {
        let ran = place.run(args).expect_code(2);
        check("a usage error", &ran, "MARK\\u{9b}2J\\u{202e}\\u{1b}]0;t\\u{7}\\u{200b}");
        assert!(ran.stdout.is_empty(), "{ran:?}");
    }
    // What is asked for goes to standard output, and steers as little.
    for help in [&["--help"][..], &["help", "run"], &["--version"]] {
        let ran = place.run(help).expect_code(0);
        check("help", &ran, "ringfence");
        assert!(ran.stderr.is_empty(), "{ran:?}");
    }
}

/// A place with an agent CLI that says things, in a directory that is the user's.
fn place_with_cli() -> Place {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new()
        .env("CLICOLOR_FORCE", "1")
        .settings(r#"{"sandbox": {"mode": "host", "policy": "open"}, "agents": {"a": {"cli": "claude"}}}"#);
    let bin = place.home().join("bin");
    fs::create_dir(&bin).unwrap();
    fs::write(bin.join("payload"), PAYLOADS.concat() + "\n").unwrap();
    let script = format!("#!/bin/sh\ncat {}/payload\n", bin.display());
    fs::write(bin.join("claude"), script).unwrap();
    fs::set_permissions(bin.join("claude"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:/usr/bin:/bin", bin.display());
    place.env("PATH", path)
}

#[test]
fn what_an_agent_cli_says_of_itself_steers_no_terminal() {
    let place = place_with_cli();
    for args in [
        &["sandbox", "doctor"][..],
        &["sandbox", "doctor", "--json"],
        &["auth", "check", "claude"],
        &["auth", "check", "claude", "--json"],
    ] {
        check(&args.join(" "), &place.run(args), "MARK1");
    }
}

#[test]
fn settings_and_paths_steer_no_terminal() {
    let name = format!("dir-{HIDDEN}");
    let settings = serde_json::json!({
        "sandbox": { "mode": "host", "policy": "open" },
        "agents": { "a": { "cli": "demo", "name": HIDDEN, "sandbox_mode": "host", "working_directory": format!("/nowhere/{HIDDEN}") } },
    });
    let place = Place::new().env("CLICOLOR_FORCE", "1").settings(&settings.to_string());
    fs::create_dir(place.work().join(&name)).unwrap();
    for (args, mark) in [
        (&["sandbox", "show"][..], "agent a"),
        (&["agents"], "MARK"),
        (&["agents", "--json"], "MARK"),
        (&["config", "list"], "MARK"),
        (&["config", "get", "agents.a.name"], "MARK"),
        (&["config", "explain", "agents.a.name"], "MARK"),
        (&["run", "--agent", "a", "x"], "MARK"),
        (&["run", "--agent", HIDDEN, "x"], "MARK"),
        (&["exec", "--policy", HIDDEN, "--", "true"], "MARK"),
        (&["exec", "--", HIDDEN], "MARK"),
        (&["runs", "show", HIDDEN], "MARK"),
        (&["task", "show", HIDDEN], "MARK"),
        (&["task", "add", "--agent", "demo", "--cwd", &name, "--json", HIDDEN], "task"),
        (&["task", "list"], "MARK"),
        (&["task", "show", "last"], "MARK"),
        (&["compare", "--rounds", "1"], "host"),
    ] {
        check(&args.join(" ").replace(HIDDEN, "…"), &place.run(args), mark);
    }
}

/// Programs that show what the API or a webhook sends print it on terminals too.
#[test]
fn what_a_run_says_leaves_the_daemon_as_plain_text() {
    use std::io::{Read, Write};
    let hook = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let settings = format!(
        r#"{{"sandbox": {{"mode": "host", "policy": "open"}}, "server": {{"rate_limit": 0}},
            "queue": {{"retry_seconds": 1, "retry_max_seconds": 1, "webhook": "http://{}/hook"}}}}"#,
        hook.local_addr().unwrap()
    );
    let place = Place::new().settings(&settings);
    fs::write(place.work().join("payload"), PAYLOADS.join("\n") + "\n").unwrap();
    let site = Site::of(place);
    let task = serde_json::json!({
        "prompt": "go", "agent": "command", "command": "sh -c 'cat payload; cat payload >&2; exit 7'",
        "directory": site.place.work(), "max_attempts": 1,
    });
    let added = site.post("/tasks", &task).expect(201).json();
    let id = added["task"]["id"].as_str().unwrap();
    let mut bodies = vec![("webhook".to_owned(), {
        let (mut stream, _) = hook.accept().unwrap();
        stream.set_read_timeout(Some(std::time::Duration::from_millis(500))).unwrap();
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
        String::from_utf8_lossy(&bytes).into_owned()
    })];
    let run = site.wait(id)["runs"][0]["run"].as_str().unwrap().to_owned();
    for path in [
        format!("/tasks/{id}"),
        format!("/runs/{run}"),
        format!("/runs/{run}/log"),
        "/dead-letter".to_owned(),
        "/events?after=0&limit=1000".to_owned(),
    ] {
        bodies.push((path.clone(), site.get(&path).expect(200).body));
    }
    for (from, body) in bodies {
        assert!(body.contains("MARK8"), "{from}: {body:?}");
        assert_eq!(steers(&body.replace('\r', "")), None, "{from}: {body:?}");
        // Nor hidden in escapes of JSON.
        for escape in ["\\u001b", "\\u009b", "\\u202e", "\\u0007"] {
            assert!(!body.contains(escape), "{from}: {escape}: {body:?}");
        }
    }
}

/// What a program that talks to the terminal itself leaves: margins, hidden text, a sequence without an end. The notice of the
/// run's end is seen all the same.
#[test]
fn a_notice_after_raw_output_is_shown_on_a_terminal_that_is_as_it_was() {
    for (output, reset) in [
        ("ok\\n\\033[1;2r\\033[1;1H", "\u{1b}[r"),
        ("ok\\n\\033]0;title", "\u{1b}\\"),
        ("ok\\n\\033[8m", "\u{1b}[0m"),
        ("ok\\n\\033[", "\u{1b}[!p"),
        ("ok\\n", ""),
    ] {
        let place = Place::new();
        fs::write(
            place.work().join("program"),
            format!("mkdir -p sub; echo id > sub/.envrc; printf '{output}'\n"),
        )
        .unwrap();
        let exec = format!("{} exec --mode native -- sh program", crate::support::BINARY);
        let ran = place.shell(&format!("script -qec '{exec}' /dev/null")).expect_code(0);
        let (before, _) = ran.stdout.split_once("look before you use it").unwrap();
        let (_, after_output) = before.split_once("ok\r\n").unwrap();
        let own = after_output.rsplit_once('\u{18}').map_or(after_output, |(_, own)| own);
        assert!(own.contains(reset), "{output}: {before:?}");
        assert_eq!(before.contains('\u{18}'), !["", "\u{1b}[0m"].contains(&reset), "{output}: {before:?}");
    }
}
