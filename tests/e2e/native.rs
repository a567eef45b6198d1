//! The native sandbox: what it keeps, attempt by attempt. Each attempt is shown to work without the sandbox, where that
//! can be shown without harm; otherwise a test that passes might only mean that the attempt was wrong.

use std::fs;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::process::Command;

use crate::support::{BINARY, Place, Ran, wait_for};

fn inside(place: &Place, script: &str) -> Ran {
    place.run(&["exec", "--mode", "native", "--", "sh", "-c", script])
}

fn outside(place: &Place, script: &str) -> Ran {
    place.run(&["exec", "--mode", "host", "--", "sh", "-c", script])
}

/// An attempt that succeeds on the host and fails in the sandbox.
#[track_caller]
fn only_outside(place: &Place, script: &str) {
    outside(place, script).expect_code(0);
    let ran = inside(place, script);
    assert_ne!(ran.code(), 0, "it worked inside too: {}{}", ran.stdout, ran.stderr);
    assert_ne!(ran.code(), 125, "the sandbox itself failed: {}", ran.stderr);
}

fn git(directory: &Path, args: &[&str]) -> String {
    let identity = ["-c", "user.name=t", "-c", "user.email=t@example.com"];
    let done = Command::new("git").args(identity).args(args).current_dir(directory).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

#[test]
fn it_is_the_default_and_work_gets_done_in_it() {
    let place = Place::new();
    let ran = place.run(&["exec", "--", "sh", "-c", "pwd; echo hello > file"]).expect_code(0);
    assert_eq!(ran.stdout, "/workspace\n");
    assert_eq!(place.read("file"), "hello\n");
    let record = place.run(&["runs", "show", "last", "--json"]).json()["record"].clone();
    assert_eq!((&record["mode"], &record["policy"]), (&"native".into(), &"standard".into()));
    assert_eq!(record["mechanisms"]["network_none"], "network namespace");
    assert!(record["mechanisms"]["files_confined"].as_str().unwrap().contains("mount namespace"));
}

#[test]
fn the_demo_is_refused_all_three() {
    let place = Place::new().env("PATH", "/usr/bin:/bin");
    let ran = place.run(&["demo", "--json"]).expect_code(0);
    assert!(ran.result()["text"].as_str().unwrap().contains("3 were refused"), "{}", ran.stdout);
    let human = place.run(&["demo"]).expect_code(0);
    assert!(human.stdout.contains("Seen from the host: nothing has reached the service"), "{}", human.stdout);
}

#[test]
fn files_outside_of_the_workspace_can_neither_be_read_nor_written() {
    let place = Place::new();
    fs::write(place.home().join("private.txt"), "x").unwrap();
    let home = place.home().display().to_string();
    only_outside(&place, &format!("cat {home}/private.txt"));
    only_outside(&place, &format!("cat /proc/self/root{home}/private.txt"));
    only_outside(
        &place,
        &format!("cd /workspace 2>/dev/null; cat ../home/private.txt || cat {home}/private.txt"),
    );
    inside(&place, "touch /usr/x /etc/x /bin/x /x /dev/x /proc/x; test ! -e /usr/x").expect_code(0);
    inside(&place, &format!("echo inside > {home}/own; cat {home}/own")).expect_code(0);
    assert!(!place.home().join("own").exists(), "the home inside is another one");
    assert!(!Path::new("/usr/x").exists());
}

#[test]
fn secrets_of_the_system_are_unreadable_to_root_too() {
    let place = Place::new();
    let ran = inside(
        &place,
        "cat /etc/shadow /etc/gshadow /etc/sudoers 2>/dev/null; ls -A /etc/ssh /etc/ssl/private 2>/dev/null | grep -v :",
    );
    assert_eq!(ran.stdout.trim(), "");
}

#[test]
fn a_workspace_that_holds_secrets_does_not_show_them() {
    let place = Place::new();
    for (path, text) in [
        (".ssh/id_ed25519", "k"),
        (".netrc", "k"),
        (".env", "k"),
        ("sub/.env", "k"),
        ("a.pem", "k"),
        ("ok.txt", "fine"),
    ] {
        let file = place.home().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    fs::hard_link(place.home().join(".env"), place.home().join("alias")).unwrap();
    std::os::unix::fs::symlink(".env", place.home().join("link")).unwrap();
    let home = place.home().display().to_string();
    let script = "cat .ssh/id_ed25519 .netrc .env sub/.env a.pem alias link 2>/dev/null; cat ok.txt";
    let ran =
        place.run(&["exec", "--mode", "native", "--home-workspace", "-C", &home, "--", "sh", "-c", script]);
    assert_eq!(ran.expect_code(0).stdout, "fine");
    assert_eq!(fs::read_to_string(place.home().join(".env")).unwrap(), "k", "outside it is as it was");
}

#[test]
fn protected_paths_can_neither_be_changed_nor_made_nor_moved_away() {
    let place = Place::new();
    git(&place.work(), &["init", "-q"]);
    fs::write(place.work().join(".mcp.json"), "{}").unwrap();
    for attempt in [
        "echo x > .git/hooks/pre-commit",
        "mv .git .gone",
        "rm -rf .git",
        "echo x > .mcp.json",
        "rm .mcp.json",
        "mv .mcp.json other",
        "mkdir -p .claude && echo x > .claude/settings.json",
        "echo x > .claude/settings.local.json",
        "mv .claude .gone",
        "mkdir -p .vscode/x",
        "echo x > .vscode/tasks.json",
        "echo x > .gitmodules",
        "echo x > .envrc",
        "mkdir .ringfence/x",
        "echo x > .bashrc",
        "echo x > .ripgreprc",
    ] {
        let ran = inside(&place, attempt);
        assert!(![0, 125].contains(&ran.code()), "{attempt}: {} {}", ran.code(), ran.stderr);
    }
    let left: Vec<_> = fs::read_dir(place.work()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left.len(), 2, "nothing but .git and .mcp.json: {left:?}");
    inside(&place, "echo a > a && git add a && git -c user.name=t -c user.email=t@e commit -qm one && git status --short")
        .expect_code(0);
}

/// A run writes a git directory that is not the real one.
#[test]
fn configuration_and_hooks_of_the_real_repository_stay_as_they_are() {
    let place = Place::new();
    git(&place.work(), &["init", "-q"]);
    git(&place.work(), &["commit", "-q", "--allow-empty", "-m", "one"]);
    let before = tree(&place.work().join(".git"));
    for attempt in [
        "echo x >> .git/config; true",
        "git config core.fsmonitor /bin/evil",
        "rm .git/hooks; mkdir .git/hooks; echo evil > .git/hooks/pre-commit",
        "mv .git/hooks .git/other; ln -s /bin/evil .git/hooks",
        "mv .git/config .git/other",
        "echo ../evil > .git/commondir",
        "echo x > .git/config.worktree",
        "mkdir -p .git/worktrees/x",
        "mv .git/info .git/i; mkdir .git/info; ln -s /proc/self/environ .git/info/exclude",
        "rm -rf .git/objects .git/refs; true",
        "rm .git/HEAD",
        "ln -sf /etc/passwd .git/index",
    ] {
        inside(&place, attempt).expect_code(0);
        assert_eq!(tree(&place.work().join(".git")), before, "{attempt}");
    }
    assert!(
        !place.state().join("git").read_dir().is_ok_and(|mut entries| entries.next().is_some()),
        "nothing is left"
    );
}

/// All files below a directory, with what they hold.
fn tree(root: &std::path::Path) -> std::collections::BTreeMap<std::path::PathBuf, Vec<u8>> {
    let mut files = std::collections::BTreeMap::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).unwrap().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => directories.push(entry.path()),
                false => drop(files.insert(entry.path(), fs::read(entry.path()).unwrap())),
            }
        }
    }
    files
}

