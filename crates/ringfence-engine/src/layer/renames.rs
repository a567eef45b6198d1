//! Renamed files: a file that is gone and one that has come with the same content.
//!
//! Each candidate is read once, for its digest. Only files whose length occurs on both sides are candidates.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read};
use std::path::Path;

use ring::digest::{Context, SHA256};
use ringfence_workspace::Directory;

use super::{Change, Layer, What};

/// How much is read to find renamed files.
#[derive(Debug, Clone, Copy)]
pub struct RenameLimits {
    /// Number of files.
    pub files: usize,
    /// Bytes of these files together.
    pub bytes: u64,
}

impl RenameLimits {
    /// A second of work at most.
    pub const DEFAULT: RenameLimits = RenameLimits { files: 10_000, bytes: 256 << 20 };
}

/// What came of the search.
#[derive(Debug, Default)]
pub(super) struct Renames {
    /// Number of files that were read.
    pub(super) digests: usize,
    /// Why renames are not shown.
    pub(super) notice: Option<String>,
}

type Digest = [u8; 32];

/// Marks renamed files among the changes, which are in the order of their paths.
pub(super) fn find(layer: &Layer, changes: &mut [Change], limits: &RenameLimits) -> Renames {
    let lengths = |is_wanted: &dyn Fn(&What) -> bool| -> HashSet<u64> {
        let wanted = changes.iter().filter(|change| is_wanted(&change.what));
        wanted.filter_map(|change| change.length).filter(|length| *length > 0).collect()
    };
    let (gone, come) = (lengths(&is_removed), lengths(&is_added));
    let is_candidate = |change: &Change| {
        (is_removed(&change.what) || is_added(&change.what))
            && change.length.is_some_and(|length| gone.contains(&length) && come.contains(&length))
    };
    let candidates: Vec<usize> = (0..changes.len()).filter(|index| is_candidate(&changes[*index])).collect();
    let bytes = candidates.iter().filter_map(|index| changes[*index].length).fold(0u64, u64::saturating_add);
    if candidates.len() > limits.files || bytes > limits.bytes {
        let notice = format!(
            "renames are not shown: {} files with {bytes} bytes would have to be read, and the limits are {} files and {} bytes",
            candidates.len(),
            limits.files,
            limits.bytes
        );
        return Renames { digests: 0, notice: Some(notice) };
    }
    let mut removed: HashMap<(u64, Digest), Vec<usize>> = HashMap::new();
    let mut added = Vec::new();
    for index in &candidates {
        let change = &changes[*index];
        let is_gone = is_removed(&change.what);
        let side = if is_gone { &layer.workspace } else { &layer.upper };
        let Some(length) = change.length else { continue };
        // A file that cannot be read was not renamed, as far as one can tell.
        let Ok(digest) = digest(side, &change.path, length) else { continue };
        match is_gone {
            true => removed.entry((length, digest)).or_default().push(*index),
            false => added.push((*index, (length, digest))),
        }
    }
    // The first of several is taken first.
    removed.values_mut().for_each(|indexes| indexes.reverse());
    for (new, key) in added {
        let Some(old) = removed.get_mut(&key).and_then(Vec::pop) else { continue };
        let (from, to) = (changes[old].path.clone(), changes[new].path.clone());
        changes[new].what = What::Added { renamed_from: Some(from) };
        changes[old].what = What::Removed { renamed_to: Some(to) };
    }
    Renames { digests: candidates.len(), notice: None }
}

fn is_removed(what: &What) -> bool {
    *what == What::REMOVED
}

fn is_added(what: &What) -> bool {
    *what == What::ADDED
}

/// The digest of a file. No more is read than `length`.
fn digest(side: &Directory, path: &Path, length: u64) -> io::Result<Digest> {
    let mut file = side.file(path)?.take(length);
    let mut context = Context::new(&SHA256);
    let mut buffer = vec![0; 64 << 10];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            count => context.update(&buffer[..count]),
        }
    }
    context.finish().as_ref().try_into().map_err(io::Error::other)
}
