//! What a run does to refs: nothing that was committed is lost, and what its commits bring is reported.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::Value;

use crate::git::{exec, git, repository};
use crate::support::Place;

/// Commits inside a run.
const COMMIT: &str = "git -c user.name=a -c user.email=a@b commit -q";

fn result(place: &Place) -> Value {
    place.run(&["runs", "show", "last", "--json"]).json()["result"].clone()
}

fn commit_of(at: &Path, name: &str) -> String {
    let (found, id) = git(at, &["rev-parse", "--verify", "-q", name]);
    if found { id.trim().to_owned() } else { String::new() }
}

fn overlay(place: &Place, script: &str) {
    place
        .run(&["exec", "--mode", "native", "--workspace", "overlay", "--", "sh", "-c", script])
        .expect_code(0);
}

/// The entry of a list of objects in which `key` has this value.
fn find<'a>(list: &'a Value, key: &str, value: &str) -> &'a Value {
    let found = list.as_array().into_iter().flatten().find(|one| one[key] == value);
    found.unwrap_or_else(|| panic!("no {key} {value}: {list}"))
}

#[test]
fn files_in_commits_that_programs_execute_are_reported() {
    let place = Place::new();
    repository(&place.work());
    let nested = place.work().join("sub");
    repository(&nested);
    assert!(git(&place.work(), &["config", "core.hooksPath", "tools/hooks"]).0);
    // The working tree is as before: only commits hold the files.
    let script = format!(
        "blob=$(echo evil | git hash-object -w --stdin); \
         git update-index --add --cacheinfo 100644,$blob,.envrc --cacheinfo 100644,$blob,plain --cacheinfo 100755,$blob,tools/hooks/pre-commit && {COMMIT} -m x; \
         git branch topic; git symbolic-ref HEAD refs/heads/topic; git update-index --add --cacheinfo 100644,$blob,.vscode/tasks.json; {COMMIT} -m y; \
         git tag v1; git rm -q --cached .envrc .vscode/tasks.json; {COMMIT} -m z; git update-ref refs/heads/topic2 v1^{{commit}}; \
         cd sub; blob=$(echo evil | git hash-object -w --stdin); \
         git update-index --add --cacheinfo 100644,$blob,.husky/pre-commit; {COMMIT} -m n"
    );
    let ran = exec(&place, &script);
    let result = result(&place);
    let files = &result["executed_later"];
    assert_eq!(find(files, "path", ".envrc")["git_ref"], "refs/heads/main", "{} {result}", ran.stderr);
    assert_eq!(find(files, "path", ".vscode/tasks.json")["git_ref"], "refs/heads/topic2", "{result}");
    assert_eq!(find(files, "path", "sub/.husky/pre-commit")["git_ref"], "refs/heads/main", "{result}");
    assert_eq!(find(files, "path", "tools/hooks/pre-commit")["git_ref"], "refs/heads/main", "{result}");
    // A repository that was there is none that the run has made, and other files are nobody's program.
    assert!(!files.to_string().contains("plain") && !files.to_string().contains("sub/.git"), "{files}");
    // Git comes first, and a program is told too.
    for first in [&files[0], &files[1]] {
        assert!(first["why"].as_str().unwrap().starts_with("git executes"), "{files}");
    }
    assert!(ran.stderr.contains("in commits of refs/heads/main"), "{}", ran.stderr);
}

#[test]
fn branches_and_tags_that_a_run_deletes_are_kept() {
    let place = Place::new();
    let work = place.work();
    repository(&work);
    assert!(git(&work, &["checkout", "-q", "-b", "old"]).0);
    assert!(git(&work, &["commit", "-q", "--allow-empty", "-m", "precious"]).0);
    assert!(git(&work, &["tag", "-m", "t", "v1"]).0);
    let (branch, tag) = (commit_of(&work, "old"), commit_of(&work, "v1"));
    assert!(git(&work, &["checkout", "-q", "main"]).0);
    exec(&place, "git branch -q -D old; git tag -d v1").expect_code(0);
    assert_eq!((commit_of(&work, "refs/heads/old"), commit_of(&work, "refs/tags/v1")), Default::default());
    let result = result(&place);
    for (name, id) in [("refs/heads/old", &branch), ("refs/tags/v1", &tag)] {
        let kept = find(&result["git_refs"], "name", name)["from_kept_as"].as_str().unwrap().to_owned();
        assert_eq!(&commit_of(&work, &kept), id, "{kept}");
        assert!(kept.contains("/before/"), "{kept}");
    }
    // It is restored as the documentation says.
    let run = result["run"].as_str().unwrap();
    assert!(git(&work, &["branch", "old", &format!("refs/ringfence/{run}/before/heads/old")]).0);
    assert_eq!(commit_of(&work, "old"), branch);
}

