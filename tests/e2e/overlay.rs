//! `--workspace overlay`: the workspace stays as it is, and what was written is shown, applied or discarded.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use serde_json::Value;

use crate::support::{Place, Ran, wait_for};

/// A workspace with something of every kind, and a run over it.
fn changed(script: &str) -> Place {
    let place = Place::new();
    let work = place.work();
    for (file, text) in
        [("a.txt", "one\ntwo\n"), ("gone.txt", "g\n"), ("moved.txt", "content\n"), ("d/x", "x\n")]
    {
        fs::create_dir_all(work.join(file).parent().unwrap()).unwrap();
        fs::write(work.join(file), text).unwrap();
    }
    fs::write(work.join("bin"), [0, 159, 146, 150]).unwrap();
    fs::write(work.join("tool"), "#!/bin/sh\n").unwrap();
    symlink("a.txt", work.join("link")).unwrap();
    // The clock of files ticks slowly: what was written just now must not look as if it was written later.
    std::thread::sleep(std::time::Duration::from_millis(20));
    run(&place, script).expect_code(0);
    place
}

fn run(place: &Place, script: &str) -> Ran {
    place.run(&["exec", "--mode", "native", "--workspace", "overlay", "--", "sh", "-ec", script])
}

/// What `diff` says of each path: the kind of change and whether it is in conflict.
fn changes(place: &Place) -> Vec<(String, String, bool)> {
    let changes = place.run(&["diff", "last", "--json"]).expect_code(0).json();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let change =
        |change: &Value| (text(&change["path"]), text(&change["change"]), change["conflict"].is_string());
    changes.as_array().unwrap().iter().map(change).collect()
}

const EVERYTHING: &str = "echo three >> a.txt; rm gone.txt; mv moved.txt new-name.txt; mv d e; rm link; ln -s d link; \
    chmod +x tool; printf '\\000\\001\\002' > bin; echo new > added.txt; mkdir -p deep/er; echo 1 > deep/er/1";

#[test]
fn the_workspace_stays_untouched_and_every_kind_of_change_is_shown() {
    let place = changed(EVERYTHING);
    assert_eq!(place.read("a.txt"), "one\ntwo\n");
    assert!(place.work().join("gone.txt").exists() && !place.work().join("added.txt").exists());
    let names: Vec<_> = fs::read_dir(place.work()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 7, "nothing is left behind: {names:?}");
    let expected = [
        ("a.txt", "modified"),
        ("added.txt", "added"),
        ("bin", "modified"),
        ("d", "removed"),
        ("d/x", "removed"),
        ("deep", "added"),
        ("deep/er", "added"),
        ("deep/er/1", "added"),
        ("e", "added"),
        ("e/x", "added"),
        ("gone.txt", "removed"),
        ("link", "modified"),
        ("moved.txt", "removed"),
        ("new-name.txt", "added"),
        ("tool", "permissions"),
    ];
    let expected: Vec<_> = expected.map(|(path, what)| (path.to_owned(), what.to_owned(), false)).to_vec();
    assert_eq!(changes(&place), expected);
    let shown = place.run(&["diff", "last"]).expect_code(0).stdout;
    for words in [
        "M a.txt changed\n@@ -1,2 +1,3 @@\n one\n two\n+three",
        "D gone.txt removed\n@@ -1 +0,0 @@\n-g",
        "R new-name.txt renamed from moved.txt",
        "M tool mode 644 → 755",
        "M bin changed\nbinary, 4 → 3 bytes",
        "-→ a.txt\n+→ d",
    ] {
        assert!(shown.contains(words), "{words}\n---\n{shown}");
    }
    let stat = place.run(&["diff", "last", "--stat", "a.txt"]).expect_code(0).stdout;
    assert!(stat.contains("+1 -0") && stat.contains("1 change, 1 lines added"), "{stat}");
}

