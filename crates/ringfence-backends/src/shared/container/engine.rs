//! The engine's API, and its complaints as classes.
#![expect(clippy::disallowed_methods, reason = "files of the state directory and sockets of engines")]

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::errors::Error;
use bollard::models::{ContainerCreateBody, ContainerState, ContainerSummary, ImageInspect, ImageSummary};
use bollard::query_parameters::{
    BuildImageOptionsBuilder, CreateContainerOptionsBuilder, CreateImageOptionsBuilder,
    InspectContainerOptions, ListContainersOptionsBuilder, ListImagesOptionsBuilder,
    RemoveContainerOptionsBuilder, RemoveImageOptions, StartContainerOptions, WaitContainerOptions,
};
use bollard::{ClientVersion, Docker, body_full, body_try_stream};
use bytes::Bytes;
use futures_util::{Stream, StreamExt, TryStreamExt};
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_linux::{Controller, Version};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;

use super::{Endpoint, Flavor};
use crate::shared::means::Means;
use crate::shared::probing;
use crate::shared::waiting::pause;

/// How long an engine may take for one answer. Making a container on a busy machine takes seconds.
const PATIENCE: u64 = 120;
/// How long it may take to say who it is.
const GREETING: Duration = Duration::from_secs(10);

/// How often it is tried to take away what is ending, and how long to wait in between.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(250);
/// How long making an image may take.
const LONG_WORK: Duration = Duration::from_secs(3600);

/// A connection to an engine.
pub(super) struct Engine {
    runtime: Runtime,
    docker: Docker,
    flavor: Flavor,
    pub(super) endpoint: Endpoint,
    pub(super) facts: Facts,
}

/// What is remembered of an engine, as long as its socket is the same one.
#[derive(Serialize, Deserialize)]
struct Memory {
    /// Its socket: device, number, time of its last change.
    socket: (u64, u64, i64),
    at: u64,
    facts: Facts,
}

/// How long something is remembered, in seconds.
const MEMORY: u64 = 3600;

impl Memory {
    fn file(state: &Path, socket: &Path) -> PathBuf {
        let name: String =
            socket.display().to_string().chars().map(|c| if c.is_alphanumeric() { c } else { '-' }).collect();
        state.join("engines").join(format!("{name}.json"))
    }

    fn identity(socket: &Path) -> Option<(u64, u64, i64)> {
        let data = std::fs::metadata(socket).ok()?;
        Some((data.dev(), data.ino(), data.ctime()))
    }

    fn now() -> u64 {
        std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs())
    }

    fn recall(file: &Path, socket: &Path) -> Option<Facts> {
        let memory: Self = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
        let fresh = Self::now().checked_sub(memory.at).is_some_and(|age| age < MEMORY);
        (fresh && Self::identity(socket)? == memory.socket).then_some(memory.facts)
    }

    /// What cannot be kept is asked again.
    fn keep(file: &Path, engine: &Engine) {
        let Some(socket) = Self::identity(&engine.endpoint.socket) else { return };
        let memory = Self { socket, at: Self::now(), facts: engine.facts.clone() };
        let Ok(text) = serde_json::to_vec(&memory) else { return };
        let directory = file.parent().unwrap_or(Path::new("/"));
        let aside = file.with_extension(format!("{}", std::process::id()));
        let kept = std::fs::create_dir_all(directory)
            .and_then(|()| std::fs::File::create(&aside))
            .and_then(|mut new| io::Write::write_all(&mut new, &text))
            .and_then(|()| std::fs::rename(&aside, file));
        if kept.is_err() {
            let _ = std::fs::remove_file(aside);
        }
    }
}

/// What an engine says of itself.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Facts {
    /// Its own name for itself.
    pub(super) id: String,
    /// Where it keeps images and containers.
    pub(super) root: Option<PathBuf>,
    pub(super) version: String,
    pub(super) api: String,
    /// Whether it runs as a person.
    pub(super) rootless: bool,
    /// Whether it gives containers other users than those of the machine.
    pub(super) remaps: bool,
    /// Those of its control groups that bound something.
    pub(super) memory: bool,
    pub(super) cpus: bool,
    pub(super) pids: bool,
    /// `1` or `2`.
    pub(super) cgroups: String,
}

