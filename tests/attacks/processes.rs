//! Processes that try to outlive their run. Each holds a lock on a file of the workspace: the host gets it when the last
//! process that holds it has ended, wherever it ran.

use std::fs::File;
use std::process::Child;

use crate::sandbox::Sandbox;
use crate::support::{signal, wait_for};

/// Takes the lock, and leaves it to processes that have left the session, ignore signals and close their output.
const STAY: &str = "exec 9>lock; flock -n 9 || exit 99
for way in 'setsid' 'setsid nohup' 'nohup'; do
    ( trap '' TERM INT HUP QUIT; $way sh -c 'trap \"\" TERM INT HUP QUIT; while :; do sleep 1000; done' </dev/null >/dev/null 2>&1 & )
done";

/// Waits until no process holds the lock.
#[track_caller]
fn all_ended(sandbox: &Sandbox) {
    let lock = File::open(sandbox.place.work().join("lock")).unwrap();
    wait_for("the end of every process", || lock.try_lock().is_ok().then_some(()));
}

/// A lock that is free would prove nothing.
#[track_caller]
fn is_held(sandbox: &Sandbox) {
    let lock = File::open(sandbox.place.work().join("lock")).unwrap();
    assert!(lock.try_lock().is_err(), "nothing holds the lock");
}

fn end(mut child: Child) {
    signal(child.id(), "-TERM");
    child.wait().unwrap();
}

in_every_sandbox! {
    fn after_the_run_has_ended(sandbox: &Sandbox) {
        let ran = sandbox.sh(STAY);
        assert_eq!(ran.code(), 0, "{ran:?}");
        all_ended(sandbox);
    }

    fn after_the_time_is_over(sandbox: &Sandbox) {
        let script = format!("{STAY}\ntrap '' TERM INT; while :; do sleep 1000; done");
        let ran = sandbox.exec(&["--timeout", "3s"], &["sh", "-c", &script]);
        assert_eq!(ran.code(), 124, "{ran:?}");
        all_ended(sandbox);
    }

    fn after_ringfence_was_killed(sandbox: &Sandbox) {
        let mut child = sandbox.start(&[], STAY);
        is_held(sandbox);
        signal(child.id(), "-KILL");
        child.wait().unwrap();
        all_ended(sandbox);
    }

    fn after_a_polite_signal(sandbox: &Sandbox) {
        let child = sandbox.start(&[], STAY);
        is_held(sandbox);
        end(child);
        all_ended(sandbox);
    }

    fn of_the_host_are_out_of_sight(sandbox: &Sandbox) {
        let mut sleeper = std::process::Command::new("sleep").arg("4711").spawn().unwrap();
        let ran = sandbox.sh("cat /proc/*/cmdline | tr '\\0' ' ' | grep -c 'slee[p] 4711'");
        assert_eq!(ran.stdout.trim(), "0", "{ran:?}");
        // Its number may be that of a process of the run's own: whatever is hit, it is not the sleeper.
        sandbox.sh(&format!("kill -9 {}", sleeper.id()));
        assert!(sleeper.try_wait().unwrap().is_none(), "it was killed");
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }

    /// Two runs at once do not see each other.
    fn of_another_run_are_out_of_sight(sandbox: &Sandbox) {
        let other = sandbox.another();
        let child = sandbox.start(&[], "sleep 4712 &");
        let ran = other.sh("cat /proc/*/cmdline | tr '\\0' ' ' | grep -c 'slee[p] 4712'; kill -9 -1; true");
        assert_eq!(ran.stdout.trim(), "0", "{ran:?}");
        end(child);
    }
}
