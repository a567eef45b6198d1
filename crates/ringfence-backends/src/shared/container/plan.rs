//! Plan and survey → the body of a container, and what its gate is told. Pure.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigLogConfig, Mount, MountBindOptions, MountType,
};
use ringfence_core::backend::LaunchError;
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::paths::GUEST_HOME;
use ringfence_core::plan::{GuestFile, Request};
use ringfence_core::policy::{NetworkMode, WorkspaceAccess};
use ringfence_linux::{Access, Base, Grant, Sandbox, Step, Walls};

use super::Flavor;
use super::config::NetworkChoice;
use super::engine::Facts;
use super::room::{self, Room};
use crate::shared::covers::{Cover, Shown, covers, shown};
use crate::shared::means::whole_processors;
use crate::shared::survey::Survey;
use crate::shared::{repositories, run};

/// Where the gate is inside.
pub(super) const GATE: &str = "/.ringfence/gate";
/// Where it reaches the host.
pub(super) const SOCKET: &str = "/.ringfence/gate.sock";
/// What says that a container is ours, of which run and of which installation.
pub(super) const LABEL_RUN: &str = "ringfence.run";
pub(super) const LABEL_OWNER: &str = "ringfence.owner";
/// Where programs are if the image does not say.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Processes of ours in a container: the gate, and the one that it starts the program by.
const OUR_PROCESSES: u32 = 2;
/// What private places that nobody asked for may take.
const SMALL: u64 = 1 << 20;

/// What nobody inside needs to see of the kernel, and the image's own passwords: number 0 inside is their owner.
const MASKED: [&str; 21] = [
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/shadow",
    "/etc/shadow-",
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/sys/block",
    "/sys/bus",
    "/sys/class",
    "/sys/devices",
    "/sys/firmware",
    "/sys/kernel",
    "/sys/module",
    "/sys/power",
];

/// Who the program is inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// How the engine is told to map it, if it is.
    pub(super) userns: Option<&'static str>,
}

/// All that a container is made of.
pub(super) struct Parts<'a> {
    pub(super) request: &'a Request,
    pub(super) survey: &'a Survey,
    /// What is seen of the host, and what of it is covered.
    pub(super) seen: Vec<Shown>,
    pub(super) covers: Vec<Cover>,
    pub(super) room: &'a Room,
    pub(super) gate: &'a Path,
    /// With its digest.
    pub(super) image: &'a str,
    /// The places of the image that the engine gives a file system of their own.
    pub(super) volumes: &'a [String],
    /// Whether the image has a program of its own that looks after it.
    pub(super) has_health_check: bool,
    pub(super) network: &'a NetworkChoice,
    pub(super) user: User,
    pub(super) flavor: Flavor,
    pub(super) facts: &'a Facts,
    /// The state directory of the installation.
    pub(super) owner: &'a Path,
}

