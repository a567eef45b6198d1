//! Who may do what: every route, with every kind of credential, from everywhere.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::site::{Answer, LoginAddress, SETTINGS, Site, ask};
use crate::support::Place;

/// What a route is, as the documents and the guide say it: whoever changes one changes this.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Open,
    Ours,
    Control,
}

fn kind(method: &str, path: &str) -> Kind {
    match path {
        "/" | "/health" | "/health/ready" | "/openapi.json" | "/ui/login" | "/assets/style.css" => Kind::Open,
        "/config" if method == "PATCH" => Kind::Control,
        path if path.starts_with("/system")
            || path.starts_with("/ui/system")
            || path.starts_with("/ui/compare") =>
        {
            Kind::Control
        }
        _ => Kind::Ours,
    }
}

/// Every route of the document, and the pages.
fn routes() -> Vec<(String, String)> {
    let document: Value = serde_json::from_str(include_str!("../../schemas/openapi.json")).unwrap();
    let paths = document["paths"].as_object().unwrap();
    let api = paths.iter().flat_map(|(path, item)| {
        let methods = item
            .as_object()
            .unwrap()
            .keys()
            .filter(|name| ["get", "post", "patch", "delete"].contains(&name.as_str()));
        let path = path
            .replace("{id}", "999")
            .replace("{run}", "nobody")
            .replace("{name}", "nonsense")
            .replace("{number}", "0")
            .replace("{cli}", "vim");
        methods.map(move |method| (method.to_uppercase(), path.clone())).collect::<Vec<_>>()
    });
    let pages = [
        "/",
        "/ui",
        "/ui/tasks",
        "/ui/runs",
        "/ui/agents",
        "/ui/dead-letters",
        "/ui/compare",
        "/ui/system",
        "/ui/system/settings",
        "/ui/login",
        "/assets/style.css",
        "/openapi.json",
    ];
    let forms = [
        "/ui/tasks",
        "/ui/tasks/999/cancel",
        "/ui/dead-letters/999/retry",
        "/ui/system/environment",
        "/ui/system/start",
        "/ui/system/stop-all",
        "/ui/system/settings",
        "/ui/compare/measure",
        "/ui/logout",
    ];
    let pages = pages.into_iter().map(|path| ("GET".to_owned(), path.to_owned()));
    let forms = forms.into_iter().map(|path| ("POST".to_owned(), path.to_owned()));
    api.chain(pages).chain(forms).collect()
}

/// From where a request comes.
const PLACES: [&str; 4] = ["loopback", "forged host", "foreign origin", "other address"];
const SLOW: [&str; 4] = ["/system/doctor", "/system/modes", "/system/probe", "/ui/compare"];
const CREDENTIALS: [&str; 7] = ["none", "wrong", "key", "bearer", "owner", "session", "stolen cookie"];

/// What the environment of the daemon says.
#[derive(Debug, Clone, Copy)]
struct Case {
    keys: bool,
    /// `OPENTIGER_ALLOW_INSECURE_SYSTEM_CONTROL`.
    switch: Option<&'static str>,
}

impl Case {
    /// The rule, said once more: 401 and 403 where a request is turned away, nothing where it is let in.
    fn turned_away(self, kind: Kind, method: &str, credentials: &str, place: &str) -> Option<u16> {
        let local = !self.keys && self.switch.is_some_and(|word| word != "false");
        match (kind, credentials, place) {
            (Kind::Open, _, _) => None,
            (_, "wrong", _) => Some(401),
            (_, "key" | "bearer", _) if !self.keys => Some(401),
            // A proxy may have added it for a page of another site.
            (_, "owner" | "key" | "bearer", "foreign origin") => (method != "GET").then_some(403),
            (_, "owner" | "key" | "bearer", _) => None,
            // The cookie of a name without a port is another one, and so none.
            // The other address is one of this machine, and the connection the owner's.
            (_, "session", "loopback" | "other address") => None,
            (_, "session", "foreign origin") => Some(403),
            (_, _, "loopback") => (!local).then_some(401),
            _ => Some(if local { 403 } else { 401 }),
        }
    }
}

