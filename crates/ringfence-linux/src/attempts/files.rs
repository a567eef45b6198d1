//! Files outside, secrets, protected and denied files.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use ringfence_core::capability::Promise;

use super::{Attempt, Bait, Outcome, refused, unlisted, unreadable};

const fn attempt(
    group: &'static str,
    promise: Promise,
    what: &'static str,
    attempt: fn(&Bait) -> Outcome,
) -> Attempt {
    Attempt { group, promise, what, attempt }
}

const FILES: Promise = Promise::FilesConfined;
const SECRETS: Promise = Promise::SecretsUnreadable;
const PROTECTED: Promise = Promise::PathsProtected;
const DENIED: Promise = Promise::GlobsDenied;

/// Writes a file of the workspace that a program of the user would execute or obey later.
macro_rules! write_protected {
    ($what:literal, $path:literal) => {
        attempt("protected", PROTECTED, $what, |bait| make(bait, $path))
    };
}

/// Renames a file or directory of the workspace, so that another can take its place.
macro_rules! rename_protected {
    ($what:literal, $path:literal) => {
        attempt("protected", PROTECTED, $what, |bait| rename(&bait.workspace.join($path)))
    };
}

/// Renames a file or directory of the workspace, and writes a file in its place. The host looks whether that has come out: a
/// run may do it in a git directory of its own.
macro_rules! replace_protected {
    ($what:literal, $path:literal, $file:literal) => {
        attempt("protected", PROTECTED, $what, |bait| {
            let path = bait.workspace.join($path);
            match fs::rename(&path, path.with_extension("moved")) {
                Ok(()) => make(bait, $file),
                Err(error) => Outcome::Held(error.to_string()),
            }
        })
    };
}

