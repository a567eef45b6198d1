//! Another installation, asked over HTTP: on a Unix socket, or at an address with a token.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use ringfence_core::ids::{RunId, TaskId};
use ringfence_core::mode::{ExecutionEnvironment, Mode};
use ringfence_core::task::{TaskSpec, TaskStatus};
use ringfence_egress::Entry as AuditEntry;
use ringfence_egress::processes::Role;
use ringfence_store::{
    Added, Counts, DeadLetter, Filter, ProcessRow, ProcessStatus, StoredEvent, Task, TaskRun,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Runtime;

use crate::desk::{
    Agent, Answer, Desk, Letters, LoginCheck, ProcessAnswer, Refusal, RefusalKind, RunRow, RunView,
    SettingsChanged, Status, StoppedAll, Tell, Used, UsedBy,
};
use crate::login_codes::Bearer;
use crate::loopback_peer::{self, Ends};
use crate::unix_peer;
use crate::wire::quoted;

/// How long a daemon may take for what takes long.
const PATIENCE: Duration = Duration::from_secs(320);
/// How long a daemon may take to issue a login code: `status` does not wait long for one that hangs.
const LOGIN_CODE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a daemon is asked to wait for an event.
const LONGEST_WAIT: u64 = 50;
/// How long it may take to say something at all, where it says more later.
const FIRST_WORD: Duration = Duration::from_secs(30);
/// No answer is longer, but a log; and no line of a log.
const LONGEST: usize = 256 << 20;
const LONGEST_LINE: usize = 32 << 20;
/// How long a program of this machine may take to accept a connection before it is not known whose it is.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(2);
/// How often it is looked whether it has.
const ACCEPT_POLL: Duration = Duration::from_millis(5);
/// So many of anything are told at once.
const MOST: usize = 1000;

/// Where a daemon is.
enum Place {
    Socket(PathBuf),
    Plain(String),
    Tls(String, std::sync::Arc<tokio_rustls::rustls::ClientConfig>),
}

/// A daemon that is asked over HTTP.
pub struct Remote {
    place: Place,
    /// The header that lets in, and its value.
    credential: Option<(&'static str, String)>,
    runtime: Runtime,
}

/// A one-time login code for the dashboard.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LoginCode {
    /// The path to open in a browser.
    pub path: String,
    /// The host name under which a browser on the daemon's machine opens it.
    pub host: String,
    /// For how long it works.
    pub expires_in_seconds: u64,
}

/// An error as the API has it.
#[derive(Deserialize)]
struct Problem {
    detail: String,
    #[serde(default)]
    remedy: Option<String>,
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(
        "no daemon of yours is known to answer at {0}, so neither RINGFENCE_TOKEN nor RINGFENCE_API_KEY was sent there"
    )]
    NotOwnDaemon(SocketAddr),
    #[error(
        "no daemon of yours is known to answer at {}, so neither RINGFENCE_TOKEN nor RINGFENCE_API_KEY was sent there", .0.display()
    )]
    NotOwnSocket(PathBuf),
}

impl ConnectError {
    /// What the user can do where a credential was not sent.
    fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Io(_) => None,
            Self::NotOwnDaemon(_) => Some(NOT_OWN_REMEDY),
            Self::NotOwnSocket(_) => Some(NOT_OWN_SOCKET_REMEDY),
        }
    }
}

const NOT_OWN_SOCKET_REMEDY: &str = "unset RINGFENCE_URL for the daemon of this machine; for one at another Unix socket unset RINGFENCE_TOKEN and RINGFENCE_API_KEY, for there a daemon knows its owner without them";
const NOT_OWN_REMEDY: &str = "unset RINGFENCE_URL, or set it to the daemon's Unix socket (unix:///home/me/.ringfence/api.sock) and unset the credential, which is not needed there; run `ringfence start` if it does not run";

