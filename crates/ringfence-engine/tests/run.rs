//! Runs against the fake: every way in which a run can end, without a process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_backends::fake::{Act, Fake};
use ringfence_core::backend::{Exit, ExitStatus, LaunchError, Limit, Stop};
use ringfence_core::capability::{Capabilities, Promise};
use ringfence_core::event::{Event, RunResult, RunStatus, Stream};
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::mode::Mode;
use ringfence_core::paths::{DirectoryId, HostPath, PathMapping, PathMappingMode};
use ringfence_core::plan::Stdin;
use ringfence_core::policy::{NetworkMode, Policy, Preset};
use ringfence_core::units::{MemorySize, Seconds};
use ringfence_engine::{Cancel, Job, Observer, RunError, Work, run};
use ringfence_store::runs::{Progress, Runs};
use ringfence_workspace::Directory;

struct Seen(Vec<Event>);

impl Observer for Seen {
    fn event(&mut self, event: &Event) -> std::io::Result<()> {
        self.0.push(event.clone());
        Ok(())
    }
    fn raw(&mut self, _: Stream, _: &[u8]) -> std::io::Result<()> {
        Ok(())
    }
}

struct Scene {
    state: tempfile::TempDir,
    policy: Policy,
    cancel: Cancel,
    workspace: PathBuf,
    workspace_id: DirectoryId,
}

impl Scene {
    fn new() -> Self {
        let state = tempfile::tempdir().unwrap();
        let workspace = state.path().canonicalize().unwrap().join("workspace");
        std::fs::create_dir(&workspace).unwrap();
        Self {
            workspace_id: Directory::open(&workspace).unwrap().id(),
            workspace,
            state,
            policy: Preset::Locked.policy(),
            cancel: Cancel::default(),
        }
    }

    fn keeps_all(&self) -> Capabilities {
        // The agent's own hosts turn an empty list into one that has to be enforced.
        let promises = self.policy.promises().into_iter().chain([Promise::NetworkAllow, Promise::Growth]);
        promises.map(|promise| (promise, "fake")).collect()
    }

    fn play(&self, script: Vec<Act>) -> (RunResult, Vec<Event>) {
        let fake = Fake::new(Mode::Docker, self.keeps_all(), script);
        self.run_on(&fake).unwrap()
    }

    fn run_on(&self, fake: &Fake) -> Result<(RunResult, Vec<Event>), RunError> {
        let job = Job {
            run: None,
            outside: ringfence_engine::Outside::default(),
            work: Work::Agent {
                cli: ringfence_agents::find("codex").unwrap(),
                prompt: "p",
                model: None,
                base_url: None,
                session: None,
                command: None,
                own_program: "ringfence",
            },
            agent: "coder".into(),
            policy: self.policy.clone(),
            policy_name: "locked".into(),
            workspace: PathMapping::new(PathMappingMode::Mapped, HostPath::new(&self.workspace).unwrap()),
            workspace_id: self.workspace_id,
            host_env: BTreeMap::from([("OPENAI_API_KEY".into(), "sk-secret-secret".into())]),
            given_env: BTreeMap::new(),
            patience: Seconds::new(1).unwrap(),
            is_root: false,
            attachments: None,
            loopback_env: Vec::new(),
            notices: Vec::new(),
            layer: false,
            governing: Vec::new(),
            stdin: Stdin::Empty,
        };
        let mut seen = Seen(Vec::new());
        let result = run(&job, fake, &Runs::new(self.state.path()), &mut seen, &self.cancel)?;
        Ok((result, seen.0))
    }

    fn runs(&self) -> Runs {
        Runs::new(self.state.path())
    }
}

fn print(line: &str) -> Act {
    Act::Print(Stream::Stdout, format!("{line}\n").into_bytes())
}

fn end(code: u8) -> Act {
    Act::End(Exit::plain(ExitStatus::Code(code)))
}

