//! The few values of a git configuration file that decide how a repository is treated, read as git reads them.
//!
//! A run may have written the file, and git on the host acts on what *it* reads there. So this follows git's own parser
//! byte by byte: what git takes for a value is one here, and where git gives up, reading ends.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use super::commands::{ConfiguredCommand, kind_of};

/// One value of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Setting {
    /// Section, subsection if there is one, and key, joined by dots. Section and key are in lower case.
    name: Vec<u8>,
    /// `None` is a key without `=`.
    value: Option<Vec<u8>>,
}

/// The values of a key such as `core.hookspath`, in the order of the file. Section and key are compared in lower case; a
/// key in a subsection does not count, and neither does one without a value.
pub(crate) fn values(content: &[u8], section: &str, key: &str) -> Vec<OsString> {
    let of_key = entries(content, section).into_iter().filter(|(name, _)| name == key);
    of_key.filter_map(|(_, value)| value).collect()
}

/// The keys of a section, in lower case, and their values.
pub(crate) fn entries(content: &[u8], section: &str) -> Vec<(String, Option<OsString>)> {
    let of_section = |Setting { name, value }: Setting| {
        let key = name.strip_prefix(section.as_bytes())?.strip_prefix(b".")?;
        let key = std::str::from_utf8(key).ok().filter(|key| !key.contains('.'))?;
        Some((key.to_owned(), value.map(OsString::from_vec)))
    };
    settings(content).into_iter().filter_map(of_section).collect()
}

/// The names of remotes, as far as they are text.
pub(crate) fn remotes(content: &[u8]) -> BTreeSet<String> {
    let of_remote = |Setting { name, .. }: Setting| {
        let rest = name.strip_prefix(b"remote.")?;
        let end = rest.iter().rposition(|byte| *byte == b'.')?;
        String::from_utf8(rest[..end].to_vec()).ok()
    };
    settings(content).into_iter().filter_map(of_remote).collect()
}

/// Paths that a configuration names, as they are written.
#[derive(Debug, Default)]
pub(crate) struct NamedPaths {
    /// The values of `core.hooksPath`.
    pub(crate) hooks: Vec<OsString>,
    /// The values of `init.templateDir`.
    pub(crate) templates: Vec<OsString>,
    /// Files that it includes on whatever condition.
    pub(crate) includes: Vec<OsString>,
    /// The values of `core.worktree`.
    pub(crate) worktrees: Vec<OsString>,
    /// Commands that git executes.
    pub(crate) commands: Vec<ConfiguredCommand>,
}

/// Returns the paths that a configuration names.
pub(crate) fn named_paths(content: &[u8]) -> NamedPaths {
    let mut paths = NamedPaths::default();
    for Setting { name, value } in settings(content) {
        let to = match name.as_slice() {
            b"core.hookspath" => &mut paths.hooks,
            b"init.templatedir" => &mut paths.templates,
            b"core.worktree" => &mut paths.worktrees,
            name if is_include(name) => &mut paths.includes,
            name => {
                let command = value.and_then(|value| Some((kind_of(name, &value)?, value)));
                paths.commands.extend(command.map(|(kind, value)| {
                    let value = OsString::from_vec(value);
                    ConfiguredCommand { kind, value }
                }));
                continue;
            }
        };
        to.extend(value.map(OsString::from_vec));
    }
    paths
}

/// A condition is the subsection of `includeIf`, so there are two dots at least.
fn is_include(name: &[u8]) -> bool {
    let condition = name.strip_prefix(b"includeif.").and_then(|rest| rest.strip_suffix(b".path"));
    name == b"include.path" || condition.is_some()
}

/// Sections and keys whose values are credentials, or are files and programs with some.
const CREDENTIAL_SECTIONS: [&[u8]; 2] = [b"credential.", b"sendemail."];
const CREDENTIAL_KEYS: [&[u8]; 8] = [
    b".extraheader",
    b".cookiefile",
    b".savecookies",
    b".pass",
    b".password",
    b".smtppass",
    b".token",
    b".oauthtoken",
];
/// Schemes whose user is no credential: the server asks for a key.
const SCHEMES_WITH_USER: [&[u8]; 3] = [b"ssh", b"git+ssh", b"ssh+git"];

