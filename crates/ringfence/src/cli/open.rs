//! `ringfence open`: the dashboard in a browser, logged in by a one-time address.

use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, anyhow};
use serde_json::json;

use crate::desk::told;
use crate::installation::Installation;
use crate::report::advise;
use crate::terminal;

/// Open the dashboard in a browser, logged in.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only print the address
    #[arg(long)]
    print: bool,
    /// Print as JSON, and start no browser
    #[arg(long)]
    json: bool,
    /// Let any user who learns the address log in, from any machine; without it, on loopback, only browsers of the daemon's
    /// owner can. Starts no browser: other users of the machine could read its command line
    #[arg(long)]
    for_anyone: bool,
}

/// An address that logs a browser in, once.
pub(crate) struct LoginAddress {
    pub(crate) url: String,
    pub(crate) expires_in_seconds: u64,
}

/// Who may use a login address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UsableBy {
    /// Any browser it is given to.
    Anybody,
    /// Only a browser of the daemon's owner: other users can see the command line of the browser.
    Owner,
}

impl UsableBy {
    /// Who may use an address that is printed: the owner, where the daemon can tell whose connection a browser has.
    pub(crate) fn by_default(installation: &Installation, address: &str) -> Self {
        if installation.is_opened_on_loopback(address) { UsableBy::Owner } else { UsableBy::Anybody }
    }
}

/// Has the daemon that listens at `address` issue a login address.
pub(crate) fn login_address(
    installation: &Installation,
    address: &str,
    usable_by: UsableBy,
) -> anyhow::Result<LoginAddress> {
    let code = installation.daemon()?.login_code(usable_by == UsableBy::Owner).map_err(told)?;
    let url = format!("{}{}", installation.dashboard_address(address, &code.host), code.path);
    Ok(LoginAddress { url, expires_in_seconds: code.expires_in_seconds })
}

pub(crate) fn open(args: &Args, installation: &Installation) -> anyhow::Result<ExitCode> {
    let status = installation.desk()?.status().map_err(told)?;
    if status.daemon.is_none() {
        return Err(advise(anyhow!("the daemon does not run"), "start it: `ringfence start`"));
    }
    let address = status.address.ok_or_else(|| {
        advise(
            anyhow!("the daemon has no address for a browser: it answers on its Unix socket alone"),
            "set `server.listen`, such as 127.0.0.1:4301, and run `ringfence restart`",
        )
    })?;
    let browser = if args.print || args.json || args.for_anyone { None } else { browser(installation) };
    let usable_by = match (args.for_anyone, &browser) {
        (true, _) => UsableBy::Anybody,
        (false, Some(_)) => UsableBy::Owner,
        (false, None) => UsableBy::by_default(installation, &address),
    };
    let login = login_address(installation, &address, usable_by)?;
    if args.json {
        terminal::json(&json!({
            "login_url": login.url,
            "expires_in_seconds": login.expires_in_seconds,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    terminal::line(&login.url);
    if let Some(mut browser) = browser {
        start(&mut browser, &login.url)?;
    } else if !args.print && !args.for_anyone {
        terminal::about(
            "There is no display to open a browser on: open the address yourself. It works once.",
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The command that opens an address in the user's browser, where there is a display.
fn browser(installation: &Installation) -> Option<Command> {
    let variable = |name: &str| installation.env.get(name).is_some_and(|value| !value.is_empty());
    let name = match std::env::consts::OS {
        "macos" => "open",
        _ if variable("DISPLAY") || variable("WAYLAND_DISPLAY") => "xdg-open",
        _ => return None,
    };
    // A daemon far away would not know the owner's connections by their user.
    installation.programs(None).command(name).filter(|_| !installation.is_remote())
}

/// Starts it and does not wait: some stay for as long as the browser does.
fn start(browser: &mut Command, url: &str) -> anyhow::Result<()> {
    let name = browser.get_program().display().to_string();
    browser
        .arg(url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map(drop)
        .with_context(|| format!("failed to start {name}"))
}