/// What an earlier run may have left to trick the next one.
#[test]
fn links_in_the_place_of_protected_paths_and_files_are_held() {
    for name in [".git", ".vscode", ".mcp.json", ".claude"] {
        let place = Place::new();
        let link = place.work().join(name);
        std::os::unix::fs::symlink("/nowhere", &link).unwrap();
        for attempt in [format!("rm {name}"), format!("mv {name} x"), format!("ln -sfn /etc {name}")] {
            let ran = inside(&place, &attempt);
            assert!(![0, 125].contains(&ran.code()), "{attempt}: {}", ran.stderr);
        }
        inside(&place, "true").expect_code(0);
        assert_eq!(fs::read_link(&link).unwrap(), std::path::Path::new("/nowhere"));
        assert_eq!(fs::read_dir(place.work()).unwrap().count(), 1, "no stub file is left");
    }
    let place = Place::new();
    fs::write(place.work().join(".git"), "gitdir: /etc\n").unwrap();
    for attempt in ["rm .git", "mv .git x", "echo x > .git", "mkdir -p .git/hooks"] {
        assert!(![0, 125].contains(&inside(&place, attempt).code()), "{attempt}");
    }
    assert_eq!(place.read(".git"), "gitdir: /etc\n");
}

#[test]
fn stand_ins_go_also_when_everything_was_killed() {
    let place = Place::new();
    let mut child =
        place.spawn(&["exec", "--mode", "native", "--", "sh", "-c", "echo $$ > it.pid; sleep 1000"]);
    wait_for("the run", || place.work().join("it.pid").exists().then_some(()));
    assert!(place.work().join(".mcp.json").exists());
    crate::support::signal(child.id(), "-KILL");
    child.wait().unwrap();
    wait_for("the stand-ins' end", || (!place.work().join(".mcp.json").exists()).then_some(()));
}

