//! The only way out of a sandbox: what is allowed passes, what is not is answered at once, and no secret is inside.

use std::fs;

use scripted_model::{Front, Script, Server, Step};

use crate::support::{Place, Ran};

/// A provider's host, behind TLS, that plays a script.
struct Provider {
    server: Server,
    front: Front,
    names: &'static [&'static str],
}

impl Provider {
    fn new(names: &'static [&'static str], steps: Vec<Step>) -> Self {
        let server = Server::start(Script::new(steps)).unwrap();
        let front = Front::start(server.address(), names).unwrap();
        Self { server, front, names }
    }

    /// A place from which the names lead to it.
    fn seen_from(&self, place: Place) -> Place {
        let file = place.home().join("root.pem");
        fs::write(&file, self.front.root()).unwrap();
        let to: Vec<String> =
            self.names.iter().map(|name| format!("{name}:443={}", self.front.address())).collect();
        place.env("RINGFENCE_CONNECT_TO", to.join(",")).env("RINGFENCE_CA_FILE", file.display().to_string())
    }

    /// The values of a header that it received.
    fn received(&self, header: &str) -> Vec<String> {
        self.server.requests().iter().filter_map(|request| request.headers.get(header).cloned()).collect()
    }
}

fn text(text: &str) -> Step {
    Step::Text { text: text.into() }
}

fn exec(place: &Place, allow: &[&str], script: &str) -> Ran {
    let mut args = vec!["exec", "--mode", "native"];
    for host in allow {
        args.extend(["--allow", host]);
    }
    args.extend(["--", "sh", "-c", script]);
    place.run(&args)
}

#[test]
fn an_allowed_host_is_reached_by_name_and_others_are_answered_at_once() {
    let provider = Provider::new(&["model.test"], vec![text("hi")]);
    let place = provider.seen_from(Place::new());
    let ran = exec(&place, &["model.test"], "curl -sS --max-time 20 https://model.test/nothing-here");
    assert_eq!(ran.code(), 0, "{ran:?}");
    assert_eq!(provider.server.requests().len(), 1, "{ran:?}");
    let script = "curl -sS --max-time 20 -o /dev/null -w '%{http_connect}' https://other.test/; true";
    assert_eq!(exec(&place, &["model.test"], script).stdout, "403");
    let script = "curl -sS --max-time 20 -D - http://other.test/";
    let ran = exec(&place, &["model.test"], script);
    assert!(ran.stdout.contains("x-ringfence-denied: unlisted"), "{ran:?}");
    assert!(ran.stdout.contains("\"allowed\":[\"model.test\"]"), "{ran:?}");
}

#[test]
fn there_is_no_other_way_out() {
    let place = Place::new();
    for (what, script) in [
        ("direct", "curl -sS --max-time 5 --noproxy '*' https://1.1.1.1/"),
        ("names", "curl -sS --max-time 5 --noproxy '*' https://example.com/"),
        ("a resolver", "python3 -c 'import socket; socket.getaddrinfo(\"example.com\", 443)'"),
        (
            "UDP",
            "python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b\"x\", (\"8.8.8.8\", 53))'",
        ),
        (
            "UDP over IPv6",
            "python3 -c 'import socket; socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(b\"x\", (\"2001:4860:4860::8888\", 53))'",
        ),
        (
            "raw sockets",
            "python3 -c 'import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)'",
        ),
        ("packets", "python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'"),
    ] {
        let began = std::time::Instant::now();
        assert_ne!(exec(&place, &["example.com"], script).code(), 0, "{what}");
        assert!(began.elapsed().as_secs() < 4, "{what} hangs");
    }
}

#[test]
fn what_happened_is_written_down_without_queries() {
    let provider = Provider::new(&["model.test"], vec![text("hi")]);
    let place = provider.seen_from(Place::new());
    exec(
        &place,
        &["model.test"],
        "curl -s https://model.test/a?secret=1; curl -s http://other.test/b?secret=2; curl -s socks5h://x; true",
    );
    let ran = place.run(&["runs", "net", "last", "--json"]).expect_code(0);
    assert!(!ran.stdout.contains("secret"), "{}", ran.stdout);
    assert!(ran.stdout.contains("model.test") && ran.stdout.contains("unlisted"), "{}", ran.stdout);
}

