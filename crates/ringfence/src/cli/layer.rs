//! `ringfence diff`, `apply`, `discard`: what a run wrote in a workspace that stayed untouched.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};
use anyhow::{Context, anyhow, bail};
use ringfence_core::event::ExecutedLater;
use ringfence_core::ids::RunId;
use ringfence_core::record::Record;
use ringfence_core::text::escaped;
use ringfence_engine::git::{self, ImportedRefs};
use ringfence_engine::layer::{Applied, Change, Changes, Layer, LayerError, Limits, What};
use ringfence_engine::shown_path;
use ringfence_server::desk::FileChange;
use ringfence_store::runs::Progress;
use ringfence_workspace::executed::ExecutedBy;
use ringfence_workspace::{Directory, EntryKind};
use similar::{ChangeTag, TextDiff};

use crate::installation::Installation;
use crate::report::advise;
use crate::terminal;
use crate::workspace::{self, Workspace};

/// Show what a run wrote in a workspace of kind `overlay`.
#[derive(clap::Args)]
pub(crate) struct DiffArgs {
    /// The run: its id, the beginning or end of it, or `last`
    run: String,
    /// Only these files and directories, from the workspace
    paths: Vec<PathBuf>,
    /// Compare with this directory, instead of the workspace that the run had
    #[arg(short = 'C', long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// Only which files, and how much
    #[arg(long)]
    stat: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Put what a run wrote into the workspace.
#[derive(clap::Args)]
pub(crate) struct ApplyArgs {
    /// The run: its id, the beginning or end of it, or `last`
    run: String,
    /// Only these files and directories, from the workspace
    paths: Vec<PathBuf>,
    /// Apply to this directory, instead of the workspace that the run had
    #[arg(short = 'C', long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// Import branches, tags and HEAD also if files are in conflict
    #[arg(long, conflicts_with = "paths")]
    commits: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Throw away what a run wrote.
#[derive(clap::Args)]
pub(crate) struct DiscardArgs {
    /// The run: its id, the beginning or end of it, or `last`
    run: String,
}

/// A longer text is told of by its size.
const LONGEST_TEXT: u64 = 1 << 20;

/// Shows all that a run has changed.
pub(crate) fn show_changes(run: &RunId, installation: &Installation) -> anyhow::Result<()> {
    let layer = open(run.as_str(), None, installation)?;
    let changes = layer.changes();
    changes.list.iter().for_each(|change| show(&layer, change));
    changes.notices.iter().for_each(terminal::about);
    Ok(())
}

/// Number of changes that are sent to a client.
const MAX_SENT_CHANGES: usize = 5_000;
/// Bytes of differences that are computed for a client.
const MAX_SENT_BYTES: usize = 8 << 20;
/// How long the changes of a run are looked at for a client.
const SENT_CHANGES_TIMEOUT: Duration = Duration::from_secs(20);

/// All that a run has changed, file by file, as far as it is sent to a client, and as long as it `is_wanted`.
pub(crate) fn file_changes(
    run: &RunId,
    installation: &Installation,
    is_wanted: &dyn Fn() -> bool,
) -> anyhow::Result<Vec<FileChange>> {
    let deadline = Instant::now() + SENT_CHANGES_TIMEOUT;
    let layer = open(run.as_str(), None, installation)?;
    let limits = Limits { deadline: Some(deadline), ..Limits::DEFAULT };
    let changes = layer.changes_within(&limits);
    let mut differences = Differences { layer: &layer, left: MAX_SENT_BYTES, deadline };
    let mut sent = Vec::new();
    let mut told = changes.list.iter().filter(|change| !is_told_elsewhere(change));
    for change in told.by_ref().take(MAX_SENT_CHANGES) {
        if !is_wanted() {
            bail!("the client does not wait for the changes any more");
        }
        sent.push(differences.file_change(change));
    }
    let more = told.next().map(|_| format!("more changes follow: `ringfence diff {run}` shows all of them"));
    let notices = changes.notices.into_iter().chain(more);
    sent.extend(notices.map(|change| FileChange { change, ..FileChange::default() }));
    Ok(sent)
}

/// Differences of files for a client: few enough, and none after the deadline.
struct Differences<'a> {
    layer: &'a Layer,
    /// Bytes that may still be computed.
    left: usize,
    deadline: Instant,
}

impl Differences<'_> {
    fn file_change(&mut self, change: &Change) -> FileChange {
        let (diff, omitted) = match self.diff(change) {
            Ok(diff) => (Some(diff), None),
            Err(why) => (None, Some(why.to_owned())),
        };
        FileChange {
            path: name(&change.path),
            change: done_to(change),
            diff,
            omitted,
            conflict: change.conflict.clone(),
        }
    }

