//! Protects what git on the host executes by way of its configuration: files that a configuration includes, links that lead
//! to one, and directories of hooks, as far as they lie where a run could write.

use std::path::{Path, PathBuf};

use ringfence_core::plan::Request;
use ringfence_workspace::git::{Configuration, Found, Located, locate};

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
    if *found != Found::Nothing {
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
    for value in configuration.hooks.iter().chain(&hooks) {
        match Configuration::hooks_directory(value, tree, &home) {
            Ok(Some(directory)) => protect_hooks(value, &directory, tree, scope, survey),
            Ok(None) => {}
            Err(why) => survey.notices.push(format!("directories of git hooks are not protected: {why}")),
        }
    }
}

fn protect_files(configuration: &Configuration, scope: &Scope<'_>, survey: &mut Survey) {
    survey.notices.extend(configuration.notices.iter().cloned());
    for file in &configuration.files {
        protect_located(file, "", scope, survey);
    }
}

/// Scripts in a hidden directory of the working tree use what lies beside them, so all of it is protected.
fn protect_hooks(value: &str, directory: &Path, tree: &Path, scope: &Scope<'_>, survey: &mut Survey) {
    let mut located = match locate(directory) {
        Ok(located) => located,
        Err(error) => {
            let directory = directory.display();
            return survey.notices.push(format!("the git hooks in {directory} are not protected: {error}"));
        }
    };
    let relative = !value.starts_with(['/', '~']) && located.links.is_empty();
    let first = located.end.strip_prefix(tree).ok().and_then(|below| below.iter().next());
    if let Some(first) = first.filter(|first| relative && first.to_string_lossy().starts_with('.')) {
        located.end = tree.join(first);
    }
    if scope.roots.iter().any(|root| root.starts_with(&located.end)) {
        let end = located.end.display();
        survey.notices.push(format!("git hooks in {end} are not protected: the run works in that directory"));
        return;
    }
    protect_located(&located, "/", scope, survey);
}

/// Protects a path and the links that lead to it. `ending` is `/` for a directory.
fn protect_located(located: &Located, ending: &str, scope: &Scope<'_>, survey: &mut Survey) {
    for link in &located.links {
        protect_path(link, "", true, scope, survey);
    }
    protect_path(&located.end, ending, false, scope, survey);
    let outside = |tree: &&Path| !located.end.starts_with(tree);
    let is_writable = survey.user_git.roots.iter().any(|root| located.end.starts_with(root));
    if let Some(tree) = scope.suspect.filter(outside).filter(|_| is_writable) {
        let (path, tree) = (located.end.display(), tree.display());
        survey.notices.push(format!(
            "{path}, which the git configuration of {tree} names, is not protected: it is outside of that directory"
        ));
    }
}

fn protect_path(path: &Path, ending: &str, is_link: bool, scope: &Scope<'_>, survey: &mut Survey) {
    // Git directories are private, read-only or hidden as a whole.
    if path.iter().any(|part| part == ".git") {
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
