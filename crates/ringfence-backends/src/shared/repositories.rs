//! Git directories below a workspace, and how a run sees each: a private one, read-only, or as it is.
#![expect(clippy::disallowed_methods, reason = "places in the state directory, and the user's home")]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use globset::GlobSet;
use ringfence_core::plan::Request;
use ringfence_core::policy::GitAccess;
use ringfence_workspace::executed::is_git_directory;
use ringfence_workspace::git::{
    self, Configuration, Found, Kind, MODULES, Making, PRIVATE, Reach, RefsBudget, Repository, lexical,
};
use ringfence_workspace::{Directory, EntryKind};

use super::covers::Shown;
use super::git_configuration;
use super::survey::{Survey, add, short, writes};

/// Where read-only parts of git directories are seen inside.
const GUEST_PARTS: &str = "/.ringfence/git";
/// Most repositories that get a private git directory; others are read-only.
const MAX_PRIVATE: usize = 8;
/// Most repositories below the workspace whose configuration is read.
const MAX_CONFIGURED: usize = 256;
/// Most of them that are looked at at all; the git directories of others are hidden.
const MAX_DISCOVERED: usize = 1024;
/// Most submodules of one repository whose directories are protected.
pub(super) const MAX_SUBMODULES: usize = 1024;
/// Most directories that are held in their places for working trees, before whole ones are read-only for too many covers.
const MAX_HELD: usize = 16_384;
/// Longest path of one of them below the workspace, in parts and in bytes. Of a longer one the first part is read-only.
const MAX_HELD_PARTS: usize = 64;
const MAX_HELD_BYTES: usize = 1024;
/// Most paths that a notice names, and the most characters of each.
const MAX_NAMED: usize = 5;
const MAX_NAME_CHARACTERS: usize = 80;
/// What names or is executed in a git directory. An empty `commondir` would break it, so that one is reported if it is made.
const BARE_PARTS: [&str; 3] = ["hooks/", "config", "config.worktree"];

/// A git directory that a run sees a private one of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GitMount {
    /// The repository.
    pub(crate) repository: Repository,
    /// Its working tree.
    tree: PathBuf,
    /// Where the git directory is seen, if it is outside of the workspace.
    target: Option<PathBuf>,
}

impl GitMount {
    /// Where the read-only parts of the repository with this number are seen.
    fn parts(number: usize) -> PathBuf {
        Path::new(GUEST_PARTS).join(number.to_string())
    }

    /// Its working tree.
    pub(super) fn tree(&self) -> &PathBuf {
        &self.tree
    }

    /// Where a run sees the git directory.
    fn target(&self, request: &Request) -> PathBuf {
        let (host, guest) = (request.workspace.host().as_path(), request.workspace.guest().as_path());
        self.target.clone().unwrap_or_else(|| match self.repository.common.strip_prefix(host) {
            Ok(below) => guest.join(below),
            Err(_) => self.repository.common.clone(),
        })
    }
}

/// Where git directories of submodules are seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Modules {
    /// In the private git directory, as on the host: what they say of their working trees leads there.
    InPlace,
    /// Where the other read-only parts are, with a link to it.
    Linked,
}

/// What is mounted for private git directories, over the workspace: `source` names where each one is.
pub(crate) fn mounts(
    request: &Request,
    survey: &Survey,
    source: &dyn Fn(usize) -> PathBuf,
    modules: Modules,
) -> Vec<Shown> {
    let of = |(number, mount): (usize, &GitMount)| {
        let parts = git::shared_parts(&mount.repository, &GitMount::parts(number));
        let parts = parts
            .into_iter()
            .map(|part| Shown { id: Some(part.id), ..Shown::new(part.source, part.target, false) });
        let is_inner = |part: &Shown| modules == Modules::InPlace && part.source.ends_with(MODULES);
        let (inner, parts): (Vec<Shown>, Vec<Shown>) = parts.partition(is_inner);
        let at = mount.target(request).join(MODULES);
        let inner = inner.into_iter().map(move |part| Shown { target: at.clone(), ..part });
        let common = &mount.repository.common;
        let in_workspace = mount.target.is_none() && common.starts_with(request.workspace.host().as_path());
        let over = survey.ids.get(common).filter(|_| in_workspace).map(|id| (common.clone(), *id));
        let private = Shown { over, ..Shown::new(source(number), mount.target(request), true) };
        parts.into_iter().chain([private]).chain(inner).collect::<Vec<_>>()
    };
    survey.git.iter().enumerate().flat_map(of).collect()
}