fn check(case: Case) {
    let mut place = Place::new().settings(SETTINGS);
    if case.keys {
        place = place.env("API_KEYS", "one,the-key").env("API_SECRET", "the-token");
    }
    if let Some(word) = case.switch {
        place = place.env("OPENTIGER_ALLOW_INSECURE_SYSTEM_CONTROL", word);
    }
    // Without a key the daemon listens on loopback alone.
    let mut site = Site::listening(place, if case.keys { "0.0.0.0:0" } else { "127.0.0.1:0" });
    let port = site.address.rsplit(':').next().unwrap().to_owned();
    let local = format!("127.0.0.1:{port}");
    site.address.clone_from(&local);
    let (owner, session) = (site.bearer(), site.log_in());
    let origin = format!("http://{}", session.host);
    let (mut seen, mut wrong, mut let_in) = (0, Vec::new(), BTreeSet::new());
    for (method, path) in routes() {
        for from in PLACES {
            if from == "other address" && !case.keys {
                continue;
            }
            let address = if from == "other address" { format!("192.0.2.1:{port}") } else { local.clone() };
            for credentials in CREDENTIALS {
                let mut expected = case.turned_away(kind(&method, &path), &method, credentials, from);
                // What takes long is let in once.
                if expected.is_none() && SLOW.contains(&path.as_str()) && !let_in.insert(path.clone()) {
                    continue;
                }
                // Only the Unix socket replaces the token.
                if path == "/system/token/rotate" {
                    expected = expected.or(Some(403));
                }
                let mut headers = vec![("content-type", "application/x-nothing")];
                match from {
                    "forged host" => headers.push(("host", "evil.example")),
                    "foreign origin" => headers.push(("origin", "http://evil.example")),
                    _ => {}
                }
                if credentials == "session" && from != "forged host" {
                    headers.push(("host", &session.host));
                }
                if credentials == "session" && from != "foreign origin" {
                    headers.push(("origin", &origin));
                }
                match credentials {
                    "wrong" => headers.push(("x-api-key", "wrong")),
                    "key" => headers.push(("x-api-key", "the-key")),
                    "bearer" => headers.push(("authorization", "Bearer the-token")),
                    "owner" => headers.push(("authorization", &owner)),
                    "session" | "stolen cookie" => headers.push(("cookie", &session.cookie)),
                    _ => {}
                }
                let answer = ask(&address, &method, &path, &headers, "");
                let asks_to_log_in = answer.status == 303 && answer.header("location") == Some("/ui/login");
                // A form without its token is turned away for that, once it was let in.
                let foreign_form = answer.body.contains("not one of this page");
                let got = match answer.status {
                    _ if asks_to_log_in && path != "/ui/logout" => Some(401),
                    403 if foreign_form => None,
                    status @ (401 | 403) => Some(status),
                    _ => None,
                };
                seen += 1;
                if got != expected {
                    wrong.push(format!(
                        "{method} {path} {from} {credentials} {case:?}: {} instead of {expected:?}",
                        answer.status
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {seen}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(seen > 600, "{seen}");
}

/// The test again, as a process in a network of its own, where an address that is not loopback can be had.
const ALONE: &str = "RINGFENCE_TEST_ALONE";

#[test]
fn every_route_with_every_credential_from_everywhere_with_keys() {
    if std::env::var_os(ALONE).is_some() {
        check(Case { keys: true, switch: None });
        check(Case { keys: true, switch: Some("true") });
        return;
    }
    let name = "access::every_route_with_every_credential_from_everywhere_with_keys";
    let script = "ip link set lo up && ip addr add 192.0.2.1/32 dev lo && exec \"$@\"";
    let alone = Command::new("unshare")
        .args(["--map-root-user", "--net", "sh", "-c", script, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&alone.stdout).into_owned() + &String::from_utf8_lossy(&alone.stderr);
    assert!(alone.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn every_route_with_every_credential_from_everywhere_without_keys() {
    check(Case { keys: false, switch: None });
    check(Case { keys: false, switch: Some("false") });
    check(Case { keys: false, switch: Some("true") });
}

/// The token of a page's forms.
fn form_token(page: &str) -> String {
    page.split("name=\"token\" value=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
}

/// Enters a key at a login page under a host, and returns the answer.
fn enter_key(site: &Site, host: &str, key: &str, more: &[(&str, &str)]) -> Answer {
    let named = [&[("host", host)], more].concat();
    let page = ask(&site.address, "GET", "/ui/login", &named, "").expect(200);
    let cookie = page.header("set-cookie").unwrap().to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    assert!(!cookie.to_ascii_lowercase().contains("domain"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap();
    let form = [("content-type", "application/x-www-form-urlencoded"), ("cookie", cookie)];
    let headers = [&named[..], &form].concat();
    let post = |body: &str| ask(&site.address, "POST", "/ui/login", &headers, body);
    post(&format!("token=00&key={key}")).expect(403);
    let entered = post(&format!("token={}&key={key}", form_token(&page.body)));
    let set = entered.header("set-cookie").unwrap_or_default();
    assert!(!set.contains(cookie), "a name from before is worth nothing");
    entered
}

#[test]
fn key_opens_a_session_under_a_name_that_no_other_program_serves() {
    let site = Site::of(Place::new().settings(SETTINGS).env("API_SECRET", "the-token"));
    let first = site.get_anonymously("/ui").expect(303);
    assert_eq!(first.header("location"), Some("/ui/login"));
    let port = site.address.rsplit(':').next().unwrap();
    for name in ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "old.localhost", "box", "box.example"] {
        let host = format!("{name}:{port}");
        let wrong = enter_key(&site, &host, "nonsense", &[]);
        assert_eq!(wrong.header("location"), Some("/ui/login"), "{name}");
        let entered = enter_key(&site, &host, "the-token", &[]).expect(200);
        assert_eq!(entered.header("set-cookie"), None, "{name}: no session under a shared name");
        let address = entered.body.split("href=\"http://").nth(1).unwrap().split('"').next().unwrap();
        let (own, path) = address.split_once('/').unwrap();
        assert!(own.ends_with(&format!(".localhost:{port}")) && own != host, "{own}");
        let login = LoginAddress { host: own.to_owned(), path: format!("/{path}") };
        assert!(site.open(&login).expect(303).header("set-cookie").is_some(), "{name}");
    }
    // The name of a proxy keeps its session.
    let forwarded = [("x-forwarded-for", "198.51.100.7")];
    let proxied = enter_key(&site, "ringfence.example", "the-token", &forwarded).expect(303);
    let cookie = proxied.header("set-cookie").unwrap().split(';').next().unwrap();
    site.ask("GET", "/tasks", &[("host", "ringfence.example"), ("cookie", cookie)], "").expect(200);
    site.ask("GET", "/tasks", &[("host", "other.example"), ("cookie", cookie)], "").expect(401);
}

#[test]
fn forms_of_a_session_are_its_own() {
    let site = Site::new();
    let session = site.log_in();
    let form = |path: &str, body: &str| site.ask("POST", path, &session.form_headers(), body);
    let page = |path: &str| site.ask("GET", path, &session.headers(), "");
    let token = form_token(&page("/ui/tasks").expect(200).body);
    // A word about what was done is for who sees the whole page.
    form("/ui/system/start", &format!("token={token}&name=worker-0")).expect(303);
    let partly = [&session.headers()[..], &[("x-ringfence-live", "1")]].concat();
    let part = site.ask("GET", "/ui/system", &partly, "").expect(200);
    assert!(!part.body.contains("Process not found"), "{}", part.body);
    let whole = page("/ui/system").expect(200);
    assert!(whole.body.contains("Process not found"), "{}", whole.body);
    let add = |token: &str| {
        let directory = site.place.work();
        let directory = directory.display();
        format!(
            "token={token}&prompt=x&agent=demo&directory={directory}&mode=&role=worker&priority=0&command="
        )
    };
    let others = form_token(&site.ask("GET", "/ui/tasks", &site.log_in().headers(), "").body);
    form("/ui/tasks", &add(&others)).expect(403);
    // Nor for a page from elsewhere, nor for one that does not say where it is from.
    for origin in [&[][..], &[("origin", "http://evil.example")], &[("origin", "null")]] {
        let kind = ("content-type", "application/x-www-form-urlencoded");
        let headers = [&session.headers()[..], &[kind], origin].concat();
        site.ask("POST", "/ui/tasks", &headers, &add(&token)).expect(403);
    }
    assert_eq!(form("/ui/tasks", &add(&token)).header("location"), Some("/ui/tasks/1"));
    form("/ui/logout", &format!("token={token}")).expect(303);
    page("/ui").expect(303);
}
