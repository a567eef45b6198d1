//! One request on its way: is it what it says it is, does it carry what it must not, and what does it need.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName,
    TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderValue, Method, Response, StatusCode, Version};
use ringfence_core::policy::{Host, Verdict, parse_authority};

use crate::answer::{Body, Refusal, whole};
use crate::authentication::{other_parameter, parameters, remove_others};
use crate::credential::{Applied, Credential};
use crate::endpoints::Use;
use crate::gateway_headers;
use crate::known_secrets::HostSecrets;
use crate::login::{Login, LoginError};
use crate::meter::{Admitted, Api, Demand, DemandError, demand};
use crate::note::Note;
use crate::placeholder::percent_decoded;
use crate::secret::Secret;
use crate::session::{Session, Ways};

/// Where a request goes, whatever it says itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) secure: bool,
    pub(crate) host: Host,
    pub(crate) port: u16,
    /// How it is written.
    authority: String,
}

impl Target {
    pub(crate) fn new(secure: bool, host: Host, port: u16) -> Self {
        let authority = match port == ordinary_port(secure) {
            true => host.to_string(),
            false => format!("{host}:{port}"),
        };
        Self { secure, host, port, authority }
    }

    /// Whether an authority means it.
    fn is(&self, authority: &str) -> bool {
        let means = |(host, port): (Host, Option<u16>)| {
            host == self.host && port.unwrap_or(ordinary_port(self.secure)) == self.port
        };
        authority == self.authority || parse_authority(authority).is_ok_and(means)
    }

    /// Whether the host of a tunnel, which may or may not name the port, can mean it.
    pub(crate) fn may_be(&self, authority: &str) -> bool {
        parse_authority(authority)
            .is_ok_and(|(host, port)| host == self.host && port.is_none_or(|port| port == self.port))
    }

    /// What is written down of a request to it.
    pub(crate) fn note(&self, session: &Arc<Session>) -> Note {
        Note::new(session, &self.host, self.port, if self.secure { "tls" } else { "http" })
    }

    /// It ended before it had answered.
    pub(crate) fn broke_off(&self) -> Refusal {
        Refusal::unreachable(format!("{} broke off", self.host))
    }
}

/// The port of a host that names none.
pub(crate) fn ordinary_port(secure: bool) -> u16 {
    if secure { 443 } else { 80 }
}

/// Headers that concern one connection alone.
const HOP_BY_HOP: [HeaderName; 7] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("proxy-authorization"),
    HeaderName::from_static("proxy-authenticate"),
    TRAILER,
    TRANSFER_ENCODING,
];

/// What becomes of a request.
pub(crate) enum Decision {
    /// The broker answers in the place of the host.
    Answer(Response<Body>),
    /// It goes to the host, as its head says now.
    Send(Prepared),
}

/// What goes with a request, and with its answer.
#[derive(Default)]
pub(crate) struct Prepared {
    /// Whether its host is looked into.
    pub(crate) looked_into: bool,
    /// The secrets that its host could repeat in any answer.
    pub(crate) secrets: HostSecrets,
    /// Whether the credential of the agent CLI's own model was added.
    pub(crate) model_credential: bool,
    /// The headers that hold a secret.
    pub(crate) swapped: Vec<HeaderName>,
    /// What the host could repeat of this request alone, besides its secrets.
    pub(crate) encoded: Vec<Secret>,
    /// The login that was used, and its token.
    login: Option<(Arc<Login>, Secret)>,
    /// How its answer tells what was used.
    pub(crate) api: Option<Api>,
    /// Whether it asks for a websocket.
    pub(crate) upgrade: bool,
    /// That it was let through, if the run has a budget and it asks a model.
    pub(crate) admitted: Option<Arc<Admitted>>,
}

impl Prepared {
    /// How the answer has to be counted, also if nobody wants it any more: a run has a budget.
    pub(crate) fn counted(&self, session: &Session) -> Option<Api> {
        self.api.filter(|_| session.is_bounded())
    }

    /// Hears how the host has answered: it may not believe a login any more.
    pub(crate) async fn heard(&self, status: StatusCode) {
        if let Some((login, token)) = &self.login
            && status == StatusCode::UNAUTHORIZED
        {
            login.doubt(token).await;
        }
    }
}

