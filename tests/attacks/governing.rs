//! What governs runs is out of their reach, also what only another run uses.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crate::support::{BINARY, Place, Ran, wait_for};

const PRICES: &str = r#"{"as_of": "2026-01-01", "models": {}}"#;
const STANDARD: &str = r#"{"extends": "standard"}"#;

fn exec(place: &Place, script: &str) -> Ran {
    place.run(&["exec", "--mode", "native", "--", "sh", "-c", script])
}

fn put(path: &Path, content: &str) -> String {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
    path.display().to_string()
}

/// What a run may try to put other content in the place of a file.
fn attempts(file: &str) -> Vec<String> {
    let top = file.split('/').next().unwrap();
    vec![
        format!("echo evil > {file}"),
        format!("echo evil > x; mv -f x {file}"),
        format!("rm -f {file}; echo evil > {file}"),
        format!("mv {top} gone; mkdir -p $(dirname {file}); echo evil > {file}"),
        format!("rm -rf {top}; mkdir -p $(dirname {file}); echo evil > {file}"),
        format!("ln {file} second; echo evil > second"),
    ]
}

in_every_sandbox! {
    /// The directory for settings and policies, whatever the policy of the run says, and wherever it is.
    fn directory_for_policies_cannot_be_changed(sandbox: &Sandbox) {
        let lax = put(
            &sandbox.place.home().join("lax.json"),
            r#"{"extends": "standard", "files": {"protect": []}}"#,
        );
        for file in [".ringfence/policy.json", "pkg/sub/.ringfence/policy.json"] {
            sandbox.put(file, STANDARD);
            for options in [&[][..], &["--policy", ".ringfence/policy.json"], &["--policy", &lax]] {
                for attempt in attempts(file) {
                    sandbox.exec(options, &["sh", "-c", &attempt]);
                    assert_eq!(sandbox.place.read(file), STANDARD, "{options:?}: {attempt}");
                }
            }
        }
    }

    /// A state directory of another installation, wherever it lies.
    fn state_directory_of_another_installation_is_hidden(sandbox: &Sandbox) {
        for marker in ["ringfence.db", "ringfence.trees"] {
            sandbox.put(&format!("tools/state/{marker}"), "canary");
            sandbox.put("tools/state/api.token", "canary");
            sandbox.put("tools/state/runs/R/log.jsonl", "canary");
            sandbox.put("tools/other", "seen");
            let replace = "mv tools/state gone; mv tools gone; mkdir -p tools/state; echo x > tools/state/new";
            let ran = sandbox.sh(&format!("cat tools/other; find . -type f | xargs cat; {replace}"));
            assert!(ran.stdout.starts_with("seen") && !ran.stdout.contains("canary"), "{marker}: {ran:?}");
            assert!(!sandbox.place.work().join("tools/state/new").exists());
            fs::remove_dir_all(sandbox.place.work().join("tools")).unwrap();
        }
        // The root cannot be hidden, but its secrets can.
        sandbox.put("ringfence.db", "canary");
        sandbox.put("api.token", "canary");
        sandbox.put("file", "seen");
        let ran = sandbox.sh("cat file ringfence.db api.token");
        assert_eq!(ran.stdout, "seen", "{ran:?}");
    }
}

#[test]
fn policy_and_variables_where_a_run_can_write_are_refused() {
    let place = Place::new();
    for file in [
        "policy.json",
        "conf/policy.json",
        "vars",
        "conf/.env",
        "pkg/.ringfence/p.json",
        "pkg/.ringfence/vars",
    ] {
        let (flag, text) =
            if file.ends_with("json") { ("--policy", STANDARD) } else { ("--env-file", "A=1\n") };
        put(&place.work().join(file), text);
        let ran = place.run(&["exec", "--mode", "native", flag, file, "--", "true"]).expect_code(125);
        assert!(
            ran.stderr.contains("where runs can write") && ran.stderr.contains("/.ringfence/"),
            "{file}: {}",
            ran.stderr
        );
    }
    // What is protected or hidden in every run is accepted.
    for file in [".ringfence/p.json", ".ringfence/vars", ".ringfence/deep/vars", ".env"] {
        let (flag, text) =
            if file.ends_with("json") { ("--policy", STANDARD) } else { ("--env-file", "A=1\n") };
        put(&place.work().join(file), text);
        place.run(&["exec", "--mode", "native", flag, file, "--", "true"]).expect_code(0);
    }
}

