//! A key of OpenAI's API, or the login of a ChatGPT plan.

use std::collections::BTreeMap;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::{ProviderError, Sources, by_variable, text};
use crate::credential::{Credential, Inside};
use crate::placeholder::Placeholder;
use crate::secret::Secret;

const KEY_HOSTS: [&str; 1] = ["api.openai.com"];
const LOGIN_HOSTS: [&str; 2] = ["chatgpt.com", "api.openai.com"];
const FILE: &str = ".codex/auth.json";
/// In seconds: inside, a login never runs out.
const NEVER: u64 = 4_102_444_800;
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
    let Some(document) = sources.document(FILE)? else { return Ok(Vec::new()) };
    let Some(tokens) = document.get("tokens").filter(|tokens| tokens.is_object()) else {
        return Ok(Vec::new());
    };
    let wrong = |why: &str| ProviderError::Login { path: sources.home.join(FILE), why: why.to_owned() };
    let access = text(tokens, &["access_token"]).ok_or_else(|| wrong("it holds no access token"))?;
    let mut access_claims = claims(access).unwrap_or_else(|| json!({}));
    access_claims["exp"] = Value::from(NEVER);
    let access_placeholder = Placeholder::token(&access_claims)?;
    let id_claims = text(tokens, &["id_token"]).and_then(claims).unwrap_or_else(|| json!({}));
    let id_placeholder = Placeholder::token(&id_claims)?;
    let refresh = Placeholder::new("rt_")?;
    let mut copy = tokens.clone();
    copy["access_token"] = Value::from(access_placeholder.text());
    copy["id_token"] = Value::from(id_placeholder.text());
    copy["refresh_token"] = Value::from(refresh.text());
    let file = json!({
        "auth_mode": document.get("auth_mode").cloned().unwrap_or_else(|| "chatgpt".into()),
        "OPENAI_API_KEY": null,
        "tokens": copy,
        // Whoever has just refreshed does not refresh.
        "last_refresh": jiff::Timestamp::now().to_string(),
    });
    Ok(vec![Credential {
        name: "chatgpt login".into(),
        hosts: sources.hosts(&LOGIN_HOSTS)?,
        swaps: vec![(access_placeholder, Secret::new(access.to_owned()))],
        header: None,
        inside: Inside {
            files: BTreeMap::from([(PathBuf::from(FILE), file.to_string())]),
            ..Inside::default()
        },
    }])
}

/// What a token says of itself. It is no secret: only the signature makes it worth something.
fn claims(token: &str) -> Option<Value> {
    let body = token.split('.').nth(1)?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(body).ok()?).ok()
}
