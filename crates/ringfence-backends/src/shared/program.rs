//! Where a program is.
#![expect(clippy::disallowed_methods, reason = "programs are only looked for here; the sandbox starts them")]

use std::path::{Path, PathBuf};

use ringfence_core::backend::LaunchError;

use ringfence_workspace::{HostPrograms, is_executable};

/// Where a program is, by the rules of a shell: a name is looked up, a path is taken from the working directory.
pub(crate) fn locate(name: &str, path: Option<&str>, cwd: &Path) -> Result<PathBuf, LaunchError> {
    let not_found = || LaunchError::NotFound { program: name.to_owned() };
    if !name.contains('/') {
        return HostPrograms::new(path.unwrap_or_default()).find(name).ok_or_else(not_found);
    }
    let program = cwd.join(name);
    if is_executable(&program) {
        Ok(program)
    } else if program.exists() {
        let why = if program.is_dir() { "it is a directory" } else { "it is not marked executable" };
        Err(LaunchError::NotExecutable { program: name.to_owned(), why: why.to_owned() })
    } else {
        Err(not_found())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ringfence_core::backend::LaunchError;

    use super::locate;

    #[test]
    fn names_are_looked_up_and_paths_are_not() {
        assert_eq!(locate("sh", Some("/nowhere:/bin"), Path::new("/")).unwrap(), Path::new("/bin/sh"));
        assert_eq!(locate("./sh", Some("/nowhere"), Path::new("/bin")).unwrap(), Path::new("/bin/./sh"));
        for missing in ["", "no-such-program", "/no/such/program"] {
            assert!(matches!(
                locate(missing, Some("/bin"), Path::new("/")),
                Err(LaunchError::NotFound { .. })
            ));
        }
        for no_program in ["/etc", "/etc/passwd"] {
            assert!(matches!(
                locate(no_program, None, Path::new("/")),
                Err(LaunchError::NotExecutable { .. })
            ));
        }
    }
}
