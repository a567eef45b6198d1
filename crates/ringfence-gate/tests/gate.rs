//! The gate as the host sees it: nothing of a run survives it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ringfence_gate::{
    Limit, Order, Report, Signal, Spec, StartProblem, Status, read_frame, send, write_frame,
};

struct Gate {
    process: Child,
    socket: UnixStream,
}

impl Gate {
    fn start(script: &str, cwd: &Path) -> Self {
        Self::start_argv(&["/bin/sh", "-c", script], cwd)
    }

    fn start_argv(argv: &[&str], cwd: &Path) -> Self {
        Self::start_limited(argv, cwd, None, None)
    }

    fn start_limited(argv: &[&str], cwd: &Path, memory_limit: Option<u64>, lifetime_ms: Option<u64>) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_ringfence-gate"))
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let argv = argv.iter().map(ToString::to_string).collect();
        let env = std::env::vars().collect();
        let spec = Spec {
            argv,
            env,
            cwd: cwd.to_owned(),
            memory_limit,
            process_limit: None,
            watched_memory: None,
            watched_processes: None,
            terminal: None,
            lifetime_ms,
            sandbox: None,
        };
        send(&ours, &Order::Build(spec), None).unwrap();
        send(&ours, &Order::Start, None).unwrap();
        Self { process, socket: ours }
    }

    fn report(&self) -> Report {
        read_frame(&self.socket).unwrap().expect("the gate speaks until it has ended")
    }

    fn output(&mut self) -> String {
        let mut text = String::new();
        self.process.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }
}

/// Whether a process that was told to write its number into a file lives.
fn lives(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn wait_until(mut come: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !come() {
        assert!(Instant::now() < deadline, "it never came");
        std::thread::yield_now();
    }
}

fn pid_in(file: &Path) -> u32 {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()) {
            Some(pid) => return pid,
            None if Instant::now() > deadline => panic!("{} never came", file.display()),
            None => std::thread::yield_now(),
        }
    }
}

/// A process that leaves its parent, its group and its session, and ignores polite signals.
const DAEMON: &str = r#"setsid sh -c 'setsid sh -c "trap \"\" TERM INT HUP; echo \$\$ > daemon.pid; sleep 1000 & wait; while :; do sleep 1; done" & exit 0' &"#;

#[test]
fn the_exit_code_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let gate = Gate::start("exit 7", dir.path());
    assert!(matches!(gate.report(), Report::Started { .. }));
    assert_eq!(
        gate.report(),
        Report::Ended { status: Status::Code(7), leftovers: 0, survivors: 0, limit: None }
    );
}

#[test]
fn a_signal_comes_back_as_a_signal() {
    let dir = tempfile::tempdir().unwrap();
    let gate = Gate::start("kill -9 $$", dir.path());
    gate.report();
    assert_eq!(
        gate.report(),
        Report::Ended { status: Status::Signal(9), leftovers: 0, survivors: 0, limit: None }
    );
}

#[test]
fn what_is_not_there_and_what_is_no_program_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let stub = dir.path().join("stub");
    fs::write(&stub, "").unwrap();
    for (program, expected) in
        [("/nowhere/at-all", StartProblem::NotFound), (stub.to_str().unwrap(), StartProblem::NotExecutable)]
    {
        match Gate::start_argv(&[program], dir.path()).report() {
            Report::CannotStart { problem, .. } => assert_eq!(problem, expected),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_daemon_does_not_outlive_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let gate = Gate::start(&format!("{DAEMON} while [ ! -s daemon.pid ]; do :; done"), dir.path());
    gate.report();
    let Report::Ended { status, leftovers, .. } = gate.report() else { panic!() };
    assert_eq!(status, Status::Code(0));
    assert!(leftovers >= 1);
    assert!(!lives(pid_in(&dir.path().join("daemon.pid"))));
}

#[test]
fn a_daemon_does_not_outlive_a_killed_host() {
    let dir = tempfile::tempdir().unwrap();
    let mut gate = Gate::start(&format!("{DAEMON} sleep 1000"), dir.path());
    gate.report();
    let daemon = pid_in(&dir.path().join("daemon.pid"));
    assert!(lives(daemon));
    gate.socket.shutdown(std::net::Shutdown::Both).unwrap();
    // Whoever hangs up has not heard the end from the gate.
    assert_eq!(gate.process.wait().unwrap().code(), Some(125));
    assert!(!lives(daemon));
}

/// The first thread of a process may end before the others: it then looks like a zombie and is none.
#[test]
fn a_process_whose_first_thread_is_gone_is_ended_too() {
    let dir = tempfile::tempdir().unwrap();
    let code = "import ctypes, os, threading, time
threading.Thread(target=lambda: time.sleep(1000)).start()
open('it.pid', 'w').write(str(os.getpid()))
ctypes.CDLL(None).pthread_exit(None)";
    let gate = Gate::start_argv(&["/usr/bin/env", "python3", "-c", code], dir.path());
    gate.report();
    let it = pid_in(&dir.path().join("it.pid"));
    wait_until(|| fs::read_to_string(format!("/proc/{it}/stat")).is_ok_and(|stat| stat.contains(") Z ")));
    write_frame(&gate.socket, &Order::Signal(Signal::Kill)).unwrap();
    assert_eq!(
        gate.report(),
        Report::Ended { status: Status::Signal(9), leftovers: 0, survivors: 0, limit: None }
    );
}

#[test]
fn time_that_is_used_up_ends_the_run_without_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let argv = ["/bin/sh", "-c", "trap '' TERM; echo $$ > it.pid; while :; do sleep 1; done"];
    let gate = Gate::start_limited(&argv, dir.path(), None, Some(300));
    gate.report();
    assert!(matches!(gate.report(), Report::Ended { limit: Some(Limit::Time), .. }));
    assert!(!lives(pid_in(&dir.path().join("it.pid"))));
}

