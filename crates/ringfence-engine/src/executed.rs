//! Files of a run that other programs execute later, for its result: in the workspace, and in the commits that it made.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ringfence_core::event::ExecutedLater;
use ringfence_core::ids::RunId;
use ringfence_core::locations::Locations;
use ringfence_core::paths::DirectoryId;
use ringfence_core::policy::{Files, GitAccess, Reach, WorkspaceAccess};
use ringfence_core::record::Record;
use ringfence_core::text::escaped;
use ringfence_store::LostRun;
use ringfence_store::runs::Runs;
use ringfence_workspace::executed::{
    BeginTime, Changes, Contents, ExecutedBy, HomePlace, MAX_REPORTED, Report, Search, executed_by, search,
    search_git_directory, times_tell_changes,
};
use ringfence_workspace::git::{Found, INDEX, Kind, Repository};
use ringfence_workspace::{Directory, StubContent, StubList, keeps_permissions};

use self::configured::{ChangedIn, ConfiguredSearch};
use crate::layer::Layer;

mod configured;

/// How long the search may take.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(2);
/// Most files that a notice names.
const MAX_NAMED: usize = 5;

/// A file that another program executes later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecutedFile {
    /// What executes it.
    pub by: ExecutedBy,
    /// Its path, from the workspace.
    pub path: PathBuf,
    /// The ref whose commits hold it, if a commit of the run changed it; `index` if the run only staged it.
    pub git_ref: Option<String>,
    /// Other refs whose commits hold it too.
    pub more_git_refs: Vec<String>,
}

impl From<ExecutedFile> for ExecutedLater {
    fn from(file: ExecutedFile) -> Self {
        Self {
            path: shown_path(&file.path).into(),
            why: file.by.describe().to_owned(),
            git_ref: file.git_ref,
            more_git_refs: file.more_git_refs,
        }
    }
}

/// A path in which every byte shows, so that two files never look the same: what is no text, hides or steers is escaped, and so is
/// the backslash itself.
pub fn shown_path(path: &Path) -> String {
    let mut text = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                '\\' => text.push_str("\\\\"),
                blank if blank.is_whitespace() && blank != ' ' => text.extend(blank.escape_unicode()),
                other => text.push_str(&escaped(other.encode_utf8(&mut [0; 4]))),
            }
        }
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

/// What a run could do with git directories in a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GitAccessOfTree {
    /// Those that were there before were private or read-only.
    Protected,
    /// It could write all of them.
    Writable,
    /// The tree is a git directory that the run could write.
    IsGitDirectory,
}

impl GitAccessOfTree {
    fn of(files: &Files) -> Self {
        match files.git {
            GitAccess::Direct => GitAccessOfTree::Writable,
            GitAccess::Private | GitAccess::ReadOnly => GitAccessOfTree::Protected,
        }
    }
}

/// A directory that a run could write, behind a boundary.
#[derive(Debug)]
struct Tree {
    root: PathBuf,
    /// What its paths are shown below: nothing for the workspace.
    prefix: PathBuf,
    git: GitAccessOfTree,
    /// The workspace, if the tree is the overlay over it.
    lower: Option<PathBuf>,
    /// Where its directories were when the run began, if that is known. More is reported otherwise.
    locations: Option<Locations>,
    /// When the run began, by the clock of its file system, if that is known.
    begin: Option<BeginTime>,
    /// What files of it contained then, where their times do not tell that they changed.
    contents: Contents,
    /// The names that were reserved in it. What is there in their place another process made: a run in a directory above, if not
    /// the user.
    stubs: StubList,
}

/// What was found in a tree.
type FoundInTree = (Report, Vec<PathBuf>);

impl Tree {
    fn new(root: PathBuf, prefix: PathBuf, git: GitAccessOfTree) -> Self {
        let (begin, contents) = (None, Contents::default());
        Self { root, prefix, git, lower: None, locations: None, begin, contents, stubs: StubList::default() }
    }

