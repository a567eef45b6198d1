//! Where agent CLIs run: one folder per mode, the same files in each, one table.
//!
//! Invariants: no backend imports another; what two need is in `shared`. The command line, doctor, the settings'
//! sections, the docs and the conformance tests derive from [`ALL`]. Adding a mode is one folder and one line.

mod apple;
mod docker;
pub mod fake;
mod fly;
pub mod host;
mod incus;
pub mod keeper;
mod kubernetes;
mod microvm;
mod native;
mod podman;
mod sbx;
mod shared;

use std::path::Path;

use ringfence_core::backend::{Backend, Finding};
use ringfence_core::config::{Key, Keys, Settings};
use ringfence_core::failure::Failure;
use ringfence_core::mode::Mode;

use keeper::Keeper;
pub use shared::register::active_run_that_sees;
pub use shared::surroundings::{GateProgram, Surroundings};

/// The variables that backends look at to find services of this machine.
pub const VARIABLES: [&str; 4] = ["DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "CONTAINER_HOST"];

/// One row of the table of modes.
pub struct Entry {
    /// The mode.
    pub mode: Mode,
    /// What stands between the agent and the machine, in one line.
    pub boundary: &'static str,
    /// What it needs, in one line.
    pub needs: &'static str,
    /// Its own settings.
    pub keys: &'static [Key],
    /// Is it here, which version, what is missing.
    pub probe: fn(&Surroundings, &Settings) -> Vec<Finding>,
    /// The engine behind it, where it keeps images and containers.
    pub keeper: Option<MakeKeeper>,
    /// The code that runs agents in it; a mode without it can be looked at and is refused.
    pub backend: Option<MakeBackend>,
}

/// Makes the backend of a mode.
pub type MakeBackend = fn(&Surroundings, &Settings) -> Box<dyn Backend>;

/// Reaches the engine of a mode.
pub type MakeKeeper = fn(&Surroundings) -> Result<Box<dyn Keeper>, Failure>;

/// All modes, in the order of [`Mode::ALL`].
pub const ALL: [&Entry; 10] = [
    &host::ENTRY,
    &native::ENTRY,
    &docker::ENTRY,
    &podman::ENTRY,
    &apple::ENTRY,
    &sbx::ENTRY,
    &microvm::ENTRY,
    &incus::ENTRY,
    &fly::ENTRY,
    &kubernetes::ENTRY,
];

/// The row of a mode.
pub fn entry(mode: Mode) -> &'static Entry {
    ALL[mode as usize]
}

/// All keys of the settings: the common ones and every mode's section.
pub fn settings_keys() -> Keys {
    let sections = ALL.iter().map(|entry| entry.keys);
    Keys::new(std::iter::once(ringfence_core::config::KEYS).chain(sections))
}

/// Whether an engine takes this as the name of an image, capital letters aside.
pub fn check_image_name(name: &str) -> Result<(), String> {
    shared::container::image_name(name).map(|_| ())
}

/// Keeps containers ready, as a process of its own; `pattern` is what the run that started it said.
pub fn keep_warm(pattern: &str, around: &Surroundings) -> Result<(), Failure> {
    shared::container::keep(pattern, around, &[docker::FLAVOR, podman::FLAVOR])
}

/// Clears away a container whose run is over, as a process of its own; `room` is what its run left.
pub fn bury(room: &Path, around: &Surroundings) -> Result<(), Failure> {
    shared::container::bury(room, around, &[docker::FLAVOR, podman::FLAVOR])
}

#[cfg(test)]
mod tests {
    use super::{ALL, entry, settings_keys};
    use ringfence_core::mode::Mode;

    #[test]
    fn the_table_is_in_the_order_of_the_modes() {
        for mode in Mode::ALL {
            assert_eq!(entry(mode).mode, mode);
        }
    }

    #[test]
    fn a_modes_keys_stay_in_its_own_section() {
        for entry in ALL {
            for key in entry.keys {
                assert!(key.path.starts_with(&format!("sandbox.{}.", entry.mode)), "{}", key.path);
            }
        }
    }

    #[test]
    fn every_default_is_json_of_its_kind_and_every_path_is_named_once() {
        let keys = settings_keys();
        let mut seen = std::collections::BTreeSet::new();
        for key in keys.iter() {
            assert!(seen.insert(key.path), "{} twice", key.path);
            if let Some(default) = key.default {
                let value = serde_json::from_str(default).unwrap();
                assert_eq!(key.kind.check(&value), Ok(()), "{}", key.path);
            }
        }
    }
}
