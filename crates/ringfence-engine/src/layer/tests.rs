//! Limits that an agent would have to work long to reach.
#![allow(clippy::disallowed_methods, reason = "a test may")]

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use ringfence_workspace::Directory;
use tempfile::TempDir;

use super::renames::RenameLimits;
use super::{Layer, Limits, What};

/// A workspace, an upper directory over it, and a file that is older than both.
struct Place {
    directory: TempDir,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for path in ["workspace", "run", "run/layer", "run/layer/upper"] {
            fs::create_dir(directory.path().join(path)).unwrap();
        }
        Self { directory }
    }

    fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.directory.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Makes the directory opaque, so that everything below it is removed.
    fn hide_workspace(&self) {
        let upper = self.directory.path().join("run/layer/upper");
        rustix::fs::setxattr(&upper, c"user.overlay.opaque", b"y", rustix::fs::XattrFlags::empty()).unwrap();
    }

    fn layer(&self) -> Layer {
        let marker = self.directory.path().join("run/record.json");
        fs::write(&marker, "").unwrap();
        let workspace = self.directory.path().join("workspace").canonicalize().unwrap();
        let id = Directory::open(&workspace).unwrap().id();
        Layer::open(&self.directory.path().join("run/layer"), &workspace, id, &marker).unwrap()
    }
}

fn limits(files: usize, bytes: u64) -> Limits {
    Limits { renames: RenameLimits { files, bytes }, ..Limits::DEFAULT }
}

/// Files of one length on both sides: with pairs this would be 40 × 60 comparisons.
#[test]
fn each_candidate_of_a_rename_is_read_once() {
    let place = Place::new();
    for number in 0..40 {
        place.write(&format!("workspace/old{number:03}"), format!("{number:04}"));
    }
    for number in 0..60 {
        place.write(&format!("run/layer/upper/new{number:03}"), format!("{:04}", number + 20));
    }
    place.write("run/layer/upper/other-length", "12345");
    place.hide_workspace();
    let changes = place.layer().changes();
    assert_eq!(changes.digests, 100);
    let renamed =
        changes.list.iter().filter(|change| matches!(change.what, What::Added { renamed_from: Some(_) }));
    assert_eq!(renamed.count(), 20);
    let first = changes.list.iter().find(|change| change.path == Path::new("new000")).unwrap();
    assert_eq!(first.what, What::Added { renamed_from: Some("old020".into()) });
}

#[test]
fn beyond_its_limits_no_rename_is_looked_for_and_that_is_said() {
    let place = Place::new();
    for number in 0..4 {
        place.write(&format!("workspace/old{number}"), "same");
        place.write(&format!("run/layer/upper/new{number}"), "same");
    }
    place.hide_workspace();
    for limits in [limits(7, 1 << 20), limits(8, 31)] {
        let changes = place.layer().changes_within(&limits);
        assert_eq!((changes.digests, changes.list.len()), (0, 8));
        assert!(
            changes.notices[0].starts_with("renames are not shown: 8 files with 32 bytes"),
            "{:?}",
            changes.notices
        );
        let plain = [What::ADDED, What::REMOVED];
        assert!(changes.list.iter().all(|change| plain.contains(&change.what)));
    }
    assert_eq!(place.layer().changes_within(&limits(8, 32)).digests, 8);
}

#[test]
fn the_list_of_changes_is_bounded_by_number_and_bytes() {
    let place = Place::new();
    for number in 0..9 {
        place.write(&format!("run/layer/upper/{number}"), "x");
    }
    for limits in [Limits { entries: 5, ..Limits::DEFAULT }, Limits { path_bytes: 5, ..Limits::DEFAULT }] {
        let changes = place.layer().changes_within(&limits);
        assert!(changes.is_truncated && changes.list.len() == 5, "{changes:?}");
        assert!(changes.notices[0].contains("more files than are listed (5)"), "{:?}", changes.notices);
    }
    // What is not listed is neither applied nor lost.
    let layer = place.layer();
    let changes = layer.changes_within(&Limits { entries: 5, ..Limits::DEFAULT });
    let applied = layer.apply(&changes, &|_| true).unwrap();
    assert_eq!((applied.applied.len(), applied.conflicts.len()), (5, 0));
    assert_eq!(place.layer().changes().list.len(), 4);
}

#[test]
fn large_files_of_one_length_count_as_changed_without_being_read() {
    let place = Place::new();
    for side in ["workspace", "run/layer/upper"] {
        place.write(&format!("{side}/small"), "12345678");
        place.write(&format!("{side}/large"), "123456789");
    }
    let changes = place.layer().changes_within(&Limits { compared_bytes: 8, ..Limits::DEFAULT });
    let paths: Vec<&Path> = changes.list.iter().map(|change| change.path.as_path()).collect();
    assert_eq!(paths, [Path::new("large")]);
    assert!(changes.notices[0].contains("were not compared"), "{:?}", changes.notices);
}

