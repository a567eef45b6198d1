//! Entries of an index, read without git, which may have been written by a run.

use std::path::Path;

use super::config;
use super::repository::MAX_CONFIG_BYTES;
use crate::{Directory, EntryKind};

/// Most bytes of indexes that are read for one purpose, unless it has another budget.
pub const INDEX_BUDGET_BYTES: u64 = 64 << 20;
/// Most bytes that the paths of all entries take, whole: version 4 writes only how each differs from the one before.
const MAX_PATHS_BYTES: usize = 128 << 20;
/// Most parts of a split index, of which git removes those that it no longer needs after two weeks.
const MAX_SHARED: usize = 64;
/// Most names of a git directory that are searched for them.
const MAX_LISTED: usize = 10_000;
/// Longest path of an entry that is kept, and that is imported.
pub(super) const MAX_PATH_BYTES: usize = 4096;
/// The mode of a gitlink: the commit of a submodule.
pub(super) const GITLINK: u32 = 0o160_000;
/// Bytes of an entry before the id of its object, and where its mode is.
const STAT_BYTES: usize = 40;
const MODE_OFFSET: usize = 24;
/// The flag of an entry that has more flags.
const EXTENDED: u16 = 0x4000;

/// An entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexedPath {
    /// The type and the permissions, as git keeps them.
    pub mode: u32,
    /// The path from the working tree, in bytes.
    pub path: Vec<u8>,
}

impl IndexedPath {
    /// Whether git could check it out within the working tree, and not into a git directory.
    pub fn is_sound(&self) -> bool {
        matches!(self.mode, 0o100_644 | 0o100_755 | 0o120_000 | 0o160_000 | 0o040_000)
            && is_sound_path(&self.path)
    }
}

/// Whether a path leads below the working tree and into no git directory.
pub(super) fn is_sound_path(path: &[u8]) -> bool {
    // A directory of a sparse index ends with a slash.
    let path = path.strip_suffix(b"/").unwrap_or(path);
    let mut parts = path.split(|byte| *byte == b'/');
    parts.all(|part| !matches!(part, b"" | b"." | b"..") && !is_git_name(part))
}

/// Whether some file system takes a name for `.git`.
fn is_git_name(name: &[u8]) -> bool {
    let text: String = String::from_utf8_lossy(name).chars().filter(char::is_ascii).collect();
    let text = text.trim_end_matches([' ', '.']).to_ascii_lowercase();
    text == ".git" || text == "git~1" || text.starts_with(".git:")
}

/// The entries of the index of a git directory and of its parts. `common` has its configuration. `None` is an index that cannot be
/// understood or is too long, or that has an entry whose path is longer than git can check out.
/// What is read is taken from the budget.
pub fn indexed_paths(own: &Directory, common: &Directory, budget: &mut u64) -> Option<Vec<IndexedPath>> {
    let entries = entries(own, common, budget, |_| true)?;
    entries.iter().all(|entry| entry.path.len() <= MAX_PATH_BYTES).then_some(entries)
}

/// The entries whose mode is wanted, with the first [`MAX_PATH_BYTES`] bytes of their paths and one more.
fn entries(
    own: &Directory,
    common: &Directory,
    budget: &mut u64,
    is_wanted: fn(u32) -> bool,
) -> Option<Vec<IndexedPath>> {
    let config = common.read(Path::new("config"), MAX_CONFIG_BYTES).unwrap_or_default();
    let sha256 =
        config::values(&config, "extensions", "objectformat").iter().any(|format| format == "sha256");
    let mut found = Vec::new();
    let mut left = MAX_PATHS_BYTES;
    match own.read(Path::new("index"), *budget) {
        Ok(content) => {
            *budget = budget.saturating_sub(content.len() as u64);
            parse(&content, sha256, is_wanted, (&mut found, &mut left))?;
        }
        Err(error) if error.is_missing() => return Some(found),
        Err(_) => return None,
    }
    let listed = own.entries(MAX_LISTED).ok()?.into_iter().filter(|entry| entry.kind == EntryKind::File);
    let shared =
        listed.filter(|entry| entry.name.to_str().is_some_and(|name| name.starts_with("sharedindex.")));
    let shared: Vec<_> = shared.take(MAX_SHARED + 1).collect();
    if shared.len() > MAX_SHARED {
        return None;
    }
    for part in shared {
        let content = own.read(Path::new(&part.name), *budget).ok()?;
        *budget = budget.saturating_sub(content.len() as u64);
        parse(&content, sha256, is_wanted, (&mut found, &mut left))?;
    }
    Some(found)
}

