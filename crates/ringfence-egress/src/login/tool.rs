//! A login as a person looks at it.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::{Login, LoginError, Real};
use crate::audit::now_ms;
use crate::providers::{ProviderError, Sources, find};
use crate::secret::Secret;
use crate::session::login_client;
use crate::upstream::{ConnectTo, Tls};

/// What a person is told of a login.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LoginReport {
    /// Where it comes from.
    pub source: String,
    /// Its token, masked.
    pub token: String,
    /// The plan of the person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
    /// What it is good for.
    pub scopes: Vec<String>,
    /// When it runs out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// Whether it has run out.
    pub expired: bool,
    /// Whether it can be refreshed.
    pub refreshable: bool,
}

/// A login, to be looked at and refreshed.
pub struct LoginTool {
    real: Real,
}

impl LoginTool {
    /// The login that a provider has.
    pub fn find(provider: &str, sources: Sources<'_>) -> Result<Option<Self>, ProviderError> {
        let found = find(&[provider], sources)?;
        let real = found.into_iter().find_map(|credential| credential.swaps.into_iter().next());
        Ok(real.map(|(_, real)| Self { real }))
    }

    /// The token itself.
    pub fn token(&self) -> Secret {
        match &self.real {
            Real::Fixed(secret) => secret.clone(),
            Real::Login(login) => login.now(),
        }
    }

    /// What a person is told.
    pub fn report(&self) -> LoginReport {
        let token = masked(self.token().reveal());
        match &self.real {
            Real::Fixed(_) => LoginReport {
                source: "a variable of the environment".into(),
                token,
                plan: None,
                scopes: Vec::new(),
                expires_at: None,
                expired: false,
                refreshable: false,
            },
            Real::Login(login) => report(login, token),
        }
    }

    /// Refreshes it, whether or not it has run out.
    pub fn refresh(&self, connect_to: &ConnectTo, more: &[String]) -> Result<LoginReport, LoginError> {
        let Real::Login(login) = &self.real else { return Ok(self.report()) };
        let wrong =
            |error: std::io::Error| LoginError::Store { place: login.place(), why: error.to_string() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(wrong)?;
        runtime.block_on(async {
            let tls = Tls::new(more.to_vec()).map_err(wrong)?;
            let client = login_client(connect_to, None, Arc::new(tls)).map_err(wrong)?;
            login.refresh(&client).await
        })?;
        Ok(self.report())
    }
}

fn report(login: &Arc<Login>, token: String) -> LoginReport {
    let document = login.document().unwrap_or_default();
    let expires = (login.kind.tokens)(&document).and_then(|tokens| tokens.expires_at_ms);
    let at = expires.and_then(|ms| jiff::Timestamp::from_millisecond(i64::try_from(ms).ok()?).ok());
    let scopes = document.pointer("/claudeAiOauth/scopes").and_then(Value::as_array);
    LoginReport {
        source: login.place(),
        token,
        plan: (login.kind.plan)(&document),
        scopes: scopes.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect(),
        expires_at: at.map(|at| at.to_string()),
        expired: expires.is_some_and(|at| at <= now_ms()),
        refreshable: (login.kind.tokens)(&document).is_some_and(|tokens| tokens.refresh.is_some()),
    }
}

/// Enough to tell one token from another.
fn masked(token: &str) -> String {
    let shown: String = token.chars().take(if token.len() > 24 { 12 } else { 0 }).collect();
    format!("{shown}…")
}
