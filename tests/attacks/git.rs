//! What git on the host executes after a run, and what the host reads of a repository before one.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Place, Ran};

pub(crate) fn exec(place: &Place, script: &str) -> Ran {
    place.run(&["exec", "--mode", "native", "--", "sh", "-c", script])
}

pub(crate) fn exec_at(place: &Place, at: &Path, script: &str) -> Ran {
    place.run(&["exec", "--mode", "native", "-C", at.to_str().unwrap(), "--", "sh", "-c", script])
}

/// Git on the host, as the user would call it.
pub(crate) fn git(at: &Path, args: &[&str]) -> (bool, String) {
    let mut command = Command::new("git");
    for (name, value) in [
        ("AUTHOR_NAME", "u"),
        ("AUTHOR_EMAIL", "u@localhost"),
        ("COMMITTER_NAME", "u"),
        ("COMMITTER_EMAIL", "u@localhost"),
    ] {
        command.env(format!("GIT_{name}"), value);
    }
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    let output = command.args(args).current_dir(at).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

pub(crate) fn repository(at: &Path) {
    fs::create_dir_all(at).unwrap();
    assert!(git(at, &["init", "-q", "-b", "main"]).0);
    fs::write(at.join("file"), "1\n").unwrap();
    assert!(git(at, &["add", "-A"]).0);
    assert!(git(at, &["commit", "-qm", "one"]).0);
}

/// Runs to the end, in so many bytes of address space.
fn limited(place: &Place, args: &[&str], bytes: u64) -> Ran {
    let plain = place.command(args);
    let mut command = Command::new("prlimit");
    command.arg(format!("--as={bytes}")).arg(plain.get_program()).args(plain.get_args()).env_clear();
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?)))).current_dir(place.work());
    Ran::from(command.stdin(std::process::Stdio::null()).output().unwrap())
}

