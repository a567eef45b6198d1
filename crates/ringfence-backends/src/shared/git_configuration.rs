//! Protects what git on the host executes by way of its configuration: files that a configuration includes, links that lead
//! to one, and directories of hooks, as far as they lie where a run could write.

use std::path::{Path, PathBuf};

use ringfence_core::plan::Request;
use ringfence_workspace::git::{Configuration, Found, Located, linked_hooks, locate};

use super::survey::{Survey, add, writes};

/// Configuration files that git reads for every repository, besides those of the home.
const SYSTEM_CONFIGURATION: &str = "/etc/gitconfig";
/// The same in the home.
const HOME_CONFIGURATION: [&str; 2] = [".gitconfig", ".config/git/config"];

/// What git takes from the user's configuration, for repositories that are found later.
#[derive(Debug, Clone, Default)]
pub(crate) struct UserGit {
    home: PathBuf,
    /// Values of `core.hooksPath`.
    hooks: Vec<String>,
    /// Directories that the run may write.
    roots: Vec<PathBuf>,
}

/// Where a path is protected.
struct Scope<'a> {
    /// Directories that the run may write, below which everything is protected.
    roots: &'a [PathBuf],
    /// The repository whose configuration names the paths, if a run may have made it.
    suspect: Option<&'a Path>,
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
    let scope = Scope { roots: &roots, suspect: None };
    let of_home = HOME_CONFIGURATION.map(|name| home.join(name));
    let user = Configuration::read([PathBuf::from(SYSTEM_CONFIGURATION)].into_iter().chain(of_home), home);
    protect_files(&user, &scope, survey);
    survey.user_git = UserGit { home: home.to_owned(), hooks: user.hooks, roots: roots.clone() };
    if *found == Found::Nothing {
        // Repositories below it execute them.
        let hooks = survey.user_git.hooks.clone();
        let absolute = hooks.iter().filter(|value| !is_relative(value));
        absolute.for_each(|value| protect_hooks_path(value, workspace, &scope, survey));
    } else {
        protect_repository(&configuration_files(found, workspace), workspace, &scope, survey);
    }
    for above in workspace.ancestors().skip(1).filter(|above| has_git(above)) {
        protect_repository(&Configuration::files_of(above), above, &scope, survey);
    }
}

/// Protects what the configuration of a repository below the workspace names in its own working tree. A run may have made it,
/// and must not make anything else read-only by it.
pub(super) fn protect_below(found: &Found, tree: &Path, survey: &mut Survey) {
    let scope = Scope { roots: &[tree.to_owned()], suspect: Some(tree) };
    protect_repository(&configuration_files(found, tree), tree, &scope, survey);
}

#[expect(clippy::disallowed_methods, reason = "whether a name exists above the workspace; nothing is opened")]
fn has_git(directory: &Path) -> bool {
    directory.join(".git").symlink_metadata().is_ok()
}

fn configuration_files(found: &Found, tree: &Path) -> Vec<PathBuf> {
    match found {
        Found::Repository(repository) => repository.configuration_files(),
        Found::Nothing | Found::Unsupported { .. } => Configuration::files_of(tree),
    }
}

fn protect_repository(files: &[PathBuf], tree: &Path, scope: &Scope<'_>, survey: &mut Survey) {
    let UserGit { home, hooks, .. } = survey.user_git.clone();
    let configuration = Configuration::read(files.iter().cloned(), &home);
    protect_files(&configuration, scope, survey);
    if let Some(own) = files.first().and_then(|config| config.parent()) {
        protect_hooks(&own.join("hooks"), None, scope, survey);
    }
    for value in configuration.hooks.iter().chain(&hooks) {
        protect_hooks_path(value, tree, scope, survey);
    }
}

/// Whether a value of `core.hooksPath` is taken from the working tree.
fn is_relative(value: &str) -> bool {
    !value.starts_with(['/', '~'])
}

/// Protects the hooks that a value of `core.hooksPath` names.
fn protect_hooks_path(value: &str, tree: &Path, scope: &Scope<'_>, survey: &mut Survey) {
    match Configuration::hooks_directory(value, tree, &survey.user_git.home) {
        Ok(Some(directory)) => {
            protect_hooks(&directory, Some(tree).filter(|_| is_relative(value)), scope, survey);
        }
        Ok(None) => {}
        Err(why) => survey.notices.push(format!("directories of git hooks are not protected: {why}")),
    }
}

fn protect_files(configuration: &Configuration, scope: &Scope<'_>, survey: &mut Survey) {
    survey.notices.extend(configuration.notices.iter().cloned());
    for file in &configuration.files {
        protect_located(file, "", scope, survey);
    }
}

