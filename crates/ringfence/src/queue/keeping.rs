//! How long things are kept: tasks and runs by age, runs by size, sandboxes until nobody waits for them.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ringfence_backends::keeper::Keeper;
use ringfence_core::config::QueueSettings;
use ringfence_core::ids::RunId;
use ringfence_core::mode::Mode;
use ringfence_engine::git;
use ringfence_store::runs::{Progress, Runs, TRIMMED_LOG_BYTES};
use ringfence_store::sqlite::Sqlite;
use ringfence_store::{DeadLetters, Tasks};
use serde::Serialize;

use crate::installation::Installation;
use crate::report::unstored;

/// What is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kept {
    /// So long; 0 is for ever.
    pub(crate) days: u32,
    /// So many bytes of runs.
    pub(crate) bytes: u64,
    /// Layers that nobody has applied or discarded.
    pub(crate) layers: bool,
    /// What goes when there are more bytes than that.
    pub(crate) by_size: BySize,
}

/// What goes when runs take more space than they may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BySize {
    /// Only the bulk of runs, the largest first. A loud run loses its own log, and never costs another run its record, its result or
    /// its audit.
    Bulk,
    /// Whole runs, the oldest first: the user has asked for it.
    Runs,
}

impl Kept {
    pub(crate) fn of(settings: &QueueSettings) -> Self {
        Self {
            days: settings.keep_days,
            bytes: settings.keep_size.bytes(),
            layers: true,
            by_size: BySize::Bulk,
        }
    }
}

/// What was taken away, or would be.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Swept {
    pub(crate) tasks: u64,
    pub(crate) runs: Vec<RunId>,
    /// Runs of which the log and the attachments went, and everything else stays.
    pub(crate) trimmed: Vec<RunId>,
    pub(crate) bytes: u64,
    pub(crate) sandboxes: Vec<String>,
    pub(crate) images: Vec<String>,
}

impl Swept {
    pub(crate) fn is_nothing(&self) -> bool {
        self.tasks == 0
            && self.runs.is_empty()
            && self.trimmed.is_empty()
            && self.sandboxes.is_empty()
            && self.images.is_empty()
    }
}

/// Removes what is old, and what is too much ([`BySize`]). A run that goes on, one with a layer that nobody has decided on, and one of a dead letter stay.
pub(crate) fn sweep(
    installation: &Installation,
    store: &Sqlite,
    kept: &Kept,
    dry: bool,
) -> anyhow::Result<Swept> {
    let mut swept = Swept::default();
    let now = installation.clock().now();
    let oldest = (kept.days > 0).then(|| now.ms.saturating_sub(u64::from(kept.days) * 86_400_000));
    if let Some(oldest) = oldest {
        swept.tasks = store.purge(oldest, dry).map_err(unstored)?;
    }
    let runs = installation.runs();
    let needed = needed(store)?;
    let mut candidates = Vec::new();
    let mut total: u64 = 0;
    let mut used = BTreeSet::new();
    for run in runs.list()? {
        let size = size_of(&runs.directory(&run));
        total = total.saturating_add(size);
        used.extend(runs.record(&run).ok().map(|record| record.mode));
        if may_go(&runs, &run, kept.layers) && !needed.contains(&run) {
            candidates.push((run, size));
        }
    }
    let programs = installation.programs(None);
    let is_old = |run: &RunId| oldest.is_some_and(|oldest| modified_ms(&runs.directory(run)) < oldest);
    let mut left = Vec::new();
    // The oldest first: names sort by time.
    for (run, size) in candidates.into_iter().rev() {
        if !is_old(&run) && (total <= kept.bytes || kept.by_size == BySize::Bulk) {
            left.push(run);
            continue;
        }
        if !dry {
            git::forget(&runs, &run, &programs);
        }
        if !dry && let Err(error) = runs.remove(&run) {
            tracing::warn!(%run, why = %error, "a run cannot be taken away");
            continue;
        }
        total = total.saturating_sub(size);
        swept.bytes = swept.bytes.saturating_add(size);
        swept.runs.push(run);
    }
    if kept.by_size == BySize::Bulk {
        trim_largest(&runs, left, kept.bytes, dry, &mut swept);
    }
    for keeper in keepers(installation, &used) {
        swept.sandboxes.extend(orphans(&*keeper, installation, dry));
        swept.images.extend(oldest.map(|oldest| old_images(&*keeper, oldest, dry)).unwrap_or_default());
    }
    Ok(swept)
}

