//! Access to the daemon itself: login codes for browsers, and its own token.

use axum::extract::State;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::access::{Denial, Who};
use crate::app::App;
use crate::input::{Asked, Asker};
use crate::login_codes::{Bearer, LIFETIME};
use crate::problem::Problem;
use crate::revocation::Epoch;

/// What kind of code.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub(super) struct Wanted {
    /// Whether only a connection from the daemon's machine, made by the daemon's owner, may redeem the code: the default, because
    /// other users of the machine can see the command line of a browser. `false` is for browsers on other machines too; on the
    /// daemon's machine the code stays the owner's.
    #[serde(default = "owner_only_by_default")]
    #[param(default = true)]
    owner_only: bool,
    /// Whether every connection may redeem the code, also those of other users of the daemon's machine, such as a proxy.
    #[serde(default)]
    #[param(default = false)]
    for_anyone: bool,
}

impl Wanted {
    fn bearer(&self) -> Bearer {
        match self {
            Wanted { for_anyone: true, .. } => Bearer::Anybody,
            Wanted { owner_only: true, .. } => Bearer::Owner,
            Wanted { .. } => Bearer::OwnerOrElsewhere,
        }
    }
}

fn owner_only_by_default() -> bool {
    true
}

/// A login code.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct LoginCode {
    /// The path to open in a browser. It works once.
    path: String,
    /// The host name under which a browser on the daemon's machine opens it. Browsers resolve it to loopback; it is new for each
    /// code, so that no other program of the machine receives the session's cookie.
    host: String,
    /// For how long it works.
    expires_in_seconds: u64,
}

/// Issues a one-time login code for the dashboard.
#[utoipa::path(post, path = "/system/login-codes", tag = "system", params(Wanted), responses((status = 200, body = LoginCode, description = "The code.")))]
pub(super) async fn issue_code(
    State(app): State<App>,
    Extension(epoch): Extension<Epoch>,
    Asked(wanted): Asked<Wanted>,
) -> Result<Json<LoginCode>, Problem> {
    let issued = app.login_codes.issue(wanted.bearer(), epoch).ok_or_else(Problem::no_random_bytes)?;
    Ok(Json(LoginCode {
        path: issued.path(),
        host: issued.name.as_str().to_owned(),
        expires_in_seconds: LIFETIME.as_secs(),
    }))
}

/// What came of replacing the token.
#[derive(Serialize, ToSchema)]
pub(super) struct Rotated {
    /// Always true.
    rotated: bool,
}

/// Replaces the daemon's own token and ends all sessions of the dashboard. Only the Unix socket serves it.
#[utoipa::path(post, path = "/system/token/rotate", tag = "system", responses((status = 200, body = Rotated, description = "The token is replaced.")))]
pub(super) async fn rotate_token(
    State(app): State<App>,
    Asker(who): Asker,
) -> Result<Json<Rotated>, Problem> {
    if who != Who::Socket {
        return Err(Denial::SocketOnly.into());
    }
    app.rotate_token(who).await?;
    Ok(Json(Rotated { rotated: true }))
}
