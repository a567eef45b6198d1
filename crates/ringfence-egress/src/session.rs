//! All that the broker knows of one run.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::{Method, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use ringfence_core::policy::{Denial, Host, HostRule, Network, NetworkMode, Verdict, parse_authority};
use tokio::sync::Semaphore;

use crate::answer::{Body, Refusal};
use crate::asking::{Ask, Asking};
use crate::audit::{Audit, AuditState, Begun, Entry};
use crate::authority::{Authority, AuthorityError};
use crate::credential::{Credential, Inside};
use crate::daemon::DaemonAddress;
use crate::endpoints::{Scope, Use, is_provider, provider_use};
use crate::held_body::BodyPlaces;
use crate::known_secrets::{HostSecrets, SessionSecrets};
use crate::login::{CHATGPT, CLAUDE, Login};
use crate::meter::{Budget, Meter, Prices};
use crate::model_headers::ModelHeaders;
use crate::tunnel::MAX_STREAMS;
use crate::upstream::{ConnectTo, Connector, Protocols, Resolve, Tls, Upstream};

/// What a run is given.
pub struct Setup {
    /// What it may reach.
    pub network: Network,
    /// The credentials that it may use.
    pub credentials: Vec<Credential>,
    /// Hosts whose address is given.
    pub connect_to: ConnectTo,
    /// Certificates of more authorities that hosts may be known by.
    pub roots: Vec<String>,
    /// What tokens cost.
    pub prices: Prices,
    /// How much the run may use.
    pub budget: Budget,
    /// Who is asked for hosts that the policy does not name.
    pub ask: Option<Arc<dyn Ask>>,
    /// Whom to ask for addresses, if not the machine's resolver.
    pub resolver: Option<Arc<dyn Resolve>>,
    /// The daemon, which is never dialled.
    pub daemon: Option<DaemonAddress>,
    /// Headers that go to a model beside its credential, besides those of agent CLIs: names, or `x-name-*`.
    pub model_headers: Vec<String>,
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// There is no authority.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// There is a budget, and requests to this address of the model, by the name of the setting that holds it, are not counted.
    #[error("the run has a budget, and requests to the address of the model in `{0}` cannot be counted")]
    Uncounted(String),
    /// The settings name a header that cannot be one.
    #[error(
        "`{0}` in `broker.model_headers` is not the name of a header: write `x-name`, or `x-name-*` for all that begin so"
    )]
    Header(String),
    /// The system could not.
    #[error("the broker cannot work: {0}")]
    Io(#[from] io::Error),
}

/// One run, as the broker sees it.
pub struct Session {
    pub(crate) network: Network,
    pub(crate) credentials: Vec<Credential>,
    pub(crate) authority: Authority,
    meter: Arc<Meter>,
    /// Whether there is a budget: then whatever goes to a model is looked at.
    bounded: bool,
    /// Where the user has put the model, under a budget.
    gateways: Vec<Gateway>,
    pub(crate) asking: Asking,
    busy: Busy,
    /// For bodies of requests that are held whole.
    pub(crate) bodies: BodyPlaces,
    /// For requests whose answers are held on their way: by HTTP/2, and of the proxy itself.
    pub(crate) exchanges: Arc<Semaphore>,
    /// For connections by HTTP/2. Clients that get none speak HTTP/1.1.
    pub(crate) http2_connections: Arc<Semaphore>,
    /// What hosts could repeat.
    pub(crate) secrets: SessionSecrets,
    audit: OnceLock<Audit>,
    audit_state: Arc<AuditState>,
    connect_to: ConnectTo,
    resolver: Option<Arc<dyn Resolve>>,
    pub(crate) daemon: Option<DaemonAddress>,
    tls: Arc<Tls>,
    /// Which headers go along with the credential of a model.
    pub(crate) model_headers: ModelHeaders,
}

/// An address at which the user has put the model.
struct Gateway {
    host: Host,
    port: u16,
    scope: Scope,
}

impl Gateway {
    fn parse(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://").unwrap_or(("https", url));
        let authority = rest.split(['/', '?', '#']).next()?.rsplit('@').next()?;
        let (host, port) = parse_authority(authority).ok()?;
        let port = port.unwrap_or(if scheme == "http" { 80 } else { 443 });
        Some(Self { host, port, scope: Scope::of_gateway(url) })
    }

