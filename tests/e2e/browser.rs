//! The dashboard in a real browser: what people do, and what they see. Each page is kept as a picture.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fantoccini::elements::Element;
use fantoccini::error::CmdError;
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::site::{LoginAddress, Site, ask};
use crate::support::{Place, wait_for};

/// A browser at a dashboard. It has to be without a complaint at the end.
struct Browser {
    driver: Child,
    address: String,
    session: String,
    client: Client,
    /// The host of the pages: the daemon's address, or the name of the session.
    host: String,
    runtime: Runtime,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// A browser that has opened a login address.
    fn new(site: &Site) -> Self {
        let mut browser = Self::anonymous(site);
        browser.log_in(&site.login_address());
        browser
    }

    fn log_in(&mut self, login: &LoginAddress) {
        self.host.clone_from(&login.host);
        self.go(&login.path);
        self.see("h1", "Overview");
    }

    fn anonymous(site: &Site) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let driver = Command::new("chromedriver")
            .arg(format!("--port={port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver is not there: run `cargo xtask setup`");
        wait_for("chromedriver", || std::net::TcpStream::connect(&address).ok());
        let profile = tempfile::tempdir().unwrap();
        let options = json!({
            "args": [
                "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
                "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
                format!("--user-data-dir={}", profile.path().display()),
            ],
        });
        let wishes = json!({ "goog:chromeOptions": options, "goog:loggingPrefs": { "browser": "ALL" } });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(async {
            let mut builder = ClientBuilder::new(HttpConnector::new());
            builder.capabilities(wishes.as_object().unwrap().clone());
            builder.connect(&format!("http://{address}")).await.unwrap()
        });
        let session = runtime.block_on(client.session_id()).unwrap().unwrap();
        Self { host: site.address.clone(), driver, address, session, client, runtime, _profile: profile }
    }

    fn run<T>(&self, action: impl Future<Output = Result<T, CmdError>>) -> T {
        self.runtime.block_on(action).unwrap()
    }

    fn go(&self, path: &str) {
        self.run(self.client.goto(&format!("http://{}{path}", self.host)));
    }

    #[track_caller]
    fn text(&self, css: &str) -> String {
        self.runtime
            .block_on(async { self.client.find(Locator::Css(css)).await?.text().await })
            .unwrap_or_default()
    }

    /// Waits until an element says something.
    #[track_caller]
    fn see(&self, css: &str, words: &str) {
        let what = format!("`{words}` in {css}: {}", self.text("main").chars().take(600).collect::<String>());
        wait_for(&what, || self.text(css).contains(words).then_some(()));
    }

    /// Does something to an element. The page may exchange it just then: then it is done to the new one.
    #[track_caller]
    fn act<F: Future<Output = Result<(), CmdError>>>(&self, css: &str, act: impl Fn(Element) -> F) {
        wait_for(css, || {
            let done = self.runtime.block_on(async { act(self.client.find(Locator::Css(css)).await?).await });
            match done {
                Err(error) if error.is_stale_element_reference() || error.is_no_such_element() => None,
                done => {
                    done.unwrap();
                    Some(())
                }
            }
        });
    }

    #[track_caller]
    fn click(&self, css: &str) {
        self.act(css, |element| async move { element.click().await });
    }

    #[track_caller]
    fn write(&self, css: &str, text: &str) {
        self.act(css, |field| async move {
            field.clear().await?;
            field.send_keys(text).await
        });
    }

    #[track_caller]
    fn choose(&self, css: &str, value: &str) {
        self.act(css, |field| async move { field.select_by_value(value).await });
    }

    fn size(&self, width: u32, height: u32) {
        self.run(self.client.set_window_size(width, height));
    }

    fn evaluate(&self, script: &str) -> Value {
        self.run(self.client.execute(script, Vec::new()))
    }

