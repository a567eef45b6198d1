//! The seam to the kernel: what building a root asks of it, for real and as a double that only takes notes.

use std::ffi::CString;
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ringfence_core::paths::DirectoryId;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, accessat, fstat, openat2};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_change,
    mount_remount, move_mount, open_tree, unmount,
};

use crate::init::same_directory;
use crate::layout::{Access, Covered, Step};

/// Why a root could not be built.
#[derive(Debug, thiserror::Error)]
#[error("could not {what} {}: {source}", path.display())]
pub struct KernelError {
    what: &'static str,
    path: PathBuf,
    source: io::Error,
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> KernelError + use<> {
    let path = path.to_owned();
    move |source| KernelError { what, path, source }
}

/// What building a root asks of the kernel.
pub trait Kernel {
    /// Makes an empty root in memory the root, with the old one below it.
    fn begin(&mut self) -> Result<(), KernelError>;
    /// Bounds the memory that the root takes with all its private places.
    fn bound(&mut self, size: &str) -> Result<(), KernelError>;
    /// Makes a directory and those above it.
    fn directory(&mut self, target: &Path) -> Result<(), KernelError>;
    /// Makes an empty file to mount something on.
    fn file(&mut self, target: &Path) -> Result<(), KernelError>;
    /// Makes a link.
    fn link(&mut self, target: &Path, to: &Path) -> Result<(), KernelError>;
    /// Makes an empty directory that stays open when the root is closed.
    fn private(&mut self, target: &Path, mode: u32) -> Result<(), KernelError>;
    /// Mounts a part of the old root, if it and what it covers are what the scan saw there.
    fn bind(
        &mut self,
        source: &Path,
        id: Option<DirectoryId>,
        target: &Path,
        over: Option<&Covered>,
        access: Access,
    ) -> Result<(), KernelError>;
    /// Mounts a part of the old root below a layer of it, if it is still the directory that was looked at.
    fn overlay(
        &mut self,
        lower: &Path,
        identity: (u64, u64),
        layer: &Path,
        target: &Path,
    ) -> Result<(), KernelError>;
    /// Makes a file with this text, and the directories above it.
    fn write(&mut self, target: &Path, text: &str, mode: u32) -> Result<(), KernelError>;
    /// Puts a text in the place of a file.
    fn text(&mut self, target: &Path, text: &str) -> Result<(), KernelError>;
    /// Puts nothing in the place of a file or directory.
    fn mask(&mut self, target: &Path, nothing: Nothing, covered: Option<&Covered>)
    -> Result<(), KernelError>;
    /// Puts nothing in the place of a socket, or of a directory of sockets, if it is still there.
    fn mask_socket(&mut self, target: &Path) -> Result<(), KernelError>;
    /// Holds what is there in its place.
    fn hold(&mut self, target: &Path, access: Access, covered: Option<&Covered>) -> Result<(), KernelError>;
    /// Holds what is there read-only, if anything is.
    fn hold_stub(&mut self, target: &Path) -> Result<(), KernelError>;
    /// Mounts a device of the old root, on which devices work.
    fn device(&mut self, name: &str) -> Result<(), KernelError>;
    /// Mounts the terminals of the sandbox.
    fn terminals(&mut self) -> Result<(), KernelError>;
    /// Mounts the processes of the sandbox, of which nothing can be changed by writing.
    fn processes(&mut self) -> Result<(), KernelError>;
    /// Whether the new root has something there that can be read.
    fn is_readable(&self, target: &Path) -> bool;
    /// Whether the old root has a directory there, a file, or nothing.
    fn is_directory(&self, source: &Path) -> Option<bool>;
    /// Lets go of the old root.
    fn finish(&mut self) -> Result<(), KernelError>;
}

/// What every root has, whatever else there is: devices and processes.
pub(crate) fn found(kernel: &mut dyn Kernel) -> Result<(), KernelError> {
    kernel.begin()?;
    devices(kernel)?;
    processes(kernel)
}

/// Builds on. A root is founded before the first step and finished after the last.
pub fn build(kernel: &mut dyn Kernel, steps: &[Step]) -> Result<(), KernelError> {
    for step in steps {
        match step {
            Step::Directory { target } => kernel.directory(target)?,
            Step::Link { target, to } => {
                if let Some(parent) = target.parent().filter(|parent| *parent != Path::new("/")) {
                    kernel.directory(parent)?;
                }
                kernel.link(target, to)?;
            }
            Step::Private { target, mode } => kernel.private(target, *mode)?,
            Step::Bind { source, target, access, id, over } => {
                // What it covers is there already; anything else is made.
                match kernel.is_directory(source) {
                    _ if over.is_some() => {}
                    Some(true) => kernel.directory(target)?,
                    Some(false) => kernel.file(target)?,
                    None => return Err(failed("find", source)(io::ErrorKind::NotFound.into())),
                }
                kernel.bind(source, *id, target, over.as_ref(), *access)?;
            }
            Step::Overlay { lower, identity, layer, target } => {
                kernel.directory(target)?;
                kernel.overlay(lower, *identity, layer, target)?;
            }
            Step::Text { target, text } => kernel.text(target, text)?,
            Step::File { target, text, mode } => kernel.write(target, text, *mode)?,
            Step::Hold { target, access, covered } => kernel.hold(target, *access, covered.as_ref())?,
            Step::HoldStub { target } => kernel.hold_stub(target)?,
            Step::MaskSocket { target } => kernel.mask_socket(target)?,
            Step::MaskFile { target, covered } => kernel.mask(target, Nothing::File, covered.as_ref())?,
            Step::MaskDirectory { target, covered } => {
                kernel.mask(target, Nothing::Directory, covered.as_ref())?;
            }
        }
    }
    Ok(())
}

/// What stands in the place of something hidden.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nothing {
    /// An empty file.
    File,
    /// An empty directory.
    Directory,
}

