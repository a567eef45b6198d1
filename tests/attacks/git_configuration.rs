//! Hooks and configuration that git on the host reaches by a detour: includes, links and home directories.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::git::{assert_reported, exec, exec_at, git, repository, trap};
use crate::gitlinks::look_meanwhile;
use crate::support::Place;

/// A file system monitor that shows that git executed it.
fn evil(place: &Place) -> (String, PathBuf) {
    let (script, mark) = trap(place);
    (format!("[core]\n\tfsmonitor = {script}\n"), mark)
}

/// `git status` with the user's own configuration.
fn status(place: &Place, at: &Path) {
    let mut command = Command::new("git");
    command.env("HOME", place.home()).env("GIT_CONFIG_NOSYSTEM", "1").env_remove("XDG_CONFIG_HOME");
    command.args(["status"]).current_dir(at).output().unwrap();
}

/// A commit with the user's own configuration, which executes `pre-commit`.
fn commit(place: &Place) {
    let mut command = Command::new("git");
    command.args([
        "-c",
        "user.name=u",
        "-c",
        "user.email=u@localhost",
        "commit",
        "--allow-empty",
        "-qm",
        "x",
    ]);
    command.current_dir(place.work()).env("HOME", place.home()).env("GIT_CONFIG_NOSYSTEM", "1");
    command.env_remove("XDG_CONFIG_HOME").output().unwrap();
}

/// A run tries everything to replace a file, and git on the host executes nothing of it.
fn assert_out_of_reach(place: &Place, file: &str, content: &str, mark: &Path) {
    let above = Path::new(file).parent().map(|above| above.display().to_string()).unwrap_or_default();
    let moved = if above.is_empty() { String::new() } else { format!("mv {above} gone; mkdir -p {above}; ") };
    let script = format!(
        "printf '{content}' > {file}; rm -f {file}; mv {file} gone2; {moved}printf '{content}' > {file}; cat {file}"
    );
    let ran = exec(place, &script);
    assert_ne!(ran.code(), 125, "{file}: {}", ran.stderr);
    status(place, &place.work());
    git(&place.work(), &["commit", "-q", "--allow-empty", "-m", "x"]);
    assert!(!mark.exists(), "{file}: git executed what the run wrote: {} {}", ran.stdout, ran.stderr);
}

#[test]
fn files_that_a_configuration_includes_are_protected() {
    for (section, named, file) in [
        ("include", "../conf/git.inc", "conf/git.inc"),
        ("includeIf \"gitdir:/**\"", "../shared.inc", "shared.inc"),
        ("include", "WORK/abs.inc", "abs.inc"),
        ("include", "../a/./b/../b/x.inc", "a/b/x.inc"),
    ] {
        for exists in [true, false] {
            let place = Place::new();
            repository(&place.work());
            let (evil, mark) = evil(&place);
            let named = named.replace("WORK", place.work().to_str().unwrap());
            let config = place.work().join(".git/config");
            let text = fs::read_to_string(&config).unwrap();
            fs::write(&config, format!("{text}[{section}]\n\tpath = {named}\n")).unwrap();
            if exists {
                let path = place.work().join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "[user]\n\tname = me\n").unwrap();
            }
            assert_out_of_reach(&place, file, &evil.replace('\n', "\\n").replace('\t', "\\t"), &mark);
        }
    }
}

#[test]
fn an_included_file_that_includes_another_is_followed() {
    let place = Place::new();
    repository(&place.work());
    let (evil, mark) = evil(&place);
    assert!(git(&place.work(), &["config", "include.path", "../one.inc"]).0);
    fs::write(place.work().join("one.inc"), "[include]\n\tpath = deep/two.inc\n").unwrap();
    assert_out_of_reach(&place, "deep/two.inc", &evil.replace('\n', "\\n").replace('\t', "\\t"), &mark);
}

#[test]
fn a_configuration_of_the_user_that_is_a_link_into_the_workspace_is_protected() {
    for (name, way) in [(".gitconfig", "dot/gitconfig"), (".config/git/config", "dot/way")] {
        let place = Place::new();
        repository(&place.work());
        let (evil, mark) = evil(&place);
        fs::create_dir_all(place.work().join("dot")).unwrap();
        fs::write(place.work().join("dot/gitconfig"), "[user]\n\tname = me\n").unwrap();
        symlink("gitconfig", place.work().join("dot/way")).unwrap();
        let link = place.home().join(name);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(place.work().canonicalize().unwrap().join(way), link).unwrap();
        let content = evil.replace('\n', "\\n").replace('\t', "\\t");
        assert_out_of_reach(&place, way, &content, &mark);
        assert_out_of_reach(&place, "dot/gitconfig", &content, &mark);
    }
}

