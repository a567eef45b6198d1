//! Deliveries: who is still to be told of an end. Written together with the end itself, so none is forgotten.

use ringfence_core::ids::TaskId;
use ringfence_core::task::Time;
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::tasks::Now;

/// Something that somebody is to be told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// Its number: the same for every try, so that whoever is told twice notices.
    pub id: u64,
    /// Of which task.
    pub task: TaskId,
    /// At which address.
    pub url: String,
    /// What.
    pub body: String,
    /// How far it has come.
    pub state: DeliveryState,
    /// How often it was tried.
    pub attempts: u32,
    /// When it is to be tried next.
    pub due: Time,
    /// What went wrong last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// How far a delivery has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum DeliveryState {
    Waiting,
    Delivered,
    Dead,
}

impl DeliveryState {
    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            DeliveryState::Waiting => "waiting",
            DeliveryState::Delivered => "delivered",
            DeliveryState::Dead => "dead",
        }
    }

    /// The state of this name; one that nobody knows is still waited for.
    pub fn parse(text: &str) -> Self {
        let known = [Self::Delivered, Self::Dead];
        known.into_iter().find(|state| state.as_str() == text).unwrap_or(Self::Waiting)
    }
}

/// The deliveries.
pub trait Deliveries {
    /// Those that are to be tried first, if any wait.
    fn next_deliveries(&self, limit: usize) -> Result<Vec<Delivery>, StoreError>;
    /// How a try went: delivered, or to be tried again then, or given up.
    fn tried(
        &self,
        id: u64,
        state: DeliveryState,
        due: Time,
        error: Option<&str>,
        now: Now,
    ) -> Result<(), StoreError>;
    /// Those of a state, the newest first.
    fn deliveries(&self, state: DeliveryState) -> Result<Vec<Delivery>, StoreError>;
}
