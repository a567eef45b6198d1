//! What a run leaves in its workspace cannot refuse, break or lead astray a later run; and what governs a run is out of its
//! reach.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use crate::support::{Place, Ran};

fn exec(place: &Place, script: &str) -> Ran {
    place.run(&["exec", "--mode", "native", "--", "sh", "-c", script])
}

/// A user for whom permissions hold, unlike root.
const USER: u32 = 65533;

#[test]
fn what_a_run_leaves_does_not_refuse_the_next() {
    for leave in [
        "ln -s /usr x.pem",
        "ln -s . y.pem; ln -s .. z.pem; ln -s x.pem x.pem",
        "mkdir l; chmod 0 l",
        "mkdir -p a/b; echo 1 > a/b/f; chmod 0 a/b; chmod 0 a",
        "python3 -c \"import os\nfor _ in range(40): os.mkdir('d' * 200); os.chdir('d' * 200)\"",
        "python3 -c \"import os\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')\"",
        "mkfifo p.pem .env; mkfifo fifo",
        "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('s.pem')\"",
        "mkdir m; for i in $(seq 200); do echo k > m/$i.pem; done",
        "printf x > \"$(printf 'a\\nb\\033[2J.pem')\"",
        "mkdir sub; ln -s /etc sub/.git; ln -s /etc sub/.vscode; ln -s / sub/.claude",
        "mkdir -p sub/.git; mkfifo sub/.git/config; ln -s /etc/passwd sub/.git/HEAD; mkdir sub/.git/objects sub/.git/refs",
        "mkdir -p bare/objects bare/refs; echo x > bare/HEAD; mkfifo bare/config",
        "setfattr -n user.ringfence.stand-in -v 1 . 2>/dev/null; true",
    ] {
        let place = Place::new().of_user(USER);
        exec(&place, leave).expect_code(0);
        let ran = exec(&place, "echo fine; ls / > /dev/null; ls -a > /dev/null").expect_code(0);
        assert_eq!(ran.stdout, "fine\n", "{leave}: {}", ran.stderr);
        make_removable(&place);
    }
}

/// Lets the test's own directory be removed.
fn make_removable(place: &Place) {
    std::process::Command::new("chmod").args(["-R", "u+rwX"]).arg(place.work()).status().unwrap();
}

#[test]
fn a_directory_that_cannot_be_searched_is_hidden_and_reported() {
    let place = Place::new().of_user(USER);
    fs::create_dir(place.work().join("shut")).unwrap();
    fs::write(place.work().join("shut/.env"), "canary").unwrap();
    fs::set_permissions(place.work().join("shut"), fs::Permissions::from_mode(0o000)).unwrap();
    let ran = place.run(&[
        "exec",
        "--mode",
        "native",
        "--json",
        "--",
        "sh",
        "-c",
        "chmod 700 shut; cat shut/.env; true",
    ]);
    assert!(!ran.stdout.contains("canary"), "{}", ran.stdout);
    assert!(ran.stdout.contains("what cannot be searched is hidden: shut"), "{}", ran.stdout);
    make_removable(&place);
}

#[test]
fn a_denied_link_hides_nothing_but_itself() {
    let place = Place::new();
    for name in ["src", "keys"] {
        fs::create_dir(place.work().join(name)).unwrap();
    }
    fs::write(place.work().join("src/main.rs"), "fn main() {}").unwrap();
    fs::write(place.work().join("keys/a.pem"), "canary").unwrap();
    exec(&place, "ln -s src k.pem; ln -s src/main.rs .env; ln -s keys/a.pem plain; ln -s /usr/bin c.pem; ln -s . d.pem")
        .expect_code(0);
    let ran = exec(
        &place,
        "cat src/main.rs k.pem/main.rs && echo 2 > src/lib.rs && ls /usr/bin > /dev/null && echo fine; cat plain keys/a.pem",
    );
    assert!(ran.stdout.contains("fine") && !ran.stdout.contains("canary"), "{} {}", ran.stdout, ran.stderr);
    let notices = place.run(&["runs", "show", "last", "--json"]).json()["record"]["notices"].to_string();
    assert!(notices.contains("links with denied names") && notices.contains("k.pem"), "{notices}");
}

