//! Where Podman's service answers, or how it is started.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ringfence_core::failure::{Failure, FailureClass};

use crate::Surroundings;
use crate::shared::container::{Endpoint, endpoint};
use crate::shared::waiting::pause;

/// How long a service that was started here stays when nobody asks it anything, in seconds.
const STAYS: &str = "60";
/// How long it may take until it answers.
const PATIENCE: Duration = Duration::from_secs(20);

/// The variable of Podman's own command line, the usual places, or a service of our own.
pub(super) fn find(around: &Surroundings) -> Result<Endpoint, Failure> {
    if let Some(address) = around.services.get("CONTAINER_HOST").filter(|value| !value.is_empty()) {
        return endpoint(address, "CONTAINER_HOST");
    }
    let root = rustix::process::geteuid().is_root();
    let usual = match &around.runtime {
        Some(runtime) if !root => Some(runtime.join("podman/podman.sock")),
        _ => root.then(|| PathBuf::from("/run/podman/podman.sock")),
    };
    if let Some(socket) = usual.filter(|socket| answers(socket)) {
        return Ok(Endpoint { socket, source: "the usual place".into() });
    }
    let missing = |why: String| Failure::new(FailureClass::RuntimeMissing, why).with_remedy("install podman");
    let command =
        around.programs.command("podman").ok_or_else(|| missing("podman was not found in PATH".into()))?;
    let directory = around.state.join("podman");
    let made = fs::DirBuilder::new().mode(0o700).recursive(true).create(&directory);
    made.map_err(|error| missing(format!("{} cannot be made: {error}", directory.display())))?;
    let socket = directory.join("podman.sock");
    if !answers(&socket) {
        start(command, &socket).map_err(|why| Failure::new(FailureClass::DaemonDown, why))?;
    }
    Ok(Endpoint { socket, source: "a service that ringfence started".into() })
}

fn answers(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

/// Starts a service that goes by itself. It is nobody's child for long: it outlives the run that needs it first.
fn start(mut command: Command, socket: &Path) -> Result<(), String> {
    let address = format!("unix://{}", socket.display());
    command.args(["system", "service", "--time", STAYS, &address]);
    // Its helpers leave files where they stand.
    command.current_dir(socket.parent().unwrap_or(Path::new("/")));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let mut service = command.spawn().map_err(|error| format!("podman cannot be started: {error}"))?;
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if answers(socket) {
            return Ok(());
        }
        if let Ok(Some(status)) = service.try_wait() {
            return Err(format!("podman's service ended at once: {status}"));
        }
        pause(Duration::from_millis(5));
    }
    Err(format!("podman's service did not answer in {} s", PATIENCE.as_secs()))
}
