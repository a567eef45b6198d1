//! Errors as people read them: what happened, each cause once, what to do. Never a stack trace.

use std::fmt::Write as _;
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_server::TokenError;
use ringfence_store::StoreError;

use crate::terminal;

/// `ringfence` itself could not do what was asked.
pub(crate) const RUNTIME_FAILURE: u8 = 125;

/// An error that knows what to do about it.
#[derive(Debug)]
pub(crate) struct Advised {
    pub(crate) error: anyhow::Error,
    pub(crate) remedy: String,
}

impl std::fmt::Display for Advised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#}", self.error)
    }
}

impl std::error::Error for Advised {}

/// Adds what to do about an error.
pub(crate) fn advise(error: impl Into<anyhow::Error>, remedy: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Advised { error: error.into(), remedy: remedy.into() })
}

/// A token of the daemon that cannot be used, with what to do about it.
pub(crate) fn untokened(error: TokenError) -> anyhow::Error {
    match error.remedy() {
        Some(remedy) => advise(error, remedy),
        None => error.into(),
    }
}

/// An error of the queue, with what to do about it.
pub(crate) fn unstored(error: StoreError) -> anyhow::Error {
    match error.remedy() {
        Some(remedy) => advise(error, remedy),
        None => error.into(),
    }
}

/// A failure of a mode as an error.
pub(crate) fn failed(failure: Failure) -> anyhow::Error {
    let error = anyhow::anyhow!(failure.message);
    match failure.remedy {
        Some(remedy) => advise(error, remedy),
        None => error,
    }
}

/// An error as the failure of a run that was not started.
pub(crate) fn as_failure(error: &anyhow::Error) -> Failure {
    match error.downcast_ref::<Advised>() {
        Some(advised) => {
            Failure::new(FailureClass::Refused, advised.to_string()).with_remedy(&advised.remedy)
        }
        None => Failure::new(FailureClass::Refused, format!("{error:#}")),
    }
}

/// Prints an error and gives the exit code for it.
pub(crate) fn failure(error: &anyhow::Error) -> ExitCode {
    let failure = as_failure(error);
    print(&failure.message, failure.remedy.as_deref());
    ExitCode::from(RUNTIME_FAILURE)
}

/// Prints what went wrong and what to do about it.
pub(crate) fn print(text: &str, remedy: Option<&str>) {
    let red = Style::new().fg_color(Some(AnsiColor::Red.into())).bold();
    let mut out = String::new();
    let _ = write!(out, "{red}error{red:#}: {text}");
    if let Some(remedy) = remedy.filter(|remedy| !remedy.is_empty()) {
        let _ = write!(out, "\n{remedy}");
    }
    terminal::indented(out);
}

/// The end of the gate and of the built-in agent, which nobody calls by hand.
pub(crate) fn hidden<E: Into<anyhow::Error>>(result: Result<(), E>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure(&error.into()),
    }
}
