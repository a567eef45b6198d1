//! A sandbox as data: what its root is made of, and what may be done there.

use std::path::PathBuf;

use crate::path_bytes;
use ringfence_core::paths::DirectoryId;
use serde::{Deserialize, Serialize};

/// What the gate makes ready while the host still scans the workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preparation {
    /// The beginning of the root.
    Base(Base),
    /// Stub files in the root of the workspace.
    Stubs(Stubs),
}

/// Stub files that are made before the scan is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stubs {
    /// The workspace on the host.
    pub workspace: PathBuf,
    /// Its identity.
    pub id: DirectoryId,
    /// Protected paths that did not exist.
    pub placeholders: Vec<Placeholder>,
}

/// What can be built before it is known what runs there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// What it stands behind.
    pub walls: Walls,
    /// Whether the network is its own, with nothing in it but itself.
    pub own_network: bool,
    /// How much the private places take together, in the kernel's words: bytes, or a share of the memory.
    pub size: String,
    /// How the root is begun, in this order.
    pub steps: Vec<Step>,
}

/// What stands around a sandbox, besides Landlock and seccomp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Walls {
    /// Namespaces of its own, with a root that is built from steps.
    Own,
    /// Those of a container that somebody else has made: of the steps only files are made.
    Given,
    /// Nothing: no root is built, and no socket can be made.
    None,
}

/// The rest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sandbox {
    /// How the root is finished, in this order.
    pub steps: Vec<Step>,
    /// What Landlock lets through. Everything else is shut, wherever it is mounted.
    pub grants: Vec<Grant>,
    /// Where the program starts, as it sees it.
    pub cwd: PathBuf,
    /// The control groups that bound it.
    pub groups: Vec<PathBuf>,
    /// Whether the gate itself was started in a group that bounds it.
    pub scope: bool,
    /// So many processors, where nothing else bounds them. The run cannot choose others.
    pub processors: Option<u32>,
    /// The workspace on the host. Its lock says whether another run stands on the same stand-ins.
    pub workspace: PathBuf,
    /// Its identity, if stub files are made in it.
    pub workspace_id: Option<DirectoryId>,
    /// The device and the number of the directory that was looked at, which has to be the one that it starts in.
    pub identity: Option<(u64, u64)>,
    /// What stands in the workspace while the run lasts so that it can be protected, and is taken away afterwards.
    pub placeholders: Vec<Placeholder>,
    /// The entry in the register of hidden files. Its lock says that the run is going on, also when the host is killed.
    pub registered: Option<PathBuf>,
    /// The ports of its own loopback at which it comes to the broker.
    pub doors: Vec<u16>,
    /// With walls that somebody else has made: what has to be mounted there, for whoever replaces a file on the host takes
    /// away what is mounted on its name.
    pub mounted: Vec<PathBuf>,
}

/// One thing that is done to build a root. Targets are paths of the new root, sources paths of the old one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// A directory, and those above it.
    Directory {
        /// Where.
        target: PathBuf,
    },
    /// A link.
    Link {
        /// Where.
        target: PathBuf,
        /// To what.
        to: PathBuf,
    },
    /// An empty directory that can be written and goes with the sandbox.
    Private {
        /// Where.
        target: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A file or directory of the host.
    Bind {
        /// What.
        #[serde(with = "path_bytes")]
        source: PathBuf,
        /// Where.
        #[serde(with = "path_bytes")]
        target: PathBuf,
        /// What may be done with it.
        access: Access,
        /// What has to be at the source. No link on the way to it is followed then.
        id: Option<DirectoryId>,
        /// What has to be at the target, where that is below a part of the host. Nothing is made there then.
        over: Option<Covered>,
    },
    /// A directory of the host under a layer that takes all that is written there.
    Overlay {
        /// What is below, of the host.
        lower: PathBuf,
        /// The device and the number of the directory that was looked at.
        identity: (u64, u64),
        /// Where the layer is, of the host: with an `upper` and a `work`.
        layer: PathBuf,
        /// Where.
        target: PathBuf,
    },
    /// What is there already, held in its place.
    Hold {
        /// Where.
        #[serde(with = "path_bytes")]
        target: PathBuf,
        /// What may be done with it.
        access: Access,
        /// What has to be there.
        covered: Option<Covered>,
    },
    /// A stub file or directory of another run, held read-only. One that is gone by then needs nothing: it goes with its run.
    HoldStub {
        /// Where.
        #[serde(with = "path_bytes")]
        target: PathBuf,
    },
    /// A file of its own, in a private place, with this text.
    File {
        /// Where.
        target: PathBuf,
        /// What.
        text: String,
        /// Its permissions.
        mode: u32,
    },
    /// A text in the place of a file.
    Text {
        /// Where.
        target: PathBuf,
        /// What.
        text: String,
    },
    /// Nothing in the place of a file.
    MaskFile {
        /// Where.
        #[serde(with = "path_bytes")]
        target: PathBuf,
        /// What has to be there.
        covered: Option<Covered>,
    },
    /// Nothing in the place of a socket at which the host listens, or of a directory of many. One that is gone by then needs nothing.
    MaskSocket {
        /// Where.
        #[serde(with = "path_bytes")]
        target: PathBuf,
    },
    /// Nothing in the place of a directory.
    MaskDirectory {
        /// Where.
        #[serde(with = "path_bytes")]
        target: PathBuf,
        /// What has to be there.
        covered: Option<Covered>,
    },
}

/// A file or directory that is covered, as it was when the workspace was scanned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Covered {
    /// Device and inode.
    pub id: DirectoryId,
    /// Its path on the host, where the target is seen through an overlay and has another identity.
    #[serde(with = "path_bytes::optional")]
    pub below: Option<PathBuf>,
}

/// What may be done with a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// See what is there.
    List,
    /// Read and execute.
    Read,
    /// Read and write what is there, and make nothing.
    Use,
    /// Anything.
    Write,
}

/// A path that Landlock lets through.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The path, in the new root.
    #[serde(with = "path_bytes")]
    pub path: PathBuf,
    /// How far.
    pub access: Access,
}

/// Something that stands in for a protected path that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placeholder {
    /// Where, on the host.
    #[serde(with = "path_bytes")]
    pub path: PathBuf,
    /// What it holds; a directory holds nothing.
    pub kind: StandIn,
}

/// What stands in for a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StandIn {
    /// An empty directory.
    Directory,
    /// A file with this text.
    File(String),
}
