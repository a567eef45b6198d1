//! Protects what protected names of the home lead to over symbolic links, and their other names (hard links), where a run could
//! write it: many users keep their configuration in a repository and link to it.
#![expect(clippy::disallowed_methods, reason = "files of the user's own home; nothing is opened")]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ringfence_core::paths::DirectoryId;
use ringfence_workspace::git::{Located, linked_hooks, locate_within};

use super::git_configuration::{Follower, Of, follow};
use super::survey::Survey;

/// Directories within protected ones of the home whose entries programs execute.
const DEEPER_DIRECTORIES: [&str; 1] = [".config/systemd/user/"];

/// Protects the ends of links at these names of a home, and of links in directories among them, below `roots`.
pub(super) fn protect(home: &Path, names: &[&str], roots: &[PathBuf], survey: &mut Survey) {
    let deeper = DEEPER_DIRECTORIES.iter().filter(|path| names.iter().any(|name| path.starts_with(name)));
    follow(survey, Of::User(roots), |follower| {
        names.iter().chain(deeper).for_each(|name| protect_name(home, name, follower));
        if follower.is_cut {
            let home = home.display();
            follower.notice(format!("not all links in {home} are followed to protect what they lead to"));
        }
    });
}

/// Names that end in `/` are directories.
fn protect_name(home: &Path, name: &str, follower: &mut Follower<'_>) {
    let ending = if name.ends_with('/') { "/" } else { "" };
    // A link that leads nowhere, in a circle, is not executed.
    let Ok(Some(located)) = locate_within(&home.join(name), follower.reach()) else { return };
    protect_end(&located, ending, follower);
    if ending.is_empty() {
        if let Ok(data) = fs::symlink_metadata(&located.end)
            && data.is_file()
            && data.nlink() > 1
        {
            follower.linked(&[DirectoryId { device: data.dev(), inode: data.ino() }]);
        }
        return;
    }
    let reach = follower.reach();
    // A directory that cannot be listed has no links that a program of the user follows.
    let Ok(linked) = linked_hooks(&located.end, reach, &mut follower.left) else { return };
    follower.is_cut |= linked.is_cut;
    follower.linked(&linked.linked);
    linked.located.iter().for_each(|located| protect_end(located, "", follower));
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
