//! What the daemon and its processes say: at a terminal, or in files that are rotated by day.

use std::path::{Path, PathBuf};

use anyhow::Context;
use ringfence_core::config::{LogFormat, QueueSettings};
use ringfence_store::atomic;
use tracing_appender::rolling::{RollingFileAppender, Rotation};
use tracing_subscriber::fmt;

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
    let json = settings.log_format == LogFormat::Json;
    if !to_files {
        let builder = fmt().with_writer(std::io::stderr).with_target(false);
        if json {
            builder.json().init();
        } else {
            builder.init();
        }
        return Ok(());
    }
    let directory = directory(state);
    atomic::private_dir(&directory).with_context(|| format!("{} cannot be made", directory.display()))?;
    let appender = RollingFileAppender::builder()
        .rotation(Rotation::DAILY)
        .filename_prefix(name)
        .filename_suffix("log")
        .max_log_files(settings.log_days)
        .build(&directory)
        .context("the log cannot be written")?;
    let builder = fmt().with_writer(std::sync::Mutex::new(appender)).with_target(false).with_ansi(false);
    if json {
        builder.json().init();
    } else {
        builder.init();
    }
    Ok(())
}
