//! What happened can be shown.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::support::Place;

#[test]
fn the_record_is_there_before_the_run_is() {
    let place = Place::new();
    let state = place.state();
    let script = format!("cat {}/runs/*/record.json > seen.json", state.display());
    place.run(&["exec", "--mode", "host", "--", "sh", "-c", &script]).expect_code(0);
    let record: serde_json::Value = serde_json::from_str(&place.read("seen.json")).unwrap();
    assert_eq!(record["mode"], "host");
    assert_eq!(record["policy"], "open");
    assert_eq!(record["mechanisms"]["timeout"], "subreaper, signals to every descendant");
    assert!(record["notices"][0].as_str().unwrap().contains("no boundary"));
    assert!(record["versions"]["kernel"].is_string() && record["versions"]["ringfence"].is_string());
    assert_eq!(record["requested"], record["effective"]);
}

#[test]
fn nobody_else_can_read_it() {
    let place = Place::new();
    place.run(&["exec", "--mode", "host", "--", "true"]).expect_code(0);
    let run = fs::read_dir(place.state().join("runs")).unwrap().next().unwrap().unwrap().path();
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o077;
    assert_eq!(mode(&place.state().join("runs")), 0);
    for file in ["record.json", "log.jsonl", "result.json"] {
        assert_eq!(mode(&run.join(file)), 0, "{file}");
    }
    assert!(!run.join("tmp").exists(), "temporary files go with the run");
}

#[test]
fn secrets_are_in_no_file_that_is_kept() {
    let place = Place::new()
        .env("ANTHROPIC_API_KEY", "sk-ant-0123456789abcdef")
        .env("HTTPS_PROXY", "http://me:proxy-password@127.0.0.1:9");
    let script = "sh -c 'echo $ANTHROPIC_API_KEY; echo \"$PEM_KEY\"; echo $GIVEN_PASSWORD >&2; echo $HTTPS_PROXY; exit 1'";
    let pem = "PEM_KEY=-----BEGIN-----\nMIIEvQIBADANBg\n-----END-----";
    let given = ["--env", "GIVEN_PASSWORD=hunter2-hunter2", "--env", pem, "the password is hunter2-hunter2"];
    let ran = place.agent(script, &given);
    assert!(ran.stdout.contains("[REDACTED]"), "{}", ran.stdout);
    place.run(&["exec", "--mode", "host", "-e", "TOKEN=supersecretvalue", "--", "echo", "supersecretvalue"]);
    let secrets = "sk-ant-0123456789abcdef|hunter2-hunter2|MIIEvQIBADANBg|proxy-password|supersecretvalue";
    let kept = std::process::Command::new("grep").args(["-rE", secrets]).arg(place.state()).output().unwrap();
    assert_eq!(kept.status.code(), Some(1), "{}", String::from_utf8_lossy(&kept.stdout));
    for secret in secrets.split('|') {
        assert!(!ran.stdout.contains(secret), "{secret}");
    }
}

#[test]
fn what_is_no_secret_stays_readable() {
    let ran = Place::new().agent("echo to production", &["-e", "NODE_ENV=production"]);
    assert_eq!(ran.result()["text"], "to production");
}

#[test]
fn the_log_is_not_many_times_what_was_printed() {
    let place = Place::new();
    place.run(&["exec", "--mode", "host", "--", "sh", "-c", "yes | head -c 2000000"]).expect_code(0);
    let run = fs::read_dir(place.state().join("runs")).unwrap().next().unwrap().unwrap().path();
    assert!(fs::metadata(run.join("log.jsonl")).unwrap().len() < 2 * 2_000_000);
    assert!(fs::metadata(run.join("result.json")).unwrap().len() < 1_000_000);
}

#[test]
fn a_run_that_cannot_be_recorded_is_not_started() {
    let place = Place::new();
    fs::create_dir_all(place.state()).unwrap();
    fs::write(place.state().join("runs"), "in the way").unwrap();
    let ran = place.run(&["exec", "--mode", "host", "--", "sh", "-c", "echo ran > ran"]).expect_code(125);
    assert!(ran.stderr.contains("record cannot be kept") && ran.stderr.contains("runs"), "{}", ran.stderr);
    assert!(!place.work().join("ran").exists());
}

#[test]
fn runs_are_found_by_beginning_end_and_as_last() {
    let place = Place::new();
    for code in ["0", "3"] {
        place.run(&["exec", "--mode", "host", "--", "sh", "-c", &format!("exit {code}")]);
    }
    let listed = place.run(&["runs", "list", "--json"]).json();
    let id = listed[0]["run"].as_str().unwrap();
    for name in [id, &id[id.len() - 6..], "last"] {
        let shown = place.run(&["runs", "show", name, "--json"]).expect_code(0).json();
        assert_eq!(shown["record"]["run"], id);
    }
    assert!(place.run(&["runs", "show", "20"]).expect_code(125).stderr.contains("more than one run"));
    assert!(place.run(&["runs", "show", "nonsense"]).expect_code(125).stderr.contains("`nonsense`"));
    assert!(place.run(&["runs", "show", "../../etc"]).expect_code(125).stderr.contains("no run"));
    let human = place.run(&["runs", "show", "last", "--log"]).expect_code(0);
    assert!(human.stdout.contains("Promises in force"));
}

#[test]
fn a_damaged_run_is_listed_as_damaged() {
    let place = Place::new();
    place.run(&["exec", "--mode", "host", "--", "true"]).expect_code(0);
    let run = fs::read_dir(place.state().join("runs")).unwrap().next().unwrap().unwrap().path();
    // Cut off, as by a power failure, or overwritten.
    for (text, status) in [("", "lost"), ("{\"run\": ", "lost"), ("nonsense", "damaged")] {
        fs::write(run.join("result.json"), text).unwrap();
        assert_eq!(
            place.run(&["runs", "list", "--json"]).expect_code(0).json()[0]["status"],
            status,
            "{text}"
        );
    }
}

#[test]
fn a_full_disk_ends_the_run_with_that_reason() {
    let place = Place::new();
    // A limit on the size of files stands for a disk that is full: writing the log fails halfway.
    let script = format!(
        "ulimit -f 64; trap '' XFSZ; exec {} exec --mode host -- sh -c 'ulimit -f unlimited 2>/dev/null; yes long-enough-line-to-fill-a-disk | head -c 3000000'",
        crate::support::BINARY
    );
    let stderr = place.shell(&script).expect_code(125).stderr;
    for word in ["the log cannot be kept", "File too large", "free some space"] {
        assert!(stderr.contains(word), "{word}: {stderr}");
    }
}
