//! What a run uses, read off the wire as it comes, and the budget that it must not pass.

mod limit;
mod prices;
mod reading;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use ringfence_core::event::Usage;

pub(crate) use limit::is_limit;
pub use prices::{Prices, PricesError};
pub(crate) use reading::{Api, Reading};

/// So many models are told apart.
const MODELS: usize = 64;

/// How much a run may use.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Budget {
    /// Tokens read and written; what comes from the provider's cache is not counted.
    pub tokens: Option<u64>,
    /// US dollars.
    pub cost_usd: Option<f64>,
}

/// What one answer of a model has used.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Used {
    pub(crate) model: String,
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) cache_read: u64,
    pub(crate) cache_write: u64,
}

impl Used {
    /// What has come since an earlier reading of the same answer.
    fn since(&self, before: &Used) -> Used {
        Used {
            model: self.model.clone(),
            input: self.input.saturating_sub(before.input),
            output: self.output.saturating_sub(before.output),
            cache_read: self.cache_read.saturating_sub(before.cache_read),
            cache_write: self.cache_write.saturating_sub(before.cache_write),
        }
    }
}

/// Counts for one run.
pub struct Meter {
    prices: Prices,
    budget: Budget,
    used: Mutex<BTreeMap<String, Usage>>,
    over: AtomicBool,
    limited: AtomicBool,
    alarm: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Meter {
    pub(crate) fn new(prices: Prices, budget: Budget) -> Self {
        Self {
            prices,
            budget,
            used: Mutex::default(),
            over: AtomicBool::new(false),
            limited: AtomicBool::new(false),
            alarm: OnceLock::new(),
        }
    }

    /// What to do when the budget is passed. Once; until then nothing is done but to refuse.
    pub fn on_over(&self, alarm: impl Fn() + Send + Sync + 'static) {
        let _ = self.alarm.set(Box::new(alarm));
    }

    /// Whether the budget was passed.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Whether a model's server has refused a request because of a limit, as far as the broker can tell.
    pub fn saw_limit(&self) -> bool {
        self.limited.load(Ordering::Relaxed)
    }

    /// Notes that a model's server refused because of a limit, or that the broker could not read its answer.
    pub(crate) fn note_limit(&self) {
        self.limited.store(true, Ordering::Relaxed);
    }

    /// What was used, model by model. A model whose price is not known has tokens alone.
    pub fn by_model(&self) -> BTreeMap<String, Usage> {
        self.used().clone()
    }

    /// What was used.
    pub fn total(&self) -> Usage {
        self.used().values().fold(Usage::default(), |sum, usage| sum.plus(*usage))
    }

    fn used(&self) -> MutexGuard<'_, BTreeMap<String, Usage>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, used: &Used) {
        let usage = Usage {
            input_tokens: used.input.saturating_add(used.cache_write),
            output_tokens: used.output,
            cached_tokens: used.cache_read,
            cost_usd: self.prices.cost(used),
        };
        {
            let mut all = self.used();
            let name = if all.len() < MODELS { used.model.clone() } else { "others".to_owned() };
            let of_model = all.entry(name).or_default();
            *of_model = of_model.plus(usage);
        }
        let total = self.total();
        let tokens = total.input_tokens.saturating_add(total.output_tokens);
        let over = self.budget.tokens.is_some_and(|most| tokens > most)
            || self.budget.cost_usd.zip(total.cost_usd).is_some_and(|(most, cost)| cost > most);
        if over
            && !self.over.swap(true, Ordering::Relaxed)
            && let Some(alarm) = self.alarm.get()
        {
            alarm();
        }
    }
}
