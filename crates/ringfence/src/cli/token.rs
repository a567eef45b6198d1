//! `ringfence token`: the logins that the broker uses.

use std::process::ExitCode;

use anyhow::{anyhow, bail};
use ringfence_egress::{LoginReport, LoginTool};

use crate::installation::Installation;
use crate::report::advise;
use crate::terminal;

/// The logins that the broker uses.
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