const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

fn devices(kernel: &mut dyn Kernel) -> Result<(), KernelError> {
    let dev = Path::new("/dev");
    kernel.directory(dev)?;
    for name in DEVICES {
        kernel.file(&dev.join(name))?;
        kernel.device(name)?;
    }
    for (name, to) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
    ] {
        kernel.link(&dev.join(name), Path::new(to))?;
    }
    kernel.private(&dev.join("shm"), 0o1777)?;
    kernel.directory(&dev.join("pts"))?;
    kernel.terminals()?;
    kernel.link(&dev.join("ptmx"), Path::new("pts/ptmx"))
}

/// What the kernel lets root read of the whole machine, whatever root has left of its powers; others cannot read most of it
/// anyway. What it would let root change is shut as a whole: nothing there can be written.
const MASKED: [&str; 12] = [
    "/proc/slabinfo",
    "/proc/kpagecount",
    "/proc/kpagecgroup",
    "/proc/pagetypeinfo",
    "/proc/kcore",
    "/proc/keys",
    "/proc/kmsg",
    "/proc/timer_list",
    "/proc/sched_debug",
    "/proc/latency_stats",
    "/proc/vmallocinfo",
    "/proc/kpageflags",
];

fn processes(kernel: &mut dyn Kernel) -> Result<(), KernelError> {
    kernel.directory(Path::new("/proc"))?;
    kernel.processes()?;
    for path in MASKED.map(Path::new) {
        if kernel.is_readable(path) {
            kernel.mask(path, Nothing::File, None)?;
        }
    }
    Ok(())
}

/// The kernel.
#[derive(Debug, Default)]
pub struct Linux {
    private_places: u32,
}

pub(crate) const OLD_ROOT: &str = "/.old";
const EMPTIES: &str = "/.empty";
const EMPTY_FILE: &str = "/.empty/file";
const EMPTY_DIRECTORY: &str = "/.empty/directory";
const PRIVATE: &str = "/.private";
const OVERLAY: &str = "/.overlay";

fn old(path: &Path) -> PathBuf {
    Path::new(OLD_ROOT).join(path.strip_prefix("/").unwrap_or(path))
}

impl Linux {
    /// A place in memory for something that is seen elsewhere, where a part of the host may be.
    fn own_place(&mut self) -> PathBuf {
        self.private_places += 1;
        Path::new(PRIVATE).join(self.private_places.to_string())
    }
}

