//! A connection that somebody asked for by host and port: what is said in it decides what becomes of it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use ringfence_core::policy::Host;
use tokio::io::{AsyncWriteExt, copy_bidirectional};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::audit::Outcome;
use crate::forward::{Target, forward_or_answer};
use crate::hello::{Hello, Kind, read_hello};
use crate::prefixed::{Prefixed, Stream};
use crate::session::{Ways, Wish};

/// How long a client may take to say what it wants.
pub(crate) const HELLO_PATIENCE: Duration = Duration::from_secs(10);
/// How long to wait for the first word of a client where the server may speak first.
const FIRST_WORD: Duration = Duration::from_millis(300);
/// Longer headers are refused.
pub(crate) const LONGEST_HEADERS: usize = 64 << 10;

/// A tunnel that the policy allows.
pub(crate) struct Tunnel {
    pub(crate) host: Host,
    pub(crate) port: u16,
    /// The rule that allows it, and whether it names the port.
    pub(crate) rule: String,
    pub(crate) port_named: bool,
}

/// What a tunnel is for.
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
            port if ways.session.looks_into(&self.host, port) => Use::Requests,
            80 => Use::Http,
            443 => Use::Tls,
            _ if self.port_named => Use::Anything,
            _ => Use::Tls,
        }
    }

    /// Whether the host has to be there before the client speaks.
    pub(crate) fn needs_connection(&self, ways: &Ways) -> bool {
        matches!(self.used_for(ways), Use::Tls | Use::Anything)
    }

    /// Serves it to its end. `upstream` is there if it was needed.
    pub(crate) async fn serve(self, ways: Arc<Ways>, client: impl Stream, upstream: Option<TcpStream>) {
        let mut wish = Wish::new(&self.host, self.port, "tunnel");
        let session = Arc::clone(&ways.session);
        match self.run(ways, client, upstream, &mut wish).await {
            // Requests are noted one by one.
            Ok(true) => {}
            Ok(false) => session.note(&wish, Outcome::Allow, &self.rule),
            Err(End::Refused(rule)) => session.note(&wish, Outcome::Block, rule),
            // Whoever has spoken to a host and then hangs up has spoken to it.
            Err(End::Io) if wish.sent + wish.received > 0 => session.note(&wish, Outcome::Allow, &self.rule),
            Err(End::Io) => session.note(&wish, Outcome::Error, "closed"),
        }
    }

    async fn run(
        &self,
        ways: Arc<Ways>,
        mut client: impl Stream,
        upstream: Option<TcpStream>,
        wish: &mut Wish,
    ) -> Result<bool, End> {
        let used_for = self.used_for(&ways);
        if let Use::Http = used_for {
            let target = Target { secure: false, host: self.host.clone(), port: self.port };
            serve_requests(ways, client, target).await?;
            return Ok(true);
        }
        let hello = match used_for {
            Use::Anything => match timeout(FIRST_WORD, read_hello(&mut client)).await {
                Ok(hello) => hello?,
                Err(_) => Hello { bytes: Vec::new(), kind: Kind::Other },
            },
            _ => {
                timeout(HELLO_PATIENCE, read_hello(&mut client)).await.map_err(|_| End::Refused("slow"))??
            }
        };
        let Hello { bytes, kind } = hello;
        let (name, encrypted) = match (kind, &used_for) {
            (Kind::Tls { name, encrypted }, _) => (name, encrypted),
            (Kind::Other, Use::Anything) => {
                return pass_on(client, upstream, &bytes, wish).await.map(|()| false);
            }
            (Kind::Other, _) => return Err(End::Refused("not-tls")),
        };
        self.check_name(name.as_deref())?;
        if matches!(used_for, Use::Requests) || encrypted {
            // A name that is asked for in secret is not known to us either, and so the client learns.
            let accepted = self.terminate(&ways, Prefixed::new(bytes, client)).await?;
            let target = Target { secure: true, host: self.host.clone(), port: self.port };
            serve_requests(ways, accepted, target).await?;
            return Ok(true);
        }
        pass_on(client, upstream, &bytes, wish).await.map(|()| false)
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
    ) -> Result<tokio_rustls::server::TlsStream<impl Stream>, End> {
        let config = ways.session.authority.server(&self.host).map_err(|_| End::Io)?;
        let accepted = timeout(HELLO_PATIENCE, TlsAcceptor::from(config).accept(client)).await;
        Ok(accepted.map_err(|_| End::Refused("slow"))??)
    }
}

enum End {
    Refused(&'static str),
    Io,
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        End::Io
    }
}

async fn pass_on(
    mut client: impl Stream,
    upstream: Option<TcpStream>,
    read_ahead: &[u8],
    wish: &mut Wish,
) -> Result<(), End> {
    let mut upstream = upstream.ok_or(End::Io)?;
    upstream.write_all(read_ahead).await?;
    wish.sent += read_ahead.len() as u64;
    let (sent, received) = copy_bidirectional(&mut client, &mut upstream).await?;
    wish.sent += sent;
    wish.received += received;
    Ok(())
}

/// Serves requests to one host.
async fn serve_requests(ways: Arc<Ways>, client: impl Stream, target: Target) -> Result<(), End> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HELLO_PATIENCE)
        .max_buf_size(LONGEST_HEADERS)
        .half_close(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_header_list_size(u32::try_from(LONGEST_HEADERS).unwrap_or(u32::MAX))
        .max_concurrent_streams(256);
    let service = hyper::service::service_fn(move |request| {
        let (ways, target) = (Arc::clone(&ways), target.clone());
        async move { Ok::<_, std::convert::Infallible>(forward_or_answer(ways, target, request).await) }
    });
    builder.serve_connection_with_upgrades(TokioIo::new(client), service).await.map_err(|_| End::Io)
}
