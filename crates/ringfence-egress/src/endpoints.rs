//! The endpoints of the model providers: to which requests a login is added, and what a run with a budget may send.
//!
//! One table for both. A login is added to requests that are listed and to no others: an endpoint that creates keys, changes an
//! account, or reads, changes or stores its objects (files, batches, stored answers, assistants) is none of a run's business. Under a budget only those are sent whose answer tells its usage, and those that are
//! known to use nothing: they are listed one by one, by host, method and path.

use http::Method;
use ringfence_core::policy::Host;

use crate::meter::Api;

/// What a request to an endpoint uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// It asks a model, and its answer says what was used.
    Metered(Api),
    /// It uses no tokens.
    Free,
    /// It may use something that is not counted: refused under a budget.
    Uncounted,
}

/// Methods of requests that read.
const READ: &[Method] = &[Method::GET, Method::HEAD];
const POST: &[Method] = &[Method::POST];
#[cfg(test)]
const ANY: &[Method] = &[Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

const MESSAGES: Use = Use::Metered(Api::Messages);
const RESPONSES: Use = Use::Metered(Api::Responses);
const CHAT: Use = Use::Metered(Api::Chat);

/// Methods, path and use. In a path `*` is one segment, and `**` at its end is any number of segments, also none: both for what is
/// read alone. `*:method` is a model and one of `MODEL_METHODS`, and `sdk-*` is a segment that begins so.
type Endpoint = (&'static [Method], &'static str, Use);

/// What Google's API does with a model (`models/NAME:METHOD`), where it answers at once. Others begin work that goes on by itself, or
/// keep something.
const MODEL_METHODS: [&str; 5] =
    ["generateContent", "streamGenerateContent", "countTokens", "embedContent", "batchEmbedContents"];

/// Parts of the names of endpoints that create or list keys, tokens, sessions, members and their like. No `*` and no `**` of a
/// path stands for a segment that contains one.
const ACCOUNT_NAMES: [&str; 14] = [
    "key",
    "token",
    "secret",
    "session",
    "credential",
    "oauth",
    "auth",
    "admin",
    "organi",
    "member",
    "user",
    "invite",
    "account",
    "project",
];

/// The endpoints of each provider's host.
const HOSTS: &[(&str, &[Endpoint])] = &[
    ("api.anthropic.com", ANTHROPIC),
    ("api.openai.com", OPENAI),
    ("chatgpt.com", CHATGPT),
    ("openrouter.ai", OPENROUTER),
    ("opencode.ai", OPENCODE),
    ("generativelanguage.googleapis.com", GOOGLE),
];

const ANTHROPIC: &[Endpoint] = &[
    (READ, "/", Use::Free),
    (POST, "/v1/messages", MESSAGES),
    (POST, "/v1/messages/count_tokens", Use::Free),
    (READ, "/v1/models", Use::Free),
    (READ, "/v1/models/*", Use::Free),
    (READ, "/v1/me", Use::Free),
    (READ, "/v1/mcp_servers", Use::Free),
    (READ, "/api/hello", Use::Free),
    (READ, "/api/oauth/profile", Use::Free),
    (READ, "/api/oauth/usage", Use::Free),
    (READ, "/api/oauth/account/settings", Use::Free),
    (READ, "/api/oauth/claude_cli/client_data", Use::Free),
    (READ, "/api/oauth/claude_cli/roles", Use::Free),
    (READ, "/api/claude_cli/bootstrap", Use::Free),
    (READ, "/api/claude_cli_profile", Use::Free),
    (READ, "/api/claude_code/policy_limits", Use::Free),
    (READ, "/api/claude_code/settings", Use::Free),
    (READ, "/api/claude_code/organizations/metrics_enabled", Use::Free),
    (READ, "/api/claude_code_grove", Use::Free),
    (READ, "/api/claude_code_penguin_mode", Use::Free),
    (READ, "/api/organization/claude_code_first_token_date", Use::Free),
    // Whether a page may be fetched.
    (READ, "/api/web/domain_info", Use::Free),
    (READ, "/api/features/*", Use::Free),
    (READ, "/mcp-registry/v0/servers", Use::Free),
    (POST, "/api/eval/sdk-*", Use::Free),
    (POST, "/api/event_logging/batch", Use::Free),
    (POST, "/api/event_logging/v2/batch", Use::Free),
    (POST, "/api/claude_code/metrics", Use::Free),
    (READ, "/mcp-registry/**", Use::Uncounted),
    (POST, "/v1/complete", Use::Uncounted),
];

const OPENAI: &[Endpoint] = &[
    (READ, "/", Use::Free),
    (POST, "/v1/responses", RESPONSES),
    (POST, "/v1/chat/completions", CHAT),
    (READ, "/v1/models", Use::Free),
    (READ, "/v1/models/*", Use::Free),
    (READ, "/v1/me", Use::Free),
    // The WebSocket of codex. Stored responses are below it.
    (READ, "/v1/responses", Use::Uncounted),
    (POST, "/v1/responses/compact", Use::Uncounted),
    (POST, "/v1/completions", Use::Uncounted),
    (POST, "/v1/embeddings", Use::Uncounted),
    (POST, "/v1/moderations", Use::Uncounted),
];

const CHATGPT: &[Endpoint] = &[
    (POST, "/backend-api/codex/responses", RESPONSES),
    (READ, "/backend-api/codex/models", Use::Free),
    (READ, "/backend-api/wham/accounts/check", Use::Free),
    (READ, "/backend-api/wham/settings/user", Use::Free),
    (READ, "/backend-api/wham/usage", Use::Free),
    (READ, "/backend-api/wham/config/bundle", Use::Free),
    (READ, "/backend-api/wham/workspace-messages", Use::Free),
    (POST, "/backend-api/codex/analytics-events/events", Use::Free),
    (READ, "/backend-api/plugins/list", Use::Free),
    (READ, "/backend-api/plugins/featured", Use::Free),
    // The apps that the user has connected to the account, as codex uses them.
    (POST, "/backend-api/ps/mcp", Use::Free),
    (READ, "/backend-api/codex/responses", Use::Uncounted),
    (POST, "/backend-api/codex/responses/compact", Use::Uncounted),
    (READ, "/backend-api/codex/**", Use::Uncounted),
    (READ, "/backend-api/plugins/**", Use::Uncounted),
];

const OPENROUTER: &[Endpoint] = &[
    (POST, "/api/v1/chat/completions", CHAT),
    (POST, "/api/v1/messages", MESSAGES),
    (POST, "/api/v1/responses", RESPONSES),
    (READ, "/api/v1/models", Use::Free),
    (READ, "/api/v1/models/user", Use::Free),
    (READ, "/api/v1/models/*/*/endpoints", Use::Free),
    (READ, "/api/v1/key", Use::Free),
    (READ, "/api/v1/auth/key", Use::Free),
    (READ, "/api/v1/credits", Use::Free),
    (READ, "/api/v1/generation", Use::Uncounted),
    (POST, "/api/v1/completions", Use::Uncounted),
    (POST, "/api/v1/embeddings", Use::Uncounted),
];

const OPENCODE: &[Endpoint] = &[
    (POST, "/zen/v1/chat/completions", CHAT),
    (POST, "/zen/v1/messages", MESSAGES),
    (POST, "/zen/v1/responses", RESPONSES),
    (READ, "/zen/v1/models", Use::Free),
    (POST, "/zen/v1/models/*:method", Use::Uncounted),
    (POST, "/zen/go/v1/chat/completions", CHAT),
    (POST, "/zen/go/v1/messages", MESSAGES),
    (READ, "/zen/go/v1/models", Use::Free),
];

const GOOGLE: &[Endpoint] = &[
    (READ, "/v1/models", Use::Uncounted),
    (READ, "/v1/models/*", Use::Uncounted),
    (READ, "/v1beta/models", Use::Uncounted),
    (READ, "/v1beta/models/*", Use::Uncounted),
    (POST, "/v1/models/*:method", Use::Uncounted),
    (POST, "/v1beta/models/*:method", Use::Uncounted),
    (POST, "/v1beta/openai/chat/completions", CHAT),
];

/// The endpoints of a gateway at which the user has put the model, below the path of its address.
const GATEWAY: &[Endpoint] = &[
    (READ, "/", Use::Free),
    (POST, "/messages", MESSAGES),
    (POST, "/v1/messages", MESSAGES),
    (POST, "/messages/count_tokens", Use::Free),
    (POST, "/v1/messages/count_tokens", Use::Free),
    (POST, "/responses", RESPONSES),
    (POST, "/v1/responses", RESPONSES),
    (POST, "/chat/completions", CHAT),
    (POST, "/v1/chat/completions", CHAT),
    (READ, "/models", Use::Free),
    (READ, "/models/*", Use::Free),
    (READ, "/v1/models", Use::Free),
    (READ, "/v1/models/*", Use::Free),
    (READ, "/api/claude_code/policy_limits", Use::Free),
    (READ, "/api/claude_code/settings", Use::Free),
    (READ, "/api/oauth/profile", Use::Free),
    (READ, "/responses", Use::Uncounted),
    (READ, "/v1/responses", Use::Uncounted),
    (POST, "/responses/compact", Use::Uncounted),
    (POST, "/v1/responses/compact", Use::Uncounted),
    (POST, "/completions", Use::Uncounted),
    (POST, "/v1/completions", Use::Uncounted),
    (POST, "/embeddings", Use::Uncounted),
    (POST, "/v1/embeddings", Use::Uncounted),
    (POST, "/models/*:method", Use::Uncounted),
    (POST, "/v1/models/*:method", Use::Uncounted),
    (POST, "/v1beta/models/*:method", Use::Uncounted),
];

/// Whether a host is one of the providers' own.
pub(crate) fn is_provider(host: &Host) -> bool {
    endpoints_of(host).is_some()
}

fn endpoints_of(host: &Host) -> Option<&'static [Endpoint]> {
    let Host::Name(name) = host else { return None };
    HOSTS.iter().find(|(known, _)| *known == name.as_str()).map(|(_, endpoints)| *endpoints)
}

