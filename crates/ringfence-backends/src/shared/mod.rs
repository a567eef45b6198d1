//! What more than one backend needs. Nothing here knows a mode.

pub(crate) mod container;
pub(crate) mod covers;
mod crowding;
pub(crate) mod gate;
mod git_configuration;
pub(crate) mod hidden_notice;
mod home_links;
pub(crate) mod listed_names;
pub(crate) mod means;
mod other_runs;
pub(crate) mod probing;
pub(crate) mod program;
pub(crate) mod register;
pub(crate) mod repositories;
pub(crate) mod run;
pub(crate) mod surroundings;
pub(crate) mod survey;
pub(crate) mod waiting;
