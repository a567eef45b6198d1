//! Verbs, exit codes, errors.

use std::fs;
use std::io::Write;

use serde_json::Value;

use crate::support::Place;

#[test]
fn exit_codes_are_those_of_the_table() {
    let place = Place::new();
    let host = |args: &[&str]| place.run(&[&["exec", "--mode", "host"], args].concat()).code();
    assert_eq!(host(&["--", "true"]), 0);
    assert_eq!(host(&["--", "sh", "-c", "exit 7"]), 7);
    assert_eq!(host(&["--", "sh", "-c", "kill -9 $$"]), 137);
    assert_eq!(host(&["--timeout", "1s", "--", "sleep", "100"]), 124);
    assert_eq!(host(&["--", "no-such-program"]), 127);
    assert_eq!(host(&["--", "/etc/passwd"]), 126);
    assert_eq!(host(&["--policy", "locked", "--", "true"]), 125);
    assert_eq!(host(&["--no-such-flag", "--", "true"]), 2);
}

#[test]
fn a_mode_without_a_boundary_refuses_every_promise_it_cannot_keep() {
    let place = Place::new();
    for (args, word) in [
        (&["--policy", "standard"][..], "secrets are unreadable"),
        (&["--policy", "locked"], "processes are bounded"),
        (&["--allow", "example.com"], "only the allowed hosts can be reached"),
        (&["--pids", "10"], "processes are bounded"),
        (&["--cpus", "1"], "cpus are bounded"),
    ] {
        let args = [&["exec", "--mode", "host"], args, &["--", "sh", "-c", "echo ran > ran"]].concat();
        let ran = place.run(&args).expect_code(125);
        assert!(ran.stderr.contains(word), "{args:?}: {}", ran.stderr);
        assert!(!place.work().join("ran").exists(), "{args:?} was started all the same");
    }
}

#[test]
fn a_program_is_told_of_a_refusal() {
    let place = Place::new();
    let ran =
        place.run(&["exec", "--mode", "host", "--policy", "locked", "--json", "--", "true"]).expect_code(125);
    let refused = ran.result();
    assert_eq!((&refused["status"], &refused["failure"]["class"]), (&"failed".into(), &"refused".into()));
    assert!(refused["failure"]["remedy"].as_str().unwrap().contains("--mode"));
}

#[test]
fn a_mode_that_is_not_there_is_refused_rather_than_weakened() {
    let ran = Place::new().run(&["exec", "--mode", "fly", "--", "true"]).expect_code(125);
    assert!(ran.stderr.contains("mode fly") && ran.stderr.contains("--mode native"), "{}", ran.stderr);
}

#[test]
fn nothing_passes_but_what_was_named() {
    let place = Place::new().env("SECRET_TOKEN", "s3cr3t-value").env("WANTED", "w").env("LC_ALL", "C");
    let env_file = place.work().join("vars");
    fs::write(&env_file, "# comment\nexport FROM_FILE=\"with space\"\n\nWANTED\n").unwrap();
    let ran = place
        .run(&[
            "exec",
            "--mode",
            "host",
            "--env",
            "A=1",
            "--env-file",
            env_file.to_str().unwrap(),
            "--",
            "env",
        ])
        .expect_code(0);
    let mut names: Vec<&str> = ran.stdout.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    names.sort_unstable();
    assert_eq!(names, ["A", "FROM_FILE", "HOME", "LC_ALL", "PATH", "WANTED"]);
    assert!(ran.stdout.contains("FROM_FILE=with space"));
}

#[test]
fn a_bad_variable_is_named_and_its_value_is_not() {
    let place = Place::new();
    let ran = place.run(&["exec", "--mode", "host", "--env", "A-B=hunter2", "--", "true"]).expect_code(125);
    assert!(ran.stderr.contains("`A-B`") && !ran.stderr.contains("hunter2"), "{}", ran.stderr);
}

#[test]
fn exec_passes_input_and_output_through_untouched() {
    let place = Place::new();
    let mut child = place.spawn(&["exec", "--mode", "host", "--", "cat"]);
    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let mut stdin = child.stdin.take().unwrap();
    let fed = bytes.clone();
    let feeder = std::thread::spawn(move || stdin.write_all(&fed).unwrap());
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    assert_eq!(output.stdout, bytes);
}

#[test]
fn an_agent_never_waits_for_input() {
    let place = Place::new();
    let ran = place
        .run(&["run", "--mode", "host", "--agent", "command", "--command", "cat", "--json"])
        .expect_code(0);
    assert_eq!(ran.result()["status"], "success");
}