    fn is_at(&self, host: &Host, port: u16) -> bool {
        self.host == *host && self.port == port
    }

    /// Whether it is a port of the host's loopback that the run reaches past the broker's requests.
    fn is_local(&self, network: &Network) -> bool {
        let loopback = match &self.host {
            Host::Name(name) => name == "localhost" || name.ends_with(".localhost"),
            Host::Address(address) => address.is_loopback() || address.is_unspecified(),
        };
        loopback && network.local.contains(&self.port)
    }
}

/// Held by whoever must not be left half done.
pub(crate) type Busy = Arc<()>;
/// So many requests by HTTP/2, and of the proxy itself, go on at once, whatever the number of connections.
const MAX_EXCHANGES: usize = 256;
/// Connections by HTTP/2 at once. Each request on one of them has a place among the exchanges, so none waits with its headers.
const MAX_HTTP2_CONNECTIONS: usize = MAX_EXCHANGES / MAX_STREAMS as usize;
/// Bytes of an answer that are held of a host, for each request by HTTP/1.1 and by HTTP/2, and for each connection by HTTP/2.
const HOST_BUFFER: usize = 64 << 10;
const HOST_WINDOW: u32 = 512 << 10;
const HOST_CONNECTION_WINDOW: u32 = 4 << 20;
/// How many connections to a host wait for further requests, and how long.
const MAX_IDLE_OF_HOST: usize = 8;
const IDLE_LIFETIME: Duration = Duration::from_secs(30);
/// How often to look whether somebody is.
const AGAIN: Duration = Duration::from_millis(5);

/// The ways out of a session, which live with the broker's runtime.
pub(crate) struct Ways {
    pub(crate) session: Arc<Session>,
    pub(crate) upstream: Arc<Upstream>,
    /// To one host at a time.
    pub(crate) connector: Connector,
    pub(crate) client: Client<Connector, Body>,
    /// To those who refresh logins, whatever a run may reach.
    pub(crate) login_client: Client<Connector, Body>,
    /// For what HTTP/2 cannot carry.
    pub(crate) first_client: Client<Connector, Body>,
}

/// The variables by which programs are told whom to trust.
const TRUST: [&str; 12] = [
    "SSL_CERT_FILE",
    "NODE_EXTRA_CA_CERTS",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "CARGO_HTTP_CAINFO",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "npm_config_cafile",
    "AWS_CA_BUNDLE",
    "DENO_CERT",
    "CODEX_CA_CERTIFICATE",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
];
/// The variables by which programs are told of a proxy, both cases of each.
const PROXY: [&str; 6] = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];
const NO_PROXY: [&str; 2] = ["NO_PROXY", "no_proxy"];

impl Session {
    /// A session of a run. Nothing is served yet.
    pub fn new(setup: Setup) -> Result<Self, SessionError> {
        let Setup { network, credentials, connect_to, roots: more, prices, budget, .. } = setup;
        let Setup { ask, resolver, daemon, model_headers, .. } = setup;
        Ok(Self {
            network,
            secrets: SessionSecrets::of(&credentials),
            credentials,
            authority: Authority::new()?,
            meter: Arc::new(Meter::new(prices, budget)),
            bounded: budget != Budget::default(),
            gateways: Vec::new(),
            asking: Asking::new(ask),
            busy: Busy::default(),
            bodies: BodyPlaces::default(),
            exchanges: Arc::new(Semaphore::new(MAX_EXCHANGES)),
            http2_connections: Arc::new(Semaphore::new(MAX_HTTP2_CONNECTIONS)),
            audit: OnceLock::new(),
            audit_state: Arc::default(),
            connect_to,
            resolver,
            daemon,
            tls: Arc::new(Tls::new(more)?),
            model_headers: ModelHeaders::with_named(model_headers).map_err(SessionError::Header)?,
        })
    }

    /// Counts what goes to these addresses of the model, each with the name of the setting that holds it, if there is a budget:
    /// also where the broker adds no credential to it.
    pub fn with_model_at<'a>(
        mut self,
        addresses: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, SessionError> {
        for (name, url) in addresses.into_iter().filter(|_| self.bounded) {
            let gateway = Gateway::parse(url).filter(|gateway| !gateway.is_local(&self.network));
            self.gateways.push(gateway.ok_or_else(|| SessionError::Uncounted(name.to_owned()))?);
        }
        Ok(self)
    }