impl Kernel for Linux {
    fn begin(&mut self) -> Result<(), KernelError> {
        let root = Path::new("/");
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change(root, private).map_err(|error| failed("part from the host at", root)(error.into()))?;
        // Any directory will do: the mount on it becomes the root and the directory is seen again below the old one.
        let base = Path::new("/tmp");
        mount_memory(base).map_err(failed("mount memory on", base))?;
        let old_root = base.join(&OLD_ROOT[1..]);
        fs::create_dir(&old_root).map_err(failed("make", &old_root))?;
        rustix::process::pivot_root(base, &old_root)
            .map_err(|error| failed("change the root to", base)(error.into()))?;
        std::os::unix::fs::chroot(root).map_err(failed("enter", root))?;
        rustix::process::chdir(root).map_err(|error| failed("enter", root)(error.into()))?;
        for path in [EMPTIES, EMPTY_DIRECTORY, PRIVATE].map(Path::new) {
            fs::DirBuilder::new().mode(0o755).create(path).map_err(failed("make", path))?;
        }
        let [empties, file] = [EMPTIES, EMPTY_FILE].map(Path::new);
        touch(file, 0o444).map(drop).map_err(failed("make", file))?;
        // Whatever is mounted from there has no more rights than it has here.
        bind_tree(empties, empties, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_RDONLY)
            .map_err(failed("close", empties))
    }

    fn bound(&mut self, size: &str) -> Result<(), KernelError> {
        let root = Path::new("/");
        let bounded = CString::new(format!("size={size}")).map_err(io::Error::from).and_then(|options| {
            Ok(mount_remount(root, MountFlags::NOSUID | MountFlags::NODEV, options.as_c_str())?)
        });
        bounded.map_err(failed("bound the memory of", root))
    }

    fn directory(&mut self, target: &Path) -> Result<(), KernelError> {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(target).map_err(failed("make", target))
    }

    fn file(&mut self, target: &Path) -> Result<(), KernelError> {
        if let Some(parent) = target.parent() {
            self.directory(parent)?;
        }
        if target.exists() {
            return Ok(());
        }
        touch(target, 0o644).map(drop).map_err(failed("make", target))
    }

    fn link(&mut self, target: &Path, to: &Path) -> Result<(), KernelError> {
        std::os::unix::fs::symlink(to, target).map_err(failed("link", target))
    }

    fn private(&mut self, target: &Path, mode: u32) -> Result<(), KernelError> {
        let own = self.own_place();
        self.directory(&own)?;
        fs::set_permissions(&own, fs::Permissions::from_mode(mode)).map_err(failed("open", &own))?;
        self.directory(target)?;
        bind_tree(&own, target, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV).map_err(failed("mount", target))
    }

    fn bind(
        &mut self,
        source: &Path,
        id: Option<DirectoryId>,
        target: &Path,
        over: Option<&Covered>,
        access: Access,
    ) -> Result<(), KernelError> {
        let source = old(source);
        let tree = match id {
            None => clone_tree(&source),
            Some(id) => {
                locate_known(&source, Some(&Covered { id, below: None })).and_then(|place| clone_of(&place))
            }
        };
        let bound = tree.and_then(|tree| {
            set_attributes(&tree, c"", libc::AT_EMPTY_PATH | libc::AT_RECURSIVE, rights(access))?;
            match over {
                None => attach(&tree, target),
                Some(_) => attach_on(&tree, &locate_known(target, over)?),
            }
        });
        bound.map_err(failed("mount", target))
    }

    fn overlay(
        &mut self,
        lower: &Path,
        identity: (u64, u64),
        layer: &Path,
        target: &Path,
    ) -> Result<(), KernelError> {
        // Under names of our own, which need no quoting and stay when the old root goes.
        let [below, above] = ["lower", "layer"].map(|name| Path::new(OVERLAY).join(name));
        self.directory(&below)?;
        self.directory(&above)?;
        bind_tree(&old(lower), &below, MOUNT_ATTR_RDONLY).map_err(failed("mount", lower))?;
        same_directory(&below, identity).map_err(failed("find what was looked at in", lower))?;
        bind_tree(&old(layer), &above, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)
            .map_err(failed("mount", layer))?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        // A run may have left marks of an overlay in the workspace below: none of them is to lead elsewhere.
        let options = format!(
            "userxattr,redirect_dir=nofollow,metacopy=off,index=off,lowerdir={0}/lower,upperdir={0}/layer/upper,workdir={0}/layer/work",
            OVERLAY
        );
        let options = CString::new(options).map_err(|error| failed("name", layer)(error.into()))?;
        mount("overlay", target, "overlay", flags, options.as_c_str())
            .map_err(|error| failed("put a layer over", lower)(error.into()))?;
        // Only the whole is to be seen, not its parts.
        for part in [&below, &above] {
            unmount(part, UnmountFlags::DETACH).map_err(|error| failed("hide", part)(error.into()))?;
        }
        Ok(())
    }

