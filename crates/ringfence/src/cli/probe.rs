//! `ringfence probe`: tries to break each promise of a mode, and shows what held.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use anyhow::{Context, bail};
use ringfence_core::capability::{Capabilities, Mechanism, Promise};
use ringfence_core::event::{Event, Stream};
use ringfence_core::ids::RunId;
use ringfence_core::mode::Mode;
use ringfence_core::policy::Policy;
use ringfence_core::text::PlainText;
use ringfence_core::units::{MemorySize, Seconds};
use ringfence_engine::{Observer, Work};
use ringfence_linux::attempts::{self, Bait, Bounded, MARK, Outcome, Tried};
use serde::Serialize;

use super::bait::Laid;
use super::job::Asked;
use super::options::{Options, mode_parser};
use crate::installation::Installation;
use crate::progress::Progress;
use crate::terminal;

/// Try to break each promise of a mode from inside, and show what held and by what.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to try, instead of where agents run
    #[arg(long, value_parser = mode_parser())]
    mode: Option<Mode>,
    /// Under which policy: a preset (open, standard, locked) or a policy file
    #[arg(long, value_name = "PRESET|FILE")]
    policy: Option<String>,
    /// List every attempt, not only those that succeeded
    #[arg(short, long)]
    verbose: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// The hidden argument that makes the binary try.
pub(crate) const ARGUMENT: &str = "__probe";

/// How much the run may have, where the mode can bound it.
const BOUNDED: Bounded = Bounded { memory: 256 << 20, disk: 64 << 20, pids: 64, cpus: 1 };
const PATIENCE: Option<Seconds> = Seconds::new(120);

pub(crate) fn probe(args: &Args, installation: &Installation) -> anyhow::Result<ExitCode> {
    let laid = Laid::out(installation).context("the bait cannot be laid out")?;
    let options = Options {
        mode: args.mode,
        policy: args.policy.clone(),
        cwd: Some(laid.workspace()),
        timeout: PATIENCE,
        ..Options::default()
    };
    let layers = installation.layers_for(&laid.workspace())?;
    let settings = layers.resolve()?;
    let mut around = installation.clone();
    around.env.insert(laid.variable().0.into(), laid.variable().1.into());
    let asked = Asked {
        installation: &around,
        layers: &layers,
        settings: &settings,
        options: &options,
        agent: None,
        name: "probe",
        workspace: None,
    };
    let mode = asked.mode();
    let seen_workspace = asked.guest_workspace(mode)?;
    let bait = laid.described(&seen_workspace, BOUNDED);
    let argv =
        vec![installation.program.display().to_string(), ARGUMENT.into(), serde_json::to_string(&bait)?];
    let mut heard = Heard { said: Vec::new(), progress: Progress::new(installation) };
    let result =
        asked.observe(Work::Program(argv), &mut heard, &mut |policy, can| ask_for_all(policy, can, &bait))?;
    let tried = heard.tried(&bait, &laid)?;
    if tried.len() < attempts::count() || result.failure.is_some() {
        let why =
            result.failure.map_or_else(|| "it fell silent".to_owned(), |failure| failure.message.into());
        bail!("the probe ended after {} of {} attempts: {why}", tried.len(), attempts::count());
    }
    let record = installation.runs().record(&result.run)?;
    let report = Report::new(result.run, mode, record.policy, &record.mechanisms, tried);
    if args.json {
        terminal::json(&report)?;
    } else {
        report.show(args.verbose);
    }
    Ok(ExitCode::from(u8::from(report.broken_claims > 0)))
}

/// Makes the attempts, as the program inside.
pub(crate) fn act(bait: &str) -> anyhow::Result<()> {
    let bait: Bait = serde_json::from_str(bait).context("the bait cannot be read")?;
    Ok(attempts::make_all(&bait, io::stdout().lock())?)
}

/// Asks for everything that the mode can promise, so that it is tried with the promise in force.
fn ask_for_all(policy: &mut Policy, can: &Capabilities, bait: &Bait) {
    let keeps = |promise| can.mechanism(promise).is_some();
    // A secret within what may be read needs a mode that can shut a part of it.
    if keeps(Promise::SecretsUnreadable) && keeps(Promise::GlobsDenied) {
        policy.files.read.push(bait.shown.display().to_string());
        policy.files.secrets.push(bait.shown.join("secret.txt").display().to_string());
    }
    let limits = &mut policy.limits;
    // In place of larger ones: what is tried is to pass them.
    let size = |bytes, promise| keeps(promise).then(|| MemorySize::from_bytes(bytes));
    limits.memory = size(BOUNDED.memory, Promise::Memory).or(limits.memory);
    limits.disk = size(BOUNDED.disk, Promise::Disk).or(limits.disk);
    limits.pids = keeps(Promise::Pids).then_some(BOUNDED.pids).or(limits.pids);
    if keeps(Promise::Cpus) {
        limits.cpus = BOUNDED.cpus.to_string().parse().ok();
    }
}

/// Takes down what the attempts tell.
struct Heard {
    said: Vec<u8>,
    progress: Progress,
}

impl Observer for Heard {
    fn event(&mut self, _: &Event) -> io::Result<()> {
        Ok(())
    }

    fn raw(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        if stream == Stream::Stdout {
            self.said.extend(bytes);
            self.tell();
        }
        Ok(())
    }
}

impl Heard {
    /// How many attempts have been made, and the last of them.
    fn tell(&self) {
        let mut lines = self.said.split(|byte| *byte == b'\n').rev().skip(1);
        let last = lines.next().and_then(|line| serde_json::from_slice::<Tried>(line).ok());
        if let Some(tried) = last {
            self.progress.at(
                lines.count() + 1,
                attempts::count(),
                &format!("{}: {}", tried.group, tried.what),
            );
        }
    }

