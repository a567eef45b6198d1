//! Apple's command: where it is, and what it says.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use ringfence_core::failure::{Failure, FailureClass};

use crate::Surroundings;

/// What the documents call it, and what it is called.
const OLD_NAME: &str = "apple-container";
const NAME: &str = "container";
pub(super) const REMEDY: &str =
    "on a Mac with Apple silicon, install Apple's `container` and run `container system start`";

/// The program of the settings. One by the name of the documents is also found by its own.
pub(super) fn find(around: &Surroundings, name: &str) -> Result<Program, Failure> {
    let found = around.find(name).or_else(|| (name == OLD_NAME).then(|| around.find(NAME)).flatten());
    let found = found.ok_or_else(|| {
        let message = format!("`{name}` was not found in PATH");
        Failure::new(FailureClass::RuntimeMissing, message).with_remedy(REMEDY)
    })?;
    Ok(Program { file: found, path: around.programs.path() })
}

/// The program, and the `PATH` that it searches for programs of its own.
#[derive(Debug, Clone)]
pub(super) struct Program {
    pub(super) file: PathBuf,
    path: OsString,
}

/// What it prints, or what it complains of.
pub(super) fn ask(program: &Program, words: &[&str]) -> Result<String, Failure> {
    let mut command = Command::new(&program.file);
    command.args(words).env("PATH", &program.path).current_dir("/");
    let asked = command.stdin(Stdio::null()).output();
    let output = asked.map_err(|error| Failure::new(FailureClass::RuntimeMissing, error.to_string()))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(classify(&output))
}

fn classify(output: &Output) -> Failure {
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let says = |any: &[&str]| any.iter().any(|part| words.to_ascii_lowercase().contains(part));
    if says(&["xpc connection", "container system start", "not running", "apiserver"]) {
        return Failure::new(FailureClass::DaemonDown, words).with_remedy("run `container system start`");
    }
    if says(&["not found", "notfound", "no such image"]) {
        return Failure::new(FailureClass::ImageMissing, words)
            .with_remedy("build it with `ringfence sandbox build-image --mode apple`");
    }
    Failure::new(FailureClass::Unknown, words)
}
