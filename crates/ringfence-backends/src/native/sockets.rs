//! Sockets of the host below what a run sees of the system.
//!
//! A program reaches whoever listens at a path that it sees: neither a read-only mount nor a network of its own keeps it from
//! that. The workspace and what a policy names are searched for sockets; the system is too large for that, so the kernel is asked
//! which names are bound.
//!
//! Any user of the machine, and a run with the host's network, binds names in any number, over links of its own. So a name costs one call
//! unless a link is in it; only links of root and of the user are followed, in a bounded number of steps, and the run's time and its
//! cancellation end the search.
#![expect(clippy::disallowed_methods, reason = "parts of the system, which no run writes")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2, readlinkat};
use rustix::io::Errno;
use rustix::process::{Uid, geteuid};

use super::bound_names::{self, BoundName};
use crate::shared::survey::Ending;

/// Places of which a run sees nothing, unless its program is there. Most sockets are there.
const UNSEEN: [&str; 3] = ["/run", "/var/run", "/tmp"];
/// Where paths lead elsewhere for every process.
const OF_PROCESSES: &str = "/proc";
/// Parts of paths and links that are followed for one name. Those of services have a few.
const MAX_STEPS_OF_NAME: usize = 256;
/// The same for all names of root and the user, and for all names of other users.
const MAX_STEPS: u32 = 1 << 17;
/// Directories of which it is remembered where they lead.
const MAX_KNOWN: usize = 4096;
/// More sockets in one directory than this, and the whole directory is hidden.
const MAX_IN_DIRECTORY: usize = 64;
/// Most sockets and directories of sockets that are hidden. Each is a mount.
const MAX_COVERS: usize = 1024;

/// Why it is not known which sockets have to be hidden.
#[derive(Debug)]
pub(super) enum SocketsError {
    List(io::Error),
    /// A name of root or the user could not be followed, for want of descriptors or memory, say.
    Follow(io::Error),
    /// Names of root or the user need more steps than are taken.
    Steps,
    /// More would have to be hidden than can be.
    Covers,
}

impl fmt::Display for SocketsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::List(error) => write!(f, "the sockets that the host listens at cannot be listed: {error}"),
            Self::Follow(error) => write!(f, "a path of a socket of the host cannot be followed: {error}"),
            Self::Steps => f.write_str("there are too many sockets of yours or of root's, or links to them, to find out which the run would see"),
            Self::Covers => write!(f, "more than {MAX_COVERS} sockets of the host would have to be hidden"),
        }
    }
}

impl SocketsError {
    /// What the user can do.
    pub(super) fn remedy(&self) -> &'static str {
        match self {
            Self::List(_) => "allow `ringfence` to read `/proc/net/unix`",
            Self::Follow(_) => "free descriptors or memory, and start the run again",
            Self::Steps | Self::Covers => {
                "end the program that listens at so many sockets; `ss -xlp` lists them"
            }
        }
    }
}

/// The sockets below directories that are seen, links resolved, or directories that hold many of them. Of these, none has a path of
/// `needed` in it. What was found is not all if `ending` is due.
pub(super) fn below(
    seen: &[&Path],
    needed: &[&Path],
    ending: &Ending<'_>,
) -> Result<Vec<PathBuf>, SocketsError> {
    let mut search = Search::new(seen, ending);
    bound_names::list(&mut |name| search.visit(&name)).map_err(SocketsError::List)?;
    if let Some(error) = search.failed {
        return Err(error);
    }
    let may_hide = |directory: &Path| {
        seen.iter().any(|seen| directory.starts_with(seen) && directory != *seen)
            && !needed.iter().any(|path| path.starts_with(directory))
    };
    covers(&search.found, &may_hide)
}

/// What is hidden so that these sockets are. A user who may write in a part of the system can make any number of them.
fn covers(
    sockets: &BTreeSet<PathBuf>,
    may_hide: &dyn Fn(&Path) -> bool,
) -> Result<Vec<PathBuf>, SocketsError> {
    let mut counts: BTreeMap<&Path, usize> = BTreeMap::new();
    for parent in sockets.iter().filter_map(|socket| socket.parent()) {
        *counts.entry(parent).or_default() += 1;
    }
    let is_crowded = |parent: &&Path| counts.get(parent).is_some_and(|count| *count > MAX_IN_DIRECTORY);
    let parent = |path: &PathBuf| path.parent().filter(|parent| may_hide(parent)).map(Path::to_owned);
    let mut covers: BTreeSet<PathBuf> = sockets
        .iter()
        .map(|socket| {
            parent(socket).filter(|parent| is_crowded(&parent.as_path())).unwrap_or_else(|| socket.clone())
        })
        .collect();
    while covers.len() > MAX_COVERS {
        let depth = |path: &PathBuf| path.components().count();
        let deepest = covers.iter().filter(|path| parent(path).is_some()).map(depth).max();
        let Some(deepest) = deepest else { return Err(SocketsError::Covers) };
        let above = |path: &PathBuf| parent(path).filter(|_| depth(path) == deepest);
        covers = covers.iter().map(|path| above(path).unwrap_or_else(|| path.clone())).collect();
    }
    let is_within = |path: &&PathBuf| path.ancestors().skip(1).any(|above| covers.contains(above));
    Ok(covers.iter().filter(|path| !is_within(path)).cloned().collect())
}