/// What a request to a provider's own host uses; nothing if it is not listed. The path is without its query.
pub(crate) fn provider_use(host: &Host, method: &Method, path: &str) -> Option<Use> {
    find(endpoints_of(host)?, method, path)
}

/// To which requests the secret of a credential is added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All requests to its hosts.
    All,
    /// The endpoints of its hosts that are listed.
    Provider,
    /// Those of a gateway, below this path.
    Gateway(String),
    /// This path and all below it, by whole segments.
    Below(String),
}

impl Scope {
    /// The scope at the address at which the user has put the model.
    pub(crate) fn of_gateway(url: &str) -> Self {
        let after_scheme = url.split_once("://").map_or(url, |(_, rest)| rest);
        let path = after_scheme.split(['?', '#']).next().unwrap_or_default();
        let path = path.find('/').map_or("", |at| &path[at..]);
        Scope::Gateway(path.trim_end_matches('/').to_owned())
    }

    /// The scope of a path and all below it; nothing if hosts could read the path in several ways.
    pub(crate) fn below(path: &str) -> Option<Self> {
        let path = format!("/{}", path.trim_end_matches('/'));
        is_plain(&path).then_some(Scope::Below(path))
    }

    /// What a listed request uses; nothing if it is not listed, or if the scope has no list.
    pub(crate) fn find(&self, host: &Host, method: &Method, path: &str) -> Option<Use> {
        match self {
            Scope::All | Scope::Below(_) => None,
            Scope::Provider => provider_use(host, method, path),
            Scope::Gateway(base) => {
                let below = path.strip_prefix(base.as_str()).filter(|rest| rest.starts_with('/'));
                let below = below.or_else(|| (path == base).then_some("/"));
                // Some programs greet the host itself, before they use the model.
                let greets = (path == "/" && READ.contains(method)).then_some(Use::Free);
                below.and_then(|below| find(GATEWAY, method, below)).or(greets)
            }
        }
    }