/// Where the private git directory with this number is kept.
pub(crate) fn place(request: &Request, number: usize) -> Option<PathBuf> {
    let place = request.git.as_ref()?.as_path();
    // Mostly there is one, which has the place to itself.
    Some(if number == 0 { place.to_owned() } else { place.join(number.to_string()) })
}

/// Makes the directory of a private git directory, with those above it.
fn make_place(place: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(place)
}

/// Makes the private git directories of a run, empty, so that they can be mounted.
pub(crate) fn make_places(request: &Request, survey: &Survey) -> io::Result<()> {
    for (number, mount) in survey.git.iter().enumerate() {
        let Some(place) = place(request, number) else { continue };
        make_place(&place)?;
        let private = place.join(PRIVATE);
        fs::DirBuilder::new().mode(0o700).create(&private)?;
        let parts = git::shared_parts(&mount.repository, &GitMount::parts(number));
        if parts.iter().any(|part| part.source.ends_with(MODULES)) {
            fs::create_dir(private.join(MODULES))?;
        }
    }
    Ok(())
}

/// Makes and fills the private git directories of a run.
pub(crate) fn make(request: &Request, survey: &mut Survey, owner: Option<(u32, u32)>) -> io::Result<()> {
    let places = (0..survey.git.len()).filter_map(|number| place(request, number));
    places.into_iter().try_for_each(|place| make_place(&place))?;
    fill(request, survey, owner, Modules::Linked)
}

/// Fills them. One that cannot be made stays empty, with a notice: an earlier run may have left the repository so.
pub(crate) fn fill(
    request: &Request,
    survey: &mut Survey,
    owner: Option<(u32, u32)>,
    modules: Modules,
) -> io::Result<()> {
    let denied = request.policy.files.denied().unwrap_or_else(|_| GlobSet::empty());
    let mut index_budget = git::MAX_INDEX_BYTES;
    // An earlier run may have made repositories below the workspace, and none of them takes from its own.
    let (mut own_refs, mut nested_refs) = (RefsBudget::OF_WORKSPACE, RefsBudget::OF_NESTED);
    for (number, mount) in survey.git.iter().enumerate() {
        let Some(place) = place(request, number) else { continue };
        let missing = survey.missing.iter().filter_map(|(path, _)| path.strip_prefix(&mount.tree).ok());
        let excluded: Vec<String> = missing.filter_map(Path::to_str).map(String::from).collect();
        let (protected, held) =
            (below_tree(&survey.protected, &mount.tree), below_tree(&survey.anchors, &mount.tree));
        let hidden: Vec<&Path> =
            survey.hidden.iter().filter_map(|(path, _)| path.strip_prefix(&mount.tree).ok()).collect();
        let workspace = request.workspace.host().as_path();
        let is_nested = mount.tree != workspace;
        let making = Making {
            repository: &mount.repository,
            place: &place,
            guest: &GitMount::parts(number),
            denied: &denied,
            denied_globs: &request.policy.files.deny,
            hidden: &hidden,
            tree: mount.tree.strip_prefix(workspace).unwrap_or(Path::new("")),
            excluded: &excluded,
            protected: &protected,
            held: &held,
            owner,
            is_nested,
            modules_in_place: modules == Modules::InPlace,
            index_budget,
        };
        match git::make(making, if is_nested { &mut nested_refs } else { &mut own_refs }) {
            Ok(made) => {
                index_budget = index_budget.saturating_sub(made.index_bytes);
                survey.notices.extend(made.notices);
            }
            Err(error) => {
                git::make_empty(&place)?;
                let common = mount.repository.common.display();
                survey.notices.push(format!("{common} is not seen in this run: {error}"));
            }
        }
    }
    Ok(())
}

/// Paths below a working tree, from there, without git directories, which no commit holds.
fn below_tree<'p>(paths: &'p [PathBuf], tree: &Path) -> Vec<&'p Path> {
    let below = paths.iter().filter_map(|path| path.strip_prefix(tree).ok());
    let is_tracked = |path: &&Path| !path.as_os_str().is_empty() && path.iter().all(|part| part != ".git");
    below.filter(is_tracked).collect()
}

/// The private directory of a run in its place.
pub(crate) fn private(request: &Request, number: usize) -> PathBuf {
    place(request, number).unwrap_or_default().join(PRIVATE)
}