/// What becomes of the names that the kernel lists.
struct Search<'a> {
    seen: &'a [&'a Path],
    unseen: Vec<&'static str>,
    ending: &'a Ending<'a>,
    user: Uid,
    /// Steps that are left for names of root and the user, and for those of others.
    steps: u32,
    steps_of_others: u32,
    /// The real paths of directories.
    known: HashMap<PathBuf, Option<PathBuf>>,
    found: BTreeSet<PathBuf>,
    /// Why names of root or the user were not followed to their ends.
    failed: Option<SocketsError>,
}

/// Why a name was not followed to its end.
enum Unresolved {
    /// There are no steps left.
    Steps,
    /// Descriptors or memory are used up, for example.
    Failed(Errno),
}

/// `None` if an error says that there is nothing, or nothing that this user reaches.
fn unless_absent(error: Errno) -> Result<Option<PathBuf>, Unresolved> {
    match error {
        Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::LOOP | Errno::NAMETOOLONG => Ok(None),
        error => Err(Unresolved::Failed(error)),
    }
}

impl<'a> Search<'a> {
    fn new(seen: &'a [&'a Path], ending: &'a Ending<'a>) -> Self {
        let is_unseen = |place: &&str| !seen.iter().any(|seen| seen.starts_with(place));
        Self {
            seen,
            unseen: UNSEEN.into_iter().filter(is_unseen).chain([OF_PROCESSES]).collect(),
            ending,
            user: geteuid(),
            steps: MAX_STEPS,
            steps_of_others: MAX_STEPS,
            known: HashMap::new(),
            found: BTreeSet::new(),
            failed: None,
        }
    }

    fn visit(&mut self, name: &BoundName) -> ControlFlow<()> {
        if self.ending.is_due() {
            return ControlFlow::Break(());
        }
        let path = name.path.as_path();
        let (Some(parent), Some(last)) = (path.parent(), path.file_name()) else {
            return ControlFlow::Continue(());
        };
        if self.unseen.iter().any(|unseen| parent.starts_with(unseen)) {
            return ControlFlow::Continue(());
        }
        let is_of_other = name.user.is_some_and(|user| user != self.user && !user.is_root());
        match self.resolve(parent, is_of_other) {
            Ok(Some(directory)) => self.add(directory.join(last)),
            Ok(None) => {}
            // Other users can bind names that no link tells of in any case.
            Err(_) if is_of_other => {}
            Err(unresolved) => {
                self.failed = Some(match unresolved {
                    Unresolved::Steps => SocketsError::Steps,
                    Unresolved::Failed(error) => SocketsError::Follow(error.into()),
                });
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    fn add(&mut self, path: PathBuf) {
        let is_socket = || fs::symlink_metadata(&path).is_ok_and(|data| data.file_type().is_socket());
        if self.is_seen(&path) && is_socket() {
            self.found.insert(path);
        }
    }

    fn is_seen(&self, path: &Path) -> bool {
        self.seen.iter().any(|seen| path.starts_with(seen))
    }

    /// Where a directory really is; `None` if it is not there, or leads over a link of another user.
    fn resolve(&mut self, directory: &Path, is_of_other: bool) -> Result<Option<PathBuf>, Unresolved> {
        if let Some(known) = self.known.get(directory) {
            return Ok(known.clone());
        }
        let is_plain =
            directory.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        if !(is_plain && self.is_seen(directory)) {
            self.step(is_of_other)?;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let real = match openat2(CWD, directory, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
            Ok(_) if is_plain => Some(directory.components().collect()),
            Ok(opened) => Some(path_of(&opened)?),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => None,
            Err(_) => self.follow(directory, is_of_other)?,
        };
        if self.known.len() < MAX_KNOWN {
            self.known.insert(directory.to_owned(), real.clone());
        }
        Ok(real)
    }

    /// The same over links of root and of the user.
    fn follow(&mut self, directory: &Path, is_of_other: bool) -> Result<Option<PathBuf>, Unresolved> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = || openat(CWD, "/", flags, Mode::empty()).map_err(Unresolved::Failed);
        let mut place = root()?;
        let mut rest = parts(directory.as_os_str().as_bytes());
        for _ in 0..MAX_STEPS_OF_NAME {
            let Some(part) = rest.pop() else { return path_of(&place).map(Some) };
            self.step(is_of_other)?;
            let next = match openat(&place, &part, flags, Mode::empty()) {
                Ok(next) => next,
                Err(error) => return unless_absent(error),
            };
            let data = fstat(&next).map_err(Unresolved::Failed)?;
            if FileType::from_raw_mode(data.st_mode) != FileType::Symlink {
                place = next;
                continue;
            }
            let owner = Uid::from_raw(data.st_uid);
            let Some(target) =
                readlinkat(&next, "", Vec::new()).ok().filter(|_| owner == self.user || owner.is_root())
            else {
                return Ok(None);
            };
            // One with so many parts is not followed to its end.
            let more = target.as_bytes().iter().filter(|byte| **byte == b'/').count();
            if rest.len() + more > MAX_STEPS_OF_NAME {
                return Ok(None);
            }
            if target.as_bytes().starts_with(b"/") {
                place = root()?;
            }
            rest.extend(parts(target.as_bytes()));
        }
        Ok(None)
    }

    fn step(&mut self, is_of_other: bool) -> Result<(), Unresolved> {
        let left = if is_of_other { &mut self.steps_of_others } else { &mut self.steps };
        *left = left.checked_sub(1).ok_or(Unresolved::Steps)?;
        Ok(())
    }
}

/// The names of a path, the first one last.
fn parts(path: &[u8]) -> Vec<OsString> {
    let names = path.rsplit(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    names.map(|name| OsString::from_vec(name.to_vec())).collect()
}

/// Where the kernel has what was opened.
fn path_of(opened: &OwnedFd) -> Result<PathBuf, Unresolved> {
    let read = fs::read_link(format!("/proc/self/fd/{}", opened.as_fd().as_raw_fd()));
    read.map_err(|error| Unresolved::Failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ops::ControlFlow;
    use std::os::unix::fs::{lchown, symlink};
    use std::os::unix::net::{UnixDatagram, UnixListener};
    use std::path::{Path, PathBuf};
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    use rustix::process::Uid;

    use super::super::bound_names::BoundName;
    use super::{MAX_COVERS, MAX_IN_DIRECTORY, MAX_STEPS, MAX_STEPS_OF_NAME, Search, covers};
    use crate::shared::survey::Ending;

    /// A user of whom nothing here is.
    const STRANGER: u32 = 31_337;

    fn below(seen: &Path, needed: &[&Path]) -> Vec<PathBuf> {
        let not_interrupted = AtomicBool::new(false);
        super::below(&[seen], needed, &Ending::new(&not_interrupted, in_an_hour())).unwrap()
    }

    fn in_an_hour() -> Instant {
        Instant::now() + Duration::from_secs(3600)
    }

    /// Not below `/tmp`, which no run sees.
    fn place() -> (tempfile::TempDir, PathBuf) {
        let place = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = place.path().canonicalize().unwrap();
        std::fs::create_dir(path.join("seen")).unwrap();
        (place, path)
    }

    #[test]
    fn sockets_below_a_directory_are_found_through_links() {
        let (_place, at) = place();
        symlink("seen", at.join("link")).unwrap();
        symlink(&at, at.join("seen/up")).unwrap();
        let _stream = UnixListener::bind(at.join("seen/stream")).unwrap();
        let _datagram = UnixDatagram::bind(at.join("link/datagram")).unwrap();
        let _dotted = UnixDatagram::bind(at.join("seen/../link/./up/seen/dotted")).unwrap();
        let _beside = UnixListener::bind(at.join("beside")).unwrap();
        let gone = UnixListener::bind(at.join("seen/gone")).unwrap();
        std::fs::remove_file(at.join("seen/gone")).unwrap();
        let seen = at.join("seen");
        assert_eq!(below(&seen, &[]), ["datagram", "dotted", "stream"].map(|name| seen.join(name)));
        drop(gone);
    }

    #[test]
    fn sockets_beside_a_program_below_tmp_are_found() {
        let place = tempfile::tempdir_in("/tmp").unwrap();
        let packages = place.path().canonicalize().unwrap().join("node_modules");
        std::fs::create_dir(&packages).unwrap();
        let _listener = UnixListener::bind(packages.join("socket")).unwrap();
        assert_eq!(below(&packages, &[]), [packages.join("socket")]);
    }

    #[test]
    fn directory_with_many_sockets_is_hidden_unless_the_run_needs_it() {
        let (_place, at) = place();
        let seen = at.join("seen");
        std::fs::create_dir(seen.join("many")).unwrap();
        let socket = |number: usize| UnixDatagram::bind(seen.join(format!("many/{number}"))).unwrap();
        let sockets: Vec<_> = (0..=MAX_IN_DIRECTORY).map(socket).collect();
        assert_eq!(below(&seen, &[]), [seen.join("many")]);
        assert_eq!(below(&seen, &[&seen.join("many/work")]).len(), sockets.len());
        // What is seen is a part of the system.
        assert_eq!(below(&seen.join("many"), &[]).len(), sockets.len());
    }

    #[test]
    fn sockets_in_many_directories_are_hidden_with_those_above() {
        let sockets = |kept: &str, count: usize| -> BTreeSet<PathBuf> {
            let many = (0..count).map(|number| format!("/opt/stranger/{number}/a/socket").into());
            many.chain([kept.into()]).collect()
        };
        let may_hide = |directory: &Path| directory.starts_with("/opt/stranger");
        let found = covers(&sockets("/opt/socket", MAX_COVERS), &may_hide).unwrap();
        assert_eq!(found, ["/opt/socket", "/opt/stranger"].map(PathBuf::from));
        assert_eq!(covers(&sockets("/opt/socket", 9), &may_hide).unwrap().len(), 10);
        assert!(covers(&sockets("/opt/socket", MAX_COVERS), &|_| false).is_err());
    }

    /// Runs a search over names of a user. Returns how it ended, and the steps that were taken.
    fn search(seen: &Path, user: Uid, names: impl IntoIterator<Item = PathBuf>) -> (Search<'static>, u32) {
        let ending = Box::leak(Box::new(Ending::new(Box::leak(Box::default()), in_an_hour())));
        let seen = Box::leak(Box::new([&*Box::leak(seen.to_owned().into_boxed_path())]));
        let mut search = Search::new(seen, ending);
        let _ = names.into_iter().try_for_each(|path| search.visit(&BoundName { path, user: Some(user) }));
        let steps = MAX_STEPS * 2 - search.steps - search.steps_of_others;
        (search, steps)
    }

    #[test]
    fn long_links_of_others_are_not_followed_and_own_ones_not_far() {
        let (_place, at) = place();
        std::fs::create_dir(at.join("a")).unwrap();
        for link in 0..38 {
            let last = if link == 0 { "seen".to_owned() } else { format!("l{}", link - 1) };
            symlink("a/../".repeat(810) + &last, at.join(format!("l{link}"))).unwrap();
        }
        symlink("seen", at.join("of_other")).unwrap();
        let _socket = UnixDatagram::bind(at.join("seen/socket")).unwrap();
        let own = rustix::process::geteuid();
        for user in [own, Uid::from_raw(STRANGER)] {
            let names = (0..100).map(|number| at.join(format!("l37/{number}/socket")));
            let (found, steps) = search(&at.join("seen"), user, names);
            assert!(found.found.is_empty() && found.failed.is_none());
            assert!(steps as usize <= 100 * (MAX_STEPS_OF_NAME + 1), "{steps}");
        }
        let over_link = || search(&at.join("seen"), own, [at.join("of_other/socket")]).0.found;
        assert_eq!(over_link(), [at.join("seen/socket")].into());
        if own.is_root() {
            lchown(at.join("of_other"), Some(STRANGER), None).unwrap();
            assert!(over_link().is_empty());
        }
    }

    #[test]
    fn names_of_others_fail_nothing_and_hide_no_socket_of_the_system() {
        let (_place, at) = place();
        let seen = at.join("seen");
        let _socket = UnixDatagram::bind(seen.join("socket")).unwrap();
        let _elsewhere = UnixDatagram::bind(at.join("elsewhere")).unwrap();
        let many = (0..=MAX_STEPS).map(|number| at.join(format!("{number}/socket")));
        let names = || many.clone().chain([at.join("seen/../seen/other"), seen.join("socket")]);
        let (found, _) = search(&seen, Uid::from_raw(STRANGER), names());
        assert_eq!((found.found, found.failed.is_some()), ([seen.join("socket")].into(), false));
        let (found, _) = search(&seen, rustix::process::geteuid(), names());
        assert!(found.failed.is_some(), "what is not known is not passed over");
    }

    #[test]
    fn search_ends_with_the_time_of_the_run_and_its_cancellation() {
        let name = BoundName { path: "/opt/a/socket".into(), user: None };
        for (interrupted, deadline) in [(true, in_an_hour()), (false, Instant::now())] {
            let interrupted = AtomicBool::new(interrupted);
            let ending = Ending::new(&interrupted, deadline);
            let mut search = Search::new(&[], &ending);
            assert!((0..10_000).any(|_| search.visit(&name) == ControlFlow::Break(())));
            assert!(ending.check("it was searched").is_err());
        }
    }
}
