//! Submodules that a run adds, or whose repositories it makes: `git status` of the user would execute what they name.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::git::{exec, git, repository, trap};
use crate::support::{Place, Ran, wait_for};

/// Git inside a run.
const GIT: &str = "git -c user.name=a -c user.email=a@b -c core.fsmonitor=false";

fn commit_of(at: &Path, name: &str) -> String {
    git(at, &["rev-parse", "--verify", "-q", name]).1.trim().to_owned()
}

/// A repository in a directory, which shows when git executes what it names.
fn nested(script: &str) -> String {
    format!(
        "git init -q sub; cd sub; {GIT} commit -q --allow-empty -m x; git config core.fsmonitor '{script};:'; cd ..; "
    )
}

#[test]
fn gitlink_to_a_repository_of_a_run_is_kept_aside() {
    for (first, second) in [
        (true, "COMMIT"),
        (false, "COMMIT"),
        (true, "STAGE"),
        (false, "STAGE"),
        (false, "git checkout -q --detach; COMMIT"),
        (false, "git checkout -q -b topic; COMMIT"),
    ] {
        let place = Place::new();
        let work = place.work();
        repository(&work);
        let before = commit_of(&work, "main");
        let (script, mark) = trap(&place);
        let made = nested(&script);
        let add = second.replace("COMMIT", &format!("{GIT} add sub; {GIT} commit -qm add"));
        let add = add.replace("STAGE", &format!("{GIT} add sub"));
        let ran = match first {
            true => {
                exec(&place, &made).expect_code(0);
                exec(&place, &add).expect_code(0)
            }
            false => exec(&place, &format!("{made}{add}")).expect_code(0),
        };
        assert!(work.join("sub/.git").is_dir(), "{second}");
        // The repository is there, and git does not know it.
        assert_eq!(git(&work, &["ls-files", "sub"]).1, "", "{first} {second}");
        assert_eq!(commit_of(&work, "HEAD"), before, "{first} {second}");
        for words in [&["status"][..], &["diff"], &["diff", "HEAD"], &["commit", "-qam", "x"]] {
            git(&work, words);
        }
        assert!(!mark.exists(), "{first} {second}");
        assert!(ran.stderr.contains("submodule sub"), "{first} {second}: {}", ran.stderr);
        let shown = place.run(&["runs", "show", "last", "--json"]).json();
        let files = shown["result"]["executed_later"].to_string();
        assert!(second.contains("STAGE") || files.contains("\"path\":\"sub\""), "{second}: {shown}");
    }
}

#[test]
fn repository_in_an_uninitialised_submodule_cannot_be_made() {
    let place = Place::new();
    let (library, above) = (place.home().join("library"), place.home().join("above"));
    repository(&library);
    repository(&above);
    let allow = ["-c", "protocol.file.allow=always"];
    let add = [&allow[..], &["submodule", "--quiet", "add", library.to_str().unwrap(), "deps/lib"]].concat();
    assert!(git(&above, &add).0 && git(&above, &["commit", "-qm", "two"]).0);
    let work = place.work();
    assert!(git(&place.home(), &["clone", "-q", above.to_str().unwrap(), work.to_str().unwrap()]).0);
    assert!(!work.join("deps/lib/.git").exists());
    let (script, mark) = trap(&place);
    let evil = format!(
        "git init -q deps/lib; git -C deps/lib config core.fsmonitor '{script};:'; \
        mv deps/lib deps/other; rm -rf deps; git -c init.defaultBranch=x init -q deps/lib; true"
    );
    exec(&place, &evil).expect_code(0);
    git(&work, &["status"]);
    assert!(!mark.exists());
    assert!(!work.join("deps/lib/.git").exists());
    // Work goes on beside it, and another commit of the submodule is taken over.
    let id = commit_of(&library, "main");
    let other = format!(
        "git status && echo 2 > file && {GIT} commit -qam three && git update-index --cacheinfo 160000,{id},deps/lib"
    );
    exec(&place, &other).expect_code(0);
    assert_eq!(git(&work, &["log", "-1", "--format=%s"]).1, "three\n");
}

