//! What a run is given besides its workspace cannot be turned into something else by an earlier run, and gives it nothing of the
//! host that only listens or is only held open.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::process::Stdio;

use crate::support::{Place, Ran, signal, wait_for};

fn exec(place: &Place, options: &[&str], script: &str) -> Ran {
    place.run(&[&["exec", "--mode", "native"], options, &["--", "sh", "-c", script]].concat())
}

/// A place with a diary in the home, and a directory in the workspace that the user names later.
fn place() -> Place {
    let place = Place::new();
    fs::create_dir(place.home().join("docs")).unwrap();
    fs::write(place.home().join("docs/diary"), "canary").unwrap();
    fs::create_dir_all(place.work().join("build/cache")).unwrap();
    place
}

fn refused(ran: &Ran, why: &str) {
    assert!(ran.code() != 0 && !ran.stdout.contains("canary"), "{ran:?}");
    assert!(ran.stderr.contains(why), "{ran:?}");
}

#[test]
fn named_directory_cannot_be_moved_by_its_run() {
    let place = place();
    let script = "mv build b2; mv build/cache b3; rmdir build/cache; mkdir -p build; ln -s ../../home/docs build/cache; touch build/f";
    for option in ["--write", "--read"] {
        exec(&place, &[option, "build/cache"], script).expect_code(0);
        let kind = fs::symlink_metadata(place.work().join("build/cache")).unwrap();
        assert!(kind.is_dir() && place.work().join("build/f").exists(), "{option}");
    }
}