    fn text(&mut self, target: &Path, text: &str) -> Result<(), KernelError> {
        let own = self.own_place();
        let written = touch(&own, 0o644).and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(failed("write", &own))?;
        bind_tree(&own, target, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_RDONLY)
            .map_err(failed("mount", target))
    }

    fn write(&mut self, target: &Path, text: &str, mode: u32) -> Result<(), KernelError> {
        if let Some(parent) = target.parent() {
            self.directory(parent)?;
        }
        let written = touch(target, mode).and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(failed("write", target))
    }

    fn mask(
        &mut self,
        target: &Path,
        nothing: Nothing,
        covered: Option<&Covered>,
    ) -> Result<(), KernelError> {
        let source = match nothing {
            Nothing::File => EMPTY_FILE,
            Nothing::Directory => EMPTY_DIRECTORY,
        };
        let masked =
            clone_tree(Path::new(source)).and_then(|tree| attach_on(&tree, &locate_known(target, covered)?));
        masked.map_err(failed("mask", target))
    }

    fn mask_socket(&mut self, target: &Path) -> Result<(), KernelError> {
        let masked = locate(target).and_then(|place| {
            let is_directory = FileType::from_raw_mode(fstat(&place)?.st_mode) == FileType::Directory;
            let empty = if is_directory { EMPTY_DIRECTORY } else { EMPTY_FILE };
            attach_on(&clone_tree(Path::new(empty))?, &place)
        });
        match masked {
            // Where a link or a file is in the place of a directory above it, it is gone too.
            Err(error)
                if [Errno::NOENT, Errno::NOTDIR, Errno::LOOP]
                    .map(Errno::raw_os_error)
                    .map(Some)
                    .contains(&error.raw_os_error()) =>
            {
                Ok(())
            }
            masked => masked.map_err(failed("mask", target)),
        }
    }

    fn hold(&mut self, target: &Path, access: Access, covered: Option<&Covered>) -> Result<(), KernelError> {
        let held = locate_known(target, covered).and_then(|place| hold_in_place(&place, access));
        held.map_err(failed("hold", target))
    }

    fn hold_stub(&mut self, target: &Path) -> Result<(), KernelError> {
        match locate(target).and_then(|place| hold_in_place(&place, Access::Read)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            held => held.map_err(failed("hold", target)),
        }
    }

    fn device(&mut self, name: &str) -> Result<(), KernelError> {
        let target = Path::new("/dev").join(name);
        // What is read-only of a device is its node: its owner and permissions are the host's.
        bind_tree(&old(&target), &target, MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC)
            .map_err(failed("mount", &target))
    }

    fn terminals(&mut self) -> Result<(), KernelError> {
        let target = Path::new("/dev/pts");
        let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
        // All instances share what the machine has (4,096), so one takes a bounded part of it.
        mount("devpts", target, "devpts", flags, c"newinstance,ptmxmode=0666,mode=620,max=256")
            .map_err(|error| failed("mount the terminals on", target)(error.into()))
    }

    fn processes(&mut self) -> Result<(), KernelError> {
        let target = Path::new("/proc");
        let flags = MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NODEV | MountFlags::RDONLY;
        mount("proc", target, "proc", flags, None)
            .map_err(|error| failed("mount the processes on", target)(error.into()))
    }

    fn is_readable(&self, target: &Path) -> bool {
        accessat(CWD, target, rustix::fs::Access::READ_OK, AtFlags::EACCESS).is_ok()
    }

    fn is_directory(&self, source: &Path) -> Option<bool> {
        fs::symlink_metadata(old(source)).ok().map(|data| data.is_dir())
    }

    fn finish(&mut self) -> Result<(), KernelError> {
        let old_root = Path::new(OLD_ROOT);
        unmount(old_root, UnmountFlags::DETACH)
            .map_err(|error| failed("let go of", old_root)(error.into()))?;
        fs::remove_dir(old_root).map_err(failed("remove", old_root))?;
        // The root itself holds nothing that is the run's to change.
        set_mount(Path::new("/"), MOUNT_ATTR_RDONLY).map_err(failed("close", Path::new("/")))
    }
}

fn touch(path: &Path, mode: u32) -> io::Result<fs::File> {
    fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path)
}

fn mount_memory(target: &Path) -> io::Result<()> {
    Ok(mount("tmpfs", target, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, c"mode=755")?)
}

const MOUNT_ATTR_RDONLY: u64 = 0x1;
const MOUNT_ATTR_NOSUID: u64 = 0x2;
const MOUNT_ATTR_NODEV: u64 = 0x4;
const MOUNT_ATTR_NOEXEC: u64 = 0x8;

