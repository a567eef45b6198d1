//! The login of a Claude subscription: a token in a variable, the keychain, or the file of the CLI, in this order.

use super::anthropic::HOSTS;
use super::{ProviderError, Sources, by_login, by_variable};
use crate::credential::Credential;
use crate::login::{CLAUDE, Login, Store};

const VARIABLE: &str = "CLAUDE_CODE_OAUTH_TOKEN";
const FILE: &str = ".claude/.credentials.json";
const SERVICE: &str = "Claude Code-credentials";

pub(super) fn credentials(sources: Sources<'_>) -> Result<Vec<Credential>, ProviderError> {
    let hosts = || sources.login_hosts("claude login", "ANTHROPIC_AUTH_TOKEN or ANTHROPIC_API_KEY", &HOSTS);
    if let Some(secret) = sources.variable(VARIABLE) {
        return Ok(vec![by_variable("claude login", VARIABLE, "sk-ant-oat01-", secret, hosts()?)?]);
    }
    for store in stores(sources) {
        if let Some((login, document)) = Login::open(&CLAUDE, store, sources.state)? {
            return Ok(vec![by_login("claude login", FILE, hosts()?, login, &document)]);
        }
    }
    Ok(Vec::new())
}

fn stores(sources: Sources<'_>) -> impl Iterator<Item = Store> {
    let account = sources.env.get("USER").cloned().unwrap_or_default();
    let keychain = sources.keychain.map(|program| Store::Keychain {
        program: program.to_owned(),
        service: SERVICE,
        account,
    });
    keychain.into_iter().chain([Store::File(sources.place(FILE))])
}
