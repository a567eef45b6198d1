//! Commands that git's configuration names, and the files of a working tree that their words lead to.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::words;

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
const KEYS: [&[u8]; 20] = [
    b"core.alternaterefscommand",
    b"core.askpass",
    b"core.editor",
    b"core.fsmonitor",
    b"core.gitproxy",
    b"core.pager",
    b"core.sshcommand",
    b"credential.helper",
    b"diff.external",
    b"gc.recentobjectshook",
    b"gpg.program",
    b"imap.tunnel",
    b"instaweb.httpd",
    b"interactive.difffilter",
    b"sendemail.cccmd",
    b"sendemail.headercmd",
    b"sendemail.sendmailcmd",
    b"sendemail.tocmd",
    b"sequence.editor",
    b"uploadpack.packobjectshook",
];
/// Sections and keys with a subsection between them.
const FAMILIES: [(&[u8], &[u8]); 31] = [
    (b"browser.", b".cmd"),
    (b"browser.", b".path"),
    (b"credential.", b".helper"),
    (b"diff.", b".command"),
    (b"diff.", b".textconv"),
    (b"difftool.", b".cmd"),
    (b"difftool.", b".path"),
    (b"filter.", b".clean"),
    (b"filter.", b".process"),
    (b"filter.", b".smudge"),
    (b"gpg.", b".defaultkeycommand"),
    (b"gpg.", b".program"),
    (b"guitool.", b".cmd"),
    (b"lfs.customtransfer.", b".args"),
    (b"lfs.customtransfer.", b".path"),
    (b"lfs.extension.", b".clean"),
    (b"lfs.extension.", b".smudge"),
    (b"man.", b".cmd"),
    (b"man.", b".path"),
    (b"merge.", b".driver"),
    (b"mergetool.", b".cmd"),
    (b"mergetool.", b".path"),
    (b"remote.", b".receivepack"),
    (b"remote.", b".uploadpack"),
    (b"sendemail.", b".cccmd"),
    (b"sendemail.", b".headercmd"),
    (b"sendemail.", b".sendmailcmd"),
    (b"sendemail.", b".tocmd"),
    (b"tar.", b".command"),
    (b"trailer.", b".cmd"),
    (b"trailer.", b".command"),
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
    /// Absolute paths that its words may name in a working tree: files, modules of Python, and directories of programs.
    pub fn paths(&self, tree: &Path, home: &Path) -> Vec<PathBuf> {
        self.bounded_paths(tree, home).0
    }

    /// The same, and whether some were left out, for the command has too many.
    pub fn bounded_paths(&self, tree: &Path, home: &Path) -> (Vec<PathBuf>, bool) {
        words::paths(self.value.as_bytes(), tree, home)
    }
}

#[cfg(test)]
mod tests {
    use super::{CommandKind, kind_of};

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
            ("gc.recentobjectshook", "y"),
            ("core.alternaterefscommand", "y"),
            ("sendemail.tocmd", "y"),
            ("sendemail.me.tocmd", "y"),
            ("imap.tunnel", "y"),
            ("tar.zz.command", "y"),
            ("mergetool.x.path", "y"),
            ("difftool.x.path", "y"),
            ("lfs.customtransfer.x.path", "y"),
            ("lfs.extension.x.clean", "y"),
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
}
