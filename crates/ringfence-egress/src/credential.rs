//! A credential of a run: what is known inside, what is on the wire, and towards whom.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use hyper_util::client::legacy::Client;
use ringfence_core::policy::{Host, HostRule};

use crate::answer::Body;
use crate::authentication::SWAPPED;
use crate::endpoints::Scope;
use crate::known_secrets::encoded_password;
use crate::login::{Login, LoginError, Real};
use crate::placeholder::{Placeholder, readings};
use crate::secret::Secret;
use crate::upstream::Connector;

/// What a run finds in the place of its credentials.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inside {
    /// Variables.
    pub env: BTreeMap<String, String>,
    /// Files below its home, with what they hold.
    pub files: BTreeMap<PathBuf, String>,
}

/// What a credential has put into a request.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    /// All secrets; the first is the token of a login.
    pub(crate) secrets: Vec<Secret>,
    /// What else is secret of this request: what basic authentication encodes, with a user name that the run chooses.
    pub(crate) encoded: Vec<Secret>,
    /// The headers that hold them.
    pub(crate) headers: Vec<HeaderName>,
}

/// A credential.
#[derive(Debug)]
pub struct Credential {
    /// What people call it.
    pub(crate) name: String,
    /// Where it may go.
    pub(crate) hosts: Vec<HostRule>,
    /// What is known inside, and what it stands for.
    pub(crate) swaps: Vec<(Placeholder, Real)>,
    /// Whether a person has named it, for hosts that are allowed by themselves.
    pub(crate) named: bool,
    /// To which requests to these hosts its secret is added.
    pub(crate) scope: Scope,
    /// Whether a person has put the model where there is no TLS.
    pub(crate) in_the_clear: bool,
    /// A header that is set whatever the run says: its value, and the secret in it.
    pub(crate) header: Option<(HeaderName, Secret, Secret)>,
    /// What a run finds.
    pub(crate) inside: Inside,
}

impl Credential {
    /// What people call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The hosts that it is for.
    pub fn hosts(&self) -> &[HostRule] {
        &self.hosts
    }

    /// Whether a person has named it, for hosts that are allowed by themselves.
    pub fn is_named(&self) -> bool {
        self.named
    }

    /// What a run finds.
    pub fn inside(&self) -> &Inside {
        &self.inside
    }

    pub(crate) fn is_for(&self, host: &Host, port: u16) -> bool {
        self.hosts.iter().any(|rule| rule.matches(host, port))
    }

    /// Whether it belongs to a host, at whichever port: what one service of a host hears, another one may repeat.
    pub(crate) fn is_at(&self, host: &Host) -> bool {
        self.hosts.iter().any(|rule| rule.matches_host(host))
    }

    /// Its secrets, other than those of a login.
    pub(crate) fn secrets(&self) -> Vec<Secret> {
        let mut secrets = Vec::new();
        for (placeholder, real) in &self.swaps {
            let Real::Fixed(secret) = real else { continue };
            secrets.push(secret.clone());
            if placeholder.is_password() {
                secrets.extend(encoded_password(secret));
            }
        }
        secrets.extend(self.header.iter().map(|(_, _, secret)| secret.clone()));
        secrets
    }

    /// Whether it may be used on this way: in the clear only where a person has put the model so.
    pub(crate) fn travels(&self, secure: bool) -> bool {
        secure || self.in_the_clear
    }

    /// Whether some bytes hold one of its placeholders.
    pub(crate) fn is_in(&self, bytes: &[u8]) -> bool {
        self.swaps.iter().any(|(placeholder, _)| placeholder.is_in(bytes))
    }

    /// Whether some header holds one of its placeholders.
    pub(crate) fn is_in_headers(&self, headers: &HeaderMap) -> bool {
        headers.iter().any(|(name, value)| {
            self.is_in(name.as_str().as_bytes())
                || readings(value.as_bytes()).any(|reading| self.is_in(&reading))
        })
    }

    /// The login that it comes from, if it comes from one.
    pub fn login(&self) -> Option<&Arc<Login>> {
        self.swaps.iter().find_map(|(_, real)| real.login())
    }

    /// Puts the real values into the headers of a request.
    pub(crate) async fn apply(
        &self,
        headers: &mut HeaderMap,
        client: &Client<Connector, Body>,
    ) -> Result<Applied, LoginError> {
        let mut applied = Applied::default();
        for (placeholder, real) in &self.swaps {
            if !self.is_in_headers(headers) {
                break;
            }
            let secret = real.get(client).await?;
            // Nowhere else: a host may repeat to the run what it finds in other headers.
            for name in SWAPPED {
                let Some(value) = headers.get(&name) else { continue };
                let swapped = value.to_str().ok().and_then(|text| placeholder.swap(text, secret.reveal()));
                if let Some(swapped) = swapped {
                    // As it is, and as it is on the wire where that differs.
                    let sent = bare(&swapped);
                    applied.secrets.push(secret.clone());
                    applied.encoded.extend((sent != secret.reveal()).then(|| Secret::new(sent.to_owned())));
                    if let Some(swapped) = sensitive(swapped) {
                        // In the place of all values of this header.
                        headers.insert(&name, swapped);
                        applied.headers.push(name);
                    }
                }
            }
        }
        if let Some((name, whole, secret)) = &self.header
            && let Some(value) = sensitive(whole.reveal().to_owned())
        {
            headers.insert(name, value);
            applied.headers.push(name.clone());
            applied.secrets.push(secret.clone());
        }
        Ok(applied)
    }
}

/// The last word of a value, without its scheme.
fn bare(value: &str) -> &str {
    value.rsplit(' ').next().unwrap_or(value)
}

/// A value that nobody prints.
fn sensitive(text: String) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}
