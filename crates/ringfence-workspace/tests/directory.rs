//! What a directory that is held open does with everything that a run can put below it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods, reason = "a test may")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use ringfence_workspace::{Directory, DirectoryError, Existing, ReadError};
use tempfile::TempDir;

fn place() -> (TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().canonicalize().unwrap();
    fs::create_dir_all(path.join("a/b/c")).unwrap();
    fs::create_dir(path.join("outside")).unwrap();
    fs::write(path.join("outside/secret"), "secret").unwrap();
    (place, path)
}

#[test]
fn a_link_at_any_part_of_the_path_is_refused() {
    for part in ["a", "a/b", "a/b/c"] {
        let (_place, path) = place();
        let known = Directory::open(&path.join("a/b/c")).unwrap().id();
        fs::rename(path.join(part), path.join("moved")).unwrap();
        symlink(path.join("moved"), path.join(part)).unwrap();
        let opened = Directory::open_known(&path.join("a/b/c"), known);
        assert!(matches!(opened, Err(DirectoryError::Link(_))), "{part}: {opened:?}");
    }
}

#[test]
fn another_directory_at_any_part_of_the_path_is_refused() {
    for part in ["a", "a/b", "a/b/c"] {
        let (_place, path) = place();
        let known = Directory::open(&path.join("a/b/c")).unwrap().id();
        assert!(Directory::open_known(&path.join("a/b/c"), known).is_ok());
        fs::rename(path.join(part), path.join("moved")).unwrap();
        fs::create_dir_all(path.join("a/b/c")).unwrap();
        let opened = Directory::open_known(&path.join("a/b/c"), known).unwrap_err();
        assert!(matches!(opened, DirectoryError::Replaced(_)), "{part}: {opened:?}");
        assert!(opened.remedy().unwrap().contains("task retry"));
    }
}

#[test]
fn no_operation_leaves_the_directory_or_follows_a_link() {
    let (_place, path) = place();
    let root = Directory::open(&path.join("a")).unwrap();
    symlink(path.join("outside"), path.join("a/link")).unwrap();
    symlink(path.join("outside/secret"), path.join("a/secret")).unwrap();
    for name in ["link/secret", "../outside/secret", "secret", "/etc/passwd"] {
        let name = Path::new(name);
        assert!(root.read(name, 100).is_err(), "{}", name.display());
        assert!(root.file(name).is_err(), "{}", name.display());
    }
    for name in ["link/new", "../outside/new", "/tmp/new"] {
        let name = Path::new(name);
        assert!(root.create_file(name, 0o600).is_err(), "{}", name.display());
        assert!(root.create_directory(name, 0o700).is_err(), "{}", name.display());
        assert!(root.create_link(name, Path::new("x")).is_err(), "{}", name.display());
        assert!(root.rename(Path::new("b"), name, Existing::Replace).is_err(), "{}", name.display());
    }
    for name in ["link/secret", "../outside/secret"] {
        let name = Path::new(name);
        assert!(root.remove_file(name).is_err() && root.set_permissions(name, 0o777).is_err());
    }
    assert!(root.set_permissions(Path::new("secret"), 0o777).is_err());
    let left: Vec<_> =
        fs::read_dir(path.join("outside")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["secret"]);
    assert_ne!(fs::metadata(path.join("outside/secret")).unwrap().permissions().mode() & 0o777, 0o777);
}

#[test]
fn only_regular_files_of_a_bounded_length_are_read() {
    let (_place, path) = place();
    let root = Directory::open(&path).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(path.join("fifo")).status().unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(path.join("socket")).unwrap();
    fs::File::create(path.join("sparse")).unwrap().set_len(1 << 40).unwrap();
    fs::write(path.join("binary"), [0xff]).unwrap();
    for name in ["fifo", "socket", "a"] {
        assert!(root.read(Path::new(name), 100).is_err(), "{name}");
    }
    assert!(matches!(root.read(Path::new("sparse"), 100), Err(ReadError::TooLong { limit: 100 })));
    assert!(matches!(root.read_text(Path::new("binary"), 100), Err(ReadError::NotText)));
    assert!(root.read(Path::new("missing"), 100).unwrap_err().is_missing());
    assert_eq!(root.read_text(Path::new("outside/secret"), 6).unwrap(), "secret");
}
