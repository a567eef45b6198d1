//! A Docker of its own, that can be killed.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tempfile::TempDir;

pub(crate) struct Engine {
    directory: TempDir,
    child: Mutex<Child>,
}

impl Engine {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let child = Mutex::new(spawn(&directory)?);
        let engine = Self { directory, child };
        engine.wait()?;
        engine.import()?;
        Ok(engine)
    }

    pub(crate) fn address(&self) -> String {
        address(&self.directory)
    }

    pub(crate) fn docker(&self, args: &[&str]) -> anyhow::Result<String> {
        let output = Command::new("docker").args(["--host", &self.address()]).args(args).output()?;
        if !output.status.success() {
            bail!("docker {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    pub(crate) fn containers(&self) -> anyhow::Result<Vec<String>> {
        Ok(self.docker(&["ps", "--all", "--format", "{{.Names}}"])?.lines().map(str::to_owned).collect())
    }

    fn wait(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.docker(&["version"]).is_err() {
            if Instant::now() > deadline {
                let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
                bail!("dockerd does not answer: {log}");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    pub(crate) fn kill_and_start_again(&self) -> anyhow::Result<()> {
        let mut child = self.child.lock().map_err(|_| anyhow::anyhow!("somebody broke"))?;
        child.kill()?;
        child.wait()?;
        *child = spawn(&self.directory)?;
        drop(child);
        self.wait()
    }

    /// An image with nothing in it but a shell, and what takes locks.
    fn import(&self) -> anyhow::Result<()> {
        let root = self.directory.path().join("root");
        fs::create_dir_all(root.join("bin"))?;
        fs::copy("/bin/busybox", root.join("bin/busybox")).context("busybox is not there")?;
        for name in ["sh", "sleep"] {
            std::os::unix::fs::symlink("busybox", root.join("bin").join(name))?;
        }
        let needed = Command::new("ldd").arg("/usr/bin/flock").output().context("ldd is not there")?;
        let needed = String::from_utf8(needed.stdout)?;
        let libraries = needed.split_whitespace().filter(|word| word.starts_with('/'));
        for file in libraries.chain(["/usr/bin/flock"]) {
            let place = root.join(file.trim_start_matches('/'));
            fs::create_dir_all(place.parent().context("a file is nowhere")?)?;
            fs::copy(file, place)?;
        }
        let archive = self.directory.path().join("root.tar");
        let tar = Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&archive).arg(".").status()?;
        if !tar.success() {
            bail!("tar failed");
        }
        self.docker(&["import", &archive.display().to_string(), "small:latest"])?;
        Ok(())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Ok(mut child) = self.child.lock() {
            let pid = child.id().to_string();
            let _ = Command::new("kill").args(["-TERM", &pid]).status();
            let _ = child.wait();
        }
        let _ = Command::new("umount").arg(self.directory.path().join("exec/netns/default")).output();
    }
}

fn address(directory: &TempDir) -> String {
    format!("unix://{}/docker.sock", directory.path().display())
}

fn spawn(directory: &TempDir) -> anyhow::Result<Child> {
    let at = |name: &str| directory.path().join(name).display().to_string();
    // One that was killed leaves its notes.
    for note in ["pid", "exec/containerd/containerd.pid"] {
        let _ = fs::remove_file(at(note));
    }
    Command::new("dockerd")
        .args(["--bridge=none", "--iptables=false", "--default-ulimit=nofile=20000:20000"])
        .args([format!("--data-root={}", at("data")), format!("--exec-root={}", at("exec"))])
        .args([format!("--pidfile={}", at("pid")), format!("--host={}", address(directory))])
        .stdout(Stdio::null())
        .stderr(fs::File::create(at("log"))?)
        .spawn()
        .context("dockerd cannot be started")
}
