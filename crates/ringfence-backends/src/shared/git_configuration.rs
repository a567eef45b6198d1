//! Protects what git on the host executes by way of its configuration: files that a configuration includes, links that lead
//! to one, and directories of hooks, as far as they lie where a run could write.
//!
//! One budget bounds what all configurations of a start may take: the user's own comes first, then that of the workspace's
//! repository and those above it, then repositories below the workspace. A run may have made these, so each has a small share
//! and nothing outside of its own directories is looked at for it.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ringfence_core::paths::DirectoryId;
use ringfence_core::plan::Request;
use ringfence_workspace::git::{
    Budget, CommandKind, Configuration, ConfiguredCommand, Found, Located, Reach, linked_hooks, locate_within,
};

use super::repositories;
use super::survey::{Survey, add, writes};

/// What all configurations of a start may take together.
const TOTAL: Budget = Budget { files: 512, bytes: 16 << 20, values: 1024, hooks: 50_000, links: 1024 };
/// Most paths that all configurations protect, that those of the user do, and that one below the workspace does.
const MAX_PATHS: usize = 1024;
const MAX_PATHS_OF_USER: usize = 512;
const MAX_PATHS_OF_REPOSITORY: usize = 32;
/// Most files that commands of configurations may lead to, and those of one of the user or of a repository of the user.
const MAX_PROGRAMS: usize = 4096;
/// Most that commands of the user may lead to in a repository that a run may have made, and aliases of the user besides.
const MAX_PROGRAMS_OF_USER: usize = 512;
/// Most that commands of such a repository may lead to.
const MAX_PROGRAMS_OF_REPOSITORY: usize = 128;
/// Most repositories below the workspace that a notice about their commands names.
const MAX_NAMED: usize = 4;
/// Most notices about them, and the most characters of one.
const MAX_NOTICES: usize = 32;
const MAX_NOTICE_CHARACTERS: usize = 400;
/// Most of them that are said where no user may read: a run may have made the repositories.
const MAX_WARNINGS: usize = 5;

/// What git takes from the user's configuration, for repositories that are found later.
#[derive(Debug, Clone, Default)]
pub(crate) struct UserGit {
    home: PathBuf,
    /// Values of `core.hooksPath`.
    hooks: Vec<OsString>,
    /// Commands. A relative one is taken from the working tree in which git executes it.
    commands: Vec<ConfiguredCommand>,
    /// Directories that the run may write.
    roots: Vec<PathBuf>,
    left: Left,
    /// Files that the words of commands in configurations may lead to, where the run may write: they are reported if they change.
    pub(crate) programs: Vec<PathBuf>,
}

/// What is left for configurations that are still to be followed.
#[derive(Debug, Clone)]
struct Left {
    budget: Budget,
    paths: usize,
    notices: usize,
    /// Notices that were one too many.
    unsaid: usize,
    /// Repositories below the workspace of whose commands not all were followed.
    partly: Vec<PathBuf>,
}

impl Default for Left {
    fn default() -> Self {
        Self { budget: TOTAL, paths: MAX_PATHS, notices: MAX_NOTICES, unsaid: 0, partly: Vec::new() }
    }
}

/// Protects what the configuration of the user, of the workspace's repository and of those above it names.
pub(super) fn protect(request: &Request, found: &Found, home: &Path, survey: &mut Survey) {
    let workspace = request.workspace.host().as_path();
    let own = writes(request).then(|| workspace.to_owned());
    let named = survey.shown.iter().filter(|(_, write)| *write).map(|(path, _)| path.clone());
    let roots: Vec<PathBuf> = own.into_iter().chain(named).collect();
    if roots.is_empty() {
        return;
    }
    survey.user_git = UserGit { home: home.to_owned(), roots: roots.clone(), ..UserGit::default() };
    let (hooks, commands) = follow(survey, Of::User(&roots), |follower| {
        let user = follower.read(Configuration::files_of_user(home));
        follower.files(&user);
        user.templates.iter().for_each(|value| follower.template(value, workspace));
        follower.own_commands(&user.commands, workspace);
        if *found == Found::Nothing {
            // Repositories below it execute them.
            let absolute = user.hooks.iter().filter(|value| !is_relative(value));
            absolute.for_each(|value| follower.hooks_path(value, workspace));
        }
        follower.cut_of_user();
        (user.hooks, user.commands)
    });
    (survey.user_git.hooks, survey.user_git.commands) = (hooks, commands);
    if *found != Found::Nothing {
        follow_own(&configuration_files(found, workspace, home), workspace, &roots, survey);
    }
    for above in above(workspace, &roots) {
        let files = Configuration::files_of(above, Reach { home, within: None });
        follow(survey, Of::User(&roots), |follower| {
            follower.commands_of_user(above);
            follower.cut_of_tree(above);
        });
        follow_own(&files, above, &roots, survey);
        repositories::protect_submodules_above(above, &roots, request.layer.is_none(), survey);
    }
}

