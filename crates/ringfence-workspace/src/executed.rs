//! Files that a run made or changed and that git, an editor, a shell, a package manager or an agent CLI executes later.
//!
//! They are reported, not blocked: most of them are what a run was asked for. A file counts if it [changed](changes) since the run
//! began, or if a directory above it is where it was not before: a directory that is renamed or moved takes its files along as they
//! are.
//!
//! Directories in which every user of the machine can write since the run are reported too: another user could put such files there.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ringfence_core::locations::Locations;
use ringfence_core::paths::DirectoryId;
use ringfence_core::policy::home::{is_executed, may_hold_executed};
use serde::{Deserialize, Serialize};

pub use self::changes::{BeginTime, Changes, Contents, times_tell_changes};
use self::git_directory::{GitParts, GitSearch, plain};
use self::links::{LinkSearch, MAX_FOLLOWED_LINKS, is_followed};
use self::shapes::{by_shape, group, is_of_programs, marks_environment};
use crate::{Bounds, Directory, EntryKind, Metadata, Next, ReadError, Step, Visit, walk_with_directories};

mod changes;
mod git_directory;
mod links;
mod shapes;

pub use self::git_directory::{is_git_directory, is_git_directory_in_overlay};

/// How much is searched.
const BOUNDS: Bounds = Bounds { path_bytes: 2048, entries: 300_000 };
/// Visits between two looks at the clock.
const DEADLINE_INTERVAL: u32 = 64;
/// What makes a directory a repository without a working tree, or is executed in one.
const PARTS_OF_BARE: [&str; 7] =
    ["HEAD", "commondir", "config", "config.worktree", "hooks", "objects", "refs"];
/// Most git directories of one workspace whose configuration is followed.
const MAX_FOLLOWED: usize = 256;
/// Most files of one name that are reported: a run can make many, which must not displace others.
const MAX_OF_NAME: usize = 10;
/// Most repositories that are reported, and most other files.
pub const MAX_REPORTED: usize = 50;

/// What executes a file, the most dangerous first: what happens without a question comes before what a user starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecutedBy {
    /// Git, by a git directory, a link to one, or a repository without a working tree.
    Repository,
    /// Git, by the configuration or the hooks of a repository.
    Git,
    /// What the policy or the user's configuration protects it for: a run could not write it, and a checkout of its commit does.
    Protected,
    /// A program of the user, by a path of the home.
    Home,
    /// A shell.
    Shell,
    /// An editor.
    Editor,
    /// An agent CLI.
    AgentCli,
    /// A package manager or a build tool.
    PackageManager,
    /// Another program that is started in the directory: an interpreter, a debugger, another version control system.
    Program,
    /// Perhaps a program that no list names, by the shape of the file's name.
    Unknown,
}

