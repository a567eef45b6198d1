//! Words of a command of git's configuration, and the paths that they may name.
//!
//! A shell executes most of these commands, in the working tree. Its quotes, escapes and home directories are resolved here. What
//! else a shell would put in (variables, the output of commands) is unknown, and counts as the working tree.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::indirect::expand;

/// How much of one command is looked at.
const MAX_COMMAND_BYTES: usize = 16 << 10;
/// Most words of one command that are looked at.
const MAX_WORDS: usize = 128;
/// Longest of them. A longer one in quotes is split itself.
const MAX_WORD_BYTES: usize = 1024;
/// Most paths that one command may name.
const MAX_PATHS: usize = 512;
/// Most texts of one command that are split: the command itself, and what is quoted or substituted in it.
const MAX_TEXTS: usize = 32;
/// Most directories that a command changes to.
const MAX_DIRECTORIES: usize = 4;
/// What stands in a word for what only a shell knows. No value of git's configuration has this byte.
const UNKNOWN: u8 = 0;
/// The variable with the user's home.
const HOME: &[u8] = b"HOME";
/// Variables of a shell with a name of one character, besides digits.
const SPECIAL: &[u8] = b"@*#?$!-";
/// What ends a word, besides white space.
const BETWEEN: &[u8] = b";&|<>(){}!";
/// What separates parts of a word that may be paths.
const WITHIN: &[u8] = b"=:,@";
/// What a path begins with inside of a word.
const BEGINNINGS: [&[u8]; 4] = [b"../", b"./", b"~/", b"/"];
/// Commands of a shell that a directory follows, maybe after options.
const SHELL_CHANGES: [&[u8]; 2] = [b"cd", b"pushd"];
/// The option of most programs that a directory follows, or is attached to, in which the rest is executed.
const CHANGE: &[u8] = b"-C";
/// Others, with the directory in the next word or after `=`.
const LONG_CHANGES: [&[u8]; 4] = [b"--prefix", b"--directory", b"--cwd", b"--chdir"];

/// Absolute paths that the words of a command may name in a working tree, and whether some were left out.
pub(super) fn paths(command: &[u8], tree: &Path, home: &Path) -> (Vec<PathBuf>, bool) {
    let mut found = Paths {
        home,
        directories: vec![tree.to_owned()],
        paths: Vec::new(),
        known: BTreeSet::new(),
        previous: Vec::new(),
        is_cut: command.len() > MAX_COMMAND_BYTES,
    };
    let command = &command[..command.len().min(MAX_COMMAND_BYTES)];
    let mut texts = VecDeque::from([command.to_owned()]);
    let (mut words, mut known) = (0, 1);
    while let Some(text) = texts.pop_front() {
        let (of_text, inner) = Splitter::new(&text, home).split();
        for word in of_text {
            if word.len() > MAX_WORD_BYTES {
                found.is_cut |= !word.iter().any(u8::is_ascii_whitespace);
                continue;
            }
            if words == MAX_WORDS {
                found.is_cut = true;
                return (found.paths, found.is_cut);
            }
            words += 1;
            found.word(&word);
        }
        found.previous.clear();
        let left = MAX_TEXTS - known;
        found.is_cut |= inner.len() > left;
        known += inner.len().min(left);
        texts.extend(inner.into_iter().take(left));
    }
    (found.paths, found.is_cut)
}

/// Splits a text into words as a shell does.
struct Splitter<'t> {
    text: &'t [u8],
    at: usize,
    home: &'t Path,
    words: Vec<Vec<u8>>,
    word: Vec<u8>,
    /// Quoted and substituted texts, which may be commands.
    inner: Vec<Vec<u8>>,
}

impl<'t> Splitter<'t> {
    fn new(text: &'t [u8], home: &'t Path) -> Self {
        Self { text, at: 0, home, words: Vec::new(), word: Vec::new(), inner: Vec::new() }
    }