impl Facts {
    /// By what something is bounded: by the engine, or else by the gate. The person's own number inside has its own user
    /// namespace with a rootless engine, so its processes can be counted there.
    pub(super) fn means(&self, controller: Controller) -> Option<Means> {
        let version = if self.cgroups == "1" { Version::V1 } else { Version::V2 };
        let (engine, gate) = match controller {
            Controller::Memory => (self.memory, Some(Means::Watchdog)),
            Controller::Cpu => (self.cpus, Some(Means::Affinity)),
            Controller::Pids => {
                let counted = self.rootless && probing::kernel_is_at_least(5, 14);
                (self.pids, counted.then_some(Means::UserLimit))
            }
        };
        if engine { Some(Means::Group(version)) } else { gate }
    }
}

impl Engine {
    /// Connects, and trusts what the same engine said of itself a while ago: some take most of a second to say it.
    pub(super) fn known(flavor: Flavor, endpoint: Endpoint, state: &Path) -> Result<Self, Failure> {
        let file = Memory::file(state, &endpoint.socket);
        match Memory::recall(&file, &endpoint.socket) {
            Some(facts) => Self::with(flavor, endpoint, facts),
            None => {
                let engine = Self::connect(flavor, endpoint)?;
                Memory::keep(&file, &engine);
                Ok(engine)
            }
        }
    }

