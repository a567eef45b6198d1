//! The scan of what a run will see: which paths there are to protect and to hide, and which repositories. It happens before
//! the run, which cannot change its result any more.
//!
//! An earlier run may have written everything below the workspace, so the scan follows no link out of it, reads nothing
//! without a bound, and what it cannot look at is hidden and reported instead of being a reason to refuse.
#![expect(
    clippy::disallowed_methods,
    reason = "names are only looked at, part by part and without following links; contents are read beneath descriptors"
)]

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::hash::RandomState;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use globset::GlobSet;
use ringfence_core::backend::LaunchError;
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::locations::Locations;
use ringfence_core::paths::{DirectoryId, HostPath};
use ringfence_core::plan::Request;
use ringfence_core::policy::home::{self, PROTECTED_IF_PRESENT};
use ringfence_core::policy::{GitAccess, WorkspaceAccess};
use ringfence_linux::StandIn;
use ringfence_workspace::{
    Bounds, Directory, EntryKind, Next, RunTrees, Step, Visit, walk, walk_with_directories,
};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, ResolveFlags, accessat, openat2};
use rustix::io::Errno;

use super::crowding::{self, Limit};
use super::git_configuration::UserGit;
use super::home_links;
use super::listed_names::HomeNames;
use super::other_runs::{self, Known};
use super::register::{CoverKind, Registration, id_of};
use super::repositories::{self, GitMount};
use crate::Surroundings;

/// How much of a workspace is scanned. The path of what is hidden has to fit into a mount's.
const BOUNDS: Bounds = Bounds { path_bytes: 2048, entries: 5_000_000 };
/// Most paths that are protected, and most that are hidden, one by one below a directory that is seen: each is a mount.
const MAX_SINGLE_COVERS: usize = 2048;
/// Most of them in all. More are left only if the root of the workspace itself holds so many.
const MAX_COVERS: usize = 32_768;
/// Most bytes that they take one by one in what the gate is told, and most in all. It takes no more than 8 MiB.
const MAX_SINGLE_COVER_BYTES: usize = 4 << 20;
const MAX_COVER_BYTES: usize = 6 << 20;
/// More of them in one directory than this, and the whole directory is hidden.
const MAX_HIDDEN_IN_DIRECTORY: usize = 64;
/// How often a workspace is scanned in which other runs move what has to be hidden.
const MAX_SCANS: usize = 5;
/// What is done when a workspace and directories that are named for a run were scanned.
const SCANNED: &str = "its workspace was scanned";
/// How many entries are visited before it is checked whether the scan has to end.
const VISITS_BETWEEN_CHECKS: u32 = 512;
/// Most paths that a notice names.
const MAX_NAMED: usize = 5;

/// Places of the kernel that every sandbox has for itself.
const KERNEL_PLACES: [&str; 2] = ["/proc", "/dev"];
/// The directory of a project's settings and policies.
const SETTINGS_DIRECTORY: &str = ".ringfence";
/// Files by which a state directory is known: the list of directories where runs have worked, and the queue.
const STATE_MARKERS: [&str; 2] = [RunTrees::FILE_NAME, "ringfence.db"];
/// Secrets of a state directory that cannot be hidden whole.
const STATE_SECRETS: [&str; 4] = ["api.token", "ringfence.db", "ringfence.db-wal", "ringfence.db-journal"];

/// A protected path that is not there, and what stands in for it.
pub(crate) type Missing = (PathBuf, StandIn);

/// What was found. All paths are the host's, links resolved.
#[derive(Debug, Clone, Default)]
pub(crate) struct Survey {
    /// Paths to show besides, and whether they may be written.
    pub(crate) shown: Vec<(PathBuf, bool)>,
    /// What is at those of them that the policy names.
    pub(crate) granted: BTreeMap<PathBuf, DirectoryId>,
    /// Git directories that the run does not write itself.
    pub(crate) git: Vec<GitMount>,
    /// What git on the host takes from the user's configuration.
    pub(crate) user_git: UserGit,
    /// Why the run is refused, if what it may write is what git executes.
    pub(super) refusal: Option<String>,
    /// The git directory of a submodule as it is, where its pointer leads inside, and whether it may be written.
    pub(crate) submodule: Option<(PathBuf, PathBuf, bool)>,
    /// A link that leads back from there.
    pub(crate) link_back: Option<(PathBuf, PathBuf)>,
    /// Paths to hide, and whether they are directories.
    pub(crate) hidden: BTreeSet<(PathBuf, bool)>,
    /// Directories above protected paths. They are held in place, or one could move them away with what they protect.
    pub(crate) anchors: Vec<PathBuf>,
    /// Protected paths.
    pub(crate) protected: Vec<PathBuf>,
    /// Those of the protected paths that are symbolic links: they are held, not what they lead to.
    pub(crate) links: Vec<PathBuf>,
    /// Files outside of the workspace that govern programs of the user and have several names: device and inode.
    pub(crate) linked: BTreeSet<(u64, u64)>,
    /// Those of both that are not there, and what stands in for them; the outer ones first.
    pub(crate) missing: Vec<Missing>,
    /// Stub files and directories of other active runs where this one can write.
    pub(crate) stubs_of_others: BTreeSet<PathBuf>,
    /// The user's home, links resolved, if it is there.
    pub(crate) home: Option<PathBuf>,
    /// Submodules that are not checked out and can still be protected, of all repositories together.
    pub(super) submodules_left: usize,
    /// Bytes of git's indexes that are still read, of all repositories together.
    pub(super) index_budget: u64,
    /// The device and the number of the workspace.
    pub(crate) identity: (u64, u64),
    /// What is at the paths that are held or hidden below what the run sees.
    pub(crate) ids: BTreeMap<PathBuf, DirectoryId>,
    /// What this run covers, for others that start meanwhile. To be kept while the run lasts.
    pub(crate) registered: Option<Arc<Registration>>,
    /// Where directories are in the trees that the run can write, by the root of each.
    pub(crate) locations: Vec<(PathBuf, Locations)>,
    /// What a user should know of it.
    pub(crate) notices: Vec<String>,
    /// Those of the notices that are said on standard error also where that is no terminal.
    pub(crate) warnings: Vec<String>,
}

pub(super) fn refused(message: String) -> LaunchError {
    LaunchError::Runtime(Failure::new(FailureClass::Refused, message))
}

