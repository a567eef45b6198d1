//! Which repository a workspace is the working tree of, found without git.

use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::git::{config, refs};
use crate::{Directory, EntryKind};

/// Most bytes of a file that points to a git directory.
pub(crate) const MAX_POINTER_BYTES: u64 = 4096;
/// Most bytes of a configuration file.
pub(crate) const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// A repository whose git directory can be replaced by a private one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repository {
    /// The git directory with objects, refs and configuration.
    pub common: PathBuf,
    /// How the working tree belongs to it.
    pub kind: Kind,
}

/// How a working tree belongs to its git directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// `.git` is the git directory.
    Plain,
    /// `.git` points to a directory below `worktrees` of the common one.
    Linked {
        /// The name of that directory.
        name: String,
    },
    /// `.git` points to a git directory whose configuration points back.
    Submodule {
        /// What `.git` says.
        pointer: String,
        /// What the configuration says.
        back: String,
    },
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// No `.git`.
    Nothing,
    /// A repository.
    Repository(Repository),
    /// A `.git` that is none, or that only git itself can handle.
    Unsupported {
        /// Why.
        why: String,
    },
}

impl Repository {
    /// Looks at `.git` of a working tree.
    pub fn discover(tree: &Directory, path: &Path) -> Found {
        let pointer = Path::new(".git");
        let found = match tree.metadata(pointer).map(|data| data.kind()) {
            Err(_) => return Found::Nothing,
            Ok(EntryKind::Directory) => Ok(Self { common: path.join(".git"), kind: Kind::Plain }),
            Ok(EntryKind::File) => pointed(tree, path),
            Ok(EntryKind::Link) => Err("`.git` is a symbolic link".to_owned()),
            Ok(_) => Err("`.git` is neither a file nor a directory".to_owned()),
        };
        match found.and_then(|repository| repository.check_format().map(|()| repository)) {
            Ok(repository) => Found::Repository(repository),
            Err(why) => Found::Unsupported { why },
        }
    }

    /// The git directory of this working tree: index and `HEAD`.
    pub fn own(&self) -> PathBuf {
        match &self.kind {
            Kind::Plain | Kind::Submodule { .. } => self.common.clone(),
            Kind::Linked { name } => self.common.join("worktrees").join(name),
        }
    }

    /// Its configuration files.
    pub fn configuration_files(&self) -> Vec<PathBuf> {
        vec![self.common.join("config"), self.own().join("config.worktree")]
    }

    /// Refuses what a copy without git would get wrong.
    fn check_format(&self) -> Result<(), String> {
        let git = Directory::open(&self.common).map_err(|error| error.to_string())?;
        for name in ["objects", "refs"] {
            if git.metadata(Path::new(name)).map(|data| data.kind()).ok() != Some(EntryKind::Directory) {
                return Err(format!("`{name}` of the git directory is not a directory"));
            }
        }
        let own = Directory::open(&self.own()).map_err(|error| error.to_string())?;
        let head = own.read_text(Path::new("HEAD"), MAX_POINTER_BYTES).ok();
        if head.as_deref().and_then(refs::parse_value).is_none() {
            return Err("it has no valid HEAD".to_owned());
        }
        // Git would read and write in the directory that the file names.
        if !matches!(self.kind, Kind::Linked { .. }) && git.metadata(Path::new("commondir")).is_ok() {
            return Err("its git directory points to another one (`commondir`)".to_owned());
        }
        for name in ["objects/info/alternates", "objects/info/http-alternates"] {
            if git.metadata(Path::new(name)).is_ok() {
                return Err("it takes objects from another repository".to_owned());
            }
        }
        let content = git
            .read(Path::new("config"), MAX_CONFIG_BYTES)
            .map_err(|error| format!("failed to read its configuration: {error}"))?;
        for (key, value) in config::entries(&content, "extensions") {
            let known = match key.as_str() {
                "noop" | "worktreeconfig" | "relativeworktrees" | "objectformat" => true,
                "refstorage" => value.is_some_and(|value| value == "files"),
                _ => false,
            };
            if !known {
                return Err(format!("the repository uses the extension `{key}`"));
            }
        }
        Ok(())
    }
}

/// A path without `..`, as it would be if nothing on its way were a link.
pub fn lexical(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

/// The repository that a `.git` file points to. One that does not point back is another working tree's.
fn pointed(tree: &Directory, path: &Path) -> Result<Repository, String> {
    let text = tree.read_text(Path::new(".git"), MAX_POINTER_BYTES).map_err(|error| error.to_string())?;
    let pointer =
        text.trim().strip_prefix("gitdir:").map(str::trim).ok_or("`.git` is a file without `gitdir:`")?;
    let own =
        fs::canonicalize(path.join(pointer)).map_err(|error| format!("`.git` points nowhere: {error}"))?;
    let git = Directory::open(&own).map_err(|error| error.to_string())?;
    let line = |name: &str| {
        git.read_text(Path::new(name), MAX_POINTER_BYTES).ok().map(|text| text.trim().to_owned())
    };
    let elsewhere = || "`.git` points to a git directory that does not point back".to_owned();
    let Some(common) = line("commondir") else {
        let config = git.read(Path::new("config"), MAX_CONFIG_BYTES).map_err(|error| error.to_string())?;
        let back = config::values(&config, "core", "worktree").pop();
        let back = back.and_then(|back| back.into_string().ok()).ok_or_else(elsewhere)?;
        // As text and as the kernel resolves it: no part may be a link, for the text is what counts inside.
        let plain = lexical(&path.join(pointer)) == own && lexical(&own.join(&back)) == path;
        let of_modules = own.components().zip(own.components().skip(1));
        let of_modules = of_modules
            .into_iter()
            .any(|(one, next)| one.as_os_str() == ".git" && next.as_os_str() == "modules");
        let points_back =
            plain && of_modules && fs::canonicalize(own.join(&back)).is_ok_and(|place| place == path);
        let kind = Kind::Submodule { pointer: pointer.to_owned(), back };
        return if points_back { Ok(Repository { common: own, kind }) } else { Err(elsewhere()) };
    };
    let common = fs::canonicalize(own.join(common)).map_err(|error| error.to_string())?;
    let points_back = line("gitdir").and_then(|text| fs::canonicalize(own.join(text)).ok());
    let name = own.file_name().and_then(|name| name.to_str()).ok_or_else(elsewhere)?;
    if points_back.as_deref() != Some(&path.join(".git")) || own != common.join("worktrees").join(name) {
        return Err(elsewhere());
    }
    Ok(Repository { kind: Kind::Linked { name: name.to_owned() }, common })
}
