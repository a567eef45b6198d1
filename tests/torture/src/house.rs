//! An installation of its own, on a disk of its own where that can be had.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::engine::Engine;

/// What every task runs: takes a lock of the task's own, so that a second one at the same time gives itself away.
const WITNESS: &str = r#"exec 9>"locks/$1"
flock -n 9 || { echo "$1" >> overlaps; exit 0; }
echo "$1" >> starts
sleep "$2"
exit "$3"
"#;

/// So large is the disk that is full for a while.
const DISK: &str = "size=192m,mode=700";

pub(crate) struct House {
    directory: Mutex<Option<TempDir>>,
    root: PathBuf,
    binary: PathBuf,
    docker_host: Option<String>,
    /// Whether the state is on a disk of its own.
    mounted: bool,
    /// When everything is over.
    pub(crate) over: AtomicBool,
}

impl House {
    pub(crate) fn build(binary: &Path, engine: Option<&Engine>) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let root = directory.path().to_owned();
        for name in ["state", "work/locks", "home"] {
            fs::create_dir_all(root.join(name))?;
        }
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", DISK, "tmpfs"]).arg(root.join("state")).status();
        let house = Self {
            directory: Mutex::new(Some(directory)),
            binary: fs::canonicalize(binary).with_context(|| format!("{} is not there", binary.display()))?,
            docker_host: engine.map(Engine::address),
            mounted: mount.is_ok_and(|status| status.success()),
            over: AtomicBool::new(false),
            root,
        };
        fs::write(house.workspace().join("witness.sh"), WITNESS)?;
        fs::write(house.clock(), "0")?;
        let settings = json!({
            "sandbox": {
                "mode": "host",
                "max_attempts": 3,
                "max_concurrency": 24,
                "docker": { "image": "small" },
            },
            "queue": { "retry_seconds": 1, "retry_max_seconds": 2 },
        });
        fs::write(house.state().join("settings.json"), settings.to_string())?;
        Ok(house)
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.root.join("state")
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.root.join("work")
    }

    pub(crate) fn clock(&self) -> PathBuf {
        self.root.join("clock")
    }

    pub(crate) fn has_own_disk(&self) -> bool {
        self.mounted
    }

    /// The time as the queue knows it.
    pub(crate) fn now_ms(&self) -> u64 {
        ringfence_engine::Clock::shifted_by(self.clock()).now().ms
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .args(args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.root.join("home"))
            .env("RINGFENCE_HOME", self.state())
            .env("RINGFENCE_TEST_CLOCK", self.clock())
            .envs(self.docker_host.iter().map(|host| ("DOCKER_HOST", host)))
            .current_dir(self.workspace())
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> anyhow::Result<String> {
        let output = self.command(args).output()?;
        if !output.status.success() {
            bail!(
                "`ringfence {}` failed: {}",
                args.join(" "),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Starts the daemon if it does not run. On a full disk it may not.
    pub(crate) fn start(&self) -> anyhow::Result<()> {
        self.run(&["start"]).map(|_| ())
    }

    pub(crate) fn counts(&self) -> anyhow::Result<BTreeMap<String, u64>> {
        let output = self.command(&["status", "--json"]).output()?;
        let status: Value = serde_json::from_slice(&output.stdout)
            .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
        Ok(serde_json::from_value(status["tasks"].clone())?)
    }

    fn open(&self) -> anyhow::Result<u64> {
        let counts = self.counts()?;
        Ok(["queued", "running", "blocked", "failed"].iter().filter_map(|name| counts.get(*name)).sum())
    }

    pub(crate) fn all_ended(&self) -> anyhow::Result<bool> {
        // The disk may be full right now.
        Ok(self.open().is_ok_and(|open| open == 0))
    }

    /// Everything as it should be, so that what is left can end.
    pub(crate) fn calm(&self) -> anyhow::Result<()> {
        fs::write(self.clock(), "0")?;
        let _ = fs::remove_file(self.state().join("ballast"));
        for _ in 0..50 {
            if self.start().is_ok() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        self.start()
    }

    pub(crate) fn wait_for_the_end(&self, at_most: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + at_most;
        while self.open()? > 0 {
            if Instant::now() > deadline {
                self.preserve();
                bail!(
                    "after {} s there are still {:?}, in {}",
                    at_most.as_secs(),
                    self.counts()?,
                    self.state().display()
                );
            }
            std::thread::sleep(Duration::from_millis(300));
        }
        Ok(())
    }

    pub(crate) fn keep(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.root.join(name);
        fs::write(&path, text)?;
        Ok(path)
    }

    /// The tasks that ran twice at once.
    pub(crate) fn overlaps(&self) -> anyhow::Result<Option<String>> {
        let file = self.workspace().join("overlaps");
        if !file.exists() {
            return Ok(None);
        }
        Ok(Some(fs::read_to_string(file)?.split_whitespace().collect::<Vec<_>>().join(", ")))
    }

    pub(crate) fn starts(&self) -> anyhow::Result<usize> {
        Ok(fs::read_to_string(self.workspace().join("starts")).unwrap_or_default().lines().count())
    }

    /// What should not be there any more.
    pub(crate) fn leftovers(&self, engine: Option<&Engine>) -> anyhow::Result<Vec<String>> {
        let mut left = Vec::new();
        let locks = fs::read_dir(self.state().join("queue/running"))?.flatten();
        left.extend(locks.map(|entry| format!("the lock {} is left", entry.path().display())));
        let mine = format!("RINGFENCE_HOME={}", self.state().display());
        for entry in fs::read_dir("/proc")?.flatten() {
            let environ = fs::read(entry.path().join("environ")).unwrap_or_default();
            if environ.split(|byte| *byte == 0).any(|variable| variable == mine.as_bytes()) {
                let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
                let line = String::from_utf8_lossy(&line).replace('\0', " ");
                left.push(format!("the process {} is left: {line}", entry.file_name().display()));
            }
        }
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let root = self.root.display().to_string();
        let state = self.state().display().to_string();
        let mounts = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        left.extend(
            mounts
                .filter(|at| at.starts_with(&root) && *at != state)
                .map(|at| format!("{at} is still mounted")),
        );
        if let Some(engine) = engine {
            // Clearing away is a process of its own, which may need a moment.
            let deadline = Instant::now() + Duration::from_secs(30);
            let mut containers = engine.containers()?;
            while !containers.is_empty() && Instant::now() < deadline {
                self.run(&["prune"])?;
                std::thread::sleep(Duration::from_millis(300));
                containers = engine.containers()?;
            }
            left.extend(containers.into_iter().map(|name| format!("the container {name} is left")));
        }
        Ok(left)
    }

    /// Leaves everything for who wants to look.
    pub(crate) fn preserve(&self) {
        if let Ok(mut directory) = self.directory.lock()
            && let Some(directory) = directory.take()
        {
            let _ = directory.keep();
        }
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.run(&["stop"]);
        let kept = self.directory.lock().is_ok_and(|directory| directory.is_none());
        if self.mounted && !kept {
            let _ = Command::new("umount").arg(self.state()).status();
        }
    }
}
