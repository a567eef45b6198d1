//! The project's own chores: `cargo xtask setup|engines|tidy|gen|test|bench|contract|torture|fuzz|endure`.
#![allow(clippy::disallowed_macros, reason = "a chore may end when nobody reads")]

mod bench;
mod contract;
mod endure;
mod engines;
mod fuzz;
mod generate;
mod peers;
mod setup;
mod shell;
mod test;
mod tidy;
mod torture;

use std::process::ExitCode;

const USAGE: &str = "cargo xtask COMMAND

  setup         install what the tests need and is missing
  engines       start the container engines of the tests, which are this project's own
  engines down  end them
  tidy          check the house rules: arrows between crates, module headers, names of modes, licences
  gen [--check] write what derives from the tables: schemas and reference pages
  test          setup, then every check and every test
  bench         measure sandboxes against peers, side by side, which are installed
  bench containers  measure containers against the engines' own commands (after `engines`)
  bench queue   measure the queue against peers, side by side
  bench server  measure the daemon while 200 dashboards follow 50 logs
  bench egress  measure the broker against peers, side by side
  fuzz [SECS]   run property-based tests and fuzz targets for so long together (600)
  torture [--minutes N] [--tasks N]  kill everything while the queue works, and see that nothing is lost
  contract [SECS]  say everything to a daemon's API that its document allows, for so long (300)
  endure [N]    run N sandboxes one after another (10000) and show that nothing grows";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args[..] {
        ["setup"] => setup::setup(),
        ["engines"] => setup::setup().and_then(|()| engines::up()),
        ["engines", "down"] => engines::down(),
        ["tidy"] => tidy::tidy(),
        ["gen"] => generate::write(),
        ["gen", "--check"] => generate::check(),
        ["test"] => test::test(),
        ["bench"] => bench::bench(),
        ["bench", "containers"] => bench::containers(),
        ["bench", "queue"] => bench::queue(),
        ["bench", "server"] => bench::server(),
        ["bench", "egress"] => bench::egress(),
        ["torture", ref rest @ ..] => torture::torture(rest),
        ["contract"] => contract::contract(300),
        ["contract", seconds] if seconds.parse::<u64>().is_ok() => {
            contract::contract(seconds.parse().unwrap_or(0))
        }
        ["fuzz"] => fuzz::fuzz(600),
        ["fuzz", seconds] if seconds.parse::<u64>().is_ok() => fuzz::fuzz(seconds.parse().unwrap_or(0)),
        ["endure"] => endure::endure(10_000),
        ["endure", count] if count.parse::<usize>().is_ok() => endure::endure(count.parse().unwrap_or(0)),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
