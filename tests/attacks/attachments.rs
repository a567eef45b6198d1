//! A run has files attached to its reply that it must not read itself.

use std::fs;

use serde_json::Value;

use crate::support::Place;

/// The result of an agent that runs a script and ends with a reply.
fn reply(place: &Place, script: &str, more: &[&str]) -> Value {
    let command = format!("sh -c '{script}'");
    let words = ["run", "--mode", "native", "--agent", "command", "--json", "--command", &command];
    place.run(&[&words, more].concat()).expect_code(0).result()
}

fn assert_refused(result: &Value, name: &str) {
    assert_eq!(result["attachments"].as_array().map_or(0, Vec::len), 0, "{result}");
    let text = result["text"].as_str().unwrap();
    assert!(text.contains(&format!("- {name}: the run may not read it")), "{text}");
}

#[test]
fn a_hard_link_of_a_masked_file_is_not_attached() {
    let place = Place::new();
    fs::write(place.work().join(".env"), "TOKEN=secret\n").unwrap();
    fs::hard_link(place.work().join(".env"), place.work().join("plain.txt")).unwrap();
    fs::write(place.work().join("open.txt"), "open\n").unwrap();
    assert_refused(&reply(&place, "echo [send_file: plain.txt]", &[]), "plain.txt");
    let open = reply(&place, "echo [send_file: open.txt]", &[]);
    assert_eq!(open["attachments"][0]["path"], "open.txt", "{open}");
}

#[test]
fn a_renamed_directory_of_denied_files_is_not_attached() {
    let place = Place::new();
    fs::create_dir_all(place.work().join("secrets/inner")).unwrap();
    for file in ["secrets/key", "secrets/inner/key"] {
        fs::write(place.work().join(file), "secret\n").unwrap();
    }
    let policy = place.home().join("policy.json");
    fs::write(&policy, r#"{"extends": "standard", "files": {"deny": ["secrets/**"]}}"#).unwrap();
    let policy = policy.display().to_string();
    let script = "mv secrets pub; echo [send_file: pub/key] [send_file: pub/inner/key]";
    let result = reply(&place, script, &["--policy", &policy]);
    ["pub/key", "pub/inner/key"].iter().for_each(|name| assert_refused(&result, name));
}

/// With an overlay the agent's own files are attached, and what it must not read is not.
#[test]
fn an_overlay_attaches_no_masked_file() {
    let place = Place::new();
    fs::write(place.work().join(".env"), "TOKEN=secret\n").unwrap();
    fs::hard_link(place.work().join(".env"), place.work().join("plain.txt")).unwrap();
    let overlay = ["--workspace", "overlay"];
    assert_refused(&reply(&place, "echo [send_file: plain.txt]", &overlay), "plain.txt");
    let made = reply(&place, "echo made > made.txt; echo [send_file: made.txt]", &overlay);
    assert_eq!(made["attachments"][0]["path"], "made.txt", "{made}");
}

/// Links that lead out, and files that are none: nothing is attached, each is named with a reason, and the run ends.
#[test]
fn links_and_special_files_are_not_attached() {
    let place = Place::new();
    fs::write(place.home().join("key.txt"), "secret\n").unwrap();
    let home = place.home().display().to_string();
    for (make, name) in [
        (format!("ln -s {home}/key.txt a"), "a"),
        ("ln -s ../home/key.txt a".into(), "a"),
        (format!("ln -s {home} a"), "a/key.txt"),
        ("ln -s / a".into(), "a/etc/passwd"),
        ("mkdir d; ln -s /etc d/a; ln -s d b".into(), "b/a/passwd"),
        ("ln -s a a".into(), "a"),
        ("ln -s /dev/zero a".into(), "a"),
        ("ln -s /proc/self/environ a".into(), "a"),
        ("mkfifo a".into(), "a"),
        ("ln -s f a; mkfifo f".into(), "a"),
        ("mkdir a".into(), "a"),
        ("truncate -s 1T a".into(), "a"),
        ("perl -MSocket -e \"socket(S,AF_UNIX,SOCK_STREAM,0);bind(S,sockaddr_un(q(a)))\"".into(), "a"),
        ("true".into(), "../home/key.txt"),
        ("true".into(), "/etc/passwd"),
        ("true".into(), "/dev/zero"),
        ("true".into(), "/proc/self/environ"),
        ("true".into(), "."),
    ] {
        let work = place.work();
        fs::remove_dir_all(&work).unwrap();
        fs::create_dir(&work).unwrap();
        let result = reply(&place, &format!("{make}; echo \"[send_file: {name}]\""), &[]);
        assert_eq!(result["attachments"].as_array().map_or(0, Vec::len), 0, "{make}: {result}");
        let text = result["text"].as_str().unwrap();
        assert!(text.contains(&format!("- {name}: ")) && !text.contains("secret"), "{make}: {text}");
    }
}

/// The agent chooses the names of the copies: none is one that a program of the user executes.
#[test]
fn a_copy_has_no_name_that_a_program_executes() {
    let place = Place::new();
    let out = place.work().join("out");
    fs::create_dir(&out).unwrap();
    let script = "mkdir d; echo gitdir: g > d/.git; echo x > d/.envrc; cp d/.envrc d/package.json; \
        echo [send_file: d/.git] [send_file: d/.envrc] [send_file: d/package.json]";
    let result = reply(&place, script, &["--attachments", out.to_str().unwrap()]);
    assert_eq!(result["attachments"].as_array().map_or(0, Vec::len), 3, "{result}");
    let mut names: Vec<_> =
        fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["attachment-envrc.txt", "attachment-git.txt", "attachment-package.json.txt"]);
}