/// Scans until nothing is missed that another run covers. Besides what the policy names, `hidden` is hidden, and `program`, which
/// holds the program of the run, is shown read-only. `reserve` is called with the protected paths that are missing in the root of the workspace as soon as they are known, before the scan.
pub(crate) fn look(
    request: &Request,
    around: &Surroundings,
    (hidden, program): (&[(PathBuf, bool)], Option<&Path>),
    reserve: &mut dyn FnMut(&[Missing]),
) -> Result<Survey, LaunchError> {
    let unusable = |error| refused(format!("the register of active runs cannot be used: {error}"));
    let mut registration = Registration::begin(&around.state, &request.run).map_err(unusable)?;
    let mut known = Known::default();
    let mut missed = PathBuf::new();
    let ending = Ending::of(request, around);
    let homes: Vec<&Path> = [Some(&around.home), around.login_home.as_ref()]
        .into_iter()
        .flatten()
        .map(PathBuf::as_path)
        .collect();
    for number in 0..MAX_SCANS {
        let reserve: &mut dyn FnMut(&[Missing]) = if number == 0 { reserve } else { &mut |_| () };
        let mut survey = scan_once(request, (&homes, &ending), (hidden, program), &known, reserve)?;
        if let Some(gone) = survey.identify(request) {
            missed = gone;
            continue;
        }
        let entry = other_runs::entry(request, &survey);
        registration.write(&entry).map_err(unusable)?;
        let others = registration.others().map_err(unusable)?;
        if let Some(cover) = other_runs::missed(request, &survey, (&entry, &others), &mut known) {
            missed = cover.path;
            continue;
        }
        if other_runs::keep_apart(&mut survey, &entry, &others)? {
            registration.write(&other_runs::entry(request, &survey)).map_err(unusable)?;
        }
        registration.end_scan().map_err(unusable)?;
        survey.registered = Some(Arc::new(registration));
        return Ok(survey);
    }
    let message =
        format!("{} has to be covered, and another run moved it while it was looked for", short(&missed));
    Err(LaunchError::Runtime(
        Failure::new(FailureClass::Unknown, message)
            .with_remedy("start this run again when the other runs in this workspace have ended"),
    ))
}

/// Refuses a workspace in a secret of the home. Images are tried in a workspace of Ringfence's own, in the state directory.
fn refuse_secret(workspace: &Path, secrets: &[(PathBuf, bool)]) -> Result<(), LaunchError> {
    let mut secrets = secrets.iter().map(|(secret, _)| secret);
    match secrets.find(|secret| workspace.starts_with(secret) && !secret.ends_with(SETTINGS_DIRECTORY)) {
        Some(secret) => Err(refused(format!(
            "the workspace {} is in {}, a secret that is hidden from runs: work in another directory",
            workspace.display(),
            secret.display()
        ))),
        None => Ok(()),
    }
}

fn scan_once(
    request: &Request,
    (homes, ending): (&[&Path], &Ending<'_>),
    (hidden, program): (&[(PathBuf, bool)], Option<&Path>),
    known: &Known,
    reserve: &mut dyn FnMut(&[Missing]),
) -> Result<Survey, LaunchError> {
    let workspace = request.workspace.host().as_path();
    let files = &request.policy.files;
    let tree =
        Directory::open_known(workspace, request.workspace_id).map_err(|error| refused(error.to_string()))?;
    let mut survey = Survey {
        hidden: hidden.iter().cloned().collect(),
        identity: (tree.id().device, tree.id().inode),
        submodules_left: repositories::MAX_SUBMODULES,
        index_budget: ringfence_workspace::git::INDEX_BUDGET_BYTES,
        ..Survey::default()
    };
    let read = program.into_iter().chain(files.read.iter().map(Path::new)).map(|path| (path, false));
    for (path, write) in read.chain(files.write.iter().map(|path| (Path::new(path), true))) {
        let (path, id) = shown(path)?;
        survey.granted.insert(path.clone(), id);
        survey.shown.push((path, write));
    }
    let own_home = homes.first().copied().unwrap_or(Path::new("/"));
    let homes: Vec<(&Path, HomeNames)> = homes.iter().map(|home| (*home, HomeNames::list(home))).collect();
    for (home, names) in &homes {
        let secrets = files.secret_paths(home).filter(|secret| names.may_exist(secret));
        let secrets: Vec<(PathBuf, bool)> = secrets.filter_map(|secret| real(&secret)).collect();
        refuse_secret(workspace, &secrets)?;
        survey.hidden.extend(secrets);
    }
    for (path, _) in &survey.shown {
        if let Some((secret, _)) = survey.hidden.iter().find(|(secret, _)| path.starts_with(secret)) {
            return Err(refused(format!("{} is a secret: it is in {}", path.display(), secret.display())));
        }
    }
    survey.hold_above_secrets_and_grants(workspace);
    let (own, mut here): (Vec<String>, Vec<String>) =
        files.protect.iter().cloned().partition(|name| name.starts_with("~/"));
    // Settings and policies of later runs are there, whatever the policy of this one says.
    if !here.iter().any(|name| name == SETTINGS_DIRECTORY) {
        here.push(SETTINGS_DIRECTORY.to_owned());
    }
    survey.protect(workspace, &here);
    repositories::reserve(request, &mut survey);
    reserve(&survey.missing);
    let in_root = |(path, _): &Missing| path.strip_prefix(workspace).ok().map(Path::to_owned);
    let stubs: Vec<PathBuf> = survey.missing.iter().filter_map(in_root).collect();
    for (home, names) in &homes {
        survey.protect_home(request, (home, names), &own);
    }
    survey.protect_governing(request);
    repositories::of_workspace(request, &tree, own_home, &mut survey);
    if let Some(message) = survey.refusal.take() {
        return Err(refused(message));
    }
    let denied = files.denied().map_err(|error| refused(format!("a denied glob cannot be read: {error}")))?;
    let private = files.git == GitAccess::Private && request.git.is_some();
    let mut governing = shared_inodes(request.governing.iter().map(HostPath::as_path));
    governing.extend(&survey.linked);
    let names = Names {
        denied: &denied,
        protected: &here,
        stubs: &stubs,
        governing: &governing,
        known,
        ending,
        git: files.git,
        private,
        holds_trees: request.layer.is_none(),
        writable: writes(request),
        is_workspace: true,
    };
    survey.scan(&tree, workspace, &names)?;
    let mut trees = vec![(tree, workspace.to_owned())];
    let others = survey.shown.iter().filter(|(path, _)| path.is_dir()).cloned();
    for (root, write) in others.collect::<Vec<_>>() {
        let tree = Directory::open(&root).map_err(|error| refused(error.to_string()))?;
        survey.scan(
            &tree,
            &root,
            &Names { writable: write, is_workspace: false, holds_trees: true, ..names },
        )?;
        trees.push((tree, root));
    }
    survey.cover_other_names(&trees, ending)?;
    survey.cover_unwritable_directories(request);
    survey.cover_crowded_directories(workspace);
    survey.check_size()?;
    Ok(survey)
}

/// Whether a run writes in its workspace.
pub(super) fn writes(request: &Request) -> bool {
    request.policy.files.workspace == WorkspaceAccess::ReadWrite
}

/// What ringfence itself keeps, which no run sees wherever it is: its own state, and that of the user's other installations.
pub(crate) fn state(around: &Surroundings) -> Vec<(PathBuf, bool)> {
    let others = around.other_states.iter().filter(|path| **path != around.state);
    [&around.state].into_iter().chain(others).filter_map(|path| real(path)).collect()
}

/// A path that a user asked to show, and what is there. Links were resolved when the run was accepted: one that is there now was
/// made since. The listener behind a socket is outside of the sandbox.
fn shown(path: &Path) -> Result<(PathBuf, DirectoryId), LaunchError> {
    let path: PathBuf = path.components().collect();
    let name = path.display();
    if path.parent().is_none() {
        let message =
            "/ cannot be shown as a whole: a run has a root of its own, with its own /proc, /dev and /tmp";
        let failure = Failure::new(FailureClass::Refused, message);
        return Err(LaunchError::Runtime(
            failure.with_remedy("name the directories below it that the run needs"),
        ));
    }
    if KERNEL_PLACES.iter().any(|place| path.starts_with(place)) || path == Path::new("/sys") {
        let failure = Failure::new(FailureClass::Refused, format!("{name} of the host is not shown to runs"));
        return Err(LaunchError::Runtime(failure.with_remedy(
            "leave it out: a run has its own /proc and /dev, and of /sys name the directory that it needs",
        )));
    }
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = openat2(CWD, &path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
    let data = opened.map_err(io::Error::from).and_then(ringfence_workspace::Metadata::of);
    let data = data.map_err(|error| match error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) {
        true => refused(format!("{name} leads over a symbolic link that was made while the run started")),
        false => refused(format!("{name} cannot be shown: {error}")),
    })?;
    match data.kind() {
        EntryKind::Socket => {
            Err(refused(format!("{name} is a socket, whose listener is outside of the sandbox")))
        }
        EntryKind::Other => {
            Err(refused(format!("{name} is a FIFO or a device, whose other end is outside of the sandbox")))
        }
        EntryKind::Link => {
            Err(refused(format!("{name} is a symbolic link that was made while the run started")))
        }
        _ => Ok((path, data.id())),
    }
}

/// Where a path leads, if anywhere, and whether to a directory.
pub(crate) fn real(path: &Path) -> Option<(PathBuf, bool)> {
    // Most paths do not exist, or have no link in them; resolving one takes a call for each of its parts.
    let is_plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        Ok(opened) if is_plain => Some((path.to_owned(), fs::File::from(opened).metadata().ok()?.is_dir())),
        Err(Errno::NOENT | Errno::NOTDIR) => None,
        _ => {
            let real = fs::canonicalize(path).ok()?;
            let directory = real.is_dir();
            Some((real, directory))
        }
    }
}

