//! Whatever a run started ends with it: at its end, at its timeout, at Ctrl-C, when `ringfence` itself is killed.

use std::time::Duration;

use crate::support::{Place, lives, signal, wait_for};

/// A process that leaves its parent, its group and its session, and ignores polite signals; then the program works on.
const DAEMON: &str = r#"setsid sh -c 'setsid sh -c "trap \"\" TERM INT HUP; echo \$\$ > daemon.pid; while :; do sleep 1; done" & exit 0' &
    while [ ! -s daemon.pid ]; do sleep 0.01; done"#;

fn exec(place: &Place, args: &[&str], script: &str) -> crate::support::Ran {
    let args = [&["exec", "--mode", "host"], args, &["--", "sh", "-c", script]].concat();
    place.run(&args)
}

#[test]
fn a_timeout_ends_a_daemon_too_and_says_124() {
    let place = Place::new();
    let ran = exec(&place, &["--timeout", "1"], &format!("{DAEMON}; sleep 1000")).expect_code(124);
    assert!(
        ran.stderr.contains("took longer than 1 s") && ran.stderr.contains("--timeout"),
        "{}",
        ran.stderr
    );
    assert!(!lives(place.pid("daemon.pid")));
}

#[test]
fn a_timeout_ends_what_ignores_polite_signals() {
    let place = Place::new();
    exec(&place, &["--timeout", "1"], "trap '' TERM INT; echo $$ > it.pid; while :; do sleep 1; done")
        .expect_code(124);
    assert!(!lives(place.pid("it.pid")));
}

#[test]
fn a_daemon_does_not_outlive_a_run_that_ended_well() {
    let place = Place::new();
    exec(&place, &[], DAEMON).expect_code(0);
    assert!(!lives(place.pid("daemon.pid")));
    let shown = place.run(&["runs", "show", "last", "--json"]).json();
    assert!(shown["result"]["leftover_processes"].as_u64().unwrap() >= 1);
}

#[test]
fn ctrl_c_ends_the_whole_tree_and_says_so() {
    let place = Place::new();
    let child = place.spawn(&["exec", "--mode", "host", "--", "sh", "-c", &format!("{DAEMON}; sleep 1000")]);
    let daemon = place.pid("daemon.pid");
    signal(child.id(), "-INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(String::from_utf8_lossy(&output.stderr).contains("ending the run and all that it started"));
    assert!(!lives(daemon));
    let shown = place.run(&["runs", "show", "last", "--json"]).json();
    assert_eq!(shown["result"]["status"], "cancelled");
    assert_eq!(shown["result"]["failure"]["class"], "cancelled");
}

/// Both ignore the first. The one that gets a second ends while the other, asked before it, still has its grace.
#[test]
fn a_second_ctrl_c_does_not_wait() {
    let script = "trap '' INT TERM; echo $$ > it.pid; while :; do sleep 1; done";
    let (patient, hasty) = (Place::new(), Place::new());
    let start = |place: &Place| place.spawn(&["exec", "--mode", "host", "--", "sh", "-c", script]);
    let (first, mut second) = (start(&patient), start(&hasty));
    let (waits, goes) = (patient.pid("it.pid"), hasty.pid("it.pid"));
    signal(first.id(), "-INT");
    signal(second.id(), "-INT");
    // Two that come before the first is noticed are one.
    let mut words = [0; 12];
    std::io::Read::read_exact(second.stderr.as_mut().unwrap(), &mut words).unwrap();
    signal(second.id(), "-INT");
    assert_eq!(second.wait_with_output().unwrap().status.code(), Some(130));
    assert!(!lives(goes) && lives(waits));
    assert_eq!(first.wait_with_output().unwrap().status.code(), Some(130));
    assert!(!lives(waits));
}

#[test]
fn a_run_that_takes_a_cancellation_well_is_cancelled_all_the_same() {
    let place = Place::new();
    let script = "trap 'exit 0' INT; echo $$ > it.pid; while :; do sleep 0.05; done";
    let child = place.spawn(&["exec", "--mode", "host", "--", "sh", "-c", script]);
    place.pid("it.pid");
    signal(child.id(), "-INT");
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
    assert_eq!(place.run(&["runs", "list", "--json"]).json()[0]["status"], "cancelled");
}

#[test]
fn a_terminal_that_is_gone_does_not_stop_a_signal_from_working() {
    let place = Place::new();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command =
        place.command(&["exec", "--mode", "host", "--", "sh", "-c", "echo $$ > it.pid; sleep 1000"]);
    let mut child = command.stderr(full).spawn().unwrap();
    let it = place.pid("it.pid");
    signal(child.id(), "-HUP");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!lives(it));
}

