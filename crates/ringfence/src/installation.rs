//! This machine, this person, these settings: read once, here and nowhere else.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

use anyhow::{Context, anyhow, bail};
use ringfence_backends::{GateProgram, Surroundings, VARIABLES, settings_keys};
use ringfence_core::config::{
    BrokerSettings, Document, Keys, Layer, Layers, Settings, Source, environment_layer, system_layer,
};
use ringfence_core::event::Usage;
use ringfence_egress::{Prices, is_system_bundle};
use ringfence_engine::{Clock, Outside};
use ringfence_gate::Started;
use ringfence_server::client::Remote;
use ringfence_server::desk::Desk;
use ringfence_store::runs::Runs;
use ringfence_store::sqlite::Sqlite;
use ringfence_store::{FileWatcher, SystemConfig, TaskPolicy};
use ringfence_workspace::{Directory, HostPrograms, ReadError, RunTrees, StateDirectories, read_bounded};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde_json::Value;

use crate::GATE_ARGUMENT;
use crate::desk::Local;
use crate::login_home;
use crate::other_writers::{is_open_to_others, refuse_open_to_others};
use crate::report::{Advised, advise, unstored};
use crate::{state_origin, terminal, trusted, workspace};

/// The name of the settings file in its directory.
pub(crate) const SETTINGS: &str = "settings.json";
/// The directory of a person's or a project's settings.
pub(crate) const DIRECTORY: &str = ".ringfence";

/// Paths of the state directory with more parts, those of links included, are refused.
const MAX_WAY_PARTS: usize = 1000;
/// The kernel's number of users that a user namespace does not map.
const OVERFLOW_UID: u32 = 65534;

/// Where everything is, before any setting is read.
#[derive(Clone)]
pub(crate) struct Installation {
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) home: PathBuf,
    /// The home that the list of accounts has for the user, if it is another one.
    pub(crate) login_home: Option<PathBuf>,
    /// Settings, runs, everything that lasts.
    pub(crate) state: PathBuf,
    cwd: Option<PathBuf>,
    pub(crate) program: PathBuf,
    gate: Arc<Mutex<Option<Started>>>,
    /// Set when a signal has come that ends this process's run.
    pub(crate) interrupted: Arc<AtomicBool>,
    /// Opened once: a process that opened it twice would have two of everything.
    store: Arc<OnceLock<Arc<Sqlite>>>,
    /// The state directories of this user's other installations, read once.
    other_states: Arc<OnceLock<Vec<PathBuf>>>,
    /// Settings files of other users that were warned about.
    ignored: Arc<Mutex<BTreeSet<PathBuf>>>,
}

impl Installation {
    /// Reads the environment. A gate that was started beforehand is for the first run.
    pub(crate) fn discover(gate: Option<Started>) -> anyhow::Result<Self> {
        let env: BTreeMap<String, String> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let home = absolute(&env, "HOME")?;
        let state = absolute(&env, "RINGFENCE_HOME")?;
        let (home, state) = match (home, state) {
            (Some(home), Some(state)) => (home, state),
            (Some(home), None) => (home.clone(), home.join(DIRECTORY)),
            (None, Some(state)) => (state.clone(), state),
            (None, None) => {
                bail!("neither HOME nor RINGFENCE_HOME is set, so there is no place for settings")
            }
        };
        // Before anything there is opened: links of another user would lead this process elsewhere.
        refuse_foreign_state(&state)?;
        let default = home.join(DIRECTORY);
        if state != default {
            state_origin::adopt(&StateDirectories::new(default), &state)?;
        }
        make_private(&state);
        let login_home = login_home::find().filter(|login| *login != home);
        Ok(Self {
            env,
            home,
            login_home,
            state,
            cwd: std::env::current_dir().ok(),
            program: std::env::current_exe().context("the path of this program cannot be found")?,
            gate: Arc::new(Mutex::new(gate)),
            interrupted: Arc::default(),
            store: Arc::default(),
            other_states: Arc::default(),
            ignored: Arc::default(),
        })
    }

