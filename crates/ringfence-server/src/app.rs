//! What every request needs: the installation, who may do what, how often, and what is going on.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use ringfence_core::ids::RunId;
use ringfence_core::mode::ExecutionEnvironment;
use ringfence_store::NewEvent;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, watch};

use crate::access::{Access, Who};
use crate::desk::{
    Answer, DoctorReport, FileChange, Hear, House, LoginCheck, ModeTiming, ModeView, Refusal, RefusalKind,
    Step,
};
use crate::login_codes::LoginCodes;
use crate::metrics::Metrics;
use crate::owner_token::OwnerToken;
use crate::peer_lookups::PeerLookups;
use crate::problem::Problem;
use crate::rate::Rates;
use crate::revocation::Epoch;
use crate::sessions::Sessions;
use crate::works::Works;

/// How long the answer to a check is good, and to what hardly ever changes.
const CHECKED: Duration = Duration::from_secs(10);
const LASTING: Duration = Duration::from_secs(60);
/// How long the answer is good whether the store can be used. Anybody can ask it as often as they like.
const READY: Duration = Duration::from_secs(1);
/// So many things are tried out at once.
const ATTEMPTS: usize = 3;
/// Nobody waits longer for an event before looking again.
const LISTEN: Duration = Duration::from_secs(3600);

/// Shared by all requests.
#[derive(Clone)]
pub(crate) struct App(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) house: Arc<dyn House>,
    access: RwLock<Access>,
    /// The daemon's state directory, which holds its own token.
    state: PathBuf,
    /// How often the daemon's own token was replaced.
    token_generation: watch::Sender<u64>,
    pub(crate) login_codes: LoginCodes,
    pub(crate) peer_lookups: PeerLookups,
    pub(crate) rates: Rates,
    pub(crate) sessions: Sessions,
    pub(crate) metrics: Metrics,
    /// The last event's id; changes when something happens.
    pub(crate) last_event: watch::Receiver<u64>,
    pub(crate) works: Works,
    /// How long modes took when they were last measured.
    pub(crate) timings: Mutex<Vec<ModeTiming>>,
    modes: Kept<Vec<ModeView>>,
    doctor: Kept<DoctorReport>,
    /// By agent CLI, and whether in a sandbox.
    logins: BTreeMap<(&'static str, bool), Kept<LoginCheck>>,
    ready: Kept<bool>,
    attempts: Arc<Semaphore>,
}

/// An answer that may be fresh enough; who makes it anew holds the lock.
type Kept<T> = Arc<tokio::sync::Mutex<Option<(Instant, T)>>>;