/// Everything that a run can read of itself and of its files.
const SEARCH: &str = "(env; cat /proc/self/environ /proc/[0-9]*/environ /proc/[0-9]*/cmdline; \
                      grep -rsa . ~ /tmp /run /workspace /etc/passwd) 2>/dev/null | \
                      grep -ac REAL-SECRE[T] > found.txt; true";

struct Login {
    variables: &'static [(&'static str, &'static str)],
    file: Option<(&'static str, &'static str)>,
    header: &'static str,
    value: &'static str,
}

fn agent_works_without_its_secret(cli: &str, names: &'static [&'static str], more: &[&str], login: &Login) {
    let provider = Provider::new(
        names,
        vec![
            Step::Shell { command: SEARCH.into() },
            Step::Write { path: "made.txt".into(), content: "made\n".into() },
            text("All done here."),
        ],
    );
    let mut place =
        provider.seen_from(Place::with_agent_clis()).settings(r#"{"sandbox": {"patience_seconds": 20}}"#);
    for (name, value) in login.variables {
        place = place.env(name, *value);
    }
    if let Some((path, text)) = login.file {
        let path = place.home().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let args =
        [&["run", "--json", "--agent", cli, "--mode", "native", "--timeout", "120"], more, &["Please do it"]]
            .concat();
    let ran = place.run(&args);
    let result = ran.result();
    assert_eq!(
        (&result["status"], &result["text"]),
        (&"success".into(), &"All done here.".into()),
        "{ran:?}"
    );
    assert_eq!(place.read("made.txt"), "made\n");
    assert_eq!(place.read("found.txt").trim(), "0", "the secret is inside");
    let received = provider.received(login.header);
    assert!(received.iter().any(|value| value == login.value), "{received:?}");
    assert!(received.iter().all(|value| !value.contains("ringfence")), "{received:?}");
    let net = place.run(&["runs", "net", "last", "--json"]).expect_code(0).stdout;
    assert!(!net.contains("REAL-SECRET") && net.contains("credential"), "{net}");
}

#[test]
fn named_credentials_are_put_on_the_wire_and_nowhere_else() {
    let provider = Provider::new(&["npm.test", "github.com", "other.test"], vec![text("hi")]);
    let place = provider
        .seen_from(Place::new())
        .settings(
            r#"{"broker": {"credentials": ["npm.test authorization: Bearer {env:NPM_AUTH}", "github"]}}"#,
        )
        .env("NPM_AUTH", "REAL-SECRET-npm")
        .env("GH_TOKEN", "ghp_REAL-SECRET-github");
    let script = "curl -s https://npm.test/a; curl -s -H 'authorization: mine' https://npm.test/b; \
                  curl -s -u x:$GH_TOKEN https://github.com/c; git ls-remote https://github.com/me/d; \
                  curl -s -H \"x: $GH_TOKEN\" https://other.test/e; env | grep -c REAL-SECRE[T]";
    let ran = exec(&place, &["npm.test", "github.com", "other.test"], script);
    assert!(ran.stdout.ends_with("0\n"), "{ran:?}");
    let requests = provider.server.requests();
    let header = |path: &str| {
        let found = requests.iter().filter(|one| one.path.starts_with(path));
        found.map(|one| one.headers.get("authorization").cloned().unwrap_or_default()).next_back()
    };
    assert_eq!(header("/a").unwrap(), "Bearer REAL-SECRET-npm");
    assert_eq!(header("/b").unwrap(), "Bearer REAL-SECRET-npm");
    use base64::Engine;
    let basic = |text: &str| format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(text));
    assert_eq!(header("/c").unwrap(), basic("x:ghp_REAL-SECRET-github"));
    assert_eq!(header("/e"), Some(String::new()), "a header that is passed on is passed on as it is");
    assert!(!format!("{requests:?}").contains("x: ghp_REAL"), "{requests:?}");
}

/// Without being told anything but what every run finds.
#[test]
fn ordinary_programs_find_their_way() {
    let provider = Provider::new(&["passed.test", "looked.test"], vec![text("hi")]);
    let place = provider
        .seen_from(Place::new())
        .settings(r#"{"broker": {"credentials": ["looked.test x-real: {env:REAL}"]}}"#)
        .env("REAL", "REAL-SECRET");
    for host in ["passed.test", "looked.test"] {
        for (program, script) in [
            ("curl", format!("curl -sS https://{host}/curl")),
            ("curl", format!("curl -sS --socks5-hostname 127.0.0.1:41080 --noproxy '' https://{host}/curl")),
            ("git", format!("git ls-remote https://{host}/git")),
            ("npm", format!("npm view --registry https://{host}/npm nothing")),
            ("wget", format!("wget -q -O- https://{host}/wget")),
            (
                "python3",
                format!("python3 -c 'import urllib.request as u; u.urlopen(\"https://{host}/python3\")'"),
            ),
            (
                "pip3",
                format!(
                    "pip3 download -q --disable-pip-version-check --index-url https://{host}/pip3 nothing"
                ),
            ),
        ] {
            let there = std::process::Command::new("which").arg(program).output().unwrap().status.success();
            if !there && !["curl", "git", "npm"].contains(&program) {
                continue;
            }
            let _ = provider.server.take_requests();
            let ran = exec(&place, &["passed.test", "looked.test"], &script);
            let requests = provider.server.take_requests();
            assert!(requests.iter().any(|one| one.path.contains(program)), "{script}: {ran:?}");
            let real = requests
                .iter()
                .all(|one| one.headers.get("x-real").is_some_and(|value| value == "REAL-SECRET"));
            assert_eq!(real, host == "looked.test", "{script}: {requests:?}");
        }
    }
}

const CLAUDE_KEY: Login = Login {
    variables: &[("ANTHROPIC_API_KEY", "sk-ant-api03-REAL-SECRET")],
    file: None,
    header: "x-api-key",
    value: "sk-ant-api03-REAL-SECRET",
};
const CODEX_KEY: Login = Login {
    variables: &[("OPENAI_API_KEY", "sk-proj-REAL-SECRET")],
    file: None,
    header: "authorization",
    value: "Bearer sk-proj-REAL-SECRET",
};
const OPENCODE_KEY: Login = Login {
    variables: &[("ANTHROPIC_API_KEY", "sk-ant-api03-REAL-SECRET"), ("OPENCODE_DISABLE_MODELS_FETCH", "1")],
    file: None,
    header: "x-api-key",
    value: "sk-ant-api03-REAL-SECRET",
};
const CLAUDE: &[&str] = &["api.anthropic.com"];
const CODEX: &[&str] = &["api.openai.com", "chatgpt.com"];

#[test]
fn claude_with_a_key() {
    let login = CLAUDE_KEY;
    agent_works_without_its_secret("claude", CLAUDE, &[], &login);
}

#[test]
fn claude_with_a_token_of_a_subscription() {
    let login = Login {
        variables: &[("CLAUDE_CODE_OAUTH_TOKEN", "sk-ant-oat01-REAL-SECRET")],
        file: None,
        header: "authorization",
        value: "Bearer sk-ant-oat01-REAL-SECRET",
    };
    agent_works_without_its_secret("claude", CLAUDE, &[], &login);
}

#[test]
fn claude_with_the_login_of_a_subscription() {
    let login = Login {
        variables: &[],
        file: Some((
            ".claude/.credentials.json",
            r#"{"claudeAiOauth":{"accessToken":"sk-ant-oat01-REAL-SECRET","refreshToken":"sk-ant-ort01-REAL-SECRET","expiresAt":4102444800000,"scopes":["user:inference","user:profile"],"subscriptionType":"max"}}"#,
        )),
        header: "authorization",
        value: "Bearer sk-ant-oat01-REAL-SECRET",
    };
    agent_works_without_its_secret("claude", CLAUDE, &[], &login);
}

#[test]
fn a_run_over_its_budget_is_stopped() {
    let steps = (0..20).map(|number| Step::Shell { command: format!("echo {number} >> steps.txt") });
    let provider = Provider::new(CLAUDE, steps.chain([text("never")]).collect());
    let place =
        provider.seen_from(Place::with_agent_clis()).env("ANTHROPIC_API_KEY", "sk-ant-api03-REAL-SECRET");
    // Each answer of the script uses 120 tokens.
    fs::write(place.home().join("policy.json"), r#"{"extends": "standard", "limits": {"tokens": 500}}"#)
        .unwrap();
    let policy = place.home().join("policy.json").display().to_string();
    let ran =
        place.run(&["run", "--json", "--agent", "claude", "--mode", "native", "--policy", &policy, "Do it"]);
    let result = ran.result();
    assert_eq!(result["failure"]["class"], "budget_exceeded", "{ran:?}");
    let used = result["metered"].as_object().unwrap().values();
    let total: u64 = used
        .map(|model| model["input_tokens"].as_u64().unwrap() + model["output_tokens"].as_u64().unwrap())
        .sum();
    assert!((500..1000).contains(&total), "{result}");
    assert!(provider.server.requests().len() < 15);
}

#[test]
fn what_is_metered_is_what_the_cli_tells() {
    let provider =
        Provider::new(CLAUDE, vec![Step::Shell { command: "true".into() }, text("All done here.")]);
    let place =
        provider.seen_from(Place::with_agent_clis()).env("ANTHROPIC_API_KEY", "sk-ant-api03-REAL-SECRET");
    let result = place
        .run(&["run", "--json", "--agent", "claude", "--mode", "native", "Do it"])
        .expect_code(0)
        .result();
    let sum = |name: &str| -> u64 {
        result["metered"].as_object().unwrap().values().map(|model| model[name].as_u64().unwrap()).sum()
    };
    assert_eq!(result["usage"]["input_tokens"], sum("input_tokens"), "{result}");
    assert_eq!(result["usage"]["output_tokens"], sum("output_tokens"), "{result}");
    for by in ["day", "agent", "model", "run"] {
        let rows: serde_json::Value =
            serde_json::from_str(&place.run(&["usage", "--by", by, "--json"]).expect_code(0).stdout).unwrap();
        assert_eq!(rows[0]["usage"]["output_tokens"], sum("output_tokens"), "{rows}");
    }
    assert!(place.run(&["usage"]).expect_code(0).stdout.contains("OUTPUT"));
}

const RUN_OUT: &str = r#"{"claudeAiOauth":{"accessToken":"sk-ant-oat01-REAL-SECRET","refreshToken":"sk-ant-ort01-REAL-SECRET","expiresAt":1000,"scopes":["user:inference"],"subscriptionType":"max"},"other":"kept"}"#;

#[test]
fn runs_share_one_refresh_of_a_login_that_ran_out() {
    let names = &["api.anthropic.com", "platform.claude.com"];
    let provider = Provider::new(names, vec![text("All done here.")]);
    let place = provider.seen_from(Place::with_agent_clis());
    let file = place.home().join(".claude/.credentials.json");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, RUN_OUT).unwrap();
    let children: Vec<_> = (0..4)
        .map(|_| place.spawn(&["run", "--json", "--agent", "claude", "--mode", "native", "Say it"]))
        .collect();
    for child in children {
        let ran = Ran::from(child.wait_with_output().unwrap());
        assert_eq!(ran.result()["text"], "All done here.", "{ran:?}");
    }
    let refreshes = provider.server.requests().iter().filter(|one| one.path == "/v1/oauth/token").count();
    assert_eq!(refreshes, 1);
    let used = provider.received("authorization");
    assert!(!used.is_empty() && used.iter().all(|value| value.ends_with(".REAL-SECRET-1")), "{used:?}");
    let kept = fs::read_to_string(file).unwrap();
    assert!(kept.contains("refresh-REAL-SECRET-1") && kept.contains(r#""other":"kept""#), "{kept}");
}

/// A token with no more than a time of its end, and a signature.
fn token(expires: u64) -> String {
    use base64::Engine;
    let claims = format!(
        r#"{{"exp":{expires},"https://api.openai.com/auth":{{"chatgpt_plan_type":"pro"}},"email":"me@example.com"}}"#
    );
    format!("e30.{}.REAL-SECRET", base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(claims))
}

fn chatgpt_login(expires: u64) -> String {
    format!(
        r#"{{"auth_mode":"chatgpt","OPENAI_API_KEY":null,"tokens":{{"id_token":"{0}","access_token":"{0}","refresh_token":"rt-REAL-SECRET","account_id":"acc-1"}},"last_refresh":"2026-11-01T00:00:00Z"}}"#,
        token(expires)
    )
}

const CHATGPT: &[&str] = &["chatgpt.com", "auth.openai.com"];

#[test]
fn codex_with_the_login_of_a_plan() {
    let file = chatgpt_login(4_000_000_000).leak();
    let value = format!("Bearer {}", token(4_000_000_000)).leak();
    let login =
        Login { variables: &[], file: Some((".codex/auth.json", file)), header: "authorization", value };
    agent_works_without_its_secret("codex", CHATGPT, &[], &login);
}

#[test]
fn codex_with_a_login_that_ran_out() {
    let provider = Provider::new(CHATGPT, vec![text("All done here.")]);
    let place = provider.seen_from(Place::with_agent_clis());
    let file = place.home().join(".codex/auth.json");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, chatgpt_login(1000)).unwrap();
    let ran = place.run(&["run", "--json", "--agent", "codex", "--mode", "native", "Say it"]);
    assert_eq!(ran.result()["text"], "All done here.", "{ran:?}");
    let refreshes: Vec<_> =
        provider.server.requests().into_iter().filter(|one| one.path == "/oauth/token").collect();
    assert_eq!(refreshes.len(), 1);
    assert_eq!(refreshes[0].body["refresh_token"], "rt-REAL-SECRET");
    assert!(fs::read_to_string(file).unwrap().contains("refresh-REAL-SECRET-1"));
}

#[test]
fn codex_with_a_key() {
    let login = CODEX_KEY;
    agent_works_without_its_secret("codex", CODEX, &[], &login);
}

#[test]
fn opencode_with_a_key() {
    let login = OPENCODE_KEY;
    let more = ["--model", "anthropic/claude-sonnet-4-5", "--env", "OPENCODE_DISABLE_MODELS_FETCH"];
    agent_works_without_its_secret("opencode", CLAUDE, &more, &login);
}

/// A policy with a budget that no test uses up.
fn ample_budget() -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("policy.json");
    fs::write(&path, r#"{"extends": "standard", "limits": {"tokens": 100000000}}"#).unwrap();
    (directory, path.display().to_string())
}

/// What the agent CLIs send to their providers besides asking the model is let through under a budget too.
#[test]
fn claude_works_under_a_budget() {
    let (_directory, policy) = ample_budget();
    let login = CLAUDE_KEY;
    agent_works_without_its_secret("claude", CLAUDE, &["--policy", &policy], &login);
}

#[test]
fn codex_works_under_a_budget() {
    let (_directory, policy) = ample_budget();
    let key = CODEX_KEY;
    agent_works_without_its_secret("codex", CODEX, &["--policy", &policy], &key);
    let file = chatgpt_login(4_000_000_000).leak();
    let value = format!("Bearer {}", token(4_000_000_000)).leak();
    let plan =
        Login { variables: &[], file: Some((".codex/auth.json", file)), header: "authorization", value };
    agent_works_without_its_secret("codex", CHATGPT, &["--policy", &policy], &plan);
}

#[test]
fn opencode_works_under_a_budget() {
    let (_directory, policy) = ample_budget();
    let login = OPENCODE_KEY;
    let model = ["--model", "anthropic/claude-sonnet-4-5", "--env", "OPENCODE_DISABLE_MODELS_FETCH"];
    let more = [&model[..], &["--policy", &policy]].concat();
    agent_works_without_its_secret("opencode", CLAUDE, &more, &login);
}

/// codex asks for a model of which the built-in list has no price.
#[test]
fn a_run_whose_model_has_no_price_says_so() {
    let provider = Provider::new(CODEX, vec![text("never")]);
    let place = provider.seen_from(Place::with_agent_clis()).env("OPENAI_API_KEY", "sk-proj-REAL-SECRET");
    let policy = place.home().join("policy.json");
    fs::write(&policy, r#"{"extends": "standard", "limits": {"cost_usd": 10}}"#).unwrap();
    let policy = policy.display().to_string();
    let more = ["--policy", &policy, "--model", "unheard-of", "Do it"];
    let ran = place.run(&[&["run", "--json", "--agent", "codex", "--mode", "native"], &more[..]].concat());
    let failure = ran.result()["failure"].clone();
    assert_eq!(failure["class"], "refused", "{ran:?}");
    assert!(failure["message"].as_str().unwrap().contains("`unheard-of`"), "{failure}");
    assert!(failure["remedy"].as_str().unwrap().contains("broker.prices_file"), "{failure}");
}
