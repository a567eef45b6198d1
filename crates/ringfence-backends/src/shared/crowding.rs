//! Covers whole directories where too many paths would have to be covered one by one. Pure.
//!
//! A run can leave any number of files that a later run must not read or write. Each cover is a mount, so their number is
//! bounded; the price is that innocent files beside them are covered too, which the run reports.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

/// More covers in one directory than this, and the whole directory is covered. They are lowered until the covers fit.
const THRESHOLDS: [usize; 7] = [64, 32, 16, 8, 4, 2, 1];
/// Deepest directory that is chosen, counted from the root. Bounds the work for paths of many parts.
const MAX_DEPTH: usize = 8;
/// Most bytes that the gate is told of a cover besides its paths.
const BYTES_BESIDE_PATH: usize = 64;

/// How much may be covered one by one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    pub(super) covers: usize,
    /// Bytes of their paths, as [`bytes`] counts.
    pub(super) bytes: usize,
}

/// Bytes that a cover takes in what the gate is told, at most: its path where it is seen and where it is on the host, and what
/// is said of it.
pub(super) fn bytes(path: &Path) -> usize {
    2 * path.as_os_str().len() + BYTES_BESIDE_PATH
}

/// Chooses directories below `root` that are covered as a whole, so that what is left to cover below it is within `limit`, if
/// that is possible: the deepest that suffice, and those with the most covers first. The root itself is never chosen.
pub(super) fn choose<'a>(
    paths: impl IntoIterator<Item = &'a Path>,
    root: &Path,
    limit: Limit,
) -> BTreeSet<PathBuf> {
    let below = paths.into_iter().filter_map(|path| path.strip_prefix(root).ok());
    let mut covers: HashSet<PathBuf> =
        below.filter(|path| !path.as_os_str().is_empty()).map(Path::to_owned).collect();
    let mut chosen = BTreeSet::new();
    for threshold in THRESHOLDS {
        while is_more(&covers, root, limit) {
            let crowded = crowded(&covers, threshold);
            if crowded.is_empty() {
                break;
            }
            covers.retain(|path| !is_within(path, &crowded));
            chosen.retain(|path: &PathBuf| !is_within(path, &crowded));
            covers.extend(crowded.iter().cloned());
            chosen.extend(crowded);
        }
    }
    chosen.into_iter().map(|path| root.join(path)).collect()
}

fn is_more(covers: &HashSet<PathBuf>, root: &Path, limit: Limit) -> bool {
    let above = bytes(root);
    covers.len() > limit.covers || covers.iter().map(|path| above + bytes(path)).sum::<usize>() > limit.bytes
}

/// Whether a path lies below one of these directories.
pub(super) fn is_within(path: &Path, directories: &BTreeSet<PathBuf>) -> bool {
    path.ancestors().skip(1).any(|above| directories.contains(above))
}

/// The deepest directories with more covers below them than `threshold`.
fn crowded(covers: &HashSet<PathBuf>, threshold: usize) -> BTreeSet<PathBuf> {
    let mut totals: HashMap<&Path, usize> = HashMap::new();
    for path in covers {
        let depth = path.components().count();
        for above in path.ancestors().skip(1 + depth.saturating_sub(MAX_DEPTH + 1)) {
            *totals.entry(above).or_default() += 1;
        }
    }
    totals.remove(Path::new(""));
    totals.retain(|_, total| *total > threshold);
    let outer: HashSet<&Path> = totals.keys().filter_map(|path| path.parent()).collect();
    totals.keys().filter(|path| !outer.contains(*path)).map(|path| path.to_path_buf()).collect()
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use ringfence_core::paths::DirectoryId;
    use ringfence_linux::{Access, Covered, Step};

    use super::{Limit, bytes, choose};

    fn chosen(paths: &[String], limit: usize) -> Vec<PathBuf> {
        let paths: Vec<&Path> = paths.iter().map(Path::new).collect();
        let limit = Limit { covers: limit, bytes: usize::MAX };
        choose(paths, Path::new("/w"), limit).into_iter().collect()
    }

    fn numbered(name: &str, count: usize) -> Vec<String> {
        (0..count).map(|number| name.replace('#', &number.to_string())).collect()
    }

    #[test]
    fn few_covers_stay_as_they_are() {
        assert_eq!(chosen(&numbered("/w/a/#.env", 100), 100), Vec::<PathBuf>::new());
    }

    #[test]
    fn the_deepest_directory_that_holds_many_is_chosen() {
        let paths = [numbered("/w/a/x/#/.env", 5000), numbered("/w/b/#.env", 3)].concat();
        assert_eq!(chosen(&paths, 100), [PathBuf::from("/w/a/x")]);
    }

    #[test]
    fn many_directories_with_few_each_are_chosen_in_the_end() {
        let paths: Vec<String> =
            (0..100).flat_map(|number| numbered(&format!("/w/{number}/#"), 60)).collect();
        assert_eq!(chosen(&paths, 150).len(), 100);
    }

    #[test]
    fn the_root_and_what_is_outside_are_never_chosen() {
        let paths = [numbered("/w/#.env", 500), numbered("/other/#.env", 500)].concat();
        assert_eq!(chosen(&paths, 10), Vec::<PathBuf>::new());
    }

    #[test]
    fn deep_paths_are_covered_at_a_bounded_depth() {
        let paths = numbered(&format!("/w{}/#/.env", "/d".repeat(100)), 500);
        assert_eq!(chosen(&paths, 10), [PathBuf::from(format!("/w{}", "/d".repeat(8)))]);
    }

    #[test]
    fn few_covers_with_long_paths_are_too_many() {
        let long = "d".repeat(200);
        let paths = numbered(&format!("/w/{long}/{long}/#/.env"), 100);
        let paths: Vec<&Path> = paths.iter().map(Path::new).collect();
        let choose = |bytes| choose(paths.clone(), Path::new("/w"), Limit { covers: 1000, bytes });
        assert_eq!(choose(200_000).len(), 0);
        assert_eq!(choose(50_000).into_iter().collect::<Vec<_>>(), [Path::new("/w").join(&long).join(&long)]);
    }

    #[test]
    fn bytes_of_a_cover_suffice_for_what_the_gate_is_told() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;
        let names: [&[u8]; 5] =
            [b"plain", b"a\"b\\c", b"\n\x01\x1f\x7f", "\u{e4}\u{20ac}".as_bytes(), b"\xff\xfe"];
        for name in names {
            let path = Path::new(OsStr::from_bytes(name));
            let id = DirectoryId { device: u64::MAX, inode: u64::MAX };
            let covered = Some(Covered { id, below: path.to_str().map(PathBuf::from) });
            let step = Step::Hold { target: path.to_owned(), access: Access::Read, covered };
            let told = ringfence_gate::encode(&step).unwrap();
            assert!(told.len() <= bytes(path), "{} for {}", told.len(), path.display());
        }
    }
}
