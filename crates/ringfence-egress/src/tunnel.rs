//! A connection that somebody asked for by host and port: what is said in it decides what becomes of it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use ringfence_core::policy::Host;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::forward::forward_or_answer;
use crate::hello::{Kind, read_hello};
use crate::note::{Counted, Note};
use crate::prefixed::{Prefixed, Stream};
use crate::relay::relay;
use crate::request::Target;
use crate::session::Ways;

/// How long a client may take to say what it wants.
pub(crate) const HELLO_PATIENCE: Duration = Duration::from_secs(10);
/// How long a connection may say nothing between requests. Agents think for minutes.
pub(crate) const IDLE_PATIENCE: Duration = Duration::from_secs(600);

/// Streams of one connection at once.
pub(crate) const MAX_STREAMS: u32 = 32;
/// Bytes of the headers of one request, as HTTP/2 counts them: in memory they are a multiple.
const MAX_HEADER_LIST_BYTES: u32 = 32 << 10;
/// Bytes of an answer that are held for a client that does not read, for each stream.
const STREAM_BUFFER: usize = 32 << 10;
/// Bytes of requests that are held for a host that does not take them: for each stream, and for each connection.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 256 << 10;

/// A tunnel that the policy allows.
pub(crate) struct Tunnel {
    pub(crate) host: Host,
    pub(crate) port: u16,
    /// The rule that allows it, and whether it names the port.
    pub(crate) rule: String,
    pub(crate) port_named: bool,
}

/// What a tunnel is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Requests are looked at.
    Requests,
    /// TLS that is passed on.
    Tls,
    /// Requests in the clear.
    Http,
    /// Whatever it is: the rule names the port.
    Anything,
}

impl Tunnel {
    fn used_for(&self, ways: &Ways) -> Use {
        match self.port {
            port if ways.session.concerns(&self.host, port) => Use::Requests,
            80 => Use::Http,
            port if ways.session.looks_into(&self.host, port) => Use::Requests,
            443 => Use::Tls,
            _ if self.port_named => Use::Anything,
            _ => Use::Tls,
        }
    }

    /// Whether the host has to be there before the client speaks.
    pub(crate) fn needs_connection(&self, ways: &Ways) -> bool {
        matches!(self.used_for(ways), Use::Tls | Use::Anything)
    }

    /// Serves it to its end. `upstream` is there if it was needed, and then the begin is recorded.
    pub(crate) async fn serve(
        self,
        ways: Arc<Ways>,
        client: impl Stream,
        upstream: Option<TcpStream>,
        mut note: Note,
    ) {
        match self.run(ways, client, upstream, &mut note).await {
            // Requests are noted one by one.
            Ok(Served::Requests) => note.forget(),
            Ok(Served::Bytes) => {}
            Err(End::Refused(rule)) => note.blocked(rule),
            Err(End::Io) => note.broke_off(&self.rule),
        }
    }

    async fn run(
        &self,
        ways: Arc<Ways>,
        mut client: impl Stream,
        upstream: Option<TcpStream>,
        note: &mut Note,
    ) -> Result<Served, End> {
        let used_for = self.used_for(&ways);
        if used_for == Use::Http {
            relay(ways, client, self.target(false)).await;
            return Ok(Served::Requests);
        }
        let mut upstream = upstream.map(|upstream| Counted::new(upstream, note));
        let mut bytes = Vec::new();
        let kind = match (&mut upstream, used_for) {
            (Some(upstream), Use::Anything) => first_word(&mut client, upstream, &mut bytes).await?,
            _ => {
                let hello = timeout(HELLO_PATIENCE, read_hello(&mut client, &mut bytes)).await;
                hello.map_err(|_| End::Refused("slow"))?.map_err(|error| End::of_hello(&error))?
            }
        };
        let encrypted = match kind {
            Kind::Tls { name, encrypted } => {
                self.check_name(name.as_deref())?;
                encrypted
            }
            Kind::Other if used_for == Use::Anything => false,
            Kind::Other => return Err(End::Refused("not-tls")),
        };
        if used_for == Use::Requests || encrypted {
            note.allowed(&self.rule);
            // A name that is asked for in secret is not known to us either, and so the client learns.
            let place = Arc::clone(&ways.session.http2_connections).try_acquire_owned().ok();
            let accepted = self.terminate(&ways, Prefixed::new(bytes, client), place.is_some()).await?;
            match (accepted.get_ref().1.alpn_protocol(), place) {
                (Some(b"h2"), Some(_place)) => serve_http2(ways, accepted, self.target(true)).await,
                (_, place) => {
                    drop(place);
                    relay(ways, accepted, self.target(true)).await;
                }
            }
            return Ok(Served::Requests);
        }
        let mut upstream = upstream.ok_or(End::Io)?;
        note.allowed(&self.rule);
        upstream.write_all(&bytes).await?;
        copy_bidirectional(&mut client, &mut upstream).await?;
        Ok(Served::Bytes)
    }