/// The gate is a process like any other, and the run can reach it. Killing it frees nobody.
#[test]
fn a_killed_gate_frees_nobody() {
    let place = Place::new();
    let ran = exec(&place, &[], &format!("{DAEMON}; kill -9 $PPID; sleep 1000")).expect_code(125);
    assert!(ran.stderr.contains("the gate was killed"), "{}", ran.stderr);
    assert!(!lives(place.pid("daemon.pid")));
}

/// In a container the leader of one's session may be outside, where it has no number.
#[test]
fn a_killed_gate_frees_nobody_in_a_session_from_outside() {
    let place = Place::new();
    let script = format!("{DAEMON}; kill -9 $PPID; sleep 1000");
    std::fs::write(place.work().join("it.sh"), script).unwrap();
    let binary = crate::support::BINARY;
    let ran = place.shell(&format!(
        "exec unshare --map-root-user --pid --fork --mount-proc -- sh -c '{binary} exec --mode host -- sh it.sh; exit $?'"
    ));
    assert_eq!(ran.code(), 125, "{}", ran.stderr);
    assert!(ran.stderr.contains("the gate was killed"), "{}", ran.stderr);
}

#[test]
fn a_stopped_gate_does_not_stop_the_clock() {
    let place = Place::new();
    exec(&place, &["--timeout", "1"], &format!("{DAEMON}; kill -STOP $PPID; sleep 1000")).expect_code(124);
    assert!(!lives(place.pid("daemon.pid")));
}

#[test]
fn a_reader_who_does_not_read_does_not_stop_the_clock() {
    let place = Place::new();
    let args = ["exec", "--mode", "host", "--timeout", "1", "--", "sh", "-c", "echo $$ > it.pid; yes"];
    let mut child = place.spawn(&args);
    let it = place.pid("it.pid");
    // It ends by itself, with nobody reading what waits in the pipe.
    assert_eq!(child.wait().unwrap().code(), Some(124));
    assert!(!lives(it));
    assert_eq!(place.run(&["runs", "list", "--json"]).json()[0]["failure"], "timeout");
}

#[test]
fn a_stopped_ringfence_does_not_stop_the_clock() {
    let place = Place::new();
    let args = ["exec", "--mode", "host", "--timeout", "1", "--", "sh", "-c", "echo $$ > it.pid; sleep 1000"];
    let child = place.spawn(&args);
    let it = place.pid("it.pid");
    signal(child.id(), "-STOP");
    wait_for("the end of the run", || (!lives(it)).then_some(()));
    signal(child.id(), "-CONT");
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(124));
}

#[test]
fn killing_ringfence_ends_the_whole_tree_and_the_run_is_known_as_lost() {
    let place = Place::new();
    let mut child =
        place.spawn(&["exec", "--mode", "host", "--", "sh", "-c", &format!("{DAEMON}; sleep 1000")]);
    let daemon = place.pid("daemon.pid");
    assert_eq!(place.run(&["runs", "list", "--json"]).json()[0]["status"], "running");
    signal(child.id(), "-KILL");
    child.wait().unwrap();
    wait_for("the daemon's end", || (!lives(daemon)).then_some(()));
    assert_eq!(place.run(&["runs", "list", "--json"]).json()[0]["status"], "lost");
}

#[test]
fn a_reader_who_leaves_ends_the_run() {
    let loud = "trap '' TERM; echo $$ > it.pid; while :; do echo more; sleep 0.01; done";
    let as_agent = format!("sh -c \"{loud}\"");
    for args in [
        &["exec", "--mode", "host", "--", "sh", "-c", loud][..],
        &["run", "--mode", "host", "--agent", "command", "--command", &as_agent],
        &["run", "--mode", "host", "--agent", "command", "--command", &as_agent, "--json"],
    ] {
        let place = Place::new();
        let mut child = place.spawn(args);
        let it = place.pid("it.pid");
        drop(child.stdout.take());
        assert_eq!(child.wait().unwrap().code(), Some(141), "{args:?}");
        assert!(!lives(it));
    }
}

