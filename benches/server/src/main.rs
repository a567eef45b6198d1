//! Many who look on: 200 dashboards follow the logs of 50 tasks that print 10,000 lines a second in all. Each has to see
//! every line once and in its order; meanwhile the API is asked, and the daemon's memory is looked at.
#![allow(
    clippy::disallowed_macros,
    clippy::disallowed_methods,
    reason = "a measurement waits by the clock and keeps nothing"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

const TASKS: usize = 50;
const FOLLOWERS: usize = 200;
/// Lines of each task in a second, and for how many seconds.
const RATE: u64 = 200;
const SECONDS: u64 = 20;
/// What a person would wait for at most between two lines.
const SILENCE: Duration = Duration::from_secs(60);
/// No daemon needs more for this.
const MOST_MEMORY: u64 = 200 << 20;

/// The word that makes this program print.
const PRINT: &str = "print";

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [PRINT] => print(),
        [binary] => measure(Path::new(binary)),
        _ => bail!("server-bench BINARY"),
    }
}

/// Prints numbered lines, as many in a second as was said.
fn print() -> anyhow::Result<()> {
    let (begun, mut out) = (Instant::now(), std::io::stdout().lock());
    for number in 0..RATE * SECONDS {
        let due = Duration::from_micros(number * 1_000_000 / RATE);
        thread::sleep(due.saturating_sub(begun.elapsed()));
        writeln!(out, "line {number}")?;
        out.flush()?;
    }
    Ok(())
}

struct House {
    directory: tempfile::TempDir,
    binary: PathBuf,
    address: String,
    token: String,
    daemon: u64,
}

impl House {
    fn new(binary: &Path) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let mut house = Self {
            directory,
            binary: binary.to_owned(),
            address: String::new(),
            token: String::new(),
            daemon: 0,
        };
        fs::create_dir(house.directory.path().join("state"))?;
        let settings = json!({ "sandbox": { "mode": "host" }, "server": { "rate_limit": 0 } });
        fs::write(house.directory.path().join("state/settings.json"), settings.to_string())?;
        house.ok(&["start"])?;
        let status: Value = serde_json::from_str(&house.ok(&["status", "--json"])?)?;
        house.address = status["daemon"]["address"].as_str().context("no address")?.to_owned();
        let token = fs::read_to_string(house.directory.path().join("state/api.token"))?;
        house.token = token.trim().to_owned();
        house.daemon = status["daemon"]["pid"].as_u64().context("no daemon")?;
        Ok(house)
    }

    fn ok(&self, args: &[&str]) -> anyhow::Result<String> {
        let output = Command::new(&self.binary)
            .args(args)
            .env("HOME", self.directory.path())
            .env("RINGFENCE_HOME", self.directory.path().join("state"))
            .env("RINGFENCE_LISTEN", "127.0.0.1:0")
            .stdin(Stdio::null())
            .output()?;
        ensure!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?)
    }

    fn memory(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/status", self.daemon)).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) << 10
    }
}

impl Drop for House {
    fn drop(&mut self) {
        let _ = self.ok(&["stop"]);
    }
}

fn ask(house: &House, method: &str, path: &str, body: &str) -> anyhow::Result<String> {
    let House { address, token, .. } = house;
    let mut stream = TcpStream::connect(address)?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (head, body) = text.split_once("\r\n\r\n").context("no answer")?;
    ensure!(head.starts_with("HTTP/1.1 20"), "{path}: {head}");
    Ok(body.to_owned())
}

fn measure(binary: &Path) -> anyhow::Result<()> {
    let house = House::new(binary)?;
    let program = std::env::current_exe()?;
    let tasks: Vec<Value> = (0..TASKS)
        .map(|number| {
            json!({
                "prompt": "print", "agent": "command", "command": format!("{} {PRINT}", program.display()),
                "directory": house.directory.path(), "lane": format!("lane-{number}"),
            })
        })
        .collect();
    let before = house.memory();
    ask(&house, "POST", "/tasks/batch", &json!({ "tasks": tasks }).to_string())?;
    let runs = running(&house)?;
    let over = AtomicBool::new(false);
    let (seen, mut times, peak) = thread::scope(|scope| -> anyhow::Result<_> {
        let followers: Vec<_> = (0..FOLLOWERS)
            .map(|number| {
                let (house, run) = (&house, &runs[number % runs.len()]);
                scope.spawn(move || follow(house, run))
            })
            .collect();
        let asking = scope.spawn(|| ask_on(&house, &over));
        let watching = scope.spawn(|| {
            let mut peak = 0;
            while !over.load(Ordering::Relaxed) {
                peak = peak.max(house.memory());
                thread::sleep(Duration::from_millis(50));
            }
            peak
        });
        let seen: Vec<anyhow::Result<u64>> = followers
            .into_iter()
            .map(|follower| follower.join().unwrap_or_else(|_| bail!("it fell over")))
            .collect();
        over.store(true, Ordering::Relaxed);
        let times = asking.join().unwrap_or_else(|_| bail!("it fell over"))?;
        Ok((seen, times, watching.join().unwrap_or(0)))
    })?;
    report(&seen, &mut times, before, peak)
}

