//! The version of an agent CLI without starting it: the CLIs take up to a second to tell it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The version in the package that a program belongs to.
pub(crate) fn of_program(program: &str, path: &str) -> Option<String> {
    let file = locate(program, path)?;
    let file = fs::canonicalize(file).ok()?;
    file.ancestors().skip(1).take(5).find_map(|directory| package_version(&directory.join("package.json")))
}

fn locate(program: &str, path: &str) -> Option<PathBuf> {
    std::env::split_paths(path).map(|directory| directory.join(program)).find(|file| file.is_file())
}

fn package_version(file: &Path) -> Option<String> {
    let package: Value = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
    // Any directory above may hold some package; only one with programs can be the program's own.
    package.get("bin")?;
    Some(format!("{} {}", package.get("name")?.as_str()?, package.get("version")?.as_str()?))
}
