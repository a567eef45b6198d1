//! Secrets that a session knows, each for the hosts that it belongs to. A host may repeat one in any answer: also one that only
//! another run has sent, and also in an answer that is under way when a login is refreshed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ringfence_core::policy::Host;

use crate::credential::Credential;
use crate::login::{Login, Tokens, Version};
use crate::secret::Secret;

/// More secrets of one credential are not remembered, the oldest first: a login has another token every hour or so.
const MAX_REMEMBERED: usize = 256;
/// Shorter parts of an encoded password are not looked for: they could be anything.
const MIN_ENCODED_CHARS: usize = 8;

/// Some secrets, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct KnownSecrets {
    secrets: Mutex<VecDeque<Secret>>,
    /// How many there were, to be read for each piece of an answer.
    count: AtomicUsize,
    login: Option<Followed>,
}

/// A login, which any process may refresh.
#[derive(Debug)]
struct Followed {
    login: Arc<Login>,
    /// Whether its hosts know the token that refreshes it.
    with_refresh: bool,
    /// What was read of it.
    read: Mutex<Option<Version>>,
}

impl Followed {
    fn secrets(&self, tokens: Tokens) -> impl Iterator<Item = Secret> {
        [Some(tokens.access), tokens.refresh.filter(|_| self.with_refresh)].into_iter().flatten()
    }

    /// Its tokens, if they may be others than were read before.
    fn changed(&self) -> Option<Tokens> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let version = self.login.version()?;
        if read.as_ref() == Some(&version) {
            return None;
        }
        // One that cannot be read now is read again.
        let tokens = self.login.read().ok()?;
        *read = Some(version);
        tokens
    }
}

impl KnownSecrets {
    /// Those of a credential.
    fn of(credential: &Credential) -> Self {
        let login = credential.login().map(|login| Self::of_login(login, false));
        let known = login.unwrap_or_default();
        known.add(&credential.secrets());
        known
    }

    fn of_login(login: &Arc<Login>, with_refresh: bool) -> Self {
        let followed = Followed { login: Arc::clone(login), with_refresh, read: Mutex::default() };
        let tokens: Vec<Secret> =
            login.opened().into_iter().flat_map(|tokens| followed.secrets(tokens)).collect();
        let known = Self { login: Some(followed), ..Self::default() };
        known.add(&tokens);
        known
    }

    /// Notes secrets that are about to be sent.
    pub(crate) fn add(&self, new: &[Secret]) {
        let mut secrets = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        for secret in new {
            if !secrets.iter().any(|known| known.reveal() == secret.reveal()) {
                secrets.push_back(secret.clone());
                self.count.fetch_add(1, Ordering::Release);
            }
        }
        let forgotten = secrets.len().saturating_sub(MAX_REMEMBERED);
        secrets.drain(..forgotten);
    }

    /// Returns the secrets that were added after the first `known` ones, and counts them as known.
    fn after(&self, known: &mut usize) -> Vec<Secret> {
        if let Some(login) = &self.login
            && let Some(tokens) = login.changed()
        {
            self.add(&login.secrets(tokens).collect::<Vec<_>>());
        }
        if self.count.load(Ordering::Acquire) <= *known {
            return Vec::new();
        }
        let secrets = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        let count = self.count.load(Ordering::Acquire);
        let new = count.saturating_sub(*known).min(secrets.len());
        *known = count;
        secrets.iter().skip(secrets.len() - new).cloned().collect()
    }
}

/// The secrets of a session.
#[derive(Debug, Default)]
pub(crate) struct SessionSecrets {
    /// Of each credential.
    of_credentials: Vec<Arc<KnownSecrets>>,
    /// Of each login, for the host that refreshes it.
    of_logins: Vec<(Arc<Login>, Arc<KnownSecrets>)>,
}

impl SessionSecrets {
    pub(crate) fn of(credentials: &[Credential]) -> Self {
        let of_login =
            |login: &Arc<Login>| (Arc::clone(login), Arc::new(KnownSecrets::of_login(login, true)));
        Self {
            of_credentials: credentials.iter().map(|one| Arc::new(KnownSecrets::of(one))).collect(),
            of_logins: credentials.iter().filter_map(Credential::login).map(of_login).collect(),
        }
    }

    /// Those of one credential.
    pub(crate) fn of_credential(&self, index: usize) -> Option<&Arc<KnownSecrets>> {
        self.of_credentials.get(index)
    }

    /// Those that belong to a host, at whichever port. A host is not looked at for the secrets of others: that would tell it
    /// what they are.
    pub(crate) fn at(&self, credentials: &[Credential], host: &Host) -> HostSecrets {
        let own = credentials.iter().zip(&self.of_credentials);
        let own = own.filter(|(credential, _)| credential.is_at(host)).map(|(_, known)| known);
        let logins = self.of_logins.iter().filter(|(login, _)| login.is_of(host)).map(|(_, known)| known);
        HostSecrets(own.chain(logins).map(|known| (Arc::clone(known), 0)).collect())
    }
}

