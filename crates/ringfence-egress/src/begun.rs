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
    pub(crate) async fn new(mut rest: Incoming) -> Self {
        for _ in 0..2 {
            if rest.is_end_stream() {
                break;
            }
            let piece = poll_fn(|cx| Poll::Ready(Pin::new(&mut rest).poll_frame(cx))).await;
            match piece {
                Poll::Ready(first) => return Self { first, rest },
                // Whoever holds it is told now that it is wanted, and gets a turn.
                Poll::Pending => tokio::task::yield_now().await,
            }
        }
        Self { first: None, rest }
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
