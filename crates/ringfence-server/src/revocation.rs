//! The end of a credential while a response is still being sent.
//!
//! Streams of events and logs last for hours. One that was begun with a session or with the daemon's token ends when the session is
//! closed or the token is replaced. Keys, API_SECRET and the Unix socket last as long as the daemon.

use axum::body::{Body, HttpBody};
use axum::response::Response;
use futures_util::StreamExt;
use tokio::sync::watch;

use crate::access::Who;
use crate::app::App;

/// What ends the credential of a request.
#[derive(Clone)]
pub(crate) enum Revocation {
    /// Nothing but the end of the daemon.
    Never,
    /// The end of a session.
    Session {
        app: App,
        /// The browser's name.
        name: String,
    },
    /// The replacement of the daemon's token.
    Token(watch::Receiver<u64>),
}

impl Revocation {
    /// Of the credential of a request. `tokens` was subscribed before the credential was checked.
    pub(crate) fn of(app: &App, who: Who, browser: Option<&str>, tokens: watch::Receiver<u64>) -> Self {
        match (who, browser) {
            (Who::Session, Some(name)) => Revocation::Session { app: app.clone(), name: name.to_owned() },
            (Who::Owner, _) => Revocation::Token(tokens),
            _ => Revocation::Never,
        }
    }

    /// Waits until the credential is worth nothing any more.
    pub(crate) async fn wait(self) {
        match self {
            Revocation::Never => std::future::pending().await,
            Revocation::Session { app, name } => app.sessions.closed(&name).await,
            Revocation::Token(mut generation) => {
                let _ = generation.changed().await;
            }
        }
    }

    /// Ends the body of a response that is made as it is sent when the credential is revoked. One that is complete is small.
    pub(crate) fn bound(self, response: Response) -> Response {
        if response.body().size_hint().exact().is_some() || matches!(self, Revocation::Never) {
            return response;
        }
        response.map(|body| Body::from_stream(body.into_data_stream().take_until(Box::pin(self.wait()))))
    }
}