    /// What a run has to find so that its programs come to the broker at this address, and trust it; and the files of its
    /// credentials. Their variables are known before there is a session.
    pub fn inside(&self, proxy: &str, bundle: &Path) -> Inside {
        let bundle = bundle.display().to_string();
        let url = format!("http://{proxy}");
        let mut env: BTreeMap<String, String> = BTreeMap::new();
        env.extend(PROXY.map(|name| (name.to_owned(), url.clone())));
        env.extend(NO_PROXY.map(|name| (name.to_owned(), "localhost,127.0.0.1,::1".to_owned())));
        env.extend(TRUST.map(|name| (name.to_owned(), bundle.clone())));
        // Java and Go read none of it: the one has to be told, the other reads the files of the system.
        let (host, port) = proxy.rsplit_once(':').unwrap_or((proxy, "80"));
        let java = ["http", "https"]
            .map(|scheme| format!("-D{scheme}.proxyHost={host} -D{scheme}.proxyPort={port}"));
        env.insert("JAVA_TOOL_OPTIONS".into(), java.join(" "));
        env.insert("NODE_USE_ENV_PROXY".into(), "1".into());
        let files = self.credentials.iter().flat_map(|credential| credential.inside.files.clone());
        Inside { env, files: files.collect() }
    }

    /// All that a run has to trust: the authorities of the machine, and the run's own.
    pub fn bundle(&self, system: &str) -> String {
        [system, &self.tls.more(), &self.authority.certificate()].map(str::trim_end).join("\n") + "\n"
    }

    /// Whether requests to a host are looked at, and not only passed on: at every port of a host that a credential belongs to, for
    /// it may repeat there what it hears elsewhere.
    pub(crate) fn looks_into(&self, host: &Host, port: u16) -> bool {
        self.credentials.iter().any(|credential| credential.is_at(host))
            || self.credentials.iter().filter_map(Credential::login).any(|login| login.is_of(host))
            || (self.bounded && self.is_model_host(host, port))
    }

    /// Whether a credential, a login or the budget concerns requests to a host at this port.
    pub(crate) fn concerns(&self, host: &Host, port: u16) -> bool {
        self.credentials.iter().any(|credential| credential.is_for(host, port))
            || self.login_at(host, port).is_some()
            || (self.bounded && self.is_model_host(host, port))
    }

    /// The secrets that a host could repeat.
    pub(crate) fn secrets_at(&self, host: &Host) -> HostSecrets {
        self.secrets.at(&self.credentials, host)
    }

    /// Whether a host serves models: it is a known one, the user has put the model there, or a credential of an agent CLI's model
    /// belongs to it.
    pub(crate) fn is_model_host(&self, host: &Host, port: u16) -> bool {
        is_provider(host)
            || self.gateways.iter().any(|gateway| gateway.is_at(host, port))
            || self.model_credentials(host, port).next().is_some()
    }

    /// What a request to the host of a model uses; nothing if it is not known. The path is without its query.
    pub(crate) fn model_use(&self, host: &Host, port: u16, method: &Method, path: &str) -> Option<Use> {
        let of_gateway =
            || self.model_credentials(host, port).find_map(|one| one.scope.find(host, method, path));
        let of_address = || {
            let here = self.gateways.iter().filter(|gateway| gateway.is_at(host, port));
            here.map(|gateway| &gateway.scope).find_map(|scope| scope.find(host, method, path))
        };
        provider_use(host, method, path).or_else(of_gateway).or_else(of_address)
    }

    /// The credentials of an agent CLI's model that belong to a host.
    fn model_credentials(&self, host: &Host, port: u16) -> impl Iterator<Item = &Credential> {
        self.credentials.iter().filter(move |one| !one.named && one.is_for(host, port))
    }

    /// Whether everything that a rule allows is a model's host, whose usage is counted under a budget.
    pub fn counts(&self, rule: &HostRule) -> bool {
        let text = rule.to_string();
        let named = parse_authority(&text).ok();
        named.is_some_and(|(host, port)| self.is_model_host(&host, port.unwrap_or(443)))
    }

    /// Whether there is a budget.
    pub(crate) fn is_bounded(&self) -> bool {
        self.bounded
    }

    /// Whether the broker reads the requests to the model of the agent CLI, because it adds the credential.
    pub fn reads_model(&self) -> bool {
        self.credentials.iter().any(|credential| !credential.is_named())
    }