#[test]
fn directories_of_hooks_are_resolved_as_git_does() {
    for (value, hooks) in [
        ("./tools/./hooks", "tools/hooks"),
        ("tools/../tools/hooks", "tools/hooks"),
        ("../work/hooks", "hooks"),
        ("~/work-link/hooks", "hooks"),
        ("linked", "real-hooks"),
    ] {
        let place = Place::new();
        let work = place.work();
        repository(&work);
        let value = value.replace("../work", &format!("../{}", work.file_name().unwrap().to_str().unwrap()));
        symlink(work.canonicalize().unwrap(), place.home().join("work-link")).unwrap();
        fs::create_dir_all(work.join("real-hooks")).unwrap();
        symlink("real-hooks", work.join("linked")).unwrap();
        assert!(git(&work, &["config", "core.hooksPath", &value]).0);
        let (script, mark) = trap(&place);
        let ran = exec(
            &place,
            &format!(
                "mkdir -p {hooks}; rm -f linked; printf '#!/bin/sh\\n{script}\\n' > {hooks}/pre-commit; chmod +x {hooks}/pre-commit"
            ),
        );
        assert_ne!(ran.code(), 0, "{value}: {}", ran.stderr);
        commit(&place);
        assert!(!mark.exists() && !work.join(hooks).join("pre-commit").exists(), "{value}");
        assert!(!work.join("~").exists(), "{value}: a stub file is left");
    }
}

#[test]
fn no_stub_is_named_after_a_home_directory() {
    for value in
        ["~/hooks", "~root/hooks", "~", "~unknown-user/hooks", "%(prefix)/hooks", ":(optional)~/hooks"]
    {
        let place = Place::new();
        repository(&place.work());
        assert!(git(&place.work(), &["config", "core.hooksPath", value]).0);
        let ran = exec(&place, "ls -a").expect_code(0);
        assert!(!ran.stdout.contains(['~', '%']), "{value}: {}", ran.stdout);
    }
}

#[test]
fn what_cannot_be_resolved_is_reported() {
    let place = Place::new();
    repository(&place.work());
    assert!(git(&place.work(), &["config", "core.hooksPath", "~unknown-user/hooks"]).0);
    assert!(git(&place.work(), &["config", "include.path", "../ring"]).0);
    symlink("ring", place.work().join("ring")).unwrap();
    exec(&place, "true").expect_code(0);
    let notices = place.run(&["runs", "show", "last", "--json"]).json()["record"]["notices"].to_string();
    for part in ["`~unknown-user/hooks` is not known", "ring was not read"] {
        assert!(notices.contains(part), "{part}: {notices}");
    }
}

#[test]
fn hooks_of_a_repository_above_the_workspace_are_protected() {
    let place = Place::new();
    let above = place.work();
    repository(&above);
    let package = above.join("pkg");
    fs::create_dir(&package).unwrap();
    assert!(git(&above, &["config", "core.hooksPath", "pkg/hooks"]).0);
    let ran = exec_at(&place, &package, "mkdir -p hooks; echo x > hooks/pre-commit");
    assert_ne!(ran.code(), 0, "{}", ran.stderr);
    assert!(!package.join("hooks").exists());
}

