//! What a run is told when it may not.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full};
use ringfence_core::policy::{Denial, Network};
use serde_json::json;

use crate::audit::Outcome;

/// A body of any kind, on its way.
pub(crate) type Body = UnsyncBoxBody<Bytes, BodyError>;
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

const DENIED: HeaderName = HeaderName::from_static("x-ringfence-denied");

/// Why a wish is not granted, in the words of programs and of people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) rule: &'static str,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, rule: &'static str, message: impl Into<String>) -> Self {
        Self { status, rule, message: message.into() }
    }

    /// A request that no honest program makes.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad-request", message)
    }

    /// A run that has used what it may.
    pub(crate) fn budget(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "budget", message)
    }

    /// A host that cannot be reached although it may be.
    pub(crate) fn unreachable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, "unreachable", message)
    }

    /// How it is noted.
    pub(crate) fn outcome(&self) -> Outcome {
        match self.status {
            StatusCode::BAD_REQUEST
            | StatusCode::MISDIRECTED_REQUEST
            | StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => Outcome::Block,
            StatusCode::FORBIDDEN if self.rule == "placeholder" => Outcome::Block,
            StatusCode::FORBIDDEN | StatusCode::UPGRADE_REQUIRED => Outcome::Deny,
            _ => Outcome::Error,
        }
    }

    /// What a person can do about it.
    fn remedy(&self) -> &'static str {
        match self.rule {
            "unlisted" => "a person can allow the host with `--allow HOST` or `network.allow` of the policy",
            "private-address" => {
                "a person can allow the address itself, as `--allow ADDRESS`, besides the host"
            }
            "denied" => "a person can take it from `network.deny` of the policy",
            "placeholder" => "use the credential in its own header, towards its own host, over TLS",
            "credential-path" => {
                "leave the credential out of this request; it is added to the requests that agent CLIs make"
            }
            "credential-query" => "leave the parameter out of the query: the credential is in a header",
            "budget-field" => "leave the field out of the request, or use a policy without a budget",
            "budget-tool" => "leave the tool out of the request, or use a policy without a budget",
            "login" => "a person can log in again, outside",
            "daemon" => "leave the daemon's address out: no policy allows it",
            "budget" => "raise `limits.tokens` or `limits.cost_usd` of the policy",
            "audit-full" => "start another run: this one has made more requests than are recorded for one",
            "budget-model" => {
                "name the price of the model in the file that `broker.prices_file` of the settings names, or use \
                 `limits.tokens` instead of `limits.cost_usd`"
            }
            "budget-request" => {
                "use /messages, /responses or /chat/completions in the foreground, or a policy without a budget"
            }
            _ => "look at what was asked for",
        }
    }

    /// The answer. What would be allowed stands in it, for programs that choose by themselves.
    pub(crate) fn answer(&self, network: &Network) -> Response<Body> {
        let allowed: Vec<String> = network.allow.iter().map(ToString::to_string).collect();
        let body = json!({
            "error": "ringfence did not let this through",
            "rule": self.rule,
            "message": self.message,
            "allowed": allowed,
            "remedy": self.remedy(),
        });
        let mut response = Response::new(whole(format!("{body}\n")));
        *response.status_mut() = self.status;
        response.headers_mut().insert(DENIED, HeaderValue::from_static(self.rule));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

impl From<Denial> for Refusal {
    fn from(denial: Denial) -> Self {
        Self::new(StatusCode::FORBIDDEN, denial.rule(), denial.to_string())
    }
}

pub(crate) fn whole(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).map_err(|never| match never {}).boxed_unsync()
}

pub(crate) fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}
