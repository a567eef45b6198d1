//! Is the engine here, and what is missing?

use std::path::Path;

use ringfence_core::backend::Finding;
use ringfence_core::config::Settings;
use ringfence_linux::Controller;

use super::config::{Config, NetworkChoice};
use super::driver::connect;
use super::{Flavor, image};
use crate::Surroundings;

/// Too little room for a container is not noticed before it is too late.
const LEAST_ROOM: u64 = 1 << 30;

fn disk(root: &Path) -> Option<Finding> {
    let room = rustix::fs::statvfs(root).ok()?;
    let free = room.f_bavail.saturating_mul(room.f_frsize);
    let detail = format!("{} MiB free in {}", free >> 20, root.display());
    Some(match free < LEAST_ROOM {
        true => Finding::absent("disk", detail, "free some space, or move the engine's directory"),
        false => Finding::ok("disk", detail),
    })
}

pub(crate) fn probe(flavor: Flavor, around: &Surroundings, settings: &Settings) -> Vec<Finding> {
    let engine = match connect(flavor, around) {
        Ok(engine) => engine,
        Err(failure) => {
            let remedy = failure.remedy.unwrap_or_else(|| flavor.remedy.into());
            return vec![Finding::absent("engine", failure.message, remedy)];
        }
    };
    let facts = &engine.facts;
    let rootless = if facts.rootless { ", rootless" } else { "" };
    let answers = format!(
        "{} {} (API {}, cgroup v{}{rootless}) on {} ({})",
        flavor.name,
        facts.version,
        facts.api,
        facts.cgroups,
        engine.endpoint.socket.display(),
        engine.endpoint.source
    );
    let mut findings = vec![Finding::ok("engine", answers)];
    let bounds = [("memory", Controller::Memory), ("cpus", Controller::Cpu), ("processes", Controller::Pids)];
    let by = bounds.map(|(name, controller)| match facts.means(controller) {
        Some(means) => format!("{name} by {}", means.describe()),
        None => format!("{name} not at all"),
    });
    findings.push(Finding::ok("limits", by.join("; ")));
    findings.extend(facts.root.as_deref().and_then(disk));
    let config = Config::read(settings, flavor.mode);
    if let Ok(config) = &config {
        findings.push(match config.network() {
            NetworkChoice::Gate => Finding::ok("network", "none but the gate's"),
            NetworkChoice::Named(name) => {
                Finding::ok("network", format!("`{name}`: what goes out is not enforced"))
            }
        });
    }
    let name = config.and_then(|config| image::read(&config.image));
    let remedy = format!("set `sandbox.{}.image`", flavor.mode);
    findings.push(match name {
        Err(why) => Finding::absent("image", why, remedy),
        Ok(name) => match engine.image(&name.name) {
            Ok(_) => Finding::ok("image", name.notice.unwrap_or(name.name)),
            Err(failure) => {
                Finding::absent("image", failure.message, failure.remedy.unwrap_or(remedy.into()))
            }
        },
    });
    findings
}
