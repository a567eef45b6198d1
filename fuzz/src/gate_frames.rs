//! Frames between host and gate: whatever is read is a message, and is read again as the same message.

use std::fmt::Debug;
use std::io::Write;
use std::os::unix::net::UnixStream;

use ringfence_gate::{Order, Report, read_frame, receive, write_frame};
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

/// Orders, reports, and lengths that lie.
pub fn seeds() -> Vec<Vec<u8>> {
    let frame = |text: &str| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    vec![
        frame(r#""start""#),
        frame(r#"{"signal":"kill"}"#),
        frame(r#"{"print":"stdout"}"#),
        frame(
            r#"{"build":{"argv":["a"],"env":{"A":"b"},"cwd":"/","memory_limit":null,"process_limit":1,"lifetime_ms":2,"terminal":[1,2],"sandbox":"{}"}}"#,
        ),
        frame(r#"{"ended":{"status":{"code":0},"leftovers":0,"survivors":0,"limit":"time"}}"#),
        frame(r#"{"cannot_start":{"problem":"other","message":"\u0000"}}"#),
        [frame(r#"{"started":{"pid":1}}"#), frame(r#"{"door":1}"#)].concat(),
        vec![255; 8],
        [&9u32.to_le_bytes()[..], b"\"start\""].concat(),
        [&6u32.to_le_bytes()[..], b"\"start\""].concat(),
        frame(&"[".repeat(2000)),
    ]
}
