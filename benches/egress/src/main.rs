//! What the broker costs: requests a second and latency through it, beside the same requests without it and through
//! mitmproxy and the proxy of srt, in turns, in one run.
//!
//! Client, server and proxies are processes of their own, as they are in life. This program is all of them but those two.
#![allow(clippy::disallowed_macros, reason = "a chore may end when nobody reads")]

mod client;
mod parts;

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use client::{Route, Target};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(2);
const CONNECTIONS: usize = 16;
const SINGLE: usize = 300;
const IDLE: usize = 1000;

/// The host that is passed on, and the one that is looked into.
const PASSED: &str = "pass.test";
const LOOKED: &str = "look.test";

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", directory] => parts::server(Path::new(directory)).await,
        ["broker", directory, server] => parts::broker(Path::new(directory), server.parse()?).await,
        ["bare", directory, server] => {
            // One thread, as the broker has.
            let (directory, server) = (std::path::PathBuf::from(directory), server.parse()?);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let thread = std::thread::spawn(move || runtime.block_on(parts::bare(&directory, server)));
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
    rates: Vec<f64>,
    times: Vec<Duration>,
}

async fn compare() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let here = directory.path().display().to_string();
    let server = start(&["server", &here]).await?;
    let broker = start(&["broker", &here, &server.address.to_string()]).await?;
    let bare = start(&["bare", &here, &server.address.to_string()]).await?;
    let proxy = mitmproxy(directory.path()).await;
    let target = |name: &str, route| Target { host: name.to_owned(), route };
    let port = server.address.port();
    let mut all = vec![
        ("direct", target(PASSED, Route::Direct(server.address))),
        ("broker, passed on", target(PASSED, Route::Proxy(broker.address))),
        ("broker, looked into", target(LOOKED, Route::Proxy(broker.address))),
        ("looked into, bare", target(LOOKED, Route::Proxy(bare.address))),
    ];
    match &proxy {
        Some((_, Route::Proxy(address))) => {
            // It resolves names itself, and there is none for the host: the address is its name.
            all.push(("mitmproxy", target(&format!("127.0.0.1:{port}"), Route::Proxy(*address))));
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
    let measured =
        all.into_iter().map(|(name, target)| Measured { name, target, rates: vec![], times: vec![] });
    let mut measured: Vec<Measured> = measured.collect();
    let trust = client::Trust::new();
    for _ in 0..ROUNDS {
        for one in &mut measured {
            one.rates.push(client::rate(&trust, &one.target, CONNECTIONS, ROUND).await?);
            one.times.extend(client::times(&trust, &one.target, SINGLE).await?);
        }
    }
    print(&mut measured);
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

fn print(measured: &mut [Measured]) {
    println!(
        "\nHTTPS, keep-alive, 1 KiB: {CONNECTIONS} connections, {ROUNDS} × {} s in turns; one connection, {} requests",
        ROUND.as_secs(),
        SINGLE * ROUNDS
    );
    println!(
        "(goal: ≥ 0.5 × direct, ≥ 20 × mitmproxy. Where many connections fill all processors, a proxy that does as much as client"
    );
    println!(
        "and server together cannot reach half: \"bare\" is the least that one does which looks into requests)"
    );
    println!("  {:<20} {:>22} {:>31}", "", format!("{CONNECTIONS} connections"), "one connection");
    println!(
        "  {:<20} {:>11} {:>10} {:>12} {:>10} {:>9} {:>9}",
        "", "requests/s", "× direct", "requests/s", "× direct", "p50 ms", "p99 ms"
    );
    let mut direct = None;
    for one in measured {
        one.rates.sort_by(f64::total_cmp);
        one.times.sort_unstable();
        let rate = one.rates[one.rates.len() / 2];
        let alone = one.times.len() as f64 / one.times.iter().sum::<Duration>().as_secs_f64();
        let direct = *direct.get_or_insert((rate, alone));
        let ms = |at: usize| one.times[at].as_secs_f64() * 1000.0;
        let (middle, late) = (ms(one.times.len() / 2), ms(one.times.len() * 99 / 100));
        println!(
            "  {:<20} {rate:>11.0} {:>10.2} {alone:>12.0} {:>10.2} {middle:>9.2} {late:>9.2}",
            one.name,
            rate / direct.0,
            alone / direct.1
        );
    }
}

/// Kilobytes that a process holds.
fn resident(pid: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no memory is told")?;
    Ok(line.split_whitespace().next().context("no memory is told")?.parse()?)
}
