//! Where credentials come from on the host, and what a run finds in their place. One file a provider, one table.

mod anthropic;
mod claude;
mod custom;
mod openai;
mod opencode;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringfence_core::policy::{BadHostRule, Host, HostRule};
use ringfence_workspace::HostPrograms;
use serde_json::Value;

use crate::credential::{Credential, Inside};
use crate::endpoints::Scope;
use crate::login::{Login, LoginError, Real, Store};
use crate::placeholder::Placeholder;
use crate::secret::Secret;

/// The host as the providers see it.
#[derive(Debug, Clone, Copy)]
pub struct Sources<'a> {
    /// The variables of the person.
    pub env: &'a BTreeMap<String, String>,
    /// The person's home.
    pub home: &'a Path,
    /// Directories of the home that are elsewhere: as they are called there, and where they are.
    pub moved: &'a [(PathBuf, PathBuf)],
    /// Where ringfence keeps what lasts.
    pub state: &'a Path,
    /// The programs of the host.
    pub programs: &'a HostPrograms,
    /// The program that reads the keychain, on machines that have one.
    pub keychain: Option<&'a Path>,
    /// The address of the model, where it is not the provider's own.
    pub base_url: Option<&'a str>,
    /// The hosts at which the user allows a login of a subscription, where the address of the model is at one of them.
    pub login_gateways: &'a [HostRule],
}

impl Sources<'_> {
    /// Where a path of the person's home is.
    pub fn place(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        let moved = self.moved.iter().find_map(|(from, to)| Some((path.strip_prefix(from).ok()?, to)));
        match moved {
            Some((rest, to)) if rest.as_os_str().is_empty() => to.clone(),
            Some((rest, to)) => to.join(rest),
            None => self.home.join(path),
        }
    }
}

/// Why a credential cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// A login is there and cannot be used.
    #[error(transparent)]
    Login(#[from] LoginError),
    /// A credential that a person has named cannot be had.
    #[error("the credential `{text}` cannot be had: {why}")]
    Named {
        /// As it is written.
        text: String,
        /// Why.
        why: String,
    },
    /// The only credential is a login, and the address of the model is not the provider's.
    #[error(
        "the {login} is not sent to {host}, where --base-url puts the model: set a key of that server ({variable}), or name the host in `broker.login_gateways`"
    )]
    LoginAtGateway {
        /// The credential.
        login: &'static str,
        /// Host and port of the address.
        host: HostRule,
        /// The variable of a key.
        variable: &'static str,
    },
    /// There is no randomness.
    #[error("a placeholder cannot be made: {0}")]
    Placeholder(#[from] io::Error),
    /// The address of the model names no host.
    #[error("the address of the model names no host that could be allowed")]
    Host(#[from] BadHostRule),
    /// The address of the model holds a user name, which programs would send in the place of the credential. It may hold a password,
    /// so no more than the host is named.
    #[error(
        "the address of the model at {host} holds a user name or a password, which is not taken: leave out all before the `@`, and give the key in its variable"
    )]
    UserInAddress {
        /// What is behind the user name.
        host: String,
    },
    /// No such provider.
    #[error("there is no provider `{0}`")]
    Unknown(String),
}

pub use custom::named;

type Provide = fn(Sources<'_>) -> Result<Vec<Credential>, ProviderError>;

/// All providers, by name.
const ALL: &[(&str, Provide)] = &[
    ("anthropic", anthropic::credentials),
    ("claude", claude::credentials),
    ("openai", openai::key),
    ("chatgpt", openai::login),
    ("opencode", opencode::credentials),
];

/// What the first of these providers has that has something.
pub fn find(names: &[&str], sources: Sources<'_>) -> Result<Vec<Credential>, ProviderError> {
    for name in names {
        let entry = ALL.iter().find(|(known, _)| known == name);
        let (_, provide) = entry.ok_or_else(|| ProviderError::Unknown((*name).to_owned()))?;
        let mut found = provide(sources)?;
        if !found.is_empty() {
            let clear = sources.base_url.is_some_and(|url| url.starts_with("http://"));
            for credential in &mut found {
                credential.in_the_clear = clear;
                credential.scope = sources.scope();
            }
            return Ok(found);
        }
    }
    Ok(Vec::new())
}

impl Sources<'_> {
    fn variable(&self, name: &str) -> Option<Secret> {
        self.env
            .get(name)
            .filter(|value| !value.trim().is_empty())
            .map(|value| Secret::new(value.trim().to_owned()))
    }

    /// The hosts of a credential: the provider's own, or the one at which a person has put the model.
    fn hosts(&self, own: &[&str]) -> Result<Vec<HostRule>, ProviderError> {
        match self.base_url {
            Some(url) => Ok(vec![host_of(url)?]),
            None => Ok(own.iter().map(|host| host.parse()).collect::<Result<_, _>>()?),
        }
    }

    /// The hosts of a login. It opens an account of the user and not only a model, so it goes to a gateway only if the settings
    /// name that.
    fn login_hosts(
        &self,
        login: &'static str,
        variable: &'static str,
        own: &[&str],
    ) -> Result<Vec<HostRule>, ProviderError> {
        let hosts = self.hosts(own)?;
        match self.base_url {
            Some(url) if !self.login_gateways.iter().any(|rule| is_at(rule, url)) => {
                Err(ProviderError::LoginAtGateway { login, host: host_of(url)?, variable })
            }
            _ => Ok(hosts),
        }
    }

    /// To which requests the secret of a model's credential is added.
    fn scope(&self) -> Scope {
        self.base_url.map_or(Scope::Provider, Scope::of_gateway)
    }

    /// A document of the person's home, if it is there.
    fn document(&self, path: &str) -> Result<Option<Value>, ProviderError> {
        let store = Store::File(self.home.join(path));
        let wrong = |error: io::Error| LoginError::Store { place: store.to_string(), why: error.to_string() };
        Ok(store.read().map_err(wrong)?)
    }
}

