//! Random words for the host type and the broker's front, for as long as one likes.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::shell::root;

/// How many of each in one go.
const CASES: &str = "5000";

/// Runs every test that makes up its own input, again and again, each time with others.
pub(crate) fn fuzz(seconds: u64) -> anyhow::Result<()> {
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut rounds = 0;
    while rounds == 0 || Instant::now() < until {
        let mut command = Command::new("cargo");
        command.args(["nextest", "run", "--locked", "-p", "ringfence-core", "-p", "ringfence-egress", "-E"]);
        command
            .arg(
                "test(/reads_back|is_plain|breaks_it|whatever_is_said|however_it_is_cut|nothing_that_comes/)",
            )
            .env("PROPTEST_CASES", CASES);
        ensure!(command.current_dir(root()).status()?.success(), "there is a finding");
        rounds += 1;
    }
    println!("{rounds} rounds of {CASES} cases each, no finding");
    Ok(())
}
