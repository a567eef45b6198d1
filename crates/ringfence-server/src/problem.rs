//! Errors as RFC 9457 has them, with a code that stays.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::access::Denial;
use crate::desk::{Refusal, RefusalKind};

/// Why something was not done.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// Always `about:blank`: the code says more.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The status in words.
    title: String,
    /// The status.
    status: u16,
    /// A word for programs.
    #[schema(example = "not_found")]
    code: &'static str,
    /// What happened.
    detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Problem {
    /// Of a status, with a word for programs and a sentence for people.
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self {
            kind: "about:blank",
            title: status.canonical_reason().unwrap_or("Error").to_owned(),
            status: status.as_u16(),
            code,
            detail: detail.into(),
            remedy: None,
        }
    }

    pub(crate) fn with_remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }

    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    pub(crate) fn remedy(&self) -> Option<&str> {
        self.remedy.as_deref()
    }

    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// A request that makes no sense.
    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", detail)
    }

    /// The system gives no random bytes for a secret.
    pub(crate) fn no_random_bytes() -> Self {
        let detail = "the system provides no random bytes";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
    }

    /// Something that nobody knows.
    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", detail)
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let (status, code) = match refusal.kind {
            RefusalKind::Invalid => (StatusCode::UNPROCESSABLE_ENTITY, "invalid"),
            RefusalKind::NotFound => (StatusCode::NOT_FOUND, "not_found"),
            RefusalKind::Conflict => (StatusCode::CONFLICT, "conflict"),
            RefusalKind::Forbidden => (StatusCode::FORBIDDEN, "forbidden"),
            RefusalKind::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
            RefusalKind::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        };
        Self { remedy: refusal.remedy, ..Self::new(status, code, refusal.message) }
    }
}

impl From<Denial> for Problem {
    fn from(denial: Denial) -> Self {
        let status = match denial.is_unauthenticated() {
            true => StatusCode::UNAUTHORIZED,
            false => StatusCode::FORBIDDEN,
        };
        Self::new(status, denial.code(), denial.to_string()).with_remedy(denial.remedy())
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.status();
        if status.is_server_error() {
            tracing::warn!(status = self.status, code = self.code, detail = self.detail, "a request failed");
        }
        let mut response = (status, serde_json::to_string(&self).unwrap_or_default()).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
