//! A run on the host: the gate with nothing around the program.

use ringfence_core::backend::{Backend, LaunchError, Staged};
use ringfence_core::capability::Capabilities;
use ringfence_core::mode::Mode;
use ringfence_core::plan::Plan;

use super::{caps, plan};
use crate::GateProgram;
use crate::shared::{probing, run};

/// Runs agents as processes of the machine.
pub struct Host {
    gate: GateProgram,
}

impl Host {
    /// By this gate.
    pub fn new(gate: GateProgram) -> Self {
        Self { gate }
    }
}

impl Backend for Host {
    fn mode(&self) -> Mode {
        Mode::Host
    }

    fn capabilities(&self) -> Capabilities {
        caps::capabilities()
    }

    fn versions(&self) -> Vec<(String, String)> {
        vec![probing::kernel()]
    }

    fn stage(&self, plan: &Plan) -> Result<Box<dyn Staged>, LaunchError> {
        Ok(Box::new(run::Idle::new(&self.gate)?.build(plan::spec(plan, &self.gate)?, &plan.request)?))
    }
}
