//! A run in a sandbox of the kernel's own: the gate builds it around the program.
#![expect(clippy::disallowed_methods, reason = "the layer is in the state directory, and no run has it yet")]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use ringfence_core::backend::{Backend, Door, Happening, LaunchError, Sandbox, Staged, Stopper, Terminal};
use ringfence_core::capability::Capabilities;
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::locations::Locations;
use ringfence_core::mode::Mode;
use ringfence_core::plan::Plan;
use ringfence_core::policy::Limits;
use ringfence_linux::{Base, Groups, Placeholder, Preparation, StandIn, StandIns, Stubs};
use ringfence_workspace::{Directory, StubList};

use super::boundary::{self, Boundary};
use super::limits::Offer;
use super::system::{self, System};
use super::{alone, caps, plan};
use crate::Surroundings;
use crate::shared::register::Registration;
use crate::shared::{probing, repositories, run, survey};

/// What a run leaves on the host, taken away when this is dropped. In this order.
struct Traces {
    stand_ins: Option<StandIns>,
    _registered: Option<Arc<Registration>>,
    _own: Option<alone::Own>,
    _groups: Groups,
}

/// A sandbox that stands, or a run in it, after which nothing is left in the workspace that was not the agent's. The
/// fields are dropped in this order.
struct Traceless<T: ?Sized> {
    run: Box<T>,
    traces: Traces,
}

impl Staged for Traceless<run::Built> {
    fn notices(&self) -> Vec<String> {
        self.run.notices()
    }

    fn warnings(&self) -> Vec<String> {
        self.run.warnings()
    }

    fn locations(&mut self) -> Vec<(PathBuf, Locations)> {
        self.run.locations()
    }

    fn hidden(&mut self) -> Vec<PathBuf> {
        self.run.hidden()
    }

    fn stubs(&mut self) -> Vec<(PathBuf, Option<String>)> {
        self.run.stubs()
    }

    fn programs(&mut self) -> Vec<PathBuf> {
        self.run.programs()
    }

    fn start(self: Box<Self>) -> Result<Box<dyn Sandbox>, LaunchError> {
        let Self { run, traces } = *self;
        let run = run.start()?;
        if let Some(stand_ins) = &traces.stand_ins {
            // The gate stands on them now, and takes them away in time; if it is killed, this process does it.
            stand_ins.entrust();
        }
        Ok(Box::new(Traceless { run, traces }))
    }
}

impl Sandbox for Traceless<dyn Sandbox> {
    fn next(&mut self, until: Instant) -> Result<Happening, Failure> {
        self.run.next(until)
    }

    fn clear(&mut self) -> Option<Failure> {
        self.run.clear()
    }

    fn stopper(&self) -> Arc<dyn Stopper> {
        self.run.stopper()
    }

    fn doors(&mut self) -> Vec<(u16, Door)> {
        self.run.doors()
    }

    fn terminal(&mut self) -> Option<Box<dyn Terminal>> {
        self.run.terminal()
    }
}

/// Runs agents in namespaces.
pub(super) struct Native {
    around: Surroundings,
    offer: OnceLock<Offer>,
    boundary: OnceLock<Boundary>,
}

impl Native {
    pub(super) fn new(around: Surroundings) -> Self {
        Self { around, offer: OnceLock::new(), boundary: OnceLock::new() }
    }

    fn offer(&self) -> &Offer {
        self.offer.get_or_init(|| Offer::look(&self.around))
    }

    fn boundary(&self) -> &Boundary {
        self.boundary.get_or_init(boundary::look)
    }

    /// Without namespaces: the host's own paths, as far as Landlock lets it.
    fn stage_alone(
        &self,
        plan: &Plan,
        idle: run::Idle,
        system: &System,
    ) -> Result<Traceless<run::Built>, LaunchError> {
        let request = &plan.request;
        if request.workspace.guest().as_path() != request.workspace.host().as_path() {
            let message = "without user namespaces the workspace cannot be seen elsewhere than where it is";
            let failure = Failure::new(FailureClass::Refused, message);
            return Err(LaunchError::Runtime(
                failure.with_remedy("set `sandbox.path_mapping_mode` to `same-path`"),
            ));
        }
        let program = system::program(request, &self.around)?;
        let hidden = [&system.secrets[..], &survey::state(&self.around)].concat();
        let survey = survey::look(request, &self.around, (&hidden, program.tree.as_deref()), &mut |_| ())?;
        survey.refuse_governing(request)?;
        let own = alone::Own::new(&self.around.state, &request.run).map_err(|error| {
            let message = format!("there is no place for a private home: {error}");
            LaunchError::Runtime(Failure::new(FailureClass::Unknown, message))
        })?;
        let bounded = self.offer().bound(request)?;
        let sandbox = alone::sandbox(request, system, (&program, &survey), &own)?;
        let mut spec = plan::spec_of(plan, sandbox, &program, &bounded)?;
        for (variable, place) in [("HOME", own.home()), ("TMPDIR", own.tmp())] {
            spec.env.insert(variable.into(), place.display().to_string());
        }
        let traces = Traces {
            stand_ins: None,
            _registered: survey.registered.clone(),
            _own: Some(own),
            _groups: bounded.groups,
        };
        Ok(Traceless { run: Box::new(idle.build(spec, request)?.with_survey(survey, request)), traces })
    }