#[test]
fn a_linked_worktree_works_and_its_repository_is_protected() {
    let place = Place::new();
    let (main, linked) = (place.home().join("main"), place.home().join("linked"));
    fs::create_dir(&main).unwrap();
    git(&main, &["init", "-q"]);
    fs::write(main.join("a"), "a").unwrap();
    git(&main, &["add", "a"]);
    git(&main, &["commit", "-qm", "one"]);
    git(&main, &["worktree", "add", "-q", linked.to_str().unwrap()]);
    let run = |script: &str| {
        place.run(&["exec", "--mode", "native", "-C", linked.to_str().unwrap(), "--", "sh", "-c", script])
    };
    run("git status --short && echo b > b && git add b && git -c user.name=t -c user.email=t@e commit -qm two").expect_code(0);
    assert_eq!(git(&linked, &["log", "--format=%s"]), "two\none\n");
    assert_eq!(git(&linked, &["status", "--short"]), "");
    let hooks = main.join(".git/hooks/post-commit");
    let before = fs::read(main.join(".git/config")).unwrap();
    run(&format!("echo x >> {}", main.join(".git/config").display())).expect_code(0);
    assert_eq!(fs::read(main.join(".git/config")).unwrap(), before);
    for attempt in [
        format!("echo x > {}", hooks.display()),
        "echo 'gitdir: /elsewhere' > .git".to_owned(),
        format!("cat {}", main.join("a").display()),
    ] {
        assert_ne!(run(&attempt).code(), 0, "{attempt}");
    }
}

/// A start file of the shell is one in the home; in a directory of such files it is work like any other.
#[test]
fn start_files_of_the_shell_are_protected_where_they_would_start() {
    let place = Place::new();
    fs::write(place.home().join(".profile"), "as it was").unwrap();
    let script = "echo evil > .bashrc; echo evil > .profile; echo evil > .gitconfig; true";
    let home = place.home().display().to_string();
    let ran =
        place.run(&["exec", "--mode", "native", "-C", &home, "--", "sh", "-c", script]).expect_code(125);
    assert!(ran.stderr.contains("is your home directory"), "{}", ran.stderr);
    let run = |at: &str, script: &str| {
        place.run(&["exec", "--mode", "native", "--home-workspace", "-C", at, "--", "sh", "-c", script])
    };
    run(&home, script).expect_code(0);
    for name in
        [".bash_aliases", ".zlogin", ".vimrc", ".config/git/config", ".config/autostart/x", ".local/bin/x"]
    {
        let directory = std::path::Path::new(name).parent().unwrap().display().to_string();
        run(&home, &format!("mkdir -p ./{directory}; echo evil > {name}"));
        assert!(!place.home().join(name).exists(), "{name}");
    }
    assert_eq!(fs::read_to_string(place.home().join(".profile")).unwrap(), "as it was");
    assert!(!place.home().join(".bashrc").exists() && !place.home().join(".gitconfig").exists());
    let above = place.home().parent().unwrap().display().to_string();
    let script = "cd home; echo evil > .bashrc; echo evil > .profile; true";
    run(&above, script).expect_code(0);
    assert!(!place.home().join(".bashrc").exists());
    assert_ne!(inside(&place, "echo evil > .bashrc").code(), 0);
}

