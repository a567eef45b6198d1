//! The dashboard: what an agent or a task says is shown as text, wherever it is shown.

use serde_json::json;

use crate::site::Site;

/// Markup that would run a script, in each place that quotes differently.
const MARKUP: &str = "\"'><img src=x onerror=alert(1)><script>alert(2)</script>{{7*7}}";

#[test]
fn markup_of_agents_is_text() {
    let site = Site::new();
    let name = "<b>name";
    std::fs::create_dir(site.place.work().join(name)).unwrap();
    let script =
        "printf '%s\\n' '<script>alert(3)</script>'; printf '%s\\n' '<svg onload=alert(4)>' >&2; exit 3";
    let task = json!({
        "prompt": MARKUP, "agent": "command", "command": format!("sh -c \"{script}\""),
        "directory": site.place.work().join(name), "max_attempts": 1,
    });
    let answer = site.post("/tasks", &task);
    let added = answer.expect(201).json();
    let id = added["task"]["id"].as_str().unwrap().to_owned();
    let task = site.wait(&id);
    let run = task["runs"][0]["run"].as_str().unwrap_or_else(|| panic!("{task}")).to_owned();
    for path in [
        "/ui".to_owned(),
        "/ui/tasks".to_owned(),
        format!("/ui/tasks/{id}"),
        "/ui/runs".to_owned(),
        format!("/ui/runs/{run}"),
        "/ui/dead-letters".to_owned(),
        "/ui/agents".to_owned(),
        "/ui/system".to_owned(),
    ] {
        let page = site.get(&path).expect(200);
        for tag in ["<img src=x", "<script>alert", "<svg onload", "<b>name"] {
            assert!(!page.body.contains(tag), "{path} has {tag}");
        }
        let rules = page.header("content-security-policy").unwrap_or_else(|| panic!("{path} has no rules"));
        assert!(
            rules.contains("default-src")
                && !rules.contains("unsafe-inline")
                && !rules.contains("unsafe-eval"),
            "{rules}"
        );
        assert_eq!(page.header("x-content-type-options"), Some("nosniff"), "{path}");
    }
    // What is text for programs is not taken for a page.
    for path in [format!("/runs/{run}/log"), format!("/tasks/{id}"), "/tasks".to_owned()] {
        let answer = site.get(&path).expect(200);
        assert!(!answer.header("content-type").unwrap().contains("html"), "{path}");
    }
}

/// What hides or steers text in names and contents is escaped in diffs of the API and of the page, and different names differ.
#[test]
fn diffs_of_runs_show_what_is_invisible() {
    let site = Site::new();
    let script = r#"
import os
for name in [b'a\xff', b'a\xfe', 'b\u202egnp.exe'.encode(), b'n\nl']:
    open(name, 'w').write('x\n')
open('text', 'w').write('safe\u202e\u200b evil\x1b[2J\n')
open('long', 'w').write('x' * (2 << 20))
open('binary', 'wb').write(bytes(range(256)))
os.symlink('target\u202e', 'link')
"#;
    std::fs::write(site.place.home().join("make.py"), script).unwrap();
    let read = site.place.home().join("make.py").display().to_string();
    let args = [
        "exec",
        "--mode",
        "native",
        "--workspace",
        "overlay",
        "--read",
        &read,
        "--",
        "/usr/bin/python3",
        &read,
    ];
    site.place.run(&args).expect_code(0);
    let runs = site.place.run(&["runs", "list", "--json"]).json();
    let run = runs[0]["run"].as_str().unwrap().to_owned();
    let answer = site.get(&format!("/runs/{run}/diff")).expect(200);
    let changes = answer.json()["changes"].as_array().unwrap().clone();
    let paths: Vec<&str> = changes.iter().map(|change| change["path"].as_str().unwrap()).collect();
    let expected = ["a\\xfe", "a\\xff", "binary", "b\\u{202e}gnp.exe", "link", "long", "n\\u{a}l", "text"];
    assert_eq!(paths, expected);
    let of = |path: &str| changes.iter().find(|change| change["path"] == path).unwrap();
    assert!(
        of("text")["diff"].as_str().unwrap().contains("+safe\\u{202e}\\u{200b} evil\\u{1b}[2J"),
        "{changes:?}"
    );
    assert_eq!(of("long")["omitted"], "it is too long to show");
    assert_eq!(of("binary")["omitted"], "it is no text");
    let page = site.get(&format!("/ui/runs/{run}")).expect(200).body;
    let hidden = ['\u{202e}', '\u{200b}', '\u{1b}'];
    assert!(!page.contains(hidden) && !answer.body.contains(hidden));
    assert!(page.contains("<bdi>a\\xfe</bdi>") && page.contains("Not shown: it is too long to show."));
}
