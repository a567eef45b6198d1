//! What the broker costs: requests a second and latency through it, beside the same requests without it and through
//! mitmproxy and the proxy of srt, in turns, in one run.
//!
//! Client, server and proxies are processes of their own, as they are in lifecycle. This program is all of them but those two.
#![allow(clippy::disallowed_macros, reason = "a chore may end when nobody reads")]

mod client;
mod parts;

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use client::{Lines, Route, Target};

/// Short, so that a machine that is busy elsewhere is so for all of them.
const ROUNDS: usize = 40;
const ROUND: Duration = Duration::from_millis(100);
/// How many connections there are at once.
const CONNECTIONS: [usize; 5] = [1, 2, 4, 8, 16];
const IDLE: usize = 1000;

/// The host that is passed on, and the one that is looked into.
const PASSED: &str = "pass.test";
const LOOKED: &str = "look.test";

const DIRECT: &str = "direct";
const PASSED_ON: &str = "broker, passed on";
const LOOKED_INTO: &str = "broker, looked into";
const BYTES: &str = "TLS on both sides";
const MITMPROXY: &str = "mitmproxy";

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", directory] => parts::server(Path::new(directory)).await,
        ["broker", directory, server] => parts::broker(Path::new(directory), server.parse()?).await,
        ["bytes", directory, server] => {
            // One thread, as the broker has.
            let (directory, server) = (std::path::PathBuf::from(directory), server.parse()?);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let thread = std::thread::spawn(move || runtime.block_on(parts::bytes(&directory, server)));
            thread.join().map_err(|_| anyhow::anyhow!("it ended early"))?
        }
        [] => compare().await,
        _ => anyhow::bail!("it takes no arguments"),
    }
}

/// A part of the scene, which ends with it, and the address that it has told.
struct Part {
    child: Child,
    address: std::net::SocketAddr,
}

async fn start(args: &[&str]) -> anyhow::Result<Part> {
    let mut command = Command::new(std::env::current_exe()?);
    let mut child = command.args(args).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
    let stdout = child.stdout.take().context("a part has no output")?;
    let line = BufReader::new(stdout).lines().next_line().await?.context("a part says nothing")?;
    Ok(Part { child, address: line.parse()? })
}

