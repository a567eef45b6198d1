//! The headers and the parameters of a query by which a request says who sends it.
//!
//! A request with a swapped credential carries no other: the host would choose between the two, and the usage, the limits and the
//! audit entry would be those of another account.

use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};

use crate::placeholder::percent_decoded;

/// The headers in which a placeholder is replaced.
pub(crate) const SWAPPED: [HeaderName; 4] = [
    AUTHORIZATION,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("x-goog-api-key"),
    HeaderName::from_static("private-token"),
];

/// Headers that authenticate or name an account, at a known provider or at servers of a common kind.
const HEADERS: [&str; 10] = [
    "authorization",
    "apikey",
    "ocp-apim-subscription-key",
    "cookie",
    "cookie2",
    "x-jfrog-art-api",
    "x-api-secret",
    "openai-organization",
    "openai-project",
    "x-goog-user-project",
];
/// How the names of others end, such as `x-api-key`, `private-token`, `x-vault-token`, `cf-aig-authorization` and `helicone-auth`.
const ENDINGS: [&str; 6] = ["-api-key", "-apikey", "-token", "-authorization", "-auth", "-access-key"];
/// A token against forged requests is of the page, and not of a user.
const NO_CREDENTIALS: [&str; 2] = ["csrf", "xsrf"];
/// Programs that cannot set headers, such as pages, authenticate by a protocol of a websocket.
const WEBSOCKET_PROTOCOL: &str = "sec-websocket-protocol";
const PROTOCOL_WORDS: [&str; 5] = ["api-key", "bearer", "authorization", "token", "openai-"];

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
    let is_other = |(name, value): &(&HeaderName, &HeaderValue)| {
        (authenticates(name) || is_protocol_with_credential(name, value)) && !swapped.contains(name)
    };
    let others: Vec<HeaderName> = headers.iter().filter(is_other).map(|(name, _)| name.clone()).collect();
    for name in others {
        headers.remove(name);
    }
}

/// Some servers read `_` in the name of a header as `-`.
fn authenticates(name: &HeaderName) -> bool {
    let name = name.as_str().replace('_', "-");
    HEADERS.contains(&name.as_str()) || ENDINGS.iter().any(|ending| ends_with_word(&name, ending))
}

/// Whether a name ends with a word, which may be all of it.
fn ends_with_word(name: &str, ending: &str) -> bool {
    let ends = name.ends_with(ending) || ending.strip_prefix('-') == Some(name);
    ends && !NO_CREDENTIALS.iter().any(|word| name.contains(word))
}

fn is_protocol_with_credential(name: &HeaderName, value: &HeaderValue) -> bool {
    let value = value.as_bytes().to_ascii_lowercase();
    let holds = |word: &&str| memchr::memmem::find(&value, word.as_bytes()).is_some();
    name == WEBSOCKET_PROTOCOL && PROTOCOL_WORDS.iter().any(holds)
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

#[cfg(test)]
mod tests {
    use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};

    use super::{SWAPPED, authenticates, remove_others};

    #[test]
    fn header_that_authenticates_is_removed_beside_a_swapped_one() {
        let authenticating = [
            "x-litellm-api-key",
            "x-portkey-api-key",
            "helicone-auth",
            "cf-aig-authorization",
            "x-serverless-authorization",
            "x-jfrog-art-api",
            "x-vault-token",
            "openai-organization",
            "x-goog-user-project",
            "job_token",
            "api-key",
            "x-amz-security-token",
            "cookie",
        ];
        let other = ["x-csrf-token", "accept", "x-request-id", "token-count"];
        let mut headers = HeaderMap::new();
        for name in authenticating.into_iter().chain(other) {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static("x"));
        }
        headers.insert(
            "sec-websocket-protocol",
            HeaderValue::from_static("realtime, openai-insecure-api-key.k"),
        );
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer k"));
        remove_others(&mut headers, &[HeaderName::from_static("x-own")]);
        assert_eq!(
            headers.len(),
            authenticating.len() + other.len() + 2,
            "nothing that authenticates was swapped"
        );
        remove_others(&mut headers, &[AUTHORIZATION]);
        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["accept", "authorization", "token-count", "x-csrf-token", "x-request-id"]);
        headers.insert("sec-websocket-protocol", HeaderValue::from_static("graphql-transport-ws"));
        remove_others(&mut headers, &[AUTHORIZATION]);
        assert!(headers.contains_key("sec-websocket-protocol"));
        assert!(SWAPPED.iter().all(authenticates));
    }
}
