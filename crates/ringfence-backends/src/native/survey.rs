//! What is on this machine that the plan has to know: which parts of the system there are, which protected, denied and
//! secret paths, where the program is. Read before the run; the run cannot change it any more.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use globset::{Glob, GlobSet, GlobSetBuilder};
use ringfence_core::backend::LaunchError;
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::plan::Plan;

use crate::shared::program::locate;

/// The parts of a system that programs need to run.
const SYSTEM: [&str; 11] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/gnu"];

/// What even the read-only system must not show.
const SYSTEM_SECRETS: [&str; 14] = [
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

/// What was found. All paths are the host's, links resolved.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Directories and links of the system.
    pub(super) system: Vec<System>,
    /// The program, and what has to be seen for it to run.
    pub(super) program: PathBuf,
    pub(super) program_tree: Option<PathBuf>,
    /// Paths to show besides, and whether they may be written.
    pub(super) shown: Vec<(PathBuf, bool)>,
    /// Paths to hide, and whether they are directories.
    pub(super) hidden: BTreeSet<(PathBuf, bool)>,
    /// Directories above protected paths. They are held in place, or one could move them away with what they protect.
    pub(super) anchors: Vec<PathBuf>,
    /// Protected paths.
    pub(super) protected: Vec<PathBuf>,
    /// Those of both that are not there, and whether they would be directories; the outer ones first.
    pub(super) missing: Vec<(PathBuf, bool)>,
}

/// A part of the system.
#[derive(Debug)]
pub(super) enum System {
    Directory(PathBuf),
    Link(PathBuf, PathBuf),
}

fn refused(message: String) -> LaunchError {
    LaunchError::Runtime(Failure::new(FailureClass::Refused, message))
}

/// Looks around.
pub(super) fn look(plan: &Plan, home: &Path) -> Result<Survey, LaunchError> {
    let request = &plan.request;
    let workspace = request.workspace.host().as_path();
    let files = &request.policy.files;
    let name = request.argv.first().map(String::as_str).unwrap_or_default();
    let found = locate(name, request.env.get("PATH").map(String::as_str), workspace)?;
    let program = fs::canonicalize(&found).unwrap_or(found);
    let mut survey =
        Survey { system: system(), program_tree: program_tree(&program), program, ..Survey::default() };
    for (paths, write) in [(&files.read, false), (&files.write, true)] {
        for path in paths {
            let real = fs::canonicalize(path)
                .map_err(|error| refused(format!("{path} cannot be shown: {error}")))?;
            survey.shown.push((real, write));
        }
    }
    let secrets = files.secrets.iter().map(|path| match path.strip_prefix("~/") {
        Some(rest) => home.join(rest),
        None => PathBuf::from(path),
    });
    for secret in secrets.chain(SYSTEM_SECRETS.map(PathBuf::from)) {
        if let Ok(real) = fs::canonicalize(&secret) {
            survey.hidden.insert((real.clone(), real.is_dir()));
        }
    }
    protected(workspace, &files.protect, &mut survey)?;
    if !files.protect.is_empty() {
        worktree(workspace, &mut survey)?;
    }
    denied(workspace, &files.deny, &mut survey)?;
    Ok(survey)
}

fn system() -> Vec<System> {
    SYSTEM
        .iter()
        .map(PathBuf::from)
        .filter_map(|path| {
            let data = fs::symlink_metadata(&path).ok()?;
            if data.is_symlink() {
                return fs::read_link(&path).ok().map(|to| System::Link(path, to));
            }
            data.is_dir().then_some(System::Directory(path))
        })
        .collect()
}

/// What belongs to a program that is not part of the system: its packages, or itself alone.
fn program_tree(program: &Path) -> Option<PathBuf> {
    if SYSTEM.iter().any(|part| program.starts_with(part)) {
        return None;
    }
    let packages = program.ancestors().filter(|path| path.ends_with("node_modules")).last();
    Some(packages.unwrap_or(program).to_owned())
}