/// What ends a scan or a search before it is done. A run may have left a workspace that takes long to scan.
pub(crate) struct Ending<'a> {
    interrupted: &'a AtomicBool,
    deadline: Instant,
    visits: Cell<u32>,
    failure: Cell<Option<FailureClass>>,
}

impl<'a> Ending<'a> {
    /// When the run is cancelled, or has no time left of what it may take from now on.
    pub(crate) fn of(request: &Request, around: &'a Surroundings) -> Self {
        let time = request.policy.limits.timeout_seconds.duration();
        Self::new(&around.interrupted, Instant::now() + time)
    }

    pub(crate) fn new(interrupted: &'a AtomicBool, deadline: Instant) -> Self {
        Self { interrupted, deadline, visits: Cell::new(0), failure: Cell::new(None) }
    }

    /// Whether nothing more is to be visited. Mostly it only counts.
    pub(crate) fn is_due(&self) -> bool {
        let visits = self.visits.get().wrapping_add(1);
        self.visits.set(visits);
        if visits.is_multiple_of(VISITS_BETWEEN_CHECKS) && self.failure.get().is_none() {
            if self.interrupted.load(Ordering::Relaxed) {
                self.failure.set(Some(FailureClass::Cancelled));
            } else if Instant::now() >= self.deadline {
                self.failure.set(Some(FailureClass::Timeout));
            }
        }
        self.failure.get().is_some()
    }

    /// Why a search did not end by itself. `done` says what it was to do, as in "its workspace was scanned".
    pub(crate) fn check(&self, done: &str) -> Result<(), LaunchError> {
        let message = match self.failure.get() {
            None => return Ok(()),
            Some(FailureClass::Cancelled) => format!("the run was cancelled while {done}"),
            Some(_) => format!("the time of the run was over before {done}"),
        };
        let class = self.failure.get().unwrap_or(FailureClass::Unknown);
        Err(LaunchError::Runtime(Failure::new(class, message)))
    }
}

/// What to look for below a directory.
#[derive(Clone, Copy)]
struct Names<'a> {
    denied: &'a GlobSet,
    /// Paths that are protected in every directory where they exist.
    protected: &'a [String],
    /// Protected paths of the workspace, relative to it, for which stub files are being made.
    stubs: &'a [PathBuf],
    /// Device and inode of the files that govern runs and have several names.
    governing: &'a BTreeSet<(u64, u64)>,
    /// What other runs cover.
    known: &'a Known,
    ending: &'a Ending<'a>,
    git: GitAccess,
    /// Whether git directories are replaced by private ones.
    private: bool,
    /// Whether working trees are held in their places. What a run moves in a layer stays there.
    holds_trees: bool,
    /// Whether the run may write what is scanned.
    writable: bool,
    /// Whether it is the workspace. What its root has to have is protected apart from the scan.
    is_workspace: bool,
}

