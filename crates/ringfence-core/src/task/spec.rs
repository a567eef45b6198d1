//! What a task asks for, in the words of whoever added it. Settings are looked up when it runs.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::de::IntoDeserializer;
use serde::{Deserialize, Deserializer, Serialize};

use super::UnixSeconds;
use crate::config::{WorkspaceKind, shown_url};
use crate::ids::TaskId;
use crate::mode::Mode;
use crate::policy::HostRule;
use crate::units::{Cpus, MemorySize, Seconds};

/// A durable unit of work. All that is left out is up to the agent and the settings.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TaskSpec {
    /// What to do.
    pub prompt: String,
    /// An agent of the settings, or an agent CLI; else the one of the role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Who does it.
    #[serde(default, deserialize_with = "word")]
    pub role: Role,
    /// The larger, the sooner.
    #[serde(default)]
    pub priority: i32,
    /// Tasks of one lane are done one after another: the agent's name, or the workspace where no agent of the settings is
    /// named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<String>,
    /// Tasks that have to be done before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<TaskId>,
    /// Two tasks with the same key are one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Not before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<UnixSeconds>,
    /// Where to work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// What the workspace is made of.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "maybe_word")]
    pub workspace: Option<WorkspaceKind>,
    /// Where it runs.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "maybe_word")]
    pub mode: Option<Mode>,
    /// What it may do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Hosts that it may reach besides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<HostRule>,
    /// Ports of the machine that it may reach.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow_local: Vec<u16>,
    /// Names of variables that it may see, with the values that the daemon has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// With which model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// At which address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// With the agent CLI `command`: what to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// How long an attempt may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Seconds>,
    /// How much memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemorySize>,
    /// How many processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Cpus>,
    /// How many processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pids: Option<u32>,
    /// How often it is tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// Who is told of its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<String>,
}

/// One of several words, written as a text and in no other way.
fn word<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    T::deserialize(String::deserialize(from)?.into_deserializer())
}

/// The same, or nothing.
fn maybe_word<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    Option::<String>::deserialize(from)?.map(|text| T::deserialize(text.into_deserializer())).transpose()
}

