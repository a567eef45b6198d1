//! The torture of the queue: with a build that lets its clock jump, and with a Docker of its own where there can be one.

use crate::shell::{built, has, is_root, run};

pub(crate) fn torture(args: &[&str]) -> anyhow::Result<()> {
    run(&["cargo", "build", "--locked", "-p", "ringfence", "-p", "torture"])?;
    let [torture, binary] = ["torture", "ringfence"].map(|name| built("debug", name));
    let (torture, binary) = (torture?.display().to_string(), binary?.display().to_string());
    let mut command = vec![torture.as_str(), "--binary", &binary];
    if is_root() && has("dockerd") {
        command.push("--docker");
    }
    command.extend(args);
    run(&command)
}
