//! What every run sees of this machine: the parts of its system, and where the program is.
#![expect(clippy::disallowed_methods, reason = "parts of the system, which no run writes")]

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ringfence_core::backend::LaunchError;
use ringfence_core::failure::{Failure, FailureClass};
use ringfence_core::plan::Request;
use ringfence_workspace::RunTrees;
use ringfence_workspace::git::{Located, locate as follow};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, openat, statat};

use super::sockets;
use crate::Surroundings;
use crate::shared::listed_names::ListedNames;
use crate::shared::program::locate;
use crate::shared::survey::{Ending, real};

/// The parts of a system that programs need to run.
const PARTS: [&str; 11] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/gnu"];

/// Bytes of names that are read with one call.
const LISTING_BYTES: usize = 8 << 10;

/// What even the read-only system must not show.
const SECRETS: [&str; 15] = [
    "/etc/security/opasswd",
    "/etc/letsencrypt",
    "/etc/kubernetes",
    "/etc/krb5.keytab",
    "/etc/wireguard",
    "/etc/openvpn",
    "/etc/NetworkManager/system-connections",
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssh",
    "/etc/ssl/private",
];

/// More of it that only root can read, and root's runs with it.
const ROOT_SECRETS: [&str; 43] = [
    "/etc/apt/auth.conf",
    "/etc/apt/auth.conf.d",
    "/etc/bind/rndc.key",
    "/etc/boto.cfg",
    "/etc/ceph",
    "/etc/chef",
    "/etc/cloudflared",
    "/etc/consul.d",
    "/etc/corosync/authkey",
    "/etc/credstore",
    "/etc/credstore.encrypted",
    "/etc/cryptsetup-keys.d",
    "/etc/docker/key.json",
    "/etc/exim4/passwd.client",
    "/etc/gitlab",
    "/etc/gitlab-runner",
    "/etc/ipsec.d/private",
    "/etc/ipsec.secrets",
    "/etc/iscsi/iscsid.conf",
    "/etc/keys",
    "/etc/ldap.secret",
    "/etc/luks-keys",
    "/etc/msmtprc",
    "/etc/munge/munge.key",
    "/etc/mysql/debian.cnf",
    "/etc/netplan",
    "/etc/nix/netrc",
    "/etc/nomad.d",
    "/etc/pki/consumer",
    "/etc/pki/entitlement",
    "/etc/pki/tls/private",
    "/etc/postfix/sasl_passwd",
    "/etc/postfix/sasl_passwd.db",
    "/etc/ppp/chap-secrets",
    "/etc/ppp/pap-secrets",
    "/etc/puppetlabs/puppet/ssl/private_keys",
    "/etc/rancher",
    "/etc/rndc.key",
    "/etc/salt/pki",
    "/etc/sssd",
    "/etc/swanctl/private",
    "/etc/vault.d",
    "/etc/wpa_supplicant",
];

/// How deep `/etc` is searched at the start of root's runs for what other users cannot read, and how many names are looked at.
const LEVELS_FOR_ROOT: usize = 2;
const MAX_LISTED_FOR_ROOT: usize = 10_000;

/// Directories of sockets at which daemons answer every user. They are hidden whether a daemon runs or not.
const DAEMONS: [&str; 1] = ["/nix/var/nix/daemon-socket"];

/// What every run sees of this machine.
#[derive(Debug)]
pub(super) struct System {
    pub(super) parts: Vec<Part>,
    /// What must not be seen, and whether it is a directory.
    pub(super) secrets: Vec<(PathBuf, bool)>,
    /// Files among them that may be gone when they are to be hidden, as those that a program of the system replaces.
    pub(super) fleeting: Vec<PathBuf>,
}

/// A part of the system.
#[derive(Debug)]
pub(super) enum Part {
    Directory(PathBuf),
    Link(PathBuf, PathBuf),
}

