//! A login that runs out: one owner refreshes it, on the host, and everybody is served from it.
//!
//! ```text
//!   a request needs the token ──▶ is it good for a while? ──yes──▶ use it
//!                                      │ no
//!                 lock (this process, then all processes of the person)
//!                                      │
//!            journal left by somebody who was killed? apply it
//!                                      │
//!            somebody else has refreshed meanwhile? use theirs
//!                                      │
//!        ask the provider ──▶ journal ──▶ write back to where the CLI keeps it ──▶ forget the journal
//! ```

mod kind;
mod store;
mod tool;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Method, Request, StatusCode};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use ringfence_core::policy::Host;
use serde_json::Value;
use tokio::sync::{Mutex, OwnedMutexGuard};

pub(crate) use kind::{CHATGPT, CLAUDE, Kind};
pub(crate) use store::{Store, Version};
pub use tool::{LoginReport, LoginTool};

use crate::answer::{Body, whole};
use crate::audit::now_ms;
use crate::placeholder::Placeholder;
use crate::secret::Secret;
use crate::upstream::{Connector, no_way};

/// A token that runs out sooner is refreshed.
const SOON_MS: u64 = 5 * 60 * 1000;
/// How long a provider may take to answer.
const ASK_PATIENCE: Duration = Duration::from_secs(30);
/// How often a token is refreshed because a host did not accept it.
const BETWEEN_DOUBTS: Duration = Duration::from_secs(300);
/// How long those who come later do not ask again where somebody got no answer.
const BETWEEN_FAILURES: Duration = Duration::from_secs(20);
/// No answer of a provider is longer.
const LONGEST_ANSWER: usize = 1 << 20;

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    /// It cannot be read or written.
    #[error("the login in {place} cannot be used: {why}")]
    Store {
        /// Where it is.
        place: String,
        /// Why.
        why: String,
    },
    /// The provider does not accept it any more.
    #[error("the login in {place} is not accepted any more ({status}): log in again")]
    Rejected {
        /// Where it is.
        place: String,
        /// What the provider said.
        status: StatusCode,
    },
    /// The provider cannot be asked.
    #[error("{host} cannot be asked for a new token: {why}")]
    Unreachable {
        /// Whom.
        host: &'static str,
        /// Why.
        why: String,
    },
}

impl LoginError {
    fn store(store: &Store, error: &io::Error) -> Self {
        // Words of a document that cannot be read may be a secret; those of the system are not.
        LoginError::Store { place: store.to_string(), why: error.to_string() }
    }
}

/// What a login holds.
#[derive(Debug, Clone)]
pub(crate) struct Tokens {
    pub(crate) access: Secret,
    pub(crate) refresh: Option<Secret>,
    /// When the access token runs out, if that is known.
    pub(crate) expires_at_ms: Option<u64>,
}

impl Tokens {
    fn good_for_a_while(&self) -> bool {
        self.expires_at_ms.is_none_or(|at| at > now_ms() + SOON_MS)
    }

    fn good(&self) -> bool {
        self.expires_at_ms.is_none_or(|at| at > now_ms())
    }
}

/// A login of the person.
#[derive(Debug)]
pub struct Login {
    pub(crate) kind: &'static Kind,
    store: Store,
    /// Where its lock and its journal are.
    state: PathBuf,
    held: Arc<Mutex<Held>>,
    /// What a run knows in the place of each token.
    pub(crate) inside: Placeholders,
}

/// What is known of a login in this process.
#[derive(Debug)]
struct Held {
    tokens: Option<Tokens>,
    /// A token that a host did not accept.
    doubted: Option<Secret>,
    /// When it was refreshed for a doubt.
    last_doubt: Option<Instant>,
    /// When the provider could not be asked.
    last_failure: Option<Instant>,
}

impl Held {
    /// A token that has not run out.
    fn good(&self) -> Option<Secret> {
        self.tokens.as_ref().filter(|tokens| tokens.good()).map(|tokens| tokens.access.clone())
    }
}