impl Names<'_> {
    /// The protected paths that begin with a name.
    fn beginning_with(&self, name: &OsStr) -> impl Iterator<Item = &str> {
        let first = move |path: &&str| path.split('/').next().is_some_and(|first| OsStr::new(first) == name);
        self.protected.iter().map(String::as_str).filter(first)
    }

    /// Whether an entry is a stub file that was made since the scan began. A file that another program made there is scanned.
    fn is_new_stub(&self, root: &Path, path: &Path) -> bool {
        self.is_workspace
            && self.stubs.iter().any(|stub| stub.as_os_str() == path.as_os_str())
            && ringfence_linux::is_stand_in(&root.join(path))
    }
}

/// What one scan found, before it is sorted out. Paths are from the root.
#[derive(Default)]
struct Finds {
    hidden: Vec<(PathBuf, bool)>,
    protected: Vec<PathBuf>,
    /// What other runs hold or protect, and whether it is a link.
    covered: Vec<(PathBuf, CoverKind, bool)>,
    repositories: Vec<PathBuf>,
    /// Working trees in whose git directories something has to be hidden.
    with_secrets: BTreeSet<PathBuf>,
    /// Working trees whose refs or logs have denied names. A private git directory does not show them as files.
    with_denied_refs: BTreeSet<PathBuf>,
    /// Names of files that govern runs or programs of the user.
    governing: Vec<PathBuf>,
    /// Symbolic links with denied names.
    denied_links: Vec<PathBuf>,
    /// Directories that git takes for repositories without a working tree.
    bare: Vec<PathBuf>,
    /// State directories of Ringfence.
    states: BTreeSet<PathBuf>,
}

impl Survey {
    /// Notes what is at the paths that get a cover where this run or another one may write. Everything that follows goes by
    /// these identities: a path may lead elsewhere at the next look. Stub files come and go with the runs. Returns a path that
    /// is gone since the scan.
    fn identify(&mut self, request: &Request) -> Option<PathBuf> {
        let shown = self.shown.iter().map(|(path, _)| path.as_path());
        let roots: Vec<&Path> = [request.workspace.host().as_path()].into_iter().chain(shown).collect();
        let hidden = self.hidden.iter().map(|(path, _)| path);
        let git = self.git.iter().map(|mount| &mount.repository.common);
        let paths = self.anchors.iter().chain(&self.protected).chain(git).chain(hidden);
        let missing: BTreeSet<&PathBuf> = self.missing.iter().map(|(path, _)| path).collect();
        let is_stub = |path: &PathBuf| missing.contains(path);
        let paths = paths.filter(|path| roots.iter().any(|root| path.starts_with(root)) && !is_stub(path));
        let mut ids = BTreeMap::new();
        for path in paths {
            match id_of(path) {
                Ok(id) => drop(ids.insert(path.clone(), id)),
                Err(error) if is_gone(&error) => return Some(path.clone()),
                // It cannot be reached, by the run neither.
                Err(_) => {}
            }
        }
        self.ids = ids;
        None
    }

    /// Holds the directories above the state directory and the user's secrets where the run can write, or it could move them
    /// away with what is hidden in them, and put others in their place. So it is with what the user named, which itself is held
    /// too: a later run gets what is there then.
    fn hold_above_secrets_and_grants(&mut self, workspace: &Path) {
        let named = self.shown.iter().filter(|(_, write)| *write).map(|(path, _)| path.as_path());
        let roots: Vec<&Path> = [workspace].into_iter().chain(named).collect();
        let mut anchors = Vec::new();
        let secrets = self.hidden.iter().filter_map(|(secret, _)| secret.parent());
        for path in secrets.chain(self.granted.keys().map(PathBuf::as_path)) {
            for root in roots.iter().filter(|root| path.starts_with(root)) {
                anchors.extend(path.ancestors().take_while(|above| above != root));
            }
        }
        // The outer ones first: a mount on one hides what is mounted below it.
        anchors.sort_unstable();
        anchors.dedup();
        self.anchors.extend(anchors.into_iter().map(Path::to_owned).collect::<Vec<_>>());
    }