    /// The homes of the user, links resolved.
    pub(crate) fn homes(&self) -> Vec<PathBuf> {
        let all = [Some(&self.home), self.login_home.as_ref()].into_iter().flatten();
        all.map(|home| fs::canonicalize(home).unwrap_or_else(|_| home.clone())).collect()
    }

    /// Where the person stands.
    pub(crate) fn cwd(&self) -> anyhow::Result<&Path> {
        self.cwd.as_deref().context("there is no current directory to work in")
    }

    /// The same, seen from nowhere: for who asks from elsewhere.
    pub(crate) fn nowhere(self) -> Self {
        Self { cwd: None, ..self }
    }

    /// The person's settings file.
    pub(crate) fn user_settings(&self) -> PathBuf {
        self.state.join(SETTINGS)
    }

    /// The settings files of the projects that a directory belongs to, the outermost first. Those of other users are left out: in
    /// `/tmp`, say, everybody can make one.
    pub(crate) fn project_settings(&self, workspace: &Path) -> Vec<PathBuf> {
        let mine = [self.user_settings(), self.home.join(DIRECTORY).join(SETTINGS)];
        let mut files: Vec<PathBuf> = workspace
            .ancestors()
            .map(|directory| directory.join(DIRECTORY).join(SETTINGS))
            .filter(|file| file.exists() && !mine.contains(file) && !self.ignores(file))
            .collect();
        files.reverse();
        files
    }

    /// Whether a project's settings file is another user's, which is said once.
    fn ignores(&self, file: &Path) -> bool {
        let Some(owner) = foreign_owner(file) else { return false };
        if self.ignored.lock().is_ok_and(|mut ignored| ignored.insert(file.to_owned())) {
            terminal::indented(format!(
                "warning: {} is ignored: it or its directory belongs to user {owner}\nif its settings are to hold, make both your own with `chown`",
                file.display()
            ));
        }
        true
    }

    /// All layers of settings for where the person stands.
    pub(crate) fn layers(&self) -> anyhow::Result<Layers> {
        self.layers_for(self.cwd.as_deref().unwrap_or(Path::new("/")))
    }

    /// All layers of settings for a workspace, without flags. Each project's file can only tighten what is around it.
    pub(crate) fn layers_for(&self, workspace: &Path) -> anyhow::Result<Layers> {
        self.layers_with(workspace, &self.system_rows()?)
    }

    /// The settings of the running system. Who has never set any needs no queue for it.
    pub(crate) fn system_rows(&self) -> anyhow::Result<Vec<(String, Value)>> {
        match Sqlite::system_marker(&self.state).exists() {
            true => Ok(self.store()?.system_config()?),
            false => Ok(Vec::new()),
        }
    }

    /// The same, with these settings of the running system.
    pub(crate) fn layers_with(&self, workspace: &Path, rows: &[(String, Value)]) -> anyhow::Result<Layers> {
        refuse_foreign_state(&self.state)?;
        let keys = settings_keys();
        let mut layers = Layers::built_in(keys.clone());
        if let Some(document) = read_document(&self.user_settings(), &keys)? {
            layers.push(Layer { source: Source::User, document })?;
        }
        let files = self.project_settings(workspace);
        // Mostly there are none, and resolving takes a part of the time that a sandbox does.
        let own = (!files.is_empty()).then(|| layers.resolve()).transpose()?;
        for file in files {
            let text = read_project_text(&file).map_err(|error| in_project(error, &file))?;
            let Some(text) = text else { continue };
            refuse_open_to_others(&file)?;
            let document = Document::parse(&text, &file.display().to_string(), &keys);
            let document = document.map_err(|error| in_project(error.into(), &file))?;
            let layer = Layer { source: Source::Project, document };
            match own.as_ref().and_then(|own| self.trusted_project(own, &file)) {
                Some(project) if trusted::is_trusted(&self.state, &project, &text)? => {
                    layers.push_trusted(layer);
                }
                Some(project) => layers.push(layer).map_err(|error| changed(&project, error.into()))?,
                None => layers.push(layer).map_err(|error| in_project(error.into(), &file))?,
            }
        }
        if !rows.is_empty() {
            layers.push(system_layer(&layers, rows)?)?;
        }
        let environment = environment_layer(&layers, &|name| self.env.get(name).cloned())?;
        layers.push(environment)?;
        Ok(layers)
    }