/// Working trees above the workspace and other directories that a run may write. One in such a directory is found by its scan.
#[expect(
    clippy::disallowed_methods,
    reason = "whose the workspace is, which is known by its identity; nothing is opened"
)]
fn above<'p>(workspace: &'p Path, roots: &'p [PathBuf]) -> Vec<&'p Path> {
    let mut above: Vec<&Path> = workspace.ancestors().skip(1).collect();
    for root in roots.iter().filter(|root| *root != workspace) {
        let is_written = |path: &Path| roots.iter().any(|root| path.starts_with(root));
        let new = root.ancestors().skip(1).filter(|path| !above.contains(path) && !is_written(path));
        let new: Vec<&Path> = new.collect();
        above.extend(new);
    }
    let owner = workspace.symlink_metadata().ok().map(|data| data.uid());
    above.retain(|path| has_git(path, owner));
    above
}

/// Protects what the configuration of a repository names that is not below the workspace.
fn follow_own(files: &[PathBuf], tree: &Path, roots: &[PathBuf], survey: &mut Survey) {
    let hooks = survey.user_git.hooks.clone();
    follow(survey, Of::User(roots), |follower| {
        follower.repository(files, tree, &hooks);
        follower.cut_of_tree(tree);
    });
}

/// Protects what the configuration of a repository below the workspace names in its own working tree, and says whether that
/// is all. A run may have made it, and must not make anything else read-only by it.
pub(super) fn protect_below(found: &Found, tree: &Path, survey: &mut Survey) -> bool {
    let mut within = vec![tree.to_owned()];
    if let Found::Repository(repository) = found {
        within.extend([repository.common.clone(), repository.own()]);
    }
    let UserGit { home, hooks, .. } = survey.user_git.clone();
    let reach = Reach { home: &home, within: Some(&within) };
    let files = match found {
        Found::Repository(repository) => repository.configuration_files(),
        Found::Nothing | Found::Unsupported { .. } => Configuration::files_of(tree, reach),
    };
    // Those of the user that are absolute are the same for all.
    let relative: Vec<OsString> = hooks.into_iter().filter(|value| is_relative(value)).collect();
    // Those of the user have a share of their own, and come first: what the repository names takes nothing from them.
    let of_user = follow(survey, Of::Suspect(tree, &within), |follower| {
        follower.commands_of_user(tree);
        relative.iter().for_each(|value| follower.hooks_path(value, tree));
        (follower.is_cut, follower.are_programs_cut)
    });
    let own = follow(survey, Of::Suspect(tree, &within), |follower| {
        follower.repository(&files, tree, &[]);
        (follower.is_cut, follower.are_programs_cut)
    });
    if of_user.1 || own.1 {
        survey.user_git.left.partly.push(tree.to_owned());
    }
    !of_user.0 && !own.0
}

