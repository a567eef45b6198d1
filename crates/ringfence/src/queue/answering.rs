//! The daemon's API and pages: where it answers, and to whom.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use ringfence_core::config::ServerSettings;
use ringfence_egress::DaemonAddress;
use ringfence_server::access::Access;
use ringfence_server::{OwnerToken, Server, ServerError, Serving};
use ringfence_store::atomic;

use crate::desk::Local;
use crate::installation::Installation;
use crate::report::{advise, untokened};

/// What names nobody.
const NONE: &str = "none";

/// The Unix socket of an installation.
pub(crate) fn socket(state: &Path) -> PathBuf {
    state.join("api.sock")
}

/// Where the daemon of an installation answers. One that has ended may have left it.
pub(crate) fn server_address(state: &Path) -> Option<String> {
    DaemonAddress::of(state).read()
}

/// What to say at each start while loopback connections are served without a token.
pub(crate) fn insecurity(installation: &Installation) -> Option<&'static str> {
    access(installation, None).allows_local().then_some(
        "RINGFENCE_ALLOW_INSECURE_SYSTEM_CONTROL is set: your own programs command the daemon over loopback without its token",
    )
}

/// Answers from now on, for as long as the process lives. An address that nobody has named may be somebody else's: then
/// there is the socket alone, and a warning.
pub(crate) fn answer(
    installation: &Installation,
    settings: &ServerSettings,
    named: Option<&str>,
) -> anyhow::Result<Option<SocketAddr>> {
    let given = installation.layers_for(Path::new("/"))?.given("server.listen").is_some();
    let listen = address(named.unwrap_or(&settings.listen))?;
    let rate_limit = settings.rate_limit;
    let token = OwnerToken::load_or_create(&installation.state).map_err(untokened)?;
    if let Some(warning) = insecurity(installation) {
        tracing::warn!("{warning}");
    }
    let serving = |listen| Serving {
        listen,
        socket: socket(&installation.state),
        token: token.clone(),
        access: access(installation, Some(token.reveal())),
        rate_limit,
    };
    let server = match Server::bind(serving(listen)) {
        Err(error @ (ServerError::Address { .. } | ServerError::Taken { .. }))
            if named.is_none() && !given && listen.is_some() =>
        {
            tracing::warn!(why = %error, "the API and the pages are on the Unix socket alone");
            Server::bind(serving(None)).map_err(told)?
        }
        other => other.map_err(told)?,
    };
    let address = server.address();
    let text = address.map(|address| address.to_string()).unwrap_or_default();
    atomic::write(DaemonAddress::of(&installation.state).file(), text.as_bytes())?;
    // Who asks over the network stands nowhere.
    let house = Local { installation: installation.clone().nowhere() };
    server.start(Arc::new(house)).map_err(told)?;
    match address {
        Some(address) => tracing::info!(%address, "the API and the pages are there"),
        None => tracing::info!("the API is on the Unix socket alone"),
    }
    Ok(address)
}

fn told(error: ServerError) -> anyhow::Error {
    match error.remedy() {
        Some(remedy) => advise(error, remedy),
        None => error.into(),
    }
}

fn address(text: &str) -> anyhow::Result<Option<SocketAddr>> {
    if text.trim() == NONE {
        return Ok(None);
    }
    let wrong = || {
        advise(
            anyhow!("`{text}` is no address to listen on"),
            "give one with a port, such as 127.0.0.1:4301, or `none`",
        )
    };
    let mut found = text.trim().to_socket_addrs().map_err(|_| wrong())?;
    found.next().context("it names nobody").map(Some).map_err(|_| wrong())
}

/// Who may do what, as the environment of the daemon says, with the daemon's own token.
fn access(installation: &Installation, token: Option<&str>) -> Access {
    let variable =
        |names: [&str; 2]| names.into_iter().find_map(|name| installation.env.get(name)).map(String::as_str);
    Access::new(
        token,
        variable(["RINGFENCE_API_KEYS", "API_KEYS"]),
        variable(["RINGFENCE_API_SECRET", "API_SECRET"]),
        variable(["RINGFENCE_ALLOW_INSECURE_SYSTEM_CONTROL", "OPENTIGER_ALLOW_INSECURE_SYSTEM_CONTROL"]),
    )
}
