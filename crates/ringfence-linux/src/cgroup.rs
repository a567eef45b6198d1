//! Control groups: memory, processes and processors of a whole run, bounded by the kernel.
//!
//! Version 1 has a tree for each controller, version 2 one tree for all. In both a run gets a group of its own below
//! the nearest group that this user may write: in version 1 the one that this process is in, in version 2 one above
//! it, for there a group with processes has no groups that are bounded.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_gate::Limit;
use rustix::fs::{Access, FlockOperation, accessat, flock};

/// Where the kernel shows its groups.
const ROOT: &str = "/sys/fs/cgroup";
/// How the names of our groups begin.
const PREFIX: &str = "ringfence-";
/// A group is made and locked within much less.
const FORGOTTEN: Duration = Duration::from_secs(1);
/// In microseconds.
const PERIOD: u64 = 100_000;

/// What a group bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Controller {
    Memory,
    Pids,
    Cpu,
}

impl Controller {
    const ALL: [Controller; 3] = [Controller::Memory, Controller::Pids, Controller::Cpu];

    fn name(self) -> &'static str {
        match self {
            Controller::Memory => "memory",
            Controller::Pids => "pids",
            Controller::Cpu => "cpu",
        }
    }
}

/// How much of each. The processes are those of the run; the first process of the sandbox comes on top.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u32>,
    /// Thousandths of a processor.
    pub cpu_millis: Option<u32>,
}

impl Bounds {
    fn amount(&self, controller: Controller) -> Option<u64> {
        match controller {
            Controller::Memory => self.memory,
            Controller::Pids => self.pids.map(|pids| u64::from(pids) + 1),
            Controller::Cpu => self.cpu_millis.map(u64::from),
        }
    }
}

/// The two versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    V1,
    V2,
}

/// The groups below which this process can make groups of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hierarchy {
    parents: Vec<(Controller, Version, PathBuf)>,
}

/// Why a run cannot be bounded.
#[derive(Debug, thiserror::Error)]
#[error("the control group {path} cannot be used: {source}")]
pub struct CgroupError {
    path: PathBuf,
    source: io::Error,
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> CgroupError + use<> {
    let path = path.to_owned();
    move |source| CgroupError { path, source }
}

impl Hierarchy {
    /// Looks around.
    pub fn look() -> Self {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self::below(Path::new(ROOT), &own)
    }

    /// The same for another place, where `own` tells the groups of this process in the kernel's words.
    fn below(root: &Path, own: &str) -> Self {
        let parent = |controller| match root.join("cgroup.controllers").exists() {
            true => Some((controller, Version::V2, version_2(root, own, controller)?)),
            false => Some((controller, Version::V1, version_1(root, own, controller)?)),
        };
        Self { parents: Controller::ALL.into_iter().filter_map(parent).collect() }
    }

    /// By which version something can be bounded here.
    pub fn version(&self, controller: Controller) -> Option<Version> {
        self.parents.iter().find(|(of, ..)| *of == controller).map(|(_, version, _)| *version)
    }

    /// Makes the groups of a run.
    pub fn create(&self, name: &str, bounds: &Bounds) -> Result<Groups, CgroupError> {
        let mut groups = Groups::default();
        for controller in Controller::ALL {
            let Some(amount) = bounds.amount(controller) else { continue };
            let parent = self.parents.iter().find(|(of, ..)| *of == controller);
            let (_, version, parent) = parent
                .ok_or_else(|| failed(Path::new(controller.name()))(io::ErrorKind::Unsupported.into()))?;
            let group = parent.join(format!("{PREFIX}{name}"));
            if !groups.directories.contains(&group) {
                sweep(parent);
                fs::create_dir(&group).map_err(failed(&group))?;
                groups.directories.push(group.clone());
                groups
                    .locks
                    .push(lock(&group, FlockOperation::NonBlockingLockShared).map_err(failed(&group))?);
            }
            if *version == Version::V2 && !hands_down(parent, controller) {
                set(&parent.join("cgroup.subtree_control"), &format!("+{}", controller.name()))?;
            }
            bound(&group, *version, controller, amount)?;
        }
        Ok(groups)
    }
}

/// The path of this process's group in the tree of a controller; the empty name is that of version 2.
fn own_group<'a>(own: &'a str, controller: &str) -> Option<&'a str> {
    own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        controllers.split(',').any(|name| name == controller).then_some(path)
    })
}

fn version_1(root: &Path, own: &str, controller: Controller) -> Option<PathBuf> {
    let path = own_group(own, controller.name())?;
    let tree = root.join(controller.name());
    let group = tree.join(path.trim_start_matches('/'));
    // In a container the kernel may tell a path of the host; what is seen there is the container's own group.
    let group = if group.is_dir() { group } else { tree };
    writable(&group).then_some(group)
}

