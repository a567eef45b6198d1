//! Figures, side by side with peers in one run, so that a busy machine slows all of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use crate::peers::{self, path, path_word};
use crate::shell::{read, root, run};

/// How often each is run; those that take long are run less often.
const ROUNDS: usize = 200;
const ROUNDS_OF_SLOW: usize = 15;
/// A program that takes longer is slow.
const SLOW: Duration = Duration::from_millis(100);
const AT_ONCE: usize = 100;
const AT_ONCE_ROUNDS: usize = 5;

/// The same namespaces and the barest root in which programs start.
const BWRAP: &str = "bwrap --unshare-all --die-with-parent --new-session --cap-drop ALL --ro-bind /usr /usr \
                     --ro-bind /etc /etc --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 \
                     --proc /proc --dev /dev --tmpfs /tmp --tmpfs /run --tmpfs /home --bind . /workspace \
                     --chdir /workspace";
/// What `native` also hides or holds, where it is on this machine.
const HIDDEN: [&str; 14] = [
    "/etc/security/opasswd",
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/proc/slabinfo",
    "/proc/kpagecount",
    "/proc/kpagecgroup",
    "/proc/pagetypeinfo",
    "/proc/keys",
    "/proc/kmsg",
    "/proc/timer_list",
    "/proc/vmallocinfo",
    "/proc/kpageflags",
];
const HIDDEN_DIRECTORIES: [&str; 5] = ["/etc/ssh", "/etc/ssl/private", "/var/tmp", "/root", "/opt"];
const HELD_DIRECTORIES: [&str; 3] = [".git", ".claude", ".codex"];
const HELD: [&str; 7] =
    [".gitmodules", ".ringfence", "opencode.json", ".mcp.json", ".vscode", ".idea", ".envrc"];
const HAKONIWA: &str = "hakoniwa run --unshare-all --devfs /dev --tmpfs /tmp --bindmount-rw .:/workspace --";
const DOCKER_RUN: &str = "run --rm --network none --cap-drop ALL --security-opt no-new-privileges --read-only \
                          --tmpfs /tmp -v .:/workspace -w /workspace";

/// What a container of ours has.
const CONTAINER: &str = "--network none --cap-drop ALL --security-opt no-new-privileges --read-only --tmpfs /tmp \
                         --tmpfs /home/agent --memory 2g --memory-swap 2g --cpus 1.0 --pids-limit 258 \
                         --log-driver none --user 0:0";
const IMAGE: &str = "ringfence/agent:latest";
/// Settings with which containers are kept ready.
const WARM: &str = r#"{"sandbox": {"warm": 2}}"#;

/// Something that starts a program.
pub(crate) struct Peer {
    name: &'static str,
    version: String,
    /// What stands before the program.
    words: Vec<String>,
}

impl Peer {
    pub(crate) fn new(name: &'static str, words: &str, version: &[&str]) -> Option<Self> {
        let words: Vec<String> = words.split_whitespace().map(String::from).collect();
        words.first().is_none_or(|program| peers::has(program)).then(|| {
            let version = read(&[&["env", &*path_word()], version].concat()).unwrap_or_default();
            Self { name, version: version.lines().next().unwrap_or_default().to_owned(), words }
        })
    }

    fn command(&self, place: &Place, program: &[&str]) -> Command {
        let words: Vec<&str> = self.words.iter().map(String::as_str).chain(program.iter().copied()).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).env("RINGFENCE_HOME", &place.state).current_dir(&place.work);
        command.env("PATH", path());
        // One of the peers refuses to work from a temporary directory.
        command.env("CODEX_HOME", &place.codex);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    pub(crate) fn time(&self, place: &Place) -> anyhow::Result<Duration> {
        let start = Instant::now();
        let status = self.command(place, &["true"]).status()?;
        ensure!(status.success(), "{} failed: {status}", self.name);
        Ok(start.elapsed())
    }
}

/// An empty workspace, as every peer has one, and places for state.
pub(crate) struct Place {
    state: PathBuf,
    pub(crate) work: PathBuf,
    codex: PathBuf,
}

impl Place {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let temporary = std::env::temp_dir().join(format!("ringfence-bench-{}", std::process::id()));
        let codex = root().join("target/bench-codex");
        let place = Self { state: temporary.join("state"), work: temporary.join("work"), codex };
        std::fs::create_dir_all(&place.work)?;
        std::fs::create_dir_all(&place.codex)?;
        Ok(place)
    }

    /// A workspace in which all that is held exists.
    fn held(&self) -> PathBuf {
        self.work.with_file_name("held")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.work.parent().map(std::fs::remove_dir_all);
    }
}