    /// The engine of which this is known.
    fn with(flavor: Flavor, endpoint: Endpoint, facts: Facts) -> Result<Self, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::new(FailureClass::Unknown, error.to_string()))?;
        let (major, minor) = facts.api.split_once('.').unwrap_or_default();
        let version = ClientVersion {
            major_version: major.parse().unwrap_or(1),
            minor_version: minor.parse().unwrap_or_default(),
        };
        let socket = endpoint.socket.display().to_string();
        let docker = Docker::connect_with_unix(&socket, PATIENCE, &version);
        let docker = docker.map_err(|error| classify(&error, flavor, None))?;
        Ok(Self { runtime, docker, flavor, endpoint, facts })
    }

    /// Connects, and asks who answers.
    pub(super) fn connect(flavor: Flavor, endpoint: Endpoint) -> Result<Self, Failure> {
        let down = |why: String| Failure::new(FailureClass::DaemonDown, why).with_remedy(flavor.remedy);
        reachable(&endpoint.socket).map_err(|error| {
            let message =
                format!("{} does not answer on {}: {error}", flavor.name, endpoint.socket.display());
            match error.kind() {
                io::ErrorKind::PermissionDenied => Failure::new(FailureClass::DaemonDown, message)
                    .with_remedy("join the group that may use the socket, or use a rootless engine"),
                _ => down(message),
            }
        })?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| down(error.to_string()))?;
        let socket = endpoint.socket.display().to_string();
        let asked = runtime.block_on(async {
            let greet = async {
                let docker = Docker::connect_with_unix(&socket, PATIENCE, bollard::API_DEFAULT_VERSION)?;
                let docker = docker.negotiate_version().await?;
                let info = docker.info().await?;
                Ok::<_, Error>((docker, info))
            };
            tokio::time::timeout(GREETING, greet).await
        });
        let (docker, info) = match asked {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(classify(&error, flavor, None)),
            Err(_) => return Err(down(format!("{} is silent on {socket}", flavor.name))),
        };
        let options = info.security_options.unwrap_or_default();
        let has = |name: &str| options.iter().any(|option| option.split(',').any(|part| part == name));
        let cgroups = info.cgroup_version.map(|version| version.to_string()).unwrap_or_default();
        let owner = std::fs::metadata(&endpoint.socket).map_or(0, |data| data.uid());
        let rootless = owner != 0 || has("name=rootless");
        let can = |controller: &str, says: Option<bool>| {
            says.unwrap_or_default() && (!rootless || delegated(owner, controller))
        };
        let facts = Facts {
            id: info.id.unwrap_or_default(),
            root: info.docker_root_dir.map(PathBuf::from),
            version: info.server_version.unwrap_or_default(),
            api: docker.client_version().to_string(),
            rootless,
            remaps: has("name=userns"),
            memory: can("memory", info.memory_limit),
            cpus: can("cpu", info.cpu_cfs_quota),
            pids: can("pids", info.pids_limit),
            cgroups,
        };
        Ok(Self { runtime, docker, flavor, endpoint, facts })
    }

    fn ask<T>(
        &self,
        what: impl Future<Output = Result<T, Error>>,
        image: Option<&str>,
    ) -> Result<T, Failure> {
        self.runtime.block_on(what).map_err(|error| classify(&error, self.flavor, image))
    }

    /// What an image is.
    pub(super) fn image(&self, name: &str) -> Result<ImageInspect, Failure> {
        let asked = self.ask(self.docker.inspect_image(name), Some(name));
        match asked {
            // One engine puts what was built here under a host of its own.
            Err(Failure { class: FailureClass::ImageMissing, .. }) => {
                let local = self.ask(self.docker.inspect_image(&format!("localhost/{name}")), None);
                local.or(asked)
            }
            asked => asked,
        }
    }

    /// Makes a container and starts it. If its gate comes to the listener before the engine says that it runs, nobody waits for
    /// the engine, which writes down a lot before it answers.
    pub(super) fn start(
        &self,
        name: &str,
        body: ContainerCreateBody,
        listener: &UnixListener,
    ) -> Result<Option<UnixStream>, Failure> {
        let image = body.image.clone();
        let options = CreateContainerOptionsBuilder::default().name(name).build();
        self.ask(self.docker.create_container(Some(options), body), image.as_deref())?;
        let (docker, name) = (self.docker.clone(), name.to_owned());
        // It is listened to as long as this engine is known: one that is hung up on might not finish.
        let starting = self
            .runtime
            .spawn(async move { docker.start_container(&name, None::<StartContainerOptions>).await });
        let started = async {
            tokio::select! {
                biased;
                Ok(control) = first_to_come(listener) => Ok(Some(control)),
                Ok(answer) = starting => answer.map(|()| None),
                else => Ok(None),
            }
        };
        self.ask(started, image.as_deref())
    }

    /// How a container is; `None` if there is none of this name.
    pub(super) fn state(&self, name: &str) -> Result<Option<ContainerState>, Failure> {
        let inspected = self.settled(|| {
            self.runtime.block_on(self.docker.inspect_container(name, None::<InspectContainerOptions>))
        });
        match inspected {
            Ok(found) => Ok(Some(found.state.unwrap_or_default())),
            Err(Error::DockerResponseServerError { status_code: 404, .. }) => Ok(None),
            Err(error) => Err(classify(&error, self.flavor, None)),
        }
    }

    /// Waits until a container has ended, or so long.
    pub(super) fn wait_for_end(&self, name: &str, patience: Duration) {
        let mut ends = std::pin::pin!(self.docker.wait_container(name, None::<WaitContainerOptions>));
        let _ = self.runtime.block_on(async { tokio::time::timeout(patience, ends.next()).await });
    }

    /// Makes an image of a root file system. Its number.
    pub(super) fn import(&self, archive: Box<dyn Read + Send>, image: &str) -> Result<String, Failure> {
        let (repo, tag) = match image.rsplit_once(':') {
            Some((repo, tag)) if !tag.contains('/') => (repo, tag),
            _ => (image, "latest"),
        };
        let options = CreateImageOptionsBuilder::default().from_src("-").repo(repo).tag(tag).build();
        let docker = self.docker.clone().with_timeout(LONG_WORK);
        let told = docker.create_image(Some(options), Some(body_try_stream(chunks(archive))), None);
        self.ask(told.try_for_each(async |_| Ok(())), Some(image))?;
        Ok(self.image(image)?.id.unwrap_or_default().trim_start_matches("sha256:").to_owned())
    }

    /// Builds an image.
    pub(super) fn build(
        &self,
        context: Vec<u8>,
        image: &str,
        arguments: &BTreeMap<String, String>,
        tell: &mut dyn FnMut(&str),
    ) -> Result<(), Failure> {
        let arguments: HashMap<String, String> =
            arguments.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let options = BuildImageOptionsBuilder::default().t(image).rm(true).forcerm(true);
        let options = options.buildargs(&arguments).build();
        let docker = self.docker.clone().with_timeout(LONG_WORK);
        let told = docker.build_image(options, None, Some(body_full(context.into())));
        let mut told = std::pin::pin!(told);
        let follow = async {
            while let Some(info) = told.try_next().await? {
                let line = info.stream.or(info.status).unwrap_or_default();
                line.lines().filter(|line| !line.trim().is_empty()).for_each(&mut *tell);
            }
            Ok(())
        };
        self.ask(follow, Some(image))
    }

    /// The containers that have this label, running or not.
    pub(super) fn containers(&self, label: &str) -> Result<Vec<ContainerSummary>, Failure> {
        let filters = HashMap::from([("label", vec![label])]);
        let options = ListContainersOptionsBuilder::default().all(true).size(true).filters(&filters).build();
        let list = || self.runtime.block_on(self.docker.list_containers(Some(options.clone())));
        self.settled(list).map_err(|error| classify(&error, self.flavor, None))
    }

    /// Asks again while a container is between its end and what the engine makes of it: podman then names a state that the
    /// engine's API does not have.
    fn settled<T>(&self, ask: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
        let mut answer = ask();
        for _ in 0..TRIES {
            match answer {
                Err(error) if error.to_string().contains("unknown variant `stopped`") => {}
                other => return other,
            }
            pause(PAUSE);
            answer = ask();
        }
        answer
    }

    /// The images that have this label and no name any more.
    pub(super) fn unnamed_images(&self, label: &str) -> Result<Vec<ImageSummary>, Failure> {
        let filters = HashMap::from([("label", vec![label]), ("dangling", vec!["true"])]);
        let options = ListImagesOptionsBuilder::default().filters(&filters).build();
        self.ask(self.docker.list_images(Some(options)), None)
    }

    /// Takes an image away. One that something still uses stays, and that is an error.
    pub(super) fn remove_image(&self, id: &str) -> Result<(), Failure> {
        self.ask(self.docker.remove_image(id, None::<RemoveImageOptions>, None), Some(id)).map(drop)
    }

    /// The same for one that is just ending, which not every engine takes away at once.
    pub(super) fn remove_patiently(&self, name: &str) -> Result<bool, Failure> {
        let mut removed = self.remove(name);
        for _ in 0..TRIES {
            match removed {
                Err(Failure { class: FailureClass::Unknown, .. }) => {}
                done => return done,
            }
            pause(PAUSE);
            removed = self.remove(name);
        }
        removed
    }

    /// Ends a container and takes it away. One that is not there is as good; whether there was one.
    pub(super) fn remove(&self, name: &str) -> Result<bool, Failure> {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        match self.runtime.block_on(self.docker.remove_container(name, Some(options))) {
            Ok(()) => Ok(true),
            Err(Error::DockerResponseServerError { status_code: 404, .. }) => Ok(false),
            // Somebody else is doing it.
            Err(Error::DockerResponseServerError { status_code: 409, message })
                if message.contains("already in progress") =>
            {
                Ok(true)
            }
            Err(error) => Err(classify(&error, self.flavor, None)),
        }
    }
}

