//! `ringfence token`: the logins that the broker uses, and the daemon's own token.

use std::process::ExitCode;

use anyhow::{anyhow, bail};
use ringfence_egress::{LoginReport, LoginTool};
use ringfence_engine::queue::ProcessLocks;
use ringfence_server::OwnerToken;
use ringfence_store::atomic;

use crate::desk::told;
use crate::installation::Installation;
use crate::report::{advise, untokened};
use crate::terminal;

/// The logins that the broker uses, and the daemon's own token.
#[derive(clap::Subcommand)]
pub(crate) enum Verb {
    /// Show where a login comes from, its plan, its scopes, and when it runs out
    Show {
        /// Whose: claude or codex
        #[arg(default_value = "claude", value_parser = ["claude", "codex"])]
        whose: String,
        /// Print as JSON
        #[arg(long, conflicts_with_all = ["token_only", "export"])]
        json: bool,
        /// Print the token itself, and nothing else
        #[arg(long, conflicts_with = "export")]
        token_only: bool,
        /// Print a line for a shell that sets the token
        #[arg(long)]
        export: bool,
    },
    /// Refresh a login now, and write it back to where its CLI keeps it
    Refresh {
        /// Whose: claude or codex
        #[arg(default_value = "claude", value_parser = ["claude", "codex"])]
        whose: String,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Replace the daemon's own token and end all sessions of the dashboard
    Rotate {
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
}

/// Replaces the daemon's own token: through the daemon if it runs, else in its place.
fn rotate(installation: &Installation, json: bool) -> anyhow::Result<ExitCode> {
    installation.here("token rotate")?;
    atomic::private_dir(&installation.state)?;
    match ProcessLocks::new(&installation.state).take(ProcessLocks::DAEMON)? {
        Some(_no_daemon_meanwhile) => drop(OwnerToken::replace(&installation.state).map_err(untokened)?),
        None => installation.daemon()?.rotate_token().map_err(told)?,
    }
    let file = OwnerToken::file(&installation.state);
    if json {
        terminal::json(&serde_json::json!({ "rotated": true, "token_file": file }))?;
    } else {
        terminal::line(format!("The daemon's token is replaced: {}", file.display()));
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn token(verb: Verb, installation: &Installation) -> anyhow::Result<ExitCode> {
    let settings = installation.layers()?.resolve()?;
    let outside = installation.outside(&settings.broker)?;
    let tool = |whose: &str| {
        let provider = if whose == "codex" { "chatgpt" } else { "claude" };
        let found = LoginTool::find(provider, outside.sources(&installation.env))?;
        let remedy = match whose {
            "codex" => "run `codex login`",
            _ => "run `claude /login`, or set CLAUDE_CODE_OAUTH_TOKEN",
        };
        found.ok_or_else(|| advise(anyhow!("there is no login of {whose}"), remedy))
    };
    match verb {
        Verb::Rotate { json } => rotate(installation, json),
        Verb::Show { whose, json, token_only, export } => {
            let tool = tool(&whose)?;
            if token_only || export {
                let name = if whose == "codex" { "CODEX_ACCESS_TOKEN" } else { "CLAUDE_CODE_OAUTH_TOKEN" };
                let token = tool.token();
                // Quoted: nobody knows what a token may hold.
                let quoted = token.reveal().replace('\'', r"'\''");
                terminal::line(if export {
                    format!("export {name}='{quoted}'")
                } else {
                    token.reveal().to_owned()
                });
                return Ok(ExitCode::SUCCESS);
            }
            print(&tool.report(), json)
        }
        Verb::Refresh { whose, json } => {
            let tool = tool(&whose)?;
            if !tool.report().refreshable {
                bail!("this login cannot be refreshed: it is a token alone ({})", tool.report().source);
            }
            print(&tool.refresh(&outside.connect_to, &outside.roots)?, json)
        }
    }
}

fn print(report: &LoginReport, json: bool) -> anyhow::Result<ExitCode> {
    if json {
        terminal::json(report)?;
    } else {
        let or_unknown = |value: &Option<String>| value.clone().unwrap_or_else(|| "not told".into());
        let rows = [
            ("source", report.source.clone()),
            ("token", report.token.clone()),
            ("plan", or_unknown(&report.plan)),
            ("scopes", if report.scopes.is_empty() { "not told".into() } else { report.scopes.join(" ") }),
            ("runs out", or_unknown(&report.expires_at)),
            ("refreshable", if report.refreshable { "yes".into() } else { "no".into() }),
        ];
        terminal::table(&rows.map(|(name, value)| vec![name.to_owned(), value]));
    }
    Ok(if report.expired { ExitCode::from(1) } else { ExitCode::SUCCESS })
}
