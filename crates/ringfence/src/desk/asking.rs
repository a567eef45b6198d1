//! Questions that are answered by trying things out: asked of this program as a process of its own, so that whatever
//! happens there happens there, and ends in time.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ringfence_engine::queue::pause;
use ringfence_server::desk::{Answer, Refusal, RefusalKind};
use serde::de::DeserializeOwned;

use super::internal;
use crate::installation::Installation;

/// Nothing is waited for longer.
const PATIENCE: Duration = Duration::from_secs(240);
/// No answer is longer.
const LONGEST: u64 = 16 << 20;

/// Asks, and reads the answer. One that ends badly may have answered all the same.
pub(super) fn ask<T: DeserializeOwned>(installation: &Installation, words: &[&str]) -> Answer<T> {
    let mut child = Command::new(&installation.program)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(internal)?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let said = std::thread::spawn(move || text(stdout));
    let complained = std::thread::spawn(move || text(stderr));
    let begun = Instant::now();
    while child.try_wait().map_err(internal)?.is_none() {
        if begun.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            return Err(Refusal::new(RefusalKind::Unavailable, "there was no answer in time"));
        }
        pause(Duration::from_millis(20));
    }
    let said = said.join().unwrap_or_default();
    serde_json::from_str(&said).map_err(|_| {
        let complained = complained.join().unwrap_or_default();
        let mut lines = complained.lines();
        let first = lines.next().unwrap_or("there was no answer").trim_start_matches("error: ").to_owned();
        Refusal::new(RefusalKind::Conflict, first).with_remedy(lines.next().map(str::trim))
    })
}

fn text(stream: Option<impl Read>) -> String {
    let mut text = Vec::new();
    if let Some(stream) = stream {
        let _ = stream.take(LONGEST).read_to_end(&mut text);
    }
    String::from_utf8_lossy(&text).into_owned()
}
