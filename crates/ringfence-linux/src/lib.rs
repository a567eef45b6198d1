//! The native sandbox engine: a new root, new namespaces, Landlock and seccomp on top. No daemon, no root, no helper.
//!
//! The gate calls [`prepare`]: it clones once, and the child, first process of the new namespaces, begins its root from
//! a list of [`Step`]s while others find out what is to run there. With [`Prepared::start`] it finishes the root, shuts
//! itself in, starts the program and reaps until that ends. What must not be here: policy. Which paths and why is
//! decided by whoever makes the lists.

pub mod attempts;
mod cgroup;
mod confine;
mod init;
mod kernel;
mod layout;
mod seccomp;
mod spawn;

pub use cgroup::{Bounds, CgroupError, Controller, Groups, Hierarchy, Version};
pub use confine::landlock_abi;
pub use kernel::{Kernel, KernelError, Linux, Recorder, build};
pub use layout::{Access, Base, Grant, Placeholder, Sandbox, StandIn, Step};
pub use spawn::{Child, Prepared, SpawnError, is_stand_in, prepare, remove, share, try_namespaces};
