//! Which requests to the hosts of models a run with a budget may send: those whose usage is read off the answer, and those that
//! are known to use nothing. Everything else is refused, because a way that is not known here may use tokens without saying so.

use http::Method;

use super::Api;

/// What a request to the host of a model is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    /// It asks the model, and its answer says what was used.
    Metered(Api),
    /// It uses no tokens.
    Free,
}

/// Ends of paths that use nothing, for requests that send something.
const FREE_POSTS: [&str; 7] = [
    "/count_tokens",
    "/ps/mcp",
    "/event_logging/batch",
    "/event_logging/v2/batch",
    "/metrics",
    "/settings",
    "/oauth/token",
];
/// Beginnings of the same: experiments and logins of the agent CLIs.
const FREE_POST_TREES: [&str; 4] = ["/api/eval/", "/api/oauth/", "/oauth/", "/backend-api/wham/"];

/// Ends of paths that are only read: lists of models, accounts, settings.
const FREE_READS: [&str; 8] =
    ["/models", "/ps/mcp", "/settings", "/metrics", "/v1/me", "/v1/mcp_servers", "/v1/key", "/v1/credits"];
/// Beginnings of the same. None of them serves what a model has said.
const FREE_READ_TREES: [&str; 13] = [
    "/api/claude_cli/",
    "/api/claude_code",
    "/api/eval/",
    "/api/hello",
    "/api/oauth/",
    "/api/organizations/",
    "/api/v1/models/",
    "/backend-api/accounts/",
    "/backend-api/plugins/",
    "/backend-api/wham/",
    "/mcp-registry/",
    "/oauth/",
    "/v1/models/",
];

/// Collections whose members only look like requests to a model, such as `threads/ID/messages`.
const COLLECTIONS: [&str; 7] =
    ["threads", "assistants", "batches", "files", "conversations", "fine_tuning", "evals"];

/// What a request with this method and path is, if it is known. The path is decoded, in lower case and without its query.
pub(crate) fn route(method: &Method, path: &str) -> Option<Route> {
    // What the host might read in another way than this does is not known.
    if path.contains("//") || path.split('/').any(|segment| segment == ".." || segment == ".") {
        return None;
    }
    let path = path.strip_suffix('/').unwrap_or(path);
    let ends = |ends: &[&str]| ends.iter().any(|end| path.ends_with(end));
    let begins = |trees: &[&str]| trees.iter().any(|tree| path.starts_with(tree));
    let free = match *method {
        Method::OPTIONS => true,
        Method::GET | Method::HEAD => path.is_empty() || ends(&FREE_READS) || begins(&FREE_READ_TREES),
        Method::POST => ends(&FREE_POSTS) || begins(&FREE_POST_TREES),
        _ => false,
    };
    let listed = path.split('/').any(|segment| COLLECTIONS.contains(&segment));
    match Api::of(path) {
        Some(api) if *method == Method::POST && !listed => Some(Route::Metered(api)),
        _ => (free && !listed).then_some(Route::Free),
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::{Api, Route, route};

    #[test]
    fn only_known_requests_have_a_route() {
        let metered = |api| Some(Route::Metered(api));
        for (method, path, expected) in [
            (Method::POST, "/v1/messages", metered(Api::Messages)),
            (Method::POST, "/v1/responses", metered(Api::Responses)),
            (Method::POST, "/backend-api/codex/responses", metered(Api::Responses)),
            (Method::POST, "/api/v1/chat/completions", metered(Api::Chat)),
            (Method::POST, "/zen/v1/chat/completions/", metered(Api::Chat)),
            (Method::POST, "/v1/messages/count_tokens", Some(Route::Free)),
            (Method::HEAD, "/", Some(Route::Free)),
            (Method::GET, "/v1/models", Some(Route::Free)),
            (Method::GET, "/v1/models/gpt-5", Some(Route::Free)),
            (Method::GET, "/api/claude_cli/bootstrap", Some(Route::Free)),
            (Method::POST, "/api/event_logging/v2/batch", Some(Route::Free)),
            (Method::GET, "/v1/responses/resp_1", None),
            (Method::GET, "/v1/responses", None),
            (Method::GET, "/v1/chat/completions/id", None),
            (Method::POST, "/v1/batches", None),
            (Method::POST, "/v1/messages/batches", None),
            (Method::GET, "/v1/messages/batches/id/results", None),
            (Method::POST, "/v1/threads/t/messages", None),
            (Method::POST, "/v1/threads/runs", None),
            (Method::POST, "/v1/threads/t/runs", None),
            (Method::POST, "/v1/files", None),
            (Method::GET, "/v1/files/f/content", None),
            (Method::POST, "/v1/embeddings", None),
            (Method::POST, "/v1/completions", None),
            (Method::POST, "/v1/images/generations", None),
            (Method::POST, "/v1/audio/speech", None),
            (Method::POST, "/v1/realtime/sessions", None),
            (Method::GET, "/v1/realtime", None),
            (Method::POST, "/v1/responses/compact", None),
            (Method::POST, "/v1/responses/id/cancel", None),
            (Method::DELETE, "/v1/responses/id", None),
            (Method::PUT, "/v1/messages", None),
            (Method::POST, "/v1/batches/x/../messages", None),
            (Method::POST, "//v1/messages", None),
            (Method::POST, "/v1beta/models/gemini:generatecontent", None),
        ] {
            assert_eq!(route(&method, path), expected, "{method} {path}");
        }
    }
}