/// The same configuration without credentials, unless it has none: settings that hold them are left out, and so are users and passwords
/// in addresses. What git does not read of it, comments too, is not there then.
pub(crate) fn without_credentials(content: &[u8]) -> Option<Vec<u8>> {
    let settings = settings(content);
    let clean: Vec<Setting> =
        settings.iter().filter(|setting| !is_credential(&setting.name)).map(stripped).collect();
    (clean != settings).then(|| written(&clean))
}

fn is_credential(name: &[u8]) -> bool {
    CREDENTIAL_SECTIONS.iter().any(|section| name.starts_with(section))
        || CREDENTIAL_KEYS.iter().any(|key| name.ends_with(key))
}

/// A setting whose addresses have no users and passwords, in its section (`url.BASE.insteadOf`) neither.
fn stripped(setting: &Setting) -> Setting {
    Setting { name: without_users(&setting.name), value: setting.value.as_deref().map(without_users) }
}

/// A text without the users and passwords of addresses in it.
fn without_users(text: &[u8]) -> Vec<u8> {
    let mut clean = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.windows(3).position(|bytes| bytes == b"://") {
        let (before, after) = rest.split_at(at + 3);
        clean.extend_from_slice(before);
        let is_end =
            |byte: &u8| matches!(byte, b'/' | b'?' | b'#' | b'"' | b'\'') || byte.is_ascii_whitespace();
        let end = after.iter().position(is_end).unwrap_or(after.len());
        let (authority, next) = after.split_at(end);
        let user = authority.iter().rposition(|byte| *byte == b'@').map_or(0, |at| at + 1);
        let (user, host) = authority.split_at(user);
        let scheme = before[..at].rsplit(|byte| !byte.is_ascii_alphanumeric() && *byte != b'+').next();
        if scheme.is_some_and(|scheme| SCHEMES_WITH_USER.contains(&scheme)) && !user.is_empty() {
            clean.extend(user.iter().take_while(|byte| !matches!(byte, b':' | b'@')));
            clean.push(b'@');
        }
        clean.extend_from_slice(host);
        rest = next;
    }
    clean.extend_from_slice(rest);
    clean
}

/// Settings as git writes them.
fn written(settings: &[Setting]) -> Vec<u8> {
    let mut text = Vec::new();
    let mut last = None;
    for Setting { name, value } in settings {
        let key = name.iter().rposition(|byte| *byte == b'.').map_or(0, |dot| dot + 1);
        let (section, key) = name.split_at(key);
        if last != Some(section) {
            write_section(section, &mut text);
            last = Some(section);
        }
        text.push(b'\t');
        text.extend_from_slice(key);
        if let Some(value) = value {
            text.extend_from_slice(b" = \"");
            value.iter().for_each(|byte| match byte {
                b'\n' => text.extend_from_slice(b"\\n"),
                byte => text.extend(escape(*byte)),
            });
            text.push(b'"');
        }
        text.push(b'\n');
    }
    text
}

/// The line before the settings of a section, whose name ends in a dot.
fn write_section(section: &[u8], text: &mut Vec<u8>) {
    let name = section.strip_suffix(b".").unwrap_or(section);
    let dot = name.iter().position(|byte| *byte == b'.');
    let (name, subsection) = name.split_at(dot.unwrap_or(name.len()));
    text.push(b'[');
    text.extend_from_slice(name);
    if let Some(subsection) = subsection.strip_prefix(b".") {
        text.extend_from_slice(b" \"");
        text.extend(subsection.iter().flat_map(|byte| escape(*byte)));
        text.push(b'"');
    }
    text.extend_from_slice(b"]\n");
}

/// A byte between quotes.
fn escape(byte: u8) -> impl Iterator<Item = u8> + use<> {
    matches!(byte, b'"' | b'\\').then_some(b'\\').into_iter().chain([byte])
}

