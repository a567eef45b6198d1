//! The native sandbox engine: a new root, new namespaces, Landlock and seccomp on top. No daemon, no root, no helper.
//!
//! The gate calls [`spawn`]: it clones once, and the child, first process of the new namespaces, builds its root from
//! a list of [`Step`]s, shuts itself in, starts the program and reaps until that ends. What must not be here: policy.
//! Which paths and why is decided by whoever makes the list.

mod confine;
mod init;
mod kernel;
mod layout;
mod seccomp;
mod spawn;

pub use confine::landlock_abi;
pub use kernel::{Kernel, KernelError, Linux, Recorder, build};
pub use layout::{Access, Grant, Placeholder, Sandbox, StandIn, Step};
pub use spawn::{Child, SpawnError, holds, remove, share, spawn};
