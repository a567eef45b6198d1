//! The private git directory of a run: everything that commits need, beside the real one, which the run never writes.
//!
//! Objects are not copied: the real ones are seen read-only through `objects/info/alternates`, and so are hooks and the git
//! directories of submodules. Configuration is a copy, and nothing that a run writes there comes back.
//!
//! ```text
//! PLACE/start.json    what the real git directory was like when the run began; the run does not see it
//!       packed-refs   its refs at that time, if they are many; few are in start.json
//!       private/      what the run sees as its git directory
//! ```

use std::cell::Cell;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use globset::GlobSet;
use ringfence_core::paths::DirectoryId;
use serde::{Deserialize, Serialize};

use super::refs::{self, RefValue, Refs, RefsBudget};
use super::repository::{Kind, MAX_CONFIG_BYTES, Repository};
use super::{GitError, PRIVATE, START, START_REFS, Stamp};
use crate::file::read_known;
use crate::{Directory, EntryKind, Metadata};

/// Longest reflog that is copied; longer ones begin anew inside.
const MAX_LOG_BYTES: u64 = 4 << 20;
/// Longest other file.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Most bytes of indexes that are copied for one run, so most bytes of one that is taken over.
pub const MAX_INDEX_BYTES: u64 = 256 << 20;
/// Most parts of a split index, and most names that are searched for them.
const MAX_SHARED_INDEXES: usize = 8;
const MAX_LISTED: usize = 10_000;

/// Most bytes of refs that are noted with the rest: making another file costs more than reading them again.
const MAX_NOTED_REFS_BYTES: usize = 64 << 10;
/// Most protected paths that are noted for the import, and most bytes of them.
const MAX_PROTECTED: usize = 8192;
const MAX_PROTECTED_BYTES: usize = 1 << 20;

/// Files of a merge or the like that has begun, which a commit ends.
pub(crate) const STATE_FILES: [&str; 7] =
    ["MERGE_HEAD", "MERGE_MSG", "MERGE_MODE", "CHERRY_PICK_HEAD", "REVERT_HEAD", "AUTO_MERGE", "SQUASH_MSG"];
/// Other files of the git directory of a working tree that are copied.
const OWN_FILES: [&str; 4] = ["HEAD", "ORIG_HEAD", "FETCH_HEAD", "config.worktree"];
/// The configuration.
pub(crate) const CONFIG: &str = "config";
/// Files that are copied without credentials.
const CONFIGURATIONS: [&str; 2] = [CONFIG, "config.worktree"];
/// Files of the common git directory that are copied.
const COMMON_FILES: [&str; 4] = [CONFIG, "shallow", "info/attributes", "info/sparse-checkout"];
/// Directories of the common git directory that are seen read-only.
const SHARED: [&str; 3] = ["hooks", MODULES, "lfs"];
/// The directory with the git directories of submodules.
pub const MODULES: &str = "modules";

/// What the real git directory was like when a run began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Start {
    /// The common git directory.
    pub(crate) common: PathBuf,
    /// Its identity.
    pub(crate) common_id: DirectoryId,
    /// The name of the linked worktree, if the working tree is one.
    pub(crate) worktree: Option<String>,
    /// What `HEAD` held.
    pub(crate) head: String,
    /// The real index.
    pub(crate) index: Option<Stamp>,
    /// The private index, as it was made.
    pub(crate) private_index: Option<Stamp>,
    /// Its refs, in the format of `packed-refs`, if they are few. Otherwise they are in a file of their own.
    #[serde(default)]
    pub(crate) refs: Option<String>,
    /// The private `packed-refs`, as it was made.
    pub(crate) private_refs: Option<Stamp>,
    /// The private configuration, as it was made.
    #[serde(default)]
    pub(crate) private_config: Option<Stamp>,
    /// Symbolic refs.
    pub(crate) symbolic: Vec<(String, String)>,
    /// State files that existed.
    pub(crate) state_files: Vec<String>,
    /// Whether ids of objects are SHA-256.
    pub(crate) sha256: bool,
    /// Whether it is a repository below the workspace.
    #[serde(default)]
    pub(crate) is_nested: bool,
    /// Protected paths of the working tree, from there.
    #[serde(default)]
    pub(crate) protected: Vec<String>,
    /// Directories of it that were held in their places.
    #[serde(default)]
    pub(crate) held: Vec<String>,
    /// Files and directories of the working tree that were hidden, from there.
    #[serde(default)]
    pub(crate) hidden: Vec<String>,
    /// Globs of files that the run must not read, from the workspace.
    #[serde(default)]
    pub(crate) denied: Vec<String>,
    /// The working tree, from the workspace.
    #[serde(default)]
    pub(crate) tree: String,
}

