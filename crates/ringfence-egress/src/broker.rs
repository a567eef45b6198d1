//! The broker at its door: who comes in, and what they want.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use ringfence_core::backend::Door;
use ringfence_core::policy::{Denial, Host, Verdict, parse_authority};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use crate::answer::{Body, Refusal, empty};
use crate::asking::Reply as Said;
use crate::audit::Outcome;
use crate::forward::{Target, forward_or_answer};
use crate::prefixed::{Prefixed, Stream};
use crate::session::{Session, Ways, Wish};
use crate::socks::{self, Reply};
use crate::tunnel::{HELLO_PATIENCE, LONGEST_HEADERS, Tunnel};

/// More connections at once have to wait.
const CONNECTIONS: usize = 4096;
/// What a client of SOCKS says first.
const SOCKS: u8 = 5;

/// Why there is no broker.
#[derive(Debug, thiserror::Error)]
#[error("the broker cannot work: {0}")]
pub struct BrokerError(#[from] io::Error);

/// A broker at work. It ends when it is dropped, and with it all connections.
pub struct Broker {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Broker {
    /// Serves whoever comes through a door, and writes down in a file what happens.
    pub fn open(door: Door, session: Session, audit: &Path) -> Result<Self, BrokerError> {
        session.write_to(audit)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("broker")
            .enable_all()
            .build()?;
        let (stop, stopped) = oneshot::channel();
        let ways = {
            let _inside = runtime.enter();
            Arc::new(Arc::new(session).ways()?)
        };
        let listener = {
            let _inside = runtime.enter();
            Listener::new(door)?
        };
        let thread = std::thread::Builder::new().name("broker".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, ways) => {}
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

enum Listener {
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

async fn accept(listener: Listener, ways: Arc<Ways>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let ways = Arc::clone(&ways);
        // A client that is gone before it was let in is nobody's concern.
        match &listener {
            Listener::Tcp(listener) => {
                if let Ok((stream, _)) = listener.accept().await {
                    let _ = stream.set_nodelay(true);
                    tokio::spawn(async move {
                        serve(stream, ways).await;
                        drop(place);
                    });
                }
            }
            Listener::Unix(listener) => {
                if let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(async move {
                        serve(stream, ways).await;
                        drop(place);
                    });
                }
            }
        }
    }
}

async fn serve(mut stream: impl Stream, ways: Arc<Ways>) {
    let mut first = [0];
    let read = timeout(HELLO_PATIENCE, stream.read_exact(&mut first)).await;
    if !matches!(read, Ok(Ok(_))) {
        return;
    }
    let stream = Prefixed::new(first.to_vec(), stream);
    if first == [SOCKS] {
        let _ = serve_socks(stream, ways).await;
    } else {
        serve_http(stream, ways).await;
    }
}

async fn serve_http(stream: impl Stream, ways: Arc<Ways>) {
    let service = hyper::service::service_fn(move |request| {
        let ways = Arc::clone(&ways);
        async move { Ok::<_, std::convert::Infallible>(answer(ways, request).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HELLO_PATIENCE)
        .max_buf_size(LONGEST_HEADERS)
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    // Whatever goes wrong was answered, or there is nobody to answer.
    let _ = served.await;
}

/// Answers what is said to a proxy.
async fn answer(ways: Arc<Ways>, request: Request<Incoming>) -> Response<Body> {
    let authority = request.uri().authority().map(ToString::to_string).unwrap_or_default();
    let connect = request.method() == Method::CONNECT;
    let secure = match request.uri().scheme_str() {
        None if connect => false,
        Some("http") => false,
        Some("https") => true,
        _ => {
            let refusal = Refusal::bad("this is the proxy of a sandbox: ask it for a host");
            return refuse(&ways, &Wish::new(&"", 0, "http"), &refusal);
        }
    };
    let (host, port) = match parse_authority(&authority) {
        Ok((host, port)) => (host, port),
        Err(error) => {
            let refusal = Refusal::bad(format!("`{}` is no host: {error}", authority.escape_debug()));
            return refuse(&ways, &Wish::new(&authority, 0, "http"), &refusal);
        }
    };
    let Some(port) = port.or(match (connect, secure) {
        (true, _) => None,
        (_, true) => Some(443),
        (_, false) => Some(80),
    }) else {
        return refuse(&ways, &Wish::new(&host, 0, "tunnel"), &Refusal::bad("a tunnel needs a port"));
    };
    let way = if connect { "tunnel" } else { "http" };
    let (rule, port_named) = match judge(&ways, &host, port).await {
        Ok(allowed) => allowed,
        Err(refusal) => return refuse(&ways, &Wish::new(&host, port, way), &refusal),
    };
    if connect {
        return open_tunnel(ways, Tunnel { host, port, rule, port_named }, request).await;
    }
    forward_or_answer(ways, Target { secure, host, port }, request).await
}

async fn judge(ways: &Ways, host: &Host, port: u16) -> Result<(String, bool), Refusal> {
    let session = &ways.session;
    let mut verdict = session.judge(host, port);
    if let Verdict::Denied(Denial::Unlisted { .. }) = verdict
        && session.asking.ask(host, port).await == Said::Yes
    {
        verdict = session.judge(host, port);
    }
    match verdict {
        Verdict::Allowed { rule, port_named } => Ok((rule, port_named)),
        Verdict::Denied(denial) => Err(denial.into()),
    }
}

fn refuse(ways: &Ways, wish: &Wish, refusal: &Refusal) -> Response<Body> {
    let outcome = match refusal.status {
        StatusCode::BAD_REQUEST => Outcome::Block,
        StatusCode::FORBIDDEN => Outcome::Deny,
        _ => Outcome::Error,
    };
    ways.session.note(wish, outcome, refusal.rule);
    refusal.answer(&ways.session.network)
}

async fn open_tunnel(ways: Arc<Ways>, tunnel: Tunnel, request: Request<Incoming>) -> Response<Body> {
    let host = request.headers().get(http::header::HOST);
    let target = Target { secure: true, host: tunnel.host.clone(), port: tunnel.port };
    if let Some(other) = host.filter(|host| !host.to_str().is_ok_and(|host| target.may_be(host))) {
        let message = format!("the tunnel is for {}, and its host is {other:?}", tunnel.host);
        let refusal = Refusal::bad(message);
        return refuse(&ways, &Wish::new(&tunnel.host, tunnel.port, "tunnel"), &refusal);
    }
    let upstream = match tunnel.needs_connection(&ways) {
        false => None,
        true => match ways.upstream.dial(&tunnel.host, tunnel.port).await {
            Ok(upstream) => Some(upstream),
            Err(refusal) => {
                return refuse(&ways, &Wish::new(&tunnel.host, tunnel.port, "tunnel"), &refusal);
            }
        },
    };
    tokio::spawn(async move {
        if let Ok(client) = hyper::upgrade::on(request).await {
            tunnel.serve(ways, TokioIo::new(client), upstream).await;
        }
    });
    Response::new(empty())
}

async fn serve_socks(mut stream: impl Stream, ways: Arc<Ways>) -> io::Result<()> {
    let heard = timeout(HELLO_PATIENCE, socks::hear(&mut stream)).await;
    let Ok(Ok(Some(asked))) = heard else { return Ok(()) };
    let port = asked.port;
    let Some(host) = asked.host.filter(|_| port != 0) else {
        ways.session.note(
            &Wish::new(&asked.text.escape_debug(), port, "tunnel"),
            Outcome::Block,
            "bad-request",
        );
        return socks::reply(&mut stream, Reply::UnknownAddress).await;
    };
    let wish = Wish::new(&host, port, "tunnel");
    let (rule, port_named) = match judge(&ways, &host, port).await {
        Ok(allowed) => allowed,
        Err(refusal) => {
            refuse(&ways, &wish, &refusal);
            return socks::reply(&mut stream, Reply::NotAllowed).await;
        }
    };
    let tunnel = Tunnel { host, port, rule, port_named };
    let upstream = match tunnel.needs_connection(&ways) {
        false => None,
        true => match ways.upstream.dial(&tunnel.host, port).await {
            Ok(upstream) => Some(upstream),
            Err(refusal) => {
                refuse(&ways, &wish, &refusal);
                let denied = refusal.status == StatusCode::FORBIDDEN;
                return socks::reply(
                    &mut stream,
                    if denied { Reply::NotAllowed } else { Reply::Unreachable },
                )
                .await;
            }
        },
    };
    socks::reply(&mut stream, Reply::Done).await?;
    tunnel.serve(ways, stream, upstream).await;
    Ok(())
}