    /// Returns the words, and the texts within them that may be commands themselves.
    fn split(mut self) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        while let Some(byte) = self.next() {
            match byte {
                b'\'' => {
                    let quoted = self.until(b'\'');
                    self.add_inner(&quoted);
                    self.word.extend(quoted);
                }
                b'"' => self.quoted(),
                b'\\' => self.escaped(),
                b'$' => self.variable(false),
                b'`' => self.substituted(b'`'),
                byte if byte.is_ascii_whitespace() || BETWEEN.contains(&byte) => self.end_word(),
                byte => self.word.push(byte),
            }
        }
        self.end_word();
        (self.words, self.inner)
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.text.get(self.at).copied()?;
        self.at += 1;
        Some(byte)
    }

    fn end_word(&mut self) {
        let word = std::mem::take(&mut self.word);
        if !word.is_empty() {
            self.words.push(word);
        }
    }

    /// What comes before a byte, which is passed. A part without end is taken as a whole.
    fn until(&mut self, end: u8) -> Vec<u8> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let length = rest.iter().position(|byte| *byte == end).unwrap_or(rest.len());
        self.at = (self.at + length + 1).min(self.text.len());
        rest[..length].to_vec()
    }

    fn escaped(&mut self) {
        if let Some(byte) = self.next().filter(|byte| *byte != b'\n') {
            self.word.push(byte);
        }
    }

    /// What is in double quotes: one part of a word, and maybe a command.
    fn quoted(&mut self) {
        let begin = self.at;
        while let Some(byte) = self.next() {
            match byte {
                b'"' => break,
                b'\\' => self.escaped(),
                b'$' => self.variable(true),
                b'`' => self.substituted(b'`'),
                byte => self.word.push(byte),
            }
        }
        let quoted = self.text.get(begin..self.at).unwrap_or_default();
        let quoted = quoted.strip_suffix(b"\"").unwrap_or(quoted).to_vec();
        self.add_inner(&quoted);
    }

    fn add_inner(&mut self, text: &[u8]) {
        let has_words =
            |byte: &u8| byte.is_ascii_whitespace() || BETWEEN.contains(byte) || b"$`\"'".contains(byte);
        if text.iter().any(has_words) {
            self.inner.push(text.to_vec());
        }
    }

    /// The output of a command, up to `end`.
    fn substituted(&mut self, end: u8) {
        let command = self.until(end);
        self.inner.push(command);
        self.word.push(UNKNOWN);
    }

    /// What a `$` begins: the home, or what is not known. It is a plain character before anything else.
    fn variable(&mut self, is_in_quotes: bool) {
        match self.text.get(self.at) {
            Some(b'(') => {
                self.at += 1;
                let command = self.parenthesized();
                self.inner.push(command);
                self.word.push(UNKNOWN);
            }
            Some(b'{') => {
                self.at += 1;
                let name = self.until(b'}');
                self.value_of(&name);
            }
            Some(first) if first.is_ascii_alphabetic() || *first == b'_' => {
                let rest = self.text.get(self.at..).unwrap_or_default();
                let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
                let length = rest.iter().take_while(|byte| is_name(byte)).count();
                self.at += length;
                self.value_of(&rest[..length]);
            }
            Some(first) if first.is_ascii_digit() || SPECIAL.contains(first) => {
                self.at += 1;
                self.word.push(UNKNOWN);
            }
            Some(b'\'') if !is_in_quotes => {
                self.at += 1;
                self.escaped_quote();
            }
            // These quotes are read as those without a `$` are.
            Some(b'"') if !is_in_quotes => {}
            _ => self.word.push(b'$'),
        }
    }

    /// What is between `$'` and `'`, with its escapes.
    fn escaped_quote(&mut self) {
        let mut quoted = Vec::new();
        while let Some(byte) = self.next() {
            match byte {
                b'\'' => break,
                b'\\' => quoted.extend(self.escape()),
                byte => quoted.push(byte),
            }
        }
        self.add_inner(&quoted);
        self.word.extend(quoted);
    }

    /// The bytes that an escape in such a quote stands for.
    fn escape(&mut self) -> Vec<u8> {
        let Some(byte) = self.next() else { return Vec::new() };
        let is_unicode = matches!(byte, b'u' | b'U');
        let number = match byte {
            b'x' => self.number(16, 2),
            b'u' => self.number(16, 4),
            b'U' => self.number(16, 8),
            b'0'..=b'7' => {
                self.at -= 1;
                self.number(8, 3)
            }
            b'n' => u32::from(b'\n'),
            b't' => u32::from(b'\t'),
            b'r' => u32::from(b'\r'),
            b'a' => 0x07,
            b'b' => 0x08,
            b'e' | b'E' => 0x1b,
            b'f' => 0x0c,
            b'v' => 0x0b,
            other => u32::from(other),
        };
        match char::from_u32(number).filter(|_| is_unicode) {
            _ if number == u32::from(UNKNOWN) => Vec::new(),
            Some(character) => character.to_string().into_bytes(),
            None => number.to_le_bytes()[..1].to_vec(),
        }
    }

    /// A number of at most this many digits.
    fn number(&mut self, base: u32, digits: usize) -> u32 {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let values = rest.iter().take(digits).map_while(|byte| char::from(*byte).to_digit(base));
        let (count, number) =
            values.fold((0, 0_u32), |(count, number), digit| (count + 1, number.wrapping_mul(base) | digit));
        self.at += count;
        number
    }

    fn value_of(&mut self, name: &[u8]) {
        match name {
            HOME => self.word.extend(self.home.as_os_str().as_bytes()),
            _ => self.word.push(UNKNOWN),
        }
    }

    /// What comes before the parenthesis that closes, which is passed.
    fn parenthesized(&mut self) -> Vec<u8> {
        let (begin, mut depth) = (self.at, 1);
        while let Some(byte) = self.next() {
            match byte {
                b'(' => depth += 1,
                b')' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return self.text[begin..self.at - 1].to_vec();
            }
        }
        self.text.get(begin..).unwrap_or_default().to_vec()
    }
}

