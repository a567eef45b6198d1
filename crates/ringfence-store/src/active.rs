//! Which runs are going on: each locks a small file in `running/` and writes its id into it. The files are used again and again,
//! so that nothing has to be made or removed. A file that names a run and is not locked was left by a run that was lost.
//!
//! Each file also holds disk space for the end of its run: a run can fill the disk, and its result and what is reported of it have
//! to be kept all the same. The space is reserved when the file is made, and again by the next run if it was used.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use ringfence_core::ids::RunId;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::atomic;

/// Most files: more runs at once are refused.
const MAX_FILES: usize = 4096;
/// The length of what is written, so that it never grows or shrinks. Ids are shorter.
const LENGTH: usize = 64;
/// Disk space that is reserved for the end of each run: notices, the result, and the result in the log.
const RESERVED_BYTES: u64 = 1 << 20;

/// A run that is going on, until this is dropped.
#[derive(Debug)]
pub struct ActiveRun {
    file: File,
    /// Whether the file goes on naming the run, so that it counts as lost.
    stays: bool,
}

impl ActiveRun {
    /// Frees the disk space that is reserved for the end of the run.
    pub fn release_space(&self) -> io::Result<()> {
        self.file.set_len(LENGTH as u64)
    }

    /// Leaves the run as a lost one: the next run reports it.
    pub fn leave(mut self) {
        self.stays = true;
    }
}

impl Drop for ActiveRun {
    fn drop(&mut self) {
        if !self.stays {
            // A run that cannot say that it is over is searched once more, as a lost one.
            let _ = self.file.write_all_at(&[b' '; LENGTH], 0);
        }
    }
}

/// A run that was lost. Other processes do not see it as such until this is dropped, and never again once it was reported.
#[derive(Debug)]
pub struct LostRun {
    /// Its id.
    pub run: RunId,
    file: ActiveRun,
}

impl LostRun {
    /// Notes that the user was told of it.
    pub fn reported(mut self) {
        self.file.stays = false;
    }
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
                lost.push(LostRun { run, file: ActiveRun { file, stays: true } });
                continue;
            }
            None if own.is_some() => continue,
            None => file,
        };
        reserve_space(&file)?;
        let mut text = [b' '; LENGTH];
        for (place, byte) in text.iter_mut().zip(run.as_str().bytes()) {
            *place = byte;
        }
        file.write_all_at(&text, 0)?;
        own = Some(ActiveRun { file, stays: false });
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

/// Reserves the disk space of a file, unless it has it from an earlier run. Fails if the disk has no such space; a file system that
/// cannot reserve space, or a limit on the length of files, is no reason to refuse a run.
fn reserve_space(file: &File) -> io::Result<()> {
    if file.metadata()?.blocks().saturating_mul(512) >= RESERVED_BYTES {
        return Ok(());
    }
    // The kernel sends a deadly signal to a process that makes a file longer than its limit.
    if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < RESERVED_BYTES) {
        return Ok(());
    }
    match fallocate(file, FallocateFlags::empty(), 0, RESERVED_BYTES) {
        Err(error @ (Errno::NOSPC | Errno::DQUOT)) => Err(error.into()),
        _ => Ok(()),
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
    use std::os::unix::fs::MetadataExt;

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
        let (fifth, lost) = begin(&directory, &run('e')).unwrap();
        assert_eq!(lost.len(), 1, "nobody was told of it");
        lost.into_iter().for_each(super::LostRun::reported);
        let (sixth, lost) = begin(&directory, &run('f')).unwrap();
        assert!(lost.is_empty());
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 3, "the files are used again");
        sixth.leave();
        drop(fifth);
        let (_, lost) = begin(&directory, &run('g')).unwrap();
        assert_eq!(lost.iter().map(|lost| &lost.run).collect::<Vec<_>>(), [&run('f')]);
    }

    #[test]
    fn reserved_space_is_freed_and_reserved_again() {
        let state = tempfile::tempdir().unwrap();
        let directory = state.path().join("running");
        let reserved = || fs::metadata(directory.join("0")).unwrap().blocks() * 512 >= super::RESERVED_BYTES;
        let (active, _) = begin(&directory, &run('a')).unwrap();
        assert!(reserved());
        active.release_space().unwrap();
        assert!(!reserved());
        active.leave();
        let (_second, lost) = begin(&directory, &run('b')).unwrap();
        assert_eq!(lost[0].run, run('a'), "the name stays");
        lost.into_iter().for_each(super::LostRun::reported);
        let (_third, lost) = begin(&directory, &run('c')).unwrap();
        assert!(lost.is_empty() && reserved());
    }
}