#[test]
fn everything_can_be_applied_and_then_nothing_is_left() {
    let place = changed(EVERYTHING);
    place.run(&["apply", "last"]).expect_code(0);
    assert_eq!(place.read("a.txt"), "one\ntwo\nthree\n");
    assert_eq!(
        (place.read("new-name.txt"), place.read("e/x"), place.read("deep/er/1")),
        ("content\n".into(), "x\n".into(), "1\n".into())
    );
    for gone in ["gone.txt", "moved.txt", "d"] {
        assert!(!place.work().join(gone).exists(), "{gone}");
    }
    assert_eq!(fs::read_link(place.work().join("link")).unwrap().to_str(), Some("d"));
    assert_eq!(fs::metadata(place.work().join("tool")).unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(fs::read(place.work().join("bin")).unwrap(), [0, 1, 2]);
    let over = place.run(&["diff", "last"]).expect_code(125);
    assert!(over.stderr.contains("applied or discarded"), "{}", over.stderr);
}

#[test]
fn single_files_can_be_applied_and_the_rest_discarded() {
    let place = changed(EVERYTHING);
    place.run(&["apply", "last", "a.txt", "deep"]).expect_code(0);
    assert_eq!((place.read("a.txt"), place.read("deep/er/1")), ("one\ntwo\nthree\n".into(), "1\n".into()));
    assert!(!place.work().join("added.txt").exists());
    assert!(!changes(&place).iter().any(|(path, ..)| path.starts_with("deep") || path == "a.txt"));
    let unknown = place.run(&["apply", "last", "no-such-file"]).expect_code(125);
    assert!(unknown.stderr.contains("did not change no-such-file"), "{}", unknown.stderr);
    place.run(&["discard", "last"]).expect_code(0);
    place.run(&["apply", "last"]).expect_code(125);
    assert!(!place.work().join("added.txt").exists() && place.work().join("gone.txt").exists());
}

#[test]
fn what_somebody_else_changed_meanwhile_is_reported_and_never_overwritten() {
    let place = changed("echo mine > a.txt; rm gone.txt; echo mine > added.txt; rm -r d");
    fs::write(place.work().join("a.txt"), "theirs").unwrap();
    fs::write(place.work().join("gone.txt"), "theirs").unwrap();
    fs::write(place.work().join("added.txt"), "theirs").unwrap();
    fs::write(place.work().join("d/theirs"), "theirs").unwrap();
    let ran = place.run(&["apply", "last", "--json"]).expect_code(1);
    let conflicts: Vec<String> = ran.json()["conflicts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|conflict| conflict[0].as_str().unwrap().to_owned())
        .collect();
    for path in ["a.txt", "gone.txt", "added.txt", "d/theirs", "d"] {
        assert!(conflicts.iter().any(|conflict| conflict == path), "{path}: {conflicts:?}");
    }
    for file in ["a.txt", "gone.txt", "added.txt", "d/theirs"] {
        assert_eq!(place.read(file), "theirs", "{file}");
    }
    assert!(!place.work().join("d/x").exists(), "what nobody else has touched is applied");
}

#[test]
fn what_somebody_deleted_meanwhile_does_not_come_back() {
    let place = changed("echo mine > tool; echo mine > d/x");
    fs::remove_file(place.work().join("tool")).unwrap();
    fs::remove_dir_all(place.work().join("d")).unwrap();
    let ran = place.run(&["apply", "last"]).expect_code(1);
    for path in ["tool", "d/x"] {
        assert!(ran.stdout.contains(&format!("conflict {path}: it was deleted")), "{}", ran.stdout);
        assert!(!place.work().join(path).exists());
    }
}

/// A file that was renamed and then changed is no more than that.
#[test]
fn a_file_that_was_renamed_and_changed_can_be_applied() {
    let place = changed("mv a.txt b.txt; echo more >> b.txt");
    place.run(&["apply", "last"]).expect_code(0);
    assert_eq!(place.read("b.txt"), "one\ntwo\nmore\n");
    assert!(!place.work().join("a.txt").exists());
}

#[test]
fn the_same_change_on_both_sides_is_none() {
    let place = changed("echo same > a.txt; rm gone.txt");
    fs::write(place.work().join("a.txt"), "same\n").unwrap();
    fs::remove_file(place.work().join("gone.txt")).unwrap();
    assert_eq!(changes(&place), []);
}

#[test]
fn a_directory_that_was_made_anew_hides_what_was_in_it() {
    let place = changed("rm -r d; mkdir d; echo y > d/y");
    place.run(&["apply", "last", "d/y"]).expect_code(0);
    assert_eq!(changes(&place), [("d/x".to_owned(), "removed".to_owned(), false)]);
    place.run(&["apply", "last"]).expect_code(0);
    let names: Vec<_> =
        fs::read_dir(place.work().join("d")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["y"]);
}

/// A link in the place of a directory must not lead what is applied out of the workspace.
#[test]
fn nothing_is_applied_outside_of_the_workspace() {
    let place = changed("echo evil > d/x");
    let outside = place.home().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("x"), "safe").unwrap();
    fs::remove_dir_all(place.work().join("d")).unwrap();
    symlink(&outside, place.work().join("d")).unwrap();
    place.run(&["apply", "last"]).expect_code(1);
    assert_eq!(fs::read_to_string(outside.join("x")).unwrap(), "safe");
}

#[test]
fn special_files_and_special_rights_are_not_applied() {
    let place = changed(
        "mkfifo pipe; echo '#!/bin/sh' > root-me; chmod 6755 root-me 2> /dev/null || chmod 755 root-me",
    );
    // A run cannot set them. Should there be a way, they are not applied.
    let runs = place.state().join("runs");
    let run = fs::read_dir(runs).unwrap().next().unwrap().unwrap().path();
    let in_layer = run.join("layer/upper/root-me");
    assert_eq!(fs::metadata(&in_layer).unwrap().permissions().mode() & 0o7777, 0o755);
    fs::set_permissions(&in_layer, fs::Permissions::from_mode(0o6755)).unwrap();
    let ran = place.run(&["apply", "last"]).expect_code(1);
    assert!(ran.stdout.contains("conflict pipe: it is neither a file"), "{}", ran.stdout);
    assert_eq!(fs::metadata(place.work().join("root-me")).unwrap().permissions().mode() & 0o7777, 0o755);
}

#[test]
fn protected_paths_are_protected_and_git_sees_no_stand_ins() {
    let place = Place::new();
    let git = |args: &[&str]| {
        let done = std::process::Command::new("git").args(args).current_dir(place.work()).output().unwrap();
        assert!(done.status.success());
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    git(&["init", "-q"]);
    let commit = "git add -A; git -c user.name=t -c user.email=t@example.com commit -qm inside; git status --short; git show --name-only --format=";
    let ran = run(&place, &format!("echo evil > .git/hooks/pre-commit || echo held; echo 1 > f; {commit}"))
        .expect_code(0);
    assert_eq!(ran.stdout, "held\nf\n");
    place.run(&["apply", "last"]).expect_code(0);
    assert_eq!(git(&["log", "--format=%s"]), "inside\n");
    assert_eq!(git(&["status", "--short"]), "");
}

#[test]
fn runs_without_a_layer_have_nothing_to_show_and_other_modes_refuse_one() {
    let place = Place::new();
    place.run(&["exec", "--mode", "native", "--", "true"]).expect_code(0);
    let ran = place.run(&["diff", "last"]).expect_code(125);
    assert!(ran.stderr.contains("it wrote into the workspace itself"), "{}", ran.stderr);
    let ran = place.run(&["exec", "--mode", "host", "--workspace", "overlay", "--", "true"]).expect_code(125);
    assert!(ran.stderr.contains("the workspace itself stays untouched"), "{}", ran.stderr);
    for kind in ["worktree", "clone"] {
        let ran = place.run(&["exec", "--workspace", kind, "--", "true"]).expect_code(125);
        assert!(ran.stderr.contains(kind), "{}", ran.stderr);
    }
}

#[test]
fn a_run_that_is_not_over_is_left_alone_and_a_lost_one_can_be_applied() {
    let place = Place::new();
    let script = "echo done > f; echo $$ > it.pid; sleep 1000";
    let mut child =
        place.spawn(&["exec", "--mode", "native", "--workspace", "overlay", "--", "sh", "-c", script]);
    let runs = place.state().join("runs");
    wait_for("the first file", || {
        let run = fs::read_dir(&runs).ok()?.next()?.ok()?.path();
        run.join("layer/upper/it.pid").exists().then_some(())
    });
    let ran = place.run(&["apply", "last"]).expect_code(125);
    assert!(ran.stderr.contains("is not over"), "{}", ran.stderr);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for("the end of the run", || (place.run(&["diff", "last"]).code() == 0).then_some(()));
    place.run(&["apply", "last", "f"]).expect_code(0);
    assert_eq!(place.read("f"), "done\n");
}

/// Directories that are made in one that hides what is below hide it too, without a mark of their own.
#[test]
fn what_is_gone_below_a_directory_that_was_made_anew_is_gone_at_every_depth() {
    let place = changed("mkdir -p d/sub; echo z > d/sub/z");
    place.run(&["apply", "last"]).expect_code(0);
    std::thread::sleep(std::time::Duration::from_millis(20));
    run(&place, "rm -rf d; mkdir -p d/sub; echo n > d/sub/new").expect_code(0);
    let gone: Vec<_> =
        changes(&place).into_iter().filter(|(_, what, _)| what == "removed").map(|(path, ..)| path).collect();
    assert_eq!(gone, ["d/sub/z", "d/x"]);
    place.run(&["apply", "last"]).expect_code(0);
    assert!(!place.work().join("d/sub/z").exists() && place.work().join("d/sub/new").exists());
}

#[test]
fn a_link_that_became_a_directory_leads_nowhere() {
    let place = changed("true");
    let outside = place.home().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("a"), "theirs").unwrap();
    fs::remove_file(place.work().join("link")).unwrap();
    symlink(&outside, place.work().join("link")).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    run(&place, "rm link; mkdir link; echo mine > link/a; echo b > link/b").expect_code(0);
    assert!(!place.run(&["diff", "last"]).expect_code(0).stdout.contains("theirs"));
    place.run(&["apply", "last"]).expect_code(0);
    assert_eq!((place.read("link/a"), place.read("link/b")), ("mine\n".into(), "b\n".into()));
    assert_eq!(fs::read_to_string(outside.join("a")).unwrap(), "theirs");
}

/// What editors and people do all day is no conflict.
#[test]
fn ordinary_work_is_no_conflict() {
    for script in [
        "sed -i.bak s/one/1/ a.txt",
        "ln a.txt second",
        "cp -p a.txt copy; rm a.txt; mv copy a.txt",
        "mv a.txt b.txt; echo more >> b.txt; echo a > a.txt",
    ] {
        let place = changed(script);
        place.run(&["apply", "last"]).expect_code(0);
    }
    let place = changed("mv a.txt b.txt; echo more >> b.txt; mkdir -p new/deep; echo 1 > new/deep/x");
    place.run(&["apply", "last", "a.txt"]).expect_code(0);
    place.run(&["apply", "last", "b.txt"]).expect_code(0);
    place.run(&["apply", "last", "new/deep/x"]).expect_code(0);
    assert_eq!((place.read("b.txt"), place.read("new/deep/x")), ("one\ntwo\nmore\n".into(), "1\n".into()));
}

#[test]
fn a_directory_that_was_put_in_the_place_of_another_is_noticed() {
    let place = changed("true");
    fs::create_dir(place.work().join("d2")).unwrap();
    fs::write(place.work().join("d2/x"), "precious").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    run(&place, "echo agent >> d/x").expect_code(0);
    fs::rename(place.work().join("d"), place.work().join("d.old")).unwrap();
    fs::rename(place.work().join("d2"), place.work().join("d")).unwrap();
    place.run(&["apply", "last"]).expect_code(1);
    assert_eq!(place.read("d/x"), "precious");
}

#[test]
fn holes_stay_holes_and_directories_without_the_right_to_write_can_be_applied() {
    use std::os::unix::fs::MetadataExt;
    let place = changed("truncate -s 300M big; echo end >> big; mkdir shut; echo 1 > shut/x; chmod 555 shut");
    place.run(&["apply", "last"]).expect_code(0);
    let big = fs::metadata(place.work().join("big")).unwrap();
    assert_eq!(big.len(), (300 << 20) + 4);
    assert!(big.blocks() * 512 < 1 << 20, "{} blocks", big.blocks());
    assert_eq!(place.read("shut/x"), "1\n");
    assert_eq!(fs::metadata(place.work().join("shut")).unwrap().permissions().mode() & 0o777, 0o555);
    fs::set_permissions(place.work().join("shut"), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn names_that_are_no_text_do_not_stop_anything() {
    let place = changed("printf 1 > \"$(printf 'half\\377')\"; echo 1 > plain");
    place.run(&["diff", "last", "--json"]).expect_code(0);
    place.run(&["apply", "last", "--json"]).expect_code(0);
    assert_eq!(place.read("plain"), "1\n");
}

/// A layer that cannot be read whole can be discarded, and what can be read of it applied.
#[test]
fn a_deep_tree_does_not_lock_the_layer() {
    let deep =
        "echo work > work; n=$(printf 'a%.0s' $(seq 200)); for i in $(seq 30); do mkdir $n; cd -P $n; done";
    let place = changed(deep);
    place.run(&["apply", "last", "work"]).expect_code(0);
    assert_eq!(place.read("work"), "work\n");
    place.run(&["discard", "last"]).expect_code(0);
}

#[test]
fn stand_ins_that_were_left_in_a_layer_are_not_applied() {
    let place = Place::new();
    let script = "echo w > work; echo $$ > it.pid; sleep 1000";
    let mut child =
        place.spawn(&["exec", "--mode", "native", "--workspace", "overlay", "--", "sh", "-c", script]);
    let runs = place.state().join("runs");
    let upper = wait_for("the first file", || {
        let upper = fs::read_dir(&runs).ok()?.next()?.ok()?.path().join("layer/upper");
        upper.join("it.pid").exists().then_some(upper)
    });
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id())).unwrap();
    let gate: u32 = children.split_whitespace().next().unwrap().parse().unwrap();
    crate::support::signal(child.id(), "-STOP");
    crate::support::signal(gate, "-KILL");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(upper.join(".mcp.json").exists(), "nobody was left to take them away");
    wait_for("the end of the run", || (place.run(&["diff", "last"]).code() == 0).then_some(()));
    place.run(&["apply", "last"]).expect_code(0);
    let mut names: Vec<_> =
        fs::read_dir(place.work()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["it.pid", "work"]);
}

#[test]
fn apply_names_the_directory_that_a_link_leads_to() {
    let place = Place::new();
    run(&place, "echo new > new.txt").expect_code(0);
    let link = place.home().join("link");
    symlink(place.work(), &link).unwrap();
    let ran = place.run(&["apply", "last", "-C", link.to_str().unwrap()]).expect_code(0);
    let real = fs::canonicalize(place.work()).unwrap();
    assert!(ran.stderr.contains(&format!("applied to {}", real.display())), "{}", ran.stderr);
}

#[test]
fn commits_of_a_run_with_conflicts_are_named_and_can_be_imported() {
    let place = Place::new();
    let git = |args: &[&str]| {
        let ran = std::process::Command::new("git").args(args).current_dir(place.work()).output().unwrap();
        assert!(ran.status.success(), "{args:?}: {}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).unwrap()
    };
    let identity = ["-c", "user.name=u", "-c", "user.email=u@localhost"];
    git(&["init", "-q", "-b", "main", "."]);
    git(&[&identity[..], &["commit", "-q", "--allow-empty", "-m", "first"]].concat());
    let script =
        "echo b > b; git add b; git -c user.name=u -c user.email=u@localhost commit -qm second; mkfifo pipe";
    run(&place, script).expect_code(0);
    let refused = place.run(&["apply", "last"]).expect_code(1);
    assert!(
        refused.stderr.contains("were not imported") && refused.stderr.contains("--commits"),
        "{refused:?}"
    );
    assert!(!git(&["log", "--oneline"]).contains("second"));
    let applied = place.run(&["apply", "last", "--commits"]).expect_code(1);
    assert!(!applied.stderr.contains("were not imported"), "{applied:?}");
    assert!(git(&["log", "--oneline"]).contains("second"));
    let discarded = place.run(&["discard", "last"]).expect_code(0).stdout;
    assert!(discarded.starts_with("Discarded the changes of"), "{discarded}");
    run(&place, "git -c user.name=u -c user.email=u@localhost commit -q --allow-empty -m third")
        .expect_code(0);
    let discarded = place.run(&["discard", "last"]).expect_code(0).stdout;
    assert!(discarded.starts_with("Discarded the changes and commits of"), "{discarded}");
}
