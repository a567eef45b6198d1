//! `ringfence sandbox build-image`: the image that agents run in.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use ringfence_agents::{AgentCli, Package};
use ringfence_backends::entry;
use ringfence_backends::keeper::{IMAGE_LABEL, Keeper};
use ringfence_core::config::Settings;
use ringfence_core::mode::Mode;
use ringfence_core::text::PlainText;
use ringfence_workspace::HostPrograms;

use super::options::mode_parser;
use super::{job, version};
use crate::installation::Installation;
use crate::report::{advise, failed};
use crate::terminal;

/// What is in an image besides the agent CLIs.
const SYSTEM: &str =
    "bash,ca-certificates,curl,git,less,nodejs,openssh-client,procps,python3-minimal,ripgrep";
/// The release of Debian that an image without a base is made of.
const RELEASE: &str = "bookworm";
/// The base where nobody names one.
const BASE: &str = "node:22-slim";
/// Where the agent CLIs are in an image.
const AGENTS: &str = "opt/ringfence";
const DOCKERFILE: &str = include_str!("../../../../images/Dockerfile");

/// Build the image that agents run in, and try each agent CLI in it
#[derive(clap::Args)]
pub(crate) struct Args {
    /// For which mode; without it, the one in use, or the first that has images
    #[arg(long, value_parser = mode_parser())]
    mode: Option<Mode>,
    /// Which agent CLIs; without it, all
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    agents: Vec<String>,
    /// The image to start from, or `none`: Debian's packages and npm's alone, no registry of images
    #[arg(long, value_name = "IMAGE|none", default_value = BASE)]
    base: String,
    /// What to call it; without it, what the settings name
    #[arg(long, value_name = "NAME")]
    tag: Option<String>,
}

struct Agent {
    program: &'static str,
    package: Package,
    /// Below `node_modules`.
    path: &'static str,
}

pub(crate) fn build_image(args: &Args, installation: &Installation) -> anyhow::Result<ExitCode> {
    let mut settings = installation.layers()?.resolve()?;
    let in_use = Some(settings.sandbox.mode).filter(|mode| entry(*mode).keeper.is_some());
    let first = ringfence_backends::ALL.iter().find(|entry| entry.keeper.is_some()).map(|entry| entry.mode);
    let mode = args.mode.or(in_use).or(first).context("no mode has images")?;
    let Some(make) = entry(mode).keeper else {
        return Err(advise(anyhow!("mode {mode} has no images"), "name another with `--mode`"));
    };
    let agents = agents(&args.agents)?;
    let tag = match &args.tag {
        Some(tag) => tag.clone(),
        None => image_of(&settings, mode).context("the settings name no image")?,
    };
    let keeper = make(&installation.surroundings()).map_err(failed)?;
    terminal::about(format!("Building sandbox image: {tag}"));
    let work = tempfile::Builder::new().prefix("image-").tempdir_in(existing(&installation.state)?)?;
    match args.base.as_str() {
        "none" => from_packages(&*keeper, &agents, &tag, work.path(), &installation.programs(None))?,
        base => from_base(&*keeper, &agents, &tag, base)?,
    }
    use_image(&mut settings, mode, &tag);
    verify(installation, &settings, mode, &agents, work.path())?;
    terminal::line(format!("✓ Image {tag} is ready for mode {mode}"));
    Ok(ExitCode::SUCCESS)
}

fn existing(directory: &Path) -> io::Result<&Path> {
    fs::create_dir_all(directory).map(|()| directory)
}

/// The agent CLIs that were named, or all that come as packages.
fn agents(names: &[String]) -> anyhow::Result<Vec<Agent>> {
    let agent = |cli: &&'static dyn AgentCli| {
        let (package, program) = (cli.facts().package?, cli.facts().program?);
        Some(Agent { program, package, path: package.program(std::env::consts::ARCH)? })
    };
    let all: Vec<Agent> = ringfence_agents::ALL.iter().filter_map(agent).collect();
    for name in names {
        if !all.iter().any(|agent| agent.program == name) {
            let known: Vec<&str> = all.iter().map(|agent| agent.program).collect();
            bail!("there is no agent CLI `{name}` to put into an image; there are {}", known.join(", "));
        }
    }
    let wanted = |agent: &Agent| names.is_empty() || names.iter().any(|name| name == agent.program);
    Ok(all.into_iter().filter(wanted).collect())
}

fn image_of(settings: &Settings, mode: Mode) -> Option<String> {
    settings.sandbox.section(mode)?.get("image")?.as_str().map(str::to_owned)
}