/// All values of a file, up to the first line that git refuses.
fn settings(content: &[u8]) -> Vec<Setting> {
    let mut parser = Parser { rest: content.strip_prefix(BYTE_ORDER_MARK).unwrap_or(content), at_end: false };
    let mut found = Vec::new();
    // Git gives up at the first line that it does not understand.
    let _ = parser.file(&mut found);
    found
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A line that git refuses.
struct Malformed;

struct Parser<'a> {
    rest: &'a [u8],
    at_end: bool,
}

impl Parser<'_> {
    /// The next byte. The end of a line may be CR LF, and the end of the file is one too.
    fn next(&mut self) -> u8 {
        if self.rest.starts_with(b"\r\n") {
            self.rest = &self.rest[1..];
        }
        match self.rest.split_first() {
            Some((byte, rest)) => {
                self.rest = rest;
                *byte
            }
            None => {
                self.at_end = true;
                b'\n'
            }
        }
    }

    fn file(&mut self, found: &mut Vec<Setting>) -> Result<(), Malformed> {
        let mut header = Vec::new();
        let mut in_comment = false;
        loop {
            match self.next() {
                b'\n' if self.at_end => return Ok(()),
                b'\n' => in_comment = false,
                _ if in_comment => {}
                byte if is_space(byte) => {}
                b'#' | b';' => in_comment = true,
                b'[' => header = self.header()?,
                byte if byte.is_ascii_alphabetic() => found.push(self.entry(&header, byte)?),
                _ => return Err(Malformed),
            }
        }
    }

    /// `section]`, `section.subsection]` or `section "subsection"]`, as the beginning of a name.
    fn header(&mut self) -> Result<Vec<u8>, Malformed> {
        let mut name = Vec::new();
        loop {
            match self.next() {
                _ if self.at_end => return Err(Malformed),
                b']' => break,
                byte if is_space(byte) => {
                    self.subsection(byte, &mut name)?;
                    break;
                }
                byte if is_key_byte(byte) || byte == b'.' => name.push(byte.to_ascii_lowercase()),
                _ => return Err(Malformed),
            }
        }
        name.push(b'.');
        Ok(name)
    }

    /// The rest of `section "subsection"]` from the space on.
    fn subsection(&mut self, mut byte: u8, name: &mut Vec<u8>) -> Result<(), Malformed> {
        while is_space(byte) {
            if byte == b'\n' {
                return Err(Malformed);
            }
            byte = self.next();
        }
        if byte != b'"' {
            return Err(Malformed);
        }
        name.push(b'.');
        loop {
            let mut byte = self.next();
            if byte == b'"' {
                break;
            }
            if byte == b'\\' {
                byte = self.next();
            }
            if byte == b'\n' {
                return Err(Malformed);
            }
            name.push(byte);
        }
        if self.next() == b']' { Ok(()) } else { Err(Malformed) }
    }

    /// `key`, or `key = value`, from the second byte of the key on.
    fn entry(&mut self, header: &[u8], first: u8) -> Result<Setting, Malformed> {
        let mut name = header.to_vec();
        name.push(first.to_ascii_lowercase());
        let mut byte = self.next();
        while is_key_byte(byte) {
            name.push(byte.to_ascii_lowercase());
            byte = self.next();
        }
        while matches!(byte, b' ' | b'\t') {
            byte = self.next();
        }
        let value = match byte {
            b'\n' => None,
            b'=' => Some(until_zero(self.value()?)),
            _ => return Err(Malformed),
        };
        Ok(Setting { name: until_zero(name), value })
    }

    /// A value without quotes, escapes, comments and the space around it.
    fn value(&mut self) -> Result<Vec<u8>, Malformed> {
        let (mut value, mut is_quoted, mut in_comment) = (Vec::new(), false, false);
        // Where the space begins that ends the value, if nothing follows.
        let mut trimmed = None;
        loop {
            let byte = match self.next() {
                b'\n' if is_quoted => return Err(Malformed),
                b'\n' => break,
                _ if in_comment => continue,
                byte if is_space(byte) && !is_quoted => {
                    if !value.is_empty() {
                        trimmed.get_or_insert(value.len());
                        value.push(byte);
                    }
                    continue;
                }
                b'#' | b';' if !is_quoted => {
                    in_comment = true;
                    continue;
                }
                byte => byte,
            };
            trimmed = None;
            match byte {
                b'\\' => value.extend(self.escaped()?),
                b'"' => is_quoted = !is_quoted,
                byte => value.push(byte),
            }
        }
        value.truncate(trimmed.unwrap_or(value.len()));
        Ok(value)
    }

    /// What stands for itself, or the end of a line, which goes on with the next one.
    fn escaped(&mut self) -> Result<Option<u8>, Malformed> {
        match self.next() {
            b'\n' => Ok(None),
            b't' => Ok(Some(b'\t')),
            b'b' => Ok(Some(8)),
            b'n' => Ok(Some(b'\n')),
            byte @ (b'\\' | b'"') => Ok(Some(byte)),
            _ => Err(Malformed),
        }
    }
}

