//! Variables of the environment as a layer, with the two switches of a whole installation.

use serde_json::Value;

use super::document::Document;
use super::error::{DocumentError, Place, Problem};
use super::key::{Keys, Kind};
use super::layers::{Layer, Layers, Source};
use crate::mode::{ExecutionEnvironment, LaunchMode};

const ENVIRONMENT: [&str; 2] = ["RINGFENCE_EXECUTION_ENVIRONMENT", "EXECUTION_ENVIRONMENT"];
const LAUNCH: [&str; 2] = ["RINGFENCE_LAUNCH_MODE", "LAUNCH_MODE"];
const MODE_KEY: &str = "sandbox.mode";

/// Reads the variables that the table names, and `EXECUTION_ENVIRONMENT` and `LAUNCH_MODE`, which set the mode:
/// no isolation, or the isolating mode that `below` names.
pub fn environment_layer(
    below: &Layers,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<Layer, DocumentError> {
    let mut document = Document::default();
    if let Some((value, place)) = switched_mode(below, lookup)? {
        document.insert(MODE_KEY, value, place);
    }
    read_keys(below.keys(), lookup, &mut document)?;
    Ok(Layer { source: Source::Environment, document })
}

fn read_keys(
    keys: &Keys,
    lookup: &dyn Fn(&str) -> Option<String>,
    into: &mut Document,
) -> Result<(), DocumentError> {
    for key in keys.iter() {
        if let Some((name, text)) = first_set(key.env, lookup) {
            let place = Place::Variable(name.to_owned());
            let value = key.kind.from_text(&text).map_err(|problem| DocumentError {
                place: place.clone(),
                key: key.path.to_owned(),
                problem,
            })?;
            into.insert(key.path, value, place);
        }
    }
    Ok(())
}

/// The first of the variables that is set to something.
fn first_set<'a>(names: &[&'a str], lookup: &dyn Fn(&str) -> Option<String>) -> Option<(&'a str, String)> {
    names.iter().find_map(|name| lookup(name).filter(|text| !text.is_empty()).map(|text| (*name, text)))
}

fn switched_mode(
    below: &Layers,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<(Value, Place)>, DocumentError> {
    let environment = switch(&ENVIRONMENT, &ExecutionEnvironment::NAMES, lookup)?;
    let launch = switch(&LAUNCH, &LaunchMode::NAMES, lookup)?;
    let (second, name) = match (environment, launch) {
        (None, None) => return Ok(None),
        (Some(one), None) | (None, Some(one)) => one,
        (Some((environment, name)), Some((launch, launch_name))) => {
            if environment != launch {
                return Err(DocumentError {
                    place: Place::Variable(launch_name),
                    key: MODE_KEY.to_owned(),
                    problem: Problem::Contradiction(format!("environment variable {name}")),
                });
            }
            (environment, name)
        }
    };
    let environment = if second { ExecutionEnvironment::Sandbox } else { ExecutionEnvironment::Host };
    let named = below.given(MODE_KEY).and_then(|located| located.value.as_str()?.parse().ok());
    Ok(Some((Value::String(environment.mode(named).to_string()), Place::Variable(name))))
}

/// A variable with two values: whether it has the second one, and its name.
fn switch(
    names: &[&str],
    values: &'static [&'static str; 2],
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<(bool, String)>, DocumentError> {
    let Some((name, text)) = first_set(names, lookup) else { return Ok(None) };
    let text = text.trim().to_ascii_lowercase();
    Kind::Choice(values).from_text(&text).map(|_| Some((text == values[1], name.to_owned()))).map_err(
        |problem| DocumentError {
            place: Place::Variable(name.to_owned()),
            key: MODE_KEY.to_owned(),
            problem,
        },
    )
}
