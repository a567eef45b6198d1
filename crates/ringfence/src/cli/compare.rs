//! `ringfence compare`: what each mode costs here.

use std::process::{ExitCode, Stdio};
use std::time::Instant;

use ringfence_core::mode::Mode;
use ringfence_server::desk::ModeTiming;

use crate::installation::Installation;
use crate::progress::Progress;
use crate::terminal;

/// How long the modes that work here take for nothing at all.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How often each is measured
    #[arg(short = 'n', long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// A mode and what was measured of it.
struct Measured {
    mode: Mode,
    times: Vec<f64>,
    why: Option<String>,
}

pub(crate) fn compare(args: &Args, installation: &Installation) -> anyhow::Result<ExitCode> {
    let workspace = tempfile::tempdir()?;
    let once = |mode: Mode| -> Result<f64, String> {
        let begun = Instant::now();
        let ran = installation
            .own_command()
            .args(["exec", "--mode", mode.as_str(), "--", "true"])
            .current_dir(workspace.path())
            .stdin(Stdio::null())
            .output()
            .map_err(|error| error.to_string())?;
        let time = begun.elapsed().as_secs_f64() * 1000.0;
        let complained = String::from_utf8_lossy(&ran.stderr);
        let why = complained
            .lines()
            .find_map(|line| line.strip_prefix("error: "))
            .unwrap_or("it does not work here");
        if ran.status.success() { Ok(time) } else { Err(why.to_owned()) }
    };
    let timings: Vec<ModeTiming> = measure(args.rounds as usize, &Progress::new(installation), once)
        .into_iter()
        .map(|Measured { mode, mut times, why }| {
            times.sort_by(f64::total_cmp);
            let median_ms = times.get(times.len() / 2).copied().filter(|_| why.is_none());
            ModeTiming { mode, median_ms, why }
        })
        .collect();
    if args.json {
        terminal::json(&timings)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = vec![["MODE", "MEDIAN OF `true`"].map(str::to_owned).to_vec()];
    table.extend(timings.into_iter().map(|timing| {
        let shown = timing.median_ms.map(|ms| format!("{ms:.1} ms")).or(timing.why);
        vec![timing.mode.to_string(), shown.unwrap_or_default()]
    }));
    terminal::table(&table);
    Ok(ExitCode::SUCCESS)
}

/// Measures all modes, in turns.
fn measure(rounds: usize, progress: &Progress, once: impl Fn(Mode) -> Result<f64, String>) -> Vec<Measured> {
    let count = Mode::ALL.len();
    let first = |(done, mode): (usize, Mode)| {
        progress.at(done, count * (rounds + 1), mode.as_str());
        // Once without counting: what has to be made the first time is made.
        Measured { mode, times: Vec::new(), why: once(mode).err() }
    };
    let mut all: Vec<Measured> = Mode::ALL.into_iter().enumerate().map(first).collect();
    let works = all.iter().filter(|measured| measured.why.is_none()).count();
    let mut done = count;
    for _ in 0..rounds {
        for measured in all.iter_mut().filter(|measured| measured.why.is_none()) {
            progress.at(done, count + works * rounds, measured.mode.as_str());
            done += 1;
            match once(measured.mode) {
                Ok(time) => measured.times.push(time),
                Err(why) => measured.why = Some(why),
            }
        }
    }
    all
}