/// Each denied or protected path is a mount, so there is a most of them. A run must not use that up for the next.
#[test]
fn any_number_of_denied_and_protected_files_refuses_no_run() {
    for (names, file, hidden, notice) in [
        ("[f'x/{i}' for i in range(5000)]", ".env", "x", "hidden whole"),
        ("[f'x{i}' for i in range(300)]", "*.pem", "x1", "hidden whole"),
        ("[f'd{i}' for i in range(5000)]", ".env", "", ""),
        ("[f'p/{i}' for i in range(5000)]", ".envrc", "", "read-only as a whole"),
    ] {
        let leave = &format!(
            "python3 -c \"import os
for d in {names}:
    os.makedirs(d)
    for f in [str(i) + '.pem' for i in range(20)] if '{file}' == '*.pem' else ['{file}']:
        open(d + '/' + f, 'w').write('x' if d[0] == 'p' else 'canary')\""
        );
        let place = Place::new();
        fs::create_dir(place.work().join("src")).unwrap();
        exec(&place, leave).expect_code(0);
        let ran = exec(
            &place,
            "echo 1 > src/a && echo fine; grep -rs canary . | head -c 100; ls x x1; echo x > p/7/.envrc",
        );
        assert!(ran.stdout.starts_with("fine\n"), "{leave}: {} {}", ran.stdout, ran.stderr);
        assert!(!ran.stdout.contains("canary"), "{leave}: {}", ran.stdout);
        let notices = place.run(&["runs", "show", "last", "--json"]).json()["record"]["notices"].to_string();
        assert!(notices.contains(notice) && notices.contains(hidden), "{leave}: {notices}");
    }
}

#[test]
fn protected_names_below_the_root_are_protected_where_they_exist() {
    let place = Place::new();
    let names = [
        ".vscode/tasks.json",
        ".mcp.json",
        ".claude/settings.json",
        ".envrc",
        ".bashrc",
        ".gitmodules",
        "opencode.json",
        ".idea/x",
    ];
    for name in names {
        let path = place.work().join("pkg/sub").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "mine").unwrap();
    }
    for name in names {
        exec(&place, &format!("echo evil > pkg/sub/{name}; rm -f pkg/sub/{name}; mv pkg/sub/{name} x"));
        assert_eq!(place.read(&format!("pkg/sub/{name}")), "mine", "{name}");
    }
}