/// Whether a connection may carry a credential. Any program can listen at an address of this machine while the daemon is stopped,
/// a run with an open network too; so the process that has accepted it has to be a daemon of this user, outside of every run.
async fn may_carry_credential(stream: &TcpStream) -> io::Result<bool> {
    let ends = Ends::of(stream)?;
    if !ringfence_egress::is_of_this_machine(ends.peer.ip()) {
        return Ok(true);
    }
    wait_until_accepted(|| loopback_peer::is_held(&ends)).await;
    Ok(ringfence_egress::is_announced_by_this_user(ends.peer.port())
        && loopback_peer::is_owner_outside_of_runs(&ends, Role::Server))
}

/// The same for a Unix socket: whoever can write its directory can listen there, another user or a run.
async fn may_carry_credential_over_socket(stream: &UnixStream) -> bool {
    wait_until_accepted(|| unix_peer::is_accepted(stream)).await;
    unix_peer::is_owner_outside_of_runs(stream)
}

/// Waits until a program has accepted a connection, for a while: of one that does not, nothing is known.
async fn wait_until_accepted(is_accepted: impl Fn() -> bool) {
    let accepted = async {
        while !is_accepted() {
            tokio::time::sleep(ACCEPT_POLL).await;
        }
    };
    let _ = tokio::time::timeout(ACCEPT_TIMEOUT, accepted).await;
}

fn refusal(message: impl Into<String>) -> Refusal {
    Refusal::new(RefusalKind::Unavailable, message)
}

impl Remote {
    /// At `http://…`, `https://…` or `unix:///…`, with a token or a key, and with more authorities than the machine knows.
    pub fn new(url: &str, token: Option<&str>, key: Option<&str>, roots: &[String]) -> Answer<Self> {
        let url = url.trim();
        let wrong = || {
            Refusal::new(RefusalKind::Invalid, format!("RINGFENCE_URL: `{url}` is no address of a daemon"))
                .with_remedy(Some("it looks like https://host:4301 or unix:///home/me/.ringfence/api.sock"))
        };
        let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
        let scheme = scheme.to_ascii_lowercase();
        let authority = rest.trim_end_matches('/');
        let parsed = ringfence_core::policy::parse_authority(authority).ok();
        let plain = parsed.is_some();
        let with_port = |port: u16| match &parsed {
            Some((_, Some(_))) | None => authority.to_owned(),
            Some((_, None)) => format!("{authority}:{port}"),
        };
        let place = match scheme.as_str() {
            "unix" if rest.starts_with('/') => Place::Socket(rest.into()),
            "http" if plain => Place::Plain(with_port(80)),
            "https" if plain => {
                let config =
                    ringfence_egress::tls_config(roots).map_err(|error| refusal(error.to_string()))?;
                Place::Tls(with_port(443), config)
            }
            _ => return Err(wrong()),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| refusal(error.to_string()))?;
        let given =
            |text: Option<&str>| text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let token = given(token).map(|token| ("authorization", format!("Bearer {token}")));
        Ok(Self { place, credential: token.or_else(|| given(key).map(|key| ("x-api-key", key))), runtime })
    }

    async fn connect(&self) -> Result<(Box<dyn Stream>, String), ConnectError> {
        Ok(match &self.place {
            Place::Socket(path) => (Box::new(self.connect_socket(path).await?), "localhost".to_owned()),
            Place::Plain(authority) => (Box::new(self.connect_plain(authority).await?), authority.clone()),
            Place::Tls(authority, config) => {
                let stream = TcpStream::connect(authority).await?;
                let host = authority.rsplit_once(':').map_or(authority.as_str(), |(host, _)| host);
                let host = host.trim_matches(['[', ']']).to_owned();
                let name = host.try_into().map_err(io::Error::other)?;
                let tls = tokio_rustls::TlsConnector::from(std::sync::Arc::clone(config));
                (Box::new(tls.connect(name, stream).await?), authority.clone())
            }
        })
    }

    /// Connects to a Unix socket. A credential is sent only to a process of this user.
    async fn connect_socket(&self, path: &Path) -> Result<UnixStream, ConnectError> {
        let stream = UnixStream::connect(path).await?;
        match self.credential.is_none() || may_carry_credential_over_socket(&stream).await {
            true => Ok(stream),
            false => Err(ConnectError::NotOwnSocket(path.to_owned())),
        }
    }

