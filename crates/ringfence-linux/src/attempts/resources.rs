//! Taking more than one may: memory, processes, disk, processors.

use std::fs;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use ringfence_core::capability::Promise;

use super::{Attempt, Bait, Outcome, apart};

pub(super) const ATTEMPTS: &[Attempt] = &[
    Attempt { group: "resources", promise: Promise::Memory, what: "take more memory", attempt: take_memory },
    Attempt {
        group: "resources",
        promise: Promise::Pids,
        what: "start more processes",
        attempt: take_processes,
    },
    Attempt { group: "resources", promise: Promise::Disk, what: "fill the disk", attempt: take_disk },
    Attempt {
        group: "resources",
        promise: Promise::Cpus,
        what: "use more processors",
        attempt: take_processors,
    },
    Attempt {
        group: "resources",
        promise: Promise::Disk,
        what: "fill the memory with files",
        attempt: |bait| fill(&format!("/dev/shm/{}", bait.name), bait.limits.disk + bait.limits.disk / 2),
    },
];

fn take_memory(bait: &Bait) -> Outcome {
    let bytes = usize::try_from(bait.limits.memory + bait.limits.memory / 2).unwrap_or(usize::MAX);
    apart(move || {
        let mut taken: Vec<u8> = Vec::new();
        if let Err(error) = taken.try_reserve_exact(bytes) {
            return Outcome::Held(error.to_string());
        }
        taken.resize(bytes, 1);
        Outcome::Broken(format!("{} MiB were taken", std::hint::black_box(taken).len() >> 20))
    })
}

fn take_processes(bait: &Bait) -> Outcome {
    let most = bait.limits.pids;
    let mut children = Vec::new();
    let mut refusal = None;
    while children.len() <= most as usize {
        // SAFETY: the program that makes attempts has one thread, and the copy only sleeps until it is killed.
        match unsafe { libc::fork() } {
            -1 => {
                refusal = Some(io::Error::last_os_error());
                break;
            }
            0 => loop {
                // SAFETY: waits for the signal that ends it.
                unsafe { libc::pause() };
            },
            pid => children.push(pid),
        }
    }
    for pid in &children {
        // SAFETY: ends and waits for children of this process; a null status is allowed.
        unsafe {
            libc::kill(*pid, libc::SIGKILL);
            libc::waitpid(*pid, std::ptr::null_mut(), 0);
        }
    }
    match refusal {
        Some(error) => Outcome::Held(format!("after {}: {error}", children.len())),
        None => Outcome::Broken(format!("{} were started", children.len())),
    }
}

fn take_disk(bait: &Bait) -> Outcome {
    fill(&format!("/tmp/{}-disk", bait.name), bait.limits.disk + bait.limits.disk / 2)
}

fn fill(path: &str, bytes: u64) -> Outcome {
    let piece = [1u8; 1 << 20];
    let mut written = 0;
    let filled = fs::File::create(path).and_then(|mut file| {
        while written < bytes {
            file.write_all(&piece)?;
            written += piece.len() as u64;
        }
        Ok(())
    });
    let _ = fs::remove_file(path);
    match filled {
        Ok(()) => Outcome::Broken(format!("{} MiB were written", written >> 20)),
        Err(error) => Outcome::Held(format!("after {} MiB: {error}", written >> 20)),
    }
}

/// How long the processors are used.
const BUSY: Duration = Duration::from_millis(400);

fn take_processors(bait: &Bait) -> Outcome {
    let more = bait.limits.cpus + 1;
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    if available < more as usize {
        return Outcome::NotTried(format!("there are only {available}"));
    }
    apart(move || {
        let end = Instant::now() + BUSY;
        let work = move || while Instant::now() < end {};
        std::thread::scope(|scope| (0..more).for_each(|_| drop(scope.spawn(work))));
        let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let used = Duration::new(used.tv_sec.unsigned_abs(), used.tv_nsec as u32);
        let share = used.as_secs_f64() / BUSY.as_secs_f64();
        // Whole periods are given at once, so a little more than the share is within it.
        if share > f64::from(more) - 0.5 {
            Outcome::Broken(format!("{share:.1} were used"))
        } else {
            Outcome::Held(format!("{share:.1} were used"))
        }
    })
}