#[test]
fn noting_ends_at_its_deadline_and_when_it_is_cancelled() {
    let place = Place::new();
    place.write("workspace/a", "1");
    place.write("run/layer/upper/a", "2");
    let (later, now) = (Instant::now() + Duration::from_secs(3600), Instant::now());
    let note = |deadline, is_cancelled: bool| place.layer().note(deadline, &move || is_cancelled).unwrap();
    assert!(note(now, false).unwrap().contains("more files than could be looked at"));
    assert!(note(later, true).is_some());
    assert_eq!(place.layer().known.len(), 0);
    assert_eq!(note(later, false), None);
    assert_eq!(place.layer().known.len(), 1);
}

/// A path that no call of the kernel takes is reported, and what is above it can be applied.
#[test]
fn what_is_too_deep_is_a_conflict_and_the_rest_is_applied() {
    let place = Place::new();
    place.write("run/layer/upper/plain", "1");
    let upper = place.directory.path().join("run/layer/upper").canonicalize().unwrap();
    let mut inner = Directory::open(&upper).unwrap();
    for _ in 0..2_100 {
        inner.create_directory(Path::new("d"), 0o700).unwrap();
        inner = inner.directory(Path::new("d")).unwrap();
    }
    let layer = place.layer();
    let changes = layer.changes();
    let deep: Vec<_> = changes.list.iter().filter(|change| change.conflict.is_some()).collect();
    assert_eq!((deep.len(), deep[0].path.as_os_str().len()), (1, 4097));
    let applied = layer.apply(&changes, &|path| path.as_os_str().len() < 4000).unwrap();
    assert_eq!((applied.applied.len(), applied.conflicts.len()), (2_001, 0));
    place.layer().discard().unwrap();
    assert!(!place.directory.path().join("run/layer").exists());
}

#[test]
fn many_files_are_applied_in_batches_in_their_order() {
    let place = Place::new();
    place.write("workspace/changed", "before");
    for number in 0..300 {
        place.write(&format!("run/layer/upper/d{}/{number:03}", number % 3), number.to_string());
    }
    place.write("run/layer/upper/changed", "after");
    let layer = place.layer();
    let changes = layer.changes();
    let applied = layer.apply(&changes, &|_| true).unwrap();
    assert_eq!((applied.applied.len(), applied.conflicts.len()), (304, 0), "{:?}", applied.conflicts);
    assert!(applied.applied.is_sorted());
    let workspace = place.directory.path().join("workspace");
    assert_eq!(std::fs::read_to_string(workspace.join("d2/299")).unwrap(), "299");
    assert_eq!(std::fs::read_to_string(workspace.join("changed")).unwrap(), "after");
    let names = std::fs::read_dir(workspace.join("d0")).unwrap().count();
    assert_eq!(names, 100, "no temporary name is left");
}

/// Control characters are six bytes each in the note of what lies below, which has to be short enough to be read again.
#[test]
fn names_are_charged_as_they_are_written() {
    for name in ["plain", "\u{1}\u{1f}\n\t", "\"quoted\\", "ä€"] {
        let written = serde_json::to_string(Path::new(name)).unwrap().len() - 2;
        assert!(super::changes::written_length(Path::new(name)) >= written, "{name:?}");
    }
}

/// Directories of one name in another, each of which could make the one above it a repository: decided once for each directory.
#[test]
fn nested_names_of_git_are_decided_once_for_each_directory() {
    let place = Place::new();
    let deep = "refs/".repeat(300);
    for number in 0..2000 {
        place.write(&format!("run/layer/upper/{deep}{number}"), "");
    }
    place.write("run/layer/upper/bare/HEAD", "ref: x");
    for name in ["objects/a/x", "refs/y"] {
        place.write(&format!("run/layer/upper/bare/{name}"), "");
    }
    let changes = place.layer().changes();
    assert!(changes.lookups < 2000, "{} lookups for {} changes", changes.lookups, changes.list.len());
    let marked = changes.list.iter().filter(|change| change.executed_by.is_some());
    assert_eq!(marked.map(|change| change.path.clone()).collect::<Vec<_>>(), [Path::new("bare/HEAD")]);
}

#[test]
fn changes_that_are_not_looked_at_in_time_are_told() {
    let place = Place::new();
    place.write("run/layer/upper/a", "1");
    let limits = Limits { deadline: Some(Instant::now()), ..Limits::DEFAULT };
    let changes = place.layer().changes_within(&limits);
    assert!(changes.is_truncated && changes.notices.iter().any(|notice| notice.contains("in the time")));
    assert_eq!(place.layer().changes().list.len(), 1);
}