    fn target(&self, secure: bool) -> Target {
        Target::new(secure, self.host.clone(), self.port)
    }

    /// The name in TLS is the host of the tunnel; an address has none.
    fn check_name(&self, name: Option<&str>) -> Result<(), End> {
        let same = match (&self.host, name) {
            (Host::Name(_), Some(name)) => name.parse::<Host>().is_ok_and(|name| name == self.host),
            (Host::Name(_), None) => false,
            (Host::Address(_), name) => name.is_none(),
        };
        if same { Ok(()) } else { Err(End::Refused("sni-mismatch")) }
    }

    async fn terminate(
        &self,
        ways: &Ways,
        client: impl Stream,
        speaks_http2: bool,
    ) -> Result<tokio_rustls::server::TlsStream<impl Stream>, End> {
        let config = ways.session.authority.server(&self.host, speaks_http2).map_err(|_| End::Io)?;
        let accepted = timeout(HELLO_PATIENCE, TlsAcceptor::from(config).accept(client)).await;
        Ok(accepted.map_err(|_| End::Refused("slow"))??)
    }
}

/// How a tunnel was served.
enum Served {
    Requests,
    Bytes,
}

enum End {
    Refused(&'static str),
    Io,
}

impl End {
    /// Of a first message that was not understood, or did not come.
    fn of_hello(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::InvalidData => End::Refused("malformed-tls"),
            _ => End::Io,
        }
    }
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        End::Io
    }
}

/// The first word of a client. If the host speaks first, the client hears it meanwhile.
async fn first_word(
    client: &mut impl Stream,
    upstream: &mut (impl AsyncReadExt + Unpin),
    bytes: &mut Vec<u8>,
) -> Result<Kind, End> {
    let mut heard = vec![0; 16 << 10];
    loop {
        tokio::select! {
            kind = read_hello(client, bytes) => return kind.map_err(|error| End::of_hello(&error)),
            count = upstream.read(&mut heard) => match count? {
                0 => return Err(End::Io),
                count => client.write_all(&heard[..count]).await?,
            },
        }
    }
}

/// Serves requests by HTTP/2 to one host.
async fn serve_http2(ways: Arc<Ways>, client: impl Stream, target: Target) {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        // What a client does not read, and what a host does not take, is held here.
        .max_send_buf_size(STREAM_BUFFER)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(MAX_STREAMS);
    let note = target.note(&ways.session);
    let any = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&any);
    let service = hyper::service::service_fn(move |request| {
        asked.store(true, Ordering::Relaxed);
        let (ways, target) = (Arc::clone(&ways), target.clone());
        async move { Ok::<_, std::convert::Infallible>(forward_or_answer(ways, target, request).await) }
    });
    let served = builder.serve_connection(TokioIo::new(client), service).await;
    // Each request was noted by itself, however the connection ends. What never became one is noted here.
    if served.is_ok() || any.load(Ordering::Relaxed) {
        note.forget();
    }
}