    /// Keeps the page as a picture, in light and dark.
    fn picture(&self, name: &str) {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("screenshots");
        fs::create_dir_all(&directory).unwrap();
        for scheme in ["light", "dark"] {
            let wish = json!({ "cmd": "Emulation.setEmulatedMedia", "params": { "features": [{ "name": "prefers-color-scheme", "value": scheme }] } });
            let path = format!("/session/{}/goog/cdp/execute", self.session);
            ask(&self.address, "POST", &path, &[("content-type", "application/json")], &wish.to_string())
                .expect(200);
            fs::write(directory.join(format!("{name}-{scheme}.png")), self.run(self.client.screenshot()))
                .unwrap();
        }
    }

    /// What the browser complained about.
    fn complaints(&self) -> Vec<String> {
        let path = format!("/session/{}/se/log", self.session);
        let body = r#"{"type":"browser"}"#;
        let log = ask(&self.address, "POST", &path, &[("content-type", "application/json")], body)
            .expect(200)
            .json();
        log["value"]
            .as_array()
            .unwrap()
            .iter()
            .map(|line| line["message"].as_str().unwrap().to_owned())
            .collect()
    }

    fn close(self) {
        let complaints = self.complaints();
        assert!(complaints.is_empty(), "{complaints:?}");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.runtime.block_on(self.client.clone().close());
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

#[test]
fn login_address_opens_the_dashboard_once_and_leaves_no_code_behind() {
    let site = Site::new();
    let login = site.login_address();
    let mut browser = Browser::anonymous(&site);
    browser.go("/ui/tasks");
    browser.see("h1", "ringfence");
    browser.see("main", "ringfence open");
    browser.picture("login");
    browser.log_in(&login);
    assert_eq!(browser.evaluate("return location.pathname + location.search"), "/ui");
    assert_eq!(browser.evaluate("return document.cookie"), "", "no script reads the session");
    browser.picture("logged-in");
    // A link on another site leads to the page, though the browser does not send the session with it at first.
    let link = format!("data:text/html,<a href='http://{}/ui/tasks'>tasks</a>", login.host);
    browser.run(browser.client.goto(&link));
    browser.click("a");
    browser.see("h1", "Tasks");
    browser.close();
    let mut other = Browser::anonymous(&site);
    other.host.clone_from(&login.host);
    other.go(&login.path);
    other.see("main", "was used");
    other.picture("login-used");
}

/// A program that serves pages at a port of this machine, and the heads of the requests that it gets.
struct ForeignServer {
    port: u16,
    heads: Arc<Mutex<Vec<String>>>,
}

impl ForeignServer {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let heads = Arc::new(Mutex::new(Vec::new()));
        let received = Arc::clone(&heads);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut head = [0; 16 << 10];
                let length = stream.read(&mut head).unwrap_or(0);
                received.lock().unwrap().push(String::from_utf8_lossy(&head[..length]).into_owned());
                let page = "<title>foreign</title><h1>foreign page</h1>";
                let answer = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nset-cookie: mine=1\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{page}",
                    page.len()
                );
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        Self { port, heads }
    }

    fn heads(&self) -> String {
        self.heads.lock().unwrap().join("\n")
    }
}

#[test]
fn session_is_not_sent_to_another_port_of_this_machine() {
    let site = Site::new();
    let login = site.login_address();
    let mut browser = Browser::anonymous(&site);
    browser.log_in(&login);
    let foreign = ForeignServer::start();
    for name in ["127.0.0.1", "localhost", "other.localhost"] {
        let address = format!("http://{name}:{}/", foreign.port);
        // Typed, and from a page of the dashboard.
        for script in [None, Some(format!("location.href = '{address}'"))] {
            browser.go("/ui");
            match script {
                None => browser.run(browser.client.goto(&address)),
                Some(script) => drop(browser.evaluate(&script)),
            }
            browser.see("h1", "foreign page");
        }
        // Once more, now that the browser knows the foreign page.
        browser.run(browser.client.goto(&address));
        browser.see("h1", "foreign page");
    }
    let heads = foreign.heads();
    assert!(heads.contains("mine=1"), "cookies of the page itself are sent: {heads}");
    assert!(!heads.contains("ringfence"), "{heads}");
    let label = login.host.split('.').next().unwrap();
    assert!(!heads.contains(label), "the name of the dashboard stays its own: {heads}");
    // The session is still there, and its cookie is worth nothing under another name.
    browser.go("/ui/tasks");
    browser.see("h1", "Tasks");
    let cookies = browser.run(browser.client.get_all_cookies());
    let session = cookies.iter().find(|cookie| cookie.name().starts_with("ringfence")).unwrap();
    assert_eq!(session.domain(), Some(login.host.split(':').next().unwrap()), "no dot: this host alone");
    let stolen = format!("{}={}", session.name(), session.value());
    for host in [&site.address, &site.address.replace("127.0.0.1", "localhost")] {
        site.ask("GET", "/tasks", &[("host", host), ("cookie", &stolen)], "").expect(401);
    }
    site.ask("GET", "/tasks", &[("host", &login.host), ("cookie", &stolen)], "").expect(200);
    browser.close();
}

