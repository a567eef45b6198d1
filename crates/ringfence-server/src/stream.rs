//! Streams that somebody follows: events, and the lines of a log.
//!
//! The store and the file are the buffer: a follower reads on from where it was, as fast as it can take it. So a slow one
//! costs no memory and loses nothing, and nobody waits for it.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ringfence_core::ids::RunId;
use ringfence_store::Entry;
use tokio::sync::watch;

use crate::app::App;

/// How often a log is looked at while somebody follows it.
const LOOK: Duration = Duration::from_millis(100);
/// So much is read at once.
const CHUNK: usize = 64 << 10;
/// A line that does not end sooner is cut.
const LONGEST_LINE: usize = 16 << 20;

/// Counts a follower for as long as it lives.
struct Counted(App);

impl Counted {
    fn new(app: &App) -> Self {
        app.metrics.stream().fetch_add(1, Ordering::Relaxed);
        Self(app.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let streams: &AtomicU64 = self.0.metrics.stream();
        streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Somebody who follows events.
pub(crate) struct EventFollower {
    app: App,
    after: u64,
    last: watch::Receiver<u64>,
    _counted: Counted,
}

impl EventFollower {
    pub(crate) fn new(app: &App, after: u64) -> Self {
        Self { after, last: app.last_event.clone(), _counted: Counted::new(app), app: app.clone() }
    }

    /// The next events; none if there will be none any more.
    pub(crate) async fn next(&mut self) -> Option<Vec<Entry>> {
        loop {
            // Before looking, so that what comes meanwhile is noticed.
            self.last.borrow_and_update();
            let after = self.after;
            let entries = self.app.ask(move |house| house.events(after, 500, Duration::ZERO)).await.ok()?;
            if let Some(last) = entries.last() {
                self.after = last.id;
                return Some(entries);
            }
            self.last.changed().await.ok()?;
        }
    }
}

/// Somebody who follows the log of a run.
pub(crate) struct LogFollower {
    app: App,
    run: RunId,
    path: PathBuf,
    place: u64,
    /// The beginning of a line whose end is still to come.
    rest: Vec<u8>,
    follow: bool,
    _counted: Counted,
}

/// Whole lines, with where the next begins.
pub(crate) struct Lines {
    pub(crate) text: Vec<u8>,
    pub(crate) next: u64,
}

impl LogFollower {
    /// From a place in the log; until the run is over, or until the end that it has now.
    pub(crate) fn new(app: &App, run: RunId, from: u64, follow: bool) -> Self {
        let path = app.house.log_file(&run);
        let _counted = Counted::new(app);
        Self { app: app.clone(), run, path, place: from, rest: Vec::new(), follow, _counted }
    }

    /// The next lines; none when the run is over and all were told.
    pub(crate) async fn next(&mut self) -> Option<Lines> {
        loop {
            // Asked before reading: what was written by then is read.
            let (app, run) = (self.app.clone(), self.run.clone());
            let over =
                !self.follow || tokio::task::spawn_blocking(move || app.house.is_over(&run)).await.ok()?;
            let read = self.read().await?;
            if read > 0 {
                if let Some(lines) = self.whole() {
                    return Some(lines);
                }
                continue;
            }
            if over {
                return None;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Reads on. A log that is not there yet is empty.
    async fn read(&mut self) -> Option<usize> {
        let (path, place) = (self.path.clone(), self.place + self.rest.len() as u64);
        let read = tokio::task::spawn_blocking(move || {
            let mut bytes = vec![0; CHUNK];
            let read = File::open(path).and_then(|mut file| {
                file.seek(SeekFrom::Start(place))?;
                file.read(&mut bytes)
            });
            bytes.truncate(read.unwrap_or(0));
            bytes
        });
        let bytes = read.await.ok()?;
        self.rest.extend_from_slice(&bytes);
        Some(bytes.len())
    }

    /// The whole lines of what was read.
    fn whole(&mut self) -> Option<Lines> {
        let end = match self.rest.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => end + 1,
            None if self.rest.len() >= LONGEST_LINE => self.rest.len(),
            None => return None,
        };
        let rest = self.rest.split_off(end);
        let text = std::mem::replace(&mut self.rest, rest);
        self.place += text.len() as u64;
        Some(Lines { text, next: self.place })
    }
}
