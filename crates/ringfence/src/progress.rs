//! How far long work has come: a bar at a terminal, and a line for each step where a program has asked to be told.

use indicatif::{ProgressBar, ProgressStyle};
use ringfence_core::text::PlainText;
use ringfence_server::desk::Step;

use crate::installation::Installation;
use crate::terminal;

/// Who sets it to `json` reads a line of JSON on standard error for each step.
pub(crate) const VARIABLE: (&str, &str) = ("RINGFENCE_PROGRESS", "json");

/// Tells how far something has come. What it has shown is gone when it is dropped.
pub(crate) struct Progress {
    bar: ProgressBar,
    told: bool,
}

impl Progress {
    pub(crate) fn new(installation: &Installation) -> Self {
        let told = installation.env.get(VARIABLE.0).is_some_and(|how| how == VARIABLE.1);
        let bar = if told { ProgressBar::hidden() } else { ProgressBar::no_length() };
        if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len} {wide_msg}") {
            bar.set_style(style);
        }
        Self { bar, told }
    }

    /// So many steps are done, of so many, and this is the next.
    pub(crate) fn at(&self, done: usize, of: usize, what: &str) {
        let (done, of) = (done as u64, of as u64);
        self.bar.set_length(of);
        self.bar.set_position(done);
        self.bar.set_message(PlainText::from(what).one_line());
        if self.told {
            let step = Step { done, of, what: what.to_owned() };
            terminal::about(serde_json::to_string(&step).unwrap_or_default());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
