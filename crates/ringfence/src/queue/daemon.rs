//! The daemon: keeps the processes running, tells who wants to know, and tidies up.

use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use ringfence_core::config::Settings;
use ringfence_engine::queue::{DRAIN, Deliverer, Manager, ProcessLocks, ProcessName, pause, write_letters};
use ringfence_store::sqlite::Sqlite;
use ringfence_store::{DeadLetter, DeadLetters, Deliveries, Processes};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::answering;
use super::keeping::{self, Kept};
use super::logging;
use super::office::Office;
use crate::governing::note_daemon_program;
use crate::installation::{Installation, read_text};
use crate::report::{advise, unstored};

/// How often the house is tidied.
const TIDY: Duration = Duration::from_secs(6 * 3600);
/// How long to wait after something went wrong.
const AGAIN: Duration = Duration::from_secs(30);
/// Clocks jump, so nobody sleeps longer while something waits for its time.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// How the daemon is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Serving {
    /// In front of a person.
    Foreground,
    /// Apart from who started it.
    Background,
}

/// Runs until it is told to end. `ready` is called once it does its work.
pub(crate) fn serve(
    installation: &Installation,
    serving: Serving,
    listen: Option<&str>,
    ready: impl FnOnce(Option<SocketAddr>),
) -> anyhow::Result<()> {
    let locks = ProcessLocks::new(&installation.state);
    let office = Office { installation, logs_to_files: serving == Serving::Background };
    let settings = installation.settings()?;
    installation.refuse_visible_state()?;
    let Some(_alive) = locks.take(ProcessLocks::DAEMON).context("the state directory cannot be used")? else {
        return Err(advise(anyhow!("the daemon runs already"), "`ringfence status` shows it"));
    };
    installation.list_state();
    let store = installation.store()?;
    store.verify().map_err(unstored)?;
    logging::begin(&installation.state, "daemon", &settings.queue, office.logs_to_files)?;
    write_missing_letters(installation, &store)?;
    want_dispatcher(&store, &settings, installation)?;
    let orders = orders()?;
    let listener = store.notifier().listen().context("changes of the queue cannot be watched")?;
    let watched = installation.watch_settings().context("the settings cannot be watched")?;
    deliver(installation, &store)?;
    tidy(installation, &store)?;
    note_daemon_program(installation)?;
    let clock = installation.clock();
    let manager = Manager { store: &*store, state: &installation.state, command: &office, clock };
    let address = answering::answer(installation, &settings.server, listen)?;
    tracing::info!(pid = std::process::id(), "the daemon runs");
    ready(address);
    manager.work(orders.as_fd(), &[listener.as_fd(), watched.as_fd()])?;
    tracing::info!("the daemon ends");
    Ok(())
}

/// Signals as orders: to end what runs, or to wait for it.
fn orders() -> anyhow::Result<UnixStream> {
    let (orders, mut give) = UnixStream::pair()?;
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1])?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            let _ = give.write_all(&[if signal == SIGUSR1 { DRAIN } else { b'b' }]);
        }
    })?;
    Ok(orders)
}

/// Letters whose file could not be written when they died.
fn write_missing_letters(installation: &Installation, store: &Sqlite) -> anyhow::Result<()> {
    let letters =
        store.dead_letters(None, usize::MAX).map_err(unstored)?.into_iter().map(|letter| letter.task.id);
    let missing = letters.filter(|task| !DeadLetter::file(&installation.state, task).exists());
    write_letters(store, &installation.state, &missing.collect::<Vec<_>>());
    Ok(())
}

/// The first time, the settings say whether tasks are taken; afterwards whoever starts and stops it.
fn want_dispatcher(store: &Sqlite, settings: &Settings, installation: &Installation) -> anyhow::Result<()> {
    let name = ProcessName::FIRST_DISPATCHER.to_string();
    if store.processes().map_err(unstored)?.iter().any(|row| row.name == name) {
        return Ok(());
    }
    store.want_process(&name, settings.queue.dispatcher, installation.clock().now()).map_err(unstored)
}

/// Tells who wants to know, for as long as the daemon lives.
fn deliver(installation: &Installation, store: &Arc<Sqlite>) -> anyhow::Result<()> {
    let (installation, store) = (installation.clone(), Arc::clone(store));
    let listener = store.notifier().listen()?;
    std::thread::Builder::new().name("webhooks".into()).spawn(move || {
        loop {
            let wait = match deliver_due(&installation, &store) {
                Ok(due) => due,
                Err(error) => {
                    tracing::warn!(why = format!("{error:#}"), "webhooks cannot be delivered");
                    Some(AGAIN)
                }
            };
            if listener.wait(wait).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}

fn deliver_due(installation: &Installation, store: &Sqlite) -> anyhow::Result<Option<Duration>> {
    if store.next_deliveries(1)?.is_empty() {
        return Ok(None);
    }
    let clock = installation.clock();
    let settings = installation.settings()?;
    let outside = installation.outside(&settings.broker)?;
    let secret = match &settings.queue.webhook_secret_file {
        Some(file) => {
            let text = read_text(&installation.expand(file))?.map(|text| text.trim().to_owned());
            // Whoever wants signatures gets nothing without one.
            Some(text.filter(|text| !text.is_empty()).context("queue.webhook_secret_file holds no secret")?)
        }
        None => installation.env.get("RINGFENCE_WEBHOOK_SECRET").filter(|text| !text.is_empty()).cloned(),
    };
    let deliverer = Deliverer { store, clock: clock.clone(), outside: &outside, secret: secret.as_deref() };
    let due = deliverer.deliver()?;
    Ok(due.map(|due| {
        let wait = due.saturating_mul(1000).saturating_sub(clock.now().ms);
        Duration::from_millis(wait.max(1)).min(LONGEST_SLEEP)
    }))
}

/// Takes away what is old, now and then.
fn tidy(installation: &Installation, store: &Arc<Sqlite>) -> anyhow::Result<()> {
    let (installation, store) = (installation.clone(), Arc::clone(store));
    std::thread::Builder::new().name("housekeeping".into()).spawn(move || {
        loop {
            let swept = installation.settings().and_then(|settings| {
                keeping::sweep(&installation, &store, &Kept::of(&settings.queue), false)
            });
            match swept {
                Ok(swept) if swept.is_nothing() => {}
                Ok(swept) => tracing::info!(?swept, "tidied up"),
                Err(error) => tracing::warn!(why = format!("{error:#}"), "tidying up failed"),
            }
            pause(TIDY);
        }
    })?;
    Ok(())
}
