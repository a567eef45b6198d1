//! The server: its thread, its record of requests, and how a step becomes an answer.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Channel, Full};
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::oneshot;

use crate::anthropic::{Anthropic, token_count};
use crate::chat::Chat;
use crate::dialect::{Asked, Dialect, Event, Reply, Turn};
use crate::responses::{Responses, models};
use crate::script::{Script, Spent, Step};

/// Why a connection ends before its answer does. All but `Request` are meant.
#[derive(Debug, Error)]
enum Cut {
    #[error("the script drops the connection")]
    Dropped,
    #[error("the request could not be read: {0}")]
    Request(#[from] hyper::Error),
}

type Answer = Response<BoxBody<Bytes, Cut>>;

/// Where to listen and what to keep.
#[derive(Debug, Clone)]
pub struct Options {
    /// The address; port 0 takes any free port.
    pub listen: SocketAddr,
    /// A file that gets one JSON line per request.
    pub record: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), record: None }
    }
}

/// One request as it came in.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Recorded {
    /// Milliseconds since the server's start: shows a CLI's retry schedule.
    pub at_ms: u64,
    /// The HTTP method.
    pub method: String,
    /// The path with its query.
    pub path: String,
    /// The headers, names in lower case; of a repeated one the last.
    pub headers: BTreeMap<String, String>,
    /// The body: JSON, a string if it was not JSON, null if there was none.
    pub body: Value,
    /// Whether the model was given tools; without them it is a side call.
    pub tools: bool,
}

/// What the connections share.
struct Shared {
    state: Mutex<State>,
    began: Instant,
    /// Tells this server's ids from those of an earlier one in the same CLI session.
    mark: u64,
}

struct State {
    script: Script,
    spent: Spent,
    requests: Vec<Recorded>,
    replies: u64,
    record: Option<File>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves the record usable; a test still wants to read it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running server; dropping it stops it.
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Start on a free loopback port, in a thread of its own.
    ///
    /// # Errors
    /// When the port, the thread or its runtime cannot be had.
    pub fn start(script: Script) -> std::io::Result<Self> {
        Self::start_with(script, Options::default())
    }

    /// Start with options.
    ///
    /// # Errors
    /// When the port, the thread, its runtime or the record file cannot be had.
    pub fn start_with(script: Script, options: Options) -> std::io::Result<Self> {
        let record =
            options.record.map(|path| File::options().create(true).append(true).open(path)).transpose()?;
        let listener = std::net::TcpListener::bind(options.listen)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                script,
                spent: Spent::new(),
                requests: Vec::new(),
                replies: 0,
                record,
            }),
            began: Instant::now(),
            mark: u64::try_from(now.as_micros()).unwrap_or_default(),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let inside = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("scripted-model".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, inside) => {}
                    _ = stopped => {}
                }
            });
            // Dropping the runtime here drops every open connection, hanging ones too.
        })?;
        Ok(Self { address, shared, stop: Some(stop), thread: Some(thread) })
    }

    /// The base URL, `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// All requests so far.
    #[must_use]
    pub fn requests(&self) -> Vec<Recorded> {
        self.shared.state().requests.clone()
    }

    /// All requests since the last time, which are forgotten.
    #[must_use]
    pub fn take_requests(&self) -> Vec<Recorded> {
        std::mem::take(&mut self.shared.state().requests)
    }

    /// Go on with another script; limited failures count afresh.
    pub fn set_script(&self, script: Script) {
        let mut state = self.shared.state();
        state.script = script;
        state.spent.clear();
    }

    /// A loopback URL on which nothing listens.
    ///
    /// The port stays bound, without listening, as long as the process lives, so that no
    /// other program can get it and answer.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn refused_url() -> std::io::Result<String> {
        static HELD: OnceLock<TcpSocket> = OnceLock::new();
        let socket = if let Some(socket) = HELD.get() {
            socket
        } else {
            let socket = TcpSocket::new_v4()?;
            socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
            HELD.get_or_init(|| socket)
        };
        Ok(format!("http://{}", socket.local_addr()?))
    }

    /// Wait for the server's end, which only an error of the listener brings.
    pub fn wait(mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been printed; there is nothing to add.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // The receiver is gone only if the thread has ended already.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: std::net::TcpListener, shared: Arc<Shared>) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of file descriptors, most likely: some may come back.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        // Without this a stream's small pieces wait for each other's acknowledgement.
        let _ = stream.set_nodelay(true);
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = service_fn(|request| serve(Arc::clone(&shared), request));
            let connection =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            // Scripted drops end here as errors, and a client may leave when it likes.
            let _ = connection.await;
        });
    }
}

