//! Applying an overlay: whatever a run left in it, nothing outside of the workspace changes.
//!
//! The bytes are a list of steps that build a workspace and the layer above it, with links that lead out, marks of the
//! kernel, special files and directories that cannot be entered.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ringfence_core::paths::DirectoryId;
use ringfence_engine::layer::Layer;
use rustix::fs::{CWD, FileType, Mode, XattrFlags, makedev, mknodat, setxattr};

/// Names that a run may choose.
const NAMES: [&[u8]; 8] = [b"a", b"b", b"sub", b"link", b".git", b"...", b"\n\x1b[2J", b"\xff"];
/// Where links lead.
const TARGETS: [&str; 8] =
    ["../outside", "..", ".", "/", "../outside/file", "sub/../../outside", "a", "/proc/self/fd"];
/// Steps beyond this number are left out, and so are deeper paths.
const MAX_STEPS: usize = 40;
const MAX_DEPTH: usize = 4;

/// Builds what the bytes say, applies the layer, looks outside, and throws it away.
pub fn check(data: &[u8]) {
    let place = tempfile::tempdir().expect("a temporary directory");
    let root = place.path();
    let outside = root.join("outside");
    for directory in ["outside", "outside/sub", "workspace", "layer", "layer/upper", "layer/work"] {
        fs::create_dir(root.join(directory)).expect("a directory");
    }
    for file in ["file", "sub/a", "a"] {
        fs::write(outside.join(file), "outside").expect("a file");
    }
    for step in data.chunks_exact(4).take(MAX_STEPS) {
        build(root, step);
    }
    let marker = root.join("marker");
    // Later than all that was built, so that nothing counts as changed meanwhile.
    let later = SystemTime::now() + Duration::from_secs(3600);
    let made = fs::File::create(&marker).and_then(|file| file.set_modified(later));
    made.expect("a marker");
    let before = seen(&outside);
    let workspace = root.join("workspace").canonicalize().expect("the workspace");
    let data = workspace.metadata().expect("the workspace");
    let id = DirectoryId { device: data.dev(), inode: data.ino() };
    if let Ok(layer) = Layer::open(&root.join("layer"), &workspace, id, &marker) {
        let changes = layer.changes();
        assert!(
            changes.list.iter().all(|change| is_inside(&change.path)),
            "a change is outside: {changes:?}"
        );
        let applied = layer.apply(&changes, &|_| true);
        assert_eq!(before, seen(&outside), "applying changed what is outside");
        assert!(applied.iter().flat_map(|done| &done.applied).all(|path| is_inside(path)));
        let _ = Layer::discard_at(&root.join("layer"));
    }
    assert_eq!(before, seen(&outside), "discarding changed what is outside");
    assert!(special_rights(&root.join("workspace")).is_none(), "special rights were applied");
    open_up(root);
}

/// One step: where (workspace or layer), what, under which path, and leading where.
fn build(root: &Path, step: &[u8]) {
    let [what, path, target, more] = step else { return };
    let in_layer = what & 0x80 == 0;
    let base = root.join(if in_layer { "layer/upper" } else { "workspace" });
    let place = base.join(path_of(*path, *more));
    if place.parent().is_none_or(|parent| !stays_in(&base, parent)) {
        return;
    }
    let target_path = TARGETS[usize::from(*target) % TARGETS.len()];
    match what & 0x0f {
        0 | 1 => drop(fs::create_dir_all(&place)),
        2 | 3 => drop(fs::File::create_new(&place).and_then(|mut file| file.write_all(&[*target; 3]))),
        4 => drop(symlink(target_path, &place)),
        5 => drop(symlink(root.join("outside"), &place)),
        6 if in_layer => device(&place),
        7 if in_layer && place.is_dir() && !place.is_symlink() => mark(&place, c"user.overlay.opaque", b"y"),
        8 if in_layer && stays_in(&base, &place) => mark(&place, c"user.ringfence.stand-in", b"1"),
        9 => drop(mknodat(CWD, &place, FileType::Fifo, Mode::RUSR, 0)),
        10 if in_layer && stays_in(&base, &place) => {
            let mode = [0o000, 0o777, 0o4755, 0o6755][usize::from(*target) % 4];
            drop(fs::set_permissions(&place, Permissions::from_mode(mode)));
        }
        11 => drop(fs::hard_link(base.join(OsStr::from_bytes(NAMES[usize::from(*target) % 8])), &place)),
        12 => drop(fs::File::create_new(&place).and_then(|file| file.set_len(1 << 20))),
        _ => {}
    }
}