/// Reserves `.git` in a workspace that has none, or a run could make a repository there.
pub(super) fn reserve(request: &Request, survey: &mut Survey) {
    let workspace = request.workspace.host().as_path();
    let is_missing = || fs::symlink_metadata(workspace.join(".git")).is_err();
    if request.policy.files.git != GitAccess::Direct && writes(request) && is_missing() {
        survey.protect(workspace, &[".git/".to_owned()]);
    }
}

/// Finds the repository of the workspace itself.
pub(super) fn of_workspace(request: &Request, tree: &Directory, home: &Path, survey: &mut Survey) {
    let access = request.policy.files.git;
    let workspace = request.workspace.host().as_path();
    let found = discover(tree, workspace);
    if access != GitAccess::Direct {
        protect_pointer(&found, workspace, survey);
        git_configuration::protect(request, &found, home, survey);
    }
    if access != GitAccess::Direct && writes(request) && is_git_directory(tree) {
        survey.protect(workspace, &BARE_PARTS.map(str::to_owned));
        survey.notices.push(
            "the workspace is a git repository without a working tree: its hooks and configuration are read-only"
                .into(),
        );
    }
    if access != GitAccess::Direct && writes(request) {
        let budget = Some(git::MAX_INDEX_BYTES);
        let roots = [workspace.to_owned()];
        protect_submodules(&found, (tree, workspace), &roots, (request.layer.is_none(), budget), survey);
    }
    let repository = match found {
        Found::Nothing if access != GitAccess::Direct && writes(request) => {
            return survey.protect(workspace, &[".git/".to_owned()]);
        }
        Found::Nothing => return,
        Found::Unsupported { why } => {
            if access == GitAccess::Private && writes(request) {
                survey.notices.push(format!("git is not possible in this run: {why}"));
            }
            if access != GitAccess::Direct {
                hide_directory(workspace, survey);
            }
            return;
        }
        Found::Repository(repository) => repository,
    };
    let private = access == GitAccess::Private && writes(request) && request.git.is_some();
    // With a layer nothing but the layer is written.
    let write = access == GitAccess::Direct && writes(request) && request.layer.is_none();
    match &repository.kind {
        Kind::Plain | Kind::Linked { .. } if private => {
            survey.git.push(GitMount { repository, tree: workspace.to_owned(), target: None });
        }
        Kind::Plain if access == GitAccess::Direct => {}
        Kind::Plain => add(&mut survey.protected, &workspace.join(".git")),
        Kind::Linked { .. } => survey.shown.push((repository.common.clone(), write)),
        Kind::Submodule { pointer, back } => {
            let guest = request.workspace.guest().as_path();
            let inside = lexical(&guest.join(pointer));
            let led_back = lexical(&inside.join(back));
            if !is_free(&inside, request) || (led_back != guest && !is_free(&led_back, request)) {
                survey.notices.push("the git directory of the submodule cannot be shown in this run".into());
                return;
            }
            survey.link_back = (led_back != guest).then(|| (led_back, guest.to_owned()));
            match private {
                true => {
                    survey.git.push(GitMount {
                        target: Some(inside),
                        tree: workspace.to_owned(),
                        repository,
                    });
                }
                false => survey.submodule = Some((repository.common.clone(), inside, write)),
            }
        }
    }
}

/// Protects the directories of submodules: the next `git status` above would execute what the configuration of a repository there
/// names. One that is checked out is held in its place. In one that is not, a `.git` that is reserved would end git inside, so the
/// whole directory is read-only. Only the index of a working tree with a `.gitmodules` is read.
///
/// `roots` are the directories that the run may write: the working tree, or some below it.
fn protect_submodules(
    found: &Found,
    (tree, path): (&Directory, &Path),
    roots: &[PathBuf],
    (holds_trees, index_budget): (bool, Option<u64>),
    survey: &mut Survey,
) {
    let lists_submodules =
        |data: ringfence_workspace::Metadata| data.kind() == EntryKind::File && data.length() > 0;
    if *found == Found::Nothing || !tree.metadata(Path::new(".gitmodules")).is_ok_and(lists_submodules) {
        return;
    }
    let mut own_budget = index_budget;
    let Some(paths) = submodules(found, path, own_budget.as_mut().unwrap_or(&mut survey.index_budget)) else {
        return hold_unknown(
            roots,
            "its index cannot be read (`git read-tree HEAD` makes a new one)",
            survey,
        );
    };
    let is_missing = |submodule: &PathBuf| {
        let git = tree.metadata(&submodule.join(".git"));
        git.is_err_and(|error| matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory))
    };
    let (missing, present): (Vec<PathBuf>, Vec<PathBuf>) = paths.into_iter().partition(is_missing);
    for root in roots {
        let below = |submodules: &[PathBuf]| -> Vec<PathBuf> {
            let below =
                |submodule: &PathBuf| path.join(submodule).strip_prefix(root).ok().map(Path::to_owned);
            submodules.iter().filter_map(below).collect()
        };
        protect_missing(&below(&missing), root, survey);
        if holds_trees {
            // The scan may not see their `.git` any more.
            hold_in_place(&[&below(&present)], root, survey);
        }
    }
}

