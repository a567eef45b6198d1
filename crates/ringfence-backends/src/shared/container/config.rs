//! The settings that all engines have.

use ringfence_core::config::Settings;
use ringfence_core::mode::Mode;
use ringfence_core::units::{Cpus, MemorySize};
use serde::Deserialize;

/// The section of a mode.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Config {
    pub(crate) image: String,
    pub(crate) network: String,
    pub(crate) memory: MemorySize,
    pub(crate) cpus: Cpus,
    pub(crate) pids_limit: u32,
}

/// Which network a container has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NetworkChoice {
    /// None but the gate's.
    Gate,
    /// One of the engine's, on which nothing is enforced.
    Named(String),
}

impl Config {
    /// What the settings say; they were checked when they were read.
    pub(crate) fn read(settings: &Settings, mode: Mode) -> Result<Self, String> {
        let section = settings.sandbox.section(mode).cloned().unwrap_or_default();
        serde_json::from_value(section).map_err(|error| format!("sandbox.{mode}: {error}"))
    }

    /// Which network a container has where the policy leaves the choice.
    pub(crate) fn network(&self) -> NetworkChoice {
        match self.network.as_str() {
            "default" | "none" => NetworkChoice::Gate,
            name => NetworkChoice::Named(name.to_owned()),
        }
    }
}