    /// Whether it is one path and all below it.
    pub(crate) fn is_path(&self) -> bool {
        matches!(self, Scope::Below(_))
    }

    /// Whether the secret is added to a request.
    pub(crate) fn covers(&self, host: &Host, method: &Method, path: &str) -> bool {
        match self {
            Scope::All => true,
            Scope::Below(base) => {
                let below = path.strip_prefix(base.trim_end_matches('/'));
                is_plain(path) && below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
            Scope::Provider | Scope::Gateway(_) => self.find(host, method, path).is_some(),
        }
    }
}

fn find(endpoints: &[Endpoint], method: &Method, path: &str) -> Option<Use> {
    if !is_plain(path) {
        return None;
    }
    let listed = |(methods, pattern, _): &&Endpoint| methods.contains(method) && matches(pattern, path);
    endpoints.iter().find(listed).map(|(_, _, used)| *used)
}

/// Whether every host reads a path alike: without escapes, empty segments, and segments that lead elsewhere.
fn is_plain(path: &str) -> bool {
    let odd = |byte: u8| !byte.is_ascii_graphic() || matches!(byte, b'%' | b'\\' | b';');
    path.starts_with('/')
        && !path.contains("//")
        && !path.bytes().any(odd)
        && !path.split('/').any(|segment| segment == "." || segment == "..")
}

/// Whether a segment names what belongs to an account. Identifiers that providers give have digits, and may hold any letters.
fn is_of_account(segment: &str) -> bool {
    let name = segment.to_ascii_lowercase();
    !name.bytes().any(|byte| byte.is_ascii_digit()) && ACCOUNT_NAMES.iter().any(|part| name.contains(part))
}

fn is_name(segment: &str) -> bool {
    !segment.is_empty() && !is_of_account(segment)
}

/// Whether a segment names a model and what is done with it.
fn is_model_method(segment: &str) -> bool {
    segment.split_once(':').is_some_and(|(model, method)| is_name(model) && MODEL_METHODS.contains(&method))
}

fn matches(pattern: &str, path: &str) -> bool {
    let (mut wanted, mut given) = (pattern.split('/'), path.split('/'));
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return true,
            (Some("**"), segment) => return !segment.into_iter().chain(given).any(is_of_account),
            (Some("*"), Some(segment)) if is_name(segment) => {}
            (Some("*:method"), Some(segment)) if is_model_method(segment) => {}
            (Some("sdk-*"), Some(segment)) if segment.strip_prefix("sdk-").is_some_and(is_name) => {}
            (Some(segment), Some(same)) if segment == same && !segment.contains('*') => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::{Api, HOSTS, Scope, Use, provider_use};

    const GOOGLE: &str = "generativelanguage.googleapis.com";
    const METERED: [(&str, &str, Api); 6] = [
        ("api.anthropic.com", "/v1/messages", Api::Messages),
        ("api.openai.com", "/v1/responses", Api::Responses),
        ("api.openai.com", "/v1/chat/completions", Api::Chat),
        ("chatgpt.com", "/backend-api/codex/responses", Api::Responses),
        ("openrouter.ai", "/api/v1/chat/completions", Api::Chat),
        ("opencode.ai", "/zen/v1/messages", Api::Messages),
    ];

    fn used(host: &str, method: &Method, path: &str) -> Option<Use> {
        provider_use(&host.parse().unwrap(), method, path)
    }

    #[test]
    fn requests_to_models_are_metered_at_their_exact_path() {
        for (host, path, api) in METERED {
            assert_eq!(used(host, &Method::POST, path), Some(Use::Metered(api)), "{host}{path}");
            for other in [
                format!("{path}/"),
                format!("/x{path}"),
                format!("/{path}"),
                format!("{path}/../messages"),
                path.to_ascii_uppercase(),
                path.replace("/v1", "/%761"),
                format!("{path};x"),
                path[1..].to_owned(),
            ] {
                let found = used(host, &Method::POST, &other).filter(|_| other != path);
                assert!(!matches!(found, Some(Use::Metered(_) | Use::Free)), "{host} {other}: {found:?}");
            }
            let read = used(host, &Method::GET, path);
            assert!(matches!(read, None | Some(Use::Uncounted)), "{host} {path}: {read:?}");
        }
    }

    #[test]
    fn free_endpoints_are_listed_one_by_one() {
        for (host, endpoints) in HOSTS {
            for (_, path, used) in *endpoints {
                assert!(*used == Use::Uncounted || !path.contains("**"), "{host}{path}");
                assert!(path.starts_with('/') && path.find("**").is_none_or(|at| at + 2 == path.len()));
            }
        }
        for (host, method, path) in [
            ("chatgpt.com", Method::POST, "/backend-api/wham/tasks"),
            ("chatgpt.com", Method::POST, "/backend-api/wham/settings"),
            ("chatgpt.com", Method::POST, "/x/settings"),
            ("api.openai.com", Method::POST, "/v1/x/count_tokens"),
            ("api.anthropic.com", Method::POST, "/api/oauth/anything"),
            ("api.anthropic.com", Method::GET, "/v1/messages/batches/b/results"),
            ("api.openai.com", Method::GET, "/v1/responses/resp_1"),
            ("api.openai.com", Method::POST, "/v1/threads/t/messages"),
            ("api.openai.com", Method::POST, "/v1/messages"),
            ("api.anthropic.com", Method::OPTIONS, "/v1/messages"),
            ("other.test", Method::GET, "/v1/models"),
        ] {
            let found = used(host, &method, path);
            assert!(matches!(found, None | Some(Use::Uncounted)), "{method} {host}{path}: {found:?}");
        }
    }

    #[test]
    fn login_is_not_added_where_keys_and_accounts_are_changed() {
        for (host, method, path) in [
            ("api.anthropic.com", Method::POST, "/api/oauth/claude_cli/create_api_key"),
            ("api.anthropic.com", Method::GET, "/v1/organizations/api_keys"),
            ("api.anthropic.com", Method::POST, "/v1/organizations/invites"),
            ("api.anthropic.com", Method::PUT, "/api/oauth/account/settings"),
            ("api.anthropic.com", Method::POST, "/v1/code/github/import-token"),
            ("api.anthropic.com", Method::POST, "/v1/code/sessions"),
            ("chatgpt.com", Method::POST, "/backend-api/wham/rate-limit-reset-credits/consume"),
            ("api.anthropic.com", Method::POST, "/v1/files/../organizations/api_keys"),
            ("api.anthropic.com", Method::POST, "/v1/files/%2e%2e/organizations/api_keys"),
            ("api.openai.com", Method::POST, "/v1/organization/admin_api_keys"),
            ("api.openai.com", Method::GET, "/v1/organization/projects"),
            ("api.openai.com", Method::POST, "/v1/fine_tuning/jobs"),
            ("api.openai.com", Method::DELETE, "/v1/models/ft:gpt-4o:x"),
            ("api.openai.com", Method::GET, "/dashboard/billing/usage"),
            ("chatgpt.com", Method::GET, "/backend-api/conversations"),
            ("chatgpt.com", Method::POST, "/backend-api/wham/tasks"),
            ("chatgpt.com", Method::POST, "/backend-api/accounts/delete"),
            ("openrouter.ai", Method::POST, "/api/v1/keys"),
            ("opencode.ai", Method::POST, "/auth/keys"),
            ("api.openai.com", Method::GET, "/v1/files"),
            ("api.openai.com", Method::DELETE, "/v1/files/file-1"),
            ("api.openai.com", Method::DELETE, "/v1/vector_stores/vs_1"),
            ("api.openai.com", Method::DELETE, "/v1/videos/video_1"),
            ("api.openai.com", Method::GET, "/v1/chat/completions"),
            ("api.openai.com", Method::GET, "/v1/responses/resp_1"),
            ("api.openai.com", Method::GET, "/v1/conversations/conv_1"),
            ("api.openai.com", Method::POST, "/v1/assistants/asst_1"),
            ("api.openai.com", Method::POST, "/v1/batches"),
            ("api.openai.com", Method::GET, "/v1/containers"),
            ("api.openai.com", Method::POST, "/v1/uploads"),
            ("api.anthropic.com", Method::GET, "/v1/files"),
            ("api.anthropic.com", Method::GET, "/v1/messages/batches"),
            ("api.anthropic.com", Method::DELETE, "/v1/skills/skill_1"),
            ("api.anthropic.com", Method::POST, "/api/oauth/file_upload"),
            ("chatgpt.com", Method::GET, "/backend-api/wham/tasks/list"),
            ("generativelanguage.googleapis.com", Method::DELETE, "/v1beta/files/f1"),
            ("generativelanguage.googleapis.com", Method::POST, "/v1beta/cachedContents"),
            (GOOGLE, Method::POST, "/v1beta/models/gemini-2.5-flash:batchGenerateContent"),
            (GOOGLE, Method::POST, "/v1beta/models/gemini-embedding-001:asyncBatchEmbedContent"),
            (GOOGLE, Method::POST, "/v1beta/models/veo-3.0:predictLongRunning"),
            (GOOGLE, Method::POST, "/v1/models/gemini-2.5-flash:GenerateContent"),
            (GOOGLE, Method::POST, "/v1/models/gemini-2.5-flash"),
            (GOOGLE, Method::POST, "/v1/models/:generateContent"),
            (GOOGLE, Method::POST, "/v1/models/x:batchGenerateContent:generateContent"),
            (GOOGLE, Method::POST, "/v1/models/x/y:generateContent"),
            (GOOGLE, Method::POST, "/v1/models/keys:generateContent"),
            (GOOGLE, Method::GET, "/v1beta/models/gemini-2.5-flash/operations/abc123"),
            ("opencode.ai", Method::POST, "/zen/v1/models/apply"),
            ("api.anthropic.com", Method::POST, "/api/eval/other"),
        ] {
            let host = host.parse().unwrap();
            assert!(!Scope::Provider.covers(&host, &method, path), "{method} {host}{path}");
            assert!(Scope::All.covers(&host, &method, path));
        }
    }

    /// Whatever stands before it and whichever the method.
    #[test]
    fn login_is_not_added_where_keys_tokens_sessions_and_members_are_created() {
        const NAMES: [&str; 21] = [
            "client_secrets",
            "sessions",
            "transcription_sessions",
            "realtime/client_secrets",
            "realtime/sessions",
            "realtime/transcription_sessions",
            "chatkit/sessions",
            "api_keys",
            "keys",
            "admin",
            "admin_api_keys",
            "tokens",
            "auth_tokens",
            "oauth/token",
            "oauth/authorize",
            "organization",
            "organizations/o/members",
            "organization/projects",
            "organization/users",
            "invites",
            "service_accounts",
        ];
        let bases = |endpoints: &[super::Endpoint]| {
            let below = endpoints.iter().map(|(_, path, _)| path.trim_end_matches("/**").replace('*', "x"));
            below
                .chain(["", "/v1", "/v1beta", "/v1alpha", "/api", "/api/v1"].map(str::to_owned))
                .collect::<Vec<_>>()
        };
        let gateway = ("gateway.test", Scope::Gateway(String::new()), bases(super::GATEWAY));
        let providers = HOSTS.iter().map(|(host, endpoints)| (*host, Scope::Provider, bases(endpoints)));
        for (host, scope, bases) in providers.chain([gateway]) {
            let host = host.parse().unwrap();
            for (base, name) in bases.iter().flat_map(|base| NAMES.map(|name| (base, name))) {
                let path = format!("{}/{name}", base.trim_end_matches('/'));
                for method in super::ANY {
                    assert!(!scope.covers(&host, method, &path), "{method} {host}{path}");
                }
            }
        }
        let openai = "api.openai.com".parse().unwrap();
        for path in ["/v1/realtime", "/v1/realtime/calls"] {
            assert!(!Scope::Provider.covers(&openai, &Method::POST, path), "{path}");
        }
        assert!(!Scope::Provider.covers(&openai, &Method::GET, "/v1/files/file-keyA1/content"));
    }

    /// What a server adds to a path that is matched by a wildcard may do anything.
    #[test]
    fn no_path_with_a_wildcard_is_written_to() {
        let all = HOSTS.iter().flat_map(|(_, endpoints)| *endpoints).chain(super::GATEWAY);
        for (methods, path, _) in all.filter(|(methods, ..)| *methods != super::READ) {
            let mut open = path.split('/').filter(|segment| segment.contains('*'));
            assert!(open.all(|segment| ["*:method", "sdk-*"].contains(&segment)), "{methods:?} {path}");
        }
        let gateway = "gw.test".parse().unwrap();
        let covers = |path: &str| Scope::of_gateway("https://gw.test").covers(&gateway, &Method::POST, path);
        for base in ["/models", "/v1/models", "/v1beta/models"] {
            for name in
                ["apply", "delete", "gemini-2.5-flash", "gemini-2.5-flash:batchGenerateContent", "x:delete"]
            {
                assert!(!covers(&format!("{base}/{name}")), "{base}/{name}");
            }
            for method in super::MODEL_METHODS {
                assert!(covers(&format!("{base}/gemini-2.5-flash:{method}")), "{base} {method}");
                let google = GOOGLE.parse().unwrap();
                let path = format!("/v1beta/models/gemini-2.5-flash:{method}");
                assert!(Scope::Provider.covers(&google, &Method::POST, &path), "{path}");
            }
        }
    }

    #[test]
    fn what_the_agent_clis_ask_for_is_listed() {
        for (host, method, path) in [
            ("api.anthropic.com", Method::HEAD, "/"),
            ("api.anthropic.com", Method::GET, "/api/claude_code/policy_limits"),
            ("api.anthropic.com", Method::GET, "/api/claude_code/settings"),
            ("api.anthropic.com", Method::GET, "/api/claude_cli/bootstrap"),
            ("api.anthropic.com", Method::GET, "/api/oauth/profile"),
            ("api.anthropic.com", Method::POST, "/api/eval/sdk-x"),
            ("api.anthropic.com", Method::POST, "/v1/messages/count_tokens"),
            ("chatgpt.com", Method::GET, "/backend-api/codex/models"),
            ("chatgpt.com", Method::GET, "/backend-api/wham/accounts/check"),
            ("chatgpt.com", Method::GET, "/backend-api/wham/settings/user"),
            ("chatgpt.com", Method::POST, "/backend-api/ps/mcp"),
        ] {
            assert_eq!(used(host, &method, path), Some(Use::Free), "{method} {host}{path}");
        }
        assert_eq!(used("api.openai.com", &Method::GET, "/v1/responses"), Some(Use::Uncounted));
        assert_eq!(used("chatgpt.com", &Method::GET, "/backend-api/codex/responses"), Some(Use::Uncounted));
    }

    #[test]
    fn path_of_a_credential_is_compared_by_whole_segments() {
        let host = "host.test".parse().unwrap();
        let team = Scope::below("team/").unwrap();
        let covers = |path: &str| team.covers(&host, &Method::PUT, path);
        assert!(covers("/team") && covers("/team/") && covers("/team/a/b"));
        for path in ["/", "/teams", "/Team", "/team/../admin", "/team/%2e%2e/admin", "//team", "/x/team"] {
            assert!(!covers(path), "{path}");
        }
        assert!(Scope::below("").unwrap().covers(&host, &Method::PUT, "/x"));
        assert_eq!(Scope::below("a/../b"), None);
    }

    #[test]
    fn gateway_has_its_endpoints_below_its_path() {
        let host = "gateway.test".parse().unwrap();
        let find = |url: &str, path: &str| Scope::of_gateway(url).find(&host, &Method::POST, path);
        let messages = Some(Use::Metered(Api::Messages));
        assert_eq!(find("https://gateway.test", "/v1/messages"), messages);
        assert_eq!(find("https://gateway.test/team/", "/team/v1/messages"), messages);
        assert_eq!(find("http://gateway.test:8080/team?x", "/team/messages"), messages);
        assert_eq!(find("https://gateway.test/team", "/v1/messages"), None);
        assert_eq!(find("https://gateway.test/team", "/teamx/v1/messages"), None);
        assert_eq!(find("https://gateway.test", "/key/generate"), None);
        let greets = Scope::of_gateway("https://gateway.test/team").find(&host, &Method::HEAD, "/");
        assert_eq!(greets, Some(Use::Free));
    }
}
