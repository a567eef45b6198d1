//! Ways out of sandboxes that have worked elsewhere, each its own test. Where it does no harm, the same attempt is shown
//! to work without the sandbox: one that cannot succeed proves nothing.

use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{SocketAddr, UnixListener};

use crate::support::{BINARY, Place, Ran, signal};

fn inside(place: &Place, script: &str) -> Ran {
    let ran = place.run(&["exec", "--mode", "native", "--", "sh", "-c", script]);
    assert_ne!(ran.code(), 125, "the sandbox itself failed: {}", ran.stderr);
    ran
}

fn outside(place: &Place, script: &str) -> Ran {
    place.run(&["exec", "--mode", "host", "--", "sh", "-c", script])
}

/// Runs a program of Python's in both, for what no shell can do.
fn python(place: &Place, code: &str) -> (Ran, Ran) {
    let code =
        format!("import ctypes, errno, os, struct, sys\nlibc = ctypes.CDLL(None, use_errno=True)\n{code}\n");
    fs::write(place.work().join("attempt.py"), code).unwrap();
    let run = "/usr/bin/python3 attempt.py";
    (outside(place, run), inside(place, run))
}

#[track_caller]
fn only_outside(place: &Place, code: &str) {
    let (out, within) = python(place, code);
    assert_eq!(out.code(), 0, "the attempt itself is wrong: {}{}", out.stdout, out.stderr);
    assert_ne!(within.code(), 0, "it worked: {}{}", within.stdout, within.stderr);
}

/// A terminal of one's own is where the kernel would allow it.
#[test]
fn typing_into_a_terminal() {
    let code = "import fcntl, pty
outer, inner = os.openpty()
os.setsid() if os.getsid(0) != os.getpid() else None
fcntl.ioctl(inner, 0x540e, 0)
for request in (0x5412, 0x541c):
    try: fcntl.ioctl(inner, request, b'x\\0'); sys.exit(1)
    except OSError as error:
        if error.errno != errno.EPERM: print(request, error); sys.exit(2)";
    let (_, within) = python(
        &Place::new(),
        &format!(
            "if os.fork() == 0:\n {}\nelse:\n sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))",
            code.replace('\n', "\n ")
        ),
    );
    assert_eq!(within.code(), 0, "{}{}", within.stdout, within.stderr);
}

#[test]
fn the_root_of_another_process() {
    let place = Place::new();
    fs::write(place.home().join("private"), "x").unwrap();
    let file = place.home().join("private").display().to_string();
    for root in ["/proc/self/root", "/proc/1/root", "/proc/$PPID/root"] {
        let script = format!("cat {root}{file}");
        assert_ne!(inside(&place, &script).code(), 0, "{script}");
    }
    outside(&place, &format!("cat /proc/self/root{file}")).expect_code(0);
}

#[test]
fn the_memory_of_the_parent() {
    // The shell is the program's own business; whoever started the shell is not.
    let code =
        "pid = int(open(f'/proc/{os.getppid()}/stat').read().split()[3])\nopen(f'/proc/{pid}/mem', 'rb')";
    let (_, within) = python(&Place::new(), code);
    assert!(within.stderr.contains("Permission denied"), "{}", within.stderr);
}

#[test]
fn an_abstract_socket_of_the_host() {
    let name = format!("ringfence-escape-{}", std::process::id());
    let _listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let code = format!("import socket\nsocket.socket(socket.AF_UNIX).connect('\\0{name}')");
    only_outside(&Place::new(), &code);
    // Also where the network is the host's own: then Landlock keeps it shut.
    let place = Place::new();
    fs::write(place.home().join("open.json"), r#"{"extends": "standard", "network": {"mode": "open"}}"#)
        .unwrap();
    fs::write(place.work().join("attempt.py"), code).unwrap();
    let policy = place.home().join("open.json").display().to_string();
    let args = ["exec", "--mode", "native", "--policy", &policy, "--", "/usr/bin/python3", "attempt.py"];
    assert_eq!(place.run(&args).code(), 1);
}

#[test]
fn descriptors_that_were_left_open() {
    let place = Place::new();
    fs::write(place.home().join("private"), "secret").unwrap();
    let file = place.home().join("private").display().to_string();
    let script = format!("exec 7<{file}; exec {BINARY} exec --mode native -- sh -c 'cat <&7'");
    let ran = place.shell(&script);
    assert_ne!(ran.code(), 0);
    assert!(!ran.stdout.contains("secret"));
    let ran = place.shell(&format!("exec 7<{file}; sh -c 'cat <&7'"));
    assert_eq!(ran.stdout, "secret", "a plain shell hands it on");
}

#[test]
fn programs_with_their_owners_rights() {
    let place = Place::new();
    let copy = place.work().join("id");
    fs::copy("/usr/bin/id", &copy).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o6755)).unwrap();
    let status =
        "grep NoNewPrivs /proc/self/status; ./id -u; cut -d' ' -f4 /proc/self/mounts | grep -vc nosuid";
    let ran = inside(&place, status);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!((lines[0], lines[2]), ("NoNewPrivs:\t1", "0"), "{}", ran.stdout);
}

