//! By what memory, processes and processors are bounded here: control groups where this user may make some, a scope of
//! the person's systemd where that is there, else the user's own limits and the watchdog.
#![expect(clippy::disallowed_methods, reason = "files of the kernel")]

use std::path::PathBuf;

use ringfence_core::backend::LaunchError;
use ringfence_core::capability::{Capabilities, Promise};
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::plan::Request;
use ringfence_core::policy::Limits;
use ringfence_core::units::MemorySize;
use ringfence_linux::{Bounds, Controller, Groups, Hierarchy};

use crate::shared::means::{Means, whole_processors};
use crate::shared::probing;
use crate::{GateProgram, Surroundings};

/// The most processes of a run by default: far more than builds and test suites start, far fewer than a machine has.
const DEFAULT_PIDS: u32 = 4096;

/// The most memory of a run by default: three quarters of the machine's, so that the user's programs keep the rest.
fn default_memory() -> MemorySize {
    let machine = rustix::system::sysinfo();
    let bytes = machine.totalram as u64 * u64::from(machine.mem_unit) / 4 * 3;
    MemorySize::from_bytes(bytes & !((1 << 20) - 1))
}

/// Processes of ours in a scope besides those of the run: the gate and the first of the sandbox.
const OURS_IN_SCOPE: u32 = 2;

/// What this machine offers.
#[derive(Debug, Clone)]
pub(super) struct Offer {
    hierarchy: Hierarchy,
    systemd_run: Option<PathBuf>,
    user_limit: bool,
}

/// How a run is bounded.
#[derive(Debug, Default)]
pub(super) struct Bounded {
    pub(super) groups: Groups,
    /// Default limits that could not be put in force, and why.
    pub(super) not_enforced: Vec<String>,
    pub(super) scope: bool,
    pub(super) watched_memory: Option<u64>,
    pub(super) user_processes: Option<u32>,
    pub(super) processors: Option<u32>,
}

impl Offer {
    /// Looks around.
    pub(super) fn look(around: &Surroundings) -> Self {
        let manager = around.runtime.as_ref().map(|runtime| runtime.join("systemd/private"));
        let systemd_run = manager.filter(|socket| socket.exists()).and_then(|_| around.find("systemd-run"));
        // Root's processes are counted nowhere, and older kernels count those of the user on the whole machine.
        let user_limit = !rustix::process::geteuid().is_root() && probing::kernel_is_at_least(5, 14);
        Self { hierarchy: Hierarchy::look(), systemd_run, user_limit }
    }

    /// By what something would be bounded, if by anything.
    pub(super) fn means(&self, controller: Controller) -> Option<Means> {
        let group = self.hierarchy.version(controller).map(Means::Group);
        let scope = self.systemd_run.as_ref().map(|_| Means::Scope);
        let alone = match controller {
            Controller::Memory => Some(Means::Watchdog),
            Controller::Pids => self.user_limit.then_some(Means::UserLimit),
            Controller::Cpu => Some(Means::Affinity),
        };
        match controller {
            // Starting a scope takes longer than the whole rest, so it is for what cannot be had as well otherwise.
            Controller::Cpu => group.or(scope).or(alone),
            Controller::Memory | Controller::Pids => group.or(alone).or(scope),
        }
    }

    /// Chooses limits where the policy has none, as far as they cost nothing and do not hinder: control groups, and the user's own
    /// limit of processes. A limit of each process's memory would be in the way of programs that reserve more than they use.
    pub(super) fn choose(&self, limits: &mut Limits, can: &Capabilities) {
        if can.mechanism(Promise::Memory).is_some() && self.groups(Controller::Memory) {
            limits.memory.get_or_insert_with(default_memory);
        }
        let counted = self.groups(Controller::Pids) || self.means(Controller::Pids) == Some(Means::UserLimit);
        if can.mechanism(Promise::Pids).is_some() && counted {
            limits.pids.get_or_insert(DEFAULT_PIDS);
        }
    }

    fn groups(&self, controller: Controller) -> bool {
        matches!(self.means(controller), Some(Means::Group(_)))
    }

    /// What of a request is bounded by these means.
    fn bounds(&self, request: &Request, by: impl Fn(Means) -> bool) -> Bounds {
        let limits = &request.policy.limits;
        let asked = |controller| self.means(controller).is_some_and(&by);
        Bounds {
            memory: limits.memory.map(|size| size.bytes()).filter(|_| asked(Controller::Memory)),
            pids: limits.pids.filter(|_| asked(Controller::Pids)),
            cpu_millis: limits.cpus.map(|cpus| cpus.millis()).filter(|_| asked(Controller::Cpu)),
        }
    }