/// What git executes in or above a directory that a run may write besides its workspace.
#[test]
fn hooks_of_repositories_around_another_writable_directory_are_protected() {
    for (value, write, hooks) in [
        ("pkg/hooks", "pkg", "pkg/hooks"),
        ("deep/../pkg/hk", "pkg", "pkg/hk"),
        ("tools", ".", "tools"),
        (".git/mine", ".", ".git/mine"),
    ] {
        let place = Place::new();
        let other = place.home().join("other");
        repository(&other);
        let other = other.canonicalize().unwrap();
        fs::create_dir_all(other.join("pkg")).unwrap();
        assert!(git(&other, &["config", "core.hooksPath", value]).0);
        assert!(git(&other, &["config", "include.path", "../pkg/inc"]).0);
        let mark = trap(&place).1;
        let script = format!(
            "cd {other}/{write}; echo 1 > {other}/pkg/free; mkdir -p {other}/{hooks}; \
             printf '#!/bin/sh\ntouch {mark}\n' > {other}/{hooks}/pre-commit; chmod +x {other}/{hooks}/pre-commit; \
             printf '[core]\n\tfsmonitor = touch {mark}\n' > {other}/pkg/inc; \
             for f in .git/hooks/pre-commit .git/config; do printf '[core]\n\tfsmonitor = touch {mark}\n' > {other}/$f; done",
            other = other.display(),
            mark = mark.display()
        );
        let write = other.join(write).canonicalize().unwrap();
        let ran = place.run(&[
            "exec",
            "--mode",
            "native",
            "--write",
            write.to_str().unwrap(),
            "--",
            "sh",
            "-c",
            &script,
        ]);
        assert!(other.join("pkg/free").exists(), "{value}: {}", ran.stderr);
        status(&place, &other);
        git(&other, &["commit", "-q", "--allow-empty", "-m", "x"]);
        assert!(!mark.exists(), "{value}: git executed what the run wrote: {}", ran.stderr);
        assert!(!other.join(hooks).join("pre-commit").exists(), "{value}");
    }
}

