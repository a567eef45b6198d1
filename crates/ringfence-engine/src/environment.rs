//! Which variables a run sees: the few that every program needs, the allow list, what the agent CLI needs. Pure.

use std::collections::BTreeMap;

use ringfence_agents::AgentCli;
use ringfence_core::policy::{Credentials, NetworkMode, Policy};

/// What every program needs to find its way.
const BASE: &[&str] = &["LANG", "LANGUAGE", "TERM", "COLORTERM", "TZ"];

/// What a program needs besides where the system is the host's.
const OF_SYSTEM: &[&str] = &["PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR"];

/// What a program needs to reach an open network from where it is.
const NETWORK: &[&str] = &[
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
];

/// The variables of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Passed {
    /// All of them.
    pub env: BTreeMap<String, String>,
    /// The names of those that hold a secret.
    pub secret: Vec<String>,
}

/// Chooses from the host's variables, which say less where the system is another, then sets those that were given explicitly.
pub fn environment(
    host: &BTreeMap<String, String>,
    policy: &Policy,
    cli: Option<&dyn AgentCli>,
    given: &BTreeMap<String, String>,
    shares_system: bool,
) -> Passed {
    let network: &[&str] = if policy.network.mode == NetworkMode::Open { NETWORK } else { &[] };
    let credentials: &[&str] = match (policy.credentials, cli) {
        (Credentials::Env, Some(cli)) => cli.facts().login.env,
        _ => &[],
    };
    // An allow list written for one policy must not carry keys into another that keeps them outside.
    let hands_over = policy.credentials == Credentials::Env;
    let is_credential =
        |name: &str| ringfence_agents::ALL.iter().any(|cli| cli.facts().login.env.contains(&name));
    let configuration = cli.map_or(&[] as &[&str], |cli| cli.facts().env);
    // A directory of the host means nothing where the system is another.
    let elsewhere = |name: &str| !shares_system && (name.ends_with("_DIR") || name.ends_with("_HOME"));
    let allowed = |name: &str| {
        BASE.contains(&name)
            || (shares_system && OF_SYSTEM.contains(&name))
            || name.starts_with("LC_")
            || network.contains(&name)
            || (configuration.contains(&name) && !elsewhere(name))
            || credentials.contains(&name)
            || policy.env.allow.iter().any(|allowed| allowed == name && (hands_over || !is_credential(name)))
    };
    let mut env: BTreeMap<String, String> = host
        .iter()
        .filter(|(name, _)| allowed(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    env.extend(given.clone());
    let secret =
        env.iter().filter(|(name, value)| is_secret(name, value)).map(|(name, _)| name.clone()).collect();
    Passed { env, secret }
}

/// Whether a value must not be seen, by what people call such things and by passwords in addresses.
fn is_secret(name: &str, value: &str) -> bool {
    let name = name.to_ascii_uppercase();
    let called_so =
        ["KEY", "TOKEN", "SECRET", "PASS", "CREDENTIAL", "AUTH"].iter().any(|word| name.contains(word));
    called_so || (value.contains("://") && value.contains('@'))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ringfence_core::policy::{Credentials, Preset};

    use super::environment;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn names(map: &BTreeMap<String, String>) -> Vec<&str> {
        map.keys().map(String::as_str).collect()
    }

    const HOST: &[(&str, &str)] = &[
        ("PATH", "/bin"),
        ("LC_ALL", "C"),
        ("AWS_SECRET_ACCESS_KEY", "s"),
        ("ANTHROPIC_API_KEY", "k"),
        ("HTTPS_PROXY", "http://p"),
        ("LD_PRELOAD", "/evil.so"),
    ];

    #[test]
    fn nothing_passes_that_nobody_named() {
        let passed = environment(&map(HOST), &Preset::Standard.policy(), None, &BTreeMap::new(), true);
        assert_eq!(names(&passed.env), ["LC_ALL", "PATH"]);
    }

    #[test]
    fn credentials_pass_only_where_the_policy_hands_them_over() {
        let cli = ringfence_agents::find("claude");
        let mut policy = Preset::Open.policy();
        assert!(
            environment(&map(HOST), &policy, cli, &BTreeMap::new(), true)
                .env
                .contains_key("ANTHROPIC_API_KEY")
        );
        policy.credentials = Credentials::None;
        assert!(
            !environment(&map(HOST), &policy, cli, &BTreeMap::new(), true)
                .env
                .contains_key("ANTHROPIC_API_KEY")
        );
        policy.env.allow = vec!["ANTHROPIC_API_KEY".into(), "AWS_SECRET_ACCESS_KEY".into()];
        let passed = environment(&map(HOST), &policy, cli, &BTreeMap::new(), true);
        assert!(passed.env.contains_key("AWS_SECRET_ACCESS_KEY"));
        assert!(
            !passed.env.contains_key("ANTHROPIC_API_KEY"),
            "the list names it, the policy keeps it outside"
        );
    }

    #[test]
    fn secrets_are_known_by_their_names_and_by_passwords_in_addresses() {
        let given = map(&[
            ("GITHUB_TOKEN", "t"),
            ("DATABASE_URL", "postgres://u:p@h/d"),
            ("BASE_URL", "http://h"),
            ("DEBUG", "1"),
        ]);
        let passed = environment(&BTreeMap::new(), &Preset::Open.policy(), None, &given, true);
        assert_eq!(passed.secret, ["DATABASE_URL", "GITHUB_TOKEN"]);
    }

    #[test]
    fn a_proxy_belongs_to_an_open_network() {
        let open = environment(&map(HOST), &Preset::Open.policy(), None, &BTreeMap::new(), true);
        assert!(open.env.contains_key("HTTPS_PROXY"));
    }
}
