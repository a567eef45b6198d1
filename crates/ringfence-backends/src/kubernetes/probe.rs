//! Is it here, and what is missing?
#![expect(clippy::disallowed_methods, reason = "programs and settings of the machine, for doctor")]

use ringfence_core::backend::Finding;
use ringfence_core::config::Settings;

use crate::Surroundings;
use crate::shared::probing;

pub(super) fn probe(around: &Surroundings, _: &Settings) -> Vec<Finding> {
    let config = around.home.join(".kube/config");
    let found = if config.exists() {
        Finding::ok("kubeconfig", config.display().to_string())
    } else {
        Finding::absent(
            "kubeconfig",
            format!("{} is not there", config.display()),
            "get a kubeconfig for your cluster",
        )
    };
    vec![found, probing::no_driver()]
}
