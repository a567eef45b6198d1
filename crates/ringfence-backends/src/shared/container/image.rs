//! Names of images.

/// A name that an engine accepts, and what was changed for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageName {
    pub(crate) name: String,
    /// What a person should know of it.
    pub(crate) notice: Option<String>,
}

/// Reads a name such as `registry:5000/some/image:tag@sha256:…`. Capital letters are legal in a tag alone; elsewhere they
/// are made small, for the documents' own default has one.
pub(crate) fn read(text: &str) -> Result<ImageName, String> {
    let bad = |why: &str| Err(format!("`{text}` is no name of an image: {why}"));
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (text, None),
    };
    let (path, tag) = match rest.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
        _ => (rest, None),
    };
    if let Some(digest) = digest {
        let hex = digest.strip_prefix("sha256:").unwrap_or_default();
        if hex.len() != 64 || !hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return bad("its digest is not `sha256:` and 64 hexadecimal digits");
        }
    }
    if tag.is_some_and(|tag| !is_tag(tag)) {
        return bad("its tag has to be 1 to 128 letters, digits, `_`, `.` or `-`");
    }
    let mut parts: Vec<String> = path.split('/').map(str::to_owned).collect();
    let host = parts.len() > 1 && (parts[0].contains(['.', ':']) || parts[0] == "localhost");
    if host && !parts[0].bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b':')) {
        return bad("its first part is no host");
    }
    for part in parts.iter_mut().skip(usize::from(host)) {
        part.make_ascii_lowercase();
        if !is_component(part) {
            return bad("each part has to be small letters and digits, joined by `.`, `_`, `__` or `-`");
        }
    }
    let lower = parts.join("/");
    let notice = (lower != path).then(|| {
        format!("the image `{text}` has capital letters, which no engine accepts: `{lower}` is used")
    });
    let tag = tag.map(|tag| format!(":{tag}")).unwrap_or_default();
    let digest = digest.map(|digest| format!("@{digest}")).unwrap_or_default();
    Ok(ImageName { name: format!("{lower}{tag}{digest}"), notice })
}

fn is_tag(tag: &str) -> bool {
    let first = tag.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    first
        && tag.len() <= 128
        && tag.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

/// Letters and digits, with single separators between them.
fn is_component(part: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = part.bytes().next().is_some_and(plain) && part.bytes().last().is_some_and(plain);
    let separators: Vec<&str> =
        part.split(|c: char| c.is_ascii() && plain(c as u8)).filter(|s| !s.is_empty()).collect();
    ends && separators.iter().all(|s| matches!(*s, "." | "_" | "__") || s.bytes().all(|byte| byte == b'-'))
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn legal_names_stay_as_they_are() {
        let digest = "a".repeat(64);
        for name in [
            "ringfence/agent:latest",
            "debian",
            "localhost/x",
            "registry.example.com:5000/a/b__c-d.e:V1.2_x",
            &format!("a/b@sha256:{digest}"),
            "a--b",
        ] {
            let read = read(name).unwrap();
            assert_eq!((read.name.as_str(), read.notice), (name, None));
        }
    }

    #[test]
    fn capital_letters_are_made_small_with_a_word_about_it() {
        let read = read("openTiger/worker:Latest").unwrap();
        assert_eq!(read.name, "opentiger/worker:Latest");
        assert!(read.notice.unwrap().contains("`opentiger/worker` is used"));
    }

    #[test]
    fn what_no_engine_takes_is_told_before_it_is_asked() {
        for name in ["", "a/", "/a", "a b", "a:", "a:-x", "-a", "a..b", "a@sha256:12", "a\nb", "a/../b", "ü"]
        {
            assert!(read(name).is_err(), "{name:?}");
        }
    }
}
