//! What a run uses, read off the wire as it comes, and the budget that it must not pass.
//!
//! Under a budget nothing goes to a model whose usage could stay unknown: [`route`] lists the requests that are let through,
//! [`demand`] reads the most that one can use and asks for its usage, and an answer that does not tell its usage counts as that
//! most. Requests are sent side by side as long as all of them fit into what is left, at their most; one that does not fit waits
//! until it is alone. So a run passes its budget by at most one answer.

mod demand;
mod limit;
mod prices;
mod reading;
mod route;
mod scanner;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ringfence_core::event::Usage;
use tokio::sync::Notify;

pub(crate) use demand::{Demand, DemandError, MAX_BODY_BYTES, demand};
pub(crate) use limit::is_limit;
pub use prices::{Prices, PricesError};
pub(crate) use reading::{Api, Reading};
pub(crate) use route::route;

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
    /// The first model that was refused because its price is not known.
    unpriced: OnceLock<String>,
    /// The demands of requests whose answers are not counted yet.
    open: Mutex<Vec<Usage>>,
    /// Told whenever one of them is.
    counted: Notify,
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
            open: Mutex::default(),
            unpriced: OnceLock::new(),
            counted: Notify::new(),
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

    /// The first model that was refused because its price is not known.
    pub fn unpriced(&self) -> Option<&str> {
        self.unpriced.get().map(String::as_str)
    }

    pub(crate) fn refuse_unpriced(&self, model: &str) {
        let _ = self.unpriced.set(model.to_owned());
    }

    /// Whether a request to this model can be counted: under a budget of dollars its price has to be known.
    pub(crate) fn knows(&self, model: &str) -> bool {
        self.budget.cost_usd.is_none() || self.price_of(model).is_some()
    }

    fn price_of(&self, model: &str) -> Option<f64> {
        self.prices.cost(&Used { model: model.to_owned(), ..Used::default() })
    }

    /// Waits until a request may be sent: because it fits, at its most, into what is left besides all others that are on their
    /// way, or because there is no other. Nothing if the budget is used up.
    pub(crate) async fn admit(self: &Arc<Self>, demand: Demand) -> Option<Arc<Admitted>> {
        let most = self.usage(&demand.used());
        loop {
            let counted = self.counted.notified();
            tokio::pin!(counted);
            counted.as_mut().enable();
            if self.is_over() {
                return None;
            }
            {
                let mut open = self.open();
                let sum = open.iter().fold(self.total().plus(most), |sum, one| sum.plus(*one));
                if open.is_empty() || !self.exceeds(&sum) {
                    open.push(most);
                    return Some(Arc::new(Admitted { meter: Arc::clone(self), demand, most }));
                }
            }
            counted.await;
        }
    }

    fn open(&self) -> MutexGuard<'_, Vec<Usage>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn exceeds(&self, total: &Usage) -> bool {
        let tokens = total.input_tokens.saturating_add(total.output_tokens);
        self.budget.tokens.is_some_and(|most| tokens > most)
            || self.budget.cost_usd.zip(total.cost_usd).is_some_and(|(most, cost)| cost > most)
    }

    fn usage(&self, used: &Used) -> Usage {
        Usage {
            input_tokens: used.input.saturating_add(used.cache_write),
            output_tokens: used.output,
            cached_tokens: used.cache_read,
            cost_usd: self.prices.cost(used),
        }
    }

    pub(crate) fn add(&self, used: &Used) {
        let usage = self.usage(used);
        {
            let mut all = self.used();
            let name = if all.len() < MODELS { used.model.clone() } else { "others".to_owned() };
            let of_model = all.entry(name).or_default();
            *of_model = of_model.plus(usage);
        }
        if self.exceeds(&self.total())
            && !self.over.swap(true, Ordering::Relaxed)
            && let Some(alarm) = self.alarm.get()
        {
            alarm();
        }
    }
}

/// A request that was let through under a budget, until its answer is counted.
pub(crate) struct Admitted {
    meter: Arc<Meter>,
    demand: Demand,
    most: Usage,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut open = self.meter.open();
        if let Some(at) = open.iter().position(|one| *one == self.most) {
            open.swap_remove(at);
        }
        drop(open);
        self.meter.counted.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::{Budget, Demand, Meter, Prices, Used};

    fn meter(budget: Budget) -> Arc<Meter> {
        Arc::new(Meter::new(Prices::built_in().unwrap(), budget))
    }

    fn demand(tokens: u64) -> Demand {
        Demand { model: "m".into(), input_tokens: tokens, output_tokens: 0 }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_side_by_side_fit_into_what_is_left() {
        let meter = meter(Budget { tokens: Some(100), cost_usd: None });
        let first = meter.admit(demand(60)).await.unwrap();
        let second = meter.admit(demand(40)).await.unwrap();
        let waits = |tokens| timeout(Duration::from_secs(1), meter.admit(demand(tokens)));
        assert!(waits(1).await.is_err());
        drop(first);
        let third = waits(60).await.unwrap().unwrap();
        drop((second, third));
        // Alone it may be larger than the budget: what it really uses is not known yet.
        let large = waits(1000).await.unwrap().unwrap();
        assert!(waits(1).await.is_err());
        meter.add(&Used { input: 101, ..Used::default() });
        drop(large);
        assert!(waits(1).await.unwrap().is_none());
    }

    #[test]
    fn a_price_has_to_be_known_only_under_a_budget_of_dollars() {
        let dollars = meter(Budget { tokens: None, cost_usd: Some(1.0) });
        assert!(dollars.knows("claude-sonnet-4-5") && !dollars.knows("unheard-of"));
        assert!(meter(Budget { tokens: Some(1), cost_usd: None }).knows("unheard-of"));
    }
}