/// A request that is answered as long as this lives.
struct Asking(Arc<AtomicBool>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What was changed, for those who look later.
pub(crate) struct Noted {
    pub(crate) subject: String,
    pub(crate) before: Value,
    pub(crate) after: Value,
}

impl Noted {
    pub(crate) fn new(
        subject: impl std::fmt::Display,
        before: impl Into<Value>,
        after: impl Into<Value>,
    ) -> Self {
        Self { subject: subject.to_string(), before: before.into(), after: after.into() }
    }
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
    pub(crate) fn new(
        house: Arc<dyn House>,
        access: Access,
        state: PathBuf,
        rate: u32,
    ) -> std::io::Result<Self> {
        let last = house.last_event().unwrap_or(0);
        let (tell, last_event) = watch::channel(last);
        let listening = Arc::clone(&house);
        std::thread::Builder::new().name("events".into()).spawn(move || listen(&*listening, &tell))?;
        Ok(Self(Arc::new(Inner {
            house,
            access: RwLock::new(access),
            state,
            token_generation: watch::Sender::new(0),
            login_codes: LoginCodes::default(),
            peer_lookups: PeerLookups::start()?,
            rates: Rates::new(rate),
            sessions: Sessions::new()?,
            metrics: Metrics::default(),
            last_event,
            works: Works::default(),
            timings: Mutex::default(),
            modes: Kept::default(),
            doctor: Kept::default(),
            logins: CLIS
                .into_iter()
                .flat_map(|cli| [false, true].map(|sandbox| ((cli, sandbox), Kept::default())))
                .collect(),
            ready: Kept::default(),
            attempts: Arc::new(Semaphore::new(ATTEMPTS)),
        })))
    }

    /// Who may do what, as it is now.
    pub(crate) fn access(&self) -> RwLockReadGuard<'_, Access> {
        self.access.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes when the daemon's own token is replaced after this call.
    pub(crate) fn token_generation(&self) -> watch::Receiver<u64> {
        self.token_generation.subscribe()
    }

    /// The epoch of credentials that are checked after this call.
    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(*self.token_generation.borrow())
    }

    /// Replaces the daemon's own token. All sessions, login codes and responses that are still being sent to them end.
    pub(crate) async fn rotate_token(&self, who: Who) -> Result<(), Problem> {
        let app = self.clone();
        self.change(who, "token.rotate", move |_| {
            let token = OwnerToken::replace(&app.state)
                .map_err(|error| Refusal::new(RefusalKind::Internal, error.to_string()))?;
            app.access.write().unwrap_or_else(PoisonError::into_inner).set_owner(token.reveal());
            app.token_generation.send_modify(|generation| *generation += 1);
            let epoch = app.epoch();
            app.login_codes.clear(epoch);
            app.sessions.close_all(epoch);
            Ok(((), vec![Noted::new("api.token", Value::Null, "replaced")]))
        })
        .await
    }

    /// Asks the installation something that may take a while, without holding up anybody else.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&dyn House) -> Answer<T> + Send + 'static,
    ) -> Result<T, Problem> {
        let house = Arc::clone(&self.house);
        match tokio::task::spawn_blocking(move || question(&*house)).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(unfinished()),
        }
    }

    /// Changes something, and notes who changed what, with what it was and what it is, also when whoever asked has gone
    /// meanwhile.
    pub(crate) async fn change<T: Send + 'static>(
        &self,
        who: Who,
        what: &'static str,
        change: impl FnOnce(&dyn House) -> Answer<(T, Vec<Noted>)> + Send + 'static,
    ) -> Result<T, Problem> {
        self.ask(move |house| {
            let (done, notes) = change(house)?;
            for Noted { subject, before, after } in notes {
                tracing::info!(%who, what, subject, "changed");
                let data = json!({
                    "who": who.to_string(), "what": what, "subject": subject, "before": before, "after": after,
                });
                let happened = NewEvent { kind: "audit".to_owned(), task: None, run: None, data };
                if let Err(why) = house.note(&happened) {
                    tracing::warn!(%why, what, subject, "a change could not be noted");
                }
            }
            Ok(done)
        })
        .await
    }

    /// Asks something that is answered by trying things out: few at once, so that nobody else waits for a thread.
    pub(crate) async fn attempt<T: Send + 'static>(
        &self,
        name: &'static str,
        question: impl FnOnce(&dyn House, Hear<'_>) -> Answer<T> + Send + 'static,
    ) -> Result<T, Problem> {
        let under_way = self.works.begin(name, "waits for its turn");
        let turn = Arc::clone(&self.attempts).acquire_owned().await;
        self.ask(move |house| {
            // Held until it is over, whoever still waits for it.
            let _turn = turn;
            under_way.at(Step { done: 0, of: 0, what: String::new() });
            question(house, &|step| under_way.at(step))
        })
        .await
    }

    /// What a run has changed. It ends when nobody waits for it any more.
    pub(crate) async fn diff(&self, run: RunId) -> Result<Vec<FileChange>, Problem> {
        let asking = Asking(Arc::default());
        let has_gone = Arc::clone(&asking.0);
        let is_wanted = move || !has_gone.load(Ordering::Relaxed);
        self.attempt("diff", move |house, _| house.diff(&run, &is_wanted)).await
    }

    /// The same, where a fresh answer serves all who ask.
    async fn fresh<T: Clone + Send + 'static>(
        &self,
        known: &Kept<T>,
        good_for: Duration,
        name: &'static str,
        question: impl FnOnce(&dyn House, Hear<'_>) -> Answer<T> + Send + 'static,
    ) -> Result<T, Problem> {
        let mut last = Arc::clone(known).lock_owned().await;
        if let Some((_, answer)) = last.as_ref().filter(|(at, _)| at.elapsed() < good_for) {
            return Ok(answer.clone());
        }
        let asking = self.clone();
        let asked = tokio::spawn(async move {
            let answer = asking.attempt(name, question).await?;
            *last = Some((Instant::now(), answer.clone()));
            Ok(answer)
        });
        asked.await.unwrap_or_else(|_| Err(unfinished()))
    }

    /// Whether the store can be used.
    pub(crate) async fn is_ready(&self) -> bool {
        let mut last = self.ready.lock().await;
        if let Some((_, is_ready)) = last.filter(|(at, _)| at.elapsed() < READY) {
            return is_ready;
        }
        let is_ready = self.ask(|house| house.is_ready()).await.is_ok();
        *last = Some((Instant::now(), is_ready));
        is_ready
    }

    /// The modes, which hardly ever change.
    pub(crate) async fn modes(&self) -> Result<Vec<ModeView>, Problem> {
        self.fresh(&self.modes, LASTING, "modes", |house, _| house.modes()).await
    }

    /// What works on this machine.
    pub(crate) async fn doctor(&self) -> Result<DoctorReport, Problem> {
        self.fresh(&self.doctor, CHECKED, "doctor", |house, hear| house.doctor(hear)).await
    }

    /// Whether an agent CLI has a login: one check at a time for each.
    pub(crate) async fn login(
        &self,
        cli: &str,
        environment: Option<ExecutionEnvironment>,
    ) -> Result<LoginCheck, Problem> {
        let name = CLIS.into_iter().find(|known| *known == cli).ok_or_else(|| {
            Problem::not_found(format!("there is no agent CLI `{cli}` with a login: {}", CLIS.join(", ")))
        })?;
        // The current one is what the settings say now, and not what they said a moment ago.
        let environment = match environment {
            Some(environment) => environment,
            None => self.ask(|house| house.environment()).await?,
        };
        let known = &self.logins[&(name, environment == ExecutionEnvironment::Sandbox)];
        self.fresh(known, CHECKED, name, move |house, _| house.login(name, Some(environment))).await
    }
}

fn unfinished() -> Problem {
    Problem::new(
        axum::http::StatusCode::INTERNAL_SERVER_ERROR,
        "internal",
        "the request could not be finished",
    )
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
