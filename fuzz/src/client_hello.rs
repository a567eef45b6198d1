//! The first message of TLS: more bytes change nothing, and its name is a host or none.

/// Reads the bytes as a `ClientHello`.
pub fn check(data: &[u8]) {
    ringfence_egress::fuzzing::client_hello(data);
}

fn list(content: &[u8]) -> Vec<u8> {
    [&(content.len() as u16).to_be_bytes()[..], content].concat()
}

fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
    [&kind.to_be_bytes()[..], &list(content)].concat()
}

fn server_name(name: &[u8]) -> Vec<u8> {
    extension(0, &list(&[&[0][..], &list(name)].concat()))
}

/// A message with these extensions, in records of this size.
fn hello(extensions: &[u8], size: usize) -> Vec<u8> {
    let fixed = [3, 3].into_iter().chain([7; 32]).chain([0, 0, 2, 0x13, 1, 1, 0]);
    let body: Vec<u8> = fixed.chain(list(extensions)).collect();
    let length = (body.len() as u32).to_be_bytes();
    let handshake = [&[1][..], &length[1..], &body].concat();
    let record = |part: &[u8]| [&[22, 3, 1][..], &list(part)].concat();
    handshake.chunks(size).flat_map(record).collect()
}

/// Messages with one name, none, two, a hidden one, and one that is cut into records.
pub fn seeds() -> Vec<Vec<u8>> {
    let (one, other) = (server_name(b"example.com"), server_name(b"EXAMPLE.com."));
    let hidden = extension(0xfe0d, &[0; 8]);
    vec![
        hello(&one, 4096),
        hello(&[], 4096),
        hello(&one, 3),
        hello(&[one.clone(), other.clone()].concat(), 4096),
        hello(&[one.clone(), hidden].concat(), 4096),
        hello(&other, 4096),
        hello(&server_name(b"127.0.0.1"), 4096),
        hello(&server_name(b"a\0b"), 4096),
        hello(&extension(0, &[0]), 4096),
        [hello(&one, 4096), vec![20, 3, 3, 0, 1, 1]].concat(),
        vec![22, 3, 1, 0, 0],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
    ]
}
