//! A run that has git track a file that is hidden from it, so that the user's next commit holds what is in it.

use std::fs;
use std::path::Path;

use crate::git::{exec, git, repository};
use crate::support::{Place, Ran};

/// Git inside a run.
const GIT: &str = "git -c user.name=a -c user.email=a@b";
/// Stages an entry for the file that the run does not see.
const STAGE: &str = "blob=$(git hash-object -w --stdin </dev/null); \
     git update-index --add --cacheinfo 100644,$blob,server.pem; echo more >> file";

/// A repository with an ignored file that the policy denies.
fn with_secret(place: &Place, at: &Path) {
    fs::create_dir_all(at).unwrap();
    repository(at);
    fs::write(at.join(".gitignore"), "*.pem\n.env\n").unwrap();
    assert!(git(at, &["add", "-A"]).0 && git(at, &["commit", "-qm", "two"]).0);
    fs::write(at.join("server.pem"), "canary-secret\n").unwrap();
    assert!(!exec(place, "cat server.pem").stdout.contains("canary"));
}

/// What the user does next makes no object of the secret that a later run can read.
fn assert_not_taken(place: &Place, at: &Path, ran: &Ran) {
    git(at, &["commit", "-qam", "mine"]);
    fs::write(at.join("file"), "changed\n").unwrap();
    git(at, &["stash", "-q"]);
    let read = "git show HEAD:server.pem; git show stash@{0}:server.pem; \
         git cat-file --batch-all-objects --batch-check --batch; true";
    let read = exec(place, &format!("{read}; cd nested && {{ {read}; }}; true"));
    assert!(!read.stdout.contains("canary"), "{}", ran.stderr);
    assert!(ran.stderr.contains("server.pem"), "{}", ran.stderr);
}

#[test]
fn index_with_a_hidden_file_is_not_taken_over() {
    let place = Place::new();
    with_secret(&place, &place.work());
    let ran = exec(&place, STAGE).expect_code(0);
    assert!(ran.stderr.contains("the index was not taken over"), "{}", ran.stderr);
    assert_eq!(git(&place.work(), &["ls-files", "server.pem"]).1, "");
    assert_not_taken(&place, &place.work(), &ran);
}

#[test]
fn branch_with_a_hidden_file_is_kept_aside() {
    for commit in ["", "git checkout -q -b topic; ", "git checkout -q --detach; "] {
        let place = Place::new();
        let work = place.work();
        with_secret(&place, &work);
        let before = git(&work, &["rev-parse", "HEAD"]).1;
        let ran = exec(&place, &format!("{commit}{STAGE}; {GIT} commit -qam fix")).expect_code(0);
        assert_eq!(git(&work, &["rev-parse", "HEAD"]).1, before, "{commit}");
        assert!(git(&work, &["for-each-ref", "refs/ringfence"]).1.contains("refs/ringfence/"), "{commit}");
        assert_not_taken(&place, &work, &ran);
    }
}

/// Git tracks a gitlink as well, and a file in its place goes into the next commit.
#[test]
fn branch_with_a_gitlink_in_the_place_of_a_hidden_file_is_kept_aside() {
    for name in ["refs/heads/main", "refs/heads/topic"] {
        let place = Place::new();
        let work = place.work();
        with_secret(&place, &work);
        fs::write(work.join(".gitmodules"), "[submodule \"x\"]\n\tpath = x\n\turl = y\n").unwrap();
        let before = git(&work, &["rev-parse", "HEAD"]).1;
        let add = format!(
            "export GIT_INDEX_FILE=/tmp/i; git read-tree HEAD; \
             git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),server.pem; \
             git update-ref {name} $({GIT} commit-tree $(git write-tree) -p HEAD -m x)"
        );
        let ran = exec(&place, &add).expect_code(0);
        assert_eq!(git(&work, &["rev-parse", "HEAD"]).1, before, "{name}");
        assert!(!git(&work, &["rev-parse", "--verify", "-q", "topic"]).0, "{name}");
        assert!(ran.stderr.contains("server.pem, which is hidden from runs"), "{name}: {}", ran.stderr);
        git(&work, &["reset", "-q"]);
        assert_not_taken(&place, &work, &ran);
    }
}

#[test]
fn stash_with_a_hidden_file_is_kept_aside() {
    let place = Place::new();
    with_secret(&place, &place.work());
    let ran =
        exec(&place, &format!("{STAGE}; {GIT} stash -q; git update-index --force-remove server.pem; true"));
    assert!(!git(&place.work(), &["rev-parse", "--verify", "-q", "refs/stash"]).0, "{}", ran.stderr);
    git(&place.work(), &["stash", "pop", "-q", "--index"]);
    assert_not_taken(&place, &place.work(), &ran);
}

#[test]
fn hidden_file_of_a_repository_below_is_not_taken_over() {
    let place = Place::new();
    repository(&place.work());
    let nested = place.work().join("nested");
    with_secret(&place, &nested);
    let ran = exec(&place, &format!("cd nested; {STAGE}; {GIT} commit -qam fix")).expect_code(0);
    assert_not_taken(&place, &nested, &ran);
}

/// A file of such a name that the run itself makes holds nothing that it could not read.
#[test]
fn denied_file_of_a_run_is_taken_over_with_a_notice() {
    let place = Place::new();
    let work = place.work();
    repository(&work);
    let ran =
        exec(&place, &format!("mkdir t; echo test > t/ca.pem; git add t; {GIT} commit -qm t")).expect_code(0);
    assert_eq!(git(&work, &["show", "HEAD:t/ca.pem"]).1, "test\n");
    assert!(ran.stderr.contains("adds t/ca.pem, which the policy denies"), "{}", ran.stderr);
}

/// One that git knows already is changed as any other.
#[test]
fn tracked_hidden_file_can_be_in_commits() {
    let place = Place::new();
    let work = place.work();
    repository(&work);
    fs::write(work.join("server.pem"), "1\n").unwrap();
    assert!(git(&work, &["add", "-A"]).0 && git(&work, &["commit", "-qm", "two"]).0);
    exec(&place, &format!("{STAGE}; {GIT} commit -qm fix file")).expect_code(0);
    assert_eq!(git(&work, &["log", "-1", "--format=%s"]).1, "fix\n");
}