    /// The lines of one file that differ, or why they are not shown. What was computed is charged, shown or not.
    fn diff(&mut self, change: &Change) -> Result<String, &'static str> {
        let time = self.deadline.saturating_duration_since(Instant::now());
        if self.left == 0 || time.is_zero() {
            return Err(TOO_MUCH);
        }
        if is_long(self.layer, change) {
            return Err(TOO_LONG);
        }
        let (before, after) = texts(self.layer, change).ok_or(NO_TEXT)?;
        let mut lines = String::new();
        for hunk in line_diff(&before, &after, time).unified_diff().context_radius(3).iter_hunks() {
            lines.push_str(&format!("{}\n", hunk.header()));
            for change in hunk.iter_changes() {
                let line = escaped(change.value().trim_end_matches('\n'));
                lines.push_str(&format!("{}{line}\n", change.tag()));
            }
        }
        let fits = lines.len() <= self.left;
        self.left = self.left.saturating_sub(lines.len());
        if fits { Ok(lines) } else { Err(TOO_MUCH) }
    }
}

const NO_TEXT: &str = "it is no text";
const TOO_LONG: &str = "it is too long to show";
const TOO_MUCH: &str = "the changes are too many to show all of them here";

/// Whether a side of a change is a longer file than is shown.
fn is_long(layer: &Layer, change: &Change) -> bool {
    let is_long = |side: &Directory| {
        side.metadata(&change.path)
            .is_ok_and(|data| data.kind() == EntryKind::File && data.length() > LONGEST_TEXT)
    };
    match change.what {
        What::Added { renamed_from: Some(_) } | What::Permissions { .. } => false,
        What::Added { .. } => is_long(layer.upper()),
        What::Removed { .. } => is_long(layer.workspace()),
        What::Modified => is_long(layer.upper()) || is_long(layer.workspace()),
    }
}

/// Longest time that one file is compared line by line; then larger parts of it count as changed.
const LINE_DIFF_TIMEOUT: Duration = Duration::from_millis(500);

fn line_diff<'t>(before: &'t str, after: &'t str, time: Duration) -> TextDiff<'t, 't, str> {
    TextDiff::configure().timeout(time.min(LINE_DIFF_TIMEOUT)).diff_lines(before, after)
}

/// What was done to a file, in words.
fn done_to(change: &Change) -> String {
    let done = match &change.what {
        What::Added { renamed_from: Some(from) } => {
            format!("renamed from {}{}", name(from), rights(change))
        }
        What::Added { .. } => format!("added{}", rights(change)),
        What::Removed { .. } => "removed".to_owned(),
        What::Modified => format!("changed{}", rights(change)),
        What::Permissions { from, to } => format!("mode {from:o} → {to:o}"),
    };
    match executed_later(change) {
        Some(why) => format!("{done}; {why}"),
        None => done,
    }
}

/// Why a program executes a file later that the run made or changed.
fn executed_later(change: &Change) -> Option<&'static str> {
    change.executed_by.map(ExecutedBy::describe)
}