/// How to make a private git directory.
#[derive(Debug, Clone, Copy)]
pub struct Making<'a> {
    /// The repository.
    pub repository: &'a Repository,
    /// Where to put it, of the host; `PLACE` in the header of this module. Must exist.
    pub place: &'a Path,
    /// Where the read-only parts are seen inside.
    pub guest: &'a Path,
    /// Globs of files that the run must not read, from the workspace.
    pub denied: &'a GlobSet,
    /// The same as they are written, for the import.
    pub denied_globs: &'a [String],
    /// Files and directories that are hidden, from the working tree. What has git track one of them is not taken over.
    pub hidden: &'a [&'a Path],
    /// The working tree, from the workspace.
    pub tree: &'a Path,
    /// Paths that git inside must not list as untracked, from the workspace.
    pub excluded: &'a [String],
    /// Paths that the run cannot write, from the working tree, the most important first. Commits that change them are reported.
    pub protected: &'a [&'a Path],
    /// Directories that the run cannot move, likewise.
    pub held: &'a [&'a Path],
    /// User and group that own it, if not the caller.
    pub owner: Option<(u32, u32)>,
    /// Whether it is a repository below the workspace, which an earlier run may have made.
    pub is_nested: bool,
    /// Whether the git directories of submodules are mounted in the private git directory itself, so that what they say of
    /// their working trees leads there; otherwise a link leads to where they are seen.
    pub modules_in_place: bool,
    /// Most bytes of the index and its parts that are copied.
    pub index_budget: u64,
}

/// What came of making a private git directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Made {
    /// Bytes of indexes that were copied.
    pub index_bytes: u64,
    /// What was not copied, and why.
    pub notices: Vec<String>,
}

/// The state of a working tree, copied.
#[derive(Default)]
struct WorkingTree {
    /// The real index and its copy.
    index: Option<(Stamp, Stamp)>,
    state_files: Vec<String>,
    made: Made,
}

/// A part of the real git directory that a run sees read-only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedPart {
    /// Where it is.
    pub source: PathBuf,
    /// What is there.
    pub id: DirectoryId,
    /// Where a run sees it.
    pub target: PathBuf,
}

/// The parts of the real git directory that a run sees read-only.
pub fn shared_parts(repository: &Repository, guest: &Path) -> Vec<SharedPart> {
    let Ok(git) = Directory::open(&repository.common) else { return Vec::new() };
    let part = |name: &str| {
        let data = git.metadata(Path::new(name)).ok().filter(|data| data.kind() == EntryKind::Directory)?;
        Some(SharedPart { source: repository.common.join(name), id: data.id(), target: guest.join(name) })
    };
    ["objects"].into_iter().chain(SHARED).filter_map(part).collect()
}

