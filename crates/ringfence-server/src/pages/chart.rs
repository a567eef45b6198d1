//! Charts, drawn here.

use maud::{Markup, html};
use ringfence_store::Span;

use super::view::money;

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 170.0;
const FOOT: f64 = 18.0;

/// Runs over time: those that succeeded, failed and were cancelled, one on top of another.
pub(super) fn runs(spans: &[Span], label: impl Fn(u64) -> String) -> Markup {
    let most =
        spans.iter().map(|span| span.succeeded + span.failed + span.cancelled).max().unwrap_or(0).max(1);
    let step = WIDTH / spans.len().max(1) as f64;
    let scale = |count: u64| count as f64 / most as f64 * (HEIGHT - FOOT - 14.0);
    let bars = spans.iter().enumerate().map(|(place, span)| {
        let parts = [("good", span.succeeded), ("bad", span.failed), ("warn", span.cancelled)];
        let mut foot = HEIGHT - FOOT;
        let parts = parts.map(|(kind, count)| {
            foot -= scale(count);
            (kind, foot, scale(count))
        });
        (place as f64 * step, span, parts)
    });
    let total = |count: fn(&Span) -> u64| spans.iter().map(count).sum::<u64>();
    let (good, bad, given_up) =
        (total(|span| span.succeeded), total(|span| span.failed), total(|span| span.cancelled));
    html! {
        figure.chart {
            svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label={ (good) " runs succeeded, " (bad) " failed, " (given_up) " were cancelled" } {
                line x1="0" x2=(WIDTH) y1=(HEIGHT - FOOT) y2=(HEIGHT - FOOT) class="axis" {}
                text x="2" y="10" class="tick" { (most) }
                @for (place, (x, span, parts)) in bars.enumerate() {
                    g {
                        title { (label(span.from_ms)) ": " (span.succeeded) " succeeded, " (span.failed) " failed, " (span.cancelled) " cancelled, " (money(&span.usage)) }
                        rect x=(format!("{x:.1}")) y="0" width=(format!("{step:.1}")) height=(HEIGHT - FOOT) class="hit" {}
                        @for (kind, y, height) in parts {
                            @if height > 0.0 {
                                rect x=(format!("{:.1}", x + step * 0.15)) y=(format!("{y:.1}")) width=(format!("{:.1}", step * 0.7)) height=(format!("{height:.1}")) class=(kind) {}
                            }
                        }
                        @if place % 4 == 0 {
                            text x=(format!("{:.1}", x + step / 2.0)) y=(HEIGHT - 4.0) class="tick middle" { (label(span.from_ms)) }
                        }
                    }
                }
            }
            figcaption {
                span.key.good { (good) " succeeded" }
                span.key.bad { (bad) " failed" }
                span.key.warn { (given_up) " cancelled" }
            }
        }
    }
}
