//! Commands that git's configuration names, and the files of a working tree that their words lead to.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// Most words of one command that are looked at.
const MAX_WORDS: usize = 32;
/// Longest of them.
const MAX_WORD_BYTES: usize = 1024;

/// What kind of command a key of git's configuration names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandKind {
    /// A hook, which git executes without being asked for it.
    Hook,
    /// An alias, whose words may be any files of a working tree.
    Alias,
    /// Any other.
    Other,
}

/// A command of a configuration, as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfiguredCommand {
    /// What kind it is.
    pub kind: CommandKind,
    /// The value.
    pub value: OsString,
}

/// Keys without a subsection.
const KEYS: [&[u8]; 12] = [
    b"core.askpass",
    b"core.editor",
    b"core.fsmonitor",
    b"core.gitproxy",
    b"core.pager",
    b"core.sshcommand",
    b"credential.helper",
    b"diff.external",
    b"gpg.program",
    b"interactive.difffilter",
    b"sequence.editor",
    b"uploadpack.packobjectshook",
];
/// Sections and keys with a subsection between them.
const FAMILIES: [(&[u8], &[u8]); 18] = [
    (b"browser.", b".cmd"),
    (b"credential.", b".helper"),
    (b"diff.", b".command"),
    (b"diff.", b".textconv"),
    (b"difftool.", b".cmd"),
    (b"filter.", b".clean"),
    (b"filter.", b".process"),
    (b"filter.", b".smudge"),
    (b"gpg.", b".defaultkeycommand"),
    (b"gpg.", b".program"),
    (b"man.", b".cmd"),
    (b"merge.", b".driver"),
    (b"mergetool.", b".cmd"),
    (b"remote.", b".receivepack"),
    (b"remote.", b".uploadpack"),
    (b"trailer.", b".cmd"),
    (b"trailer.", b".command"),
    (b"guitool.", b".cmd"),
];
/// Sections of which every value is a command.
const SECTIONS: [&[u8]; 1] = [b"pager."];
/// Sections of which a value is a command if it begins with `!`.
const SHELLED: [&[u8]; 1] = [b"submodule."];
const ALIAS: &[u8] = b"alias.";

/// What kind of command a setting names, if it names one. Section and key of its name are in lower case.
pub(super) fn kind_of(name: &[u8], value: &[u8]) -> Option<CommandKind> {
    if name.starts_with(b"hook.") && name.ends_with(b".command") {
        return Some(CommandKind::Hook);
    }
    let of_family = || {
        let fits = |(section, key): &(&[u8], &[u8])| {
            name.len() > section.len() + key.len() && name.starts_with(section) && name.ends_with(key)
        };
        FAMILIES.iter().any(fits)
    };
    let starts = |sections: &[&[u8]]| sections.iter().any(|section| name.starts_with(section));
    if value.starts_with(b"!") && name.starts_with(ALIAS) {
        return Some(CommandKind::Alias);
    }
    let is_command = KEYS.contains(&name)
        || of_family()
        || starts(&SECTIONS)
        || (value.starts_with(b"!") && starts(&SHELLED));
    is_command.then_some(CommandKind::Other)
}

impl ConfiguredCommand {
    /// Paths that its words may name, as they are written: files, modules of Python, and directories of programs.
    pub fn paths(&self) -> Vec<PathBuf> {
        let is_between = |byte: &u8| byte.is_ascii_whitespace() || b"'\"`$(){};|&<>=!".contains(byte);
        let words = self.value.as_bytes().split(is_between);
        let words = words.filter(|word| !word.is_empty() && word.len() <= MAX_WORD_BYTES).take(MAX_WORDS);
        let (mut paths, mut is_module) = (Vec::new(), false);
        for word in words {
            let path = PathBuf::from(OsStr::from_bytes(word));
            if std::mem::replace(&mut is_module, word == b"-m") {
                let parts = word.iter().map(|byte| if *byte == b'.' { b'/' } else { *byte });
                let module = PathBuf::from(OsString::from_vec(parts.collect()));
                paths.extend(["__init__.py", "__main__.py"].map(|name| module.join(name)));
                paths.push(module.with_extension("py"));
            } else if !word.starts_with(b"-") && !word.starts_with(b"%") {
                paths.push(path.join("__main__.py"));
                paths.push(path);
            }
        }
        paths
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{CommandKind, ConfiguredCommand, kind_of};

    #[test]
    fn keys_that_name_commands_are_known() {
        assert_eq!(kind_of(b"hook.x.command", b"y"), Some(CommandKind::Hook));
        assert_eq!(kind_of(b"alias.x", b"!y"), Some(CommandKind::Alias));
        for (name, value) in [
            ("filter.x.clean", "y"),
            ("diff.a.b.textconv", "y"),
            ("merge.x.driver", "y"),
            ("core.fsmonitor", "y"),
            ("credential.https://x.helper", "y"),
            ("pager.log", "y"),
            ("submodule.x.update", "!y"),
        ] {
            assert_eq!(kind_of(name.as_bytes(), value.as_bytes()), Some(CommandKind::Other), "{name}");
        }
        for (name, value) in [
            ("alias.x", "status"),
            ("core.bare", "true"),
            ("filter.x.required", "true"),
            ("filter.clean", "y"),
        ] {
            assert_eq!(kind_of(name.as_bytes(), value.as_bytes()), None, "{name}");
        }
    }

    #[test]
    fn words_of_commands_lead_to_files_and_modules() {
        let paths = |value: &str| ConfiguredCommand { kind: CommandKind::Other, value: value.into() }.paths();
        let has = |value: &str, path: &str| paths(value).iter().any(|found| found == Path::new(path));
        assert!(has("sh -c 'tools/clean.sh %f'", "tools/clean.sh"));
        assert!(has("!f() { ./x; }; f", "./x"));
        assert!(has("python3 -m tools.textconv", "tools/textconv.py"));
        assert!(has("python3 -m tools", "tools/__main__.py"));
        assert!(has("/work/bin/x --flag", "/work/bin/x") && !has("/work/bin/x --flag", "--flag"));
    }
}
