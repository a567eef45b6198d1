//! Any program as an agent. Its output is its answer, its exit code its verdict.

use ringfence_core::backend::ExitStatus;
use ringfence_core::event::{Event, Stream};
use ringfence_core::failure::Failure;

use crate::reading::{LastWords, bad_exit, plain};
use crate::{
    AgentCli, CommandLine, Facts, Invocation, InvocationError, Login, Outcome, Reader, fitting_prompt,
};

pub(crate) struct Command;

/// Where the prompt stands in the command, if it stands there.
const PROMPT: &str = "{prompt}";

const FACTS: Facts = Facts {
    name: "command",
    program: None,
    install: "check the name of the program and your PATH",
    hosts: &[],
    env: &[],
    login: Login::NONE,
    package: None,
};

impl AgentCli for Command {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    /// The prompt replaces `{prompt}` in a word of its own and is always in `RINGFENCE_PROMPT`; it is never read by a
    /// shell.
    fn command(&self, invocation: &Invocation<'_>) -> Result<CommandLine, InvocationError> {
        let text =
            invocation.command.filter(|text| !text.trim().is_empty()).ok_or(InvocationError::NoCommand)?;
        let words = shlex::split(text).ok_or_else(|| InvocationError::BadCommand(text.to_owned()))?;
        if invocation.session.is_some() {
            return Err(InvocationError::NoSessions("command"));
        }
        let prompt = fitting_prompt(invocation)?;
        let argv = words.into_iter().map(|word| if word == PROMPT { prompt.to_owned() } else { word });
        Ok(CommandLine::new(argv).force_env("RINGFENCE_PROMPT", prompt))
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(CommandReader::default())
    }
}

/// The most of a program's output that is worth repeating as its answer.
const LONGEST_ANSWER: usize = 256 << 10;

#[derive(Default)]
struct CommandReader {
    /// The end of what it printed.
    answer: String,
    last_words: LastWords,
}

impl CommandReader {
    fn keep(&mut self, line: &str) {
        if !self.answer.is_empty() {
            self.answer.push('\n');
        }
        self.answer.push_str(line);
        if self.answer.len() > 2 * LONGEST_ANSWER {
            let cut = self.answer.ceil_char_boundary(self.answer.len() - LONGEST_ANSWER);
            self.answer.drain(..cut);
        }
    }
}

impl Reader for CommandReader {
    fn line(&mut self, stream: Stream, line: &str) -> Vec<Event> {
        match stream {
            Stream::Stdout => self.keep(line),
            Stream::Stderr => self.last_words.hear(line),
        }
        plain(stream, line)
    }

    fn stalled(&self) -> Option<&Failure> {
        None
    }

    fn finish(&mut self, exit: ExitStatus, _: u64) -> Outcome {
        let failure = match exit {
            ExitStatus::Code(0) => None,
            other => Some(bad_exit("the command", other, &self.last_words)),
        };
        Outcome { text: std::mem::take(&mut self.answer).into(), failure, ..Outcome::default() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::Command;
    use crate::{AgentCli, Invocation, InvocationError};

    fn argv(command: &str) -> Result<Vec<String>, InvocationError> {
        let invocation = Invocation {
            prompt: "rm -rf \"$HOME\"; x",
            model: None,
            base_url: None,
            session: None,
            command: Some(command),
            own_program: "ringfence",
            env: &BTreeMap::new(),
            is_root: false,
            interactive: false,
        };
        Command.command(&invocation).map(|line| line.argv)
    }

    #[test]
    fn a_prompt_is_one_word_whatever_it_holds() {
        assert_eq!(argv("sh -c 'echo hi' {prompt}").unwrap(), ["sh", "-c", "echo hi", "rm -rf \"$HOME\"; x"]);
    }

    #[test]
    fn an_unclosed_quote_and_an_empty_command_are_refused() {
        assert_eq!(argv("sh -c 'x"), Err(InvocationError::BadCommand("sh -c 'x".into())));
        assert_eq!(argv("  "), Err(InvocationError::NoCommand));
    }
}
