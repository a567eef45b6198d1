//! Container engines for the tests: Docker's, Podman's of root, and Podman's of a person, with the image that agents run
//! in. They are this project's own and touch nothing of the machine's.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::json;

use crate::shell::{built, is_root, read, root, run};

/// The person of the rootless engine.
const PERSON: &str = "ringfence-test";
/// What the image is called.
const IMAGE: &str = "ringfence/agent:latest";
/// How long an engine may take until it answers.
const PATIENCE: Duration = Duration::from_secs(60);
/// The older of the two runtimes starts wherever the newer one does, and on more machines.
const PODMAN_SETTINGS: &str = "[containers]\n\
    default_ulimits=[\"nofile=20000:20000\",\"nproc=32768:32768\"]\n\
    [engine]\nruntime=\"runc\"\n";

fn place() -> PathBuf {
    root().join(".tools/engines")
}

/// Where the person of the rootless engine has everything: not everybody may come into a checkout.
fn home() -> PathBuf {
    std::env::temp_dir().join(PERSON)
}

/// Starts the engines that are not there, and gives each the image.
pub(crate) fn up() -> anyhow::Result<()> {
    if !is_root() {
        bail!("the engines of the tests need root");
    }
    fs::create_dir_all(place())?;
    write(&place().join("containers.conf"), PODMAN_SETTINGS)?;
    let [docker, podman, rootless] = [docker(), podman(), rootless()?];
    for engine in [&docker, &podman, &rootless] {
        engine.start()?;
    }
    run(&["cargo", "build", "--locked"])?;
    give_image(&docker, &podman, &rootless)?;
    let file = json!({
        "docker": docker.address(),
        "podman": podman.address(),
        "rootless": rootless.address(),
        "person": read(&["id", "-u", PERSON]).and_then(|uid| uid.parse::<u32>().ok()),
    });
    Ok(write(&place().join("engines.json"), &file.to_string())?)
}

fn write(file: &Path, text: &str) -> std::io::Result<()> {
    File::create(file)?.write_all(text.as_bytes())
}

/// Ends those that were started here.
pub(crate) fn down() -> anyhow::Result<()> {
    let _ = fs::remove_file(place().join("engines.json"));
    for engine in [docker(), podman(), rootless()?] {
        engine.stop();
    }
    // The rootless one leaves a process that holds its namespaces. Ended as the person: an old note may name a process of somebody else.
    if let Ok(pid) = fs::read_to_string(home().join("run/libpod/tmp/pause.pid")) {
        let kill = [as_person(), words(&["kill", pid.trim()])].concat();
        let _ = read(&kill.iter().map(String::as_str).collect::<Vec<_>>());
    }
    // A mount of a daemon that is gone keeps the directory from being removed.
    let _ = read(&["umount", &place().join("docker-exec/netns/default").display().to_string()]);
    Ok(())
}

