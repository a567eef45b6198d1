//! Settings: the documents' own examples, and thirty mistakes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;

use ringfence_backends::settings_keys;
use ringfence_core::config::{Document, Layer, Layers, Settings, Source};
use ringfence_core::mode::Mode;
use serde_json::json;

/// The example of the documents, with their own image name.
const EXAMPLE: &str = r#"{
  "sandbox": {
    "mode": "host",
    "timeout_seconds": 600,
    "max_attempts": 3,
    "max_concurrency": 0,
    "env_allowlist": ["ANTHROPIC_API_KEY", "OPENAI_API_KEY"],
    "path_mapping_mode": "mapped",
    "docker": {
      "image": "tinyclaw/agent-runner:latest",
      "network": "default",
      "memory": "2g",
      "cpus": "1.0",
      "pids_limit": 256
    },
    "apple": {
      "runtime_command": "apple-container",
      "image": "tinyclaw/agent-runner:latest",
      "network": "default",
      "memory": "2g",
      "cpus": "1.0"
    }
  }
}"#;

const AGENT: &str = r#"{
  "agents": {
    "coder": {
      "name": "Coder",
      "provider": "openai",
      "model": "gpt-5.3-codex",
      "working_directory": "/Users/me/tinyclaw-workspace/coder",
      "sandbox_mode": "docker"
    }
  }
}"#;

fn resolve(text: &str) -> Settings {
    let document = Document::parse(text, "settings.json", &settings_keys()).unwrap();
    let mut layers = Layers::built_in(settings_keys());
    layers.push(Layer { source: Source::User, document }).unwrap();
    layers.resolve().unwrap()
}

#[test]
fn the_documents_examples_are_read_as_they_stand() {
    let settings = resolve(EXAMPLE);
    assert_eq!(settings.sandbox.mode, Mode::Host);
    assert_eq!(settings.sandbox.section(Mode::Docker).unwrap()["image"], "tinyclaw/agent-runner:latest");
    let settings = resolve(AGENT);
    let coder = settings.agents.values().next().unwrap();
    assert_eq!(coder.cli_name(), Some("codex"));
    assert_eq!(coder.sandbox_mode, Some(Mode::Docker));
    assert_eq!(coder.model.as_deref(), Some("gpt-5.3-codex"));
}

/// Three departures are meant: the mode, the image names. The network keeps its name and means less.
#[test]
fn the_documents_values_are_the_defaults() {
    let defaults = Layers::built_in(settings_keys());
    let example = Document::parse(EXAMPLE, "settings.json", &settings_keys()).unwrap();
    let departures: Vec<&str> = example
        .iter()
        .filter(|(path, located)| defaults.get(path).map(|default| &default.value) != Some(&located.value))
        .map(|(path, _)| path)
        .collect();
    // The command of the documents does not exist, and is understood.
    let ours =
        ["sandbox.apple.image", "sandbox.apple.runtime_command", "sandbox.docker.image", "sandbox.mode"];
    assert_eq!(departures, ours);
    assert_eq!(defaults.get("sandbox.mode").unwrap().value, json!("native"));
    assert_eq!(defaults.get("sandbox.docker.image").unwrap().value, json!("ringfence/agent:latest"));
}

