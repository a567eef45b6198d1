//! What programs execute in a user's home, or take commands from: one table for what is protected there, for what links of the home
//! lead to, for workspaces that are refused, and for the report at the end of a run.
//!
//! Paths are relative to the home; one that ends with a slash is a directory. Secrets of the presets are part of it too: the
//! configuration of `ssh` and of the agent CLIs lies beside their keys.

use std::path::Path;

/// What the presets protect by name (`files.protect`): it is reserved where it is missing.
pub(super) const PROTECTED: [&str; 79] = [
    // Git, and other version control systems.
    ".gitconfig",
    ".config/git/",
    ".config/jj/",
    ".hgrc",
    // Shells, sessions and terminals.
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".bash_logout",
    ".bash_aliases",
    ".profile",
    ".pam_environment",
    ".xprofile",
    ".xsessionrc",
    ".inputrc",
    ".zshrc",
    ".zprofile",
    ".zshenv",
    ".zlogin",
    ".zlogout",
    ".cshrc",
    ".login",
    ".kshrc",
    ".tmux.conf",
    ".screenrc",
    ".config/autostart/",
    ".config/environment.d/",
    ".config/systemd/",
    ".local/share/systemd/",
    ".local/share/applications/",
    ".config/plasma-workspace/",
    ".config/fish/",
    ".config/zsh/",
    ".config/nushell/",
    ".config/direnv/",
    ".config/mise/",
    ".config/starship.toml",
    ".config/tmux/",
    ".config/kitty/",
    ".config/alacritty/",
    ".config/wezterm/",
    ".config/ghostty/",
    ".config/i3/",
    ".config/sway/",
    ".config/hypr/",
    // Programs that are found by their names.
    ".local/bin/",
    "bin/",
    ".cargo/bin/",
    ".cargo/env",
    ".nvm/nvm.sh",
    // Editors.
    ".vimrc",
    ".vim/",
    ".emacs.d/",
    ".config/emacs/",
    ".config/nvim/",
    ".config/helix/",
    ".config/zed/",
    ".config/Code/User/",
    ".config/Cursor/User/",
    ".config/VSCodium/User/",
    // Package managers, build tools and interpreters.
    ".cargo/config.toml",
    ".config/pip/",
    ".config/uv/",
    ".local/lib/",
    ".yarnrc",
    ".yarnrc.yml",
    ".bunfig.toml",
    ".gradle/init.gradle",
    ".gradle/init.d/",
    ".gradle/gradle.properties",
    ".Rprofile",
    ".gdbinit",
    ".lldbinit",
    ".psqlrc",
    // Agent CLIs.
    ".config/opencode/",
    ".gemini/",
    ".cursor/",
    ".qwen/",
    ".config/crush/",
    ".aider.conf.yml",
];

/// What is protected where it exists. An empty file in its place would keep another one from being read, or a session from
/// starting.
pub const PROTECTED_IF_PRESENT: [&str; 32] = [
    ".emacs",
    ".emacs.el",
    ".tcshrc",
    ".xinitrc",
    ".xsession",
    ".wezterm.lua",
    ".gvimrc",
    ".config/vim/",
    ".cargo/config",
    ".ripgreprc",
    ".m2/settings.xml",
    ".condarc",
    ".irbrc",
    ".pryrc",
    ".sqliterc",
    ".bashrc.d/",
    ".oh-my-zsh/",
    ".local/share/dbus-1/",
    ".local/share/gnome-shell/",
    ".local/share/nvim/site/",
    ".config/openbox/",
    ".config/lxsession/",
    ".vnc/",
    ".copilot/",
    "go/bin/",
    ".bun/bin/",
    ".deno/bin/",
    ".npm-global/bin/",
    ".volta/bin/",
    ".pyenv/shims/",
    ".asdf/shims/",
    ".rbenv/shims/",
];