/// Looks at a request, and makes its head what goes to the host.
pub(crate) async fn prepare(
    ways: &Ways,
    target: &Target,
    parts: &mut Parts,
    note: &mut Note,
) -> Result<Decision, Refusal> {
    let session = &ways.session;
    check_honesty(target, parts)?;
    session.check_audit()?;
    if let Some(login) = session.login_at(&target.host, target.port)
        && parts.uri.path() == login.kind.path
    {
        return refreshed(ways, login, note).await.map(Decision::Answer);
    }
    // The broker speaks to those who refresh logins; a run only if the policy lets it.
    let rule = match session.judge(&target.host, target.port) {
        Verdict::Allowed { rule, .. } => rule,
        Verdict::Denied(denial) => return Err(denial.into()),
    };
    let looked = session.looks_into(&target.host, target.port);
    let upgrade = wants_websocket(parts)?;
    let api = match session.is_bounded() {
        true => check_budget(session, target, upgrade, parts)?,
        false => model_api(session, target, parts),
    };
    strip(&mut parts.headers, upgrade);
    check_placeholders(session, target, parts)?;
    let secrets = session.secrets_at(&target.host);
    let mut prepared = Prepared { api, upgrade, looked_into: looked, secrets, ..Prepared::default() };
    let credentials = session.credentials.iter().enumerate();
    for (index, credential) in credentials.filter(|(_, one)| one.is_for(&target.host, target.port)) {
        if !credential.scope.covers(&target.host, &parts.method, parts.uri.path()) {
            check_unused(credential, target, parts)?;
        } else if credential.travels(target.secure) {
            apply(ways, target, index, &mut parts.headers, &mut prepared, note).await?;
            check_other_paths(credential, target, parts)?;
        }
    }
    check_authentication(parts, &prepared)?;
    match prepared.model_credential {
        true => note.removed = session.model_headers.remove_others(&mut parts.headers, &prepared.swapped),
        false => remove_others(&mut parts.headers, &prepared.swapped),
    }
    // With a key of its own a run uses another account, and could have any usage and any limit told of it.
    prepared.api = prepared.api.filter(|_| session.is_bounded() || prepared.model_credential);
    if looked {
        if !prepared.model_credential {
            gateway_headers::remove(&mut parts.headers);
        }
        // What is packed or cut into pieces cannot be read here.
        parts.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    }
    if parts.headers.get(HOST).is_none_or(|host| host != &target.authority) {
        let host = target.authority.parse().map_err(|_| Refusal::bad("the host cannot be written"))?;
        parts.headers.insert(HOST, host);
    }
    note.begin(&rule)?;
    note.allowed(rule);
    Ok(Decision::Send(prepared))
}

/// Puts a credential into the headers of a request to its own host.
async fn apply(
    ways: &Ways,
    target: &Target,
    index: usize,
    headers: &mut HeaderMap,
    prepared: &mut Prepared,
    note: &mut Note,
) -> Result<(), Refusal> {
    let credential = &ways.session.credentials[index];
    let applied = credential.apply(headers, &ways.login_client).await;
    let Applied { secrets, encoded, headers: swapped } = applied.map_err(|error| no_login(&error))?;
    if let Some(first) = secrets.first() {
        note.credential = Some(credential.name().to_owned());
        let login = || Some((credential.login()?.clone(), first.clone()));
        prepared.login = prepared.login.take().or_else(login);
        prepared.model_credential |= !credential.named;
        prepared.swapped.extend(swapped);
        prepared.encoded.extend(encoded);
        if let Some(known) = ways.session.secrets.of_credential(index) {
            known.add(&secrets);
        }
    }
    // What is left of a placeholder is where the host might repeat it.
    if credential.is_in_headers(headers) { Err(stray(credential, target)) } else { Ok(()) }
}

/// Refuses a request that carries the placeholder of a credential whose secret is not added to it.
fn check_unused(credential: &Credential, target: &Target, parts: &Parts) -> Result<(), Refusal> {
    if !credential.is_in_headers(&parts.headers) {
        return Ok(());
    }
    let (method, path) = (&parts.method, parts.uri.path().escape_debug());
    let message = format!("{} is not used for {method} {path} at {}", credential.name(), target.host);
    Err(Refusal::new(StatusCode::FORBIDDEN, "credential-path", message))
}