#[test]
fn a_submodule_works_and_its_repository_is_protected() {
    let place = Place::new();
    let library = place.home().join("library");
    fs::create_dir(&library).unwrap();
    fs::write(library.join("lib.txt"), "1").unwrap();
    git(&library, &["init", "-q"]);
    git(&library, &["add", "."]);
    git(&library, &["commit", "-qm", "library"]);
    git(&place.work(), &["init", "-q"]);
    let url = library.display().to_string();
    git(
        &place.work(),
        &["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", &url, "deps/library"],
    );
    let script = "git status --short && echo 2 > lib.txt && git -c user.name=t -c user.email=t@example.com commit -qam two && \
                  git log --format=%s; echo evil > $(git rev-parse --git-dir)/hooks/pre-commit; git config core.hooksPath /tmp";
    for mapping in ["mapped", "same-path"] {
        place.run(&["config", "set", "sandbox.path_mapping_mode", mapping]).expect_code(0);
        let ran = place.run(&["exec", "--mode", "native", "-C", "deps/library", "--", "sh", "-c", script]);
        assert_eq!(ran.stdout, "two\nlibrary\n", "{mapping}: {}", ran.stderr);
        let own = place.work().join(".git/modules/deps/library");
        assert!(!own.join("hooks/pre-commit").exists());
        assert!(!fs::read_to_string(own.join("config")).unwrap().contains("hooksPath"));
        git(&place.work().join("deps/library"), &["reset", "-q", "--hard", "HEAD~1"]);
    }
    let ran = place.run(&[
        "exec",
        "--mode",
        "native",
        "-C",
        "deps/library",
        "--",
        "sh",
        "-c",
        "ls -A / /..; cat /.git/config",
    ]);
    assert!(!ran.stdout.contains("submodule"), "the repository around it stays out of sight: {}", ran.stdout);
}