    /// In namespaces, with a root of its own.
    fn stage_apart(
        &self,
        plan: &Plan,
        idle: run::Idle,
        system: &System,
        base: &Base,
    ) -> Result<Traceless<run::Built>, LaunchError> {
        let workspace = plan::lock(&plan.request);
        let stand_ins = StandIns::share(workspace, plan::lock_id(&plan.request));
        let mut stand_ins = stand_ins.map_err(|error| run::not_locked(workspace, &error))?;
        let program = system::program(&plan.request, &self.around)?;
        let hidden = [&system.secrets[..], &survey::state(&self.around)].concat();
        let mut reserve = |missing: &[survey::Missing]| {
            let placeholders = plan::early_placeholders(&plan.request, missing);
            stand_ins.answer_for(placeholders.clone());
            let stubs =
                Stubs { workspace: workspace.to_owned(), id: plan.request.workspace_id, placeholders };
            // A gate that is lost is noticed when it is told the rest.
            let _ = idle.prepare(&Preparation::Stubs(stubs));
        };
        let mut survey =
            survey::look(&plan.request, &self.around, (&hidden, program.tree.as_deref()), &mut reserve)?;
        let not_made = |error: io::Error| {
            let message = format!("a private git directory cannot be made: {error}");
            LaunchError::Runtime(Failure::new(FailureClass::Unknown, message))
        };
        repositories::make_places(&plan.request, &survey).map_err(not_made)?;
        let bounded = self.offer().bound(&plan.request)?;
        let ending = survey::Ending::of(&plan.request, &self.around);
        let sockets = system.sockets(&plan::needed(&plan.request, &program, &survey), &ending)?;
        let spec = plan::spec(plan, base, (&program, &survey, sockets), &bounded)?;
        let placed = plan::placeholders(&plan.request, &survey);
        if let Some(layer) = plan::layer(&plan.request) {
            make_ways(layer, plan.request.workspace.host().as_path(), &placed).map_err(|error| {
                let message = format!("the layer {} cannot be written: {error}", layer.display());
                LaunchError::Runtime(Failure::new(FailureClass::Unknown, message))
            })?;
        }
        stand_ins.answer_for(placed);
        let traces = Traces {
            stand_ins: Some(stand_ins),
            _registered: survey.registered.clone(),
            _own: None,
            _groups: bounded.groups,
        };
        let run = idle.out_of_reach().build(spec, &plan.request)?;
        // The private git directories are filled while the gate mounts them.
        repositories::fill(&plan.request, &mut survey, None, repositories::Modules::InPlace)
            .map_err(not_made)?;
        let run = run.with_survey(survey, &plan.request);
        Ok(Traceless { run: Box::new(run), traces })
    }
}

impl Backend for Native {
    fn mode(&self) -> Mode {
        Mode::Native
    }

    fn capabilities(&self) -> Capabilities {
        let capabilities = caps::capabilities(self.boundary(), self.offer());
        match self.boundary() {
            Boundary::Namespaces => self.offer().with_defaults(capabilities),
            Boundary::LandlockAlone { .. } => capabilities,
        }
    }

    fn bound(&self, limits: &mut Limits) {
        Offer::choose(limits, &self.capabilities());
    }

    fn not_enforced(&self, limits: &Limits) -> Vec<String> {
        let missing = [
            (limits.memory.is_none(), "memory is not bounded: nothing here counts it"),
            (limits.pids.is_none(), "processes are not bounded: without user namespaces nothing counts them"),
        ];
        missing.into_iter().filter(|(missing, _)| *missing).map(|(_, why)| why.to_owned()).collect()
    }

    fn versions(&self) -> Vec<(String, String)> {
        vec![probing::kernel(), ("landlock".into(), format!("abi {}", ringfence_linux::landlock_abi()))]
    }

    fn stage(&self, plan: &Plan) -> Result<Box<dyn Staged>, LaunchError> {
        let gate = self.offer().gate(&plan.request, &self.around.gate);
        let idle = run::Idle::new(&gate)?;
        let system = system::system();
        let base = match self.boundary() {
            Boundary::Namespaces => plan::base(&plan.request, &system),
            Boundary::LandlockAlone { .. } => alone::base(),
        };
        // The gate begins with it while the workspace is looked at.
        idle.prepare(&Preparation::Base(base.clone()))?;
        Ok(Box::new(match self.boundary() {
            Boundary::Namespaces => self.stage_apart(plan, idle, &system, &base)?,
            Boundary::LandlockAlone { .. } => self.stage_alone(plan, idle, &system)?,
        }))
    }
}

/// Writes down which stub files the overlay gets, and makes the directories above them, as they are below it.
fn make_ways(layer: &Path, below: &Path, placed: &[Placeholder]) -> io::Result<()> {
    let upper = layer.join("upper");
    let as_below =
        |part: &Path| fs::set_permissions(upper.join(part), fs::metadata(below.join(part))?.permissions());
    as_below(Path::new(""))?;
    let stub = |placed: &Placeholder| {
        let content = match &placed.kind {
            StandIn::Directory => None,
            StandIn::File(text) => Some(text.clone()),
        };
        Some((placed.path.strip_prefix(&upper).ok()?.to_owned(), content))
    };
    let overlay = Directory::open(&fs::canonicalize(layer)?).map_err(io::Error::other)?;
    StubList::new(placed.iter().filter_map(stub)).write(&overlay)?;
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