#[test]
fn link_of_an_earlier_run_is_no_grant() {
    let place = place();
    let leave =
        "rmdir build/cache; ln -s ../../home/docs build/cache; ln -s ../.. build/up; ln -s ../../home wide";
    exec(&place, &[], leave).expect_code(0);
    let read = format!("cat {}/docs/diary", place.home().display());
    for (option, name) in [
        ("--write", "build/cache"),
        ("--read", "build/cache"),
        ("--read", "build/up/home"),
        ("--write", "wide"),
    ] {
        refused(&exec(&place, &[option, name], &read), "which a run could have made");
    }
    let policy = place.home().join("policy.json");
    for key in ["read", "write"] {
        let cache = place.work().join("build/cache");
        let text = format!(r#"{{"extends": "standard", "files": {{"{key}": ["{}"]}}}}"#, cache.display());
        fs::write(&policy, text).unwrap();
        refused(&exec(&place, &["--policy", policy.to_str().unwrap()], &read), "which a run could have made");
    }
    // From another workspace, whose runs never wrote there.
    let other = place.work().with_file_name("other");
    fs::create_dir(&other).unwrap();
    let cache = place.work().join("build/cache");
    let options = ["-C", other.to_str().unwrap(), "--write", cache.to_str().unwrap()];
    refused(&exec(&place, &options, &read), "which a run could have made");
}

#[test]
fn link_of_the_user_is_followed() {
    let place = place();
    symlink(place.home().join("docs"), place.home().join("papers")).unwrap();
    let name = place.home().join("papers");
    let script = format!("cat {}/docs/diary", place.home().display());
    let ran = exec(&place, &["--read", name.to_str().unwrap()], &script).expect_code(0);
    assert_eq!(ran.stdout, "canary");
}

#[test]
fn home_is_written_only_if_the_user_says_so() {
    let place = place();
    let home = place.home().canonicalize().unwrap();
    let above = home.parent().unwrap().display().to_string();
    let script = format!("cat {}/docs/diary", home.display());
    refused(&exec(&place, &["--write", home.to_str().unwrap()], &script), "is your home directory");
    refused(&exec(&place, &["--write", &above], &script), "above your home directory");
    let ran = exec(&place, &["--home-workspace", "--write", home.to_str().unwrap()], &script);
    assert_eq!(ran.expect_code(0).stdout, "canary");
}

/// A program that is a link would show what is beside its target.
#[test]
fn link_as_the_program_shows_no_other_project() {
    let place = place();
    let packages = place.home().join("other/node_modules");
    fs::create_dir_all(packages.join("p")).unwrap();
    fs::write(packages.join("secret"), "canary").unwrap();
    let program = packages.join("p/cli");
    fs::write(&program, format!("#!/bin/sh\ncat {}/secret\n", packages.display())).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    exec(&place, &[], "ln -s ../home/other/node_modules/p/cli tool; ln -s /bin/echo said").expect_code(0);
    refused(&place.run(&["exec", "--mode", "native", "--", "./tool"]), "which a run could have made");
    let said = place.run(&["exec", "--mode", "native", "--", "./said", "fine"]).expect_code(0);
    assert_eq!(said.stdout, "fine\n");
}

/// Read-only mounts and a network of its own keep no program from connecting to a path that it sees.
#[test]
fn sockets_below_the_system_cannot_be_reached() {
    // Only root can listen there.
    let Ok(system) = tempfile::tempdir_in("/opt") else { return };
    fs::set_permissions(system.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = system.path().join("service");
    let _listener = UnixListener::bind(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    fs::write(system.path().join("beside"), "seen").unwrap();
    let code = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1]); print('connected')";
    let path = path.to_str().unwrap();
    let mut outside = std::process::Command::new("python3");
    assert!(outside.args(["-c", code, path]).status().unwrap().success(), "the attempt itself is wrong");
    for place in [Place::new(), Place::new().of_user(65533)] {
        let ran = place.run(&["exec", "--mode", "native", "--", "/usr/bin/python3", "-c", code, path]);
        assert!(ran.code() == 1 && ran.stdout.is_empty(), "{ran:?}");
        let beside = system.path().join("beside").display().to_string();
        assert_eq!(exec(&place, &[], &format!("cat {beside}")).expect_code(0).stdout, "seen");
    }
}

/// Whoever has a descriptor of a device of the host, as its owner, can change its permissions.
#[test]
fn devices_as_standard_input_are_not_the_hosts() {
    let code = "import os, stat
data = os.fstat(0)
if stat.S_ISCHR(data.st_mode):
    try: os.fchmod(0, 0o666); print('changed')
    except OSError: pass
print(repr(os.read(0, 4)))";
    for (device, read) in [("/dev/null", "b''"), ("/dev/zero", "b'\\x00\\x00\\x00\\x00'")] {
        let place = Place::new();
        let mut command = place.command(&["exec", "--mode", "native", "--", "/usr/bin/python3", "-c", code]);
        let ran = Ran::from(command.stdin(fs::File::open(device).unwrap()).output().unwrap());
        assert_eq!(ran.stdout.trim_end(), read, "{device}: {ran:?}");
        assert!(fs::metadata(device).unwrap().file_type().is_char_device());
    }
    // What a run has that reads nothing.
    let place = Place::new();
    let file = place.work().join("attempt.py");
    fs::write(&file, code).unwrap();
    let ran = place.run(&[
        "run",
        "--agent",
        "command",
        "--mode",
        "native",
        "--command",
        "/usr/bin/python3 attempt.py",
        "go",
    ]);
    assert!(!ran.stdout.contains("changed") && ran.stdout.contains("b''"), "{ran:?}");
}

/// A named pipe belongs to the host, as a file does.
#[test]
fn named_pipe_as_standard_input_keeps_its_permissions() {
    let place = Place::new();
    let pipe = place.home().join("pipe");
    assert!(std::process::Command::new("mkfifo").args(["-m", "600"]).arg(&pipe).status().unwrap().success());
    let both = fs::OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
    let mut command = place.command(&[
        "exec",
        "--mode",
        "native",
        "--",
        "/usr/bin/python3",
        "-c",
        "import os; os.fchmod(0, 0o777)",
    ]);
    let ran = Ran::from(command.stdin(Stdio::from(both)).output().unwrap()).expect_code(0);
    assert_eq!(fs::metadata(&pipe).unwrap().permissions().mode() & 0o777, 0o600, "{ran:?}");
}

/// What the kernel counts for the user, over all programs: half of it is left to the others.
#[test]
fn resources_of_the_user_are_left_to_others() {
    let code = "import ctypes, resource
print(resource.getrlimit(resource.RLIMIT_NOFILE)[1], resource.getrlimit(resource.RLIMIT_SIGPENDING)[1])
libc = ctypes.CDLL(None)
count = 0
while libc.inotify_init() >= 0: count += 1
print(count)";
    let place = Place::new().of_user(65532);
    let ran = place.run(&["exec", "--mode", "native", "--", "/usr/bin/python3", "-c", code]).expect_code(0);
    let numbers: Vec<u64> = ran.stdout.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let [descriptors, signals, instances] = numbers[..] else { panic!("{ran:?}") };
    let limit = |resource| rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
    assert!(descriptors <= 65_536, "{descriptors}");
    assert!(signals <= limit(rustix::process::Resource::Sigpending) / 2, "{signals}");
    let most = fs::read_to_string("/proc/sys/fs/inotify/max_user_instances").unwrap();
    let most: u64 = most.trim().parse().unwrap();
    assert!(instances <= most / 2 && instances > 0, "{instances} of {most}");
}

/// The first process of a sandbox is in no session of the user's, which has the user's terminal.
#[test]
fn first_process_leads_a_session_of_its_own() {
    let ran = exec(&Place::new(), &[], "cut -d' ' -f6,7 /proc/1/stat").expect_code(0);
    assert_eq!(ran.stdout, "1 0\n");
}

#[test]
fn stopped_ringfence_does_not_stop_the_clock() {
    let place = Place::new();
    let script = "while :; do echo x >> beat; sleep 0.1; done";
    let child = place.spawn(&["exec", "--mode", "native", "--timeout", "1", "--", "sh", "-c", script]);
    let beat = place.work().join("beat");
    wait_for("the first beat", || beat.exists().then_some(()));
    signal(child.id(), "-STOP");
    let mut before = 0;
    wait_for("the end of the run", || {
        std::thread::sleep(std::time::Duration::from_secs(1));
        let now = fs::metadata(&beat).unwrap().len();
        (std::mem::replace(&mut before, now) == now).then_some(())
    });
    signal(child.id(), "-CONT");
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(124));
}

