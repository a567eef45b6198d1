//! Settings of the running system. They take precedence over files, and the environment over them.

use serde_json::Value;

use crate::error::StoreError;
use crate::tasks::Now;

/// Stores the settings of the running system.
pub trait SystemConfig {
    /// Returns all settings, by key.
    fn system_config(&self) -> Result<Vec<(String, Value)>, StoreError>;
    /// Sets values, or removes them with `None`, in one transaction.
    fn set_system_config(&self, changes: &[(String, Option<Value>)], now: Now) -> Result<(), StoreError>;
}
