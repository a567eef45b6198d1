//! What the tests need: a few programs of the system, and the agent CLIs at the versions of one file.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::Value;

use crate::shell::{has, read, root, run};

/// Programs and the Debian packages that bring them.
const PROGRAMS: [(&str, &str); 18] = [
    ("node", "nodejs"),
    ("npm", "npm"),
    ("bash", "bash"),
    ("setsid", "util-linux"),
    ("kill", "procps"),
    ("python3", "python3"),
    ("curl", "curl"),
    ("git", "git"),
    ("dockerd", "docker.io"),
    ("docker", "docker.io"),
    ("podman", "podman"),
    ("runc", "runc"),
    ("newuidmap", "uidmap"),
    ("mmdebstrap", "mmdebstrap"),
    ("busybox", "busybox-static"),
    ("ip", "iproute2"),
    ("chromium", "chromium"),
    ("chromedriver", "chromium-driver"),
];

pub(crate) fn setup() -> anyhow::Result<()> {
    system_programs()?;
    agent_clis()?;
    if read(&["cargo", "nextest", "--version"]).is_none() {
        run(&["cargo", "install", "cargo-nextest", "--locked"])?;
    }
    Ok(())
}

fn system_programs() -> anyhow::Result<()> {
    let missing: Vec<&str> =
        PROGRAMS.iter().filter(|(program, _)| !has(program)).map(|(_, package)| *package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let by_hand = format!("please install: {}", missing.join(" "));
    if !has("apt-get") || read(&["id", "-u"]).as_deref() != Some("0") {
        bail!("programs are missing and this user cannot install them; {by_hand}");
    }
    run(&["apt-get", "update", "-qq"])?;
    let install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends"];
    run(&[&install[..], &missing].concat()).context(by_hand)
}

/// Installs the agent CLIs into `.tools`, unless just those versions are there and work.
fn agent_clis() -> anyhow::Result<()> {
    let wanted = root().join("tests/agent-clis/package.json");
    let tools = root().join(".tools");
    let packages = packages(&wanted)?;
    let installed = |(name, version): &(String, String)| {
        let package = fs::read(tools.join("node_modules").join(name).join("package.json"));
        let package: Option<Value> = package.ok().and_then(|text| serde_json::from_slice(&text).ok());
        package.is_some_and(|package| package["version"] == version.as_str())
    };
    if !packages.iter().all(installed) {
        fs::create_dir_all(&tools)?;
        fs::copy(&wanted, tools.join("package.json"))?;
        let tools = tools.display().to_string();
        run(&["npm", "install", "--prefix", &tools, "--no-audit", "--no-fund", "--no-package-lock"])?;
    }
    for program in ["claude", "codex", "opencode"] {
        let path = tools.join("node_modules/.bin").join(program).display().to_string();
        let version = read(&[&path, "--version"]).with_context(|| format!("{path} does not work"))?;
        eprintln!("{program}: {version}");
    }
    Ok(())
}

fn packages(file: &Path) -> anyhow::Result<Vec<(String, String)>> {
    let package: Value = serde_json::from_slice(&fs::read(file)?)?;
    let dependencies = package["dependencies"].as_object().context("no dependencies")?;
    let pair = |(name, version): (&String, &Value)| Some((name.clone(), version.as_str()?.to_owned()));
    Ok(dependencies.iter().filter_map(pair).collect())
}