    /// What the run uses.
    pub fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// The login that a host refreshes.
    pub(crate) fn login_at(&self, host: &Host, port: u16) -> Option<&Arc<Login>> {
        self.credentials.iter().filter_map(Credential::login).find(|login| login.is_at(host, port))
    }

    /// Whether a run may come to the door for a host: because the host may be reached, or because the broker answers in
    /// its place.
    pub(crate) fn admits(&self, host: &Host, port: u16) -> Verdict {
        match self.judge(host, port) {
            Verdict::Denied(Denial::Unlisted { .. }) if self.login_at(host, port).is_some() => {
                Verdict::Allowed { rule: "login".into(), port_named: false }
            }
            verdict => verdict,
        }
    }

    /// Whether a host may be reached: by the policy, or by the word of a person.
    pub(crate) fn judge(&self, host: &Host, port: u16) -> Verdict {
        match self.network.judge(host, port) {
            Verdict::Denied(Denial::Unlisted { .. }) if self.asking.granted(host, port) => {
                Verdict::Allowed { rule: "asked".into(), port_named: true }
            }
            verdict => verdict,
        }
    }

    pub(crate) fn write(&self, entry: &Entry) {
        if let Some(audit) = self.audit.get() {
            audit.write(entry);
        }
    }

    /// What could not be recorded is not served.
    pub(crate) fn check_audit(&self) -> Result<(), Refusal> {
        if self.audit.get().is_none_or(Audit::is_full) { Err(not_recorded()) } else { Ok(()) }
    }

    /// Records that a request begins, before it is served.
    pub(crate) fn begin(&self, entry: Entry) -> Result<Begun, Refusal> {
        self.audit.get().and_then(|audit| audit.begin(entry)).ok_or_else(not_recorded)
    }

    /// Records the end of a request whose begin is recorded.
    pub(crate) fn end(&self, begun: &Begun, entry: Entry) {
        if let Some(audit) = self.audit.get() {
            audit.end(begun, entry);
        }
    }

    /// What is known of the audit, also when the session is over.
    pub(crate) fn audit_state(&self) -> Arc<AuditState> {
        Arc::clone(&self.audit_state)
    }

    /// Something that must not be left half done, as long as it is held.
    pub(crate) fn busy(&self) -> Busy {
        Arc::clone(&self.busy)
    }

    /// Waits until nothing is left half done.
    pub(crate) async fn at_rest(&self) {
        self.logins_at_rest().await;
        while Arc::strong_count(&self.busy) > 1 {
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Waits until no login is being refreshed.
    async fn logins_at_rest(&self) {
        for login in self.credentials.iter().filter_map(Credential::login) {
            login.rest().await;
        }
    }

    /// From now on what happens is written there.
    pub(crate) fn write_to(&self, audit: &Path) -> io::Result<()> {
        let _ = self.audit.set(Audit::create_with(audit, self.audit_state())?);
        Ok(())
    }

    pub(crate) fn ways(self: &Arc<Self>) -> io::Result<Ways> {
        let upstream = Upstream::new(self.network.clone(), self.connect_to.clone(), self.resolver.clone())?;
        let upstream = Arc::new(upstream.without(self.daemon.clone()));
        let login_client = login_client(&self.connect_to, self.resolver.clone(), Arc::clone(&self.tls))?;
        let [client, first_client] = [Protocols::Any, Protocols::First]
            .map(|protocols| client(Arc::clone(&upstream), Arc::clone(&self.tls), protocols));
        let tls = Arc::clone(&self.tls);
        let connector = Connector { upstream: Arc::clone(&upstream), tls, protocols: Protocols::First };
        Ok(Ways { session: Arc::clone(self), upstream, connector, client, login_client, first_client })
    }
}

fn not_recorded() -> Refusal {
    let message = "the audit of this run is full, and what cannot be recorded is not served";
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "audit-full", message)
}

pub(crate) fn client(
    upstream: Arc<Upstream>,
    tls: Arc<Tls>,
    protocols: Protocols,
) -> Client<Connector, Body> {
    Client::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_LIFETIME)
        .pool_max_idle_per_host(MAX_IDLE_OF_HOST)
        .timer(TokioTimer::new())
        .http1_max_buf_size(HOST_BUFFER)
        .http2_initial_stream_window_size(HOST_WINDOW)
        .http2_initial_connection_window_size(HOST_CONNECTION_WINDOW)
        .build(Connector { upstream, tls, protocols })
}

