//! An error with all its causes, each once.

use std::error::Error;
use std::fmt::Write;

/// What happened, and because of what.
pub(crate) fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let _ = write!(text, ": {cause}");
        source = cause.source();
    }
    text
}
