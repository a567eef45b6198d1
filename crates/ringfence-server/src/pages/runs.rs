//! Runs: all of them, and one with all that can be shown of it.

use std::collections::BTreeMap;

use axum::extract::State;
use maud::{Markup, html};
use ringfence_core::ids::RunId;
use ringfence_core::record::Record;
use serde::Deserialize;
use serde_json::Value;

use super::tasks::fact;
use super::view::{Page, badge, duration, money, size, tokens};
use super::{Site, Visitor, Wrong, log};
use crate::desk::{FileChange, RunRow, RunView};
use crate::input::{Asked, Named};
use crate::stream::LogFollower;
use crate::wire::plain;

/// So many on a page.
const PAGE: usize = 50;
/// So much of a log is on the page from the beginning; a script brings the rest.
const AT_ONCE: usize = 256 << 10;
/// So many network decisions are shown.
const DECISIONS: usize = 500;

#[derive(Deserialize)]
pub(super) struct Which {
    #[serde(default)]
    before: String,
}

pub(super) async fn list(
    State(app): Site,
    visitor: Visitor,
    Asked(which): Asked<Which>,
) -> Result<Page, Wrong> {
    let before: Option<RunId> = which.before.parse().ok();
    let runs = app.ask(move |house| house.runs(before.as_ref(), PAGE)).await?;
    let older = (runs.len() == PAGE).then(|| runs.last().map(|row| row.run.to_string())).flatten();
    let body = html! {
        h1 { "Runs" }
        section.card {
            div.scroll id="runs" data-live {
                @if runs.is_empty() { p.empty { "No runs yet: `ringfence demo` makes one." } } @else { (table(&runs)) }
            }
            @if let Some(older) = older { a.button rel="next" href={ "/ui/runs?before=" (older) } { "Older" } }
        }
    };
    Ok(Page::new(&visitor, "/ui/runs", "Runs", &body))
}

fn table(runs: &[RunRow]) -> Markup {
    html! { table {
        thead { tr { th { "Run" } th { "Status" } th { "Agent" } th { "Mode" } th { "Took" } } }
        tbody { @for row in runs { tr {
            td { a href={ "/ui/runs/" (row.run) } { (row.run) } }
            td { (badge(&row.status)) @if let Some(class) = &row.failure { " " small { (class) } } }
            td { (row.agent.as_deref().unwrap_or_default()) }
            td { (row.mode.as_deref().unwrap_or_default()) }
            td { @if let Some(time) = row.duration_ms { (duration(time)) } }
        } } }
    } }
}

pub(super) async fn show(
    State(app): Site,
    visitor: Visitor,
    Named(run): Named<RunId>,
) -> Result<Page, Wrong> {
    let view = app.ask(move |house| house.run(run.as_str())).await?;
    if visitor.partly {
        // Only what changes by itself: the log comes another way.
        let body = html! { section.card id="run" data-live { (summary(&view)) } };
        return Ok(Page::new(&visitor, "/ui/runs", "Run", &body));
    }
    let run = view.record.run.clone();
    let net = {
        let run = run.clone();
        // A run that reached nobody has nothing to read.
        app.ask(move |house| Ok(house.net(&run).unwrap_or_default())).await?
    };
    let diff = match view.record.layer && view.result.is_some() {
        true => app.diff(run.clone()).await.unwrap_or_default(),
        false => Vec::new(),
    };
    let (first, next) = beginning(&app, &run).await;
    let body = html! {
        h1 { "Run " (run) }
        section.card id="run" data-live { (summary(&view)) }
        section.card {
            h2 { "Log" }
            div.log id="log" tabindex="0" role="log" aria-live="off" data-stream={ "/ui/runs/" (run) "/stream?from=" (next) } { (first) }
        }
        (record(&view.record))
        section.card {
            h2 { "Network" }
            @if net.is_empty() { p.empty { "It asked for no host." } } @else { (decisions(&net)) }
        }
        @if view.record.layer { section.card { h2 { "Changes" } (changes(&diff)) } }
    };
    Ok(Page::new(&visitor, "/ui/runs", &format!("Run {run}"), &body))
}

/// The beginning of the log, and where the rest begins.
async fn beginning(app: &crate::app::App, run: &RunId) -> (Markup, u64) {
    let mut follower = LogFollower::new(app, run.clone(), 0, None, false);
    let mut text = Vec::new();
    let mut next = 0;
    while text.len() < AT_ONCE {
        let Some(Ok(part)) = follower.next().await else { break };
        text.extend(part.text);
        next = part.next;
    }
    (log::lines(&text), next)
}

