//! What tokens cost: a list with a date, and a person's own.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Used;

/// A list of prices.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Prices {
    /// The date of the list.
    as_of: String,
    /// US dollars for a million tokens, by the exact name of the model: read, written, read from the cache, written to the
    /// cache.
    models: BTreeMap<String, [f64; 4]>,
}

/// Routers name a model after its vendor.
const VENDORS: [&str; 2] = ["anthropic/", "openai/"];

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

    /// What something costs, if the price of the model is known.
    pub(crate) fn cost(&self, used: &Used) -> Option<f64> {
        self.price(&used.model).map(|price| cost_at(price, used))
    }

    /// What something costs at the highest price of the list for each kind of token.
    pub(crate) fn highest_cost(&self, used: &Used) -> f64 {
        let highest = self
            .models
            .values()
            .fold([0.0_f64; 4], |highest, price| std::array::from_fn(|kind| highest[kind].max(price[kind])));
        cost_at(&highest, used)
    }

    /// The price of a model by its exact name: a release may cost more than the name without its date.
    fn price(&self, model: &str) -> Option<&[f64; 4]> {
        let bare = VENDORS.iter().find_map(|vendor| model.strip_prefix(vendor)).unwrap_or(model);
        [model, bare].into_iter().find_map(|name| self.models.get(name))
    }
}

fn cost_at([input, output, cache_read, cache_write]: &[f64; 4], used: &Used) -> f64 {
    let parts = [
        (used.input, input),
        (used.output, output),
        (used.cache_read, cache_read),
        (used.cache_write, cache_write),
    ];
    parts.iter().map(|(tokens, price)| *tokens as f64 * **price / 1e6).sum()
}

#[cfg(test)]
mod tests {
    use super::{Prices, Used};

    #[test]
    fn model_has_the_price_of_its_exact_name() {
        let prices = Prices::built_in().unwrap();
        let cost =
            |model: &str| prices.cost(&Used { model: model.into(), input: 1_000_000, ..Used::default() });
        for (model, dollars) in [
            ("claude-opus-4-5-20251101", 5.0),
            ("claude-opus-4-1", 15.0),
            ("anthropic/claude-sonnet-4.5", 3.0),
            ("gpt-5-2025-08-07", 1.25),
            ("gpt-5-pro", 15.0),
            ("gpt-4o-2024-05-13", 5.0),
            ("gpt-4o", 2.5),
        ] {
            assert_eq!(cost(model), Some(dollars), "{model}");
        }
        for model in [
            "unheard-of",
            "gpt-5-2031-01-01",
            "gpt-5-ultra",
            "gpt-5-latest",
            "gpt-5-",
            "gpt-5-20251301",
            "gpt-5-2025-0807",
            "gpt-5-2025080",
            "gpt-5-2025-08-07-2025-08-07",
            "gpt-5:online",
            "GPT-5",
            "other/gpt-5",
            "claude-opus-4-5-fast",
            "",
        ] {
            assert_eq!(cost(model), None, "{model}");
        }
        assert!(!prices.as_of().is_empty());
    }

    #[test]
    fn highest_cost_is_that_of_no_cheaper_model() {
        let prices = Prices::built_in().unwrap();
        let used = |model: &str| Used { model: model.into(), input: 5, output: 7, ..Used::default() };
        for model in ["gpt-5-pro", "claude-opus-4-1", "gpt-5-nano"] {
            assert!(
                prices.highest_cost(&used("unheard-of")) >= prices.cost(&used(model)).unwrap(),
                "{model}"
            );
        }
    }
}
