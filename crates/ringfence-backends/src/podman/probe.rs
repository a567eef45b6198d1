//! Is it here, and what is missing?

use ringfence_core::backend::Finding;
use ringfence_core::config::Settings;

use crate::Surroundings;
use crate::shared::probing;

pub(super) fn probe(around: &Surroundings, _: &Settings) -> Vec<Finding> {
    vec![probing::program(around, &["podman"], "install podman"), probing::no_driver()]
}
