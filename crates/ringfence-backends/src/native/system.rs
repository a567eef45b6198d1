//! What every run sees of this machine: the parts of its system, and where the program is.
#![expect(clippy::disallowed_methods, reason = "parts of the system, which no run writes")]

use std::fs;
use std::path::{Path, PathBuf};

use ringfence_core::backend::LaunchError;
use ringfence_core::plan::Request;

use crate::shared::program::locate;
use crate::shared::survey::real;

/// The parts of a system that programs need to run.
const PARTS: [&str; 11] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/gnu"];

/// What even the read-only system must not show.
const SECRETS: [&str; 15] = [
    "/etc/security/opasswd",
    "/etc/letsencrypt",
    "/etc/kubernetes",
    "/etc/krb5.keytab",
    "/etc/wireguard",
    "/etc/openvpn",
    "/etc/NetworkManager/system-connections",
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssh",
    "/etc/ssl/private",
];

/// What every run sees of this machine.
#[derive(Debug)]
pub(super) struct System {
    pub(super) parts: Vec<Part>,
    /// What must not be seen, and whether it is a directory.
    pub(super) secrets: Vec<(PathBuf, bool)>,
}

/// A part of the system.
#[derive(Debug)]
pub(super) enum Part {
    Directory(PathBuf),
    Link(PathBuf, PathBuf),
}

/// The program of a run, links resolved.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    /// What has to be seen for it to run, besides the system.
    pub(super) tree: Option<PathBuf>,
}

/// Looks for the program.
pub(super) fn program(request: &Request) -> Result<Program, LaunchError> {
    let name = request.argv.first().map(String::as_str).unwrap_or_default();
    let path = request.env.get("PATH").map(String::as_str);
    let found = locate(name, path, request.workspace.host().as_path())?;
    let path = fs::canonicalize(&found).unwrap_or(found);
    Ok(Program { tree: tree(&path), path })
}

/// Looks at the system.
pub(super) fn system() -> System {
    let part = |path: &str| {
        let path = PathBuf::from(path);
        let data = fs::symlink_metadata(&path).ok()?;
        if data.is_symlink() {
            return fs::read_link(&path).ok().map(|to| Part::Link(path, to));
        }
        data.is_dir().then_some(Part::Directory(path))
    };
    System {
        parts: PARTS.iter().filter_map(|path| part(path)).collect(),
        secrets: SECRETS.iter().filter_map(|path| real(Path::new(path))).collect(),
    }
}

/// What belongs to a program that is not part of the system: its packages, or itself alone.
fn tree(program: &Path) -> Option<PathBuf> {
    if PARTS.iter().any(|part| program.starts_with(part)) {
        return None;
    }
    let packages = program.ancestors().filter(|path| path.ends_with("node_modules")).last();
    Some(packages.unwrap_or(program).to_owned())
}
