//! The headers and the parameters of a query by which a request says who sends it.
//!
//! A request with a swapped credential carries no other: the host would choose between the two, and the usage, the limits and the
//! audit entry would be those of another account.

use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderName};

use crate::placeholder::percent_decoded;

/// The headers in which a placeholder is replaced.
pub(crate) const SWAPPED: [HeaderName; 4] = [
    AUTHORIZATION,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("x-goog-api-key"),
    HeaderName::from_static("private-token"),
];

/// All headers that authenticate at a known provider or at servers of a common kind, those above included.
const HEADERS: [&str; 13] = [
    "authorization",
    "x-api-key",
    "x-goog-api-key",
    "private-token",
    "api-key",
    "apikey",
    "ocp-apim-subscription-key",
    "job-token",
    "deploy-token",
    "x-auth-token",
    "x-access-token",
    "x-amz-security-token",
    "cookie",
];

/// Parameters of a query that authenticate, and one by which some servers take another method.
const PARAMETERS: [&str; 10] = [
    "access_token",
    "api_key",
    "apikey",
    "auth_token",
    "oauth_token",
    "private_token",
    "job_token",
    "subscription_key",
    "x_goog_api_key",
    "_method",
];
/// Authenticates at a model's server; elsewhere it names any kind of thing.
const MODEL_PARAMETER: &str = "key";

/// Removes the headers that authenticate, except those that hold a swapped credential. Nothing if none of those authenticates: a
/// header of another name is sent beside what the run says.
pub(crate) fn remove_others(headers: &mut HeaderMap, swapped: &[HeaderName]) {
    if !swapped.iter().any(authenticates) {
        return;
    }
    let others: Vec<HeaderName> =
        headers.keys().filter(|name| authenticates(name) && !swapped.contains(name)).cloned().collect();
    for name in others {
        headers.remove(name);
    }
}

/// Some servers read `_` in the name of a header as `-`.
fn authenticates(name: &HeaderName) -> bool {
    let name = name.as_str().replace('_', "-");
    HEADERS.contains(&name.as_str())
}

/// The parameter of a query that must not stand beside a swapped credential, if there is one.
pub(crate) fn other_parameter(query: &str, is_model_credential: bool) -> Option<String> {
    let is_other = |name: &String| {
        let name = name.replace('-', "_");
        PARAMETERS.contains(&name.as_str()) || (is_model_credential && name == MODEL_PARAMETER)
    };
    parameters(query).find(is_other)
}

/// The names in a query, decoded and in lower case.
pub(crate) fn parameters(query: &str) -> impl Iterator<Item = String> {
    query.split(['&', ';']).map(|pair| {
        let name = pair.split('=').next().unwrap_or_default();
        String::from_utf8_lossy(&percent_decoded(name)).to_ascii_lowercase()
    })
}
