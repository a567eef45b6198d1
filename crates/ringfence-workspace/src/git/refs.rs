//! Refs of a git directory, read without git: loose files and `packed-refs`. Both may have been written by a run.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use crate::{Directory, EntryKind, ReadError};

/// Most bytes of `packed-refs` that are read.
const MAX_PACKED_BYTES: u64 = 64 << 20;
/// Most bytes of a loose ref.
const MAX_LOOSE_BYTES: u64 = 4096;
/// Most loose refs, and most directories between them.
const MAX_LOOSE: usize = 20_000;
/// How many bytes of a budget a loose ref, or a directory of refs, takes: opening it costs as much as reading these.
const LOOSE_COST: u64 = 1024;
/// Deepest directory below `refs`.
const MAX_DEPTH: usize = 32;
/// Longest name.
const MAX_NAME_BYTES: usize = 1024;
/// Most bytes of all refs, as text, that a run is given: as many as are read of it afterwards.
pub(crate) const MAX_TEXT_BYTES: usize = MAX_PACKED_BYTES as usize;

/// How much of the refs of repositories a start reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RefsBudget {
    /// Loose refs and directories of refs.
    loose: usize,
    /// Bytes of `packed-refs`, and of the text of all refs.
    packed: u64,
    /// Bytes of both together; a loose ref counts as 1 KiB.
    total: u64,
}

impl RefsBudget {
    /// What the repository of the workspace may take.
    pub const OF_WORKSPACE: Self = Self { loose: MAX_LOOSE, packed: MAX_PACKED_BYTES, total: u64::MAX };
    /// What all repositories below the workspace may take together, which earlier runs may have made: some 0.1 seconds.
    pub const OF_NESTED: Self = Self { loose: MAX_LOOSE, packed: MAX_PACKED_BYTES, total: 4 << 20 };

    /// Most loose refs, and most bytes of the text of all, of one repository.
    pub(crate) fn most(self) -> (usize, usize) {
        let loose = self.loose.min(usize::try_from(self.total / LOOSE_COST).unwrap_or(usize::MAX));
        (loose, usize::try_from(self.packed.min(self.total)).unwrap_or(usize::MAX))
    }

    /// Takes what reading a loose ref costs, if that is left.
    fn take_loose(&mut self) -> Result<(), RefsError> {
        if self.total < LOOSE_COST {
            return Err(RefsError::Budget);
        }
        self.total -= LOOSE_COST;
        Ok(())
    }

    /// Takes what reading `packed-refs` costs, if that is left.
    fn take_packed(&mut self, bytes: u64) -> Result<(), RefsError> {
        if self.total < bytes {
            return Err(RefsError::Budget);
        }
        self.total -= bytes;
        Ok(())
    }
}

/// Below it lie refs that Ringfence makes, so that no commit is lost. No run sees or changes them.
pub(crate) const KEPT: &str = "refs/ringfence/";

/// What a ref holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RefValue {
    /// The id of an object, in hexadecimal.
    Object(String),
    /// Another ref.
    Symbolic(String),
}

/// Refs by name.
pub(crate) type Refs = BTreeMap<String, RefValue>;

/// Refs that were read.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    pub(crate) refs: Refs,
    /// Number of refs, or directories of refs, whose names are too long, too deep or no text.
    pub(crate) passed_over: usize,
}

/// Why refs cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RefsError {
    /// A file cannot be read.
    #[error("failed to read {path}: {source}")]
    Read {
        /// Which, from the git directory.
        path: String,
        /// Why.
        source: ReadError,
    },
    /// There are too many of them.
    #[error("there are more than {MAX_LOOSE} loose refs")]
    TooMany,
    /// Repositories below the workspace have too many of them together.
    #[error(
        "it has more refs than are read of repositories below a workspace; `git pack-refs --all` may help"
    )]
    Budget,
}

/// Parses what `HEAD` or a loose ref holds.
pub(crate) fn parse_value(text: &str) -> Option<RefValue> {
    let text = text.trim_end();
    match text.strip_prefix("ref:") {
        Some(name) => is_ref_name(name.trim()).then(|| RefValue::Symbolic(name.trim().to_owned())),
        None => is_object_id(text).then(|| RefValue::Object(text.to_owned())),
    }
}

/// Whether a text is the full id of an object.
pub(crate) fn is_object_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether a text is a name that git accepts for a ref below `refs/`, and not too long.
pub(crate) fn is_ref_name(name: &str) -> bool {
    name.len() <= MAX_NAME_BYTES && is_sound(name)
}

