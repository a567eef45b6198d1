//! What every request needs: the installation, who may do what, how often, and what is going on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ringfence_core::mode::ExecutionEnvironment;
use ringfence_store::Happened;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::access::{Access, Who};
use crate::desk::{Answer, House, LoginCheck, ModeTiming};
use crate::metrics::Metrics;
use crate::problem::Problem;
use crate::rate::Rates;
use crate::sessions::Sessions;

/// How long the answer to a check of a login is good.
const CHECKED: Duration = Duration::from_secs(10);
/// Nobody waits longer for an event before looking again.
const LISTEN: Duration = Duration::from_secs(3600);

/// Shared by all requests.
#[derive(Clone)]
pub(crate) struct App(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) house: Arc<dyn House>,
    pub(crate) access: Access,
    pub(crate) rates: Rates,
    pub(crate) sessions: Sessions,
    pub(crate) metrics: Metrics,
    /// The last event's id; changes when something happens.
    pub(crate) last_event: watch::Receiver<u64>,
    /// How long modes took when they were last measured.
    pub(crate) timings: Mutex<Vec<ModeTiming>>,
    checks: BTreeMap<&'static str, tokio::sync::Mutex<Option<Checked>>>,
}

struct Checked {
    at: Instant,
    environment: Option<ExecutionEnvironment>,
    check: LoginCheck,
}

/// The agent CLIs that have a login.
pub(crate) const CLIS: [&str; 3] = ["claude", "codex", "opencode"];

impl std::ops::Deref for App {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl App {
    /// For an installation. One thread waits for events, for all who follow them.
    pub(crate) fn new(house: Arc<dyn House>, access: Access, rate: u32) -> std::io::Result<Self> {
        let last = house.last_event().unwrap_or(0);
        let (tell, last_event) = watch::channel(last);
        let listening = Arc::clone(&house);
        std::thread::Builder::new().name("events".into()).spawn(move || listen(&*listening, &tell))?;
        Ok(Self(Arc::new(Inner {
            house,
            access,
            rates: Rates::new(rate),
            sessions: Sessions::new()?,
            metrics: Metrics::default(),
            last_event,
            timings: Mutex::default(),
            checks: CLIS.into_iter().map(|cli| (cli, tokio::sync::Mutex::default())).collect(),
        })))
    }

    /// Asks the installation something that may take a while, without holding up anybody else.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&dyn House) -> Answer<T> + Send + 'static,
    ) -> Result<T, Problem> {
        let house = Arc::clone(&self.house);
        match tokio::task::spawn_blocking(move || question(&*house)).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(Problem::new(
                axum::http::StatusCode::INTERNAL_SERVER_ERROR,
                "internal",
                "the request could not be finished",
            )),
        }
    }

    /// Notes who changed what, with what it was and what it is.
    pub(crate) async fn audit(&self, who: Who, what: &str, subject: &str, before: Value, after: Value) {
        let happened = Happened {
            kind: "audit".to_owned(),
            task: None,
            run: None,
            data: json!({
                "who": who.to_string(), "what": what, "subject": subject, "before": before, "after": after,
            }),
        };
        if let Err(problem) = self.ask(move |house| house.note(&happened)).await {
            tracing::warn!(why = problem.detail(), what, subject, "a change could not be noted");
        }
        tracing::info!(%who, what, subject, "changed");
    }

    /// Whether an agent CLI has a login: one check at a time for each, and a fresh answer serves all who wait for it.
    pub(crate) async fn login(
        &self,
        cli: &str,
        environment: Option<ExecutionEnvironment>,
    ) -> Result<LoginCheck, Problem> {
        let (name, turn) = self.checks.get_key_value(cli).ok_or_else(|| {
            Problem::not_found(format!("there is no agent CLI `{cli}` with a login: {}", CLIS.join(", ")))
        })?;
        let mut last = turn.lock().await;
        if let Some(known) = last.as_ref().filter(|known| known.environment == environment)
            && known.at.elapsed() < CHECKED
        {
            return Ok(known.check.clone());
        }
        let name = *name;
        let check = self.ask(move |house| house.login(name, environment)).await?;
        *last = Some(Checked { at: Instant::now(), environment, check: check.clone() });
        Ok(check)
    }
}

/// Tells who follows events that there are some, for as long as anybody could.
fn listen(house: &dyn House, tell: &watch::Sender<u64>) {
    loop {
        let after = *tell.borrow();
        match house.events(after, 1000, LISTEN) {
            Ok(entries) => {
                if let Some(last) = entries.last() {
                    tell.send_replace(last.id);
                }
            }
            // A store that is gone for a while; the daemon itself ends if it stays gone.
            Err(_) => std::thread::park_timeout(Duration::from_secs(1)),
        }
        if tell.is_closed() {
            return;
        }
    }
}

/// A lock that is good whoever held it before.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