    /// What was tried, once the host has looked at what came out.
    fn tried(self, bait: &Bait, laid: &Laid) -> anyhow::Result<Vec<Tried>> {
        let text = String::from_utf8_lossy(&self.said);
        let lines = text.lines().map(serde_json::from_str::<Tried>);
        let tried: Vec<Tried> = lines.collect::<Result<_, _>>().context("the probe speaks nonsense")?;
        Ok(tried
            .into_iter()
            .map(|tried| Tried { outcome: looked_at(tried.outcome, bait, laid), ..tried })
            .collect())
    }
}

fn looked_at(outcome: Outcome, bait: &Bait, laid: &Laid) -> Outcome {
    let Outcome::Wrote(path) = outcome else { return outcome };
    let here = match path.strip_prefix(&bait.workspace) {
        Ok(rest) => laid.workspace().join(rest),
        Err(_) => path,
    };
    let came_out = fs::read(&here).is_ok_and(|bytes| bytes.windows(MARK.len()).any(|window| window == MARK));
    if came_out {
        if !here.starts_with(laid.workspace()) {
            let _ = fs::remove_file(&here);
        }
        return Outcome::Broken(format!("{} was written", here.display()));
    }
    Outcome::Held("what was written stayed inside".into())
}

/// What came of it all.
#[derive(Serialize)]
struct Report {
    run: RunId,
    mode: Mode,
    policy: String,
    held: usize,
    broken: usize,
    not_tried: usize,
    /// Those that were promised.
    broken_claims: usize,
    promises: Vec<Row>,
    attempts: Vec<Tried>,
}

/// A promise.
#[derive(Serialize)]
struct Row {
    promise: Promise,
    /// By what it is kept, if it was promised.
    mechanism: Option<Mechanism>,
    held: usize,
    broken: usize,
    not_tried: usize,
}

impl Report {
    fn new(
        run: RunId,
        mode: Mode,
        policy: String,
        claims: &BTreeMap<Promise, Mechanism>,
        attempts: Vec<Tried>,
    ) -> Self {
        let mut rows: BTreeMap<Promise, Row> = BTreeMap::new();
        for tried in &attempts {
            let row = rows.entry(tried.promise).or_insert_with(|| Row {
                promise: tried.promise,
                mechanism: claim(claims, tried.promise),
                held: 0,
                broken: 0,
                not_tried: 0,
            });
            match tried.outcome {
                Outcome::Held(_) => row.held += 1,
                Outcome::Broken(_) | Outcome::Wrote(_) => row.broken += 1,
                Outcome::NotTried(_) => row.not_tried += 1,
            }
        }
        let promises: Vec<Row> = rows.into_values().collect();
        let sum = |of: fn(&Row) -> usize| promises.iter().map(of).sum();
        Self {
            run,
            mode,
            policy,
            held: sum(|row| row.held),
            broken: sum(|row| row.broken),
            not_tried: sum(|row| row.not_tried),
            broken_claims: sum(|row| if row.mechanism.is_some() { row.broken } else { 0 }),
            promises,
            attempts,
        }
    }

    fn show(&self, verbose: bool) {
        let mut table = vec![["PROMISE", "HELD", "BROKEN", "BY"].map(str::to_owned).to_vec()];
        table.extend(self.promises.iter().map(|row| {
            let mechanism =
                row.mechanism.as_ref().map_or_else(|| "not promised".to_owned(), ToString::to_string);
            let all = row.held + row.broken + row.not_tried;
            let broken = if row.broken == 0 { "-".to_owned() } else { row.broken.to_string() };
            vec![row.promise.describe().to_owned(), format!("{}/{all}", row.held), broken, mechanism]
        }));
        terminal::table(&table);
        self.show_attempts(verbose);
        let Self { mode, policy, held, broken, not_tried, .. } = self;
        let not_tried =
            if *not_tried == 0 { String::new() } else { format!(", {not_tried} could not be tried") };
        terminal::line(format!("\n{mode}, policy {policy}: {held} held, {broken} broken{not_tried}"));
        match self.broken_claims {
            0 if *broken == 0 => {}
            0 => terminal::line("None of what was broken was promised."),
            count => terminal::line(format!("{count} of what was broken was promised.")),
        }
    }

    fn show_attempts(&self, verbose: bool) {
        let (red, green) = (AnsiColor::Red.on_default(), AnsiColor::Green.on_default());
        let dim = Style::new().dimmed();
        let shown =
            self.attempts.iter().filter(|tried| verbose || matches!(tried.outcome, Outcome::Broken(_)));
        let mut group = "";
        for tried in shown {
            if tried.group != group {
                group = &tried.group;
                terminal::line(format!("\n{group}"));
            }
            let (style, word, detail) = match &tried.outcome {
                Outcome::Held(detail) => (green, "held  ", detail.clone()),
                Outcome::Broken(detail) => (red, "broken", detail.clone()),
                Outcome::Wrote(path) => (red, "broken", path.display().to_string()),
                Outcome::NotTried(detail) => (dim, "  -   ", detail.clone()),
            };
            let detail = PlainText::from(&detail);
            terminal::line(format!("  {style}{word}{style:#} {} {dim}({detail}){dim:#}", tried.what));
        }
    }
}

/// By what a promise is kept. Who promises that only some hosts can be reached promises that nothing of this can be.
fn claim(claims: &BTreeMap<Promise, Mechanism>, promise: Promise) -> Option<Mechanism> {
    let wider = (promise == Promise::NetworkNone).then_some(Promise::NetworkAllow);
    claims.get(&promise).or_else(|| claims.get(&wider?)).cloned()
}