#[test]
fn a_user_namespace_of_ones_own_and_a_mount_opened_again() {
    only_outside(&Place::new(), "sys.exit(libc.unshare(0x10000000 | 0x20000) != 0)");
    // And what is mounted read-only cannot be opened for writing by any of the calls that do so.
    let code = "calls = {'mount': (165, b'none', b'/usr', 0, 0x1020, 0), 'mount_setattr': (442, -100, b'/usr', 0, struct.pack('QQQQ', 0, 1, 0, 0), 32), 'open_tree': (428, -100, b'/usr', 1)}
bad = [name for name, args in calls.items() if libc.syscall(*args) != -1 or ctypes.get_errno() != errno.EPERM]
print(bad); sys.exit(bool(bad))";
    let (_, within) = python(&Place::new(), code);
    assert_eq!(within.code(), 0, "{}{}", within.stdout, within.stderr);
}

#[test]
fn a_hook_that_is_made_after_the_start() {
    let place = Place::new();
    std::process::Command::new("git").args(["init", "-q"]).current_dir(place.work()).status().unwrap();
    fs::remove_dir_all(place.work().join(".git/hooks")).unwrap();
    inside(
        &place,
        "sleep 0.2; mkdir .git/hooks; echo evil > .git/hooks/post-checkout; mv .git/hooks .git/h; ln -s /tmp .git/hooks; git config core.hooksPath /tmp",
    );
    assert!(!place.work().join(".git/hooks").exists(), "and nothing is left behind");
    assert!(!place.read(".git/config").contains("hooksPath"));
}

#[test]
fn a_workspace_that_is_a_link() {
    let place = Place::new();
    let real = place.home().join("real");
    fs::create_dir(&real).unwrap();
    symlink(&real, place.home().join("link")).unwrap();
    let link = place.home().join("link").display().to_string();
    let ran = place
        .run(&["exec", "--mode", "native", "-C", &link, "--", "sh", "-c", "pwd; echo 1 > f"])
        .expect_code(0);
    assert_eq!(ran.stdout, "/workspace\n");
    assert!(real.join("f").exists());
    // What is above the real place is not there.
    let above = "ls ../home ../../home /workspace/../real 2>/dev/null";
    let ran = place.run(&["exec", "--mode", "native", "-C", &link, "--", "sh", "-c", above]);
    assert_eq!(ran.stdout, "");
}

#[test]
fn a_second_name_of_a_denied_file() {
    let place = Place::new();
    fs::write(place.work().join(".env"), "KEY=1").unwrap();
    fs::create_dir(place.work().join("sub")).unwrap();
    fs::hard_link(place.work().join(".env"), place.work().join("sub/other")).unwrap();
    let script =
        "cat .env sub/other; ln .env mine && cat mine; mv sub/other it && cat it; cp .env copy && cat copy";
    assert_eq!(inside(&place, script).stdout, "");
    assert_eq!(outside(&place, "cat sub/other").stdout, "KEY=1");
}

#[test]
fn a_file_opened_by_a_ring() {
    only_outside(
        &Place::new(),
        "fd = libc.syscall(425, 4, ctypes.create_string_buffer(120))\nsys.exit(fd < 0)",
    );
}

#[test]
fn calls_of_the_other_interface() {
    if cfg!(not(target_arch = "x86_64")) {
        return;
    }
    let code = "calls = {'x32 getpid': 0x40000000 + 39, 'x32 ptrace': 0x40000000 + 521, 'x32 execve': 0x40000000 + 520}
bad = [name for name, number in calls.items() if libc.syscall(number, 0, 0, 0, 0) != -1 or ctypes.get_errno() != errno.ENOSYS]
print(bad); sys.exit(bool(bad))";
    let (_, within) = python(&Place::new(), code);
    assert_eq!(within.code(), 0, "{}{}", within.stdout, within.stderr);
}