/// With `files.git: direct` nothing of it is protected, and all of it is reported.
#[test]
fn hooks_of_a_repository_above_a_writable_directory_are_reported() {
    let place = Place::new();
    let other = place.home().join("other");
    repository(&other);
    let write = other.canonicalize().unwrap().join("pkg");
    fs::create_dir_all(&write).unwrap();
    assert!(git(&other, &["config", "core.hooksPath", "pkg/hooks"]).0);
    let policy = place.home().join("direct.json");
    fs::write(&policy, r#"{"extends": "standard", "files": {"git": "direct"}}"#).unwrap();
    let (policy, name) = (policy.to_str().unwrap(), write.to_str().unwrap());
    let script = format!("mkdir {name}/hooks; echo x > {name}/hooks/pre-commit");
    let words = ["exec", "--mode", "native", "--policy", policy, "--write", name, "--", "sh", "-c", &script];
    place.run(&words).expect_code(0);
    assert_reported(&place, &format!("{name}/hooks/pre-commit"));
}

/// A submodule's hooks outside of it are not protected, for a run may have made the configuration.
#[test]
fn hooks_outside_of_a_submodule_are_told() {
    let place = Place::new();
    let library = place.home().join("library");
    repository(&library);
    repository(&place.work());
    let add = ["-c", "protocol.file.allow=always", "submodule", "--quiet", "add"];
    assert!(git(&place.work(), &[&add[..], &[library.to_str().unwrap(), "sub"]].concat()).0);
    assert!(git(&place.work().join("sub"), &["config", "core.hooksPath", "../hk"]).0);
    let ran = exec(&place, "true").expect_code(0);
    let hooks = place.work().canonicalize().unwrap().join("hk");
    let (told, notices) = (format!("{}, which the git configuration", hooks.display()), notices(&place));
    assert!(notices.iter().any(|notice| notice.contains(&told)), "{notices:?}");
    assert!(ran.stderr.contains(&told), "{}", ran.stderr);
}

#[test]
fn hooks_of_a_repository_that_cannot_be_shown_are_protected() {
    let place = Place::new();
    repository(&place.work());
    fs::write(place.work().join(".git/objects/info/alternates"), "/nonexistent\n").unwrap();
    assert!(git(&place.work(), &["config", "core.hooksPath", ".husky"]).0);
    let ran = exec(&place, "mkdir -p .husky; echo x > .husky/pre-commit");
    assert_ne!(ran.code(), 0, "{}", ran.stderr);
}

/// A repository that a run makes cannot take anything but its own working tree from later runs.
#[test]
fn a_planted_repository_protects_nothing_outside_of_itself() {
    let place = Place::new();
    repository(&place.work());
    fs::create_dir(place.work().join("src")).unwrap();
    exec(
        &place,
        "git init -q x; git -C x config core.hooksPath ../src; git -C x config --add include.path ../../../src/main.rs",
    )
    .expect_code(0);
    exec(&place, "echo 1 > src/main.rs; echo 2 > src/lib.rs").expect_code(0);
    let notices = place.run(&["runs", "show", "last", "--json"]).json()["record"]["notices"].to_string();
    assert!(notices.contains("src, which the git configuration of"), "{notices}");
}

/// A link, what it leads to, and a file that git executes by way of it.
const LINKED_HOOKS: [(&str, &str, &str, Option<&str>); 7] = [
    (".git/hooks/pre-commit", "../../scripts/pc.sh", "scripts/pc.sh", None),
    (".git/hooks/pre-commit", "WORK/scripts/pc.sh", "scripts/pc.sh", None),
    (".git/hooks", "../gh", "gh/pre-commit", None),
    (".husky/pre-commit", "../scripts/pc.sh", "scripts/pc.sh", Some(".husky")),
    ("tools/hooks/pre-commit", "../../way/pc.sh", "scripts/pc.sh", Some("tools/hooks")),
    ("HOME/ghooks/pre-commit", "WORK/scripts/pc.sh", "scripts/pc.sh", Some("~/ghooks")),
    ("HOME/ghooks", "WORK/gh", "gh/pre-commit", Some("~/ghooks")),
];

#[test]
fn hooks_that_links_lead_to_are_protected() {
    for (link, target, file, hooks) in LINKED_HOOKS {
        for exists in [true, false] {
            let place = Place::new();
            let work = place.work().canonicalize().unwrap();
            repository(&work);
            let text = |text: &str| {
                text.replace("WORK", work.to_str().unwrap()).replace("HOME", place.home().to_str().unwrap())
            };
            let (own, mark) = (place.home().join("own"), trap(&place).1);
            let hook = work.join(file);
            fs::create_dir_all(hook.parent().unwrap()).unwrap();
            symlink("scripts", work.join("way")).unwrap();
            if exists {
                fs::write(&hook, format!("#!/bin/sh\ntouch {}\n", own.display())).unwrap();
                fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
            }
            let link = work.join(text(link));
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            let _ = fs::remove_dir_all(&link);
            symlink(text(target), &link).unwrap();
            match hooks {
                Some(value) if value.starts_with('~') => {
                    fs::write(place.home().join(".gitconfig"), format!("[core]\nhooksPath = {value}\n"))
                        .unwrap();
                }
                Some(value) => assert!(git(&work, &["config", "core.hooksPath", value]).0),
                None => {}
            }
            let above = Path::new(file).parent().unwrap().display().to_string();
            let write = format!("printf '#!/bin/sh\\ntouch {}\\n' > {file}; chmod +x {file}", mark.display());
            let script = format!(
                "{write}; rm -f {file}; {write}; mv {above} gone; mkdir -p {above}; {write}; \
                 mkdir other; cp {file} other/; rm way; ln -s other way; echo fine > free"
            );
            let ran = exec(&place, &script);
            assert!(work.join("free").exists(), "{link:?}: {}", ran.stderr);
            commit(&place);
            assert!(!mark.exists(), "{link:?} {exists}: git executed what the run wrote: {}", ran.stderr);
            assert_eq!(own.exists(), exists, "{link:?}: the user's own hook");
        }
    }
}

#[test]
fn directories_that_a_path_of_hooks_leaves_again_stay_in_place() {
    for exists in [true, false] {
        let place = Place::new();
        let work = place.work();
        repository(&work);
        fs::create_dir_all(work.join("tools/hooks")).unwrap();
        if exists {
            fs::create_dir_all(work.join("tools/git")).unwrap();
        }
        assert!(git(&work, &["config", "core.hooksPath", "tools/git/../hooks"]).0);
        let mark = trap(&place).1;
        let script = format!(
            "echo 1 > tools/git/free; mkdir -p other/deep other/hooks; \
             printf '#!/bin/sh\\ntouch {}\\n' > other/hooks/pre-commit; chmod +x other/hooks/pre-commit; \
             rm -rf tools/git; mv tools/git gone; ln -sT ../other/deep tools/git; \
             mv tools gone; mkdir tools; ln -sT ../other/deep tools/git",
            mark.display()
        );
        let ran = exec(&place, &script);
        assert!(work.join("other/hooks/pre-commit").exists(), "{}", ran.stderr);
        commit(&place);
        assert!(!mark.exists(), "{exists}: {}", ran.stderr);
        assert_eq!(work.join("tools/git").exists(), exists, "{}", ran.stderr);
    }
}

fn notices(place: &Place) -> Vec<String> {
    let shown = place.run(&["runs", "show", "last", "--json"]).json();
    let list = shown["record"]["notices"].as_array().cloned().unwrap_or_default();
    list.iter().map(|notice| notice.as_str().unwrap_or_default().to_owned()).collect()
}

/// Many repositories, each with as much as it can name, neither slow a later start nor drown what it says, and those that were
/// there before are still protected.
#[test]
fn many_planted_repositories_cost_a_later_run_little() {
    let place = Place::new();
    repository(&place.work());
    let own = place.work().join("zz-own");
    repository(&own);
    assert!(git(&own, &["config", "core.hooksPath", "tools"]).0);
    fs::create_dir(own.join("tools")).unwrap();
    let script = "i=0; while [ $i -lt 1000 ]; do echo \"[core] hooksPath = h$i\"; echo \"[include] path = ../../i$i\"; i=$((i+1)); done > big; \
         for n in $(seq 1 1500); do mkdir -p a$n/.git/objects a$n/.git/refs; echo 'ref: refs/heads/x' > a$n/.git/HEAD; ln big a$n/.git/config; done";
    exec(&place, script).expect_code(0);
    let began = std::time::Instant::now();
    let ran = exec(&place, "echo evil > zz-own/tools/pre-commit");
    let took = began.elapsed();
    assert!(took < std::time::Duration::from_secs(20), "{took:?}");
    assert_ne!(ran.code(), 125, "{}", ran.stderr);
    assert!(!own.join("tools/pre-commit").exists(), "the user's own repository comes first: {}", ran.stderr);
    let notices = notices(&place);
    assert!(notices.len() < 60, "{} {notices:?}", notices.len());
    assert!(notices.iter().all(|notice| notice.len() < 2000), "{notices:?}");
    assert!(
        notices.iter().any(|notice| notice.contains("not all protected, there are too many")),
        "{notices:?}"
    );
}

/// What a planted repository includes elsewhere is not opened, so it cannot hold a later start.
#[test]
fn a_planted_repository_has_no_other_file_of_the_user_read() {
    let place = Place::new();
    repository(&place.work());
    let private = place.home().join("private.inc");
    fs::write(&private, "[core]\n\thooksPath = leaked-name\n").unwrap();
    let script = format!(
        "git init -q x; git -C x config include.path {0}; git init -q y; ln -s {0} y/link; git -C y config include.path ../link",
        private.display()
    );
    exec(&place, &script).expect_code(0);
    let read = |place: &Place| {
        fs::metadata(&private).map(|data| data.accessed().unwrap()).ok().filter(|_| place.work().exists())
    };
    let before = read(&place);
    exec(&place, "mkdir -p x/leaked-name y/leaked-name; echo 1 > x/leaked-name/f; echo 1 > y/leaked-name/f")
        .expect_code(0);
    assert_eq!(read(&place), before);
    let notices = notices(&place);
    assert!(!notices.iter().any(|notice| notice.contains("leaked-name")), "{notices:?}");
}

/// What a test changes in the user's git configuration: the file, its text, and files that git takes from the workspace by it.
struct Shape {
    name: &'static str,
    make: fn(&Place, &Path),
    protected: &'static [&'static str],
}

