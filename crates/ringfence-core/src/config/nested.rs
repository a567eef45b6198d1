//! Values by their dotted paths, read as nested objects without building those.

use serde::de::value::StrDeserializer;
use serde::de::{Deserializer, IntoDeserializer, MapAccess, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Error, Value};

/// An object: its values by path, sorted, and how many bytes of each path lead to it. A key table never has a row below another
/// row's value, so all paths go on from there.
pub(super) struct Nested<'a> {
    pairs: &'a [(&'a str, &'a Value)],
    prefix: usize,
}

impl<'a> Nested<'a> {
    /// The outermost object. Its pairs are sorted by path.
    pub(super) fn root(pairs: &'a [(&'a str, &'a Value)]) -> Self {
        Self { pairs, prefix: 0 }
    }
}

impl<'de> Deserializer<'de> for Nested<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(Members { left: self, value: None })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct enum identifier ignored_any
    }
}

/// The members of an object that are still to be read, and the value of the one whose name was.
struct Members<'a> {
    left: Nested<'a>,
    value: Option<Member<'a>>,
}

enum Member<'a> {
    Value(&'a Value),
    Object(Nested<'a>),
}

impl<'de> MapAccess<'de> for Members<'de> {
    type Error = Error;

    fn next_key_seed<K: serde::de::DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let Nested { pairs, prefix } = self.left;
        let Some((path, value)) = pairs.first() else { return Ok(None) };
        let rest = &path[prefix..];
        let (name, count) = match rest.split_once('.') {
            None => {
                self.value = Some(Member::Value(value));
                (rest, 1)
            }
            Some((name, _)) => {
                let inner = prefix + name.len() + 1;
                let is_inside = |(other, _): &&(&str, &Value)| other.get(..inner) == path.get(..inner);
                let count = pairs.iter().take_while(is_inside).count();
                self.value = Some(Member::Object(Nested { pairs: &pairs[..count], prefix: inner }));
                (name, count)
            }
        };
        self.left.pairs = &pairs[count..];
        let name: StrDeserializer<'de, Error> = name.into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<V: serde::de::DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        match self.value.take() {
            Some(Member::Value(value)) => seed.deserialize(value),
            Some(Member::Object(object)) => seed.deserialize(object),
            None => Err(serde::de::Error::custom("a value was read twice")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;
    use serde_json::{Value, json};

    use super::super::document::nest;
    use super::Nested;

    fn read(pairs: &[(&str, &Value)]) -> Value {
        Value::deserialize(Nested::root(pairs)).unwrap()
    }

    #[test]
    fn paths_are_read_as_nested_objects() {
        let values = [json!(1), json!(null), json!([2]), json!({"x": "y"})];
        let pairs = [("a-b", &values[0]), ("a.b.c", &values[1]), ("a.b.d", &values[2]), ("e", &values[3])];
        assert_eq!(read(&pairs), json!({"a-b": 1, "a": {"b": {"c": null, "d": [2]}}, "e": {"x": "y"}}));
        assert_eq!(read(&[]), json!({}));
    }

    proptest! {
        /// Names of one length, so that no path is the beginning of another.
        #[test]
        fn nested_objects_are_the_same_as_if_they_were_built(
            paths in proptest::collection::btree_set("[a-c-]\\.[a-c-]\\.[a-c]", 0..20),
        ) {
            let values: Vec<Value> = (0..paths.len()).map(Value::from).collect();
            let pairs: Vec<(&str, &Value)> = paths.iter().map(String::as_str).zip(&values).collect();
            let built = nest(pairs.iter().map(|(path, value)| (*path, (*value).clone())));
            prop_assert_eq!(read(&pairs), built);
        }
    }
}
