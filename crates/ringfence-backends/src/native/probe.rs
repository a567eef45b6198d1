//! Is it here, and what is missing?

use ringfence_core::backend::Finding;
use ringfence_core::config::Settings;

use crate::Surroundings;
use crate::shared::probing;

pub(super) fn probe(_: &Surroundings, _: &Settings) -> Vec<Finding> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let limit = std::fs::read_to_string("/proc/sys/user/max_user_namespaces").unwrap_or_default();
    let namespaces = if limit.trim().parse::<u64>().is_ok_and(|count| count > 0) {
        Finding::ok("user namespaces", format!("kernel {release}, up to {}", limit.trim()))
    } else {
        Finding::absent(
            "user namespaces",
            format!("kernel {release} allows none"),
            "set the sysctl user.max_user_namespaces above 0",
        )
    };
    vec![namespaces, probing::no_driver()]
}
