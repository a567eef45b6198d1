//! What a run leaves in an overlay to hold the host, to hide from it, or to stay for ever.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::support::{Place, Ran};

fn run(place: &Place, script: &str) -> Ran {
    place.run(&[
        "exec",
        "--mode",
        "native",
        "--workspace",
        "overlay",
        "--timeout",
        "60s",
        "--",
        "sh",
        "-ec",
        script,
    ])
}

fn perl(script: &str) -> String {
    format!("perl -e '{script}'")
}

fn changes(place: &Place) -> Vec<(String, String)> {
    let changes = place.run(&["diff", "last", "--json"]).expect_code(0).json();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    changes
        .as_array()
        .unwrap()
        .iter()
        .map(|change| (text(&change["path"]), text(&change["change"])))
        .collect()
}

/// A shell command that makes this many files of five bytes in a directory.
fn many_files(directory: &str, from: u32, count: u32) -> String {
    format!("mkdir -p {directory} && seq {from} {} | split -l 1 -a 4 - {directory}/", from + count - 1)
}

/// A workspace of many small files, and a run that removes them all and makes as many others.
fn replaced_files(removed: u32, added: u32) -> Place {
    let place = Place::new();
    let made = Command::new("sh")
        .args(["-ec", &many_files("old", 1000, removed)])
        .current_dir(place.work())
        .status();
    assert!(made.unwrap().success());
    run(&place, &format!("rm -r old && {}", many_files("new", 1000, added))).expect_code(0);
    place
}

/// Pairwise comparison would read 16 million files; each is read once.
#[test]
fn many_files_of_one_length_are_compared_once_each() {
    let place = replaced_files(2000, 4000);
    let stat = place.run(&["diff", "last", "--stat"]).expect_code(0);
    assert!(stat.stdout.contains("→ new/aaaa"), "{}", &stat.stdout[..500]);
    assert!(!stat.stderr.contains("renames are not shown"), "{}", stat.stderr);
    // Those that were removed, those that were added, and a directory on each side.
    assert_eq!(changes(&place).len(), 6002);
    place.run(&["apply", "last", "new/aaaa"]).expect_code(0);
    place.run(&["discard", "last"]).expect_code(0);
}

#[test]
fn renames_among_too_many_files_are_not_looked_for() {
    let place = replaced_files(5200, 5200);
    let stat = place.run(&["diff", "last", "--stat"]).expect_code(0);
    assert!(stat.stderr.contains("renames are not shown: 10400 files with 52000 bytes"), "{}", stat.stderr);
    assert!(!stat.stdout.contains('→'), "nothing counts as renamed");
    assert_eq!(changes(&place).len(), 10_402);
}

fn is_gone(place: &Place) -> bool {
    let run = fs::read_dir(place.state().join("runs")).unwrap().next().unwrap().unwrap().path();
    !run.join("layer").exists() && !run.join("layer-discarded").exists()
}

#[test]
fn overlays_of_any_depth_can_be_shown_applied_and_discarded() {
    // No path can name what is at the end of 6,000 directories.
    for (length, depth, last) in [(1, 1_500, "chmod 0, \"..\";"), (1, 6_000, ""), (255, 6_000, "")] {
        let place = Place::new();
        let script = format!(
            "my $n = \"n\" x {length}; for (1..{depth}) {{ mkdir $n or die; chdir $n or die; }} {last}"
        );
        run(&place, &format!("echo work > work; {}", perl(&script))).expect_code(0);
        place.run(&["diff", "last", "--stat"]).expect_code(0);
        place.run(&["apply", "last", "work"]).expect_code(0);
        assert_eq!(place.read("work"), "work\n");
        // Few descriptors and a small stack suffice, however deep it is.
        let limited = format!("ulimit -n 32; ulimit -s 2048; exec {} discard last", crate::support::BINARY);
        place.shell(&limited).expect_code(0);
        assert!(is_gone(&place), "{length} {depth}");
    }
}

#[test]
fn inaccessible_directories_can_be_discarded() {
    let place = Place::new();
    run(&place, "mkdir -p a/b/c x; echo 1 > a/b/c/f; chmod 0 a/b/c a/b a x").expect_code(0);
    place.run(&["diff", "last"]).expect_code(0);
    place.run(&["discard", "last"]).expect_code(0);
    assert!(is_gone(&place));
}