impl System {
    /// The sockets at which the host listens below what is seen of it, and directories that hold many of them. Of these, none has a path
    /// of `needed` in it.
    pub(super) fn sockets(&self, needed: &[&Path], ending: &Ending<'_>) -> Result<Vec<PathBuf>, LaunchError> {
        let directories = self.parts.iter().filter_map(|part| match part {
            Part::Directory(path) => Some(path.as_path()),
            Part::Link(..) => None,
        });
        let seen: Vec<&Path> = directories.collect();
        let found = sockets::below(&seen, needed, ending);
        ending.check("sockets of the host were looked for")?;
        found.map_err(|error| {
            LaunchError::Runtime(
                Failure::new(FailureClass::Refused, error.to_string()).with_remedy(error.remedy()),
            )
        })
    }
}

/// The program of a run, links resolved.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    /// What has to be seen for it to run, besides the system, the workspace and what the policy names.
    pub(super) tree: Option<PathBuf>,
}

/// Looks for the program.
pub(super) fn program(request: &Request, around: &Surroundings) -> Result<Program, LaunchError> {
    let name = request.argv.first().map(String::as_str).unwrap_or_default();
    let path = request.env.get("PATH").map(String::as_str);
    let workspace = request.workspace.host().as_path();
    let found = locate(name, path, workspace)?;
    let Located { links, passed, end: path } = follow(&found).map_err(|error| {
        let message = format!("the program {} cannot be resolved: {error}", found.display());
        LaunchError::Runtime(Failure::new(FailureClass::Refused, message))
    })?;
    let tree = tree(&path).filter(|tree| !is_seen(tree, request));
    if tree.is_none() || (links.is_empty() && passed.is_empty()) {
        return Ok(Program { tree, path });
    }
    // A run may have made the link, and what it leads to would be seen.
    let unusable = |error: io::Error| {
        let message = format!("the list of directories where runs have worked cannot be read: {error}");
        LaunchError::Runtime(Failure::new(FailureClass::Refused, message))
    };
    let trees = RunTrees::of(&around.state).narrow(&around.home).map_err(unusable)?;
    let written = request.policy.files.write.iter().map(Path::new).chain([workspace]);
    let written: Vec<&Path> = trees.iter().map(PathBuf::as_path).chain(written).collect();
    let of_run = |link: &&PathBuf| written.iter().any(|tree| link.starts_with(tree));
    if let Some(link) = links.iter().chain(&passed).find(of_run) {
        let message = format!(
            "the program {} leads over {}, which a run could have made, to {}",
            found.display(),
            link.display(),
            path.display()
        );
        let failure = Failure::new(FailureClass::Refused, message);
        return Err(LaunchError::Runtime(failure.with_remedy("name the program itself if you mean it")));
    }
    Ok(Program { tree, path })
}

/// Whether a run sees a path of the host without its program.
fn is_seen(path: &Path, request: &Request) -> bool {
    let files = &request.policy.files;
    let named = files.read.iter().chain(&files.write).map(Path::new);
    named.chain([request.workspace.host().as_path()]).any(|seen| path.starts_with(seen))
}

/// Looks at the system.
pub(super) fn system() -> System {
    let part = |path: &str| {
        let path = PathBuf::from(path);
        let data = fs::symlink_metadata(&path).ok()?;
        if data.is_symlink() {
            return fs::read_link(&path).ok().map(|to| Part::Link(path, to));
        }
        data.is_dir().then_some(Part::Directory(path))
    };
    let is_root = rustix::process::geteuid().is_root();
    let more: &[&str] = if is_root { &ROOT_SECRETS } else { &[] };
    // For a few paths, looking for each takes less time than a listing.
    let names = is_root.then(|| ListedNames::list(Path::new("/etc")));
    let mut secrets: Vec<(PathBuf, bool)> = SECRETS
        .iter()
        .chain(&DAEMONS)
        .chain(more)
        .map(Path::new)
        .filter(|path| names.as_ref().is_none_or(|names| names.may_exist(path)))
        .filter_map(real)
        .collect();
    let known = secrets.len();
    if is_root {
        let mut left = MAX_LISTED_FOR_ROOT;
        hide_from_root(Path::new("/etc"), LEVELS_FOR_ROOT, &mut left, &mut secrets);
    }
    let fleeting = secrets.iter().skip(known).filter(|(_, directory)| !directory);
    let fleeting = fleeting.map(|(path, _)| path.clone()).collect();
    System { parts: PARTS.iter().filter_map(|path| part(path)).collect(), secrets, fleeting }
}

