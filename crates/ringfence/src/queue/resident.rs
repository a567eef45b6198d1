//! A process that takes tasks: the dispatcher, or a worker, tester or docser.

use std::os::fd::AsFd;

use anyhow::{Context, bail};
use ringfence_engine::queue::{Dispatcher, Post, ProcessLocks, ProcessName};

use super::logging;
use super::office::Office;
use crate::installation::Installation;

/// The hidden argument that makes the binary such a process.
pub(crate) const ARGUMENT: &str = "__process";

/// Takes tasks until standard input says otherwise.
pub(crate) fn resident(name: &str, logs: &str) -> anyhow::Result<()> {
    let installation = &Installation::discover(None)?;
    let name: ProcessName = name.parse()?;
    let to_files = logs == "files";
    let office = Office { installation, logs_to_files: to_files };
    let Some(_alive) = ProcessLocks::new(&installation.state).take(&name.to_string())? else {
        bail!("{name} runs already");
    };
    let store = installation.store()?;
    // Settings that cannot be read are told of by the dispatcher, in a log as nobody has set it.
    let settings = installation.settings().or_else(|_| Installation::default_settings())?;
    logging::begin(&installation.state, &name.to_string(), &settings.queue, to_files)?;
    let listener = store.notifier().listen().context("changes of the queue cannot be watched")?;
    let settings = installation.watch_settings().context("the settings cannot be watched")?;
    let dispatcher = Dispatcher {
        name: name.to_string(),
        post: match name {
            ProcessName::Dispatcher(_) => Post::Dispatcher,
            ProcessName::Resident(role, _) => Post::Resident(role),
        },
        store: &*store,
        state: &installation.state,
        premises: &office,
        clock: installation.clock(),
    };
    tracing::info!(%name, "takes tasks");
    dispatcher.work(std::io::stdin().as_fd(), &[listener.as_fd(), settings.as_fd()])?;
    tracing::info!(%name, "takes no more tasks");
    Ok(())
}