    /// Holds the directories above others with settings, or a run could put one in their place that has settings of its own.
    fn hold_above<'a>(&mut self, paths: impl Iterator<Item = &'a PathBuf>, root: &Path) {
        let above = |path: &'a PathBuf| path.ancestors().skip(1).take_while(|above| *above != root);
        // The outer ones first: a mount on one hides what is mounted below it.
        let above: BTreeSet<&Path> = paths.flat_map(above).collect();
        let known: BTreeSet<PathBuf> = self.anchors.iter().cloned().collect();
        self.anchors.extend(above.into_iter().filter(|path| !known.contains(*path)).map(Path::to_owned));
    }

    /// Protects paths as they are, or reserves them: one that is missing is reserved at its outermost part.
    pub(super) fn protect<N: AsRef<OsStr>>(&mut self, root: &Path, names: &[N]) {
        for name in names.iter().map(AsRef::as_ref) {
            let path: PathBuf = root.join(name).components().collect();
            let mut way: Vec<&Path> = path.ancestors().take_while(|above| *above != root).collect();
            way.reverse();
            for (place, part) in way.iter().enumerate() {
                let last = place + 1 == way.len();
                match fs::symlink_metadata(part) {
                    Ok(data) if data.is_symlink() => {
                        self.hold_link(part);
                        break;
                    }
                    // Another run reserves the whole of it already.
                    Ok(_) if !last && ringfence_linux::is_stand_in(part) => {
                        self.note_missing(part, StandIn::Directory);
                        add(&mut self.protected, part);
                        break;
                    }
                    Ok(data) if data.is_dir() && !last => add(&mut self.anchors, part),
                    // A file in the way is held as it is, and nothing can be made below it.
                    Ok(_) => {
                        self.adopt(part, stand_in(name, last));
                        add(&mut self.protected, part);
                        break;
                    }
                    Err(_) => {
                        self.note_missing(part, stand_in(name, last));
                        add(&mut self.protected, part);
                        break;
                    }
                }
            }
        }
    }

    /// A link is held in its place. What it leads to has a name of its own.
    fn hold_link(&mut self, path: &Path) {
        if !self.links.iter().any(|known| known == path) {
            let message = format!(
                "{} is a symbolic link: the link is protected, what it leads to is not",
                path.display()
            );
            self.notices.push(message);
            self.links.push(path.to_owned());
            add(&mut self.protected, path);
        }
    }

    /// Files of the user's home, wherever they could be written: the workspace is the home or is above it, a part of it was
    /// named, or a link of the home leads there. Secrets are protected where they are missing, and what links in them lead to.
    fn protect_home(&mut self, request: &Request, (home, home_names): (&Path, &HomeNames), names: &[String]) {
        let as_named = home;
        let Ok(home) = fs::canonicalize(home) else { return };
        // Of two the first is the one that programs of the user are told of.
        self.home.get_or_insert_with(|| home.clone());
        let named = self.shown.iter().filter(|(_, write)| *write).map(|(path, _)| path.clone());
        let roots: Vec<PathBuf> =
            [request.workspace.host().as_path().to_owned()].into_iter().chain(named).collect();
        let of_policy: Vec<&str> = names.iter().filter_map(|name| name.strip_prefix("~/")).collect();
        let secrets = request.policy.files.secrets.iter().filter_map(|name| name.strip_prefix("~/"));
        let more = if of_policy.is_empty() { &[] } else { PROTECTED_IF_PRESENT.as_slice() };
        let executed = secrets.clone().filter(|name| home::is_executed_secret(name));
        let followed = of_policy.iter().chain(more).copied().chain(executed);
        let existing = followed.filter(|name| home_names.may_exist(&as_named.join(name)));
        let before = self.protected.len();
        home_links::protect(&home, &existing.collect::<Vec<_>>(), &roots, self);
        let led_to = self.protected.get(before..).unwrap_or_default().to_vec();
        self.notice("read-only, for links in your home lead there", &led_to);
        for root in roots {
            let inside = |name: &str| below_root(&root, (&home, name));
            let is_present = |name: &&&str| fs::symlink_metadata(home.join(name)).is_ok();
            let present = more.iter().filter(|name| inside(name).is_some()).filter(is_present);
            let of_root = secrets.clone().filter(|name| inside(name).is_some());
            let missing = of_root.filter(|name| real(&home.join(name)).is_none()).map(home::reserved_secret);
            let named = of_policy.iter().chain(present).filter_map(|name| inside(name));
            let inside: Vec<String> = named.chain(missing.filter_map(|name| inside(&name))).collect();
            self.protect(&root, &inside);
            if let Some(name) = root.strip_prefix(&home).ok().and_then(home::directory_of) {
                let message = format!("~/{name} is not protected: the run works in that directory");
                self.notices.push(message);
            }
        }
    }

    /// The files that govern runs cannot be written by this one, wherever it sees them.
    fn protect_governing(&mut self, request: &Request) {
        // What a link among them leads to is one of them too.
        for path in request.governing.iter().map(HostPath::as_path) {
            let is_link = fs::symlink_metadata(path).is_ok_and(|data| data.is_symlink());
            if is_link && !self.links.iter().any(|known| known == path) {
                self.links.push(path.to_owned());
                add(&mut self.protected, path);
            }
        }
        let named = self.shown.iter().filter(|(_, write)| *write).map(|(path, _)| path.clone());
        let workspace = request.workspace.host().as_path().to_owned();
        let roots: Vec<PathBuf> = [workspace].into_iter().chain(named).collect();
        for root in roots {
            let open = |path: &&HostPath| {
                !self.protected.iter().any(|held| path.as_path().starts_with(held) && path.as_path() != held)
            };
            let governing = request.governing.iter().filter(open);
            let below = governing.filter_map(|path| path.as_path().strip_prefix(&root).ok());
            let below: Vec<String> = below.filter_map(Path::to_str).map(String::from).collect();
            self.protect(&root, &below);
        }
    }

    /// Refuses a run that could write what governs runs, where nothing can be protected.
    pub(crate) fn refuse_governing(&self, request: &Request) -> Result<(), LaunchError> {
        let Some(path) = request
            .governing
            .iter()
            .find(|path| self.protected.iter().any(|held| path.as_path().starts_with(held)))
        else {
            return Ok(());
        };
        let message =
            format!("{} governs runs, and cannot be protected in this mode", path.as_path().display());
        let failure = Failure::new(FailureClass::Refused, message);
        Err(LaunchError::Runtime(
            failure.with_remedy("keep it outside of the workspace and of what the run may write"),
        ))
    }

    /// Looks at everything below a directory that is seen.
    fn scan(&mut self, tree: &Directory, root: &Path, names: &Names<'_>) -> Result<(), LaunchError> {
        let mut finds = Finds::default();
        let mut locations = Locations::new(RandomState::new());
        let unvisited = walk_with_directories(tree, BOUNDS, &mut |step| match step {
            Step::Directory(path, data) => {
                if names.writable && data.is_open_to_all() {
                    locations.note_open(path, data.inode());
                }
                Next::Enter
            }
            Step::Name(_) if names.ending.is_due() => Next::PassOver,
            Step::Name(visit) => {
                if names.writable && visit.kind == EntryKind::Directory {
                    locations.note(visit.path, visit.inode);
                }
                finds.visit(root, &visit, names)
            }
        });
        let unvisited = unvisited.map_err(|error| {
            refused(format!("{} cannot be searched for what must be hidden: {error}", root.display()))
        })?;
        names.ending.check(SCANNED)?;
        if unvisited.more {
            let most = BOUNDS.entries;
            return Err(refused(format!("{} has more than {most} files, too many to scan", root.display())));
        }
        self.notice("what cannot be searched is hidden", &unvisited.directories);
        for path in unvisited.directories {
            match git_tree(&path) {
                // Another directory may be mounted over the git directory, in which there is no such path.
                Some(tree) => drop(finds.with_secrets.insert(root.join(tree).components().collect())),
                None => finds.hidden.push((path, true)),
            }
        }
        self.notice("links with denied names, which hide nothing that they lead to", &finds.denied_links);
        let states = finds.states.iter().map(|path| root.join(path));
        let states: Vec<PathBuf> =
            states.filter(|path| !self.hidden.contains(&(path.clone(), true))).collect();
        self.notice("hidden whole, for it is a state directory of Ringfence", &states);
        self.hidden.extend(states.iter().map(|path| (path.clone(), true)));
        let crowded = crowded(&finds.hidden);
        self.notice("hidden whole, for it has too many denied files", &crowded);
        let whole: BTreeSet<PathBuf> = crowded.iter().cloned().collect();
        finds.hidden.retain(|(path, _)| !crowding::is_within(path, &whole) && !whole.contains(path));
        finds.hidden.extend(crowded.into_iter().map(|path| (path, true)));
        self.hidden.extend(finds.hidden.into_iter().map(|(path, directory)| (root.join(path), directory)));
        if names.writable {
            self.locations.push((root.to_owned(), locations));
            self.notice(
                "read-only, for git takes it for a repository (remove `HEAD` in it if it is none)",
                &finds.bare,
            );
            let known: BTreeSet<PathBuf> = self.protected.iter().cloned().collect();
            let governing = finds.governing.iter().map(|path| root.join(path));
            let governing: Vec<PathBuf> = governing.filter(|path| !known.contains(path)).collect();
            self.notice(
                "read-only, for these are other names (hard links) of files that govern runs or your programs",
                &governing,
            );
            let found = finds.protected.iter().map(|path| root.join(path)).chain(governing);
            let found: BTreeSet<PathBuf> = found.collect();
            let settings = found.iter().filter(|path| path.ends_with(SETTINGS_DIRECTORY));
            self.hold_above(settings.chain(&states), root);
            self.protected.extend(found.into_iter().filter(|path| !known.contains(path)));
            let access = (names.git, names.private, names.holds_trees);
            repositories::below(&finds.repositories, (tree, root), access, self);
            if names.holds_trees && names.git != GitAccess::Direct {
                repositories::hold_in_place(&[&finds.repositories, &finds.bare], root, self);
            }
            self.hold_as_others(root, finds.covered);
        }
        let mut with_secrets = finds.with_secrets;
        let is_shown = |tree: &PathBuf| !repositories::is_private(tree, self);
        with_secrets.extend(finds.with_denied_refs.into_iter().filter(is_shown));
        let with_secrets: Vec<PathBuf> = with_secrets.into_iter().collect();
        repositories::hide_with_secrets(&with_secrets, self);
        Ok(())
    }

    /// Holds or protects what other runs do, unless a private git directory is mounted over it.
    fn hold_as_others(&mut self, root: &Path, mut covered: Vec<(PathBuf, CoverKind, bool)>) {
        if covered.is_empty() {
            return;
        }
        // The outer ones first, as all anchors are.
        covered.sort_unstable_by(|(one, ..), (other, ..)| one.cmp(other));
        let anchors: BTreeSet<PathBuf> = self.anchors.iter().cloned().collect();
        let protected: BTreeSet<PathBuf> = self.protected.iter().cloned().collect();
        for (path, kind, is_link) in covered {
            let path = root.join(path);
            match kind {
                _ if self.git.iter().any(|mount| path.starts_with(&mount.repository.common)) => {}
                _ if is_link => self.hold_link(&path),
                CoverKind::Anchor => self.anchors.extend((!anchors.contains(&path)).then_some(path)),
                _ => self.protected.extend((!protected.contains(&path)).then_some(path)),
            }
        }
    }

    /// Hides and protects all names of the hidden and of the protected files that have more than one, in all trees that are seen:
    /// a file of one may have a name in another.
    fn cover_other_names(
        &mut self,
        trees: &[(Directory, PathBuf)],
        ending: &Ending<'_>,
    ) -> Result<(), LaunchError> {
        let hidden = shared_inodes(self.hidden.iter().map(|(path, _)| path));
        // Stub files of another run are names of one file, which may go at any time.
        let missing: BTreeSet<&PathBuf> = self.missing.iter().map(|(path, _)| path).collect();
        let is_stub = |path: &&PathBuf| missing.contains(path);
        let held = shared_inodes(self.protected.iter().filter(|path| !is_stub(path)));
        if hidden.is_empty() && held.is_empty() {
            return Ok(());
        }
        let (mut with_secrets, mut to_hide, mut to_hold) = (BTreeSet::new(), Vec::new(), Vec::new());
        for (tree, root) in trees {
            for (path, is_hidden) in other_names(tree, (&hidden, &held), ending)
                .map_err(|error| refused(format!("{} cannot be searched: {error}", root.display())))?
            {
                let whole = root.join(&path);
                match git_tree(&path) {
                    // A git directory in which a hidden file has another name is hidden as a whole.
                    Some(tree) if is_hidden => {
                        with_secrets.insert(root.join(tree).components().collect::<PathBuf>());
                    }
                    Some(_) => {}
                    None if is_hidden => to_hide.push(whole),
                    None => to_hold.push(whole),
                }
            }
            ending.check(SCANNED)?;
        }
        // Files that were named by themselves.
        for (path, id) in &self.granted {
            let id = (id.device, id.inode);
            to_hide.extend(hidden.contains(&id).then(|| path.clone()));
            to_hold.extend(held.contains(&id).then(|| path.clone()));
        }
        repositories::hide_with_secrets(&Vec::from_iter(with_secrets), self);
        self.hidden.extend(to_hide.into_iter().map(|path| (path, false)));
        let known: BTreeSet<PathBuf> = self.protected.iter().cloned().collect();
        self.protected.extend(to_hold.into_iter().filter(|path| !known.contains(path)));
        Ok(())
    }

    /// A notice with the first few of many paths.
    fn notice(&mut self, what: &str, paths: &[PathBuf]) {
        if paths.is_empty() {
            return;
        }
        let named: Vec<String> = paths.iter().take(MAX_NAMED).map(|path| short(path)).collect();
        let more = match paths.len().saturating_sub(MAX_NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        self.notices.push(format!("{what}: {}{more}", named.join(", ")));
    }

    /// Covers whole directories where there is too much to cover one by one: what a run has left refuses no later run.
    fn cover_crowded_directories(&mut self, workspace: &Path) {
        let held = self.protected.len() + self.anchors.len();
        if self.hidden.len().max(held) <= MAX_SINGLE_COVERS && self.bytes() <= MAX_SINGLE_COVER_BYTES {
            return;
        }
        let others = self.shown.iter().map(|(path, _)| path.clone());
        let roots: Vec<PathBuf> = std::iter::once(workspace.to_owned()).chain(others).collect();
        // What is hidden and what is held, in each of them.
        let limit =
            Limit { covers: MAX_SINGLE_COVERS, bytes: MAX_SINGLE_COVER_BYTES / 2 / roots.len().max(1) };
        for root in roots {
            let hidden = self.hidden.iter().map(|(path, _)| path.as_path());
            let whole = crowding::choose(hidden, &root, limit);
            self.notice("hidden whole, for it has too many denied files", &Vec::from_iter(whole.clone()));
            self.drop_within(&whole);
            self.hidden.extend(whole.into_iter().map(|path| (path, true)));
            let held = self.protected.iter().chain(&self.anchors).map(PathBuf::as_path);
            let whole = crowding::choose(held, &root, limit);
            self.notice(
                "read-only as a whole, for it has too many protected paths",
                &Vec::from_iter(whole.clone()),
            );
            self.hold_whole(whole);
        }
    }

    /// Holds directories read-only in the place of what is protected in them.
    pub(super) fn hold_whole(&mut self, whole: BTreeSet<PathBuf>) {
        self.protected.retain(|path| !crowding::is_within(path, &whole) && !whole.contains(path));
        self.anchors.retain(|path| !crowding::is_within(path, &whole) && !whole.contains(path));
        self.missing.retain(|(path, _)| !crowding::is_within(path, &whole));
        self.protected.extend(whole);
    }

    /// Covers whole directories in which no stub file can be made: a run may have taken the user's right to write, and this one
    /// could give it back to itself.
    fn cover_unwritable_directories(&mut self, request: &Request) {
        if !writes(request) {
            return;
        }
        // Stub files in the root of an overlay are made in its layer.
        let layered = request.layer.as_ref().map(|_| request.workspace.host().as_path());
        let parents = self.missing.iter().filter_map(|(path, _)| path.parent());
        let parents: BTreeSet<&Path> = parents.filter(|parent| Some(*parent) != layered).collect();
        let unwritable = parents.into_iter().filter(|parent| is_unwritable(parent)).map(Path::to_owned);
        let mut whole: BTreeSet<PathBuf> = unwritable.collect();
        if whole.is_empty() {
            return;
        }
        let all = whole.clone();
        whole.retain(|path| !crowding::is_within(path, &all));
        self.notice(
            "read-only as a whole, for you may not write there and it has protected paths",
            &Vec::from_iter(whole.clone()),
        );
        self.hold_whole(whole);
    }

    /// Bytes that all covers take in what the gate is told, at most.
    fn bytes(&self) -> usize {
        let held = self.protected.iter().chain(&self.anchors);
        let paths = held.chain(self.hidden.iter().map(|(path, _)| path));
        let paths = paths.chain(self.missing.iter().map(|(path, _)| path));
        paths.map(|path| crowding::bytes(path)).sum()
    }

    /// Forgets what lies below directories that are hidden.
    fn drop_within(&mut self, hidden: &BTreeSet<PathBuf>) {
        let stays = |path: &PathBuf| !hidden.contains(path) && !crowding::is_within(path, hidden);
        self.hidden.retain(|(path, _)| stays(path));
        self.protected.retain(stays);
        self.anchors.retain(stays);
        self.missing.retain(|(path, _)| stays(path));
        self.git.retain(|mount| stays(mount.tree()));
    }

    fn check_size(&self) -> Result<(), LaunchError> {
        let count = self.hidden.len() + self.protected.len() + self.anchors.len();
        let bytes = self.bytes();
        if count <= MAX_COVERS && bytes <= MAX_COVER_BYTES {
            return Ok(());
        }
        let example = self.hidden.iter().map(|(path, _)| path).chain(&self.protected).next_back();
        let example = example.map(|path| short(path)).unwrap_or_default();
        let message = match count > MAX_COVERS {
            true => {
                format!("{count} paths have to be protected or hidden, more than {MAX_COVERS}: {example}")
            }
            false => format!("the {count} paths that have to be protected or hidden are too long: {example}"),
        };
        Err(LaunchError::Runtime(
            Failure::new(FailureClass::Refused, message)
                .with_remedy("delete or move these files, or change `files.protect` and `files.deny`"),
        ))
    }

    /// A stub file of another run, or one that was left by a run that was killed, is used as it is; the last run removes it.
    fn adopt(&mut self, path: &Path, kind: StandIn) {
        if ringfence_linux::is_stand_in(path) {
            self.note_missing(path, kind);
        }
    }

    fn note_missing(&mut self, path: &Path, kind: StandIn) {
        if !self.missing.iter().any(|(known, _)| known.as_os_str() == path.as_os_str()) {
            self.missing.push((path.to_owned(), kind));
        }
    }
}

