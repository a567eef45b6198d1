//! Telling somebody something: one request, one answer, no redirects. For ringfence itself, not for runs.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use ringfence_core::policy::{Network, NetworkMode};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::answer::whole;
use crate::session::client;
use crate::upstream::{ConnectTo, Protocols, Tls, Upstream, no_way};

/// No more of an answer is read.
const LONGEST_ANSWER: usize = 64 << 10;

/// Why nobody was told.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    /// Nothing can be sent from here.
    #[error("there is no way to send anything")]
    Unready(#[from] io::Error),
    /// The address is no address.
    #[error("`{0}` is not an address that something can be sent to")]
    Address(String),
    /// Nobody answers there.
    #[error("{0}")]
    Unreachable(String),
    /// They take their time.
    #[error("no answer within {0} seconds")]
    Timeout(u64),
    /// They do not want it.
    #[error("the answer was {0}")]
    Status(StatusCode),
}

/// Sends requests.
pub struct Poster {
    runtime: Runtime,
    upstream: Arc<Upstream>,
    tls: Arc<Tls>,
}

impl Poster {
    /// With these addresses given, and these authorities besides the machine's.
    pub fn new(connect_to: &ConnectTo, more: &[String]) -> Result<Self, PostError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let network = Network {
            mode: NetworkMode::Open,
            allow: Vec::new(),
            deny: Vec::new(),
            ask: false,
            local: Vec::new(),
        };
        // The resolver asks who runs the runtime.
        let upstream = runtime.block_on(async { Upstream::new(network, connect_to.clone(), None) })?.inward();
        Ok(Self { runtime, upstream: Arc::new(upstream), tls: Arc::new(Tls::new(more.to_vec())?) })
    }

    /// Sends a document. Any answer but a good one is an error.
    pub fn post(
        &self,
        url: &str,
        headers: &[(&str, &str)],
        body: &str,
        at_most: Duration,
    ) -> Result<(), PostError> {
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(url)
            .header("content-type", "application/json")
            .header("user-agent", concat!("ringfence/", env!("CARGO_PKG_VERSION")));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(whole(body.to_owned())).map_err(|_| PostError::Address(url.to_owned()))?;
        let sent = async {
            let client = client(Arc::clone(&self.upstream), Arc::clone(&self.tls), Protocols::First);
            let answer = client.request(request).await.map_err(|error| {
                let why = no_way(&error).map(|refusal| refusal.message.clone());
                PostError::Unreachable(why.unwrap_or_else(|| error.to_string()))
            })?;
            let status = answer.status();
            // Read to its end, so that whoever answers is not cut off.
            let _ = http_body_util::Limited::new(answer.into_body(), LONGEST_ANSWER).collect().await;
            if status.is_success() { Ok(()) } else { Err(PostError::Status(status)) }
        };
        let sent = self.runtime.block_on(async { timeout(at_most, sent).await });
        sent.unwrap_or(Err(PostError::Timeout(at_most.as_secs())))
    }
}
