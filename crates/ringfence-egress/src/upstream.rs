//! The way to a host: its addresses are asked for here, judged, and dialled as they were judged.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use http::{StatusCode, Uri};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use ringfence_core::policy::{Denial, Host, Network, parse_authority};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::answer::Refusal;
use crate::daemon::{DaemonAddress, is_of_this_machine};
use crate::request::{Target, ordinary_port};
use crate::session::system_bundle;

/// How long a host may take to answer a call.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
/// How long a name may take.
const RESOLVE_PATIENCE: Duration = Duration::from_secs(10);

/// The addresses that a name is said to have.
pub type Answer<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;

/// Whoever knows the addresses of names.
pub trait Resolve: Send + Sync {
    /// The addresses of a name.
    fn resolve<'a>(&'a self, name: &'a str) -> Answer<'a>;
}

/// The resolver of the machine, without the machine's C library: the binary is static.
struct System(TokioResolver);

impl Resolve for System {
    fn resolve<'a>(&'a self, name: &'a str) -> Answer<'a> {
        Box::pin(async move {
            // With a dot at its end a name is whole, and no search list is tried.
            let found = self.0.lookup_ip(format!("{name}.")).await.map_err(io::Error::other)?;
            Ok(found.iter().collect())
        })
    }
}

/// Hosts whose address a person has given, such as a gateway of a company. They are not asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConnectTo(BTreeMap<(Host, u16), SocketAddr>);

/// Why a text gives no address.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` gives no address for a host; write `example.com:443=10.0.0.5:8443`, several with commas")]
pub struct BadConnectTo(String);

impl FromStr for ConnectTo {
    type Err = BadConnectTo;
    fn from_str(text: &str) -> Result<Self, BadConnectTo> {
        let pair = |part: &str| {
            let (host, address) = part.trim().split_once('=')?;
            let (host, port) = parse_authority(host).ok()?;
            Some(((host, port?), address.parse().ok()?))
        };
        let parts = text.split(',').filter(|part| !part.trim().is_empty());
        let pairs = parts.map(|part| pair(part).ok_or_else(|| BadConnectTo(part.to_owned())));
        pairs.collect::<Result<_, _>>().map(Self)
    }
}

/// The way to hosts.
pub(crate) struct Upstream {
    network: Network,
    connect_to: ConnectTo,
    resolver: Arc<dyn Resolve>,
    /// Whether names may stand for addresses that are not public.
    inward: bool,
    /// The daemon, which is never dialled for a run.
    daemon: Option<DaemonAddress>,
    /// Whether an address is one of this machine.
    is_own: fn(IpAddr) -> bool,
}

/// An address that may be dialled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Allowed {
    address: SocketAddr,
    /// Whether it is one of this machine.
    is_own: bool,
}

impl Upstream {
    pub(crate) fn new(
        network: Network,
        connect_to: ConnectTo,
        resolver: Option<Arc<dyn Resolve>>,
    ) -> io::Result<Self> {
        let resolver = match resolver {
            Some(resolver) => resolver,
            None => Arc::new(System(
                TokioResolver::builder_tokio().and_then(|b| b.build()).map_err(io::Error::other)?,
            )),
        };
        Ok(Self { network, connect_to, resolver, inward: false, daemon: None, is_own: is_of_this_machine })
    }

    /// The same for hosts that a person has named, and no run: they may be of the person's own network. Where machines ask
    /// for their own secrets is not for them either.
    pub(crate) fn inward(self) -> Self {
        Self { inward: true, ..self }
    }

    /// The same, but never to this daemon.
    pub(crate) fn without(self, daemon: Option<DaemonAddress>) -> Self {
        Self { daemon, ..self }
    }

    /// Refuses the daemon's address, by whatever name or rule it was found.
    async fn refuse_daemon(&self, Allowed { address, is_own }: Allowed) -> Result<(), Refusal> {
        match self.daemon.as_ref().filter(|_| is_own) {
            Some(daemon) => daemon.refuse(address).await,
            None => Ok(()),
        }
    }

