//! Credentials that a person names: a header for a host, or a token of GitHub.
//!
//! `npm.example.com authorization: Bearer {env:NPM_TOKEN}` sets that header on the way to that host, whatever a run says;
//! `npm.example.com/team authorization: …` only for paths below `/team`, by whole segments.
//! Between the braces stands where the secret is: `env:NAME`, `file:PATH`, `command:WORDS` or `keyring:SERVICE/ACCOUNT`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use http::HeaderName;
use ringfence_core::policy::HostRule;
use ringfence_workspace::HostPrograms;

use super::{ProviderError, Sources};
use crate::credential::{Credential, Inside};
use crate::endpoints::Scope;
use crate::login::Real;
use crate::placeholder::Placeholder;
use crate::secret::Secret;

const GITHUB: &str = "github";
const GITHUB_HOSTS: [&str; 3] = ["github.com", "api.github.com", "uploads.github.com"];
/// Git asks nobody else, and learns no more than the run knows.
const GIT_HELPER: &str = r#"!f() { echo username=x-access-token; echo "password=$GH_TOKEN"; }; f"#;

/// A credential that a person has named.
pub fn named(text: &str, sources: Sources<'_>) -> Result<Credential, ProviderError> {
    if text.trim() == GITHUB {
        return github(sources);
    }
    let bad = |why: &str| ProviderError::Named { text: text.to_owned(), why: why.to_owned() };
    let (host, rest) = text.trim().split_once(char::is_whitespace).ok_or_else(|| bad("it has no header"))?;
    let (host, scope) = match host.split_once('/') {
        Some((host, path)) => (host, Scope::below(path).ok_or_else(|| bad("its path cannot be compared"))?),
        None => (host, Scope::All),
    };
    let host: HostRule = host.parse()?;
    let (name, value) = rest.split_once(':').ok_or_else(|| bad("the header has no value"))?;
    let name: HeaderName = name.trim().parse().map_err(|_| bad("that is no name of a header"))?;
    let value = value.trim();
    let (before, rest) = value.split_once('{').ok_or_else(|| bad("its value names no secret in braces"))?;
    let (source, after) = rest.rsplit_once('}').ok_or_else(|| bad("a brace is not closed"))?;
    let secret = read(source, sources).map_err(|why| bad(&why))?;
    let whole = Secret::new(format!("{before}{}{after}", secret.reveal()));
    Ok(Credential {
        name: format!("{name} of {host}"),
        hosts: vec![host],
        swaps: Vec::new(),
        named: true,
        scope,
        in_the_clear: false,
        header: Some((name, whole, secret)),
        inside: Inside::default(),
    })
}

/// Reads a secret from where it is.
fn read(source: &str, sources: Sources<'_>) -> Result<Secret, String> {
    let (kind, place) =
        source.split_once(':').ok_or("write env:, file:, command: or keyring: in the braces")?;
    let text = match kind {
        "env" => sources.env.get(place).cloned().ok_or_else(|| format!("the variable {place} is not set"))?,
        "file" => {
            let path =
                place.strip_prefix("~/").map_or_else(|| PathBuf::from(place), |rest| sources.home.join(rest));
            std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?
        }
        "command" => {
            let words = shlex::split(place).ok_or("the quotes of the command do not match")?;
            output(sources.programs, &words)?
        }
        "keyring" => {
            let (service, account) = place.split_once('/').ok_or("write keyring:SERVICE/ACCOUNT")?;
            let words = match sources.keychain.and_then(Path::to_str) {
                Some(program) => vec![program, "find-generic-password", "-s", service, "-a", account, "-w"],
                None => vec!["secret-tool", "lookup", "service", service, "account", account],
            };
            output(sources.programs, &words.into_iter().map(str::to_owned).collect::<Vec<_>>())?
        }
        _ => return Err(format!("`{kind}` is none of env, file, command, keyring")),
    };
    match text.trim() {
        "" => Err(format!("{kind}:{place} holds nothing")),
        secret => Ok(Secret::new(secret.to_owned())),
    }
}

