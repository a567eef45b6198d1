//! Asking the person at the terminal for a host that nobody named.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use ringfence_core::config;
use ringfence_core::policy::Host;
use ringfence_core::text::for_terminal;
use ringfence_egress::{Ask, Reply};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::cli;
use crate::installation::Installation;

/// How long a question waits for an answer, which then is no.
const PATIENCE: Duration = Duration::from_secs(60);

/// The person at the terminal.
pub(crate) struct Person {
    terminal: Mutex<File>,
    installation: Installation,
}

impl Person {
    /// Needs a terminal: not the run's, the person's own.
    pub(crate) fn new(installation: &Installation) -> anyhow::Result<Self> {
        let terminal = OpenOptions::new().read(true).write(true).open("/dev/tty");
        let terminal = terminal.context("`--ask` needs somebody to ask, and there is no terminal")?;
        Ok(Self { terminal: Mutex::new(terminal), installation: installation.clone() })
    }
}

impl Ask for Person {
    fn ask(&self, host: &Host, port: u16) -> Reply {
        let mut terminal = self.terminal.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = PATIENCE.as_secs();
        let question = format!(
            "\nringfence: the run wants to reach {host}:{port}. (o)nce, (a)lways, (n)o? [no in {seconds} s] "
        );
        if terminal.write_all(question.as_bytes()).is_err() {
            return Reply::No;
        }
        let answer = read_line(&mut terminal, Instant::now() + PATIENCE).unwrap_or_default();
        match answer.trim().to_ascii_lowercase().as_str() {
            "o" | "once" | "y" | "yes" => Reply::Yes,
            "a" | "always" => {
                if let Err(error) = remember(&self.installation, host, port) {
                    let text =
                        format!("ringfence: it cannot be remembered, and counts for this run: {error:#}");
                    let _ = writeln!(terminal, "{}", for_terminal(&text));
                }
                Reply::Yes
            }
            _ => {
                let _ = writeln!(terminal, "ringfence: no");
                Reply::No
            }
        }
    }
}

/// A line, if it comes in time.
fn read_line(terminal: &mut File, until: Instant) -> Option<String> {
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        let left = Timespec::try_from(until.checked_duration_since(Instant::now())?).ok()?;
        match poll(&mut [PollFd::new(&*terminal, PollFlags::IN)], Some(&left)) {
            Err(rustix::io::Errno::INTR) => continue,
            Ok(ready) if ready > 0 => {}
            _ => return None,
        }
        let mut bytes = [0; 64];
        match terminal.read(&mut bytes).ok()? {
            0 => return None,
            count => line.extend_from_slice(&bytes[..count]),
        }
    }
    String::from_utf8(line).ok()
}

/// Names the host in the person's settings.
fn remember(installation: &Installation, host: &Host, port: u16) -> anyhow::Result<()> {
    const KEY: &str = "broker.allow";
    let rule = if port == 443 { host.to_string() } else { format!("{host}:{port}") };
    let known = installation.layers()?.resolve()?.broker.allow;
    let mut rules: BTreeSet<String> = known.iter().map(ToString::to_string).collect();
    rules.insert(rule);
    let value = serde_json::to_string(&rules)?;
    let keys = ringfence_backends::settings_keys();
    cli::change_settings(installation, |text, file| config::set(text, file, &keys, KEY, &value))
}
