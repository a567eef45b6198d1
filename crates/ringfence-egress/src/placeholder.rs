//! What a run knows in the place of a secret: of the same shape, worth nothing, and recognised wherever it goes.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::Value;

/// No more may stand beside a placeholder in basic authentication.
const MAX_USER_BYTES: usize = 256;
/// How many random bytes tell a placeholder from anything else.
const BYTES: usize = 16;

/// A placeholder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Placeholder {
    text: String,
    /// The part that occurs nowhere else.
    core: String,
    /// Whether programs use it as a password.
    password: bool,
}

impl Placeholder {
    /// One that begins so.
    pub(crate) fn new(beginning: &str) -> std::io::Result<Self> {
        let core = core()?;
        Ok(Self { text: format!("{beginning}{core}"), core, password: false })
    }

    /// One of the shape of a signed token, with these claims. Programs read the claims and cannot check the signature.
    pub(crate) fn token(claims: &Value) -> std::io::Result<Self> {
        let core = core()?;
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let text = format!("{}.{}.{core}", part(r#"{"alg":"RS256","typ":"JWT"}"#), part(&claims.to_string()));
        Ok(Self { text, core, password: false })
    }

    /// The same, which programs also use as a password.
    pub(crate) fn usable_as_password(self) -> Self {
        Self { password: true, ..self }
    }

    /// Whether programs use it as a password.
    pub(crate) fn is_password(&self) -> bool {
        self.password
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Whether some bytes hold it, as it is or in the usual disguises.
    pub(crate) fn is_in(&self, bytes: &[u8]) -> bool {
        contains(bytes, self.core.as_bytes())
    }

    /// The longest that has to be looked at in one piece to find it.
    pub(crate) fn length(&self) -> usize {
        self.core.len()
    }

    /// The value of a header with a secret in its place: alone, as a bearer's token, or as the password of basic
    /// authentication. `None` if it is there in any other way, or not at all.
    pub(crate) fn swap(&self, value: &str, secret: &str) -> Option<String> {
        let (scheme, rest) = value.split_once(' ').unwrap_or(("", value));
        let rest = rest.trim();
        match scheme.to_ascii_lowercase().as_str() {
            "" | "bearer" | "token" if rest == self.text => {
                Some(format!("{scheme} {secret}").trim_start().to_owned())
            }
            "basic" if self.password => {
                let decoded = String::from_utf8(STANDARD.decode(rest).ok()?).ok()?;
                let (user, password) = decoded.split_once(':')?;
                if decoded.len() > self.text.len() + MAX_USER_BYTES {
                    return None;
                }
                let fits = |part: &str| part == self.text;
                let real = |part: &str| if fits(part) { secret.to_owned() } else { part.to_owned() };
                let honest = fits(user) || (fits(password) && !self.is_in(user.as_bytes()));
                honest.then(|| {
                    format!("Basic {}", STANDARD.encode(format!("{}:{}", real(user), real(password))))
                })
            }
            _ => None,
        }
    }
}

/// What is looked at for placeholders in a header: as it is, and what basic authentication holds.
pub(crate) fn readings(value: &[u8]) -> impl Iterator<Item = Cow<'_, [u8]>> {
    let basic = value.get(..6).filter(|start| start.eq_ignore_ascii_case(b"basic ")).is_some();
    let decoded = basic.then(|| STANDARD.decode(value[6..].trim_ascii()).ok()).flatten();
    std::iter::once(Cow::Borrowed(value)).chain(decoded.map(Cow::Owned))
}

/// The bytes that an address means.
pub(crate) fn percent_decoded(text: &str) -> Cow<'_, [u8]> {
    let bytes = text.as_bytes();
    if !bytes.contains(&b'%') {
        return Cow::Borrowed(bytes);
    }
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.filter(|_| bytes[at] == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                decoded.push(byte);
                at += 3;
            }
            None => {
                decoded.push(bytes[at]);
                at += 1;
            }
        }
    }
    Cow::Owned(decoded)
}

fn core() -> std::io::Result<String> {
    let mut bytes = [0_u8; BYTES];
    getrandom::fill(&mut bytes).map_err(|error| std::io::Error::other(error.to_string()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    let Some(first) = part.first().filter(|_| bytes.len() >= part.len()) else { return false };
    let mut starts = memchr::memchr2_iter(first.to_ascii_lowercase(), first.to_ascii_uppercase(), bytes);
    starts.any(|at| bytes.get(at..at + part.len()).is_some_and(|window| window.eq_ignore_ascii_case(part)))
}

#[cfg(test)]
mod tests {
    use super::{Placeholder, percent_decoded, readings};

    #[test]
    fn a_placeholder_is_swapped_whole_and_seen_in_part() {
        let placeholder = Placeholder::new("sk-ant-api03-").unwrap();
        let header = format!("Bearer {}", placeholder.text());
        assert_eq!(placeholder.swap(&header, "real").unwrap(), "Bearer real");
        let part = &placeholder.text()["sk-ant-".len()..];
        assert!(placeholder.is_in(part.as_bytes()));
        assert_eq!(placeholder.swap(part, "real"), None);
        assert_eq!(placeholder.swap(&format!("beta {}", placeholder.text()), "real"), None);
        assert_eq!(placeholder.swap(&format!("Bearer x{}", placeholder.text()), "real"), None);
        assert_eq!(placeholder.swap(placeholder.text(), "real").unwrap(), "real");
        assert_ne!(placeholder, Placeholder::new("sk-ant-api03-").unwrap());
    }

    #[test]
    fn basic_authentication_hides_nothing() {
        use base64::Engine;
        let placeholder = Placeholder::new("ghp_").unwrap().usable_as_password();
        let encoded = base64::engine::general_purpose::STANDARD.encode(format!("x:{}", placeholder.text()));
        let header = format!("Basic {encoded}");
        assert!(readings(header.as_bytes()).any(|reading| placeholder.is_in(&reading)));
        let swapped = placeholder.swap(&header, "real").unwrap();
        assert!(readings(swapped.as_bytes()).any(|reading| *reading == *b"x:real"));
        let long = format!("{}:{}", "x".repeat(300), placeholder.text());
        let long = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(long));
        assert_eq!(placeholder.swap(&long, "real"), None, "the user name is too long");
    }

    #[test]
    fn addresses_are_read_as_they_are_meant() {
        assert_eq!(*percent_decoded("/a%2Fb%zz%4"), *b"/a/b%zz%4");
    }
}