    /// The directory of a settings file's project, if the person named it, links resolved on both sides.
    fn trusted_project(&self, settings: &Settings, file: &Path) -> Option<PathBuf> {
        let named = &settings.trusted_projects;
        // Mostly there are none, and resolving a path takes a call for each of its parts.
        let project = file.parent()?.parent().filter(|_| !named.is_empty())?;
        let project = fs::canonicalize(project).ok()?;
        let is_project = |trusted: &PathBuf| {
            fs::canonicalize(self.expand(trusted)).is_ok_and(|trusted| trusted == project)
        };
        named.iter().any(is_project).then_some(project)
    }

    /// A command that executes the file of this process. A run may have put another file at its path.
    pub(crate) fn own_command(&self) -> Command {
        ringfence_gate::own_command(&self.program)
    }

    /// The file of this program. One that was replaced since this process began is named by its old name.
    pub(crate) fn program_file(&self) -> Option<PathBuf> {
        let name = self.program.to_str()?;
        Some(PathBuf::from(name.strip_suffix(" (deleted)").unwrap_or(name)))
    }

    /// A path with `~/` at its beginning, or from where the person stands, made absolute.
    pub(crate) fn expand(&self, path: &Path) -> PathBuf {
        match (path.strip_prefix("~"), &self.cwd) {
            (Ok(rest), _) => self.home.join(rest),
            (Err(_), Some(cwd)) => cwd.join(path),
            (Err(_), None) => path.to_owned(),
        }
    }

    /// A path that means the same file later, from wherever it is read: absolute, the links of its directory resolved.
    pub(crate) fn settled(&self, path: &Path) -> PathBuf {
        let path = self.expand(path);
        let directory = path.parent().and_then(|parent| fs::canonicalize(parent).ok());
        match (directory, path.file_name()) {
            (Some(directory), Some(name)) if path.is_absolute() => directory.join(name),
            _ => path,
        }
    }

    /// The programs of the host that no run in the current directory, in another workspace or where one has worked before could
    /// have written, nor one in the git working trees that they are in.
    #[expect(clippy::disallowed_methods, reason = "what runs could have written is excluded here")]
    pub(crate) fn programs(&self, workspace: Option<&Path>) -> HostPrograms {
        let path = self.env.get("PATH").map(String::as_str).unwrap_or_default();
        let workspaces = self.cwd.as_deref().into_iter().chain(workspace);
        // A run in a directory below may have been given the whole working tree, and so may one in a directory beside it.
        let trees = workspaces.flat_map(|workspace| [Some(workspace), working_tree(workspace)]).flatten();
        let programs = HostPrograms::new(path).outside_of_runs(RunTrees::of(&self.state), &self.home);
        trees.fold(programs, |programs, tree| programs.outside_of(tree, &self.home))
    }

    /// The same installation, whose `PATH` has only those programs: for agent CLIs that Ringfence asks something on the host.
    pub(crate) fn with_host_programs(&self) -> Self {
        let mut installation = self.clone();
        let path = self.programs(None).path().to_string_lossy().into_owned();
        installation.env.insert("PATH".to_owned(), path);
        installation
    }

    /// What backends may know.
    pub(crate) fn surroundings(&self) -> Surroundings {
        self.surroundings_for(None)
    }

