//! Tasks, from adding to their end, with a real daemon, its processes and its runners.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::Command;

use scripted_model::{Script, Step};
use serde_json::{Value, json};

use crate::engines::engine;
use crate::real::{Cli, Stage, serve};
use crate::support::{Place, Ran, lives, signal, wait_for};

/// A place with a queue whose retries do not take long. Its daemon ends with it.
struct Queue {
    place: Place,
}

const SETTINGS: &str =
    r#"{"sandbox": {"mode": "native"}, "queue": {"retry_seconds": 1, "retry_max_seconds": 1}}"#;

impl Queue {
    fn new() -> Self {
        Self { place: Place::new().settings(SETTINGS) }
    }

    fn started() -> Self {
        let queue = Self::new();
        queue.ok(&["start"]);
        queue
    }

    #[track_caller]
    fn ok(&self, args: &[&str]) -> Ran {
        self.place.run(args).expect_code(0)
    }

    /// Adds a task that runs a script, and tells its number.
    #[track_caller]
    fn add(&self, args: &[&str], script: &str) -> String {
        let script = format!("sh -c '{script}'");
        let added = self.ok(&[&["task", "add", "--json", "--command", &script], args].concat()).json();
        added[0]["task"].as_str().unwrap().to_owned()
    }

    fn task(&self, id: &str) -> Value {
        self.ok(&["task", "show", id, "--json"]).json()
    }