/// The attribute by which the host marks stub files, on files of the agent's. A run cannot set it.
#[test]
fn a_forged_mark_hides_no_change() {
    let place = Place::new();
    fs::write(place.work().join("a.txt"), "before\n").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    let script = "echo evil > a.txt; echo evil > new.txt; : > empty; mkdir d";
    run(&place, script).expect_code(0);
    let run = fs::read_dir(place.state().join("runs")).unwrap().next().unwrap().unwrap().path();
    for name in ["a.txt", "new.txt", "empty", "d"] {
        let (path, flags) = (run.join("layer/upper").join(name), rustix::fs::XattrFlags::empty());
        rustix::fs::setxattr(&path, c"user.ringfence.stand-in", b"1", flags).unwrap();
    }
    let expected = [("a.txt", "modified"), ("d", "added"), ("empty", "added"), ("new.txt", "added")];
    assert_eq!(changes(&place), expected.map(|(path, what)| (path.to_owned(), what.to_owned())));
    place.run(&["apply", "last"]).expect_code(0);
    assert_eq!((place.read("a.txt"), place.read("new.txt")), ("evil\n".into(), "evil\n".into()));
}

/// A run above the workspace swaps a directory of the workspace for a link while the overlay waits.
#[test]
fn links_in_the_workspace_are_not_followed() {
    let place = Place::new();
    let outside = place.home().join("outside");
    for directory in [&outside, &place.work().join("d"), &place.work().join("e")] {
        fs::create_dir(directory).unwrap();
        fs::write(directory.join("x"), "safe").unwrap();
    }
    std::thread::sleep(std::time::Duration::from_millis(20));
    run(&place, "echo evil > d/x; rm e/x; echo evil > e/new").expect_code(0);
    for name in ["d", "e"] {
        fs::rename(place.work().join(name), place.home().join(name)).unwrap();
        std::os::unix::fs::symlink(&outside, place.work().join(name)).unwrap();
    }
    place.run(&["diff", "last"]).expect_code(0);
    place.run(&["apply", "last"]).expect_code(1);
    let names: Vec<_> = fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!((names.len(), fs::read_to_string(outside.join("x")).unwrap().as_str()), (1, "safe"));
}

/// Marks of overlayfs that a run leaves in its workspace neither lead elsewhere nor hide anything when the workspace is below
/// an overlay later.
#[test]
fn marks_of_overlays_in_a_workspace_lead_nowhere() {
    let place = Place::new();
    let work = place.work();
    for name in ["secret", "pub", "opaque", "white"] {
        fs::create_dir(work.join(name)).unwrap();
        fs::write(work.join(name).join("file"), name).unwrap();
    }
    fs::write(work.join("meta"), "meta").unwrap();
    let script = "import os; x = os.setxattr\n\
         x('pub', 'user.overlay.redirect', b'/secret'); x('opaque', 'user.overlay.opaque', b'y')\n\
         x('meta', 'user.overlay.metacopy', b''); x('meta', 'user.overlay.redirect', b'/secret/file')\n\
         x('white', 'user.overlay.opaque', b'x'); x('white/file', 'user.overlay.whiteout', b'')";
    assert!(Command::new("python3").args(["-c", script]).current_dir(&work).status().unwrap().success());
    let ran = run(
        &place,
        "cat pub/file opaque/file; ls white; cat meta || true; echo 1 > pub/new; echo 1 > opaque/new",
    );
    ran.expect_code(0);
    let shown = run(&place, "cat pub/file opaque/file; cat meta 2>&1 || true");
    assert!(shown.stdout.starts_with("pubopaque") && !shown.stdout.contains("secret"), "{}", shown.stdout);
    run(&place, "echo 1 > pub/new; echo 1 > opaque/new; rm white/file").expect_code(0);
    place.run(&["apply", "last"]).expect_code(0);
    for name in ["pub", "opaque"] {
        assert!(work.join(name).join("new").exists() && work.join(name).join("file").exists(), "{name}");
    }
    assert!(!work.join("white/file").exists() && work.join("secret/file").exists());
    assert_eq!(fs::read_to_string(work.join("meta")).unwrap(), "meta");
}

/// A device with the number 0 in the workspace is a mark of overlayfs, whose name an overlay does not show.
#[test]
fn devices_without_a_number_refuse_no_later_run() {
    let place = Place::new();
    fs::create_dir_all(place.work().join("sub/.vscode")).unwrap();
    for name in ["x", ".env", "key.pem", "sub/.env", "sub/.envrc", "sub/.vscode/x"] {
        let (path, mode) = (place.work().join(name), rustix::fs::Mode::from_raw_mode(0o600));
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::CharacterDevice, mode, 0).unwrap();
    }
    run(&place, "! cat x; echo 1 > x; echo 1 > sub/new; cat x sub/new").expect_code(0);
    place.run(&["discard", "last"]).expect_code(0);
    let bound = place.run(&["exec", "--mode", "native", "--", "cat", "x"]);
    assert_eq!((bound.code(), bound.stdout.as_str()), (1, ""), "{bound:?}");
}