/// Protects the directories of submodules that are not checked out, from a directory that the run may write.
fn protect_missing(submodules: &[PathBuf], root: &Path, survey: &mut Survey) {
    if submodules.len() > survey.submodules_left {
        return hold_unknown(&[root.to_owned()], "too many of them are not checked out", survey);
    }
    survey.submodules_left -= submodules.len();
    for submodule in submodules {
        // The run works in the directory itself.
        if submodule.as_os_str().is_empty() {
            survey.protect(root, &[".git/"]);
            continue;
        }
        let is_long = submodule.as_os_str().len() > MAX_HELD_BYTES;
        let held = submodule.iter().next().filter(|_| is_long).unwrap_or(submodule.as_os_str());
        let mut directory = held.to_owned();
        directory.push("/");
        survey.protect(root, &[directory]);
    }
}

/// The same for a working tree above directories that the run may write, as far as its submodules lie in these.
pub(super) fn protect_submodules_above(
    path: &Path,
    roots: &[PathBuf],
    holds_trees: bool,
    survey: &mut Survey,
) {
    let roots: Vec<PathBuf> = roots.iter().filter(|root| root.starts_with(path)).cloned().collect();
    let Ok(tree) = Directory::open(path) else { return };
    let found = discover(&tree, path);
    protect_submodules(&found, (&tree, path), &roots, (holds_trees, Some(git::MAX_INDEX_BYTES)), survey);
}

