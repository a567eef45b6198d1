//! A private git directory and its import, with real git on both sides.
#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use globset::GlobSet;
use ringfence_workspace::Directory;
use ringfence_workspace::git::{
    Found, GitError, Import, Imported, Making, Repository, find_git, import, make,
};
use tempfile::TempDir;

struct Place {
    root: TempDir,
}

impl Place {
    /// A repository with one commit.
    fn new() -> Self {
        let place = Self { root: tempfile::tempdir().unwrap() };
        fs::create_dir(place.work()).unwrap();
        place.host(&["init", "-q", "-b", "main"]);
        fs::write(place.work().join("a"), "1\n").unwrap();
        place.host(&["add", "-A"]);
        place.host(&["commit", "-qm", "one"]);
        place
    }

    fn work(&self) -> PathBuf {
        self.root.path().canonicalize().unwrap().join("work")
    }

    fn place(&self) -> PathBuf {
        self.root.path().canonicalize().unwrap().join("place")
    }

    fn private(&self) -> PathBuf {
        self.place().join("private")
    }

    fn git(&self, directory: &Path, words: &[&str]) -> String {
        let mut command = Command::new("git");
        command.current_dir(self.work()).env("GIT_DIR", directory).env("GIT_WORK_TREE", self.work());
        for name in ["GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"] {
            command.env(name, "agent");
        }
        for name in ["GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"] {
            command.env(name, "agent@localhost");
        }
        command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
        let output = command.args(words).output().unwrap();
        assert!(output.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn host(&self, words: &[&str]) -> String {
        self.git(&self.work().join(".git"), words)
    }

    /// What the run does.
    fn inside(&self, words: &[&str]) -> String {
        self.git(&self.private(), words)
    }

    fn begin(&self) {
        let tree = Directory::open(&self.work()).unwrap();
        let Found::Repository(repository) = Repository::discover(&tree, &self.work()) else {
            panic!("no repository")
        };
        fs::create_dir(self.place()).unwrap();
        make(Making {
            repository: &repository,
            place: &self.place(),
            // Here inside and outside are the same.
            guest: &repository.common,
            denied: &GlobSet::empty(),
            excluded: &[],
            protected: &[],
            held: &[],
            owner: None,
            index_budget: 1 << 20,
        })
        .unwrap();
    }

    fn commit(&self, content: &str) -> String {
        fs::write(self.work().join("a"), content).unwrap();
        self.inside(&["commit", "-qam", "two"]);
        self.inside(&["rev-parse", "HEAD"])
    }

    fn try_import(&self) -> Result<Imported, GitError> {
        let git = find_git("", Path::new("/nonexistent"));
        let deadline = Instant::now() + Duration::from_secs(120);
        import(Import { place: &self.place(), run: "test", find_git: &|| git.clone(), deadline })
    }

    fn import(&self) -> Imported {
        self.try_import().unwrap()
    }
}

#[test]
fn a_commit_is_imported_with_its_index() {
    let place = Place::new();
    place.begin();
    let commit = place.commit("2\n");
    let before = place.host(&["rev-parse", "main"]);
    assert_ne!(commit, before, "the real repository is not written by the run");
    let done = place.import();
    assert_eq!(done.notices, Vec::<String>::new());
    assert_eq!(place.host(&["rev-parse", "main"]), commit);
    assert_eq!(place.host(&["status", "--porcelain"]), "");
    assert_eq!(place.host(&["fsck", "--strict"]), "");
    assert!(done.index && done.refs.len() == 1);
    assert!(place.host(&["reflog", "-1"]).contains("ringfence: run test"));
}

#[test]
fn a_run_that_changes_nothing_imports_nothing_without_git() {
    let place = Place::new();
    place.begin();
    let deadline = Instant::now();
    let done = import(Import { place: &place.place(), run: "test", find_git: &|| None, deadline }).unwrap();
    assert_eq!(done, Imported::default());
    let commit = place.commit("2\n");
    let missing = import(Import { place: &place.place(), run: "test", find_git: &|| None, deadline });
    assert!(matches!(missing, Err(GitError::NoGit)));
    assert_ne!(place.host(&["rev-parse", "main"]), commit);
}

#[test]
fn branches_tags_stash_head_and_staged_files_are_imported() {
    let place = Place::new();
    place.host(&["branch", "old"]);
    place.begin();
    place.inside(&["checkout", "-q", "-b", "topic"]);
    let commit = place.commit("2\n");
    place.inside(&["tag", "-m", "tag", "v1"]);
    place.inside(&["branch", "-D", "old"]);
    fs::write(place.work().join("a"), "3\n").unwrap();
    place.inside(&["stash", "-q"]);
    fs::write(place.work().join("staged"), "staged\n").unwrap();
    place.inside(&["add", "staged"]);
    place.inside(&["gc", "-q"]);
    let done = place.import();
    assert_eq!(done.notices, Vec::<String>::new());
    assert_eq!(place.host(&["symbolic-ref", "HEAD"]), "refs/heads/topic");
    assert_eq!(place.host(&["rev-parse", "topic", "v1^{commit}"]), format!("{commit}\n{commit}"));
    assert_eq!(place.host(&["branch", "--list", "old"]), "");
    assert_eq!(place.host(&["show", ":staged"]), "staged");
    assert_eq!(place.host(&["show", "stash@{0}:a"]), "3");
    assert_eq!(place.host(&["fsck", "--strict"]), "");
}

#[test]
fn a_branch_that_moved_meanwhile_is_not_overwritten() {
    let place = Place::new();
    place.begin();
    let commit = place.commit("2\n");
    place.host(&["commit", "-q", "--allow-empty", "-m", "of the host"]);
    let host = place.host(&["rev-parse", "main"]);
    let done = place.import();
    assert_eq!(place.host(&["rev-parse", "main"]), host);
    assert_eq!(done.refs[0].kept_as.as_deref(), Some("refs/ringfence/test/heads/main"));
    assert_eq!(place.host(&["rev-parse", "refs/ringfence/test/heads/main"]), commit);
    assert!(done.notices[0].contains("refs/heads/main was not moved"), "{:?}", done.notices);
}

#[test]
fn configuration_hooks_and_alternates_of_a_run_do_nothing() {
    let place = Place::new();
    place.begin();
    let mark = place.root.path().join("executed");
    let script = place.root.path().join("script");
    fs::write(&script, format!("#!/bin/sh\ntouch {}\n", mark.display())).unwrap();
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let commit = place.commit("2\n");
    let private = place.private();
    for key in
        ["core.fsmonitor", "core.sshCommand", "uploadpack.packObjectsHook", "core.alternateRefsCommand"]
    {
        place.inside(&["config", key, script.to_str().unwrap()]);
    }
    place.inside(&["config", "core.hooksPath", place.root.path().to_str().unwrap()]);
    fs::copy(&script, place.root.path().join("reference-transaction")).unwrap();
    fs::remove_file(private.join("hooks")).ok();
    fs::create_dir(private.join("hooks")).unwrap();
    fs::copy(&script, private.join("hooks/reference-transaction")).unwrap();
    fs::write(private.join("objects/info/alternates"), "/etc\n").unwrap();
    fs::write(private.join("info/attributes"), "* filter=x\n").unwrap();
    let config = fs::read(place.work().join(".git/config")).unwrap();
    place.import();
    assert_eq!(place.host(&["rev-parse", "main"]), commit);
    assert!(!mark.exists(), "something of the run was executed");
    assert_eq!(fs::read(place.work().join(".git/config")).unwrap(), config);
    assert!(!place.work().join(".git/hooks/reference-transaction").exists());
}

#[test]
fn objects_that_are_not_what_they_are_called_are_refused() {
    let place = Place::new();
    place.begin();
    let commit = place.commit("2\n");
    // The file of the commit holds another, valid object.
    let blob = {
        fs::write(place.work().join("b"), "evil\n").unwrap();
        place.inside(&["hash-object", "-w", "b"])
    };
    let file = |id: &str| place.private().join("objects").join(&id[..2]).join(&id[2..]);
    fs::remove_file(file(&commit)).unwrap();
    fs::copy(file(&blob), file(&commit)).unwrap();
    let before = place.host(&["rev-parse", "main"]);
    assert!(place.try_import().is_err());
    assert_eq!(place.host(&["rev-parse", "main"]), before);
    assert_eq!(place.host(&["fsck", "--strict", "--no-dangling"]), "");
}

#[test]
fn links_in_a_private_directory_lead_nowhere() {
    let place = Place::new();
    place.begin();
    let private = place.private();
    let secret = place.root.path().join("secret");
    fs::write(&secret, format!("{}\n", "a".repeat(40))).unwrap();
    for name in ["refs/heads", "refs/tags"] {
        fs::create_dir_all(private.join(name)).unwrap();
    }
    symlink(&secret, private.join("refs/heads/evil")).unwrap();
    fs::remove_file(private.join("HEAD")).unwrap();
    symlink(&secret, private.join("HEAD")).unwrap();
    symlink("/", private.join("refs/tags/all")).unwrap();
    let done = place.import();
    assert_eq!(done.refs, []);
    assert_eq!(done.head, None);
    assert_eq!(place.host(&["symbolic-ref", "HEAD"]), "refs/heads/main");
}

#[test]
fn an_index_with_paths_of_git_is_not_imported() {
    let place = Place::new();
    place.begin();
    let blob = place.inside(&["hash-object", "-w", "a"]);
    // Git refuses to make such an entry, so one is patched: `xgit` becomes `.git`.
    place.inside(&["update-index", "--add", "--cacheinfo", &format!("100644,{blob},xgit/config")]);
    let index = place.private().join("index");
    let bytes = fs::read(&index).unwrap();
    let at = bytes.windows(11).position(|part| part == b"xgit/config").unwrap();
    let mut patched = bytes[..bytes.len() - 20].to_vec();
    patched[at] = b'.';
    // Git accepts an index without a checksum.
    patched.extend([0; 20]);
    fs::write(&index, patched).unwrap();
    let done = place.import();
    assert!(!done.index);
    assert!(!place.host(&["ls-files"]).contains(".git"));
}

#[test]
fn another_repository_under_the_same_name_is_refused() {
    let place = Place::new();
    place.begin();
    place.commit("2\n");
    fs::rename(place.work().join(".git"), place.root.path().join("moved")).unwrap();
    place.host(&["init", "-q", "-b", "main"]);
    assert!(matches!(place.try_import(), Err(GitError::Directory(_))));
}

#[test]
fn a_linked_worktree_commits_on_its_own_branch() {
    let place = Place::new();
    let linked = place.root.path().canonicalize().unwrap().join("linked");
    place.host(&["worktree", "add", "-q", "-b", "side", linked.to_str().unwrap()]);
    let tree = Directory::open(&linked).unwrap();
    let Found::Repository(repository) = Repository::discover(&tree, &linked) else { panic!("no repository") };
    fs::create_dir(place.place()).unwrap();
    let denied = GlobSet::empty();
    let guest = repository.common.clone();
    let making = Making {
        repository: &repository,
        place: &place.place(),
        guest: &guest,
        denied: &denied,
        excluded: &[],
        protected: &[],
        held: &[],
        owner: None,
        index_budget: 1 << 20,
    };
    make(making).unwrap();
    let name = repository.own().file_name().unwrap().to_owned();
    let own = place.private().join("worktrees").join(name);
    fs::write(place.work().join("a"), "2\n").unwrap();
    place.git(&own, &["commit", "-qam", "two"]);
    let commit = place.git(&own, &["rev-parse", "HEAD"]);
    let main = place.host(&["rev-parse", "main"]);
    let done = place.import();
    assert_eq!(done.notices, Vec::<String>::new());
    assert_eq!(place.host(&["rev-parse", "side", "main"]), format!("{commit}\n{main}"));
}

#[test]
fn a_merge_that_ended_inside_is_over_on_the_host() {
    let place = Place::new();
    place.host(&["checkout", "-q", "-b", "other"]);
    place.host(&["commit", "-q", "--allow-empty", "-m", "other"]);
    place.host(&["checkout", "-q", "main"]);
    place.host(&["merge", "-q", "--no-ff", "--no-commit", "other"]);
    place.begin();
    place.inside(&["commit", "-qm", "merged"]);
    place.import();
    assert!(!place.work().join(".git/MERGE_HEAD").exists());
    assert_eq!(place.host(&["rev-list", "--count", "--merges", "main"]), "1");
}

#[test]
fn a_branch_is_not_deleted_because_its_file_was_lost() {
    let place = Place::new();
    place.host(&["branch", "other"]);
    place.begin();
    fs::remove_file(place.private().join("packed-refs")).unwrap();
    place.import();
    assert_eq!(place.host(&["branch", "--format=%(refname:short)"]), "main\nother");
}