/// Refuses a request with a credential of one path whose headers name another one.
fn check_other_paths(credential: &Credential, target: &Target, parts: &Parts) -> Result<(), Refusal> {
    let is_other = |(name, value): &(&HeaderName, &HeaderValue)| {
        let name = name.as_str().replace('_', "-");
        let covers = |path: &str| credential.scope.covers(&target.host, &parts.method, path);
        match name.as_str() {
            "destination" => !path_of(value, target).is_some_and(covers),
            // The source is in another namespace than the path.
            name => SOURCES.iter().any(|word| name.contains(word)),
        }
    };
    if !credential.scope.is_path() {
        return Ok(());
    }
    let Some((name, _)) = parts.headers.iter().find(is_other) else { return Ok(()) };
    let message = format!(
        "`{name}` names another path than {}, to which {} belongs",
        parts.uri.path().escape_debug(),
        credential.name()
    );
    Err(Refusal::new(StatusCode::FORBIDDEN, "credential-path", message))
}

/// What is in the name of a header by which an object is copied or renamed from elsewhere.
const SOURCES: [&str; 3] = ["copy-source", "rename-source", "source-url"];

/// The path of an address, if it is at this host.
fn path_of<'a>(value: &'a HeaderValue, target: &Target) -> Option<&'a str> {
    let text = value.to_str().ok()?;
    if text.starts_with('/') && !text.starts_with("//") {
        return Some(text);
    }
    let rest = text.strip_prefix(if target.secure { "https://" } else { "http://" })?;
    let (authority, _) = rest.split_once('/')?;
    target.is(authority).then(|| &rest[authority.len()..])
}

/// Refuses a request with a swapped credential whose query authenticates too, or names another method.
fn check_authentication(parts: &Parts, prepared: &Prepared) -> Result<(), Refusal> {
    let query = parts.uri.query().filter(|_| !prepared.swapped.is_empty()).unwrap_or_default();
    match other_parameter(query, prepared.model_credential) {
        None => Ok(()),
        Some(name) => {
            let message = format!("`{name}` in the query stands beside a credential: leave it out");
            Err(Refusal::new(StatusCode::FORBIDDEN, "credential-query", message))
        }
    }
}

/// The API of a request to the model of the agent CLI, for usage that is counted where there is no budget.
fn model_api(session: &Session, target: &Target, parts: &Parts) -> Option<Api> {
    let Target { host, port, .. } = target;
    let known = session
        .concerns(host, *port)
        .then(|| session.model_use(host, *port, &parts.method, parts.uri.path()))?;
    match known {
        Some(Use::Metered(api)) => Some(api),
        _ => None,
    }
}

/// The API of a request by the end of its path.
fn api_by_path(path: &str) -> Option<Api> {
    Api::of(&String::from_utf8_lossy(&percent_decoded(path)).to_ascii_lowercase())
}

/// Refuses a request whose usage cannot be counted. Returns the API if its answer has to be counted.
fn check_budget(
    session: &Session,
    target: &Target,
    upgrade: bool,
    parts: &Parts,
) -> Result<Option<Api>, Refusal> {
    if session.meter().is_over() {
        return Err(Refusal::budget("the budget of the run is used up"));
    }
    let Target { host, port, .. } = target;
    if !session.concerns(host, *port) {
        // What is encrypted passes unseen; what can be seen to ask a model does not.
        return match parts.method == Method::POST && api_by_path(parts.uri.path()).is_some() {
            true => Err(uncounted(parts)),
            false => Ok(None),
        };
    }
    if upgrade {
        // Agent CLIs fall back to requests without a websocket at once.
        let message = "the run has a budget, and what a websocket uses cannot be counted";
        return Err(Refusal::new(StatusCode::UPGRADE_REQUIRED, "budget-request", message));
    }
    let (method, path) = (&parts.method, parts.uri.path());
    let known = match session.is_model_host(host, *port) {
        true => session.model_use(host, *port, method, path),
        // A host that is no model's is read as the policy allows.
        false if [Method::GET, Method::HEAD, Method::OPTIONS].contains(method) => Some(Use::Free),
        false => api_by_path(path).filter(|_| method == Method::POST).map(Use::Metered),
    };
    match known {
        Some(Use::Metered(_)) if names_model(parts.uri.query().unwrap_or_default()) => {
            let message =
                "the run has a budget, and the query of the request names a model: name it in the body";
            Err(Refusal::new(StatusCode::FORBIDDEN, "budget-request", message))
        }
        Some(Use::Metered(api)) => Ok(Some(api)),
        Some(Use::Free) => Ok(None),
        Some(Use::Uncounted) | None => Err(uncounted(parts)),
    }
}

