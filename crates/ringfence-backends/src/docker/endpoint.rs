//! Where Docker's engine answers: what its own command line would ask.
#![expect(
    clippy::disallowed_methods,
    reason = "the user's own settings of docker, outside of every workspace"
)]

use std::fs;
use std::path::{Path, PathBuf};

use ring::digest::{SHA256, digest};
use ringfence_core::failure::{Failure, FailureClass};
use serde_json::Value;

use crate::Surroundings;
use crate::shared::container::{Endpoint, endpoint};

/// In the order of Docker's own command line: the variable, the context, the usual places.
pub(super) fn find(around: &Surroundings) -> Result<Endpoint, Failure> {
    let variable = |name: &str| around.services.get(name).filter(|value| !value.is_empty());
    if let Some(address) = variable("DOCKER_HOST") {
        return endpoint(address, "DOCKER_HOST");
    }
    let settings = variable("DOCKER_CONFIG").map_or_else(|| around.home.join(".docker"), PathBuf::from);
    let chosen = read(&settings.join("config.json")).and_then(|config| text(&config, "/currentContext"));
    if let Some(name) = variable("DOCKER_CONTEXT").cloned().or(chosen).filter(|name| name != "default") {
        return context(&settings, &name);
    }
    let rootless = around.runtime.as_ref().map(|runtime| runtime.join("docker.sock"));
    let places = [PathBuf::from("/var/run/docker.sock")].into_iter().chain(rootless);
    let places: Vec<PathBuf> = places.chain([around.home.join(".docker/run/docker.sock")]).collect();
    let socket = places.iter().find(|socket| socket.exists()).or(places.first()).cloned().unwrap_or_default();
    Ok(Endpoint { socket, source: "the usual place".into() })
}

/// A context is a file whose name is made of its own.
fn context(settings: &Path, name: &str) -> Result<Endpoint, Failure> {
    let id: String =
        digest(&SHA256, name.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let file = settings.join("contexts/meta").join(id).join("meta.json");
    let missing = |what: &str| {
        Failure::new(FailureClass::RuntimeMissing, format!("Docker's context `{name}` {what}"))
            .with_remedy("choose another with `docker context use`")
    };
    let meta = read(&file).ok_or_else(|| missing("is not there"))?;
    let address = text(&meta, "/Endpoints/docker/Host");
    let address = address.ok_or_else(|| missing("names no engine"))?;
    endpoint(&address, &format!("context {name}"))
}

fn read(file: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(file).ok()?).ok()
}

fn text(value: &Value, at: &str) -> Option<String> {
    value.pointer(at)?.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}
