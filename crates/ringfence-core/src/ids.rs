//! Names of things: runs, tasks, agents, sessions. Each its own type, each checked when made.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Why a text is not a name.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{text}` is not a valid {what}: {rule}")]
pub struct InvalidId {
    what: &'static str,
    text: String,
    rule: &'static str,
}

macro_rules! name_type {
    ($(#[$doc:meta])* $type:ident, $what:literal, $rule:literal, $valid:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $type(String);

        impl $type {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $type {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                let valid: fn(&str) -> bool = $valid;
                if valid(text) {
                    Ok(Self(text.to_owned()))
                } else {
                    Err(InvalidId { what: $what, text: text.to_owned(), rule: $rule })
                }
            }
        }

        impl TryFrom<String> for $type {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<Self, InvalidId> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(name: $type) -> String {
                name.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

/// One path component, so that an id can name a directory or a container and nothing else.
fn is_component(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

name_type!(
    /// One attempt at a task. Sorts by the time it was made.
    RunId, "run id", "letters, digits, `-` and `_`, at most 64 of them", is_component
);
name_type!(
    /// A durable unit of work.
    TaskId, "task id", "letters, digits, `-` and `_`, at most 64 of them", is_component
);
name_type!(
    /// An entry of the settings' `agents` object.
    AgentId, "agent id", "letters, digits, `-` and `_`, starting with a letter or digit, at most 64 of them", is_component
);
name_type!(
    /// A conversation that an agent CLI can continue, in that CLI's own words.
    SessionId, "session id", "letters, digits, `-` and `_`, starting with a letter or digit, at most 200 of them",
    |text| (1..=200).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
);

#[cfg(test)]
mod tests {
    use super::{AgentId, RunId, SessionId};

    #[test]
    fn an_id_can_never_leave_its_directory() {
        for hostile in ["", ".", "..", "../x", "a/b", "/etc", "a b", "-rf", "a\0b", "é", &"a".repeat(65)] {
            assert!(hostile.parse::<RunId>().is_err(), "{hostile:?}");
            assert!(hostile.parse::<AgentId>().is_err(), "{hostile:?}");
        }
        assert!("20261115-201530-k3f9ab".parse::<RunId>().is_ok());
    }

    #[test]
    fn a_session_id_can_never_be_taken_for_a_flag() {
        for hostile in ["--dangerous", "../../etc/x", "a/b", "a b", ""] {
            assert!(hostile.parse::<SessionId>().is_err(), "{hostile:?}");
        }
        assert!("ses_abc-1".parse::<SessionId>().is_ok());
    }
}
