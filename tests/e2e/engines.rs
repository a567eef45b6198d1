//! The container engines that `cargo xtask engines` has started.

use std::path::Path;

use serde_json::Value;

use crate::support::{Place, Ran};

/// One engine, and who uses it.
#[derive(Debug, Clone)]
pub(crate) struct Engine {
    pub(crate) mode: &'static str,
    variable: &'static str,
    pub(crate) address: String,
    /// The person whose own it is, if it is not root's.
    person: Option<u32>,
}

/// All of them. Where there are none their tests have nothing to do, except where everything has to be tested.
pub(crate) fn engines() -> Vec<Engine> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/engines/engines.json");
    let Ok(text) = std::fs::read_to_string(file) else {
        assert!(std::env::var_os("CI").is_none(), "the engines are not there: run `cargo xtask engines`");
        return Vec::new();
    };
    let all: Value = serde_json::from_str(&text).unwrap();
    let person = all["person"].as_u64().map(|uid| u32::try_from(uid).unwrap());
    [("docker", "docker", "DOCKER_HOST", None), ("podman", "podman", "CONTAINER_HOST", None)]
        .into_iter()
        .chain([("rootless", "podman", "CONTAINER_HOST", person)])
        .map(|(name, mode, variable, person)| {
            let address = all[name].as_str().unwrap().to_owned();
            Engine { mode, variable, address, person }
        })
        .collect()
}

/// The first of a mode.
pub(crate) fn engine(mode: &str) -> Option<Engine> {
    engines().into_iter().find(|engine| engine.mode == mode)
}

impl Engine {
    /// Whether it is root's.
    pub(crate) fn is_roots(&self) -> bool {
        self.person.is_none()
    }

    /// The variable that says where it is.
    pub(crate) fn variable(&self) -> (String, String) {
        (self.variable.to_owned(), self.address.clone())
    }

    /// The same place, from which it is seen, and which belongs to who uses it.
    pub(crate) fn place(&self, place: Place) -> Place {
        let place = place.env(self.variable, &self.address);
        match self.person {
            Some(person) => place.of_user(person),
            None => place,
        }
    }

    /// Runs something in it.
    pub(crate) fn exec(&self, place: &Place, more: &[&str], script: &str) -> Ran {
        let args = [&["exec", "--mode", self.mode], more, &["--", "sh", "-c", script]].concat();
        place.run(&args)
    }

    /// What the engine's own command line says.
    pub(crate) fn ask(&self, args: &[&str]) -> String {
        let mut command = std::process::Command::new(self.mode);
        match self.mode {
            "docker" => command.args(["--host", &self.address]),
            _ => command.args(["--url", &self.address]),
        };
        let output = command.args(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The containers of an installation, running or not.
    pub(crate) fn containers(&self, place: &Place) -> Vec<String> {
        let owner = format!("label=ringfence.owner={}", place.state().display());
        let names = self.ask(&["ps", "--all", "--filter", &owner, "--format", "{{.Names}}"]);
        names.lines().map(str::to_owned).collect()
    }
}
