//! The client: many requests on a few connections, or one after another on one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// How to get to the server.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Route {
    Direct(SocketAddr),
    Proxy(SocketAddr),
}

/// What to ask, and how to get there. A host may come with its port.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) host: String,
    pub(crate) route: Route,
}

/// Everybody is believed: three authorities are at work, and none of them is what is measured.
pub(crate) struct Trust(TlsConnector);

impl Trust {
    pub(crate) fn new() -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let schemes = provider.signature_verification_algorithms.supported_schemes();
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        // The provider has the default versions: it is the one that they were made for.
        let config = config.map(|config| {
            config
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Anybody(schemes)))
                .with_no_client_auth()
        });
        Self(TlsConnector::from(Arc::new(config.unwrap_or_else(|_| unreachable!()))))
    }
}

#[derive(Debug)]
struct Anybody(Vec<SignatureScheme>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.clone()
    }
}

/// A connection that requests can be sent on.
type Line = SendRequest<Empty<Bytes>>;

async fn open(trust: &Trust, target: &Target) -> anyhow::Result<Line> {
    let (line, driver) = handshake(TokioIo::new(connect(trust, target).await?)).await?;
    tokio::spawn(driver);
    Ok(line)
}

/// A connection that nothing was said on yet.
pub(crate) async fn connect(trust: &Trust, target: &Target) -> anyhow::Result<TlsStream<TcpStream>> {
    let stream = match target.route {
        Route::Direct(address) => TcpStream::connect(address).await?,
        Route::Proxy(address) => tunnel(address, &target.host).await?,
    };
    stream.set_nodelay(true)?;
    let name = target.host.split(':').next().unwrap_or_default().to_owned();
    Ok(trust.0.connect(ServerName::try_from(name)?, stream).await?)
}

async fn tunnel(proxy: SocketAddr, host: &str) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(proxy).await?;
    let authority = if host.contains(':') { host.to_owned() } else { format!("{host}:443") };
    stream.write_all(format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let byte = stream.read_u8().await.context("the proxy hangs up")?;
        answer.push(byte);
    }
    ensure!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    Ok(stream)
}

async fn ask(line: &mut Line, host: &str) -> anyhow::Result<()> {
    line.ready().await?;
    let request = Request::builder().uri("/measured").header("host", host).body(Empty::new())?;
    let answer = line.send_request(request).await?;
    ensure!(answer.status().is_success(), "the answer is {}", answer.status());
    ensure!(answer.into_body().collect().await?.to_bytes().len() == 1024, "the answer is not whole");
    Ok(())
}

/// Connections that are kept alive, to ask on.
pub(crate) struct Lines {
    host: String,
    lines: Vec<Line>,
}

impl Lines {
    pub(crate) async fn open(trust: &Trust, target: &Target, connections: usize) -> anyhow::Result<Self> {
        let mut lines = Vec::new();
        for _ in 0..connections {
            lines.push(open(trust, target).await?);
        }
        Ok(Self { host: target.host.clone(), lines })
    }

    /// Asks on all of them at once, for so long: how long each request took.
    pub(crate) async fn ask(&mut self, time: Duration) -> anyhow::Result<Vec<Duration>> {
        let began = Instant::now();
        let workers: Vec<_> = std::mem::take(&mut self.lines)
            .into_iter()
            .map(|mut line| {
                let host = self.host.clone();
                tokio::spawn(async move {
                    let mut times = Vec::new();
                    while began.elapsed() < time {
                        let asked = Instant::now();
                        ask(&mut line, &host).await?;
                        times.push(asked.elapsed());
                    }
                    anyhow::Ok((line, times))
                })
            })
            .collect();
        let mut all = Vec::new();
        for worker in workers {
            let (line, times) = worker.await??;
            self.lines.push(line);
            all.extend(times);
        }
        Ok(all)
    }
}

/// So many connections that have asked once and then say nothing.
pub(crate) async fn idle(trust: &Trust, target: &Target, count: usize) -> anyhow::Result<Vec<Line>> {
    let mut lines = Vec::with_capacity(count);
    for _ in 0..count {
        let mut line = open(trust, target).await?;
        ask(&mut line, &target.host).await?;
        lines.push(line);
    }
    Ok(lines)
}
