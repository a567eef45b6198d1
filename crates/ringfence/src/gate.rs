//! The gate that this binary carries: it starts a program as it is, or in a sandbox of the kernel's own.

use std::os::fd::{BorrowedFd, OwnedFd};

use ringfence_gate::{
    Elsewhere, Limit, Plain, Spawned, Spawner, Spec, StartFailure, StartProblem, Started, Status, decode, run,
};
use ringfence_linux::{Base, Child, Kind, Opened, Preparation, SpawnError, StandIns, Walls, open};

use crate::report;

/// The gate of the run to come, as a copy of this process that knows nothing yet. Without one the run starts its own.
///
/// To be called when nothing but the command line was read. `namespaces` says whether the run is likely to want some.
pub(crate) fn ahead(namespaces: bool) -> Option<Started> {
    let gate = |elsewhere| {
        let opened = namespaces.then(|| open(LIKELY, elsewhere).ok()).flatten();
        match run(&mut AnySpawner { opened, elsewhere, ..AnySpawner::default() }) {
            Ok(()) => 0,
            Err(error) => {
                report::failure(&error.into());
                report::RUNTIME_FAILURE
            }
        }
    };
    ringfence_gate::fork(gate).ok()
}

/// What most runs want: the kernel takes its time to make a network.
const LIKELY: Kind = Kind { walls: Walls::Own, own_network: true };

/// Does as the spec says.
#[derive(Default)]
pub(crate) struct AnySpawner {
    /// Namespaces that were made before anybody asked for them.
    opened: Option<Opened>,
    /// Where this process is while it prepares.
    elsewhere: Elsewhere,
    /// A sandbox that was begun, or why it could not be.
    prepared: Option<Result<Opened, String>>,
    /// Stub files that were made before the rest of the sandbox.
    stubs: Option<StandIns>,
    /// What is to be started without a sandbox.
    plain: Plain,
    /// The sandbox, if there is one. It goes with the gate, and takes its stand-ins with it.
    child: Option<Result<Child, String>>,
}

impl AnySpawner {
    /// The namespaces that were made if they are such, else new ones.
    fn open(&mut self, base: Base) -> Result<Opened, String> {
        let kind = Kind::from(&base);
        let opened = match self.opened.take() {
            Some(opened) if opened.kind() == kind => opened,
            other => {
                dismiss(other);
                self.elsewhere.again();
                open(kind, self.elsewhere).map_err(|error| error.to_string())?
            }
        };
        opened.begin(base);
        Ok(opened)
    }
}

fn dismiss(opened: Option<Opened>) {
    if let Some(opened) = opened {
        opened.dismiss();
    }
}

impl Spawner for AnySpawner {
    fn prepare(&mut self, preparation: &[u8]) {
        match decode(preparation) {
            Ok(Preparation::Base(base)) => self.prepared = Some(self.open(base)),
            // What fails here is tried again with the others, and is an error then.
            Ok(Preparation::Stubs(stubs)) => self.stubs = StandIns::place_early(stubs).ok(),
            Err(error) => self.prepared = Some(Err(error.to_string())),
        }
    }

    fn build(&mut self, mut spec: Spec, stdin: Option<OwnedFd>) {
        dismiss(self.opened.take());
        let (sandbox, prepared) = match (spec.sandbox.take(), self.prepared.take()) {
            (None, None) => return self.plain.build(spec, stdin),
            (Some(sandbox), Some(prepared)) => (sandbox, prepared),
            _ => return self.child = Some(Err("half a sandbox was ordered".into())),
        };
        let sandbox = decode(&sandbox).map_err(|error| error.to_string());
        let early = self.stubs.take();
        let built = sandbox.and_then(|sandbox| {
            prepared?.build(sandbox, (spec, stdin), early).map_err(|error| error.to_string())
        });
        self.child = Some(built);
    }

    fn start(&mut self) -> Result<Spawned, StartFailure> {
        self.elsewhere.over();
        let Some(child) = &mut self.child else { return self.plain.start() };
        let child = child.as_mut().map_err(|why| other(why.clone()))?;
        match child.start() {
            Ok(spawned) => Ok(spawned),
            Err(SpawnError::Program(error)) => Err(StartFailure::from(&error)),
            Err(error) => Err(other(error.to_string())),
        }
    }

    fn line(&self) -> Option<BorrowedFd<'_>> {
        Some(self.child.as_ref()?.as_ref().ok()?.line())
    }

    fn last_word(&mut self) -> Option<Status> {
        self.child.as_mut()?.as_mut().ok()?.last_word()
    }

    fn ends_all(&self) -> bool {
        matches!(&self.child, Some(Ok(child)) if child.ends_all())
    }

    fn clear(&mut self) {
        if let Some(Ok(child)) = &mut self.child {
            child.clear();
        }
    }

    fn exhausted(&self) -> Option<Limit> {
        self.child.as_ref()?.as_ref().ok()?.exhausted()
    }
}

fn other(message: String) -> StartFailure {
    StartFailure { problem: StartProblem::Other, message }
}