    /// The same, for work in a workspace.
    pub(crate) fn surroundings_for(&self, workspace: Option<&Path>) -> Surroundings {
        Surroundings {
            programs: self.programs(workspace),
            home: self.home.clone(),
            login_home: self.login_home.clone(),
            state: self.state.clone(),
            other_states: self.other_states().to_vec(),
            runtime: self.env.get("XDG_RUNTIME_DIR").map(PathBuf::from),
            services: VARIABLES
                .iter()
                .filter_map(|name| Some(((*name).to_owned(), self.env.get(*name)?.clone())))
                .collect(),
            gate: GateProgram::own(self.program.clone(), GATE_ARGUMENT, self.gate.clone()),
            interrupted: Arc::clone(&self.interrupted),
        }
    }

    /// The state directories of this user's other installations. This one is listed for them.
    pub(crate) fn other_states(&self) -> &[PathBuf] {
        self.other_states.get_or_init(|| {
            self.list_state();
            let mut states = self.state_directories().list();
            states.retain(|state| *state != self.state);
            states
        })
    }

    fn state_directories(&self) -> StateDirectories {
        StateDirectories::new(self.home.join(DIRECTORY))
    }

    /// Lists the state directory for other installations, whose runs hide it then. To be called when it was made.
    pub(crate) fn list_state(&self) {
        // Where nothing can be written at the default place, other installations do not know of this one.
        if self.state != self.home.join(DIRECTORY) && self.state.is_dir() {
            let _ = self.state_directories().add(&self.state);
        }
    }

    /// Refuses a state directory for a daemon that an active run sees.
    pub(crate) fn refuse_visible_state(&self) -> anyhow::Result<()> {
        let states = [self.other_states(), std::slice::from_ref(&self.state)].concat();
        state_origin::refuse_visible(&self.state, &states)
    }

    /// What the broker has to know.
    pub(crate) fn outside(&self, settings: &BrokerSettings) -> anyhow::Result<Outside> {
        let connect_to = settings.connect_to.join(",").parse().context("broker.connect_to")?;
        let text = |key: &str, path: &Option<PathBuf>| {
            let read = |path: &PathBuf| {
                let text = read_governing_text(&self.expand(path))?;
                text.with_context(|| format!("{key}: {} is not there", path.display()))
            };
            path.as_ref().map(read).transpose()
        };
        // What the person's own programs trust, the broker trusts too; the machine's own it trusts anyway.
        let trusted = self.env.get("SSL_CERT_FILE").map(PathBuf::from);
        let trusted = trusted.filter(|path| !is_system_bundle(path) && path.is_file());
        let roots = text("broker.ca_file", &settings.ca_file.clone().or(trusted))?.into_iter().collect();
        let prices = text("broker.prices_file", &settings.prices_file)?;
        let prices = prices.map(|text| Prices::parse(&text)).transpose().context("broker.prices_file")?;
        let programs = self.programs(None);
        let keychain = cfg!(target_os = "macos").then(|| programs.find("security")).flatten();
        Ok(Outside {
            home: self.home.clone(),
            login_home: self.login_home.clone(),
            state: self.state.clone(),
            moved: self.moved(settings),
            programs,
            keychain,
            connect_to,
            roots,
            named: settings.credentials.clone(),
            login_gateways: settings.login_gateways.clone(),
            model_headers: settings.model_headers.clone(),
            prices,
            ask: None,
            learn: false,
            spent: Usage::default(),
        })
    }

    /// Where the logins are that the settings name. The variable that moves what a CLI keeps may also hold its login.
    fn moved(&self, settings: &BrokerSettings) -> Vec<(PathBuf, PathBuf)> {
        let BrokerSettings { claude_dir, claude_config_dir, codex_dir, .. } = settings;
        let holds_login = |path: &&PathBuf| self.expand(path).join(".credentials.json").is_file();
        let claude = claude_dir.as_ref().or(claude_config_dir.as_ref().filter(holds_login));
        let all = [
            (".claude", claude),
            (".config/claude", claude_config_dir.as_ref()),
            (".codex", codex_dir.as_ref()),
        ];
        all.into_iter().filter_map(|(name, path)| Some((name.into(), self.expand(path?)))).collect()
    }