/// A run that is over and has an overlay, with its record and the directory of the overlay.
fn find(text: &str, installation: &Installation) -> anyhow::Result<(RunId, Record, PathBuf)> {
    let runs = installation.runs();
    let run = runs.find(text)?;
    let record = runs.record(&run)?;
    if runs.progress(&run)? == Progress::Running {
        bail!("the run {run} is not over");
    }
    let nothing = |why: &str| {
        advise(
            anyhow!("the run {run} has nothing to show: {why}"),
            "a run keeps its changes apart with `--workspace overlay`",
        )
    };
    if !record.layer {
        return Err(nothing("it wrote into the workspace itself"));
    }
    let directory = runs.layer(&run);
    if !directory.exists() {
        return Err(nothing("its changes were applied or discarded"));
    }
    Ok((run, record, directory))
}

/// Opens the overlay of a run over the workspace that the run had, or over a directory that the user names.
fn open(text: &str, named: Option<&Path>, installation: &Installation) -> anyhow::Result<Layer> {
    Ok(open_over(text, named, installation)?.0)
}

/// The same, with the directory itself, which a name that is a link leads to.
fn open_over(
    text: &str,
    named: Option<&Path>,
    installation: &Installation,
) -> anyhow::Result<(Layer, PathBuf)> {
    let (run, record, directory) = find(text, installation)?;
    let (path, id) = match named {
        Some(path) => {
            let Workspace { path, id } = Workspace::named(installation, path)?;
            (path, id)
        }
        None => (record.workspace.host().clone(), record.workspace_id),
    };
    let marker = installation.runs().record_file(&run);
    let layer = Layer::open(&directory, path.as_path(), id, &marker).map_err(|error| match error {
        LayerError::Directory(error) => workspace::refused(error),
        error => error.into(),
    })?;
    Ok((layer, path.as_path().to_owned()))
}

/// Whether a path is one of these or below one of them; all are if none is named.
fn is_wanted(paths: &[PathBuf], path: &Path) -> bool {
    paths.is_empty()
        || paths.iter().any(|wanted| path.starts_with(wanted.strip_prefix("./").unwrap_or(wanted)))
}

/// Each path that was named has to be among the changes.
fn check_named(paths: &[PathBuf], changes: &[Change]) -> anyhow::Result<()> {
    for path in paths {
        if !changes.iter().any(|change| is_wanted(std::slice::from_ref(path), &change.path)) {
            return Err(advise(
                anyhow!("the run did not change {}", path.display()),
                "`ringfence diff RUN --stat` lists what it changed",
            ));
        }
    }
    Ok(())
}

pub(crate) fn diff(args: &DiffArgs, installation: &Installation) -> anyhow::Result<ExitCode> {
    let layer = open(&args.run, args.cwd.as_deref(), installation)?;
    let runs = installation.runs();
    let run = runs.find(&args.run)?;
    let has_commits = git::has_commits(&runs, &run);
    let Changes { list, notices, .. } = layer.changes();
    check_named(&args.paths, &list)?;
    let changes: Vec<Change> =
        list.into_iter().filter(|change| is_wanted(&args.paths, &change.path)).collect();
    if args.json {
        terminal::json(&changes.iter().map(described).collect::<Result<Vec<_>, _>>()?)?;
    } else if changes.is_empty() {
        terminal::line(if has_commits { "No files were changed." } else { "Nothing was changed." });
    } else if args.stat {
        show_stat(&layer, &changes);
    } else {
        changes.iter().for_each(|change| show(&layer, change));
    }
    if has_commits {
        terminal::about(format!(
            "the run changed branches, tags or HEAD: `ringfence apply {run}` imports them"
        ));
    }
    notices.iter().for_each(terminal::about);
    Ok(ExitCode::SUCCESS)
}

/// A change for programs, with why another program executes the file later.
fn described(change: &Change) -> serde_json::Result<serde_json::Value> {
    let mut value = serde_json::to_value(change)?;
    if let Some(why) = executed_later(change) {
        value["executed_later"] = why.into();
    }
    Ok(value)
}