/// The paths that words may name.
struct Paths<'p> {
    home: &'p Path,
    /// Where relative ones begin: the working tree, and directories that the command changes to.
    directories: Vec<PathBuf>,
    paths: Vec<PathBuf>,
    known: BTreeSet<PathBuf>,
    /// The word before.
    previous: Vec<u8>,
    /// Whether something was left out.
    is_cut: bool,
}

impl Paths<'_> {
    fn word(&mut self, word: &[u8]) {
        let previous = std::mem::replace(&mut self.previous, word.to_vec());
        if SHELL_CHANGES.contains(&previous.as_slice()) && word.len() > 1 && word.starts_with(b"-") {
            // What follows `--` is a directory in any case.
            self.previous = if word == b"--" { CHANGE.to_vec() } else { previous };
            return;
        }
        if is_change(&previous) {
            self.change(word);
        } else if let Some(directory) = attached_directory(word) {
            self.change(directory);
        }
        if previous == b"-m" {
            return self.module(word);
        }
        if let Some(module) = word.strip_prefix(b"-m").filter(|module| !module.is_empty()) {
            self.module(module);
        }
        for part in parts(word) {
            self.part(part);
        }
    }

    /// Notes a directory that the command changes to.
    fn change(&mut self, word: &[u8]) {
        let (Some(path), Some(last)) = (self.resolved(word), self.directories.last()) else { return };
        let directory = last.join(path);
        if self.directories.contains(&directory) {
            return;
        }
        if self.directories.len() > MAX_DIRECTORIES {
            self.is_cut = true;
            return;
        }
        self.directories.push(directory);
    }

    /// A path with a home for its `~`, and without what is not known before it.
    fn resolved(&self, part: &[u8]) -> Option<PathBuf> {
        let known = match part.iter().rposition(|byte| *byte == UNKNOWN) {
            Some(unknown) => {
                let rest = &part[unknown + 1..];
                let slashes = rest.iter().take_while(|byte| **byte == b'/').count();
                &rest[slashes..]
            }
            None => part,
        };
        expand(OsStr::from_bytes(known), self.home).ok().flatten()
    }

    fn part(&mut self, part: &[u8]) {
        if part.starts_with(b"-") || part.starts_with(b"%") {
            return;
        }
        if let Some(path) = self.resolved(part) {
            self.add(&path.join("__main__.py"));
            self.add(&path);
        }
    }

    /// A module of Python.
    fn module(&mut self, name: &[u8]) {
        let parts = name.iter().map(|byte| if *byte == b'.' { b'/' } else { *byte });
        let module = PathBuf::from(OsString::from_vec(parts.filter(|byte| *byte != UNKNOWN).collect()));
        for name in ["__init__.py", "__main__.py"] {
            self.add(&module.join(name));
        }
        self.add(&module.with_extension("py"));
    }

    fn add(&mut self, path: &Path) {
        for directory in &self.directories {
            let path = directory.join(path);
            if self.known.contains(&path) {
                continue;
            }
            if self.paths.len() == MAX_PATHS {
                self.is_cut = true;
                return;
            }
            self.known.insert(path.clone());
            self.paths.push(path);
        }
    }
}

/// Whether the next word is a directory in which the rest is executed. `-C` may be the last of several short options.
fn is_change(word: &[u8]) -> bool {
    let is_short = word.strip_prefix(b"-").is_some_and(|options| options.iter().all(u8::is_ascii_alphabetic));
    SHELL_CHANGES.contains(&word) || LONG_CHANGES.contains(&word) || (is_short && word.ends_with(b"C"))
}

