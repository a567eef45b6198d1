//! The broker at its door: who comes in, and what they want.

use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::upgrade::{Parts, Upgraded};
use hyper_util::rt::{TokioIo, TokioTimer};
use ringfence_core::backend::Door;
use ringfence_core::policy::{Denial, Host, Verdict, parse_authority};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

use crate::answer::{Body, Refusal, empty};
use crate::asking::Reply as Said;
use crate::audit::AuditState;
use crate::forward::forward_or_answer;
use crate::http1::LONGEST_HEAD;
use crate::local;
use crate::note::Note;
use crate::prefixed::{Prefixed, Stream};
use crate::request::Target;
use crate::session::{Session, Ways};
use crate::socks::{self, Reply};
use crate::tunnel::{HELLO_PATIENCE, IDLE_PATIENCE, Tunnel};

/// More connections at once have to wait, and fewer if there are fewer descriptors.
const CONNECTIONS: u64 = 1024;
/// Descriptors that are not for connections. Of the others a connection takes two.
const RESERVED: u64 = 128;
/// How long to wait when there are no descriptors.
pub(crate) const BREATH: Duration = Duration::from_millis(50);
/// How long what must not be left half done may take at the end.
const LAST_PATIENCE: Duration = Duration::from_secs(40);
/// How long the end of the broker's thread is waited for. It ends by itself before, unless the system keeps it.
const END_TIMEOUT: Duration = Duration::from_secs(45);
/// What a client of SOCKS says first.
const SOCKS: u8 = 5;

/// Why there is no broker.
#[derive(Debug, thiserror::Error)]
#[error("the broker cannot work: {0}")]
pub struct BrokerError(#[from] io::Error);

/// A broker at work. It ends when it is dropped, and with it all connections.
pub struct Broker {
    stop: Option<oneshot::Sender<()>>,
    /// The broker's thread, and what is closed at its end.
    thread: Option<(JoinHandle<()>, Mutex<Receiver<()>>)>,
    audit: Arc<AuditState>,
}

impl Broker {
    /// Serves whoever comes through a door, and through others that lead to ports of the host's own loopback; and writes
    /// down in a file what happens.
    pub fn open(
        door: Door,
        local: Vec<(u16, Door)>,
        session: Session,
        audit: &Path,
    ) -> Result<Self, BrokerError> {
        session.write_to(audit)?;
        let audit = session.audit_state();
        // One thread: what a request costs is mostly waking somebody, and several threads wake each other.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        let session = Arc::new(session);
        let (ways, listener) = {
            let _inside = runtime.enter();
            let ways = Arc::new(session.ways()?);
            for (port, door) in local {
                tokio::spawn(local::accept(Listener::new(door)?, port, Arc::clone(&ways)));
            }
            (ways, Listener::new(door)?)
        };
        let (running, ended) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("broker".into()).spawn(move || {
            let _running = running;
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, ways) => {}
                    _ = stopped => {}
                }
                // A login that is being refreshed would be lost, and what is still to come would not be counted.
                let _ = timeout(LAST_PATIENCE, session.at_rest()).await;
            });
            // With it go all connections, and each is noted as it goes.
            runtime.shutdown_timeout(Duration::from_secs(1));
        })?;
        Ok(Self { stop: Some(stop), thread: Some((thread, Mutex::new(ended))), audit })
    }

    /// Ends it, and with it all connections. Whether everything is recorded.
    pub fn close(mut self) -> bool {
        self.end() && !self.audit.is_incomplete()
    }

    /// Whether its thread has ended, and with it all that is recorded.
    fn end(&mut self) -> bool {
        drop(self.stop.take());
        let Some((thread, ended)) = self.thread.take() else { return true };
        let ended = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
        join_within(thread, &ended, END_TIMEOUT)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits for a thread whose end closes a channel, but not for longer. Whether it has ended.
fn join_within(thread: JoinHandle<()>, ended: &Receiver<()>, patience: Duration) -> bool {
    let has_ended = ended.recv_timeout(patience) != Err(RecvTimeoutError::Timeout);
    if has_ended {
        let _ = thread.join();
    }
    has_ended
}

pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    fn new(door: Door) -> io::Result<Self> {
        Ok(match door {
            Door::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                Listener::Tcp(TcpListener::from_std(listener)?)
            }
            Door::Unix(listener) => {
                listener.set_nonblocking(true)?;
                Listener::Unix(UnixListener::from_std(listener)?)
            }
        })
    }
}

