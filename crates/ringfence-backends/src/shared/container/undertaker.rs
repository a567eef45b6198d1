//! Clearing away a container whose run is over, by a process of its own: engines take their time.

use std::io;
use std::path::Path;
use std::process::Stdio;

use ringfence_core::failure::{Failure, FailureClass};

use super::engine::Engine;
use super::room::Room;
use super::{Endpoint, Flavor};
use crate::{GateProgram, Surroundings};

/// The argument that makes our binary an undertaker.
const ARGUMENT: &str = "__bury";

/// Starts one for a room. With its input it gets what tells others that somebody lives there, so that nobody else clears
/// it meanwhile; if it is killed, the next run does.
pub(super) fn send(program: &GateProgram, room: &Room) -> io::Result<()> {
    let state = room.path().parent().and_then(Path::parent).ok_or(io::ErrorKind::NotFound)?;
    let lock = room.lock().ok_or(io::ErrorKind::NotFound)?.try_clone()?;
    let mut command = program.command();
    command.arg(ARGUMENT).arg(room.path()).current_dir("/").env_clear().env("RINGFENCE_HOME", state);
    command.stdin(lock).stdout(Stdio::null()).stderr(Stdio::null());
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.spawn().map(drop)
}

/// Does it, as a process of its own.
pub(crate) fn bury(room: &Path, around: &Surroundings, flavors: &[Flavor]) -> Result<(), Failure> {
    let lost = |why: &str| Failure::new(FailureClass::Unknown, why);
    let lock = std::os::fd::AsFd::as_fd(&io::stdin()).try_clone_to_owned();
    let lock = lock.map_err(|error| lost(&error.to_string()))?;
    let mut room = Room::taken_over(room.to_owned(), lock.into());
    room.keep();
    let note = room.read_note().ok_or_else(|| lost("there is nothing to bury"))?;
    let flavor = flavors.iter().find(|flavor| flavor.mode == note.mode);
    let endpoint = Endpoint { socket: note.engine, source: "the run".into() };
    let engine =
        Engine::known(*flavor.ok_or_else(|| lost("there is no such mode"))?, endpoint, &around.state)?;
    engine.remove_patiently(&note.container)?;
    room.give_up();
    Ok(())
}