async fn serve(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Answer, Cut> {
    let (head, body) = request.into_parts();
    let raw = unpacked(&head.headers, body.collect().await?.to_bytes());
    let json: Option<Value> = serde_json::from_slice(&raw).ok();
    let body = match &json {
        Some(json) => json.clone(),
        None if raw.is_empty() => Value::Null,
        None => Value::String(String::from_utf8_lossy(&raw).into_owned()),
    };
    let dialect = dialect(&head.method, head.uri.path());
    let asked = dialect.map(|dialect| dialect.read(&body)).unwrap_or_default();
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    note(&shared, &head.method, path, &head.headers, &body, asked.tools);
    match (dialect, json) {
        (Some(dialect), Some(body)) if body.is_object() => {
            let count_only = head.uri.path().ends_with("/count_tokens");
            model(&shared, dialect, &body, asked, count_only).await
        }
        (Some(dialect), _) => Ok(answer(400, &dialect.error(400, "The body is not a JSON object"))),
        (None, _) if head.method == Method::POST && head.uri.path().ends_with("/oauth/token") => {
            Ok(answer(200, &token(&shared)))
        }
        (None, _) => Ok(aside(&head.method, head.uri.path(), &head.headers)),
    }
}

/// Codex packs what it says to the server of a plan.
fn unpacked(headers: &HeaderMap, raw: Bytes) -> Bytes {
    if headers.get("content-encoding").is_none_or(|encoding| encoding != "zstd") {
        return raw;
    }
    let mut unpacked = Vec::new();
    let read = ruzstd::decoding::StreamingDecoder::new(&raw[..])
        .ok()
        .and_then(|mut decoder| decoder.read_to_end(&mut unpacked).ok());
    if read.is_some() { unpacked.into() } else { raw }
}

/// A new login, good for an hour; each has its number.
fn token(shared: &Shared) -> Value {
    let number =
        shared.state().requests.iter().filter(|request| request.path.ends_with("/oauth/token")).count();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let claims = URL_SAFE_NO_PAD.encode(json!({ "exp": now + 3600 }).to_string());
    json!({
        "token_type": "Bearer",
        "access_token": format!("e30.{claims}.REAL-SECRET-{number}"),
        "refresh_token": format!("refresh-REAL-SECRET-{number}"),
        "id_token": format!("e30.{claims}.id-REAL-SECRET-{number}"),
        "expires_in": 3600,
        "scope": "user:inference",
    })
}

/// The API that a path belongs to.
fn dialect(method: &Method, path: &str) -> Option<&'static dyn Dialect> {
    match path {
        _ if method != Method::POST => None,
        "/v1/messages" | "/v1/messages/count_tokens" => Some(&Anthropic),
        // The second is where a plan's own model is.
        "/v1/responses" | "/backend-api/codex/responses" => Some(&Responses),
        "/v1/chat/completions" => Some(&Chat),
        _ => None,
    }
}

fn note(shared: &Shared, method: &Method, path: &str, headers: &HeaderMap, body: &Value, tools: bool) {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let recorded = Recorded {
        at_ms: u64::try_from(shared.began.elapsed().as_millis()).unwrap_or(u64::MAX),
        method: method.to_string(),
        path: path.to_owned(),
        headers: headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
        body: body.clone(),
        tools,
    };
    let mut state = shared.state();
    if let (Some(file), Ok(line)) = (&mut state.record, serde_json::to_string(&recorded)) {
        // One write, so that lines of several servers on one file do not mix.
        if let Err(error) = file.write_all(format!("{line}\n").as_bytes()) {
            let _ = writeln!(std::io::stderr(), "scripted-model: the record could not be written: {error}");
        }
    }
    state.requests.push(recorded);
}

