//! Figures, side by side with a peer in one run, so that a busy machine slows both.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::shell::{has, read, root, run};

const ROUNDS: usize = 200;

/// The same namespaces and the same kind of root.
const BWRAP: [&str; 37] = [
    "bwrap",
    "--unshare-all",
    "--die-with-parent",
    "--new-session",
    "--cap-drop",
    "ALL",
    "--ro-bind",
    "/usr",
    "/usr",
    "--ro-bind",
    "/etc",
    "/etc",
    "--symlink",
    "usr/bin",
    "/bin",
    "--symlink",
    "usr/lib",
    "/lib",
    "--symlink",
    "usr/lib64",
    "/lib64",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
    "--tmpfs",
    "/tmp",
    "--tmpfs",
    "/run",
    "--tmpfs",
    "/home",
    "--bind",
    ".",
    "/workspace",
    "--chdir",
    "/workspace",
    "true",
];

pub(crate) fn bench() -> anyhow::Result<()> {
    run(&["cargo", "build", "--release", "--locked", "-p", "ringfence"])?;
    let binary = root().join("target/release/ringfence").display().to_string();
    let home = std::env::temp_dir().join(format!("ringfence-bench-{}", std::process::id()));
    let bytes = std::fs::metadata(&binary)?.len();
    // An empty workspace, as the peer has one.
    std::fs::create_dir_all(home.join("work"))?;
    println!("\nringfence: {}", read(&[&binary, "--version"]).context("no version")?);
    println!("kernel: {}", read(&["uname", "-r"]).unwrap_or_default());
    println!("git: {}", read(&["git", "--version"]).unwrap_or_default());
    println!("binary, stripped: {:.1} MiB (goal: below 25)", bytes as f64 / f64::from(1 << 20));
    compare(
        "--help (goal: below 50 ms)",
        &home,
        &[&binary, "--help"],
        "git --version",
        &["git", "--version"],
    )?;
    let run = [&binary, "exec", "--mode", "host", "--", "true"];
    compare("exec --mode host -- true", &home, &run, "setsid true", &["setsid", "-w", "true"])?;
    if has("bwrap") {
        let native = [&binary, "exec", "--mode", "native", "--", "true"];
        println!("\nbwrap: {}", read(&["bwrap", "--version"]).unwrap_or_default());
        compare("exec --mode native -- true", &home, &native, "bwrap", &BWRAP)?;
    } else {
        println!("\nbwrap is not here, so native has no peer to be measured against");
    }
    std::fs::remove_dir_all(&home).ok();
    Ok(())
}

/// Runs both in turns and prints median and 99th percentile of each, and their ratio.
fn compare(
    title: &str,
    home: &std::path::Path,
    ours: &[&str],
    peer: &str,
    theirs: &[&str],
) -> anyhow::Result<()> {
    let mut times = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        times.0.push(time(home, ours)?);
        times.1.push(time(home, theirs)?);
    }
    let ((ours_median, ours_p99), (peer_median, peer_p99)) = (quantiles(times.0), quantiles(times.1));
    println!("\n{title}, {ROUNDS} rounds in turns");
    println!("  ringfence     median {:6.2} ms  p99 {:6.2} ms", ms(ours_median), ms(ours_p99));
    println!("  {peer:<13} median {:6.2} ms  p99 {:6.2} ms", ms(peer_median), ms(peer_p99));
    println!(
        "  ratio         median {:6.2}     p99 {:6.2}",
        ms(ours_median) / ms(peer_median),
        ms(ours_p99) / ms(peer_p99)
    );
    Ok(())
}

fn time(home: &std::path::Path, words: &[&str]) -> anyhow::Result<Duration> {
    let start = Instant::now();
    let status = Command::new(words[0])
        .args(&words[1..])
        .env("RINGFENCE_HOME", home.join("state"))
        .current_dir(home.join("work"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    ensure!(status.success(), "{} failed: {status}", words.join(" "));
    Ok(start.elapsed())
}

fn quantiles(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