impl ExecutedBy {
    /// What a user reads.
    pub fn describe(self) -> &'static str {
        match self {
            ExecutedBy::Repository | ExecutedBy::Git => "git executes what its configuration and hooks name",
            ExecutedBy::Protected => "it is protected, and a checkout writes it",
            ExecutedBy::Home => "programs execute it in your home",
            ExecutedBy::Editor => "editors execute what it names",
            ExecutedBy::Shell => "a shell executes it",
            ExecutedBy::PackageManager => "package managers execute what it names",
            ExecutedBy::AgentCli => "agent CLIs execute what it names",
            ExecutedBy::Program => "programs that are started there execute it",
            ExecutedBy::Unknown => "programs may take commands from it",
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
    /// The files, the most dangerous and least deep first: at most [`MAX_REPORTED`] repositories, and as many others.
    pub files: Vec<Executed>,
    /// Git directories that the run could write, from the root: what their configuration names is executed too.
    pub git_directories: Vec<PathBuf>,
    /// How many more files there are.
    pub more: usize,
    /// Directories in which every user of the machine can write since the run, and such files among those that are executed, at most
    /// [`MAX_REPORTED`]. Of directories in one another only the outermost is listed.
    pub open_to_all: Vec<PathBuf>,
    /// Whether everything was searched.
    pub complete: bool,
}

/// Names that are executed wherever they are.
const NAMES: &[(&str, ExecutedBy)] = &[
    (".envrc", ExecutedBy::Shell),
    (".bashrc", ExecutedBy::Shell),
    (".bash_profile", ExecutedBy::Shell),
    (".profile", ExecutedBy::Shell),
    (".zshrc", ExecutedBy::Shell),
    (".zprofile", ExecutedBy::Shell),
    (".zshenv", ExecutedBy::Shell),
    (".zlogin", ExecutedBy::Shell),
    (".zlogout", ExecutedBy::Shell),
    (".bash_login", ExecutedBy::Shell),
    (".bash_logout", ExecutedBy::Shell),
    (".bash_aliases", ExecutedBy::Shell),
    (".autoenv", ExecutedBy::Shell),
    (".autoenv.zsh", ExecutedBy::Shell),
    ("flake.nix", ExecutedBy::Shell),
    ("shell.nix", ExecutedBy::Shell),
    ("default.nix", ExecutedBy::Shell),
    ("devenv.nix", ExecutedBy::Shell),
    (".tool-versions", ExecutedBy::Shell),
    // Of asdf, which takes them as `.tool-versions`: `path:DIRECTORY` in one puts programs before others.
    (".python-version", ExecutedBy::Shell),
    (".node-version", ExecutedBy::Shell),
    (".nvmrc", ExecutedBy::Shell),
    (".ruby-version", ExecutedBy::Shell),
    (".java-version", ExecutedBy::Shell),
    (".go-version", ExecutedBy::Shell),
    (".terraform-version", ExecutedBy::Shell),
    (".env.leave", ExecutedBy::Shell),
    ("devbox.json", ExecutedBy::Shell),
    ("devenv.yaml", ExecutedBy::Shell),
    (".gitconfig", ExecutedBy::Git),
    (".gitmodules", ExecutedBy::Git),
    (".husky", ExecutedBy::Git),
    (".githooks", ExecutedBy::Git),
    (".pre-commit-config.yaml", ExecutedBy::Git),
    (".lefthook", ExecutedBy::Git),
    (".lefthook-local", ExecutedBy::Git),
    (".overcommit.yml", ExecutedBy::Git),
    ("prek.toml", ExecutedBy::Git),
    (".vscode", ExecutedBy::Editor),
    (".idea", ExecutedBy::Editor),
    (".devcontainer", ExecutedBy::Editor),
    (".vimrc", ExecutedBy::Editor),
    (".exrc", ExecutedBy::Editor),
    (".nvim.lua", ExecutedBy::Editor),
    (".nvimrc", ExecutedBy::Editor),
    (".lazy.lua", ExecutedBy::Editor),
    (".dir-locals.el", ExecutedBy::Editor),
    (".dir-locals-2.el", ExecutedBy::Editor),
    (".zed", ExecutedBy::Editor),
    (".helix", ExecutedBy::Editor),
    (".devcontainer.json", ExecutedBy::Editor),
    (".vim", ExecutedBy::Editor),
    (".lvimrc", ExecutedBy::Editor),
    (".local.vimrc", ExecutedBy::Editor),
    (".bsp", ExecutedBy::Editor),
    (".run", ExecutedBy::Editor),
    (".fleet", ExecutedBy::Editor),
    (".pylintrc", ExecutedBy::Editor),
    ("rust-analyzer.toml", ExecutedBy::Editor),
    ("pyvenv.cfg", ExecutedBy::Editor),
    ("tsconfig.json", ExecutedBy::Editor),
    ("jsconfig.json", ExecutedBy::Editor),
    ("build.zig", ExecutedBy::Editor),
    ("lakefile.lean", ExecutedBy::Editor),
    ("lakefile.toml", ExecutedBy::Editor),
    ("Steepfile", ExecutedBy::Editor),
    ("package.json", ExecutedBy::PackageManager),
    ("pyproject.toml", ExecutedBy::PackageManager),
    ("setup.cfg", ExecutedBy::PackageManager),
    ("setup.py", ExecutedBy::PackageManager),
    ("tox.ini", ExecutedBy::PackageManager),
    ("mix.exs", ExecutedBy::PackageManager),
    ("Podfile", ExecutedBy::PackageManager),
    ("Directory.Packages.props", ExecutedBy::PackageManager),
    ("global.json", ExecutedBy::PackageManager),
    ("pixi.toml", ExecutedBy::PackageManager),
    ("Package.swift", ExecutedBy::PackageManager),
    ("config.nims", ExecutedBy::PackageManager),
    ("deps.edn", ExecutedBy::PackageManager),
    ("project.clj", ExecutedBy::PackageManager),
    ("rebar.config", ExecutedBy::PackageManager),
    ("rebar.config.script", ExecutedBy::PackageManager),
    ("binding.gyp", ExecutedBy::PackageManager),
    ("composer.json", ExecutedBy::PackageManager),
    ("Gemfile", ExecutedBy::PackageManager),
    ("gradle.properties", ExecutedBy::PackageManager),
    ("Directory.Build.props", ExecutedBy::PackageManager),
    ("Directory.Build.targets", ExecutedBy::PackageManager),
    ("GNUmakefile", ExecutedBy::PackageManager),
    (".npmrc", ExecutedBy::PackageManager),
    (".yarnrc.yml", ExecutedBy::PackageManager),
    (".ripgreprc", ExecutedBy::PackageManager),
    (".cargo", ExecutedBy::PackageManager),
    (".yarnrc", ExecutedBy::PackageManager),
    ("bunfig.toml", ExecutedBy::PackageManager),
    ("pnpm-workspace.yaml", ExecutedBy::PackageManager),
    (".bundle", ExecutedBy::PackageManager),
    (".mvn", ExecutedBy::PackageManager),
    (".bazelrc", ExecutedBy::PackageManager),
    ("rust-toolchain", ExecutedBy::PackageManager),
    ("rust-toolchain.toml", ExecutedBy::PackageManager),
    (".claude", ExecutedBy::AgentCli),
    (".codex", ExecutedBy::AgentCli),
    (".mcp.json", ExecutedBy::AgentCli),
    ("mcp.json", ExecutedBy::AgentCli),
    ("opencode.json", ExecutedBy::AgentCli),
    ("opencode.jsonc", ExecutedBy::AgentCli),
    (".opencode", ExecutedBy::AgentCli),
    (".cursor", ExecutedBy::AgentCli),
    (".gemini", ExecutedBy::AgentCli),
    (".ringfence", ExecutedBy::AgentCli),
    (".aider.conf.yml", ExecutedBy::AgentCli),
    (".crush.json", ExecutedBy::AgentCli),
    ("crush.json", ExecutedBy::AgentCli),
    (".amp", ExecutedBy::AgentCli),
    (".continue", ExecutedBy::AgentCli),
    (".junie", ExecutedBy::AgentCli),
    (".kiro", ExecutedBy::AgentCli),
    (".qwen", ExecutedBy::AgentCli),
    (".roo", ExecutedBy::AgentCli),
    (".windsurf", ExecutedBy::AgentCli),
    ("AGENTS.md", ExecutedBy::AgentCli),
    ("CLAUDE.md", ExecutedBy::AgentCli),
    ("GEMINI.md", ExecutedBy::AgentCli),
    ("CLAUDE.local.md", ExecutedBy::AgentCli),
    ("AGENTS.override.md", ExecutedBy::AgentCli),
    (".clinerules", ExecutedBy::AgentCli),
    (".hg", ExecutedBy::Program),
    (".jj", ExecutedBy::Program),
    (".repo", ExecutedBy::Program),
    (".Rprofile", ExecutedBy::Program),
    (".gdbinit", ExecutedBy::Program),
    (".rspec", ExecutedBy::Program),
    ("ansible.cfg", ExecutedBy::Program),
    (".lldbinit", ExecutedBy::Program),
    (".ghci", ExecutedBy::Program),
    (".iex.exs", ExecutedBy::Program),
    (".irbrc", ExecutedBy::Program),
    (".ocamlinit", ExecutedBy::Program),
    (".octaverc", ExecutedBy::Program),
    (".pdbrc", ExecutedBy::Program),
    (".pryrc", ExecutedBy::Program),
    (".autoenv_leave.zsh", ExecutedBy::Shell),
    (".gitlint", ExecutedBy::Git),
    ("captainhook.json", ExecutedBy::Git),
    ("hk.pkl", ExecutedBy::Git),
    (".trunk", ExecutedBy::Git),
    ("rust-project.json", ExecutedBy::Editor),
    (".rust-project.json", ExecutedBy::Editor),
    ("hie.yaml", ExecutedBy::Editor),
    (".lsp", ExecutedBy::Editor),
    ("kls-classpath", ExecutedBy::Editor),
    (".ropeproject", ExecutedBy::Editor),
    (".merlin", ExecutedBy::Editor),
    (".factorypath", ExecutedBy::Editor),
    (".externalToolBuilders", ExecutedBy::Editor),
    ("pylintrc", ExecutedBy::Editor),
    ("pylintrc.toml", ExecutedBy::Editor),
    (".pylintrc.toml", ExecutedBy::Editor),
    ("mypy.ini", ExecutedBy::Editor),
    (".mypy.ini", ExecutedBy::Editor),
    (".rubocop.yml", ExecutedBy::Editor),
    (".formatter.exs", ExecutedBy::Editor),
    ("nx.json", ExecutedBy::PackageManager),
    ("gems.rb", ExecutedBy::PackageManager),
    ("package.yaml", ExecutedBy::PackageManager),
    ("Directory.Build.rsp", ExecutedBy::PackageManager),
    ("local.properties", ExecutedBy::PackageManager),
    (".bazeliskrc", ExecutedBy::PackageManager),
    ("npm-shrinkwrap.json", ExecutedBy::PackageManager),
    ("package-lock.json", ExecutedBy::PackageManager),
    ("yarn.lock", ExecutedBy::PackageManager),
    ("pnpm-lock.yaml", ExecutedBy::PackageManager),
    ("bun.lock", ExecutedBy::PackageManager),
    ("bun.lockb", ExecutedBy::PackageManager),
    ("composer.lock", ExecutedBy::PackageManager),
    ("Gemfile.lock", ExecutedBy::PackageManager),
    ("gems.locked", ExecutedBy::PackageManager),
    (".Renviron", ExecutedBy::Program),
    (".RData", ExecutedBy::Program),
    ("compose.override.yaml", ExecutedBy::Program),
    ("compose.override.yml", ExecutedBy::Program),
    ("docker-compose.override.yaml", ExecutedBy::Program),
    ("docker-compose.override.yml", ExecutedBy::Program),
    (".sl", ExecutedBy::Program),
    ("_darcs", ExecutedBy::Program),
    ("flake.lock", ExecutedBy::Shell),
    ("devenv.lock", ExecutedBy::Shell),
];
/// Names of one program that vary: how they begin without a leading dot, and how they end.
const FAMILIES: &[(&str, &[&str], ExecutedBy)] = &[
    ("lefthook", &[".yml", ".yaml", ".toml", ".json"], ExecutedBy::Git),
    ("simple-git-hooks.", &[""], ExecutedBy::Git),
    ("lintstagedrc", &[""], ExecutedBy::Git),
    ("lint-staged.config.", &[""], ExecutedBy::Git),
    ("eslintrc", &[""], ExecutedBy::Editor),
    ("eslint.config.", &[""], ExecutedBy::Editor),
    ("prettierrc", &[""], ExecutedBy::Editor),
    ("stylelintrc", &[""], ExecutedBy::Editor),
    ("stylelint.config.", &[""], ExecutedBy::Editor),
    ("tailwind.config.", &[""], ExecutedBy::Editor),
    ("commitlintrc", &[""], ExecutedBy::Git),
    ("commitlint.config.", &[""], ExecutedBy::Git),
    ("grumphp.", &["yml", "yaml", "yml.dist", "yaml.dist"], ExecutedBy::Git),
    ("prettier.config.", &[""], ExecutedBy::Editor),
    ("pnp.", &["cjs", "mjs"], ExecutedBy::PackageManager),
    ("mise", &[".toml"], ExecutedBy::Shell),
    ("rtx", &[".toml"], ExecutedBy::Shell),
    ("envrc.", &[""], ExecutedBy::Shell),
    ("pnpmfile.", &[""], ExecutedBy::PackageManager),
    ("", &[".code-workspace", ".sublime-project"], ExecutedBy::Editor),
    ("tsconfig.", &["json"], ExecutedBy::Editor),
    ("phpstan.", &["neon", "neon.dist"], ExecutedBy::Editor),
    ("vitest.workspace.", &[""], ExecutedBy::Editor),
    ("", &[".gemspec", ".nimble"], ExecutedBy::PackageManager),
    ("", &[".csproj.user", ".fsproj.user", ".vbproj.user"], ExecutedBy::PackageManager),
];
/// Modules that `python -m` takes from the directory in which it is started: files and directories of the root with these names.
const PYTHON_MODULES: [&str; 5] = ["pip", "ensurepip", "pipx", "venv", "virtualenv"];
/// Files that make programs execute others beside them even if they are empty: `bin/python` of a virtual environment.
const BY_EXISTENCE: &[&str] = &["pyvenv.cfg"];
/// Directories, with the one above each, whose files are executed whatever their names are.
const PAIRS: &[(&str, &str, ExecutedBy)] = &[
    (".agents", "skills", ExecutedBy::AgentCli),
    (".github", "hooks", ExecutedBy::AgentCli),
    (".yarn", "releases", ExecutedBy::PackageManager),
    (".yarn", "plugins", ExecutedBy::PackageManager),
    ("gradle", "wrapper", ExecutedBy::PackageManager),
];
/// Directories whose files are executed whatever their names are. A link of such a name counts by its own.
const CONTENTS: &[&str] = &[
    ".vscode",
    ".idea",
    ".devcontainer",
    ".zed",
    ".helix",
    ".husky",
    ".githooks",
    ".lefthook",
    ".lefthook-local",
    ".claude",
    ".clinerules",
    ".codex",
    ".opencode",
    ".cursor",
    ".gemini",
    ".ringfence",
    ".vim",
    ".bsp",
    ".run",
    ".fleet",
    ".bundle",
    ".mvn",
    ".amp",
    ".continue",
    ".junie",
    ".kiro",
    ".qwen",
    ".roo",
    ".windsurf",
    ".hg",
    ".jj",
    ".repo",
    ".sl",
    "_darcs",
    ".trunk",
    ".lsp",
    ".ropeproject",
    ".externalToolBuilders",
];

/// What executes a file of a name that belongs to a family.
fn of_family(name: &str) -> Option<ExecutedBy> {
    let bare = name.strip_prefix('.').unwrap_or(name);
    let begins = |begin: &str| bare.get(..begin.len()).is_some_and(|own| own.eq_ignore_ascii_case(begin));
    let ends_with = |rest: &str, end: &str| {
        let from = rest.len().checked_sub(end.len());
        from.and_then(|from| rest.get(from..)).is_some_and(|own| own.eq_ignore_ascii_case(end))
    };
    let fits = |begin: &str, ends: &[&str]| {
        begins(begin) && ends.iter().any(|end| ends_with(&bare[begin.len()..], end))
    };
    FAMILIES.iter().find(|(begin, ends, _)| fits(begin, ends)).map(|(.., by)| *by)
}

/// What executes a file of this path, if anything does. File systems that do not distinguish case find a name in any: so does this.
pub fn executed_by(path: &Path) -> Option<ExecutedBy> {
    let parts: Vec<&OsStr> = path.iter().collect();
    let (last, above) = parts.split_last()?;
    let ends_with = |parts: &[&OsStr], names: &[&str]| {
        let from = parts.len().checked_sub(names.len());
        from.is_some_and(|from| {
            parts[from..].iter().zip(names).all(|(part, name)| part.eq_ignore_ascii_case(name))
        })
    };
    if ends_with(&parts, &[".cargo", "config.toml"]) || ends_with(&parts, &[".cargo", "config"]) {
        return Some(ExecutedBy::PackageManager);
    }
    if parts.iter().any(|part| part.eq_ignore_ascii_case(".git")) {
        return Some(ExecutedBy::Git);
    }
    if ["commondir", "config.worktree", "gitdir"].iter().any(|name| last.eq_ignore_ascii_case(name)) {
        return Some(ExecutedBy::Git);
    }
    // `Makefile` is the file that the user knows to be executed.
    if ends_with(&parts, &["tools", "bazel"]) || *last == "makefile" {
        return Some(ExecutedBy::PackageManager);
    }
    let is_pair = |(outer, inner, _): &&(&str, &str, ExecutedBy)| {
        let is_it =
            |pair: &[&OsStr]| pair[0].eq_ignore_ascii_case(outer) && pair[1].eq_ignore_ascii_case(inner);
        parts.windows(2).any(is_it)
    };
    if let Some((.., by)) = PAIRS.iter().find(is_pair) {
        return Some(*by);
    }
    let is_of_mise = |part: &&OsStr| part.eq_ignore_ascii_case("mise") || part.eq_ignore_ascii_case(".mise");
    if Path::new(last).extension().is_some_and(|end| end.eq_ignore_ascii_case("toml"))
        && above.iter().any(is_of_mise)
    {
        return Some(ExecutedBy::Shell);
    }
    if is_started_module(above, last) {
        return Some(ExecutedBy::PackageManager);
    }
    let known =
        |part: &OsStr| NAMES.iter().find(|(name, _)| part.eq_ignore_ascii_case(name)).map(|(_, by)| *by);
    let inside = above.iter().find(|part| CONTENTS.iter().any(|name| part.eq_ignore_ascii_case(name)));
    let named = || known(last).or_else(|| of_family(last.to_str()?));
    inside.and_then(|part| known(part)).or_else(named).or_else(|| by_shape(above, last))
}

/// Whether a file of the root takes the place of a module that `python -m` starts: `pip.py`, `pip/__main__.py`.
fn is_started_module(above: &[&OsStr], last: &OsStr) -> bool {
    let file = Path::new(last);
    let is_module = |name: &OsStr| PYTHON_MODULES.iter().any(|module| name.eq_ignore_ascii_case(module));
    file.extension().is_some_and(|end| end.eq_ignore_ascii_case("py"))
        && match above {
            [] => file.file_stem().is_some_and(is_module),
            [directory] => {
                is_module(directory)
                    && ["__main__.py", "__init__.py"].iter().any(|name| last.eq_ignore_ascii_case(name))
            }
            _ => false,
        }
}

/// The path by which a file is reported: that of a directory, if its files are reported as one.
pub fn reported_as(path: &Path, by: ExecutedBy) -> (PathBuf, ExecutedBy) {
    group(path, by).unwrap_or_else(|| (path.to_owned(), by))
}

/// What is looked for.
#[derive(Debug, Clone, Copy)]
pub struct Search<'a> {
    /// What tells that a file changed since the run began.
    pub changes: Changes<'a>,
    /// Where directories were then, if that is known.
    pub locations: Option<&'a Locations>,
    /// Whether the run could write git directories that were there before: `.git` of the root is passed over otherwise.
    pub writes_git: bool,
    /// The workspace, if an overlay over it is searched instead.
    pub lower: Option<&'a Directory>,
    /// A directory that no run sees, which is passed over.
    pub unseen: Option<DirectoryId>,
    /// The path of what is searched, to which absolute links in it may lead.
    pub root: &'a Path,
    /// Where the user's home is, if it and the workspace have something in common.
    pub home: Option<HomePlace<'a>>,
    /// When to stop.
    pub deadline: Instant,
}

