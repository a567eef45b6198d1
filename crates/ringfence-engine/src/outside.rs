//! A run's way out: its session with the broker, and what it finds inside so that its programs take that way.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use ringfence_agents::AgentCli;
use ringfence_core::event::Usage;
use ringfence_core::plan::{GuestFile, Request};
use ringfence_core::policy::{Credentials, HostRule, NetworkMode, Policy};
use ringfence_egress::{
    Ask, Budget, ConnectTo, Credential, DaemonAddress, Inside, Prices, PricesError, ProviderError, Session,
    SessionError, Setup, Sources, find, named, system_bundle,
};
use ringfence_workspace::HostPrograms;

use crate::run::Job;

/// The port at which a run finds the broker, on its own loopback.
pub(crate) const PORT: u16 = 41_080;
/// Where a run finds whom to trust.
const BUNDLE: &str = "/run/ringfence/ca-bundle.pem";

/// How the names of variables end by which programs are told where a model is.
const MODEL_ADDRESS_ENDINGS: [&str; 2] = ["BASE_URL", "API_BASE"];

/// What the broker is told besides the policy.
#[derive(Clone, Default)]
pub struct Outside {
    /// The person's home, where logins are.
    pub home: PathBuf,
    /// The home that the list of accounts has for the person, if it is another one.
    pub login_home: Option<PathBuf>,
    /// Directories of the home that are elsewhere: as they are called there, and where they are.
    pub moved: Vec<(PathBuf, PathBuf)>,
    /// Where ringfence keeps what lasts.
    pub state: PathBuf,
    /// The programs of the host.
    pub programs: HostPrograms,
    /// The program that reads the keychain, on machines that have one.
    pub keychain: Option<PathBuf>,
    /// Hosts whose address is given.
    pub connect_to: ConnectTo,
    /// Certificates of more authorities.
    pub roots: Vec<String>,
    /// Who is asked for hosts that the policy does not name.
    pub ask: Option<Arc<dyn Ask>>,
    /// Whether an open network is looked at: the run has no network but the broker, which lets everything through.
    pub learn: bool,
    /// Credentials that a person has named, as they are written.
    pub named: Vec<String>,
    /// The hosts of gateways to which a login may be sent.
    pub login_gateways: Vec<HostRule>,
    /// Request headers that go to a model beside its credential, besides those of the agent CLIs.
    pub model_headers: Vec<String>,
    /// What tokens cost, if not what the built-in list says.
    pub prices: Option<Prices>,
    /// What earlier runs of the same task have used of its budget.
    pub spent: Usage,
}

impl Outside {
    /// The host as the providers of credentials see it.
    pub fn sources<'a>(&'a self, env: &'a BTreeMap<String, String>) -> Sources<'a> {
        let Outside { home, moved, state, programs, keychain, login_gateways, .. } = self;
        let keychain = keychain.as_deref();
        Sources { env, home, moved, state, programs, keychain, base_url: None, login_gateways }
    }
}