#[test]
fn submodule_without_a_repository_is_imported_and_reported() {
    let place = Place::new();
    let work = place.work();
    repository(&work);
    fs::write(work.join(".gitmodules"), "[submodule \"x\"]\n\tpath = x\n\turl = y\n").unwrap();
    let id = commit_of(&work, "main");
    exec(&place, &format!("mkdir x; git update-index --add --cacheinfo 160000,{id},x; {GIT} commit -qm x"))
        .expect_code(0);
    assert_eq!(git(&work, &["log", "-1", "--format=%s"]).1, "x\n");
    crate::git::assert_reported(&place, "x");
    exec(&place, "git init -q x; true");
    assert!(!work.join("x/.git").exists());
}

/// A superproject with a submodule that is checked out at `at` and one that is not, `deps/absent`.
fn superproject(place: &Place, at: &str) -> PathBuf {
    let (library, work) = (place.home().join("library"), place.work());
    repository(&library);
    repository(&work);
    for path in [at, "deps/absent"] {
        let add = ["-c", "protocol.file.allow=always", "submodule", "--quiet", "add"];
        assert!(git(&work, &[&add[..], &[library.to_str().unwrap(), path]].concat()).0);
    }
    assert!(git(&work, &["commit", "-qm", "two"]).0);
    assert!(git(&work, &["submodule", "--quiet", "deinit", "-f", "deps/absent"]).0);
    work
}

/// Starts a run that calls `swap` and waits, has git of the user look in these directories meanwhile, and ends the run.
pub(crate) fn look_meanwhile(place: &Place, options: &[&str], swap: &str, directories: &[&Path]) -> Ran {
    let script = format!("{swap}; touch ready; while [ ! -e done ]; do sleep 0.01; done; rm -f ready done");
    let arguments = [&["exec", "--mode", "native"], options, &["--", "sh", "-c", &script]].concat();
    let run = place.spawn(&arguments);
    let work = place.work();
    wait_for("the run", || work.join("ready").exists().then_some(()));
    for directory in directories {
        git(directory, &["status"]);
        git(directory, &["diff"]);
    }
    fs::write(work.join("done"), "").unwrap();
    Ran::from(run.wait_with_output().unwrap())
}

/// Moves a directory away, puts a repository into its place, and says how it is moved back.
fn swapped(moved: &str, tree: &str, script: &str) -> String {
    format!(
        "mv {moved} gone; mkdir -p {tree}/g/objects {tree}/g/refs; echo 'ref: refs/heads/main' > {tree}/g/HEAD; \
         echo 'gitdir: g' > {tree}/.git; \
         printf '[core]\\n repositoryformatversion = 0\\n bare = false\\n fsmonitor = \"{script};:\"\\n' > {tree}/g/config"
    )
}

