//! What the daemon and its processes say: at a terminal, or in files that are rotated by day.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::Context;
use ringfence_core::config::{LogFormat, QueueSettings};
use ringfence_store::atomic;
use tracing_appender::rolling::{RollingFileAppender, Rotation};
use tracing_subscriber::fmt;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use crate::terminal;

/// Where the logs of an installation are.
pub(crate) fn directory(state: &Path) -> PathBuf {
    state.join("logs")
}

/// From now on what is said is kept: in files of the process's name, or on standard error.
pub(crate) fn begin(
    state: &Path,
    name: &str,
    settings: &QueueSettings,
    to_files: bool,
) -> anyhow::Result<()> {
    let writer = if to_files {
        BoxMakeWriter::new(Mutex::new(file(state, name, settings)?))
    } else {
        BoxMakeWriter::new(|| terminal::Messages)
    };
    let mut builder = fmt().with_writer(writer).with_target(false);
    if to_files {
        builder = builder.with_ansi(false);
    }
    match settings.log_format {
        LogFormat::Json => builder.json().init(),
        LogFormat::Text => builder.init(),
    }
    Ok(())
}

/// A file a day.
fn file(state: &Path, name: &str, settings: &QueueSettings) -> anyhow::Result<RollingFileAppender> {
    let directory = directory(state);
    atomic::private_dir(&directory).with_context(|| format!("{} cannot be made", directory.display()))?;
    RollingFileAppender::builder()
        .rotation(Rotation::DAILY)
        .filename_prefix(name)
        .filename_suffix("log")
        .max_log_files(settings.log_days)
        .build(&directory)
        .context("the log cannot be written")
}
