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
        "git init -q n; mkdir n/.git/x; chmod 0 n/.git/x",
        "git init -q n; chmod 0 n/.git/refs/heads n/.git/objects/pack",
        "git init -q n; cd n/.git; python3 -c \"import os\nfor _ in range(40): os.mkdir('d' * 200); os.chdir('d' * 200)\"",
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
fn a_link_in_the_path_of_a_workspace_is_reported_and_one_of_a_run_refused() {
    let place = Place::new();
    let (mono, other) = (place.work().join("mono"), place.work().join("other"));
    for directory in [&mono, &other] {
        fs::create_dir_all(directory).unwrap();
    }
    let at = |path: &std::path::Path| {
        place.run(&["exec", "--mode", "native", "-C", path.to_str().unwrap(), "--", "true"])
    };
    at(&mono).expect_code(0);
    place
        .run(&["exec", "--mode", "native", "-C", "mono", "--", "ln", "-s", "../other", "link"])
        .expect_code(0);
    let refused = at(&mono.join("link")).expect_code(125);
    assert!(refused.stderr.contains("which a run could have made"), "{}", refused.stderr);
    let real = other.canonicalize().unwrap();
    let link = place.home().join("link");
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let ran = at(&link).expect_code(0);
    let expected = format!("the workspace is {}:", real.display());
    assert_eq!(ran.stderr.matches(&expected).count(), 1, "{}", ran.stderr);
    assert_eq!(at(&real).expect_code(0).stderr, "");
    assert_eq!(at(&real.join("../other/.")).expect_code(0).stderr, "");
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
    let told: Vec<&str> = ran.stderr.lines().filter(|line| line.contains("look before")).collect();
    assert_eq!(told.len(), 1, "{}", ran.stderr);
    assert!(told[0].contains("programs execute: z/.git (git executes"), "{}", told[0]);
    let quiet = exec(&place, "echo 1 > plain").expect_code(0);
    assert_eq!(quiet.stderr, "");
}

#[test]
fn denied_files_that_are_moved_into_refs_or_logs_stay_hidden() {
    for (prepare, policy) in [
        (
            "git init -q r; git init -q r/.git/objects/s; mkdir r/.git/objects/s/.git/logs; mv app r/.git/objects/s/.git/logs/app",
            "standard",
        ),
        (
            "for i in $(seq 20); do git init -q s$i; done; for i in $(seq 20); do mkdir -p s$i/.git/refs/app; done; mv app s20/.git/refs/app/app",
            "standard",
        ),
        ("git init -q r; mkdir r/.git/logs; mv app r/.git/logs/app", "locked"),
        ("git init -q r; mkdir r/.git/refs/app; mv app r/.git/refs/app/app", "standard"),
    ] {
        let place = Place::new();
        fs::create_dir(place.work().join("app")).unwrap();
        fs::write(place.work().join("app/.env"), "canary").unwrap();
        exec(&place, prepare).expect_code(0);
        let read = "find / -xdev -name .env 2>/dev/null | xargs cat; find . /.ringfence -name .env 2>/dev/null | xargs cat; true";
        let ran = place.run(&["exec", "--mode", "native", "--policy", policy, "--", "sh", "-c", read]);
        assert!(!ran.stdout.contains("canary"), "{prepare}: {}", ran.stdout);
        assert_eq!(ran.code(), 0, "{}", ran.stderr);
    }
}

#[test]
fn names_that_are_no_text_and_names_that_are_taken_refuse_no_run() {
    for leave in [
        "touch \"$(printf '\\377.pem')\"",
        "mkdir \"$(printf '\\377')\"; echo x > \"$(printf '\\377')/.env\"; echo x > \"$(printf '\\377')/.envrc\"",
        "git init -q r; echo k > k.pem; ln k.pem r/.git/objects/k2",
        "mkdir s; echo x > s/.envrc; git init -q r; ln s/.envrc r/.git/objects/k2",
        "mkdir -p r/.git/objects/.git/refs/x; echo x > r/.git/objects/.git/refs/x/.env",
        "for i in $(seq 4000); do echo > .ringfence-$i-0; done",
    ] {
        let place = Place::new();
        exec(&place, leave).expect_code(0);
        let ran = exec(&place, "cat ./*.pem ./*/.env 2>/dev/null; echo fine");
        assert_eq!((ran.code(), ran.stdout.as_str()), (0, "fine\n"), "{leave}: {}", ran.stderr);
    }
}

