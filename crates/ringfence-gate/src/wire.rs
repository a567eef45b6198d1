//! What host and gate say to each other: length-prefixed JSON over a Unix socket.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Longer frames are a mistake or an attack: argv and environment together are bounded far below it by the kernel.
const LONGEST_FRAME: u32 = 8 << 20;

/// What the host tells the gate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Print there from now on; the descriptor comes along. For a gate that was started by somebody else, before the rest.
    Print(Stream),
    /// Prepare a part that does not depend on the rest, encoded for the builder. Any number of times, before `Build`.
    Prepare(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Make all ready to start this. Once.
    Build(Spec),
    /// Start it. Once.
    Start,
    /// Send this signal to all that belongs to the run.
    Signal(Signal),
}

/// Where a run prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    Stdout,
    Stderr,
}

/// What to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The program and its arguments. One without a slash is looked for where the run's `PATH` says.
    pub argv: Vec<String>,
    /// All variables that it sees.
    pub env: BTreeMap<String, String>,
    /// Where it starts.
    pub cwd: PathBuf,
    /// Bytes of memory that all processes together may hold, and each may ask for.
    pub memory_limit: Option<u64>,
    /// Processes and threads that the user of the run may have, where that user is the run's own.
    pub process_limit: Option<u32>,
    /// Bytes of memory that all processes together may hold before the gate ends the run. Nothing else enforces it.
    pub watched_memory: Option<u64>,
    /// Processes and threads that there may be before the gate ends the run. Nothing else enforces it.
    pub watched_processes: Option<u32>,
    /// After this time the gate ends everything by itself, also when the host is stopped or stuck.
    pub lifetime_ms: Option<u64>,
    /// A terminal for it, of so many rows and columns. The outer end comes with the report of the start.
    pub terminal: Option<(u16, u16)>,
    /// What to build around it, encoded for the builder.
    #[serde(with = "serde_bytes")]
    pub sandbox: Option<Vec<u8>>,
}

/// The signals that the host asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Signal {
    Interrupt,
    Terminate,
    Kill,
}

/// What the gate tells the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// Where it comes to the broker, at this port; the listener comes along. Before it runs.
    Door(u16),
    /// It runs.
    Started {
        /// Its process.
        pid: u32,
    },
    /// It could not be started; nothing runs.
    CannotStart {
        /// What kind of problem.
        problem: StartProblem,
        /// The system's words.
        message: String,
    },
    /// It ended, and all that could be ended with it. The last report.
    Ended {
        /// How.
        status: Status,
        /// Processes that were still there then, and were ended.
        leftovers: u32,
        /// Processes that could not be ended.
        survivors: u32,
        /// The limit for which the gate ended it, if it did.
        limit: Option<Limit>,
    },
}

/// What a run can use up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    Time,
    Memory,
    Processes,
}

/// Why a program cannot be started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartProblem {
    /// It is not there.
    NotFound,
    /// It is there and cannot be executed.
    NotExecutable,
    /// The system could not.
    Other,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// With this code.
    Code(u8),
    /// By this signal.
    Signal(u8),
}

/// Why a frame did not get across.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The socket failed.
    #[error("the socket to the other side failed: {0}")]
    Io(#[from] io::Error),
    /// The frame cannot be read.
    #[error("the other side sent something unreadable")]
    Unreadable(#[from] postcard::Error),
    /// The frame is longer than any can be.
    #[error("the other side announced a frame of {0} bytes")]
    TooLong(u32),
}

/// Encodes a value as frames carry it: in a binary format without names, for both ends are the same program.
pub fn encode(value: &impl Serialize) -> Result<Vec<u8>, WireError> {
    Ok(postcard::to_stdvec(value)?)
}

/// Decodes a value. Bytes that follow it are an error.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    match postcard::take_from_bytes(bytes)? {
        (value, []) => Ok(value),
        (_, [_, ..]) => Err(WireError::Unreadable(postcard::Error::DeserializeBadEncoding)),
    }
}

fn frame(message: &impl Serialize) -> Result<Vec<u8>, WireError> {
    let mut frame = postcard::to_extend(message, vec![0; 4])?;
    let length = u32::try_from(frame.len() - 4).ok().filter(|length| *length <= LONGEST_FRAME);
    let length = length.ok_or(WireError::TooLong(u32::MAX))?;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

/// Sends one message.
pub fn write_frame(mut socket: impl Write, message: &impl Serialize) -> Result<(), WireError> {
    Ok(socket.write_all(&frame(message)?)?)
}

/// Sends one message, with a descriptor if there is one.
pub fn send(
    mut socket: &UnixStream,
    message: &impl Serialize,
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(), WireError> {
    let frame = frame(message)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<_> = descriptor.into_iter().collect();
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    }
    let sent = retry_on_intr(|| {
        sendmsg(socket.as_fd(), &[IoSlice::new(&frame)], &mut ancillary, SendFlags::NOSIGNAL)
    });
    let sent = sent.map_err(io::Error::from)?;
    Ok(socket.write_all(&frame[sent..])?)
}

/// Receives one message and the descriptor that came along with its first byte; `None` when the other side is gone.
pub fn receive<T: DeserializeOwned>(socket: &UnixStream) -> Result<Option<(T, Option<OwnedFd>)>, WireError> {
    let mut first = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        recvmsg(socket, &mut [IoSliceMut::new(&mut first)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    });
    let received = received.map_err(io::Error::from)?;
    if received.bytes == 0 {
        return Ok(None);
    }
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(read_frame(first.as_slice().chain(socket))?.map(|message| (message, descriptor)))
}

/// Receives one message; `None` when the other side is gone.
pub fn read_frame<T: DeserializeOwned>(mut socket: impl Read) -> Result<Option<T>, WireError> {
    let mut length = [0; 4];
    match socket.read_exact(&mut length) {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) =>
        {
            return Ok(None);
        }
        other => other?,
    }
    let length = u32::from_le_bytes(length);
    if length > LONGEST_FRAME {
        return Err(WireError::TooLong(length));
    }
    let mut body = vec![0; length as usize];
    socket.read_exact(&mut body)?;
    decode(&body).map(Some)
}

#[cfg(test)]
mod tests {
    use super::{Order, Signal, WireError, read_frame, write_frame};

    #[test]
    fn what_is_written_is_read() {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, &Order::Signal(Signal::Kill)).unwrap();
        assert_eq!(read_frame(&bytes[..]).unwrap(), Some(Order::Signal(Signal::Kill)));
        assert!(read_frame::<Order>(&[][..]).unwrap().is_none());
    }

    #[test]
    fn an_absurd_length_is_refused_before_memory_is_taken() {
        assert!(matches!(read_frame::<Order>(&[255, 255, 255, 255][..]), Err(WireError::TooLong(_))));
    }
}
