//! Counters, as Prometheus reads them.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

use ringfence_store::Span;

use crate::desk::Status;

/// What the server counts itself.
#[derive(Default)]
pub(crate) struct Metrics {
    requests: [AtomicU64; 5],
    streams: AtomicU64,
}

impl Metrics {
    /// Counts an answer by its status.
    pub(crate) fn answered(&self, status: u16) {
        if let Some(counter) = self.requests.get(usize::from(status / 100).saturating_sub(1)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a stream for as long as the result lives.
    pub(crate) fn stream(&self) -> &AtomicU64 {
        &self.streams
    }

    /// All of them, in the text format.
    pub(crate) fn text(&self, status: &Status, all: &Span) -> String {
        let mut text = String::new();
        let mut metric = |name: &str, kind: &str, help: &str, values: &[(String, f64)]| {
            let _ = writeln!(text, "# HELP ringfence_{name} {help}\n# TYPE ringfence_{name} {kind}");
            for (labels, value) in values {
                let _ = writeln!(text, "ringfence_{name}{labels} {value}");
            }
        };
        let label = |name: &str, value: &str| format!("{{{name}=\"{value}\"}}");
        let count = |value: u64| value as f64;
        let tasks: Vec<_> = status
            .tasks
            .iter()
            .map(|(state, number)| (label("state", state.as_str()), count(*number)))
            .collect();
        metric("tasks", "gauge", "Tasks by state.", &tasks);
        let runs = [("success", all.succeeded), ("failed", all.failed), ("cancelled", all.cancelled)];
        let runs = runs.map(|(name, number)| (label("status", name), count(number)));
        metric("runs_ended", "gauge", "Runs that have ended and are kept, by status.", &runs);
        let tokens = [
            ("input", all.usage.input_tokens),
            ("output", all.usage.output_tokens),
            ("cached", all.usage.cached_tokens),
        ];
        let tokens = tokens.map(|(name, number)| (label("kind", name), count(number)));
        metric("tokens", "gauge", "Tokens of the runs that are kept.", &tokens);
        let cost = [(String::new(), all.usage.cost_usd.unwrap_or(0.0))];
        metric("cost_usd", "gauge", "Cost of the runs that are kept, in US dollars.", &cost);
        let processes: Vec<_> = status
            .processes
            .iter()
            .map(|row| (label("name", &row.name), f64::from(u8::from(row.pid.is_some()))))
            .collect();
        metric("process_up", "gauge", "Whether a process runs.", &processes);
        let requests: Vec<_> = (1..)
            .zip(&self.requests)
            .map(|(class, number)| {
                (label("class", &format!("{class}xx")), count(number.load(Ordering::Relaxed)))
            })
            .collect();
        metric("http_answers_total", "counter", "Answers by the class of their status.", &requests);
        let streams = [(String::new(), count(self.streams.load(Ordering::Relaxed)))];
        metric("http_streams", "gauge", "Streams that somebody follows.", &streams);
        text
    }
}