pub(crate) fn bench() -> anyhow::Result<()> {
    peers::sandboxes();
    let binary = built()?;
    let bytes = std::fs::metadata(&binary)?.len();
    println!("kernel {}", read(&["uname", "-r"]).unwrap_or_default());
    println!("binary, stripped: {:.1} MiB (goal: below 25)", bytes as f64 / f64::from(1 << 20));
    let place = Place::new()?;
    start_of_the_binary(&binary, &place)?;
    let peers = peers(&binary, &place)?;
    one_at_a_time(&peers, &place)?;
    many_at_once(&peers, &place)
}

/// Containers beside those of the engines' own commands, with the same limits and mounts.
pub(crate) fn containers() -> anyhow::Result<()> {
    let binary = built()?;
    let engines = engines()?;
    let place = Place::new()?;
    let warm = place.work.with_file_name("warm");
    std::fs::create_dir_all(&warm)?;
    std::io::Write::write_all(&mut std::fs::File::create(warm.join("settings.json"))?, WARM.as_bytes())?;
    for (mode, flag, variable) in [("docker", "--host", "DOCKER_HOST"), ("podman", "--url", "CONTAINER_HOST")]
    {
        let address = engines[mode].as_str().context("the engines are not there")?;
        let ours = format!(
            "env {variable}={address} RINGFENCE_HOME={{}} {} exec --mode {mode} --",
            binary.display()
        );
        let engine = match mode {
            "podman" => local_podman(),
            _ => format!("{mode} {flag} {address}"),
        };
        let own = format!("{engine} run --rm {CONTAINER} -v .:/workspace -w /workspace {IMAGE}");
        let state = place.state.display().to_string();
        let peers = [
            ("run --rm", own),
            ("ringfence", ours.replace("{}", &state)),
            ("ringfence, warm", ours.replace("{}", &warm.display().to_string())),
        ];
        let version = read(&[mode, flag, address, "version", "--format", "{{.Server.Version}}"]);
        println!("\n{mode} {}: `true`, {ROUNDS_OF_SLOW} rounds in turns", version.unwrap_or_default());
        compare(&peers, &place)?;
    }
    Ok(())
}

/// Where the engines of the tests are.
fn engines() -> anyhow::Result<serde_json::Value> {
    let engines = std::fs::read(root().join(".tools/engines/engines.json"));
    Ok(serde_json::from_slice(&engines.context("start the engines with `cargo xtask engines`")?)?)
}

/// Root's own Podman, with the store of the tests.
fn local_podman() -> String {
    let store = root().join(".tools/engines/podman");
    let store = store.display();
    let settings = root().join(".tools/engines/containers.conf");
    format!(
        "env CONTAINERS_CONF={} podman --root {store}/root --runroot {store}/run --storage-driver overlay",
        settings.display()
    )
}

fn compare(peers: &[(&'static str, String)], place: &Place) -> anyhow::Result<()> {
    let peers = peers.iter().map(|(name, words)| Peer::new(name, words, &["true", "--version"]));
    let peers: Vec<Peer> = peers.collect::<Option<_>>().context("a program is missing")?;
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); peers.len()];
    for round in 0..=ROUNDS_OF_SLOW {
        for (peer, times) in peers.iter().zip(&mut times) {
            // What waits is made ready again, which is not measured; nor is the first round.
            #[expect(
                clippy::disallowed_methods,
                reason = "a peer is not disturbed by what another has begun"
            )]
            std::thread::sleep(Duration::from_millis(1200));
            let time = peer.time(place)?;
            times.extend((round > 0).then_some(time));
        }
    }
    let figures: Vec<(Duration, Duration)> = times.into_iter().map(quantiles).collect();
    println!("  {:<18} {:>9} {:>9} {:>9}  (goal: ≤ 0.8 ×, warm ≤ 0.2 ×)", "", "p50 ms", "p99 ms", "× p50");
    for (peer, (median, p99)) in peers.iter().zip(&figures) {
        let ratio = ms(*median) / ms(figures[0].0);
        println!("  {:<18} {:>9.1} {:>9.1} {ratio:>9.2}", peer.name, ms(*median), ms(*p99));
    }
    Ok(())
}

/// The queue beside SQLite alone and BullMQ, if they can be had.
pub(crate) fn queue() -> anyhow::Result<()> {
    let binary = built()?.display().to_string();
    let peers = root().join("target/bench-queue");
    std::fs::create_dir_all(&peers)?;
    let peers = peers.display().to_string();
    peers::queues();
    if !Path::new(&peers).join("node_modules/ioredis").exists() {
        run(&[
            "npm",
            "install",
            "--silent",
            "--no-audit",
            "--no-fund",
            "--prefix",
            &peers,
            "bullmq",
            "ioredis",
        ])?;
    }
    run(&["cargo", "run", "--release", "--locked", "-p", "queue-bench", "--", &binary, &peers])
}