#[test]
fn directories_above_a_state_directory_in_the_workspace_cannot_be_moved() {
    let place = Place::new();
    let state = place.work().join("d/e/state");
    fs::create_dir_all(&state).unwrap();
    let run = |script: &str| {
        let mut command = place.command(&["exec", "--mode", "native", "--", "sh", "-c", script]);
        command.env("RINGFENCE_HOME", &state).output().unwrap()
    };
    let moved = run("mv d d2; mv d/e d/e2; ls d");
    assert_eq!(String::from_utf8_lossy(&moved.stdout), "e\n", "{}", String::from_utf8_lossy(&moved.stderr));
    assert!(state.is_dir());
}

#[test]
fn stub_files_of_a_run_below_are_not_those_of_the_run_above() {
    let sandbox = crate::sandbox::Sandbox::native();
    let work = sandbox.place.work();
    fs::create_dir(work.join("sub")).unwrap();
    let mut above = sandbox.start(
        &[],
        "(while ! test -e sub/started; do sleep 0.01; done; mv sub sub2; ln -s . sub; touch moved; \
         while ! test -e done; do sleep 0.01; done; \
         mkdir .git 2>/dev/null && touch made; echo x > .mcp.json && touch made; touch tried) &",
    );
    let script = "touch started; while ! test -e ended; do sleep 0.01; done";
    let below =
        sandbox.place.command(&["exec", "--mode", "native", "-C", "sub", "--", "sh", "-c", script]).spawn();
    let mut below = below.unwrap();
    crate::support::wait_for("the move", || work.join("moved").exists().then_some(()));
    fs::write(work.join("sub2/ended"), "").unwrap();
    assert!(below.wait().unwrap().success());
    fs::write(work.join("done"), "").unwrap();
    crate::support::wait_for("the attempts", || work.join("tried").exists().then_some(()));
    let (moved, made) = (work.join("moved").exists(), work.join("made").exists());
    above.kill().unwrap();
    above.wait().unwrap();
    assert!(moved && !made, "moved {moved}, made {made}");
    assert!(!work.join("sub2/.envrc").exists(), "the stub files of the run below are gone");
}

#[test]
fn a_directory_that_was_handed_to_another_run_keeps_its_covers() {
    let sandbox = crate::sandbox::Sandbox::native();
    let work = sandbox.place.work();
    fs::write(work.join(".env"), "canary").unwrap();
    fs::write(
        work.join("keep.py"),
        "import array, os, socket, time\n\
         listener = socket.socket(socket.AF_UNIX); listener.bind('s'); listener.listen(); open('listening', 'w')\n\
         peer, _ = listener.accept()\n\
         _, ancillary, _, _ = peer.recvmsg(1, socket.CMSG_SPACE(4))\n\
         fd = array.array('i', ancillary[0][2])[0]\n\
         open('taken', 'w')\n\
         while not os.path.exists('over'): time.sleep(0.01)\n\
         text = open(os.open('.env', os.O_RDONLY, dir_fd=fd)).read()\n\
         open('read', 'w').write('<' + text + '>')\n",
    )
    .unwrap();
    fs::write(
        work.join("give.py"),
        "import array, os, socket, time\n\
         open('giving', 'w')\n\
         while not os.path.exists('listening'): time.sleep(0.01)\n\
         peer = socket.socket(socket.AF_UNIX); peer.connect('s')\n\
         fd = os.open('.', os.O_RDONLY)\n\
         peer.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [fd]))])\n\
         while not os.path.exists('taken'): time.sleep(0.01)\n",
    )
    .unwrap();
    // A socket that is there when a run starts is hidden, so the one that gives starts first.
    let giver = sandbox.place.command(&sandbox.args(&[], &["/usr/bin/python3", "give.py"])).spawn();
    crate::support::wait_for("the giver", || work.join("giving").exists().then_some(()));
    let mut keeper = sandbox.start(&[], "/usr/bin/python3 keep.py &");
    assert!(giver.unwrap().wait().unwrap().success());
    fs::write(work.join("over"), "").unwrap();
    let read = crate::support::wait_for("what was read", || {
        fs::read_to_string(work.join("read")).ok().filter(|text| text.ends_with('>'))
    });
    keeper.kill().unwrap();
    keeper.wait().unwrap();
    assert_eq!(read, "<>", "the file is hidden in the directory of the other run too");
}

