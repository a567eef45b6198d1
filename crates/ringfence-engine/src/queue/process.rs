//! Names of the processes of an installation, and the locks that say which of them live.
#![expect(clippy::disallowed_methods, reason = "locks are in the state directory")]

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use ringfence_core::task::Role;
use ringfence_store::atomic;
use rustix::fs::{FlockOperation, flock};

use super::identity::Identity;
use super::waiting::pause;

/// A process that takes tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProcessName {
    /// Takes what nobody else takes, and starts a process for each. One is enough; the others are named from the second on.
    Dispatcher(u16),
    /// Takes tasks of its role, one at a time, and does them on the host.
    Resident(Role, u16),
}

/// Why a text is no name of a process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no process `{0}`: known are dispatcher, dispatcher-N, worker-N, tester-N and docser-N, with N from 1 to 64"
)]
pub struct NoSuchProcess(String);

impl ProcessName {
    /// The one that the daemon starts by itself.
    pub const FIRST_DISPATCHER: ProcessName = ProcessName::Dispatcher(1);
}

impl FromStr for ProcessName {
    type Err = NoSuchProcess;
    fn from_str(text: &str) -> Result<Self, NoSuchProcess> {
        let unknown = || NoSuchProcess(text.to_owned());
        if text == "dispatcher" {
            return Ok(Self::FIRST_DISPATCHER);
        }
        let (role, number) = text.split_once('-').ok_or_else(unknown)?;
        let number = number.parse().ok().filter(|number| (1..=64).contains(number)).ok_or_else(unknown)?;
        let name = match role {
            "dispatcher" => Self::Dispatcher(number),
            role => Self::Resident(role.parse().map_err(|_| unknown())?, number),
        };
        // `worker-01` would be a second name of the first.
        if name.to_string() == text { Ok(name) } else { Err(unknown()) }
    }
}

impl fmt::Display for ProcessName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProcessName::Dispatcher(1) => f.write_str("dispatcher"),
            ProcessName::Dispatcher(number) => write!(f, "dispatcher-{number}"),
            ProcessName::Resident(role, number) => write!(f, "{role}-{number}"),
        }
    }
}

/// How long somebody who only looks may hold a name.
const GLANCE: Duration = Duration::from_millis(500);

/// The locks of an installation's processes, the daemon's among them.
#[derive(Debug, Clone)]
pub struct ProcessLocks {
    directory: PathBuf,
}

/// The lock of a process that lives.
#[derive(Debug)]
pub struct Alive {
    _lock: File,
}

impl ProcessLocks {
    /// The daemon's own name.
    pub const DAEMON: &str = "daemon";

    /// Below a state directory.
    pub fn new(state: &Path) -> Self {
        Self { directory: state.join("queue").join("processes") }
    }

    /// Takes a name, unless somebody has it.
    pub fn take(&self, name: &str) -> io::Result<Option<Alive>> {
        atomic::private_dir(&self.directory)?;
        let path = self.directory.join(name);
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        // Whoever looks whether somebody has it holds it for a moment.
        let begun = Instant::now();
        while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            if begun.elapsed() > GLANCE {
                return Ok(None);
            }
            pause(GLANCE / 50);
        }
        Identity::write(Some(Identity::own()?), &file)?;
        Ok(Some(Alive { _lock: file }))
    }

    /// Who has a name, if somebody lives who has it.
    pub fn holder(&self, name: &str) -> Option<Identity> {
        let file = File::open(self.directory.join(name)).ok()?;
        if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
            return None;
        }
        Identity::read(&file).ok()?
    }

    /// The roles for which somebody is resident.
    pub fn residents(&self) -> Vec<Role> {
        let Ok(entries) = std::fs::read_dir(&self.directory) else { return Vec::new() };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let living = names.filter(|name| self.holder(name).is_some());
        let mut roles: Vec<Role> = living
            .filter_map(|name| match name.parse() {
                Ok(ProcessName::Resident(role, _)) => Some(role),
                _ => None,
            })
            .collect();
        roles.sort_unstable();
        roles.dedup();
        roles
    }
}

#[cfg(test)]
mod tests {
    use super::{ProcessLocks, ProcessName};

    #[test]
    fn names_are_those_of_the_documents_and_no_others() {
        for name in ["dispatcher", "dispatcher-2", "worker-1", "tester-64", "docser-2"] {
            assert_eq!(name.parse::<ProcessName>().unwrap().to_string(), name);
        }
        for name in [
            "",
            "worker",
            "worker-0",
            "worker-65",
            "worker-01",
            "dispatcher-1",
            "judge-1",
            "worker-1/..",
            "Worker-1",
        ] {
            assert!(name.parse::<ProcessName>().is_err(), "{name}");
        }
    }

    #[test]
    fn a_name_has_one_holder() {
        let dir = tempfile::tempdir().unwrap();
        let locks = ProcessLocks::new(dir.path());
        assert!(locks.holder("worker-1").is_none());
        let alive = locks.take("worker-1").unwrap().unwrap();
        assert!(locks.take("worker-1").unwrap().is_none());
        assert_eq!(locks.holder("worker-1").map(|who| who.pid), Some(rustix::process::getpid()));
        assert_eq!(locks.residents(), [ringfence_core::task::Role::Worker]);
        drop(alive);
        assert_eq!(locks.holder("worker-1"), None);
    }
}
