//! A key of a document: its path, its kind, its default, who may change it.

use std::collections::BTreeSet;

use serde_json::Value;

use super::error::Problem;
use crate::ids::AgentId;
use crate::policy::{HostRule, Preset};
use crate::units::{Cpus, MemorySize, Seconds};

/// One row of a table of keys.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Dotted path; `*` stands for a name that the writer chooses.
    pub path: &'static str,
    /// What its value looks like.
    pub kind: Kind,
    /// Its value when nobody gives one, as JSON.
    pub default: Option<&'static str>,
    /// Variables of the environment that set it, the first one first.
    pub env: &'static [&'static str],
    /// What a project's file may do with it.
    pub project: ProjectRule,
    /// One line for people.
    pub doc: &'static str,
}

/// What the settings carried by a repository may do with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProjectRule {
    /// Nothing.
    Never,
    /// Give a smaller number or size.
    Lower,
    /// Give a list that is part of the one below.
    Subset,
    /// Go from the first choice to another: from no boundary to one.
    LeaveFirst,
    /// Give a later choice: presets stand from the widest to the narrowest.
    Later,
}

/// What a value looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Any text that is not empty.
    Text,
    /// One of these.
    Choice(&'static [&'static str]),
    /// A preset, or the path of a policy file.
    PolicyChoice,
    /// Yes or no.
    Flag,
    /// A whole number from the first to the second.
    Whole(u64, u64),
    /// An amount of money or the like, above zero.
    Amount,
    /// A size such as `2g`.
    Memory,
    /// A number of processors such as `"1.0"`.
    Cpus,
    /// A whole number of seconds above zero.
    Seconds,
    /// An absolute path, or one that starts with `~/`.
    Path,
    /// An http or https address.
    Url,
    /// Names of variables.
    EnvNames,
    /// Absolute paths, or paths that start with `~/`.
    Paths,
    /// Hosts as policies name them.
    Hosts,
    /// Globs.
    Globs,
    /// Any texts that are not empty.
    Texts,
    /// Numbers of ports.
    Ports,
    /// A kind, or `null` for none.
    Nullable(&'static Kind),
}

impl Kind {
    /// What should stand there, for an error.
    pub fn expected(self) -> String {
        match self {
            Kind::Text => "a text".into(),
            Kind::Choice(valid) => format!("one of {}", valid.join(", ")),
            Kind::PolicyChoice => {
                format!("one of {} or the absolute path of a policy file", Preset::NAMES.join(", "))
            }
            Kind::Flag => "true or false".into(),
            Kind::Whole(least, u64::MAX) => format!("a whole number of at least {least}"),
            Kind::Whole(least, most) => format!("a whole number from {least} to {most}"),
            Kind::Amount => "a number above 0".into(),
            Kind::Memory => "a size such as \"512m\" or \"2g\"".into(),
            Kind::Cpus => "a number of cpus such as \"1.0\"".into(),
            Kind::Seconds => "a whole number of seconds above 0".into(),
            Kind::Path => "an absolute path or one that starts with ~/".into(),
            Kind::Url => "an address that starts with http:// or https://".into(),
            Kind::EnvNames => "a list of variable names".into(),
            Kind::Paths => "a list of absolute paths or paths that start with ~/".into(),
            Kind::Hosts => "a list of hosts".into(),
            Kind::Globs => "a list of globs".into(),
            Kind::Texts => "a list of texts".into(),
            Kind::Ports => "a list of ports from 1 to 65535".into(),
            Kind::Nullable(kind) => format!("{} or null", kind.expected()),
        }
    }