/// One of the places at the door. A tunnel takes it along.
type Place = Arc<OwnedSemaphorePermit>;

fn places() -> usize {
    let descriptors =
        rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    let places = (descriptors.saturating_sub(RESERVED) / 2).clamp(16, CONNECTIONS);
    usize::try_from(places).unwrap_or(16)
}

async fn accept(listener: Listener, ways: Arc<Ways>) {
    let places = Arc::new(Semaphore::new(places()));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let (ways, place) = (Arc::clone(&ways), Arc::new(place));
        // A client that is gone before it was let in is nobody's concern.
        let taken = match &listener {
            Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                let _ = stream.set_nodelay(true);
                tokio::spawn(serve(stream, ways, place));
            }),
            Listener::Unix(listener) => listener.accept().await.map(|(stream, _)| {
                tokio::spawn(serve(stream, ways, place));
            }),
        };
        if taken.is_err() {
            tokio::time::sleep(BREATH).await;
        }
    }
}

async fn serve(mut stream: impl Stream, ways: Arc<Ways>, place: Place) {
    let mut first = [0];
    let read = timeout(HELLO_PATIENCE, stream.read_exact(&mut first)).await;
    if !matches!(read, Ok(Ok(_))) {
        return;
    }
    let stream = Prefixed::new(first.to_vec(), stream);
    if first == [SOCKS] {
        let _ = serve_socks(stream, ways).await;
        drop(place);
    } else {
        serve_http(stream, ways, place).await;
    }
}

