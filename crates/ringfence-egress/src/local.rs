//! Ports of the host's own loopback that a policy names: whoever comes is brought there, and noted.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::answer::Refusal;
use crate::broker::{BREATH, Listener};
use crate::note::{Counted, Note};
use crate::prefixed::Stream;
use crate::session::Ways;

/// More connections to one port have to wait.
const CONNECTIONS: usize = 256;

/// Brings everybody who comes to a port of the host.
pub(crate) async fn accept(listener: Listener, port: u16, ways: Arc<Ways>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let ways = Arc::clone(&ways);
        let taken = match &listener {
            Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                let _ = stream.set_nodelay(true);
                tokio::spawn(async move { (bring(stream, port, ways).await, place) });
            }),
            Listener::Unix(listener) => listener.accept().await.map(|(stream, _)| {
                tokio::spawn(async move { (bring(stream, port, ways).await, place) });
            }),
        };
        if taken.is_err() {
            tokio::time::sleep(BREATH).await;
        }
    }
}

/// To whoever listens there, by the older protocol or by the newer one. Nobody there is a closed connection.
async fn bring(mut from: impl Stream, port: u16, ways: Arc<Ways>) -> io::Result<()> {
    let mut note = Note::new(&ways.session, &"localhost", port, "local");
    if let Err(refusal) = refuse_daemon(&ways, port).await {
        note.refused(&refusal);
        return Ok(());
    }
    if let Err(refusal) = note.begin("network.local") {
        note.refused(&refusal);
        return Ok(());
    }
    let to = match TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
        Ok(stream) => stream,
        Err(_) => TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await?,
    };
    // The daemon may have been started just then.
    if let Err(refusal) = refuse_daemon(&ways, port).await {
        note.refused(&refusal);
        return Ok(());
    }
    let _ = to.set_nodelay(true);
    note.allowed("network.local");
    let mut to = Counted::new(to, &note);
    copy_bidirectional(&mut from, &mut to).await.map(drop)
}

async fn refuse_daemon(ways: &Ways, port: u16) -> Result<(), Refusal> {
    match &ways.session.daemon {
        Some(daemon) => daemon.refuse((Ipv4Addr::LOCALHOST, port).into()).await,
        None => Ok(()),
    }
}