fn uncounted(parts: &Parts) -> Refusal {
    let (method, path) = (&parts.method, parts.uri.path().escape_debug());
    let message = format!("the run has a budget, and {method} {path} is not known to be counted");
    Refusal::new(StatusCode::FORBIDDEN, "budget-request", message)
}

/// Whether a query names a model, in the place of the one in the body: some gateways read it there.
fn names_model(query: &str) -> bool {
    parameters(query).any(|name| ["model", "engine", "deployment"].iter().any(|word| name.contains(word)))
}

/// Lets a request to a model through under a budget, with the body that goes to the host. It waits if others are on their way
/// and all of them together could pass the budget.
pub(crate) async fn admit(
    session: &Session,
    api: Api,
    headers: &mut HeaderMap,
    body: Bytes,
    prepared: &mut Prepared,
) -> Result<Bytes, Refusal> {
    let (demand, new) = read_demand(api, headers, &body)?;
    // The other one is not held while this one waits.
    let body = new.map_or(body, Bytes::from);
    if !session.meter().knows(&demand.model) {
        session.meter().refuse_unpriced(&demand.model);
        return Err(unpriced(&demand.model));
    }
    let admitted = session.meter().admit(demand).await;
    // Another answer may have come meanwhile.
    if let Some(model) = session.meter().unpriced_answer() {
        return Err(unpriced(model));
    }
    prepared.admitted = Some(admitted.ok_or_else(|| Refusal::budget("the budget of the run is used up"))?);
    // The host reads the body as it was read here, whatever the run calls it.
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(body)
}

fn unpriced(model: &str) -> Refusal {
    let message = format!("the price of the model `{}` is not known", model.escape_debug());
    Refusal::new(StatusCode::FORBIDDEN, "budget-model", message)
}

fn read_demand(api: Api, headers: &HeaderMap, body: &[u8]) -> Result<(Demand, Option<Vec<u8>>), Refusal> {
    let plain = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"identity");
    if !headers.get_all(CONTENT_ENCODING).iter().all(plain) {
        return Err(DemandError::Compressed.into());
    }
    Ok(demand(api, body)?)
}

impl From<DemandError> for Refusal {
    fn from(error: DemandError) -> Self {
        let rule = match error {
            DemandError::UnknownField(_) | DemandError::Value(_) => "budget-field",
            DemandError::UnknownTool(_) => "budget-tool",
            _ => "budget-request",
        };
        Refusal::new(StatusCode::FORBIDDEN, rule, error.to_string())
    }
}

/// A run that refreshes a login by itself is told that it has what it had; whatever has to be done is done here.
async fn refreshed(ways: &Ways, login: &Arc<Login>, note: &mut Note) -> Result<Response<Body>, Refusal> {
    note.begin("login")?;
    login.access(&ways.login_client).await.map_err(|error| no_login(&error))?;
    note.status = Some(StatusCode::OK.as_u16());
    note.credential = Some(format!("{} login", login.kind.name));
    note.allowed("login");
    let mut response = Response::new(whole(login.answer().to_string()));
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(http::header::CONTENT_TYPE, json);
    Ok(response)
}

fn no_login(error: &LoginError) -> Refusal {
    let status = match error {
        LoginError::Rejected { .. } => StatusCode::UNAUTHORIZED,
        LoginError::Store { .. } | LoginError::Unreachable { .. } => StatusCode::BAD_GATEWAY,
    };
    // Where the person keeps it is none of the run's business.
    let message = match error {
        LoginError::Rejected { .. } => "the login is not accepted any more",
        LoginError::Store { .. } => "the login cannot be read or written",
        LoginError::Unreachable { .. } => "the login has run out, and nobody gives a new one",
    };
    Refusal::new(status, "login", message)
}

