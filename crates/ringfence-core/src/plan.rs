//! Policy + capabilities → plan, or a refusal. The only place where they meet, and pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use crate::capability::{Capabilities, Mechanism, Promise};
use crate::ids::RunId;
use crate::mode::Mode;
use crate::paths::{DirectoryId, HostPath, PathMapping};
use crate::policy::{HostRule, NetworkMode, Policy};

/// What is to be run.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The run.
    pub run: RunId,
    /// Where.
    pub mode: Mode,
    /// What it may do.
    pub policy: Policy,
    /// The limits of it that the mode chose, and nobody asked for. They never keep a run from starting.
    pub default_limits: BTreeSet<Promise>,
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// All variables that it sees.
    pub env: BTreeMap<String, String>,
    /// The workspace outside and inside.
    pub workspace: PathMapping,
    /// The workspace's directory when the work was accepted. Another one that has its name now is refused.
    pub workspace_id: DirectoryId,
    /// The directory for what it writes in the workspace, if that is not to go into the workspace itself.
    pub layer: Option<HostPath>,
    /// The directory for private git directories, if the run is to have them.
    pub git: Option<HostPath>,
    /// Files that govern the run: its policy, variables and settings. It cannot write them, wherever it sees them.
    pub governing: Vec<HostPath>,
    /// What it reads.
    pub stdin: Stdin,
    /// The hosts without which it cannot work.
    pub needed_hosts: Vec<HostRule>,
    /// The port of its own loopback at which it finds the broker, if it needs one.
    pub door: Option<u16>,
    /// Files that it finds, besides all others.
    pub files: Vec<GuestFile>,
}

/// A file that is made for a run.
#[derive(Clone, PartialEq, Eq)]
pub struct GuestFile {
    /// Where, as the run sees it.
    pub path: PathBuf,
    /// What it holds. No secret: the run reads it.
    pub text: String,
    /// Its permissions.
    pub mode: u32,
    /// Whether it stands in the place of a file of the system, instead of in a private place.
    pub over: bool,
}

impl fmt::Debug for GuestFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GuestFile({}, {} bytes)", self.path.display(), self.text.len())
    }
}

/// What a run reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Stdin {
    /// Nothing. Agent CLIs wait for the end of an open input, so they never get one.
    Empty,
    /// What `ringfence` itself reads.
    Inherit,
    /// What a person types, at a terminal of its own that also takes all that it prints.
    Terminal(TerminalSize),
}

/// How large a terminal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Characters of a line.
    pub columns: u16,
}

/// A policy that a mode can keep, in full.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// What is to be run; its policy is the effective one.
    pub request: Request,
    /// By what each promise is kept.
    pub mechanisms: BTreeMap<Promise, Mechanism>,
}

/// Why a run was not started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The mode has no mechanism for what the policy promises.
    #[error("mode {mode} cannot promise that {}", .promises.iter().map(|promise| promise.describe()).collect::<Vec<_>>().join(", that "))]
    CannotKeep {
        /// The mode.
        mode: Mode,
        /// What it cannot keep.
        promises: Vec<Promise>,
        /// What to change on this machine so that it can.
        hint: Option<String>,
    },
    /// Without a network the agent CLI cannot reach its model.
    #[error("the policy allows no network, and the agent needs {}", .hosts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))]
    NeedsNetwork {
        /// What it needs.
        hosts: Vec<HostRule>,
    },
}

impl Refusal {
    /// What to do about it.
    pub fn remedy(&self) -> String {
        match self {
            Refusal::CannotKeep { hint: Some(hint), .. } => {
                format!("{hint}; or choose another mode, or a policy that asks for less")
            }
            Refusal::CannotKeep { mode, .. } if !mode.isolates() => format!(
                "choose a mode with a boundary (`--mode`), or give up these promises knowingly with `--mode {mode} \
                 --policy open` and without limits that it cannot keep"
            ),
            Refusal::CannotKeep { .. } => {
                "choose another mode (`ringfence sandbox doctor` lists them) or a policy that asks for less"
                    .into()
            }
            Refusal::NeedsNetwork { .. } => "use a policy with `network.mode` set to `allow`".into(),
        }
    }
}

