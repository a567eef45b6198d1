//! Reading a file that a run may have written: bounded, whatever its length claims.

use std::fs::File;
use std::io::{self, Read};

/// Why a file was not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The system says no.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is longer than its reader takes.
    #[error("it has more than {limit} bytes")]
    TooLong {
        /// The most that is read.
        limit: u64,
    },
    /// It is not UTF-8.
    #[error("it is not valid UTF-8")]
    NotText,
}

impl ReadError {
    /// Whether the file does not exist.
    pub fn is_missing(&self) -> bool {
        let missing = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        };
        matches!(self, ReadError::Io(error) if missing(error))
    }
}

/// Reads an open file to its end, if that is at most `limit` bytes.
pub fn read_bounded(file: File, limit: u64) -> Result<Vec<u8>, ReadError> {
    if file.metadata()?.len() > limit {
        return Err(ReadError::TooLong { limit });
    }
    let mut content = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > limit { Err(ReadError::TooLong { limit }) } else { Ok(content) }
}
