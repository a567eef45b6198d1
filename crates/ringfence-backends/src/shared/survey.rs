//! What is on this machine that the plan has to know: which protected, denied and secret paths there are. Read before the
//! run; the run cannot change it any more.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use globset::GlobSet;
use ringfence_core::backend::LaunchError;
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::plan::Request;
use ringfence_core::policy::WorkspaceAccess;
use ringfence_linux::StandIn;

/// What was found. All paths are the host's, links resolved.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// Paths to show besides, and whether they may be written.
    pub(crate) shown: Vec<(PathBuf, bool)>,
    /// The git directory of a submodule, and where its pointer leads inside; and a link that leads back from there.
    pub(crate) git: Option<(PathBuf, PathBuf, bool)>,
    pub(crate) link_back: Option<(PathBuf, PathBuf)>,
    /// Paths to hide, and whether they are directories.
    pub(crate) hidden: BTreeSet<(PathBuf, bool)>,
    /// Directories above protected paths. They are held in place, or one could move them away with what they protect.
    pub(crate) anchors: Vec<PathBuf>,
    /// Protected paths.
    pub(crate) protected: Vec<PathBuf>,
    /// Those of both that are not there, and what stands in for them; the outer ones first.
    pub(crate) missing: Vec<(PathBuf, StandIn)>,
    /// A file of git that names what it is not to see, and what it says with the stand-ins added.
    pub(crate) exclude: Option<(PathBuf, String)>,
    /// The device and the number of the workspace.
    pub(crate) identity: (u64, u64),
}

fn refused(message: String) -> LaunchError {
    LaunchError::Runtime(Failure::new(FailureClass::Refused, message))
}

/// Looks around. Besides what the policy names, these are hidden.
pub(crate) fn look(
    request: &Request,
    home: &Path,
    hidden: &[(PathBuf, bool)],
) -> Result<Survey, LaunchError> {
    let workspace = request.workspace.host().as_path();
    let files = &request.policy.files;
    let data = fs::metadata(workspace)
        .map_err(|error| refused(format!("{} cannot be used: {error}", workspace.display())))?;
    let mut survey = Survey {
        hidden: hidden.iter().cloned().collect(),
        identity: (data.dev(), data.ino()),
        ..Survey::default()
    };
    for (paths, write) in [(&files.read, false), (&files.write, true)] {
        for path in paths {
            survey.shown.push((shown(path)?, write));
        }
    }
    survey.hidden.extend(files.secret_paths(home).filter_map(|secret| real(&secret)));
    for (path, _) in &survey.shown {
        if let Some((secret, _)) = survey.hidden.iter().find(|(secret, _)| path.starts_with(secret)) {
            return Err(refused(format!("{} is a secret: it is in {}", path.display(), secret.display())));
        }
    }
    let (own, here): (Vec<String>, Vec<String>) =
        files.protect.iter().cloned().partition(|name| name.starts_with("~/"));
    protected(workspace, &here, &mut survey)?;
    protected_at_home(workspace, home, &own, &mut survey)?;
    if !files.protect.is_empty() {
        // With a layer nothing but the layer is written.
        let write = files.workspace == WorkspaceAccess::ReadWrite && request.layer.is_none();
        worktree(request, write, &mut survey)?;
    }
    survey.exclude = exclude(workspace, &survey);
    let roots: Vec<PathBuf> = [workspace.to_owned()]
        .into_iter()
        .chain(survey.shown.iter().map(|(path, _)| path.clone()))
        .filter(|path| path.is_dir())
        .collect();
    let set = files.denied().map_err(|error| refused(format!("a denied glob cannot be read: {error}")))?;
    for root in roots {
        search(&root, &set, &mut survey)?;
    }
    Ok(survey)
}

/// What ringfence itself keeps, which no run sees wherever it is.
pub(crate) fn state(directory: &Path) -> Vec<(PathBuf, bool)> {
    real(directory).into_iter().collect()
}

/// A path that somebody asked to show. A socket is a door, not a file.
fn shown(path: &str) -> Result<PathBuf, LaunchError> {
    let unshowable = |error: std::io::Error| refused(format!("{path} cannot be shown: {error}"));
    let real = fs::canonicalize(path).map_err(unshowable)?;
    if fs::metadata(&real).map_err(unshowable)?.file_type().is_socket() {
        return Err(refused(format!("{path} is a socket, and whoever listens there is outside")));
    }
    Ok(real)
}

/// Where a path leads, if anywhere, and whether to a directory.
pub(crate) fn real(path: &Path) -> Option<(PathBuf, bool)> {
    let real = fs::canonicalize(path).ok()?;
    let directory = real.is_dir();
    Some((real, directory))
}

