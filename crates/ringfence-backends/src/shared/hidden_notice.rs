//! The notice that names files of the workspace that a run does not see.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use ringfence_core::plan::Request;
use ringfence_core::text::escaped;

use super::survey::Survey;

/// Files that are named; all others are counted.
const MAX_NAMED: usize = 3;
/// Characters of a name that are shown.
const MAX_NAME_CHARS: usize = 80;

/// What a user should know of the workspace, with the files that are hidden in it, and all that is hidden. Directories have notices of
/// their own.
pub(crate) fn notices(survey: Survey, request: &Request) -> (Vec<String>, BTreeSet<(PathBuf, bool)>) {
    let workspace = request.workspace.host().as_path();
    let files = survey.hidden.iter().filter(|(_, directory)| !directory);
    let hidden = notice(files.filter_map(|(path, _)| path.strip_prefix(workspace).ok()));
    (hidden.into_iter().chain(survey.notices).collect(), survey.hidden)
}

fn notice<'a>(files: impl Iterator<Item = &'a Path>) -> Option<String> {
    let mut files: Vec<&Path> = files.collect();
    // Those that are nearest to the root are known best.
    files.sort_by_key(|path| path.components().count());
    let named: Vec<String> = files.iter().take(MAX_NAMED).map(|path| short(path)).collect();
    let more = match files.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!named.is_empty()).then(|| format!("hidden from the run: {}{more}", named.join(", ")))
}

fn short(path: &Path) -> String {
    let name = escaped(&path.display().to_string());
    let short: String = name.chars().take(MAX_NAME_CHARS).collect();
    if short.len() < name.len() { format!("{short}…") } else { name }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{MAX_NAME_CHARS, notice};

    fn of(files: &[&str]) -> Option<String> {
        notice(files.iter().map(Path::new))
    }

    #[test]
    fn few_files_are_named_and_the_others_counted() {
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[".env"]).unwrap(), "hidden from the run: .env");
        let many = of(&["a/b/.env", "a/.env", ".env", "b/.env", "c/d/.env"]).unwrap();
        assert_eq!(many, "hidden from the run: .env, a/.env, b/.env and 2 more");
    }

    #[test]
    fn names_are_short_and_steer_nothing() {
        let text = of(&[&format!("{}\u{1b}[2J\n.pem", "x".repeat(500))]).unwrap();
        assert!(text.chars().count() < MAX_NAME_CHARS + 40 && !text.contains(['\u{1b}', '\n']), "{text}");
    }
}
