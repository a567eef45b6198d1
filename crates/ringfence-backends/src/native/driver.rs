//! A run in a sandbox of the kernel's own: the gate builds it around the program.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use ringfence_core::backend::{Backend, Happening, LaunchError, Sandbox, Stopper, Terminal};
use ringfence_core::capability::Capabilities;
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::ids::RunId;
use ringfence_core::mode::Mode;
use ringfence_core::plan::Plan;
use ringfence_linux::{Base, Groups, Placeholder};

use super::boundary::{self, Boundary};
use super::limits::Offer;
use super::survey::System;
use super::{alone, caps, plan, survey};
use crate::Surroundings;
use crate::shared::{probing, run};

/// A run after which nothing is left in the workspace that was not the agent's. The fields are dropped in this order.
struct Cleaned {
    run: Box<dyn Sandbox>,
    _stand_ins: Option<StandIns>,
    _own: Option<alone::Own>,
    _groups: Groups,
}

impl Sandbox for Cleaned {
    fn next(&mut self, until: Instant) -> Result<Happening, Failure> {
        self.run.next(until)
    }

    fn stopper(&self) -> Arc<dyn Stopper> {
        self.run.stopper()
    }

    fn terminal(&mut self) -> Option<Box<dyn Terminal>> {
        self.run.terminal()
    }
}

struct StandIns {
    placed: Vec<Placeholder>,
    /// Held while the run lasts; another run sees by it that it is not alone.
    lock: File,
}

impl Drop for StandIns {
    fn drop(&mut self) {
        ringfence_linux::remove(&self.placed, &self.lock);
    }
}

/// Runs agents in namespaces.
pub(super) struct Native {
    around: Surroundings,
    /// The sandbox that was begun for a run.
    begun: Mutex<Option<Begun>>,
    offer: OnceLock<Offer>,
    boundary: OnceLock<Boundary>,
}

/// A sandbox of which as much stands as could be known.
struct Begun {
    run: RunId,
    idle: run::Idle,
    system: System,
    base: Base,
}

impl Native {
    pub(super) fn new(around: Surroundings) -> Self {
        Self { around, begun: Mutex::default(), offer: OnceLock::new(), boundary: OnceLock::new() }
    }

    fn begin(&self, plan: &Plan) -> Result<Begun, LaunchError> {
        let gate = self.offer().gate(&plan.request, &self.around.gate);
        let idle = run::Idle::new(&gate)?;
        let system = survey::system();
        let base = match self.boundary() {
            Boundary::Namespaces => plan::base(&plan.request, &system),
            Boundary::LandlockAlone { .. } => alone::base(),
        };
        idle.prepare(plan::told(&base)?)?;
        Ok(Begun { run: plan.request.run.clone(), idle, system, base })
    }

    fn offer(&self) -> &Offer {
        self.offer.get_or_init(|| Offer::look(&self.around))
    }

    fn boundary(&self) -> &Boundary {
        self.boundary.get_or_init(boundary::look)
    }

    /// Without namespaces: the host's own paths, as far as Landlock lets it.
    fn launch_alone(
        &self,
        plan: &Plan,
        idle: run::Idle,
        system: &System,
        name: &str,
    ) -> Result<Box<dyn Sandbox>, LaunchError> {
        let request = &plan.request;
        if request.workspace.guest().as_path() != request.workspace.host().as_path() {
            let message = "without user namespaces the workspace cannot be seen elsewhere than where it is";
            let failure = Failure::new(FailureClass::Refused, message);
            return Err(LaunchError::Runtime(
                failure.with_remedy("set `sandbox.path_mapping_mode` to `same-path`"),
            ));
        }
        let survey = survey::look(plan, system, &self.around.home)?;
        let own = alone::Own::new(&self.around.state, &request.run).map_err(|error| {
            let message = format!("there is no place for a private home: {error}");
            LaunchError::Runtime(Failure::new(FailureClass::Unknown, message))
        })?;
        let bounded = self.offer().bound(request)?;
        let sandbox = alone::sandbox(request, system, &survey, &own)?;
        let mut spec = plan::spec_of(plan, sandbox, &survey, &bounded)?;
        for (variable, place) in [("HOME", own.home()), ("TMPDIR", own.tmp())] {
            spec.env.insert(variable.into(), place.display().to_string());
        }
        let run = idle.launch(spec, request.stdin, name)?;
        Ok(Box::new(Cleaned { run, _stand_ins: None, _own: Some(own), _groups: bounded.groups }))
    }

    fn begun(&self) -> MutexGuard<'_, Option<Begun>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backend for Native {
    fn mode(&self) -> Mode {
        Mode::Native
    }

    fn capabilities(&self) -> Capabilities {
        caps::capabilities(self.boundary(), self.offer())
    }

    fn versions(&self) -> Vec<(String, String)> {
        vec![probing::kernel(), ("landlock".into(), format!("abi {}", ringfence_linux::landlock_abi()))]
    }

    fn prepare(&self, plan: &Plan) {
        // What goes wrong here goes wrong again at the launch, where it can be told.
        *self.begun() = self.begin(plan).ok();
    }

    fn launch(&self, plan: &Plan) -> Result<Box<dyn Sandbox>, LaunchError> {
        let name = plan.request.argv.first().map(String::as_str).unwrap_or_default();
        let begun = self.begun().take().filter(|begun| begun.run == plan.request.run);
        let Begun { idle, system, base, .. } = begun.map_or_else(|| self.begin(plan), Ok)?;
        if !base.namespaces {
            return self.launch_alone(plan, idle, &system, name);
        }
        let workspace = plan::lock(&plan.request);
        let lock = ringfence_linux::share(workspace).map_err(|error| {
            let message = format!("{} cannot be locked: {error}", workspace.display());
            LaunchError::Runtime(Failure::new(FailureClass::Unknown, message))
        })?;
        let survey = survey::look(plan, &system, &self.around.home)?;
        let bounded = self.offer().bound(&plan.request)?;
        let spec = plan::spec(plan, &base, &survey, &bounded)?;
        let placed = plan::placeholders(&plan.request, &survey);
        if let Some(layer) = plan::layer(&plan.request) {
            make_ways(layer, plan.request.workspace.host().as_path(), &placed).map_err(|error| {
                let message = format!("the layer {} cannot be written: {error}", layer.display());
                LaunchError::Runtime(Failure::new(FailureClass::Unknown, message))
            })?;
        }
        let stand_ins = StandIns { placed, lock };
        let run = idle.launch(spec, plan.request.stdin, name)?;
        Ok(Box::new(Cleaned { run, _stand_ins: Some(stand_ins), _own: None, _groups: bounded.groups }))
    }
}

/// Makes the directories above stand-ins in a layer, as they are below it.
fn make_ways(layer: &Path, below: &Path, placed: &[Placeholder]) -> io::Result<()> {
    let upper = layer.join("upper");
    let as_below =
        |part: &Path| fs::set_permissions(upper.join(part), fs::metadata(below.join(part))?.permissions());
    as_below(Path::new(""))?;
    for placeholder in placed {
        let Ok(path) = placeholder.path.strip_prefix(&upper) else { continue };
        let mut way: Vec<&Path> = path.ancestors().skip(1).collect();
        way.reverse();
        for part in way.into_iter().filter(|part| !upper.join(part).exists()) {
            fs::create_dir(upper.join(part))?;
            as_below(part)?;
        }
    }
    Ok(())
}
