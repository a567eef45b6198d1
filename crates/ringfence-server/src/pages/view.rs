//! What all pages have in common.

use axum::response::{Html, IntoResponse, Response};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use ringfence_core::event::Usage;
use ringfence_core::task::TaskStatus;

use super::Visitor;
use crate::works::Work;

/// The pages that one can go to, in the order in which people read them.
const PLACES: [(&str, &str); 8] = [
    ("/ui", "Overview"),
    ("/ui/tasks", "Tasks"),
    ("/ui/runs", "Runs"),
    ("/ui/agents", "Agents"),
    ("/ui/dead-letters", "Dead letters"),
    ("/ui/system", "System"),
    ("/ui/system/settings", "Settings"),
    ("/ui/compare", "Compare"),
];

/// A page.
pub(crate) struct Page(Markup);

impl IntoResponse for Page {
    fn into_response(self) -> Response {
        Html(self.0.into_string()).into_response()
    }
}

impl Page {
    /// With the way to all others.
    pub(super) fn new(visitor: &Visitor, place: &str, title: &str, body: &Markup) -> Self {
        // What is said once is for who sees the whole page.
        let said = (!visitor.partly).then(|| visitor.app.sessions.told(&visitor.name)).flatten();
        Self::frame(
            title,
            &html! {
                a.skip href="#main" { "To the content" }
                header.top {
                    a.brand href="/ui" { (mark()) span { "ringfence" } }
                    nav aria-label="Pages" {
                        @for (address, name) in PLACES {
                            a href=(address) aria-current=[(address == place).then_some("page")] { (name) }
                        }
                    }
                    span.live id="live" role="status" data-after=(*visitor.app.last_event.borrow()) title="Whether this page is kept up to date" { "○" }
                    @if visitor.has_session() {
                        form method="post" action="/ui/logout" { (visitor.token()) button.quiet { "Log out" } }
                    }
                }
                main id="main" {
                    @if let Some(said) = said {
                        p class=(if said.starts_with('✗') { "said bad" } else { "said" }) role="status" { (said) }
                    }
                    (body)
                }
            },
        )
    }

    /// With nothing around it.
    pub(super) fn bare(title: &str, body: &Markup) -> Self {
        Self::frame(title, &html! { main id="main" { (body) } })
    }

    fn frame(title: &str, body: &Markup) -> Self {
        Self(html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (title) " · ringfence" }
                    link rel="icon" href="/assets/icon.svg" type="image/svg+xml";
                    link rel="stylesheet" href="/assets/style.css";
                    script src="/assets/script.js" defer {}
                }
                body { (body) }
            }
        })
    }
}

/// The mark of the house: a ring with a gate.
fn mark() -> Markup {
    PreEscaped(
        r#"<svg viewBox="0 0 32 32" width="22" height="22" aria-hidden="true"><path d="M21.5 5.6A12 12 0 1 0 26.4 10.5" fill="none" stroke="currentColor" stroke-width="4" stroke-linecap="round"/><circle cx="16" cy="16" r="4" fill="currentColor"/></svg>"#.to_owned(),
    )
}

/// The state of something, as a word with a colour.
pub(super) fn badge(word: &str) -> Markup {
    let kind = match word {
        "done" | "success" | "ok" | "running" | "busy" | "started" => "good",
        "failed" | "dead" | "lost" | "damaged" | "broken" | "deny" | "block" | "error" => "bad",
        "blocked" | "cancelled" | "stopped" | "absent" | "offline" => "warn",
        _ => "plain",
    };
    let kind = if matches!(word, "running" | "busy") { "live" } else { kind };
    html! { span class={ "badge " (kind) } { (word) } }
}

/// A state of tasks.
pub(super) fn state(name: TaskStatus) -> Markup {
    badge(name.as_str())
}

/// A moment, as how long ago it was.
pub(super) fn ago(ms: u64) -> Markup {
    let now = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0);
    let exact = crate::wire::time(ms);
    html! { time datetime=(exact) title=(exact) { (span(now.saturating_sub(ms))) } }
}

/// How long something takes.
pub(super) fn span(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// How long a run took, more exactly.
pub(super) fn duration(ms: u64) -> String {
    if ms < 60_000 { format!("{:.1} s", ms as f64 / 1000.0) } else { span(ms) }
}

/// A size in bytes.
pub(super) fn size(bytes: u64) -> String {
    let mut amount = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if amount < 1024.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{amount:.1} {unit}") };
        }
        amount /= 1024.0;
    }
    format!("{amount:.1} TiB")
}

/// A large number, in groups.
pub(super) fn number(value: u64) -> String {
    let digits = value.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|part| std::str::from_utf8(part).ok()).collect();
    groups.join("\u{202f}")
}

/// What was spent.
pub(super) fn money(usage: &Usage) -> String {
    usage.cost_usd.map_or_else(|| "–".to_owned(), |cost| format!("${cost:.2}"))
}

/// Tokens in and out.
pub(super) fn tokens(usage: &Usage) -> String {
    let Usage { input_tokens, output_tokens, cached_tokens, .. } = usage;
    format!(
        "{} in · {} out · {} cached",
        number(*input_tokens),
        number(*output_tokens),
        number(*cached_tokens)
    )
}

/// The beginning of a text, on one line.
pub(super) fn line(text: &str, longest: usize) -> String {
    let joined = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match joined.char_indices().nth(longest) {
        Some((end, _)) => format!("{}…", &joined[..end]),
        None => joined,
    }
}

/// A button that does one thing to one thing.
pub(super) fn act(visitor: &Visitor, to: &str, name: &str, sure: Option<&str>) -> Markup {
    html! {
        form.inline method="post" action=(to) data-confirm=[sure] {
            (visitor.token())
            button.small type="submit" { (name) }
        }
    }
}

/// A part of a page that is fetched when the page is there, because finding out takes a while.
pub(super) fn later(visitor: &Visitor, id: &str, address: &str, what: &str, work: &str) -> Markup {
    html! {
        div id=(id) data-load=(address) {
            p.waiting { a href=(address) { (what) } }
            (progress(visitor, work))
        }
    }
}

/// How far long work has come, if it is under way.
pub(super) fn progress(visitor: &Visitor, name: &str) -> Markup {
    let work = visitor.app.works.named(name);
    let of = work.as_ref().map_or(0, |work| work.of);
    html! {
        p.work data-work=(name) hidden[work.is_none()] {
            progress aria-label={ "Progress of " (name) } max=[(of > 0).then_some(of)] value=[work.as_ref().filter(|_| of > 0).map(|work| work.done)] {}
            " " span { @if let Some(work) = &work { (works(work)) } }
        }
    }
}

/// How far it has come, in words.
fn works(work: &Work) -> String {
    match work.of {
        0 => work.what.clone(),
        of => format!("{} of {of} · {}", work.done, work.what),
    }
}
