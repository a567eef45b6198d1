//! Is it here, and what is missing?

use ringfence_core::backend::Finding;
use ringfence_core::config::Settings;

use super::command::{REMEDY, ask, find};
use super::config;
use crate::Surroundings;

pub(super) fn probe(around: &Surroundings, settings: &Settings) -> Vec<Finding> {
    let config = match config::read(settings) {
        Ok(config) => config,
        Err(why) => return vec![Finding::absent("settings", why, "look at `sandbox.apple`")],
    };
    let program = match find(around, &config.runtime_command) {
        Ok(program) => program,
        Err(failure) => {
            return vec![Finding::absent(config.runtime_command, failure.message, REMEDY)];
        }
    };
    let found = Finding::ok(config.runtime_command, program.file.display().to_string());
    let service = match ask(&program, &["system", "status"]) {
        Ok(_) => Finding::ok("service", "it answers"),
        Err(failure) => Finding::absent("service", failure.message, "run `container system start`"),
    };
    let image = match ask(&program, &["image", "inspect", &config.image]) {
        Ok(_) => Finding::ok("image", config.image),
        Err(failure) => {
            let remedy =
                "build it with `ringfence sandbox build-image --mode apple`, or set `sandbox.apple.image`";
            Finding::absent("image", failure.message, remedy)
        }
    };
    vec![found, service, image]
}