/// What a run knows of a login.
#[derive(Debug)]
pub(crate) struct Placeholders {
    pub(crate) access: Placeholder,
    pub(crate) refresh: Placeholder,
    pub(crate) id: Option<Placeholder>,
}

impl Login {
    /// The login in a place, if there is one.
    pub(crate) fn open(
        kind: &'static Kind,
        store: Store,
        state: &Path,
    ) -> Result<Option<(Self, Value)>, LoginError> {
        let Some(document) = store.read().map_err(|error| LoginError::store(&store, &error))? else {
            return Ok(None);
        };
        let Some(tokens) = (kind.tokens)(&document) else { return Ok(None) };
        let inside = (kind.placeholders)(&document).map_err(|error| LoginError::store(&store, &error))?;
        let held = Held { tokens: Some(tokens), doubted: None, last_doubt: None, last_failure: None };
        let login =
            Self { kind, store, state: state.join("logins"), held: Arc::new(Mutex::new(held)), inside };
        Ok(Some((login, document)))
    }

    /// Where it is kept.
    pub fn place(&self) -> String {
        self.store.to_string()
    }

    /// The document as it is now.
    pub(crate) fn document(&self) -> Option<Value> {
        self.store.read().ok().flatten()
    }

    /// The token as it is now, good or not.
    pub(crate) fn now(&self) -> Secret {
        let tokens = self.document().and_then(|document| (self.kind.tokens)(&document));
        tokens.map_or_else(|| Secret::new(String::new()), |tokens| tokens.access)
    }

    /// The tokens that it was opened with, or has now.
    pub(crate) fn opened(&self) -> Option<Tokens> {
        self.held.try_lock().ok()?.tokens.clone()
    }

    /// Its tokens as they are kept now, whoever has refreshed it.
    pub(crate) fn read(&self) -> io::Result<Option<Tokens>> {
        Ok(self.store.read()?.and_then(|document| (self.kind.tokens)(&document)))
    }

    /// What changes when somebody refreshes it; nothing if it is not there.
    pub(crate) fn version(&self) -> Option<Version> {
        self.store.version(&self.state)
    }

    /// Whether a host is the one that refreshes it.
    pub(crate) fn is_at(&self, host: &Host, port: u16) -> bool {
        port == 443 && self.is_of(host)
    }

    /// Whether a host is the one that refreshes it, at whichever port.
    pub(crate) fn is_of(&self, host: &Host) -> bool {
        matches!(host, Host::Name(name) if name == self.kind.host)
    }

    /// A host did not accept this token.
    pub(crate) async fn doubt(&self, token: &Secret) {
        let mut held = self.held.lock().await;
        // Whoever is inside can make hosts refuse: that is believed now and then.
        if held.last_doubt.is_none_or(|last| last.elapsed() > BETWEEN_DOUBTS) {
            held.doubted = Some(token.clone());
        }
    }

    /// Waits until it is not being refreshed.
    pub(crate) async fn rest(&self) {
        drop(self.held.lock().await);
    }

    /// A token that is good for a while.
    pub(crate) async fn access(
        self: &Arc<Self>,
        client: &Client<Connector, Body>,
    ) -> Result<Secret, LoginError> {
        let held = Arc::clone(&self.held).lock_owned().await;
        if let Some(tokens) = &held.tokens {
            let doubted = held.doubted.as_ref().is_some_and(|token| token.reveal() == tokens.access.reveal());
            if tokens.good_for_a_while() && !doubted {
                return Ok(tokens.access.clone());
            }
        }
        if held.last_failure.is_some_and(|last| last.elapsed() < BETWEEN_FAILURES) {
            let why = "it could not be asked a moment ago".into();
            return held.good().ok_or(LoginError::Unreachable { host: self.kind.host, why });
        }
        // Not with the request: one that is given up must not take a new login with it.
        let (login, client) = (Arc::clone(self), client.clone());
        let renewed = tokio::spawn(async move { login.renew_held(held, &client).await });
        renewed.await.unwrap_or_else(|error| {
            Err(LoginError::Unreachable { host: self.kind.host, why: error.to_string() })
        })
    }