/// Parses the entries of versions 2 to 4. Of a path no more is kept than can be wanted.
fn parse(
    content: &[u8],
    sha256: bool,
    is_wanted: fn(u32) -> bool,
    (entries, left): (&mut Vec<IndexedPath>, &mut usize),
) -> Option<()> {
    let word = |at: usize| Some(u32::from_be_bytes(content.get(at..at + 4)?.try_into().ok()?));
    let version = word(4)?;
    if !content.starts_with(b"DIRC") || !(2..=4).contains(&version) {
        return None;
    }
    let id_bytes = if sha256 { 32 } else { 20 };
    // The path of the last entry, as far as it is kept, and how long it is.
    let (mut path, mut whole_length) = (Vec::new(), 0usize);
    let mut at = 12;
    for _ in 0..word(8)? {
        let flags_at = at + STAT_BYTES + id_bytes;
        let flags = u16::from_be_bytes(content.get(flags_at..flags_at + 2)?.try_into().ok()?);
        let mut name_at = flags_at + if flags & EXTENDED == 0 { 2 } else { 4 };
        let mut shared = 0;
        if version == 4 {
            let (dropped, length) = variable_width(content.get(name_at..)?)?;
            shared = whole_length.checked_sub(dropped)?;
            name_at += length;
        }
        let rest = content.get(name_at..)?;
        let length = rest.iter().position(|byte| *byte == 0)?;
        path.truncate(shared);
        let room = (MAX_PATH_BYTES + 1).saturating_sub(shared);
        path.extend_from_slice(&rest[..length.min(room)]);
        whole_length = shared + length;
        let end = name_at + length;
        let next = match version {
            4 => end + 1,
            // Entries are padded to eight bytes, with one zero at least.
            _ => at + ((end - at) / 8 + 1) * 8,
        };
        let mode = word(at + MODE_OFFSET)?;
        if is_wanted(mode) {
            *left = left.checked_sub(size_of::<IndexedPath>() + path.len())?;
            entries.push(IndexedPath { mode, path: path.clone() });
        }
        at = next;
    }
    Some(())
}

/// A number of variable width as git writes it, and how many bytes it takes.
fn variable_width(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut value = 0usize;
    for (place, byte) in bytes.iter().take(6).enumerate() {
        value = value
            .checked_add(usize::from(place > 0))?
            .checked_mul(128)?
            .checked_add(usize::from(byte & 127))?;
        if byte & 128 == 0 {
            return Some((value, place + 1));
        }
    }
    None
}

/// Directories of submodules that the index of a working tree names, from the working tree, whatever other entries it has. `None` is
/// an index of which they are not known. What is read is taken from the budget.
pub fn submodule_paths(own: &Directory, common: &Directory, budget: &mut u64) -> Option<Vec<Vec<u8>>> {
    let entries = entries(own, common, budget, |mode| mode == GITLINK)?.into_iter();
    let entries = entries.filter(|entry| entry.path.len() <= MAX_PATH_BYTES && entry.is_sound());
    Some(entries.map(|entry| entry.path).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests run git")]
mod tests {
    use std::process::Command;

    use super::{INDEX_BUDGET_BYTES, indexed_paths, is_sound_path, submodule_paths};

    fn budget() -> u64 {
        INDEX_BUDGET_BYTES
    }

    use crate::Directory;

    #[test]
    fn index_of_any_version_is_read_as_git_reads_it() {
        for (format, version, split) in [
            ("sha1", 2, false),
            ("sha1", 4, false),
            ("sha256", 2, false),
            ("sha256", 4, false),
            ("sha1", 2, true),
        ] {
            let place = tempfile::tempdir().unwrap();
            let git = |words: &[&str]| {
                let mut command = Command::new("git");
                let output = command.args(words).current_dir(place.path()).output().unwrap();
                assert!(output.status.success(), "{words:?} {}", String::from_utf8_lossy(&output.stderr));
                output.stdout
            };
            git(&["init", "-q", &format!("--object-format={format}")]);
            git(&["config", "splitIndex.maxPercentChange", "100"]);
            let blob = "1".repeat(if format == "sha1" { 40 } else { 64 });
            for number in 0..40 {
                let (mode, name) = if number % 7 == 3 { ("160000", "link") } else { ("100644", "some/name") };
                let entry = format!("{mode},{blob},{name}{}", "x".repeat(number));
                git(&["update-index", "--add", "--cacheinfo", &entry]);
            }
            git(&["update-index", &format!("--index-version={version}")]);
            if split {
                git(&["update-index", "--split-index"]);
                git(&["update-index", "--add", "--cacheinfo", &format!("160000,{blob},later")]);
            }
            std::fs::write(place.path().join("new"), "").unwrap();
            git(&["add", "--intent-to-add", "new"]);
            let own = Directory::open(&place.path().join(".git")).unwrap();
            let listed = git(&["ls-files", "--stage", "-z"]);
            let listed = listed.split(|byte| *byte == 0).filter(|line| !line.is_empty());
            let mut expected: Vec<Vec<u8>> =
                listed.map(|line| line.splitn(2, |byte| *byte == b'\t').nth(1).unwrap().to_vec()).collect();
            // The entries of the index itself have no names where they replace some of the other part.
            let found = indexed_paths(&own, &own, &mut budget()).unwrap().into_iter();
            let mut found: Vec<Vec<u8>> =
                found.map(|entry| entry.path).filter(|path| !path.is_empty()).collect();
            found.sort();
            expected.sort();
            assert_eq!(found, expected, "{format} {version} {split}");
            let links = submodule_paths(&own, &own, &mut budget()).unwrap();
            assert_eq!(links.len(), if split { 7 } else { 6 });
        }
    }

    #[test]
    fn paths_of_git_directories_are_not_sound() {
        for path in ["a/.git/hooks/x", ".GIT/x", "git~1", "a/../b", "/a", "a//b", ".git "] {
            assert!(!is_sound_path(path.as_bytes()), "{path}");
        }
        assert!(is_sound_path(b"a/.github/x") && is_sound_path(b"dir/"));
    }
}