/// The submodules that the index of a working tree has, if it can be read. A pointer that leads nowhere is no repository to git.
fn submodules(found: &Found, path: &Path, budget: &mut u64) -> Option<Vec<PathBuf>> {
    let (own, common) = git_directories(found, path);
    let (own, common) = (fs::canonicalize(own), fs::canonicalize(common));
    let is_missing = |found: &io::Result<PathBuf>| {
        found.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    if is_missing(&own) || is_missing(&common) {
        return Some(Vec::new());
    }
    let (own, common) = (Directory::open(&own.ok()?).ok()?, Directory::open(&common.ok()?).ok()?);
    let paths = git::submodule_paths(&own, &common, budget)?;
    Some(paths.iter().map(|submodule| Path::new(OsStr::from_bytes(submodule)).to_owned()).collect())
}

/// The git directory of a working tree, and the one that has its configuration, as git takes them.
fn git_directories(found: &Found, tree: &Path) -> (PathBuf, PathBuf) {
    if let Found::Repository(repository) = found {
        return (repository.own(), repository.common.clone());
    }
    let everywhere = Reach { home: Path::new(""), within: None };
    let files = Configuration::files_of(tree, everywhere);
    let mut directories = files.iter().filter_map(|file| file.parent()).map(Path::to_owned);
    let common = directories.next().unwrap_or_default();
    (directories.next().unwrap_or_else(|| common.clone()), common)
}

/// Makes what a run may write of a working tree read-only as a whole, for it is not known where git would execute what a run
/// makes in it.
fn hold_unknown(roots: &[PathBuf], why: &str, survey: &mut Survey) {
    for root in roots {
        let message = format!("{} is read-only, for its submodules are not known: {why}", short(root));
        survey.notices.push(message.clone());
        survey.warnings.push(message);
    }
    survey.hold_whole(roots.iter().cloned().collect());
}

/// Holds working trees below a directory in their places, with the directories above them: a run could move one away, put a
/// repository of its own there, which git of the user executes while the run goes on, and move it back.
pub(super) fn hold_in_place(trees: &[&[PathBuf]], root: &Path, survey: &mut Survey) {
    if trees.iter().all(|trees| trees.is_empty()) {
        return;
    }
    let (mut held, mut whole) = (BTreeSet::new(), BTreeSet::new());
    for tree in trees.iter().copied().flatten() {
        let is_deep = tree.as_os_str().len() > MAX_HELD_BYTES || tree.components().count() > MAX_HELD_PARTS;
        if is_deep || held.len() >= MAX_HELD {
            whole.extend(tree.iter().next().map(|first| root.join(first)));
            continue;
        }
        let above = tree.ancestors().filter(|above| !above.as_os_str().is_empty());
        held.extend(above.map(|above| root.join(above)));
    }
    notice(
        survey,
        "read-only as a whole, for it has too many repositories or too deep ones",
        &Vec::from_iter(whole.clone()),
    );
    held.extend(std::mem::take(&mut survey.anchors));
    // The outer ones first: a mount on one hides what is mounted below it.
    survey.anchors = held.into_iter().collect();
    survey.hold_whole(whole);
}

/// Finds a repository. A stub of another run is none. It is a directory: a run may have marked a file that leads elsewhere.
fn discover(tree: &Directory, path: &Path) -> Found {
    let is_directory =
        || tree.metadata(Path::new(".git")).is_ok_and(|data| data.kind() == EntryKind::Directory);
    if ringfence_linux::is_stand_in(&path.join(".git")) && is_directory() {
        return Found::Nothing;
    }
    Repository::discover(tree, path)
}

/// Whether nothing else is seen inside at a path that a pointer in the workspace leads to: it is the host's own path, or one
/// below a directory that neither the system nor the sandbox has.
fn is_free(path: &Path, request: &Request) -> bool {
    let same_path = request.workspace.guest().as_path() == request.workspace.host().as_path();
    let mut parts = path.components().skip(1);
    let (first, second) = (parts.next(), parts.next());
    let named = |part: Option<Component<'_>>, name: &str| part.is_some_and(|part| part.as_os_str() == name);
    match first {
        _ if same_path => true,
        Some(_) if named(first, ".git") => named(second, "modules"),
        Some(Component::Normal(name)) => {
            !name.to_string_lossy().starts_with('.')
                && fs::symlink_metadata(Path::new("/").join(name)).is_err()
        }
        _ => false,
    }
}

/// A `.git` that points elsewhere, or that is no git directory, stays as it is.
fn protect_pointer(found: &Found, workspace: &Path, survey: &mut Survey) {
    let plain = matches!(found, Found::Repository(Repository { kind: Kind::Plain, .. }));
    if !plain && *found != Found::Nothing {
        survey.protect(workspace, &[".git".to_owned()]);
    }
}

/// Hides a `.git` that is a directory and no repository that could be shown: a run may have moved hidden files there.
fn hide_directory(tree: &Path, survey: &mut Survey) {
    let path = tree.join(".git");
    if fs::symlink_metadata(&path).is_ok_and(|data| data.is_dir()) {
        survey.protected.retain(|known| *known != path);
        survey.hidden.insert((path, true));
    }
}

/// Whether a run sees a private git directory in a working tree.
pub(super) fn is_private(tree: &Path, survey: &Survey) -> bool {
    survey.git.iter().any(|mount| mount.tree == tree)
}

/// Repositories in whose git directories hidden files were found are not shown at all. There may be very many.
pub(super) fn hide_with_secrets(trees: &[PathBuf], survey: &mut Survey) {
    let known: BTreeSet<&PathBuf> = trees.iter().collect();
    survey.git.retain(|mount| !known.contains(&mount.tree));
    notice(
        survey,
        "git is not possible here, for the git directory has denied files, sockets, FIFOs or what cannot be searched",
        trees,
    );
    let is_directory = |path: &PathBuf| fs::symlink_metadata(path).is_ok_and(|data| data.is_dir());
    let hidden: BTreeSet<PathBuf> = trees.iter().map(|tree| tree.join(".git")).filter(is_directory).collect();
    survey.protected.retain(|path| !hidden.contains(path));
    survey.hidden.extend(hidden.into_iter().map(|path| (path, true)));
}

/// Repositories below the workspace: their git directories are private too, or read-only. A run may have made any number of
/// them, so the oldest come first: no program can set the time at which a file was made.
pub(super) fn below(
    trees: &[PathBuf],
    (root, path): (&Directory, &Path),
    (access, private, holds_trees): (GitAccess, bool, bool),
    survey: &mut Survey,
) {
    if access == GitAccess::Direct || trees.is_empty() {
        return;
    }
    let mut covers = Covers::default();
    for (number, below) in oldest_first(trees, path).into_iter().enumerate() {
        let place: PathBuf = path.join(below).components().collect();
        if number >= MAX_DISCOVERED {
            covers.unread.push(place);
            continue;
        }
        let at = if below.as_os_str().is_empty() { Path::new(".") } else { below };
        let Ok(tree) = root.directory(at) else { continue };
        let found = discover(&tree, &place);
        let is_followed = number < MAX_CONFIGURED;
        if found != Found::Nothing
            && !(is_followed && git_configuration::protect_below(&found, &place, survey))
        {
            covers.cut.push(place.clone());
        }
        if is_followed {
            let roots = [place.clone()];
            protect_submodules(&found, (&tree, &place), &roots, (holds_trees, None), survey);
        }
        match found {
            Found::Repository(repository)
                if repository.kind == Kind::Plain && private && survey.git.len() < MAX_PRIVATE =>
            {
                survey.git.push(GitMount { repository, tree: place, target: None });
            }
            Found::Nothing => {}
            Found::Unsupported { .. } => covers.unsupported.push(place),
            Found::Repository(_) => covers.read_only.push(place),
        }
    }
    git_configuration::end_notices(survey);
    if private && survey.git.len() >= MAX_PRIVATE && !covers.read_only.is_empty() {
        let count = covers.read_only.len();
        survey.notices.push(format!("{count} repositories below the workspace are read-only"));
    }
    covers.apply(survey);
}

/// Working trees, in the order in which their `.git` was made: they share budgets.
fn oldest_first<'t>(trees: &'t [PathBuf], root: &Path) -> Vec<&'t PathBuf> {
    let mut sorted: Vec<&PathBuf> = trees.iter().collect();
    if trees.len() > 1 {
        let made = |tree: &PathBuf| {
            let data = fs::symlink_metadata(root.join(tree).join(".git"));
            // Where the file system does not keep it, or another process removes it meanwhile.
            data.and_then(|data| data.created()).unwrap_or(SystemTime::UNIX_EPOCH)
        };
        sorted.sort_by_cached_key(|tree| (made(tree), tree.as_os_str().len(), tree.as_path()));
    }
    sorted
}

