//! The HTTP API, the events and the pages of an installation.
//!
//! What must not be here: how anything is done. A request becomes a question to the installation ([`desk::House`]), and its
//! answer becomes one of the shapes in `wire`. Whoever may not ask is turned away before ([`access`]).

pub mod access;
mod api;
mod app;
pub mod client;
mod connections;
mod dashboard_name;
mod deeds;
pub mod desk;
mod guard;
mod input;
mod listeners;
mod login_codes;
mod loopback_peer;
mod metrics;
mod owner_token;
mod pages;
mod peer_lookups;
mod problem;
mod rate;
mod revocation;
mod sessions;
mod stream;
mod unix_peer;
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
use ringfence_egress::Announcement;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tower::ServiceExt;

use crate::access::{Access, Peer};
use crate::app::App;
use crate::connections::Connections;
use crate::desk::House;
use crate::guard::From;
use crate::loopback_peer::Ends;
use crate::problem::Problem;

pub use api::openapi;
pub use login_codes::Bearer;
pub use owner_token::{OwnerToken, TokenError};

/// Connections on the Unix socket at once. They do not take the places of TCP connections, nor those theirs.
const MAX_SOCKET_CONNECTIONS: usize = 64;
/// How long a client may take to send the head of a request, and to send the next one.
const HEADER_TIMEOUT: Duration = Duration::from_secs(20);

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
    /// Another program has the address.
    #[error(
        "another program listens on {address} already, perhaps the daemon of another user or installation"
    )]
    Taken {
        /// Which.
        address: SocketAddr,
    },
    /// The network is served only if the owner has set a key for it.
    #[error("{0} can be reached from other machines, and neither API_SECRET nor API_KEYS is set")]
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
            ServerError::Taken { .. } => Some(
                "end that program, or choose another address: `ringfence config set server.listen 127.0.0.1:0` takes a free port",
            ),
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
    /// The daemon's own token.
    pub token: OwnerToken,
    /// Who may do what.
    pub access: Access,
    /// How often somebody may ask in a minute; 0 is no bound.
    pub rate_limit: u32,
}

/// A server whose addresses are taken.
pub struct Server {
    tcp: Vec<std::net::TcpListener>,
    unix: Option<std::os::unix::net::UnixListener>,
    /// Keeps the brokers of all installations from connecting to the TCP listener.
    announcement: Option<Announcement>,
    serving: Serving,
}

impl Server {
    /// Takes the addresses. Nobody is served yet.
    pub fn bind(serving: Serving) -> Result<Self, ServerError> {
        if let Some(address) = serving.listen.filter(|address| !address.ip().is_loopback())
            && !serving.access.has_keys()
        {
            return Err(ServerError::Open(address));
        }
        let wrong = |address: String| move |source| ServerError::Address { address, source };
        let tcp = serving.listen.map(listeners::bind).transpose()?.unwrap_or_default();
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
        let announcement = announce(&tcp)?;
        Ok(Self { tcp, unix, announcement, serving })
    }

    /// Where it listens.
    pub fn address(&self) -> Option<SocketAddr> {
        self.tcp.first().and_then(|listener| listener.local_addr().ok())
    }

