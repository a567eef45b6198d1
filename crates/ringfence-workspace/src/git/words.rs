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
const MAX_WORDS: usize = 64;
/// Longest of them.
const MAX_WORD_BYTES: usize = 1024;
/// Most paths that one command may name.
const MAX_PATHS: usize = 256;
/// Most texts of one command that are split: the command itself, and what is quoted or substituted in it.
const MAX_TEXTS: usize = 32;
/// Most directories that a command changes to.
const MAX_DIRECTORIES: usize = 4;
/// What stands in a word for what only a shell knows. No value of git's configuration has this byte.
const UNKNOWN: u8 = 0;
/// The variable with the user's home.
const HOME: &[u8] = b"HOME";
/// What ends a word, besides white space.
const BETWEEN: &[u8] = b";&|<>(){}!";
/// What separates parts of a word that may be paths.
const WITHIN: &[u8] = b"=:,@";
/// What a path begins with inside of a word.
const BEGINNINGS: [&[u8]; 4] = [b"../", b"./", b"~/", b"/"];
/// Words and options that a directory follows in which the rest is executed.
const CHANGES: [&[u8]; 6] = [b"cd", b"pushd", b"-C", b"--prefix", b"--directory", b"--cwd"];

/// Absolute paths that the words of a command may name in a working tree.
pub(super) fn paths(command: &[u8], tree: &Path, home: &Path) -> Vec<PathBuf> {
    let mut found = Paths {
        home,
        directories: vec![tree.to_owned()],
        paths: Vec::new(),
        known: BTreeSet::new(),
        previous: Vec::new(),
    };
    let command = &command[..command.len().min(MAX_COMMAND_BYTES)];
    let mut texts = VecDeque::from([command.to_owned()]);
    let (mut words, mut split) = (0, 0);
    while let Some(text) = texts.pop_front() {
        let (of_text, inner) = Splitter::new(&text, home).split();
        for word in of_text.into_iter().filter(|word| word.len() <= MAX_WORD_BYTES) {
            words += 1;
            if words <= MAX_WORDS {
                found.word(&word);
            }
        }
        found.previous.clear();
        split += 1 + inner.len();
        texts.extend(inner.into_iter().take(MAX_TEXTS.saturating_sub(split)));
        if words > MAX_WORDS || split > MAX_TEXTS {
            break;
        }
    }
    found.paths
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
                b'$' => self.variable(),
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
                b'$' => self.variable(),
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

    /// What a `$` begins: the home, or what is not known.
    fn variable(&mut self) {
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
            Some(_) => {
                self.at += 1;
                self.word.push(UNKNOWN);
            }
            None => {}
        }
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
}

impl Paths<'_> {
    fn word(&mut self, word: &[u8]) {
        let previous = std::mem::replace(&mut self.previous, word.to_vec());
        if CHANGES.contains(&previous.as_slice()) {
            self.change(word);
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
        let Some(last) = self.directories.last().filter(|_| self.directories.len() <= MAX_DIRECTORIES) else {
            return;
        };
        if let Some(path) = self.resolved(word) {
            let directory = last.join(path);
            self.directories.push(directory);
        }
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
            if self.paths.len() < MAX_PATHS && self.known.insert(path.clone()) {
                self.paths.push(path);
            }
        }
    }
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
        let found = paths(command.as_bytes(), Path::new("/w"), Path::new("/home/u"));
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
    fn commands_without_end_are_bounded() {
        let many = "cd a; b/c=d:e ".repeat(1000);
        let nested = format!("{}x", "$(\"`'".repeat(5000));
        for command in [many, nested, "\\".to_owned(), "$".to_owned(), "\"".to_owned(), "${".to_owned()] {
            assert!(paths(command.as_bytes(), Path::new("/w"), Path::new("/h")).len() <= MAX_PATHS);
        }
    }
}