#[test]
fn too_much_output_ends_the_run() {
    let place = Place::new();
    std::fs::write(place.work().join("p.json"), r#"{"extends": "open", "limits": {"output": "6m"}}"#)
        .unwrap();
    let ran = exec(&place, &["--policy", "./p.json"], "echo $$ > it.pid; yes").expect_code(125);
    assert!(ran.stderr.contains("printed more than 6m"), "{}", ran.stderr);
    assert!(ran.stdout.len() <= 6 << 20);
    assert!(!lives(place.pid("it.pid")));
}

/// Of one process, of several together, and shared: whatever takes the memory.
#[test]
fn memory_is_bounded_and_running_out_of_it_has_a_class() {
    let place = Place::new();
    let shared = "import mmap, time; m = mmap.mmap(-1, 300 << 20); \
                  [m.__setitem__(i, 1) for i in range(0, 300 << 20, 4096)]; time.sleep(1000)";
    let command = format!("python3 -c \"{shared}\"");
    let result = place.agent(&command, &["--memory", "128m"]).expect_code(125).result();
    assert_eq!(result["failure"]["class"], "out_of_memory");
    exec(&place, &["--memory", "128m"], "exec python3 -c 'x = bytearray(300 << 20)'").expect_code(1);
    exec(&place, &["--memory", "1g"], "exec python3 -c 'x = bytearray(300 << 20)'").expect_code(0);
}

#[test]
fn a_hundred_runs_at_once_keep_apart() {
    let place = Place::new();
    let children: Vec<_> = (0..100)
        .map(|index| {
            place.spawn(&["exec", "--mode", "host", "--", "sh", "-c", &format!("exit {}", index % 100)])
        })
        .collect();
    for (index, child) in children.into_iter().enumerate() {
        assert_eq!(child.wait_with_output().unwrap().status.code(), Some(index as i32 % 100));
    }
    let listed = place.run(&["runs", "list", "--limit", "200", "--json"]).json();
    assert_eq!(listed.as_array().unwrap().len(), 100);
}

#[test]
fn a_run_costs_no_processor_time_while_it_waits() {
    let place = Place::new();
    let child = place.spawn(&["exec", "--mode", "host", "--", "sh", "-c", "echo $$ > it.pid; sleep 1000"]);
    place.pid("it.pid");
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
    let gate = children.trim().parse().expect("one child, the gate");
    let ticks = || processor_ticks(child.id()) + processor_ticks(gate);
    let before = ticks();
    std::thread::sleep(Duration::from_millis(500));
    assert!(ticks() - before <= 1, "they must sleep, not poll");
    signal(child.id(), "-TERM");
    child.wait_with_output().unwrap();
}

fn processor_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

/// Whatever it is called: half a character, parentheses, line ends.
#[test]
fn a_name_that_is_no_text_hides_nobody() {
    let place = Place::new();
    let code = r"import ctypes, os, signal, time
os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN)
ctypes.CDLL(None).prctl(15, b')\xd0 (\n', 0, 0, 0)
open('hidden.pid', 'w').write(str(os.getpid())); time.sleep(1000)";
    std::fs::write(place.work().join("hide.py"), code).unwrap();
    exec(&place, &[], "python3 hide.py & while [ ! -s hidden.pid ]; do sleep 0.01; done; exit 3")
        .expect_code(3);
    let pid = place.pid("hidden.pid");
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}

/// Stops the gate before it can say that the program runs.
#[test]
fn a_gate_that_is_stopped_at_once_is_ended_too() {
    let place = Place::new();
    let ran = exec(&place, &["--timeout", "1"], "kill -STOP $PPID; echo $$ > it.pid; exec sleep 1000");
    assert!([124, 125].contains(&ran.code()), "{}: {}", ran.code(), ran.stderr);
    assert!(!lives(place.pid("it.pid")));
}

#[test]
fn a_cancellation_reaches_a_stopped_gate() {
    let place = Place::new();
    let script = format!("{DAEMON}; kill -STOP $PPID; echo $$ > it.pid; sleep 1000");
    let child = place.spawn(&["exec", "--mode", "host", "--", "sh", "-c", &script]);
    let it = place.pid("it.pid");
    signal(child.id(), "-INT");
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
    assert!(!lives(it) && !lives(place.pid("daemon.pid")));
}