/// Protected paths as they are, or as they must not come to be: what is missing is held at its outermost part.
fn protected(root: &Path, names: &[String], survey: &mut Survey) -> Result<(), LaunchError> {
    for name in names {
        let path: PathBuf = root.join(name).components().collect();
        let mut way: Vec<&Path> = path.ancestors().take_while(|above| *above != root).collect();
        way.reverse();
        for (place, part) in way.iter().enumerate() {
            let last = place + 1 == way.len();
            match fs::symlink_metadata(part) {
                // Nothing can be mounted on a link, so nothing could keep it from being replaced.
                Ok(data) if data.is_symlink() => return Err(link(part)),
                // Another run holds the whole of it already, and nothing is to come to be in it.
                Ok(_) if !last && ringfence_linux::is_stand_in(part) => {
                    note_missing(part, StandIn::Directory, survey);
                    add(&mut survey.protected, part);
                    break;
                }
                Ok(data) if data.is_dir() && !last => add(&mut survey.anchors, part),
                // A file in the way is held as it is, and nothing can come to be below it.
                Ok(_) => {
                    adopt(part, stand_in(name, last), survey);
                    add(&mut survey.protected, part);
                    break;
                }
                Err(_) => {
                    note_missing(part, stand_in(name, last), survey);
                    add(&mut survey.protected, part);
                    break;
                }
            }
        }
    }
    Ok(())
}

