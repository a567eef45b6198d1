//! Frames between host and gate: whatever is read is a message, and is read again as the same message.

use std::fmt::Debug;
use std::io::Write;
use std::os::unix::net::UnixStream;

use ringfence_gate::{
    Limit, Order, Report, Signal, Spec, StartProblem, Status, Stream, read_frame, receive, write_frame,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// What a socket takes at once; a longer input would wait for its reader.
const MAX_SOCKET_BYTES: usize = 64 << 10;

/// Reads the bytes as orders and as reports, from memory and from a socket.
pub fn check(data: &[u8]) {
    let orders = read_all::<Order>(data);
    let reports = read_all::<Report>(data);
    if data.len() <= MAX_SOCKET_BYTES {
        assert_eq!(orders, receive_all(data), "a socket gives other orders");
        assert_eq!(reports, receive_all(data), "a socket gives other reports");
    }
}

/// What the wire asks of a message.
trait Message: Serialize + DeserializeOwned + PartialEq + Debug {}
impl<T: Serialize + DeserializeOwned + PartialEq + Debug> Message for T {}

fn read_all<T: Message>(mut data: &[u8]) -> Vec<T> {
    let mut all = Vec::new();
    while let Ok(Some(message)) = read_frame::<T>(&mut data) {
        let mut written = Vec::new();
        write_frame(&mut written, &message).expect("what was read can be written");
        let again = read_frame::<T>(&written[..]).expect("what was written can be read");
        assert_eq!(again.as_ref(), Some(&message), "it is read as something else");
        all.push(message);
    }
    all
}

fn receive_all<T: Message>(data: &[u8]) -> Vec<T> {
    let (mut ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    ours.write_all(data).expect("the socket takes it");
    drop(ours);
    let mut all = Vec::new();
    while let Ok(Some((message, _))) = receive::<T>(&theirs) {
        all.push(message);
    }
    all
}

fn frame(message: &impl Serialize) -> Vec<u8> {
    let mut written = Vec::new();
    write_frame(&mut written, message).expect("a message can be written");
    written
}

/// Orders, reports, and lengths that lie.
pub fn seeds() -> Vec<Vec<u8>> {
    let spec = Spec {
        argv: vec!["a".into()],
        env: [("A".into(), "b".into())].into(),
        cwd: "/".into(),
        memory_limit: None,
        process_limit: Some(1),
        watched_memory: Some(u64::MAX),
        watched_processes: None,
        lifetime_ms: Some(2),
        terminal: Some((1, 2)),
        sandbox: Some(vec![0, 255]),
    };
    let ended =
        Report::Ended { status: Status::Code(0), leftovers: 0, survivors: 0, limit: Some(Limit::Time) };
    let cannot_start = Report::CannotStart { problem: StartProblem::Other, message: "\0".into() };
    let raw = |bytes: &[u8]| [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat();
    vec![
        frame(&Order::Start),
        frame(&Order::Signal(Signal::Kill)),
        frame(&Order::Print(Stream::Stdout)),
        frame(&Order::Prepare(vec![1; 300])),
        frame(&Order::Build(spec)),
        frame(&ended),
        frame(&cannot_start),
        [frame(&Report::Started { pid: 1 }), frame(&Report::Door(1))].concat(),
        vec![255; 8],
        // A length that says more, and one that says less, than there is.
        [&9u32.to_le_bytes()[..], &[3]].concat(),
        [&1u32.to_le_bytes()[..], &[3, 3]].concat(),
        // Announces more elements than there are bytes.
        raw(&[2, 255, 255, 255, 255, 15]),
        raw(&[255; 2000]),
    ]
}
