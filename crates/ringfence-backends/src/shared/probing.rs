//! Questions that several probes ask.

use ringfence_core::backend::Finding;

use super::surroundings::Surroundings;

/// Whether one of these programs is here.
pub(crate) fn program(around: &Surroundings, names: &[&str], remedy: &str) -> Finding {
    let subject = names.join(" or ");
    match names.iter().find_map(|name| around.find(name)) {
        Some(path) => Finding::ok(subject, path.display().to_string()),
        None => Finding::absent(subject, "not found in PATH", remedy),
    }
}

/// What every mode without a driver says.
pub(crate) fn no_driver() -> Finding {
    Finding::absent(
        "driver",
        "this version of ringfence cannot run agents in this mode",
        "choose another mode",
    )
}

/// Whether the kernel is this one or newer.
pub(crate) fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    let (_, release) = kernel();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(major), Some(minor))
}

/// The kernel, for the record.
pub(crate) fn kernel() -> (String, String) {
    ("kernel".into(), rustix::system::uname().release().to_string_lossy().into_owned())
}