/// Protected paths as they are, or as they must not come to be.
fn protected(root: &Path, names: &[String], survey: &mut Survey) -> Result<(), LaunchError> {
    for name in names {
        let path = root.join(name);
        let mut way: Vec<&Path> = path.ancestors().take_while(|above| *above != root).collect();
        way.reverse();
        for (place, part) in way.iter().enumerate() {
            let last = place + 1 == way.len();
            match fs::symlink_metadata(part) {
                // Nothing can be mounted on a link, so nothing could keep it from being replaced.
                Ok(data) if data.is_symlink() => return Err(link(part)),
                Ok(data) if data.is_dir() && !last => add(&mut survey.anchors, part),
                // A file in the way is held as it is, and nothing can come to be below it.
                Ok(_) => {
                    add(&mut survey.protected, part);
                    break;
                }
                Err(_) => {
                    note_missing(part, !last || !looks_like_file(name), survey);
                    add(if last { &mut survey.protected } else { &mut survey.anchors }, part);
                }
            }
        }
    }
    Ok(())
}

fn link(path: &Path) -> LaunchError {
    let message = format!("{} is a link, and a link cannot be protected", path.display());
    LaunchError::Runtime(Failure::new(FailureClass::Refused, message).with_remedy(
        "put what it leads to in its place, or take it out of `files.protect` with a policy of your own",
    ))
}

fn add(paths: &mut Vec<PathBuf>, path: &Path) {
    if !paths.iter().any(|known| known == path) {
        paths.push(path.to_owned());
    }
}

fn note_missing(path: &Path, directory: bool, survey: &mut Survey) {
    let known = survey.missing.iter().any(|(known, _)| known == path);
    if !known && fs::symlink_metadata(path).is_err() {
        survey.missing.push((path.to_owned(), directory));
    }
}

/// The real git directory of a linked worktree, which has to be reachable, with the same protection.
fn worktree(workspace: &Path, survey: &mut Survey) -> Result<(), LaunchError> {
    let pointer = workspace.join(".git");
    let own = fs::read_to_string(&pointer).ok().and_then(|text| {
        let directory = text.trim().strip_prefix("gitdir:")?.trim().to_owned();
        fs::canonicalize(workspace.join(directory)).ok()
    });
    let Some(own) = own else { return Ok(()) };
    let common = fs::read_to_string(own.join("commondir")).ok();
    let common =
        common.and_then(|text| fs::canonicalize(own.join(text.trim())).ok()).unwrap_or_else(|| own.clone());
    // A pointer that somebody bent must not show what is no git directory.
    if !own.starts_with(&common) || !common.join("objects").is_dir() || !common.join("HEAD").is_file() {
        return Ok(());
    }
    survey.shown.push((common.clone(), true));
    add(&mut survey.protected, &pointer);
    protected(&common, &["hooks", "config", "modules", "info"].map(String::from), survey)
}

/// Names with an ending, and those of shells and git, are files.
fn looks_like_file(name: &str) -> bool {
    let last = name.rsplit('/').next().unwrap_or(name);
    let known = [
        ".gitmodules",
        ".gitconfig",
        ".envrc",
        ".bashrc",
        ".bash_profile",
        ".profile",
        ".zshrc",
        ".zprofile",
        ".zshenv",
        "config",
    ];
    known.contains(&last) || last.trim_start_matches('.').contains('.')
}

/// All files of the workspace that a glob denies, and all other names of the same files.
fn denied(workspace: &Path, globs: &[String], survey: &mut Survey) -> Result<(), LaunchError> {
    if globs.is_empty() {
        return Ok(());
    }
    let set = glob_set(globs).map_err(|error| refused(format!("a denied glob cannot be read: {error}")))?;
    let mut inodes = BTreeSet::new();
    let mut linked = Vec::new();
    let mut directories = vec![workspace.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = fs::read_dir(&directory).map_err(|error| {
            refused(format!("{} cannot be searched for denied files: {error}", directory.display()))
        })?;
        for entry in entries.flatten() {
            let path = entry.path();
            let Ok(data) = fs::symlink_metadata(&path) else { continue };
            let relative = path.strip_prefix(workspace).unwrap_or(&path);
            if set.is_match(relative) && !data.is_symlink() {
                survey.hidden.insert((path.clone(), data.is_dir()));
                inodes.insert((data.dev(), data.ino()));
            } else if data.is_dir() {
                directories.push(path);
            } else if data.nlink() > 1 {
                linked.push((path, (data.dev(), data.ino())));
            }
        }
    }
    let aliases = linked.into_iter().filter(|(_, inode)| inodes.contains(inode));
    survey.hidden.extend(aliases.map(|(path, _)| (path, false)));
    Ok(())
}

fn glob_set(globs: &[String]) -> Result<GlobSet, globset::Error> {
    let mut builder = GlobSetBuilder::new();
    for glob in globs {
        builder.add(Glob::new(glob)?);
    }
    builder.build()
}