/// A request that could be read in two ways is read in none.
fn check_honesty(target: &Target, request: &Parts) -> Result<(), Refusal> {
    let headers = &request.headers;
    let hosts: Vec<_> = headers.get_all(HOST).iter().collect();
    let named = hosts.iter().map(|host| host.to_str().unwrap_or("?"));
    let asked = request.uri.authority().map(Authority::as_str);
    if hosts.len() > 1 {
        return Err(Refusal::bad("the request has several hosts"));
    }
    if hosts.is_empty() && asked.is_none() {
        return Err(Refusal::bad("the request has no host"));
    }
    if let Some(other) = named.chain(asked).find(|authority| !target.is(authority)) {
        let message = format!("the request is for {}, and says {}", target.authority, other.escape_debug());
        return Err(Refusal::new(StatusCode::MISDIRECTED_REQUEST, "host-mismatch", message));
    }
    if headers.contains_key(TRANSFER_ENCODING) && headers.contains_key(CONTENT_LENGTH) {
        return Err(Refusal::bad("the request has two lengths"));
    }
    if headers.get_all(CONTENT_LENGTH).iter().count() > 1 {
        return Err(Refusal::bad("the request has two lengths"));
    }
    if [Method::CONNECT, Method::TRACE].contains(&request.method) {
        return Err(Refusal::bad("the method is not for hosts"));
    }
    Ok(())
}

/// Whether these headers are about a websocket, and nothing else besides.
pub(crate) fn is_websocket(headers: &HeaderMap) -> bool {
    let mut protocols = headers.get_all(UPGRADE).iter();
    let first = protocols.next().is_some_and(|name| name.as_bytes().eq_ignore_ascii_case(b"websocket"));
    first && protocols.next().is_none()
}

fn wants_websocket(request: &Parts) -> Result<bool, Refusal> {
    if request.version == Version::HTTP_2 && request.headers.contains_key(UPGRADE) {
        return Err(Refusal::bad("HTTP/2 upgrades to nothing"));
    }
    // Any other wish of the kind may be ignored, and is.
    Ok(is_websocket(&request.headers))
}

/// What the headers say of the connection itself.
pub(crate) fn connection_words(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let values = headers.get_all(CONNECTION).iter();
    values.flat_map(|value| value.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii)
}

pub(crate) fn strip(headers: &mut HeaderMap, upgrade: bool) {
    if !headers.keys().any(|name| HOP_BY_HOP.contains(name) || [TE, UPGRADE].contains(name)) {
        return;
    }
    let named: Vec<HeaderName> =
        connection_words(headers).filter_map(|name| HeaderName::from_bytes(name).ok()).collect();
    for name in HOP_BY_HOP.iter().chain(&named).filter(|name| !(upgrade && **name == UPGRADE)) {
        headers.remove(name);
    }
    // Programs that speak of trailers mean them, and nothing else is spoken of here.
    if headers.get(TE).is_some_and(|te| te != "trailers") {
        headers.remove(TE);
    }
    if upgrade {
        headers.insert(CONNECTION, http::HeaderValue::from_static("upgrade"));
    } else {
        headers.remove(UPGRADE);
    }
}

/// In a method or an address a placeholder is never at its place; in a header only on its way to its own host, by a safe way.
fn check_placeholders(session: &Session, target: &Target, parts: &Parts) -> Result<(), Refusal> {
    let address = percent_decoded(parts.uri.path_and_query().map(PathAndQuery::as_str).unwrap_or_default());
    for credential in &session.credentials {
        let own = credential.is_for(&target.host, target.port) && credential.travels(target.secure);
        let astray = credential.is_in(&address) || credential.is_in(parts.method.as_str().as_bytes());
        if astray || (!own && credential.is_in_headers(&parts.headers)) {
            return Err(stray(credential, target));
        }
    }
    Ok(())
}

