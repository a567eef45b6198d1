//! A run that tries to fill disks: with its log, its audit, its files, or at the cost of what is kept of other runs.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::{Place, Ran, wait_for};

fn policy(place: &Place, limits: &str) -> String {
    let path = place.home().join("policy.json");
    fs::write(&path, format!(r#"{{"extends": "standard", "limits": {limits}}}"#)).unwrap();
    path.display().to_string()
}

fn native(place: &Place, policy: &str, script: &str) -> Ran {
    place.run(&[
        "run",
        "--json",
        "--agent",
        "command",
        "--mode",
        "native",
        "--policy",
        policy,
        "--command",
        &format!("sh -c '{script}'"),
        "go",
    ])
}

/// Where the only run of a place is kept.
fn run_directory(place: &Place) -> std::path::PathBuf {
    fs::read_dir(place.state().join("runs")).unwrap().next().unwrap().unwrap().path()
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

/// The log is bounded as it is written: neither lines of one byte, of which each is a record of ninety, nor characters that JSON
/// writes with two can make it larger.
#[test]
fn the_log_is_not_larger_than_the_output_may_be() {
    let quotes = "head -c 5500000 /dev/zero | tr \"\\0\" \"\\042\" | fold -w 1000";
    for (what, script) in [("lines", "while :; do echo x; done"), ("quotes", quotes)] {
        let place = Place::new();
        let policy = policy(&place, r#"{"output": "6m"}"#);
        let ran = native(&place, &policy, script);
        let result = ran.result();
        assert_eq!(result["failure"]["class"], "agent_error", "{what}: {result:.300}");
        let message = result["failure"]["message"].as_str().unwrap();
        assert!(message.contains("printed more than 6m"), "{what}: {message}");
        let log = run_directory(&place).join("log.jsonl");
        // One line says that it was truncated, one is the result with the end of the output.
        assert!((5 << 20..8 << 20).contains(&size(&log)), "{what}: {} bytes", size(&log));
        let text = fs::read_to_string(&log).unwrap();
        let notices = text.lines().filter(|line| line.contains("the log ends here")).count();
        assert_eq!(notices, 1, "{what}");
        assert!(text.lines().last().unwrap().contains("\"type\":\"result\""), "{what}");
    }
}

/// Control characters, which JSON writes with six, are not kept at all.
#[test]
fn control_characters_do_not_swell_the_log() {
    let place = Place::new();
    let policy = policy(&place, r#"{"output": "6m"}"#);
    let script = "head -c 5500000 /dev/zero | tr \"\\0\" \"\\001\" | fold -w 1000; echo end";
    assert_eq!(native(&place, &policy, script).result()["status"], "success");
    let log = run_directory(&place).join("log.jsonl");
    assert!(size(&log) < 1 << 20, "{} bytes", size(&log));
}

/// Denied requests are counted once they are many, and leave few files.
#[test]
fn a_flood_of_denied_requests_fills_no_disk() {
    let place = Place::new();
    let script = "import os, socket\n\
        proxy = os.environ[\"HTTP_PROXY\"].split(\"//\")[1].split(\":\")\n\
        s = socket.create_connection((proxy[0], int(proxy[1])))\n\
        path = \"p\" * 400\n\
        request = (\"GET http://denied.test/\" + path + \" HTTP/1.1\\r\\nHost: denied.test\\r\\n\\r\\n\").encode()\n\
        for i in range(200):\n\
        \x20 s.sendall(request * 100)\n\
        \x20 got = 0\n\
        \x20 while got < 100:\n\
        \x20   data = s.recv(1 << 20)\n\
        \x20   assert data\n\
        \x20   got += data.count(b\"HTTP/1.1 403\")\n";
    fs::write(place.work().join("flood.py"), script).unwrap();
    place
        .run(&["exec", "--mode", "native", "--allow", "x.test", "--", "/usr/bin/python3", "flood.py"])
        .expect_code(0);
    let directory = run_directory(&place);
    let files: Vec<_> = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    let audit =
        files.iter().filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("network"));
    let sizes: Vec<u64> = audit.map(|path| size(path)).collect();
    assert!(sizes.len() <= 3 && sizes.iter().sum::<u64>() < 10 << 20, "{sizes:?}");
    assert!(sizes.iter().all(|size| *size > 0), "{sizes:?}");
    let entries = place.run(&["runs", "net", "last", "--json"]).expect_code(0).json();
    let counted: u64 =
        entries.as_array().unwrap().iter().map(|entry| entry["count"].as_u64().unwrap_or(1)).sum();
    assert_eq!(counted, 20_000);
}

/// A loud run costs only its own log.
#[test]
fn a_loud_run_removes_no_evidence_of_others() {
    let place = Place::new().settings(r#"{"sandbox": {"mode": "native"}, "queue": {"keep_size": "8m"}}"#);
    let quiet: Vec<String> = (0..3)
        .map(|_| {
            let ran = place.run(&["run", "--json", "--agent", "command", "--command", "echo evidence", "go"]);
            ran.result()["run"].as_str().unwrap().to_owned()
        })
        .collect();
    let loud = place.run(&[
        "run",
        "--json",
        "--agent",
        "command",
        "--command",
        "head -c 9000000 /dev/urandom",
        "go",
    ]);
    let loud = loud.result()["run"].as_str().unwrap().to_owned();
    let runs = place.state().join("runs");
    let before = size(&runs.join(&loud).join("log.jsonl"));
    let swept = place.run(&["prune", "--json"]).expect_code(0).json();
    assert_eq!((&swept["runs"], &swept["trimmed"]), (&serde_json::json!([]), &serde_json::json!([loud])));
    for run in &quiet {
        let log = fs::read_to_string(runs.join(run).join("log.jsonl")).unwrap();
        assert!(log.contains("evidence"), "{run}");
        assert!(runs.join(run).join("record.json").exists() && runs.join(run).join("result.json").exists());
    }
    let log = runs.join(&loud).join("log.jsonl");
    assert!(size(&log) < 128 << 10 && before > 8 << 20, "{} of {before}", size(&log));
    assert!(fs::read_to_string(log).unwrap().lines().last().unwrap().contains("queue.keep_size"));
    assert!(runs.join(&loud).join("record.json").exists() && runs.join(&loud).join("result.json").exists());
    let shown = place.run(&["runs", "show", &loud, "--log", "--json"]).expect_code(0).json();
    assert!(shown["log"].as_array().unwrap().len() >= 2);
}

/// A run that fills the disk is ended before the disk is full.
#[test]
fn a_run_that_fills_the_disk_is_ended() {
    let place = Place::new();
    let policy = policy(&place, r#"{"growth": "64m"}"#);
    let ran = native(&place, &policy, "head -c 400000000 /dev/zero > big; sleep 60");
    let result = ran.result();
    let message = result["failure"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("filled up by more than 64m"), "{result}");
}

/// Empty files fill a file system too.
#[test]
fn a_run_that_uses_up_the_inodes_is_ended() {
    let place = Place::new();
    let small = place.work().join("small");
    fs::create_dir(&small).unwrap();
    let mount = ["-t", "tmpfs", "-o", "size=64m,nr_inodes=20000,mode=777", "tmpfs"];
    if !std::process::Command::new("mount").args(mount).arg(&small).status().unwrap().success() {
        assert!(std::env::var_os("CI").is_none(), "a small disk needs root");
        return;
    }
    let script = "i=0; while [ $i -lt 17000 ]; do : > f$i; i=$((i+1)); done; sleep 60";
    let small_text = small.to_str().unwrap();
    let args = ["exec", "--json", "--mode", "native", "-C", small_text, "--", "sh", "-c", script];
    let result = place.run(&args).result();
    let unmounted = std::process::Command::new("umount").arg("-l").arg(&small).status();
    let message = result["failure"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("files were made on the file system of the workspace"), "{result}");
    assert!(unmounted.unwrap().success());
}

/// Without any flag a run has limits where the machine can enforce them, and its record says where not.
#[test]
fn a_native_run_has_limits_by_default() {
    let place = Place::new();
    place.run(&["exec", "--mode", "native", "--", "true"]).expect_code(0);
    let shown = place.run(&["runs", "show", "last", "--json"]).expect_code(0).json();
    let record = &shown["record"];
    let limits = &record["effective"]["limits"];
    assert!(record["requested"]["limits"]["memory"].is_null());
    assert!(limits["growth"].is_string(), "{record}");
    assert!(record["mechanisms"]["growth"].is_string(), "{record}");
    let promises = place.run(&["runs", "show", "last"]).expect_code(0).stdout;
    assert!(promises.contains("growth of the workspace's disk is bounded"), "{promises}");
    let not_enforced = record["not_enforced"].to_string();
    for (name, promise, word) in
        [("memory", "memory", "memory is not"), ("pids", "pids", "processes are not")]
    {
        let enforced = !limits[name].is_null() && !record["mechanisms"][promise].is_null();
        assert_ne!(enforced, not_enforced.contains(word), "{name}: {record}");
    }
    let sandbox = place.run(&["sandbox", "show"]).expect_code(0);
    assert!(sandbox.stdout.contains("default limit"), "{sandbox:?}");
}

/// A run cannot start processes without end. Where nothing counts them, that is recorded (see above).
#[test]
fn processes_are_bounded_by_default() {
    let place = Place::new();
    let script = "import os, time\nn = 0\ntry:\n  while n < 6000:\n    if os.fork() == 0: time.sleep(60); os._exit(0)\n    n += 1\n  time.sleep(30)\nexcept OSError: pass\nprint(n, flush=True)\nos.kill(-1, 9)";
    fs::write(place.work().join("forks.py"), script).unwrap();
    let ran = place.run(&["exec", "--mode", "native", "--", "/usr/bin/python3", "forks.py"]);
    let record = place.run(&["runs", "show", "last", "--json"]).json()["record"].clone();
    if record["not_enforced"].to_string().contains("processes are not") {
        return;
    }
    // The kernel refuses more, or the gate ends the run.
    let result = place.run(&["runs", "show", "last", "--json"]).json()["result"].clone();
    let refused = ran.stdout.trim().parse::<u32>().is_ok_and(|count| count < 4200);
    let ended = result["failure"]["class"] == "out_of_processes";
    assert!(refused || ended, "{ran:?} {result}");
}

/// All networks of the machine share one bound for the memory of TCP, and a run holds what nobody reads.
#[test]
fn tcp_connection_of_a_run_holds_little_memory() {
    let place = Place::new();
    let script = "import socket
listener = socket.create_server(('127.0.0.1', 0))
sender = socket.create_connection(listener.getsockname())
unread = listener.accept()[0]
sender.setblocking(False)
held = 0
try:
    while held < 16 << 20: held += sender.send(bytes(64 << 10))
except BlockingIOError: pass
print(held)";
    fs::write(place.work().join("hold.py"), script).unwrap();
    let ran = place.run(&["exec", "--mode", "native", "--", "/usr/bin/python3", "hold.py"]);
    let held: u64 = ran.stdout.trim().parse().unwrap();
    assert!((1..1 << 20).contains(&held), "{ran:?}");
}

/// Introducers of control strings without an end: sanitising them takes as long as the text is, and the time limit holds.
#[test]
fn control_strings_without_an_end_do_not_outlast_the_time_limit() {
    let place = Place::new();
    let begun = Instant::now();
    let script = "import sys; sys.stdout.write('\\x1b]' * 1_000_000 + '\\n'); sys.stdout.flush()";
    place
        .run(&["exec", "--mode", "native", "--timeout", "30s", "--", "/usr/bin/python3", "-c", script])
        .expect_code(0);
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

/// A file that takes no disk, in an overlay that waits for its user, is no reason to trim the logs of others.
#[test]
fn a_sparse_file_removes_no_log_of_others() {
    let place = Place::new().settings(r#"{"sandbox": {"mode": "native"}, "queue": {"keep_size": "8m"}}"#);
    let victim = "head -c 2000000 /dev/zero | tr \"\\0\" x | fold -w 1000";
    place.run(&["exec", "--", "sh", "-c", victim]).expect_code(0);
    place.run(&["exec", "--workspace", "overlay", "--", "truncate", "-s", "1T", "big"]).expect_code(0);
    place
        .run(&["exec", "--workspace", "overlay", "--", "sh", "-c", "head -c 20000000 /dev/zero > full"])
        .expect_code(0);
    let swept = place.run(&["prune", "--json"]).expect_code(0).json();
    assert_eq!(swept["trimmed"], serde_json::json!([]), "{swept}");
}

/// Holds requests until the disk of the audit is full, and ends them then.
const HELD: &str = r#"
import os, socket, time
proxy = os.environ["HTTP_PROXY"].split("//")[1].split(":")
def until(name):
    while not os.path.exists(name):
        time.sleep(0.02)
streams = []
for number in range(20):
    s = socket.create_connection((proxy[0], int(proxy[1])))
    s.sendall(b"POST http://good.test/secret%d HTTP/1.1\r\nHost: good.test\r\nContent-Length: 1000\r\n\r\n" % number)
    streams.append(s)
time.sleep(0.5)
open("held", "w").close()
until("full")
for s in streams:
    s.sendall(b"S" * 1000)
for s in streams:
    s.settimeout(10)
    s.recv(1000)
    s.close()
more = socket.create_connection((proxy[0], int(proxy[1])))
time.sleep(0.3)
open("done", "w").close()
until("free")
"#;

/// A server that answers once it has a whole body, and counts.
fn patient_server() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, served) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counter = Arc::clone(&served);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let counter = Arc::clone(&counter);
            std::thread::spawn(move || {
                let (mut heard, mut part) = (Vec::new(), [0; 4096]);
                while let Ok(count @ 1..) = stream.read(&mut part) {
                    heard.extend_from_slice(&part[..count]);
                    if heard.ends_with(&[b'S'; 1000]) {
                        counter.fetch_add(1, Ordering::Relaxed);
                        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
                    }
                }
            });
        }
    });
    (address, served)
}

/// What was sent is recorded, however full the disk was when it ended.
#[test]
fn a_full_disk_removes_nothing_from_the_audit() {
    let place = Place::new();
    fs::create_dir_all(place.state()).unwrap();
    let mount = |args: &[&str]| Command::new(args[0]).args(&args[1..]).arg(place.state()).status().unwrap();
    if !mount(&["mount", "-t", "tmpfs", "-o", "size=16m,mode=700", "tmpfs"]).success() {
        assert!(std::env::var_os("CI").is_none(), "a small disk needs root");
        return;
    }
    let (address, served) = patient_server();
    fs::write(place.work().join("held.py"), HELD).unwrap();
    let place = place.env("RINGFENCE_CONNECT_TO", format!("good.test:80={address}"));
    let args = ["exec", "--mode", "native", "--allow", "good.test", "--", "/usr/bin/python3", "held.py"];
    let mut child = place.spawn(&args);
    let appears = |name: &str| wait_for(name, || place.work().join(name).exists().then_some(()));
    appears("held");
    let ballast = place.state().join("ballast");
    let mut file = fs::File::create(&ballast).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    while file.write_all(&[0; 1]).is_ok() {}
    fs::write(place.work().join("full"), "").unwrap();
    appears("done");
    drop(file);
    fs::remove_file(&ballast).unwrap();
    fs::write(place.work().join("free"), "").unwrap();
    let status = child.wait().unwrap();
    let entries = place.run(&["runs", "net", "last", "--json"]).expect_code(0).json();
    Command::new("umount").arg(place.state()).status().unwrap();
    let served = served.load(Ordering::Relaxed);
    let recorded = entries.as_array().unwrap().iter().filter(|entry| {
        entry["path"].as_str().is_some_and(|path| path.starts_with("/secret")) && entry["begun"].is_null()
    });
    assert_eq!((recorded.count(), served, status.success()), (20, 20, true), "{entries}");
}

/// A small disk with the home and the workspace of a place on it, as long as this lives; nothing where it cannot be mounted.
struct SmallDisk {
    place: Place,
    root: std::path::PathBuf,
}

impl SmallDisk {
    fn mounted(options: &str) -> Option<Self> {
        let place = Place::new();
        let root = place.work().parent().unwrap().to_owned();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&root).status();
        if !mounted.unwrap().success() {
            assert!(std::env::var_os("CI").is_none(), "a small disk needs root");
            return None;
        }
        fs::create_dir(place.home()).unwrap();
        fs::create_dir(place.work()).unwrap();
        Some(Self { place, root })
    }

    /// Takes all space that is free.
    fn fill(&self) {
        let mut file = fs::File::create(self.root.join("ballast")).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
        while file.write_all(&[0; 1]).is_ok() {}
    }
}

/// Takes all space that becomes free, until something is over. What a run leaves in its workspace is removed while its result is written.
fn keep_full(ballast: &std::path::Path, is_over: &AtomicBool) {
    let mut file = fs::OpenOptions::new().append(true).open(ballast).unwrap();
    while !is_over.load(Ordering::Relaxed) {
        while file.write_all(&[0; 1]).is_ok() {}
        std::thread::yield_now();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.root).status();
    }
}

fn log_of(place: &Place) -> String {
    place.run(&["runs", "show", "last", "--log", "--json"]).expect_code(0).stdout
}

#[test]
fn a_run_that_fills_the_disk_keeps_its_result_and_report() {
    for file in ["big", ".git/big"] {
        let Some(disk) = SmallDisk::mounted("size=48m,mode=755") else { return };
        let place = &disk.place;
        assert!(
            Command::new("git").args(["init", "-q"]).current_dir(place.work()).status().unwrap().success()
        );
        let policy = policy(place, r#"{"growth": "1g"}"#);
        let script = format!("mkdir d; echo evil > d/.envrc; cat /dev/zero > {file}; true");
        let args = ["exec", "--mode", "native", "--policy", &policy, "--", "sh", "-c", &script];
        place.run(&args).expect_code(0);
        let shown = place.run(&["runs", "show", "last", "--json"]).expect_code(0).json();
        assert_eq!(shown["status"], "success", "{file}: {shown}");
        assert_eq!(shown["result"]["executed_later"][0]["path"], "d/.envrc", "{file}: {shown}");
        let log = log_of(place);
        assert!(log.contains("look before you use it"), "{file}: {log}");
        let next = place.run(&["exec", "--mode", "native", "--", "true"]);
        assert!(!next.stderr.contains("which was lost"), "{file}: {next:?}");
    }
}

#[test]
fn a_run_that_fills_the_disk_at_its_end_is_told() {
    let Some(disk) = SmallDisk::mounted("size=48m,mode=755") else { return };
    let script = "cat /dev/zero > big; true";
    let ran = disk.place.run(&["exec", "--mode", "native", "--", "sh", "-c", script]).expect_code(125);
    assert!(ran.stderr.contains("the file system of the workspace filled up"), "{ran:?}");
    let shown = disk.place.run(&["runs", "show", "last", "--json"]).expect_code(0).json();
    assert_eq!(shown["result"]["failure"]["class"], "agent_error", "{shown}");
}

#[test]
fn a_result_that_cannot_be_kept_fails_the_run_and_is_reported() {
    let Some(disk) = SmallDisk::mounted("size=48m,mode=755") else { return };
    let place = &disk.place;
    let policy = policy(place, r#"{"growth": "1g"}"#);
    fs::write(place.work().join("waiting"), "").unwrap();
    // The result is longer than what Ringfence itself frees at the end.
    let script = "mkdir d; echo evil > d/.envrc; L=$(printf 'x%.0s' $(seq 80)); \
                  for i in 0 1 2 3 4 5 6 7 8; do mkdir $L$i; for n in .envrc .bashrc .zshrc .vimrc; do echo evil > $L$i/$n; done; done; \
                  echo > ready; while test -e waiting; do sleep 0.02; done";
    let args = ["exec", "--json", "--mode", "native", "--policy", &policy, "--", "sh", "-c", script];
    let child = place.spawn(&args);
    wait_for("ready", || place.work().join("ready").exists().then_some(()));
    // Another run takes even what was reserved.
    fs::OpenOptions::new().write(true).open(place.state().join("running/0")).unwrap().set_len(64).unwrap();
    disk.fill();
    let is_over = AtomicBool::new(false);
    let ran = std::thread::scope(|scope| {
        scope.spawn(|| keep_full(&disk.root.join("ballast"), &is_over));
        fs::remove_file(place.work().join("waiting")).unwrap();
        let ran = Ran::from(child.wait_with_output().unwrap());
        is_over.store(true, Ordering::Relaxed);
        ran
    });
    let result = ran.result();
    assert_eq!((ran.code(), &result["status"]), (125, &"failed".into()), "{ran:?}");
    assert!(ran.stderr.contains("the result of the run cannot be kept"), "{ran:?}");
    assert!(result["failure"]["message"].as_str().unwrap().contains("cannot be kept"), "{result}");
    fs::remove_file(disk.root.join("ballast")).unwrap();
    assert_eq!(place.run(&["runs", "list", "--json"]).json()[0]["status"], "lost");
    let next = place.run(&["exec", "--mode", "native", "--", "true"]).expect_code(0);
    assert!(next.stderr.contains("which was lost") && next.stderr.contains(".envrc"), "{next:?}");
    let after = place.run(&["exec", "--mode", "native", "--", "true"]).expect_code(0);
    assert!(!after.stderr.contains("which was lost"), "{after:?}");
}