impl Finds {
    fn visit(&mut self, root: &Path, visit: &Visit<'_>, names: &Names<'_>) -> Next {
        let path = visit.path;
        let beside = path.parent().unwrap_or(Path::new(""));
        let elsewhere = !names.is_workspace || !beside.as_os_str().is_empty();
        if names.is_new_stub(root, path) {
            return Next::PassOver;
        }
        // It leads to no driver and holds nothing, and an overlay shows nothing that could be covered.
        if visit.kind == EntryKind::Other && visit.is_whiteout() {
            return Next::PassOver;
        }
        // Asked for only if it matters: it takes a call for each directory.
        let id = || DirectoryId { device: visit.parent.id().device, inode: visit.inode };
        let covered = (!names.known.is_empty()).then(|| names.known.kind(id(), visit.name)).flatten();
        let is_hidden = covered.is_some_and(CoverKind::is_hidden);
        if let Some(kind) = covered.filter(|_| !is_hidden) {
            self.covered.push((path.to_owned(), kind, visit.kind == EntryKind::Link));
        }
        if let Some(tree) = git_tree(path) {
            if visit.kind.is_channel() || is_hidden || names.denied.is_match(path) {
                let whole: PathBuf = root.join(tree).components().collect();
                let below = path.strip_prefix(tree).unwrap_or(path);
                // Names of refs and logs are names of branches.
                let is_ref = below.starts_with(".git/refs") || below.starts_with(".git/logs");
                if is_ref {
                    self.with_denied_refs.insert(whole)
                } else {
                    self.with_secrets.insert(whole)
                };
            }
            return Next::Enter;
        }
        if is_hidden {
            self.hidden.push((path.to_owned(), visit.kind == EntryKind::Directory));
            return Next::PassOver;
        }
        if visit.name == ".git" {
            self.repositories.extend(elsewhere.then(|| beside.to_owned()));
            return Next::Enter;
        }
        if names.denied.is_match(path) {
            // A link holds nothing. What it leads to is denied by its own name: a run may have made the link.
            match visit.kind {
                EntryKind::Link => self.denied_links.push(path.to_owned()),
                kind => self.hidden.push((path.to_owned(), kind == EntryKind::Directory)),
            }
            return Next::PassOver;
        }
        if visit.kind.is_channel() {
            self.hidden.push((path.to_owned(), false));
        }
        let is_governing = || names.governing.contains(&(id().device, visit.inode));
        if visit.kind == EntryKind::File && !names.governing.is_empty() && is_governing() {
            self.governing.push(path.to_owned());
        }
        self.hide_state(visit, beside);
        if elsewhere {
            self.protect(visit, names);
            // A bare repository, by the file that every one has beside `objects` and `refs`.
            if visit.name == "HEAD" && names.git != GitAccess::Direct {
                self.protect_bare(visit);
            }
        }
        Next::Enter
    }

