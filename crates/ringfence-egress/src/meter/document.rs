//! A JSON document in which no object names a field twice: readers disagree about which of the two values counts.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Parses an object. Names are compared after their escapes are decoded, at every depth.
pub(super) fn parse_object(text: &[u8]) -> Option<Map<String, Value>> {
    match serde_json::from_slice(text).ok()? {
        Document(Value::Object(fields)) => Some(fields),
        Document(_) => None,
    }
}

/// A name without its case, as lenient decoders compare names: `ſ` is `s`, and the Kelvin sign is `k`.
pub(super) fn fold_case(name: &str) -> String {
    name.to_uppercase().to_lowercase()
}

struct Document(Value);

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(DocumentVisitor).map(Self)
    }
}

struct DocumentVisitor;

impl<'de> Visitor<'de> for DocumentVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON without repeated names")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(Document(item)) = access.next_element()? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some((name, Document(value))) = access.next_entry::<String, Document>()? {
            if fields.insert(name, value).is_some() {
                return Err(A::Error::custom("a name is repeated"));
            }
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{fold_case, parse_object};

    #[test]
    fn object_without_repeated_names_is_read_as_it_is() {
        let text = r#"{"a": [1, -2, 2.5, "x\u00e9", null, true], "b": {"a": {}}}"#;
        let plain: Value = serde_json::from_str(text).unwrap();
        assert_eq!(parse_object(text.as_bytes()).map(Value::Object), Some(plain));
    }

    #[test]
    fn repeated_name_is_refused_at_any_depth() {
        for text in [
            r#"{"a": 1, "a": 1}"#,
            r#"{"a": 1, "\u0061": 1}"#,
            r#"{"x": [{"y": {"a": 1, "b": 2, "a": 3}}]}"#,
            r#"[{"a": 1}]"#,
            r#"{"a": 1} {"a": 2}"#,
            "{\"a\": 1",
            "",
        ] {
            assert_eq!(parse_object(text.as_bytes()), None, "{text}");
        }
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(500), "]".repeat(500));
        assert_eq!(parse_object(deep.as_bytes()), None);
    }

    #[test]
    fn case_is_folded_as_lenient_decoders_do() {
        for name in ["Tools", "TOOLS", "tool\u{17f}"] {
            assert_eq!(fold_case(name), "tools", "{name}");
        }
        assert_eq!(fold_case("max_to\u{212a}ens"), "max_tokens");
    }
}