/// The broker beside other proxies.
pub(crate) fn egress() -> anyhow::Result<()> {
    peers::proxies();
    let python = format!("PYTHONPATH={}", peers::python().display());
    run(&["env", &path_word(), &python, "cargo", "run", "--release", "--locked", "-p", "egress-bench"])
}

/// The binary as it is released.
pub(crate) fn built() -> anyhow::Result<PathBuf> {
    run(&["cargo", "build", "--release", "--locked", "-p", "ringfence"])?;
    crate::shell::built("release", "ringfence")
}

fn start_of_the_binary(binary: &Path, place: &Place) -> anyhow::Result<()> {
    let peer = |name, words: &str| Peer {
        name,
        version: String::new(),
        words: words.split(' ').map(String::from).collect(),
    };
    let ours = peer("--help", &format!("{} --help", binary.display()));
    let git = peer("git --version", "git --version");
    let mut times = BTreeMap::new();
    for _ in 0..ROUNDS {
        for one in [&ours, &git] {
            let start = Instant::now();
            ensure!(one.command(place, &[]).status()?.success(), "{} failed", one.name);
            times.entry(one.name).or_insert_with(Vec::new).push(start.elapsed());
        }
    }
    println!("\nstart of the binary, {ROUNDS} rounds in turns (goal: below 50 ms)");
    for (name, times) in times {
        let (median, p99) = quantiles(times);
        println!("  {name:<16} p50 {:6.2} ms  p99 {:6.2} ms", ms(median), ms(p99));
    }
    Ok(())
}

fn peers(binary: &Path, place: &Place) -> anyhow::Result<Vec<Peer>> {
    let ours = binary.display().to_string();
    let docker = docker_run();
    let all = [
        Some(("plain process", String::new(), vec!["true", "--version"])),
        Some(("ringfence native", format!("{ours} exec --mode native --"), vec![&*ours, "--version"])),
        Some(("ringfence host", format!("{ours} exec --mode host --"), vec![&*ours, "--version"])),
        Some(("bwrap", BWRAP.to_owned(), vec!["bwrap", "--version"])),
        Some(("bwrap, same root", same_root(place)?, vec!["bwrap", "--version"])),
        Some(("hakoniwa", HAKONIWA.to_owned(), vec!["hakoniwa", "--version"])),
        Some(("codex sandbox", "codex sandbox --".to_owned(), vec!["codex", "--version"])),
        Some(("srt", "srt".to_owned(), vec!["srt", "--version"])),
        docker.map(|words| ("docker run", words, vec!["docker", "--version"])),
    ];
    let mut found = Vec::new();
    for (name, words, version) in all.into_iter().flatten() {
        match Peer::new(name, &words, &version) {
            // Ours has no such excuse.
            Some(peer) => match peer.time(place) {
                Err(error) if !name.starts_with("ringfence") => {
                    println!("{name} {} is not measured: {error}", peer.version);
                }
                _ => found.push(peer),
            },
            None => println!("{name} is not here, so it is not measured"),
        }
    }
    if !found.iter().any(|peer| peer.name == "docker run") {
        println!("docker run is not measured: no engine has {IMAGE} (`cargo xtask engines` makes both)");
    }
    Ok(found)
}

/// The same namespaces, and the same paths hidden and held. They have to be there: it would leave behind what it makes.
fn same_root(place: &Place) -> anyhow::Result<String> {
    let held = place.held();
    std::fs::create_dir_all(&held)?;
    for name in HELD_DIRECTORIES {
        std::fs::create_dir_all(held.join(name))?;
    }
    for name in HELD {
        std::fs::File::create(held.join(name))?;
    }
    let there = |path: &&&str| Path::new(path).exists();
    let mut words = BWRAP.replace("--bind .", &format!("--bind {}", held.display()));
    for path in HIDDEN.iter().filter(there) {
        words += &format!(" --ro-bind /dev/null {path}");
    }
    for path in HIDDEN_DIRECTORIES.iter().filter(there) {
        words += &format!(" --tmpfs {path}");
    }
    for name in HELD_DIRECTORIES.iter().chain(&HELD) {
        words += &format!(" --ro-bind {0}/{name} /workspace/{name}", held.display());
    }
    Ok(words)
}