/// Directories within these and within secrets whose entries programs execute too.
pub const DEEPER_DIRECTORIES: [&str; 28] = [
    ".config/systemd/user/",
    ".local/share/systemd/user/",
    ".config/fish/conf.d/",
    ".config/fish/functions/",
    ".config/nvim/lua/",
    ".config/nvim/plugin/",
    ".vim/plugin/",
    ".config/opencode/agent/",
    ".config/opencode/agents/",
    ".config/opencode/command/",
    ".config/opencode/commands/",
    ".config/opencode/plugin/",
    ".config/opencode/plugins/",
    ".config/opencode/skill/",
    ".config/opencode/skills/",
    ".config/opencode/tool/",
    ".config/opencode/tools/",
    ".claude/agents/",
    ".claude/commands/",
    ".claude/hooks/",
    ".claude/output-styles/",
    ".claude/rules/",
    ".claude/skills/",
    ".codex/prompts/",
    ".codex/rules/",
    ".codex/skills/",
    ".docker/cli-plugins/",
    ".ssh/config.d/",
];

/// Secrets that are files. All others of the presets are directories.
const SECRET_FILES: [&str; 6] =
    [".netrc", ".git-credentials", ".npmrc", ".pypirc", ".cargo/credentials.toml", ".claude.json"];

/// Secrets in which nothing is executed that a user links to from elsewhere: profiles of browsers, and the state directory, whose
/// links are known by themselves.
const NOT_EXECUTED: [&str; 4] = [".mozilla", ".config/google-chrome", ".config/chromium", ".ringfence"];

/// Whether programs take something from a secret or from what is in it.
pub fn is_executed_secret(name: &str) -> bool {
    !NOT_EXECUTED.contains(&name)
}

/// What reserves the place of a secret that is missing: the name of a directory ends with a slash.
pub fn reserved_secret(name: &str) -> String {
    let is_of_presets = super::preset::SECRETS.iter().any(|secret| secret.strip_prefix("~/") == Some(name));
    let ending = if is_of_presets && !SECRET_FILES.contains(&name) { "/" } else { "" };
    format!("{name}{ending}")
}

fn names() -> impl Iterator<Item = &'static str> {
    let secrets = super::preset::SECRETS.iter().filter_map(|secret| secret.strip_prefix("~/"));
    let secrets = secrets.filter(|name| is_executed_secret(name));
    PROTECTED.into_iter().chain(PROTECTED_IF_PRESENT).chain(secrets)
}

/// Whether a path of the home is one of those that programs execute, or is in such a directory.
pub fn is_executed(below_home: &Path) -> bool {
    names().any(|name| below_home.starts_with(name))
}

/// Whether such a path may be in a directory of the home.
pub fn may_hold_executed(below_home: &Path) -> bool {
    is_executed(below_home) || names().any(|name| Path::new(name).starts_with(below_home))
}

/// The directory of programs and configuration that a path of the home is in, or is itself. Directories of secrets are hidden.
pub fn directory_of(below_home: &Path) -> Option<&'static str> {
    let directories = PROTECTED.into_iter().chain(PROTECTED_IF_PRESENT).filter(|name| name.ends_with('/'));
    directories.into_iter().find(|name| below_home.starts_with(name))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{DEEPER_DIRECTORIES, directory_of, is_executed, names, reserved_secret};

    #[test]
    fn deeper_directories_are_within_the_table() {
        for deeper in DEEPER_DIRECTORIES {
            assert!(is_executed(Path::new(deeper)), "{deeper}");
        }
    }

    #[test]
    fn no_name_of_the_table_is_within_another() {
        for name in names() {
            let around = names().find(|other| *other != name && Path::new(name).starts_with(other));
            assert_eq!(around, None, "{name}");
        }
    }

    #[test]
    fn directories_of_programs_and_configuration_are_known() {
        for (path, directory) in [
            (".local/bin", Some(".local/bin/")),
            (".config/systemd/user", Some(".config/systemd/")),
            (".config/nvim/lua", Some(".config/nvim/")),
            (".ssh", None),
            (".config", None),
            (".ssh2", None),
            ("project", None),
            ("", None),
        ] {
            assert_eq!(directory_of(Path::new(path)), directory, "{path}");
        }
        assert_eq!(reserved_secret(".ssh"), ".ssh/");
        assert_eq!(reserved_secret(".netrc"), ".netrc");
        assert_eq!(reserved_secret("own/token"), "own/token");
    }
}
