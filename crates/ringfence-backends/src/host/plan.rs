//! Plan → what the gate is told. Pure but for looking up the program.

use ringfence_core::backend::LaunchError;
use ringfence_core::plan::{Plan, Stdin};
use ringfence_gate::Spec;

use crate::shared::program::locate;
use crate::shared::run::lifetime_ms;

/// The spec of a plan.
pub(super) fn spec(plan: &Plan) -> Result<Spec, LaunchError> {
    let request = &plan.request;
    let name = request.argv.first().map(String::as_str).unwrap_or_default();
    let program =
        locate(name, request.env.get("PATH").map(String::as_str), request.workspace.host().as_path())?;
    let mut argv = request.argv.clone();
    if let Some(first) = argv.first_mut() {
        *first = program.display().to_string();
    }
    Ok(Spec {
        argv,
        cwd: request.workspace.host().as_path().to_owned(),
        memory_limit: request.policy.limits.memory.map(|size| size.bytes()),
        lifetime_ms: Some(lifetime_ms(&request.policy.limits)),
        stdin: request.stdin == Stdin::Inherit,
        sandbox: None,
    })
}