    /// The settings that belong to no workspace.
    pub(crate) fn settings(&self) -> anyhow::Result<Settings> {
        Ok(self.layers_for(Path::new("/"))?.resolve()?)
    }

    /// The rules by which tasks go on. A mistake in the settings keeps nobody from ending or stopping anything: then they are
    /// those of who has set nothing.
    pub(crate) fn rules(&self) -> anyhow::Result<TaskPolicy> {
        Ok(rules(&self.settings().or_else(|_| Self::default_settings())?))
    }

    /// The settings of who has set nothing.
    pub(crate) fn default_settings() -> anyhow::Result<Settings> {
        Ok(Layers::built_in(settings_keys()).resolve()?)
    }

    /// The queue of this installation.
    pub(crate) fn store(&self) -> anyhow::Result<Arc<Sqlite>> {
        if let Some(store) = self.store.get() {
            return Ok(Arc::clone(store));
        }
        let store = Arc::new(Sqlite::open(&self.state).map_err(unstored)?);
        self.list_state();
        Ok(Arc::clone(self.store.get_or_init(|| store)))
    }

    /// The address of the daemon that is asked in the place of this machine's, if a person has named one.
    fn remote(&self) -> Option<&str> {
        self.env.get("RINGFENCE_URL").map(|url| url.trim()).filter(|url| !url.is_empty())
    }

    /// Whether another daemon is asked.
    pub(crate) fn is_remote(&self) -> bool {
        self.remote().is_some()
    }

    /// For what is done on the daemon's own machine alone.
    pub(crate) fn here(&self, verb: &str) -> anyhow::Result<()> {
        match self.remote() {
            None => Ok(()),
            Some(url) => Err(advise(
                anyhow!("`{verb}` is for the daemon of this machine, and RINGFENCE_URL names {url}"),
                "do it there, or unset RINGFENCE_URL",
            )),
        }
    }

    /// Whether somebody takes tasks.
    pub(crate) fn has_daemon(&self) -> bool {
        self.is_remote() || crate::cli::is_running(self)
    }

    /// Who answers questions about the queue: this installation, or the daemon that RINGFENCE_URL names.
    pub(crate) fn desk(&self) -> anyhow::Result<Box<dyn Desk>> {
        match self.remote() {
            Some(url) => Ok(Box::new(self.named_daemon(url)?)),
            None => Ok(Box::new(Local { installation: self.clone() })),
        }
    }

    /// The daemon at an address that the user has named.
    fn named_daemon(&self, url: &str) -> anyhow::Result<Remote> {
        let variable = |name: &str| self.env.get(name).map(String::as_str);
        let roots = self.outside(&self.settings()?.broker)?.roots;
        let (token, key) = (variable("RINGFENCE_TOKEN"), variable("RINGFENCE_API_KEY"));
        Remote::new(url, token, key, &roots).map_err(crate::desk::told)
    }

    /// The daemon itself: the one that RINGFENCE_URL names, or this installation's, over its Unix socket. Its token is never
    /// sent over TCP from here: another user's program may have taken the port of a daemon that has ended.
    pub(crate) fn daemon(&self) -> anyhow::Result<Remote> {
        if let Some(url) = self.remote() {
            return self.named_daemon(url);
        }
        let socket = crate::queue::socket(&self.state);
        if !socket.exists() {
            return Err(advise(
                anyhow!("the daemon has no Unix socket: {} is not there", socket.display()),
                "restart it; if the path is too long for a socket, set RINGFENCE_HOME to a shorter one",
            ));
        }
        let url = format!("unix://{}", socket.display());
        Remote::new(&url, None, None, &[]).map_err(crate::desk::told)
    }