/// With the image of agents, which the machine's engine may have and the tests' has.
fn docker_run() -> Option<String> {
    let tests =
        engines().ok().and_then(|engines| Some(format!("docker --host {}", engines["docker"].as_str()?)));
    [Some("docker".to_owned()), tests].into_iter().flatten().find_map(|docker| {
        let words: Vec<&str> = docker.split(' ').collect();
        read(&[&words[..], &["image", "inspect", IMAGE]].concat())?;
        Some(format!("{docker} {DOCKER_RUN} {IMAGE}"))
    })
}

fn one_at_a_time(peers: &[Peer], place: &Place) -> anyhow::Result<()> {
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); peers.len()];
    for round in 0..ROUNDS {
        for (peer, times) in peers.iter().zip(&mut times) {
            let slow = times.first().is_some_and(|time| *time > SLOW);
            if slow && round >= ROUNDS_OF_SLOW {
                continue;
            }
            times.push(peer.time(place)?);
        }
    }
    let figures: Vec<(Duration, Duration)> = times.into_iter().map(quantiles).collect();
    let against = peers.iter().position(|peer| peer.name == "bwrap").map(|index| figures[index]);
    println!("\n`true`, one at a time, {ROUNDS} rounds in turns (goal: native ≤ 1.0 × bwrap)");
    println!("  {:<18} {:>9} {:>9} {:>9} {:>9}  version", "", "p50 ms", "p99 ms", "× p50", "× p99");
    for (peer, (median, p99)) in peers.iter().zip(&figures) {
        let ratio = |own: &Duration, other: Option<Duration>| {
            other.map_or_else(|| "-".to_owned(), |other| format!("{:.2}", ms(*own) / ms(other)))
        };
        println!(
            "  {:<18} {:>9.2} {:>9.2} {:>9} {:>9}  {}",
            peer.name,
            ms(*median),
            ms(*p99),
            ratio(median, against.map(|(median, _)| median)),
            ratio(p99, against.map(|(_, p99)| p99)),
            peer.version
        );
    }
    Ok(())
}

/// Many that live for a second, and what they hold meanwhile.
fn many_at_once(peers: &[Peer], place: &Place) -> anyhow::Result<()> {
    let measured: Vec<&Peer> = peers
        .iter()
        .filter(|peer| ["plain process", "ringfence native", "bwrap"].contains(&peer.name))
        .collect();
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); measured.len()];
    let mut memory = vec![0; measured.len()];
    for _ in 0..AT_ONCE_ROUNDS {
        for (index, peer) in measured.iter().enumerate() {
            let start = Instant::now();
            let children: Vec<Child> = (0..AT_ONCE)
                .map(|_| peer.command(place, &["sleep", "1"]).spawn())
                .collect::<Result<_, _>>()?;
            #[expect(clippy::disallowed_methods, reason = "while they sleep there is nothing to wait for")]
            std::thread::sleep(Duration::from_millis(900));
            memory[index] =
                children.iter().map(|child| resident_below(child.id())).sum::<u64>() / AT_ONCE as u64;
            for mut child in children {
                ensure!(child.wait()?.success(), "{} failed", peer.name);
            }
            times[index].push(start.elapsed());
        }
    }
    let figures: Vec<Duration> = times.into_iter().map(|times| quantiles(times).0).collect();
    println!(
        "\n{AT_ONCE} × `sleep 1` at once, {AT_ONCE_ROUNDS} rounds in turns (goal: ≤ 1.5 × plain, ≤ 3 MiB each)"
    );
    println!("  {:<18} {:>9} {:>9} {:>14}", "", "p50 ms", "× plain", "KiB each");
    for ((peer, time), memory) in measured.iter().zip(&figures).zip(&memory) {
        println!("  {:<18} {:>9.0} {:>9.2} {:>14}", peer.name, ms(*time), ms(*time) / ms(figures[0]), memory);
    }
    println!("  (memory: proportional share of all its processes but the program's own)");
    Ok(())
}

/// Kilobytes that a process and all below it hold, each shared page counted by its share; without `sleep` itself.
fn resident_below(pid: u32) -> u64 {
    let text = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let own = match text("comm").trim() {
        "sleep" => 0,
        _ => {
            let rollup = text("smaps_rollup");
            let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
            line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
        }
    };
    let children = text(&format!("task/{pid}/children"));
    own + children.split_whitespace().filter_map(|child| child.parse().ok()).map(resident_below).sum::<u64>()
}

fn quantiles(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort_unstable();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Many who look on at once.
pub(crate) fn server() -> anyhow::Result<()> {
    let binary = built()?.display().to_string();
    run(&["cargo", "run", "--release", "--locked", "-p", "server-bench", "--", &binary])
}
