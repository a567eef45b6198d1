//! Files that a run made or changed and that git, an editor, a shell, a package manager or an agent CLI executes later.
//!
//! They are reported, not blocked: most of them are what a run was asked for. A file counts if the kernel changed its status
//! since the run began, which no program can set back.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::{Bounds, Directory, EntryKind, Metadata, Next, Visit, walk};

/// How much is searched.
const BOUNDS: Bounds = Bounds { path_bytes: 2048, entries: 300_000 };
/// Most files that are reported.
pub const MAX_REPORTED: usize = 50;

/// What executes a file, the most dangerous first: what happens without a question comes before what a user starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecutedBy {
    /// Git, by the configuration or the hooks of a repository.
    Git,
    /// A shell.
    Shell,
    /// An editor.
    Editor,
    /// An agent CLI.
    AgentCli,
    /// A package manager or a build tool.
    PackageManager,
}

impl ExecutedBy {
    /// What a user reads.
    pub fn describe(self) -> &'static str {
        match self {
            ExecutedBy::Git => "git executes what its configuration and hooks name",
            ExecutedBy::Editor => "editors execute what it names",
            ExecutedBy::Shell => "a shell executes it",
            ExecutedBy::PackageManager => "package managers execute what it names",
            ExecutedBy::AgentCli => "agent CLIs execute what it names",
        }
    }
}

/// A file that is executed later.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Executed {
    /// Its path, from the workspace.
    pub path: PathBuf,
    /// What executes it.
    pub by: ExecutedBy,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The files, the most dangerous and least deep first, at most [`MAX_REPORTED`].
    pub files: Vec<Executed>,
    /// How many more there are.
    pub more: usize,
    /// Whether everything was searched.
    pub complete: bool,
}

/// Names that are executed wherever they are.
const NAMES: [(&str, ExecutedBy); 32] = [
    (".envrc", ExecutedBy::Shell),
    (".bashrc", ExecutedBy::Shell),
    (".bash_profile", ExecutedBy::Shell),
    (".profile", ExecutedBy::Shell),
    (".zshrc", ExecutedBy::Shell),
    (".zprofile", ExecutedBy::Shell),
    (".zshenv", ExecutedBy::Shell),
    (".mise.toml", ExecutedBy::Shell),
    ("mise.toml", ExecutedBy::Shell),
    (".gitconfig", ExecutedBy::Git),
    (".gitmodules", ExecutedBy::Git),
    (".husky", ExecutedBy::Git),
    (".githooks", ExecutedBy::Git),
    (".pre-commit-config.yaml", ExecutedBy::Git),
    ("lefthook.yml", ExecutedBy::Git),
    (".vscode", ExecutedBy::Editor),
    (".idea", ExecutedBy::Editor),
    (".devcontainer", ExecutedBy::Editor),
    (".vimrc", ExecutedBy::Editor),
    (".exrc", ExecutedBy::Editor),
    (".nvim.lua", ExecutedBy::Editor),
    (".dir-locals.el", ExecutedBy::Editor),
    ("package.json", ExecutedBy::PackageManager),
    (".npmrc", ExecutedBy::PackageManager),
    (".yarnrc.yml", ExecutedBy::PackageManager),
    (".pnpmfile.cjs", ExecutedBy::PackageManager),
    (".ripgreprc", ExecutedBy::PackageManager),
    (".claude", ExecutedBy::AgentCli),
    (".codex", ExecutedBy::AgentCli),
    (".mcp.json", ExecutedBy::AgentCli),
    ("opencode.json", ExecutedBy::AgentCli),
    (".ringfence", ExecutedBy::AgentCli),
];
/// Directories whose files and not whose names are executed.
const CONTENTS: [&str; 9] =
    [".vscode", ".idea", ".devcontainer", ".husky", ".githooks", ".claude", ".codex", ".ringfence", ".cargo"];

/// What executes a file of this path, if anything does.
pub fn executed_by(path: &Path) -> Option<ExecutedBy> {
    if path.ends_with(".cargo/config.toml") || path.ends_with(".cargo/config") {
        return Some(ExecutedBy::PackageManager);
    }
    if path.components().any(|part| part.as_os_str() == ".git") {
        return Some(ExecutedBy::Git);
    }
    if ["commondir", "config.worktree", "gitdir"].iter().any(|name| path.ends_with(name)) {
        return Some(ExecutedBy::Git);
    }
    let known = |part: &std::ffi::OsStr| NAMES.iter().find(|(name, _)| part == *name).map(|(_, by)| *by);
    let parts: Vec<_> = path.components().map(|part| part.as_os_str()).collect();
    let (last, above) = parts.split_last()?;
    let inside = above.iter().find(|part| CONTENTS.iter().any(|name| *part == name));
    inside.and_then(|part| known(part)).or_else(|| known(last))
}

/// Searches a workspace for what changed since a time (seconds and nanoseconds of the system clock). `.git` of the root is
/// passed over: a run does not write it.
pub fn search(workspace: &Directory, since: (i64, i64), deadline: Instant) -> io::Result<Report> {
    let mut files = Vec::new();
    let mut late = false;
    let unvisited = walk(workspace, BOUNDS, &mut |visit| {
        late = late || (files.len() % 64 == 0 && Instant::now() > deadline);
        if late {
            return Next::PassOver;
        }
        look(visit, since, &mut files)
    })?;
    files.sort_by_cached_key(|file| (file.by, file.path.components().count(), file.path.clone()));
    files.dedup();
    let complete = !late && !unvisited.more && unvisited.directories.is_empty();
    let more = files.len().saturating_sub(MAX_REPORTED);
    files.truncate(MAX_REPORTED);
    Ok(Report { files, more, complete })
}

