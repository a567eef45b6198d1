//! Things of the host for a probe to reach for, none of which is the person's. All go when they are dropped.

use std::fs;
use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use ringfence_linux::attempts::{Bait, Bounded, SharedMemory};
use rustix::pty::{OpenptFlags, openpt, ptsname, unlockpt};
use tempfile::TempDir;

use crate::installation::Installation;

/// A variable that nobody passes on, and what it holds.
const VARIABLE: (&str, &str) = ("RINGFENCE_PROBE_BAIT", "this-is-bait");

/// Everything that was laid out.
pub(crate) struct Laid {
    directory: TempDir,
    /// In the person's own home, or where their state is.
    at_home: TempDir,
    process: Child,
    tcp: TcpListener,
    tcp6: Option<TcpListener>,
    udp: u16,
    abstract_socket: String,
    /// They only have to listen.
    _sockets: Vec<UnixListener>,
    terminal: (OwnedFd, PathBuf),
    memory: SharedMemory,
    /// Goes to whatever is started from here on, unless somebody closes it.
    descriptor: OwnedFd,
}

impl Laid {
    pub(crate) fn out(installation: &Installation) -> io::Result<Self> {
        let directory = tempfile::Builder::new().prefix("ringfence-probe-").tempdir()?;
        ringfence_store::atomic::private_dir(&installation.state)?;
        let at_home = tempfile::Builder::new().prefix("probe-").tempdir_in(&installation.state)?;
        put(at_home.path(), "file.txt")?;
        lay_files(directory.path())?;
        let abstract_socket = format!("ringfence-probe-{}", std::process::id());
        let sockets = vec![
            UnixListener::bind(directory.path().join("outside/socket"))?,
            UnixListener::bind(directory.path().join("workspace/socket"))?,
            UnixListener::bind(at_home.path().join("socket"))?,
            UnixListener::bind_addr(&SocketAddr::from_abstract_name(&abstract_socket)?)?,
        ];
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        unlockpt(&terminal)?;
        let name = ptsname(&terminal, Vec::new())?.to_string_lossy().into_owned();
        let process = installation
            .programs(None)
            .command("sleep")
            .ok_or_else(|| io::Error::other("`sleep` was not found in PATH"))?
            .arg("600")
            .env(VARIABLE.0, VARIABLE.1)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        // Not closed on exec, as a careless parent leaves one.
        let descriptor = rustix::io::dup(fs::File::open(directory.path().join("outside/file.txt"))?)?;
        Ok(Self {
            at_home,
            process,
            tcp: TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?,
            tcp6: TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).ok(),
            udp: echo()?,
            abstract_socket,
            _sockets: sockets,
            terminal: (terminal, name.into()),
            memory: SharedMemory::new()?,
            descriptor,
            directory,
        })
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.directory.path().join("workspace")
    }

    pub(crate) fn variable(&self) -> (&'static str, &'static str) {
        VARIABLE
    }

    /// For those who try, with the workspace as they see it.
    pub(crate) fn described(&self, seen_workspace: &Path, limits: Bounded) -> Bait {
        let port = |listener: &TcpListener| listener.local_addr().map_or(0, |address| address.port());
        Bait {
            name: format!("ringfence-probe-{}", std::process::id()),
            workspace: seen_workspace.to_owned(),
            outside: self.directory.path().join("outside"),
            at_home: self.at_home.path().join("file.txt"),
            shown: self.directory.path().join("shown"),
            pid: i32::try_from(self.process.id()).unwrap_or(0),
            tcp: port(&self.tcp),
            tcp6: self.tcp6.as_ref().map(port),
            udp: self.udp,
            abstract_socket: self.abstract_socket.clone(),
            terminal: self.terminal.1.clone(),
            shared_memory: self.memory.id(),
            variable: VARIABLE.0.to_owned(),
            descriptor: self.descriptor.as_raw_fd(),
            limits,
        }
    }
}

impl Drop for Laid {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn lay_files(root: &Path) -> io::Result<()> {
    for file in [
        "outside/file.txt",
        "shown/open.txt",
        "shown/secret.txt",
        "workspace/.git/config",
        "workspace/.git/HEAD",
        "workspace/.git/hooks/sample",
        "workspace/.git/info/exclude",
        "workspace/.husky/pre-commit",
        "workspace/nested/.git/HEAD",
        "workspace/nested/.git/config",
        "workspace/nested/.git/hooks/sample",
        "workspace/.env",
        "workspace/sub/key.pem",
        "workspace/below/.bashrc",
        "workspace/below/.mcp.json",
        "workspace/below/.claude/settings.json",
        "workspace/below/.vscode/tasks.json",
    ] {
        put(root, file)?;
    }
    // Repositories as git reads them, and hooks where many projects have them.
    for repository in ["workspace", "workspace/nested"] {
        let git = root.join(repository).join(".git");
        put_text(&git.join("HEAD"), "ref: refs/heads/main\n")?;
        fs::create_dir_all(git.join("objects"))?;
        fs::create_dir_all(git.join("refs/heads"))?;
    }
    put_text(&root.join("workspace/.git/config"), "[core]\n\thooksPath = .husky\n")?;
    fs::hard_link(root.join("shown/secret.txt"), root.join("shown/alias.txt"))?;
    fs::hard_link(root.join("workspace/.env"), root.join("workspace/env-alias"))
}

fn put(root: &Path, file: &str) -> io::Result<()> {
    put_text(&root.join(file), "this is bait\n")
}

fn put_text(path: &Path, text: &str) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    fs::File::create(path)?.write_all(text.as_bytes())
}

/// A port that sends back what comes. It lasts as long as the process.
fn echo() -> io::Result<u16> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = socket.local_addr()?.port();
    std::thread::Builder::new().name("echo".into()).spawn(move || {
        let mut bytes = [0; 512];
        while let Ok((count, from)) = socket.recv_from(&mut bytes) {
            let _ = socket.send_to(&bytes[..count], from);
        }
    })?;
    Ok(port)
}