/// Makes the private git directory. What reading its refs costs is taken from `refs_budget`, also if it fails.
pub fn make(making: Making<'_>, refs_budget: &mut RefsBudget) -> Result<Made, GitError> {
    let Making { repository, place, .. } = making;
    let real = Directory::open(&repository.common)?;
    let maker = Maker { making, root: place.join(PRIVATE), left_out_credentials: Cell::new(false) };
    let failed = |source| GitError::Make { path: maker.root.clone(), source };
    maker.skeleton().map_err(failed)?;
    let config = real.read(Path::new("config"), MAX_CONFIG_BYTES).unwrap_or_default();
    let sha256 =
        super::config::values(&config, "extensions", "objectformat").iter().any(|format| format == "sha256");
    let mut private_config = None;
    for name in COMMON_FILES {
        let copied = maker.copy(&real, name, "", MAX_FILE_BYTES).map_err(failed)?;
        if name == CONFIG {
            private_config = copied.map(|(_, private)| private);
        }
    }
    maker.exclude(&real).map_err(failed)?;
    let refs::Listed { mut refs, passed_over } = refs::read(&real, refs_budget)?;
    // What earlier runs left there is not this run's concern.
    refs.retain(|name, _| !name.starts_with(refs::KEPT));
    let text = refs::packed_text(&refs);
    if text.len() > refs::MAX_TEXT_BYTES {
        return Err(GitError::TooManyRefs);
    }
    let private_refs = maker.refs(&refs, &text).map_err(failed)?;
    let (own, prefix) = match &repository.kind {
        Kind::Plain | Kind::Submodule { .. } => (Directory::open(&repository.common)?, String::new()),
        Kind::Linked { name } => {
            let prefix = format!("worktrees/{name}/");
            maker.linked(&real, name, &prefix).map_err(failed)?;
            (Directory::open(&repository.own())?, prefix)
        }
    };
    let head = own.read_text(Path::new("HEAD"), MAX_FILE_BYTES).map_err(GitError::Head)?;
    let WorkingTree { index, state_files, mut made } =
        maker.working_tree(&own, &real, &prefix).map_err(failed)?;
    if index.is_none() {
        refuse_missing_index(&own, making.index_budget)?;
    }
    if maker.left_out_credentials.get() {
        made.notices.push(LEFT_OUT_CREDENTIALS.to_owned());
    }
    let (mut room, mut left_out) = ((MAX_PROTECTED, MAX_PROTECTED_BYTES), 0);
    let protected = noted(making.protected, &mut room, &mut left_out);
    let held = noted(making.held, &mut room, &mut left_out);
    let mut not_noted = 0;
    let hidden = noted(making.hidden, &mut { (MAX_PROTECTED, MAX_PROTECTED_BYTES) }, &mut not_noted);
    if not_noted > 0 {
        made.notices.push(format!(
            "{not_noted} hidden paths are too many or no text: commits that have git track them are taken over"
        ));
    }
    if left_out > 0 {
        made.notices.push(format!(
            "{left_out} protected paths are too many or no text: commits that change them are not reported"
        ));
    }
    let start = Start {
        common: repository.common.clone(),
        common_id: real.id(),
        worktree: match &repository.kind {
            Kind::Linked { name } => Some(name.clone()),
            _ => None,
        },
        head,
        index: index.map(|(real, _)| real),
        private_index: index.map(|(_, private)| private),
        refs: (text.len() <= MAX_NOTED_REFS_BYTES).then_some(text),
        private_refs,
        private_config,
        symbolic: symbolic(&refs),
        state_files,
        sha256,
        is_nested: making.is_nested,
        protected,
        held,
        hidden,
        denied: making.denied_globs.to_vec(),
        tree: making.tree.to_string_lossy().into_owned(),
    };
    let mut noted = create_new(&place.join(START), 0o600).map_err(failed)?;
    noted.write_all(&serde_json::to_vec(&start)?).map_err(failed)?;
    if passed_over > 0 {
        made.notices
            .push(format!("{passed_over} refs are not seen: their names are too long, too deep or no text"));
    }
    Ok(made)
}

/// Refuses a repository whose index was not copied although it has one: a commit without it would delete every file.
fn refuse_missing_index(own: &Directory, limit: u64) -> Result<(), GitError> {
    match own.metadata(Path::new("index")) {
        Ok(data) if data.kind() == EntryKind::File && data.length() > limit => {
            Err(GitError::IndexTooLarge { bytes: data.length(), limit })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        _ => Err(GitError::IndexNotCopied),
    }
}

/// The paths that are noted for the import. `room` is how many more, and how many bytes of them.
fn noted(paths: &[&Path], room: &mut (usize, usize), left_out: &mut usize) -> Vec<String> {
    let mut noted = Vec::new();
    for path in paths {
        match path.to_str().filter(|path| room.0 > 0 && path.len() <= room.1) {
            Some(path) => {
                *room = (room.0 - 1, room.1 - path.len());
                noted.push(path.to_owned());
            }
            None => *left_out += 1,
        }
    }
    noted
}

fn symbolic(refs: &Refs) -> Vec<(String, String)> {
    let of = |(name, value): (&String, &RefValue)| match value {
        RefValue::Symbolic(to) => Some((name.clone(), to.clone())),
        RefValue::Object(_) => None,
    };
    refs.iter().filter_map(of).collect()
}

/// Writes one private git directory. Nothing here is seen by a run yet.
struct Maker<'a> {
    making: Making<'a>,
    root: PathBuf,
    /// Whether credentials of the configuration were not copied.
    left_out_credentials: Cell<bool>,
}

