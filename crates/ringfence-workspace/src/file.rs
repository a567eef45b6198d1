//! Reading a file that a run may have written: bounded, whatever its length claims.

use std::fs::File;
use std::io::{self, Read};

/// No more memory is taken before any of a file was read: its length may be a claim only.
const EXPECTED_BYTES: u64 = 1 << 20;

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
    let length = file.metadata()?.len();
    read_known(file, length, limit)
}

/// The same for a file whose length was asked for already.
pub(crate) fn read_known(file: File, length: u64, limit: u64) -> Result<Vec<u8>, ReadError> {
    if length > limit {
        return Err(ReadError::TooLong { limit });
    }
    // One call reads all of a short file, and one more finds its end.
    let mut content = Vec::with_capacity(usize::try_from(length.min(EXPECTED_BYTES)).unwrap_or(0) + 64);
    file.take(limit.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > limit { Err(ReadError::TooLong { limit }) } else { Ok(content) }
}
