//! Protects what names of the home that programs execute lead to over symbolic links, and their other names (hard links), where a run
//! could write it: many users keep their configuration in a repository and link to it. Directories of secrets are among these names.
#![expect(clippy::disallowed_methods, reason = "names in the user's own home; no file is opened")]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ringfence_core::paths::DirectoryId;
use ringfence_core::policy::home::DEEPER_DIRECTORIES;
use ringfence_workspace::git::{Located, locate_within};
use ringfence_workspace::{Directory, EntryKind};

use super::git_configuration::{Follower, Of, follow};
use super::survey::Survey;

/// Protects the ends of links at these names of a home, and of links in directories among them, below `roots`. What is hidden is not
/// protected besides.
pub(super) fn protect(home: &Path, names: &[&str], roots: &[PathBuf], survey: &mut Survey) {
    let before = survey.protected.len();
    follow(survey, Of::User(roots), |follower| {
        names.iter().for_each(|name| protect_name(home, name, follower));
        if follower.is_cut {
            let home = home.display();
            follower.notice(format!("not all links in {home} are followed to protect what they lead to"));
        }
    });
    let hidden = survey.hidden.iter().map(|(path, _)| path);
    let hidden: BTreeSet<&Path> = hidden.map(PathBuf::as_path).collect();
    let mut led_to = survey.protected.split_off(before);
    led_to.retain(|path| !hidden.contains(path.as_path()));
    survey.protected.append(&mut led_to);
}

/// Names that end in `/` are directories. Others may be: secrets are named without.
fn protect_name(home: &Path, name: &str, follower: &mut Follower<'_>) {
    let ending = if name.ends_with('/') { "/" } else { "" };
    // A link that leads nowhere, in a circle, is not executed.
    let Ok(Some(located)) = locate_within(&home.join(name), follower.reach()) else { return };
    protect_end(&located, ending, follower);
    if ending.is_empty() {
        let Ok(data) = fs::symlink_metadata(&located.end) else { return };
        if data.is_file() && data.nlink() > 1 {
            follower.linked(&[DirectoryId { device: data.dev(), inode: data.ino() }]);
        }
        if !data.is_dir() {
            return;
        }
    }
    // A directory that cannot be listed has no links that a program of the user follows.
    let Some(entries) = entries(&located.end, follower) else { return };
    for link in &entries.links {
        if let Ok(Some(located)) = locate_within(&located.end.join(link), follower.reach()) {
            protect_end(&located, "", follower);
        }
    }
    for deeper in DEEPER_DIRECTORIES {
        let below = Path::new(deeper).strip_prefix(name).ok().and_then(|below| below.iter().next());
        if below.is_some_and(|first| entries.links.contains(first) || entries.directories.contains(first)) {
            protect_name(home, deeper, follower);
        }
    }
}

/// What is in a directory whose entries programs execute.
#[derive(Default)]
struct Entries {
    links: BTreeSet<OsString>,
    directories: BTreeSet<OsString>,
}

/// Lists a directory as far as the budget goes, and has the names protected that its files have elsewhere.
fn entries(directory: &Path, follower: &mut Follower<'_>) -> Option<Entries> {
    let opened = Directory::open(directory).ok()?;
    let mut found = Entries::default();
    let mut names: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    let listed = opened.each(&mut |name, kind, _| {
        if follower.left.hooks == 0 || (kind == EntryKind::Link && follower.left.links == 0) {
            follower.is_cut = true;
            return false;
        }
        follower.left.hooks -= 1;
        match kind {
            EntryKind::Link => {
                follower.left.links -= 1;
                found.links.insert(name.to_owned());
            }
            EntryKind::Directory => drop(found.directories.insert(name.to_owned())),
            EntryKind::File => note_other_names(&opened, name, &mut names),
            _ => {}
        }
        true
    });
    listed.ok()?;
    // Programs of a toolchain are names of one file, all of them here.
    let elsewhere = names.into_iter().filter(|(_, others)| *others > 0);
    let elsewhere = elsewhere.map(|((device, inode), _)| DirectoryId { device, inode });
    follower.linked(&elsewhere.collect::<Vec<_>>());
    Some(found)
}

/// Counts the names of a file that were not seen yet.
fn note_other_names(directory: &Directory, name: &OsStr, names: &mut BTreeMap<(u64, u64), u64>) {
    let data = directory.metadata(Path::new(name)).ok();
    if let Some(data) = data.filter(|data| data.links() > 1) {
        let others = names.entry((data.id().device, data.id().inode)).or_insert(data.links());
        *others = others.saturating_sub(1);
    }
}

fn protect_end(located: &Located, ending: &str, follower: &mut Follower<'_>) {
    let Some(link) = located.links.first() else { return };
    if follower.roots().iter().any(|root| root.starts_with(&located.end)) {
        let (link, end) = (link.display(), located.end.display());
        return follower.notice(format!(
            "{end}, which {link} leads to, is not protected: the run works in that directory"
        ));
    }
    follower.located(located, ending);
}