pub(super) const ATTEMPTS: &[Attempt] = &[
    attempt("files", FILES, "read a file outside by its path", |bait| unreadable(&outside(bait))),
    attempt("files", FILES, "read it through /proc/self/root", |bait| {
        unreadable(&Path::new("/proc/self/root").join(relative(&outside(bait))))
    }),
    attempt("files", FILES, "read it through /proc/self/cwd/../..", |bait| {
        unreadable(&Path::new("/proc/self/cwd/../../../../../..").join(relative(&outside(bait))))
    }),
    attempt("files", FILES, "read it through a link in the workspace", |bait| {
        let link = bait.workspace.join("link-out");
        let made = symlink(outside(bait), &link);
        made.map_or_else(|error| Outcome::NotTried(error.to_string()), |()| unreadable(&link))
    }),
    attempt("files", FILES, "give it a second name in the workspace", |bait| {
        refused(fs::hard_link(outside(bait), bait.workspace.join("second-name")))
    }),
    attempt("files", FILES, "rename it into the workspace", |bait| {
        let here = bait.workspace.join("taken.txt");
        let taken = fs::rename(outside(bait), &here);
        if taken.is_ok() {
            // Back where it was, for the attempts that follow.
            let _ = fs::rename(&here, outside(bait));
        }
        refused(taken)
    }),
    attempt("files", FILES, "list the directory outside", |bait| refused(fs::read_dir(&bait.outside))),
    attempt("files", FILES, "write beside it", |bait| write(&bait.outside.join("written.txt"))),
    attempt("files", FILES, "write where only reading was allowed", |bait| {
        write(&bait.shown.join("written.txt"))
    }),
    attempt("files", FILES, "change the permissions of what only may be read", |bait| {
        let file = bait.shown.join("open.txt");
        let same = fs::metadata(&file).map(|data| data.permissions());
        refused(same.and_then(|same| fs::set_permissions(&file, same)))
    }),
    attempt("files", FILES, "write into /usr", |bait| write(&Path::new("/usr").join(&bait.name))),
    attempt("files", FILES, "write into /etc", |bait| write(&Path::new("/etc").join(&bait.name))),
    attempt("files", FILES, "write into the root", |bait| write(&Path::new("/").join(&bait.name))),
    attempt("files", FILES, "write into the host's /tmp", |bait| write(&Path::new("/tmp").join(&bait.name))),
    attempt("files", FILES, "open a program of the system for writing", |_| {
        refused(OpenOptions::new().write(true).open("/bin/sh"))
    }),
    attempt("files", Promise::HomePrivate, "read a file in the person's own home", |bait| {
        unreadable(&bait.at_home)
    }),
    // Before the next attempt, which makes directories of that name inside.
    attempt("files", Promise::HomePrivate, "list the state of ringfence", |bait| {
        let state = bait.at_home.parent().and_then(Path::parent).unwrap_or(&bait.at_home);
        unlisted(state)
    }),
    attempt("files", Promise::HomePrivate, "write a file into the person's own home", |bait| {
        let beside = bait.at_home.with_file_name("written.txt");
        let _ = beside.parent().map(fs::create_dir_all);
        write(&beside)
    }),
    attempt("secrets", SECRETS, "read a secret where its directory may be read", |bait| {
        unreadable(&bait.shown.join("secret.txt"))
    }),
    attempt("secrets", SECRETS, "read it by its second name", |bait| {
        unreadable(&bait.shown.join("alias.txt"))
    }),
    attempt("secrets", SECRETS, "read it through /proc/self/root", |bait| {
        unreadable(&Path::new("/proc/self/root").join(relative(&bait.shown.join("secret.txt"))))
    }),
    attempt("secrets", SECRETS, "open it as a path alone, and again through /proc/self/fd", |bait| {
        match OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(bait.shown.join("secret.txt")) {
            Ok(file) => unreadable(&PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))),
            Err(error) => Outcome::Held(error.to_string()),
        }
    }),
    attempt("secrets", SECRETS, "read the passwords of the system", |_| unreadable(Path::new("/etc/shadow"))),
    attempt("secrets", SECRETS, "read who may become root", |_| unreadable(Path::new("/etc/sudoers"))),
    attempt("protected", PROTECTED, "write a git hook", |bait| {
        write(&bait.workspace.join(".git/hooks/pre-commit"))
    }),
    attempt("protected", PROTECTED, "change the git configuration", |bait| {
        write(&bait.workspace.join(".git/config"))
    }),
    attempt("protected", PROTECTED, "put another configuration in its place", |bait| {
        let other = bait.workspace.join("other-config");
        let made = fs::File::create(&other);
        refused(made.and_then(|_| fs::rename(&other, bait.workspace.join(".git/config"))))
    }),
    replace_protected!("move the configuration away and write another", ".git/config", ".git/config"),
    rename_protected!("move the repository away and put another in its place", ".git"),
    attempt("protected", PROTECTED, "write the configuration by a second name", |bait| {
        let name = bait.workspace.join("second-config");
        match fs::hard_link(bait.workspace.join(".git/config"), &name) {
            Ok(()) => write(&name),
            Err(error) => Outcome::Held(error.to_string()),
        }
    }),
    replace_protected!(
        "move the name of the current branch away and write another",
        ".git/HEAD",
        ".git/HEAD"
    ),
    replace_protected!("move what git ignores away and write another", ".git/info", ".git/info/exclude"),
    write_protected!("change what git ignores", ".git/info/exclude"),
    write_protected!("give git attributes that run programs", ".git/info/attributes"),
    write_protected!("write a hook where the configuration says that hooks are", ".husky/pre-commit"),
    rename_protected!("move the directory of those hooks away", ".husky"),
    write_protected!("write a hook of a repository below", "nested/.git/hooks/pre-commit"),
    write_protected!("change the configuration of a repository below", "nested/.git/config"),
    rename_protected!("move a repository below away", "nested/.git"),
    write_protected!("make settings for the agent CLI", ".claude/settings.json"),
    write_protected!("make tasks for the editor", ".vscode/tasks.json"),
    write_protected!("make settings for ringfence", ".ringfence/settings.json"),
    write_protected!("name servers for the agent CLI", ".mcp.json"),
    write_protected!("make a file that runs when one enters the directory", ".envrc"),
    write_protected!("make a start-up file of bash", ".bashrc"),
    write_protected!("make a login file of bash", ".bash_profile"),
    write_protected!("make a login file of the shell", ".profile"),
    write_protected!("make a start-up file of zsh", ".zshrc"),
    write_protected!("make a login file of zsh", ".zprofile"),
    write_protected!("make a configuration of git", ".gitconfig"),
    write_protected!("make options for ripgrep", ".ripgreprc"),
    write_protected!("change tasks for the editor below", "below/.vscode/tasks.json"),
    write_protected!("change servers for the agent CLI below", "below/.mcp.json"),
    write_protected!("change settings for the agent CLI below", "below/.claude/settings.json"),
    write_protected!("change a start-up file of bash below", "below/.bashrc"),
    attempt("denied", DENIED, "read .env", |bait| unreadable(&bait.workspace.join(".env"))),
    attempt("denied", DENIED, "read a key below", |bait| unreadable(&bait.workspace.join("sub/key.pem"))),
    attempt("denied", DENIED, "read .env by its second name", |bait| {
        unreadable(&bait.workspace.join("env-alias"))
    }),
    attempt("denied", DENIED, "read .env through a link", |bait| {
        let link = bait.workspace.join("env-link");
        let _ = symlink(".env", &link);
        unreadable(&link)
    }),
    attempt("denied", DENIED, "rename .env and read it", |bait| {
        let name = bait.workspace.join("env-renamed");
        match fs::rename(bait.workspace.join(".env"), &name) {
            Ok(()) => unreadable(&name),
            Err(error) => Outcome::Held(error.to_string()),
        }
    }),
    attempt("denied", DENIED, "rename the directory of a key and read it", |bait| {
        let directory = bait.workspace.join("renamed");
        match fs::rename(bait.workspace.join("sub"), &directory) {
            Ok(()) => unreadable(&directory.join("key.pem")),
            Err(error) => Outcome::Held(error.to_string()),
        }
    }),
];

fn outside(bait: &Bait) -> PathBuf {
    bait.outside.join("file.txt")
}

fn relative(path: &Path) -> PathBuf {
    path.strip_prefix("/").unwrap_or(path).to_owned()
}

/// Adds a line to a file, and makes it if it is not there. The host looks whether it has come out.
fn write(path: &Path) -> Outcome {
    let opened = OpenOptions::new().append(true).create(true).open(path);
    match opened.and_then(|mut file| file.write_all(super::MARK)) {
        Ok(()) => Outcome::Wrote(path.to_owned()),
        Err(error) => Outcome::Held(error.to_string()),
    }
}

/// Writes a file of the workspace, and makes the directories above it.
fn make(bait: &Bait, path: &str) -> Outcome {
    let path = bait.workspace.join(path);
    let _ = path.parent().map(fs::create_dir_all);
    write(&path)
}

/// Gives something another name, and takes that back for the attempts that follow.
fn rename(path: &Path) -> Outcome {
    let other = path.with_extension("moved");
    let renamed = fs::rename(path, &other);
    if renamed.is_ok() {
        let _ = fs::rename(&other, path);
    }
    refused(renamed)
}
