//! Plan → what the gate is told. Pure but for looking up the program.

use std::path::Path;

use ringfence_core::backend::LaunchError;
use ringfence_core::plan::Plan;
use ringfence_gate::Spec;

use crate::GateProgram;
use crate::shared::program::locate;
use crate::shared::run;

/// The spec of a plan.
pub(super) fn spec(plan: &Plan, gate: &GateProgram) -> Result<Spec, LaunchError> {
    let request = &plan.request;
    let workspace = request.workspace.host().as_path();
    let name = request.argv.first().map(String::as_str).unwrap_or_default();
    // The gate starts it, and is the same program.
    let program = match Path::new(name) == gate.program {
        true => gate.file.clone(),
        false => locate(name, request.env.get("PATH").map(String::as_str), workspace)?,
    };
    Ok(run::spec(request, &program, workspace, None))
}
