//! A key of Anthropic's API, or a token for a gateway that speaks it.

use super::{ProviderError, Sources, by_variable};
use crate::credential::Credential;

pub(super) const HOSTS: [&str; 1] = ["api.anthropic.com"];

pub(super) fn credentials(sources: Sources<'_>) -> Result<Vec<Credential>, ProviderError> {
    for (variable, beginning) in
        [("ANTHROPIC_AUTH_TOKEN", "ringfence-"), ("ANTHROPIC_API_KEY", "sk-ant-api03-")]
    {
        if let Some(secret) = sources.variable(variable) {
            let hosts = sources.hosts(&HOSTS)?;
            return Ok(vec![by_variable("anthropic key", variable, beginning, secret, hosts)?]);
        }
    }
    Ok(Vec::new())
}
