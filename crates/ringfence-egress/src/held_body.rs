//! Bodies of requests that are held whole, under a budget: so many bytes at once, each until the last of it is written.
//!
//! A body that is longer than a little waits for a place of its size. Whoever has one waits for no other place of that kind, so those
//! who have one come to an end. Short bodies need none, and those of ordinary requests have places that longer ones never take.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::answer::{Body, BodyError, Refusal};
use crate::meter::{DemandError, MAX_BODY_BYTES};

/// So many bytes of a body are held without a place. The number of requests at once bounds them.
const SMALL_BYTES: usize = 64 << 10;
/// The longest body that has a place among the ordinary ones.
const MEDIUM_BYTES: usize = 2 << 20;
/// Bytes of ordinary bodies that are held at once, and of longer ones.
const MEDIUM_POOL_BYTES: usize = 64 << 20;
const LARGE_POOL_BYTES: usize = 64 << 20;
/// So much of a body is given to a connection at once, which may copy it.
const SLICE_BYTES: usize = 64 << 10;

/// The places for bodies.
#[derive(Debug, Clone)]
pub(crate) struct BodyPlaces {
    medium: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl Default for BodyPlaces {
    fn default() -> Self {
        Self {
            medium: Arc::new(Semaphore::new(MEDIUM_POOL_BYTES)),
            large: Arc::new(Semaphore::new(LARGE_POOL_BYTES)),
        }
    }
}

impl BodyPlaces {
    /// Waits for a place of this size.
    async fn acquire(&self, size: usize) -> Result<OwnedSemaphorePermit, Refusal> {
        let pool = if size <= MEDIUM_BYTES { &self.medium } else { &self.large };
        let ended = || Refusal::unreachable("the broker ends");
        let count = u32::try_from(size).map_err(|_| ended())?;
        Arc::clone(pool).acquire_many_owned(count).await.map_err(|_| ended())
    }
}

/// A body that is being read.
pub(crate) struct HeldBody {
    places: BodyPlaces,
    /// The length that was told.
    told: Option<u64>,
    bytes: BytesMut,
    /// How much has room in its place.
    room: usize,
    permit: Option<OwnedSemaphorePermit>,
}

impl HeldBody {
    pub(crate) fn new(places: &BodyPlaces, told: Option<u64>) -> Self {
        let places = places.clone();
        Self { places, told, bytes: BytesMut::new(), room: SMALL_BYTES, permit: None }
    }

