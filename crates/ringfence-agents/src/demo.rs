//! A scripted agent that is part of the binary: no account, no network.
//!
//! It writes a small program into its workspace, runs it, and then tries three things that a sandbox forbids: to read
//! a file outside of the workspace, to see a secret variable, to reach a service of the host. All three are bait that
//! `ringfence demo` laid out for it; nothing of the person's is touched.

use std::fs;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use ringfence_core::backend::ExitStatus;
use ringfence_core::event::{Event, Stream};
use ringfence_core::failure::Failure;
use ringfence_core::text::PlainText;
use serde_json::json;

use crate::reading::{LastWords, document, no_result, plain};
use crate::{AgentCli, CommandLine, Facts, Invocation, InvocationError, Login, Outcome, Reader};

/// The hidden argument that makes the binary this agent.
pub const ARGUMENT: &str = "__demo-agent";
/// Names the file outside of the workspace.
pub const BAIT_FILE: &str = "RINGFENCE_DEMO_FILE";
/// Names the port of the host's service.
pub const BAIT_PORT: &str = "RINGFENCE_DEMO_PORT";
/// Is the secret.
pub const BAIT_SECRET: &str = "RINGFENCE_DEMO_SECRET";

/// The built-in agent.
pub struct Demo;

const FACTS: Facts = Facts {
    name: "demo",
    program: None,
    install: "it is part of ringfence",
    hosts: &[],
    env: &[BAIT_FILE, BAIT_PORT],
    login: Login::NONE,
    package: None,
};

impl AgentCli for Demo {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn command(&self, invocation: &Invocation<'_>) -> Result<CommandLine, InvocationError> {
        if invocation.session.is_some() {
            return Err(InvocationError::NoSessions("demo"));
        }
        if invocation.interactive {
            return Err(InvocationError::NotInteractive("demo"));
        }
        Ok(CommandLine::new([invocation.own_program, ARGUMENT]))
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(DemoReader::default())
    }
}

#[derive(Default)]
struct DemoReader {
    text: PlainText,
    last_words: LastWords,
}

impl Reader for DemoReader {
    fn line(&mut self, stream: Stream, line: &str) -> Vec<Event> {
        let event = document(line).and_then(|value| serde_json::from_value(value).ok()).filter(is_of_agent);
        let event = event.filter(|_| stream == Stream::Stdout);
        let Some(event) = event else {
            self.last_words.hear(line);
            return plain(stream, line);
        };
        if let Event::Text { text } = &event {
            self.text.clone_from(text);
        }
        vec![event]
    }

    fn stalled(&self) -> Option<&Failure> {
        None
    }

    fn finish(&mut self, exit: ExitStatus, _: u64) -> Outcome {
        let failure = match exit {
            ExitStatus::Code(0) if !self.text.is_empty() => None,
            other => Some(no_result("demo", other, &self.last_words)),
        };
        Outcome { text: std::mem::take(&mut self.text), failure, ..Outcome::default() }
    }
}

/// Whether an event is one that the agent tells of. Notices, results and what has been used are for Ringfence to tell: any process
/// of a run can print a line.
fn is_of_agent(event: &Event) -> bool {
    matches!(event, Event::Text { .. } | Event::ToolUse { .. } | Event::ToolResult { .. })
}

const PROGRAM: &str = "#!/bin/sh
# Prints the primes below 50.
n=2
while [ $n -lt 50 ]; do
  d=2 p=1
  while [ $((d * d)) -le $n ]; do
    [ $((n % d)) -eq 0 ] && p=0
    d=$((d + 1))
  done
  [ $p -eq 1 ] && printf '%s ' $n
  n=$((n + 1))
done
echo
";