#[test]
fn token_on_the_login_page_of_the_plain_address_leads_to_the_dashboard() {
    let site = Site::new();
    let browser = Browser::anonymous(&site);
    browser.go("/");
    browser.write("input[name=key]", site.bearer().trim_start_matches("Bearer "));
    browser.click("button.primary");
    browser.see("h1", "Overview");
    let host = browser.evaluate("return location.hostname");
    assert!(host.as_str().unwrap().ends_with(".localhost"), "{host}");
    // Without a session there, the plain address asks again.
    browser.go("/ui");
    browser.see("main", "ringfence open");
    browser.close();
}

/// Somebody else may have asked for it: all who look see it.
#[test]
fn long_work_shows_how_far_it_has_come() {
    let site = Site::new();
    let browser = Browser::new(&site);
    browser.go("/ui/compare");
    browser.see(".live", "live");
    let seen = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A busy browser may look away for as long as one takes.
        let asked = scope.spawn(|| {
            let end = Instant::now() + Duration::from_secs(60);
            loop {
                let answer = site.ask("POST", "/system/probe?mode=host", &[], "");
                if answer.status != 200 || seen.load(Ordering::Relaxed) || Instant::now() > end {
                    return answer;
                }
            }
        });
        browser.see("[data-work=probe]", " of ");
        seen.store(true, Ordering::Relaxed);
        let work = site.get("/system/work").json();
        let probe = &work["work"].as_array().unwrap().first();
        // It may be over by now; if not, it says the same.
        assert!(
            probe.is_none_or(|probe| probe["name"] == "probe" && probe["of"].as_u64() > Some(60)),
            "{work}"
        );
        assert_eq!(asked.join().unwrap().status, 200);
    });
    wait_for("the end of it", || browser.text("[data-work=probe]").is_empty().then_some(()));
    assert_eq!(site.get("/system/work").json()["work"], json!([]));
    // What is measured on the page itself leads back to it.
    browser.click("form[action='/ui/compare/measure'] button");
    browser.see(".said", "modes were measured");
    browser.see(".bars", "native");
    browser.close();
}

#[test]
fn the_environment_is_switched_and_a_worker_started_in_both() {
    let site = Site::new();
    let browser = Browser::new(&site);
    browser.go("/ui/system");
    browser.see("main", "mode native");
    // Skipped, with the reason.
    browser.write("input[name=name]", "worker-1");
    browser.click("form[action='/ui/system/start'] button");
    browser.see(".said", "sandbox of its own");
    browser.choose("#environment", "host");
    browser.click("form[action='/ui/system/environment'] button");
    browser.see(".said", "Execution_Environment is host");
    assert_eq!(site.get("/config").json()["config"]["EXECUTION_ENVIRONMENT"], "host");
    browser.write("input[name=name]", "worker-1");
    browser.click("form[action='/ui/system/start'] button");
    browser.see(".said", "worker-1 was started");
    browser.see("#processes", "worker-1");
    browser.picture("system");
    browser.click("form[action='/ui/system/processes/worker-1/stop'] button");
    browser.see(".said", "worker-1 is stopped");
    browser.close();
}