    /// What tells that a file of it changed. `recorded` is when the record of the run was written.
    fn changes(&self, recorded: BeginTime) -> Changes<'_> {
        Changes { since: self.begin.unwrap_or(recorded), contents: &self.contents }
    }

    fn name(&self) -> String {
        match self.prefix.as_os_str().is_empty() {
            true => "the workspace".to_owned(),
            false => self.prefix.display().to_string(),
        }
    }

    /// Searches it, and names stub files in whose place something else is.
    fn search(&self, marks: Marks, home: &Path) -> std::io::Result<FoundInTree> {
        let Marks { recorded, unseen, deadline } = marks;
        let changes = self.changes(recorded);
        let writes_git = self.git != GitAccessOfTree::Protected;
        let open = |path: &PathBuf| Directory::open(path).map_err(std::io::Error::other);
        let (directory, lower) = (open(&self.root)?, self.lower.as_ref().map(open).transpose()?);
        let (locations, lower) = (self.locations.as_ref(), lower.as_ref());
        let root = self.lower.as_ref().unwrap_or(&self.root);
        let home = HomePlace::of(home, root);
        let look_for = Search { changes, locations, writes_git, lower, unseen, root, home, deadline };
        let report = match self.git {
            GitAccessOfTree::IsGitDirectory => search_git_directory(&directory, look_for),
            GitAccessOfTree::Protected | GitAccessOfTree::Writable => search(&directory, look_for)?,
        };
        let is_listed = |stub: &PathBuf| report.files.iter().any(|file| file.path.starts_with(stub));
        let stubs = self.stubs.changed(&directory).into_iter().filter(|stub| !is_listed(stub)).collect();
        Ok((report, stubs))
    }

    fn file(&self, by: ExecutedBy, path: &Path) -> ExecutedFile {
        ExecutedFile { by, path: self.prefix.join(path), git_ref: None, more_git_refs: Vec::new() }
    }
}

/// What tells changes of a run from others, and when to stop.
#[derive(Debug, Clone, Copy)]
struct Marks {
    /// When the record of the run was written.
    recorded: BeginTime,
    unseen: Option<DirectoryId>,
    deadline: Instant,
}

impl Marks {
    /// The record of a run was written when it began.
    #[expect(clippy::disallowed_methods, reason = "the marker is in the state directory, which no run sees")]
    fn of(runs: &Runs, run: &RunId) -> Option<Self> {
        let data = std::fs::symlink_metadata(runs.record_file(run)).ok()?;
        Some(Self::at(runs, BeginTime { time: (data.ctime(), data.ctime_nsec()), device: data.dev() }))
    }

    #[expect(clippy::disallowed_methods, reason = "no run sees the state directory")]
    fn at(runs: &Runs, recorded: BeginTime) -> Self {
        let state = runs.root().parent().unwrap_or(runs.root());
        let unseen =
            std::fs::metadata(state).map(|data| DirectoryId { device: data.dev(), inode: data.ino() });
        Self { recorded, unseen: unseen.ok(), deadline: Instant::now() + SEARCH_TIMEOUT }
    }
}

/// The directories that a run could write.
#[derive(Debug)]
pub(crate) struct Trees {
    trees: Vec<Tree>,
    /// The user's home, for names in git's configuration.
    home: PathBuf,
    /// Files that commands of git's configuration may lead to.
    programs: Vec<PathBuf>,
}

impl Trees {
    #[expect(clippy::disallowed_methods, reason = "the paths of the policy are the user's")]
    fn new(files: &Files, workspace: &Path, home: &Path, layer: bool) -> Self {
        let home = home.to_owned();
        if files.reach != Reach::Workspace {
            return Self { trees: Vec::new(), home, programs: Vec::new() };
        }
        let writes = files.workspace == WorkspaceAccess::ReadWrite && !layer;
        let git = GitAccessOfTree::of(files);
        let own = writes.then(|| Tree::new(workspace.to_owned(), PathBuf::new(), git));
        let more = files.write.iter().filter_map(|path| std::fs::canonicalize(path).ok());
        let more = more.filter(|path| path.is_dir());
        let more = more.filter(|path| own.as_ref().is_none_or(|tree| !path.starts_with(&tree.root)));
        let more: Vec<Tree> =
            more.map(|path| Tree::new(path.clone(), path, GitAccessOfTree::Writable)).collect();
        let mut trees: Vec<Tree> = own.into_iter().chain(more).collect();
        if writes && files.git == GitAccess::Direct {
            let outside = git_directory_of(workspace);
            let outside = outside.filter(|path| !trees.iter().any(|tree| path.starts_with(&tree.root)));
            trees.extend(outside.map(|path| Tree::new(path.clone(), path, GitAccessOfTree::IsGitDirectory)));
        }
        Self { trees, home, programs: Vec::new() }
    }