/// The host and port of an address, as a rule.
fn host_of(url: &str) -> Result<HostRule, ProviderError> {
    match place_of(url) {
        (_, Some((host, port))) => Ok(format!("{host}:{port}").parse()?),
        // A password may hold what ends an authority: everything before the last `@` may be a part of one.
        (_, None) if url.contains('@') => {
            let behind = url.rsplit('@').next().unwrap_or_default();
            let authority = behind.split(['/', '?', '#']).next().unwrap_or_default();
            let host = ringfence_core::policy::parse_authority(authority).map(|(host, _)| host.to_string());
            Err(ProviderError::UserInAddress { host: host.unwrap_or_else(|_| "an unknown host".to_owned()) })
        }
        (authority, None) => Ok(authority.parse()?),
    }
}

/// The authority of an address, and its host and port if it names them.
fn place_of(url: &str) -> (&str, Option<(Host, u16)>) {
    let (scheme, rest) = url.split_once("://").unwrap_or(("https", url));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let port = if scheme == "http" { 80 } else { 443 };
    let place = ringfence_core::policy::parse_authority(authority).ok();
    (authority, place.map(|(host, named)| (host, named.unwrap_or(port))))
}

/// Whether a rule names the host and port of an address.
fn is_at(rule: &HostRule, url: &str) -> bool {
    place_of(url).1.is_some_and(|(host, port)| rule.matches(&host, port))
}

/// A credential that is known by one variable.
fn by_variable(
    name: &str,
    variable: &str,
    beginning: &str,
    secret: Secret,
    hosts: Vec<HostRule>,
) -> Result<Credential, ProviderError> {
    let placeholder = Placeholder::new(beginning)?;
    let env = BTreeMap::from([(variable.to_owned(), placeholder.text().to_owned())]);
    Ok(Credential {
        name: name.to_owned(),
        hosts,
        swaps: vec![(placeholder, Real::Fixed(secret))],
        named: false,
        scope: Scope::Provider,
        in_the_clear: false,
        header: None,
        inside: Inside { env, ..Inside::default() },
    })
}

/// A credential that comes from a login. Inside, the CLI finds a copy without its tokens, where it looks for one.
fn by_login(name: &str, file: &str, hosts: Vec<HostRule>, login: Login, document: &Value) -> Credential {
    let copy = (login.kind.copy)(document, &login.inside).to_string();
    let login = Arc::new(login);
    Credential {
        name: name.to_owned(),
        hosts,
        swaps: vec![(login.inside.access.clone(), Real::Login(Arc::clone(&login)))],
        named: false,
        scope: Scope::Provider,
        in_the_clear: false,
        header: None,
        inside: Inside { files: BTreeMap::from([(PathBuf::from(file), copy)]), ..Inside::default() },
    }
}

