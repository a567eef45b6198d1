//! What the host keeps for one container while it lasts: the socket of its gate, texts that it sees, and what to take
//! away if everything is killed.
#![expect(clippy::disallowed_methods, reason = "files of the state directory, which no run sees")]

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_core::ids::RunId;
use ringfence_core::mode::Mode;
use ringfence_core::paths::DirectoryId;
use ringfence_linux::{Placeholder, StandIns};
use serde::{Deserialize, Serialize};

use crate::shared::waiting::locked;

/// The argument that makes our binary the gate.
pub(super) const GATE_ARGUMENT: &str = "__gate";
/// Where all rooms are, in the state directory.
const ROOMS: &str = "containers";
const NOTE: &str = "note.json";
/// What the name of a room begins with that nobody lives in yet.
const UNSEEN: &str = ".";
/// No engine takes longer to begin with what it was asked.
const YOUNG: Duration = Duration::from_secs(10);

/// What has to be taken away when a run is over, for whoever does it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Note {
    /// The mode.
    pub(super) mode: Mode,
    /// The name of the container.
    pub(super) container: String,
    /// The engine's socket, and its own name for itself.
    pub(super) engine: PathBuf,
    pub(super) engine_id: String,
    /// Whose lock guards the stand-ins.
    pub(super) workspace: PathBuf,
    /// Its identity. Absent in notes of earlier versions.
    #[serde(default)]
    pub(super) workspace_id: Option<DirectoryId>,
    pub(super) placeholders: Vec<Placeholder>,
}

/// The directory of one container. It is locked as long as its run lives, and goes when this is dropped.
#[derive(Debug)]
pub(super) struct Room {
    directory: PathBuf,
    lock: Option<File>,
    /// Whether the container could not be taken away, so that somebody else has to.
    kept: bool,
}

impl Room {
    pub(super) fn new(state: &Path, run: &RunId) -> io::Result<Self> {
        let directory = state.join(ROOMS).join(run.as_str());
        fs::create_dir_all(state.join(ROOMS))?;
        // Locked before anybody sees it.
        let unseen = state.join(ROOMS).join(format!("{UNSEEN}{run}"));
        fs::DirBuilder::new().mode(0o700).create(&unseen)?;
        let lock = locked(&unseen)?;
        fs::rename(&unseen, &directory)?;
        Ok(Self { directory, lock: Some(lock), kept: false })
    }

    /// One that somebody else has made and furnished.
    pub(super) fn taken_over(directory: PathBuf, lock: File) -> Self {
        Self { directory, lock: Some(lock), kept: false }
    }

    pub(super) fn path(&self) -> &Path {
        &self.directory
    }

    /// What tells others that somebody lives in it.
    pub(super) fn lock(&self) -> Option<&File> {
        self.lock.as_ref()
    }

    /// Those that nobody lives in any more.
    pub(super) fn abandoned(state: &Path) -> Vec<(Self, Option<Note>)> {
        let abandoned = rooms(state).filter_map(|entry| {
            let directory = entry.path();
            let lock = locked(&directory).ok()?;
            let room = Self { directory, lock: Some(lock), kept: true };
            let note = room.read_note();
            Some((room, note))
        });
        abandoned.collect()
    }

    /// The runs that have a room and live in it.
    pub(super) fn living(state: &Path) -> Vec<String> {
        let living = rooms(state).filter(|entry| entry.path().exists() && locked(&entry.path()).is_err());
        living.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// Writes down what has to be taken away, before it is there.
    pub(super) fn note(&self, note: &Note) -> io::Result<()> {
        self.write(&self.directory.join(NOTE), 0o600, &serde_json::to_string(note)?)
    }

    /// Whether it was made so recently that the engine may not have done yet what it was asked.
    pub(super) fn is_young(&self) -> bool {
        let made = fs::metadata(&self.directory).and_then(|data| data.modified());
        made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age < YOUNG))
    }

    /// What was written down.
    pub(super) fn read_note(&self) -> Option<Note> {
        serde_json::from_slice(&fs::read(self.directory.join(NOTE)).ok()?).ok()
    }

    /// Leaves the room as it is, for the next who looks for abandoned ones.
    pub(super) fn keep(&mut self) {
        self.kept = true;
    }

    /// Nothing of it is needed any more.
    pub(super) fn give_up(&mut self) {
        self.kept = false;
    }

    /// Where the gate reaches the host. Whoever is a user inside may: outside nobody else comes into the room.
    pub(super) fn socket(&self) -> PathBuf {
        self.directory.join("gate.sock")
    }

    pub(super) fn listen(&self) -> io::Result<UnixListener> {
        // By the descriptor of the directory: the kernel takes only short paths.
        let lock = self.lock.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let listener = UnixListener::bind(format!("/proc/self/fd/{}/gate.sock", lock.as_raw_fd()))?;
        fs::set_permissions(self.socket(), Permissions::from_mode(0o666))?;
        Ok(listener)
    }

    /// A text over a file of the image.
    pub(super) fn file(&self, index: usize) -> PathBuf {
        self.directory.join(format!("file-{index}"))
    }

    /// The private git directory with this number, until a run has it.
    pub(super) fn git(&self, number: usize) -> PathBuf {
        self.directory.join(format!("git-{number}"))
    }

    /// Nothing, for what must not be seen.
    pub(super) fn nothing(&self, directory: bool) -> PathBuf {
        self.directory.join(if directory { "no-directory" } else { "no-file" })
    }

    /// Makes all that is mounted from here, with so many empty git directories.
    pub(super) fn furnish(&self, over: &[String], git: usize) -> io::Result<()> {
        for (index, text) in over.iter().enumerate() {
            self.write(&self.file(index), 0o444, text)?;
        }
        for number in 0..git {
            fs::DirBuilder::new().mode(0o700).create(self.git(number))?;
        }
        self.write(&self.nothing(false), 0, "")?;
        fs::DirBuilder::new().mode(0o000).create(self.nothing(true))
    }

    /// Gives the files that are mounted already their texts: they stay the same files.
    pub(super) fn refurnish(&self, over: &[String]) -> io::Result<()> {
        for (path, text) in over.iter().enumerate().map(|(index, text)| (self.file(index), text)) {
            fs::set_permissions(&path, Permissions::from_mode(0o644))?;
            let mut file = fs::OpenOptions::new().write(true).truncate(true).open(&path)?;
            file.write_all(text.as_bytes())?;
            file.set_permissions(Permissions::from_mode(0o444))?;
        }
        Ok(())
    }

    fn write(&self, path: &Path, mode: u32, text: &str) -> io::Result<()> {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(text.as_bytes())?;
        // Whatever the mask of this process takes away.
        file.set_permissions(Permissions::from_mode(mode))
    }
}

/// All rooms that can be seen.
fn rooms(state: &Path) -> impl Iterator<Item = fs::DirEntry> {
    let entries = fs::read_dir(state.join(ROOMS)).into_iter().flatten().flatten();
    entries.filter(|entry| !entry.file_name().to_string_lossy().starts_with(UNSEEN))
}

impl Drop for Room {
    fn drop(&mut self) {
        if !self.kept {
            // Nobody may look into it, and it is empty.
            let _ = fs::remove_dir(self.nothing(true));
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

impl Note {
    /// Takes away what stands in the workspace, unless another run stands on it.
    pub(super) fn clear_workspace(&self) {
        if let Ok(mut stand_ins) = StandIns::share(&self.workspace, self.workspace_id) {
            stand_ins.answer_for(self.placeholders.clone());
        }
    }
}
