//! Programs that Ringfence itself runs on the host: git, container engines, agent CLIs that doctor asks, helpers for credentials.
//!
//! They run without a boundary, so none of them may be a file that a run has written. A relative entry of `PATH` means the directory
//! where the user stands, which mostly is the workspace; an absolute one may lie in the workspace too (`$PWD/bin`,
//! `node_modules/.bin`), or in one where another run has worked. Such entries are not searched, and the started program does not
//! search them either.

use std::cell::LazyCell;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::git::{Located, locate};
use crate::run_trees::RunTrees;

/// Directories of the system, which no run can write.
pub(crate) const SYSTEM_PATHS: [&str; 5] =
    ["/usr/bin", "/usr/local/bin", "/bin", "/opt/homebrew/bin", "/run/current-system/sw/bin"];

/// Where programs of the host are found.
#[derive(Debug, Clone, Default)]
pub struct HostPrograms {
    /// The absolute entries of `PATH`, in its order.
    directories: Vec<PathBuf>,
    /// Directories as the user names them. They are resolved when a program is looked for: most commands look for none.
    exclusions: Vec<Exclusion>,
    /// What earlier runs could write, which is excluded too, and the user's home.
    runs: Option<(RunTrees, PathBuf)>,
}

/// A directory below which nothing is started.
#[derive(Debug, Clone)]
struct Exclusion {
    workspace: PathBuf,
    home: PathBuf,
}

impl HostPrograms {
    /// No programs at all.
    pub const fn none() -> Self {
        Self { directories: Vec::new(), exclusions: Vec::new(), runs: None }
    }

    /// The programs of a `PATH`.
    pub fn new(path: &str) -> Self {
        let directories = std::env::split_paths(path).filter(|directory| directory.is_absolute()).collect();
        Self { directories, ..Self::none() }
    }

    /// The same, with directories of the system searched first.
    #[must_use]
    pub(crate) fn of_system_first(&self) -> Self {
        let directories = SYSTEM_PATHS.iter().map(PathBuf::from).chain(self.directories.iter().cloned());
        Self { directories: directories.collect(), ..self.clone() }
    }

    /// The same without those below a workspace, unless it holds the home or the system's programs.
    #[must_use]
    pub fn outside_of(mut self, workspace: &Path, home: &Path) -> Self {
        self.exclusions.push(Exclusion { workspace: workspace.to_owned(), home: home.to_owned() });
        self
    }

    /// The same without those below a directory that a run could write, unless it holds the home or the system's programs.
    #[must_use]
    pub fn outside_of_runs(mut self, trees: RunTrees, home: &Path) -> Self {
        self.runs = Some((trees, home.to_owned()));
        self
    }

    /// The first program of this name, or the program at an absolute path. `None` if there is none that no run could have written.
    pub fn find(&self, name: &str) -> Option<PathBuf> {
        let workspaces = LazyCell::new(|| self.workspaces());
        let usable = |program: &PathBuf| {
            is_executable(program) && workspaces.as_ref().is_some_and(|trees| is_outside(program, trees))
        };
        if name.contains('/') {
            return Some(PathBuf::from(name)).filter(|program| program.is_absolute() && usable(program));
        }
        let mut programs = self.directories.iter().map(|directory| directory.join(name));
        programs.find(usable).filter(|_| !name.is_empty())
    }

    /// The command that starts a program. It searches the same directories for programs of its own, and does not stand in the
    /// workspace: many interpreters load what lies in the current directory.
    pub fn command(&self, name: &str) -> Option<Command> {
        let mut command = Command::new(self.find(name)?);
        command.env("PATH", self.path()).env_remove("PWD").current_dir("/");
        Some(command)
    }

    /// The directories as a `PATH`.
    pub fn path(&self) -> OsString {
        let Some(workspaces) = self.workspaces() else { return OsString::new() };
        let outside = self.directories.iter().filter(|directory| is_outside(directory, &workspaces));
        // An entry of a `PATH` holds no separator.
        std::env::join_paths(outside).unwrap_or_default()
    }

    /// The directories below which nothing is started. One that holds the system's programs or the home is none: what is in it
    /// stays. `None` if the list of runs cannot be read: then nothing is known to be safe.
    fn workspaces(&self) -> Option<Vec<PathBuf>> {
        let system = Breadth::new(None);
        let named = |exclusion: &Exclusion| {
            let breadth = system.clone().with(&exclusion.home);
            real(&exclusion.workspace).filter(|tree| breadth.is_narrow(tree))
        };
        let mut workspaces: Vec<PathBuf> = self.exclusions.iter().filter_map(named).collect();
        if let Some((trees, home)) = &self.runs {
            let breadth = system.clone().with(home);
            workspaces.extend(trees.list().ok()?.into_iter().filter(|tree| breadth.is_narrow(tree)));
        }
        Some(workspaces)
    }
}

/// What makes a directory too wide to start nothing below it.
#[derive(Debug, Clone)]
pub(crate) struct Breadth(Vec<PathBuf>);

impl Breadth {
    /// The system's programs, and a home.
    pub(crate) fn new(home: Option<&Path>) -> Self {
        Self(SYSTEM_PATHS.iter().map(Path::new).chain(home).filter_map(real).collect())
    }

    fn with(mut self, home: &Path) -> Self {
        self.0.extend(real(home));
        self
    }

    /// Whether a directory holds none of it.
    pub(crate) fn is_narrow(&self, tree: &Path) -> bool {
        !self.0.iter().any(|path| path.starts_with(tree))
    }
}