/// Says in which repositories not all commands were followed, and how many notices there were besides those that were pushed.
pub(super) fn end_notices(survey: &mut Survey) {
    let partly = std::mem::take(&mut survey.user_git.left.partly);
    if !partly.is_empty() {
        let named: Vec<String> =
            partly.iter().take(MAX_NAMED).map(|tree| tree.display().to_string()).collect();
        let named: String = named.join(", ").chars().take(MAX_NOTICE_CHARACTERS).collect();
        let more = match partly.len().saturating_sub(MAX_NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        survey.notices.push(format!(
            "not all files that commands of git's configuration name in these repositories are protected or reported, there are too many: {named}{more}"
        ));
    }
    let unsaid = std::mem::take(&mut survey.user_git.left.unsaid);
    if unsaid > 0 {
        survey.notices.push(format!("{unsaid} more notices about git configuration are not shown"));
    }
}

/// Whether a directory above the workspace is a working tree, of this user, of root or of the workspace's owner. Git does not take
/// that of another user for one.
#[expect(clippy::disallowed_methods, reason = "whether a name exists above the workspace; nothing is opened")]
fn has_git(directory: &Path, workspace_owner: Option<u32>) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let owner = directory.join(".git").symlink_metadata().map(|data| data.uid());
    owner.is_ok_and(|owner| owner == own || owner == 0 || Some(owner) == workspace_owner)
}

fn configuration_files(found: &Found, tree: &Path, home: &Path) -> Vec<PathBuf> {
    match found {
        Found::Repository(repository) => repository.configuration_files(),
        Found::Nothing | Found::Unsupported { .. } => {
            Configuration::files_of(tree, Reach { home, within: None })
        }
    }
}

/// Whether a value of `core.hooksPath` is taken from the working tree.
fn is_relative(value: &OsStr) -> bool {
    !value.as_bytes().starts_with(b"/") && !value.as_bytes().starts_with(b"~")
}

/// Whose configuration is followed.
#[derive(Clone, Copy)]
pub(super) enum Of<'a> {
    /// The user's, or that of a repository of the user: everything below the directories that the run may write is protected.
    User(&'a [PathBuf]),
    /// That of a repository that a run may have made, with its working tree and its own directories.
    Suspect(&'a Path, &'a [PathBuf]),
}

/// Follows one configuration, and takes what it used from the budget.
pub(super) fn follow<T>(survey: &mut Survey, of: Of<'_>, work: impl FnOnce(&mut Follower<'_>) -> T) -> T {
    let (share, most) = match of {
        Of::User(_) => (Budget::OF_USER, MAX_PATHS_OF_USER),
        Of::Suspect(..) => (Budget::OF_REPOSITORY, MAX_PATHS_OF_REPOSITORY),
    };
    let total = survey.user_git.left.budget;
    let granted = total.at_most(share);
    let paths = survey.user_git.left.paths.min(most);
    let home = survey.user_git.home.clone();
    let mut follower =
        Follower { survey, of, home: &home, left: granted, paths, is_cut: false, are_programs_cut: false };
    let done = work(&mut follower);
    let (left, paths_left) = (follower.left, follower.paths);
    survey.user_git.left.budget = total.without(granted, left);
    survey.user_git.left.paths -= paths - paths_left;
    done
}

pub(super) struct Follower<'a> {
    survey: &'a mut Survey,
    of: Of<'a>,
    home: &'a Path,
    pub(super) left: Budget,
    /// Paths that may still be protected.
    paths: usize,
    /// Whether something was not followed because it was too much.
    pub(super) is_cut: bool,
    /// The same of files that commands name.
    are_programs_cut: bool,
}