/// Why a task was not accepted. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTaskSpec {
    /// There is nothing to do.
    #[error("the prompt is empty")]
    NoPrompt,
    /// The prompt does not fit.
    #[error("the prompt has {0} bytes, and {1} fit")]
    LongPrompt(usize, usize),
    /// A text that cannot be passed on.
    #[error("`{0}` contains a NUL character")]
    Nul(&'static str),
    /// A key, a lane or a model that nobody could find again.
    #[error("`{0}` is not a valid {1}: 1 to 200 visible characters")]
    Name(String, &'static str),
    /// An address that nobody could be told at.
    #[error("`{0}` is not an address that starts with http:// or https:// and names a host alone")]
    Webhook(String),
    /// A directory that could mean anything.
    #[error("the directory {0} is not an absolute path")]
    Directory(PathBuf),
    /// A time that nobody will see.
    #[error("`not_before` is after the year 9999")]
    UnixSeconds,
    /// A number out of bounds.
    #[error("`{0}` must be from 1 to {1}")]
    Bounds(&'static str, u32),
}

impl TaskSpec {
    /// What fits into one argument of a program, with something to spare.
    pub const LONGEST_PROMPT: usize = (128 << 10) - 64;

    /// A task that says nothing but what to do.
    pub fn new(prompt: impl Into<String>) -> Self {
        Self { prompt: prompt.into(), ..Self::default() }
    }

    /// The same as people may see it: addresses with their hosts alone.
    #[must_use]
    pub fn shown(self) -> Self {
        let shown = |url: Option<String>| url.map(|url| shown_url(&url));
        Self { webhook: shown(self.webhook), base_url: shown(self.base_url), ..self }
    }

    /// Whether it can be accepted.
    pub fn check(&self) -> Result<(), InvalidTaskSpec> {
        if self.prompt.trim().is_empty() && self.command.is_none() {
            return Err(InvalidTaskSpec::NoPrompt);
        }
        if self.prompt.len() > Self::LONGEST_PROMPT {
            return Err(InvalidTaskSpec::LongPrompt(self.prompt.len(), Self::LONGEST_PROMPT));
        }
        let texts = [("prompt", Some(&self.prompt)), ("command", self.command.as_ref())];
        if let Some((name, _)) = texts.iter().find(|(_, text)| text.is_some_and(|text| text.contains('\0'))) {
            return Err(InvalidTaskSpec::Nul(name));
        }
        for (name, what) in [(&self.key, "key"), (&self.lane, "lane"), (&self.model, "model")] {
            let valid = |name: &String| {
                let visible = |c: char| !c.is_control() && !c.is_whitespace() && c != '\u{feff}';
                (1..=200).contains(&name.chars().count()) && name.chars().all(visible)
            };
            if let Some(name) = name.as_ref().filter(|name| !valid(name)) {
                return Err(InvalidTaskSpec::Name(name.clone(), what));
            }
        }
        // Who is told is named by a host alone: a secret in the name would be seen by all who see the task.
        let tellable = |address: &str| {
            let authority =
                address.split_once("://").map(|(_, rest)| rest.split('/').next().unwrap_or_default());
            crate::config::is_url(address) && authority.is_some_and(|authority| !authority.contains('@'))
        };
        if let Some(address) = self.webhook.as_ref().filter(|address| !tellable(address)) {
            return Err(InvalidTaskSpec::Webhook(address.clone()));
        }
        if let Some(path) = self.directory.as_ref().filter(|path| !path.is_absolute()) {
            return Err(InvalidTaskSpec::Directory(path.clone()));
        }
        // The end of the year 9999, which every calendar knows.
        if self.not_before.is_some_and(|time| time > 253_402_300_799) {
            return Err(InvalidTaskSpec::UnixSeconds);
        }
        for (name, value, most) in [("max_attempts", self.max_attempts, 100), ("pids", self.pids, u32::MAX)] {
            if value.is_some_and(|value| !(1..=most).contains(&value)) {
                return Err(InvalidTaskSpec::Bounds(name, most));
            }
        }
        Ok(())
    }
}

/// Who does a task.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Role {
    #[default]
    Worker,
    Tester,
    Docser,
}

impl Role {
    /// All of them.
    pub const ALL: [Role; 3] = [Role::Worker, Role::Tester, Role::Docser];
    /// Their names, in the same order.
    pub const NAMES: [&'static str; 3] = ["worker", "tester", "docser"];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// Why a text is no role.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("there is no role `{0}`: known are worker, tester and docser")]
pub struct UnknownRole(String);

impl FromStr for Role {
    type Err = UnknownRole;
    fn from_str(text: &str) -> Result<Self, UnknownRole> {
        Role::ALL.into_iter().find(|role| role.as_str() == text).ok_or_else(|| UnknownRole(text.to_owned()))
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::{InvalidTaskSpec, TaskSpec};

    #[test]
    fn what_cannot_be_done_is_not_accepted() {
        let with = |change: fn(&mut TaskSpec)| {
            let mut spec = TaskSpec::new("x");
            change(&mut spec);
            spec.check()
        };
        assert_eq!(with(|_| {}), Ok(()));
        assert_eq!(with(|spec| spec.prompt = " \n".into()), Err(InvalidTaskSpec::NoPrompt));
        assert_eq!(with(|spec| spec.prompt = "a\0b".into()), Err(InvalidTaskSpec::Nul("prompt")));
        assert!(matches!(
            with(|spec| spec.prompt = "x".repeat(200_000)),
            Err(InvalidTaskSpec::LongPrompt(..))
        ));
        assert!(matches!(with(|spec| spec.key = Some("a b".into())), Err(InvalidTaskSpec::Name(_, "key"))));
        assert_eq!(with(|spec| spec.key = Some("\u{1f511}".repeat(200))), Ok(()));
        assert!(matches!(
            with(|spec| spec.key = Some("k".repeat(201))),
            Err(InvalidTaskSpec::Name(_, "key"))
        ));
        assert!(matches!(
            with(|spec| spec.lane = Some(String::new())),
            Err(InvalidTaskSpec::Name(_, "lane"))
        ));
        assert!(matches!(
            with(|spec| spec.model = Some("opus\u{1}".into())),
            Err(InvalidTaskSpec::Name(_, "model"))
        ));
        assert!(matches!(
            with(|spec| spec.webhook = Some("ftp://x".into())),
            Err(InvalidTaskSpec::Webhook(_))
        ));
        assert!(matches!(
            with(|spec| spec.webhook = Some("http://u:p@h/".into())),
            Err(InvalidTaskSpec::Webhook(_))
        ));
        assert!(matches!(with(|spec| spec.directory = Some("x".into())), Err(InvalidTaskSpec::Directory(_))));
        assert!(matches!(
            with(|spec| spec.max_attempts = Some(0)),
            Err(InvalidTaskSpec::Bounds("max_attempts", 100))
        ));
    }

    #[test]
    fn a_wrong_word_in_a_document_is_refused() {
        let error = serde_json::from_str::<TaskSpec>(r#"{"prompt":"x","priorty":1}"#).unwrap_err();
        assert!(error.to_string().contains("priorty"), "{error}");
        let role =
            |text: &str| serde_json::from_str::<TaskSpec>(&format!(r#"{{"prompt":"x","role":{text}}}"#));
        assert_eq!(role(r#""tester""#).unwrap().role, super::Role::Tester);
        for wrong in [r#"{"tester":null}"#, "null", r#""boss""#, "1"] {
            assert!(role(wrong).is_err(), "{wrong}");
        }
    }
}