    /// Hides the state directory of another installation, which holds a daemon's token, logins and logs. The root cannot be hidden,
    /// and a run may have put such names there.
    fn hide_state(&mut self, visit: &Visit<'_>, beside: &Path) {
        if visit.kind != EntryKind::File {
            return;
        }
        let is_root = beside.as_os_str().is_empty();
        if is_root && STATE_SECRETS.iter().any(|name| visit.name == *name) {
            self.hidden.push((visit.path.to_owned(), false));
        } else if !is_root && STATE_MARKERS.iter().any(|name| visit.name == *name) {
            self.states.insert(beside.to_owned());
        }
    }

    /// What is protected in the workspace's root is protected where it exists elsewhere.
    fn protect(&mut self, visit: &Visit<'_>, names: &Names<'_>) {
        for name in names.beginning_with(visit.name) {
            let whole: PathBuf = Path::new(name).components().collect();
            if visit.parent.metadata(&whole).is_ok_and(|data| data.kind() != EntryKind::Link) {
                let parent = visit.path.parent().unwrap_or(Path::new(""));
                self.protected.push(parent.join(whole));
            }
        }
    }

    /// A repository without a working tree is read-only as a whole: git takes its configuration from several of its files.
    fn protect_bare(&mut self, visit: &Visit<'_>) {
        if ringfence_workspace::executed::is_git_directory(visit.parent) {
            let parent = visit.path.parent().unwrap_or(Path::new(""));
            self.protected.push(parent.to_owned());
            self.bare.push(parent.to_owned());
        }
    }
}