const STARTED: &str = r#"{"type":"thread.started","thread_id":"t1"}"#;
const TEXT: &str = r#"{"type":"item.completed","item":{"type":"agent_message","text":"hi"}}"#;
const COMPLETED: &str = r#"{"type":"turn.completed","usage":{"input_tokens":3,"output_tokens":2}}"#;

fn class(result: &RunResult) -> FailureClass {
    result.failure.as_ref().expect("a failure").class
}

#[test]
fn a_run_that_ends_well_is_recorded_logged_and_concluded() {
    let scene = Scene::new();
    let (result, events) = scene.play(vec![print(STARTED), print(TEXT), print(COMPLETED), end(0)]);
    assert_eq!((result.status, result.exit_code, result.text.as_str()), (RunStatus::Success, 0, "hi"));
    let runs = scene.runs();
    assert_eq!(runs.progress(&result.run).unwrap(), Progress::Ended(Box::new(result.clone())));
    let logged: Vec<Event> = runs.log(&result.run).unwrap().into_iter().map(|line| line.event).collect();
    assert_eq!(logged, events, "what was shown can be shown again");
    assert!(matches!(events.first(), Some(Event::Started { .. })));
    assert_eq!(events.last(), Some(&Event::Result(result)));
}

#[test]
fn a_promise_that_cannot_be_kept_starts_nothing() {
    let scene = Scene::new();
    let fake = Fake::new(Mode::Docker, Capabilities::default(), vec![end(0)]);
    assert!(matches!(scene.run_on(&fake), Err(RunError::Refused(_))));
    assert!(fake.plans().is_empty());
    assert!(scene.runs().list().unwrap().is_empty());
}

#[test]
fn an_agent_without_its_model_starts_nothing() {
    let mut scene = Scene::new();
    scene.policy.network.mode = NetworkMode::None;
    let fake = Fake::new(Mode::Docker, scene.keeps_all(), vec![end(0)]);
    assert!(matches!(scene.run_on(&fake), Err(RunError::Refused(_))));
}

#[test]
fn the_plan_carries_the_agents_hosts_and_no_credentials() {
    let scene = Scene::new();
    let fake = Fake::new(Mode::Docker, scene.keeps_all(), vec![end(0)]);
    scene.run_on(&fake).unwrap();
    let plan = &fake.plans()[0];
    let allowed: Vec<String> = plan.request.policy.network.allow.iter().map(ToString::to_string).collect();
    assert_eq!(allowed, ["api.openai.com", "chatgpt.com", "auth.openai.com"]);
    assert!(!plan.request.env.values().any(|value| value.contains("sk-secret")));
    let record = scene.runs().record(&plan.request.run).unwrap();
    assert!(record.requested.network.allow.is_empty() && record.effective.network.allow.len() == 3);
}

#[test]
fn an_end_without_a_result_is_a_failure() {
    let (result, _) = Scene::new().play(vec![print(STARTED), end(0)]);
    assert_eq!((result.exit_code, class(&result)), (1, FailureClass::AgentError));
}

#[test]
fn a_timeout_ends_the_run_and_says_so() {
    let mut scene = Scene::new();
    scene.policy.limits.timeout_seconds = Seconds::new(1).unwrap();
    let (result, _) = scene.play(vec![print(STARTED), Act::Hang]);
    assert_eq!((result.exit_code, class(&result)), (124, FailureClass::Timeout));
}

#[test]
fn patience_ends_a_cli_that_retries_without_end_for_its_own_reason() {
    let line = r#"{"type":"error","message":"Reconnecting... waiting for network (Connection failed)"}"#;
    let (result, _) = Scene::new().play(vec![print(STARTED), print(line), Act::Hang]);
    assert_eq!((result.exit_code, class(&result)), (125, FailureClass::Network));
}

#[test]
fn progress_restores_patience() {
    let line = r#"{"type":"error","message":"Reconnecting... 1/5 (stream disconnected)"}"#;
    let wait = || Act::Wait(Duration::from_millis(700));
    let script =
        vec![print(line), wait(), print(TEXT), print(line), wait(), print(TEXT), print(COMPLETED), end(0)];
    assert_eq!(Scene::new().play(script).0.status, RunStatus::Success);
}

