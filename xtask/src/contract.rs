//! The API against its own document: schemathesis says everything to a daemon that the document allows, and much that it
//! does not.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::shell::{built, read, root, run};

const VERSION: &str = "4.32.5";
/// Its command line, wherever it is installed.
const PROGRAM: &str = "from schemathesis.cli import schemathesis; schemathesis()";
/// A task asks for more than a schema can say (an agent that is known, a directory that is there), so that a document
/// that fits may be refused all the same.
const NOT_CHECKED: &str = "positive_data_acceptance";

pub(crate) fn contract(seconds: u64) -> anyhow::Result<()> {
    let python = install()?;
    run(&["cargo", "build", "--locked", "-p", "ringfence"])?;
    let binary = built("debug", "ringfence")?;
    let home = root().join("target/contract");
    let _ = fs::remove_dir_all(&home);
    fs::create_dir_all(home.join(".ringfence"))?;
    let settings = serde_json::json!({
        "server": { "rate_limit": 0 },
        "agents": { "me": { "cli": "demo", "working_directory": home } },
    });
    #[expect(clippy::disallowed_methods, reason = "settings of a daemon that lives for a minute")]
    fs::write(home.join(".ringfence/settings.json"), settings.to_string())?;
    let ringfence = |words: &[&str]| {
        let mut command = Command::new(&binary);
        command
            .args(words)
            .env("HOME", &home)
            .env("RINGFENCE_LISTEN", "127.0.0.1:0")
            .env_remove("RINGFENCE_HOME");
        command
    };
    if !ringfence(&["start"]).status()?.success() {
        bail!("the daemon did not start");
    }
    let token = fs::read_to_string(home.join(".ringfence/api.token")).context("the daemon has no token")?;
    let told = said(&python, &ringfence(&["status", "--json"]).output()?.stdout, token.trim(), seconds);
    let still = ringfence(&["status"]).stdout(Stdio::null()).status();
    let stopped = ringfence(&["stop"]).status();
    told?;
    if !still?.success() || !stopped?.success() {
        bail!("the daemon did not live through it");
    }
    Ok(())
}

fn said(python: &Path, status: &[u8], token: &str, seconds: u64) -> anyhow::Result<()> {
    let status: Value = serde_json::from_slice(status).context("the daemon does not tell its address")?;
    let address = status["daemon"]["address"].as_str().context("the daemon has no address")?;
    let address = format!("http://{address}/openapi.json");
    let seconds = seconds.to_string();
    let credential = format!("Authorization: Bearer {token}");
    let words = [
        // One probe takes longer than all else together; it is tested by itself.
        "run",
        &address,
        "--header",
        &credential,
        // A made-up key would be refused, whatever else the request carries.
        "--generation-with-security-parameters",
        "false",
        "--max-time",
        &seconds,
        "--exclude-path",
        "/system/probe",
        "--workers",
        "2",
        "--request-timeout",
        "120",
        "--exclude-checks",
        NOT_CHECKED,
        "--no-color",
        "--suppress-health-check=all",
    ];
    eprintln!("\n$ schemathesis {}", words.join(" ").replace(token, "TOKEN"));
    let ran = Command::new("python3")
        .args(["-c", PROGRAM])
        .args(words)
        .env("PYTHONPATH", python)
        .current_dir(root().join("target/contract"))
        .output()?;
    let text = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    let summary = text.find("= SUMMARY =").map_or(text.as_str(), |at| &text[at..]);
    // It stumbles over itself now and then; what counts is what it found.
    if text.contains("= FAILURES =") || !text.contains("Test cases:") {
        bail!("the API does not keep to its document:\n{text}");
    }
    eprintln!("{summary}");
    Ok(())
}

/// Puts it beside the other tools, unless it is there.
fn install() -> anyhow::Result<std::path::PathBuf> {
    let python = root().join(".tools/python");
    let there = python.join(format!("schemathesis-{VERSION}.dist-info")).is_dir();
    if !there {
        let _ = fs::remove_dir_all(&python);
        if read(&["python3", "-m", "pip", "--version"]).is_none() {
            run(&["apt-get", "install", "-y", "-qq", "--no-install-recommends", "python3-pip"])?;
        }
        let package = format!("schemathesis=={VERSION}");
        let target = python.display().to_string();
        run(&[
            "python3",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--root-user-action=ignore",
            "--target",
            &target,
            &package,
        ])?;
    }
    Ok(python)
}
