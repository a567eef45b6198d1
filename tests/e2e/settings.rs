//! Settings from the outside: files, layers, changes.

use std::fs;
use std::process::Stdio;
use std::time::Instant;

use crate::support::Place;

#[test]
fn a_mistake_in_the_settings_stops_everything() {
    let place = Place::new().settings("{\n  \"sandbox\": {\n    \"mode\": \"dcoker\"\n  }\n}\n");
    for args in [&["exec", "--mode", "host", "--", "true"][..], &["sandbox", "show"], &["config", "list"]] {
        let ran = place.run(args).expect_code(125);
        assert!(
            ran.stderr.contains("settings.json:3: sandbox.mode: `dcoker` is not one of")
                && ran.stderr.contains("did you mean `docker`?"),
            "{}",
            ran.stderr
        );
    }
}

#[test]
fn nonsense_changes_nothing_and_names_the_valid_modes() {
    let text = "{ /* mine */ \"sandbox\": { \"mode\": \"podman\" } }\n";
    let place = Place::new().settings(text);
    let ran = place.run(&["sandbox", "set", "nonsense"]).expect_code(2);
    for mode in
        ["host", "native", "docker", "podman", "apple", "sbx", "microvm", "incus", "fly", "kubernetes"]
    {
        assert!(ran.stderr.contains(mode), "{}", ran.stderr);
    }
    assert_eq!(fs::read_to_string(place.state().join("settings.json")).unwrap(), text);
}

#[test]
fn set_keeps_comments_and_order_and_unset_takes_back() {
    let place = Place::new()
        .settings("{\n  // why\n  \"trusted_projects\": [],\n  \"sandbox\": { \"mode\": \"podman\" }\n}\n");
    let file = place.state().join("settings.json");
    place.run(&["sandbox", "set", "docker"]).expect_code(0);
    assert_eq!(
        fs::read_to_string(&file).unwrap(),
        "{\n  // why\n  \"trusted_projects\": [],\n  \"sandbox\": { \"mode\": \"docker\" }\n}\n"
    );
    place.run(&["config", "set", "agents.coder.model", "m1"]).expect_code(0);
    place.run(&["config", "set", "sandbox.env_allowlist", "A,B"]).expect_code(0);
    assert!(fs::read_to_string(&file).unwrap().starts_with("{\n  // why\n  \"trusted_projects\""));
    assert_eq!(place.run(&["config", "get", "agents.coder.model"]).stdout, "m1\n");
    assert_eq!(place.run(&["config", "get", "sandbox.env_allowlist"]).stdout, "[\"A\",\"B\"]\n");
    place.run(&["config", "unset", "agents.coder.model"]).expect_code(0);
    assert!(!fs::read_to_string(&file).unwrap().contains("agents"));
    for (key, value, word) in [
        ("sandbox.mod", "host", "did you mean `sandbox.mode`?"),
        ("mode", "host", "did you mean `sandbox.mode`?"),
        (
            "nope.x",
            "host",
            "the keys here are sandbox, broker, queue, server, executor, agents, trusted_projects",
        ),
        ("sandbox.timeout_seconds", "-1", "above 0"),
        ("sandbox.docker.memory", "lots", "`lots` is not a size"),
    ] {
        let before = fs::read_to_string(&file).unwrap();
        let ran = place.run(&["config", "set", "--", key, value]).expect_code(125);
        assert!(ran.stderr.contains(word), "{}", ran.stderr);
        assert_eq!(fs::read_to_string(&file).unwrap(), before);
    }
}

#[test]
fn a_killed_set_never_leaves_half_a_file() {
    let agents: Vec<String> = (0..300).map(|n| format!("\"a{n}\": {{ \"name\": \"agent {n}\" }}")).collect();
    let place = Place::new().settings(&format!("{{ \"agents\": {{ {} }} }}\n", agents.join(",\n")));
    let started = Instant::now();
    place.run(&["config", "set", "sandbox.timeout_seconds", "99"]).expect_code(0);
    let whole = started.elapsed();
    let mut finished = 0;
    for round in 0..60u32 {
        let value = (100 + round).to_string();
        let mut child = place
            .command(&["config", "set", "sandbox.timeout_seconds", &value])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // From before it has begun to well after it has ended.
        std::thread::sleep(whole * round / 30);
        let _ = child.kill();
        finished += u32::from(child.wait().unwrap().success());
        let listed = place.run(&["config", "get", "agents.a299.name"]).expect_code(0);
        assert_eq!(listed.stdout, "agent 299\n");
    }
    assert!(
        (3..=57).contains(&finished),
        "kills have to come before, during and after: {finished} of 60 finished"
    );
    place.run(&["config", "set", "sandbox.timeout_seconds", "77"]).expect_code(0);
    assert_eq!(place.run(&["config", "get", "sandbox.timeout_seconds"]).stdout, "77\n");
}