pub(crate) fn apply(args: &ApplyArgs, installation: &Installation) -> anyhow::Result<ExitCode> {
    if let Some(run) = waiting_for_import(&args.run, installation)? {
        return import(&run, installation, args.json);
    }
    let (layer, directory) = open_over(&args.run, args.cwd.as_deref(), installation)?;
    // A name may be a link: the directory that is written is told.
    let directory = args.cwd.as_ref().map(|_| directory.display().to_string());
    let changes = layer.changes();
    check_named(&args.paths, &changes.list)?;
    let done = layer.apply(&changes, &|path| is_wanted(&args.paths, path))?;
    // Commits name whole trees, so they are imported with all files, or on request.
    let runs = installation.runs();
    let run = runs.find(&args.run)?;
    let commits = match args.paths.is_empty() && (done.conflicts.is_empty() || args.commits) {
        true => commits(&run, installation)?,
        false => ImportedRefs::default(),
    };
    let commits_are_left = !done.conflicts.is_empty() && git::has_commits(&runs, &run);
    if !args.json {
        tell_commits(&commits);
    }
    if args.json {
        let text = |path: &PathBuf| path.display().to_string();
        let applied: Vec<_> = done.applied.iter().map(text).collect();
        let conflicts: Vec<_> = done.conflicts.iter().map(|(path, why)| (text(path), why)).collect();
        let mut document = serde_json::json!({ "applied": applied, "conflicts": conflicts, "commits_left": commits_are_left });
        if let Some(directory) = directory {
            document["directory"] = directory.into();
        }
        terminal::json(&document)?;
    } else {
        if let Some(directory) = directory {
            terminal::about(format!("applied to {}", escaped(&directory)));
        }
        tell(&done, &changes.list);
        tell_executed(&done, &changes.list);
        if commits_are_left {
            terminal::about(format!(
                "branches, tags and HEAD were not imported, because files are in conflict: `ringfence apply {run} --commits` imports them"
            ));
        }
    }
    let notices = if changes.is_truncated { &changes.notices } else { &changes.warnings };
    notices.iter().for_each(terminal::about);
    Ok(ExitCode::from(u8::from(!done.conflicts.is_empty())))
}

/// A run that wrote into the workspace itself and whose commits could not be imported at its end.
fn waiting_for_import(text: &str, installation: &Installation) -> anyhow::Result<Option<RunId>> {
    let runs = installation.runs();
    let run = runs.find(text)?;
    let waits =
        !runs.record(&run)?.layer && runs.git(&run).is_dir() && runs.progress(&run)? != Progress::Running;
    Ok(waits.then_some(run))
}

fn commits(run: &RunId, installation: &Installation) -> anyhow::Result<ImportedRefs> {
    let runs = installation.runs();
    let record = runs.record(run)?;
    let workspace = record.workspace.host().as_path();
    Ok(git::import(&runs, run, (&installation.programs(Some(workspace)), workspace), None))
}

fn import(run: &RunId, installation: &Installation, json: bool) -> anyhow::Result<ExitCode> {
    let imported = commits(run, installation)?;
    if json {
        terminal::json(
            &serde_json::json!({ "refs": imported.refs, "executed_later": imported.executed_later(), "notices": imported.notices }),
        )?;
    } else {
        tell_commits(&imported);
    }
    Ok(ExitCode::from(u8::from(!imported.notices.is_empty())))
}

fn tell_commits(imported: &ImportedRefs) {
    let green = AnsiColor::Green.on_default();
    for git_ref in &imported.refs {
        let at = git_ref.kept_as.as_ref().unwrap_or(&git_ref.name);
        let to = git_ref.to.as_deref().map_or("deleted", |to| to.get(..12).unwrap_or(to));
        let old = git_ref.from_kept_as.as_ref().map(|old| format!(", before: {}", escaped(old)));
        let old = old.unwrap_or_default();
        terminal::line(format!("{green}imported{green:#} {} {to}{old}", escaped(at)));
    }
    if let Some(message) = imported.executed_notice() {
        terminal::about(message);
    }
    for notice in &imported.notices {
        terminal::about(notice);
    }
}