/// What a run wrote is shown and applied, whatever rights it took from the root of its workspace.
#[test]
fn an_overlay_whose_root_a_run_shuts_is_applied() {
    let place = Place::new().of_user(65533);
    run(&place, "echo 1 > new; chmod 0 .").expect_code(0);
    assert_eq!(changes(&place), [("new".to_owned(), "added".to_owned())]);
    place.run(&["apply", "last"]).expect_code(0);
    assert!(place.work().join("new").exists());
    run(&place, "chmod 0 .").expect_code(0);
    place.run(&["discard", "last"]).expect_code(0);
}

#[test]
fn a_note_of_what_lies_below_that_cannot_be_read_refuses_nothing() {
    let place = Place::new();
    fs::write(place.work().join("a.txt"), "before\n").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    run(&place, "echo after > a.txt").expect_code(0);
    let run = fs::read_dir(place.state().join("runs")).unwrap().next().unwrap().unwrap().path();
    let below = run.join("layer/below.json");
    assert!(below.exists());
    let known = fs::read_to_string(&below).unwrap();
    for (what, make) in [("too long", None), ("cut off", Some(&known[..known.len() - 2]))] {
        match make {
            Some(text) => fs::write(&below, text).unwrap(),
            None => fs::File::create(&below).unwrap().set_len(600 << 20).unwrap(),
        }
        let shown = place.run(&["diff", "last"]).expect_code(0);
        assert!(shown.stdout.contains("+after"), "{what}: {shown:?}");
        assert!(shown.stderr.contains("what lay below the changes is not known"), "{what}: {shown:?}");
    }
    let applied = place.run(&["apply", "last"]).expect_code(0);
    assert!(applied.stderr.contains("what lay below the changes is not known"), "{applied:?}");
    assert_eq!(place.read("a.txt"), "after\n");
}

/// What others may write is shown with its permissions, directories too, before it is applied and when it was.
#[test]
fn what_others_may_write_is_shown_with_its_mode() {
    let place = Place::new();
    fs::write(place.work().join("old"), "1\n").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    let script = "umask 022; mkdir open plain; chmod 777 open; echo 1 > open/f; chmod 666 open/f; echo 2 > old; chmod 646 old";
    run(&place, script).expect_code(0);
    let stat = place.run(&["diff", "last", "--stat"]).expect_code(0).stdout;
    let diff = place.run(&["diff", "last"]).expect_code(0).stdout;
    let applied = place.run(&["apply", "last"]).expect_code(0).stdout;
    for shown in [&stat, &applied] {
        for line in ["open, mode 777", "open/f, mode 666", "old, mode 646"] {
            assert!(shown.contains(line), "{line}: {shown}");
        }
        assert!(!shown.contains("plain, mode"), "{shown}");
    }
    for line in ["A open/ added, mode 777", "A open/f added, mode 666", "M old changed, mode 646"] {
        assert!(diff.contains(line), "{line}: {diff}");
    }
}

/// An `apply` that is killed while it copies leaves no file behind: what is being copied has no name.
#[test]
fn a_killed_apply_leaves_no_file() {
    let place = Place::new();
    run(&place, "for i in 1 2 3 4; do head -c 50000000 /dev/urandom > f$i; done").expect_code(0);
    let mut child = place.spawn(&["apply", "last"]);
    let pid = child.id();
    // Copied in part: the process has a file without a name in the workspace open.
    let is_copying = || {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
        let copied = open.flatten().filter(|entry| {
            let name = fs::read_link(entry.path()).unwrap_or_default().display().to_string();
            let in_work = name.starts_with(&place.work().canonicalize().unwrap().display().to_string());
            in_work && fs::metadata(entry.path()).is_ok_and(|data| data.is_file() && data.len() > 0)
        });
        (copied.count() > 0).then_some(())
    };
    crate::support::wait_for("a copy", is_copying);
    child.kill().unwrap();
    child.wait().unwrap();
    let left: Vec<_> = fs::read_dir(place.work()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_str().unwrap().starts_with(".ringfence")), "{left:?}");
    place.run(&["apply", "last"]).expect_code(0);
    assert_eq!(fs::read_dir(place.work()).unwrap().count(), 4);
}
