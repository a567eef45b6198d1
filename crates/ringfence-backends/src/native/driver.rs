//! A run in a sandbox of the kernel's own: the gate builds it around the program.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use ringfence_core::backend::{Backend, Happening, LaunchError, Sandbox, Stopper};
use ringfence_core::capability::Capabilities;
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::mode::Mode;
use ringfence_core::plan::Plan;
use ringfence_linux::Placeholder;

use super::{caps, plan, survey};
use crate::Surroundings;
use crate::shared::{probing, run};

/// A run after which nothing is left in the workspace that was not the agent's. The fields are dropped in this order.
struct Cleaned {
    run: Box<dyn Sandbox>,
    _stand_ins: StandIns,
}

impl Sandbox for Cleaned {
    fn next(&mut self, until: Instant) -> Result<Happening, Failure> {
        self.run.next(until)
    }

    fn stopper(&self) -> Arc<dyn Stopper> {
        self.run.stopper()
    }
}

struct StandIns {
    placed: Vec<Placeholder>,
    workspace: PathBuf,
    /// Held while the run lasts; another run sees by it that it is not alone.
    lock: Option<File>,
}

impl Drop for StandIns {
    fn drop(&mut self) {
        self.lock = None;
        ringfence_linux::remove(&self.placed, &self.workspace);
    }
}

/// Runs agents in namespaces.
pub(super) struct Native {
    around: Surroundings,
}

impl Native {
    pub(super) fn new(around: Surroundings) -> Self {
        Self { around }
    }
}

impl Backend for Native {
    fn mode(&self) -> Mode {
        Mode::Native
    }

    fn capabilities(&self) -> Capabilities {
        caps::capabilities()
    }

    fn versions(&self) -> Vec<(String, String)> {
        vec![probing::kernel(), ("landlock".into(), format!("abi {}", ringfence_linux::landlock_abi()))]
    }

    fn launch(&self, plan: &Plan) -> Result<Box<dyn Sandbox>, LaunchError> {
        let program = plan.request.argv.first().cloned().unwrap_or_default();
        let workspace = plan.request.workspace.host().as_path();
        let (lock, alone) = ringfence_linux::share(workspace).map_err(|error| {
            let message = format!("{} cannot be locked: {error}", workspace.display());
            LaunchError::Runtime(Failure::new(FailureClass::Unknown, message))
        })?;
        let survey = survey::look(plan, &self.around.home, alone)?;
        let spec = plan::spec(plan, &survey)?;
        let placed = plan::placeholders(&plan.request, &survey);
        let stand_ins = StandIns { placed, workspace: workspace.to_owned(), lock: Some(lock) };
        let run = run::launch(&self.around.gate, &plan.request.env, spec, &program)?;
        Ok(Box::new(Cleaned { run, _stand_ins: stand_ins }))
    }
}
