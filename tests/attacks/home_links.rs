//! Configuration in the home that links lead into the workspace: a repository of dotfiles.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::git::{assert_reported, exec, exec_at, git, repository};
use crate::support::Place;

/// Names of the home, what they lead to from the workspace, and a file there.
const LINKS: [(&str, &str, &str); 7] = [
    (".bashrc", "bashrc", "bashrc"),
    (".vimrc", "way", "vimrc"),
    (".config/nvim", "nvim", "nvim/init.lua"),
    (".config/systemd/user", "units", "units/a.service"),
    (".config/autostart/a.desktop", "desktop/a", "desktop/a"),
    (".local/bin", "deep/bin", "deep/bin/ll"),
    (".config/fish", "fish", "fish/conf.d/a.fish"),
];

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn link(place: &Place, name: &str, target: &Path) {
    let link = place.home().join(name);
    fs::create_dir_all(link.parent().unwrap()).unwrap();
    symlink(target, link).unwrap();
}

/// A run tries everything to replace a file.
fn assert_unchanged(place: &Place, file: &str) {
    let above = Path::new(file).iter().next().unwrap().to_str().unwrap();
    let script = format!(
        "echo evil >> {file}; rm -f {file}; mv {above} gone; mkdir -p $(dirname {file}); echo evil > {file}; true"
    );
    exec(place, &script).expect_code(0);
    assert_eq!(fs::read_to_string(place.work().join(file)).ok().as_deref(), Some("mine\n"), "{file}");
}

#[test]
fn what_links_of_the_home_lead_to_is_protected() {
    let place = Place::new();
    let work = place.work().canonicalize().unwrap();
    repository(&work);
    for (name, target, file) in LINKS {
        write(&work.join(file), "mine\n");
        link(&place, name, &work.join(target));
    }
    symlink("vimrc", work.join("way")).unwrap();
    for (name, _, file) in LINKS {
        assert_unchanged(&place, file);
        assert!(fs::metadata(place.home().join(name)).is_ok(), "{name}");
    }
    exec(&place, "ln -sfn file way; rm -f way; ln -s file way; true").expect_code(0);
    assert_eq!(fs::read_link(work.join("way")).unwrap(), Path::new("vimrc"));
    let notices = place.run(&["runs", "show", "last", "--json"]).json()["record"]["notices"].to_string();
    assert!(notices.contains("links in your home lead there"), "{notices}");
    // Other files stay writable.
    exec(&place, "echo 2 > file && echo 2 > desktop/b && echo 2 > deep/c").expect_code(0);
}

#[test]
fn the_template_of_new_repositories_is_protected() {
    let place = Place::new();
    let work = place.work().canonicalize().unwrap();
    repository(&work);
    write(&work.join("template/hooks/post-checkout"), "mine\n");
    write(&work.join("scripts/real"), "mine\n");
    symlink("../../scripts/real", work.join("template/hooks/post-commit")).unwrap();
    let config = format!("[init]\n\ttemplateDir = {}/template\n", work.display());
    write(&place.home().join(".gitconfig"), &config);
    assert_unchanged(&place, "template/hooks/post-checkout");
    assert_unchanged(&place, "scripts/real");
}

#[test]
fn a_workspace_that_a_link_of_the_home_leads_to_is_said() {
    let place = Place::new();
    let work = place.work().canonicalize().unwrap();
    write(&work.join("lua/init.lua"), "mine\n");
    link(&place, ".config/nvim", &work);
    for at in [&work, &work.join("lua")] {
        exec_at(&place, at, "true").expect_code(0);
        let notices = place.run(&["runs", "show", "last", "--json"]).json()["record"]["notices"].to_string();
        assert!(notices.contains("is not protected: the run works in that directory"), "{notices}");
    }
}

/// Commits a file that is protected, without writing it.
const COMMIT_ASIDE: &str = "blob=$(echo evil | git hash-object -w --stdin); \
     c() { git update-index --add --cacheinfo 100644,$blob,$1 && git -c user.name=a -c user.email=a@b commit -qm $1; }";

