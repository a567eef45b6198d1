//! Memory, processes, processors and disk of a run in mode native: bounded, and running out has a name.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::support::{Place, Ran};

/// Runs a command as an agent would, so that its failure has a class.
fn agent(place: &Place, limits: &[&str], command: &str) -> Value {
    let args =
        [&["run", "--mode", "native", "--agent", "command", "--json", "--command", command], limits].concat();
    place.run(&args).result()
}

const FORK: &str = "sh -c \"i=0; while [ $i -lt 40 ]; do sleep 1 & i=$((i+1)); done; wait\"";
const GRAB: &str = "/usr/bin/python3 -c \"x = bytearray(300 << 20)\"";

#[test]
fn running_out_of_memory_has_a_class() {
    let result = agent(&Place::new(), &["--memory", "100m"], GRAB);
    assert_eq!(result["failure"]["class"], "out_of_memory", "{result}");
    assert!(result["failure"]["remedy"].as_str().unwrap().contains("--memory"));
    let result = agent(&Place::new(), &["--memory", "1g"], GRAB);
    assert_eq!(result["status"], "success", "{result}");
}

#[test]
fn running_out_of_processes_has_a_class() {
    let result = agent(&Place::new(), &["--pids", "20"], FORK);
    assert_eq!(result["failure"]["class"], "out_of_processes", "{result}");
    assert!(result["failure"]["remedy"].as_str().unwrap().contains("--pids"));
    let result = agent(&Place::new(), &["--pids", "60"], FORK);
    assert_eq!(result["status"], "success", "{result}");
}

/// What an agent gets over is no failure of the run.
#[test]
fn a_run_that_gets_over_it_has_not_failed() {
    let command = format!("sh -c '{}; exit 0'", GRAB.replace('\'', "'\\''"));
    let result = agent(&Place::new(), &["--memory", "100m"], &command);
    assert_eq!(result["status"], "success", "{result}");
}

#[test]
fn processors_are_bounded() {
    let burn = "import os, time\nfor _ in range(2): os.fork()\nend = time.time() + 0.6\nwhile time.time() < end: pass\nprint(time.process_time())";
    let place = Place::new();
    fs::write(place.work().join("burn.py"), burn).unwrap();
    let used = |cpus: &str| -> f64 {
        let args = ["exec", "--mode", "native", "--cpus", cpus, "--", "/usr/bin/python3", "burn.py"];
        let out = place.run(&args).expect_code(0).stdout;
        out.lines().map(|line| line.parse::<f64>().unwrap()).sum()
    };
    assert!(used("0.5") < 0.5 * 0.6 * 1.6);
}

#[test]
fn private_places_are_bounded_together() {
    let place = Place::new();
    let policy = place.home().join("p.json");
    fs::write(&policy, r#"{"extends": "standard", "limits": {"disk": "20m"}}"#).unwrap();
    let fill = |places: &str| -> Ran {
        let script = format!("for p in {places}; do head -c 15m /dev/zero > $p/f || exit 3; done");
        let policy = policy.to_str().unwrap();
        place.run(&["exec", "--mode", "native", "--policy", policy, "--", "sh", "-c", &script])
    };
    fill("/tmp").expect_code(0);
    for both in ["/tmp /var/tmp", "/tmp $HOME", "/dev/shm /run"] {
        let ran = fill(both).expect_code(3);
        assert!(ran.stderr.contains("No space left"), "{}", ran.stderr);
    }
    fill("/workspace /tmp").expect_code(0);
}

#[test]
fn the_record_says_by_what_and_the_locked_preset_holds() {
    let place = Place::new();
    place
        .run(&["exec", "--mode", "native", "--policy", "locked", "--cpus", "1", "--", "true"])
        .expect_code(0);
    let mechanisms = place.run(&["runs", "show", "last", "--json"]).json()["record"]["mechanisms"].clone();
    for promise in ["memory", "pids", "cpus"] {
        assert!(mechanisms[promise].is_string(), "{promise}: {mechanisms}");
    }
}

/// Without any control group of one's own.
#[test]
fn a_normal_user_has_limits_too() {
    let place = Place::new();
    let run = |args: &[&str]| {
        place.as_nobody(&[&["run", "--mode", "native", "--agent", "command", "--json"], args].concat(), &[])
    };
    let Some(ran) = run(&["--pids", "20", "--command", FORK]) else { return };
    assert_eq!(ran.result()["failure"]["class"], "out_of_processes", "{}{}", ran.stdout, ran.stderr);
    let ran = run(&["--pids", "60", "--command", FORK]).unwrap();
    assert_eq!(ran.result()["status"], "success", "{}{}", ran.stdout, ran.stderr);
    let ran = run(&["--cpus", "0.5", "--command", "true"]).unwrap().expect_code(125);
    assert!(ran.stdout.contains("only whole ones"), "{}", ran.stdout);
    let ran = place.as_nobody(&["exec", "--cpus", "1", "--", "nproc"], &[]).unwrap();
    assert_eq!(ran.stdout, "1\n", "{}", ran.stderr);
    let pinned = "import os\nos.sched_setaffinity(0, range(64))";
    let ran = place.as_nobody(&["exec", "--cpus", "1", "--", "/usr/bin/python3", "-c", pinned], &[]).unwrap();
    assert!(ran.stderr.contains("Operation not permitted"), "{}", ran.stderr);
}

/// Where a person's systemd is there, it bounds what nothing else can. A program in its place checks what it is told.
#[test]
fn a_scope_of_systemd_is_used_where_nothing_else_bounds_processors() {
    let place = Place::new();
    let runtime = place.home().join("runtime/systemd");
    fs::create_dir_all(&runtime).unwrap();
    fs::write(runtime.join("private"), "").unwrap();
    let bin = place.home().join("bin");
    fs::create_dir(&bin).unwrap();
    let told = place.home().join("told");
    let script = format!(
        "#!/bin/sh\necho \"$@\" > {}\n/usr/bin/env > {0}.env\nwhile [ \"$1\" != -- ]; do shift; done; shift; exec \"$@\"\n",
        told.display()
    );
    fs::write(bin.join("systemd-run"), script).unwrap();
    Command::new("chmod").arg("+x").arg(bin.join("systemd-run")).status().unwrap();
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let runtime = place.home().join("runtime").display().to_string();
    let secret = ("ANTHROPIC_API_KEY", "sk-canary");
    let env = [("PATH", path.as_str()), ("XDG_RUNTIME_DIR", runtime.as_str()), secret];
    let Some(ran) = place.as_nobody(&["exec", "--cpus", "1.5", "--", "echo", "hello"], &env) else { return };
    assert_eq!(ran.stdout, "hello\n", "{}", ran.stderr);
    let seen = fs::read_to_string(told.with_extension("env")).unwrap();
    assert!(!seen.contains("sk-canary") && !seen.contains("API_KEY"), "{seen}");
    let told = fs::read_to_string(told).unwrap();
    assert!(told.starts_with("--user --scope --quiet --collect --unit=ringfence-"), "{told}");
    assert!(told.contains("--property=CPUQuota=150% -- ") && told.trim_end().ends_with("__gate"), "{told}");
    assert!(!told.contains("MemoryMax"), "{told}");
}