/// Shared memory too, which no limit of a single process sees, and the sum over all.
#[test]
fn memory_that_is_used_up_ends_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let shared = "import mmap, time
m = mmap.mmap(-1, 300 << 20)
for i in range(0, 300 << 20, 4096): m[i] = 1
time.sleep(1000)";
    let several = "import os, time
for i in range(5): os.fork() or (b := bytearray(60 << 20)) and time.sleep(1000)
time.sleep(1000)";
    for code in [shared, several] {
        let gate =
            Gate::start_limited(&["/usr/bin/env", "python3", "-c", code], dir.path(), Some(200 << 20), None);
        gate.report();
        assert!(
            matches!(gate.report(), Report::Ended { limit: Some(Limit::Memory), survivors: 0, .. }),
            "{code}"
        );
    }
}

#[test]
fn a_signal_reaches_every_session_of_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let script = "setsid sh -c 'trap \"echo heard > heard; exit\" TERM; echo $$ > other.pid; while :; do sleep 0.01; done' & wait";
    let gate = Gate::start(script, dir.path());
    gate.report();
    pid_in(&dir.path().join("other.pid"));
    write_frame(&gate.socket, &Order::Signal(Signal::Terminate)).unwrap();
    assert!(matches!(gate.report(), Report::Ended { .. }));
    assert_eq!(fs::read_to_string(dir.path().join("heard")).unwrap(), "heard\n");
}

#[test]
fn a_kill_ends_what_ignores_everything_else() {
    let dir = tempfile::tempdir().unwrap();
    let gate = Gate::start("trap '' TERM INT; echo $$ > it.pid; while :; do sleep 1; done", dir.path());
    gate.report();
    let it = pid_in(&dir.path().join("it.pid"));
    write_frame(&gate.socket, &Order::Signal(Signal::Terminate)).unwrap();
    write_frame(&gate.socket, &Order::Signal(Signal::Kill)).unwrap();
    assert_eq!(
        gate.report(),
        Report::Ended { status: Status::Signal(9), leftovers: 0, survivors: 0, limit: None }
    );
    assert!(!lives(it));
}

#[test]
fn the_program_has_its_own_session_and_only_its_own_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let leak = fs::File::create(dir.path().join("leak")).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut shell = Command::new("/bin/sh");
    // The shell stands for a parent that leaves a descriptor open, as terminals and editors do.
    shell.arg("-c").arg(format!(
        "exec {} 7<{}/leak",
        env!("CARGO_BIN_EXE_ringfence-gate"),
        dir.path().display()
    ));
    let process = shell.stdin(OwnedFd::from(theirs)).stdout(Stdio::piped()).spawn().unwrap();
    let mut gate = Gate { process, socket: ours };
    let argv = ["/bin/sh", "-c", "ls /proc/$$/fd; cut -d' ' -f6 /proc/$$/stat; echo $$; cat <&0"];
    let spec = Spec {
        argv: argv.map(String::from).to_vec(),
        cwd: dir.path().to_owned(),
        memory_limit: None,
        process_limit: None,
        watched_memory: None,
        watched_processes: None,
        terminal: None,
        lifetime_ms: None,
        env: std::env::vars().collect(),
        sandbox: None,
    };
    let (stdin, mut feed) = UnixStream::pair().unwrap();
    std::io::Write::write_all(&mut feed, b"fed\n").unwrap();
    drop(feed);
    send(&gate.socket, &Order::Build(spec), Some(stdin.as_fd())).unwrap();
    send(&gate.socket, &Order::Start, None).unwrap();
    drop((stdin, leak));
    gate.report();
    assert!(matches!(gate.report(), Report::Ended { status: Status::Code(0), .. }));
    let output = gate.output();
    let lines: Vec<_> = output.lines().collect();
    let [descriptors @ .., session, pid, fed] = &lines[..] else { panic!("{output}") };
    assert_eq!(descriptors, ["0", "1", "2"]);
    assert_eq!(session, pid);
    assert_eq!(*fed, "fed");
}
