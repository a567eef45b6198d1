//! The composition root: here, and only here, the concrete things meet.

mod asking;
mod cli;
mod desk;
mod gate;
mod governing;
mod grants;
mod installation;
mod login;
mod login_home;
mod other_writers;
mod progress;
mod queue;
mod render;
mod report;
mod screen;
mod signals;
mod state_origin;
mod terminal;
mod trusted;
mod typing;
mod workspace;

use std::path::Path;
use std::process::ExitCode;

/// The hidden argument that makes the binary the gate of a run.
const GATE_ARGUMENT: &str = "__gate";

/// The hidden argument that makes the binary clear away a container.
const BURY_ARGUMENT: &str = "__bury";
/// The hidden argument that makes the binary keep containers ready.
const WARM_ARGUMENT: &str = "__warm";

/// What lists of processes call this program.
const PROCESS_NAME: &std::ffi::CStr = c"ringfence";

fn main() -> ExitCode {
    ringfence_gate::raise_descriptor_limit();
    let first = std::env::args_os().nth(1);
    let name_process = || {
        // The kernel names a process after the path that was executed, which is `/proc/self/exe`.
        let _ = rustix::thread::set_name(PROCESS_NAME);
    };
    match first.as_deref().and_then(|argument| argument.to_str()) {
        Some(GATE_ARGUMENT) => {
            let spawner = &mut gate::AnySpawner::default();
            let ended = match std::env::args_os().nth(2) {
                Some(socket) => ringfence_gate::run_at(Path::new(&socket), spawner),
                None => ringfence_gate::run(spawner),
            };
            match ended {
                // Then nobody reads it either.
                Err(ringfence_gate::GateError::Unheard) => ExitCode::from(125),
                ended => report::hidden(ended),
            }
        }
        Some(ringfence_agents::demo::ARGUMENT) => {
            report::hidden(ringfence_agents::demo::act(std::io::stdout(), &|name| std::env::var(name).ok()))
        }
        Some(cli::PROBE_ARGUMENT) => report::hidden(cli::probe(&std::env::args().nth(2).unwrap_or_default())),
        Some(BURY_ARGUMENT) => {
            name_process();
            report::hidden(cli::bury(&std::env::args_os().nth(2).unwrap_or_default()))
        }
        Some(WARM_ARGUMENT) => {
            name_process();
            report::hidden(cli::keep_warm())
        }
        Some(queue::TASK_ARGUMENT) => {
            name_process();
            report::hidden(queue::run(&std::env::args().skip(2).collect::<Vec<_>>()))
        }
        Some(queue::PROCESS_ARGUMENT) => {
            name_process();
            let [name, logs] = [2, 3].map(|place| std::env::args().nth(place).unwrap_or_default());
            report::hidden(queue::resident(&name, &logs))
        }
        _ => cli::main(),
    }
}
