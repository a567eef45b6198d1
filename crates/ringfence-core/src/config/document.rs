//! Text → a checked document: every value known, of its kind, with its line.

use std::collections::BTreeMap;

use jsonc_parser::ast;
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};
use serde_json::Value;

use super::error::{DocumentError, Place, Problem};
use super::key::{Keys, check_chosen_name};

/// A value and where it was said.
#[derive(Debug, Clone, PartialEq)]
pub struct Located {
    /// The value.
    pub value: Value,
    /// Where it was said.
    pub place: Place,
}

/// Checked values by their concrete path.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Document {
    values: BTreeMap<String, Located>,
}

/// JSON with comments and trailing commas, as people write settings; nothing looser.
pub(super) const PARSE_OPTIONS: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_trailing_commas: true,
    allow_loose_object_property_names: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

impl Document {
    /// Reads and checks a text. `file` is only its name, for errors.
    pub fn parse(text: &str, file: &str, keys: &Keys) -> Result<Self, DocumentError> {
        // Some editors put a mark before the first character.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let line_ends = text.match_indices('\n').map(|(place, _)| place).collect();
        let reader = Reader { text, file, keys, line_ends };
        let parsed = parse_to_ast(text, &CollectOptions::default(), &PARSE_OPTIONS).map_err(|error| {
            DocumentError {
                place: Place::Line(file.to_owned(), error.line_display()),
                key: String::new(),
                problem: Problem::Syntax(error.kind().to_string()),
            }
        })?;
        let mut document = Document::default();
        match parsed.value {
            None => Ok(document),
            Some(ast::Value::Object(object)) => reader.object("", &object, &mut document).map(|()| document),
            Some(other) => Err(reader.error("", &other, Problem::NotAnObject { found: kind_name(&other) })),
        }
    }

    /// A value that was not read from a file.
    pub fn insert(&mut self, path: impl Into<String>, value: Value, place: Place) {
        self.values.insert(path.into(), Located { value, place });
    }

    /// The value at a concrete path.
    pub fn get(&self, path: &str) -> Option<&Located> {
        self.values.get(path)
    }

    /// All values with their paths.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Located)> {
        self.values.iter().map(|(path, located)| (path.as_str(), located))
    }

    /// As nested objects.
    pub fn to_value(&self) -> Value {
        nest(self.iter().map(|(path, located)| (path, located.value.clone())))
    }
}

/// Dotted paths → nested objects.
pub(super) fn nest<'a>(pairs: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    let mut root = serde_json::Map::new();
    for (path, value) in pairs {
        let mut object = &mut root;
        let mut parts = path.split('.').peekable();
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                object.insert(part.to_owned(), value);
                break;
            }
            let inner = object.entry(part).or_insert_with(|| Value::Object(serde_json::Map::new()));
            match inner {
                Value::Object(map) => object = map,
                // A key table never has a row below another row's value.
                _ => break,
            }
        }
    }
    Value::Object(root)
}

struct Reader<'a> {
    text: &'a str,
    file: &'a str,
    keys: &'a Keys,
    /// Where each line ends.
    line_ends: Vec<usize>,
}

impl Reader<'_> {
    fn line(&self, node: &impl Ranged) -> usize {
        self.line_ends.partition_point(|end| *end < node.start()) + 1
    }

    fn error(&self, key: &str, node: &impl Ranged, problem: Problem) -> DocumentError {
        DocumentError {
            place: Place::Line(self.file.to_owned(), self.line(node)),
            key: key.to_owned(),
            problem,
        }
    }

    /// The node as plain JSON, read from its own stretch of the text.
    fn value(&self, path: &str, node: &ast::Value<'_>) -> Result<Value, DocumentError> {
        jsonc_parser::parse_to_serde_value(&self.text[node.start()..node.end()], &PARSE_OPTIONS)
            .map_err(|error| self.error(path, node, Problem::Syntax(error.kind().to_string())))
    }

    fn object(&self, path: &str, object: &ast::Object<'_>, into: &mut Document) -> Result<(), DocumentError> {
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        for property in &object.properties {
            let name = property.name.as_str();
            let here = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            if let Some(first) = seen.insert(name, self.line(property)) {
                return Err(self.error(&here, property, Problem::Duplicate { first }));
            }
            if path.is_empty() && name == "$schema" {
                continue;
            }
            if name.contains('.') {
                return Err(self.error(&here, property, self.keys.unknown(&here)));
            }
            self.property(&here, name, property, into)?;
        }
        Ok(())
    }

    fn property(
        &self,
        path: &str,
        name: &str,
        property: &ast::ObjectProp<'_>,
        into: &mut Document,
    ) -> Result<(), DocumentError> {
        let parent = path.rsplit_once('.').map_or("", |(parent, _)| parent);
        if self.keys.below(parent).contains(&"*") {
            check_chosen_name(name).map_err(|problem| self.error(path, property, problem))?;
        }
        if let Some(key) = self.keys.find(path) {
            let value = self.value(path, &property.value)?;
            key.kind.check(&value).map_err(|problem| self.error(path, &property.value, problem))?;
            into.insert(path, value, Place::Line(self.file.to_owned(), self.line(property)));
            return Ok(());
        }
        if self.keys.below(path).is_empty() {
            return Err(self.error(path, property, self.keys.unknown(path)));
        }
        match &property.value {
            ast::Value::Object(object) => self.object(path, object, into),
            other => Err(self.error(path, other, Problem::NotAnObject { found: kind_name(other) })),
        }
    }
}

fn kind_name(value: &ast::Value<'_>) -> &'static str {
    match value {
        ast::Value::StringLit(_) => "a text",
        ast::Value::NumberLit(_) => "a number",
        ast::Value::BooleanLit(_) => "true or false",
        ast::Value::Object(_) => "an object",
        ast::Value::Array(_) => "a list",
        ast::Value::NullKeyword(_) => "null",
    }
}
