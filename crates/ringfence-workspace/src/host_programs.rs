//! Programs that Ringfence itself runs on the host: git, container engines, agent CLIs that doctor asks, helpers for credentials.
//!
//! They run without a boundary, so none of them may be a file that a run has written. A relative entry of `PATH` means the directory
//! where the user stands, which mostly is the workspace; an absolute one may lie in the workspace too (`$PWD/bin`,
//! `node_modules/.bin`). Such entries are not searched, and the started program does not search them either.

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

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
}

/// A directory below which nothing is started.
#[derive(Debug, Clone)]
struct Exclusion {
    workspace: PathBuf,
    home: PathBuf,
}

impl Exclusion {
    /// The resolved workspace. A directory that holds the system's programs or the home is none: what is in it stays.
    fn resolve(&self) -> Option<PathBuf> {
        let real = self.workspace.canonicalize().ok()?;
        let holds = |path: &Path| path.canonicalize().is_ok_and(|path| path.starts_with(&real));
        let too_wide = holds(&self.home) || SYSTEM_PATHS.iter().any(|path| holds(Path::new(path)));
        (!too_wide).then_some(real)
    }
}

impl HostPrograms {
    /// No programs at all.
    pub const fn none() -> Self {
        Self { directories: Vec::new(), exclusions: Vec::new() }
    }

    /// The programs of a `PATH`.
    pub fn new(path: &str) -> Self {
        let directories = std::env::split_paths(path).filter(|directory| directory.is_absolute()).collect();
        Self { directories, exclusions: Vec::new() }
    }

    /// The same without those below a workspace, unless it holds the home or the system's programs.
    #[must_use]
    pub fn outside_of(mut self, workspace: &Path, home: &Path) -> Self {
        self.exclusions.push(Exclusion { workspace: workspace.to_owned(), home: home.to_owned() });
        self
    }

    /// The first program of this name, or the program at an absolute path. `None` if there is none that no run could have written.
    pub fn find(&self, name: &str) -> Option<PathBuf> {
        let usable = |program: &PathBuf| is_executable(program) && is_outside(program, &self.workspaces());
        if name.contains('/') {
            return Some(PathBuf::from(name)).filter(|program| program.is_absolute() && usable(program));
        }
        let mut programs = self.directories.iter().map(|directory| directory.join(name));
        programs.find(usable).filter(|_| !name.is_empty())
    }

    /// The command that starts a program. It searches the same directories for programs of its own.
    pub fn command(&self, name: &str) -> Option<Command> {
        let mut command = Command::new(self.find(name)?);
        command.env("PATH", self.path());
        Some(command)
    }

    /// The directories as a `PATH`.
    pub fn path(&self) -> OsString {
        let workspaces = self.workspaces();
        let outside = self.directories.iter().filter(|directory| is_outside(directory, &workspaces));
        // An entry of a `PATH` holds no separator.
        std::env::join_paths(outside).unwrap_or_default()
    }

    fn workspaces(&self) -> Vec<PathBuf> {
        self.exclusions.iter().filter_map(Exclusion::resolve).collect()
    }
}

/// Whether a path, and what it leads to, lie in no workspace.
fn is_outside(path: &Path, workspaces: &[PathBuf]) -> bool {
    if workspaces.is_empty() {
        return true;
    }
    let within = |path: PathBuf| workspaces.iter().any(|workspace| path.starts_with(workspace));
    // No name on the way may lie in a workspace either: a run could put a link to another directory there.
    let parts = path.ancestors().filter_map(Path::parent).chain([path]);
    !parts.filter_map(|part| part.canonicalize().ok()).any(within)
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
}