/// Speaks to those who refresh logins and to nobody else.
pub(crate) fn login_client(
    connect_to: &ConnectTo,
    resolver: Option<Arc<dyn Resolve>>,
    tls: Arc<Tls>,
) -> io::Result<Client<Connector, Body>> {
    let hosts = [CLAUDE.host, CHATGPT.host].map(str::parse);
    let allow = hosts.into_iter().collect::<Result<_, _>>().map_err(io::Error::other)?;
    let network =
        Network { mode: NetworkMode::Allow, allow, deny: Vec::new(), ask: false, local: Vec::new() };
    Ok(client(Arc::new(Upstream::new(network, connect_to.clone(), resolver)?), tls, Protocols::First))
}

/// Where systems keep the authorities that they trust.
const BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Whether a file is the one that holds the authorities which this machine trusts.
pub fn is_system_bundle(file: &Path) -> bool {
    BUNDLES.iter().map(Path::new).find(|bundle| bundle.exists()) == Some(file)
}

/// The authorities that this machine trusts, as programs read them, and the file that holds them, links resolved. Nothing
/// if it trusts none.
pub fn system_bundle() -> Option<(PathBuf, String)> {
    let read = |path: &str| Some((std::fs::canonicalize(path).ok()?, std::fs::read_to_string(path).ok()?));
    BUNDLES.into_iter().find_map(read)
}

/// A session that reaches nobody, for tests.
#[cfg(test)]
pub(crate) fn idle_session(credentials: Vec<Credential>) -> Arc<Session> {
    Arc::new(Session::new(idle_setup(credentials)).unwrap())
}

#[cfg(test)]
fn idle_setup(credentials: Vec<Credential>) -> Setup {
    let mode = NetworkMode::Allow;
    Setup {
        network: Network { mode, allow: Vec::new(), deny: Vec::new(), ask: false, local: Vec::new() },
        credentials,
        connect_to: ConnectTo::default(),
        roots: Vec::new(),
        prices: Prices::built_in().unwrap(),
        budget: Budget::default(),
        ask: None,
        resolver: None,
        daemon: None,
        model_headers: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::{Budget, Session, SessionError, Setup, idle_setup};
    use crate::endpoints::Use;
    use crate::meter::Api;

    fn at(url: &str, tokens: Option<u64>) -> Result<Session, SessionError> {
        let mut setup = Setup { budget: Budget { tokens, cost_usd: None }, ..idle_setup(Vec::new()) };
        setup.network.local = vec![4000];
        Session::new(setup)?.with_model_at([("--base-url", url)])
    }

    #[test]
    fn address_of_the_model_is_counted_under_a_budget_whoever_adds_the_credential() {
        for (url, host, port, path) in [
            ("https://gateway.test/team", "gateway.test", 443, "/team/v1/messages"),
            ("http://gateway.test", "gateway.test", 80, "/v1/messages"),
            ("https://user@gateway.test:8443/", "gateway.test", 8443, "/v1/messages"),
            ("http://127.0.0.1:4001", "127.0.0.1", 4001, "/v1/messages"),
        ] {
            let session = at(url, Some(5)).unwrap();
            let host = host.parse().unwrap();
            assert!(session.looks_into(&host, port) && session.is_model_host(&host, port), "{url}");
            let used = session.model_use(&host, port, &Method::POST, path);
            assert_eq!(used, Some(Use::Metered(Api::Messages)), "{url}");
            assert_eq!(session.model_use(&host, port, &Method::POST, "/other"), None, "{url}");
            assert!(!session.looks_into(&host, 9), "{url}");
            assert!(!at(url, None).unwrap().looks_into(&host, port), "{url}: no budget");
        }
    }

    #[test]
    fn budget_is_refused_with_an_address_that_cannot_be_counted() {
        for url in [
            "http://127.0.0.1:4000/v1",
            "http://localhost:4000",
            "http://[::1]:4000",
            "http://0.0.0.0:4000",
            "",
            "x y",
        ] {
            let refused = at(url, Some(5)).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(refused.contains("`--base-url` cannot be counted"), "{url}: {refused}");
            assert!(at(url, None).is_ok(), "{url}");
        }
    }
}
