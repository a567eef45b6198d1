//! Settings, as they are asked for.

use ringfence_backends::settings_keys;
use ringfence_core::config::{self, Kind, Layers};
use ringfence_core::mode::{ExecutionEnvironment, LaunchMode};
use ringfence_server::desk::{Answer, Refusal, RefusalKind, Setting, SettingChange, SettingsChanged};
use ringfence_store::SystemConfig;
use serde_json::{Value, json};

use super::internal;
use crate::installation::Installation;

const SWITCH: &str = "EXECUTION_ENVIRONMENT";
const MODE: &str = "sandbox.mode";

/// All settings that belong to no workspace.
pub(super) fn list(installation: &Installation) -> anyhow::Result<Vec<Setting>> {
    let system = installation.system_rows()?;
    let layers = installation.layers_with(std::path::Path::new("/"), &system)?;
    let mode = layers.resolve()?.sandbox.mode;
    let told =
        |key: &str| system.iter().find(|(name, _)| name == key).map(|(_, value)| config::shown(key, value));
    let environment = ExecutionEnvironment::of(mode);
    let switch = |key: &str, names: &[&str], doc: &str| Setting {
        key: key.to_owned(),
        value: names[environment as usize].into(),
        masked: false,
        layer: winner(&layers, MODE).map_or_else(String::new, |(_, layer)| layer),
        doc: doc.to_owned(),
        expects: format!("one of {}", names.join(", ")),
        choices: names.iter().map(|name| (*name).to_owned()).collect(),
        variables: Vec::new(),
        system: told(key),
    };
    let mut rows = vec![
        switch(
            SWITCH,
            &ExecutionEnvironment::NAMES,
            "where tasks run: as processes of the host, or each in a sandbox of its own",
        ),
        switch("LAUNCH_MODE", &LaunchMode::NAMES, "the same in other words"),
    ];
    rows.extend(layers.paths().into_iter().filter_map(|path| {
        let key = layers.keys().find(path)?;
        let (value, layer) = winner(&layers, path)?;
        let choices = match key.kind {
            Kind::Choice(names) => names.iter().map(|name| (*name).to_owned()).collect(),
            Kind::Flag => vec!["true".to_owned(), "false".to_owned()],
            _ => Vec::new(),
        };
        Some(Setting {
            key: path.to_owned(),
            masked: config::shown(path, &value) != value,
            value: config::shown(path, &value),
            layer,
            doc: key.doc.to_owned(),
            expects: key.kind.expected(),
            choices,
            variables: key.env.iter().map(|name| (*name).to_owned()).collect(),
            system: told(path),
        })
    }));
    Ok(rows)
}

fn winner(layers: &Layers, path: &str) -> Option<(Value, String)> {
    let said = layers.explain(path).into_iter().find(|said| said.wins)?;
    Some((said.located.value.clone(), said.source.describe().to_owned()))
}

/// The keys that names mean.
pub(super) fn keys(changes: &[(String, Option<String>)]) -> Answer<Vec<(String, String)>> {
    let keys = settings_keys();
    let key = |(name, _): &(String, Option<String>)| {
        let key = config::system_key(&keys, name);
        // As the documents have it: a key that nobody knows is one that is not allowed.
        key.map(|key| (name.clone(), key))
            .map_err(|why| Refusal::new(RefusalKind::Forbidden, format!("Key not allowed: {why}")))
    };
    changes.iter().map(key).collect()
}

/// Changes settings of the running system, all or none.
pub(super) fn change(
    installation: &Installation,
    changes: &[(String, Option<String>)],
) -> Answer<SettingsChanged> {
    let keys = settings_keys();
    let invalid = |why: config::SystemError| Refusal::new(RefusalKind::Invalid, why.to_string());
    let mut resolved: Vec<(String, Option<Value>)> = Vec::new();
    for (name, text) in changes {
        let (key, value) = match text {
            Some(text) => {
                let (key, value) = config::system_value(&keys, name, text).map_err(invalid)?;
                (key, Some(value))
            }
            None => (config::system_key(&keys, name).map_err(invalid)?, None),
        };
        match resolved.iter().find(|(known, _)| *known == key) {
            // Two names of one key, as LAUNCH_MODE and EXECUTION_ENVIRONMENT are.
            Some((_, other)) if *other != value => {
                return Err(Refusal::new(RefusalKind::Invalid, format!("{name}: {key} is given two values")));
            }
            Some(_) => {}
            None => resolved.push((key, value)),
        }
    }
    let set = |key: &str| resolved.iter().any(|(known, value)| known == key && value.is_some());
    if set(SWITCH) && set(MODE) {
        let why = format!("{SWITCH} and {MODE} say where tasks run, both: change one of them");
        return Err(Refusal::new(RefusalKind::Invalid, why));
    }
    let store = installation.store().map_err(internal)?;
    let before = store.system_config()?;
    // What does not fit with the rest is not taken.
    let mut rows = before.clone();
    rows.retain(|(key, _)| !resolved.iter().any(|(changed, _)| changed == key));
    rows.extend(resolved.iter().filter_map(|(key, value)| Some((key.clone(), value.clone()?))));
    let fits =
        installation.layers_with(std::path::Path::new("/"), &rows).and_then(|layers| Ok(layers.resolve()?));
    fits.map_err(|error| Refusal { kind: RefusalKind::Invalid, ..super::refused(&error) })?;
    store.set_system_config(&resolved, installation.clock().now())?;
    let changes = resolved.iter().map(|(key, value)| {
        let old = before.iter().find(|(name, _)| name == key).map(|(_, value)| config::shown(key, value));
        let new = value.as_ref().map(|value| config::shown(key, value));
        SettingChange { key: key.clone(), before: json!(old), after: json!(new) }
    });
    let changes = changes.collect();
    Ok(SettingsChanged { warnings: warnings(installation, &resolved).unwrap_or_default(), changes })
}

/// What was set and is not in force, because a layer above says otherwise.
fn warnings(installation: &Installation, changes: &[(String, Option<Value>)]) -> anyhow::Result<Vec<String>> {
    let layers = installation.layers_for(std::path::Path::new("/"))?;
    let mode = layers.resolve()?.sandbox.mode;
    let above = changes.iter().filter(|(_, value)| value.is_some()).filter_map(|(key, value)| {
        let path = if key == SWITCH { MODE } else { key };
        let (in_force, layer) = winner(&layers, path)?;
        let holds = match key.as_str() {
            SWITCH => value.as_ref().and_then(Value::as_str) == Some(ExecutionEnvironment::of(mode).as_str()),
            _ => value.as_ref() == Some(&in_force),
        };
        (!holds).then(|| format!("{key}: {} stays in force, from {layer}", config::shown(path, &in_force)))
    });
    Ok(above.collect())
}
