//! What more than one backend needs. Nothing here knows a mode.

pub(crate) mod probing;
pub(crate) mod surroundings;