impl Parts<'_> {
    /// Whether all paths can be told to the engine just as they are, and the workspace has a place of its own inside.
    pub(super) fn check(&self) -> Result<(), LaunchError> {
        let refused =
            |message: String| Err(LaunchError::Runtime(Failure::new(FailureClass::Refused, message)));
        let workspace = self.request.workspace.guest().as_path();
        if let Some(place) =
            PRIVATE.iter().chain([&GATE]).find(|place| Path::new(place).starts_with(workspace))
        {
            return refused(format!(
                "a workspace cannot be at {} inside, where {place} is",
                workspace.display()
            ));
        }
        let shown = self.seen.iter().flat_map(|shown| [&shown.source, &shown.target]);
        if let Some(link) =
            self.covers.iter().find(|cover| self.survey.links.iter().any(|link| link == cover.source()))
        {
            let message = format!(
                "{} is a symbolic link, which {} cannot protect",
                link.source().display(),
                self.flavor.name
            );
            return Err(LaunchError::Runtime(Failure::new(FailureClass::Refused, message).with_remedy(
                "put what it leads to in its place, or take it out of `files.protect` with a policy of your own",
            )));
        }
        let covered = self.covers.iter().map(Cover::target);
        for path in shown.map(PathBuf::as_path).chain(covered) {
            let Some(text) = path.to_str() else {
                return refused(format!("{} is no valid UTF-8, and cannot be mounted", path.display()));
            };
            let unsafe_here =
                |c: char| c.is_control() || (self.flavor.joins_options && matches!(c, ',' | '"'));
            if let Some(bad) = text.chars().find(|c| unsafe_here(*c)) {
                let name = self.flavor.name;
                return refused(format!("{name} cannot mount {text:?}: its name has {bad:?} in it"));
            }
        }
        for volume in self.volumes {
            if Path::new(volume).starts_with(workspace) {
                return refused(format!("the image has a volume at {volume}, inside of the workspace"));
            }
        }
        Ok(())
    }

    /// What the engine is asked for.
    pub(super) fn body(&self) -> ContainerCreateBody {
        let Self { request, user, .. } = self;
        let limits = &request.policy.limits;
        let network = network_mode(self.network, request);
        let Facts { memory, cpus, pids, .. } = *self.facts;
        let memory = limits.memory.filter(|_| memory).map(|size| signed(size.bytes()));
        let pids = limits.pids.filter(|_| pids).map(|count| count.saturating_add(OUR_PROCESSES));
        let host = HostConfig {
            memory,
            // No swap besides.
            memory_swap: memory,
            nano_cpus: limits.cpus.filter(|_| cpus).map(|cpus| i64::from(cpus.millis()) * 1_000_000),
            pids_limit: pids.map(i64::from),
            mounts: Some(self.mounts()),
            tmpfs: Some(self.private_places()),
            extra_hosts: (!matches!(network.as_str(), "none" | "host"))
                .then(|| vec![format!("{}:host-gateway", self.flavor.host_name)]),
            network_mode: Some(network),
            cap_drop: Some(vec!["ALL".into()]),
            security_opt: Some(self.security()),
            masked_paths: (!self.flavor.mask_option).then(|| MASKED.map(str::to_owned).to_vec()),
            readonly_rootfs: Some(true),
            shm_size: limits.disk.map(|_| signed(SMALL)),
            ipc_mode: Some("private".into()),
            // What a run prints is nobody's business but the host's.
            log_config: Some(HostConfigLogConfig { typ: Some("none".into()), config: None }),
            userns_mode: user.userns.map(str::to_owned),
            ..HostConfig::default()
        };
        ContainerCreateBody {
            image: Some(self.image.to_owned()),
            hostname: Some("ringfence".into()),
            // Nothing of the image's runs beside the gate.
            healthcheck: self
                .has_health_check
                .then(|| HealthConfig { test: Some(vec!["NONE".into()]), ..HealthConfig::default() }),
            user: Some(format!("{}:{}", user.uid, user.gid)),
            working_dir: Some("/".into()),
            entrypoint: Some(vec![GATE.into()]),
            cmd: Some(vec![room::GATE_ARGUMENT.into(), SOCKET.into()]),
            labels: Some(HashMap::from([
                (LABEL_RUN.to_owned(), request.run.to_string()),
                (LABEL_OWNER.to_owned(), self.owner.display().to_string()),
            ])),
            network_disabled: self.is_alone().then_some(true),
            host_config: Some(host),
            ..ContainerCreateBody::default()
        }
    }

    /// With what the policy gives them: the home and `/tmp` half each; else half of the memory each, which counts as
    /// memory. Where the engine cannot say whose they are, they are open to the only user inside.
    fn private_places(&self) -> HashMap<String, String> {
        let limits = &self.request.policy.limits;
        let all = limits.disk.or(limits.memory).map(|size| size.bytes());
        let half = all.map(|all| all.saturating_sub(3 * SMALL) / 2);
        let User { uid, gid, .. } = self.user;
        let own = |mode: &str| match self.flavor.owned_memory {
            true => format!("{mode},uid={uid},gid={gid}"),
            // By its own words, and without what the image has there.
            false => format!("{mode},notmpcopyup,U"),
        };
        PRIVATE
            .map(|place| {
                let (mode, bytes) = match place {
                    GUEST_HOME => (own("0700"), half),
                    "/tmp" => ("1777".to_owned(), half),
                    "/var/tmp" => ("1777".to_owned(), Some(SMALL)),
                    _ => (own("0755"), Some(SMALL)),
                };
                let size = bytes.map(|bytes| format!(",size={bytes}")).unwrap_or_default();
                (place.to_owned(), format!("rw,exec,nosuid,nodev,mode={mode}{size}"))
            })
            .into()
    }

    fn security(&self) -> Vec<String> {
        let masks = self.flavor.mask_option.then(|| format!("mask={}", MASKED.join(":")));
        ["no-new-privileges".to_owned()].into_iter().chain(masks).collect()
    }

    fn mounts(&self) -> Vec<Mount> {
        let Self { seen, covers, .. } = self;
        let ours =
            [bind(self.gate, Path::new(GATE), false), bind(&self.room.socket(), Path::new(SOCKET), false)];
        let over = self.over().into_iter().enumerate();
        let over = over.map(|(index, (path, _))| bind(&self.room.file(index), &path, false));
        let held = covers.iter().map(|cover| match cover {
            Cover::Hold { source, target, write } => bind(source, target, *write),
            Cover::Hide { target, directory, .. } => bind(&self.room.nothing(*directory), target, false),
        });
        let git = self.git();
        let shown =
            seen.iter().chain(&git).map(|Shown { source, target, write, .. }| bind(source, target, *write));
        let all: Vec<Mount> = shown.chain(held).chain(over).chain(ours).collect();
        last_of_each(all)
    }

    /// What stands in the place of files of the image. Programs ask who they are, and no image knows every number.
    fn over(&self) -> Vec<(PathBuf, String)> {
        let User { uid, gid, .. } = self.user;
        let name = if uid == 0 { "root" } else { "agent" };
        let nobody = "nobody:x:65534:65534:nobody:/nonexistent:/bin/false";
        let users = format!("{name}:x:{uid}:{gid}:{name}:{GUEST_HOME}:/bin/sh\n{nobody}\n");
        let groups = format!("{name}:x:{gid}:\nnogroup:x:65534:\n");
        let hosts = self.is_alone().then(|| ("/etc/hosts".into(), HOSTS.to_owned()));
        let files = self.request.files.iter().filter(|file| file.over);
        files
            .map(|file| (file.path.clone(), file.text.clone()))
            .chain([("/etc/passwd".into(), users), ("/etc/group".into(), groups)])
            .chain(hosts)
            .collect()
    }

    /// Whether the engine has nothing to do with its network: there is loopback alone, which comes with the namespace.
    fn is_alone(&self) -> bool {
        self.flavor.bare_network && network_mode(self.network, self.request) == "none"
    }

    /// The texts over files of the image.
    pub(super) fn texts(&self) -> Vec<String> {
        self.over().into_iter().map(|(_, text)| text).collect()
    }

    /// What is mounted for private git directories.
    fn git(&self) -> Vec<Shown> {
        repositories::mounts(
            self.request,
            self.survey,
            &|number| self.room.git(number),
            repositories::Modules::Linked,
        )
    }

    /// What is covered on the host. A cover goes with the name that it is on.
    pub(super) fn covered(&self) -> Vec<PathBuf> {
        self.covers.iter().map(|cover| cover.source().to_owned()).collect()
    }

    /// What the gate has to bound, because the engine cannot: memory and processes.
    pub(super) fn watched(&self) -> (Option<u64>, Option<u32>) {
        let limits = &self.request.policy.limits;
        let memory = limits.memory.filter(|_| !self.facts.memory).map(|size| size.bytes());
        // The gate and the process that it starts the program by are of the same user.
        (memory, limits.pids.filter(|_| !self.facts.pids).map(|count| count.saturating_add(OUR_PROCESSES)))
    }

    /// What the gate builds: files in private places, and Landlock and seccomp on top.
    pub(super) fn sandbox(&self) -> Result<Sandbox, LaunchError> {
        let cpus = self.request.policy.limits.cpus.filter(|_| !self.facts.cpus);
        let processors = cpus.map(|cpus| whole_processors(cpus.millis())).transpose()?;
        let workspace = &self.request.workspace;
        let files = self.request.files.iter().filter(|file| !file.over);
        let write = self.request.policy.files.workspace == WorkspaceAccess::ReadWrite;
        let git = self.git();
        let written = self.seen.iter().chain(&git).filter(|shown| shown.write);
        let written = written.map(|shown| shown.target.clone());
        let private = PRIVATE.map(PathBuf::from).into_iter();
        // Not `/proc`, by which a run could change how the kernel treats its gate.
        let shared = ["/dev/shm", "/dev/mqueue", "/dev/pts"].map(PathBuf::from);
        let grants = written.chain(private).chain(shared).map(|path| Grant { path, access: Access::Write });
        let fixed = [("/dev", Access::Use), ("/", Access::Read)];
        let fixed = fixed.map(|(path, access)| Grant { path: path.into(), access });
        Ok(Sandbox {
            steps: files
                .map(|GuestFile { path, text, mode, .. }| Step::File {
                    target: path.clone(),
                    text: text.clone(),
                    mode: *mode,
                })
                .collect(),
            grants: grants.chain(fixed).collect(),
            cwd: workspace.guest().as_path().to_owned(),
            groups: Vec::new(),
            scope: false,
            processors,
            workspace: workspace.guest().as_path().to_owned(),
            workspace_id: None,
            identity: write.then_some(self.survey.identity),
            placeholders: Vec::new(),
            registered: None,
            doors: match network_mode(self.network, self.request).as_str() {
                "none" => run::doors(self.request),
                // In a network with others a door would be theirs too.
                _ => Vec::new(),
            },
            mounted: self
                .covers
                .iter()
                .map(Cover::target)
                .chain(git.iter().map(|shown| shown.target.as_path()))
                .map(Path::to_owned)
                .collect(),
        })
    }
}

