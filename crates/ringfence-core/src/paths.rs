//! Host paths and guest paths: two types, so that one is never used for the other.

use std::ffi::CStr;
use std::fmt;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Where the workspace appears inside with `mapped`.
pub const GUEST_WORKSPACE: &str = "/workspace";

/// The home inside, where the system inside is not the host's.
pub const GUEST_HOME: &str = "/home/agent";

/// The mark of a file or directory that stands in for a protected path while a run lasts.
pub const STAND_IN_MARK: &CStr = c"user.ringfence.stand-in";

/// The name of the directory, in the state directory, for what is to be removed.
pub const DISCARDED: &str = "discarded";

/// The identity of a directory: device and inode. A name can lead elsewhere later, the identity cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DirectoryId {
    /// Number of the device.
    pub device: u64,
    /// Number of the inode on the device.
    pub inode: u64,
}

/// Why a path cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum InvalidPath {
    /// It depends on where one stands.
    #[error("{0} is not an absolute path")]
    NotAbsolute(PathBuf),
    /// It cannot be written into a record.
    #[error("{} is not valid UTF-8", .0.display())]
    NotUtf8(PathBuf),
    /// It goes up, so what it names depends on links.
    #[error("{0} contains `..`")]
    GoesUp(PathBuf),
}

fn checked(path: &Path) -> Result<PathBuf, InvalidPath> {
    if !path.is_absolute() {
        return Err(InvalidPath::NotAbsolute(path.to_owned()));
    }
    if path.to_str().is_none() {
        return Err(InvalidPath::NotUtf8(path.to_owned()));
    }
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(InvalidPath::GoesUp(path.to_owned()));
    }
    Ok(path.components().collect())
}

macro_rules! path_type {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "PathBuf", into = "PathBuf")]
        pub struct $type(PathBuf);

        impl $type {
            /// An absolute path without `..`.
            pub fn new(path: impl AsRef<Path>) -> Result<Self, InvalidPath> {
                checked(path.as_ref()).map(Self)
            }

            /// As the standard library has it.
            pub fn as_path(&self) -> &Path {
                &self.0
            }
        }

        impl TryFrom<PathBuf> for $type {
            type Error = InvalidPath;
            fn try_from(path: PathBuf) -> Result<Self, InvalidPath> {
                Self::new(path)
            }
        }

        impl From<$type> for PathBuf {
            fn from(path: $type) -> PathBuf {
                path.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.display().fmt(f)
            }
        }
    };
}

path_type!(
    /// A path as the host sees it.
    HostPath
);
path_type!(
    /// A path as the run sees it.
    GuestPath
);

/// How the workspace appears inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathMappingMode {
    /// At `/workspace`.
    Mapped,
    /// At the same path as outside.
    SamePath,
}

/// The workspace outside and inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathMapping {
    host: HostPath,
    guest: GuestPath,
}

impl PathMapping {
    /// The workspace at `host`, seen as the mode says.
    pub fn new(mode: PathMappingMode, host: HostPath) -> Self {
        let guest = match mode {
            PathMappingMode::Mapped => GuestPath(PathBuf::from(GUEST_WORKSPACE)),
            PathMappingMode::SamePath => GuestPath(host.0.clone()),
        };
        Self { host, guest }
    }

    /// The workspace outside.
    pub fn host(&self) -> &HostPath {
        &self.host
    }

    /// The workspace inside.
    pub fn guest(&self) -> &GuestPath {
        &self.guest
    }

    /// Where a host path appears inside, if it lies in the workspace.
    pub fn to_guest(&self, path: &HostPath) -> Option<GuestPath> {
        path.0
            .strip_prefix(&self.host.0)
            .ok()
            .map(|rest| GuestPath(self.guest.0.join(rest).components().collect()))
    }

    /// Where a guest path lies outside, if it is in the workspace. Links are not followed: whoever opens the result
    /// opens it beneath the workspace.
    pub fn to_host(&self, path: &GuestPath) -> Option<HostPath> {
        path.0
            .strip_prefix(&self.guest.0)
            .ok()
            .map(|rest| HostPath(self.host.0.join(rest).components().collect()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{GuestPath, HostPath, InvalidPath, PathMapping, PathMappingMode};

    fn mapping(mode: PathMappingMode) -> PathMapping {
        PathMapping::new(mode, HostPath::new("/srv/work").unwrap())
    }

    #[test]
    fn mapped_paths_lead_there_and_back() {
        let mapping = mapping(PathMappingMode::Mapped);
        let guest = GuestPath::new("/workspace/out/result.png").unwrap();
        let host = mapping.to_host(&guest).unwrap();
        assert_eq!(host.to_string(), "/srv/work/out/result.png");
        assert_eq!(mapping.to_guest(&host), Some(guest));
    }

    #[test]
    fn the_same_path_is_the_same_path() {
        let mapping = mapping(PathMappingMode::SamePath);
        let host = HostPath::new("/srv/work/a").unwrap();
        assert_eq!(mapping.to_guest(&host).unwrap().to_string(), "/srv/work/a");
    }

    #[test]
    fn what_is_outside_is_not_mapped() {
        let mapping = mapping(PathMappingMode::Mapped);
        for outside in ["/etc/passwd", "/workspace2/x", "/"] {
            assert_eq!(mapping.to_host(&GuestPath::new(outside).unwrap()), None);
        }
        assert_eq!(GuestPath::new("/workspace/../etc"), Err(InvalidPath::GoesUp("/workspace/../etc".into())));
        assert_eq!(GuestPath::new("work"), Err(InvalidPath::NotAbsolute("work".into())));
    }

    proptest! {
        #[test]
        fn no_guest_path_maps_out_of_the_workspace(rest in "(/?[a-z.]{1,4}){0,6}") {
            let mapping = mapping(PathMappingMode::Mapped);
            if let Ok(guest) = GuestPath::new(format!("/workspace/{rest}"))
                && let Some(host) = mapping.to_host(&guest)
            {
                prop_assert!(host.as_path().starts_with("/srv/work"));
            }
        }
    }
}