impl Maker<'_> {
    fn skeleton(&self) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => other?,
        }
        self.own(&self.root)?;
        let guest = self.making.guest;
        // Git makes all others when it needs them; making a directory is what costs most here.
        for name in ["objects", "objects/info", "refs", "info"] {
            self.directory(name)?;
        }
        self.write("objects/info/alternates", format!("{}\n", guest.join("objects").display()).as_bytes())?;
        for SharedPart { source, target, .. } in shared_parts(self.making.repository, guest) {
            let name = source.file_name().filter(|name| *name != "objects");
            if self.making.modules_in_place && name.is_some_and(|name| name == MODULES) {
                self.directory(MODULES)?;
            } else if let Some(name) = name {
                let link = self.root.join(name);
                symlink(target, &link)?;
                self.own(&link)?;
            }
        }
        Ok(())
    }

    fn directory(&self, name: &str) -> io::Result<()> {
        let path = self.root.join(name);
        match DirBuilder::new().mode(0o755).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other.and_then(|()| self.own(&path)),
        }
    }

    /// Directories above a name.
    fn parents(&self, name: &str) -> io::Result<()> {
        for (end, _) in name.match_indices('/') {
            self.directory(&name[..end])?;
        }
        Ok(())
    }

    fn write(&self, name: &str, content: &[u8]) -> io::Result<Stamp> {
        let path = self.root.join(name);
        let file = write_new(&path, content)?;
        self.own(&path)?;
        Ok(Stamp::of(&Metadata::of(&file)?))
    }

    fn own(&self, path: &Path) -> io::Result<()> {
        match self.making.owner {
            Some((user, group)) => std::os::unix::fs::lchown(path, Some(user), Some(group)),
            None => Ok(()),
        }
    }

    fn is_denied(&self, name: &str) -> bool {
        self.making.denied.is_match(Path::new(".git").join(name))
    }

    /// Copies a file if it exists, is a regular one, is not denied and not longer than `limit`.
    fn copy(
        &self,
        from: &Directory,
        name: &str,
        prefix: &str,
        limit: u64,
    ) -> io::Result<Option<(Stamp, Stamp)>> {
        if self.is_denied(name) {
            return Ok(None);
        }
        let Ok((file, data)) = from.described_file(Path::new(name)) else { return Ok(None) };
        if data.length() > limit {
            return Ok(None);
        }
        let (original, name) = (name, format!("{prefix}{name}"));
        self.parents(&name)?;
        let target = self.root.join(name);
        let mut copy = create_new(&target, 0o644)?;
        match data.length() {
            // Two calls instead of six.
            0..=MAX_FILE_BYTES => {
                let mut content =
                    read_known(file, data.length(), MAX_FILE_BYTES).map_err(io::Error::other)?;
                if CONFIGURATIONS.contains(&original)
                    && let Some(clean) = super::config::without_credentials(&content)
                {
                    content = clean;
                    self.left_out_credentials.set(true);
                }
                copy.write_all(&content)?;
            }
            _ => drop(io::copy(&mut file.take(limit), &mut copy)?),
        }
        self.own(&target)?;
        Ok(Some((Stamp::of(&data), Stamp::of(&Metadata::of(&copy)?))))
    }

    /// The excludes of the real repository, and what the run must not take for files of the user.
    fn exclude(&self, real: &Directory) -> io::Result<()> {
        let mut text = match self.is_denied("info/exclude") {
            true => String::new(),
            false => real.read_text(Path::new("info/exclude"), MAX_FILE_BYTES).unwrap_or_default(),
        };
        if !self.making.excluded.is_empty() {
            text.push_str("\n# paths that are reserved while a run lasts\n");
            for path in self.making.excluded {
                text.push_str(&format!("/{path}\n"));
            }
        }
        self.write("info/exclude", text.as_bytes()).map(drop)
    }

    /// Writes all refs into one file, and symbolic ones as they are. The host keeps the same text.
    fn refs(&self, refs: &Refs, text: &str) -> io::Result<Option<Stamp>> {
        if text.len() > MAX_NOTED_REFS_BYTES {
            write_new(&self.making.place.join(START_REFS), text.as_bytes())?;
        }
        for (name, to) in symbolic(refs) {
            self.parents(&name)?;
            self.write(&name, format!("ref: {to}\n").as_bytes())?;
        }
        self.write("packed-refs", text.as_bytes()).map(Some)
    }

    /// The directory of a linked worktree.
    fn linked(&self, real: &Directory, name: &str, prefix: &str) -> io::Result<()> {
        self.directory("worktrees")?;
        self.directory(&format!("worktrees/{name}"))?;
        for file in ["commondir", "gitdir"] {
            self.copy(real, &format!("{prefix}{file}"), "", MAX_FILE_BYTES)?;
        }
        // The main working tree's, without which git does not take the directory for a repository.
        self.copy(real, "HEAD", "", MAX_FILE_BYTES)?;
        Ok(())
    }

    /// Index, `HEAD`, stash and the state of a merge.
    fn working_tree(&self, own: &Directory, common: &Directory, prefix: &str) -> io::Result<WorkingTree> {
        let mut tree = WorkingTree::default();
        let listed = own.entries(MAX_LISTED)?;
        let listed: Vec<String> =
            listed.into_iter().filter_map(|entry| entry.name.into_string().ok()).collect();
        // Most of them are missing, and one list takes less time than a look for each.
        let is_there =
            |name: &&str| listed.len() >= MAX_LISTED || listed.iter().any(|listed| listed == *name);
        for name in OWN_FILES.iter().filter(|name| is_there(name)) {
            self.copy(own, name, prefix, MAX_FILE_BYTES)?;
        }
        // Entries of the stash are in its reflog alone. Other reflogs begin anew inside.
        self.copy(common, "logs/refs/stash", "", MAX_LOG_BYTES)?;
        for name in STATE_FILES.iter().filter(|name| is_there(name)) {
            if self.copy(own, name, prefix, MAX_FILE_BYTES)?.is_some() {
                tree.state_files.push((*name).to_owned());
            }
        }
        let budget = self.making.index_budget;
        tree.index = self.copy(own, "index", prefix, budget)?;
        tree.made.index_bytes = tree.index.map_or(0, |(_, private)| private.length);
        let shared = listed.iter().filter(|name| name.starts_with("sharedindex."));
        for name in shared.take(MAX_SHARED_INDEXES) {
            let left = budget.saturating_sub(tree.made.index_bytes);
            match self.copy(own, name, prefix, left)? {
                Some((_, private)) => tree.made.index_bytes += private.length,
                None => {
                    tree.made.notices.push(format!("{name} of the git directory is not seen: {NOT_COPIED}"));
                }
            }
        }
        Ok(tree)
    }
}

/// What is said of a configuration with credentials.
const LEFT_OUT_CREDENTIALS: &str = "credentials in the git configuration of the repository (headers, cookies, users and passwords in \
     addresses) are not seen by the run";
/// Why a part of the index is left out.
const NOT_COPIED: &str =
    "it is no regular file, is denied, or is larger than what is copied of indexes for a run";

fn create_new(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)
}

/// Writes a file that does not exist yet.
fn write_new(path: &Path, content: &[u8]) -> io::Result<File> {
    let mut file = create_new(path, 0o644)?;
    file.write_all(content)?;
    Ok(file)
}

/// Leaves an empty private git directory, which is not imported, after a failure to make it.
pub fn make_empty(place: &Path) -> io::Result<()> {
    let private = place.join(PRIVATE);
    // The directory itself stays: it may be mounted already.
    for entry in fs::read_dir(&private).into_iter().flatten().flatten() {
        let path = entry.path();
        let removed =
            if entry.file_type()?.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed?;
    }
    let _ = fs::remove_file(place.join(START));
    match DirBuilder::new().mode(0o700).create(&private) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}