    /// Whether a value is one of this kind.
    pub fn check(self, value: &Value) -> Result<(), Problem> {
        match self {
            Kind::Ports => {
                let port = |value: &Value| value.as_u64().is_some_and(|port| (1..=65_535).contains(&port));
                let all = value.as_array().is_some_and(|all| all.iter().all(port));
                if all { Ok(()) } else { Err(self.wrong(value)) }
            }
            Kind::Nullable(_) if value.is_null() => Ok(()),
            Kind::Nullable(kind) => kind.check(value),
            Kind::Flag => value.as_bool().map(drop).ok_or_else(|| self.wrong(value)),
            Kind::Whole(least, most) => match value.as_u64() {
                Some(count) if (least..=most).contains(&count) => Ok(()),
                _ => Err(self.wrong(value)),
            },
            Kind::Amount => match value.as_f64() {
                Some(amount) if amount > 0.0 && amount.is_finite() => Ok(()),
                _ => Err(self.wrong(value)),
            },
            Kind::Seconds => match value.as_u64() {
                Some(count) if Seconds::new(count).is_some() => Ok(()),
                _ => Err(self.wrong(value)),
            },
            Kind::Cpus if value.is_number() => self.check_text(&value.to_string()),
            Kind::EnvNames | Kind::Paths | Kind::Hosts | Kind::Globs | Kind::Texts => self.check_list(value),
            _ => match value.as_str() {
                Some(text) => self.check_text(text),
                None => Err(self.wrong(value)),
            },
        }
    }

    fn wrong(self, value: &Value) -> Problem {
        Problem::WrongType { expected: self.expected(), found: describe(value) }
    }

    fn check_text(self, text: &str) -> Result<(), Problem> {
        let invalid = |error: &dyn std::fmt::Display| Problem::Invalid(error.to_string());
        if text.is_empty() {
            return Err(Problem::Invalid(format!("is empty; expected {}", self.expected())));
        }
        if text.contains('\0') {
            return Err(Problem::Invalid("contains a NUL character".into()));
        }
        match self {
            Kind::Choice(valid) if !valid.contains(&text) => Err(Problem::NotAChoice {
                given: text.to_owned(),
                valid: valid.iter().map(|name| (*name).to_owned()).collect(),
            }),
            // A path that depends on where one stands would let a repository choose the policy.
            Kind::PolicyChoice if !is_settled_path(text) => {
                text.parse::<Preset>().map(drop).map_err(|error| {
                    Problem::Invalid(format!("{}; expected {}", error.without_remedy(), self.expected()))
                })
            }
            Kind::Memory => MemorySize::parse_limit(text).map(drop).map_err(|error| invalid(&error)),
            Kind::Cpus => text.parse::<Cpus>().map(drop).map_err(|error| invalid(&error)),
            Kind::Path if !is_settled_path(text) => {
                Err(Problem::Invalid(format!("`{text}` is not {}", self.expected())))
            }
            Kind::Url if !is_url(text) => {
                Err(Problem::Invalid(format!("`{text}` is not {}", self.expected())))
            }
            _ => Ok(()),
        }
    }

    fn check_list(self, value: &Value) -> Result<(), Problem> {
        let items = value.as_array().ok_or_else(|| self.wrong(value))?;
        items.iter().enumerate().try_for_each(|(index, item)| {
            let text = item.as_str().filter(|text| !text.is_empty()).ok_or_else(|| Problem::WrongType {
                expected: format!("a text at place {}", index + 1),
                found: describe(item),
            })?;
            match self {
                Kind::EnvNames if !is_env_name(text) => Err(Problem::Invalid(format!(
                    "`{text}` is not the name of a variable: letters, digits and `_`, not starting with a digit"
                ))),
                Kind::Paths => Kind::Path.check_text(text),
                Kind::Hosts => {
                    text.parse::<HostRule>().map(drop).map_err(|error| Problem::Invalid(error.to_string()))
                }
                Kind::Globs => globset::Glob::new(text)
                    .map(drop)
                    .map_err(|error| Problem::Invalid(format!("`{text}` is not a glob: {}", error.kind()))),
                _ => Ok(()),
            }
        })
    }

    /// The value that a person means by a text on the command line or in the environment.
    pub fn from_text(self, text: &str) -> Result<Value, Problem> {
        let value = match self {
            Kind::Nullable(_) if text == "null" => Value::Null,
            Kind::Nullable(kind) => return kind.from_text(text),
            Kind::Flag | Kind::Whole(..) | Kind::Amount | Kind::Seconds => {
                serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
            }
            Kind::EnvNames | Kind::Paths | Kind::Hosts | Kind::Globs | Kind::Texts => {
                match serde_json::from_str(text) {
                    Ok(list @ Value::Array(_)) => list,
                    _ => text.split(',').map(str::trim).filter(|item| !item.is_empty()).collect(),
                }
            }
            _ => Value::String(text.to_owned()),
        };
        self.check(&value).map(|()| value)
    }
}