fn summary(view: &RunView) -> Markup {
    let record = &view.record;
    html! {
        p { (badge(&view.status)) @if let Some(task) = &view.task { " task " a href={ "/ui/tasks/" (task) } { (task) } } }
        @if let Some(result) = &view.result {
            @if let Some(failure) = &result.failure {
                div.failure { strong { (failure.class) } p { (failure.message) } @if let Some(remedy) = &failure.remedy { p.remedy { (remedy) } } }
            }
            @if !result.text.is_empty() { pre.text { (result.text) } }
            @if !result.executed_later.is_empty() {
                h3 { "Files that programs execute later" }
                ul.list { @for file in &result.executed_later { li {
                    code { (file.path) } " " small { (file.why) @if let Some(git_ref) = &file.git_ref { " · in git: " code { (git_ref) } @for git_ref in &file.more_git_refs { ", " code { (git_ref) } } } }
                } } }
            }
            @if !result.git_refs.is_empty() {
                h3 { "Commits" }
                ul.list { @for git_ref in &result.git_refs {
                    li { code { (git_ref.kept_as.as_ref().unwrap_or(&git_ref.name)) } " " small { (git_ref.to.as_deref().unwrap_or("deleted")) @if let Some(old) = &git_ref.from_kept_as { " · before: " code { (old) } } } }
                } }
            }
            @if !result.attachments.is_empty() {
                h3 { "Attachments" }
                ul.list { @for (number, file) in result.attachments.iter().enumerate() {
                    li {
                        @if file.copy.is_some() { a href={ "/runs/" (record.run) "/attachments/" (number) } download { (file.path.display().to_string()) } }
                        @else { (file.path.display().to_string()) }
                        " " small { (size(file.size)) " · " (file.media_type) " · sha256 " code { (file.sha256.get(..12).unwrap_or_default()) "…" } }
                    }
                } }
            }
        }
        dl.facts {
            (fact("Agent", Some(&format!("{} ({})", record.agent, record.cli))))
            (fact("Mode", Some(record.mode.as_str())))
            (fact("Policy", Some(&record.policy)))
            (fact("Workspace", Some(&record.workspace.host().to_string())))
            (fact("Began", Some(&record.started_at)))
            @if let Some(result) = &view.result {
                (fact("Took", Some(&duration(result.duration_ms))))
                (fact("Used", Some(&format!("{} · {}", tokens(&result.usage), money(&result.usage)))))
                @for (model, usage) in &result.metered { (fact(&format!("On the wire, {model}"), Some(&format!("{} · {}", tokens(usage), money(usage))))) }
            }
        }
    }
}

/// What was asked and what was in force, promise by promise and line by line.
fn record(record: &Record) -> Markup {
    let flat = |policy: &ringfence_core::policy::Policy| {
        let mut rows = BTreeMap::new();
        flatten("", &serde_json::to_value(policy).unwrap_or_default(), &mut rows);
        rows
    };
    let (asked, got) = (flat(&record.requested), flat(&record.effective));
    let keys: std::collections::BTreeSet<&String> = asked.keys().chain(got.keys()).collect();
    html! {
        section.card {
            h2 { "Record" }
            div.columns {
                div {
                    h3 { "Promises in force, and by what" }
                    ul.list { @for (promise, mechanism) in &record.mechanisms { li { (promise.describe()) " " small { (mechanism) } } } }
                }
                div {
                    h3 { "Versions" }
                    dl.facts { @for (name, version) in &record.versions { dt { (name) } dd { (version) } } }
                    @if !record.notices.is_empty() { h3 { "Notices" } ul.list { @for notice in &record.notices { li { (notice) } } } }
                }
            }
            details {
                summary { "Requested and effective policy" }
                div.scroll { table {
                    thead { tr { th { "" } th { "Requested" } th { "Effective" } } }
                    tbody { @for key in keys {
                        @let (one, other) = (asked.get(key), got.get(key));
                        tr class=[(one != other).then_some("differs")] { th scope="row" { (key) } td { (one.map_or("–", String::as_str)) } td { (other.map_or("–", String::as_str)) } }
                    } }
                } }
            }
        }
    }
}

fn flatten(path: &str, value: &Value, rows: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                flatten(&path, value, rows);
            }
        }
        Value::Array(items) => {
            let texts: Vec<String> = items.iter().map(plain).collect();
            rows.insert(path.to_owned(), texts.join(", "));
        }
        other => {
            rows.insert(path.to_owned(), plain(other));
        }
    }
}

fn decisions(net: &[ringfence_egress::Entry]) -> Markup {
    html! {
        div.scroll { table {
            thead { tr { th { "Decision" } th { "Host" } th { "Request" } th.count { "Status" } th.count { "Sent" } th.count { "Received" } th { "Rule" } } }
            tbody { @for entry in net.iter().take(DECISIONS) { tr {
                td { (badge(&format!("{:?}", entry.decision).to_lowercase())) }
                td { (entry.host) ":" (entry.port) }
                td.what { (entry.method.as_deref().unwrap_or(&entry.way)) " " (entry.path.as_deref().unwrap_or_default()) }
                td.count { @if let Some(status) = entry.status { (status) } }
                td.count { (size(entry.sent)) }
                td.count { (size(entry.received)) }
                td { (entry.rule) @if let Some(credential) = &entry.credential { " " small { (credential) } } }
            } } }
        } }
        @if net.len() > DECISIONS { p.empty { (net.len() - DECISIONS) " more: `ringfence runs net`" } }
    }
}

fn changes(diff: &[FileChange]) -> Markup {
    html! {
        @if diff.is_empty() { p.empty { "Nothing that is still apart from the workspace." } }
        @for change in diff {
            details.change { summary { code { bdi { (change.path) } } " " small { (change.change) } }
                @if let Some(conflict) = &change.conflict { p.empty { "Conflict: " (conflict) "." } }
                @if let Some(text) = &change.diff { pre.diff { @for line in text.lines() {
                    @let kind = match line.as_bytes().first() { Some(b'+') => "added", Some(b'-') => "removed", Some(b'@') => "hunk", _ => "same" };
                    span class=(kind) { (line) "\n" }
                } } } @else if let Some(why) = &change.omitted { p.empty { "Not shown: " (why) "." } }
            }
        }
    }
}