fn real(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok()
}

/// Whether a path, every link on its way and what it leads to lie in no workspace: a run could make any of them lead elsewhere.
fn is_outside(path: &Path, workspaces: &[PathBuf]) -> bool {
    let within = |path: &PathBuf| workspaces.iter().any(|workspace| path.starts_with(workspace));
    let is_outside = |Located { links, passed, end }| !links.iter().chain(&passed).chain([&end]).any(within);
    workspaces.is_empty() || locate(path).is_ok_and(is_outside)
}

/// Whether a path is a file that may be executed.
pub fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "programs that others have left")]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    use super::HostPrograms;
    use crate::RunTrees;

    fn program(path: &Path) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn program_that_a_run_could_have_written_is_not_found() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        for name in ["work/bin/tool", "outside/tool", "outside/other", "work/own"] {
            program(&at(name));
        }
        // A link into the workspace, and a directory that is one.
        fs::create_dir(at("links")).unwrap();
        symlink(at("work/own"), at("links/own")).unwrap();
        symlink(at("work/bin"), at("linked")).unwrap();
        // Links in the workspace that lead out of it.
        symlink(at("outside/other"), at("work/bin/other")).unwrap();
        symlink(at("outside"), at("work/out")).unwrap();
        let path = ["", ".", "bin", "../outside", "work/bin", "work/out", "links", "linked", "outside"];
        let path: Vec<String> = path
            .iter()
            .map(|entry| match at(entry) {
                absolute if absolute.is_dir() && entry.len() > 3 && !entry.starts_with("..") => {
                    absolute.display().to_string()
                }
                _ => (*entry).to_owned(),
            })
            .collect();
        let programs = HostPrograms::new(&path.join(":")).outside_of(&at("work"), &at("home"));
        assert_eq!(programs.find("tool"), Some(at("outside/tool")));
        assert_eq!(programs.find("other"), Some(at("outside/other")));
        assert_eq!(programs.find("own"), None);
        for name in ["", "./tool", "work/bin/tool", "../outside/tool", at("work/own").to_str().unwrap()] {
            assert_eq!(programs.find(name), None, "{name}");
        }
        assert_eq!(programs.find(at("outside/tool").to_str().unwrap()), Some(at("outside/tool")));
        let searched = programs.path().into_string().unwrap();
        assert_eq!(searched, format!("{}:{}", at("links").display(), at("outside").display()));
        let command = programs.command("tool").unwrap();
        assert_eq!(command.get_current_dir(), Some(Path::new("/")));
        assert!(command.get_envs().any(|(name, value)| name == "PATH" && value == Some(searched.as_ref())));
        // Without the workspace only relative entries are left out.
        assert_eq!(HostPrograms::new(&path.join(":")).find("tool"), Some(at("work/bin/tool")));
    }

    #[test]
    fn home_and_directories_of_the_system_are_no_workspaces() {
        let home = tempfile::tempdir().unwrap();
        let bin = home.path().join(".local/bin");
        program(&bin.join("tool"));
        let path = format!("{}:/usr/bin:/bin", bin.display());
        for workspace in [home.path(), Path::new("/"), Path::new("/usr"), Path::new("/nowhere")] {
            let programs = HostPrograms::new(&path).outside_of(workspace, home.path());
            assert_eq!(programs.find("tool"), Some(bin.join("tool")), "{}", workspace.display());
            assert!(programs.find("sh").is_some(), "{}", workspace.display());
        }
        let programs = HostPrograms::new(&path).outside_of(&home.path().join(".local"), home.path());
        assert_eq!(programs.find("tool"), None);
    }

    /// A link outside leads to one in the workspace, which leads out again: the run can turn that one.
    #[test]
    fn program_behind_a_link_of_a_workspace_is_not_found() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        program(&at("outside/real"));
        for directory in ["work/deep", "links"] {
            fs::create_dir_all(at(directory)).unwrap();
        }
        symlink(at("outside/real"), at("work/turned")).unwrap();
        symlink(at("work/turned"), at("links/file")).unwrap();
        symlink(at("outside"), at("work/deep/directory")).unwrap();
        symlink("../work/deep/directory/real", at("links/through")).unwrap();
        symlink("../work/../outside/real", at("links/passing")).unwrap();
        symlink("../outside/real", at("links/good")).unwrap();
        let programs = HostPrograms::new(at("links").to_str().unwrap()).outside_of(&at("work"), &at("home"));
        for name in ["file", "through", "passing"] {
            assert_eq!(programs.find(name), None, "{name}");
        }
        assert_eq!(programs.find("good"), Some(at("links/good")));
    }

    #[test]
    fn program_where_another_run_has_worked_is_not_found() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        program(&at("other/bin/tool"));
        program(&at("outside/tool"));
        let path = format!("{}:{}", at("other/bin").display(), at("outside").display());
        let trees = RunTrees::of(place.path());
        let programs = HostPrograms::new(&path).outside_of_runs(trees.clone(), &at("home"));
        assert_eq!(programs.find("tool"), Some(at("other/bin/tool")));
        trees.add(&[at("other"), "/usr".into()], &at("home")).unwrap();
        assert_eq!(programs.find("tool"), Some(at("outside/tool")));
        assert_eq!(programs.path(), at("outside").as_os_str());
        // A list that cannot be read names nothing that is safe.
        fs::remove_file(at(RunTrees::FILE_NAME)).unwrap();
        fs::create_dir(at(RunTrees::FILE_NAME)).unwrap();
        assert_eq!(programs.find("tool"), None);
    }
}
