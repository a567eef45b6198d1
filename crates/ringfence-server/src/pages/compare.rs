//! Compare: what each mode keeps here, and what it costs.

use axum::extract::State;
use axum::response::Response;
use maud::html;
use ringfence_core::mode::{Mode, UnknownMode};
use serde::Deserialize;
use serde_json::Value;

use super::view::{Page, badge, progress};
use super::{Form, Nothing, Site, Visitor, Wrong, back};
use crate::app::lock;
use crate::problem::Problem;

const HERE: &str = "/ui/compare";

pub(super) async fn page(State(app): Site, visitor: Visitor) -> Result<Page, Wrong> {
    let modes = app.modes().await?;
    let of_all = modes.iter().flat_map(|mode| mode.promises.iter().map(|(promise, _)| promise));
    let mut promises: Vec<&String> = Vec::new();
    of_all.for_each(|promise| {
        if !promises.contains(&promise) {
            promises.push(promise);
        }
    });
    let timings = lock(&app.timings).clone();
    let of = |mode| timings.iter().find(|timing| timing.mode == mode);
    let body = html! {
        h1 { "Compare" }
        section.card {
            h2 { "What it costs" }
            p { "From the command to the end of `true`, in each mode that works here: the median of several times, in turns." }
            form method="post" action="/ui/compare/measure" data-busy="Measuring…" { (visitor.token()) button.primary type="submit" { "Measure" } }
            (progress(&visitor, "compare"))
            @if !timings.is_empty() {
                @let most = timings.iter().filter_map(|timing| timing.median_ms).fold(1.0, f64::max);
                div.scroll { table.bars { tbody { @for timing in &timings { tr {
                    th scope="row" { (timing.mode) }
                    td { @match timing.median_ms {
                        Some(ms) => { meter min="0" max=(most) value=(ms) {} " " (format!("{ms:.1} ms")) },
                        None => small { (timing.why.as_deref().unwrap_or("not here")) },
                    } }
                } } } } }
            }
        }
        section.card {
            h2 { "What it keeps" }
            div.scroll { table.matrix {
                thead { tr { th { "" } @for mode in &modes { th scope="col" title=(mode.boundary) { (mode.mode) @if mode.in_use { small { "in use" } } } } } }
                tbody {
                    @for promise in promises { tr {
                        th scope="row" { (promise) }
                        @for mode in &modes {
                            @match (mode.promises.iter().find(|(kept, _)| kept == promise).map(|(_, mechanism)| mechanism), mode.available) {
                                (Some(mechanism), _) => td.yes title=(mechanism) { "✓" span.hidden { "by " (mechanism) } },
                                (None, true) => td.no { "–" span.hidden { "no" } },
                                (None, false) => td.none { "·" span.hidden { "not yet" } },
                            }
                        }
                    } }
                    @if !timings.is_empty() { tr { th scope="row" { "median of `true`" } @for mode in &modes { td { @if let Some(ms) = of(mode.mode).and_then(|timing| timing.median_ms) { (format!("{ms:.0} ms")) } } } } }
                }
            } }
        }
        section.card {
            h2 { "Modes" }
            form.line method="post" action="/ui/compare/probe" data-busy="Trying…" {
                (visitor.token())
                label { "Try to break every promise of" select name="mode" { @for mode in modes.iter().filter(|mode| mode.available) { option value=(mode.mode) selected[mode.in_use] { (mode.mode) } } } }
                button type="submit" { "Probe" }
            }
            (progress(&visitor, "probe"))
            dl.facts { @for mode in &modes { dt { (mode.mode) } dd { (mode.boundary) " " small { "needs " (mode.needs) @if let Some(hint) = &mode.hint { " · " (hint) } } } } }
        }
    };
    Ok(Page::new(&visitor, HERE, "Compare", &body))
}

pub(super) async fn measure(State(app): Site, visitor: Visitor, Form(Nothing {}): Form<Nothing>) -> Response {
    let measured = app.measure(visitor.who).await;
    back(&visitor, HERE, measured.map(|count| format!("{count} modes were measured.")))
}

#[derive(Deserialize)]
pub(super) struct Which {
    mode: String,
}

/// Tries to break each promise of a mode, and shows what held.
pub(super) async fn probe(
    State(app): Site,
    visitor: Visitor,
    Form(which): Form<Which>,
) -> Result<Page, Wrong> {
    let mode: Mode = which.mode.parse().map_err(|error: UnknownMode| Problem::invalid(error.to_string()))?;
    let report = app.probe(visitor.who, Some(mode)).await?;
    let rows = report["promises"].as_array().cloned().unwrap_or_default();
    let text = |row: &Value, name: &str| row[name].as_str().unwrap_or_default().to_owned();
    let body = html! {
        h1 { "Probe of " (mode) }
        section.card {
            p { (badge(if report["broken_claims"] == 0 { "ok" } else { "broken" })) " " (report["broken_claims"]) " claims broken" }
            div.scroll { table {
                thead { tr { th { "Promise" } th { "" } th { "By" } th.count { "Attempts" } } }
                tbody { @for row in &rows { tr {
                    td { (text(row, "promise")) } td { (badge(&text(row, "state"))) } td { (text(row, "mechanism")) } td.count { (row["attempts"]) }
                } } }
            } }
            details { summary { "All of it" } pre.text { (serde_json::to_string_pretty(&report).unwrap_or_default()) } }
            p { a href=(HERE) { "Back" } }
        }
    };
    Ok(Page::new(&visitor, HERE, "Probe", &body))
}
