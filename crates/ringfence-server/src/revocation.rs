//! The end of a credential while a request is still coming, or a response is still being sent.
//!
//! Streams of events and logs last for hours. One that was begun with a session or with the daemon's token ends when the session is
//! closed or the token is replaced. Keys, API_SECRET and the Unix socket last as long as the daemon.

use std::error::Error;

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use futures_util::StreamExt;
use tokio::sync::watch;

use crate::access::Who;
use crate::app::App;

/// How often the daemon's token was replaced when a request came. What is opened with a credential of an earlier time is void.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Epoch(pub(crate) u64);

/// The credential of a request was revoked before all of it had come.
#[derive(Debug, thiserror::Error)]
#[error("the credential was revoked")]
struct Revoked;

/// Whether a body could not be read because the credential of its request was revoked.
pub(crate) fn is_revoked(error: &(dyn Error + 'static)) -> bool {
    std::iter::successors(Some(error), |&error| error.source()).any(|error| error.is::<Revoked>())
}

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

    /// Whether the credential is worth nothing any more.
    fn has_happened(&self) -> bool {
        match self {
            Revocation::Never => false,
            Revocation::Session { app, name } => app.sessions.is_closed(name),
            Revocation::Token(generation) => generation.has_changed().unwrap_or(true),
        }
    }

    /// The body of a request, with an error at its end if the credential was revoked while it came.
    pub(crate) fn checked_after(self, body: Body) -> Body {
        if matches!(self, Revocation::Never) {
            return body;
        }
        let end = async move {
            match self.has_happened() {
                true => Err(axum::Error::new(Revoked)),
                false => Ok(Bytes::new()),
            }
        };
        Body::from_stream(body.into_data_stream().chain(futures_util::stream::once(end)))
    }

    /// Ends the body of a response that is made as it is sent when the credential is revoked. One that is complete is small.
    pub(crate) fn bound(self, response: Response) -> Response {
        if response.body().size_hint().exact().is_some() || matches!(self, Revocation::Never) {
            return response;
        }
        response.map(|body| Body::from_stream(body.into_data_stream().take_until(Box::pin(self.wait()))))
    }
}
