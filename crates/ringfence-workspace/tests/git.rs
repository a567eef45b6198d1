//! A private git directory and its import, with real git on both sides.
#![allow(clippy::unwrap_used, clippy::panic, clippy::disallowed_methods)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use globset::GlobSet;
use ringfence_workspace::git::{
    Found, GitError, Import, Imported, Made, Making, RefsBudget, Repository, find_git, import, make,
};
use ringfence_workspace::{Directory, HostPrograms};
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
        self.try_begin(&GlobSet::empty(), &mut RefsBudget::OF_WORKSPACE.clone()).unwrap();
    }

    fn try_begin(&self, denied: &GlobSet, refs: &mut RefsBudget) -> Result<Made, GitError> {
        let tree = Directory::open(&self.work()).unwrap();
        let Found::Repository(repository) = Repository::discover(&tree, &self.work()) else {
            panic!("no repository")
        };
        fs::create_dir(self.place()).unwrap();
        let making = Making {
            repository: &repository,
            place: &self.place(),
            // Here inside and outside are the same.
            guest: &repository.common,
            denied,
            denied_globs: &["**/*.pem".to_owned()],
            hidden: &[Path::new("server.pem")],
            tree: Path::new(""),
            excluded: &[],
            protected: &[],
            held: &[],
            owner: None,
            is_nested: false,
            modules_in_place: false,
            index_budget: 1 << 20,
        };
        make(making, refs)
    }

    fn commit(&self, content: &str) -> String {
        fs::write(self.work().join("a"), content).unwrap();
        self.inside(&["commit", "-qam", "two"]);
        self.inside(&["rev-parse", "HEAD"])
    }

    fn try_import(&self) -> Result<Imported, GitError> {
        let git = find_git(&HostPrograms::none(), Path::new("/nonexistent"));
        let deadline = Instant::now() + Duration::from_secs(120);
        import(Import {
            place: &self.place(),
            run: "test",
            find_git: &|| git.clone(),
            deadline,
            memory_limit: None,
        })
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
    let done = import(Import {
        place: &place.place(),
        run: "test",
        find_git: &|| None,
        deadline,
        memory_limit: None,
    })
    .unwrap();
    assert_eq!(done, Imported::default());
    let commit = place.commit("2\n");
    let missing = import(Import {
        place: &place.place(),
        run: "test",
        find_git: &|| None,
        deadline,
        memory_limit: None,
    });
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
    let told = done.notices.iter().any(|notice| notice.contains("refs/heads/main was not moved"));
    assert!(told, "{:?}", done.notices);
}

/// The index of a run fits the commits that it began with.
#[test]
fn an_index_is_not_taken_over_when_head_moved_meanwhile() {
    let moves: [&[&str]; 4] = [
        &["commit", "-q", "--allow-empty", "-m", "of the host"],
        &["symbolic-ref", "HEAD", "refs/heads/other"],
        &["checkout", "-q", "--detach"],
        &["pack-refs", "--all"],
    ];
    for words in moves {
        let place = Place::new();
        place.host(&["branch", "other"]);
        place.begin();
        fs::write(place.work().join("staged"), "staged\n").unwrap();
        place.inside(&["add", "staged"]);
        place.host(words);
        let before = place.host(&["ls-files", "--stage"]);
        let done = place.import();
        let is_moved = words[0] != "pack-refs";
        assert_eq!(done.index, !is_moved, "{words:?}");
        assert_eq!(place.host(&["ls-files", "--stage"]) == before, is_moved, "{words:?}");
        let told = done.notices.iter().filter(|notice| notice.contains("HEAD or its branch moved")).count();
        assert_eq!(told, usize::from(is_moved), "{words:?}: {:?}", done.notices);
    }
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
        denied_globs: &["**/*.pem".to_owned()],
        hidden: &[Path::new("server.pem")],
        tree: Path::new(""),
        excluded: &[],
        protected: &[],
        held: &[],
        owner: None,
        is_nested: false,
        modules_in_place: false,
        index_budget: 1 << 20,
    };
    make(making, &mut RefsBudget::OF_WORKSPACE.clone()).unwrap();
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

