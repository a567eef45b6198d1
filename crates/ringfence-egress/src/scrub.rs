//! A second line: should a host repeat a secret in its answer, the run does not read it.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

use crate::secret::Secret;

/// Overwrites secrets in what passes by. Nothing becomes longer or shorter. Every occurrence of each is overwritten whole, also where
/// one begins with another or begins in another.
#[derive(Default)]
pub(crate) struct Scrub {
    secrets: Vec<Secret>,
    /// What could be the beginning of one, as it came.
    held: BytesMut,
    /// How much of the beginning of it is to be overwritten: an occurrence began before it.
    covered: usize,
}

impl Scrub {
    pub(crate) fn new(secrets: impl IntoIterator<Item = Secret>) -> Self {
        let mut scrub = Self::default();
        scrub.add(secrets);
        scrub
    }

    /// Overwrites these as well in what is still to come.
    pub(crate) fn add(&mut self, secrets: impl IntoIterator<Item = Secret>) {
        self.secrets.extend(secrets.into_iter().filter(|secret| !secret.reveal().is_empty()));
    }

    fn each(&self) -> impl Iterator<Item = &[u8]> {
        self.secrets.iter().map(|secret| secret.reveal().as_bytes())
    }

    /// How much of the end could be the beginning of a secret.
    fn beginning(&self, bytes: &[u8]) -> usize {
        self.each().map(|secret| beginning(bytes, secret)).max().unwrap_or(0)
    }

    /// Where secrets are, in no order.
    fn occurrences(&self, bytes: &[u8]) -> Vec<Range<usize>> {
        self.each().flat_map(|secret| occurrences(bytes, secret)).collect()
    }

    /// What may go on of what has come so far.
    pub(crate) fn pass(&mut self, data: Bytes) -> Bytes {
        let is_clean = || self.each().all(|secret| memchr::memmem::find(&data, secret).is_none());
        if self.held.is_empty() && is_clean() && self.beginning(&data) == 0 {
            return data;
        }
        self.held.extend_from_slice(&data);
        let end = self.held.len() - self.beginning(&self.held);
        self.release(end)
    }

    /// The rest, when nothing more comes.
    pub(crate) fn rest(&mut self) -> Bytes {
        self.release(self.held.len())
    }

    /// So much of what is held, overwritten.
    fn release(&mut self, end: usize) -> Bytes {
        if end == 0 {
            return Bytes::new();
        }
        let mut found = self.occurrences(&self.held);
        found.push(0..self.covered);
        let mut bytes = self.held.split_to(end);
        let begun = found.into_iter().filter(|range| range.start < end);
        self.covered = begun.fold(0, |covered, range| {
            bytes[range.start..range.end.min(end)].fill(b'*');
            covered.max(range.end.saturating_sub(end))
        });
        bytes.freeze()
    }

    /// Whether nothing is held back.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Overwrites them in headers.
    pub(crate) fn headers(&self, headers: &mut HeaderMap) {
        let lower: Vec<String> = self.secrets.iter().map(|one| one.reveal().to_ascii_lowercase()).collect();
        let holds = |name: &&HeaderName| lower.iter().any(|secret| name.as_str().contains(secret.as_str()));
        let named: Vec<HeaderName> = headers.keys().filter(holds).cloned().collect();
        for name in named {
            headers.remove(name);
        }
        for value in headers.values_mut() {
            let found = self.occurrences(value.as_bytes());
            if !found.is_empty() {
                let mut bytes = value.as_bytes().to_vec();
                found.into_iter().for_each(|range| bytes[range].fill(b'*'));
                *value = HeaderValue::from_bytes(&bytes).unwrap_or_else(|_| HeaderValue::from_static(""));
            }
        }
    }
}

/// Where a secret is, also where it begins in itself. Those that touch are one: a text of one letter has no more than it is long.
fn occurrences(bytes: &[u8], secret: &[u8]) -> Vec<Range<usize>> {
    let finder = memchr::memmem::Finder::new(secret);
    let mut found: Vec<Range<usize>> = Vec::new();
    let mut from = 0;
    while let Some(at) = finder.find(&bytes[from..]).map(|at| from + at) {
        let range = at..at + secret.len();
        match found.last_mut() {
            Some(last) if last.end >= range.start => last.end = range.end,
            _ => found.push(range),
        }
        from = at + 1;
    }
    found
}

/// How much of the end could be the beginning of a secret.
fn beginning(bytes: &[u8], secret: &[u8]) -> usize {
    let most = bytes.len().min(secret.len() - 1);
    (1..=most).rev().find(|length| bytes.ends_with(&secret[..*length])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::Scrub;
    use crate::secret::Secret;

    #[test]
    fn secret_of_asterisks_comes_to_an_end() {
        let mut scrub = Scrub::new([Secret::new("***".into())]);
        assert_eq!(scrub.pass(Bytes::from_static(b"a***b")), "a***b");
    }

    fn scrubbed(secrets: &[&str], text: &str, size: usize) -> String {
        let mut scrub = Scrub::new(secrets.iter().map(|secret| Secret::new((*secret).to_owned())));
        let pieces = text.as_bytes().chunks(size);
        let mut out: Vec<u8> = pieces.flat_map(|piece| scrub.pass(Bytes::copy_from_slice(piece))).collect();
        out.extend(scrub.rest());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn secret_that_begins_with_another_is_overwritten_whole() {
        for size in 1..12 {
            for secrets in [["sk-ab", "sk-abcdef"], ["sk-abcdef", "sk-ab"]] {
                assert_eq!(scrubbed(&secrets, "x sk-abcdef y", size), "x ********* y", "{size}");
                assert_eq!(scrubbed(&secrets, "x sk-abcde", size), "x *****cde", "{size}");
                assert_eq!(scrubbed(&secrets, "x sk-ab", size), "x *****", "{size}");
            }
            assert_eq!(scrubbed(&["abcd", "cdef"], "xabcdefx", size), "x******x", "{size}");
            assert_eq!(scrubbed(&["abcab"], "abcabcabx", size), "********x", "{size}");
            assert_eq!(scrubbed(&["abcab"], "abcabcx", size), "*****cx", "{size}");
        }
        let mut headers = http::HeaderMap::new();
        headers.insert("etag", http::HeaderValue::from_static("sk-abcdef"));
        Scrub::new(["sk-ab", "sk-abcdef"].map(|secret| Secret::new(secret.into()))).headers(&mut headers);
        assert_eq!(headers["etag"], "*********");
    }

    proptest! {
        #[test]
        fn a_secret_never_passes_however_it_is_cut(
            text in prop::collection::vec(prop::sample::select(vec!["sk-real", "sk-", "sk-re", "al", "x", "sk-realsk-real"]), 0..12),
            size in 1_usize..9,
        ) {
            let text = text.concat();
            let mut scrub = Scrub::new([Secret::new("sk-real".into())]);
            let mut out = Vec::new();
            for piece in text.as_bytes().chunks(size) {
                out.extend(scrub.pass(Bytes::copy_from_slice(piece)));
            }
            out.extend(scrub.rest());
            prop_assert_eq!(out.len(), text.len());
            let out = String::from_utf8(out).unwrap();
            prop_assert!(!out.contains("sk-real"), "{}", out);
            if !text.contains("sk-real") {
                prop_assert_eq!(out, text);
            }
        }
    }
}
