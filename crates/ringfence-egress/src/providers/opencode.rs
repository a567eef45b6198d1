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

pub(super) fn credentials(sources: Sources<'_>) -> Result<Vec<Credential>, ProviderError> {
    let document = sources.document(FILE)?.unwrap_or_default();
    let mut found = Vec::new();
    let mut file = Map::new();
    for (name, variable, beginning, host) in PROVIDERS {
        let called = format!("opencode {name}");
        let hosts = sources.hosts(&[host])?;
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
