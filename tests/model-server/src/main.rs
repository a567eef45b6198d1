//! The server as a program, for tests that are not written in Rust and for trying out.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use scripted_model::{Options, Script, ScriptError, Server};
use thiserror::Error;

const USAGE: &str = "usage: scripted-model --script FILE|- [--listen ADDR] [--record FILE]";

#[derive(Debug, Error)]
enum Failure {
    #[error("{0}\n{USAGE}")]
    Arguments(String),
    #[error("{path}: {source}")]
    Read { path: String, source: std::io::Error },
    #[error(transparent)]
    Script(#[from] ScriptError),
    #[error("the server could not be started: {0}")]
    Start(std::io::Error),
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Arguments(wrong)) => {
            let _ = writeln!(std::io::stderr(), "scripted-model: {}", Failure::Arguments(wrong));
            ExitCode::from(2)
        }
        Err(failure) => {
            let _ = writeln!(std::io::stderr(), "scripted-model: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let (source, options) = arguments(std::env::args().skip(1))?;
    let script = Script::from_json(&read(&source)?)?;
    let server = Server::start_with(script, options).map_err(Failure::Start)?;
    let mut out = std::io::stdout();
    // Flushed at once: whoever started the program reads the port from a pipe.
    writeln!(out, "listening on {}", server.url()).and_then(|()| out.flush()).map_err(Failure::Start)?;
    server.wait();
    Ok(())
}

fn read(source: &str) -> Result<String, Failure> {
    let text = if source == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(source)
    };
    text.map_err(|error| Failure::Read { path: source.to_owned(), source: error })
}

fn arguments(mut given: impl Iterator<Item = String>) -> Result<(String, Options), Failure> {
    let mut script = None;
    let mut options = Options::default();
    while let Some(flag) = given.next() {
        let mut value = || given.next().ok_or_else(|| Failure::Arguments(format!("{flag} needs a value")));
        match flag.as_str() {
            "--script" => script = Some(value()?),
            "--record" => options.record = Some(PathBuf::from(value()?)),
            "--listen" => {
                let text = value()?;
                let parsed: Result<SocketAddr, _> = text.parse();
                options.listen =
                    parsed.map_err(|error| Failure::Arguments(format!("--listen {text}: {error}")))?;
            }
            _ => return Err(Failure::Arguments(format!("{flag} is not known"))),
        }
    }
    let script = script.ok_or_else(|| Failure::Arguments("--script is missing".to_owned()))?;
    Ok((script, options))
}
