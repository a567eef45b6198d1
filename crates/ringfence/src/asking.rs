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
use rustix::termios::{QueueSelector, tcflush};

use crate::installation::Installation;
use crate::{cli, screen, terminal};

/// How long a question waits for an answer, which then is no.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// The time between an answer and the next question. An answer that was typed twice is no answer to the next question.
const PAUSE: Duration = Duration::from_secs(1);
/// Longer lines are no answers.
const MAX_ANSWER_BYTES: usize = 256;
/// Ends all colours, so that the text is seen whatever the run has printed before.
const RESET: &str = "\u{1b}[0m";

/// The person at the terminal.
pub(crate) struct Person {
    terminal: Mutex<Terminal>,
    installation: Installation,
}

struct Terminal {
    file: File,
    last_answer: Option<Instant>,
}

/// What a user answers.
enum Answer {
    Once,
    Always,
    No,
    /// Nothing in time.
    Nothing,
}

impl Person {
    /// Needs a terminal: not the run's, the person's own.
    pub(crate) fn new(installation: &Installation) -> anyhow::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open("/dev/tty");
        let file = file.context("`--ask` needs somebody to ask, and there is no terminal")?;
        let terminal = Mutex::new(Terminal { file, last_answer: None });
        Ok(Self { terminal, installation: installation.clone() })
    }
}

impl Ask for Person {
    fn ask(&self, host: &Host, port: u16) -> Reply {
        let mut terminal = self.terminal.lock().unwrap_or_else(PoisonError::into_inner);
        terminal.pause();
        let Some(question) = screen::open_question() else { return Reply::No };
        let answer = terminal.question(host, port);
        let (reply, mut outcome) = match answer {
            Answer::Once => (Reply::Yes, format!("{host}:{port} is allowed for this run")),
            Answer::Always => {
                (Reply::Yes, format!("{host}:{port} is allowed, in this run and in later ones"))
            }
            Answer::No => (Reply::No, format!("{host}:{port} is denied")),
            Answer::Nothing => (Reply::Unanswered, format!("no answer: {host}:{port} is denied")),
        };
        if let Answer::Always = answer
            && let Err(error) = remember(&self.installation, host, port)
        {
            outcome = format!("{host}:{port} is allowed for this run; it cannot be remembered: {error:#}");
        }
        question.close(|| terminal.say(&outcome), terminal::write);
        reply
    }

    fn ask_no_more(&self, host: &Host, port: u16) {
        let message = format!(
            "ringfence: too many questions: {host}:{port} and every further host that the policy does not name are denied in this run"
        );
        terminal::about(message);
    }
}

impl Terminal {
    #[expect(clippy::disallowed_methods, reason = "questions that follow each other at once cannot be read")]
    fn pause(&self) {
        if let Some(last) = self.last_answer {
            std::thread::sleep(PAUSE.saturating_sub(last.elapsed()));
        }
    }

    /// Asks, on lines of its own. What was typed before is no answer: the user may have answered something that the run printed.
    fn question(&mut self, host: &Host, port: u16) -> Answer {
        let seconds = ANSWER_TIMEOUT.as_secs();
        let question = format!(
            "{RESET}\nringfence: the run wants to reach {host}:{port}. Its output is held until you answer.\n\
             ringfence: (o)nce, (a)lways, (n)o? [no in {seconds} s] "
        );
        let _ = tcflush(&self.file, QueueSelector::IFlush);
        if self.file.write_all(question.as_bytes()).is_err() {
            return Answer::No;
        }
        let line = read_line(&mut self.file, Instant::now() + ANSWER_TIMEOUT);
        self.last_answer = Some(Instant::now());
        match line.as_deref().map(str::trim).map(str::to_ascii_lowercase).as_deref() {
            Some("o" | "once" | "y" | "yes") => Answer::Once,
            Some("a" | "always") => Answer::Always,
            Some(_) => Answer::No,
            None => {
                let _ = self.file.write_all(b"\n");
                Answer::Nothing
            }
        }
    }

    fn say(&mut self, outcome: &str) {
        let _ = writeln!(self.file, "{}", for_terminal(&format!("ringfence: {outcome}")));
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
        if line.len() > MAX_ANSWER_BYTES {
            return Some(String::new());
        }
    }
    Some(String::from_utf8_lossy(&line).into_owned())
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
