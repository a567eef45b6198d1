//! Attacks on the binary, one file an area: what an agent, a repository or a stranger could try, and what must come of it.
//!
//! An attack on a sandbox is written once (`in_every_sandbox!`) and becomes one test for each mode, so that a red test
//! names the attack and the mode. Where it does no harm, the same attempt is shown to work without a sandbox: an attempt
//! that cannot succeed proves nothing. To add one, write it in the file of its area and run
//! `cargo nextest run -p ringfence --test attacks`.
//!
//! Attempts that were there before this program stay where they are:
//!
//! | attempt | test |
//! |---|---|
//! | every attempt of `ringfence probe`, in every mode | `e2e::probes`, `e2e::containers::what_is_promised_is_kept` |
//! | typing into a terminal, roots and memory of other processes, abstract sockets, left descriptors, setuid programs, user namespaces, hooks made later, a workspace that is a link, second names, rings, tracing, core dumps, kills at any moment | `e2e::escapes` |
//! | files of the kernel, system calls, privileges, devices, worktrees, submodules, bent pointers, sockets in the workspace, stub files of others | `e2e::native` |
//! | killed, stopped and forged gates, daemons that ignore signals, readers that leave | `e2e::process_tree` |
//! | overlays: setuid, whiteouts, opaque marks, special files, links, names that are no text, deep trees | `e2e::overlay`, target `overlay` of `inputs` |
//! | attachments: links, `..`, special and sparse files | `e2e::containers::files_that_an_agent_names_come_back_from_where_they_are`, unit tests of `engine/src/attachments.rs` |
//! | broker: 37 hosts in disguise by HTTP, CONNECT and SOCKS; 50 ways to smuggle a request; HTTP/2 authority; SNI, hidden names; placeholders; reflection of a secret | `ringfence-egress`, `tests/hostile.rs` and `tests/relay.rs` |
//! | settings: 7 of a repository that do not tighten, odd files | `e2e::settings` |
//! | API: every route with every credential from everywhere; 27 malformed requests; forms | `e2e::access`, `e2e::api` |
//! | containers: secrets in `inspect`, names for an engine, kills of anybody | `e2e::containers` |
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

#[allow(dead_code, reason = "shared with e2e, which uses the rest")]
#[path = "../e2e/engines.rs"]
mod engines;
#[allow(dead_code, reason = "shared with e2e, which uses the rest")]
#[path = "../e2e/site.rs"]
mod site;
#[allow(dead_code, reason = "shared with e2e, which uses the rest")]
#[path = "../e2e/support.rs"]
mod support;

#[macro_use]
mod sandbox;

mod api;
mod attachments;
mod bounds;
mod broker;
mod budget;
mod checklists;
mod concurrent;
mod daemon;
mod dashboard;
mod executed_later;
mod files;
mod git;
mod git_configuration;
mod git_direct;
mod git_refs;
mod gitlinks;
mod governing;
mod grants;
mod hidden_files;
mod home_links;
mod http2;
mod inputs;
mod kernel;
mod overlays;
mod processes;
mod programs;
mod quota;
mod reflection;
mod scan;
mod settings;
mod terminal;
mod unwritable;
mod workspace;
