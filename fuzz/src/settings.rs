//! Settings and policies: a repository's settings only tighten, and editing changes one key.

use ringfence_core::config::{Document, KEYS, Keys, Layer, Layers, ProjectRule, Source, set};
use serde_json::Value;

/// The key that an edit changes.
const EDITED: &str = "sandbox.timeout_seconds";

/// Reads the bytes as settings of a repository, and as a policy.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = ringfence_core::policy::parse(text, "policy.json");
    let keys = || Keys::new([KEYS]);
    let Ok(document) = Document::parse(text, "settings.json", &keys()) else { return };
    edit(text, &document, &keys());
    let mut layers = Layers::built_in(keys());
    let before = layers.merged();
    if layers.push(Layer { source: Source::Project, document: document.clone() }).is_ok() {
        let _ = layers.resolve();
        for (path, located) in document.iter() {
            let rule = layers.keys().find(path).map(|key| key.project);
            assert!(
                rule.is_some_and(|rule| rule != ProjectRule::Never),
                "{path} is not a repository's to set"
            );
            assert!(!widens(at(&before, path), &located.value), "{path} was widened");
        }
    }
}

/// Sets one key and expects all others to stay.
fn edit(text: &str, document: &Document, keys: &Keys) {
    let Ok(edited) = set(text, "settings.json", keys, EDITED, "77") else { return };
    let edited = Document::parse(&edited, "settings.json", keys).expect("what was edited can be read");
    assert_eq!(edited.get(EDITED).map(|located| &located.value), Some(&Value::from(77)));
    for (path, located) in document.iter().filter(|(path, _)| *path != EDITED) {
        assert_eq!(edited.get(path).map(|now| &now.value), Some(&located.value), "{path} was changed");
    }
}

fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |value, name| value.get(name))
}

/// Whether a number is larger, or a list has an item more.
fn widens(before: Option<&Value>, now: &Value) -> bool {
    match (before, now) {
        (Some(Value::Number(before)), Value::Number(now)) => now.as_f64() > before.as_f64(),
        (Some(Value::Array(before)), Value::Array(now)) => now.iter().any(|item| !before.contains(item)),
        _ => false,
    }
}

/// Settings that a repository may have, some that it may not, and odd ones.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = [
        r#"{"sandbox": {"mode": "docker", "timeout_seconds": 60}}"#,
        r#"{"sandbox": {"mode": "host"}}"#,
        r#"{"sandbox": {"policy": "open"}}"#,
        r#"{"sandbox": {"env_allowlist": ["AWS_SECRET_ACCESS_KEY"]}}"#,
        r#"{"sandbox": {"timeout_seconds": 1e999, "max_attempts": -1}}"#,
        r#"{"agents": {"a": {"provider": "anthropic", "command": "sh"}}}"#,
        "// a comment\n{\"sandbox\": {/* x */ \"timeout_seconds\": 5,},}",
        r#"{"sandbox": {"timeout_seconds": 5, "timeout_seconds": 6}}"#,
        "\u{feff}{}",
        r#"{"sandbox.mode": "docker"}"#,
        r#"{"extends": "standard", "network": {"mode": "allow", "allow": ["*.example.com:443"]}}"#,
        r#"{"extends": "standard", "files": {"write": ["~/.ssh", "\u0000"]}, "limits": {"memory": "9e9t"}}"#,
        "[]",
        "",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into();
    seeds.push("[".repeat(100_000).into_bytes());
    seeds.push(format!("{}1{}", "{\"a\":".repeat(50_000), "}".repeat(50_000)).into_bytes());
    seeds
}