    /// What a run can write, with what the scan before it has found of it.
    pub(crate) fn scanned(
        files: &Files,
        (workspace, home): (&Path, &Path),
        layer: Option<&Path>,
        mut scanned: Vec<(PathBuf, Locations)>,
        stubs: &[(PathBuf, StubContent)],
    ) -> Self {
        let mut trees = Self::new(files, workspace, home, layer.is_some());
        if let Some(layer) = layer {
            let git = GitAccessOfTree::of(files);
            let overlay = Tree::new(Layer::upper_of(layer), PathBuf::new(), git);
            trees.trees.push(Tree { lower: Some(workspace.to_owned()), ..overlay });
        }
        for tree in &mut trees.trees {
            let found = scanned.iter().position(|(root, _)| *root == tree.root);
            tree.locations = found.map(|index| scanned.swap_remove(index).1);
            let below = |(path, content): &(PathBuf, StubContent)| {
                Some((path.strip_prefix(&tree.root).ok()?.to_owned(), content.clone()))
            };
            tree.stubs = StubList::new(stubs.iter().filter_map(below));
        }
        trees
    }

    /// The same, with files that count if they changed, for commands of git's configuration may lead to them.
    pub(crate) fn with(self, programs: Vec<PathBuf>) -> Self {
        Self { programs, ..self }
    }

    /// The same at the moment at which the run begins: notes the time of each file system, and what files contain where their times
    /// do not tell that they change. What is in an overlay is the run's.
    #[expect(clippy::disallowed_methods, reason = "no run sees the state directory")]
    pub(crate) fn begun(mut self, runs: &Runs) -> Self {
        let opened = |tree: &Tree| Directory::open(&tree.root).ok().filter(|_| tree.lower.is_none());
        let roots: Vec<Option<Directory>> = self.trees.iter().map(opened).collect();
        for (tree, root) in self.trees.iter().zip(&roots) {
            if root.as_ref().is_some_and(|root| !times_tell_changes(root)) {
                tree.contents.begin_noting();
            }
        }
        if self.trees.iter().any(|tree| tree.contents.is_noting()) {
            // Nothing changed since a time that is to come.
            let never = BeginTime { time: (i64::MAX, 0), device: 0 };
            self.search_by(Marks::at(runs, never));
        }
        // In the file system of the state directory, the time of the record is known.
        let of_record = std::fs::metadata(runs.root()).map(|data| data.dev()).ok();
        for (tree, root) in self.trees.iter_mut().zip(&roots) {
            tree.contents.end_noting();
            let root = root.as_ref().filter(|root| Some(root.id().device) != of_record);
            tree.begin = root.and_then(BeginTime::now);
        }
        self
    }

    /// Searches for what changed since a run began, but for what is kept of runs. The notices say what was not searched.
    pub(crate) fn search(&self, runs: &Runs, run: &RunId) -> (Vec<ExecutedFile>, Vec<String>) {
        Marks::of(runs, run).map(|marks| self.search_by(marks)).unwrap_or_default()
    }

    fn search_by(&self, marks: Marks) -> (Vec<ExecutedFile>, Vec<String>) {
        let (mut files, mut notices, mut git_directories) = (Vec::new(), Vec::new(), Vec::new());
        let home = resolved(&self.home);
        for tree in &self.trees {
            let name = tree.name();
            let (report, stubs) = match tree.search(marks, &home) {
                Ok(searched) => searched,
                Err(error) => {
                    notices.push(format!(
                        "{name} was not searched for files that programs execute later: {error}"
                    ));
                    continue;
                }
            };
            match (report.complete, report.more) {
                (true, 0) => {}
                (true, more) => {
                    notices.push(format!("{more} more files that programs execute later are not listed"));
                }
                (false, _) => notices
                    .push(format!("not all of {name} was searched for files that programs execute later")),
            }
            notices.extend(Self::open_to_all(tree, &report.open_to_all));
            let stubs = stubs.iter().map(|path| (executed_by(path).unwrap_or(ExecutedBy::Protected), path));
            let found = report.files.iter().map(|file| (file.by, &file.path)).chain(stubs);
            files.extend(found.map(|(by, path)| tree.file(by, path)));
            git_directories.extend(report.git_directories.iter().map(|path| tree.root.join(path)));
        }
        if self.trees.iter().any(|tree| tree.git != GitAccessOfTree::Protected) {
            let git_directories: Vec<PathBuf> =
                git_directories.iter().map(|path| path.components().collect()).collect();
            notices.extend(self.add_configured(&git_directories, marks.recorded, &mut files));
        }
        if !self.programs.is_empty() {
            let search = ConfiguredSearch::new(&self.trees, &self.home, marks.recorded);
            self.add(search.changed_programs(&self.programs), &mut files);
        }
        files.sort_by_key(|file| file.by);
        (files, notices)
    }

