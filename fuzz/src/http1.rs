//! HTTP/1.1 through the broker: how it is cut does not matter, and what goes on is understood as it was here.

/// Reads the bytes as requests and as responses.
pub fn check(data: &[u8]) {
    ringfence_egress::fuzzing::http1(data);
}

/// Messages with each way to say where a body ends, and some that contradict themselves.
pub fn seeds() -> Vec<Vec<u8>> {
    [
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST /a?b HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\n\r\n",
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nT: 1\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        "POST http://a?b HTTP/1.1\r\nConnection: content-length, x\r\nX: 1\r\nContent-Length: 1\r\n\r\na",
        "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET /\u{e9} HTTP/1.1\r\nA: \u{e9}\r\n\r\n",
        "\r\n\nOPTIONS * HTTP/1.1\nA: b\n\n",
        "CONNECT a:443 HTTP/1.1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabHTTP/1.1 304 X\r\nContent-Length: 9\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nA\r\n0123456789\r\n0\r\n\r\n",
        "HTTP/1.0 200\r\n\r\nuntil the end",
        "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 No\r\n\r\n",
    ]
    .into_iter()
    .flat_map(|wire| [1, 7, 255].map(|size| [&[size][..], wire.as_bytes()].concat()))
    .collect()
}
