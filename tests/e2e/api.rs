//! The HTTP API of a real daemon.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::site::{SETTINGS, Session, Site, ask};
use crate::support::{Place, wait_for};

#[test]
fn a_task_goes_through_the_api_from_adding_to_its_log() {
    let site = Site::new();
    let spec = json!({
        "prompt": "x", "agent": "command", "command": "sh -c 'echo out; echo err >&2'",
        "directory": site.place.work(), "key": "once",
    });
    let added = site.post("/tasks", &spec).expect(201).json();
    let id = added["task"]["id"].as_str().unwrap().to_owned();
    assert_eq!(
        (&added["existed"], &added["task"]["lane"]),
        (&json!(false), &json!(format!("directory {}", site.place.work().canonicalize().unwrap().display())))
    );
    let again = site.post("/tasks", &spec).expect(200).json();
    assert_eq!((&again["existed"], &again["task"]["id"]), (&json!(true), &json!(id)));
    let done = site.wait(&id);
    assert_eq!((&done["task"]["state"], &done["runs"][0]["status"]), (&json!("done"), &json!("success")));
    let run = done["runs"][0]["run"].as_str().unwrap();
    let view = site.get(&format!("/runs/{run}")).expect(200).json();
    assert_eq!(
        (&view["status"], &view["task"], &view["record"]["mode"]),
        (&json!("success"), &json!(id), &json!("native"))
    );
    let log = site.get(&format!("/runs/{run}/log?follow=true")).expect(200);
    assert_eq!(log.header("content-type"), Some("application/x-ndjson"));
    let lines: Vec<Value> = log.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(
        lines.iter().any(|line| line["text"] == "out") && lines.last().unwrap()["type"] == "result",
        "{lines:?}"
    );
    // A part of it: from where one has read to.
    let first = log.body.split_inclusive('\n').next().unwrap().len();
    assert_eq!(site.get(&format!("/runs/{run}/log?from={first}")).expect(200).body, log.body[first..]);
    for path in ["record", "net"] {
        site.get(&format!("/runs/{run}/{path}")).expect(200);
    }
    let no_layer = site.get(&format!("/runs/{run}/diff")).expect(409).json();
    assert!(no_layer["remedy"].as_str().unwrap().contains("overlay"), "{no_layer}");
    site.ask("DELETE", &format!("/tasks/{id}"), &[], "").expect(200);
    site.get(&format!("/tasks/{id}")).expect(404);
}

#[test]
fn lists_have_pages_and_filters() {
    let site = Site::new();
    site.ok(&["process", "stop", "dispatcher"]);
    let tasks: Vec<Value> = (0..7)
        .map(|number| json!({ "prompt": number.to_string(), "agent": "demo", "directory": site.place.work(), "role": if number % 2 == 0 { "tester" } else { "worker" } }))
        .collect();
    let added = site.post("/tasks/batch", &json!({ "tasks": tasks })).expect(201).json();
    assert_eq!(added["added"].as_array().unwrap().len(), 7);
    let (mut seen, mut next) = (Vec::new(), String::new());
    loop {
        let page = site.get(&format!("/tasks?limit=3{next}")).expect(200).json();
        seen.extend(
            page["tasks"].as_array().unwrap().iter().map(|task| task["id"].as_str().unwrap().to_owned()),
        );
        match page["next"].as_str() {
            Some(id) => next = format!("&before={id}"),
            None => break,
        }
    }
    assert_eq!(seen, ["7", "6", "5", "4", "3", "2", "1"]);
    let testers = site.get("/tasks?role=tester&status=queued,running").expect(200).json();
    assert_eq!(testers["tasks"].as_array().unwrap().len(), 4);
    // All or none.
    let wrong = json!({ "tasks": [{ "prompt": "good", "agent": "demo", "directory": site.place.work() }, { "prompt": " ", "agent": "demo" }] });
    site.post("/tasks/batch", &wrong).expect(422);
    assert_eq!(site.get("/tasks?limit=100").json()["tasks"].as_array().unwrap().len(), 7);
}