fn look(visit: &Visit<'_>, since: (i64, i64), files: &mut Vec<Executed>) -> Next {
    let is_new = |name: &Path| visit.parent.metadata(name).is_ok_and(|data| data.changed() >= since);
    if visit.name == ".git" {
        let nested = visit.path.parent().is_some_and(|parent| !parent.as_os_str().is_empty());
        if nested && (is_new(Path::new(".git")) || is_new(Path::new(".git/config"))) {
            files.push(Executed { path: visit.path.to_owned(), by: ExecutedBy::Git });
        }
        return Next::PassOver;
    }
    if visit.name == "HEAD" && is_git_directory(visit.parent) {
        let parts =
            ["HEAD", "objects", "refs", "config", "hooks", "commondir", "config.worktree"].map(Path::new);
        if parts.into_iter().any(is_new) {
            files.push(Executed { path: visit.path.to_owned(), by: ExecutedBy::Git });
        }
    }
    if visit.kind != EntryKind::Directory
        && let Some(by) = executed_by(visit.path)
        && let Ok(data) = visit.parent.metadata(Path::new(visit.name))
        && data.changed() >= since
        && !is_harmless(visit, data)
    {
        files.push(Executed { path: visit.path.to_owned(), by });
    }
    Next::Enter
}

/// Whether git takes a directory for a git directory: `HEAD`, and either objects and refs or a pointer to them.
pub fn is_git_directory(directory: &Directory) -> bool {
    let exists = |name: &str| directory.metadata(Path::new(name)).is_ok();
    exists("HEAD") && (exists("commondir") || (exists("objects") && exists("refs")))
}

/// An empty file names nothing, and neither does an empty object. Stub files are such.
fn is_harmless(visit: &Visit<'_>, data: Metadata) -> bool {
    match (data.kind(), data.length()) {
        (EntryKind::File, 0) => true,
        (EntryKind::File, 3) => {
            visit.parent.read(Path::new(visit.name), 3).is_ok_and(|content| content == b"{}\n")
        }
        _ => false,
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests write files of their own")]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::path::{Path, PathBuf};
    use std::time::{Duration, Instant};

    use super::{ExecutedBy, executed_by, search};
    use crate::Directory;

    fn found(make: impl Fn(&Path)) -> Vec<String> {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().canonicalize().unwrap();
        let marker = tempfile::NamedTempFile::new().unwrap();
        let began = marker.as_file().metadata().unwrap();
        make(&path);
        let directory = Directory::open(&path).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let report = search(&directory, (began.ctime(), began.ctime_nsec()), deadline).unwrap();
        assert!(report.complete);
        report.files.iter().map(|file| file.path.display().to_string()).collect()
    }

    fn write(root: &Path, name: &str, text: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn repositories_links_to_them_and_bare_ones_are_found() {
        let names = found(|root| {
            write(root, "sub/.git/config", "[core]\n\tfsmonitor = evil\n");
            write(root, "link/.git", "gitdir: ../sub/.git\n");
            write(root, "HEAD", "ref: refs/heads/x\n");
            write(root, "objects/x", "");
            write(root, "refs/x", "");
            write(root, "HEAD2", "");
            symlink("/elsewhere", root.join("linked")).unwrap();
        });
        assert_eq!(names, ["HEAD", "link/.git", "sub/.git"]);
    }

    #[test]
    fn decoys_do_not_push_git_out_of_the_report() {
        let names = found(|root| {
            for number in 0..60 {
                write(root, &format!("a/{number}/package.json"), "{\"scripts\": {}}");
            }
            write(root, "z/deep/.git/config", "[core]\n");
            write(root, "z/.git/config", "[core]\n");
        });
        assert_eq!(names[..2], ["z/.git", "z/deep/.git"]);
        assert_eq!(names.len(), super::MAX_REPORTED);
    }

    #[test]
    fn files_of_editors_shells_and_packages_are_found_and_stubs_are_not() {
        let names = found(|root| {
            write(root, "a/.envrc", "evil");
            write(root, "a/.vscode/tasks.json", "{\"tasks\": []}");
            write(root, "b/package.json", "{\"scripts\": {}}");
            write(root, "b/.cargo/config.toml", "[build]");
            write(root, ".mcp.json", "{}\n");
            write(root, ".envrc", "");
            write(root, "src/main.rs", "fn main() {}");
        });
        assert_eq!(names, ["a/.envrc", "a/.vscode/tasks.json", "b/package.json", "b/.cargo/config.toml"]);
    }

    #[test]
    fn paths_are_judged_by_their_names() {
        assert_eq!(executed_by(Path::new("x/.git/hooks/pre-commit")), Some(ExecutedBy::Git));
        assert_eq!(executed_by(&PathBuf::from(".claude/settings.json")), Some(ExecutedBy::AgentCli));
        assert_eq!(executed_by(Path::new("src/lib.rs")), None);
    }
}
