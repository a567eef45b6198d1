//! Files that no list names and that look like what programs take commands from, and directories that are reported as one.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::ExecutedBy;

/// Names that look so and do no harm, or that ordinary work writes often.
const HARMLESS: &[&str] = &[
    ".gitignore",
    ".gitattributes",
    ".gitkeep",
    ".git-blame-ignore-revs",
    ".keep",
    ".mailmap",
    ".editorconfig",
    ".nojekyll",
    ".coverage",
    ".eslintcache",
    ".stylelintcache",
    ".package-lock.json",
    ".yarn-integrity",
    ".yarn-state.yml",
    ".modules.yaml",
    ".rustc_info.json",
    ".cargo-lock",
    ".cargo-ok",
    ".crates.toml",
    ".crates2.json",
    ".buildinfo",
    ".DS_Store",
    ".directory",
    ".hushlogin",
    ".lesshst",
    ".viminfo",
    ".zcompdump",
    ".travis.yml",
    ".gitlab-ci.yml",
    ".codecov.yml",
    ".readthedocs.yaml",
];
/// How such names begin, and how they end.
const HARMLESS_BEGINNINGS: &[&str] =
    &[".env.", ".nfs", ".fuse_hidden", ".#", "._", ".~", ".coverage.", ".goutputstream-", ".ringfence-"];
const HARMLESS_ENDINGS: &[&str] =
    &["ignore", "_history", ".swp", ".swo", ".swn", "~", ".tmp", ".lock", ".log"];
/// Directories in which tools write files of all names, and in which nobody works.
const OF_TOOLS: &[&str] =
    &["node_modules", "target", "vendor", "dist", "build", "out", "__pycache__", "site-packages", ".cache"];
/// Directories with a leading dot in which tools keep what they can make again, or that only servers read.
const HARMLESS_DIRECTORIES: &[&str] = &[
    ".cache",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
    ".hypothesis",
    ".ipynb_checkpoints",
    ".nyc_output",
    ".next",
    ".nuxt",
    ".output",
    ".turbo",
    ".nx",
    ".vite",
    ".parcel-cache",
    ".sass-cache",
    ".svelte-kit",
    ".angular",
    ".astro",
    ".docusaurus",
    ".expo",
    ".dart_tool",
    ".gradle",
    ".kotlin",
    ".build",
    ".fingerprint",
    ".stack-work",
    ".Trash",
    ".github",
    ".gitlab",
    ".gitea",
    ".forgejo",
    ".circleci",
    ".buildkite",
    ".changeset",
];
/// Endings of configuration that is a program.
const PROGRAMS: &[&str] = &["js", "cjs", "mjs", "ts", "cts", "mts", "lua", "py", "rb", "exs"];
/// Directories that are reported in the place of what is executed in them.
const GROUPS: &[(&str, ExecutedBy)] = &[
    ("node_modules", ExecutedBy::PackageManager),
    ("site-packages", ExecutedBy::Program),
    (".direnv", ExecutedBy::Shell),
    (".venv", ExecutedBy::Shell),
    ("venv", ExecutedBy::Shell),
];
/// Names of virtual environments, and directories of programs in them.
const ENVIRONMENTS: &[&str] = &[".direnv", ".venv", "venv"];
const PROGRAM_DIRECTORIES: &[&str] = &["bin", "Scripts"];

fn is_one_of(name: &OsStr, names: &[&str]) -> bool {
    names.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// What executes a file that no list names.
pub(super) fn by_shape(above: &[&OsStr], last: &OsStr) -> Option<ExecutedBy> {
    let name = last.to_str()?;
    if let Some(by) = of_environment(above, name) {
        return Some(by);
    }
    if above.iter().any(|part| is_one_of(part, OF_TOOLS)) || is_harmless(name) {
        return None;
    }
    let is_rc = name.len() > 3 && name.ends_with("rc") && !name.contains('.') && name != "src";
    let is_in_unknown = above.iter().any(|part| is_unknown_directory(part));
    let is_one = is_in_unknown || name.starts_with('.') || is_rc || is_program_of_configuration(name);
    is_one.then_some(ExecutedBy::Unknown)
}

/// Whether a program may take commands from files of a directory, whatever their names are: as `ctags` does in `.ctags.d`.
fn is_unknown_directory(name: &OsStr) -> bool {
    let begins = |begin: &&str| name.as_encoded_bytes().starts_with(begin.as_bytes());
    name.as_encoded_bytes().starts_with(b".")
        && !is_one_of(name, HARMLESS_DIRECTORIES)
        && !HARMLESS_BEGINNINGS.iter().any(begins)
}

fn is_harmless(name: &str) -> bool {
    HARMLESS.iter().any(|known| name.eq_ignore_ascii_case(known))
        || HARMLESS_BEGINNINGS.iter().any(|begin| name.starts_with(begin))
        || HARMLESS_ENDINGS.iter().any(|end| name.ends_with(end))
}

/// As `vite.config.ts` is.
fn is_program_of_configuration(name: &str) -> bool {
    let parts = name.rsplit_once('.').and_then(|(rest, end)| Some((rest.rsplit_once('.')?.1, end)));
    parts.is_some_and(|(kind, end)| kind == "config" && PROGRAMS.contains(&end))
}

/// Programs that entering a directory puts before others, and files that Python executes as it starts.
fn of_environment(above: &[&OsStr], name: &str) -> Option<ExecutedBy> {
    let is_in_programs = above.last().is_some_and(|part| is_one_of(part, PROGRAM_DIRECTORIES));
    let is_environment = above.iter().any(|part| is_one_of(part, ENVIRONMENTS));
    let is_directly_in_direnv = above.last().is_some_and(|part| part.eq_ignore_ascii_case(".direnv"));
    let is_activation =
        name.get(.."activate".len()).is_some_and(|begin| begin.eq_ignore_ascii_case("activate"));
    if is_directly_in_direnv || (is_in_programs && (is_environment || is_activation)) {
        return Some(ExecutedBy::Shell);
    }
    let of_packages = above.iter().rev().skip(1).any(|part| part.eq_ignore_ascii_case("node_modules"));
    if of_packages && above.last().is_some_and(|part| is_one_of(part, &["bin", ".bin"])) {
        return Some(ExecutedBy::PackageManager);
    }
    let is_start = name.ends_with(".pth") || matches!(name, "sitecustomize.py" | "usercustomize.py");
    let is_installed = above.iter().any(|part| is_one_of(part, &["site-packages", "dist-packages"]));
    (is_start && is_installed).then_some(ExecutedBy::Program)
}

/// Whether the programs of a virtual environment are in a directory.
pub(super) fn is_of_programs(name: &OsStr) -> bool {
    is_one_of(name, PROGRAM_DIRECTORIES)
}

/// Whether a directory that holds this name is a virtual environment, of Python or of conda.
pub(super) fn marks_environment(name: &OsStr) -> bool {
    is_one_of(name, &["pyvenv.cfg", "conda-meta"])
}

/// The outermost directory that is reported in the place of a path, and what executes files in it.
pub(super) fn group(path: &Path, by: ExecutedBy) -> Option<(PathBuf, ExecutedBy)> {
    let mut directory = PathBuf::new();
    for part in path.parent()?.iter() {
        directory.push(part);
        if let Some((_, by)) = GROUPS.iter().find(|(name, _)| part.eq_ignore_ascii_case(name)) {
            return Some((directory, *by));
        }
        if by == ExecutedBy::Unknown && is_unknown_directory(part) {
            return Some((directory, by));
        }
    }
    None
}