#[test]
fn attachments_are_not_copied_to_the_home_or_a_secret() {
    let place = Place::new();
    let home = place.home();
    for directory in [home.clone(), home.parent().unwrap().to_owned(), home.join(".ssh"), home.join("p/.git")]
    {
        let directory = directory.to_str().unwrap();
        let words = ["run", "--mode", "native", "--agent", "command", "--command", "true"];
        let ran = place.run(&[&words[..], &["--attachments", directory]].concat()).expect_code(125);
        assert!(ran.stderr.contains("named for attachments"), "{directory}: {ran:?}");
    }
    assert!(!home.join(".ssh").exists() && !home.join("p").exists());
}

/// What lies among the copies is an agent's, so it governs no run.
#[test]
fn a_policy_among_attachments_is_refused() {
    let place = Place::new();
    let out = place.home().join("out");
    let script = r#"echo "{\"extends\": \"standard\"}" > p.json; echo "[send_file: p.json]""#;
    reply(&place, script, &["--attachments", out.to_str().unwrap()]);
    let policy = out.join("attachment-p.json");
    assert!(policy.exists());
    let ran = place.run(&["exec", "--policy", policy.to_str().unwrap(), "--", "true"]).expect_code(125);
    assert!(ran.stderr.contains("where runs can write"), "{ran:?}");
}

/// Too many denied files in one directory hide it as a whole, with what else is in it.
#[test]
fn a_file_in_a_directory_hidden_as_a_whole_is_not_attached() {
    let place = Place::new();
    fs::create_dir(place.work().join("d")).unwrap();
    // Enough that not each is covered by itself, wherever the threshold is.
    for number in 0..3000 {
        fs::write(place.work().join(format!("d/{number}.pem")), "secret\n").unwrap();
    }
    fs::write(place.work().join("d/x.txt"), "beside\n").unwrap();
    let result = reply(&place, "cat d/x.txt; echo [send_file: d/x.txt]", &[]);
    assert!(!result["text"].as_str().unwrap().contains("beside"), "the run reads it: {result}");
    assert_refused(&result, "d/x.txt");
}

/// Root in a sandbox has no privileges over the permissions of files, so what it names is opened without them.
#[test]
fn a_file_that_confined_root_cannot_open_is_not_attached() {
    let place = Place::new();
    let file = place.work().join("other.txt");
    fs::write(&file, "of another user\n").unwrap();
    fs::write(place.work().join("own.txt"), "own\n").unwrap();
    let given = std::process::Command::new("chown").arg("65533:65533").arg(&file).status().unwrap();
    if !given.success() {
        assert!(std::env::var_os("CI").is_none(), "a file of another user needs root");
        return;
    }
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let result = reply(&place, "cat other.txt; echo [send_file: other.txt]", &[]);
    assert!(!result["text"].as_str().unwrap().contains("of another user"), "the run reads it: {result}");
    assert_refused(&result, "other.txt");
    let own = reply(&place, "echo [send_file: own.txt]", &[]);
    assert_eq!(own["attachments"][0]["path"], "own.txt", "{own}");
}
