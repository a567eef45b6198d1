//! The real `claude`, `codex` and `opencode`, against a model server that plays a script.
//!
//! For each CLI the same questions: does the work get done, is a conversation continued, does every kind of failure
//! get its own class, does nothing survive.

use scripted_model::{Script, Server, Step};
use serde_json::Value;

use crate::support::{Place, Ran, lives};

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Cli {
    Claude,
    Codex,
    Opencode,
}

impl Cli {
    fn name(self) -> &'static str {
        match self {
            Cli::Claude => "claude",
            Cli::Codex => "codex",
            Cli::Opencode => "opencode",
        }
    }
}

pub(crate) struct Stage {
    cli: Cli,
    pub(crate) place: Place,
    url: String,
}

impl Stage {
    pub(crate) fn new(cli: Cli, url: &str) -> Self {
        let place = Place::with_agent_clis()
            .settings(r#"{"sandbox": {"mode": "host", "patience_seconds": 5}}"#)
            .env("ANTHROPIC_API_KEY", "sk-ant-dummy-0123456789")
            .env("OPENAI_API_KEY", "sk-dummy-0123456789")
            .env("OPENCODE_DISABLE_MODELS_FETCH", "1");
        Self { cli, place, url: url.to_owned() }
    }

    /// Runs the CLI with `--json`. Standard input is an open pipe, which must not keep it waiting.
    pub(crate) fn run(&self, args: &[&str], prompt: &str) -> Ran {
        let url = if self.cli == Cli::Claude { self.url.clone() } else { format!("{}/v1", self.url) };
        let mut all = vec!["run", "--json", "--agent", self.cli.name(), "--base-url", &url];
        if self.cli == Cli::Opencode {
            all.extend(["--model", "acme/m1", "--env", "OPENCODE_DISABLE_MODELS_FETCH"]);
        }
        all.extend(args);
        all.push(prompt);
        self.place.run(&all)
    }
}

fn text(text: &str) -> Step {
    Step::Text { text: text.into() }
}

fn shell(command: &str) -> Step {
    Step::Shell { command: command.into() }
}

pub(crate) fn serve(steps: Vec<Step>) -> Server {
    Server::start(Script::new(steps)).unwrap()
}

fn work_and_continue(cli: Cli) {
    let write = Step::Write { path: "hello.txt".into(), content: "hello from the script\n".into() };
    let server = serve(vec![write, shell("cat hello.txt > copy.txt"), text("All done here.")]);
    let stage = Stage::new(cli, &server.url());
    let ran = stage.run(&[], "Please write the first file").expect_code(0);
    assert_eq!(stage.place.read("hello.txt"), "hello from the script\n");
    assert_eq!(stage.place.read("copy.txt"), "hello from the script\n");
    let first = ran.result();
    assert_eq!(first["status"], "success");
    assert_eq!(first["text"], "All done here.");
    assert_eq!(
        (&first["usage"]["input_tokens"], &first["usage"]["output_tokens"]),
        (&300.into(), &60.into())
    );
    let session = first["session"].as_str().expect("a session id").to_owned();
    let kinds: Vec<String> =
        ran.events().iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect();
    for kind in ["started", "session", "tool_use", "tool_result", "text", "result"] {
        assert!(kinds.iter().any(|seen| seen == kind), "no {kind} in {kinds:?}");
    }

    server.set_script(Script::new(vec![text("Continued.")]));
    let seen_before = server.requests().len();
    for args in [&["--continue"][..], &["--resume", &session]] {
        let second = stage.run(args, "And now the second thing").expect_code(0).result();
        assert_eq!(
            (&second["text"], &second["session"]),
            (&"Continued.".into(), &Value::from(session.as_str()))
        );
        assert_eq!(second["usage"]["input_tokens"], 100, "the usage of this run alone");
    }
    let continued = server.requests()[seen_before..].iter().any(|request| {
        let body = request.body.to_string();
        body.contains("Please write the first file") && body.contains("And now the second thing")
    });
    assert!(continued, "the model was not sent the earlier conversation");
}

fn fails_with(cli: Cli, step: Step, class: &str) -> Value {
    let server = serve(vec![step]);
    let ran = Stage::new(cli, &server.url()).run(&["--timeout", "150"], "Please do it");
    assert_failed(&ran, class)
}

fn assert_failed(ran: &Ran, class: &str) -> Value {
    let result = ran.result();
    assert_eq!(result["failure"]["class"], class, "{result}");
    assert_eq!(result["status"], "failed");
    assert_ne!(ran.code(), 0);
    result["failure"].clone()
}

fn rejected(cli: Cli) {
    let failure = fails_with(cli, Step::fail(401), "auth_required");
    assert!(!failure["remedy"].as_str().unwrap().is_empty());
}

fn forbidden(cli: Cli) {
    fails_with(cli, Step::fail(403), "auth_required");
}

fn limited(cli: Cli) {
    fails_with(cli, Step::fail(429), "quota");
}

fn limited_for(cli: Cli, seconds: &str) -> Value {
    let step = match Step::fail(429) {
        Step::Fail { status, headers, body, times, .. } => {
            Step::Fail { status, retry_after: Some(seconds.into()), headers, body, times }
        }
        other => other,
    };
    fails_with(cli, step, "quota")
}

fn overloaded(cli: Cli) {
    fails_with(cli, Step::fail(529), "model_overloaded");
}

fn unreachable(cli: Cli) {
    let url = Server::refused_url().unwrap();
    assert_failed(&Stage::new(cli, &url).run(&["--timeout", "150"], "Please do it"), "network");
}

/// The server falls silent while a process that the model started runs in a session of its own.
fn silent(cli: Cli) {
    let server =
        serve(vec![shell("setsid sleep 98765 > /dev/null 2>&1 & echo $! > sleeper.pid"), Step::Hang]);
    let stage = Stage::new(cli, &server.url());
    // Long enough for a CLI to start on a busy machine.
    let ran = stage.run(&["--timeout", "45"], "Please wait").expect_code(124);
    assert_failed(&ran, "timeout");
    assert!(!lives(stage.place.pid("sleeper.pid")), "the tool's process is still there");
}

/// The CLI is killed by one of its own tools.
fn killed(cli: Cli) {
    let server = serve(vec![shell("echo $$ > tool.pid; kill -9 $PPID; sleep 98765"), text("unreachable")]);
    let stage = Stage::new(cli, &server.url());
    let ran = stage.run(&["--timeout", "60"], "Please go on");
    let failure = assert_failed(&ran, "agent_error");
    assert!(
        failure["message"].as_str().unwrap().contains("without a result")
            || failure["message"].as_str().unwrap().contains("signal 9"),
        "{failure}"
    );
    assert_ne!(ran.result()["text"], "unreachable");
    assert!(!lives(stage.place.pid("tool.pid")), "the tool's process is still there");
}

/// In a sandbox, with the network left open: everything else of the policy holds.
fn work_in_native(cli: Cli) {
    let write = Step::Write { path: "hello.txt".into(), content: "from inside\n".into() };
    let look = shell("ls -A ~ > home.txt; pwd > where.txt; echo x > .mcp.json; cat /etc/shadow > shadow.txt");
    let server = serve(vec![write, look, text("All done here.")]);
    let stage = Stage::new(cli, &server.url());
    let policy = stage.place.home().join("policy.json");
    let open = r#"{"extends": "standard", "network": {"mode": "open"}, "credentials": "env"}"#;
    std::fs::write(&policy, open).unwrap();
    std::fs::write(stage.place.home().join("private.txt"), "").unwrap();
    let args = ["--mode", "native", "--policy", policy.to_str().unwrap()];
    let result = stage.run(&args, "Please write the file").expect_code(0).result();
    assert_eq!(result["text"], "All done here.");
    assert_eq!(stage.place.read("hello.txt"), "from inside\n");
    assert_eq!(stage.place.read("where.txt"), "/workspace\n");
    assert!(!stage.place.read("home.txt").contains("private.txt"));
    assert_eq!(stage.place.read("shadow.txt"), "");
    assert!(!stage.place.work().join(".mcp.json").exists());
}

macro_rules! for_each_cli {
    ($($question:ident),*) => {
        mod claude {
            $(#[test] fn $question() { super::$question(super::Cli::Claude) })*
        }
        mod codex {
            $(#[test] fn $question() { super::$question(super::Cli::Codex) })*
        }
        mod opencode {
            $(#[test] fn $question() { super::$question(super::Cli::Opencode) })*
        }
    };
}

for_each_cli!(
    work_and_continue,
    work_in_native,
    rejected,
    forbidden,
    limited,
    overloaded,
    unreachable,
    silent,
    killed
);

#[test]
fn claude_limited_for_a_moment() {
    limited_for(Cli::Claude, "2");
}

#[test]
fn claude_limited_for_an_hour() {
    limited_for(Cli::Claude, "3600");
}

#[test]
fn codex_limited_for_a_moment() {
    limited_for(Cli::Codex, "2");
}

/// It would wait for the hour; patience ends it with the reason that it gave.
#[test]
fn codex_limited_for_an_hour() {
    limited_for(Cli::Codex, "3600");
}

#[test]
fn opencode_limited_for_a_moment() {
    assert_eq!(limited_for(Cli::Opencode, "2")["retry_after_seconds"], 2);
}
