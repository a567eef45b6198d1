//! Random input: property-based tests with many cases, then the targets of `fuzz/` with libFuzzer.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::shell::{root, run};

/// How many cases each property-based test makes up in one round.
const CASES: &str = "5000";

/// The property-based tests, by their names.
const PROPERTIES: &str =
    "test(/reads_back|is_plain|breaks_it|whatever_is_said|however_it_is_cut|nothing_that_comes/)";

/// The targets of `fuzz/Cargo.toml`.
const TARGETS: [&str; 5] = ["gate_frames", "http1", "client_hello", "settings", "overlay"];

/// An input that takes longer is a finding.
const INPUT_TIMEOUT_SECONDS: u32 = 20;

/// SQLite has two constants of one name, which the sanitizer would take for a finding.
const ASAN_OPTIONS: (&str, &str) = ("ASAN_OPTIONS", "detect_odr_violation=0");

/// Gives the property-based tests and each target the same share of the time.
pub(crate) fn fuzz(seconds: u64) -> anyhow::Result<()> {
    let share = seconds / (TARGETS.len() as u64 + 1);
    properties(share)?;
    build()?;
    seed()?;
    for target in TARGETS {
        run_target(target, share.max(1))?;
    }
    println!("no finding");
    Ok(())
}

/// Runs every test that makes up its own input, again and again, each time with others.
fn properties(seconds: u64) -> anyhow::Result<()> {
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut rounds = 0;
    while rounds == 0 || Instant::now() < until {
        let mut command = Command::new("cargo");
        command.args(["nextest", "run", "--locked", "-p", "ringfence-core", "-p", "ringfence-egress", "-E"]);
        command.arg(PROPERTIES).env("PROPTEST_CASES", CASES);
        ensure!(command.current_dir(root()).status()?.success(), "a property does not hold");
        rounds += 1;
    }
    println!("{rounds} rounds of {CASES} cases each, no finding");
    Ok(())
}

/// `cargo fuzz` in its own workspace. A stable compiler takes a sanitizer's flags only when it is told to.
fn cargo_fuzz(args: &[&str]) -> anyhow::Result<bool> {
    let mut command = Command::new("cargo");
    command.args(["fuzz", args[0], "--fuzz-dir", "."]).args(&args[1..]).env("RUSTC_BOOTSTRAP", "1");
    Ok(command.current_dir(root().join("fuzz")).status()?.success())
}

fn build() -> anyhow::Result<()> {
    let there = Command::new("cargo").args(["fuzz", "--version"]).output()?.status.success();
    if !there {
        run(&["cargo", "install", "--locked", "cargo-fuzz"])?;
    }
    ensure!(cargo_fuzz(&["build"])?, "the fuzz targets do not build");
    Ok(())
}

/// Writes the inputs to begin with into the corpus of each target.
fn seed() -> anyhow::Result<()> {
    let target = root().join("fuzz/target");
    let built = std::fs::read_dir(&target).with_context(|| target.display().to_string())?;
    let programs = built.flatten().map(|entry| entry.path().join("release/seeds"));
    let program = programs.into_iter().find(|path| path.exists()).context("fuzz/target has no seeds")?;
    ensure!(
        Command::new(program).env(ASAN_OPTIONS.0, ASAN_OPTIONS.1).status()?.success(),
        "no seeds were written"
    );
    Ok(())
}

fn run_target(target: &str, seconds: u64) -> anyhow::Result<()> {
    println!("fuzzing {target} for {seconds} s");
    let time = format!("-max_total_time={seconds}");
    let timeout = format!("-timeout={INPUT_TIMEOUT_SECONDS}");
    let options = ["run", target, "--", &time, &timeout, "-verbosity=0", "-print_final_stats=1"];
    ensure!(
        cargo_fuzz(&options)?,
        "{target} has a finding in fuzz/artifacts/{target}; fix it and add the input to fuzz/src/{target}.rs"
    );
    Ok(())
}
