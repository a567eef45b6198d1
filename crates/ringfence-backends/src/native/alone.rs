//! The plan where there are no namespaces: Landlock says which paths of the host are reached, seccomp shuts the rest.
#![expect(
    clippy::disallowed_methods,
    reason = "files of the state directory and of the system, which no run writes"
)]

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use ringfence_core::backend::LaunchError;
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::ids::RunId;
use ringfence_core::plan::Request;
use ringfence_core::policy::WorkspaceAccess;
use ringfence_linux::{Access, Base, Grant, Sandbox, Walls};

use super::system::{Part, Program, System};
use crate::shared::survey::Survey;
use crate::shared::waiting::locked;

/// Harmless things of the kernel that programs look at.
const KERNEL_FILES: [&str; 7] = [
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/uptime",
    "/proc/loadavg",
    "/proc/version",
    "/proc/filesystems",
];
const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];

/// A base of which nothing is built.
pub(super) fn base() -> Base {
    Base { walls: Walls::None, own_network: false, size: String::new(), steps: Vec::new() }
}

/// A directory of the run's own for its home and its temporary files. It goes when this is dropped, or with the next
/// such run if everything was killed.
#[derive(Debug)]
pub(super) struct Own {
    directory: PathBuf,
    lock: Option<File>,
}

impl Own {
    pub(super) fn new(state: &Path, run: &RunId) -> io::Result<Self> {
        let all = state.join("private");
        fs::create_dir_all(&all)?;
        for entry in fs::read_dir(&all)?.flatten() {
            if locked(&entry.path()).is_ok() {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let directory = all.join(run.as_str());
        fs::create_dir(&directory)?;
        let own = Self { lock: Some(locked(&directory)?), directory };
        [own.home(), own.tmp()].iter().try_for_each(fs::create_dir)?;
        Ok(own)
    }

    pub(super) fn home(&self) -> PathBuf {
        self.directory.join("home")
    }

    pub(super) fn tmp(&self) -> PathBuf {
        self.directory.join("tmp")
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        self.lock = None;
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// What is reached. A secret that lies within cannot be kept, so it is a refusal.
pub(super) fn sandbox(
    request: &Request,
    system: &System,
    (program, survey): (&Program, &Survey),
    own: &Own,
) -> Result<Sandbox, LaunchError> {
    let workspace = request.workspace.host().as_path();
    let access = match request.policy.files.workspace {
        WorkspaceAccess::ReadWrite => Access::Write,
        WorkspaceAccess::ReadOnly => Access::Read,
    };
    let parts = system.parts.iter().filter_map(|part| match part {
        Part::Directory(path) => Some((path.clone(), Access::Read)),
        // What it leads to is granted by itself.
        Part::Link(..) => None,
    });
    let shown = survey
        .shown
        .iter()
        .map(|(path, write)| (path.clone(), if *write { Access::Write } else { Access::Read }));
    let devices = DEVICES.iter().map(|path| (PathBuf::from(path), Access::Write));
    let kernel = KERNEL_FILES.iter().map(|path| (PathBuf::from(path), Access::Read));
    let mut reached: Vec<(PathBuf, Access)> = parts.chain(shown).chain(devices).chain(kernel).collect();
    reached.extend([(own.home(), Access::Write), (own.tmp(), Access::Write), (workspace.to_owned(), access)]);
    reached.retain(|(path, _)| path.exists());
    // The user's own files, in a directory of the system that is granted.
    let is_shown = |home: &&PathBuf| {
        let is_part = |part: &Part| matches!(part, Part::Directory(part) if home.starts_with(part));
        let is_own = fs::metadata(home).is_ok_and(|data| data.uid() == rustix::process::geteuid().as_raw());
        is_own && system.parts.iter().any(is_part)
    };
    if let Some(home) = survey.home.as_ref().filter(is_shown) {
        return Err(unkept(home));
    }
    for (secret, _) in &survey.hidden {
        // What a package of the program holds is denied by its name alone, and the run could install it itself.
        let is_packaged = program.tree.as_ref().is_some_and(|tree| secret.starts_with(tree));
        let within = !is_packaged && reached.iter().any(|(path, _)| secret.starts_with(path));
        if within && tells_something(secret) {
            return Err(unkept(secret));
        }
    }
    Ok(Sandbox {
        steps: Vec::new(),
        grants: reached.into_iter().map(|(path, access)| Grant { path, access }).collect(),
        cwd: workspace.to_owned(),
        groups: Vec::new(),
        scope: false,
        processors: None,
        workspace: workspace.to_owned(),
        workspace_id: None,
        identity: Some(survey.identity),
        placeholders: Vec::new(),
        registered: None,
        doors: Vec::new(),
        mounted: Vec::new(),
    })
}

/// Whether this user would find anything there.
fn tells_something(secret: &Path) -> bool {
    let readable = rustix::fs::access(secret, rustix::fs::Access::READ_OK).is_ok();
    let empty_directory = fs::read_dir(secret).is_ok_and(|mut entries| entries.next().is_none());
    // No socket can be made to connect by, so one that listens is no door.
    let nothing = fs::metadata(secret)
        .is_ok_and(|data| data.file_type().is_socket() || (data.is_file() && data.len() == 0));
    readable && !empty_directory && !nothing
}

fn unkept(secret: &Path) -> LaunchError {
    let message = format!("without user namespaces {} cannot be hidden", secret.display());
    LaunchError::Runtime(Failure::new(FailureClass::Refused, message).with_remedy(
        "`ringfence sandbox doctor` says what to change on this machine; or work in a directory without secrets, as \
         a user who cannot read it",
    ))
}