    /// Says in what of a tree every user of the machine can write since the run.
    fn open_to_all(tree: &Tree, paths: &[PathBuf]) -> Option<String> {
        if paths.is_empty() || !keeps_permissions(&tree.root) {
            return None;
        }
        let shown = |path: &PathBuf| match tree.prefix.join(path) {
            whole if whole.as_os_str().is_empty() => ".".to_owned(),
            whole => shown_path(&whole),
        };
        let named = paths.iter().take(MAX_NAMED).map(shown).collect::<Vec<_>>().join(", ");
        let more = match paths.len().saturating_sub(MAX_NAMED) {
            0 => String::new(),
            _ if paths.len() == MAX_REPORTED => " and more".to_owned(),
            more => format!(" and {more} more"),
        };
        Some(format!(
            "every user of this machine can write there since the run: {named}{more}; take that back with `chmod -R o-w` unless it is meant"
        ))
    }

    /// Adds what git executes, unless a directory around it is listed.
    fn add(&self, changed: Vec<ChangedIn<'_>>, files: &mut Vec<ExecutedFile>) {
        for (tree, path) in changed {
            let file = tree.file(ExecutedBy::Git, &path);
            if !files.iter().any(|known| file.path.starts_with(&known.path)) {
                files.push(file);
            }
        }
    }

    /// Adds what git executes by way of its configuration.
    fn add_configured(
        &self,
        git_directories: &[PathBuf],
        recorded: BeginTime,
        files: &mut Vec<ExecutedFile>,
    ) -> Option<String> {
        let mut search = ConfiguredSearch::new(&self.trees, &self.home, recorded);
        let changed = search.changed(git_directories);
        self.add(changed, files);
        search.is_cut.then(|| {
            "not all that git's configuration names was searched for files that programs execute later"
                .to_owned()
        })
    }
}

/// The home, links resolved.
#[expect(clippy::disallowed_methods, reason = "the path is the user's")]
fn resolved(home: &Path) -> PathBuf {
    std::fs::canonicalize(home).unwrap_or_else(|_| home.to_owned())
}

/// The git directory of a linked worktree or of a submodule's checkout, which is elsewhere.
fn git_directory_of(workspace: &Path) -> Option<PathBuf> {
    let directory = Directory::open(workspace).ok()?;
    match Repository::discover(&directory, workspace) {
        Found::Repository(Repository { kind: Kind::Linked { .. } | Kind::Submodule { .. }, common }) => {
            Some(common)
        }
        _ => None,
    }
}

/// Searches what runs could write that were lost before they could: killed, or ended by a power failure.
pub(crate) fn search_lost(runs: &Runs, lost: &[LostRun], home: &Path) -> Vec<String> {
    let mut notices = Vec::new();
    for LostRun { run, .. } in lost {
        let Ok(record) = runs.record(run) else { continue };
        let Record { effective, workspace, layer, .. } = record;
        let trees = Trees::new(&effective.files, workspace.host().as_path(), home, layer);
        let (files, unsearched) = trees.search(runs, run);
        let (files, left_out) = merge(files, Vec::new());
        let told = notice(&files).into_iter().chain(left_out).chain(unsearched);
        notices.extend(told.map(|message| {
            format!("run {run} in {workspace}, which was lost: {message}", workspace = workspace.host())
        }));
    }
    notices
}

/// Most files of both lists: repositories and others of the workspace, and what its commits bring.
const MAX_MERGED: usize = 3 * MAX_REPORTED;

/// Puts both lists together, the most dangerous first. A file that is in both is listed once, with its ref. The notice says
/// how many are left out.
pub(crate) fn merge(
    mut files: Vec<ExecutedFile>,
    commits: Vec<ExecutedFile>,
) -> (Vec<ExecutedLater>, Option<String>) {
    for commit in commits {
        match files.iter_mut().find(|file| file.path == commit.path) {
            Some(known) if known.git_ref.is_none() => {
                (known.git_ref, known.more_git_refs) = (commit.git_ref, commit.more_git_refs);
            }
            Some(_) => {}
            None => files.push(commit),
        }
    }
    // What was found in the workspace is in this order already, and keeps it.
    files.sort_by_key(|file| file.by);
    // What the workspace holds does not displace what the commits of its repository bring.
    let left_out = files.len().saturating_sub(MAX_MERGED);
    let notice =
        (left_out > 0).then(|| format!("{left_out} more files that programs execute later are not listed"));
    (files.into_iter().take(MAX_MERGED).map(Into::into).collect(), notice)
}

