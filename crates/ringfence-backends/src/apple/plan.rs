//! Plan → the words of Apple's command. Pure.

use std::path::Path;

use ringfence_core::backend::LaunchError;
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::plan::{Request, Stdin};
use ringfence_core::policy::WorkspaceAccess;

use super::config::Config;
use crate::shared::means::whole_processors;

/// What says that a container is ours, and of which run.
pub(super) const LABEL: &str = "ringfence.run";

/// The name of a run's container.
pub(super) fn name(request: &Request) -> String {
    format!("ringfence-{}", request.run)
}

/// `run` with all that the plan says. The variables are in a file: whoever lists processes sees the words.
pub(super) fn words(
    request: &Request,
    config: &Config,
    variables: &Path,
) -> Result<Vec<String>, LaunchError> {
    let limits = &request.policy.limits;
    let mut words: Vec<String> = vec!["run".into(), "--rm".into(), "--name".into(), name(request)];
    let mut option = |name: &str, value: String| words.extend([name.to_owned(), value]);
    option("--label", format!("{LABEL}={}", request.run));
    option("--progress", "none".into());
    if let Some(cpus) = limits.cpus {
        option("--cpus", whole_processors(cpus.millis())?.to_string());
    }
    if let Some(memory) = limits.memory {
        option("--memory", format!("{}M", memory.bytes().div_ceil(1 << 20)));
    }
    if config.network != "default" {
        option("--network", config.network.clone());
    }
    option("--tmpfs", "/tmp".into());
    option("--env-file", variables.display().to_string());
    option("--workdir", request.workspace.guest().to_string());
    let files = &request.policy.files;
    let workspace = (request.workspace.host().as_path(), request.workspace.guest().as_path());
    let write = files.workspace == WorkspaceAccess::ReadWrite;
    option("--volume", volume(workspace.0, workspace.1, write)?);
    for (paths, write) in [(&files.read, false), (&files.write, true)] {
        for path in paths {
            option("--volume", volume(Path::new(path), Path::new(path), write)?);
        }
    }
    match request.stdin {
        Stdin::Empty => {}
        Stdin::Inherit => words.push("--interactive".into()),
        Stdin::Terminal(_) => words.extend(["--interactive".into(), "--tty".into()]),
    }
    words.push(config.image.clone());
    words.extend(request.argv.iter().cloned());
    Ok(words)
}

/// The words of a volume are joined by colons.
fn volume(host: &Path, guest: &Path, write: bool) -> Result<String, LaunchError> {
    let text = |path: &Path| path.to_str().filter(|text| !text.contains([':', '\n'])).map(str::to_owned);
    let (Some(from), Some(to)) = (text(host), text(guest)) else {
        return Err(refused(format!("{} cannot be a volume: its name has `:` in it", host.display())));
    };
    Ok(if write { format!("{from}:{to}") } else { format!("{from}:{to}:ro") })
}

/// The variables in the form of a file: a line each.
pub(super) fn variables(request: &Request) -> Result<String, LaunchError> {
    let mut text = String::new();
    for (name, value) in &request.env {
        if value.contains('\n') {
            return Err(refused(format!(
                "the value of {name} has more than one line, which this mode cannot pass"
            )));
        }
        text.push_str(&format!("{name}={value}\n"));
    }
    Ok(text)
}

fn refused(message: String) -> LaunchError {
    LaunchError::Runtime(Failure::new(FailureClass::Refused, message))
}
