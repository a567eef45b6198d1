//! The server, the broker and the least of all proxies, each a process.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::Response;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use ringfence_core::backend::Door;
use ringfence_core::policy::{Network, NetworkMode};
use ringfence_egress::{Broker, Budget, HostPrograms, Prices, Session, Setup, Sources, find};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::client::{Route, Target, Trust, connect};
use crate::{LOOKED, PASSED};

const ROOT: &str = "root.pem";

/// How somebody with an authority of its own, whose certificate it leaves there, speaks TLS.
fn acceptor(root: &Path) -> anyhow::Result<TlsAcceptor> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "a root for a measurement");
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let leaf = CertificateParams::new([PASSED.into(), LOOKED.into(), "127.0.0.1".into()])?
        .signed_by(&key, &issuer)?;
    let file = &mut std::fs::File::create(root)?;
    std::io::Write::write_all(file, issuer.pem().as_bytes())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(
            vec![leaf.der().clone()],
            PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
        )?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Answers everything with a kilobyte, over TLS.
pub(crate) async fn server(directory: &Path) -> anyhow::Result<()> {
    let acceptor = acceptor(&directory.join(ROOT))?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    let body = Bytes::from(vec![b'x'; 1024]);
    loop {
        let (stream, _) = listener.accept().await?;
        let _ = stream.set_nodelay(true);
        let (acceptor, body) = (acceptor.clone(), body.clone());
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let answer = service_fn(move |_| {
                let body = body.clone();
                async move { Ok::<_, Infallible>(Response::new(Full::new(body))) }
            });
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

/// The broker of a run that has a credential for one of the two hosts.
pub(crate) async fn broker(directory: &Path, server: SocketAddr) -> anyhow::Result<()> {
    let env = BTreeMap::from([("ANTHROPIC_API_KEY".to_owned(), "sk-ant-api03-measured".to_owned())]);
    let url = format!("https://{LOOKED}");
    let sources = Sources {
        env: &env,
        home: directory,
        moved: &[],
        state: directory,
        programs: &HostPrograms::none(),
        keychain: None,
        base_url: Some(&url),
        login_gateways: &[],
    };
    let setup = Setup {
        network: Network {
            mode: NetworkMode::Allow,
            allow: vec![PASSED.parse()?, LOOKED.parse()?],
            deny: Vec::new(),
            ask: false,
            local: Vec::new(),
        },
        credentials: find(&["anthropic"], sources)?,
        connect_to: format!("{PASSED}:443={server},{LOOKED}:443={server}").parse()?,
        roots: vec![std::fs::read_to_string(directory.join(ROOT))?],
        prices: Prices::built_in()?,
        budget: Budget::default(),
        ask: None,
        resolver: None,
        daemon: None,
        model_headers: Vec::new(),
    };
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let _broker = Broker::open(
        Door::Tcp(listener),
        Vec::new(),
        Session::new(setup)?,
        &directory.join("network.jsonl"),
    )?;
    println!("{address}");
    // Until whoever started it ends it.
    std::future::pending().await
}

/// The least that anybody does who could look into requests, and does not: on one thread, as the broker, bytes are decrypted and
/// encrypted again, each connection of the client on one of its own.
pub(crate) async fn bytes(directory: &Path, server: SocketAddr) -> anyhow::Result<()> {
    let acceptor = acceptor(&directory.join("bytes.pem"))?;
    let trust = Arc::new(Trust::new());
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        let _ = stream.set_nodelay(true);
        let (acceptor, trust) = (acceptor.clone(), Arc::clone(&trust));
        tokio::spawn(async move { relay(stream, acceptor, &trust, server).await });
    }
}

async fn relay(
    mut stream: TcpStream,
    acceptor: TlsAcceptor,
    trust: &Trust,
    server: SocketAddr,
) -> anyhow::Result<()> {
    let mut asked = Vec::new();
    while !asked.ends_with(b"\r\n\r\n") {
        asked.push(stream.read_u8().await?);
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    let mut inside = acceptor.accept(stream).await?;
    let mut outside = connect(trust, &Target { host: LOOKED.into(), route: Route::Direct(server) }).await?;
    copy_bidirectional(&mut inside, &mut outside).await?;
    Ok(())
}