#[test]
fn the_seeds_variables_choose_the_mode() {
    let mode =
        |place: Place| place.run(&["config", "get", "sandbox.mode"]).expect_code(0).stdout.trim().to_owned();
    assert_eq!(mode(Place::new()), "native");
    assert_eq!(mode(Place::new().env("EXECUTION_ENVIRONMENT", "host")), "host");
    assert_eq!(mode(Place::new().env("EXECUTION_ENVIRONMENT", "Sandbox")), "docker");
    assert_eq!(mode(Place::new().env("LAUNCH_MODE", "process")), "host");
    let podman = r#"{"sandbox": {"mode": "podman"}}"#;
    assert_eq!(mode(Place::new().settings(podman).env("EXECUTION_ENVIRONMENT", "sandbox")), "podman");
    assert_eq!(mode(Place::new().settings(podman).env("EXECUTION_ENVIRONMENT", "host")), "host");
    let place =
        Place::new().env("SANDBOX_DOCKER_IMAGE", "mine:1").env("RINGFENCE_SANDBOX_DOCKER_IMAGE", "ours:2");
    assert_eq!(place.run(&["config", "get", "sandbox.docker.image"]).stdout, "ours:2\n");
    for (name, value, word) in [
        ("EXECUTION_ENVIRONMENT", "cloud", "environment variable EXECUTION_ENVIRONMENT"),
        ("LAUNCH_MODE", "vm", "environment variable LAUNCH_MODE"),
    ] {
        let ran = Place::new().env(name, value).run(&["config", "list"]).expect_code(125);
        assert!(ran.stderr.contains(word), "{}", ran.stderr);
    }
    let both = Place::new().env("EXECUTION_ENVIRONMENT", "host").env("LAUNCH_MODE", "docker");
    assert!(both.run(&["config", "list"]).expect_code(125).stderr.contains("contradicts"));
}