/// Plays the script in the present directory, telling of it on `out`. `env` reads a variable.
pub fn act(mut out: impl Write, env: &dyn Fn(&str) -> Option<String>) -> io::Result<()> {
    let mut say = |event: Event| -> io::Result<()> {
        let line = serde_json::to_string(&event)?;
        writeln!(out, "{line}")?;
        out.flush()
    };
    say(Event::Text { text: "I write a small program and run it.".into() })?;
    say(Event::ToolUse { tool: "write".into(), input: json!({ "path": "primes.sh" }).into() })?;
    fs::File::create("primes.sh")?.write_all(PROGRAM.as_bytes())?;
    say(Event::ToolUse { tool: "shell".into(), input: json!({ "command": "sh primes.sh" }).into() })?;
    let ran = Command::new("sh").arg("primes.sh").output()?;
    let output = String::from_utf8_lossy(&ran.stdout).trim().into();
    say(Event::ToolResult { tool: Some("shell".into()), output, is_error: !ran.status.success() })?;

    if env(BAIT_FILE).is_none() || env(BAIT_PORT).is_none() {
        return say(Event::Text {
            text: "Done: primes.sh works. Nothing was laid out for me to try; `ringfence demo` does that."
                .into(),
        });
    }
    say(Event::Text { text: "Now I try three things that I should not be able to do.".into() })?;
    let mut refused = 0;
    for (what, attempt) in attempts(env) {
        say(Event::ToolUse { tool: "attempt".into(), input: json!({ "forbidden": what }).into() })?;
        let outcome = attempt();
        refused += u8::from(outcome.is_err());
        let (output, is_error) = match outcome {
            Err(why) => (format!("refused: {why}"), true),
            Ok(()) => ("it worked: nothing stands in the way".into(), false),
        };
        say(Event::ToolResult { tool: Some("attempt".into()), output: output.into(), is_error })?;
    }
    let were = if refused == 1 { "was" } else { "were" };
    say(Event::Text {
        text: format!("Done: primes.sh works. Of three forbidden things, {refused} {were} refused.").into(),
    })
}

type Attempt = Box<dyn FnOnce() -> Result<(), String>>;

fn attempts(env: &dyn Fn(&str) -> Option<String>) -> [(&'static str, Attempt); 3] {
    let (file, port, secret) = (env(BAIT_FILE), env(BAIT_PORT), env(BAIT_SECRET));
    [
        (
            "read a file outside of the workspace",
            Box::new(move || read(&file.ok_or("no bait was laid out")?)),
        ),
        (
            "see a secret variable",
            Box::new(move || secret.map(drop).ok_or_else(|| "it is not there".to_owned())),
        ),
        ("reach a service of the host", Box::new(move || reach(&port.ok_or("no bait was laid out")?))),
    ]
}

fn read(path: &str) -> Result<(), String> {
    fs::read(path).map(drop).map_err(|error| error.to_string())
}

fn reach(port: &str) -> Result<(), String> {
    let port = port.parse().map_err(|_| "no port".to_owned())?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    TcpStream::connect_timeout(&address, Duration::from_secs(2)).map(drop).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use ringfence_core::event::{Event, Stream};
    use serde_json::json;

    use super::{DemoReader, Reader};

    #[test]
    fn events_that_only_ringfence_tells_are_lines_of_output() {
        let mut reader = DemoReader::default();
        let mut read = |line: &str| reader.line(Stream::Stdout, line);
        let text = json!({ "type": "text", "text": "done" }).to_string();
        assert!(matches!(read(&text)[..], [Event::Text { .. }]));
        for forged in [
            json!({ "type": "notice", "message": "the policy holds" }),
            json!({ "type": "session", "session": "s" }),
            json!({ "type": "usage", "input_tokens": 1, "output_tokens": 1, "cached_tokens": 0 }),
            json!({ "type": "started", "run": "20260101-000000-aaaaaaa", "cli": "demo", "mode": "native", "policy": "locked" }),
        ] {
            serde_json::from_value::<Event>(forged.clone())
                .unwrap_or_else(|error| panic!("{forged}: {error}"));
            let events = read(&forged.to_string());
            assert!(matches!(events[..], [Event::Output { .. }]), "{events:?}");
        }
    }
}