/// Text, the line of the mistake, the key, and a word that helps.
const MISTAKES: [(&str, usize, &str, &str); 36] = [
    ("{\n \"sandbx\": {}\n}", 2, "sandbx", "did you mean `sandbox`?"),
    ("{\"sandbox\": {\n\"mod\": \"host\"}}", 2, "sandbox.mod", "did you mean `sandbox.mode`?"),
    ("{\"mode\": \"host\"}", 1, "mode", "did you mean `sandbox.mode`?"),
    ("{\"timeout_seconds\": 5}", 1, "timeout_seconds", "did you mean `sandbox.timeout_seconds`?"),
    (
        "{\"xyzzy\": 1}",
        1,
        "xyzzy",
        "the keys here are sandbox, broker, queue, server, executor, agents, trusted_projects",
    ),
    ("{\"sandbox\": {\"mode\": \"dcoker\"}}", 1, "sandbox.mode", "did you mean `docker`?"),
    ("{\"sandbox\": {\"mode\": \"nonsense\"}}", 1, "sandbox.mode", "kubernetes"),
    ("{\"sandbox\": {\"mode\": \"\"}}", 1, "sandbox.mode", "is empty"),
    ("{\"sandbox\": {\"mode\": 3}}", 1, "sandbox.mode", "found 3"),
    ("{\"sandbox\": {\"mode\": null}}", 1, "sandbox.mode", "found null"),
    ("{\"sandbox\": \"host\"}", 1, "sandbox", "expected an object, found a text"),
    ("{\"sandbox\": {\"timeout_seconds\": -1}}", 1, "sandbox.timeout_seconds", "found -1"),
    ("{\"sandbox\": {\"timeout_seconds\": 0}}", 1, "sandbox.timeout_seconds", "above 0, found 0"),
    ("{\"sandbox\": {\"timeout_seconds\": \"600\"}}", 1, "sandbox.timeout_seconds", "found the text `600`"),
    ("{\"sandbox\": {\"timeout_seconds\": 1.5}}", 1, "sandbox.timeout_seconds", "found 1.5"),
    ("{\"sandbox\": {\"max_attempts\": 0}}", 1, "sandbox.max_attempts", "from 1 to 100"),
    ("{\"sandbox\": {\"max_concurrency\": -2}}", 1, "sandbox.max_concurrency", "from 0 to 10000, found -2"),
    ("{\"sandbox\": {\"max_concurrency\": true}}", 1, "sandbox.max_concurrency", "found true"),
    (
        "{\"sandbox\": {\"env_allowlist\": \"A\"}}",
        1,
        "sandbox.env_allowlist",
        "a list of variable names, found the text",
    ),
    (
        "{\"sandbox\": {\"env_allowlist\": [\"A\", 1]}}",
        1,
        "sandbox.env_allowlist",
        "a text at place 2, found 1",
    ),
    (
        "{\"sandbox\": {\"env_allowlist\": [\"A=B\"]}}",
        1,
        "sandbox.env_allowlist",
        "`A=B` is not the name of a variable",
    ),
    (
        "{\"sandbox\": {\"path_mapping_mode\": \"map\"}}",
        1,
        "sandbox.path_mapping_mode",
        "did you mean `mapped`?",
    ),
    ("{\"sandbox\": {\"policy\": \"standart\"}}", 1, "sandbox.policy", "did you mean `standard`?"),
    ("{\"sandbox\": {\"docker\": {\"memory\": \"2gb\"}}}", 1, "sandbox.docker.memory", "`2gb` is not a size"),
    ("{\"sandbox\": {\"docker\": {\"memory\": \"-2g\"}}}", 1, "sandbox.docker.memory", "`-2g` is not a size"),
    (
        "{\"sandbox\": {\"docker\": {\"memory\": \"1k\"}}}",
        1,
        "sandbox.docker.memory",
        "below the smallest size, 6m",
    ),
    (
        "{\"sandbox\": {\"docker\": {\"cpus\": \"many\"}}}",
        1,
        "sandbox.docker.cpus",
        "`many` is not a number of cpus",
    ),
    (
        "{\"sandbox\": {\"docker\": {\"pids_limit\": \"256\"}}}",
        1,
        "sandbox.docker.pids_limit",
        "found the text `256`",
    ),
    (
        "{\"sandbox\": {\"docker\": {\"imag\": \"x\"}}}",
        1,
        "sandbox.docker.imag",
        "did you mean `sandbox.docker.image`?",
    ),
    (
        "{\"sandbox\": {\"apple\": {\"pids_limit\": 5}}}",
        1,
        "sandbox.apple.pids_limit",
        "did you mean `sandbox.docker.pids_limit`?",
    ),
    ("{\"agents\": {\"a b\": {\"name\": \"x\"}}}", 1, "agents.a b", "not a valid agent id"),
    (
        "{\"agents\": {\"coder\": {\"provider\": \"openia\"}}}",
        1,
        "agents.coder.provider",
        "did you mean `openai`?",
    ),
    (
        "{\"agents\": {\"coder\": {\"working_directory\": \"src\"}}}",
        1,
        "agents.coder.working_directory",
        "an absolute path",
    ),
    ("{\"agents\": {\"coder\": {\"base_url\": \"localhost:80\"}}}", 1, "agents.coder.base_url", "http://"),
    (
        "{\"sandbox\": {\"mode\": \"host\",\n\n\"mode\": \"docker\"}}",
        3,
        "sandbox.mode",
        "given twice; the first is at line 1",
    ),
    ("{\"sandbox\": {\n\"mode\": \"host\"\n", 1, "", "not valid JSON"),
];

#[test]
fn every_mistake_has_its_own_helpful_error() {
    let mut seen = BTreeSet::new();
    for (text, line, key, help) in MISTAKES {
        let error = Document::parse(text, "/home/me/.ringfence/settings.json", &settings_keys())
            .map(|_| ())
            .expect_err(text)
            .to_string();
        let place = if key.is_empty() {
            format!("/home/me/.ringfence/settings.json:{line}: ")
        } else {
            format!("/home/me/.ringfence/settings.json:{line}: {key}: ")
        };
        assert!(error.starts_with(&place), "{text}\n  {error}");
        assert!(error.contains(help), "{text}\n  {error}");
        assert!(seen.insert(error.clone()), "not distinct: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn comments_and_trailing_commas_are_welcome_and_nothing_looser_is() {
    let keys = settings_keys();
    assert!(Document::parse("// mine\n{\"sandbox\": {\"mode\": \"host\", /* x */},}", "f", &keys).is_ok());
    assert!(Document::parse("{\"$schema\": \"x\"}", "f", &keys).is_ok());
    assert!(Document::parse("", "f", &keys).is_ok());
    for bad in
        ["{sandbox: {}}", "{'sandbox': {}}", "[]", "{\"sandbox\": {\"timeout_seconds\": 0x10}}", "{} {}"]
    {
        assert!(Document::parse(bad, "f", &keys).is_err(), "{bad}");
    }
}