/// A script that shows that it was executed.
pub(crate) fn trap(place: &Place) -> (String, PathBuf) {
    let (script, mark) = (place.home().join("trap"), place.home().join("executed"));
    fs::write(&script, format!("#!/bin/sh\ntouch '{}'\n", mark.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    (script.display().to_string(), mark)
}

pub(crate) fn assert_reported(place: &Place, path: &str) {
    let shown = place.run(&["runs", "show", "last", "--json"]).json();
    let files = shown["result"]["executed_later"].as_array().cloned().unwrap_or_default();
    assert!(files.iter().any(|file| file["path"] == path), "{path} is not reported: {shown}");
}

#[test]
fn files_of_the_user_do_not_reach_a_run_by_links_in_its_git_directory() {
    let place = Place::new().env("ANTHROPIC_API_KEY", "sk-canary-in-the-environment");
    repository(&place.work());
    fs::create_dir(place.home().join(".ssh")).unwrap();
    let key = place.home().join(".ssh/id_ed25519");
    fs::write(&key, "canary-private-key\n").unwrap();
    // What the host reads of a git directory when a run begins.
    let names = [
        "info/exclude",
        "info/attributes",
        "info/sparse-checkout",
        "config",
        "config.worktree",
        "HEAD",
        "ORIG_HEAD",
        "FETCH_HEAD",
        "MERGE_HEAD",
        "MERGE_MSG",
        "packed-refs",
        "shallow",
        "description",
        "index",
        "logs/HEAD",
        "logs/refs/heads/main",
        "logs/refs/stash",
        "refs/heads/x",
        "sharedindex.0123456789012345678901234567890123456789",
        "objects/info/alternates",
        "hooks",
        "modules",
        "lfs",
    ];
    for target in ["/proc/self/environ", key.to_str().unwrap()] {
        for name in names {
            // By a run, which writes its private git directory alone.
            let link =
                format!("rm -rf .git/{name}; mkdir -p $(dirname .git/{name}); ln -s {target} .git/{name}");
            exec(&place, &link);
            // And as a repository that came so, from an archive or from a run above.
            let real = place.work().join(".git").join(name);
            let kept = real.symlink_metadata().is_ok().then(|| place.home().join("kept"));
            if let Some(kept) = &kept {
                fs::rename(&real, kept).unwrap();
            }
            symlink(target, &real).unwrap();
            let ran = exec(
                &place,
                "cat $(find -L .git -type f) .git/hooks .git/modules .git/lfs 2>/dev/null; git status; true",
            );
            fs::remove_file(&real).unwrap();
            if let Some(kept) = &kept {
                fs::rename(kept, &real).unwrap();
            }
            assert!(!ran.stdout.contains("canary"), "{name} -> {target}: {}", ran.stdout);
            assert_ne!(ran.code(), 125, "{name}: {}", ran.stderr);
        }
    }
}

#[test]
fn a_huge_file_in_a_git_directory_costs_no_memory() {
    for name in ["info/exclude", "HEAD", "config", "packed-refs", "index", "logs/HEAD", "MERGE_MSG"] {
        let place = Place::new();
        repository(&place.work());
        let file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(place.work().join(".git").join(name))
            .unwrap();
        file.set_len(3 << 30).unwrap();
        // Far less than the file.
        let ran = limited(&place, &["exec", "--mode", "native", "--", "true"], 1 << 30);
        assert!(
            ran.code() == 0 || (ran.code() == 125 && !ran.stderr.contains("panicked")),
            "{name}: {} {}",
            ran.code(),
            ran.stderr
        );
    }
}

#[test]
fn git_status_executes_nothing_after_a_run_moved_head_away() {
    let place = Place::new();
    repository(&place.work());
    let (script, mark) = trap(&place);
    exec(
        &place,
        &format!(
            "mv .git/HEAD .git/gone; mkdir -p objects refs; echo 'ref: refs/heads/main' > HEAD; \
             printf '[core]\\n\\trepositoryformatversion = 0\\n\\tfsmonitor = {script}\\n\\tworktree = .\\n' > config"
        ),
    );
    let (found, said) = git(&place.work(), &["status"]);
    assert!(found && !mark.exists(), "{said}");
    assert_reported(&place, "HEAD");
}

#[test]
fn a_gitlink_and_a_new_repository_are_reported() {
    let place = Place::new();
    repository(&place.work());
    let (script, _) = trap(&place);
    exec(
        &place,
        &format!(
            "git init -q hidden && git -C hidden config core.fsmonitor {script}; mkdir sub; \
             echo 'gitdir: ../hidden/.git' > sub/.git; mkdir bare; git init -q --bare bare/x.git"
        ),
    );
    for path in ["hidden/.git", "sub/.git", "bare/x.git/HEAD"] {
        assert_reported(&place, path);
    }
    // People see it without asking for JSON.
    let shown = place.run(&["runs", "show", "last", "--log"]);
    assert!(shown.stderr.contains("sub/.git (git executes"), "{}", shown.stderr);
}

#[test]
fn a_repository_below_the_workspace_is_protected_and_takes_commits() {
    let place = Place::new();
    repository(&place.work());
    let nested = place.work().join("a/b/nested");
    repository(&nested);
    let (script, mark) = trap(&place);
    let before = fs::read(nested.join(".git/config")).unwrap();
    let ran = exec(
        &place,
        &format!(
            "cd a/b/nested; git -c user.name=a -c user.email=a@b commit -q --allow-empty -m inside && \
             git config core.fsmonitor {script}; echo evil > .git/hooks/pre-commit; rm -f .git/hooks; mkdir -p .git/hooks; \
             cp {script} .git/hooks/post-checkout; mv .git .gone"
        ),
    );
    assert_ne!(ran.code(), 0, "the git directory can be moved away");
    assert_eq!(fs::read(nested.join(".git/config")).unwrap(), before);
    assert_eq!(git(&nested, &["log", "-1", "--format=%s"]).1, "inside\n");
    git(&nested, &["status"]);
    git(&nested, &["checkout", "-q", "-b", "x"]);
    assert!(!mark.exists());
}

#[test]
fn directories_of_hooks_are_protected() {
    for (hooks, file) in [
        (".husky/_", ".husky/pre-commit"),
        (".githooks", ".githooks/pre-commit"),
        ("tools/hooks", "tools/hooks/pre-commit"),
    ] {
        for exists in [true, false] {
            let place = Place::new();
            repository(&place.work());
            assert!(git(&place.work(), &["config", "core.hooksPath", hooks]).0);
            if exists {
                fs::create_dir_all(place.work().join(hooks)).unwrap();
            }
            let (_, mark) = trap(&place);
            let ran = exec(
                &place,
                &format!(
                    "mkdir -p {hooks}; printf '#!/bin/sh\\ntouch {}\\n' > {file} && chmod +x {file}",
                    mark.display()
                ),
            );
            assert_ne!(ran.code(), 0, "{hooks} {exists}");
            git(&place.work(), &["commit", "-q", "--allow-empty", "-m", "two"]);
            assert!(!mark.exists() && !place.work().join(file).exists(), "{hooks} {exists}");
        }
    }
}

#[test]
fn stub_files_of_a_run_below_are_not_carried_into_other_projects() {
    let place = Place::new();
    let (mono, other) = (place.work().join("mono"), place.work().join("other"));
    fs::create_dir_all(mono.join("sub")).unwrap();
    fs::create_dir(&other).unwrap();
    // A run above opens what a run below reserves, and writes when that one is over.
    let script = "import os, time
names = ['sub/opencode.json', 'sub/.mcp.json', 'sub/.envrc']
open('ready', 'w').close()
held = {}
while len(held) < len(names):
    for name in names:
        try:
            os.chmod(name, 0o600)
            held.setdefault(name, os.open(name, os.O_RDWR))
        except OSError: pass
open('opened', 'w').close()
while not os.path.exists('over'): time.sleep(0.01)
for descriptor in held.values(): os.write(descriptor, b'evil')
";
    let above = place.spawn(&[
        "exec",
        "--mode",
        "native",
        "-C",
        mono.to_str().unwrap(),
        "--",
        "/usr/bin/python3",
        "-c",
        script,
    ]);
    crate::support::wait_for("the run above", || mono.join("ready").exists().then_some(()));
    let wait = "while [ ! -e go ]; do sleep 0.01; done";
    let below = place.spawn(&[
        "exec",
        "--mode",
        "native",
        "-C",
        mono.join("sub").to_str().unwrap(),
        "--",
        "sh",
        "-c",
        wait,
    ]);
    crate::support::wait_for("its descriptors", || mono.join("opened").exists().then_some(()));
    fs::write(mono.join("sub/go"), "").unwrap();
    assert!(below.wait_with_output().unwrap().status.success());
    fs::write(mono.join("over"), "").unwrap();
    assert!(above.wait_with_output().unwrap().status.success());
    exec_at(&place, &other, "cat .envrc .mcp.json opencode.json | grep evil && exit 9; true").expect_code(0);
    assert_eq!(fs::read_dir(&other).unwrap().count(), 0, "nothing is left");
}

#[test]
fn commits_of_a_killed_run_are_imported_by_the_next() {
    let place = Place::new();
    repository(&place.work());
    let script =
        "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m lost; echo > committed; sleep 1000";
    let mut child = place.spawn(&["exec", "--mode", "native", "--", "sh", "-c", script]);
    crate::support::wait_for("the commit", || place.work().join("committed").exists().then_some(()));
    crate::support::signal(child.id(), "-KILL");
    child.wait().unwrap();
    assert_eq!(git(&place.work(), &["log", "-1", "--format=%s"]).1, "one\n");
    crate::support::wait_for("the import", || {
        let ran = exec(&place, "true");
        assert_eq!(ran.code(), 0, "{}", ran.stderr);
        (git(&place.work(), &["log", "-1", "--format=%s"]).1 == "lost\n").then_some(())
    });
}

/// A pointer of a submodule is text that a run in a directory above may have written.
#[test]
fn a_pointer_to_a_git_directory_makes_nothing_on_the_host() {
    let place = Place::new();
    let work = place.work().canonicalize().unwrap();
    let home = place.home().canonicalize().unwrap();
    let old = format!("deep/.old{}/planted", home.display());
    let script = format!(
        "mkdir -p deep/1/2 {old} sub; ln -s {}/sub {old}/link; git init -q --bare g; ln -s ../deep/1/2 g/M; \
         git -C g config core.bare false; git -C g config core.worktree M/../../.old{}/planted/link; \
         echo 'gitdir: ../g' > sub/.git",
        work.display(),
        home.display()
    );
    exec(&place, &script).expect_code(0);
    exec_at(&place, &work.join("sub"), "true").expect_code(0);
    assert!(!home.join("planted").exists());
    // And none that would be mounted over the system.
    for name in ["usr", "etc", ".old", ".ringfence"] {
        let place = Place::new();
        let script = format!(
            "mkdir sub; git init -q {name}; git -C {name} config core.worktree ../../sub; echo 'gitdir: ../{name}/.git' > sub/.git"
        );
        exec(&place, &script);
        exec_at(&place, &place.work().join("sub"), "ls /usr/bin > /dev/null").expect_code(0);
    }
}

#[test]
fn objects_of_another_repository_do_not_reach_a_run() {
    let place = Place::new();
    repository(&place.work());
    let private = place.home().join("private");
    repository(&private);
    fs::write(private.join("secret.c"), "canary\n").unwrap();
    assert!(git(&private, &["add", "-A"]).0 && git(&private, &["commit", "-qm", "secret"]).0);
    let private = private.canonicalize().unwrap();
    exec(
        &place,
        &format!("git init -q x; echo {}/.git/objects > x/.git/objects/info/alternates", private.display()),
    );
    let commit = "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x";
    exec(
        &place,
        &format!(
            "cd x; for i in $(seq 260); do echo $i > f$i; done; git add -A; {commit}; rm -f .git/index; ln -s {}/.git/index .git/index",
            private.display()
        ),
    );
    exec(&place, &format!("rm -f .git/index; ln -s {}/.git/index .git/index; {commit}", private.display()));
    let ran = exec(
        &place,
        "(cd x; git checkout .; cat secret.c; git ls-files); git ls-files; git checkout .; cat secret.c",
    );
    assert!(!ran.stdout.contains("canary") && !ran.stdout.contains("secret.c"), "{}", ran.stdout);
}

#[test]
fn hidden_files_stay_hidden_in_a_git_directory() {
    let place = Place::new();
    for below in ["", "objects/", "hooks/", "modules/"] {
        let _ = fs::remove_dir_all(place.work().join("x"));
        fs::create_dir_all(place.work().join("conf")).unwrap();
        fs::write(place.work().join("conf/.env"), "canary").unwrap();
        let script = format!("git init -q x; mkdir -p x/.git/{below}; mv conf x/.git/{below}conf");
        exec(&place, &script).expect_code(0);
        let ran = exec(&place, "cat /dev/null $(find / -name .env 2>/dev/null); true");
        assert!(!ran.stdout.contains("canary"), "{below}: {}", ran.stdout);
    }
    fs::create_dir_all(place.work().join("conf")).unwrap();
    fs::write(place.work().join("conf/.env"), "canary").unwrap();
    exec(&place, "mkdir -p y/.git; mv conf y/.git/conf").expect_code(0);
    let ran = exec(&place, "cat y/.git/conf/.env; true");
    assert!(!ran.stdout.contains("canary"), "{}", ran.stdout);
}

#[test]
fn a_git_directory_that_points_to_another_is_reported_and_held() {
    let place = Place::new();
    repository(&place.work());
    exec(&place, "mkdir -p d/f/objects d/f/refs; echo 'ref: refs/heads/main' > d/HEAD; echo f > d/commondir");
    assert_reported(&place, "d/HEAD");
    assert_reported(&place, "d/commondir");
    let bare = place.work().join("bare.git");
    assert!(git(&place.work(), &["init", "-q", "--bare", bare.to_str().unwrap()]).0);
    for attempt in
        ["echo ../x > bare.git/commondir", "echo x > bare.git/config.worktree", "echo x >> bare.git/config"]
    {
        assert_ne!(exec(&place, attempt).code(), 0, "{attempt}");
    }
}

#[test]
fn an_import_does_not_write_through_links() {
    let place = Place::new();
    repository(&place.work());
    let outside = place.home().join("outside");
    fs::create_dir(&outside).unwrap();
    let out = outside.canonicalize().unwrap();
    let script = format!(
        "git init -q -b main x; mkdir -p x/.git/logs/refs/heads; ln -s {0}/log x/.git/logs/refs/heads/main; ln -s {0} x/.git/refs/heads/dir",
        out.display()
    );
    exec(&place, &script).expect_code(0);
    exec(
        &place,
        "cd x; echo 1 > f; git add f; git -c user.name=a -c user.email=a@b commit -qm x; git branch dir/planted",
    );
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}

/// A run that takes away the user's own rights to its workspace is told of, and nothing of its work is lost.
#[test]
fn a_workspace_that_a_run_shuts_is_reported_and_its_commits_are_kept() {
    for shut in [".", ".git", "inner"] {
        let place = Place::new();
        repository(&place.work());
        fs::create_dir(place.work().join("inner")).unwrap();
        let place = place.of_user(65533);
        let ran = exec(
            &place,
            &format!("git -c user.name=a -c user.email=a@b commit -q --allow-empty -m kept; chmod 0 {shut}"),
        );
        assert!(shut != "." || ran.stderr.contains("they were given back"), "{}", ran.stderr);
        let log = || git(&place.work(), &["-c", "safe.directory=*", "log", "-1", "--format=%s"]).1;
        if !log().contains("kept") {
            assert!(
                ran.stderr.contains("were not imported") && ran.stderr.contains("ringfence apply"),
                "{}",
                ran.stderr
            );
        }
        let run = place.run(&["runs", "show", "last", "--json"]).json()["result"]["run"].clone();
        let next = exec(&place, "echo fine");
        assert_eq!(next.stdout, "fine\n", "{shut}: {}", next.stderr);
        for directory in [".", ".git", "inner"] {
            let at = place.work().join(directory);
            fs::set_permissions(at, fs::Permissions::from_mode(0o755)).unwrap();
        }
        exec(&place, "echo fine").expect_code(0);
        if !log().contains("kept") {
            let applied = place.run(&["apply", run.as_str().unwrap()]);
            assert!(log().contains("kept"), "{shut}: {} {}", applied.stdout, applied.stderr);
        }
    }
}

/// Git in a superproject reads the git directory of each submodule, which says where its working tree is.
#[test]
fn git_works_in_a_superproject_and_its_submodules_are_read_only() {
    let place = Place::new();
    let (work, library) = (place.work(), place.home().join("library"));
    repository(&library);
    repository(&work);
    let url = library.display().to_string();
    let add = ["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", &url, "deps/library"];
    assert!(git(&work, &add).0);
    assert!(git(&work, &["commit", "-qm", "with a submodule"]).0);
    for mapping in ["mapped", "same-path"] {
        place.run(&["config", "set", "sandbox.path_mapping_mode", mapping]).expect_code(0);
        let script = "git status --short && git submodule status && git -C deps/library log --format=%s && \
            echo 2 > file && git -c user.name=a -c user.email=a@b commit -qam two && git diff --submodule HEAD~1 --stat";
        let ran = exec(&place, script).expect_code(0);
        assert!(
            ran.stdout.contains("deps/library (heads/main)\none\n"),
            "{mapping}: {} {}",
            ran.stdout,
            ran.stderr
        );
        assert!(!ran.stderr.contains("submodules that the run made"), "{}", ran.stderr);
        assert_eq!(git(&work, &["log", "-1", "--format=%s"]).1, "two\n", "{mapping}: {}", ran.stderr);
        let evil = "d=.git/modules/deps/library; echo x >> $d/config; echo x > $d/hooks/pre-commit; mv .git/modules gone; \
            rm -rf .git/modules; mv .git/modules/deps .git/x; mkdir -p $d; echo x >> $d/config; true";
        exec(&place, evil).expect_code(0);
        let own = work.join(".git/modules/deps/library");
        assert!(!own.join("hooks/pre-commit").exists());
        assert!(
            fs::read_to_string(own.join("config")).unwrap().contains("worktree") && git(&work, &["status"]).0
        );
        assert!(git(&work, &["reset", "-q", "--hard", "HEAD~1"]).0);
    }
}

#[test]
fn credentials_in_the_configuration_of_a_repository_are_not_seen() {
    let place = Place::new();
    let work = place.work();
    repository(&work);
    let secrets = "[http \"https://h.example/\"]\n\textraheader = AUTHORIZATION: basic canary\n\
        [remote \"origin\"]\n\turl = https://me:canary@h.example/r\n[credential]\n\thelper = store --file=canary\n";
    let config = fs::read_to_string(work.join(".git/config")).unwrap();
    fs::write(work.join(".git/config"), format!("{config}{secrets}")).unwrap();
    let ran = exec(
        &place,
        "cat .git/config; git config --list; git remote -v; echo 2 > file && git -c user.name=u -c user.email=u@h.example commit -qam two",
    );
    assert!(!ran.stdout.contains("canary") && ran.stdout.contains("https://h.example/r"), "{ran:?}");
    assert_eq!(git(&work, &["log", "-1", "--format=%s"]).1.trim(), "two", "{ran:?}");
    assert!(fs::read_to_string(work.join(".git/config")).unwrap().contains("canary"));
    let notices = place.run(&["runs", "show", "last", "--json"]).json()["record"]["notices"].to_string();
    assert_eq!(notices.matches("credentials in the git configuration").count(), 1, "{notices}");
}

/// A run may have marked a pointer as a stub file of Ringfence.
#[test]
fn marked_pointer_below_the_workspace_is_no_stub() {
    let place = Place::new();
    repository(&place.work());
    fs::create_dir(place.work().join("sub")).unwrap();
    let pointer = place.work().join("sub/.git");
    fs::write(&pointer, "gitdir: ../x\n").unwrap();
    rustix::fs::setxattr(&pointer, c"user.ringfence.stand-in", b"1", rustix::fs::XattrFlags::empty())
        .unwrap();
    exec(&place, "echo 'gitdir: evil' > sub/.git; rm -f sub/.git; echo 'gitdir: evil' > sub/.git; true");
    assert_eq!(fs::read_to_string(&pointer).unwrap(), "gitdir: ../x\n");
}

/// The state directory may be readable for others until a command of this version has made it private.
#[test]
fn notes_of_a_private_git_directory_are_the_users_alone() {
    let place = Place::new();
    repository(&place.work());
    let look = format!("stat -c '%a %n' {0}/git {0}/git/* {0}/git/*/start.json", place.state().display());
    let child = place.spawn(&[
        "exec",
        "--mode",
        "native",
        "--",
        "sh",
        "-c",
        "touch ready; until [ -e go ]; do sleep 0.05; done",
    ]);
    crate::support::wait_for("the run", || place.work().join("ready").exists().then_some(()));
    let modes = place.shell(&look);
    fs::write(place.work().join("go"), "").unwrap();
    Ran::from(child.wait_with_output().unwrap()).expect_code(0);
    let modes: Vec<&str> = modes.stdout.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(modes, ["700", "700", "600"]);
}
