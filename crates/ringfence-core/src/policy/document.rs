//! Policy files: a preset and what differs from it.

use serde_json::Value;

use super::{Policy, Preset};
use crate::config::{Document, DocumentError, Key, Keys, Kind};

/// Why a policy file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// There is a mistake in it.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// It does not fit the table that it was checked against. Only a mistake in the table can cause it.
    #[error("the policy does not fit together")]
    Shape(#[from] serde_json::Error),
}

const EXTENDS: &str = "extends";

const fn key(path: &'static str, kind: Kind, doc: &'static str) -> Key {
    Key::new(path, kind, None, doc)
}

/// The keys of a policy file.
pub const KEYS: &[Key] = &[
    key(
        EXTENDS,
        Kind::Choice(&Preset::NAMES),
        "the preset that this policy starts from; standard if not given",
    ),
    key(
        "files.reach",
        Kind::Choice(&["host", "workspace"]),
        "all that the person can reach, or the workspace",
    ),
    key("files.workspace", Kind::Choice(&["read-write", "read-only"]), "what may be done in the workspace"),
    key("files.read", Kind::Texts, "more paths that may be read"),
    key("files.write", Kind::Texts, "more paths that may be written"),
    key("files.secrets", Kind::Texts, "paths that must never be read"),
    key(
        "files.git",
        Kind::Choice(&["private", "read-only", "direct"]),
        "git directory of the workspace: a private one whose commits are imported at the end, read-only, or the real one",
    ),
    key(
        "files.protect",
        Kind::Texts,
        "paths in the workspace that must not be written, also where they do not exist; `name/` is a directory, `~/name` is in the person's home",
    ),
    key("files.deny", Kind::Globs, "globs in the workspace that must not be read"),
    key("network.mode", Kind::Choice(&["none", "allow", "open"]), "nothing, the named hosts, everything"),
    key("network.allow", Kind::Hosts, "the named hosts, besides those that the agent CLI needs"),
    key("network.deny", Kind::Hosts, "hosts that are never reached, whatever is allowed"),
    key("network.ask", Kind::Flag, "whether a person is asked for a host that is not named"),
    key(
        "network.local",
        Kind::Ports,
        "ports of this machine's own loopback that are reached at the same ports inside",
    ),
    key("env.allow", Kind::EnvNames, "variables that may be seen"),
    key(
        "credentials",
        Kind::Choice(&["broker", "env", "mount", "none"]),
        "how the agent CLI gets its credentials",
    ),
    key("limits.timeout_seconds", Kind::Seconds, "how long a run may take"),
    key("limits.memory", Kind::Nullable(&Kind::Memory), "memory of the whole run"),
    key("limits.cpus", Kind::Nullable(&Kind::Cpus), "cpus of the whole run"),
    key("limits.pids", Kind::Nullable(&Kind::Whole(1, 4_194_304)), "processes of the whole run"),
    key("limits.disk", Kind::Nullable(&Kind::Memory), "disk space of the private layers"),
    key(
        "limits.growth",
        Kind::Nullable(&Kind::Memory),
        "by how much the workspace's file system may fill up during the run",
    ),
    key("limits.output", Kind::Memory, "output on both streams together, and the size of the log"),
    key("limits.tokens", Kind::Nullable(&Kind::Whole(1, u64::MAX)), "tokens of the model"),
    key("limits.cost_usd", Kind::Nullable(&Kind::Amount), "money in US dollars"),
];

/// Reads a policy file. `file` is only its name, for errors.
pub fn parse(text: &str, file: &str) -> Result<Policy, PolicyError> {
    let document = Document::parse(text, file, &Keys::new([KEYS]))?;
    let base = document
        .get(EXTENDS)
        .and_then(|located| located.value.as_str())
        .and_then(|name| name.parse().ok())
        .unwrap_or(Preset::Standard);
    let mut policy = serde_json::to_value(base.policy())?;
    overlay(&mut policy, document.to_value());
    Ok(serde_json::from_value(policy)?)
}

fn overlay(below: &mut Value, above: Value) {
    match (below, above) {
        (Value::Object(below), Value::Object(above)) => {
            for (name, value) in above {
                overlay(below.entry(name).or_insert(Value::Null), value);
            }
        }
        (below, above) => *below = above,
    }
}

#[cfg(test)]
mod tests {
    use super::{Preset, parse};

    #[test]
    fn every_preset_reads_back_from_what_it_prints() {
        for preset in Preset::ALL {
            let printed = serde_json::to_string_pretty(&preset.policy()).unwrap();
            assert_eq!(parse(&printed, "p.json").unwrap(), preset.policy(), "{preset}");
        }
    }

    #[test]
    fn a_file_changes_only_what_it_names() {
        let policy =
            parse(r#"{"extends": "locked", "limits": {"memory": null, "pids": 32}}"#, "p.json").unwrap();
        let mut expected = Preset::Locked.policy();
        expected.limits.memory = None;
        expected.limits.pids = Some(32);
        assert_eq!(policy, expected);
    }

    #[test]
    fn mistakes_name_file_line_and_key() {
        let error = parse("{\n  \"network\": {\"mode\": \"alow\"}\n}", "p.json").unwrap_err().to_string();
        assert_eq!(
            error,
            "p.json:2: network.mode: `alow` is not one of none, allow, open, did you mean `allow`?"
        );
    }
}