/// What Ringfence itself writes is nothing that a run has left.
#[test]
fn state_below_a_grant_is_not_reported_as_executed_later() {
    let place = place();
    let shared = place.home().join("shared");
    let place = place.env("RINGFENCE_HOME", shared.join("state").display().to_string());
    fs::create_dir_all(shared.join("state")).unwrap();
    fs::set_permissions(shared.join("state"), fs::Permissions::from_mode(0o700)).unwrap();
    let git = std::process::Command::new("git").args(["init", "-q"]).arg(place.work()).status().unwrap();
    assert!(git.success());
    let script = format!("echo run > {}/.envrc", shared.display());
    let ran = place.run(&[
        "exec",
        "--json",
        "--mode",
        "native",
        "--write",
        shared.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        &script,
    ]);
    let listed = ran.result()["executed_later"].to_string();
    assert!(listed.contains("shared/.envrc") && !listed.contains("/state/"), "{listed}");
}

/// Repositories that a run has made cost a later run little, and a signal ends it while it looks at them.
#[test]
fn many_repositories_delay_no_later_run() {
    let place = Place::new();
    for number in 0..6000 {
        let git = place.work().join(format!("m/{number}/.git"));
        for directory in ["hooks", "objects", "refs"] {
            fs::create_dir_all(git.join(directory)).unwrap();
        }
        fs::write(git.join("HEAD"), "ref: refs/heads/x\n").unwrap();
        fs::write(git.join("config"), "[core]\nhooksPath=../h\n[include]\npath=../x\n").unwrap();
    }
    let begun = std::time::Instant::now();
    exec(&place, &[], "true").expect_code(0);
    assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
    let child = place.spawn(&["exec", "--mode", "native", "--", "sleep", "100"]);
    std::thread::sleep(std::time::Duration::from_millis(150));
    signal(child.id(), "-TERM");
    let ended = Ran::from(child.wait_with_output().unwrap());
    assert!(ended.stderr.contains("cancelled while its workspace was scanned"), "{ended:?}");
}