#[test]
fn tracing_the_gate() {
    let attach = "pid = int(os.environ.get('IT', os.getppid()))
done = libc.ptrace(16, pid, 0, 0)
if done == 0: os.waitpid(pid, 0x40000000); libc.ptrace(17, pid, 0, 0)
sys.exit(done != 0)";
    // A child of one's own can be traced outside, and nobody inside.
    let child = format!(
        "pid = os.fork()\nif pid == 0: os.execvp('sleep', ['sleep', '5'])\nos.environ['IT'] = str(pid)\n{attach}"
    );
    only_outside(&Place::new(), &child);
    let (_, within) = python(&Place::new(), attach);
    assert_ne!(within.code(), 0);
}

#[test]
fn what_a_crash_leaves() {
    let place = Place::new();
    let ran = inside(&place, "ulimit -c unlimited; ulimit -c; kill -SEGV $$");
    assert_eq!((ran.code(), ran.stdout.as_str()), (139, "0\n"), "{}", ran.stderr);
    let names: Vec<_> = fs::read_dir(place.work()).unwrap().collect();
    assert!(names.is_empty(), "{names:?}");
}

/// Whatever is killed first, and whenever.
#[test]
fn killing_ringfence_at_any_moment_leaves_nothing() {
    let place = Place::new();
    let work = place.work();
    let began = std::time::Instant::now();
    for moment in 0..50u64 {
        let args =
            ["exec", "--mode", "native", "--pids", "50", "--", "sh", "-c", "sleep 100 & exec sleep 100"];
        let mut child = place.command(&args).spawn().unwrap();
        // From before the gate is there to long after the program runs.
        std::thread::sleep(std::time::Duration::from_micros(moment * moment * 20));
        signal(child.id(), "-KILL");
        child.wait().unwrap();
    }
    let processes = || {
        let all = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
        let ours = all.filter(|path| {
            let cwd = fs::read_link(path.join("cwd")).unwrap_or_default();
            let root = fs::read_link(path.join("root")).unwrap_or_default();
            cwd.starts_with(&work) || (root != std::path::Path::new("/") && !root.as_os_str().is_empty())
        });
        ours.count()
    };
    crate::support::wait_for("the end of every process", || (processes() == 0).then_some(()));
    crate::support::wait_for("the end of the stand-ins", || {
        (fs::read_dir(&work).unwrap().count() == 0).then_some(())
    });
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(work.to_str().unwrap()), "{mounts}");
    // Control groups that nobody had heard of yet go with the next run.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    place.run(&["exec", "--mode", "native", "--pids", "50", "--", "true"]).expect_code(0);
    let left: Vec<_> = groups().into_iter().filter(|group| began.elapsed() > age(group)).collect();
    assert_eq!(left, Vec::<std::path::PathBuf>::new());
}

/// Tests at the same time have groups of their own, which are younger or go by themselves.
fn age(group: &std::path::Path) -> std::time::Duration {
    let made = fs::metadata(group).and_then(|data| data.modified()).ok().and_then(|made| made.elapsed().ok());
    made.filter(|age| *age > std::time::Duration::from_secs(1)).unwrap_or(std::time::Duration::MAX)
}

/// The control groups of runs, wherever they are.
fn groups() -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![std::path::PathBuf::from("/sys/fs/cgroup")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().starts_with("ringfence-") {
                    // Another test may be using it.
                    let busy = fs::read_to_string(entry.path().join("cgroup.procs"))
                        .is_ok_and(|text| !text.is_empty());
                    found.extend((!busy).then(|| entry.path()));
                } else {
                    directories.push(entry.path());
                }
            }
        }
    }
    found
}

/// Many, one after another: nothing grows.
#[test]
fn sandboxes_leave_nothing_behind() {
    let place = Place::new();
    for _ in 0..100 {
        place.run(&["exec", "--mode", "native", "--", "true"]).expect_code(0);
    }
    // Container engines of other tests mount where all see it.
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(place.work().parent().unwrap().to_str().unwrap()), "{mounts}");
    assert_eq!(fs::read_dir(place.work()).unwrap().count(), 0);
}