/// Says which of the applied files programs execute.
fn tell_executed(done: &Applied, changes: &[Change]) {
    let executed = changes.iter().filter(|change| change.executed_by.is_some());
    let mut executed = executed.peekable();
    if executed.peek().is_none() {
        return;
    }
    let applied: HashSet<&PathBuf> = done.applied.iter().collect();
    let executed = executed.filter(|change| applied.contains(&change.path)).filter_map(|change| {
        let path = name(&change.path).into();
        Some(ExecutedLater {
            path,
            why: executed_later(change)?.to_owned(),
            git_ref: None,
            more_git_refs: Vec::new(),
        })
    });
    if let Some(message) = ringfence_engine::executed_notice(&executed.collect::<Vec<_>>()) {
        terminal::about(message);
    }
}

/// Says what was applied, with the permissions that others have of it.
fn tell(done: &Applied, changes: &[Change]) {
    let (green, red) = (AnsiColor::Green.on_default(), AnsiColor::Red.on_default());
    let come = changes.iter().filter(|change| !matches!(change.what, What::Removed { .. }));
    let rights: HashMap<&PathBuf, String> =
        come.map(|change| (&change.path, rights(change))).filter(|(_, rights)| !rights.is_empty()).collect();
    for path in &done.applied {
        let rights = rights.get(path).map(String::as_str).unwrap_or_default();
        terminal::line(format!("{green}applied{green:#}  {}{rights}", name(path)));
    }
    for (path, why) in &done.conflicts {
        terminal::line(format!("{red}conflict{red:#} {}: {why}", name(path)));
    }
    if !done.conflicts.is_empty() {
        terminal::about("What is in conflict stays in the layer: `ringfence diff` shows it.");
    }
}

pub(crate) fn discard(args: &DiscardArgs, installation: &Installation) -> anyhow::Result<ExitCode> {
    // The workspace does not matter, so it may be another directory by now.
    let (run, _, directory) = find(&args.run, installation)?;
    let has_commits = git::has_commits(&installation.runs(), &run);
    Layer::discard_at(&directory)?;
    git::discard(&installation.runs(), &run).context("failed to discard the commits of the run")?;
    let discarded = if has_commits { "changes and commits" } else { "changes" };
    terminal::line(format!("Discarded the {discarded} of the run {run}."));
    Ok(ExitCode::SUCCESS)
}

/// A name on one line, whatever it is made of.
fn name(path: &Path) -> String {
    shown_path(path)
}

/// One letter for what was done, as git has it.
fn letter(change: &Change) -> char {
    match &change.what {
        What::Added { renamed_from: Some(_) } => 'R',
        What::Added { .. } => 'A',
        What::Removed { .. } => 'D',
        What::Modified | What::Permissions { .. } => 'M',
    }
}

/// What was renamed is told of once, under its new name.
fn is_told_elsewhere(change: &Change) -> bool {
    matches!(change.what, What::Removed { renamed_to: Some(_) })
}

fn show_stat(layer: &Layer, changes: &[Change]) {
    let mut sums = (0, 0);
    let mut rows = Vec::new();
    for change in changes.iter().filter(|change| !is_told_elsewhere(change)) {
        let (added, removed) = lines_of(layer, change).unwrap_or_default();
        sums = (sums.0 + added, sums.1 + removed);
        let path = match &change.what {
            What::Added { renamed_from: Some(from) } => format!("{} → {}", name(from), name(&change.path)),
            What::Permissions { from, to } => format!("{} (mode {from:o} → {to:o})", name(&change.path)),
            _ => format!("{}{}", name(&change.path), rights(change)),
        };
        let slash = if change.directory { "/" } else { "" };
        let conflict = change.conflict.as_ref().map(|why| format!("conflict: {why}"));
        let conflict = conflict.or_else(|| executed_later(change).map(str::to_owned)).unwrap_or_default();
        let count = if added + removed == 0 { String::new() } else { format!("+{added} -{removed}") };
        rows.push(vec![letter(change).to_string(), format!("{path}{slash}"), count, conflict]);
    }
    terminal::table(&rows);
    let what = if rows.len() == 1 { "change" } else { "changes" };
    terminal::line(format!("{} {what}, {} lines added, {} removed", rows.len(), sums.0, sums.1));
}