#[test]
fn directories_that_a_run_moves_do_not_hide_what_is_executed_in_them() {
    let place = Place::new();
    exec(&place, "mkdir -p pkg/vsc src; echo '{\"tasks\": []}' > pkg/vsc/tasks.json").expect_code(0);
    fs::write(place.work().join("src/package.json"), "{\"scripts\": {}}").unwrap();
    exec(&place, "mv pkg/vsc pkg/.vscode").expect_code(0);
    crate::git::assert_reported(&place, "pkg/.vscode/tasks.json");
    // A repository is held in its place, and a copy of it is new.
    crate::git::repository(&place.work().join("testdata/repo"));
    exec(&place, "cp -r testdata/repo lib").expect_code(0);
    crate::git::assert_reported(&place, "lib/.git");
    // Work beside such files is not reported.
    let quiet = exec(&place, "echo 1 > src/a; echo 1 > b; mv src/a src/c; mkdir src/d").expect_code(0);
    assert_eq!(quiet.stderr, "");
}

#[test]
fn what_a_policy_lets_a_run_write_is_searched_too() {
    let place = Place::new();
    crate::git::repository(&place.work());
    let more = place.home().join("more");
    fs::create_dir(&more).unwrap();
    let more = more.canonicalize().unwrap();
    let policy = serde_json::json!({"extends": "standard", "files": {"git": "direct", "write": [more]}});
    let file = place.home().join("policy.json");
    fs::write(&file, policy.to_string()).unwrap();
    let script = format!(
        "echo evil > .git/hooks/pre-commit; git config a.b c; echo evil > {more}/.envrc; git init -q {more}",
        more = more.display()
    );
    let policy = file.to_str().unwrap();
    place.run(&["exec", "--mode", "native", "--policy", policy, "--", "sh", "-c", &script]).expect_code(0);
    let (envrc, git) = (more.join(".envrc"), more.join(".git"));
    for path in [".git/hooks/pre-commit", ".git/config", envrc.to_str().unwrap(), git.to_str().unwrap()] {
        crate::git::assert_reported(&place, path);
    }
    // A person reads the same.
    let shown = place.run(&["runs", "show", "last"]).expect_code(0).stdout;
    assert!(shown.contains(".git/hooks/pre-commit (git executes"), "{shown}");
}

#[test]
fn a_bare_repository_as_the_workspace_keeps_its_hooks_and_configuration() {
    let place = Place::new();
    assert!(crate::git::git(&place.work(), &["init", "-q", "--bare"]).0);
    let config = place.read("config");
    let script = "echo evil > hooks/post-update; echo evil > config; mv hooks x; mv config y; echo evil > config.worktree; \
                  echo 1 > plain";
    exec(&place, script);
    assert_eq!(place.read("config"), config);
    assert_eq!(place.read("plain"), "1\n");
    for made in ["hooks/post-update", "x", "y", "config.worktree"] {
        assert!(!place.work().join(made).exists(), "{made}");
    }
    assert!(crate::git::git(&place.work(), &["rev-parse", "--is-bare-repository"]).0);
}