    /// The address that a browser uses for a daemon at `address`: RINGFENCE_URL, or loopback for a listener on all addresses.
    pub(crate) fn browser_address(&self, address: &str) -> String {
        match self.remote().filter(|url| url.starts_with("http")) {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None => format!("http://{}", reachable(address)),
        }
    }

    /// The address that a browser uses to log in to a daemon at `address`. On loopback it has a name of its own, which a browser
    /// resolves by itself: cookies of 127.0.0.1 are sent to every port there.
    pub(crate) fn dashboard_address(&self, address: &str, host: &str) -> String {
        match address.parse::<SocketAddr>() {
            Ok(listener) if !self.is_remote() && serves_loopback(listener) => {
                format!("http://{host}:{}", listener.port())
            }
            _ => self.browser_address(address),
        }
    }

    /// Whether a browser opens the dashboard of a daemon at `address` on loopback, and not by a name or an address of the network.
    pub(crate) fn is_opened_on_loopback(&self, address: &str) -> bool {
        match self.remote().filter(|url| url.starts_with("http")) {
            Some(url) => url.strip_prefix("http://").is_some_and(is_loopback_authority),
            None => address.parse().is_ok_and(serves_loopback),
        }
    }

    /// Tells of every change of the person's settings, as something to wait for.
    pub(crate) fn watch_settings(&self) -> io::Result<FileWatcher> {
        FileWatcher::directory(&self.state)
    }

    /// The clock of the queue.
    pub(crate) fn clock(&self) -> Clock {
        // Only a build for tests lets it jump.
        match self.env.get("RINGFENCE_TEST_CLOCK").filter(|_| cfg!(debug_assertions)) {
            Some(file) => Clock::shifted_by(file.into()),
            None => Clock::default(),
        }
    }

    /// The runs of this installation.
    pub(crate) fn runs(&self) -> Runs {
        Runs::new(&self.state)
    }
}

/// Makes a state directory of this user's private that others can read. Where that is not possible they can go on.
fn make_private(state: &Path) {
    let own = rustix::process::geteuid().as_raw();
    let is_open = |data: &fs::Metadata| data.is_dir() && data.uid() == own && data.mode() & 0o077 != 0;
    if fs::symlink_metadata(state).is_ok_and(|data| is_open(&data)) {
        let _ = fs::set_permissions(state, fs::Permissions::from_mode(0o700));
    }
}

/// Refuses a state directory that another user could have written settings into, or could replace.
fn refuse_foreign_state(state: &Path) -> anyhow::Result<()> {
    refuse_foreign_way(state)?;
    let Ok(data) = fs::metadata(state) else { return Ok(()) };
    let (owner, own) = (data.uid(), rustix::process::geteuid().as_raw());
    if owner != own && owner != 0 {
        return Err(advise(
            anyhow!("the state directory {} belongs to user {owner}", state.display()),
            "set RINGFENCE_HOME to a directory of your own",
        ));
    }
    if data.mode() & 0o022 != 0 {
        return Err(advise(
            anyhow!("the state directory {} can be written by other users", state.display()),
            format!("run `chmod go-w {}`", state.display()),
        ));
    }
    Ok(())
}

/// Refuses a way to the state directory on which another user has made a link, or owns or can write a directory. Below one with the
/// sticky bit nobody can replace what is this user's.
fn refuse_foreign_way(state: &Path) -> anyhow::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    let mut left: Vec<OsString> = state.components().rev().map(|part| part.as_os_str().to_owned()).collect();
    let mut at = PathBuf::new();
    for _ in 0..MAX_WAY_PARTS {
        let Some(part) = left.pop() else { return Ok(()) };
        at.push(part);
        // What is not there yet is made by this user.
        let Ok(data) = at.symlink_metadata() else { return Ok(()) };
        let foreign = data.uid() != own && data.uid() != 0 && !is_unmapped(data.uid());
        let is_open = !data.is_symlink() && data.mode() & 0o1000 == 0 && is_open_to_others(&at, &data);
        // The directory itself has sentences of its own.
        if (foreign || is_open) && (data.is_symlink() || !left.is_empty()) {
            return Err(foreign_way(state, &at, foreign.then_some(data.uid())));
        }
        if data.is_symlink() {
            let target = fs::read_link(&at).with_context(|| format!("{} cannot be read", at.display()))?;
            at.pop();
            left.extend(target.components().rev().map(|part| part.as_os_str().to_owned()));
        }
    }
    bail!("the path of the state directory {} is too long", state.display())
}

