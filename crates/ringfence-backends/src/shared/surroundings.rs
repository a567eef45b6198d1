//! What a backend may know of the machine. The binary reads the environment once and hands this on.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use ringfence_gate::Started;
use ringfence_workspace::HostPrograms;

/// The machine as the person who starts `ringfence` sees it.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// The programs of the host.
    pub programs: HostPrograms,
    /// The person's home.
    pub home: PathBuf,
    /// Where ringfence keeps what lasts.
    pub state: PathBuf,
    /// The state directories of the user's other installations.
    pub other_states: Vec<PathBuf>,
    /// Where services of the person's session have their sockets.
    pub runtime: Option<PathBuf>,
    /// Variables that say where services of this machine are: those of [`VARIABLES`](crate::VARIABLES).
    pub services: BTreeMap<String, String>,
    /// How to start the gate.
    pub gate: GateProgram,
    /// Set when the user wants everything to end, also what has not started yet.
    pub interrupted: Arc<AtomicBool>,
}

/// A program that is the gate, and what makes it so.
#[derive(Debug, Clone)]
pub struct GateProgram {
    /// The program.
    pub program: PathBuf,
    /// The arguments that make it the gate.
    pub args: Vec<String>,
    /// A gate that was started beforehand. The first run takes it.
    pub ready: Arc<Mutex<Option<Started>>>,
}

impl GateProgram {
    /// A gate: the one that waits, or a new one.
    pub(crate) fn start(&self) -> io::Result<Started> {
        let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner).take();
        ready.map_or_else(|| ringfence_gate::exec(&self.program, &self.args), Ok)
    }
}

impl Surroundings {
    /// The first program of this name that no run could have written.
    pub fn find(&self, name: &str) -> Option<PathBuf> {
        self.programs.find(name)
    }
}
