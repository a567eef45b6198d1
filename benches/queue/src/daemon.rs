//! The daemon: how soon a task begins, and what it costs to have it.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;
use tempfile::TempDir;

use crate::{median_and_p99, millis};

const ROUNDS: usize = 100;
/// How long an idle daemon is looked at.
const IDLE: Duration = Duration::from_secs(30);

struct House {
    directory: TempDir,
    binary: PathBuf,
}

impl House {
    fn new(binary: &Path) -> anyhow::Result<Self> {
        let house = Self { directory: tempfile::tempdir()?, binary: binary.to_owned() };
        fs::create_dir(house.work())?;
        house.ok(&["start"])?;
        Ok(house)
    }

    fn work(&self) -> PathBuf {
        self.directory.path().join("work")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .args(args)
            .env("HOME", self.directory.path())
            .env("RINGFENCE_HOME", self.directory.path().join("state"))
            .current_dir(self.work())
            .stdin(Stdio::null());
        command
    }

    fn ok(&self, args: &[&str]) -> anyhow::Result<String> {
        let output = self.command(args).output()?;
        if !output.status.success() {
            bail!("ringfence {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// From the start of a command to the first byte of the agent that it brings about.
    fn time(&self, args: &[&str]) -> anyhow::Result<Duration> {
        let fifo = self.work().join("first");
        let _ = fs::remove_file(&fifo);
        let made = Command::new("mkfifo").arg(&fifo).status()?;
        anyhow::ensure!(made.success(), "mkfifo failed");
        let all = [args, &["--mode", "native", "--agent", "command", "--command", "sh -c 'echo x > first'"]]
            .concat();
        let start = Instant::now();
        let mut child = self.command(&all).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let mut byte = [0];
        fs::File::open(&fifo)?.read_exact(&mut byte)?;
        let time = start.elapsed();
        child.wait()?;
        Ok(time)
    }
}

impl Drop for House {
    fn drop(&mut self) {
        let _ = self.ok(&["stop"]);
    }
}

/// A task of a running daemon beside a plain run, in turns.
pub(crate) fn first_byte(binary: &Path) -> anyhow::Result<()> {
    let house = House::new(binary)?;
    let (mut plain, mut queued) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        plain.push(house.time(&["run", "x"])?);
        queued.push(house.time(&["task", "add", "x"])?);
        // The next one shall not wait for the end of this one.
        while house.ok(&["task", "list", "--state", "running", "--state", "queued", "--json"])?.trim() != "[]"
        {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let ((plain, plain99), (queued, queued99)) = (median_and_p99(&mut plain), median_and_p99(&mut queued));
    println!("From the command to the agent's first byte, native ({ROUNDS} rounds in turns, ms):");
    println!("  {:<28} {:>8} {:>8}", "", "median", "p99");
    println!("  {:<28} {:>8.1} {:>8.1}", "ringfence run", millis(plain), millis(plain99));
    println!("  {:<28} {:>8.1} {:>8.1}", "ringfence task add, daemon", millis(queued), millis(queued99));
    println!("  {:<28} {:>8.1}\n", "difference", millis(queued) - millis(plain));
    Ok(())
}

/// A daemon with nothing to do.
pub(crate) fn idle(binary: &Path) -> anyhow::Result<()> {
    let house = House::new(binary)?;
    house.ok(&["task", "add", "--wait", "--mode", "native", "--command", "true"])?;
    let status: Value = serde_json::from_str(&house.ok(&["status", "--json"])?)?;
    let daemon = status["daemon"]["pid"].as_u64().context("the daemon does not run")?;
    let dispatcher = status["processes"][0]["pid"].as_u64().context("the dispatcher does not run")?;
    std::thread::sleep(Duration::from_secs(1));
    let before = [switches(daemon)?, switches(dispatcher)?];
    std::thread::sleep(IDLE);
    println!("With nothing to do, over {} seconds:", IDLE.as_secs());
    println!("  {:<12} {:>14} {:>30}", "", "resident KiB", "context switches a minute");
    for ((name, pid), before) in [("daemon", daemon), ("dispatcher", dispatcher)].into_iter().zip(before) {
        let resident = field(&format!("/proc/{pid}/status"), "VmRSS:")?;
        let woken = (switches(pid)? - before) as f64 * 60.0 / IDLE.as_secs_f64();
        println!("  {name:<12} {resident:>14} {woken:>30.0}");
    }
    Ok(())
}

fn switches(pid: u64) -> anyhow::Result<u64> {
    let mut sum = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
        let status = thread.path().join("status").display().to_string();
        for name in ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"] {
            sum += field(&status, name)?;
        }
    }
    Ok(sum)
}

fn field(file: &str, name: &str) -> anyhow::Result<u64> {
    let text = fs::read_to_string(file)?;
    let value =
        text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
    value.with_context(|| format!("{file} does not tell {name}"))
}
