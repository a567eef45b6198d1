//! What every mode has to do alike. A mode that is added to the table is tested by this, whatever it is.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ringfence_backends::{GateProgram, Surroundings, settings_keys};
use ringfence_core::backend::{Backend, Exit, ExitStatus, Happening, LaunchError, Sandbox, Stop};
use ringfence_core::config::{Layers, Settings};
use ringfence_core::event::Stream;
use ringfence_core::mode::Mode;
use ringfence_core::paths::{DirectoryId, HostPath, PathMapping, PathMappingMode};
use ringfence_core::plan::{Plan, Request, Stdin, resolve};
use ringfence_core::policy::Preset;
use ringfence_workspace::HostPrograms;

use crate::engines::engine;
use crate::support::{BINARY, wait_for};

/// The variable that says where a mode's engine is.
fn variable_of(mode: Mode) -> &'static str {
    match mode {
        Mode::Docker => "DOCKER_HOST",
        Mode::Podman => "CONTAINER_HOST",
        _ => "none: no machine like this one has it",
    }
}

/// No two runs have the same name.
fn next() -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}

struct Subject {
    backend: Box<dyn Backend>,
    workspace: tempfile::TempDir,
}

fn settings() -> Settings {
    Layers::built_in(settings_keys()).resolve().unwrap()
}

fn subjects() -> Vec<Subject> {
    let around = Surroundings {
        programs: HostPrograms::new(&std::env::var("PATH").unwrap()),
        home: "/".into(),
        login_home: None,
        state: std::env::temp_dir().join("ringfence-conformance"),
        other_states: Vec::new(),
        runtime: None,
        services: ["docker", "podman"].into_iter().filter_map(engine).map(|one| one.variable()).collect(),
        gate: GateProgram {
            program: BINARY.into(),
            file: BINARY.into(),
            args: vec!["__gate".into()],
            ready: Arc::default(),
        },
        interrupted: Arc::default(),
    };
    let has_engine = |mode: Mode| around.services.keys().any(|name| name == variable_of(mode));
    let there = ringfence_backends::ALL
        .iter()
        .filter(|entry| entry.keeper.is_none() || has_engine(entry.mode))
        .filter_map(|entry| entry.backend);
    there
        .map(|make| Subject { backend: make(&around, &settings()), workspace: tempfile::tempdir().unwrap() })
        .collect()
}

impl Subject {
    fn workspace_id(&self) -> DirectoryId {
        let data = std::fs::metadata(self.workspace.path()).unwrap();
        DirectoryId { device: data.dev(), inode: data.ino() }
    }

    fn plan(&self, argv: &[&str]) -> Plan {
        let mode = self.backend.mode();
        let mapping = if mode.isolates() { PathMappingMode::Mapped } else { PathMappingMode::SamePath };
        let request = Request {
            default_limits: Default::default(),
            run: format!("conformance-{mode}-{}-{}", std::process::id(), next()).parse().unwrap(),
            mode,
            policy: Preset::default_of(mode).policy(),
            argv: argv.iter().map(ToString::to_string).collect(),
            env: BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into()), ("ONLY".into(), "this".into())]),
            workspace: PathMapping::new(mapping, HostPath::new(self.workspace.path()).unwrap()),
            workspace_id: self.workspace_id(),
            layer: None,
            git: None,
            governing: Vec::new(),
            stdin: Stdin::Empty,
            needed_hosts: Vec::new(),
            door: None,
            files: Vec::new(),
        };
        resolve(request, &self.backend.capabilities()).expect("the mode keeps its own default policy")
    }

    fn start(&self, script: &str) -> Box<dyn Sandbox> {
        self.backend.launch(&self.plan(&["sh", "-c", script])).unwrap()
    }

    fn finish(&self, script: &str) -> (Exit, String, String) {
        finish(&mut *self.start(script))
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.workspace.path().join(name)
    }
}

fn finish(sandbox: &mut dyn Sandbox) -> (Exit, String, String) {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match sandbox.next(deadline).unwrap() {
            Happening::Output(Stream::Stdout, bytes) => stdout.extend(bytes),
            Happening::Output(Stream::Stderr, bytes) => stderr.extend(bytes),
            Happening::Ended(exit) => {
                let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
                return (exit, text(stdout), text(stderr));
            }
            Happening::Nothing => assert!(Instant::now() < deadline, "nothing happened for a minute"),
        }
    }
}

fn number_in(file: &Path) -> u32 {
    wait_for("a process number", || std::fs::read_to_string(file).ok()?.trim().parse().ok())
}