    /// A connection to a host that the policy allows, at an address that it allows.
    pub(crate) async fn dial(&self, host: &Host, port: u16) -> Result<TcpStream, Refusal> {
        let mut last = None;
        for allowed in self.addresses(host, port).await? {
            self.refuse_daemon(allowed).await?;
            match timeout(CONNECT_PATIENCE, TcpStream::connect(allowed.address)).await {
                Ok(Ok(stream)) => {
                    // It may have been started just then.
                    self.refuse_daemon(allowed).await?;
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Ok(Err(error)) => last = Some(format!("{host}:{port} cannot be reached: {error}")),
                Err(_) => last = Some(format!("{host}:{port} does not answer")),
            }
        }
        Err(Refusal::unreachable(last.unwrap_or_else(|| format!("{host} has no address"))))
    }

    async fn addresses(&self, host: &Host, port: u16) -> Result<Vec<Allowed>, Refusal> {
        let allowed = |address: SocketAddr| Allowed { address, is_own: (self.is_own)(address.ip()) };
        if let Some(given) = self.connect_to.0.get(&(host.clone(), port)) {
            return Ok(vec![allowed(*given)]);
        }
        let found = match host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => match timeout(RESOLVE_PATIENCE, self.resolver.resolve(name)).await {
                Ok(Ok(found)) => found,
                Ok(Err(_)) => return Err(Refusal::unreachable(format!("{host} has no address"))),
                Err(_) => {
                    let message = format!("nobody tells the address of {host}");
                    return Err(Refusal::new(StatusCode::GATEWAY_TIMEOUT, "unreachable", message));
                }
            },
        };
        let (mut accepted, mut denied) = (Vec::new(), None);
        for address in found {
            let found = SocketAddr::new(address.to_canonical(), port);
            match self.network.judge_address(host, address, port) {
                Err(_) if self.inward && !is_link_local(address) => accepted.push(allowed(found)),
                Ok(()) => match allowed(found) {
                    Allowed { is_own: true, .. } if !self.may_be_own(host, found) => {
                        denied = Some(Denial::Private { host: host.clone(), address: found.ip() });
                    }
                    allowed => accepted.push(allowed),
                },
                Err(denial) => denied = Some(denial),
            }
        }
        match denied {
            Some(denial) if accepted.is_empty() => Err(denial.into()),
            _ => Ok(accepted),
        }
    }

    /// Whether a host may be at this address of this machine: services of the machine are reached by its public addresses as by
    /// others, so the address itself has to be named.
    fn may_be_own(&self, host: &Host, found: SocketAddr) -> bool {
        let itself = Host::Address(found.ip());
        self.inward
            || *host == itself
            || self.network.allow.iter().any(|rule| rule.matches(&itself, found.port()))
            || binds_foreign_addresses(found.ip())
    }
}

/// Whether sockets can be bound to addresses that no machine has, as with `net.ipv4.ip_nonlocal_bind`: then that one can be bound to an
/// address does not tell that it is of this machine.
fn binds_foreign_addresses(like: IpAddr) -> bool {
    let foreign: IpAddr = match like {
        IpAddr::V4(_) => Ipv4Addr::new(192, 0, 2, 1).into(),
        IpAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    };
    std::net::UdpSocket::bind((foreign, 0)).is_ok()
}

fn is_link_local(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// How to speak TLS to hosts, once somebody wants to: reading all authorities of a machine takes longer than starting a
/// sandbox.
pub(crate) struct Tls {
    more: Vec<String>,
    /// For any protocol, and for HTTP/1.1 alone.
    made: OnceLock<[Arc<ClientConfig>; 2]>,
}

/// Which protocols may be agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocols {
    Any,
    First,
}

impl Tls {
    /// With the authorities of the machine, and more, which have to be readable.
    pub(crate) fn new(more: Vec<String>) -> io::Result<Self> {
        let mut roots = RootCertStore::empty();
        more.iter().try_for_each(|pem| add(&mut roots, pem))?;
        Ok(Self { more, made: OnceLock::new() })
    }

    /// The certificates of the authorities besides the machine's.
    pub(crate) fn more(&self) -> String {
        self.more.concat()
    }

    fn config(&self, protocols: Protocols) -> io::Result<Arc<ClientConfig>> {
        if self.made.get().is_none() {
            let _ = self.made.set(self.make()?);
        }
        let made = self.made.get().ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::clone(&made[usize::from(protocols == Protocols::First)]))
    }

    fn make(&self) -> io::Result<[Arc<ClientConfig>; 2]> {
        let mut roots = RootCertStore::empty();
        match system_bundle() {
            Some((_, pem)) => {
                let certificates = CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok);
                roots.add_parsable_certificates(certificates);
            }
            None => drop(roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs)),
        }
        self.more.iter().try_for_each(|pem| add(&mut roots, pem))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let mut first = config.clone();
        first.alpn_protocols.remove(0);
        Ok([Arc::new(config), Arc::new(first)])
    }
}

/// How ringfence itself speaks TLS: with the authorities of the machine, and more.
pub fn tls_config(more: &[String]) -> io::Result<Arc<ClientConfig>> {
    Tls::new(more.to_vec())?.config(Protocols::First)
}