fn use_image(settings: &mut Settings, mode: Mode, image: &str) {
    // Nobody comes back to the place where it is tried.
    settings.sandbox.warm = 0;
    if let Some(section) = settings.sandbox.sections.get_mut(mode.as_str()) {
        section["image"] = image.into();
    }
}

/// Debian's packages and npm's, and nothing of any registry of images.
fn from_packages(
    keeper: &dyn Keeper,
    agents: &[Agent],
    tag: &str,
    work: &Path,
    programs: &HostPrograms,
) -> anyhow::Result<()> {
    let program = |name: &str| {
        let missing = || {
            advise(
                anyhow!("`{name}` was not found"),
                format!("install {name}, or name an image with `--base`"),
            )
        };
        programs.command(name).ok_or_else(missing)
    };
    let extra = work.join("extra");
    let step = Step::begin("1/3 agent CLIs");
    let prefix = extra.join(AGENTS);
    fs::create_dir_all(&prefix)?;
    let mut npm = program("npm")?;
    npm.args(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"]);
    npm.args(["--os", "linux", "--cpu", npm_processor(), "--prefix"]).arg(&prefix).args(packages(agents));
    step.follow(&mut npm, "install npm, or name an image with `--base`")?;
    keep_programs(&prefix.join("node_modules"), agents)?;
    step.end();
    furnish(&extra, agents)?;
    let step = Step::begin("2/3 system");
    let archive = work.join("root.tar");
    let mut system = program("mmdebstrap")?;
    system.args(["--variant=minbase", &format!("--include={SYSTEM}")]);
    system.args(["doc", "man", "locale"].map(|part| format!("--dpkgopt=path-exclude=/usr/share/{part}/*")));
    // What is told to a hook is read as a shell would.
    let quoted = |part: &str| shlex::try_quote(&extra.join(part).display().to_string()).map(String::from);
    for part in ["opt", "usr", "home", "workspace"] {
        system.arg(format!("--customize-hook=copy-in {} /", quoted(part)?));
    }
    system.arg("--customize-hook=chroot \"$1\" useradd --no-create-home --shell /bin/bash agent");
    system.arg("--customize-hook=chroot \"$1\" chown -R agent /home/agent /workspace");
    system.arg(RELEASE).arg(&archive);
    step.follow(&mut system, "install mmdebstrap, or name an image with `--base`")?;
    step.end();
    let step = Step::begin("3/3 import");
    let file = File::open(&archive)?;
    step.bar.set_length(file.metadata()?.len());
    step.bar.set_style(bytes_style()?);
    let reader = Box::new(step.bar.wrap_read(file));
    let root = keeper.import(reader, tag).map_err(failed)?;
    let described = context(&description(&root, agents))?;
    keeper.build(described, tag, &BTreeMap::new(), &mut |_| ()).map_err(failed)?;
    step.end();
    Ok(())
}

/// Takes away all packages that hold no program of an agent CLI: wrappers, and builds for other processors.
fn keep_programs(modules: &Path, agents: &[Agent]) -> io::Result<()> {
    for entry in fs::read_dir(modules)? {
        let path = entry?.path();
        let Ok(name) = path.strip_prefix(modules).map(Path::to_owned) else { continue };
        if !path.is_dir() {
            continue;
        }
        let holds = |place: &Path| agents.iter().any(|agent| Path::new(agent.path).starts_with(place));
        if !holds(&name) {
            fs::remove_dir_all(&path)?;
            continue;
        }
        let scoped = fs::read_dir(&path)?.filter(|_| name.to_string_lossy().starts_with('@'));
        for package in scoped {
            let package = package?;
            if !holds(&name.join(package.file_name())) {
                fs::remove_dir_all(package.path())?;
            }
        }
    }
    Ok(())
}

/// What an image has besides packages: links to the programs, a home, a workspace.
fn furnish(extra: &Path, agents: &[Agent]) -> anyhow::Result<()> {
    for place in ["usr/local/bin", "home/agent", "workspace"] {
        fs::create_dir_all(extra.join(place))?;
    }
    for agent in agents {
        let program = Path::new("/").join(AGENTS).join("node_modules").join(agent.path);
        let here = extra.join(AGENTS).join("node_modules").join(agent.path);
        here.metadata().with_context(|| format!("{} has no {}", agent.package.name, agent.path))?;
        symlink(program, extra.join("usr/local/bin").join(agent.program))?;
    }
    let answers = File::create_new(extra.join("home/agent/.claude.json"));
    Ok(answers?.write_all(b"{\"hasCompletedOnboarding\":true}\n")?)
}

fn npm_processor() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "x64",
    }
}

fn packages(agents: &[Agent]) -> Vec<String> {
    agents.iter().map(|agent| format!("{}@{}", agent.package.name, agent.package.version)).collect()
}

