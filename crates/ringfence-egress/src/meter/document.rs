//! The body of a request, as every reader of JSON understands it.

use ringfence_core::json::parse_distinct;
use serde_json::{Map, Value};

use super::DemandError;

/// Parses an object in which no name is repeated.
pub(super) fn parse_object(text: &[u8]) -> Result<Map<String, Value>, DemandError> {
    match parse_distinct(text) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(DemandError::NotJson),
        Err(error) => Err(error.into()),
    }
}

/// A name without its case, as lenient decoders compare names: `ſ` is `s`, and the Kelvin sign is `k`.
pub(super) fn fold_case(name: &str) -> String {
    name.to_uppercase().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::{fold_case, parse_object};
    use crate::meter::DemandError;

    #[test]
    fn body_is_one_object_of_bounded_size() {
        assert!(parse_object(br#"{"a": 1}"#).is_ok());
        for text in [&b"[1]"[..], b"{\"a\": 1", b"", br#"{"a": 1, "a": 1}"#] {
            assert_eq!(parse_object(text), Err(DemandError::NotJson));
        }
        let large = format!("{{\"a\":[{}0]}}", "0,".repeat(200_000));
        assert_eq!(parse_object(large.as_bytes()), Err(DemandError::TooManyValues));
    }

    #[test]
    fn case_is_folded_as_lenient_decoders_do() {
        for name in ["Tools", "TOOLS", "tool\u{17f}"] {
            assert_eq!(fold_case(name), "tools", "{name}");
        }
        assert_eq!(fold_case("max_to\u{212a}ens"), "max_tokens");
    }
}
