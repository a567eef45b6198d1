//! Files of a run that other programs execute later, for its result.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use ringfence_core::event::ExecutedLater;
use ringfence_workspace::Directory;
use ringfence_workspace::executed::{Report, search};

/// How long the search may take.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(2);

/// Searches a workspace for what changed since `marker` was written. The notice says what was not searched.
#[expect(clippy::disallowed_methods, reason = "the marker is in the state directory, which no run sees")]
pub(crate) fn later(workspace: &Path, marker: &Path) -> (Vec<ExecutedLater>, Option<String>) {
    let since = std::fs::symlink_metadata(marker).map(|data| (data.ctime(), data.ctime_nsec()));
    let Ok(since) = since else { return (Vec::new(), None) };
    let searched = Directory::open(workspace)
        .map_err(std::io::Error::other)
        .and_then(|tree| search(&tree, since, Instant::now() + SEARCH_TIMEOUT));
    let Report { files, complete } = match searched {
        Ok(report) => report,
        Err(error) => {
            let notice =
                format!("the workspace was not searched for files that programs execute later: {error}");
            return (Vec::new(), Some(notice));
        }
    };
    let notice = (!complete)
        .then(|| "not all of the workspace was searched for files that programs execute later".to_owned());
    let of = |file: ringfence_workspace::executed::Executed| ExecutedLater {
        path: file.path.display().to_string().into(),
        why: file.by.describe().to_owned(),
    };
    (files.into_iter().map(of).collect(), notice)
}

/// What a user is told of these files.
pub(crate) fn notice(files: &[ExecutedLater]) -> Option<String> {
    let named: Vec<String> = files.iter().map(|file| format!("{} ({})", file.path, file.why)).collect();
    let what = if named.len() == 1 { "a file" } else { "files" };
    (!named.is_empty()).then(|| {
        format!(
            "look before you use it: the run made or changed {what} that programs execute: {}",
            named.join(", ")
        )
    })
}