    /// Connects without TLS. Within this machine a credential is sent only to a daemon of this user.
    async fn connect_plain(&self, authority: &str) -> Result<TcpStream, ConnectError> {
        let mut failed = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in tokio::net::lookup_host(authority).await? {
            match TcpStream::connect(address).await {
                Ok(stream) if self.credential.is_some() && !may_carry_credential(&stream).await? => {
                    return Err(ConnectError::NotOwnDaemon(address));
                }
                Ok(stream) => return Ok(stream),
                Err(error) => failed = error,
            }
        }
        Err(failed.into())
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Answer<hyper::Response<Incoming>> {
        let unreachable = |error: &dyn std::fmt::Display| {
            refusal(format!("the daemon does not answer: {error}"))
                .with_remedy(Some("RINGFENCE_URL says where it is; `ringfence start` starts it there"))
        };
        let (stream, host) = self.connect().await.map_err(|error| match error {
            ConnectError::Io(error) => unreachable(&error),
            error => Refusal::new(RefusalKind::Forbidden, error.to_string()).with_remedy(error.remedy()),
        })?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| unreachable(&error))?;
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, host);
        if let Some((name, value)) = &self.credential {
            request = request.header(*name, value);
        }
        let text = body.map(|body| body.to_string());
        if text.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(Bytes::from(text.unwrap_or_default()))).map_err(|_| {
            Refusal::new(RefusalKind::Invalid, "RINGFENCE_TOKEN or RINGFENCE_API_KEY cannot be sent")
        })?;
        let answer = sender.send_request(request).await.map_err(|error| unreachable(&error))?;
        match answer.status() {
            status if status.is_success() => Ok(answer),
            status => Err(problem(status, answer).await),
        }
    }

    /// Asks, and reads the whole answer as text.
    fn text(&self, method: Method, path: &str, body: Option<Value>) -> Answer<String> {
        self.text_within(PATIENCE, method, path, body)
    }

    fn text_within(
        &self,
        timeout: Duration,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> Answer<String> {
        let asked = async {
            let answer = self.send(method, path, body).await?;
            let body = http_body_util::Limited::new(answer.into_body(), LONGEST).collect().await;
            let bytes = body.map_err(|error| refusal(format!("the answer was cut off: {error}")))?.to_bytes();
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        let asked = async { tokio::time::timeout(timeout, asked).await };
        self.runtime.block_on(asked).unwrap_or_else(|_| Err(refusal("the daemon did not answer in time")))
    }

    /// Asks, and reads a part of the answer.
    fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
        part: &str,
    ) -> Answer<T> {
        let text = self.text(method, path, body)?;
        let strange = |error: &dyn std::fmt::Display| {
            refusal(format!("the daemon answered something strange: {error}"))
                .with_remedy(Some("it may be of another version: `GET /openapi.json` tells"))
        };
        let mut document: Value = serde_json::from_str(&text).map_err(|error| strange(&error))?;
        let part = match part {
            "" => document,
            part => document.get_mut(part).map(Value::take).ok_or_else(|| strange(&part))?,
        };
        serde_json::from_value(part).map_err(|error| strange(&error))
    }

    /// Page after page, until there are as many as were wanted or no more. Each is told by which the next one begins.
    fn pages<T>(
        &self,
        limit: usize,
        before: Option<String>,
        mut page: impl FnMut(&str, usize) -> Answer<(Vec<T>, Option<String>)>,
    ) -> Answer<Vec<T>> {
        let mut all = Vec::new();
        let mut before = before.map(|id| format!("&before={id}")).unwrap_or_default();
        while all.len() < limit {
            let wanted = (limit - all.len()).min(MOST);
            let (some, last) = page(&before, wanted)?;
            let whole = some.len() == wanted;
            all.extend(some);
            match last.filter(|_| whole) {
                Some(last) => before = format!("&before={last}"),
                None => break,
            }
        }
        Ok(all)
    }

    /// A one-time login code for the dashboard: the path to open, and for how many seconds it works.
    pub fn login_code(&self, bearer: Bearer) -> Answer<LoginCode> {
        let wanted = match bearer {
            Bearer::Owner => "ownerOnly=true",
            Bearer::OwnerOrElsewhere => "ownerOnly=false",
            Bearer::Anybody => "forAnyone=true",
        };
        let path = format!("/system/login-codes?{wanted}");
        let text = self.text_within(LOGIN_CODE_TIMEOUT, Method::POST, &path, None)?;
        serde_json::from_str(&text)
            .map_err(|error| refusal(format!("the daemon sent no login code: {error}")))
    }

    /// Has the daemon replace its own token.
    pub fn rotate_token(&self) -> Answer<()> {
        self.text(Method::POST, "/system/token/rotate", None).map(drop)
    }

    fn get<T: DeserializeOwned>(&self, path: &str, part: &str) -> Answer<T> {
        self.ask(Method::GET, path, None, part)
    }

    fn post<T: DeserializeOwned>(&self, path: &str, part: &str) -> Answer<T> {
        self.ask(Method::POST, path, None, part)
    }
}

