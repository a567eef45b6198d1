//! The few values of a git configuration file that decide how a repository is treated.

/// One value of a configuration file.
struct Setting {
    /// In lower case.
    section: String,
    has_subsection: bool,
    /// In lower case.
    key: String,
    value: String,
}

/// The values of a key such as `core.hookspath`, in the order of the file. Section and key are compared in lower case; a
/// key in a subsection does not count.
pub(crate) fn values(text: &str, section: &str, key: &str) -> Vec<String> {
    let of_key = entries(text, section).into_iter().filter(|(name, _)| name == key);
    of_key.map(|(_, value)| value).collect()
}

/// The keys of a section, in lower case, and their values.
pub(crate) fn entries(text: &str, section: &str) -> Vec<(String, String)> {
    let of_section = settings(text).into_iter().filter(|one| !one.has_subsection && one.section == section);
    of_section.map(|one| (one.key, one.value)).collect()
}

/// The files that a configuration includes, on whatever condition.
pub(crate) fn includes(text: &str) -> Vec<String> {
    let is_include = |one: &Setting| match one.section.as_str() {
        "include" => !one.has_subsection,
        "includeif" => one.has_subsection,
        _ => false,
    };
    let included = settings(text).into_iter().filter(|one| is_include(one) && one.key == "path");
    included.map(|one| one.value).collect()
}

fn settings(text: &str) -> Vec<Setting> {
    let (mut section, mut has_subsection) = (String::new(), false);
    let mut found = Vec::new();
    for line in logical_lines(text.strip_prefix('\u{feff}').unwrap_or(text)) {
        let mut line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            (section, has_subsection, line) = parse_header(header);
        }
        found.extend(entry(line).map(|(key, value)| Setting {
            section: section.clone(),
            has_subsection,
            key,
            value,
        }));
    }
    found
}

/// The section of a header without its first bracket, whether it has a subsection, and what follows on the same line.
fn parse_header(header: &str) -> (String, bool, &str) {
    let end = header.find([' ', '\t', '"', ']']).unwrap_or(header.len());
    let (name, rest) = header.split_at(end);
    // A subsection is quoted, and a bracket in quotes ends nothing.
    let (mut quoted, mut escaped) = (false, false);
    let close = rest.find(|character: char| {
        let closes = character == ']' && !quoted;
        quoted ^= character == '"' && !escaped;
        escaped = character == '\\' && !escaped;
        closes
    });
    let after = close.map_or("", |at| &rest[at + 1..]);
    let has_subsection = rest[..close.unwrap_or(rest.len())].contains('"');
    // `[section.subsection]` is the old form of a subsection.
    let (name, old) = name.split_once('.').map_or((name, false), |(name, _)| (name, true));
    (name.to_ascii_lowercase(), has_subsection || old, after)
}

/// Lines, with those joined that end in a backslash. A comment ends with its line.
fn logical_lines(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut open = false;
    for line in text.lines() {
        let is_comment = !open && line.trim_start().starts_with(['#', ';']);
        let (line, goes_on) = match line.strip_suffix('\\').filter(|_| !is_comment) {
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
    use super::{includes, values};

    const TEXT: &str = "# comment\n[core]\n\tbare = false\n\tHooksPath = \".husky/_\" ; why\n[remote \"origin\"]\n\thookspath = no\n\
                        [Core] hookspath=second\\\npart\n[extensions]\n\tobjectFormat = sha256\n";

    #[test]
    fn values_are_found_by_section_and_key_in_any_case() {
        assert_eq!(values(TEXT, "core", "hookspath"), [".husky/_", "secondpart"]);
        assert_eq!(values(TEXT, "extensions", "objectformat"), ["sha256"]);
        assert_eq!(values(TEXT, "remote", "hookspath"), Vec::<String>::new());
    }

    #[test]
    fn includes_are_found_on_any_condition_and_after_odd_lines() {
        let text = "\u{feff}[include] path = a\n# a comment that ends in \\\n[includeIf \"gitdir:~/x]y/\"]\n\tPath = \"b c\"\n\
                    [includeif \"onbranch:main\"] path=d\n[include \"no\"]\npath = e\n[core]\npath = f\n";
        assert_eq!(includes(text), ["a", "b c", "d"]);
    }
}