/// Another user of the machine could have written it, as where a default access control list or a lax umask has made it.
#[test]
fn what_governs_runs_and_others_can_write_is_refused() {
    let place = Place::new();
    let (policy, vars) = (place.work().join(".ringfence/p.json"), place.work().join(".ringfence/vars"));
    let (settings, own) =
        (place.work().join(".ringfence/settings.json"), place.state().join("settings.json"));
    for (file, options, text) in [
        (&policy, &["--policy", ".ringfence/p.json"][..], STANDARD),
        (&vars, &["--env-file", ".ringfence/vars"], "A=1\n"),
        (&settings, &[], "{}"),
        (&own, &[], "{}"),
    ] {
        put(file, text);
        let run = || place.run(&[&["exec", "--mode", "native"], options, &["--", "true"]].concat());
        let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        set(file, 0o644);
        run().expect_code(0);
        for mode in [0o646, 0o666] {
            set(file, mode);
            let ran = run().expect_code(125);
            let told = ["other users can write it", "chmod go-w "].map(|words| ran.stderr.contains(words));
            assert_eq!(told, [true, true], "{mode:o}: {ran:?}");
        }
        set(file, 0o644);
        let directory = file.parent().unwrap();
        let before = fs::metadata(directory).unwrap().permissions();
        if file != &own {
            set(directory, 0o777);
            let ran = run().expect_code(125);
            assert!(ran.stderr.contains("other users can replace it"), "{ran:?}");
            set(directory, 0o1777);
            run().expect_code(0);
        }
        fs::set_permissions(directory, before).unwrap();
        run().expect_code(0);
        fs::remove_file(file).unwrap();
    }
}

/// Those of the group can write it if the group has other members.
#[test]
fn policy_that_another_group_can_write_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = Place::new();
    let policy = place.work().join(".ringfence/p.json");
    put(&policy, STANDARD);
    std::os::unix::fs::chown(&policy, None, Some(65533)).unwrap();
    for (mode, code) in [(0o644, 0), (0o664, 125)] {
        fs::set_permissions(&policy, Permissions::from_mode(mode)).unwrap();
        let run = ["exec", "--mode", "native", "--policy", ".ringfence/p.json", "--", "true"];
        place.run(&run).expect_code(code);
    }
}

/// A run in another workspace may have changed the file, long ago.
#[test]
fn policy_and_variables_where_another_run_has_worked_are_refused() {
    let place = Place::new();
    let (policy, vars) =
        (put(&place.work().join("policy.json"), STANDARD), put(&place.work().join("vars"), "A=1\n"));
    let own = put(&place.home().join("policy.json"), STANDARD);
    fs::create_dir(place.home().join("other")).unwrap();
    let other = place.home().join("other").display().to_string();
    let uses = [
        ["exec", "--mode", "native", "-C", &other, "--policy", &policy, "--", "true"],
        ["exec", "--mode", "native", "-C", &other, "--env-file", &vars, "--", "true"],
        ["exec", "--mode", "host", "-C", &other, "--env-file", &vars, "--", "true"],
        ["task", "add", "-C", &other, "--agent", "demo", "--policy", &policy, "x"],
    ];
    for arguments in uses {
        place.run(&arguments).expect_code(0);
    }
    exec(&place, "echo A=2 > vars").expect_code(0);
    for arguments in uses {
        let ran = place.run(&arguments).expect_code(125);
        assert!(ran.stderr.contains("where runs can write"), "{arguments:?}: {}", ran.stderr);
    }
    place.run(&["exec", "--mode", "native", "-C", &other, "--policy", &own, "--", "true"]).expect_code(0);
}