async fn problem(status: StatusCode, answer: hyper::Response<Incoming>) -> Refusal {
    let kind = match status.as_u16() {
        404 => RefusalKind::NotFound,
        409 => RefusalKind::Conflict,
        400 | 413 | 415 | 422 => RefusalKind::Invalid,
        401 | 403 => RefusalKind::Forbidden,
        _ => RefusalKind::Unavailable,
    };
    let body = http_body_util::Limited::new(answer.into_body(), 1 << 20).collect().await;
    let told = body.ok().and_then(|body| serde_json::from_slice::<Problem>(&body.to_bytes()).ok());
    match told {
        Some(Problem { detail, remedy }) => Refusal::new(kind, detail).with_remedy(remedy),
        None => Refusal::new(kind, format!("the daemon answered {status}")),
    }
}

/// A process as the API has it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireProcess {
    name: String,
    wanted: bool,
    status: ProcessStatus,
    started_at: Option<String>,
    finished_at: Option<String>,
    pid: Option<u32>,
    exit_code: Option<i32>,
    signal: Option<i32>,
    message: Option<String>,
}

impl From<WireProcess> for ProcessRow {
    fn from(process: WireProcess) -> Self {
        let ms = |text: Option<String>| {
            let time = text?.parse::<jiff::Timestamp>().ok()?;
            u64::try_from(time.as_millisecond()).ok()
        };
        Self {
            name: process.name,
            wanted: process.wanted,
            status: process.status,
            pid: process.pid,
            started_ms: ms(process.started_at),
            finished_ms: ms(process.finished_at),
            exit_code: process.exit_code,
            signal: process.signal,
            message: process.message,
        }
    }
}

/// What came of a process, as the API has it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireAnswer {
    process: WireProcess,
    #[serde(default)]
    already_running: bool,
    #[serde(default)]
    skipped: Option<String>,
}

impl From<WireAnswer> for ProcessAnswer {
    fn from(answer: WireAnswer) -> Self {
        let WireAnswer { process, already_running, skipped } = answer;
        Self { process: process.into(), already_running, skipped }
    }
}

/// The status, as the API has it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireStatus {
    daemon: Option<u32>,
    address: Option<String>,
    execution_environment: Option<ExecutionEnvironment>,
    mode: Option<Mode>,
    settings_error: Option<String>,
    tasks: Counts,
    processes: Vec<WireProcess>,
}

/// What came of stopping all, as the API has it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireStopped {
    stopped: Vec<String>,
    skipped: Vec<String>,
    cancelled_runs: u64,
    requeued_tasks: u64,
}

impl Desk for Remote {
    fn add(&self, specs: Vec<TaskSpec>) -> Answer<Vec<Added>> {
        self.ask(Method::POST, "/tasks/batch", Some(json!({ "tasks": specs })), "added")
    }

