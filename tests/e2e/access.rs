//! Who may do what: every route, with every kind of credential, from everywhere.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::site::{SETTINGS, Site, ask};
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
const CREDENTIALS: [&str; 6] = ["none", "wrong", "key", "bearer", "owner", "session"];

/// What the environment of the daemon says.
#[derive(Debug, Clone, Copy)]
struct Case {
    keys: bool,
    /// `OPENTIGER_ALLOW_INSECURE_SYSTEM_CONTROL`.
    switch: Option<&'static str>,
}

impl Case {
    /// The rule, said once more: 401 and 403 where a request is turned away, nothing where it is let in.
    fn turned_away(self, kind: Kind, credentials: &str, place: &str) -> Option<u16> {
        let local = !self.keys && self.switch.is_some_and(|word| word != "false");
        match (kind, credentials, place) {
            (Kind::Open, _, _) => None,
            (_, "wrong", _) => Some(401),
            (_, "owner", _) => None,
            (_, "key" | "bearer", _) => (!self.keys).then_some(401),
            // The cookie of a name without a port is another one, and so none.
            (_, "session", "loopback") => None,
            // It was opened by the owner on this machine, so nobody else may use it.
            (_, "session", "other address") => Some(403),
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
    let (mut seen, mut wrong, mut let_in) = (0, Vec::new(), BTreeSet::new());
    for (method, path) in routes() {
        for from in PLACES {
            if from == "other address" && !case.keys {
                continue;
            }
            let address = if from == "other address" { format!("192.0.2.1:{port}") } else { local.clone() };
            for credentials in CREDENTIALS {
                let mut expected = case.turned_away(kind(&method, &path), credentials, from);
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
                match credentials {
                    "wrong" => headers.push(("x-api-key", "wrong")),
                    "key" => headers.push(("x-api-key", "the-key")),
                    "bearer" => headers.push(("authorization", "Bearer the-token")),
                    "owner" => headers.push(("authorization", &owner)),
                    "session" => headers.push(("cookie", &session)),
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

#[test]
fn a_browser_logs_in_once_and_its_forms_are_its_own() {
    let site = Site::of(Place::new().settings(SETTINGS).env("API_SECRET", "the-token"));
    let first = site.get_anonymously("/ui").expect(303);
    assert_eq!(first.header("location"), Some("/ui/login"));
    let page = site.get_anonymously("/ui/login").expect(200);
    let cookie = page.header("set-cookie").unwrap().to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let token = |page: &str| {
        page.split("name=\"token\" value=\"").nth(1).unwrap().split('"').next().unwrap().to_owned()
    };
    let form = |path: &str, cookie: &str, body: &str| {
        site.ask(
            "POST",
            path,
            &[("content-type", "application/x-www-form-urlencoded"), ("cookie", cookie)],
            body,
        )
    };
    let mine = token(&page.body);
    assert_eq!(
        form("/ui/login", &cookie, &format!("token={mine}&key=nonsense")).header("location"),
        Some("/ui/login")
    );
    form("/ui/login", &cookie, "token=00&key=the-token").expect(403);
    let entered = form("/ui/login", &cookie, &format!("token={mine}&key=the-token")).expect(303);
    let session = entered.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    assert_ne!(session, cookie, "a name from before is worth nothing");
    site.ask("GET", "/ui", &[("cookie", &cookie)], "").expect(303);
    let inside = site.ask("GET", "/ui/tasks", &[("cookie", &session)], "").expect(200);
    // A word about what was done is for who sees the whole page.
    let unknown = format!("token={}&name=worker-0", token(&inside.body));
    form("/ui/system/start", &session, &unknown).expect(303);
    let part =
        site.ask("GET", "/ui/system", &[("cookie", &session), ("x-ringfence-live", "1")], "").expect(200);
    assert!(!part.body.contains("Process not found"), "{}", part.body);
    let whole = site.ask("GET", "/ui/system", &[("cookie", &session)], "").expect(200);
    assert!(whole.body.contains("Process not found"), "{}", whole.body);
    // Only with the token of this very browser, and not for a page from elsewhere.
    let add = |token: &str| {
        format!(
            "token={token}&prompt=x&agent=demo&directory={}&mode=&role=worker&priority=0&command=",
            site.place.work().display()
        )
    };
    form("/ui/tasks", &session, &add(&mine)).expect(403);
    let foreign = [
        ("content-type", "application/x-www-form-urlencoded"),
        ("cookie", &session),
        ("origin", "http://evil.example"),
    ];
    site.ask("POST", "/ui/tasks", &foreign, &add(&token(&inside.body))).expect(403);
    assert_eq!(
        form("/ui/tasks", &session, &add(&token(&inside.body))).header("location"),
        Some("/ui/tasks/1")
    );
    form("/ui/logout", &session, &format!("token={}", token(&inside.body))).expect(303);
    site.ask("GET", "/ui", &[("cookie", &session)], "").expect(303);
}