fn version_2(root: &Path, own: &str, controller: Controller) -> Option<PathBuf> {
    let mine = root.join(own_group(own, "")?.trim_start_matches('/'));
    let mut above =
        mine.ancestors().skip(usize::from(mine != root)).take_while(|group| group.starts_with(root));
    above
        .find(|group| {
            let ours = writable(group) && writable(&group.join("cgroup.procs"));
            ours && (hands_down(group, controller) || could_hand_down(group, *group == root, controller))
        })
        .map(Path::to_owned)
}

fn lists(file: &Path, controller: Controller) -> bool {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.split_whitespace().any(|name| name == controller.name())
}

/// Whether the groups below a group are bounded by a controller.
fn hands_down(group: &Path, controller: Controller) -> bool {
    lists(&group.join("cgroup.subtree_control"), controller)
}

/// Whether they would be if it was asked to. A group with processes cannot, unless it is the outermost.
fn could_hand_down(group: &Path, outermost: bool, controller: Controller) -> bool {
    let empty = || fs::read_to_string(group.join("cgroup.procs")).is_ok_and(|text| text.is_empty());
    lists(&group.join("cgroup.controllers"), controller) && (outermost || empty())
}

fn writable(path: &Path) -> bool {
    accessat(rustix::fs::CWD, path, Access::WRITE_OK, rustix::fs::AtFlags::EACCESS).is_ok()
}

fn set(file: &Path, text: &str) -> Result<(), CgroupError> {
    let opened = fs::OpenOptions::new().write(true).open(file);
    opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(failed(file))
}

fn bound(group: &Path, version: Version, controller: Controller, amount: u64) -> Result<(), CgroupError> {
    let set = |file: &str, text: &str| set(&group.join(file), text);
    // Swap would let a run have more than it may, where there is any.
    let swap = |file: &str, text: &str| if group.join(file).exists() { set(file, text) } else { Ok(()) };
    match (version, controller) {
        (Version::V1, Controller::Memory) => {
            set("memory.limit_in_bytes", &amount.to_string())?;
            swap("memory.memsw.limit_in_bytes", &amount.to_string())
        }
        (Version::V2, Controller::Memory) => {
            set("memory.max", &amount.to_string())?;
            swap("memory.swap.max", "0")
        }
        (_, Controller::Pids) => set("pids.max", &amount.to_string()),
        (Version::V1, Controller::Cpu) => {
            set("cpu.cfs_period_us", &PERIOD.to_string())?;
            set("cpu.cfs_quota_us", &quota(amount).to_string())
        }
        (Version::V2, Controller::Cpu) => set("cpu.max", &format!("{} {PERIOD}", quota(amount))),
    }
}

/// Microseconds of a period. The kernel takes no less than one thousandth of a second.
fn quota(millis: u64) -> u64 {
    (millis * PERIOD / 1000).max(1000)
}

/// Takes away groups that somebody who was killed has left. Those that have processes stay by themselves.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
        if ours
            && age().is_some_and(|age| age > FORGOTTEN)
            && lock(&entry.path(), FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Whoever made a group holds on to it.
fn lock(group: &Path, how: FlockOperation) -> io::Result<fs::File> {
    let directory = fs::File::open(group)?;
    flock(&directory, how)?;
    Ok(directory)
}

/// The groups of one run. They go when this is dropped, if nothing runs in them.
#[derive(Debug, Default)]
pub struct Groups {
    directories: Vec<PathBuf>,
    locks: Vec<fs::File>,
}

/// What this process's own group of version 2 has refused, for one that was started in a group made for it.
pub(crate) fn own_exhausted() -> Option<Limit> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    exhausted(&[Path::new(ROOT).join(own_group(&own, "")?.trim_start_matches('/'))])
}

/// What was asked for in vain in the container that this process is in, as far as it sees its groups.
pub(crate) fn container_exhausted() -> Option<Limit> {
    exhausted(&["", "memory", "pids"].map(|controller| Path::new(ROOT).join(controller)))
}

/// What was asked for in vain in these groups, or paid for with a process.
fn exhausted(groups: &[PathBuf]) -> Option<Limit> {
    let count = |file: &str, name: &str| {
        let counts = groups.iter().filter_map(|group| fs::read_to_string(group.join(file)).ok());
        counts.filter_map(|text| number_after(&text, name)).sum::<u64>()
    };
    if count("memory.oom_control", "oom_kill") + count("memory.events", "oom_kill") > 0 {
        return Some(Limit::Memory);
    }
    (count("pids.events", "max") > 0).then_some(Limit::Processes)
}

