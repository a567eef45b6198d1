//! Settings that are changed while everything runs. They stand above files and below the environment.

use serde_json::Value;

use crate::error::StoreError;
use crate::tasks::Now;

/// The settings of the running system.
pub trait SystemConfig {
    /// All of them, by key.
    fn system_config(&self) -> Result<Vec<(String, Value)>, StoreError>;
    /// Sets some, or takes them away: all or none.
    fn set_system_config(&self, changes: &[(String, Option<Value>)], now: Now) -> Result<(), StoreError>;
}