#[test]
fn codes_signals_and_both_streams_come_back() {
    for subject in subjects() {
        let (exit, stdout, stderr) = subject.finish("echo out; echo err >&2; exit 42");
        assert_eq!((exit.status, stdout.as_str(), stderr.as_str()), (ExitStatus::Code(42), "out\n", "err\n"));
        assert_eq!(subject.finish("kill -15 $$").0.status, ExitStatus::Signal(15));
    }
}

#[test]
fn no_output_is_lost_at_the_end() {
    for subject in subjects() {
        let (_, stdout, _) = subject.finish("head -c 5000000 /dev/zero | tr '\\0' x");
        assert_eq!(stdout.len(), 5_000_000);
    }
}

#[test]
fn the_workspace_is_the_working_directory_and_is_written_through() {
    for subject in subjects() {
        subject.finish("echo hello > file");
        assert_eq!(std::fs::read_to_string(subject.file("file")).unwrap(), "hello\n");
    }
}

#[test]
fn the_environment_is_what_the_plan_says() {
    for subject in subjects() {
        let (_, stdout, _) = subject.finish("env | grep -v -e ^PWD= -e ^_= -e ^SHLVL= -e ^OLDPWD= | sort");
        assert_eq!(stdout, "ONLY=this\nPATH=/usr/bin:/bin\n");
    }
}

#[test]
fn input_is_at_its_end() {
    for subject in subjects() {
        let (exit, stdout, _) = subject.finish("cat; echo over");
        assert_eq!((exit.status, stdout.as_str()), (ExitStatus::Code(0), "over\n"));
    }
}

#[test]
fn what_is_not_there_and_what_is_no_program_are_told_apart() {
    for subject in subjects() {
        let launch = |argv: &[&str]| subject.backend.launch(&subject.plan(argv)).map(|_| ()).unwrap_err();
        assert!(matches!(launch(&["no-such-program"]), LaunchError::NotFound { .. }));
        assert!(matches!(launch(&["/etc/passwd"]), LaunchError::NotExecutable { .. }));
    }
}

#[test]
fn silence_ends_a_wait_and_not_the_run() {
    for subject in subjects() {
        let mut sandbox = subject.start("sleep 1; echo late");
        let look = sandbox.next(Instant::now() + Duration::from_millis(50)).unwrap();
        assert_eq!(look, Happening::Nothing);
        assert_eq!(finish(&mut *sandbox).1, "late\n");
    }
}

#[test]
fn each_way_of_stopping_works_from_another_thread_and_twice() {
    for subject in subjects() {
        for how in [Stop::Interrupt, Stop::Terminate, Stop::Kill] {
            let mut sandbox = subject.start("echo $$ > pid; exec sleep 1000");
            number_in(&subject.file("pid"));
            let stopper = sandbox.stopper();
            let asking = Arc::clone(&stopper);
            std::thread::spawn(move || asking.stop(how)).join().unwrap();
            assert!(matches!(finish(&mut *sandbox).0.status, ExitStatus::Signal(_)), "{how:?}");
            stopper.stop(how);
            std::fs::remove_file(subject.file("pid")).unwrap();
        }
    }
}

/// A heart that beats into the workspace shows lifecycle in every mode, wherever its processes are.
#[test]
fn dropping_it_ends_everything() {
    for subject in subjects() {
        let heart = "trap \"\" TERM INT; while :; do echo >> beat; sleep 0.05; done";
        let sandbox = subject.start(&format!("setsid sh -c '{heart}' & wait"));
        let beats = || std::fs::metadata(subject.file("beat")).map_or(0, |data| data.len());
        wait_for("a heartbeat", || (beats() > 2).then_some(()));
        drop(sandbox);
        let last = beats();
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(beats(), last, "something of the run still lives in mode {}", subject.backend.mode());
    }
}

/// The identity reaches the backend, which looks again when it mounts.
#[test]
fn another_directory_in_the_place_of_the_workspace_is_refused() {
    for subject in subjects().into_iter().filter(|subject| subject.backend.mode().isolates()) {
        let mut plan = subject.plan(&["touch", "written"]);
        plan.request.workspace_id.inode += 1;
        let refused = subject.backend.launch(&plan).err().expect("nothing is started");
        assert_eq!(refused.failure().class, ringfence_core::failure::FailureClass::Refused, "{refused}");
        assert!(refused.to_string().contains("is not the directory that it was"), "{refused}");
        assert!(!subject.file("written").exists());
    }
}
