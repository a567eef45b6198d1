//! What a program says of its version, asked in the mode where it would run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use ringfence_core::backend::{Backend, Exit, ExitStatus, Happening};
use ringfence_core::event::Stream;
use ringfence_core::paths::{HostPath, PathMapping, PathMappingMode};
use ringfence_core::plan::{Request, Stdin, resolve};
use ringfence_core::policy::Preset;
use ringfence_workspace::Directory;

/// The slowest agent CLI takes a second to tell its version, on a quiet machine.
const TIMEOUT: Duration = Duration::from_secs(30);
/// No version is longer.
const LONGEST: usize = 4096;

/// Asks a program for its version as a run, so that one that hangs or spawns is ended whole.
pub(super) fn ask(
    backend: &dyn Backend,
    program: &str,
    env: &BTreeMap<String, String>,
    workspace: &Path,
) -> anyhow::Result<String> {
    let mode = backend.mode();
    let mapping = if mode.isolates() { PathMappingMode::Mapped } else { PathMappingMode::SamePath };
    let name = Path::new(program).file_name().and_then(|name| name.to_str()).unwrap_or("program");
    let workspace_id = Directory::open(&workspace.canonicalize()?)?.id();
    let request = |preset: Preset| -> anyhow::Result<Request> {
        let mut policy = preset.policy();
        backend.bound(&mut policy.limits);
        Ok(Request {
            default_limits: BTreeSet::new(),
            run: format!("version-{name}-{}", std::process::id()).parse()?,
            mode,
            policy,
            argv: vec![program.to_owned(), "--version".into()],
            env: env.clone(),
            workspace: PathMapping::new(mapping, HostPath::new(workspace)?),
            workspace_id,
            layer: None,
            git: None,
            governing: Vec::new(),
            stdin: Stdin::Empty,
            needed_hosts: Vec::new(),
            door: None,
            files: Vec::new(),
        })
    };
    // A mode that cannot keep its default policy is asked under the widest.
    let capabilities = backend.capabilities();
    let plan = match resolve(request(Preset::default_of(mode))?, &capabilities) {
        Ok(plan) => plan,
        Err(_) => resolve(request(Preset::Open)?, &capabilities)?,
    };
    let mut sandbox = backend.launch(&plan)?;
    let deadline = Instant::now() + TIMEOUT;
    let mut text = Vec::new();
    loop {
        match sandbox.next(deadline).map_err(|failure| anyhow!(failure.message))? {
            Happening::Output(Stream::Stdout, bytes) if text.len() < LONGEST => text.extend(bytes),
            Happening::Output(..) if Instant::now() < deadline => {}
            Happening::Ended(Exit { status: ExitStatus::Code(0), .. }) => break,
            Happening::Ended(Exit { status, .. }) => bail!("`--version` ended with {status:?}"),
            Happening::Output(..) | Happening::Nothing => {
                bail!("`--version` did not answer in {} s", TIMEOUT.as_secs())
            }
        }
    }
    let text = String::from_utf8_lossy(&text);
    text.lines()
        .next()
        .map(|line| line.trim().to_owned())
        .filter(|line| !line.is_empty())
        .context("it says nothing")
}