    /// Serves for as long as the process lives, on threads of its own.
    pub fn start(self, house: Arc<dyn House>) -> Result<(), ServerError> {
        let Serving { access, token, rate_limit, .. } = self.serving;
        let app = App::new(house, access, token.state().to_owned(), rate_limit)?;
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
            let _announcement = self.announcement;
            runtime.block_on(async {
                let listeners = || -> io::Result<_> {
                    Ok((
                        self.tcp.into_iter().map(TcpListener::from_std).collect::<io::Result<Vec<_>>>()?,
                        self.unix.map(UnixListener::from_std).transpose()?,
                    ))
                };
                match listeners() {
                    Ok((tcp, unix)) => {
                        let _ = ready.send(Ok(()));
                        serve(tcp, unix, router).await;
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

/// No listener has more connections that wait to be accepted.
const MAX_BACKLOG: usize = 1 << 16;

/// Announces a listener, and closes the connections that came before: a broker may have made them.
fn announce(listeners: &[std::net::TcpListener]) -> io::Result<Option<Announcement>> {
    // All of them have the same port.
    let Some(first) = listeners.first() else { return Ok(None) };
    let announcement = Announcement::of(first.local_addr()?.port())?;
    for listener in listeners {
        (0..MAX_BACKLOG).map_while(|_| listener.accept().ok()).for_each(drop);
    }
    Ok(Some(announcement))
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

/// Accepts connections on all listeners.
async fn serve(tcp: Vec<TcpListener>, unix: Option<UnixListener>, router: Router) {
    let connections = Connections::new();
    let tcp = tcp.into_iter().map(|listener| accept_tcp(listener, &connections, &router));
    tokio::join!(accept_unix(unix, &connections, &router), futures_util::future::join_all(tcp));
}

async fn accept_unix(listener: Option<UnixListener>, connections: &Arc<Connections>, router: &Router) {
    let Some(listener) = listener else { return std::future::pending().await };
    let places = Arc::new(Semaphore::new(MAX_SOCKET_CONNECTIONS));
    let owner = rustix::process::geteuid().as_raw();
    loop {
        let place = Arc::clone(&places).acquire_owned().await;
        match listener.accept().await {
            Ok((stream, _)) if stream.peer_cred().is_ok_and(|peer| peer.uid() == owner) => {
                let (connections, router) = (Arc::clone(connections), router.clone());
                tokio::spawn(async move {
                    let looked = tokio::task::spawn_blocking(move || (unix_peer::client(&stream), stream));
                    match looked.await {
                        Ok((Peer::Socket, stream)) => {
                            let client = "socket".into();
                            let from = From { peer: Peer::Socket, client, ends: None, connection: None };
                            serve_connection(stream, from, router).await;
                        }
                        Ok((peer, stream)) => {
                            // A run does not keep the owner's places.
                            drop(place);
                            serve_stranger(stream, (peer, "socket of a run"), &connections, router).await;
                        }
                        Err(_) => {}
                    }
                });
            }
            // Another user, root too unless the daemon is root's, is served as a stranger from the network is.
            Ok((stream, _)) => {
                let (connections, router) = (Arc::clone(connections), router.clone());
                let stranger = (Peer::Elsewhere, "socket of another user");
                tokio::spawn(async move { serve_stranger(stream, stranger, &connections, router).await });
            }
            Err(_) => wait_for_descriptors().await,
        }
    }
}

/// Serves a connection on the Unix socket that the owner did not make.
async fn serve_stranger(
    stream: tokio::net::UnixStream,
    (peer, client): (Peer, &str),
    connections: &Arc<Connections>,
    router: Router,
) {
    let entry = connections.accept();
    let connection = Some(Arc::clone(&entry.0));
    let from = From { peer, client: client.into(), ends: None, connection };
    serve_until_expired(stream, from, router, entry).await;
}

async fn accept_tcp(listener: TcpListener, connections: &Arc<Connections>, router: &Router) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let _ = stream.set_nodelay(true);
                // Of a connection without a descriptor to ask, it cannot be found out whose it is.
                let Ok(ends) = stream.local_addr().and_then(|local| Ends::new(&stream, peer, local)) else {
                    wait_for_descriptors().await;
                    continue;
                };
                let entry = connections.accept();
                let loopback = peer.ip().to_canonical().is_loopback();
                let from = From {
                    peer: if loopback { Peer::Loopback } else { Peer::Elsewhere },
                    client: rate::client(peer.ip()),
                    ends: Some(ends),
                    connection: Some(Arc::clone(&entry.0)),
                };
                tokio::spawn(serve_until_expired(stream, from, router.clone(), entry));
            }
            Err(_) => wait_for_descriptors().await,
        }
    }
}

/// Serves a connection for as long as it may be open without having authenticated, or to its end once it has.
async fn serve_until_expired(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    from: From,
    router: Router,
    entry: connections::Entry,
) {
    tokio::select! {
        () = serve_connection(stream, from, router) => {}
        () = entry.0.expired() => {}
    }
}

/// When there are no descriptors left, there may be some soon.
async fn wait_for_descriptors() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    from: From,
    router: Router,
) {
    let service = hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let mut request: Request = request.map(axum::body::Body::new);
        request.extensions_mut().insert(from.clone());
        router.clone().oneshot(request)
    });
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(64 << 10);
    // A client that goes away in the middle is no error of the server's.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}
