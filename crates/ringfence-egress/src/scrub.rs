//! A second line: should a host repeat a secret in its answer, the run does not read it.

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};

use crate::secret::Secret;

/// Overwrites a secret in what passes by. Nothing becomes longer or shorter.
pub(crate) struct Scrub {
    secret: Secret,
    /// What could be the beginning of it.
    held: BytesMut,
}

impl Scrub {
    pub(crate) fn new(secret: Secret) -> Self {
        Self { secret, held: BytesMut::new() }
    }

    /// What may go on of what has come so far.
    pub(crate) fn pass(&mut self, data: Bytes) -> Bytes {
        let secret = self.secret.reveal().as_bytes();
        if secret.is_empty() {
            return data;
        }
        let keeps = |bytes: &[u8]| beginning(bytes, secret);
        if self.held.is_empty() && memchr::memmem::find(&data, secret).is_none() && keeps(&data) == 0 {
            return data;
        }
        self.held.extend_from_slice(&data);
        overwrite(&mut self.held, secret);
        let kept = beginning(&self.held, secret);
        self.held.split_to(self.held.len() - kept).freeze()
    }

    /// The rest, when nothing more comes.
    pub(crate) fn rest(&mut self) -> Option<Bytes> {
        let rest = self.held.split().freeze();
        (!rest.is_empty()).then_some(rest)
    }

    /// Whether nothing is held back.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Overwrites it in headers.
    pub(crate) fn headers(&self, headers: &mut HeaderMap) {
        let secret = self.secret.reveal().as_bytes();
        let lower = self.secret.reveal().to_ascii_lowercase();
        let named: Vec<HeaderName> = headers
            .keys()
            .filter(|name| !lower.is_empty() && name.as_str().contains(&lower))
            .cloned()
            .collect();
        for name in named {
            headers.remove(name);
        }
        for value in headers.values_mut() {
            if !secret.is_empty() && memchr::memmem::find(value.as_bytes(), secret).is_some() {
                let mut bytes = value.as_bytes().to_vec();
                overwrite(&mut bytes, secret);
                *value = HeaderValue::from_bytes(&bytes).unwrap_or_else(|_| HeaderValue::from_static(""));
            }
        }
    }
}

fn overwrite(bytes: &mut [u8], secret: &[u8]) {
    let mut from = 0;
    // Never from the start again: many secrets would take long, and one of asterisks would not end.
    while let Some(at) = memchr::memmem::find(&bytes[from..], secret) {
        let end = from + at + secret.len();
        bytes[from + at..end].fill(b'*');
        from = end;
    }
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
        let mut scrub = Scrub::new(Secret::new("***".into()));
        assert_eq!(scrub.pass(Bytes::from_static(b"a***b")), "a***b");
    }

    proptest! {
        #[test]
        fn a_secret_never_passes_however_it_is_cut(
            text in prop::collection::vec(prop::sample::select(vec!["sk-real", "sk-", "sk-re", "al", "x", "sk-realsk-real"]), 0..12),
            size in 1_usize..9,
        ) {
            let text = text.concat();
            let mut scrub = Scrub::new(Secret::new("sk-real".into()));
            let mut out = Vec::new();
            for piece in text.as_bytes().chunks(size) {
                out.extend(scrub.pass(Bytes::copy_from_slice(piece)));
            }
            out.extend(scrub.rest().unwrap_or_default());
            prop_assert_eq!(out.len(), text.len());
            let out = String::from_utf8(out).unwrap();
            prop_assert!(!out.contains("sk-real"), "{}", out);
            if !text.contains("sk-real") {
                prop_assert_eq!(out, text);
            }
        }
    }
}
