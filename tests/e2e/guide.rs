//! The guide: all commands of its pages, run as they stand there.

use std::fs;
use std::path::Path;

use crate::engines::engine;
use crate::support::Place;

/// The commands of a page: what stands in its blocks of `sh`.
pub(crate) fn commands(page: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page);
    let text = fs::read_to_string(&file).unwrap();
    let blocks = text.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap());
    blocks.collect()
}

/// A place where `ringfence` is in the path.
pub(crate) fn place() -> Place {
    let place = Place::new().env("RINGFENCE_LISTEN", "127.0.0.1:0");
    let bin = place.home().join("bin");
    fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_ringfence"), bin.join("ringfence")).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    place.env("PATH", path)
}

fn run(page: &str) {
    run_in(&place(), page, &commands(page));
}

fn run_in(place: &Place, page: &str, script: &str) {
    assert!(script.lines().count() >= 2, "{page} has no commands");
    let ran = place.shell(&format!("set -e\n{script}"));
    let _ = place.command(&["stop"]).output();
    assert_eq!(ran.code(), 0, "{page}\nstdout: {}\nstderr: {}", ran.stdout, ran.stderr);
}

#[test]
fn getting_started() {
    run("docs/getting-started.md");
}

#[test]
fn api() {
    run("docs/api.md");
}

#[test]
fn operations() {
    run("docs/operations.md");
}

#[test]
fn queue() {
    run("docs/queue.md");
}

#[test]
fn policy() {
    run("docs/policy.md");
}

#[test]
fn native() {
    run("docs/native.md");
}

#[test]
fn broker() {
    let place = place();
    let login = r#"{"claudeAiOauth": {"accessToken": "sk-ant-oat01-x", "expiresAt": 4102444800000, "scopes": ["user:inference"]}}"#;
    fs::create_dir(place.home().join(".claude")).unwrap();
    fs::write(place.home().join(".claude/.credentials.json"), login).unwrap();
    run_in(&place, "docs/broker.md", &commands("docs/broker.md"));
}

/// With the image that the engine of the tests has: it was built by just that command.
#[test]
fn containers() {
    let Some(engine) = engine("docker") else { return };
    let script = commands("docs/containers.md");
    let (building, rest): (Vec<&str>, Vec<&str>) =
        script.lines().partition(|line| line.contains("build-image"));
    assert_eq!(building.len(), 1);
    run_in(&engine.place(place()), "docs/containers.md", &rest.join("\n"));
}