/// Why a run has no way out.
#[derive(Debug, thiserror::Error)]
pub enum OutsideError {
    /// A credential cannot be used.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// What tokens cost is not known.
    #[error(transparent)]
    Prices(#[from] PricesError),
    /// The broker has no session.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// The credentials of a run that stay outside: those of its agent CLI, and those that a person has named.
pub(crate) fn credentials(job: &Job<'_>, base_url: Option<&str>) -> Result<Vec<Credential>, OutsideError> {
    let served = job.outside.learn || job.policy.network.mode == NetworkMode::Allow;
    if job.policy.credentials != Credentials::Broker || !served {
        return Ok(Vec::new());
    }
    let sources = job.outside.sources(&job.host_env);
    let mut all = match job.work.cli() {
        Some(cli) => {
            let login = &cli.facts().login;
            let handed = login.env.iter().any(|name| job.given_env.contains_key(*name));
            match find(login.providers, Sources { base_url, ..sources }) {
                // The run has a key of its own for that server.
                Err(ProviderError::LoginAtGateway { .. }) if handed => Vec::new(),
                found => found?,
            }
        }
        None => Vec::new(),
    };
    for text in &job.outside.named {
        all.push(named(text, sources)?);
    }
    Ok(all)
}

/// The hosts that an agent CLI needs, where its model is.
pub(crate) fn needed_hosts(
    cli: Option<&dyn AgentCli>,
    policy: &Policy,
    credentials: &[Credential],
) -> Result<Vec<HostRule>, ringfence_core::policy::BadHostRule> {
    let Some(cli) = cli.filter(|_| policy.credentials != Credentials::None) else { return Ok(Vec::new()) };
    let mut hosts: Vec<HostRule> =
        cli.facts().hosts.iter().map(|host| host.parse()).collect::<Result<_, _>>()?;
    // Where a person has put the model. What was named besides is for hosts that are allowed by themselves.
    let of_model = credentials.iter().filter(|credential| !credential.is_named());
    for host in of_model.flat_map(Credential::hosts) {
        if !hosts.contains(host) {
            hosts.push(host.clone());
        }
    }
    Ok(hosts)
}

/// A session with the broker, if the policy lets a run out at all.
pub(crate) fn session(
    job: &Job<'_>,
    policy: &Policy,
    credentials: Vec<Credential>,
    addresses: &[(&str, &str)],
) -> Result<Option<Session>, OutsideError> {
    let Outside { connect_to, roots, prices, ask, learn, state, spent, model_headers, .. } = &job.outside;
    let closed = policy.network.mode == NetworkMode::Open || policy.reaches_nothing();
    if !learn && closed {
        return Ok(None);
    }
    let setup = Setup {
        network: policy.network.clone(),
        credentials,
        connect_to: connect_to.clone(),
        roots: roots.clone(),
        prices: prices.clone().map_or_else(Prices::built_in, Ok)?,
        budget: Budget { tokens: policy.limits.tokens, cost_usd: policy.limits.cost_usd },
        ask: ask.clone(),
        resolver: None,
        daemon: Some(DaemonAddress::of(state)),
        model_headers: model_headers.clone(),
    };
    let session = Session::new(setup)?.with_model_at(addresses.iter().copied())?;
    session.meter().count_earlier(*spent);
    Ok(Some(session))
}

/// The addresses at which the user has put the model, each with the name of the setting: agent CLIs read variables, too.
pub(crate) fn model_addresses<'a>(
    base_url: Option<&'a str>,
    env: &'a BTreeMap<String, String>,
) -> Vec<(&'a str, &'a str)> {
    let names = |name: &str| MODEL_ADDRESS_ENDINGS.iter().any(|ending| name.ends_with(ending));
    let variables = env.iter().filter(|(name, value)| names(name) && !value.is_empty());
    let variables = variables.map(|(name, value)| (name.as_str(), value.as_str()));
    base_url.map(|url| ("--base-url", url)).into_iter().chain(variables).collect()
}

/// What a user should know who bounds what a run uses, and allows hosts that the broker does not count.
pub(crate) fn uncounted_hosts(policy: &Policy, session: Option<&Session>) -> Option<String> {
    let bounded = policy.limits.tokens.is_some() || policy.limits.cost_usd.is_some();
    let session = session.filter(|_| bounded)?;
    let uncounted = policy.network.allow.iter().find(|rule| !session.counts(rule))?;
    Some(format!(
        "the budget counts what known model providers and --base-url tell: what other allowed hosts, such as {uncounted}, are used for is not counted"
    ))
}

/// Gives a run what it has to find: a door, variables, and files in its home and elsewhere.
pub(crate) fn furnish(request: &mut Request, session: &Session, given: &BTreeMap<String, String>) {
    // In the place of the system's own, where there is one: some programs read no variable.
    let (path, system, over) = match system_bundle() {
        Some((path, system)) if path.starts_with("/etc") || path.starts_with("/usr") => (path, system, true),
        Some((_, system)) => (BUNDLE.into(), system, false),
        None => (BUNDLE.into(), String::new(), false),
    };
    let Inside { env, files } = session.inside(&format!("127.0.0.1:{PORT}"), &path);
    let home = request.env.get("HOME").map(PathBuf::from).unwrap_or_default();
    let of_home =
        |(path, text)| GuestFile { path: home.join::<PathBuf>(path), text, mode: 0o600, over: false };
    request.files.push(GuestFile { path, text: session.bundle(&system), mode: 0o444, over });
    request.files.extend(files.into_iter().map(of_home));
    request.env.extend(env.into_iter().filter(|(name, _)| !given.contains_key(name)));
    request.door = Some(PORT);
}
