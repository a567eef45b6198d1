//! Containers of an engine that speaks Docker's API: one implementation, whichever engine answers.
//!
//! A container is named and labelled, and made for one run. Its first process is our gate, mounted read-only; it
//! connects to a socket of the run's own and is then spoken to as in every other mode. Output, input and the way to the
//! broker are descriptors that pass through that socket: nothing of a run goes through the engine, and nothing of it is
//! seen by `inspect`.

mod caps;
mod config;
mod driver;
mod engine;
mod image;
mod keeper;
mod plan;
mod probe;
mod room;
mod undertaker;
mod warm;

use std::path::PathBuf;

use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::mode::Mode;

use crate::Surroundings;

pub(crate) use driver::Containers;
pub(crate) use image::read as image_name;
pub(crate) use keeper::keeper;
pub(crate) use probe::probe;
pub(crate) use undertaker::bury;
pub(crate) use warm::keep;

/// What one engine has of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flavor {
    /// The mode.
    pub(crate) mode: Mode,
    /// What people call it.
    pub(crate) name: &'static str,
    /// Where it answers, or why it cannot be used.
    pub(crate) endpoint: fn(&Surroundings) -> Result<Endpoint, Failure>,
    /// How to get it.
    pub(crate) remedy: &'static str,
    /// How a rootless engine is told to keep the person's own number inside; without it number 0 is the person.
    pub(crate) keep_id: Option<&'static str>,
    /// The name by which its containers reach the host.
    pub(crate) host_name: &'static str,
    /// Whether it takes the list of what is masked as an option of security.
    pub(crate) mask_option: bool,
    /// Whether it joins the options of a mount with commas, so that a path could name other options.
    pub(crate) joins_options: bool,
    /// Whether it can say whose a private place is.
    pub(crate) owned_memory: bool,
    /// Whether it makes a network namespace without its own network being set up in it, which costs it a program more.
    pub(crate) bare_network: bool,
}

/// Where an engine answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) socket: PathBuf,
    /// Who said so.
    pub(crate) source: String,
}

/// A socket in the words of the engines' variables. Others than those of this machine cannot be used: the workspace is
/// here.
pub(crate) fn endpoint(address: &str, source: &str) -> Result<Endpoint, Failure> {
    match address.strip_prefix("unix://") {
        Some(path) if path.starts_with('/') => {
            Ok(Endpoint { socket: path.into(), source: source.to_owned() })
        }
        _ => {
            let message =
                format!("{source} names `{address}`, and only an engine on this machine can be used");
            Err(Failure::new(FailureClass::RuntimeMissing, message)
                .with_remedy(format!("give {source} an address that begins with `unix:///`, or unset it")))
        }
    }
}
