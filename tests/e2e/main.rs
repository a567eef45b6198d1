//! The binary from end to end, as people and programs use it.
//!
//! One test program for all, so that the binary is linked once. `real` drives the real agent CLIs against a model
//! server that plays a script; everything else needs nothing but a shell.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod access;
mod api;
mod apple;
mod browser;
mod command_line;
mod conformance;
mod containers;
mod engines;
mod escapes;
mod fallback;
mod findings;
mod guide;
mod limits;
mod logins;
mod native;
mod outside;
mod overlay;
mod probes;
mod process_tree;
mod queue;
mod real;
mod records;
mod settings;
mod site;
mod support;
mod terminals;