    /// The gate for a request: where something is bounded by a scope, one that is started in a scope.
    pub(super) fn gate(&self, request: &Request, gate: &GateProgram) -> GateProgram {
        let bounds = self.bounds(request, |means| means == Means::Scope);
        match &self.systemd_run {
            Some(systemd_run) if bounds != Bounds::default() => GateProgram {
                program: systemd_run.clone(),
                args: scope_args(request.run.as_str(), &bounds, gate),
                ready: std::sync::Arc::default(),
            },
            _ => gate.clone(),
        }
    }

    /// Bounds a run, as far as that is done outside of it.
    pub(super) fn bound(&self, request: &Request) -> Result<Bounded, LaunchError> {
        let bounds = self.bounds(request, |means| matches!(means, Means::Group(_)));
        let (groups, not_enforced) = self.create(request, &bounds)?;
        let processors = self.bounds(request, |means| means == Means::Affinity).cpu_millis;
        Ok(Bounded {
            groups,
            not_enforced,
            processors: processors.map(whole_processors).transpose()?,
            scope: self.bounds(request, |means| means == Means::Scope) != Bounds::default(),
            watched_memory: self.bounds(request, |means| means == Means::Watchdog).memory,
            // The first process of the sandbox is of the same user.
            user_processes: self.bounds(request, |means| means == Means::UserLimit).pids.map(|pids| pids + 1),
        })
    }
}

impl Offer {
    /// Makes the groups of a run. If that fails for limits that nobody asked for, the run goes on without them.
    fn create(&self, request: &Request, bounds: &Bounds) -> Result<(Groups, Vec<String>), LaunchError> {
        let create = |bounds: &Bounds| self.hierarchy.create(request.run.as_str(), bounds);
        let error = match create(bounds) {
            Ok(groups) => return Ok((groups, Vec::new())),
            Err(error) => error,
        };
        let default = |promise| request.default_limits.contains(&promise);
        let asked = Bounds {
            memory: bounds.memory.filter(|_| !default(Promise::Memory)),
            pids: bounds.pids.filter(|_| !default(Promise::Pids)),
            cpu_millis: bounds.cpu_millis.filter(|_| !default(Promise::Cpus)),
        };
        match create(&asked) {
            Ok(groups) if asked != *bounds => {
                Ok((groups, vec![format!("memory and processes are not bounded: {error}")]))
            }
            _ => {
                let message = format!("the run cannot be bounded: {error}");
                Err(LaunchError::Runtime(Failure::new(FailureClass::Refused, message)))
            }
        }
    }
}

/// What systemd-run is told.
fn scope_args(run: &str, bounds: &Bounds, gate: &GateProgram) -> Vec<String> {
    let mut args: Vec<String> =
        ["--user", "--scope", "--quiet", "--collect"].into_iter().map(String::from).collect();
    args.push(format!("--unit=ringfence-{run}"));
    let properties = [
        bounds.memory.map(|bytes| format!("MemoryMax={bytes}")),
        bounds.memory.map(|_| "MemorySwapMax=0".to_owned()),
        bounds.pids.map(|pids| format!("TasksMax={}", pids.saturating_add(OURS_IN_SCOPE))),
        bounds.cpu_millis.map(|millis| format!("CPUQuota={}%", millis.div_ceil(10))),
    ];
    args.extend(properties.into_iter().flatten().map(|property| format!("--property={property}")));
    args.push("--".into());
    args.push(gate.program.display().to_string());
    args.extend(gate.args.iter().cloned());
    args
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ringfence_linux::Bounds;

    use super::scope_args;
    use crate::GateProgram;

    #[test]
    fn a_scope_is_told_every_bound() {
        let gate = GateProgram {
            program: "/opt/ringfence".into(),
            args: vec!["__gate".into()],
            ready: Arc::default(),
        };
        let bounds = Bounds { memory: Some(1 << 20), pids: Some(10), cpu_millis: Some(1505) };
        assert_eq!(
            scope_args("r1", &bounds, &gate),
            [
                "--user",
                "--scope",
                "--quiet",
                "--collect",
                "--unit=ringfence-r1",
                "--property=MemoryMax=1048576",
                "--property=MemorySwapMax=0",
                "--property=TasksMax=12",
                "--property=CPUQuota=151%",
                "--",
                "/opt/ringfence",
                "__gate"
            ]
        );
    }
}
