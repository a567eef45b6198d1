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
    let run = task["attempts"][0]["run"].as_str().unwrap_or_else(|| panic!("{task}")).to_owned();
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