impl Groups {
    /// Those that somebody else has made.
    pub fn of(directories: Vec<PathBuf>) -> Self {
        Self { directories, locks: Vec::new() }
    }

    /// Where they are.
    pub fn directories(&self) -> &[PathBuf] {
        &self.directories
    }

    /// Puts a process there. Whatever it starts from now on is there too.
    pub fn join(&self, pid: i32) -> Result<(), CgroupError> {
        self.directories.iter().try_for_each(|group| set(&group.join("cgroup.procs"), &pid.to_string()))
    }

    /// What was asked for in vain.
    pub fn exhausted(&self) -> Option<Limit> {
        exhausted(&self.directories)
    }
}

fn number_after(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

impl Drop for Groups {
    fn drop(&mut self) {
        self.locks.clear();
        for group in &self.directories {
            let _ = fs::remove_dir(group);
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::fs;
    use std::path::Path;

    use ringfence_gate::Limit;

    use super::{Bounds, Controller, Groups, Hierarchy, Version};

    const BOUNDS: Bounds = Bounds { memory: Some(1 << 30), pids: Some(10), cpu_millis: Some(1500) };

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A directory that looks as the kernel's: files of a group are there as soon as it is.
    fn group(path: &Path, files: &[&str]) {
        fs::create_dir_all(path).unwrap();
        files.iter().for_each(|file| write(&path.join(file), ""));
    }

    #[test]
    fn in_version_2_the_nearest_group_above_that_hands_down_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let slice = dir.path().join("user.slice/app.slice");
        write(&dir.path().join("cgroup.controllers"), "cpu memory pids");
        for group in [dir.path(), &dir.path().join("user.slice"), &slice, &slice.join("shell.scope")] {
            write(&group.join("cgroup.procs"), "");
            write(&group.join("cgroup.subtree_control"), "");
        }
        let own = "0::/user.slice/app.slice/shell.scope\n";
        write(&slice.join("cgroup.subtree_control"), "memory pids");
        write(&slice.join("cgroup.procs"), "17\n");
        let hierarchy = Hierarchy::below(dir.path(), own);
        let parent = |of| hierarchy.parents.iter().find(|(name, ..)| *name == of).unwrap().2.clone();
        assert_eq!(parent(Controller::Memory), slice);
        assert_eq!(hierarchy.version(Controller::Pids), Some(Version::V2));
        assert_eq!(parent(Controller::Cpu), dir.path(), "nearer ones have processes or do not know it");
        let control = fs::read_to_string(dir.path().join("cgroup.subtree_control")).unwrap();
        assert_eq!(control, "", "a look changes nothing");
    }

    #[test]
    fn in_version_1_each_controller_has_its_own_tree() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("memory/mine")).unwrap();
        fs::create_dir_all(dir.path().join("pids")).unwrap();
        let own = "9:memory:/mine\n8:pids:/of/the/host\n3:cpu,cpuacct:/\n0::/\n";
        let hierarchy = Hierarchy::below(dir.path(), own);
        let parents: Vec<_> = hierarchy.parents.iter().map(|(of, _, path)| (*of, path.clone())).collect();
        assert_eq!(
            parents,
            [
                (Controller::Memory, dir.path().join("memory/mine")),
                (Controller::Pids, dir.path().join("pids"))
            ]
        );
        assert_eq!(hierarchy.version(Controller::Cpu), None);
        let error = hierarchy.create("x", &BOUNDS).unwrap_err();
        assert!(error.to_string().contains("memory/mine/ringfence-x"), "{error}");
    }

    #[test]
    fn bounds_are_written_in_the_words_of_the_version() {
        let dir = tempfile::tempdir().unwrap();
        let files = ["memory.max", "memory.swap.max", "pids.max", "cpu.max"];
        group(dir.path(), &files);
        for (controller, amount) in
            [(Controller::Memory, 1 << 30), (Controller::Pids, 11), (Controller::Cpu, 1500)]
        {
            super::bound(dir.path(), Version::V2, controller, amount).unwrap();
        }
        let read = files.map(|file| fs::read_to_string(dir.path().join(file)).unwrap());
        assert_eq!(read, ["1073741824", "0", "11", "150000 100000"]);
    }

    #[test]
    fn what_was_used_up_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let groups = Groups::of(vec![dir.path().to_owned()]);
        assert_eq!(groups.exhausted(), None);
        write(&dir.path().join("pids.events"), "max 3\n");
        assert_eq!(groups.exhausted(), Some(Limit::Processes));
        write(&dir.path().join("memory.events"), "low 0\noom 1\noom_kill 1\n");
        assert_eq!(groups.exhausted(), Some(Limit::Memory));
    }
}
