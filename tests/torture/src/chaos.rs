//! What is done to it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::engine::Engine;
use crate::house::House;

/// Throws the same numbers for the same seed.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound.max(1)
    }
}

pub(crate) struct Chaos<'a> {
    pub(crate) house: &'a House,
    pub(crate) engine: Option<&'a Engine>,
}

impl Chaos<'_> {
    /// Rages until it is over, and tells what it did.
    pub(crate) fn rage(&self, seed: u64, over: &AtomicBool) -> BTreeMap<&'static str, u32> {
        let mut dice = Dice(seed.rotate_left(17));
        let mut deeds = BTreeMap::new();
        while !over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(50 + dice.below(400) as u64));
            if let Some(deed) = self.strike(&mut dice) {
                *deeds.entry(deed).or_default() += 1;
            }
        }
        deeds
    }

    fn strike(&self, dice: &mut Dice) -> Option<&'static str> {
        match dice.below(40) {
            0..14 => self.kill_one_of("queue/running", |_| true, dice).then_some("runner killed"),
            14..20 => self.kill_gate(dice).then_some("gate killed"),
            20..24 => self
                .kill_one_of("queue/processes", |name| name.starts_with("dispatcher"), dice)
                .then_some("dispatcher killed"),
            24..28 => self
                .kill_one_of("queue/processes", |name| name.starts_with("worker"), dice)
                .then_some("worker killed"),
            28 => {
                let killed = self.kill_one_of("queue/processes", |name| name == "daemon", dice);
                // Whoever looks after a daemon starts it again.
                while self.house.start().is_err() {
                    std::thread::sleep(Duration::from_millis(200));
                }
                killed.then_some("daemon killed")
            }
            29..31 => {
                let jump = [3600, -1800, 86_400, -7200, 0][dice.below(5)];
                fs::write(self.house.clock(), jump.to_string()).is_ok().then_some("clock jumped")
            }
            31 => self.fill_the_disk().then_some("disk filled"),
            32..34 => self.stop_one(dice).then_some("runner stopped for a while"),
            34..36 => {
                let id = dice.below(2000).to_string();
                self.house.run(&["task", "cancel", &id]).is_ok().then_some("task cancelled")
            }
            36..39 => {
                let names = self.engine?.docker(&["ps", "--quiet"]).ok()?;
                let name = names.lines().next()?;
                self.engine?.docker(&["kill", name]).is_ok().then_some("container killed")
            }
            _ => self.engine?.kill_and_start_again().is_ok().then_some("dockerd killed"),
        }
    }

    /// Kills one of those whose number stands in a file of a directory.
    fn kill_one_of(&self, directory: &str, chosen: impl Fn(&str) -> bool, dice: &mut Dice) -> bool {
        let pids = self.pids(directory, chosen);
        pids.get(dice.below(pids.len())).is_some_and(|pid| kill_process(*pid, Signal::KILL).is_ok())
    }

    fn pids(&self, directory: &str, chosen: impl Fn(&str) -> bool) -> Vec<Pid> {
        let entries = fs::read_dir(self.house.state().join(directory)).into_iter().flatten().flatten();
        let files = entries.filter(|entry| entry.file_name().to_str().is_some_and(&chosen));
        let texts = files.filter_map(|entry| fs::read_to_string(entry.path()).ok());
        texts
            .filter_map(|text| Pid::from_raw(text.split_whitespace().next()?.parse().ok()?))
            .filter(|pid| self.is_ours(*pid))
            .collect()
    }

    /// Whether it is a process of this house; numbers are used again.
    fn is_ours(&self, pid: Pid) -> bool {
        let mine = format!("RINGFENCE_HOME={}", self.house.state().display());
        let environ = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())).unwrap_or_default();
        environ.split(|byte| *byte == 0).any(|variable| variable == mine.as_bytes())
    }

    fn kill_gate(&self, dice: &mut Dice) -> bool {
        let runners = self.pids("queue/running", |_| true);
        let children = runners.iter().flat_map(|pid| {
            let number = pid.as_raw_nonzero();
            let path = format!("/proc/{number}/task/{number}/children");
            let text = fs::read_to_string(path).unwrap_or_default();
            text.split_whitespace().filter_map(|word| Pid::from_raw(word.parse().ok()?)).collect::<Vec<_>>()
        });
        let gates: Vec<Pid> = children.collect();
        gates.get(dice.below(gates.len())).is_some_and(|pid| kill_process(*pid, Signal::KILL).is_ok())
    }

    fn stop_one(&self, dice: &mut Dice) -> bool {
        let pids = self.pids("queue/running", |_| true);
        let Some(pid) = pids.get(dice.below(pids.len())) else { return false };
        let stopped = kill_process(*pid, Signal::STOP).is_ok();
        std::thread::sleep(Duration::from_millis(300));
        let _ = kill_process(*pid, Signal::CONT);
        stopped
    }

    /// Leaves no byte for a while.
    fn fill_the_disk(&self) -> bool {
        if !self.house.has_own_disk() {
            return false;
        }
        let ballast = self.house.state().join("ballast");
        let filled = fill(&ballast);
        std::thread::sleep(Duration::from_millis(1500));
        fs::remove_file(ballast).is_ok() && filled
    }
}

fn fill(path: &Path) -> bool {
    let Ok(mut file) = fs::File::create(path) else { return false };
    let block = vec![0; 1 << 20];
    while file.write_all(&block).is_ok() {}
    while file.write_all(&block[..4096]).is_ok() {}
    true
}