/// What a name of the home is from a root, if it is below that. Most roots hold nothing that is named.
fn below_root(root: &Path, (home, name): (&Path, &str)) -> Option<String> {
    let directory = if name.ends_with('/') { "/" } else { "" };
    let below = match root.strip_prefix(home) {
        Ok(within) => Path::new(name).strip_prefix(within).ok()?.to_owned(),
        Err(_) => home.strip_prefix(root).ok()?.join(name),
    };
    let below: PathBuf = below.components().collect();
    (!below.as_os_str().is_empty()).then(|| Some(format!("{}{directory}", below.to_str()?))).flatten()
}

/// Devices and inodes of files.
type Inodes = BTreeSet<(u64, u64)>;

/// The names below a directory of files that are hidden or held, by device and inode, and whether they are hidden.
fn other_names(
    tree: &Directory,
    (hidden, held): (&Inodes, &Inodes),
    ending: &Ending<'_>,
) -> io::Result<Vec<(PathBuf, bool)>> {
    let inodes: BTreeSet<u64> = hidden.iter().chain(held).map(|(_, inode)| *inode).collect();
    let mut found = Vec::new();
    walk(tree, BOUNDS, &mut |visit| {
        if ending.is_due() {
            return Next::PassOver;
        }
        // Which device it is takes a call for each directory.
        if visit.kind == EntryKind::File && inodes.contains(&visit.inode) {
            let id = (visit.parent.id().device, visit.inode);
            let is_hidden = hidden.contains(&id);
            found.extend((is_hidden || held.contains(&id)).then(|| (visit.path.to_owned(), is_hidden)));
        }
        Next::Enter
    })?;
    Ok(found)
}

/// The working tree of a path in a git directory. The path is relative. It is asked for each name, so bytes are compared.
fn git_tree(path: &Path) -> Option<&Path> {
    // The outermost one: what looks like a repository within a git directory is part of that.
    let bytes = path.as_os_str().as_bytes();
    let mut start = 0;
    for part in bytes.split(|byte| *byte == b'/') {
        let end = start + part.len();
        if part == b".git" && end < bytes.len() {
            return Some(Path::new(OsStr::from_bytes(&bytes[..start.saturating_sub(1)])));
        }
        start = end + 1;
    }
    None
}

/// Directories with so many hidden entries that each one alone would cost more than the whole is worth.
fn crowded(hidden: &[(PathBuf, bool)]) -> Vec<PathBuf> {
    let mut counts: BTreeMap<&Path, usize> = BTreeMap::new();
    let parents = hidden.iter().filter_map(|(path, _)| path.parent());
    for parent in parents.filter(|parent| !parent.as_os_str().is_empty()) {
        *counts.entry(parent).or_default() += 1;
    }
    let crowded = counts.into_iter().filter(|(_, count)| *count > MAX_HIDDEN_IN_DIRECTORY);
    crowded.map(|(path, _)| path.to_owned()).collect()
}

/// Whether the user may not make files in a directory.
fn is_unwritable(directory: &Path) -> bool {
    let access = Access::WRITE_OK | Access::EXEC_OK;
    let checked = accessat(CWD, directory, access, AtFlags::EACCESS);
    matches!(checked, Err(Errno::ACCESS | Errno::PERM | Errno::ROFS))
}

/// Whether an error says that a path is not there, or leads through something else by now.
fn is_gone(error: &io::Error) -> bool {
    let gone = [Errno::NOENT, Errno::NOTDIR, Errno::LOOP].map(Errno::raw_os_error);
    error.raw_os_error().is_some_and(|code| gone.contains(&code))
}

/// A path as a notice shows it.
pub(super) fn short(path: &Path) -> String {
    let text: OsString = path.as_os_str().to_owned();
    let text = text.to_string_lossy().into_owned();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

pub(super) fn add(paths: &mut Vec<PathBuf>, path: &Path) {
    if !paths.iter().any(|known| known.as_os_str() == path.as_os_str()) {
        paths.push(path.to_owned());
    }
}

/// What reserves a path that is not there. An empty file is no JSON.
fn stand_in(name: &OsStr, last: bool) -> StandIn {
    match name.as_bytes() {
        name if !last || name.ends_with(b"/") => StandIn::Directory,
        name if name.ends_with(b".json") => StandIn::File("{}\n".into()),
        _ => StandIn::File(String::new()),
    }
}

/// The files among these that have more than one name.
fn shared_inodes<'a, P: AsRef<Path> + 'a + ?Sized>(
    paths: impl IntoIterator<Item = &'a P>,
) -> BTreeSet<(u64, u64)> {
    let data = paths.into_iter().filter_map(|path| fs::symlink_metadata(path).ok());
    data.filter(|data| data.is_file() && data.nlink() > 1).map(|data| (data.dev(), data.ino())).collect()
}
