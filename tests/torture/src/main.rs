//! Lets the queue work while everything that can be killed is killed, the clock jumps and the disk is full.
//!
//! `torture --tasks N --minutes M --binary PATH [--docker]`. What came of it is judged by the checker, by a witness inside
//! every task that holds a lock of the task's own, and by a look at what is left.
#![allow(clippy::disallowed_macros, clippy::disallowed_methods, reason = "a test may wait, write and print")]

mod chaos;
mod engine;
mod fakes;
mod house;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use chaos::{Chaos, Dice};
use engine::Engine;
use house::House;

struct Args {
    tasks: usize,
    minutes: f64,
    binary: PathBuf,
    docker: bool,
}

fn main() -> ExitCode {
    match args().and_then(|args| torture(&args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("torture: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn args() -> anyhow::Result<Args> {
    let mut parsed = Args { tasks: 2000, minutes: 3.0, binary: "ringfence".into(), docker: false };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value"));
        match word.as_str() {
            "--tasks" => parsed.tasks = value()?.parse()?,
            "--minutes" => parsed.minutes = value()?.parse()?,
            "--binary" => parsed.binary = value()?.into(),
            "--docker" => parsed.docker = true,
            _ => bail!("`{word}` is not known"),
        }
    }
    Ok(parsed)
}

fn torture(args: &Args) -> anyhow::Result<()> {
    let engine = args.docker.then(Engine::start).transpose()?;
    let house = House::build(&args.binary, engine.as_ref())?;
    let seed = u64::from(std::process::id()) ^ house.now_ms();
    println!("torture: {} tasks, seed {seed}, state {}", args.tasks, house.state().display());
    house.start()?;
    for name in ["dispatcher-2"].into_iter().map(str::to_owned).chain((1..=8).map(|n| format!("worker-{n}")))
    {
        house.run(&["process", "start", &name])?;
    }
    let over = AtomicBool::new(false);
    let deeds = std::thread::scope(|scope| {
        let fakes: Vec<_> = (1..=2)
            .map(|number| {
                scope.spawn({
                    let (house, over) = (&house, &over);
                    move || fakes::work(house, number, over)
                })
            })
            .collect();
        let chaos = scope.spawn(|| Chaos { house: &house, engine: engine.as_ref() }.rage(seed, &over));
        let worked = add_all(&house, args, seed).and_then(|()| {
            let deadline = Instant::now() + Duration::from_secs_f64(args.minutes * 60.0);
            while Instant::now() < deadline && !house.all_ended()? {
                std::thread::sleep(Duration::from_millis(500));
            }
            Ok(())
        });
        over.store(true, Ordering::Relaxed);
        let deeds = chaos.join().map_err(|_| anyhow::anyhow!("the chaos broke"))?;
        house.calm()?;
        let ended = house.wait_for_the_end(Duration::from_secs(600));
        house.over.store(true, Ordering::Relaxed);
        for fake in fakes {
            fake.join().map_err(|_| anyhow::anyhow!("a fake broke"))??;
        }
        worked?;
        ended?;
        Ok::<_, anyhow::Error>(deeds)
    })?;
    house.run(&["stop"])?;
    report(&house, args, &deeds, engine.as_ref())
}

/// Adds the tasks in batches. A batch that could not be added is added again: by its keys it is added once.
fn add_all(house: &House, args: &Args, seed: u64) -> anyhow::Result<()> {
    let mut dice = Dice(seed);
    let mut before: Vec<String> = Vec::new();
    for start in (0..args.tasks).step_by(50) {
        let batch: Vec<Value> = (start..args.tasks.min(start + 50))
            .map(|number| spec(house, number, args.docker, &before, &mut dice))
            .collect();
        let lines: Vec<String> = batch.iter().map(Value::to_string).collect();
        let added = loop {
            match add(house, &lines.join("\n")) {
                Ok(added) => break added,
                // Somebody it waits for may have been cancelled meanwhile.
                Err(error) if error.to_string().contains("waits for") => {
                    let alone: Vec<String> = batch
                        .iter()
                        .cloned()
                        .map(|mut one| {
                            one.as_object_mut().map(|fields| fields.remove("after"));
                            one.to_string()
                        })
                        .collect();
                    match add(house, &alone.join("\n")) {
                        Ok(added) => break added,
                        Err(_) => std::thread::sleep(Duration::from_millis(300)),
                    }
                }
                Err(_) => std::thread::sleep(Duration::from_millis(300)),
            }
        };
        before = added;
    }
    Ok(())
}

fn add(house: &House, lines: &str) -> anyhow::Result<Vec<String>> {
    let mut child = house
        .command(&["task", "add", "--lines", "--json-tasks", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    child.stdin.take().context("no input")?.write_all(lines.as_bytes())?;
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr));
    }
    let added: Vec<Value> = serde_json::from_slice(&output.stdout)?;
    Ok(added.iter().filter_map(|one| one["task"].as_str().map(str::to_owned)).collect())
}

fn spec(house: &House, number: usize, docker: bool, before: &[String], dice: &mut Dice) -> Value {
    let (mode, role) = match dice.below(20) {
        0..10 => ("host", "docser"),
        10..15 => ("host", "worker"),
        15..19 => ("native", "tester"),
        _ if docker => ("docker", "worker"),
        _ => ("native", "worker"),
    };
    let code = u64::from(dice.below(12) == 0);
    let mut spec = json!({
        "prompt": format!("{number}"),
        "agent": "command",
        "command": format!("sh witness.sh {number} 0.{:02} {code}", dice.below(if mode == "docker" { 90 } else { 30 })),
        "directory": house.workspace(),
        "key": format!("k{number}"),
        "lane": format!("l{}", dice.below(60)),
        "mode": mode,
        "role": role,
        "priority": dice.below(3),
        "timeout": 60,
    });
    if dice.below(10) == 0
        && let Some(needs) = before.get(dice.below(before.len().max(1)))
    {
        spec["after"] = json!([needs]);
    }
    spec
}

fn report(
    house: &House,
    args: &Args,
    deeds: &BTreeMap<&'static str, u32>,
    engine: Option<&Engine>,
) -> anyhow::Result<()> {
    let mut problems = Vec::new();
    let events = house.run(&["events", "--since", "0", "--json"])?;
    let kept = house.keep("events.jsonl", &events)?;
    let checker = std::env::current_exe()?.with_file_name("check");
    let judged = Command::new(checker).stdin(std::fs::File::open(&kept)?).output()?;
    let verdict = String::from_utf8_lossy(&judged.stdout).into_owned();
    if !judged.status.success() {
        problems.push(format!("the checker found:\n{verdict}"));
    }
    let counts = house.counts()?;
    let all: u64 = counts.values().sum();
    if all != args.tasks as u64 {
        problems.push(format!("{} tasks were added, and {all} are there", args.tasks));
    }
    problems.extend(house.overlaps()?.map(|tasks| format!("these ran twice at once: {tasks}")));
    problems.extend(house.leftovers(engine)?);
    println!("what was done to it: {deeds:?}");
    println!("what became of the tasks: {counts:?}");
    println!("the checker: {}", verdict.lines().last().unwrap_or_default());
    println!(
        "the witnesses: {} starts, no task twice at once: {}",
        house.starts()?,
        house.overlaps()?.is_none()
    );
    if problems.is_empty() {
        println!("torture: nothing was lost, nothing ran twice, nothing is left");
        return Ok(());
    }
    house.preserve();
    bail!("{}\nwhat was kept is in {}", problems.join("\n"), house.state().display())
}
