//! What a run uses, read off the wire as it comes, and the budget that it must not pass.
//!
//! Under a budget nothing goes to a model whose usage could stay unknown: `endpoints.rs` lists the requests that are let through,
//! [`fields`] the fields that they may have, [`demand`] reads the most that one can use and asks for its usage, and an answer that
//! does not tell its usage counts as that most. Requests are sent side by side as long as all of them fit into what is left, at
//! their most; one that does not fit, or whose input nothing bounds, waits until it is alone. So a run passes its budget by at
//! most one answer.

mod dates;
mod demand;
mod document;
mod fields;
mod limit;
mod prices;
mod reading;
mod scanner;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ringfence_core::event::Usage;
use ringfence_core::text::PlainText;
use tokio::sync::Notify;

pub(crate) use demand::{Demand, DemandError, MAX_BODY_BYTES, demand};
pub(crate) use limit::is_limit;
pub use prices::{Prices, PricesError};
pub(crate) use reading::{Api, Reading};

/// So many answers of a run cost nothing whose status alone says that nothing was begun.
pub(crate) const MAX_UNPROVEN_REFUSALS: usize = 16;
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

/// A request whose answer is not counted yet.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Open {
    most: Usage,
    /// Whether no other request may be on its way.
    alone: bool,
}

/// Counts for one run.
pub struct Meter {
    prices: Prices,
    budget: Budget,
    used: Mutex<BTreeMap<PlainText, Usage>>,
    /// What earlier runs of the same task have used.
    earlier: OnceLock<Usage>,
    over: AtomicBool,
    limited: AtomicBool,
    /// The first model whose price is not known, of those that a request or an answer has named under a budget of dollars.
    unpriced: OnceLock<String>,
    /// The same, of those that an answer has named.
    unpriced_answer: OnceLock<String>,
    /// The requests whose answers are not counted yet.
    open: Mutex<Vec<Open>>,
    /// Told whenever one of them is.
    counted: Notify,
    /// Answers that said that nothing was begun, though their status does not prove it.
    unproven_refusals: AtomicUsize,
    alarm: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Meter {
    pub(crate) fn new(prices: Prices, budget: Budget) -> Self {
        Self {
            prices,
            budget,
            used: Mutex::default(),
            earlier: OnceLock::new(),
            over: AtomicBool::new(false),
            limited: AtomicBool::new(false),
            open: Mutex::default(),
            unpriced: OnceLock::new(),
            unpriced_answer: OnceLock::new(),
            counted: Notify::new(),
            unproven_refusals: AtomicUsize::new(0),
            alarm: OnceLock::new(),
        }
    }

    /// What to do when the budget is passed; at once if earlier runs have passed it. Until then nothing is done but to refuse.
    pub fn on_over(&self, alarm: impl Fn() + Send + Sync + 'static) {
        let _ = self.alarm.set(Box::new(alarm));
        if self.is_over()
            && let Some(alarm) = self.alarm.get()
        {
            alarm();
        }
    }

    /// Counts what earlier runs of the same task have used against the budget. It is not part of what this run has used.
    pub fn count_earlier(&self, earlier: Usage) {
        let _ = self.earlier.set(earlier);
        if self.exceeds(&Usage::default()) {
            self.over.store(true, Ordering::Relaxed);
        }
    }

    /// What was used by this run and by earlier ones of the same task.
    pub fn total_of_task(&self) -> Usage {
        self.with_earlier(self.total())
    }

    fn with_earlier(&self, usage: Usage) -> Usage {
        self.earlier.get().map_or(usage, |earlier| usage.plus(*earlier))
    }

    /// Whether the budget was passed.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Whether a model's server has refused a request because of a limit, as far as the broker can tell.
    pub fn saw_limit(&self) -> bool {
        self.limited.load(Ordering::Relaxed)
    }

    /// Whether an answer may cost nothing whose status does not prove that nothing was begun. A run could provoke such answers at will, so
    /// only some do.
    pub(crate) fn forgives_refusal(&self) -> bool {
        self.unproven_refusals.fetch_add(1, Ordering::Relaxed) < MAX_UNPROVEN_REFUSALS
    }

    /// Notes that a model's server refused because of a limit, or that the broker could not read its answer.
    pub(crate) fn note_limit(&self) {
        self.limited.store(true, Ordering::Relaxed);
    }

    /// What was used, model by model. A model whose price is not known has tokens alone.
    pub fn by_model(&self) -> BTreeMap<PlainText, Usage> {
        self.used().clone()
    }

    /// What was used.
    pub fn total(&self) -> Usage {
        self.used().values().fold(Usage::default(), |sum, usage| sum.plus(*usage))
    }

    fn used(&self) -> MutexGuard<'_, BTreeMap<PlainText, Usage>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first model whose price is not known, of those that a request or an answer has named under a budget of dollars.
    pub fn unpriced(&self) -> Option<&str> {
        self.unpriced.get().map(String::as_str)
    }

    pub(crate) fn refuse_unpriced(&self, model: &str) {
        let _ = self.unpriced.set(model.to_owned());
    }

    /// Notes that an answer names a model whose price is not known: no other request is sent.
    fn note_unpriced_answer(&self, model: &str) {
        self.refuse_unpriced(model);
        let _ = self.unpriced_answer.set(model.to_owned());
    }

    /// The model without a price that an answer has named.
    pub(crate) fn unpriced_answer(&self) -> Option<&str> {
        self.unpriced_answer.get().map(String::as_str)
    }

    /// Whether a request to this model can be counted: under a budget of dollars its price has to be known.
    pub(crate) fn knows(&self, model: &str) -> bool {
        self.budget.cost_usd.is_none() || self.price_of(model).is_some()
    }

    /// Whether the list of prices has the model by its own name.
    fn lists(&self, model: &str) -> bool {
        self.price_of(model).is_some()
    }

    fn price_of(&self, model: &str) -> Option<f64> {
        self.prices.cost(&Used { model: model.to_owned(), ..Used::default() })
    }

    /// Waits until a request may be sent: because it is bounded and fits, at its most, into what is left besides all others that
    /// are on their way, or because there is no other. Nothing if the budget is used up.
    pub(crate) async fn admit(self: &Arc<Self>, demand: Demand) -> Option<Arc<Admitted>> {
        let request = Open { most: self.usage(&demand.used()), alone: demand.unbounded };
        loop {
            let counted = self.counted.notified();
            tokio::pin!(counted);
            counted.as_mut().enable();
            if self.is_over() {
                return None;
            }
            {
                let mut open = self.open();
                let alone = request.alone || open.iter().any(|other| other.alone);
                let sum =
                    open.iter().fold(self.total().plus(request.most), |sum, other| sum.plus(other.most));
                if open.is_empty() || !(alone || self.exceeds(&sum)) {
                    open.push(request);
                    return Some(Arc::new(Admitted {
                        meter: Arc::clone(self),
                        demand,
                        request,
                        owed: AtomicBool::new(false),
                    }));
                }
            }
            counted.await;
        }
    }

    fn open(&self) -> MutexGuard<'_, Vec<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this usage, with that of earlier runs, passes the budget.
    fn exceeds(&self, usage: &Usage) -> bool {
        let total = self.with_earlier(*usage);
        let tokens = total.input_tokens.saturating_add(total.output_tokens);
        self.budget.tokens.is_some_and(|most| tokens > most)
            || self.budget.cost_usd.zip(total.cost_usd).is_some_and(|(most, cost)| cost > most)
    }

    /// A model without a price costs, under a budget of dollars, as much as the most expensive one.
    fn usage(&self, used: &Used) -> Usage {
        let highest = || self.budget.cost_usd.is_some().then(|| self.prices.highest_cost(used));
        Usage {
            input_tokens: used.input.saturating_add(used.cache_write),
            output_tokens: used.output,
            cached_tokens: used.cache_read,
            cost_usd: self.prices.cost(used).or_else(highest),
        }
    }

    pub(crate) fn add(&self, used: &Used) {
        let usage = self.usage(used);
        {
            let mut all = self.used();
            // A server may answer with any name.
            let name = PlainText::from(PlainText::from(&used.model).one_line());
            let name = if all.len() < MODELS { name } else { "others".into() };
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
    request: Open,
    /// Whether it was sent, and its answer is neither counted nor known to cost nothing.
    owed: AtomicBool,
}

impl Admitted {
    /// From now on it counts at its most, until it is settled: the host may have it.
    pub(crate) fn sent(&self) {
        self.owed.store(true, Ordering::Relaxed);
    }

    /// Its answer is counted, or costs nothing.
    pub(crate) fn settle(&self) {
        self.owed.store(false, Ordering::Relaxed);
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        if *self.owed.get_mut() {
            self.meter.add(&self.demand.used());
        }
        let mut open = self.meter.open();
        if let Some(at) = open.iter().position(|one| *one == self.request) {
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

    use ringfence_core::event::Usage;

    use super::{Budget, Demand, Meter, Prices, Used};

    fn meter(budget: Budget) -> Arc<Meter> {
        Arc::new(Meter::new(Prices::built_in().unwrap(), budget))
    }

    fn demand(tokens: u64) -> Demand {
        Demand { model: "m".into(), input_tokens: tokens, ..Demand::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn request_without_a_bound_goes_alone() {
        let meter = meter(Budget { tokens: Some(1_000_000_000), cost_usd: None });
        let waits = |demand| timeout(Duration::from_secs(1), meter.admit(demand));
        let unbounded = || Demand { unbounded: true, ..demand(1) };
        let bounded = waits(demand(1)).await.unwrap().unwrap();
        assert!(waits(unbounded()).await.is_err());
        drop(bounded);
        let alone = waits(unbounded()).await.unwrap().unwrap();
        assert!(waits(demand(1)).await.is_err() && waits(unbounded()).await.is_err());
        drop(alone);
        assert!(waits(demand(1)).await.unwrap().is_some());
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

    #[tokio::test(start_paused = true)]
    async fn runs_of_one_task_share_its_budget() {
        let used = |tokens| Usage { input_tokens: tokens, ..Usage::default() };
        let second = meter(Budget { tokens: Some(100), cost_usd: None });
        second.count_earlier(used(60));
        let first = second.admit(demand(40)).await.unwrap();
        assert!(timeout(Duration::from_secs(1), second.admit(demand(1))).await.is_err());
        second.add(&Used { input: 41, ..Used::default() });
        drop(first);
        assert!(second.is_over());
        assert_eq!((second.total(), second.total_of_task()), (used(41), used(101)));
        let third = meter(Budget { tokens: None, cost_usd: Some(1.0) });
        third.count_earlier(Usage { cost_usd: Some(1.5), ..Usage::default() });
        let (told, hears) = std::sync::mpsc::channel();
        third.on_over(move || told.send(()).unwrap());
        assert!(third.is_over() && hears.try_recv().is_ok() && third.admit(demand(1)).await.is_none());
    }

    #[tokio::test]
    async fn request_that_was_sent_counts_at_its_most_unless_it_is_settled() {
        let meter = meter(Budget { tokens: Some(100), cost_usd: None });
        let tokens = || meter.total().input_tokens;
        drop(meter.admit(demand(7)).await);
        assert_eq!(tokens(), 0, "it was never sent");
        let settled = meter.admit(demand(7)).await.unwrap();
        settled.sent();
        settled.settle();
        drop(settled);
        assert_eq!(tokens(), 0);
        meter.admit(demand(7)).await.unwrap().sent();
        assert_eq!(tokens(), 7);
        let admitted = meter.admit(demand(20)).await.unwrap();
        admitted.sent();
        drop(super::Reading::new(super::Api::Chat, Arc::clone(&meter), true, Some(admitted)));
        assert_eq!(tokens(), 27, "its answer has begun");
        meter.admit(demand(1000)).await.unwrap().sent();
        assert!(meter.is_over() && meter.admit(demand(1)).await.is_none());
    }

    #[test]
    fn names_of_models_are_cleaned() {
        let meter = meter(Budget::default());
        for model in ["a\u{1b}[2Jb", "ab", "a\u{200b}b"] {
            meter.add(&Used { model: model.into(), input: 1, ..Used::default() });
        }
        meter.add(&Used { model: "a\nb".into(), input: 1, ..Used::default() });
        let names: Vec<String> = meter.by_model().into_keys().map(Into::into).collect();
        assert_eq!(names, ["a b", "ab"]);
    }

    #[test]
    fn a_price_has_to_be_known_only_under_a_budget_of_dollars() {
        let dollars = meter(Budget { tokens: None, cost_usd: Some(1.0) });
        assert!(dollars.knows("claude-sonnet-4-5") && !dollars.knows("unheard-of"));
        assert!(meter(Budget { tokens: Some(1), cost_usd: None }).knows("unheard-of"));
    }
}
