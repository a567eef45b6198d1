//! The client: many requests on a few connections, or one after another on one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Body;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

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

/// Opens one, for requests with some kind of body.
pub(crate) async fn open<B>(trust: &Trust, target: &Target) -> anyhow::Result<SendRequest<B>>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let stream = match target.route {
        Route::Direct(address) => TcpStream::connect(address).await?,
        Route::Proxy(address) => tunnel(address, &target.host).await?,
    };
    stream.set_nodelay(true)?;
    let name = target.host.split(':').next().unwrap_or_default().to_owned();
    let stream = trust.0.connect(ServerName::try_from(name)?, stream).await?;
    let (line, driver) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(driver);
    Ok(line)
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

/// Requests a second over so many connections.
pub(crate) async fn rate(
    trust: &Trust,
    target: &Target,
    connections: usize,
    time: Duration,
) -> anyhow::Result<f64> {
    let mut lines = Vec::new();
    for _ in 0..connections {
        lines.push(open::<Empty<Bytes>>(trust, target).await?);
    }
    let began = Instant::now();
    let workers: Vec<_> = lines
        .into_iter()
        .map(|mut line| {
            let host = target.host.clone();
            tokio::spawn(async move {
                let mut count = 0_u32;
                while began.elapsed() < time {
                    ask(&mut line, &host).await?;
                    count += 1;
                }
                anyhow::Ok(count)
            })
        })
        .collect();
    let mut total = 0.0;
    for worker in workers {
        total += f64::from(worker.await??);
    }
    Ok(total / began.elapsed().as_secs_f64())
}

/// How long each request takes, one after another.
pub(crate) async fn times(trust: &Trust, target: &Target, count: usize) -> anyhow::Result<Vec<Duration>> {
    let mut line = open(trust, target).await?;
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let began = Instant::now();
        ask(&mut line, &target.host).await?;
        times.push(began.elapsed());
    }
    Ok(times)
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