/// The directory of an option that has it in the same word: `-CDIRECTORY`, `--chdir=DIRECTORY`.
fn attached_directory(word: &[u8]) -> Option<&[u8]> {
    let long = || {
        let end = word.iter().position(|byte| *byte == b'=')?;
        LONG_CHANGES.contains(&&word[..end]).then(|| &word[end + 1..])
    };
    word.strip_prefix(CHANGE).or_else(long).filter(|directory| !directory.is_empty())
}

/// A word, and the parts of it that may be paths: the value of an option, what follows `=` and the like, and what begins as a path.
fn parts(word: &[u8]) -> Vec<&[u8]> {
    let is_short = word.len() > 2 && word.starts_with(b"-") && !word.starts_with(b"--");
    let mut parts = vec![word];
    parts.extend(is_short.then(|| &word[2..]));
    parts.extend(word.split(|byte| WITHIN.contains(byte)).skip(1));
    parts.extend(word.split(|byte| WITHIN.contains(byte)).next().filter(|first| first.len() < word.len()));
    let begins = |at: &usize| BEGINNINGS.iter().any(|beginning| word[*at..].starts_with(beginning));
    // The first one of a word that is no path from its beginning.
    let first =
        (0..word.len()).find(begins).filter(|at| *at > 0 && (word[0] == b'-' || !is_name(&word[..*at])));
    parts.extend(first.map(|at| &word[at..]));
    parts
}