async fn serve_http<S: Stream>(stream: Prefixed<S>, ways: Arc<Ways>, place: Place) {
    let session = Arc::clone(&ways.session);
    let service = hyper::service::service_fn(move |request| {
        let (ways, place) = (Arc::clone(&ways), Arc::clone(&place));
        async move { Ok::<_, std::convert::Infallible>(answer::<S>(ways, request, place).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_PATIENCE)
        .max_buf_size(LONGEST_HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    // Whatever goes wrong was answered, or there is nobody to answer. What is not understood never becomes a request, and is
    // noted here.
    if let Err(error) = served.await
        && (error.is_parse() || error.is_incomplete_message())
    {
        Note::of_no_host(&session, "http").malformed();
    }
}

/// What somebody asks of a proxy: a tunnel to a host and port, or a request for one.
fn asked_for(request: &Request<Incoming>) -> Result<(Host, u16, bool), (String, Refusal)> {
    let authority = request.uri().authority().map(ToString::to_string).unwrap_or_default();
    // A password is nobody's business.
    let (user, place) = authority.rsplit_once('@').unwrap_or(("", &authority));
    let refused = |refusal: Refusal| (place.to_owned(), refusal);
    if !user.is_empty() {
        return Err(refused(Refusal::bad("an address must not hold a user or a password")));
    }
    let ordinary = match (request.method() == Method::CONNECT, request.uri().scheme_str()) {
        (true, None) => None,
        (false, Some("http")) => Some((80, false)),
        (false, Some("https")) => Some((443, true)),
        _ => return Err(refused(Refusal::bad("this is the proxy of a sandbox: ask it for a host"))),
    };
    let (host, port) = parse_authority(place)
        .map_err(|error| refused(Refusal::bad(format!("`{}` is no host: {error}", place.escape_debug()))))?;
    match (port, ordinary) {
        (Some(port), ordinary) => Ok((host, port, ordinary.is_some_and(|(_, secure)| secure))),
        (None, Some((port, secure))) => Ok((host, port, secure)),
        (None, None) => Err(refused(Refusal::bad("a tunnel needs a port"))),
    }
}

/// Answers what is said to a proxy.
async fn answer<S: Stream>(ways: Arc<Ways>, request: Request<Incoming>, place: Place) -> Response<Body> {
    let connect = request.method() == Method::CONNECT;
    let way = if connect { "tunnel" } else { "http" };
    let (host, port, secure) = match asked_for(&request) {
        Ok(asked) => asked,
        Err((text, refusal)) => return refuse(&ways, Note::new(&ways.session, &text, 0, way), &refusal),
    };
    let note = Note::new(&ways.session, &host, port, way);
    let (rule, port_named) = match judge(&ways, &host, port).await {
        Ok(allowed) => allowed,
        Err(refusal) => return refuse(&ways, note, &refusal),
    };
    note.forget();
    if connect {
        return open_tunnel::<S>(ways, Tunnel { host, port, rule, port_named }, request, place).await;
    }
    forward_or_answer(ways, Target::new(secure, host, port), request).await
}

async fn judge(ways: &Ways, host: &Host, port: u16) -> Result<(String, bool), Refusal> {
    let session = &ways.session;
    session.check_audit()?;
    let mut verdict = session.admits(host, port);
    if let Verdict::Denied(Denial::Unlisted { .. }) = verdict
        && session.asking.ask(host, port).await == Said::Yes
    {
        verdict = session.admits(host, port);
    }
    match verdict {
        Verdict::Allowed { rule, port_named } => Ok((rule, port_named)),
        Verdict::Denied(denial) => Err(denial.into()),
    }
}

fn refuse(ways: &Ways, mut note: Note, refusal: &Refusal) -> Response<Body> {
    note.refused(refusal);
    refusal.answer(&ways.session.network)
}

/// The host of a tunnel, if it has to be there before the client speaks.
async fn dial(ways: &Ways, tunnel: &Tunnel, note: &mut Note) -> Result<Option<TcpStream>, Refusal> {
    if !tunnel.needs_connection(ways) {
        return Ok(None);
    }
    note.begin(&tunnel.rule)?;
    ways.upstream.dial(&tunnel.host, tunnel.port).await.map(Some)
}

async fn open_tunnel<S: Stream>(
    ways: Arc<Ways>,
    tunnel: Tunnel,
    request: Request<Incoming>,
    place: Place,
) -> Response<Body> {
    let mut note = Note::new(&ways.session, &tunnel.host, tunnel.port, "tunnel");
    let host = request.headers().get(http::header::HOST);
    let target = Target::new(true, tunnel.host.clone(), tunnel.port);
    if let Some(other) = host.filter(|host| !host.to_str().is_ok_and(|host| target.may_be(host))) {
        let message = format!("the tunnel is for {}, and its host is {other:?}", tunnel.host);
        return refuse(&ways, note, &Refusal::bad(message));
    }
    let upstream = match dial(&ways, &tunnel, &mut note).await {
        Ok(upstream) => upstream,
        Err(refusal) => return refuse(&ways, note, &refusal),
    };
    tokio::spawn(async move {
        // The stream itself, without all that it was wrapped into on its way here.
        let client = hyper::upgrade::on(request).await.map(Upgraded::downcast::<TokioIo<Prefixed<S>>>);
        if let Ok(Ok(Parts { io, read_buf, .. })) = client {
            tunnel.serve(ways, Prefixed::new(read_buf, io.into_inner()), upstream, note).await;
        }
        drop(place);
    });
    Response::new(empty())
}

async fn serve_socks(mut stream: impl Stream, ways: Arc<Ways>) -> io::Result<()> {
    let heard = timeout(HELLO_PATIENCE, socks::hear(&mut stream)).await;
    let Ok(Ok(Some(asked))) = heard else {
        Note::of_no_host(&ways.session, "tunnel").malformed();
        return Ok(());
    };
    let port = asked.port;
    let mut note = Note::new(&ways.session, &asked.text, port, "tunnel");
    let Some(host) = asked.host.filter(|_| port != 0) else {
        note.blocked("bad-request");
        return socks::reply(&mut stream, Reply::UnknownAddress).await;
    };
    let opened = match judge(&ways, &host, port).await {
        Err(refusal) => Err(refusal),
        Ok((rule, port_named)) => {
            let tunnel = Tunnel { host, port, rule, port_named };
            dial(&ways, &tunnel, &mut note).await.map(|upstream| (tunnel, upstream))
        }
    };
    match opened {
        Ok((tunnel, upstream)) => {
            socks::reply(&mut stream, Reply::Done).await?;
            tunnel.serve(ways, stream, upstream, note).await;
            Ok(())
        }
        Err(refusal) => {
            note.refused(&refusal);
            let denied = refusal.status == StatusCode::FORBIDDEN;
            socks::reply(&mut stream, if denied { Reply::NotAllowed } else { Reply::Unreachable }).await
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::join_within;

    #[test]
    fn thread_that_does_not_end_is_not_waited_for() {
        let (running, ended) = channel::<()>();
        let (hold, held) = channel::<()>();
        let stuck = std::thread::spawn(move || {
            let _running = running;
            let _ = held.recv();
        });
        assert!(!join_within(stuck, &ended, Duration::from_millis(10)));
        drop(hold);
        let (running, ended) = channel::<()>();
        assert!(join_within(std::thread::spawn(move || drop(running)), &ended, Duration::MAX));
    }
}