#[test]
fn a_directory_that_was_made_a_repository_is_reported_by_the_run_that_cannot_write_it() {
    let place = Place::new();
    exec(&place, "mkdir -p src/objects src/refs; echo 'ref: refs/heads/x' > src/HEAD").expect_code(0);
    exec(&place, "echo 1 > src/a").expect_code(2);
    let notices = place.run(&["runs", "show", "last", "--json"]).json()["record"]["notices"].to_string();
    assert!(notices.contains("remove `HEAD` in it if it is none): src"), "{notices}");
}

#[test]
fn what_a_lost_run_made_is_reported_by_the_next() {
    let place = Place::new();
    let script = "mkdir sub; echo evil > sub/.envrc; echo > made; sleep 1000";
    let mut run = place
        .command(&["exec", "--mode", "native", "--", "sh", "-c", script])
        .stdin(std::process::Stdio::null())
        .spawn()
        .unwrap();
    crate::support::wait_for("what the run makes", || place.work().join("made").exists().then_some(()));
    run.kill().unwrap();
    run.wait().unwrap();
    crate::support::wait_for("a notice of the lost run", || {
        let ran = place.run(&["exec", "--mode", "native", "--", "true"]).expect_code(0);
        let told = ran.stderr.contains("which was lost:") && ran.stderr.contains("sub/.envrc");
        told.then_some(())
    });
    let quiet = place.run(&["exec", "--mode", "native", "--", "true"]).expect_code(0);
    assert_eq!(quiet.stderr, "");
}

/// Another user of the machine could put there what programs of this one execute.
#[test]
fn what_a_run_opens_to_all_users_is_reported() {
    let place = Place::new();
    for (name, mode) in [("old", 0o777), ("kept", 0o755), ("opened", 0o755)] {
        fs::create_dir(place.work().join(name)).unwrap();
        fs::set_permissions(place.work().join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let open = "chmod 777 opened; mkdir -p new/below; chmod 777 new new/below; mkdir sticky empty; chmod 1777 sticky; chmod 757 empty
        echo 1 > old/x; echo 1 > kept/x; echo evil > .npmrc; chmod 666 .npmrc; echo 1 > plain; chmod 666 plain";
    let told = |script: &str| {
        let ran = exec(&place, script).expect_code(0);
        let line = ran.stderr.lines().find(|line| line.contains("every user of this machine can write"));
        let named = line.and_then(|line| line.split_once("since the run: ")?.1.split_once(';'));
        let mut named: Vec<String> = named.unwrap_or_default().0.split(", ").map(str::to_owned).collect();
        named.sort();
        named
    };
    assert_eq!(told(open), [".npmrc", "empty", "new", "opened"]);
    assert_eq!(told("echo 1 > opened/y; echo 1 > new/below/y"), [""]);
    assert_eq!(told("chmod 777 ."), ["."]);
}

/// Ten trees of ten trees, and so on: a few objects that are millions of files.
#[test]
fn trees_without_end_in_a_commit_exhaust_no_host_and_are_reported() {
    let place = Place::new();
    crate::git::repository(&place.work());
    let script = "id=$(echo x | git hash-object -w --stdin); kind='100644 blob'
        for level in 1 2 3 4 5 6 7; do
            id=$(for n in 0 1 2 3 4 5 6 7 8 9; do printf '%s %s\\t%s\\n' \"$kind\" $id $n; done | git mktree)
            kind='040000 tree'
        done
        git update-ref refs/heads/bomb $(git -c user.name=a -c user.email=a@b commit-tree -m bomb $id)";
    let ran = exec(&place, script).expect_code(0);
    let told = ran.stderr.lines().find(|line| line.contains("refs/heads/bomb were not all searched"));
    assert!(told.is_some_and(|line| !line.contains("too many files")), "{}", ran.stderr);
}