#[test]
fn any_program_can_be_an_agent() {
    let place = Place::new();
    let script = r#"sh -c 'echo "$0" and "$RINGFENCE_PROMPT"; echo warned >&2; exit 3' {prompt}"#;
    let ran = place.agent(script, &["do $HOME; it"]).expect_code(3);
    let result = ran.result();
    assert_eq!(result["text"], "do $HOME; it and do $HOME; it");
    assert_eq!(result["failure"]["class"], "agent_error");
    assert!(result["failure"]["message"].as_str().unwrap().contains("warned"));
}

#[test]
fn a_prompt_can_come_from_standard_input() {
    let place = Place::new();
    let args = ["run", "--mode", "host", "--agent", "command", "--command", "echo {prompt}", "--json", "-"];
    let mut child = place.spawn(&args);
    child.stdin.take().unwrap().write_all(b"from the pipe").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains(r#""text":"from the pipe""#));
}

#[test]
fn prompts_that_cannot_be_run_are_refused_before_anything_starts() {
    let place = Place::new();
    for (prompt, word) in [("", "there is no prompt"), (&*"x".repeat(131_050), "put it into a file")] {
        let ran = place.run(&["run", "--mode", "host", "--agent", "claude", prompt]);
        assert_eq!(ran.code(), 125);
        assert!(ran.stderr.contains(word), "{}", ran.stderr);
    }
    let ran = place
        .run(&["run", "--mode", "host", "--agent", "command", "--command", "sh 'x", "p"])
        .expect_code(125);
    assert!(ran.stderr.contains("a quote is not closed"));
    assert!(!place.state().join("runs").exists(), "nothing was recorded, for nothing ran");
}

#[test]
fn a_missing_agent_cli_says_how_to_get_it() {
    let place = Place::new().env("PATH", "/usr/bin:/bin");
    for (cli, package) in
        [("claude", "@anthropic-ai/claude-code"), ("codex", "@openai/codex"), ("opencode", "opencode-ai")]
    {
        let ran = place.run(&["run", "--mode", "host", "--agent", cli, "--json", "p"]).expect_code(127);
        let failure = ran.result()["failure"].clone();
        assert_eq!(failure["class"], "cli_missing");
        assert!(failure["remedy"].as_str().unwrap().contains(package));
    }
}

#[test]
fn a_misspelt_agent_gets_a_hint() {
    let ran = Place::new().run(&["run", "--mode", "host", "--agent", "cladue", "p"]).expect_code(125);
    assert!(ran.stderr.contains("did you mean `claude`?"), "{}", ran.stderr);
}

#[test]
fn a_workspace_that_is_none_is_named() {
    let place = Place::new();
    fs::write(place.work().join("file"), "").unwrap();
    for (cwd, word) in [("nowhere", "nowhere"), ("file", "is not a directory")] {
        let ran = place.run(&["exec", "--mode", "host", "--cwd", cwd, "--", "true"]).expect_code(125);
        assert!(ran.stderr.contains(word), "{}", ran.stderr);
    }
    let ran = place.run(&["exec", "--mode", "host", "--workspace", "overlay", "--", "true"]).expect_code(125);
    assert!(ran.stderr.contains("the workspace itself stays untouched"), "{}", ran.stderr);
}

#[test]
fn bad_limits_are_usage_errors_that_name_the_value() {
    let place = Place::new();
    for (flag, value) in [
        ("--memory", "2gb"),
        ("--memory", "1b"),
        ("--memory", "18446744073709551615"),
        ("--cpus", "-1"),
        ("--pids", "0"),
        ("--timeout", "soon"),
        ("--mode", "dcoker"),
        ("--allow", "https://x"),
    ] {
        let ran = place.run(&["exec", &format!("{flag}={value}"), "--", "true"]).expect_code(2);
        assert!(ran.stderr.contains(value), "{flag}: {}", ran.stderr);
    }
}

#[test]
fn the_demo_needs_nothing_and_tells_the_truth() {
    let place = Place::new().env("PATH", "/usr/bin:/bin");
    let ran = place.run(&["demo", "--mode", "host", "--json"]).expect_code(0);
    let outputs: Vec<Value> = ran
        .events()
        .into_iter()
        .filter(|event| event["type"] == "tool_result" && event["tool"] == "attempt")
        .collect();
    let refused: Vec<bool> = outputs.iter().map(|event| event["is_error"].as_bool().unwrap()).collect();
    assert_eq!(refused, [false, true, false], "without a boundary only the variable is kept back");
    let primes =
        ran.events().into_iter().find(|event| event["tool"] == "shell" && event["type"] == "tool_result");
    assert!(primes.unwrap()["output"].as_str().unwrap().starts_with("2 3 5 7 11"));
    let human = place.run(&["demo", "--mode", "host"]).expect_code(0);
    assert!(human.stdout.contains("1 was refused"), "{}", human.stdout);
    assert!(human.stdout.contains("Seen from the host: the service was reached"), "{}", human.stdout);
    assert!(human.stderr.contains("has no boundary"));
}

#[test]
fn completions_are_there_for_every_shell() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(place.run(&["completions", shell]).expect_code(0).stdout.contains("ringfence"));
    }
    let script = place.work().join("completion.bash");
    fs::write(&script, place.run(&["completions", "bash"]).stdout).unwrap();
    let checked = std::process::Command::new("bash").arg("-n").arg(&script).status().unwrap();
    assert!(checked.success());
}

