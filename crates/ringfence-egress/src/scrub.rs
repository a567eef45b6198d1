//! A second line: should a host repeat a secret in its answer, the run does not read it.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

use crate::secret::Secret;

/// The least that is held back of a text without delimiters, so that little can be learned of how long secrets are.
const MIN_HELD: usize = 64;

/// Overwrites secrets in what passes by. Nothing becomes longer or shorter. Every occurrence of each is overwritten whole, also where
/// one begins with another or begins in another.
///
/// How much is held back, and when it passes, depends on the text alone and not on what the secrets are: a run that has a host repeat
/// guesses would otherwise see which of them a secret begins with.
#[derive(Default)]
pub(crate) struct Scrub {
    secrets: Vec<Secret>,
    delimiters: Delimiters,
    /// The end of what has come, which could be in a secret as far as its delimiters tell.
    held: BytesMut,
    /// How much of the beginning of it is to be overwritten: an occurrence began before it.
    covered: usize,
}

/// Bytes that no secret has.
struct Delimiters([bool; 256]);

impl Default for Delimiters {
    /// Those that credentials do not have usually: spaces, control characters, brackets, quotes, and all that is not ASCII.
    fn default() -> Self {
        let is_delimiter = |byte: u8| {
            matches!(byte, 0..=b' ' | 0x7f.. | b'"' | b'\'' | b'`' | b',' | b'\\' | b'|')
                || matches!(byte, b'(' | b')' | b'<' | b'>' | b'[' | b']' | b'{' | b'}')
        };
        Self(std::array::from_fn(|byte| u8::try_from(byte).is_ok_and(is_delimiter)))
    }
}

impl Delimiters {
    fn remove(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0[usize::from(*byte)] = false);
    }

    /// How many bytes of the end follow the last delimiter.
    fn after_last(&self, bytes: &[u8]) -> usize {
        bytes.iter().rev().take_while(|byte| !self.0[usize::from(**byte)]).count()
    }
}

impl Scrub {
    pub(crate) fn new(secrets: impl IntoIterator<Item = Secret>) -> Self {
        let mut scrub = Self::default();
        scrub.add(secrets);
        scrub
    }

    /// Overwrites these as well in what is still to come.
    pub(crate) fn add(&mut self, secrets: impl IntoIterator<Item = Secret>) {
        for secret in secrets.into_iter().filter(|secret| !secret.reveal().is_empty()) {
            self.delimiters.remove(secret.reveal().as_bytes());
            self.secrets.push(secret);
        }
    }

    fn each(&self) -> impl Iterator<Item = &[u8]> {
        self.secrets.iter().map(|secret| secret.reveal().as_bytes())
    }

    /// How much of the end is held back: what follows the last delimiter, but no more than the longest secret may need.
    fn end_to_hold(&self, bytes: &[u8]) -> usize {
        let Some(longest) = self.each().map(<[u8]>::len).max() else { return 0 };
        let most = longest.next_power_of_two().max(MIN_HELD);
        self.delimiters.after_last(&bytes[bytes.len().saturating_sub(most)..])
    }

    /// Where secrets are, in no order.
    fn occurrences(&self, bytes: &[u8]) -> Vec<Range<usize>> {
        self.each().flat_map(|secret| occurrences(bytes, secret)).collect()
    }

    /// What may go on of what has come so far.
    pub(crate) fn pass(&mut self, data: Bytes) -> Bytes {
        let is_clean = || self.each().all(|secret| memchr::memmem::find(&data, secret).is_none());
        if self.held.is_empty() && self.end_to_hold(&data) == 0 && is_clean() {
            return data;
        }
        self.held.extend_from_slice(&data);
        let end = self.held.len() - self.end_to_hold(&self.held);
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::Scrub;
    use crate::secret::Secret;

    #[test]
    fn secret_of_asterisks_comes_to_an_end() {
        let mut scrub = Scrub::new([Secret::new("***".into())]);
        assert_eq!(scrub.pass(Bytes::from_static(b"a***b ")), "a***b ");
    }

    /// The sizes of the pieces that pass.
    fn sizes(secret: &str, pieces: &[&str]) -> Vec<usize> {
        let mut scrub = Scrub::new([Secret::new(secret.to_owned())]);
        let mut sizes: Vec<usize> =
            pieces.iter().map(|piece| scrub.pass(Bytes::copy_from_slice(piece.as_bytes())).len()).collect();
        sizes.push(scrub.rest().len());
        sizes
    }

    #[test]
    fn events_and_messages_pass_at_once() {
        assert_eq!(sizes("sk-real", &["data: a sk-re\n\n", "{\"a\":\"sk-re\"}", "x"]), [15, 13, 0, 1]);
        assert_eq!(sizes("{sk", &["{\"a\":1}", "{\"a\":{", "\n"]), [7, 4, 3, 0], "a brace of its own delays");
        assert_eq!(Scrub::default().pass(Bytes::from_static(b"sk-")), "sk-", "nothing to look for");
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
        /// Whoever sees how an answer is cut learns nothing of a secret that is not in it.
        #[test]
        fn pieces_are_cut_alike_whatever_the_secret(
            pieces in prop::collection::vec(prop::sample::select(vec!["s", "sk", "sk-rea", "k-real", "xy", " ", "\n", "sk-sk-sk-"]), 0..60),
            other in prop::sample::select(vec!["zk-real", "sk-reax", "sssssss", "qqqqqqqqqqqqq"]),
        ) {
            let joined = pieces.concat();
            prop_assume!(!joined.contains("sk-real") && !joined.contains(other));
            prop_assert_eq!(sizes("sk-real", &pieces), sizes(other, &pieces));
        }

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
