//! Which runs are going on: each locks a small file in `running/` and writes its id into it. The files are used again and again,
//! so that nothing has to be made or removed. A file that names a run and is not locked was left by a run that was lost.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use ringfence_core::ids::RunId;
use rustix::fs::{FlockOperation, flock};

use crate::atomic;

/// Most files: more runs at once are refused.
const MAX_FILES: usize = 4096;
/// The length of what is written, so that it never grows or shrinks. Ids are shorter.
const LENGTH: usize = 64;

/// A run that is going on, until this is dropped.
#[derive(Debug)]
pub struct ActiveRun {
    file: File,
}

impl Drop for ActiveRun {
    fn drop(&mut self) {
        // A run that cannot say that it is over is searched once more, as a lost one.
        let _ = self.file.write_all_at(&[b' '; LENGTH], 0);
    }
}

/// A run that was lost, and known as such to nobody else until this is dropped.
#[derive(Debug)]
pub struct LostRun {
    /// Which.
    pub run: RunId,
    _file: ActiveRun,
}

/// Notes that a run is going on. Returns the runs that were lost before.
pub(crate) fn begin(directory: &Path, run: &RunId) -> io::Result<(ActiveRun, Vec<LostRun>)> {
    let mut own = None;
    let mut lost = Vec::new();
    for number in 0..MAX_FILES {
        let file = match open(directory, number, own.is_none()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && own.is_some() => break,
            other => other?,
        };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        let file = match named(&file)? {
            Some(run) => {
                lost.push(LostRun { run, _file: ActiveRun { file } });
                continue;
            }
            None if own.is_some() => continue,
            None => file,
        };
        let mut text = [b' '; LENGTH];
        for (place, byte) in text.iter_mut().zip(run.as_str().bytes()) {
            *place = byte;
        }
        file.write_all_at(&text, 0)?;
        own = Some(ActiveRun { file });
    }
    own.map(|own| (own, lost)).ok_or_else(|| io::Error::other("too many runs are going on"))
}

fn open(directory: &Path, number: usize, create: bool) -> io::Result<File> {
    let path = directory.join(number.to_string());
    let open =
        || OpenOptions::new().read(true).write(true).create(create).truncate(false).mode(0o600).open(&path);
    match open() {
        Err(error) if error.kind() == io::ErrorKind::NotFound && create => {
            atomic::private_dir(directory)?;
            open()
        }
        other => other,
    }
}

/// The run that a file names.
fn named(file: &File) -> io::Result<Option<RunId>> {
    let mut text = [0; LENGTH];
    let read = file.read_at(&mut text, 0)?;
    Ok(std::str::from_utf8(&text[..read]).ok().and_then(|text| text.trim_end().parse().ok()))
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the files are the test's own")]
mod tests {
    use std::fs;

    use ringfence_core::ids::RunId;

    use super::begin;

    fn run(last: char) -> RunId {
        format!("20260101-000000-aaaaaa{last}").parse().unwrap()
    }

    #[test]
    fn a_run_that_was_lost_is_told_once_and_one_that_ended_never() {
        let state = tempfile::tempdir().unwrap();
        let directory = state.path().join("running");
        let (first, lost) = begin(&directory, &run('a')).unwrap();
        assert!(lost.is_empty());
        let (second, lost) = begin(&directory, &run('b')).unwrap();
        assert!(lost.is_empty(), "it is going on");
        // As a process that was killed: the lock goes, the name stays.
        let kept = fs::read(directory.join("0")).unwrap();
        drop((first, second));
        fs::write(directory.join("0"), kept).unwrap();
        let (third, lost) = begin(&directory, &run('c')).unwrap();
        assert_eq!(lost.iter().map(|lost| &lost.run).collect::<Vec<_>>(), [&run('a')]);
        let (fourth, others) = begin(&directory, &run('d')).unwrap();
        assert!(others.is_empty(), "somebody else looks after it");
        drop((third, fourth, lost));
        let (_, lost) = begin(&directory, &run('e')).unwrap();
        assert!(lost.is_empty());
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 3, "the files are used again");
    }
}