fn foreign_way(state: &Path, at: &Path, owner: Option<u32>) -> anyhow::Error {
    let (state, at) = (state.display(), at.display());
    match owner {
        Some(owner) => advise(
            anyhow!("the way to the state directory {state} leads over {at}, which belongs to user {owner}"),
            "set RINGFENCE_HOME to a directory of your own",
        ),
        None => advise(
            anyhow!("the way to the state directory {state} leads over {at}, which other users can write"),
            format!("run `chmod go-w {at}`, or set RINGFENCE_HOME to another directory of your own"),
        ),
    }
}

/// Whether a user is none of this user namespace, as root is in a sandbox: the kernel shows such users by one number.
fn is_unmapped(uid: u32) -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let is_whole = map.is_empty() || map.split_whitespace().eq(["0", "0", "4294967295"]);
    !is_whole && uid == OVERFLOW_UID
}

/// An error of a project's settings, with what to do about it: an agent may have left them in a subdirectory.
fn in_project(error: anyhow::Error, file: &Path) -> anyhow::Error {
    if error.is::<Advised>() {
        return error;
    }
    advise(error, format!("correct or remove {}, which an earlier run may have written", file.display()))
}

/// The other user, neither this one nor root, to whom a project's settings file or its directory belongs. Links are not followed:
/// who has made one has made the settings.
fn foreign_owner(file: &Path) -> Option<u32> {
    let own = rustix::process::geteuid().as_raw();
    let owners = file.parent().into_iter().chain([file]).filter_map(|path| path.symlink_metadata().ok());
    owners.map(|data| data.uid()).find(|owner| *owner != own && *owner != 0)
}

/// The git working tree that a directory is in.
fn working_tree(directory: &Path) -> Option<&Path> {
    directory.ancestors().find(|directory| directory.join(".git").symlink_metadata().is_ok())
}

/// Whether the authority of an address is this machine's loopback.
fn is_loopback_authority(authority: &str) -> bool {
    let authority = authority.trim_end_matches('/');
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    let address = authority.trim_matches(['[', ']']).parse::<IpAddr>();
    let address = address.or_else(|_| host.trim_matches(['[', ']']).parse::<IpAddr>());
    let is_own = |ip: IpAddr| ip.to_canonical().is_loopback() || ip.to_canonical().is_unspecified();
    address.map_or_else(|_| host.eq_ignore_ascii_case("localhost"), is_own)
}

/// Whether a listener takes connections to loopback.
fn serves_loopback(listener: SocketAddr) -> bool {
    listener.ip().is_loopback() || listener.ip().is_unspecified()
}

/// The address at which this machine reaches a listener: loopback for one on all addresses.
fn reachable(listener: &str) -> String {
    match listener.parse::<SocketAddr>() {
        Ok(SocketAddr::V4(four)) if four.ip().is_unspecified() => format!("127.0.0.1:{}", four.port()),
        Ok(SocketAddr::V6(six)) if six.ip().is_unspecified() => format!("[::1]:{}", six.port()),
        _ => listener.to_owned(),
    }
}

/// What settings say of how tasks go on.
pub(crate) fn rules(settings: &Settings) -> TaskPolicy {
    TaskPolicy {
        retry: settings.sandbox.retry_rule(&settings.queue),
        webhook: settings.queue.webhook.clone(),
    }
}

