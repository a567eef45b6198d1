//! Changing one key in a text, leaving comments, order and layout as the person wrote them.

use jsonc_parser::cst::{CstInputValue, CstObject, CstRootNode};
use serde_json::Value;

use super::document::{Document, PARSE_OPTIONS};
use super::error::{DocumentError, Place, Problem};
use super::key::Keys;

/// Why a key was not changed. The text is as it was.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// The text is not a valid document to begin with, or would not be one.
    #[error(transparent)]
    Document(#[from] DocumentError),
    /// There is no such key.
    #[error("{key}: {problem}")]
    Key {
        /// The key.
        key: String,
        /// What is wrong with it.
        problem: Problem,
    },
}

/// The text with the key set to the value.
pub fn set(text: &str, file: &str, keys: &Keys, path: &str, value: &str) -> Result<String, EditError> {
    let wrong = |problem| EditError::Key { key: path.to_owned(), problem };
    let key = keys.find(path).ok_or_else(|| wrong(keys.unknown(path)))?;
    let value = key.kind.from_text(value).map_err(wrong)?;
    Document::parse(text, file, keys)?;
    let root = read(text, file)?;
    let (parents, name) = split(path);
    let object =
        parents.iter().fold(root.object_value_or_set(), |object, part| object.object_value_or_set(part));
    match object.get(name) {
        Some(property) => property.set_value(input(&value)),
        None => drop(object.append(name, input(&value))),
    }
    finish(&root, file, keys)
}

/// The text without the key. Objects that are empty afterwards go too.
pub fn unset(text: &str, file: &str, keys: &Keys, path: &str) -> Result<String, EditError> {
    if keys.find(path).is_none() {
        return Err(EditError::Key { key: path.to_owned(), problem: keys.unknown(path) });
    }
    Document::parse(text, file, keys)?;
    let root = read(text, file)?;
    let (parents, name) = split(path);
    let mut chain: Vec<CstObject> = root.object_value().into_iter().collect();
    for part in &parents {
        match chain.last().and_then(|object| object.object_value(part)) {
            Some(object) => chain.push(object),
            None => return Ok(text.to_owned()),
        }
    }
    if let Some(property) = chain.last().and_then(|object| object.get(name)) {
        property.remove();
    }
    for (depth, part) in parents.iter().enumerate().rev() {
        if chain[depth + 1].properties().is_empty()
            && let Some(property) = chain[depth].get(part)
        {
            property.remove();
        }
    }
    finish(&root, file, keys)
}

fn read(text: &str, file: &str) -> Result<CstRootNode, DocumentError> {
    let text = if text.trim().is_empty() { "{\n}\n" } else { text };
    CstRootNode::parse(text, &PARSE_OPTIONS).map_err(|error| DocumentError {
        place: Place::Line(file.to_owned(), error.line_display()),
        key: String::new(),
        problem: Problem::Syntax(error.kind().to_string()),
    })
}

fn split(path: &str) -> (Vec<&str>, &str) {
    let mut parts: Vec<&str> = path.split('.').collect();
    let name = parts.pop().unwrap_or(path);
    (parts, name)
}

/// What is written is checked by the same reader that will read it.
fn finish(root: &CstRootNode, file: &str, keys: &Keys) -> Result<String, EditError> {
    let mut text = root.to_string();
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Document::parse(&text, file, keys)?;
    Ok(text)
}

fn input(value: &Value) -> CstInputValue {
    match value {
        Value::Null => CstInputValue::Null,
        Value::Bool(flag) => CstInputValue::Bool(*flag),
        Value::Number(number) => CstInputValue::Number(number.to_string()),
        Value::String(text) => CstInputValue::String(text.clone()),
        Value::Array(items) => CstInputValue::Array(items.iter().map(input).collect()),
        Value::Object(map) => {
            CstInputValue::Object(map.iter().map(|(name, value)| (name.clone(), input(value))).collect())
        }
    }
}
