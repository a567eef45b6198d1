//! A run's way out: its session with the broker, and what it finds inside so that its programs take that way.

use std::path::{Path, PathBuf};

use ringfence_agents::AgentCli;
use ringfence_core::plan::GuestFile;
use ringfence_core::policy::{Credentials, HostRule, NetworkMode, Policy};
use ringfence_egress::{
    Budget, ConnectTo, Credential, Inside, Prices, PricesError, ProviderError, Session, SessionError, Setup,
    Sources, find, system_bundle,
};

use crate::run::Job;

/// The port at which a run finds the broker, on its own loopback.
pub(crate) const PORT: u16 = 41_080;
/// Where a run finds whom to trust.
const BUNDLE: &str = "/run/ringfence/ca-bundle.pem";

/// What the broker is told besides the policy.
#[derive(Debug, Clone, Default)]
pub struct Outside {
    /// The person's home, where logins are.
    pub home: PathBuf,
    /// Where ringfence keeps what lasts.
    pub state: PathBuf,
    /// The program that reads the keychain, on machines that have one.
    pub keychain: Option<PathBuf>,
    /// Hosts whose address is given.
    pub connect_to: ConnectTo,
    /// Certificates of more authorities.
    pub roots: Vec<String>,
    /// What tokens cost, if not what the built-in list says.
    pub prices: Option<Prices>,
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

/// The credentials of an agent CLI that stay outside.
pub(crate) fn credentials(job: &Job<'_>, base_url: Option<&str>) -> Result<Vec<Credential>, OutsideError> {
    let brokered =
        job.policy.credentials == Credentials::Broker && job.policy.network.mode == NetworkMode::Allow;
    let Some(cli) = job.work.cli().filter(|_| brokered) else { return Ok(Vec::new()) };
    let Outside { home, state, keychain, .. } = &job.outside;
    let sources = Sources { env: &job.host_env, home, state, keychain: keychain.as_deref(), base_url };
    Ok(find(cli.facts().login.providers, sources)?)
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
    for host in credentials.iter().flat_map(Credential::hosts) {
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
) -> Result<Option<Session>, OutsideError> {
    if policy.network.mode != NetworkMode::Allow || policy.reaches_nothing() {
        return Ok(None);
    }
    let Outside { connect_to, roots, prices, .. } = &job.outside;
    let setup = Setup {
        network: policy.network.clone(),
        credentials,
        connect_to: connect_to.clone(),
        roots: roots.clone(),
        prices: prices.clone().map_or_else(Prices::built_in, Ok)?,
        budget: Budget { tokens: policy.limits.tokens, cost_usd: policy.limits.cost_usd },
        resolver: None,
    };
    Ok(Some(Session::new(setup)?))
}

/// What a run finds: variables, and files in its home and elsewhere.
pub(crate) fn inside(job: &Job<'_>, session: &Session, home: &Path) -> (Inside, Vec<GuestFile>) {
    let inside = session.inside(&format!("127.0.0.1:{PORT}"), Path::new(BUNDLE));
    let bundle = session.bundle(&system_bundle(&job.host_env));
    let mut files = vec![GuestFile { path: BUNDLE.into(), text: bundle, mode: 0o444 }];
    let of_home = inside.files.iter();
    files.extend(of_home.map(|(path, text)| GuestFile {
        path: home.join(path),
        text: text.clone(),
        mode: 0o600,
    }));
    (inside, files)
}