#[test]
fn doctor_looks_at_every_mode_and_every_agent_cli_and_has_a_remedy_for_each_finding() {
    let place = Place::new().env("PATH", "/usr/bin:/bin");
    let report = place.run(&["sandbox", "doctor", "--json"]).expect_code(0).json();
    assert_eq!((&report["passed"], &report["mode"]), (&true.into(), &"native".into()));
    assert_eq!(report["modes"].as_array().unwrap().len(), 10);
    assert_eq!(report["agent_clis"].as_array().unwrap().len(), 3);
    for group in report["modes"].as_array().unwrap().iter().chain(report["agent_clis"].as_array().unwrap()) {
        for finding in group["findings"].as_array().unwrap() {
            assert_eq!(finding["state"] == "ok", finding.get("remedy").is_none(), "{finding}");
        }
    }
    place.run(&["sandbox", "set", "fly"]).expect_code(0);
    place.run(&["sandbox", "doctor"]).expect_code(1);
    place.run(&["sandbox", "set", "host"]).expect_code(0);
    place.run(&["sandbox", "doctor"]).expect_code(0);
    place.run(&["config", "set", "agents.coder.provider", "openai"]).expect_code(0);
    let ran = place.run(&["sandbox", "doctor"]).expect_code(1);
    assert!(ran.stdout.contains("codex (in use)") && ran.stdout.contains("npm install -g @openai/codex"));
}

#[test]
fn doctor_notices_a_program_that_does_not_work() {
    let place = Place::new();
    let bin = place.home().join("bin");
    fs::create_dir(&bin).unwrap();
    fs::write(bin.join("claude"), "#!/bin/sh\nexit 1\n").unwrap();
    std::process::Command::new("chmod").arg("+x").arg(bin.join("claude")).status().unwrap();
    let place = place.env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
    let report = place.run(&["sandbox", "doctor", "--json"]).json();
    let claude = &report["agent_clis"][0]["findings"][0];
    assert!(claude["detail"].as_str().unwrap().contains("does not work"), "{claude}");
}

#[test]
fn policies_can_be_shown_checked_and_edited() {
    let place = Place::new();
    for preset in ["open", "standard", "locked"] {
        let shown = place.run(&["policy", "show", preset]).expect_code(0);
        fs::write(place.work().join("p.json"), &shown.stdout).unwrap();
        assert_eq!(place.run(&["policy", "show", "./p.json"]).stdout, shown.stdout);
    }
    place.run(&["policy", "check", "open", "--mode", "host"]).expect_code(0);
    let checked = place.run(&["policy", "check", "locked", "--mode", "host", "--json"]).expect_code(1).json();
    assert_eq!(checked["holds"], false);
    let ran = place.run(&["policy", "check", "standart"]).expect_code(125);
    assert!(ran.stderr.contains("did you mean `standard`?"), "{}", ran.stderr);
    let ran = place.run(&["policy", "show", "./nowhere.json"]).expect_code(125);
    assert!(ran.stderr.contains("nowhere.json"));
}

fn fake_cli(place: &Place, name: &str, script: &str) -> String {
    let bin = place.work().join("bin");
    fs::create_dir_all(&bin).unwrap();
    fs::write(bin.join(name), format!("#!/bin/sh\n{script}\n")).unwrap();
    std::process::Command::new("chmod").arg("+x").arg(bin.join(name)).status().unwrap();
    format!("{}:/usr/bin:/bin", bin.display())
}

#[test]
fn a_flag_wins_over_the_environment() {
    let place = Place::new();
    let path = fake_cli(&place, "claude", "env > env.txt");
    let place = place.env("PATH", path).env("ANTHROPIC_BASE_URL", "http://127.0.0.1:1");
    let run = ["run", "--mode", "host", "--agent", "claude", "p", "--base-url", "http://127.0.0.1:2"];
    place.run(&run);
    assert!(place.read("env.txt").contains("ANTHROPIC_BASE_URL=http://127.0.0.1:2\n"));
    place.run(&[&run[..], &["--env", "ANTHROPIC_BASE_URL=http://127.0.0.1:3"]].concat());
    assert!(place.read("env.txt").contains("ANTHROPIC_BASE_URL=http://127.0.0.1:3\n"));
    place.run(&["run", "--mode", "host", "--agent", "claude", "p", "--base-url", "nonsense"]).expect_code(2);
}