#[test]
fn a_repository_with_many_refs_is_imported_as_one_with_few() {
    let place = Place::new();
    let id = place.host(&["rev-parse", "main"]);
    let lines: String = (0..1500).map(|number| format!("{id} refs/tags/release-{number:06}\n")).collect();
    fs::write(place.work().join(".git/packed-refs"), lines).unwrap();
    place.begin();
    assert!(place.place().join("packed-refs").exists(), "too many to be noted with the rest");
    let new = place.commit("2\n");
    place.inside(&["tag", "-d", "release-000007"]);
    let names: Vec<String> = place.import().refs.into_iter().map(|change| change.name).collect();
    assert_eq!(names, ["refs/heads/main", "refs/tags/release-000007"]);
    assert_eq!(place.host(&["rev-parse", "main"]), new);
    assert_eq!(place.host(&["tag"]).lines().count(), 1499);
}

/// The branch of another working tree stays, or its next commit would undo what the run did.
#[test]
fn branches_of_other_working_trees_are_neither_moved_nor_deleted() {
    let place = Place::new();
    let root = place.root.path().canonicalize().unwrap();
    for name in ["moved", "deleted", "switched", "rebased"] {
        place.host(&["worktree", "add", "-q", "-b", name, root.join(name).to_str().unwrap()]);
    }
    let rebased = place.work().join(".git/worktrees/rebased");
    fs::create_dir(rebased.join("rebase-merge")).unwrap();
    fs::write(rebased.join("rebase-merge/head-name"), "refs/heads/rebased\n").unwrap();
    fs::write(rebased.join("HEAD"), place.host(&["rev-parse", "main"])).unwrap();
    let before = place.host(&["rev-parse", "main"]);
    place.begin();
    let commit = place.commit("2\n");
    for name in ["moved", "rebased"] {
        place.inside(&["update-ref", &format!("refs/heads/{name}"), &commit]);
    }
    place.inside(&["branch", "-q", "-D", "deleted"]);
    place.inside(&["symbolic-ref", "HEAD", "refs/heads/switched"]);
    let done = place.import();
    let told = done.notices.join("\n");
    for name in ["moved", "deleted", "switched", "rebased"] {
        assert_eq!(place.host(&["rev-parse", &format!("refs/heads/{name}")]), before, "{name}: {told}");
        assert!(
            told.contains(&format!("refs/heads/{name}")) && told.contains("has it checked out"),
            "{told}"
        );
    }
    assert_eq!(place.host(&["rev-parse", "refs/ringfence/test/heads/moved"]), commit);
    assert_eq!(place.host(&["symbolic-ref", "HEAD"]), "refs/heads/main");
    assert_eq!(place.host(&["rev-parse", "main"]), commit, "its own branch is moved");
    assert_eq!(done.refs.iter().filter(|change| change.kept_as.is_none()).count(), 1, "{:?}", done.refs);
}

#[test]
fn a_repository_whose_index_is_not_copied_is_not_seen() {
    let denied = globset::GlobSetBuilder::new().add(globset::Glob::new("**/index").unwrap()).build().unwrap();
    for (deny, index) in [(true, None), (false, Some("link")), (false, Some("directory"))] {
        let place = Place::new();
        let path = place.work().join(".git/index");
        if index.is_some() {
            fs::rename(&path, place.work().join("elsewhere")).unwrap();
        }
        match index {
            Some("link") => symlink("../elsewhere", &path).unwrap(),
            Some(_) => fs::create_dir(&path).unwrap(),
            None => {}
        }
        let none = GlobSet::empty();
        let denied = if deny { &denied } else { &none };
        let made = place.try_begin(denied, &mut RefsBudget::OF_WORKSPACE.clone());
        assert!(matches!(made, Err(GitError::IndexNotCopied)), "{index:?} {made:?}");
    }
    let place = Place::new();
    fs::remove_file(place.work().join(".git/index")).unwrap();
    place.begin();
}

#[test]
fn head_is_not_moved_to_a_branch_that_could_not_be_changed() {
    let place = Place::new();
    place.host(&["branch", "other"]);
    let before = place.host(&["rev-parse", "main"]);
    place.begin();
    place.inside(&["checkout", "-q", "other"]);
    place.commit("2\n");
    // Neither the branch nor the ref that keeps its commits can be written.
    for lock in ["refs/heads/other.lock", "refs/ringfence/test/heads/other.lock"] {
        fs::create_dir_all(place.work().join(".git").join(lock).parent().unwrap()).unwrap();
        fs::write(place.work().join(".git").join(lock), "").unwrap();
    }
    let done = place.import();
    assert_eq!(place.host(&["symbolic-ref", "HEAD"]), "refs/heads/main", "{:?}", done.notices);
    assert_eq!(place.host(&["rev-parse", "other"]), before);
    assert_eq!((done.head, done.refs), (None, Vec::new()));
}

