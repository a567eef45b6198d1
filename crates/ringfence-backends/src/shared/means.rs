//! By what memory, processes and processors are bounded.

use ringfence_core::backend::LaunchError;
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_linux::Version;

/// By what something is bounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Means {
    Group(Version),
    Scope,
    /// A limit of the user in the sandbox's own user namespace.
    UserLimit,
    /// Only some processors to run on, and no way to choose others.
    Affinity,
    /// A limit of each process, and a look at all of them from time to time.
    Watchdog,
}

impl Means {
    /// For the record.
    pub(crate) fn describe(self) -> String {
        match self {
            Means::Group(Version::V1) => "cgroup v1".into(),
            Means::Group(Version::V2) => "cgroup v2".into(),
            Means::Scope => "systemd user scope".into(),
            Means::UserLimit => "rlimit nproc in the user namespace".into(),
            Means::Affinity => "processor affinity, kept by seccomp".into(),
            Means::Watchdog => "rlimit data for each process, watchdog over all of them".into(),
        }
    }
}

/// So many processors, where only whole ones can be given.
pub(crate) fn whole_processors(millis: u32) -> Result<u32, LaunchError> {
    if millis.is_multiple_of(1000) {
        return Ok(millis / 1000);
    }
    let cpus = f64::from(millis) / 1000.0;
    let message = format!("{cpus} cpus cannot be had here, only whole ones: there is no control group");
    let failure = Failure::new(FailureClass::Refused, message);
    Err(LaunchError::Runtime(failure.with_remedy("name a whole number with --cpus")))
}
