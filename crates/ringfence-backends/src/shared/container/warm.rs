//! Containers that were started before anybody asked for them: nothing of any run has ever been in one.
//!
//! One process keeps them for a workspace and a mode, as many as `sandbox.warm` says, and hands them over with their
//! gates. A container fits only a run that would have got the very same: the same body, from the same files. What does
//! not fit is given up, and the next run brings its own pattern.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use bollard::models::ContainerCreateBody;
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::mode::Mode;
use ringfence_gate::{receive, send};
use ringfence_linux::{Placeholder, StandIns};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::driver::accept;
use super::engine::Engine;
use super::room::{Note, Room};
use super::{Endpoint, Flavor};
use crate::Surroundings;

/// The argument that makes our binary the keeper.
const ARGUMENT: &str = "__warm";
/// Where keepers listen, in the state directory.
const PLACE: &str = "warm";
/// A keeper whom nobody asks for so long goes, with all that it keeps.
const IDLE: Duration = Duration::from_secs(600);
/// How long a keeper may take to answer. It may just be making one.
const PATIENCE: Duration = Duration::from_millis(50);
/// What stands for the room and for the run in a pattern.
const ROOM: &str = "@ROOM@";
const RUN: &str = "@RUN@";

/// What containers of one kind are made of.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Pattern {
    mode: Mode,
    socket: PathBuf,
    /// The body of the container, as JSON with gaps.
    body: String,
    /// Which files its mounts lead to.
    files: Vec<(u64, u64)>,
    /// How many texts it sees over the image's files and over the workspace's.
    texts: (usize, usize),
    workspace: PathBuf,
    placeholders: Vec<Placeholder>,
    count: u32,
}

/// A container that was handed over, with the connection to its gate.
pub(super) struct Handed {
    pub(super) name: String,
    pub(super) room: Room,
    pub(super) control: UnixStream,
}

#[derive(Serialize, Deserialize)]
struct Answer {
    name: String,
    room: PathBuf,
}

impl Pattern {
    /// Of a run that is about to get a container of its own.
    pub(super) fn of(
        flavor: Flavor,
        engine: &Engine,
        (body, room, run): (&ContainerCreateBody, &Room, &str),
        (note, texts): (&Note, (usize, usize)),
        count: u32,
    ) -> Option<Self> {
        let mut body = body.clone();
        let host = body.host_config.as_mut()?;
        // Mounts of one depth have no order.
        host.mounts.as_mut()?.sort_by(|one, other| one.target.cmp(&other.target));
        let sources = host.mounts.as_ref()?.iter().filter_map(|mount| mount.source.clone());
        let of_host = sources.filter(|source| !Path::new(source).starts_with(room.path()));
        let files = of_host.map(|source| fs::metadata(source).map(|data| (data.dev(), data.ino())).ok());
        let files = files.collect::<Option<_>>()?;
        let text = sorted(serde_json::to_value(&body).ok()?).to_string();
        Some(Self {
            mode: flavor.mode,
            socket: engine.endpoint.socket.clone(),
            body: text.replace(&room.path().display().to_string(), ROOM).replace(run, RUN),
            files,
            texts,
            workspace: note.workspace.clone(),
            placeholders: note.placeholders.clone(),
            count,
        })
    }

    fn key(&self) -> String {
        hash(&(&self.body, &self.files, self.texts, self.count))
    }

    /// Where its keeper listens: one for a workspace and a mode.
    fn place(&self, state: &Path) -> PathBuf {
        state.join(PLACE).join(format!("{}.sock", hash(&(&self.workspace, self.mode.as_str()))))
    }

    /// A container of this kind, if one waits.
    pub(super) fn take(&self, state: &Path) -> Option<Handed> {
        let keeper = UnixStream::connect(self.place(state)).ok()?;
        keeper.set_read_timeout(Some(PATIENCE)).ok()?;
        send(&keeper, &self.key(), None).ok()?;
        let (answer, control) = receive::<Option<Answer>>(&keeper).ok()??;
        let (Answer { name, room }, control) = (answer?, control?);
        let (_, lock) = receive::<()>(&keeper).ok()??;
        Some(Handed { name, room: Room::taken_over(room, File::from(lock?)), control: control.into() })
    }

    /// Starts a keeper for this kind, unless one is there. It outlives this process.
    pub(super) fn keep(&self, program: &Path, state: &Path) -> io::Result<()> {
        if UnixStream::connect(self.place(state)).is_ok() {
            return Ok(());
        }
        let pattern = serde_json::to_string(self)?;
        let mut command = Command::new(program);
        command.arg(ARGUMENT).current_dir("/").env_clear().env("RINGFENCE_HOME", state);
        let (read, mut write) = io::pipe()?;
        command.stdin(read).stdout(Stdio::null()).stderr(Stdio::null());
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.spawn()?;
        io::Write::write_all(&mut write, pattern.as_bytes())
    }
}

/// The same with the fields in the order of their names: maps have none.
fn sorted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields: BTreeMap<String, Value> =
                fields.into_iter().map(|(name, value)| (name, sorted(value))).collect();
            fields.into_iter().collect()
        }
        Value::Array(items) => items.into_iter().map(sorted).collect(),
        other => other,
    }
}

