//! The native sandbox engine: a new root, new namespaces, Landlock and seccomp on top. No daemon, no root, no helper.
//!
//! The gate calls [`open`]: it clones once, and the child, first process of the new namespaces, begins its root from a
//! list of [`Step`]s while others find out what is to run there. With [`Opened::build`] it finishes the root and shuts
//! itself in; with [`Child::start`] it starts the program, and reaps until that ends. What must not be here: policy. Which paths and why is
//! decided by whoever makes the lists.

pub mod attempts;
mod cgroup;
mod confine;
mod init;
mod kernel;
mod layout;
pub mod path_bytes;
mod seccomp;
mod spawn;
mod stand_ins;

pub use cgroup::{Bounds, CgroupError, Controller, Groups, Hierarchy, Version};
pub use confine::landlock_abi;
pub use kernel::{Kernel, KernelError, Linux, Recorder, build};
pub use layout::{
    Access, Base, Covered, Grant, Placeholder, Preparation, Sandbox, StandIn, Step, Stubs, Walls,
};
pub use spawn::{Child, Kind, Opened, SpawnError, open, try_namespaces};
pub use stand_ins::{StandIns, is_stand_in};