#[test]
fn refs_that_say_what_remotes_have_are_not_taken_over() {
    let place = Place::new();
    let before = place.host(&["rev-parse", "main"]);
    place.host(&["update-ref", "refs/remotes/origin/main", &before]);
    place.begin();
    let commit = place.commit("2\n");
    for name in ["main", "new"] {
        place.inside(&["update-ref", &format!("refs/remotes/origin/{name}"), &commit]);
    }
    let done = place.import();
    assert_eq!(place.host(&["for-each-ref", "--format=%(objectname)", "refs/remotes"]), before);
    let told = done.notices.join("\n");
    assert!(told.contains("not taken over: refs/remotes/origin/main, refs/remotes/origin/new"), "{told}");
}

#[test]
fn new_names_that_shells_could_execute_are_kept_encoded() {
    let place = Place::new();
    place.host(&["branch", "old$(x)"]);
    place.begin();
    let commit = place.commit("2\n");
    let long = "$".repeat(240);
    for name in ["heads/$(touch${IFS}x)", "tags/a`id`", "heads/old$(x)", &format!("heads/{long}")] {
        place.inside(&["update-ref", &format!("refs/{name}"), &commit]);
    }
    place.inside(&["symbolic-ref", "HEAD", "refs/heads/$(unborn)"]);
    let done = place.import();
    let names = place.host(&["for-each-ref", "--format=%(refname)", "refs/heads", "refs/tags"]);
    assert_eq!(names, "refs/heads/main\nrefs/heads/old$(x)");
    for name in
        ["heads/old$(x)", "ringfence/test/heads/%24%28touch%24%7BIFS%7Dx%29", "ringfence/test/tags/a%60id%60"]
    {
        assert_eq!(place.host(&["rev-parse", &format!("refs/{name}")]), commit, "{name}");
    }
    assert_eq!(done.refs.iter().filter(|change| change.kept_as.is_some()).count(), 3, "{:?}", done.notices);
    assert_eq!(place.host(&["symbolic-ref", "HEAD"]), "refs/heads/main");
    assert!(done.notices.iter().any(|told| told.contains("shells could execute its name")));
}

#[test]
fn linking_objects_ends_with_the_time_of_the_import() {
    let place = Place::new();
    place.begin();
    place.commit("2\n");
    let git = find_git(&HostPrograms::none(), Path::new("/nonexistent"));
    let late = Import {
        place: &place.place(),
        run: "test",
        find_git: &|| git.clone(),
        deadline: Instant::now(),
        memory_limit: None,
    };
    assert!(matches!(import(late), Err(GitError::ObjectsTooSlow)));
    place.import();
}

#[test]
fn refs_of_nested_repositories_share_a_budget() {
    let mut budget = RefsBudget::OF_NESTED;
    let many = |place: &Place, packed: usize, loose: usize| {
        let id = place.host(&["rev-parse", "main"]);
        let lines: String = (0..packed).map(|number| format!("{id} refs/tags/t{number}\n")).collect();
        fs::write(place.work().join(".git/packed-refs"), lines).unwrap();
        for number in 0..loose {
            fs::write(place.work().join(format!(".git/refs/tags/l{number}")), format!("{id}\n")).unwrap();
        }
    };
    let none = GlobSet::empty();
    // One takes a part of it, also if it is refused then; another one that fits is still seen.
    for (packed, loose, is_made) in
        [(40_000, 100, true), (40_000, 0, false), (100, 0, true), (0, 5_000, false), (0, 0, false)]
    {
        let place = Place::new();
        many(&place, packed, loose);
        let made = place.try_begin(&none, &mut budget);
        assert_eq!(made.is_ok(), is_made, "{packed} {loose} {made:?}");
    }
    let place = Place::new();
    many(&place, 30_000, 5_000);
    place.begin();
}

