//! Is it here, and what is missing?

use std::path::Path;

use ringfence_core::backend::Finding;
use ringfence_core::config::Settings;

use crate::Surroundings;
use crate::shared::probing;

pub(super) fn probe(around: &Surroundings, _: &Settings) -> Vec<Finding> {
    let remedy = "install Docker and start its daemon (`dockerd`, or Docker Desktop)";
    vec![
        probing::program(around, &["docker"], remedy),
        probing::socket("engine", Path::new("/var/run/docker.sock"), remedy),
        probing::no_driver(),
    ]
}