/// What an engine has to know of an image that is made of files.
fn description(root: &str, agents: &[Agent]) -> String {
    let labels: String = agents
        .iter()
        .map(|agent| format!("LABEL ringfence.{}={}\n", agent.program, agent.package.version))
        .collect();
    format!(
        "FROM {root}\nENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n\
         USER agent\nWORKDIR /workspace\nCMD [\"bash\"]\nLABEL {IMAGE_LABEL}=1\n{labels}"
    )
}

/// From an image that has npm and Debian's package manager.
fn from_base(keeper: &dyn Keeper, agents: &[Agent], tag: &str, base: &str) -> anyhow::Result<()> {
    let programs: Vec<String> =
        agents.iter().map(|agent| format!("{}={}", agent.program, agent.path)).collect();
    let arguments = BTreeMap::from([
        ("BASE".to_owned(), base.to_owned()),
        ("PACKAGES".to_owned(), packages(agents).join(" ")),
        ("PROGRAMS".to_owned(), programs.join(" ")),
    ]);
    let step = Step::begin("build");
    keeper.build(context(DOCKERFILE)?, tag, &arguments, &mut |line| step.tell(line)).map_err(failed)?;
    step.end();
    Ok(())
}

/// An archive with nothing but a Dockerfile.
fn context(dockerfile: &str) -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(dockerfile.len() as u64);
    header.set_mode(0o644);
    archive.append_data(&mut header, "Dockerfile", dockerfile.as_bytes())?;
    archive.into_inner()
}

/// An image is ready when every agent CLI in it has said its version, in the mode where it will run.
fn verify(
    installation: &Installation,
    settings: &Settings,
    mode: Mode,
    agents: &[Agent],
    work: &Path,
) -> anyhow::Result<()> {
    let backend = job::backend(mode, &installation.surroundings(), settings)?;
    let workspace = work.join("try");
    fs::create_dir(&workspace)?;
    for agent in agents {
        let step = Step::begin(&format!("try {}", agent.program));
        let env = BTreeMap::from([("HOME".to_owned(), ringfence_core::paths::GUEST_HOME.to_owned())]);
        let said = version::ask(&*backend, agent.program, &env, &workspace);
        let said = said.with_context(|| format!("{} does not work in the image", agent.program))?;
        step.tell(&said);
        step.end();
    }
    Ok(())
}

/// How many lines of a program that failed are shown.
const LAST_LINES: usize = 8;

/// A part of long work, as a person sees it: one line that changes at a terminal, and one line for each part elsewhere.
struct Step {
    name: String,
    bar: ProgressBar,
}

fn bytes_style() -> anyhow::Result<ProgressStyle> {
    Ok(ProgressStyle::with_template("{spinner} {prefix} {bar:24} {bytes}/{total_bytes}")?)
}

impl Step {
    fn begin(name: &str) -> Self {
        let bar = ProgressBar::new_spinner().with_prefix(name.to_owned());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} {elapsed} {wide_msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(120));
        Self { name: name.to_owned(), bar }
    }

    fn tell(&self, line: &str) {
        self.bar.set_message(PlainText::from(line).trim().to_owned());
    }

    fn end(self) {
        let said = self.bar.message();
        self.bar.finish_and_clear();
        let said = if self.name.starts_with("try") { format!(": {said}") } else { String::new() };
        terminal::about(format!("  ✓ {}{said} ({:.0?})", self.name, self.bar.elapsed()));
    }

    /// Runs a program to its end, telling what it says.
    fn follow(&self, command: &mut Command, remedy: &str) -> anyhow::Result<()> {
        let name = command.get_program().to_string_lossy().into_owned();
        let (read, write) = io::pipe()?;
        command.stdin(Stdio::null()).stdout(write.try_clone()?).stderr(write);
        let child = command.spawn();
        // The pipe ends when the program does.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = child.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => advise(anyhow!("`{name}` was not found"), remedy),
            _ => anyhow!(error).context(format!("{name} cannot be started")),
        })?;
        let mut last = VecDeque::new();
        for line in lines(read) {
            self.tell(&line);
            last.push_back(line);
            if last.len() > LAST_LINES {
                last.pop_front();
            }
        }
        let status = child.wait()?;
        if !status.success() {
            let words: Vec<String> = last.into_iter().collect();
            bail!("{name} failed ({status}):\n{}", PlainText::from(words.join("\n")));
        }
        Ok(())
    }
}

fn lines(read: impl Read) -> impl Iterator<Item = String> {
    BufReader::new(read)
        .split(b'\n')
        .map_while(Result::ok)
        .map(|line| String::from_utf8_lossy(&line).into_owned())
}