/// Scripts in a hidden directory of the working tree use what lies beside them, so all of it is protected, and what links in
/// it lead to. `tree` is the working tree if the directory is named from there.
fn protect_hooks(directory: &Path, tree: Option<&Path>, scope: &Scope<'_>, survey: &mut Survey) {
    let mut located = match locate(directory) {
        Ok(located) => located,
        Err(error) => return not_protected(directory, &error.to_string(), survey),
    };
    let mut directories = vec![located.end.clone()];
    let tree = tree.filter(|_| located.links.is_empty());
    let first = tree.and_then(|tree| Some((tree, located.end.strip_prefix(tree).ok()?.iter().next()?)));
    if let Some((tree, first)) = first.filter(|(_, first)| first.to_string_lossy().starts_with('.')) {
        located.end = tree.join(first);
        directories.push(located.end.clone());
    }
    if scope.roots.iter().any(|root| root.starts_with(&located.end)) {
        return not_protected(&located.end, "the run works in that directory", survey);
    }
    protect_located(&located, "/", scope, survey);
    directories.dedup();
    for directory in directories {
        protect_linked_hooks(&directory, scope, survey);
    }
}

fn not_protected(directory: &Path, why: &str, survey: &mut Survey) {
    survey.notices.push(format!("git hooks in {} are not protected: {why}", directory.display()));
}

/// Protects what the links in a directory of hooks lead to.
fn protect_linked_hooks(directory: &Path, scope: &Scope<'_>, survey: &mut Survey) {
    let (hooks, left_out) = match linked_hooks(directory) {
        Ok(found) => found,
        Err(error) => return not_protected(directory, &error.to_string(), survey),
    };
    for hook in &hooks {
        if scope.roots.iter().any(|root| root.starts_with(&hook.end)) {
            not_protected(&hook.end, "the run works in that directory", survey);
        } else {
            protect_located(hook, "", scope, survey);
        }
    }
    if left_out > 0 {
        not_protected(directory, &format!("{left_out} of its links are too many"), survey);
    }
}

/// Protects a path, the links that lead to it, and the directories that it passes. `ending` is `/` for a directory.
fn protect_located(located: &Located, ending: &str, scope: &Scope<'_>, survey: &mut Survey) {
    for link in &located.links {
        protect_path(link, "", true, scope, survey);
    }
    for directory in &located.passed {
        hold(directory, scope, survey);
    }
    protect_path(&located.end, ending, false, scope, survey);
    let outside = |tree: &&Path| !located.end.starts_with(tree);
    let is_writable = survey.user_git.roots.iter().any(|root| located.end.starts_with(root))
        && !is_git(&located.end)
        && !survey.protected.contains(&located.end);
    if let Some(tree) = scope.suspect.filter(outside).filter(|_| is_writable) {
        let (path, tree) = (located.end.display(), tree.display());
        survey.notices.push(format!(
            "{path}, which the git configuration of {tree} names, is not protected: it is outside of that directory"
        ));
    }
}

/// Git directories are private, read-only or hidden as a whole.
fn is_git(path: &Path) -> bool {
    path.iter().any(|part| part == ".git")
}

/// Holds a directory in its place, so that no link can take it. What it holds stays writable.
#[expect(clippy::disallowed_methods, reason = "what a name is; nothing is opened")]
fn hold(directory: &Path, scope: &Scope<'_>, survey: &mut Survey) {
    if !directory.symlink_metadata().is_ok_and(|data| data.is_dir()) {
        return protect_path(directory, "/", false, scope, survey);
    }
    let roots = scope.roots.iter().filter(|root| directory.starts_with(root));
    for root in roots.filter(|_| !is_git(directory)) {
        let held = directory.ancestors().take_while(|above| *above != root.as_path());
        for above in held.collect::<Vec<_>>().into_iter().rev() {
            add(&mut survey.anchors, above);
        }
    }
}

fn protect_path(path: &Path, ending: &str, is_link: bool, scope: &Scope<'_>, survey: &mut Survey) {
    if is_git(path) {
        return;
    }
    for root in scope.roots {
        let Some(below) = path.strip_prefix(root).ok().filter(|below| !below.as_os_str().is_empty()) else {
            continue;
        };
        let Some(name) = below.to_str() else {
            survey.notices.push(format!("{} is not protected: its name is not UTF-8", path.display()));
            continue;
        };
        if is_link && !survey.links.iter().any(|known| known == path) {
            survey.links.push(path.to_owned());
            add(&mut survey.protected, path);
        }
        survey.protect(root, &[format!("{name}{ending}")]);
        if let Some(tree) = scope.suspect {
            let (path, tree) = (path.display(), tree.display());
            survey.notices.push(format!("{path} is read-only: the git configuration of {tree} names it"));
        }
    }
}
