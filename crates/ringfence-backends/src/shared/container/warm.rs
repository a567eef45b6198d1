//! Containers that were started before anybody asked for them: nothing of any run has ever been in one.
//!
//! One process keeps them for a workspace and a mode, as many as `sandbox.warm` says, and hands them over with their
//! gates. A container fits only a run that would have got the very same: the same body, from the same files. What does
//! not fit is given up, and the next run brings its own pattern.
#![expect(
    clippy::disallowed_methods,
    reason = "files of the state directory; of the workspace only identities are compared"
)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use bollard::models::ContainerCreateBody;
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::mode::Mode;
use ringfence_core::paths::DirectoryId;
use ringfence_gate::{receive, send};
use ringfence_linux::{Placeholder, StandIns};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::driver::start;
use super::engine::Engine;
use super::room::{Note, Room};
use super::{Endpoint, Flavor};
use crate::shared::waiting::pause;
use crate::{GateProgram, Surroundings};

/// The argument that makes our binary the keeper.
const ARGUMENT: &str = "__warm";
/// Where keepers listen, in the state directory.
const PLACE: &str = "warm";
/// A keeper whom nobody asks for so long goes, with all that it keeps.
const IDLE: Duration = Duration::from_secs(600);
/// How long a keeper may take to answer, on a busy machine.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often an engine may fail to make one, and how long it then gets.
const FAILURES: u32 = 5;
const RECOVERY: Duration = Duration::from_millis(500);
/// How often a keeper looks whether it is the only one.
const TRIES: u32 = 600;
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
    /// Which files its mounts lead to and are on, and when a file was changed last.
    files: Vec<(u64, u64, i64)>,
    /// How many texts it sees over the image's files.
    texts: usize,
    /// How many private git directories it sees.
    git: usize,
    workspace: PathBuf,
    workspace_id: Option<DirectoryId>,
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
        (note, covered, texts, git): (&Note, &[PathBuf], usize, usize),
        count: u32,
    ) -> Option<Self> {
        let mut body = body.clone();
        let host = body.host_config.as_mut()?;
        // Mounts of one depth have no order.
        host.mounts.as_mut()?.sort_by(|one, other| one.target.cmp(&other.target));
        let sources = host.mounts.as_ref()?.iter().filter_map(|mount| mount.source.clone());
        let of_host = sources.map(PathBuf::from).filter(|source| !source.starts_with(room.path()));
        // What stands in for others is ours: the keeper puts it there again.
        let ours = |path: &PathBuf| note.placeholders.iter().any(|placeholder| placeholder.path == *path);
        let files = of_host.chain(covered.iter().cloned()).filter(|path| !ours(path));
        let files = files.map(|path| identity(&path)).collect::<Option<_>>()?;
        let text = sorted(serde_json::to_value(&body).ok()?).to_string();
        if text.contains(ROOM) || text.contains(RUN) {
            return None;
        }
        Some(Self {
            mode: flavor.mode,
            socket: engine.endpoint.socket.clone(),
            body: text.replace(&room.path().display().to_string(), ROOM).replace(run, RUN),
            files,
            texts,
            git,
            workspace: note.workspace.clone(),
            workspace_id: note.workspace_id,
            placeholders: note.placeholders.clone(),
            count,
        })
    }

    fn key(&self) -> String {
        hash(&(&self.body, &self.files, self.texts, self.git, self.count))
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
    pub(super) fn keep(&self, program: &GateProgram, state: &Path) -> io::Result<()> {
        if UnixStream::connect(self.place(state)).is_ok() {
            return Ok(());
        }
        let pattern = serde_json::to_string(self)?;
        let mut command = program.command();
        command.arg(ARGUMENT).current_dir("/").env_clear().env("RINGFENCE_HOME", state);
        let (read, mut write) = io::pipe()?;
        command.stdin(read).stdout(Stdio::null()).stderr(Stdio::null());
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.spawn()?;
        write.write_all(pattern.as_bytes())
    }
}

/// A file as it is. A directory is changed by whatever is made in it, which does not matter.
fn identity(path: &Path) -> Option<(u64, u64, i64)> {
    let data = fs::symlink_metadata(path).ok()?;
    let changed =
        if data.is_dir() { 0 } else { data.ctime().wrapping_mul(1_000_000_000) + data.ctime_nsec() };
    Some((data.dev(), data.ino(), changed))
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
    // One at a time: the one before may still be clearing away what it kept.
    let Some(_lock) = alone(&place.with_extension("lock")).map_err(io)? else { return Ok(()) };
    let _ = fs::remove_file(&place);
    let listener = UnixListener::bind(&place).map_err(io)?;
    let mut stand_ins = StandIns::share(&pattern.workspace, pattern.workspace_id).map_err(io)?;
    stand_ins.answer_for(pattern.placeholders.clone());
    // The run that knew them may be over.
    stand_ins.place().map_err(io)?;
    let engine = Engine::known(flavor, endpoint, &around.state)?;
    let state = around.state.clone();
    let place = fs::metadata(&place).ok().map(|data| (data.dev(), data.ino()));
    let (pattern, engine) = (Arc::new(pattern), Arc::new(engine));
    let keeper = Keeper { pattern, state, place, engine, waiting: Vec::new(), made: 0 };
    keeper.serve(&listener).map_err(io)
}

