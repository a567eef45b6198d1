//! Many sandboxes one after another: nothing may grow.

use std::fs;

use anyhow::{Context, ensure};

use crate::bench::{Peer, Place, built};

/// Runs so many, and shows what the machine holds meanwhile.
pub(crate) fn endure(count: usize) -> anyhow::Result<()> {
    let binary = built()?;
    let place = Place::new()?;
    let peer =
        Peer::new("ringfence native", &format!("{} exec --mode native --", binary.display()), &["true"])
            .context("there is no binary")?;
    println!("{:>9} {:>9} {:>9} {:>9} {:>11}", "sandboxes", "files", "mounts", "processes", "kernel KiB");
    for done in 1..=count {
        peer.time(&place)?;
        if done == 1 || done % (count / 10).max(1) == 0 {
            let [files, mounts, processes, kernel] = look()?;
            println!("{done:>9} {files:>9} {mounts:>9} {processes:>9} {kernel:>11}");
        }
    }
    ensure!(fs::read_dir(&place.work)?.next().is_none(), "something was left in the workspace");
    Ok(())
}

/// Open files, mounts, processes, and memory that the kernel cannot give back.
fn look() -> anyhow::Result<[u64; 4]> {
    let first = |text: &str| text.split_whitespace().next().and_then(|count| count.parse().ok()).unwrap_or(0);
    let memory = fs::read_to_string("/proc/meminfo")?;
    let kernel = memory.lines().find_map(|line| line.strip_prefix("SUnreclaim:")).map_or(0, first);
    let processes = fs::read_dir("/proc")?.flatten().filter(|entry| {
        entry.file_name().to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
    });
    let mounts = fs::read_to_string("/proc/self/mounts")?.lines().count() as u64;
    Ok([first(&fs::read_to_string("/proc/sys/fs/file-nr")?), mounts, processes.count() as u64, kernel])
}