/// A policy is named by a preset unless it looks like a file.
pub(super) fn is_path_like(text: &str) -> bool {
    text.contains('/') || text.ends_with(".json")
}

/// A path that means the same wherever one stands.
fn is_settled_path(text: &str) -> bool {
    text.starts_with('/') || text.starts_with("~/")
}

/// Whether a text is an address of the web.
pub fn is_url(text: &str) -> bool {
    ["http://", "https://"].iter().any(|scheme| {
        text.strip_prefix(scheme).is_some_and(|rest| {
            !rest.is_empty() && !rest.starts_with('/') && rest.chars().all(|c| c.is_ascii_graphic())
        })
    })
}

/// Whether a text can name a variable in every shell.
fn is_env_name(text: &str) -> bool {
    !text.starts_with(|c: char| c.is_ascii_digit())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) if text.is_empty() => "an empty text".into(),
        Value::String(text) => format!("the text `{text}`"),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
    }
}

/// All keys of a kind of document.
#[derive(Debug, Clone)]
pub struct Keys(Vec<&'static Key>);

impl Keys {
    /// The rows of these tables together.
    pub fn new(tables: impl IntoIterator<Item = &'static [Key]>) -> Self {
        Self(tables.into_iter().flatten().collect())
    }

    /// The rows, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &'static Key> + '_ {
        self.0.iter().copied()
    }

    /// The row that a concrete path belongs to.
    pub fn find(&self, path: &str) -> Option<&'static Key> {
        self.iter().find(|key| matches(key.path, path))
    }

    /// The names that can stand directly below a path; `*` among them means that the writer chooses.
    pub fn below(&self, path: &str) -> Vec<&'static str> {
        let depth = if path.is_empty() { 0 } else { path.split('.').count() };
        let mut names: Vec<_> = self
            .iter()
            .filter(|key| depth == 0 || leads(key.path, path, depth))
            .filter_map(|key| key.path.split('.').nth(depth))
            .collect();
        let mut seen = BTreeSet::new();
        names.retain(|name| seen.insert(*name));
        names
    }

    /// What is wrong with a path that no row has.
    pub fn unknown(&self, path: &str) -> Problem {
        // The first part that is not known is the mistake; what stands below it cannot be judged.
        let wrong =
            path.match_indices('.').map(|(place, _)| &path[..place]).find(|part| self.below(part).is_empty());
        let (parent, name) = wrong.unwrap_or(path).rsplit_once('.').unwrap_or(("", wrong.unwrap_or(path)));
        let valid = self.below(parent);
        let join =
            |found: &str| if parent.is_empty() { found.to_owned() } else { format!("{parent}.{found}") };
        Problem::UnknownKey {
            nearest: nearest_name(name, &valid).map(join),
            elsewhere: self
                .iter()
                .find(|key| key.path.rsplit('.').next() == Some(name))
                .map(|key| key.path.to_owned()),
            valid: valid.into_iter().map(str::to_owned).collect(),
        }
    }
}

fn nearest_name<'a>(name: &str, valid: &[&'a str]) -> Option<&'a str> {
    crate::suggest::nearest(name, valid.iter().copied())
}

fn matches(pattern: &str, path: &str) -> bool {
    let count = path.split('.').count();
    pattern.split('.').count() == count && leads(pattern, path, count)
}

/// Whether the first `depth` parts of the pattern fit the path.
fn leads(pattern: &str, path: &str, depth: usize) -> bool {
    pattern.split('.').count() >= depth
        && pattern.split('.').zip(path.split('.')).take(depth).all(|(part, name)| part == "*" || part == name)
}

/// Whether a name that the writer chose can stand for `*`.
pub(super) fn check_chosen_name(name: &str) -> Result<(), Problem> {
    name.parse::<AgentId>().map(drop).map_err(|error| Problem::Invalid(error.to_string()))
}