/// How many lines were added and removed, where both sides are texts.
fn lines_of(layer: &Layer, change: &Change) -> Option<(usize, usize)> {
    let (before, after) = texts(layer, change)?;
    let diff = line_diff(&before, &after, LINE_DIFF_TIMEOUT);
    let count = |tag| diff.iter_all_changes().filter(|change| change.tag() == tag).count();
    Some((count(ChangeTag::Insert), count(ChangeTag::Delete)))
}

/// What a file held and holds, if both can be shown.
fn texts(layer: &Layer, change: &Change) -> Option<(String, String)> {
    let nothing = || Some(String::new());
    let (before, after) = match &change.what {
        What::Added { renamed_from: Some(_) } | What::Permissions { .. } => (nothing(), nothing()),
        What::Added { .. } => (nothing(), text(layer.upper(), &change.path)),
        What::Removed { .. } => (text(layer.workspace(), &change.path), nothing()),
        What::Modified => (text(layer.workspace(), &change.path), text(layer.upper(), &change.path)),
    };
    before.zip(after)
}

/// A text; a link as what it leads to.
fn text(side: &Directory, path: &Path) -> Option<String> {
    match side.metadata(path).ok()?.kind() {
        EntryKind::Link => Some(format!("→ {}\n", side.read_link(path).ok()?.display())),
        EntryKind::Directory => Some(String::new()),
        EntryKind::File => side.read_text(path, LONGEST_TEXT).ok().filter(|text| !text.contains('\0')),
        EntryKind::Socket | EntryKind::Other => None,
    }
}

fn show(layer: &Layer, change: &Change) {
    if is_told_elsewhere(change) {
        return;
    }
    let bold = Style::new().bold();
    let slash = if change.directory { "/" } else { "" };
    let what = done_to(change);
    terminal::line(format!("{bold}{} {}{slash}{bold:#} {what}", letter(change), name(&change.path)));
    if let Some(conflict) = &change.conflict {
        let red = AnsiColor::Red.on_default();
        terminal::line(format!("{red}conflict{red:#}: {conflict}"));
    }
    match texts(layer, change) {
        Some((before, after)) => show_lines(&before, &after),
        None => terminal::line(sizes(layer, change)),
    }
}

/// The permissions that a file or directory gets with its content, where they are not the usual ones: a new file that may be executed
/// or written by others, a new directory that others may write in, a changed file with other permissions than before.
fn rights(change: &Change) -> String {
    let usual = match (&change.what, change.directory) {
        (What::Modified, _) => 0,
        (_, true) => 0o755,
        (_, false) => 0o644,
    };
    match change.mode {
        Some(mode) if mode & !usual != 0 || usual == 0 => format!(", mode {mode:o}"),
        _ => String::new(),
    }
}

fn show_lines(before: &str, after: &str) {
    let (red, green, cyan) =
        (AnsiColor::Red.on_default(), AnsiColor::Green.on_default(), AnsiColor::Cyan.on_default());
    for hunk in line_diff(before, after, LINE_DIFF_TIMEOUT).unified_diff().context_radius(3).iter_hunks() {
        terminal::line(format!("{cyan}{}{cyan:#}", hunk.header()));
        for change in hunk.iter_changes() {
            let line = escaped(change.value().trim_end_matches('\n'));
            match change.tag() {
                ChangeTag::Delete => terminal::line(format!("{red}-{line}{red:#}")),
                ChangeTag::Insert => terminal::line(format!("{green}+{line}{green:#}")),
                ChangeTag::Equal => terminal::line(format!(" {line}")),
            }
        }
    }
}

fn sizes(layer: &Layer, change: &Change) -> String {
    let size = |side: &Directory| side.metadata(&change.path).map_or(0, |data| data.length());
    let (before, after) = (size(layer.workspace()), size(layer.upper()));
    match change.what {
        What::Removed { .. } => format!("binary, {before} bytes"),
        What::Modified => format!("binary, {before} → {after} bytes"),
        _ => format!("binary, {after} bytes"),
    }
}
