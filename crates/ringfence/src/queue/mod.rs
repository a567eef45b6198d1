//! The queue as processes: the daemon, those that take tasks, and the runners that do them.

mod answering;
mod daemon;
mod keeping;
mod logging;
mod office;
mod resident;
mod runner;

pub(crate) use answering::{insecurity, server_address, socket};
pub(crate) use daemon::{Serving, serve};
pub(crate) use keeping::{BySize, Kept, Swept, sweep};
pub(crate) use logging::directory as log_directory;
pub(crate) use office::Office;
pub(crate) use resident::{ARGUMENT as PROCESS_ARGUMENT, resident};
pub(crate) use runner::{ARGUMENT as TASK_ARGUMENT, run};
