//! A key of OpenAI's API, or the login of a ChatGPT plan.

use super::{ProviderError, Sources, by_login, by_variable, text};
use crate::credential::Credential;
use crate::login::{CHATGPT, Login, Store};
use crate::secret::Secret;

const KEY_HOSTS: [&str; 1] = ["api.openai.com"];
const LOGIN_HOSTS: [&str; 2] = ["chatgpt.com", "api.openai.com"];
const FILE: &str = ".codex/auth.json";
const KEY_BEGINNING: &str = "sk-proj-";

pub(super) fn key(sources: Sources<'_>) -> Result<Vec<Credential>, ProviderError> {
    let hosts = sources.hosts(&KEY_HOSTS)?;
    for variable in ["CODEX_API_KEY", "OPENAI_API_KEY"] {
        if let Some(secret) = sources.variable(variable) {
            return Ok(vec![by_variable("openai key", variable, KEY_BEGINNING, secret, hosts)?]);
        }
    }
    let Some(document) = sources.document(FILE)? else { return Ok(Vec::new()) };
    match text(&document, &["OPENAI_API_KEY"]) {
        Some(key) => {
            let secret = Secret::new(key.to_owned());
            Ok(vec![by_variable("openai key", "CODEX_API_KEY", KEY_BEGINNING, secret, hosts)?])
        }
        None => Ok(Vec::new()),
    }
}

pub(super) fn login(sources: Sources<'_>) -> Result<Vec<Credential>, ProviderError> {
    let opened = Login::open(&CHATGPT, Store::File(sources.place(FILE)), sources.state)?;
    let Some((login, document)) = opened else { return Ok(Vec::new()) };
    let hosts = sources.login_hosts("chatgpt login", "CODEX_API_KEY or OPENAI_API_KEY", &LOGIN_HOSTS)?;
    Ok(vec![by_login("chatgpt login", FILE, hosts, login, &document)])
}