/// Removes logs and attachments, those of the largest first, until all of them together take no more than so many bytes. What cannot
/// be trimmed, such as an overlay, does not count: it would cost other runs their logs.
fn trim_largest(runs: &Runs, left: Vec<RunId>, most: u64, dry: bool, swept: &mut Swept) {
    let mut bulky: Vec<(u64, RunId)> = left.into_iter().map(|run| (runs.bulk(&run), run)).collect();
    let all = bulky.iter().fold(0_u64, |sum, (bulk, _)| sum.saturating_add(*bulk));
    let mut excess = all.saturating_sub(most);
    bulky.sort_unstable();
    while excess > 0 {
        let Some((_, run)) = bulky.pop().filter(|(bulk, _)| *bulk > 2 * TRIMMED_LOG_BYTES) else { return };
        match runs.trim(&run, dry) {
            Ok(freed) => {
                excess = excess.saturating_sub(freed);
                swept.bytes += freed;
                swept.trimmed.push(run);
            }
            Err(error) => tracing::warn!(%run, why = %error, "the log of a run cannot be trimmed"),
        }
    }
}

/// The runs of dead letters, and of tasks that run.
fn needed(store: &Sqlite) -> anyhow::Result<BTreeSet<RunId>> {
    let letters = store.dead_letters(None, usize::MAX).map_err(unstored)?;
    let dead = letters.into_iter().flat_map(|letter| letter.runs.into_iter().map(|attempt| attempt.run));
    let running = store.leases().map_err(unstored)?.into_iter().map(|lease| lease.run);
    Ok(dead.chain(running).collect())
}

fn may_go(runs: &Runs, run: &RunId, keeps_layers: bool) -> bool {
    let undecided = keeps_layers && runs.layer(run).exists();
    !undecided && !matches!(runs.progress(run), Ok(Progress::Running))
}

fn modified_ms(path: &Path) -> u64 {
    let modified = fs::metadata(path).and_then(|data| data.modified()).ok();
    let since = modified.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    since.and_then(|since| u64::try_from(since.as_millis()).ok()).unwrap_or(u64::MAX)
}

/// The bytes that a directory takes on disk, links not followed. What is deeper than any path can be is not counted.
fn size_of(path: &Path) -> u64 {
    let mut sum: u64 = 0;
    let mut pending = vec![path.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(data) if data.is_dir() => pending.push(entry.path()),
                Ok(data) => sum = sum.saturating_add(data.blocks().saturating_mul(512)),
                Err(_) => {}
            }
        }
    }
    sum
}

/// The engines of the modes that runs have used. One that does not answer has nothing to tell of.
fn keepers(installation: &Installation, used: &BTreeSet<Mode>) -> Vec<Box<dyn Keeper>> {
    let around = installation.surroundings();
    let entries = ringfence_backends::ALL.iter().filter(|entry| used.contains(&entry.mode));
    entries.filter_map(|entry| entry.keeper?(&around).ok()).collect()
}

/// Containers that nobody waits for.
fn orphans(keeper: &dyn Keeper, installation: &Installation, dry: bool) -> Vec<String> {
    let kept = keeper.list().unwrap_or_default();
    let mine = kept.into_iter().filter(|kept| kept.orphan && Path::new(&kept.owner) == installation.state);
    mine.filter(|kept| dry || keeper.remove(&kept.name).is_ok()).map(|kept| kept.name).collect()
}

/// Images that were replaced, and are older than this.
fn old_images(keeper: &dyn Keeper, oldest_ms: u64, dry: bool) -> Vec<String> {
    let stale = keeper.replaced_images().unwrap_or_default();
    let old = stale.into_iter().filter(|image| image.created.max(0).unsigned_abs() * 1000 < oldest_ms);
    old.filter(|image| dry || keeper.remove_image(&image.id).is_ok()).map(|image| image.id).collect()
}