#[test]
fn commits_that_change_protected_files_are_reported() {
    let place = Place::new();
    let work = place.work().canonicalize().unwrap();
    write(&work.join("bashrc"), "mine\n");
    write(&work.join("dot/nvim/init.lua"), "mine\n");
    write(&work.join("shared.inc"), "[user]\n\tname = me\n");
    repository(&work);
    link(&place, ".bashrc", &work.join("bashrc"));
    link(&place, ".config/nvim", &work.join("dot/nvim"));
    let included = format!("[include]\n\tpath = {}\n", work.join("shared.inc").display());
    fs::write(place.home().join(".gitconfig"), included).unwrap();
    let script = format!(
        "{COMMIT_ASIDE}; c bashrc; c plain; c shared.inc; git checkout -q -b other; \
         git rm -q -r --cached dot; c dot; git symbolic-ref HEAD refs/heads/main; git reset -q"
    );
    exec(&place, &script);
    for path in ["bashrc", "shared.inc", "dot"] {
        assert_reported(&place, path);
    }
    let shown = place.run(&["runs", "show", "last", "--json"]).json()["result"].to_string();
    assert!(!shown.contains("\"plain\""), "{shown}");
    // So is what is only staged.
    assert!(git(&work, &["reset", "-q", "--hard", "HEAD~3"]).0);
    exec(&place, &format!("{COMMIT_ASIDE}; git update-index --cacheinfo 100644,$blob,bashrc")).expect_code(0);
    assert_reported(&place, "bashrc");
}

