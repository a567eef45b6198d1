//! Is it here, and what is missing?

use ringfence_core::backend::Finding;
use ringfence_core::config::Settings;
use ringfence_core::mode::Mode;

use crate::Surroundings;
use crate::shared::probing;

pub(super) fn probe(around: &Surroundings, settings: &Settings) -> Vec<Finding> {
    let command = settings
        .sandbox
        .section(Mode::Apple)
        .and_then(|section| section.get("runtime_command"))
        .and_then(|command| command.as_str())
        .unwrap_or_default();
    vec![
        probing::program(
            around,
            &[command],
            "on a Mac, install the container runtime and name it in the settings",
        ),
        probing::no_driver(),
    ]
}