#[test]
fn link_to_a_policy_that_a_run_could_replace_is_refused() {
    let place = Place::new();
    fs::write(place.home().join("policy.json"), "{}").unwrap();
    symlink(place.home().join("policy.json"), place.work().join("policy.json")).unwrap();
    let ran =
        place.run(&["exec", "--mode", "native", "--policy", "./policy.json", "--", "true"]).expect_code(125);
    assert!(ran.stderr.contains("the run could replace the link"), "{}", ran.stderr);
}

/// Files that the settings name are protected in runs that do not use them; secrets are not even read.
#[test]
fn files_that_settings_name_cannot_be_changed_by_any_run() {
    let place = Place::new();
    let work = place.work().display().to_string();
    let settings = format!(
        r#"{{"agents": {{"strict": {{"cli": "claude", "policy": "{work}/conf/strict.json"}},
                       "later": {{"cli": "claude", "policy": "{work}/later.json"}}}},
            "broker": {{"prices_file": "{work}/prices.json", "ca_file": "{work}/linked",
                        "credentials": ["a.example x-key: {{file:{work}/conf/token}}"],
                        "codex_dir": "{work}/codex"}}}}"#
    );
    let place = place.settings(&settings);
    let files = [
        ("conf/strict.json", STANDARD),
        ("prices.json", PRICES),
        ("real", ""),
        ("conf/token", "canary"),
        ("codex/auth.json", "canary"),
    ];
    for (file, text) in files {
        put(&place.work().join(file), text);
    }
    symlink("real", place.work().join("linked")).unwrap();
    let ran = exec(&place, "cat prices.json conf/strict.json; cat conf/token codex/auth.json").expect_code(1);
    assert_eq!(ran.stdout, format!("{PRICES}{STANDARD}"), "{}", ran.stderr);
    for (file, text) in files {
        for attempt in attempts(file) {
            assert_ne!(exec(&place, &attempt).code(), 125);
            assert_eq!(place.read(file), text, "{attempt}");
        }
    }
    exec(&place, "rm -f linked; ln -s other linked; echo evil > later.json");
    assert_eq!(fs::read_link(place.work().join("linked")).unwrap(), Path::new("real"));
    assert!(!place.work().join("later.json").exists());
}

/// The settings themselves may lie elsewhere than in the state directory, and so may that.
#[test]
fn links_to_settings_and_to_the_state_directory_cannot_be_turned() {
    let place = Place::new();
    let state = place.home().join("state");
    fs::create_dir(&state).unwrap();
    fs::set_permissions(&state, Permissions::from_mode(0o700)).unwrap();
    put(&place.work().join("dotfiles/settings.json"), "{}");
    symlink(place.work().join("dotfiles/settings.json"), state.join("settings.json")).unwrap();
    symlink(&state, place.work().join("link")).unwrap();
    let place = {
        let link = place.work().join("link").display().to_string();
        place.env("RINGFENCE_HOME", link)
    };
    for attempt in attempts("dotfiles/settings.json").into_iter().chain([
        "rm link; mkdir link; echo evil > link/settings.json".to_owned(),
        "mv link gone; mkdir link".to_owned(),
    ]) {
        assert_ne!(exec(&place, &attempt).code(), 125);
        assert_eq!(place.read("dotfiles/settings.json"), "{}", "{attempt}");
        assert_eq!(fs::read_link(place.work().join("link")).unwrap(), state, "{attempt}");
    }
}