/// A reader in pieces.
fn chunks(mut reader: Box<dyn Read + Send>) -> impl Stream<Item = io::Result<Bytes>> {
    let next = move || {
        let mut buffer = vec![0; 256 << 10];
        match reader.read(&mut buffer) {
            Ok(0) => None,
            Ok(count) => {
                buffer.truncate(count);
                Some(Ok(buffer.into()))
            }
            Err(error) => Some(Err(error)),
        }
    };
    futures_util::stream::iter(std::iter::from_fn(next))
}

/// Whether systemd lets a person's own engine use a controller. Engines claim it whether or not.
fn delegated(user: u32, controller: &str) -> bool {
    let file = format!("/sys/fs/cgroup/user.slice/user-{user}.slice/user@{user}.service/cgroup.controllers");
    let controllers = std::fs::read_to_string(file).unwrap_or_default();
    controllers.split_whitespace().any(|name| name == controller)
}

/// Whether anybody listens there, told apart from whether one may speak to it.
fn reachable(socket: &Path) -> io::Result<()> {
    std::os::unix::net::UnixStream::connect(socket).map(drop)
}

/// What an engine's answer means. The number decides where there is one; words only where the number says too little.
fn classify(error: &Error, flavor: Flavor, image: Option<&str>) -> Failure {
    match error {
        Error::DockerResponseServerError { status_code, message } => {
            of_answer(*status_code, message.trim(), flavor, image)
        }
        Error::RequestTimeoutError => {
            Failure::new(FailureClass::DaemonDown, format!("{} did not answer in time", flavor.name))
                .with_remedy(flavor.remedy)
        }
        Error::IOError { .. }
        | Error::HyperResponseError { .. }
        | Error::HyperLegacyError { .. }
        | Error::SocketNotFoundError(_) => {
            Failure::new(FailureClass::DaemonDown, format!("{} was lost: {error}", flavor.name))
                .with_remedy(flavor.remedy)
        }
        _ => Failure::new(FailureClass::Unknown, format!("{} answered strangely: {error}", flavor.name)),
    }
}

