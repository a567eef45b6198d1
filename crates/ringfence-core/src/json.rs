//! JSON documents from outside Ringfence, with a bound on what they take in memory: a value takes many times the bytes of its text.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// A document with more values is refused.
const MAX_VALUES: u32 = 200_000;

/// Why a text is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JsonError {
    /// It is no JSON, or names a field twice where that is refused.
    #[error("it is not JSON with distinct names")]
    Malformed,
    /// It has too many values.
    #[error("it has more than {MAX_VALUES} values")]
    TooManyValues,
}

/// Reads a document. Of a name that is repeated the last value counts.
pub fn parse(text: &[u8]) -> Result<Value, JsonError> {
    read(text, false)
}

/// Reads a document in which no object names a field twice, at any depth: readers disagree about which of the two values counts.
/// Names are compared after their escapes are decoded.
pub fn parse_distinct(text: &[u8]) -> Result<Value, JsonError> {
    read(text, true)
}

fn read(text: &[u8], distinct: bool) -> Result<Value, JsonError> {
    let left = Cell::new(MAX_VALUES);
    let mut reader = serde_json::Deserializer::from_slice(text);
    let value = Document { left: &left, distinct }.deserialize(&mut reader);
    value.and_then(|value| reader.end().map(|()| value)).map_err(|_| match left.get() {
        0 => JsonError::TooManyValues,
        _ => JsonError::Malformed,
    })
}

#[derive(Clone, Copy)]
struct Document<'a> {
    /// How many values may still come.
    left: &'a Cell<u32>,
    distinct: bool,
}

impl<'de> DeserializeSeed<'de> for Document<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.left.set(self.left.get().saturating_sub(1));
        if self.left.get() == 0 {
            return Err(D::Error::custom("too many values"));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Document<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
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
        while let Some(item) = access.next_element_seed(self)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            let value = access.next_value_seed(self)?;
            if fields.insert(name, value).is_some() && self.distinct {
                return Err(A::Error::custom("a name is repeated"));
            }
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{JsonError, parse, parse_distinct};

    #[test]
    fn document_is_read_as_it_is() {
        let text = r#"{"a": [1, -2, 2.5, "x\u00e9", null, true], "b": {"a": {}}}"#;
        let plain: Value = serde_json::from_str(text).unwrap();
        assert_eq!(parse_distinct(text.as_bytes()), Ok(plain.clone()));
        assert_eq!(parse(text.as_bytes()), Ok(plain));
    }

    #[test]
    fn repeated_name_is_refused_at_any_depth() {
        for text in
            [r#"{"a": 1, "a": 1}"#, r#"{"a": 1, "\u0061": 1}"#, r#"{"x": [{"y": {"a": 1, "b": 2, "a": 3}}]}"#]
        {
            assert_eq!(parse_distinct(text.as_bytes()), Err(JsonError::Malformed), "{text}");
            assert_eq!(parse(text.as_bytes()).ok(), serde_json::from_str(text).ok(), "{text}");
        }
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(500), "]".repeat(500));
        for text in [r#"{"a": 1} {"a": 2}"#, "{\"a\": 1", "", &deep] {
            assert_eq!(parse(text.as_bytes()), Err(JsonError::Malformed), "{text}");
        }
    }

    #[test]
    fn document_of_too_many_values_is_refused() {
        let list = |count: usize| format!("[{}0]", "0,".repeat(count));
        assert!(parse(list(100_000).as_bytes()).is_ok());
        assert_eq!(parse(list(200_000).as_bytes()), Err(JsonError::TooManyValues));
        let nested = format!("{{\"a\":[{}[]]}}", "{},".repeat(200_000));
        assert_eq!(parse_distinct(nested.as_bytes()), Err(JsonError::TooManyValues));
    }
}
