//! The login of a Claude subscription: a token in a variable, or the login of the CLI.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::anthropic::HOSTS;
use super::{ProviderError, Sources, by_variable, text};
use crate::credential::{Credential, Inside};
use crate::placeholder::Placeholder;
use crate::secret::Secret;

const VARIABLE: &str = "CLAUDE_CODE_OAUTH_TOKEN";
const FILE: &str = ".claude/.credentials.json";
const ROOM: &str = "claudeAiOauth";
/// Inside, a login never runs out: the host is the one that refreshes it.
const NEVER_MS: u64 = 4_102_444_800_000;

pub(super) fn credentials(sources: Sources<'_>) -> Result<Vec<Credential>, ProviderError> {
    let hosts = sources.hosts(&HOSTS)?;
    if let Some(secret) = sources.variable(VARIABLE) {
        return Ok(vec![by_variable("claude login", VARIABLE, "sk-ant-oat01-", secret, hosts)?]);
    }
    let Some(document) = sources.document(FILE)? else { return Ok(Vec::new()) };
    let Some(login) = document.get(ROOM) else { return Ok(Vec::new()) };
    let wrong =
        || ProviderError::Login { path: sources.home.join(FILE), why: "it holds no access token".into() };
    let access = text(login, &["accessToken"]).ok_or_else(wrong)?;
    let placeholder = Placeholder::new("sk-ant-oat01-")?;
    let refresh = Placeholder::new("sk-ant-ort01-")?;
    let mut copy = login.clone();
    copy["accessToken"] = Value::from(placeholder.text());
    copy["refreshToken"] = Value::from(refresh.text());
    copy["expiresAt"] = Value::from(NEVER_MS);
    let file = json!({ ROOM: copy }).to_string();
    Ok(vec![Credential {
        name: "claude login".into(),
        hosts,
        swaps: vec![(placeholder, Secret::new(access.to_owned()))],
        header: None,
        inside: Inside { files: BTreeMap::from([(PathBuf::from(FILE), file)]), ..Inside::default() },
    }])
}