/// The lock of the only keeper, unless another one has it for long.
fn alone(file: &Path) -> io::Result<Option<File>> {
    let lock = fs::OpenOptions::new().create(true).append(true).open(file)?;
    for _ in 0..TRIES {
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Ok(Some(lock));
        }
        pause(Duration::from_millis(50));
    }
    Ok(None)
}

struct Waiting {
    name: String,
    room: Room,
    control: UnixStream,
}

/// Who asks is answered at once: containers are made on a thread, one after another.
struct Keeper {
    pattern: Arc<Pattern>,
    state: PathBuf,
    /// The device and the number of where it listens.
    place: Option<(u64, u64)>,
    engine: Arc<Engine>,
    waiting: Vec<Waiting>,
    made: u32,
}

impl Keeper {
    fn serve(mut self, listener: &UnixListener) -> io::Result<()> {
        let (woken, wake) = UnixStream::pair()?;
        let (told, news) = channel();
        let (mut making, mut failures) = (false, 0);
        loop {
            let full = self.waiting.len() >= self.pattern.count as usize;
            if !full && !making {
                making = true;
                self.begin(&told, wake.try_clone()?);
            }
            let patience = Timespec::try_from(IDLE).ok();
            let mut watched =
                [listener.as_fd(), woken.as_fd()].map(|end| PollFd::from_borrowed_fd(end, PollFlags::IN));
            match poll(&mut watched, patience.as_ref()) {
                Err(rustix::io::Errno::INTR) => continue,
                Ok(0) if making => continue,
                Err(_) | Ok(0) => break,
                Ok(_) => {}
            }
            let [asked, done] = watched.map(|end| !end.revents().is_empty());
            if done {
                let _ = (&woken).read(&mut [0]);
                making = false;
                match news.try_recv() {
                    Ok(Ok(one)) => self.waiting.push(one),
                    // An engine that has too much to do is asked again, and in the end by the next run.
                    Ok(Err(_)) if failures < FAILURES => {
                        failures += 1;
                        pause(RECOVERY);
                    }
                    _ => break,
                }
            }
            if asked && !listener.accept().is_ok_and(|(stream, _)| self.answer(&stream)) {
                break;
            }
        }
        self.leave();
        if making && let Ok(Ok(one)) = news.recv() {
            self.waiting.push(one);
        }
        for one in std::mem::take(&mut self.waiting) {
            self.give_up(one);
        }
        Ok(())
    }

    /// Makes one, on a thread.
    fn begin(&mut self, told: &Sender<Result<Waiting, Failure>>, mut wake: UnixStream) {
        self.made += 1;
        let run = format!("warm-{}-{}", std::process::id(), self.made);
        let (pattern, engine, state) = (self.pattern.clone(), self.engine.clone(), self.state.clone());
        let told = told.clone();
        std::thread::spawn(move || {
            // A keeper that has gone meanwhile takes nothing any more, and what was made goes with this.
            let _ = told.send(make(&pattern, &engine, &state, &run));
            let _ = wake.write(&[0]);
        });
    }

    /// Nobody finds this keeper any more.
    fn leave(&self) {
        let place = self.pattern.place(&self.state);
        // Unless another one listens there already.
        if fs::metadata(&place).is_ok_and(|data| Some((data.dev(), data.ino())) == self.place) {
            let _ = fs::remove_file(place);
        }
    }

    fn give_up(&self, Waiting { name, mut room, control }: Waiting) {
        drop(control);
        if self.engine.remove_patiently(&name).is_err() {
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
}

/// Makes a container whose gate waits.
fn make(pattern: &Pattern, engine: &Engine, state: &Path, run: &str) -> Result<Waiting, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(FailureClass::Unknown, error.to_string());
    let id = run.parse().map_err(|error| failed(&error))?;
    let mut room = Room::new(state, &id).map_err(|error| failed(&error))?;
    let name = format!("ringfence-{run}");
    let Pattern { mode, socket, workspace, placeholders, texts, git, .. } = pattern;
    let note = Note {
        mode: *mode,
        container: name.clone(),
        engine: socket.clone(),
        engine_id: engine.facts.id.clone(),
        workspace: workspace.clone(),
        workspace_id: pattern.workspace_id,
        placeholders: placeholders.clone(),
    };
    let empty = vec![String::new(); *texts];
    let furnished = room.note(&note).and_then(|()| room.furnish(&empty, *git));
    let listener = furnished.and_then(|()| room.listen()).map_err(|error| failed(&error))?;
    let body = pattern.body.replace(ROOM, &room.path().display().to_string()).replace(RUN, run);
    let body = serde_json::from_str(&body).map_err(|error| failed(&error))?;
    match start(engine, &name, body, &listener) {
        Ok(control) => Ok(Waiting { name, room, control }),
        Err(failure) => {
            if engine.remove_patiently(&name).is_err() {
                room.keep();
            }
            Err(failure)
        }
    }
}

/// Whether a gate is still there.
fn lives(control: &UnixStream) -> bool {
    let now = Timespec::try_from(Duration::ZERO).ok();
    let asked = poll(&mut [PollFd::new(control, PollFlags::IN)], now.as_ref());
    matches!(asked, Ok(0))
}