/// Files of the person's home, wherever they could be written: the workspace is the home or is above it, or a part of it
/// was named.
fn protected_at_home(
    workspace: &Path,
    home: &Path,
    names: &[String],
    survey: &mut Survey,
) -> Result<(), LaunchError> {
    let Ok(home) = fs::canonicalize(home) else { return Ok(()) };
    let named = survey.shown.iter().filter(|(_, write)| *write).map(|(path, _)| path.clone());
    let roots: Vec<PathBuf> = [workspace.to_owned()].into_iter().chain(named).collect();
    for root in roots.iter().filter(|root| home.starts_with(root)) {
        for name in names.iter().filter_map(|name| name.strip_prefix("~/")) {
            let path = home.join(name);
            let Some(name) = path.strip_prefix(root).ok().and_then(Path::to_str) else { continue };
            protected(root, &[name.to_owned()], survey)?;
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

/// The git directory of a submodule. Both pointers are relative as git writes them, so inside it is where they lead from
/// the workspace.
fn submodule(request: &Request, own: &Path, write: bool, survey: &mut Survey) -> Result<(), LaunchError> {
    let (host, guest) = (request.workspace.host().as_path(), request.workspace.guest().as_path());
    let text = |file: &Path| fs::read_to_string(file).unwrap_or_default();
    let config = text(&own.join("config"));
    let back = config.lines().find_map(|line| line.trim().strip_prefix("worktree")?.trim().strip_prefix('='));
    // A pointer that somebody bent must not open another repository: a submodule's own directory points back.
    let Some(back) =
        back.map(str::trim).filter(|back| fs::canonicalize(own.join(back)).is_ok_and(|place| place == host))
    else {
        return Ok(());
    };
    let pointer = text(&host.join(".git"));
    let pointer = pointer.trim().strip_prefix("gitdir:").map(str::trim).unwrap_or_default();
    let inside = lexical(&guest.join(pointer));
    let led_back = lexical(&inside.join(back));
    survey.link_back = (led_back != guest).then(|| (led_back, guest.to_owned()));
    survey.git = Some((own.to_owned(), inside, write));
    add(&mut survey.protected, &host.join(".git"));
    let names = ["hooks/", "config", "modules/", "info/", "commondir", "config.worktree"];
    protected(own, &names.map(String::from), survey)
}

/// A path without `..`, as it would be if nothing on its way were a link.
fn lexical(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            other => plain.push(other),
        }
    }
    plain
}

/// What keeps git from taking stand-ins for files of the person's. Without the file there is nowhere to say it.
fn exclude(workspace: &Path, survey: &Survey) -> Option<(PathBuf, String)> {
    let elsewhere = survey.shown.iter().map(|(path, _)| path).chain(survey.git.iter().map(|(path, ..)| path));
    let common = elsewhere.map(|path| path.join("info/exclude"));
    let file = [workspace.join(".git/info/exclude")].into_iter().chain(common).find(|file| file.is_file())?;
    let names = survey.missing.iter().filter_map(|(path, _)| path.strip_prefix(workspace).ok());
    let lines: String =
        names.filter(|name| !name.starts_with(".git")).map(|name| format!("/{}\n", name.display())).collect();
    if lines.is_empty() {
        return None;
    }
    let said = fs::read_to_string(&file).ok()?;
    Some((file, format!("{said}\n# ringfence holds these places while a run lasts\n{lines}")))
}

/// What stands in for a path that is not there. git fails on an empty `commondir`; one that points to itself is as none.
/// And an empty file is no JSON.
fn stand_in(name: &str, last: bool) -> StandIn {
    match name {
        _ if !last || name.ends_with('/') => StandIn::Directory,
        _ if name.ends_with("commondir") => StandIn::File(".\n".into()),
        _ if name.ends_with(".json") => StandIn::File("{}\n".into()),
        _ => StandIn::File(String::new()),
    }
}

/// A stand-in of another run, or one that was left by a run that was killed, is ours too: whoever is the last takes it
/// away.
fn adopt(path: &Path, kind: StandIn, survey: &mut Survey) {
    if ringfence_linux::is_stand_in(path) {
        note_missing(path, kind, survey);
    }
}

fn note_missing(path: &Path, kind: StandIn, survey: &mut Survey) {
    if !survey.missing.iter().any(|(known, _)| known == path) {
        survey.missing.push((path.to_owned(), kind));
    }
}

/// The real git directory of a linked worktree, which has to be reachable, with the same protection.
fn worktree(request: &Request, write: bool, survey: &mut Survey) -> Result<(), LaunchError> {
    let workspace = request.workspace.host().as_path();
    let pointer = workspace.join(".git");
    let line = |file: &Path| fs::read_to_string(file).ok().map(|text| text.trim().to_owned());
    let own = line(&pointer)
        .and_then(|text| fs::canonicalize(workspace.join(text.strip_prefix("gitdir:")?.trim())).ok());
    let Some(own) = own else { return Ok(()) };
    if !own.join("commondir").exists() {
        return submodule(request, &own, write, survey);
    }
    let common = line(&own.join("commondir")).and_then(|text| fs::canonicalize(own.join(text)).ok());
    // A pointer that somebody bent must not open another repository: a worktree's own directory points back.
    let points_back = line(&own.join("gitdir")).and_then(|text| fs::canonicalize(text).ok());
    let Some(common) = common.filter(|common| {
        points_back.as_deref() == Some(&pointer) && own.parent() == Some(&common.join("worktrees"))
    }) else {
        return Ok(());
    };
    survey.shown.push((common.clone(), write));
    add(&mut survey.protected, &pointer);
    protected(
        &common,
        &["hooks/", "config", "modules/", "info/", "commondir", "config.worktree"].map(String::from),
        survey,
    )?;
    protected(&own, &["commondir", "gitdir", "config.worktree"].map(String::from), survey)
}

/// Everything below a directory that has to be hidden or held: files that a glob denies, what they link to, all other
/// names of them and of protected files, and sockets, whose listeners are outside.
fn search(root: &Path, denied: &GlobSet, survey: &mut Survey) -> Result<(), LaunchError> {
    let mut found = Vec::new();
    walk(root, &mut |path, kind| {
        let matches = denied.is_match(path.strip_prefix(root).unwrap_or(path));
        if matches || kind.is_socket() {
            // What a denied link leads to is what must not be read.
            let real = if kind.is_symlink() { fs::canonicalize(path).ok() } else { Some(path.to_owned()) };
            found.extend(real);
        }
        Ok(!matches)
    })?;
    survey.hidden.extend(found.into_iter().map(|path| (path.clone(), path.is_dir())));
    // Secrets too: a second name may be where it is seen.
    let hidden = shared_inodes(survey.hidden.iter().map(|(path, _)| path));
    let held = shared_inodes(&survey.protected);
    if hidden.is_empty() && held.is_empty() {
        return Ok(());
    }
    // Only now is it worth asking for the number of every file.
    walk(root, &mut |path, kind| {
        if kind.is_file() {
            let data = fs::symlink_metadata(path)?;
            if hidden.contains(&(data.dev(), data.ino())) {
                survey.hidden.insert((path.to_owned(), false));
            } else if held.contains(&(data.dev(), data.ino())) {
                add(&mut survey.protected, path);
            }
        }
        Ok(true)
    })
}

/// The files among these that have more than one name.
fn shared_inodes<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> BTreeSet<(u64, u64)> {
    let data = paths.into_iter().filter_map(|path| fs::symlink_metadata(path).ok());
    data.filter(|data| data.is_file() && data.nlink() > 1).map(|data| (data.dev(), data.ino())).collect()
}

/// Visits everything below a directory; the visitor says whether to go into a directory. What cannot be looked at could
/// hide something, so it ends the walk; what has gone meanwhile could not.
fn walk(
    root: &Path,
    visit: &mut dyn FnMut(&Path, fs::FileType) -> std::io::Result<bool>,
) -> Result<(), LaunchError> {
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        let mut visit_all = || -> std::io::Result<()> {
            for entry in fs::read_dir(&directory)? {
                let entry = entry?;
                let (path, kind) = (entry.path(), entry.file_type()?);
                match visit(&path, kind) {
                    Ok(true) if kind.is_dir() => directories.push(path),
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            Ok(())
        };
        match visit_all() {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound || directory == root => {
                let place = directory.display();
                return Err(refused(format!("{place} cannot be searched for what must be hidden: {error}")));
            }
            _ => {}
        }
    }
    Ok(())
}
