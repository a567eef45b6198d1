//! Streams that somebody follows: events, and the lines of a log.
//!
//! The store and the file are the buffer: a follower reads on from where it was, as fast as it can take it. So a slow one
//! costs no memory and loses nothing, and nobody waits for it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ringfence_core::ids::RunId;
use ringfence_store::StoredEvent;
use tokio::sync::watch;

use crate::app::App;

/// How often a log is looked at while somebody follows it.
const LOOK: Duration = Duration::from_millis(100);
/// Whether the run is over is asked at every so many looks.
const ASK_EVERY: u32 = 4;
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
    pub(crate) async fn next(&mut self) -> Option<Vec<StoredEvent>> {
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
    file: Option<Arc<File>>,
    place: u64,
    to: u64,
    /// The beginning of a line whose end is still to come.
    rest: Vec<u8>,
    follow: bool,
    over: bool,
    /// How often there was nothing new.
    looks: u32,
    _counted: Counted,
}

/// Whole lines, with where the next begins.
pub(crate) struct Lines {
    pub(crate) text: Vec<u8>,
    pub(crate) next: u64,
}

impl LogFollower {
    /// From a place in the log, up to another if that is given; until the run is over, or until the end that it has now.
    pub(crate) fn new(app: &App, run: RunId, from: u64, to: Option<u64>, follow: bool) -> Self {
        let path = app.house.log_file(&run);
        let _counted = Counted::new(app);
        Self {
            app: app.clone(),
            run,
            path,
            file: None,
            place: from,
            to: to.unwrap_or(u64::MAX),
            rest: Vec::new(),
            follow,
            over: false,
            looks: 0,
            _counted,
        }
    }

    /// The next lines; none when the run is over and all were told. What cannot be read is no end.
    pub(crate) async fn next(&mut self) -> Option<io::Result<Lines>> {
        loop {
            if self.place >= self.to {
                return None;
            }
            let read = match self.read().await {
                Ok(read) => read,
                Err(error) => return Some(Err(error)),
            };
            if read > 0 {
                if let Some(lines) = self.whole() {
                    return Some(Ok(lines));
                }
                continue;
            }
            // Found out before this reading, so that all that was written by then is read.
            if self.over {
                return None;
            }
            let (app, run) = (self.app.clone(), self.run.clone());
            self.looks += 1;
            self.over = match self.follow {
                false => true,
                true if !self.looks.is_multiple_of(ASK_EVERY) => false,
                true => match tokio::task::spawn_blocking(move || app.house.is_over(&run)).await {
                    Ok(over) => over,
                    Err(error) => return Some(Err(io::Error::other(error))),
                },
            };
            if !self.over {
                tokio::time::sleep(LOOK).await;
            }
        }
    }

    /// Reads on. A log that is not there yet is empty.
    async fn read(&mut self) -> io::Result<usize> {
        if self.file.is_none() {
            match File::open(&self.path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
                opened => self.file = Some(Arc::new(opened?)),
            }
        }
        let Some(file) = &self.file else { return Ok(0) };
        let place = self.place + self.rest.len() as u64;
        // Most of the time there is nothing.
        if file.metadata()?.len() <= place {
            return Ok(0);
        }
        let file = Arc::clone(file);
        let read = tokio::task::spawn_blocking(move || {
            let mut bytes = vec![0; CHUNK];
            let read = file.read_at(&mut bytes, place)?;
            bytes.truncate(read);
            Ok::<_, io::Error>(bytes)
        });
        let bytes = read.await.map_err(io::Error::other)??;
        self.rest.extend_from_slice(&bytes);
        Ok(bytes.len())
    }

    /// The whole lines of what was read.
    fn whole(&mut self) -> Option<Lines> {
        let end = match self.rest.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => end + 1,
            None if self.rest.len() >= LONGEST_LINE => self.rest.len(),
            None => return None,
        };
        let rest = self.rest.split_off(end);
        let mut text = std::mem::replace(&mut self.rest, rest);
        let begun = self.place;
        self.place += text.len() as u64;
        if self.place > self.to {
            // Only lines that begin before it.
            let left = usize::try_from(self.to.saturating_sub(begun)).unwrap_or(usize::MAX).max(1);
            let whole =
                text[left - 1..].iter().position(|byte| *byte == b'\n').map_or(text.len(), |end| left + end);
            text.truncate(whole);
        }
        Some(Lines { next: self.place, text })
    }
}