#[test]
fn commits_that_a_run_rewrites_are_kept_and_later_ones_need_no_ref() {
    let place = Place::new();
    let work = place.work();
    repository(&work);
    assert!(git(&work, &["commit", "-q", "--allow-empty", "-m", "precious"]).0);
    let precious = commit_of(&work, "main");
    exec(&place, &format!("{COMMIT} --allow-empty -m later")).expect_code(0);
    assert!(result(&place)["git_refs"][0]["from_kept_as"].is_null(), "{}", result(&place));
    let later = commit_of(&work, "main");
    exec(&place, &format!("git reset -q --hard HEAD~2; {COMMIT} --allow-empty -m other; git tag -f t"))
        .expect_code(0);
    let kept = find(&result(&place)["git_refs"], "name", "refs/heads/main")["from_kept_as"].clone();
    let kept = kept.as_str().unwrap().to_owned();
    assert_eq!(commit_of(&work, &kept), later);
    assert_eq!(commit_of(&work, &format!("{kept}~1")), precious);
    // The next run neither sees nor changes it, and a push does not take it along.
    let ran = exec(
        &place,
        "git for-each-ref; git log --all --format=%s; git update-ref -d $(git for-each-ref --format='%(refname)' refs/ringfence | head -1)",
    );
    assert!(!ran.stdout.contains("ringfence") && !ran.stdout.contains("precious"), "{}", ran.stdout);
    assert_eq!(commit_of(&work, &kept), later);
    let remote = place.home().join("remote.git");
    assert!(git(&work, &["init", "-q", "--bare", remote.to_str().unwrap()]).0);
    for what in ["--all", "--tags", "main"] {
        git(&work, &["push", "-q", remote.to_str().unwrap(), what]);
    }
    let pushed = git(&remote, &["for-each-ref", "--format=%(refname)"]).1;
    assert!(pushed.contains("refs/heads/main") && !pushed.contains("ringfence"), "{pushed}");
}

#[test]
fn refs_of_a_run_go_with_its_record() {
    let place = Place::new();
    let work = place.work();
    repository(&work);
    assert!(git(&work, &["branch", "old"]).0);
    exec(&place, "git branch -q -D old").expect_code(0);
    let listed = || git(&work, &["for-each-ref", "--format=%(refname)", "refs/ringfence"]).1;
    assert!(listed().contains("before/heads/old"), "{}", listed());
    place.run(&["prune", "--size", "1b", "--dry-run"]).expect_code(0);
    assert!(listed().contains("before/heads/old"), "{}", listed());
    place.run(&["prune", "--size", "1b"]).expect_code(0);
    assert_eq!(listed(), "");
}

/// A file that occupies no disk must not cost any when a private git directory is made of what a run left.
#[test]
fn large_indexes_that_a_run_leaves_are_not_copied() {
    let place = Place::new();
    repository(&place.work());
    let id = "0123456789012345678901234567890123456789";
    let script = format!(
        "for i in 1 2 3 4; do git init -q x$i; (cd x$i; {COMMIT} --allow-empty -m x; truncate -s 400M .git/sharedindex.{id}); done; \
         truncate -s 400M x4/.git/index"
    );
    exec(&place, &script).expect_code(0);
    let size = "du -s --apparent-size -BM $(find / -name 'x?' -maxdepth 3 2>/dev/null) | sort";
    let ran = exec(&place, &format!("{size}; git status > /dev/null && echo fine"));
    assert!(ran.stdout.contains("fine") && !ran.stdout.contains("40"), "{} {}", ran.stdout, ran.stderr);
    let notices = place.run(&["runs", "show", "last", "--json"]).json()["record"]["notices"].to_string();
    assert!(notices.contains(&format!("sharedindex.{id} of the git directory is not seen")), "{notices}");
    assert!(notices.contains("its index has 419430400 bytes"), "{notices}");
}

#[test]
fn refs_of_earlier_runs_do_not_keep_later_ones_from_git() {
    let place = Place::new();
    let work = place.work();
    repository(&work);
    let id = commit_of(&work, "main");
    let kept = work.join(".git/refs/ringfence/20260101-000000-aaaa/before/heads");
    fs::create_dir_all(&kept).unwrap();
    for number in 0..21_000 {
        fs::write(kept.join(number.to_string()), format!("{id}\n")).unwrap();
    }
    let ran = exec(&place, &format!("{COMMIT} --allow-empty -m inside")).expect_code(0);
    assert_eq!(git(&work, &["log", "-1", "--format=%s"]).1, "inside\n", "{}", ran.stderr);
}

