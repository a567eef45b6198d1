//! Containers, in every engine that is here: of root, and of a person.

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

use scripted_model::{Front, Script, Server, Step};
use serde_json::Value;

use crate::engines::{Engine, engine, engines};
use crate::support::{Place, wait_for};

fn in_all(mut what: impl FnMut(&Engine, Place)) {
    for engine in engines() {
        what(&engine, engine.place(Place::new()));
    }
}

/// Waits until its program runs. One that has ended before says why.
fn ready(place: &Place, child: &mut std::process::Child) {
    wait_for("the container", || {
        if place.work().join("ready").exists() {
            return Some(());
        }
        let ended = child.try_wait().unwrap()?;
        let mut words = String::new();
        let pipes = [child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from)];
        for pipe in pipes.into_iter().flatten() {
            fs::File::from(pipe).read_to_string(&mut words).unwrap();
        }
        panic!("it ended, {ended}: {words}");
    });
}

/// Soon nothing is left in the engine, and nothing of what the host kept for it.
fn gone(engine: &Engine, place: &Place) {
    wait_for("the end of all containers", || engine.containers(place).is_empty().then_some(()));
    let rooms = place.state().join("containers");
    wait_for("the end of all rooms", || (fs::read_dir(&rooms).unwrap().count() == 0).then_some(()));
}

#[test]
fn files_of_the_workspace_belong_to_who_calls() {
    in_all(|engine, place| {
        let ran = engine.exec(&place, &[], "mkdir -p a/b && echo hi > a/b/c && id -u");
        assert_eq!(ran.code(), 0, "{ran:?}");
        let (made, workspace) =
            (fs::metadata(place.work().join("a/b/c")).unwrap(), fs::metadata(place.work()).unwrap());
        assert_eq!((made.uid(), made.gid()), (workspace.uid(), workspace.gid()), "{engine:?}");
        assert_eq!(ran.stdout.trim(), workspace.uid().to_string());
    });
}

#[test]
fn what_is_promised_is_kept() {
    in_all(|engine, place| {
        let ran = place.run(&["probe", "--mode", engine.mode, "--json"]);
        let report: Value = ran.json();
        assert_eq!((ran.code(), &report["broken"]), (0, &0.into()), "{engine:?} {}", ran.stdout);
        assert!(report["held"].as_u64().unwrap() > 100);
    });
}

#[test]
fn nothing_is_left_in_the_workspace_and_nothing_in_the_engine() {
    in_all(|engine, place| {
        fs::create_dir(place.work().join(".git")).unwrap();
        let script = "echo x > .git/config; echo x > .mcp.json; mv .git git; ls -A";
        let ran = engine.exec(&place, &[], script);
        let refused = |word: &str| ran.stderr.matches(word).count();
        assert!(refused("Read-only") + refused("busy") + refused("denied") >= 3, "{ran:?}");
        let left: Vec<_> =
            fs::read_dir(place.work()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, [".git"]);
        assert_eq!(fs::read_dir(place.work().join(".git")).unwrap().count(), 0);
        gone(engine, &place);
    });
}

#[test]
fn without_a_network_there_is_a_loopback_and_nothing_else() {
    let script = "grep -c localhost /etc/hosts; grep -c : /proc/net/dev; cat /proc/net/dev; \
                  bash -c 'echo > /dev/tcp/127.0.0.1/9' 2>&1; getent hosts localhost ringfence";
    in_all(|engine, place| {
        let ran = engine.exec(&place, &[], script);
        let lines: Vec<&str> = ran.stdout.lines().collect();
        assert!(lines[0].parse::<u32>().unwrap() > 0 && lines[1] == "1", "{engine:?}: {ran:?}");
        for word in ["lo:", "Connection refused", "localhost", "ringfence"] {
            assert!(ran.stdout.contains(word), "{word}, {engine:?}: {ran:?}");
        }
    });
}

