//! JSON Schema of a table of keys, for editors.

use serde_json::{Map, Value, json};

use super::key::{Key, Keys, Kind};
use crate::policy::Preset;

/// The schema of documents of this table.
pub fn schema(keys: &Keys, title: &str) -> Value {
    let mut root = object();
    for key in keys.iter() {
        insert(&mut root, key);
    }
    root.insert("$schema".into(), json!("https://json-schema.org/draft/2020-12/schema"));
    root.insert("title".into(), json!(title));
    if let Some(Value::Object(properties)) = root.get_mut("properties") {
        properties.insert("$schema".into(), json!({ "type": "string" }));
    }
    root.sort_keys();
    Value::Object(root)
}

fn object() -> Map<String, Value> {
    let mut map = Map::new();
    map.insert("type".into(), json!("object"));
    map.insert("additionalProperties".into(), json!(false));
    map.insert("properties".into(), json!({}));
    map
}

fn insert(root: &mut Map<String, Value>, key: &Key) {
    let mut parts = key.path.split('.').peekable();
    let mut here = root;
    while let Some(part) = parts.next() {
        let slot = slot(here, part);
        if parts.peek().is_none() {
            *slot = leaf(key);
            return;
        }
        if !slot.is_object() {
            *slot = Value::Object(object());
        }
        match slot {
            Value::Object(inner) => here = inner,
            _ => return,
        }
    }
}

/// Where the schema of a name lives; a name that the writer chooses is an additional property.
fn slot<'a>(object: &'a mut Map<String, Value>, part: &str) -> &'a mut Value {
    if part == "*" {
        let slot = object.entry("additionalProperties").or_insert(Value::Null);
        if slot == &json!(false) {
            *slot = Value::Null;
        }
        return slot;
    }
    &mut object.entry("properties").or_insert_with(|| json!({}))[part]
}

fn leaf(key: &Key) -> Value {
    let mut schema = of_kind(key.kind);
    if let Value::Object(map) = &mut schema {
        map.insert("description".into(), json!(key.doc));
        if let Some(Ok(default)) = key.default.map(serde_json::from_str::<Value>) {
            map.insert("default".into(), default);
        }
    }
    schema
}

fn of_kind(kind: Kind) -> Value {
    let texts = |pattern: Option<&str>| match pattern {
        Some(pattern) => json!({ "type": "array", "items": { "type": "string", "pattern": pattern } }),
        None => json!({ "type": "array", "items": { "type": "string", "minLength": 1 } }),
    };
    match kind {
        Kind::Text => json!({ "type": "string", "minLength": 1 }),
        Kind::Choice(valid) => json!({ "enum": valid }),
        Kind::PolicyChoice => {
            json!({ "anyOf": [{ "enum": Preset::NAMES }, { "type": "string", "pattern": "^(/|~/)" }] })
        }
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Whole(least, u64::MAX) => json!({ "type": "integer", "minimum": least }),
        Kind::Whole(least, most) => json!({ "type": "integer", "minimum": least, "maximum": most }),
        Kind::Amount => json!({ "type": "number", "exclusiveMinimum": 0 }),
        Kind::Memory => json!({ "type": "string", "pattern": "^[0-9]+[bkmgBKMG]?$" }),
        Kind::Cpus => {
            json!({ "anyOf": [{ "type": "string", "pattern": "^[0-9]+(\\.[0-9]+)?$" }, { "type": "number", "exclusiveMinimum": 0 }] })
        }
        Kind::Seconds => json!({ "type": "integer", "minimum": 1 }),
        Kind::Path => json!({ "type": "string", "pattern": "^(/|~/)" }),
        Kind::Url => json!({ "type": "string", "pattern": "^https?://" }),
        Kind::EnvNames => texts(Some("^[A-Za-z_][A-Za-z0-9_]*$")),
        Kind::Paths => texts(Some("^(/|~/)")),
        Kind::Hosts | Kind::Globs | Kind::Texts => texts(None),
        Kind::Ports => {
            json!({"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 65_535}})
        }
        Kind::Nullable(kind) => json!({ "anyOf": [of_kind(*kind), { "type": "null" }] }),
    }
}