fn of_answer(status: u16, message: &str, flavor: Flavor, image: Option<&str>) -> Failure {
    let words = message.to_ascii_lowercase();
    let says = |any: &[&str]| any.iter().any(|part| words.contains(part));
    let image = image.unwrap_or("the image");
    let name = flavor.name;
    if says(&["invalid reference format", "invalid image name", "unknown transport", "must be lowercase"]) {
        return Failure::new(
            FailureClass::Refused,
            format!("{name} does not take `{image}` as a name of an image"),
        )
        .with_remedy(format!("set `sandbox.{}.image`", flavor.mode));
    }
    if says(&[
        "no such image",
        "pull access denied",
        "manifest unknown",
        "image not known",
        "unable to find image",
    ]) {
        return Failure::new(FailureClass::ImageMissing, format!("the image `{image}` is not there"))
            .with_remedy(format!(
                "build it with `ringfence sandbox build-image --mode {}`, or set `sandbox.{}.image`",
                flavor.mode, flavor.mode
            ));
    }
    if says(&["executable file not found", "no such file or directory: unknown", "exec format error"]) {
        return Failure::new(FailureClass::CliMissing, format!("{name} cannot start the gate: {message}"));
    }
    if says(&[
        "cannot connect to the docker daemon",
        "permission denied while trying to connect",
        "daemon is not running",
    ]) {
        return Failure::new(FailureClass::DaemonDown, format!("{name} is down: {message}"))
            .with_remedy(flavor.remedy);
    }
    let class = match status {
        401 | 403 => FailureClass::Refused,
        400 => FailureClass::Refused,
        502..=504 => FailureClass::DaemonDown,
        _ => FailureClass::Unknown,
    };
    Failure::new(class, format!("{name} said no ({status}): {message}"))
}

/// The first who comes to a listener.
async fn first_to_come(listener: &UnixListener) -> io::Result<UnixStream> {
    let listener = listener.try_clone()?;
    listener.set_nonblocking(true)?;
    let (stream, _) = tokio::net::UnixListener::from_std(listener)?.accept().await?;
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use ringfence_core::failure::FailureClass;
    use ringfence_core::mode::Mode;

    use super::of_answer;
    use crate::shared::container::{Flavor, endpoint};

    const FLAVOR: Flavor = Flavor {
        mode: Mode::Docker,
        name: "Docker",
        endpoint: |_| endpoint("unix:///x", "a test"),
        remedy: "start it",
        keep_id: None,
        host_name: "host",
        mask_option: false,
        owned_memory: true,
        bare_network: true,
        joins_options: false,
    };

    /// What engines have said over the years, and what they say now.
    #[test]
    fn old_and_new_words_have_the_same_class() {
        for (status, words, class) in [
            (404, "No such image: x:latest", FailureClass::ImageMissing),
            (404, "no such image: x: image not known", FailureClass::ImageMissing),
            (
                404,
                "pull access denied for x, repository does not exist or may require 'docker login'",
                FailureClass::ImageMissing,
            ),
            (404, "manifest unknown: manifest unknown", FailureClass::ImageMissing),
            (400, "invalid reference format: repository name must be lowercase", FailureClass::Refused),
            (
                400,
                "invalid reference format: repository name (openTiger/worker) must be lowercase",
                FailureClass::Refused,
            ),
            (500, "Invalid image name \"openTiger/worker:latest\", unknown transport", FailureClass::Refused),
            (
                400,
                "OCI runtime create failed: exec: \"x\": executable file not found in $PATH: unknown",
                FailureClass::CliMissing,
            ),
            (
                500,
                "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
                FailureClass::DaemonDown,
            ),
            (
                500,
                "permission denied while trying to connect to the Docker daemon socket",
                FailureClass::DaemonDown,
            ),
            (
                500,
                "permission denied while trying to connect to the docker API at unix:///var/run/docker.sock",
                FailureClass::DaemonDown,
            ),
            (503, "the service is starting", FailureClass::DaemonDown),
            (401, "unauthorized: authentication required", FailureClass::Refused),
            (403, "authorization denied by plugin", FailureClass::Refused),
            (
                400,
                "client version 1.41 is too old. Minimum supported API version is 1.44",
                FailureClass::Refused,
            ),
            (409, "Conflict. The container name is already in use", FailureClass::Unknown),
            (500, "something that nobody has seen before", FailureClass::Unknown),
        ] {
            assert_eq!(of_answer(status, words, FLAVOR, Some("x")).class, class, "{words}");
        }
    }
}