/// Whether a loose ref of this name is read: one that lies deeper is not.
pub(crate) fn is_read_loose(name: &str) -> bool {
    Path::new(name).components().count() <= MAX_DEPTH
}

/// Whether git itself would make a branch or a tag of this name. Commands of the user could take others for options or for `HEAD`.
pub(crate) fn is_name_of_git(name: &str) -> bool {
    let short = ["refs/heads/", "refs/tags/"].iter().find_map(|kind| name.strip_prefix(kind));
    short.is_none_or(|short| !short.starts_with('-') && short != "HEAD")
}

/// Names that git has besides those that end in `_HEAD`, or that it gives to something else than a branch or tag.
const SPECIAL_NAMES: [&str; 9] = [
    "@",
    "AUTO_MERGE",
    "BISECT_EXPECTED_REV",
    "HEAD",
    "MERGE_AUTOSTASH",
    "NOTES_MERGE_PARTIAL",
    "NOTES_MERGE_REF",
    "refs",
    "stash",
];

/// First parts of names that git completes to refs of another kind.
const KINDS: [&str; 6] = ["heads", "notes", "refs", "remotes", "stash", "tags"];
/// Lengths of what git takes for the id of an object, in digits.
const ID_DIGITS: std::ops::RangeInclusive<usize> = 4..=64;

/// Whether git, or a user who reads it, takes the short name of a branch or tag for something else.
pub(crate) fn is_special_name(name: &str) -> bool {
    let short = [HEADS, TAGS].iter().find_map(|kind| name.strip_prefix(kind));
    let is_pseudo = |short: &str| {
        short.ends_with("_HEAD")
            && short.bytes().all(|byte| byte.is_ascii_uppercase() || matches!(byte, b'_' | b'-'))
    };
    short.is_some_and(|short| {
        is_pseudo(short)
            || SPECIAL_NAMES.contains(&short)
            || short.split_once('/').is_some_and(|(first, _)| KINDS.contains(&first))
            || is_abbreviation(short)
            // What `git describe` prints.
            || short.rsplit_once("-g").is_some_and(|(_, id)| is_abbreviation(id))
    })
}

/// Whether the short name of a branch or tag is that of a remote, or of a branch that the remote may have.
pub(crate) fn begins_with_remote(name: &str, remote: &str) -> bool {
    let short = [HEADS, TAGS].iter().find_map(|kind| name.strip_prefix(kind));
    let rest = short.and_then(|short| short.strip_prefix(remote));
    !remote.is_empty() && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether git takes a text for the id of an object, in full or abbreviated.
fn is_abbreviation(text: &str) -> bool {
    ID_DIGITS.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Other refs for which git may take a name that stands for this branch or tag, if they exist: by each of the rules by which it
/// completes names.
pub(crate) fn of_same_short_name(name: &str) -> Vec<String> {
    if !name.starts_with(HEADS) && !name.starts_with(TAGS) {
        return Vec::new();
    }
    let shorts = ["", "refs/", HEADS, TAGS].iter().filter_map(|kind| name.strip_prefix(kind));
    let completed = shorts.flat_map(|short| {
        let full = ["", "refs/", TAGS, HEADS, REMOTES].map(|kind| format!("{kind}{short}"));
        full.into_iter().chain([format!("{REMOTES}{short}/HEAD")])
    });
    completed.filter(|other| other != name && other.starts_with("refs/")).collect()
}

const HEADS: &str = "refs/heads/";
const TAGS: &str = "refs/tags/";
const REMOTES: &str = "refs/remotes/";

/// Whether shells take every character of a name for text.
pub(crate) fn is_plain_name(name: &str) -> bool {
    name.chars().all(is_plain)
}

fn is_plain(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '/' | '-' | '_' | '.' | '+' | '#' | '@' | ',' | '=')
}

/// A name with all characters that are not plain percent-encoded.
pub(crate) fn encoded(name: &str) -> String {
    let mut text = String::new();
    for character in name.chars() {
        match is_plain(character) {
            true => text.push(character),
            false => {
                let mut bytes = [0; 4];
                let bytes = character.encode_utf8(&mut bytes).bytes();
                text.extend(bytes.map(|byte| format!("%{byte:02X}")));
            }
        }
    }
    text
}

fn is_sound(name: &str) -> bool {
    let sound_part = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock");
    let sound_character =
        |c: char| !c.is_control() && !matches!(c, ' ' | '~' | '^' | ':' | '?' | '*' | '[' | '\\' | '\u{7f}');
    name.starts_with("refs/")
        && !name.contains("..")
        && !name.contains("@{")
        && !name.ends_with('.')
        && name.split('/').all(sound_part)
        && name.chars().all(sound_character)
}

/// Reads all refs. A loose ref wins over a packed one. What is no ref is passed over.
pub(crate) fn read(git: &Directory, budget: &mut RefsBudget) -> Result<Listed, RefsError> {
    let packed = Path::new("packed-refs");
    budget.take_packed(git.metadata(packed).map_or(0, |data| data.length()))?;
    let mut all = read_packed(git, packed)?;
    let loose = read_loose(git, budget)?;
    all.refs.extend(loose.refs);
    all.passed_over += loose.passed_over;
    Ok(all)
}

/// Reads a file in the format of `packed-refs`, if it exists.
pub(crate) fn read_packed(directory: &Directory, path: &Path) -> Result<Listed, RefsError> {
    let text = match directory.read(path, MAX_PACKED_BYTES) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.is_missing() => return Ok(Listed::default()),
        Err(source) => return Err(RefsError::Read { path: path.display().to_string(), source }),
    };
    Ok(parse_packed(&text))
}

