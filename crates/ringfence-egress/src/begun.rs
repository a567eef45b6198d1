//! A body whose beginning is at hand.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

/// A body with its first piece, if that was there already: then it leaves together with the headers. Alone, each of them
/// would be a packet, and wake whoever reads it.
pub(crate) struct Begun {
    first: Option<Result<Frame<Bytes>, hyper::Error>>,
    rest: Incoming,
}

impl Begun {
    pub(crate) fn new(rest: Incoming) -> Self {
        Self { first: None, rest }
    }

    /// Takes the first piece, if it is there.
    pub(crate) async fn begin(&mut self) {
        if self.first.is_some() || self.is_end_stream() || self.try_begin().await {
            return;
        }
        // Whoever holds it knows now that it is wanted, and gets a turn.
        tokio::task::yield_now().await;
        self.try_begin().await;
    }

    async fn try_begin(&mut self) -> bool {
        match poll_fn(|cx| Poll::Ready(Pin::new(&mut self.rest).poll_frame(cx))).await {
            Poll::Ready(first) => {
                self.first = first;
                true
            }
            Poll::Pending => false,
        }
    }
}

impl Body for Begun {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        match this.first.take() {
            Some(first) => Poll::Ready(Some(first)),
            None => Pin::new(&mut this.rest).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let held = self.first.as_ref().and_then(|first| first.as_ref().ok()?.data_ref());
        let held = held.map_or(0, |data| data.len() as u64);
        let rest = self.rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower() + held);
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + held);
        }
        hint
    }
}