/// Whether this is the name of a directory.
fn is_name(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"._-+".contains(byte) || !byte.is_ascii())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{MAX_PATHS, paths};

    fn has(command: &str, path: &str) -> bool {
        let (found, _) = paths(command.as_bytes(), Path::new("/w"), Path::new("/home/u"));
        found.iter().any(|found| found == Path::new(path))
    }

    #[test]
    fn words_of_commands_lead_to_files_and_modules() {
        for (command, path) in [
            ("sh -c 'tools/clean.sh %f'", "/w/tools/clean.sh"),
            ("!f() { ./x; }; f", "/w/x"),
            ("python3 -m tools.textconv", "/w/tools/textconv.py"),
            ("python3 -m tools", "/w/tools/__main__.py"),
            ("python3 -mtools.k", "/w/tools/k.py"),
            ("/work/bin/x --flag", "/work/bin/x"),
            ("env A=1 bash -lc \"tools/w; true\"", "/w/tools/w"),
            ("bash -c \"exec 'to ols/z'\"", "/w/to ols/z"),
            ("run --file=\"to ols/z\"", "/w/to ols/z"),
            ("node:file:tools/rr", "/w/tools/rr"),
        ] {
            assert!(has(command, path), "{command}");
        }
        assert!(!has("/work/bin/x --flag", "/w/--flag"));
    }

    #[test]
    fn home_directories_of_commands_are_known() {
        for command in [
            "~/t/x",
            "$HOME/t/x",
            "${HOME}/t/x",
            "\"$HOME\"/t/x",
            "\"$HOME/t/x\" -a",
            "!~/t/x",
            "ssh -F ~/t/x",
            "ssh -F$HOME/t/x",
            "sh -c '\"$HOME/t/x\"'",
            "cd ~/t && ./x",
            "a=${HOME}/t/x",
        ] {
            assert!(has(command, "/home/u/t/x"), "{command}");
        }
        assert!(has("~root/t/x", "/root/t/x"));
    }

    #[test]
    fn what_only_a_shell_knows_is_the_working_tree() {
        for command in [
            "$(git rev-parse --show-toplevel)/t/x",
            "\"$(git rev-parse --show-toplevel)\"/t/x",
            "\"$(git rev-parse --show-toplevel)/t/x\"",
            "`git rev-parse --show-toplevel`/t/x",
            "\"$PWD\"/t/x",
            "${PWD}/t/x",
            "$(dirname \"$GIT_DIR\")/t/x",
            "$(dirname $(dirname $0))/t/x",
            "$(t/x)",
            "cd \"$(git rev-parse --show-toplevel)\" && ./t/x",
            "a --x=$PWD/t/x",
        ] {
            assert!(has(command, "/w/t/x"), "{command}");
        }
    }

    #[test]
    fn quotes_escapes_and_options_are_resolved() {
        for (command, path) in [
            ("\"./to ols/z\"", "/w/./to ols/z"),
            ("sh -e tools/q\\ r", "/w/tools/q r"),
            ("'tools'/x", "/w/tools/x"),
            ("ssh -F./tools/h", "/w/./tools/h"),
            ("ssh -Ftools/h", "/w/tools/h"),
            ("ruby -r./x -e y", "/w/./x"),
            ("make -C impl -f mk.mk", "/w/impl/mk.mk"),
            ("cd tools && ./f2", "/w/tools/./f2"),
            ("cd impl/a; sh y2", "/w/impl/a/y2"),
            ("cd impl; cd a; sh y2", "/w/impl/a/y2"),
            ("sh -c 'cd impl; sh y2'", "/w/impl/y2"),
        ] {
            assert!(has(command, path), "{command}");
        }
    }

    #[test]
    fn directories_of_options_are_followed() {
        for (command, path) in [
            ("make -Cimpl -f mk.mk", "/w/impl/mk.mk"),
            ("make -sC impl -f mk.mk", "/w/impl/mk.mk"),
            ("make --directory=impl -f mk.mk", "/w/impl/mk.mk"),
            ("make --directory=\"$PWD/impl\" -f mk.mk", "/w/impl/mk.mk"),
            ("npm --prefix=impl run x", "/w/impl/x"),
            ("env --chdir=impl ./x", "/w/impl/./x"),
            ("env --chdir impl ./x", "/w/impl/./x"),
            ("env -Cimpl ./x", "/w/impl/./x"),
            ("cd -P impl && ./x", "/w/impl/./x"),
            ("cd -L -e impl && ./x", "/w/impl/./x"),
            ("cd -- impl && ./x", "/w/impl/./x"),
            ("cd -P -- -impl && ./x", "/w/-impl/./x"),
            ("pushd -- impl; ./x", "/w/impl/./x"),
            ("cd - && ./x", "/w/./x"),
        ] {
            assert!(has(command, path), "{command}");
        }
    }

    #[test]
    fn dollars_take_nothing_that_is_no_name() {
        for (command, path) in [
            ("$'tools/x' %f", "/w/tools/x"),
            ("$'to ols/\\'x' %f", "/w/to ols/'x"),
            ("$'tools\\x2fx\\056y\\u007a'", "/w/tools/x.yz"),
            ("sh -c $'cd tools\\n./x'", "/w/tools/./x"),
            ("$\"tools/x\" %f", "/w/tools/x"),
            ("grep x$;cd tools&&./y", "/w/tools/./y"),
            ("grep \"x$\" tools/y", "/w/tools/y"),
            ("grep \"$'\" tools/y", "/w/tools/y"),
            ("a $ tools/y", "/w/tools/y"),
            ("a$", "/w/a$"),
            ("$1/tools/y", "/w/tools/y"),
            ("\"$@\" tools/y", "/w/tools/y"),
            ("test $# = $?;tools/y $$", "/w/tools/y"),
        ] {
            assert!(has(command, path), "{command}");
        }
    }

    #[test]
    fn what_is_left_out_is_said() {
        let is_cut = |command: &str| paths(command.as_bytes(), Path::new("/w"), Path::new("/h")).1;
        let words = |count: usize| (0..count).map(|number| format!("w{number} ")).collect::<String>();
        let quotes = |count: usize| "\"a b\" ".repeat(count);
        let changes = |count: usize| (0..count).map(|number| format!("cd d{number};")).collect::<String>();
        let parts = |count: usize| (0..count).map(|number| format!(":{number}")).collect::<String>();
        for (fits, too_many) in [
            (words(128), words(129)),
            (quotes(31), quotes(32)),
            (changes(4), changes(5)),
            (parts(200), parts(260)),
            ("x".repeat(1024), "x".repeat(1025)),
            (" ".repeat(16 << 10), " ".repeat((16 << 10) + 1)),
        ] {
            assert!(!is_cut(&fits), "{fits}");
            assert!(is_cut(&too_many), "{too_many}");
        }
    }

    #[test]
    fn commands_without_end_are_bounded() {
        let many = "cd a; b/c=d:e ".repeat(1000);
        let nested = format!("{}x", "$(\"`'".repeat(5000));
        for command in [
            many,
            nested,
            "\\".to_owned(),
            "$".to_owned(),
            "\"".to_owned(),
            "${".to_owned(),
            "$'".to_owned(),
            "$'\\".to_owned(),
            "$'\\U".to_owned() + "f".repeat(9).as_str(),
        ] {
            assert!(paths(command.as_bytes(), Path::new("/w"), Path::new("/h")).0.len() <= MAX_PATHS);
        }
    }
}