/// What is seen of the host: what a mode with walls of its own shows, and what of it is covered.
pub(super) fn seen(request: &Request, survey: &Survey) -> (Vec<Shown>, Vec<Cover>) {
    let mut seen = shown(request, survey);
    if let (Some((at, _)), Some(workspace)) = (&survey.link_back, seen.last().cloned()) {
        seen.push(Shown { target: at.clone(), ..workspace });
    }
    let covers = covers(survey, &seen);
    (seen, covers)
}

/// The network of a run, in the engine's words.
pub(super) fn network_mode(network: &NetworkChoice, request: &Request) -> String {
    match (network, request.policy.network.mode) {
        (NetworkChoice::Named(name), _) => name.clone(),
        // Somebody asked for an open network and did not say which. One that is looked at goes through the gate.
        (NetworkChoice::Gate, NetworkMode::Open) if request.door.is_none() => "bridge".into(),
        (NetworkChoice::Gate, _) => "none".into(),
    }
}

/// What the gate begins with.
pub(super) fn base() -> Base {
    Base { walls: Walls::Given, own_network: false, size: String::new(), steps: Vec::new() }
}

/// The program as the gate is to find it, and its variables.
pub(super) fn command(
    request: &Request,
    own_program: &Path,
    image_env: &[String],
) -> (PathBuf, std::collections::BTreeMap<String, String>) {
    let name = request.argv.first().map(String::as_str).unwrap_or_default();
    let program = if Path::new(name) == own_program { GATE.into() } else { PathBuf::from(name) };
    let mut env = request.env.clone();
    let of_image = image_env.iter().find_map(|variable| variable.strip_prefix("PATH="));
    env.entry("PATH".into()).or_insert_with(|| of_image.unwrap_or(PATH).to_owned());
    (program, env)
}

/// What an engine writes where it has set up a network.
const HOSTS: &str = "127.0.0.1 localhost ringfence\n::1 localhost ip6-localhost ip6-loopback\n";

/// Empty places that can be written and go with the container.
const PRIVATE: [&str; 4] = ["/tmp", GUEST_HOME, "/var/tmp", "/run"];

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// A part of the host. What is below it in other file systems is not shown where it cannot be kept from being written.
fn bind(source: &Path, target: &Path, write: bool) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(source.display().to_string()),
        target: Some(target.display().to_string()),
        read_only: Some(!write),
        bind_options: Some(MountBindOptions { non_recursive: Some(!write), ..MountBindOptions::default() }),
        ..Mount::default()
    }
}

/// An engine takes one mount for a place: the last, as if each were laid over those before it.
fn last_of_each(all: Vec<Mount>) -> Vec<Mount> {
    let mut kept: Vec<Mount> = Vec::new();
    for mount in all.into_iter().rev() {
        if !kept.iter().any(|other| other.target == mount.target) {
            kept.push(mount);
        }
    }
    kept.reverse();
    kept
}
