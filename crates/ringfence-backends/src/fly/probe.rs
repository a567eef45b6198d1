//! Is it here, and what is missing?

use ringfence_core::backend::Finding;
use ringfence_core::config::Settings;

use crate::Surroundings;
use crate::shared::probing;

pub(super) fn probe(around: &Surroundings, _: &Settings) -> Vec<Finding> {
    vec![
        probing::program(around, &["fly", "flyctl"], "install flyctl and log in (`fly auth login`)"),
        probing::no_driver(),
    ]
}
