//! Takes secrets out of what is logged and shown.

/// The values that must not be seen.
#[derive(Debug, Default)]
pub(crate) struct Redactor(Vec<String>);

/// Shorter values are no secrets, and taking them out would make a log unreadable.
const SHORTEST: usize = 8;

impl Redactor {
    pub(crate) fn new<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Self {
        let mut values: Vec<String> =
            secrets.into_iter().filter(|value| value.len() >= SHORTEST).map(str::to_owned).collect();
        // A secret that is part of another must not spoil the longer one.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        Self(values)
    }

    pub(crate) fn clean(&self, text: String) -> String {
        self.0.iter().fold(text, |text, secret| {
            if text.contains(secret.as_str()) { text.replace(secret.as_str(), "[REDACTED]") } else { text }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Redactor;

    #[test]
    fn secrets_vanish_and_everything_else_stays() {
        let redactor = Redactor::new(["sk-12345678", "sk-12345678-long", "1"]);
        assert_eq!(
            redactor.clean("a sk-12345678-long b sk-12345678 c 1".into()),
            "a [REDACTED] b [REDACTED] c 1"
        );
    }
}