/// Git compares names and uses values as C strings.
fn until_zero(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
    bytes
}

/// What git takes for space.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

fn is_key_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-'
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests write files of their own and run git")]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::{Setting, named_paths, settings, values};

    const TEXT: &[u8] = b"# comment\n[core]\n\tbare = false\n\tHooksPath = \".husky/_\" ; why\n[remote \"origin\"]\n\thookspath = no\n\
                        [Core] hookspath=second\\\npart\n[extensions]\n\tobjectFormat = sha256\n";

    #[test]
    fn credentials_are_left_out_and_all_else_stays() {
        let secret = b"# s3cret\n[core]\n\tbare = false\n\teditor = \"a \\\"b\\\" \\\\ ; c\" # why\n\tlogAllRefUpdates\n\
            [http \"https://h.example/\"]\n\textraheader = AUTHORIZATION: basic s3cret\n\tsslVerify = false\n\
            [http]\n\tcookieFile = /s3cret\n\tproxy = http://me:s3cret@proxy:1/\n\
            [credential]\n\thelper = store --file=/s3cret\n[credential \"https://h\"]\n\tusername = s3cret\n\
            [remote \"o\\\"x.y\"]\n\turl = https://s3cret@h.example/a@b\n\tpushurl = https://u:s3cret@h.example\n\
            \tfetch = +refs/heads/*:refs/remotes/o/*\n[remote \"ssh\"]\n\turl = ssh://git:s3cret@h.example/r\n\
            [url \"https://s3cret@h.example/\"]\n\tinsteadOf = gh:\n[user]\n\temail = me@h.example\n";
        let clean = super::without_credentials(secret).unwrap();
        let text = String::from_utf8(clean.clone()).unwrap();
        assert!(!text.contains("s3cret"), "{text}");
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("config");
        std::fs::write(&file, &clean).unwrap();
        let listed = Command::new("git").args(["config", "--list", "--file"]).arg(&file).output().unwrap();
        assert_eq!(
            String::from_utf8(listed.stdout).unwrap(),
            "core.bare=false\ncore.editor=a \"b\" \\ ; c\ncore.logallrefupdates\nhttp.https://h.example/.sslverify=false\n\
             http.proxy=http://proxy:1/\nremote.o\"x.y.url=https://h.example/a@b\nremote.o\"x.y.pushurl=https://h.example\n\
             remote.o\"x.y.fetch=+refs/heads/*:refs/remotes/o/*\nremote.ssh.url=ssh://git@h.example/r\n\
             url.https://h.example/.insteadof=gh:\nuser.email=me@h.example\n"
        );
        assert_eq!(super::without_credentials(TEXT), None);
        assert_eq!(super::without_credentials(&clean), None);
    }

    #[test]
    fn values_are_found_by_section_and_key_in_any_case() {
        assert_eq!(values(TEXT, "core", "hookspath"), [".husky/_", "secondpart"]);
        assert_eq!(values(TEXT, "extensions", "objectformat"), ["sha256"]);
        assert!(values(TEXT, "remote", "hookspath").is_empty());
    }

    #[test]
    fn includes_are_found_on_any_condition_and_after_odd_lines() {
        let text = b"\xef\xbb\xbf[include] path = a\n# a comment that ends in \\\n[includeIf \"gitdir:~/x]y/\"]\n\tPath = \"b c\"\n\
                    [includeif \"onbranch:main\"] path=d\n[include \"no\"]\npath = e\n[core]\npath = f\n[includeif]path=g\n[a][include]path=h";
        assert_eq!(named_paths(text).includes, ["a", "b c", "d", "h"]);
    }

    /// What git itself reads in a file. One that git refuses has no values at all.
    fn by_git(file: &Path) -> Option<Vec<Setting>> {
        let mut command = Command::new("git");
        command.args(["config", "--no-includes", "--list", "-z", "--file"]).arg(file);
        let output =
            command.env("GIT_CONFIG_NOSYSTEM", "1").env("LC_ALL", "C").current_dir("/").output().unwrap();
        let one = |line: &[u8]| match line.iter().position(|byte| *byte == b'\n') {
            Some(end) => Setting { name: line[..end].to_vec(), value: Some(line[end + 1..].to_vec()) },
            None => Setting { name: line.to_vec(), value: None },
        };
        let lines = output.stdout.strip_suffix(b"\0").unwrap_or_default().split(|byte| *byte == 0);
        let found = if output.stdout.is_empty() { Vec::new() } else { lines.map(one).collect() };
        output.status.success().then_some(found)
    }

    /// Pieces of which files are made that come close to what git understands.
    const PIECES: [&[u8]; 44] = [
        b"[core]",
        b"[Core]",
        b"[core ",
        b"\"x\"]",
        b"\"y\\\"z\"]",
        b"[include]",
        b"[includeIf \"gitdir:/a]b\"]",
        b"[includeif.on]",
        b"hooksPath",
        b"path",
        b"HOOKSPATH",
        b"a-b",
        b"1x",
        b"=",
        b" = ",
        b"\t=\t",
        b"\n",
        b"\r\n",
        b"\r",
        b"\\\n",
        b"\\\r\n",
        b"\\",
        b"\"",
        b"\\\"",
        b"\\t",
        b"\\x",
        b"#",
        b";",
        b" ",
        b"\t",
        b"value",
        b"a b",
        b"a  b",
        b"~/x",
        b"../y",
        b"]",
        b"[",
        b".",
        b"\xef\xbb\xbf",
        b"\0",
        b"\x0b",
        b"\xff",
        b"[core \"hookspath\0\"]",
        b"[a.B \"c\"]",
    ];

    #[test]
    fn generated_files_are_read_as_git_reads_them() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("config");
        let (mut state, mut read, mut refused) = (0x2545_f491_4f6c_dd1d_u64, 0, 0);
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state >> 33).unwrap() % below
        };
        for _ in 0..1500 {
            let mut content = Vec::new();
            if random(3) > 0 {
                content.extend_from_slice(b"[core]\n");
            }
            for _ in 0..random(12) {
                // Lines that are whole, so that many files are read to their end.
                match random(4) {
                    0 => content.extend_from_slice(b"\n hooksPath = "),
                    1 => content.extend_from_slice(b"\n[include] path="),
                    _ => {}
                }
                content.extend_from_slice(PIECES[random(PIECES.len())]);
            }
            std::fs::write(&file, &content).unwrap();
            match by_git(&file) {
                // The names and values of git's list end at a zero byte as well.
                Some(expected) => {
                    read += 1;
                    assert_eq!(settings(&content), expected, "{:?}", String::from_utf8_lossy(&content));
                }
                None => refused += 1,
            }
        }
        assert!(read > 200 && refused > 200, "{read} {refused}");
    }
}