fn hash(value: &impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Keeps containers, as a process of its own, until nobody asks any more.
pub(crate) fn keep(pattern: &str, around: &Surroundings, flavors: &[Flavor]) -> Result<(), Failure> {
    let broken =
        |what: &str| Failure::new(FailureClass::Unknown, format!("containers cannot be kept: {what}"));
    let pattern: Pattern = serde_json::from_str(pattern).map_err(|error| broken(&error.to_string()))?;
    let flavor = flavors.iter().find(|flavor| flavor.mode == pattern.mode);
    let flavor = *flavor.ok_or_else(|| broken("there is no such mode"))?;
    let endpoint = Endpoint { socket: pattern.socket.clone(), source: "the run before".into() };
    let io = |error: io::Error| broken(&error.to_string());
    let place = pattern.place(&around.state);
    let directory = place.parent().map(Path::to_owned).unwrap_or_default();
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(io)?;
    let _ = fs::remove_file(&place);
    let listener = UnixListener::bind(&place).map_err(io)?;
    let mut stand_ins = StandIns::share(&pattern.workspace, &around.state.join("stand-ins")).map_err(io)?;
    stand_ins.answer_for(pattern.placeholders.clone());
    let engine = Engine::known(flavor, endpoint, &around.state)?;
    let mut keeper = Keeper { pattern, around: around.clone(), engine, waiting: Vec::new(), made: 0 };
    keeper.serve(&listener);
    Ok(())
}

struct Waiting {
    name: String,
    room: Room,
    control: UnixStream,
}

struct Keeper {
    pattern: Pattern,
    around: Surroundings,
    engine: Engine,
    waiting: Vec<Waiting>,
    made: u32,
}

impl Keeper {
    fn serve(&mut self, listener: &UnixListener) {
        loop {
            let full = self.waiting.len() >= self.pattern.count as usize;
            let patience = Timespec::try_from(if full { IDLE } else { Duration::ZERO }).ok();
            let asked = poll(&mut [PollFd::new(listener, PollFlags::IN)], patience.as_ref());
            match asked {
                Ok(0) if full => break self.leave(),
                Ok(0) => match self.make() {
                    Ok(one) => self.waiting.push(one),
                    Err(_) => break self.leave(),
                },
                Ok(_) => {
                    let Ok((stream, _)) = listener.accept() else { break self.leave() };
                    if !self.answer(&stream) {
                        break;
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => break self.leave(),
            }
        }
        for one in std::mem::take(&mut self.waiting) {
            self.give_up(one);
        }
    }

    /// Nobody finds this keeper any more.
    fn leave(&self) {
        let _ = fs::remove_file(self.pattern.place(&self.around.state));
    }

    fn give_up(&self, Waiting { name, mut room, control }: Waiting) {
        drop(control);
        if self.engine.remove(&name).is_err() {
            room.keep();
        }
    }

    /// Whether it goes on: a run that wants another kind brings its own keeper.
    fn answer(&mut self, stream: &UnixStream) -> bool {
        let _ = stream.set_read_timeout(Some(PATIENCE));
        let Ok(Some((key, _))) = receive::<String>(stream) else { return true };
        if key != self.pattern.key() {
            // Before the answer: whoever hears it starts another keeper there.
            self.leave();
            let _ = send(stream, &None::<Answer>, None);
            return false;
        }
        while let Some(one) = self.waiting.pop() {
            if !lives(&one.control) {
                self.give_up(one);
                continue;
            }
            let Waiting { name, mut room, control } = one;
            let answer = Some(Answer { name: name.clone(), room: room.path().to_owned() });
            let lock = room.lock();
            let handed = send(stream, &answer, Some(control.as_fd())).is_ok()
                && lock.is_some_and(|lock| send(stream, &(), Some(lock.as_fd())).is_ok());
            if handed {
                room.keep();
            } else {
                self.give_up(Waiting { name, room, control });
            }
            return true;
        }
        let _ = send(stream, &None::<Answer>, None);
        true
    }

    /// Makes one, whose gate waits.
    fn make(&mut self) -> Result<Waiting, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::new(FailureClass::Unknown, error.to_string());
        self.made += 1;
        let run = format!("warm-{}-{}", std::process::id(), self.made);
        let id = run.parse().map_err(|error| failed(&error))?;
        let room = Room::new(&self.around.state, &id).map_err(|error| failed(&error))?;
        let name = format!("ringfence-{run}");
        let Pattern { socket, workspace, placeholders, texts, .. } = &self.pattern;
        let note = Note {
            mode: self.pattern.mode,
            container: name.clone(),
            engine: socket.clone(),
            engine_id: self.engine.facts.id.clone(),
            workspace: workspace.clone(),
            placeholders: placeholders.clone(),
        };
        let empty = |count: usize| vec![String::new(); count];
        let furnished = room.note(&note).and_then(|()| room.furnish(&empty(texts.0), &empty(texts.1)));
        let listener = furnished.and_then(|()| room.listen()).map_err(|error| failed(&error))?;
        let body = self.pattern.body.replace(ROOM, &room.path().display().to_string()).replace(RUN, &run);
        let body = serde_json::from_str(&body).map_err(|error| failed(&error))?;
        let started = self.engine.start(&name, body);
        let control = started.and_then(|()| accept(&listener, &self.engine, &name));
        match control {
            Ok(control) => Ok(Waiting { name, room, control }),
            Err(failure) => {
                let _ = self.engine.remove(&name);
                Err(failure)
            }
        }
    }
}

/// Whether a gate is still there.
fn lives(control: &UnixStream) -> bool {
    let now = Timespec::try_from(Duration::ZERO).ok();
    let asked = poll(&mut [PollFd::new(control, PollFlags::IN)], now.as_ref());
    matches!(asked, Ok(0))
}
