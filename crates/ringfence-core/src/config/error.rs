//! What can be wrong with a document: one error, with its file, its line, its key and the way out.

use std::fmt;

use crate::suggest::nearest;

/// Where something was said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In a file, at a line counted from 1.
    Line(String, usize),
    /// In a variable of the environment.
    Variable(String),
    /// In the settings of the running system.
    System,
    /// In the binary.
    BuiltIn,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line(file, line) => write!(f, "{file}:{line}"),
            Place::Variable(name) => write!(f, "environment variable {name}"),
            Place::System => f.write_str("the running system"),
            Place::BuiltIn => f.write_str("built in"),
        }
    }
}

/// A mistake in a document.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{place}: {}{problem}", key_prefix(.key))]
pub struct DocumentError {
    /// Where.
    pub place: Place,
    /// Of which key; empty where the text is no document at all.
    pub key: String,
    /// What.
    pub problem: Problem,
}

fn key_prefix(key: &str) -> String {
    if key.is_empty() { String::new() } else { format!("{key}: ") }
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The text cannot be read.
    #[error("not valid JSON: {0}")]
    Syntax(String),
    /// The text is something else than an object.
    #[error("expected an object, found {found}")]
    NotAnObject {
        /// What stands there.
        found: &'static str,
    },
    /// Nobody knows this key.
    #[error("unknown key{}", did_you_mean(.nearest, .elsewhere, .valid))]
    UnknownKey {
        /// The key that was probably meant.
        nearest: Option<String>,
        /// Where a key of this name belongs.
        elsewhere: Option<String>,
        /// All that could stand here.
        valid: Vec<String>,
    },
    /// The key stands there twice.
    #[error("given twice; the first is at line {first}")]
    Duplicate {
        /// The line of the first one.
        first: usize,
    },
    /// The value has the wrong type.
    #[error("expected {expected}, found {found}")]
    WrongType {
        /// What should stand there.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// The value is none of the valid ones.
    #[error("`{given}` is not one of {}{}", .valid.join(", "), choice_hint(.given, .valid))]
    NotAChoice {
        /// What stands there.
        given: String,
        /// What could.
        valid: Vec<String>,
    },
    /// The value has the right type and makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// A repository tried to loosen.
    #[error(
        "a project's settings may only tighten, and this does not; if you trust the project, add its directory to \
         `trusted_projects` in your own settings"
    )]
    NotTighter,
    /// Two sources contradict each other.
    #[error("contradicts {0}")]
    Contradiction(String),
}

fn did_you_mean(nearest: &Option<String>, elsewhere: &Option<String>, valid: &[String]) -> String {
    match (nearest, elsewhere) {
        (Some(name), _) => format!(", did you mean `{name}`?"),
        (None, Some(path)) => format!(", did you mean `{path}`?"),
        (None, None) => format!("; the keys here are {}", valid.join(", ")),
    }
}

fn choice_hint(given: &str, valid: &[String]) -> String {
    nearest(given, valid.iter().map(String::as_str))
        .map(|name| format!(", did you mean `{name}`?"))
        .unwrap_or_default()
}
