//! The version of an agent CLI without starting it: the CLIs take up to a second to tell it.

use std::path::{Path, PathBuf};

use ringfence_workspace::Directory;
use serde_json::Value;

/// No description of a package is longer, in bytes.
const MAX_PACKAGE_BYTES: u64 = 1 << 20;

/// The version in the package that a program belongs to.
pub(crate) fn of_program(program: &str, path: &str) -> Option<String> {
    let file = locate(program, path)?;
    file.ancestors().skip(1).take(5).find_map(package_version)
}

/// The program as the host would find it, links resolved. A part of `PATH` that is not absolute depends on the workspace.
#[expect(clippy::disallowed_methods, reason = "PATH is the user's; the program is neither read nor started")]
fn locate(program: &str, path: &str) -> Option<PathBuf> {
    let places = std::env::split_paths(path).filter(|directory| directory.is_absolute());
    let file = places.map(|directory| directory.join(program)).find(|file| file.is_file())?;
    std::fs::canonicalize(file).ok()
}

fn package_version(directory: &Path) -> Option<String> {
    let text = Directory::open(directory).ok()?.read(Path::new("package.json"), MAX_PACKAGE_BYTES).ok()?;
    let package: Value = serde_json::from_slice(&text).ok()?;
    // Any directory above may hold some package; only one with programs can be the program's own.
    package.get("bin")?;
    Some(format!("{} {}", package.get("name")?.as_str()?, package.get("version")?.as_str()?))
}