    async fn renew_held(
        &self,
        mut held: OwnedMutexGuard<Held>,
        client: &Client<Connector, Body>,
    ) -> Result<Secret, LoginError> {
        if held.doubted.take().is_some() {
            held.last_doubt = Some(Instant::now());
        }
        let known = held.tokens.as_ref().map(|tokens| tokens.access.clone());
        match self.renew(client, known.as_ref()).await {
            Ok(tokens) => Ok(held.tokens.insert(tokens).access.clone()),
            Err(error) => {
                if let LoginError::Unreachable { .. } = error {
                    held.last_failure = Some(Instant::now());
                }
                // A token that is still good is better than none.
                held.good().ok_or(error)
            }
        }
    }

    /// A new token now, though the old one may still be good.
    pub(crate) async fn refresh(&self, client: &Client<Connector, Body>) -> Result<(), LoginError> {
        let mut held = self.held.lock().await;
        let known = self.now();
        held.tokens = Some(self.renew(client, Some(&known)).await?);
        Ok(())
    }

    /// A new token, whoever gets it. `known` is the one that is no longer good.
    async fn renew(
        &self,
        client: &Client<Connector, Body>,
        known: Option<&Secret>,
    ) -> Result<Tokens, LoginError> {
        let wrong = |error: &io::Error| LoginError::store(&self.store, error);
        let (state, name) = (self.state.clone(), self.kind.name);
        let locked = tokio::task::spawn_blocking(move || store::lock(&state, name)).await;
        let _lock =
            locked.map_err(|error| wrong(&io::Error::other(error)))?.map_err(|error| wrong(&error))?;
        store::recover(&self.state, self.kind, &self.store).map_err(|error| wrong(&error))?;
        let document = self.store.read().map_err(|error| wrong(&error))?.unwrap_or_default();
        let missing = || wrong(&io::Error::from(io::ErrorKind::NotFound));
        let tokens = (self.kind.tokens)(&document).ok_or_else(missing)?;
        let same = known.is_some_and(|known| known.reveal() == tokens.access.reveal());
        if !same && tokens.good_for_a_while() {
            return Ok(tokens);
        }
        let asked = tokio::time::timeout(ASK_PATIENCE, self.ask(client, &document, &tokens)).await;
        let answer = asked.unwrap_or_else(|_| {
            Err(LoginError::Unreachable { host: self.kind.host, why: "it does not answer".into() })
        })?;
        store::journal(&self.state, self.kind, &tokens, &answer).map_err(|error| wrong(&error))?;
        store::recover(&self.state, self.kind, &self.store).map_err(|error| wrong(&error))?;
        let document = self.store.read().map_err(|error| wrong(&error))?.unwrap_or_default();
        (self.kind.tokens)(&document).ok_or_else(missing)
    }