/// Parses a text in the format of `packed-refs`.
pub(crate) fn parse_packed(text: &str) -> Listed {
    let mut listed = Listed::default();
    for line in text.lines().filter(|line| !line.starts_with(['#', '^'])) {
        let Some((id, name)) = line.split_once(' ').filter(|(id, name)| is_object_id(id) && is_sound(name))
        else {
            continue;
        };
        if name.len() <= MAX_NAME_BYTES && !name.contains(char::REPLACEMENT_CHARACTER) {
            listed.refs.insert(name.to_owned(), RefValue::Object(id.to_owned()));
        } else {
            listed.passed_over += 1;
        }
    }
    listed
}

/// Reads the files below `refs`. Those of earlier runs are passed over, so that their number does not matter.
pub(crate) fn read_loose(git: &Directory, budget: &mut RefsBudget) -> Result<Listed, RefsError> {
    let mut listed = Listed::default();
    let mut directories = vec![PathBuf::from("refs")];
    let mut seen = 0;
    while let Some(path) = directories.pop() {
        let directory = match git.directory(&path) {
            Ok(directory) => directory,
            Err(error) => {
                listed.passed_over += usize::from(error.kind() == io::ErrorKind::PermissionDenied);
                continue;
            }
        };
        let failed = |source| RefsError::Read { path: path.display().to_string(), source };
        for entry in
            directory.entries(MAX_LOOSE.min(budget.most().0 + 1)).map_err(|error| failed(error.into()))?
        {
            seen += 1;
            if seen > MAX_LOOSE {
                return Err(RefsError::TooMany);
            }
            budget.take_loose()?;
            match entry.kind {
                EntryKind::Directory if path.join(&entry.name) == Path::new(KEPT) => {}
                EntryKind::Directory if path.components().count() + 1 < MAX_DEPTH => {
                    directories.push(path.join(&entry.name));
                }
                EntryKind::Directory => listed.passed_over += 1,
                EntryKind::File => match path.join(&entry.name).to_str() {
                    Some(name) if is_ref_name(name) => {
                        listed.refs.extend(loose(&directory, name, &entry.name));
                    }
                    Some(name) => listed.passed_over += usize::from(is_sound(name)),
                    None => listed.passed_over += 1,
                },
                _ => {}
            }
        }
    }
    Ok(listed)
}

fn loose(directory: &Directory, full: &str, name: &OsStr) -> Option<(String, RefValue)> {
    let text = directory.read_text(Path::new(name), MAX_LOOSE_BYTES).ok()?;
    Some((full.to_owned(), parse_value(&text)?))
}

