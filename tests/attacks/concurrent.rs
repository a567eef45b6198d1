//! Runs that are active at once, in one workspace or in one above the other, and work together: none of them reads or writes
//! through another one what is covered in both.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;

use crate::sandbox::Sandbox;
use crate::support::wait_for;

fn write(path: PathBuf, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn end(mut run: Child) {
    run.kill().unwrap();
    run.wait().unwrap();
}

/// Moves `conf` to and fro, and `decoy` to its place meanwhile.
const MOVES: &str = "for (;;) { rename('conf', 'a/b'); rename('decoy', 'conf'); rename('conf', 'decoy'); \
                     rename('a/b', 'z/b'); rename('z/b', 'conf'); }";

/// Starts runs while another one moves directories. Each of them starts or says what was moved.
fn start_while_directories_move(sandbox: &Sandbox, script: &str) {
    let mover = sandbox.start(&[], &format!("perl -e \"{MOVES}\" &"));
    let run = || {
        let ran = sandbox.place.run(&sandbox.args(&[], &["sh", "-c", script]));
        assert!(!ran.stdout.contains("canary"), "{}", ran.stdout);
        let is_told = ["moved", "not found"].iter().any(|why| ran.stderr.contains(why));
        assert!(ran.code() == 0 || is_told, "{}", ran.stderr);
        ran.code() == 0
    };
    for _ in 0..40 {
        run();
    }
    end(mover);
    // What it started ends a moment later.
    wait_for("a run that starts", || run().then_some(()));
}

/// The contents of a file wherever its directory is.
fn moved(work: &Path, name: &str) -> Vec<String> {
    let places = ["conf", "decoy", "a/b", "z/b"].map(|place| work.join(place).join(name));
    let mut found: Vec<String> = places.iter().filter_map(|path| fs::read_to_string(path).ok()).collect();
    found.sort();
    found
}

fn workspace_with_directories_to_move() -> Sandbox {
    let sandbox = Sandbox::native();
    for directory in ["conf", "decoy", "a", "z"] {
        fs::create_dir(sandbox.place.work().join(directory)).unwrap();
    }
    sandbox
}

#[test]
fn hidden_files_that_another_run_moves_are_not_read() {
    let sandbox = workspace_with_directories_to_move();
    write(sandbox.place.work().join("conf/.env"), "canary");
    write(sandbox.place.work().join("decoy/.env"), "decoy");
    start_while_directories_move(&sandbox, "cat conf/.env decoy/.env */b/.env 2>/dev/null; true");
}

#[test]
fn protected_paths_that_another_run_moves_are_not_written() {
    let sandbox = workspace_with_directories_to_move();
    let work = sandbox.place.work();
    for directory in ["conf", "decoy"] {
        write(work.join(directory).join(".envrc"), directory);
        write(work.join(directory).join(".vscode/tasks.json"), directory);
    }
    start_while_directories_move(
        &sandbox,
        "for d in conf decoy a/b z/b; do (echo broken > $d/.envrc; echo broken > $d/.vscode/tasks.json; \
         echo broken > $d/.vscode/more.json) 2>/dev/null; done; true",
    );
    assert_eq!(moved(&work, ".envrc"), ["conf", "decoy"]);
    assert_eq!(moved(&work, ".vscode/tasks.json"), ["conf", "decoy"]);
}

#[test]
fn git_directories_that_another_run_moves_are_not_written() {
    let sandbox = workspace_with_directories_to_move();
    let work = sandbox.place.work();
    for directory in ["conf", "decoy"] {
        let made = std::process::Command::new("git").arg("init").arg("-q").arg(work.join(directory)).status();
        assert!(made.unwrap().success());
        write(work.join(directory).join(".git/config"), "[core]\n\tbare = false\n");
        fs::create_dir_all(work.join(directory).join(".git/hooks")).unwrap();
    }
    start_while_directories_move(
        &sandbox,
        "for d in conf decoy a/b z/b; do (echo broken > $d/.git/config; \
         echo broken > $d/.git/hooks/pre-commit) 2>/dev/null; done; true",
    );
    assert_eq!(moved(&work, ".git/config"), ["[core]\n\tbare = false\n"; 2]);
    assert_eq!(moved(&work, ".git/hooks/pre-commit"), [""; 0]);
}

#[test]
fn directories_hidden_whole_that_another_run_moves_are_not_read() {
    let sandbox = workspace_with_directories_to_move();
    let work = sandbox.place.work();
    for number in 0..70 {
        write(work.join(format!("conf/keys/{number}.pem")), "canary");
        write(work.join(format!("decoy/keys/{number}.pem")), "decoy");
    }
    start_while_directories_move(&sandbox, "cat */keys/* */b/keys/* 2>/dev/null; true");
}

#[test]
fn what_another_run_hides_stays_hidden_under_another_name() {
    let sandbox = Sandbox::native();
    let work = sandbox.place.work();
    write(work.join("conf/private/key.txt"), "canary");
    let policy = sandbox.place.home().join("policy.json");
    write(policy.clone(), r#"{"extends": "standard", "files": {"deny": ["conf/private/*"]}}"#);
    let options = ["--policy", policy.to_str().unwrap()];
    let first = sandbox.start(&options, "mv conf other");
    assert!(work.join("other/private/key.txt").exists());
    let ran = sandbox.exec(&options, &["sh", "-c", "cat other/private/key.txt; echo done"]);
    end(first);
    assert_eq!(ran.stdout, "done\n", "{}", ran.stderr);
}

#[test]
fn a_crowd_of_denied_files_uncovers_nothing_that_was_hidden_alone() {
    let sandbox = Sandbox::native();
    let work = sandbox.place.work();
    write(work.join("x/conf/.env"), "canary");
    let first = sandbox.start(
        &[],
        "for i in $(seq 3000); do mkdir -p x/$i; echo made > x/$i/.env; done; \
         (while ! test -e second; do sleep 0.01; done; mv x/conf y; touch moved) &",
    );
    let script = "touch second; while ! test -e moved; do sleep 0.01; done; cat y/.env";
    let ran = sandbox.place.run(&sandbox.args(&["--timeout", "20s"], &["sh", "-c", script]));
    end(first);
    assert!(!ran.stdout.contains("canary"), "{}", ran.stdout);
}

/// A run in a directory below another one's.
fn run_below(sandbox: &Sandbox, script: &str) -> crate::support::Ran {
    sandbox.place.run(&sandbox.args(&["-C", "sub"], &["sh", "-c", script]))
}

#[test]
fn a_run_below_another_one_is_refused_if_hidden_files_could_come_to_it() {
    let sandbox = Sandbox::native();
    let work = sandbox.place.work();
    write(work.join("pkg/.env"), "canary");
    write(work.join("sub/file"), "");
    let above = sandbox.start(&[], "true");
    let ran = run_below(&sandbox, "echo started");
    assert_eq!((ran.code(), ran.stdout.as_str()), (125, ""), "{}", ran.stderr);
    for part in ["is active in", "pkg/.env", "wait until that run has ended"] {
        assert!(ran.stderr.contains(part), "{}", ran.stderr);
    }
    sandbox.sh("echo a run in the same directory");
    end(above);
    wait_for("a run that starts", || (run_below(&sandbox, "true").code() == 0).then_some(()));
}

#[test]
fn runs_go_on_side_by_side_if_nothing_hidden_can_be_moved() {
    let sandbox = Sandbox::native();
    let work = sandbox.place.work();
    write(work.join(".env"), "canary");
    write(work.join("sub/conf/.env"), "canary");
    write(work.join("pkg/.envrc"), "");
    let above = sandbox.start(&[], "true");
    let ran = run_below(&sandbox, "cat conf/.env; echo started");
    end(above);
    assert_eq!((ran.code(), ran.stdout.as_str()), (0, "started\n"), "{}", ran.stderr);
}

#[test]
fn a_run_above_another_one_moves_nothing_into_its_workspace() {
    let sandbox = Sandbox::native();
    let work = sandbox.place.work();
    write(work.join("pkg/.env"), "canary");
    fs::create_dir(work.join("sub")).unwrap();
    let script = "touch started; while ! test -e done; do sleep 0.01; done";
    let below = sandbox.place.command(&sandbox.args(&["-C", "sub"], &["sh", "-c", script])).spawn().unwrap();
    wait_for("the run below", || work.join("sub/started").exists().then_some(()));
    let moves = "print rename('pkg', 'sub/pkg') ? 'moved' : \"$!\\n\"; print rename('sub', 'other') ? 'moved' : \"$!\\n\"; \
                 print rename('pkg', 'other') ? \"fine\\n\" : $!; open(my $f, '>', 'sub/done');";
    let ran = sandbox.exec(&[], &["perl", "-e", moves]);
    end(below);
    assert_eq!(ran.stdout, "Invalid cross-device link\nDevice or resource busy\nfine\n", "{}", ran.stderr);
}

#[test]
fn entries_of_killed_runs_do_not_refuse_the_next() {
    let sandbox = Sandbox::native();
    let work = sandbox.place.work();
    write(work.join("conf/.env"), "canary");
    let mut killed = sandbox.start(&[], "true");
    killed.kill().unwrap();
    killed.wait().unwrap();
    fs::remove_dir_all(work.join("conf")).unwrap();
    wait_for("a run that starts", || {
        let ran = sandbox.place.run(&sandbox.args(&[], &["true"]));
        (ran.code() == 0).then_some(())
    });
    sandbox.sh("true");
    let names = |file: &fs::DirEntry| {
        // The length of the entry is in the second half of the first eight bytes.
        fs::read(file.path()).unwrap().get(4..8).is_some_and(|length| length != [0; 4])
    };
    let register = fs::read_dir(sandbox.place.state().join("active")).unwrap();
    assert_eq!(register.map(Result::unwrap).filter(names).count(), 0);
}

#[test]
fn long_paths_of_covers_do_not_refuse_a_run() {
    let sandbox = Sandbox::native();
    sandbox.sh("python3 -c \"import os
deep = b'deep/' + b'/'.join([bytes([0xff]) * 200] * 3)
for i in range(2000):
    d = deep + b'/%d' % i
    os.makedirs(d)
    open(d + b'/.env', 'w').write('canary')
    open(d + b'/.envrc', 'w').write('x')\"");
    let ran = sandbox.sh("echo fine; grep -rs canary deep | head -c 100");
    assert_eq!(ran.stdout, "fine\n", "{}", ran.stderr);
}

#[test]
fn names_in_the_root_that_are_too_long_to_cover_refuse_the_run() {
    let sandbox = Sandbox::native();
    sandbox.sh("python3 -c \"for i in range(20000): open('n' * 200 + str(i) + '.pem', 'w')\"");
    let ran = sandbox.place.run(&sandbox.args(&[], &["true"]));
    assert!(ran.code() == 125 && ran.stderr.contains("are too long"), "{}", ran.stderr);
}

/// Starts a run in `sub` that goes on until `sub/done` is there.
fn start_below(sandbox: &Sandbox) -> Child {
    let script = "touch started; while ! test -e done; do sleep 0.01; done";
    let args = sandbox.args(&["-C", "sub"], &["sh", "-c", script]);
    let below = sandbox.place.command(&args).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let started = sandbox.place.work().join("sub/started");
    wait_for("the run below", || started.exists().then_some(()));
    below
}

/// Makes a repository with a hook of what is there already.
const FILL_STUB: &str = "mkdir -p sub/.git/hooks && printf x > sub/.git/hooks/pre-commit && echo filled; \
                         printf x > sub/.claude/settings.json && echo written; rmdir sub/.git && echo removed; touch sub/done";

#[test]
fn stub_directories_of_a_run_below_are_not_filled_by_a_later_run_above() {
    let sandbox = Sandbox::native();
    fs::create_dir(sandbox.place.work().join("sub")).unwrap();
    let mut below = start_below(&sandbox);
    let ran = sandbox.sh(FILL_STUB);
    assert_eq!(below.wait().unwrap().code(), Some(0));
    assert_eq!(ran.stdout, "", "{}", ran.stderr);
    assert!(!ran.stderr.contains("look before you use it"), "stubs are no findings: {}", ran.stderr);
    assert!(!sandbox.place.work().join("sub/.git").exists());
}

#[test]
fn stub_directories_that_an_earlier_run_above_fills_are_reported_by_both() {
    let sandbox = Sandbox::native();
    let work = sandbox.place.work();
    fs::create_dir(work.join("sub")).unwrap();
    let script = format!("touch ready; while ! test -e sub/started; do sleep 0.01; done; {FILL_STUB}");
    let args = sandbox.args(&[], &["sh", "-c", &script]);
    let mut command = sandbox.place.command(&args);
    let above = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let above = above.spawn().unwrap();
    wait_for("the run above", || work.join("ready").exists().then_some(()));
    let below = start_below(&sandbox);
    let [above, below] = [above, below].map(|run| run.wait_with_output().unwrap());
    let told = |output: &std::process::Output| String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(work.join("sub/.git/hooks/pre-commit").exists(), "{}", told(&above));
    assert!(told(&above).contains("sub/.git (git executes"), "{}", told(&above));
    assert!(told(&below).contains(" .git (git executes"), "{}", told(&below));
    assert!(told(&below).contains(".claude/settings.json"), "{}", told(&below));
}

/// Each run takes its own private git directory away with it, and no other one's.
#[test]
fn commits_of_runs_that_start_together_are_all_imported() {
    let sandbox = Sandbox::native();
    let work = sandbox.place.work();
    crate::git::repository(&work);
    for round in 0..3 {
        let script = |run: usize| {
            format!(
                "git checkout -q -b r{round}-{run}z && echo {round} > f{run} && git add f{run} && git -c user.name=u -c user.email=u@localhost commit -qm {run}"
            )
        };
        let start = |run| sandbox.place.spawn(&sandbox.args(&[], &["sh", "-c", &script(run)]));
        for run in (0..4).map(start).collect::<Vec<Child>>() {
            let ran = crate::support::Ran::from(run.wait_with_output().unwrap());
            assert_eq!(ran.code(), 0, "{ran:?}");
        }
        let (_, branches) = crate::git::git(&work, &["branch", "--list", &format!("r{round}-*")]);
        assert_eq!(branches.lines().count(), 4, "{round}: {branches}");
    }
}