/// What a program prints.
fn output(programs: &HostPrograms, words: &[String]) -> Result<String, String> {
    let (program, args) = words.split_first().ok_or("the command has no words")?;
    let command = programs.command(program);
    let mut command = command.ok_or_else(|| {
        format!("{program} was not found in PATH outside of the workspace; name a program that is, or its absolute path")
    })?;
    let output = command.args(args).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program} cannot be run: {error}"))?;
    if !output.status.success() {
        return Err(format!("{program} ended with {}", output.status));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("{program} printed no text"))
}

fn github(sources: Sources<'_>) -> Result<Credential, ProviderError> {
    let found = ["GH_TOKEN", "GITHUB_TOKEN"].into_iter().find_map(|name| sources.variable(name));
    let asked = || read("command:gh auth token", sources).ok();
    let secret = found.or_else(asked).ok_or_else(|| ProviderError::Named {
        text: GITHUB.into(),
        why: "neither GH_TOKEN nor GITHUB_TOKEN is set, and `gh auth token` tells none".into(),
    })?;
    let placeholder = Placeholder::new("ghp_")?.usable_as_password();
    let text = placeholder.text().to_owned();
    let env = BTreeMap::from(
        [
            ("GH_TOKEN", text.as_str()),
            ("GITHUB_TOKEN", text.as_str()),
            ("GIT_CONFIG_COUNT", "1"),
            ("GIT_CONFIG_KEY_0", "credential.https://github.com.helper"),
            ("GIT_CONFIG_VALUE_0", GIT_HELPER),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    Ok(Credential {
        name: "github token".into(),
        hosts: GITHUB_HOSTS.iter().map(|host| host.parse()).collect::<Result<_, _>>()?,
        swaps: vec![(placeholder, Real::Fixed(secret))],
        named: true,
        scope: Scope::All,
        in_the_clear: false,
        header: None,
        inside: Inside { env, ..Inside::default() },
    })
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "no run has written programs of the system")]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use ringfence_workspace::HostPrograms;

    use super::{Sources, named};

    fn try_named(text: &str) -> Result<String, String> {
        let env = BTreeMap::from([
            ("T".to_owned(), " real \n".to_owned()),
            ("GH_TOKEN".to_owned(), "ghp_real".to_owned()),
        ]);
        let home = tempfile::tempdir().unwrap();
        std::io::Write::write_all(&mut std::fs::File::create(home.path().join("f")).unwrap(), b"from file\n")
            .unwrap();
        let sources = Sources {
            env: &env,
            moved: &[],
            home: home.path(),
            state: Path::new("/nowhere"),
            programs: &HostPrograms::new("/usr/bin:/bin"),
            keychain: None,
            base_url: None,
            login_gateways: &[],
        };
        let credential = named(text, sources).map_err(|error| error.to_string())?;
        assert!(!format!("{credential:?}").contains("real"));
        let header = credential.header.map(|(name, secret, _)| format!("{name}: {}", secret.reveal()));
        Ok(header.unwrap_or(credential.name))
    }

    #[test]
    fn a_secret_comes_from_where_it_is_said_to_be() {
        for (text, expected) in [
            ("a.example Authorization: Bearer {env:T}", "authorization: Bearer real"),
            ("a.example:8443 x-key: {file:~/f}", "x-key: from file"),
            ("*.a.example x-key: {command:printf 'a b'}!", "x-key: a b!"),
            ("a.example/team/one x-key: {env:T}", "x-key: real"),
            ("github", "github token"),
        ] {
            assert_eq!(try_named(text).unwrap(), expected);
        }
    }

    #[test]
    fn mistakes_are_told_without_the_secret() {
        for (text, word) in [
            ("a.example", "no header"),
            ("a..b x: {env:T}", "names no host"),
            ("a.example x", "no value"),
            ("a.example/../x y: {env:T}", "path cannot be compared"),
            ("a.example x y: {env:T}", "no name of a header"),
            ("a.example x: real", "no secret in braces"),
            ("a.example x: {env:T", "not closed"),
            ("a.example x: {env:MISSING}", "MISSING is not set"),
            ("a.example x: {file:/nowhere}", "/nowhere"),
            ("a.example x: {command:false}", "false ended with"),
            ("a.example x: {T}", "env:, file:"),
        ] {
            let error = try_named(text).unwrap_err();
            assert!(error.contains(word) && !error.contains("Bearer real"), "{text}: {error}");
        }
    }
}