#[test]
fn killing_ringfence_while_the_gate_is_stopped_ends_everything_too() {
    let place = Place::new();
    let script = format!("{DAEMON}; kill -STOP $PPID; echo $$ > it.pid; sleep 1000");
    let mut child = place.spawn(&["exec", "--mode", "host", "--", "sh", "-c", &script]);
    let (it, daemon) = (place.pid("it.pid"), place.pid("daemon.pid"));
    signal(child.id(), "-KILL");
    child.wait().unwrap();
    wait_for("the end of both", || (!lives(it) && !lives(daemon)).then_some(()));
}

/// Takes the gate's socket, says that all went well, and kills the gate. Only root gets that far.
#[test]
fn a_forged_end_is_not_believed() {
    let code = r#"import ctypes, json, os, signal, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
gate = os.getppid()
fd = libc.syscall(438, os.pidfd_open(gate), 0, 0)
if fd < 0: sys.exit(9)
body = json.dumps({"ended": {"status": {"code": 0}, "leftovers": 0, "survivors": 0, "limit": None}}).encode()
if os.fork() == 0:
    os.setsid(); open("left.pid", "w").write(str(os.getpid())); signal.pause()
while not os.path.exists("left.pid") or not open("left.pid").read(): pass
os.write(fd, struct.pack("<I", len(body)) + body)
if sys.argv[1] == "kill": os.kill(gate, 9)
signal.pause()"#;
    let is_root = std::process::Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    // The gate may hear of it, or not live to hear of it.
    for gate in ["leave", "kill"] {
        let place = Place::new();
        std::fs::write(place.work().join("forge.py"), code).unwrap();
        let ran = exec(&place, &[], &format!("exec python3 forge.py {gate}"));
        assert_eq!(ran.code(), if is_root { 125 } else { 9 }, "{gate}: {}", ran.stderr);
        if is_root {
            assert!(!lives(place.pid("left.pid")));
        }
    }
}

/// A shell that replaced itself by `ringfence` left it children that are none of its business.
#[test]
fn inherited_children_are_left_alone() {
    let place = Place::new();
    let binary = crate::support::BINARY;
    let script = format!(
        "setsid sleep 60 > /dev/null 2>&1 & echo $! > innocent.pid; sleep 0.2; exec {binary} exec --mode host -- sh -c 'kill -9 $PPID; sleep 5'"
    );
    place.shell(&script).expect_code(125);
    let innocent = place.pid("innocent.pid");
    assert!(lives(innocent));
    signal(innocent, "-KILL");
}

#[test]
fn a_loud_stranger_on_the_pipe_does_not_hide_the_end() {
    let place = Place::new();
    let child = place.spawn(&[
        "exec",
        "--mode",
        "host",
        "--timeout",
        "60",
        "--",
        "sh",
        "-c",
        "echo $$ > it.pid; sleep 1; exit 6",
    ]);
    let it = place.pid("it.pid");
    let mut pipe = std::fs::OpenOptions::new().write(true).open(format!("/proc/{it}/fd/1")).unwrap();
    // Loud, and not so loud that the run would be ended for what its log may hold.
    std::thread::spawn(move || {
        while std::io::Write::write_all(&mut pipe, &[b'y'; 4096]).is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(6));
}

/// Whoever pages through the output reads slowly: what was printed before the end comes however long that takes.
#[test]
fn a_slow_reader_gets_all_that_was_printed() {
    for mode in ["host", "native"] {
        let place = Place::new();
        let script = "head -c 65536 /dev/zero; sleep 0.1; echo first >&2; touch ready; while [ ! -e on ]; do sleep 0.01; done; \
                      head -c 60000 /dev/zero; echo last >&2; touch ended";
        let child = place.spawn(&["exec", "--mode", mode, "--", "sh", "-c", script]);
        let there = |name: &str| place.work().join(name).exists().then_some(());
        wait_for("the first words", || there("ready"));
        // Nobody listens to the program until it has ended, and then nobody to `ringfence`, whose pipe is full.
        std::thread::sleep(Duration::from_millis(300));
        signal(child.id(), "-STOP");
        std::fs::write(place.work().join("on"), "").unwrap();
        wait_for("the last words", || there("ended"));
        std::thread::sleep(Duration::from_millis(300));
        signal(child.id(), "-CONT");
        std::thread::sleep(Duration::from_millis(1500));
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 65536 + 60000), "{mode}");
        // Before the program runs, `ringfence` says that the mode has no boundary.
        let said = String::from_utf8_lossy(&output.stderr);
        let of_program: Vec<&str> = said.lines().filter(|line| !line.starts_with("! mode host")).collect();
        assert_eq!(of_program, ["first", "last"], "{mode}: {said}");
    }
}
