//! Webhook deliveries. A delivery is written in the same transaction as the end of its task.

use ringfence_core::ids::TaskId;
use ringfence_core::task::UnixSeconds;
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::tasks::Now;

/// A webhook delivery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// Id. All attempts at a delivery have the same one, so that receivers can drop duplicates.
    pub id: u64,
    /// The task that ended.
    pub task: TaskId,
    /// URL of the webhook.
    pub url: String,
    /// Request body, as JSON.
    pub body: String,
    /// State of the delivery.
    pub state: DeliveryState,
    /// Number of attempts so far.
    pub attempts: u32,
    /// Time of the next attempt.
    pub due: UnixSeconds,
    /// Error of the last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// State of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum DeliveryState {
    Waiting,
    Delivered,
    Dead,
}

impl DeliveryState {
    /// Returns the stored name.
    pub fn as_str(self) -> &'static str {
        match self {
            DeliveryState::Waiting => "waiting",
            DeliveryState::Delivered => "delivered",
            DeliveryState::Dead => "dead",
        }
    }

    /// Parses a stored name; an unknown one counts as `Waiting`.
    pub fn parse(text: &str) -> Self {
        let known = [Self::Delivered, Self::Dead];
        known.into_iter().find(|state| state.as_str() == text).unwrap_or(Self::Waiting)
    }
}

/// Stores webhook deliveries.
pub trait Deliveries {
    /// Returns waiting deliveries, the earliest due first.
    fn next_deliveries(&self, limit: usize) -> Result<Vec<Delivery>, StoreError>;
    /// Records the outcome of an attempt. With `Waiting`, the delivery is tried again at `due`.
    fn record_attempt(
        &self,
        id: u64,
        state: DeliveryState,
        due: UnixSeconds,
        error: Option<&str>,
        now: Now,
    ) -> Result<(), StoreError>;
    /// Returns the deliveries in a state, newest first.
    fn deliveries(&self, state: DeliveryState) -> Result<Vec<Delivery>, StoreError>;
}
