//! The gate that this binary carries: it starts a program as it is, or in a sandbox of the kernel's own.

use std::os::fd::OwnedFd;

use ringfence_gate::{Plain, Spawner, Spec, StartFailure, StartProblem, Status};
use ringfence_linux::{Child, SpawnError};
use rustix::process::Pid;

/// Does as the spec says.
#[derive(Default)]
pub(crate) struct AnySpawner {
    /// The sandbox, if there is one. It goes with the gate, and takes its stand-ins with it.
    child: Option<Child>,
}

impl Spawner for AnySpawner {
    fn spawn(&mut self, spec: &Spec, stdin: Option<OwnedFd>) -> Result<Pid, StartFailure> {
        let Some(sandbox) = &spec.sandbox else { return Plain.spawn(spec, stdin) };
        let other = |message: String| StartFailure { problem: StartProblem::Other, message };
        let sandbox = serde_json::from_value(sandbox.clone()).map_err(|error| other(error.to_string()))?;
        match ringfence_linux::spawn(&sandbox, spec, stdin) {
            Ok(child) => Ok(self.child.insert(child).pid),
            Err(SpawnError::Program(error)) => Err(StartFailure::from(&error)),
            Err(error) => Err(other(error.to_string())),
        }
    }

    fn last_word(&mut self) -> Option<Status> {
        self.child.as_mut()?.last_word()
    }
}