/// All refs that name objects, in the format of `packed-refs`.
pub(crate) fn packed_text(refs: &Refs) -> String {
    let mut text = String::from("# pack-refs with: sorted \n");
    for (name, value) in refs {
        if let RefValue::Object(id) = value {
            text.push_str(&format!("{id} {name}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{
        RefValue, begins_with_remote, encoded, is_plain_name, is_ref_name, is_special_name,
        of_same_short_name, parse_value,
    };

    #[test]
    fn names_that_git_gives_to_something_else_are_special() {
        for name in
            ["heads/FETCH_HEAD", "tags/ORIG_HEAD", "heads/X_HEAD", "tags/@", "heads/refs", "tags/stash"]
        {
            assert!(is_special_name(&format!("refs/{name}")), "{name}");
        }
        for name in ["heads/a_HEAD", "tags/HEADS", "heads/x/FETCH_HEAD", "heads/stash-2", "notes/stash"] {
            assert!(!is_special_name(&format!("refs/{name}")), "{name}");
        }
        for name in [
            "heads/tags/v1.0",
            "tags/heads/main",
            "heads/remotes/origin/main",
            "heads/notes/x",
            "tags/stash/x",
            "heads/abcd",
            "tags/DEADbeef",
            "heads/v1.0-3-gabc1234",
            "heads/1234567890123456789012345678901234567890",
        ] {
            assert!(is_special_name(&format!("refs/{name}")), "{name}");
        }
        for name in ["heads/abc", "heads/feature", "tags/v1.0-gone", "heads/my/tags", "heads/fix-g123"] {
            assert!(!is_special_name(&format!("refs/{name}")), "{name}");
        }
    }

    #[test]
    fn names_of_remotes_begin_names_of_their_branches() {
        for (name, is_of) in [
            ("refs/heads/origin/release", true),
            ("refs/tags/origin", true),
            ("refs/heads/original", false),
            ("refs/heads/a/origin/x", false),
            ("refs/notes/origin/x", false),
        ] {
            assert_eq!(begins_with_remote(name, "origin"), is_of, "{name}");
        }
        assert!(!begins_with_remote("refs/heads/x", ""));
    }

    #[test]
    fn refs_that_a_name_could_stand_for_are_found_by_all_rules() {
        for (name, other) in [
            ("refs/tags/origin/main", "refs/heads/origin/main"),
            ("refs/tags/origin/main", "refs/remotes/origin/main"),
            ("refs/tags/origin", "refs/remotes/origin/HEAD"),
            ("refs/heads/tags/v1.0", "refs/tags/v1.0"),
            ("refs/tags/heads/main", "refs/heads/main"),
            ("refs/heads/remotes/origin/main", "refs/remotes/origin/main"),
            ("refs/heads/x", "refs/x"),
            ("refs/heads/x", "refs/tags/heads/x"),
        ] {
            assert!(of_same_short_name(name).iter().any(|found| found == other), "{name} {other}");
        }
        assert!(!of_same_short_name("refs/heads/x").contains(&"refs/heads/x".to_owned()));
        assert!(of_same_short_name("refs/notes/x").is_empty());
    }

    #[test]
    fn names_that_shells_could_execute_are_encoded() {
        for name in ["heads/main", "heads/a-b_c.d+e#1@2,x=y", "heads/größe/日本"] {
            assert!(is_plain_name(name) && encoded(name) == name, "{name}");
        }
        for (name, safe) in [
            ("heads/$(x)", "heads/%24%28x%29"),
            ("heads/a`b`", "heads/a%60b%60"),
            ("a;b&c|d<e>f", "a%3Bb%26c%7Cd%3Ce%3Ef"),
            ("'\"!{}%", "%27%22%21%7B%7D%25"),
            ("a\u{202e}b", "a%E2%80%AEb"),
        ] {
            assert!(!is_plain_name(name), "{name}");
            assert_eq!(encoded(name), safe);
            assert!(is_ref_name(&format!("refs/{safe}")));
        }
    }

    #[test]
    fn names_that_git_refuses_are_refused() {
        for name in ["refs/heads/main", "refs/tags/v1.0", "refs/heads/a/b-c_d"] {
            assert!(is_ref_name(name), "{name}");
        }
        for name in [
            "HEAD",
            "refs/heads/../../config",
            "refs//x",
            "refs/heads/.x",
            "refs/heads/x.lock",
            "refs/heads/x y",
            "refs/heads/x\n",
            "refs/heads/",
            "refs/heads/x@{1}",
            "/refs/x",
        ] {
            assert!(!is_ref_name(name), "{name}");
        }
    }

    #[test]
    fn values_are_ids_or_names() {
        let id = "a".repeat(40);
        assert_eq!(parse_value(&format!("{id}\n")), Some(RefValue::Object(id)));
        assert_eq!(parse_value("ref: refs/heads/x\n"), Some(RefValue::Symbolic("refs/heads/x".into())));
        assert_eq!(parse_value("ref: ../../x"), None);
        assert_eq!(parse_value("-n"), None);
    }
}
