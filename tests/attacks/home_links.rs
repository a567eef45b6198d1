//! Configuration in the home that links lead into the workspace: a repository of dotfiles.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::git::{exec, exec_at, repository};
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