/// A text inside a document.
fn text<'a>(value: &'a Value, path: &[&str]) -> Option<&'a str> {
    path.iter().try_fold(value, |value, key| value.get(key))?.as_str().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use serde_json::{Value, json};

    use ringfence_workspace::HostPrograms;

    use super::{Sources, find, host_of};

    static NO_PROGRAMS: HostPrograms = HostPrograms::none();

    fn sources<'a>(env: &'a BTreeMap<String, String>, home: &'a Path) -> Sources<'a> {
        Sources {
            env,
            home,
            moved: &[],
            state: Path::new("/nowhere"),
            programs: &NO_PROGRAMS,
            keychain: None,
            base_url: None,
            login_gateways: &[],
        }
    }

    fn env(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn written(path: &str, document: &Value) -> tempfile::TempDir {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::io::Write::write_all(&mut std::fs::File::create(path).unwrap(), document.to_string().as_bytes())
            .unwrap();
        home
    }

    #[test]
    fn a_key_stays_outside_and_a_placeholder_of_its_shape_goes_in() {
        let env = env(&[("ANTHROPIC_API_KEY", "sk-ant-api03-real")]);
        let found = find(&["anthropic", "claude"], sources(&env, Path::new("/nowhere"))).unwrap();
        let inside = found[0].inside();
        let placeholder = &inside.env["ANTHROPIC_API_KEY"];
        assert!(placeholder.starts_with("sk-ant-api03-") && !placeholder.contains("real"));
        assert_eq!(found[0].hosts()[0].to_string(), "api.anthropic.com");
        assert!(!format!("{found:?}").contains("real"));
    }

    #[test]
    fn a_login_is_copied_without_its_tokens() {
        let login = json!({"claudeAiOauth": {"accessToken": "sk-ant-oat01-real", "refreshToken": "sk-ant-ort01-real",
            "expiresAt": 1, "scopes": ["user:inference"], "subscriptionType": "max"}, "other": 1});
        let home = written(".claude/.credentials.json", &login);
        let none = BTreeMap::new();
        let found = find(&["anthropic", "claude"], sources(&none, home.path())).unwrap();
        let text = &found[0].inside().files[Path::new(".claude/.credentials.json")];
        let copy: Value = serde_json::from_str(text).unwrap();
        assert!(!text.contains("real"), "{text}");
        assert_eq!(copy["claudeAiOauth"]["subscriptionType"], "max");
        assert!(copy["claudeAiOauth"]["expiresAt"].as_u64().unwrap() > 2_000_000_000_000);
        assert_eq!(copy.get("other"), None);
    }

    #[test]
    fn a_chatgpt_login_keeps_the_shape_of_its_tokens() {
        let token = |claims: Value| {
            use base64::Engine;
            format!(
                "x.{}.sig-real",
                base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(claims.to_string())
            )
        };
        let login = json!({"auth_mode": "chatgpt", "OPENAI_API_KEY": null, "last_refresh": "2026-01-01T00:00:00Z",
            "tokens": {"id_token": token(json!({"email": "a@b.c"})), "access_token": token(json!({"exp": 1})),
                       "refresh_token": "rt-real", "account_id": "acc"}});
        let home = written(".codex/auth.json", &login);
        let none = BTreeMap::new();
        let found = find(&["openai", "chatgpt"], sources(&none, home.path())).unwrap();
        let text = &found[0].inside().files[Path::new(".codex/auth.json")];
        assert!(!text.contains("real"), "{text}");
        let copy: Value = serde_json::from_str(text).unwrap();
        assert_eq!(copy["tokens"]["account_id"], "acc");
        assert_eq!(copy["tokens"]["access_token"].as_str().unwrap().split('.').count(), 3);
    }

    #[test]
    fn a_damaged_login_is_told_without_its_words() {
        let home = written(".claude/.credentials.json", &json!("sk-real"));
        std::io::Write::write_all(
            &mut std::fs::File::create(home.path().join(".claude/.credentials.json")).unwrap(),
            b"{sk-real",
        )
        .unwrap();
        let none = BTreeMap::new();
        let error = find(&["claude"], sources(&none, home.path())).unwrap_err().to_string();
        assert!(error.contains(".credentials.json") && !error.contains("sk-real"), "{error}");
    }

    #[test]
    fn opencode_has_a_credential_for_each_provider() {
        let login = json!({"anthropic": {"type": "api", "key": "real-a"}, "openrouter": {"type": "api", "key": "real-b"},
            "unheard-of": {"type": "api", "key": "real-c"}});
        let home = written(".local/share/opencode/auth.json", &login);
        let none = BTreeMap::new();
        let found = find(&["opencode"], sources(&none, home.path())).unwrap();
        let names: Vec<&str> = found.iter().map(super::Credential::name).collect();
        assert_eq!(names, ["opencode anthropic", "opencode openrouter"]);
        let files: String = found.iter().flat_map(|one| one.inside().files.values()).cloned().collect();
        assert!(!files.contains("real"), "{files}");
    }

    #[test]
    fn gateway_gets_the_key_that_is_meant_for_it_and_no_other() {
        let keys = env(&[
            ("ANTHROPIC_API_KEY", "real-a"),
            ("OPENAI_API_KEY", "real-o"),
            ("OPENROUTER_API_KEY", "real-r"),
            ("GEMINI_API_KEY", "real-g"),
        ]);
        let gateway = Some("https://gw.test/v1");
        let login = json!({"openrouter": {"type": "api", "key": "real-b"}});
        let home = written(".local/share/opencode/auth.json", &login);
        for (providers, name) in [
            (&["opencode"][..], "opencode openai"),
            (&["anthropic", "claude"], "anthropic key"),
            (&["openai", "chatgpt"], "openai key"),
        ] {
            let sources = Sources { base_url: gateway, ..sources(&keys, home.path()) };
            let found = find(providers, sources).unwrap();
            let at = |one: &super::Credential| one.hosts()[0].to_string();
            let names: Vec<_> = found.iter().map(|one| (one.name(), at(one))).collect();
            assert_eq!(names, [(name, "gw.test:443".to_owned())]);
        }
        let none = BTreeMap::new();
        let sources = Sources { base_url: gateway, ..sources(&none, home.path()) };
        assert!(find(&["opencode"], sources).unwrap().is_empty());
    }

    #[test]
    fn login_goes_to_a_gateway_only_if_the_settings_name_it() {
        let login = json!({"claudeAiOauth": {"accessToken": "sk-ant-oat01-real", "refreshToken": "sk-ant-ort01-real",
            "expiresAt": 1, "scopes": ["user:inference"], "subscriptionType": "max"}});
        let claude = written(".claude/.credentials.json", &login);
        let codex = written(
            ".codex/auth.json",
            &json!({"auth_mode": "chatgpt", "OPENAI_API_KEY": null, "last_refresh": "2026-01-01T00:00:00Z",
                "tokens": {"id_token": "a.e30.c", "access_token": "a.e30.c", "refresh_token": "r", "account_id": "x"}}),
        );
        let none = BTreeMap::new();
        let token = env(&[("CLAUDE_CODE_OAUTH_TOKEN", "sk-ant-oat01-real")]);
        let named = ["gw.test".parse().unwrap()];
        for (providers, env, home) in [
            (&["anthropic", "claude"][..], &none, claude.path()),
            (&["anthropic", "claude"], &token, Path::new("/nowhere")),
            (&["openai", "chatgpt"], &none, codex.path()),
        ] {
            let at = |base_url, login_gateways| {
                find(providers, Sources { base_url, login_gateways, ..sources(env, home) })
            };
            let refused = at(Some("https://gw.test/v1"), &[]).unwrap_err().to_string();
            assert!(refused.contains("is not sent to gw.test:443"), "{refused}");
            assert!(refused.contains("broker.login_gateways") && !refused.contains("real"), "{refused}");
            assert!(at(Some("https://gw.test:8443/v1"), &named).is_err());
            assert!(at(Some("https://gw.test.evil.test/v1"), &named).is_err());
            assert_eq!(
                at(Some("https://gw.test/v1"), &named).unwrap()[0].hosts()[0].to_string(),
                "gw.test:443"
            );
            assert_ne!(at(None, &named).unwrap()[0].hosts()[0].to_string(), "gw.test:443");
        }
    }

    #[test]
    fn the_model_may_be_elsewhere() {
        for (url, rule) in [
            ("https://gateway.example/v1", "gateway.example:443"),
            ("http://10.0.0.5:8080/x", "10.0.0.5:8080"),
            ("http://[::1]/", "[::1]:80"),
        ] {
            assert_eq!(host_of(url).unwrap().to_string(), rule);
        }
        assert!(host_of("https://").is_err());
        assert_eq!(host_of("https://gw.test/v1/@cf/meta").unwrap().to_string(), "gw.test:443");
    }

    #[test]
    fn password_in_the_address_of_the_model_is_not_told() {
        for url in [
            "https://user:PASSWORD@gw.test/v1",
            "https://PASSWORD@gw.test",
            "https://user:PASSWORD@x@gw.test:8443/v1",
            "https://user:PASS/WORD@gw.test/v1",
            "https://user:PASS?WORD#x@gw.test/v1",
            "user:PASSWORD@gw.test/v1",
        ] {
            let error = host_of(url).unwrap_err();
            let told = format!("{error} {error:?} {:?}", std::error::Error::source(&error));
            assert!(!told.contains("PASS") && !told.contains("user:"), "{url}: {told}");
            assert!(told.contains("gw.test") && told.contains("user name"), "{url}: {told}");
        }
    }
}