#[test]
fn working_tree_with_a_git_directory_cannot_be_swapped() {
    for (access, moved) in [
        ("private", "a"),
        ("private", "a/b"),
        ("private", "a/b/lib"),
        ("read-only", "a/b/lib"),
        ("private", "nest/x"),
        ("private", "nest"),
    ] {
        let place = Place::new();
        let policy = place.home().join("policy.json");
        fs::write(&policy, format!(r#"{{"extends": "standard", "files": {{"git": "{access}"}}}}"#)).unwrap();
        let options = ["--policy", policy.to_str().unwrap()];
        let work = superproject(&place, "a/b/lib");
        repository(&work.join("nest/x"));
        let (script, mark) = trap(&place);
        let tree = if moved.starts_with('a') { "a/b/lib" } else { "nest/x" };
        let inside = work.join(tree);
        assert!(inside.join(".git").exists());
        look_meanwhile(&place, &options, &swapped(moved, tree, &script), &[&work, &inside]);
        assert!(!mark.exists(), "{access} {moved}");
    }
}

#[test]
fn git_works_beside_working_trees_that_are_held() {
    let place = Place::new();
    let work = superproject(&place, "a/lib");
    repository(&work.join("nest"));
    let script = format!(
        "set -e; {GIT} status; git checkout -q -b topic; echo 2 > file; {GIT} commit -qam three; \
         echo 3 > file; {GIT} stash -q; {GIT} stash pop -q; {GIT} commit -qam four; \
         {GIT} rebase -q main; {GIT} rebase -q --force-rebase HEAD~2; git worktree add -q ../tree main; \
         cd nest; echo 2 > file; {GIT} commit -qam nested; git checkout -q -b other"
    );
    exec(&place, &script.replace("../tree", "tree")).expect_code(0);
    assert_eq!(git(&work, &["log", "-1", "--format=%s", "topic"]).1, "four\n");
    assert_eq!(git(&work.join("nest"), &["log", "-1", "--format=%s"]).1, "nested\n");
    // What is held moves nowhere, and a file goes by copying.
    exec(&place, "mv file nest/moved && test -e nest/moved && ! mv nest other").expect_code(0);
}

#[test]
fn trees_in_a_layer_are_not_held() {
    let place = Place::new();
    let work = superproject(&place, "a/lib");
    let ran = place.run(&[
        "exec",
        "--mode",
        "native",
        "--workspace",
        "overlay",
        "--",
        "sh",
        "-c",
        "mkdir b; mv a/lib/file b",
    ]);
    ran.expect_code(0);
    assert!(work.join("a/lib/file").exists());
}

#[test]
fn index_with_an_entry_that_is_too_long_still_names_submodules() {
    let place = Place::new();
    let work = superproject(&place, "a/lib");
    let (script, mark) = trap(&place);
    // As in an archive: git itself imports no such index.
    let long = vec!["n".repeat(100); 41].join("/");
    let blob = commit_of(&work, "HEAD:file");
    let add = format!("printf '100644 {blob} 0\\t{long}\\0' | git update-index -z --add --index-info");
    exec(&place, &add).expect_code(0);
    assert!(!git(&work, &["ls-files"]).1.contains("nnn"), "it is kept aside");
    shell(&work, &add);
    assert!(git(&work, &["ls-files"]).1.contains("nnn"));
    let evil = format!("cd deps/absent && {}", nested(&script).replace("sub", "."));
    look_meanwhile(&place, &[], &format!("({evil})"), &[&work]);
    assert!(!mark.exists());
}

#[test]
fn working_tree_whose_index_cannot_be_read_is_read_only() {
    let place = Place::new();
    let work = superproject(&place, "a/lib");
    fs::write(work.join(".git/index"), "DIRCxxxx").unwrap();
    let ran = exec(&place, "touch x deps/absent/x; git init -q deps/absent; true").expect_code(0);
    assert!(!work.join("x").exists() && !work.join("deps/absent/.git").exists());
    assert!(ran.stderr.contains("is read-only, for its submodules are not known"), "{}", ran.stderr);
    assert!(git(&work, &["read-tree", "HEAD"]).0);
    exec(&place, "touch x").expect_code(0);
    assert!(work.join("x").exists());
}

#[test]
fn submodule_that_cannot_be_named_is_protected_and_not_imported() {
    let place = Place::new();
    let work = superproject(&place, "a/lib");
    let (script, mark) = trap(&place);
    let id = commit_of(&work, "main");
    let add = format!("printf '160000 {id} 0\\tsub\\377\\0' | git update-index -z --add --index-info");
    let before = commit_of(&work, "main");
    exec(&place, &format!("{add}; {GIT} commit -qm sub")).expect_code(0);
    assert_eq!(commit_of(&work, "main"), before);
    // As in a repository that came so.
    shell(&work, &format!("{add}; git -c user.name=a -c user.email=a@b commit -qm sub"));
    let evil = format!("d=$(printf 'sub\\377'); mkdir -p $d; {}", nested(&script).replace("sub", "$d"));
    look_meanwhile(&place, &[], &format!("({evil})"), &[&work]);
    assert!(!mark.exists());
    // Nor does a repository in such a directory keep later runs from starting.
    exec(&place, "d=$(printf 'nest\\377'); git init -q $d; echo 1 > $d/file").expect_code(0);
    exec(&place, "cd nest* && git status").expect_code(0);
}

fn shell(at: &Path, script: &str) {
    let done = Command::new("sh").args(["-c", script]).current_dir(at).status().unwrap();
    assert!(done.success(), "{script}");
}

/// Git looks at all of the superproject, wherever in it a run works.
#[test]
fn submodules_of_a_superproject_above_are_protected() {
    for (at, write, is_linked) in [
        ("deps", None, false),
        ("deps", None, true),
        ("a", Some("deps"), false),
        ("a", Some("deps/absent"), false),
    ] {
        let place = Place::new();
        let main = superproject(&place, "a/lib");
        let work = if is_linked { place.home().join("linked") } else { main.clone() };
        if is_linked {
            assert!(git(&main, &["worktree", "add", "-q", work.to_str().unwrap()]).0);
        }
        let (script, mark) = trap(&place);
        let absent = work.canonicalize().unwrap().join("deps/absent");
        fs::create_dir_all(&absent).unwrap();
        fs::create_dir_all(work.join(at)).unwrap();
        let evil = nested(&script).replace("sub", ".");
        let evil = format!(
            "d=$(ls -d /workspace/absent {absent} 2>/dev/null | head -1); touch $d/../free; (cd $d && {evil}); \
             mv $d $d.gone && mkdir $d && cd $d && {evil}true",
            absent = absent.display()
        );
        let (at, write) = (work.join(at), write.map(|write| work.canonicalize().unwrap().join(write)));
        let mut arguments = vec!["exec", "--mode", "native", "-C", at.to_str().unwrap()];
        arguments.extend(write.iter().flat_map(|write| ["--write", write.to_str().unwrap()]));
        arguments.extend(["--", "sh", "-c", &evil]);
        let ran = place.run(&arguments);
        assert_ne!(ran.code(), 125, "{}", ran.stderr);
        git(&work, &["status"]);
        git(&work, &["diff"]);
        assert!(!absent.join(".git").exists() && !mark.exists(), "{at:?} {write:?}: {}", ran.stderr);
        // What is beside it stays writable.
        let is_beside = write.is_none_or(|write| write.ends_with("deps"));
        assert_eq!(work.join("deps/free").exists(), is_beside, "{at:?}: {}", ran.stderr);
    }
}

/// Directories of submodules are known from the index alone.
#[test]
fn branch_with_a_submodule_that_the_index_lacks_is_kept_aside() {
    let place = Place::new();
    let work = superproject(&place, "a/lib");
    let before = commit_of(&work, "main");
    let add = format!(
        "cp .git/index /tmp/i; export GIT_INDEX_FILE=/tmp/i; git update-index --add --cacheinfo 160000,{before},q/s; \
         new=$({GIT} commit-tree $(git write-tree) -p HEAD -m x)"
    );
    for move_head in ["git update-ref refs/heads/main $new", "git update-ref --no-deref HEAD $new"] {
        let ran = exec(&place, &format!("{add}; {move_head}")).expect_code(0);
        assert_eq!(commit_of(&work, "HEAD"), before, "{}", ran.stderr);
        assert!(ran.stderr.contains("which the index lacks"), "{}", ran.stderr);
    }
    // With the index it is a submodule like others.
    let staged = add.replace("cp .git/index /tmp/i; export GIT_INDEX_FILE=/tmp/i; ", "");
    exec(&place, &format!("{staged}; git update-ref refs/heads/main $new")).expect_code(0);
    assert_eq!(git(&work, &["log", "-1", "--format=%s"]).1, "x\n");
    exec(&place, "mkdir -p q/s; git init -q q/s; true");
    assert!(!work.join("q/s/.git").exists());
}

/// The index of the run has the submodule, and the real one does not get it.
#[test]
fn branch_with_a_submodule_of_an_index_that_is_refused_is_kept_aside() {
    let hide = "blob=$(git hash-object -w --stdin </dev/null); \
         git update-index --add --cacheinfo 100644,$blob,server.pem; ";
    for (is_locked, after) in [(false, hide), (true, "")] {
        for first in ["", "git checkout -q --detach; ", "git checkout -q -b topic; "] {
            let place = Place::new();
            let work = superproject(&place, "a/lib");
            fs::write(work.join(".git/info/exclude"), "*.pem\n").unwrap();
            fs::write(work.join("server.pem"), "1\n").unwrap();
            let before = commit_of(&work, "main");
            if is_locked {
                fs::write(work.join(".git/index.lock"), "").unwrap();
            }
            let script = format!(
                "rm -f .git/index.lock; {first}git update-index --add --cacheinfo 160000,{before},q/s; \
                 {GIT} commit -qm x; {after}"
            );
            let ran = exec(&place, &script).expect_code(0);
            let told = ran.stderr.contains("the index was not taken over")
                && ran.stderr.contains("it adds the submodule q/s, which the index lacks");
            assert!(told, "{is_locked} {first}: {}", ran.stderr);
            assert_eq!(commit_of(&work, "HEAD"), before, "{is_locked} {first}: {}", ran.stderr);
            assert_eq!(git(&work, &["ls-files", "q"]).1, "", "{is_locked} {first}");
            let kept = git(&work, &["for-each-ref", "refs/ringfence"]).1;
            assert!(kept.contains("refs/ringfence/"), "{is_locked} {first}: {kept}");
        }
    }
}