impl<'a> Follower<'a> {
    pub(super) fn reach(&self) -> Reach<'a> {
        let within = match self.of {
            Of::User(_) => None,
            Of::Suspect(_, within) => Some(within),
        };
        Reach { home: self.home, within }
    }

    /// Directories below which paths are protected.
    pub(super) fn roots(&self) -> &'a [PathBuf] {
        match self.of {
            Of::User(roots) => roots,
            // The first one is the working tree.
            Of::Suspect(_, within) => within.first().map(std::slice::from_ref).unwrap_or_default(),
        }
    }

    pub(super) fn notice(&mut self, message: String) {
        let left = &mut self.survey.user_git.left;
        if left.notices == 0 {
            left.unsaid += 1;
            return;
        }
        left.notices -= 1;
        let message = match message.char_indices().nth(MAX_NOTICE_CHARACTERS) {
            Some((end, _)) => format!("{}…", &message[..end]),
            None => message,
        };
        self.survey.notices.push(message);
    }

    /// Says that not all of the user's configuration is followed.
    fn cut_of_user(&mut self) {
        if self.is_cut {
            self.notice("not all that your git configuration names is protected: it is too much".to_owned());
        }
        if self.are_programs_cut {
            let message =
                "not all files that commands of your git configuration name are protected or reported";
            self.notice(format!("{message}: there are too many"));
        }
    }

    /// Says that not all is followed that git executes in a working tree of the user.
    fn cut_of_tree(&mut self, tree: &Path) {
        let tree = tree.display();
        if self.is_cut {
            self.notice(format!("not all git hooks of {tree} are protected: there are too many"));
        }
        if self.are_programs_cut {
            let message = format!("not all files that commands of the git configuration of {tree} name");
            self.notice(format!("{message} are protected or reported: there are too many"));
        }
    }

    fn read(&mut self, files: impl IntoIterator<Item = PathBuf>) -> Configuration {
        let configuration = Configuration::read(files, self.reach(), &mut self.left);
        self.is_cut |= configuration.is_cut;
        configuration
    }

    fn repository(&mut self, files: &[PathBuf], tree: &Path, hooks: &[OsString]) {
        let configuration = self.read(files.iter().cloned());
        self.files(&configuration);
        if let Some(own) = files.first().and_then(|config| config.parent()) {
            self.hooks(&own.join("hooks"), None);
        }
        for value in configuration.hooks.iter().chain(hooks) {
            self.hooks_path(value, tree);
        }
        self.own_commands(&configuration.commands, tree);
    }

    /// Commands of the configuration that is followed.
    fn own_commands(&mut self, commands: &[ConfiguredCommand], tree: &Path) {
        let most = match self.of {
            Of::User(_) => MAX_PROGRAMS,
            Of::Suspect(..) => MAX_PROGRAMS_OF_REPOSITORY,
        };
        // Files of an alias may be more than there is room for, so these come last.
        let (aliases, others) = split_aliases(commands);
        let mut known = BTreeSet::new();
        let others_have_more = self.commands(&others, tree, (&mut known, most));
        let aliases_have_more = self.commands(&aliases, tree, (&mut known, most));
        self.are_programs_cut |= others_have_more || aliases_have_more;
    }

    /// Commands of the user, in a working tree that git executes them in. What is left out of one command was said before.
    fn commands_of_user(&mut self, tree: &Path) {
        let commands = self.survey.user_git.commands.clone();
        let most = match self.of {
            Of::User(_) => MAX_PROGRAMS,
            Of::Suspect(..) => MAX_PROGRAMS_OF_USER,
        };
        let (aliases, others) = split_aliases(&commands);
        let mut known = BTreeSet::new();
        self.commands(&others, tree, (&mut known, most));
        let most = known.len() + most;
        self.commands(&aliases, tree, (&mut known, most));
    }

    /// Protects the files that words of commands lead to, and notes those that do not exist. Those of aliases, which only the user
    /// starts, are held in their directories and noted: their words may be any files. Returns whether a command has more words
    /// than are looked at.
    fn commands(
        &mut self,
        commands: &[&ConfiguredCommand],
        tree: &Path,
        (known, most): (&mut BTreeSet<PathBuf>, usize),
    ) -> bool {
        let mut has_more = false;
        for command in commands {
            let (paths, is_cut) = command.bounded_paths(tree, self.home);
            has_more |= is_cut;
            for path in paths {
                if known.contains(&path) {
                    continue;
                }
                if known.len() == most {
                    self.are_programs_cut = true;
                    return has_more;
                }
                if let Ok(Some(located)) = locate_within(&path, self.reach()) {
                    self.program(command.kind, located);
                }
                known.insert(path);
            }
        }
        has_more
    }

    fn program(&mut self, kind: CommandKind, located: Located) {
        let is_below = |root: &&PathBuf| located.end.starts_with(root) && located.end != **root;
        let Some(root) = self.roots().iter().find(is_below) else { return };
        let exists = is_file(&located.end);
        if exists && kind != CommandKind::Alias {
            let is_known = self.survey.protected.contains(&located.end);
            self.located(&located, "");
            if kind == CommandKind::Other && !is_known && matches!(self.of, Of::User(_)) {
                let path = located.end.display();
                self.notice(format!("{path} is read-only: a command of git's configuration names it"));
            }
            return;
        }
        if let Some(above) = located.end.parent().filter(|above| exists && above != root) {
            self.hold(above);
        }
        // Aliases leave room for what git executes without being asked for it.
        let most = if kind == CommandKind::Alias { MAX_PROGRAMS / 2 } else { MAX_PROGRAMS };
        if self.survey.user_git.programs.len() < most {
            self.survey.user_git.programs.extend(located.links.into_iter().chain([located.end]));
        } else {
            self.are_programs_cut = true;
        }
    }

    /// Protects the hooks that a value of `core.hooksPath` names.
    fn hooks_path(&mut self, value: &OsStr, tree: &Path) {
        match Configuration::hooks_directory(value, tree, self.home) {
            Ok(Some(directory)) => self.hooks(&directory, Some(tree).filter(|_| is_relative(value))),
            Ok(None) => {}
            Err(why) => self.notice(format!("directories of git hooks are not protected: {why}")),
        }
    }

    /// Protects a directory that `git init` and `git clone` copy into new repositories, with its hooks.
    fn template(&mut self, value: &OsStr, tree: &Path) {
        match Configuration::hooks_directory(value, tree, self.home) {
            Ok(Some(directory)) => {
                self.hooks(&directory, None);
                self.hooks(&directory.join("hooks"), None);
            }
            Ok(None) => {}
            Err(why) => self.notice(format!("the template of git repositories is not protected: {why}")),
        }
    }

    fn files(&mut self, configuration: &Configuration) {
        configuration.notices.iter().for_each(|message| self.notice(message.clone()));
        configuration.outside.iter().for_each(|path| self.outside(path));
        self.linked(&configuration.linked);
        for file in &configuration.files {
            self.located(file, "");
        }
    }

    /// Scripts in a hidden directory of the working tree use what lies beside them, so all of it is protected, and what links
    /// in it lead to. `tree` is the working tree if the directory is named from there.
    fn hooks(&mut self, directory: &Path, tree: Option<&Path>) {
        let mut located = match locate_within(directory, self.reach()) {
            Ok(Some(located)) => located,
            Ok(None) => return self.outside(&ringfence_workspace::git::lexical(directory)),
            Err(error) => return self.not_protected(directory, &error.to_string()),
        };
        let mut directories = vec![located.end.clone()];
        let tree = tree.filter(|_| located.links.is_empty());
        let first = tree.and_then(|tree| Some((tree, located.end.strip_prefix(tree).ok()?.iter().next()?)));
        if let Some((tree, first)) = first.filter(|(_, first)| first.to_string_lossy().starts_with('.')) {
            located.end = tree.join(first);
            directories.push(located.end.clone());
        }
        if let Some(root) = self.roots().iter().find(|root| root.starts_with(&located.end)) {
            if matches!(self.of, Of::User(_)) && self.survey.granted.contains_key(root) {
                let (root, hooks) = (root.display(), located.end.display());
                let message = format!("{root} cannot be written by a run: git executes the hooks in {hooks}");
                self.survey.refusal.get_or_insert(message);
                return;
            }
            return self.not_protected(&located.end, "the run works in that directory");
        }
        self.located(&located, "/");
        directories.dedup();
        for directory in directories {
            self.linked_hooks(&directory);
        }
    }

    fn not_protected(&mut self, directory: &Path, why: &str) {
        self.notice(format!("git hooks in {} are not protected: {why}", directory.display()));
    }

    /// Protects what the links in a directory of hooks lead to.
    fn linked_hooks(&mut self, directory: &Path) {
        let reach = self.reach();
        let hooks = match linked_hooks(directory, reach, &mut self.left) {
            Ok(found) => found,
            Err(error) => return self.not_protected(directory, &error.to_string()),
        };
        for hook in &hooks.located {
            if self.roots().iter().any(|root| root.starts_with(&hook.end)) {
                self.not_protected(&hook.end, "the run works in that directory");
            } else {
                self.located(hook, "");
            }
        }
        self.linked(&hooks.linked);
        self.is_cut |= hooks.is_cut;
    }

    /// Has the other names of the user's files protected where the run could write them. A run may have linked files of its own
    /// repository to anything below its workspace, which must not become read-only by it.
    pub(super) fn linked(&mut self, files: &[DirectoryId]) {
        if matches!(self.of, Of::User(_)) {
            self.survey.linked.extend(files.iter().map(|id| (id.device, id.inode)));
        }
    }

    /// Protects a path, the links that lead to it, and the directories that it passes. `ending` is `/` for a directory.
    pub(super) fn located(&mut self, located: &Located, ending: &str) {
        for link in &located.links {
            self.path(link, "", true);
        }
        for directory in &located.passed {
            self.hold(directory);
        }
        self.path(&located.end, ending, false);
        self.outside(&located.end);
    }

    /// Says that a path that the run may write is not protected, for a run may have made the repository that names it.
    fn outside(&mut self, path: &Path) {
        let Of::Suspect(tree, _) = self.of else { return };
        let is_writable = self.survey.user_git.roots.iter().any(|root| path.starts_with(root));
        let is_open = is_writable && !path.starts_with(tree) && !is_git(path);
        if is_open && !self.survey.protected.iter().any(|known| known == path) {
            let (path, tree) = (path.display(), tree.display());
            let message = format!(
                "{path}, which the git configuration of {tree} names, is not protected: it is outside of that directory"
            );
            let pushed = self.survey.notices.len();
            self.notice(message);
            let new = self.survey.notices.get(pushed).filter(|_| self.survey.warnings.len() < MAX_WARNINGS);
            self.survey.warnings.extend(new.cloned());
        }
    }

    /// Holds a directory in its place, so that no link can take it. What it holds stays writable.
    #[expect(clippy::disallowed_methods, reason = "what a name is; nothing is opened")]
    fn hold(&mut self, directory: &Path) {
        let roots = self.roots().iter().filter(|root| directory.starts_with(root));
        let roots: Vec<&PathBuf> = roots.filter(|_| !is_git(directory)).collect();
        if roots.is_empty() || !self.take_path() {
            return;
        }
        if !directory.symlink_metadata().is_ok_and(|data| data.is_dir()) {
            return self.path(directory, "/", false);
        }
        for root in roots {
            let held = directory.ancestors().take_while(|above| *above != root.as_path());
            for above in held.collect::<Vec<_>>().into_iter().rev() {
                add(&mut self.survey.anchors, above);
            }
        }
    }

    /// Whether one more path may be protected.
    fn take_path(&mut self) -> bool {
        self.is_cut |= self.paths == 0;
        let is_left = self.paths > 0;
        self.paths = self.paths.saturating_sub(1);
        is_left
    }

    fn path(&mut self, path: &Path, ending: &str, is_link: bool) {
        if is_git(path) {
            return;
        }
        for root in self.roots() {
            let Some(below) = path.strip_prefix(root).ok().filter(|below| !below.as_os_str().is_empty())
            else {
                continue;
            };
            let Some(name) = below.to_str() else {
                self.notice(format!("{} is not protected: its name is not UTF-8", path.display()));
                continue;
            };
            let is_known = self.survey.protected.iter().any(|known| known == path);
            if !is_known && !self.take_path() {
                return;
            }
            if is_link && !self.survey.links.iter().any(|known| known == path) {
                self.survey.links.push(path.to_owned());
                add(&mut self.survey.protected, path);
            }
            self.survey.protect(root, &[format!("{name}{ending}")]);
            if let Of::Suspect(tree, _) = self.of
                && !is_known
            {
                let (path, tree) = (path.display(), tree.display());
                self.notice(format!("{path} is read-only: the git configuration of {tree} names it"));
            }
        }
    }
}

/// Aliases, and other commands.
fn split_aliases(commands: &[ConfiguredCommand]) -> (Vec<&ConfiguredCommand>, Vec<&ConfiguredCommand>) {
    commands.iter().partition(|command| command.kind == CommandKind::Alias)
}

#[expect(clippy::disallowed_methods, reason = "what a name is; nothing is opened")]
fn is_file(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|data| data.is_file())
}

/// Git directories are private, read-only or hidden as a whole.
fn is_git(path: &Path) -> bool {
    path.iter().any(|part| part == ".git")
}
