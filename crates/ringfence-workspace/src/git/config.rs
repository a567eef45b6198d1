//! The few values of a git configuration file that decide how a repository is treated. Includes are not followed.

/// The values of a key such as `core.hookspath`, in the order of the file. Section and key are compared in lower case; a
/// key in a subsection does not count.
pub(crate) fn values(text: &str, section: &str, key: &str) -> Vec<String> {
    let of_key = entries(text, section).into_iter().filter(|(name, _)| name == key);
    of_key.map(|(_, value)| value).collect()
}

/// The keys of a section, in lower case, and their values.
pub(crate) fn entries(text: &str, section: &str) -> Vec<(String, String)> {
    let mut here = false;
    let mut found = Vec::new();
    for line in logical_lines(text) {
        let line = line.trim();
        if let Some(rest) = line.strip_prefix('[') {
            let (name, after) = rest.split_once(']').unwrap_or((rest, ""));
            here = name.trim().eq_ignore_ascii_case(section);
            found.extend(here.then(|| entry(after)).flatten());
        } else if here {
            found.extend(entry(line));
        }
    }
    found
}

/// Lines, with those joined that end in a backslash.
fn logical_lines(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut open = false;
    for line in text.lines() {
        let (line, goes_on) = match line.strip_suffix('\\') {
            Some(line) => (line, true),
            None => (line, false),
        };
        match lines.last_mut().filter(|_| open) {
            Some(last) => last.push_str(line),
            None => lines.push(line.to_owned()),
        }
        open = goes_on;
    }
    lines
}

/// The parts of `key = value`. A key without a value is `true`.
fn entry(line: &str) -> Option<(String, String)> {
    let line = line.trim();
    if line.is_empty() || line.starts_with(['#', ';']) {
        return None;
    }
    let (name, value) = line.split_once('=').unwrap_or((line, "true"));
    Some((name.trim().to_ascii_lowercase(), unquoted(value.trim())))
}

/// A value without quotes, escapes and comments.
fn unquoted(value: &str) -> String {
    let mut plain = String::new();
    let mut quoted = false;
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => quoted = !quoted,
            '\\' => plain.extend(characters.next().map(|escaped| match escaped {
                'n' => '\n',
                't' => '\t',
                other => other,
            })),
            '#' | ';' if !quoted => break,
            other => plain.push(other),
        }
    }
    if quoted { plain } else { plain.trim_end().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::values;

    const TEXT: &str = "# comment\n[core]\n\tbare = false\n\tHooksPath = \".husky/_\" ; why\n[remote \"origin\"]\n\thookspath = no\n\
                        [Core] hookspath=second\\\npart\n[extensions]\n\tobjectFormat = sha256\n";

    #[test]
    fn values_are_found_by_section_and_key_in_any_case() {
        assert_eq!(values(TEXT, "core", "hookspath"), [".husky/_", "secondpart"]);
        assert_eq!(values(TEXT, "extensions", "objectformat"), ["sha256"]);
        assert_eq!(values(TEXT, "remote", "hookspath"), Vec::<String>::new());
    }
}