#[test]
fn a_script_without_its_interpreter_is_told_apart_from_one_that_is_missing() {
    let place = Place::new();
    fs::write(place.work().join("bad"), "#!/no/such/interpreter\n").unwrap();
    std::process::Command::new("chmod").arg("+x").arg(place.work().join("bad")).status().unwrap();
    let ran = place.run(&["exec", "--mode", "host", "--", "./bad"]).expect_code(126);
    assert!(ran.stderr.contains("interpreter"), "{}", ran.stderr);
    assert!(
        place.run(&["exec", "--mode", "host", "--", ""]).expect_code(127).stderr.contains("`` was not found")
    );
}

#[test]
fn programs_are_not_taken_from_the_workspace_by_accident() {
    let place = Place::new();
    fake_cli(&place, "tool", "echo from the workspace");
    let place = place.env("PATH", ".:bin:/usr/bin:/bin");
    place.run(&["exec", "--mode", "host", "--", "tool"]).expect_code(127);
}

#[test]
fn the_dashes_before_a_command_can_be_left_out() {
    let ran = Place::new()
        .run(&["exec", "--mode", "host", "sh", "-c", "echo $0 $1", "-x", "--json"])
        .expect_code(0);
    assert_eq!(ran.stdout, "-x --json\n");
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let place = Place::new();
    place.run(&["exec", "--mode", "host", "--", "true"]).expect_code(0);
    for args in [
        &["exec", "--mode", "host", "--", "echo", "hi"][..],
        &["run", "--mode", "host", "--agent", "command", "--command", "echo hi"],
        &["run", "--mode", "host", "--agent", "command", "--command", "echo hi", "--json"],
        &["config", "get", "sandbox.mode"],
        &["runs", "list", "--json"],
        &["completions", "bash"],
    ] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = place.command(args).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{args:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("No space left"), "{args:?}");
    }
}

#[test]
fn what_an_agent_prints_does_not_steer_the_terminal() {
    let place = Place::new();
    let ran = place.run(&[
        "run",
        "--mode",
        "host",
        "--agent",
        "command",
        "--command",
        r"printf '\033]2;title\007text'",
    ]);
    assert_eq!(ran.stdout, "text\n");
}

#[test]
fn the_demo_agent_without_bait_claims_nothing() {
    let ran = Place::new().run(&["run", "--mode", "host", "--agent", "demo", "--json"]).expect_code(0);
    assert!(!ran.result()["text"].as_str().unwrap().contains("refused"), "{}", ran.stdout);
}

#[test]
fn verbs_that_need_no_home_need_none() {
    for args in [&["completions", "bash"][..], &["config", "schema"]] {
        let output =
            std::process::Command::new(crate::support::BINARY).args(args).env_clear().output().unwrap();
        assert!(output.status.success(), "{args:?}");
    }
    let ran = Place::new().env("HOME", "not/absolute").run(&["config", "list"]).expect_code(125);
    assert!(ran.stderr.contains("HOME is `not/absolute`"), "{}", ran.stderr);
}

#[test]
fn long_work_tells_how_far_it_has_come_to_who_wants_to_know() {
    let steps = |words: &[&str]| -> Vec<Value> {
        let ran = Place::new().env("RINGFENCE_PROGRESS", "json").run(words);
        let steps = ran.stderr.lines().filter_map(|line| serde_json::from_str(line).ok());
        steps.filter(|step: &Value| step["of"].is_u64()).collect()
    };
    for words in [
        &["compare", "-n", "2"][..],
        &["sandbox", "doctor"],
        &["auth", "check"],
        &["probe", "--mode", "host"],
    ] {
        let steps = steps(words);
        let done: Vec<u64> = steps.iter().map(|step| step["done"].as_u64().unwrap()).collect();
        assert!(done.len() > 2 && done.is_sorted(), "{words:?}: {steps:?}");
        assert!(
            steps.iter().all(|step| step["done"].as_u64() <= step["of"].as_u64()),
            "{words:?}: {steps:?}"
        );
        assert!(
            steps.iter().all(|step| step["what"].as_str().is_some_and(|what| !what.is_empty())),
            "{steps:?}"
        );
    }
    // Nobody else is bothered.
    let ran = Place::new().run(&["compare", "-n", "1", "--json"]).expect_code(0);
    assert_eq!(ran.stderr, "");
}