#[test]
fn a_repository_that_names_another_git_directory_is_not_imported() {
    let place = Place::new();
    repository(&place.work());
    let outside = place.work().parent().unwrap().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious.txt"), "precious").unwrap();
    let prepare = format!(
        "git init -q -b main t/x; cd t/x; git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x; \
         git branch precious.txt; mkdir ../D; cp -r .git/objects .git/refs ../D/; mkdir -p ../D/logs/refs; \
         ln -s {} ../D/logs/refs/heads; echo ../../D > .git/commondir",
        outside.display()
    );
    exec(&place, &prepare).expect_code(0);
    exec(&place, "git -C t/x branch -q -D precious.txt; git -C t/x branch -q other; true").expect_code(0);
    assert_eq!(fs::read_to_string(outside.join("precious.txt")).unwrap(), "precious");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
}

#[test]
fn files_that_are_only_staged_or_stashed_are_reported() {
    let place = Place::new();
    let work = place.work();
    repository(&work);
    assert!(git(&work, &["config", "core.hooksPath", "tools/hooks"]).0);
    symlink("../../scripts/pc.sh", work.join(".git/hooks/pre-push")).unwrap();
    let script = "blob=$(echo evil | git hash-object -w --stdin); \
         export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; \
         tree() { GIT_INDEX_FILE=/tmp/$1 git update-index --add --cacheinfo 100644,$blob,$2; GIT_INDEX_FILE=/tmp/$1 git write-tree; }; \
         index=$(git commit-tree -p HEAD -m i $(tree one .envrc)); untracked=$(git commit-tree -m u $(tree two .vscode/tasks.json)); \
         git update-ref refs/stash $(git commit-tree -p HEAD -p $index -p $untracked -m w HEAD^{tree}); \
         git update-index --add --cacheinfo 100755,$blob,.husky/pre-commit --cacheinfo 100755,$blob,tools/hooks/x \
             --cacheinfo 100755,$blob,scripts/pc.sh --cacheinfo 100755,$blob,plain";
    let ran = exec(&place, script).expect_code(0);
    let result = result(&place);
    let files = &result["executed_later"];
    for (path, git_ref) in [
        (".envrc", "refs/stash"),
        (".vscode/tasks.json", "refs/stash"),
        (".husky/pre-commit", "index"),
        ("tools/hooks/x", "index"),
        ("scripts/pc.sh", "index"),
    ] {
        assert_eq!(find(files, "path", path)["git_ref"], git_ref, "{result}");
    }
    assert!(!files.to_string().contains("plain"), "{files}");
    assert!(ran.stderr.contains("in git's index"), "{}", ran.stderr);
}