#[test]
fn a_task_is_added_and_its_log_watched_as_it_grows() {
    let site = Site::new();
    let browser = Browser::new(&site);
    browser.go("/ui/tasks#add");
    browser.write("textarea[name=prompt]", "count slowly <b>& loud</b>");
    browser.write("input[name=directory]", &site.place.work().display().to_string());
    browser.write(
        "input[name=command]",
        "sh -c 'for i in $(seq 1 40); do echo \"line $i <script>alert(1)</script>\"; while [ $i = 20 ] && ! [ -e go ]; do sleep 0.1; done; done'",
    );
    browser.picture("add");
    browser.click("#add button.primary");
    browser.see(".said", "was added");
    // The page comes to know of it by itself.
    browser.see("#task", "running");
    browser.picture("task");
    browser.go("/ui");
    browser.see("#running", "count slowly <b>& loud</b>");
    browser.picture("overview");
    browser.click("#running a");
    browser.see("#log", "line 1");
    browser.see("#log", "line 20");
    assert!(!browser.text("#log").contains("line 21"), "it is not over yet");
    fs::write(site.place.work().join("go"), "").unwrap();
    browser.see("#log", "line 40 <script>alert(1)</script>");
    browser.see("#run", "success");
    let lines = browser.evaluate(
        "return [...document.querySelectorAll('#log .stdout pre')].map(p => p.textContent).join('\\n')",
    );
    let expected: Vec<String> =
        (1..=40).map(|number| format!("line {number} <script>alert(1)</script>")).collect();
    assert_eq!(lines.as_str().unwrap().lines().collect::<Vec<_>>(), expected, "each line once, in order");
    browser.picture("run");
    browser.close();
}

#[test]
fn a_dead_letter_is_seen_and_retried() {
    let site = Site::new();
    let spec = json!({ "prompt": "what cannot work", "agent": "command", "command": "sh -c 'test -e mended || { echo it is not mended >&2; exit 3; }'", "directory": site.place.work(), "max_attempts": 1 });
    let id = site.post("/tasks", &spec).expect(201).json()["task"]["id"].as_str().unwrap().to_owned();
    site.wait(&id);
    let browser = Browser::new(&site);
    browser.go("/ui/dead-letters");
    browser.see("#letters", "it is not mended");
    browser.picture("dead-letters");
    fs::write(site.place.work().join("mended"), "").unwrap();
    browser.click(&format!("form[action='/ui/dead-letters/{id}/retry'] button"));
    browser.see(".said", "in the queue again");
    assert_eq!(site.wait(&id)["task"]["state"], "done");
    browser.see("#letters", "None");
    browser.close();
}

#[test]
fn a_login_that_is_missing_is_shown_with_its_remedy() {
    let site = Site::of(Place::with_agent_clis().settings(crate::site::SETTINGS));
    let browser = Browser::new(&site);
    browser.go("/ui/system");
    // The page is there at once, and the answer comes when it is known.
    browser.see("h1", "System");
    browser.see("#login-claude", "claude has no login in mode native");
    browser.see("#login-claude .remedy", "claude /login");
    browser.see("#doctor", "native");
    browser.picture("logins");
    browser.close();
}