const SHAPES: [Shape; 5] = [
    Shape {
        name: "an include beside the hooks",
        make: |_, work| {
            assert!(git(work, &["config", "include.path", "../hk/gitconfig"]).0);
            assert!(git(work, &["config", "core.hooksPath", "hk"]).0);
            fs::create_dir(work.join("hk")).unwrap();
            fs::write(work.join("hk/gitconfig"), "[user]\n\tname = me\n").unwrap();
        },
        protected: &["hk/gitconfig", "hk/pre-commit"],
    },
    Shape {
        name: "a hook that is a link",
        make: |_, work| {
            fs::create_dir_all(work.join("scripts")).unwrap();
            fs::create_dir_all(work.join("hk")).unwrap();
            fs::write(work.join("scripts/pc"), "#!/bin/sh\n").unwrap();
            symlink("../scripts/pc", work.join("hk/pre-commit")).unwrap();
            assert!(git(work, &["config", "core.hooksPath", "hk"]).0);
        },
        protected: &["scripts/pc", "hk/pre-commit"],
    },
    Shape {
        name: "the user's template",
        make: |place, work| {
            fs::create_dir_all(work.join("template/hooks")).unwrap();
            let text = format!("[init]\n\ttemplateDir = {}/template\n", work.display());
            fs::write(place.home().join(".gitconfig"), text).unwrap();
        },
        protected: &["template/hooks/pre-commit", "template/config"],
    },
    Shape {
        name: "hooks by way of themselves",
        make: |_, work| {
            fs::create_dir(work.join("hk")).unwrap();
            assert!(git(work, &["config", "core.hooksPath", "hk/../hk"]).0);
        },
        protected: &["hk/pre-commit"],
    },
    Shape {
        name: "a project directory by an include",
        make: |_, work| {
            fs::create_dir_all(work.join("sub/.ringfence")).unwrap();
            fs::write(work.join("sub/.ringfence/git.inc"), "[user]\n\tname = me\n").unwrap();
            assert!(git(work, &["config", "include.path", "../sub/.ringfence/git.inc"]).0);
        },
        protected: &["sub/.ringfence/git.inc", "sub/.ringfence/settings.json"],
    },
];