#[test]
fn root_is_not_shown_whole_and_parts_of_the_system_are_shown_with_their_covers() {
    let place = Place::new();
    let ran = place.run(&["exec", "--read", "/", "--", "true"]);
    assert_eq!(ran.code(), 125);
    for part in ["/ cannot be shown as a whole", "name the directories below it"] {
        assert!(ran.stderr.contains(part), "{}", ran.stderr);
    }
    let ran = place.run(&["exec", "--read", "/etc", "--", "sh", "-c", "cat /etc/shadow; echo started"]);
    assert_eq!((ran.code(), ran.stdout.as_str()), (0, "started\n"), "{}", ran.stderr);
}

/// A FIFO of the host, with a reader.
fn fifo(path: &std::path::Path) -> fs::File {
    use std::os::unix::fs::OpenOptionsExt;
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    fs::OpenOptions::new().read(true).write(true).custom_flags(libc_nonblock()).open(path).unwrap()
}

fn libc_nonblock() -> i32 {
    i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap()
}

fn assert_unheard(reader: &mut fs::File, ran: &Ran) {
    use std::io::Read;
    let mut heard = [0; 64];
    let read = reader.read(&mut heard);
    assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "{ran:?}");
}

in_every_sandbox! {
    /// Neither a read-only mount nor Landlock keeps a run from writing into one.
    fn a_fifo_of_the_host_by_what_a_run_sees(sandbox: &Sandbox) {
        let granted = sandbox.place.home().join("docs");
        fs::create_dir(&granted).unwrap();
        let mut readers = [fifo(&granted.join("queue")), fifo(&sandbox.place.work().join("queue"))];
        let script = format!(
            "for name in {0}/queue queue; do timeout 5 sh -c \"echo canary > $name\"; done; true",
            granted.display()
        );
        for option in ["--read", "--write"] {
            let ran = sandbox.exec(&[option, granted.to_str().unwrap()], &["sh", "-c", &script]);
            readers.iter_mut().for_each(|reader| assert_unheard(reader, &ran));
        }
        let notices = sandbox.place.run(&["runs", "show", "last", "--json"]).json()["record"]["notices"].to_string();
        assert!(notices.contains("hidden from the run: queue"), "{notices}");
        for option in ["--read", "--write"] {
            let queue = granted.join("queue").display().to_string();
            let ran = sandbox.place.run(&sandbox.args(&[option, &queue], &["true"]));
            assert!(ran.code() == 125 && ran.stderr.contains("is a FIFO"), "{ran:?}");
        }
    }

    /// A file that is denied in one tree has another name in one that is searched before it.
    fn a_denied_file_by_its_name_in_another_tree(sandbox: &Sandbox) {
        let granted = sandbox.place.home().join("docs");
        fs::create_dir(&granted).unwrap();
        fs::write(granted.join(".env"), "canary").unwrap();
        sandbox.put(".env", "canary");
        fs::hard_link(granted.join(".env"), sandbox.place.work().join("notes")).unwrap();
        fs::hard_link(sandbox.place.work().join(".env"), granted.join("notes")).unwrap();
        let script = format!("cat notes .env {0}/notes {0}/.env", granted.display());
        let ran = sandbox.exec(&["--read", granted.to_str().unwrap()], &["sh", "-c", &script]);
        assert!(!ran.stdout.contains("canary"), "{ran:?}");
    }
}

#[test]
fn places_of_the_kernel_are_no_grants() {
    let place = Place::new();
    for option in ["--read", "--write"] {
        for path in ["/proc", "/proc/1", "/dev", "/dev/shm", "/sys"] {
            refused(&exec(&place, &[option, path], "true"), "of the host is not shown to runs");
        }
    }
}
