//! Questions that are answered by trying things out: asked of this program as a process of its own, so that whatever
//! happens there happens there, and ends in time.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use ringfence_engine::queue::pause;
use ringfence_server::desk::{Answer, Refusal, RefusalKind};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::de::DeserializeOwned;

use super::internal;
use crate::installation::Installation;

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

/// Asks, and reads the answer. One that ends badly may have answered all the same.
pub(super) fn ask<T: DeserializeOwned>(installation: &Installation, words: &[&str]) -> Answer<T> {
    let mut command = Command::new(&installation.program);
    NOT_PASSED.iter().for_each(|name| {
        command.env_remove(name);
    });
    let mut child = command
        .args(words)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(internal)?;
    let (said, complained) = (text(child.stdout.take()), text(child.stderr.take()));
    let begun = Instant::now();
    while child.try_wait().map_err(internal)?.is_none() {
        if begun.elapsed() > PATIENCE {
            // With all that it has started.
            let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            let _ = group.map(|group| kill_process_group(group, Signal::KILL));
            let _ = child.wait();
            return Err(Refusal::new(RefusalKind::Unavailable, "there was no answer in time"));
        }
        pause(Duration::from_millis(20));
    }
    // Whoever it has left behind may hold its output open.
    let said = said.recv_timeout(LAST_WORDS).unwrap_or_default();
    serde_json::from_str(&said).map_err(|_| {
        let complained = complained.recv_timeout(LAST_WORDS).unwrap_or_default();
        let mut lines = complained.lines();
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
