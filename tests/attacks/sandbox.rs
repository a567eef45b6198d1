//! One attack in every sandbox: native, docker, podman, and podman of a user who is not root.

use std::fs;
use std::process::{Child, Stdio};

use crate::engines::{Engine, engines};
use crate::support::{Place, Ran};

/// Makes one test of an attack for each mode, in a module with the attack's name.
macro_rules! in_every_sandbox {
    ($($(#[$meta:meta])* fn $name:ident($sandbox:ident: &Sandbox) $body:block)*) => {$(
        mod $name {
            #[allow(unused_imports, reason = "not every attack needs them all")]
            use super::*;

            $(#[$meta])*
            fn attack($sandbox: &$crate::sandbox::Sandbox) $body

            #[test]
            fn native() {
                attack(&$crate::sandbox::Sandbox::native());
            }

            #[test]
            fn docker() {
                $crate::sandbox::Sandbox::of_engine("docker", true).iter().for_each(attack);
            }

            #[test]
            fn podman() {
                $crate::sandbox::Sandbox::of_engine("podman", true).iter().for_each(attack);
            }

            #[test]
            fn podman_rootless() {
                $crate::sandbox::Sandbox::of_engine("podman", false).iter().for_each(attack);
            }
        }
    )*};
}

/// A place, and the mode in which its runs are attacked.
pub(crate) struct Sandbox {
    pub(crate) place: Place,
    mode: &'static str,
    engine: Option<Engine>,
}

impl Sandbox {
    pub(crate) fn native() -> Self {
        Self { place: Place::new(), mode: "native", engine: None }
    }

    /// The sandbox of an engine, of root or of another user; nothing where the engine is not there.
    pub(crate) fn of_engine(mode: &str, roots: bool) -> Option<Self> {
        let engine =
            engines().into_iter().find(|engine| engine.mode == mode && engine.is_roots() == roots)?;
        Some(Self { place: engine.place(Place::new()), mode: engine.mode, engine: Some(engine) })
    }

    /// The same with another place, which is made from its own.
    pub(crate) fn with(self, change: impl FnOnce(Place) -> Place) -> Self {
        Self { place: change(self.place), ..self }
    }

    /// A second place of the same mode.
    pub(crate) fn another(&self) -> Self {
        let place = match &self.engine {
            Some(engine) => engine.place(Place::new()),
            None => Place::new(),
        };
        Self { place, mode: self.mode, engine: self.engine.clone() }
    }

    pub(crate) fn args<'a>(&self, options: &[&'a str], command: &[&'a str]) -> Vec<&'a str> {
        [&["exec", "--mode", self.mode], options, &["--"], command].concat()
    }

    /// Runs a command inside; the sandbox itself must not fail.
    #[track_caller]
    pub(crate) fn exec(&self, options: &[&str], command: &[&str]) -> Ran {
        let ran = self.place.run(&self.args(options, command));
        assert_ne!(ran.code(), 125, "the sandbox itself failed: {}", ran.stderr);
        ran
    }

    #[track_caller]
    pub(crate) fn sh(&self, script: &str) -> Ran {
        self.exec(&[], &["sh", "-c", script])
    }

    /// Runs a program of Perl's, whose `syscall` reaches what no shell can and which every image has.
    #[track_caller]
    pub(crate) fn perl(&self, code: &str) -> Ran {
        self.put("attack.pl", code);
        self.exec(&[], &["perl", "attack.pl"])
    }

    /// The same without a sandbox.
    #[track_caller]
    pub(crate) fn perl_outside(&self, code: &str) -> Ran {
        self.put("attack.pl", code);
        self.place.run(&["exec", "--mode", "host", "--", "perl", "attack.pl"])
    }

    /// Starts a script that goes on, and waits until it has written `ready`.
    #[track_caller]
    pub(crate) fn start(&self, options: &[&str], script: &str) -> Child {
        let script = format!("{script}\necho > ready; wait; sleep 1000");
        let mut command = self.place.command(&self.args(options, &["sh", "-c", &script]));
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap();
        crate::support::wait_for("the script", || {
            let ended = child.try_wait().unwrap();
            assert!(ended.is_none(), "it ended: {ended:?}");
            self.place.work().join("ready").exists().then_some(())
        });
        child
    }

    /// A file of the workspace, with the directories above it.
    pub(crate) fn put(&self, file: &str, content: impl AsRef<[u8]>) {
        let path = self.place.work().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}