    /// Asks the provider.
    async fn ask(
        &self,
        client: &Client<Connector, Body>,
        document: &Value,
        tokens: &Tokens,
    ) -> Result<Value, LoginError> {
        let rejected = |status| LoginError::Rejected { place: self.place(), status };
        let unreachable = |why: String| LoginError::Unreachable { host: self.kind.host, why };
        let refresh = tokens.refresh.as_ref().ok_or_else(|| rejected(StatusCode::UNAUTHORIZED))?;
        let body = (self.kind.request)(document, refresh.reveal());
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("https://{}{}", self.kind.host, self.kind.path))
            .header("content-type", "application/json")
            .header("accept", "application/json")
            .body(whole(body.to_string()))
            .map_err(|error| unreachable(error.to_string()))?;
        let answer = client.request(request).await.map_err(|error| {
            unreachable(no_way(&error).map_or_else(|| error.to_string(), |refusal| refusal.message.clone()))
        })?;
        let status = answer.status();
        let body = http_body_util::Limited::new(answer.into_body(), LONGEST_ANSWER).collect().await;
        let body = body.map_err(|error| unreachable(error.to_string()))?.to_bytes();
        match status {
            status if status.is_success() => {
                let answer: Value = serde_json::from_slice(&body)
                    .map_err(|_| unreachable("it answers something else than a token".into()))?;
                if answer.get("access_token").and_then(Value::as_str).is_none_or(str::is_empty) {
                    return Err(unreachable("it answers without a token".into()));
                }
                Ok(answer)
            }
            status if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS => {
                Err(rejected(status))
            }
            status => Err(unreachable(format!("it answers {status}"))),
        }
    }

    /// What a run is told that refreshes by itself: that it has what it had.
    pub(crate) fn answer(&self) -> Value {
        let Placeholders { access, refresh, id } = &self.inside;
        serde_json::json!({
            "token_type": "Bearer",
            "access_token": access.text(),
            "refresh_token": refresh.text(),
            "id_token": id.as_ref().map(Placeholder::text),
            "expires_in": 10 * 365 * 24 * 3600_u64,
            "scope": "",
        })
    }
}

/// What a placeholder of a credential stands for.
#[derive(Debug, Clone)]
pub(crate) enum Real {
    /// This.
    Fixed(Secret),
    /// The token of a login, whichever is good.
    Login(Arc<Login>),
}

impl Real {
    pub(crate) async fn get(&self, client: &Client<Connector, Body>) -> Result<Secret, LoginError> {
        match self {
            Real::Fixed(secret) => Ok(secret.clone()),
            Real::Login(login) => login.access(client).await,
        }
    }

