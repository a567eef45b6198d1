//! Paths as their bytes. A run can give a file any name.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserializer, Serializer};

/// Writes a path.
pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serde_bytes::serialize(path.as_os_str().as_bytes(), serializer)
}

/// Reads a path.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let bytes: Vec<u8> = serde_bytes::deserialize(deserializer)?;
    Ok(PathBuf::from(OsString::from_vec(bytes)))
}