fn add(roots: &mut RootCertStore, pem: &str) -> io::Result<()> {
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        roots.add(certificate.map_err(io::Error::other)?).map_err(io::Error::other)?;
    }
    Ok(())
}

/// Makes connections, for pools and for others.
#[derive(Clone)]
pub(crate) struct Connector {
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) tls: Arc<Tls>,
    pub(crate) protocols: Protocols,
}

/// What went wrong on the way, kept for the answer.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.message)]
pub(crate) struct NoWay(pub(crate) Refusal);

/// What went wrong on the way, if that is what went wrong.
pub(crate) fn no_way(error: &hyper_util::client::legacy::Error) -> Option<&Refusal> {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if let Some(NoWay(refusal)) = cause.downcast_ref() {
            return Some(refusal);
        }
        source = cause.source();
    }
    None
}

impl tower_service::Service<Uri> for Connector {
    type Response = TokioIo<Wire>;
    type Error = NoWay;
    type Future = Pin<Box<dyn Future<Output = Result<TokioIo<Wire>, NoWay>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), NoWay>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let target = target(&uri).map_err(NoWay)?;
            this.open(&target).await.map(TokioIo::new).map_err(NoWay)
        })
    }
}

fn target(uri: &Uri) -> Result<Target, Refusal> {
    let secure = uri.scheme_str() == Some("https");
    let authority = uri.authority().map(http::uri::Authority::as_str).unwrap_or_default();
    let (host, port) = parse_authority(authority).map_err(|error| Refusal::bad(error.to_string()))?;
    Ok(Target::new(secure, host, port.unwrap_or(ordinary_port(secure))))
}

impl Connector {
    /// A connection to a host that the policy allows.
    pub(crate) async fn open(&self, target: &Target) -> Result<Wire, Refusal> {
        let host = &target.host;
        let stream = self.upstream.dial(host, target.port).await?;
        if !target.secure {
            return Ok(Wire::Plain(stream));
        }
        let name = match host {
            Host::Name(name) => ServerName::try_from(name.clone()).ok(),
            Host::Address(address) => Some(ServerName::from(*address)),
        };
        let name = name.ok_or_else(|| Refusal::bad(format!("{host} is no name for TLS")))?;
        let config = self.tls.config(self.protocols);
        let config = config.map_err(|error| Refusal::unreachable(format!("there is no TLS: {error}")))?;
        let connector = TlsConnector::from(config);
        match timeout(CONNECT_PATIENCE, connector.connect(name, stream)).await {
            Ok(Ok(stream)) => Ok(Wire::Tls(Box::new(stream))),
            Ok(Err(error)) => Err(Refusal::unreachable(format!("no TLS with {host}: {error}"))),
            Err(_) => Err(Refusal::unreachable(format!("{host} does not finish its handshake"))),
        }
    }
}

/// A connection to a host.
pub(crate) enum Wire {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection for Wire {
    fn connected(&self) -> Connected {
        match self {
            Wire::Tls(stream) if stream.get_ref().1.alpn_protocol() == Some(b"h2") => {
                Connected::new().negotiated_h2()
            }
            _ => Connected::new(),
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Wire::Tls(stream) => Pin::new(&mut **stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Wire::Tls(stream) => Pin::new(&mut **stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Wire::Tls(stream) => Pin::new(&mut **stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Wire::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Wire::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Arc;

    use ringfence_core::policy::{Network, NetworkMode};

    use super::{Answer, ConnectTo, Resolve, Upstream};

    const OWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(93, 184, 216, 34));

    struct Fixed;

    impl Resolve for Fixed {
        fn resolve<'a>(&'a self, _: &'a str) -> Answer<'a> {
            Box::pin(async { Ok(vec![OWN]) })
        }
    }

    /// The services of a machine are at its public address, too.
    #[tokio::test]
    async fn name_at_own_public_address_needs_the_address_named() {
        for (allow, host, is_own, expected) in [
            (&["good.test"][..], "good.test", true, false),
            (&["good.test"], "good.test", false, true),
            (&["good.test", "93.184.216.34"], "good.test", true, true),
            (&["93.184.216.34"], "93.184.216.34", true, true),
        ] {
            let allow = allow.iter().map(|rule| rule.parse().unwrap()).collect();
            let network =
                Network { mode: NetworkMode::Allow, allow, deny: Vec::new(), ask: false, local: Vec::new() };
            let mut upstream = Upstream::new(network, ConnectTo::default(), Some(Arc::new(Fixed))).unwrap();
            upstream.is_own = if is_own { |_| true } else { |_| false };
            let found = upstream.addresses(&host.parse().unwrap(), 443).await;
            assert_eq!(found.is_ok(), expected, "{host} {is_own}: {found:?}");
        }
    }
}