/// Requests that are not for the model.
fn aside(method: &Method, path: &str, headers: &HeaderMap) -> Answer {
    match (method, path) {
        (&Method::HEAD | &Method::GET, "/") => answer(200, &json!({})),
        // What codex asks of a plan's login before anything else.
        (&Method::GET, "/backend-api/wham/accounts/check") => {
            let account =
                headers.get("chatgpt-account-id").and_then(|value| value.to_str().ok()).unwrap_or("none");
            answer(
                200,
                &json!({
                    "accounts": [{ "id": account, "workspace_backend_origin": "https://chatgpt.com", "account_routing_override": "NO_CONSTRAINT" }],
                    "default_account_id": account,
                }),
            )
        }
        (&Method::GET, "/v1/models" | "/backend-api/codex/models") => answer(200, &models()),
        // Codex takes this as "speak plain HTTP" at once; other refusals it retries.
        (&Method::GET, "/v1/responses" | "/backend-api/codex/responses")
            if headers.contains_key("upgrade") =>
        {
            answer(426, &Responses.error(426, "No websockets here"))
        }
        (_, "/v1/messages" | "/v1/responses" | "/v1/chat/completions") => {
            answer(405, &Chat.error(405, "Method not allowed"))
        }
        _ => answer(404, &Chat.error(404, &format!("No such path: {method} {path}"))),
    }
}

/// Answer a request for the model.
async fn model(
    shared: &Shared,
    dialect: &dyn Dialect,
    body: &Value,
    asked: Asked,
    count_only: bool,
) -> Result<Answer, Cut> {
    let (turn, step) = decide(shared, body, &asked, count_only);
    let stream = body["stream"] == true && !count_only;
    let reply = match (step, asked.first) {
        (Step::Fail { status, retry_after, headers, body, .. }, _) => {
            let retry_after = retry_after.map(|value| ("retry-after".to_owned(), value));
            let body = body.unwrap_or_else(|| dialect.error(status, &describe(dialect, status)));
            let made = failure(status, headers.into_iter().chain(retry_after), &body);
            return Ok(made.unwrap_or_else(|wrong| {
                answer(500, &dialect.error(500, &format!("The script is wrong: {wrong}")))
            }));
        }
        (Step::Hang, _) => return std::future::pending().await,
        (Step::Drop, _) => return Err(Cut::Dropped),
        (Step::DropMidStream, _) => return Ok(broken(dialect, &turn, stream)),
        _ if count_only => return Ok(answer(200, &token_count(&turn))),
        (_, Some(tool)) => Reply::Call(tool),
        (Step::Slow { delay_ms, text }, None) => {
            let pause = Duration::from_millis(delay_ms);
            let reply = Reply::Text(text);
            if stream {
                return Ok(streamed(dialect.events(&turn, &reply), pause, End::Whole));
            }
            tokio::time::sleep(pause).await;
            reply
        }
        (Step::Text { text }, None) => Reply::Text(text),
        (Step::Write { path, content }, None) => Reply::Call(dialect.write(body, &path, &content)),
        (Step::Shell { command }, None) => Reply::Call(dialect.shell(body, &command)),
    };
    if stream {
        return Ok(streamed(dialect.events(&turn, &reply), Duration::ZERO, End::Whole));
    }
    Ok(answer(200, &dialect.whole(&turn, &reply)))
}