#[test]
fn a_policy_file_cannot_be_rewritten_by_the_run_that_it_governs() {
    let place = Place::new();
    let evil = r#"{"extends": "open"}"#;
    fs::create_dir(place.work().join("conf")).unwrap();
    for file in ["policy.json", "conf/policy.json"] {
        fs::write(place.work().join(file), r#"{"extends": "standard"}"#).unwrap();
        for attempt in [
            format!("echo '{evil}' > {file}"),
            format!("echo '{evil}' > x; mv -f x {file}"),
            format!("rm -f {file}; echo '{evil}' > {file}"),
            "mv conf gone && mkdir conf && echo evil > conf/policy.json".to_owned(),
        ] {
            let named = format!("./{file}");
            place.run(&["exec", "--mode", "native", "--policy", &named, "--", "sh", "-c", &attempt]);
            assert_eq!(place.read(file), r#"{"extends": "standard"}"#, "{attempt}");
        }
    }
}

#[test]
fn a_file_of_variables_cannot_be_rewritten_by_the_run_that_it_governs() {
    let place = Place::new();
    fs::write(place.work().join("vars"), "A=1\n").unwrap();
    place.run(&[
        "exec",
        "--mode",
        "native",
        "--env-file",
        "vars",
        "--",
        "sh",
        "-c",
        "echo LD_PRELOAD=x > vars; rm -f vars; mv vars x",
    ]);
    assert_eq!(place.read("vars"), "A=1\n");
}

#[test]
fn a_link_to_a_policy_that_the_run_could_replace_is_refused() {
    let place = Place::new();
    fs::write(place.home().join("policy.json"), "{}").unwrap();
    symlink(place.home().join("policy.json"), place.work().join("policy.json")).unwrap();
    let ran =
        place.run(&["exec", "--mode", "native", "--policy", "./policy.json", "--", "true"]).expect_code(125);
    assert!(ran.stderr.contains("the run could replace the link"), "{}", ran.stderr);
}

#[test]
fn the_home_and_what_is_above_it_are_refused_as_a_workspace() {
    let place = Place::new();
    let home = place.home();
    for at in [home.clone(), home.parent().unwrap().to_owned(), "/".into()] {
        let ran = place
            .run(&["exec", "--mode", "native", "-C", at.to_str().unwrap(), "--", "true"])
            .expect_code(125);
        assert!(
            ran.stderr.contains("your home directory") && ran.stderr.contains("--home-workspace"),
            "{}",
            ran.stderr
        );
    }
    symlink(&home, place.work().join("link")).unwrap();
    place.run(&["exec", "--mode", "native", "-C", "link", "--", "true"]).expect_code(125);
    place
        .run(&["exec", "--mode", "native", "--home-workspace", "-C", home.to_str().unwrap(), "--", "true"])
        .expect_code(0);
}

#[test]
fn a_diff_marks_files_that_programs_execute_later() {
    let place = Place::new();
    let script = "mkdir sub; echo evil > sub/.envrc; echo 1 > plain";
    place
        .run(&["exec", "--mode", "native", "--workspace", "overlay", "--", "sh", "-c", script])
        .expect_code(0);
    let shown = place.run(&["diff", "last"]).expect_code(0).stdout;
    assert!(shown.contains("A sub/.envrc added; a shell executes it"), "{shown}");
    let changes = place.run(&["diff", "last", "--json"]).expect_code(0).json();
    let marked: Vec<_> =
        changes.as_array().unwrap().iter().filter(|change| change["executed_later"].is_string()).collect();
    assert_eq!(marked.len(), 1, "{changes}");
}

#[test]
fn a_run_that_moves_directories_uncovers_nothing_for_another() {
    let sandbox = crate::sandbox::Sandbox::native();
    let work = sandbox.place.work();
    for directory in ["conf", "decoy", "a", "z"] {
        fs::create_dir(work.join(directory)).unwrap();
    }
    fs::write(work.join("conf/.env"), "canary").unwrap();
    fs::write(work.join("decoy/.env"), "decoy").unwrap();
    let moves = "for (;;) { rename('conf', 'a/b'); rename('decoy', 'conf'); rename('conf', 'decoy'); \
                 rename('a/b', 'z/b'); rename('z/b', 'conf'); }";
    let mut mover = sandbox.start(&[], &format!("perl -e \"{moves}\" &"));
    let script = "cat conf/.env decoy/.env */b/.env 2>/dev/null; true";
    let run = || {
        let ran = sandbox.place.run(&sandbox.args(&[], &["sh", "-c", script]));
        assert!(!ran.stdout.contains("canary"), "{}", ran.stdout);
        assert!(ran.code() == 0 || ran.stderr.contains("moved"), "{}", ran.stderr);
        ran.code() == 0
    };
    for _ in 0..60 {
        run();
    }
    mover.kill().unwrap();
    mover.wait().unwrap();
    // What it started ends a moment later.
    crate::support::wait_for("a run that starts", || run().then_some(()));
}

#[test]
fn a_link_in_the_path_of_a_workspace_is_reported() {
    let place = Place::new();
    let (mono, other) = (place.work().join("mono"), place.work().join("other"));
    for directory in [&mono, &other] {
        fs::create_dir_all(directory).unwrap();
    }
    let at = |path: &std::path::Path| {
        place.run(&["exec", "--mode", "native", "-C", path.to_str().unwrap(), "--", "true"]).expect_code(0)
    };
    at(&mono);
    place
        .run(&["exec", "--mode", "native", "-C", "mono", "--", "ln", "-s", "../other", "link"])
        .expect_code(0);
    let real = other.canonicalize().unwrap();
    let ran = at(&mono.join("link"));
    let expected = format!("the workspace is {}:", real.display());
    assert_eq!(ran.stderr.matches(&expected).count(), 1, "{}", ran.stderr);
    assert_eq!(at(&real).stderr, "");
    assert_eq!(at(&real.join("../other/.")).stderr, "");
}

#[test]
fn a_program_without_a_terminal_is_told_of_files_that_are_executed_later() {
    let place = Place::new();
    // Decoys whose names come first do not hide what git executes.
    let ran = exec(
        &place,
        "for i in $(seq 60); do mkdir -p a/$i; echo '{ \"x\": 1 }' > a/$i/package.json; done; git init -q z",
    )
    .expect_code(0);
    let told: Vec<&str> = ran.stderr.lines().filter(|line| line.contains("programs execute")).collect();
    assert_eq!(told.len(), 1, "{}", ran.stderr);
    assert!(told[0].contains("programs execute: z/.git (git executes"), "{}", told[0]);
    let quiet = exec(&place, "echo 1 > plain").expect_code(0);
    assert_eq!(quiet.stderr, "");
}