/// What a user is told of these files, on one line.
pub fn notice(files: &[ExecutedLater]) -> Option<String> {
    let named = files.iter().take(MAX_NAMED).map(|file| {
        let commits = match file.git_ref.as_deref() {
            None => String::new(),
            Some(INDEX) => ", in git's index".to_owned(),
            Some(name) if file.more_git_refs.is_empty() => format!(", in commits of {name}"),
            Some(name) => format!(", in commits of {name} and {} other refs", file.more_git_refs.len()),
        };
        format!("{} ({}{commits})", file.path, file.why)
    });
    let named = named.collect::<Vec<_>>().join(", ");
    let more = match files.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more, see `ringfence runs show`"),
    };
    let what = if files.len() == 1 { "a file" } else { "files" };
    (!files.is_empty()).then(|| {
        let message = format!(
            "look before you use it: the run made or changed {what} that programs execute: {named}{more}"
        );
        message.replace('\n', " ")
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::ffi::OsStrExt;

    use ringfence_workspace::executed::ExecutedBy;

    use super::{ExecutedFile, merge, notice};

    fn file(by: ExecutedBy, path: &str, git_ref: Option<&str>) -> ExecutedFile {
        ExecutedFile { by, path: path.into(), git_ref: git_ref.map(str::to_owned), more_git_refs: Vec::new() }
    }

    #[test]
    fn files_of_commits_are_merged_by_danger() {
        let files = vec![
            file(ExecutedBy::Git, "sub/.git", None),
            file(ExecutedBy::PackageManager, "package.json", None),
        ];
        let commits = vec![
            file(ExecutedBy::PackageManager, "package.json", Some("refs/heads/main")),
            file(ExecutedBy::Git, ".gitmodules", Some("refs/heads/x")),
        ];
        let (merged, _) = merge(files, commits);
        let found: Vec<_> =
            merged.iter().map(|file| (file.path.to_string(), file.git_ref.as_deref())).collect();
        assert_eq!(
            found,
            [
                ("sub/.git".into(), None),
                (".gitmodules".into(), Some("refs/heads/x")),
                ("package.json".into(), Some("refs/heads/main"))
            ]
        );
        let told = notice(&merged).unwrap();
        assert!(told.contains("names, in commits of refs/heads/main)") && !told.contains('\n'), "{told}");
    }

    #[test]
    fn different_files_never_look_the_same() {
        let names = [
            "Makefile",
            "Make\u{200b}file",
            "Make\u{200d}file",
            "Make\u{fe0f}file",
            "Make\u{1b}[0mfile",
            "Make\\u{200b}file",
            "Make\nfile",
            "Make\\nfile",
            "Make\tfile",
            "Make file",
            "Make\u{a0}file",
            "Make\u{fffd}file",
        ];
        let bytes = [&b"Make\xfffile"[..], b"Make\xfefile"].map(std::ffi::OsStr::from_bytes);
        let paths = names.map(std::ffi::OsStr::new).into_iter().chain(bytes);
        let files: Vec<_> = paths
            .map(|path| ExecutedFile { path: path.into(), ..file(ExecutedBy::Shell, "", None) })
            .collect();
        let (count, merged) = (files.len(), merge(files, Vec::new()));
        // As a terminal shows them: on one line, blanks alike, and nothing of what is invisible.
        let looks = merged.0.iter().map(|file| file.path.one_line().replace(['\u{200d}', '\u{fe0f}'], ""));
        let looks: BTreeSet<_> = looks.map(|path| path.replace('\u{a0}', " ")).collect();
        assert_eq!(looks.len(), count, "{looks:?}");
    }

    #[test]
    fn a_notice_names_a_few_and_counts_the_rest() {
        let files = (0..20).map(|number| file(ExecutedBy::Shell, &format!("{number}/.envrc"), None));
        let told = notice(&merge(files.collect(), Vec::new()).0).unwrap();
        assert!(told.contains("4/.envrc") && !told.contains("5/.envrc") && told.contains("and 15 more"));
        assert_eq!(notice(&[]), None);
        let files = |count| (0..count).map(|number| file(ExecutedBy::Git, &format!("{number}/.git"), None));
        let (listed, left_out) = merge(files(151).collect(), Vec::new());
        assert_eq!((listed.len(), merge(files(150).collect(), Vec::new()).1), (150, None));
        assert!(left_out.unwrap().starts_with("1 more"));
    }
}
