//! Headers by which a gateway or an application server takes another host, path or method than the request line names.
//!
//! They do not reach a host with a credential: the scope of the credential and the budget are checked by the request line.

use http::HeaderMap;
use http::header::HeaderName;

/// How the names of such headers begin.
const PREFIXES: [&str; 5] = ["x-forwarded-", "x-original-", "x-rewrite-", "x-envoy-", "proxy-"];

/// Names of others. `a-im` asks for an encoding of the answer (RFC 3229).
const NAMES: [&str; 18] = [
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
    "x-portkey-custom-host",
    "helicone-target-url",
    "helicone-openai-api-base",
    "a-im",
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