struct Engine {
    name: &'static str,
    socket: PathBuf,
    words: Vec<String>,
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn docker() -> Engine {
    let at = |name: &str| place().join(name).display().to_string();
    let socket = place().join("docker.sock");
    let mut all = words(&["dockerd", "--bridge=none", "--iptables=false"]);
    all.push("--default-ulimit=nofile=20000:20000".into());
    for (flag, name) in
        [("data-root", "docker-data"), ("exec-root", "docker-exec"), ("pidfile", "dockerd.pid")]
    {
        all.push(format!("--{flag}={}", at(name)));
    }
    all.push(format!("--host=unix://{}", socket.display()));
    Engine { name: "docker", socket, words: all }
}

fn podman() -> Engine {
    let socket = place().join("podman.sock");
    let mut all = podman_in(&place().join("podman"));
    all.extend(words(&["system", "service", "--time=0", &format!("unix://{}", socket.display())]));
    Engine { name: "podman", socket, words: all }
}

/// Podman with a store of its own.
fn podman_in(store: &Path) -> Vec<String> {
    let at = |name: &str| store.join(name).display().to_string();
    words(&["podman", "--root", &at("root"), "--runroot", &at("run"), "--storage-driver", "overlay"])
}

fn rootless() -> anyhow::Result<Engine> {
    if read(&["id", "-u", PERSON]).is_none() {
        run(&["useradd", "--home-dir", &home().display().to_string(), "--no-create-home", PERSON])?;
    }
    for directory in ["run", "store"] {
        fs::create_dir_all(home().join(directory))?;
    }
    fs::copy(place().join("containers.conf"), home().join("containers.conf")).or_else(ignore_missing)?;
    run(&["chown", "-R", PERSON, &home().display().to_string()]).or_else(|_| anyhow::Ok(()))?;
    let socket = home().join("podman.sock");
    let mut all = as_person();
    all.extend(podman_in(&home().join("store")));
    all.extend(words(&["system", "service", "--time=0", &format!("unix://{}", socket.display())]));
    Ok(Engine { name: "rootless", socket, words: all })
}

fn ignore_missing(error: std::io::Error) -> std::io::Result<u64> {
    if error.kind() == std::io::ErrorKind::NotFound { Ok(0) } else { Err(error) }
}

/// What makes a command the person's.
fn as_person() -> Vec<String> {
    let home = home().display().to_string();
    let mut all = words(&["setpriv", "--reuid", PERSON, "--regid", PERSON, "--init-groups", "env"]);
    all.push(format!("HOME={home}"));
    all.push(format!("XDG_RUNTIME_DIR={home}/run"));
    all.push(format!("CONTAINERS_CONF={home}/containers.conf"));
    all
}

impl Engine {
    fn address(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    fn pid_file(&self) -> PathBuf {
        place().join(format!("{}.pid", self.name))
    }

    #[expect(clippy::disallowed_methods, reason = "an engine does not say when it listens")]
    fn start(&self) -> anyhow::Result<()> {
        if UnixStream::connect(&self.socket).is_ok() {
            return Ok(());
        }
        let log = File::create(place().join(format!("{}.log", self.name)))?;
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).current_dir("/").process_group(0).stdin(Stdio::null());
        command.env("CONTAINERS_CONF", place().join("containers.conf"));
        command.stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("{} cannot be started", self.name))?;
        write(&self.pid_file(), &child.id().to_string())?;
        let deadline = Instant::now() + PATIENCE;
        while UnixStream::connect(&self.socket).is_err() {
            if Instant::now() > deadline {
                let log = fs::read_to_string(place().join(format!("{}.log", self.name)))?;
                bail!("{} does not answer:\n{log}", self.name);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn stop(&self) {
        if let Ok(pid) = fs::read_to_string(self.pid_file()) {
            let pid = pid.trim();
            // Its whole group: one of them starts itself anew and is another process then.
            let _ = Command::new("kill").args(["--", &format!("-{pid}")]).status();
            let deadline = Instant::now() + PATIENCE;
            // One that was started here has ended, but nobody waits for it.
            let stat = Path::new("/proc").join(pid).join("stat");
            let lives = || fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
            while lives() && Instant::now() < deadline {
                #[expect(
                    clippy::disallowed_methods,
                    reason = "somebody else's process tells nobody of its end"
                )]
                std::thread::sleep(Duration::from_millis(50));
            }
            let _ = fs::remove_file(self.pid_file());
        }
    }
}

/// Builds the image with one engine, by the way that people do, and carries it to the others.
fn give_image(docker: &Engine, podman: &Engine, rootless: &Engine) -> anyhow::Result<()> {
    let state = place().join("state").display().to_string();
    let docker_host = format!("DOCKER_HOST={}", docker.address());
    if read(&["env", &docker_host, "docker", "image", "inspect", IMAGE]).is_none() {
        let binary = built("debug", "ringfence")?.display().to_string();
        let home = format!("RINGFENCE_HOME={state}");
        run(&[
            "env",
            &docker_host,
            &home,
            &binary,
            "sandbox",
            "build-image",
            "--mode",
            "docker",
            "--base",
            "none",
        ])?;
    }
    let archive = home().join("image.tar").display().to_string();
    for engine in [podman, rootless] {
        let mut remote = if engine.name == "rootless" { as_person() } else { Vec::new() };
        remote.extend(words(&["podman", "--url", &engine.address()]));
        let remote: Vec<&str> = remote.iter().map(String::as_str).collect();
        if read(&[&remote[..], &["image", "exists", IMAGE]].concat()).is_some() {
            continue;
        }
        if !Path::new(&archive).exists() {
            run(&["env", &docker_host, "docker", "save", "--output", &archive, IMAGE])?;
            run(&["chmod", "0644", &archive])?;
        }
        run(&[&remote[..], &["load", "--quiet", "--input", &archive]].concat())?;
    }
    let _ = fs::remove_file(archive);
    Ok(())
}
