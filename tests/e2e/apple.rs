//! Apple's containers, by a stand-in that knows the options of Apple's command and rejects all others.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::Value;

use crate::support::{Place, Ran, wait_for};

/// A place where Apple's command is, under one of its names.
fn mac(name: &str) -> Place {
    let place = Place::new();
    let bin = place.home().join("bin");
    fs::create_dir(&bin).unwrap();
    let stand_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/stand-ins/container.py");
    symlink(stand_in.canonicalize().unwrap(), bin.join(name)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    place.env("PATH", path)
}

fn exec(place: &Place, more: &[&str], script: &str) -> Ran {
    let args = ["exec", "--mode", "apple", "--policy", "open"];
    place.run(&[&args[..], more, &["--", "sh", "-c", script]].concat())
}

#[test]
fn a_run_is_told_in_apples_own_words() {
    let place = mac("container").env("TOKEN", "REAL-SECRET");
    let ran = exec(
        &place,
        &["--env", "TOKEN", "--memory", "3g"],
        "echo $TOKEN > made; echo out; echo err >&2; exit 7",
    );
    assert_eq!((ran.code(), ran.stdout.as_str(), ran.stderr.contains("err")), (7, "out\n", true), "{ran:?}");
    assert_eq!(place.read("made"), "REAL-SECRET\n");
    let said = fs::read_to_string(place.home().join("apple-store/argv.log")).unwrap();
    for words in
        ["--rm --name ringfence-", "--cpus 1 ", "--memory 3072M ", "--workdir /workspace ", ":/workspace "]
    {
        assert!(said.contains(words), "{words}: {said}");
    }
    assert!(
        !said.contains("REAL-SECRET") && !said.contains("--cap-drop") && !said.contains("--network"),
        "{said}"
    );
    assert_eq!(
        fs::read_dir(place.state().join("apple")).unwrap().count(),
        0,
        "the file of variables is gone"
    );
}

#[test]
fn what_it_cannot_keep_is_refused_and_nothing_is_started() {
    let place = mac("container");
    let ran = place.run(&["exec", "--mode", "apple", "--", "true"]);
    assert_eq!(ran.code(), 125);
    for promise in ["protected paths", "denied files", "no network", "no rules for the network"] {
        assert!(ran.stderr.contains(promise), "{promise}: {ran:?}");
    }
    assert_ne!(exec(&place, &["--cpus", "0.5"], "true").code(), 0);
    assert!(!place.home().join("apple-store/argv.log").exists());
}

#[test]
fn the_container_ends_with_its_run() {
    let place = mac("container");
    let ran = exec(&place, &["--timeout", "2"], "echo $$ > pid; sleep 1000");
    assert_eq!(ran.code(), 124, "{ran:?}");
    let pid = place.pid("pid");
    wait_for("its end", || (!Path::new(&format!("/proc/{pid}")).exists()).then_some(()));
    let listed = place.run(&["sandbox", "list", "--json"]).expect_code(0).json();
    let apples = listed.as_array().unwrap().iter().filter(|row| row["mode"] == "apple").count();
    assert_eq!(apples, 0, "{listed}");
}

#[test]
fn each_failure_of_the_runtime_has_its_class() {
    let class = |ran: &Ran| ran.result()["failure"]["class"].clone();
    let json = |place: &Place, program: &str| {
        place.run(&["exec", "--json", "--mode", "apple", "--policy", "open", "--", program])
    };
    assert_eq!(class(&json(&Place::new(), "true")), "runtime_missing");
    let place = mac("container");
    assert_eq!(class(&json(&place, "no-such-cli")), "cli_missing");
    let place = place.settings(r#"{"sandbox": {"apple": {"image": "no/such"}}}"#);
    assert_eq!(class(&json(&place, "true")), "image_missing");
    fs::create_dir_all(place.home().join("apple-store")).unwrap();
    fs::write(place.home().join("apple-store/down"), "").unwrap();
    assert_eq!(class(&json(&place, "true")), "daemon_down");
}

#[test]
fn the_name_of_the_documents_is_understood_and_the_image_is_built() {
    let place =
        mac("container").settings(r#"{"sandbox": {"apple": {"runtime_command": "apple-container"}}}"#);
    assert_eq!(exec(&place, &[], "echo hi").stdout, "hi\n");
    let doctor: Value = place.run(&["sandbox", "doctor", "--json"]).json();
    let modes = doctor["modes"].as_array().unwrap();
    let apple = modes.iter().find(|group| group["name"] == "apple").unwrap();
    assert!(apple["findings"].as_array().unwrap().iter().all(|finding| finding["state"] == "ok"), "{apple}");
    let claude = place.home().join("bin/claude");
    fs::write(&claude, "#!/bin/sh\necho 9.9.9\n").unwrap();
    std::process::Command::new("chmod").arg("+x").arg(&claude).status().unwrap();
    let build = ["sandbox", "build-image", "--mode", "apple", "--agents", "claude", "--base", "some/base"];
    let ran = place.run(&build).expect_code(0);
    assert!(ran.stderr.contains("try claude: 9.9.9"), "{ran:?}");
}
