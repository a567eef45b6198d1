//! Values as people may see them who are not meant to see everything.

use serde_json::Value;

const HIDDEN: &str = "••••";

/// A value without what is nobody's business: named credentials, and what stands in an address besides its host.
pub fn shown(key: &str, value: &Value) -> Value {
    match (key.rsplit('.').next().unwrap_or_default(), value) {
        ("credentials", Value::Array(texts)) => texts.iter().map(credential).collect(),
        ("webhook" | "base_url", Value::String(url)) => shown_url(url).into(),
        _ => value.clone(),
    }
}

/// The same for all values in a section.
pub fn shown_section(section: &Value) -> Value {
    match section {
        Value::Object(values) => {
            let one = |(key, value): (&String, &Value)| {
                let value = if value.is_object() { shown_section(value) } else { shown(key, value) };
                (key.clone(), value)
            };
            values.iter().map(one).collect::<serde_json::Map<_, _>>().into()
        }
        other => other.clone(),
    }
}

fn credential(text: &Value) -> String {
    let text = text.as_str().unwrap_or_default();
    text.split_once(':').map_or_else(|| text.to_owned(), |(head, _)| format!("{head}: {HIDDEN}"))
}

/// An address with its host alone.
pub fn shown_url(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return HIDDEN.to_owned() };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let more = if rest.len() > host.len() { format!("/{HIDDEN}") } else { String::new() };
    format!("{scheme}://{host}{more}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{shown, shown_section};

    #[test]
    fn what_is_nobodys_business_is_not_shown() {
        let cases = [
            (
                "queue.webhook",
                json!("https://u:p@hooks.example.com/T/B/secret?x=y"),
                json!("https://hooks.example.com/••••"),
            ),
            ("queue.webhook", json!("https://hooks.example.com"), json!("https://hooks.example.com")),
            ("agents.a.base_url", json!("http://tok@127.0.0.1:80"), json!("http://127.0.0.1:80/••••")),
            ("broker.credentials", json!(["github", "h X-Key: v"]), json!(["github", "h X-Key: ••••"])),
            ("sandbox.mode", json!("host"), json!("host")),
        ];
        for (key, value, expected) in cases {
            assert_eq!(shown(key, &value), expected, "{key}");
            let section = |value| key.rsplit('.').fold(value, |inner, name| json!({ name: inner }));
            assert_eq!(shown_section(&section(value)), section(expected), "{key}");
        }
    }
}
