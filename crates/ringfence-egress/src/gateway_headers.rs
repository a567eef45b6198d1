//! Headers by which a gateway or an application server takes another host, path, method, configuration or part of an answer than the
//! request line names.
//!
//! They do not reach a host with a credential: the scope of the credential and the budget are checked by the request line. With the
//! credential of a model only listed headers go along (`model_headers.rs`).

use http::HeaderMap;
use http::header::HeaderName;

/// How the names of such headers begin.
const PREFIXES: [&str; 8] = [
    "x-forwarded-",
    "x-original-",
    "x-rewrite-",
    "x-envoy-",
    "proxy-",
    "x-portkey-",
    "helicone-",
    "x-litellm-",
];

/// Names of others. `a-im` asks for an encoding of the answer (RFC 3229), a range for a part of it, in which a secret cannot be seen.
const NAMES: [&str; 22] = [
    "forwarded",
    "proxy",
    "x-host",
    "x-real-ip",
    "x-backend-host",
    "x-http-host-override",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-override-url",
    "x-proxy-url",
    "x-target-url",
    "x-upstream-url",
    "x-middleware-subrequest",
    "a-im",
    "range",
    "if-range",
    "request-range",
    "x-range",
    "x-ms-range",
    "x-goog-range",
    "x-amz-range",
];

/// Removes them.
pub(crate) fn remove(headers: &mut HeaderMap) {
    let found: Vec<HeaderName> = headers.keys().filter(|name| leads_elsewhere(name)).cloned().collect();
    for name in found {
        headers.remove(name);
    }
}

/// Some servers read `_` in the name of a header as `-`.
fn leads_elsewhere(name: &HeaderName) -> bool {
    let name = name.as_str().replace('_', "-");
    NAMES.contains(&name.as_str()) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use http::header::HeaderName;

    use super::leads_elsewhere;

    #[test]
    fn header_that_leads_elsewhere_is_known_in_any_spelling() {
        for name in
            ["x-portkey-config", "Helicone-Fallbacks", "x_litellm_api_base", "X-MS-Range", "request-range"]
        {
            assert!(leads_elsewhere(&HeaderName::from_bytes(name.as_bytes()).unwrap()), "{name}");
        }
        for name in ["accept-ranges", "content-range", "x-request-id", "user-agent"] {
            assert!(!leads_elsewhere(&HeaderName::from_static(name)), "{name}");
        }
    }
}