    fn tasks(&self, filter: &Filter) -> Answer<Vec<Task>> {
        let states: Vec<&str> = filter.states.iter().map(|state| state.as_str()).collect();
        let parts = [
            ("status", Some(states.join(",")).filter(|states| !states.is_empty())),
            ("role", filter.role.map(|role| role.to_string())),
            ("agent", filter.agent.clone()),
        ];
        let given =
            parts.into_iter().filter_map(|(name, value)| Some(format!("&{name}={}", quoted(&value?))));
        let given: String = given.collect();
        self.pages(filter.limit, filter.before.as_ref().map(ToString::to_string), |before, limit| {
            let page: Vec<Task> = self.get(&format!("/tasks?limit={limit}{before}{given}"), "tasks")?;
            let last = page.last().map(|task| task.id.to_string());
            Ok((page, last))
        })
    }

    fn task(&self, id: &TaskId) -> Answer<Task> {
        self.get(&format!("/tasks/{id}"), "task")
    }

    fn counts(&self) -> Answer<Counts> {
        // Every task is some agent's, and who may see tasks may see agents.
        let mut counts: Counts = TaskStatus::ALL.into_iter().map(|state| (state, 0)).collect();
        for agent in self.agents()? {
            agent.row.tasks.into_iter().for_each(|(state, count)| *counts.entry(state).or_default() += count);
        }
        Ok(counts)
    }

    fn runs_of_task(&self, id: &TaskId) -> Answer<Vec<TaskRun>> {
        self.get(&format!("/tasks/{id}"), "runs")
    }

    fn cancel(&self, id: &TaskId) -> Answer<Task> {
        self.post(&format!("/tasks/{id}/cancel"), "task")
    }

    fn retry(&self, id: &TaskId) -> Answer<Task> {
        self.post(&format!("/tasks/{id}/retry"), "task")
    }

    fn forget(&self, id: &TaskId) -> Answer<()> {
        self.text(Method::DELETE, &format!("/tasks/{id}"), None).map(|_| ())
    }

    fn dead_letters(&self, before: Option<&TaskId>, limit: usize) -> Answer<Letters> {
        let mut webhooks = Vec::new();
        let tasks = self.pages(limit, before.map(ToString::to_string), |before, limit| {
            let page: Letters = self.get(&format!("/dead-letter?limit={limit}{before}"), "")?;
            webhooks = page.webhooks;
            let last = page.tasks.last().map(|letter| letter.task.id.to_string());
            Ok((page.tasks, last))
        })?;
        Ok(Letters { tasks, webhooks })
    }

    fn dead_letter(&self, id: &TaskId) -> Answer<DeadLetter> {
        self.get(&format!("/dead-letter/{id}"), "letter")
    }

    fn discard(&self, id: &TaskId) -> Answer<()> {
        self.text(Method::DELETE, &format!("/dead-letter/{id}"), None).map(|_| ())
    }

    fn events(&self, after: u64, limit: usize, wait: Duration) -> Answer<Vec<StoredEvent>> {
        // A moment is a moment: rounded up, so that nobody asks without a pause.
        let wait = if wait.is_zero() { 0 } else { (wait.as_secs() + 1).min(LONGEST_WAIT) };
        self.get(&format!("/events?after={after}&limit={}&wait={wait}", limit.clamp(1, MOST)), "events")
    }

    fn last_event(&self) -> Answer<u64> {
        self.get("/events?limit=1", "last")
    }

    fn runs(&self, before: Option<&RunId>, limit: usize) -> Answer<Vec<RunRow>> {
        self.pages(limit, before.map(ToString::to_string), |before, limit| {
            let page: Vec<RunRow> = self.get(&format!("/runs?limit={limit}{before}"), "runs")?;
            let last = page.last().map(|row| row.run.to_string());
            Ok((page, last))
        })
    }

