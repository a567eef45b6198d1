//! Everything that has to hold, in the order in which it is cheapest to find out.

use crate::shell::run;
use crate::{engines, generate, setup, tidy};

pub(crate) fn test() -> anyhow::Result<()> {
    run(&["cargo", "fmt", "--all", "--check"])?;
    tidy::tidy()?;
    generate::check()?;
    setup::setup()?;
    run(&["cargo", "clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])?;
    run(&["cargo", "test", "--workspace", "--doc", "--locked", "--quiet"])?;
    engines::up()?;
    let tested = run(&["cargo", "nextest", "run", "--workspace", "--locked", "--no-fail-fast"]);
    engines::down()?;
    tested
}
