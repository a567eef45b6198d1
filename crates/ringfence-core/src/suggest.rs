//! The nearest valid name, for "did you mean".

/// The candidate that a person most likely meant by `name`, if any is near enough to be worth saying.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let wanted = name.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| (distance(&wanted, &candidate.to_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= candidate.len().max(wanted.len()).div_ceil(3))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// The beginning of a name is as near as a single slip.
fn distance(wanted: &str, candidate: &str) -> usize {
    if wanted.len() >= 2 && candidate.starts_with(wanted) {
        return usize::from(candidate != wanted);
    }
    strsim::damerau_levenshtein(wanted, candidate)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn a_slip_of_the_finger_is_recognised_and_nonsense_is_not() {
        assert_eq!(nearest("dokcer", ["docker", "podman"]), Some("docker"));
        assert_eq!(nearest("Docker", ["docker", "podman"]), Some("docker"));
        assert_eq!(nearest("nonsense", ["docker", "podman"]), None);
        assert_eq!(nearest("kube", ["docker", "kubernetes"]), Some("kubernetes"));
        assert_eq!(nearest("x", []), None);
    }
}