/// mitmproxy, if it is here.
async fn mitmproxy(directory: &Path) -> Option<(Child, Route)> {
    let version = Command::new("mitmdump").arg("--version").output().await.ok()?;
    println!("{}", String::from_utf8_lossy(&version.stdout).lines().next().unwrap_or_default());
    let port = std::net::TcpListener::bind("127.0.0.1:0").ok()?.local_addr().ok()?.port();
    let mut command = Command::new("mitmdump");
    let home = format!("confdir={}", directory.display());
    command.args([
        "-q",
        "--listen-host",
        "127.0.0.1",
        "-p",
        &port.to_string(),
        "--ssl-insecure",
        "--set",
        &home,
    ]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).spawn().ok()?;
    let address = ([127, 0, 0, 1], port).into();
    let until = Instant::now() + Duration::from_secs(30);
    while tokio::net::TcpStream::connect(address).await.is_err() {
        if Instant::now() > until {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Some((child, Route::Proxy(address)))
}

/// Starts the proxy of srt, as srt does, and says where it listens.
const SRT: &str = "const { createHttpProxyServer } = await import(process.argv[1]); \
    const server = createHttpProxyServer({ filter: () => true }); \
    server.listen(0, '127.0.0.1', () => console.log('127.0.0.1:' + server.address().port));";

/// The proxy of srt, if srt is here.
async fn srt() -> Option<(Child, Route)> {
    let path = std::env::var_os("PATH")?;
    let program =
        std::env::split_paths(&path).map(|directory| directory.join("srt")).find(|file| file.exists())?;
    let version = Command::new(&program).arg("--version").output().await.ok()?;
    println!("srt {}", String::from_utf8_lossy(&version.stdout).trim());
    let module = program.canonicalize().ok()?.parent()?.join("sandbox/http-proxy.js");
    let mut command = Command::new("node");
    command.args(["--input-type=module", "--eval", SRT]).arg(module).kill_on_drop(true);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let line = BufReader::new(child.stdout.take()?).lines().next_line().await.ok()??;
    Some((child, Route::Proxy(line.parse().ok()?)))
}

struct Measured {
    name: &'static str,
    target: Target,
    /// For each number of connections, round by round.
    rates: [Vec<f64>; CONNECTIONS.len()],
    /// Of requests one after another.
    times: Vec<Duration>,
}

impl Measured {
    fn new(name: &'static str, target: Target) -> Self {
        Self { name, target, rates: Default::default(), times: Vec::new() }
    }

    /// The middle one, once they are in order.
    fn rate(&self, at: usize) -> f64 {
        self.rates[at][self.rates[at].len() / 2]
    }
}

/// Asks all of them in turns, for each number of connections.
async fn measure(measured: &mut [Measured], trust: &client::Trust) -> anyhow::Result<()> {
    for (at, count) in CONNECTIONS.into_iter().enumerate() {
        let mut open = Vec::new();
        for one in &*measured {
            open.push(Lines::open(trust, &one.target, count).await?);
        }
        for _ in 0..ROUNDS {
            for (one, lines) in measured.iter_mut().zip(&mut open) {
                let began = Instant::now();
                let times = lines.ask(ROUND).await?;
                one.rates[at].push(times.len() as f64 / began.elapsed().as_secs_f64());
                if count == 1 {
                    one.times.extend(times);
                }
            }
        }
    }
    for one in measured {
        one.times.sort_unstable();
        one.rates.iter_mut().for_each(|rates| rates.sort_by(f64::total_cmp));
    }
    Ok(())
}

async fn compare() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let here = directory.path().display().to_string();
    let server = start(&["server", &here]).await?;
    let broker = start(&["broker", &here, &server.address.to_string()]).await?;
    let bytes = start(&["bytes", &here, &server.address.to_string()]).await?;
    let proxy = mitmproxy(directory.path()).await;
    let target = |name: &str, route| Target { host: name.to_owned(), route };
    let port = server.address.port();
    let mut all = vec![
        (DIRECT, target(PASSED, Route::Direct(server.address))),
        (PASSED_ON, target(PASSED, Route::Proxy(broker.address))),
        (LOOKED_INTO, target(LOOKED, Route::Proxy(broker.address))),
        (BYTES, target(LOOKED, Route::Proxy(bytes.address))),
    ];
    match &proxy {
        Some((_, Route::Proxy(address))) => {
            // It resolves names itself, and there is none for the host: the address is its name.
            all.push((MITMPROXY, target(&format!("127.0.0.1:{port}"), Route::Proxy(*address))));
        }
        _ => println!("mitmproxy is not here, so it is not measured"),
    }
    let srt = srt().await;
    match &srt {
        Some((_, Route::Proxy(address))) => {
            all.push(("srt, passed on", target(&format!("127.0.0.1:{port}"), Route::Proxy(*address))));
        }
        _ => println!("srt is not here, so it is not measured"),
    }
    let mut measured: Vec<Measured> =
        all.into_iter().map(|(name, target)| Measured::new(name, target)).collect();
    let trust = client::Trust::new();
    measure(&mut measured, &trust).await?;
    print(&measured);
    let broker_pid = broker.child.id().context("the broker has ended")?;
    let before = resident(broker_pid)?;
    let looked = Target { host: LOOKED.into(), route: Route::Proxy(broker.address) };
    let idle = client::idle(&trust, &looked, IDLE).await?;
    let with = resident(broker_pid)?;
    println!(
        "\n{} idle connections, looked into: {:.1} MiB resident, {:.1} KiB each",
        idle.len(),
        with / 1024.0,
        (with - before) / idle.len() as f64
    );
    ensure!(idle.len() == IDLE, "not all connections were served");
    Ok(())
}

fn print(measured: &[Measured]) {
    println!(
        "\nHTTPS, keep-alive, 1 KiB: requests/s and how many times direct, {ROUNDS} × {} ms in turns; latency of requests one after another",
        ROUND.as_millis()
    );
    let heads = CONNECTIONS.map(|count| format!("{:>16}", format!("{count} at once"))).concat();
    println!("  {:<20}{heads} {:>8} {:>8}", "", "p50 ms", "p99 ms");
    for one in measured {
        let ms = |at: usize| one.times[at].as_secs_f64() * 1000.0;
        let (middle, late) = (ms(one.times.len() / 2), ms(one.times.len() * 99 / 100));
        let rates = (0..CONNECTIONS.len()).map(|at| {
            let rate = one.rate(at);
            format!("{rate:>10.0} {:>5.2}", rate / measured[0].rate(at))
        });
        println!("  {:<20}{} {middle:>8.2} {late:>8.2}", one.name, rates.collect::<String>());
    }
    print_goals(measured);
}

/// With how many connections the goals are met. They pull apart: one connection alone cannot be many times what mitmproxy
/// does, and where many fill all processors a proxy that does as much as client and server together makes no more than half;
/// "TLS on both sides" is the least that one does which could look into requests.
fn print_goals(measured: &[Measured]) {
    let find = |name: &str| measured.iter().find(|one| one.name == name);
    let (Some(direct), Some(peer)) = (find(DIRECT), find(MITMPROXY)) else {
        return println!(
            "\ngoals: ≥ 0.5 × direct, ≥ 20 × mitmproxy, which is not here: nobody can say whether they are met"
        );
    };
    println!("\ngoals: ≥ 0.5 × direct, ≥ 20 × mitmproxy");
    for ours in [find(PASSED_ON), find(LOOKED_INTO)].into_iter().flatten() {
        for (at, count) in CONNECTIONS.iter().enumerate() {
            let (of_direct, of_peer) = (ours.rate(at) / direct.rate(at), ours.rate(at) / peer.rate(at));
            let most = direct.rate(at) / peer.rate(at);
            let verdict = match (of_direct >= 0.5, of_peer >= 20.0) {
                (true, true) => "both met",
                (true, false) => "the first met",
                (false, true) => "the second met",
                (false, false) => "none met",
            };
            println!(
                "  {:<20} {count:>2} at once: {of_direct:.2} × direct, {of_peer:>5.1} × mitmproxy (direct itself {most:.1}): {verdict}",
                ours.name
            );
        }
    }
}

/// Kilobytes that a process holds.
fn resident(pid: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no memory is told")?;
    Ok(line.split_whitespace().next().context("no memory is told")?.parse()?)
}