/// Neither many files nor many refs keep what the configuration names out of the list.
#[test]
fn commits_that_lead_configured_hooks_elsewhere_are_reported_first() {
    let place = Place::new();
    let work = place.work();
    repository(&work);
    fs::create_dir_all(work.join("tools/hooks")).unwrap();
    fs::write(work.join("tools/hooks/pre-commit"), "true\n").unwrap();
    fs::create_dir_all(work.join("sub/git")).unwrap();
    fs::write(work.join("sub/git/file"), "1\n").unwrap();
    assert!(git(&work, &["add", "-A"]).0 && git(&work, &["commit", "-qm", "hooks"]).0);
    assert!(git(&work, &["config", "core.hooksPath", "tools/hooks"]).0);
    assert!(git(&work, &["config", "--add", "core.hooksPath", "sub/git/../hooks"]).0);
    let script = format!(
        "blob=$(echo evil | git hash-object -w --stdin); link=$(printf other | git hash-object -w --stdin); \
         for i in $(seq 60); do git update-index --add --cacheinfo 100644,$blob,a$i/.gitmodules; done; {COMMIT} -m many; \
         for i in $(seq 40); do git branch a$i; done; \
         git update-index --force-remove tools/hooks/pre-commit; git update-index --force-remove sub/git/file; \
         git update-index --add --cacheinfo 120000,$link,tools --cacheinfo 120000,$link,sub/git && {COMMIT} -m x"
    );
    overlay(&place, &script);
    let told = place.run(&["apply", "last"]).expect_code(0).stderr;
    let by = "(git executes what its configuration and hooks name, in commits of refs/heads/main)";
    for part in [&format!(": sub/git {by}, tools {by}"), "12 more files in commits", "9 more refs"] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

#[test]
fn a_merge_of_the_user_goes_on_unless_a_commit_ended_it() {
    let place = Place::new();
    let work = place.work();
    repository(&work);
    assert!(git(&work, &["checkout", "-q", "-b", "other"]).0);
    assert!(git(&work, &["commit", "-q", "--allow-empty", "-m", "theirs"]).0);
    assert!(git(&work, &["checkout", "-q", "main"]).0);
    assert!(git(&work, &["merge", "-q", "--no-ff", "--no-commit", "other"]).0);
    let state = work.join(".git/MERGE_HEAD");
    assert!(state.exists());
    exec(&place, "rm .git/MERGE_HEAD .git/MERGE_MSG; git branch made").expect_code(0);
    assert!(state.exists() && !commit_of(&work, "made").is_empty());
    exec(&place, &format!("{COMMIT} --no-edit")).expect_code(0);
    assert!(!state.exists() && !commit_of(&work, "main^2").is_empty());
}

#[test]
fn commits_of_a_detached_head_are_kept() {
    let place = Place::new();
    let work = place.work();
    repository(&work);
    assert!(git(&work, &["checkout", "-q", "--detach"]).0);
    // What a branch names needs no other name.
    exec(&place, "git checkout -q main").expect_code(0);
    assert!(git(&work, &["for-each-ref", "refs/ringfence"]).1.is_empty());
    assert!(git(&work, &["checkout", "-q", "--detach"]).0);
    assert!(git(&work, &["commit", "-q", "--allow-empty", "-m", "precious"]).0);
    let precious = commit_of(&work, "HEAD");
    let ran = exec(&place, "git checkout -q main").expect_code(0);
    let kept = find(&result(&place)["git_refs"], "name", "HEAD")["from_kept_as"].clone();
    let kept = kept.as_str().unwrap();
    assert_eq!(commit_of(&work, kept), precious, "{}", ran.stderr);
}

#[test]
fn commits_in_an_overlay_are_shown_and_its_files_are_reported() {
    let place = Place::new();
    repository(&place.work());
    overlay(&place, "git status");
    assert!(place.run(&["diff", "last"]).stdout.contains("Nothing was changed."));
    overlay(&place, &format!("{COMMIT} --allow-empty -m x"));
    let shown = place.run(&["diff", "last"]).expect_code(0);
    assert!(!shown.stdout.contains("Nothing was changed."), "{}", shown.stdout);
    assert!(shown.stderr.contains("the run changed branches"), "{}", shown.stderr);
    overlay(&place, "mkdir sub; echo evil > sub/.envrc");
    let applied = place.run(&["apply", "last"]).expect_code(0);
    assert!(applied.stderr.contains("programs execute: sub/.envrc"), "{} {}", applied.stdout, applied.stderr);
}

fn told(place: &Place) -> String {
    place.run(&["runs", "show", "last", "--json"]).stdout
}

#[test]
fn what_is_not_taken_over_is_said() {
    for (script, part) in [
        (
            "git update-ref -d refs/heads/main",
            "checked out was deleted by the run and is still there: refs/heads/main",
        ),
        ("git stash drop -q", "the stash that the run dropped is still there"),
        (
            "echo 3 > file; git stash -q; echo 4 > file; git stash -q",
            "only the last stash of the run is taken over, 1 before it went with the run",
        ),
        ("git update-ref refs/other/x HEAD", "not taken over: refs/other/x"),
        ("git config user.name evil", "changes of git's configuration by the run were not taken over"),
        ("git merge -q --no-commit --no-ff side", "did not end is not taken over: "),
        ("git worktree add -q /tmp/other", "linked worktrees that the run added"),
        ("rm .git/packed-refs", "still there: refs/heads/"),
        (
            "n=$(printf %0200d 0); git pack-refs --all; for i in 1 2 3 4 5 6; do l=$l/$n; done; echo \"$(git rev-parse HEAD) refs/heads$l\" >> .git/packed-refs",
            "1 refs of the run were not taken over",
        ),
    ] {
        let place = Place::new();
        let work = place.work();
        repository(&work);
        assert!(git(&work, &["checkout", "-q", "-b", "side"]).0);
        assert!(git(&work, &["commit", "-q", "--allow-empty", "-m", "side"]).0);
        assert!(git(&work, &["checkout", "-q", "main"]).0);
        fs::write(work.join("file"), "2\n").unwrap();
        assert!(git(&work, &["stash", "-q"]).0);
        let main = commit_of(&work, "main");
        let ran = exec(
            &place,
            &format!(
                "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; {script}"
            ),
        );
        assert!(ran.stderr.contains(part), "{script}: {}", ran.stderr);
        assert_eq!(commit_of(&work, "refs/heads/main"), main, "{script}");
        assert!(git(&work, &["stash", "list"]).1.contains("WIP"), "{script}");
        exec(&place, "git log -1").expect_code(0);
    }
}

/// No run leaves a repository in which later runs have no git.
#[test]
fn refs_and_indexes_that_a_later_start_refuses_are_kept_aside() {
    let place = Place::new();
    let work = place.work();
    repository(&work);
    // As many as earlier runs could have left.
    let id = commit_of(&work, "main");
    fs::create_dir(work.join(".git/refs/heads/many")).unwrap();
    for number in 0..9_990 {
        fs::write(work.join(format!(".git/refs/heads/many/{number}")), format!("{id}\n")).unwrap();
    }
    let deep = (0..60).map(|_| "d").collect::<Vec<_>>().join("/");
    let script = format!(
        "for n in $(seq 1 30); do echo \"create refs/heads/new$n HEAD\"; done | git update-ref --stdin; \
         git pack-refs --all; echo \"$(git rev-parse HEAD) refs/tags/{deep}\" >> .git/packed-refs; {COMMIT} --allow-empty -m later"
    );
    let ran = exec(&place, &script).expect_code(0);
    assert!(ran.stderr.contains("the repository has too many refs"), "{}", ran.stderr);
    assert!(ran.stderr.contains("its name has too many parts"), "{}", ran.stderr);
    let result = result(&place);
    let kept = find(&result["git_refs"], "name", "refs/heads/new9")["kept_as"].as_str().unwrap().to_owned();
    assert_eq!(commit_of(&work, &kept), id);
    assert_ne!(commit_of(&work, "main"), id, "what exists is moved");
    exec(&place, "git log -1 && git for-each-ref refs/heads/many/1").expect_code(0);
}

#[test]
fn a_file_that_several_refs_bring_is_reported_with_all_of_them() {
    let place = Place::new();
    repository(&place.work());
    let script = format!(
        "blob=$(echo evil | git hash-object -w --stdin); git update-index --add --cacheinfo 100644,$blob,.envrc; {COMMIT} -m x; \
         git branch other; git tag v1"
    );
    let ran = exec(&place, &script).expect_code(0);
    let result = result(&place);
    let file = find(&result["executed_later"], "path", ".envrc");
    assert_eq!(file["git_ref"], "refs/heads/main", "{result}");
    for name in ["refs/heads/other", "refs/tags/v1"] {
        assert!(file["more_git_refs"].to_string().contains(name), "{result}");
    }
    assert!(ran.stderr.contains("in commits of refs/heads/main and "), "{} {}", ran.stderr, told(&place));
}

/// Names an object after the tree of the branch `feature` that holds another tree.
const FORGE: &str = "echo x > forged; git add forged; other=$(git write-tree); git reset -q; tree=$(git rev-parse feature^{tree}); \
    name() { echo .git/objects/$(echo $1 | cut -c1-2)/$(echo $1 | cut -c3-); }; \
    mkdir -p $(dirname $(name $tree)); cp $(name $other) $(name $tree); git diff-tree -r --name-only main feature";

#[test]
fn a_forged_object_does_not_hide_a_file_in_a_commit() {
    let place = Place::new();
    repository(&place.work());
    // The tree is in the repository, and no branch has the file.
    let add = "git update-index --add --cacheinfo 100644,$(echo evil | git hash-object -w --stdin),.envrc";
    exec(&place, &format!("{add} && {COMMIT} -m a && git rm -q --cached .envrc && {COMMIT} -m b"))
        .expect_code(0);
    let commit =
        "git branch feature $(git -c user.name=a -c user.email=a@b commit-tree -p main -m c main~1^{tree})";
    let ran = exec(&place, &format!("{commit}; {FORGE}"));
    assert_eq!(ran.stdout, "forged\n", "the object was not forged: {}", ran.stderr);
    let result = result(&place);
    assert!(git(&place.work(), &["ls-tree", "--name-only", "feature"]).1.contains(".envrc"), "{result}");
    let file = find(&result["executed_later"], "path", ".envrc");
    assert_eq!(file["git_ref"], "refs/heads/feature", "{result}");
}

/// Makes a directory `t` that git takes for a git directory.
const BARE: &str = r#"mkdir -p t/objects t/refs; echo "ref: refs/heads/main" > t/HEAD; touch t/objects/k t/refs/k; \
    printf "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = ..\n\tfsmonitor = \"touch /tmp/x;false\"\n" > t/config"#;

#[test]
fn bare_repository_in_a_commit_is_reported() {
    let place = Place::new();
    repository(&place.work());
    let script =
        format!("git checkout -qb feature; {BARE}; git add -A; {COMMIT} -m fixture; git checkout -q main");
    let ran = exec(&place, &script).expect_code(0);
    let result = result(&place);
    let file = find(&result["executed_later"], "path", "t/HEAD");
    assert_eq!(file["git_ref"], "refs/heads/feature", "{result}");
    assert!(file["why"].as_str().unwrap().starts_with("git executes"), "{result}");
    assert!(ran.stderr.contains("t/HEAD"), "{}", ran.stderr);
}

#[test]
fn bare_repository_that_a_commit_completes_is_reported() {
    let place = Place::new();
    let work = place.work();
    repository(&work);
    // Two of its parts are there already, and the third comes alone.
    fs::create_dir_all(work.join("t/objects")).unwrap();
    fs::write(work.join("t/HEAD"), "ref: refs/heads/main\n").unwrap();
    fs::write(work.join("t/objects/k"), "").unwrap();
    assert!(git(&work, &["add", "-A"]).0 && git(&work, &["commit", "-qm", "parts"]).0);
    let add = "git update-index --add --cacheinfo 100644,$(git hash-object -w /dev/null),t/REFS/k";
    exec(
        &place,
        &format!(
            "{add}; {COMMIT} -m third; git rm -q --cached t/REFS/k; {COMMIT} -m gone; git branch x HEAD~1"
        ),
    )
    .expect_code(0);
    let found = result(&place);
    assert_eq!(find(&found["executed_later"], "path", "t/HEAD")["git_ref"], "refs/heads/x", "{found}");
    exec(&place, add).expect_code(0);
    let found = result(&place);
    assert_eq!(find(&found["executed_later"], "path", "t/HEAD")["git_ref"], "index", "{found}");
}

/// A run does not move what another working tree of the user has checked out.
#[test]
fn branches_of_other_working_trees_stay() {
    let place = Place::new();
    let work = place.work();
    repository(&work);
    let other = place.home().join("other");
    assert!(git(&work, &["worktree", "add", "-q", "-b", "side", other.to_str().unwrap()]).0);
    let before = commit_of(&work, "side");
    let moved = exec(&place, &format!("{COMMIT} --allow-empty -m x; git branch -f side main"));
    assert!(moved.stderr.contains("another working tree"), "{}", moved.stderr);
    let kept = find(&result(&place)["git_refs"], "name", "refs/heads/side")["kept_as"].clone();
    assert_eq!(commit_of(&work, kept.as_str().unwrap()), commit_of(&work, "main"));
    let deleted = exec(&place, "git branch -D side");
    assert!(deleted.stderr.contains("refs/heads/side was not changed: another"), "{}", deleted.stderr);
    assert_eq!(commit_of(&work, "side"), before);
    assert_eq!(git(&other, &["status", "--porcelain"]), (true, String::new()));
}

/// Refs of repositories that an earlier run made below the workspace cost a later start little.
#[test]
fn refs_of_planted_repositories_are_not_read_beyond_a_budget() {
    let place = Place::new();
    let work = place.work();
    repository(&work);
    let id = commit_of(&work, "main");
    for name in ["mine", "planted"] {
        repository(&work.join(name));
    }
    let lines: String =
        (0..700_000).map(|number| format!("{id} refs/tags/tag-number-{number:08}\n")).collect();
    fs::write(work.join("planted/.git/packed-refs"), lines).unwrap();
    let ran = exec(&place, &format!("git log -1 && cd mine && {COMMIT} --allow-empty -m x")).expect_code(0);
    let notices = place.run(&["runs", "show", "last", "--json"]).json()["record"]["notices"].to_string();
    assert!(
        notices.contains("planted/.git is not seen in this run: it has more refs"),
        "{notices}{}",
        ran.stderr
    );
    assert_eq!(git(&work.join("mine"), &["log", "-1", "--format=%s"]).1, "x\n");
}

/// A prompt or a completion of a shell evaluates names of branches.
#[test]
fn branches_with_names_for_shells_are_kept_encoded() {
    let place = Place::new();
    let work = place.work();
    repository(&work);
    let ran =
        exec(&place, "git branch 'x$(touch${IFS}evil)'; git checkout -q --orphan '`evil`'").expect_code(0);
    assert!(ran.stderr.contains("shells could execute its name"), "{}", ran.stderr);
    assert_eq!(git(&work, &["branch", "--format=%(refname)"]).1, "refs/heads/main\n");
    let kept = find(&result(&place)["git_refs"], "name", "refs/heads/x$(touch${IFS}evil)")["kept_as"].clone();
    assert!(kept.as_str().unwrap().ends_with("/heads/x%24%28touch%24%7BIFS%7Devil%29"), "{kept}");
    assert_eq!(git(&work, &["symbolic-ref", "HEAD"]).1, "refs/heads/main\n");
}

/// With `files.git: direct` the run writes the git directory itself, and what it leaves there is reported.
#[test]
fn what_a_writable_git_directory_leads_to_is_reported() {
    let place = Place::new();
    let work = place.work();
    repository(&work);
    fs::write(work.join("inc.conf"), "[user]\n\tname = me\n").unwrap();
    fs::create_dir(work.join("scripts")).unwrap();
    assert!(git(&work, &["config", "include.path", "../inc.conf"]).0);
    assert!(git(&work, &["config", "core.hooksPath", "scripts"]).0);
    let module = work.join(".git/modules/libs/deep");
    for name in ["objects", "refs"] {
        fs::create_dir_all(module.join(name)).unwrap();
    }
    fs::write(module.join("HEAD"), "ref: refs/heads/main\n").unwrap();
    fs::write(module.join("config"), "").unwrap();
    let policy = place.home().join("own.json");
    fs::write(&policy, r#"{"extends": "standard", "files": {"git": "direct", "protect": []}}"#).unwrap();
    let script = "echo '[core]' >> inc.conf; echo evil > scripts/pre-commit; echo '[core]' > .git/modules/libs/deep/config; echo x > plain";
    let ran = place.run(&[
        "exec",
        "--mode",
        "native",
        "--policy",
        policy.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        script,
    ]);
    let files = result(&place)["executed_later"].clone();
    for path in ["inc.conf", "scripts/pre-commit", ".git/modules/libs/deep/config"] {
        let file = find(&files, "path", path);
        assert!(file["why"].as_str().unwrap().starts_with("git executes"), "{files} {}", ran.stderr);
    }
    assert!(!files.to_string().contains("plain"), "{files}");
}

#[test]
fn bare_repository_in_commits_of_an_overlay_is_reported() {
    let place = Place::new();
    repository(&place.work());
    overlay(&place, &format!("{BARE}; git add -A; {COMMIT} -m fixture"));
    let applied = place.run(&["apply", "last"]).expect_code(0);
    assert!(applied.stderr.contains("t/HEAD"), "{} {}", applied.stdout, applied.stderr);
}

/// Files of an overlay that git executes are marked where it is shown, applied and in the result of the run.
#[test]
fn bare_repository_in_an_overlay_is_reported() {
    let place = Place::new();
    let work = place.work();
    repository(&work);
    // One that the run completes alone.
    fs::create_dir_all(work.join("u/refs")).unwrap();
    fs::write(work.join("u/HEAD"), "ref: refs/heads/main\n").unwrap();
    fs::write(work.join("u/refs/k"), "").unwrap();
    overlay(
        &place,
        &format!(
            "{BARE}; mkdir t/hooks u/objects; echo x > t/hooks/post-checkout; echo x > u/objects/k; echo x > plain"
        ),
    );
    let found = result(&place);
    for path in ["t/HEAD", "u/HEAD"] {
        let file = find(&found["executed_later"], "path", path);
        assert!(file["why"].as_str().unwrap().starts_with("git executes"), "{found}");
    }
    let shown = place.run(&["diff", "last", "--json"]).expect_code(0).json();
    let list = if shown.is_array() { &shown } else { &shown["changes"] };
    let marked = list.as_array().unwrap().iter().filter(|change| change["executed_later"].is_string());
    let mut marked: Vec<&str> = marked.map(|change| change["path"].as_str().unwrap()).collect();
    marked.sort_unstable();
    assert_eq!(marked[..3], ["t/HEAD", "t/config", "t/hooks/post-checkout"], "{shown}");
    assert!(marked.len() == 4 && marked[3].starts_with("u/objects"), "{shown}");
    let applied = place.run(&["apply", "last"]).expect_code(0);
    assert!(applied.stderr.contains("t/HEAD (git executes"), "{} {}", applied.stdout, applied.stderr);
}

/// A new ref whose short name git or the user takes for another one is kept apart.
#[test]
fn refs_that_shadow_other_names_are_kept_under_the_run() {
    let place = Place::new();
    let work = place.work();
    repository(&work);
    for name in ["refs/remotes/origin/main", "refs/remotes/up/main", "refs/tags/v1", "refs/heads/topic"] {
        assert!(git(&work, &["update-ref", name, "HEAD"]).0);
    }
    assert!(git(&work, &["symbolic-ref", "refs/remotes/up/HEAD", "refs/remotes/up/main"]).0);
    // Nothing is fetched of it yet.
    assert!(git(&work, &["config", "remote.fork.url", "elsewhere"]).0);
    let shadows = [
        "heads/origin/release",
        "tags/fork/v3",
        "heads/fork",
        "tags/main",
        "tags/origin/main",
        "tags/up",
        "heads/origin/main",
        "heads/v1",
        "tags/topic",
        "tags/HEAD",
        "heads/FETCH_HEAD",
        "tags/ORIG_HEAD",
        "heads/MERGE_HEAD",
        "tags/NEW_HEAD",
        "heads/refs",
        "tags/stash",
        "tags/refs/heads/main",
        "heads/tags/v1",
        "heads/heads/main",
        "tags/remotes/x",
        "heads/remotes/origin/main",
        "heads/notes/commits",
        "heads/abcd",
        "tags/0123456789",
        "heads/v1-3-gabc1234",
    ];
    let free = ["tags/v2", "heads/feature/main", "tags/heads", "heads/forked/x"];
    let made = shadows.iter().chain(&free).map(|name| format!("git update-ref refs/{name} HEAD"));
    let made: Vec<String> = made.collect();
    let ran = exec(&place, &format!("{COMMIT} --allow-empty -m x; {}", made.join("; "))).expect_code(0);
    let refs = result(&place)["git_refs"].clone();
    for name in shadows {
        let full = format!("refs/{name}");
        let kept = find(&refs, "name", &full)["kept_as"].as_str().unwrap_or_default();
        assert!(kept.starts_with("refs/ringfence/") && kept.ends_with(name), "{name}: {kept}");
        assert_eq!(commit_of(&work, kept), commit_of(&work, "refs/heads/main"), "{name}");
        assert!(ran.stderr.contains(&format!("{full} was not moved")), "{name}: {}", ran.stderr);
    }
    for name in free {
        assert_eq!(find(&refs, "name", &format!("refs/{name}"))["kept_as"], Value::Null, "{name}");
    }
    for name in ["refs/tags/main", "refs/heads/origin/main", "refs/heads/v1", "refs/tags/stash"] {
        assert_eq!(commit_of(&work, name), "", "{name}");
    }
}

/// Refs that cannot be moved have notices and comparisons of their own.
#[test]
fn many_refs_that_are_kept_aside_hide_nothing() {
    let place = Place::new();
    repository(&place.work());
    let script = "blob=$(echo evil | git hash-object -w --stdin); \
         git update-index --add --cacheinfo 100644,$blob,.envrc; tree=$(git write-tree); git read-tree HEAD; \
         bad=$(git -c user.name=a -c user.email=a@b commit-tree $tree -p HEAD -m x); mkdir -p .git/refs/heads; \
         other=$(git -c user.name=a -c user.email=a@b commit-tree HEAD^{tree} -p HEAD -m y); \
         for i in $(seq 10 69); do echo $other > \".git/refs/heads/a;$i\"; done; MORE; echo $bad > .git/refs/heads/zfix";
    let ran = exec(&place, &script.replace("MORE", ":")).expect_code(0);
    assert!(ran.stderr.contains("more refs were not moved"), "{}", ran.stderr);
    let result_of = result(&place);
    let file = find(&result_of["executed_later"], "path", ".envrc");
    assert_eq!(file["git_ref"], "refs/heads/zfix", "{result_of}");
    // Nor do they hide that there were too many.
    let script = script.replace("MORE", "for i in $(seq 10 69); do echo $other > .git/refs/heads/b$i; done");
    let ran = exec(&place, &script.replace("a;", "a;x").replace("zfix", "zfix2")).expect_code(0);
    assert!(ran.stderr.contains("were not all searched"), "{}", ran.stderr);
}

/// What a link among the objects of a planted repository leads to is not taken for an object of the run.
#[test]
fn linked_objects_of_a_planted_repository_are_not_imported() {
    let place = Place::new();
    repository(&place.work());
    let private = place.home().join("private");
    repository(&private);
    fs::write(private.join("password"), "canary-secret\n").unwrap();
    assert!(git(&private, &["add", "-A"]).0 && git(&private, &["commit", "-qm", "two"]).0);
    let blob = commit_of(&private, "HEAD:password");
    let (fan, rest) = blob.split_at(2);
    let objects = private.canonicalize().unwrap().join(".git/objects");
    let pack = "mkdir -p .git/objects/pack";
    for (number, plant) in [
        format!("mkdir -p .git/objects/{fan}; ln -s {}/{fan}/{rest} .git/objects/{fan}/", objects.display()),
        format!(
            "{pack}; for e in pack idx; do ln -s {}/pack/pack-1.$e .git/objects/pack/pack-{blob}.$e; done",
            objects.display()
        ),
    ]
    .iter()
    .enumerate()
    {
        if number == 1 {
            assert!(git(&private, &["repack", "-adq"]).0);
            for ending in ["pack", "idx"] {
                let mut packs =
                    fs::read_dir(objects.join("pack")).unwrap().flatten().map(|entry| entry.path());
                let one = packs.find(|path| path.extension().is_some_and(|end| end == ending)).unwrap();
                fs::copy(one, objects.join(format!("pack/pack-1.{ending}"))).unwrap();
            }
        }
        let nested = format!("n{number}");
        exec(&place, &format!("git init -q {nested}; cd {nested}; {COMMIT} --allow-empty -m 1; {plant}"))
            .expect_code(0);
        let many = "for i in $(seq 1 250); do echo $i > f$i; done; git add .";
        exec(
            &place,
            &format!(
                "cd {nested}; {many}; {COMMIT} -m 2; mkdir -p .git/refs/tags; echo {blob} > .git/refs/tags/leak"
            ),
        );
        let read = "git cat-file -p leak; git cat-file --batch-all-objects --batch; true";
        let ran = exec(&place, &format!("cd {nested}; git cat-file -p {blob}; {read}"));
        assert!(!ran.stdout.contains("canary"), "{plant}");
        assert!(
            !git(&place.work().join(&nested), &["rev-parse", "--verify", "-q", "refs/tags/leak"]).0,
            "{plant}"
        );
    }
}
