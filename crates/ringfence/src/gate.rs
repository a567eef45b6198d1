//! The gate that this binary carries: it starts a program as it is, or in a sandbox of the kernel's own.

use std::os::fd::OwnedFd;

use ringfence_gate::{
    Limit, Plain, Spawned, Spawner, Spec, StartFailure, StartProblem, Started, Status, run,
};
use ringfence_linux::{Child, Prepared, SpawnError, prepare};

use crate::report;

/// The gate of the run to come, as a copy of this process that knows nothing yet. Without one the run starts its own.
///
/// To be called when nothing but the command line was read.
pub(crate) fn ahead() -> Option<Started> {
    let gate = || match run(&mut AnySpawner::default()) {
        Ok(()) => 0,
        Err(error) => {
            report::failure(&error.into());
            report::RUNTIME_FAILURE
        }
    };
    ringfence_gate::fork(gate).ok()
}

/// Does as the spec says.
#[derive(Default)]
pub(crate) struct AnySpawner {
    /// A sandbox that was begun, or why it could not be.
    prepared: Option<Result<Prepared, String>>,
    /// The sandbox, if there is one. It goes with the gate, and takes its stand-ins with it.
    child: Option<Child>,
}

impl Spawner for AnySpawner {
    fn prepare(&mut self, base: &str) {
        let base = serde_json::from_str(base).map_err(|error| error.to_string());
        let prepared = base.and_then(|base| prepare(&base).map_err(|error| error.to_string()));
        self.prepared = Some(prepared);
    }

    fn spawn(&mut self, mut spec: Spec, stdin: Option<OwnedFd>) -> Result<Spawned, StartFailure> {
        let (sandbox, prepared) = match (spec.sandbox.take(), self.prepared.take()) {
            (None, None) => return Plain.spawn(spec, stdin),
            (Some(sandbox), Some(prepared)) => (sandbox, prepared),
            _ => return Err(other("half a sandbox was ordered".into())),
        };
        let sandbox = serde_json::from_str(&sandbox).map_err(|error| other(error.to_string()))?;
        match prepared.map_err(other)?.start(sandbox, spec, stdin) {
            Ok((child, terminal)) => Ok(Spawned { pid: self.child.insert(child).pid, terminal }),
            Err(SpawnError::Program(error)) => Err(StartFailure::from(&error)),
            Err(error) => Err(other(error.to_string())),
        }
    }

    fn last_word(&mut self) -> Option<Status> {
        self.child.as_mut()?.last_word()
    }

    fn exhausted(&self) -> Option<Limit> {
        self.child.as_ref()?.exhausted()
    }
}

fn other(message: String) -> StartFailure {
    StartFailure { problem: StartProblem::Other, message }
}
