//! Settings: text → checked document → layers → resolved.
//!
//! One table of keys says what there is: its kind, its default, its variable, what a project may change. Reading,
//! errors, `config list|get|set|explain` and the JSON Schema derive from it. The sections of the modes are rows that
//! their backends contribute, so this room knows no mode's settings.

mod document;
mod edit;
mod environment;
mod error;
mod key;
mod keys;
mod layers;
mod nested;
mod schema;
mod settings;
mod shown;
mod system;

pub use document::{Document, Located};
pub use edit::{EditError, set, unset};
pub use environment::environment_layer;
pub use error::{DocumentError, Place, Problem};
pub use key::{Key, Keys, Kind, ProjectRule, is_url};
pub use keys::KEYS;
pub use layers::{Explained, Layer, Layers, Source};
pub use schema::schema;
pub use settings::{
    AgentSettings, BrokerSettings, ExecutorSettings, LogFormat, PolicyChoice, Provider, QueueSettings,
    SandboxSettings, ServerSettings, Settings, SettingsError, WorkspaceKind,
};
pub use shown::{shown, shown_section, shown_url};
pub use system::{SystemError, system_key, system_layer, system_value};