#[test]
fn every_page_is_complete_with_ten_thousand_tasks_on_small_and_large_screens() {
    let site = Site::of(Place::new().settings(&crate::site::SETTINGS.replace(
        "\"queue\": {",
        "\"agents\": {\"me\": {\"cli\": \"demo\", \"name\": \"Mine\"}}, \"queue\": {\"dispatcher\": false, ",
    )));
    let tasks: Vec<Value> = (0..10_000).map(|number| json!({ "prompt": format!("task number {number}"), "agent": "demo", "directory": site.place.work() })).collect();
    for part in tasks.chunks(2500) {
        site.post("/tasks/batch", &json!({ "tasks": part })).expect(201);
    }
    site.place.run(&["demo"]);
    let run = site.get("/runs").json()["runs"][0]["run"].as_str().unwrap().to_owned();
    let browser = Browser::new(&site);
    let pages = [
        ("overview-full", "/ui".to_owned(), "Overview"),
        ("tasks", "/ui/tasks".to_owned(), "Tasks"),
        ("tasks-filtered", "/ui/tasks?status=queued&role=worker".to_owned(), "Tasks"),
        ("task-full", "/ui/tasks/9999".to_owned(), "Task 9999"),
        ("runs", "/ui/runs".to_owned(), "Runs"),
        ("run-full", format!("/ui/runs/{run}"), "Run "),
        ("agents", "/ui/agents".to_owned(), "Agents"),
        ("dead-letters-none", "/ui/dead-letters".to_owned(), "Dead letters"),
        ("settings", "/ui/system/settings".to_owned(), "Settings"),
        ("compare", "/ui/compare".to_owned(), "Compare"),
    ];
    for (width, height) in [(360, 740), (1280, 900), (3840, 2160)] {
        browser.size(width, height);
        for (name, path, title) in &pages {
            browser.go(path);
            browser.see("h1", title);
            // Nothing is wider than the screen; what is wide scrolls by itself.
            let wide = browser.evaluate(
                "return document.documentElement.scrollWidth - document.documentElement.clientWidth",
            );
            assert_eq!(wide, 0, "{path} at {width}");
            browser.picture(&format!("{name}-{width}"));
        }
    }
    browser.go("/ui/tasks");
    let rows = browser.evaluate("return document.querySelectorAll('#tasks tbody tr').length");
    assert_eq!(rows, 50);
    browser.click("a[rel=next]");
    browser.see("#tasks", "task number 9949");
    // By the keyboard alone: the first stop leads past the menu.
    let first = browser.run(async {
        browser.client.find(Locator::Css("body")).await?.send_keys("\u{e004}").await?;
        browser.client.active_element().await?.text().await
    });
    assert_eq!(first, "To the content");
    browser.close();
}

#[test]
fn pages_can_be_read_and_forms_used_without_a_script() {
    let site = Site::new();
    let browser = Browser::new(&site);
    let wish = json!({ "cmd": "Emulation.setScriptExecutionDisabled", "params": { "value": true } });
    let path = format!("/session/{}/goog/cdp/execute", browser.session);
    ask(&browser.address, "POST", &path, &[("content-type", "application/json")], &wish.to_string())
        .expect(200);
    browser.go("/ui/tasks");
    browser.click("#add summary");
    browser.write("textarea[name=prompt]", "without a script");
    browser.write("input[name=agent]", "demo");
    browser.write("input[name=directory]", &site.place.work().display().to_string());
    browser.click("#add button.primary");
    browser.see(".said", "was added");
    site.wait("1");
    let run = site.get("/runs").json()["runs"][0]["run"].as_str().unwrap().to_owned();
    browser.go(&format!("/ui/runs/{run}"));
    browser.see("#log", "primes.sh");
    browser.go("/ui/system/logins");
    browser.see("#login-claude", "claude");
    browser.close();
}

/// The walk that the README describes: all but the installing, which a test of the binary has behind it.
#[test]
fn a_new_user_walks_from_the_readme_to_a_finished_task_in_the_browser() {
    let place = crate::guide::place();
    let commands = crate::guide::commands("README.md");
    let steps: Vec<&str> = commands.lines().filter(|line| !line.starts_with("cargo ")).collect();
    assert!(steps.len() >= 3, "{steps:?}");
    // The agent works where one stands, which is no place to be careless about.
    let walk = place.home().join("walk.sh");
    std::fs::write(&walk, format!("set -e\n{}\n", steps.join("\n"))).unwrap();
    // At a terminal, where alone `status` prints an address that logs in.
    let ran = place.shell(&format!("script -qec 'sh {}' /dev/null", walk.display())).expect_code(0);
    let printed = ran.stdout.split("dashboard: http://").nth(1).unwrap().lines().next().unwrap();
    let (address, path) = printed.split_once('/').unwrap();
    let site = Site { place, address: address.to_owned() };
    let browser = Browser::anonymous(&site);
    // Nothing but opening the address that was printed.
    browser.go(&format!("/{path}"));
    browser.see("#tiles", "done");
    browser.click("a[href='/ui/tasks?status=done']");
    browser.see("#tasks", "Show what you can do");
    browser.click("#tasks tbody a");
    browser.see("#task", "done");
    browser.click("#runs a");
    browser.see("#log", "primes.sh");
    browser.see("main", "secrets are unreadable");
    browser.picture("walk");
    browser.close();
}