/// What a newer git does: it executes the hooks that the configuration names when refs change.
fn git_with_configured_hooks(place: &Place) -> PathBuf {
    let program = place.root.path().canonicalize().unwrap().join("git");
    let script = "#!/bin/sh\n/usr/bin/git config --get-regexp '^hook\\..*\\.command$' | while read -r _ command; do sh -c \"$command\"; done\n\
                  exec /usr/bin/git \"$@\"\n";
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

#[test]
fn hooks_that_a_configuration_names_are_not_executed() {
    let place = Place::new();
    place.begin();
    place.commit("2\n");
    let mark = place.work().join(".git/executed");
    let hook =
        format!("\n[hook \"x\"]\n\tevent = reference-transaction\n\tcommand = touch {}\n", mark.display());
    let config = place.work().join(".git/config");
    fs::write(&config, fs::read_to_string(&config).unwrap() + &hook).unwrap();
    let program = git_with_configured_hooks(&place);
    let deadline = Instant::now() + Duration::from_secs(120);
    let find = || Some(program.clone());
    let imported =
        import(Import { place: &place.place(), run: "test", find_git: &find, deadline, memory_limit: None });
    assert!(!mark.exists());
    // It is a script, whose interpreter is not started either: what the run did is kept.
    assert!(matches!(imported, Err(GitError::Git { .. })), "{imported:?}");
    assert_eq!(place.import().refs.len(), 1);
    assert!(!mark.exists());
}

#[test]
fn configuration_of_a_repository_is_not_read_by_an_import() {
    let place = Place::new();
    place.begin();
    let commit = place.commit("2\n");
    place.inside(&["checkout", "-q", "-b", "other"]);
    place.inside(&["branch", "-D", "main"]);
    let config = place.work().join(".git/config");
    let before = fs::read(&config).unwrap();
    // Git refuses to do anything where it reads this.
    fs::write(&config, "[core]\n\tsharedRepository = group\n\tbare = maybe\n[broken\n").unwrap();
    let done = place.import();
    assert_eq!((done.refs.len(), done.head.as_deref(), done.index), (1, Some("refs/heads/other"), true));
    fs::write(&config, before).unwrap();
    assert_eq!(place.host(&["rev-parse", "HEAD"]), commit);
    assert_eq!(place.host(&["symbolic-ref", "HEAD"]), "refs/heads/other");
    let log = place.host(&["reflog", "show", "--format=%gs", "HEAD"]);
    assert_eq!(log.lines().next(), Some("ringfence: run test"), "{log}");
    place.host(&["fsck", "--strict"]);
}

/// Objects that a run packed as small differences from each other stay packed.
#[test]
fn packed_objects_of_a_run_are_not_written_one_by_one() {
    let place = Place::new();
    place.begin();
    // Text that cannot be compressed, but for what two files share.
    let mut state = 1u64;
    let mut line = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        format!("{state:x}\n")
    };
    let shared: String = (0..10_000).map(|_| line()).collect();
    for number in 0..40 {
        fs::write(place.work().join(format!("f{number}")), format!("{shared}{number}\n")).unwrap();
    }
    place.inside(&["add", "-A"]);
    place.inside(&["commit", "-qm", "many"]);
    place.inside(&["repack", "-adlq"]);
    place.inside(&["prune-packed"]);
    assert_eq!(place.import().notices, Vec::<String>::new());
    let counted = place.host(&["count-objects", "-v"]);
    let field = |name: &str| -> u64 {
        let line = counted.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_start_matches(": ").parse().unwrap()
    };
    assert!(field("size") < 100 && field("packs") == 1, "{counted}");
    assert_eq!(place.host(&["log", "-1", "--format=%s"]), "many");
}

#[test]
fn files_that_the_run_could_not_read_do_not_become_tracked() {
    let place = Place::new();
    let before = place.host(&["rev-parse", "HEAD"]);
    place.begin();
    let blob = place.inside(&["rev-parse", "HEAD:a"]);
    for name in ["server.pem", "other.pem"] {
        place.inside(&["update-index", "--add", "--cacheinfo", &format!("100644,{blob},{name}")]);
    }
    place.inside(&["commit", "-qm", "two"]);
    let done = place.import();
    assert!(!done.index && done.refs[0].kept_as.is_some(), "{done:?}");
    assert_eq!(place.host(&["rev-parse", "HEAD"]), before);
    assert_eq!(place.host(&["ls-files"]), "a");
    assert!(done.notices.iter().all(|notice| notice.contains("server.pem, which is hidden")), "{done:?}");
}