#[test]
fn what_retrying_cannot_mend_is_not_retried() {
    let line = r#"{"type":"error","message":"Reconnecting... 1/5 (unexpected status 401 Unauthorized)"}"#;
    let mut scene = Scene::new();
    scene.policy.limits.timeout_seconds = Seconds::new(600).unwrap();
    let (result, _) = scene.play(vec![print(line), Act::Hang]);
    assert_eq!(class(&result), FailureClass::AuthRequired);
}

#[test]
fn too_much_output_ends_the_run() {
    let mut scene = Scene::new();
    scene.policy.limits.output = MemorySize::from_bytes(1000);
    let fake = Fake::new(Mode::Docker, scene.keeps_all(), vec![print(&"x".repeat(2000)), Act::Hang]);
    let (result, events) = scene.run_on(&fake).unwrap();
    assert_eq!((result.exit_code, class(&result)), (125, FailureClass::AgentError));
    assert_eq!(fake.stops(), [Stop::Terminate], "it is asked before it is killed");
    assert!(!events.iter().any(|event| matches!(event, Event::Output { .. })));
}

#[test]
fn running_out_of_memory_is_its_own_class() {
    let exit = Exit { limit: Some(Limit::Memory), ..Exit::plain(ExitStatus::Signal(9)) };
    let (result, _) = Scene::new().play(vec![Act::End(exit)]);
    assert_eq!((result.exit_code, class(&result)), (125, FailureClass::OutOfMemory));
}

#[test]
fn a_mode_that_breaks_is_not_a_success() {
    let broken = Failure::new(FailureClass::DaemonDown, "the engine is gone");
    let (result, _) = Scene::new().play(vec![print(COMPLETED), Act::Break(broken)]);
    assert_eq!((result.exit_code, class(&result)), (125, FailureClass::DaemonDown));
}

#[test]
fn a_program_that_is_not_there_has_its_own_code_and_its_remedy() {
    let scene = Scene::new();
    for (error, code) in [
        (LaunchError::NotFound { program: "codex".into() }, 127),
        (LaunchError::NotExecutable { program: "codex".into(), why: "x".into() }, 126),
        (LaunchError::Runtime(Failure::new(FailureClass::ImageMissing, "x")), 125),
    ] {
        let fake = Fake::new(Mode::Docker, scene.keeps_all(), Vec::new()).failing(error);
        let (result, _) = scene.run_on(&fake).unwrap();
        assert_eq!((result.exit_code, result.status), (code, RunStatus::Failed));
        let remedy = result.failure.unwrap().remedy;
        assert_eq!(remedy.is_some_and(|remedy| remedy.contains("npm install")), code != 125);
    }
}

#[test]
fn a_cancelled_run_ends_and_is_called_cancelled() {
    let scene = Scene::new();
    scene.cancel.request(Stop::Interrupt);
    let (result, _) = scene.play(vec![print(STARTED), Act::Hang]);
    assert_eq!((result.status, result.exit_code), (RunStatus::Cancelled, 130));
    assert_eq!(class(&result), FailureClass::Cancelled);
}

#[test]
fn a_workspace_that_was_replaced_refuses_the_run() {
    let scene = Scene::new();
    std::fs::rename(&scene.workspace, scene.workspace.with_extension("old")).unwrap();
    for replace in [
        |path: &Path| std::fs::create_dir(path).unwrap(),
        |path: &Path| {
            std::fs::remove_dir(path).unwrap();
            std::os::unix::fs::symlink(path.with_extension("old"), path).unwrap();
        },
    ] {
        replace(&scene.workspace);
        let fake = Fake::new(Mode::Docker, scene.keeps_all(), Vec::new());
        let refused = scene.run_on(&fake).unwrap_err();
        assert_eq!(refused.failure().class, FailureClass::Refused);
        assert!(refused.failure().remedy.unwrap().contains("put the directory back"), "{refused}");
        assert!(Runs::new(scene.state.path()).list().unwrap().is_empty(), "nothing was begun");
    }
}
