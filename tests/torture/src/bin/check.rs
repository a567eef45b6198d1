//! Reads events from standard input, one a line, and prints what must never have happened.
#![allow(clippy::disallowed_macros, reason = "a tool may end when nobody reads")]

use std::io::BufRead;
use std::process::ExitCode;

use torture::{Line, check};

fn main() -> ExitCode {
    let mut lines = Vec::new();
    for (number, line) in std::io::stdin().lock().lines().enumerate() {
        let read = line.map_err(|error| error.to_string());
        match read.and_then(|line| serde_json::from_str::<Line>(&line).map_err(|error| error.to_string())) {
            Ok(line) => lines.push(line),
            Err(why) => {
                eprintln!("line {}: {why}", number + 1);
                return ExitCode::from(2);
            }
        }
    }
    let findings = check(&lines);
    for finding in &findings {
        println!("{finding}");
    }
    println!("{} events, {} findings", lines.len(), findings.len());
    if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
