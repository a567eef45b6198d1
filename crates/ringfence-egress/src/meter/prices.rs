//! What tokens cost: a list with a date, and a person's own.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Used;

/// A list of prices.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Prices {
    /// When it was so.
    as_of: String,
    /// For a million tokens: read, written, read from the cache, written to the cache. A model is known by how its name
    /// begins.
    models: BTreeMap<String, [f64; 4]>,
}

/// Why a list cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the prices cannot be used")]
pub struct PricesError(#[from] serde_json::Error);

impl Prices {
    /// The list that comes with the binary.
    pub fn built_in() -> Result<Self, PricesError> {
        Self::parse(include_str!("prices.json"))
    }

    /// A list of one's own, in the same form.
    pub fn parse(text: &str) -> Result<Self, PricesError> {
        Ok(serde_json::from_str(text)?)
    }

    /// When it was so.
    pub fn as_of(&self) -> &str {
        &self.as_of
    }

    /// What something costs, if the model is known. The longest beginning of its name counts.
    pub(crate) fn cost(&self, used: &Used) -> Option<f64> {
        let name = used.model.rsplit('/').next().unwrap_or_default();
        let known = self.models.iter().filter(|(beginning, _)| name.starts_with(beginning.as_str()));
        let (_, [input, output, cache_read, cache_write]) =
            known.max_by_key(|(beginning, _)| beginning.len())?;
        let parts = [
            (used.input, input),
            (used.output, output),
            (used.cache_read, cache_read),
            (used.cache_write, cache_write),
        ];
        Some(parts.iter().map(|(tokens, price)| *tokens as f64 * **price / 1e6).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::{Prices, Used};

    #[test]
    fn a_model_is_known_by_the_longest_beginning_of_its_name() {
        let prices = Prices::built_in().unwrap();
        let used = |model: &str| Used { model: model.into(), input: 1_000_000, ..Used::default() };
        assert_eq!(prices.cost(&used("claude-opus-4-5-20251101")), Some(5.0));
        assert_eq!(prices.cost(&used("claude-opus-4-1")), Some(15.0));
        assert_eq!(prices.cost(&used("anthropic/claude-sonnet-4-5")), Some(3.0));
        assert_eq!(prices.cost(&used("unheard-of")), None);
        assert!(!prices.as_of().is_empty());
    }
}
