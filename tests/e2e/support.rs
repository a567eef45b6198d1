//! A home, a workspace and the binary, for one test.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_ringfence");

pub(crate) struct Place {
    directory: TempDir,
    env: BTreeMap<String, String>,
    /// Who uses it, if not who tests.
    user: Option<u32>,
}

#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let env = BTreeMap::from([
            ("HOME".to_owned(), directory.path().join("home").display().to_string()),
            ("PATH".to_owned(), std::env::var("PATH").unwrap()),
            // Many daemons at once: who wants an address says so.
            ("RINGFENCE_LISTEN".to_owned(), "none".to_owned()),
        ]);
        let place = Self { directory, env, user: None };
        fs::create_dir(place.home()).unwrap();
        fs::create_dir(place.work()).unwrap();
        place
    }

    /// The same with the real agent CLIs in the path.
    pub(crate) fn with_agent_clis() -> Self {
        let bin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/node_modules/.bin");
        assert!(bin.join("claude").exists(), "the agent CLIs are not installed: run `cargo xtask setup`");
        let place = Self::new();
        let path = format!("{}:{}", bin.display(), place.env["PATH"]);
        place.env("PATH", path)
    }

    pub(crate) fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.insert(name.to_owned(), value.into());
        self
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.directory.path().join("work")
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.home().join(".ringfence")
    }

    pub(crate) fn settings(self, text: &str) -> Self {
        fs::create_dir_all(self.state()).unwrap();
        fs::write(self.state().join("settings.json"), text).unwrap();
        self
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = match self.user {
            Some(user) => self.command_of(user),
            None => Command::new(BINARY),
        };
        command.args(args).env_clear().envs(&self.env).current_dir(self.work());
        command
    }

    /// The same place, that belongs to somebody else.
    pub(crate) fn of_user(self, user: u32) -> Self {
        Self { user: Some(user), ..self }
    }

    /// The binary, started by somebody else, to whom everything here is given.
    fn command_of(&self, user: u32) -> Command {
        let user = user.to_string();
        let binary = self.directory.path().join("ringfence");
        if !binary.exists() {
            fs::copy(BINARY, &binary).unwrap();
        }
        Command::new("chown")
            .args(["-R", &format!("{user}:{user}")])
            .arg(self.directory.path())
            .status()
            .unwrap();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]).arg(binary);
        command
    }

    /// Runs to the end. Standard input is a pipe that stays open, as under a supervisor or an editor.
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        let mut child = self.spawn(args);
        let open = child.stdin.take();
        let output = child.wait_with_output().unwrap();
        drop(open);
        Ran::from(output)
    }

    /// Runs a command as an agent, for programs to read.
    pub(crate) fn agent(&self, command: &str, args: &[&str]) -> Ran {
        self.run(
            &[&["run", "--mode", "host", "--agent", "command", "--json", "--command", command], args]
                .concat(),
        )
    }

    /// Runs a shell that may become the binary, with this place's variables.
    pub(crate) fn shell(&self, script: &str) -> Ran {
        let mut shell = Command::new("sh");
        let output =
            shell.args(["-c", script]).env_clear().envs(&self.env).current_dir(self.work()).output().unwrap();
        Ran::from(output)
    }

    pub(crate) fn spawn(&self, args: &[&str]) -> Child {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Runs to the end as a normal user, who owns this place and whose `ringfence` is in the path; nothing if the one who
    /// tests is none but that.
    pub(crate) fn as_nobody(&self, args: &[&str], env: &[(&str, &str)]) -> Option<Ran> {
        let program = self.directory.path().join("bin/ringfence");
        self.program_as_nobody(&[&[program.to_str().unwrap()], args].concat(), env)
    }

    /// Runs any program as a normal user for whom `ringfence` is a command, if this is root.
    pub(crate) fn program_as_nobody(&self, command: &[&str], env: &[(&str, &str)]) -> Option<Ran> {
        if Command::new("id").arg("-u").output().unwrap().stdout != b"0\n" {
            return None;
        }
        let bin = self.directory.path().join("bin");
        fs::create_dir_all(&bin).unwrap();
        if !bin.join("ringfence").exists() {
            fs::copy(BINARY, bin.join("ringfence")).unwrap();
        }
        Command::new("chown").args(["-R", "65534:65534"]).arg(self.directory.path()).status().unwrap();
        let output = Command::new("setpriv")
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
            .args(command)
            .env_clear()
            .env("HOME", self.home())
            .env("PATH", format!("{}:/usr/bin:/bin", bin.display()))
            .envs(env.iter().copied())
            .current_dir(self.work())
            .output()
            .unwrap();
        Some(Ran::from(output))
    }

    /// The number that a process of the run wrote into a file of the workspace.
    pub(crate) fn pid(&self, file: &str) -> u32 {
        wait_for(&format!("{file} in the workspace"), || {
            fs::read_to_string(self.work().join(file)).ok()?.trim().parse().ok()
        })
    }

    pub(crate) fn read(&self, file: &str) -> String {
        fs::read_to_string(self.work().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    }
}

impl From<std::process::Output> for Ran {
    fn from(output: std::process::Output) -> Self {
        Self {
            status: output.status,
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Ran {
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or(-1)
    }

    /// The events of `--json`.
    pub(crate) fn events(&self) -> Vec<Value> {
        let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        self.stdout.lines().map(parse).collect()
    }

    /// The last event of `--json`.
    pub(crate) fn result(&self) -> Value {
        let events = self.events();
        let last = events.last().unwrap_or_else(|| panic!("no events; stderr: {}", self.stderr)).clone();
        assert_eq!(last["type"], "result", "{last}");
        last
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}{}", self.stdout, self.stderr))
    }

    #[track_caller]
    pub(crate) fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code(), code, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }
}

/// Waits for something that another process will do.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "never came: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process lives. One that has ended and was not waited for does not.
pub(crate) fn lives(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

pub(crate) fn signal(pid: u32, signal: &str) {
    let done = Command::new("kill").arg(signal).arg(pid.to_string()).status().unwrap();
    assert!(done.success());
}