/// Where a home is, as seen from a directory that is searched.
#[derive(Debug, Clone, Copy)]
pub enum HomePlace<'a> {
    /// At this path below it.
    Below(&'a Path),
    /// Above it, which is at this path from the home.
    Above(&'a Path),
}

impl<'a> HomePlace<'a> {
    /// The place of a home, seen from a root. Both have no links in their paths.
    pub fn of(home: &'a Path, root: &'a Path) -> Option<Self> {
        let below = home.strip_prefix(root).map(HomePlace::Below);
        let above = || root.strip_prefix(home).ok().filter(|root| may_hold_executed(root));
        below.ok().or_else(|| above().map(HomePlace::Above))
    }

    fn executed_by(self, path: &Path) -> Option<ExecutedBy> {
        let is_executed = match self {
            HomePlace::Below(home) => path.strip_prefix(home).is_ok_and(is_executed),
            HomePlace::Above(root) => is_executed(&root.join(path)),
        };
        is_executed.then_some(ExecutedBy::Home)
    }
}

/// What a search has found so far.
#[derive(Default)]
struct Finds {
    files: Vec<Executed>,
    /// Directories that are where they were not, and all below them.
    moved: HashSet<PathBuf>,
    git_directories: Vec<PathBuf>,
    /// Directories that are reported in the place of files in them.
    groups: HashSet<PathBuf>,
    /// Links that may lead to what programs execute.
    links: Vec<PathBuf>,
    /// Virtual environments.
    environments: HashSet<PathBuf>,
    /// The directory that was asked last whether programs are activated in it, and the answer.
    activated: Option<(PathBuf, bool)>,
    /// Directories and files that every user of the machine can write.
    open_to_all: Vec<PathBuf>,
}

impl Finds {
    fn git(&mut self, paths: impl IntoIterator<Item = PathBuf>) {
        self.files.extend(paths.into_iter().map(|path| Executed { path, by: ExecutedBy::Repository }));
    }

    /// Whether a file is in the directory of programs of a virtual environment. One that has lost its mark is known by `activate`.
    fn is_program_of_environment(&mut self, visit: &Visit<'_>) -> bool {
        let Some(programs) = visit.path.parent() else { return false };
        let Some(environment) =
            programs.parent().filter(|_| programs.file_name().is_some_and(is_of_programs))
        else {
            return false;
        };
        if self.environments.contains(environment) {
            return true;
        }
        if let Some((_, is_activated)) = self.activated.as_ref().filter(|(known, _)| known == programs) {
            return *is_activated;
        }
        let is_activated = visit.parent.metadata(Path::new("activate")).is_ok();
        self.activated = Some((programs.to_owned(), is_activated));
        is_activated
    }

    /// The directory that is reported in the place of a file.
    fn group(&self, path: &Path, by: ExecutedBy) -> Option<(PathBuf, ExecutedBy)> {
        if by == ExecutedBy::Home {
            return None;
        }
        let environments = path.ancestors().skip(1).filter(|above| self.environments.contains(*above));
        let environments = environments.filter(|above| !above.as_os_str().is_empty());
        let environments = environments.map(|directory| (directory.to_owned(), ExecutedBy::Shell));
        let all = group(path, by).into_iter().chain(environments);
        all.min_by_key(|(directory, _)| directory.as_os_str().len())
    }

    /// Notes what every user can write, unless a directory around it is noted: that was entered last.
    fn open(&mut self, path: &Path) {
        let is_below = self.open_to_all.last().is_some_and(|last| path.starts_with(last));
        if !is_below && self.open_to_all.len() < MAX_REPORTED {
            self.open_to_all.push(path.to_owned());
        }
    }

    fn report(self, complete: bool) -> Report {
        let Self { mut files, mut git_directories, open_to_all, .. } = self;
        files.sort_by_cached_key(|file| (file.by, file.path.components().count(), file.path.clone()));
        files.dedup();
        let found = files.len();
        let (mut of_name, mut repositories, mut others) = (HashMap::<OsString, usize>::new(), 0, 0);
        files.retain(|file| {
            let (count, most) = match file.by {
                ExecutedBy::Repository => (&mut repositories, MAX_REPORTED),
                _ => {
                    let name = file.path.file_name().unwrap_or_default().to_owned();
                    let named = of_name.entry(name).or_default();
                    *named += 1;
                    (&mut others, if *named > MAX_OF_NAME { 0 } else { MAX_REPORTED })
                }
            };
            let is_kept = *count < most;
            *count += usize::from(is_kept);
            is_kept
        });
        let more = found - files.len();
        let complete = complete && git_directories.len() <= MAX_FOLLOWED;
        git_directories.truncate(MAX_FOLLOWED);
        Report { files, git_directories, more, open_to_all, complete }
    }
}

/// Searches a workspace for what changed since a run began.
pub fn search(workspace: &Directory, search: Search<'_>) -> io::Result<Report> {
    let mut finds = Finds::default();
    let (mut late, mut visits) = (false, 0u32);
    let unvisited = walk_with_directories(workspace, BOUNDS, &mut |step| {
        let visit = match step {
            Step::Directory(path, data) => {
                search.directory(path, data, &mut finds);
                return Next::Enter;
            }
            Step::Name(visit) => visit,
        };
        late = late || (visits.is_multiple_of(DEADLINE_INTERVAL) && Instant::now() > search.deadline);
        visits = visits.wrapping_add(1);
        if late {
            return Next::PassOver;
        }
        search.look(&visit, &mut finds)
    })?;
    let is_followed = LinkSearch { root: workspace, search: &search }.add_targets(&mut finds);
    Ok(finds.report(!late && is_followed && !unvisited.more && unvisited.directories.is_empty()))
}

/// Searches a git directory that a run could write and that is in no workspace: that of a linked worktree or of a submodule.
pub fn search_git_directory(directory: &Directory, search: Search<'_>) -> Report {
    let mut finds = Finds::default();
    let (here, at) = (Path::new("."), Path::new(""));
    let GitParts { changed, directories } = GitSearch { search: &search, from: directory, at }.parts(here);
    finds.git(changed.iter().map(|path| plain(path)));
    finds.git_directories = directories.iter().map(|path| plain(path)).collect();
    finds.report(true)
}

impl Search<'_> {
    fn look(&self, visit: &Visit<'_>, finds: &mut Finds) -> Next {
        let beside = visit.path.parent().unwrap_or(Path::new(""));
        let is_moved = !finds.moved.is_empty() && finds.moved.contains(beside);
        if marks_environment(visit.name) {
            finds.environments.insert(beside.to_owned());
        }
        if is_named(visit, ".git") {
            self.git(visit, is_moved, finds);
            return Next::PassOver;
        }
        if let Some(lower) =
            self.lower.filter(|_| PARTS_OF_BARE.iter().any(|part| visit.name.eq_ignore_ascii_case(part)))
        {
            let is_git = is_git_directory_in_overlay(visit.parent, (lower, beside));
            finds.git(is_git.then(|| beside.join("HEAD")));
        }
        if visit.kind == EntryKind::Directory {
            if self.unseen.is_some_and(|unseen| unseen.inode == visit.inode)
                && visit
                    .parent
                    .metadata(Path::new(visit.name))
                    .is_ok_and(|data| Some(data.id()) == self.unseen)
            {
                return Next::PassOver;
            }
            if is_moved || self.is_new(visit) {
                finds.moved.insert(visit.path.to_owned());
            }
            return Next::Enter;
        }
        if is_named(visit, "HEAD") && self.lower.is_none() && is_git_directory(visit.parent) {
            self.bare(visit, is_moved, finds);
        }
        if visit.kind == EntryKind::Link && finds.links.len() <= MAX_FOLLOWED_LINKS && is_followed(visit.path)
        {
            finds.links.push(visit.path.to_owned());
        }
        self.file(visit, is_moved, finds);
        Next::Enter
    }

    /// A directory that is entered. What an overlay holds is shown with its permissions before it is applied.
    fn directory(&self, path: &Path, data: Metadata, finds: &mut Finds) {
        let was_open = || self.locations.is_some_and(|known| known.was_open(path, data.inode()));
        if self.lower.is_none() && data.is_open_to_all() && self.changes.since.is_before(&data) && !was_open()
        {
            finds.open(path);
        }
    }

    /// A file that is executed by its name.
    fn file(&self, visit: &Visit<'_>, is_moved: bool, finds: &mut Finds) {
        let in_home = || self.home.and_then(|home| home.executed_by(visit.path));
        let listed = executed_by(visit.path);
        let known = listed.filter(|by| *by != ExecutedBy::Unknown);
        let by = known.or_else(in_home);
        let by = by.or_else(|| finds.is_program_of_environment(visit).then_some(ExecutedBy::Shell));
        let Some(by) = by.or(listed) else { return };
        let group = finds.group(visit.path, by);
        if group.as_ref().is_some_and(|(directory, _)| finds.groups.contains(directory)) {
            return;
        }
        let Ok(data) = visit.parent.metadata(Path::new(visit.name)) else { return };
        let is_changed = is_moved || self.changes.include(visit.parent, Path::new(visit.name), &data);
        if !is_changed || is_harmless(visit.parent, visit.name, data) {
            return;
        }
        if self.lower.is_none() && data.is_open_to_all() && self.changes.since.is_before(&data) {
            finds.open(visit.path);
        }
        if let Some((directory, _)) = &group {
            finds.groups.insert(directory.clone());
        }
        let (path, by) = group.unwrap_or_else(|| (visit.path.to_owned(), by));
        finds.files.push(Executed { path, by });
    }

    /// A `.git`. One in the root is what the run works with; of another one it counts whether anything of it changed.
    fn git(&self, visit: &Visit<'_>, is_moved: bool, finds: &mut Finds) {
        let beside = visit.path.parent().unwrap_or(Path::new(""));
        let is_root = beside.as_os_str().is_empty();
        if is_root && !self.writes_git {
            return;
        }
        let is_new = if is_root { self.is_new_root_git(visit) } else { is_moved || self.is_new_git(visit) };
        let parts = match is_new && !self.writes_git {
            true => GitParts::default(),
            false => GitSearch { search: self, from: visit.parent, at: beside }.parts(Path::new(".git")),
        };
        if self.writes_git {
            let directories = parts.directories.iter().map(|path| beside.join(path));
            finds.git_directories.extend(directories.take(MAX_FOLLOWED + 1));
        }
        if is_root && !is_new {
            finds.git(parts.changed);
        } else if (is_new || !parts.changed.is_empty()) && (is_root || !is_empty_directory(visit)) {
            finds.git([visit.path.to_owned()]);
        }
    }

    /// A directory that git takes for a repository without a working tree, by its `HEAD`.
    fn bare(&self, visit: &Visit<'_>, is_moved: bool, finds: &mut Finds) {
        let at = visit.path.parent().unwrap_or(Path::new(""));
        let made = |name: &str| match (self.locations, visit.parent.metadata(Path::new(name))) {
            (Some(locations), Ok(data)) => !locations.contains(&at.join(name), data.inode()),
            (Some(_), Err(_)) => false,
            (None, _) => self.is_changed(visit.parent, name),
        };
        let is_new =
            is_moved || self.is_changed(visit.parent, "HEAD") || ["objects", "refs"].into_iter().any(made);
        let parts = || GitSearch { search: self, from: visit.parent, at }.changed_parts(Path::new(""));
        if is_new || !parts().is_empty() {
            finds.git([visit.path.to_owned()]);
        }
        if self.writes_git {
            finds.git_directories.push(at.to_owned());
        }
    }

    /// Whether a `.git` below the root came to be, or changed itself.
    fn is_new_git(&self, visit: &Visit<'_>) -> bool {
        let is_elsewhere =
            || visit.kind == EntryKind::Directory && self.locations.is_some() && self.is_new(visit);
        self.is_changed(visit.parent, ".git") || is_elsewhere()
    }

    /// Whether a directory is where it was not. Where that is not known, one that changed counts.
    fn is_new(&self, visit: &Visit<'_>) -> bool {
        match self.locations {
            Some(locations) => !locations.contains(visit.path, visit.inode),
            None => self.is_changed(visit.parent, visit.name),
        }
    }

    fn is_changed(&self, directory: &Directory, name: impl AsRef<Path>) -> bool {
        let name = name.as_ref();
        directory.metadata(name).is_ok_and(|data| self.changes.include(directory, name, &data))
    }

    /// Whether a `.git` in the root was not there before, or is a pointer that changed. A directory itself changes with every
    /// command of git.
    fn is_new_root_git(&self, visit: &Visit<'_>) -> bool {
        match visit.kind {
            EntryKind::Directory => self.locations.is_some() && self.is_new(visit),
            _ => self.is_changed(visit.parent, ".git"),
        }
    }
}