#[test]
fn there_is_no_network_but_itself() {
    let place = Place::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    only_outside(
        &place,
        &format!("python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}), 2)'"),
    );
    let own = "python3 -c 'import socket; s = socket.create_server((\"127.0.0.1\", 0)); socket.create_connection(s.getsockname())'";
    inside(&place, own).expect_code(0);
    let socket = place.home().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    let connect = format!(
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"{}\")'",
        socket.display()
    );
    only_outside(&place, &connect);
    let name = format!("ringfence-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
    let _abstract = UnixListener::bind_addr(&address).unwrap();
    only_outside(
        &place,
        &format!("python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"\\0{name}\")'"),
    );
}

#[test]
fn the_processes_of_the_host_are_out_of_sight_and_reach() {
    let place = Place::new();
    let me = std::process::id();
    only_outside(&place, &format!("kill -0 {me}"));
    only_outside(&place, &format!("test -d /proc/{me}/fd"));
    let look = "cat /proc/1/environ /proc/1/maps 2>/dev/null; readlink /proc/1/fd/* /proc/1/exe /proc/1/root";
    assert_eq!(inside(&place, look).stdout, "", "the first process is shut off");
}

/// Root without powers is still root to files of the kernel that ask for nothing else.
#[test]
fn the_machine_cannot_be_changed_through_the_kernels_files() {
    let place = Place::new();
    for path in [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/vm/swappiness",
        "/proc/sys/kernel/hostname",
        "/proc/sysrq-trigger",
    ] {
        let before = fs::read_to_string(path).ok();
        let ran = inside(&place, &format!("echo 1 > {path}"));
        assert!(![0, 125].contains(&ran.code()), "{path} was written");
        assert_eq!(fs::read_to_string(path).ok(), before);
    }
    let ran = inside(
        &place,
        "head -c 1 /proc/kcore; head -c 1 /proc/keys; find /proc/acpi /proc/scsi /sys -mindepth 1",
    );
    assert_eq!(ran.stdout, "", "{}", ran.stderr);
}

/// Python reaches system calls that no shell has; the errno says who refused.
const SYSCALLS: &str = r#"
import ctypes, errno, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    ctypes.set_errno(0)
    done = libc.syscall(number, *args)
    return done, ctypes.get_errno()
expected = {
    'ptrace': (101, 0), 'process_vm_readv': (310, 1, 0, 0, 0, 0, 0), 'io_uring_setup': (425, 1, 0), 'bpf': (321, 0, 0, 0),
    'userfaultfd': (323, 0), 'perf_event_open': (298, 0, 0, -1, -1, 0), 'keyctl': (250, 0, 0), 'unshare user': (272, 0x10000000),
    'unshare net': (272, 0x40000000), 'setns': (308, 0, 0), 'mount': (165, b'x', b'/tmp', b'tmpfs', 0, 0), 'umount': (166, b'/tmp', 0),
    'chroot': (161, b'/tmp'), 'pivot_root': (155, b'/tmp', b'/tmp'), 'open_tree': (428, -100, b'/', 1), 'fsopen': (430, b'tmpfs', 0),
    'pidfd_getfd': (438, 0, 0, 0), 'open_tree_attr': (467, -100, b'/', 1, 0, 0), 'listmount': (458, 0, 0, 0, 0),
    'netlink audit': (41, 16, 3, 9), 'socket alg': (41, 38, 5, 0), 'open_by_handle_at': (304, 0, 0, 0), 'clone newuser': (56, 0x10000000 | 17, 0, 0, 0, 0),
    'socket vsock': (41, 40, 1, 0), 'socket packet': (41, 17, 3, 0), 'reboot': (169, 0, 0, 0, 0), 'init_module': (175, 0, 0, 0),
    'TIOCSTI': (16, 0, 0x5412, b'x'), 'sethostname': (170, b'x', 1), 'kexec_load': (246, 0, 0, 0, 0), 'syslog': (103, 3, 0, 0),
}
bad = [name for name, args in expected.items() if call(*args) != (-1, errno.EPERM)]
for name, args in {'clone3': (435, 0, 0), 'x32 getpid': (0x40000000 + 39,), 'x32 ptrace': (0x40000000 + 521, 0)}.items():
    if call(*args) != (-1, errno.ENOSYS): bad.append(name)
print(bad)
sys.exit(1 if bad else 0)
"#;

#[test]
fn system_calls_that_escapes_are_made_of_are_refused() {
    let place = Place::new();
    fs::write(place.work().join("calls.py"), SYSCALLS).unwrap();
    let ran = inside(&place, "python3 calls.py");
    assert_eq!(ran.code(), 0, "not refused: {}{}", ran.stdout, ran.stderr);
}

#[test]
fn there_are_no_privileges_to_gain() {
    let place = Place::new();
    let ran = inside(&place, "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status");
    for line in ran.stdout.lines() {
        let (name, value) = line.split_once(':').unwrap();
        let expected = match name {
            "NoNewPrivs" => "1",
            "Seccomp" => "2",
            _ => "0000000000000000",
        };
        assert_eq!(value.trim(), expected, "{name}");
    }
    let ran =
        inside(&place, "grep -c nosuid /proc/self/mounts; grep -vc nosuid /proc/self/mounts; ulimit -c");
    assert_eq!(ran.stdout.lines().nth(1), Some("0"), "a mount without nosuid: {}", ran.stdout);
    assert_eq!(ran.stdout.lines().nth(2), Some("0"), "core dumps");
}

#[test]
fn only_the_few_devices_are_there_and_no_terminal_of_the_host() {
    let place = Place::new();
    let ran = inside(
        &place,
        "ls /dev | tr '\\n' ' '; mknod /tmp/k c 1 1 2>/dev/null; ls /tmp; (echo < /dev/tty) 2>/dev/null && echo tty",
    );
    assert_eq!(ran.stdout.trim(), "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero");
}

#[test]
fn everything_ends_with_it() {
    let place = Place::new();
    let child = place.spawn(&[
        "exec",
        "--mode",
        "native",
        "--timeout",
        "2",
        "--",
        "sh",
        "-c",
        "setsid sh -c 'trap \"\" TERM; while :; do date >> beat; sleep 0.1; done' & wait",
    ]);
    wait_for("a beat", || place.work().join("beat").exists().then_some(()));
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(124));
    let size = || fs::metadata(place.work().join("beat")).unwrap().len();
    let last = size();
    std::thread::sleep(std::time::Duration::from_millis(400));
    assert_eq!(size(), last);
}