#[test]
fn what_is_wrong_is_told_as_a_problem_with_a_stable_code() {
    let site = Site::new();
    let json = [("content-type", "application/json")];
    type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], &'a str, u16, &'a str);
    let cases: &[Case<'_>] = &[
        ("GET", "/nowhere", &[], "", 404, "not_found"),
        ("PUT", "/tasks", &[], "", 405, "method_not_allowed"),
        ("GET", "/tasks/999", &[], "", 404, "not_found"),
        ("GET", "/tasks/..%2f..%2fetc", &[], "", 404, "not_found"),
        ("GET", "/runs/..%2f..%2fetc%2fpasswd/log", &[], "", 404, "not_found"),
        ("GET", "/tasks?limit=0", &[], "", 422, "invalid"),
        ("GET", "/tasks?status=nonsense", &[], "", 422, "invalid"),
        ("GET", "/tasks?state=queued", &[], "", 422, "invalid"),
        ("GET", "/system/%ff/auth", &[], "", 404, "not_found"),
        ("GET", "/events", &[("accept", "text/event-stream"), ("last-event-id", "x")], "", 422, "invalid"),
        ("POST", "/tasks", &[], "{}", 415, "not_json"),
        ("POST", "/tasks", &json, "{", 400, "malformed"),
        ("POST", "/tasks", &json, "[]", 422, "invalid"),
        ("POST", "/tasks", &json, r#"{"prompt":"x","priorty":1}"#, 422, "invalid"),
        ("POST", "/tasks", &json, r#"{"prompt":"x","agent":"nobody","directory":"/tmp"}"#, 409, "conflict"),
        ("POST", "/tasks", &json, r#"{"prompt":"x","agent":"demo","directory":"/no/such"}"#, 409, "conflict"),
        ("POST", "/tasks", &json, r#"{"prompt":"x","agent":"demo"}"#, 409, "conflict"),
        ("POST", "/tasks/1/cancel", &[], "", 404, "not_found"),
        ("PATCH", "/config", &json, r#"{"updates":{"broker.credentials":"x"}}"#, 400, "key_not_allowed"),
        ("PATCH", "/config", &json, r#"{"updates":{"NONSENSE":"x"}}"#, 400, "key_not_allowed"),
        ("PATCH", "/config", &json, r#"{"updates":{"EXECUTION_ENVIRONMENT":"cloud"}}"#, 422, "invalid"),
        (
            "PATCH",
            "/config",
            &json,
            r#"{"updates":{"EXECUTION_ENVIRONMENT":"host","sandbox.mode":"native"}}"#,
            422,
            "invalid",
        ),
        (
            "PATCH",
            "/config",
            &json,
            r#"{"updates":{"sandbox.apple.runtime_command":"/tmp/x"}}"#,
            400,
            "key_not_allowed",
        ),
        (
            "PATCH",
            "/config",
            &json,
            r#"{"updates":{"sandbox.env_allowlist":"HOME"}}"#,
            400,
            "key_not_allowed",
        ),
        ("POST", "/system/processes/nonsense/start", &[], "", 404, "not_found"),
        ("GET", "/system/vim/auth", &[], "", 404, "not_found"),
        ("GET", "/system/claude/auth?environment=moon", &[], "", 422, "invalid"),
    ];
    for (method, path, headers, body, status, code) in cases {
        let answer = site.ask(method, path, headers, body).expect(*status);
        let problem = answer.json();
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{method} {path}");
        assert_eq!(
            (&problem["code"], &problem["status"]),
            (&json!(code), &json!(status)),
            "{method} {path}: {problem}"
        );
        assert!(!problem["detail"].as_str().unwrap().is_empty());
    }
    let huge = "x".repeat(2 << 20);
    let huge = site.ask("POST", "/tasks", &json, &format!(r#"{{"prompt":"{huge}"}}"#));
    assert_eq!((huge.status, huge.json()["code"].as_str().unwrap()), (413, "too_large"));
    assert_eq!(site.get("/tasks").json()["tasks"], json!([]), "nothing was changed");
}

#[test]
fn settings_are_changed_all_or_none_and_every_change_is_noted() {
    let site = Site::new();
    let json = [("content-type", "application/json")];
    let patch = |text: &str| site.ask("PATCH", "/config", &json, text);
    assert_eq!(site.get("/config").json()["config"]["EXECUTION_ENVIRONMENT"], "sandbox");
    let changed = patch(r#"{"updates":{"EXECUTION_ENVIRONMENT":"host","sandbox.max_attempts":"5"}}"#)
        .expect(200)
        .json();
    assert_eq!(
        (
            &changed["config"]["EXECUTION_ENVIRONMENT"],
            &changed["config"]["LAUNCH_MODE"],
            &changed["requiresRestart"]
        ),
        (&json!("host"), &json!("process"), &json!(false))
    );
    patch(r#"{"updates":{"EXECUTION_ENVIRONMENT":"sandbox","sandbox.max_attempts":"0"}}"#).expect(422);
    patch(r#"{"updates":{"EXECUTION_ENVIRONMENT":"sandbox","LAUNCH_MODE":"process"}}"#).expect(422);
    assert_eq!(site.get("/config").json()["config"]["EXECUTION_ENVIRONMENT"], "host", "none of them");
    patch(r#"{"updates":{"EXECUTION_ENVIRONMENT":null}}"#).expect(200);
    assert_eq!(site.get("/config").json()["config"]["EXECUTION_ENVIRONMENT"], "sandbox");
    let events = site.get("/events?after=0&limit=1000").json();
    let audits: Vec<&Value> =
        events["events"].as_array().unwrap().iter().filter(|event| event["kind"] == "audit").collect();
    assert_eq!(audits.len(), 3, "{audits:?}");
    let switch = audits.iter().find(|event| event["data"]["subject"] == "EXECUTION_ENVIRONMENT").unwrap();
    assert_eq!(
        switch["data"],
        json!({ "who": "owner", "what": "config.change", "subject": "EXECUTION_ENVIRONMENT", "before": null, "after": "host" })
    );
}

#[test]
fn a_layer_above_that_wins_is_a_warning() {
    let place = Place::new().settings(SETTINGS).env("RINGFENCE_MODE", "native");
    let site = Site::of(place);
    let body = r#"{"updates":{"EXECUTION_ENVIRONMENT":"host"}}"#;
    let changed =
        site.ask("PATCH", "/config", &[("content-type", "application/json")], body).expect(200).json();
    assert!(changed["warnings"][0].as_str().unwrap().contains("stays in force"), "{changed}");
}

#[test]
fn no_answer_holds_a_secret() {
    let settings = r#"{"server": {"rate_limit": 0},
        "broker": {"credentials": ["api.example.com X-Key: s3cr3t-one"]},
        "queue": {"webhook": "https://user:s3cr3t-two@hooks.example.com/s3cr3t-three?x=s3cr3t-four"},
        "agents": {"a": {"cli": "demo", "base_url": "https://s3cr3t-five@model.example.com/s3cr3t-six"}}}"#;
    let place = Place::new()
        .settings(settings)
        .env("API_SECRET", "s3cr3t-seven")
        .env("API_KEYS", "s3cr3t-eight")
        .env("ANTHROPIC_API_KEY", "s3cr3t-nine");
    let site = Site::of(place);
    let headers = [("authorization", "Bearer s3cr3t-seven")];
    for path in [
        "/config",
        "/agents",
        "/system/status",
        "/system/processes",
        "/system/modes",
        "/system/doctor",
        "/system/claude/auth?environment=host",
        "/events?after=0",
        "/metrics",
        "/usage",
        "/ui",
        "/ui/system",
        "/ui/system/settings",
        "/ui/agents",
    ] {
        let answer = site.ask("GET", path, &headers, "");
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        assert!(!answer.body.contains("s3cr3t"), "{path}: {}", answer.body);
        assert!(!answer.head.contains("s3cr3t"), "{path}: {}", answer.head);
    }
    let shown = site.ask("GET", "/config", &headers, "").json();
    assert!(shown["config"]["queue.webhook"].as_str().unwrap().contains("hooks.example.com"), "{shown}");
}

#[test]
fn events_are_followed_and_taken_up_again_where_they_were_left() {
    let site = Site::new();
    site.wait(&site.add("true"));
    let follow = |last: &str| {
        let mut stream = TcpStream::connect(&site.address).unwrap();
        write!(
            stream,
            "GET /events?after=0 HTTP/1.1\r\nhost: {}\r\nauthorization: {}\r\naccept: text/event-stream\r\n{last}\r\n",
            site.address,
            site.bearer()
        )
        .unwrap();
        BufReader::new(stream).lines().map_while(Result::ok)
    };
    let ids = |lines: &mut dyn Iterator<Item = String>, count: usize| -> Vec<u64> {
        lines.filter_map(|line| line.strip_prefix("id: ")?.parse().ok()).take(count).collect()
    };
    let mut lines = follow("");
    let first = ids(&mut lines, 3);
    assert_eq!(first.len(), 3);
    let again = ids(&mut follow(&format!("last-event-id: {}\r\n", first[1])), 1);
    assert_eq!(again, [first[2]], "what was seen is not told again, and nothing is left out");
    // What happens now comes as it happens.
    let mut live = follow(&format!("last-event-id: {}\r\n", site.get("/events").json()["last"]));
    site.add("true");
    let told = live.find(|line| line.starts_with("event: ")).unwrap();
    assert!(told.starts_with("event: task."), "{told}");
    // And a page waits for it.
    let last = site.get("/events").json()["last"].as_u64().unwrap();
    let waiting = {
        let (address, bearer) = (site.address.clone(), site.bearer());
        std::thread::spawn(move || {
            let path = format!("/events?after={last}&wait=30");
            ask(&address, "GET", &path, &[("authorization", &bearer)], "").json()
        })
    };
    site.add("true");
    assert!(!waiting.join().unwrap()["events"].as_array().unwrap().is_empty());
}

#[test]
fn a_running_log_is_followed_to_its_end_without_losing_a_line() {
    let site = Site::new();
    let id = site.add("for i in $(seq 1 300); do echo line $i; sleep 0.005; done");
    let run = wait_for("a run", || {
        site.get(&format!("/tasks/{id}")).json()["task"]["run"].as_str().map(str::to_owned)
    });
    wait_for("the log", || (site.get(&format!("/runs/{run}")).status == 200).then_some(()));
    let log = site.get(&format!("/runs/{run}/log?follow=true")).expect(200).body;
    let printed: String = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|line| line["type"] == "output")
        .map(|line| line["text"].as_str().unwrap().to_owned() + "\n")
        .collect();
    let expected: String = (1..=300).map(|number| format!("line {number}\n")).collect();
    assert_eq!(printed, expected);
}

#[test]
fn processes_are_started_on_the_host_and_skipped_where_each_task_has_a_sandbox() {
    let site = Site::new();
    let start = || site.ask("POST", "/system/processes/worker-1/start", &[], "").expect(200).json();
    let skipped = start();
    assert!(skipped["skipped"].as_str().unwrap().contains("sandbox of its own"), "{skipped}");
    site.ask(
        "PATCH",
        "/config",
        &[("content-type", "application/json")],
        r#"{"updates":{"EXECUTION_ENVIRONMENT":"host"}}"#,
    )
    .expect(200);
    let started = start();
    assert_eq!(
        (&started["process"]["status"], &started["process"]["kind"], started["process"]["pid"].is_u64()),
        (&json!("running"), &json!("worker"), true),
        "{started}"
    );
    assert_eq!(start()["alreadyRunning"], true);
    site.get("/system/processes/worker-1").expect(200);
    site.get("/system/processes/worker-9").expect(404);
    let stopped = site.ask("POST", "/system/processes/stop-all", &[], "").expect(200).json();
    assert_eq!(stopped["message"], "Stopped 2 process(es)", "{stopped}");
}

#[test]
fn cancelling_over_the_api_ends_the_run_and_a_dead_letter_is_retried() {
    let site = Site::new();
    let id = site.add("echo $$ > pid; sleep 600");
    site.place.pid("pid");
    let cancelled = site.ask("POST", &format!("/tasks/{id}/cancel"), &[], "").expect(200).json();
    assert_eq!(cancelled["task"]["state"], "cancelled");
    let spec = json!({ "prompt": "x", "agent": "command", "command": "sh -c 'test -e mended'", "directory": site.place.work(), "max_attempts": 1 });
    let id = site.post("/tasks", &spec).expect(201).json()["task"]["id"].as_str().unwrap().to_owned();
    site.wait(&id);
    let letters = site.get("/dead-letter").expect(200).json();
    assert_eq!(letters["tasks"][0]["failure"]["class"], "agent_error");
    std::fs::write(site.place.work().join("mended"), "").unwrap();
    site.ask("POST", &format!("/dead-letter/{id}/retry"), &[], "").expect(200);
    assert_eq!(site.wait(&id)["task"]["state"], "done");
    site.get(&format!("/dead-letter/{id}")).expect(404);
}

#[test]
fn the_same_command_line_drives_a_daemon_far_away() {
    let place = Place::new().settings(SETTINGS).env("API_SECRET", "token");
    let site = Site::of(place);
    // Another home: nothing of the daemon's is there.
    let socket = format!("unix://{}", site.place.state().join("api.sock").display());
    for (url, token) in [(format!("http://{}", site.address), Some("token")), (socket, None)] {
        let mut far = Place::new().env("RINGFENCE_URL", url.clone());
        if let Some(token) = token {
            let refused = far.run(&["task", "list"]);
            assert!(
                refused.code() == 125 && refused.stderr.contains("Authentication required"),
                "{refused:?}"
            );
            far = far.env("RINGFENCE_TOKEN", token);
        }
        let ok = |args: &[&str]| far.run(args).expect_code(0);
        let work = site.place.work().display().to_string();
        let added = ok(&["task", "add", "--json", "--command", "sh -c 'echo from afar'", "-C", &work]).json();
        let id = added[0]["task"].as_str().unwrap().to_owned();
        assert!(ok(&["task", "wait", &id]).stdout.contains("from afar"));
        assert!(ok(&["task", "logs", "-f", &id]).stdout.contains("from afar"));
        assert_eq!(
            ok(&["task", "show", &id, "--json"]).json(),
            site.ok(&["task", "show", &id, "--json"]).json(),
            "the same words"
        );
        assert_eq!(ok(&["task", "list", "--json"]).json(), site.ok(&["task", "list", "--json"]).json());
        let run = ok(&["task", "show", &id, "--json"]).json()["runs"][0]["run"].as_str().unwrap().to_owned();
        assert_eq!(
            ok(&["runs", "show", &run, "--log", "--json"]).json(),
            site.ok(&["runs", "show", &run, "--log", "--json"]).json()
        );
        assert_eq!(ok(&["agents", "--json"]).json(), site.ok(&["agents", "--json"]).json());
        assert_eq!(ok(&["process", "list", "--json"]).json(), site.ok(&["process", "list", "--json"]).json());
        assert_eq!(
            ok(&["events", "--since", "0", "--json"]).events(),
            site.ok(&["events", "--since", "0", "--json"]).events()
        );
        for args in [
            &["status"][..],
            &["dead-letter", "list"],
            &["usage"],
            &["runs", "list"],
            &["process", "logs", "daemon"],
        ] {
            ok(args);
        }
        let missing = far.run(&["task", "show", "999"]);
        assert!(missing.code() == 125 && missing.stderr.contains("there is no task `999`"), "{missing:?}");
        assert!(!far.state().join("ringfence.db").exists(), "nothing is made where nothing is kept");
        ok(&["task", "delete", &id]);
    }
    let nobody = Place::new().env("RINGFENCE_URL", "http://127.0.0.1:1").run(&["task", "list"]);
    assert!(nobody.code() == 125 && nobody.stderr.contains("RINGFENCE_URL"), "{nobody:?}");
    let nonsense = Place::new().env("RINGFENCE_URL", "nonsense").run(&["task", "list"]);
    assert!(nonsense.stderr.contains("nonsense"), "{nonsense:?}");
}

#[test]
fn who_asks_too_often_is_told_when_to_come_back() {
    let settings = SETTINGS.replace("\"rate_limit\": 0", "\"rate_limit\": 30");
    let site = Site::of(Place::new().settings(&settings));
    // Now and then one is let through, for time passes.
    let turned_away = (0..60).map(|_| site.get("/tasks")).find(|answer| answer.status == 429);
    let last = turned_away.expect("nobody was turned away");
    assert_eq!(last.json()["code"], "too_many_requests");
    assert!(last.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    site.get("/health").expect(200);
    // The Unix socket is the person's own.
    site.ok(&["task", "list"]);
    let keys = Site::of(Place::new().settings(&settings.replace("30", "10000")).env("API_KEYS", "right"));
    for _ in 0..25 {
        keys.ask("GET", "/tasks", &[("x-api-key", "wrong")], "");
    }
    keys.ask("GET", "/tasks", &[("x-api-key", "wrong")], "").expect(429);
    keys.ask("GET", "/tasks", &[("x-api-key", "right")], "").expect(429);
    // The daemon's own token cannot be found by trying, so its owner is not locked out.
    keys.get("/tasks").expect(200);
    keys.get("/health").expect(200);
}

#[test]
fn an_address_that_cannot_be_had_is_an_error_only_for_who_named_it() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let place = Place::new().settings(SETTINGS).env("RINGFENCE_LISTEN", address.clone());
    let refused = place.run(&["start"]);
    assert!(refused.code() == 125 && refused.stderr.contains(&address), "{refused:?}");
    for words in ["another program listens on", "ringfence config set server.listen"] {
        assert!(refused.stderr.contains(words), "{refused:?}");
    }
    for (listen, word) in [
        ("nonsense", "no address to listen on"),
        ("0.0.0.0:0", "neither API_SECRET nor API_KEYS"),
        ("[::]:0", "neither API_SECRET nor API_KEYS"),
    ] {
        let refused = place.command(&["serve", "--listen", listen]).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(125) && said.contains(word), "{listen}: {said}");
    }
    place.run(&["status"]).expect_code(3);
}

#[test]
fn the_document_is_the_committed_one_and_the_daemon_serves_it() {
    let committed = include_str!("../../schemas/openapi.json");
    let site = Site::new();
    let served: Value = site.get("/openapi.json").expect(200).json();
    assert!(served == serde_json::from_str::<Value>(committed).unwrap(), "run `cargo xtask gen`");
    assert_eq!(served["openapi"], "3.1.0");
}

#[test]
fn a_store_that_is_gone_is_told_by_readiness() {
    let site = Site::new();
    assert_eq!(site.get("/health/ready").expect(200).json()["services"]["database"], "ok");
    std::fs::rename(site.place.state().join("ringfence.db"), site.place.state().join("away.db")).unwrap();
    // The answer is kept for a second. The daemon itself ends as soon as it notices; until then it says so.
    let said = wait_for("another answer", || {
        let Ok(mut stream) = TcpStream::connect(&site.address) else { return Some(String::new()) };
        let request =
            format!("GET /health/ready HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", site.address);
        let _ = stream.write_all(request.as_bytes());
        let mut said = String::new();
        let _ = stream.read_to_string(&mut said);
        (!said.contains(" 200 ")).then_some(said)
    });
    assert!(said.is_empty() || (said.contains(" 503 ") && said.contains("degraded")), "{said}");
}

/// Whatever becomes of who asked: what was changed is noted.
#[test]
fn who_hangs_up_early_leaves_a_trace_all_the_same() {
    let site = Site::new();
    site.ok(&["process", "stop", "dispatcher"]);
    let tasks: Vec<Value> =
        (0..20).map(|_| json!({ "prompt": "x", "agent": "demo", "directory": site.place.work() })).collect();
    site.post("/tasks/batch", &json!({ "tasks": tasks })).expect(201);
    let (address, bearer) = (&site.address, site.bearer());
    for id in 1..=20 {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(
            stream,
            "POST /tasks/{id}/cancel HTTP/1.1\r\nhost: {address}\r\nauthorization: {bearer}\r\n\r\n"
        )
        .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(id % 4));
        drop(stream);
    }
    std::thread::sleep(std::time::Duration::from_millis(500));
    let cancelled = site.get("/tasks?status=cancelled").json()["tasks"].as_array().unwrap().len();
    let events = site.get("/events?after=0&limit=1000").json();
    let noted = events["events"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|event| event["data"]["what"] == "task.cancel")
        .count();
    assert_eq!(noted, cancelled);
}

#[test]
fn a_log_is_told_to_its_end_when_its_run_is_cancelled() {
    let site = Site::new();
    let id = site.add("trap \"echo the last word; exit 1\" TERM; echo $$ > pid; while :; do sleep 0.1; done");
    site.place.pid("pid");
    let run = site.get(&format!("/tasks/{id}")).json()["task"]["run"].as_str().unwrap().to_owned();
    let (address, bearer) = (site.address.clone(), site.bearer());
    let path = format!("/runs/{run}/log?follow=true");
    let follower =
        std::thread::spawn(move || ask(&address, "GET", &path, &[("authorization", &bearer)], "").body);
    std::thread::sleep(std::time::Duration::from_millis(300));
    site.ask("POST", &format!("/tasks/{id}/cancel"), &[], "").expect(200);
    let log = follower.join().unwrap();
    assert!(log.contains("\"type\":\"result\""), "{log}");
}

#[test]
fn what_takes_long_keeps_nobody_else_waiting() {
    let site = Site::new();
    let asked: Vec<_> = (0..40)
        .map(|_| {
            let (address, bearer) = (site.address.clone(), site.bearer());
            std::thread::spawn(move || {
                ask(&address, "GET", "/system/doctor", &[("authorization", &bearer)], "").status
            })
        })
        .collect();
    for _ in 0..10 {
        let begun = std::time::Instant::now();
        site.get("/health/ready").expect(200);
        site.get("/tasks").expect(200);
        // Not how fast it is, but that it does not wait for forty doctors.
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
    }
    assert!(asked.into_iter().all(|asked| asked.join().unwrap() == 200));
}

#[test]
fn the_daemon_of_another_machine_is_not_stopped_from_here_and_no_run_reaches_its_own() {
    let site = Site::new();
    let port = site.address.rsplit(':').next().unwrap();
    let refused = site.place.run(&["exec", "--allow-local", port, "--", "true"]);
    assert!(refused.code() == 125 && refused.stderr.contains("ringfence's own daemon"), "{refused:?}");
    let far = Place::new().env("RINGFENCE_URL", format!("http://{}", site.address));
    for verb in ["start", "stop", "restart", "serve", "prune"] {
        let refused = far.run(&[verb]);
        assert!(refused.code() == 125 && refused.stderr.contains("RINGFENCE_URL"), "{verb}: {refused:?}");
    }
    let relative = far.run(&["task", "add", "-C", "here", "-a", "demo", "x"]);
    assert!(relative.code() == 125 && relative.stderr.contains("absolute"), "{relative:?}");
    let keyed = Site::of(Place::new().settings(SETTINGS).env("API_KEYS", "k"));
    let far =
        Place::new().env("RINGFENCE_URL", format!("http://{}", keyed.address)).env("RINGFENCE_API_KEY", "k");
    far.run(&["status"]).expect_code(0);
}

/// The session of a browser that looks at a page, and the token of its forms.
fn visit(site: &Site) -> (Session, String) {
    let session = site.log_in();
    let page = site.ask("GET", "/ui/tasks", &session.headers(), "").expect(200);
    let token = page.body.split("name=\"token\" value=\"").nth(1).unwrap().split('"').next().unwrap();
    (session, token.to_owned())
}

#[test]
fn a_form_that_cannot_be_read_adds_nothing() {
    let site = Site::new();
    let (session, token) = visit(&site);
    let headers = session.form_headers();
    let fields = "prompt=x&agent=demo&directory=&command=";
    for (wrong, word) in [
        ("mode=nativ&role=&priority=", "nativ"),
        ("mode=&role=boss&priority=", "boss"),
        ("mode=&role=&priority=high", "high"),
    ] {
        let answer = site.ask("POST", "/ui/tasks", &headers, &format!("token={token}&{fields}&{wrong}"));
        assert_eq!(answer.header("location"), Some("/ui/tasks"), "{wrong}: {answer:?}");
        let page = site.ask("GET", "/ui/tasks", &session.headers(), "").expect(200);
        assert!(page.body.contains(&format!("`{word}`")), "{wrong}: {}", page.body);
    }
    assert_eq!(site.get("/tasks").json()["tasks"], json!([]));
}

/// Some clients write all fields, and `null` for what they do not know.
#[test]
fn nothing_is_the_same_as_null() {
    let site = Site::new();
    let document: Value = site.get("/openapi.json").json();
    let fields = document["components"]["schemas"]["TaskSpec"]["properties"].as_object().unwrap();
    let may_be_null = |schema: &Value| schema.to_string().contains("\"null\"");
    let mut task: serde_json::Map<String, Value> = fields
        .iter()
        .filter(|(_, schema)| may_be_null(schema))
        .map(|(name, _)| (name.clone(), Value::Null))
        .collect();
    assert!(task.len() > 15, "{task:?}");
    assert_eq!(site.post("/tasks", &json!(["do it"])).json()["code"], "invalid");
    assert_eq!(site.ask("POST", "/tasks", &[("content-type", "application/json")], "{").status, 400);
    task.insert("prompt".into(), "x".into());
    task.insert("agent".into(), "demo".into());
    task.insert("directory".into(), json!(site.place.work()));
    site.post("/tasks", &Value::Object(task.clone())).expect(201);
    for name in fields.keys().filter(|name| !may_be_null(&fields[*name])) {
        let mut task = task.clone();
        task.insert(name.clone(), Value::Null);
        let answer = site.post("/tasks", &Value::Object(task));
        assert_eq!(answer.status, 422, "{name}: {answer:?}");
    }
}

#[test]
fn a_button_that_is_not_there_does_nothing() {
    let site = Site::new();
    site.wait(&site.add("true"));
    let (session, token) = visit(&site);
    let headers = session.form_headers();
    for path in [
        "/ui/tasks/1/pause",
        "/ui/dead-letters/1/read",
        "/ui/system/processes/dispatcher/restart",
        "/ui/nowhere",
    ] {
        let answer = site.ask("POST", path, &headers, &format!("token={token}"));
        assert_eq!(answer.status, 404, "{path}: {answer:?}");
        assert!(answer.header("content-type").unwrap().starts_with("text/html"), "{path}");
    }
    site.get("/tasks/1").expect(200);
}
