//! Submodules that a run adds, or whose repositories it makes: `git status` of the user would execute what they name.

use std::fs;
use std::path::Path;

use crate::git::{exec, git, repository, trap};
use crate::support::Place;

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