#[test]
fn codes_and_signals_are_the_programs_own() {
    let place = Place::new();
    assert_eq!(inside(&place, "exit 7").code(), 7);
    assert_eq!(inside(&place, "kill -15 $$").code(), 143);
    assert_eq!(place.run(&["exec", "--mode", "native", "--", "no-such"]).code(), 127);
    assert_eq!(place.run(&["exec", "--mode", "native", "--", "/etc/passwd"]).code(), 126);
}

/// As somebody without any rights, if the tests have more.
#[test]
fn it_needs_no_root() {
    let place = Place::new();
    let script = "id -u; echo hi > file; cat /etc/shadow; ls /root";
    let Some(ran) = place.as_nobody(&["exec", "--", "sh", "-c", script], &[]) else { return };
    assert_eq!(ran.stdout, "65534\n", "{}", ran.stderr);
    assert_eq!(place.read("file"), "hi\n");
}

#[test]
fn a_killed_ringfence_leaves_nothing() {
    let place = Place::new();
    let script = "setsid sh -c 'trap \"\" TERM; while :; do echo >> beat; sleep 0.05; done' & wait";
    let mut child = place.spawn(&["exec", "--mode", "native", "--", "sh", "-c", script]);
    let beats = || fs::metadata(place.work().join("beat")).map_or(0, |data| data.len());
    wait_for("a heartbeat", || (beats() > 2).then_some(()));
    crate::support::signal(child.id(), "-KILL");
    child.wait().unwrap();
    wait_for("silence", || {
        let last = beats();
        std::thread::sleep(std::time::Duration::from_millis(300));
        (beats() == last).then_some(())
    });
}

#[test]
fn runs_at_the_same_time_do_not_strip_each_others_protection() {
    let place = Place::new();
    let first = place.spawn(&[
        "exec",
        "--mode",
        "native",
        "--",
        "sh",
        "-c",
        "echo > one; while [ ! -e two ]; do sleep 0.02; done",
    ]);
    wait_for("the first", || place.work().join("one").exists().then_some(()));
    let script = "echo > two; while [ ! -e over ]; do sleep 0.02; done; echo x > .mcp.json || mkdir -p .git/hooks/x && echo broken > broken";
    let second = place.spawn(&["exec", "--mode", "native", "--", "sh", "-c", script]);
    assert!(first.wait_with_output().unwrap().status.success());
    fs::write(place.work().join("over"), "").unwrap();
    second.wait_with_output().unwrap();
    assert!(!place.work().join("broken").exists() && !place.work().join(".mcp.json").exists());
    let left: Vec<_> = fs::read_dir(place.work()).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert_eq!(left.len(), 3, "the last one takes the stand-ins away: {left:?}");
}

#[test]
fn what_is_seen_at_two_places_is_shut_at_both() {
    let place = Place::new();
    let (outer, work) = (place.home().join("outer"), place.home().join("outer/work"));
    fs::create_dir_all(work.join(".git/hooks")).unwrap();
    fs::write(work.join(".env"), "secret").unwrap();
    fs::create_dir(outer.join("beside")).unwrap();
    fs::write(outer.join("beside/.env"), "secret").unwrap();
    let (outer, at) = (outer.to_str().unwrap(), work.to_str().unwrap());
    let run = |script: &str| {
        place.run(&["exec", "--mode", "native", "-C", at, "--write", outer, "--", "sh", "-c", script])
    };
    assert_ne!(run(&format!("echo x > {at}/.git/hooks/pre-commit")).code(), 0);
    assert_eq!(run(&format!("cat .env {at}/.env {outer}/beside/.env")).stdout, "");
    let ran = place.run(&[
        "exec",
        "--mode",
        "native",
        "-C",
        "/etc",
        "--policy",
        &read_only(&place),
        "--",
        "cat",
        "/etc/shadow",
        "shadow",
    ]);
    assert_eq!(ran.stdout, "", "{}", ran.stderr);
}

