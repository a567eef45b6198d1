//! Questions that are answered by trying things out: asked of this program as a process of its own, so that whatever
//! happens there happens there, and ends in time.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use ringfence_engine::queue::pause;
use ringfence_server::desk::{Answer, Hear, Refusal, RefusalKind, Step};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::de::DeserializeOwned;

use super::internal;
use crate::installation::Installation;
use crate::progress;

/// Nothing is waited for longer.
const PATIENCE: Duration = Duration::from_secs(240);
/// How long the last words of one that has ended may take.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// No answer is longer.
const LONGEST: u64 = 16 << 20;

/// What a daemon has in its environment that none of these needs: whom to ask instead, and how it is asked itself.
pub(crate) const NOT_PASSED: [&str; 7] = [
    "RINGFENCE_URL",
    "RINGFENCE_TOKEN",
    "RINGFENCE_API_KEY",
    "RINGFENCE_API_KEYS",
    "RINGFENCE_API_SECRET",
    "API_KEYS",
    "API_SECRET",
];

/// Asks, and reads the answer.
pub(super) fn ask<T: DeserializeOwned>(installation: &Installation, words: &[&str]) -> Answer<T> {
    follow(installation, words, &|_| ())
}

/// Asks something that tells how far it has come, and reads the answer. One that ends badly may have answered all the same.
pub(super) fn follow<T: DeserializeOwned>(
    installation: &Installation,
    words: &[&str],
    hear: Hear<'_>,
) -> Answer<T> {
    let mut command = installation.own_command();
    NOT_PASSED.iter().for_each(|name| {
        command.env_remove(name);
    });
    let mut child = command
        .args(words)
        .env(progress::VARIABLE.0, progress::VARIABLE.1)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(internal)?;
    let (said, mut beside) = (text(child.stdout.take()), Beside::new(child.stderr.take()));
    let begun = Instant::now();
    while child.try_wait().map_err(internal)?.is_none() {
        if begun.elapsed() > PATIENCE {
            // With all that it has started.
            let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            let _ = group.map(|group| kill_process_group(group, Signal::KILL));
            let _ = child.wait();
            return Err(Refusal::new(RefusalKind::Unavailable, "there was no answer in time"));
        }
        beside.listen(hear);
        pause(Duration::from_millis(20));
    }
    // Whoever it has left behind may hold its output open.
    let said = said.recv_timeout(LAST_WORDS).unwrap_or_default();
    serde_json::from_str(&said).map_err(|_| {
        let complaints = beside.complaints(LAST_WORDS);
        let mut lines = complaints.iter().map(String::as_str);
        let first = lines.next().unwrap_or("there was no answer").trim_start_matches("error: ").to_owned();
        Refusal::new(RefusalKind::Conflict, first).with_remedy(lines.next().map(str::trim))
    })
}

/// What a stream says until it ends.
fn text(stream: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (told, heard) = channel();
    if let Some(stream) = stream {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stream.take(LONGEST).read_to_end(&mut text);
            let _ = told.send(String::from_utf8_lossy(&text).into_owned());
        });
    }
    heard
}

/// What is said besides the answer: steps, and complaints.
struct Beside {
    lines: Receiver<String>,
    complaints: Vec<String>,
}

impl Beside {
    fn new(stream: Option<impl Read + Send + 'static>) -> Self {
        let (told, lines) = channel();
        if let Some(stream) = stream {
            std::thread::spawn(move || {
                let lines = BufReader::new(stream.take(LONGEST)).split(b'\n').map_while(Result::ok);
                let lines = lines.map(|line| String::from_utf8_lossy(&line).trim_end().to_owned());
                lines.map(|line| told.send(line)).take_while(Result::is_ok).for_each(drop);
            });
        }
        Self { lines, complaints: Vec::new() }
    }

    /// What was said meanwhile.
    fn listen(&mut self, hear: Hear<'_>) {
        while let Ok(line) = self.lines.try_recv() {
            match serde_json::from_str(&line) {
                Ok(step) => hear(step),
                Err(_) => self.complaints.push(line),
            }
        }
    }

    /// What was complained of, to the end.
    fn complaints(mut self, patience: Duration) -> Vec<String> {
        let until = Instant::now() + patience;
        while let Ok(line) = self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            if serde_json::from_str::<Step>(&line).is_err() {
                self.complaints.push(line);
            }
        }
        self.complaints
    }
}