/// Whether the mode can keep all of the policy.
pub fn resolve(mut request: Request, capabilities: &Capabilities) -> Result<Plan, Refusal> {
    match request.policy.network.mode {
        NetworkMode::None if !request.needed_hosts.is_empty() => {
            return Err(Refusal::NeedsNetwork { hosts: request.needed_hosts });
        }
        NetworkMode::Allow => request.policy.network.allow.extend(request.needed_hosts.iter().cloned()),
        NetworkMode::None | NetworkMode::Open => {}
    }
    let mut mechanisms = BTreeMap::new();
    let mut missing = Vec::new();
    let layer = request.layer.is_some();
    let uncounted = request.policy.network.mode == NetworkMode::Open;
    let promises = request.policy.promises().into_iter().chain(layer.then_some(Promise::WorkspaceUntouched));
    for promise in promises {
        let mechanism = match request.default_limits.contains(&promise) {
            true => capabilities.default_mechanism(promise),
            false => capabilities.mechanism(promise),
        };
        match mechanism {
            // Nothing bounds a layer.
            Some(_) if layer && promise == Promise::Disk => missing.push(promise),
            // What does not pass the broker is not counted.
            Some(_) if uncounted && promise == Promise::Budget => missing.push(promise),
            Some(mechanism) => drop(mechanisms.insert(promise, mechanism.clone())),
            None => missing.push(promise),
        }
    }
    if missing.is_empty() {
        Ok(Plan { request, mechanisms })
    } else {
        let hint = capabilities.hint().map(str::to_owned);
        Err(Refusal::CannotKeep { mode: request.mode, promises: missing, hint })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::{Refusal, Request, Stdin, resolve};
    use crate::capability::{Capabilities, Promise};
    use crate::mode::Mode;
    use crate::paths::{DirectoryId, HostPath, PathMapping, PathMappingMode};
    use crate::policy::{NetworkMode, Policy, Preset};

    fn request(policy: Policy) -> Request {
        Request {
            run: "r1".parse().unwrap(),
            mode: Mode::Host,
            policy,
            default_limits: BTreeSet::new(),
            argv: vec!["true".into()],
            env: BTreeMap::new(),
            workspace: PathMapping::new(PathMappingMode::SamePath, HostPath::new("/w").unwrap()),
            workspace_id: DirectoryId { device: 1, inode: 1 },
            layer: None,
            git: None,
            governing: Vec::new(),
            stdin: Stdin::Empty,
            needed_hosts: Vec::new(),
            door: None,
            files: Vec::new(),
        }
    }

    fn all_of(policy: &Policy) -> Capabilities {
        policy
            .promises()
            .into_iter()
            .chain([Promise::NetworkAllow])
            .map(|promise| (promise, "test"))
            .collect()
    }

    #[test]
    fn a_policy_holds_when_every_promise_has_a_mechanism() {
        let policy = Preset::Locked.policy();
        let plan = resolve(request(policy.clone()), &all_of(&policy)).unwrap();
        assert_eq!(plan.mechanisms.keys().copied().collect::<Vec<_>>(), Vec::from_iter(policy.promises()));
    }

    #[test]
    fn one_missing_mechanism_is_enough_to_refuse() {
        let policy = Preset::Standard.policy();
        for left_out in policy.promises() {
            let capabilities =
                policy.promises().into_iter().filter(|p| *p != left_out).map(|p| (p, "test")).collect();
            let refusal = resolve(request(policy.clone()), &capabilities).unwrap_err();
            assert_eq!(
                refusal,
                Refusal::CannotKeep { mode: Mode::Host, promises: vec![left_out], hint: None }
            );
        }
    }

    #[test]
    fn needed_hosts_join_the_allow_list_and_contradict_none() {
        let mut policy = Preset::Standard.policy();
        let mut asked = request(policy.clone());
        asked.needed_hosts = vec!["api.example.com".parse().unwrap()];
        let plan = resolve(asked.clone(), &all_of(&policy)).unwrap();
        assert_eq!(plan.request.policy.network.allow, asked.needed_hosts);

        policy.network.mode = NetworkMode::None;
        asked.policy = policy.clone();
        assert!(matches!(resolve(asked, &all_of(&policy)), Err(Refusal::NeedsNetwork { .. })));
    }

    #[test]
    fn a_layer_is_a_promise_and_has_no_bounds() {
        let mut policy = Preset::Standard.policy();
        let mut asked = request(policy.clone());
        asked.layer = Some(HostPath::new("/l").unwrap());
        let refusal = resolve(asked.clone(), &all_of(&policy)).unwrap_err();
        assert_eq!(
            refusal,
            Refusal::CannotKeep { mode: Mode::Host, promises: vec![Promise::WorkspaceUntouched], hint: None }
        );
        policy.limits.disk = Some(crate::units::MemorySize::from_bytes(1 << 20));
        asked.policy = policy.clone();
        let can = policy.promises().into_iter().chain([Promise::WorkspaceUntouched]);
        let refusal = resolve(asked, &can.map(|promise| (promise, "test")).collect()).unwrap_err();
        assert_eq!(
            refusal,
            Refusal::CannotKeep { mode: Mode::Host, promises: vec![Promise::Disk], hint: None }
        );
    }

    #[test]
    fn the_refusal_tells_what_and_what_to_do() {
        let refusal = Refusal::CannotKeep { mode: Mode::Host, promises: vec![Promise::Pids], hint: None };
        assert_eq!(refusal.to_string(), "mode host cannot promise that processes are bounded");
        assert!(refusal.remedy().contains("--mode"));
    }
}