    /// Adds a piece, once there is a place for it.
    pub(crate) async fn add(&mut self, data: &[u8]) -> Result<(), Refusal> {
        let length = self.bytes.len() + data.len();
        if length > MAX_BODY_BYTES {
            return Err(DemandError::TooLong.into());
        }
        if length > self.room {
            self.make_room(length).await?;
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    async fn make_room(&mut self, length: usize) -> Result<(), Refusal> {
        let told = self.told.map(|told| usize::try_from(told).unwrap_or(usize::MAX).min(MAX_BODY_BYTES));
        let size = match (&self.permit, told) {
            (None, Some(told)) if told >= length => told,
            (None, _) if length <= MEDIUM_BYTES => MEDIUM_BYTES,
            // From an ordinary place to a larger one, never to one of the same kind.
            _ if self.room <= MEDIUM_BYTES => MAX_BODY_BYTES,
            _ => return Err(Refusal::bad("the body of the request is longer than it says")),
        };
        let permit = self.places.acquire(size).await?;
        // Memory that is not written is not used.
        let mut bytes = BytesMut::with_capacity(size);
        bytes.extend_from_slice(&self.bytes);
        (self.bytes, self.room, self.permit) = (bytes, size, Some(permit));
        Ok(())
    }

    /// The whole body, and its place, which is no larger than the body from now on.
    pub(crate) fn finish(self) -> (Bytes, Place) {
        let Self { bytes, mut permit, .. } = self;
        if let Some(permit) = &mut permit {
            drop(permit.split(permit.num_permits().saturating_sub(bytes.len())));
        }
        (bytes.freeze(), Place(permit))
    }
}

/// The place of a body.
pub(crate) struct Place(Option<OwnedSemaphorePermit>);

impl Place {
    /// Gives it to the body: it is free once nothing of the body is left.
    pub(crate) fn hold(self, bytes: Bytes) -> Bytes {
        match self.0 {
            Some(permit) => Bytes::from_owner(Placed { bytes, _permit: permit }),
            None => bytes,
        }
    }
}

struct Placed {
    bytes: Bytes,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Placed {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A body that goes in slices: a connection may copy what it is given, and never has to copy all.
pub(crate) fn in_slices(bytes: Bytes) -> Body {
    Slices(bytes).boxed_unsync()
}

struct Slices(Bytes);

impl http_body::Body for Slices {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let length = self.0.len().min(SLICE_BYTES);
        let slice = (length > 0).then(|| self.0.split_to(length));
        if self.0.is_empty() {
            // What is left of a slice does not keep it.
            self.0 = Bytes::new();
        }
        Poll::Ready(slice.map(|slice| Ok(Frame::data(slice))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::BodyExt;

    use super::{
        BodyPlaces, HeldBody, LARGE_POOL_BYTES, MEDIUM_BYTES, MEDIUM_POOL_BYTES, SMALL_BYTES, in_slices,
    };
    use crate::meter::MAX_BODY_BYTES;

    /// A body of this length, if there is a place for it now.
    async fn try_hold(places: &BodyPlaces, length: usize, told: bool) -> Option<Bytes> {
        let mut held = HeldBody::new(places, told.then_some(length as u64));
        let piece = vec![b'x'; SMALL_BYTES];
        let mut left = length;
        while left > 0 {
            let data = &piece[..left.min(piece.len())];
            tokio::select! {
                biased;
                added = held.add(data) => added.unwrap(),
                () = async {} => return None,
            }
            left -= data.len();
        }
        let (bytes, place) = held.finish();
        assert_eq!(bytes.len(), length);
        Some(place.hold(bytes))
    }

    #[tokio::test]
    async fn long_bodies_wait_for_a_place_until_the_last_byte_of_another_is_gone() {
        for told in [true, false] {
            let places = BodyPlaces::default();
            let mut held = Vec::new();
            while held.len() < 100
                && let Some(body) = try_hold(&places, MAX_BODY_BYTES, told).await
            {
                held.push(body);
            }
            assert_eq!(held.len(), LARGE_POOL_BYTES / MAX_BODY_BYTES, "{told}");
            // Those of the ordinary length have their own, and short ones need none.
            let mut ordinary = Vec::new();
            while ordinary.len() < 1000
                && let Some(body) = try_hold(&places, MEDIUM_BYTES, told).await
            {
                ordinary.push(body);
            }
            assert_eq!(ordinary.len(), MEDIUM_POOL_BYTES / MEDIUM_BYTES, "{told}");
            assert!(try_hold(&places, SMALL_BYTES, told).await.is_some());
            drop(ordinary);
            let mut last = held.pop().unwrap().slice(..1);
            assert!(try_hold(&places, MAX_BODY_BYTES, told).await.is_none());
            last = Bytes::copy_from_slice(&last);
            assert!(try_hold(&places, MAX_BODY_BYTES, told).await.is_some());
            drop((last, held));
            assert_eq!(places.large.available_permits(), LARGE_POOL_BYTES);
            assert_eq!(places.medium.available_permits(), MEDIUM_POOL_BYTES);
        }
    }

    #[tokio::test]
    async fn place_of_a_body_of_unknown_length_is_as_large_as_the_body_in_the_end() {
        let places = BodyPlaces::default();
        let body = try_hold(&places, SMALL_BYTES + 1, false).await.unwrap();
        assert_eq!(places.medium.available_permits(), MEDIUM_POOL_BYTES - body.len());
        let long = try_hold(&places, MEDIUM_BYTES + 1, false).await.unwrap();
        assert_eq!(places.large.available_permits(), LARGE_POOL_BYTES - long.len());
        assert_eq!(places.medium.available_permits(), MEDIUM_POOL_BYTES - body.len());
    }

    #[tokio::test]
    async fn body_in_slices_is_whole_and_frees_its_place() {
        let places = BodyPlaces::default();
        let body = try_hold(&places, MEDIUM_BYTES, true).await.unwrap();
        let mut slices = in_slices(body);
        let mut length = 0;
        while let Some(frame) = slices.frame().await {
            length += frame.unwrap().into_data().unwrap().len();
        }
        assert_eq!(length, MEDIUM_BYTES);
        assert_eq!(places.medium.available_permits(), MEDIUM_POOL_BYTES);
    }
}
