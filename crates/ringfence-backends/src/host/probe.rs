//! Is it here? Always.

use ringfence_core::backend::Finding;
use ringfence_core::config::Settings;

use crate::Surroundings;

pub(super) fn probe(around: &Surroundings, _: &Settings) -> Vec<Finding> {
    let gate = around.gate.program.display().to_string();
    vec![Finding::ok("gate", gate)]
}