/// Mounts a copy of a tree, with everything that is mounted below it, after taking rights from it: nobody ever sees it
/// with more.
fn bind_tree(source: &Path, target: &Path, set: u64) -> io::Result<()> {
    let tree = clone_tree(source)?;
    set_attributes(&tree, c"", libc::AT_EMPTY_PATH | libc::AT_RECURSIVE, set)?;
    attach(&tree, target)
}

/// What is taken from a mount of the host.
fn rights(access: Access) -> u64 {
    let read_only = if access == Access::Write { 0 } else { MOUNT_ATTR_RDONLY };
    MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | read_only
}

/// A copy of what was opened, with everything that is mounted below it.
fn clone_of(place: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    Ok(open_tree(place, "", flags)?)
}

fn clone_tree(source: &Path) -> io::Result<OwnedFd> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    Ok(open_tree(CWD, source, flags | OpenTreeFlags::AT_SYMLINK_NOFOLLOW)?)
}

fn attach(tree: &OwnedFd, target: &Path) -> io::Result<()> {
    Ok(move_mount(tree, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Opens what is at a path that a run may have written: no link on the way is followed, and the last is opened itself.
fn locate(target: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat2(CWD, target, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?)
}

/// The same, if it is what the scan saw there.
fn locate_known(target: &Path, covered: Option<&Covered>) -> io::Result<OwnedFd> {
    let moved = || io::Error::other("it was moved or replaced while the run started; start the run again");
    let unless_gone =
        |error: io::Error| if error.kind() == io::ErrorKind::NotFound { moved() } else { error };
    let place = locate(target).map_err(unless_gone)?;
    let Some(covered) = covered else { return Ok(place) };
    let below = covered.below.as_ref().map(|path| locate(&old(path))).transpose().map_err(unless_gone)?;
    let data = fstat(below.as_ref().unwrap_or(&place))?;
    #[allow(clippy::unnecessary_cast, reason = "the fields differ in width between platforms")]
    let id = DirectoryId { device: data.st_dev as u64, inode: data.st_ino as u64 };
    if id == covered.id { Ok(place) } else { Err(moved()) }
}

/// Mounts what was opened on itself.
fn hold_in_place(place: &OwnedFd, access: Access) -> io::Result<()> {
    let set = if access == Access::Write { 0 } else { MOUNT_ATTR_RDONLY };
    let tree = clone_of(place)?;
    set_attributes(&tree, c"", libc::AT_EMPTY_PATH | libc::AT_RECURSIVE, set)?;
    attach_on(&tree, place)
}

/// Mounts a tree on what was opened.
fn attach_on(tree: &OwnedFd, place: &OwnedFd) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(tree, "", place, "", flags)?)
}

fn set_mount(target: &Path, set: u64) -> io::Result<()> {
    let path = CString::new(target.as_os_str().as_encoded_bytes())?;
    set_attributes(&CWD, &path, 0, set)
}

fn set_attributes(base: &impl AsFd, path: &std::ffi::CStr, flags: i32, set: u64) -> io::Result<()> {
    let attributes = [set, 0, 0, 0];
    // SAFETY: the path and the four words of `struct mount_attr` live until the call returns.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            base.as_fd().as_raw_fd(),
            path.as_ptr(),
            flags,
            attributes.as_ptr(),
            size_of_val(&attributes),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Takes notes instead of doing anything, for tests without privileges.
#[derive(Debug, Default)]
pub struct Recorder {
    /// What was asked, in order.
    pub calls: Vec<String>,
    /// The directories that the old root is said to have; everything else is a file.
    pub directories: Vec<PathBuf>,
}

impl Recorder {
    fn note(&mut self, call: String) -> Result<(), KernelError> {
        self.calls.push(call);
        Ok(())
    }
}

impl Kernel for Recorder {
    fn begin(&mut self) -> Result<(), KernelError> {
        self.note("begin".into())
    }
    fn bound(&mut self, size: &str) -> Result<(), KernelError> {
        self.note(format!("bound {size}"))
    }
    fn directory(&mut self, target: &Path) -> Result<(), KernelError> {
        self.note(format!("directory {}", target.display()))
    }
    fn file(&mut self, target: &Path) -> Result<(), KernelError> {
        self.note(format!("file {}", target.display()))
    }
    fn link(&mut self, target: &Path, to: &Path) -> Result<(), KernelError> {
        self.note(format!("link {} -> {}", target.display(), to.display()))
    }
    fn private(&mut self, target: &Path, mode: u32) -> Result<(), KernelError> {
        self.note(format!("private {} {mode:o}", target.display()))
    }
    fn bind(
        &mut self,
        source: &Path,
        _: Option<DirectoryId>,
        target: &Path,
        _: Option<&Covered>,
        access: Access,
    ) -> Result<(), KernelError> {
        self.note(format!("bind {} on {} {access:?}", source.display(), target.display()))
    }
    fn overlay(
        &mut self,
        lower: &Path,
        _: (u64, u64),
        layer: &Path,
        target: &Path,
    ) -> Result<(), KernelError> {
        self.note(format!("overlay {} under {} on {}", lower.display(), layer.display(), target.display()))
    }
    fn write(&mut self, target: &Path, text: &str, mode: u32) -> Result<(), KernelError> {
        self.note(format!("write {} bytes to {} {mode:o}", text.len(), target.display()))
    }
    fn text(&mut self, target: &Path, text: &str) -> Result<(), KernelError> {
        self.note(format!("text {text:?} on {}", target.display()))
    }
    fn mask(&mut self, target: &Path, nothing: Nothing, _: Option<&Covered>) -> Result<(), KernelError> {
        self.note(format!("mask {} as {nothing:?}", target.display()))
    }
    fn mask_socket(&mut self, target: &Path) -> Result<(), KernelError> {
        self.note(format!("mask {} as a socket", target.display()))
    }
    fn hold_stub(&mut self, target: &Path) -> Result<(), KernelError> {
        self.calls.push(format!("hold stub {}", target.display()));
        Ok(())
    }

    fn hold(&mut self, target: &Path, access: Access, _: Option<&Covered>) -> Result<(), KernelError> {
        self.note(format!("hold {} {access:?}", target.display()))
    }
    fn device(&mut self, name: &str) -> Result<(), KernelError> {
        self.note(format!("device {name}"))
    }
    fn terminals(&mut self) -> Result<(), KernelError> {
        self.note("terminals".into())
    }
    fn processes(&mut self) -> Result<(), KernelError> {
        self.note("processes".into())
    }
    fn is_readable(&self, target: &Path) -> bool {
        target == Path::new("/proc/kcore")
    }
    fn is_directory(&self, source: &Path) -> Option<bool> {
        Some(self.directories.iter().any(|directory| directory == source))
    }
    fn finish(&mut self) -> Result<(), KernelError> {
        self.note("finish".into())
    }
}

#[cfg(test)]
mod tests {
    use super::{Recorder, build, found};
    use crate::layout::{Access, Step};

    #[test]
    fn a_root_is_built_in_the_order_of_the_list() {
        let steps = [
            Step::Private { target: "/tmp".into(), mode: 0o1777 },
            Step::Bind {
                source: "/usr".into(),
                target: "/usr".into(),
                access: Access::Read,
                id: None,
                over: None,
            },
            Step::Bind {
                source: "/w".into(),
                target: "/workspace".into(),
                access: Access::Write,
                id: None,
                over: None,
            },
            Step::Bind {
                source: "/w/f".into(),
                target: "/workspace/f".into(),
                access: Access::Read,
                id: None,
                over: None,
            },
            Step::Hold { target: "/workspace/.git".into(), access: Access::Read, covered: None },
            Step::MaskFile { target: "/workspace/.env".into(), covered: None },
        ];
        let mut recorder = Recorder { directories: vec!["/usr".into(), "/w".into()], ..Recorder::default() };
        build(&mut recorder, &steps).unwrap();
        assert_eq!(
            recorder.calls,
            [
                "private /tmp 1777",
                "directory /usr",
                "bind /usr on /usr Read",
                "directory /workspace",
                "bind /w on /workspace Write",
                "file /workspace/f",
                "bind /w/f on /workspace/f Read",
                "hold /workspace/.git Read",
                "mask /workspace/.env as File",
            ]
        );
    }

    #[test]
    fn every_root_has_devices_and_processes() {
        let mut recorder = Recorder::default();
        found(&mut recorder).unwrap();
        let calls: Vec<&str> = recorder.calls.iter().map(String::as_str).collect();
        assert_eq!(calls[..4], ["begin", "directory /dev", "file /dev/null", "device null"]);
        let processes = calls.iter().position(|call| *call == "directory /proc").unwrap();
        assert_eq!(calls[processes..], ["directory /proc", "processes", "mask /proc/kcore as File"]);
    }
}
