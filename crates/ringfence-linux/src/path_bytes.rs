//! Paths in JSON: as text, or as their bytes where they are no text. A run can give a file any name.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Bytes(Vec<u8>),
}

/// Writes a path.
pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    let written = match path.to_str() {
        Some(text) => Written::Text(text.to_owned()),
        None => Written::Bytes(path.as_os_str().as_bytes().to_vec()),
    };
    written.serialize(serializer)
}

/// Reads a path.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    Ok(match Written::deserialize(deserializer)? {
        Written::Text(text) => PathBuf::from(text),
        Written::Bytes(bytes) => PathBuf::from(OsString::from_vec(bytes)),
    })
}