/// Whoever asks the engine, or looks at the processes of the host, learns no secret.
#[test]
fn the_engine_and_the_host_see_no_secret() {
    in_all(|engine, place| {
        let place = place.env("GIVEN_TOKEN", "REAL-SECRET-1");
        let args = ["exec", "--mode", engine.mode, "--env", "GIVEN_TOKEN", "--", "sh", "-c"];
        let script = "test \"$GIVEN_TOKEN\" = REAL-SECRET-1 && echo > ready; sleep 1000";
        let mut child = place.spawn(&[&args[..], &[script]].concat());
        ready(&place, &mut child);
        let name = engine.containers(&place).pop().unwrap();
        let seen = engine.ask(&["inspect", &name]);
        assert!(seen.contains("ringfence.run") && !seen.contains("REAL-SECRET"), "{seen}");
        let processes = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| fs::read(entry.unwrap().path().join("cmdline")).ok());
        let words = processes.filter(|line| line.windows(13).any(|part| part == b"REAL-SECRET-1")).count();
        // The script itself names it, once as ours, once as the program's.
        assert!(words <= 3, "{words}");
        kill(child.id(), "TERM");
        child.wait().unwrap();
        gone(engine, &place);
    });
}

fn kill(pid: u32, signal: &str) {
    let status = std::process::Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status();
    assert!(status.unwrap().success());
}

#[test]
fn who_is_killed_leaves_nothing_after_the_next_start() {
    in_all(|engine, place| {
        let args = ["exec", "--mode", engine.mode, "--", "sh", "-c", "echo > ready; sleep 1000"];
        let mut child = place.spawn(&args);
        ready(&place, &mut child);
        let pid = child.id();
        kill(pid, "KILL");
        child.wait().unwrap();
        assert!(place.work().join(".mcp.json").exists(), "stand-ins are left until somebody takes them away");
        let next = engine.exec(&place, &[], "true");
        assert_eq!(next.code(), 0, "{engine:?}: {next:?}");
        gone(engine, &place);
        let left: Vec<_> =
            fs::read_dir(place.work()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["ready"], "{engine:?}: {next:?}");
    });
}

#[test]
fn a_container_that_is_killed_is_an_end() {
    in_all(|engine, place| {
        let args = ["exec", "--json", "--mode", engine.mode, "--", "sh", "-c", "echo > ready; sleep 1000"];
        let mut child = place.spawn(&args);
        ready(&place, &mut child);
        engine.ask(&["kill", &engine.containers(&place)[0]]);
        let ran = crate::support::Ran::from(child.wait_with_output().unwrap());
        let result = ran.result();
        assert_eq!((&result["status"], &result["failure"]["class"]), (&"failed".into(), &"unknown".into()));
        assert_eq!(ran.code(), 125);
        gone(engine, &place);
    });
}