    pub(crate) fn login(&self) -> Option<&Arc<Login>> {
        match self {
            Real::Fixed(_) => None,
            Real::Login(login) => Some(login),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::Path;
    use std::sync::Arc;

    use scripted_model::{Front, Script, Server};
    use serde_json::{Value, json};

    use super::{CLAUDE, Login, LoginError, Store, store};
    use crate::session::login_client;
    use crate::upstream::{Connector, Tls};
    use crate::{answer::Body, audit::now_ms};

    type Client = hyper_util::client::legacy::Client<Connector, Body>;

    struct Scene {
        home: tempfile::TempDir,
        server: Server,
        front: Front,
    }

    impl Scene {
        fn new(expires_at_ms: u64) -> Self {
            let home = tempfile::tempdir().unwrap();
            let server = Server::start(Script::new(Vec::new())).unwrap();
            let front = Front::start(server.address(), &[CLAUDE.host]).unwrap();
            let scene = Self { home, server, front };
            let login = json!({"accessToken": "old", "refreshToken": "refresh-old", "expiresAt": expires_at_ms,
                "scopes": ["a", "b"], "subscriptionType": "max"});
            scene.write(&json!({"claudeAiOauth": login, "more": 1}));
            scene
        }

        fn file(&self) -> std::path::PathBuf {
            self.home.path().join("login.json")
        }

        fn write(&self, document: &Value) {
            std::io::Write::write_all(
                &mut fs::File::create(self.file()).unwrap(),
                document.to_string().as_bytes(),
            )
            .unwrap();
            fs::set_permissions(self.file(), fs::Permissions::from_mode(0o600)).unwrap();
        }

        fn document(&self) -> Value {
            serde_json::from_slice(&fs::read(self.file()).unwrap()).unwrap()
        }

        fn login(&self) -> Arc<Login> {
            let store = Store::File(self.file());
            Arc::new(Login::open(&CLAUDE, store, &self.home.path().join("state")).unwrap().unwrap().0)
        }

        fn client(&self) -> Client {
            let to = format!("{}:443={}", CLAUDE.host, self.front.address()).parse().unwrap();
            let tls = Tls::new(vec![self.front.root().to_owned()]).unwrap();
            login_client(&to, None, Arc::new(tls)).unwrap()
        }

        fn refreshes(&self) -> usize {
            self.server.requests().len()
        }
    }

    const PAST: u64 = 1;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn fifty_who_need_a_token_at_once_cause_one_refresh() {
        let scene = Scene::new(PAST);
        let mut all = Vec::new();
        for _ in 0..50 {
            // Each with its own view of the file, as processes have.
            let (login, client) = (scene.login(), scene.client());
            all.push(tokio::spawn(async move { login.access(&client).await.unwrap().reveal().to_owned() }));
        }
        for one in all {
            assert!(one.await.unwrap().ends_with("REAL-SECRET-1"));
        }
        assert_eq!(scene.refreshes(), 1);
    }

    #[tokio::test]
    async fn what_is_written_back_is_as_the_cli_wrote_it() {
        let scene = Scene::new(PAST);
        let link = scene.home.path().join("link.json");
        std::os::unix::fs::symlink(scene.file(), &link).unwrap();
        let state = scene.home.path().join("state");
        let (login, _) = Login::open(&CLAUDE, Store::File(link.clone()), &state).unwrap().unwrap();
        Arc::new(login).access(&scene.client()).await.unwrap();
        let document = scene.document();
        assert_eq!(document["more"], 1);
        let login = &document["claudeAiOauth"];
        assert_eq!(
            (&login["subscriptionType"], &login["refreshToken"]),
            (&"max".into(), &"refresh-REAL-SECRET-1".into())
        );
        assert!(login["expiresAt"].as_u64().unwrap() > now_ms() + 3_000_000);
        assert_eq!(fs::metadata(scene.file()).unwrap().mode() & 0o777, 0o600);
        assert!(fs::symlink_metadata(link).unwrap().is_symlink());
        let sent = &scene.server.requests()[0].body;
        assert_eq!((&sent["refresh_token"], &sent["scope"]), (&"refresh-old".into(), &"a b".into()));
        let left: Vec<_> =
            fs::read_dir(state.join("logins")).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(left, ["claude.lock"]);
    }

    #[tokio::test]
    async fn a_kill_after_the_refresh_does_not_lose_the_login() {
        let scene = Scene::new(PAST);
        let login = scene.login();
        let state = scene.home.path().join("state/logins");
        drop(store::lock(&state, CLAUDE.name).unwrap());
        let tokens = (CLAUDE.tokens)(&scene.document()).unwrap();
        let answer = json!({"access_token": "new", "refresh_token": "refresh-new", "expires_in": 3600});
        store::journal(&state, &CLAUDE, &tokens, &answer).unwrap();
        // Killed here. The next one finds what was kept, and asks nobody.
        assert_eq!(login.access(&scene.client()).await.unwrap().reveal(), "new");
        assert_eq!(scene.refreshes(), 0);
        assert_eq!(scene.document()["claudeAiOauth"]["refreshToken"], "refresh-new");
    }

    #[tokio::test]
    async fn a_new_login_of_the_person_is_worth_more_than_a_journal() {
        let scene = Scene::new(PAST);
        let state = scene.home.path().join("state/logins");
        drop(store::lock(&state, CLAUDE.name).unwrap());
        let tokens = (CLAUDE.tokens)(&scene.document()).unwrap();
        store::journal(&state, &CLAUDE, &tokens, &json!({"access_token": "new"})).unwrap();
        let login = scene.login();
        let later = now_ms() + 3_600_000;
        scene.write(
            &json!({"claudeAiOauth": {"accessToken": "person", "refreshToken": "r", "expiresAt": later}}),
        );
        assert_eq!(login.access(&scene.client()).await.unwrap().reveal(), "person");
        assert_eq!(scene.refreshes(), 0);
    }

    #[tokio::test]
    async fn a_token_that_was_not_accepted_is_refreshed_once() {
        let scene = Scene::new(now_ms() + 3_600_000);
        let (login, client) = (scene.login(), scene.client());
        let old = login.access(&client).await.unwrap();
        assert_eq!(old.reveal(), "old");
        // Somebody inside who makes hosts refuse does not cause more.
        for _ in 0..5 {
            let token = login.access(&client).await.unwrap();
            login.doubt(&token).await;
        }
        assert!(login.access(&client).await.unwrap().reveal().ends_with("REAL-SECRET-1"));
        login.doubt(&old).await;
        assert_eq!(scene.refreshes(), 1);
    }

    #[tokio::test]
    async fn a_request_that_is_given_up_does_not_lose_the_login() {
        let scene = Scene::new(PAST);
        let (login, client) = (scene.login(), scene.client());
        let given_up = tokio::time::timeout(std::time::Duration::from_micros(1), login.access(&client)).await;
        assert!(given_up.is_err());
        login.rest().await;
        assert_eq!(scene.document()["claudeAiOauth"]["refreshToken"], "refresh-REAL-SECRET-1");
    }

    #[tokio::test]
    async fn a_token_that_is_good_is_used_though_it_cannot_be_refreshed() {
        let scene = Scene::new(PAST);
        scene.write(&json!({"claudeAiOauth": {"accessToken": "alone", "expiresAt": now_ms() + 3_600_000}}));
        let (login, client) = (scene.login(), scene.client());
        let token = login.access(&client).await.unwrap();
        login.doubt(&token).await;
        assert_eq!(login.access(&client).await.unwrap().reveal(), "alone");
    }

    #[tokio::test]
    async fn a_login_that_cannot_be_refreshed_says_so_without_its_tokens() {
        let scene = Scene::new(PAST);
        let login = scene.login();
        let nobody: Client = {
            let to = format!("{}:443=127.0.0.1:1", CLAUDE.host).parse().unwrap();
            login_client(&to, None, Arc::new(Tls::new(Vec::new()).unwrap())).unwrap()
        };
        let error = login.access(&nobody).await.unwrap_err();
        assert!(
            matches!(error, LoginError::Unreachable { .. }) && !error.to_string().contains("old"),
            "{error}"
        );
        assert_eq!(scene.document()["claudeAiOauth"]["refreshToken"], "refresh-old");
    }

    /// A stand-in for the program that reads the keychain of a Mac: it checks every argument.
    #[tokio::test]
    async fn a_login_in_the_keychain_is_read_and_written_back_without_showing_it() {
        let scene = Scene::new(PAST);
        let program = scene.home.path().join("security");
        let script = format!(
            "#!/bin/sh\ncase \"$*\" in\n\
             'find-generic-password -s Claude Code-credentials -a me -w') cat {0};;\n\
             '-i') read -r line; hex=${{line##* -X }}\n\
             [ \"${{line% -X *}}\" = 'add-generic-password -U -s \"Claude Code-credentials\" -a \"me\"' ] || exit 3\n\
             echo $hex | sed 's/../0x& /g' | tr ' ' '\\n' | while read -r b; do [ -n \"$b\" ] && \
             printf \"\\\\$(printf %o $b)\"; done > {0}; true;;\n*) exit 2;;\nesac\n",
            scene.file().display()
        );
        std::io::Write::write_all(&mut fs::File::create(&program).unwrap(), script.as_bytes()).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let store = Store::Keychain { program, service: "Claude Code-credentials", account: "me".into() };
        let state: &Path = &scene.home.path().join("state");
        let login = Arc::new(Login::open(&CLAUDE, store, state).unwrap().unwrap().0);
        assert!(login.access(&scene.client()).await.unwrap().reveal().ends_with("REAL-SECRET-1"));
        assert_eq!(scene.document()["claudeAiOauth"]["refreshToken"], "refresh-REAL-SECRET-1");
        assert_eq!(scene.document()["more"], 1);
    }
}