#[test]
fn explain_says_which_layer_won() {
    let place =
        Place::new().settings(r#"{"sandbox": {"mode": "podman"}}"#).env("EXECUTION_ENVIRONMENT", "host");
    let explained = place.run(&["config", "explain", "sandbox.mode", "--json"]).expect_code(0).json();
    let layers = explained["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 3);
    assert_eq!(layers[2]["wins"], true);
    assert_eq!(layers[2]["place"], "environment variable EXECUTION_ENVIRONMENT");
    assert_eq!(layers[0]["value"], "native");
    let ran = place.run(&["sandbox", "set", "docker"]).expect_code(0);
    assert!(ran.stdout.contains("host stays in force"), "{}", ran.stdout);
}

#[test]
fn a_project_may_only_tighten_unless_it_is_trusted() {
    let project = |text: &str| {
        let place = Place::new().settings(r#"{"sandbox": {"mode": "host", "timeout_seconds": 100}}"#);
        fs::create_dir(place.work().join(".ringfence")).unwrap();
        fs::write(place.work().join(".ringfence/settings.json"), text).unwrap();
        place
    };
    for tighter in [
        r#"{"sandbox": {"timeout_seconds": 50}}"#,
        r#"{"sandbox": {"mode": "podman"}}"#,
        r#"{"sandbox": {"env_allowlist": []}}"#,
        r#"{"sandbox": {"policy": "locked"}}"#,
        r#"{"sandbox": {"docker": {"memory": "1g"}}}"#,
    ] {
        project(tighter).run(&["config", "list"]).expect_code(0);
    }
    let looser = [
        r#"{"sandbox": {"timeout_seconds": 101}}"#,
        r#"{"sandbox": {"env_allowlist": ["AWS_SECRET_ACCESS_KEY"]}}"#,
        r#"{"sandbox": {"policy": "open"}}"#,
        r#"{"sandbox": {"policy": "/mine.json"}}"#,
        r#"{"sandbox": {"docker": {"image": "evil:latest"}}}"#,
        r#"{"agents": {"x": {"command": "sh -c evil"}}}"#,
        r#"{"trusted_projects": ["/"]}"#,
    ];
    for text in looser {
        let place = project(text);
        let ran = place.run(&["config", "list"]).expect_code(125);
        assert!(
            ran.stderr.contains("may only tighten") && ran.stderr.contains("settings.json:1"),
            "{}",
            ran.stderr
        );
        let trusted = serde_json::to_string(&[place.work()]).unwrap();
        let user = format!(
            r#"{{"sandbox": {{"mode": "host", "timeout_seconds": 100}}, "trusted_projects": {trusted}}}"#
        );
        fs::write(place.state().join("settings.json"), user).unwrap();
        place.run(&["config", "list"]).expect_code(0);
    }
}

#[test]
fn the_schema_is_the_committed_one() {
    let committed = concat!(env!("CARGO_MANIFEST_DIR"), "/../../schemas/settings.schema.json");
    let printed = Place::new().run(&["config", "schema"]).expect_code(0).stdout;
    assert_eq!(fs::read_to_string(committed).unwrap(), printed, "run `cargo xtask gen`");
}

#[test]
fn an_agent_of_the_settings_brings_its_directory_mode_and_command() {
    let place = Place::new();
    fs::create_dir(place.home().join("project")).unwrap();
    let place = place.settings(
        r#"{"agents": {"lister": {"cli": "command", "command": "pwd", "working_directory": "~/project", "sandbox_mode": "host"}}}"#,
    );
    let ran = place.run(&["run", "--json", "p"]).expect_code(0);
    assert_eq!(
        ran.result()["text"],
        fs::canonicalize(place.home().join("project")).unwrap().to_str().unwrap()
    );
}

#[test]
fn changes_at_the_same_time_do_not_undo_each_other() {
    let place = Place::new();
    let children: Vec<_> =
        (0..20).map(|n| place.spawn(&["config", "set", &format!("agents.a{n}.name"), "x"])).collect();
    for child in children {
        assert!(child.wait_with_output().unwrap().status.success());
    }
    assert_eq!(place.run(&["config", "get", "agents"]).json().as_object().unwrap().len(), 20);
}

#[test]
fn a_path_that_depends_on_where_one_stands_is_refused() {
    let place = Place::new();
    for (key, value) in
        [("sandbox.policy", "policies/p.json"), ("trusted_projects", "."), ("trusted_projects", "src")]
    {
        place.run(&["config", "set", key, value]).expect_code(125);
    }
}

/// A remedy is what the setting takes.
#[test]
fn the_error_of_a_relative_policy_asks_for_an_absolute_path() {
    let place = Place::new();
    for value in ["./policy.json", "standrd"] {
        let told = place.run(&["config", "set", "sandbox.policy", value]).expect_code(125).stderr;
        assert!(told.contains("the absolute path of a policy file"), "{told}");
        assert!(!told.contains("such as ./policy.json"), "{told}");
    }
    let file = place.work().join("policy.json").display().to_string();
    place.run(&["config", "set", "sandbox.policy", &file]).expect_code(0);
}

#[test]
fn a_project_binds_from_wherever_it_is_run() {
    let place = Place::new().settings(r#"{"sandbox": {"mode": "host"}}"#);
    let inner = place.work().join("project/inner");
    fs::create_dir_all(inner.join(".ringfence")).unwrap();
    fs::create_dir_all(place.work().join("project/.ringfence")).unwrap();
    fs::write(
        place.work().join("project/.ringfence/settings.json"),
        r#"{"sandbox": {"timeout_seconds": 1}}"#,
    )
    .unwrap();
    fs::write(inner.join(".ringfence/settings.json"), "{}").unwrap();
    fs::write(place.work().join("p.json"), r#"{"extends": "open", "limits": {"timeout_seconds": 50}}"#)
        .unwrap();
    for args in [
        &["exec", "-C", "project", "--", "sleep", "30"][..],
        &["exec", "-C", "project/inner", "--", "sleep", "30"],
        &["exec", "-C", "project", "--policy", "./p.json", "--", "sleep", "30"],
        &["run", "-C", "project", "--agent", "command", "--command", "sleep 30"],
    ] {
        place.run(args).expect_code(124);
    }
}

#[test]
fn what_is_shown_as_in_force_is_in_force() {
    let place = Place::new()
        .settings(r#"{"sandbox": {"mode": "host", "timeout_seconds": 7, "env_allowlist": ["A"]}}"#);
    let shown = place.run(&["policy", "show"]).expect_code(0).json();
    assert_eq!(
        (&shown["limits"]["timeout_seconds"], &shown["env"]["allow"]),
        (&7.into(), &serde_json::json!(["A"]))
    );
}

#[test]
fn odd_files_are_named_and_never_waited_for() {
    for make in ["mkdir", "mkfifo"] {
        let place = Place::new();
        fs::create_dir_all(place.state()).unwrap();
        let file = place.state().join("settings.json");
        assert!(std::process::Command::new(make).arg(&file).status().unwrap().success());
        let ran = place.run(&["config", "list"]).expect_code(125);
        assert!(ran.stderr.contains("settings.json is not a file"), "{}", ran.stderr);
    }
    let ran = Place::new()
        .run(&["exec", "--mode", "host", "--env-file", "/dev/zero", "--", "true"])
        .expect_code(125);
    assert!(ran.stderr.contains("/dev/zero is not a file"), "{}", ran.stderr);
    Place::new().settings("\u{feff}{}").run(&["config", "list"]).expect_code(0);
}

#[test]
fn sections_can_be_read_whole_and_missing_values_are_told() {
    let place = Place::new();
    assert_eq!(place.run(&["config", "get", "sandbox.docker"]).expect_code(0).json()["memory"], "2g");
    place.run(&["config", "get", "sandbox.policy"]).expect_code(1);
    place.run(&["config", "get", "agents"]).expect_code(1);
}