fn class(ran: &crate::support::Ran) -> String {
    ran.result()["failure"]["class"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn every_kind_of_failure_has_its_class() {
    in_all(|engine, place| {
        let mode = engine.mode;
        let image = |name: &str| format!(r#"{{"sandbox": {{"{mode}": {{"image": "{name}"}}}}}}"#);
        let exec = |place: &Place, more: &[&str], program: &[&str]| {
            place.run(&[&["exec", "--json", "--mode", mode], more, &["--"], program].concat())
        };
        assert_eq!(class(&exec(&place, &[], &["no-such-cli"])), "cli_missing");
        assert_eq!(exec(&place, &[], &["no-such-cli"]).code(), 127);
        assert_eq!(class(&exec(&place, &["--timeout", "1"], &["sleep", "100"])), "timeout");
        let eat = ["sh", "-c", "head -c 600m /dev/zero | tail > /dev/null; exit $?"];
        if engine.is_roots() {
            // Elsewhere the program is refused memory before the kernel has to end it.
            assert_eq!(class(&exec(&place, &["--memory", "100m"], &eat)), "out_of_memory", "{engine:?}");
        }
        let place = place.settings(&image("no/such/image:tag"));
        let ran = exec(&place, &[], &["true"]);
        assert_eq!(class(&ran), "image_missing");
        assert!(ran.result()["failure"]["remedy"].as_str().unwrap().contains("build-image"));
        let place = place.settings(&image("no such image"));
        assert_eq!(class(&exec(&place, &[], &["true"])), "refused");
        let variable = engine.variable().0;
        let place = place.env(&variable, "unix:///no/such.sock");
        assert_eq!(class(&exec(&place, &[], &["true"])), "daemon_down");
        let place = place.env(&variable, "tcp://192.0.2.1:2375");
        let ran = exec(&place, &[], &["true"]);
        assert_eq!(class(&ran), "runtime_missing");
        assert!(ran.result()["failure"]["message"].as_str().unwrap().contains("192.0.2.1"), "{ran:?}");
    });
}

#[test]
fn capital_letters_in_the_name_of_an_image_are_made_small_with_a_word_about_it() {
    in_all(|engine, place| {
        let settings =
            format!(r#"{{"sandbox": {{"{}": {{"image": "RingFence/Agent:latest"}}}}}}"#, engine.mode);
        let place = place.settings(&settings);
        let ran = place.run(&["exec", "--json", "--mode", engine.mode, "--", "true"]);
        assert_eq!(ran.code(), 0, "{ran:?}");
        assert!(ran.stdout.contains("`ringfence/agent` is used"), "{ran:?}");
    });
}

#[test]
fn a_network_of_the_engine_enforces_nothing_and_says_so() {
    let Some(engine) = engine("docker") else { return };
    let place = engine.place(Place::new()).settings(r#"{"sandbox": {"docker": {"network": "host"}}}"#);
    let ran = place.run(&["exec", "--mode", "docker", "--", "true"]);
    assert_eq!(ran.code(), 125);
    assert!(ran.stderr.contains("there is no network") && ran.stderr.contains("`default`"), "{ran:?}");
    let policy = place.home().join("p.json").display().to_string();
    fs::write(&policy, r#"{"extends": "standard", "network": {"mode": "none"}}"#).unwrap();
    let none = ["exec", "--mode", "docker", "--policy", &policy, "--allow-local", "9999", "--", "true"];
    let ran = place.run(&none);
    assert!(ran.code() == 125 && ran.stderr.contains("only the allowed hosts"), "{ran:?}");
    let ran = place.run(&["exec", "--json", "--mode", "docker", "--policy", "open", "--", "true"]);
    assert_eq!(ran.code(), 0, "{ran:?}");
    assert!(ran.stdout.contains("what goes out is not enforced"), "{ran:?}");
}

#[test]
fn what_is_left_is_listed_and_taken_away() {
    in_all(|engine, place| {
        let args = ["exec", "--mode", engine.mode, "--", "sh", "-c", "echo > ready; sleep 1000"];
        let mut child = place.spawn(&args);
        ready(&place, &mut child);
        let mine = |place: &Place| -> Vec<Value> {
            let all = place.run(&["sandbox", "list", "--json"]).expect_code(0).json();
            let owner = place.state().display().to_string();
            all.as_array().unwrap().iter().filter(|row| row["owner"] == owner.as_str()).cloned().collect()
        };
        let rows = mine(&place);
        assert_eq!((rows.len(), &rows[0]["orphan"]), (1, &false.into()), "{rows:?}");
        kill(child.id(), "KILL");
        child.wait().unwrap();
        wait_for("an orphan", || (mine(&place)[0]["orphan"] == true).then_some(()));
        place.run(&["sandbox", "rm", rows[0]["run"].as_str().unwrap()]).expect_code(0);
        assert_eq!(mine(&place).len(), 0);
        assert!(!place.work().join(".mcp.json").exists());
        assert_eq!(place.run(&["sandbox", "rm", "no-such"]).code(), 125);
    });
}

/// Everything that a run can read of itself and of its files.
const SEARCH: &str = "(env; cat /proc/self/environ /proc/[0-9]*/environ /proc/[0-9]*/cmdline; \
                      grep -rsa . ~ /tmp /run /workspace /etc /.ringfence/*.sock) 2>/dev/null | \
                      grep -ac REAL-SECRE[T] > found.txt; true";

fn agent_works(cli: &str, host: &'static str, more: &[&str], variable: &str, header: &str, value: &str) {
    for engine in engines() {
        let steps = vec![
            Step::Shell { command: SEARCH.into() },
            Step::Write { path: "made.txt".into(), content: "made\n".into() },
            Step::Text { text: "All done here.".into() },
        ];
        let server = Server::start(Script::new(steps)).unwrap();
        let names = [host];
        let front = Front::start(server.address(), &names).unwrap();
        let place = Place::new().env("RINGFENCE_CONNECT_TO", format!("{host}:443={}", front.address()));
        let root = place.home().join("root.pem");
        fs::write(&root, front.root()).unwrap();
        let place = place.env("RINGFENCE_CA_FILE", root.display().to_string());
        let place = place.env("OPENCODE_DISABLE_MODELS_FETCH", "1");
        let place = engine.place(place.env(variable, value.replace("Bearer ", "")));
        let args = ["run", "--json", "--agent", cli, "--mode", engine.mode, "--timeout", "120"];
        let ran = place.run(&[&args[..], more, &["Please do it"]].concat());
        let result = ran.result();
        let wanted = (&Value::from("success"), &Value::from("All done here."));
        assert_eq!((&result["status"], &result["text"]), wanted, "{engine:?} {ran:?}");
        assert!(place.work().join("found.txt").exists(), "{engine:?} {ran:?}");
        assert_eq!(place.read("made.txt"), "made\n");
        assert_eq!(place.read("found.txt").trim(), "0", "the secret is inside");
        let received: Vec<_> =
            server.requests().iter().filter_map(|request| request.headers.get(header).cloned()).collect();
        assert!(received.iter().any(|got| got == value), "{received:?}");
        let record = place.run(&["runs", "show", "last", "--json"]).expect_code(0).stdout;
        assert!(record.contains("sha256:") && !record.contains("REAL-SECRET"), "{record}");
    }
}

#[test]
fn claude_works_without_its_secret() {
    let key = "sk-ant-REAL-SECRET-0123456789";
    agent_works("claude", "api.anthropic.com", &[], "ANTHROPIC_API_KEY", "x-api-key", key);
}

#[test]
fn codex_works_without_its_secret() {
    let key = "Bearer sk-REAL-SECRET-0123456789";
    agent_works("codex", "api.openai.com", &[], "OPENAI_API_KEY", "authorization", key);
}

#[test]
fn opencode_works_without_its_secret() {
    let key = "sk-ant-REAL-SECRET-0123456789";
    let more = ["--model", "anthropic/claude-sonnet-4-5"];
    agent_works("opencode", "api.anthropic.com", &more, "ANTHROPIC_API_KEY", "x-api-key", key);
}

#[test]
fn files_that_an_agent_names_come_back_from_where_they_are() {
    in_all(|engine, place| {
        let words = "printf abc > out.png; ln -s /etc/passwd link; \
                     echo 'Look: [send_file: /workspace/out.png][send_file: /workspace/link][send_file: /etc/passwd]'";
        let command = format!("sh -c \"{words}\"");
        let out = place.work().join("copies");
        let out = out.to_str().unwrap();
        let args = ["run", "--json", "--mode", engine.mode, "--agent", "command", "--attachments", out];
        let ran = place.run(&[&args[..], &["--command", &command, "x"]].concat());
        let result = ran.result();
        let attached = result["attachments"].as_array().unwrap();
        assert_eq!((attached.len(), &attached[0]["media_type"]), (1, &"image/png".into()), "{ran:?}");
        assert_eq!(place.read("copies/out.png"), "abc");
        let text = result["text"].as_str().unwrap();
        assert!(
            text.starts_with("Look:\n\n[Warning: ") && text.contains("- /etc/passwd: it is outside"),
            "{text}"
        );
    });
}

/// A service that listens on the loopback of the host alone, and says one word to whoever comes.
fn service() -> (u16, std::thread::JoinHandle<()>) {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::io::Write::write_all(&mut stream, b"HTTP/1.0 200 OK\r\ncontent-length: 6\r\n\r\nhello\n")
                .unwrap();
        }
    };
    (port, std::thread::spawn(serve))
}

#[test]
fn named_ports_of_the_host_are_reached_and_others_are_not() {
    let (port, _service) = service();
    let port = port.to_string();
    let native = Place::new();
    let natively = |more: &[&str], script: &str| {
        native.run(&[&["exec", "--mode", "native"], more, &["--", "sh", "-c", script]].concat())
    };
    let check = |run: &dyn Fn(&[&str], &str) -> crate::support::Ran| {
        for host in ["localhost", "127.0.0.1", "127.0.0.9"] {
            let script = format!("curl -sS --max-time 10 --noproxy '*' http://{host}:{port}/");
            let ran = run(&["--allow-local", &port], &script);
            assert_eq!(ran.stdout, "hello\n", "{ran:?}");
            assert_ne!(run(&[], &script).code(), 0);
        }
        let ran = run(&["--json", "--env", &format!("DATABASE_URL=postgres://localhost:{port}/x")], "true");
        assert!(ran.stdout.contains(&format!("`--allow-local {port}` lets it")), "{ran:?}");
    };
    check(&natively);
    in_all(|engine, place| check(&|more, script| engine.exec(&place, more, script)));
    natively(&["--allow-local", &port], &format!("curl -sS --noproxy '*' http://localhost:{port}/"));
    let net = native.run(&["runs", "net", "last", "--json"]).expect_code(0).stdout;
    assert!(net.contains("network.local") && net.contains("\"local\""), "{net}");
}

/// With a network of its own a container finds the host by another name.
#[test]
fn addresses_of_the_host_are_rewritten_where_there_is_a_network() {
    for engine in engines().into_iter().filter(Engine::is_roots) {
        let mode = engine.mode;
        let network = format!("ringfence-test-{}", std::process::id());
        engine.ask(&["network", "create", &network]);
        let settings = format!(r#"{{"sandbox": {{"{mode}": {{"network": "{network}"}}}}}}"#);
        let place = engine.place(Place::new()).settings(&settings);
        let given = ["--policy", "open", "--env", "REDIS_URL=redis://u:p@[::1]:6379/0"];
        let ran = engine.exec(&place, &given, "echo $REDIS_URL; cat /etc/hosts");
        gone(&engine, &place);
        engine.ask(&["network", "rm", &network]);
        let host = if mode == "docker" { "host.docker.internal" } else { "host.containers.internal" };
        assert!(ran.stdout.starts_with(&format!("redis://u:p@{host}:6379/0\n")), "{ran:?}");
        assert!(ran.stdout.contains(&format!("\t{host}")), "{ran:?}");
    }
}

/// With a login that is handed in, the CLI works as that login, and what it is refreshed by stays outside.
#[test]
fn logins_are_handed_in_as_copies_and_keys_without_a_trace() {
    let login = r#"{"claudeAiOauth": {"accessToken": "sk-ant-oat01-REAL-ACCESS", "refreshToken": "sk-ant-ort01-REAL-REFRESH",
                    "expiresAt": 4102444800000, "scopes": ["user:inference"], "subscriptionType": "max"}}"#;
    let search =
        "grep -rsac REAL-REFRES[H] ~ /tmp | grep -cv ':0$' > found.txt; echo {} >> ~/.claude/settings.json";
    let Some(engine) = engine("docker") else { return };
    for (credentials, header, value) in [
        ("mount", "authorization", "Bearer sk-ant-oat01-REAL-ACCESS"),
        ("env", "x-api-key", "sk-ant-REAL-KEY-0123456789"),
    ] {
        let steps = vec![Step::Shell { command: search.into() }, Step::Text { text: "Done.".into() }];
        let server = Server::start(Script::new(steps)).unwrap();
        let front = Front::start(server.address(), &["api.anthropic.com"]).unwrap();
        let to = format!("api.anthropic.com:443={}", front.address());
        let place = engine.place(Place::new()).env("RINGFENCE_CONNECT_TO", to);
        let root = place.home().join("root.pem");
        fs::write(&root, front.root()).unwrap();
        let mut place = place.env("RINGFENCE_CA_FILE", root.display().to_string());
        let logins = place.home().join("elsewhere");
        fs::create_dir_all(&logins).unwrap();
        fs::write(logins.join(".credentials.json"), login).unwrap();
        place = match credentials {
            "mount" => place.env("CLAUDE_AUTH_DIR", logins.display().to_string()),
            _ => place.env("ANTHROPIC_API_KEY", value),
        };
        let policy = format!(r#"{{"extends": "standard", "credentials": "{credentials}"}}"#);
        fs::write(place.home().join("p.json"), policy).unwrap();
        let policy = place.home().join("p.json").display().to_string();
        // The host's certificate is not the image's: the program itself speaks to the host now.
        let bundle = format!("NODE_EXTRA_CA_CERTS={}", "/workspace/root.pem");
        fs::copy(&root, place.work().join("root.pem")).unwrap();
        let args =
            ["run", "--json", "--agent", "claude", "--mode", "docker", "--policy", &policy, "--env", &bundle];
        let ran = place.run(&[&args[..], &["Please do it"]].concat());
        assert_eq!(ran.result()["text"], "Done.", "{credentials} {ran:?}");
        assert_eq!(place.read("found.txt").trim(), "0");
        let requests = server.requests();
        assert!(
            requests.iter().any(|one| one.headers.get(header).is_some_and(|got| got == value)),
            "{requests:?}"
        );
        assert_eq!(fs::read_to_string(logins.join(".credentials.json")).unwrap(), login);
    }
    let ran =
        engine.place(Place::new()).run(&["run", "--json", "--agent", "claude", "--mode", "docker", "x"]);
    assert!(ran.stdout.contains("no login and no key of claude was found: run `claude /login`"), "{ran:?}");
}

/// A path is a path, whatever is in its name, and what cannot be said to an engine is not said.
#[test]
fn names_that_an_engine_would_read_otherwise_are_refused() {
    use std::os::unix::ffi::OsStrExt;
    in_all(|engine, place| {
        let planted = place.work().join("q,source=/,dst=");
        fs::create_dir_all(&planted).unwrap();
        fs::write(planted.join(".env"), "SECRET=1").unwrap();
        let ran = engine.exec(&place, &[], "cat q*/*/.env; ls /.env");
        match engine.mode {
            "podman" => assert!(ran.code() == 125 && ran.stderr.contains("its name has ','"), "{ran:?}"),
            _ => assert!(!ran.stdout.contains("SECRET"), "{ran:?}"),
        }
        fs::remove_dir_all(place.work().join("q,source=")).unwrap();
        let planted = place.work().join(std::ffi::OsStr::from_bytes(b"x\xff"));
        fs::create_dir(&planted).unwrap();
        fs::write(planted.join(".env"), "SECRET=1").unwrap();
        let ran = engine.exec(&place, &[], "cat x*/.env");
        assert!(ran.code() == 125 && ran.stderr.contains("UTF-8"), "{ran:?}");
    });
}

#[test]
fn what_ringfence_keeps_is_hidden_wherever_it_is() {
    let settings = |place: Place| {
        let state = place.work().join("st");
        fs::create_dir(&state).unwrap();
        fs::write(state.join("settings.json"), "{}").unwrap();
        place.env("RINGFENCE_HOME", state.display().to_string())
    };
    let script = "ls st; echo '{}' > st/settings.json; mv st elsewhere; mkdir -p st/runs";
    let native = settings(Place::new());
    let ran = native.run(&["exec", "--mode", "native", "--", "sh", "-c", script]);
    assert!(ran.stdout.is_empty() && ran.code() != 0, "{ran:?}");
    in_all(|engine, place| {
        let place = settings(place);
        let ran = engine.exec(&place, &[], script);
        assert!(ran.stdout.is_empty() && ran.code() != 0 && place.work().join("st/runs").exists(), "{ran:?}");
    });
}

#[test]
fn a_home_with_logins_can_be_the_workspace() {
    in_all(|engine, place| {
        for file in [".claude/settings.json", ".codex/auth.json", ".ssh/id", "work.txt"] {
            let file = place.work().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "x").unwrap();
        }
        let home = place.work().display().to_string();
        let place = place.env("HOME", home);
        let ran = engine.exec(
            &place,
            &["--home-workspace"],
            "cat work.txt .ssh/id .codex/auth.json .claude/settings.json",
        );
        assert_eq!(ran.stdout, "x", "{ran:?}");
    });
}

#[test]
fn containers_wait_for_runs_that_would_get_the_same() {
    in_all(|engine, place| {
        let place = place.settings(r#"{"sandbox": {"warm": 1}}"#);
        fs::write(place.work().join(".envrc"), "mine").unwrap();
        let waiting = || -> Vec<String> {
            let running = engine.containers(&place).into_iter();
            running.filter(|name| name.starts_with("ringfence-warm-")).collect()
        };
        let one = || wait_for("a container that waits", || waiting().pop());
        let exec = |script: &str| engine.exec(&place, &[], script);
        assert_eq!(exec("echo cold").stdout, "cold\n");
        let first = one();
        // One that runs may not be ready to be taken yet.
        wait_for("another one", || {
            let ran = exec(
                "echo warm; set -e; grep -q localhost /etc/hosts; ls ~; echo x > ~/left; echo x > made; id -un",
            );
            assert!(ran.stdout.starts_with("warm\n") && ran.code() == 0, "{ran:?}");
            (!waiting().contains(&first)).then_some(())
        });
        assert_eq!(exec("cat ~/left made").stdout, "x\n", "nothing of a run is in the container of the next");
        // What is protected is another file now, so what waits does not fit any more.
        let before = one();
        fs::write(place.work().join(".env"), "SECRET=1").unwrap();
        assert_eq!(exec("cat .env").stdout, "", "what came to be denied is hidden");
        wait_for("the end of what did not fit", || (!waiting().contains(&before)).then_some(()));
        // What covers a file is on its name: whoever replaces the file takes the cover away.
        one();
        fs::write(place.work().join("new"), "SECRET=2").unwrap();
        fs::rename(place.work().join("new"), place.work().join(".env")).unwrap();
        assert_eq!(exec("cat .env").stdout, "");
        one();
        let at = |name: &str| place.work().join(name);
        fs::hard_link(at(".envrc"), at("other")).unwrap();
        fs::remove_file(at(".envrc")).unwrap();
        fs::rename(at("other"), at(".envrc")).unwrap();
        exec("echo evil >> .envrc");
        assert_eq!(place.read(".envrc"), "mine");
        // One that does not fit any more may go by itself just then.
        wait_for("one that is taken away", || {
            (place.run(&["sandbox", "rm", &one()]).code() == 0).then_some(())
        });
        kill_keepers(&place);
        place.run(&["sandbox", "rm", "--orphans"]).expect_code(0);
    });
}

/// Ends those who keep containers for a place.
fn kill_keepers(place: &Place) {
    let state = format!("RINGFENCE_HOME={}", place.state().display());
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let is_keeper =
            fs::read(entry.path().join("cmdline")).is_ok_and(|line| line.ends_with(b"\0__warm\0"));
        let env = fs::read(entry.path().join("environ")).unwrap_or_default();
        if is_keeper && String::from_utf8_lossy(&env).contains(&state) {
            kill(entry.file_name().to_str().unwrap().parse().unwrap(), "KILL");
        }
    }
}

/// An engine of its own, that can be killed.
struct Daemon {
    directory: tempfile::TempDir,
    child: std::process::Child,
}

impl Daemon {
    fn start(directory: tempfile::TempDir) -> Self {
        let at = |name: &str| directory.path().join(name).display().to_string();
        // One that was killed leaves its notes.
        for note in ["pid", "exec/containerd/containerd.pid"] {
            let _ = fs::remove_file(at(note));
        }
        let child = std::process::Command::new("dockerd")
            .args(["--bridge=none", "--iptables=false", "--default-ulimit=nofile=20000:20000"])
            .args([format!("--data-root={}", at("data")), format!("--exec-root={}", at("exec"))])
            .args([format!("--pidfile={}", at("pid")), format!("--host={}", Self::address(&directory))])
            .stdout(std::process::Stdio::null())
            .stderr(fs::File::create(at("log")).unwrap())
            .spawn()
            .unwrap();
        let daemon = Self { directory, child };
        wait_for("a daemon", || daemon.docker(&["version"]).status.success().then_some(()));
        daemon
    }

    fn address(directory: &tempfile::TempDir) -> String {
        format!("unix://{}/docker.sock", directory.path().display())
    }

    fn docker(&self, args: &[&str]) -> std::process::Output {
        let host = Self::address(&self.directory);
        std::process::Command::new("docker").args(["--host", &host]).args(args).output().unwrap()
    }

    fn kill_and_start_again(mut self) -> Self {
        kill(self.child.id(), "KILL");
        self.child.wait().unwrap();
        Self::start(self.directory)
    }

    /// Ends it, and those whom it has lost when it was killed.
    fn end(mut self) {
        kill(self.child.id(), "TERM");
        self.child.wait().unwrap();
        let socket = self.directory.path().join("exec/containerd/containerd.sock");
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            if line.split(|byte| *byte == 0).any(|word| word == socket.as_os_str().as_encoded_bytes()) {
                // It may have ended by itself meanwhile.
                let _ = std::process::Command::new("kill").arg("-KILL").arg(entry.file_name()).output();
            }
        }
    }
}

/// A root with nothing in it but one program of many names.
fn small_image(daemon: &Daemon) {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("bin")).unwrap();
    fs::copy("/bin/busybox", root.path().join("bin/busybox")).unwrap();
    for name in ["sh", "sleep", "true"] {
        std::os::unix::fs::symlink("busybox", root.path().join("bin").join(name)).unwrap();
    }
    let archive = daemon.directory.path().join("root.tar");
    let tar = std::process::Command::new("tar")
        .arg("-C")
        .arg(root.path())
        .arg("-cf")
        .arg(&archive)
        .arg(".")
        .status();
    assert!(tar.unwrap().success());
    let imported = daemon.docker(&["import", archive.to_str().unwrap(), "small:latest"]);
    assert!(imported.status.success(), "{imported:?}");
}

/// Whoever is killed, whenever: every run has an end, and after the next start nothing is left.
#[test]
fn thirty_kills_of_anybody_leave_nothing() {
    if engines().is_empty() {
        return;
    }
    let mut daemon = Daemon::start(tempfile::tempdir().unwrap());
    small_image(&daemon);
    let place = Place::new()
        .env("DOCKER_HOST", Daemon::address(&daemon.directory))
        .settings(r#"{"sandbox": {"docker": {"image": "small"}}}"#);
    let mut seed = u64::from(std::process::id());
    for round in 0..30 {
        let mut child = place.spawn(&["exec", "--mode", "docker", "--timeout", "20", "--", "sleep", "0.2"]);
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(std::time::Duration::from_millis((seed >> 33) % 500));
        match round % 3 {
            0 => {
                let _ = std::process::Command::new("kill").args(["-KILL", &child.id().to_string()]).output();
            }
            1 => {
                let names = daemon.docker(&["ps", "--quiet"]);
                let names = String::from_utf8(names.stdout).unwrap();
                daemon.docker(&[&["kill"], &names.lines().collect::<Vec<_>>()[..]].concat());
            }
            _ => daemon = daemon.kill_and_start_again(),
        }
        child.wait().unwrap();
    }
    let left = || String::from_utf8(daemon.docker(&["ps", "--all", "--quiet"]).stdout).unwrap();
    let rooms = || fs::read_dir(place.state().join("containers")).unwrap().count();
    // A daemon may still be making what one asked for who was killed: that is found by one of the next starts. What such
    // a start itself leaves goes a moment after its end.
    wait_for("the end of all containers and rooms", || {
        place.run(&["exec", "--mode", "docker", "--", "true"]).expect_code(0);
        let begun = std::time::Instant::now();
        while begun.elapsed() < std::time::Duration::from_secs(5) {
            if left().is_empty() && rooms() == 0 {
                return Some(());
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        None
    });
    assert_eq!(fs::read_dir(place.work()).unwrap().count(), 0, "nothing stands in the workspace");
    let runs = place.run(&["runs", "list", "--json"]).expect_code(0).stdout;
    assert!(!runs.contains("\"running\""), "{runs}");
    daemon.end();
}

#[test]
fn doctor_looks_into_the_image() {
    in_all(|engine, place| {
        let mode = engine.mode;
        let agents = r#""agents": {"a": {"cli": "claude"}, "b": {"cli": "codex"}}"#;
        let settings = |image: &str| {
            format!(r#"{{"sandbox": {{"mode": "{mode}", "{mode}": {{"image": "{image}"}}}}, {agents}}}"#)
        };
        let findings = |place: &Place| -> Value {
            let report: Value = place.run(&["sandbox", "doctor", "--json"]).json();
            let modes = report["modes"].as_array().unwrap().clone();
            modes.into_iter().find(|group| group["name"] == mode).unwrap()["findings"].clone()
        };
        let place = place.settings(&settings("ringfence/agent:latest"));
        let found = findings(&place).to_string();
        for subject in ["engine", "limits", "disk", "network", "image", "claude inside", "codex inside"] {
            assert!(found.contains(&format!("\"{subject}\"")), "{subject}: {found}");
        }
        assert!(!found.contains("broken"), "{found}");
        let found = findings(&place.settings(&settings("no/such"))).to_string();
        assert!(found.contains("broken") && found.contains("build-image"), "{found}");
    });
}

/// An engine that answers what it is told to.
#[test]
fn what_nobody_knows_is_unknown_and_never_success() {
    use std::io::{BufRead, BufReader, Write};
    let answers: &[(u16, &str, &str)] = &[
        (500, "something new", "unknown"),
        (404, "No such image: x", "image_missing"),
        (401, "unauthorized", "refused"),
        (503, "starting", "daemon_down"),
        (200, "this is no JSON", "unknown"),
    ];
    for (status, words, class) in answers {
        let place = Place::new();
        let socket = place.home().join("engine.sock");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let (status, words) = (*status, words.to_string());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).unwrap();
                let (status, body) = match line.split(' ').nth(1).unwrap_or_default() {
                    path if path.ends_with("/version") => (200, r#"{"ApiVersion": "1.41"}"#.to_owned()),
                    path if path.ends_with("/info") => (
                        200,
                        r#"{"ID": "x", "MemoryLimit": true, "CpuCfsQuota": true, "PidsLimit": true}"#
                            .to_owned(),
                    ),
                    _ => (status, format!(r#"{{"message": "{words}"}}"#)),
                };
                let body = if status == 200 && body.contains("no JSON") { words.clone() } else { body };
                let head =
                    format!("HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\n");
                let _ = write!(stream, "{head}content-length: {}\r\n\r\n{body}", body.len());
            }
        });
        let place = place.env("DOCKER_HOST", format!("unix://{}", socket.display()));
        let ran = place.run(&["exec", "--json", "--mode", "docker", "--", "true"]);
        assert_eq!((ran.code(), crate::containers::class(&ran).as_str()), (125, *class), "{ran:?}");
    }
}