/// Adds what only root and its groups can read below a directory of the system. There are many files, and each costs a call:
/// paths are made for those alone that are hidden or looked into.
fn hide_from_root(directory: &Path, levels: usize, left: &mut usize, secrets: &mut Vec<(PathBuf, bool)>) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(opened) = openat(CWD, directory, flags, Mode::empty()) else { return };
    let mut space = [MaybeUninit::uninit(); LISTING_BYTES];
    let mut listing = RawDir::new(&opened, &mut space);
    while let Some(Ok(entry)) = listing.next() {
        let name = entry.file_name();
        if entry.file_type() == FileType::Symlink || matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        *left = left.saturating_sub(1);
        if *left == 0 {
            return;
        }
        let Ok(data) = statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        let is_directory = match FileType::from_raw_mode(data.st_mode) {
            FileType::Symlink => continue,
            kind => kind == FileType::Directory,
        };
        let needed = if is_directory { 0o005 } else { 0o004 };
        let is_hidden = data.st_mode & needed != needed;
        let is_entered = is_directory && levels > 1;
        if !is_hidden && !is_entered {
            continue;
        }
        let path = directory.join(OsStr::from_bytes(name.to_bytes()));
        if secrets.iter().any(|(secret, _)| path.starts_with(secret)) {
            continue;
        }
        if is_hidden {
            secrets.push((path, is_directory));
        } else {
            hide_from_root(&path, levels - 1, left, secrets);
        }
    }
}

/// What belongs to a program that is not part of the system: its packages, or itself alone.
fn tree(program: &Path) -> Option<PathBuf> {
    if PARTS.iter().any(|part| program.starts_with(part)) {
        return None;
    }
    let packages = program.ancestors().filter(|path| path.ends_with("node_modules")).last();
    Some(packages.unwrap_or(program).to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::{PARTS, ROOT_SECRETS, SECRETS, hide_from_root, system};

    #[test]
    fn what_others_cannot_read_is_found_in_two_levels() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        for (name, mode) in [("open", 0o755), ("open/deep", 0o755), ("shut", 0o750), ("open/shut", 0o700)] {
            fs::create_dir(at(name)).unwrap();
            fs::set_permissions(at(name), Permissions::from_mode(mode)).unwrap();
        }
        for (name, mode) in [
            ("key", 0o640),
            ("open/key", 0o600),
            ("open/deep/key", 0o600),
            ("open/file", 0o644),
            ("shut/key", 0o600),
            ("known", 0o600),
        ] {
            fs::write(at(name), "x").unwrap();
            fs::set_permissions(at(name), Permissions::from_mode(mode)).unwrap();
        }
        let mut found = vec![(at("known"), false)];
        hide_from_root(place.path(), 2, &mut 100, &mut found);
        found.sort();
        let expected =
            [("key", false), ("known", false), ("open/key", false), ("open/shut", true), ("shut", true)];
        assert_eq!(found, expected.map(|(name, directory)| (at(name), directory)));
    }

    #[test]
    fn secrets_are_in_parts_that_are_seen_and_those_of_root_are_hidden_from_its_runs() {
        let is_seen = |path: &&'static str| PARTS.iter().any(|part| path.starts_with(part));
        assert!(SECRETS.iter().chain(&ROOT_SECRETS).all(is_seen));
        let hidden = system().secrets;
        for path in ROOT_SECRETS.iter().filter(|_| rustix::process::geteuid().is_root()) {
            let real = std::fs::canonicalize(path);
            assert!(real.map_or(true, |real| hidden.iter().any(|(path, _)| *path == real)), "{path}");
        }
    }
}