/// A directory that a variable names.
fn absolute(env: &BTreeMap<String, String>, name: &str) -> anyhow::Result<Option<PathBuf>> {
    match env.get(name).filter(|value| !value.is_empty()).map(PathBuf::from) {
        Some(path) if !path.is_absolute() => {
            bail!("{name} is `{}`, which is not an absolute path", path.display())
        }
        path => Ok(path),
    }
}

/// No settings, policy or list of variables is longer.
const LONGEST_TEXT: u64 = 4 << 20;

/// A text file whole, if it is there. A device or a pipe is none.
pub(crate) fn read_text(file: &Path) -> anyhow::Result<Option<String>> {
    let broken = || format!("{} cannot be read", file.display());
    // What is not a regular file must not block the opening.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = match rustix::fs::open(file, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::NXIO) => bail!("{} is not a file", file.display()),
        other => fs::File::from(other.map_err(io::Error::from).with_context(broken)?),
    };
    if !opened.metadata().with_context(broken)?.is_file() {
        bail!("{} is not a file", file.display());
    }
    match read_bounded(opened, LONGEST_TEXT) {
        Err(ReadError::TooLong { .. }) => bail!("{} is longer than 4 MiB", file.display()),
        other => Ok(Some(String::from_utf8(other.with_context(broken)?).with_context(broken)?)),
    }
}

/// The text of a file that governs runs, if it is there. One that other users can write is refused.
pub(crate) fn read_governing_text(file: &Path) -> anyhow::Result<Option<String>> {
    refuse_open_to_others(file)?;
    read_text(file)
}

/// The settings of a trusted project, which are others now.
fn changed(project: &Path, error: anyhow::Error) -> anyhow::Error {
    advise(
        error.context(format!("the settings of {} are not those that were trusted", project.display())),
        format!("look at them, then run `ringfence config trust {}`", project.display()),
    )
}

/// The text of a project's settings. An agent may have written there, so no link is followed on the way to them.
pub(crate) fn read_project_text(file: &Path) -> anyhow::Result<Option<String>> {
    let Some(project) = file.parent().and_then(Path::parent) else { return Ok(None) };
    let project = Directory::open(project).map_err(workspace::refused)?;
    match project.read_text(&Path::new(DIRECTORY).join(SETTINGS), LONGEST_TEXT) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.is_missing() => Ok(None),
        Err(ReadError::Io(error)) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => Err(advise(
            anyhow!("{} is a symbolic link, or in one", file.display()),
            "put the settings of the project there as a file",
        )),
        Err(error) => Err(error).with_context(|| format!("{} cannot be read", file.display())),
    }
}

fn read_document(file: &Path, keys: &Keys) -> anyhow::Result<Option<Document>> {
    match read_governing_text(file)? {
        Some(text) => Ok(Some(Document::parse(&text, &file.display().to_string(), keys)?)),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::{is_loopback_authority, reachable};

    #[test]
    fn authority_of_loopback_is_told_from_one_of_the_network() {
        for own in
            ["127.0.0.1:4301", "localhost", "LOCALHOST:1/", "[::1]:4301", "[::1]", "0.0.0.0:1", "127.9.9.9"]
        {
            assert!(is_loopback_authority(own), "{own}");
        }
        for other in
            ["box.example:4301", "192.0.2.1:4301", "[2001:db8::1]:1", "localhost.example", "[2001:db8::1]"]
        {
            assert!(!is_loopback_authority(other), "{other}");
        }
    }

    #[test]
    fn listener_on_all_addresses_is_reached_on_loopback() {
        for (listener, expected) in [
            ("0.0.0.0:4301", "127.0.0.1:4301"),
            ("[::]:4301", "[::1]:4301"),
            ("10.0.0.0:4301", "10.0.0.0:4301"),
            ("127.0.0.1:80", "127.0.0.1:80"),
        ] {
            assert_eq!(reachable(listener), expected);
        }
    }
}