fn stray(credential: &Credential, target: &Target) -> Refusal {
    let message = format!("the placeholder of {} does not belong to {}", credential.name(), target.host);
    Refusal::new(StatusCode::FORBIDDEN, "placeholder", message)
}

/// Looks at a body on its way, for placeholders that are not of its host.
pub(crate) struct Watch {
    session: Arc<Session>,
    /// The credentials that are not of this host.
    strangers: Vec<usize>,
    /// The end of what went before, in which a placeholder may have begun.
    tail: Vec<u8>,
    longest: usize,
}

impl Watch {
    pub(crate) fn new(session: &Arc<Session>, target: &Target) -> Self {
        let credentials = session.credentials.iter().enumerate();
        let strangers: Vec<usize> = credentials
            .filter(|(_, credential)| !credential.is_for(&target.host, target.port))
            .map(|(index, _)| index)
            .collect();
        let lengths = strangers.iter().flat_map(|index| &session.credentials[*index].swaps);
        let longest = lengths.map(|(placeholder, _)| placeholder.length()).max().unwrap_or(0);
        Self { session: Arc::clone(session), strangers, tail: Vec::new(), longest }
    }

    /// Whether one is in this piece, or between the last one and this.
    pub(crate) fn is_stray(&mut self, data: &[u8]) -> bool {
        if self.strangers.is_empty() {
            return false;
        }
        let seam = [&self.tail[..], &data[..data.len().min(self.longest)]].concat();
        let credentials = &self.session.credentials;
        let stray = self
            .strangers
            .iter()
            .any(|index| credentials[*index].is_in(&seam) || credentials[*index].is_in(data));
        let all = [&self.tail[..], data].concat();
        self.tail = all[all.len().saturating_sub(self.longest)..].to_vec();
        stray
    }

    /// Whether one is in what follows a body.
    pub(crate) fn is_stray_after(&self, trailers: &HeaderMap) -> bool {
        self.strangers.iter().any(|index| self.session.credentials[*index].is_in_headers(trailers))
    }
}

/// A body held a placeholder where it does not belong.
pub(crate) fn strayed(target: &Target) -> Refusal {
    let message = format!("the body held a placeholder that does not belong to {}", target.host);
    Refusal::new(StatusCode::FORBIDDEN, "placeholder", message)
}

#[cfg(test)]
mod tests {
    use http::header::{HeaderName, HeaderValue};

    use super::{Target, check_other_paths};
    use crate::credential::{Credential, Inside};
    use crate::endpoints::Scope;

    #[test]
    fn header_that_names_a_path_outside_of_a_credential_is_refused() {
        let target = Target::new(true, "host.test".parse().unwrap(), 443);
        let refused = |scope: Scope, name: &'static str, value: &'static str| {
            let credential = Credential {
                name: "c".into(),
                hosts: vec!["host.test".parse().unwrap()],
                swaps: Vec::new(),
                named: true,
                scope,
                in_the_clear: false,
                header: None,
                inside: Inside::default(),
            };
            let (mut parts, ()) =
                http::Request::builder().method("COPY").uri("/team/a").body(()).unwrap().into_parts();
            parts.headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
            check_other_paths(&credential, &target, &parts).is_err()
        };
        let team = || Scope::below("team").unwrap();
        for (name, value) in [
            ("destination", "/other"),
            ("destination", "/team/../other"),
            ("destination", "/team/%2e%2e/other"),
            ("destination", "//evil.test/team/b"),
            ("destination", "https://host.test/other"),
            ("destination", "https://evil.test/team/b"),
            ("destination", "https://host.test.evil.test/team/b"),
            ("destination", "http://host.test/team/b"),
            ("destination", "team/b"),
            ("x-amz-copy-source", "/team/b"),
            ("x_ms_copy_source", "https://host.test/other"),
            ("x-ms-rename-source", "/other"),
        ] {
            assert!(refused(team(), name, value), "{name}: {value}");
            assert!(!refused(Scope::All, name, value), "{name}: {value} with a credential of the whole host");
        }
        for value in ["/team/b", "https://host.test/team/b", "https://host.test:443/team/b"] {
            assert!(!refused(team(), "destination", value), "{value}");
        }
        assert!(!refused(team(), "overwrite", "T"));
    }
}
