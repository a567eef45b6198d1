//! Settings of the running system as a layer: changed at run time, in force from the next task.

use serde_json::Value;

use super::document::Document;
use super::error::{DocumentError, Place, Problem};
use super::key::{Key, Keys, Kind};
use super::layers::{Layer, Layers, Source};
use crate::mode::{ExecutionEnvironment, LaunchMode, Mode};

const SWITCH: &str = "EXECUTION_ENVIRONMENT";
const LAUNCH: &str = "LAUNCH_MODE";
const MODE_KEY: &str = "sandbox.mode";

/// Why a value is not taken. Nothing was changed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{name}: {problem}")]
pub struct SystemError {
    name: String,
    problem: Problem,
}

/// The key that a name means. Names are those of keys or of their variables.
pub fn system_key(keys: &Keys, name: &str) -> Result<String, SystemError> {
    if [SWITCH, LAUNCH].contains(&name.strip_prefix("RINGFENCE_").unwrap_or(name)) {
        return Ok(SWITCH.to_owned());
    }
    let key = keys.find(name).or_else(|| keys.iter().find(|key| key.env.contains(&name)));
    let unknown = || SystemError { name: name.to_owned(), problem: keys.unknown(name) };
    let key = key.ok_or_else(unknown)?;
    Ok(if key.path.contains('*') { name } else { key.path }.to_owned())
}

/// What a name and a text mean: a key with its value.
pub fn system_value(keys: &Keys, name: &str, text: &str) -> Result<(String, Value), SystemError> {
    let wrong = |problem| SystemError { name: name.to_owned(), problem };
    let short = name.strip_prefix("RINGFENCE_").unwrap_or(name);
    let switch = |names: &'static [&'static str; 2]| {
        let text = text.trim().to_ascii_lowercase();
        Kind::Choice(names).from_text(&text).map_err(wrong)?;
        let place = usize::from(text == names[1]);
        Ok((SWITCH.to_owned(), ExecutionEnvironment::NAMES[place].into()))
    };
    match short {
        SWITCH => switch(&ExecutionEnvironment::NAMES),
        LAUNCH => switch(&LaunchMode::NAMES),
        _ => {
            let path = system_key(keys, name)?;
            let key = keys.find(&path).ok_or_else(|| wrong(keys.unknown(name)))?;
            Ok((path, key.kind.from_text(text).map_err(wrong)?))
        }
    }
}

/// The rows of the running system as a layer. The switch means the mode that `below` names, or Docker.
pub fn system_layer(below: &Layers, rows: &[(String, Value)]) -> Result<Layer, DocumentError> {
    let mut document = Document::default();
    let mode = |value: &Value| value.as_str().and_then(|text| text.parse::<Mode>().ok());
    for (path, value) in rows.iter().filter(|(path, _)| path != SWITCH) {
        let wrong = |problem| DocumentError { place: Place::System, key: path.clone(), problem };
        let key: &Key = below.keys().find(path).ok_or_else(|| wrong(below.keys().unknown(path)))?;
        key.kind.check(value).map_err(wrong)?;
        document.insert(path, value.clone(), Place::System);
    }
    if let Some((_, value)) = rows.iter().find(|(path, _)| path == SWITCH) {
        let named = document.get(MODE_KEY).or_else(|| below.given(MODE_KEY));
        let named = named.and_then(|located| mode(&located.value));
        let environment = match value.as_str() == Some(ExecutionEnvironment::Sandbox.as_str()) {
            true => ExecutionEnvironment::Sandbox,
            false => ExecutionEnvironment::Host,
        };
        document.insert(MODE_KEY, environment.mode(named).to_string().into(), Place::System);
    }
    Ok(Layer { source: Source::System, document })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{KEYS, Keys, Layer, Layers, Source};
    use super::{system_layer, system_value};

    fn keys() -> Keys {
        Keys::new([KEYS])
    }

    fn mode_with(user: &str, rows: &[(&str, &str)]) -> String {
        let keys = keys();
        let mut layers = Layers::built_in(keys.clone());
        let document = super::Document::parse(user, "f", &keys).unwrap();
        layers.push(Layer { source: Source::User, document }).unwrap();
        let rows: Vec<_> =
            rows.iter().map(|(name, value)| system_value(&keys, name, value).unwrap()).collect();
        layers.push(system_layer(&layers, &rows).unwrap()).unwrap();
        layers.resolve().unwrap().sandbox.mode.to_string()
    }

    #[test]
    fn the_switch_means_no_boundary_or_the_one_that_is_named() {
        assert_eq!(mode_with("{}", &[]), "native");
        assert_eq!(mode_with("{}", &[("EXECUTION_ENVIRONMENT", "host")]), "host");
        assert_eq!(mode_with("{}", &[("EXECUTION_ENVIRONMENT", "sandbox")]), "docker");
        assert_eq!(mode_with("{}", &[("RINGFENCE_LAUNCH_MODE", "Docker")]), "docker");
        let podman = r#"{"sandbox":{"mode":"podman"}}"#;
        assert_eq!(mode_with(podman, &[("EXECUTION_ENVIRONMENT", "sandbox")]), "podman");
        assert_eq!(mode_with(podman, &[("LAUNCH_MODE", "process")]), "host");
    }

    #[test]
    fn names_of_variables_stand_for_their_keys_and_wrong_values_are_refused() {
        let keys = keys();
        let taken = system_value(&keys, "LLM_EXECUTOR", "claude_code").unwrap();
        assert_eq!(taken, ("executor.default".to_owned(), json!("claude_code")));
        for (name, value) in
            [("EXECUTION_ENVIRONMENT", "cloud"), ("sandbox.max_attempts", "0"), ("nonsense", "1")]
        {
            let error = system_value(&keys, name, value).unwrap_err().to_string();
            assert!(error.starts_with(name), "{error}");
        }
    }
}