/// The runs of all tasks, once they are there.
fn running(house: &House) -> anyhow::Result<Vec<String>> {
    let begun = Instant::now();
    loop {
        let page = ask(house, "GET", "/tasks?status=running&limit=1000", "")?;
        let page: Value = serde_json::from_str(&page)?;
        let tasks = page["tasks"].as_array().context("no tasks")?;
        let runs: Vec<String> =
            tasks.iter().filter_map(|task| Some(task["run"].as_str()?.to_owned())).collect();
        let there = |run: &String| ask(house, "GET", &format!("/runs/{run}"), "").is_ok();
        if runs.len() == TASKS && runs.iter().all(there) {
            return Ok(runs);
        }
        ensure!(begun.elapsed() < SILENCE, "only {} of {TASKS} tasks run", runs.len());
        thread::sleep(Duration::from_millis(50));
    }
}

/// A dashboard: reads the lines as the page gets them, and counts those that are the next one.
fn follow(house: &House, run: &str) -> anyhow::Result<u64> {
    let House { address, token, .. } = house;
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(SILENCE))?;
    write!(
        stream,
        "GET /ui/runs/{run}/stream HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\naccept: text/event-stream\r\n\r\n"
    )?;
    let mut next = 0;
    for line in BufReader::new(stream).lines() {
        let line = line.context("the stream broke")?;
        if line == "event: end" {
            return Ok(next);
        }
        // A text of several lines is one event of several `data` lines, or one with the lines in it.
        for number in line.split("line ").skip(1) {
            let digits: String = number.chars().take_while(char::is_ascii_digit).collect();
            let number: u64 = digits.parse().context("a line without a number")?;
            ensure!(number == next, "line {number} came in the place of {next}");
            next += 1;
        }
    }
    bail!("the stream ended after {next} lines")
}

/// Asks the API as people and programs do, and takes the times.
fn ask_on(house: &House, over: &AtomicBool) -> anyhow::Result<Vec<Duration>> {
    let mut times = Vec::new();
    while !over.load(Ordering::Relaxed) {
        for path in ["/health", "/tasks?limit=20", "/agents", "/system/status"] {
            let begun = Instant::now();
            ask(house, "GET", path, "")?;
            times.push(begun.elapsed());
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(times)
}

fn report(
    seen: &[anyhow::Result<u64>],
    times: &mut [Duration],
    before: u64,
    peak: u64,
) -> anyhow::Result<()> {
    let lines = RATE * SECONDS;
    let whole = seen.iter().filter(|seen| seen.as_ref().is_ok_and(|count| *count == lines)).count();
    times.sort_unstable();
    let at = |part: usize| times.get(times.len().saturating_sub(1) * part / 100).copied().unwrap_or_default();
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    println!("{TASKS} tasks, {} lines a second in all, for {SECONDS} s", RATE * TASKS as u64);
    println!("{whole} of {FOLLOWERS} dashboards saw all {lines} lines of their run, in order");
    println!("API: {} requests, median {:.1} ms, p99 {:.1} ms", times.len(), ms(at(50)), ms(at(99)));
    println!("daemon: {} MiB before, {} MiB at most", before >> 20, peak >> 20);
    if let Some(Err(error)) = seen.iter().find(|seen| seen.is_err()) {
        bail!("a dashboard saw something else: {error:#}");
    }
    ensure!(whole == FOLLOWERS, "lines were lost");
    ensure!(peak < MOST_MEMORY, "the daemon took {} MiB", peak >> 20);
    Ok(())
}
