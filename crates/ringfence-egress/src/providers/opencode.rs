//! The logins that opencode keeps, one for each provider that it speaks to; or keys in variables.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::{Map, Value};

use super::{ProviderError, Sources, by_variable, text};
use crate::credential::{Credential, Inside};
use crate::endpoints::Scope;
use crate::login::Real;
use crate::placeholder::Placeholder;
use crate::secret::Secret;

const FILE: &str = ".local/share/opencode/auth.json";

/// Its providers: their variable, how their keys begin, their host.
const PROVIDERS: [(&str, &str, &str, &str); 5] = [
    ("anthropic", "ANTHROPIC_API_KEY", "sk-ant-api03-", "api.anthropic.com"),
    ("openai", "OPENAI_API_KEY", "sk-proj-", "api.openai.com"),
    ("openrouter", "OPENROUTER_API_KEY", "sk-or-v1-", "openrouter.ai"),
    ("google", "GEMINI_API_KEY", "AIza", "generativelanguage.googleapis.com"),
    ("opencode", "OPENCODE_API_KEY", "sk-", "opencode.ai"),
];

/// The variable whose key goes to a gateway: the configuration that Ringfence gives opencode there names it.
const GATEWAY_VARIABLE: &str = "OPENAI_API_KEY";

pub(super) fn credentials(sources: Sources<'_>) -> Result<Vec<Credential>, ProviderError> {
    if sources.base_url.is_some() {
        return at_gateway(sources);
    }
    let document = sources.document(FILE)?.unwrap_or_default();
    let mut found = Vec::new();
    let mut file = Map::new();
    for (name, variable, beginning, host) in PROVIDERS {
        let called = format!("opencode {name}");
        let hosts = vec![host.parse()?];
        if let Some(secret) = sources.variable(variable) {
            found.push(by_variable(&called, variable, beginning, secret, hosts)?);
        } else if let Some(key) = document.get(name).and_then(|login| text(login, &["key"])) {
            let placeholder = Placeholder::new(beginning)?;
            file.insert(name.to_owned(), serde_json::json!({"type": "api", "key": placeholder.text()}));
            found.push(Credential {
                name: called,
                hosts,
                swaps: vec![(placeholder, Real::Fixed(Secret::new(key.to_owned())))],
                named: false,
                scope: Scope::Provider,
                in_the_clear: false,
                header: None,
                inside: Inside::default(),
            });
        }
    }
    if let Some(first) = found.first_mut().filter(|_| !file.is_empty()) {
        let file = Value::Object(file).to_string();
        first.inside.files = BTreeMap::from([(PathBuf::from(FILE), file)]);
    }
    Ok(found)
}

/// At a gateway the one key that is meant for it. Those of other providers are no business of that server, and the run does not
/// have them.
fn at_gateway(sources: Sources<'_>) -> Result<Vec<Credential>, ProviderError> {
    let known = PROVIDERS.iter().find(|(_, variable, ..)| *variable == GATEWAY_VARIABLE);
    let Some((name, variable, beginning, host)) = known else { return Ok(Vec::new()) };
    let Some(secret) = sources.variable(variable) else { return Ok(Vec::new()) };
    let hosts = sources.hosts(&[host])?;
    Ok(vec![by_variable(&format!("opencode {name}"), variable, beginning, secret, hosts)?])
}
