//! Everything that has to hold, in the order in which it is cheapest to find out.

use crate::shell::{is_root, run};
use crate::{contract, engines, generate, setup, tidy, torture};

pub(crate) fn test() -> anyhow::Result<()> {
    run(&["cargo", "fmt", "--all", "--check"])?;
    tidy::tidy()?;
    generate::check()?;
    setup::setup()?;
    run(&["cargo", "clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])?;
    run(&["cargo", "test", "--workspace", "--doc", "--locked", "--quiet"])?;
    // Where everything has to be tested there is no going on without them; elsewhere their tests have nothing to do.
    if is_root() || std::env::var_os("CI").is_some() {
        engines::up()?;
    }
    let tested = run(&["cargo", "nextest", "run", "--workspace", "--locked", "--no-fail-fast"])
        .and_then(|()| contract::contract(60))
        .and_then(|()| torture::torture(&["--tasks", "300", "--minutes", "1"]));
    engines::down()?;
    tested
}