/// Working trees below the workspace by what becomes of their `.git`. There may be very many.
#[derive(Default)]
struct Covers {
    read_only: Vec<PathBuf>,
    /// What could not be shown.
    unsupported: Vec<PathBuf>,
    /// Those that were not looked at.
    unread: Vec<PathBuf>,
    /// Those whose configuration was not followed to the end.
    cut: Vec<PathBuf>,
}

impl Covers {
    fn apply(self, survey: &mut Survey) {
        notice(
            survey,
            "git hooks of these repositories are not all protected, there are too many",
            &self.cut,
        );
        notice(survey, "hidden, for there are too many repositories below the workspace", &self.unread);
        let known: BTreeSet<PathBuf> = survey.protected.iter().cloned().collect();
        let mut held: Vec<PathBuf> = self.read_only.iter().map(|tree| tree.join(".git")).collect();
        let (mut hidden, mut links) = (BTreeSet::new(), Vec::new());
        for path in self.unsupported.iter().chain(&self.unread).map(|tree| tree.join(".git")) {
            match fs::symlink_metadata(&path) {
                // A run may have moved hidden files there.
                Ok(data) if data.is_dir() => drop(hidden.insert(path)),
                Ok(data) if data.is_symlink() => links.push(path),
                Ok(_) => held.push(path),
                Err(_) => {}
            }
        }
        notice(survey, "symbolic links, which are protected while what they lead to is not", &links);
        survey.protected.retain(|path| !hidden.contains(path));
        let held = held.into_iter().chain(links.iter().cloned());
        survey.protected.extend(held.filter(|path| !known.contains(path)));
        survey.links.extend(links.into_iter().filter(|path| !known.contains(path)));
        survey.hidden.extend(hidden.into_iter().map(|path| (path, true)));
    }
}

/// A notice with the first few of many paths, each shortened.
fn notice(survey: &mut Survey, what: &str, paths: &[PathBuf]) {
    if paths.is_empty() {
        return;
    }
    let short =
        |path: &PathBuf| path.display().to_string().chars().take(MAX_NAME_CHARACTERS).collect::<String>();
    let named: Vec<String> = paths.iter().take(MAX_NAMED).map(short).collect();
    let more = match paths.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    survey.notices.push(format!("{what}: {}{more}", named.join(", ")));
}
