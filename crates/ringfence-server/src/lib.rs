//! The HTTP API, the events and the pages of an installation.
//!
//! What must not be here: how anything is done. A request becomes a question to the installation ([`desk::House`]), and its
//! answer becomes one of the shapes in `wire`. Whoever may not ask is turned away before ([`access`]).

pub mod access;
mod api;
mod app;
pub mod client;
mod deeds;
pub mod desk;
mod guard;
mod input;
mod metrics;
mod pages;
mod peers;
mod problem;
mod rate;
mod sessions;
mod stream;
mod wire;
mod works;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tower::ServiceExt;

use crate::access::{Access, Peer};
use crate::app::App;
use crate::desk::House;
use crate::guard::From;
use crate::problem::Problem;

pub use api::openapi;

/// So many connections at once, as long as there are descriptors for many more: the queue needs some of its own.
const CONNECTIONS: usize = 2048;
const RESERVED: usize = 256;
/// And so many on the Unix socket, whoever else is there.
const OWN: usize = 64;
/// How long somebody may take to say what they want.
const HEADERS: Duration = Duration::from_secs(20);

/// Why nobody can be served.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be had.
    #[error("{address} cannot be listened on: {source}")]
    Address {
        /// Which.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// Nobody but this machine may come in without a key.
    #[error("{0} can be reached by others, and no key and no token is set")]
    Open(SocketAddr),
    /// The server itself cannot be had.
    #[error("the server cannot be started: {0}")]
    Start(#[from] io::Error),
}

impl ServerError {
    /// What to do about it.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            ServerError::Open(_) => Some("set API_SECRET or API_KEYS, or listen on 127.0.0.1"),
            ServerError::Address { .. } => {
                Some("choose another address: `--listen 127.0.0.1:0` takes a free one")
            }
            ServerError::Start(_) => None,
        }
    }
}

/// How to serve.
pub struct Serving {
    /// The address, unless nobody is to be served there.
    pub listen: Option<SocketAddr>,
    /// The Unix socket.
    pub socket: PathBuf,
    /// Who may do what.
    pub access: Access,
    /// How often somebody may ask in a minute; 0 is no bound.
    pub rate_limit: u32,
}

/// A server whose addresses are taken.
pub struct Server {
    tcp: Option<std::net::TcpListener>,
    unix: Option<std::os::unix::net::UnixListener>,
    serving: Serving,
}

impl Server {
    /// Takes the addresses. Nobody is served yet.
    pub fn bind(serving: Serving) -> Result<Self, ServerError> {
        if let Some(address) = serving.listen.filter(|address| !address.ip().is_loopback())
            && !serving.access.is_guarded()
        {
            return Err(ServerError::Open(address));
        }
        let wrong = |address: String| move |source| ServerError::Address { address, source };
        let tcp = serving
            .listen
            .map(|address| std::net::TcpListener::bind(address).map_err(wrong(address.to_string())))
            .transpose()?;
        let unix = match bind_socket(&serving.socket) {
            // The kernel takes no longer names; the address is there all the same.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                tracing::warn!(path = %serving.socket.display(), "the path of the Unix socket is too long, so there is none");
                None
            }
            bound => Some(bound.map_err(wrong(serving.socket.display().to_string()))?),
        };
        tcp.iter().try_for_each(|listener| listener.set_nonblocking(true))?;
        unix.iter().try_for_each(|listener| listener.set_nonblocking(true))?;
        Ok(Self { tcp, unix, serving })
    }

    /// Where it listens.
    pub fn address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// Serves for as long as the process lives, on threads of its own.
    pub fn start(self, house: Arc<dyn House>) -> Result<(), ServerError> {
        let own_alone = !self.serving.access.is_guarded();
        let app = App::new(house, self.serving.access, self.serving.rate_limit)?;
        let router = router(app);
        let (ready, told) = std::sync::mpsc::channel();
        std::thread::Builder::new().name("server".into()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .max_blocking_threads(64)
                .thread_name("server")
                .enable_all()
                .build();
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => return ready.send(Err(error)).unwrap_or(()),
            };
            runtime.block_on(async {
                let listeners = || -> io::Result<_> {
                    Ok((
                        self.tcp.map(TcpListener::from_std).transpose()?,
                        self.unix.map(UnixListener::from_std).transpose()?,
                    ))
                };
                match listeners() {
                    Ok((tcp, unix)) => {
                        let _ = ready.send(Ok(()));
                        serve(tcp, unix, own_alone, router).await;
                    }
                    Err(error) => {
                        let _ = ready.send(Err(error));
                    }
                }
            });
        })?;
        told.recv().unwrap_or_else(|_| Err(io::Error::other("it ended at once")))?;
        Ok(())
    }
}

/// The socket of the command line: for its owner alone, in a directory that is the owner's alone.
fn bind_socket(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    use std::os::unix::fs::PermissionsExt;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = std::os::unix::net::UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

fn router(app: App) -> Router {
    let (api, _) = api::router();
    api.merge(pages::router())
        .fallback(|| async { Problem::not_found("there is no such page") })
        .method_not_allowed_fallback(|| async {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "that cannot be done here")
        })
        .layer(from_fn_with_state(app.clone(), guard::guard))
        .with_state(app)
}

/// Takes connections from both sides.
async fn serve(tcp: Option<TcpListener>, unix: Option<UnixListener>, own_alone: bool, router: Router) {
    let (places, own) = (Arc::new(Semaphore::new(connections())), Arc::new(Semaphore::new(OWN)));
    let from_socket = async {
        let Some(unix) = unix else { return std::future::pending().await };
        loop {
            let place = Arc::clone(&own).acquire_owned().await;
            match unix.accept().await {
                Ok((stream, _)) => {
                    let from = From { peer: Peer::Socket, client: "socket".into() };
                    tokio::spawn(connection(stream, from, router.clone(), place.ok()));
                }
                Err(_) => breathe().await,
            }
        }
    };
    let from_network = async {
        let Some(tcp) = tcp else { return std::future::pending().await };
        loop {
            let place = Arc::clone(&places).acquire_owned().await;
            match tcp.accept().await {
                Ok((stream, address)) => {
                    let _ = stream.set_nodelay(true);
                    let loopback = address.ip().to_canonical().is_loopback();
                    // Loopback is everybody's on this machine; the daemon is its owner's.
                    let ours = || {
                        !own_alone || stream.local_addr().is_ok_and(|local| peers::is_ours(address, local))
                    };
                    let peer = if loopback && ours() { Peer::Loopback } else { Peer::Elsewhere };
                    let from = From { peer, client: rate::client(address.ip()) };
                    tokio::spawn(connection(stream, from, router.clone(), place.ok()));
                }
                Err(_) => breathe().await,
            }
        }
    };
    tokio::join!(from_socket, from_network);
}

/// So many connections may be open at once.
fn connections() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    limit.saturating_sub(RESERVED).clamp(16, CONNECTIONS)
}

/// When there are no descriptors left, there may be some soon.
async fn breathe() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    from: From,
    router: Router,
    _place: Option<tokio::sync::OwnedSemaphorePermit>,
) {
    let service = hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let mut request: Request = request.map(axum::body::Body::new);
        request.extensions_mut().insert(from.clone());
        router.clone().oneshot(request)
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADERS).max_buf_size(64 << 10);
    // Who goes away in the middle is no error of ours.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}
