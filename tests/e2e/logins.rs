//! Login checks with the real CLIs, on the host and in Docker.

use std::fs;

use serde_json::{Value, json};

use crate::engines::engine;
use crate::site::Site;
use crate::support::Place;

/// The real CLIs, in the image and in the path.
fn place() -> Option<Place> {
    let engine = engine("docker")?;
    Some(engine.place(Place::with_agent_clis()).settings(r#"{"sandbox": {"mode": "docker"}}"#))
}

#[track_caller]
fn check(place: &Place, cli: &str, environment: &str) -> Value {
    let ran = place.run(&["auth", "check", cli, "--environment", environment, "--json"]);
    let check = ran.json();
    assert_eq!(ran.code() == 0, check["authenticated"] == true, "{ran:?}");
    assert_eq!(check["executionEnvironment"], environment, "{check}");
    assert!(check["checkedAt"].as_str().unwrap().ends_with('Z'), "{check}");
    check
}

#[track_caller]
fn expect(place: &Place, cli: &str, environment: &str, class: &str, available: bool) -> Value {
    let check = check(place, cli, environment);
    let seen = (check["class"].as_str().unwrap(), check["available"] == true, check["authenticated"] == true);
    assert_eq!(seen, (class, available, class == "ok"), "{cli} in {environment}: {check}");
    assert_eq!(check["remedy"].is_string(), class != "ok", "{check}");
    check
}

const CLIS: [&str; 3] = ["claude", "codex", "opencode"];
const ENVIRONMENTS: [&str; 2] = ["host", "sandbox"];

fn write(place: &Place, file: &str, document: &Value) {
    let file = place.home().join(file);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, document.to_string()).unwrap();
}

fn claude_login(expires_at: u64) -> Value {
    json!({ "claudeAiOauth": { "accessToken": "sk-ant-oat01-x", "expiresAt": expires_at, "scopes": ["user:inference"], "subscriptionType": "max" } })
}

const FAR: u64 = 4_102_444_800_000;

#[test]
fn nobody_is_logged_in() {
    let Some(place) = place() else { return };
    for environment in ENVIRONMENTS {
        for cli in CLIS {
            let check = expect(&place, cli, environment, "login_required", true);
            assert!(check["remedy"].as_str().unwrap().contains("login"), "{check}");
        }
    }
}

#[test]
fn a_key_is_enough() {
    let Some(place) = place() else { return };
    let place = place.env("ANTHROPIC_API_KEY", "sk-ant-api03-x").env("OPENAI_API_KEY", "sk-proj-x");
    for environment in ENVIRONMENTS {
        for cli in CLIS {
            expect(&place, cli, environment, "ok", true);
        }
    }
}

#[test]
fn a_login_file_is_found_and_one_that_has_run_out_is_not_taken() {
    let Some(place) = place() else { return };
    write(&place, ".claude/.credentials.json", &claude_login(FAR));
    write(&place, ".codex/auth.json", &json!({ "auth_mode": "apikey", "OPENAI_API_KEY": "sk-proj-x" }));
    write(&place, ".local/share/opencode/auth.json", &json!({ "anthropic": { "type": "api", "key": "x" } }));
    for environment in ENVIRONMENTS {
        for cli in CLIS {
            expect(&place, cli, environment, "ok", true);
        }
    }
    write(&place, ".claude/.credentials.json", &claude_login(1_700_000_000_000));
    for environment in ENVIRONMENTS {
        let check = expect(&place, "claude", environment, "expired", true);
        assert!(check["message"].as_str().unwrap().contains("2023-11-14"), "{check}");
    }
}

#[test]
fn a_cli_that_is_not_there_is_named() {
    let Some(engine) = engine("docker") else { return };
    let place = engine.place(Place::new());
    for cli in CLIS {
        let check = expect(&place, cli, "host", "cli_missing", false);
        assert!(check["remedy"].as_str().unwrap().contains("npm install"), "{check}");
    }
    // An image without any.
    let archive = place.work().join("root.tar");
    fs::create_dir_all(place.work().join("root/bin")).unwrap();
    fs::copy("/bin/busybox", place.work().join("root/bin/busybox")).unwrap();
    let tar = std::process::Command::new("tar")
        .arg("-C")
        .arg(place.work().join("root"))
        .arg("-cf")
        .arg(&archive)
        .arg(".")
        .status();
    assert!(tar.unwrap().success());
    engine.ask(&["import", archive.to_str().unwrap(), "without-clis:latest"]);
    let place = place.settings(r#"{"sandbox": {"mode": "docker", "docker": {"image": "without-clis"}}}"#);
    let check = expect(&place, "claude", "sandbox", "cli_missing", false);
    assert!(check["remedy"].as_str().unwrap().contains("build-image"), "{check}");
}

#[test]
fn what_is_wrong_with_the_engine_or_the_image_has_its_own_class() {
    let Some(place) = place() else { return };
    let place = place.settings(r#"{"sandbox": {"mode": "docker", "docker": {"image": "no/such:image"}}}"#);
    expect(&place, "claude", "sandbox", "image_missing", false);
    // The documents' own default has a capital letter, which no engine takes: it is made small, and is missing.
    let original = place.env("SANDBOX_DOCKER_IMAGE", "openTiger/worker:latest");
    let check = expect(&original, "codex", "sandbox", "image_missing", false);
    assert!(check["message"].as_str().unwrap().contains("opentiger/worker:latest"), "{check}");
    let invalid = original.env("SANDBOX_DOCKER_IMAGE", "open Tiger/worker:latest");
    let check = expect(&invalid, "claude", "sandbox", "invalid_image_name", false);
    assert!(check["message"].as_str().unwrap().contains("open Tiger/worker:latest"), "{check}");
    let stopped = Place::with_agent_clis()
        .env("DOCKER_HOST", "unix:///nowhere/docker.sock")
        .env("RINGFENCE_MODE", "docker");
    expect(&stopped, "claude", "sandbox", "daemon_unavailable", false);
}

#[test]
fn the_api_tells_the_same_without_keeping_anybody_waiting() {
    let Some(place) = place() else { return };
    let site = Site::of(
        place.settings(r#"{"server": {"rate_limit": 0}}"#).env("ANTHROPIC_API_KEY", "sk-ant-api03-x"),
    );
    let path = "/system/claude/auth?environment=host";
    let (address, bearer) = (site.address.clone(), site.bearer());
    let slow = std::thread::spawn(move || {
        crate::site::ask(&address, "GET", path, &[("authorization", &bearer)], "").expect(200).json()
    });
    let mut answered_meanwhile = 0;
    while !slow.is_finished() {
        site.get("/health").expect(200);
        site.get("/tasks").expect(200);
        answered_meanwhile += usize::from(!slow.is_finished());
    }
    assert!(answered_meanwhile >= 1, "the slow request kept the others waiting");
    let first = slow.join().unwrap();
    assert_eq!(
        (&first["authenticated"], &first["class"], &first["executionEnvironment"]),
        (&json!(true), &json!("ok"), &json!("host"))
    );
    let again = site.get(path).expect(200).json();
    assert_eq!(again["checkedAt"], first["checkedAt"], "one that was just made is good for some seconds");
    // Without a word about where, it is where tasks run.
    let here = site.get("/system/claude/auth").expect(200).json();
    assert_eq!((&here["executionEnvironment"], &here["mode"]), (&json!("sandbox"), &json!("native")));
    assert_eq!(site.get("/runs").json()["runs"], json!([]), "a check is no run");
}