#[test]
fn commits_that_change_what_a_policy_protects_are_reported() {
    let place = Place::new();
    let work = place.work();
    repository(&work);
    let policy = place.home().join("own.json");
    fs::write(&policy, r#"{"extends": "standard", "files": {"protect": ["ci/deploy.sh"]}}"#).unwrap();
    let script = format!("{COMMIT_ASIDE}; c ci/deploy.sh");
    let run = ["exec", "--mode", "native", "--policy", policy.to_str().unwrap(), "--", "sh", "-c", &script];
    place.run(&run).expect_code(0);
    // The path is only reserved: nothing is there.
    assert_reported(&place, "ci/deploy.sh");
}

/// Protected paths of the user's own git configuration, which only commits change.
fn configured(place: &Place) {
    let work = place.work().canonicalize().unwrap();
    write(&work.join("hooks.d/pre-commit"), "mine\n");
    write(&work.join("template/hooks/post-checkout"), "mine\n");
    repository(&work);
    let at = work.display();
    let config = format!("[core]\n\thooksPath = {at}/hooks.d\n[init]\n\ttemplateDir = {at}/template\n");
    write(&place.home().join(".gitconfig"), &config);
}

const CONFIGURED: [&str; 2] = ["hooks.d/pre-commit", "template/hooks/post-checkout"];

#[test]
fn commits_that_change_hooks_and_templates_of_the_user_are_reported() {
    let place = Place::new();
    configured(&place);
    exec(&place, &format!("{COMMIT_ASIDE}; c {}; c {}", CONFIGURED[0], CONFIGURED[1])).expect_code(0);
    for path in CONFIGURED {
        assert_reported(&place, path);
    }
}

#[test]
fn protected_paths_in_commits_of_an_overlay_are_reported() {
    let place = Place::new();
    configured(&place);
    let script = format!("{COMMIT_ASIDE}; c {}; c {}", CONFIGURED[0], CONFIGURED[1]);
    place
        .run(&["exec", "--mode", "native", "--workspace", "overlay", "--", "sh", "-c", &script])
        .expect_code(0);
    let applied = place.run(&["apply", "last"]);
    for path in CONFIGURED {
        assert!(applied.stderr.contains(path), "{} {}", applied.stdout, applied.stderr);
    }
}

#[test]
fn protected_paths_in_commits_of_a_killed_run_are_reported() {
    let place = Place::new();
    configured(&place);
    let script =
        format!("{COMMIT_ASIDE}; c {}; c {}; echo > committed; sleep 1000", CONFIGURED[0], CONFIGURED[1]);
    let mut child = place.spawn(&["exec", "--mode", "native", "--", "sh", "-c", &script]);
    crate::support::wait_for("the commits", || place.work().join("committed").exists().then_some(()));
    crate::support::signal(child.id(), "-KILL");
    child.wait().unwrap();
    crate::support::wait_for("the import", || {
        let ran = exec(&place, "true").expect_code(0);
        let is_told = CONFIGURED.iter().all(|path| ran.stderr.contains(path));
        is_told.then_some(())
    });
}

/// Names of the home, and their second names in the workspace. Two are named by git's configuration.
const SECOND_NAMES: [(&str, &str); 6] = [
    (".bashrc", "bashrc"),
    (".config/autostart/a.desktop", "a.desktop"),
    (".local/bin/ll", "ll"),
    (".gitconfig", "gitconfig"),
    ("git/included", "included"),
    ("git/hooks/post-checkout", "post-checkout"),
];

#[test]
fn second_names_of_files_of_the_home_are_protected() {
    let place = Place::new();
    let work = place.work().canonicalize().unwrap();
    repository(&work);
    let config = format!(
        "[include]\n\tpath = {0}/git/included\n[core]\n\thooksPath = {0}/git/hooks\n",
        place.home().display()
    );
    for (name, second) in SECOND_NAMES {
        let text = if name == ".gitconfig" { config.as_str() } else { "# mine\n" };
        write(&place.home().join(name), text);
        fs::hard_link(place.home().join(name), work.join(second)).unwrap();
    }
    fs::write(place.home().join("other"), "mine\n").unwrap();
    fs::hard_link(place.home().join("other"), work.join("other")).unwrap();
    for (name, second) in SECOND_NAMES {
        let before = fs::read_to_string(place.home().join(name)).unwrap();
        exec(&place, &format!("echo evil >> {second}; chmod 777 {second}; true")).expect_code(0);
        assert_eq!(fs::read_to_string(place.home().join(name)).unwrap(), before, "{name}");
    }
    let notices = place.run(&["runs", "show", "last", "--json"]).json()["record"]["notices"].to_string();
    assert!(notices.contains("other names (hard links)"), "{notices}");
    // Files that govern nothing stay writable.
    exec(&place, "echo yours > other").expect_code(0);
    assert_eq!(fs::read_to_string(place.home().join("other")).unwrap(), "yours\n");
}

/// Configuration of agent CLIs, of `ssh` and of editors, where links lead to it from the home: the link, and the file in the workspace.
const EXECUTED: [(&str, &str); 16] = [
    (".claude/settings.json", "claude/settings.json"),
    (".claude/skills/own", "claude/skill/SKILL.md"),
    (".codex/config.toml", "codex/config.toml"),
    (".codex/hooks.json", "codex/hooks.json"),
    (".config/opencode/config.json", "opencode/config.json"),
    (".config/opencode/plugin/p.ts", "opencode/p.ts"),
    (".ssh/config", "ssh/config"),
    (".ssh/config.d/a", "ssh/a"),
    (".aws/config", "aws/config"),
    (".kube/config", "kube/config"),
    (".docker/cli-plugins/docker-x", "docker/x"),
    (".gnupg/gpg-agent.conf", "gnupg/gpg-agent.conf"),
    (".config/emacs/init.el", "emacs/init.el"),
    (".config/kitty/kitty.conf", "kitty/kitty.conf"),
    (".config/environment.d/a.conf", "environment/a.conf"),
    (".emacs", "emacs/old.el"),
];

/// A home whose configuration is in a repository of dotfiles, by symbolic links or by hard links.
fn dotfiles(place: &Place, is_hard: bool) {
    let work = place.work().canonicalize().unwrap();
    repository(&work);
    for (name, file) in EXECUTED {
        write(&work.join(file), "mine\n");
        match is_hard {
            // A directory has no second name.
            true if name == ".claude/skills/own" => link(place, name, &work.join("claude/skill")),
            true => {
                let at = place.home().join(name);
                fs::create_dir_all(at.parent().unwrap()).unwrap();
                fs::hard_link(work.join(file), at).unwrap();
            }
            false if name == ".claude/skills/own" => link(place, name, &work.join("claude/skill")),
            false => link(place, name, &work.join(file)),
        }
    }
    fs::write(work.join("plain"), "mine\n").unwrap();
}

/// Writes each of the files, by all means.
fn write_all() -> String {
    let of = |(_, file): &(&str, &str)| format!("echo evil >> {file}; rm -f {file}; mv {file} x; ");
    format!("{} echo yours > plain", EXECUTED.iter().map(of).collect::<String>())
}

fn assert_all_unchanged(place: &Place) {
    for (name, file) in EXECUTED {
        assert_eq!(fs::read_to_string(place.work().join(file)).ok().as_deref(), Some("mine\n"), "{name}");
    }
}

#[test]
fn dotfiles_of_agent_clis_ssh_and_editors_are_read_only() {
    for is_hard in [false, true] {
        let place = Place::new();
        dotfiles(&place, is_hard);
        exec(&place, &write_all()).expect_code(0);
        assert_all_unchanged(&place);
        assert_eq!(place.read("plain"), "yours\n");
        let notices = place.run(&["runs", "show", "last", "--json"]).json()["record"]["notices"].to_string();
        assert!(notices.contains("links in your home lead there"), "{notices}");
    }
}

#[test]
fn dotfiles_that_are_named_for_writing_are_read_only() {
    let place = Place::new();
    dotfiles(&place, false);
    let elsewhere = place.home().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let (at, named) = (elsewhere.display().to_string(), place.work().canonicalize().unwrap());
    let script = format!("cd {}; {}", named.display(), write_all());
    let named = named.display().to_string();
    place.run(&["exec", "-C", &at, "--write", &named, "--", "sh", "-c", &script]).expect_code(0);
    assert_all_unchanged(&place);
}

#[test]
fn dotfiles_in_an_overlay_are_read_only() {
    let place = Place::new();
    dotfiles(&place, false);
    place.run(&["exec", "--workspace", "overlay", "--", "sh", "-c", &write_all()]).expect_code(0);
    let changes = place.run(&["diff", "last"]).expect_code(0).stdout;
    assert!(changes.contains("plain") && !changes.contains("evil"), "{changes}");
    place.run(&["apply", "last"]).expect_code(0);
    assert_all_unchanged(&place);
}

/// The run could make the configuration that the user's programs find next.
#[test]
fn dotfiles_that_are_missing_are_reserved() {
    let place = Place::new();
    let work = place.work().canonicalize().unwrap();
    link(&place, ".claude/settings.json", &work.join("claude.json"));
    link(&place, ".ssh/config", &work.join("ssh/config"));
    exec(&place, "echo evil > claude.json; mkdir -p ssh; echo evil > ssh/config; true").expect_code(0);
    assert!(!work.join("claude.json").exists() && !work.join("ssh/config").exists());
}

/// The programs of a toolchain are names of one file. Others of its names would have every file of a workspace compared.
#[test]
fn names_of_a_program_are_protected_only_outside_its_directory() {
    let place = Place::new();
    let program = place.home().join(".cargo/bin/rustup");
    write(&program, "mine\n");
    fs::hard_link(&program, place.home().join(".cargo/bin/cargo")).unwrap();
    fs::hard_link(&program, place.work().join("second")).unwrap();
    exec(&place, "echo evil >> second; true").expect_code(0);
    assert_eq!(fs::read_to_string(&program).unwrap(), "mine\n");
}

/// What a run with the home as its workspace must not make: the directories of secrets are not there.
const MISSING: [&str; 18] = [
    ".ssh/authorized_keys",
    ".ssh/rc",
    ".ssh/config",
    ".aws/config",
    ".kube/config",
    ".config/gh/config.yml",
    ".npmrc",
    ".netrc",
    "bin/x",
    ".cargo/bin/x",
    ".nvm/nvm.sh",
    ".pam_environment",
    ".config/environment.d/a.conf",
    ".local/share/systemd/user/a.service",
    ".xsessionrc",
    ".cshrc",
    ".local/lib/python3.11/site-packages/usercustomize.py",
    ".config/opencode/config.json",
];

#[test]
fn missing_secrets_and_programs_of_the_home_are_reserved() {
    let place = Place::new();
    let home = place.home().canonicalize().unwrap();
    let make =
        |name: &&str| format!("mkdir -p $(dirname {name}) 2>/dev/null; echo evil > {name} 2>/dev/null; ");
    let script =
        format!("{} echo yours > plain; echo evil > .emacs", MISSING.iter().map(make).collect::<String>());
    for at in [home.clone(), home.parent().unwrap().to_owned()] {
        let script = format!("cd {}; {script}", if at == home { "." } else { "home" });
        let at = at.to_str().unwrap();
        place.run(&["exec", "--home-workspace", "-C", at, "--", "sh", "-c", &script]).expect_code(0);
        for name in MISSING {
            assert!(!home.join(name).exists(), "{name}");
        }
        assert_eq!(fs::read_to_string(home.join("plain")).unwrap(), "yours\n");
        // An empty file would keep Emacs from reading its other configuration.
        assert_reported(&place, if at.ends_with("home") { ".emacs" } else { "home/.emacs" });
        fs::remove_file(home.join(".emacs")).unwrap();
    }
    // Nothing of it stays.
    assert!(!home.join(".ssh").exists() && !home.join("bin").exists());
}

#[test]
fn directories_of_the_home_with_programs_are_refused_as_workspaces() {
    let place = Place::new();
    let home = place.home().canonicalize().unwrap();
    for name in [".local/bin", ".config/systemd/user", ".config/autostart", ".config/nvim/lua", "bin"] {
        let directory = home.join(name);
        fs::create_dir_all(&directory).unwrap();
        let at = directory.to_str().unwrap();
        for args in [&["-C", at][..], &["--write", at]] {
            let run = |more: &[&str]| {
                place.run(&[&["exec", "--mode", "native"], args, more, &["--", "true"]].concat())
            };
            let ran = run(&[]).expect_code(125);
            assert!(
                ran.stderr.contains("whose files programs execute")
                    && ran.stderr.contains("--home-workspace"),
                "{name}: {ran:?}"
            );
            run(&["--home-workspace"]).expect_code(0);
            let notices =
                place.run(&["runs", "show", "last", "--json"]).json()["record"]["notices"].to_string();
            assert!(
                notices.contains("is not protected: the run works in that directory"),
                "{name}: {notices}"
            );
        }
    }
    // Beside them a run works as anywhere.
    fs::create_dir_all(home.join(".config/own")).unwrap();
    place.run(&["exec", "-C", home.join(".config/own").to_str().unwrap(), "--", "true"]).expect_code(0);
}

/// Programs that a login starts find their files in the home of the list of accounts, whatever `HOME` is.
#[test]
fn home_of_the_list_of_accounts_is_refused_and_its_secrets_are_hidden() {
    let place = Place::new();
    let (login, accounts) = (place.work().parent().unwrap().join("login"), place.home().join("accounts"));
    fs::create_dir_all(login.join(".ssh")).unwrap();
    fs::create_dir_all(login.join("project")).unwrap();
    fs::write(login.join(".ssh/id_x"), "canary-key\n").unwrap();
    let login = login.canonicalize().unwrap();
    let list = format!("root:x:0:0::{}:/bin/sh\n", login.display());
    fs::write(&accounts, list).unwrap();
    // In a mount namespace of its own, which takes root.
    let run = |args: &str| {
        let bind = format!("mount --bind {} /etc/passwd", accounts.display());
        place.shell(&format!("exec unshare -m sh -c '{bind} && exec {} exec {args}'", crate::support::BINARY))
    };
    if place.shell("unshare -m true").code() != 0 || place.shell("id -u").stdout.trim() != "0" {
        return;
    }
    let at = login.display();
    for args in [format!("-C {at} -- true"), format!("-C {at}/.. -- true"), format!("--write {at} -- true")] {
        let ran = run(&args).expect_code(125);
        assert!(
            ran.stderr.contains("your home directory") && ran.stderr.contains("--home-workspace"),
            "{ran:?}"
        );
    }
    for args in [
        format!("--home-workspace -C {at} -- cat .ssh/id_x"),
        format!("--read {at} -- cat {at}/.ssh/id_x"),
        format!("--home-workspace --write {at} -- cat {at}/.ssh/id_x"),
    ] {
        let ran = run(&args);
        assert!(!ran.stdout.contains("canary") && ![0, 125].contains(&ran.code()), "{args}: {ran:?}");
    }
    // A project there is a workspace as any other.
    run(&format!("-C {at}/project -- true")).expect_code(0);
}