    fn state(&self, id: &str) -> String {
        self.task(id)["task"]["state"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    fn wait(&self, id: &str) -> Value {
        self.place.run(&["task", "wait", id, "--timeout", "60"]);
        let task = self.task(id);
        assert!(["done", "dead", "cancelled"].contains(&task["task"]["state"].as_str().unwrap()), "{task}");
        task
    }

    fn status(&self) -> Value {
        self.place.run(&["status", "--json"]).json()
    }

    fn pid_of(&self, process: &str) -> Option<u32> {
        let status = self.status();
        let rows = status["processes"].as_array().unwrap().clone();
        let row = rows.iter().find(|row| row["name"] == process)?;
        row["pid"].as_u64().map(|pid| u32::try_from(pid).unwrap())
    }

    fn daemon(&self) -> u32 {
        u32::try_from(self.status()["daemon"]["pid"].as_u64().unwrap()).unwrap()
    }

    fn runner(&self) -> u32 {
        wait_for("a runner", || {
            let locks = fs::read_dir(self.place.state().join("queue/running")).ok()?;
            locks.flatten().find_map(|lock| {
                let text = fs::read_to_string(lock.path()).ok()?;
                text.split_whitespace().next()?.parse().ok()
            })
        })
    }

    fn kinds(&self, id: &str) -> Vec<String> {
        let events = self.ok(&["events", "--since", "0", "--json"]).events();
        let mine = events.iter().filter(|event| event["task"] == id);
        mine.map(|event| event["kind"].as_str().unwrap().trim_start_matches("task.").to_owned()).collect()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let _ = self.place.command(&["stop"]).output();
    }
}

#[test]
fn a_task_waits_for_the_daemon_and_is_done_as_soon_as_there_is_one() {
    let queue = Queue::new();
    let added = queue.ok(&["task", "add", "--command", "sh -c 'echo made > made; echo the reply'"]);
    assert!(added.stderr.contains("ringfence start"), "{}", added.stderr);
    assert_eq!(queue.state("1"), "queued");
    assert_eq!(queue.place.run(&["status"]).code(), 3);
    queue.ok(&["start"]);
    let done = queue.wait("1");
    assert_eq!(done["task"]["state"], "done");
    assert_eq!(done["task"]["result"]["text"], "the reply");
    assert_eq!(queue.place.read("made"), "made\n");
    let run = done["runs"][0]["run"].as_str().unwrap();
    let record = queue.ok(&["runs", "show", run, "--json"]).json();
    assert_eq!(record["record"]["mode"], "native");
    assert!(queue.ok(&["task", "logs", "1"]).stdout.contains("the reply"));
    let second =
        queue.place.run(&["task", "add", "--wait", "--command", "sh -c 'exit 3'", "--max-attempts", "1"]);
    assert_eq!(second.code(), 1, "{second:?}");
    queue.ok(&["stop"]);
    assert_eq!(queue.place.run(&["status"]).code(), 3);
}

#[test]
fn tasks_come_as_flags_as_a_document_and_as_lines_and_a_wrong_one_changes_nothing() {
    let queue = Queue::new();
    let say = |args: &[&str], input: &str| {
        let mut child = queue.place.spawn(&[&["task", "add", "--json"], args].concat());
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        Ran::from(child.wait_with_output().unwrap())
    };
    queue.ok(&["task", "add", "--agent", "demo", "--priority", "-3", "--delay", "2h", "by flags"]);
    let json = |args: &[&str], input: &str| say(&[&["--json-tasks"], args].concat(), input);
    json(&["-"], r#"{"prompt": "by document", "agent": "demo", "role": "tester"}"#).expect_code(0);
    json(&["-", "--agent", "demo"], r#"[{"prompt": "one"}, {"prompt": "two"}]"#).expect_code(0);
    let text = say(&["--agent", "demo", "-"], "many\nlines of one prompt").expect_code(0);
    assert!(!text.stderr.contains("--json-tasks"), "{}", text.stderr);
    let lines = "{\"prompt\": \"a line\"}\n\n{\"prompt\": \"an object\", \"after\": [\"1\"]}\n";
    let added = json(&["--agent", "demo", "--lines"], lines).expect_code(0);
    assert_eq!(added.json().as_array().unwrap().len(), 2);
    let before = queue.ok(&["task", "list", "--json"]).json();
    let prompts: Vec<&str> =
        before.as_array().unwrap().iter().map(|task| task["spec"]["prompt"].as_str().unwrap()).collect();
    let expected =
        ["an object", "a line", "many\nlines of one prompt", "two", "one", "by document", "by flags"];
    assert_eq!(prompts, expected);
    for (args, input, named) in [
        (&["--json-tasks", "-"][..], r#"{"prompt": "x", "agent": "demo", "rolle": "tester"}"#, "rolle"),
        (
            &["--json-tasks", "-"],
            r#"[{"prompt": "good", "agent": "demo"}, {"prompt": "x", "agent": "nobody"}]"#,
            "nobody",
        ),
        (&["--json-tasks", "--lines", "--agent", "demo"], "{\"prompt\": \"good\"}\n{\"prompt\":", "line 2"),
        (&["--json-tasks", "--lines", "--agent", "demo"], "a line", "line 1"),
        (&["--json-tasks", "--agent", "demo", "-"], r#"{"prompt": "x", "agent": "demo"}"#, "`--agent`"),
        (&["--json-tasks", "--agent", "demo", "x"], "", "--lines"),
        (&["--agent", "demo", "--after", "99", "x"], "", "99"),
        (&["--agent", "demo", "--role", "boss", "x"], "", "boss"),
        (&["--agent", "demo", "  "], "", "prompt"),
        (&["--agent", "demo", "--env", "TOKEN=secret-value", "x"], "", "TOKEN"),
        (&["--agent", "demo", "-C", "/no/such/place", "x"], "", "/no/such/place"),
        (&["--agent", "demo", "--policy", "strictest", "x"], "", "strictest"),
        (&["x"], "", "agent"),
    ] {
        let refused = say(args, input);
        assert_ne!(refused.code(), 0, "{args:?}");
        assert!(refused.stderr.contains(named), "{args:?}: {}", refused.stderr);
        assert!(!refused.stderr.contains("secret-value"));
        assert_eq!(queue.ok(&["task", "list", "--json"]).json(), before, "{args:?}");
    }
}

#[test]
fn a_key_makes_two_tasks_one() {
    let queue = Queue::new();
    let once = || queue.ok(&["task", "add", "--agent", "demo", "--key", "k1", "--json", "x"]).json();
    assert_eq!((once()[0]["existed"].clone(), once()[0]["existed"].clone()), (json!(false), json!(true)));
    let other = queue.place.run(&["task", "add", "--agent", "demo", "--key", "k1", "y"]);
    assert!(other.code() != 0 && other.stderr.contains("k1"), "{}", other.stderr);
}

#[test]
fn tasks_keep_their_order_and_wait_for_each_other() {
    let queue = Queue::new();
    let lane = |name: &str| ["--lane", name].map(str::to_owned);
    let add = |lane: &[String; 2], more: &[&str], word: &str| {
        let lane: Vec<&str> = lane.iter().map(String::as_str).collect();
        queue.add(&[&lane[..], more].concat(), &format!("echo {word} >> order"))
    };
    add(&lane("one"), &[], "first");
    add(&lane("one"), &[], "second");
    add(&lane("one"), &["--priority", "9"], "urgent");
    let last = add(&lane("two"), &["--after", "2"], "last");
    queue.ok(&["start"]);
    queue.wait(&last);
    assert_eq!(queue.place.read("order"), "urgent\nfirst\nsecond\nlast\n");
}

#[test]
fn what_fails_is_tried_again_and_in_the_end_a_dead_letter() {
    let queue = Queue::started();
    let flaky = queue.add(&["--lane", "a"], "test -e once || { touch once; exit 1; }");
    let hopeless = queue.add(&["--lane", "b", "--max-attempts", "2"], "echo no luck >&2; exit 7");
    assert_eq!(queue.wait(&flaky)["task"]["state"], "done");
    assert_eq!(queue.kinds(&flaky), ["added", "leased", "retrying", "leased", "done"]);
    let dead = queue.wait(&hopeless);
    assert_eq!((&dead["task"]["state"], dead["runs"].as_array().unwrap().len()), (&json!("dead"), 2));
    let file = queue.place.state().join(format!("queue/dead-letter/{hopeless}.json"));
    // The row comes first.
    let letter = wait_for("the file", || fs::read_to_string(&file).ok());
    let letter: Value = serde_json::from_str(&letter).unwrap();
    assert_eq!(letter["failure"]["class"], "agent_error");
    let listed = queue.ok(&["dead-letter", "list"]);
    assert!(listed.stdout.contains("agent_error"), "{}", listed.stdout);
    assert!(queue.ok(&["dead-letter", "show", &hopeless]).stdout.contains("agent_error"));
    for _ in 0..3 {
        queue.ok(&["dead-letter", "retry", &hopeless]);
        assert_eq!(queue.wait(&hopeless)["task"]["state"], "dead");
    }
    let again = queue.place.run(&["dead-letter", "retry", &hopeless]);
    assert!(again.code() == 1 && again.stderr.contains("3 times"), "{again:?}");
    assert_eq!(queue.task(&hopeless)["task"]["failures"].as_array().unwrap().len(), 8, "history is kept");
    queue.ok(&["dead-letter", "discard", "--all"]);
    assert!(!file.exists());
    assert!(queue.ok(&["dead-letter", "list"]).stdout.contains("No dead letters"));
    assert_eq!(queue.place.run(&["dead-letter", "show", &hopeless]).code(), 125);
}

#[test]
fn what_cannot_be_mended_by_trying_is_not_tried_again() {
    let queue = Queue::started();
    let refused = queue.add(&["--mode", "host", "--policy", "locked"], "true");
    let task = queue.wait(&refused);
    assert_eq!((&task["task"]["state"], task["runs"].as_array().unwrap().len()), (&json!("dead"), 1));
    assert_eq!(task["task"]["failures"][0]["class"], "refused");
}

#[test]
fn a_dead_letter_whose_file_cannot_be_written_is_still_there() {
    let queue = Queue::new();
    fs::create_dir_all(queue.place.state().join("queue")).unwrap();
    fs::write(queue.place.state().join("queue/dead-letter"), "in the way").unwrap();
    queue.ok(&["start"]);
    let id = queue.add(&["--max-attempts", "1"], "exit 1");
    assert_eq!(queue.wait(&id)["task"]["state"], "dead");
    assert!(queue.ok(&["dead-letter", "list"]).stdout.contains("agent_error"));
    queue.ok(&["stop"]);
    fs::remove_file(queue.place.state().join("queue/dead-letter")).unwrap();
    queue.ok(&["start"]);
    assert!(queue.place.state().join(format!("queue/dead-letter/{id}.json")).exists());
}

#[test]
fn cancelling_ends_the_run_in_every_mode() {
    let mut modes = vec![("host", Queue::new()), ("native", Queue::new())];
    if let Some(docker) = engine("docker") {
        modes.push(("docker", Queue { place: docker.place(Place::new().settings(SETTINGS)) }));
    }
    for (mode, queue) in modes {
        queue.ok(&["start"]);
        let id = queue.add(&["--mode", mode], "touch here; while true; do date > beat; sleep 0.05; done");
        let beat = queue.place.work().join("beat");
        wait_for("a beat", || beat.exists().then_some(()));
        queue.ok(&["task", "cancel", &id]);
        assert_eq!(queue.state(&id), "cancelled", "{mode}");
        fs::remove_file(&beat).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert!(!beat.exists(), "{mode}: it still runs");
        let again = queue.place.run(&["task", "cancel", &id]);
        assert!(again.code() == 125 && again.stderr.contains("cancelled"), "{again:?}");
        queue.ok(&["task", "retry", &id]);
        wait_for("another beat", || beat.exists().then_some(()));
        assert_eq!(queue.kinds(&id), ["added", "leased", "cancelled", "retried", "leased"]);
        queue.ok(&["task", "cancel", &id]);
    }
}

#[test]
fn a_killed_runner_costs_no_try_and_a_killed_daemon_not_even_the_run() {
    let queue = Queue::started();
    let id = queue.add(
        &["--mode", "host", "--max-attempts", "1"],
        "echo $$ > pid; while test -e pid; do sleep 0.05; done",
    );
    let first = queue.place.pid("pid");
    fs::remove_file(queue.place.work().join("pid")).ok();
    queue.wait(&id);
    let id = queue.add(
        &["--mode", "host", "--max-attempts", "1"],
        "echo $$ > pid; while test -e pid; do sleep 0.05; done",
    );
    let second = queue.place.pid("pid");
    assert_ne!(first, second);
    signal(queue.runner(), "-KILL");
    wait_for("the end of what it ran", || (!lives(second)).then_some(()));
    let third = wait_for("another try", || Some(queue.place.pid("pid")).filter(|pid| *pid != second));
    assert_eq!(queue.kinds(&id), ["added", "leased", "runner_lost", "leased"]);
    signal(queue.daemon(), "-KILL");
    wait_for("the end of the dispatcher", || queue.pid_of("dispatcher").is_none().then_some(()));
    assert!(lives(third), "the run goes on");
    queue.ok(&["start"]);
    assert_eq!(queue.state(&id), "running");
    fs::remove_file(queue.place.work().join("pid")).unwrap();
    assert_eq!(queue.wait(&id)["task"]["state"], "done");
    assert_eq!(queue.kinds(&id), ["added", "leased", "runner_lost", "leased", "done"]);
}

#[test]
fn who_ends_while_nobody_looks_still_ends_the_task() {
    let queue = Queue::started();
    let id = queue.add(&[], "echo $$ > pid; while test -e pid; do sleep 0.05; done; echo said");
    wait_for("a start", || queue.place.work().join("pid").exists().then_some(()));
    signal(queue.daemon(), "-KILL");
    fs::remove_file(queue.place.work().join("pid")).unwrap();
    wait_for("the end", || (queue.state(&id) == "done").then_some(()));
    assert_eq!(queue.task(&id)["task"]["result"]["text"], "said");
}

#[test]
fn stopping_gives_back_what_runs_and_draining_waits_for_it() {
    let queue = Queue::started();
    let script = "echo $$ >> pids; while ! test -e go; do sleep 0.05; done";
    let id = queue.add(&["--mode", "host"], script);
    wait_for("a start", || queue.place.work().join("pids").exists().then_some(()));
    queue.ok(&["stop"]);
    assert_eq!((queue.state(&id), queue.task(&id)["task"]["attempts"].clone()), ("queued".into(), json!(0)));
    assert_eq!(queue.kinds(&id), ["added", "leased", "released"]);
    queue.ok(&["start"]);
    wait_for("another start", || (queue.place.read("pids").lines().count() == 2).then_some(()));
    let other = queue.add(&["--mode", "host"], "true");
    let mut stop = queue.place.spawn(&["stop", "--drain"]);
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(stop.try_wait().unwrap().is_none(), "it does not wait");
    fs::write(queue.place.work().join("go"), "").unwrap();
    assert!(stop.wait().unwrap().success());
    assert_eq!((queue.state(&id), queue.state(&other)), ("done".into(), "queued".into()));
}

#[test]
fn residents_do_tasks_of_their_role_on_the_host_and_are_skipped_where_each_has_a_sandbox() {
    let queue = Queue::started();
    let skipped = queue.ok(&["process", "start", "worker-1"]);
    assert!(skipped.stdout.contains("skipped") && queue.pid_of("worker-1").is_none(), "{}", skipped.stdout);
    queue.ok(&["config", "set", "--system", "EXECUTION_ENVIRONMENT", "host"]);
    assert_eq!(queue.status()["execution_environment"], "host");
    assert!(queue.ok(&["process", "start", "worker-1"]).stdout.contains("runs"));
    assert!(queue.ok(&["process", "start", "worker-1"]).stdout.contains("already"));
    let owner = |id: &str| queue.wait(id)["runs"][0]["owner"].clone();
    assert_eq!(owner(&queue.add(&[], "true")), "worker-1");
    assert_eq!(
        owner(&queue.add(&["--mode", "native"], "true")),
        "dispatcher",
        "a sandbox is not a resident's"
    );
    assert_eq!(owner(&queue.add(&["--role", "tester"], "true")), "dispatcher", "nobody is resident for it");
    signal(queue.pid_of("worker-1").unwrap(), "-KILL");
    wait_for("that it is started again", || queue.pid_of("worker-1"));
    let id = queue.add(&[], "echo $$ > pid; sleep 60");
    let running = queue.place.pid("pid");
    assert!(queue.ok(&["process", "stop-all"]).stdout.contains("Stopped 2 process(es)"));
    assert!(!lives(running));
    assert_eq!(queue.state(&id), "queued");
    assert!(queue.ok(&["process", "list"]).stdout.contains("stopped"));
    for wrong in ["judge-1", "worker-0", "../x"] {
        assert_eq!(queue.place.run(&["process", "start", wrong]).code(), 2, "{wrong}");
    }
}

#[test]
fn switching_the_environment_under_load_loses_nothing() {
    let queue = Queue::new();
    queue.ok(&["config", "set", "--system", "EXECUTION_ENVIRONMENT", "host"]);
    queue.ok(&["config", "set", "sandbox.mode", "native"]);
    queue.ok(&["start"]);
    queue.ok(&["process", "start", "worker-1"]);
    let long = queue.add(&["--lane", "long"], "touch long; while ! test -e go; do sleep 0.05; done");
    wait_for("a start", || queue.place.work().join("long").exists().then_some(()));
    let before: Vec<String> = (0..10).map(|n| queue.add(&["--lane", &n.to_string()], "sleep 0.05")).collect();
    queue.ok(&["config", "set", "--system", "EXECUTION_ENVIRONMENT", "sandbox"]);
    let after: Vec<String> = (0..10).map(|n| queue.add(&["--lane", &n.to_string()], "sleep 0.05")).collect();
    let mode_of = |id: &str| {
        let task = queue.wait(id);
        assert_eq!(task["task"]["state"], "done");
        let run = task["runs"][0]["run"].as_str().unwrap().to_owned();
        queue.ok(&["runs", "show", &run, "--json"]).json()["record"]["mode"].as_str().unwrap().to_owned()
    };
    for id in &after {
        assert_eq!(mode_of(id), "native");
    }
    assert_eq!(queue.state(&long), "running", "what runs stays where it is");
    fs::write(queue.place.work().join("go"), "").unwrap();
    assert_eq!(mode_of(&long), "host");
    for id in &before {
        mode_of(id);
    }
    wait_for("the end of the resident", || queue.pid_of("worker-1").is_none().then_some(()));
    queue.ok(&["config", "unset", "--system", "EXECUTION_ENVIRONMENT"]);
    let explained = queue.ok(&["config", "explain", "sandbox.mode"]).stdout;
    assert!(!explained.contains("running system"), "{explained}");
}

#[test]
fn roles_have_agents_of_their_own() {
    let place =
        Place::new().settings(SETTINGS).env("LLM_EXECUTOR", "demo").env("TESTER_LLM_EXECUTOR", "claude_code");
    let queue = Queue { place };
    queue.ok(&["start"]);
    queue.ok(&["task", "add", "do it"]);
    let run = queue.wait("1")["runs"][0]["run"].as_str().unwrap().to_owned();
    assert_eq!(queue.ok(&["runs", "show", &run, "--json"]).json()["record"]["cli"], "demo");
    queue.ok(&["task", "add", "--role", "tester", "test it"]);
    let dead = queue.wait("2");
    let class = dead["task"]["failures"][0]["class"].as_str().unwrap();
    assert!(["cli_missing", "auth_required"].contains(&class), "{dead}");
}

/// Answers one request after another with these statuses, and tells what it was sent.
fn webhook(statuses: &'static [u16]) -> (String, std::sync::mpsc::Receiver<(String, String)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for status in statuses {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                reader.read_line(&mut head).unwrap();
            }
            let length = head
                .to_lowercase()
                .lines()
                .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            let mut body = vec![0; length.unwrap_or(0)];
            reader.read_exact(&mut body).unwrap();
            write!(stream, "HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
            tell.send((head, String::from_utf8(body).unwrap())).unwrap();
        }
    });
    (url, told)
}

#[test]
fn who_wants_to_know_of_an_end_is_told_signed_and_until_it_is_heard() {
    let (url, told) = webhook(&[500, 200]);
    let place = Place::new().settings(SETTINGS).env("RINGFENCE_WEBHOOK_SECRET", "the secret of the hook");
    let queue = Queue { place };
    queue.ok(&["start"]);
    let id = queue.add(&["--webhook", &url], "echo the reply");
    let mut heard = Vec::new();
    for _ in 0..2 {
        heard.push(told.recv_timeout(std::time::Duration::from_secs(30)).unwrap());
    }
    let [(first_head, first), (head, body)] = &heard[..] else { panic!() };
    assert_eq!(first, body);
    let document: Value = serde_json::from_str(body).unwrap();
    assert_eq!((&document["task"], &document["state"]), (&json!(id), &json!("done")));
    assert_eq!(document["result"]["text"], "the reply");
    let signature = ringfence_engine::queue::sign("the secret of the hook", body);
    let header = |head: &str, name: &str| {
        head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ").map(str::to_owned)).unwrap()
    };
    assert_eq!(header(head, "x-ringfence-signature"), signature);
    assert_eq!(header(head, "x-ringfence-delivery"), header(first_head, "x-ringfence-delivery"));
    wait_for("the delivery", || queue.kinds(&id).contains(&"webhook.delivered".to_owned()).then_some(()));
}

#[test]
fn a_webhook_that_is_not_wanted_is_given_up_and_shown() {
    let (url, told) = webhook(&[410]);
    let queue = Queue::started();
    queue.add(&["--webhook", &url], "true");
    told.recv_timeout(std::time::Duration::from_secs(30)).unwrap();
    wait_for("a dead webhook", || queue.ok(&["dead-letter", "list"]).stdout.contains("410").then_some(()));
}

#[test]
fn two_daemons_are_one_too_many() {
    let queue = Queue::started();
    let second = queue.place.run(&["serve"]);
    assert!(second.code() == 125 && second.stderr.contains("runs already"), "{second:?}");
    assert!(queue.ok(&["start"]).stdout.contains("already"));
    let unit = queue.ok(&["serve", "--print-unit"]).stdout;
    assert!(unit.contains("ExecStart=") && unit.contains("KillMode=mixed"), "{unit}");
}

#[test]
fn settings_that_cannot_be_read_hold_the_queue_and_lose_nothing() {
    let queue = Queue::started();
    let file = queue.place.state().join("settings.json");
    queue.add(&["--delay", "1s"], "true");
    let swap = |text: &str| {
        fs::write(file.with_extension("new"), text).unwrap();
        fs::rename(file.with_extension("new"), &file).unwrap();
    };
    swap("{ broken");
    std::thread::sleep(std::time::Duration::from_millis(1500));
    swap(SETTINGS);
    let done = queue.wait("1");
    assert_eq!((&done["task"]["state"], &done["task"]["failures"]), (&json!("done"), &json!([])));
}

#[test]
fn a_store_that_cannot_be_used_says_why_and_is_left_alone() {
    let place = Place::new().settings(SETTINGS);
    let file = place.state().join("ringfence.db");
    fs::write(
        &file,
        "no database at all, but more than a hundred bytes of something else entirely. ".repeat(9),
    )
    .unwrap();
    let before = fs::read(&file).unwrap();
    for args in [&["task", "list"][..], &["task", "add", "--agent", "demo", "x"], &["start"], &["status"]] {
        let refused = place.run(args);
        assert!(refused.code() == 125 && refused.stderr.contains("damaged"), "{args:?}: {refused:?}");
    }
    assert_eq!(fs::read(&file).unwrap(), before);
    place.run(&["run", "--mode", "host", "--agent", "command", "--command", "true"]).expect_code(0);
}

#[test]
fn a_full_disk_refuses_tasks_clearly_and_forgets_none() {
    let place = Place::new();
    fs::create_dir_all(place.state()).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs"])
        .arg(place.state())
        .status();
    if !mounted.unwrap().success() {
        assert!(std::env::var_os("CI").is_none(), "a small disk needs root");
        return;
    }
    fs::write(place.state().join("settings.json"), SETTINGS).unwrap();
    let queue = Queue { place };
    let first = queue.add(&["--delay", "2s"], "true");
    let ballast = queue.place.state().join("ballast");
    let mut file = fs::File::create(&ballast).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
    let (mut refused, mut kept) = (None, 1);
    while refused.is_none() && kept < 200 {
        let ran = queue.place.run(&["task", "add", "--agent", "demo", &"x".repeat(2000)]);
        if ran.code() == 0 {
            kept += 1;
        } else {
            refused = Some(ran);
        }
    }
    let refused = refused.expect("the disk takes everything");
    assert!(refused.stderr.contains("full") || refused.stderr.contains("space"), "{}", refused.stderr);
    drop(file);
    fs::remove_file(&ballast).unwrap();
    queue.ok(&["start"]);
    assert_eq!(queue.wait(&first)["task"]["state"], "done");
    assert_eq!(queue.ok(&["task", "list", "-n", "999", "--json"]).json().as_array().unwrap().len(), kept);
    queue.ok(&["stop"]);
    Command::new("umount").arg(queue.place.state()).status().unwrap();
}

#[test]
fn a_log_is_followed_to_its_end_and_events_as_they_happen() {
    let queue = Queue::started();
    let id = queue.add(&[], "echo one; while ! test -e go; do sleep 0.05; done; echo two");
    let mut logs = queue.place.spawn(&["task", "logs", "-f", "--json", &id]);
    let mut events = queue.place.spawn(&["events", "-f", "--json", "--since", "0"]);
    let mut lines = BufReader::new(logs.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.by_ref().any(|line| line.contains("one")));
    fs::write(queue.place.work().join("go"), "").unwrap();
    assert!(lines.any(|line| line.contains("two")));
    assert!(logs.wait().unwrap().success());
    let mut seen = BufReader::new(events.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(seen.any(|line| line.contains("task.done")));
    events.kill().unwrap();
    events.wait().unwrap();
}

#[test]
fn nobody_who_has_nothing_to_do_wakes_up() {
    let queue = Queue::started();
    queue.wait(&queue.add(&[], "true"));
    let pids = [queue.daemon(), queue.pid_of("dispatcher").unwrap()];
    let switches = || -> u64 {
        let threads =
            pids.iter().flat_map(|pid| fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten());
        let status = threads.map(|thread| fs::read_to_string(thread.path().join("status")).unwrap());
        let counts = status.flat_map(|text| {
            let lines = text.lines().filter(|line| line.contains("ctxt_switches"));
            lines
                .map(|line| line.split_whitespace().last().unwrap().parse::<u64>().unwrap())
                .collect::<Vec<_>>()
        });
        counts.sum()
    };
    std::thread::sleep(std::time::Duration::from_millis(500));
    let before = switches();
    std::thread::sleep(std::time::Duration::from_secs(3));
    let woken = switches() - before;
    assert!(woken <= 4, "{woken} switches in three seconds of nothing");
}

#[test]
fn old_things_go_and_a_dry_run_only_tells() {
    let queue = Queue::started();
    queue.wait(&queue.add(&[], "true"));
    let dead = queue.add(&["--max-attempts", "1"], "exit 1");
    queue.wait(&dead);
    let runs = || queue.ok(&["runs", "list", "--json"]).json().as_array().unwrap().len();
    let dry = queue.ok(&["prune", "--dry-run", "--size", "1k", "--json"]).json();
    assert_eq!((dry["runs"].as_array().unwrap().len(), runs()), (1, 2), "{dry}");
    queue.ok(&["prune", "--size", "1k"]);
    assert_eq!(runs(), 1, "the run of the dead letter stays");
    assert_eq!(queue.state(&dead), "dead");
}

#[test]
fn images_that_were_replaced_go_and_layers_only_if_asked_for() {
    let queue = Queue::new();
    queue.ok(&["exec", "--workspace", "overlay", "--", "touch", "new"]);
    let swept = |args: &[&str]| queue.ok(&[&["prune", "--size", "1k", "--json"], args].concat()).json();
    assert_eq!(swept(&[])["runs"].as_array().unwrap().len(), 0, "nobody has decided on its layer");
    assert_eq!(swept(&["--layers"])["runs"].as_array().unwrap().len(), 1);
    let Some(docker) = engine("docker") else { return };
    let queue = Queue { place: docker.place(Place::new().settings(SETTINGS)) };
    queue.ok(&["exec", "--mode", "docker", "--", "true"]);
    let build = |text: &str| {
        let dockerfile = format!("FROM ringfence/agent:latest\nLABEL ringfence.image=1\nLABEL test={text}\n");
        let mut command = Command::new("docker");
        command.args(["--host", &docker.address, "build", "--quiet", "--tag", "ringfence-test-prune", "-"]);
        let mut child =
            command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(dockerfile.as_bytes()).unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap().trim().to_owned()
    };
    let unique = std::process::id();
    let old = build(&format!("old{unique}"));
    build(&format!("new{unique}"));
    let id = queue.place.state().join("clock");
    fs::write(&id, "864000").unwrap();
    let later =
        queue.place.command(&["prune", "--days", "1", "--json"]).env("RINGFENCE_TEST_CLOCK", &id).output();
    let swept: Value = serde_json::from_slice(&later.unwrap().stdout).unwrap();
    assert!(swept["images"].as_array().unwrap().contains(&json!(old)), "{swept}, not {old}");
    docker.ask(&["rmi", "ringfence-test-prune"]);
}

#[test]
fn a_real_agent_does_a_task_and_a_limit_of_its_provider_blocks_it() {
    let server = serve(vec![Step::Text { text: "the answer of the model".into() }]);
    let queue = Queue { place: Stage::new(Cli::Claude, &server.url()).place };
    queue.ok(&["start"]);
    let add = |prompt: &str| {
        queue.ok(&[
            "task",
            "add",
            "--agent",
            "claude",
            "--base-url",
            &server.url(),
            "--mode",
            "host",
            prompt,
        ]);
    };
    add("say it");
    let done = queue.wait("1");
    assert_eq!(done["task"]["result"]["text"], "the answer of the model", "{done}");
    assert!(done["runs"][0]["usage"]["output_tokens"].as_u64().unwrap() > 0, "{done}");
    let used = queue.ok(&["usage", "--by", "task", "--json"]).json();
    assert_eq!((&used[0]["task"], used.as_array().unwrap().len()), (&json!("1"), 1), "{used}");
    server.set_script(Script::new(vec![Step::fail(429)]));
    add("say it again");
    wait_for("a blocked task", || (queue.state("2") == "blocked").then_some(()));
    assert_eq!(queue.task("2")["task"]["attempts"], 0, "it costs no try");
    queue.ok(&["task", "cancel", "2"]);
}

#[test]
fn an_agent_that_is_cancelled_may_clean_up_and_nobody_takes_its_place_before() {
    let queue = Queue::started();
    let script = r#"trap "sleep 1; echo cleaned >> log; exit 0" TERM INT; echo began >> log; while true; do sleep 0.05; done"#;
    let first = queue.add(&["--mode", "host", "--lane", "a"], script);
    wait_for("a beginning", || queue.place.work().join("log").exists().then_some(()));
    let second = queue.add(&["--mode", "host", "--lane", "a"], "echo second >> log");
    queue.ok(&["task", "cancel", &first]);
    queue.wait(&second);
    assert_eq!(queue.place.read("log"), "began\ncleaned\nsecond\n");
}

#[test]
fn cancelling_a_task_that_is_just_being_taken_cancels_it() {
    let queue = Queue::started();
    for number in 0..10 {
        let id = queue.add(&["--mode", "host", "--lane", &number.to_string()], "sleep 30");
        queue.ok(&["task", "cancel", &id]);
        assert_eq!(queue.state(&id), "cancelled");
    }
    assert_eq!(fs::read_dir(queue.place.state().join("queue/running")).unwrap().count(), 0);
}

#[test]
fn a_mistake_in_the_settings_keeps_nobody_from_looking_and_stopping() {
    let queue = Queue::started();
    let id = queue.add(&["--mode", "host"], "touch here; sleep 60");
    wait_for("a start", || queue.place.work().join("here").exists().then_some(()));
    fs::write(queue.place.state().join("settings.json"), "{ broken").unwrap();
    let status = queue.ok(&["status"]).stdout;
    assert!(status.contains("runs") && status.contains("settings.json"), "{status}");
    queue.ok(&["task", "cancel", &id]);
    assert_eq!(queue.state(&id), "cancelled");
    queue.ok(&["stop"]);
}

#[test]
fn many_who_start_the_daemon_start_one() {
    let queue = Queue::new();
    let all: Vec<_> = (0..5).map(|_| queue.place.spawn(&["start"])).collect();
    for child in all {
        let ran = Ran::from(child.wait_with_output().unwrap()).expect_code(0);
        assert!(ran.stdout.contains("The daemon runs"), "{ran:?}");
    }
}

#[test]
fn a_store_that_was_taken_away_is_noticed() {
    let queue = Queue::started();
    queue.wait(&queue.add(&[], "true"));
    let daemon = queue.daemon();
    for name in ["ringfence.db", "ringfence.db-wal", "ringfence.db-shm"] {
        let _ = fs::remove_file(queue.place.state().join(name));
    }
    queue.place.run(&["task", "list"]);
    wait_for("the end of the daemon", || (!lives(daemon)).then_some(()));
    queue.ok(&["start"]);
    assert_eq!(queue.wait(&queue.add(&[], "true"))["task"]["state"], "done");
}

#[test]
fn a_resident_that_drains_can_be_told_to_hurry() {
    let queue = Queue::new();
    queue.ok(&["config", "set", "--system", "EXECUTION_ENVIRONMENT", "host"]);
    queue.ok(&["start"]);
    queue.ok(&["process", "start", "worker-1"]);
    let id = queue.add(&[], "echo $$ > pid; sleep 100");
    let running = queue.place.pid("pid");
    queue.ok(&["config", "set", "--system", "EXECUTION_ENVIRONMENT", "sandbox"]);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(lives(running), "what runs stays where it is");
    queue.ok(&["process", "stop", "worker-1"]);
    assert!(!lives(running));
    assert!(queue.kinds(&id).contains(&"released".to_owned()));
}

#[test]
fn a_log_of_a_task_that_was_never_tried_ends() {
    let queue = Queue::new();
    let id = queue.add(&["--delay", "1h"], "true");
    let mut logs = queue.place.spawn(&["task", "logs", "-f", &id]);
    std::thread::sleep(std::time::Duration::from_millis(200));
    queue.ok(&["task", "cancel", &id]);
    assert_eq!(logs.wait().unwrap().code(), Some(125));
    for wrong in ["", "sh 'x"] {
        let refused = queue.place.run(&["task", "add", "--command", wrong]);
        assert!(refused.code() == 125 && refused.stderr.contains("command"), "{refused:?}");
    }
    let far = queue.place.shell(&format!(
        "echo '{{\"prompt\":\"x\",\"agent\":\"demo\",\"not_before\":18446744073709551615}}' | {} task add --json-tasks -",
        crate::support::BINARY
    ));
    assert!(far.code() == 125 && far.stderr.contains("not_before"), "{far:?}");
}

#[test]
fn agents_are_idle_busy_or_offline() {
    let settings = r#"{"agents": {"coder": {"name": "Coder", "cli": "command", "command": "sh -c 'touch here; sleep 60'"}, "idler": {"cli": "demo"}}}"#;
    let queue = Queue { place: Place::new().settings(settings) };
    let status = |agent: &str| {
        let rows = queue.ok(&["agents", "--json"]).json();
        let row = rows.as_array().unwrap().iter().find(|row| row["agent"] == agent).unwrap().clone();
        (row["status"].as_str().unwrap().to_owned(), row["tasks"]["running"].as_u64().unwrap_or(0))
    };
    assert_eq!(status("coder"), ("offline".to_owned(), 0));
    queue.ok(&["start"]);
    queue.ok(&["task", "add", "--agent", "coder", "x"]);
    wait_for("a start", || queue.place.work().join("here").exists().then_some(()));
    assert_eq!((status("coder"), status("idler")), (("busy".to_owned(), 1), ("idle".to_owned(), 0)));
    assert!(queue.ok(&["agents"]).stdout.contains("coder (Coder)"));
    assert_eq!(queue.task("1")["task"]["lane"], "agent coder");
    queue.ok(&["task", "cancel", "1"]);
}

#[test]
fn a_slow_receiver_of_webhooks_keeps_no_other_waiting() {
    let slow = TcpListener::bind("127.0.0.1:0").unwrap();
    let slow_url = format!("http://{}/", slow.local_addr().unwrap());
    let (url, told) = webhook(&[200]);
    let queue = Queue::started();
    queue.wait(&queue.add(&["--webhook", &slow_url], "true"));
    let (_silent, _) = slow.accept().unwrap();
    queue.add(&["--webhook", &url], "true");
    told.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
}