    fn run(&self, id: &str) -> Answer<RunView> {
        self.get(&format!("/runs/{}", quoted(id)), "")
    }

    fn net(&self, id: &RunId) -> Answer<Vec<AuditEntry>> {
        self.get(&format!("/runs/{id}/net"), "entries")
    }

    fn log(&self, id: &RunId, follow: bool, tell: &mut Tell<'_>) -> Answer<()> {
        self.runtime.block_on(async {
            let path = format!("/runs/{id}/log?follow={follow}");
            let answer = tokio::time::timeout(FIRST_WORD, self.send(Method::GET, &path, None)).await;
            let answer = answer.map_err(|_| refusal("the daemon did not answer in time"))??;
            let (mut body, mut rest) = (answer.into_body(), Vec::new());
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| refusal(format!("the log was cut off: {error}")))?;
                let mut new = frame.data_ref().map_or(&[][..], |data| data);
                while let Some(end) = new.iter().position(|byte| *byte == b'\n') {
                    rest.extend_from_slice(&new[..end]);
                    new = &new[end + 1..];
                    if let Ok(line) = serde_json::from_slice(&rest)
                        && !tell(line)
                    {
                        return Ok(());
                    }
                    rest.clear();
                }
                rest.extend_from_slice(new);
                if rest.len() > LONGEST_LINE {
                    return Err(refusal("the daemon tells a line that does not end"));
                }
            }
            Ok(())
        })
    }

    fn agents(&self) -> Answer<Vec<Agent>> {
        self.get("/agents", "agents")
    }

    fn usage(&self, by: UsedBy) -> Answer<Vec<Used>> {
        self.get(&format!("/usage?by={}", by.as_str()), "usage")
    }

    fn status(&self) -> Answer<Status> {
        let status: WireStatus = self.get("/system/status", "")?;
        Ok(Status {
            daemon: status.daemon,
            address: status.address,
            execution_environment: status.execution_environment,
            mode: status.mode,
            settings_error: status.settings_error,
            tasks: status.tasks,
            processes: status.processes.into_iter().map(Into::into).collect(),
        })
    }

    fn change_settings(&self, changes: &[(String, Option<String>)]) -> Answer<SettingsChanged> {
        let updates: std::collections::BTreeMap<&str, &Option<String>> =
            changes.iter().map(|(name, value)| (name.as_str(), value)).collect();
        let body = json!({ "updates": updates });
        let warnings = self.ask(Method::PATCH, "/config", Some(body), "warnings")?;
        Ok(SettingsChanged { warnings, changes: Vec::new() })
    }

    fn processes(&self) -> Answer<Vec<ProcessRow>> {
        let rows: Vec<WireProcess> = self.get("/system/processes", "processes")?;
        Ok(rows.into_iter().map(Into::into).collect())
    }

    fn start_process(&self, name: &str) -> Answer<ProcessAnswer> {
        self.post::<WireAnswer>(&format!("/system/processes/{}/start", quoted(name)), "").map(Into::into)
    }

    fn stop_process(&self, name: &str) -> Answer<ProcessAnswer> {
        self.post::<WireAnswer>(&format!("/system/processes/{}/stop", quoted(name)), "").map(Into::into)
    }

    fn stop_all(&self) -> Answer<StoppedAll> {
        let done: WireStopped = self.post("/system/processes/stop-all", "")?;
        let WireStopped { stopped, skipped, cancelled_runs, requeued_tasks } = done;
        Ok(StoppedAll { stopped, skipped, cancelled_runs, requeued_tasks })
    }

    fn process_log(&self, name: &str, lines: usize) -> Answer<String> {
        self.text(Method::GET, &format!("/system/processes/{}/logs?lines={lines}", quoted(name)), None)
    }

    fn login(&self, cli: &str, environment: Option<ExecutionEnvironment>) -> Answer<LoginCheck> {
        let environment = environment.map(|place| format!("?environment={}", place.as_str()));
        self.get(&format!("/system/{}/auth{}", quoted(cli), environment.unwrap_or_default()), "")
    }
}