#[test]
fn what_git_takes_by_several_detours_is_not_writable() {
    for Shape { name, make, protected } in SHAPES {
        let place = Place::new();
        let work = place.work().canonicalize().unwrap();
        repository(&work);
        make(&place, &work);
        for file in protected {
            let before = fs::read(work.join(file)).ok();
            let above = Path::new(file).parent().unwrap().display();
            let write = format!(
                "(echo evil > {file}) && echo WRITTEN; rm -f {file} && [ ! -L {file} ] && echo evil > {file}"
            );
            let move_away = format!("mv {above} gone && mkdir -p {above} && echo evil > {file}");
            let ran = exec(&place, &format!("{write}; {move_away}; echo fine > free"));
            assert!(work.join("free").exists(), "{name}, {file}: {}", ran.stderr);
            assert!(!ran.stdout.contains("WRITTEN"), "{name}, {file}: {}", ran.stdout);
            assert_eq!(fs::read(work.join(file)).ok(), before, "{name}, {file}");
        }
    }
}

/// Where nothing is protected, the same files are reported.
#[test]
fn what_git_takes_by_several_detours_is_reported() {
    for Shape { make, protected, .. } in SHAPES {
        let place = Place::new();
        let work = place.work().canonicalize().unwrap();
        repository(&work);
        make(&place, &work);
        let policy = place.home().join("direct.json");
        fs::write(&policy, r#"{"extends": "standard", "files": {"git": "direct", "protect": []}}"#).unwrap();
        // Settings of Ringfence are protected always.
        let written = protected.iter().filter(|file| !file.contains(".ringfence"));
        for file in written {
            let script = format!("echo '# evil' > {file}");
            let words = ["exec", "--mode", "native", "--policy", policy.to_str().unwrap(), "--", "sh", "-c"];
            place.run(&[&words[..], &[&script]].concat()).expect_code(0);
            let target = fs::canonicalize(work.join(file)).unwrap();
            let target = target.strip_prefix(&work).unwrap().display().to_string();
            assert_reported(&place, &target);
        }
    }
}

#[test]
fn programs_that_a_configuration_names_are_reported() {
    let place = Place::new();
    let work = place.work();
    repository(&work);
    let absolute = work.join("bin/pager").display().to_string();
    for (name, value) in [
        ("filter.x.clean", "tools/clean.sh %f"),
        ("diff.x.textconv", "python3 -m tools.textconv"),
        ("core.fsmonitor", "./watch"),
        ("core.pager", absolute.as_str()),
        ("alias.st", "!sh tools/status.sh"),
        ("alias.ci", "commit"),
    ] {
        assert!(git(&work, &["config", name, value]).0);
    }
    for name in ["tools/clean.sh", "tools/textconv.py", "bin/pager", "tools/status.sh"] {
        fs::create_dir_all(work.join(name).parent().unwrap()).unwrap();
        fs::write(work.join(name), "old\n").unwrap();
    }
    let reported = |script: &str, flags: &[&str]| -> Vec<String> {
        let all = [&["exec", "--mode", "native"], flags, &["--", "sh", "-c", script]].concat();
        place.run(&all).expect_code(0);
        let shown = place.run(&["runs", "show", "last", "--json"]).json();
        let files = shown["result"]["executed_later"].as_array().cloned().unwrap_or_default();
        files.iter().map(|file| file["path"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(reported("echo 1 > commit; echo 1 > other; echo 1 > tools/other", &[]), Vec::<String>::new());
    for name in ["tools/textconv/__main__.py", "watch", "tools/status.sh"] {
        let script = format!("mkdir -p tools/textconv; echo evil > {name}");
        assert_eq!(reported(&script, &["--workspace", "overlay"]), [name], "overlay");
        assert_eq!(reported(&script, &[]), [name]);
    }
    for name in ["tools/clean.sh", "tools/textconv.py", "bin/pager"] {
        exec(&place, &format!("rm -f {name}; echo evil > {name}; true")).expect_code(0);
        assert_eq!(fs::read_to_string(work.join(name)).unwrap(), "old\n");
    }
}

#[test]
fn program_that_a_configuration_names_cannot_be_swapped() {
    for moved in ["tools", "tools/x", "tools/x/clean.sh"] {
        let place = Place::new();
        let work = place.work();
        repository(&work);
        let (script, mark) = trap(&place);
        fs::create_dir_all(work.join("tools/x")).unwrap();
        fs::write(work.join("tools/x/clean.sh"), "#!/bin/sh\ncat\n").unwrap();
        fs::set_permissions(work.join("tools/x/clean.sh"), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(git(&work, &["config", "filter.x.clean", "tools/x/clean.sh"]).0);
        fs::write(work.join(".git/info/attributes"), "* filter=x\n").unwrap();
        let swap = format!(
            "mv {moved} gone; mkdir -p tools/x; printf '#!/bin/sh\\n{script}\\ncat\\n' > tools/x/clean.sh; chmod +x tools/x/clean.sh; echo 2 > file"
        );
        look_meanwhile(&place, &[], &swap, &[&work]);
        assert!(!mark.exists(), "{moved}");
    }
}

#[test]
fn configured_hook_in_the_workspace_is_protected() {
    let place = Place::new();
    let work = place.work();
    repository(&work);
    assert!(git(&work, &["config", "hook.x.event", "pre-commit"]).0);
    assert!(git(&work, &["config", "hook.x.command", "sh tools/hook.sh"]).0);
    fs::create_dir(work.join("tools")).unwrap();
    fs::write(work.join("tools/hook.sh"), "true\n").unwrap();
    let ran = exec(&place, "echo evil > tools/hook.sh || mv tools other || rm -f tools/hook.sh");
    assert_ne!(ran.code(), 0);
    assert_eq!(fs::read_to_string(work.join("tools/hook.sh")).unwrap(), "true\n");
}

/// A program of the workspace `~/dots`, by what git's configuration says of it.
const SHELLED: [(&str, &str); 21] = [
    ("core.fsmonitor", "~/dots/bin/x"),
    ("core.editor", "\"${HOME}/dots/bin/x\" -w"),
    ("diff.a.textconv", "$HOME/dots/bin/x"),
    ("core.sshCommand", "ssh -F ~/dots/bin/x"),
    ("core.sshCommand", "ssh -F./bin/x"),
    ("filter.a.clean", "cd ~/dots/bin && ./x"),
    ("filter.a.clean", "sh -c 'cd bin; sh x'"),
    ("filter.a.clean", "$(git rev-parse --show-toplevel)/bin/x"),
    ("filter.a.clean", "$(dirname \"$GIT_DIR\")/bin/x"),
    ("filter.a.clean", "\"$PWD\"/bin/x"),
    ("filter.a.clean", "make -C bin -f x"),
    ("filter.a.clean", "make -Cbin -f x"),
    ("filter.a.clean", "env --chdir=bin ./x"),
    ("filter.a.clean", "cd -P -- bin && ./x"),
    ("filter.a.clean", "$'bin/x' %f"),
    ("filter.a.clean", "grep x$;cd bin&&./x"),
    ("gc.recentObjectsHook", "./bin/x"),
    ("tar.zz.command", "./bin/x"),
    ("mergetool.a.path", "~/dots/bin/x"),
    ("lfs.customtransfer.a.path", "./bin/x"),
    ("lfs.extension.a.clean", "bin/x --clean"),
];

#[test]
fn programs_that_a_shell_would_find_are_read_only() {
    for (key, value) in SHELLED {
        for is_global in [true, false] {
            let place = Place::new();
            let dots = place.home().join("dots");
            repository(&dots);
            let program = dots.join("bin/x");
            fs::create_dir(dots.join("bin")).unwrap();
            fs::write(&program, "good").unwrap();
            let file = if is_global { place.home().join(".gitconfig") } else { dots.join(".git/config") };
            assert!(git(&dots, &["config", "-f", file.to_str().unwrap(), key, value]).0);
            let script =
                "printf evil > bin/x; rm -f bin/x; mv bin gone; mkdir -p bin; printf evil > bin/x; true";
            let ran = exec_at(&place, &dots, script).expect_code(0);
            let content = fs::read_to_string(&program).unwrap_or_default();
            assert_eq!(content, "good", "{key} = {value}, {is_global}: {}", ran.stderr);
        }
    }
}

/// Git executes a relative command of the user's configuration in whichever working tree it is.
#[test]
fn relative_programs_of_the_user_are_read_only_in_all_repositories() {
    let place = Place::new();
    let work = place.work();
    let nested = work.join("a/nested");
    for tree in [&work, &nested] {
        repository(tree);
        fs::create_dir(tree.join("tl")).unwrap();
        fs::write(tree.join("tl/conv"), "good").unwrap();
    }
    fs::write(place.home().join(".gitconfig"), "[diff \"g\"]\n\ttextconv = ./tl/conv\n").unwrap();
    let write = "printf evil > tl/conv; mv tl gone; mkdir tl; printf evil > tl/conv; true";
    exec(&place, &format!("{write}; cd a/nested; {write}")).expect_code(0);
    // From a directory of it, too.
    exec_at(&place, &work.join("tl"), "printf evil > conv; mv conv x; printf evil > conv; true")
        .expect_code(0);
    for tree in [&work, &nested] {
        assert_eq!(fs::read_to_string(tree.join("tl/conv")).unwrap(), "good", "{}", tree.display());
    }
}

/// Commands of a repository below the workspace take no room from those of the user, and what is left out is said.
#[test]
fn many_commands_of_a_repository_leave_those_of_the_user_protected() {
    let place = Place::new();
    let nested = place.work().join("a/nested");
    for tree in [&place.work(), &nested] {
        repository(tree);
        fs::create_dir(tree.join("tl")).unwrap();
        fs::write(tree.join("tl/watch"), "good").unwrap();
    }
    fs::create_dir(nested.join("own")).unwrap();
    let mut text = fs::read_to_string(nested.join(".git/config")).unwrap();
    for number in 0..100 {
        text.push_str(&format!("[filter \"f{number}\"]\n\tclean = own/x{number} a{number} b{number}\n"));
        fs::write(nested.join(format!("own/x{number}")), "x").unwrap();
    }
    fs::write(nested.join(".git/config"), text).unwrap();
    let alias: String = (0..200).map(|number| format!("word{number} ")).collect();
    fs::write(
        place.home().join(".gitconfig"),
        format!("[alias]\n\tx = !{alias}\n[core]\n\tfsmonitor = ./tl/watch\n"),
    )
    .unwrap();
    let write = "printf evil > tl/watch; mv tl gone; mkdir tl; printf evil > tl/watch; true";
    exec(&place, &format!("{write}; cd a/nested; {write}")).expect_code(0);
    for tree in [&place.work(), &nested] {
        assert_eq!(fs::read_to_string(tree.join("tl/watch")).unwrap(), "good", "{}", tree.display());
    }
    let notices = notices(&place);
    let has = |part: &str| notices.iter().any(|notice| notice.contains(part));
    assert!(has("commands of your git configuration name are protected or reported"), "{notices:?}");
    let below = format!("there are too many: {}", nested.display());
    assert!(has(&below) && has("name in these repositories are protected or reported"), "{notices:?}");
}

/// A relative program of a repository whose command has more words than are looked at.
#[test]
fn commands_with_too_many_words_are_told() {
    let place = Place::new();
    repository(&place.work());
    let words: String = (0..200).map(|number| format!("w{number} ")).collect();
    assert!(git(&place.work(), &["config", "filter.x.clean", words.trim()]).0);
    exec(&place, "true").expect_code(0);
    let notices = notices(&place);
    let told = |notice: &String| notice.contains("commands of the git configuration of");
    assert!(notices.iter().any(told), "{notices:?}");
}