/// Whether what is visited is found by a name. Some file systems do not distinguish case.
fn is_named(visit: &Visit<'_>, name: &str) -> bool {
    let is_found = || visit.parent.metadata(Path::new(name)).is_ok_and(|data| data.inode() == visit.inode);
    visit.name == name || (visit.name.eq_ignore_ascii_case(name) && is_found())
}

/// Whether git finds nothing in a directory. Stub directories of other runs are such.
fn is_empty_directory(visit: &Visit<'_>) -> bool {
    let inside = || visit.parent.directory(Path::new(visit.name))?.entries(1);
    visit.kind == EntryKind::Directory && inside().is_ok_and(|names| names.is_empty())
}

/// An empty file names nothing, and neither does an empty object. Stub files are such. One that an overlay removed is gone.
fn is_harmless(directory: &Directory, name: &OsStr, data: Metadata) -> bool {
    match (data.kind(), data.length()) {
        _ if data.is_whiteout() => true,
        (EntryKind::File, 0) => !BY_EXISTENCE.iter().any(|known| name == *known),
        (EntryKind::File, 3) => match directory.read(Path::new(name), 3) {
            Ok(content) => content == b"{}\n",
            // A stub file that was removed just now.
            Err(ReadError::Io(error)) => error.kind() == io::ErrorKind::NotFound,
            Err(_) => false,
        },
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

    use std::hash::RandomState;

    use ringfence_core::locations::Locations;

    use super::{BOUNDS, BeginTime, Changes, Contents, ExecutedBy, Search, executed_by, search};
    use crate::{Directory, EntryKind, Next, walk};

    fn found(make: impl Fn(&Path)) -> Vec<String> {
        found_after(|_| {}, make, false)
    }

    /// What is found of a run that makes something, after something else was there before.
    fn found_after(before: impl Fn(&Path), make: impl Fn(&Path), writes_git: bool) -> Vec<String> {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().canonicalize().unwrap();
        before(&path);
        let directory = Directory::open(&path).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut locations = Locations::new(RandomState::new());
        let noted = walk(&directory, BOUNDS, &mut |visit| {
            if visit.kind == EntryKind::Directory {
                locations.note(visit.path, visit.inode);
            }
            Next::Enter
        });
        noted.unwrap();
        let contents = Contents::default();
        let since = BeginTime { time: later_than(&path), device: directory.id().device };
        make(&path);
        let look_for = Search {
            changes: Changes { since, contents: &contents },
            locations: Some(&locations),
            writes_git,
            lower: None,
            unseen: None,
            root: &path,
            home: None,
            deadline,
        };
        let report = search(&directory, look_for).unwrap();
        assert!(report.complete);
        report.files.iter().map(|file| file.path.display().to_string()).collect()
    }

    #[test]
    fn directories_that_are_opened_to_all_users_are_reported() {
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::tempdir().unwrap();
        let path = root.path().canonicalize().unwrap();
        let open = |name: &str, mode| {
            fs::create_dir_all(path.join(name)).unwrap();
            fs::set_permissions(path.join(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        open("old", 0o777);
        open("closed", 0o755);
        let since = later_than(&path);
        for (name, mode) in [("a", 0o757), ("a/below", 0o777), ("closed/b", 0o777), ("group", 0o775)] {
            open(name, mode);
        }
        open("sticky", 0o1777);
        let directory = Directory::open(&path).unwrap();
        let since = BeginTime { time: since, device: fs::metadata(&path).unwrap().dev() };
        let contents = Contents::default();
        let look_for = |since, locations, lower| Search {
            changes: Changes { since, contents: &contents },
            locations,
            writes_git: false,
            lower,
            unseen: None,
            root: &path,
            home: None,
            deadline: Instant::now() + Duration::from_secs(60),
        };
        let found = |search_for| {
            let mut found = search(&directory, search_for).unwrap().open_to_all;
            found.sort();
            found
        };
        assert_eq!(found(look_for(since, None, None)), ["a", "closed/b"].map(PathBuf::from));
        assert_eq!(found(look_for(since, None, Some(&directory))), [""; 0].map(PathBuf::from));
        // What was open before does not count, whatever changed in it.
        let mut locations = Locations::new(RandomState::new());
        let inode = fs::metadata(path.join("old")).unwrap().ino();
        locations.note_open(Path::new("old"), inode);
        fs::write(path.join("old/x"), "").unwrap();
        let all = ["a", "closed/b", "old"].map(PathBuf::from);
        assert_eq!(found(look_for(since, None, None)), all);
        assert_eq!(found(look_for(since, Some(&locations), None)), all[..2]);
    }

    /// A time of the kernel's clock that is later than every change so far.
    fn later_than(root: &Path) -> (i64, i64) {
        let now = || {
            let marker = tempfile::NamedTempFile::new_in(root.parent().unwrap()).unwrap();
            let data = marker.as_file().metadata().unwrap();
            (data.ctime(), data.ctime_nsec())
        };
        let first = now();
        std::iter::repeat_with(now).find(|time| *time > first).unwrap()
    }

    fn write(root: &Path, name: &str, text: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn names_that_vary_are_executed_by_what_their_family_is() {
        use ExecutedBy::{AgentCli, Editor, Git, PackageManager, Program, Shell};
        for (path, by) in [
            ("lefthook.toml", Some(Git)),
            ("a/.lefthook-local.yml", Some(Git)),
            ("mise.dev.toml", Some(Shell)),
            (".rtx.toml", Some(Shell)),
            (".mise/config.toml", Some(Shell)),
            (".config/mise/conf.d/a.toml", Some(Shell)),
            (".envrc.local", Some(Shell)),
            ("x.sublime-project", Some(Editor)),
            (".vim/coc-settings.json", Some(Editor)),
            (".pnpmfile.mjs", Some(PackageManager)),
            ("tools/bazel", Some(PackageManager)),
            (".kiro/hooks/a", Some(AgentCli)),
            (".hg/hgrc", Some(Program)),
            ("src/.pdbrc", Some(Program)),
            ("src/main.rs", None),
            ("mise/notes.md", None),
            ("bazel", None),
            ("sub/.GIT/config", Some(Git)),
            ("a/.VSCode/tasks.json", Some(Editor)),
            (".Cargo/CONFIG.toml", Some(PackageManager)),
            ("LeftHook.YML", Some(Git)),
            ("claude.md", Some(AgentCli)),
        ] {
            assert_eq!(executed_by(Path::new(path)), by, "{path}");
        }
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
        assert_eq!(names.len(), 2 + super::MAX_OF_NAME);
        // Of git's own kind, and of many names.
        let names = found(|root| {
            for number in 0..60 {
                write(root, &format!("v/{number}/.pre-commit-config.yaml"), "repos: []");
                write(root, &format!(".run/{number}.xml"), "x");
            }
            write(root, "v/deep/src/lib/a/.git/config", "[core]\n");
            write(root, "v/deep/src/lib/b/.git", "gitdir: ../x\n");
            ["HEAD", "objects/x", "refs/x"]
                .iter()
                .for_each(|name| write(root, &format!("v/deep/c/{name}"), "x"));
        });
        assert_eq!(names[..3], ["v/deep/c/HEAD", "v/deep/src/lib/a/.git", "v/deep/src/lib/b/.git"]);
        assert_eq!(names.len(), 3 + super::MAX_REPORTED);
    }

    #[test]
    fn empty_file_whose_existence_matters_is_found() {
        let names = found(|root| {
            write(root, ".venv/bin/python", "#!/bin/sh\n");
            write(root, ".venv/pyvenv.cfg", "");
            write(root, "package.json", "");
        });
        assert_eq!(names, [".venv"]);
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
    fn what_a_moved_directory_takes_along_is_found_and_what_stays_is_not() {
        let before = |root: &Path| {
            for name in
                ["pkg/vsc/tasks.json", "src/package.json", "src/.vscode/tasks.json", "repo/x/package.json"]
            {
                write(root, name, "{\"tasks\": []}");
            }
            write(root, "repo/x/.git/config", "[core]\n");
        };
        type Run = fn(&Path);
        let runs: [(Run, &[&str]); 4] = [
            (
                |root| fs::rename(root.join("pkg/vsc"), root.join("pkg/.vscode")).unwrap(),
                &["pkg/.vscode/tasks.json"],
            ),
            (
                |root| fs::rename(root.join("repo"), root.join("src/new")).unwrap(),
                &["src/new/x/.git", "src/new/x/package.json"],
            ),
            // Of the name of another that was there before.
            (
                |root| {
                    fs::rename(root.join("src"), root.join("old")).unwrap();
                    fs::rename(root.join("repo"), root.join("src")).unwrap();
                },
                &["src/x/.git", "old/.vscode/tasks.json", "old/package.json", "src/x/package.json"],
            ),
            (
                |root| {
                    for name in ["main.rs", "src/main.rs", "src/.vscode/new", "made/x"] {
                        write(root, name, "");
                    }
                    fs::rename(root.join("src/main.rs"), root.join("src/lib.rs")).unwrap();
                },
                &[],
            ),
        ];
        for (run, expected) in runs {
            assert_eq!(found_after(before, run, false), expected);
        }
    }

    #[test]
    fn what_git_executes_is_found_by_its_own_changes() {
        let before = |root: &Path| {
            let deep = ".git/modules/libs/m/modules/n";
            for directory in [
                ".git",
                ".git/modules/m",
                ".git/modules/libs/m",
                deep,
                ".git/worktrees/w",
                "bare",
                "sub/.git",
            ] {
                for name in ["config", "hooks/pre-commit", "hooks/x.sample", "objects/x", "refs/x", "HEAD"] {
                    write(root, &format!("{directory}/{name}"), "old");
                }
            }
        };
        for (changed, direct, expected) in [
            (".git/config", true, Some(".git/config")),
            (".git/hooks/pre-commit", true, Some(".git/hooks/pre-commit")),
            (".git/modules/m/config", true, Some(".git/modules/m/config")),
            (".git/modules/libs/m/hooks/pre-commit", true, Some(".git/modules/libs/m/hooks/pre-commit")),
            (".git/modules/libs/m/modules/n/config", true, Some(".git/modules/libs/m/modules/n/config")),
            (".git/worktrees/w/config.worktree", true, Some(".git/worktrees/w/config.worktree")),
            (".git/worktrees/w/HEAD", true, None),
            (".git/hooks/pre-commit", false, None),
            (".git/objects/y", true, None),
            // It is none that git understands.
            (".git/index", true, Some(".git/index")),
            (".git/index", false, None),
            (".git/ORIG_HEAD", true, None),
            (".git/unknown", true, Some(".git/unknown")),
            (".git/rebase-merge/git-rebase-todo", true, Some(".git/rebase-merge")),
            (".git/sequencer/todo", true, Some(".git/sequencer")),
            (".git/info/attributes", true, Some(".git/info/attributes")),
            (".git/info/exclude", true, None),
            (".git/remotes/origin", true, Some(".git/remotes")),
            (".git/hooks/x.sample", true, None),
            ("bare/hooks/pre-commit", false, Some("bare/HEAD")),
            ("sub/.git/hooks/pre-commit", false, Some("sub/.git")),
        ] {
            let names = found_after(before, |root| write(root, changed, "evil"), direct);
            assert_eq!(names, Vec::from_iter(expected), "{changed}");
        }
        let made = found_after(|_| {}, |root| write(root, ".git/config", "evil"), true);
        assert_eq!(made, [".git"]);
    }

    #[test]
    fn git_directories_below_what_looks_like_one_are_found() {
        let before = |root: &Path| {
            for directory in [".git", ".git/modules/libs/foo", ".git/modules/libs/refs/bar", "sub/.git"] {
                for name in ["config", "objects/x", "refs/x", "HEAD"] {
                    write(root, &format!("{directory}/{name}"), "old");
                }
            }
        };
        let plant = |root: &Path, names: &[&str]| {
            names.iter().for_each(|name| write(root, &format!(".git/modules/libs/{name}"), "evil"));
        };
        for changed in ["foo/config", "refs/bar/config"] {
            let names =
                found_after(before, |root| plant(root, &["HEAD", "objects/x", "refs/x", changed]), true);
            let changed = format!(".git/modules/libs/{changed}");
            assert_eq!(names, [".git/modules/libs/HEAD".to_owned(), changed]);
        }
        // By an earlier run.
        let planted = |root: &Path| {
            before(root);
            plant(root, &["HEAD", "objects/x", "refs/x"]);
        };
        let names = found_after(planted, |root| plant(root, &["foo/config"]), true);
        assert_eq!(names, [".git/modules/libs/foo/config"]);
        let moved = |root: &Path| {
            fs::rename(root.join(".git/modules/libs/foo"), root.join(".git/modules/new")).unwrap();
        };
        assert_eq!(found_after(before, moved, true), [".git/modules/new"]);
    }

    #[test]
    fn links_in_place_of_directories_are_found() {
        let names = found(|root| {
            for name in [".vscode", ".cargo", ".opencode", "plain"] {
                symlink("/elsewhere", root.join(name)).unwrap();
            }
        });
        assert_eq!(names, [".vscode", ".opencode", ".cargo"]);
    }

    #[test]
    fn targets_of_listed_links_are_found_by_the_names_of_the_links() {
        let before = |root: &Path| {
            for name in ["vsc/tasks.json", "claude/x", "env", "mcp", "pj"] {
                write(root, &format!("conf/{name}"), "{\"tasks\": []}");
            }
            write(root, "gh/hooks/x", "x");
            for (link, target) in [
                (".vscode", "conf/vsc"),
                (".claude", "conf/way"),
                ("conf/way", "claude"),
                (".envrc", "conf/env"),
                ("package.json", "./conf/../conf/pj"),
                ("sub/.github", "../gh"),
                (".fleet", "../outside"),
                (".idea", ".idea"),
                (".helix", "missing"),
            ] {
                fs::create_dir_all(root.join(link).parent().unwrap()).unwrap();
                symlink(target, root.join(link)).unwrap();
            }
            symlink(root.join("conf/mcp"), root.join(".mcp.json")).unwrap();
        };
        for changed in [
            "conf/vsc/tasks.json",
            "conf/vsc/deep/new.json",
            "conf/claude/x",
            "conf/env",
            "conf/mcp",
            "conf/pj",
            "gh/hooks/x",
        ] {
            assert_eq!(found_after(before, |root| write(root, changed, "evil"), false), [changed]);
        }
        // A link on the way leads elsewhere.
        let turn = |root: &Path| {
            fs::remove_file(root.join("conf/way")).unwrap();
            symlink("../gh", root.join("conf/way")).unwrap();
        };
        assert_eq!(found_after(before, turn, false), ["gh"]);
        // Another directory takes the place of one on the way.
        let swap = |root: &Path| {
            fs::rename(root.join("conf"), root.join("old")).unwrap();
            fs::rename(root.join("gh"), root.join("conf")).unwrap();
            fs::rename(root.join("conf/hooks"), root.join("conf/vsc")).unwrap();
        };
        assert_eq!(found_after(before, swap, false), ["conf/vsc/x"]);
        let harmless = |root: &Path| {
            ["conf/other", "outside", "gh/x"].iter().for_each(|name| write(root, name, "x"));
        };
        assert!(found_after(before, harmless, false).is_empty());
    }

    #[test]
    fn directories_of_tools_are_reported_as_one() {
        let before = |root: &Path| {
            let packages = ".venv/lib/python3/site-packages/a.pth";
            for name in [
                ".venv/bin/activate",
                ".venv/bin/pip",
                packages,
                ".venv/pyvenv.cfg",
                "env/pyvenv.cfg",
                "sub/any name/pyvenv.cfg",
                "conda/conda-meta/history",
                "unmarked/bin/activate",
            ] {
                write(root, name, "old");
            }
        };
        for harmless in
            ["bin/ls", "env/share/doc", "node_modules/a/lib/x.js", ".pytest_cache/v/x", ".next/a.js"]
        {
            assert!(found_after(before, |root| write(root, harmless, "x"), false).is_empty(), "{harmless}");
        }
        for (changed, expected) in [
            (".venv/bin/activate", ".venv"),
            (".venv/lib/python3/site-packages/a.pth", ".venv"),
            ("env/bin/ls", "env"),
            ("sub/any name/Scripts/python.exe", "sub/any name"),
            ("conda/bin/python", "conda"),
            ("unmarked/bin/ls", "unmarked/bin/ls"),
            ("node_modules/.bin/eslint", "node_modules"),
            ("node_modules/@a/b/bin/b.js", "node_modules"),
            (".ctags.d/x.ctags", ".ctags.d"),
            ("sub/.newtool/deep/x", "sub/.newtool"),
            (".direnv/flake-profile-1.rc", ".direnv"),
            (".direnv/bin/x", ".direnv"),
            ("own/bin/activate.fish", "own/bin/activate.fish"),
            ("own/lib/python3/site-packages/sitecustomize.py", "own/lib/python3/site-packages"),
        ] {
            assert_eq!(found_after(before, |root| write(root, changed, "evil"), false), [expected]);
        }
    }

    #[test]
    fn ordinary_installations_and_builds_report_a_few_lines() {
        let install = |root: &Path| {
            for number in 0..30 {
                for name in ["package.json", ".eslintrc", ".npmignore", "vite.config.js", ".travis.yml"] {
                    write(root, &format!("node_modules/{number}/{name}"), "x");
                    write(root, &format!(".venv/lib/python3/site-packages/{number}/{name}"), "x");
                }
                write(root, &format!("target/debug/.fingerprint/{number}/x.json"), "x");
                write(root, &format!("target/debug/{number}/.cargo-lock"), "x");
            }
            for name in ["package-lock.json", "package.json", "Cargo.lock", ".venv/bin/x"] {
                write(root, name, "x");
            }
            write(root, "target/.rustc_info.json", "x");
            write(root, "node_modules/.package-lock.json", "x");
        };
        assert_eq!(found(install), [".venv", "node_modules", "package-lock.json", "package.json"]);
        let nested = |root: &Path| write(root, "node_modules/x/.git/config", "[core]\n");
        assert_eq!(found(nested), ["node_modules/x/.git"]);
    }

    #[test]
    fn files_that_no_list_names_are_judged_by_their_shapes() {
        for path in
            [".newtoolrc", "newtoolrc", ".newtool.json", "a/vite.config.ts", ".toolrc.d", "sub/.newtool"]
        {
            assert_eq!(executed_by(Path::new(path)), Some(ExecutedBy::Unknown), "{path}");
        }
        for path in [
            "src",
            "lib/src",
            ".gitignore",
            ".dockerignore",
            ".env.example",
            ".bash_history",
            ".x.swp",
            "app.config.json",
            "Cargo.lock",
            "target/.rustc_info.json",
            "vendor/a/.newtoolrc",
            "node_modules/a/.newtoolrc",
            "a.rc",
        ] {
            assert_eq!(executed_by(Path::new(path)), None, "{path}");
        }
    }

    #[test]
    fn paths_are_judged_by_their_names() {
        assert_eq!(executed_by(Path::new("x/.git/hooks/pre-commit")), Some(ExecutedBy::Git));
        assert_eq!(executed_by(&PathBuf::from(".claude/settings.json")), Some(ExecutedBy::AgentCli));
        for path in [
            ".opencode/plugin/x.js",
            "opencode.jsonc",
            "lefthook-local.yml",
            ".lefthook.yml",
            "lefthook.yaml",
            ".lefthook/pre-commit/x.sh",
            ".overcommit.yml",
            "a/.zed/tasks.json",
            ".helix/languages.toml",
            ".cursor/mcp.json",
            ".gemini/settings.json",
            "mise.local.toml",
            ".config/mise/config.toml",
            ".tool-versions",
            ".nvimrc",
            ".lazy.lua",
            "rust-toolchain.toml",
            "rust-toolchain",
            "binding.gyp",
            "GNUmakefile",
            ".yarn/releases/yarn.cjs",
            ".pnp.cjs",
            "gradle/wrapper/gradle-wrapper.properties",
            "eslint.config.mjs",
            ".eslintrc",
            ".prettierrc.js",
            ".simple-git-hooks.json",
            ".lintstagedrc.js",
            ".clinerules/hooks/x",
            ".agents/skills/x/SKILL.md",
            ".github/hooks/x.json",
            "any.code-workspace",
            ".dir-locals-2.el",
            ".cargo",
            ".cargo/config.toml",
            "npm-shrinkwrap.json",
            "rust-project.json",
            ".rust-project.json",
            "hie.yaml",
            ".lsp/config.edn",
            "kls-classpath",
            ".ropeproject/config.py",
            ".merlin",
            ".factorypath",
            ".externalToolBuilders/x.launch",
            "pylintrc",
            "mypy.ini",
            ".prettierrc",
            ".prettierrc.yaml",
            ".stylelintrc.json",
            "tailwind.config.ts",
            ".rubocop.yml",
            ".formatter.exs",
            "nx.json",
            "commitlint.config.js",
            ".gitlint",
            "captainhook.json",
            "grumphp.yml",
            "hk.pkl",
            ".trunk/trunk.yaml",
            ".Renviron",
            ".RData",
            "gems.rb",
            "package.yaml",
            "x.csproj.user",
            "Directory.Build.rsp",
            "local.properties",
            ".bazeliskrc",
            "compose.override.yaml",
            ".sl/config",
            "_darcs/prefs/defaults",
            ".autoenv_leave.zsh",
        ] {
            assert!(executed_by(Path::new(path)).is_some(), "{path}");
        }
        for path in
            ["build.rs", "CMakeLists.txt", "build.gradle.kts", "conftest.py", ".github/workflows/x.yml"]
        {
            assert_eq!(executed_by(Path::new(path)), None, "{path}");
        }
    }

    #[test]
    fn names_of_package_managers_and_directories_are_judged() {
        for path in [
            "pyproject.toml",
            "setup.cfg",
            "setup.py",
            "tox.ini",
            "mix.exs",
            "a.gemspec",
            "Podfile",
            "Directory.Packages.props",
            "global.json",
            "tsconfig.json",
            "tsconfig.base.json",
            "devbox.json",
            "devenv.yaml",
            "pixi.toml",
            "Package.swift",
            "build.zig",
            "lakefile.lean",
            "config.nims",
            "a.nimble",
            "deps.edn",
            "project.clj",
            "rebar.config",
            "Steepfile",
            "phpstan.neon",
            "phpstan.neon.dist",
            "vitest.workspace.ts",
            "mcp.json",
            "pip.py",
            "pip/__main__.py",
            ".env.leave",
            ".node-version",
            ".config/other",
            ".cargo/audit.toml",
            ".ctags.d/x.ctags",
        ] {
            assert!(executed_by(Path::new(path)).is_some(), "{path}");
        }
        for path in
            ["src/lib.rs", "Makefile", "sub/pip.py", "pip/utils.py", "a/b/pip/__main__.py", ".cache/x"]
        {
            assert_eq!(executed_by(Path::new(path)), None, "{path}");
        }
    }
}