/// The program that the host executes next.
#[test]
fn own_program_cannot_be_replaced() {
    let place = Place::new();
    let program = place.work().join("bin/ringfence");
    fs::create_dir(place.work().join("bin")).unwrap();
    fs::copy(BINARY, &program).unwrap();
    let before = fs::metadata(&program).unwrap();
    for attempt in attempts("bin/ringfence") {
        let quoted = attempt.replace('\'', "'\\''");
        let ran = place.shell(&format!("exec bin/ringfence exec --mode native -- sh -c '{quoted}'"));
        assert_ne!(ran.code(), 125, "{ran:?}");
        let after = fs::metadata(&program).unwrap();
        assert_eq!(
            (before.len(), before.modified().unwrap()),
            (after.len(), after.modified().unwrap()),
            "{attempt}"
        );
    }
}

/// Trust is in settings as they were, not in a path.
#[test]
fn changed_settings_of_a_trusted_project_may_only_tighten() {
    let place = Place::new();
    let project = place.work().join("project");
    let file = project.join(".ringfence/settings.json");
    let loose = |seconds: u32| format!(r#"{{"sandbox": {{"timeout_seconds": {seconds}}}}}"#);
    put(&file, &loose(200));
    let place = place.settings(&format!(
        r#"{{"sandbox": {{"mode": "native", "timeout_seconds": 100}}, "trusted_projects": ["{}"]}}"#,
        project.display()
    ));
    let get = || place.run(&["exec", "-C", "project", "--", "true"]);
    get().expect_code(0);
    // A run in a directory above cannot bring others there.
    for attempt in attempts("project/.ringfence/settings.json") {
        exec(&place, &attempt);
        assert_eq!(fs::read_to_string(&file).unwrap(), loose(200), "{attempt}");
    }
    // A checkout can.
    fs::write(&file, loose(300)).unwrap();
    let ran = get().expect_code(125);
    assert!(
        ran.stderr.contains("are not those that were trusted")
            && ran.stderr.contains("ringfence config trust /"),
        "{}",
        ran.stderr
    );
    fs::write(&file, loose(50)).unwrap();
    get().expect_code(0);
    fs::write(&file, loose(300)).unwrap();
    place.run(&["config", "trust", "project"]).expect_code(0);
    get().expect_code(0);
    let other = place.work().join("other");
    put(&other.join(".ringfence/settings.json"), &loose(300));
    place.run(&["exec", "-C", "other", "--", "true"]).expect_code(125);
    place.run(&["config", "trust", "other"]).expect_code(0);
    place.run(&["exec", "-C", "other", "--", "true"]).expect_code(0);
    get().expect_code(0);
}

/// A trusted project without settings: no run makes them.
#[test]
fn settings_of_a_trusted_project_cannot_be_made() {
    let place = Place::new();
    fs::create_dir(place.work().join("project")).unwrap();
    let work = place.work().display().to_string();
    let place = place.settings(&format!(r#"{{"trusted_projects": ["{work}/project"]}}"#));
    for attempt in attempts("project/.ringfence/settings.json")
        .into_iter()
        .chain(["mkdir project/.ringfence; echo evil > project/.ringfence/settings.json".to_owned()])
    {
        exec(&place, &attempt);
        assert!(!place.work().join("project/.ringfence").exists(), "{attempt}");
    }
}

/// A run can keep the settings of a trusted project from being read while another run starts.
#[test]
fn what_unreadable_settings_of_a_trusted_project_named_stays_protected() {
    for unreadable in ["true", "chmod 0 project", "chmod 0444 project", "chmod 0 project; chmod 0444 ."] {
        let place = Place::new();
        let shared = place.home().canonicalize().unwrap().join("shared");
        let (policy, token) = (put(&shared.join("pol.json"), STANDARD), put(&shared.join("token"), "canary"));
        let settings = format!(
            r#"{{"sandbox": {{"policy": "{policy}"}}, "broker": {{"credentials": ["a.example x-key: {{file:{token}}}"]}}}}"#
        );
        put(&place.work().join("project/.ringfence/settings.json"), &settings);
        let user = format!(r#"{{"trusted_projects": ["{}/project"]}}"#, place.work().display());
        let place = place.settings(&user).of_user(65533);
        exec(&place, unreadable).expect_code(0);
        let script =
            format!("cat token; echo evil > pol.json; mv pol.json gone; echo evil > {policy}; echo ran");
        let shared = shared.to_str().unwrap();
        let ran = place.run(&["exec", "--mode", "native", "-C", shared, "--", "sh", "-c", &script]);
        assert!(ran.stdout.ends_with("ran\n") && !ran.stdout.contains("canary"), "{unreadable}: {ran:?}");
        assert_eq!(fs::read_to_string(&policy).unwrap(), STANDARD, "{unreadable}");
    }
}

/// The daemon stands elsewhere than the one who adds a task.
#[test]
fn policy_of_a_task_is_kept_as_an_absolute_path() {
    let place = Place::new();
    let policy = put(&place.home().join("policy.json"), STANDARD);
    let named = ["task", "add", "--json", "--agent", "demo", "--policy", "../home/../home/policy.json", "x"];
    let added = place.run(&named).expect_code(0).json();
    let shown =
        place.run(&["task", "show", added[0]["task"].as_str().unwrap(), "--json"]).expect_code(0).json();
    let policy = fs::canonicalize(policy).unwrap();
    assert_eq!(shown["task"]["spec"]["policy"], policy.to_str().unwrap(), "{shown}");
    place.run(&["task", "add", "--agent", "demo", "--policy", "./missing.json", "x"]).expect_code(125);
}

/// What a policy lets a run write is known by where it leads, however it is written.
#[test]
fn directory_that_a_policy_names_by_tilde_is_one_where_runs_write() {
    let place = Place::new();
    let shared = place.home().join("shared");
    let governing = put(&shared.join("gov.json"), STANDARD);
    let flagged = put(&shared.join("flagged.json"), STANDARD);
    let place = place
        .settings(&format!(r#"{{"agents": {{"strict": {{"cli": "claude", "policy": "{governing}"}}}}}}"#));
    let wide =
        put(&place.home().join("wide.json"), r#"{"extends": "standard", "files": {"write": ["~/shared"]}}"#);
    let script = format!("echo seen > {0}/made; echo evil > {0}/gov.json", shared.display());
    let words = ["exec", "--mode", "native", "--policy", &wide, "--", "sh", "-c", &script];
    assert_ne!(place.run(&words).code(), 125);
    assert_eq!(fs::read_to_string(shared.join("made")).unwrap(), "seen\n");
    assert_eq!(fs::read_to_string(&governing).unwrap(), STANDARD);
    let trees = fs::read_to_string(place.state().join("ringfence.trees")).unwrap();
    assert!(trees.split('\0').any(|tree| Path::new(tree) == shared.canonicalize().unwrap()), "{trees:?}");
    let ran = place.run(&["exec", "--mode", "native", "--policy", &flagged, "--", "true"]).expect_code(125);
    assert!(ran.stderr.contains("where runs can write"), "{}", ran.stderr);
}

#[test]
fn grant_that_cannot_be_resolved_is_refused() {
    let place = Place::new();
    symlink("loop", place.home().join("loop")).unwrap();
    for key in ["read", "write"] {
        let text = format!(r#"{{"extends": "standard", "files": {{"{key}": ["~/loop/x"]}}}}"#);
        let policy = put(&place.home().join("policy.json"), &text);
        let ran =
            place.run(&["exec", "--mode", "native", "--policy", &policy, "--", "true"]).expect_code(125);
        assert!(ran.stderr.contains("loop/x cannot be resolved"), "{}", ran.stderr);
    }
}

/// `--env-file=~/f`, which no shell expands, is the file that was checked.
#[test]
fn variables_are_read_from_the_file_that_was_checked() {
    let place = Place::new().env("SECRET", "canary".to_owned());
    put(&place.home().join("vars"), "GIVEN=1\n");
    exec(&place, "mkdir '~'; echo SECRET > '~/vars'").expect_code(0);
    let script = "echo $GIVEN $SECRET";
    let ran = place.run(&["exec", "--mode", "native", "--env-file=~/vars", "--", "sh", "-c", script]);
    assert_eq!(ran.expect_code(0).stdout, "1\n");
}

/// Below the root, and in what is given besides the workspace, a run can make a directory for policies.
#[test]
fn directory_for_policies_that_a_run_made_protects_nothing() {
    let place = Place::new();
    let shared = place.home().join("shared");
    fs::create_dir(&shared).unwrap();
    let write = shared.to_str().unwrap();
    let make = format!(
        "for d in pkg {write}; do mkdir -p $d/.ringfence; echo '{STANDARD}' > $d/.ringfence/p.json; done"
    );
    place.run(&["exec", "--mode", "native", "--write", write, "--", "sh", "-ec", &make]).expect_code(0);
    let given = shared.join(".ringfence/p.json").display().to_string();
    for (directory, policy) in
        [(".", "pkg/.ringfence/p.json"), ("pkg", "pkg/.ringfence/p.json"), (write, &given)]
    {
        for mode in ["native", "host"] {
            let words = ["exec", "--mode", mode, "-C", directory, "--policy", policy, "--", "true"];
            let ran = place.run(&words).expect_code(125);
            assert!(ran.stderr.contains("where runs can write"), "{words:?}: {}", ran.stderr);
        }
    }
}

/// A file outside of the workspace has a second name in it: the run does not write it by that name either.
#[test]
fn second_names_of_policies_and_variables_are_read_only() {
    let place = Place::new();
    let (policy, vars) =
        (put(&place.home().join("policy.json"), STANDARD), put(&place.home().join("vars"), "A=1\n"));
    let named = put(&place.home().join("strict.json"), STANDARD);
    let settings = format!(r#"{{"agents": {{"strict": {{"cli": "claude", "policy": "{named}"}}}}}}"#);
    let place = place.settings(&settings);
    for (file, name) in [(&policy, "second/policy"), (&vars, "second/vars"), (&named, "second/named")] {
        fs::create_dir_all(place.work().join("second")).unwrap();
        fs::hard_link(file, place.work().join(name)).unwrap();
        let text = fs::read_to_string(file).unwrap();
        for attempt in attempts(name) {
            let run =
                ["exec", "--mode", "native", "--policy", &policy, "--env-file", &vars, "--", "sh", "-c"];
            let ran = place.run(&[&run[..], &[attempt.as_str()]].concat());
            assert_ne!(ran.code(), 125, "{attempt}: {}", ran.stderr);
            assert_eq!(fs::read_to_string(file).unwrap(), text, "{attempt}");
        }
    }
}

/// A copy of the program at a path of the workspace, by which a daemon was started.
fn daemon_of_the_workspace() -> (Place, std::path::PathBuf) {
    let place = Place::new().settings(
        r#"{"sandbox": {"mode": "native"}, "queue": {"retry_seconds": 1, "retry_max_seconds": 1}}"#,
    );
    let program = place.work().join("target/ringfence");
    fs::create_dir(place.work().join("target")).unwrap();
    fs::copy(BINARY, &program).unwrap();
    assert_eq!(place.shell(&format!("{} start", program.display())).code(), 0);
    (place, program)
}

/// The user rebuilds the program, or a run of another installation writes it.
#[test]
fn daemon_whose_program_is_replaced_executes_its_own() {
    let (place, program) = daemon_of_the_workspace();
    let started = place.home().join("started");
    let evil = program.with_extension("new");
    fs::write(&evil, format!("#!/bin/sh\necho \"$@\" >> {}\n", started.display())).unwrap();
    fs::set_permissions(&evil, Permissions::from_mode(0o755)).unwrap();
    fs::rename(&evil, &program).unwrap();
    let work = place.work().display().to_string();
    let words = ["task", "add", "--json", "--command", "sh -c 'echo written > written'", "-C", &work];
    let added = place.run(&words).expect_code(0).json();
    let task = place.run(&["task", "wait", added[0]["task"].as_str().unwrap(), "--timeout", "60"]);
    place.run(&["stop"]).expect_code(0);
    assert!(!started.exists(), "{}", fs::read_to_string(started).unwrap());
    assert_eq!(place.read("written"), "written\n", "{task:?}");
}

/// The command line is another program than the daemon.
#[test]
fn program_of_the_daemon_is_protected_in_runs_of_another() {
    let (place, program) = daemon_of_the_workspace();
    let length = fs::metadata(&program).unwrap().len();
    fs::hard_link(&program, place.work().join("second")).unwrap();
    let mut scripts = attempts("target/ringfence");
    scripts.push("echo evil > second".to_owned());
    for script in scripts {
        exec(&place, &script);
        assert_eq!(fs::metadata(&program).map(|data| data.len()).ok(), Some(length), "{script}");
    }
    // Also when it does not run: the service manager starts it again.
    place.run(&["stop"]).expect_code(0);
    exec(&place, "echo evil > target/ringfence");
    assert_eq!(fs::metadata(&program).unwrap().len(), length);
}

/// A command of the installation whose state directory this is.
fn of_installation(place: &Place, state: &Path, args: &[&str]) -> Ran {
    place.command(args).env("RINGFENCE_HOME", state).output().map(Ran::from).unwrap()
}

#[test]
fn state_directory_that_a_run_could_have_made_is_refused() {
    let place = Place::new();
    let (state, owned) = (place.work().join("st"), place.home().join("owned"));
    let helper = format!(
        r#"{{"sandbox": {{"mode": "host"}}, "broker": {{"credentials": ["a.example x: {{command:touch {}}}"]}}}}"#,
        owned.display()
    );
    exec(&place, &format!("mkdir st; chmod 700 st; echo '{helper}' > st/settings.json")).expect_code(0);
    let link = place.home().join("link");
    symlink(&state, &link).unwrap();
    // And a link of the run that leads to what is the user's.
    let real = place.home().join("real");
    put(&real.join("settings.json"), "{}");
    fs::set_permissions(&real, Permissions::from_mode(0o700)).unwrap();
    exec(&place, &format!("ln -s {} turned", real.display())).expect_code(0);
    let turned = place.work().join("turned");
    let verbs = [
        &["exec", "--", "true"][..],
        &["exec", "--allow", "a.example", "--", "true"],
        &["config", "list"],
        &["start"],
    ];
    for (state, verb) in
        [&state, &link, &turned].into_iter().flat_map(|state| verbs.map(|verb| (state, verb)))
    {
        let ran = of_installation(&place, state, verb).expect_code(125);
        let said =
            ran.stderr.contains("could have been made by a run") && ran.stderr.contains("set RINGFENCE_HOME");
        assert!(said && !owned.exists(), "{}: {verb:?}: {ran:?}", state.display());
    }
    // One that the user makes there is the user's, also after further runs.
    let own = place.work().join("own");
    of_installation(&place, &own, &["config", "set", "sandbox.mode", "native"]).expect_code(0);
    exec(&place, "true").expect_code(0);
    for _ in 0..2 {
        of_installation(&place, &own, &["exec", "--", "true"]).expect_code(0);
    }
    // Another directory in its place is not.
    fs::rename(&own, place.home().join("away")).unwrap();
    exec(&place, &format!("mkdir own; chmod 700 own; echo '{helper}' > own/settings.json"));
    of_installation(&place, &own, &["exec", "--", "true"]).expect_code(125);
    of_installation(&place, &real, &["exec", "--mode", "native", "--", "true"]).expect_code(0);
}

/// The user cannot list it, and its settings can be read all the same.
#[test]
fn state_directory_of_a_run_that_cannot_be_listed_is_refused() {
    let place = Place::new().of_user(65533);
    for mode in ["0300", "0100", "0700"] {
        exec(&place, &format!("mkdir st{mode}; echo '{{}}' > st{mode}/settings.json; chmod {mode} st{mode}"))
            .expect_code(0);
        let state = place.work().join(format!("st{mode}"));
        let ran = of_installation(&place, &state, &["config", "list"]).expect_code(125);
        assert!(ran.stderr.contains("could have been made by a run"), "{mode}: {ran:?}");
    }
}

#[test]
fn link_to_the_state_directory_of_another_installation_cannot_be_turned() {
    let place = Place::new();
    let real = place.home().join("real");
    fs::create_dir(&real).unwrap();
    fs::set_permissions(&real, Permissions::from_mode(0o700)).unwrap();
    let link = place.work().join("st");
    symlink(&real, &link).unwrap();
    of_installation(&place, &link, &["config", "set", "sandbox.mode", "native"]).expect_code(0);
    for attempt in ["mv st o; mkdir st; echo '{}' > st/settings.json", "rm st; mkdir st", "ln -sfn /tmp st"] {
        assert_ne!(exec(&place, attempt).code(), 125);
        assert_eq!(fs::read_link(&link).unwrap(), real, "{attempt}");
    }
    of_installation(&place, &link, &["exec", "--", "true"]).expect_code(0);
    // However it was turned: what is there now is not what was listed.
    fs::remove_file(&link).unwrap();
    put(&link.join("settings.json"), r#"{"sandbox": {"mode": "host"}}"#);
    fs::set_permissions(&link, Permissions::from_mode(0o700)).unwrap();
    let ran = of_installation(&place, &link, &["exec", "--", "true"]).expect_code(125);
    assert!(ran.stderr.contains("could have been made by a run"), "{ran:?}");
}

#[test]
fn state_directory_with_settings_alone_is_hidden() {
    let place = Place::new();
    let state = place.work().join("st");
    of_installation(&place, &state, &["config", "set", "sandbox.mode", "native"]).expect_code(0);
    let ran = exec(&place, "cat st/settings.json; ls -A st; echo evil > st/settings.json; mv st o; mkdir st");
    assert!(!ran.stdout.contains("native") && !ran.stdout.contains("settings.json"), "{ran:?}");
    let text = fs::read_to_string(state.join("settings.json")).unwrap();
    assert!(text.contains("native") && !text.contains("evil"), "{text}");
}

/// What is written there while a run goes on would be the run's too.
#[test]
fn state_directory_is_not_made_where_an_active_run_sees_it() {
    let place = Place::new();
    let run = place.spawn(&[
        "exec",
        "--mode",
        "native",
        "--",
        "sh",
        "-c",
        "touch ready; until [ -e go ]; do sleep 0.05; done",
    ]);
    wait_for("the run", || place.work().join("ready").exists().then_some(()));
    let state = place.work().join("st");
    for verb in [&["config", "set", "sandbox.mode", "native"][..], &["task", "list"], &["exec", "--", "true"]]
    {
        let ran = of_installation(&place, &state, verb).expect_code(125);
        assert!(ran.stderr.contains("would be seen by run") && !state.exists(), "{ran:?}");
    }
    fs::write(place.work().join("go"), "").unwrap();
    Ran::from(run.wait_with_output().unwrap()).expect_code(0);
}

#[test]
fn mode_without_a_boundary_is_warned_about_by_exec() {
    let place = Place::new();
    let ran = place.run(&["exec", "--mode", "host", "--", "echo", "out"]).expect_code(0);
    assert!(ran.stdout == "out\n" && ran.stderr.contains("has no boundary"), "{ran:?}");
    assert_eq!(exec(&place, "true").stderr, "");
}