fn path_of(path: u8, more: u8) -> PathBuf {
    let bits = u16::from_le_bytes([path, more]);
    let depth = 1 + usize::from(bits >> 14) % MAX_DEPTH;
    let name = |level: usize| OsStr::from_bytes(NAMES[usize::from(bits >> (3 * level)) % NAMES.len()]);
    (0..depth).map(name).collect()
}

/// Whether a path is there and no link leads out of its base: a step builds only what a run could have built.
fn stays_in(base: &Path, path: &Path) -> bool {
    let (Ok(base), Ok(path)) = (base.canonicalize(), path.canonicalize()) else { return false };
    path.starts_with(base)
}

fn is_inside(path: &Path) -> bool {
    path.components().all(|part| matches!(part, std::path::Component::Normal(_)))
}

/// What the kernel leaves for a file that was deleted.
fn device(place: &Path) {
    let _ = mknodat(CWD, place, FileType::CharacterDevice, Mode::empty(), makedev(0, 0));
}

fn mark(place: &Path, name: &std::ffi::CStr, value: &[u8]) {
    let _ = setxattr(place, name, value, XattrFlags::empty());
}

/// Everything below a directory: permissions, time and content.
fn seen(directory: &Path) -> BTreeMap<PathBuf, (u32, i64, i64, Vec<u8>)> {
    let mut all = BTreeMap::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            let (path, data) = (entry.path(), entry.metadata().expect("its data"));
            if data.is_dir() {
                directories.push(path.clone());
            }
            let content = if data.is_file() { fs::read(&path).unwrap_or_default() } else { Vec::new() };
            all.insert(path, (data.mode(), data.mtime(), data.mtime_nsec(), content));
        }
    }
    all
}

/// A file of the workspace that would run with its owner's rights.
fn special_rights(directory: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.into_iter().find_map(|entry| {
        let data = entry.metadata().ok()?;
        if data.is_dir() {
            special_rights(&entry.path())
        } else {
            (data.mode() & 0o6000 != 0).then(|| entry.path())
        }
    })
}

/// So that the temporary directory can go.
fn open_up(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let _ = fs::set_permissions(entry.path(), Permissions::from_mode(0o700));
            open_up(&entry.path());
        }
    }
}

/// Lists of steps: what, path, target, more.
pub fn seeds() -> Vec<Vec<u8>> {
    vec![
        vec![2, 0, 1, 0],
        vec![0, 0, 0, 0, 2, 8, 1, 0x40],
        // A link out in the workspace, and a directory of that name with a file in the layer.
        vec![0x85, 2, 0, 0, 0, 2, 0, 0, 2, 2, 7, 0x40],
        // The same with links that the run made.
        vec![0x80, 2, 0, 0, 5, 2, 0, 0],
        vec![4, 3, 0, 0, 4, 3, 1, 0x40],
        // Files that go: one, a directory, what a link leads to.
        vec![0x82, 0, 1, 0, 6, 0, 0, 0],
        vec![0x80, 2, 0, 0, 0x82, 2, 1, 0x40, 6, 2, 0, 0],
        vec![0x85, 2, 0, 0, 6, 2, 0, 0],
        // A directory that hides what is below it.
        vec![0x80, 2, 0, 0, 0x82, 2, 1, 0x40, 0, 2, 0, 0, 7, 2, 0, 0],
        vec![0x85, 2, 0, 0, 0, 2, 0, 0, 7, 2, 0, 0],
        // Special rights, special files, marks and names.
        vec![2, 0, 1, 0, 10, 0, 2, 0, 9, 1, 0, 0, 8, 0, 0, 0, 2, 6, 1, 0, 2, 7, 1, 0],
        vec![0, 2, 0, 0, 2, 2, 1, 0x40, 10, 2, 0, 0],
    ]
}
