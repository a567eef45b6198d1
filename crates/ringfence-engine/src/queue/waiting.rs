//! Waiting for the first of several events: a stop request, a change of the queue, the exit of a process, a deadline.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// When to look again, whatever happens.
#[derive(Debug, Default)]
pub(super) struct Alarm(Option<Instant>);

impl Alarm {
    /// In so long at the latest.
    pub(super) fn within(&mut self, time: Duration) {
        let at = Instant::now() + time;
        self.0 = Some(self.0.map_or(at, |before| before.min(at)));
    }
}

/// How something that works is to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Whoever gave orders is gone.
    Gone,
    /// Take nothing more, and wait for what runs.
    Drain,
    /// End what runs, and give it back.
    HandBack,
}

/// The byte that means [`Order::Drain`]; any other means [`Order::HandBack`].
pub const DRAIN: u8 = b'd';

/// Waits. What wakers say is read and forgotten.
pub(super) fn wait<'a>(
    alarm: &Alarm,
    orders: BorrowedFd<'a>,
    wakers: &[BorrowedFd<'a>],
    processes: impl Iterator<Item = BorrowedFd<'a>>,
) -> io::Result<Option<Order>> {
    let timeout = alarm.0.map(|at| at.saturating_duration_since(Instant::now()));
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    let all = std::iter::once(orders).chain(wakers.iter().copied()).chain(processes);
    let mut fds: Vec<PollFd<'_>> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    match poll(&mut fds, timeout.as_ref()) {
        Ok(_) => {}
        Err(rustix::io::Errno::INTR) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let mut buffer = [0; 4096];
    for (fd, waker) in fds[1..].iter().zip(wakers) {
        while !fd.revents().is_empty() && rustix::io::read(waker, &mut buffer).is_ok_and(|read| read > 0) {}
    }
    if fds[0].revents().is_empty() {
        return Ok(None);
    }
    match rustix::io::read(orders, &mut buffer) {
        Ok(0) => Ok(Some(Order::Gone)),
        Ok(read) if buffer[..read].iter().all(|byte| *byte == DRAIN) => Ok(Some(Order::Drain)),
        Ok(_) => Ok(Some(Order::HandBack)),
        Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Lets some time pass.
pub fn pause(time: Duration) {
    let time = Timespec::try_from(time).ok();
    let _ = poll(&mut [], time.as_ref());
}

/// Whether the process of a descriptor is gone.
pub(super) fn has_ended(process: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}
