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

/// The most processes of a run by default. The user's own programs keep half of what the user may start.
fn default_pids() -> u32 {
    let own = rustix::process::getrlimit(rustix::process::Resource::Nproc).current;
    own.map_or(DEFAULT_PIDS, |most| u32::try_from(most / 2).unwrap_or(DEFAULT_PIDS).clamp(1, DEFAULT_PIDS))
}

/// By what the gate keeps limits that a run has by default.
const WATCHED: &str = "watchdog over all processes";

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
    pub(super) scope: bool,
    /// Memory of each process and of all of them, which the gate looks at often.
    pub(super) memory: Option<u64>,
    pub(super) user_processes: Option<u32>,
    /// Limits that the run has by default, which the gate looks at from time to time.
    pub(super) watched_memory: Option<u64>,
    pub(super) watched_processes: Option<u32>,
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

    /// Chooses limits where the policy has none. The gate watches them: joining a control group takes the kernel several
    /// milliseconds on a busy machine, and a limit of each process's memory would be in the way of programs that reserve more
    /// than they use.
    pub(super) fn choose(limits: &mut Limits, can: &Capabilities) {
        if can.default_mechanism(Promise::Memory).is_some() {
            limits.memory.get_or_insert_with(default_memory);
        }
        if can.default_mechanism(Promise::Pids).is_some() {
            limits.pids.get_or_insert_with(default_pids);
        }
    }

    /// By what default limits are kept.
    pub(super) fn with_defaults(&self, capabilities: Capabilities) -> Capabilities {
        let processes = match self.user_limit {
            true => Means::UserLimit.describe(),
            false => WATCHED.to_owned(),
        };
        capabilities.with_default(Promise::Memory, WATCHED).with_default(Promise::Pids, processes)
    }

    /// What the policy of a request asks for and is bounded by these means.
    fn bounds(&self, request: &Request, by: impl Fn(Means) -> bool) -> Bounds {
        let limits = &request.policy.limits;
        let asked = |controller, promise| {
            !request.default_limits.contains(&promise) && self.means(controller).is_some_and(&by)
        };
        let memory = limits.memory.map(|size| size.bytes());
        let millis = limits.cpus.map(|cpus| cpus.millis());
        Bounds {
            memory: memory.filter(|_| asked(Controller::Memory, Promise::Memory)),
            pids: limits.pids.filter(|_| asked(Controller::Pids, Promise::Pids)),
            cpu_millis: millis.filter(|_| asked(Controller::Cpu, Promise::Cpus)),
        }
    }

    /// The gate for a request: where something is bounded by a scope, one that is started in a scope.
    pub(super) fn gate(&self, request: &Request, gate: &GateProgram) -> GateProgram {
        let bounds = self.bounds(request, |means| means == Means::Scope);
        match &self.systemd_run {
            Some(systemd_run) if bounds != Bounds::default() => GateProgram {
                program: systemd_run.clone(),
                file: systemd_run.clone(),
                args: scope_args(request.run.as_str(), &bounds, gate),
                ready: std::sync::Arc::default(),
            },
            _ => gate.clone(),
        }
    }

    /// Bounds a run, as far as that is done outside of it.
    pub(super) fn bound(&self, request: &Request) -> Result<Bounded, LaunchError> {
        let bounds = self.bounds(request, |means| matches!(means, Means::Group(_)));
        let groups = self.hierarchy.create(request.run.as_str(), &bounds).map_err(|error| {
            let message = format!("the run cannot be bounded: {error}");
            LaunchError::Runtime(Failure::new(FailureClass::Refused, message))
        })?;
        let processors = self.bounds(request, |means| means == Means::Affinity).cpu_millis;
        let default = |promise| request.default_limits.contains(&promise);
        let limits = &request.policy.limits;
        let default_pids = limits.pids.filter(|_| default(Promise::Pids));
        let user_limit = self.bounds(request, |means| means == Means::UserLimit).pids;
        let user_limit = user_limit.or(default_pids.filter(|_| self.user_limit));
        Ok(Bounded {
            groups,
            processors: processors.map(whole_processors).transpose()?,
            scope: self.bounds(request, |means| means == Means::Scope) != Bounds::default(),
            memory: self.bounds(request, |means| means == Means::Watchdog).memory,
            // The first process of the sandbox is of the same user.
            user_processes: user_limit.map(|pids| pids + 1),
            watched_memory: limits.memory.filter(|_| default(Promise::Memory)).map(|size| size.bytes()),
            watched_processes: default_pids.filter(|_| !self.user_limit),
        })
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
    // The program that makes the scope executes it, and this process waits for the gate.
    args.push(gate.file_for_descendants().display().to_string());
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
            file: "/opt/ringfence".into(),
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
