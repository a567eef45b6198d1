//! `ringfence open`: the dashboard in a browser, logged in by a one-time address.

use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, anyhow};
use ringfence_server::Bearer;
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
    /// Let any user who learns the address log in, from any machine; without it, on the daemon's machine, only browsers of the
    /// daemon's owner can. Starts no browser: other users of the machine could read its command line
    #[arg(long)]
    for_anyone: bool,
}

/// An address that logs a browser in, once.
pub(crate) struct LoginAddress {
    pub(crate) url: String,
    pub(crate) expires_in_seconds: u64,
}

/// Who may use an address that is printed: the owner alone, unless browsers of other machines reach it.
pub(crate) fn usual_bearer(installation: &Installation, address: &str) -> Bearer {
    if installation.is_opened_on_loopback(address) { Bearer::Owner } else { Bearer::OwnerOrElsewhere }
}

/// Has the daemon that listens at `address` issue a login address.
pub(crate) fn login_address(
    installation: &Installation,
    address: &str,
    bearer: Bearer,
) -> anyhow::Result<LoginAddress> {
    let code = installation.daemon()?.login_code(bearer).map_err(told)?;
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
    let bearer = match (args.for_anyone, &browser) {
        (true, _) => Bearer::Anybody,
        (false, Some(_)) => Bearer::Owner,
        (false, None) => usual_bearer(installation, &address),
    };
    let login = login_address(installation, &address, bearer)?;
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