/// The secrets that belong to a host, each with how many are known to whoever overwrites them.
#[derive(Debug, Default)]
pub(crate) struct HostSecrets(Vec<(Arc<KnownSecrets>, usize)>);

impl HostSecrets {
    /// Returns those that were not returned before.
    pub(crate) fn new_ones(&mut self) -> impl Iterator<Item = Secret> {
        self.0.iter_mut().flat_map(|(secrets, known)| secrets.after(known))
    }
}

/// What a secret is within the encoding of basic authentication, whatever the user name before it: the characters that it alone
/// determines.
pub(crate) fn encoded_password(secret: &Secret) -> impl Iterator<Item = Secret> {
    (0..3).filter_map(|before| {
        let length = secret.reveal().len();
        let encoded = STANDARD.encode([&[0; 2][..before], secret.reveal().as_bytes()].concat());
        let own = encoded.get((8 * before).div_ceil(6)..8 * (before + length) / 6)?;
        (own.len() >= MIN_ENCODED_CHARS).then(|| Secret::new(own.to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;

    use ringfence_workspace::HostPrograms;
    use serde_json::json;

    use super::{KnownSecrets, MAX_REMEMBERED, SessionSecrets, encoded_password};
    use crate::providers::{Sources, find};
    use crate::secret::Secret;

    #[test]
    fn remembered_secrets_are_bounded_and_told_once() {
        let sent = KnownSecrets::default();
        let mut known = 0;
        sent.add(&[Secret::new("a".into()), Secret::new("a".into())]);
        assert_eq!(sent.after(&mut known).len(), 1);
        (0..1000).for_each(|number| sent.add(&[Secret::new(format!("secret-{number}"))]));
        let new = sent.after(&mut known);
        assert_eq!((new.len(), new.last().unwrap().reveal()), (MAX_REMEMBERED, "secret-999"));
        assert!(sent.after(&mut known).is_empty());
    }

    /// By this process or another one, which replaces the file or writes into it.
    #[test]
    fn token_that_somebody_has_refreshed_is_known_at_once() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join(".claude/.credentials.json");
        std::fs::create_dir(file.parent().unwrap()).unwrap();
        let write = |to: &std::path::Path, access: &str| {
            let login = json!({"claudeAiOauth": {"accessToken": access, "refreshToken": format!("refresh-{access}"),
                "expiresAt": u64::MAX, "scopes": ["a"]}});
            let mut file = std::fs::File::create(to).unwrap();
            std::io::Write::write_all(&mut file, login.to_string().as_bytes()).unwrap();
        };
        write(&file, "first");
        let env = BTreeMap::new();
        let sources = Sources {
            env: &env,
            moved: &[],
            home: home.path(),
            state: home.path(),
            programs: &HostPrograms::none(),
            keychain: None,
            base_url: None,
            login_gateways: &[],
        };
        let credentials = find(&["claude"], sources).unwrap();
        let secrets = SessionSecrets::of(&credentials);
        let [mut model, mut login, mut other] = ["api.anthropic.com", "platform.claude.com", "other.test"]
            .map(|host| secrets.at(&credentials, &host.parse().unwrap()));
        let mut new = |expected: [&[&str]; 3]| {
            for (secrets, expected) in [&mut model, &mut login, &mut other].into_iter().zip(expected) {
                let new: Vec<Secret> = secrets.new_ones().collect();
                assert_eq!(new.iter().map(Secret::reveal).collect::<Vec<_>>(), expected);
            }
        };
        new([&["first"], &["first", "refresh-first"], &[]]);
        new([&[], &[], &[]]);
        let other_file = home.path().join("other");
        write(&other_file, "second");
        std::fs::rename(other_file, &file).unwrap();
        new([&["second"], &["second", "refresh-second"], &[]]);
        // One that is only half written, as it is read, is read again.
        std::fs::File::create(&file).unwrap();
        new([&[], &[], &[]]);
        write(&file, "third, of another length");
        new([
            &["third, of another length"],
            &["third, of another length", "refresh-third, of another length"],
            &[],
        ]);
        std::fs::remove_file(&file).unwrap();
        new([&[], &[], &[]]);
    }

    #[test]
    fn password_is_known_whatever_the_user_name() {
        for length in 12..20 {
            let secret = Secret::new("ghp_0123456789abcdefghij"[..length].to_owned());
            for user in ["", "a", "ab", "abc", "x-access-token"] {
                for rest in ["", ":", ":x"] {
                    let encoded = STANDARD.encode(format!("{user}:{}{rest}", secret.reveal()));
                    let found = encoded_password(&secret).filter(|one| encoded.contains(one.reveal()));
                    assert_eq!(found.count(), 1, "{encoded}");
                }
            }
        }
        assert_eq!(encoded_password(&Secret::new("short".into())).count(), 0);
    }
}