fn read_only(place: &Place) -> String {
    let policy = place.home().join("read-only.json");
    fs::write(&policy, r#"{"files": {"workspace": "read-only"}}"#).unwrap();
    policy.display().to_string()
}

#[test]
fn a_read_only_worktree_does_not_open_its_repository() {
    let place = Place::new();
    let (main, linked) = (place.home().join("main"), place.home().join("linked"));
    fs::create_dir(&main).unwrap();
    git(&main, &["init", "-q"]);
    git(&main, &["commit", "-q", "--allow-empty", "-m", "one"]);
    git(&main, &["worktree", "add", "-q", linked.to_str().unwrap()]);
    let at = linked.to_str().unwrap();
    for path in [".git/hooks/x", ".git/config", ".git/HEAD"] {
        let script = format!("echo x >> {}", main.join(path).display());
        let ran = place.run(&[
            "exec",
            "--mode",
            "native",
            "-C",
            at,
            "--policy",
            &read_only(&place),
            "--",
            "sh",
            "-c",
            &script,
        ]);
        assert!(![0, 125].contains(&ran.code()), "{path}: {}", ran.stderr);
    }
}

#[test]
fn a_bent_pointer_opens_no_other_repository() {
    let place = Place::new();
    let other = place.home().join("other");
    fs::create_dir(&other).unwrap();
    git(&other, &["init", "-q"]);
    fs::write(place.work().join(".git"), format!("gitdir: {}/.git\n", other.display())).unwrap();
    let ran = inside(&place, &format!("ls {}/.git; echo x > {}/.git/x", other.display(), other.display()));
    assert!(ran.code() != 0 && ran.stdout.is_empty(), "{}", ran.stdout);
}

#[test]
fn links_and_other_names_lead_to_nothing_hidden_or_protected() {
    let place = Place::new();
    fs::create_dir(place.work().join("conf")).unwrap();
    fs::write(place.work().join("conf/.env"), "secret").unwrap();
    fs::hard_link(place.work().join("conf/.env"), place.work().join("conf/prod")).unwrap();
    std::os::unix::fs::symlink("conf/prod", place.work().join(".env")).unwrap();
    fs::write(place.work().join(".mcp.json"), "{}").unwrap();
    fs::hard_link(place.work().join(".mcp.json"), place.work().join("alias")).unwrap();
    let ran = inside(&place, "cat .env conf/prod; echo evil > alias");
    assert_eq!(ran.stdout, "");
    assert_eq!(place.read(".mcp.json"), "{}");
}

#[test]
fn sockets_of_the_host_are_closed_doors() {
    let place = Place::new();
    let shown = place.home().join("shown");
    fs::create_dir(&shown).unwrap();
    let _listeners =
        [&place.work(), &shown].map(|directory| UnixListener::bind(directory.join("s")).unwrap());
    for socket in ["/workspace/s".to_owned(), shown.join("s").display().to_string()] {
        let connect =
            format!("python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"{socket}\")'");
        let ran = place.run(&[
            "exec",
            "--mode",
            "native",
            "--read",
            shown.to_str().unwrap(),
            "--",
            "sh",
            "-c",
            &connect,
        ]);
        assert!(![0, 125].contains(&ran.code()), "{socket} answered");
    }
    let path = shown.join("s").display().to_string();
    let ran = place.run(&["exec", "--mode", "native", "--read", &path, "--", "true"]).expect_code(125);
    assert!(ran.stderr.contains("is a socket"), "{}", ran.stderr);
}

#[test]
fn workspace_in_a_secret_is_refused_with_the_reason() {
    let place = Place::new();
    let secret = place.home().join(".ssh/keys");
    fs::create_dir_all(&secret).unwrap();
    let ran = place.run(&["exec", "-C", secret.to_str().unwrap(), "--", "true"]).expect_code(125);
    assert!(ran.stderr.contains("a secret that is hidden from runs: work in another directory"), "{ran:?}");
}

#[test]
fn a_secret_is_not_shown_by_asking_for_a_part_of_it() {
    let place = Place::new();
    fs::create_dir(place.home().join(".ssh")).unwrap();
    fs::write(place.home().join(".ssh/id"), "k").unwrap();
    let path = place.home().join(".ssh/id").display().to_string();
    let ran = place.run(&["exec", "--mode", "native", "--read", &path, "--", "cat", &path]).expect_code(125);
    assert!(ran.stderr.contains("is a secret"), "{}", ran.stderr);
}

#[test]
fn files_in_memory_are_bounded() {
    let place = Place::new();
    let fill = "head -c 200m /dev/zero > /tmp/x";
    let ran = place.run(&["exec", "--mode", "native", "--memory", "100m", "--", "sh", "-c", fill]);
    assert_ne!(ran.code(), 0);
    assert!(ran.stderr.contains("No space left"), "{}", ran.stderr);
}

/// Several at once, with the ends of some and the beginnings of others at the same moment.
#[test]
fn runs_that_come_and_go_leave_no_stand_ins() {
    let place = Place::new();
    std::thread::scope(|scope| {
        for offset in 0..3 {
            let place = &place;
            scope.spawn(move || {
                for round in 0..25 {
                    let time = format!("0.0{}", (round * 7 + offset * 3) % 4);
                    place.run(&["exec", "--mode", "native", "--", "sleep", &time]).expect_code(0);
                }
            });
        }
    });
    assert_eq!(fs::read_dir(place.work()).unwrap().count(), 0);
    // Also if they do not know of each other.
    let other = place.home().join("other-state").display().to_string();
    let first = place.spawn(&["exec", "--mode", "native", "--", "sleep", "0.5"]);
    wait_for("the stand-ins of the first", || place.work().join(".mcp.json").exists().then_some(()));
    let second = place
        .command(&["exec", "--mode", "native", "--", "sleep", "1"])
        .env("RINGFENCE_HOME", other)
        .status();
    assert!(second.unwrap().success());
    first.wait_with_output().unwrap();
    assert_eq!(fs::read_dir(place.work()).unwrap().count(), 0);
}

#[test]
fn a_persons_own_empty_files_stay() {
    let place = Place::new();
    let mut child = place.spawn(&["exec", "--mode", "native", "--", "sleep", "100"]);
    wait_for("the stand-ins", || place.work().join(".mcp.json").exists().then_some(()));
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for("their end", || (fs::read_dir(place.work()).unwrap().count() == 0).then_some(()));
    fs::write(place.work().join(".envrc"), "").unwrap();
    fs::create_dir(place.work().join(".claude")).unwrap();
    let runs: Vec<_> =
        (0..3).map(|_| place.spawn(&["exec", "--mode", "native", "--", "sleep", "0.2"])).collect();
    for run in runs {
        assert!(run.wait_with_output().unwrap().status.success());
    }
    let mut names: Vec<_> =
        fs::read_dir(place.work()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, [".claude", ".envrc"]);
}

/// Somebody else's lock on the directory is a reason, not a reason to wait for ever.
#[test]
fn a_workspace_that_somebody_holds_is_refused() {
    let place = Place::new();
    let ran = place.shell(&format!("exec flock . {BINARY} exec --mode native -- true"));
    assert_eq!(ran.code(), 125);
    assert!(ran.stderr.contains("cannot be locked"), "{}", ran.stderr);
}

#[test]
fn a_file_on_standard_input_is_only_read() {
    let place = Place::new();
    let file = place.home().join("input");
    fs::write(&file, "words").unwrap();
    let script = "import os, sys\nprint(sys.stdin.read())\ntry: os.fchmod(0, 0o777)\nexcept OSError: pass";
    fs::write(place.work().join("s.py"), script).unwrap();
    let ran =
        place.shell(&format!("{BINARY} exec --mode native -- /usr/bin/python3 s.py < {}", file.display()));
    assert_eq!(ran.stdout, "words\n");
    use std::os::unix::fs::PermissionsExt;
    assert_ne!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o777);
}