/// Number the reply and take its step from the script.
fn decide(shared: &Shared, body: &Value, asked: &Asked, count_only: bool) -> (Turn, Step) {
    let mut state = shared.state();
    state.replies += 1;
    let turn = Turn {
        id: format!("{:x}x{}", shared.mark, state.replies),
        model: body["model"].as_str().unwrap_or("fake-model").to_owned(),
        usage: state.script.usage,
        tell_usage: body["stream_options"]["include_usage"] == true,
    };
    if !asked.tools || count_only {
        // A side call says nothing about the conversation, so only a script that begins
        // with a fault touches it. It does not use the fault up: how many side calls a
        // CLI makes, and when, must not change what its main requests meet.
        let (_, step) = state.script.choose(0, &state.spent);
        let step = if step.breaks() { step } else { Step::Text { text: "Scripted".to_owned() } };
        return (turn, step);
    }
    let (position, step) = state.script.choose(asked.results, &state.spent);
    if let (Some(position), Step::Fail { times: Some(_), .. }) = (position, &step) {
        *state.spent.entry(position).or_insert(0) += 1;
    }
    (turn, step)
}

/// What a status means, for the message of a default error body.
fn describe(dialect: &dyn Dialect, status: u16) -> String {
    let known = match status {
        401 => Some(dialect.bad_key()),
        429 => Some("This request would exceed your rate limit"),
        529 => Some("Overloaded"),
        _ => StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()),
    };
    format!("{} (scripted)", known.unwrap_or("Error"))
}

/// What keeps a `Fail` from being sent as written.
#[derive(Debug, Error)]
enum Unsendable {
    #[error("{0} is not a status that ends a request")]
    Status(u16),
    #[error("{0:?} is not a header name or its value is not one")]
    Header(String),
}

fn failure(
    status: u16,
    headers: impl Iterator<Item = (String, String)>,
    body: &Value,
) -> Result<Answer, Unsendable> {
    // Below 200 an answer is not final, and the client would go on waiting for one.
    if !(200..=999).contains(&status) {
        return Err(Unsendable::Status(status));
    }
    let mut made = answer(status, body);
    for (name, value) in headers {
        let parsed = (name.parse::<HeaderName>(), HeaderValue::from_str(&value));
        let (Ok(known), Ok(value)) = parsed else { return Err(Unsendable::Header(name)) };
        made.headers_mut().insert(known, value);
    }
    Ok(made)
}

/// An answer in one piece; the length is known, so hyper sends `content-length`.
fn answer(status: u16, body: &Value) -> Answer {
    let never = |never: Infallible| match never {};
    let body = Full::from(body.to_string()).map_err(never).boxed();
    let mut made = Response::new(body);
    *made.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    typed(made, "application/json")
}

fn typed(mut made: Answer, kind: &'static str) -> Answer {
    made.headers_mut().insert(hyper::header::CONTENT_TYPE, HeaderValue::from_static(kind));
    made
}

/// How a body that is sent in pieces ends.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    /// As the API wants it.
    Whole,
    /// By a closed connection.
    Cut,
}

/// An answer as a stream of events, with a pause before each piece of text; the length
/// is not known, so hyper sends it chunked.
fn streamed(events: Vec<Event>, pause: Duration, end: End) -> Answer {
    let (mut sender, body) = Channel::new(8);
    tokio::spawn(async move {
        for event in events {
            if event.text && !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            if sender.send_data(Bytes::from(event.wire)).await.is_err() {
                return; // The client has left.
            }
        }
        if end == End::Cut {
            // Let what was sent reach the client, so that it sees a cut and not a refusal.
            tokio::time::sleep(Duration::from_millis(100)).await;
            sender.abort(Cut::Dropped);
        }
    });
    typed(Response::new(body.boxed()), "text/event-stream; charset=utf-8")
}

/// An answer that begins well and then breaks off after its first words.
fn broken(dialect: &dyn Dialect, turn: &Turn, stream: bool) -> Answer {
    let reply = Reply::Text("This answer will not be finished".to_owned());
    if stream {
        let mut events = dialect.events(turn, &reply);
        let words = events.iter().position(|event| event.text).map_or(1, |first| first + 2);
        events.truncate(words);
        return streamed(events, Duration::ZERO, End::Cut);
    }
    let mut wire = dialect.whole(turn, &reply).to_string();
    wire.truncate(wire.len() / 2);
    let half = streamed(vec![Event { wire, text: false }], Duration::ZERO, End::Cut);
    typed(half, "application/json")
}
